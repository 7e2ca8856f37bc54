"""Tests of the runner itself: a false answer, a hang, an overshoot or an idle engine must not pass.

`weir` is played by a small script here, so that each failure can be had on purpose.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import compare
import leftovers
import nobody
import processes
import run
import sampler

SMAPS = b"""\
200000000000-200000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
Rss:                 400 kB
Pss:                 200 kB
Swap:                  0 kB
7f0000000000-7f0000400000 rw-p 00000000 00:00 0                          [anon:weir-frames]
Size:               4096 kB
Rss:                  40 kB
Pss:                  40 kB
400065000000-400065bc7000 rw-p 00001000 fe:00 3151                       /usr/lib/classes.jsa
Rss:               11000 kB
Pss:               11000 kB
7f0000400000-7f0000800000 r-xp 00001000 08:01 1234                       /usr/lib/libc.so.6
Rss:                1000 kB
Pss:                  10 kB
"""

# Holds 24 MiB at the address that it is given; tells on stdout when they are touched, ends when stdin ends.
HOLDER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
size = 24 << 20
start = libc.mmap(int(sys.argv[1], 16), size, 3, 0x22 | 0x100000, -1, 0)
assert start == int(sys.argv[1], 16), start
ctypes.memset(start, 1, size)
print("ready", flush=True)
sys.stdin.read()
"""

# A server for tests: its argument is a file that says it is there. Ends well at SIGTERM, with a session and a
# child of its own.
SERVER = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.fork() == 0:
    os.setsid()
    pathlib.Path(sys.argv[1] + ".child").write_text(str(os.getpid()))
    time.sleep(60)
while not os.path.exists(sys.argv[1] + ".child"):
    time.sleep(0.01)
pathlib.Path(sys.argv[1]).write_text("here")
print("log", time.time_ns(), flush=True)
time.sleep(60)
"""

# Takes the arguments of `weir run`, writes statistics, runs the program.
FAKE_WEIR = """#!/bin/sh
while [ "$1" != -- ]; do
    [ "$1" = --stats ] && stats=$(echo "$2" | sed "s/%p/$$/")
    [ "$1" = --memory ] && memory=$2
    shift
