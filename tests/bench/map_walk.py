#!/usr/bin/env python3
"""Walks of heaps of small blocks: natively, under the kernel's zram, and under Weir with the same RAM in all.

    python3 tests/bench/map_walk.py [--runs 5] [--limit 40] [--no-kernel] [--quick]

A std::map of 1.5 million nodes is walked in order, with keys that came in an order like chance (so each step
of the walk goes anywhere in the heap) and with keys that came in rising order; and a chain of 5 million
blocks of 48 bytes. The kernel's side (needs root) has --limit percent of the native peak and zram's store
beside it; Weir has both together. With --no-kernel Weir has 60 % of the peak. Seconds of a walk, and Weir's
faults, pages from the pool and most anonymous memory in a run.
"""

import re
import statistics
import sys

import common
from common import Failed, human

WALKS = "3"


def main():
    """Runs both programs on both sides."""
    parser = common.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=int, default=40, help="the kernel's limit in percent of the peak")
    parser.add_argument("--no-kernel", action="store_true", help="Weir alone, with 60 %% of the peak")
    parser.add_argument("--quick", action="store_true", help="one run: only whether it runs")
    options = parser.parse_args()
    rows, failed, notes = {}, [], []
    with common.work_folder() as folder:
        cases = {
            "std::map, 1.5 million nodes": ["map_work.cpp", "map", "1500000", "0", WALKS],
            "the same, keys in rising order": ["map_work.cpp", "rising", "1500000", "0", WALKS],
            "5 million blocks of 48 bytes": ["blocks_work.c", "5000000", "0", WALKS],
        }
        for name, (source, *words) in cases.items():
            command = [common.compiled(folder, source), *words]
            sides = rows.setdefault(name, {"native": [], "kernel": [], "weir": []})
            for _ in range(1 if options.quick else options.runs):
                try:
                    notes.append(f"{name}: {one_run(command, sides, folder, options)}")
                except Failed as reason:
                    failed.append(f"{name}: {reason}")
        common.show("seconds of a walk in order", rows)
    for line in [*notes, *(f"failed: {reason}" for reason in dict.fromkeys(failed))]:
        print(f"  {line}")
    return 1 if failed else 0


def one_run(command, sides, folder, options):
    """All sides of a program once, with the same answers; what is to be said of it."""
    answer, peak = measure(command, [], sides["native"])
    budget = peak * 6 // 10
    if not options.no_kernel:
        limit = peak * options.limit // 100
        same(answer, measure(command, common.kernel(limit, 2 * peak, folder), sides["kernel"])[0])
        budget = limit + common.kernel_report(folder)["store_peak_bytes"]
    found, anon = measure(command, common.weir(budget // 4096 * 4096, folder), sides["weir"])
    same(answer, found)
    stats = common.statistics_of(folder)
    return (
        f"peak {human(peak)}, RAM in all {human(budget)} ({100 * budget // peak} %), anonymous memory under "
        f"Weir {human(anon)}, faults {stats.get('pgfault')}, from the pool {stats.get('zswpin')}"
    )


def same(answer, again):
    """The answer must be the native one."""
    if again != answer:
        raise Failed(f"another answer: {again!r} instead of {answer!r}")


def measure(command, prefix, seconds):
    """Runs once, notes the median walk; returns the answer and the most anonymous memory."""
    _, out, err, peak = common.run(command, prefix)
    walks = [float(found) for found in re.findall(r"^walk ([\d.]+)", err, re.M)]
    seconds.append(statistics.median(walks))
    return out, peak


if __name__ == "__main__":
    sys.exit(main())
