#!/usr/bin/env python3
"""Mapped files on disks that are full, that fail to read, on tmpfs and overlay; and LMDB that is killed.

Each check runs a program natively and under `weir run --files kernel` with a small budget, on a disk of its
own, and compares what it says. Needs root: it mounts. Run by the Python of `make venv`."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import checks
from packages import told
from run import VENV, WEIR

MIB = 1 << 20
WORK = pathlib.Path(__file__).with_name("files_work.py")
# Commits before the kill; after the second the base is larger than the budget.
LMDB_STEPS = (30, 500)

# Before each program. What is copied through the kernel (`preadv`, `pwrite`) fails with EFAULT where an
# access of the program's own would be SIGBUS, so that it can be counted.
HELP = r"""
import errno, hashlib, mmap, os, sys
MIB, PAGE = 1 << 20, 4096
def mapped(name, size, write=True):
    with open(name, "r+b" if write else "rb") as file:
        return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
def page_of(n):
    return hashlib.sha256(str(n).encode()).digest() * (PAGE // 32)
source = os.memfd_create("source")
def put(mapping, n):
    "Writes page n through the mapping; false where the kernel would have sent SIGBUS."
    os.pwrite(source, page_of(n), 0)
    try:
        return os.preadv(source, [memoryview(mapping)[n * PAGE : n * PAGE + PAGE]], 0) == PAGE
    except OSError as error:
        assert error.errno == errno.EFAULT, error
        return False
def get(mapping, n):
    "Page n as the mapping shows it; none where the kernel would have sent SIGBUS."
    try:
        return os.pread(source, os.pwrite(source, memoryview(mapping)[n * PAGE : n * PAGE + PAGE], 0), 0)
    except OSError as error:
        assert error.errno == errno.EFAULT, error
        return None
"""


@contextlib.contextmanager
def mounted(folder, *options):
    """Something mounted at a folder, which is made for it."""
    folder.mkdir(exist_ok=True)
    told(["mount", *options, folder])
    try:
        yield folder
    finally:
        told(["umount", "--lazy", folder])


class Place:
    """A folder, and how programs are started in it."""

    def __init__(self, faults, folder):
        self.faults, self.folder = faults, folder

    def command(self, weir, *words):
        """A Python program, natively or under Weir."""
        under = [WEIR, "run", "--quiet", "--memory", "32M", "--faults", self.faults, "--files", "kernel"]
        return [str(word) for word in [*([*under, "--"] if weir else []), sys.executable, *words]]

    def says(self, weir, code, folder):
        """What a program says that runs in this folder."""
        return told(self.command(weir, "-c", HELP + code), cwd=folder)

    @contextlib.contextmanager
    def disk(self, size, image="disk.img"):
        """A new ext4 file system of its own; the name of its image and where it is mounted."""
        image = self.folder / image
        with open(image, "wb") as file:
            file.truncate(size)
        told(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", image])
        with mounted(self.folder / "disk", "-o", "loop", image) as folder:
            yield image, folder


def a_disk_that_is_full_takes_nothing_that_was_written(place):
    """Holes of a file are filled through a mapping until the disk has no room, pages are changed, and the
    file is read again by a program that begins anew."""
    write = r"""
os.truncate("file", 160 * MIB)
mapping = mapped("file", 160 * MIB)
written = 0
while written < 160 * MIB // PAGE and put(mapping, written):
    written += 1
assert 16 * MIB < written * PAGE < 80 * MIB, written
assert not put(mapping, 100 * MIB // PAGE), "no room, and yet a page was written"
for again in range(3):
    for n in range(written):
        assert mapping[n * PAGE : n * PAGE + PAGE] == page_of(n), (again, n, written)
mapping.flush()
print(written)
"""
    read = r"""
mapping = mapped("file", 160 * MIB, write=False)
written = int(open("written").read())
for n in range(written):
    assert mapping[n * PAGE : n * PAGE + PAGE] == page_of(n), n
print("all", not any(mapping[written * PAGE + PAGE :: 4099]))
"""
    for weir in (False, True):
        with place.disk(64 * MIB) as (image, folder):
            (folder / "file").touch()
            (folder / "written").write_bytes(b" " * 64)
            written = place.says(weir, write, folder)
            with open(folder / "written", "r+b") as file:
                file.write(written.encode())
            told(["umount", folder])
            told(["mount", "-o", "loop", image, folder])
            assert place.says(False, read, folder) == "all True\n"


def what_cannot_be_read_is_an_error_and_the_rest_stays_right(place):
    """The second half of the disk is gone."""
    write = r"""
with open("file", "wb") as file:
    for n in range(72 * MIB // PAGE):
        file.write(page_of(n))
    os.fsync(file.fileno())
"""
    read = r"""
mapping = mapped("file", 72 * MIB, write=False)
def look():
    return [get(mapping, n) for n in range(0, 72 * MIB // PAGE, 64)]
for again in range(3):
    seen = look()
    good = [page is not None for page in seen]
    assert all(page is None or page == page_of(64 * i) for i, page in enumerate(seen)), "other bytes"
    first = sum(good)
    print(all(good[: first - 20]), not any(good[first + 20 :]), first > 100, len(good) - first > 50)
"""
    with place.disk(96 * MIB) as (image, folder):
        place.says(False, write, folder)
        told(["umount", folder])
        told(["mount", "-o", "loop,ro", image, folder])
        os.truncate(image, 48 * MIB)
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")
        natively, under = place.says(False, read, folder), place.says(True, read, folder)
        assert natively == under == 3 * "True True True True\n", (natively, under)


# Written and read in passes, cut, and copied privately, on whatever the folder is.
PASSES = r"""
with open("file", "wb") as file:
    file.truncate(96 * MIB)
shared, own = mapped("file", 96 * MIB), None
pages = 96 * MIB // PAGE
for n in range(pages):
    assert put(shared, n)
with open("file", "r+b") as file:
    own = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
for n in range(0, pages, 8):
    own[n * PAGE : n * PAGE + PAGE] = page_of(-n)
for again in range(2):
    seen = hashlib.sha256()
    for n in range(pages):
        seen.update(shared[n * PAGE : n * PAGE + PAGE])
        assert own[n * PAGE : n * PAGE + PAGE] == page_of(n if n % 8 else -n), n
    print(seen.hexdigest())
shared.flush()
os.truncate("file", 48 * MIB)
print(get(shared, 0) == page_of(0), get(shared, pages - 1), os.stat("file").st_size)
with open("file", "rb") as file:
    print(hashlib.sha256(file.read()).hexdigest())
"""


def a_file_on_tmpfs_is_as_natively(place):
    """It has no place but RAM."""
    with mounted(place.folder / "tmpfs", "-t", "tmpfs", "-o", "size=256m", "none") as folder:
        assert place.says(False, PASSES, folder) == place.says(True, PASSES, folder)


def a_file_on_overlay_is_as_natively(place):
    """Made there; and one of the lower layer, which is copied up by the first write."""
    copied = r"""
before = mapped("low", 64 * MIB, write=False)
first = [get(before, n) for n in range(0, 16384, 16)]
with open("low", "r+b") as file:
    file.write(page_of(77))
after = mapped("low", 64 * MIB)
print(after[:PAGE] == page_of(77), before[:PAGE] == page_of(77))
assert [get(after, n) for n in range(16, 16384, 16)] == first[1:]
"""
    with place.disk(400 * MIB) as (_, disk):
        for name in ("lower", "upper", "work"):
            (disk / name).mkdir()
        with open(disk / "lower/low", "wb") as file:
            file.write(os.urandom(64 * MIB))
        layers = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        with mounted(place.folder / "overlay", "-t", "overlay", "-o", layers, "none") as folder:
            assert place.says(False, PASSES, folder) == place.says(True, PASSES, folder)
            natively = place.says(False, copied, folder)
            (disk / "upper/low").unlink()
        with mounted(place.folder / "overlay", "-t", "overlay", "-o", layers, "none") as folder:
            assert place.says(True, copied, folder) == natively


def what_a_killed_lmdb_committed_is_there(place):
    """Written past its mapping and through it; each commit that was told of is whole."""
    import lmdb

    for through in ("past", "through"):
        for steps in LMDB_STEPS:
            command = place.command(True, WORK, f"kill-lmdb-{through}", 256, place.folder)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
                said = [running.stdout.readline() for _ in range(steps)]
                running.kill()
                said += running.stdout.read().splitlines()
            last = int(said[-1])
            name = str(place.folder / f"{through}.lmdb")
            base = lmdb.open(name, map_size=256 * MIB, readonly=True, lock=False)
            with base.begin() as view:
                found = {int(key): value for key, value in view.cursor()}
            base.close()
            assert last in found and sorted(found) == list(range(len(found))), (len(found), last)
            assert all(value == str(n).encode() * 1000 for n, value in found.items()), len(found)


CHECKS = [
    a_disk_that_is_full_takes_nothing_that_was_written,
    what_cannot_be_read_is_an_error_and_the_rest_stays_right,
    a_file_on_tmpfs_is_as_natively,
    a_file_on_overlay_is_as_natively,
    what_a_killed_lmdb_committed_is_there,
]


if __name__ == "__main__":
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        python = VENV / "bin/python"
        if not python.exists():
            sys.exit(f"no Python environment at {VENV}: run `make venv`")
        os.execv(python, [python, *sys.argv])
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(Place)))
