/* Programs that start programs: exec in a child, vfork, posix_spawn, popen, system; the parent keeps its
 * bytes. */
#include "check.h"

#include <spawn.h>

#define BYTES (64 * MIB)

extern char **environ;

static char own_path[PAGE];

static void exec_in_a_child(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 1);
    pid_t child = fork();
    if (child == 0) {
        execl(own_path, own_path, "child", "23", (char *)NULL);
        _exit(99);
    }
    check_child(child, "exec");
    check_filled(start, BYTES, 1, "parent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void vfork_and_exec(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 2);
    churn();
    for (int round = 0; round < 5; round++) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(99);
        }
        check_child(child, "vfork");
    }
    check_filled(start, BYTES, 2, "parent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void vfork_child_may_exit(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 3);
    pid_t child = vfork();
    if (child == 0) _exit(7);
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "vfork child");
    check_filled(start, BYTES, 3, "parent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void spawn_with_arguments_in_evicted_pages(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 4);
    /* The argument vector and its strings are read by the kernel from managed pages. */
    char **arguments = (char **)(start + 20 * MIB);
    char *number = start + 40 * MIB;
    strcpy(number, "23");
    arguments[0] = own_path;
    arguments[1] = "child";
    arguments[2] = number;
    arguments[3] = NULL;
    for (int round = 0; round < 4; round++) {
        churn();
        pid_t child = 0;
        CHECK(posix_spawn(&child, own_path, NULL, NULL, arguments, environ) == 0, "posix_spawn");
        check_child(child, "posix_spawn");
    }
    check_filled(start, 16 * MIB, 4, "parent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void popen_reads_and_system_runs(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 5);
    churn();
    FILE *pipe = popen("echo one; echo two", "r");
    char line[64];
    CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "one\n") == 0, "popen");
    CHECK(fgets(line, sizeof line, pipe) && strcmp(line, "two\n") == 0 && pclose(pipe) == 0, "pclose");
    int status = system("exit 3");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "system: status %#x", (unsigned)status);
    check_filled(start, BYTES, 5, "parent");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

static void failed_exec_leaves_the_program_whole(void) {
    char *start = map(BYTES);
    fill(start, BYTES, 6);
    errno = 0;
    CHECK(execl("/no/such/program", "program", (char *)NULL) == -1 && errno == ENOENT, "exec of nothing");
    check_filled(start, BYTES, 6, "after a failed exec");
    fill(start, BYTES, 7);
    check_filled(start, BYTES, 7, "written after a failed exec");
    CHECK(munmap(start, BYTES) == 0, "munmap");
}

/* What the started program does: needs memory itself. */
static int child_main(const char *number) {
    CHECK(strcmp(number, "23") == 0, "argument %s", number);
    char *start = map(BYTES);
    fill(start, BYTES, 8);
    check_filled(start, BYTES, 8, "started program");
    return 0;
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "child") == 0) return child_main(arguments[2]);
    CHECK(readlink("/proc/self/exe", own_path, sizeof own_path - 1) > 0, "readlink");
    RUN(exec_in_a_child);
    RUN(vfork_and_exec);
    RUN(vfork_child_may_exit);
    RUN(spawn_with_arguments_in_evicted_pages);
    RUN(popen_reads_and_system_runs);
    RUN(failed_exec_leaves_the_program_whole);
    return 0;
}
