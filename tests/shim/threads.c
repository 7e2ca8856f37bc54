/* Many threads with more memory than the budget: no write is lost and no stale byte seen, whatever else is
 * called.
 *
 * Seeded: SHIM_SEED (printed) and SHIM_OPS choose another run. Which thread comes first is the machine's
 * affair. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, PAGES_MOST = 6144, COUNTER_PAGES = 8192 };

static uint64_t seed = 1, ops = 12000;

struct worker {
    pthread_t thread;
    uint64_t random;
    size_t number, pages;
    char *start;
    uint32_t versions[PAGES_MOST]; /* 0: must be zero */
};

static struct worker workers[THREADS];

static uint64_t next(struct worker *worker, uint64_t below) {
    worker->random = mix(worker->random);
    return worker->random % below;
}

static uint64_t content(const struct worker *worker, size_t page) {
    return ((uint64_t)worker->number << 56) + ((uint64_t)page << 32) + worker->versions[page];
}

static void check_one(const struct worker *worker, const char *start, size_t page, const char *when) {
    const char *at = start + page * PAGE;
    int good = worker->versions[page] ? page_is(at, content(worker, page)) : page_is_zero(at);
    CHECK(good, "seed %llu, thread %zu, page %zu, version %u: other bytes %s", (unsigned long long)seed,
        worker->number, page,
          worker->versions[page], when);
}

static void write_one(struct worker *worker, size_t page) {
    worker->versions[page]++;
    fill_page(worker->start + page * PAGE, content(worker, page));
}

static void drop_some(struct worker *worker) {
    size_t count = 1 + next(worker, 200), first = next(worker, worker->pages - 200);
    CHECK(madvise(worker->start + first * PAGE, count * PAGE, MADV_DONTNEED) == 0, "madvise");
    memset(worker->versions + first, 0, count * sizeof *worker->versions);
}

static void replace_some(struct worker *worker) {
    size_t count = 1 + next(worker, 200), first = next(worker, worker->pages - 200);
    char *at = worker->start + first * PAGE;
    CHECK(mmap(at, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
        0) == at, "mmap");
    memset(worker->versions + first, 0, count * sizeof *worker->versions);
}

