#!/usr/bin/env python3
"""What it costs to be there: programs that allocate much and fit, natively and under Weir in turn.

    python3 tests/bench/fits.py [--pairs 7] [--quick]

redis-server under redis-benchmark (requests a second), a std::map being built, and a dict of CPython being
built (seconds). The budget is twice the peak, so that nothing ever leaves RAM. Medians, ranges, and Weir's
median over the native one.
"""

import re
import subprocess
import sys

import common
from common import Failed

DICT = """
import sys, time
count = int(sys.argv[1])
began = time.monotonic()
table = {f"customer/{at}": (at, [at % 17, str(at * 7919 % 1000003)]) for at in range(count)}
print(f"build {time.monotonic() - began:.4f}", file=sys.stderr)
print(len(table), sum(value[1][0] for value in table.values()))
"""


def redis(folder, prefix, requests):
    """Requests a second of redis-benchmark, by kind of request."""
    with common.redis_server(folder, prefix) as (path, _):
        command = [
            "redis-benchmark",
            "-s",
            path,
            "-n",
            str(requests),
            "-r",
            "200000",
            "-d",
            "700",
            "-c",
            "20",
            "--csv",
            "-t",
            "set,get,lpush,hset",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=common.DEADLINE_S, check=True)
    lines = re.findall(r'^"(\w+)[^"]*","([\d.]+)"', done.stdout, re.M)
    return {f"redis {name} requests/s": float(rate) for name, rate in lines}


def build(name, command):
    """A measurement of the seconds that a program says it has built for."""

    def measure(prefix):
        _, out, err, peak = common.run(command, prefix)
        return {f"{name} seconds": float(re.search(r"^build ([\d.]+)", err, re.M)[1])}, out, peak

    return measure


def main():
    """Runs the pairs."""
    parser = common.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small data and one pair: only whether it runs")
    options = parser.parse_args()
    pairs, part = (1, 10) if options.quick else (options.pairs, 1)
    failed = []
    with common.work_folder() as folder:
        work = common.compiled(folder, "map_work.cpp")
        builds = [
            build("std::map build", [work, "map", str(3_000_000 // part), "0"]),
            build("dict build", ["python3", "-c", DICT, str(1_500_000 // part)]),
        ]
        rows = {}

        def note(side, values):
            for name, value in values.items():
                rows.setdefault(name, {"native": [], "weir": []})[side].append(value)

        for number in range(pairs):
            print(f"pair {number + 1} of {pairs}", file=sys.stderr, flush=True)
            try:
                note("native", redis(folder, [], 200_000 // part))
                note("weir", redis(folder, common.weir(2 << 30, folder), 200_000 // part))
            except Failed as reason:
                failed.append(str(reason))
            for measure in builds:
                try:
                    values, out, peak = measure([])
                    note("native", values)
                    values, again, _ = measure(common.weir(2 * peak, folder))
                    note("weir", values)
                    if again != out:
                        raise Failed(f"another answer under Weir: {again!r} instead of {out!r}")
                except Failed as reason:
                    failed.append(str(reason))
        common.show("programs that fit: native and under Weir", rows)
    for reason in dict.fromkeys(failed):
        print(f"failed: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
