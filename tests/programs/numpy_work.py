"""The numpy programs of the suite: `numpy_work.py sort|fft|matmul|fork MB`; prints a SHA-256 of the result.

Data is chosen to compress: integers of few distinct bytes, held in wide types.
"""

import hashlib
import os
import sys

import numpy


def sha256(array):
    """Hex digest of an array's bytes."""
    return hashlib.sha256(memoryview(numpy.ascontiguousarray(array)).cast("B")).hexdigest()


def sort(megabytes):
    """Sorts int64 (values below 2**20, about 2:1) stably and gathers through the order."""
    rng = numpy.random.Generator(numpy.random.PCG64(11))
    count = (megabytes << 20) // 8 // 4
    values = rng.integers(0, 1 << 20, size=count, dtype=numpy.int64)
    order = numpy.argsort(values, kind="stable")
    ordered = values[order]
    assert (ordered[1:] >= ordered[:-1]).all()
    values.sort()
    assert (values == ordered).all()
    return sha256(order) + sha256(ordered)


def fft(megabytes):
    """Transforms rows of small integers and keeps the rounded spectrum as int32 in float64 (about 2:1)."""
    rng = numpy.random.Generator(numpy.random.PCG64(12))
    width = 4096
    rows = (megabytes << 20) // 8 // 2 // width
    signal = rng.integers(-100, 100, size=(rows, width), dtype=numpy.int16).astype(numpy.float64)
    spectrum = numpy.empty_like(signal)
    step = 64
    for first in range(0, rows, step):
        part = numpy.fft.rfft(signal[first : first + step], axis=1)
        spectrum[first : first + step] = numpy.rint(numpy.abs(part) / 64)[:, 1:].repeat(2, axis=1)
    columns = numpy.rint(numpy.abs(numpy.fft.fft(spectrum[:, ::64], axis=0)))
    return sha256(spectrum) + sha256(columns)


def matmul(megabytes):
    """Multiplies matrices of small integers in float64: exact results, about 4:1."""
    rng = numpy.random.Generator(numpy.random.PCG64(13))
    side = int(((megabytes << 20) / 8 / 3) ** 0.5)
    left = rng.integers(0, 4, size=(side, side), dtype=numpy.int8).astype(numpy.float64)
    right = rng.integers(0, 4, size=(side, side), dtype=numpy.int8).astype(numpy.float64)
    product = left @ right
    probe = numpy.arange(side, dtype=numpy.float64)
    assert (product @ probe == left @ (right @ probe)).all()
    return sha256(product)


def child_digest(array, change):
    """What a forked child's copy of the array is after it has changed it; the child ends before the parent
    goes on."""
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        change(array)
        os.write(out, sha256(array).encode())
        os._exit(0)
    os.close(out)
    with open(into, encoding="ascii") as pipe:
        digest = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return digest


def fork(megabytes):
    """Children rewrite, half rewrite and only read an array that the parent changes between the forks, and
    after them."""
    rng = numpy.random.Generator(numpy.random.PCG64(14))
    array = rng.integers(0, 1 << 20, size=(megabytes << 20) // 8, dtype=numpy.int64)
    half = len(array) // 2

    def rewrite(part, amount):
        part += amount

    digests = [child_digest(array, lambda a: rewrite(a, 3))]
    array[:half] -= 5
    digests.append(child_digest(array, lambda a: rewrite(a[half:], 7)))
    # This one goes on while the parent rewrites everything, and outlives the parent's own reading.
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(into, 1)
        array[::512] += 1
        print("child", sha256(array), flush=True)
        os._exit(0)
    array *= 3
    digests.append(sha256(array))
    os.write(out, b"!")
    assert os.waitpid(child, 0)[1] == 0
    return " ".join([*digests, child_digest(array, lambda a: None), sha256(array)])


if __name__ == "__main__":
    work = {"sort": sort, "fft": fft, "matmul": matmul, "fork": fork}[sys.argv[1]]
    print(sys.argv[1], work(int(sys.argv[2])))
