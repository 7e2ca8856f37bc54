#!/usr/bin/env python3
"""The documents that users read: the site is built, and what stands in its pages as code is true.

A block says by its language what becomes of it. `sh` is run and must end with 0. Of `console` each line
behind "$ " is run, and says what is shown: numbers and units may differ, lines may be broken elsewhere, and
"..." stands for anything. `python` is run, or kept as a file where its first line names one; so is `c`.
`toml`, `json` and `yaml` are parsed. `text` is a picture, or what something said elsewhere. A block that
cannot be run says so behind its language, with the reason: `sh (not run: needs Docker)`. Its commands of
Weir's and its goals of make exist all the same.

All blocks of a page are run in one folder, on what `make install` puts there. The crates are checked too:
what would be published is complete by itself."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib

import checks
from packages import make, told
from run import ROOT, VENV, WEIR

sys.path.insert(0, str(ROOT / "docs/site"))
import book

SECONDS = 120
CRATES = ("weir-os", "weir")
# Blocks that another suite runs: page, language, the words there that prove it.
ELSEWHERE = {
    ("docs/rust.md", "rust"): ("crates/weir/src/lib.rs", "include_str!(\"../guide.md\")"),
    ("docs/c.md", "c"): ("tests/programs/c_library.py", "docs/c.md"),
    ("docs/python.md", "python"): ("tests/programs/python_library.py", "docs/python.md"),
}
NOT_RUN = re.compile(r"\(not run: (.+)\)")
NUMBER = r"\d[\d.,]*(?:\s?(?:[KMGT]i?B|[mun]?s)\b)?"
# How commands begin. Drawings of processes have arrows.
COMMAND = re.compile(
    r"^    (?!.*-->)(\$|\(gdb\)|sudo|weir|make|cargo|cc|pip|docker|podman|python3?|gdb|strace) \S", re.M
)


class Block:
    """Code in a page: where it stands, what it is, and why it is not run (None: it is)."""

    def __init__(self, page, line, info, text):
        self.place, self.page, self.text = f"{page}:{line}", page, text
        self.language, _, rest = info.partition(" ")
        found = NOT_RUN.fullmatch(rest)
        assert not rest or found, f"{self.place}: `{info}`: write `{self.language} (not run: REASON)`"
        self.reason = found[1] if found else None


def blocks(page):
    """The fenced blocks of a page. What is indented is drawings: it has no place for a language."""
    found, begin, lines, prose = [], None, [], []
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if not line.startswith("```"):
            (prose if begin is None else lines).append(line)
        elif begin is None:
            begin, info, lines = number, line[3:], []
        else:
            found.append(Block(page, begin, info, "\n".join(lines) + "\n"))
            begin = None
    assert begin is None, f"{page}:{begin}: this block has no end"
    command = COMMAND.search("\n".join(prose))
    assert not command, f"{page}: fence this as `sh` or `console`: {command[0]}"
    return found


def literal(text):
    """What is shown, as a pattern: numbers may differ, and so may the breaks of lines."""
    words = []
    for word in re.sub(NUMBER, lambda found: re.sub(r"\s", "\0", found[0]), text).split():
        parts = re.split(f"({NUMBER})", word.replace("\0", " "))
        words.append("".join(NUMBER if at % 2 else re.escape(part) for at, part in enumerate(parts)))
    return r"\s+".join(words)


def shows(shown, said):
    """Whether a command said what is shown."""
    parts = [literal(part) for part in shown.split("...")]
    return re.search(r"\s*.*?\s*".join(parts), said, re.S) is not None


class Sandbox:
    """A folder for the blocks of a page, and an environment in which the Weir of a tree is found."""

    def __init__(self, folder, tree):
        self.folder = folder
        (job,) = (block for block in blocks("docs/getting-started.md") if block.language == "python")
        (folder / "job.py").write_text(job.text)
        self.env = {
            "PATH": f"{tree}/bin:{VENV}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "LD_LIBRARY_PATH": f"{tree}/lib",
            "PKG_CONFIG_PATH": f"{tree}/lib/pkgconfig",
        }

    def run(self, words, place):
        """What a command says, both on stdout and on stderr; it must end with 0."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{place}: status {done.returncode}: {done.stdout[-800:]}"
        return done.stdout

    def shell(self, script, place):
        return self.run(["bash", "-euo", "pipefail", "-c", script], place)


