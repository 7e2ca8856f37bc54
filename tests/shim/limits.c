/* Neighbouring calls: locking, signal stacks, limits, mincore; they answer as they do natively. */
#include "check.h"

#include <pthread.h>
#include <sys/resource.h>

#define BYTES (64 * MIB)

static void locked_pages_keep_their_bytes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    /* Small enough for the default limit of locked memory. */
    CHECK(mlock(start + 8 * MIB, 2 * MIB) == 0, "mlock");
    churn();
    check_filled(start, BYTES, 1, "partly locked");
    fill(start + 8 * MIB, 2 * MIB, 70000);
    churn();
    check_filled(start + 8 * MIB, 2 * MIB, 70000, "locked, written");
    CHECK(munlock(start + 8 * MIB, 2 * MIB) == 0, "munlock");
    churn();
    check_filled(start + 8 * MIB, 2 * MIB, 70000, "unlocked again");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void locked_mappings_may_go(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    CHECK(mlock(start, 2 * MIB) == 0, "mlock");
    CHECK(munmap(start, MIB) == 0, "munmap of a locked part");
    check_filled(start + MIB, BYTES - MIB, 2 + MIB / PAGE, "the rest");
    CHECK(munmap(start, BYTES) == 0, "munmap");
    errno = 0;
    CHECK(mlock(start, MIB) == -1 && errno == ENOMEM, "mlock of nothing mapped");
}

static void mlockall_of_the_present_is_undone(void) {
    char *start = map(2 * MIB);
    fill(start, 2 * MIB, 3);
    /* Programs without the right to lock this much are told ENOMEM or EPERM and go on. */
    if (mlockall(MCL_CURRENT) != 0) CHECK(errno == ENOMEM || errno == EPERM, "mlockall");
    check_filled(start, 2 * MIB, 3, "after mlockall");
    CHECK(munlockall() == 0, "munlockall");
    char *more = map(BYTES);
    fill(more, BYTES, 4);
    check_filled(more, BYTES, 4, "after munlockall");
    CHECK(munmap(start, 2 * MIB) == 0 && munmap(more, BYTES) == 0, "munmap");
}

static volatile sig_atomic_t handled;
static char *signal_data;

static void handler(int number) {
    char here;
    (void)number;
    stack_t stack;
    CHECK(sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_ONSTACK), "not on the signal stack");
    CHECK(&here >= (char *)stack.ss_sp && &here < (char *)stack.ss_sp + stack.ss_size, "elsewhere");
    CHECK(page_is(signal_data + 30 * MIB, 5 + 30 * MIB / PAGE), "data read by a signal handler");
    handled++;
}

/* The signal stack is a mapping like any other: it may be pushed out between two signals. */
static void signal_stack_in_mapped_memory(void) {
    size_t size = 256 * 1024;
    char *memory = map(BYTES);
    signal_data = memory;
    fill(memory, BYTES, 5);
    stack_t stack = {.ss_sp = memory + 8 * MIB, .ss_size = size}, old;
    CHECK(sigaltstack(&stack, &old) == 0, "sigaltstack");
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK}, before;
    CHECK(sigaction(SIGUSR1, &action, &before) == 0, "sigaction");
    for (int round = 1; round <= 4; round++) {
        churn();
        CHECK(raise(SIGUSR1) == 0 && handled == round, "signal %d", round);
    }
    CHECK(sigaltstack(&old, NULL) == 0 && sigaction(SIGUSR1, &before, NULL) == 0, "restoring");
    CHECK(munmap(memory, BYTES) == 0, "munmap");
}

static void *deep(void *argument) {
    char room[64 * 1024];
    memset(room, (int)(uintptr_t)argument, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
    if ((uintptr_t)argument > 1) deep((void *)((uintptr_t)argument - 1));
    for (size_t i = 0; i < sizeof room; i++)
        CHECK(room[i] == (char)(uintptr_t)argument, "stack at depth %zu", (size_t)(uintptr_t)argument);
    return NULL;
}

static void deep_stacks_of_threads(void) {
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 64 * MIB) == 0,
        "attributes");
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], &attributes, deep, (void *)200) == 0, "pthread_create");
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    CHECK(pthread_attr_destroy(&attributes) == 0, "attributes");
}

static void mincore_answers_for_mapped_and_fails_for_holes(void) {
    char *start = map(4 * MIB);
    fill(start, 4 * MIB, 6);
    unsigned char pages[1024];
    CHECK(mincore(start, 4 * MIB, pages) == 0, "mincore");
    CHECK(munmap(start + MIB, MIB) == 0, "munmap");
    errno = 0;
    CHECK(mincore(start, 4 * MIB, pages) == -1 && errno == ENOMEM, "mincore over a hole");
    check_filled(start, MIB, 6, "after mincore");
    CHECK(munmap(start, 4 * MIB) == 0, "munmap");
}

/* In a child, since a hard limit cannot be raised again by everyone. */
static void address_space_limit_gives_enomem(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 7);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_AS, &limit) == 0, "getrlimit");
        limit.rlim_cur = 16 * MIB; /* below what is mapped: nothing more may come */
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
        errno = 0;
        char *more = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(more == MAP_FAILED && errno == ENOMEM, "mmap beyond the limit");
        volatile size_t wanted = 4 * BYTES;
        errno = 0;
        char *block = malloc(wanted);
        CHECK(block == NULL && errno == ENOMEM, "malloc beyond the limit");
        check_filled(start, BYTES, 7, "old pages under the limit");
        limit.rlim_cur = limit.rlim_max;
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
        more = map(BYTES);
        fill(more, BYTES, 8);
        check_filled(more, BYTES, 8, "after the limit was lifted");
        _exit(0);
    }
    check_child(child, "child with a limit");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

int main(void) {
    RUN(locked_pages_keep_their_bytes);
    RUN(locked_mappings_may_go);
    RUN(mlockall_of_the_present_is_undone);
    RUN(signal_stack_in_mapped_memory);
    RUN(deep_stacks_of_threads);
    RUN(mincore_answers_for_mapped_and_fails_for_holes);
    RUN(address_space_limit_gives_enomem);
    return 0;
}
