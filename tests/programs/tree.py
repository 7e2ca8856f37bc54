#!/usr/bin/env python3
"""A budget that the processes of a program share: `--budget-per tree`.

Workers are programs of their own, each with more data than its share. Their memory is sampled from outside;
what they find must be right. Members are killed, idle ones lend, and tables that cannot be shared are
refused."""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import checks
from run import WEIR
from sampler import descendants

MIB = 1 << 20
SECONDS = 120
BUDGET = 128 * MIB
# What a process may have beyond: libraries and the start of an interpreter, before Weir's.
EACH = 2 * MIB
BESIDE = 16 * MIB
# Walks over its data, whose pages differ, and says what it found: argv has MiB and rounds.
WORK = r"""
import hashlib, sys
size, rounds = int(sys.argv[1]) << 20, int(sys.argv[2])
data = bytearray(size)
for round in range(rounds):
    for at in range(0, size, 4096):
        data[at : at + 200] = hashlib.sha512(b"%d %d" % (at, round)).digest() * 3 + b"12345678"
    print("round", round, flush=True)
print(hashlib.sha256(data).hexdigest(), flush=True)
"""
# The same for so many rounds and until a file is there, whose name is the third word.
UNTIL = WORK.replace("import hashlib,", "import itertools, os, hashlib,").replace(
    "for round in range(rounds):",
    "goes_on = lambda n: n < rounds or not os.path.exists(sys.argv[3])\n"
    "for round in itertools.takewhile(goes_on, itertools.count()):",
)
# Starts as many workers as argv says, and ends as the worst of them did.
MANY = r"""
import subprocess, sys
count, work = int(sys.argv[1]), sys.argv[2:]
running = [subprocess.Popen([sys.executable, "-c", *work]) for _ in range(count)]
sys.exit(max(abs(child.wait()) for child in running))
"""
# Shares 20 MiB with four children, each of which has 64 MiB of its own; all must find what they wrote.
FORKS = r"""
import hashlib, os, sys
right = os.urandom(20 << 20)
data = bytearray(right)
right = hashlib.sha256(right).digest()
def page(at, n):
    return b"%012d" % (at + n) * 25
def child(n):
    own = bytearray(64 << 20)
    for round in range(3):
        for at in range(0, len(own), 4096):
            own[at : at + 300] = page(at, n)
    fine = all(own[at : at + 300] == page(at, n) for at in range(0, len(own), 4096))
    return 0 if fine and hashlib.sha256(data).digest() == right else 9
pids = []
for n in range(4):
    pid = os.fork()
    if pid == 0:
        os._exit(child(n))
    pids.append(pid)
sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in pids))
"""
# What several have counts once.
ANON = re.compile(rb"^Pss_Anon:\s+(\d+) kB", re.M)


class Tree:
    """A way to run programs that share a budget."""

    def __init__(self, faults, folder):
        self.faults, self.folder = faults, folder

    def start(self, *command, memory=BUDGET, env=None):
        """Starts a program."""
        line = [WEIR, "run", "-q", "-m", str(memory), "--budget-per", "tree", "--faults", self.faults, "--"]
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            return subprocess.Popen([*line, *command], stdout=out, stderr=err, env=env)

    def told(self):
        """What the program printed, and said."""
        return [(self.folder / name).read_text() for name in ("out", "err")]

    def many(self, count, size, rounds, **keywords):
        """Starts workers below one program."""
        work = [WORK, str(size), str(rounds)]
        return self.start(sys.executable, "-c", MANY, str(count), *work, **keywords)


def tables():
    """The tables that there are, of this user."""
    found = pathlib.Path("/dev/shm").glob("weir-tree-*")
    return {path for path in found if path.stat().st_uid == os.geteuid()}


