/* Signals that arrive while memory is being fetched: real bus errors, timers, jumps out of interrupted calls,
 * EINTR and SA_RESTART; and what a fault must not change: errno, registers, rounding. */
#include "handlers.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <xmmintrin.h>

#ifndef __x86_64__
#error "registers_survive_faults is written for x86-64: add your architecture"
#endif

/* --- real bus errors ----------------------------------------------------------------------------- */

/* A mapping of four pages of a file that has only one. */
struct truncated {
    int file;
    char *start;
};

static struct truncated truncated_mapping(int flags) {
    char name[] = "weir-shim-XXXXXX";
    struct truncated made = {.file = mkstemp(name)};
    CHECK(made.file >= 0 && unlink(name) == 0 && ftruncate(made.file, 4 * (off_t)PAGE) == 0, "mkstemp");
    made.start = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, flags, made.file, 0);
    CHECK(made.start != MAP_FAILED, "mmap of a file");
    memset(made.start, 'f', PAGE);
    CHECK(ftruncate(made.file, (off_t)PAGE) == 0, "ftruncate");
    return made;
}

static void drop_mapping(struct truncated *made) {
    CHECK(munmap(made->start, 4 * PAGE) == 0 && close(made->file) == 0, "munmap");
}

static __thread sigjmp_buf back;
static __thread volatile uintptr_t bad_address;
static __thread volatile int bad_code;

static void on_bus(int number, siginfo_t *info, void *context) {
    (void)context;
    CHECK_QUIETLY(number == SIGBUS && info->si_signo == SIGBUS);
    bad_address = (uintptr_t)info->si_addr;
    bad_code = info->si_code;
    walk_in_handler();
    siglongjmp(back, 1);
}

static void expect_bus(volatile char *at, int writes) {
    bad_address = 0;
    if (sigsetjmp(back, 1) == 0) {
        if (writes)
            *at = 1;
        else
            (void)*at;
        CHECK(0, "no bus error at %p", (void *)at);
    }
    CHECK(bad_address == (uintptr_t)at && bad_code == BUS_ADRERR, "si_addr %#zx, expected %p, code %d",
        (size_t)bad_address,
          (void *)at, bad_code);
    CHECK(!is_blocked(SIGBUS), "blocked after the jump");
}

static void bus_errors_of(struct truncated *made, int rounds) {
    for (int round = 0; round < rounds; round++) {
        size_t offset = PAGE + (size_t)round * 1217 % (3 * PAGE);
        expect_bus(made->start + offset, round % 2);
        CHECK(page_looks_right((size_t)round * 611 % PAGES), "memory after a bus error");
    }
    CHECK(made->start[0] == 'f', "the page that the file has");
}

static void bus_errors_reach_the_programs_handler(void) {
    static const int kinds[] = {MAP_SHARED, MAP_PRIVATE};
    for (int i = 0; i < 2; i++) {
        struct truncated made = truncated_mapping(kinds[i]);
        set_handler(SIGBUS, on_bus, 0);
        bus_errors_of(&made, 200);
        set_handler(SIGBUS, on_bus, SA_NODEFER | SA_RESTART);
        bus_errors_of(&made, 50);
        stack_t stack = {.ss_sp = malloc(2 * MIB), .ss_size = 2 * MIB}, none = {.ss_flags = SS_DISABLE};
        CHECK(stack.ss_sp && sigaltstack(&stack, NULL) == 0, "sigaltstack");
        set_handler(SIGBUS, on_bus, SA_ONSTACK);
        bus_errors_of(&made, 50);
        CHECK(sigaltstack(&none, NULL) == 0, "sigaltstack");
        free(stack.ss_sp);
        drop_mapping(&made);
    }
    set_default(SIGBUS);
}

static void *bus_errors_in_a_thread(void *argument) {
    struct truncated made = truncated_mapping(MAP_SHARED);
    for (int round = 0; round < 4; round++) {
        bus_errors_of(&made, 50);
        walk();
    }
    drop_mapping(&made);
    return argument;
}

static void bus_errors_in_threads_stay_apart(void) {
    pthread_t threads[4];
    set_handler(SIGBUS, on_bus, 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, bus_errors_in_a_thread, NULL) == 0, "pthread_create");
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    set_default(SIGBUS);
}

static int growing_file;
static volatile sig_atomic_t grown;

static void grow_file(int number) {
    (void)number;
    grown++;
    walk_in_handler();
    CHECK_QUIETLY(ftruncate(growing_file, 4 * (off_t)PAGE) == 0);
}

