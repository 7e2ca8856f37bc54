/* Small reads and writes that wait while everything else is in use: their buffers stay, whatever happens to
 * their threads meanwhile: handlers with calls of their own, jumps out of handlers, forks, cancellation. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <ucontext.h>

enum { THREADS = 8, ROUNDS = 60 };
#define OTHERS (48 * MIB)
#define BUFFER (16 * PAGE)

static atomic_size_t laps;
static atomic_int finished;
static pthread_t pusher;

/* Touches more than there is room for, again and again: what nobody uses meanwhile goes out. */
static void *push(void *argument) {
    char *others = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    while (!finished) {
        for (size_t at = 0; at < OTHERS; at += PAGE) ++*(volatile uint32_t *)(others + at);
        ++laps;
    }
    return NULL;
}

static void wait_for_laps(size_t count) {
    for (size_t from = laps; laps < from + count;) usleep(100);
}

/* A buffer that begins in the middle of a page, on pages of its own amid memory that nobody uses: they are
 * there when this returns, and nothing else brings them in. */
static char *new_buffer(void) { return map(4 * MIB) + 2 * MIB + 100; }

static void bring_in(char *buffer) {
    for (size_t at = 0; at <= BUFFER; at += PAGE) *(volatile char *)(buffer + at) = 1;
}

static void drop_buffer(char *buffer) { CHECK(munmap(buffer - 100 - 2 * MIB, 4 * MIB) == 0, "munmap"); }

static unsigned char byte_of(size_t round, size_t at) { return (unsigned char)mix(round * 77777 + at / 8); }

static void set_bytes(char *bytes, size_t count, size_t round) {
    for (size_t i = 0; i < count; i++) bytes[i] = (char)byte_of(round, i);
}

static void check_bytes(const char *bytes, size_t count, size_t round, const char *what) {
    for (size_t i = 0; i < count; i++)
        CHECK((unsigned char)bytes[i] == byte_of(round, i), "%s: byte %zu in round %zu", what, i, round);
}

/* --- calls that wait ------------------------------------------------------------------------------ */

struct waiter {
    int number, pair[2];
    pthread_t thread;
    /* Rounds that the waiting side has begun, and those that it has completed. */
    atomic_size_t begun, done;
};

static void wait_until(atomic_size_t *count, size_t least) {
    while (*count < least) usleep(50);
}

static void *read_in_rounds(void *argument) {
    struct waiter *w = argument;
    char *buffer = new_buffer();
    for (size_t round = 0; round < ROUNDS; round++) {
        bring_in(buffer);
        w->begun++;
        ssize_t got = w->number % 2 ? recv(w->pair[0], buffer, BUFFER, MSG_WAITALL)
                                    : read(w->pair[0], buffer, BUFFER);
        CHECK(got == (ssize_t)BUFFER, "read of round %zu: %zd", round, got);
        check_bytes(buffer, BUFFER, round, "read");
        w->done++;
    }
    drop_buffer(buffer);
    return NULL;
}

static void *write_in_rounds(void *argument) {
    struct waiter *w = argument;
    char *buffer = new_buffer();
    for (size_t round = 0; round < ROUNDS; round++) {
        set_bytes(buffer, BUFFER, round);
        w->begun++;
        ssize_t put = w->number % 2 ? send(w->pair[0], buffer, BUFFER, 0) : write(w->pair[0], buffer, BUFFER);
        CHECK(put == (ssize_t)BUFFER, "write of round %zu: %zd", round, put);
        w->done++;
    }
    drop_buffer(buffer);
    return NULL;
}

/* As a message at once, so that the other side has all or nothing; from memory that is no heap. */
static void give(int file, size_t count, size_t round) {
    static char bytes[BUFFER];
    set_bytes(bytes, count, round);
    CHECK(write(file, bytes, count) == (ssize_t)count, "write");
}

static void reads_of_several_threads_wait_while_everything_else_is_touched(void) {
    struct waiter waiters[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        waiters[i].number = i;
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, waiters[i].pair) == 0, "socketpair");
        CHECK(pthread_create(&waiters[i].thread, NULL, read_in_rounds, &waiters[i]) == 0, "pthread_create");
    }
    for (size_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++) wait_until(&waiters[i].begun, round + 1);
        if (round % 10 == 0) wait_for_laps(2);
        for (int i = 0; i < THREADS; i++) give(waiters[i].pair[1], BUFFER, round);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(waiters[i].thread, NULL) == 0, "pthread_join");
        CHECK(close(waiters[i].pair[0]) == 0 && close(waiters[i].pair[1]) == 0, "close");
    }
}

