"""What the benchmarks share: sides to run a program on, servers that end whatever happens, medians."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = ROOT / "tests/programs"
sys.path.insert(0, str(PROGRAMS))

import processes
from redis_client import Redis
from run import WEIR, human, size
from sampler import AnonSampler

# Beside `weir`; `make bench` builds it.
BENCH = WEIR.with_name("weir-bench")
DEADLINE_S = 900


def parser(docs):
    """A command line whose help is a script's docs."""
    return argparse.ArgumentParser(description=docs, formatter_class=argparse.RawDescriptionHelpFormatter)


class Failed(Exception):
    """A side that did not get to its end."""


@contextlib.contextmanager
def work_folder():
    """A folder that everything is written to, removed in the end; its own processes are ended with it."""
    for binary, target in ((WEIR, "build"), (BENCH, "bench")):
        if not os.access(binary, os.X_OK):
            sys.exit(f"{binary} not found: run `make {target}` or set WEIR_BIN")
    processes.take_charge()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weir-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compiled(folder, name, *flags):
    """A C or C++ program of this folder or of the programs suite, made."""
    source = next(path for path in (HERE / name, PROGRAMS / name) if path.exists())
    out = folder / source.stem
    compiler = "g++" if source.suffix == ".cpp" else "gcc"
    subprocess.run([compiler, "-O2", str(source), "-o", str(out), *flags], check=True)
    return str(out)


def weir(budget, folder):
    """What stands before a program under Weir with a budget in bytes; its statistics go to the folder."""
    for old in folder.glob("stats.*"):
        old.unlink()
    return [str(WEIR), "run", "--quiet", "--memory", str(budget), "--stats", str(folder / "stats.%p"), "--"]


def statistics_of(folder):
    """Weir's counters, of the process that has most of them."""
    found = {}
    for path in folder.glob("stats.*"):
        counts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
        if int(counts.get("pgfault", 0)) >= found.get("pgfault", 0):
            found = {key: int(value) for key, value in counts.items()}
    return found


def kernel(limit, swap, folder):
    """What stands before a program under the kernel's zram and a memory limit; needs root."""
    sizes = ["--limit", str(limit), "--swap", str(swap)]
    return [str(BENCH), "__kernel-side", *sizes, "--report", str(folder / "kernel.json"), "--"]


def kernel_report(folder):
    """What the last program under the kernel's zram took beside its limit."""
    return json.loads((folder / "kernel.json").read_text())


def run(command, prefix=()):
    """Runs a program to its end; (seconds, stdout, stderr, most anonymous memory of a process in bytes)."""
    began = time.monotonic()
    with subprocess.Popen(
        [*prefix, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        watch = AnonSampler(child.pid)
        watch.start()
        try:
            out, err = child.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{command[0]}: not finished after {DEADLINE_S} s") from None
        finally:
            found = watch.finish()
            processes.end(child)
    seconds = time.monotonic() - began
    if child.returncode != 0:
        raise Failed(f"{command[0]}: status {child.returncode}: {err.strip()[-300:]}")
    return seconds, out, err, found["max_anon_bytes"]


@contextlib.contextmanager
def redis_server(folder, prefix=()):
    """A redis server behind a prefix; yields its socket and a connection.

    It is ended by SHUTDOWN, so that statistics are written, and in any case.
    """
    path = folder / "redis"
    path.unlink(missing_ok=True)
    command = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        str(path),
        "--dir",
        str(folder),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(
            [*prefix, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not path.exists():
            if child.poll() is not None:
                said = (folder / "log").read_text()[-300:]
                raise Failed(f"redis-server: status {child.returncode} at start: {said}")
            time.sleep(0.02)
        connection = Redis(str(path))
        yield str(path), connection
        connection.send([("SHUTDOWN", "NOSAVE")])
        child.wait(60)
    except (subprocess.SubprocessError, OSError) as reason:
        raise Failed(f"redis-server: {reason}: {(folder / 'log').read_text()[-300:]}") from reason
    finally:
        stop(child)


def stop(child):
    """Ends a child: politely first, since the kernel's side has a machine to put back."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            pass
    processes.end(child)


def show(title, rows):
    """Prints rows (name, values by side): median and range of each side, and the last one over the others."""
    print(title)
    for name, sides in rows.items():
        medians = {side: statistics.median(values) for side, values in sides.items() if values}
        shown = [
            f"{side} {middle:.4g} ({min(sides[side]):.4g} to {max(sides[side]):.4g}, {len(sides[side])} runs)"
            for side, middle in medians.items()
        ]
        last = list(sides)[-1]
        others = [side for side in medians if side != last]
        shown += [f"{last}/{side} {medians[last] / medians[side]:.3f}" for side in others if last in medians]
        print(f"  {name:<34} {'   '.join(shown)}")
