//! The ways to compress that are compared, each over a whole set: what it makes of the pages, and what a page
//! costs.

use std::time::Instant;

use anyhow::{Context, ensure};
use weir::config::Codec as Setting;
use weir::limits::RECORD_BYTES_MAX;
use weir::replay::{Codec, Form, Workbench, compress};
use weir_os::codec::{self, PageBytes, RUN_BYTES_MAX, Scratch};
use zstd::bulk::{Compressor, Decompressor};

use super::sets::PAGE_BYTES;

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What the engine does, by its own code.
    Engine,
    /// LZ4 of runs of so many pages.
    Lz4(usize),
    /// zstd of runs of so many pages, at a level.
    Zstd(usize, i32),
}

/// The columns, by name.
pub const WAYS: [(&str, Way); 8] = [
    ("engine", Way::Engine),
    ("lz4", Way::Lz4(1)),
    ("zstd 1", Way::Zstd(1, 1)),
    ("zstd 3", Way::Zstd(1, 3)),
    ("lz4 x4", Way::Lz4(4)),
    ("lz4 x16", Way::Lz4(16)),
    ("zstd 1 x4", Way::Zstd(4, 1)),
    ("zstd 1 x16", Way::Zstd(16, 1)),
];

/// What a way makes of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Made {
    /// Bytes stored.
    pub bytes: usize,
    /// Pages in the set.
    pub pages: usize,
    /// Of these, pages stored as they are: nothing was gained, or too little.
    pub raw: usize,
    /// Same-filled pages.
    pub same: usize,
    /// Pages shuffled first.
    pub shuffled: usize,
    /// ns to compress all.
    pub compress_ns: u128,
    /// ns to expand all.
    pub expand_ns: u128,
}

/// A record's form, where it is in the store, and how long.
#[derive(Clone, Copy)]
enum Stored {
    Same(u64),
    Raw(usize),
    Lz4(usize, usize),
    Shuffled(usize, usize),
    Zstd(usize, usize),
}

/// The codecs' states and the store.
pub struct Tools {
    workbench: Box<Workbench>,
    scratch: Box<Scratch>,
    out: Vec<u8>,
    back: Vec<u8>,
    store: Vec<u8>,
    index: Vec<Stored>,
}

impl Tools {
    /// Empty.
    pub fn new() -> Tools {
        Tools {
            workbench: Box::new(Workbench::new()),
            scratch: Box::new(Scratch::new()),
            out: vec![0; RUN_BYTES_MAX],
            back: vec![0; RUN_BYTES_MAX],
            store: Vec::new(),
            index: Vec::new(),
        }
    }

    /// Compresses a set and expands it again, in an order in which no run follows its neighbour. Its length
    /// is a multiple of 16 pages. Fails when what comes back is not what went in.
    pub fn measure(&mut self, data: &[u8], way: Way) -> anyhow::Result<Made> {
        let (run, level) = match way {
            Way::Engine => (1, None),
            Way::Lz4(run) => (run, None),
            Way::Zstd(run, level) => (run, Some(level)),
        };
        let runs = scattered(data.len() / (run * PAGE_BYTES));
        let piece = |i: usize| &data[i * run * PAGE_BYTES..][..run * PAGE_BYTES];
        let mut zstd = match level {
            Some(level) => Some((Compressor::new(level)?, Decompressor::new()?)),
            None => None,
        };
        // Room for all, touched before the clock runs.
        self.store.clear();
        self.store.resize(data.len(), 1);
        self.index.clear();
        let (started, mut at) = (Instant::now(), 0);
        for &i in &runs {
            let stored = match way {
                Way::Engine => self.by_engine(piece(i), at)?,
                _ => self.by_run(piece(i), at, zstd.as_mut().map(|(compressor, _)| compressor)),
            };
            at += stored.len(run);
            self.index.push(stored);
        }
        let compress_ns = started.elapsed().as_nanos();
        let started = Instant::now();
        for k in 0..runs.len() {
            self.expand(k, run, zstd.as_mut().map(|(_, expander)| expander))?;
        }
        let expand_ns = started.elapsed().as_nanos();
        for (k, &i) in runs.iter().enumerate() {
            let n = self.expand(k, run, zstd.as_mut().map(|(_, expander)| expander))?;
            ensure!(self.back[..n] == *piece(i), "{way:?} does not give back what it was given");
        }
        let count = |is: fn(&Stored) -> bool| run * self.index.iter().filter(|stored| is(stored)).count();
        Ok(Made {
            bytes: at,
            pages: run * runs.len(),
            raw: count(|stored| matches!(stored, Stored::Raw(_))),
            same: count(|stored| matches!(stored, Stored::Same(_))),
            shuffled: count(|stored| matches!(stored, Stored::Shuffled(..))),
            compress_ns,
            expand_ns,
        })
    }

    fn by_engine(&mut self, page: &[u8], at: usize) -> anyhow::Result<Stored> {
        let page: &PageBytes = page.try_into().context("a page")?;
        Ok(match compress(&mut self.workbench, 0, Setting::Auto, page) {
            Form::Same(word) => Stored::Same(word),
            Form::Record(codec, bytes) => {
                self.store[at..at + bytes.len()].copy_from_slice(bytes);
                match codec {
                    Codec::Lz4 => Stored::Lz4(at, bytes.len()),
                    Codec::ShuffleLz4 => Stored::Shuffled(at, bytes.len()),
                    Codec::Zstd => Stored::Zstd(at, bytes.len()),
                }
            }
            Form::Stuck => self.raw(page, at),
        })
    }

