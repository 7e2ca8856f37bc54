#!/usr/bin/env python3
"""Who serves the malloc family under `weir run`: an allocator of the program's own gets every call, else Weir
does.

The allocator is one of this test's: it marks its blocks and ends the process at a block that has no mark.
Each case is a program that calls the whole family, once natively and once under Weir: both must print the
same."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from run import WEIR

LIBRARY = WEIR.parent / "libweir_preload.so"
TIMEOUT_S = 60
BUDGET = 24 << 20

# Blocks come from `mmap` in chunks, as those of any allocator; before each lies its size and a mark.
ALLOCATOR = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define MARK 0x6d61726b6d61726bu
struct head { size_t size; uint64_t mark; };
static char *at, *end;
static size_t served, freed;
static struct head *head_of(void *p) {
    struct head *h = (struct head *)p - 1;
    if (h->mark != MARK) { write(2, "a block of somebody else\n", 25); _exit(99); }
    return h;
}
static void *take(size_t align, size_t size) {
    if (align < 16) align = 16;
    char *p = (char *)(((uintptr_t)at + sizeof(struct head) + align - 1) / align * align);
    if (!at || p + size > end) {
        size_t chunk = size + align + (4 << 20);
        at = mmap(0, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) { at = end = 0; errno = ENOMEM; return 0; }
        end = at + chunk;
        p = (char *)(((uintptr_t)at + sizeof(struct head) + align - 1) / align * align);
    }
    at = p + size;
    ((struct head *)p)[-1] = (struct head){size, MARK};
    served++;
    return p;
}
void *malloc(size_t n) { return take(16, n); }
void free(void *p) { if (p) { head_of(p); freed++; } }
void *calloc(size_t n, size_t m) { return take(16, n * m); }
void *realloc(void *p, size_t n) {
    void *q = take(16, n);
    if (p && q) { size_t old = head_of(p)->size; memcpy(q, p, old < n ? old : n); free(p); }
    return q;
}
void *memalign(size_t a, size_t n) { return take(a, n); }
void *aligned_alloc(size_t a, size_t n) { return take(a, n); }
int posix_memalign(void **p, size_t a, size_t n) { *p = take(a, n); return *p ? 0 : ENOMEM; }
void *valloc(size_t n) { return take(4096, n); }
void *pvalloc(size_t n) { return take(4096, n); }
size_t malloc_usable_size(void *p) { return p ? head_of(p)->size : 0; }
/* What other allocators do not have. */
size_t allocator_served(void) { return served; }
size_t allocator_size(void *p) { return head_of(p)->size; }
"""

PROGRAM = r"""
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern size_t allocator_served(void) __attribute__((weak));
extern size_t allocator_size(void *) __attribute__((weak));
static void *check(void *p, size_t size) {
    if (!p) exit(3);
    memset(p, 7, size);
    if (malloc_usable_size(p) < size) exit(4);
    if (allocator_size && allocator_size(p) != size) exit(5);
    return p;
}
int main(void) {
    char *kept[64];
    for (int round = 0; round < 64; round++) {
        void *blocks[9], *p;
        blocks[0] = check(malloc(100), 100);
        blocks[1] = check(calloc(10, 30), 300);
        blocks[2] = check(realloc(malloc(10), 5000), 5000);
        blocks[3] = check(memalign(64, 700), 700);
        blocks[4] = check(aligned_alloc(4096, 8192), 8192);
        if (posix_memalign(&p, 256, 1000)) exit(6);
        blocks[5] = check(p, 1000);
        blocks[6] = check(valloc(4096), 4096);
        blocks[7] = check(pvalloc(4096), 4096);
        blocks[8] = check(reallocarray(malloc(1), 3, 100), 300);
        kept[round] = check(malloc(1 << 20), 1 << 20);
        memset(kept[round], round, 1 << 20);
        FILE *file = fopen("/dev/null", "w");
        fprintf(file, "libc's own blocks\n");
        fclose(file);
        free(strdup("a copy"));
        for (int i = 0; i < 9; i++) free(blocks[i]);
    }
    unsigned sum = 0;
    for (int round = 0; round < 64; round++)
        for (int i = 0; i < 1 << 20; i += 500) sum = sum * 31 + (unsigned char)kept[round][i];
    if (allocator_served && allocator_served() < 64 * 10) exit(7);
    printf("%u, %s\n", sum, allocator_served ? "own" : "libc's");
    return 0;
}
"""


