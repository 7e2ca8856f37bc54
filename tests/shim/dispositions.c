/* Dispositions that change while something is under way: signals of other threads, children that share memory
 * or were forked before there was much of it. */
#include "handlers.h"

static volatile sig_atomic_t caught;
static volatile int done;

static void count(int number, siginfo_t *info, void *context) {
    (void)context;
    CHECK_QUIETLY(info->si_signo == number);
    caught++;
    walk_in_handler();
}

static void plain(int number) {
    CHECK_QUIETLY(number == SIGBUS || number == SIGUSR1);
    caught++;
}

static void set_simple(int number, void (*handler)(int)) {
    CHECK(signal(number, handler) != SIG_ERR, "signal");
}

/* Before anything large was asked for: it has signals and, later, memory of its own. */
static void signals_of_a_small_process(void) {
    set_simple(SIGBUS, plain);
    set_simple(SIGUSR1, plain);
    make_memory();
    for (int i = 0; i < 3; i++) {
        walk();
        CHECK(raise(SIGUSR1) == 0 && raise(SIGBUS) == 0, "raise");
    }
    CHECK(caught == 6, "%d signals", (int)caught);
    struct sigaction action;
    CHECK(sigaction(SIGBUS, NULL, &action) == 0 && action.sa_handler == plain, "SIGBUS");
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_handler == plain, "SIGUSR1");
    CHECK(!(action.sa_flags & SA_ONSTACK), "flags %#x", (unsigned)action.sa_flags);
    size_t stack_bytes = 256 << 10;
    stack_t stack = {.ss_sp = map(stack_bytes), .ss_size = stack_bytes};
    CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    set_handler(SIGUSR1, count, SA_ONSTACK);
    walk();
    CHECK(raise(SIGUSR1) == 0 && caught == 7, "%d signals", (int)caught);
}

static void a_child_forked_while_small_has_its_own_signals_when_large(void) {
    int status = status_of_child(signals_of_a_small_process);
    CHECK(status == 0, "status %#x", (unsigned)status);
}

static void *send_all_the_time(void *arg) {
    (void)arg;
    while (!done) CHECK(raise(SIGUSR1) == 0, "raise");
    return NULL;
}

static void a_thread_gets_signals_while_another_ignores_them(void) {
    pthread_t sender;
    set_handler(SIGUSR1, count, 0);
    caught = 0;
    done = 0;
    CHECK(pthread_create(&sender, NULL, send_all_the_time, NULL) == 0, "pthread_create");
    for (int i = 0; i < 20000 || caught < 1000; i++) {
        set_handler(SIGUSR1, count, i % 3 ? 0 : SA_ONSTACK);
        set_simple(SIGUSR1, SIG_IGN);
    }
    done = 1;
    CHECK(pthread_join(sender, NULL) == 0, "pthread_join");
    set_default(SIGUSR1);
}

static void *change_all_the_time(void *arg) {
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        set_handler(SIGUSR2, count, 0);
        set_simple(SIGUSR2, SIG_IGN);
    }
    return NULL;
}

static void threads_that_set_one_signal_leave_what_was_set_last(void) {
    pthread_t threads[2];
    set_handler(SIGUSR2, count, 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, change_all_the_time, NULL) == 0, "pthread_create");
    for (int i = 0; i < 20000; i++) {
        struct sigaction action;
        CHECK(sigaction(SIGUSR2, NULL, &action) == 0, "sigaction");
        CHECK(action.sa_handler == SIG_IGN || action.sa_sigaction == count, "handler %p",
            (void *)action.sa_handler);
        CHECK(raise(SIGUSR2) == 0, "raise");
    }
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    set_default(SIGUSR2);
}

/* What interpreters do between vfork and exec: no handler of the parent's may run in the child. */
static void reset_all_signals(void) {
    struct sigaction action, standard = {.sa_handler = SIG_DFL};
    for (int number = 1; number < _NSIG; number++) {
        if (number == SIGKILL || number == SIGSTOP || sigaction(number, NULL, &action) != 0) continue;
        if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue;
        sigaction(number, &standard, NULL);
    }
}

static void a_vfork_child_that_resets_all_signals_has_its_memory(void) {
    set_handler(SIGBUS, count, 0);
    set_handler(SIGUSR1, count, 0);
    sigset_t all, before;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0, "pthread_sigmask");
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        CHECK(child >= 0, "vfork");
        if (child == 0) {
            reset_all_signals();
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            walk();
            execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
            _exit(127);
        }
        check_child(child, "after vfork");
    }
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0, "pthread_sigmask");
    caught = 0;
    CHECK(raise(SIGBUS) == 0 && raise(SIGUSR1) == 0 && caught == 2, "%d signals: the child took the handlers",
        (int)caught);
    walk();
    set_default(SIGBUS);
    set_default(SIGUSR1);
}

static void handlers_set_after_siginterrupt_interrupt(void) {
    struct sigaction action;
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    CHECK(siginterrupt(SIGUSR1, 1) == 0, "siginterrupt");
    set_simple(SIGUSR1, plain);
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && !(action.sa_flags & SA_RESTART), "flags %#x",
        (unsigned)action.sa_flags);
    CHECK(siginterrupt(SIGUSR1, 0) == 0, "siginterrupt");
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_flags & SA_RESTART, "flags %#x",
        (unsigned)action.sa_flags);
    CHECK(action.sa_handler == plain, "handler");
    set_simple(SIGUSR1, plain);
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_flags & SA_RESTART, "flags %#x",
        (unsigned)action.sa_flags);
    set_default(SIGUSR1);
}

int main(void) {
    RUN(a_child_forked_while_small_has_its_own_signals_when_large);
    make_memory();
    RUN(a_thread_gets_signals_while_another_ignores_them);
    RUN(threads_that_set_one_signal_leave_what_was_set_last);
    RUN(a_vfork_child_that_resets_all_signals_has_its_memory);
    RUN(handlers_set_after_siginterrupt_interrupt);
    return 0;
}
