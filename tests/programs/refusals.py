#!/usr/bin/env python3
"""What the user sees when something cannot be had: the rows of docs/failure.md that need a whole program.

Each check runs small Python programs under `weir run`, or with the library alone, and looks at the exit
status, at the line on stderr, and at what the program itself was told."""

import os
import resource
import shutil
import struct
import subprocess
import sys

import checks
from run import WEIR

LIBRARY = WEIR.parent / "libweir_preload.so"
SECONDS = 60
MIB = 1 << 20

# Before each program: memory that makes the process a large one, and what the programs ask libc for.
PRELUDE = r"""
import ctypes, errno, mmap, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
grown = bytearray(8 * MIB)
def address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
def failed_with(answer):
    return errno.errorcode.get(ctypes.get_errno()) if answer == -1 else answer
def arena(size):
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def words(n, seed=4096):
    return (b"%07d " % (seed // 4096)) * (n // 8)
"""


class Program:
    """A way to run Python programs under Weir with one way to serve faults."""

    def __init__(self, faults, folder):
        self.faults, self.folder = faults, folder

    def run(self, code, memory="32M", options=("--quiet",), limits=(), env=None):
        """Runs the program under `weir run`; `limits` are pairs of a resource and a number."""
        command = [str(WEIR), "run", "--memory", memory, "--faults", self.faults, *options, "--"]
        return self.start([*command, sys.executable, "-c", PRELUDE + code], limits, env)

    def start(self, command, limits=(), env=None):
        """Runs any command in the folder, with these limits."""

        def lower():
            for which, most in limits:
                resource.setrlimit(which, (most, most))

        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            preexec_fn=lower,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def says(self, code, expected, **keywords):
        """The program's own words, and that it ended well."""
        ran = self.run(code, **keywords)
        assert (ran.returncode, ran.stdout.strip()) == (0, expected), told(ran)

    def counters(self, code, options=(), **keywords):
        """Runs the program; the counters that it left."""
        ran = self.run(code, options=("--quiet", "--stats", "stats", *options), **keywords)
        assert ran.returncode == 0, told(ran)
        lines = (self.folder / "stats").read_text().splitlines()
        return {
            key: int(value) for key, value in (line.split(maxsplit=1) for line in lines) if value.isdigit()
        }


def told(ran):
    """What a program left, for a message."""
    return f"status {ran.returncode}: {ran.stdout[-300:]!r} {ran.stderr[-300:]!r}"


def ends(ran, status, line):
    """The program ended so, and this is part of what its user was told."""
    assert ran.returncode == status and line in ran.stderr, told(ran)


def the_library_alone_refuses_a_bad_budget(program):
    """Without the wrapper the constructor says what is wrong with a variable."""
    env = {"LD_PRELOAD": str(LIBRARY), "WEIR_MEMORY": "banana", "WEIR_FAULTS": program.faults}
    ends(program.start(["/bin/true"], env=env), 125, "weir: invalid value")


def the_library_alone_reads_the_configuration_file(program):
    """As `weir run` does: what is wrong there is said, what is right is done, and children have it too."""
    file = program.folder / ".config" / "weir" / "config.toml"
    file.parent.mkdir(parents=True)
    env = {"LD_PRELOAD": str(LIBRARY), "HOME": str(program.folder), "WEIR_FAULTS": program.faults}
    env |= {"XDG_CONFIG_HOME": ""}
    file.write_text('memory = "banana"\n')
    ends(program.start(["/bin/true"], env=env), 125, f"weir: {file}: invalid value 'banana'")
    file.write_text('memroy = "32M"\n')
    refused = f"weir: {file}: unknown key 'memroy'; did you mean 'memory'?"
    ends(program.start(["/bin/true"], env=env), 125, refused)
    stats = program.folder / "stats"
    file.write_text(f'memory = "32M"\nquiet = true\nstats = "{stats}.%p"\n')
    grown = "grown = bytearray(8 << 20)"
    child = f"import subprocess, sys; {grown}; subprocess.run([sys.executable, '-c', '{grown}'], check=True)"
    ran = program.start([sys.executable, "-c", child], env=env)
    assert (ran.returncode, ran.stderr) == (0, ""), told(ran)
    written = [path.read_text() for path in program.folder.glob("stats.*")]
    assert len(written) == 2 and all(f"weir_budget_bytes {32 * MIB}\n" in text for text in written), written


