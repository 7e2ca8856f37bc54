#!/usr/bin/env python3
"""Records on CPython's heap, some wanted often and most seldom: `heap_work.py MB VISITS`; prints what was
seen, and to stderr how fast.

Neighbouring records are wanted together, groups of them as often as Zipf's law says (exponent 0.9). A visit
reads eight records of a group and changes one, so what is printed depends on all that was read and written.
"""

import bisect
import random
import sys
import time

GROUP = 64
WORDS = ["alpha", "beta", "gamma", "delta", "orders", "customer", "street", "invoice", "pending", "shipped"]
RECORD_BYTES = 640


def record(number, rng):
    """About 600 bytes in CPython."""
    return {
        "id": number,
        "name": WORDS[number % 10] + str(rng.randrange(10**6)),
        "tags": [WORDS[(number * 7 + k) % 10] for k in range(3)],
        "price": rng.random() * 100,
        "qty": number % 17,
    }


def main():
    """Builds the heap, then visits it."""
    megabytes, visits = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(1)
    started = time.monotonic()
    records = [record(number, rng) for number in range((megabytes << 20) // RECORD_BYTES // GROUP * GROUP)]
    filled = time.monotonic()
    groups = len(records) // GROUP
    places = rng.sample(range(groups), groups)
    sums, total = [], 0.0
    for rank in range(groups):
        total += (rank + 1) ** -0.9
        sums.append(total)
    seen, half = 0, filled
    for visit in range(visits):
        base = places[bisect.bisect_left(sums, rng.random() * total)] * GROUP
        for at in range(base, base + GROUP, 8):
            found = records[at]
            seen = (seen * 31 + found["qty"] + len(found["name"]) + int(found["price"])) % (1 << 61)
        records[base + visit % GROUP]["qty"] += 1
        if visit == visits // 2:
            half = time.monotonic()
    ended = time.monotonic()
    print(f"{groups} groups, {visits} visits, {seen}, {sum(r['qty'] for r in records)}")
    second = (visits - visits // 2) / max(ended - half, 1e-9)
    print(f"fill {filled - started:.2f} s, second half of the visits {second:.0f}/s", file=sys.stderr)


main()
