/* What is excluded from core files is excluded, what is locked is locked, and both go with the memory; a core
 * file is about as large as what the program has mapped. Read from the kernel's own list of mappings. */
#include "check.h"

#include <sys/resource.h>

#define BYTES (64 * MIB)

static char *memory;

/* Whether the mapping at `address` has a flag, of two letters. */
static int has_flag(const void *address, const char *flag) {
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file != NULL, "smaps");
    char line[1024];
    int inside = 0, found = -1;
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = (uintptr_t)address >= start && (uintptr_t)address < end;
        if (inside && strncmp(line, "VmFlags:", 8) == 0) found = strstr(line, flag) != NULL;
    }
    fclose(file);
    CHECK(found >= 0, "%p is not mapped", address);
    return found;
}

static void check_flag(const char *start, size_t bytes, const char *flag, int expected, const char *what) {
    for (size_t at = 0; at < bytes; at += bytes / 4)
        CHECK(has_flag(start + at, flag) == expected, "%s: +%zu: %s", what, at, flag);
    CHECK(has_flag(start + bytes - 1, flag) == expected, "%s: end: %s", what, flag);
}

/* Bytes of all mappings that a core file would have. */
static size_t dumpable(void) {
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file != NULL, "smaps");
    char line[1024];
    size_t size = 0, sum = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) size = end - start;
        if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " dd") == NULL) sum += size;
    }
    fclose(file);
    return sum;
}

static void core_files_are_not_larger_than_memory(void) {
    size_t sum = dumpable();
    CHECK(sum >= BYTES, "%zu MiB: the memory is missing", sum / MIB);
    CHECK(sum < BYTES + 512 * MIB, "%zu MiB", sum / MIB);
}

/* Odd places, so that blocks of any size are cut. */
#define FROM (5 * MIB + 3 * PAGE)
#define LENGTH (21 * MIB + 5 * PAGE)