static void a_handler_may_repair_and_return(void) {
    struct truncated made = truncated_mapping(MAP_SHARED);
    growing_file = made.file;
    CHECK(signal(SIGBUS, grow_file) == SIG_DFL, "signal");
    for (int round = 1; round <= 50; round++) {
        made.start[2 * PAGE + 5] = (char)round;
        CHECK(grown == round && made.start[2 * PAGE + 5] == (char)round && made.start[3 * PAGE] == 0,
            "round %d: %d", round, grown);
        CHECK(ftruncate(made.file, (off_t)PAGE) == 0, "ftruncate");
    }
    set_default(SIGBUS);
    drop_mapping(&made);
}

static void copying_from_a_truncated_file_stops_there(void) {
    struct truncated made = truncated_mapping(MAP_SHARED);
    char *into = map(BYTES);
    fill(into, BYTES, 9);
    set_handler(SIGBUS, on_bus, 0);
    for (volatile size_t page = 0; page + 2 < BYTES / PAGE; page += 257) {
        if (sigsetjmp(back, 1) == 0) {
            memcpy(into + page * PAGE, made.start, 2 * PAGE);
            CHECK(0, "no bus error");
        }
        CHECK(bad_address >= (uintptr_t)made.start + PAGE && bad_address < (uintptr_t)made.start + 2 * PAGE,
            "si_addr");
        CHECK(into[page * PAGE] == 'f' && page_is(into + (page + 2) * PAGE, 9 + page + 2),
            "copied at page %zu", page);
    }
    set_default(SIGBUS);
    drop_mapping(&made);
    CHECK(munmap(into, BYTES) == 0, "munmap");
}

static void system_calls_on_a_truncated_file_say_efault(void) {
    struct truncated made = truncated_mapping(MAP_SHARED);
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], "12345678", 8) == 8, "pipe");
    set_handler(SIGBUS, on_bus, 0);
    errno = 0;
    CHECK(write(ends[1], made.start + 2 * PAGE, 8) == -1 && errno == EFAULT, "write");
    errno = 0;
    CHECK(read(ends[0], made.start + 2 * PAGE, 8) == -1 && errno == EFAULT, "read");
    /* One good and one bad part, the good one in evicted memory. */
    struct iovec parts[2] = {{memory + PAGE, PAGE}, {made.start + 2 * PAGE, PAGE}};
    walk();
    ssize_t done = writev(ends[1], parts, 2);
    CHECK(done == (ssize_t)PAGE || (done == -1 && errno == EFAULT), "writev: %zd", done);
    set_default(SIGBUS);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
    drop_mapping(&made);
}

static int fate;

static void meet_a_bus_error(void) {
    struct rlimit none = {0, 0};
    struct truncated made = truncated_mapping(MAP_SHARED);
    setrlimit(RLIMIT_CORE, &none);
    if (fate == 1) CHECK(signal(SIGBUS, SIG_IGN) != SIG_ERR, "signal");
    if (fate == 2) set_handler(SIGBUS, on_bus, 0);
    if (fate == 2) block(SIGBUS);
    walk();
    *(volatile char *)(made.start + PAGE) = 1;
}

static void bus_errors_kill_who_does_not_handle_them(void) {
    for (fate = 0; fate < 3; fate++) {
        int status = status_of_child(meet_a_bus_error);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "fate %d: status %#x", fate,
            (unsigned)status);
    }
}

static void segv_handlers_see_their_faults(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 12);
    churn();
    CHECK(mprotect(start + 16 * MIB, MIB, PROT_NONE) == 0 && mprotect(start + 32 * MIB, MIB, PROT_READ) == 0,
        "mprotect");
    for (int round = 0; round < 20; round++) {
        CHECK(fault_of(start + 16 * MIB + (size_t)round * PAGE, 0) == SIGSEGV, "unreadable");
        CHECK(fault_of(start + 32 * MIB + (size_t)round * PAGE, 1) == SIGSEGV, "read-only");
        CHECK(fault_of(start + 32 * MIB + (size_t)round * PAGE, 0) == 0, "readable");
        CHECK(fault_of(start + 48 * MIB + (size_t)round * PAGE, 1) == 0, "writable");
    }
    CHECK(munmap(start, BYTES) == 0 && fault_of(start, 0) == SIGSEGV, "unmapped");
}

/* --- timers -------------------------------------------------------------------------------------- */

static volatile sig_atomic_t ticks;
static uint64_t *counters; /* managed: one word per page */

