/* Memory whose address the kernel keeps, and uses by itself when it is out: robust mutexes of threads and
 * processes that end, the word that is cleared at a thread's end, the byte that says whether system calls
 * pass. */
#include "gate.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

/* Nothing here takes so long unless it would take for ever. */
enum { PATIENCE_S = 20 };

static volatile int ready, go, who;

static void until(volatile int *flag) {
    while (!*flag) usleep(1000);
}

/* Waits for a thread's end without looking at what the kernel writes then. */
static void until_gone(int thread) {
    while (syscall(SYS_tgkill, getpid(), thread, 0) == 0) usleep(1000);
    CHECK(errno == ESRCH, "tgkill");
}

static pthread_mutex_t *robust_mutex(void *at, int protocol, int shared) {
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0, "attributes");
    CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0, "robust");
    CHECK(pthread_mutexattr_setprotocol(&attributes, protocol) == 0, "protocol");
    CHECK(pthread_mutexattr_setpshared(&attributes, shared) == 0, "shared");
    CHECK(pthread_mutex_init(at, &attributes) == 0, "init");
    CHECK(pthread_mutexattr_destroy(&attributes) == 0, "attributes");
    return at;
}

static void check_died(pthread_mutex_t *mutex, const char *what) {
    struct timespec end;
    CHECK(clock_gettime(CLOCK_REALTIME, &end) == 0, "clock");
    end.tv_sec += PATIENCE_S;
    int got = pthread_mutex_timedlock(mutex, &end);
    CHECK(got == EOWNERDEAD, "%s: %s instead of EOWNERDEAD", what, strerror(got));
    CHECK(pthread_mutex_consistent(mutex) == 0 && pthread_mutex_unlock(mutex) == 0, "%s: consistent", what);
    CHECK(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0, "%s: lock", what);
}

enum { MUTEXES = 6 };
static pthread_mutex_t *mutexes[MUTEXES];

static void *hold_all(void *how) {
    for (int n = 0; n < MUTEXES; n++) CHECK(pthread_mutex_lock(mutexes[n]) == 0, "lock");
    ready = 1;
    until(&go);
    if (how) pthread_exit(how);
    return how;
}

static void a_thread_ends_with_robust_mutexes(void) {
    for (long round = 0; round < 4; round++) {
        for (int n = 0; n < MUTEXES; n++) {
            int inherits = n % 2 ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE;
            mutexes[n] = robust_mutex(place(10 + n) + 9 * PAGE - 16 * (round % 2), inherits,
                PTHREAD_PROCESS_PRIVATE);
        }
        pthread_t thread;
        ready = go = 0;
        CHECK(pthread_create(&thread, NULL, hold_all, (void *)(round / 2)) == 0, "pthread_create");
        until(&ready);
        evict();
        churn();
        go = 1;
        CHECK(pthread_join(thread, NULL) == 0, "join");
        evict();
        for (int n = 0; n < MUTEXES; n++) check_died(mutexes[n], "thread");
    }
}

static void a_killed_process_held_some_of_its_own_and_one_of_both(void) {
    char *both = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(both != MAP_FAILED, "mmap");
    pthread_mutex_t *shared = robust_mutex(both, PTHREAD_PRIO_NONE, PTHREAD_PROCESS_SHARED);
    volatile int *told = (int *)(both + 2048);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(pthread_mutex_lock(shared) == 0, "lock");
        for (int n = 0; n < MUTEXES; n++) {
            robust_mutex(mutexes[n], PTHREAD_PRIO_NONE, PTHREAD_PROCESS_PRIVATE);
            CHECK(pthread_mutex_lock(mutexes[n]) == 0, "lock");
        }
        evict();
        churn();
        *told = 1;
        for (;;) pause();
    }
    CHECK(child > 0, "fork");
    until(told);
    CHECK(kill(child, SIGKILL) == 0, "kill");
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "wait");
    check_died(shared, "process");
    CHECK(munmap(both, PAGE) == 0, "munmap");
}

/* Waits until the kernel has cleared a word and woken us. */
static void wait_for_zero(uint32_t *word, const char *what) {
    struct timespec patience = {PATIENCE_S, 0};
    uint32_t seen;
    while ((seen = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != 0) {
        if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &patience, NULL, 0) == 0) continue;
        CHECK(errno == EAGAIN || errno == EINTR, "%s: the word is still %u", what, *word);
    }
}