done
shift
printf 'pgfault 10\\nzswpin {back}\\nweir_peak_resident_bytes {resident}\\n' > "$stats"
printf 'weir_peak_managed_bytes 50000000\\n' >> "$stats"
{before}
{run}
status=$?
{after}
exit $status
"""


def row(**changes):
    """A row of the table whose program prints one line."""
    base = {
        "name": "echo",
        "command": ["sh", "-c", "echo answer; {more}"],
        "compare": "stdout",
        "fraction": "1/2",
        "min_budget": "1M",
        "must_fault": False,
        "small": {"timeout_s": 5, "more": "true"},
    }
    return base | changes


class Runner(unittest.TestCase):
    """The runner against a `weir` that misbehaves."""

    def judge(
        self, table_row, back=1, resident=1, before="", after="", command='"$@"', conflicts=(), way=run.Way()
    ):
        """Runs one row and returns (result, reason)."""
        with tempfile.TemporaryDirectory() as folder:
            weir = pathlib.Path(folder) / "fake-weir"
            script = FAKE_WEIR.format(back=back, resident=resident, before=before, after=after, run=command)
            weir.write_text(script)
            weir.chmod(0o755)
            work = pathlib.Path(folder) / "work"
            work.mkdir()
            kept, run.WEIR = run.WEIR, weir
            try:
                options = argparse.Namespace(native_only=False)
                result = run.check(run.Program(table_row, "small", work, way), options, list(conflicts))
            finally:
                run.WEIR = kept
        return result["result"], result["reason"]

    def test_same_output_passes(self):
        self.assertEqual(self.judge(row()), ("ok", "never needed the engine"))

    def test_other_output_is_wrong(self):
        result, reason = self.judge(row(), after="echo more")
        self.assertEqual(result, "wrong")
        self.assertIn("weir only", reason)

    def test_other_status_is_wrong(self):
        result, reason = self.judge(row(), before="exit 3")
        self.assertEqual(result, "wrong")
        self.assertIn("exit status 3", reason)

    def test_hang_is_wrong(self):
        result, reason = self.judge(row(small={"timeout_s": 1, "more": "true"}), before="sleep 30")
        self.assertEqual(result, "wrong")
        self.assertIn("hang", reason)

    def test_native_failure_is_broken(self):
        result, reason = self.judge(row(small={"timeout_s": 5, "more": "exit 4"}))
        self.assertEqual(result, "broken")
        self.assertIn("without Weir", reason)

    def test_missing_program_names_the_package(self):
        result, reason = self.judge(row(needs=["no-such-tool"], packages="some-package"))
        self.assertEqual(result, "broken")
        self.assertIn("some-package", reason)

    def test_forbidden_output_fails(self):
        result, reason = self.judge(row(forbid=["corrupt"]), before="echo corrupt >&2")
        self.assertEqual(result, "wrong")
        self.assertIn("corrupt", reason)

    def test_run_that_did_nothing_is_wrong_where_its_words_are_required(self):
        table_row = row(compare="exit", require=["answer"])
        self.assertEqual(self.judge(table_row)[0], "ok")
        result, reason = self.judge(table_row, before="exit 0")
        self.assertEqual(result, "wrong")
        self.assertIn("0 times", reason)

    def test_word_of_weir_is_wrong(self):
        result, reason = self.judge(row(), after="echo weir: budget and pool are full >&2")
        self.assertEqual(result, "wrong")
        self.assertIn("pool are full", reason)

    def test_swap_file_that_was_not_needed_is_wrong_where_it_must_be(self):
        table_row = row(must_swap=True, must_fault=True, reports=True)
        program = run.Program(table_row, "small", "/nonexistent")
        found = {"samples": 1, "overshoots": 0, "max_bytes": 1, "anon_overshoots": 0}
        for pages, passes in ((0, False), (3, True)):
            stats = {"zswpin": 1, "pswpout": pages, "pswpin": pages}
            result = {"sampler": found, "stats": stats, "budget": 1 << 20}
            if passes:
                run.judge(program, result, [], "same", "same")
            else:
                self.assertRaisesRegex(run.Wrong, "swap file", run.judge, program, result, [], "same", "same")

    def test_options_of_a_row_take_the_place_of_no_swap(self):
        self.assertIn("none", run.Way().weir(1, "stats"))
        self.assertNotIn("none", run.Way().weir(1, "stats", ["--swap", "1G"]))

    def test_unmanaged_program_is_wrong(self):
        result, reason = self.judge(row(must_fault=True))
        self.assertEqual(result, "wrong")
        self.assertIn("never saw memory of Weir", reason)

    def test_own_count_above_the_budget_is_wrong(self):
        result, reason = self.judge(row(), resident=900_000_000)
        self.assertEqual(result, "wrong")
        self.assertIn("above the budget", reason)

    def test_anonymous_memory_above_the_budget_is_wrong_wherever_it_lies(self):
        holds = "import time; held = bytearray(b'1') * (48 << 20); time.sleep(0.5)"
        table_row = row(command=[sys.executable, "-c", holds], small={"timeout_s": 20})
        result, reason = self.judge(table_row | {"peak": "8M"})
        self.assertEqual(result, "wrong")
        self.assertIn("anonymous memory in all", reason)
        self.assertEqual(self.judge(table_row | {"peak": "96M"})[0], "ok")

    def test_peak_is_what_the_native_run_holds(self):
        holds = "import time; held = bytearray(b'1') * (48 << 20); time.sleep(0.5)"
        with tempfile.TemporaryDirectory() as folder:
            table_row = row(command=[sys.executable, "-c", holds], small={"timeout_s": 20})
            program = run.Program(table_row, "small", folder)
            result = run.check(program, argparse.Namespace(native_only=True), [])
        self.assertEqual(result["result"], "ok")
        self.assertTrue(48 << 20 <= result["peak"] < 80 << 20, result["peak"])

    def test_preparation_that_fails_is_broken_and_names_the_packages(self):
        prepare = [["sh", "-c", "echo no header >&2; exit 1"]]
        result, reason = self.judge(row(prepare=prepare, packages="some-package"))
        self.assertEqual(result, "broken")
        self.assertIn("no header", reason)
        self.assertIn("some-package", reason)

    def test_preparation_comes_before_the_program(self):
        table_row = row(prepare=[["sh", "-c", "echo made > {tmp}/made"]], command=["cat", "{tmp}/made"])
        self.assertEqual(self.judge(table_row)[0], "ok")

    def test_listed_conflict_that_is_none_is_wrong(self):
        result, reason = self.judge(row(), conflicts=["test_gone"])
        self.assertEqual(result, "wrong")
        self.assertIn("test_gone", reason)


class Servers(unittest.TestCase):
    """Servers and their clients."""

    judge = Runner.judge

    WAIT = "until [ -e {tmp}/here ]; do sleep 0.01; done;"

    def serve(self, client="echo answer", timeout_s=20, server=SERVER, **changes):
        """Runs a server with a client that waits for it (a line for sh); returns (result, reason)."""
        table_row = row(
            command=[sys.executable, "{tmp}/server", "{tmp}/here"],
            prepare=[["cp", str(self.script(server)), "{tmp}/server"]],
            client=["sh", "-c", f"{self.WAIT} mv {{tmp}}/here.child {self.note}; rm {{tmp}}/here; {client}"],
            small={"timeout_s": timeout_s, "more": ""},
            stop="TERM",
        )
        given = {key: value for key, value in (table_row | changes).items() if value is not None}
        return self.judge(given, command='exec "$@"')

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.note = pathlib.Path(self.folder.name) / "child"

    def tearDown(self):
        self.folder.cleanup()

    def script(self, text):
        """A file with this text."""
        path = pathlib.Path(self.folder.name) / "script"
        path.write_text(text)
        return path

    def test_server_that_is_asked_to_end_passes_whatever_it_logs(self):
        self.assertEqual(self.serve(), ("ok", "never needed the engine"))

    def test_process_of_a_server_does_not_outlive_it(self):
        self.assertEqual(self.serve()[0], "ok")
        self.assertFalse(pathlib.Path(f"/proc/{self.note.read_text()}").exists())

    def test_answers_of_the_client_are_compared(self):
        result, reason = self.serve("date +%N")
        self.assertEqual(result, "wrong")
        self.assertIn("weir only", reason)

    def test_client_that_fails_is_named(self):
        result, reason = self.serve("echo digest differs >&2; exit 5")
        self.assertEqual(result, "broken")
        self.assertIn("exit status 5", reason)
        self.assertIn("digest differs", reason)

    def test_server_that_dies_is_not_waited_for(self):
        began = time.monotonic()
        kept, run.END_S = run.END_S, 1
        try:
            dies = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
            result, reason = self.serve("sleep 60", timeout_s=50, server=dies)
        finally:
            run.END_S = kept
        self.assertEqual(result, "broken")
        self.assertIn("ended with -11", reason)
        self.assertLess(time.monotonic() - began, 20)

    def test_server_that_does_not_end_is_a_hang_and_is_killed(self):
        kept, run.END_S = run.END_S, 1
        try:
            stays = SERVER.replace("sys.exit(0)", "None")
            result, reason = self.serve(server=stays)
        finally:
            run.END_S = kept
        self.assertEqual(result, "broken")
        self.assertIn("hang", reason)
        self.assertFalse(pathlib.Path(f"/proc/{self.note.read_text()}").exists())

    def test_runner_that_is_told_to_end_leaves_no_server(self):
        code = (
            "import sys, json, run, processes; processes.take_charge(); "
            "run.natively(run.Program(json.loads(sys.argv[1]), 'small', sys.argv[2]))"
        )
        server = self.script(SERVER)
        table_row = row(
            command=[sys.executable, str(server), "{tmp}/here"],
            client=["sleep", "60"],
            small={"timeout_s": 50, "more": ""},
        )
        command = [sys.executable, "-c", code, json.dumps(table_row), self.folder.name]
        with subprocess.Popen(command, cwd=run.HERE) as runner:
            note = pathlib.Path(self.folder.name) / "here.child"
            deadline = time.monotonic() + 20
            while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
                time.sleep(0.01)
            pids = [int(note.read_text()), *sampler.descendants(runner.pid)[1:]]
            self.assertGreaterEqual(len(pids), 3)
            runner.terminate()
            self.assertEqual(runner.wait(20), 128 + signal.SIGTERM)
        self.assertEqual([pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()], [])

    def at_once(self, *commands):
        """Starts the runner with these commands as programs, two at a time."""
        table = pathlib.Path(self.folder.name) / "programs.toml"
        rows = [
            f'[[program]]\nname = "p{n}"\ncompare = "stdout"\nneeds = []\n'
            f"command = {json.dumps(command)}\nsmall = {{ timeout_s = {50 + n} }}\n"
            for n, command in enumerate(commands)
        ]
        table.write_text("".join(rows))
        options = ["--native-only", "--jobs", "2", "--table", str(table)]
        command = [sys.executable, str(run.HERE / "run.py"), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def test_programs_at_the_same_time_are_judged_and_counted_each(self):
        # Each waits for the other: one after the other they would never end.
        here = pathlib.Path(self.folder.name)
        wait = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n"
        wait += "while not pathlib.Path(sys.argv[2]).exists():\n    time.sleep(0.01)\n"
        pair = [[sys.executable, "-c", wait, str(here / a), str(here / b)] for a, b in ("xy", "yx")]
        with self.at_once(*pair, ["false"]) as runner:
            said, _ = runner.communicate(timeout=100)
        self.assertEqual(runner.returncode, 1)
        self.assertEqual(said.splitlines()[-1], "2 passed, 1 failed")
        self.assertRegex(said, r"p2 .* broken: fails without Weir")

    def test_programs_at_the_same_time_end_with_their_runner(self):
        here = pathlib.Path(self.folder.name)
        sleep = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(60)"
        with self.at_once(*[[sys.executable, "-c", sleep, str(here / n)] for n in "ab"]) as runner:
            deadline = time.monotonic() + 20
            while not all((here / n).exists() and (here / n).read_text() for n in "ab"):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            pids = sampler.descendants(runner.pid)[1:]
            runner.terminate()
            self.assertEqual(runner.wait(20), 128 + signal.SIGTERM)
        self.assertGreaterEqual(len(pids), 4)
        self.assertEqual([pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()], [])

    def test_server_that_ends_by_itself_needs_no_signal(self):
        ends = SERVER.replace('print("log"', 'time.sleep(1)\nsys.exit(0)\nprint("log"')
        self.assertEqual(self.serve(server=ends, stop=None)[0], "ok")


class Ways(unittest.TestCase):
    """As whom and by which of Weir's ways programs run."""

    NOBODY = 65534

    def test_forced_ways_are_told_to_weir(self):
        words = run.Way(pager="copy", faults="inline").weir(1 << 24, "stats.%p")
        self.assertEqual(words[:2], ["env", "WEIR_PAGER=copy"])
        self.assertEqual(words[words.index("--faults") + 1], "inline")
        self.assertEqual(words[-1], "--")

    def test_unforced_ways_are_weirs_choice(self):
        words = run.Way().weir(1 << 24, "stats.%p")
        self.assertEqual(words[:2], [str(run.WEIR), "run"])
        self.assertNotIn("--faults", words)
        self.assertEqual(run.Way().native(), [])

    def test_user_stands_before_weir_too(self):
        way = run.Way(user=self.NOBODY)
        words = way.weir(1 << 24, "stats.%p")
        self.assertEqual(words[: len(way.native())], way.native())

    def test_user_runs_without_privileges_in_a_folder_of_its_own(self):
        way = run.Way(user=self.NOBODY)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "in").write_text("input")
            if os.geteuid() != 0:
                with self.assertRaises(run.Broken):
                    way.check()
                return
            way.own(folder)
            script = "id -u; id -G; grep CapEff /proc/self/status; cat in; touch made && echo made"
            done = subprocess.run(
                [*way.native(), "sh", "-c", script], cwd=folder, capture_output=True, text=True, check=True
            )
        self.assertEqual(
            done.stdout.split(), ["65534", "65534", "CapEff:", "0" * 16, "inputmade"], done.stderr
        )

    def test_program_keeps_the_one_capability_that_its_row_names(self):
        if os.geteuid() != 0:
            words = run.Way(user=self.NOBODY, capability="ipc_lock").native()
            self.assertIn("--ambient-caps=-all,+ipc_lock", words)
            return
        program = run.Program(row(capability="ipc_lock"), "small", "/tmp", run.Way(user=self.NOBODY))
        command = [*program.way.native(), "grep", "CapEff", "/proc/self/status"]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
        self.assertEqual(int(done.stdout.split()[1], 16), 1 << 14)

    def test_server_that_refuses_root_is_run_as_nobody(self):
        user = run.Program(row(own_user=True), "small", "/tmp").way.user
        self.assertEqual(user, self.NOBODY if os.geteuid() == 0 else None)
        self.assertEqual(run.Program(row(own_user=True), "small", "/tmp", run.Way(user=4711)).way.user, 4711)

    def test_users_are_named_or_numbered(self):
        self.assertEqual(run.user_id("root"), 0)
        self.assertEqual(run.user_id("4711"), 4711)
        with self.assertRaises(argparse.ArgumentTypeError):
            run.user_id("no-such-user-here")


