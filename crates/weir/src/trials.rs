//! Whether bringing pages by nearness pays: a trial that goes on for as long as the program does.
//!
//! Nobody sees whether a page that was brought is used, so what bringing saves is seen only where it is not done. One block in
//! [`HELD_ONE_IN`] or so is *held*: where faults come close together there, each brings its page alone, and what comes is counted: that is
//! what bringing more at once saves elsewhere. Where it is too little, all blocks are held until it is more than that again. A
//! search that halves its range faults some five times in the last block of its way, whatever it finds there; work
//! on a small part of the memory faults on most of its pages.
//!
//! There is one trial for the part around a page and one for its block, and pages from the pool and from the swap file, which cost differently,
//! have their own.

use crate::page::BlockId;
use crate::page::state::State;
use crate::sync::Ordering;
use core::sync::atomic::AtomicU32;
use weir_os::shards::Line;

/// One block in so many is held for a trial, while bringing does not pay or nothing is known.
const HELD_ONE_IN: u32 = 16;
/// The same while it pays: each one that is held costs the faults that bringing saves.
const HELD_ONE_IN_IF_PAYS: u32 = 64;
/// So many times that bringing was held make a verdict.
const WINDOW: u32 = 16;
/// After two to this power of the program's faults on pages that are out, other blocks are held also without a verdict: there may
/// be none, if the program stays with blocks that are not.
const HOLD_SHIFT: u32 = 16;

/// How much may be brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The pages around: 14 more, when two have come.
    Part,
    /// The rest of the block: 60 more, when four have come.
    Block,
}

impl Reach {
    /// Pages that must come anyway for each time.
    ///
    /// From the pool about half of what would be brought: a page that comes along costs a quarter to a third of a
    /// fault where a processor is idle, but about one where all are busy making room; and it takes the frame of another. From
    /// the swap file the fault that is saved costs a read. But where some of the memory is wanted again and again and almost fits,
    /// the frames that are taken decide whether it does, so most of what would be brought must be wanted.
    const fn worth(self, source: State) -> u32 {
        match (self, source) {
            (Reach::Part, State::Swapped) => 12,
            (Reach::Block, State::Swapped) => 48,
            (Reach::Part, ..) => 8,
            (Reach::Block, ..) => 24,
        }
    }
}

/// The trials.
#[derive(Debug, Default)]
pub struct Trials {
    of: [[Line<Trial>; 2]; 2],
}

/// In a line of its own: faults in held blocks write to it, one in [`HELD_ONE_IN`] of those close together, or fewer.
#[derive(Debug, Default)]
struct Trial {
    /// Times that bringing would have begun in held blocks, since the last verdict.
    begun: AtomicU32,
    /// Pages that came there after that.
    pages: AtomicU32,
    /// [`Verdict`].
    verdict: AtomicU32,
}

/// What held blocks showed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    /// How many there were. None yet: bringing pays.
    number: u32,
    /// Pages that came for each time, of the last.
    mean: u32,
}

impl Verdict {
    const MEAN_BITS: u32 = 8;

    fn decode(word: u32) -> Verdict {
        Verdict { number: word >> Self::MEAN_BITS, mean: word & ((1 << Self::MEAN_BITS) - 1) }
    }

    fn encode(self) -> u32 {
        self.number << Self::MEAN_BITS | self.mean.min((1 << Self::MEAN_BITS) - 1)
    }

    fn pays(self, worth: u32) -> bool {
        self.number == 0 || self.mean >= worth
    }
}

/// Whether pages are brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// They are.
    No,
    /// They are not: it does not pay.
    ByVerdict,
    /// They are not, to see what that costs.
    ForTrial,
}

impl Trials {
    /// Whether to bring so much with a page from there, at the program's `now`-th fault on pages that are out.
    pub fn ask(&self, reach: Reach, source: State, block: BlockId, now: u64) -> Held {
        let verdict = Verdict::decode(self.of(reach, source).verdict.load(Ordering::Relaxed));
        let pays = verdict.pays(reach.worth(source));
        match (is_held(block, reach, (verdict.number, pays), now), pays) {
            (true, _) => Held::ForTrial,
            (_, false) => Held::ByVerdict,
            _ => Held::No,
        }
    }

    /// Bringing was held for the trial, at the `first` fault that would have done it or at one after it, which brought so many `pages`.
    pub fn note(&self, reach: Reach, source: State, first: bool, pages: u32) {
        let trial = self.of(reach, source);
        if !first {
            trial.pages.fetch_add(pages, Ordering::Relaxed);
        } else if trial.begun.fetch_add(1, Ordering::Relaxed) == WINDOW {
            // The visits before this one are over, or almost. Other threads may count meanwhile: a count more or less changes
            // no verdict that means anything.
            let mean = trial.pages.swap(0, Ordering::Relaxed) / WINDOW;
            let before = Verdict::decode(trial.verdict.load(Ordering::Relaxed));
            let number = (before.number + 1) & (u32::MAX >> Verdict::MEAN_BITS);
            let verdict = Verdict { number: number.max(1), mean };
            trial.verdict.store(verdict.encode(), Ordering::Relaxed);
            trial.begun.store(0, Ordering::Relaxed);
        }
    }

    fn of(&self, reach: Reach, source: State) -> &Trial {
        &self.of[reach as usize][usize::from(source == State::Swapped)]
    }
}