def expected(size, rounds):
    """What a worker finds, natively."""
    command = [sys.executable, "-c", WORK, str(size), str(rounds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def anon_bytes(pids):
    """Anonymous memory of processes in RAM."""
    total = 0
    for pid in pids:
        try:
            found = ANON.search(pathlib.Path(f"/proc/{pid}/smaps_rollup").read_bytes())
        except OSError:
            continue
        total += int(found[1]) * 1024 if found else 0
    return total


def watched(child, each=None):
    """Waits for a program, and returns the most memory that its tree had in two samples in a row: the child
    of a `vfork` has all that its parent has, for a moment."""
    most, last, deadline = 0, 0, time.monotonic() + SECONDS
    while child.poll() is None:
        assert time.monotonic() < deadline, "takes too long"
        pids = descendants(child.pid)
        if each:
            each(pids)
        now = anon_bytes(pids) - len(pids) * EACH
        most, last = max(most, min(last, now)), now
        time.sleep(0.05)
    return most


def ended(child):
    """Whatever happened, nothing is left."""
    for pid in descendants(child.pid):
        if pid != child.pid or child.poll() is None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    child.wait()


def workers_stay_within_the_budget_of_their_tree(tree):
    """Four of them, each with half of the budget."""
    before, right = tables(), expected(64, 3)
    child = tree.many(4, 64, 3)
    try:
        most = watched(child)
    finally:
        ended(child)
    out, err = tree.told()
    assert child.returncode == 0, (child.returncode, err)
    found = sorted(line for line in out.splitlines() if len(line) == 64)
    assert found == [right.splitlines()[-1]] * 4, out
    assert most <= BUDGET + BESIDE, f"{most / MIB:.0f} MiB"
    assert tables() <= before, "the last one removes the table"


def a_process_alone_has_all_of_it(tree):
    """Data that fits stays where it is."""
    child = tree.start(sys.executable, "-c", WORK, "80", "2")
    try:
        most = watched(child)
    finally:
        ended(child)
    out, err = tree.told()
    assert (child.returncode, out) == (0, expected(80, 2)), err
    assert 80 * MIB <= most + BESIDE <= BUDGET + 2 * BESIDE, f"{most / MIB:.0f} MiB"


def what_one_does_not_use_another_gets(tree):
    """The first has all and sleeps; the second must get most of it, and finish."""
    code = "data = bytearray(100 << 20)\n"
    code += "for at in range(0, len(data), 4096): data[at] = 1 + at // 4096 % 250\n"
    code += "import subprocess, sys\n"
    code += "status = subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode\n"
    code += "assert all(data[at] == 1 + at // 4096 % 250 for at in range(0, len(data), 4096))\n"
    code += "sys.exit(status)\n"
    enough = tree.folder / "enough"
    child = tree.start(sys.executable, "-c", code, UNTIL, "96", "2", str(enough))

    def look(pids):
        if any(anon_bytes([pid]) >= 64 * MIB for pid in pids[1:]):
            enough.touch()  # how long that takes is the machine's matter

    try:
        most = watched(child, look)
    finally:
        ended(child)
    out, err = tree.told()
    assert (child.returncode, out) == (0, expected(96, out.count("round"))), err
    assert most <= BUDGET + BESIDE, f"{most / MIB:.0f} MiB"
    assert enough.exists()


def members_that_are_killed_give_theirs_back(tree):
    """Some are killed while they work; the rest is right, and gets on."""
    chance = random.Random(7)
    child = tree.many(4, 64, 6)
    killed = []

    def kill(pids):
        if len(killed) < 3 and len(pids) > 4 and anon_bytes(pids) > BUDGET // 2:
            victim = chance.choice([pid for pid in pids if pid != child.pid])
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    try:
        most = watched(child, kill)
    finally:
        ended(child)
    out, err = tree.told()
    assert killed and child.returncode == 9, (child.returncode, killed, err)
    left = [line for line in out.splitlines() if len(line) == 64]
    assert len(left) == 4 - len(killed), (killed, out)
    assert left == [expected(64, 6).splitlines()[-1]] * len(left), out
    assert most <= BUDGET + BESIDE, f"{most / MIB:.0f} MiB"


def more_processes_than_the_budget_has_room_for_are_told(tree):
    """Two have room; the third does not start."""
    child = tree.many(3, 24, 10, memory=16 * MIB)
    try:
        watched(child)
    finally:
        ended(child)
    _, err = tree.told()
    assert child.returncode == 125, (child.returncode, err)
    assert "3 processes share the budget of 16777216 bytes" in err, err


def tables_that_cannot_be_shared_are_refused(tree):
    """One of another version, and one that others may read."""
    for text, mode, why in (
        (b"weirtre0", 0o600, "another version of Weir made it"),
        (b"", 0o644, "it belongs to another user, or others may use it"),
    ):
        path = tree.folder / "table"
        path.write_bytes(text)
        path.chmod(mode)
        child = tree.start(sys.executable, "-c", WORK, "64", "1", env={**os.environ, "WEIR_TREE": str(path)})
        child.wait(timeout=SECONDS)
        _, err = tree.told()
        assert child.returncode == 125 and why in err, (child.returncode, err)


def forked_workers_share_it_too(tree):
    """Children of a fork, each with data of its own."""
    child = tree.start(sys.executable, "-c", FORKS)
    try:
        most = watched(child)
    finally:
        ended(child)
    _, err = tree.told()
    assert child.returncode == 0, (child.returncode, err)
    assert most <= BUDGET + BESIDE, f"{most / MIB:.0f} MiB"


CHECKS = [
    workers_stay_within_the_budget_of_their_tree,
    a_process_alone_has_all_of_it,
    what_one_does_not_use_another_gets,
    members_that_are_killed_give_theirs_back,
    more_processes_than_the_budget_has_room_for_are_told,
    tables_that_cannot_be_shared_are_refused,
    forked_workers_share_it_too,
]


if __name__ == "__main__":
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(Tree)))
