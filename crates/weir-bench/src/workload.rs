//! `weir-bench __workload`: a plain program that knows nothing of Weir. It maps memory, fills it, reads and
//! writes it in the orders that matter, checks every value it sees, and prints one JSON line.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value, json};
use weir::config::parse_size;
use weir_cli::compare::numbers::{Random, mix};
use weir_cli::compare::sides::Job;
use weir_cli::term;
use weir_os::host::AnonymousWords;

use super::{calls, filework, graph};
use crate::cli::WorkloadArgs;

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
const LINE_WORDS: usize = 8;
/// 40 % of a page is random bytes, the rest repeats every cache line.
const RANDOM_WORDS: usize = PAGE_WORDS * 2 / 5;
/// Ready-made page contents; few enough to stay in the cache, so that filling measures memory and not the
/// generator.
const TEMPLATES: usize = 64;
/// Word of a page that names the page.
const STAMP_WORD: usize = 0;
/// Word of a page that random writes change.
const WRITTEN_WORD: usize = 1;
/// Words that the phase of that name reads of each page.
const WORDS_OF_A_PAGE: u32 = 4;
/// Pages that a thread of the sweep phase takes at a time.
const SWEEP_PAGES: usize = 16;
/// Skew of the zipf phase.
const ZIPF_THETA: f64 = 0.99;
/// Threads of a phase.
const THREADS_MAX: usize = 64;
/// Longest random-access phase.
const SECONDS_MAX: f64 = 600.0;
/// Two significant digits keep the histogram small: it must not become data that the measured system swaps.
const HISTOGRAM_DIGITS: u8 = 2;
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// A job of this binary's own `__workload`.
pub fn job(args: &[&str], deadline: Duration) -> anyhow::Result<Job> {
    Job::own("__workload", args, deadline)
}

