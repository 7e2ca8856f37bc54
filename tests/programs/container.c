/* Runs a command as in a container with the default filter of system calls: `container PROGRAM [ARG...]`.
 *
 * The filters of Docker, containerd and CRI-O refuse these calls to who has no capabilities. Root becomes
 * nobody first. Run by somebody else it only filters. */

#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOBODY 65534
#define REFUSE(number, error) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))

static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    REFUSE(SYS_userfaultfd, EPERM),
    REFUSE(SYS_io_uring_setup, EPERM),
    REFUSE(SYS_io_uring_enter, EPERM),
    REFUSE(SYS_io_uring_register, EPERM),
    REFUSE(SYS_process_madvise, EPERM),
    REFUSE(SYS_mbind, EPERM),
    REFUSE(SYS_clone3, ENOSYS),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

static int failed(const char *what) {
    perror(what);
    return 125;
}

int main(int argc, char **argv) {
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (argc < 2) {
        fputs("usage: container PROGRAM [ARG...]\n", stderr);
        return 125;
    }
    if (geteuid() == 0) {
        if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
            return failed("container: cannot become nobody");
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return failed("container: cannot filter");
    execvp(argv[1], argv + 1);
    return failed(argv[1]);
}
