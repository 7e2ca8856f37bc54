/* A program that makes its system calls by its own instructions, as Go's runtime does, and looks like one of
 * Go's by a section of its file: masks, handlers and alternate stacks, children that share memory until their
 * exec, calls that wait, memory given up. */
#include "handlers.h"
#include <sched.h>
#include <sys/syscall.h>

__attribute__((used, section(".go.buildinfo"))) static char looks_like_go[16] = "\xff Go buildinf:";

static inline long call(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
        : "rcx", "r11", "memory");
    return result;
}

/* Of the kernel, not libc's. */
struct action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

__attribute__((naked)) static void restorer(void) { __asm__("mov $15, %eax; syscall"); }

static struct action set_past(int number, void (*handler)(int, siginfo_t *, void *), unsigned long flags) {
    struct action new = {handler, flags | SA_SIGINFO | RESTORER_FLAG, restorer, ~0ul}, old, now;
    CHECK(call(SYS_rt_sigaction, number, (long)&new, (long)&old, 8, 0) == 0, "rt_sigaction %d", number);
    CHECK(call(SYS_rt_sigaction, number, 0, (long)&now, 8, 0) == 0, "rt_sigaction %d", number);
    CHECK(now.handler == handler && now.mask == (~0ul & ~(1ul << 8 | 1ul << 18)), "read back %lx", now.mask);
    return old;
}

static uint64_t mask_past(int how, uint64_t set) {
    uint64_t old = 0;
    CHECK(call(SYS_rt_sigprocmask, how, (long)&set, (long)&old, 8, 0) == 0, "rt_sigprocmask");
    return old;
}

static __thread volatile int runs;
static __thread char *volatile ran_at;

static void handler(int number, siginfo_t *info, void *context) {
    char here;
    (void)context;
    CHECK_QUIETLY(info->si_signo == number);
    ran_at = &here;
    walk_in_handler();
    runs++;
}

static void memory_works_while_all_is_blocked(void) {
    uint64_t before = mask_past(SIG_SETMASK, ~0ul);
    walk();
    uint64_t blocked = mask_past(SIG_SETMASK, before);
    CHECK((blocked & 1ul << 6) && (blocked & 1ul << 30), "SIGBUS and SIGSYS read back as blocked: %lx",
        blocked);
    CHECK(call(SYS_rt_sigprocmask, SIG_SETMASK, 8, 0, 8, 0) == -EFAULT, "no set there");
    CHECK(call(SYS_rt_sigprocmask, 99, (long)&before, 0, 8, 0) == -EINVAL, "how");
}

static void handlers_for_all_signals_come_and_memory_works(void) {
    for (int number = 1; number < 32; number++)
        if (number != SIGKILL && number != SIGSTOP && number != SIGCHLD)
            set_past(number, handler, SA_ONSTACK);
    runs = 0;
    for (int number = 1; number < 32; number++) {
        if (number == SIGKILL || number == SIGSTOP || number == SIGCHLD) continue;
        int before = runs;
        CHECK(call(SYS_tgkill, getpid(), call(SYS_gettid, 0, 0, 0, 0, 0), number, 0, 0) == 0, "tgkill");
        CHECK(runs == before + 1, "signal %d", number);
    }
    walk();
}

static void blocked_ones_wait(void) {
    for (int number = SIGBUS; number <= SIGSYS; number += SIGSYS - SIGBUS) {
        uint64_t before = mask_past(SIG_BLOCK, 1ul << (number - 1));
        runs = 0;
        CHECK(call(SYS_tgkill, getpid(), call(SYS_gettid, 0, 0, 0, 0, 0), number, 0, 0) == 0 && runs == 0,
            "it waits");
        walk();
        mask_past(SIG_SETMASK, before);
        CHECK(runs == 1, "it comes: %d", runs);
    }
}

