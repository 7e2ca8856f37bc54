/* A process's own memory by other ways than its addresses: process_vm_readv(2), /proc/self/mem; and another
 * process's into memory that was pushed out. */
#include "gate.h"

#include <fcntl.h>
#include <pthread.h>

/* More than the budget. */
enum { LARGE = 40 << 20 };

static char *one, *two;

static ssize_t copy(int writes, pid_t pid, char *local, char *remote, size_t bytes, int parts) {
    static struct iovec here[64], there[64];
    CHECK(parts <= 32, "parts");
    for (int n = 0; n < parts; n++)
        here[n] = (struct iovec){local + bytes / (size_t)parts * (size_t)n, bytes / (size_t)parts};
    for (int n = 0; n < 2 * parts; n++)
        there[n] = (struct iovec){remote + bytes / (size_t)parts / 2 * (size_t)n, bytes / (size_t)parts / 2};
    size_t count = 2 * (size_t)parts;
    if (writes) return process_vm_writev(pid, here, (unsigned long)parts, there, count, 0);
    return process_vm_readv(pid, here, (unsigned long)parts, there, count, 0);
}

static void large_copies_within_the_process(void) {
    fill(one, LARGE, 3);
    CHECK(copy(0, getpid(), two, one, LARGE, 1) == LARGE, "process_vm_readv");
    check_filled(two, LARGE, 3, "read");
    fill(one, LARGE, 1000000);
    CHECK(copy(1, getpid(), one, two, LARGE, 32) == LARGE, "process_vm_writev");
    check_filled(two, LARGE, 1000000, "written");
    churn();
    CHECK(copy(0, getpid(), two + 777, one, LARGE / 2, 5) == LARGE / 2, "unaligned");
    CHECK(memcmp(two + 777, one, LARGE / 2) == 0, "unaligned");
}

static void *copy_by_thread_id(void *unused) {
    (void)unused;
    CHECK(copy(0, (pid_t)syscall(SYS_gettid), two, one, 5 * PAGE, 1) == 5 * (ssize_t)PAGE,
        "by the id of a thread");
    return NULL;
}

static void threads_and_refusals(void) {
    fill(one, MIB, 8);
    churn();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, copy_by_thread_id, NULL) == 0 && pthread_join(thread, NULL) == 0,
        "thread");
    check_filled(two, 5 * PAGE, 8, "by a thread");
    char *gone = map(2 * MIB);
    fill(gone, MIB, 60);
    CHECK(munmap(gone + MIB, MIB) == 0, "munmap");
    churn();
    show("up to what is unmapped", copy(0, getpid(), two, gone, 2 * MIB, 1));
    check_filled(two, MIB, 60, "up to what is unmapped");
    CHECK(copy(0, getpid(), two, gone + MIB, PAGE, 1) == -1 && errno == EFAULT, "unmapped");
    CHECK(copy(0, getpid(), (char *)8, one, PAGE, 1) == -1 && errno == EFAULT, "nowhere");
    struct iovec part = {one, 10};
    CHECK(process_vm_readv(getpid(), &part, 1, &part, 1, 1) == -1 && errno == EINVAL, "flags");
    CHECK(process_vm_readv(getpid(), &part, 0, &part, 1, 0) == 0, "nothing");
    CHECK(process_vm_readv(getpid(), &part, 5000, &part, 1, 0) == -1 && errno == EINVAL, "too many");
    CHECK(munmap(gone, MIB) == 0, "munmap");
}

/* Memory that is nobody's but libc's and the kernel's. */
static char plain[4 << 20];

static void from_another_process(void) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    fill(plain, sizeof plain, 7);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        fill(plain, sizeof plain, 500000);
        CHECK(write(ends[1], "r", 1) == 1, "write");
        for (;;) pause();
    }
    char byte;
    CHECK(close(ends[1]) == 0 && child > 0 && read(ends[0], &byte, 1) == 1, "child");
    churn();
    ssize_t got = copy(0, child, two, plain, sizeof plain, 1);
    CHECK(got == (ssize_t)sizeof plain, "process_vm_readv of another: %zd", got);
    check_filled(two, sizeof plain, 500000, "another's");
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child, "kill");
    CHECK(close(ends[0]) == 0, "close");
}

