/* Programs that filter their own system calls, before and after they hold much memory: their filters answer,
 * their SIGSYS handler emulates, and memory and calls work on. */
#include "handlers.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#ifndef __x86_64__
#error "the handler writes the registers of x86-64: add your architecture"
#endif
#ifndef SYS_SECCOMP
#define SYS_SECCOMP 1
#endif

/* An error that none of the calls gives of itself. */
#define OWN_ERROR ENAVAIL
#define OWN_RESULT 4711
#define OWN_DATA 77

#define LOAD_NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(number, action)                                                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, (action))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void install(struct sock_filter *filter, size_t length, int by_prctl, unsigned flags) {
    struct sock_fprog program = {.len = (unsigned short)length, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1,
        "no_new_privs");
    if (by_prctl)
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "prctl");
    else
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0, "seccomp");
    CHECK(prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == SECCOMP_MODE_FILTER, "mode");
}

#define INSTALL(filter, by_prctl, flags) install(filter, sizeof(filter) / sizeof *(filter), by_prctl, flags)

static void refuse(int number, int by_prctl) {
    struct sock_filter filter[] = {LOAD_NUMBER, ANSWER((unsigned)number, SECCOMP_RET_ERRNO | OWN_ERROR),
        ALLOW};
    INSTALL(filter, by_prctl, 0);
}

static void trap(int number, unsigned flags) {
    struct sock_filter filter[] = {LOAD_NUMBER, ANSWER((unsigned)number, SECCOMP_RET_TRAP | OWN_DATA), ALLOW};
    INSTALL(filter, 0, flags);
}

static volatile sig_atomic_t traps;
static volatile long trapped_call;

/* What the kernel says of the call is true, and the program's registers may be changed. A second argument
 * that is not null is a buffer for a word. */
static void emulate(int number, siginfo_t *info, void *context) {
    ucontext_t *interrupted = context;
    CHECK_QUIETLY(number == SIGSYS && info->si_signo == SIGSYS && info->si_code == SYS_SECCOMP);
    CHECK_QUIETLY(info->si_errno == OWN_DATA && info->si_arch == AUDIT_ARCH_X86_64);
    CHECK_QUIETLY((uintptr_t)info->si_call_addr == (uintptr_t)interrupted->uc_mcontext.gregs[REG_RIP]);
    CHECK_QUIETLY(info->si_syscall == trapped_call && is_blocked(SIGSYS));
    walk_in_handler();
    char *buffer = (char *)interrupted->uc_mcontext.gregs[REG_RSI];
    if (buffer) memcpy(buffer, "emulated", 9);
    interrupted->uc_mcontext.gregs[REG_RAX] = OWN_RESULT;
    traps++;
}

static void expect_emulated(long call, char *buffer) {
    int before = traps;
    trapped_call = call;
    CHECK(syscall(call, 0L, buffer, 0L) == OWN_RESULT && traps == before + 1, "call %ld: %d traps", call,
        traps - before);
    if (buffer) CHECK(strcmp(buffer, "emulated") == 0, "call %ld: buffer", call);
    CHECK(!is_blocked(SIGSYS), "blocked afterwards");
}

static void expect_refused(long call, const void *argument) {
    errno = 0;
    CHECK(syscall(call, argument, 0L, 0L) == -1 && errno == OWN_ERROR, "call %ld", call);
}

static void filters_answer_before_there_is_memory(void) {
    refuse(SYS_acct, 1);
    trap(SYS_getpgrp, 0);
    set_handler(SIGSYS, emulate, 0);
    expect_refused(SYS_acct, NULL);
    trapped_call = SYS_getpgrp;
    struct sigaction now;
    CHECK(sigaction(SIGSYS, NULL, &now) == 0 && now.sa_sigaction == emulate, "handler");
}

static char *scratch;

