/* System calls whose buffers lie in pages that were pushed out: the kernel reads and writes the right
 * bytes. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#define BYTES (64 * MIB)

static int new_file(void) {
    char name[] = "weir-shim-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0, "mkstemp");
    return file;
}

static void write_all(int file, const char *bytes, size_t count) {
    while (count) {
        ssize_t done = write(file, bytes, count);
        CHECK(done > 0, "write of %zu bytes: %zd", count, done);
        bytes += done;
        count -= (size_t)done;
    }
}

static void read_all(int file, char *bytes, size_t count) {
    while (count) {
        ssize_t done = read(file, bytes, count);
        CHECK(done > 0, "read of %zu bytes: %zd", count, done);
        bytes += done;
        count -= (size_t)done;
    }
}

static void write_and_read_of_evicted_pages(void) {
    char *from = map(BYTES), *into = map(BYTES);
    fill(from, BYTES, 1);
    fill(into, BYTES, 500000);
    churn();
    int file = new_file();
    write_all(file, from, BYTES);
    CHECK(lseek(file, 0, SEEK_SET) == 0, "lseek");
    churn();
    read_all(file, into, BYTES);
    check_filled(into, BYTES, 1, "read back");
    check_filled(from, BYTES, 1, "written from");
    CHECK(close(file) == 0 && munmap(from, BYTES) == 0 && munmap(into, BYTES) == 0, "munmap");
}

static void unaligned_pread_touches_only_its_range(void) {
    char *into = map(BYTES);
    fill(into, BYTES, 2);
    int file = new_file();
    char page[PAGE];
    memset(page, 0x5a, sizeof page);
    write_all(file, page, PAGE);
    churn();
    for (size_t page_number = 1; page_number < BYTES / PAGE; page_number += 61) {
        char *at = into + page_number * PAGE - 50;
        CHECK(pread(file, at, 100, 10) == 100, "pread across pages %zu", page_number);
        for (size_t i = 0; i < 100; i++) CHECK(at[i] == 0x5a, "byte %zu at page %zu", i, page_number);
        uint64_t before = page_word(2 + page_number - 1, PAGE / 8 - 8),
            behind = page_word(2 + page_number, 7);
        CHECK(memcmp(into + page_number * PAGE - 64, &before, 8) == 0, "word before the range at page %zu",
            page_number);
        CHECK(memcmp(into + page_number * PAGE + 56, &behind, 8) == 0, "word behind the range at page %zu",
            page_number);
    }
    CHECK(close(file) == 0 && munmap(into, BYTES) == 0, "munmap");
}

static void vectors_of_evicted_pages(void) {
    enum { PARTS = 64 };
    char *memory = map(BYTES);
    fill(memory, BYTES, 3);
    struct iovec parts[PARTS];
    size_t apart = BYTES / PARTS;
    for (size_t i = 0; i < PARTS; i++) parts[i] = (struct iovec){memory + i * apart, 8 * PAGE};
    churn();
    int file = new_file();
    CHECK(writev(file, parts, PARTS) == (ssize_t)(PARTS * 8 * PAGE), "writev");
    for (size_t i = 0; i < PARTS; i++) memset(parts[i].iov_base, 0, 8 * PAGE);
    churn();
    CHECK(preadv(file, parts, PARTS, 0) == (ssize_t)(PARTS * 8 * PAGE), "preadv");
    check_filled(memory, BYTES, 3, "after writev and preadv");
    CHECK(close(file) == 0 && munmap(memory, BYTES) == 0, "munmap");
}

struct sender {
    int file;
    const char *bytes;
};

static void *send_bytes(void *argument) {
    struct sender *sender = argument;
    write_all(sender->file, sender->bytes, BYTES);
    return NULL;
}

static void through(int reading, int writing, uint64_t seed) {
    char *from = map(BYTES), *into = map(BYTES);
    fill(from, BYTES, seed);
    churn();
    pthread_t thread;
    struct sender sender = {writing, from};
    CHECK(pthread_create(&thread, NULL, send_bytes, &sender) == 0, "pthread_create");
    read_all(reading, into, BYTES);
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    check_filled(into, BYTES, seed, "received");
    CHECK(close(reading) == 0 && close(writing) == 0, "close");
    CHECK(munmap(from, BYTES) == 0 && munmap(into, BYTES) == 0, "munmap");
}

static void pipe_carries_evicted_pages(void) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    through(ends[0], ends[1], 4);
}

static void socket_carries_evicted_pages(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    through(ends[0], ends[1], 5);
}

static void messages_with_evicted_headers(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "socketpair");
    char *memory = map(BYTES);
    fill(memory, BYTES, 6);
    /* The header and its vector lie in managed pages too. */
    struct msghdr *header = (struct msghdr *)(memory + 8 * MIB);
    struct iovec *vector = (struct iovec *)(memory + 24 * MIB);
    memset(header, 0, sizeof *header);
    *vector = (struct iovec){memory + 40 * MIB, 2 * PAGE};
    header->msg_iov = vector;
    header->msg_iovlen = 1;
    churn();
    CHECK(sendmsg(ends[0], header, 0) == (ssize_t)(2 * PAGE), "sendmsg");
    vector->iov_base = memory + 48 * MIB;
    churn();
    CHECK(recvmsg(ends[1], header, 0) == (ssize_t)(2 * PAGE), "recvmsg");
    check_filled(memory + 48 * MIB, 2 * PAGE, 6 + 40 * MIB / PAGE, "received");
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && munmap(memory, BYTES) == 0, "munmap");
}

