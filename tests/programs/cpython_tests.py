"""CPython's own test suite in a process that holds more memory than its budget: `cpython_tests.py MB ARG...`.

The interpreter alone needs so little that nothing would ever be evicted. So MB mebibytes of known bytes are
made first, and between the tests a part of them is read again, which pushes the interpreter's own pages out.
ARGs are those of `python -m test`. No thread is started and nothing else is changed: natively the outcomes
are the suite's own."""

import os
import runpy
import sys
import unittest

PAGE = 4096
EVERY = 4  # tests between two readings
PART = 16 << 20


class Ballast:
    """Pages that each begin with their number; reading checks them."""

    def __init__(self, megabytes):
        self.count = (megabytes << 20) // PAGE
        self.bytes = bytearray(self.count * PAGE)
        self.at = 0
        for number in range(self.count):
            page = number.to_bytes(8, "little") + b"%08d some words that compress " % number * 20
            self.bytes[number * PAGE : number * PAGE + len(page)] = page

    def read_some(self):
        """Reads the next part: one look at each page."""
        pages = PART // PAGE
        first, self.at = self.at, (self.at + pages) % self.count
        got = bytes(self.bytes[first * PAGE : (first + pages) * PAGE : PAGE])
        wanted = bytes(number & 255 for number in range(first, min(first + pages, self.count)))
        if got != wanted:
            sys.exit("cpython_tests: the ballast has other bytes")


def main():
    """Makes the ballast, puts its reading before every few tests, and runs the suite."""
    ballast = Ballast(int(sys.argv[1]))
    run = unittest.TestCase.run
    count = 0

    def run_after_reading(self, result=None):
        nonlocal count
        if count % EVERY == 0:
            ballast.read_some()
        count += 1
        return run(self, result)

    unittest.TestCase.run = run_after_reading
    sys.argv[1:] = sys.argv[2:]
    sys.path[0] = os.getcwd()  # as with -m; this folder's modules are none of the suite's
    runpy.run_module("test", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
