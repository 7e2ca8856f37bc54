/* For the programs that pass memory to system calls while it is out: places that can be pushed out, and calls
 * that do so between the making of their arguments and the call itself. */
#ifndef WEIR_SHIM_GATE_H
#define WEIR_SHIM_GATE_H

#include "check.h"

#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#if !defined(__x86_64__)
#error "the programs use the calls of x86-64"
#endif

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { PLACES = 24 };

/* Large blocks of malloc, each with a place in its middle that can be pushed out alone. */
static char *block[PLACES];

static inline char *place(int n) { return (char *)(((uintptr_t)block[n] + MIB / 2) & ~(MIB / 2 - 1)); }

static inline void evict(void) {
    for (int n = 0; n < PLACES; n++)
        CHECK(madvise(place(n), MIB, MADV_PAGEOUT) == 0 || errno == EINVAL, "madvise");
}

static inline uint64_t sum(const void *bytes, size_t count) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < count; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return hash;
}

/* A string in place `n`, across a page's end. */
static inline char *text(int n, const char *string) {
    char *at = place(n) + 5 * PAGE - 3;
    return strcpy(at, string);
}

/* A zeroed object in place `n`, across a page's end; `at` keeps the alignment that the kernel asks for. */
static inline void *object(int n, size_t bytes) { return memset(place(n) + 9 * PAGE - 8, 0, bytes); }

#define NEW(type, n) ((type *)object(n, sizeof(type)))

/* As syscall(2), with everything pushed out between the making of the arguments and the call. */
static inline long evicted(long number, ...) {
    va_list list;
    long given[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(list, long);
    va_end(list);
    evict();
    return syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

/* A call that must work; says its name. */
#define CALL(name, ...)                                                                                \
    ({                                                                                                 \
        long got_ = evicted(SYS_##name, __VA_ARGS__);                                                  \
        CHECK(got_ >= 0, #name);                                                                       \
        printf("  %s\n", #name);                                                                       \
        got_;                                                                                          \
    })

/* A call that this kernel, file system or user may not have: says what became of it. */
#define TRY(name, number, ...)                                                                         \
    ({                                                                                                 \
        long got_ = evicted(number, __VA_ARGS__);                                                      \
        if (got_ < 0)                                                                                  \
            printf("  %s: %s\n", name, strerrorname_np(errno));                                        \
        else                                                                                           \
            printf("  %s\n", name);                                                                    \
        got_;                                                                                          \
    })

static inline void show(const char *what, long value) { printf("    %s %ld\n", what, value); }

static inline void show_sum(const char *what, const void *bytes, size_t count) {
    printf("    %s %zu bytes %016llx\n", what, count, (unsigned long long)sum(bytes, count));
}

static inline struct iovec *vector(int n, int first, size_t bytes) {
    struct iovec *parts = object(n, 3 * sizeof *parts);
    for (int i = 0; i < 3; i++) parts[i] = (struct iovec){place(first + i) + 20 * PAGE - 100, bytes};
    return parts;
}

/* Takes the places; to be called first. */
static inline void take_places(void) {
    for (int n = 0; n < PLACES; n++) {
        block[n] = malloc(2 * MIB);
        CHECK(block[n], "malloc");
        fill(place(n), MIB, (uint64_t)n * 1000);
    }
}

#define GROUP(function)                                                                                \
    do {                                                                                               \
        churn();                                                                                       \
        RUN(function);                                                                                 \
    } while (0)

#endif
