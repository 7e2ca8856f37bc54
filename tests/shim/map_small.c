/* Many mappings far smaller than a block: each keeps its bytes, and its neighbours theirs. */
#include "check.h"

#define COUNT 3000
#define LENGTH (32 << 10)

static char *maps[COUNT];

static void small_mappings_keep_their_bytes(void) {
    for (size_t i = 0; i < COUNT; i++) fill(maps[i] = map(LENGTH), LENGTH, i * 8);
    for (size_t i = 0; i < COUNT; i++) check_filled(maps[i], LENGTH, i * 8, "a small mapping");
}

/* As runtimes do that want more alignment than pages have: they map twice as much and give the rest back. */
static void parts_go_and_neighbours_stay(void) {
    for (size_t i = 0; i < COUNT; i++)
        CHECK(munmap(maps[i] + LENGTH / 2, LENGTH / 2) == 0, "munmap of a half");
    for (size_t i = 0; i < COUNT; i++) check_filled(maps[i], LENGTH / 2, i * 8, "the other half");
    CHECK(fault_of(maps[7] + LENGTH / 2, 0) == SIGSEGV, "the half is gone");
}

static void protection_is_each_ones_own(void) {
    CHECK(mprotect(maps[20], LENGTH / 2, PROT_READ) == 0 && mprotect(maps[22], LENGTH / 2, PROT_NONE) == 0,
        "mprotect");
    CHECK(fault_of(maps[20], 1) == SIGSEGV && fault_of(maps[20], 0) == 0, "read only");
    CHECK(fault_of(maps[22], 0) == SIGSEGV && fault_of(maps[21], 1) == 0, "its neighbour");
    fill(maps[21], LENGTH / 2, 21 * 8);
    CHECK(mprotect(maps[22], LENGTH / 2, PROT_READ) == 0, "mprotect");
    check_filled(maps[22], LENGTH / 2, 22 * 8, "after PROT_NONE");
}

static void a_child_has_them_too(void) {
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < COUNT; i++) check_filled(maps[i], LENGTH / 2, i * 8, "in the child");
        for (size_t i = 0; i < 500; i++) fill(map(LENGTH), LENGTH, i);
        _exit(0);
    }
    for (size_t i = 0; i < 500; i++) {
        char *more = map(LENGTH);
        check_zero(more, LENGTH, "a new one");
        CHECK(munmap(more, LENGTH) == 0, "munmap");
    }
    check_child(child, "child");
}

static void they_move_and_go(void) {
    for (size_t i = 0; i < COUNT; i += 3) {
        char *moved = mremap(maps[i], LENGTH / 2, 4 * LENGTH, MREMAP_MAYMOVE);
        CHECK(moved != MAP_FAILED, "mremap");
        check_filled(moved, LENGTH / 2, i * 8, "moved");
        check_zero(moved + LENGTH / 2, 4 * LENGTH - LENGTH / 2, "the rest");
        CHECK(munmap(moved, 4 * LENGTH) == 0, "munmap");
    }
    for (size_t i = 1; i < COUNT; i += 3) CHECK(munmap(maps[i], LENGTH / 2) == 0, "munmap");
    for (size_t i = 2; i < COUNT; i += 3) check_filled(maps[i], LENGTH / 2, i * 8, "what is left");
}

/* Tails of what mappings are packed into come back: room does not end. */
static void one_after_the_other(void) {
    size_t length = 100 << 10;
    for (size_t i = 0; i < 100000; i++) {
        char *one = map(length);
        one[0] = 1;
        CHECK(munmap(one, length) == 0, "munmap");
    }
}

int main(void) {
    RUN(small_mappings_keep_their_bytes);
    RUN(parts_go_and_neighbours_stay);
    RUN(protection_is_each_ones_own);
    RUN(a_child_has_them_too);
    RUN(they_move_and_go);
    RUN(one_after_the_other);
    return 0;
}
