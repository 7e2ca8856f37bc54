/* mprotect: reservations that are opened piece by piece, pages that become read-only or unreachable and come
 * back. */
#include "check.h"

#define BYTES (96 * MIB)

static void reservation_is_opened_in_pieces(void) {
    size_t reserved = (size_t)4 << 30;
    char *start = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(start != MAP_FAILED, "reservation");
    CHECK(fault_of(start + PAGE, 0) == SIGSEGV, "reading a reservation: signal %d", (int)fault_signal);
    for (size_t at = 0; at < BYTES; at += 4 * MIB) {
        CHECK(mprotect(start + at, 4 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect at %zu", at);
        check_zero(start + at, 4 * MIB, "opened piece");
        fill(start + at, 4 * MIB, 1 + at / PAGE);
    }
    check_filled(start, BYTES, 1, "opened part");
    CHECK(fault_of(start + BYTES, 1) == SIGSEGV, "writing behind the opened part: signal %d",
        (int)fault_signal);
    CHECK(mprotect(start + reserved - PAGE, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect of the last page");
    start[reserved - 1] = 5;
    CHECK(munmap(start, reserved) == 0, "munmap");
}

static void commit_by_fixed_mapping(void) {
    char *start = mmap(NULL, 4 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(start != MAP_FAILED, "reservation");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(start + BYTES, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == start + BYTES, "commit");
    fill(start + BYTES, BYTES, 11);
    check_filled(start + BYTES, BYTES, 11, "committed");
    CHECK(mmap(start + BYTES, BYTES, PROT_NONE, flags | MAP_NORESERVE, -1, 0) == start + BYTES, "uncommit");
    CHECK(fault_of(start + BYTES, 0) == SIGSEGV, "reading what was given back: signal %d", (int)fault_signal);
    CHECK(mmap(start + BYTES, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == start + BYTES, "commit again");
    check_zero(start + BYTES, BYTES, "committed again");
    CHECK(munmap(start, 4 * BYTES) == 0, "munmap");
}

static void read_only_pages_are_read_and_not_written(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    CHECK(mprotect(start, BYTES, PROT_READ) == 0, "mprotect");
    check_filled(start, BYTES, 2, "read-only");
    for (size_t page = 0; page < BYTES / PAGE; page += 331)
        CHECK(fault_of(start + page * PAGE + 100, 1) == SIGSEGV, "writing page %zu: signal %d", page,
            (int)fault_signal);
    churn();
    CHECK(fault_of(start, 1) == SIGSEGV, "writing an old page: signal %d", (int)fault_signal);
    check_filled(start, BYTES, 2, "read-only after refused writes");
    CHECK(mprotect(start, BYTES, PROT_READ | PROT_WRITE) == 0, "mprotect back");
    fill(start, BYTES, 3);
    check_filled(start, BYTES, 3, "writable again");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void unreachable_pages_keep_their_bytes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 4);
    CHECK(mprotect(start + 16 * MIB, 32 * MIB, PROT_NONE) == 0, "mprotect");
    churn();
    CHECK(fault_of(start + 16 * MIB, 0) == SIGSEGV, "first unreachable byte: signal %d", (int)fault_signal);
    CHECK(fault_of(start + 48 * MIB - 1, 0) == SIGSEGV, "last unreachable byte: signal %d",
        (int)fault_signal);
    check_filled(start, 16 * MIB, 4, "before");
    check_filled(start + 48 * MIB, BYTES - 48 * MIB, 4 + 48 * MIB / PAGE, "behind");
    CHECK(mprotect(start + 16 * MIB, 32 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect back");
    check_filled(start, BYTES, 4, "reachable again");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void alternating_protections(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 5);
    size_t step = 128 * 1024;
    for (size_t at = 0; at < BYTES; at += 2 * step)
        CHECK(mprotect(start + at, step, PROT_READ) == 0, "mprotect at %zu", at);
    churn();
    for (size_t at = 0; at < BYTES; at += 2 * step) {
        CHECK(page_is(start + at, 5 + at / PAGE), "read-only page at %zu", at);
        fill_page(start + at + step, 900 + at);
    }
    for (size_t at = 0; at < BYTES; at += 64 * step)
        CHECK(fault_of(start + at, 1) == SIGSEGV, "write at %zu", at);
    CHECK(mprotect(start, BYTES, PROT_READ | PROT_WRITE) == 0, "mprotect of all");
    for (size_t at = 0; at < BYTES; at += 2 * step)
        CHECK(page_is(start + at + step, 900 + at), "written page at %zu", at + step);
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void code_runs_from_protected_memory(void) {
#if defined(__x86_64__)
    static const unsigned char RETURN_42[] = {0xb8, 42, 0, 0, 0, 0xc3};
    char *start = map(32 * MIB);
    memcpy(start + 5 * MIB, RETURN_42, sizeof RETURN_42);
    CHECK(mprotect(start, 32 * MIB, PROT_READ | PROT_EXEC) == 0, "mprotect");
    churn();
    int (*function)(void) = (int (*)(void))(uintptr_t)(start + 5 * MIB);
    CHECK(function() == 42, "generated code");
    CHECK(munmap(start, 32 * MIB) == 0, "munmap");
#endif
}

static void bad_ranges_fail_as_the_kernel_says(void) {
    char *start = map(4 * MIB);
    CHECK(munmap(start + 2 * MIB, MIB) == 0, "munmap");
    errno = 0;
    CHECK(mprotect(start, 4 * MIB, PROT_READ) == -1 && errno == ENOMEM, "mprotect over a hole");
    errno = 0;
    CHECK(mprotect(start + 1, PAGE, PROT_READ) == -1 && errno == EINVAL, "unaligned mprotect");
    CHECK(mprotect(start, 0, PROT_READ) == 0, "mprotect of nothing");
    CHECK(munmap(start, 4 * MIB) == 0, "munmap");
}

int main(void) {
    RUN(reservation_is_opened_in_pieces);
    RUN(commit_by_fixed_mapping);
    RUN(read_only_pages_are_read_and_not_written);
    RUN(unreachable_pages_keep_their_bytes);
    RUN(alternating_protections);
    RUN(code_runs_from_protected_memory);
    RUN(bad_ranges_fail_as_the_kernel_says);
    return 0;
}