static void writes_of_several_threads_wait_while_everything_else_is_touched(void) {
    struct waiter waiters[THREADS] = {0};
    static char bytes[BUFFER];
    for (int i = 0; i < THREADS; i++) {
        int little = 4096;
        waiters[i].number = i;
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, waiters[i].pair) == 0, "socketpair");
        CHECK(setsockopt(waiters[i].pair[0], SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0,
            "SO_SNDBUF");
        CHECK(pthread_create(&waiters[i].thread, NULL, write_in_rounds, &waiters[i]) == 0, "pthread_create");
    }
    for (size_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++) wait_until(&waiters[i].begun, round + 1);
        if (round % 10 == 0) wait_for_laps(2);
        for (int i = 0; i < THREADS; i++) {
            CHECK(recv(waiters[i].pair[1], bytes, BUFFER, MSG_WAITALL) == (ssize_t)BUFFER, "recv");
            check_bytes(bytes, BUFFER, round, "written");
        }
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(waiters[i].thread, NULL) == 0, "pthread_join");
        CHECK(close(waiters[i].pair[0]) == 0 && close(waiters[i].pair[1]) == 0, "close");
    }
}

/* --- what happens to a thread meanwhile ------------------------------------------------------------ */

static int inner[2];
static char *inner_buffer;
static __thread sigjmp_buf out;
static __thread ucontext_t out_context;
static __thread volatile int came_back;
/* 1: by siglongjmp, 2: by setcontext. */
static volatile sig_atomic_t jumps, forks;
static atomic_size_t handled;
static atomic_int forked_child;

/* Calls of its own, with everything touched in between; then back, out by a jump, or twice. */
static void on_signal(int number) {
    (void)number;
    int saved = errno;
    for (int i = 0; i < 3; i++) {
        set_bytes(inner_buffer, 300, (size_t)i);
        CHECK(write(inner[1], inner_buffer, 300) == 300, "write in a handler");
        memset(inner_buffer, 0, 300);
        if (i == 1 && !forked_child) wait_for_laps(1);
        CHECK(read(inner[0], inner_buffer, 300) == 300, "read in a handler");
        check_bytes(inner_buffer, 300, (size_t)i, "a handler's");
    }
    if (forks) {
        forks = 0;
        forked_child = fork();
        CHECK(forked_child >= 0, "fork");
        if (forked_child == 0) forked_child = -1;
    }
    handled++;
    errno = saved;
    if (jumps == 1) siglongjmp(out, 1);
    if (jumps == 2) {
        came_back = 1;
        setcontext(&out_context);
    }
}

struct target {
    int pair[2];
    atomic_size_t begun;
    int flags;
    const char *what;
};

static void set_handler(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
}

static void *read_under_signals(void *argument) {
    struct target *t = argument;
    char *buffer = new_buffer();
    for (size_t round = 0; round < ROUNDS / 4; round++) {
        bring_in(buffer);
        t->begun++;
        ssize_t got;
        do {
            got = read(t->pair[0], buffer, BUFFER);
        } while (got < 0 && errno == EINTR && !(t->flags & SA_RESTART));
        CHECK(got == (ssize_t)BUFFER, "%s: round %zu: %zd", t->what, round, got);
        check_bytes(buffer, BUFFER, round, t->what);
    }
    drop_buffer(buffer);
    return NULL;
}

static void under_signals(int flags, const char *what) {
    struct target t = {.flags = flags, .what = what};
    pthread_t thread;
    set_handler(flags);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, t.pair) == 0, "socketpair");
    CHECK(pthread_create(&thread, NULL, read_under_signals, &t) == 0, "pthread_create");
    for (size_t round = 0; round < ROUNDS / 4; round++) {
        wait_until(&t.begun, round + 1);
        size_t before = handled;
        CHECK(pthread_kill(thread, SIGUSR1) == 0, "pthread_kill");
        wait_until(&handled, before + 1);
        if (round % 4 == 0) wait_for_laps(1);
        give(t.pair[1], BUFFER, round);
    }
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    CHECK(close(t.pair[0]) == 0 && close(t.pair[1]) == 0, "close");
}

static void a_read_goes_on_after_a_handler_with_calls_of_its_own(void) {
    under_signals(SA_RESTART, "restarted");
}

static void a_read_begins_again_after_a_handler_with_calls_of_its_own(void) {
    under_signals(0, "interrupted");
}

