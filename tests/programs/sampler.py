"""Watches from outside how much RAM Weir holds in a process and its descendants, and all anonymous memory.

The engine's own counters are not asked: the kernel's page tables are, through /proc/PID/smaps.
A plain reading walks one mapping after the other while pages move between them, so it can count
a moved page twice. A reading above the budget is therefore taken again with the process stopped
(SIGSTOP, read, SIGCONT), and every `EXACT_EVERY`-th reading is taken that way in any case: only
readings of a stopped process are called an overshoot. Where nothing may be stopped, the reading is
repeated at once: only a process above its budget is above it `PLAIN_TRIES` times in a row.
"""

import os
import re
import signal
import threading
import time

# The engine names its mappings where the kernel can (CONFIG_ANON_VMA_NAME); where it cannot, the
# fixed range of addresses that it reserves tells them.
WEIR_NAME = re.compile(rb"\[anon(?:_shmem)?:weir-")
WEIR_RANGE = (0x1000_0000_0000, 0x5000_0000_0000)

HEADER = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) [rwxps-]{4} \S+ \S+ \d+ *(.*)$", re.M)
RSS = re.compile(rb"^Rss:\s+(\d+) kB", re.M)
PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.M)

ANON = re.compile(rb"^RssAnon:\s+(\d+) kB", re.M)

INTERVAL_S = 0.010
ANON_INTERVAL_S = 0.050
# Where the peak is looked for: a program may hold it for a moment only.
PEAK_INTERVAL_S = 0.005
EXACT_EVERY = 10
STOP_WAIT_S = 1.0
PLAIN_TRIES = 4


def is_weir_mapping(start, name):
    """Whether the mapping that starts at `start` and is called `name` belongs to Weir."""
    # What has another name there is a file, or another program's (ZGC maps its heap at 16 TiB).
    return bool(WEIR_NAME.match(name)) or (not name and WEIR_RANGE[0] <= start < WEIR_RANGE[1])


def weir_bytes(smaps):
    """(Rss, Pss) in bytes over the mappings of Weir in the text of an smaps file."""
    rss = pss = 0
    heads = list(HEADER.finditer(smaps))
    for head, after in zip(heads, heads[1:] + [None]):
        if not is_weir_mapping(int(head[1], 16), head[3]):
            continue
        end = after.start() if after else len(smaps)
        found = RSS.search(smaps, head.end(), end)
        rss += int(found[1]) if found else 0
        found = PSS.search(smaps, head.end(), end)
        pss += int(found[1]) if found else 0
    return rss * 1024, pss * 1024


def read_smaps(pid):
    """The text of /proc/PID/smaps, or None when the process is gone."""
    try:
        with open(f"/proc/{pid}/smaps", "rb", buffering=0) as file:
            parts = []
            while part := file.read(1 << 20):
                parts.append(part)
            return b"".join(parts)
    except OSError:
        return None


def descendants(root, depth=None):
    """`root` and every living process below it, or only so many generations of them."""
    pids, todo = [], [(root, 0)]
    while todo:
        pid, level = todo.pop()
        pids.append(pid)
        if level == depth:
            continue
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    todo.extend((int(child), level + 1) for child in file.read().split())
        except OSError:
            continue
    return pids


def states(pid):
    """The state letters of all threads of `pid`."""
    letters = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii", errors="replace") as file:
            letters.append(file.read().rpartition(")")[2].split()[0])
    return letters


def read_stopped(pid):
    """The smaps of `pid` while all its threads stand still; None when it ended or did not stop."""
    try:
        if any(letter in "Tt" for letter in states(pid)):
            return None  # stopped by somebody else: not ours to continue
        os.kill(pid, signal.SIGSTOP)
    except (OSError, IndexError):
        return None
    try:
        deadline = time.monotonic() + STOP_WAIT_S
        while any(letter not in "TtZX" for letter in states(pid)):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.0002)
        return read_smaps(pid)
    except (OSError, IndexError):
        return None
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            pass