static void work(size_t round) {
    walk();
    pages_through_a_pipe(scratch, round * 1000, 512);
    char name[] = "weir-shim-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0, "mkstemp");
    write_all(file, memory + 8 * MIB, MIB);
    CHECK(lseek(file, 0, SEEK_SET) == 0, "lseek");
    read_all(file, scratch + 40 * MIB, MIB);
    check_filled(scratch + 40 * MIB, MIB, SEED + 8 * MIB / PAGE, "through a file");
    CHECK(close(file) == 0, "close");
}

static void filters_answer_while_memory_comes_and_goes(void) {
    for (size_t round = 0; round < 3; round++) {
        work(round);
        expect_emulated(SYS_getpgrp, NULL);
        expect_refused(SYS_acct, NULL);
    }
}

static void filters_installed_later_answer_too(void) {
    char *evicted = map(BYTES);
    struct sock_filter *filter = (struct sock_filter *)(evicted + 20 * MIB);
    struct sock_filter text[] = {LOAD_NUMBER, ANSWER(SYS_ustat, SECCOMP_RET_ERRNO | OWN_ERROR), ALLOW};
    memcpy(filter, text, sizeof text);
    struct sock_fprog *program = (struct sock_fprog *)(evicted + 40 * MIB);
    *program = (struct sock_fprog){.len = sizeof text / sizeof *text, .filter = filter};
    walk();
    /* The kernel reads the program and its head from evicted memory. */
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program) == 0, "seccomp");
    trap(SYS_sysfs, 0);
    for (size_t round = 0; round < 3; round++) {
        work(round);
        expect_refused(SYS_ustat, NULL);
        expect_emulated(SYS_sysfs, NULL);
        expect_emulated(SYS_getpgrp, NULL);
        expect_refused(SYS_acct, NULL);
    }
    CHECK(munmap(evicted, BYTES) == 0, "munmap");
}

/* Pointers into evicted memory do not change who answers. */
static void filters_answer_calls_with_evicted_buffers(void) {
    for (size_t round = 0; round < 20; round++) {
        char *place = scratch + round * 3 * MIB + 100;
        strcpy(place, "/no/such/file");
        walk();
        expect_refused(SYS_acct, place);
        walk();
        expect_refused(SYS_ustat, place);
        walk();
        expect_emulated(SYS_sysfs, place);
    }
}

static void *work_in_a_thread(void *argument) {
    size_t number = (size_t)(uintptr_t)argument;
    for (size_t round = 0; round < 4; round++) {
        walk();
        expect_emulated(SYS_getpgrp, NULL);
        expect_refused(SYS_acct, memory + number * MIB);
    }
    return NULL;
}

static void threads_and_children_have_the_filters(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work_in_a_thread, (void *)3) == 0 && pthread_join(thread, NULL) == 0,
        "thread");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        work_in_a_thread((void *)5);
        _exit(0);
    }
    check_child(child, "forked");
    int status = system("exit 4");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 4, "system: %#x", (unsigned)status);
}

static _Atomic int phase;

static void *wait_for_a_filter(void *argument) {
    (void)argument;
    while (phase == 0) walk();
    trapped_call = SYS_getpgrp;
    CHECK(syscall(SYS_getpgrp, 0L, 0L) == OWN_RESULT, "old filter");
    errno = 0;
    CHECK(syscall(SYS_uselib, 0L) == -1 && errno == OWN_ERROR, "the filter of another thread");
    walk();
    return NULL;
}

/* Whether all threads can take one filter depends on their filters being the same. */
static void a_filter_for_all_threads_reaches_them(void) {
    pthread_t thread;
    phase = 0;
    CHECK(pthread_create(&thread, NULL, wait_for_a_filter, NULL) == 0, "pthread_create");
    struct sock_filter filter[] = {LOAD_NUMBER, ANSWER(SYS_uselib, SECCOMP_RET_ERRNO | OWN_ERROR), ALLOW};
    INSTALL(filter, 0, SECCOMP_FILTER_FLAG_TSYNC);
    phase = 1;
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    work(1);
}

