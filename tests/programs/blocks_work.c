/* Blocks of 48 bytes by malloc: `blocks_work BLOCKS VISITS [WALKS]`; prints what was seen. Each names the
 * next one; some are freed, made again and made larger. Compiled with -DJEMALLOC it also asks jemalloc for
 * what only jemalloc has, on the blocks that it made. */
#include <inttypes.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef JEMALLOC
#include <jemalloc/jemalloc.h>
#endif

struct block {
    struct block *next;
    uint64_t number, visits, words[3];
};

static uint64_t seed = 1;

static uint64_t draw(uint64_t bound)
{
    seed = seed * 16807 % 2147483647;
    return seed * 7919 % bound;
}

static void *must(void *block)
{
    if (block == NULL) {
        perror("malloc");
        exit(3);
    }
    return block;
}

static struct block *make(uint64_t number)
{
    struct block *block = must(malloc(sizeof *block));
    *block = (struct block){.number = number, .words = {number * 3, number % 17, 0x5745495257454952}};
    return block;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static uint64_t walk(const struct block *block)
{
    uint64_t seen = 0;
    for (; block != NULL; block = block->next) {
        seen += block->number * 31 + block->visits + block->words[0] + block->words[1];
    }
    return seen;
}

#ifdef JEMALLOC
static void ask_jemalloc(struct block *block)
{
    size_t allocated = 0, size = sizeof allocated;
    uint64_t epoch = 1;
    int failed = mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    failed |= mallctl("stats.allocated", &allocated, &size, NULL, 0);
    failed |= mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
    failed |= mallctl("arena.0.purge", NULL, NULL, NULL, 0);
    void *aligned = must(mallocx(4 << 20, MALLOCX_ALIGN(1 << 21) | MALLOCX_ZERO));
    printf("mallctl %d, more than 16 MiB allocated %d, aligned %d\n", failed, allocated > 16 << 20,
           (uintptr_t)aligned % (1 << 21) == 0);
    printf("sizes %zu %zu %zu\n", sallocx(block, 0), nallocx(sizeof *block, 0), malloc_usable_size(block));
    sdallocx(aligned, 4 << 20, MALLOCX_ALIGN(1 << 21));
}
#endif

int main(int count, char **words)
{
    if (count < 3) {
        return 2;
    }
    uint64_t blocks = strtoull(words[1], NULL, 10), visits = strtoull(words[2], NULL, 10), seen = 0;
    struct block **table = must(calloc(blocks, sizeof *table)), *first = NULL, **end = &first;
    double began = now();
    for (uint64_t number = 0; number < blocks; number++) {
        table[number] = make(number);
    }
    fprintf(stderr, "build %.3f\n", now() - began);
    for (uint64_t visit = 0; visit < visits; visit++) {
        uint64_t at = draw(blocks);
        seen = seen * 31 + table[at]->number + table[at]->visits++;
        if (visit % 8 == 0) {
            struct block *larger = must(realloc(table[at], sizeof *larger * (1 + visit % 3)));
            seen += larger->words[0];
            free(larger);
            table[at] = make(at);
        }
    }
    for (uint64_t number = 0; number < blocks; number++) {
        *end = table[number];
        end = &table[number]->next;
    }
    uint64_t walked = walk(first);
    for (int round = 0; round < (count > 3 ? atoi(words[3]) : 0); round++) {
        began = now();
        walked += walk(first);
        fprintf(stderr, "walk %.3f\n", now() - began);
    }
    printf("%" PRIu64 " blocks, %" PRIu64 ", %" PRIu64 "\n", blocks, seen, walked);
#ifdef JEMALLOC
    ask_jemalloc(first);
#endif
    for (uint64_t number = 0; number < blocks; number++) {
        free(table[number]);
    }
    free(table);
    return 0;
}
