/* Address space reserved without access, as runtimes do it: far more than there will be memory, opened piece
 * by piece, at places that matter or do not. */
#include "check.h"

#include <time.h>

#define GIB ((size_t)1 << 30)
#define FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
#define RW (PROT_READ | PROT_WRITE)
#define BYTES (48 * MIB)

static char *reserve(size_t bytes) {
    char *start = mmap(NULL, bytes, PROT_NONE, FLAGS, -1, 0);
    CHECK(start != MAP_FAILED, "reserving %zu GiB", bytes / GIB);
    return start;
}

static void open_fixed(char *start, size_t bytes) {
    CHECK(mmap(start, bytes, RW, FLAGS | MAP_FIXED, -1, 0) == start, "opening %zu MiB", bytes / MIB);
}

/* A Java heap of 20 GiB, .NET's 256 GiB, GHC's TiB: opened by MAP_FIXED, closed again, opened once more. */
static void opened_by_fixed_mappings(size_t bytes) {
    char *start = reserve(bytes), *low = start + 5 * MIB, *high = start + bytes - BYTES;
    CHECK(fault_of(low, 0) == SIGSEGV && fault_of(high, 1) == SIGSEGV, "access before it is opened");
    open_fixed(low, BYTES);
    fill(low, BYTES, 1);
    open_fixed(high, BYTES);
    fill(high, BYTES, 50000);
    check_filled(low, BYTES, 1, "the low piece");
    check_filled(high, BYTES, 50000, "the high piece");
    CHECK(mmap(low, BYTES / 2, PROT_NONE, FLAGS | MAP_FIXED, -1, 0) == low, "closing");
    CHECK(fault_of(low, 0) == SIGSEGV, "access after it was closed");
    check_filled(low + BYTES / 2, BYTES / 2, 1 + BYTES / 2 / PAGE, "the half that stays");
    open_fixed(low, BYTES / 2);
    check_zero(low, BYTES / 2, "opened again");
    CHECK(madvise(high, BYTES, MADV_DONTNEED) == 0, "madvise");
    check_zero(high, BYTES, "given up");
    CHECK(fault_of(start + bytes / 2, 1) == SIGSEGV, "access in between");
    CHECK(munmap(start, bytes) == 0, "munmap");
}

static void heaps_of_20_gib(void) { opened_by_fixed_mappings(20 * GIB); }
static void heaps_of_256_gib(void) { opened_by_fixed_mappings(256 * GIB); }
static void heaps_of_a_tib(void) { opened_by_fixed_mappings(1024 * GIB); }

static void opened_by_protection(void) {
    size_t bytes = 64 * GIB;
    char *start = reserve(bytes), *piece = start + 33 * MIB;
    CHECK(mprotect(piece, BYTES, RW) == 0, "mprotect");
    fill(piece, BYTES, 2);
    churn();
    CHECK(mprotect(piece, BYTES, PROT_NONE) == 0, "mprotect to none");
    CHECK(fault_of(piece, 0) == SIGSEGV, "access while it is closed");
    CHECK(mprotect(piece + BYTES, BYTES, RW) == 0, "mprotect of the next piece");
    fill(piece + BYTES, BYTES, 60000);
    CHECK(mprotect(piece, BYTES, RW) == 0, "mprotect back");
    check_filled(piece, BYTES, 2, "bytes outlast a time without access");
    check_filled(piece + BYTES, BYTES, 60000, "the next piece");
    CHECK(munmap(start, bytes) == 0, "munmap");
}

