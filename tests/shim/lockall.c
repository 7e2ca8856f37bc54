/* mlockall of all memory to come (memcached -k, real-time programs): the program goes on and has its bytes,
 * whatever it was told. */
#include "check.h"

#include <pthread.h>
#include <sys/syscall.h>

#define BYTES (64 * MIB)

static void *on_a_thread(void *argument) {
    char room[256 * 1024];
    memset(room, 3, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
    check_filled(argument, BYTES, 1, "seen by a thread");
    return NULL;
}

static void use_memory(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    char *block = malloc(24 * MIB);
    CHECK(block, "malloc");
    fill(block + 8192 - ((uintptr_t)block & (PAGE - 1)), 23 * MIB, 2);
    churn();
    check_filled(start, BYTES, 1, "mapped");
    check_filled(block + 8192 - ((uintptr_t)block & (PAGE - 1)), 23 * MIB, 2, "allocated");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, on_a_thread, start) == 0 && pthread_join(thread, NULL) == 0,
        "thread");
    CHECK(madvise(start, BYTES / 2, MADV_DONTNEED) == 0 || errno == EINVAL, "madvise of locked memory");
    check_filled(start + BYTES / 2, BYTES / 2, 1 + BYTES / 2 / PAGE, "the other half");
    CHECK(munlockall() == 0, "munlockall");
    free(block);
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

/* In a child of its own each, since it is large only once. */
static void in_a_child(int flags, int by_libc) {
    pid_t child = fork();
    if (child == 0) {
        int done = by_libc ? mlockall(flags) : (int)syscall(SYS_mlockall, flags);
        /* Programs without the right to lock this much are told so and go on. */
        if (done != 0) CHECK(errno == ENOMEM || errno == EPERM, "mlockall");
        use_memory();
        exit(0);
    }
    check_child(child, "child that locks");
}

static void what_comes(void) { in_a_child(MCL_FUTURE, 1); }
static void what_is_there_and_what_comes(void) { in_a_child(MCL_CURRENT | MCL_FUTURE, 1); }
static void what_comes_once_it_is_touched(void) { in_a_child(MCL_FUTURE | MCL_ONFAULT, 1); }
static void past_libc(void) { in_a_child(MCL_CURRENT | MCL_FUTURE, 0); }

static void flags_are_checked(void) {
    errno = 0;
    CHECK(mlockall(0) == -1 && errno == EINVAL, "no flags");
    errno = 0;
    CHECK(mlockall(1 << 10) == -1 && errno == EINVAL, "unknown flags");
}

int main(void) {
    RUN(flags_are_checked);
    RUN(what_comes);
    RUN(what_is_there_and_what_comes);
    RUN(what_comes_once_it_is_touched);
    RUN(past_libc);
    return 0;
}
