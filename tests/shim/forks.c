/* Forks in the middle of what other threads, and handlers of the same thread, do: no lock of anybody's is
 * held in a child for ever. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

#define FORKS 200

static atomic_int stop;

static char *away;
static atomic_int taken;

static void reads_what_is_out(int number) {
    (void)number;
    size_t page = (size_t)atomic_fetch_add(&taken, 1) * 37 % (64 * MIB / PAGE);
    if (!page_is(away + page * PAGE, 9 + page)) abort();
}

/* A handler that needs managed memory, while its thread forks: by fork, _Fork and a system call. */
static void signals_while_forking(void) {
    away = map(64 * MIB);
    fill(away, 64 * MIB, 9);
    struct sigaction action = {.sa_handler = reads_what_is_out, .sa_flags = SA_RESTART}, before;
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, &before) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0, "timer");
    for (int i = 0; i < 60; i++) {
        pid_t child = i % 3 == 0 ? fork() : i % 3 == 1 ? _Fork() : (pid_t)syscall(SYS_fork);
        if (child == 0) _exit(page_is(away + i * PAGE, 9 + i) ? 0 : 1);
        check_child(child, "child");
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &before, NULL) == 0, "no timer");
    CHECK(atomic_load(&taken) > 60, "%d signals", atomic_load(&taken));
    check_filled(away, 64 * MIB, 9, "after all");
    CHECK(munmap(away, 64 * MIB) == 0, "munmap");
}

/* Forks while threads run `busy`; a child allocates, writes to a stream, and ends. */
static void fork_beside(void *(*busy)(void *), int threads) {
    pthread_t ids[3];
    atomic_store(&stop, 0);
    for (int i = 0; i < threads; i++) CHECK(pthread_create(&ids[i], NULL, busy, NULL) == 0, "pthread_create");
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            char *block = malloc(100000);
            if (!block) _exit(1);
            memset(block, i, 100000);
            free(block);
            _exit(0);
        }
        check_child(child, "child beside busy threads");
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < threads; i++) CHECK(pthread_join(ids[i], NULL) == 0, "pthread_join");
}

static char here[4096], there[4096];

static void copy_own_memory(void) {
    struct iovec to = {there, sizeof there}, from = {here, sizeof here};
    CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)sizeof here, "process_vm_readv");
}

static void *copies(void *unused) {
    while (!atomic_load(&stop)) copy_own_memory();
    return unused;
}

static void beside_threads_that_read_their_own_memory(void) { fork_beside(copies, 3); }

static FILE *stream;

/* Allocates while it holds a stream's lock, as streams themselves do. */
static void *holds(void *unused) {
    while (!atomic_load(&stop)) {
        flockfile(stream);
        for (int i = 0; i < 20; i++) {
            volatile char *block = malloc(60000);
            block[0] = 1;
            free((void *)block);
        }
        fputc_unlocked('x', stream);
        funlockfile(stream);
    }
    return unused;
}

static void *flushes(void *unused) {
    while (!atomic_load(&stop)) fflush(NULL);
    return unused;
}

static void *either(void *unused) {
    static atomic_int turn;
    return atomic_fetch_add(&turn, 1) % 2 ? flushes(unused) : holds(unused);
}

static void beside_threads_that_use_streams(void) {
    stream = fopen("/dev/null", "w");
    CHECK(stream, "fopen");
    fork_beside(either, 2);
    fclose(stream);
}

static volatile sig_atomic_t interrupted;

static void copies_too(int number) {
    (void)number;
    copy_own_memory();
    interrupted++;
}

/* A handler makes the call that it interrupts. */
static void handlers_read_their_own_memory(void) {
    struct sigaction action = {.sa_handler = copies_too, .sa_flags = SA_RESTART}, before;
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, &before) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0, "timer");
    while (interrupted < 2000) copy_own_memory();
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &before, NULL) == 0, "no timer");
}

int main(void) {
    RUN(signals_while_forking);
    RUN(beside_threads_that_read_their_own_memory);
    RUN(beside_threads_that_use_streams);
    RUN(handlers_read_their_own_memory);
    return 0;
}
