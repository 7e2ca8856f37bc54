/* fork: the child sees what the parent saw, and from then on neither sees what the other writes. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#define BYTES (64 * MIB)

/* Pipes order parent and child without waiting for time to pass. */
static void tell(int file) { CHECK(write(file, "x", 1) == 1, "pipe"); }

/* Gives up after a minute, so that a failed parent leaves no child behind. */
static void await(int file) {
    char byte;
    struct pollfd set = {.fd = file, .events = POLLIN};
    int ready;
    do {
        ready = poll(&set, 1, 60000);
    } while (ready < 0 && errno == EINTR);
    CHECK(ready == 1 && read(file, &byte, 1) == 1, "the other side is gone");
}

static void child_sees_the_same_bytes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    pid_t child = fork();
    if (child == 0) {
        check_filled(start, BYTES, 1, "child");
        _exit(0);
    }
    check_child(child, "reader");
    check_filled(start, BYTES, 1, "parent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void both_change_independently(void) {
    int to_child[2], to_parent[2];
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0, "pipe");
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    pid_t child = fork();
    if (child == 0) {
        fill(start, BYTES / 2, 1000000);
        tell(to_parent[1]);
        await(to_child[0]);
        check_filled(start, BYTES / 2, 1000000, "child's half after the parent wrote");
        check_filled(start + BYTES / 2, BYTES / 2, 2 + BYTES / 2 / PAGE, "half that only the parent wrote");
        _exit(0);
    }
    CHECK(child > 0, "fork");
    await(to_parent[0]);
    check_filled(start, BYTES, 2, "parent after the child wrote");
    fill(start + BYTES / 4, BYTES * 3 / 4, 2000000);
    churn();
    tell(to_child[1]);
    check_child(child, "writer");
    check_filled(start, BYTES / 4, 2, "parent's first quarter");
    check_filled(start + BYTES / 4, BYTES * 3 / 4, 2000000, "parent's new part");
    for (int i = 0; i < 2; i++) CHECK(close(to_child[i]) == 0 && close(to_parent[i]) == 0, "close");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void child_outlives_what_the_parent_drops(void) {
    int to_child[2];
    CHECK(pipe(to_child) == 0, "pipe");
    char *start = map(BYTES);
    fill(start, BYTES, 3);
    pid_t child = fork();
    if (child == 0) {
        await(to_child[0]);
        check_filled(start, BYTES, 3, "child after the parent unmapped");
        _exit(0);
    }
    CHECK(munmap(start, BYTES) == 0, "munmap");
    churn();
    tell(to_child[1]);
    check_child(child, "child of an unmapping parent");
    CHECK(close(to_child[0]) == 0 && close(to_child[1]) == 0, "close");
}

static void grandchildren_see_their_parents_bytes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 4);
    pid_t child = fork();
    if (child == 0) {
        fill(start, BYTES / 4, 100000);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check_filled(start, BYTES / 4, 100000, "grandchild: its parent's part");
            check_filled(start + BYTES / 4, BYTES * 3 / 4, 4 + BYTES / 4 / PAGE,
                "grandchild: its grandparent's part");
            fill(start, BYTES, 200000);
            _exit(0);
        }
        check_child(grandchild, "grandchild");
        check_filled(start, BYTES / 4, 100000, "child after its child wrote");
        _exit(0);
    }
    check_child(child, "child with a child");
    check_filled(start, BYTES, 4, "grandparent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void many_children_one_after_the_other(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 5);
    for (size_t round = 0; round < 12; round++) {
        pid_t child = fork();
        if (child == 0) {
            char *own = map(8 * MIB);
            fill(own, 8 * MIB, 300000 + round);
            for (size_t page = round; page < BYTES / PAGE; page += 16)
                CHECK(page_is(start + page * PAGE, 5 + page), "child %zu, page %zu", round, page);
            check_filled(own, 8 * MIB, 300000 + round, "child's own");
            _exit(0);
        }
        check_child(child, "one of many");
    }
    check_filled(start, BYTES, 5, "parent of many");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void children_at_the_same_time(void) {
    enum { CHILDREN = 4 };
    pid_t children[CHILDREN];
    char *start = map(BYTES / 2);
    fill(start, BYTES / 2, 6);
    for (size_t i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            check_filled(start, BYTES / 2, 6, "child");
            fill(start, BYTES / 2, 400000 + i * 100000);
            check_filled(start, BYTES / 2, 400000 + i * 100000, "child's own bytes");
            _exit(0);
        }
    }
    for (size_t i = 0; i < CHILDREN; i++) check_child(children[i], "child among others");
    check_filled(start, BYTES / 2, 6, "parent");
    CHECK(munmap(start, BYTES / 2) == 0, "munmap");
}

static atomic_int stop;

/* Writes and checks its own part all the while other threads fork. */
static void *busy(void *argument) {
    char *part = argument;
    for (uint64_t round = 1; !atomic_load(&stop); round++) {
        fill(part, BYTES / 4, round << 20);
        check_filled(part, BYTES / 4, round << 20, "busy thread");
    }
    return NULL;
}

static void fork_with_busy_threads(void) {
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    char *start = map(BYTES);
    fill(start, BYTES, 7);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, busy, start + (i + 1) * (BYTES / 4)) == 0, "pthread_create");
    for (int round = 0; round < 6; round++) {
        pid_t child = fork();
        if (child == 0) {
            check_filled(start, BYTES / 4, 7, "part that no thread writes");
            /* malloc must work in the child, whatever the other threads held at the fork. */
            char *block = malloc(8 * MIB);
            CHECK(block, "malloc in the child");
            memset(block, 1, 8 * MIB);
            free(block);
            _exit(0);
        }
        check_child(child, "child of a program with threads");
    }
    atomic_store(&stop, 1);
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    check_filled(start, BYTES / 4, 7, "part that no thread wrote");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

int main(void) {
    RUN(child_sees_the_same_bytes);
    RUN(both_change_independently);
    RUN(child_outlives_what_the_parent_drops);
    RUN(grandchildren_see_their_parents_bytes);
    RUN(many_children_one_after_the_other);
    RUN(children_at_the_same_time);
    RUN(fork_with_busy_threads);
    return 0;
}
