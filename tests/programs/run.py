#!/usr/bin/env python3
"""Runs unmodified programs natively and under a reduced budget with `weir run`, and compares them.

Per program: the input is made, the program runs natively, which says how much anonymous memory it takes at
its peak, and it runs again under a share of that which programs.toml names. What it leaves behind must be
the same; samplers check from outside that the RAM of Weir, and all anonymous memory, stay within the budget.
Of a server and its client it is the server that is measured and has the budget.
A program that is missing is a failure which says what to install: nothing is skipped silently.
"""

import argparse
import concurrent.futures
import dataclasses
import glob
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from fractions import Fraction

try:
    import tomllib
except ImportError:
    sys.exit("programs: Python 3.11 or newer is needed (tomllib)")

import compare
import inputs
import processes
from sampler import EXACT_EVERY, AnonSampler, Sampler

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WEIR = pathlib.Path(os.environ.get("WEIR_BIN", ROOT / "target/release/weir"))
VENV = pathlib.Path(os.environ.get("WEIR_VENV", ROOT / "target/venv"))
# What a process may hold beyond its budget while nobody has looked: outside memory is measured a few times a
# second.
ANON_SLACK_BYTES = 16 << 20
# How long a server may take to end once it was asked to, or its client has ended.
END_S = 30
PAGE = 4096
ADDED_UP = ("pgfault", "pgmajfault", "zswpin", "zswpout", "pswpin", "pswpout")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Broken(Exception):
    """The program cannot be judged: it is missing, or fails without Weir."""


class Wrong(Exception):
    """The program behaves differently under Weir."""