def the_library_alone_refuses_a_mistyped_variable(program):
    """And does nothing where nobody says how much memory there is to be."""
    env = {"LD_PRELOAD": str(LIBRARY), "WEIR_MEMROY": "32M", "WEIR_FAULTS": program.faults}
    ends(program.start(["/bin/true"], env=env), 125, "WEIR_MEMROY; did you mean WEIR_MEMORY?")
    env = {"LD_PRELOAD": str(LIBRARY), "WEIR_FAULTS": program.faults, "WEIR_STATS": "idle"}
    ends(program.start([sys.executable, "-c", "grown = bytearray(8 << 20)"], env=env), 0, "")
    assert not (program.folder / "idle").exists()


def a_usual_build_leaves_no_rule_out(program):
    """Neither by an option nor by a variable, and the measurement that would says which build can."""
    run = [str(WEIR), "run", "--memory", "32M", "--faults", program.faults]
    refused = program.start([*run, "--rules-off=loads", "--", "/bin/true"])
    ends(refused, 125, "unexpected argument '--rules-off'")
    env = {"WEIR_RULES_OFF": "loads"}
    ends(program.start([*run, "--", "/bin/true"], env=env), 125, "unknown variable WEIR_RULES_OFF")
    ends(program.start([str(WEIR), "bench", "ablate", "--quick"]), 1, "`make ablate` builds one that can")
    assert not (program.folder / "ablation.jsonl").exists()


def a_budget_larger_than_half_of_the_space_is_refused(program):
    """The space is at most 2 TiB, and at least two budgets."""
    ends(program.run("", memory="1200G"), 125, "cannot reserve address space: ENOMEM (check RLIMIT_AS")


def too_little_address_space_is_refused(program):
    """The arena alone is three budgets."""
    limits = [(resource.RLIMIT_AS, 1100 * MIB)]
    ran = program.run("", memory="512M", limits=limits)
    ends(ran, 125, "weir: cannot reserve address space: E")
    assert "(check RLIMIT_AS and vm.overcommit_memory)" in ran.stderr, told(ran)


def too_few_descriptors_are_refused(program):
    """The engine needs one for its userfaultfd, when it starts."""
    code = r"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
grown = bytearray(8 << 20)
"""
    command = [
        str(WEIR),
        "run",
        "--quiet",
        "--memory",
        "32M",
        "--faults",
        program.faults,
        "--swap",
        "none",
        "--",
    ]
    ends(program.start([*command, sys.executable, "-c", code]), 125, "userfaultfd cannot be opened: EMFILE")


def a_swap_file_above_the_limit_of_file_sizes_is_refused(program):
    """The limit is looked at before, so no signal comes."""
    limits = [(resource.RLIMIT_FSIZE, 10 * MIB)]
    ran = program.run("", options=("--quiet", "--swap", f"{program.folder}:100M"), limits=limits)
    assert ran.returncode == 125 and "10" in ran.stderr and "MiB" in ran.stderr, told(ran)


def a_program_with_file_capabilities_is_refused(program):
    """The dynamic linker would ignore the library."""
    copy = program.folder / "privileged"
    shutil.copy("/bin/true", copy)
    # Version 2, effective: CAP_NET_RAW.
    os.setxattr(copy, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
    command = [str(WEIR), "run", "--memory", "32M", "--faults", program.faults, "--", str(copy)]
    ends(program.start(command), 125, "has file capabilities")


def without_proc_memory_outside_is_not_counted_and_that_is_said(program):
    """Once, and the program goes on. The library alone: `weir run` looks for itself in /proc."""
    variables = f"LD_PRELOAD={LIBRARY} WEIR_MEMORY=32M WEIR_FAULTS={program.faults}"
    script = f'umount -l /proc && {variables} exec {sys.executable} -c "$0"'
    ran = program.start(["unshare", "-m", "sh", "-c", script, PRELUDE + "print('fine')"])
    ends(
        ran, 0, "weir: /proc/self/statm cannot be opened (ENOENT): memory outside Weir does not count against"
    )
    assert ran.stderr.count("cannot be opened") == 1 and ran.stdout == "fine\n", told(ran)


def without_proc_files_are_left_alone_and_that_is_said_where_they_were_not_to_be(program):
    """The keeper reads page tables there."""
    code = r"""
