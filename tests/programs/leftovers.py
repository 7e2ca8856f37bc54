#!/usr/bin/env python3
"""Ends programs under `weir run` the hard way, while their pages move, and looks for anything that is left
behind.

Compared before and after: processes, files (in the folders for temporary ones and in the program's own),
shared memory, mappings of the system (mounts, swap areas, block devices, modules), cgroups and sysctls.
Others may use the machine meanwhile: what is new must be new in every one of several tries to count."""

import argparse
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid

from run import WEIR
from sampler import read_smaps, weir_bytes

BUDGET = 24 << 20
TRIES = 3
WAIT_S = 30
MARK = "LEFTOVERS_MARK"

# Argument: how it ends. Touches four budgets' worth for ever; says so after two rounds, when pages come and
# go.
PROGRAM = """
import ctypes, os, sys, threading

size, page = 96 << 20, 4096
data = bytearray(size)
for at in range(0, size, page):
    data[at : at + 200] = (b"%010d some word" % at) * 10

def walk():
    for at in range(0, size, page):
        assert data[at : at + 10] == b"%010d" % at, at

walk()
how = sys.argv[1]
if how == "group" and os.fork() == 0:
    how = "child"
walk()
if how == "thread":
    threading.Thread(target=walk, daemon=True).start()
os.write(1, b"ready\\n")
walk()
if how == "abort":
    os.abort()
if how == "segv":
    ctypes.string_at(8)
if how == "exit":
    os._exit(0)
while True:
    walk()
"""

# How a program ends, and the status that must be seen.
ENDS = {
    "kill": -signal.SIGKILL,
    "term": -signal.SIGTERM,
    "thread": -signal.SIGKILL,
    "group": -signal.SIGKILL,
    "abort": -signal.SIGABRT,
    "segv": -signal.SIGSEGV,
    "exit": 0,
}


def words_of(path):
    """A kernel file's lines, or that it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError as error:
        return [error.strerror]


def marked_processes(mark):
    """Processes whose environment has the mark; zombies have none."""
    found = set()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.add(f"process {folder.name}: {(folder / 'comm').read_text().strip()}")
        except OSError:
            continue
    return found


def state_of_the_machine(own):
    """Everything that must be as before: a set of lines."""
    found = set()
    for folder in (
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/dev/mqueue",
        "/run",
        "/run/weir",
        f"/run/user/{os.getuid()}",
    ):
        if os.path.isdir(folder):
            found.update(f"file {folder}/{name}" for name in os.listdir(folder))
    found.update(f"file {path}" for path in own.rglob("*"))
    for name in ("sysvipc/shm", "sysvipc/sem", "sysvipc/msg"):
        found.update(
            f"{name} {' '.join(line.split()[:2])}" for line in words_of(pathlib.Path("/proc") / name)
        )
    for name in ("self/mounts", "swaps", "self/cgroup"):
        # The used bytes of a swap area change by themselves.
        found.update(
            f"{name} {' '.join(line.split()[:3])}" for line in words_of(pathlib.Path("/proc") / name)
        )
    found.update(f"module {line.split()[0]}" for line in words_of(pathlib.Path("/proc/modules")) if line)
    found.update(f"block device {path.name}" for path in pathlib.Path("/sys/block").glob("*"))
    found.update(f"cgroup {path}" for path, _, _ in os.walk("/sys/fs/cgroup"))
    for path in [*pathlib.Path("/proc/sys/vm").glob("*"), pathlib.Path("/proc/sys/kernel/core_pattern")]:
        if os.access(path, os.R_OK) and path.name not in ("stat_refresh", "compact_memory", "drop_caches"):
            found.add(f"sysctl {path.name} = {' '.join(words_of(path))}")
    return found


def changes_after(how, faults):
    """Runs the program to its end once; what is new or gone afterwards (lines), or an error
    (AssertionError)."""
    mark = f"{MARK}={uuid.uuid4()}"
    with tempfile.TemporaryDirectory(prefix="weir-leftovers-") as name:
        own = pathlib.Path(name)
        (own / "program.py").write_text(PROGRAM)
        folders = {
            key: name for key in ("TMPDIR", "HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
        }
        env = {**os.environ, **folders, **dict([mark.split("=")]), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [
            str(WEIR),
            "run",
            "--quiet",
            "--memory",
            str(BUDGET),
            *(["--faults", faults] if faults else []),
            "--",
        ]
        before = state_of_the_machine(own)
        with subprocess.Popen(
            [*command, sys.executable, str(own / "program.py"), how],
            cwd=own,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as child:
            try:
                end(child, how, mark)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
        left = wait_until_gone(mark)
        after = state_of_the_machine(own)
    return [f"left: {line}" for line in sorted(left | (after - before))] + [
        f"gone: {line}" for line in sorted(before - after)
    ]


def end(child, how, mark):
    """Waits until pages move, then ends the program or lets it end; checks how it ended."""
    for _ in range(2 if how == "group" else 1):
        line = child.stdout.readline()
        assert line == b"ready\n", f"not ready: {line!r}: {child.stderr.read()[-500:]!r}"
    if how not in ("abort", "segv", "exit"):
        held, _ = weir_bytes(read_smaps(child.pid) or b"")
        assert 0 < held, "the program does not run under Weir"
        assert marked_processes(mark), "the program's mark is not found"
        if how == "group":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            os.kill(child.pid, signal.SIGTERM if how == "term" else signal.SIGKILL)
    status = child.wait(WAIT_S)
    assert status == ENDS[how], f"ended with {status}, expected {ENDS[how]}: {child.stderr.read()[-500:]!r}"


def wait_until_gone(mark):
    """The marked processes that are still there when the time is over."""
    deadline = time.monotonic() + WAIT_S
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def check(how, faults):
    """Why an end is not clean, or nothing."""
    seen = None
    for _ in range(TRIES):
        try:
            changes = changes_after(how, faults)
        except (AssertionError, subprocess.TimeoutExpired) as reason:
            return str(reason)
        if not changes:
            return ""
        # A process is marked as ours, a file in our folder as well: no need to ask again. Names differ
        # between tries.
        if any("left: process" in line or "weir" in line.lower() for line in changes):
            return "; ".join(changes[:6])
        seen = changes
    return f"in each of {TRIES} tries: " + "; ".join(seen[:6])


def main():
    """Runs every way to end; the exit status is 0 when all were clean."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--faults", choices=("auto", "inline", "thread"), help="force one of the two ways to serve faults"
    )
    parser.add_argument(
        "--only", action="append", choices=list(ENDS), help="end programs in this way (may be repeated)"
    )
    options = parser.parse_args()
    if not os.access(WEIR, os.X_OK):
        sys.exit(f"leftovers: {WEIR} not found: run `make build` or set WEIR_BIN")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    failed = 0
    chosen = options.only or list(ENDS)
    for how in chosen:
        reason = check(how, options.faults)
        failed += bool(reason)
        print(f"{'FAIL' if reason else 'ok  '} {how:<8} {reason}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
