/* Two pages in every second block of large mappings, in no order: as huge tables of which little is used. */
#include "check.h"

#define BLOCK (64 * PAGE)
/* More than there are mappings in a process, two for each. */
#define TOUCHED ((size_t)40960)
#define MAPPINGS ((size_t)4)
#define BYTES (TOUCHED / MAPPINGS * 2 * BLOCK)

static char *starts[MAPPINGS];

/* Every number below TOUCHED once: 7919 is odd, and TOUCHED has no other divisors than 2 and 5. */
static char *page_of(size_t i) {
    size_t n = i * 7919 % TOUCHED;
    return starts[n % MAPPINGS] + n / MAPPINGS * 2 * BLOCK + n % 63 * PAGE;
}

static void touched_in_no_order(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (size_t n = 0; n < MAPPINGS; n++) {
        starts[n] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(starts[n] != MAP_FAILED, "mmap of %zu MiB", BYTES / MIB);
    }
    for (size_t i = 0; i < TOUCHED; i++) fill(page_of(i), 2 * PAGE, i);
    for (size_t i = 0; i < TOUCHED; i++) check_filled(page_of(i), 2 * PAGE, i, "pages");
    for (size_t i = 0; i < TOUCHED; i += 97)
        CHECK(page_is_zero(page_of(i) + BLOCK), "beside page %zu", i);
    for (size_t n = 0; n < MAPPINGS; n++) CHECK(munmap(starts[n], BYTES) == 0, "munmap");
}

int main(void) {
    RUN(touched_in_no_order);
    return 0;
}
