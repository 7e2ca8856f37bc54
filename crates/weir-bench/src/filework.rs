//! `weir-bench __workload files`: a plain program with much memory that does not compress, most of which it
//! leaves alone, and a fixed amount of work on a file, through a mapping: written block by block, rewritten,
//! read, as bonnie does. For each block it also changes a page of its memory. It checks every word that it
//! reads, and all of its memory at the end. It knows nothing of Weir.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir_cli::compare::numbers::{Random, mix};
use weir_os::host::{AnonymousWords, FileWords};

const PAGE_WORDS: usize = 512;
const BLOCK_WORDS: usize = 8192;
/// Memory that is in use: one part in so many.
const USED_PART: usize = 4;
/// What is done with the file, in this order.
pub const PHASES: [&str; 3] = ["write", "rewrite", "read"];

/// Fills memory of so many bytes, makes the file of so many, which shows that the work begins, and does it.
pub fn workload(bytes: usize, path: &Path, file_bytes: usize) -> anyhow::Result<Value> {
    let mut memory = Memory::filled(bytes)?;
    let scanned = kernel_scanned();
    let file = File::options().read(true).write(true).create_new(true).open(path);
    let file = file.with_context(|| path.display().to_string())?;
    file.set_len(file_bytes as u64)?;
    let mapped = FileWords::new(&file, file_bytes).context("cannot map the file")?;
    let (blocks, _) = mapped.words().as_chunks::<BLOCK_WORDS>();
    ensure!(!blocks.is_empty(), "--file-bytes must be at least {}", BLOCK_WORDS * 8);
    let (began, mut phases) = (Instant::now(), json!({}));
    for (round, phase) in PHASES.iter().enumerate() {
        let started = Instant::now();
        for (number, block) in blocks.iter().enumerate() {
            work(block, number, round as u64)?;
            memory.use_some();
        }
        // What is to be on the disk is there when the time is taken.
        file.sync_data()?;
        let seconds = started.elapsed().as_secs_f64();
        let all = (blocks.len() * BLOCK_WORDS * 8) as f64;
        phases[*phase] = json!({ "mb_per_s": all / 1e6 / seconds, "seconds": seconds });
    }
    let seconds = began.elapsed().as_secs_f64();
    let scanned = kernel_scanned().zip(scanned).map(|(now, then)| now.saturating_sub(then));
    memory.check()?;
    Ok(json!({
        "bytes": bytes, "file_bytes": file_bytes, "verified": true, "phases": phases, "work_s": seconds,
        "kernel_scanned_pages": scanned,
    }))
}

/// What stands in a word of the file after so many rounds of writing.
fn word_of(block: usize, word: usize, round: u64) -> u64 {
    mix((block * BLOCK_WORDS + word) as u64 ^ (round << 56))
}

/// A round of work on a block: the first writes, the last reads, those between do both.
fn work(block: &[AtomicU64; BLOCK_WORDS], number: usize, round: u64) -> anyhow::Result<()> {
    let (reads, writes) = (round > 0, round + 1 < PHASES.len() as u64);
    for (at, word) in block.iter().enumerate() {
        if reads {
            let (found, expected) = (word.load(Relaxed), word_of(number, at, round - 1));
            ensure!(found == expected, "block {number}, word {at}: {found:#x} instead of {expected:#x}");
        }
        if writes {
            word.store(word_of(number, at, round), Relaxed);
        }
    }
    Ok(())
}

/// Pages of anonymous memory that the kernel's reclaim has looked at so far, everywhere.
fn kernel_scanned() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("pgscan_anon "))?.trim().parse().ok()
}

/// Memory that does not compress, and how often each page that is in use was changed.
struct Memory {
    words: AnonymousWords,
    pages: usize,
    changes: Vec<u32>,
    random: Random,
}

impl Memory {
    fn filled(bytes: usize) -> anyhow::Result<Memory> {
        let mut words = AnonymousWords::new(bytes).with_context(|| format!("cannot map {bytes} bytes"))?;
        let pages = bytes / 8 / PAGE_WORDS;
        ensure!(pages >= USED_PART, "--bytes must be at least {}", USED_PART * PAGE_WORDS * 8);
        for (at, word) in words.words_mut().iter_mut().enumerate() {
            *word = mix(!(at as u64));
        }
        Ok(Memory { words, pages, changes: vec![0; pages / USED_PART], random: Random::new(7) })
    }

    /// The first word of a page in use: they come last.
    fn word(&self, used: usize) -> &AtomicU64 {
        &self.words.words()[(self.pages - 1 - used) * PAGE_WORDS]
    }

    fn use_some(&mut self) {
        let used = self.random.below(self.changes.len() as u64) as usize;
        self.changes[used] += 1;
        self.word(used).fetch_add(1, Relaxed);
    }

    fn check(&self) -> anyhow::Result<()> {
        for (page, words) in self.words.words().chunks_exact(PAGE_WORDS).enumerate() {
            let changes = self.changes.get(self.pages - 1 - page).copied().unwrap_or(0);
            for (at, word) in words.iter().enumerate() {
                let added = if at == 0 { u64::from(changes) } else { 0 };
                let expected = mix(!((page * PAGE_WORDS + at) as u64)).wrapping_add(added);
                ensure!(word.load(Relaxed) == expected, "page {page} of memory: word {at} is damaged");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_done_and_what_is_damaged_is_found() {
        let path = std::env::temp_dir().join(format!("weir-filework-{}", std::process::id()));
        let done = workload(1 << 20, &path, 1 << 20).unwrap();
        assert!(PHASES.iter().all(|phase| done["phases"][phase]["mb_per_s"].as_f64() > Some(0.0)), "{done}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
        assert!(workload(1 << 20, &path, 1 << 20).is_err(), "there is such a file");
        std::fs::remove_file(&path).unwrap();
        let block: Vec<AtomicU64> = (0..BLOCK_WORDS).map(|_| AtomicU64::new(0)).collect();
        let block: &[AtomicU64; BLOCK_WORDS] = block.as_slice().try_into().unwrap();
        work(block, 3, 0).unwrap();
        block[77].fetch_add(1, Relaxed);
        assert!(work(block, 3, 1).unwrap_err().to_string().contains("block 3, word 77"));
        let memory = Memory::filled(1 << 16).unwrap();
        memory.check().unwrap();
        memory.words.words()[5].store(0, Relaxed);
        assert!(memory.check().is_err());
    }
}
