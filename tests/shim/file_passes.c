/* A mapped file four times as large as the budget is read again and again. Whoever watches the process sees
 * that its pages keep to the budget most of the time. */
#include "files.h"

#define BYTES (128 * MIB)

static void a_file_is_read_in_passes_backwards_and_at_random(void) {
    int fd = file_of("passes.data", BYTES, 1);
    for (int kind = MAP_SHARED; kind <= MAP_PRIVATE; kind++) {
        char *start = map_file(fd, BYTES, PROT_READ, kind);
        for (int pass = 0; pass < 4; pass++) check_filled(start, BYTES, 1, "a pass");
        for (size_t n = BYTES / PAGE; n-- > 0;)
            CHECK(page_is(start + n * PAGE, 1 + n), "backwards: page %zu has other bytes", n);
        for (uint64_t i = 0; i < 40000; i++) {
            size_t n = mix(i) % (BYTES / PAGE);
            CHECK(page_is(start + n * PAGE, 1 + n), "at random: page %zu has other bytes", n);
        }
        churn();
        check_filled(start, BYTES, 1, "beside other memory");
        unmap(start, BYTES);
    }
    CHECK(close(fd) == 0, "close");
}

int main(void) {
    RUN(a_file_is_read_in_passes_backwards_and_at_random);
    return 0;
}