/// Runs the phases in the order given and prints their results.
pub fn main(args: &WorkloadArgs) -> anyhow::Result<ExitCode> {
    let bytes = parse_size(&args.bytes, 0).with_context(|| format!("--bytes {}", args.bytes))?;
    ensure!(
        args.seconds > 0.0 && args.seconds <= SECONDS_MAX,
        "--seconds must be above 0 and at most {SECONDS_MAX}"
    );
    let bytes = usize::try_from(bytes)?;
    let result = if args.phases == ["graph"] {
        graph::workload(bytes, Duration::from_secs_f64(args.seconds), args.settle)?
    } else if args.phases == ["files"] {
        let size = &args.file_bytes;
        let file_bytes = parse_size(size, 0).with_context(|| format!("--file-bytes {size}"))?;
        let file = args.file.as_deref().context("files: --file is missing")?;
        filework::workload(bytes, file, usize::try_from(file_bytes)?)?
    } else if args.phases == ["gate"] {
        calls::workload(args.calls)?
    } else {
        run_phases(&args.phases, bytes, Duration::from_secs_f64(args.seconds), args.passes)?
    };
    term::print(&format!("{result}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn run_phases(phases: &[String], bytes: usize, length: Duration, passes: u32) -> anyhow::Result<Value> {
    let pages = bytes / PAGE_BYTES;
    ensure!(pages > 0, "--bytes must be at least {PAGE_BYTES}");
    let mut data = Data::new(pages)?;
    let mut results = Map::new();
    results.insert("fill".to_owned(), data.fill());
    for phase in phases {
        let (kind, threads) = phase.split_once('@').unwrap_or((phase, "1"));
        let threads: usize = threads.parse().with_context(|| format!("threads of {phase}"))?;
        ensure!((1..=THREADS_MAX).contains(&threads), "{phase}: 1 to {THREADS_MAX} threads");
        let result = match kind {
            "fill" => continue, // always first, done above
            "seqread" => data.sequential_read(passes)?,
            "sweep" => data.sweep(threads, length)?,
            "stream" => data.stream(threads, length)?,
            "randread" => data.random_read(threads, length, &Pattern::Uniform, 1)?,
            "randwords" => data.random_read(threads, length, &Pattern::Uniform, WORDS_OF_A_PAGE)?,
            "zipf" => data.random_read(threads, length, &Pattern::Zipf(Zipf::new(pages as u64)), 1)?,
            "randwrite" => data.random_write(length)?,
            _ => bail!("unknown phase '{phase}'"),
        };
        results.insert(phase.clone(), result);
    }
    let checking = Instant::now();
    data.check_all()?;
    let check_s = checking.elapsed().as_secs_f64();
    Ok(json!({
        "bytes": pages * PAGE_BYTES, "pages": pages, "verified": true, "check_s": check_s, "phases": results,
    }))
}

/// The memory under test and what must be in it.
struct Data {
    memory: AnonymousWords,
    templates: Vec<[u64; PAGE_WORDS]>,
    /// How often each page's `WRITTEN_WORD` was overwritten.
    writes: Vec<u32>,
    pages: usize,
}

fn stamp(page: usize) -> u64 {
    mix(page as u64)
}

fn written(page: usize, times: u32) -> u64 {
    mix(stamp(page) ^ u64::from(times))
}

fn template_of(page: usize) -> usize {
    (stamp(page) >> 32) as usize % TEMPLATES
}

fn templates() -> Vec<[u64; PAGE_WORDS]> {
    let mut random = Random::new(40);
    let mut all = vec![[0; PAGE_WORDS]; TEMPLATES];
    for template in &mut all {
        let line: [u64; LINE_WORDS] = std::array::from_fn(|_| random.next_word());
        for (i, word) in template.iter_mut().enumerate() {
            *word = if i < RANDOM_WORDS { random.next_word() } else { line[i % LINE_WORDS] };
        }
    }
    all
}

fn line_sums(templates: &[[u64; PAGE_WORDS]]) -> Vec<u64> {
    templates.iter().map(line_sum).collect()
}

/// Sum of a page's first word per cache line, without the stamp.
fn line_sum(template: &[u64; PAGE_WORDS]) -> u64 {
    (LINE_WORDS..PAGE_WORDS).step_by(LINE_WORDS).fold(0, |sum, i| sum.wrapping_add(template[i]))
}

impl Data {
    fn new(pages: usize) -> anyhow::Result<Data> {
        let memory = AnonymousWords::new(pages * PAGE_BYTES)
            .with_context(|| format!("cannot map {} bytes", pages * PAGE_BYTES))?;
        Ok(Data { memory, templates: templates(), writes: vec![0; pages], pages })
    }

    fn fill(&mut self) -> Value {
        let started = Instant::now();
        let (pages, _) = self.memory.words_mut().as_chunks_mut::<PAGE_WORDS>();
        for (page, words) in pages.iter_mut().enumerate() {
            words.copy_from_slice(&self.templates[template_of(page)]);
            words[STAMP_WORD] = stamp(page);
            words[WRITTEN_WORD] = written(page, 0);
        }
        self.throughput(started.elapsed(), 1)
    }

    fn throughput(&self, elapsed: Duration, passes: u32) -> Value {
        let bytes = (self.pages * PAGE_BYTES) as f64 * f64::from(passes);
        json!({ "mb_per_s": bytes / 1e6 / elapsed.as_secs_f64(), "seconds": elapsed.as_secs_f64() })
    }

    fn sequential_read(&self, passes: u32) -> anyhow::Result<Value> {
        let sums = line_sums(&self.templates);
        let expected = (0..self.pages)
            .fold(0_u64, |sum, page| sum.wrapping_add(stamp(page)).wrapping_add(sums[template_of(page)]));
        let (started, mut written, mut ends) = (Instant::now(), Vec::new(), Vec::new());
        for _ in 0..passes {
            let before = Written::now();
            let words = self.memory.words().iter().step_by(LINE_WORDS);
            let sum = words.fold(0_u64, |sum, word| sum.wrapping_add(word.load(Relaxed)));
            ensure!(
                sum == expected,
                "sequential read: sum {sum:#x} instead of {expected:#x}: data is damaged"
            );
            ends.push(started.elapsed());
            written.push(Written::now().since(before));
        }
        let mut result = self.throughput(started.elapsed(), passes);
        // In the first pass what goes out is what was written before; in those after it nobody has changed
        // anything.
        if let [first, .., last] = ends[..] {
            result["first_mb_per_s"] = self.throughput(first, 1)["mb_per_s"].take();
            result["again_mb_per_s"] = self.throughput(last - first, passes - 1)["mb_per_s"].take();
        }
        result["written_by_pass"] = json!(written);
        Ok(result)
    }

    /// All threads together write a word to one page after the other, over and over: who is free takes the
    /// next few pages. So no thread can stay among pages that are there, and every page has to be written to
    /// disk again when it goes out.
    fn sweep(&mut self, threads: usize, length: Duration) -> anyhow::Result<Value> {
        let words = self.memory.words();
        // Locked against a thread that was stopped for a whole round.
        let parts: Vec<Mutex<&mut [u32]>> = self.writes.chunks_mut(SWEEP_PAGES).map(Mutex::new).collect();
        let next = AtomicUsize::new(0);
        let one_part = || {
            let part = next.fetch_add(1, Relaxed) % parts.len();
            let mut writes = parts[part].lock().map_err(|_| anyhow::anyhow!("another thread failed"))?;
            for (index, times) in writes.iter_mut().enumerate() {
                let page = part * SWEEP_PAGES + index;
                *times += 1;
                words[page * PAGE_WORDS + WRITTEN_WORD].store(written(page, *times), Relaxed);
            }
            Ok(())
        };
        let (before, flushes) = (Written::now(), flush_interrupts());
        let started = Instant::now();
        let measured: Vec<anyhow::Result<Measured>> = std::thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| timed(length, one_part));
            join_all((0..threads).map(spawn).collect())
        });
        let mut result = summary(measured)?;
        result["pages_per_s"] = json!(result["ops_per_s"].as_f64().map(|ops| ops * SWEEP_PAGES as f64));
        let flushes = flush_interrupts().zip(flushes).map(|(now, then)| now.saturating_sub(then));
        result["flush_interrupts_per_s"] = json!(flushes.map(|n| n as f64 / started.elapsed().as_secs_f64()));
        result["written"] = json!(Written::now().since(before));
        Ok(result)
    }

    /// Compares one word with what was written there by the fill.
    fn check_word(&self, page: usize, word: usize) -> anyhow::Result<()> {
        let expected = match word {
            STAMP_WORD | WRITTEN_WORD => return check_stamp(self.memory.words(), page),
            _ => self.templates[template_of(page)][word],
        };
        let found = self.memory.words()[page * PAGE_WORDS + word].load(Relaxed);
        ensure!(found == expected, "page {page}: found {found:#x} at word {word} instead of {expected:#x}");
        Ok(())
    }

    /// Each thread reads its own part from end to end, once a pass, and waits for the others: nobody can go
    /// round among pages that are there. Passes until `length` is over.
    fn stream(&self, threads: usize, length: Duration) -> anyhow::Result<Value> {
        let sums = line_sums(&self.templates);
        let part = self.pages.div_ceil(threads);
        let read = |first: usize| {
            (first..(first + part).min(self.pages)).try_for_each(|page| self.check_lines(page, &sums))
        };
        let (started, mut passes) = (Instant::now(), 0);
        while passes == 0 || started.elapsed() < length {
            std::thread::scope(|scope| {
                let spawn = |thread| scope.spawn(move || read(thread * part));
                join_all((0..threads).map(spawn).collect()).into_iter().collect::<anyhow::Result<()>>()
            })?;
            passes += 1;
        }
        let mut result = self.throughput(started.elapsed(), passes);
        result["passes"] = json!(passes);
        Ok(result)
    }

    /// Reads a word of each cache line of a page.
    fn check_lines(&self, page: usize, sums: &[u64]) -> anyhow::Result<()> {
        let words = self.memory.words();
        check_stamp(words, page)?;
        let lines = words[page * PAGE_WORDS..][LINE_WORDS..PAGE_WORDS].iter().step_by(LINE_WORDS);
        let sum = lines.fold(0_u64, |sum, word| sum.wrapping_add(word.load(Relaxed)));
        ensure!(sum == sums[template_of(page)], "page {page}: damaged");
        Ok(())
    }

    /// Reads so many words of a page by chance, each anywhere in it.
    fn random_read(
        &self,
        threads: usize,
        length: Duration,
        pattern: &Pattern,
        words_of_a_page: u32,
    ) -> anyhow::Result<Value> {
        let before = processor_seconds();
        let measured: Vec<anyhow::Result<Measured>> = std::thread::scope(|scope| {
            let spawn = |thread: usize| {
                scope.spawn(move || {
                    let mut random = Random::new(1000 + thread as u64);
                    timed(length, || {
                        let page = pattern.page(&mut random, self.pages);
                        (0..words_of_a_page)
                            .try_for_each(|_| self.check_word(page, random.below(PAGE_WORDS as u64) as usize))
                    })
                })
            };
            join_all((0..threads).map(spawn).collect())
        });
        let mut result = summary(measured)?;
        result["processor_s"] = json!(processor_seconds().zip(before).map(|(now, then)| now - then));
        Ok(result)
    }

    fn random_write(&mut self, length: Duration) -> anyhow::Result<Value> {
        let mut random = Random::new(2000);
        let (words, writes, pages) = (self.memory.words(), &mut self.writes, self.pages as u64);
        let measured = timed(length, || {
            let page = random.below(pages) as usize;
            writes[page] += 1;
            words[page * PAGE_WORDS + WRITTEN_WORD].store(written(page, writes[page]), Relaxed);
            Ok(())
        });
        summary(vec![measured])
    }

    /// Compares every word with what was written last.
    fn check_all(&self) -> anyhow::Result<()> {
        for page in 0..self.pages {
            check_stamp(self.memory.words(), page)?;
            let words = &self.memory.words()[page * PAGE_WORDS..][..PAGE_WORDS];
            ensure!(
                words[WRITTEN_WORD].load(Relaxed) == written(page, self.writes[page]),
                "page {page}: write {} was lost",
                self.writes[page]
            );
            let template = &self.templates[template_of(page)][WRITTEN_WORD + 1..];
            let same =
                words[WRITTEN_WORD + 1..].iter().zip(template).all(|(word, t)| word.load(Relaxed) == *t);
            ensure!(same, "page {page}: damaged");
        }
        Ok(())
    }
}