static void small_results_land_in_evicted_pages(void) {
    char *memory = map(BYTES);
    for (int round = 0; round < 3; round++) {
        fill(memory, BYTES, 7);
        churn();
        struct stat *status = (struct stat *)(memory + 4 * MIB);
        CHECK(stat("/", status) == 0 && S_ISDIR(status->st_mode), "stat");
        struct timespec *now = (struct timespec *)(memory + 12 * MIB);
        CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, now) == 0 && now->tv_sec < 100000, "clock_gettime");
        CHECK(getcwd(memory + 20 * MIB, PAGE) && memory[20 * MIB] == '/', "getcwd");
        struct pollfd *set = (struct pollfd *)(memory + 28 * MIB);
        *set = (struct pollfd){.fd = 1, .events = POLLOUT};
        CHECK(poll(set, 1, 0) >= 0, "poll");
        /* A path that crosses into an evicted page. */
        char *path = memory + 36 * MIB - 3;
        strcpy(path, "/proc/self/exe");
        churn();
        CHECK(access(path, R_OK) == 0, "access(%s)", path);
    }
    CHECK(munmap(memory, BYTES) == 0, "munmap");
}

static void bad_buffers_still_fail(void) {
    char *memory = map(BYTES);
    fill(memory, BYTES, 8);
    CHECK(mprotect(memory, MIB, PROT_READ) == 0 && munmap(memory + 2 * MIB, MIB) == 0, "mprotect");
    int file = new_file();
    write_all(file, memory + 4 * MIB, 4 * PAGE);
    errno = 0;
    CHECK(pread(file, memory, PAGE, 0) == -1 && errno == EFAULT, "read into read-only memory");
    errno = 0;
    CHECK(pread(file, memory + 2 * MIB, PAGE, 0) == -1 && errno == EFAULT, "read into nothing");
    errno = 0;
    CHECK(write(file, memory + 2 * MIB, PAGE) == -1 && errno == EFAULT, "write from nothing");
    check_filled(memory, 2 * MIB, 8, "after refusals");
    CHECK(close(file) == 0 && munmap(memory, BYTES) == 0, "munmap");
}

int main(void) {
    RUN(write_and_read_of_evicted_pages);
    RUN(unaligned_pread_touches_only_its_range);
    RUN(vectors_of_evicted_pages);
    RUN(pipe_carries_evicted_pages);
    RUN(socket_carries_evicted_pages);
    RUN(messages_with_evicted_headers);
    RUN(small_results_land_in_evicted_pages);
    RUN(bad_buffers_still_fail);
    return 0;
}
