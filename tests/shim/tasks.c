/* Every thread that /proc/self/task names makes a system call when it is told to, as libpsx of libcap has it
 * done (2.72 and later): by a handler for the second of libc's own two signals. Whoever does not answer would
 * be waited for for ever. */
#include "gate.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>

enum { THREADS = 4, LIBCS_SIGNAL = 33, MOST = 64, ROUNDS = 300 };

static volatile int stop, started;
static int answers[MOST], told[MOST];
static char *memory[THREADS];
enum { BYTES = 24 << 20 };

static void answer(int number) {
    int saved = errno, me = (int)syscall(SYS_gettid);
    (void)number;
    int done = syscall(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0) >= 0;
    for (int n = 0; n < MOST; n++)
        if (told[n] == me) __atomic_add_fetch(&answers[n], done, __ATOMIC_ACQ_REL);
    errno = saved;
}

/* The kernel's own structure: libc does not let its signals be handled. */
struct action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

/* In the place of libc's own, with its way back from a handler. */
static void set_handler(struct action *before) {
    CHECK(syscall(SYS_rt_sigaction, LIBCS_SIGNAL, NULL, before, 8L) == 0, "rt_sigaction");
    struct action set = *before;
    CHECK(set.handler && set.restorer, "libc has not set its own");
    set.handler = answer, set.mask = ~0ul;
    CHECK(syscall(SYS_rt_sigaction, LIBCS_SIGNAL, &set, NULL, 8L) == 0, "rt_sigaction");
}

static void *work(void *at) {
    char *pages = at;
    for (uint64_t round = 0; !stop; round++) {
        fill(pages, BYTES, round);
        if (round == 0) __atomic_add_fetch(&started, 1, __ATOMIC_RELEASE);
        check_filled(pages, BYTES, round, "a thread's memory");
    }
    return NULL;
}

static int tell_all(void) {
    int count = 0, self = (int)syscall(SYS_gettid);
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks, "opendir");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        int id = atoi(entry->d_name);
        if (id == 0 || id == self) continue;
        CHECK(count < MOST, "threads");
        answers[count] = 0;
        __atomic_store_n(&told[count++], id, __ATOMIC_RELEASE);
        CHECK(syscall(SYS_tkill, id, LIBCS_SIGNAL) == 0, "tkill");
    }
    CHECK(closedir(tasks) == 0, "closedir");
    return count;
}

static void every_task_answers(void) {
    pthread_t threads[THREADS];
    struct action before;
    for (int n = 0; n < THREADS; n++) {
        memory[n] = map(BYTES);
        CHECK(pthread_create(&threads[n], NULL, work, memory[n]) == 0, "pthread_create");
    }
    while (__atomic_load_n(&started, __ATOMIC_ACQUIRE) < THREADS) usleep(1000);
    set_handler(&before); /* libc sets its own with the first thread */
    for (int round = 0; round < ROUNDS; round++) {
        int count = tell_all();
        CHECK(count >= THREADS, "%d threads", count);
        for (int n = 0; n < count; n++) {
            for (int tries = 0; __atomic_load_n(&answers[n], __ATOMIC_ACQUIRE) == 0; tries++) {
                CHECK(tries < 20000, "thread %d of %d does not answer", n, count);
                usleep(1000);
            }
        }
    }
    stop = 1;
    for (int n = 0; n < THREADS; n++) CHECK(pthread_join(threads[n], NULL) == 0, "join");
    CHECK(syscall(SYS_rt_sigaction, LIBCS_SIGNAL, &before, NULL, 8L) == 0, "rt_sigaction");
}

int main(void) {
    churn();
    RUN(every_task_answers);
    return 0;
}