static void through_the_file(const char *name) {
    int file = open(name, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0, "%s", name);
    off_t at = (off_t)(uintptr_t)one;
    fill(one, LARGE, 20);
    CHECK(pread(file, two, LARGE / 2, at) == LARGE / 2, "%s: pread", name);
    check_filled(two, LARGE / 2, 20, "pread");
    churn();
    CHECK(lseek(file, at + (off_t)PAGE, SEEK_SET) == at + (off_t)PAGE, "lseek");
    static char page[PAGE];
    for (int n = 1; n < 20; n++)
        CHECK(read(file, page, PAGE) == (ssize_t)PAGE && page_is(page, 20 + (uint64_t)n), "read");
    show("place", (long)(lseek(file, 0, SEEK_CUR) - at));
    fill(two, MIB, 90);
    churn();
    CHECK(lseek(file, at + 100, SEEK_SET) == at + 100, "lseek");
    CHECK(write(file, two, MIB) == (ssize_t)MIB && memcmp(one + 100, two, MIB) == 0, "write");
    churn();
    struct iovec parts[3] = {{two + 5, 3000}, {two + MIB, 0}, {page, PAGE}};
    CHECK(preadv(file, parts, 3, at + 8 * MIB + 9) == 3000 + (ssize_t)PAGE, "preadv");
    CHECK(memcmp(two + 5, one + 8 * MIB + 9, 3000) == 0 && memcmp(page, one + 8 * MIB + 3009, PAGE) == 0,
        "preadv");
    CHECK(lseek(file, at + 100, SEEK_SET) == at + 100, "lseek");
    churn();
    CHECK(writev(file, parts, 3) == 3000 + (ssize_t)PAGE && memcmp(one + 100, two + 5, 3000) == 0, "writev");
    CHECK(pwrite(file, two, PAGE, at + 9 * (off_t)MIB) == (ssize_t)PAGE, "pwrite");
    CHECK(memcmp(one + 9 * MIB, two, PAGE) == 0, "pwrite");
    CHECK(close(file) == 0, "close");
}

static void files_that_are_memory(void) {
    char name[64];
    through_the_file("/proc/self/mem");
    through_the_file("/proc/thread-self/mem");
    snprintf(name, sizeof name, "/proc/%d/mem", getpid());
    through_the_file(name);
    char *gone = map(2 * MIB);
    fill(gone, MIB, 60);
    CHECK(munmap(gone + MIB, MIB) == 0, "munmap");
    churn();
    int file = open("/proc/self/mem", O_RDWR);
    show("up to what is unmapped", pread(file, two, 2 * MIB, (off_t)(uintptr_t)gone));
    check_filled(two, MIB, 60, "up to what is unmapped");
    CHECK(pread(file, two, 10, (off_t)(uintptr_t)gone + (off_t)MIB) == -1 && errno == EIO, "unmapped");
    /* What may only be read is written all the same, as debuggers do. */
    CHECK(mprotect(gone, MIB, PROT_READ) == 0, "mprotect");
    churn();
    CHECK(pwrite(file, "new", 3, (off_t)(uintptr_t)gone + 5 * (off_t)PAGE) == 3,
        "pwrite to a read-only page");
    CHECK(memcmp(gone + 5 * PAGE, "new", 3) == 0, "contents");
    churn();
    CHECK(memcmp(gone + 5 * PAGE, "new", 3) == 0 && page_is(gone + 6 * PAGE, 66), "contents later");
    CHECK(close(file) == 0 && munmap(gone, MIB) == 0, "close");
}

int main(void) {
    one = map(LARGE + MIB), two = map(LARGE + MIB);
    RUN(large_copies_within_the_process);
    RUN(threads_and_refusals);
    RUN(from_another_process);
    RUN(files_that_are_memory);
    return 0;
}
