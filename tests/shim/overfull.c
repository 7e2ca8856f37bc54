/* More memory than the budget that cannot be managed: the program goes on and has its bytes; the user is
 * told, once. */
#include "check.h"

#define OUTSIDE (40 * MIB)
#define BYTES (48 * MIB)

static char *stack;

static void more_outside_than_the_budget(void) {
    stack = mmap(NULL, OUTSIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    CHECK(stack != MAP_FAILED, "mmap of a stack");
    fill(stack, OUTSIDE, 1);
}

static void the_rest_beside_it(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    for (int round = 0; round < 3; round++) check_filled(start, BYTES, 2, "beside too much");
    check_filled(stack, OUTSIDE, 1, "what is outside");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void room_again(void) {
    CHECK(munmap(stack, OUTSIDE) == 0, "munmap of the stack");
    char *start = map(BYTES);
    fill(start, BYTES, 3);
    check_filled(start, BYTES, 3, "with room again");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

/* As long as no system call is made with them, addresses may be had in any number. */
static void more_address_space_than_there_is(void) {
    for (int i = 0; i < 2; i++) {
        size_t bytes = (size_t)8 << 40;
        char *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(start != MAP_FAILED, "reserving 8 TiB");
        char *piece = start + ((size_t)3 << 40);
        CHECK(mprotect(piece, 4 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
        fill(piece, 4 * MIB, 4);
        check_filled(piece, 4 * MIB, 4, "far away");
        CHECK(munmap(start, bytes) == 0, "munmap");
    }
}

int main(void) {
    RUN(more_outside_than_the_budget);
    RUN(the_rest_beside_it);
    RUN(room_again);
    RUN(more_address_space_than_there_is);
    return 0;
}
