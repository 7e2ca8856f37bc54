#!/usr/bin/env python3
"""What users install: that it is complete, works from where it lies, and goes without a trace.

Made of the release build that is there. Nothing is installed on this machine: all of it goes to folders of
its own."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import checks
from run import ROOT, WEIR

BUILD = WEIR.parent
SECONDS = 120
MIB = 1 << 20

# The tree that `make install` makes, below PREFIX.
TREE = """
bin/weir
lib/weir/libweir_preload.so
share/bash-completion/completions/weir
share/doc/weir/CHANGELOG.md
share/doc/weir/LICENSE-APACHE
share/doc/weir/LICENSE-MIT
share/doc/weir/README.md
share/doc/weir/third-party-licences.txt
share/fish/vendor_completions.d/weir.fish
share/man/man1/weir-bench.1
share/man/man1/weir-completions.1
share/man/man1/weir-config.1
share/man/man1/weir-demo.1
share/man/man1/weir-doctor.1
share/man/man1/weir-man.1
share/man/man1/weir-run.1
share/man/man1/weir-serve.1
share/man/man1/weir-set.1
share/man/man1/weir-stat.1
share/man/man1/weir-top.1
share/man/man1/weir.1
share/zsh/site-functions/_weir
""".split()

# Works on twice its budget, and says whether the library is there and every byte was right.
JOB = """
data = bytearray(64 << 20)
for at in range(0, len(data), 4096):
    data[at : at + 4096] = (b"%07d " % (at >> 12)) * 512
right = all(data[at : at + 8] == b"%07d " % (at >> 12) for at in range(0, len(data), 4096))
print("libweir_preload.so" in open("/proc/self/maps").read(), right)
"""


def told(command, **options):
    """What a command says on stdout; AssertionError when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{command}: status {done.returncode}: {(done.stdout + done.stderr)[-800:]}"
    return done.stdout


def make(goal, **variables):
    """Runs a goal of the Makefile on the build under test."""
    words = [f"{name}={value}" for name, value in {"BUILD": BUILD, **variables}.items()]
    return told(["make", "-s", "-C", ROOT, goal, *words])


def installed(folder):
    """The folder below which everything was installed into a folder."""
    make("install", DESTDIR=folder, PREFIX="/usr")
    return folder / "usr"


def entries(folder, files_only=False):
    """Paths of everything below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file() or not files_only)
    return sorted(str(path.relative_to(folder)) for path in found)


def works(weir, python=sys.executable, **options):
    """Runs a program larger than its budget, without variables that would help to find the library."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "LD_"))}
    command = [weir, "run", "--quiet", "--memory", "32M", "--", python, "-c", JOB]
    said = told(command, env=env, cwd="/", **options).strip()
    assert said == "True True", f"the library is loaded, the data is right: {said}"


def the_installed_tree_is_complete_and_works_from_anywhere(folder):
    make("install", DESTDIR=folder / "stage", PREFIX="/opt/weir")
    (folder / "stage/opt/weir").rename(folder / "moved")
    there = entries(folder / "moved", files_only=True)
    assert there == TREE, f"differs: {sorted(set(there) ^ set(TREE))}"
    for path in there:
        mode = (folder / "moved" / path).stat().st_mode & 0o777
        assert mode == (0o755 if path == "bin/weir" else 0o644), f"{path}: {mode:o}"
    works(folder / "moved/bin/weir")


def binary_and_library_are_stripped_and_small(folder):
    usr = installed(folder)
    for name in ("bin/weir", "lib/weir/libweir_preload.so"):
        path = usr / name
        assert path.stat().st_size < 4 * MIB, f"{name}: {path.stat().st_size} bytes"
        sections = told(["readelf", "--wide", "--section-headers", path])
        assert ".debug_info" not in sections and ".symtab" not in sections, f"{name} is not stripped"


def every_command_has_a_manual_page_that_can_be_shown(folder):
    shown = re.search(r"Commands:\n(.*?)\n\n", told([WEIR, "--help"]), re.S).group(1)
    commands = {line.split()[0] for line in shown.splitlines()} - {"help", "version"}
    pages = {path.removeprefix("share/man/man1/weir-").removesuffix(".1") for path in TREE if "weir-" in path}
    assert pages == commands, f"differs: {pages ^ commands}"
    for page in sorted((installed(folder) / "share/man/man1").iterdir()):
        text = told(["sh", "-c", 'man --warnings --local-file "$0" 2>&1', page])
        assert "SYNOPSIS" in text and ": warning:" not in text, f"{page.name}: {text[:300]}"


def completions_are_programs_of_their_shells(folder):
    share = installed(folder) / "share"
    told(["bash", "-n", share / "bash-completion/completions/weir"])
    assert (share / "zsh/site-functions/_weir").read_text().startswith("#compdef weir\n")
    assert "complete -c weir" in (share / "fish/vendor_completions.d/weir.fish").read_text()


def licences_of_all_that_is_linked_are_there(folder):
    text = (installed(folder) / "share/doc/weir/third-party-licences.txt").read_text()
    for crate in ("clap", "ring", "talc", "lz4-sys", "zstd-sys", "tikv-jemalloc-sys", "libc"):
        assert re.search(rf"^{crate} \d[^ ]*: \S+$", text, re.M), f"no licence of {crate}"
    assert "Jason Evans" in text and "Meta Platforms" in text, "those of jemalloc and zstd themselves"


def uninstall_leaves_everything_as_it_was(folder):
    for path in TREE:
        usual = (folder / "usr" / path).parent
        (usual.parent if usual.name == "weir" else usual).mkdir(parents=True, exist_ok=True)
    other = folder / "usr/bin/weird"
    other.write_text("somebody else's")
    before = entries(folder)
    installed(folder)
    installed(folder)
    assert len(entries(folder)) > len(before)
    make("uninstall", DESTDIR=folder, PREFIX="/usr")
    assert entries(folder) == before, f"differs: {set(entries(folder)) ^ set(before)}"
    make("uninstall", DESTDIR=folder, PREFIX="/usr")


def without_a_build_install_says_what_to_do(folder):
    try:
        make("install", BUILD=folder, DESTDIR=folder / "stage")
    except AssertionError as reason:
        assert "first `make build`" in str(reason), reason
    else:
        raise AssertionError("it installed what is not there")
    assert not (folder / "stage").exists()


CHECKS = [
    the_installed_tree_is_complete_and_works_from_anywhere,
    binary_and_library_are_stripped_and_small,
    every_command_has_a_manual_page_that_can_be_shown,
    completions_are_programs_of_their_shells,
    licences_of_all_that_is_linked_are_there,
    uninstall_leaves_everything_as_it_was,
    without_a_build_install_says_what_to_do,
]


def in_a_folder(_faults):
    """A way to run one check: with a folder that everybody may read."""

    def perform(check):
        with tempfile.TemporaryDirectory(prefix="weir-packages-", dir="/var/tmp") as name:
            os.chmod(name, 0o755)
            check(pathlib.Path(name))

    return perform


if __name__ == "__main__":
    make("licences")
    sys.exit(checks.main(__doc__, CHECKS, in_a_folder, modes=("auto",)))
