//! Faults that come close together in a block, in no order: a program at work on a small part of its memory.
//!
//! Such a block is wanted as a whole, soon. One call brings 64 pages for the price of a few faults, while random faults all over
//! the memory must bring one page each. What tells them apart is time, counted in faults of the whole program on pages that
//! are out.
//!
//! Such faults may be all that comes: [`crate::trials`] say whether bringing more than they ask for pays.

use crate::page::BlockId;
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::page::state::State;
use crate::trials::{Held, Reach, Trials};

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
const PART_SHIFT: u32 = COUNT_BITS;
const PART_BITS: u32 = (BLOCK_PAGES / PART_PAGES).ilog2();
const TIME_SHIFT: u32 = PART_SHIFT + PART_BITS;
const TIME_BITS: u32 = 18;
const TIME_MAX: u64 = (1 << TIME_BITS) - 1;

/// What a block remembers: faults close together, the part where the first of them came that might bring more, and the time of the
/// last one. 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nearby {
    count: u32,
    part: u32,
    at: u32,
}

/// A fault that was held for a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Of which.
    pub reach: Reach,
    /// Where its page came from.
    pub source: State,
    /// The first of its visit.
    pub first: bool,
}

impl Nearby {
    pub fn decode(bits: u64) -> Nearby {
        let field = |shift: u32, width: u32| (bits >> shift & ((1 << width) - 1)) as u32;
        Nearby {
            count: field(0, COUNT_BITS),
            part: field(PART_SHIFT, PART_BITS),
            at: field(TIME_SHIFT, TIME_BITS),
        }
    }

    pub fn encode(self) -> u64 {
        u64::from(self.count) | u64::from(self.part) << PART_SHIFT | u64::from(self.at) << TIME_SHIFT
    }

    /// The same at another time: a stream passes.
    pub fn at(self, now: u64) -> Nearby {
        Nearby { at: (now & TIME_MAX) as u32, ..self }
    }

    /// Faults of the program since the last one here.
    pub fn age(self, now: u64) -> u64 {
        let since = now.wrapping_sub(u64::from(self.at)) & TIME_MAX;
        // Threads do not agree about the time: it may seem to go back by a little.
        if TIME_MAX + 1 - since <= SOON_MAX { 0 } else { since }
    }

    /// One more fault, at `index`, the program's `now`-th, of a program that has contents in so many blocks.
    pub fn another(self, index: u32, now: u64, blocks: u64) -> Nearby {
        let now = (now & TIME_MAX) as u32;
        let since = u64::from(now.wrapping_sub(self.at)) & TIME_MAX;
        // Threads do not agree about the time: it may seem to go back by a little.
        let (since, now) = match TIME_MAX + 1 - since {
            back if back <= SOON_MAX => (back, self.at),
            _ => (since, now),
        };
        let soon = since <= SOON_MAX.min(blocks / BLOCKS_PER_FAULT);
        // Where work was done on a small part once it may be again.
        let count = if soon { (self.count + 1).min(COUNT_MAX) } else { self.count.min(ALL_AT) / 2 };
        let part = if count == PART_AT { index / PART_PAGES } else { self.part };
        Nearby { count, part, at: now }
    }

    /// The pages to bring with the one at `index` of `block` at the program's `now`-th fault, as far as the trials let it.
    pub fn pages(
        self,
        trials: &Trials,
        source: State,
        (block, index): (BlockId, u32),
        now: u64,
    ) -> (u64, Option<Tried>) {
        let alone = run_mask(index, 1);
        if self.count < PART_AT {
            return (alone, None);
        }
        let ask = |reach| trials.ask(reach, source, block, now);
        let tried = |reach, first, counts: bool| (alone, counts.then_some(Tried { reach, source, first }));
        match (ask(Reach::Part), ask(Reach::Block)) {
            (Held::ForTrial, _) => {
                let first = self.count == PART_AT;
                tried(Reach::Part, first, first || index / PART_PAGES == self.part)
            }
            (_, Held::ForTrial) => tried(Reach::Block, self.count == ALL_AT, self.count >= ALL_AT),
            (_, Held::No) if self.count >= ALL_AT => (u64::MAX, None),
            (Held::No, _) => (run_mask(index / PART_PAGES * PART_PAGES, PART_PAGES), None),
            _ => (alone, None),
        }
    }
}

