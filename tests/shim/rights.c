/* Rights given up are given up by the whole process: no thread keeps a user, a group or a capability that the
 * program has dropped, and threads that the program did not start have no right at all. Memory works on as
 * anybody. */
#include "check.h"

#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define BYTES (64 * MIB)
#define SOMEBODY 23456
#define GROUP 34567

static char *memory;

static void walk(void) { check_filled(memory, BYTES, 1, "memory"); }

/* What a status file says behind a key, as text. */
static void value_of(const char *text, const char *key, char *out, size_t size) {
    char line[64];
    snprintf(line, sizeof line, "\n%s:", key);
    const char *at = strstr(text, line);
    CHECK(at != NULL, "no %s", key);
    at += strlen(line);
    at += strspn(at, "\t ");
    snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
    for (size_t n = strlen(out); n > 0 && (out[n - 1] == ' ' || out[n - 1] == '\t'); n--) out[n - 1] = 0;
}

static unsigned long hex_of(const char *text, const char *key) {
    char value[256];
    value_of(text, key, value, sizeof value);
    return strtoul(value, NULL, 16);
}

static pid_t mine[8];
static _Atomic int mine_count;

static void note_thread(void) { mine[mine_count++] = (pid_t)syscall(SYS_gettid); }

static int is_mine(pid_t id) {
    for (int i = 0; i < mine_count; i++)
        if (mine[i] == id) return 1;
    return 0;
}

static int status_of(pid_t id, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)id);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t n = fread(text, 1, size - 1, file);
    fclose(file);
    text[n] = 0;
    return n > 0;
}

/* Compares every thread's ids and capabilities with the calling one's. */
static void check_threads(const char *what) {
    char own[8192], other[8192];
    CHECK(status_of((pid_t)syscall(SYS_gettid), own, sizeof own), "own status");
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL, "tasks");
    int seen = 0;
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        pid_t id = atoi(entry->d_name);
        if (id <= 0 || !status_of(id, other, sizeof other)) continue;
        seen++;
        const char *same[] = {"Uid", "Gid", "Groups"}, *less[] = {"CapInh", "CapPrm", "CapEff", "CapAmb"};
        for (size_t i = 0; i < 3; i++) {
            char a[256], b[256];
            value_of(own, same[i], a, sizeof a);
            value_of(other, same[i], b, sizeof b);
            CHECK(strcmp(a, b) == 0, "%s: thread %d has %s %s, not %s", what, (int)id, same[i], b, a);
        }
        for (size_t i = 0; i < 4; i++) {
            unsigned long caps = hex_of(other, less[i]);
            CHECK((caps & ~hex_of(own, less[i])) == 0, "%s: thread %d has %s %lx", what, (int)id, less[i],
                caps);
            CHECK(is_mine(id) || caps == 0, "%s: foreign thread %d has %s %lx", what, (int)id, less[i], caps);
        }
        CHECK(is_mine(id) || hex_of(other, "NoNewPrivs") == 1, "%s: foreign thread %d may gain rights", what,
            (int)id);
    }
    CHECK(seen > 0, "%s: no threads", what);
    closedir(tasks);
}

/* A handler thread needs a permission for faults, which the child of somebody else does not have. */
static int may_fork(void) {
    const char *faults = getenv("WEIR_FAULTS");
    return faults == NULL || strcmp(faults, "thread") != 0;
}

/* In a child: what is given up is gone. */
static void in_a_child(void (*body)(void), const char *what) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        mine_count = 0;
        note_thread();
        walk();
        body();
        walk();
        fill(memory, BYTES, 500);
        check_filled(memory, BYTES, 500, what);
        check_threads(what);
        if (!may_fork()) _exit(0);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            mine_count = 0;
            note_thread();
            check_filled(memory, BYTES, 500, "in a child of it");
            check_threads("a child of it");
            _exit(0);
        }
        check_child(grandchild, what);
        _exit(0);
    }
    check_child(child, what);
}

static int is_root(void) { return geteuid() == 0; }

static void drop_user_and_groups(void) {
    gid_t groups[] = {GROUP, GROUP + 1};
    if (!is_root()) return;
    CHECK(setgroups(2, groups) == 0, "setgroups");
    check_threads("setgroups");
    CHECK(setresgid(GROUP, GROUP, GROUP) == 0, "setresgid");
    check_threads("setresgid");
    CHECK(setresuid(SOMEBODY, SOMEBODY, SOMEBODY) == 0, "setresuid");
    check_threads("setresuid");
    CHECK(setuid(0) == -1 && errno == EPERM, "back to root");
}