fn check_stamp(words: &[AtomicU64], page: usize) -> anyhow::Result<()> {
    let found = words[page * PAGE_WORDS + STAMP_WORD].load(Relaxed);
    ensure!(found == stamp(page), "page {page}: found {found:#x} instead of {:#x}", stamp(page));
    Ok(())
}

/// What each thread found.
pub fn join_all<T>(
    handles: Vec<std::thread::ScopedJoinHandle<'_, anyhow::Result<T>>>,
) -> Vec<anyhow::Result<T>> {
    let gone = |_| Err(anyhow::anyhow!("a thread of the workload failed"));
    handles.into_iter().map(|handle| handle.join().unwrap_or_else(gone)).collect()
}

/// Bytes written to disk so far, where the kernel tells.
#[derive(Clone, Copy, Debug, Serialize)]
struct Written {
    /// By this process.
    own_bytes: Option<u64>,
    /// By the kernel's own swap, of all processes.
    kernel_swap_bytes: Option<u64>,
}

/// Interrupts so far that told a processor to forget mappings, of all processes; `None` where the kernel does
/// not count them.
pub fn flush_interrupts() -> Option<u64> {
    flush_interrupts_of(&std::fs::read_to_string("/proc/interrupts").ok()?)
}

fn flush_interrupts_of(interrupts: &str) -> Option<u64> {
    let line = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(line.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok()).sum())
}