static void *jump_out_of_reads(void *argument) {
    struct target *t = argument;
    char *buffer = new_buffer();
    char room[64 << 10];
    stack_t alternate = {.ss_sp = room, .ss_size = sizeof room}, before;
    if (t->flags & SA_ONSTACK) CHECK(sigaltstack(&alternate, &before) == 0, "sigaltstack");
    for (volatile size_t round = 0; round < ROUNDS / 4; round++) {
        bring_in(buffer);
        came_back = 0;
        CHECK(getcontext(&out_context) == 0, "getcontext");
        if (!came_back && sigsetjmp(out, 1) == 0) {
            t->begun++;
            (void)!read(t->pair[0], buffer, BUFFER);
            CHECK(0, "the read returned");
        }
        /* Calls after the jump. */
        for (int i = 0; i < 200; i++) {
            CHECK(write(inner[1], buffer + 50, 64) == 64, "write after a jump");
            CHECK(read(inner[0], buffer, 64) == 64, "read after a jump");
        }
    }
    if (t->flags & SA_ONSTACK) CHECK(sigaltstack(&before, NULL) == 0, "sigaltstack");
    drop_buffer(buffer);
    return NULL;
}

static void out_of_reads(int way, int flags) {
    struct target t = {.flags = flags};
    pthread_t thread;
    set_handler(flags);
    jumps = way;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, t.pair) == 0, "socketpair");
    CHECK(pthread_create(&thread, NULL, jump_out_of_reads, &t) == 0, "pthread_create");
    for (size_t round = 0; round < ROUNDS / 4; round++) {
        wait_until(&t.begun, round + 1);
        usleep(500);
        CHECK(pthread_kill(thread, SIGUSR1) == 0, "pthread_kill");
    }
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    jumps = 0;
    CHECK(close(t.pair[0]) == 0 && close(t.pair[1]) == 0, "close");
}

static void jumps_out_of_reads_leave_threads_as_they_were(void) {
    out_of_reads(1, 0);
    out_of_reads(1, SA_ONSTACK);
    out_of_reads(2, 0);
}

/* --- forks ------------------------------------------------------------------------------------------ */

static void *read_once(void *argument) {
    struct target *t = argument;
    char *buffer = new_buffer();
    bring_in(buffer);
    t->begun++;
    ssize_t got = read(t->pair[0], buffer, BUFFER);
    CHECK(got == (ssize_t)BUFFER, "%s: %zd", t->what, got);
    check_bytes(buffer, BUFFER, 5, t->what);
    /* The child that a handler made has come here as well, as its only thread. */
    if (forked_child == -1) {
        char *own = map(8 * MIB);
        fill(own, 8 * MIB, 3);
        for (int i = 0; i < 1000; i++)
            CHECK(write(inner[1], buffer, 64) == 64 && read(inner[0], buffer, 64) == 64, "a child's calls");
        check_filled(own, 8 * MIB, 3, "a child's");
        _exit(0);
    }
    drop_buffer(buffer);
    return NULL;
}

static void a_fork_while_another_thread_reads_changes_nothing_for_it(void) {
    for (int round = 0; round < 8; round++) {
        struct target t = {.what = "read over a fork"};
        pthread_t thread;
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, t.pair) == 0, "socketpair");
        CHECK(pthread_create(&thread, NULL, read_once, &t) == 0, "pthread_create");
        wait_until(&t.begun, 1);
        pid_t child = fork();
        if (child == 0) {
            int ends[2];
            char *mine = new_buffer();
            CHECK(pipe(ends) == 0, "pipe");
            for (int i = 0; i < 500; i++)
                CHECK(write(ends[1], mine, 900) == 900 && read(ends[0], mine, 900) == 900, "a child's calls");
            _exit(0);
        }
        check_child(child, "fork");
        wait_for_laps(1);
        give(t.pair[1], BUFFER, 5);
        CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
        CHECK(close(t.pair[0]) == 0 && close(t.pair[1]) == 0, "close");
    }
}

static void a_handler_forks_and_both_reads_go_on(void) {
    for (int round = 0; round < 4; round++) {
        struct target t = {.what = "read by parent and child"};
        pthread_t thread;
        set_handler(SA_RESTART);
        forked_child = 0;
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, t.pair) == 0, "socketpair");
        CHECK(pthread_create(&thread, NULL, read_once, &t) == 0, "pthread_create");
        wait_until(&t.begun, 1);
        size_t before = handled;
        forks = 1;
        CHECK(pthread_kill(thread, SIGUSR1) == 0, "pthread_kill");
        wait_until(&handled, before + 1);
        wait_for_laps(1);
        give(t.pair[1], BUFFER, 5);
        give(t.pair[1], BUFFER, 5);
        CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
        check_child(forked_child, "fork in a handler");
        CHECK(close(t.pair[0]) == 0 && close(t.pair[1]) == 0, "close");
    }
}