static void drop_by_setuid(void) {
    if (!is_root()) return;
    CHECK(setgid(GROUP) == 0, "setgid");
    check_threads("setgid");
    CHECK(setuid(SOMEBODY) == 0, "setuid");
    check_threads("setuid");
}

static void drop_by_number(void) {
    if (!is_root()) return;
    CHECK(syscall(SYS_setresgid, GROUP, GROUP, GROUP) == 0, "setresgid");
    CHECK(syscall(SYS_setresuid, SOMEBODY, SOMEBODY, SOMEBODY) == 0, "setresuid");
    check_threads("by number");
}

static void to_and_fro(void) {
    if (!is_root()) return;
    for (int round = 0; round < 20; round++) {
        CHECK(seteuid(SOMEBODY + round) == 0, "seteuid");
        check_threads("somebody");
        check_filled(memory + (size_t)round * MIB, MIB, 1 + (size_t)round * MIB / PAGE, "as somebody");
        CHECK(seteuid(0) == 0, "back");
        check_threads("root again");
    }
}

static void drop_capabilities(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    CHECK(syscall(SYS_capset, &head, none) == 0, "capset");
    check_threads("capset");
}

static _Atomic int over;

static void *keep_walking(void *unused) {
    (void)unused;
    note_thread();
    while (!over) walk();
    return NULL;
}

static void drop_with_threads(void) {
    pthread_t threads[2];
    over = 0;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, keep_walking, NULL) == 0, "pthread_create");
    while (mine_count < 3) sched_yield();
    if (is_root()) drop_user_and_groups();
    check_threads("with threads");
    over = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
}

static void *change_users(void *unused) {
    (void)unused;
    note_thread();
    for (int i = 0; i < 10; i++) CHECK(seteuid(SOMEBODY) == 0 && seteuid(0) == 0, "seteuid");
    CHECK(seteuid(SOMEBODY) == 0, "seteuid");
    return NULL;
}

/* Two at once, while memory comes and goes and a third forks. */
static void drop_at_once(void) {
    if (!is_root()) return;
    pthread_t walker, threads[2];
    over = 0;
    CHECK(pthread_create(&walker, NULL, keep_walking, NULL) == 0, "pthread_create");
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, change_users, NULL) == 0, "pthread_create");
    for (int i = 0; i < 4 && may_fork(); i++) {
        pid_t child = fork();
        if (child == 0) {
            walk();
            _exit(0);
        }
        check_child(child, "forked meanwhile");
    }
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    over = 1;
    CHECK(pthread_join(walker, NULL) == 0, "pthread_join");
    check_threads("at once");
}

/* A table of descriptors of its own: whoever keeps the old one would keep files open. */
static void leave_the_files(void) {
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    CHECK(unshare(CLONE_FILES) == 0, "unshare");
    CHECK(close(ends[1]) == 0, "close");
    char byte;
    CHECK(read(ends[0], &byte, 1) == 0, "the other end is still open somewhere");
}

static void users_and_groups(void) { in_a_child(drop_user_and_groups, "users and groups"); }
static void one_by_one(void) { in_a_child(drop_by_setuid, "setuid"); }
static void calls_by_number(void) { in_a_child(drop_by_number, "by number"); }
static void users_change_often(void) { in_a_child(to_and_fro, "to and fro"); }
static void capabilities(void) { in_a_child(drop_capabilities, "capabilities"); }
static void programs_with_threads(void) { in_a_child(drop_with_threads, "threads"); }
static void several_at_once(void) { in_a_child(drop_at_once, "at once"); }
static void descriptors_of_its_own(void) { in_a_child(leave_the_files, "files"); }

/* A child that shares the memory has rights of its own. */
static void a_vfork_child_drops_alone(void) {
    pid_t child = vfork();
    if (child == 0) {
        int fine = !is_root() || setuid(SOMEBODY) == 0;
        _exit(!fine);
    }
    check_child(child, "vfork");
    walk();
    CHECK(is_root() == (getuid() == 0), "the parent stays who it is");
}

int main(void) {
    note_thread();
    memory = map(BYTES);
    fill(memory, BYTES, 1);
    walk();
    RUN(users_and_groups);
    RUN(one_by_one);
    RUN(calls_by_number);
    RUN(users_change_often);
    RUN(capabilities);
    RUN(programs_with_threads);
    RUN(several_at_once);
    RUN(descriptors_of_its_own);
    RUN(a_vfork_child_drops_alone);
    walk();
    return 0;
}
