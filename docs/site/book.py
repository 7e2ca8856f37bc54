#!/usr/bin/env python3
"""Builds the site of the documents: `book.py --mdbook PROGRAM FOLDER` writes FOLDER/html.

The sources are docs/*.md and the documents at the root, as they are. A site has other paths than the
repository: this copies the pages to FOLDER/pages, changes their links, and lets mdBook make HTML of them. At
the end every link of every HTML page must lead to a file, and to a place in it, that is there."""

import argparse
import html.parser
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUMMARY = "SUMMARY.md"
# Documents at the root of the repository, by their names on the site.
ROOT_PAGES = {
    "readme.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
# A section of a document that is a page of its own.
SECTIONS = {"limits.md": ("README.md", "Limits")}
# Folders whose pages are listed by a page that is made here.
LISTED = {
    "decisions": ("Decisions", "What was decided, and why: what was seen, what it costs, what lost."),
    "experiments": ("Measurements", "What was measured for decisions, as it was written down."),
}
LINK = re.compile(r"(?<=\]\()[^()\s]+(?=\))")


class Broken(Exception):
    """The site cannot be built: what is to be put right, a line each."""


def sources():
    """Names on the site of all pages, with the paths of their sources in the repository."""
    below = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    pages = {path.removeprefix("docs/"): path for path in below if not path.startswith("docs/site/")}
    return {**ROOT_PAGES, **pages}


def navigation():
    """Names of the pages that the navigation lists, in its order; those that are made here too."""
    listed = re.findall(r"\]\(([^)]+)\)", (HERE / SUMMARY).read_text())
    pages = sources()
    made = {*SECTIONS, *(f"{folder}/index.md" for folder in LISTED)}
    unknown = [f"SUMMARY.md: there is no page {name}" for name in listed if name not in {*pages, *made}]
    missing = [name for name in pages if name.split("/")[0] not in LISTED and name not in listed]
    unlisted = [f"docs/site/SUMMARY.md does not list {name}" for name in missing]
    if unknown or unlisted:
        raise Broken("\n".join(unknown + unlisted))
    return listed


def section(text, title):
    """A section of a document, up to the next heading of its rank, with its title as the first heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not found:
        raise Broken(f"there is no section {title}")
    return f"# {title}\n{found[1]}"


def on_site(target, source, pages):
    """Where a link of a document leads on the site: its path and the part behind the path. None where it
    leads to nothing that the site has."""
    path, _, place = target.partition("#")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
    names = {path: name for name, path in pages.items()}
    folder = there.removeprefix("docs/")
    if there in names:
        name = names[there]
    elif folder in LISTED:
        name = f"{folder}/index.md"
    elif there.startswith("docs/") and (ROOT / there).is_file():
        name = folder
    else:
        return None
    return name, f"#{place}" if place else ""


def relinked(text, name, source, pages, broken):
    """A page with the links that it has on the site. Code stays as it is."""

    def link(match):
        target = match[0]
        if "://" in target or target.startswith("mailto:"):
            return target
        found = on_site(target, source, pages)
        if not found:
            broken.append(f"{source}: the site has nothing for the link to {target}")
            return target
        there, place = found
        if there == name and place:
            return place
        return posixpath.relpath(there, posixpath.dirname(name) or ".") + place

    def outside_of_spans(line):
        parts = re.split(r"(`+[^`]*`+)", line)
        return "".join(part if at % 2 else LINK.sub(link, part) for at, part in enumerate(parts))

    lines, fenced = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        code = fenced or fence or line.startswith("    ")
        lines.append(line if code else outside_of_spans(line))
    return "\n".join(lines)


def title_of(text):
    """The text of a page's first heading."""
    return re.search(r"^# (.+)$", text, re.M)[1]


def write_pages(folder):
    """Writes all pages as the site has them, and everything that they show."""
    pages, broken = sources(), []
    listed = navigation()
    texts = {name: (ROOT / path).read_text() for name, path in pages.items()}
    written = {name: relinked(text, name, pages[name], pages, broken) for name, text in texts.items()}
    for name, (source, title) in SECTIONS.items():
        text = section((ROOT / source).read_text(), title)
        written[name] = relinked(text, name, source, pages, broken)
    lines = (HERE / SUMMARY).read_text().splitlines()
    for of, (title, about) in LISTED.items():
        inside = sorted(name for name in pages if name.startswith(f"{of}/"))
        rows = [f"- [{title_of(texts[name])}]({posixpath.basename(name)})" for name in inside]
        written[f"{of}/index.md"] = f"# {title}\n\n{about}\n\n" + "\n".join(rows) + "\n"
        at = next(at for at, line in enumerate(lines) if f"({of}/index.md)" in line)
        lines[at + 1 : at + 1] = [f"  - [{title_of(texts[name])}]({name})" for name in inside]
    if broken:
        raise Broken("\n".join(broken))
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in {**written, SUMMARY: "\n".join(lines) + "\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for path in (ROOT / "docs").rglob("*"):
        name = path.relative_to(ROOT / "docs")
        if path.is_file() and path.suffix != ".md" and name.parts[0] != HERE.name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name)
    return listed


class Page(html.parser.HTMLParser):
    """What an HTML page links to, and the places in it that others may link to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.places.add(value)


def broken_links(folder):
    """Links of the site that lead nowhere, a line each."""
    # The page of errors is shown for any path, so its links begin at a root that is not known here.
    paths = sorted(path for path in folder.rglob("*.html") if path.name != "404.html")
    pages = {path: Page(path) for path in paths}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = path
            if parts.path:
                there = pathlib.Path(os.path.normpath(path.parent / urllib.parse.unquote(parts.path)))
            place = urllib.parse.unquote(parts.fragment)
            if not there.is_file() or (place and there in pages and place not in pages[there].places):
                broken.append(f"{path.relative_to(folder)}: the link to {link} leads nowhere")
    return broken


def build(mdbook, folder):
    """Builds the site below a folder and returns the folder of its HTML."""
    folder = pathlib.Path(folder).resolve()
    write_pages(folder / "pages")
    shutil.copy(HERE / "book.toml", folder / "book.toml")
    shutil.rmtree(folder / "html", ignore_errors=True)
    done = subprocess.run([mdbook, "build", folder], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode or re.search(r"\b(WARN|ERROR)\b", said):
        raise Broken(f"{mdbook}: status {done.returncode}\n{said}")
    broken = broken_links(folder / "html")
    if broken:
        raise Broken("\n".join(broken))
    return folder / "html"


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--mdbook", default="mdbook", help="the program")
    parser.add_argument("folder", help="where to write")
    options = parser.parse_args()
    try:
        print(build(options.mdbook, options.folder) / "index.html")
    except (Broken, OSError) as reason:
        sys.exit(f"book.py: {reason}")


if __name__ == "__main__":
    main()
