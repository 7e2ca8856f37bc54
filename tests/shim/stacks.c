/* Stacks in memory that gets evicted: coroutines of two kinds, threads on the program's own stacks, threads
 * on the smallest stacks, and what runs on them: system calls with buffers there, signal handlers, malloc. */
#include "handlers.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>

#ifndef __x86_64__
#error "switch_stack is written for x86-64: add your architecture"
#endif

enum { LARGE = 64 << 10, SMALL = 16 << 10 };

/* --- coroutines ---------------------------------------------------------------------------------- */

struct coroutine {
    ucontext_t context, caller;
    void *sp, *caller_sp;
    char *stack;
    size_t size;
    uint64_t seed;
    int by_hand, finished;
    void (*body)(struct coroutine *);
};

static struct coroutine *current;

/* Saves what a function must keep on the stack, stores the stack pointer and continues on the other stack. */
void switch_stack(void **save, void *other);
__asm__(".text\n.globl switch_stack\n.type switch_stack, @function\nswitch_stack:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        ".size switch_stack, .-switch_stack\n");

static void run_body(void) {
    struct coroutine *own = current;
    own->body(own);
    own->finished = 1;
    if (own->by_hand) {
        switch_stack(&own->sp, own->caller_sp);
        CHECK(0, "a finished coroutine was resumed");
    }
}

static void yield(struct coroutine *own) {
    if (own->by_hand)
        switch_stack(&own->sp, own->caller_sp);
    else
        CHECK(swapcontext(&own->context, &own->caller) == 0, "swapcontext");
}

static void resume(struct coroutine *other) {
    current = other;
    if (other->by_hand)
        switch_stack(&other->caller_sp, other->sp);
    else
        CHECK(swapcontext(&other->caller, &other->context) == 0, "swapcontext");
}

static void prepare(struct coroutine *made, size_t size, int by_hand, uint64_t seed,
    void (*body)(struct coroutine *)) {
    made->stack = malloc(size);
    CHECK(made->stack, "malloc of a stack");
    made->size = size;
    made->seed = seed;
    made->body = body;
    made->by_hand = by_hand;
    made->finished = 0;
    if (by_hand) {
        void **top = (void **)(((uintptr_t)made->stack + size) & ~(uintptr_t)15);
        *--top = NULL; /* where run_body would return to; keeps the stack aligned as after a call */
        *--top = (void *)run_body;
        for (int i = 0; i < 6; i++) *--top = NULL;
        made->sp = top;
    } else {
        CHECK(getcontext(&made->context) == 0, "getcontext");
        made->context.uc_stack.ss_sp = made->stack;
        made->context.uc_stack.ss_size = size;
        made->context.uc_link = &made->caller;
        makecontext(&made->context, run_body, 0);
    }
}

/* Compresses better than the pages: the pool holds the stacks beside them. */
static uint64_t stack_word(uint64_t seed, size_t i) { return i % 64 ? 7 : mix(seed * 512 + i); }

/* Puts `left` KiB of known bytes on the stack, yields at the deepest place, and checks them on the way up. */
static __attribute__((noinline)) void fill_stack(struct coroutine *own, int left) {
    volatile uint64_t words[128];
    for (size_t i = 0; i < 128; i++) words[i] = stack_word(own->seed + (uint64_t)left, i);
    if (left > 1)
        fill_stack(own, left - 1);
    else
        yield(own);
    for (size_t i = 0; i < 128; i++)
        CHECK(words[i] == stack_word(own->seed + (uint64_t)left, i), "coroutine %llu, KiB %d, word %zu",
            (unsigned long long)own->seed,
              left, i);
}

static void fill_and_yield(struct coroutine *own) {
    for (int round = 0; round < 2; round++) fill_stack(own, own->size == LARGE ? 48 : 8);
}

static void use_all(struct coroutine *all, size_t count, int step) {
    for (size_t i = 0; i < count; i++)
        CHECK(!all[i * 7919 % count].finished, "finished before step %d", step);
    for (size_t i = 0; i < count; i++) resume(&all[i * 7919 % count]);
}

/* The contexts lie in managed memory as well. */
static struct coroutine *make_coroutines(size_t count, int by_hand, void (*body)(struct coroutine *)) {
    struct coroutine *all = malloc(count * sizeof *all);
    CHECK(all, "malloc");
    memset(all, 0, count * sizeof *all);
    for (size_t i = 0; i < count; i++) prepare(&all[i], i % 10 == 9 ? SMALL : LARGE, by_hand, i * 1000, body);
    return all;
}

static void finish_all(struct coroutine *all, size_t count) {
    for (size_t i = 0; i < count; i++) {
        CHECK(all[i].finished, "coroutine %zu has not finished", i);
        free(all[i].stack);
    }
    free(all);
}

static void thousand_coroutines(int by_hand) {
    enum { COUNT = 1000 };
    struct coroutine *all = make_coroutines(COUNT, by_hand, fill_and_yield);
    use_all(all, COUNT, 0);
    walk();
    use_all(all, COUNT, 1);
    walk();
    use_all(all, COUNT, 2);
    finish_all(all, COUNT);
}

static void coroutines_of_libc_keep_their_stacks(void) { thousand_coroutines(0); }

static void coroutines_by_hand_keep_their_stacks(void) { thousand_coroutines(1); }

/* --- system calls from such stacks --------------------------------------------------------------- */

static int ends[2];

static __attribute__((noinline)) void call_with_stack_buffers(struct coroutine *own, int round) {
    char from[1024], into[1024];
    for (size_t i = 0; i < sizeof from; i++) from[i] = (char)(own->seed + i * 7 + (size_t)round);
    yield(own);
    write_all(ends[1], from, sizeof from);
    yield(own);
    read_all(ends[0], into, sizeof into);
    struct timeval now = {0, 0};
    struct timespec little = {0, 1000}, clock = {0, 0};
    CHECK(syscall(SYS_gettimeofday, &now, NULL) == 0 && now.tv_sec > 1000000000, "gettimeofday call");
    CHECK(gettimeofday(&now, NULL) == 0 && now.tv_sec > 1000000000, "gettimeofday");
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &clock) == 0 && clock.tv_sec < 100000, "clock_gettime");
    while (nanosleep(&little, &little) != 0) CHECK(errno == EINTR, "nanosleep");
    struct pollfd poller = {.fd = ends[1], .events = POLLOUT};
    int ready;
    do {
        ready = poll(&poller, 1, 0);
    } while (ready < 0 && errno == EINTR);
    CHECK(ready == 1 && poller.revents == POLLOUT, "poll");
    /* Others wrote before this one: their bytes, in the order of the queue, which is the order of
     * resuming. */
    for (size_t i = 0; i < sizeof into; i++)
        CHECK(into[i] == (char)(own->seed + i * 7 + (size_t)round), "byte %zu", i);
    struct iovec parts[2] = {{from, 512}, {from + 512, 512}}, back[2] = {{into + 512, 512}, {into, 512}};
    int pair[2];
    CHECK(pipe(pair) == 0 && writev(pair[1], parts, 2) == 1024 && readv(pair[0], back, 2) == 1024, "vectors");
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0, "close");
    CHECK(memcmp(into + 512, from, 512) == 0 && memcmp(into, from + 512, 512) == 0, "vectors");
}

