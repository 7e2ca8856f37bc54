/* madvise: advice that drops contents drops them, all other advice keeps every byte. */
#include "check.h"

#define BYTES (96 * MIB)

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static void dontneed_gives_zeros(void) {
    char *start = map(BYTES);
    for (int round = 0; round < 3; round++) {
        fill(start, BYTES, 1);
        CHECK(madvise(start + 8 * MIB, 40 * MIB, MADV_DONTNEED) == 0, "madvise");
        check_zero(start + 8 * MIB, 40 * MIB, "dropped");
        check_filled(start, 8 * MIB, 1, "before");
        check_filled(start + 48 * MIB, BYTES - 48 * MIB, 1 + 48 * MIB / PAGE, "behind");
    }
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void dontneed_of_single_pages(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    for (size_t page = 3; page < BYTES / PAGE; page += 13)
        CHECK(madvise(start + page * PAGE, PAGE, MADV_DONTNEED) == 0, "madvise");
    churn();
    for (size_t page = 0; page < BYTES / PAGE; page++) {
        if (page % 13 == 3)
            CHECK(page_is_zero(start + page * PAGE), "dropped page %zu", page);
        else
            CHECK(page_is(start + page * PAGE, 2 + page), "kept page %zu", page);
    }
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void free_gives_old_bytes_or_zeros(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 3);
    CHECK(madvise(start, BYTES, MADV_FREE) == 0, "madvise");
    /* A write after the advice cancels it for that page. */
    for (size_t page = 0; page < BYTES / PAGE; page += 5) fill_page(start + page * PAGE, 70000 + page);
    churn();
    for (size_t page = 0; page < BYTES / PAGE; page++) {
        char *at = start + page * PAGE;
        if (page % 5 == 0)
            CHECK(page_is(at, 70000 + page), "page %zu written after the advice", page);
        else
            CHECK(page_is(at, 3 + page) || page_is_zero(at), "page %zu is neither old nor zero", page);
    }
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void harmless_advice_keeps_bytes(void) {
    static const int ADVICE[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_HUGEPAGE,
        MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_COLD, MADV_PAGEOUT};
    char *start = map(BYTES);
    fill(start, BYTES, 4);
    for (size_t i = 0; i < sizeof ADVICE / sizeof *ADVICE; i++) {
        int answer = madvise(start + (i + 1) * MIB, 48 * MIB, ADVICE[i]);
        /* Kernels without huge pages refuse that advice with EINVAL. */
        CHECK(answer == 0 || (errno == EINVAL
            && (ADVICE[i] == MADV_HUGEPAGE || ADVICE[i] == MADV_NOHUGEPAGE)), "advice %d", ADVICE[i]);
        CHECK(page_is(start + (i + 2) * MIB, 4 + (i + 2) * MIB / PAGE), "after advice %d", ADVICE[i]);
        check_filled(start, 4 * MIB, 4, "first pages");
    }
    check_filled(start, BYTES, 4, "after all advice");
    fill(start, BYTES, 5);
    check_filled(start, BYTES, 5, "written anew");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void populate_keeps_and_fills(void) {
    char *start = map(BYTES);
    fill(start, BYTES / 2, 6);
    int answer = madvise(start, BYTES, MADV_POPULATE_READ);
    CHECK(answer == 0 || errno == EINVAL, "MADV_POPULATE_READ");
    answer = madvise(start, BYTES, MADV_POPULATE_WRITE);
    CHECK(answer == 0 || errno == EINVAL, "MADV_POPULATE_WRITE");
    check_filled(start, BYTES / 2, 6, "filled half");
    check_zero(start + BYTES / 2, BYTES / 2, "untouched half");
    CHECK(munmap(start, BYTES) == 0, "munmap");
    start = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(start != MAP_FAILED, "MAP_POPULATE");
    check_zero(start, BYTES, "populated");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void wipeonfork_and_dontfork_work(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 7);
    CHECK(madvise(start, 16 * MIB, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK");
    CHECK(madvise(start + 32 * MIB, 16 * MIB, MADV_DONTFORK) == 0, "MADV_DONTFORK");
    pid_t child = fork();
    if (child == 0) {
        check_zero(start, 16 * MIB, "wiped in the child");
        check_filled(start + 16 * MIB, 16 * MIB, 7 + 16 * MIB / PAGE, "kept in the child");
        CHECK(fault_of(start + 40 * MIB, 0) == SIGSEGV, "absent in the child: signal %d", (int)fault_signal);
        check_filled(start + 48 * MIB, 8 * MIB, 7 + 48 * MIB / PAGE, "kept behind");
        _exit(0);
    }
    check_child(child, "child with advice");
    check_filled(start, BYTES, 7, "parent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void refusals_are_the_kernels(void) {
    char *start = map(4 * MIB);
    fill(start, 4 * MIB, 8);
    errno = 0;
    CHECK(madvise(start, MIB, MADV_REMOVE) == -1 && errno == EINVAL, "MADV_REMOVE of private memory");
    errno = 0;
    CHECK(madvise(start, MIB, 4711) == -1 && errno == EINVAL, "unknown advice");
    errno = 0;
    CHECK(madvise(start + 1, MIB, MADV_DONTNEED) == -1 && errno == EINVAL, "unaligned advice");
    check_filled(start, 4 * MIB, 8, "after refusals");
    CHECK(munmap(start + 2 * MIB, MIB) == 0, "munmap");
    errno = 0;
    /* The mapped parts are dropped even though a hole is reported. */
    CHECK(madvise(start, 4 * MIB, MADV_DONTNEED) == -1 && errno == ENOMEM, "advice over a hole");
    check_zero(start, 2 * MIB, "before the hole");
    check_zero(start + 3 * MIB, MIB, "behind the hole");
    CHECK(munmap(start, 4 * MIB) == 0, "munmap");
}

int main(void) {
    RUN(dontneed_gives_zeros);
    RUN(dontneed_of_single_pages);
    RUN(free_gives_old_bytes_or_zeros);
    RUN(harmless_advice_keeps_bytes);
    RUN(populate_keeps_and_fills);
    RUN(wipeonfork_and_dontfork_work);
    RUN(refusals_are_the_kernels);
    return 0;
}
