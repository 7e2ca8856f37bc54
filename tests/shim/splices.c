/* vmsplice(2) of memory that comes and goes: short counts, full pipes, both directions, errors; what a pipe
 * was lent stays as it was while everything is pushed out. */
#include "gate.h"

#include <fcntl.h>
#include <sys/ioctl.h>

static int ends[2];

static void open_pipe(void) { CHECK(pipe(ends) == 0, "pipe"); }

static void close_pipe(void) { CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close"); }

static int held(void) {
    int bytes = -1;
    CHECK(ioctl(ends[0], FIONREAD, &bytes) == 0, "FIONREAD");
    return bytes;
}

/* Lends a range that was pushed out just before. */
static ssize_t lend(char *at, size_t bytes, unsigned flags) {
    struct iovec part = {at, bytes};
    evict();
    errno = 0;
    return vmsplice(ends[1], &part, 1, flags);
}

static void drain_and_check(const char *from, size_t bytes) {
    static char back[PAGE];
    for (size_t done = 0; done < bytes;) {
        size_t most = bytes - done < PAGE ? bytes - done : PAGE;
        ssize_t got = read(ends[0], back, most);
        CHECK(got > 0 && memcmp(back, from + done, (size_t)got) == 0, "byte %zu of %zu", done, bytes);
        done += (size_t)got;
    }
    CHECK(held() == 0, "something is left");
}

static void a_full_pipe_gives_a_short_count(void) {
    open_pipe();
    for (int n = 1; n < 4; n++) {
        fill(place(n), MIB, (uint64_t)n * 100);
        char *from = place(n) + (n - 1) * 1000;
        ssize_t lent = lend(from, MIB / 2, 0);
        show("lent", lent);
        CHECK(lent > 0 && held() == lent, "held %d", held());
        CHECK(lend(from, 100, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN, "a full pipe");
        churn();
        drain_and_check(from, (size_t)lent);
    }
    close_pipe();
}

static void a_larger_pipe_takes_more(void) {
    open_pipe();
    int size = fcntl(ends[1], F_SETPIPE_SZ, 256 << 10);
    show("size", size);
    ssize_t lent = lend(place(1) + 17, MIB - PAGE, 0);
    show("lent", lent);
    drain_and_check(place(1) + 17, (size_t)lent);
    /* Each part takes a place of its own, however short. */
    struct iovec parts[40];
    for (int n = 0; n < 40; n++)
        parts[n] = (struct iovec){place(2 + n % 3) + (size_t)n * 3 * PAGE + 4090, (size_t)n % 5 * 3};
    evict();
    lent = vmsplice(ends[1], parts, 40, 0);
    show("lent in parts", lent);
    for (int n = 0; n < 40; n++) {
        char back[16];
        if (parts[n].iov_len == 0) continue;
        CHECK(read(ends[0], back, parts[n].iov_len) == (ssize_t)parts[n].iov_len, "part %d", n);
        CHECK(memcmp(back, parts[n].iov_base, parts[n].iov_len) == 0, "part %d", n);
    }
    close_pipe();
}

static void spliced_on_by_the_same_thread(void) {
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(file >= 0, "open");
    open_pipe();
    fill(place(3), MIB, 9);
    size_t done = 0, calls = 0;
    while (done < MIB) {
        ssize_t lent = lend(place(3) + done, MIB - done, calls % 2 ? SPLICE_F_GIFT : 0);
        CHECK(lent > 0, "vmsplice");
        for (ssize_t left = lent; left > 0;) {
            ssize_t moved = splice(ends[0], NULL, file, NULL, (size_t)left, 0);
            CHECK(moved > 0, "splice");
            left -= moved;
        }
        done += (size_t)lent, calls++;
    }
    show("calls", (long)calls);
    static char back[PAGE];
    for (size_t at = 0; at < MIB; at += PAGE) {
        CHECK(pread(file, back, PAGE, (off_t)at) == (ssize_t)PAGE, "pread");
        CHECK(page_is(back, 9 + at / PAGE), "page %zu", at / PAGE);
    }
    CHECK(close(file) == 0, "close");
    close_pipe();
}

static void what_was_lent_stays_while_memory_goes(void) {
    open_pipe();
    for (int round = 0; round < 3; round++) {
        char *other = map(2 * MIB);
        fill(other, 2 * MIB, 40);
        ssize_t lent = lend(other + 5 * PAGE, 16 * PAGE, 0);
        CHECK(lent == 16 * (ssize_t)PAGE, "lent %zd", lent);
        churn();
        CHECK(munmap(other, 2 * MIB) == 0, "munmap");
        churn();
        static char back[PAGE];
        for (int n = 0; n < 16; n++) {
            CHECK(read(ends[0], back, PAGE) == (ssize_t)PAGE, "read");
            CHECK(page_is(back, 45 + (uint64_t)n), "round %d, page %d", round, n);
        }
    }
    close_pipe();
}

static void by_the_system_call(void) {
    open_pipe();
    fill(place(4), MIB, 70);
    struct iovec part = {place(4) + 2000, MIB / 2};
    evict();
    long lent = syscall(SYS_vmsplice, ends[1], &part, 1L, 0);
    show("lent", lent);
    churn();
    drain_and_check(place(4) + 2000, (size_t)lent);
    lent = CALL(vmsplice, ends[1], vector(5, 6, MIB / 8), 3, 0);
    show("lent", lent);
    CHECK(evicted(SYS_vmsplice, ends[1], vector(5, 6, 10), 3, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN,
        "full");
    churn();
    drain_and_check(place(6) + 20 * PAGE - 100, (size_t)lent);
    close_pipe();
}

static void from_a_pipe_to_memory(void) {
    open_pipe();
    static char bytes[3000];
    for (size_t n = 0; n < sizeof bytes; n++) bytes[n] = (char)mix(n);
    struct iovec into[2] = {{place(7) + 4000, 1000}, {place(8) + 4000, 5000}};
    evict();
    CHECK(vmsplice(ends[0], into, 2, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN, "empty");
    CHECK(write(ends[1], bytes, sizeof bytes) == sizeof bytes, "write");
    evict();
    show("got", vmsplice(ends[0], into, 2, 0));
    CHECK(memcmp(place(7) + 4000, bytes, 1000) == 0 && memcmp(place(8) + 4000, bytes + 1000, 2000) == 0,
        "contents");
    CHECK(close(ends[1]) == 0, "close");
    show("at the end", vmsplice(ends[0], into, 2, 0));
    CHECK(close(ends[0]) == 0, "close");
}

static void refusals(void) {
    open_pipe();
    struct iovec part = {place(1), 100}, bad[2] = {{place(1), 100}, {(void *)8, 100}};
    CHECK(lend(place(1), 0, 0) == 0, "nothing");
    CHECK(lend(place(1), 100, 0x80) == -1 && errno == EINVAL, "flags");
    evict();
    show("before a bad part", vmsplice(ends[1], bad, 2, 0));
    CHECK(vmsplice(ends[1], bad + 1, 1, 0) == -1 && errno == EFAULT, "a bad part");
    CHECK(vmsplice(ends[1], (struct iovec *)8, 1, 0) == -1 && errno == EFAULT, "a bad table");
    CHECK(vmsplice(ends[1], &part, 2000, 0) == -1 && errno == EINVAL, "too many");
    char *gone = map(2 * MIB);
    gone[MIB] = 1;
    CHECK(munmap(gone + MIB, MIB) == 0, "munmap");
    CHECK(lend(gone + MIB, 100, 0) == -1 && errno == EFAULT, "unmapped");
    show("up to what is unmapped", lend(gone + MIB - 100, 200, 0));
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(vmsplice(file, &part, 1, 0) == -1 && errno == EBADF, "no pipe");
    CHECK(vmsplice(-1, &part, 1, 0) == -1 && errno == EBADF, "no file");
    CHECK(close(file) == 0 && close(ends[0]) == 0, "close");
    CHECK(signal(SIGPIPE, SIG_IGN) == SIG_DFL, "signal");
    CHECK(lend(place(1), 100, 0) == -1 && errno == EPIPE, "no reader");
    CHECK(close(ends[1]) == 0 && munmap(gone, MIB) == 0, "close");
}

/* With O_NONBLOCK on the pipe itself a full pipe is still waited for: only the flag of the call counts. */
static void the_mode_of_the_pipe_does_not_count(void) {
    open_pipe();
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0, "F_SETFL");
    ssize_t lent = lend(place(9), 64 * PAGE, 0);
    CHECK(lent > 0, "vmsplice");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char back[PAGE];
        usleep(50000);
        for (ssize_t n = 0; n < lent; n += PAGE) CHECK(read(ends[0], back, PAGE) == (ssize_t)PAGE, "read");
        _exit(0);
    }
    ssize_t second = lend(place(9), 100, 0);
    show("waited, and lent", second);
    check_child(child, "reader");
    close_pipe();
}

int main(void) {
    churn(); /* large by now: all places are alike */
    take_places();
    GROUP(a_full_pipe_gives_a_short_count);
    GROUP(a_larger_pipe_takes_more);
    GROUP(spliced_on_by_the_same_thread);
    GROUP(what_was_lent_stays_while_memory_goes);
    GROUP(by_the_system_call);
    GROUP(from_a_pipe_to_memory);
    GROUP(the_mode_of_the_pipe_does_not_count);
    GROUP(refusals);
    return 0;
}
