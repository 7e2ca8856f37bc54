/* The malloc family answers as the manual pages say, for small and for large blocks. */
#include "check.h"

#include <malloc.h>

static const size_t SIZES[] = {1, 24, 1000, 4096, 70000, 2 * MIB, 40 * MIB};
#define COUNT (sizeof SIZES / sizeof *SIZES)

/* The compiler must not see through what the blocks are used for. */
static void *hide(void *pointer) {
    __asm__ volatile("" : "+r"(pointer));
    return pointer;
}

static void blocks_are_aligned_and_distinct(void) {
    char *blocks[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        blocks[i] = hide(malloc(SIZES[i]));
        CHECK(blocks[i] && (uintptr_t)blocks[i] % 16 == 0, "malloc(%zu) = %p", SIZES[i], (void *)blocks[i]);
        CHECK(malloc_usable_size(blocks[i]) >= SIZES[i], "usable size of %zu", SIZES[i]);
        memset(blocks[i], (int)i + 1, SIZES[i]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (size_t at = 0; at < SIZES[i]; at += 509)
            CHECK(blocks[i][at] == (char)(i + 1), "block %zu at %zu", i, at);
        free(blocks[i]);
    }
    CHECK(malloc_usable_size(NULL) == 0, "usable size of NULL");
}

static void empty_and_null_blocks_are_accepted(void) {
    void *empty = hide(malloc(0));
    free(empty);
    free(hide(NULL));
    char *grown = realloc(hide(NULL), 100);
    CHECK(grown, "realloc(NULL, 100)");
    free(grown);
    free(hide(calloc(0, 8)));
}

static void calloc_zeroes_blocks_that_were_used_before(void) {
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            char *block = hide(calloc(1, SIZES[i]));
            CHECK(block, "calloc(1, %zu)", SIZES[i]);
            for (size_t at = 0; at < SIZES[i]; at++)
                CHECK(block[at] == 0, "calloc(%zu): byte %zu, round %d", SIZES[i], at, round);
            memset(block, 0xa5, SIZES[i]);
            free(block);
        }
    }
}

static void aligned_blocks_have_their_alignment(void) {
    for (size_t alignment = 16; alignment <= 4 * MIB; alignment *= 4) {
        for (size_t i = 0; i < COUNT; i++) {
            void *one = NULL;
            CHECK(posix_memalign(&one, alignment, SIZES[i]) == 0 && (uintptr_t)one % alignment == 0,
                "posix_memalign %zu", alignment);
            void *two = hide(aligned_alloc(alignment, (SIZES[i] + alignment - 1) / alignment * alignment));
            CHECK(two && (uintptr_t)two % alignment == 0, "aligned_alloc %zu", alignment);
            void *three = hide(memalign(alignment, SIZES[i]));
            CHECK(three && (uintptr_t)three % alignment == 0, "memalign %zu", alignment);
            memset(one, 1, SIZES[i]);
            memset(three, 3, SIZES[i]);
            CHECK(*(char *)one == 1, "blocks overlap");
            free(one);
            free(two);
            free(three);
        }
    }
    void *kept = (void *)8;
    CHECK(posix_memalign(&kept, 24, 100) == EINVAL && kept == (void *)8, "posix_memalign with alignment 24");
    void *page = hide(valloc(100)), *pages = hide(pvalloc(PAGE + 1));
    CHECK(page && (uintptr_t)page % PAGE == 0, "valloc");
    CHECK(pages && (uintptr_t)pages % PAGE == 0 && malloc_usable_size(pages) >= 2 * PAGE, "pvalloc");
    free(page);
    free(pages);
}

static void absurd_sizes_fail_with_enomem(void) {
    volatile size_t huge = SIZE_MAX - 100, half = SIZE_MAX / 2 + 1;
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM, "malloc of %zu", huge);
    errno = 0;
    CHECK(calloc(half, 2) == NULL && errno == ENOMEM, "calloc that overflows");
    char *block = malloc(100);
    CHECK(block, "malloc");
    memset(block, 9, 100);
    errno = 0;
    CHECK(realloc(block, huge) == NULL && errno == ENOMEM, "realloc of %zu", huge);
    errno = 0;
    CHECK(reallocarray(block, half, 2) == NULL && errno == ENOMEM, "reallocarray that overflows");
    for (int i = 0; i < 100; i++) CHECK(block[i] == 9, "a failed realloc changed the block");
    block = reallocarray(block, 1000, 8);
    CHECK(block && block[99] == 9, "reallocarray");
    free(block);
    void *kept = NULL;
    CHECK(posix_memalign(&kept, 64, huge) == ENOMEM, "posix_memalign of %zu", huge);
}

static void freeing_keeps_errno(void) {
    errno = 4242;
    free(hide(malloc(100)));
    free(hide(malloc(20 * MIB)));
    CHECK(errno == 4242, "free changed errno");
}

int main(void) {
    RUN(blocks_are_aligned_and_distinct);
    RUN(empty_and_null_blocks_are_accepted);
    RUN(calloc_zeroes_blocks_that_were_used_before);
    RUN(aligned_blocks_have_their_alignment);
    RUN(absurd_sizes_fail_with_enomem);
    RUN(freeing_keeps_errno);
    return 0;
}
