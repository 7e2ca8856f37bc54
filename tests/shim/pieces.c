/* Transfers that are far larger than what may stay in memory for one call, whose list of buffers goes out
 * meanwhile: they are made whole. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { PARTS = 1024 };
#define PART (16 * PAGE)
#define TOTAL (PARTS * PART)
#define MEMORY (16 * MIB)
#define OTHERS (48 * MIB)
/* The other end takes so much, then waits until everything else was touched twice. */
#define SWALLOW (2 * MIB)

static atomic_size_t laps;
static atomic_int finished;

/* Touches more than there is room for, again and again: what nobody uses meanwhile goes out. */
static void *push(void *argument) {
    char *others = argument;
    while (!finished) {
        for (size_t at = 0; at < OTHERS; at += PAGE) ++*(volatile uint32_t *)(others + at);
        ++laps;
    }
    return NULL;
}

static void wait_for_two_laps(void) {
    for (size_t from = laps; laps < from + 2 && !finished;) usleep(100);
}

static char *memory;
static struct iovec *parts;
static pthread_t pusher;

/* Memory of known bytes, and a list on pages of its own that names each of them four times. */
static void begin(void) {
    char *others = map(OTHERS);
    memory = map(MEMORY);
    fill(memory, MEMORY, 1);
    /* Between memory that nobody uses: nothing brings it in by the way. */
    parts = (struct iovec *)(map(4 * MIB) + 2 * MIB);
    for (size_t i = 0; i < PARTS; i++) parts[i] = (struct iovec){memory + i * PART % MEMORY, PART};
    finished = 0;
    CHECK(pthread_create(&pusher, NULL, push, others) == 0, "pthread_create");
}

static void end(void) {
    finished = 1;
    CHECK(pthread_join(pusher, NULL) == 0, "pthread_join");
}

struct reader {
    int from;
    size_t got;
    int same;
};

static void *read_slowly(void *argument) {
    struct reader *reader = argument;
    static uint64_t bytes[16 * PAGE / 8];
    reader->same = 1;
    for (size_t since = 0;;) {
        ssize_t n = 0;
        /* Whole pages, so that they can be compared. */
        for (size_t part = 0; part < PAGE; part += (size_t)n) {
            n = read(reader->from, (char *)bytes + part, PAGE - part);
            if (n <= 0) return NULL;
        }
        reader->same &= page_is(bytes, 1 + reader->got % MEMORY / PAGE);
        reader->got += PAGE;
        since += PAGE;
        if (since == SWALLOW) {
            wait_for_two_laps();
            since = 0;
        }
    }
}

static ssize_t own_writev(int file, const struct iovec *list, int count) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_writev), "D"((long)file), "S"(list), "d"((long)count)
                     : "rcx", "r11", "memory");
    if (result >= 0) return result;
    errno = (int)-result;
    return -1;
}

static void into_a_slow_pipe(ssize_t (*write_list)(int, const struct iovec *, int)) {
    int ends[2];
    pthread_t thread;
    CHECK(pipe(ends) == 0, "pipe");
    struct reader reader = {.from = ends[0]};
    CHECK(pthread_create(&thread, NULL, read_slowly, &reader) == 0, "pthread_create");
    ssize_t written = write_list(ends[1], parts, PARTS);
    CHECK(written == (ssize_t)TOTAL, "writev: %zd of %zu", written, TOTAL);
    CHECK(close(ends[1]) == 0 && pthread_join(thread, NULL) == 0, "pthread_join");
    CHECK(reader.got == TOTAL && reader.same, "read: %zu of %zu, same %d", reader.got, TOTAL, reader.same);
    CHECK(close(ends[0]) == 0, "close");
}

static void writev_is_whole_when_its_list_goes_out_meanwhile(void) { into_a_slow_pipe(writev); }

static void writev_past_libc_is_whole_too(void) { into_a_slow_pipe(own_writev); }

static void lists_to_and_from_a_file_are_whole(void) {
    char name[] = "weir-shim-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0, "mkstemp");
    for (int round = 0; round < 4; round++) {
        wait_for_two_laps();
        ssize_t written = pwritev(file, parts, PARTS, 0);
        CHECK(written == (ssize_t)TOTAL, "pwritev: %zd of %zu", written, TOTAL);
        wait_for_two_laps();
        ssize_t got = preadv(file, parts, PARTS, 0);
        CHECK(got == (ssize_t)TOTAL, "preadv: %zd of %zu", got, TOTAL);
    }
    check_filled(memory, MEMORY, 1, "written and read");
    CHECK(close(file) == 0, "close");
}

static void a_list_that_cannot_be_read_is_refused(void) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    char *list = map(2 * PAGE);
    CHECK(munmap(list + PAGE, PAGE) == 0, "munmap");
    errno = 0;
    CHECK(writev(ends[1], (struct iovec *)(list + PAGE - 32), PARTS) == -1 && errno == EFAULT, "writev");
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

int main(void) {
    begin();
    RUN(writev_is_whole_when_its_list_goes_out_meanwhile);
    RUN(writev_past_libc_is_whole_too);
    RUN(lists_to_and_from_a_file_are_whole);
    end();
    RUN(a_list_that_cannot_be_read_is_refused);
    return 0;
}
