/* Shared by the shim's C programs: checks, page contents, and a way to survive a fault.
 *
 * Each program runs natively and under a budget far below what it touches; it must behave the same in both,
 * so nothing here knows about Weir. Page contents compress about 10:1: what does not fit the budget fits its
 * pool. */
#ifndef WEIR_SHIM_CHECK_H
#define WEIR_SHIM_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

/* Ends the program with a message when `condition` does not hold. */
#define CHECK(condition, ...)                                                                          \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            int saved = errno;                                                                         \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                            \
            fprintf(stderr, __VA_ARGS__);                                                              \
            fprintf(stderr, " (errno %d %s)\n", saved, strerror(saved));                               \
            _exit(1);                                                                                  \
        }                                                                                              \
    } while (0)

/* Runs one test function and says so on stdout. */
#define RUN(function)                                                                                  \
    do {                                                                                               \
        function();                                                                                    \
        printf("ok %s\n", #function);                                                                  \
        fflush(stdout);                                                                                \
    } while (0)

static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The word at index `i` of the page with contents `seed`: every 16th differs, the others repeat. */
static inline uint64_t page_word(uint64_t seed, size_t i) {
    return i % 16 ? seed * 0x0101010101u + 7 : mix(seed * 512 + i);
}

static inline void fill_page(void *page, uint64_t seed) {
    uint64_t *words = page;
    for (size_t i = 0; i < PAGE / 8; i++) words[i] = page_word(seed, i);
}

static inline int page_is(const void *page, uint64_t seed) {
    const uint64_t *words = page;
    for (size_t i = 0; i < PAGE / 8; i++)
        if (words[i] != page_word(seed, i)) return 0;
    return 1;
}

static inline int page_is_zero(const void *page) {
    const uint64_t *words = page;
    for (size_t i = 0; i < PAGE / 8; i++)
        if (words[i]) return 0;
    return 1;
}

/* Fills `bytes` (whole pages) so that page n holds seed + n. */
static inline void fill(void *start, size_t bytes, uint64_t seed) {
    for (size_t n = 0; n < bytes / PAGE; n++) fill_page((char *)start + n * PAGE, seed + n);
}

static inline void check_filled(const void *start, size_t bytes, uint64_t seed, const char *what) {
    for (size_t n = 0; n < bytes / PAGE; n++)
        CHECK(page_is((const char *)start + n * PAGE, seed + n), "%s: page %zu of %zu has other bytes", what,
            n, bytes / PAGE);
}

static inline void check_zero(const void *start, size_t bytes, const char *what) {
    for (size_t n = 0; n < bytes / PAGE; n++)
        CHECK(page_is_zero((const char *)start + n * PAGE), "%s: page %zu is not zero", what, n);
}

/* A private anonymous mapping; ends the program when there is none. */
static inline char *map(size_t bytes) {
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED, "mmap of %zu bytes", bytes);
    return start;
}

/* Pushes everything else out: touches 64 MiB of its own and gives them back. */
static inline void churn(void) {
    char *other = map(64 * MIB);
    fill(other, 64 * MIB, 77);
    check_filled(other, 64 * MIB, 77, "churn");
    CHECK(munmap(other, 64 * MIB) == 0, "munmap");
}

static sigjmp_buf fault_return;
static volatile sig_atomic_t fault_signal;

static inline void on_fault(int number) {
    fault_signal = number;
    siglongjmp(fault_return, 1);
}

/* The signal that an access to `address` raises, 0 for none. */
static inline int fault_of(volatile char *address, int write) {
    struct sigaction action = {.sa_handler = on_fault}, segv, bus;
    CHECK(sigaction(SIGSEGV, &action, &segv) == 0 && sigaction(SIGBUS, &action, &bus) == 0, "sigaction");
    fault_signal = 0;
    if (sigsetjmp(fault_return, 1) == 0) {
        if (write)
            *address = 1;
        else
            (void)*address;
    }
    CHECK(sigaction(SIGSEGV, &segv, NULL) == 0 && sigaction(SIGBUS, &bus, NULL) == 0, "sigaction");
    return fault_signal;
}

/* Waits for a child that must end with status 0. */
static inline void check_child(pid_t pid, const char *what) {
    int status = -1;
    pid_t got;
    CHECK(pid > 0, "%s: no child", what);
    do {
        got = waitpid(pid, &status, 0);
    } while (got < 0 && errno == EINTR);
    CHECK(got == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: child's wait status %#x", what,
        (unsigned)status);
}

#endif