class Nobody(unittest.TestCase):
    """The run without privileges: only where there are none."""

    def ask(self, status, words=""):
        """The check against a user whose attempts to open userfaultfd end so."""
        kept = nobody.as_user
        nobody.as_user = lambda command: subprocess.CompletedProcess(command, status, "", words)
        try:
            nobody.check_unprivileged("python")
        finally:
            nobody.as_user = kept

    def test_user_without_permission_is_accepted(self):
        self.assertIsNone(self.ask(0))

    def test_user_who_may_open_userfaultfd_would_prove_nothing(self):
        with self.assertRaises(run.Broken) as caught:
            self.ask(1, "by the device")
        self.assertIn("by the device", str(caught.exception))

    def test_permission_of_the_asking_process_is_found(self):
        command = [
            sys.executable,
            "-c",
            nobody.ASK.replace("O_RDWR", "O_RDONLY").replace("/dev/userfaultfd", "/dev/null"),
            "-1",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr.split(":")[0]), (1, "by the device"))


class Leftovers(unittest.TestCase):
    """The search for what programs leave behind, with a `weir` that leaves things."""

    def search(self, before, how="exit"):
        """What is found after a run under a `weir` that first does `before`."""
        with tempfile.TemporaryDirectory() as folder:
            weir = pathlib.Path(folder) / "fake-weir"
            weir.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\n{before}\nexec "$@"\n')
            weir.chmod(0o755)
            kept, leftovers.WEIR, leftovers.WAIT_S = (leftovers.WEIR, leftovers.WAIT_S), weir, 1
            try:
                return leftovers.check(how, None)
            finally:
                leftovers.WEIR, leftovers.WAIT_S = kept

    def test_clean_end_passes(self):
        self.assertEqual(self.search("true"), "")

    def test_process_that_stays_is_found(self):
        with tempfile.NamedTemporaryFile("r") as note:
            reason = self.search(f"sleep 60 >/dev/null 2>&1 & echo $! > {note.name}")
            os.kill(int(note.read()), signal.SIGKILL)
        self.assertIn("sleep", reason)

    def test_file_that_stays_is_found(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            reason = self.search(f"mktemp {folder}-XXXXXX >/dev/null")
            for path in pathlib.Path("/dev/shm").glob(f"{pathlib.Path(folder).name}-*"):
                path.unlink()
        self.assertIn("file /dev/shm/", reason)

    def test_other_end_than_expected_is_found(self):
        self.assertIn("expected", self.search("set -- sh -c 'echo ready'", how="abort"))

    def test_program_that_is_not_managed_is_found(self):
        self.assertIn("does not run under Weir", self.search("true", how="kill"))


class Sampling(unittest.TestCase):
    """The sampler against text and against a process with memory in Weir's range."""

    def test_only_mappings_of_weir_count(self):
        self.assertEqual(sampler.weir_bytes(SMAPS), (440 * 1024, 240 * 1024))

    def observe(self, address, budget, may_stop=True):
        """What the sampler finds in a process that holds 24 MiB at an address."""
        command = [sys.executable, "-c", HOLDER, hex(address)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            self.assertEqual(child.stdout.readline(), b"ready\n")
            watch = sampler.Sampler(child.pid, budget, may_stop)
            for _ in range(20):
                watch.sample(child.pid)
            watch.start()
            return watch.finish()

    def test_process_above_its_budget_is_an_overshoot(self):
        found = self.observe(sampler.WEIR_RANGE[0], 16 << 20)
        self.assertGreaterEqual(found["overshoots"], 20)
        self.assertGreaterEqual(found["max_exact_bytes"], 24 << 20)

    def test_process_within_its_budget_is_none(self):
        found = self.observe(sampler.WEIR_RANGE[0], 64 << 20)
        self.assertEqual(found["overshoots"], 0)
        self.assertGreaterEqual(found["samples"], 20)
        self.assertGreaterEqual(found["exact_samples"], 2)
        self.assertGreaterEqual(found["max_bytes"], 24 << 20)

    def test_memory_elsewhere_is_not_weirs(self):
        self.assertEqual(self.observe(sampler.WEIR_RANGE[1], 16 << 20)["samples"], 0)

    def test_processes_that_must_not_be_stopped_are_judged_by_plain_readings(self):
        found = self.observe(sampler.WEIR_RANGE[0], 16 << 20, may_stop=False)
        self.assertEqual(found["exact_samples"], 0)
        self.assertGreaterEqual(found["overshoots"], 20)


class AnonSampling(unittest.TestCase):
    """The sampler of anonymous memory, against a child of a child that holds 24 MiB."""

    def observe(self, budget):
        """What is found in the holder's grandparent's tree."""
        holder = [sys.executable, "-c", HOLDER, hex(sampler.WEIR_RANGE[1])]
        command = ["sh", "-c", '"$@"; true', "sh", *holder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            self.assertEqual(child.stdout.readline(), b"ready\n")
            watch = sampler.AnonSampler(child.pid, budget, 1 << 20)
            for _ in range(5):
                watch.sample()
            watch.start()
            return watch.finish()

    def test_descendant_above_the_budget_is_an_overshoot(self):
        found = self.observe(16 << 20)
        self.assertGreaterEqual(found["anon_overshoots"], 5)
        self.assertGreaterEqual(found["max_anon_bytes"], 24 << 20)

    def test_descendant_within_the_budget_is_none(self):
        self.assertEqual(self.observe(128 << 20)["anon_overshoots"], 0)

    def test_each_process_is_judged_by_itself_and_the_tree_is_added_up(self):
        found = self.observe(None)
        self.assertEqual(found["anon_overshoots"], 0)
        self.assertGreater(found["max_anon_tree_bytes"], found["max_anon_bytes"])


class Comparing(unittest.TestCase):
    """Reports and differences."""

    def test_outcomes_are_read_from_a_report(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "out"
            report.write_text(
                '<testsuites><testsuite><testcase name="a"/>'
                '<testcase classname="c" name="b"><failure/></testcase>'
                '<testcase name="at 0x7f00aabbcc"><skipped/></testcase></testsuite></testsuites>'
            )
            self.assertEqual(compare.junit_outcomes(report), ["a passed", "at 0x- skipped", "c.b failure"])
            self.assertIn("no report", compare.junit_outcomes(report.with_name("none"))[0])

    def test_differences_name_both_sides_and_skip_conflicts(self):
        changed = compare.differences("a passed\nb passed", "a passed\nb failure")
        self.assertEqual(changed, ["native only: b passed", "weir only:   b failure"])
        self.assertEqual(compare.differences("a passed\nb passed", "a passed\nb failure", ["b "]), [])

    def test_budget_is_a_share_of_the_peak_in_whole_pages(self):
        program = run.Program(row(fraction="2/3", min_budget="1M"), "small", "/tmp")
        self.assertEqual(program.budget(3 * 4096 * 1000 + 5), 2 * 4096 * 1000)
        self.assertEqual(program.budget(10), 1 << 20)


if __name__ == "__main__":
    processes.take_charge()
    tests = unittest.TestLoader().loadTestsFromModule(sys.modules[__name__])
    outcome = unittest.TextTestRunner(verbosity=1).run(tests)
    bad = len(outcome.failures) + len(outcome.errors) + len(outcome.skipped)
    print(f"{outcome.testsRun - bad} passed, {bad} failed")
    sys.exit(0 if bad == 0 else 1)
