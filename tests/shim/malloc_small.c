/* A heap of small blocks, several times the budget: every block keeps its bytes, whoever frees it. */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <search.h>

/* With what the last but one test adds, as much as fits the budget beside the heap from before the start,
 * without a swap file. */
#define NODES ((size_t)500000)
#define STRINGS ((size_t)300000)

/* C23; older libraries do not have them, and then `free` does. */
extern void free_sized(void *, size_t) __attribute__((weak));
extern void free_aligned_sized(void *, size_t, size_t) __attribute__((weak));

struct node {
    struct node *next;
    uint64_t key, value[4];
};

static struct node *build(size_t count, uint64_t seed) {
    struct node *first = NULL;
    for (size_t i = 0; i < count; i++) {
        struct node *one = malloc(sizeof *one);
        CHECK(one && (uintptr_t)one % 16 == 0, "node %zu", i);
        *one = (struct node){first, i, {seed * 1000 + i % 512, i, ~i, seed}};
        first = one;
    }
    return first;
}

static void check_list(const struct node *at, size_t count, uint64_t seed) {
    for (size_t i = count; i-- > 0; at = at->next)
        CHECK(at && at->key == i && at->value[0] == seed * 1000 + i % 512 && at->value[2] == ~(uint64_t)i,
            "node %zu", i);
    CHECK(!at, "the list goes on");
}

static void drop(struct node *at) {
    while (at) {
        struct node *next = at->next;
        if (free_sized && at->key % 2)
            free_sized(at, sizeof *at);
        else
            free(at);
        at = next;
    }
}

static void a_list_of_small_nodes_keeps_its_bytes(void) {
    struct node *list = build(NODES, 7);
    check_list(list, NODES, 7);
    drop(list);
}

static void copies_of_strings_keep_their_bytes(void) {
    static char *copies[STRINGS];
    char text[200];
    for (size_t i = 0; i < STRINGS; i++) {
        int length = snprintf(text, sizeof text, "%zu of %zu, %0*d", i, STRINGS, (int)(i % 150), 0);
        copies[i] = i % 2 ? strdup(text) : strndup(text, (size_t)length / 2);
        CHECK(copies[i], "copy %zu", i);
    }
    for (size_t i = 0; i < STRINGS; i++) {
        size_t length = (size_t)snprintf(text, sizeof text, "%zu of %zu, %0*d", i, STRINGS, (int)(i % 150),
            0);
        if (i % 2 == 0) length /= 2;
        CHECK(strlen(copies[i]) == length && memcmp(copies[i], text, length) == 0, "copy %zu is %s", i,
            copies[i]);
        free(copies[i]);
    }
}

static void blocks_grow_and_shrink_across_all_sizes(void) {
    static const size_t sizes[] = {1, 40, 700, 5000, 90000, 700000, 1500000, 300, 0};
    for (int round = 0; round < 20; round++) {
        unsigned char *block = NULL;
        size_t before = 0;
        for (size_t i = 0; sizes[i]; i++) {
            block = realloc(block, sizes[i]);
            CHECK(block && malloc_usable_size(block) >= sizes[i], "realloc to %zu", sizes[i]);
            for (size_t at = 0; at < before && at < sizes[i]; at++)
                CHECK(block[at] == (unsigned char)(at * 31 + i - 1), "byte %zu of %zu", at, sizes[i]);
            before = sizes[i];
            for (size_t at = 0; at < before; at++) block[at] = (unsigned char)(at * 31 + i);
        }
        free(block);
    }
}

static void zeroed_blocks_are_zero_where_others_were(void) {
    enum { COUNT = 100000 };
    static unsigned char *blocks[COUNT];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            size_t size = 16 + i % 500;
            blocks[i] = calloc(1, size);
            CHECK(blocks[i], "calloc");
            for (size_t at = 0; at < size; at++) CHECK(blocks[i][at] == 0, "block %zu, byte %zu", i, at);
            memset(blocks[i], 0x5a, size);
        }
        for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
    }
}

static void aligned_blocks_are_freed_in_every_way(void) {
    for (size_t i = 0; i < 100000; i++) {
        size_t alignment = (size_t)16 << i % 9;
        char *block = aligned_alloc(alignment, alignment * 2);
        CHECK(block && (uintptr_t)block % alignment == 0, "aligned to %zu", alignment);
        block[0] = 1;
        if (free_aligned_sized && i % 2)
            free_aligned_sized(block, alignment, alignment * 2);
        else
            free(block);
    }
}

static void *free_all(void *list) {
    drop(list);
    return build(100000, 3);
}

static void blocks_are_freed_by_other_threads(void) {
    for (int round = 0; round < 4; round++) {
        pthread_t thread;
        void *made;
        struct node *mine = build(200000, 5);
        CHECK(pthread_create(&thread, NULL, free_all, mine) == 0, "pthread_create");
        struct node *more = build(200000, 6);
        CHECK(pthread_join(thread, &made) == 0, "pthread_join");
        check_list(more, 200000, 6);
        check_list(made, 100000, 3);
        drop(more);
        drop(made);
    }
}

static void a_child_has_the_blocks_and_goes_its_own_way(void) {
    struct node *list = build(NODES, 9);
    pid_t child = fork();
    if (child == 0) {
        check_list(list, NODES, 9);
        drop(list);
        list = build(400000, 10);
        check_list(list, 400000, 10);
        _exit(0);
    }
    struct node *other = build(300000, 11);
    check_child(child, "child");
    check_list(list, NODES, 9);
    check_list(other, 300000, 11);
    drop(list);
    drop(other);
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* libc takes memory for itself: half of the array's size for a sort, a node for each key of a tree. */
static void what_libc_takes_for_itself_works(void) {
    enum { COUNT = 4 << 20, KEYS = 200000 };
    uint64_t *numbers = malloc(COUNT * sizeof *numbers);
    for (size_t i = 0; i < COUNT; i++) numbers[i] = mix(i) % 65536;
    qsort(numbers, COUNT, sizeof *numbers, compare);
    for (size_t i = 1; i < COUNT; i++) CHECK(numbers[i - 1] <= numbers[i], "number %zu", i);
    for (size_t i = 0; i < COUNT; i++) numbers[i] = i;
    void *root = NULL;
    for (size_t i = 0; i < KEYS; i++) CHECK(tsearch(&numbers[i * 7], &root, compare), "tsearch");
    for (size_t i = 0; i < KEYS; i++) CHECK(tfind(&numbers[i * 7], &root, compare), "tfind %zu", i);
    for (size_t i = 0; i < KEYS; i++) CHECK(tdelete(&numbers[i * 7], &root, compare), "tdelete %zu", i);
    free(numbers);
    char *line = NULL;
    size_t room = 0;
    FILE *file = tmpfile();
    for (int i = 0; i < 50000; i++) fprintf(file, "%d %0*d\n", i, i % 300, 0);
    rewind(file);
    for (int i = 0; i < 50000; i++)
        CHECK(getline(&line, &room, file) > 0 && atoi(line) == i, "line %d: %s", i, line);
    free(line);
    fclose(file);
}

int main(void) {
    RUN(a_list_of_small_nodes_keeps_its_bytes);
    RUN(copies_of_strings_keep_their_bytes);
    RUN(blocks_grow_and_shrink_across_all_sizes);
    RUN(zeroed_blocks_are_zero_where_others_were);
    RUN(aligned_blocks_are_freed_in_every_way);
    RUN(blocks_are_freed_by_other_threads);
    RUN(a_child_has_the_blocks_and_goes_its_own_way);
    RUN(what_libc_takes_for_itself_works);
    return 0;
}
