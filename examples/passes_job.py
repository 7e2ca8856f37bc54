#!/usr/bin/env python3
"""Goes over the same data again and again, as iterative algorithms do.

usage: passes_job.py KIND BYTES PASSES

read     sums an array of int64 keys in each pass (the keys compress about 2.6:1)
write    adds one to each of them
noise    sums an array of random bytes
kmeans   assigns points to eight centres and moves those
heap     builds dictionaries, then lets the collector walk them, and visits each

The last line on stdout is a JSON object with times and a checksum that does not depend on where the memory
was."""

import gc
import json
import sys
import time

MULTIPLIER = 2654435761  # Knuth's multiplicative hash, 2^32 divided by the golden ratio
PIECE = 1 << 18  # elements at a time: numpy's temporaries stay small
RECORD_BYTES = 640  # about what CPython takes for one


def keys(size):
    """22-bit numbers in int64, made in pieces."""
    import numpy as np

    array = np.empty(size // 8, dtype=np.int64)
    for at in range(0, len(array), PIECE):
        piece = np.arange(at, min(at + PIECE, len(array)), dtype=np.int64)
        array[at : at + PIECE] = (piece * MULTIPLIER >> 10) & ((1 << 22) - 1)
    return array


def read(size):
    """A sum of keys."""
    array = keys(size)
    return lambda: int(array.sum())


def write(size):
    """Keys that grow."""
    array = keys(size)

    def go():
        array[:] += 1
        return int(array[:: len(array) // 100 or 1].sum())

    return go


def noise(size):
    """A sum of random bytes."""
    import numpy as np

    array, source = np.empty(size // 8, dtype=np.int64), np.random.default_rng(1)
    for at in range(0, len(array), PIECE):
        array[at : at + PIECE] = source.integers(-(2**63), 2**63 - 1, min(PIECE, len(array) - at))
    return lambda: int(array.sum())


def kmeans(size):
    """Lloyd's algorithm on points of eight float32."""
    import numpy as np

    source = np.random.default_rng(1)
    points = np.empty((size // 32, 8), dtype=np.float32)
    for at in range(0, len(points), PIECE // 8):
        points[at : at + PIECE // 8] = source.integers(0, 100, (min(PIECE // 8, len(points) - at), 8))
    centres = points[:8].copy()

    def go():
        sums, counts = np.zeros((8, 8)), np.zeros(8)
        for at in range(0, len(points), PIECE // 8):
            piece = points[at : at + PIECE // 8]
            nearest = ((piece[:, None, :] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
            for centre in range(8):
                chosen = piece[nearest == centre]
                sums[centre] += chosen.sum(axis=0, dtype=np.float64)
                counts[centre] += len(chosen)
        centres[:] = sums / np.maximum(counts, 1)[:, None]
        return [int(count) for count in counts]

    return go


def heap(size):
    """Dictionaries; each pass is a collection, which writes a mark into every one, and a walk."""
    gc.disable()
    records = [
        {"id": n, "name": f"order {n * 7919}", "tags": [str(n), str(n + 1)], "price": n * 0.25}
        for n in range(size // RECORD_BYTES)
    ]

    def go():
        gc.collect()
        return sum(record["id"] for record in records)

    return go


def main():
    """Builds the data, and goes over it."""
    kind, size, passes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    started = time.perf_counter()
    go = {"read": read, "write": write, "noise": noise, "kmeans": kmeans, "heap": heap}[kind](size)
    filled = time.perf_counter()
    times, checksum = [], []
    for _ in range(passes):
        before = time.perf_counter()
        checksum.append(go())
        times.append(time.perf_counter() - before)
    print(
        json.dumps(
            {
                "bytes": size,
                "fill_s": filled - started,
                "pass_s": times,
                "passes_s": sum(times),
                "checksum": checksum,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
