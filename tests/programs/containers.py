#!/usr/bin/env python3
"""Weir in a container whose filter refuses userfaultfd: programs run as nobody under `container.c`, natively
and under Weir with no option but the budget, and must say the same to the last byte. `weir doctor` says there
which pager works, and what to allow for a faster one."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import checks
import nobody
from run import HERE, WEIR, Broken

SECONDS = 300

# Larger than the budget by far, with threads, children, and answers that depend on every byte.
PYTHON = r"""
import hashlib, os, random, threading
def digest(seed):
    random_ = random.Random(seed)
    rows = [random_.randbytes(60) * 16 + b"%032d" % i for i in range(12_000)]
    whole = hashlib.sha256()
    for step in (7919, 104_729):
        for i in range(len(rows)):
            rows[i] = rows[i][1:] + b"x"
            whole.update(rows[i * step % len(rows)])
    return whole.hexdigest()
found = {}
def work(seed): found[seed] = digest(seed)
workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
kept = bytearray(b"0123456789abcdef" * (2 << 20))
kept[12345678] = 7
child = os.fork()
if child == 0:
    kept[::4096] = b"c" * len(kept[::4096])
    print(hashlib.sha256(kept).hexdigest(), digest(9), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(hashlib.sha256(kept).hexdigest(), sorted(found.items()))
"""
SQLITE = r"""
import hashlib, sqlite3
db = sqlite3.connect(":memory:")
db.execute("create table t (a integer primary key, b text)")
db.executemany("insert into t values (?, ?)", ((i, "%0400d" % (i * 7919)) for i in range(150_000)))
db.execute("create index u on t (b)")
db.execute("delete from t where a % 3 = 1")
print(db.execute("select count(*), sum(length(b)), max(b) from t").fetchall())
rows = db.execute("select b from t order by b desc")
print(hashlib.sha256(b"".join(b.encode() for b, in rows)).hexdigest())
"""
# A key store is not dumped, nor is who has changed his user; his children need their own memory all the same.
HIDDEN = r"""
import ctypes, hashlib, os
kept = [b"%0400d" % i for i in range(100_000)]
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
child = os.fork()
if child == 0:
    kept = [row[::-1] for row in kept]
    print(hashlib.sha256(b"".join(kept)).hexdigest(), flush=True)
    os._exit(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
assert os.waitpid(child, 0)[1] == 0
print(hashlib.sha256(b"".join(kept)).hexdigest())
"""
# What is asked for beyond a limit is refused then, not when it is used.
LIMITED = r"""
import hashlib, mmap, re, resource
kept = [b"%0400d" % i for i in range(100_000)]
status = open("/proc/self/status").read()
now = int(re.search(r"VmData:\s+(\d+) kB", status).group(1)) << 10
resource.setrlimit(resource.RLIMIT_DATA, (now + (300 << 20), resource.RLIM_INFINITY))
first = mmap.mmap(-1, 200 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
try:
    mmap.mmap(-1, 200 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    print("was to be had")
except OSError as refused:
    print(refused.errno)
whole = hashlib.sha256()
resource.setrlimit(resource.RLIMIT_DATA, (1 << 20, resource.RLIM_INFINITY))
for at in range(0, len(first), 1 << 16): first[at:at + 4] = kept[at >> 16][-4:]
whole.update(first)
for row in kept: whole.update(row)
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(whole.hexdigest())
"""


class Container:
    """A folder that nobody may use, with Weir and the filter in it."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copy2(WEIR, folder / "weir")
        shutil.copy2(WEIR.with_name(nobody.LIBRARY), folder / nobody.LIBRARY)
        cc = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", folder / "container", HERE / "container.c"]
        subprocess.run(cc, check=True)
        os.chmod(folder, 0o777)
        self.python = nobody.python_for_all() if os.geteuid() == 0 else sys.executable

    def run(self, *command, **options):
        """A command under the filter, as nobody where that is possible."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        return subprocess.run(
            [self.folder / "container", *command],
            cwd=self.folder,
            env={**environment, "HOME": str(self.folder), "LC_ALL": "C"},
            capture_output=True,
            timeout=SECONDS,
            check=False,
            **options,
        )

    def lines(self, number):
        """A file of so many lines in no order."""
        path = self.folder / "lines"
        path.write_text("".join(f"{i * 2654435761 % (1 << 32):032x}\n" for i in range(number)))
        return path

    def same(self, budget, *command, out=None):
        """A command says the same under Weir, which had to move pages for it without userfaultfd."""

        def answer(*prefix):
            ran = self.run(*prefix, *command)
            assert ran.returncode == 0, f"{prefix}: status {ran.returncode}, {ran.stderr[-500:]!r}"
            return ran.stdout + ((self.folder / out).read_bytes() if out else b"")

        natively = answer()
        stats = self.folder / "stats.%p"
        under = answer(self.folder / "weir", "run", "-q", "--memory", budget, "--stats", stats, "--")
        assert natively == under, f"{len(natively)} bytes natively, other {len(under)} bytes under Weir"
        files = [path.read_text() for path in self.folder.glob("stats.*")]
        counters = [dict(line.split(maxsplit=1) for line in text.splitlines()) for text in files]
        assert any(int(c["weir_pager"]) == 2 and int(c["weir_pages_unmapped"]) > 1000 for c in counters), (
            f"nothing was moved by the pager that needs no userfaultfd: {files}"
        )
        for path in self.folder.glob("stats.*"):
            path.unlink()


def python_with_threads_and_a_child_says_the_same(container):
    """Lists of strings in three threads, a fork that both sides go on from."""
    container.same("48M", container.python, "-c", PYTHON)


def sqlite_says_the_same(container):
    """A database in memory with an index."""
    container.same("40M", container.python, "-c", SQLITE)


def sort_says_the_same(container):
    """Lines sorted in RAM."""
    lines = container.lines(400_000)
    container.same("24M", "sort", "-S", "200M", "--parallel=2", "-o", "sorted", lines, out="sorted")


def xz_says_the_same(container):
    """A compressor whose tables are several times the budget."""
    container.same("40M", "xz", "-T1", "-7", "-k", "-c", container.lines(100_000))


def a_child_of_a_program_that_is_not_dumped_says_the_same(container):
    """Its memory is not the file system's to open: it is, for a moment."""
    container.same("24M", container.python, "-c", HIDDEN)


def memory_beyond_a_limit_is_refused_when_it_is_asked_for(container):
    """RLIMIT_DATA, which the kernel counts where access is given."""
    container.same("32M", container.python, "-c", LIMITED)


def doctor_says_which_pager_works_and_what_to_allow(container):
    """In words that somebody with a container can use."""
    ran = container.run(container.folder / "weir", "doctor")
    said = ran.stdout.decode()
    assert ran.returncode == 0, said
    refused = "pager — segv: userfaultfd is refused (EPERM"
    for part in (refused, "--security-opt seccomp=", "--device /dev/userfaultfd"):
        assert part in said, said
    for part in ("sysctl", "SYS_PTRACE", "6.13"):
        assert part not in said, f"{part} does not help under a filter: {said}"


def what_needs_userfaultfd_is_refused_and_says_so(container):
    """The other pagers, asked for by name."""
    for words in (["--pager", "move"], ["--faults", "thread"], ["--pager", "segv", "--faults", "thread"]):
        ran = container.run(container.folder / "weir", "run", *words, "--memory", "40M", "--", "true")
        assert ran.returncode == 125 and (b"userfaultfd" in ran.stderr or b"--faults thread" in ran.stderr), (
            f"{words}: status {ran.returncode}, {ran.stderr!r}"
        )
        assert b"sysctl" not in ran.stderr and b"PTRACE" not in ran.stderr, ran.stderr
    library = container.folder / nobody.LIBRARY
    words = [f"LD_PRELOAD={library}", "WEIR_MEMORY=40M", "WEIR_PAGER=segv", "WEIR_FAULTS=thread", "true"]
    ran = container.run("/usr/bin/env", *words)
    assert ran.returncode == 125 and b"cannot have --faults thread" in ran.stderr, ran


CHECKS = (
    doctor_says_which_pager_works_and_what_to_allow,
    what_needs_userfaultfd_is_refused_and_says_so,
    python_with_threads_and_a_child_says_the_same,
    sqlite_says_the_same,
    sort_says_the_same,
    a_child_of_a_program_that_is_not_dumped_says_the_same,
    memory_beyond_a_limit_is_refused_when_it_is_asked_for,
    xz_says_the_same,
)


def main():
    """Runs all checks in one container."""
    with tempfile.TemporaryDirectory(prefix="weir-container-", dir="/var/tmp") as name:

        def begin(_faults):
            container = Container(pathlib.Path(name))
            return lambda check: check(container)

        try:
            return checks.main(__doc__, CHECKS, begin, modes=("auto",))
        except (Broken, OSError, subprocess.CalledProcessError) as reason:
            sys.exit(f"containers: {reason}")


if __name__ == "__main__":
    sys.exit(main())
