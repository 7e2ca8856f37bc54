#!/usr/bin/env python3
"""The C library: `tests/c/library.c` against the shared and the static one, with sanitizers and as C++; the
program of docs/c.md; header, source and exported symbols name the same functions."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CRATE = ROOT / "crates/weir-c"
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug"
SECONDS = 120
WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
LIBRARIES = ["-lpthread", "-ldl", "-lm"]


def run(command, timeout=SECONDS, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


class Tree:
    """Header and libraries under the names that they have when they are installed."""

    def __init__(self, folder):
        self.folder = folder
        self.include = CRATE / "include"
        (folder / "shared").mkdir()
        (folder / "static").mkdir()
        (folder / "shared/libweir.so").symlink_to(TARGET / "libweir_c.so")
        (folder / "shared/libweir.so.0").symlink_to(TARGET / "libweir_c.so")
        (folder / "static/libweir.a").symlink_to(TARGET / "libweir_c.a")

    def build(self, source, kind, *options):
        program = self.folder / f"{source.stem}-{kind}{len(options)}"
        command = ["cc", *WARNINGS, *options, "-I", self.include, source, "-o", program]
        run([*command, "-L", self.folder / kind, "-lweir", *LIBRARIES])
        return program

    def start(self, program, **variables):
        return run([program], env=os.environ | {"LD_LIBRARY_PATH": str(self.folder / "shared")} | variables)


def passes(output):
    last = output.strip().splitlines()[-1]
    assert re.fullmatch(r"\d{3} passed, 0 failed", last), output


def shared(tree):
    passes(tree.start(tree.build(ROOT / "tests/c/library.c", "shared")))


def static(tree):
    passes(tree.start(tree.build(ROOT / "tests/c/library.c", "static")))


def with_sanitizers(tree):
    program = tree.build(ROOT / "tests/c/library.c", "shared", *SANITIZERS)
    passes(tree.start(program, ASAN_OPTIONS="detect_leaks=1:allow_user_segv_handler=1:handle_segv=0"))


def as_cxx(tree):
    source = tree.folder / "use.cc"
    source.write_text("#include <weir.h>\nint main() { return weir_version()[0] == 0; }\n")
    program = tree.folder / "use"
    command = ["c++", "-Wall", "-Werror", "-I", tree.include, source, "-o", program]
    run([*command, "-L", tree.folder / "shared", "-lweir"])
    tree.start(program)


def the_guides_program(tree):
    text = (ROOT / "docs/c.md").read_text()
    programs = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    assert programs, "docs/c.md has no program"
    for number, program in enumerate(programs):
        source = tree.folder / f"guide{number}.c"
        source.write_text(program)
        tree.start(tree.build(source, "shared"))


def names_agree(tree):
    header = (CRATE / "include/weir.h").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    declared = set(re.findall(r"\b(weir_\w+)\(", code))
    source = "".join(path.read_text() for path in sorted((CRATE / "src").glob("*.rs")))
    defined = set(re.findall(r'pub (?:unsafe )?extern "C" fn (weir_\w+)', source))
    lines = run(["nm", "-D", "--defined-only", TARGET / "libweir_c.so"]).splitlines()
    exported = {line.split()[-1] for line in lines}
    assert declared == defined == exported, f"{declared ^ defined} {declared ^ exported}"
    fields = re.search(r"struct weir_pool_stats \{(.*?)\}", code, re.DOTALL)[1]
    fields = re.findall(r"uint64_t (\w+);", fields)
    ours = re.search(r"pub struct WeirStats \{(.*?)\}", source, re.DOTALL)[1]
    assert fields == re.findall(r"(\w+): u64", ours), "weir_pool_stats has other fields than the library's"


def main():
    # The same choice of packages and features as in the suites of tests: nothing is built twice.
    workspace = ["cargo", "build", "-q", "--workspace", "--features=weir-bench/experiments", "--lib"]
    run(workspace, cwd=ROOT, timeout=600)
    failed = 0
    checks = [names_agree, shared, static, with_sanitizers, as_cxx, the_guides_program]
    for check in checks:
        with tempfile.TemporaryDirectory(prefix="weir-c-") as folder:
            try:
                check(Tree(pathlib.Path(folder)))
                print(f"ok   {check.__name__}", flush=True)
            except (AssertionError, OSError, subprocess.TimeoutExpired) as reason:
                failed += 1
                print(f"FAIL {check.__name__}: {reason}", flush=True)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
