//! Pages that system calls under way are using: they must not leave their frames meanwhile.
//!
//! A pin is a published range, as hazard pointers are, not a count per page: publishing costs two
//! stores however many pages there are, and several calls may use one page. The order that makes it
//! safe: a pin is published first, then the page is found resident (or brought in) under its
//! block's lock; reclaim asks for the pins of a block under the same lock. So either reclaim sees the
//! pin, or the page is found gone and brought in again.
//!
//! Threads by the thousand may wait in a few pages (condition variables in an array): those that pin nothing
//! but the same range share a row, so that asking stays quick and the pages are counted once.

use super::id::clip;
use super::{BlockId, PageId};
use crate::page::table::BlockGuard;
use crate::sync::{AtomicU32, Lock, Ordering};
use core::sync::atomic::AtomicU64;
use weir_os::mem::Table;
use weir_os::sys::Errno;

/// Ranges that can be pinned at once: two for each stub that there can be. A row costs memory once it is
/// used.
pub const PINS: usize = 1 << 18;
const WORDS: usize = PINS / 64;
/// Places that remember who pinned a range last.
const HINTS: usize = 4096;

/// Words of a row: the published range, first page in the low half and one past the last in the high one, 0
/// when unused; the next row of the same call plus one in the low half, and how many calls share the row in
/// the high one.
type Row = [AtomicU64; 2];

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// How much is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Ranges, those that are shared counted once.
    pub ranges: u32,
    /// Pages in them; of ranges that overlap twice.
    pub pages: u32,
}

/// All of them.
#[derive(Debug)]
pub struct Pins {
    lock: Lock,
    rows: Table<Row>,
    used: Table<AtomicU64>,
    /// Words of `used` that may hold a bit, for the common case of few.
    top: AtomicU32,
    /// By the first page: row plus one of the call that pinned last there.
    hints: Table<AtomicU32>,
    ranges: AtomicU32,
    pages: AtomicU32,
    /// What was pinned when those that have returned had been let go of.
    kept: [AtomicU32; 2],
}

impl Pins {
    /// No range is pinned.
    pub fn new() -> Result<Pins, Errno> {
        Ok(Pins {
            lock: Lock::default(),
            rows: Table::new(PINS, c"weir-pins")?,
            used: Table::new(WORDS, c"weir-pins")?,
            top: AtomicU32::new(0),
            hints: Table::new(HINTS, c"weir-pins")?,
            ranges: AtomicU32::new(0),
            pages: AtomicU32::new(0),
            kept: Default::default(),
        })
    }

    /// Publishes `start..end` and puts it before `chain`. Returns the new chain, or `None` when all
    /// rows are in use.
    pub fn add(&self, start: PageId, end: u32, chain: u32) -> Option<u32> {
        let _guard = self.lock.lock();
        let range = pair(start.0, end);
        let hint = self.hints.row(start.0 as usize % HINTS);
        if chain == 0
            && let Some(at) = (hint.load(Ordering::Relaxed) as usize).checked_sub(1)
            && self.rows.row(at)[0].load(Ordering::Relaxed) == range
            && let (0, calls) = halves(self.rows.row(at)[1].load(Ordering::Relaxed))
        {
            self.rows.row(at)[1].store(pair(0, calls + 1), Ordering::Relaxed);
            return Some(at as u32 + 1);
        }
        let w = (0..WORDS).find(|w| self.used.row(*w).load(Ordering::Relaxed) != u64::MAX)?;
        let bit = self.used.row(w).load(Ordering::Relaxed).trailing_ones();
        let at = w as u32 * 64 + bit;
        let row = self.rows.row(at as usize);
        row[1].store(pair(chain, 1), Ordering::Relaxed);
        row[0].store(range, Ordering::Release);
        self.used.row(w).fetch_or(1 << bit, Ordering::Release);
        self.top.fetch_max(w as u32 + 1, Ordering::Release);
        self.ranges.fetch_add(1, Ordering::Release);
        self.pages.fetch_add(end - start.0, Ordering::Relaxed);
        hint.store(at + 1, Ordering::Relaxed);
        Some(at + 1)
    }

    /// Releases a chain.
    pub fn release(&self, mut chain: u32) {
        let _guard = self.lock.lock();
        while chain != 0 {
            let at = (chain - 1) as usize;
            let row = self.rows.row(at);
            let (next, calls) = halves(row[1].load(Ordering::Relaxed));
            chain = next;
            row[1].store(pair(next, calls - 1), Ordering::Relaxed);
            if calls > 1 {
                continue;
            }
            let (start, end) = halves(row[0].swap(0, Ordering::Relaxed));
            self.used.row(at / 64).fetch_and(!(1 << (at % 64)), Ordering::Relaxed);
            self.ranges.fetch_sub(1, Ordering::Relaxed);
            self.pages.fetch_sub(end - start, Ordering::Relaxed);
        }
        let top = self.top.load(Ordering::Relaxed);
        let empty = (0..top).rev().take_while(|w| self.used.row(*w as usize).load(Ordering::Relaxed) == 0);
        let empty = empty.count() as u32;
        if empty > 0 {
            self.top.store(top - empty, Ordering::Relaxed);
        }
    }