def compiled(folder):
    """The allocator as a library, and the program with it: linked, in the executable, without."""
    (folder / "allocator.c").write_text(ALLOCATOR)
    (folder / "program.c").write_text(PROGRAM)
    quiet = ["-O1", "-w", "-fno-builtin"]
    for words in (
        [*quiet, "-shared", "-fPIC", "-o", "liballocator.so", "allocator.c"],
        [*quiet, "-o", "linked", "program.c", "-L.", "-lallocator", "-Wl,-rpath,$ORIGIN"],
        [*quiet, "-rdynamic", "-o", "inside", "program.c", "allocator.c"],
        [*quiet, "-o", "plain", "program.c"],
    ):
        subprocess.run(["cc", *words], cwd=folder, check=True)


def run(folder, words, env):
    """Status, output and complaints of a program that ends in bounded time."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def managed_bytes(folder):
    """The largest managed peak that the program's engine wrote down; 0 without an engine."""
    peaks = [0]
    for path in folder.glob("*.stats"):
        peaks += [int(n) for n in re.findall(r"^weir_peak_managed_bytes (\d+)$", path.read_text(), re.M)]
        path.unlink()
    return max(peaks)


def check(folder, program, env, managed, more):
    """Why a case is wrong, or nothing. `managed`: whether its memory must be Weir's."""
    native = run(folder, [f"./{program}"], env)
    if native[0] != 0:
        return f"natively: status {native[0]} {native[2]}"
    weir = [str(WEIR), "run", "--quiet", "--memory", str(BUDGET), "--stats", f"{folder}/%p.stats", "--"]
    words = [f"./{program}"] if more else [*weir, f"./{program}"]
    under = run(folder, words, {**env, **more})
    peak = managed_bytes(folder)
    if under[:2] != native[:2]:
        return f"status {under[0]}, says {under[1]!r}, natively {native[1]!r}: {under[2]}"
    if (peak > BUDGET) != managed:
        return f"{peak >> 20} MiB managed in a budget of {BUDGET >> 20} MiB"
    return ""


def main():
    """Runs all cases; the exit status is 0 when all were right."""
    if not os.access(WEIR, os.X_OK) or not LIBRARY.is_file():
        sys.exit(f"owners: {WEIR} or its library not found: run `make build` or set WEIR_BIN")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="weir-owners-") as name:
        folder = pathlib.Path(name)
        compiled(folder)
        preloaded = {"LD_PRELOAD": f"{folder}/liballocator.so"}
        off = {"LD_PRELOAD": f"{LIBRARY}", "WEIR_MEMORY": "24M", "WEIR_DISABLE": "1"}
        idle = {"LD_PRELOAD": f"{LIBRARY}"}
        cases = (
            ("a linked allocator keeps its calls and its memory is managed", "linked", {}, True, {}),
            ("so does one in the executable", "inside", {}, True, {}),
            ("so does one that is preloaded", "plain", preloaded, True, {}),
            ("without one the family is Weir's", "plain", {}, True, {}),
            ("switched off the library changes no owner", "linked", {}, False, off),
            ("nor libc's", "plain", {}, False, off),
            ("nor without settings", "linked", {}, False, idle),
            ("nor libc's without settings", "plain", {}, False, idle),
        )
        for title, program, env, managed, more in cases:
            try:
                reason = check(folder, program, env, managed, more)
            except subprocess.TimeoutExpired:
                reason = f"not finished after {TIMEOUT_S} s"
            failed += bool(reason)
            print(f"{'FAIL' if reason else 'ok  '} {title} {reason}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
