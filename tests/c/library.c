/* The C library as a program uses it: every function, what each refuses, two pools, threads, fork. Built and
 * run by tests/programs/c_library.py, also with sanitizers. Says `N passed, 0 failed`. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weir.h>

#define MIB ((size_t)1 << 20)

static int passed, failed;

#define CHECK(what) check(what, #what, __LINE__)

static void check(int is_so, const char *what, int line) {
    if (is_so) {
        passed++;
    } else {
        failed++;
        printf("library.c:%d: not so: %s\n", line, what);
    }
}

static unsigned char byte_at(size_t i) { return (unsigned char)((i * 0x9e3779b97f4a7c15ull) >> 56); }

static void fill(unsigned char *memory, size_t len) {
    for (size_t i = 0; i < len; i += 61) memory[i] = byte_at(i);
}

static size_t wrong(const unsigned char *memory, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i += 61) n += memory[i] != byte_at(i);
    return n;
}

static weir_pool *made(const char *memory) {
    weir_pool *pool = NULL;
    int error = weir_pool_new(&pool, memory, NULL);
    if (error) {
        printf("no pool: %s\n0 passed, 1 failed\n", weir_strerror(error));
        exit(1);
    }
    return pool;
}

static void *filler(void *memory) {
    fill(memory, 20 * MIB);
    return NULL;
}

static void keeps_every_byte(void) {
    weir_pool *small = made("8MiB"), *large = made("16MiB");
    void *a = NULL, *b = NULL;
    CHECK(weir_alloc(small, 20 * MIB, &a) == 0 && weir_alloc(large, 20 * MIB, &b) == 0);
    CHECK(((size_t)a & 0x3ffff) == 0);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, filler, a) == 0);
    fill(b, 20 * MIB);
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(wrong(a, 20 * MIB) == 0 && wrong(b, 20 * MIB) == 0);
    weir_pool_stats s, l;
    CHECK(weir_stats(small, &s, sizeof s) == 0 && weir_stats(large, &l, sizeof l) == 0);
    CHECK(s.memory == 8 * MIB && s.ram <= 8 * MIB && s.data > 19 * MIB && s.compressed + s.swapped > 0);
    CHECK(l.memory == 16 * MIB && l.ram <= 16 * MIB && l.faults > 0);
    CHECK(weir_pool_free(small) == -EBUSY);
    CHECK(weir_free(small, a) == 0 && weir_pool_free(small) == 0);
    CHECK(wrong(b, 20 * MIB) == 0);
    CHECK(weir_pin(large, b, 5 * MIB, NULL) == 0 && weir_pool_set_memory(large, 8 * MIB) == -EBUSY);
    CHECK(weir_unpin(large, b, 5 * MIB) == 0);
    CHECK(weir_pool_set_memory(large, 8 * MIB) == 0 && weir_pool_set_memory(large, 64 * MIB) == -EINVAL);
    CHECK(weir_free(large, b) == 0 && weir_free(large, NULL) == 0 && weir_pool_free(large) == 0);
}

static void advises_pins_and_resizes(weir_pool *pool) {
    void *memory = NULL;
    CHECK(weir_alloc(pool, 12 * MIB, &memory) == 0);
    fill(memory, 12 * MIB);
    for (int advice = WEIR_NORMAL; advice <= WEIR_COLD; advice++) {
        CHECK(weir_advise(pool, (char *)memory + 5, 8 * MIB, advice) == 0);
    }
    CHECK(wrong(memory, 12 * MIB) == 0);
    uint64_t room = 0;
    CHECK(weir_pin(pool, memory, 12 * MIB, &room) == -ENOBUFS && room > 0 && room < 12 * MIB);
    CHECK(weir_pin(pool, memory, MIB, NULL) == 0 && weir_pin(pool, memory, MIB, NULL) == 0);
    weir_pool_stats stats;
    CHECK(weir_stats(pool, &stats, sizeof stats) == 0 && stats.pinned == MIB);
    CHECK(weir_resize(pool, &memory, MIB) == -EBUSY && weir_advise(pool, memory, 9, WEIR_DISCARD) == -EBUSY);
    CHECK(weir_unpin(pool, memory, MIB) == 0 && weir_unpin(pool, memory, MIB) == 0);
    CHECK(weir_unpin(pool, memory, MIB) == -EINVAL);
    CHECK(weir_advise(pool, (char *)memory + 100, MIB, WEIR_DISCARD) == 0);
    CHECK(((char *)memory)[100] == 0 && ((char *)memory)[100 + MIB - 1] == 0);
    CHECK(((unsigned char *)memory)[61] == byte_at(61));
    CHECK(weir_resize(pool, &memory, 24 * MIB) == 0);
    CHECK(((unsigned char *)memory)[61] == byte_at(61) && ((char *)memory)[24 * MIB - 1] == 0);
    uint64_t first = 7;
    CHECK(weir_stats(pool, (weir_pool_stats *)&first, sizeof first) == 0 && first == 8 * MIB);
    CHECK(weir_free(pool, memory) == 0);
}

static void resolves_faults_inline(void) {
    const char *settings[] = {"memory", "8MiB", "faults", "inline", NULL};
    weir_pool *pool = NULL;
    void *memory = NULL;
    CHECK(weir_pool_new_with(&pool, settings) == 0 && weir_alloc(pool, 20 * MIB, &memory) == 0);
    fill(memory, 20 * MIB);
    CHECK(wrong(memory, 20 * MIB) == 0);
    CHECK(weir_free(pool, memory) == 0 && weir_pool_free(pool) == 0);
}

static void refuses_what_is_wrong(weir_pool *pool) {
    weir_pool *none = NULL;
    void *memory = NULL;
    weir_pool_stats stats;
    CHECK(weir_pool_new(NULL, "8MiB", NULL) == -EINVAL && weir_pool_new(&none, "0", NULL) == -EINVAL);
    CHECK(weir_pool_new(&none, "-8M", NULL) == -EINVAL && weir_pool_new(&none, "8MiB", "1K") == -EINVAL);
    CHECK(weir_pool_new(&none, "\xff", NULL) == -EINVAL);
    CHECK(weir_pool_new(&none, "8MiB", "/nowhere/at/all") == -ENOSPC && none == NULL);
    const char *odd[] = {"memory", NULL}, *unknown[] = {"colour", "red", NULL};
    CHECK(weir_pool_new_with(&none, odd) == -EINVAL && weir_pool_new_with(&none, unknown) == -EINVAL);
    CHECK(weir_pool_new_with(NULL, odd) == -EINVAL && weir_pool_new_with(&none, NULL) == -EINVAL);
    CHECK(weir_pool_free(NULL) == 0);
    CHECK(weir_alloc(NULL, 1, &memory) == -EINVAL && weir_alloc(pool, 1, NULL) == -EINVAL);
    CHECK(weir_alloc(pool, 0, &memory) == -EINVAL && weir_alloc(pool, SIZE_MAX, &memory) == -EOVERFLOW);
    CHECK(weir_alloc(pool, (size_t)4 << 40, &memory) == -ENOMEM && memory == NULL);
    CHECK(weir_free(NULL, &memory) == -EINVAL);
    CHECK(weir_resize(pool, NULL, 1) == -EINVAL && weir_resize(pool, &memory, 1) == -EINVAL);
    CHECK(weir_pool_set_memory(NULL, 8 * MIB) == -EINVAL && weir_pool_set_memory(pool, 1) == -EINVAL);
    CHECK(weir_stats(NULL, &stats, sizeof stats) == -EINVAL && weir_stats(pool, NULL, 8) == -EINVAL);
    CHECK(weir_alloc(pool, 5000, &memory) == 0);
    CHECK(weir_advise(pool, memory, 5001, WEIR_COLD) == -EINVAL);
    CHECK(weir_advise(pool, (char *)memory + 5001, 0, WEIR_COLD) == -EINVAL);
    CHECK(weir_advise(pool, memory, 5000, 99) == -EINVAL && weir_advise(pool, memory, 5000, -1) == -EINVAL);
    CHECK(weir_pin(pool, &stats, 1, NULL) == -EINVAL && weir_pin(pool, memory, SIZE_MAX, NULL) == -EINVAL);
    CHECK(weir_free(pool, memory) == 0);
}

/* How a child that does something ends. */
static int child(void (*act)(weir_pool *, void *), weir_pool *pool, void *memory) {
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        act(pool, memory);
        _exit(0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static void ask(weir_pool *pool, void *memory) {
    void *more;
    int asked = weir_alloc(pool, 1, &more) == -ECHILD && weir_advise(pool, memory, 1, WEIR_COLD) == -ECHILD &&
                weir_pin(pool, memory, 1, NULL) == -ECHILD;
    _exit(asked ? 3 : 4);
}

static void touch(weir_pool *pool, void *memory) {
    (void)pool;
    *(volatile char *)memory = 1;
}

static void free_twice(weir_pool *pool, void *memory) {
    (void)memory;
    weir_pool *own = NULL;
    void *piece = NULL;
    (void)pool;
    if (weir_pool_new(&own, "8MiB", "none") || weir_alloc(own, 1, &piece) || weir_free(own, piece)) _exit(9);
    _exit(weir_free(own, piece) == -EINVAL ? 5 : 9);
}

static void stays_with_the_parent(weir_pool *pool) {
    void *memory = NULL;
    CHECK(weir_alloc(pool, 12 * MIB, &memory) == 0);
    fill(memory, 12 * MIB);
    int status = child(ask, pool, memory);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    status = child(touch, pool, memory);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    status = child(free_twice, pool, memory);
    /* A debug build of the library ends the program. */
    int aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    CHECK(aborted || (WIFEXITED(status) && WEXITSTATUS(status) == 5));
    CHECK(wrong(memory, 12 * MIB) == 0 && weir_free(pool, memory) == 0);
}

/* PyDataMem_Handler of numpy's ndarraytypes.h. */
typedef struct {
    char name[127];
    uint8_t version;
    void *ctx;
    void *(*malloc)(void *ctx, size_t size);
    void *(*calloc)(void *ctx, size_t nelem, size_t elsize);
    void *(*realloc)(void *ctx, void *ptr, size_t new_size);
    void (*free)(void *ctx, void *ptr, size_t size);
} numpy_handler;

static numpy_handler *numpy;

static uint64_t pieces(weir_pool *pool) {
    weir_pool_stats stats;
    return weir_stats(pool, &stats, sizeof stats) ? UINT64_MAX : stats.pieces;
}

/* In a child: memory of the parent's is let go, new memory is malloc's. */
static void has_arrays_of_its_own(weir_pool *pool, void *memory) {
    unsigned char *own = numpy->malloc(numpy->ctx, 2 * MIB);
    if (!own) _exit(9);
    fill(own, 2 * MIB);
    own = numpy->realloc(numpy->ctx, own, 3 * MIB);
    if (!own || wrong(own, 2 * MIB) || pieces(pool) != 0) _exit(8);
    numpy->free(numpy->ctx, own, 3 * MIB);
    if (numpy->realloc(numpy->ctx, memory, 30 * MIB)) _exit(7);
    /* Also when the pool's owner gave it up before. */
    if (weir_pool_free(pool) != 0) _exit(6);
    numpy->free(numpy->ctx, memory, 20 * MIB);
    _exit(3);
}

static void serves_numpy(weir_pool *pool) {
    void *made = NULL;
    CHECK(weir_numpy_handler(NULL, 5, &made) == -EINVAL && weir_numpy_handler(pool, 5, NULL) == -EINVAL);
    CHECK(weir_numpy_handler(pool, MIB, &made) == 0);
    numpy = made;
    void *ctx = numpy->ctx;
    CHECK(strcmp(numpy->name, "weir") == 0 && numpy->version == 1 && pieces(pool) == 0);
    unsigned char *small = numpy->malloc(ctx, MIB), *zeros = numpy->calloc(ctx, 1000, 10);
    CHECK(small && zeros && zeros[9999] == 0 && pieces(pool) == 0);
    CHECK(numpy->calloc(ctx, SIZE_MAX / 2, 3) == NULL && numpy->malloc(ctx, (size_t)1 << 60) == NULL);
    fill(small, MIB);
    /* From malloc's memory into the pool, there to three budgets, and back. */
    unsigned char *large = numpy->realloc(ctx, small, MIB + 1);
    CHECK(large && pieces(pool) == 1 && wrong(large, MIB) == 0 && large[MIB] == 0);
    large = numpy->realloc(ctx, large, 24 * MIB);
    CHECK(large && wrong(large, MIB) == 0 && large[24 * MIB - 1] == 0);
    fill(large, 24 * MIB);
    CHECK(wrong(large, 24 * MIB) == 0 && numpy->realloc(ctx, large, (size_t)1 << 60) == NULL);
    unsigned char *other = numpy->calloc(ctx, 20, MIB);
    CHECK(other && other[20 * MIB - 1] == 0 && pieces(pool) == 2);
    int status = child(has_arrays_of_its_own, pool, other);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    numpy->free(ctx, other, 20 * MIB);
    CHECK(wrong(large, 24 * MIB) == 0);
    small = numpy->realloc(ctx, large, 100000);
    CHECK(small && wrong(small, 100000) == 0 && pieces(pool) == 0);
    numpy->free(ctx, zeros, 10000);
    numpy->free(ctx, NULL, 0);
    large = numpy->realloc(ctx, NULL, 2 * MIB);
    CHECK(large && pieces(pool) == 1 && weir_pool_free(pool) == -EBUSY);
    numpy->free(ctx, large, 2 * MIB);
    /* The handler outlives the pool, and refuses what would be the pool's. */
    CHECK(weir_pool_free(pool) == 0);
    CHECK(numpy->malloc(ctx, 2 * MIB) == NULL && numpy->realloc(ctx, small, 2 * MIB) == NULL);
    CHECK(wrong(small, 100000) == 0);
    small = numpy->realloc(ctx, small, 5);
    CHECK(small && small[0] == byte_at(0));
    numpy->free(ctx, small, 5);
    weir_numpy_handler_free(made);
    weir_numpy_handler_free(NULL);
}

int main(void) {
    keeps_every_byte();
    weir_pool *pool = made("8MiB");
    advises_pins_and_resizes(pool);
    resolves_faults_inline();
    refuses_what_is_wrong(pool);
    stays_with_the_parent(pool);
    CHECK(weir_pool_free(pool) == 0);
    serves_numpy(made("8MiB"));
    for (int error = 0; error < 140; error++) {
        CHECK(strlen(weir_strerror(-error)) > 5 && weir_strerror(error) == weir_strerror(-error));
    }
    CHECK(strchr(weir_version(), '.') != NULL && strcmp(weir_strerror(0), "no error") == 0);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
