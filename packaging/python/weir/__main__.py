"""Becomes the command `weir` that came with this package. `python -m weir run --memory 2G job.py` runs the
script with this very Python."""

import os
import pathlib
import sys
import sysconfig

# Options of `weir run` without a value.
FLAGS = {"-q", "--quiet", "-v", "--verbose", "-h", "--help"}


def command():
    """Path of the command, among the scripts of an environment, of the user, or of `pip install --target`."""
    user = f"{os.name}_user"
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", user) if user in sysconfig.get_scheme_names() else "",
        pathlib.Path(__file__).resolve().parent.parent / "bin",
    ]
    for folder in filter(None, folders):
        found = os.path.join(folder, "weir")
        if os.access(found, os.X_OK):
            return found
    sys.exit(f"weir: the command is in none of {', '.join(map(str, folders))}: install the package again")


def with_python(words):
    """Words of a command line, with this Python before the script that `run` is to run."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        alone = "=" not in word if word.startswith("--") else len(word) == 2
        if alone and word not in FLAGS:
            at += 1
    if words[:1] == ["run"] and at < len(words) and words[at].endswith(".py"):
        return [*words[:at], sys.executable, *words[at:]]
    return words


if __name__ == "__main__":
    weir = command()
    os.execv(weir, [weir, *with_python(sys.argv[1:])])
