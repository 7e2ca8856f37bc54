/* Processes with a copy of the memory that are not made by fork: clone without CLONE_VM through libc, and
 * fork, clone and clone3 by system calls. Sandboxes and container tools start so. What the child does to its
 * copy is not its parent's. */
#include "check.h"
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>

#define PAGES 24576
#define CHILDREN 4
#define STACK_BYTES (256 << 10)

static unsigned char *area;
static void *blocks[64];

static void fill_all(void) {
    area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED, "mmap");
    for (size_t i = 0; i < PAGES; i++) fill_page(area + i * PAGE, i + 1);
    for (int i = 0; i < 64; i++) {
        blocks[i] = malloc(MIB / 2);
        CHECK(blocks[i], "malloc");
        for (size_t p = 0; p < MIB / 2 / PAGE; p++)
            fill_page((char *)blocks[i] + p * PAGE, 100000 + i * 1000 + p);
    }
}

static int intact(void) {
    for (size_t i = 0; i < PAGES; i++)
        if (!page_is(area + i * PAGE, i + 1)) return 0;
    for (int i = 0; i < 64; i++)
        for (size_t p = 0; p < MIB / 2 / PAGE; p++)
            if (!page_is((char *)blocks[i] + p * PAGE, 100000 + i * 1000 + p)) return 0;
    return 1;
}

/* In a child: reads what it was given, writes to it, gives parts of it back and takes new memory. */
static int work_on_the_copy(void *unused) {
    (void)unused;
    if (!intact()) return 1;
    for (size_t i = 0; i < PAGES; i += 3) fill_page(area + i * PAGE, i + 7);
    if (munmap(area + PAGES / 2 * PAGE, PAGES / 4 * PAGE)) return 2;
    for (int i = 0; i < 64; i += 2) free(blocks[i]);
    unsigned char *more = malloc(64 * MIB);
    if (!more) return 3;
    for (size_t i = 0; i < 64 * MIB / PAGE; i++) fill_page(more + i * PAGE, i + 9);
    for (size_t i = 0; i < 64 * MIB / PAGE; i++)
        if (!page_is(more + i * PAGE, i + 9)) return 4;
    for (size_t i = 0; i < PAGES / 2; i++)
        if (!page_is(area + i * PAGE, i % 3 ? i + 1 : i + 7)) return 5;
    return 42;
}

/* The parent works at the same time, and has all its bytes in the end. */
static void expect(pid_t child, int wanted) {
    int status;
    CHECK(child > 0, "child");
    CHECK(intact(), "beside the child");
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    if (wanted >= 0) CHECK(WIFEXITED(status) && WEXITSTATUS(status) == wanted, "status %x", status);
    CHECK(intact(), "after the child");
}

static void clone_with_a_copy_runs_on_its_stack(void) {
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1,
        0);
    for (int i = 0; i < CHILDREN; i++)
        expect(clone(work_on_the_copy, stack + STACK_BYTES, SIGCHLD, NULL), 42);
    munmap(stack, STACK_BYTES);
}

static void clone_with_a_copy_runs_on_a_stack_that_was_out(void) {
    char *stack = malloc(4 * MIB);
    CHECK(stack, "malloc");
    fill_page(stack + 4 * MIB - 4 * PAGE, 5);
    CHECK(intact(), "what was used last is out");
    expect(clone(work_on_the_copy, stack + 4 * MIB - 2 * PAGE, SIGCHLD, NULL), 42);
    free(stack);
}

static int in_grandchild(void *unused) {
    char *stack = malloc(STACK_BYTES);
    int status;
    pid_t child = stack ? clone(work_on_the_copy, stack + STACK_BYTES, SIGCHLD, NULL) : -1;
    if (child < 0 || waitpid(child, &status, 0) != child) return 11;
    return WIFEXITED(status) && WEXITSTATUS(status) == 42 ? work_on_the_copy(unused) : 12;
}

static void a_child_clones_again(void) {
    char *stack = malloc(STACK_BYTES);
    expect(clone(in_grandchild, stack + STACK_BYTES, SIGCHLD, NULL), 42);
    free(stack);
}

static void by_system_calls(void) {
    for (int i = 0; i < CHILDREN; i++) {
        struct clone_args how = {.exit_signal = SIGCHLD};
        pid_t child = i % 3 == 0   ? syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0)
                      : i % 3 == 1 ? syscall(SYS_fork)
                                   : syscall(SYS_clone3, &how, sizeof how);
        if (child == 0) _exit(work_on_the_copy(NULL));
        expect(child, 42);
    }
}

#ifdef __x86_64__
/* By an instruction of its own. Whether such a child can work is not asked here: its parent's bytes are. */
static void by_an_instruction_of_its_own(void) {
    for (int i = 0; i < CHILDREN; i++) {
        long child;
        __asm__ volatile("syscall" : "=a"(child) : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0) : "rcx",
            "r11", "memory");
        if (child == 0) {
            work_on_the_copy(NULL);
            syscall(SYS_exit_group, 0);
        }
        expect(child, -1);
    }
}
#endif

int main(void) {
    fill_all();
    CHECK(intact(), "filled");
    RUN(clone_with_a_copy_runs_on_its_stack);
    RUN(clone_with_a_copy_runs_on_a_stack_that_was_out);
    RUN(a_child_clones_again);
    RUN(by_system_calls);
#ifdef __x86_64__
    RUN(by_an_instruction_of_its_own);
#endif
    return 0;
}
