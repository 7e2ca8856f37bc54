/* Mapped files, larger than the budget: they are read, written, cut and shared as natively, and what a
 * program wrote into a private mapping stays its own. */
#include "files.h"

#include <sys/file.h>
#include <sys/uio.h>

#define BYTES (128 * MIB)
#define NAME "files.data"

static void check_file(int fd, size_t first, size_t bytes, uint64_t seed, const char *what) {
    char page[PAGE];
    for (size_t n = first / PAGE; n < (first + bytes) / PAGE; n++) {
        CHECK(pread(fd, page, PAGE, (off_t)(n * PAGE)) == (ssize_t)PAGE, "%s: pread of page %zu", what, n);
        CHECK(page_is(page, seed + n), "%s: page %zu of the file has other bytes", what, n);
    }
}

/* Some pages are the program's own; nobody has a copy of them. */
static void what_is_written_into_a_private_mapping_stays(void) {
    int fd = file_of(NAME, BYTES, 100);
    char *start = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    for (int round = 0; round < 3; round++) {
        uint64_t own = 1000000 * (round + 1);
        for (size_t n = round; n < BYTES / PAGE; n += 32) fill_page(start + n * PAGE, own + n);
        if (round == 1) CHECK(mprotect(start, BYTES, PROT_READ) == 0, "mprotect");
        for (int pass = 0; pass < 3; pass++) {
            churn();
            for (size_t n = 0; n < BYTES / PAGE; n++) {
                size_t written = n % 32 <= (size_t)round ? 1000000 * (n % 32 + 1) : 100;
                CHECK(page_is(start + n * PAGE, written + n), "round %d: page %zu has other bytes", round, n);
            }
        }
        if (round == 1) CHECK(mprotect(start, BYTES, PROT_READ | PROT_WRITE) == 0, "mprotect");
    }
    check_file(fd, 0, BYTES, 100, "behind a private mapping");
    unmap(start, BYTES);
    CHECK(close(fd) == 0, "close");
}

static void what_is_written_into_a_shared_mapping_is_in_the_file(void) {
    const int how[] = {MS_SYNC, MS_ASYNC, MS_SYNC | MS_INVALIDATE};
    int fd = file_of(NAME, BYTES, 200);
    char *start = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < BYTES; at += 8 * MIB) {
            fill(start + at, 8 * MIB, 5000000 * (round + 1) + at / PAGE);
            CHECK(msync(start + at, 8 * MIB, how[round]) == 0, "msync");
            if (how[round] == MS_ASYNC) CHECK(fdatasync(fd) == 0, "fdatasync");
        }
        check_filled(start, BYTES, 5000000 * (round + 1), "written and read");
        check_file(fd, 0, BYTES, 5000000 * (round + 1), "written through a mapping");
    }
    /* Written past the mapping: seen through it. */
    for (size_t n = 0; n < BYTES / PAGE; n += 100) {
        char page[PAGE];
        fill_page(page, 9000000 + n);
        CHECK(pwrite(fd, page, PAGE, (off_t)(n * PAGE)) == (ssize_t)PAGE, "pwrite");
        CHECK(page_is(start + n * PAGE, 9000000 + n), "page %zu, written past the mapping", n);
    }
    unmap(start, BYTES);
    CHECK(close(fd) == 0, "close");
}

/* Here and there, so that most of a block is clean: pages that are dirty when their block's turn comes. */
static void single_dirty_pages_are_kept(void) {
    int fd = file_of(NAME, BYTES, 300);
    char *start = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (uint64_t round = 1; round <= 3; round++) {
        for (size_t n = 0; n < BYTES / PAGE; n++) {
            if (n % 64 == 0)
                fill_page(start + n * PAGE, 10000000 * round + n);
            else
                CHECK(page_is(start + n * PAGE, 300 + n), "round %d: page %zu", (int)round, n);
        }
        for (size_t n = 0; n < BYTES / PAGE; n += 64)
            CHECK(page_is(start + n * PAGE, 10000000 * round + n), "round %d: page %zu", (int)round, n);
    }
    unmap(start, BYTES);
    char page[PAGE];
    for (size_t n = 0; n < BYTES / PAGE; n += 64)
        CHECK(pread(fd, page, PAGE, (off_t)(n * PAGE)) == (ssize_t)PAGE && page_is(page, 30000000 + n),
            "page %zu of the file", n);
    CHECK(close(fd) == 0, "close");
}

