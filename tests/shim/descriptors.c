/* Programs close descriptors that they did not open, count on low numbers, and have few. Their memory works
 * on, and every file is what they opened. */
#include "check.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define BYTES (64 * MIB)
/* As a careful daemon sets it. */
#define LIMIT 60
#define FILES 20

static char *memory;

static void walk(void) { check_filled(memory, BYTES, 1, "memory"); }

static void set_limit(rlim_t descriptors) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    limit.rlim_cur = descriptors;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

static void low_numbers_are_free(void) {
    CHECK(open("/dev/null", O_RDONLY) == 3, "the next number");
    for (int n = 4; n < FILES; n++) CHECK(dup2(3, n) == n, "dup2 to %d", n);
    for (int n = 3; n < FILES; n++) CHECK(close(n) == 0, "close of %d", n);
}

static int files[FILES];
static struct stat was[FILES];

static void open_files(void) {
    for (int i = 0; i < FILES; i++) {
        char name[] = "weir-descriptors-XXXXXX";
        files[i] = mkstemp(name);
        CHECK(files[i] >= 0 && unlink(name) == 0, "file %d", i);
        CHECK(write(files[i], &i, sizeof i) == sizeof i && fstat(files[i], &was[i]) == 0, "file %d", i);
    }
}

static void check_files(const char *what) {
    for (int i = 0; i < FILES; i++) {
        struct stat now;
        int found = -1;
        CHECK(fstat(files[i], &now) == 0, "%s: file %d is closed", what, i);
        CHECK(now.st_dev == was[i].st_dev && now.st_ino == was[i].st_ino, "%s: another file %d", what, i);
        CHECK(now.st_size == was[i].st_size, "%s: file %d has %ld bytes", what, i, (long)now.st_size);
        CHECK(pread(files[i], &found, sizeof found, 0) == sizeof found && found == i, "%s: file %d", what, i);
    }
}

static void close_files(void) {
    for (int i = 0; i < FILES; i++) CHECK(close(files[i]) == 0, "file %d", i);
}

/* The program's files, and those of a child, stay what they are while memory comes and goes. */
static void work_with_files(const char *what) {
    open_files();
    walk();
    churn();
    walk();
    check_files(what);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        check_files("in a child");
        churn();
        walk();
        check_files("in a child, later");
        _exit(0);
    }
    check_child(child, what);
    check_files(what);
    close_files();
}

static void close_all(void) {
    closefrom(3);
    work_with_files("closefrom");
}

static void close_a_range(void) {
    CHECK(close_range(3, ~0U, 0) == 0, "close_range");
    work_with_files("close_range");
}

static void close_each(void) {
    for (int n = 3; n < 1100; n++)
        if (close(n) != 0) CHECK(errno == EBADF, "close of %d", n);
    work_with_files("close");
}

static void close_on_exec(void) {
    CHECK(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0, "close_range");
    work_with_files("close-on-exec");
}

/* In a child: what is lowered stays so. */
static void fewer_than_before(void) {
    pid_t child = fork();
    if (child == 0) {
        set_limit(FILES + 12);
        work_with_files("fewer");
        _exit(0);
    }
    check_child(child, "fewer");
}

int main(void) {
    set_limit(LIMIT);
    memory = map(BYTES);
    fill(memory, BYTES, 1);
    walk();
    RUN(low_numbers_are_free);
    RUN(close_all);
    RUN(close_a_range);
    RUN(close_each);
    RUN(close_on_exec);
    RUN(fewer_than_before);
    RUN(low_numbers_are_free);
    return 0;
}
