/* More threads than one would think of, all of them waiting at once in memory that was pushed out: on
 * condition variables of one array, and for bytes of a pipe. */
#include "gate.h"

#include <pthread.h>
#include <sys/stat.h>

/* More calls under way than a first table of them would hold; each thread has a small stack. Their number
 * stands in xtask/src/shim.rs as well: the budget follows from it. */
enum { THREADS = 2600, STACK = 32 << 10 };
/* More than the budget and what the stacks take of it. */
#define LARGE (128 * MIB)

struct seat {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    int called, left;
    uint64_t word;
    char spare[400];
};

static struct seat *seats;
static int waiting;
static int ends[2];

static void *sit(void *at) {
    struct seat *seat = at;
    CHECK(pthread_mutex_lock(&seat->mutex) == 0, "lock");
    __atomic_add_fetch(&waiting, 1, __ATOMIC_RELEASE);
    while (!seat->called) CHECK(pthread_cond_wait(&seat->condition, &seat->mutex) == 0, "wait");
    seat->left = 1;
    CHECK(pthread_mutex_unlock(&seat->mutex) == 0, "unlock");
    return NULL;
}

static void *take(void *at) {
    struct seat *seat = at;
    __atomic_add_fetch(&waiting, 1, __ATOMIC_RELEASE);
    CHECK(read(ends[0], &seat->word, 8) == 8, "read");
    return NULL;
}

static void start(pthread_t *threads, void *(*function)(void *)) {
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, STACK) == 0, "attributes");
    waiting = 0;
    for (int n = 0; n < THREADS; n++) {
        int error = pthread_create(&threads[n], &small, function, &seats[n]);
        CHECK(error == 0, "thread %d of %d: %s", n, THREADS, strerror(error));
    }
    while (__atomic_load_n(&waiting, __ATOMIC_ACQUIRE) < THREADS) usleep(1000);
}

static void end(pthread_t *threads) {
    for (int n = 0; n < THREADS; n++) CHECK(pthread_join(threads[n], NULL) == 0, "join");
}

/* Calls of another thread work meanwhile, also those that cannot be made in pieces. */
static void others_work(void) {
    struct stat *about = NEW(struct stat, 1);
    CHECK(evicted(SYS_stat, text(0, "/"), about) == 0 && S_ISDIR(about->st_mode), "stat");
    struct iovec part = {place(2) + 100, 3 * PAGE}, into = {place(3) + 100, 3 * PAGE};
    fill(place(2), 5 * PAGE, 5);
    struct iovec *copied = memcpy(object(4, sizeof part), &part, sizeof part);
    struct iovec *here = memcpy(object(5, sizeof into), &into, sizeof into);
    CHECK(evicted(SYS_process_vm_readv, getpid(), here, 1, copied, 1, 0) == 3 * PAGE, "process_vm_readv");
    CHECK(memcmp(place(2) + 100, place(3) + 100, 3 * PAGE) == 0, "copied");
}

static pthread_t threads[THREADS];

static void thousands_wait_on_condition_variables(void) {
    start(threads, sit);
    for (int n = 0; n < THREADS; n++) {
        /* Whoever has counted itself has let go of its mutex only by waiting. */
        CHECK(pthread_mutex_lock(&seats[n].mutex) == 0 && pthread_mutex_unlock(&seats[n].mutex) == 0,
            "mutex");
    }
    churn();
    others_work();
    for (int n = 0; n < THREADS; n++) {
        CHECK(pthread_mutex_lock(&seats[n].mutex) == 0, "lock");
        seats[n].called = 1;
        CHECK(pthread_cond_signal(&seats[n].condition) == 0 && pthread_mutex_unlock(&seats[n].mutex) == 0,
            "signal");
    }
    end(threads);
    for (int n = 0; n < THREADS; n++) CHECK(seats[n].left == 1, "thread %d", n);
}

static void thousands_wait_for_bytes(void) {
    CHECK(pipe(ends) == 0, "pipe");
    start(threads, take);
    churn();
    others_work();
    for (uint64_t n = 1; n <= THREADS; n++) CHECK(write(ends[1], &n, 8) == 8, "write");
    end(threads);
    uint64_t sum_of_all = 0;
    for (int n = 0; n < THREADS; n++) sum_of_all += seats[n].word;
    CHECK(sum_of_all == (uint64_t)THREADS * (THREADS + 1) / 2, "sum %llu", (unsigned long long)sum_of_all);
}

int main(void) {
    char *large = map(LARGE);
    fill(large, LARGE, 9); /* large by now: all places are alike */
    take_places();
    seats = calloc(THREADS, sizeof *seats);
    CHECK(seats, "calloc");
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_mutex_init(&seats[n].mutex, NULL) == 0 && pthread_cond_init(&seats[n].condition,
            NULL) == 0, "init");
    churn();
    RUN(thousands_wait_on_condition_variables);
    RUN(thousands_wait_for_bytes);
    check_filled(large, LARGE, 9, "what was there before");
    return 0;
}