static void call_and_yield(struct coroutine *own) {
    for (int round = 0; round < 3; round++) call_with_stack_buffers(own, round);
}

/* Forty coroutines use the calls while the others' stacks fill the memory. The pipe holds what forty
 * write. */
static void system_calls_from(int by_hand, size_t count) {
    enum { FILLERS = 700 };
    struct coroutine *fillers = make_coroutines(FILLERS, by_hand, fill_and_yield);
    struct coroutine *callers = make_coroutines(count, by_hand, call_and_yield);
    CHECK(pipe(ends) == 0, "pipe");
    for (size_t i = 0; i < FILLERS; i++) resume(&fillers[i]);
    for (int step = 0; step < 7; step++) {
        walk();
        for (size_t i = 0; i < count; i++) resume(&callers[i]);
    }
    for (int step = 0; step < 2; step++)
        for (size_t i = 0; i < FILLERS; i++) resume(&fillers[i]);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
    finish_all(callers, count);
    finish_all(fillers, FILLERS);
}

static void calls_have_buffers_on_evicted_stacks(void) {
    system_calls_from(0, 40);
    system_calls_from(1, 40);
}

static volatile sig_atomic_t ticks;

static void tick(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    int saved = errno;
    walk_in_handler();
    ticks++;
    errno = saved;
}

