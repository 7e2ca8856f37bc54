/* Programs that start programs with everything that the call reads lying in evicted memory: path, arguments,
 * environment, file actions. What the child got is read back from it. */
#include "handlers.h"

#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/stat.h>

extern char **environ;

/* Where the parts of a call lie: each in a page of its own, far apart; `far` is filled and evicted around
 * it. */
static char *far;
static size_t next_page;

static char *far_place(void) {
    next_page = (next_page + 1021) % (PAGES - 64);
    return far + next_page * PAGE + 200;
}

static char *far_text(const char *text) {
    char *place = far_place();
    return strcpy(place, text);
}

/* A vector of texts in evicted memory: the vector in one page, each text in another. */
static char **far_vector(const char *first, ...) {
    char **vector = (char **)(far_place() + 8);
    size_t count = 0;
    va_list rest;
    va_start(rest, first);
    for (const char *text = first; text; text = va_arg(rest, const char *)) vector[count++] = far_text(text);
    va_end(rest);
    vector[count] = NULL;
    return vector;
}

/* The walk goes through twice the budget: what `far` holds is out of RAM then. */
static void evict(void) { walk(); }

static char *answer; /* managed as well */

/* Everything that comes through the pipe, as text. */
static const char *read_answer(int file) {
    size_t length = 0;
    for (;;) {
        ssize_t done = read(file, answer + length, 4 * MIB - 1 - length);
        if (done < 0 && errno == EINTR) continue;
        CHECK(done >= 0, "read from a child");
        if (done == 0) break;
        length += (size_t)done;
    }
    answer[length] = 0;
    CHECK(close(file) == 0, "close");
    return answer;
}

static void expect_text(const char *got, const char *expected, const char *what) {
    CHECK(strcmp(got, expected) == 0, "%s: got `%.200s`, expected `%.200s`", what, got, expected);
}

/* Runs a program with its output in a pipe; the actions lie in evicted memory. */
static const char *spawned(int by_path, char *path, char **arguments, char **environment,
    const posix_spawnattr_t *attributes) {
    int pair[2];
    pid_t child = 0;
    CHECK(pipe2(pair, O_CLOEXEC) == 0, "pipe");
    posix_spawn_file_actions_t *actions = (posix_spawn_file_actions_t *)(far_place() + 8);
    CHECK(posix_spawn_file_actions_init(actions) == 0, "actions");
    /* So many that the list of them is a large block, and the last ones count. */
    for (int i = 0; i < 100; i++)
        CHECK(posix_spawn_file_actions_adddup2(actions, pair[1], 40 + i) == 0, "actions");
    CHECK(posix_spawn_file_actions_addopen(actions, 0, far_text("/dev/null"), O_RDONLY, 0) == 0, "actions");
    CHECK(posix_spawn_file_actions_addchdir_np(actions, far_text("/")) == 0, "actions");
    CHECK(posix_spawn_file_actions_adddup2(actions, 40 + 99, 1) == 0, "actions");
    for (int i = 0; i < 100; i++) CHECK(posix_spawn_file_actions_addclose(actions, 40 + i) == 0, "actions");
    evict();
    int error = (by_path ? posix_spawnp : posix_spawn)(&child, path, actions, attributes, arguments,
        environment);
    CHECK(error == 0, "posix_spawn of %s: %d", path, error);
    CHECK(posix_spawn_file_actions_destroy(actions) == 0 && close(pair[1]) == 0, "actions");
    const char *text = read_answer(pair[0]);
    check_child(child, path);
    return text;
}

static void spawned_programs_get_what_lies_in_evicted_memory(void) {
    for (int round = 0; round < 4; round++) {
        char **shell = far_vector("sh", "-c", "echo \"$0 $1 $TEXT\"; pwd", "zero", "one  two", NULL);
        char **environment = far_vector("TEXT=some text", "PATH=/usr/bin:/bin", NULL);
        expect_text(spawned(0, far_text("/bin/sh"), shell, environment, NULL), "zero one  two some text\n/\n",
            "sh");
        expect_text(spawned(1, far_text("printf"), far_vector("printf", "%s-%s", "a", "b", NULL), environ,
            NULL), "a-b", "printf");
        expect_text(spawned(1, far_text("cat"), far_vector("cat", "/proc/self/comm", NULL), environ, NULL),
            "cat\n", "cat");
    }
}

