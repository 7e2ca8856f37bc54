//! Faults that come close together in a block, in no order: a program at work on a small part of its memory.
//!
//! Such a block is wanted as a whole, soon. One call brings 64 pages for the price of a few faults, while random faults all over
//! the memory must bring one page each. What tells them apart is time, counted in faults of the whole program on pages that
//! are out.

use crate::page::id::{BLOCK_PAGES, run_mask};

/// Faults of the program between two of a block that still belong together: at most this, and one for so many blocks in use, so
/// that chance alone rarely brings two random faults so close.
const SOON_MAX: u64 = 64;
const BLOCKS_PER_FAULT: u64 = 32;
/// Faults close together, after the first, that bring a part of the block, and all of it.
const PART_AT: u32 = 2;
const ALL_AT: u32 = 4;
const PART_PAGES: u32 = 16;

const COUNT_BITS: u32 = 4;
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;
const TIME_BITS: u32 = 20;
const TIME_MAX: u64 = (1 << TIME_BITS) - 1;

/// What a block remembers: faults close together, and the time of the last one. 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nearby {
    count: u32,
    at: u32,
}

impl Nearby {
    pub fn decode(bits: u64) -> Nearby {
        Nearby { count: (bits & u64::from(COUNT_MAX)) as u32, at: (bits >> COUNT_BITS & TIME_MAX) as u32 }
    }

    pub fn encode(self) -> u64 {
        u64::from(self.count) | u64::from(self.at) << COUNT_BITS
    }

    /// One more fault, the program's `now`-th, of a program that has contents in so many blocks.
    pub fn another(self, now: u64, blocks: u64) -> Nearby {
        let now = (now & TIME_MAX) as u32;
        let since = u64::from(now.wrapping_sub(self.at)) & TIME_MAX;
        let soon = since <= SOON_MAX.min(blocks / BLOCKS_PER_FAULT);
        // Where work was done on a small part once it may be again.
        let count = if soon { (self.count + 1).min(COUNT_MAX) } else { self.count.min(ALL_AT) / 2 };
        Nearby { count, at: now }
    }

    /// The pages to bring with the one at `index`.
    pub fn pages(self, index: u32) -> u64 {
        match self.count {
            ALL_AT.. => u64::MAX,
            PART_AT.. => run_mask(index / PART_PAGES * PART_PAGES, PART_PAGES),
            _ => run_mask(index, 1),
        }
    }
}

const _: () = assert!(BLOCK_PAGES.is_multiple_of(PART_PAGES));

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u64 = 1 << 20;

    /// Pages that each of the faults at these times brings.
    fn brought(times: &[u64]) -> Vec<u32> {
        let mut seen = Nearby::default();
        let step = |&time: &u64| {
            seen = Nearby::decode(seen.another(time, MANY).encode());
            seen.pages(37).count_ones()
        };
        times.iter().map(step).collect()
    }

    #[test]
    fn faults_close_together_bring_more_and_more_of_the_block() {
        assert_eq!(brought(&[1000, 1001, 1030, 1090, 1091]), [1, 1, 16, 16, 64]);
        let mut seen = Nearby::default();
        [1000, 1001, 1002].iter().for_each(|time| seen = seen.another(*time, MANY));
        assert_eq!(seen.pages(37), 0xffff << 32, "those around it");
    }

    #[test]
    fn faults_far_apart_bring_one_page_each_for_ever() {
        let times: Vec<u64> = (1..100).map(|i| i * 65).collect();
        assert_eq!(brought(&times).iter().max(), Some(&1));
    }

    #[test]
    fn a_block_that_was_wanted_once_comes_sooner_next_time_and_is_forgotten_if_it_was_a_mistake() {
        assert_eq!(brought(&[1, 2, 3, 4, 5, 10_000, 20_000, 30_000])[5..], [16, 1, 1]);
        assert_eq!(brought(&[1, 2, 3, 4, 5, 10_000, 10_001, 10_002])[5..], [16, 16, 64]);
    }

    #[test]
    fn with_few_blocks_chance_brings_faults_close_together() {
        let close = |blocks| Nearby { count: 1, at: 10 }.another(20, blocks).count;
        assert_eq!((close(32 * 9), close(32 * 10)), (0, 2));
    }

    #[test]
    fn time_runs_out_of_its_bits_without_harm() {
        let late = Nearby { count: 3, at: TIME_MAX as u32 - 1 };
        assert_eq!(late.another(TIME_MAX + 3, MANY), Nearby { count: 4, at: 2 });
        assert_eq!(Nearby::decode(late.encode()), late);
        assert!(late.encode() < 1 << 24);
    }
}