static void a_file_is_cut_and_grows(void) {
    int fd = file_of(NAME, BYTES, 400);
    char *shared = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *own = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    check_filled(shared, BYTES, 400, "before the cut");
    fill(own + BYTES / 2 - 2 * MIB, 4 * MIB, 20000000); /* half of it behind the cut */
    CHECK(ftruncate(fd, (off_t)(BYTES / 2)) == 0, "ftruncate");
    CHECK(fault_of(shared + BYTES / 2, 0) == SIGBUS && fault_of(shared + BYTES - 1, 1) == SIGBUS,
        "behind the end");
    CHECK(fault_of(own + BYTES / 2, 0) == SIGBUS && fault_of(own + BYTES - 1, 1) == SIGBUS,
        "a copy behind the end");
    churn();
    check_filled(shared, BYTES / 2, 400, "before the end");
    check_filled(own, BYTES / 2 - 2 * MIB, 400, "private, before the end");
    check_filled(own + BYTES / 2 - 2 * MIB, 2 * MIB, 20000000, "copies before the end");
    CHECK(ftruncate(fd, (off_t)BYTES) == 0, "ftruncate");
    check_zero(shared + BYTES / 2, BYTES / 2, "the new part");
    check_zero(own + BYTES / 2, BYTES / 2, "the new part of a private mapping");
    check_filled(shared, BYTES / 2, 400, "beside the new part");
    unmap(shared, BYTES);
    unmap(own, BYTES);
    CHECK(close(fd) == 0, "close");
}

static void several_mappings_show_one_file(void) {
    int fd = file_of(NAME, BYTES, 500);
    char *one = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *other = map_file(fd, BYTES, PROT_READ, MAP_SHARED);
    char *half = mmap(NULL, BYTES / 2, PROT_READ, MAP_PRIVATE, fd, (off_t)(BYTES / 2));
    CHECK(half != MAP_FAILED, "mmap of a part");
    CHECK(close(fd) == 0, "close");
    for (size_t n = 0; n < BYTES / PAGE; n += 61) {
        fill_page(one + n * PAGE, 30000000 + n);
        CHECK(page_is(other + n * PAGE, 30000000 + n), "page %zu through the other mapping", n);
    }
    for (size_t n = 0; n < BYTES / PAGE; n++)
        CHECK(page_is(other + n * PAGE, (n % 61 ? 500 : 30000000) + n), "page %zu", n);
    for (size_t n = BYTES / 2 / PAGE; n < BYTES / PAGE; n++)
        CHECK(page_is(half + n * PAGE - BYTES / 2, (n % 61 ? 500 : 30000000) + n), "page %zu of a part", n);
    unmap(one, BYTES);
    churn();
    CHECK(page_is(other + 61 * PAGE, 30000061) && page_is(half, 500 + BYTES / 2 / PAGE), "after one is gone");
    unmap(other, BYTES);
    unmap(half, BYTES / 2);
}

static void parts_are_unmapped_replaced_moved_and_resized(void) {
    int fd = file_of(NAME, BYTES, 600);
    char *start = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    check_filled(start, BYTES, 600, "before");
    unmap(start + 16 * MIB, 16 * MIB);
    CHECK(fault_of(start + 20 * MIB, 0) == SIGSEGV, "an unmapped part");
    /* Anonymous memory takes a part's place, outside of what Weir manages: it must lose nothing. */
    char *over = mmap(start + 64 * MIB, 8 * MIB, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == start + 64 * MIB, "mmap over a part");
    fill(over, 8 * MIB, 40000000);
    /* And another part of the file. */
    char *swapped =
        mmap(start + 16 * MIB, 16 * MIB, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)(96 * MIB));
    CHECK(swapped == start + 16 * MIB, "mmap of another part");
    fill(start + 32 * MIB, 2 * MIB, 50000000);
    char *moved = mremap(start + 32 * MIB, 16 * MIB, 32 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    for (int pass = 0; pass < 3; pass++) {
        churn();
        check_filled(start, 16 * MIB, 600, "the first part");
        check_filled(swapped, 16 * MIB, 600 + 96 * MIB / PAGE, "another part of the file");
        check_filled(moved, 2 * MIB, 50000000, "copies that moved");
        check_filled(moved + 2 * MIB, 30 * MIB, 600 + 34 * MIB / PAGE, "a part that moved and grew");
        check_filled(over, 8 * MIB, 40000000, "anonymous memory in a part's place");
        check_filled(start + 72 * MIB, BYTES - 72 * MIB, 600 + 72 * MIB / PAGE, "the last part");
    }
    unmap(moved, 32 * MIB);
    unmap(start, 32 * MIB);
    unmap(start + 48 * MIB, BYTES - 48 * MIB);
    CHECK(close(fd) == 0, "close");
}

