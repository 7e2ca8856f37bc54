//! Pages that system calls under way are using: they must not leave their frames meanwhile.
//!
//! A pin is a published range, as hazard pointers are, not a count per page: publishing costs two
//! stores however many pages there are, and several calls may use one page. The order that makes it
//! safe: a pin is published first, then the page is found resident (or brought in) under its
//! block's lock; reclaim asks for the pins of a block under the same lock. So either reclaim sees the
//! pin, or the page is found gone and brought in again.

use super::{BlockId, PageId};
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::sync::{AtomicU32, Lock, Ordering};

/// Ranges that can be pinned at once.
pub const PINS: usize = 4096;
const WORDS: usize = PINS / 64;

/// A published range.
#[derive(Debug, Default)]
struct Row {
    /// First page and one past the last; equal when unused.
    start: AtomicU32,
    end: AtomicU32,
    /// Next of the same call, plus one.
    next: AtomicU32,
}

/// All of them.
#[derive(Debug)]
pub struct Pins {
    lock: Lock,
    rows: Box<[Row]>,
    used: Box<[core::sync::atomic::AtomicU64]>,
    /// Ranges in use, for the common case of none.
    ranges: AtomicU32,
    /// Pages in them, ranges that overlap counted twice.
    pages: AtomicU32,
}

impl Default for Pins {
    fn default() -> Pins {
        Pins {
            lock: Lock::default(),
            rows: (0..PINS).map(|_| Row::default()).collect(),
            used: (0..WORDS).map(|_| core::sync::atomic::AtomicU64::new(0)).collect(),
            ranges: AtomicU32::new(0),
            pages: AtomicU32::new(0),
        }
    }
}

impl Pins {
    /// Publishes `start..end` and puts it before `chain`. Returns the new chain, or `None` when all
    /// rows are in use.
    pub fn add(&self, start: PageId, end: u32, chain: u32) -> Option<u32> {
        let _guard = self.lock.lock();
        let w = self.used.iter().position(|w| w.load(Ordering::Relaxed) != u64::MAX)?;
        let bit = self.used[w].load(Ordering::Relaxed).trailing_ones();
        self.used[w].fetch_or(1 << bit, Ordering::Relaxed);
        let at = w as u32 * 64 + bit;
        let row = &self.rows[at as usize];
        row.next.store(chain, Ordering::Relaxed);
        row.start.store(start.0, Ordering::Relaxed);
        row.end.store(end, Ordering::Release);
        self.ranges.fetch_add(1, Ordering::Release);
        self.pages.fetch_add(end - start.0, Ordering::Relaxed);
        Some(at + 1)
    }

    /// Releases a chain.
    pub fn release(&self, mut chain: u32) {
        let _guard = self.lock.lock();
        while chain != 0 {
            let at = (chain - 1) as usize;
            let row = &self.rows[at];
            let pages = row.end.load(Ordering::Relaxed) - row.start.load(Ordering::Relaxed);
            row.end.store(row.start.load(Ordering::Relaxed), Ordering::Relaxed);
            chain = row.next.load(Ordering::Relaxed);
            self.used[at / 64].fetch_and(!(1 << (at % 64)), Ordering::Relaxed);
            self.ranges.fetch_sub(1, Ordering::Relaxed);
            self.pages.fetch_sub(pages, Ordering::Relaxed);
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

    /// The pinned pages of a block. Under the block's lock.
    pub fn of_block(&self, block: BlockId) -> u64 {
        if self.ranges.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let (first, end) = (block.page(0).0, block.page(0).0 + BLOCK_PAGES);
        let mut mask = 0;
        for (w, word) in self.used.iter().enumerate() {
            let mut left = word.load(Ordering::Acquire);
            while left != 0 {
                let row = &self.rows[w * 64 + left.trailing_zeros() as usize];
                left &= left - 1;
                let (lo, hi) = (row.start.load(Ordering::Relaxed), row.end.load(Ordering::Acquire));
                let (lo, hi) = (lo.max(first), hi.min(end));
                if lo < hi {
                    mask |= run_mask(lo - first, hi - lo);
                }
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
        let pins = Pins::default();
        let block = BlockId(3);
        assert_eq!(pins.of_block(block), 0);
        let chain = pins.add(PageId(3 * 64 - 5), 3 * 64 + 2, 0).unwrap();
        let chain = pins.add(PageId(3 * 64 + 60), 5 * 64, chain).unwrap();
        let other = pins.add(PageId(3 * 64 + 1), 3 * 64 + 4, 0).unwrap();
        assert_eq!(pins.of_block(block), 0b1111 | 0xf << 60);
        assert_eq!(pins.of_block(BlockId(4)), u64::MAX);
        assert_eq!(pins.of_block(BlockId(5)), 0);
        assert_eq!(pins.pages(), 7 + 68 + 3);
        pins.release(chain);
        assert_eq!(pins.of_block(block), 0b1110);
        pins.release(other);
        assert_eq!((pins.of_block(block), pins.pages()), (0, 0));
    }

    #[test]
    fn when_all_rows_are_taken_the_next_pin_is_refused_until_one_is_released() {
        let pins = Pins::default();
        let mut chain = 0;
        for i in 0..PINS as u32 {
            chain = pins.add(PageId(i), i + 1, chain).unwrap();
        }
        assert_eq!(pins.add(PageId(9), 10, 0), None);
        pins.release(chain);
        assert!(pins.add(PageId(9), 10, 0).is_some());
    }
}