    /// As much as the pool demands must be gained, or the run stays as it is.
    fn by_run(&mut self, run: &[u8], at: usize, zstd: Option<&mut Compressor<'_>>) -> Stored {
        let out = &mut self.out[..RECORD_BYTES_MAX * (run.len() / PAGE_BYTES)];
        let by_zstd = zstd.is_some();
        let n = match zstd {
            Some(zstd) => zstd.compress_to_buffer(run, out).ok(),
            None => codec::lz4_compress_run(&mut self.scratch, run, out),
        };
        let Some(n) = n else { return self.raw(run, at) };
        self.store[at..at + n].copy_from_slice(&self.out[..n]);
        if by_zstd { Stored::Zstd(at, n) } else { Stored::Lz4(at, n) }
    }

    fn raw(&mut self, bytes: &[u8], at: usize) -> Stored {
        self.store[at..at + bytes.len()].copy_from_slice(bytes);
        Stored::Raw(at)
    }

    /// Expands a record into `back`. Returns how many bytes.
    fn expand(&mut self, k: usize, run: usize, zstd: Option<&mut Decompressor<'_>>) -> anyhow::Result<usize> {
        let bytes = run * PAGE_BYTES;
        let back = &mut self.back[..bytes];
        let page = |back: &mut [u8], f: &dyn Fn(&mut PageBytes) -> bool| back.try_into().is_ok_and(f);
        let whole = match self.index[k] {
            Stored::Same(word) => page(back, &|page| {
                codec::fill_same(page, word);
                true
            }),
            Stored::Raw(at) => {
                back.copy_from_slice(&self.store[at..at + bytes]);
                true
            }
            Stored::Lz4(at, n) => codec::lz4_expand_run(&self.store[at..at + n], back),
            Stored::Shuffled(at, n) => {
                page(back, &|page| codec::shuffle_lz4_expand(&self.store[at..at + n], page))
            }
            Stored::Zstd(at, n) => match zstd {
                Some(zstd) => zstd.decompress_to_buffer(&self.store[at..at + n], back)? == bytes,
                None => false,
            },
        };
        ensure!(whole, "a record does not expand to {bytes} bytes");
        Ok(bytes)
    }
}

impl Stored {
    fn len(self, run: usize) -> usize {
        match self {
            Stored::Same(_) => 0,
            Stored::Raw(_) => run * PAGE_BYTES,
            Stored::Lz4(_, n) | Stored::Shuffled(_, n) | Stored::Zstd(_, n) => n,
        }
    }
}

/// All numbers below `n`, each once, none after its neighbour where there are enough.
fn scattered(n: usize) -> Vec<usize> {
    let mut step = n * 5 / 13 + 1;
    while gcd(step, n) != 1 {
        step += 1;
    }
    (0..n).map(|i| i * step % n).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_cli::compare::numbers::mix;

    fn data(byte: impl Fn(usize) -> u8) -> Vec<u8> {
        (0..32 * PAGE_BYTES).map(byte).collect()
    }

    #[test]
    fn every_way_gives_back_what_it_was_given_and_counts_its_forms() {
        let text = data(|i| b"pages of text "[(i / 3 + i / 97) % 14]);
        let random = data(|i| mix(i as u64) as u8);
        let numbers = data(|i| if i % 8 < 2 { mix(i as u64) as u8 } else { 0 });
        let mut tools = Tools::new();
        for (name, way) in WAYS {
            let made = tools.measure(&text, way).unwrap();
            assert!(made.pages == 32 && made.bytes < text.len() / 2 && made.raw == 0, "{name}: {made:?}");
            let made = tools.measure(&random, way).unwrap();
            assert_eq!((made.bytes, made.raw), (random.len(), 32), "{name}");
            assert!(made.compress_ns > 0 && made.expand_ns > 0);
        }
        let made = tools.measure(&numbers, Way::Engine).unwrap();
        assert!(made.shuffled == 32 && made.bytes < numbers.len() * 2 / 5, "{made:?}");
        let made = tools.measure(&data(|_| 7), Way::Engine).unwrap();
        assert_eq!((made.same, made.bytes), (32, 0));
    }

    #[test]
    fn what_repeats_from_page_to_page_is_found_in_runs_alone() {
        let again = data(|i| mix((i % PAGE_BYTES) as u64) as u8);
        let mut tools = Tools::new();
        let mut bytes = |way| tools.measure(&again, way).unwrap().bytes;
        assert_eq!([bytes(Way::Lz4(1)), bytes(Way::Zstd(1, 1))], [again.len(); 2]);
        assert!(bytes(Way::Lz4(16)) < again.len() / 8 && bytes(Way::Zstd(16, 1)) < again.len() / 8);
    }

    #[test]
    fn a_scattered_order_has_every_run_once_and_none_after_its_neighbour() {
        for n in [1, 2, 16, 128, 512, 2048] {
            let order = scattered(n);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            assert!(n < 16 || order.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1), "{n}");
        }
    }
}
