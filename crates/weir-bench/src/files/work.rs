//! `weir-bench __files`: a plain program that reads a file, through a mapping or past the kernel's cache, and
//! checks every page that it reads.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir_cli::compare::numbers::{Random, mix};
use weir_cli::term;
use weir_os::host::{Advice, MappedFile, open_direct};

use crate::cli::FilesWorkArgs;
use crate::workload::{join_all, summary, timed};

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
const LINE_WORDS: usize = 8;
const LINES: u64 = (PAGE_WORDS / LINE_WORDS) as u64;
/// Each word of a page is so much more than the one before it.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes of a request past the cache, and how many of them are under way in a pass: what a disk needs to show
/// what it can.
const REQUEST_BYTES: usize = 1 << 20;
const DEPTH: usize = 8;

/// Writes a file of so many bytes, whole pages, to its disk.
pub fn write_file(path: &Path, bytes: u64) -> anyhow::Result<File> {
    let said = || path.display().to_string();
    let file = File::options().read(true).write(true).create_new(true).open(path).with_context(said)?;
    let mut file = BufWriter::with_capacity(REQUEST_BYTES, file);
    for page in 0..bytes / PAGE_BYTES as u64 {
        let words = (0..PAGE_WORDS as u64).map(|word| first_word(page).wrapping_add(STEP.wrapping_mul(word)));
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        file.write_all(&bytes).with_context(said)?;
    }
    let file = file.into_inner().map_err(|e| anyhow::anyhow!("{}: {}", said(), e.error()))?;
    file.sync_all().with_context(said)?;
    Ok(file)
}

fn first_word(page: u64) -> u64 {
    mix(page)
}

/// Sum of a page's first word per cache line.
fn expected(page: usize) -> u64 {
    const STEPS: u64 = LINE_WORDS as u64 * (LINES * (LINES - 1) / 2);
    first_word(page as u64).wrapping_mul(LINES).wrapping_add(STEP.wrapping_mul(STEPS))
}

fn check(first: usize, sums: impl Iterator<Item = u64>) -> anyhow::Result<()> {
    for (page, sum) in (first..).zip(sums) {
        ensure!(sum == expected(page), "page {page} of the file is damaged: its sum is {sum:#x}");
    }
    Ok(())
}

