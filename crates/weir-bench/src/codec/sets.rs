//! The pages that are compressed: memory of Python processes, arrays, text, programs, a database, and bytes
//! by rule. All made when the bench runs, from what the machine has.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use weir_cli::compare::numbers::mix;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Sets are whole runs of so many bytes.
const RUN_BYTES: usize = weir_os::codec::RUN_BYTES_MAX;
/// Mappings smaller than this are not the data that the process has made.
const MAPPING_BYTES_MIN: u64 = 256 << 10;

/// Pages, a multiple of 16.
#[derive(Debug)]
pub struct Set {
    /// In the table.
    pub name: String,
    /// What they are.
    pub what: String,
    /// The bytes.
    pub data: Vec<u8>,
}

/// A set in the memory of a Python process, by what the process does before it says so.
const HEAPS: [(&str, &str, &str); 3] = [
    (
        "heap, records",
        "CPython: dicts of numbers, strings and lists",
        "keep = [{'id': i, 'name': 'customer %d' % (i * 7919 % 100003), 'balance': random.random() * 1000, \
         'tags': ['t%d' % (i % 50), 't%d' % (i % 7)], 'active': i % 3 == 0} for i in range(n // 700)]",
    ),
    (
        "heap, strings",
        "CPython: lines of JSON, and what was parsed from them",
        "import json; keep = [json.dumps({'user': i, 'path': '/a/%x/%d' % (random.getrandbits(32), i % 97), \
         'ms': random.randrange(5000), 'agent': 'Mozilla/5.0 (X11; Linux x86_64) rv:%d' % (i % 120)}) for i in range(n // 900)]; \
         more = [json.loads(line) for line in keep]",
    ),
    (
        "heap, floats",
        "CPython: a list of float objects",
        "keep = [random.gauss(0, 1) for i in range(n // 32)]",
    ),
];

/// Arrays: with numpy where Python has it, else the same bytes by the module `array`.
const ARRAYS: [(&str, &str, &str, &str); 3] = [
    (
        "int64, ids",
        "array of 8-byte integers below a million",
        "keep = numpy.random.default_rng(1).integers(0, 1000000, n // 8)",
        "keep = array.array('q', (random.randrange(1000000) for i in range(n // 8)))",
    ),
    (
        "int64, times",
        "array of 8-byte integers that grow by up to 1000",
        "keep = numpy.cumsum(numpy.random.default_rng(1).integers(0, 1000, n // 8)) + 1700000000000000",
        "keep = array.array('q', itertools.accumulate((random.randrange(1000) for i in range(n // 8)), initial=1700000000000000))",
    ),
    (
        "float64, normal",
        "array of 8-byte floats, normally distributed",
        "keep = numpy.random.default_rng(1).standard_normal(n // 8)",
        "keep = array.array('d', (random.gauss(0, 1) for i in range(n // 8)))",
    ),
];

/// Makes the sets of about `bytes` each. What this machine has not got is left out, with a note.
pub fn made(python: &Path, bytes: usize, notes: &mut Vec<String>) -> Vec<Set> {
    let mut sets = Vec::new();
    let mut keep = |name: &str, what: &str, data: anyhow::Result<Vec<u8>>| {
        let whole = data.and_then(|data| whole_runs(data, bytes));
        match whole {
            Ok(data) => sets.push(Set { name: name.to_owned(), what: what.to_owned(), data }),
            Err(e) => notes.push(format!("without '{name}': {e:#}")),
        }
    };
    for (name, what, code) in HEAPS {
        keep(
            name,
            what,
            memory_of(python, &format!("import random; random.seed(1); {code}"), bytes, Part::All),
        );
    }
    for (name, what, numpy, plain) in ARRAYS {
        let code = format!(
            "import random, array, itertools\nrandom.seed(1)\ntry:\n    import numpy\n    {numpy}\nexcept ImportError:\n    {plain}"
        );
        keep(name, what, memory_of(python, &code, bytes, Part::Largest));
    }
    keep("text", "documents and programs in source", text(bytes));
    keep("program", "ELF file of this command", own_program());
    keep("database", "pages of an SQLite file", database(python, bytes));
    keep("40 % random", "pages of the other benches", Ok(by_rule(bytes, PAGE_BYTES * 4 / 10)));
    keep("random", "nothing to gain", Ok(by_rule(bytes, PAGE_BYTES)));
    sets
}

