/* What a program sets for its signals is what it reads back and what happens: dispositions, masks, alternate
 * stacks, signals that are sent (SIGBUS and SIGSYS among them), and waiting for them. */
#include "handlers.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/signalfd.h>

#ifndef SS_AUTODISARM /* in the kernel's header, which does not go together with libc's */
#define SS_AUTODISARM (1u << 31)
#endif

/* --- alternate stacks ---------------------------------------------------------------------------- */

struct seen {
    int calls, on_stack_flag, in_stack;
    stack_t reported;
};

static struct seen seen;
static char *stack_start;
static size_t stack_size;

static int lies_in_stack(const volatile void *address) {
    const volatile char *at = address;
    return at >= stack_start && at < stack_start + stack_size;
}

static void look_at_stack(int number, siginfo_t *info, void *context) {
    volatile char local = 1;
    (void)number, (void)info, (void)context;
    CHECK_QUIETLY(sigaltstack(NULL, &seen.reported) == 0);
    seen.calls++;
    seen.in_stack = lies_in_stack(&local);
    seen.on_stack_flag = (seen.reported.ss_flags & SS_ONSTACK) != 0;
    walk_in_handler();
}

static void use_stack(char *start, size_t size, int flags) {
    stack_start = start;
    stack_size = size;
    stack_t own = {.ss_sp = start, .ss_size = size, .ss_flags = flags}, now;
    CHECK(sigaltstack(&own, NULL) == 0, "sigaltstack of %zu bytes", size);
    CHECK(sigaltstack(NULL, &now) == 0, "sigaltstack");
    CHECK(now.ss_sp == start && now.ss_size == size && now.ss_flags == flags, "read back %p %zu %#x",
        now.ss_sp, now.ss_size,
          (unsigned)now.ss_flags);
}

static void use_no_stack(void) {
    stack_t none = {.ss_flags = SS_DISABLE}, now;
    CHECK(sigaltstack(&none, NULL) == 0 && sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_DISABLE,
        "sigaltstack");
}

static void raise_on(char *start, size_t size) {
    use_stack(start, size, 0);
    for (int round = 0; round < 3; round++) {
        set_handler(SIGUSR1, look_at_stack, SA_ONSTACK);
        churn();
        seen = (struct seen){0};
        CHECK(raise(SIGUSR1) == 0 && seen.calls == 1, "raise");
        CHECK(seen.in_stack && seen.on_stack_flag, "not on the stack: %d %d", seen.in_stack,
            seen.on_stack_flag);
        CHECK(seen.reported.ss_sp == start && seen.reported.ss_size == size, "reported %p %zu",
            seen.reported.ss_sp,
              seen.reported.ss_size);
        /* The same handler where nobody asked for the alternate stack. */
        set_handler(SIGUSR1, look_at_stack, 0);
        seen = (struct seen){0};
        CHECK(raise(SIGUSR1) == 0 && seen.calls == 1, "raise");
        CHECK(!seen.in_stack && !seen.on_stack_flag, "on the stack: %d %d", seen.in_stack,
            seen.on_stack_flag);
    }
    set_default(SIGUSR1);
    use_no_stack();
}

static char static_stack[256 << 10] __attribute__((aligned(16)));

static void handlers_run_on_a_static_stack(void) {
    raise_on(static_stack, (size_t)SIGSTKSZ);
    raise_on(static_stack, 64 << 10);
}

static void handlers_run_on_a_stack_that_was_evicted(void) {
    char *block = malloc(2 * MIB);
    CHECK(block, "malloc");
    memset(block, 1, 2 * MIB);
    raise_on(block + MIB, (size_t)SIGSTKSZ);
    raise_on(block + MIB / 2, 64 << 10);
    raise_on(block, 2 * MIB);
    free(block);
    char *mapping = map(MIB);
    raise_on(mapping, MIB);
    CHECK(munmap(mapping, MIB) == 0, "munmap");
}

static void without_a_stack_handlers_run_where_the_program_runs(void) {
    use_no_stack();
    stack_start = static_stack;
    stack_size = sizeof static_stack;
    set_handler(SIGUSR1, look_at_stack, SA_ONSTACK);
    seen = (struct seen){0};
    CHECK(raise(SIGUSR1) == 0 && seen.calls == 1 && !seen.in_stack && !seen.on_stack_flag,
        "on a stack that is not set");
    set_default(SIGUSR1);
}

