"""Makes the inputs of the programs: deterministic, from fixed seeds, written to a folder.

Each generator takes (folder, amount) and writes `folder/in`; what `amount` counts is said in its
docs. The data is chosen so that what the program holds in memory compresses between 2:1 and 4:1
under LZ4 in pages of 4 KiB, unless the generator says otherwise.
"""

import pathlib
import random
import subprocess

SEED = 20240229


def text_lines(folder, amount):
    """`amount` MB of server log in random order: unique keys, repeated phrases (about 3.2:1)."""
    rng = random.Random(SEED)
    paths = [
        f"/shop/{kind}/{number}" for kind in ("item", "basket", "search", "account") for number in range(400)
    ]
    with open(folder / "in", "w", encoding="ascii") as file:
        written = 0
        while written < amount << 20:
            picked = rng.choices(paths, k=10_000)
            block = "".join(
                f"{rng.getrandbits(32):08x} 2024-02-29T12:{rng.randrange(60):02}:{rng.randrange(60):02}Z "
                "INFO frontend: "
                f"GET {path} status=200 bytes={len(path) * 37} worker={rng.randrange(16)} cache=miss\n"
                for path in picked
            )
            file.write(block)
            written += len(block)


def c_source(folder, amount):
    """A C file of `amount` functions with loops, switches and calls; gcc's trees compress about 3.3:1."""
    rng = random.Random(SEED)
    parts = ["typedef unsigned long word;\nextern word sink(word);\n"]
    for index in range(amount):
        parts.append(c_function(rng, index))
    (folder / "in.c").write_text("".join(parts), encoding="ascii")


def c_function(rng, index):
    """One function of the generated C file."""
    body = [f"word f{index}(word a, word b, word *p)\n{{\n  word x = {rng.randrange(1 << 30)}u, y = a ^ b;\n"]
    for step in range(rng.randint(6, 12)):
        c, d = rng.randrange(1, 1 << 16), rng.randrange(3, 60)
        body.append(
            f"  for (word i = 0; i < (a & {d}); i++) {{ x += p[i] * {c}u; "
            f"p[i + {step}] ^= x >> {d % 31}; }}\n"
        )
        body.append(f"  switch (x % {d}) {{\n")
        for case in range(rng.randint(3, 7)):
            body.append(f"  case {case}: y = y * {rng.randrange(1, 1 << 20)}u + x; break;\n")
        body.append(f"  default: y -= sink(x + {c}u);\n  }}\n")
    if index:
        body.append(f"  y += f{rng.randrange(index)}(x, y, p);\n")
    body.append("  return x ^ y;\n}\n")
    return "".join(body)


SQL = """\
CREATE TABLE item(id INTEGER PRIMARY KEY, part INTEGER, price REAL, label TEXT);
CREATE TABLE sale(id INTEGER PRIMARY KEY, item INTEGER, day INTEGER, amount INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {items})
INSERT INTO item SELECT i, (i * 7919) % 997, ((i * 104729) % 100003) / 100.0,
  printf('label %08x of part %d, colour %s', (i * 2654435761) & 4294967295, (i * 7919) % 997,
  substr('red   green blue  black white ', 1 + 6 * (i % 5), 6)) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {sales})
INSERT INTO sale SELECT i, 1 + (i * 48271) % {items}, (i * 31) % 365, 1 + (i * 16807) % 50,
  printf('sold on day %d to customer %d', (i * 31) % 365, (i * 69621) % 5003) FROM n;
CREATE INDEX sale_item ON sale(item);
CREATE INDEX item_label ON item(label);
SELECT count(*), sum(amount), min(note), max(note) FROM sale;
SELECT part, count(*), round(sum(price * amount), 2) FROM sale JOIN item ON sale.item = item.id
  GROUP BY part ORDER BY 3 DESC, part LIMIT 40;
SELECT day, count(DISTINCT item), sum(amount) FROM sale GROUP BY day ORDER BY day;
SELECT label FROM item WHERE label > 'label 80000000' ORDER BY label LIMIT 50;
UPDATE sale SET note = note || ' (checked)' WHERE amount > 25;
DELETE FROM sale WHERE day BETWEEN 100 AND 120;
SELECT count(*), sum(length(note)) FROM sale;
PRAGMA integrity_check;
"""


def sql_script(folder, amount):
    """A script for sqlite3 with `amount` thousand sales, a tenth as many items (B-trees of text, about
    2:1)."""
    script = SQL.format(sales=amount * 1000, items=amount * 100)
    (folder / "in").write_text(script, encoding="ascii")


def xz_file(folder, amount):
    """`amount` MB of lines, compressed fast but with the 64 MiB dictionary of xz -9: the input of the way
    back."""
    text_lines(folder, amount)
    command = ["xz", "--lzma2=preset=1,dict=64MiB", "--stdout", "--threads=1", folder / "in"]
    with open(folder / "packed", "wb") as packed:
        subprocess.run(command, stdout=packed, check=True)
    (folder / "packed").replace(folder / "in")


def zstd_file(folder, amount):
    """`amount` MB of lines, compressed with a window as long as the text: the input of the way back."""
    text_lines(folder, amount)
    command = [
        "zstd",
        "-q",
        "-f",
        "-6",
        "--long=27",
        "--single-thread",
        folder / "in",
        "-o",
        folder / "packed",
    ]
    subprocess.run(command, check=True)
    (folder / "packed").replace(folder / "in")


def git_repository(folder, amount):
    """A repository `repo` with `amount` versions of a file of 1.2 MB: each changes and moves a few lines."""
    rng = random.Random(SEED)
    words = "alpha beta gamma delta orders customer street invoice pending shipped".split()
    lines = [f"{rng.getrandbits(32):08x} {' '.join(rng.choices(words, k=6))}\n" for _ in range(24_000)]
    parts = []
    for version in range(amount):
        for _ in range(60):
            at, back = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[at] = f"{rng.getrandbits(32):08x} {' '.join(rng.choices(words, k=6))}\n"
            lines.insert(back, lines.pop(rng.randrange(len(lines))))
        text = "".join(lines)
        parts.append(f"commit refs/heads/main\ncommitter A <a@example.org> {1_700_000_000 + version} +0000\n")
        parts.append("data 1\nx\n")
        parts.append(f"M 100644 inline file.txt\ndata {len(text)}\n{text}\n")
    repository = str(folder / "repo")
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    command = ["git", "-C", repository, "fast-import", "--quiet", "--done"]
    subprocess.run(command, input="".join([*parts, "done\n"]), encoding="ascii", check=True)


def git_pack(folder, amount):
    """A repository `repo` with a pack of `amount` files of 1 MB that do not compress."""
    rng = random.Random(SEED)
    repository = str(folder / "repo")
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    head = "commit refs/heads/main\ncommitter A <a@example.org> 1700000000 +0000\ndata 1\nx\n"
    parts = [head.encode()]
    for number in range(amount):
        parts += [f"M 100644 inline {number}\ndata {1 << 20}\n".encode(), rng.randbytes(1 << 20), b"\n"]
    keep = ["-c", "fastimport.unpackLimit=0"]  # a pack, however few its objects
    command = ["git", "-C", repository, *keep, "fast-import", "--quiet", "--done"]
    subprocess.run(command, input=b"".join([*parts, b"done\n"]), check=True)


def nothing(folder, _amount):
    """For programs that make their own data."""
    assert pathlib.Path(folder).is_dir()


GENERATORS = {
    function.__name__: function
    for function in (text_lines, c_source, sql_script, xz_file, zstd_file, git_repository, git_pack, nothing)
}
