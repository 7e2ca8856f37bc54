//! Traces of page accesses to replay: made by rule, or read from a file.

use std::io::BufRead;
use std::path::Path;

use anyhow::{Context, ensure};
use weir::replay::BLOCK_PAGES;
use weir_cli::compare::numbers::Random;
use weir_os::mem::PAGE_BYTES;

use crate::workload::Zipf;

/// A trace and the RAM that it is replayed against.
#[derive(Debug)]
pub struct Trace {
    /// Name in the table.
    pub name: String,
    /// What it does, for the report.
    pub what: &'static str,
    /// Pages accessed, in order; numbers below `pages`.
    pub accesses: Vec<u32>,
    /// Distinct page numbers: one above the highest.
    pub pages: u32,
    /// Several behaviours at once: the optimum counts here.
    pub mixed: bool,
}

/// Neighbouring pages that are accessed one after the other, where a trace has such runs.
const PAGES_PER_RUN: u32 = 16;

/// The traces made by rule, over `frames` frames: each as long as `rounds` times the frames.
pub fn made(frames: u32, rounds: u32) -> Vec<Trace> {
    let n = frames as usize * rounds as usize;
    let trace = |name: &str, what, pages, mixed, accesses| Trace {
        name: name.to_owned(),
        what,
        accesses,
        pages,
        mixed,
    };
    let traces = vec![
        trace(
            "zipf",
            "zipf 0.99 over twice the RAM, hot pages anywhere",
            2 * frames,
            false,
            zipf(2 * frames, n, 1),
        ),
        trace(
            "zipf, near",
            "the same, hot pages side by side in runs of 16",
            2 * frames,
            false,
            zipf_in_runs(frames, n),
        ),
        trace(
            "scan + hot",
            "half of the accesses to a hot half of the RAM, half a scan of four times the RAM",
            5 * frames,
            true,
            scan_and_hot(frames, n),
        ),
        trace(
            "phases",
            "zipf over one and a half times the RAM, elsewhere after every four rounds",
            6 * frames,
            true,
            phases(frames, n),
        ),
        trace(
            "all at once",
            "zipf, a scan and a loop over half the RAM, in turn by runs of 16",
            5 * frames,
            true,
            all_at_once(frames, n),
        ),
        trace("random", "any page of twice the RAM", 2 * frames, false, random(2 * frames, n)),
    ];
    traces.into_iter().chain(passes(frames, n)).collect()
}

/// Pages by chance.
fn random(pages: u32, n: usize) -> Vec<u32> {
    let mut random = Random::new(7);
    (0..n).map(|_| random.below(u64::from(pages)) as u32).collect()
}

/// Those that go over the same pages again and again.
fn passes(frames: u32, n: usize) -> Vec<Trace> {
    let trace = |name: &str, what, pages, accesses| Trace {
        name: name.to_owned(),
        what,
        accesses,
        pages,
        mixed: false,
    };
    let looped = |tenths: u32| frames / 10 * tenths;
    let loops = LOOPS.map(|(name, what, tenths)| {
        trace(name, what, looped(tenths), round(0, looped(tenths)).take(n).collect())
    });
    let others = [
        trace(
            "two loops",
            "half the time over 1.3 times the RAM, then over other 1.3 times",
            2 * looped(13),
            two_loops(looped(13), n),
        ),
        trace(
            "to and fro",
            "forwards and backwards over 1.3 times the RAM",
            looped(13),
            to_and_fro(looped(13), n),
        ),
        trace(
            "heap",
            "passes in one fixed mixed order, by runs of 16, over what grows from half to twice the RAM",
            2 * frames,
            heap(frames, n),
        ),
    ];
    loops.into_iter().chain(others).collect()
}

/// Loops: name, description, and tenths of the RAM that they go over.
const LOOPS: [(&str, &str, u32); 3] = [
    ("loop", "round and round over 1.1 times the RAM", 11),
    ("loop 1.3", "round and round over 1.3 times the RAM", 13),
    ("loop 1.6", "round and round over 1.6 times the RAM", 16),
];

/// Pages from `first` on, one after the other, over and over.
fn round(first: u32, pages: u32) -> impl Iterator<Item = u32> {
    (0..pages).cycle().map(move |page| first + page)
}

/// Which of `parts` behaviours the i-th access belongs to, in turn by runs.
fn turn(i: usize, parts: usize) -> usize {
    i / PAGES_PER_RUN as usize % parts
}

fn zipf_in_runs(frames: u32, n: usize) -> Vec<u32> {
    let runs = zipf(2 * frames / PAGES_PER_RUN, n, 2);
    (0..n).map(|i| runs[i] * PAGES_PER_RUN + i as u32 % PAGES_PER_RUN).collect()
}

fn scan_and_hot(frames: u32, n: usize) -> Vec<u32> {
    let (mut random, hot) = (Random::new(3), frames / 2);
    let mut scan = round(hot, 4 * frames);
    let mut hot_page = || random.below(u64::from(hot)) as u32;
    (0..n).map(|i| if turn(i, 2) == 0 { hot_page() } else { scan.next().unwrap_or(0) }).collect()
}