static void bad_stacks_are_refused(void) {
    use_stack(static_stack, 64 << 10, 0);
    stack_t small = {.ss_sp = static_stack, .ss_size = 100},
        odd = {.ss_sp = static_stack, .ss_size = 64 << 10, .ss_flags = 77}, now;
    errno = 0;
    CHECK(sigaltstack(&small, NULL) == -1 && errno == ENOMEM, "small");
    errno = 0;
    CHECK(sigaltstack(&odd, NULL) == -1 && errno == EINVAL, "flags");
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == static_stack && now.ss_size == 64 << 10, "kept");
    stack_t other = {.ss_sp = static_stack + (128 << 10), .ss_size = 64 << 10}, before;
    CHECK(sigaltstack(&other, &before) == 0 && before.ss_sp == static_stack, "old");
    use_no_stack();
}

static void try_to_change_stack(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    stack_t other = {.ss_sp = static_stack + (128 << 10), .ss_size = 64 << 10};
    errno = 0;
    CHECK_QUIETLY(sigaltstack(&other, NULL) == -1 && errno == EPERM);
    seen.calls++;
}

static void the_stack_in_use_cannot_be_changed(void) {
    use_stack(static_stack, 64 << 10, 0);
    set_handler(SIGUSR1, try_to_change_stack, SA_ONSTACK);
    seen = (struct seen){0};
    CHECK(raise(SIGUSR1) == 0 && seen.calls == 1, "raise");
    set_default(SIGUSR1);
    use_no_stack();
}

static void expect_disarmed(int number, siginfo_t *info, void *context) {
    volatile char local = 1;
    (void)number, (void)info, (void)context;
    stack_t now;
    CHECK_QUIETLY(sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_DISABLE));
    CHECK_QUIETLY(lies_in_stack(&local));
    walk_in_handler();
    seen.calls++;
}

static void autodisarm_hides_the_stack_inside(void) {
    use_stack(static_stack, 64 << 10, (int)SS_AUTODISARM);
    set_handler(SIGUSR1, expect_disarmed, SA_ONSTACK);
    seen = (struct seen){0};
    for (int round = 1; round <= 3; round++) {
        CHECK(raise(SIGUSR1) == 0 && seen.calls == round, "raise");
        stack_t now;
        CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == static_stack && now.ss_flags == (int)SS_AUTODISARM,
            "armed again");
    }
    set_default(SIGUSR1);
    use_no_stack();
}

static volatile char *outer_local;

static void inner(int number, siginfo_t *info, void *context) {
    volatile char local = 1;
    (void)number, (void)info, (void)context;
    CHECK_QUIETLY(lies_in_stack(&local) && &local < outer_local);
    walk_in_handler();
    seen.calls++;
}

static void outer(int number, siginfo_t *info, void *context) {
    volatile char local = 1;
    (void)number, (void)info, (void)context;
    outer_local = &local;
    CHECK_QUIETLY(lies_in_stack(&local));
    walk_in_handler();
    CHECK_QUIETLY(raise(SIGUSR2) == 0 && seen.calls == 1);
    seen.calls++;
}

static void handlers_nest_on_one_stack(void) {
    use_stack(static_stack, 64 << 10, 0);
    set_handler(SIGUSR1, outer, SA_ONSTACK);
    set_handler(SIGUSR2, inner, SA_ONSTACK);
    for (int round = 0; round < 10; round++) {
        seen = (struct seen){0};
        CHECK(raise(SIGUSR1) == 0 && seen.calls == 2, "raise");
    }
    set_default(SIGUSR1);
    set_default(SIGUSR2);
    use_no_stack();
}

static sigjmp_buf back;

static void jump_back(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    volatile char local = 1;
    CHECK_QUIETLY(lies_in_stack(&local));
    walk_in_handler();
    siglongjmp(back, 1);
}