static void tick(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    int saved = errno;
    walk_in_handler();
    counters[(size_t)ticks % PAGES * (PAGE / 8)]++;
    ticks++;
    errno = saved;
}

static void timers_and_gated_calls(int flags) {
    enum { WANTED = 200, ROUNDS_MOST = 5000 };
    char *scratch = map(BYTES);
    counters = (uint64_t *)map(BYTES);
    ticks = 0;
    set_handler(SIGALRM, tick, flags);
    every(1000, 1);
    for (int round = 0; ticks < WANTED && round < ROUNDS_MOST; round++) {
        walk();
        pages_through_a_pipe(scratch, (size_t)round * 512, 512);
    }
    every(0, 0);
    CHECK(ticks >= WANTED, "%d ticks", ticks);
    uint64_t sum = 0;
    for (size_t page = 0; page < PAGES; page++) sum += counters[page * (PAGE / 8)];
    CHECK(sum == (uint64_t)ticks, "%llu counted of %d", (unsigned long long)sum, ticks);
    check_filled(memory, BYTES, SEED, "after the timer");
    set_default(SIGALRM);
    CHECK(munmap(scratch, BYTES) == 0 && munmap(counters, BYTES) == 0, "munmap");
}

static void a_timer_works_amid_faults_and_calls(void) {
    timers_and_gated_calls(SA_RESTART);
    timers_and_gated_calls(0);
}

static void a_timer_on_an_alternate_stack_works_too(void) {
    stack_t stack = {.ss_sp = malloc(2 * MIB), .ss_size = 2 * MIB}, none = {.ss_flags = SS_DISABLE};
    CHECK(stack.ss_sp && sigaltstack(&stack, NULL) == 0, "sigaltstack");
    timers_and_gated_calls(SA_RESTART | SA_ONSTACK);
    CHECK(sigaltstack(&none, NULL) == 0, "sigaltstack");
    free(stack.ss_sp);
}

/* --- jumps out of calls -------------------------------------------------------------------------- */

static sigjmp_buf out;
static jmp_buf plain_out;

static void jump_out(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    walk_in_handler();
    siglongjmp(out, 1);
}

static void plain_jump_out(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    walk_in_handler();
    longjmp(plain_out, 1);
}

/* Every read waits in another mebibyte: a call that never came back must not keep its buffer for ever. */
static void a_jump_out_of_a_waiting_read_leaves_nothing_held(void) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    char *into = map(BYTES);
    fill(into, BYTES, 5);
    set_handler(SIGALRM, jump_out, 0);
    for (volatile size_t round = 0; round < 200; round++) {
        if (sigsetjmp(out, 1) == 0) {
            every(300, 0);
            (void)!read(ends[0], into + round % 64 * MIB, MIB);
            CHECK(0, "the read returned");
        }
        CHECK(!is_blocked(SIGALRM), "blocked in round %zu", round);
        if (round % 20 == 0) walk();
    }
    check_filled(into, BYTES, 5, "after reads of nothing");
    set_handler(SIGALRM, plain_jump_out, SA_NODEFER);
    for (volatile size_t round = 0; round < 50; round++) {
        if (setjmp(plain_out) == 0) {
            every(300, 0);
            (void)!read(ends[0], into + round % 64 * MIB, MIB);
            CHECK(0, "the read returned");
        }
        CHECK(!is_blocked(SIGALRM), "blocked in round %zu", round);
    }
    set_default(SIGALRM);
    CHECK(write(ends[1], memory, 4 * PAGE) == (ssize_t)(4 * PAGE), "write");
    read_all(ends[0], into + 8 * MIB, 4 * PAGE);
    check_filled(into + 8 * MIB, 4 * PAGE, SEED, "read at last");
    walk();
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && munmap(into, BYTES) == 0, "munmap");
}

static void a_jump_out_of_a_walk_continues_it(void) {
    set_handler(SIGALRM, jump_out, 0);
    volatile size_t page = 0;
    volatile int jumps = 0;
    every(1000, 1);
    while (jumps < 200) {
        if (sigsetjmp(out, 1)) jumps++;
        for (; page < PAGES; page++) CHECK(page_looks_right(page), "page %zu", page);
        page = 0;
    }
    every(0, 0);
    set_default(SIGALRM);
    walk();
}

/* --- EINTR and SA_RESTART ------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupted;
static _Atomic int finished;
static pthread_t waiting;

static void note_interruption(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    walk_in_handler();
    interrupted++;
}

/* Signals the waiting thread until its call has come back. */
static void *interrupt_until_finished(void *argument) {
    while (!finished) {
        pthread_kill(waiting, SIGUSR1);
        usleep(1000);
    }
    return argument;
}