/// Processor time of all threads of this process so far, by the kernel's clock of 10 ms.
fn processor_seconds() -> Option<f64> {
    processor_seconds_of(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

fn processor_seconds_of(stat: &str) -> Option<f64> {
    const TICKS_PER_S: f64 = 100.0;
    // The name of the program, in brackets, may hold anything. The times are fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_S)
}

impl Written {
    fn now() -> Written {
        let number = |path: &str, key: &str| -> Option<u64> {
            let text = std::fs::read_to_string(path).ok()?;
            text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
        };
        let pages = number("/proc/vmstat", "pswpout ");
        Written {
            own_bytes: number("/proc/self/io", "write_bytes:"),
            kernel_swap_bytes: pages.map(|pages| pages * PAGE_BYTES as u64),
        }
    }

    fn since(self, before: Written) -> Written {
        let less = |now: Option<u64>, then: Option<u64>| now?.checked_sub(then?);
        Written {
            own_bytes: less(self.own_bytes, before.own_bytes),
            kernel_swap_bytes: less(self.kernel_swap_bytes, before.kernel_swap_bytes),
        }
    }
}

/// What one thread measured.
pub struct Measured {
    latency_ns: Histogram<u64>,
    /// Accesses before these.
    warming: u64,
    elapsed: Duration,
}

/// Repeats `access` for `length` after a quarter of that (half a second at most) for settling, one clock
/// reading per access: what an access takes includes choosing its page.
pub fn timed(length: Duration, mut access: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Measured> {
    let mut latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, HISTOGRAM_DIGITS)?;
    let warm = Instant::now() + (length / 4).min(Duration::from_millis(500));
    let mut warming = 0;
    while Instant::now() < warm {
        access()?;
        warming += 1;
    }
    let started = Instant::now();
    let mut previous = started;
    while previous - started < length {
        access()?;
        let now = Instant::now();
        latency_ns.saturating_record((now - previous).as_nanos() as u64);
        previous = now;
    }
    Ok(Measured { latency_ns, warming, elapsed: previous - started })
}

/// All threads together.
pub fn summary(measured: Vec<anyhow::Result<Measured>>) -> anyhow::Result<Value> {
    let mut all = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, HISTOGRAM_DIGITS)?;
    let (mut ops_per_s, mut warming) = (0.0, 0);
    for one in measured {
        let one = one?;
        warming += one.warming;
        ops_per_s += one.latency_ns.len() as f64 / one.elapsed.as_secs_f64();
        all.add(&one.latency_ns)?;
    }
    Ok(json!({
        "ops": all.len(),
        "all_ops": all.len() + warming,
        "ops_per_s": ops_per_s,
        "p50_ns": all.value_at_quantile(0.5),
        "p99_ns": all.value_at_quantile(0.99),
        "p999_ns": all.value_at_quantile(0.999),
        "max_ns": all.max(),
    }))
}

/// Order of random accesses.
enum Pattern {
    Uniform,
    Zipf(Zipf),
}

impl Pattern {
    fn page(&self, random: &mut Random, pages: usize) -> usize {
        match self {
            Pattern::Uniform => random.below(pages as u64) as usize,
            Pattern::Zipf(zipf) => zipf.page(random),
        }
    }
}

/// Zipf-distributed pages: the generator of Gray et al., "Quickly generating billion-record synthetic
/// databases" (SIGMOD 1994), with ranks scattered over the pages so that hot pages are no neighbours.
pub struct Zipf {
    pages: u64,
    alpha: f64,
    zeta: f64,
    eta: f64,
    scatter: u64,
}

impl Zipf {
    /// Over so many pages.
    pub fn new(pages: u64) -> Zipf {
        let zeta_of = |n: u64| (1..=n).map(|i| (i as f64).powf(-ZIPF_THETA)).sum::<f64>();
        let zeta = zeta_of(pages);
        let eta = (1.0 - (2.0 / pages as f64).powf(1.0 - ZIPF_THETA)) / (1.0 - zeta_of(2.min(pages)) / zeta);
        // Multiplying by a number that shares no factor with `pages` is a permutation.
        let mut scatter = (pages as f64 * 0.618) as u64 | 1;
        while gcd(scatter, pages) != 1 {
            scatter += 2;
        }
        Zipf { pages, alpha: 1.0 / (1.0 - ZIPF_THETA), zeta, eta, scatter }
    }

    /// A page by chance.
    pub fn page(&self, random: &mut Random) -> usize {
        let u = random.unit();
        let uz = u * self.zeta;
        let rank = if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5_f64.powf(ZIPF_THETA) {
            1
        } else {
            (self.pages as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        };
        let rank = rank.min(self.pages - 1);
        ((u128::from(rank) * u128::from(self.scatter)) % u128::from(self.pages)) as usize
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(list: &[&str]) -> anyhow::Result<Value> {
        let list: Vec<String> = list.iter().map(|p| (*p).to_owned()).collect();
        run_phases(&list, 2 << 20, Duration::from_millis(20), 2)
    }

    #[test]
    fn all_phases_run_and_verify() {
        let list = [
            "fill",
            "seqread",
            "stream@3",
            "randread@1",
            "randread@2",
            "randwords@1",
            "randwrite@1",
            "sweep@3",
            "zipf@1",
            "zipf@2",
        ];
        let result = phases(&list).unwrap();
        assert_eq!((result["verified"].as_bool(), result["pages"].as_u64()), (Some(true), Some(512)));
        for phase in &list[..3] {
            assert!(result["phases"][phase]["mb_per_s"].as_f64().unwrap() > 0.0, "{phase}");
        }
        for phase in &list[3..] {
            let row = &result["phases"][phase];
            assert!(row["ops"].as_u64().unwrap() > 0 && row["ops_per_s"].as_f64().unwrap() > 0.0, "{phase}");
            let (p50, p99, p999) = (row["p50_ns"].as_u64(), row["p99_ns"].as_u64(), row["p999_ns"].as_u64());
            assert!(p50 <= p99 && p99 <= p999, "{phase}");
        }
    }

    #[test]
    fn flush_interrupts_are_summed_over_the_processors() {
        let text =
            "           CPU0       CPU1\n  9:  1  2  IO-APIC\nTLB:   78019056   73907457   TLB shootdowns\n";
        assert_eq!(flush_interrupts_of(text), Some(78_019_056 + 73_907_457));
        assert_eq!(flush_interrupts_of("  9:  1  2  IO-APIC\n"), None);
    }

    #[test]
    fn processor_time_is_read_behind_a_name_that_looks_like_fields() {
        let stat = "12 (a) b 3) S 1 2 3 0 -1 4 5 6 7 8 250 50 0 0 20 0 1 0";
        assert_eq!(processor_seconds_of(stat), Some(3.0));
        assert_eq!(processor_seconds_of("12 (a) S 1"), None);
        assert!(processor_seconds().is_some());
    }

    #[test]
    fn unknown_phases_and_bad_thread_counts_are_refused() {
        for bad in ["sleep", "randread@0", "randread@65", "randread@x"] {
            assert!(phases(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_changed_word_is_found_wherever_it_is() {
        for word in [STAMP_WORD, WRITTEN_WORD, 2, RANDOM_WORDS + 3, PAGE_WORDS - 1] {
            let mut data = Data::new(8).unwrap();
            data.fill();
            data.check_all().unwrap();
            data.memory.words_mut()[5 * PAGE_WORDS + word] ^= 1 << 40;
            assert!(data.check_all().unwrap_err().to_string().contains("page 5"), "word {word}");
        }
    }

    #[test]
    fn the_sequential_sum_notices_a_damaged_line() {
        let mut data = Data::new(8).unwrap();
        data.fill();
        data.sequential_read(1).unwrap();
        data.memory.words_mut()[PAGE_WORDS * 3 + LINE_WORDS * 9] += 1;
        assert!(data.sequential_read(1).is_err());
    }

    #[test]
    fn every_pass_says_what_was_written_to_disk_during_it() {
        let result = phases(&["seqread"]).unwrap();
        let passes = result["phases"]["seqread"]["written_by_pass"].as_array().unwrap();
        assert_eq!(passes.len(), 2);
        let now = Written::now();
        assert!(
            passes.iter().all(|pass| pass["own_bytes"].is_u64() == now.own_bytes.is_some()),
            "{passes:?}"
        );
        let then = Written { own_bytes: Some(1), kernel_swap_bytes: None };
        let later = Written { own_bytes: Some(5), kernel_swap_bytes: Some(2) }.since(then);
        assert_eq!((later.own_bytes, later.kernel_swap_bytes), (Some(4), None));
    }

    #[test]
    fn two_fifths_of_a_page_are_random_and_the_rest_repeats() {
        let template = templates()[0];
        let repeated =
            (RANDOM_WORDS + LINE_WORDS..PAGE_WORDS).all(|i| template[i] == template[i - LINE_WORDS]);
        let distinct: std::collections::BTreeSet<u64> = template[..RANDOM_WORDS].iter().copied().collect();
        assert!(repeated);
        assert_eq!(distinct.len(), RANDOM_WORDS);
    }

    #[test]
    fn zipf_is_skewed_and_reaches_only_existing_pages() {
        let zipf = Zipf::new(1000);
        let mut random = Random::new(7);
        let mut counts = vec![0_u32; 1000];
        for _ in 0..100_000 {
            counts[zipf.page(&mut random)] += 1;
        }
        counts.sort_unstable();
        let top: u32 = counts[990..].iter().sum();
        // The ten hottest of 1000 pages get sum(1/i^0.99, 10) / sum(1/i^0.99, 1000) = 38.2 % of the accesses.
        assert!((37_000..41_000).contains(&top), "{top}");
    }
}
