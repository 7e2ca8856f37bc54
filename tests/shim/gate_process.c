/* System calls about time, processes, signals and messages whose memory lies in pages that were pushed
 * out. */
#include "gate.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <time.h>

/* Newer than some headers. */
enum { FUTEX_WAIT_2 = 455, STATMOUNT = 457, LISTMOUNT = 458, LSM_LIST = 461 };

static void clocks_and_timers(void) {
    struct timespec *time = NEW(struct timespec, 1), *rest = NEW(struct timespec, 2);
    time->tv_nsec = 1000000;
    CALL(nanosleep, time, rest);
    CALL(clock_nanosleep, CLOCK_MONOTONIC, 0, time, rest);
    CALL(clock_gettime, CLOCK_THREAD_CPUTIME_ID, time);
    show("used", time->tv_sec < 1000);
    CALL(clock_getres, CLOCK_MONOTONIC, time);
    show("resolution", time->tv_nsec);
    CALL(gettimeofday, NEW(struct timeval, 1), object(2, 8));
    CALL(time, object(2, 8));
    show("now", *(long *)rest > 1500000000);
    CALL(times, NEW(struct tms, 3));
    CALL(adjtimex, object(3, 208));
    CALL(clock_adjtime, CLOCK_REALTIME, object(3, 208));
    struct itimerval *interval = NEW(struct itimerval, 4);
    interval->it_value.tv_sec = 1000;
    CALL(setitimer, ITIMER_VIRTUAL, interval, object(5, 32));
    CALL(getitimer, ITIMER_VIRTUAL, object(5, 32));
    show("left", ((struct itimerval *)(place(5) + 9 * PAGE - 8))->it_value.tv_sec >= 900);
    CALL(setitimer, ITIMER_VIRTUAL, object(4, 32), NULL);
    struct itimerspec *value = NEW(struct itimerspec, 6);
    value->it_value.tv_nsec = 1000000;
    int descriptor = timerfd_create(CLOCK_MONOTONIC, 0);
    CALL(timerfd_settime, descriptor, 0, value, object(7, 32));
    CALL(timerfd_gettime, descriptor, object(7, 32));
    show("read", CALL(read, descriptor, object(8, 8), 8));
    CHECK(close(descriptor) == 0, "close");
    struct sigevent *event = NEW(struct sigevent, 9);
    event->sigev_notify = SIGEV_NONE;
    int *timer = object(10, 4);
    CALL(timer_create, CLOCK_MONOTONIC, event, timer);
    value->it_value.tv_sec = 1000;
    CALL(timer_settime, *timer, 0, value, object(7, 32));
    CALL(timer_gettime, *timer, object(7, 32));
    show("left", ((struct itimerspec *)(place(7) + 9 * PAGE - 8))->it_value.tv_sec >= 900);
    CALL(timer_delete, *timer);
}