static void handlers_on_an_alternate_stack_emulate(void) {
    stack_t stack = {.ss_sp = malloc(2 * MIB), .ss_size = 2 * MIB}, none = {.ss_flags = SS_DISABLE};
    CHECK(stack.ss_sp && sigaltstack(&stack, NULL) == 0, "sigaltstack");
    set_handler(SIGSYS, emulate, SA_ONSTACK);
    work(2);
    expect_emulated(SYS_getpgrp, NULL);
    CHECK(sigaltstack(&none, NULL) == 0, "sigaltstack");
    free(stack.ss_sp);
    set_handler(SIGSYS, emulate, 0);
}

static void trap_while_blocked(void) {
    block(SIGSYS);
    trapped_call = SYS_getpgrp;
    syscall(SYS_getpgrp, 0L, 0L);
}

static void trap_while_ignored(void) {
    CHECK(signal(SIGSYS, SIG_IGN) != SIG_ERR, "signal");
    syscall(SYS_getpgrp, 0L, 0L);
}

static void trap_without_handler(void) {
    set_default(SIGSYS);
    syscall(SYS_getpgrp, 0L, 0L);
}

static void traps_kill_who_does_not_handle_them(void) {
    static void (*const bodies[])(void) = {trap_while_blocked, trap_while_ignored, trap_without_handler};
    for (size_t i = 0; i < 3; i++) {
        int status = status_of_child(bodies[i]);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "case %zu: %#x", i, (unsigned)status);
    }
}

/* Calls that no end of a program's takes. */
static void forbid_what_ends_do_not_take(void) {
    struct sock_filter filter[] = {LOAD_NUMBER, ANSWER(SYS_openat, SECCOMP_RET_KILL_PROCESS),
        ANSWER(SYS_rt_sigaction, SECCOMP_RET_KILL_PROCESS), ANSWER(SYS_tgkill, SECCOMP_RET_KILL_PROCESS),
        ALLOW};
    INSTALL(filter, 0, 0);
    walk();
}

static void leave_under_a_filter(void) {
    forbid_what_ends_do_not_take();
    _exit(5);
}

static void be_terminated_under_a_filter(void) {
    forbid_what_ends_do_not_take();
    kill(getpid(), SIGTERM);
    for (;;) pause();
}

static void ends_are_not_what_the_filter_forbids(void) {
    int status = status_of_child(leave_under_a_filter);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5, "_exit: %#x", (unsigned)status);
    status = status_of_child(be_terminated_under_a_filter);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "SIGTERM: %#x", (unsigned)status);
}

/* A ring uses memory after its calls have returned, which no filter sees: where there is one (inline mode),
 * rings are refused as in a container; elsewhere they are there if they are natively. */
static void rings_are_refused_where_calls_are_gated(void) {
    struct io_ring_sizes { uint32_t sizes[30]; } parameters = {{0}};
    const char *faults = getenv("WEIR_FAULTS"), *preload = getenv("LD_PRELOAD");
    int gated = faults != NULL && strcmp(faults, "inline") == 0 && preload != NULL
        && strstr(preload, "weir") != NULL;
    errno = 0;
    long ring = syscall(SYS_io_uring_setup, 4, &parameters);
    if (gated)
        CHECK(ring == -1 && (errno == ENOSYS || errno == EPERM), "gated: %ld, %s", ring, strerror(errno));
    else
        CHECK(ring >= 0 || errno == ENOSYS || errno == EPERM, "not gated: %s", strerror(errno));
    if (ring >= 0) CHECK(close((int)ring) == 0, "close");
}

int main(void) {
    RUN(filters_answer_before_there_is_memory);
    make_memory();
    scratch = map(BYTES);
    fill(scratch, BYTES, 300000);
    RUN(rings_are_refused_where_calls_are_gated);
    RUN(filters_answer_while_memory_comes_and_goes);
    RUN(filters_installed_later_answer_too);
    RUN(filters_answer_calls_with_evicted_buffers);
    RUN(threads_and_children_have_the_filters);
    RUN(handlers_on_an_alternate_stack_emulate);
    RUN(traps_kill_who_does_not_handle_them);
    RUN(ends_are_not_what_the_filter_forbids);
    RUN(a_filter_for_all_threads_reaches_them);
    return 0;
}