static void spawn_says_what_is_wrong(void) {
    pid_t child;
    evict();
    CHECK(posix_spawn(&child, far_text("/no/such/program"), NULL, NULL, far_vector("x", NULL),
        environ) == ENOENT, "missing");
    CHECK(posix_spawn(&child, far_text("/etc/passwd"), NULL, NULL, far_vector("x", NULL), environ) == EACCES,
        "not executable");
    CHECK(posix_spawnp(&child, far_text("no-such-program-anywhere"), NULL, NULL, far_vector("x", NULL),
        environ) == ENOENT, "missing");
    walk();
}

/* 250 variables and one of 100 KB. */
static char **large_environment(void) {
    enum { COUNT = 250, LONG = 100000 };
    char **vector = (char **)far_place();
    char text[64];
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(text, sizeof text, "VARIABLE_%03zu=value %zu", i, i * i);
        vector[i] = far_text(text);
    }
    char *long_one = far + BYTES - 60 * PAGE + 100;
    strcpy(long_one, "LONG=");
    for (size_t i = 0; i < LONG; i++) long_one[5 + i] = (char)('a' + i % 23);
    long_one[5 + LONG] = 0;
    vector[COUNT] = long_one;
    vector[COUNT + 1] = NULL;
    return vector;
}

static void expect_large_environment(const char *text, char **environment, const char *what) {
    for (size_t i = 0; environment[i]; i++) {
        size_t length = strlen(environment[i]);
        CHECK(strncmp(text, environment[i], length) == 0 && text[length] == '\n', "%s: variable %zu: %.60s",
            what, i, text);
        text += length + 1;
    }
    CHECK(*text == 0, "%s: more variables: %.60s", what, text);
}

static void large_environments_arrive_whole(void) {
    char **environment = large_environment();
    char **arguments = far_vector("env", NULL);
    for (int round = 0; round < 3; round++)
        expect_large_environment(spawned(0, far_text("/usr/bin/env"), arguments, environment, NULL),
            environment, "posix_spawn");
}

enum way { VFORK_EXECVE, FORK_EXECVE, VFORK_EXECL, VFORK_EXECLP, VFORK_EXECLE, VFORK_EXECV, VFORK_EXECVP,
    FORK_EXECVPE, VFORK_FEXECVE, WAYS };

static void exec_by(enum way way, char *path, char *name, char **arguments, char **environment, int file) {
    if (way == VFORK_EXECVE || way == FORK_EXECVE) execve(path, arguments, environment);
    if (way == VFORK_EXECL) execl(path, arguments[0], arguments[1], arguments[2], (char *)NULL);
    if (way == VFORK_EXECLP) execlp(name, arguments[0], arguments[1], arguments[2], (char *)NULL);
    if (way == VFORK_EXECLE)
        execle(path, arguments[0], arguments[1], arguments[2], (char *)NULL, environment);
    if (way == VFORK_EXECV) execv(path, arguments);
    if (way == VFORK_EXECVP) execvp(name, arguments);
    if (way == FORK_EXECVPE) execvpe(name, arguments, environment);
    if (way == VFORK_FEXECVE) fexecve(file, arguments, environment);
}

/* vfork() must be called by the function that runs the child: it may not return. */
static const char *executed(enum way way, char *path, char *name, char **arguments, char **environment) {
    int pair[2], file = open("/bin/sh", O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0 && pipe2(pair, O_CLOEXEC) == 0, "pipe");
    evict();
    pid_t child = way == FORK_EXECVE || way == FORK_EXECVPE ? fork() : vfork();
    if (child == 0) {
        if (dup2(pair[1], 1) == 1) exec_by(way, path, name, arguments, environment, file);
        _exit(99);
    }
    CHECK(child > 0 && close(pair[1]) == 0 && close(file) == 0, "no child");
    const char *text = read_answer(pair[0]);
    check_child(child, name);
    return text;
}