with open("file", "wb") as file:
    file.write(bytes(16 * MIB))
with open("file", "rb") as file:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print(mapping[:].count(0))
"""
    for files in ("auto", "kernel"):
        variables = f"LD_PRELOAD={LIBRARY} WEIR_MEMORY=32M WEIR_FAULTS={program.faults} WEIR_FILES={files}"
        script = f'umount -l /proc && {variables} exec {sys.executable} -c "$0"'
        ran = program.start(["unshare", "-m", "sh", "-c", script, PRELUDE + code])
        if files == "auto":
            assert (ran.returncode, ran.stdout.strip()) == (0, str(16 * MIB)), told(ran)
        else:
            ends(ran, 125, "mapped files cannot be kept within the budget: that takes /proc and Linux 6.7")


def files_are_kept_within_the_budget_until_the_program_becomes_another_user(program):
    """Then they are left to the kernel: the page tables of such a process are root's to read."""
    code = r"""
import time
def mapped():
    with open("/proc/self/status") as status:
        return [int(line.split()[1]) >> 10 for line in status if line.startswith("RssFile")][0]
def comes_down():
    end = time.monotonic() + 30
    while mapped() > 40 and time.monotonic() < end:
        time.sleep(0.01)
    return mapped() <= 40
file = open("file", "w+b")
for n in range(128):
    file.write(bytes([n]) * MIB)
file.flush()
os.fsync(file.fileno())
os.fchmod(file.fileno(), 0o666)
mapping = mmap.mmap(file.fileno(), 0)
def passes():
    return all(mapping[n * MIB : (n + 1) * MIB] == bytes([n]) * MIB for n in range(128))
print(passes() and comes_down(), end=" ")
os.setresuid(65534, 65534, 65534)
for n in range(128):
    mapping[n * MIB + 5] = 200
    mapping.flush(n * MIB, MIB)
    mapping[n * MIB + 5] = n
    mapping.flush(n * MIB, MIB)
again = mmap.mmap(file.fileno(), 0)
kept = all(os.pread(file.fileno(), MIB, n * MIB) == bytes([n]) * MIB for n in range(128))
print(passes() and again[:] == mapping[:], kept)
"""
    program.says(code, "True True True", options=("--quiet", "--files", "kernel"))


def a_filter_of_a_process_that_may_not_administrate_bars_new_privileges(program):
    """`no_new_privs` is set with the filter; with handler threads there is none."""
    code = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])"
    command = [str(WEIR), "run", "--quiet", "--memory", "32M", "--faults", program.faults, "--"]
    command = ["setpriv", "--bounding-set", "-sys_admin", *command, sys.executable, "-c", PRELUDE + code]
    ran = program.start(command)
    expected = "['1']" if program.faults == "inline" else "['0']"
    assert (ran.returncode, ran.stdout.strip()) == (0, expected), told(ran)


def statistics_that_cannot_be_written_change_no_status(program):
    """The program has ended as it did."""
    ran = program.run("sys.exit(7)", options=("--quiet", "--stats", "/nowhere/at/all"))
    ends(ran, 7, "cannot write statistics to /nowhere/at/all")


def a_full_budget_ends_a_program_that_touches_what_it_has(program):
    """Mapped while there was room, then filled with what does not compress: said, and killed."""
    code = r"""
a = arena(256 * MIB)
for at in range(0, 256 * MIB, MIB): a[at : at + MIB] = os.urandom(MIB)
print('all')
"""
    ran = program.run(code, options=("--quiet", "--swap", "none"))
    ends(ran, -9, "weir: budget and pool are full: ")
    assert "no swap file is configured. Give more with --memory or --swap" in ran.stderr, told(ran)
    assert "all" not in ran.stdout, told(ran)


def without_a_codec_only_pages_of_one_value_leave_their_frames(program):
    """Zeros that were written go out in any number, and nothing is in the pool."""
    code = r"""
a = arena(96 * MIB)
for at in range(0, 96 * MIB, MIB): a[at : at + MIB] = b'\x07' * MIB
assert all(a[at : at + MIB] == b'\x07' * MIB for at in range(0, 96 * MIB, MIB))
"""
    counters = program.counters(code, options=("--codec", "none", "--swap", "none"))
    assert counters["weir_out_same"] > 10000 and counters["zswpout"] == 0, counters