static void *name_another_word(void *word) {
    *(uint32_t *)word = 7;
    who = (int)syscall(SYS_set_tid_address, word);
    CHECK(who == syscall(SYS_gettid), "set_tid_address");
    ready = 1;
    until(&go);
    return NULL;
}

static void a_word_is_cleared_at_the_end_of_a_thread(void) {
    uint32_t *word = object(16, 4);
    pthread_attr_t alone;
    pthread_t thread;
    CHECK(pthread_attr_init(&alone) == 0, "attributes");
    CHECK(pthread_attr_setdetachstate(&alone, PTHREAD_CREATE_DETACHED) == 0, "detached");
    ready = go = 0;
    CHECK(pthread_create(&thread, &alone, name_another_word, word) == 0, "pthread_create");
    until(&ready);
    evict();
    churn();
    go = 1;
    until_gone(who);
    wait_for_zero(word, "set_tid_address");
}

/* Without libc: it shares its creator's thread pointer. */
static int only_wait(void *unused) {
    (void)unused;
    while (!go) __builtin_ia32_pause();
    return 0;
}

static void a_word_given_to_clone_is_cleared(void) {
    uint32_t *word = object(17, 4);
    *word = 7;
    static char stack[64 << 10] __attribute__((aligned(64)));
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM
        | CLONE_CHILD_CLEARTID;
    go = 0;
    who = clone(only_wait, stack + sizeof stack, flags, NULL, NULL, NULL, word);
    CHECK(who > 0, "clone");
    evict();
    churn();
    go = 1;
    until_gone(who);
    wait_for_zero(word, "clone");
}

/* Ends by a system call without touching memory any more, on a stack whose pages, libc's notes about the
 * thread among them, were pushed out. */
static void *end_silently(void *unused) {
    who = (int)syscall(SYS_gettid);
    ready = 1;
    __asm__ volatile("1: pause\n cmpl $0, %0\n je 1b\n mov $60, %%eax\n xor %%edi, %%edi\n syscall" :
        : "m"(go) : "rax", "rdi");
    return unused;
}

static void a_stack_that_was_given_to_a_thread(void) {
    for (int round = 0; round < 2; round++) {
        pthread_attr_t given;
        pthread_t thread;
        CHECK(pthread_attr_init(&given) == 0 && pthread_attr_setstack(&given, place(18), MIB) == 0, "stack");
        ready = go = 0;
        CHECK(pthread_create(&thread, &given, end_silently, NULL) == 0, "pthread_create");
        until(&ready);
        evict();
        churn();
        go = 1;
        until_gone(who);
        struct timespec end;
        CHECK(clock_gettime(CLOCK_REALTIME, &end) == 0, "clock");
        end.tv_sec += PATIENCE_S;
        int got = pthread_timedjoin_np(thread, NULL, &end);
        CHECK(got == 0, "the thread's end: %s", strerror(got));
    }
}

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static volatile unsigned char *selector;
static volatile int dispatched;

static void on_dispatch(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    *selector = 0;
    dispatched = info->si_syscall;
}

static void calls_pass_while_their_selector_is_out(void) {
    selector = object(19, 1);
    struct sigaction action = {.sa_sigaction = on_dispatch, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0, "sigaction");
    int had = prctl(PR_SET_SYSCALL_USER_DISPATCH, 1L, 0L, 0L, selector);
    if (had != 0) {
        CHECK(errno == EINVAL, "dispatch"); /* as before Linux 5.11 */
        return;
    }
    evict();
    churn();
    for (int n = 0; n < 100; n++) {
        evict();
        CHECK(getppid() > 0, "getppid");
    }
    evict();
    *selector = 1;
    syscall(SYS_getppid);
    CHECK(dispatched == SYS_getppid, "dispatched");
    CHECK(prctl(PR_SET_SYSCALL_USER_DISPATCH, 0L, 0L, 0L, 0L) == 0, "off");
    CHECK(signal(SIGSYS, SIG_DFL) != SIG_ERR, "signal");
}

int main(void) {
    churn(); /* large by now: all places are alike */
    take_places();
    GROUP(a_thread_ends_with_robust_mutexes);
    GROUP(a_killed_process_held_some_of_its_own_and_one_of_both);
    GROUP(a_word_is_cleared_at_the_end_of_a_thread);
    GROUP(a_word_given_to_clone_is_cleared);
    GROUP(a_stack_that_was_given_to_a_thread);
    GROUP(calls_pass_while_their_selector_is_out);
    return 0;
}