/* Five handlers run, then the bytes arrive. */
static void *interrupt_then_write(void *argument) {
    for (int round = 0; round < 5; round++) {
        int before = interrupted;
        pthread_kill(waiting, SIGUSR1);
        while (interrupted == before) usleep(100);
    }
    write_all(*(int *)argument, memory, PAGE);
    return NULL;
}

static pthread_t start_interrupting(void *(*body)(void *), void *argument, int flags) {
    pthread_t thread;
    interrupted = 0;
    finished = 0;
    waiting = pthread_self();
    set_handler(SIGUSR1, note_interruption, flags);
    CHECK(pthread_create(&thread, NULL, body, argument) == 0, "pthread_create");
    return thread;
}

static void stop_interrupting(pthread_t thread) {
    finished = 1;
    CHECK(pthread_join(thread, NULL) == 0 && interrupted > 0, "never interrupted");
    set_default(SIGUSR1);
}

static void a_read_is_interrupted_or_restarted(void) {
    char *into = map(BYTES);
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    for (size_t round = 0; round < 20; round++) {
        char *at = into + round * 3 * MIB + 100;
        walk();
        pthread_t thread = start_interrupting(interrupt_until_finished, NULL, 0);
        errno = 0;
        CHECK(read(ends[0], at, PAGE) == -1 && errno == EINTR, "not interrupted");
        stop_interrupting(thread);
        walk();
        thread = start_interrupting(interrupt_then_write, &ends[1], SA_RESTART);
        CHECK(read(ends[0], at, PAGE) == (ssize_t)PAGE && memcmp(at, memory, PAGE) == 0, "not restarted");
        stop_interrupting(thread);
    }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && munmap(into, BYTES) == 0, "munmap");
}

static void other_calls_are_interrupted_too(void) {
    char *far = map(BYTES);
    struct timespec *wish = (struct timespec *)(far + 4 * MIB - 8),
        *rest = (struct timespec *)(far + 24 * MIB - 8);
    struct pollfd *poller = (struct pollfd *)(far + 40 * MIB - 4);
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    for (int round = 0; round < 6; round++) {
        *wish = (struct timespec){1000, 0};
        *rest = (struct timespec){0, 0};
        *poller = (struct pollfd){.fd = ends[0], .events = POLLIN};
        churn();
        /* Neither sleeping nor poll is restarted, whatever the handler asks for. */
        pthread_t thread = start_interrupting(interrupt_until_finished, NULL, round % 2 ? SA_RESTART : 0);
        errno = 0;
        if (round < 2)
            CHECK(nanosleep(wish, rest) == -1 && errno == EINTR && rest->tv_sec > 900, "nanosleep");
        else if (round < 4)
            CHECK(poll(poller, 1, -1) == -1 && errno == EINTR, "poll");
        else if (round < 5)
            CHECK(recv(ends[0], far + 50 * MIB, PAGE, 0) == -1 && errno == EINTR, "recv");
        else
            CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, wish, rest) == EINTR && rest->tv_sec > 900,
                "clock_nanosleep");
        stop_interrupting(thread);
    }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && munmap(far, BYTES) == 0, "munmap");
}

/* --- what a fault must not change ---------------------------------------------------------------- */

static void errno_survives_faults(void) {
    for (size_t page = 0; page < PAGES; page++) {
        errno = (int)page + 1;
        int good = page_looks_right(page);
        CHECK(errno == (int)page + 1 && good, "errno at page %zu", page);
    }
}

static void rounding_survives_faults(void) {
    volatile double one = 1, three = 3;
    unsigned kept = _mm_getcsr();
    _MM_SET_ROUNDING_MODE(_MM_ROUND_UP);
    double up = one / three;
    for (size_t page = 0; page < PAGES; page++) {
        int good = page_looks_right(page);
        double again = one / three;
        CHECK(good && again == up && _MM_GET_ROUNDING_MODE() == _MM_ROUND_UP, "page %zu", page);
    }
    _mm_setcsr(kept);
    CHECK(one / three < up, "rounding upwards changed nothing");
}

/* Loads all registers that a function may lose, touches `at`, and returns how many have changed. The bytes
 * below the stack pointer are the function's too. */
