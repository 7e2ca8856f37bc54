/* Blocks larger than the budget keep their bytes: while they grow, shrink, and change threads. */
#include "check.h"

#include <malloc.h>
#include <pthread.h>

/* Words, not pages: a block from malloc need not begin on a page. */
static void fill_words(uint64_t *words, size_t from, size_t to, uint64_t seed) {
    for (size_t i = from; i < to; i++) words[i] = page_word(seed + i / 512, i % 512);
}

static void check_words(const uint64_t *words, size_t to, uint64_t seed, const char *what) {
    for (size_t i = 0; i < to; i++)
        CHECK(words[i] == page_word(seed + i / 512, i % 512), "%s: word %zu of %zu", what, i, to);
}

static void growing_keeps_bytes(void) {
    size_t size = 1000;
    uint64_t *words = NULL;
    size_t filled = 0;
    while (size < 100 * MIB) {
        words = realloc(words, size);
        CHECK(words, "realloc to %zu", size);
        check_words(words, filled < 131072 ? filled : 131072, 5, "after growing");
        fill_words(words, filled, size / 8, 5);
        filled = size / 8;
        size = size * 3 / 2;
    }
    check_words(words, filled, 5, "at the end");
    /* Shrinks across the limits at which allocators change their ways. */
    for (; size > 1000; size /= 3) {
        words = realloc(words, size);
        CHECK(words, "realloc down to %zu", size);
        check_words(words, filled < size / 8 ? filled : size / 8, 5, "after shrinking");
    }
    free(words);
}

static void two_growing_blocks_do_not_mix(void) {
    uint64_t *one = NULL, *two = NULL;
    for (size_t mib = 1; mib <= 48; mib += mib < 8 ? 1 : 8) {
        one = realloc(one, mib * MIB);
        two = realloc(two, mib * MIB);
        CHECK(one && two, "realloc to %zu MiB", mib);
        fill_words(one, 0, mib * MIB / 8, 100);
        fill_words(two, 0, mib * MIB / 8, 900);
        check_words(one, mib * MIB / 8, 100, "first");
    }
    free(one);
    check_words(two, 40 * MIB / 8, 900, "second after the first was freed");
    free(two);
}

static void many_blocks_survive_pressure(void) {
    enum { BLOCKS = 400 };
    static uint64_t *blocks[BLOCKS];
    static size_t counts[BLOCKS];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < BLOCKS; i++) {
            if (round && i % 3 != (size_t)round) continue;
            free(blocks[i]);
            counts[i] = (mix(i + 1000 * (uint64_t)round) % (400 << 10)) / 8 + 1;
            blocks[i] = malloc(counts[i] * 8);
            CHECK(blocks[i], "malloc");
            fill_words(blocks[i], 0, counts[i], i);
        }
        for (size_t i = 0; i < BLOCKS; i++) check_words(blocks[i], counts[i], i, "one of many");
    }
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[i]);
}

/* A queue of one place: the producer allocates, the consumer checks and frees. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t *block;
    size_t count;
    int done;
} place = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *consumer(void *unused) {
    (void)unused;
    for (uint64_t number = 0;; number++) {
        pthread_mutex_lock(&place.lock);
        while (!place.block && !place.done) pthread_cond_wait(&place.changed, &place.lock);
        uint64_t *block = place.block;
        size_t count = place.count;
        place.block = NULL;
        pthread_cond_signal(&place.changed);
        pthread_mutex_unlock(&place.lock);
        if (!block) return NULL;
        check_words(block, count, number, "in the other thread");
        free(block);
    }
}

static void another_thread_may_free(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, consumer, NULL) == 0, "pthread_create");
    for (uint64_t number = 0; number < 300; number++) {
        size_t count = number % 10 ? 1 + mix(number) % 20000 : 4 * MIB / 8;
        uint64_t *block = malloc(count * 8);
        CHECK(block, "malloc");
        fill_words(block, 0, count, number);
        pthread_mutex_lock(&place.lock);
        while (place.block) pthread_cond_wait(&place.changed, &place.lock);
        place.block = block;
        place.count = count;
        pthread_cond_signal(&place.changed);
        pthread_mutex_unlock(&place.lock);
    }
    pthread_mutex_lock(&place.lock);
    while (place.block) pthread_cond_wait(&place.changed, &place.lock);
    place.done = 1;
    pthread_cond_signal(&place.changed);
    pthread_mutex_unlock(&place.lock);
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
}

int main(void) {
    RUN(growing_keeps_bytes);
    RUN(two_growing_blocks_do_not_mix);
    RUN(many_blocks_survive_pressure);
    RUN(another_thread_may_free);
    return 0;
}
