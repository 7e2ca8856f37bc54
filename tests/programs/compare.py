"""What is compared between a native run and a run under Weir: one text (a fingerprint) per run."""

import hashlib
import pathlib
import re
import xml.etree.ElementTree as xml


def sha256_file(path):
    """Hex SHA-256 of a file; a missing file is an answer too."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return digest.hexdigest()


def junit_outcomes(path):
    """Sorted lines `test outcome` of a JUnit report: what passed, failed or was skipped."""
    try:
        tree = xml.parse(path)
    except (OSError, xml.ParseError) as error:
        return [f"no report: {error}"]
    lines = []
    for case in tree.iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = child.tag
        if case.get("status") == "notrun":
            outcome = "skipped"
        parts = [part for part in (case.get("classname"), case.get("name")) if part]
        # Object addresses in generated names differ between any two runs.
        lines.append(re.sub(r"0x[0-9a-f]{6,}", "0x-", f"{'.'.join(parts)} {outcome}"))
    return sorted(lines)


def fingerprint(kind, folder):
    """The text to compare after a run in `folder` (files `stdout`, `stderr`, `out` in it)."""
    folder = pathlib.Path(folder)
    if kind == "stdout":
        return sha256_file(folder / "stdout")
    if kind == "output":
        return sha256_file(folder / "out")
    if kind == "junit":
        return "\n".join(junit_outcomes(folder / "out"))
    if kind == "exit":
        return ""
    raise ValueError(f"unknown way to compare: {kind}")


def differences(native, weir, conflicts=()):
    """Lines that differ, without those whose test name is a listed conflict."""
    left, right = set(native.splitlines()), set(weir.splitlines())
    changed = [f"native only: {line}" for line in sorted(left - right)]
    changed += [f"weir only:   {line}" for line in sorted(right - left)]
    return [line for line in changed if not any(name in line for name in conflicts)]
