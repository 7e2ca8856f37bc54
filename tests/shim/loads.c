/* Single values read from memory that is out, by every kind of instruction that compilers use for it: what a
 * load sees is what was stored last, and registers and flags are as the processor would leave them. Weir
 * gives such instructions the value without bringing the page. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

#define BYTES (64 * MIB)
#define WORDS (BYTES / 8)

static uint64_t random_state = 1;

static uint64_t next(uint64_t below) {
    random_state = mix(random_state);
    return random_state % below;
}

static volatile uint64_t *words;

static uint64_t word_at(size_t i) { return page_word(5 + i / (PAGE / 8), i % (PAGE / 8)); }

/* The value of so many bytes at this offset: parts of two words, perhaps. */
static uint64_t bytes_at(size_t offset, unsigned bytes) {
    size_t shift = offset % 8 * 8;
    uint64_t low = word_at(offset / 8) >> shift;
    if (shift) low |= word_at(offset / 8 + 1) << (64 - shift);
    return bytes == 8 ? low : low & ((1ull << 8 * bytes) - 1);
}

static void loads_of_every_width_see_the_bytes_that_were_stored(void) {
    const volatile char *start = (const volatile char *)words;
    for (int n = 0; n < 200000; n++) {
        /* Now and then across the border of two pages. */
        size_t at = next(64) ? next(BYTES - 16) : next(BYTES / PAGE - 1) * PAGE + PAGE - next(8);
        uint64_t got, want;
        switch (next(7)) {
        case 0: got = *(const volatile uint8_t *)(start + at), want = bytes_at(at, 1); break;
        case 1: got = *(const volatile uint16_t *)(start + at), want = bytes_at(at, 2); break;
        case 2: got = *(const volatile uint32_t *)(start + at), want = bytes_at(at, 4); break;
        case 3: got = (uint64_t)*(const volatile int8_t *)(start + at),
            want = (uint64_t)(int8_t)bytes_at(at, 1); break;
        case 4: got = (uint64_t)*(const volatile int16_t *)(start + at),
            want = (uint64_t)(int16_t)bytes_at(at, 2); break;
        case 5: got = (uint64_t)*(const volatile int32_t *)(start + at),
            want = (uint64_t)(int32_t)bytes_at(at, 4); break;
        default: got = *(const volatile uint64_t *)(start + at), want = bytes_at(at, 8);
        }
        CHECK(got == want, "offset %#zx: %#llx instead of %#llx", at, (unsigned long long)got,
            (unsigned long long)want);
    }
}

static void sums_and_comparisons_over_a_gather_are_right(void) {
    for (int round = 0; round < 4; round++) {
        uint64_t sum = 0, mixed = 0, masked = ~0ull, all = 0, difference = 0, less = 0, equal = 0, odd = 0;
        uint64_t sum_is = 0, mixed_is = 0, masked_is = ~0ull, all_is = 0, difference_is = 0, less_is = 0,
            equal_is = 0, odd_is = 0;
        for (int n = 0; n < 12000; n++) {
            size_t at[8];
            for (int k = 0; k < 8; k++) at[k] = next(WORDS);
            uint64_t other = word_at(next(WORDS));
            sum += words[at[0]], sum_is += word_at(at[0]);
            mixed ^= words[at[1]], mixed_is ^= word_at(at[1]);
            masked = (masked & words[at[2]]) | 0xff00ff, masked_is = (masked_is & word_at(at[2])) | 0xff00ff;
            all |= words[at[3]] & (1ull << n % 64), all_is |= word_at(at[3]) & (1ull << n % 64);
            difference -= words[at[4]], difference_is -= word_at(at[4]);
            if (words[at[5]] < other) less++;
            if (word_at(at[5]) < other) less_is++;
            if ((int64_t)words[at[6]] == (int64_t)word_at(at[6])) equal++;
            equal_is++;
            if (words[at[7]] & 1) odd++;
            odd_is += word_at(at[7]) & 1;
        }
        CHECK(sum == sum_is && mixed == mixed_is && masked == masked_is && all == all_is,
            "round %d: gathered values", round);
        CHECK(difference == difference_is && less == less_is && equal == equal_is && odd == odd_is,
            "round %d: comparisons", round);
    }
}

static void lookups_by_halves_find_every_key(void) {
    /* The same memory as a sorted array, read at one place of a page at a time. */
    uint64_t *sorted = (uint64_t *)map(BYTES);
    for (size_t i = 0; i < WORDS; i++) sorted[i] = i * 3;
    churn();
    for (int n = 0; n < 20000; n++) {
        uint64_t key = next(WORDS * 3);
        size_t low = 0, high = WORDS;
        while (high - low > 1) {
            size_t middle = low + (high - low) / 2;
            if (((volatile uint64_t *)sorted)[middle] <= key)
                low = middle;
            else
                high = middle;
        }
        CHECK(low == key / 3, "key %llu was found at %zu", (unsigned long long)key, low);
    }
    CHECK(munmap(sorted, BYTES) == 0, "munmap");
}