static __attribute__((noinline)) void deep_calls(struct coroutine *own, int left) {
    volatile uint64_t words[128];
    for (size_t i = 0; i < 128; i++) words[i] = stack_word(own->seed + (uint64_t)left, i);
    if (left % 8 == 0) yield(own);
    if (left > 1) deep_calls(own, left - 1);
    for (size_t i = 0; i < 128; i++)
        CHECK(words[i] == stack_word(own->seed + (uint64_t)left, i), "KiB %d, word %zu", left, i);
}

static void go_deep(struct coroutine *own) { deep_calls(own, 40); }

/* The handlers run on the coroutines' stacks: there is room for a frame of theirs in 64 KiB. */
static void signals_arrive_on(int by_hand) {
    enum { COUNT = 800 };
    struct coroutine *all = malloc(COUNT * sizeof *all);
    CHECK(all, "malloc");
    memset(all, 0, COUNT * sizeof *all);
    for (size_t i = 0; i < COUNT; i++) prepare(&all[i], LARGE, by_hand, i * 1000, go_deep);
    ticks = 0;
    set_handler(SIGALRM, tick, SA_RESTART);
    every(4000, 1);
    for (int step = 0; step < 6; step++)
        for (size_t i = 0; i < COUNT; i++) resume(&all[i * 7919 % COUNT]);
    while (ticks < 20) walk();
    every(0, 0);
    set_default(SIGALRM);
    finish_all(all, COUNT);
}

static void signals_arrive_on_evicted_stacks(void) {
    signals_arrive_on(0);
    signals_arrive_on(1);
}

static void raise_here(struct coroutine *own) {
    for (int round = 0; round < 4; round++) {
        fill_stack(own, 8); /* yields: the stack is evicted meanwhile */
        int before = ticks;
        CHECK(raise(SIGUSR1) == 0 && ticks == before + 1, "raise");
    }
}

static void handlers_run_on_the_stack_that_raised(void) {
    enum { COUNT = 20 };
    struct coroutine all[COUNT];
    set_handler(SIGUSR1, tick, 0);
    ticks = 0;
    for (size_t i = 0; i < COUNT; i++) prepare(&all[i], LARGE, i % 2, i, raise_here);
    for (int step = 0; step < 5; step++) {
        walk();
        for (size_t i = 0; i < COUNT; i++) resume(&all[i]);
    }
    CHECK(ticks == COUNT * 4, "%d handlers", ticks);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(all[i].finished, "coroutine %zu", i);
        free(all[i].stack);
    }
    set_default(SIGUSR1);
}

static void allocate_here(struct coroutine *own) {
    char *blocks[8];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 8; i++) {
            blocks[i] = malloc(2000 + i * 3000);
            CHECK(blocks[i], "malloc");
            memset(blocks[i], (int)(own->seed + i), 2000 + i * 3000);
        }
        yield(own);
        for (size_t i = 0; i < 8; i++) {
            CHECK(blocks[i][0] == (char)(own->seed + i)
                && blocks[i][1999 + i * 3000] == (char)(own->seed + i), "block %zu", i);
            free(blocks[i]);
        }
        char *mapping = map(16 * PAGE);
        fill(mapping, 16 * PAGE, own->seed);
        yield(own);
        check_filled(mapping, 16 * PAGE, own->seed, "mapped by a coroutine");
        CHECK(madvise(mapping, PAGE, MADV_DONTNEED) == 0 && page_is_zero(mapping), "madvise");
        CHECK(mprotect(mapping, PAGE, PROT_READ) == 0 && munmap(mapping, 16 * PAGE) == 0, "munmap");
    }
}

