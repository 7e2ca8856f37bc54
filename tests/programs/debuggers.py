#!/usr/bin/env python3
"""Programs under `weir run` with gdb, strace, and another process that reads their memory: what
docs/debugging.md says."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import checks
from run import WEIR

BUDGET = 32 << 20
LIMIT_S = 120

# 96 MiB of numbers, so most of the pages are out when the first sum is known.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
long *array;
enum { N = 12 << 20 };
int main(int count, char **arguments) {
    array = malloc(N * sizeof *array);
    for (long i = 0; i < N; i++) array[i] = i;
    long sum = 0;
    for (long i = 0; i < N; i++) sum += array[i];
    printf("sum %ld\n", sum);
    if (count > 1) {
        printf("%p %s\n", (void *)array, arguments[1]);
        fflush(stdout);
        getchar();
    }
    puts(sum == (long)N * (N - 1) / 2 ? "right" : "wrong");
    return 0;
}
"""

# Process, address: what the first MiB there says to process_vm_readv.
READER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
into = (ctypes.c_long * (1 << 17))()
here, there = Part(ctypes.addressof(into), 1 << 20), Part(int(sys.argv[2], 16), 1 << 20)
got = libc.process_vm_readv(int(sys.argv[1]), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
print(got if got < 0 else list(into) == list(range(1 << 17)), os.strerror(ctypes.get_errno()))
"""


def run(command, folder, **options):
    """A command's output and status; bounded."""
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        **options,
    )


def weir(faults):
    """The words before a program."""
    return [str(WEIR), "run", "--quiet", "--memory", str(BUDGET), "--faults", faults, "--"]


BRING = "((int (*)(void *, void *, unsigned long)) memcmp)(array, array, 4096)"


def gdb(folder, words):
    """What gdb says to some of its commands about the program, up to its end."""
    begin = ["set pagination off", "set debuginfod enabled off"]
    middle = ["break puts", "run", "up", "print sum"]
    words = [*begin, *words[0], *middle, *words[1], "delete", "continue"]
    commands = [part for word in words for part in ("-ex", word)]
    ran = run(["gdb", "-q", "-batch", "-nx", *commands, "./program"], folder)
    return ran.stdout, ran.stderr


def refusal(folder):
    """Why gdb cannot call the program's functions here, without Weir; "" when it can. (gdb 13 cannot where
    the processor's registers are larger than it allows values to be.)"""
    said, complaints = gdb(folder, ([], [f"call {BRING}"]))
    assert "$1 = 79164830908416" in said, f"gdb does not work natively: {said[-500:]} {complaints[-500:]}"
    if re.search(r"^\$2 = 0$", said, re.MULTILINE):
        return ""
    assert complaints.strip(), f"gdb neither called the function nor said why: {said[-500:]}"
    return complaints.strip().splitlines()[-1]


def with_gdb(folder, faults):
    """Breakpoints, a page that is out and comes, a change, and the right end. What gdb cannot do natively it
    refuses with the same words."""
    refused = refusal(folder)
    before = [f"set exec-wrapper {' '.join(weir(faults))}", "handle SIGBUS SIGSYS nostop noprint pass"]
    after = [
        "print array[100]",
        f"call {BRING}",
        "print array[100]",
        "print array[101] = 7",
        "x/2gd &array[100]",
    ]
    said = "".join(gdb(folder, (before, after)))
    expected = [r"hit Breakpoint 1", r"\$1 = 79164830908416", r"Cannot access memory at address 0x[0-9a-f]+"]
    if refused:
        expected += [re.sub(r"0x[0-9a-f]+|\d+", "[0-9a-fx]+", re.escape(refused))]
    else:
        expected += [r"\$2 = 0", r"\$3 = 100", r"\$4 = 7", r"0x[0-9a-f]+:\s100\s7"]
    expected += [
        r"sum 79164830908416\nright",
        # gdb 13 loses any program that ends with several threads, natively too, about four times in ten.
        r"exited normally|Couldn't get registers: No such process",
    ]
    for word in expected:
        assert re.search(word, said), f"gdb did not say {word!r}: {said[-1500:]}"


def with_strace(folder, faults):
    """The program's output and status, and a trace of its calls."""
    ran = run(["strace", "-f", "-o", "trace", *weir(faults), "./program"], folder)
    assert (ran.returncode, ran.stdout) == (
        0,
        "sum 79164830908416\nright\n",
    ), f"{ran.returncode}: {ran.stdout} {ran.stderr}"
    trace = (folder / "trace").read_text(errors="replace")
    assert "sum 79164830908416" in trace and "+++ exited with 0 +++" in trace, "no trace of the program"


def read_by_another(folder, faults):
    """Memory that is out is read by another process where a thread serves faults, and is EFAULT where none
    does."""
    with subprocess.Popen(
        [*weir(faults), "./program", "wait"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout.readline() == "sum 79164830908416\n", "no sum"
            address = child.stdout.readline().split()[0]
            ran = run([sys.executable, "-c", READER, str(child.pid), address], folder)
            expected = "True Success\n" if faults == "thread" else "-1 Bad address\n"
            assert ran.stdout == expected, f"{ran.stdout!r} instead of {expected!r}: {ran.stderr}"
            said, _ = child.communicate("\n", timeout=LIMIT_S)
            assert (child.returncode, said) == (0, "right\n"), f"{child.returncode}: {said}"
        finally:
            child.kill()


def main():
    """Runs every check in both modes."""
    for tool in ("gdb", "strace", "cc"):
        if shutil.which(tool) is None:
            sys.exit(f"debuggers: {tool} not found: install the packages gdb, strace, gcc")
    with tempfile.TemporaryDirectory(prefix="weir-debuggers-") as name:
        folder = pathlib.Path(name)
        (folder / "program.c").write_text(PROGRAM)
        subprocess.run(["cc", "-g", "-O0", "program.c", "-o", "program"], cwd=folder, check=True)
        suite = (with_gdb, with_strace, read_by_another)
        return checks.main(__doc__, suite, lambda faults: lambda check: check(folder, faults))


if __name__ == "__main__":
    sys.exit(main())