static void every_kind_of_exec_reads_evicted_memory(void) {
    char **arguments = far_vector("sh", "-c", "echo \"$MARK\"; exit 0", NULL);
    char **environment = far_vector("MARK=given", "PATH=/usr/bin:/bin", NULL);
    CHECK(setenv("MARK", "own", 1) == 0, "setenv");
    for (int way = 0; way < WAYS; way++)
        for (int round = 0; round < 3; round++) {
            int given = way == VFORK_EXECVE || way == FORK_EXECVE || way == VFORK_EXECLE
                || way == FORK_EXECVPE || way == VFORK_FEXECVE;
            const char *text = executed((enum way)way, far_text("/bin/sh"), far_text("sh"), arguments,
                environment);
            expect_text(text, given ? "given\n" : "own\n", "exec");
        }
    char **large = large_environment();
    for (int way = 0; way < 2; way++) {
        const char *text = executed((enum way)way, far_text("/usr/bin/env"), far_text("env"),
            far_vector("env", NULL), large);
        expect_large_environment(text, large, "execve");
    }
    check_filled(memory, BYTES, SEED, "the parent's memory");
}

/* The child of a vfork writes the parent's memory: evicted pages too. */
static void a_vfork_child_shares_memory(void) {
    for (volatile size_t round = 0; round < 20; round++) {
        char *volatile place = far_place();
        *place = 0;
        evict();
        pid_t child = vfork();
        if (child == 0) {
            *place = (char)(round + 1);
            _exit(page_looks_right(round * 800) ? 0 : 1);
        }
        check_child(child, "vfork");
        CHECK(*place == (char)(round + 1), "round %zu: what the child wrote is not there", round);
    }
}

static int work_on_shared_memory(void *argument) {
    char buffer[4096];
    memset(buffer, 7, sizeof buffer);
    for (size_t page = 0; page < PAGES; page += 61)
        if (!page_looks_right(page)) return 1;
    memcpy(argument, buffer, sizeof buffer);
    return 23;
}

/* As vfork, with a stack of the program's own, which is evicted too. */
static void a_clone_that_shares_memory_runs_on_an_evicted_stack(void) {
    for (int round = 0; round < 10; round++) {
        char *stack = malloc(64 << 10), *place = far_place();
        int status = 0;
        CHECK(stack, "malloc");
        memset(stack, 0x55, 64 << 10);
        evict();
        pid_t child = clone(work_on_shared_memory, stack + (64 << 10), CLONE_VM | CLONE_VFORK | SIGCHLD,
            place);
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
            && WEXITSTATUS(status) == 23, "%#x", (unsigned)status);
        for (size_t i = 0; i < 4096; i++) CHECK(place[i] == 7, "byte %zu", i);
        free(stack);
    }
}

static void shells_are_started_by_libc(void) {
    for (int round = 0; round < 3; round++) {
        char *command = far_text("printf 'one\\ntwo\\n'; exit 5"), *mode = far_text("r");
        evict();
        FILE *pipe = popen(command, mode);
        CHECK(pipe, "popen");
        evict();
        char *line = far_place();
        CHECK(fgets(line, 64, pipe) == line && strcmp(line, "one\n") == 0 && fgets(line, 64, pipe)
            && strcmp(line, "two\n") == 0, "popen");
        int status = pclose(pipe);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5, "pclose: %#x", (unsigned)status);
        char *other = far_text("test \"$MARK\" = own && exit 3");
        evict();
        status = system(other);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "system: %#x", (unsigned)status);
        FILE *sink = popen(far_text("cat >/dev/null"), "w");
        CHECK(sink && fwrite(memory, PAGE, 64, sink) == 64 && pclose(sink) == 0, "popen for writing");
    }
}

