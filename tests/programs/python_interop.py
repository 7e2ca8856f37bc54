"""Other packages on arrays of a pool: each does the same work natively and on data of three budgets in a
pool, and must say the same. Checks for python_library.py."""

import errno
import io
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile
import threading

MIB = 1 << 20
BUDGET = 16 * MIB

# numpy's own tests, of what reads, makes and resizes arrays, with nearly all arrays in the pool. All of its
# tests take minutes: `target/venv/bin/python tests/programs/python_interop.py` runs them, but for those that
# want a compiler (meson). 1 in 400 fails there yet: late in the run arrays of two blocks find no addresses.
NUMPY_TESTS = ["numpy.lib.tests.test_io", "numpy.ma.tests.test_core", "numpy._core.tests.test_shape_base"]
NUMPY_WITHOUT = ("f2py/tests", "_core/tests/test_mem_policy.py")
NUMPY_CODE = """
import sys
import numpy
import weir

tests, without = sys.argv[1].split(), sys.argv[2].split()
pool = weir.Pool("64MiB")
with weir.numpy_allocator(pool, threshold=512):
    leave_out = [f"--ignore={numpy.__path__[0]}/{name}" for name in without]
    fine = numpy.test(tests=tests or None, extra_argv=["-p", "no:cacheprovider", *leave_out])
stats = pool.stats()
print(stats)
sys.exit(0 if fine and stats.faults > 1000 else 1)
"""


def in_a_pool(weir, work):
    """What `work` says where all larger arrays that numpy makes lie in a pool, which must not be too small
    for it to matter."""
    with weir.Pool(BUDGET, swap="/var/tmp:1GiB") as pool:
        with weir.numpy_allocator(pool):
            said = work()
        stats = pool.stats()
        # Time counts once something has left RAM.
        assert stats.waited_ns > 0 and stats.ram <= BUDGET, stats
    return said