static void a_child_has_the_same_files(void) {
    int fd = file_of(NAME, BYTES, 700);
    char *shared = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *own = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    for (size_t n = 0; n < BYTES / PAGE; n += 32) fill_page(own + n * PAGE, 60000000 + n);
    pid_t child = fork();
    if (child == 0) {
        for (int pass = 0; pass < 2; pass++) {
            churn();
            for (size_t n = 0; n < BYTES / PAGE; n++)
                CHECK(page_is(own + n * PAGE, (n % 32 ? 700 : 60000000) + n), "a child's page %zu", n);
        }
        for (size_t n = 0; n < BYTES / PAGE; n += 32) fill_page(own + n * PAGE, 70000000 + n);
        for (size_t n = 1; n < BYTES / PAGE; n += 64) fill_page(shared + n * PAGE, 80000000 + n);
        churn();
        for (size_t n = 0; n < BYTES / PAGE; n += 32)
            CHECK(page_is(own + n * PAGE, 70000000 + n), "a page %zu that a child wrote", n);
        char *more = map_file(fd, BYTES, PROT_READ, MAP_SHARED);
        for (size_t n = 0; n < BYTES / PAGE; n++)
            CHECK(page_is(more + n * PAGE, (n % 64 == 1 ? 80000000 : 700) + n), "a child's mapping, %zu", n);
        _exit(0);
    }
    check_child(child, "child with files");
    for (size_t n = 0; n < BYTES / PAGE; n++) {
        CHECK(page_is(shared + n * PAGE, (n % 64 == 1 ? 80000000 : 700) + n), "page %zu from a child", n);
        if (n % 32 == 0) CHECK(page_is(own + n * PAGE, 60000000 + n), "page %zu of the parent's own", n);
    }
    unmap(shared, BYTES);
    unmap(own, BYTES);
    CHECK(close(fd) == 0, "close");
}

/* A process loses its locks of a file when it closes any descriptor of it: Weir must not do that for it. And
 * a lock that belongs to a descriptor ends with it and its mappings. */
static void locks_of_files_and_numbers_of_descriptors_are_the_programs(void) {
    int fd = file_of(NAME, 8 * MIB, 800);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, "locks");
    for (int round = 0; round < 20; round++) {
        char *start = map_file(fd, 8 * MIB, PROT_READ, MAP_SHARED);
        check_filled(start, 8 * MIB, 800, "under a lock");
        unmap(start, 8 * MIB);
    }
    int next = open("/dev/null", O_RDONLY);
    CHECK(next == fd + 1, "a descriptor is %d, after %d", next, fd);
    pid_t child = fork();
    if (child == 0) {
        struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        CHECK(fcntl(fd, F_GETLK, &other) == 0 && other.l_type == F_WRLCK, "the record lock is gone");
        _exit(0);
    }
    check_child(child, "child that asks for a lock");
    char *start = map_file(fd, 8 * MIB, PROT_READ, MAP_SHARED);
    check_filled(start, 8 * MIB, 800, "mapped");
    CHECK(close(fd) == 0 && close(next) == 0, "close");
    check_filled(start, 8 * MIB, 800, "mapped, descriptor closed");
    unmap(start, 8 * MIB);
    fd = open(NAME, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, "the lock outlives its descriptor and its mapping");
    CHECK(close(fd) == 0, "close");
}

/* Opening a file ends its lease, and tells the program by a signal that ends it. */
static void a_lease_on_a_mapped_file_is_not_broken(void) {
    int fd = file_of("files.lease", 8 * MIB, 850);
    /* Some file systems have no leases. */
    if (fcntl(fd, F_SETLEASE, F_WRLCK) == 0) {
        char *start = map_file(fd, 8 * MIB, PROT_READ, MAP_SHARED);
        check_filled(start, 8 * MIB, 850, "a leased file");
        churn();
        CHECK(fcntl(fd, F_GETLEASE) == F_WRLCK, "the lease is gone");
        unmap(start, 8 * MIB);
    }
    CHECK(close(fd) == 0 && unlink("files.lease") == 0, "close");
}

