/* Handlers with SA_ONSTACK of threads that have set no alternate stack: they run on the interrupted stack,
 * with all its room. */
#include "handlers.h"

#define ROOM (MIB + MIB / 2)

static volatile int runs;
static char *volatile interrupted_at;

static void use_much(int number) {
    char here[ROOM];
    (void)number;
    CHECK_QUIETLY(here < interrupted_at && interrupted_at - here < (long)(4 * MIB));
    for (size_t i = 0; i < sizeof here; i += PAGE / 2) here[i] = (char)i;
    for (size_t i = 0; i < sizeof here; i += PAGE / 2) CHECK_QUIETLY(here[i] == (char)i);
    walk_in_handler();
    runs++;
}

static void be_called(void) {
    struct sigaction action = {.sa_handler = use_much, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
}

static void *interrupted(void *rounds) {
    char here;
    stack_t none;
    interrupted_at = &here;
    for (int i = 0; i < *(int *)rounds; i++) {
        walk_in_handler();
        CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0, "pthread_kill");
    }
    CHECK(sigaltstack(NULL, &none) == 0 && none.ss_flags == SS_DISABLE, "an alternate stack");
    return NULL;
}

static void a_thread_without_an_alternate_stack_has_its_own(void) {
    int rounds = 20;
    runs = 0;
    for (int i = 0; i < 4; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, interrupted, &rounds) == 0 && pthread_join(thread, NULL) == 0,
            "thread");
    }
    CHECK(runs == 4 * rounds, "%d", runs);
}

static void the_first_thread_too(void) {
    int rounds = 20;
    runs = 0;
    interrupted(&rounds);
    CHECK(runs == rounds, "%d", runs);
}

/* Bounded by its own stack again once it is disabled. */
static void one_that_gave_its_stack_up_has_the_interrupted_one(void) {
    char *own = map(4 * MIB);
    stack_t set = {.ss_sp = own, .ss_size = 4 * MIB}, off = {.ss_flags = SS_DISABLE};
    int rounds = 5;
    CHECK(sigaltstack(&set, NULL) == 0 && sigaltstack(&off, NULL) == 0, "sigaltstack");
    runs = 0;
    interrupted(&rounds);
    CHECK(runs == rounds && munmap(own, 4 * MIB) == 0, "%d", runs);
}

#define THREADS 24
#define SMALL (16 << 10)
#define BELOW (64 << 10)

/* The memory below a small alternate stack is nobody's business, whatever the thread does for the first
 * time. */
static char areas[THREADS][BELOW + SMALL];

static void *on_a_small_stack(void *given) {
    char *area = given;
    stack_t set = {.ss_sp = area + BELOW, .ss_size = SMALL}, off = {.ss_flags = SS_DISABLE};
    memset(area, 0x5a, BELOW);
    CHECK(sigaltstack(&set, NULL) == 0, "sigaltstack");
    walk();
    for (int i = 0; i < BELOW; i++) CHECK(area[i] == 0x5a, "byte %d below the stack", BELOW - i);
    CHECK(sigaltstack(&off, NULL) == 0, "end");
    return NULL;
}

static void small_alternate_stacks_are_enough(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, on_a_small_stack, areas[i]) == 0, "pthread_create");
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
}

/* As servers do whose handlers only report how the process ends. */
static char *one_for_all;

static void *on_a_shared_stack(void *unused) {
    (void)unused;
    stack_t set = {.ss_sp = one_for_all, .ss_size = 128 << 10}, is;
    CHECK(sigaltstack(&set, NULL) == 0, "sigaltstack");
    for (int i = 0; i < 4; i++) {
        walk();
        CHECK(sigaltstack(NULL, &is) == 0 && is.ss_sp == one_for_all && is.ss_size == set.ss_size, "its own");
    }
    return NULL;
}

static void threads_may_share_an_alternate_stack(void) {
    pthread_t threads[THREADS];
    stack_t off = {.ss_flags = SS_DISABLE};
    one_for_all = map(128 << 10);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, on_a_shared_stack, NULL) == 0, "pthread_create");
        on_a_shared_stack(NULL);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    }
    CHECK(sigaltstack(&off, NULL) == 0 && munmap(one_for_all, 128 << 10) == 0, "end");
}

int main(void) {
    make_memory();
    be_called();
    RUN(a_thread_without_an_alternate_stack_has_its_own);
    RUN(the_first_thread_too);
    RUN(one_that_gave_its_stack_up_has_the_interrupted_one);
    RUN(small_alternate_stacks_are_enough);
    RUN(threads_may_share_an_alternate_stack);
    return 0;
}
