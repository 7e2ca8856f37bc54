/* libc's functions with buffers in pages that were pushed out: contents, errors, stacks on the heap,
 * cancellation. */
#include "gate.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <ucontext.h>

enum { BYTES = 3 * 4096 + 77, ROUNDS = 400, PART = 64 << 10 };

static void scatter(char *at, size_t count, int seed) {
    for (size_t i = 0; i < count; i++) at[i] = (char)(mix((uint64_t)seed * 1000003u + i) & 0x7f);
}

static void check_scattered(const char *at, size_t count, int seed, const char *what) {
    for (size_t i = 0; i < count; i++)
        CHECK(at[i] == (char)(mix((uint64_t)seed * 1000003u + i) & 0x7f), "%s: byte %zu", what, i);
}

/* The result of a call whose buffers were pushed out just before. */
#define OUT(call)                                                                                      \
    ({                                                                                                 \
        evict();                                                                                       \
        errno = 0;                                                                                     \
        call;                                                                                          \
    })

static int new_file(void) {
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(file >= 0, "open");
    return file;
}

static void files(void) {
    int file = new_file();
    char *from = place(1) - 100, *to = place(2) + 3;
    for (int seed = 0; seed < 4; seed++) {
        scatter(from, BYTES, seed);
        CHECK(OUT(write(file, from, BYTES)) == BYTES, "write");
        CHECK(OUT(pwrite(file, from, BYTES, 100000)) == BYTES, "pwrite");
        struct iovec parts[] = {{from, 1000}, {from + 1000, BYTES - 1000}};
        CHECK(OUT(pwritev(file, parts, 2, 200000)) == BYTES, "pwritev");
        CHECK(lseek(file, 0, SEEK_SET) == 0, "lseek");
        CHECK(OUT(read(file, to, BYTES)) == BYTES, "read");
        check_scattered(to, BYTES, seed, "read");
        CHECK(OUT(pread(file, to, BYTES, 100000)) == BYTES, "pread");
        check_scattered(to, BYTES, seed, "pread");
        struct iovec into[] = {{to + 50000, 2000}, {to, BYTES - 2000}};
        CHECK(OUT(preadv(file, into, 2, 200000)) == BYTES, "preadv");
        check_scattered(to + 50000, 2000, seed, "preadv, first part");
        CHECK(OUT(pread(file, to, BYTES, 200000 + BYTES - 10)) == 10, "a short read");
        CHECK(lseek(file, 0, SEEK_SET) == 0, "lseek");
    }
    CHECK(close(file) == 0, "close");
}

static void sockets(void) {
    int ends[2];
    char *from = place(3) + 4000, *to = place(4) + 4090;
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "socketpair");
    for (int seed = 10; seed < 14; seed++) {
        scatter(from, BYTES, seed);
        CHECK(OUT(send(ends[0], from, BYTES, 0)) == BYTES, "send");
        CHECK(OUT(sendto(ends[0], from, BYTES, 0, NULL, 0)) == BYTES, "sendto");
        CHECK(OUT(recv(ends[1], to, BYTES, 0)) == BYTES, "recv");
        check_scattered(to, BYTES, seed, "recv");
        socklen_t *length = (socklen_t *)(place(5) + 4094 * 8);
        struct sockaddr_un *who = (struct sockaddr_un *)(place(6) + 4096 - 2);
        *length = sizeof *who;
        CHECK(OUT(recvfrom(ends[1], to, BYTES, 0, (struct sockaddr *)who, length)) == BYTES, "recvfrom");
        check_scattered(to, BYTES, seed, "recvfrom");
        CHECK(*length <= sizeof *who, "length");
        struct iovec part = {from, BYTES}, into = {to, BYTES};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1},
            reply = {.msg_iov = &into, .msg_iovlen = 1};
        CHECK(OUT(sendmsg(ends[0], &message, 0)) == BYTES && OUT(recvmsg(ends[1], &reply, 0)) == BYTES,
            "sendmsg");
        check_scattered(to, BYTES, seed, "recvmsg");
    }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

