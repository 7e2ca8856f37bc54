/* Programs that bring their own allocator take memory by sbrk and brk, beside libc's. */
#include "check.h"

#include <pthread.h>
#include <sys/resource.h>

#define BYTES (64 * MIB)

/* What programs are told natively too: the break goes on where it was, as long as nobody else moves it. */
static char *grow(size_t bytes) {
    char *before = sbrk(0), *got = sbrk((intptr_t)bytes);
    CHECK(got != (void *)-1, "sbrk of %zu", bytes);
    CHECK(got == before && (char *)sbrk(0) == got + bytes, "sbrk is not contiguous");
    return got;
}

/* Small at first: whatever the program asks for later, this stays where it is. */
static char *early;

static void a_little_before_anything_else(void) {
    early = sbrk(8 * PAGE);
    CHECK(early != (void *)-1, "sbrk");
    fill((char *)(((uintptr_t)early + PAGE - 1) & ~(PAGE - 1)), 7 * PAGE, 1);
}

static void early_memory_is_what_it_was(void) {
    check_filled((char *)(((uintptr_t)early + PAGE - 1) & ~(PAGE - 1)), 7 * PAGE, 1, "early");
}

/* Large enough that a program has become large when this returns. */
static void become_large(void) {
    char *other = map(8 * MIB);
    fill(other, 8 * MIB, 2);
    CHECK(munmap(other, 8 * MIB) == 0, "munmap");
}

static char *whole(char *at) { return (char *)(((uintptr_t)at + PAGE - 1) & ~(PAGE - 1)); }

static void grown_by_small_steps(void) {
    char *start = grow(PAGE);
    for (size_t n = 1; n < BYTES / (64 * 1024); n++) grow(64 * 1024);
    char *first = whole(start);
    size_t bytes = BYTES - 2 * 64 * 1024;
    check_zero(first, bytes, "new");
    fill(first, bytes, 3);
    churn();
    check_filled(first, bytes, 3, "grown by steps");
    CHECK(sbrk(-(intptr_t)((char *)sbrk(0) - start)) != (void *)-1 && sbrk(0) == start,
        "giving all of it back");
}

static void shrunk_and_grown_again(void) {
    char *start = grow(BYTES), *first = whole(start);
    fill(first, BYTES - PAGE, 4);
    size_t back = BYTES / 2 + 100;
    char *end = sbrk(-(intptr_t)back);
    CHECK(end == start + BYTES && (char *)sbrk(0) == start + BYTES - back, "sbrk of less");
    char *rest = whole(start + BYTES - back);
    CHECK(fault_of(rest, 0) == SIGSEGV, "what was given back is there");
    check_filled(first, (size_t)(rest - first) - PAGE, 4, "what stays");
    grow(back);
    check_zero(rest, (size_t)(start + BYTES - rest) / PAGE * PAGE, "grown again");
    check_filled(first, (size_t)(rest - first) - PAGE, 4, "what stayed");
    CHECK(sbrk(-(intptr_t)BYTES) != (void *)-1 && sbrk(0) == start, "giving all of it back");
}

static void moved_by_brk(void) {
    char *start = sbrk(0), *first = whole(start);
    CHECK(brk(first + BYTES) == 0 && sbrk(0) == first + BYTES, "brk");
    fill(first, BYTES, 5);
    churn();
    CHECK(brk(first + BYTES / 2) == 0 && sbrk(0) == first + BYTES / 2, "brk of less");
    CHECK(fault_of(first + BYTES / 2, 1) == SIGSEGV, "what was given back is there");
    check_filled(first, BYTES / 2, 5, "what stays");
    CHECK(brk(start) == 0 && sbrk(0) == start, "brk back");
}

static void beside_libcs_allocator(void) {
    char *start = sbrk(1 * MIB), *blocks[64];
    CHECK(start != (void *)-1, "sbrk");
    memset(start, 6, MIB);
    for (int i = 0; i < 64; i++) {
        blocks[i] = malloc(40 * 1024);
        CHECK(blocks[i], "malloc");
        memset(blocks[i], i, 40 * 1024);
        char *more = sbrk(512 * 1024);
        CHECK(more != (void *)-1, "sbrk");
        memset(more, i + 100, 512 * 1024);
        for (int j = 0; j <= i; j++) CHECK(blocks[j][0] == j && blocks[j][40 * 1024 - 1] == j, "block %d", j);
    }
    for (size_t i = 0; i < MIB; i++) CHECK(start[i] == 6, "the first");
    for (int i = 0; i < 64; i++) free(blocks[i]);
}

static void in_a_child(void) {
    char *start = grow(BYTES), *first = whole(start);
    fill(first, BYTES - PAGE, 7);
    pid_t child = fork();
    if (child == 0) {
        char *more = grow(8 * MIB), *next = whole(more);
        fill(next, 8 * MIB - PAGE, 8);
        check_filled(first, BYTES - PAGE, 7, "a child's");
        check_filled(next, 8 * MIB - PAGE, 8, "a child's own");
        _exit(0);
    }
    fill(first, BYTES / 2, 9);
    check_child(child, "child with a break");
    check_filled(first, BYTES / 2, 9, "the parent's");
    check_filled(first + BYTES / 2, BYTES / 2 - PAGE, 7 + BYTES / 2 / PAGE, "the parent's other half");
    CHECK(sbrk(-(intptr_t)BYTES) != (void *)-1, "giving it back");
}

static void what_cannot_be_had_is_enomem(void) {
    char *before = sbrk(0);
    errno = 0;
    CHECK(sbrk(INTPTR_MAX) == (void *)-1 && errno == ENOMEM, "sbrk of everything");
    errno = 0;
    CHECK(brk((void *)INTPTR_MAX) == -1 && errno == ENOMEM, "brk to nowhere");
    CHECK(sbrk(0) == before, "the break moved");
}

int main(void) {
    RUN(a_little_before_anything_else);
    RUN(become_large);
    RUN(grown_by_small_steps);
    RUN(shrunk_and_grown_again);
    RUN(moved_by_brk);
    RUN(beside_libcs_allocator);
    RUN(in_a_child);
    RUN(what_cannot_be_had_is_enomem);
    RUN(early_memory_is_what_it_was);
    return 0;
}