static void a_jump_off_the_stack_leaves_it_usable(void) {
    use_stack(static_stack, 64 << 10, 0);
    set_handler(SIGUSR1, jump_back, SA_ONSTACK);
    for (volatile int round = 0; round < 200; round++) {
        if (sigsetjmp(back, 1) == 0) {
            raise(SIGUSR1);
            CHECK(0, "the handler returned");
        }
        stack_t now;
        CHECK(sigaltstack(NULL, &now) == 0 && now.ss_flags == 0 && !is_blocked(SIGUSR1), "round %d", round);
    }
    set_default(SIGUSR1);
    use_no_stack();
}

static void *look_from_a_thread(void *argument) {
    stack_t now;
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_DISABLE, "a new thread has a stack");
    char *own = argument;
    stack_t mine = {.ss_sp = own, .ss_size = 64 << 10};
    CHECK(sigaltstack(&mine, NULL) == 0, "sigaltstack");
    walk();
    stack_start = own;
    stack_size = 64 << 10;
    seen = (struct seen){0};
    CHECK(raise(SIGUSR1) == 0 && seen.calls == 1 && seen.in_stack && seen.on_stack_flag, "raise");
    return NULL;
}

static void a_thread_has_its_own_stack_and_starts_with_none(void) {
    use_stack(static_stack, 64 << 10, 0);
    set_handler(SIGUSR1, look_at_stack, SA_ONSTACK);
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        char *own = round == 2 ? malloc(2 * MIB) : static_stack + (64 << 10);
        CHECK(own && pthread_create(&thread, NULL, look_from_a_thread, own) == 0, "pthread_create");
        CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
        if (round == 2) free(own);
    }
    stack_t now;
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == static_stack && now.ss_flags == 0,
        "the first thread's stack");
    set_default(SIGUSR1);
    use_no_stack();
}

/* --- dispositions -------------------------------------------------------------------------------- */

static void some_handler(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
}

static void plain_handler(int number) { (void)number; }

static void check_disposition(int number, void *handler, int flags, const sigset_t *mask, const char *what) {
    struct sigaction now;
    CHECK(sigaction(number, NULL, &now) == 0, "sigaction");
    CHECK((void *)now.sa_sigaction == handler, "%s: signal %d: handler %p", what, number,
        (void *)now.sa_sigaction);
    CHECK((now.sa_flags & ~RESTORER_FLAG) == flags, "%s: signal %d: flags %#x", what, number,
        (unsigned)now.sa_flags);
    for (int other = 1; mask && other <= SIGRTMAX; other++)
        CHECK(sigismember(&now.sa_mask, other) == sigismember(mask, other), "%s: signal %d: mask at %d", what,
            number, other);
}

static const int numbers[] = {SIGBUS, SIGSYS, SIGSEGV, SIGUSR1, SIGTRAP};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static void dispositions_read_back_what_was_set(void) {
    static const int flag_sets[] = {0, SA_RESTART, SA_ONSTACK | SA_NODEFER, SA_RESETHAND | SA_NOCLDSTOP,
        SA_RESTART | SA_ONSTACK | SA_NODEFER};
    sigset_t empty = set_of(0), mask = set_of(SIGUSR2);
    sigaddset(&mask, SIGBUS);
    sigaddset(&mask, SIGSYS);
    for (int i = 0; i < NUMBERS; i++) {
        int number = numbers[i];
        check_disposition(number, (void *)SIG_DFL, 0, &empty, "at first");
        for (size_t j = 0; j < sizeof flag_sets / sizeof *flag_sets; j++) {
            int flags = flag_sets[j] | SA_SIGINFO;
            struct sigaction action = {.sa_sigaction = some_handler, .sa_flags = flags, .sa_mask = mask}, old;
            CHECK(sigaction(number, &action, NULL) == 0, "sigaction");
            check_disposition(number, (void *)some_handler, flags, &mask, "set");
            walk_in_handler();
            struct sigaction plain = {.sa_handler = plain_handler, .sa_flags = flag_sets[j]};
            CHECK(sigaction(number, &plain, &old) == 0 && old.sa_sigaction == some_handler, "old handler");
            CHECK((old.sa_flags & ~RESTORER_FLAG) == flags && sigismember(&old.sa_mask, SIGBUS) == 1,
                "old flags and mask");
            check_disposition(number, (void *)plain_handler, flag_sets[j], &empty, "set plain");
        }
        CHECK(signal(number, SIG_IGN) == plain_handler && signal(number, plain_handler) == SIG_IGN,
            "signal(%d)", number);
        check_disposition(number, (void *)plain_handler, SA_RESTART, NULL, "by signal()");
        CHECK(signal(number, SIG_DFL) == plain_handler && signal(number, SIG_DFL) == SIG_DFL, "signal(%d)",
            number);
    }
    walk();
}