def transcript(block):
    """The commands of a block, each with what it is shown to say."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.M)
    assert not parts[0].strip() and len(parts) > 1, f"{block.place}: it begins with a line of `$ COMMAND`"
    return list(zip(parts[1::2], parts[2::2]))


def perform(sandbox, block):
    """Runs or reads a block; returns how many pieces of output were compared."""
    text, place, compared = block.text, block.place, 0
    named = re.match(r"(?:#|//|/\*) (\w+\.\w+)\b", text)
    if block.language == "sh":
        sandbox.shell(text, place)
    elif block.language == "console":
        for command, shown in transcript(block):
            said = sandbox.shell(command, place)
            assert shows(shown, said), f"{place}: `{command}` said:\n{said}\nand not:\n{shown}"
            compared += bool(shown.strip())
    elif block.language in ("python", "c") and named:
        (sandbox.folder / named[1]).write_text(text)
    elif (block.page, block.language) in ELSEWHERE:
        path, words = ELSEWHERE[block.page, block.language]
        assert words in (ROOT / path).read_text(), f"{place}: {path} does not run it any more"
        if block.language == "c":
            (sandbox.folder / "example.c").write_text(text)
    elif block.language == "python":
        sandbox.run([f"{VENV}/bin/python", "-c", text], place)
    elif block.language == "toml":
        tomllib.loads(text)
    elif block.language == "json":
        json.loads(text)
    elif block.language == "yaml":
        sandbox.run([f"{VENV}/bin/python", "-c", f"import yaml; yaml.safe_load({text!r})"], place)
    else:
        assert block.language == "text", f"{place}: nobody knows how to run `{block.language}`"
    return compared


def exist(block):
    """Whether what a block names is there, of a block that is not run: options of Weir's, goals of make."""
    code = re.sub(r" #.*| -- .*", "", block.text)
    for command, rest in re.findall(r"\bweir (run|demo|doctor|stat|top|serve|set|config|bench)\b(.*)", code):
        known = told([WEIR, command, "--help"])
        for option in re.findall(r"(?<= )--[a-z][a-z-]+", rest):
            assert f"{option} " in known or f"{option}\n" in known, f"{block.place}: weir {command} {option}"
    goals = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in re.findall(r"^(?:\$ )?(?:sudo )?make (.*)", code, re.M):
        wrong = [word for word in line.split() if "=" not in word and word not in goals]
        assert not wrong, f"{block.place}: the Makefile has no {wrong}"


def the_site_is_built_and_every_link_in_it_leads_somewhere(folder):
    make("docs", SITE=folder)
    for name in ("getting-started", "comparison", "limits", "decisions/index", "charts/page"):
        found = list((folder / "html").glob(f"{name}*"))
        assert found, f"the site has no {name}"


def a_link_that_leads_nowhere_stops_the_build(folder):
    """Of the site itself; those of the documents are checked by `xtask tidy` as well."""
    (folder / "a.html").write_text('<a href="b.html#here">b</a><h1 id="up">a</h1><a href="#up">up</a>')
    (folder / "b.html").write_text('<h1 id="there">b</h1><img src="gone.svg">')
    lines = book.broken_links(folder)
    assert [line.split(":")[0] for line in lines] == ["a.html", "b.html"], lines
    broken = []
    text = "[x](gone.md) `[y](gone.md)` [z](budget.md#a)\n\n    [code](gone.md)\n"
    said = book.relinked(text, "readme.md", "docs/c.md", book.sources(), broken)
    assert len(broken) == 1 and "gone.md" in broken[0], broken
    assert "[z](budget.md#a)" in said, said


