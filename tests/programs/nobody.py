#!/usr/bin/env python3
"""Runs the programs suite as a user without any privilege: `nobody.py ARG...`, the ARGs being those of
`run.py`.

The repository, the build folder and the interpreter of the Python environment may lie where that user cannot
look, below the home of root for example. So all that the suite runs is copied to a folder that everybody may
read, with an environment made by an interpreter that everybody may run. It is checked first that the user
really has no permission for userfaultfd: else the run would prove nothing."""

import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

import run

USER = "nobody"
LIBRARY = "libweir_preload.so"
PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
SYSTEM_CALLS = {"x86_64": 323, "aarch64": 282}

# Exits with 1 when a userfaultfd that serves kernel-mode faults can be had.
ASK = """
import ctypes, os, sys
if ctypes.CDLL(None).syscall(int(sys.argv[1]), os.O_CLOEXEC) >= 0:
    sys.exit("by the system call: sysctl vm.unprivileged_userfaultfd=0")
try:
    os.open("/dev/userfaultfd", os.O_RDWR)
except OSError:
    sys.exit(0)
sys.exit("by the device: chmod o= /dev/userfaultfd")
"""


def as_user(command, **options):
    """Runs a command as the user, without capabilities."""
    prefix = run.Way(user=run.user_id(USER)).native()
    return subprocess.run(
        [*prefix, *map(str, command)], cwd="/", capture_output=True, text=True, check=False, **options
    )


def python_for_all():
    """An interpreter that the user can run and make environments of."""
    for python in dict.fromkeys(os.path.realpath(path) for path in PYTHONS):
        if os.path.exists(python) and as_user([python, "-c", "import venv, ensurepip"]).returncode == 0:
            return python
    raise run.Broken(
        f"no Python that {USER} can run (tried {', '.join(PYTHONS)}): install python3 and python3-venv"
    )


def check_unprivileged(python):
    """Raises Broken where the user could have what inline faults must do without."""
    number = SYSTEM_CALLS.get(platform.machine())
    if number is None:
        raise run.Broken(f"not known for {platform.machine()}: the number of userfaultfd(2)")
    asked = as_user([python, "-c", ASK, number])
    if asked.returncode != 0:
        raise run.Broken(f"{USER} may open userfaultfd, so nothing would be proven: {asked.stderr.strip()}")


def copy_everything(folder, python):
    """Weir, the suite and a Python environment, as everybody may use them; returns the variables that name
    them."""
    shutil.copy2(run.WEIR, folder / "weir")
    shutil.copy2(run.WEIR.with_name(LIBRARY), folder / LIBRARY)
    suite = folder / "tests/programs"
    shutil.copytree(run.HERE, suite, ignore=shutil.ignore_patterns("__pycache__"))
    venv = folder / "venv"
    subprocess.run([python, "-m", "venv", venv], check=True)
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", suite / "requirements.txt"], check=True)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    return {"WEIR_BIN": str(folder / "weir"), "WEIR_VENV": str(venv)}


def main():
    """Prepares, runs the suite, cleans up; the exit status is the suite's."""
    if os.geteuid() != 0:
        sys.exit(f"programs: only root can become {USER}: run this as root")
    try:
        python = python_for_all()
        check_unprivileged(python)
        with tempfile.TemporaryDirectory(prefix="weir-nobody-") as name:
            folder = pathlib.Path(name)
            variables = copy_everything(folder, python)
            command = [python, folder / "tests/programs/run.py", "--user", USER, *sys.argv[1:]]
            return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode
    except (run.Broken, OSError, subprocess.CalledProcessError) as reason:
        sys.exit(f"programs: {reason}")


if __name__ == "__main__":
    sys.exit(main())