static void dispositions_are_read_and_written_in_evicted_memory(void) {
    char *far = map(BYTES);
    struct sigaction *action = (struct sigaction *)(far + 8 * MIB - 40),
        *old = (struct sigaction *)(far + 24 * MIB - 40);
    stack_t *stack = (stack_t *)(far + 40 * MIB - 8), *before = (stack_t *)(far + 48 * MIB - 8);
    for (int i = 0; i < NUMBERS; i++) {
        memset(action, 0, sizeof *action);
        action->sa_handler = plain_handler;
        action->sa_flags = SA_NODEFER;
        sigaddset(&action->sa_mask, SIGBUS);
        *stack = (stack_t){.ss_sp = static_stack, .ss_size = 64 << 10};
        churn();
        CHECK(sigaction(numbers[i], action, old) == 0 && old->sa_handler == SIG_DFL, "sigaction");
        churn();
        CHECK(sigaction(numbers[i], NULL, old) == 0 && old->sa_handler == plain_handler, "sigaction");
        CHECK(sigismember(&old->sa_mask, SIGBUS) == 1, "mask");
        CHECK(sigaltstack(stack, NULL) == 0 && sigaltstack(NULL, before) == 0
            && before->ss_sp == static_stack, "sigaltstack");
        set_default(numbers[i]);
    }
    use_no_stack();
    CHECK(munmap(far, BYTES) == 0, "munmap");
}

static void signals_that_cannot_be_caught_are_refused(void) {
    struct sigaction action = {.sa_handler = plain_handler}, now;
    static const int bad[] = {SIGKILL, SIGSTOP, 0, -1, 65, 1000};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        errno = 0;
        CHECK(sigaction(bad[i], &action, NULL) == -1 && errno == EINVAL, "sigaction(%d)", bad[i]);
        errno = 0;
        CHECK(signal(bad[i], plain_handler) == SIG_ERR && errno == EINVAL, "signal(%d)", bad[i]);
    }
    CHECK(sigaction(SIGKILL, NULL, &now) == 0 && now.sa_handler == SIG_DFL, "asking is allowed");
}

static void expect_handlers(void) {
    check_disposition(SIGBUS, (void *)some_handler, SA_SIGINFO, NULL, "in a child");
    check_disposition(SIGSYS, (void *)SIG_IGN, SA_RESTART, NULL, "in a child");
    CHECK(is_blocked(SIGBUS) && !is_blocked(SIGSYS), "mask in a child");
    walk();
}

static void a_child_has_its_parents_dispositions(void) {
    set_handler(SIGBUS, some_handler, 0);
    CHECK(signal(SIGSYS, SIG_IGN) == SIG_DFL, "signal");
    block(SIGBUS);
    CHECK(status_of_child(expect_handlers) == 0, "child");
    unblock(SIGBUS);
    set_default(SIGBUS);
    set_default(SIGSYS);
}

/* --- masks --------------------------------------------------------------------------------------- */

static void work_with_everything_blocked(char *scratch) {
    sigset_t all, now, before;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0, "pthread_sigmask");
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && all_are_blocked(&now), "read back");
    walk();
    pages_through_a_pipe(scratch, 0, 1024);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && all_are_blocked(&now), "read back after work");
    CHECK(sigprocmask(SIG_SETMASK, &before, &all) == 0 && all_are_blocked(&all), "old mask");
    CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0 && !sigismember(&now, SIGBUS)
        && !sigismember(&now, SIGUSR1), "unblocked");
    walk();
}

static void *blocked_thread(void *argument) {
    sigset_t now;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && all_are_blocked(&now), "inherited");
    walk();
    pages_through_a_pipe(argument, 4096, 512);
    sigset_t none = set_of(0);
    CHECK(pthread_sigmask(SIG_SETMASK, &none, &now) == 0 && all_are_blocked(&now), "old mask");
    work_with_everything_blocked(argument);
    return NULL;
}