/* Stacks in memory that goes out, one after the other, set and given up from where they are not used. */
static void alternate_stacks_are_used(void) {
    for (int i = 0; i < 12; i++) {
        size_t bytes = i % 3 ? 64 << 10 : 12 << 10;
        char *own = malloc(MIB);
        stack_t new = {.ss_sp = own + MIB / 2, .ss_size = bytes}, old, off = {.ss_flags = SS_DISABLE};
        churn();
        CHECK(call(SYS_sigaltstack, (long)&new, (long)&old, 0, 0, 0) == 0 && old.ss_flags == SS_DISABLE,
            "sigaltstack");
        for (int round = 0; round < 3; round++) {
            CHECK(call(SYS_tgkill, getpid(), call(SYS_gettid, 0, 0, 0, 0, 0), SIGUSR1, 0, 0) == 0, "tgkill");
            CHECK(ran_at > own + MIB / 2 && ran_at < own + MIB / 2 + bytes, "not on it");
            churn();
        }
        CHECK(call(SYS_sigaltstack, 0, (long)&old, 0, 0, 0) == 0 && old.ss_sp == new.ss_sp, "read back");
        CHECK(call(SYS_sigaltstack, (long)&off, 0, 0, 0, 0) == 0, "off");
        stack_t tiny = {.ss_sp = own, .ss_size = 512};
        CHECK(call(SYS_sigaltstack, (long)&tiny, 0, 0, 0, 0) == -ENOMEM, "tiny");
        free(own);
    }
}

static void *in_a_thread(void *unused) {
    memory_works_while_all_is_blocked();
    alternate_stacks_are_used();
    return unused;
}

static void threads_are_seen_too(void) {
    /* One after the other: each pushes the others' memory out, and all of it at once would not fit the
     * pool. */
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, in_a_thread, NULL) == 0 && pthread_join(thread, NULL) == 0,
            "thread");
    }
}

/* As `syscall.forkAndExecInChild`: the child shares memory, sets all handlers to the default, unblocks, and
 * starts a program whose name and arguments are out. */
static char **volatile arguments;
static volatile long failed;
static int ends[2];

__attribute__((noinline)) static long start(int exists) {
    uint64_t all = ~0ul, none = 0;
    mask_past(SIG_SETMASK, all);
    long child;
    __asm__ volatile("syscall" : "=a"(child) : "a"(SYS_clone), "D"((long)(CLONE_VM | CLONE_VFORK | SIGCHLD)),
        "S"(0l), "d"(0l) : "rcx", "r11", "memory");
    if (child == 0) {
        struct action dfl = {0};
        for (int number = 1; number < 65; number++) call(SYS_rt_sigaction, number, (long)&dfl, 0, 8, 0);
        call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, 8, 0);
        for (size_t i = 0; i < 16; i++)
            if (!page_looks_right(i * (PAGES / 16) + 5)) call(SYS_exit_group, 99, 0, 0, 0, 0);
        call(SYS_dup2, ends[1], 1, 0, 0, 0);
        failed = call(SYS_execve, (long)(exists ? arguments[0] : "/no/such/program"), (long)arguments,
            (long)(arguments + 2), 0, 0);
        call(SYS_exit_group, 98, 0, 0, 0, 0);
    }
    mask_past(SIG_SETMASK, none);
    return child;
}

static void children_start_programs(void) {
    char *place = map(64 * PAGE), answer[8192];
    for (int i = 0; i < 24; i++) {
        char **list = (char **)(place + 9 * PAGE - 2 * sizeof(char *)), *text = place + 20 * PAGE - 5;
        strcpy(text, "/bin/echo");
        strcpy(text + 3000, "a word that was out");
        list[0] = text, list[1] = text + 3000, list[2] = NULL;
        arguments = list;
        CHECK(pipe(ends) == 0, "pipe");
        churn();
        int exists = i % 4 != 3, status;
        long child = start(exists);
        CHECK(child > 0, "clone %ld", child);
        close(ends[1]);
        ssize_t n = exists ? read(ends[0], answer, sizeof answer) : 0;
        CHECK(call(SYS_wait4, child, (long)&status, 0, 0, 0) == child && WIFEXITED(status), "wait");
        CHECK(WEXITSTATUS(status) == (exists ? 0 : 98), "status %d", WEXITSTATUS(status));
        CHECK(exists ? n == 20 && !memcmp(answer, "a word that was out\n", 20) : failed == -ENOENT,
            "answer %zd %ld", n, failed);
        close(ends[0]);
        walk();
        runs = 0;
        CHECK(call(SYS_tgkill, getpid(), call(SYS_gettid, 0, 0, 0, 0, 0), SIGBUS, 0, 0) == 0 && runs == 1,
            "handlers stay");
    }
    munmap(place, 64 * PAGE);
}