    /// Ranges pinned now.
    pub fn ranges(&self) -> u32 {
        self.ranges.load(Ordering::Relaxed)
    }

    /// Pages pinned now.
    pub fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Notes what is pinned by calls that are still under way.
    pub fn note_kept(&self) {
        self.kept[0].store(self.ranges(), Ordering::Relaxed);
        self.kept[1].store(self.pages(), Ordering::Relaxed);
    }

    /// What [`Pins::note_kept`] noted last.
    pub fn kept(&self) -> Amount {
        let [ranges, pages] = &self.kept;
        Amount { ranges: ranges.load(Ordering::Relaxed), pages: pages.load(Ordering::Relaxed) }
    }

    /// The pinned pages of a block.
    pub fn of_block(&self, held: &BlockGuard<'_>) -> u64 {
        self.in_block(held.block())
    }

    fn in_block(&self, block: BlockId) -> u64 {
        if self.ranges.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut mask = 0;
        for w in 0..self.top.load(Ordering::Acquire) as usize {
            let mut left = self.used.row(w).load(Ordering::Acquire);
            while left != 0 {
                let row = self.rows.row(w * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
                let (lo, hi) = halves(row[0].load(Ordering::Acquire));
                mask |= clip(block, lo, hi);
            }
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_a_block_is_what_ranges_cover_of_it() {
        let pins = Pins::new().unwrap();
        let block = BlockId(3);
        assert_eq!(pins.in_block(block), 0);
        let chain = pins.add(PageId(3 * 64 - 5), 3 * 64 + 2, 0).unwrap();
        let chain = pins.add(PageId(3 * 64 + 60), 5 * 64, chain).unwrap();
        let other = pins.add(PageId(3 * 64 + 1), 3 * 64 + 4, 0).unwrap();
        assert_eq!(pins.in_block(block), 0b1111 | 0xf << 60);
        assert_eq!(pins.in_block(BlockId(4)), u64::MAX);
        assert_eq!(pins.in_block(BlockId(5)), 0);
        assert_eq!(pins.pages(), 7 + 68 + 3);
        pins.release(chain);
        assert_eq!(pins.in_block(block), 0b1110);
        pins.release(other);
        assert_eq!((pins.in_block(block), pins.pages()), (0, 0));
    }

    #[test]
    fn when_all_rows_are_taken_the_next_pin_is_refused_until_one_is_released() {
        let pins = Pins::new().unwrap();
        let mut chain = 0;
        for i in 0..PINS as u32 {
            chain = pins.add(PageId(i), i + 1, chain).unwrap();
        }
        assert_eq!(pins.add(PageId(9), 10, 0), None);
        pins.release(chain);
        assert!(pins.add(PageId(9), 10, 0).is_some());
    }

    #[test]
    fn calls_that_pin_nothing_but_one_range_share_it_and_it_stays_until_the_last_has_let_go() {
        let pins = Pins::new().unwrap();
        let chains: Vec<u32> =
            (0..5000).map(|i| pins.add(PageId(70 + i % 2), 71 + i % 2, 0).unwrap()).collect();
        assert_eq!((pins.ranges(), pins.pages()), (2, 2));
        // One of them goes on to pin more.
        let longer = pins.add(PageId(900), 903, chains[0]).unwrap();
        let apart = pins.add(PageId(70), 71, longer).unwrap();
        assert_eq!((pins.ranges(), pins.pages()), (4, 6));
        for chain in &chains[1..] {
            pins.release(*chain);
        }
        assert_eq!(pins.in_block(BlockId(1)), 1 << 6);
        assert_eq!(pins.in_block(BlockId(14)), 0b111 << 4);
        pins.release(apart);
        assert_eq!((pins.ranges(), pins.pages(), pins.in_block(BlockId(1))), (0, 0, 0));
        assert!(pins.add(PageId(70), 71, 0).is_some(), "what was remembered is not used any more");
        assert_eq!(pins.ranges(), 1);
    }

    #[test]
    fn few_ranges_are_asked_about_quickly_again_after_there_were_many() {
        let pins = Pins::new().unwrap();
        let many: Vec<u32> = (0..10_000).map(|i| pins.add(PageId(i * 2), i * 2 + 1, 0).unwrap()).collect();
        pins.note_kept();
        assert_eq!(pins.kept(), Amount { ranges: 10_000, pages: 10_000 });
        for chain in &many[3..] {
            pins.release(*chain);
        }
        assert_eq!(pins.top.load(Ordering::Relaxed), 1);
        assert_eq!(pins.in_block(BlockId(0)), 0b10101);
    }
}