static void memory_works_while_all_signals_are_blocked(void) {
    char *scratch = map(BYTES);
    work_with_everything_blocked(scratch);
    sigset_t all, before;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0, "pthread_sigmask");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, blocked_thread, scratch) == 0 && pthread_join(thread, NULL) == 0,
        "thread");
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0, "pthread_sigmask");
    CHECK(munmap(scratch, BYTES) == 0, "munmap");
}

static void masks_change_signal_by_signal(void) {
    for (int i = 0; i < NUMBERS; i++) {
        CHECK(!is_blocked(numbers[i]), "blocked at first");
        block(numbers[i]);
        walk_in_handler();
        for (int j = 0; j < NUMBERS; j++)
            CHECK(is_blocked(numbers[j]) == (i == j), "%d while %d is blocked", numbers[j], numbers[i]);
        unblock(numbers[i]);
        CHECK(!is_blocked(numbers[i]), "still blocked");
    }
    sigset_t set = set_of(SIGBUS);
    errno = 0;
    CHECK(sigprocmask(77, &set, NULL) == -1 && errno == EINVAL && !is_blocked(SIGBUS), "how");
    CHECK(pthread_sigmask(77, &set, NULL) == EINVAL, "how");
    char *far = map(BYTES);
    sigset_t *evicted = (sigset_t *)(far + 8 * MIB - 64), *old = (sigset_t *)(far + 40 * MIB - 64);
    *evicted = set;
    churn();
    CHECK(sigprocmask(SIG_BLOCK, evicted, old) == 0 && !sigismember(old, SIGBUS) && is_blocked(SIGBUS),
        "evicted sets");
    CHECK(raise(SIGBUS) == 0, "raise");
    churn();
    CHECK(sigpending(old) == 0 && sigismember(old, SIGBUS) && !sigismember(old, SIGSYS), "evicted set");
    int number = 0;
    churn();
    CHECK(sigwait(evicted, &number) == 0 && number == SIGBUS, "sigwait");
    unblock(SIGBUS);
    CHECK(munmap(far, BYTES) == 0, "munmap");
}

static volatile sig_atomic_t order[8], ordered;

static void look_at_mask(int number, siginfo_t *info, void *context) {
    (void)info;
    const ucontext_t *interrupted = context;
    CHECK_QUIETLY(is_blocked(number) && is_blocked(SIGBUS) && is_blocked(SIGUSR2) && !is_blocked(SIGTRAP));
    CHECK_QUIETLY(sigismember(&interrupted->uc_sigmask, SIGTTOU) == 1
        && !sigismember(&interrupted->uc_sigmask, SIGBUS));
    CHECK_QUIETLY(raise(SIGBUS) == 0 && ordered == 0);
    walk_in_handler();
    order[ordered++] = number;
}

static void note_order(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    walk_in_handler();
    order[ordered++] = number;
}

static void a_handlers_mask_holds_back_what_it_names(void) {
    for (int i = 0; i < 2; i++) {
        int number = i ? SIGSYS : SIGUSR1;
        struct sigaction action = {.sa_sigaction = look_at_mask, .sa_flags = SA_SIGINFO};
        sigaddset(&action.sa_mask, SIGBUS);
        sigaddset(&action.sa_mask, SIGUSR2);
        CHECK(sigaction(number, &action, NULL) == 0, "sigaction");
        set_handler(SIGBUS, note_order, 0);
        block(SIGTTOU);
        ordered = 0;
        CHECK(raise(number) == 0 && ordered == 2 && order[0] == number && order[1] == SIGBUS, "order %d %d",
            order[0], order[1]);
        CHECK(!is_blocked(SIGBUS) && !is_blocked(number) && is_blocked(SIGTTOU), "mask afterwards");
        unblock(SIGTTOU);
        set_default(number);
        set_default(SIGBUS);
    }
}

static void block_for_later(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    ucontext_t *interrupted = context;
    sigaddset(&interrupted->uc_sigmask, SIGUSR2);
    sigaddset(&interrupted->uc_sigmask, SIGBUS);
}

