/* Files whose pages have contents that can be told. */
#ifndef WEIR_TEST_FILES_H
#define WEIR_TEST_FILES_H

#include "check.h"

#include <fcntl.h>

/* A new file in which page n holds seed + n, and that has no pages in the cache that were not written. */
static inline int file_of(const char *name, size_t bytes, uint64_t seed) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0, "open of %s", name);
    char page[PAGE];
    for (size_t n = 0; n < bytes / PAGE; n++) {
        fill_page(page, seed + n);
        CHECK(write(fd, page, PAGE) == (ssize_t)PAGE, "write of page %zu", n);
    }
    CHECK(fdatasync(fd) == 0, "fdatasync");
    return fd;
}

static inline char *map_file(int fd, size_t bytes, int access, int kind) {
    char *start = mmap(NULL, bytes, access, kind, fd, 0);
    CHECK(start != MAP_FAILED, "mmap of a file");
    return start;
}

static inline void unmap(char *start, size_t bytes) { CHECK(munmap(start, bytes) == 0, "munmap"); }

#endif