#ifdef __x86_64__
static void registers_and_flags_are_as_the_processor_leaves_them(void) {
    for (int n = 0; n < 30000; n++) {
        size_t at = next(WORDS - 1);
        const volatile uint64_t *p = words + at;
        uint64_t value = word_at(at), a = mix((uint64_t)n), got, flags, want;
        switch (n % 8) {
        case 0: /* a load changes no flag */
            __asm__ volatile("stc; mov (%2), %0; sbb %1, %1" : "=&r"(got), "=&r"(flags) : "r"(p));
            CHECK(got == value && flags == ~0ull, "mov");
            break;
        case 1: /* the second byte of a register */
            got = a;
            __asm__ volatile("mov (%1), %%ah" : "+a"(got) : "D"(p));
            CHECK(got == ((a & ~0xff00ull) | (value & 0xff) << 8), "mov to ah");
            break;
        case 2: /* two bytes leave the others */
            got = a;
            __asm__ volatile("mov (%1), %w0" : "+&r"(got) : "r"(p));
            CHECK(got == ((a & ~0xffffull) | (value & 0xffff)), "mov of two bytes");
            break;
        case 3: { /* base, index, scale and displacement, from the upper registers */
            register uint64_t base __asm__("r13") = (uint64_t)p - 24 - 8 * 5;
            register uint64_t index __asm__("r12") = 5;
            register uint64_t into __asm__("r9");
            __asm__ volatile("movl 24(%1,%2,8), %k0" : "=&r"(into) : "r"(base), "r"(index));
            CHECK(into == (value & 0xffffffff), "movl zeroes the upper half");
            break;
        }
        case 4: /* carry and result of an addition */
            got = a;
            __asm__ volatile("add (%2), %0; sbb %1, %1" : "+&r"(got), "=&r"(flags) : "r"(p));
            CHECK(got == a + value && flags == (a + value < a ? ~0ull : 0), "add");
            break;
        case 5: /* a number compared with memory, whose operand follows the address */
            __asm__ volatile("cmpl $0x12345678, 4(%1); sete %b0; movzbl %b0, %k0" : "=&r"(got) : "r"(p));
            CHECK(got == (value >> 32 == 0x12345678), "cmpl");
            break;
        case 6: /* overflow, by a signed comparison */
            __asm__ volatile("cmp %2, (%1); setl %b0; movzbl %b0, %k0" : "=&r"(got) : "r"(p), "r"(a));
            CHECK(got == ((int64_t)value < (int64_t)a), "cmp");
            break;
        default: /* relative to the stack pointer */
            want = value;
            __asm__ volatile("xchg %1, %%rsp; mov (%%rsp), %0; xchg %1, %%rsp" : "=&r"(got), "+&r"(p));
            CHECK(got == want, "mov from where the stack pointer points");
        }
    }
}
#else
static void registers_and_flags_are_as_the_processor_leaves_them(void) {}
#endif

/* Words that others change: both halves of each are the same number, which never falls. */
enum { SHARED_PAGES = 12288, READERS = 3 };
static _Atomic uint64_t *counters;
static atomic_int done;

static void *count_up(void *argument) {
    uint64_t random = (uint64_t)argument;
    for (int n = 0; n < 60000; n++) {
        random = mix(random);
        _Atomic uint64_t *at = counters + random % SHARED_PAGES * (PAGE / 8)
            + random / SHARED_PAGES % 4 * 100;
        atomic_fetch_add(at, 0x100000001u);
    }
    atomic_fetch_add(&done, 1);
    return NULL;
}

static void *watch(void *argument) {
    uint64_t random = 77 + (uint64_t)argument;
    static _Thread_local uint64_t last[SHARED_PAGES][4];
    while (atomic_load(&done) < 2) {
        random = mix(random);
        size_t page = random % SHARED_PAGES, k = random / SHARED_PAGES % 4;
        uint64_t got = atomic_load_explicit(counters + page * (PAGE / 8) + k * 100, memory_order_relaxed);
        CHECK(got >> 32 == (got & 0xffffffff), "half a store: %#llx", (unsigned long long)got);
        CHECK(got >= last[page][k], "an older value: %llu after %llu", (unsigned long long)got,
            (unsigned long long)last[page][k]);
        last[page][k] = got;
    }
    return NULL;
}