static void a_handler_may_change_the_mask_it_returns_to(void) {
    set_handler(SIGUSR1, block_for_later, 0);
    CHECK(raise(SIGUSR1) == 0, "raise");
    CHECK(is_blocked(SIGUSR2) && is_blocked(SIGBUS) && !is_blocked(SIGUSR1), "mask");
    walk();
    set_handler(SIGBUS, note_order, 0);
    ordered = 0;
    CHECK(raise(SIGBUS) == 0 && ordered == 0 && is_pending(SIGBUS), "held back");
    unblock(SIGBUS);
    CHECK(ordered == 1, "delivered");
    unblock(SIGUSR2);
    set_default(SIGUSR1);
    set_default(SIGBUS);
}

/* --- signals that are sent ----------------------------------------------------------------------- */

static siginfo_t last;
static volatile sig_atomic_t calls;

static void keep_info(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    last = *info;
    walk_in_handler();
    calls++;
}

static int send(int way, int number) {
    union sigval value = {.sival_int = 4711};
    if (way == 0) return kill(getpid(), number);
    if (way == 1) return raise(number);
    if (way == 2) return pthread_kill(pthread_self(), number);
    return sigqueue(getpid(), number, value);
}

static void check_info(int way, int number) {
    int code = way == 0 ? SI_USER : way == 3 ? SI_QUEUE : SI_TKILL;
    CHECK(last.si_signo == number && last.si_code == code, "signal %d, way %d: code %d", number, way,
        last.si_code);
    CHECK(last.si_pid == getpid() && last.si_uid == getuid(), "sender %d", last.si_pid);
    if (way == 3) CHECK(last.si_value.sival_int == 4711, "value %d", last.si_value.sival_int);
}

static void sent_signals_come_at_once_or_when_unblocked(void) {
    for (int i = 0; i < NUMBERS; i++) {
        int number = numbers[i];
        for (int way = 0; way < 4; way++) {
            set_handler(number, keep_info, way % 2 ? SA_ONSTACK : 0);
            calls = 0;
            memset(&last, 0, sizeof last);
            CHECK(send(way, number) == 0 && calls == 1, "signal %d, way %d: %d calls", number, way, calls);
            check_info(way, number);
            block(number);
            CHECK(!is_pending(number) && send(way, number) == 0 && calls == 1, "blocked");
            CHECK(is_pending(number), "not pending");
            if (way < 2) walk();
            CHECK(calls == 1 && is_pending(number), "came while blocked");
            memset(&last, 0, sizeof last);
            unblock(number);
            CHECK(calls == 2 && !is_pending(number), "did not come: %d", calls);
            check_info(way, number);
            set_default(number);
        }
    }
}

static void ignored_signals_do_nothing(void) {
    for (int i = 0; i < NUMBERS; i++) {
        int number = numbers[i];
        CHECK(signal(number, SIG_IGN) == SIG_DFL, "signal");
        for (int way = 0; way < 4; way++) CHECK(send(way, number) == 0, "send");
        walk_in_handler();
        set_handler(number, keep_info, 0);
        block(number);
        calls = 0;
        CHECK(raise(number) == 0 && is_pending(number), "pending");
        CHECK(signal(number, SIG_IGN) != SIG_ERR && !is_pending(number), "ignoring discards what is pending");
        set_handler(number, keep_info, 0);
        unblock(number);
        CHECK(calls == 0, "came though it was discarded");
        set_default(number);
    }
    walk();
}