def columns(numpy, rows):
    """Keys, and numbers that hardly compress."""
    numbers = numpy.arange(rows, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    return (numbers >> numpy.uint64(50)).astype(numpy.int64), (numbers >> numpy.uint64(20)).astype(float)


def whole_columns(numpy):
    """The same with integers, whose sums do not depend on the order of threads."""
    keys, values = columns(numpy, 3 * BUDGET // 16)
    return keys, values.astype(numpy.int64)


def pandas_groups_and_merges(weir, numpy):
    import pandas

    def work():
        keys, values = columns(numpy, 3 * BUDGET // 16)
        frame = pandas.DataFrame({"key": keys, "value": values})
        assert frame.memory_usage(index=False).sum() == 3 * BUDGET
        names = pandas.DataFrame({"key": numpy.arange(0, 1 << 14, 3), "weight": numpy.arange(5462.0)})
        groups = frame.groupby("key")["value"].agg(["sum", "max", "count"])
        merged = frame.merge(names, on="key")
        totals = (merged["value"] * merged["weight"]).groupby(merged["key"] % 10).sum()
        return [pickle.dumps(part.to_numpy(copy=True)) for part in (groups, totals)], len(merged)

    assert in_a_pool(weir, work) == work()


def scikit_learn_with_processes_of_joblib(weir, numpy):
    import joblib
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import cross_val_score

    def work():
        _, values = columns(numpy, 3 * BUDGET // 8)
        table = values.reshape(-1, 12)
        answers = table @ numpy.arange(12.0) + numpy.sin(table[:, 0])
        scores = cross_val_score(Ridge(), table, answers, cv=3, n_jobs=2)
        sums = []
        for kind in ("loky", "multiprocessing"):
            parts = numpy.array_split(values, 4)
            tasks = (joblib.delayed(numpy.sum)(part) for part in parts)
            sums.append(joblib.Parallel(n_jobs=2, backend=kind)(tasks))
        return scores.round(9).tolist(), [[float(number) for number in row] for row in sums]

    assert in_a_pool(weir, work) == work()


def pyarrow_takes_buffers(weir, numpy):
    import pyarrow
    from pyarrow import compute

    pool = weir.Pool(BUDGET)
    region = pool.region(3 * BUDGET)
    numbers = numpy.frombuffer(region.view(), numpy.int64)
    numbers[:] = numpy.arange(len(numbers))
    buffer = pyarrow.py_buffer(region.view())
    array = pyarrow.Array.from_buffers(pyarrow.int64(), len(numbers), [None, buffer])
    assert array.buffers()[1].address == numbers.ctypes.data, "a copy"
    assert compute.sum(array).as_py() == len(numbers) * (len(numbers) - 1) // 2
    with tempfile.TemporaryFile() as file:
        with pyarrow.ipc.new_stream(file, pyarrow.schema([("n", pyarrow.int64())])) as stream:
            stream.write_batch(pyarrow.record_batch([array], ["n"]))
        file.seek(0)
        assert pyarrow.ipc.open_stream(file).read_all()["n"][-1].as_py() == len(numbers) - 1
    assert "still in use" in busy(weir, pool)
    del region, numbers, buffer, array
    pool.close()


def busy(weir, pool):
    try:
        pool.close()
    except weir.WeirError as error:
        return str(error)
    raise AssertionError("the pool was closed under what uses it")


def polars_reads_arrays(weir, numpy):
    import polars

    def work(keys, values):
        frame = polars.DataFrame({"key": keys, "value": values})
        query = frame.lazy().group_by("key").agg(polars.col("value").sum(), polars.len()).sort("key")
        # The other engine gathers the values of each group from all over the array.
        said = query.collect(engine="streaming")
        return said.rows(), frame["value"].sort()[-5:].to_list()

    keys, values = whole_columns(numpy)
    pool = weir.Pool(BUDGET)
    assert work(pool.asarray(keys), pool.asarray(values)) == work(keys, values)


def duckdb_reads_registered_arrays(weir, numpy):
    import duckdb

    def work(keys, values):
        with duckdb.connect() as base:
            base.register("numbers", {"key": keys, "value": values})
            query = "select key % 50 as k, sum(value), count(*) from numbers group by k order by k"
            return base.execute(query).fetchall()

    keys, values = whole_columns(numpy)
    pool = weir.Pool(BUDGET)
    assert work(pool.asarray(keys), pool.asarray(values)) == work(keys, values)


def pickles_and_files(weir, numpy):
    _, values = columns(numpy, 3 * BUDGET // 8)
    pool = weir.Pool(BUDGET)
    ours = pool.asarray(values)
    outside = []
    head = pickle.dumps(ours, protocol=5, buffer_callback=outside.append)
    again = pickle.loads(head, buffers=outside)
    assert len(head) < 500 and numpy.shares_memory(again, ours)
    # An array that was unpickled lies in a byte string of pickle's.
    assert numpy.array_equal(pool.asarray(pickle.loads(pickle.dumps(ours))), values)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "values.npy")
        numpy.save(path, ours)
        assert numpy.array_equal(numpy.load(path, mmap_mode="r"), values)
        ours.tofile(path)
        assert numpy.array_equal(pool.from_file(path, float), values)
        with weir.numpy_allocator(pool):
            assert numpy.array_equal(numpy.fromfile(path), values)
    with io.BytesIO() as file:
        numpy.savez(file, a=ours[:MIB])
        file.seek(0)
        assert numpy.array_equal(numpy.load(file)["a"], values[:MIB])


def sockets_send_and_receive(weir, numpy):
    _, values = columns(numpy, 3 * BUDGET // 8)
    pool = weir.Pool(BUDGET, faults="thread")
    ours, theirs = pool.asarray(values), pool.empty(len(values))
    near, far = socket.socketpair()
    with near, far:
        sender = threading.Thread(target=near.sendall, args=(ours.data.cast("B"),))
        sender.start()
        to = theirs.data.cast("B")
        while to:
            to = to[far.recv_into(to) :]
        sender.join()
        assert numpy.array_equal(theirs, values)
        region = weir.Pool(BUDGET, faults="inline").region(3 * BUDGET)
        numpy.frombuffer(region.view())[:] = values
        region.advise("cold")
        refused = set()
        for at in range(0, len(region), MIB):
            try:
                near.send(region.view()[at : at + 100])
            except OSError as error:
                refused.add(error.errno)
        assert refused == {errno.EFAULT}, refused
    assert numpy.frombuffer(region.view())[0] == values[0]


def numpys_own_tests_pass(_weir, _numpy, tests=NUMPY_TESTS, seconds=200):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [" ".join(tests), " ".join(NUMPY_WITHOUT)]
    command = [sys.executable, "-W", "ignore", "-c", NUMPY_CODE, *words]
    with tempfile.TemporaryDirectory() as folder:
        told = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
        )
    lines = told.stdout.splitlines()
    assert told.returncode == 0, "\n".join([*lines[-40:], told.stderr[-2000:]])
    return lines[-2:]


CHECKS = [
    pandas_groups_and_merges,
    scikit_learn_with_processes_of_joblib,
    pyarrow_takes_buffers,
    polars_reads_arrays,
    duckdb_reads_registered_arrays,
    pickles_and_files,
    sockets_send_and_receive,
    numpys_own_tests_pass,
]


if __name__ == "__main__":
    ROOT = pathlib.Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(ROOT / "packaging/python"))
    os.environ.setdefault("WEIR_LIBRARY", str(ROOT / "target/release/libweir_c.so"))
    print(*numpys_own_tests_pass(None, None, tests=(), seconds=3600), sep="\n")
