/* System calls on files and sockets whose buffers, structures, tables and strings lie in pages that were
 * pushed out. */
#include "gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/un.h>
#include <termios.h>
#include <utime.h>

/* Newer than some headers. */
enum { CACHESTAT = 451, SETXATTRAT = 463, GETXATTRAT = 464, FILE_GETATTR = 468 };

static int new_file(int more) {
    int file = (int)CALL(openat, AT_FDCWD, text(0, "gate-file"), O_RDWR | O_CREAT | O_TRUNC | more, 0600);
    CALL(unlink, text(0, "gate-file"));
    return file;
}

static void plain_reads_and_writes(void) {
    int file = new_file(0);
    char *from = place(1) + 7, *into = place(2) + 100;
    fill(place(1), 40 * PAGE, 11);
    show("wrote", CALL(write, file, from, 30 * PAGE));
    CALL(lseek, file, 0, SEEK_SET);
    show("read", CALL(read, file, into, 40 * PAGE));
    show_sum("contents", into, 30 * PAGE);
    show("wrote", CALL(pwrite64, file, from + 4000, 9000, 5000));
    show("read", CALL(pread64, file, into, 20000, 1000));
    show_sum("contents", into, 20000);
    show("wrote", CALL(writev, file, vector(3, 4, 5000), 3));
    CALL(lseek, file, 100, SEEK_SET);
    show("read", CALL(readv, file, vector(3, 8, 7000), 3));
    show("wrote", CALL(pwritev, file, vector(3, 4, 3000), 3, 50L, 0L));
    show("read", CALL(preadv, file, vector(3, 8, 3000), 3, 40L, 0L));
    show("wrote", CALL(pwritev2, file, vector(3, 4, 3000), 3, 50L, 0L, 0));
    show("read", CALL(preadv2, file, vector(3, 8, 9000), 3, 0L, 0L, 0));
    for (int n = 8; n < 11; n++) show_sum("part", place(n) + 20 * PAGE - 100, 9000);
    struct iovec outside[2] = {{place(8), 10000}, {place(9), 10000}};
    show("a table outside: wrote", CALL(pwritev, file, outside, 2, 0L, 0L));
    show("a table outside: read", CALL(preadv, file, outside, 2, 0L, 0L));
    evict();
    char line[64] = "";
    FILE *stream = fdopen(dup(file), "r+");
    CHECK(stream && fseek(stream, 0, SEEK_SET) == 0 && fputs("stream\n", stream) > 0, "stdio");
    rewind(stream);
    CHECK(fgets(line, sizeof line, stream) && strcmp(line, "stream\n") == 0 && fclose(stream) == 0, "stdio");
    CHECK(close(file) == 0, "close");
}

static void direct_reads_and_writes(void) {
    int file = (int)evicted(SYS_open, text(0, "gate-direct"), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0) {
        printf("  O_DIRECT: %s\n", strerrorname_np(errno));
        return;
    }
    CALL(unlink, text(0, "gate-direct"));
    fill(place(1), 32 * PAGE, 21);
    show("wrote", CALL(pwrite64, file, place(1), 32 * PAGE, 0));
    show("read", CALL(pread64, file, place(2), 32 * PAGE, 0));
    check_filled(place(2), 32 * PAGE, 21, "direct");
    CHECK(close(file) == 0, "close");
}