/* --- ends ------------------------------------------------------------------------------------------- */

static void *read_for_ever(void *argument) {
    struct target *t = argument;
    char *buffer = new_buffer();
    bring_in(buffer);
    t->begun++;
    (void)!read(t->pair[0], buffer, BUFFER);
    CHECK(0, "the read returned");
    return NULL;
}

static void threads_end_in_reads_and_others_come(void) {
    struct target t = {0};
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, t.pair) == 0, "socketpair");
    for (size_t round = 0; round < 600; round++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, read_for_ever, &t) == 0, "pthread_create");
        wait_until(&t.begun, round + 1);
        if (round % 100 == 0) wait_for_laps(1);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "pthread_cancel");
        CHECK(result == PTHREAD_CANCELED, "not cancelled in round %zu", round);
    }
    CHECK(close(t.pair[0]) == 0 && close(t.pair[1]) == 0, "close");
}

static void *read_what_goes_away(void *argument) {
    struct target *t = argument;
    errno = 0;
    t->begun++;
    ssize_t got = read(t->pair[0], inner_buffer, BUFFER);
    CHECK(got == -1 && errno == EFAULT, "%s: %zd", t->what, got);
    return NULL;
}

static void a_buffer_that_is_unmapped_or_closed_meanwhile_is_a_bad_one(void) {
    for (int way = 0; way < 3; way++) {
        struct target t = {.what = way == 0 ? "unmapped" : way == 1 ? "closed" : "moved"};
        char *before = inner_buffer;
        pthread_t thread;
        inner_buffer = new_buffer();
        bring_in(inner_buffer);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, t.pair) == 0, "socketpair");
        CHECK(pthread_create(&thread, NULL, read_what_goes_away, &t) == 0, "pthread_create");
        wait_until(&t.begun, 1);
        usleep(20000);
        char *start = inner_buffer - 100 - 2 * MIB;
        if (way == 0)
            CHECK(munmap(start, 4 * MIB) == 0, "munmap");
        else if (way == 1)
            CHECK(mprotect(start, 4 * MIB, PROT_NONE) == 0, "mprotect");
        else
            CHECK(mremap(start, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, map(4 * MIB)) != MAP_FAILED,
                "mremap");
        give(t.pair[1], BUFFER, 5);
        CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
        CHECK(close(t.pair[0]) == 0 && close(t.pair[1]) == 0, "close");
        inner_buffer = before;
    }
}

/* Many that do not wait: the usual case. */
static void thousands_of_small_calls_carry_the_right_bytes(void) {
    char *buffer = new_buffer();
    for (size_t round = 0; round < 20000; round++) {
        size_t count = 1 + mix(round) % 900, from = mix(round + 9) % 4000;
        set_bytes(buffer + from, count, round);
        CHECK(write(inner[1], buffer + from, count) == (ssize_t)count, "write");
        CHECK(read(inner[0], buffer + 8 * PAGE - from, count) == (ssize_t)count, "read");
        check_bytes(buffer + 8 * PAGE - from, count, round, "passed on");
    }
    drop_buffer(buffer);
}

int main(void) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, inner) == 0, "socketpair");
    inner_buffer = new_buffer();
    CHECK(pthread_create(&pusher, NULL, push, map(OTHERS)) == 0, "pthread_create");
    RUN(reads_of_several_threads_wait_while_everything_else_is_touched);
    RUN(writes_of_several_threads_wait_while_everything_else_is_touched);
    RUN(a_read_goes_on_after_a_handler_with_calls_of_its_own);
    RUN(a_read_begins_again_after_a_handler_with_calls_of_its_own);
    RUN(jumps_out_of_reads_leave_threads_as_they_were);
    RUN(a_fork_while_another_thread_reads_changes_nothing_for_it);
    RUN(a_handler_forks_and_both_reads_go_on);
    RUN(threads_end_in_reads_and_others_come);
    RUN(a_buffer_that_is_unmapped_or_closed_meanwhile_is_a_bad_one);
    RUN(thousands_of_small_calls_carry_the_right_bytes);
    finished = 1;
    CHECK(pthread_join(pusher, NULL) == 0, "pthread_join");
    return 0;
}