static void who_and_where(void) {
    struct utsname *names = NEW(struct utsname, 1);
    CALL(uname, names);
    printf("    %s %s\n", names->sysname, names->machine);
    struct sysinfo *system = NEW(struct sysinfo, 2);
    CALL(sysinfo, system);
    show("unit", system->mem_unit);
    CALL(getrusage, RUSAGE_SELF, NEW(struct rusage, 3));
    struct rlimit *limit = NEW(struct rlimit, 4);
    CALL(getrlimit, RLIMIT_CORE, limit);
    CALL(setrlimit, RLIMIT_CORE, limit);
    CALL(prlimit64, 0, RLIMIT_CORE, limit, object(5, 16));
    show("groups", CALL(getgroups, 64, object(6, 256)));
    uid_t *ids[] = {object(7, 4), object(8, 4), object(9, 4)};
    CALL(getresuid, ids[0], ids[1], ids[2]);
    printf("    %u %u %u\n", *ids[0], *ids[1], *ids[2]);
    CALL(getresgid, ids[0], ids[1], ids[2]);
    struct __user_cap_header_struct *header = object(10, 8);
    *header = (struct __user_cap_header_struct){_LINUX_CAPABILITY_VERSION_3, 0};
    CALL(capget, header, object(11, 24));
    show_sum("capabilities", place(11) + 9 * PAGE - 8, 24);
    show("cpus", CALL(sched_getaffinity, 0, 1024, object(12, 1024)) > 0);
    CALL(sched_setaffinity, 0, 128, place(12) + 9 * PAGE - 8);
    CALL(sched_getparam, 0, object(13, 4));
    CALL(sched_getattr, 0, object(13, 56), 56, 0);
    CALL(sched_setattr, 0, place(13) + 9 * PAGE - 8, 0);
    CALL(sched_rr_get_interval, 0, object(13, 16));
    CALL(getcpu, object(13, 4), object(14, 4), NULL);
    CALL(prctl, PR_SET_NAME, text(0, "gate-name"), 0, 0, 0);
    CALL(prctl, PR_GET_NAME, object(15, 16), 0, 0, 0);
    printf("    %s\n", place(15) + 9 * PAGE - 8);
    CALL(prctl, PR_GET_PDEATHSIG, object(15, 4), 0, 0, 0);
    uint64_t *base = object(16, 8);
    CALL(arch_prctl, 0x1003 /* ARCH_GET_FS */, base);
    show("thread", *base != 0);
    CALL(get_robust_list, 0, object(16, 8), object(17, 8));
    show("random", CALL(getrandom, place(18) + 100, 10000, 0));
    TRY("get_mempolicy", SYS_get_mempolicy, object(17, 4), object(18, 128), 1024, NULL, 0);
    *(uint32_t *)object(19, 4) = 0x7fff0000;
    TRY("seccomp", SYS_seccomp, 2, 0, place(19) + 9 * PAGE - 8);
    *(uint32_t *)object(19, 4) = 256;
    TRY("lsm_list_modules", LSM_LIST, object(20, 256), place(19) + 9 * PAGE - 8, 0);
    struct { uint32_t size, spare; uint64_t id, parameter; } *request = object(21, 24);
    request->size = 24, request->id = ~0ull;
    uint64_t *mounts = object(20, 800);
    TRY("listmount", LISTMOUNT, request, mounts, 100, 0);
    request->id = mounts[0], request->parameter = 1;
    TRY("statmount", STATMOUNT, request, object(20, 800), 800, 0);
    static char here[2 * PAGE];
    CALL(mincore, (uintptr_t)here & -PAGE, PAGE, object(22, 4));
}

static void note(int number) { (void)number; }

static void signals(void) {
    uint64_t *set = object(1, 8), *old = object(2, 8), usr1 = 1u << (SIGUSR1 - 1);
    struct sigaction action = {.sa_handler = note};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
    CALL(rt_sigaction, SIGUSR1, NULL, object(3, 32), 8);
    CALL(rt_sigaction, SIGUSR1, place(3) + 9 * PAGE - 8, object(4, 32), 8);
    *set = usr1;
    CALL(rt_sigprocmask, SIG_BLOCK, set, old, 8);
    show("was blocked", (*old & usr1) != 0);
    siginfo_t *info = NEW(siginfo_t, 5);
    info->si_code = SI_QUEUE, info->si_value.sival_int = 77;
    CALL(rt_sigqueueinfo, getpid(), SIGUSR1, info);
    CALL(rt_sigpending, object(2, 8), 8);
    show("pending", (*old & usr1) != 0);
    *NEW(struct timespec, 6) = (struct timespec){5, 0};
    show("signal", CALL(rt_sigtimedwait, set, NEW(siginfo_t, 5), place(6) + 9 * PAGE - 8, 8));
    show("value", info->si_value.sival_int);
    int descriptor = (int)CALL(signalfd4, -1, set, 8, SFD_NONBLOCK);
    CHECK(raise(SIGUSR1) == 0, "raise");
    show("read", CALL(read, descriptor, object(7, 128), 128));
    show("signal", *(int *)(place(7) + 9 * PAGE - 8));
    CHECK(close(descriptor) == 0 && raise(SIGUSR1) == 0, "close");
    CHECK(evicted(SYS_rt_sigsuspend, object(8, 8), 8) == -1 && errno == EINTR, "sigsuspend");
    CALL(rt_sigprocmask, SIG_UNBLOCK, set, NULL, 8);
    stack_t *stack = NEW(stack_t, 9);
    CALL(sigaltstack, NULL, stack);
    show("flags", stack->ss_flags);
}