static void a_grown_environment_is_inherited(void) {
    enum { COUNT = 1200 };
    char name[32], value[64];
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "GROWN_%04zu", i);
        snprintf(value, sizeof value, "value %zu", i * 3);
        CHECK(setenv(name, value, 1) == 0, "setenv");
    }
    /* As some programs do: the vector moved into a block of their own. */
    size_t count = 0;
    while (environ[count]) count++;
    char **moved = malloc((count + 1) * sizeof *moved), **kept = environ;
    CHECK(moved && count >= COUNT, "malloc");
    memcpy(moved, environ, (count + 1) * sizeof *moved);
    for (size_t i = 0; i < count; i++)
        if (strncmp(moved[i], "GROWN_", 6) == 0) moved[i] = strcpy(far + (1024 + i) * PAGE + 100, moved[i]);
    for (int round = 0; round < 2; round++) {
        environ = round ? moved : kept;
        evict();
        CHECK(system("test \"$(env | grep -c '^GROWN_[0-9]*=value [0-9]*$')\" = 1200") == 0, "system");
        const char *text = executed(VFORK_EXECL, far_text("/bin/sh"), far_text("sh"),
            far_vector("sh", "-c", "echo $GROWN_0000 $GROWN_1199", NULL), NULL);
        expect_text(text, "value 0 value 3597\n", "execl");
    }
    environ = kept;
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "GROWN_%04zu", i);
        CHECK(unsetenv(name) == 0, "unsetenv");
    }
    free(moved);
}

/* --- what a child starts with -------------------------------------------------------------------- */

/* Prints the lines of /proc/PID/status without the two signals that libc keeps for itself: what it does with
 * them depends on whether the process ever had a second thread; nor SIGBUS and SIGSYS, which a child of a
 * program under Weir starts with at their defaults, and unblocked (see docs/failure.md). */
static void print_signals(const char *when, const char *how, const char *text) {
    printf("%s, %s:\n", when, how);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        unsigned long long set = strtoull(line + 7, NULL, 16);
        CHECK(strncmp(line, "Sig", 3) == 0, "no line of signals: %.60s", line);
        printf("%.7s %016llx\n", line, set & ~0x1c0000040ull);
    }
    fflush(stdout);
}

static void some_handler(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
}

/* The words are printed: they must be the same natively. */
static void show_signals(const char *when, const posix_spawnattr_t *attributes) {
    char **arguments = far_vector("grep", "-E", "^Sig(Blk|Ign|Cgt):", "/proc/self/status", NULL);
    print_signals(when, "posix_spawn", spawned(1, far_text("grep"), arguments, environ, attributes));
    if (attributes) return;
    print_signals(when, "vfork", executed(VFORK_EXECVP, far_text("/bin/grep"), far_text("grep"), arguments,
        NULL));
    print_signals(when, "fork", executed(FORK_EXECVPE, far_text("/bin/grep"), far_text("grep"), arguments,
        environ));
    CHECK(system("grep -E '^Sig(Blk|Ign|Cgt):' /proc/self/status >signals.txt") == 0, "system");
    print_signals(when, "system", read_answer(open("signals.txt", O_RDONLY | O_CLOEXEC)));
    CHECK(unlink("signals.txt") == 0, "unlink");
}

static void children_start_with_the_programs_signals(void) {
    posix_spawnattr_t *attributes = (posix_spawnattr_t *)far_place();
    sigset_t set = set_of(SIGUSR2), none = set_of(0);
    show_signals("at first", NULL);
    CHECK(signal(SIGBUS, SIG_IGN) != SIG_ERR && signal(SIGUSR1, SIG_IGN) != SIG_ERR, "signal");
    sigaddset(&set, SIGSYS);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0, "sigprocmask");
    show_signals("SIGBUS and SIGUSR1 ignored, SIGUSR2 and SIGSYS blocked", NULL);
    sigset_t back = set_of(SIGBUS);
    CHECK(posix_spawnattr_init(attributes) == 0 && posix_spawnattr_setsigdefault(attributes, &back) == 0,
        "attributes");
    CHECK(posix_spawnattr_setsigmask(attributes, &none) == 0, "attributes");
    CHECK(posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK) == 0,
        "attributes");
    show_signals("SIGBUS set back to default, nothing blocked", attributes);
    CHECK(posix_spawnattr_destroy(attributes) == 0, "attributes");
    set_handler(SIGBUS, some_handler, 0);
    set_handler(SIGSYS, some_handler, 0);
    sigaddset(&set, SIGBUS);
    CHECK(sigprocmask(SIG_SETMASK, &set, NULL) == 0, "sigprocmask");
    show_signals("SIGBUS and SIGSYS handled, blocked too", NULL);
    CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0, "sigprocmask");
    set_default(SIGBUS);
    set_default(SIGSYS);
    set_default(SIGUSR1);
    show_signals("all default again", NULL);
}

