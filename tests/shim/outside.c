/* Memory that stays outside (a heap from the start, stacks) counts against the same budget: whoever watches
 * the process sees it give up as much of the rest. */
#include "check.h"

#include <time.h>

#define BYTES (64 * MIB)
#define STACK_BYTES (4 * MIB)
#define STACKS 3

static char *stack_mapping(size_t bytes) {
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    CHECK(start != MAP_FAILED, "mmap of a stack");
    return start;
}

static char **small;
#define SMALL_COUNT ((size_t)8 * MIB / 512)

/* Small blocks from before the program has become large. */
static void a_heap_from_the_start(void) {
    small = malloc(SMALL_COUNT * sizeof *small);
    CHECK(small, "malloc");
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        small[i] = malloc(496);
        CHECK(small[i], "malloc");
        memset(small[i], (int)i, 496);
    }
}

static void the_rest_keeps_its_bytes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    check_filled(start, BYTES, 1, "beside a heap");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

/* As fast as memory can be touched, while all the rest is in use. */
static void stacks_grow_at_once(void) {
    char *start = map(BYTES), *stacks[STACKS];
    fill(start, BYTES, 2);
    for (int i = 0; i < STACKS; i++) {
        stacks[i] = stack_mapping(STACK_BYTES);
        fill(stacks[i], STACK_BYTES, 1000 * i);
    }
    check_filled(start, BYTES, 2, "beside stacks");
    for (int i = 0; i < STACKS; i++) {
        check_filled(stacks[i], STACK_BYTES, 1000 * i, "a stack");
        CHECK(munmap(stacks[i], STACK_BYTES) == 0, "munmap of a stack");
    }
    /* Now there is room again. */
    check_filled(start, BYTES, 2, "after the stacks");
    fill(start, BYTES, 3);
    check_filled(start, BYTES, 3, "after the stacks, written");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

/* A program that waits for a while may be up to its limit, and then grow. */
static void stacks_grow_after_a_pause(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 4);
    struct timespec pause = {.tv_nsec = 300 * 1000 * 1000};
    CHECK(nanosleep(&pause, NULL) == 0, "nanosleep");
    char *stack = stack_mapping(STACKS * STACK_BYTES);
    fill(stack, STACKS * STACK_BYTES, 5);
    CHECK(nanosleep(&pause, NULL) == 0, "nanosleep");
    check_filled(stack, STACKS * STACK_BYTES, 5, "a large stack");
    check_filled(start, BYTES, 4, "beside a large stack");
    CHECK(munmap(stack, STACKS * STACK_BYTES) == 0 && munmap(start, BYTES) == 0, "munmap");
}

static void a_child_beside_its_own_stacks(void) {
    char *start = map(BYTES), *stack = stack_mapping(2 * STACK_BYTES);
    fill(start, BYTES, 6);
    fill(stack, 2 * STACK_BYTES, 7);
    pid_t child = fork();
    if (child == 0) {
        fill(stack, 2 * STACK_BYTES, 8);
        fill(start, BYTES / 2, 9);
        check_filled(start + BYTES / 2, BYTES / 2, 6 + BYTES / 2 / PAGE, "a child's other half");
        check_filled(start, BYTES / 2, 9, "a child's half");
        check_filled(stack, 2 * STACK_BYTES, 8, "a child's stack");
        _exit(0);
    }
    check_child(child, "child with stacks");
    check_filled(start, BYTES, 6, "the parent's");
    CHECK(munmap(stack, 2 * STACK_BYTES) == 0 && munmap(start, BYTES) == 0, "munmap");
}

int main(void) {
    RUN(a_heap_from_the_start);
    RUN(the_rest_keeps_its_bytes);
    RUN(stacks_grow_at_once);
    RUN(stacks_grow_after_a_pause);
    RUN(a_child_beside_its_own_stacks);
    for (size_t i = 0; i < SMALL_COUNT; i++)
        for (size_t j = 0; j < 496; j++) CHECK(small[i][j] == (char)i, "block %zu", i);
    return 0;
}
