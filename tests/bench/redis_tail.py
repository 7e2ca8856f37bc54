#!/usr/bin/env python3
"""redis with three times its budget of values: GETs by Zipf's law, under Weir and under the kernel's zram.

    python3 tests/bench/redis_tail.py [--limit 48M] [--values 600000] [--seconds 20] [--runs 3] [--quick]

The kernel's side (needs root) goes first: a control group with --limit, swap on zram with LZ4. Weir's budget
is that limit and what zram's store took at most: the same RAM in all. Both answer the same requests of 8
connections, each with one under way: requests a second, and percentiles from request to answer. Then, for
Weir, faults per GET of a value that is out: of the first values loaded some of different pages are asked for
once in random order, and the faults of a run without that are taken away.
"""

import json
import re
import statistics
import subprocess
import sys

import common
from common import Failed, human, size
from redis_client import Values

CONNECTIONS = 8
EXPONENT = "0.99"
FIGURES = ("per_s", "p50_us", "p99_us", "p999_us", "max_us")


def load(connection, count):
    """Sets all values."""
    values = Values()
    for _ in connection.ask_all(("SET", f"key:{number}", values.value(number)) for number in range(count)):
        pass


def ask(client, path, keys, connections, seconds):
    """Runs the client; its figures."""
    command = [client, path, str(keys), str(connections), str(seconds), EXPONENT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=common.DEADLINE_S, check=False)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    return json.loads(done.stdout)


def tail(folder, client, prefix, options):
    """Loads, warms up for a quarter of the time, measures."""
    with common.redis_server(folder, prefix) as (path, connection):
        load(connection, options.values)
        ask(client, path, options.values, CONNECTIONS, options.seconds / 4)
        return ask(client, path, options.values, CONNECTIONS, options.seconds)


def faults(folder, client, budget, options, asked):
    """Faults of a server that is loaded and then asked for the first values once, or for none."""
    with common.redis_server(folder, common.weir(budget, folder)) as (path, connection):
        load(connection, options.values)
        found = ask(client, path, asked, 1, 0) if asked else {}
    return common.statistics_of(folder).get("pgfault", 0), found


def arguments():
    """The command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--limit", type=size, default=size("48M"))
    parser.add_argument("--values", type=int, default=600_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-kernel", action="store_true", help="Weir alone, with a third of the peak")
    parser.add_argument("--quick", action="store_true", help="small and short: only whether it runs")
    options = parser.parse_args()
    if options.quick:
        options.limit, options.values, options.seconds, options.runs = size("10M"), 100_000, 2, 1
    return options


def main():
    """Measures all sides."""
    options = arguments()
    sides = {"native": [], "kernel": [], "weir": []}
    failed = []
    with common.work_folder() as folder:
        client = common.compiled(folder, "redis_zipf.c", "-lm")
        for number in range(options.runs):
            print(f"run {number + 1} of {options.runs}", file=sys.stderr, flush=True)
            with common.redis_server(folder) as (path, connection):
                load(connection, options.values)
                peak = int(re.search(rb"used_memory_rss:(\d+)", connection.ask("INFO", "memory"))[1])
                sides["native"].append(ask(client, path, options.values, CONNECTIONS, options.seconds))
            budget = peak // 3
            try:
                if not options.no_kernel:
                    prefix = common.kernel(options.limit, 2 * peak, folder)
                    sides["kernel"].append(tail(folder, client, prefix, options))
                    report = common.kernel_report(folder)
                    budget = options.limit + report["store_peak_bytes"]
                    print(f"kernel: {report}", file=sys.stderr)
                sides["weir"].append(tail(folder, client, common.weir(budget, folder), options))
            except Failed as reason:
                failed.append(str(reason))
        print(f"data {human(peak)}, RAM in all {human(budget)}: {peak / budget:.2f} times")
        rows = {name: {side: [run[name] for run in runs] for side, runs in sides.items()} for name in FIGURES}
        common.show("GETs by Zipf's law", rows)
        try:
            asked = options.values // 80  # the first tenth, see STRIDE in redis_zipf.c
            # How many faults loading takes varies: as often as the rest, the middle one.
            runs = [
                [faults(folder, client, budget, options, count) for count in (0, asked)]
                for _ in range(options.runs)
            ]
            before, after = (statistics.median(found[0] for found in side) for side in zip(*runs))
            print(
                f"cold GETs: {asked}, {(after - before) / asked:.2f} faults each, "
                f"of the last run {runs[-1][1][1]}"
            )
        except Failed as reason:
            failed.append(str(reason))
    for reason in dict.fromkeys(failed):
        print(f"failed: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