@dataclasses.dataclass(frozen=True)
class Way:
    """How programs are run: as whom, and which of its ways Weir is made to take (None: its own choice).

    capability: one that a user other than root keeps.
    """

    pager: str | None = None
    faults: str | None = None
    user: int | None = None
    capability: str | None = None

    def native(self):
        """What stands before every program: nothing, or the loss of all privileges."""
        if self.user is None:
            return []
        ids = [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        kept = f"-all,+{self.capability}" if self.capability else "-all"
        caps = [f"--inh-caps={kept}", f"--bounding-set={kept}"]
        caps += [f"--ambient-caps={kept}"] if self.capability else []
        # setpriv still looks the program up with the old rights: env does so with the new ones.
        return ["setpriv", *ids, *caps, "env", "--"]

    def weir(self, budget, stats, options=("--swap", "none")):
        """What stands before a program that runs within `budget` bytes and leaves statistics in files
        `stats`."""
        prefix = ["env", f"WEIR_PAGER={self.pager}"] if self.pager else []
        prefix += [str(WEIR), "run", "--quiet", "--memory", str(budget), "--stats", str(stats)]
        prefix += ["--faults", self.faults] if self.faults else []
        return [*self.native(), *prefix, *options, "--"]

    def own(self, folder):
        """Makes the user the owner of a folder and all that is in it."""
        if self.user is not None:
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, self.user, self.user, follow_symlinks=False)

    def check(self):
        """Raises Broken when the user cannot be had, or cannot reach what the suite runs."""
        if self.user is None:
            return
        if not shutil.which("setpriv"):
            raise Broken("setpriv not found: install the package util-linux")
        for path in (WEIR, HERE):
            command = [*self.native(), "test", "-x", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Broken(f"user {self.user} cannot use {path}: {done.stderr.strip() or 'no permission'}")


def user_id(text):
    """The number of a user who is named or numbered."""
    try:
        return int(text) if text.isdigit() else pwd.getpwnam(text).pw_uid
    except KeyError:
        raise argparse.ArgumentTypeError(f"no user {text}") from None


def size(text):
    """Bytes of a size such as 24M."""
    number, unit = re.fullmatch(r"(\d+)([KMG]?)", str(text)).groups()
    return int(number) * UNITS[unit]


def human(count):
    """A size in MiB for the table."""
    return "-" if count is None else f"{count / (1 << 20):.1f}M"


class Program:
    """One row of programs.toml at one scale."""

    def __init__(self, row, scale, folder, way=Way()):
        self.row, self.name, self.folder, self.way = row, row["name"], pathlib.Path(folder), way
        self.values = {**row.get(scale, {})}
        self.timeout_s = self.values["timeout_s"]
        self.peak = self.setting("peak")
        self.runs = self.values.get("each", [[]])
        self.exact_every = EXACT_EVERY
        if row.get("own_user") and way.user is None and os.geteuid() == 0:
            self.way = dataclasses.replace(way, user=pwd.getpwnam("nobody").pw_uid)
        self.way = dataclasses.replace(self.way, capability=row.get("capability"))
        self.findings = {}

    def add_findings(self, found):
        """Joins what a sampler found in one of the runs: the largest of peaks, the sum of counts."""
        for key, value in found.items():
            join = max if key.startswith("max") else int.__add__
            self.findings[key] = join(self.findings.get(key, 0), value)

    def setting(self, key, default=None):
        """A value that the scale may set over the row."""
        return self.values.get(key, self.row.get(key, default))

    def check_needs(self):
        """Raises Broken with what to install."""
        path = self.environment()["PATH"]
        missing = [tool for tool in self.row.get("needs", []) if not shutil.which(tool, path=path)]
        if missing:
            raise Broken(f"{', '.join(missing)} not found: install the package {self.row['packages']}")
        if any("{venv}" in part for part in self.row["command"]):
            python = [*self.way.native(), str(VENV / "bin/python"), "-c", ""]
            if not (VENV / "bin/python").exists():
                raise Broken(f"no Python environment at {VENV}: run `make venv`")
            if subprocess.run(python, capture_output=True, check=False).returncode != 0:
                raise Broken(
                    f"the Python of {VENV} does not start: make that environment with one that all may run"
                )

    def environment(self):
        """The variables of everything that is run for this program."""
        env = {**os.environ, **self.row.get("env", {}), "TMPDIR": str(self.folder)}
        if self.way.user is not None:
            env["HOME"] = str(self.folder)
        # Programs that Debian keeps out of PATH, in a folder named after their version: the newest.
        found = sorted(glob.glob(self.row.get("path", "")))[-1:]
        return env | {"PATH": os.pathsep.join([*found, env.get("PATH", os.defpath)])}

    def values_of_runs(self):
        """What fills in the commands, once per run."""
        fixed = {
            "in": str(self.folder / "in"),
            "out": str(self.folder / "out"),
            "tmp": str(self.folder),
            "venv": str(VENV / "bin/python"),
            "root": str(ROOT),
            **self.values,
        }
        if "needs_python" in self.row:
            fixed["testpython"] = test_python(tuple(self.row["needs_python"]), self.way.native(), self.folder)
        for values in self.runs:
            yield fixed | {str(index): value for index, value in enumerate(values)}

    def commands(self):
        """The argument vectors, filled in: of each run the program's, and its client's or None."""
        for table in self.values_of_runs():
            client = self.row.get("client")
            yield filled(self.row["command"], table), client and filled(client, table)

    def budget(self, peak):
        """Bytes, whole pages."""
        wanted = int(peak * Fraction(self.row["fraction"]))
        return max(wanted, size(self.row["min_budget"])) // PAGE * PAGE

    def make_input(self):
        """Writes the input file, and prepares what must be prepared; the folder is the program's own."""
        inputs.GENERATORS[self.row.get("input", "nothing")](self.folder, self.values.get("amount", 0))
        self.way.own(self.folder)
        for template in self.row.get("prepare", []):
            command = [*self.way.native(), *filled(template, next(self.values_of_runs()))]
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
            )
            if done.returncode != 0:
                said, packages = done.stderr.strip()[-300:], self.row.get("packages", "none")
                raise Broken(f"{' '.join(template)}: {said} (packages: {packages})")

    def judge_text(self):
        """Raises Wrong when something forbidden was printed, or something required was not."""
        texts = {
            stream: (self.folder / stream).read_text(errors="replace") for stream in ("stdout", "stderr")
        }
        for pattern in self.row.get("require", []):
            printed = sum(len(re.findall(pattern, text)) for text in texts.values())
            if printed != len(self.runs):
                raise Wrong(f"printed `{pattern}` {printed} times in {len(self.runs)} runs")
        for stream, text in texts.items():
            for pattern in self.row.get("forbid", []):
                if hit := re.search(f".*{pattern}.*", text):
                    raise Wrong(f"printed: {hit[0].strip()[:200]}")
            # With --quiet, a word of Weir is an error message.
            if stream == "stderr" and (hit := re.search("^weir: .*", text, re.M)):
                raise Wrong(hit[0][:300])


def filled(template, table):
    """A command with the values in their places; lists among the values are spliced."""
    command = []
    for part in template:
        whole = re.fullmatch(r"\{(\w+)\}", part)
        if whole and isinstance(table[whole[1]], list):
            command += table[whole[1]]
        else:
            command.append(re.sub(r"\{(\w+)\}", lambda hit: str(table[hit[1]]), part))
    return command


