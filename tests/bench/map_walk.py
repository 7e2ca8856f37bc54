#!/usr/bin/env python3
"""Walks of heaps of small blocks, natively and with 60 % of the peak as the budget.

    python3 tests/bench/map_walk.py [--runs 5] [--quick]

A std::map of 1.5 million nodes is walked in order, and a chain of 5 million blocks of 48 bytes; seconds of a
walk, and Weir's faults, pages from the pool and most anonymous memory in a run.
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
    parser.add_argument("--quick", action="store_true", help="one run: only whether it runs")
    options = parser.parse_args()
    rows, failed, notes = {}, [], []
    with common.work_folder() as folder:
        cases = {
            "std::map, 1.5 million nodes": ["map_work.cpp", "map", "1500000", "0", WALKS],
            "5 million blocks of 48 bytes": ["blocks_work.c", "5000000", "0", WALKS],
        }
        for name, (source, *words) in cases.items():
            command = [common.compiled(folder, source), *words]
            sides = rows.setdefault(name, {"native": [], "weir": []})
            for _ in range(1 if options.quick else options.runs):
                try:
                    answer, peak = measure(command, [], sides["native"])
                    budget = peak * 6 // 10 // 4096 * 4096
                    again, anon = measure(command, common.weir(budget, folder), sides["weir"])
                    if again != answer:
                        raise Failed(f"another answer under Weir: {again!r} instead of {answer!r}")
                except Failed as reason:
                    failed.append(f"{name}: {reason}")
                    continue
                stats = common.statistics_of(folder)
                notes.append(
                    f"{name}: peak {human(peak)}, budget {human(budget)}, anonymous memory under Weir "
                    f"{human(anon)}, faults {stats.get('pgfault')}, from the pool {stats.get('zswpin')}"
                )
        common.show("seconds of a walk in order: native, and under Weir with 60 % of the peak", rows)
    for line in [*notes, *(f"failed: {reason}" for reason in dict.fromkeys(failed))]:
        print(f"  {line}")
    return 1 if failed else 0


def measure(command, prefix, seconds):
    """Runs once, notes the median walk; returns the answer and the most anonymous memory."""
    _, out, err, peak = common.run(command, prefix)
    walks = [float(found) for found in re.findall(r"^walk ([\d.]+)", err, re.M)]
    seconds.append(statistics.median(walks))
    return out, peak


if __name__ == "__main__":
    sys.exit(main())