def a_fork_that_is_to_be_refused_is(program):
    """EAGAIN, while programs are still started."""
    code = r"""
import subprocess
try: os.fork()
except OSError as e: print(errno.errorcode[e.errno], end=' ')
print(subprocess.run(['true']).returncode)
"""
    program.says(code, "EAGAIN 0", options=("--quiet", "--fork", "refuse"))


def a_fork_that_is_to_copy_shares(program):
    """The child has its parent's bytes."""
    code = r"""
a = arena(64 * MIB)
for at in range(0, 64 * MIB, MIB): a[at : at + MIB] = words(MIB, at)
right = lambda: all(a[at : at + MIB] == words(MIB, at) for at in range(0, 64 * MIB, MIB))
child = os.fork()
if child == 0: os._exit(0 if right() else 1)
print(os.waitpid(child, 0)[1], right())
"""
    program.says(code, "0 True", options=("--quiet", "--fork", "copy"))


def locks_are_denied_or_bounded(program):
    """EPERM with `--mlock deny`, ENOMEM beyond half of the frames."""
    code = r"""
a = arena(24 * MIB)
def lock(n):
    return failed_with(libc.mlock(ctypes.c_void_p(address(a)), ctypes.c_size_t(n)))
"""
    program.says(code + "print(lock(MIB))", "EPERM", options=("--quiet", "--mlock", "deny"))
    program.says(code + "print(lock(MIB), lock(24 * MIB))", "0 ENOMEM")


def a_descriptor_of_weirs_is_not_replaced(program):
    """EBUSY for the highest descriptors, which are Weir's."""
    code = r"""
own = max(int(n) for n in os.listdir('/proc/self/fd'))
try: os.dup2(1, own)
except OSError as e: print(errno.errorcode[e.errno], bytes(grown[:3]) == bytes(3))
"""
    program.says(code, "EBUSY True")


def copies_that_share_descriptors_end_with_a_line(program):
    """`clone` with CLONE_FILES by libc's `syscall`: 125 in the child; with a stack of its own EINVAL."""
    code = r"""
CLONE_FILES = 0x400
child = libc.syscall(56, CLONE_FILES | 17, 0, 0, 0, 0)
if child == 0: os._exit(0)
status = os.waitpid(child, 0)[1] if child > 0 else -1
stack = ctypes.create_string_buffer(65536)
other = failed_with(libc.syscall(56, 17, ctypes.c_void_p(ctypes.addressof(stack) + 65536), 0, 0, 0))
print(os.waitstatus_to_exitcode(status), other)
"""
    ran = program.run(code)
    assert (ran.returncode, ran.stdout.strip()) == (0, "125 EINVAL"), told(ran)
    assert ran.stderr.startswith("weir: "), told(ran)


def a_process_with_more_threads_makes_no_user_namespace(program):
    """EINVAL, as for any program with threads."""
    program.says("print(failed_with(libc.unshare(0x10000000)))", "EINVAL")


def a_large_transfer_to_a_file_is_made_in_pieces_and_whole(program):
    """Larger than what a call may pin."""
    code = r"""
a = arena(24 * MIB)
for at in range(0, 24 * MIB, MIB): a[at : at + MIB] = words(MIB, at)
file = os.open('large', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
assert os.write(file, a) == 24 * MIB
assert all(os.pread(file, MIB, at) == words(MIB, at) for at in range(0, 24 * MIB, MIB))
"""
    pieces = program.counters(code)["weir_calls_in_pieces"]
    assert (pieces > 0) == (program.faults == "inline"), pieces


def a_large_message_that_has_no_pieces_is_refused(program):
    """ENOMEM where calls are gated, and the kernel's own answer where they are not."""
    code = r"""
a = arena(24 * MIB)
for at in range(0, 24 * MIB, MIB): a[at : at + MIB] = words(MIB, at)
ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
try: ends[0].sendmsg([a])
except OSError as e: print(errno.errorcode[e.errno])
"""
    program.says(code, "ENOMEM" if program.faults == "inline" else "EMSGSIZE")


