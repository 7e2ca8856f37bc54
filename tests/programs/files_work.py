"""Programs on mapped files larger than their RAM: `files_work.py numpy|sqlite|lmdb MB FOLDER`.

They print what they read. `kill MB FOLDER` writes to both for ever, and says after each step how far it got:
its reader kills it.
"""

import hashlib
import itertools
import mmap
import pathlib
import shutil
import sqlite3
import sys

PAGE = mmap.PAGESIZE


def by_numpy(megabytes, folder):
    """Passes over an array in a file, rows at random, and changes that the next reader sees."""
    import numpy

    columns = 1024
    rows = (megabytes << 20) // 8 // columns
    name = folder / "array.data"
    array = numpy.memmap(name, dtype=numpy.int64, mode="w+", shape=(rows, columns))
    for row in range(rows):
        array[row] = numpy.arange(columns) * (row + 1)
        if row % 512 == 511:
            array.flush()
    array.flush()
    del array
    array = numpy.memmap(name, dtype=numpy.int64, mode="r", shape=(rows, columns))
    for _ in range(4):
        print(int(array.sum()))
    order = numpy.random.Generator(numpy.random.PCG64(5)).integers(0, rows, size=4 * rows)
    digest = hashlib.sha256()
    for row in order:
        digest.update(array[row].tobytes())
    print(digest.hexdigest())
    own = numpy.memmap(name, dtype=numpy.int64, mode="c", shape=(rows, columns))
    own[:: rows // 64] += 1
    print(int(array.sum()), int(own.sum()), int(array.max()), int(own.max()))


def database(name, megabytes):
    """A database that is read through a mapping of all of it."""
    made = sqlite3.connect(name)
    made.execute(f"PRAGMA mmap_size = {4 * megabytes << 20}")
    made.execute("PRAGMA cache_size = 100")
    return made


def by_sqlite(megabytes, folder):
    """Fills a table, and reads it in order and by its index."""
    rows = megabytes << 10
    (folder / "base.db").unlink(missing_ok=True)  # of the run without Weir
    base = database(folder / "base.db", megabytes)
    base.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, body BLOB)")

    def body(n):
        return hashlib.sha256(str(n).encode()).digest() * 30

    with base:
        base.executemany(
            "INSERT INTO t VALUES (?, ?, ?)", ((n, str(n * 7919 % rows), body(n)) for n in range(rows))
        )
    with base:
        base.execute("CREATE INDEX words ON t (word)")
    base.close()
    base = database(folder / "base.db", megabytes)
    for _ in range(3):
        print(base.execute("SELECT count(*), sum(length(body)), sum(id) FROM t").fetchone())
    for n in range(0, rows, 7):
        word = str(n * 7919 % rows)
        found = base.execute("SELECT id, body FROM t WHERE word = ?", (word,)).fetchall()
        assert (n, body(n)) in found, n
    with base:
        base.execute("UPDATE t SET body = word WHERE id % 5 = 0")
    print(base.execute("SELECT sum(length(body)) FROM t").fetchone())
    print(base.execute("PRAGMA integrity_check").fetchone())


def by_lmdb(megabytes, folder):
    """Fills a database in no order, reads it in order, backwards and by key, and changes a part: once with
    writes past the mapping, and once through it."""
    import lmdb

    def body(n):
        return hashlib.sha256(str(n).encode()).digest() * 60

    for through, rows in ((False, megabytes << 9), (True, megabytes << 8)):
        name = folder / f"base{int(through)}.lmdb"
        shutil.rmtree(name, ignore_errors=True)  # of the run without Weir
        base = lmdb.open(str(name), map_size=4 * megabytes << 20, writemap=through)
        for first in range(0, rows, 4096):
            with base.begin(write=True) as change:
                for n in range(first, min(first + 4096, rows)):
                    change.put(str(n * 7919 % rows).encode(), body(n * 7919 % rows))
        with base.begin() as view:
            for backwards in (False, True, False):
                digest, cursor = hashlib.sha256(), view.cursor()
                for key, value in cursor.iterprev() if backwards else cursor.iternext():
                    digest.update(key)
                    digest.update(value)
                print(through, rows, digest.hexdigest())
            for n in range(0, rows, 3):
                found = view.get(str(n * 104729 % rows).encode())
                assert found == body(n * 104729 % rows), n
        with base.begin(write=True) as change:
            for n in range(0, rows, 5):
                change.delete(str(n).encode())
                change.put(f"new {n}".encode(), body(n + 1)[:100])
        with base.begin() as view:
            print(view.stat()["entries"], sum(len(value) for _, value in view.cursor()))
        base.close()


def until_killed(megabytes, folder):
    """Commits to a database and writes pages of a mapped file, and says so."""
    base = database(folder / "base.db", megabytes)
    base.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, body BLOB)")
    pages = (megabytes << 20) // PAGE
    with open(folder / "pages.data", "w+b") as file:
        file.truncate(pages * PAGE)
        mapping = mmap.mmap(file.fileno(), 0)
    first = base.execute("SELECT coalesce(max(id) + 1, 0) FROM t").fetchone()[0]
    for step in itertools.count():
        with base:
            base.execute("INSERT INTO t VALUES (?, ?)", (first + step, str(first + step) * 2000))
        base.execute("SELECT sum(length(body)) FROM t").fetchone()
        for n in range(step * 64, step * 64 + 64):
            at = n % pages * PAGE
            mapping[at : at + PAGE] = n.to_bytes(8, "little") * (PAGE // 8)
        print(first + step, step * 64 + 63, flush=True)


def lmdb_until_killed(name, **how):
    """Commits twenty rows at a time, and says the last of each."""

    def work(megabytes, folder):
        import lmdb

        base = lmdb.open(str(folder / name), map_size=megabytes << 20, **how)
        with base.begin() as view:
            first = view.stat()["entries"]
        for n in itertools.count(first, 20):
            with base.begin(write=True) as change:
                for row in range(n, n + 20):
                    change.put(str(row).encode(), str(row).encode() * 1000)
            print(n + 19, flush=True)

    return work


if __name__ == "__main__":
    WORK = {
        "numpy": by_numpy,
        "sqlite": by_sqlite,
        "lmdb": by_lmdb,
        "kill": until_killed,
        "kill-lmdb-past": lmdb_until_killed("past.lmdb"),
        "kill-lmdb-through": lmdb_until_killed("through.lmdb", writemap=True),
    }
    WORK[sys.argv[1]](int(sys.argv[2]), pathlib.Path(sys.argv[3]))