static void ipc(void) {
    int queue = (int)TRY("msgget", SYS_msgget, IPC_PRIVATE, 0600);
    if (queue >= 0) {
        struct { long type; char bytes[3000]; } *letter = object(1, 3008);
        letter->type = 4;
        memset(letter->bytes, 'm', 3000);
        CALL(msgsnd, queue, letter, 3000, 0);
        show("received", CALL(msgrcv, queue, memset(letter, 0, 3008), 3000, 4, 0));
        show_sum("letter", letter, 3008);
        CALL(msgctl, queue, IPC_STAT, object(2, 120));
        CALL(msgctl, queue, IPC_RMID, NULL);
    }
    int semaphores = (int)TRY("semget", SYS_semget, IPC_PRIVATE, 100, 0600);
    if (semaphores >= 0) {
        struct sembuf *operations = object(3, 2 * sizeof *operations);
        operations[0] = (struct sembuf){0, 3, 0}, operations[1] = (struct sembuf){99, 5, 0};
        CALL(semop, semaphores, operations, 2);
        *NEW(struct timespec, 4) = (struct timespec){5, 0};
        CALL(semtimedop, semaphores, operations, 2, place(4) + 9 * PAGE - 8);
        uint16_t *values = object(5, 200);
        CALL(semctl, semaphores, 0, GETALL, values);
        printf("    %d %d\n", values[0], values[99]);
        CALL(semctl, semaphores, 0, SETALL, values);
        CALL(semctl, semaphores, 0, IPC_STAT, object(6, 104));
        CALL(semctl, semaphores, 0, IPC_RMID, 0);
    }
    int segment = (int)TRY("shmget", SYS_shmget, IPC_PRIVATE, 4096, 0600);
    if (segment >= 0) {
        CALL(shmctl, segment, IPC_STAT, object(7, 112));
        CALL(shmctl, segment, IPC_RMID, NULL);
    }
    struct mq_attr *attributes = NEW(struct mq_attr, 8);
    *attributes = (struct mq_attr){.mq_maxmsg = 4, .mq_msgsize = 256};
    char name[40];
    snprintf(name, sizeof name, "weir-gate-%d", getpid());
    int messages = (int)TRY("mq_open", SYS_mq_open, text(0, name), O_RDWR | O_CREAT | O_EXCL, 0600,
        attributes);
    if (messages >= 0) {
        CALL(mq_unlink, text(0, name));
        *NEW(struct timespec, 9) = (struct timespec){0, 0};
        void *when = place(9) + 9 * PAGE - 8;
        CALL(mq_timedsend, messages, memset(object(10, 256), 'q', 256), 200, 7, when);
        show("received", CALL(mq_timedreceive, messages, object(10, 256), 256, object(11, 4), when));
        show("priority", *(int *)(place(11) + 9 * PAGE - 8));
        CALL(mq_getsetattr, messages, NULL, object(8, 64));
        show("size", attributes->mq_msgsize);
        CHECK(close(messages) == 0, "close");
    }
}

static uint32_t *word;

static void *wait_for_word(void *unused) {
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return unused;
}