class Sampler(threading.Thread):
    """Reads the RAM of Weir in `root` and its descendants until `finish` is called.

    budget_bytes: each process must stay at or below it. With `may_stop` false no process is ever
    stopped (programs that test job control), and repeated plain readings above the budget count.
    """

    def __init__(self, root, budget_bytes, may_stop=True, exact_every=EXACT_EVERY):
        super().__init__(daemon=True)
        self.root, self.budget_bytes, self.may_stop, self.exact_every = (
            root,
            budget_bytes,
            may_stop,
            exact_every,
        )
        self.samples = self.exact_samples = self.overshoots = self.refuted = self.unchecked = 0
        # max_bytes leaves out plain readings that an exact one refuted; max_plain_bytes has them.
        self.max_bytes = self.max_exact_bytes = self.max_plain_bytes = self.max_tree_bytes = 0
        self.ended = threading.Event()

    def run(self):
        while not self.ended.is_set():
            began = time.monotonic()
            tree = sum(self.sample(pid) for pid in descendants(self.root))
            self.max_tree_bytes = max(self.max_tree_bytes, tree)
            self.ended.wait(max(0.001, INTERVAL_S - (time.monotonic() - began)))

    def sample(self, pid):
        """Takes one reading of one process; returns its proportional share (Pss) in bytes."""
        text = read_smaps(pid)
        if not text:
            return 0
        rss, pss = weir_bytes(text)
        if rss == 0:
            return 0  # not under Weir (yet)
        self.samples += 1
        self.max_plain_bytes = max(self.max_plain_bytes, rss)
        over = rss > self.budget_bytes
        if over and not self.may_stop:
            rss = self.lowest_of_several(pid, rss)
            self.overshoots += rss > self.budget_bytes
            self.refuted += rss <= self.budget_bytes
        if not over or not self.may_stop:
            self.max_bytes = max(self.max_bytes, rss)
        if not self.may_stop:
            return pss
        if over or self.samples % self.exact_every == 0:
            self.sample_exactly(pid, over)
        return pss

    def lowest_of_several(self, pid, rss):
        """The least of this reading and of others that follow it at once, in bytes; 0 when the process
        ended."""
        for _ in range(PLAIN_TRIES - 1):
            text = read_smaps(pid)
            rss = min(rss, weir_bytes(text)[0] if text else 0)
        return rss

    def sample_exactly(self, pid, suspected):
        """Takes a reading with the process stopped and judges it."""
        text = read_stopped(pid)
        if text is None:
            self.unchecked += suspected
            return
        rss, _ = weir_bytes(text)
        self.exact_samples += 1
        self.max_bytes = max(self.max_bytes, rss)
        self.max_exact_bytes = max(self.max_exact_bytes, rss)
        if rss > self.budget_bytes:
            self.overshoots += 1
        elif suspected:
            self.refuted += 1

    def finish(self):
        """Stops sampling and returns the findings as a dict (bytes and counts)."""
        self.ended.set()
        self.join()
        names = ("samples", "exact_samples", "overshoots", "refuted", "unchecked")
        sizes = ("max_bytes", "max_exact_bytes", "max_plain_bytes", "max_tree_bytes")
        return {name: getattr(self, name) for name in names + sizes}


def anon_bytes(pid):
    """Anonymous memory in RAM of one process, Weir's and all other, in bytes; 0 when the process is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            found = ANON.search(file.read())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


class AnonSampler(threading.Thread):
    """Reads the anonymous memory of `root` and its descendants until `finish` is called.

    budget_bytes: each process must stay at or below it and `slack_bytes` more; None only looks for the peak.
    """

    def __init__(self, root, budget_bytes=None, slack_bytes=0):
        super().__init__(daemon=True)
        self.root, self.limit_bytes = root, None if budget_bytes is None else budget_bytes + slack_bytes
        self.interval_s = PEAK_INTERVAL_S if budget_bytes is None else ANON_INTERVAL_S
        self.max_anon_bytes = self.max_anon_tree_bytes = self.anon_overshoots = self.anon_samples = 0
        self.ended = threading.Event()

    def run(self):
        while not self.ended.is_set():
            self.sample()
            self.ended.wait(self.interval_s)

    def sample(self):
        """Takes one reading of each process; what a child shares with its parent is counted in both."""
        sizes = [anon_bytes(pid) for pid in descendants(self.root)]
        self.anon_samples += 1
        self.max_anon_bytes = max([self.max_anon_bytes, *sizes])
        self.max_anon_tree_bytes = max(self.max_anon_tree_bytes, sum(sizes))
        if self.limit_bytes is not None:
            self.anon_overshoots += sum(size > self.limit_bytes for size in sizes)

    def finish(self):
        """Stops sampling and returns the findings as a dict (bytes and counts)."""
        self.ended.set()
        self.join()
        names = ("max_anon_bytes", "max_anon_tree_bytes", "anon_overshoots", "anon_samples")
        return {name: getattr(self, name) for name in names}
