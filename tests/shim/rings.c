/* A ring of io_uring made while the program is small, used when it is large: what it reads and writes lies in
 * pages that are out. A program that is refused a ring (ENOSYS, EPERM) does without. */
#include "check.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

#define BLOCK (64 * PAGE)
#define ROUNDS 32

static int ring = -1;
static char *queue;
static struct io_uring_sqe *entries;
static struct io_uring_params about;

static void make_ring(void) {
    ring = syscall(SYS_io_uring_setup, 4, &about);
    if (ring < 0) {
        CHECK(errno == ENOSYS || errno == EPERM, "io_uring_setup");
        return;
    }
    CHECK(about.features & IORING_FEAT_SINGLE_MMAP, "an old ring");
    size_t sq = about.sq_off.array + about.sq_entries * 4,
        cq = about.cq_off.cqes + about.cq_entries * sizeof(struct io_uring_cqe);
    queue = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
        IORING_OFF_SQ_RING);
    entries = mmap(NULL, about.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    CHECK(queue != MAP_FAILED && entries != MAP_FAILED, "mmap of the ring");
}

static unsigned *word(unsigned offset) { return (unsigned *)(queue + offset); }

/* Moves a block from or to the file; by the ring if there is one. */
static ssize_t transfer(int code, int file, void *block, off_t at) {
    if (ring < 0)
        return code == IORING_OP_READ ? pread(file, block, BLOCK, at) : pwrite(file, block, BLOCK, at);
    unsigned tail = *word(about.sq_off.tail), index = tail & *word(about.sq_off.ring_mask);
    entries[index] = (struct io_uring_sqe){.opcode = code, .fd = file, .addr = (uintptr_t)block, .len = BLOCK,
        .off = at, .user_data = at};
    word(about.sq_off.array)[index] = index;
    __atomic_store_n(word(about.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring_enter");
    unsigned head = *word(about.cq_off.head);
    CHECK(head != __atomic_load_n(word(about.cq_off.tail), __ATOMIC_ACQUIRE), "no completion");
    struct io_uring_cqe *done = (struct io_uring_cqe *)(queue + about.cq_off.cqes)
        + (head & *word(about.cq_off.ring_mask));
    ssize_t result = done->res;
    __atomic_store_n(word(about.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return result;
}

static void blocks_go_out_and_come_back(void) {
    char *area = map(ROUNDS * BLOCK);
    int file = open(".", O_TMPFILE | O_RDWR, 0600);
    if (file < 0) file = open("ring.data", O_CREAT | O_TRUNC | O_RDWR, 0600);
    CHECK(file >= 0, "open");
    fill(area, ROUNDS * BLOCK, 11);
    churn();
    for (int i = 0; i < ROUNDS; i++) {
        ssize_t n = transfer(IORING_OP_WRITE, file, area + i * BLOCK, i * BLOCK);
        CHECK(n == BLOCK, "write %zd", n);
    }
    fill(area, ROUNDS * BLOCK, 1000);
    churn();
    for (int i = 0; i < ROUNDS; i++) {
        ssize_t n = transfer(IORING_OP_READ, file, area + i * BLOCK, i * BLOCK);
        CHECK(n == BLOCK, "read %zd", n);
    }
    churn();
    check_filled(area, ROUNDS * BLOCK, 11, "read back");
    close(file);
}

int main(void) {
    make_ring();
    RUN(blocks_go_out_and_come_back);
    return 0;
}