static void memory_is_managed_from_evicted_stacks(void) {
    enum { COUNT = 300 };
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        struct coroutine *all = malloc(COUNT * sizeof *all);
        CHECK(all, "malloc");
        memset(all, 0, COUNT * sizeof *all);
        for (size_t i = 0; i < COUNT; i++) prepare(&all[i], LARGE, by_hand, i, allocate_here);
        for (int step = 0; step < 7; step++) {
            if (step % 2) walk();
            for (size_t i = 0; i < COUNT; i++) resume(&all[i]);
        }
        finish_all(all, COUNT);
    }
}

static sigjmp_buf checkpoint;

static void jump_away(struct coroutine *own) {
    fill_stack(own, 8);
    siglongjmp(checkpoint, 1);
}

/* The coroutine leaves its stack by a jump and its stack is given back. */
static void jumps_leave_evicted_stacks(void) {
    for (volatile int round = 0; round < 50; round++) {
        struct coroutine one = {0};
        prepare(&one, LARGE, 1, (uint64_t)round, jump_away);
        resume(&one);
        walk();
        if (sigsetjmp(checkpoint, 1) == 0) {
            resume(&one);
            CHECK(0, "the coroutine came back");
        }
        free(one.stack);
    }
}

/* --- threads ------------------------------------------------------------------------------------- */

static __thread uint64_t of_this_thread;

static __attribute__((noinline)) void work_on_this_stack(uint64_t seed, int rounds) {
    of_this_thread = seed;
    volatile char mark[2048];
    for (size_t i = 0; i < sizeof mark; i++) mark[i] = (char)(seed + i);
    for (int round = 0; round < rounds; round++) {
        walk();
        struct timespec little = {0, 20000};
        while (nanosleep(&little, &little) != 0) CHECK(errno == EINTR, "nanosleep");
        for (size_t i = 0; i < sizeof mark; i++)
            CHECK(mark[i] == (char)(seed + i), "thread %llu, byte %zu", (unsigned long long)seed, i);
        CHECK(of_this_thread == seed, "thread-local variable");
    }
}

static void *walk_in_thread(void *argument) {
    work_on_this_stack((uint64_t)(uintptr_t)argument, 3);
    return argument;
}

static void join_with_value(pthread_t thread, void *value) {
    void *got = NULL;
    CHECK(pthread_join(thread, &got) == 0 && got == value, "joined: %p, expected %p", got, value);
}

/* Thread descriptor, thread-local variables and the kernel's notes about the thread lie in managed memory
 * then. */
static void threads_run_on_managed_stacks(void) {
    enum { THREADS = 6 };
    for (int round = 0; round < 4; round++) {
        pthread_t threads[THREADS];
        void *stacks[THREADS];
        for (size_t i = 0; i < THREADS; i++) {
            pthread_attr_t attributes;
            CHECK(posix_memalign(&stacks[i], PAGE, LARGE) == 0, "posix_memalign");
            memset(stacks[i], 0x55, LARGE);
            if (i == 0) walk();
            CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stacks[i],
                LARGE) == 0, "attributes");
            CHECK(pthread_create(&threads[i], &attributes, walk_in_thread, (void *)(i + 1)) == 0,
                "pthread_create");
            CHECK(pthread_attr_destroy(&attributes) == 0, "attributes");
        }
        walk();
        for (size_t i = 0; i < THREADS; i++) join_with_value(threads[i], (void *)(i + 1));
        for (size_t i = 0; i < THREADS; i++) free(stacks[i]);
    }
}

static char *waiting_stack;

static void *sleep_then_look(void *argument) {
    char byte;
    of_this_thread = 77;
    CHECK(read(*(int *)argument, &byte, 1) == 1 && byte == 'g', "read onto an evicted stack");
    CHECK(of_this_thread == 77 && (char *)&byte > waiting_stack && (char *)&byte < waiting_stack + LARGE,
        "stack");
    walk();
    return NULL;
}