/// Which blocks are held changes with each verdict, so that none pays for all, and with the reach. `verdict`: its number, and
/// whether it pays.
fn is_held(block: BlockId, reach: Reach, (number, pays): (u32, bool), now: u64) -> bool {
    let one_in = if number > 0 && pays { HELD_ONE_IN_IF_PAYS } else { HELD_ONE_IN };
    let when = (number << 2 | u32::from(!pays) << 1 | reach as u32).wrapping_mul(0x85eb_ca6b);
    let hold = ((now >> HOLD_SHIFT) as u32).wrapping_mul(0xc2b2_ae35);
    let mixed = (block.0 ^ when ^ hold).wrapping_mul(0x9e37_79b1);
    mixed >> (u32::BITS - one_in.ilog2()) == 0
}

const _: () = assert!(HELD_ONE_IN.is_power_of_two() && HELD_ONE_IN_IF_PAYS.is_power_of_two());

/// Tests, and blocks for those of others.
#[cfg(test)]
pub mod tests {
    use super::Reach::{Block, Part};
    use super::State::{Pooled, Swapped};
    use super::*;

    const FIRST: (u32, bool) = (0, true);

    /// A block that no trial holds at first.
    pub fn free_block() -> BlockId {
        (0..).map(BlockId).find(|b| !is_held(*b, Part, FIRST, 0) && !is_held(*b, Block, FIRST, 0)).unwrap()
    }

    /// A block that is held for this trial alone at first.
    pub fn held_block(hold: Reach) -> BlockId {
        let held = |b: &BlockId, reach| is_held(*b, reach, FIRST, 0) == (reach == hold);
        (0..).map(BlockId).find(|b| held(b, Part) && held(b, Block)).unwrap()
    }

    /// Visits `blocks` once each, with so many pages that come close together after the first that might bring more. How many visits
    /// brought more, and how many were held for the trial.
    fn visit(trials: &Trials, reach: Reach, blocks: core::ops::Range<u32>, pages: u32) -> (u32, u32) {
        let (mut brought, mut tried) = (0, 0);
        for block in blocks.map(BlockId) {
            match trials.ask(reach, Pooled, block, 0) {
                Held::No => brought += 1,
                Held::ByVerdict => {}
                Held::ForTrial => {
                    tried += 1;
                    (0..=pages).for_each(|n| trials.note(reach, Pooled, n == 0, 1));
                }
            }
        }
        (brought, tried)
    }

    #[test]
    fn a_few_blocks_are_held_and_others_after_each_verdict_and_for_the_other_reach() {
        let held = |reach, verdict: (u32, bool)| {
            (0..16_000).filter(move |b| is_held(BlockId(*b), reach, verdict, 0))
        };
        for (verdict, least, most) in [
            (FIRST, 900, 1100),
            ((1, false), 900, 1100),
            ((38, false), 900, 1100),
            ((1, true), 200, 300),
            ((38, true), 200, 300),
        ] {
            let n = held(Part, verdict).count();
            assert!((least..most).contains(&n), "{verdict:?}: {n}");
        }
        let both =
            |reach, verdict| held(Part, FIRST).filter(|b| is_held(BlockId(*b), reach, verdict, 0)).count();
        assert!(both(Part, (1, false)) < 200 && both(Block, FIRST) < 200);
        let later = |b: &u32| is_held(BlockId(*b), Part, FIRST, 1 << HOLD_SHIFT);
        assert!(held(Part, FIRST).filter(later).count() < 200 && (0..16_000).any(|b| later(&b)));
    }

    #[test]
    fn where_little_is_saved_bringing_ends_and_where_much_is_it_begins_again() {
        for reach in [Part, Block] {
            let (few, many) = (reach.worth(Pooled) - 2, reach.worth(Pooled) + 2);
            let trials = Trials::default();
            let (brought, tried) = visit(&trials, reach, 0..4000, few);
            assert!(brought < 800 && tried > 200, "it ends after some 256 visits: {brought} {tried}");
            assert_eq!(visit(&trials, reach, 4000..8000, few).0, 0);
            let (brought, _) = visit(&trials, reach, 0..8000, many);
            assert!(brought > 7000, "{brought}");
            let (brought, tried) = visit(&trials, reach, 0..8000, many);
            assert!((50..250).contains(&tried) && brought + tried == 8000, "all but the held ones: {tried}");
            let (brought, _) = visit(&trials, reach, 0..8000, few);
            assert!(brought < 2500, "it ends after some 1024: {brought}");
        }
    }

    #[test]
    fn from_the_swap_file_most_must_be_wanted() {
        for reach in [Part, Block] {
            let worth = reach.worth(Swapped);
            assert!(worth > reach.worth(Pooled));
            for (pages, bring) in [(worth - 1, false), (worth, true)] {
                let trials = Trials::default();
                for _ in 0..=WINDOW {
                    (0..=pages).for_each(|n| trials.note(reach, Swapped, n == 0, 1));
                }
                let asked = (0..1000).map(|b| trials.ask(reach, Swapped, BlockId(b), 0));
                let brought = asked.filter(|held| *held == Held::No).count();
                assert_eq!(brought > 900, bring, "{reach:?} {pages}");
            }
        }
    }

    #[test]
    fn pages_from_the_swap_file_have_trials_of_their_own() {
        let trials = Trials::default();
        visit(&trials, Block, 0..4000, 0);
        let not_held = |reach, source| {
            (0..100).filter(|b| trials.ask(reach, source, BlockId(*b), 0) == Held::No).count()
        };
        let free = |reach| (0..100).filter(|b| !is_held(BlockId(*b), reach, FIRST, 0)).count();
        assert_eq!(not_held(Block, Pooled), 0);
        assert_eq!([not_held(Block, Swapped), not_held(Part, Pooled)], [free(Block), free(Part)]);
    }
}