static void moved_and_trimmed(void) {
    char *start = reserve(8 * GIB);
    /* As allocators align: more than is wanted, and both ends go back. */
    CHECK(munmap(start, 3 * MIB) == 0 && munmap(start + 4 * GIB + 3 * MIB, 4 * GIB - 3 * MIB) == 0,
        "munmap of both ends");
    start += 3 * MIB;
    char *moved = mremap(start, 4 * GIB, 6 * GIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap of a reservation");
    CHECK(mprotect(moved + 5 * GIB, BYTES, RW) == 0, "mprotect");
    fill(moved + 5 * GIB, BYTES, 3);
    check_filled(moved + 5 * GIB, BYTES, 3, "in a moved reservation");
    CHECK(munmap(moved, 6 * GIB) == 0, "munmap");
}

static void in_a_child(void) {
    char *start = reserve(100 * GIB);
    open_fixed(start, BYTES);
    fill(start, BYTES, 4);
    pid_t child = fork();
    if (child == 0) {
        check_filled(start, BYTES, 4, "in a child");
        open_fixed(start + 50 * GIB, BYTES);
        fill(start + 50 * GIB, BYTES, 5);
        check_filled(start + 50 * GIB, BYTES, 5, "opened in a child");
        _exit(0);
    }
    check_child(child, "child with a reservation");
    check_filled(start, BYTES, 4, "after the fork");
    CHECK(munmap(start, 100 * GIB) == 0, "munmap");
}

/* Takes any address after as many tries as Go makes: the heap is like any other. */
static void preferred_places(void) {
    size_t bytes = 2 * GIB;
    char *start = MAP_FAILED;
    for (int i = 0; i < 128; i++) {
        char *hint = (char *)((size_t)(i + 1) << 32);
        start = mmap(hint, bytes, PROT_NONE, FLAGS, -1, 0);
        CHECK(start != MAP_FAILED, "mmap with a hint");
        CHECK(munmap(start, bytes) == 0, "munmap");
    }
    start = reserve(bytes);
    open_fixed(start, 2 * BYTES);
    fill(start, 2 * BYTES, 6);
    check_filled(start, 2 * BYTES, 6, "a heap anywhere");
    CHECK(munmap(start, bytes) == 0, "munmap");
}

/* Needs one of a thousand places, for memory that it maps there and elsewhere. */
static void places_that_matter(void) {
    size_t bytes = 8 * GIB;
    char *start = MAP_FAILED;
    int tries;
    for (tries = 0; tries < 1000; tries++) {
        char *hint = (char *)(((size_t)1 << 42) + (size_t)tries * 64 * MIB);
        start = mmap(hint, bytes, PROT_NONE, FLAGS, -1, 0);
        CHECK(start != MAP_FAILED, "mmap with a hint");
        if (start == hint) break;
        CHECK(munmap(start, bytes) == 0, "munmap");
    }
    CHECK(tries < 1000, "no hint was followed");
    int file = memfd_create("heap", 0);
    CHECK(file >= 0 && ftruncate(file, 8 * MIB) == 0, "memfd_create");
    CHECK(mmap(start + MIB, 8 * MIB, RW, MAP_SHARED | MAP_FIXED, file, 0) == start + MIB, "mapping over it");
    fill(start + MIB, 8 * MIB, 7);
    char *again = mmap(NULL, 8 * MIB, PROT_READ, MAP_SHARED, file, 0);
    CHECK(again != MAP_FAILED, "mmap of the file");
    check_filled(again, 8 * MIB, 7, "the same memory elsewhere");
    CHECK(munmap(again, 8 * MIB) == 0 && munmap(start, bytes) == 0 && close(file) == 0, "putting away");
}

/* Of the processor: others may be busy. */
static double seconds(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0, "clock_gettime");
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Runtimes reserve and give back many times until a place suits them. The bounds are hundreds of times what
 * it takes. */
static void untouched_ranges_cost_little(void) {
    double began = seconds();
    for (int i = 0; i < 2000; i++) {
        char *start = reserve(8 * GIB);
        CHECK(munmap(start, 8 * GIB) == 0, "munmap");
    }
    CHECK(seconds() - began < 10, "2000 reservations took %.1f s", seconds() - began);
    began = seconds();
    for (int i = 0; i < 50; i++) {
        char *start = mmap(NULL, 4 * GIB, RW, FLAGS, -1, 0);
        CHECK(start != MAP_FAILED, "mmap");
        start[GIB] = 1;
        CHECK(mprotect(start + GIB, GIB, PROT_READ) == 0, "mprotect");
        CHECK(munmap(start, 4 * GIB) == 0, "munmap");
    }
    CHECK(seconds() - began < 10, "50 mappings took %.1f s", seconds() - began);
}

int main(void) {
    RUN(heaps_of_20_gib);
    RUN(heaps_of_256_gib);
    RUN(heaps_of_a_tib);
    RUN(opened_by_protection);
    RUN(moved_and_trimmed);
    RUN(in_a_child);
    RUN(preferred_places);
    RUN(places_that_matter);
    RUN(untouched_ranges_cost_little);
    return 0;
}