def started_programs_have_both_signals_at_their_defaults(program):
    """Whatever their parent had ignored or blocked, where these signals are Weir's; else as natively."""
    code = r"""
import signal, subprocess
for s in (signal.SIGBUS, signal.SIGSYS): signal.signal(s, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS, signal.SIGSYS])
out = subprocess.run(['grep', '^Sig[BI]', '/proc/self/status'], capture_output=True, text=True).stdout
bits = 1 << signal.SIGBUS - 1 | 1 << signal.SIGSYS - 1
print([int(line.split()[1], 16) & bits for line in out.splitlines()])
"""
    program.says(code, "[0, 0]" if program.faults == "inline" else "[1073741888, 1073741888]")


def a_child_in_thread_mode_lies_elsewhere(program):
    """Below the range that its parent's filter watches; what a call writes there arrives."""
    code = r"""
import subprocess
child = 'a = bytearray(8 << 20); import ctypes; '
child += 'print(ctypes.addressof(ctypes.c_char.from_buffer(a)) >> 44, open("/dev/zero", "rb").readinto(a))'
print(address(grown) >> 44 >= 4, end=' ')
sys.stdout.flush()
env = {**os.environ, 'WEIR_FAULTS': 'thread'}
subprocess.run([sys.executable, '-c', child], env=env, check=True)
"""
    above = "True" if program.faults == "inline" else "False"
    ran = program.run(code)
    first, *rest = ran.stdout.split()
    assert ran.returncode == 0 and first == above and rest in (["2", "8388608"], ["3", "8388608"]), told(ran)


def managed_memory_has_no_huge_pages(program):
    """Whatever is advised."""
    code = r"""
a = arena(16 * MIB)
a.madvise(mmap.MADV_HUGEPAGE)
a[:] = words(16 * MIB)
here, huge = False, 0
for line in open('/proc/self/smaps'):
    part = line.split()
    if '-' in part[0] and ':' not in part[0]:
        start, end = (int(x, 16) for x in part[0].split('-'))
        here = start >> 44 in range(2, 5)
    elif here and part[0] == 'AnonHugePages:': huge += int(part[1])
print(huge)
"""
    program.says(code, "0")


def the_programs_own_userfaultfd_is_refused_on_managed_memory(program):
    """A mapping has one: EBUSY. Memory that Weir leaves alone works."""
    code = r"""
import fcntl, struct
own = libc.syscall(323, 1)
api = bytearray(struct.pack('QQQ', 0xaa, 0, 0))
fcntl.ioctl(own, 0xc018aa3f, api)
def register(a, n):
    start = address(a) + 4095 & ~4095
    try: fcntl.ioctl(own, 0xc020aa00, bytearray(struct.pack('QQQQ', start, n, 1, 0)))
    except OSError as e: return errno.errorcode[e.errno]
    return 0
small = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print(register(grown, MIB), register(small, 4096))
"""
    program.says(code, "EBUSY 0")


CHECKS = [
    the_library_alone_refuses_a_bad_budget,
    the_library_alone_reads_the_configuration_file,
    the_library_alone_refuses_a_mistyped_variable,
    a_usual_build_leaves_no_rule_out,
    a_budget_larger_than_half_of_the_space_is_refused,
    too_little_address_space_is_refused,
    too_few_descriptors_are_refused,
    a_swap_file_above_the_limit_of_file_sizes_is_refused,
    a_program_with_file_capabilities_is_refused,
    without_proc_memory_outside_is_not_counted_and_that_is_said,
    without_proc_files_are_left_alone_and_that_is_said_where_they_were_not_to_be,
    files_are_kept_within_the_budget_until_the_program_becomes_another_user,
    a_filter_of_a_process_that_may_not_administrate_bars_new_privileges,
    statistics_that_cannot_be_written_change_no_status,
    a_full_budget_ends_a_program_that_touches_what_it_has,
    without_a_codec_only_pages_of_one_value_leave_their_frames,
    a_fork_that_is_to_be_refused_is,
    a_fork_that_is_to_copy_shares,
    locks_are_denied_or_bounded,
    a_descriptor_of_weirs_is_not_replaced,
    copies_that_share_descriptors_end_with_a_line,
    a_process_with_more_threads_makes_no_user_namespace,
    a_large_transfer_to_a_file_is_made_in_pieces_and_whole,
    a_large_message_that_has_no_pieces_is_refused,
    started_programs_have_both_signals_at_their_defaults,
    a_child_in_thread_mode_lies_elsewhere,
    managed_memory_has_no_huge_pages,
    the_programs_own_userfaultfd_is_refused_on_managed_memory,
]


if __name__ == "__main__":
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(Program)))