static void files_by_name(void) {
    int file = (int)CALL(open, text(0, "gate-name"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CALL(ftruncate, file, 12345);
    struct stat *status = NEW(struct stat, 1);
    CALL(stat, text(0, "gate-name"), status);
    show("size", status->st_size);
    CALL(fstat, file, NEW(struct stat, 1));
    show("size", status->st_size);
    CALL(lstat, text(0, "gate-name"), NEW(struct stat, 1));
    CALL(newfstatat, AT_FDCWD, text(0, "gate-name"), NEW(struct stat, 1), 0);
    show("mode", status->st_mode);
    struct statx *more = NEW(struct statx, 2);
    CALL(statx, AT_FDCWD, text(0, "gate-name"), 0, STATX_SIZE, more);
    show("size", (long)more->stx_size);
    struct statfs *system = NEW(struct statfs, 3);
    CALL(statfs, text(0, "."), system);
    show("block", (long)system->f_bsize);
    CALL(fstatfs, file, NEW(struct statfs, 3));
    CALL(access, text(0, "gate-name"), R_OK);
    CALL(faccessat, AT_FDCWD, text(0, "gate-name"), R_OK);
    CALL(faccessat2, AT_FDCWD, text(0, "gate-name"), R_OK, 0);
    CALL(chmod, text(0, "gate-name"), 0640);
    CALL(fchmodat, AT_FDCWD, text(0, "gate-name"), 0644);
    CALL(chown, text(0, "gate-name"), -1, -1);
    CALL(lchown, text(0, "gate-name"), -1, -1);
    CALL(fchownat, AT_FDCWD, text(0, "gate-name"), -1, -1, 0);
    CALL(truncate, text(0, "gate-name"), 777);
    struct timespec *times = object(4, 32);
    times[0].tv_sec = 1000, times[1].tv_sec = 2000;
    CALL(utimensat, AT_FDCWD, text(0, "gate-name"), times, 0);
    CALL(stat, text(0, "gate-name"), NEW(struct stat, 1));
    show("mtime", status->st_mtime);
    *NEW(struct utimbuf, 4) = (struct utimbuf){3, 4};
    CALL(utime, text(0, "gate-name"), times);
    *(struct timeval *)object(4, 32) = (struct timeval){5, 6};
    CALL(utimes, text(0, "gate-name"), times);
    CALL(futimesat, AT_FDCWD, text(0, "gate-name"), times);
    CALL(link, text(0, "gate-name"), text(5, "gate-link"));
    CALL(linkat, AT_FDCWD, text(0, "gate-name"), AT_FDCWD, text(5, "gate-link2"), 0);
    CALL(symlink, text(0, "gate-name"), text(5, "gate-symlink"));
    CALL(symlinkat, text(0, "gate-name"), AT_FDCWD, text(5, "gate-symlink2"));
    char *target = object(6, 100);
    show("length", CALL(readlink, text(5, "gate-symlink"), target, 100));
    printf("    %s\n", target);
    show("length", CALL(readlinkat, AT_FDCWD, text(5, "gate-symlink2"), object(6, 100), 100));
    CALL(rename, text(5, "gate-symlink"), text(7, "gate-symlink3"));
    CALL(renameat, AT_FDCWD, text(5, "gate-link"), AT_FDCWD, text(7, "gate-link3"));
    CALL(renameat2, AT_FDCWD, text(5, "gate-link2"), AT_FDCWD, text(7, "gate-link4"), 0);
    struct { uint64_t flags, mode, resolve; } *how = object(8, 24);
    CHECK(close((int)CALL(openat2, AT_FDCWD, text(0, "gate-name"), how, sizeof *how)) == 0, "close");
    struct file_handle *handle = object(9, 200);
    handle->handle_bytes = 128;
    TRY("name_to_handle_at", SYS_name_to_handle_at, AT_FDCWD, text(0, "gate-name"), handle, object(10, 8), 0);
    TRY("file_getattr", FILE_GETATTR, AT_FDCWD, text(0, "gate-name"), object(10, 24), 24, 0);
    CALL(mknod, text(5, "gate-fifo"), S_IFIFO | 0600, 0);
    CALL(mknodat, AT_FDCWD, text(7, "gate-fifo2"), S_IFIFO | 0600, 0);
    const char *left[] = {"gate-name", "gate-symlink2", "gate-symlink3", "gate-link3", "gate-link4",
        "gate-fifo", "gate-fifo2"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) CALL(unlinkat, AT_FDCWD, text(i, left[i]), 0);
    CHECK(close(file) == 0, "close");
}

static int entries(int number, int directory, size_t name_at) {
    int count = 0;
    for (long got; (got = evicted(number, directory, place(1) + 3 * PAGE - 200, 3000)) > 0;)
        for (long at = 0; at < got; at += *(uint16_t *)(place(1) + 3 * PAGE - 200 + at + 16))
            count += strncmp(place(1) + 3 * PAGE - 200 + at + name_at, "entry", 5) == 0;
    return count;
}

static void directories(void) {
    CALL(mkdir, text(0, "gate-dir"), 0700);
    CALL(chdir, text(0, "gate-dir"));
    for (int i = 0; i < 50; i++) {
        char name[20];
        snprintf(name, sizeof name, "entry%d", i);
        CHECK(close((int)evicted(SYS_creat, text(0, name), 0600)) == 0, "creat");
    }
    char *path = place(2) + PAGE - 10;
    show("getcwd", CALL(getcwd, path, PAGE) > 9);
    CHECK(strcmp(strrchr(path, '/'), "/gate-dir") == 0, "getcwd said %s", path);
    int directory = (int)CALL(open, text(0, "."), O_RDONLY | O_DIRECTORY);
    show("getdents64", entries(SYS_getdents64, directory, 19));
    CHECK(lseek(directory, 0, SEEK_SET) == 0, "lseek");
    show("getdents", entries(SYS_getdents, directory, 18));
    int watch = inotify_init1(IN_NONBLOCK);
    CALL(inotify_add_watch, watch, text(0, "."), IN_DELETE);
    for (int i = 0; i < 50; i++) {
        char name[20];
        snprintf(name, sizeof name, "entry%d", i);
        CHECK(evicted(SYS_unlink, text(0, name)) == 0, "unlink");
    }
    struct inotify_event *event = object(3, 4000);
    show("inotify", CALL(read, watch, event, 3900));
    show_sum("first name", event->name, event->len);
    CHECK(close(directory) == 0 && close(watch) == 0 && chdir("..") == 0, "close");
    CALL(mkdirat, AT_FDCWD, text(0, "gate-dir/sub"), 0700);
    CALL(rmdir, text(0, "gate-dir/sub"));
    CALL(rmdir, text(0, "gate-dir"));
}

static void attributes(void) {
    int file = (int)CALL(open, text(0, "gate-xattr"), O_RDWR | O_CREAT, 0600);
    char *name = text(1, "user.weir"), *value = strcpy(object(2, 40), "some value");
    if (TRY("setxattr", SYS_setxattr, text(0, "gate-xattr"), name, value, 10, 0) == 0) {
        show("length", CALL(getxattr, text(0, "gate-xattr"), name, object(2, 40), 40));
        printf("    %s\n", value);
        CALL(lsetxattr, text(0, "gate-xattr"), name, strcpy(value, "other"), 5, 0);
        CALL(fsetxattr, file, text(1, "user.more"), value, 5, 0);
        show("length", CALL(lgetxattr, text(0, "gate-xattr"), name, object(2, 40), 40));
        show("length", CALL(fgetxattr, file, name, object(2, 40), 40));
        show("length", CALL(listxattr, text(0, "gate-xattr"), object(3, 200), 200));
        show("length", CALL(llistxattr, text(0, "gate-xattr"), object(3, 200), 200));
        show("length", CALL(flistxattr, file, object(3, 200), 200));
        struct { uint64_t value; uint32_t size, flags; } arguments = {(uint64_t)object(2, 40), 40, 0};
        TRY("getxattrat", GETXATTRAT, AT_FDCWD, text(0, "gate-xattr"), 0, name, &arguments, 16);
        arguments.size = 4;
        TRY("setxattrat", SETXATTRAT, AT_FDCWD, text(0, "gate-xattr"), 0, name,
            memcpy(object(4, 16), &arguments, 16), 16);
        CALL(removexattr, text(0, "gate-xattr"), text(1, "user.more"));
        CALL(fremovexattr, file, text(1, "user.weir"));
    }
    CHECK(close(file) == 0, "close");
    CALL(unlink, text(0, "gate-xattr"));
}

static void copies_between_descriptors(void) {
    int from = new_file(0), into = new_file(0);
    fill(place(1), 16 * PAGE, 31);
    CALL(write, from, place(1), 16 * PAGE);
    int64_t *here = object(2, 8), *there = object(3, 8);
    *here = 4096, *there = 10;
    TRY("copy_file_range", SYS_copy_file_range, from, here, into, there, 5000L, 0);
    printf("    offsets %ld %ld\n", *here, *there);
    *here = 8192;
    show("sent", CALL(sendfile, into, from, here, 6000));
    show("offset", *here);
    int *ends = object(4, 8), *other = object(5, 8);
    CALL(pipe2, ends, 0);
    CALL(pipe, other);
    *here = 100;
    show("spliced", CALL(splice, from, here, ends[1], NULL, 9000, 0));
    show("offset", *here);
    show("teed", CALL(tee, ends[0], other[1], 9000, 0));
    show("read", CALL(read, other[0], place(6), 9000));
    show_sum("contents", place(6), 9000);
    *there = 20000;
    show("spliced", CALL(splice, ends[0], NULL, into, there, 9000, 0));
    show("offset", *there);
    fill(place(8), 40 * PAGE, 41);
    show("vmspliced", CALL(vmsplice, ends[1], vector(7, 8, 4000), 3, 0));
    show("waiting", (CALL(ioctl, ends[0], FIONREAD, object(2, 4)), *(int *)here));
    /* Read at once: what becomes of pages in a pipe when they change is nobody's promise. */
    CHECK(read(ends[0], place(12), 12000) == 12000, "read");
    show_sum("first part", place(12), 4000);
    for (int i = 0; i < 2; i++) CHECK(close(ends[i]) == 0 && close(other[i]) == 0, "close");
    struct fiemap *map = object(13, sizeof *map + 8 * sizeof(struct fiemap_extent));
    *map = (struct fiemap){.fm_length = ~0ull, .fm_extent_count = 8, .fm_flags = FIEMAP_FLAG_SYNC};
    TRY("FS_IOC_FIEMAP", SYS_ioctl, from, FS_IOC_FIEMAP, map);
    TRY("FS_IOC_GETFLAGS", SYS_ioctl, from, FS_IOC_GETFLAGS, object(2, 8));
    TRY("cachestat", CACHESTAT, from, memset(object(2, 16), 0, 16), object(3, 40), 0);
    CHECK(close(from) == 0 && close(into) == 0, "close");
    int memory = (int)CALL(memfd_create, text(0, "gate"), 0);
    show("wrote", CALL(write, memory, place(1), 3 * PAGE));
    CHECK(close(memory) == 0, "close");
}

static void locks_and_terminals(void) {
    int file = new_file(0);
    struct flock *lock = NEW(struct flock, 1);
    *lock = (struct flock){.l_type = F_WRLCK, .l_start = 10, .l_len = 20};
    CALL(fcntl, file, F_SETLK, lock);
    CALL(fcntl, file, F_GETLK, lock);
    show("type", lock->l_type);
    *lock = (struct flock){.l_type = F_RDLCK, .l_start = 100, .l_len = 20};
    CALL(fcntl, file, F_OFD_SETLK, lock);
    *(struct f_owner_ex *)object(2, 8) = (struct f_owner_ex){F_OWNER_PID, getpid()};
    CALL(fcntl, file, F_SETOWN_EX, place(2) + 9 * PAGE - 8);
    CALL(fcntl, file, F_GETOWN_EX, object(2, 8));
    show("owner", ((struct f_owner_ex *)(place(2) + 9 * PAGE - 8))->pid == getpid());
    CHECK(close(file) == 0, "close");
    int terminal = (int)evicted(SYS_open, text(0, "/dev/ptmx"), O_RDWR | O_NOCTTY);
    if (terminal < 0) {
        printf("  no terminals: %s\n", strerrorname_np(errno));
        return;
    }
    *NEW(struct winsize, 1) = (struct winsize){33, 44, 0, 0};
    struct winsize *size = (struct winsize *)(place(1) + 9 * PAGE - 8);
    CALL(ioctl, terminal, TIOCSWINSZ, size);
    CALL(ioctl, terminal, TIOCGWINSZ, NEW(struct winsize, 1));
    show("rows", size->ws_row);
    struct termios *settings = NEW(struct termios, 2);
    CALL(ioctl, terminal, TCGETS, settings);
    CALL(ioctl, terminal, TCSETS, settings);
    CALL(ioctl, terminal, TIOCGPTN, object(3, 4));
    *(int *)object(3, 4) = 0;
    CALL(ioctl, terminal, TIOCSPTLCK, place(3) + 9 * PAGE - 8);
    CHECK(close(terminal) == 0, "close");
}

static void asynchronous_io(void) {
    int file = new_file(0);
    aio_context_t *context = object(1, 8);
    CALL(io_setup, 8, context);
    fill(place(2), 8 * PAGE, 51);
    struct iocb *write_one = NEW(struct iocb, 3), *write_two = NEW(struct iocb, 4), **list = object(5, 24);
    *write_one = (struct iocb){.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = file,
        .aio_buf = (uintptr_t)place(2), .aio_nbytes = 8 * PAGE};
    *write_two = (struct iocb){.aio_lio_opcode = IOCB_CMD_PWRITEV, .aio_fildes = file,
        .aio_buf = (uintptr_t)vector(6, 7, 1000), .aio_nbytes = 3, .aio_offset = 8 * PAGE};
    list[0] = write_one, list[1] = write_two;
    show("submitted", CALL(io_submit, *context, 2, list));
    struct io_event *events = object(10, 4 * sizeof *events);
    *NEW(struct timespec, 11) = (struct timespec){5, 0};
    show("completed", CALL(io_getevents, *context, 2, 4, events, place(11) + 9 * PAGE - 8));
    show("results", (long)(events[0].res + events[1].res));
    struct iocb *outside[] = {write_one};
    *write_one = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file,
        .aio_buf = (uintptr_t)place(12), .aio_nbytes = 9 * PAGE};
    show("a table outside: submitted", CALL(io_submit, *context, 1, outside));
    struct { uint64_t *set; size_t bytes; } *set = object(13, 16);
    set->set = object(14, 8), set->bytes = 8;
    show("completed", CALL(io_pgetevents, *context, 1, 4, events, place(11) + 9 * PAGE - 8, set));
    show("result", (long)events[0].res);
    check_filled(place(12), 8 * PAGE, 51, "read back");
    CALL(io_destroy, *context);
    CHECK(close(file) == 0, "close");
}

static struct msghdr *message(int n, int parts, size_t bytes) {
    struct msghdr *header = NEW(struct msghdr, n);
    *header = (struct msghdr){.msg_iov = vector(n + 1, parts, bytes), .msg_iovlen = 3};
    return header;
}

static void datagrams(void) {
    int *ends = object(1, 8);
    CALL(socketpair, AF_UNIX, SOCK_DGRAM, 0, ends);
    struct msghdr *header = message(2, 8, 3000);
    struct cmsghdr *control = object(4, CMSG_SPACE(4));
    *control = (struct cmsghdr){CMSG_LEN(4), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(control), &ends[0], 4);
    header->msg_control = control, header->msg_controllen = CMSG_SPACE(4);
    for (int n = 8; n < 11; n++) fill(place(n), 30 * PAGE, (uint64_t)n);
    show("sent", CALL(sendmsg, ends[0], header, 0));
    header = message(2, 12, 3000);
    header->msg_control = control, header->msg_controllen = CMSG_SPACE(4);
    memset(control, 0, CMSG_SPACE(4));
    show("received", CALL(recvmsg, ends[1], header, 0));
    show_sum("third part", place(14) + 20 * PAGE - 100, 3000);
    int passed = -1;
    memcpy(&passed, CMSG_DATA(control), 4);
    CHECK(control->cmsg_type == SCM_RIGHTS && close(passed) == 0, "descriptor %d", passed);
    struct mmsghdr *several = object(5, 3 * sizeof *several);
    for (int i = 0; i < 3; i++)
        several[i].msg_hdr = (struct msghdr){.msg_iov = vector(16 + i, 8, 100 * (size_t)(i + 1)),
            .msg_iovlen = 3};
    show("sent", CALL(sendmmsg, ends[0], several, 3, 0));
    *NEW(struct timespec, 6) = (struct timespec){5, 0};
    for (int i = 0; i < 3; i++) several[i].msg_hdr.msg_iov = vector(16 + i, 12, 1000);
    show("received", CALL(recvmmsg, ends[1], several, 3, 0, place(6) + 9 * PAGE - 8));
    for (int i = 0; i < 3; i++) show("bytes", several[i].msg_len);
    /* The wrappers, with header and table on the stack and buffers in pages that are out. */
    struct iovec part = {place(8), 5000};
    struct msghdr outside = {.msg_iov = &part, .msg_iovlen = 1};
    evict();
    CHECK(sendmsg(ends[0], &outside, 0) == 5000, "sendmsg");
    part.iov_base = place(12);
    evict();
    CHECK(recvmsg(ends[1], &outside, 0) == 5000 && memcmp(place(8), place(12), 5000) == 0, "recvmsg");
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

static struct sockaddr_in *address(int n) {
    struct sockaddr_in *name = NEW(struct sockaddr_in, n);
    *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return name;
}

static socklen_t *length_of_address(int n) {
    socklen_t *length = object(n, 4);
    *length = sizeof(struct sockaddr_in);
    return length;
}

static void streams_and_names(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listener >= 0 && client >= 0, "socket");
    *(int *)object(1, 4) = 1;
    CALL(setsockopt, listener, SOL_SOCKET, SO_REUSEADDR, place(1) + 9 * PAGE - 8, 4);
    CALL(bind, listener, address(2), sizeof(struct sockaddr_in));
    CHECK(listen(listener, 1) == 0, "listen");
    struct sockaddr_in *name = NEW(struct sockaddr_in, 2);
    CALL(getsockname, listener, name, length_of_address(3));
    show("family", name->sin_family);
    CALL(connect, client, name, sizeof *name);
    struct sockaddr_in *peer = NEW(struct sockaddr_in, 4);
    socklen_t *length = length_of_address(3);
    int server = (int)CALL(accept4, listener, peer, length, 0);
    show("length", *length);
    CALL(getpeername, client, peer, length_of_address(3));
    show("same port", peer->sin_port == name->sin_port);
    CALL(getsockopt, client, SOL_SOCKET, SO_TYPE, object(5, 4), length_of_address(3));
    show("type", *(int *)(place(5) + 9 * PAGE - 8));
    struct sock_filter *accept_all = NEW(struct sock_filter, 6);
    *accept_all = (struct sock_filter){BPF_RET | BPF_K, 0, 0, 0x40000};
    struct sock_fprog outside = {1, accept_all};
    /* Not for everybody on every machine. */
    if (TRY("SO_ATTACH_FILTER", SYS_setsockopt, server, SOL_SOCKET, SO_ATTACH_FILTER, &outside,
        sizeof outside) == 0) {
        *length_of_address(3) = 8;
        CALL(getsockopt, server, SOL_SOCKET, SO_GET_FILTER, object(7, 64), length);
        show_sum("filter", place(7) + 9 * PAGE - 8, 8);
    }
    fill(place(8), 8 * PAGE, 61);
    show("sent", CALL(sendto, client, place(8), 6 * PAGE, 0, NULL, 0));
    long got = 0;
    while (got < (long)(6 * PAGE))
        got += CALL(recvfrom, server, place(9) + got, 6 * PAGE - got, MSG_WAITALL, NULL, NULL);
    check_filled(place(9), 6 * PAGE, 61, "received");
    CHECK(close(server) == 0 && close(client) == 0 && close(listener) == 0, "close");
    int one = socket(AF_INET, SOCK_DGRAM, 0), two = socket(AF_INET, SOCK_DGRAM, 0);
    CALL(bind, one, address(2), sizeof(struct sockaddr_in));
    CALL(getsockname, one, name, length_of_address(3));
    show("sent", CALL(sendto, two, place(8), 5000, 0, name, sizeof *name));
    show("received", CALL(recvfrom, one, place(10), 9000, 0, NEW(struct sockaddr_in, 4),
        length_of_address(3)));
    show("from", ntohl(peer->sin_addr.s_addr) == INADDR_LOOPBACK);
    CHECK(close(one) == 0 && close(two) == 0, "close");
    struct sockaddr_un *local = NEW(struct sockaddr_un, 11);
    *local = (struct sockaddr_un){.sun_family = AF_UNIX, .sun_path = "gate-socket"};
    int named = socket(AF_UNIX, SOCK_STREAM, 0);
    CALL(bind, named, local, sizeof *local);
    CALL(unlink, local->sun_path);
    CHECK(close(named) == 0, "close");
}

static void waiting_for_descriptors(void) {
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1, "pipe");
    struct pollfd *set = NEW(struct pollfd, 1);
    *set = (struct pollfd){ends[0], POLLIN, 0};
    show("ready", CALL(poll, set, 1, 1000));
    show("events", set->revents);
    *NEW(struct timespec, 2) = (struct timespec){1, 0};
    void *patience = place(2) + 9 * PAGE - 8;
    show("ready", CALL(ppoll, set, 1, patience, object(3, 8), 8));
    fd_set *reading = NEW(fd_set, 4), *writing = NEW(fd_set, 5), *failing = NEW(fd_set, 6);
    FD_SET(ends[0], reading);
    FD_SET(ends[1], writing);
    show("ready", CALL(select, ends[1] + 1, reading, writing, failing, patience));
    show("both", FD_ISSET(ends[0], reading) && FD_ISSET(ends[1], writing));
    struct { uint64_t *set; size_t bytes; } *mask = object(7, 16);
    mask->set = object(8, 8), mask->bytes = 8;
    *NEW(struct timespec, 2) = (struct timespec){1, 0};
    show("ready", CALL(pselect6, ends[1] + 1, reading, writing, failing, patience, mask));
    int queue = epoll_create1(0);
    struct epoll_event *event = NEW(struct epoll_event, 9), *events = object(10, 8 * sizeof *events);
    *event = (struct epoll_event){EPOLLIN, {.u64 = 0x123456789}};
    CALL(epoll_ctl, queue, EPOLL_CTL_ADD, ends[0], event);
    show("ready", CALL(epoll_wait, queue, events, 8, 1000));
    show("data", (long)events[0].data.u64);
    show("ready", CALL(epoll_pwait, queue, events, 8, 1000, object(3, 8), 8));
    show("ready", CALL(epoll_pwait2, queue, events, 8, patience, object(3, 8), 8));
    int counter = (int)syscall(SYS_eventfd2, 5, 0);
    show("read", CALL(read, counter, object(11, 8), 8));
    show("count", *(long *)(place(11) + 9 * PAGE - 8));
    show("wrote", CALL(write, counter, place(11) + 9 * PAGE - 8, 8));
    CHECK(close(queue) == 0 && close(counter) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

int main(void) {
    take_places();
    GROUP(plain_reads_and_writes);
    GROUP(direct_reads_and_writes);
    GROUP(files_by_name);
    GROUP(directories);
    GROUP(attributes);
    GROUP(copies_between_descriptors);
    GROUP(locks_and_terminals);
    GROUP(asynchronous_io);
    GROUP(datagrams);
    GROUP(streams_and_names);
    GROUP(waiting_for_descriptors);
    return 0;
}