/* A table at every distance from the end of a stack page, with buffers managed and not. */
static void tables_anywhere_on_the_stack(void) {
    int file = new_file();
    char room[3 * 4096], plain[16], back[200];
    scatter(plain, sizeof plain, 70);
    for (size_t at = 0; at < 2 * PAGE; at += 40) {
        struct iovec *parts = (struct iovec *)(((uintptr_t)room + at + 7) & ~(uintptr_t)7);
        scatter(place(1), 100, (int)at);
        parts[0] = (struct iovec){place(1), 100}, parts[1] = (struct iovec){plain, sizeof plain};
        if (at % 400 == 0) evict();
        CHECK(madvise(place(1), PAGE, MADV_PAGEOUT) == 0 || errno == EINVAL, "madvise");
        CHECK(pwritev(file, parts, 2, 0) == 116 && pread(file, back, sizeof back, 0) == 116, "pwritev");
        check_scattered(back, 100, (int)at, "the managed part");
        check_scattered(back + 100, sizeof plain, 70, "the other part");
        parts[0].iov_base = plain, parts[0].iov_len = 5;
        CHECK(pwritev(file, parts, 2, 0) == 21 && pread(file, back, 21, 0) == 21, "pwritev");
        check_scattered(back + 5, sizeof plain, 70, "no managed part");
    }
    CHECK(close(file) == 0, "close");
}

static void errors(void) {
    int file = new_file();
    char *buffer = place(1);
    CHECK(OUT(read(-1, buffer, 10)) == -1 && errno == EBADF, "read");
    CHECK(OUT(write(-1, buffer, 10)) == -1 && errno == EBADF, "write");
    CHECK(OUT(pread(file, buffer, 10, -1)) == -1 && errno == EINVAL, "pread");
    CHECK(OUT(recv(file, buffer, 10, 0)) == -1 && errno == ENOTSOCK, "recv");
    CHECK(OUT(read(file, buffer, 0)) == 0 && errno == 0, "an empty read");
    CHECK(write(file, "x", 1) == 1 && lseek(file, 0, SEEK_SET) == 0, "write");
    void *volatile nowhere = (void *)8;
    CHECK(read(file, nowhere, 1) == -1 && errno == EFAULT, "a bad buffer");
    CHECK(readv(file, nowhere, 1) == -1 && errno == EFAULT, "a bad table");
    char *hole = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED && mprotect(hole + PAGE, PAGE, PROT_NONE) == 0, "mmap");
    /* The table's last entry lies where nobody may read. */
    struct iovec *parts = (struct iovec *)(hole + PAGE) - 1;
    parts[0] = (struct iovec){buffer, 1};
    CHECK(readv(file, parts, 2) == -1 && errno == EFAULT, "a table that ends too early");
    CHECK(munmap(hole, 2 * PAGE) == 0 && close(file) == 0, "munmap");
}

/* Calls from a stack in managed memory, whose other pages are out. */
static ucontext_t here, there;
static int from_heap;

/* As OUT, but this stack stays where it is: nobody pushes out what it runs on. */
#define AWAY(call)                                                                                     \
    ({                                                                                                 \
        CHECK(madvise(buffer, MIB, MADV_PAGEOUT) == 0 || errno == EINVAL, "madvise");                  \
        call;                                                                                          \
    })

static void call_from_this_stack(void) {
    char *buffer = place(7);
    for (int seed = 30; seed < 34; seed++) {
        scatter(buffer, BYTES, seed);
        CHECK(AWAY(pwrite(from_heap, buffer, BYTES, 0)) == BYTES, "pwrite");
        struct iovec parts[] = {{buffer + 20000, BYTES - 5}, {buffer + 60000, 5}};
        CHECK(AWAY(preadv(from_heap, parts, 2, 0)) == BYTES, "preadv");
        check_scattered(buffer + 20000, BYTES - 5, seed, "preadv");
        CHECK(AWAY(pread(from_heap, buffer + 40000, BYTES, 0)) == BYTES, "pread");
        check_scattered(buffer + 40000, BYTES, seed, "pread");
    }
}

