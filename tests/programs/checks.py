"""Suites of checks that run in both ways to serve faults: their command line, and how they ended."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from run import WEIR

MODES = ("inline", "thread")


def in_folders(program):
    """For `main`: each check gets a `program` of its own, which takes a way to serve faults and a folder on a
    disk, so that a swap file may be made there."""

    def begin(faults):
        def perform(check):
            with tempfile.TemporaryDirectory(prefix="weir-check-", dir="/var/tmp") as folder:
                check(program(faults, pathlib.Path(folder)))

        return perform

    return begin


def main(about, checks, begin, modes=MODES):
    """Runs checks, and returns the exit status: 0 when all were fine. `begin` gets a way to serve faults, and
    gives a function that runs one check. `modes` are the ways that matter to them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", action="append", choices=modes, help="one way to serve faults alone")
    parser.add_argument("--only", action="append", help="checks whose name contains this (may be repeated)")
    options = parser.parse_args()
    if not os.access(WEIR, os.X_OK):
        sys.exit(f"{parser.prog}: {WEIR} not found: run `make build` or set WEIR_BIN")
    failed = ran = 0
    for faults in options.faults or modes:
        perform = begin(faults)
        for check in checks:
            if options.only and not any(word in check.__name__ for word in options.only):
                continue
            ran += 1
            try:
                perform(check)
                print(f"ok   {faults:<7} {check.__name__}", flush=True)
            except (AssertionError, ValueError, OSError, subprocess.TimeoutExpired) as reason:
                failed += 1
                print(f"FAIL {faults:<7} {check.__name__}: {reason}", flush=True)
    print(f"{ran - failed} passed, {failed} failed")
    return 1 if failed or not ran else 0