/// Bits of an encoded [`Nearby`].
pub const BITS: u32 = TIME_SHIFT + TIME_BITS;
const _: () = assert!(BLOCK_PAGES.is_multiple_of(PART_PAGES) && (BLOCK_PAGES / PART_PAGES).is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::tests::free_block;

    const MANY: u64 = 1 << 20;

    /// Pages that each of the faults at these times brings, of a block that no trial holds.
    fn brought(times: &[u64]) -> Vec<u32> {
        let (trials, mut seen) = (Trials::default(), Nearby::default());
        let step = |&time: &u64| {
            seen = Nearby::decode(seen.another(37, time, MANY).encode());
            let (pages, tried) = seen.pages(&trials, State::Pooled, (free_block(), 37), 0);
            assert_eq!(tried, None);
            pages.count_ones()
        };
        times.iter().map(step).collect()
    }

    #[test]
    fn faults_close_together_bring_more_and_more_of_the_block() {
        assert_eq!(brought(&[1000, 1001, 1030, 1090, 1091]), [1, 1, 16, 16, 64]);
        let mut seen = Nearby::default();
        [1000, 1001, 1002].iter().for_each(|time| seen = seen.another(37, *time, MANY));
        let around = seen.pages(&Trials::default(), State::Pooled, (free_block(), 37), 0).0;
        assert_eq!(around, 0xffff << 32, "those around it");
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
        let close = |blocks| Nearby { count: 1, part: 0, at: 10 }.another(0, 20, blocks).count;
        assert_eq!((close(32 * 9), close(32 * 10)), (0, 2));
    }

    #[test]
    fn time_runs_out_of_its_bits_without_harm() {
        let late = Nearby { count: 3, part: 3, at: TIME_MAX as u32 - 1 };
        assert_eq!(late.another(0, TIME_MAX + 3, MANY), Nearby { count: 4, part: 3, at: 2 });
        assert_eq!(Nearby::decode(late.encode()), late);
        assert!(late.encode() < 1 << BITS);
    }

    /// What a block that is held brings at each of these faults, all close together, and what counts for which trial.
    fn held(hold: Reach, indices: &[u32]) -> Vec<(u32, Option<(Reach, bool)>)> {
        let (trials, block) = (Trials::default(), crate::trials::tests::held_block(hold));
        let mut seen = Nearby::default();
        let step = |(time, &index): (usize, &u32)| {
            seen = Nearby::decode(seen.another(index, 1000 + time as u64, MANY).encode());
            let (pages, tried) = seen.pages(&trials, State::Swapped, (block, index), 0);
            assert!(tried.is_none_or(|t| t.source == State::Swapped));
            (pages.count_ones(), tried.map(|t| (t.reach, t.first)))
        };
        indices.iter().enumerate().map(step).collect()
    }

    #[test]
    fn a_held_part_counts_what_comes_in_it_and_a_held_block_what_comes_after_the_fourth() {
        use Reach::{Block, Part};
        let (begins, goes_on) = (|r| (1, Some((r, true))), |r| (1, Some((r, false))));
        let nothing = (1, None);
        assert_eq!(
            held(Part, &[1, 40, 33, 35, 2, 47, 48]),
            [nothing, nothing, begins(Part), goes_on(Part), nothing, goes_on(Part), nothing]
        );
        assert_eq!(
            held(Block, &[1, 40, 33, 35, 2, 50, 34]),
            [nothing, nothing, nothing, nothing, begins(Block), goes_on(Block), goes_on(Block)]
        );
    }

    #[test]
    fn a_clock_that_seems_to_go_back_makes_nothing_late_and_stays() {
        let seen = Nearby { count: 3, part: 1, at: 1000 };
        assert_eq!(seen.another(0, 995, MANY), Nearby { count: 4, part: 1, at: 1000 });
        assert_eq!(
            seen.another(0, 900, MANY),
            Nearby { count: 1, part: 1, at: 900 },
            "long after: it went round"
        );
    }
}
