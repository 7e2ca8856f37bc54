#!/usr/bin/env python3
"""Mapped files against the budget, as their programs, and their programs' statistics, see it.

Each check runs small Python programs under `weir run --files kernel`, in both ways to serve faults."""

import sys

import checks
from refusals import MIB, Program
from run import WEIR

# Before each program: a file, what the kernel has of files in this process, and the keeper's thread.
HELP = r"""
import glob, threading, time
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
def file_of(mib, name="file"):
    file = open(name, "w+b")
    for n in range(mib):
        file.write(bytes([n % 251]) * MIB)
    file.flush()
    os.fsync(file.fileno())
    return file
def read(mapping):
    for n in range(0, len(mapping), 4096):
        mapping[n]
def mapped():
    with open("/proc/self/status") as status:
        return [int(line.split()[1]) >> 10 for line in status if line.startswith("RssFile")][0]
def waits_until(good, seconds=20):
    end = time.monotonic() + seconds
    while not good() and time.monotonic() < end:
        time.sleep(0.01)
    return good()
def keeper():
    for name in glob.glob("/proc/self/task/*/comm"):
        with open(name) as comm:
            if comm.read().strip() == "weir-files":
                return name[: -len("comm")]
"""


def counters(program, code, memory="64M", more=()):
    """Runs the program; the counters of it and of its children, its own first."""
    for old in program.folder.glob("stats.*"):
        old.unlink()
    options = ("--quiet", "--files", "kernel", "--stats", "stats.%p", *more)
    ran = program.run(HELP + code, memory=memory, options=options)
    assert ran.returncode == 0, f"status {ran.returncode}: {ran.stdout[-300:]!r} {ran.stderr[-500:]!r}"
    found = {}
    for path in program.folder.glob("stats.*"):
        lines = [line.split(maxsplit=1) for line in path.read_text().splitlines()]
        found[int(path.suffix[1:])] = {key: int(value) for key, value in lines if value.isdigit()}
    pids = [int(word) for word in ran.stdout.split() if word.isdigit()]
    return [found[pid] for pid in pids]


def a_child_owes_nothing_for_files_that_its_parent_unmapped(program):
    """It has no keeper that would count them."""
    code = r"""
file = file_of(40)
for n in range(20):
    mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    read(mapping)
    time.sleep(0.1)
    mapping.close()
    pid = os.fork()
    if pid == 0:
        time.sleep(0.3)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(pid)
"""
    for child in counters(program, code):
        limit, files = child["weir_limit_bytes"], child["weir_files_bytes"]
        assert limit >= 36 * MIB and files == 0, (limit, files)


def pages_that_cannot_leave_take_nothing_from_memory(program):
    """Two processes read a file larger than the budget: the kernel drops no page that both have mapped."""
    code = r"""
file = file_of(96)
mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
own = bytearray(words(16 * MIB))
end, pid = time.monotonic() + 3, os.fork()
while time.monotonic() < end:
    read(mapping)
    assert own[-8:] == own[:8]
if pid == 0:
    time.sleep(0.3)
    os._exit(0)
waits_until(lambda: mapped() > 90)
with open(keeper() + "schedstat") as stat:
    before = int(stat.read().split()[0])
end = time.monotonic() + 1
while time.monotonic() < end:
    pass
with open(keeper() + "schedstat") as stat:
    after = int(stat.read().split()[0])
print("mapped", f"{mapped()}M", "keeper", f"{(after - before) // 1000000}ms", file=sys.stderr)
os.waitpid(pid, 0)
print(os.getpid())
print(pid)
"""
    for counted in counters(program, code):
        limit, out = counted["weir_limit_bytes"], counted["zswpout"] + counted["weir_out_same"]
        assert limit >= 24 * MIB and out * 4096 <= MIB, (limit, out)


def memory_that_can_go_nowhere_is_left_alone(program):
    """It does not compress, and there is no swap file: once some was tried, files give way."""
    code = f"WEIR = {str(WEIR)!r}" + r"""
import re, subprocess
def read_for(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        read(mapping)
def looked_at():
    told = subprocess.run([WEIR, "stat", str(os.getpid())], capture_output=True, text=True, check=True)
    return int(re.search(r"^weir_pages_unmapped (\d+)$", told.stdout, re.M)[1])
own = os.urandom(40 * MIB)
file = file_of(96)
mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
read_for(2)
before = looked_at()
read_for(2)
tried = looked_at() - before
assert tried * 4096 <= 2 * MIB, (before, tried)
print(os.getpid())
"""
    (counted,) = counters(program, code, more=("--swap", "none", "--swappiness", "200"))
    assert counted["weir_balance_room"] == 0, counted["weir_balance_room"]