static void children_die_as_they_do_natively(void) {
    static const char *const commands[] = {"kill -BUS $$", "kill -SYS $$", "kill -SEGV $$", "kill -ABRT $$"};
    static const int expected[] = {SIGBUS, SIGSYS, SIGSEGV, SIGABRT};
    for (int i = 0; i < 4; i++) {
        char line[64];
        snprintf(line, sizeof line, "ulimit -c 0; %s", commands[i]);
        char *command = far_text(line);
        evict();
        int status = system(command);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == expected[i], "%s: %#x", commands[i],
            (unsigned)status);
    }
}

/* --- static children ----------------------------------------------------------------------------- */

/* Prints the outcome of many system calls. Takes the address of its buffers. */
static const char static_source[] =
    "#define _GNU_SOURCE\n"
    "#include <errno.h>\n#include <fcntl.h>\n#include <poll.h>\n#include <sched.h>\n#include <signal.h>\n"
    "#include <stdio.h>\n"
    "#include <stdlib.h>\n#include <string.h>\n#include <sys/epoll.h>\n#include <sys/eventfd.h>\n"
    "#include <sys/file.h>\n"
    "#include <sys/mman.h>\n#include <sys/prctl.h>\n#include <sys/random.h>\n#include <sys/resource.h>\n"
    "#include <sys/socket.h>\n"
    "#include <sys/stat.h>\n#include <sys/syscall.h>\n#include <sys/sysinfo.h>\n#include <sys/time.h>\n"
    "#include <sys/timerfd.h>\n"
    "#include <sys/times.h>\n#include <sys/uio.h>\n#include <sys/utsname.h>\n#include <sys/wait.h>\n"
    "#include <time.h>\n#include <unistd.h>\n"
    "#ifndef MAP_FIXED_NOREPLACE\n#define MAP_FIXED_NOREPLACE 0x100000\n#endif\n"
    "static int number;\n"
    "static void say(long value) { number++; if (value < 0) printf(\"call %d: errno %d\\n"
    "\", number, errno); else printf(\"call %d: fine\\n\", number); }\n"
    "static volatile int seen;\n"
    "static void handler(int n) { seen = n; }\n"
    "static void calls(char *m) {\n"
    "  int p[2], s[2]; char *name = m + 5000, *other = m + 9000; struct stat *st = (void *)(m + 12000);\n"
    "  say(pipe2((int *)(m + 100), O_CLOEXEC)); memcpy(p, m + 100, sizeof p);\n"
    "  say(write(p[1], m, 3000)); say(read(p[0], m + 4090, 3000));\n"
    "  strcpy(name, \"weir-shim-XXXXXX\"); int f = mkstemp(name); say(f);\n"
    "  say(pwrite(f, m, 8192, 100)); say(pread(f, m + 20000, 8192, 100)); say(memcmp(m, m + 20000, 50));\n"
    "  struct iovec *v = (void *)(m + 16000); v[0].iov_base = m; v[0].iov_len = 10; "
    "v[1].iov_base = m + 4096; v[1].iov_len = 20;\n"
    "  say(writev(f, v, 2)); say(lseek(f, 0, SEEK_SET)); say(readv(f, v, 2)); "
    "say(lseek(f, 0x7000000000L, SEEK_SET));\n"
    "  say(fstat(f, st)); say(stat(\"/\", st)); "
    "say(syscall(SYS_statx, AT_FDCWD, \"/\", 0, 0x7ff, m + 30000));\n"
    "  say(ftruncate(f, 20000)); say(fallocate(f, 0, 0, 30000)); say(fsync(f)); say(fchmod(f, 0600)); "
    "say(flock(f, LOCK_EX));\n"
    "  strcpy(other, name); strcat(other, \"b\"); say(rename(name, other)); say(link(other, name)); "
    "say(unlink(name));\n"
    "  say(symlink(other, name)); say(readlink(name, m + 40000, 1000)); say(unlink(name)); "
    "say(utimensat(AT_FDCWD, other, 0, 0));\n"
    "  char *mapped = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0); "
    "say(mapped == MAP_FAILED ? -1 : 0);\n"
    "  mapped[0] = 1; say(msync(mapped, 8192, MS_SYNC)); say(munmap(mapped, 8192)); say(unlink(other)); "
    "say(close(f));\n"
    "  say(mkdir(name, 0700)); int d = open(name, O_RDONLY | O_DIRECTORY); say(d); "
    "say(syscall(SYS_getdents64, d, m + 50000, 4096)); say(close(d)); say(rmdir(name));\n"
    "  say(socketpair(AF_UNIX, SOCK_DGRAM, 0, (int *)(m + 200))); memcpy(s, m + 200, sizeof s);\n"
    "  struct msghdr *h = (void *)(m + 17000); memset(h, 0, sizeof *h); h->msg_iov = v; h->msg_iovlen = 2;\n"
    "  say(sendmsg(s[0], h, 0)); say(recvmsg(s[1], h, 0)); say(send(s[0], m, 100, 0)); "
    "say(recv(s[1], m + 300, 100, 0)); say(recv(s[1], m, 1, MSG_DONTWAIT));\n"
    "  int e = epoll_create1(0); struct epoll_event *ev = (void *)(m + 18000); ev->events = EPOLLOUT; "
    "say(epoll_ctl(e, EPOLL_CTL_ADD, s[0], ev)); say(epoll_wait(e, ev, 4, 0)); say(close(e));\n"
    "  struct pollfd *pl = (void *)(m + 19000); pl->fd = s[0]; pl->events = POLLOUT; say(poll(pl, 1, 0));\n"
    "  fd_set *fs = (void *)(m + 60000); FD_ZERO(fs); FD_SET(p[1], fs); "
    "struct timeval *tv = (void *)(m + 60500); tv->tv_sec = 0; tv->tv_usec = 0; "
    "say(select(p[1] + 1, 0, fs, 0, tv));\n"
    "  int t = timerfd_create(CLOCK_MONOTONIC, 0); struct itimerspec *ts = (void *)(m + 61000); "
    "memset(ts, 0, sizeof *ts); ts->it_value.tv_nsec = 1000; say(timerfd_settime(t, 0, ts, 0)); "
    "say(read(t, m + 62000, 8)); say(close(t));\n"
    "  int w = eventfd(3, 0); say(read(w, m + 63000, 8)); say(close(w));\n"
    "  struct sigaction *a = (void *)(m + 64000); memset(a, 0, sizeof *a); a->sa_handler = handler; "
    "say(sigaction(SIGBUS, a, 0)); say(sigaction(SIGSYS, a, a));\n"
    "  say(kill(getpid(), SIGBUS)); say(seen == SIGBUS ? 0 : -1); say(raise(SIGSYS)); "
    "say(seen == SIGSYS ? 0 : -1);\n"
    "  sigset_t *g = (void *)(m + 65000); sigfillset(g); say(sigprocmask(SIG_SETMASK, g, g + 1)); "
    "say(raise(SIGBUS)); say(sigpending(g + 2)); say(sigismember(g + 2, SIGBUS) == 1 ? 0 : -1);\n"
    "  int got = 0; sigemptyset(g); sigaddset(g, SIGBUS); say(sigwait(g, &got)); "
    "say(got == SIGBUS ? 0 : -1); say(sigprocmask(SIG_SETMASK, g + 1, 0));\n"
    "  stack_t *k = (void *)(m + 66000); memset(k, 0, sizeof *k); k->ss_sp = m + 100000; "
    "k->ss_size = 65536; say(sigaltstack(k, 0)); say(sigaltstack(0, k));\n"
    "  struct timespec *z = (void *)(m + 67000); z->tv_sec = 0; z->tv_nsec = 1000; say(nanosleep(z, z)); "
    "say(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, z)); say(syscall(SYS_gettimeofday, m + 67100, 0));\n"
    "  say(uname((void *)(m + 68000))); say(getcwd(m + 70000, 4096) ? 0 : -1); "
    "say(getrusage(RUSAGE_SELF, (void *)(m + 75000))); say(getrlimit(RLIMIT_NOFILE, (void *)(m + 76000)));\n"
    "  say(sysinfo((void *)(m + 77000))); say(times((void *)(m + 78000))); "
    "say(getrandom(m + 79000, 64, 0)); say(prctl(PR_GET_NAME, m + 80000)); "
    "say(sched_getaffinity(0, 128, (void *)(m + 81000)));\n"
    "  say(getgroups(0, 0)); say(syscall(SYS_getcpu, m + 82000, m + 82100, 0)); "
    "say(access(\"/bin/sh\", X_OK)); say(syscall(SYS_futex, m + 83000, 1, 1, 0, 0, 0));\n"
    "  say(mprotect(m, 4096, PROT_READ)); say(mprotect(m, 4096, PROT_READ | PROT_WRITE)); "
    "say(madvise(m + 131072, 4096, MADV_DONTNEED)); say(mincore(m, 4096, (void *)(m + 84000)));\n"
    "  say(mlock(m, 4096)); say(munlock(m, 4096)); say(write(p[1], (void *)(m - 4096), 1));\n"
    "  char *moved = mremap(m + 196608, 4096, 8192, MREMAP_MAYMOVE); say(moved == MAP_FAILED ? -1 : 0); "
    "say(munmap(moved, 8192));\n"
    "  pid_t c = fork(); if (c == 0) { write(p[1], m, 5); _exit(7); } int st2 = 0; say(c); "
    "say(waitpid(c, &st2, 0)); say(WEXITSTATUS(st2) == 7 ? 0 : -1);\n"
    "  c = vfork(); if (c == 0) { execl(\"/bin/true\", \"true\", (char *)0); _exit(9); "
    "} say(waitpid(c, &st2, 0)); say(st2 == 0 ? 0 : -1);\n"
    "  say(close(p[0])); say(close(p[1])); say(close(s[0])); say(close(s[1])); say(close(12345));\n"
    "}\n"
    "int main(int n, char **v) {\n"
    "  printf(\"%d arguments, %s, %s\\n\", n - 1, v[2], getenv(\"MARK\"));\n"
    "  char *at = (char *)strtoul(v[1], 0, 16); size_t size = 1 << 18;\n"
    "  for (int i = 0; i < 64; i++, at += 1 << 20) {\n"
    "    char *m = mmap(at, size, PROT_READ | PROT_WRITE, "
    "MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);\n"
    "    if (m == MAP_FAILED) continue;\n"
    "    calls(m); fflush(stdout); return 0;\n"
    "  }\n"
    "  return 3;\n"
    "}\n";

