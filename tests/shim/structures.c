/* System calls whose structures lie in pages that are out, and System V memory over memory of one's own. */
#include "check.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#define ROUNDS 8

/* A page of its own whose first bytes are these, and which is out. */
static void *away(const void *bytes, size_t count) {
    char *page = map(PAGE * 64) + PAGE * 7;
    memcpy(page, bytes, count);
    churn();
    return page;
}

static void processor_sets(void) {
    cpu_set_t all;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity");
    for (int i = 0; i < ROUNDS; i++) {
        cpu_set_t *set = away(&all, sizeof all);
        if (i % 4 == 0) CHECK(sched_setaffinity(0, sizeof all, set) == 0, "sched_setaffinity");
        if (i % 4 == 1)
            CHECK(pthread_setaffinity_np(pthread_self(), sizeof all, set) == 0, "pthread_setaffinity_np");
        if (i % 4 == 2) CHECK(syscall(SYS_sched_setaffinity, 0, sizeof all, set) == 0, "by a system call");
        if (i % 4 == 3)
            CHECK(sched_getaffinity(0, sizeof all, set) == 0 && CPU_EQUAL(set, &all), "sched_getaffinity");
    }
    cpu_set_t *nothing = (void *)8;
    CHECK(sched_setaffinity(0, sizeof all, nothing) == -1 && errno == EFAULT, "nothing there");
}

static void parameters(void) {
    struct sched_param zero = {0};
    int policy;
    for (int i = 0; i < ROUNDS; i++) {
        struct sched_param *param = away(&zero, sizeof zero);
        if (i % 4 == 0) CHECK(sched_setscheduler(0, SCHED_OTHER, param) == 0, "sched_setscheduler");
        if (i % 4 == 1) CHECK(sched_setparam(0, param) == 0, "sched_setparam");
        if (i % 4 == 2) CHECK(sched_getparam(0, param) == 0 && param->sched_priority == 0, "sched_getparam");
        if (i % 4 == 3)
            CHECK(pthread_setschedparam(pthread_self(), SCHED_OTHER, param) == 0, "pthread_setschedparam");
        CHECK(pthread_getschedparam(pthread_self(), &policy, &zero) == 0 && policy == SCHED_OTHER,
            "pthread_getschedparam");
    }
}

static void *nothing_to_do(void *unused) { return unused; }

static void attributes_of_threads(void) {
    cpu_set_t all;
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0 && pthread_attr_init(&attributes) == 0, "attributes");
    CHECK(pthread_attr_setaffinity_np(&attributes, sizeof all, away(&all, sizeof all)) == 0, "set");
    churn();
    CHECK(pthread_create(&thread, &attributes, nothing_to_do, NULL) == 0 && pthread_join(thread, NULL) == 0,
        "thread");
    pthread_attr_destroy(&attributes);
}

/* System V memory replaces the middle of a mapping, is detached or unmapped, and the place can be used
 * again. */
static void shared_memory_over_a_mapping(void) {
    int id = shmget(IPC_PRIVATE, 16 * PAGE, IPC_CREAT | 0600);
    CHECK(id >= 0, "shmget");
    for (int i = 0; i < ROUNDS; i++) {
        char *area = map(4 * MIB), *middle = area + MIB;
        fill(area, 4 * MIB, 3);
        churn();
        CHECK(shmat(id, middle, 0) == (void *)-1 && errno == EINVAL, "occupied");
        CHECK(page_is(middle, 3 + MIB / PAGE), "kept");
        CHECK(shmat(id, middle, SHM_REMAP) == middle, "shmat");
        char *again = shmat(id, NULL, 0);
        CHECK(again != (void *)-1, "shmat elsewhere");
        fill(middle, 16 * PAGE, 90 + i);
        churn();
        check_filled(again, 16 * PAGE, 90 + i, "seen elsewhere");
        check_filled(area, MIB, 3, "before");
        check_filled(middle + 16 * PAGE, 2 * MIB, 3 + MIB / PAGE + 16, "behind");
        CHECK(shmdt(again) == 0, "shmdt elsewhere");
        if (i % 2) {
            CHECK(shmdt(middle) == 0 && shmdt(middle) == -1 && errno == EINVAL, "shmdt");
            CHECK(mmap(middle, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0) == middle, "mmap");
            check_zero(middle, 16 * PAGE, "the place again");
        }
        CHECK(munmap(area, 4 * MIB) == 0, "munmap");
        struct shmid_ds about;
        CHECK(shmctl(id, IPC_STAT, &about) == 0 && about.shm_nattch == 0, "still attached");
    }
    CHECK(shmctl(id, IPC_RMID, NULL) == 0, "shmctl");
}

static void programs_by_system_calls(void) {
    extern char **environ;
    for (int i = 0; i < ROUNDS; i++) {
        char *text = away("/bin/sh\0-c\0exit 7", 18);
        char **list = away((char *[]){text, text + 8, text + 11, NULL}, 4 * sizeof(char *));
        pid_t child = fork();
        if (child == 0) {
            if (i % 2)
                syscall(SYS_execve, text, list, environ);
            else
                syscall(SYS_execveat, AT_FDCWD, text, list, environ, 0);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7,
            "status %x", status);
    }
}

static void a_child_by_clone3(void) {
    for (int i = 0; i < ROUNDS; i++) {
        struct clone_args how = {.exit_signal = SIGCHLD};
        pid_t child = syscall(SYS_clone3, away(&how, sizeof how), sizeof how);
        if (child == 0) _exit(0);
        check_child(child, "clone3");
    }
}

int main(void) {
    RUN(processor_sets);
    RUN(parameters);
    RUN(attributes_of_threads);
    RUN(shared_memory_over_a_mapping);
    RUN(programs_by_system_calls);
    RUN(a_child_by_clone3);
    return 0;
}
