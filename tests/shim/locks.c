/* Locked pages, and what becomes of locks and of other marks on memory when it moves, forks or is used
 * again. */
#include "check.h"

#include <malloc.h>

#define BYTES (4 * MIB)
#define MARK ((char)0xaa)

/* Protected, pushed at, opened and written again, unlocked, moved: no write may be lost, and nothing may stay
 * behind. */
static void writes_stay(char *locked) {
    fill(locked, BYTES, 5);
    CHECK(mprotect(locked, BYTES, PROT_READ) == 0, "mprotect");
    churn();
    CHECK(mprotect(locked, BYTES, PROT_READ | PROT_WRITE) == 0, "mprotect");
    for (size_t i = 0; i < BYTES; i += PAGE) locked[i + 8] = MARK;
    CHECK(munlock(locked, BYTES) == 0, "munlock");
    churn();
    char *target = map(2 * BYTES);
    char *moved = mremap(locked, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    CHECK(moved == target, "mremap");
    for (size_t i = 0; i < BYTES; i += PAGE) CHECK(moved[i + 8] == MARK, "page %zu lost a write", i / PAGE);
    CHECK(mmap(locked, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
        0) == locked, "mmap");
    check_zero(locked, BYTES, "where it was");
    CHECK(munmap(locked, BYTES) == 0 && munmap(target, 2 * BYTES) == 0, "munmap");
}

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

static void locked_pages_that_were_given_up_are_written_again(void) {
    char *locked = map(BYTES);
    CHECK(mlock(locked, BYTES) == 0, "mlock");
    int given_up = madvise(locked, BYTES, MADV_DONTNEED_LOCKED);
    CHECK(given_up == 0 || errno == EINVAL, "madvise"); /* kernels before 5.18 do not know it */
    writes_stay(locked);
}

static void locked_pages_that_grew_and_moved_are_written_again(void) {
    char *locked = map(BYTES), *target = map(BYTES);
    CHECK(mlock(locked, MIB) == 0 && munmap(locked + MIB, BYTES - MIB) == 0, "mlock");
    CHECK(mremap(locked, MIB, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target, "mremap");
    writes_stay(target);
}

/* A child has the parent's memory, not its locks: it can lock as much itself. */
static void a_child_begins_without_locks(void) {
    char *parents = map(2 * BYTES), *childs = map(2 * BYTES);
    CHECK(mlock(parents, 6 * MIB) == 0, "mlock");
    fill(parents, 2 * BYTES, 6);
    pid_t child = fork();
    if (child == 0) {
        fill(childs, 2 * BYTES, 7);
        if (mlock(childs, 6 * MIB) != 0) _exit(1);
        churn();
        check_filled(parents, 2 * BYTES, 6, "the parent's");
        check_filled(childs, 2 * BYTES, 7, "the child's");
        _exit(0);
    }
    check_child(child, "a child that locks");
    CHECK(munmap(parents, 2 * BYTES) == 0 && munmap(childs, 2 * BYTES) == 0, "munmap");
}

/* Of two protections: natively refused, and so it must stay as it was. */
static void a_refused_move_changes_nothing(void) {
    char *locked = map(BYTES);
    fill(locked, BYTES, 8);
    CHECK(mlock(locked, BYTES) == 0 && munlock(locked, MIB) == 0, "mlock");
    CHECK(mprotect(locked + 2 * MIB, 2 * MIB, PROT_READ) == 0, "mprotect");
    CHECK(mremap(locked, BYTES, 2 * BYTES, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "mremap");
    churn();
    check_filled(locked, BYTES, 8, "after the refusal");
    CHECK(munlock(locked, BYTES) == 0 && munmap(locked, BYTES) == 0, "munmap");
}

/* What a child must not see lies in a block that is freed: its place, used again, is seen. */
static void advice_ends_with_the_block(void) {
    CHECK(mallopt(M_MMAP_THRESHOLD, MIB) == 1, "mallopt");
    /* libc's too gives the block back, and does not keep it */
    int advices[] = {MADV_WIPEONFORK, MADV_DONTFORK};
    for (int i = 0; i < 2; i++) {
        char *block = malloc(BYTES);
        CHECK(block, "malloc");
        memset(block, 1, BYTES);
        char *start = (char *)(((uintptr_t)block + PAGE) & ~(uintptr_t)(PAGE - 1));
        CHECK(madvise(start, BYTES / 2, advices[i]) == 0, "madvise");
        free(block);
        char *again = malloc(BYTES - 4 * PAGE);
        CHECK(again, "malloc");
        memset(again, 5, BYTES - 4 * PAGE);
        pid_t child = fork();
        if (child == 0) {
            for (size_t at = 0; at < BYTES - 4 * PAGE; at++)
                if (again[at] != 5) _exit(1);
            _exit(0);
        }
        check_child(child, "a child that reads");
        free(again);
    }
}

int main(void) {
    RUN(locked_pages_that_were_given_up_are_written_again);
    RUN(locked_pages_that_grew_and_moved_are_written_again);
    RUN(a_child_begins_without_locks);
    RUN(a_refused_move_changes_nothing);
    RUN(advice_ends_with_the_block);
    return 0;
}