/* While the thread waits, its whole stack goes out; the signal then finds it there. */
static void a_waiting_threads_stack_goes_out_and_comes_back(void) {
    int gate[2];
    void *stack = NULL;
    set_handler(SIGUSR1, tick, SA_RESTART);
    for (int round = 0; round < 10; round++) {
        pthread_attr_t attributes;
        pthread_t thread;
        ticks = 0;
        CHECK(pipe(gate) == 0 && posix_memalign(&stack, PAGE, LARGE) == 0, "posix_memalign");
        waiting_stack = stack;
        CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, LARGE) == 0,
            "attributes");
        CHECK(pthread_create(&thread, &attributes, sleep_then_look, &gate[0]) == 0, "pthread_create");
        walk();
        if (round % 2) {
            CHECK(pthread_kill(thread, SIGUSR1) == 0, "pthread_kill");
            while (!ticks) walk();
            walk();
        }
        CHECK(write(gate[1], "g", 1) == 1 && pthread_join(thread, NULL) == 0, "join");
        CHECK(close(gate[0]) == 0 && close(gate[1]) == 0 && pthread_attr_destroy(&attributes) == 0, "close");
        free(stack);
    }
    set_default(SIGUSR1);
}

#define MINIMUM ((size_t)PTHREAD_STACK_MIN)
static char minimum_stacks[4][64 << 10] __attribute__((aligned(4096)));

static void threads_run_on_the_smallest_stacks(void) {
    CHECK(MINIMUM <= sizeof minimum_stacks[0], "PTHREAD_STACK_MIN is %zu", MINIMUM);
    for (int given = 0; given < 2; given++) {
        pthread_t threads[4];
        for (size_t i = 0; i < 4; i++) {
            pthread_attr_t attributes;
            CHECK(pthread_attr_init(&attributes) == 0, "attributes");
            int answer = given ? pthread_attr_setstack(&attributes, minimum_stacks[i], MINIMUM)
                : pthread_attr_setstacksize(&attributes, MINIMUM);
            CHECK(answer == 0 && pthread_create(&threads[i], &attributes, walk_in_thread,
                (void *)(i + 1)) == 0, "pthread_create");
            CHECK(pthread_attr_destroy(&attributes) == 0, "attributes");
        }
        for (size_t i = 0; i < 4; i++) join_with_value(threads[i], (void *)(i + 1));
    }
}

static void *expect_all_blocked(void *argument) {
    sigset_t now;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && all_are_blocked(&now), "mask of a new thread");
    work_on_this_stack((uint64_t)(uintptr_t)argument, 2);
    char *own = map(4 * MIB);
    fill(own, 4 * MIB, 5);
    int pair[2];
    CHECK(pipe(pair) == 0 && write(pair[1], own + PAGE, PAGE) == (ssize_t)PAGE
        && read(pair[0], own, PAGE) == (ssize_t)PAGE, "pipe");
    CHECK(page_is(own, 6), "read back");
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0 && munmap(own, 4 * MIB) == 0, "munmap");
    return argument;
}

static void threads_start_while_all_signals_are_blocked(void) {
    sigset_t all, before;
    sigfillset(&all);
    for (int round = 0; round < 5; round++) {
        pthread_t threads[4];
        pthread_attr_t attributes;
        CHECK(pthread_attr_init(&attributes) == 0, "attributes");
        if (round % 2) CHECK(pthread_attr_setstacksize(&attributes, MINIMUM) == 0, "attributes");
        CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0, "pthread_sigmask");
        for (size_t i = 0; i < 4; i++)
            CHECK(pthread_create(&threads[i], &attributes, expect_all_blocked, (void *)(i + 1)) == 0,
                "pthread_create");
        for (size_t i = 0; i < 4; i++) join_with_value(threads[i], (void *)(i + 1));
        CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0 && pthread_attr_destroy(&attributes) == 0,
            "attributes");
    }
}

static void *fault_briefly(void *argument) {
    for (size_t i = 0; i < 64; i++)
        CHECK(page_looks_right(((size_t)(uintptr_t)argument * 64 + i * 251) % PAGES), "page");
    return argument;
}

static void many_threads_come_and_go(void) {
    for (size_t round = 0; round < 200; round++) {
        pthread_t threads[5];
        for (size_t i = 0; i < 5; i++)
            CHECK(pthread_create(&threads[i], NULL, fault_briefly, (void *)(round * 5 + i)) == 0, "create");
        for (size_t i = 0; i < 5; i++) join_with_value(threads[i], (void *)(round * 5 + i));
    }
}

