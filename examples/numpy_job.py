#!/usr/bin/env python3
"""A numpy program whose memory peaks at three times its array: fill, sort, scan.

usage: numpy_job.py [BYTES]     bytes of the int64 array, default 536870912 (0.5 GiB; the peak is 1.5 GiB)

The keys are 22-bit numbers from a multiplicative generator, as keys of a join or of a histogram are: int64
columns whose upper bytes are mostly zero. The last line on stdout is a JSON object with times and a checksum
that does not depend on where the memory was."""

import json
import sys
import time

try:
    import numpy as np
except ImportError:
    sys.exit("numpy_job.py: numpy is missing: pip install numpy (Debian: apt install python3-numpy)")

MULTIPLIER = 2654435761  # Knuth's multiplicative hash, 2^32 divided by the golden ratio
KEY_BITS = 22


def fill(count):
    """Keys in generator order; the index array lives beside them until the end of the function."""
    index = np.arange(count, dtype=np.int64)
    keys = index * MULTIPLIER
    keys >>= 32 - KEY_BITS
    keys &= (1 << KEY_BITS) - 1
    return index, keys


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 512 << 20
    count = size // 8
    if count < 2:
        sys.exit("numpy_job.py: BYTES must be at least 16")

    started = time.perf_counter()
    index, keys = fill(count)
    filled = time.perf_counter()
    ordered = np.sort(keys)  # the third array: index and keys are still there
    sorted_at = time.perf_counter()
    if not bool(np.all(ordered[:-1] <= ordered[1:])):
        sys.exit("numpy_job.py: the result is not sorted")
    del index
    running = np.cumsum(ordered)
    scanned = time.perf_counter()

    checksum = {
        "keys": int(keys.sum()),
        "running": int(running[-1]),
        "xor": int(np.bitwise_xor.reduce(running)),
        "sample": [int(ordered[i * (count - 1) // 16]) for i in range(17)],
    }
    if checksum["keys"] != checksum["running"]:
        sys.exit("numpy_job.py: the sums before and after sorting differ")
    print(
        json.dumps(
            {
                "bytes": count * 8,
                "numpy": np.__version__,
                "fill_s": filled - started,
                "sort_s": sorted_at - filled,
                "scan_s": scanned - sorted_at,
                "total_s": time.perf_counter() - started,
                "checksum": checksum,
            }
        )
    )


if __name__ == "__main__":
    main()