/// The set of a file's pages, up to `bytes` of them.
pub fn of_file(path: &Path, bytes: usize) -> anyhow::Result<Set> {
    let shown = path.display().to_string();
    let data = fs::read(path).with_context(|| format!("--file {shown}"))?;
    let name = path.file_name().map_or_else(|| shown.clone(), |name| name.to_string_lossy().into_owned());
    let data = whole_runs(data, bytes).with_context(|| format!("--file {shown}"))?;
    Ok(Set { name, what: shown, data })
}

/// Runs in which anything is, spread over all of `data`, up to `bytes`.
fn whole_runs(data: Vec<u8>, bytes: usize) -> anyhow::Result<Vec<u8>> {
    let runs: Vec<&[u8]> =
        data.chunks_exact(RUN_BYTES).filter(|run| run.iter().any(|byte| *byte != 0)).collect();
    ensure!(!runs.is_empty(), "less than {} KiB", RUN_BYTES >> 10);
    let (wanted, all) = ((bytes / RUN_BYTES).clamp(1, runs.len()), runs.len());
    Ok((0..wanted).flat_map(|i| runs[i * all / wanted].iter().copied()).collect())
}

/// A Python process that has its data and waits.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // Its stdin ends with this process in any case.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Which memory of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All that it has made, with what Python made for itself.
    All,
    /// The largest mapping: an array.
    Largest,
}

/// Memory of a Python process that has run `code`, which makes about `n` bytes.
fn memory_of(python: &Path, code: &str, bytes: usize, part: Part) -> anyhow::Result<Vec<u8>> {
    let code =
        format!("import sys\nn = {bytes} * 3 // 2\n{code}\nprint('ready', flush=True)\nsys.stdin.read()");
    let child = Command::new(python)
        .args(["-c", &code])
        .env("PYTHONHASHSEED", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("--python {}", python.display()))?;
    let mut holder = Holder(child);
    let mut said = String::new();
    BufReader::new(holder.0.stdout.take().context("no stdout")?).read_line(&mut said)?;
    ensure!(said.trim() == "ready", "{} could not run it", python.display());
    let of_process = |file: &str| format!("/proc/{}/{file}", holder.0.id());
    let maps = fs::read_to_string(of_process("maps"))?;
    let memory = File::open(of_process("mem"))?;
    let mut data = Vec::new();
    let mut mappings = private_mappings(&maps);
    if part == Part::Largest {
        mappings.sort_by_key(|(_, len)| std::cmp::Reverse(*len));
        mappings.truncate(1);
    }
    for (start, len) in mappings {
        let at = data.len();
        data.resize(at + len, 0);
        // What cannot be read (a guard page) is left out.
        if memory.read_exact_at(&mut data[at..], start).is_err() {
            data.truncate(at);
        }
    }
    Ok(data)
}

/// Start and length of the mappings that hold a process's own data: private, writable, of no file.
fn private_mappings(maps: &str) -> Vec<(u64, usize)> {
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (range, rights, name) = (fields.next()?, fields.next()?, fields.nth(3).unwrap_or(""));
        let (start, end) = range.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let own = rights == "rw-p" && (name.is_empty() || name == "[heap]");
        (own && end - start >= MAPPING_BYTES_MIN).then_some((start, (end - start) as usize))
    };
    maps.lines().filter_map(of_line).collect()
}

/// Text files below the folders where documents, word lists and scripts are, one after the other.
fn text(bytes: usize) -> anyhow::Result<Vec<u8>> {
    let mut folders: Vec<PathBuf> = [
        "/usr/share/dict",
        "/usr/share/doc",
        "/usr/share/perl",
        "/usr/lib/python3",
        "/usr/share/common-licenses",
    ]
    .map(PathBuf::from)
    .into();
    let mut data = Vec::new();
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().collect();
        entries.sort_by_key(fs::DirEntry::path);
        for entry in entries {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file()
                && let Ok(file) = fs::read_to_string(entry.path())
            {
                data.extend_from_slice(file.as_bytes());
            }
            if data.len() >= bytes {
                return Ok(data);
            }
        }
    }
    Ok(data)
}

fn own_program() -> anyhow::Result<Vec<u8>> {
    Ok(fs::read(std::env::current_exe()?)?)
}