static void *exit_while_others_fault(void *argument) {
    fault_briefly(argument);
    pthread_exit(argument);
}

static void *wait_to_be_cancelled(void *argument) {
    (void)argument;
    for (;;) {
        fault_briefly((void *)9);
        pthread_testcancel();
        char byte;
        (void)!read(ends[0], &byte, 1);
    }
    return NULL;
}

static void threads_end_by_exit_and_by_cancellation(void) {
    CHECK(pipe(ends) == 0, "pipe");
    for (int round = 0; round < 50; round++) {
        pthread_t leaving, cancelled;
        void *value = NULL;
        CHECK(pthread_create(&leaving, NULL, exit_while_others_fault, (void *)5) == 0, "pthread_create");
        CHECK(pthread_create(&cancelled, NULL, wait_to_be_cancelled, NULL) == 0
            && pthread_cancel(cancelled) == 0, "pthread_cancel");
        join_with_value(leaving, (void *)5);
        CHECK(pthread_join(cancelled, &value) == 0 && value == PTHREAD_CANCELED, "cancelled");
    }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

/* --- ends ---------------------------------------------------------------------------------------- */

static _Atomic int at_the_end;

static void end_here(struct coroutine *own) {
    (void)own;
    at_the_end = 1;
    _exit(7);
}

/* Sends a stack out a moment after its program has begun to end, again and again. */
static void *send_out(void *stack) {
    struct timespec moment = {0, 50000000}, little = {0, 1000000};
    while (!at_the_end) CHECK(nanosleep(&little, NULL) == 0, "nanosleep");
    CHECK(nanosleep(&moment, NULL) == 0, "nanosleep");
    for (;;) CHECK(madvise(stack, LARGE, MADV_PAGEOUT) == 0 && nanosleep(&little, NULL) == 0, "madvise");
    return NULL;
}

/* Whoever tells a full pipe about the end has to wait. */
static void make_full_pipe(const char *name) {
    static char page[PAGE];
    CHECK(mkfifo(name, 0600) == 0, "mkfifo");
    CHECK(open(name, O_RDONLY | O_NONBLOCK) >= 0, "open");
    int writer = open(name, O_WRONLY | O_NONBLOCK);
    while (write(writer, page, sizeof page) > 0);
    CHECK(errno == EAGAIN, "write");
}

static void end_on_a_stack_that_goes_out(const char *statistics) {
    pthread_t thread;
    struct coroutine last = {0};
    make_full_pipe(statistics);
    prepare(&last, 2 * LARGE, 1, 0, end_here);
    char *page = (char *)(((uintptr_t)last.stack + last.size + PAGE - 1) & ~(PAGE - 1)) - LARGE;
    CHECK(pthread_create(&thread, NULL, send_out, page) == 0, "pthread_create");
    /* Without a fault on it nobody knows that this is a stack. */
    memset(page, 1, (size_t)((char *)last.sp - page));
    resume(&last);
}

static void a_program_ends_on_a_stack_that_goes_out(void) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    char name[32];
    snprintf(name, sizeof name, "%d.stats", (int)(child ? child : getpid()));
    if (child == 0) end_on_a_stack_that_goes_out(name);
    int status = -1;
    pid_t got = waitpid(child, &status, 0);
    unlink(name);
    CHECK(got == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "status %#x", (unsigned)status);
}

int main(void) {
    make_memory();
    RUN(coroutines_of_libc_keep_their_stacks);
    RUN(coroutines_by_hand_keep_their_stacks);
    RUN(calls_have_buffers_on_evicted_stacks);
    RUN(signals_arrive_on_evicted_stacks);
    RUN(handlers_run_on_the_stack_that_raised);
    RUN(memory_is_managed_from_evicted_stacks);
    RUN(jumps_leave_evicted_stacks);
    RUN(threads_run_on_managed_stacks);
    RUN(a_waiting_threads_stack_goes_out_and_comes_back);
    RUN(threads_run_on_the_smallest_stacks);
    RUN(threads_start_while_all_signals_are_blocked);
    RUN(many_threads_come_and_go);
    RUN(threads_end_by_exit_and_by_cancellation);
    RUN(a_program_ends_on_a_stack_that_goes_out);
    return 0;
}
