/* mremap: growing in place and by moving, shrinking, moving to a given place, also over memory of another
 * kind, leaving the old place mapped. */
#include "check.h"

#define BYTES (64 * MIB)

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* A mapping with free address space behind it. */
static char *map_with_room(size_t bytes, size_t room) {
    char *start = map(bytes + room);
    CHECK(munmap(start + bytes, room) == 0, "munmap");
    return start;
}

static void grows_with_old_bytes_and_new_zeros(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    char *grown = mremap(start, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "mremap");
    check_filled(grown, BYTES, 1, "old part");
    check_zero(grown + BYTES, BYTES, "new part");
    fill(grown + BYTES, BYTES, 1 + BYTES / PAGE);
    check_filled(grown, 2 * BYTES, 1, "all");
    CHECK(munmap(grown, 2 * BYTES) == 0, "munmap");
}

static void many_small_growths_keep_bytes(void) {
    size_t bytes = 2 * MIB;
    char *start = map(bytes);
    fill(start, bytes, 2);
    while (bytes < 80 * MIB) {
        size_t more = bytes + bytes / 4 / PAGE * PAGE;
        start = mremap(start, bytes, more, MREMAP_MAYMOVE);
        CHECK(start != MAP_FAILED, "mremap to %zu", more);
        check_zero(start + bytes, more - bytes, "new part");
        fill(start + bytes, more - bytes, 2 + bytes / PAGE);
        bytes = more;
    }
    check_filled(start, bytes, 2, "all");
    CHECK(munmap(start, bytes) == 0, "munmap");
}

static void blocked_growth_in_place_fails_and_keeps(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 3);
    errno = 0;
    /* The second half is in the way of the first. */
    CHECK(mremap(start, BYTES / 2, BYTES, 0) == MAP_FAILED && errno == ENOMEM, "growth over a neighbour");
    check_filled(start, BYTES, 3, "after the refusal");
    char *moved = mremap(start, BYTES / 2, BYTES, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved != start, "growth by moving");
    check_filled(moved, BYTES / 2, 3, "moved half");
    check_zero(moved + BYTES / 2, BYTES / 2, "new half");
    CHECK(fault_of(start, 0) == SIGSEGV, "reading the old place: signal %d", (int)fault_signal);
    check_filled(start + BYTES / 2, BYTES / 2, 3 + BYTES / 2 / PAGE, "neighbour");
    CHECK(munmap(moved, BYTES) == 0 && munmap(start, BYTES) == 0, "munmap");
}

static void growth_in_place_keeps_the_address(void) {
    char *start = map_with_room(BYTES, BYTES);
    fill(start, BYTES, 4);
    char *grown = mremap(start, BYTES, BYTES + BYTES / 2, 0);
    /* Whether the room is still free is up to the kernel; an answer of ENOMEM is one, other bytes are not. */
    if (grown == MAP_FAILED) {
        CHECK(errno == ENOMEM, "growth in place");
        check_filled(start, BYTES, 4, "not grown");
        CHECK(munmap(start, BYTES) == 0, "munmap");
        return;
    }
    CHECK(grown == start, "growth in place moved the mapping");
    check_filled(start, BYTES, 4, "old part");
    check_zero(start + BYTES, BYTES / 2, "new part");
    CHECK(munmap(start, BYTES + BYTES / 2) == 0, "munmap");
}

static void shrinking_drops_the_tail(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 5);
    CHECK(mremap(start, BYTES, BYTES / 4, 0) == start, "mremap");
    check_filled(start, BYTES / 4, 5, "kept");
    CHECK(fault_of(start + BYTES / 4, 0) == SIGSEGV, "reading the dropped tail: signal %d",
        (int)fault_signal);
    char *grown = mremap(start, BYTES / 4, BYTES, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "mremap");
    check_filled(grown, BYTES / 4, 5, "kept after growing again");
    check_zero(grown + BYTES / 4, BYTES - BYTES / 4, "tail after growing again");
    CHECK(munmap(grown, BYTES) == 0, "munmap");
}

static void fixed_moves_replace_what_was_there(void) {
    char *from = map(BYTES), *target = map(BYTES);
    fill(from, BYTES, 6);
    fill(target, BYTES, 60000);
    char *moved = mremap(from, BYTES / 2, BYTES / 2, MREMAP_MAYMOVE | MREMAP_FIXED, target + BYTES / 4);
    CHECK(moved == target + BYTES / 4, "mremap");
    CHECK(fault_of(from, 0) == SIGSEGV, "reading the old place: signal %d", (int)fault_signal);
    churn();
    check_filled(moved, BYTES / 2, 6, "moved");
    check_filled(from + BYTES / 2, BYTES / 2, 6 + BYTES / 2 / PAGE, "half that stayed");
    check_filled(target, BYTES / 4, 60000, "target before");
    check_filled(target + 3 * (BYTES / 4), BYTES / 4, 60000 + 3 * (BYTES / 4) / PAGE, "target behind");
    CHECK(munmap(from, BYTES) == 0 && munmap(target, BYTES) == 0, "munmap");
}

static void middle_moves_out(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 7);
    char *moved = mremap(start + BYTES / 4, BYTES / 4, BYTES / 2, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    check_filled(moved, BYTES / 4, 7 + BYTES / 4 / PAGE, "moved middle");
    check_zero(moved + BYTES / 4, BYTES / 4, "its new part");
    check_filled(start, BYTES / 4, 7, "first quarter");
    check_filled(start + BYTES / 2, BYTES / 2, 7 + BYTES / 2 / PAGE, "second half");
    CHECK(munmap(moved, BYTES / 2) == 0 && munmap(start, BYTES) == 0, "munmap");
}

