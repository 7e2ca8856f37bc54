#!/usr/bin/env python3
"""Programs in memory control groups without swap, as nobody under the filter of `container.c`, with no option
given to Weir: `containers_soak.py [--runs N] [--seed N]`. The limit is another one for each run, far below
what the program takes natively, and changes in the middle of some. None may be killed, and all must say what
they say without a limit."""

import argparse
import contextlib
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

import groups
from containers import MIB, PANDAS, SQLITE, Container
from run import Broken

STRINGS = r"""
import hashlib
rows = [b"%0900d" % (i * 7919) for i in range(180_000)]
whole = hashlib.sha256()
for step in (1, 7919, 104_729):
    for i in range(len(rows)): whole.update(rows[i * step % len(rows)][-40:])
print(whole.hexdigest())
"""
ARRAYS = r"""
import hashlib, numpy
numbers = numpy.random.default_rng(7).integers(0, 1 << 20, 24_000_000)
numbers.sort()
print(numbers[::1000].sum(), hashlib.sha256(numbers.tobytes()[::4097]).hexdigest())
"""


def programs(container):
    """Name, command, and the least limit that it is given, MiB: what no budget counts must fit beside it."""
    packages = container.packages("numpy", "numpy.libs", "pandas", "dateutil", "six.py")
    (container.folder / "job.py").write_text(PANDAS)
    few = container.lines(100_000).rename(container.folder / "few")
    lines = container.lines(600_000)
    python = container.python
    more = {"PYTHONPATH": str(packages)}
    return [
        ("sqlite", [python, "-c", SQLITE], 90, {}),
        ("strings", [python, "-c", STRINGS], 90, {}),
        ("sort", ["sort", "-S", "400M", "--parallel=2", lines], 64, {}),
        ("xz", ["xz", "-T1", "-7", "-k", "-c", few], 110, {}),
        ("numpy", [python, "-c", ARRAYS], 160, more),
        ("pandas", [python, "job.py"], 330, more),
    ]


def change(group, limit, after, over):
    """Lowers the limit while a program runs, and raises it again."""
    for part in (0.8, 1.0, 0.9, 1.0):
        if over.wait(after):
            return
        # Version 1 refuses what is below what the group has.
        with contextlib.suppress(OSError):
            group.set(int(limit * part))


def one_run(container, command, more, limit, changes):
    """What a run in a group said. Raises AssertionError where it was not what it should be."""
    with groups.Group(limit) as group:
        over = threading.Event()
        if changes:
            changer = threading.Thread(target=change, args=(group, limit, 1.5, over))
            changer.start()
        try:
            weir = [container.folder / "weir", "run", "-q", "--"]
            ran = container.run(*weir, *command, more=more, preexec_fn=group.enter)
        finally:
            over.set()
            if changes:
                changer.join()
        assert ran.returncode == 0 and group.kills() == 0, (
            f"status {ran.returncode}, {group.kills()} killed, {ran.stderr[-300:]!r}"
        )
        return ran.stdout


def main():
    """Runs them in turn."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=29)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="weir-container-", dir="/var/tmp") as name:
        container = Container(pathlib.Path(name))
        known, natively = programs(container), {}
        print(f"seed {options.seed}", flush=True)
        for number in range(options.runs):
            title, command, least, more = known[number % len(known)]
            limit, changes = int(least * MIB * chance.uniform(1, 1.5)), number // len(known) % 2 == 1
            if title not in natively:
                ran = container.run(*command, more=more)
                assert ran.returncode == 0, f"{title} without a limit: {ran.stderr[-300:]!r}"
                natively[title] = ran.stdout
            began, how = time.monotonic(), "changing" if changes else "fixed"
            told = f"{title:<8} {limit // MIB:>4} MiB, {how}"
            try:
                same = one_run(container, command, more, limit, changes) == natively[title]
                assert same, "another answer than without a limit"
                print(f"ok   {told}, {time.monotonic() - began:.1f} s", flush=True)
            except (AssertionError, OSError, subprocess.TimeoutExpired) as reason:
                failed += 1
                print(f"FAIL {told}: {reason}", flush=True)
    print(f"{options.runs - failed} passed, {failed} failed")
    return 1 if failed or not options.runs else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Broken, AssertionError, OSError, subprocess.CalledProcessError) as reason:
        sys.exit(f"containers_soak: {reason}")