static volatile int enough;
static volatile int *interrupted; /* `runs` of the thread that is */

/* One signal after the other, each when the handler of the last has returned for some time, until it is told
 * that it is enough. */
static void *interrupt(void *thread) {
    while (!enough) {
        int before = *interrupted;
        pthread_kill(*(pthread_t *)thread, SIGUSR2);
        while (*interrupted == before && !enough) usleep(1000);
        usleep(5000);
    }
    return NULL;
}

/* Blocked in reads, whose buffers are out or on the stack: interrupted by a handler that makes calls of its
 * own, or restarted. */
static void waiting_calls_are_interrupted_or_restarted(void) {
    for (int restart = 0; restart < 2; restart++) {
        int pipes[2];
        pthread_t self = pthread_self(), other;
        char *away = map(64 * PAGE) + 3 * PAGE + 17;
        set_past(SIGUSR2, handler, restart ? SA_RESTART : 0);
        CHECK(pipe(pipes) == 0, "pipe");
        churn();
        runs = 0;
        enough = 0;
        interrupted = &runs;
        CHECK(pthread_create(&other, NULL, interrupt, &self) == 0, "pthread_create");
        for (int i = 0; i < 10 && !restart; i++) {
            long n = call(SYS_read, pipes[0], (long)away, 100, 0, 0);
            CHECK(n == -EINTR, "read %ld", n);
        }
        if (restart) {
            pid_t writer = fork();
            if (writer == 0) {
                usleep(60000);
                _exit(write(pipes[1], "after", 5) != 5);
            }
            long n = call(SYS_read, pipes[0], (long)away, 100, 0, 0);
            CHECK(n == 5 && !memcmp(away, "after", 5), "restarted read %ld", n);
            check_child(writer, "writer");
        }
        enough = 1;
        CHECK(pthread_join(other, NULL) == 0, "join");
        CHECK(runs > 0, "no handler ran");
        close(pipes[0]), close(pipes[1]);
    }
}

static void memory_that_is_given_up_is_zero(void) {
    char *area = map(8 * MIB);
    fill(area, 8 * MIB, 5);
    churn();
    CHECK(call(SYS_madvise, (long)(area + MIB), 2 * MIB, MADV_DONTNEED, 0, 0) == 0, "madvise");
    check_zero(area + MIB, 2 * MIB, "given up");
    check_filled(area, MIB, 5, "before");
    check_filled(area + 3 * MIB, 5 * MIB, 5 + 3 * MIB / PAGE, "behind");
    CHECK(call(SYS_munmap, (long)area, 8 * MIB, 0, 0, 0) == 0, "munmap");
}

static void a_child_with_a_copy_has_its_own(void) {
    for (int i = 0; i < 4; i++) {
        long child = i % 2 ? call(SYS_fork, 0, 0, 0, 0, 0) : call(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            walk();
            for (size_t page = 0; page < PAGES; page += 3) fill_page(memory + page * PAGE, page);
            for (size_t page = 0; page < PAGES; page++)
                if (!page_is(memory + page * PAGE, page % 3 ? SEED + page : page))
                    call(SYS_exit_group, 1, 0, 0, 0, 0);
            call(SYS_exit_group, 0, 0, 0, 0, 0);
            __builtin_unreachable();
        }
        check_child(child, "copy");
        check_filled(memory, BYTES, SEED, "parent");
    }
}

int main(void) {
    CHECK(looks_like_go[1] == ' ', "section");
    make_memory();
    RUN(memory_works_while_all_is_blocked);
    RUN(handlers_for_all_signals_come_and_memory_works);
    RUN(blocked_ones_wait);
    RUN(alternate_stacks_are_used);
    RUN(threads_are_seen_too);
    RUN(children_start_programs);
    RUN(waiting_calls_are_interrupted_or_restarted);
    RUN(memory_that_is_given_up_is_zero);
    RUN(a_child_with_a_copy_has_its_own);
    return 0;
}
