#!/usr/bin/env python3
"""The Python package on top of the C library, with numpy: arrays of three budgets, who keeps what, and what
is refused. Run by the Python of `make venv`; the library is that of the release build."""

import array
import ctypes
import gc
import inspect
import io
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import typing
from unittest import mock

import python_interop

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


def in_child(work):
    """The status of a child that does something; 0 if it is true."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            signal.alarm(30)
            status = 0 if work() else 1
        except BaseException as error:
            print(f"in a child: {type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


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


def what_numpy_makes_lies_in_the_pool_and_stays_there(weir, numpy):
    name = numpy._core.multiarray.get_handler_name
    for faults in ("thread", "inline"):
        pool = weir.Pool("16MiB", faults=faults)
        with weir.numpy_allocator(pool) as active:
            assert active is pool and name() == "weir"
            numbers = numpy.arange(6 * MIB, dtype=numpy.int64)  # three budgets
            small, zeros = numpy.ones(100), numpy.zeros((MIB, 4), "u1")
            numbers += numbers[::-1]
        assert name() != "weir" and name(numbers) == "weir" == name(small)
        assert bool((numbers == 6 * MIB - 1).all()) and not zeros.any() and pool.stats().pieces == 2
        stats = pool.stats()
        assert stats.ram <= 16 * MIB < stats.data, stats  # equal numbers take no room where they are out
        # From the pool to malloc's memory and back.
        numbers.resize(10, refcheck=False)
        assert pool.stats().pieces == 1 and numbers.tolist() == [6 * MIB - 1] * 10
        numbers.resize(7 * MIB, refcheck=False)
        assert pool.stats().pieces == 2 and numbers[9] == 6 * MIB - 1 and not numbers[10:].any()
        assert "2 regions" in refused(weir.WeirError, pool.close)
        del numbers, zeros
        pool.close()
        assert small.sum() == 100
    # The pool goes with its last array.
    with weir.numpy_allocator(weir.Pool("8MiB"), threshold=1000):
        alone = numpy.ones(126)
    gc.collect()
    assert alone.sum() == 126 and threads() == 2
    del alone
    gc.collect()
    assert threads() == 0


def threads():
    """Threads of pools that have not ended."""
    names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("weir-") for name in names)


def half_noise(numbers):
    """1 MiB that compresses to half of it."""
    made = numbers.integers(0, 1 << 63, MIB // 8)
    made.reshape(-1, 256)[:, 128:] = 0
    return made


def what_the_allocator_refuses(weir, numpy):
    pool = weir.Pool("8MiB", swap="none")
    for threshold in (-1, 1 << 63):
        refused(ValueError, weir.numpy_allocator, pool, threshold)
    refused(TypeError, weir.numpy_allocator, pool, 1.5)
    with weir.numpy_allocator(pool):
        assert "still active" in refused(weir.WeirError, pool.close)
        refused(MemoryError, numpy.empty, 1 << 50)
        # Until the pool is full: then numpy has no memory for new arrays, and what is there stays.
        arrays = []
        numbers = numpy.random.default_rng(5)
        try:
            while len(arrays) < 100:
                arrays.append(half_noise(numbers))
        except MemoryError:
            pass
        assert 4 < len(arrays) < 30, f"{len(arrays)} MiB"
        assert "the pool is full" in refused(weir.WeirError, pool.empty, MIB)
    numbers = numpy.random.default_rng(5)
    assert all((array == half_noise(numbers)).all() for array in arrays)
    assert "still in use" in refused(weir.WeirError, pool.close)

    @weir.numpy_allocator(pool)
    def zeros():
        return numpy.zeros(MIB)

    del arrays
    assert zeros().sum() == 0
    pool.close()
    assert "closed" in refused(ValueError, weir.numpy_allocator, pool)
    assert "closed" in refused(ValueError, zeros)
    pool = weir.Pool("8MiB")
    with mock.patch("weir._numpy.VERSION_NEEDED", 1000):
        assert "numpy 1.22" in refused(ImportError, weir.numpy_allocator, pool)
    missing = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
    with mock.patch.dict(sys.modules, dict.fromkeys(missing)):
        refused(ImportError, weir.numpy_allocator, pool)


def the_allocator_in_threads_and_forks(weir, numpy):
    name = numpy._core.multiarray.get_handler_name
    pool = weir.Pool("16MiB")
    names, sums = [], []

    def work():
        names.append(name())
        with weir.numpy_allocator(pool, threshold=4096):
            for _ in range(50):
                sums.append(numpy.ones(3 * MIB // 8).cumsum()[-1])

    with weir.numpy_allocator(pool):
        numbers = numpy.full(3 * MIB, 2.0)
        workers = [threading.Thread(target=work) for _ in range(4)]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        assert names == ["default_allocator"] * 4 and sums == [3 * MIB // 8] * 200
        assert pool.stats().pieces == 1

        def makes_arrays():
            # Its own are malloc's; those of the parent go without a trace.
            nonlocal numbers
            own = numpy.ones(3 * MIB)
            own = numpy.concatenate([own, own])
            numbers = None
            return own.sum() == 6 * MIB and pool.stats().pieces == 0

        assert in_child(makes_arrays) == 0
        assert in_child(lambda: refused(MemoryError, numbers.resize, 5 * MIB, refcheck=False) != 5) == 0

    def ends_the_pool():
        nonlocal numbers
        pool.close()
        numbers = None
        return True

    assert in_child(ends_the_pool) == 0 and numbers.sum() == 6 * MIB


def a_fork_beside_threads_that_allocate(weir, numpy):
    """Another thread may hold the lock of the pool's table when the child is made."""
    pool, done = weir.Pool("8MiB"), threading.Event()
    piece = pool.zeros(MIB)

    def work():
        with weir.numpy_allocator(pool, threshold=0):
            while not done.is_set():
                numpy.ones(1000)

    def child():
        nonlocal piece
        piece = None
        with weir.numpy_allocator(pool):
            fine = numpy.ones(MIB).sum() == MIB
        pool.close()
        return fine

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert [in_child(child) for _ in range(30)] == [0] * 30
    finally:
        done.set()
        worker.join()
    assert piece.sum() == 0