static void excluded_parts_are_excluded_and_keep_their_bytes(void) {
    CHECK(madvise(memory + FROM, LENGTH, MADV_DONTDUMP) == 0, "madvise");
    for (int round = 0; round < 3; round++) {
        check_flag(memory + FROM, LENGTH, " dd", 1, "excluded");
        check_flag(memory, FROM, " dd", 0, "before");
        check_flag(memory + FROM + LENGTH, BYTES - FROM - LENGTH, " dd", 0, "behind");
        churn();
        check_filled(memory, BYTES, 1, "partly excluded");
    }
    CHECK(mprotect(memory + FROM + MIB, MIB, PROT_READ) == 0, "mprotect");
    CHECK(has_flag(memory + FROM + MIB, " dd"), "read-only");
    CHECK(mprotect(memory + FROM + MIB, MIB, PROT_NONE) == 0, "mprotect");
    CHECK(has_flag(memory + FROM + MIB, " dd"), "no access");
    CHECK(mprotect(memory + FROM + MIB, MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    check_flag(memory + FROM, LENGTH, " dd", 1, "after mprotect");
    pid_t child = fork();
    if (child == 0) {
        check_flag(memory + FROM, LENGTH, " dd", 1, "in a child");
        check_filled(memory, BYTES, 1, "in a child");
        churn();
        check_filled(memory, BYTES, 1, "in a child, later");
        _exit(0);
    }
    check_child(child, "excluded");
    CHECK(madvise(memory + FROM, LENGTH, MADV_DODUMP) == 0, "madvise");
    check_flag(memory, BYTES, " dd", 0, "taken back");
    check_filled(memory, BYTES, 1, "taken back");
}

static void exclusion_goes_with_memory_that_moves_and_ends_with_it(void) {
    char *start = map(8 * MIB);
    fill(start, 8 * MIB, 40000);
    CHECK(madvise(start, 8 * MIB, MADV_DONTDUMP) == 0, "madvise");
    char *moved = mremap(start, 8 * MIB, 32 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    check_flag(moved, 32 * MIB, " dd", 1, "moved");
    churn();
    check_filled(moved, 8 * MIB, 40000, "moved");
    CHECK(munmap(moved, 32 * MIB) == 0, "munmap");
    char *other = map(32 * MIB);
    check_flag(other, 32 * MIB, " dd", 0, "another mapping");
    CHECK(munmap(other, 32 * MIB) == 0, "munmap");
    char *block = malloc(16 * MIB);
    char *page = (char *)(((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    CHECK(block && madvise(page, 15 * MIB, MADV_DONTDUMP) == 0, "madvise of a block");
    memset(block, 1, 16 * MIB);
    CHECK(has_flag(page + MIB, " dd"), "block");
    /* As a careful program does before it gives the block back. */
    CHECK(madvise(page, 15 * MIB, MADV_DODUMP) == 0, "madvise of a block");
    free(block);
}

static void locked_pages_are_locked_for_the_kernel_too(void) {
    char *start = memory + 9 * MIB + 7 * PAGE;
    size_t bytes = 2 * MIB + 3 * PAGE;
    CHECK(mlock(start, bytes) == 0, "mlock");
    check_flag(start, bytes, " lo", 1, "locked");
    CHECK(!has_flag(start - PAGE, " lo") && !has_flag(start + bytes, " lo"), "neighbours");
    for (int round = 0; round < 3; round++) {
        churn();
        unsigned char here[1024];
        CHECK(mincore(start, bytes, here) == 0, "mincore");
        for (size_t i = 0; i < bytes / PAGE; i++) CHECK(here[i] & 1, "page %zu is out", i);
        check_filled(memory, BYTES, 1, "partly locked");
    }
    errno = 0;
    CHECK(madvise(start, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL, "dropping a locked page");
    pid_t child = fork();
    if (child == 0) {
        CHECK(!has_flag(start, " lo"), "a child has no locks");
        CHECK(madvise(start, PAGE, MADV_DONTNEED) == 0 && page_is_zero(start), "dropping in a child");
        churn();
        check_filled(start + PAGE, bytes - PAGE, 1 + (size_t)(start + PAGE - memory) / PAGE, "in a child");
        _exit(0);
    }
    check_child(child, "locked");
    CHECK(munlock(start, bytes) == 0, "munlock");
    check_flag(start, bytes, " lo", 0, "unlocked");
    churn();
    check_filled(memory, BYTES, 1, "unlocked");
}

static void locks_go_with_memory_that_moves_and_end_with_it(void) {
    char *start = map(2 * MIB);
    fill(start, 2 * MIB, 50000);
    CHECK(mlock(start, 2 * MIB) == 0, "mlock");
    char *moved = mremap(start, 2 * MIB, 3 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    check_flag(moved, 2 * MIB, " lo", 1, "moved");
    churn();
    check_filled(moved, 2 * MIB, 50000, "moved");
    CHECK(mprotect(moved, MIB, PROT_READ) == 0 && mprotect(moved, MIB, PROT_READ | PROT_WRITE) == 0,
        "mprotect");
    CHECK(munmap(moved, MIB) == 0, "munmap of a part");
    check_filled(moved + MIB, MIB, 50000 + MIB / PAGE, "the rest");
    CHECK(munmap(moved + MIB, 2 * MIB) == 0, "munmap");
    for (int round = 0; round < 4; round++) {
        char *block = malloc(4 * MIB);
        CHECK(block && mlock(block, 2 * MIB) == 0, "mlock of a block");
        memset(block, round, 4 * MIB);
        churn();
        for (size_t at = 0; at < 4 * MIB; at += PAGE) CHECK(block[at] == round, "block");
        CHECK(munlock(block, 2 * MIB) == 0, "munlock");
        free(block);
    }
}

/* In a child: what is lowered stays so. */
static void the_limit_of_locked_memory_holds(void) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {MIB, MIB};
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
        if (geteuid() == 0)
            CHECK(setresuid(65534, 65534, 65534) == 0, "setresuid"); /* the right to lock more */
        errno = 0;
        CHECK(mlock(memory, 4 * MIB) == -1 && errno == ENOMEM, "mlock beyond the limit");
        CHECK(mlock(memory + MIB, MIB / 2) == 0, "mlock below it");
        churn();
        check_filled(memory, BYTES, 1, "limited");
        _exit(0);
    }
    check_child(child, "limit");
}

int main(void) {
    memory = map(BYTES);
    fill(memory, BYTES, 1);
    RUN(core_files_are_not_larger_than_memory);
    RUN(excluded_parts_are_excluded_and_keep_their_bytes);
    RUN(exclusion_goes_with_memory_that_moves_and_ends_with_it);
    RUN(locked_pages_are_locked_for_the_kernel_too);
    RUN(locks_go_with_memory_that_moves_and_end_with_it);
    RUN(the_limit_of_locked_memory_holds);
    RUN(core_files_are_not_larger_than_memory);
    return 0;
}