uint64_t changed_after_touching(const volatile char *at, const uint64_t *values);
__asm__(".text\n.globl changed_after_touching\n.type changed_after_touching, @function\n"
    "changed_after_touching:\n"
        "mov (%rsi), %rax\n mov 8(%rsi), %rdx\n mov 16(%rsi), %rcx\n mov 24(%rsi), %r8\n mov 32(%rsi), %r9\n"
        "mov 40(%rsi), %r10\n mov 48(%rsi), %r11\n"
        "mov %rax, -8(%rsp)\n mov %rdx, -64(%rsp)\n mov %rcx, -128(%rsp)\n"
        "movdqu (%rsi), %xmm0\n movdqu 16(%rsi), %xmm7\n movdqu 32(%rsi), %xmm15\n"
        "stc\n"
        "movb (%rdi), %dil\n" /* the fault; no flag changes */
        "sbb %rdi, %rdi\n add $1, %rdi\n" /* 0 when carry was still set */
        "cmp (%rsi), %rax\n setne %al\n movzbl %al, %eax\n add %rax, %rdi\n"
        "xor %eax, %eax\n cmp 8(%rsi), %rdx\n setne %al\n add %rax, %rdi\n"
        "xor %eax, %eax\n cmp 16(%rsi), %rcx\n setne %al\n add %rax, %rdi\n"
        "xor %eax, %eax\n cmp 24(%rsi), %r8\n setne %al\n add %rax, %rdi\n"
        "xor %eax, %eax\n cmp 32(%rsi), %r9\n setne %al\n add %rax, %rdi\n"
        "xor %eax, %eax\n cmp 40(%rsi), %r10\n setne %al\n add %rax, %rdi\n"
        "xor %eax, %eax\n cmp 48(%rsi), %r11\n setne %al\n add %rax, %rdi\n"
        "mov -8(%rsp), %rdx\n xor %eax, %eax\n cmp (%rsi), %rdx\n setne %al\n add %rax, %rdi\n"
        "mov -64(%rsp), %rdx\n xor %eax, %eax\n cmp 8(%rsi), %rdx\n setne %al\n add %rax, %rdi\n"
        "mov -128(%rsp), %rdx\n xor %eax, %eax\n cmp 16(%rsi), %rdx\n setne %al\n add %rax, %rdi\n"
        "movdqu (%rsi), %xmm1\n pcmpeqb %xmm0, %xmm1\n pmovmskb %xmm1, %edx\n xor %eax, %eax\n"
        " cmp $0xffff, %edx\n setne %al\n"
        "add %rax, %rdi\n"
        "movdqu 16(%rsi), %xmm1\n pcmpeqb %xmm7, %xmm1\n pmovmskb %xmm1, %edx\n xor %eax, %eax\n"
        " cmp $0xffff, %edx\n setne %al\n"
        "add %rax, %rdi\n"
        "movdqu 32(%rsi), %xmm1\n pcmpeqb %xmm15, %xmm1\n pmovmskb %xmm1, %edx\n xor %eax, %eax\n"
        " cmp $0xffff, %edx\n setne %al\n"
        "add %rdi, %rax\n ret\n"
        ".size changed_after_touching, .-changed_after_touching\n");

static void registers_survive_faults(void) {
    uint64_t values[8];
    for (int round = 0; round < 2; round++)
        for (size_t page = 0; page < PAGES; page++) {
            for (size_t i = 0; i < 8; i++) values[i] = mix(page * 8 + i);
            uint64_t changed = changed_after_touching(memory + page * PAGE + 16, values);
            CHECK(changed == 0, "%llu changed at page %zu", (unsigned long long)changed, page);
        }
}

int main(void) {
    make_memory();
    RUN(bus_errors_reach_the_programs_handler);
    RUN(bus_errors_in_threads_stay_apart);
    RUN(a_handler_may_repair_and_return);
    RUN(copying_from_a_truncated_file_stops_there);
    RUN(system_calls_on_a_truncated_file_say_efault);
    RUN(bus_errors_kill_who_does_not_handle_them);
    RUN(segv_handlers_see_their_faults);
    RUN(a_timer_works_amid_faults_and_calls);
    RUN(a_timer_on_an_alternate_stack_works_too);
    RUN(a_jump_out_of_a_waiting_read_leaves_nothing_held);
    RUN(a_jump_out_of_a_walk_continues_it);
    RUN(a_read_is_interrupted_or_restarted);
    RUN(other_calls_are_interrupted_too);
    RUN(errno_survives_faults);
    RUN(rounding_survives_faults);
    RUN(registers_survive_faults);
    return 0;
}