def test_python(modules, prefix, folder):
    """A Python interpreter that has the given modules of its own test suite, as `prefix` and `folder` will
    have it run.

    Some of the modules write a file when they are imported.
    """
    asked = os.environ.get("WEIR_TEST_PYTHON")
    candidates = [asked] if asked else [sys.executable, "python3", "/usr/bin/python3"]
    code = f"import {', '.join(modules)}, sys; print(sys.executable)"
    for candidate in candidates:
        try:
            command = [*prefix, candidate, "-c", code]
            found = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
            )
        except OSError:
            continue
        if found.returncode == 0:
            return found.stdout.splitlines()[-1]
    raise Broken(
        f"no Python with {', '.join(modules)} (tried {', '.join(candidates)}): install libpython3-testsuite "
        "(Debian: libpython3.11-testsuite) or name an interpreter in WEIR_TEST_PYTHON"
    )


def run_one(program, command, client, prefix, budget):
    """Runs one command in the program's folder, for a server its client too; returns (status, seconds).

    What the samplers found goes to the program's findings, however the run ends; nothing that was started
    survives it.
    """
    folder, env = program.folder, program.environment()
    # What a server prints is its log; what is compared is what its client says.
    with open(folder / ("log" if client else "stdout"), "ab") as out, open(folder / "stderr", "ab") as err:
        began = time.monotonic()
        child = subprocess.Popen(
            prefix + command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=processes.without_huge_pages if budget is None else None,
        )
        slack = ANON_SLACK_BYTES + size(program.row.get("outside", "0"))
        samplers = [AnonSampler(child.pid, budget, slack)]
        if budget is not None:
            may_stop = program.row.get("may_stop", True)
            samplers.append(Sampler(child.pid, budget, may_stop, program.exact_every))
        for sampler in samplers:
            sampler.start()
        try:
            deadline = began + program.timeout_s
            status = serve(program, child, client, env, deadline) if client else child.wait(program.timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            for sampler in samplers:
                program.add_findings(sampler.finish())
            seconds = time.monotonic() - began
            processes.end(child)
    return status, seconds


def serve(program, server, client, env, deadline):
    """Runs a server's client to its end, then has the server end; the first status that is not 0, or 0."""
    with open(program.folder / "stdout", "ab") as out, open(program.folder / "stderr", "ab") as err:
        asking = subprocess.Popen(
            program.way.native() + client,
            cwd=program.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        # A server that has died need not be waited for: its client would ask for it in vain.
        while asking.poll() is None and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        status = asking.wait(max(0.0, min(END_S, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        if server.poll():
            raise Wrong(f"the server ended with {server.returncode}: {last_words(program.folder)}") from None
        raise
    finally:
        processes.end(asking, orphans=False)
    if status == 0 and "stop" in program.row and server.poll() is None:
        os.kill(server.pid, getattr(signal, f"SIG{program.row['stop']}"))
    return status or server.wait(max(0.0, min(END_S, deadline - time.monotonic())))


def last_words(folder):
    """The last lines that a program printed, where there are any on stderr from there."""
    texts = [(folder / stream).read_text(errors="replace").strip() for stream in ("stderr", "stdout")]
    return " / ".join((texts[0] or texts[1]).splitlines()[-3:])[-300:]


def run_all(program, prefix, budget=None):
    """Runs all commands of a program from a clean slate; returns (fingerprint, seconds)."""
    for name in ("stdout", "stderr", "log", "out"):
        (program.folder / name).unlink(missing_ok=True)
    total_s, program.findings = 0.0, {}
    for command, client in program.commands():
        status, seconds = run_one(program, command, client, prefix, budget)
        total_s += seconds
        shown = " ".join(command)[:150]
        if status is None:
            raise Wrong(f"hang: not finished after {program.timeout_s} s: {shown}")
        # A test suite may fail natively too, and then compares; but it must have written its report.
        if status != 0 and not (program.row["compare"] == "junit" and (program.folder / "out").exists()):
            raise Wrong(f"exit status {status}: {shown}: {last_words(program.folder)}")
    program.judge_text()
    return compare.fingerprint(program.row["compare"], program.folder), total_s


def natively(program):
    """A native run; its failure is the program's, not Weir's."""
    try:
        return run_all(program, program.way.native())
    except Wrong as wrong:
        raise Broken(f"fails without Weir: {wrong}") from wrong


def under_weir(program, budget):
    """A run under `weir run`; adds the statistics of all its processes, the largest where it is a peak."""
    for old in program.folder.glob("stats.*"):
        old.unlink()
    options = program.row.get("options", ["--swap", "none"])
    prefix = program.way.weir(budget, program.folder / "stats.%p", options)
    mark, seconds = run_all(program, prefix, budget)
    stats = {}
    for path in program.folder.glob("stats.*"):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            join = int.__add__ if key in ADDED_UP else max
            stats[key] = join(stats.get(key, 0), int(value))
    if not stats and program.row.get("reports", True) and program.row.get("must_fault", True):
        raise Wrong("no statistics were written: the engine never started")
    return mark, seconds, stats


def judge(program, row, conflicts, native, mark):
    """Raises Wrong when the reduced run differs or left its budget; fills in the table's row."""
    if changed := compare.differences(native, mark, conflicts):
        raise Wrong(f"{len(changed)} difference(s): " + "; ".join(changed[:6]))
    expected = compare.differences(native, mark)
    stale = [name for name in conflicts if not any(name in line for line in expected)]
    if stale:
        raise Wrong(f"listed as conflict but the same: {', '.join(stale)}")
    found, stats = row["sampler"], row["stats"]
    if stats.get("weir_peak_resident_bytes", 0) > row["budget"]:
        raise Wrong(
            f"own count above the budget of {row['budget']} bytes: {stats['weir_peak_resident_bytes']}"
        )
    if found["overshoots"]:
        raise Wrong(f"{found['overshoots']} sample(s) above the budget, at most {human(found['max_bytes'])}")
    if found["anon_overshoots"]:
        raise Wrong(
            f"anonymous memory in all: {human(found['max_anon_bytes'])} in one process, "
            f"budget {human(row['budget'])} (+ {human(ANON_SLACK_BYTES)}), "
            f"{found['anon_overshoots']} sample(s) above"
        )
    if not program.row.get("must_fault", True):
        return
    if found["samples"] == 0:
        raise Wrong("the sampler never saw memory of Weir: was the program managed at all?")
    if not program.row.get("reports", True):
        return
    if sum(stats.get(key, 0) for key in ("zswpin", "pswpin", "pgmajfault")) == 0:
        raise Wrong("no page ever came back from a tier: the budget did not bind")
    if program.row.get("must_swap", False) and not (stats.get("pswpout") and stats.get("pswpin")):
        raise Wrong(
            f"swap file: {stats.get('pswpout', 0)} pages written, {stats.get('pswpin', 0)} read: "
            "it was not needed"
        )


def check(program, options, conflicts):
    """Runs one program; returns the row of the table (a dict) with `result` ok, broken or wrong."""
    row = {
        "program": program.name,
        "native_s": None,
        "weir_s": None,
        "peak": None,
        "budget": None,
        "reason": "",
    }
    try:
        program.check_needs()
        program.make_input()
        native, row["native_s"] = natively(program)
        if options.native_only:
            row["peak"] = program.findings["max_anon_bytes"]
            again, row["weir_s"] = natively(program)
            if changed := compare.differences(native, again):
                raise Broken(f"two native runs differ: {'; '.join(changed[:6])}")
        else:
            row["peak"] = size(program.peak) if program.peak else program.findings["max_anon_bytes"]
            row["budget"] = program.budget(row["peak"])
            mark, row["weir_s"], row["stats"] = under_weir(program, row["budget"])
            row["sampler"] = program.findings
            judge(program, row, conflicts, native, mark)
            if row["sampler"]["samples"] == 0 and not program.row.get("must_fault", True):
                row["reason"] = "never needed the engine"
        row["result"] = "ok"
    except Broken as reason:
        row["result"], row["reason"] = "broken", str(reason)
    except Wrong as reason:
        row["result"], row["reason"] = "wrong", str(reason)
    row["sampler"] = program.findings
    return row


HEADER = (
    f"{'program':<24} {'native s':>8} {'weir s':>8} {'peak':>8} {'budget':>8} {'p/b':>5} "
    f"{'max RAM':>8} {'anon':>8} {'samples':>7} {'faults':>8}  result"
)


def table_line(row):
    """One line of the table for people."""

    def seconds(value):
        return "-" if value is None else f"{value:.1f}"

    found, stats = row.get("sampler") or {}, row.get("stats") or {}
    ratio = f"{row['peak'] / row['budget']:.2f}" if row["budget"] else "-"
    line = (
        f"{row['program']:<24} {seconds(row['native_s']):>8} {seconds(row['weir_s']):>8} "
        f"{human(row['peak']):>8} "
        f"{human(row['budget']):>8} {ratio:>5} {human(found.get('max_bytes')):>8} "
        f"{human(found.get('max_anon_bytes')):>8} {found.get('samples', '-'):>7} "
        f"{stats.get('pgfault', '-'):>8}  {row['result']}"
    )
    return line + (f": {row['reason']}" if row["reason"] else "")


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="run this program (may be repeated)")
    parser.add_argument("--scale", choices=("small", "full"), default="small")
    parser.add_argument("--pager", choices=("move", "copy", "segv"), help="force one way to move pages")
    parser.add_argument(
        "--faults", choices=("auto", "inline", "thread"), help="force one of the two ways to serve faults"
    )
    parser.add_argument(
        "--user", type=user_id, metavar="NAME|UID", help="run everything as this user, without capabilities"
    )
    parser.add_argument("--native-only", action="store_true", help="run natively twice and compare")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--exact", action="store_true", help="stop the program for every reading of its RAM")
    parser.add_argument("--table", default=HERE / "programs.toml", metavar="FILE", help="other programs")
    parser.add_argument("--jobs", type=int, default=1, help="run so many programs at the same time")
    parser.add_argument("--report", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folders of programs that did not pass")
    return parser.parse_args()


def is_chosen(row, only):
    """Whether a row of programs.toml is to be run."""
    return row["name"] in only if only else not row.get("when_named", False)


def in_turn(rows, data, options, way):
    """Runs the programs one after the other; yields the table's row of each, and what else is to be said."""
    for row in rows:
        conflicts = [entry["test"] for entry in data.get("conflict", []) if entry["program"] == row["name"]]
        folder = tempfile.mkdtemp(prefix=f"weir-{row['name']}-")
        program = Program(row, options.scale, folder, way)
        program.exact_every = 1 if options.exact else EXACT_EVERY
        try:
            result = check(program, options, conflicts)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        keeps = options.keep and result["result"] != "ok"
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)
        yield result, [f"    kept: {folder}"] if keeps else []


def at_once(rows, options):
    """Runs several programs at the same time, each by a runner of its own, which is the parent of what its
    program leaves behind. Those that may take longest come first. Yields as `in_turn` does."""
    running = {}

    def one(row):
        name = row["name"]
        with tempfile.TemporaryDirectory(prefix="weir-report-") as folder:
            report = pathlib.Path(folder, "report.json")
            command = [sys.executable, __file__, *same_options(options), "--only", name, "--report", report]
            running[name] = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
            printed, _ = running[name].communicate()
            if not report.exists():
                raise Broken(f"{name}: its runner ended with {running[name].returncode}, without a report")
            words = [line for line in printed.splitlines() if line.startswith("    ")]
            return json.loads(report.read_text())[0], words

    executor = concurrent.futures.ThreadPoolExecutor(options.jobs)
    rows = sorted(rows, key=lambda row: -row[options.scale]["timeout_s"])
    try:
        for done in concurrent.futures.as_completed([executor.submit(one, row) for row in rows]):
            yield done.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for runner in list(running.values()):
            if runner.poll() is None:
                runner.terminate()
        executor.shutdown()


def same_options(options):
    """The options that a runner of one program has in common with that of all."""
    given = {
        "--table": options.table,
        "--scale": options.scale,
        "--pager": options.pager,
        "--faults": options.faults,
        "--user": options.user,
    }
    words = [word for pair in given.items() if pair[1] is not None for word in pair]
    switches = {"--native-only": options.native_only, "--exact": options.exact, "--keep": options.keep}
    return words + [switch for switch, is_set in switches.items() if is_set]


def main():
    """Runs the chosen programs; the exit status is 0 when all passed."""
    options = arguments()
    with open(options.table, "rb") as file:
        data = tomllib.load(file)
    rows = data["program"]
    if options.list:
        print("\n".join(row["name"] for row in rows))
        return 0
    names = {row["name"] for row in rows}
    if unknown := set(options.only or ()) - names:
        sys.exit(f"programs: no such program: {', '.join(sorted(unknown))}")
    if not options.native_only and not os.access(WEIR, os.X_OK):
        sys.exit(f"programs: {WEIR} not found: run `make build` or set WEIR_BIN")
    way = Way(options.pager, options.faults, options.user)
    try:
        way.check()
    except Broken as reason:
        sys.exit(f"programs: {reason}")
    processes.take_charge()
    chosen = [row for row in rows if is_chosen(row, options.only)]
    results = []
    print(HEADER, flush=True)
    runs = at_once(chosen, options) if options.jobs > 1 else in_turn(chosen, data, options, way)
    for result, words in runs:
        results.append(result)
        print("\n".join([table_line(result), *words]), flush=True)
    if options.report:
        pathlib.Path(options.report).write_text(json.dumps(results, indent=2) + "\n")
    passed = sum(result["result"] == "ok" for result in results)
    print(f"{passed} passed, {len(results) - passed} failed")
    return 0 if passed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