static void write_file(const char *name, const char *text) {
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(file >= 0, "open %s", name);
    write_all(file, text, strlen(text));
    CHECK(close(file) == 0, "close");
}

/* The compiler's processes run under the same rules: they are children as well. */
static void static_children_use_every_call_as_natively(void) {
    const char *folder = getenv("TMPDIR");
    char source[PAGE], program[PAGE], command[3 * PAGE], address[32];
    snprintf(source, sizeof source, "%s/weir-shim-%d.c", folder ? folder : ".", (int)getpid());
    snprintf(program, sizeof program, "%s/weir-shim-%d.bin", folder ? folder : ".", (int)getpid());
    char full[PAGE];
    write_file(source, static_source);
    snprintf(command, sizeof command, "${CC:-cc} -static -O1 -w -o %s %s", program, source);
    evict();
    CHECK(system(command) == 0, "no static program could be made: libc6-dev has the static libc: %s",
        command);
    CHECK(realpath(program, full), "realpath");
    for (int round = 0; round < 2; round++) {
        snprintf(address, sizeof address, "%lx", 0x180000000000UL + (unsigned long)round * MIB);
        char **arguments = far_vector("static", address, "hello", NULL);
        char **environment = far_vector("MARK=static", NULL);
        const char *text = round ? executed(VFORK_EXECVE, full, full, arguments, environment)
            : spawned(0, full, arguments, environment, NULL);
        printf("%s", text);
    }
    CHECK(unlink(source) == 0 && unlink(program) == 0, "unlink");
}