static void expect_default(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    struct sigaction now;
    CHECK_QUIETLY(sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
    CHECK_QUIETLY(is_blocked(number));
    walk_in_handler();
    calls++;
}

static void reset_handlers_run_once(void) {
    for (int i = 0; i < NUMBERS; i++) {
        set_handler(numbers[i], expect_default, (int)SA_RESETHAND);
        calls = 0;
        CHECK(raise(numbers[i]) == 0 && calls == 1, "raise");
        struct sigaction now;
        CHECK(sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL, "still set");
        walk_in_handler();
    }
}

static volatile sig_atomic_t depth, deepest;

static void raise_again(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    depth++;
    calls++;
    if (depth > deepest) deepest = depth;
    if (calls < 3) {
        CHECK_QUIETLY(raise(number) == 0);
        walk_in_handler();
    }
    depth--;
}

static void nodefer_nests_and_its_absence_defers(void) {
    for (int i = 0; i < NUMBERS; i++)
        for (int nodefer = 0; nodefer < 2; nodefer++) {
            set_handler(numbers[i], raise_again, nodefer ? SA_NODEFER : 0);
            calls = depth = deepest = 0;
            CHECK(raise(numbers[i]) == 0 && calls == 3, "signal %d: %d calls", numbers[i], calls);
            CHECK(deepest == (nodefer ? 3 : 1), "signal %d: depth %d", numbers[i], deepest);
            set_default(numbers[i]);
        }
}

static int dying_signal, dying_way;

static void die_by_it(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    walk_in_handler();
    send(dying_way, dying_signal);
}

static void default_actions_end_the_program(void) {
    for (int i = 0; i < 2; i++)
        for (dying_way = 0; dying_way < 4; dying_way++) {
            dying_signal = numbers[i];
            int status = status_of_child(die_by_it);
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == dying_signal, "signal %d, way %d: status %#x",
                dying_signal, dying_way,
                  (unsigned)status);
        }
}

static void signals_come_from_another_process(void) {
    for (int i = 0; i < 2; i++) {
        set_handler(numbers[i], keep_info, 0);
        calls = 0;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            walk();
            _exit(kill(getppid(), numbers[i]) == 0 ? 0 : 1);
        }
        while (!calls) walk_in_handler();
        check_child(child, "sender");
        CHECK(last.si_code == SI_USER && last.si_pid == child, "sender %d", last.si_pid);
        set_default(numbers[i]);
    }
}

/* --- waiting ------------------------------------------------------------------------------------- */

static void waiting_takes_what_is_pending(void) {
    struct timespec soon = {0, 2000000};
    for (int i = 0; i < NUMBERS; i++) {
        int number = numbers[i], got = 0;
        sigset_t set = set_of(number);
        siginfo_t info;
        set_handler(number, keep_info, 0);
        calls = 0;
        block(number);
        errno = 0;
        CHECK(sigtimedwait(&set, &info, &soon) == -1 && errno == EAGAIN, "signal %d: nothing is pending",
            number);
        CHECK(raise(number) == 0 && sigtimedwait(&set, &info, &soon) == number, "sigtimedwait");
        /* glibc turns the SI_TKILL of raise into SI_USER here. */
        CHECK(info.si_signo == number && info.si_code == SI_USER && !is_pending(number), "code %d",
            info.si_code);
        CHECK(send(3, number) == 0 && sigwaitinfo(&set, &info) == number && info.si_value.sival_int == 4711,
            "sigwaitinfo");
        CHECK(kill(getpid(), number) == 0 && sigwait(&set, &got) == 0 && got == number, "sigwait");
        walk_in_handler();
        unblock(number);
        CHECK(calls == 0, "the handler ran");
        set_default(number);
    }
}

static void *wait_for_bus(void *argument) {
    sigset_t set = set_of(SIGBUS);
    int got = 0;
    walk();
    CHECK(sigwait(&set, &got) == 0 && got == SIGBUS, "sigwait");
    *(int *)argument = got;
    return NULL;
}

static void a_waiting_thread_gets_the_process_signal(void) {
    int got = 0;
    pthread_t thread;
    block(SIGBUS);
    CHECK(pthread_create(&thread, NULL, wait_for_bus, &got) == 0, "pthread_create");
    walk();
    CHECK(kill(getpid(), SIGBUS) == 0 && pthread_join(thread, NULL) == 0 && got == SIGBUS, "not received");
    CHECK(!is_pending(SIGBUS), "still pending");
    unblock(SIGBUS);
}

/* Waits with one signal let through, which is pending already: each way must be interrupted at once. */
static int wait_with(int way, const sigset_t *mask, struct timespec *limit, struct pollfd *poller,
    struct epoll_event *events) {
    static int queue = -1;
    if (queue < 0) queue = epoll_create1(EPOLL_CLOEXEC);
    if (way == 0) return sigsuspend(mask);
    if (way == 1) return ppoll(poller, 1, limit, mask);
    if (way == 2) return pselect(0, NULL, NULL, NULL, limit, mask);
    return epoll_pwait(queue, events, 4, limit ? 2 : -1, mask);
}

