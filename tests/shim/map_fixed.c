/* MAP_FIXED over part of a mapping: the new one shows, the rest keeps its bytes, nothing old shines
 * through. */
#include "check.h"

#define BYTES (96 * MIB)
#define FROM (32 * MIB)
#define LENGTH (16 * MIB)

static char *filled(uint64_t seed) {
    char *start = map(BYTES);
    fill(start, BYTES, seed);
    return start;
}

static void check_around(char *start, uint64_t seed) {
    check_filled(start, FROM, seed, "before the replaced part");
    check_filled(start + FROM + LENGTH, BYTES - FROM - LENGTH, seed + (FROM + LENGTH) / PAGE,
        "behind the replaced part");
}

static int file_with(size_t bytes, uint64_t seed) {
    char name[] = "weir-shim-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0, "mkstemp");
    char page[PAGE];
    for (size_t n = 0; n < bytes / PAGE; n++) {
        fill_page(page, seed + n);
        CHECK(write(file, page, PAGE) == (ssize_t)PAGE, "write");
    }
    return file;
}

static void anonymous_over_anonymous_is_zero(void) {
    char *start = filled(1);
    char *inner = mmap(start + FROM, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
        -1, 0);
    CHECK(inner == start + FROM, "mmap");
    check_zero(inner, LENGTH, "replaced part");
    fill(inner, LENGTH, 5000);
    churn();
    check_around(start, 1);
    check_filled(inner, LENGTH, 5000, "replaced part");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void private_file_over_anonymous_shows_the_file(void) {
    char *start = filled(2);
    int file = file_with(LENGTH, 700);
    char *inner = mmap(start + FROM, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0);
    CHECK(inner == start + FROM, "mmap");
    check_filled(inner, LENGTH, 700, "file");
    fill(inner, LENGTH / 2, 5000);
    churn();
    check_filled(inner, LENGTH / 2, 5000, "written copy");
    check_filled(inner + LENGTH / 2, LENGTH / 2, 700 + LENGTH / 2 / PAGE, "unwritten part");
    char page[PAGE];
    CHECK(pread(file, page, PAGE, 0) == (ssize_t)PAGE && page_is(page, 700), "the file changed");
    check_around(start, 2);
    CHECK(munmap(start, BYTES) == 0 && close(file) == 0, "munmap");
}

static void shared_file_over_anonymous_writes_through(void) {
    char *start = filled(3);
    int file = file_with(LENGTH, 700);
    char *inner = mmap(start + FROM, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    CHECK(inner == start + FROM, "mmap");
    fill(inner, LENGTH, 9000);
    churn();
    char page[PAGE];
    for (size_t n = 0; n < LENGTH / PAGE; n += 37)
        CHECK(pread(file, page, PAGE, (off_t)(n * PAGE)) == (ssize_t)PAGE && page_is(page, 9000 + n),
            "file page %zu", n);
    check_around(start, 3);
    CHECK(munmap(start, BYTES) == 0 && close(file) == 0, "munmap");
}

static void shared_anonymous_over_anonymous_is_shared(void) {
    char *start = filled(4);
    char *inner = mmap(start + FROM, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED,
        -1, 0);
    CHECK(inner == start + FROM, "mmap");
    check_zero(inner, LENGTH, "shared part");
    pid_t child = fork();
    if (child == 0) {
        fill(inner, LENGTH, 4000);
        _exit(0);
    }
    check_child(child, "writer of the shared part");
    check_filled(inner, LENGTH, 4000, "what the child wrote");
    check_around(start, 4);
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void anonymous_over_file_is_zero(void) {
    int file = file_with(BYTES / 2, 700);
    char *start = mmap(NULL, BYTES / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(start != MAP_FAILED, "mmap of a file");
    char *inner = mmap(start + LENGTH, LENGTH, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(inner == start + LENGTH, "mmap");
    check_zero(inner, LENGTH, "anonymous part");
    fill(inner, LENGTH, 5);
    churn();
    check_filled(inner, LENGTH, 5, "anonymous part");
    check_filled(start, LENGTH, 700, "file part");
    CHECK(munmap(start, BYTES / 2) == 0 && close(file) == 0, "munmap");
}

static void noreplace_refuses_and_keeps(void) {
    char *start = filled(6);
    errno = 0;
    char *inner = mmap(start + FROM, LENGTH, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(inner == MAP_FAILED && errno == EEXIST, "MAP_FIXED_NOREPLACE over a mapping");
    check_filled(start, BYTES, 6, "after the refusal");
    char *hinted = mmap(start + FROM, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hinted != MAP_FAILED && (hinted + LENGTH <= start || hinted >= start + BYTES),
        "a hint inside a mapping");
    CHECK(munmap(hinted, LENGTH) == 0 && munmap(start, BYTES) == 0, "munmap");
}

int main(void) {
    RUN(anonymous_over_anonymous_is_zero);
    RUN(private_file_over_anonymous_shows_the_file);
    RUN(shared_file_over_anonymous_writes_through);
    RUN(shared_anonymous_over_anonymous_is_shared);
    RUN(anonymous_over_file_is_zero);
    RUN(noreplace_refuses_and_keeps);
    return 0;
}