/* --- many at once -------------------------------------------------------------------------------- */

static _Atomic int done;

static void *fault_all_the_time(void *argument) {
    while (!done) walk();
    return argument;
}

struct starter {
    pthread_t thread;
    char *block; /* managed: arguments and answer */
    size_t number;
};

static void *start_five(void *argument) {
    struct starter *own = argument;
    for (size_t round = 0; round < 5; round++) {
        char **arguments = (char **)own->block, *text = own->block + MIB;
        int pair[2];
        pid_t child = 0;
        arguments[0] = strcpy(own->block + 2 * PAGE, "sh");
        arguments[1] = strcpy(own->block + 9 * PAGE, "-c");
        arguments[2] = own->block + 70 * PAGE;
        arguments[3] = NULL;
        sprintf(arguments[2], "sleep 0.0%zu; echo thread %zu round %zu", round, own->number, round);
        char expected[64];
        snprintf(expected, sizeof expected, "thread %zu round %zu\n", own->number, round);
        posix_spawn_file_actions_t actions;
        CHECK(pipe2(pair, O_CLOEXEC) == 0 && posix_spawn_file_actions_init(&actions) == 0, "pipe");
        CHECK(posix_spawn_file_actions_adddup2(&actions, pair[1], 1) == 0, "actions");
        CHECK(posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ) == 0, "posix_spawn");
        CHECK(posix_spawn_file_actions_destroy(&actions) == 0 && close(pair[1]) == 0, "actions");
        size_t length = 0;
        ssize_t got;
        while ((got = read(pair[0], text + length, 1000)) > 0) length += (size_t)got;
        text[length] = 0;
        expect_text(text, expected, "child of a thread");
        check_child(child, "child of a thread");
        CHECK(close(pair[0]) == 0, "close");
    }
    return NULL;
}