fn phases(frames: u32, n: usize) -> Vec<u32> {
    let (part, length) = (frames / 2 * 3, 4 * frames as usize);
    zipf(part, n, 4).into_iter().enumerate().map(|(i, page)| (i / length % 4) as u32 * part + page).collect()
}

fn all_at_once(frames: u32, n: usize) -> Vec<u32> {
    let mut hot = zipf(frames, n, 5).into_iter();
    let (mut scan, mut looped) = (round(frames, 3 * frames), round(4 * frames, frames / 2));
    let sources: [&mut dyn Iterator<Item = u32>; 3] = [&mut hot, &mut scan, &mut looped];
    (0..n).map(|i| sources[turn(i, 3)].next().unwrap_or(0)).collect()
}

fn two_loops(pages: u32, n: usize) -> Vec<u32> {
    round(0, pages).take(n / 2).chain(round(pages, pages).take(n - n / 2)).collect()
}

fn to_and_fro(pages: u32, n: usize) -> Vec<u32> {
    (0..pages).chain((0..pages).rev()).cycle().take(n).collect()
}

/// What a garbage collector does: every pass goes over all of the heap in the same mixed order.
fn heap(frames: u32, n: usize) -> Vec<u32> {
    let (first, last) = (frames / 2 / PAGES_PER_RUN, 2 * frames / PAGES_PER_RUN);
    let (mut random, mut order) = (Random::new(6), (0..last).collect::<Vec<u32>>());
    (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    let mut accesses = Vec::with_capacity(n);
    while accesses.len() < n {
        let size = first + (u64::from(last - first) * accesses.len() as u64 / n as u64) as u32;
        let runs = order.iter().filter(|run| **run < size);
        accesses.extend(runs.flat_map(|run| (0..PAGES_PER_RUN).map(move |i| run * PAGES_PER_RUN + i)));
    }
    accesses.truncate(n);
    accesses
}

/// Pages by zipf's law, the ranks spread over the pages.
fn zipf(pages: u32, n: usize, seed: u64) -> Vec<u32> {
    let law = Zipf::new(u64::from(pages));
    let mut random = Random::new(seed);
    (0..n).map(|_| law.page(&mut random) as u32).collect()
}

/// A trace from a file: a page number (or an address in hexadecimal, after `0x`) at the start of each line.
/// Pages are numbered anew in the order of their addresses, gaps closed to whole blocks of 64.
pub fn from_file(path: &Path) -> anyhow::Result<Trace> {
    const BLOCK: u64 = BLOCK_PAGES as u64;
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let mut numbers = Vec::new();
    for (i, line) in std::io::BufReader::new(file).lines().enumerate() {
        let line = line?;
        let Some(first) = line.split([' ', ',', '\t']).find(|part| !part.is_empty()) else { continue };
        let number = match first.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).map(|addr| addr / PAGE_BYTES as u64),
            None => first.parse(),
        };
        numbers.push(number.with_context(|| format!("{} line {}: {first}", path.display(), i + 1))?);
    }
    ensure!(!numbers.is_empty(), "{}: no accesses", path.display());
    let mut blocks: Vec<u64> = numbers.iter().map(|page| page / BLOCK).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let pages = u32::try_from(blocks.len() as u64 * BLOCK).context("too many pages")?;
    let place = |page: u64| {
        let block = blocks.binary_search(&(page / BLOCK)).unwrap_or(0) as u64;
        (block * BLOCK + page % BLOCK) as u32
    };
    let accesses = numbers.into_iter().map(place).collect();
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Trace { name, what: "from a file", accesses, pages, mixed: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_traces_stay_within_their_pages_and_repeat() {
        for (trace, again) in made(640, 4).iter().zip(made(640, 4)) {
            assert_eq!(trace.accesses.len(), 4 * 640, "{}", trace.name);
            assert!(trace.accesses.iter().all(|page| *page < trace.pages), "{}", trace.name);
            assert_eq!(trace.accesses, again.accesses, "{}", trace.name);
        }
    }

    #[test]
    fn a_heap_is_passed_in_one_order_and_grows_and_to_and_fro_turns_at_the_ends() {
        let accesses = heap(640, 24 * 640);
        let first: Vec<u32> = accesses[..320].iter().step_by(16).copied().collect();
        let again = accesses[320..].iter().filter(|page| first.contains(page)).take(20);
        assert!(again.eq(&first) && !first.is_sorted());
        assert!(accesses[..320].iter().max() == Some(&319) && accesses.iter().max() > Some(&1000));
        assert_eq!(to_and_fro(3, 8), [0, 1, 2, 2, 1, 0, 0, 1]);
        assert_eq!(two_loops(2, 8), [0, 1, 0, 1, 2, 3, 2, 3]);
    }

    #[test]
    fn a_file_of_addresses_or_pages_is_read_and_gaps_close() {
        let path = std::env::temp_dir().join(format!("weir-trace-{}", std::process::id()));
        std::fs::write(&path, "0x7f0000001000 r\n0x7f0000001fff\n\n0x2000\n5\n").unwrap();
        let trace = from_file(&path).unwrap();
        std::fs::write(&path, "five\n").unwrap();
        let wrong = from_file(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((trace.accesses.as_slice(), trace.pages), ([65, 65, 2, 5].as_slice(), 128));
        assert!(wrong.contains("line 1: five"), "{wrong}");
    }
}
