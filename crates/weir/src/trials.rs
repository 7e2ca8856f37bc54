//! Trials of nearness: the counters in which blocks that do without leave what came there. What follows from
//! them is decided in [`crate::policy::nearness`].
//!
//! There is one trial for the part around a page and one for its block, and pages from the pool and from the
//! swap file, which cost differently, have their own.

use crate::limits::NEAR_TRIALS;
use crate::page::id::BlockId;
use crate::page::state::State;
use crate::policy::nearness::{Brings, Finding, Reach, brings};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU32;
use weir_os::shards::Line;

/// The trials.
#[derive(Debug, Default)]
pub struct Trials {
    of: [[Line<Trial>; 2]; 2],
}

/// In a line of its own: faults in blocks that do without write to it, one block in
/// [`crate::limits::NEAR_WITHOUT_ONE_IN`], or fewer.
#[derive(Debug, Default)]
struct Trial {
    /// Times that bringing would have begun in blocks that do without, since the last finding.
    begun: AtomicU32,
    /// Pages that came there after that.
    pages: AtomicU32,
    /// [`Finding`].
    finding: AtomicU32,
}

impl Trials {
    /// Whether to bring so much with a page from there, at the program's `now`-th fault on pages that are
    /// out.
    pub fn ask(&self, reach: Reach, source: State, block: BlockId, now: u64) -> Brings {
        let finding = Finding::decode(self.of(reach, source).finding.load(Ordering::Relaxed));
        brings(finding, (reach, source), block, now)
    }

    /// A block did without for the trial, at the `first` fault that would have done it or at one after it,
    /// which brought so many `pages`.
    pub fn note(&self, reach: Reach, source: State, first: bool, pages: u32) {
        let trial = self.of(reach, source);
        if !first {
            trial.pages.fetch_add(pages, Ordering::Relaxed);
        } else if trial.begun.fetch_add(1, Ordering::Relaxed) == NEAR_TRIALS {
            // The visits before this one are over, or almost. Other threads may count meanwhile: a count more
            // or less changes no finding that means anything.
            let mean = trial.pages.swap(0, Ordering::Relaxed) / NEAR_TRIALS;
            let before = Finding::decode(trial.finding.load(Ordering::Relaxed));
            trial.finding.store(before.next(mean).encode(), Ordering::Relaxed);
            trial.begun.store(0, Ordering::Relaxed);
        }
    }

    fn of(&self, reach: Reach, source: State) -> &Trial {
        &self.of[reach as usize][usize::from(source == State::Swapped)]
    }
}

#[cfg(test)]
mod tests;
