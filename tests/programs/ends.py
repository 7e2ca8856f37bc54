#!/usr/bin/env python3
"""What is told when a program ends, however it ends: the summary on stderr, and the statistics.

Programs that need more than their budget end in every way that there is. Their parent must see the end that
it would have seen without Weir, and their user must hear how long they waited."""

import json
import os
import pty
import re
import subprocess
import sys
import time

import checks
from run import WEIR

SECONDS = 120
# An end that waits for nobody.
SECONDS_TO_END = 30
# Needs three times its budget of 32M, and walks over it. `ready` is told at the end of the first walk.
PRELUDE = r"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
SIZE = 96 << 20
data = bytearray(SIZE)
def walk():
    for at in range(0, SIZE, 4096):
        if data[at : at + 7] != b"%07d" % (at // 4096):
            data[at : at + 7] = b"%07d" % (at // 4096)
            data[at + 7 : at + 800] = os.urandom(793)
walk()
walk()
"""
SUMMARY = re.compile(r"^weir: (\S+)(?: \(pid (\d+)\))? (finished in|was ended) .*waited.*\.$", re.M)


class Program:
    """A way to run Python programs under Weir, with one way to serve faults."""

    def __init__(self, faults, folder):
        self.faults, self.folder = faults, folder

    def command(self, code, options=()):
        """The command line of a program."""
        line = [str(WEIR), "run", "-m", "32M", "--faults", self.faults, *options]
        if "--stats" not in options:
            line += ["--stats", str(self.folder / "%p.stats")]
        line.append("--")
        return [*line, sys.executable, "-c", code]

    def run(self, code, options=(), prelude=PRELUDE):
        """Runs one to its end."""
        return subprocess.run(
            self.command(prelude + code, options),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def statistics(self):
        """What each process left, by its id."""
        found = {}
        for path in self.folder.glob("*.stats"):
            lines = (line.split() for line in path.read_text().splitlines())
            found[int(path.stem)] = {key: int(value) for key, value in lines}
        return found

    def ends(self, code, status, words, **keywords):
        """The program ends so, with one summary that has these words, and with statistics."""
        ran = self.run(code, **keywords)
        assert ran.returncode == status, told(ran)
        summaries = [line for line in ran.stderr.splitlines() if SUMMARY.match(line)]
        assert len(summaries) == 1 and words in summaries[0], told(ran)
        assert ran.stderr.count(" of 32 MiB in all") == 1, told(ran)
        assert "weir:" not in ran.stdout, told(ran)
        (counters,) = self.statistics().values()
        assert counters["weir_waited_ns"] > 0 and counters["weir_budget_bytes"] == 32 << 20, counters
        return ran


def told(ran):
    """What a program left, for a message."""
    return f"status {ran.returncode}: {ran.stdout[-300:]!r} {ran.stderr[-900:]!r}"


def a_program_that_returns_is_told_about(program):
    """At the end of `main`."""
    ran = program.ends("print('done')", 0, "finished in")
    assert ran.stdout == "done\n", told(ran)


def a_program_that_leaves_past_its_handlers_is_told_about(program):
    """`_exit`, and the system call behind it by libc's `syscall`."""
    program.ends("os._exit(3)", 3, "finished in")
    for path in program.folder.glob("*.stats"):
        path.unlink()
    program.ends("libc.syscall(231, 4)", 4, "finished in")


def death_by_a_signal_without_a_handler_is_told_and_seen_by_the_parent(program):
    """For each of the signals that are sent to end programs."""
    for name, number in (("SIGTERM", 15), ("SIGINT", 2), ("SIGHUP", 1)):
        code = f"signal.signal({number}, signal.SIG_DFL)\nos.kill(os.getpid(), {number})\nsignal.pause()\n"
        program.ends(code, -number, f"was ended by {name} after ")
        for path in program.folder.glob("*.stats"):
            path.unlink()


def an_interrupt_that_python_passes_on_is_told_about(program):
    """Its handler raises KeyboardInterrupt; at the end it restores the default and sends the signal again."""
    ran = program.ends("os.kill(os.getpid(), 2)\nsignal.pause()\n", -2, "was ended by SIGINT after ")
    assert "KeyboardInterrupt" in ran.stderr, told(ran)


FULL_PIPE = """
os.set_blocking(2, False)
try:
    while True: os.write(2, bytes(4096))
except BlockingIOError: os.set_blocking(2, True)
"""
STOPPED_TERMINAL = "import termios\ntermios.tcflow(2, termios.TCOOFF)\n"
ENDS = (("os.kill(os.getpid(), 15)\nsignal.pause()", -15), ("os._exit(3)", 3), ("sys.exit(4)", 4))


def nobody_has_to_read_what_is_told(program):
    """The end comes, and the statistics, also where stderr takes nothing."""
    for prepare, streams in ((FULL_PIPE, os.pipe), (STOPPED_TERMINAL, pty.openpty)):
        for end, status in ENDS:
            reader, writer = streams()
            with subprocess.Popen(program.command(PRELUDE + prepare + end), stderr=writer) as child:
                try:
                    assert child.wait(timeout=SECONDS_TO_END) == status, child.returncode
                finally:
                    child.kill()
            os.close(reader)
            os.close(writer)
            ((pid, counters),) = program.statistics().items()
            assert counters["weir_waited_ns"] > 0, counters
            (program.folder / f"{pid}.stats").unlink()


def nobody_may_be_there_to_read_it(program):
    """Then no signal ends the program: not without a reader of stderr, not where files may be no longer."""
    for end, status in ENDS:
        reader, writer = os.pipe()
        os.close(reader)
        command = program.command(PRELUDE + "signal.signal(13, signal.SIG_DFL)\n" + end)
        ran = subprocess.run(command, stderr=writer, timeout=SECONDS, check=False)
        os.close(writer)
        assert ran.returncode == status and program.statistics(), ran
    code = """
import resource
signal.signal(25, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
os._exit(3)
"""
    ran = program.run(code)
    assert ran.returncode == 3 and "weir: cannot write statistics to " in ran.stderr, told(ran)


def a_filter_that_the_kernel_refuses_changes_nothing(program):
    """Programs ask so whether there are filters. (What one that is taken changes: `ownseccomp.c`.)"""
    code = "assert libc.prctl(22, 2, 0, 0, 0) == -1\nos.kill(os.getpid(), 15)\nsignal.pause()\n"
    program.ends(code, -15, "was ended by SIGTERM after ")


def a_handler_of_the_program_and_a_signal_that_it_ignores_stay(program):
    """Nothing of Weir's comes between."""
    code = """
signal.signal(15, lambda *_: sys.exit(7))
signal.signal(1, signal.SIG_IGN)
os.kill(os.getpid(), 1)
print('still here', flush=True)
os.kill(os.getpid(), 15)
signal.pause()
"""
    ran = program.ends(code, 7, "finished in")
    assert ran.stdout == "still here\n", told(ran)


def a_signal_ignored_by_the_parent_stays_ignored(program):
    """As `nohup` has it."""
    code = "os.kill(os.getpid(), 1)\nprint('still here')\n"
    command = ["nohup", *program.command(PRELUDE + code)]
    with subprocess.Popen(
        command, cwd=program.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        out, err = child.communicate(timeout=SECONDS)
    assert (child.returncode, out) == (0, "still here\n"), (child.returncode, out, err)


def the_program_sees_the_default_action(program):
    """Flags and mask too, as it gave them, before and after it sets it again; and so does a child."""
    code = """
class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p)]
def seen():
    old = Action()
    assert libc.sigaction(15, None, ctypes.byref(old)) == 0
    return (old.handler, old.mask[0], old.flags & ~0x4000000)
first = seen()
new = Action(0, (ctypes.c_ulong * 16)(512), 0x10000000, 0)
old = Action()
assert libc.sigaction(15, ctypes.byref(new), ctypes.byref(old)) == 0
libc.signal.restype = ctypes.c_void_p
print(first, old.handler, seen(), libc.signal(15, 0), seen()[0])
"""
    ran = program.ends(code, 0, "finished in")
    assert ran.stdout == "(None, 0, 0) None (None, 512, 268435456) None None\n", told(ran)


def death_of_a_full_budget_is_told_about(program):
    """After the message that says what was full."""
    code = r"""
import mmap
a = mmap.mmap(-1, 256 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 256 << 20, 1 << 20): a[at : at + (1 << 20)] = os.urandom(1 << 20)
"""
    prelude = "import os; grown = bytearray(8 << 20)\n"
    ran = program.ends(code, -9, "with no room left", options=("--swap", "none"), prelude=prelude)
    assert ran.stderr.index("budget and pool are full") < ran.stderr.index("with no room left"), told(ran)


POOL = r"""
import multiprocessing
def work(n):
    global data
    data = bytearray(SIZE)
    walk()
    walk()
    return os.getpid()
if __name__ == '__main__':
    pool = multiprocessing.get_context('fork').Pool(2)
    pids = pool.map(work, range(2), chunksize=1)
    END
    pool.join()
    print(*sorted(set(pids)))
"""


def workers_of_a_pool_are_told_about(program):
    """By name and process id, whether they return or are terminated; the first process by its name alone."""
    for end in ("pool.close()", "pool.terminate()"):
        ran = program.run(POOL.replace("END", end), options=("--pool-max", "50"))
        assert ran.returncode == 0, told(ran)
        workers = {int(pid) for pid in ran.stdout.split()}
        summaries = SUMMARY.findall(ran.stderr)
        first = [name for name, pid, _ in summaries if not pid]
        assert len(first) == 1 and workers <= {int(pid) for _, pid, _ in summaries if pid}, told(ran)
        statistics = program.statistics()
        assert workers <= statistics.keys() and len(statistics) > len(workers), statistics.keys()
        assert all(statistics[pid]["weir_waited_ns"] > 0 for pid in workers), statistics
        for path in program.folder.glob("*.stats"):
            path.unlink()


def quiet_programs_are_told_nothing_about(program):
    """The statistics are written all the same."""
    ran = program.run("os.kill(os.getpid(), 15)\nsignal.pause()\n", options=("-q",))
    assert (ran.returncode, ran.stderr) == (-15, "") and len(program.statistics()) == 1, told(ran)


def statistics_are_json_where_their_name_says_so(program):
    """The same names as in lines; `-` and other names are lines."""
    program.run("", options=("--stats", "%p.json", "-q"))
    (counters,) = [json.loads(path.read_text()) for path in program.folder.glob("*.json")]
    assert counters["weir_waited_ns"] > 0 and counters["weir_budget_bytes"] == 32 << 20, counters
    program.run("", options=("-q",))
    (lines,) = program.statistics().values()
    assert lines.keys() == counters.keys(), lines.keys() ^ counters.keys()


def statistics_are_rewritten_while_a_program_runs(program):
    """Every reader finds a whole file, and nothing else is left."""
    options = ("--stats", "now.json", "--stats-interval", "0.1", "-q")
    file, seen = program.folder / "now.json", set()
    command = program.command(PRELUDE + "while True: walk()\n", options)
    with subprocess.Popen(command, cwd=program.folder) as child:
        try:
            deadline = time.monotonic() + SECONDS
            while len(seen) < 5 and time.monotonic() < deadline:
                if file.exists():
                    seen.add(json.loads(file.read_text())["pgfault"])
            child.terminate()
            child.wait(SECONDS)
        finally:
            child.kill()
    assert child.returncode == -15 and len(seen) == 5, (child.returncode, seen)
    assert [path.name for path in program.folder.iterdir()] == ["now.json"], list(program.folder.iterdir())
    assert json.loads(file.read_text())["pgfault"] >= max(seen), seen


def children_write_statistics_of_their_own_while_they_run(program):
    """To the file with their process id; without one in the name only the first process writes."""
    code = """
import time
child = os.fork()
deadline = time.monotonic() + 60
while child == 0 or not os.path.exists(f"{child}.json"):
    walk()
    assert time.monotonic() < deadline
os.kill(child, 9)
os.waitpid(child, 0)
"""
    ran = program.run(code, options=("--stats", "%p.json", "--stats-interval", "0.1", "-q"))
    assert ran.returncode == 0 and ran.stderr == "", told(ran)
    assert len(list(program.folder.glob("*.json"))) == 2, list(program.folder.iterdir())
    code = "child = os.fork()\nwalk()\nif child: os.waitpid(child, 0)\nelse: os._exit(0)\n"
    ran = program.run(code, options=("--stats", "one", "--stats-interval", "0.1", "-q"))
    names = [path.name for path in program.folder.iterdir() if path.suffix not in (".json", ".new")]
    assert ran.returncode == 0 and names == ["one"], (told(ran), names)


def stat(*options):
    """What `weir stat` says."""
    command = [str(WEIR), "stat", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def a_program_shows_its_counters_while_it_runs_and_no_longer(program):
    """To `weir stat`, by its id and in the list; whoever watches it ends with it."""
    command = program.command(PRELUDE + "print('ready', flush=True)\nwhile True: walk()\n", ("-q",))
    with subprocess.Popen(command, cwd=program.folder, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            seen = [json.loads(stat(child.pid, "--json").stdout) for _ in range(2)]
            assert seen[0]["weir_budget_bytes"] == 32 << 20 and seen[0]["pid"] == child.pid, seen[0]
            deadline = time.monotonic() + SECONDS
            while seen[-1]["pgfault"] == seen[0]["pgfault"] and time.monotonic() < deadline:
                seen.append(json.loads(stat(child.pid, "--json").stdout))
            assert seen[-1]["pgfault"] > seen[0]["pgfault"] > 0, seen[-1]
            listed = [one["pid"] for one in json.loads(stat("--json").stdout)]
            assert child.pid in listed, listed
            watch = [str(WEIR), "stat", str(child.pid), "--watch", "0.05"]
            with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
                assert watching.stdout.readline() == f"pid {child.pid}\n"
                child.kill()
                child.wait(SECONDS)
                watching.communicate(timeout=SECONDS)
            assert watching.returncode == 0, watching.returncode
        finally:
            child.kill()
    gone = stat(child.pid)
    assert gone.returncode == 1 and f"there is no process {child.pid}" in gone.stderr, gone


def each_process_of_a_tree_shows_its_own_counters(program):
    """A forked child has a page of its own, and a program that it becomes does not have its parent's."""
    code = """
child = os.fork()
if child == 0:
    del data
    data = bytearray(8 << 20)
    print('forked', flush=True)
    sys.stdin.readline()
    os.execvp('cat', ['cat'])
print(child, flush=True)
while os.waitpid(child, os.WNOHANG) == (0, 0): walk()
"""
    command = program.command(PRELUDE + code, ("-q",))
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=program.folder, text=True, **streams) as first:
        try:
            words = {first.stdout.readline().strip() for _ in range(2)}
            (child,) = words - {"forked"}
            pages = {pid: json.loads(stat(pid, "--json").stdout) for pid in (first.pid, int(child))}
            assert {page["pid"] for page in pages.values()} == pages.keys(), pages.keys()
            waited = [page["weir_waited_ns"] for page in pages.values()]
            assert waited[0] > waited[1], waited
            first.stdin.write("become cat\n")
            first.stdin.flush()
            deadline = time.monotonic() + SECONDS
            while stat(child).returncode == 0 and time.monotonic() < deadline:
                pass
            became = stat(child)
            assert became.returncode == 1 and "does not run under Weir" in became.stderr, became
            first.stdin.close()
            assert first.wait(SECONDS) == 0
        finally:
            first.kill()


WATCHED = r"""
def check():
    for at in range(0, SIZE, 4096):
        assert data[at : at + 7] == b"%07d" % (at // 4096), at
print('ready', flush=True)
while True: check()
"""


def the_budget_changes_while_a_program_runs(program):
    """Down, and up again, but not above what it was started with; nothing of its data is lost."""

    def within(pid, mib):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            seen = json.loads(stat(pid, "--json").stdout)
            held = seen["weir_resident_bytes"] + seen["weir_outside_bytes"]
            if seen["weir_budget_bytes"] == mib << 20 and held <= mib << 20:
                return True
        return False

    def ask(pid, size):
        command = [str(WEIR), "set", str(pid), "--memory", size]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)

    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = program.command(PRELUDE + WATCHED)
    with subprocess.Popen(command, cwd=program.folder, text=True, **streams) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            asked = ask(child.pid, "24M")
            assert asked.returncode == 0 and asked.stdout.endswith(": 24 MiB, was 32 MiB\n"), asked
            assert within(child.pid, 24), stat(child.pid)
            asked = ask(child.pid, "64M")
            assert asked.returncode == 1 and "no more than it was started with" in asked.stderr, asked
            assert within(child.pid, 32), stat(child.pid)
            assert ask(child.pid, "1M").returncode == 1 and ask(child.pid, "28M").returncode == 0
            assert child.poll() is None
            child.terminate()
            _, err = child.communicate(timeout=SECONDS)
        finally:
            child.kill()
    assert child.returncode == -15 and " of 32 MiB in all" in err, (child.returncode, err)


def what_is_no_regular_file_is_written_as_it_is(program):
    """A pipe is not replaced, and neither is a link."""
    (program.folder / "there").write_text("")
    (program.folder / "link").symlink_to("there")
    ran = program.run("", options=("--stats", "link", "--stats-interval", "0.1", "-q"))
    assert ran.returncode == 0 and (program.folder / "link").is_symlink(), told(ran)
    assert "pgfault " in (program.folder / "there").read_text()


def a_child_that_hardly_waited_is_not_mentioned(program):
    """A fork that ends at once."""
    code = "child = os.fork()\nif child == 0: os._exit(0)\nos.waitpid(child, 0)\n"
    ran = program.run(code)
    assert ran.returncode == 0 and len(SUMMARY.findall(ran.stderr)) == 1, told(ran)


def a_child_with_another_stderr_keeps_it_clean(program):
    """A daemon's file gets nothing of Weir's."""
    code = """
child = os.fork()
if child == 0:
    os.dup2(os.open('log', os.O_WRONLY | os.O_CREAT), 2)
    walk()
    walk()
    os._exit(0)
os.waitpid(child, 0)
"""
    ran = program.run(code)
    assert ran.returncode == 0 and (program.folder / "log").read_text() == "", told(ran)


def a_program_that_fits_hears_so_on_a_terminal_or_when_it_asks(program):
    """Small ones, without an engine, and large ones that fit their budget; else there is silence."""
    for code in ("pass", "grown = bytearray(12 << 20)"):
        quiet = program.run(code, prelude="")
        assert (quiet.returncode, quiet.stderr) == (0, ""), told(quiet)
        asked = program.run(code, prelude="", options=("-v",))
        assert re.match(r"weir: stayed at \d+ MiB, Weir was not needed\n", asked.stderr), told(asked)
        main, terminal = pty.openpty()
        streams = {"stdout": terminal, "stderr": terminal}
        ran = subprocess.run(program.command(code), **streams, timeout=SECONDS, check=False)
        os.close(terminal)
        assert ran.returncode == 0 and b", Weir was not needed" in os.read(main, 4096), ran
        os.close(main)


def a_program_that_crawls_is_warned_while_it_runs(program):
    """One line after ten seconds; then it is ended."""
    code = "while True: walk()\n"
    command = program.command(PRELUDE + code)
    with subprocess.Popen(command, cwd=program.folder, stderr=subprocess.PIPE, text=True) as child:
        try:
            warning = child.stderr.readline()
            child.terminate()
            child.communicate(timeout=SECONDS)
        finally:
            child.kill()
    assert child.returncode == -15, (child.returncode, warning)
    words = r"weir: \d+ % of the last \d+ s went to waiting for memory \(pid "
    words += rf"{child.pid}\): \d+ MiB are in use, the budget is 32 MiB\. "
    words += r"With --memory \d+M all would stay in RAM; less may do\n"
    assert re.fullmatch(words, warning), warning


CHECKS = [
    a_program_that_returns_is_told_about,
    a_program_that_leaves_past_its_handlers_is_told_about,
    death_by_a_signal_without_a_handler_is_told_and_seen_by_the_parent,
    an_interrupt_that_python_passes_on_is_told_about,
    nobody_has_to_read_what_is_told,
    nobody_may_be_there_to_read_it,
    a_filter_that_the_kernel_refuses_changes_nothing,
    a_handler_of_the_program_and_a_signal_that_it_ignores_stay,
    a_signal_ignored_by_the_parent_stays_ignored,
    the_program_sees_the_default_action,
    death_of_a_full_budget_is_told_about,
    workers_of_a_pool_are_told_about,
    quiet_programs_are_told_nothing_about,
    statistics_are_json_where_their_name_says_so,
    statistics_are_rewritten_while_a_program_runs,
    children_write_statistics_of_their_own_while_they_run,
    what_is_no_regular_file_is_written_as_it_is,
    a_program_shows_its_counters_while_it_runs_and_no_longer,
    each_process_of_a_tree_shows_its_own_counters,
    the_budget_changes_while_a_program_runs,
    a_child_that_hardly_waited_is_not_mentioned,
    a_child_with_another_stderr_keeps_it_clean,
    a_program_that_fits_hears_so_on_a_terminal_or_when_it_asks,
    a_program_that_crawls_is_warned_while_it_runs,
]


if __name__ == "__main__":
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(Program)))