static void dontunmap_leaves_an_empty_mapping(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 8);
    char *moved = mremap(start, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(moved != MAP_FAILED && moved != start, "mremap");
    check_filled(moved, BYTES, 8, "moved");
    check_zero(start, BYTES, "left behind");
    fill(start, BYTES, 90000);
    check_filled(moved, BYTES, 8, "moved, after writing the old place");
    CHECK(munmap(moved, BYTES) == 0 && munmap(start, BYTES) == 0, "munmap");
}

/* Little: what lies over shared memory stays in RAM. */
#define SOME (4 * MIB)

/* A place where memory of another kind is. */
static char *shared_place(void) {
    char *place = mmap(NULL, SOME, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED, "mmap of shared memory");
    return place;
}

static void moves_over_shared_memory_keep_bytes_and_protection(void) {
    static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    for (size_t i = 0; i < sizeof protections / sizeof *protections; i++) {
        int protection = protections[i];
        char *from = map(SOME), *place = shared_place();
        fill(from, SOME, 10 + i);
        memset(from + SOME / 2, 0, PAGE);
        CHECK(mprotect(from, SOME, protection) == 0, "mprotect");
        churn();
        char *moved = mremap(from, SOME, SOME, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        CHECK(moved == place, "mremap");
        CHECK(fault_of(from, 0) == SIGSEGV, "reading the old place: signal %d", (int)fault_signal);
        int reads = fault_of(moved, 0) == 0, writes = fault_of(moved + SOME - 1, 1) == 0;
        CHECK(reads == (protection != PROT_NONE), "reading with protection %d", protection);
        CHECK(writes == !!(protection & PROT_WRITE), "writing with protection %d", protection);
        CHECK(mprotect(moved, SOME, PROT_READ | PROT_WRITE) == 0, "mprotect");
        check_filled(moved, SOME / 2, 10 + i, "first half");
        check_zero(moved + SOME / 2, PAGE, "page of zeros");
        size_t next = SOME / 2 + PAGE;
        check_filled(moved + next, SOME - PAGE - next, 10 + i + next / PAGE, "second half");
        CHECK(munmap(moved, SOME) == 0, "munmap");
    }
}

static void reservations_move_over_shared_memory_and_stay_closed(void) {
    char *place = shared_place();
    char *from = mmap(NULL, SOME, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(from != MAP_FAILED, "mmap");
    CHECK(mremap(from, SOME, SOME, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place, "mremap");
    CHECK(fault_of(place, 0) == SIGSEGV, "reading it: signal %d", (int)fault_signal);
    CHECK(mprotect(place, SOME, PROT_READ | PROT_WRITE) == 0, "mprotect");
    check_zero(place, SOME, "opened");
    CHECK(munmap(place, SOME) == 0, "munmap");
}

static void dontunmap_over_shared_memory_leaves_the_protection(void) {
    char *from = map(SOME), *place = shared_place();
    fill(from, SOME, 14);
    CHECK(mprotect(from, SOME, PROT_NONE) == 0, "mprotect");
    int how = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    CHECK(mremap(from, SOME, SOME, how, place) == place, "mremap");
    CHECK(fault_of(from, 0) == SIGSEGV, "reading the old place: signal %d", (int)fault_signal);
    CHECK(fault_of(place, 0) == SIGSEGV, "reading the new place: signal %d", (int)fault_signal);
    CHECK(mprotect(from, SOME, PROT_READ) == 0 && mprotect(place, SOME, PROT_READ) == 0, "mprotect");
    check_zero(from, SOME, "left behind");
    check_filled(place, SOME, 14, "moved");
    CHECK(munmap(from, SOME) == 0 && munmap(place, SOME) == 0, "munmap");
}

static void bad_arguments_fail_as_the_kernel_says(void) {
    char *start = map(4 * MIB);
    fill(start, 4 * MIB, 9);
    errno = 0;
    CHECK(mremap(start + 1, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL, "unaligned");
    errno = 0;
    CHECK(mremap(start, MIB, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL, "to nothing");
    errno = 0;
    CHECK(mremap(start, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, start + MIB / 2) == MAP_FAILED
        && errno == EINVAL, "onto itself");
    check_filled(start, 4 * MIB, 9, "after refusals");
    CHECK(munmap(start, 4 * MIB) == 0, "munmap");
    errno = 0;
    CHECK(mremap(start, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "of nothing mapped");
}

int main(void) {
    RUN(grows_with_old_bytes_and_new_zeros);
    RUN(many_small_growths_keep_bytes);
    RUN(blocked_growth_in_place_fails_and_keeps);
    RUN(growth_in_place_keeps_the_address);
    RUN(shrinking_drops_the_tail);
    RUN(fixed_moves_replace_what_was_there);
    RUN(middle_moves_out);
    RUN(dontunmap_leaves_an_empty_mapping);
    RUN(moves_over_shared_memory_keep_bytes_and_protection);
    RUN(reservations_move_over_shared_memory_and_stay_closed);
    RUN(dontunmap_over_shared_memory_leaves_the_protection);
    RUN(bad_arguments_fail_as_the_kernel_says);
    return 0;
}
