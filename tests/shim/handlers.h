/* Shared by the programs about signals: checks that a handler may make, a piece of memory above the budget, a
 * pipe. */
#ifndef WEIR_SHIM_HANDLERS_H
#define WEIR_SHIM_HANDLERS_H

#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/time.h>
#include <time.h>

#define BYTES (64 * MIB)
#define PAGES (BYTES / PAGE)
#define SEED 31

/* glibc adds this flag to what it reports of the kernel. */
#define RESTORER_FLAG 0x04000000

#define TEXT_OF(x) #x
#define LINE_TEXT(x) TEXT_OF(x)

/* As CHECK, but safe in a handler: no stdio, no locks. */
#define CHECK_QUIETLY(condition)                                                                       \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            static const char text[] = __FILE__ ":" LINE_TEXT(__LINE__) ": in a handler: " #condition "\n"; \
            if (write(2, text, sizeof text - 1) < 0) _exit(2);                                         \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

/* Page n holds SEED + n; twice the budget. */
static char *memory;

static inline void make_memory(void) {
    memory = map(BYTES);
    fill(memory, BYTES, SEED);
}

/* Looks at two words of a page: fit for handlers, and a fault wherever the page is not in RAM. */
static inline int page_looks_right(size_t page) {
    const uint64_t *words = (const uint64_t *)(memory + page * PAGE);
    return words[0] == page_word(SEED + page, 0) && words[PAGE / 8 - 1] == page_word(SEED + page,
        PAGE / 8 - 1);
}

/* Touches every page: at the end nothing that was touched before the last half is in RAM. */
static inline void walk(void) {
    for (size_t page = 0; page < PAGES; page++) CHECK(page_looks_right(page), "page %zu", page);
}

/* A few pages far apart, others at each call: short enough for a handler, and still faults. */
static inline void walk_in_handler(void) {
    static _Atomic size_t turn;
    size_t first = turn++ * 37;
    for (size_t i = 0; i < 16; i++) CHECK_QUIETLY(page_looks_right((first + i * (PAGES / 16)) % PAGES));
}

static inline void write_all(int file, const char *bytes, size_t count) {
    while (count) {
        ssize_t done = write(file, bytes, count);
        if (done < 0 && errno == EINTR) continue;
        CHECK(done > 0, "write of %zu bytes: %zd", count, done);
        bytes += done;
        count -= (size_t)done;
    }
}

static inline void read_all(int file, char *bytes, size_t count) {
    while (count) {
        ssize_t done = read(file, bytes, count);
        if (done < 0 && errno == EINTR) continue;
        CHECK(done > 0, "read of %zu bytes: %zd", count, done);
        bytes += done;
        count -= (size_t)done;
    }
}

/* Sends pages through a pipe, from evicted memory into evicted memory, one pipe's worth at a time. */
static inline void pages_through_a_pipe(char *scratch, size_t first, size_t count) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    for (size_t page = first; page < first + count; page += 8) {
        write_all(ends[1], memory + page % PAGES * PAGE, 8 * PAGE);
        char *into = scratch + page * 8 % PAGES * PAGE;
        read_all(ends[0], into, 8 * PAGE);
        check_filled(into, 8 * PAGE, SEED + page % PAGES, "through a pipe");
    }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

static inline void set_handler(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(number, &action, NULL) == 0, "sigaction(%d)", number);
}

static inline void set_default(int number) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    CHECK(sigaction(number, &action, NULL) == 0, "sigaction(%d)", number);
}

static inline sigset_t set_of(int number) {
    sigset_t set;
    sigemptyset(&set);
    if (number) sigaddset(&set, number);
    return set;
}

static inline void block(int number) {
    sigset_t set = set_of(number);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0, "sigprocmask");
}

static inline void unblock(int number) {
    sigset_t set = set_of(number);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0, "sigprocmask");
}

static inline int is_blocked(int number) {
    sigset_t set;
    CHECK_QUIETLY(pthread_sigmask(SIG_SETMASK, NULL, &set) == 0);
    return sigismember(&set, number);
}

static inline int is_pending(int number) {
    sigset_t set;
    CHECK(sigpending(&set) == 0, "sigpending");
    return sigismember(&set, number);
}

/* Whether the mask is all that a program can block: not the two that cannot be, nor the two that libc
 * keeps. */
static inline int all_are_blocked(const sigset_t *set) {
    for (int number = 1; number <= SIGRTMAX; number++) {
        int expected = number != SIGKILL && number != SIGSTOP && (number < 32 || number >= SIGRTMIN);
        if (sigismember(set, number) != expected) return 0;
    }
    return 1;
}

/* How a child ends that runs `body`: its wait status. */
static inline int status_of_child(void (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        body();
        _exit(0);
    }
    int status = -1;
    pid_t got;
    do {
        got = waitpid(child, &status, 0);
    } while (got < 0 && errno == EINTR);
    CHECK(got == child, "waitpid");
    return status;
}

/* setitimer in microseconds; 0 stops it. */
static inline void every(long microseconds, int again) {
    struct itimerval timer = {.it_value = {0, microseconds}, .it_interval = {0, again ? microseconds : 0}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
}

#endif