/// Reads what is asked for, and prints what it found.
pub fn main(args: &FilesWorkArgs) -> anyhow::Result<ExitCode> {
    ensure!(args.bytes > 0 && args.bytes.is_multiple_of(REQUEST_BYTES), "--bytes must be whole MiB");
    let way =
        Way::open(&args.file, args.bytes, &args.way).with_context(|| args.file.display().to_string())?;
    let found = match args.what.as_str() {
        "random" => random(&way, args)?,
        _ => passes(&way, args)?,
    };
    term::print(&format!("{found}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// A way to the file's bytes.
enum Way {
    Mapped(MappedFile),
    Direct(File),
}

impl Way {
    fn open(path: &Path, bytes: usize, way: &str) -> std::io::Result<Way> {
        let advice = match way {
            "direct" => return Ok(Way::Direct(open_direct(path)?)),
            "sequential" => Some(Advice::Sequential),
            "random" => Some(Advice::Random),
            _ => None,
        };
        let map = MappedFile::new(&File::open(path)?, bytes)?;
        advice.map_or(Ok(()), |advice| map.advise(advice))?;
        Ok(Way::Mapped(map))
    }

    /// Reads bytes, whole pages, and checks them: a word of each cache line.
    fn read(&self, buffer: &mut Buffer, offset: usize, bytes: usize) -> anyhow::Result<()> {
        let first = offset / PAGE_BYTES;
        match self {
            Way::Mapped(map) => {
                let words = &map.words()[offset / 8..][..bytes / 8];
                check(first, words.chunks(PAGE_WORDS).map(sum))
            }
            Way::Direct(file) => {
                let bytes = buffer.of(bytes);
                file.read_exact_at(bytes, offset as u64)?;
                let word =
                    |line: &[u8; 8 * LINE_WORDS]| u64::from_ne_bytes(*line.first_chunk().unwrap_or(&[0; 8]));
                let sum = |page: &[u8]| page.as_chunks().0.iter().map(word).fold(0_u64, u64::wrapping_add);
                check(first, bytes.chunks(PAGE_BYTES).map(sum))
            }
        }
    }

    /// Reads all of it, in order.
    fn pass(&self, bytes: usize) -> anyhow::Result<()> {
        let (depth, next) = (if matches!(self, Way::Direct(_)) { DEPTH } else { 1 }, AtomicUsize::new(0));
        let part = || {
            let mut buffer = Buffer::new(REQUEST_BYTES);
            loop {
                let at = next.fetch_add(REQUEST_BYTES, Relaxed);
                if at >= bytes {
                    return Ok(());
                }
                self.read(&mut buffer, at, REQUEST_BYTES)?;
            }
        };
        std::thread::scope(|scope| join_all((0..depth).map(|_| scope.spawn(part)).collect()))
            .into_iter()
            .collect()
    }

    /// RAM is full of the file, as far as it goes. Few requests, whatever the advice.
    fn fill(&self, bytes: usize) -> anyhow::Result<()> {
        let Way::Mapped(map) = self else { return Ok(()) };
        for at in (0..bytes).step_by(REQUEST_BYTES) {
            map.will_need(at..at + REQUEST_BYTES)?;
            self.read(&mut Buffer::new(0), at, REQUEST_BYTES)?;
        }
        Ok(())
    }
}

fn sum(page: &[AtomicU64]) -> u64 {
    page.iter().step_by(LINE_WORDS).fold(0, |sum, word| sum.wrapping_add(word.load(Relaxed)))
}

/// Memory that begins at a page, as reads past the cache want it.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        Buffer(vec![0; bytes + PAGE_BYTES])
    }

    fn of(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(PAGE_BYTES);
        &mut self.0[start..start + bytes]
    }
}

/// Passes over all of it; the first ones are not counted.
fn passes(way: &Way, args: &FilesWorkArgs) -> anyhow::Result<Value> {
    let (mut each, mut seconds, mut read) = (Vec::new(), 0.0, Some(0));
    for number in 0..args.passes {
        let (before, started) = (read_bytes(), Instant::now());
        way.pass(args.bytes)?;
        let (took, came) = (started.elapsed().as_secs_f64(), since(before));
        each.push(json!({ "seconds": took, "read_bytes": came }));
        if number >= args.settle {
            seconds += took;
            read = read.zip(came).map(|(read, came)| read + came);
        }
    }
    let counted = f64::from(args.passes.saturating_sub(args.settle));
    ensure!(counted > 0.0, "--settle leaves no pass to count");
    Ok(json!({
        "mb_per_s": args.bytes as f64 * counted / 1e6 / seconds,
        "read_bytes_per_pass": read.map(|read| read as f64 / counted),
        "passes": each,
    }))
}

/// Reads of chunks by chance, each thread its own.
fn random(way: &Way, args: &FilesWorkArgs) -> anyhow::Result<Value> {
    ensure!(args.chunk > 0 && args.chunk.is_multiple_of(PAGE_BYTES), "--chunk must be whole pages");
    ensure!(args.seconds > 0.0, "--seconds must be above 0");
    way.fill(args.bytes)?;
    let chunks = (args.bytes / args.chunk) as u64;
    let one = |thread: u64| {
        let (mut random, mut buffer) = (Random::new(1000 + thread), Buffer::new(args.chunk));
        timed(Duration::from_secs_f64(args.seconds), || {
            way.read(&mut buffer, random.below(chunks) as usize * args.chunk, args.chunk)
        })
    };
    let before = read_bytes();
    let measured = std::thread::scope(|scope| {
        join_all((0..args.threads).map(|thread| scope.spawn(move || one(thread))).collect())
    });
    let came = since(before);
    let mut found = summary(measured)?;
    let asked = found["all_ops"].as_f64().unwrap_or(0.0) * args.chunk as f64;
    found["read_per_byte"] = json!(came.map(|came| came as f64 / asked.max(1.0)));
    Ok(found)
}

/// Bytes that this process has had read from disks.
fn read_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

fn since(before: Option<u64>) -> Option<u64> {
    read_bytes()?.checked_sub(before?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4 << 20;

    fn args(what: &str, way: &str, file: &Path) -> FilesWorkArgs {
        let (what, way, file) = (what.to_owned(), way.to_owned(), file.to_owned());
        FilesWorkArgs {
            what,
            way,
            file,
            bytes: BYTES,
            threads: 3,
            chunk: 16 << 10,
            seconds: 0.01,
            passes: 3,
            settle: 1,
        }
    }

    /// Runs `f` on a file of the test's own.
    fn with_file(name: &str, f: impl FnOnce(&Path)) {
        let path = std::env::temp_dir().join(format!("weir-files-{name}-{}", std::process::id()));
        write_file(&path, BYTES as u64).unwrap();
        f(&path);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn passes_and_random_reads_find_the_file_whole_in_every_way() {
        with_file("ways", |path| {
            for name in ["normal", "sequential", "random", "direct"] {
                let args = args("passes", name, path);
                let way = match Way::open(path, BYTES, name) {
                    // A file system whose home is RAM may know no direct reads.
                    Err(_) if name == "direct" => continue,
                    way => way.unwrap(),
                };
                let found = passes(&way, &args).unwrap();
                assert!(found["mb_per_s"].as_f64().unwrap() > 0.0, "{name}: {found}");
                assert_eq!(found["passes"].as_array().unwrap().len(), 3);
                let found = random(&way, &args).unwrap();
                assert!(found["ops_per_s"].as_f64().unwrap() > 0.0, "{name}: {found}");
            }
        });
    }

    #[test]
    fn a_changed_word_is_found_in_every_way() {
        with_file("damaged", |path| {
            let file = File::options().write(true).open(path).unwrap();
            let word = PAGE_BYTES * 700 + 8 * LINE_WORDS * 5;
            file.write_all_at(&7_u64.to_ne_bytes(), word as u64).unwrap();
            file.sync_all().unwrap();
            for name in ["normal", "direct"] {
                let Ok(way) = Way::open(path, BYTES, name) else { continue };
                let error = way.pass(BYTES).unwrap_err().to_string();
                assert!(error.contains("page 700"), "{name}: {error}");
            }
        });
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        with_file("refused", |path| {
            let all_settle = FilesWorkArgs { settle: 3, ..args("passes", "normal", path) };
            let way = Way::open(path, BYTES, "normal").unwrap();
            assert!(passes(&way, &all_settle).unwrap_err().to_string().contains("--settle"));
            let odd = FilesWorkArgs { chunk: 100, ..args("random", "normal", path) };
            assert!(random(&way, &odd).unwrap_err().to_string().contains("--chunk"));
            let part = FilesWorkArgs { bytes: 4096, ..args("passes", "normal", path) };
            assert!(main(&part).unwrap_err().to_string().contains("--bytes"));
        });
    }
}