static void move_all(struct worker *worker) {
    size_t pages = PAGES_MOST / 2 + next(worker, PAGES_MOST / 2);
    char *moved = mremap(worker->start, worker->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    /* After MAP_FIXED and fork the range may consist of several kernel mappings, which mremap refuses to move
     * as one. */
    if (moved == MAP_FAILED && errno == EFAULT) return;
    CHECK(moved != MAP_FAILED, "mremap");
    size_t kept = pages < worker->pages ? pages : worker->pages;
    memset(worker->versions + kept, 0, (PAGES_MOST - kept) * sizeof *worker->versions);
    worker->start = moved;
    worker->pages = pages;
}

static void protect_some(struct worker *worker) {
    size_t count = 1 + next(worker, 50), first = next(worker, worker->pages - 50);
    CHECK(mprotect(worker->start + first * PAGE, count * PAGE, PROT_READ) == 0, "mprotect");
    for (size_t page = first; page < first + count; page++)
        check_one(worker, worker->start, page, "while read-only");
    CHECK(mprotect(worker->start + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
}

/* The child checks pages of the thread that forked: no other thread writes those. */
static void fork_once(struct worker *worker) {
    pid_t child = fork();
    if (child == 0) {
        for (size_t page = 0; page < worker->pages; page += 7)
            check_one(worker, worker->start, page, "in a child");
        for (size_t page = 0; page < worker->pages; page += 31) fill_page(worker->start + page * PAGE, 12345);
        _exit(0);
    }
    check_child(child, "forked by a thread");
}

static void one_operation(struct worker *worker) {
    uint64_t kind = next(worker, 2000);
    if (kind < 900) {
        write_one(worker, next(worker, worker->pages));
    } else if (kind < 1900) {
        size_t page = next(worker, worker->pages);
        check_one(worker, worker->start, page, "on reading");
    } else if (kind < 1940) {
        drop_some(worker);
    } else if (kind < 1960) {
        replace_some(worker);
    } else if (kind < 1980) {
        protect_some(worker);
    } else if (kind < 1998) {
        move_all(worker);
    } else {
        fork_once(worker);
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (uint64_t op = 0; op < ops; op++) one_operation(worker);
    for (size_t page = 0; page < worker->pages; page++) check_one(worker, worker->start, page, "at the end");
    CHECK(munmap(worker->start, worker->pages * PAGE) == 0, "munmap");
    return NULL;
}

static void threads_keep_their_pages(void) {
    for (size_t i = 0; i < THREADS; i++) {
        struct worker *worker = &workers[i];
        *worker = (struct worker){.random = mix(seed + i), .number = i + 1, .pages = PAGES_MOST};
        worker->start = map(PAGES_MOST * PAGE);
        for (size_t page = 0; page < PAGES_MOST; page++) write_one(worker, page);
    }
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "pthread_create");
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_join(workers[i].thread, NULL) == 0, "pthread_join");
}

/* One counter per word: a lost update or a page put back too old makes the sum too small. */
static atomic_uint_least64_t *counters;

static void *count_up(void *argument) {
    uint64_t random = (uint64_t)(uintptr_t)argument;
    for (uint64_t op = 0; op < ops * 4; op++) {
        random = mix(random);
        size_t page = random % COUNTER_PAGES, word = (random >> 32) % 8;
        atomic_fetch_add_explicit(&counters[page * (PAGE / 8) + word * 64], 1, memory_order_relaxed);
    }
    return NULL;
}

static void no_update_of_shared_pages_is_lost(void) {
    pthread_t threads[THREADS];
    counters = (atomic_uint_least64_t *)map(COUNTER_PAGES * PAGE * 3);
    fill((char *)counters + COUNTER_PAGES * PAGE, COUNTER_PAGES * PAGE * 2, 9);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, count_up, (void *)(uintptr_t)mix(seed + 100 + i)) == 0,
            "pthread_create");
    check_filled((char *)counters + COUNTER_PAGES * PAGE, COUNTER_PAGES * PAGE * 2, 9, "beside the counters");
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    uint64_t sum = 0;
    for (size_t word = 0; word < COUNTER_PAGES * PAGE / 8; word++) sum += counters[word];
    CHECK(sum == THREADS * ops * 4, "seed %llu: counted %llu of %llu", (unsigned long long)seed,
        (unsigned long long)sum,
          (unsigned long long)(THREADS * ops * 4));
    CHECK(munmap(counters, COUNTER_PAGES * PAGE * 3) == 0, "munmap");
}

static void *short_life(void *argument) {
    char *own = map(2 * MIB);
    fill(own, 2 * MIB, (uint64_t)(uintptr_t)argument);
    char *block = malloc(MIB);
    CHECK(block, "malloc");
    memset(block, 3, MIB);
    check_filled(own, 2 * MIB, (uint64_t)(uintptr_t)argument, "short-lived thread");
    free(block);
    CHECK(munmap(own, 2 * MIB) == 0, "munmap");
    return NULL;
}

static void threads_come_and_go(void) {
    for (size_t round = 0; round < 30; round++) {
        pthread_t threads[8];
        for (size_t i = 0; i < 8; i++)
            CHECK(pthread_create(&threads[i], NULL, short_life, (void *)(round * 1000 + i)) == 0,
                "pthread_create");
        for (size_t i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    }
}

int main(void) {
    if (getenv("SHIM_SEED")) seed = strtoull(getenv("SHIM_SEED"), NULL, 10);
    if (getenv("SHIM_OPS")) ops = strtoull(getenv("SHIM_OPS"), NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    RUN(threads_keep_their_pages);
    RUN(no_update_of_shared_pages_is_lost);
    RUN(threads_come_and_go);
    return 0;
}