/* Every way to hand parts of a mapping to the kernel: it must find in them what is in the file. */
static void calls_send_from_a_mapping_what_is_in_the_file(void) {
    const size_t part = (64 << 10) + 100;
    int fd = file_of(NAME, BYTES, 860);
    char *start = map_file(fd, BYTES, PROT_READ, MAP_SHARED);
    int out = open("files.sent", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(out >= 0, "open");
    struct iovec *parts = malloc(3 * sizeof *parts);
    char *sent = malloc(3 * part);
    CHECK(parts && sent, "malloc");
    uint64_t seed = 1;
    for (int n = 0; n < 3000; n++) {
        size_t at[3];
        for (int i = 0; i < 3; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            at[i] = (seed >> 20) % (BYTES - part);
            parts[i] = (struct iovec){start + at[i], part};
        }
        int count = n % 3 == 2 ? 3 : 1;
        ssize_t bytes = (ssize_t)(count * part);
        if (n % 3 == 0) CHECK(pwrite(out, start + at[0], part, 0) == bytes, "pwrite");
        CHECK(lseek(out, 0, SEEK_SET) == 0, "lseek");
        if (n % 3 == 1) CHECK(write(out, start + at[0], part) == bytes, "write");
        if (n % 3 == 2) CHECK(pwritev(out, parts, count, 0) == bytes, "pwritev");
        if (n % 10 < 3) {
            CHECK(pread(out, sent, (size_t)bytes, 0) == bytes, "pread");
            for (int i = 0; i < count; i++)
                CHECK(memcmp(sent + (size_t)i * part, start + at[i], part) == 0, "part %d of call %d", i, n);
            size_t whole = at[0] / PAGE + 1;
            CHECK(page_is(sent + whole * PAGE - at[0], 860 + whole), "page %zu of call %d", whole, n);
        }
    }
    free(parts);
    free(sent);
    unmap(start, BYTES);
    CHECK(close(out) == 0 && unlink("files.sent") == 0 && close(fd) == 0, "close");
}

static void odd_files_are_as_natively(void) {
    int fd = file_of(NAME, 3 * PAGE, 900);
    char *start = map_file(fd, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
    check_filled(start, 3 * PAGE, 900, "a short file");
    CHECK(fault_of(start + 3 * PAGE, 0) == SIGBUS && fault_of(start + 16 * MIB - 1, 0) == SIGBUS, "beyond");
    CHECK(ftruncate(fd, 0) == 0 && fault_of(start, 0) == SIGBUS, "an empty file");
    CHECK(ftruncate(fd, 100) == 0 && start[99] == 0, "a part of a page");
    start[50] = 7;
    CHECK(msync(start, PAGE, MS_SYNC) == 0, "msync");
    char byte = 0;
    CHECK(pread(fd, &byte, 1, 50) == 1 && byte == 7, "pread");
    unmap(start, 16 * MIB);
    errno = 0;
    CHECK(mmap(NULL, 16 * MIB, PROT_READ, MAP_SHARED, 1000, 0) == MAP_FAILED && errno == EBADF, "no file");
    CHECK(close(fd) == 0 && unlink(NAME) == 0, "unlink");
    /* A file in RAM, one without a name, and one with holes. */
    fd = memfd_create("files", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(16 * MIB)) == 0, "memfd_create");
    start = map_file(fd, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
    fill(start, 16 * MIB, 1000);
    churn();
    check_filled(start, 16 * MIB, 1000, "a file in RAM");
    unmap(start, 16 * MIB);
    CHECK(close(fd) == 0, "close");
    fd = file_of(NAME, 64 * MIB, 1100);
    CHECK(unlink(NAME) == 0 && ftruncate(fd, (off_t)(2 * BYTES)) == 0, "unlink");
    start = map_file(fd, 2 * BYTES, PROT_READ, MAP_SHARED);
    CHECK(close(fd) == 0, "close");
    for (int pass = 0; pass < 2; pass++) {
        check_filled(start, 64 * MIB, 1100, "a file without a name");
        check_zero(start + 64 * MIB, 2 * BYTES - 64 * MIB, "a hole");
    }
    unmap(start, 2 * BYTES);
}

int main(void) {
    RUN(what_is_written_into_a_private_mapping_stays);
    RUN(what_is_written_into_a_shared_mapping_is_in_the_file);
    RUN(single_dirty_pages_are_kept);
    RUN(a_file_is_cut_and_grows);
    RUN(several_mappings_show_one_file);
    RUN(parts_are_unmapped_replaced_moved_and_resized);
    RUN(a_child_has_the_same_files);
    RUN(locks_of_files_and_numbers_of_descriptors_are_the_programs);
    RUN(a_lease_on_a_mapped_file_is_not_broken);
    RUN(calls_send_from_a_mapping_what_is_in_the_file);
    RUN(odd_files_are_as_natively);
    return 0;
}
