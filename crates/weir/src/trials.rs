//! Trials of nearness: the counters in which held blocks leave what came there. What follows from them is
//! decided in [`crate::policy::nearness`].
//!
//! There is one trial for the part around a page and one for its block, and pages from the pool and from the
//! swap file, which cost differently, have their own.

use crate::limits::NEAR_TRIALS;
use crate::page::id::BlockId;
use crate::page::state::State;
use crate::policy::nearness::{Held, Reach, Verdict, held};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU32;
use weir_os::shards::Line;

/// The trials.
#[derive(Debug, Default)]
pub struct Trials {
    of: [[Line<Trial>; 2]; 2],
}

/// In a line of its own: faults in held blocks write to it, one block in [`crate::limits::NEAR_HELD_ONE_IN`],
/// or fewer.
#[derive(Debug, Default)]
struct Trial {
    /// Times that bringing would have begun in held blocks, since the last verdict.
    begun: AtomicU32,
    /// Pages that came there after that.
    pages: AtomicU32,
    /// [`Verdict`].
    verdict: AtomicU32,
}

impl Trials {
    /// Whether to bring so much with a page from there, at the program's `now`-th fault on pages that are
    /// out.
    pub fn ask(&self, reach: Reach, source: State, block: BlockId, now: u64) -> Held {
        let verdict = Verdict::decode(self.of(reach, source).verdict.load(Ordering::Relaxed));
        held(verdict, (reach, source), block, now)
    }

    /// Bringing was held for the trial, at the `first` fault that would have done it or at one after it,
    /// which brought so many `pages`.
    pub fn note(&self, reach: Reach, source: State, first: bool, pages: u32) {
        let trial = self.of(reach, source);
        if !first {
            trial.pages.fetch_add(pages, Ordering::Relaxed);
        } else if trial.begun.fetch_add(1, Ordering::Relaxed) == NEAR_TRIALS {
            // The visits before this one are over, or almost. Other threads may count meanwhile: a count more
            // or less changes no verdict that means anything.
            let mean = trial.pages.swap(0, Ordering::Relaxed) / NEAR_TRIALS;
            let before = Verdict::decode(trial.verdict.load(Ordering::Relaxed));
            trial.verdict.store(before.next(mean).encode(), Ordering::Relaxed);
            trial.begun.store(0, Ordering::Relaxed);
        }
    }

    fn of(&self, reach: Reach, source: State) -> &Trial {
        &self.of[reach as usize][usize::from(source == State::Swapped)]
    }
}

#[cfg(test)]
mod tests {
    use super::Reach::{Block, Part};
    use super::State::{Pooled, Swapped};
    use super::*;
    use crate::policy::nearness::worth;

    /// Visits `blocks` once each, with so many pages that come close together after the first that might
    /// bring more. How many visits brought more, and how many were held for the trial.
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
    fn where_little_is_saved_bringing_ends_and_where_much_is_it_begins_again() {
        for reach in [Part, Block] {
            let (few, many) = (worth((reach, Pooled)) - 2, worth((reach, Pooled)) + 2);
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
            let enough = worth((reach, Swapped));
            assert!(enough > worth((reach, Pooled)));
            for (pages, bring) in [(enough - 1, false), (enough, true)] {
                let trials = Trials::default();
                for _ in 0..=NEAR_TRIALS {
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
        let free = |reach| {
            (0..100).filter(|b| held(Verdict::default(), (reach, Pooled), BlockId(*b), 0) == Held::No).count()
        };
        assert_eq!(not_held(Block, Pooled), 0);
        assert_eq!([not_held(Block, Swapped), not_held(Part, Pooled)], [free(Block), free(Part)]);
    }
}