static void futexes(void) {
    word = object(1, 4);
    struct timespec *time = NEW(struct timespec, 2);
    time->tv_nsec = 1000000;
    CHECK(evicted(SYS_futex, word, FUTEX_WAIT, 0, time, NULL, 0) == -1 && errno == ETIMEDOUT, "wait");
    CHECK(evicted(SYS_futex, word, FUTEX_WAIT_PRIVATE, 1, time, NULL, 0) == -1 && errno == EAGAIN, "wait");
    CHECK(evicted(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, 0, time, NULL, 1) == -1 && errno == ETIMEDOUT,
        "wait");
    show("woken", CALL(futex, word, FUTEX_WAKE, 1, NULL, NULL, 0));
    show("woken", CALL(futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
    uint32_t *other = object(3, 4);
    show("requeued", CALL(futex, word, FUTEX_CMP_REQUEUE_PRIVATE, 1, 1, other, 0));
    CALL(futex, word, FUTEX_WAKE_OP_PRIVATE, 1, 1, other, FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 9));
    show("added", *other);
    struct futex_waitv *both = object(4, 2 * sizeof *both);
    both[0] = (struct futex_waitv){0, (uintptr_t)word, FUTEX_32 | FUTEX_PRIVATE_FLAG, 0};
    both[1] = (struct futex_waitv){6, (uintptr_t)other, FUTEX_32 | FUTEX_PRIVATE_FLAG, 0};
    TRY("futex_waitv", SYS_futex_waitv, both, 2, 0, time, CLOCK_MONOTONIC);
    TRY("futex_wait", FUTEX_WAIT_2, word, 1L, 0xffffffffL, FUTEX_32 | FUTEX_PRIVATE_FLAG, time,
        CLOCK_MONOTONIC);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_word, NULL) == 0, "pthread_create");
    for (int i = 0; i < 20; i++) evict();
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    CALL(futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
}

static void other_processes(void) {
    struct iovec *remote = vector(4, 8, 3000);
    for (int n = 8; n < 11; n++) fill(place(n), 30 * PAGE, (uint64_t)n + 70);
    show("copied", CALL(process_vm_readv, getpid(), vector(1, 12, 3000), 3, remote, 3, 0));
    show_sum("part", place(13) + 20 * PAGE - 100, 3000);
    show("copied", CALL(process_vm_writev, getpid(), vector(1, 12, 2000), 3, remote, 3, 0));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(3);
    int *status = object(1, 4);
    CHECK(CALL(wait4, child, status, 0, NEW(struct rusage, 2)) == child, "wait4");
    show("status", *status);
    child = fork();
    if (child == 0) _exit(4);
    siginfo_t *info = NEW(siginfo_t, 3);
    CALL(waitid, P_PID, child, info, WEXITED, NEW(struct rusage, 2));
    show("status", info->si_status);
}

/* Argument and environment arrays with their strings in pages that are out. */
static char **strings(int n, const char *const *from) {
    char **list = object(n, 128);
    char *at = place(n) + 20 * PAGE - 5;
    for (int i = 0; from[i]; i++) {
        list[i] = strcpy(at, from[i]);
        at += strlen(at) + 1;
    }
    return list;
}

static void started_programs(void) {
    char path[PAGE] = "";
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0, "readlink");
    char **arguments = strings(1, (const char *const[]){"gate_process", "child",
        "a word from a page that was out", NULL});
    char **variables = strings(2, (const char *const[]){"GATE=open", "PATH=/usr/bin:/bin", NULL});
    fflush(stdout);
    evict();
    pid_t child = fork();
    if (child == 0) {
        text(0, path);
        evict();
        execve(place(0) + 5 * PAGE - 3, arguments, variables);
        _exit(99);
    }
    check_child(child, "execve");
    evict();
    child = vfork();
    if (child == 0) {
        execve(path, arguments, variables);
        _exit(99);
    }
    check_child(child, "execve after vfork");
    text(0, path);
    evict();
    CHECK(posix_spawn(&child, place(0) + 5 * PAGE - 3, NULL, NULL, arguments, variables) == 0, "posix_spawn");
    check_child(child, "posix_spawn");
    strings(1, (const char *const[]){"echo", "found by its name", NULL});
    text(0, "echo");
    evict();
    CHECK(posix_spawnp(&child, place(0) + 5 * PAGE - 3, NULL, NULL, arguments, variables) == 0,
        "posix_spawnp");
    check_child(child, "posix_spawnp");
    text(0, "exit 0");
    evict();
    CHECK(system(place(0) + 5 * PAGE - 3) == 0, "system");
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "child") == 0) {
        const char *value = getenv("GATE");
        printf("    child: %s, %s\n", arguments[2], value ? value : "nothing");
        return 0;
    }
    take_places();
    GROUP(clocks_and_timers);
    GROUP(who_and_where);
    GROUP(signals);
    GROUP(ipc);
    GROUP(futexes);
    GROUP(other_processes);
    GROUP(started_programs);
    return 0;
}