def arrays_from_values_and_files(weir, numpy):
    pool = weir.Pool("16MiB", faults="inline")
    rows = pool.asarray([[1, 2], [3, 4]])
    assert rows.tolist() == [[1, 2], [3, 4]] and rows.dtype == numpy.asarray([1]).dtype
    assert pool.asarray(rows) is rows and pool.asarray(rows[:, 1]).base is not None
    assert numpy.shares_memory(pool.asarray(rows[::-1]), rows)
    assert not numpy.shares_memory(pool.asarray(rows, "f4"), rows)
    other = weir.Pool("8MiB")
    assert not numpy.shares_memory(other.asarray(rows), rows)
    turned = numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4))
    assert numpy.array_equal(pool.asarray(turned), turned) and pool.asarray(5).shape == ()
    assert "objects" in refused(TypeError, pool.asarray, [{}])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "numbers")
        values = numpy.arange(6 * MIB, dtype="<i8")
        values.tofile(path)
        assert numpy.array_equal(pool.from_file(path, "<i8"), values)
        assert pool.from_file(str(path), "<i4", count=3, offset=16).tolist() == [2, 0, 3]
        assert pool.from_file(path, count=0).shape == (0,) == pool.from_file(path, offset=1 << 40).shape
        pairs = pool.from_file(path, [("a", "<i8"), ("b", "<i8")], count=2)
        assert pairs["b"].tolist() == [1, 3]
        assert "no whole number" in refused(ValueError, pool.from_file, path, "<i8", offset=3)
        assert "not 9" in refused(EOFError, pool.from_file, path, "<i8", 9, 48 * MIB - 64)
        assert "no regular file" in refused(ValueError, pool.from_file, "/dev/zero")
        refused(ValueError, pool.from_file, path, offset=-1)
        refused(ValueError, pool.from_file, path, "V0")
        assert "objects" in refused(TypeError, pool.from_file, path, object)
        refused(FileNotFoundError, pool.from_file, pathlib.Path(folder, "none"))
        refused(IsADirectoryError, pool.from_file, folder)
        # It becomes shorter while it is read.
        path.write_bytes(bytes(24))
        with mock.patch("os.fstat", lambda file: os.stat_result([0o100644, *[0] * 5, 64, *[0] * 3])):
            assert "40 bytes early" in refused(EOFError, pool.from_file, path, "<i8")


def a_block_that_an_exception_leaves_tells_of_that(weir, numpy):
    def work():
        with weir.Pool("8MiB") as pool:
            kept.append(pool.full(10, 1))
            raise KeyError("the program's")

    kept = []
    assert "the program's" in refused(KeyError, work)
    assert kept[0].sum() == 10


def the_doctor_says_what_a_user_may(weir, numpy):
    assert set(weir.doctor().values()) == {None}, weir.doctor()
    reader, writer = os.pipe()

    def asks_as_nobody():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        device = os.access("/dev/userfaultfd", os.R_OK | os.W_OK)
        knob = pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "1"
        return os.write(writer, json.dumps([device or knob, weir.doctor()]).encode())

    assert in_child(asks_as_nobody) == 0
    os.close(writer)
    with os.fdopen(reader) as pipe:
        permitted, said = json.load(pipe)
    assert (said.pop("faults thread") is None) == permitted, said
    assert set(said.values()) == {None}, said


def everything_public_has_types_and_a_description(weir, _numpy):
    package = pathlib.Path(weir.__file__).parent
    assert (package / "py.typed").exists()
    for name in weir.__all__:
        thing = getattr(weir, name)
        members = vars(thing).items() if inspect.isclass(thing) else ()
        for label, member in [(name, thing), *members]:
            if inspect.isfunction(member) and (not label.startswith("_") or label == "__init__"):
                hints = set(member.__annotations__) - {"return"}
                wanted = set(inspect.signature(member).parameters) - {"self"}
                assert hints == wanted and "return" in member.__annotations__, f"{name}.{label}"
                assert label == "__init__" or len(member.__doc__) > 10, f"{name}.{label}"
        assert len(thing.__doc__) > 20, name
    assert typing.get_type_hints(weir.Stats)["ram"] is int


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
    what_numpy_makes_lies_in_the_pool_and_stays_there,
    what_the_allocator_refuses,
    the_allocator_in_threads_and_forks,
    a_fork_beside_threads_that_allocate,
    arrays_from_values_and_files,
    a_block_that_an_exception_leaves_tells_of_that,
    the_doctor_says_what_a_user_may,
    everything_public_has_types_and_a_description,
    buffers_advice_and_budgets,
    what_makes_no_sense_is_refused,
    threads_and_forks,
    the_array_module_can_use_it,
    *python_interop.CHECKS,
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