static void calls_come_from_stacks_on_the_heap(void) {
    from_heap = new_file();
    for (int round = 0; round < 8; round++) {
        CHECK(getcontext(&there) == 0, "getcontext");
        there.uc_stack.ss_sp = place(10 + round), there.uc_stack.ss_size = MIB, there.uc_link = &here;
        evict();
        makecontext(&there, call_from_this_stack, 0);
        CHECK(swapcontext(&here, &there) == 0, "swapcontext");
    }
    CHECK(close(from_heap) == 0, "close");
}

static int ends[2];
static sem_t started;
static int cleaned;

static void clean(void *argument) { cleaned += *(int *)argument; }

static void *read_for_ever(void *argument) {
    int one = 1;
    char *into = argument;
    pthread_cleanup_push(clean, &one);
    CHECK(sem_post(&started) == 0, "sem_post");
    for (;;) CHECK(read(ends[0], into, PART) > 0, "read");
    pthread_cleanup_pop(0);
    return NULL;
}

static void *read_once_uncancelled(void *argument) {
    int before;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0 && sem_post(&started) == 0,
        "sem_post");
    return (void *)read(ends[0], argument, PAGE);
}

/* A cancellation that comes before the call acts in it; other calls than cancellation points do not
 * notice. */
static void *cancelled_before_the_call(void *argument) {
    pthread_cancel(pthread_self());
    char *vector_at = argument;
    struct iovec mine = {vector_at, 8}, same = {vector_at + 64, 8};
    CHECK(process_vm_readv(getpid(), &mine, 1, &same, 1, 0) == 8, "process_vm_readv");
    (void)!write(ends[1], argument, 1);
    CHECK(0, "write went on");
    return NULL;
}

static void threads_are_cancelled(void) {
    CHECK(pipe(ends) == 0 && sem_init(&started, 0, 0) == 0, "pipe");
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        void *value = NULL;
        if (round < 40) evict();
        /* All places, one part after the other: more pages than fit, if they stayed pinned. */
        char *into = place(round % PLACES) + round / PLACES % 15 * PART;
        CHECK(pthread_create(&thread, NULL, read_for_ever, into) == 0, "pthread_create");
        CHECK(sem_wait(&started) == 0, "sem_wait");
        if (round % 2) {
            /* Empty again: it waits, or will soon. */
            CHECK(write(ends[1], "abc", 3) == 3, "write");
            for (int waiting = 1; waiting;) CHECK(ioctl(ends[0], FIONREAD, &waiting) == 0, "FIONREAD");
        }
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &value) == 0 && value == PTHREAD_CANCELED,
            "cancelled");
        CHECK(cleaned == round + 1, "cleaned %d", cleaned);
    }
    pthread_t thread;
    void *value = NULL;
    CHECK(pthread_create(&thread, NULL, read_once_uncancelled, place(1)) == 0 && sem_wait(&started) == 0,
        "sem_wait");
    CHECK(pthread_cancel(thread) == 0 && write(ends[1], "abcd", 4) == 4, "write");
    CHECK(pthread_join(thread, &value) == 0 && value == (void *)4 && memcmp(place(1), "abcd", 4) == 0,
        "not cancelled");
    CHECK(pthread_create(&thread, NULL, cancelled_before_the_call, place(2)) == 0, "pthread_create");
    CHECK(pthread_join(thread, &value) == 0 && value == PTHREAD_CANCELED, "cancelled before");
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

int main(void) {
    take_places();
    GROUP(files);
    GROUP(sockets);
    GROUP(tables_anywhere_on_the_stack);
    GROUP(errors);
    GROUP(calls_come_from_stacks_on_the_heap);
    GROUP(threads_are_cancelled);
    return 0;
}