def pages_that_cannot_leave_are_seldom_tried(program):
    """The kernel drops no pages of a file that is somebody else's and may not be written."""
    code = r"""
file_of(256).close()
os.chown("file", 65534, 65534)
os.chmod("file", 0o444)
with open("file", "rb") as file:
    mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
read(mapping)
def spent():
    with open(keeper() + "schedstat") as stat:
        return int(stat.read().split()[0]) / 1e9
time.sleep(0.5)
began, before = time.monotonic(), spent()
while time.monotonic() < began + 2:
    pass
share = (spent() - before) / (time.monotonic() - began)
assert mapped() > 200 and share < 0.08, (mapped(), share)
print(os.getpid())
"""
    assert counters(program, code)


def a_call_that_fails_leaves_a_mapping_known(program):
    """Its pages keep to the budget as before."""
    code = r"""
file = file_of(96)
mapping = mmap.mmap(file.fileno(), 0)
at = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
NOREPLACE, FIXED = 0x100000, mmap.MAP_SHARED | 0x10
assert libc.mmap(at, 96 * MIB, 1, mmap.MAP_SHARED | NOREPLACE, file.fileno(), 0) == 2**64 - 1
assert libc.mmap(at, 96 * MIB, 1, FIXED, 999, 0) == 2**64 - 1
assert libc.mmap(at + 1, 95 * MIB, 1, FIXED, file.fileno(), 0) == 2**64 - 1
assert libc.munmap(at + 1, 95 * MIB) == -1 and libc.munmap(at, 0) == -1
read(mapping)
assert waits_until(lambda: mapped() <= 40), mapped()
read(mapping)
print(os.getpid())
os._exit(0)
"""
    (counted,) = counters(program, code, memory="32M")
    evicted, files = counted["weir_files_evicted"], counted["weir_files_bytes"]
    assert evicted > 0 and files > 0, (evicted, files)


def shared_memory_over_a_file_is_no_file(program):
    """`shmat` with `SHM_REMAP` takes the place of what is known there."""
    code = r"""
file = file_of(16)
mapping = mmap.mmap(file.fileno(), 0)
at = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
read(mapping)
time.sleep(0.2)
segment = libc.shmget(0, 16 * MIB, 0o1600)
assert libc.shmat(segment, at, 0o40000) == at
libc.shmctl(segment, 0, None)
ctypes.memset(at, 1, 16 * MIB)
time.sleep(0.7)
print(os.getpid())
os._exit(0)
"""
    (counted,) = counters(program, code)
    assert counted["weir_files_bytes"] < 4 * MIB, counted["weir_files_bytes"]


def a_file_that_is_unmapped_is_closed_soon(program):
    """File systems can be unmounted, and the room of files without a name is free."""
    code = r"""
import statistics
def is_open():
    return any(os.path.realpath(fd).endswith("file.gone") for fd in glob.glob(keeper() + "fd/*"))
def closing():
    with file_of(2, "file.gone") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapping[0]
    assert is_open()
    time.sleep(0.15)
    began = time.monotonic()
    mapping.close()
    while is_open():
        time.sleep(0.001)
    return time.monotonic() - began
with file_of(2) as file:
    stay = mmap.mmap(file.fileno(), 0)
took = statistics.median(closing() for n in range(11))
assert took < 0.01, took
print(os.getpid())
"""
    assert counters(program, code)


def whoever_maps_files_does_not_wait_for_a_keeper_that_is_replaced(program):
    """A thread whose question went to the old one goes on without its answer."""
    code = r"""
file, done, most = file_of(2), [], 0
def change():
    for n in range(60):
        assert libc.unshare(0) == 0
    done.append(1)
keep = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
thread = threading.Thread(target=change)
thread.start()
while not done:
    began = time.monotonic()
    mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ).close()
    most = max(most, time.monotonic() - began)
thread.join()
assert most < 0.5, most
print(os.getpid())
"""
    assert counters(program, code)


CHECKS = [
    a_child_owes_nothing_for_files_that_its_parent_unmapped,
    pages_that_cannot_leave_take_nothing_from_memory,
    memory_that_can_go_nowhere_is_left_alone,
    pages_that_cannot_leave_are_seldom_tried,
    a_call_that_fails_leaves_a_mapping_known,
    shared_memory_over_a_file_is_no_file,
    a_file_that_is_unmapped_is_closed_soon,
    whoever_maps_files_does_not_wait_for_a_keeper_that_is_replaced,
]


if __name__ == "__main__":
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(Program)))
