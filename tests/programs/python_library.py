#!/usr/bin/env python3
"""The Python package on top of the C library, with numpy: arrays of three budgets, who keeps what, and what
is refused. Run by the Python of `make venv`; the library is that of the release build."""

import array
import ctypes
import gc
import io
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = pathlib.Path(os.environ.get("WEIR_VENV", ROOT / "target/venv"))
MIB = 1 << 20


def refused(kind, call, *arguments, **named):
    """The text of the error that a call ends with."""
    try:
        call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} took {arguments} {named}")


def arrays_of_three_budgets_are_right(weir, numpy):
    for faults in ("thread", "inline"):
        with weir.Pool("16MiB", faults=faults) as pool:
            numbers = pool.empty((48 * MIB // 8,), numpy.uint64)
            count = len(numbers)
            numbers[:] = numpy.arange(count, dtype=numpy.uint64)[::-1]
            numbers *= numpy.uint64(0x9E3779B97F4A7C15)
            numbers.sort()
            assert bool((numbers[1:] > numbers[:-1]).all())
            stats = pool.stats()
            assert stats.ram <= 16 * MIB and stats.compressed + stats.swapped > 0 and stats.faults > 0, stats
            del numbers


def arrays_are_as_numpys_own(weir, numpy):
    pool = weir.Pool(16 * MIB)
    shapes = ((7, float), ((3, 4), "i4"), ((2, 0, 5), bool), ((), "f8"), ((5,), "M8[s]"), (4, "c16"))
    for shape, dtype in shapes:
        ours, theirs = pool.zeros(shape, dtype), numpy.zeros(shape, dtype)
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and numpy.array_equal(ours, theirs)
        assert ours.flags.writeable and ours.flags.c_contiguous
    assert numpy.array_equal(pool.full((2, 3), 7.5), numpy.full((2, 3), 7.5))
    assert pool.full(3, 1, "u1").dtype == numpy.uint8
    pairs = pool.zeros(4, [("a", "i4"), ("b", "f8")])
    pairs["b"] = 2
    assert pairs["b"].sum() == 8
    copy = pickle.loads(pickle.dumps(pool.full(1000, 3)))
    assert copy.sum() == 3000
    with tempfile.TemporaryFile() as file:
        pool.full(100_000, 2.0).tofile(file)
        file.seek(0)
        assert numpy.fromfile(file).sum() == 200_000
    with io.BytesIO() as file:
        numpy.save(file, pool.full((10, 10), 4))
        file.seek(0)
        assert numpy.load(file).sum() == 400


def memory_is_kept_by_whoever_uses_it(weir, numpy):
    pool = weir.Pool("16MiB")
    rows = pool.full((1000, 1000), 5, "u1")[10:20, ::7]
    region = pool.region(100)
    view = memoryview(region.view())[5:10]
    del region
    gc.collect()
    view[0] = 9
    assert rows.sum() == rows.size * 5 and view[0] == 9
    assert "2 regions" in refused(weir.WeirError, pool.close)
    del view, rows
    gc.collect()
    pool.close()
    pool.close()
    assert "closed" in refused(ValueError, pool.region, 5) and "closed" in refused(ValueError, pool.stats)
    # The pool goes with its last array.
    alone = weir.Pool("8MiB").full(1000, 1)
    gc.collect()
    assert alone.sum() == 1000


def buffers_advice_and_budgets(weir, numpy):
    pool = weir.Pool("16MiB")
    region = pool.region(MIB)
    assert len(region) == MIB and region.view()[MIB - 1] == 0
    region.view()[:4] = b"weir"
    if sys.version_info >= (3, 12):
        assert bytes(memoryview(region)[:4]) == b"weir"
    for advice in ("random", "cold", "sequential", "willneed", "normal"):
        region.advise(advice, 0, 8192)
    assert region.view()[0] == ord("w")
    region.advise("discard")
    assert region.view()[0] == 0
    assert "none of normal" in refused(ValueError, region.advise, "quickly")
    pool.set_memory(8 * MIB)
    assert pool.stats().memory == 8 * MIB
    assert refused(weir.WeirError, pool.set_memory, 64 * MIB)


def what_makes_no_sense_is_refused(weir, numpy):
    for memory in (0, -5, "lots", "1M", ""):
        refused(weir.WeirError, weir.Pool, memory)
    refused(weir.WeirError, weir.Pool, "8MiB", swap="/nowhere/at/all")
    refused(weir.WeirError, weir.Pool, "8MiB", faults="quickly")
    pool = weir.Pool("8MiB")
    for size in (0, -1, 1 << 63, 1 << 80):
        refused(ValueError, pool.region, size)
    refused(TypeError, pool.region, 1.5)
    refused(weir.WeirError, pool.region, 1 << 62)
    assert "objects" in refused(TypeError, pool.empty, 5, object)
    assert "objects" in refused(TypeError, pool.empty, 5, [("a", "O")])
    assert "negative" in refused(ValueError, pool.empty, (5, -1))
    refused(ValueError, pool.empty, (1 << 40, 1 << 40))
    refused(TypeError, pool.empty, (2.5,))


def threads_and_forks(weir, numpy):
    pool = weir.Pool("16MiB")
    numbers = pool.zeros((4, MIB))
    workers = [threading.Thread(target=lambda row=row: row.fill(1)) for row in numbers]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert numbers.sum() == 4 * MIB
    child = os.fork()
    if child == 0:
        os._exit(0 if refused(weir.WeirError, pool.region, 1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).close(2)
        numbers[0, 0] = 1
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
    assert subprocess.run(["true"], check=True).returncode == 0 and numbers.sum() == 4 * MIB


def the_array_module_can_use_it(weir, _numpy):
    region = weir.Pool("8MiB").region(80)
    numbers = region.view().cast("q")
    numbers[:] = array.array("q", range(10))
    assert sum(numbers) == 45


def the_guide_is_right(_weir, _numpy):
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(programs) > 1
    for program in programs:
        exec(program, {})


CHECKS = [
    the_guide_is_right,
    arrays_of_three_budgets_are_right,
    arrays_are_as_numpys_own,
    memory_is_kept_by_whoever_uses_it,
    buffers_advice_and_budgets,
    what_makes_no_sense_is_refused,
    threads_and_forks,
    the_array_module_can_use_it,
]


def main():
    sys.path.insert(0, str(ROOT / "packaging/python"))
    import numpy
    import weir

    failed = 0
    for check in CHECKS:
        try:
            check(weir, numpy)
            print(f"ok   {check.__name__}", flush=True)
        except Exception as reason:
            failed += 1
            print(f"FAIL {check.__name__}: {type(reason).__name__}: {reason}", flush=True)
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        python = VENV / "bin/python"
        if not python.exists():
            sys.exit(f"no Python environment at {VENV}: run `make venv`")
        build = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
        os.environ.setdefault("WEIR_LIBRARY", str(build / "libweir_c.so"))
        os.execv(python, [python, *sys.argv])
    sys.exit(main())