/// An SQLite file of about `bytes`, made by Python in a folder of its own.
fn database(python: &Path, bytes: usize) -> anyhow::Result<Vec<u8>> {
    let path = std::env::temp_dir().join(format!("weir-bench-{}.sqlite", std::process::id()));
    let code = "import sys, sqlite3, random\nrandom.seed(1)\ndb = sqlite3.connect(sys.argv[1])\n\
                db.execute('pragma journal_mode=off')\n\
                db.execute('create table t(id integer primary key, name text, at integer, price real, note text)')\n\
                words = ['alpha', 'beta', 'gamma', 'delta', 'order', 'paid', 'sent', 'open', 'closed', 'returned']\n\
                rows = ((i, 'item %d' % random.randrange(10**6), 1700000000 + i * 37, random.random() * 100, \
                ' '.join(random.choices(words, k=6))) for i in range(int(sys.argv[2]) // 90))\n\
                db.executemany('insert into t values(?, ?, ?, ?, ?)', rows)\n\
                db.execute('create index by_name on t(name)')\ndb.commit()";
    let _ = fs::remove_file(&path);
    let output = Command::new(python)
        .arg("-c")
        .arg(code)
        .arg(&path)
        .arg(bytes.to_string())
        .stdin(Stdio::null())
        .output();
    let data = fs::read(&path);
    let _ = fs::remove_file(&path);
    let output = output.with_context(|| format!("--python {}", python.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.lines().last().unwrap_or("Python failed"));
    Ok(data?)
}

/// Pages that begin with so many random bytes; the rest is a line of 64 over and over.
fn by_rule(bytes: usize, random: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    for (page, contents) in data.chunks_mut(PAGE_BYTES).enumerate() {
        for (i, eight) in contents.chunks_mut(8).enumerate() {
            let at = if i * 8 < random { i as u64 } else { 1 << 40 | (i % 8) as u64 };
            eight.copy_from_slice(&mix(at ^ mix(page as u64)).to_le_bytes()[..eight.len()]);
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_own_data_is_in_private_writable_mappings_of_no_file() {
        let maps = "5581c0000000-5581c0100000 rw-p 00000000 00:00 0    [heap]\n\
                    5581b0000000-5581b0100000 r--p 00000000 08:01 42   /usr/bin/python3\n\
                    7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n\
                    7f1000000000-7f1000001000 rw-p 00000000 00:00 0 \n\
                    7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0    [stack]\n";
        assert_eq!(private_mappings(maps), [(0x5581_c000_0000, 1 << 20), (0x7f00_0000_0000, 2 << 20)]);
    }

    #[test]
    fn sets_are_whole_runs_spread_over_the_data_without_those_that_nobody_touched() {
        let mut data = vec![0; 10 * RUN_BYTES + 5];
        for (run, byte) in [(1, 1), (4, 4), (6, 6), (9, 9)] {
            data[run * RUN_BYTES + 17] = byte;
        }
        let bytes = |wanted: usize| -> Vec<u8> {
            let set = whole_runs(data.clone(), wanted * RUN_BYTES).unwrap();
            assert_eq!(set.len() % RUN_BYTES, 0);
            set.chunks(RUN_BYTES).map(|run| run[17]).collect()
        };
        assert_eq!((bytes(100), bytes(2)), (vec![1, 4, 6, 9], vec![1, 6]));
        assert!(whole_runs(vec![1; 4096], RUN_BYTES).is_err());
    }

    #[test]
    fn the_memory_of_a_python_process_has_what_it_was_told_to_keep() {
        let data = memory_of(
            Path::new("python3"),
            "keep = [b'a mark to be found %d' % i for i in range(n // 64)]",
            1 << 20,
            Part::All,
        )
        .unwrap();
        assert!(data.windows(22).any(|bytes| bytes == b"a mark to be found 777"), "{} bytes", data.len());
        let largest = memory_of(
            Path::new("python3"),
            "keep = bytearray(4 << 20); keep[:] = b'x' * len(keep)",
            1 << 20,
            Part::Largest,
        );
        let largest = largest.unwrap();
        // The kernel makes one mapping of neighbours: others' bytes may be in it, but not many.
        let found = largest.iter().filter(|byte| **byte == b'x').count();
        assert!(found >= 4 << 20 && largest.len() < 7 << 20, "{found} of {}", largest.len());
        let gone = memory_of(Path::new("python3"), "raise SystemExit", 1 << 20, Part::All).unwrap_err();
        assert!(gone.to_string().contains("could not run"), "{gone:#}");
    }

    #[test]
    fn pages_by_rule_have_their_random_part_and_differ() {
        let data = by_rule(2 * PAGE_BYTES, PAGE_BYTES / 2);
        let (one, two) = data.split_at(PAGE_BYTES);
        assert!(one != two && one[PAGE_BYTES - 64..] == one[PAGE_BYTES / 2..][..64]);
        assert!(one[..64] != one[64..128]);
    }
}