static void threads_start_programs_while_others_fault(void) {
    pthread_t faulting[2];
    struct starter starters[4];
    done = 0;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&faulting[i], NULL, fault_all_the_time, NULL) == 0, "pthread_create");
    for (size_t i = 0; i < 4; i++) {
        starters[i] = (struct starter){.block = map(2 * MIB), .number = i};
        CHECK(pthread_create(&starters[i].thread, NULL, start_five, &starters[i]) == 0, "pthread_create");
    }
    for (size_t i = 0; i < 4; i++)
        CHECK(pthread_join(starters[i].thread, NULL) == 0 && munmap(starters[i].block, 2 * MIB) == 0, "join");
    done = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(faulting[i], NULL) == 0, "join");
}

int main(void) {
    make_memory();
    far = map(BYTES);
    fill(far, BYTES, 800000);
    answer = map(4 * MIB);
    RUN(spawned_programs_get_what_lies_in_evicted_memory);
    RUN(spawn_says_what_is_wrong);
    RUN(large_environments_arrive_whole);
    RUN(every_kind_of_exec_reads_evicted_memory);
    RUN(a_vfork_child_shares_memory);
    RUN(a_clone_that_shares_memory_runs_on_an_evicted_stack);
    RUN(shells_are_started_by_libc);
    RUN(a_grown_environment_is_inherited);
    RUN(children_start_with_the_programs_signals);
    RUN(children_die_as_they_do_natively);
    RUN(static_children_use_every_call_as_natively);
    RUN(threads_start_programs_while_others_fault);
    return 0;
}
