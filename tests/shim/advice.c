/* Advice about the order of use: every byte stays, and where pages go out an access brings its page alone, or
 * its neighbours too.
 *
 * What an access brings is seen by mincore. Where nothing goes out (natively) nothing comes, which holds as
 * well. */
#include "check.h"

#define BYTES (96 * MIB)
#define PAGES (BYTES / PAGE)
/* Accesses to count by, each far from the others. */
#define VISITS 200
#define APART (PAGES / VISITS)

/* What `VISITS` accesses brought: pages that were out, by page touched and around it. */
struct brought {
    size_t touched, around;
};

/* Pages of the 64 around `page` that are in RAM. */
static void look(char *start, size_t page, unsigned char here[64]) {
    CHECK(mincore(start + page / 64 * 64 * PAGE, 64 * PAGE, here) == 0, "mincore of page %zu", page);
}

static struct brought visit(char *start, uint64_t seed) {
    struct brought sum = {0, 0};
    unsigned char before[64], after[64];
    for (size_t i = 0; i < VISITS; i++) {
        /* In no order, each block at most once, not at its border. */
        size_t page = (i * 77 % VISITS) * APART / 64 * 64 + 5 + i % 7;
        look(start, page, before);
        CHECK(page_is(start + page * PAGE, seed + page), "page %zu has other bytes", page);
        look(start, page, after);
        if (before[page % 64] & 1) continue;
        sum.touched++;
        for (size_t k = 0; k < 64; k++) sum.around += !(before[k] & 1) && (after[k] & 1) && k != page % 64;
    }
    return sum;
}

/* Out of RAM, where there is something that pushes out. */
static void push_out(char *start) {
    CHECK(madvise(start, BYTES, MADV_PAGEOUT) == 0 || errno == EINVAL, "MADV_PAGEOUT");
    churn();
}

/* Of the first `WALK` pages, used in order, those that were out when they were used. */
#define WALK 2048

static size_t missed(char *start, uint64_t seed) {
    size_t out = 0;
    for (size_t page = 0; page < WALK; page++) {
        unsigned char here;
        CHECK(mincore(start + page * PAGE, PAGE, &here) == 0, "mincore of page %zu", page);
        out += !(here & 1);
        CHECK(page_is(start + page * PAGE, seed + page), "page %zu has other bytes", page);
    }
    return out;
}

static void random_brings_one_page_and_no_order_changes_bytes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    CHECK(madvise(start, BYTES, MADV_RANDOM) == 0, "MADV_RANDOM");
    push_out(start);
    struct brought random = visit(start, 1);
    CHECK(random.around == 0, "random: %zu pages around %zu", random.around, random.touched);
    push_out(start);
    size_t each = missed(start, 1);
    /* How many pages come ahead of need depends on the room that there is, so on the machine: the simulated
     * engine's tests count them. */
    static const int ORDERS[] = {MADV_SEQUENTIAL, MADV_NORMAL};
    for (size_t i = 0; i < 2; i++) {
        CHECK(madvise(start, BYTES, ORDERS[i]) == 0, "madvise %d", ORDERS[i]);
        push_out(start);
        missed(start, 1);
    }
    if (getenv("WEIR_MEMORY"))
        CHECK(random.touched > VISITS / 4 && each > WALK / 2, "pages were out: %zu of %d, %zu of %d",
            random.touched, VISITS, each, WALK);
    check_filled(start, BYTES, 1, "after all advice");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void bytes_stay_in_every_order(void) {
    static const int ADVICE[] = {POSIX_MADV_RANDOM, POSIX_MADV_SEQUENTIAL, POSIX_MADV_NORMAL};
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    for (size_t a = 0; a < 3; a++) {
        /* A part of it, cut within blocks; the rest is as it was. */
        CHECK(posix_madvise(start + 3 * PAGE, BYTES - 70 * PAGE, ADVICE[a]) == 0, "posix_madvise %d",
            ADVICE[a]);
        check_filled(start, BYTES, 2, "forwards");
        for (size_t page = PAGES; page-- > 0;)
            CHECK(page_is(start + page * PAGE, 2 + page), "backwards: page %zu", page);
        for (size_t i = 0; i < PAGES; i += 3) {
            size_t page = i * 4099 % PAGES;
            CHECK(page_is(start + page * PAGE, 2 + page), "in no order: page %zu", page);
        }
    }
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void a_child_and_a_moved_mapping_keep_the_advice(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 3);
    CHECK(madvise(start, BYTES, MADV_RANDOM) == 0, "MADV_RANDOM");
    push_out(start);
    pid_t child = fork();
    if (child == 0) {
        struct brought random = visit(start, 3);
        CHECK(random.around == 0, "child: %zu pages around %zu", random.around, random.touched);
        _exit(0);
    }
    check_child(child, "child with advice");
    char *moved = mremap(start, BYTES, BYTES + 64 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    push_out(moved);
    struct brought random = visit(moved, 3);
    CHECK(random.around == 0, "moved: %zu pages around %zu", random.around, random.touched);
    check_filled(moved, BYTES, 3, "moved");
    CHECK(munmap(moved, BYTES + 64 * MIB) == 0, "munmap");
}

static void paged_out_parts_and_wanted_ones_keep_their_bytes(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 4);
    /* Parts of blocks go out; all of it, more than fits, is said to be needed. */
    for (size_t page = 0; page + 24 <= PAGES; page += 40)
        CHECK(madvise(start + page * PAGE, 24 * PAGE, MADV_PAGEOUT) == 0 || errno == EINVAL,
            "MADV_PAGEOUT of page %zu", page);
    CHECK(madvise(start, BYTES, MADV_WILLNEED) == 0, "MADV_WILLNEED");
    check_filled(start, BYTES, 4, "all of it");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

int main(void) {
    RUN(random_brings_one_page_and_no_order_changes_bytes);
    RUN(bytes_stay_in_every_order);
    RUN(a_child_and_a_moved_mapping_keep_the_advice);
    RUN(paged_out_parts_and_wanted_ones_keep_their_bytes);
    return 0;
}