static void waiting_lets_through_what_its_mask_allows(void) {
    static const int allowed[] = {SIGUSR1, SIGBUS, SIGSYS};
    char *far = map(BYTES);
    sigset_t *mask = (sigset_t *)(far + 4 * MIB - 64);
    struct timespec *limit = (struct timespec *)(far + 20 * MIB - 8);
    struct pollfd *poller = (struct pollfd *)(far + 36 * MIB - 4);
    struct epoll_event *events = (struct epoll_event *)(far + 52 * MIB - 6);
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    for (int i = 0; i < 3; i++)
        for (int way = 0; way < 4; way++) {
            int number = allowed[i];
            set_handler(number, keep_info, SA_RESTART);
            block(number);
            calls = 0;
            CHECK(raise(number) == 0, "raise");
            sigfillset(mask);
            *limit = (struct timespec){0, 2000000};
            *poller = (struct pollfd){.fd = ends[0], .events = POLLIN};
            churn();
            if (way != 0)
                CHECK(wait_with(way, mask, limit, poller, events) == 0 && calls == 0,
                    "way %d: everything is blocked", way);
            sigdelset(mask, number);
            churn();
            errno = 0;
            CHECK(wait_with(way, mask, NULL, poller, events) == -1 && errno == EINTR, "way %d, signal %d",
                way, number);
            CHECK(calls == 1 && last.si_signo == number && is_blocked(number), "way %d: %d calls", way,
                calls);
            unblock(number);
            CHECK(calls == 1, "came again");
            set_default(number);
        }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && munmap(far, BYTES) == 0, "munmap");
}

static void a_signal_descriptor_writes_into_evicted_memory(void) {
    char *far = map(BYTES);
    struct signalfd_siginfo *info = (struct signalfd_siginfo *)(far + 20 * MIB - 64);
    sigset_t set = set_of(SIGUSR1);
    block(SIGUSR1);
    int file = signalfd(-1, &set, SFD_CLOEXEC);
    CHECK(file >= 0, "signalfd");
    fill(far, BYTES, 3);
    churn();
    CHECK(raise(SIGUSR1) == 0 && read(file, info, sizeof *info) == sizeof *info && info->ssi_signo == SIGUSR1,
        "read");
    unblock(SIGUSR1);
    CHECK(close(file) == 0 && munmap(far, BYTES) == 0, "munmap");
}

int main(void) {
    make_memory();
    RUN(handlers_run_on_a_static_stack);
    RUN(handlers_run_on_a_stack_that_was_evicted);
    RUN(without_a_stack_handlers_run_where_the_program_runs);
    RUN(bad_stacks_are_refused);
    RUN(the_stack_in_use_cannot_be_changed);
    RUN(autodisarm_hides_the_stack_inside);
    RUN(handlers_nest_on_one_stack);
    RUN(a_jump_off_the_stack_leaves_it_usable);
    RUN(a_thread_has_its_own_stack_and_starts_with_none);
    RUN(dispositions_read_back_what_was_set);
    RUN(dispositions_are_read_and_written_in_evicted_memory);
    RUN(signals_that_cannot_be_caught_are_refused);
    RUN(a_child_has_its_parents_dispositions);
    RUN(memory_works_while_all_signals_are_blocked);
    RUN(masks_change_signal_by_signal);
    RUN(a_handlers_mask_holds_back_what_it_names);
    RUN(a_handler_may_change_the_mask_it_returns_to);
    RUN(sent_signals_come_at_once_or_when_unblocked);
    RUN(ignored_signals_do_nothing);
    RUN(reset_handlers_run_once);
    RUN(nodefer_nests_and_its_absence_defers);
    RUN(default_actions_end_the_program);
    RUN(signals_come_from_another_process);
    RUN(waiting_takes_what_is_pending);
    RUN(a_waiting_thread_gets_the_process_signal);
    RUN(waiting_lets_through_what_its_mask_allows);
    RUN(a_signal_descriptor_writes_into_evicted_memory);
    return 0;
}
