/* Unmapping, whole and in part: what stays keeps its bytes, what goes raises SIGSEGV, what comes anew is
 * zero. */
#include "check.h"

#define BYTES (96 * MIB)
#define PART (24 * MIB)

static void check_hole(char *start, size_t bytes) {
    CHECK(fault_of(start, 0) == SIGSEGV, "reading the first byte of a hole: signal %d", (int)fault_signal);
    CHECK(fault_of(start + bytes - 1, 1) == SIGSEGV, "writing the last byte of a hole: signal %d",
        (int)fault_signal);
}

static void front_goes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    CHECK(munmap(start, PART) == 0, "munmap");
    check_hole(start, PART);
    check_filled(start + PART, BYTES - PART, 1 + PART / PAGE, "behind the front");
    CHECK(munmap(start + PART, BYTES - PART) == 0, "munmap of the rest");
    check_hole(start, BYTES);
}

static void middle_goes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    CHECK(munmap(start + PART, PART) == 0, "munmap");
    check_hole(start + PART, PART);
    check_filled(start, PART, 2, "before the hole");
    check_filled(start + 2 * PART, BYTES - 2 * PART, 2 + 2 * PART / PAGE, "behind the hole");
    CHECK(munmap(start, BYTES) == 0, "munmap over a hole");
    check_hole(start, BYTES);
}

static void back_goes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 3);
    CHECK(munmap(start + BYTES - PART, PART) == 0, "munmap");
    check_hole(start + BYTES - PART, PART);
    check_filled(start, BYTES - PART, 3, "before the back");
    CHECK(munmap(start, BYTES - PART) == 0, "munmap");
}

static void single_pages_go(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 4);
    for (size_t page = 5; page < BYTES / PAGE; page += 97)
        CHECK(munmap(start + page * PAGE, PAGE) == 0, "munmap of page %zu", page);
    for (size_t page = 0; page < BYTES / PAGE; page++) {
        if (page % 97 == 5) {
            if (page % 11 == 0) check_hole(start + page * PAGE, PAGE);
        } else {
            CHECK(page_is(start + page * PAGE, 4 + page), "page %zu beside a hole", page);
        }
    }
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void new_mappings_are_zero(void) {
    for (int round = 0; round < 3; round++) {
        char *start = map(BYTES);
        check_zero(start, BYTES, "a new mapping");
        fill(start, BYTES, 5);
        CHECK(munmap(start, BYTES) == 0, "munmap");
    }
}

static void neighbours_are_unmapped_together(void) {
    char *whole = map(BYTES);
    CHECK(munmap(whole, BYTES) == 0, "munmap");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *left = mmap(whole, BYTES / 2, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *right = mmap(whole + BYTES / 2, BYTES / 2, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(left == whole && right == whole + BYTES / 2, "MAP_FIXED");
    fill(left, BYTES, 6);
    CHECK(munmap(whole + BYTES / 4, BYTES / 2) == 0, "munmap across two mappings");
    check_hole(whole + BYTES / 4, BYTES / 2);
    check_filled(left, BYTES / 4, 6, "left");
    check_filled(whole + 3 * BYTES / 4, BYTES / 4, 6 + 3 * BYTES / 4 / PAGE, "right");
    CHECK(munmap(whole, BYTES) == 0, "munmap");
}

static void bad_arguments_fail_as_the_kernel_says(void) {
    char *start = map(4 * MIB);
    fill(start, 4 * MIB, 7);
    errno = 0;
    CHECK(munmap(start + 1, PAGE) == -1 && errno == EINVAL, "unaligned munmap");
    errno = 0;
    CHECK(munmap(start, 0) == -1 && errno == EINVAL, "munmap of nothing");
    errno = 0;
    CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL,
        "empty mmap");
    errno = 0;
    CHECK(mmap(NULL, SIZE_MAX - 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
        && errno == ENOMEM, "huge mmap");
    check_filled(start, 4 * MIB, 7, "after failed calls");
    /* A length that is no whole number of pages is rounded up. */
    CHECK(munmap(start, PAGE + 1) == 0, "munmap of a page and a byte");
    check_hole(start, 2 * PAGE);
    check_filled(start + 2 * PAGE, 4 * MIB - 2 * PAGE, 9, "the rest");
    CHECK(munmap(start, 4 * MIB) == 0, "munmap");
}

int main(void) {
    RUN(front_goes);
    RUN(middle_goes);
    RUN(back_goes);
    RUN(single_pages_go);
    RUN(new_mappings_are_zero);
    RUN(neighbours_are_unmapped_together);
    RUN(bad_arguments_fail_as_the_kernel_says);
    return 0;
}