def what_is_shown_is_compared(_folder):
    assert shows("took 1.5 s of 20 MiB: ...\nend 3", "x\ntook 12 ms\nof 1.1 GiB: anything\nat all end 4\n")
    assert shows('{"a": 0.5, ...}', '{"a": 12.25, "b": 1}')
    assert not shows("took 1.5 s of 20 MiB: ...\nend", "took 12 ms of much: end")
    assert not shows("right", "wrong") and not shows("5 rows", "rows")


def every_block_is_run_or_says_why_not(folder):
    compared, ran, reasons = 0, 0, {}
    make("install", PREFIX=folder / "tree")
    for page in book.sources().values():
        with tempfile.TemporaryDirectory(prefix="page-", dir=folder) as own:
            sandbox = Sandbox(pathlib.Path(own), folder / "tree")
            for block in blocks(page):
                if block.reason:
                    exist(block)
                    reasons.setdefault(block.reason, []).append(block.place)
                else:
                    compared += perform(sandbox, block)
                    ran += block.language != "text"
    for reason, places in reasons.items():
        print(f"     not run: {reason}: {', '.join(places)}")
    print(f"     {ran} blocks run or read, {compared} pieces of output compared")
    assert ran > 20 and compared > 5, "blocks are not found any more"


def packaged(folder):
    """The files of each crate as they would be published, by name: those of its archive."""
    words = [word for crate in CRATES for word in ("-p", crate)]
    command = ["cargo", "package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir", folder, *words]
    told(command, cwd=ROOT)
    found = {}
    for crate in CRATES:
        (archive,) = (path for path in (folder / "package").glob("*.crate") if name_of(path) == crate)
        with tarfile.open(archive) as tar:
            files = [member for member in tar if member.isfile()]
            found[crate] = {file.name.split("/", 1)[1]: tar.extractfile(file).read() for file in files}
    return found


def name_of(archive):
    """The crate of an archive."""
    return re.fullmatch(r"(.+)-\d+\.\d+\.\d+.*\.crate", archive.name)[1]


def the_crates_are_complete_by_themselves(folder):
    for crate, files in packaged(folder).items():
        for name in ("LICENSE-MIT", "LICENSE-APACHE"):
            assert files[name] == (ROOT / name).read_bytes(), f"{crate}: {name}"
        said = tomllib.loads(files["Cargo.toml"].decode())
        package = said["package"]
        for key in ("description", "license", "keywords", "categories", "documentation", "readme"):
            assert package.get(key), f"{crate}: no {key} in its Cargo.toml"
        assert package["readme"] in files and len(files[package["readme"]]) > 300, f"{crate}: no readme"
        assert len(package["keywords"]) <= 5, f"{crate}: five keywords at most"
        assert "x86_64-unknown-linux-gnu" in package["metadata"]["docs"]["rs"]["targets"], crate
        for name, wanted in said["dependencies"].items():
            assert isinstance(wanted, dict) and wanted.get("version"), f"{crate}: no version of {name}"
        for name, text in ((name, text) for name, text in files.items() if name.endswith(".rs")):
            for path in re.findall(rb'\binclude(?:_str|_bytes)?!\("([^"]+)"\)', text):
                there = os.path.normpath(os.path.join(os.path.dirname(name), path.decode()))
                assert there in files, f"{crate}: {name} includes {there}, which is not published"
    assert "weir-os" in said["dependencies"], "the engine needs its doors"


CHECKS = [
    what_is_shown_is_compared,
    a_link_that_leads_nowhere_stops_the_build,
    the_site_is_built_and_every_link_in_it_leads_somewhere,
    every_block_is_run_or_says_why_not,
    the_crates_are_complete_by_themselves,
]


if __name__ == "__main__":
    make("licences")
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(lambda _faults, folder: folder), modes=("auto",)))
