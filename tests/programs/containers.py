#!/usr/bin/env python3
"""Weir in a container whose filter refuses userfaultfd: programs run as nobody under `container.c`, natively
and under Weir with no option but the budget, and must say the same to the last byte. `weir doctor` says there
which pager works, and what to allow for a faster one. In a memory control group without swap no option is
needed: what is killed there natively ends under Weir, whose budget follows the group's limit."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import checks
import groups
import nobody
from run import HERE, VENV, WEIR, Broken

SECONDS = 300
MIB = 1 << 20

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
# Tables that natively take more than they may have, joined, grouped and sorted.
PANDAS = r"""
import hashlib
import numpy, pandas
ROWS = 2_000_000
random = numpy.random.default_rng(29)
rows = pandas.DataFrame({"place": random.integers(0, 5000, ROWS)})
for name in ("first", "second", "third", "fourth", "fifth", "sixth"):
    rows[name] = random.integers(0, 1000, ROWS)
places = pandas.DataFrame({"place": numpy.arange(5000), "region": numpy.arange(5000) % 37})
joined = rows.merge(places, on="place")
joined["share"] = joined["first"] / (1 + joined["second"])
sums = joined.groupby(["region", "third"])[["first", "second", "fourth", "share"]].sum()
print(sums.describe().to_csv(float_format="%.6f"))
ordered = joined.sort_values(["fifth", "sixth", "place", "first", "second"], kind="stable")
print(hashlib.sha256(ordered.to_numpy().tobytes()).hexdigest())
"""
# Works until it is told to end, and misses no byte meanwhile.
WALKS = r"""
import select, sys
SIZE, STEP = 160 << 20, 4096
data = bytearray(SIZE)
def mark(at, round): return b"%08d%08d" % (at // STEP, round)
for at in range(0, SIZE, STEP): data[at : at + 16] = mark(at, 0)
print("ready", flush=True)
round = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for at in range(0, SIZE, STEP):
        assert data[at : at + 16] == mark(at, round)
        data[at : at + 16] = mark(at, round + 1)
    round += 1
assert all(data[at : at + 16] == mark(at, round) for at in range(0, SIZE, STEP))
print("all of it, after", "some rounds" if round else "none")
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

    def run(self, *command, more=(), **options):
        """A command under the filter, as nobody where that is possible, with more variables."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")} | dict(more)
        return subprocess.run(
            [self.folder / "container", *command],
            cwd=self.folder,
            env={**environment, "HOME": str(self.folder), "LC_ALL": "C"},
            capture_output=True,
            timeout=SECONDS,
            check=False,
            **options,
        )

    def packages(self, *names):
        """A folder with packages of the suites' own environment, for everybody."""
        folder = self.folder / "packages"
        for path in VENV.glob("lib/python3*/site-packages/*"):
            if path.name in names:
                skip = shutil.ignore_patterns("__pycache__", "tests")
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                folder.mkdir(exist_ok=True)
                copy(path, folder / path.name, **({"ignore": skip} if path.is_dir() else {}))
        assert folder.exists(), f"nothing of {', '.join(names)} in {VENV}: run `make venv`"
        return folder

    @contextlib.contextmanager
    def started(self, group, *command):
        """A command in a group, which prints `ready`; killed in the end."""
        with subprocess.Popen(
            [self.folder / "container", *command],
            cwd=self.folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("WEIR_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=group.enter,
        ) as child:
            try:
                first = child.stdout.readline()
                assert first == "ready\n", f"{first!r}, {child.stderr.read()[-500:]}"
                yield child
            finally:
                child.kill()

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


def value(pid, key):
    """What a process shows."""
    ran = subprocess.run([WEIR, "stat", str(pid)], capture_output=True, text=True, timeout=60, check=True)
    return int(re.search(rf"^{key} (\d+)$", ran.stdout, re.M)[1])


def until(what, seen, wanted):
    """Waits until something is as it should be."""
    deadline = time.monotonic() + 60
    while (now := seen()) != wanted:
        assert time.monotonic() < deadline, f"{what}: {now} instead of {wanted}"
        time.sleep(0.05)


def what_is_killed_natively_ends_with_no_option_at_all(container):
    """A pandas job in 400 MiB without swap."""
    job = container.folder / "job.py"
    job.write_text(PANDAS)
    names = ("numpy", "numpy.libs", "pandas", "dateutil", "six.py", "pytz")
    more = {"PYTHONPATH": str(container.packages(*names))}
    command = [container.python, "job.py"]
    free = container.run(*command, more=more)
    assert free.returncode == 0 and len(free.stdout) > 500, f"without a limit: {free.stderr[-500:]!r}"
    with groups.Group(400 * MIB) as group:
        natively = container.run(*command, more=more, preexec_fn=group.enter)
        assert (natively.returncode, group.kills()) == (-9, 1), f"it fits natively: {natively.returncode}"
        with group.never_kills():
            weir = [container.folder / "weir", "run", "--"]
            under = container.run(*weir, *command, more=more, preexec_fn=group.enter)
        assert under.returncode == 0, f"status {under.returncode}, {under.stderr[-500:]!r}"
        assert under.stdout == free.stdout, f"{len(free.stdout)} bytes, {len(under.stdout)} under Weir"
        assert b"job.py finished" in under.stderr, under.stderr


def the_budget_follows_the_limit_around_the_program(container):
    """Half of it, down and up again, as far as it was at the start."""
    stats = container.folder / "stats.txt"
    weir = [container.folder / "weir", "run", "-v", "--stats", stats, "--"]
    walks = [*weir, container.python, "-c", WALKS]
    with groups.Group(200 * MIB) as group, group.never_kills(), container.started(group, *walks) as child:
        budget = lambda: value(child.pid, "weir_budget_bytes") // MIB
        until("the budget at the start", budget, 100)
        for limit, wanted in ((150, 75), (180, 90), (140, 70), (400, 100)):
            group.set(limit * MIB)
            until(f"the budget within {limit} MiB", budget, wanted)
            assert value(child.pid, "weir_limit_around_bytes") == limit * MIB
            held = lambda most=wanted: value(child.pid, "weir_resident_bytes") <= most * MIB
            until(f"RAM within {wanted} MiB", held, True)
        out, err = child.communicate("end\n", timeout=SECONDS)
        assert (child.returncode, out) == (0, "all of it, after some rounds\n"), (child.returncode, out, err)
    assert "around this process is 150 MiB now: its budget is 75 MiB, and was 100 MiB" in err, err
    assert re.search(rf"^weir_limit_around_bytes {400 * MIB}$", stats.read_text(), re.M)
    stats.unlink()


def a_budget_that_is_a_size_follows_nothing(container):
    """Nor one for which somebody has asked since."""
    for options, asked in ((["-m", "60M"], None), ([], "60M")):
        walks = [container.folder / "weir", "run", "-q", *options, "--", container.python, "-c", WALKS]
        with groups.Group(200 * MIB) as group, container.started(group, *walks) as child:
            budget = lambda: value(child.pid, "weir_budget_bytes") // MIB
            if asked:
                subprocess.run([WEIR, "set", str(child.pid), "--memory", asked], check=True, timeout=60)
            until("the budget", budget, 60)
            group.set(150 * MIB)
            looks = value(child.pid, "weir_limit_around_bytes")
            assert looks == (200 * MIB if asked else 0), looks
            # Longer than a reading takes to come.
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                assert budget() == 60
                time.sleep(0.1)
            assert value(child.pid, "weir_limit_around_bytes") == looks


CHECKS = (
    doctor_says_which_pager_works_and_what_to_allow,
    what_needs_userfaultfd_is_refused_and_says_so,
    python_with_threads_and_a_child_says_the_same,
    sqlite_says_the_same,
    sort_says_the_same,
    a_child_of_a_program_that_is_not_dumped_says_the_same,
    memory_beyond_a_limit_is_refused_when_it_is_asked_for,
    xz_says_the_same,
    what_is_killed_natively_ends_with_no_option_at_all,
    the_budget_follows_the_limit_around_the_program,
    a_budget_that_is_a_size_follows_nothing,
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