static void loads_beside_stores_of_others_see_whole_words_in_order(void) {
    pthread_t threads[2 + READERS];
    counters = (_Atomic uint64_t *)map(SHARED_PAGES * PAGE);
    for (size_t page = 0; page < SHARED_PAGES; page++) ((char *)counters)[page * PAGE + PAGE - 1] = 1;
    for (size_t t = 0; t < 2 + READERS; t++)
        CHECK(pthread_create(&threads[t], NULL, t < 2 ? count_up : watch, (void *)(t + 1)) == 0, "thread");
    for (size_t t = 0; t < 2 + READERS; t++) CHECK(pthread_join(threads[t], NULL) == 0, "join");
    uint64_t sum = 0;
    for (size_t page = 0; page < SHARED_PAGES; page++)
        for (size_t k = 0; k < 4; k++) sum += counters[page * (PAGE / 8) + k * 100] & 0xffffffff;
    CHECK(sum == 120000, "%llu of 120000 additions", (unsigned long long)sum);
    CHECK(munmap((void *)counters, SHARED_PAGES * PAGE) == 0, "munmap");
}

static volatile uint64_t *flag;

static void *raise_flag(void *argument) {
    churn();
    *flag = 1;
    return argument;
}

static void whoever_waits_for_a_word_sees_it_change(void) {
    pthread_t thread;
    char *start = map(8 * MIB);
    fill(start, 8 * MIB, 3);
    flag = (volatile uint64_t *)(start + 4 * MIB);
    *flag = 0;
    churn();
    CHECK(pthread_create(&thread, NULL, raise_flag, NULL) == 0, "thread");
    uint64_t seen = 0;
    while (!*flag) seen++;
    CHECK(pthread_join(thread, NULL) == 0 && *flag == 1, "join");
    CHECK(munmap(start, 8 * MIB) == 0, "munmap");
}

static void what_is_dropped_reads_as_zeros_and_what_is_forbidden_faults(void) {
    char *start = map(64 * MIB);
    fill(start, 64 * MIB, 9);
    volatile uint64_t *at = (volatile uint64_t *)start;
    CHECK(madvise(start + 16 * MIB, 16 * MIB, MADV_DONTNEED) == 0, "madvise");
    CHECK(mprotect(start + 48 * MIB, 16 * MIB, PROT_NONE) == 0, "mprotect");
    for (int n = 0; n < 20000; n++) {
        size_t page = next(48 * MIB / PAGE), i = next(PAGE / 8);
        uint64_t want = page >= 16 * MIB / PAGE && page < 32 * MIB / PAGE ? 0 : page_word(9 + page, i);
        CHECK(at[page * (PAGE / 8) + i] == want, "page %zu, word %zu", page, i);
    }
    for (size_t page = 48 * MIB / PAGE; page < 64 * MIB / PAGE; page += 512)
        CHECK(fault_of(start + page * PAGE, 0) == SIGSEGV, "page %zu can be read", page);
    CHECK(mprotect(start + 48 * MIB, 16 * MIB, PROT_READ) == 0, "mprotect");
    for (int n = 0; n < 5000; n++) {
        size_t page = 48 * MIB / PAGE + next(16 * MIB / PAGE), i = next(PAGE / 8);
        CHECK(at[page * (PAGE / 8) + i] == page_word(9 + page, i), "page %zu, word %zu, read only", page, i);
    }
    CHECK(munmap(start, 64 * MIB) == 0, "munmap");
}

static void a_child_loads_what_its_parent_had_at_the_fork(void) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    volatile uint64_t *mine = words;
    if (child == 0) {
        for (int n = 0; n < 20000; n++) {
            size_t at = next(WORDS);
            CHECK(mine[at] == word_at(at), "word %zu in the child", at);
        }
        _exit(0);
    }
    for (size_t page = 0; page < BYTES / PAGE; page += 3) mine[page * (PAGE / 8) + 1] ^= 1;
    check_child(child, "loads");
    for (size_t page = 0; page < BYTES / PAGE; page += 3) mine[page * (PAGE / 8) + 1] ^= 1;
    for (int n = 0; n < 20000; n++) {
        size_t at = next(WORDS);
        CHECK(mine[at] == word_at(at), "word %zu in the parent", at);
    }
}

int main(void) {
    words = (volatile uint64_t *)map(BYTES);
    fill((void *)words, BYTES, 5);
    RUN(loads_of_every_width_see_the_bytes_that_were_stored);
    RUN(sums_and_comparisons_over_a_gather_are_right);
    RUN(registers_and_flags_are_as_the_processor_leaves_them);
    RUN(lookups_by_halves_find_every_key);
    RUN(loads_beside_stores_of_others_see_whole_words_in_order);
    RUN(whoever_waits_for_a_word_sees_it_change);
    RUN(what_is_dropped_reads_as_zeros_and_what_is_forbidden_faults);
    RUN(a_child_loads_what_its_parent_had_at_the_fork);
    check_filled((void *)words, BYTES, 5, "at the end");
    return 0;
}
