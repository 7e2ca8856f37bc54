//! How much RAM the engine may hold: what the budget leaves beside everything that is outside of it.
//!
//! The budget is RAM in all. Memory that Weir does not manage (the heap from before its start, stacks, what
//! libc keeps) is measured by `engine/outside.rs`; the engine's own limit follows it, down and up. Frames
//! follow the limit: more are made when they are needed, and those that are too many go back to the kernel as
//! they become free.

use super::Core;
use crate::door::Pager;
use crate::limits::{
    BUDGET_BYTES_MIN, FIXED_OVERHEAD_BYTES, LEAST_SHARE, METADATA_AHEAD_BYTES, OUTSIDE_FALL_NS, OUTSIDE_STEP,
    POOL_WINDOWS_MIN,
};
use crate::page::id::BLOCK_PAGES;
use crate::page::table::ENTRY_BYTES;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Mutex;
use weir_os::mem::PAGE_BYTES;

/// What the limit is made of.
#[derive(Debug)]
pub struct Limit {
    /// RAM in all, bytes.
    budget: AtomicU64,
    /// The largest budget: there are arena and tables for so much.
    most: u64,
    /// What the engine may hold of the budget.
    bytes: AtomicU64,
    /// What is left to the memory outside.
    left: AtomicU64,
    /// What there was of it at the last look: bursts that are over, and what is only expected, refuse no
    /// memory.
    outside_now: AtomicU64,
    /// Beyond the least: what was allowed because the program's data did not fit into less.
    conceded: AtomicU64,
    /// Of the metadata, what the kernel does not count as anonymous memory.
    unseen: AtomicU64,
    outside: Mutex<Outside>,
    told: AtomicBool,
}

impl Limit {
    /// All of a budget.
    pub fn new(budget: u64) -> Limit {
        Limit {
            budget: AtomicU64::new(budget),
            most: budget,
            bytes: AtomicU64::new(budget),
            left: AtomicU64::new(0),
            outside_now: AtomicU64::new(0),
            conceded: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            outside: Mutex::default(),
            told: AtomicBool::new(false),
        }
    }
}

/// The limit for a budget, beside so many bytes outside; never less than `least`, nor more than the budget.
pub fn beside(budget: u64, outside: u64, least: u64) -> u64 {
    budget.saturating_sub(outside).max(least).min(budget)
}

/// What the engine keeps, however much there is outside: its metadata, and frames for half of the smallest
/// budget or one part in [`LEAST_SHARE`] of this one. With fewer a program would only wait for its pages.
pub fn least(budget: u64, metadata: u64) -> u64 {
    (metadata + (BUDGET_BYTES_MIN / 2).max(budget / LEAST_SHARE)).min(budget)
}

/// How much there is outside, as the limit sees it: more at once, and ahead of what grows; less slowly, so
/// that bursts do not have frames come and go.
#[derive(Debug, Default)]
pub struct Outside {
    high: u64,
    last: u64,
    at_ns: u64,
}

impl Outside {
    /// Takes a measurement, in bytes. Returns what the limit is to leave.
    pub fn note(&mut self, outside: u64, now_ns: u64) -> u64 {
        // By the next look it may have grown as much again.
        let soon = match self.at_ns {
            0 => outside,
            _ => outside + outside.saturating_sub(self.last),
        };
        let passed = now_ns.saturating_sub(self.at_ns).min(OUTSIDE_FALL_NS);
        let gap = self.high.saturating_sub(soon);
        let fall = match gap {
            0..OUTSIDE_STEP => gap,
            _ => (u128::from(gap) * u128::from(passed) / u128::from(OUTSIDE_FALL_NS)) as u64,
        };
        self.high = soon.max(self.high - fall);
        (self.last, self.at_ns) = (outside, now_ns);
        self.high.next_multiple_of(OUTSIDE_STEP)
    }
}

/// There is so much outside that the engine's least exceeds the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Bytes outside.
    pub outside: u64,
    /// What the engine keeps nevertheless.
    pub least: u64,
}

impl<P: Pager> Core<P> {
    /// From now on the RAM in all may be so many bytes, but not more than the engine was made for. More at
    /// once; less as soon as as many frames have become free.
    pub fn set_budget(&self, bytes: u64) {
        let bytes = bytes.clamp(BUDGET_BYTES_MIN.min(self.limit.most), self.limit.most);
        self.limit.budget.store(bytes, Ordering::SeqCst);
        self.stats.budget_bytes.store(bytes, Ordering::Relaxed);
        self.follow();
    }

    /// RAM in all, bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.limit.budget.load(Ordering::Relaxed)
    }

    /// Bytes of RAM that the engine may hold now.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.bytes.load(Ordering::Relaxed)
    }

    /// The limit becomes what the budget leaves.
    fn follow(&self) {
        let (budget, left) = (self.budget_bytes(), self.limit.left.load(Ordering::SeqCst));
        let (least, conceded) =
            (least(budget, self.spent_bytes()), self.limit.conceded.load(Ordering::SeqCst));
        if conceded > 0 && budget.saturating_sub(left) >= least + conceded {
            self.limit.conceded.store(0, Ordering::SeqCst); // there is room again
        }
        let bytes = beside(budget, left, least + conceded);
        if self.limit.bytes.swap(bytes, Ordering::SeqCst) != bytes {
            self.apply_limits();
            self.shed_excess();
            self.kick_if_low();
        }
        self.stats.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// There are so many bytes of anonymous memory outside: the limit follows. Says once if they leave too
    /// little.
    pub fn note_outside(&self, outside: u64, now_ns: u64) -> Option<Excess> {
        let Ok(mut measured) = self.limit.outside.try_lock() else { return None };
        self.limit.left.store(measured.note(outside, now_ns), Ordering::SeqCst);
        self.limit.outside_now.store(outside, Ordering::SeqCst);
        self.follow();
        let s = &self.stats;
        s.outside_bytes.store(outside, Ordering::Relaxed);
        s.outside_bytes_peak.fetch_max(outside, Ordering::Relaxed);
        s.total_bytes_peak.fetch_max(outside + self.resident_bytes(), Ordering::Relaxed);
        let least = least(self.budget_bytes(), self.spent_bytes());
        let exceeds = outside + least > self.budget_bytes();
        let news = exceeds && !self.limit.told.swap(true, Ordering::Relaxed);
        news.then_some(Excess { outside, least })
    }

    /// What the program has does not fit into a limit that memory outside has lowered: it is raised a little,
    /// because the program would end otherwise. False where it is the budget already.
    pub fn concede(&self) -> bool {
        let budget = self.budget_bytes();
        if self.limit_bytes() >= budget {
            return false;
        }
        // On top of the least, so from there: a limit above it grows only when this has caught up.
        let least = least(budget, self.spent_bytes());
        let now = self.limit_bytes().saturating_sub(least);
        self.limit.conceded.fetch_max(now + budget / LEAST_SHARE, Ordering::SeqCst);
        self.follow();
        true
    }

    /// Frames that there may be beside what is outside now, for long: those that the limit allows, or more.
    pub fn frames_to_be_had(&self) -> u32 {
        let (budget, outside) = (self.budget_bytes(), self.limit.outside_now.load(Ordering::Relaxed));
        let spent = self.spent_bytes();
        let frames = beside(budget, outside, least(budget, spent)).saturating_sub(spent) / PAGE_BYTES as u64;
        (frames as u32).max(self.frames.limit())
    }

    /// What the engine holds, as far as the kernel counts it as anonymous memory of this process.
    pub fn anon_bytes(&self) -> u64 {
        self.resident_bytes().saturating_sub(self.limit.unseen.load(Ordering::Relaxed))
    }

    /// Metadata that is no anonymous memory has come to be charged: page-table entries, memory shared with
    /// children.
    pub(super) fn note_unseen(&self, bytes: u64) {
        self.limit.unseen.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Of what [`Core::charge`] charges for a block, the kernel's page-table entries.
    pub(super) fn note_entries(&self, blocks: u32) {
        self.note_unseen(u64::from(blocks) * u64::from(BLOCK_PAGES) * ENTRY_BYTES);
    }

    fn spent_bytes(&self) -> u64 {
        FIXED_OVERHEAD_BYTES + METADATA_AHEAD_BYTES + self.metadata_bytes.load(Ordering::SeqCst)
    }

    /// Frames and pool follow limit, metadata and share.
    pub(super) fn apply_limits(&self) {
        let basis = || {
            let share = self.pool_share.load(Ordering::SeqCst);
            (share, self.spent_bytes(), self.limit.bytes.load(Ordering::SeqCst))
        };
        let mut seen = basis();
        loop {
            let (share, spent, bytes) = seen;
            self.frames.set_limit((bytes.saturating_sub(spent) / PAGE_BYTES as u64) as u32);
            let most = self.pool_most();
            self.pool.set_limit(most.min(share.max(POOL_WINDOWS_MIN)));
            // Somebody else may have changed one of them meanwhile, and set his limit before ours.
            let now = basis();
            if now == seen {
                return;
            }
            seen = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::World;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_is_what_the_outside_leaves_and_never_less_than_the_least() {
        assert_eq!(beside(100 * MIB, 0, 8 * MIB), 100 * MIB);
        assert_eq!(beside(100 * MIB, 30 * MIB, 8 * MIB), 70 * MIB);
        assert_eq!(beside(100 * MIB, 95 * MIB, 8 * MIB), 8 * MIB);
        assert_eq!(beside(100 * MIB, 900 * MIB, 8 * MIB), 8 * MIB);
        assert_eq!(beside(6 * MIB, 0, 8 * MIB), 6 * MIB);
    }

    #[test]
    fn the_least_grows_with_budget_and_metadata_and_stays_within_the_budget() {
        assert_eq!(least(32 * MIB, MIB), 5 * MIB);
        assert_eq!(least(1024 * MIB, 2 * MIB), 66 * MIB);
        assert_eq!(least(8 * MIB, 60 * MIB), 8 * MIB);
    }

    #[test]
    fn the_first_measurement_counts_as_it_is_and_growth_is_expected_to_go_on() {
        let mut outside = Outside::default();
        assert_eq!(outside.note(10 * MIB, 1_000), 10 * MIB);
        assert_eq!(outside.note(14 * MIB, 2_000), 18 * MIB);
        assert_eq!(outside.note(14 * MIB, 3_000), 18 * MIB);
    }

    #[test]
    fn a_burst_is_forgotten_slowly_and_in_the_end_wholly() {
        let (mut outside, second) = (Outside::default(), OUTSIDE_FALL_NS);
        outside.note(10 * MIB, second);
        outside.note(110 * MIB, second + 1);
        let at_once = outside.note(10 * MIB, second + second / 100);
        assert!(at_once > 200 * MIB, "{at_once}");
        let mut last = at_once;
        for n in 1..=200 {
            let now = outside.note(10 * MIB, second + n * second / 10);
            assert!(now <= last);
            last = now;
        }
        assert_eq!(last, 10 * MIB);
    }

    #[test]
    fn a_measurement_after_a_long_pause_counts_alone() {
        let mut outside = Outside::default();
        outside.note(200 * MIB, 1);
        assert_eq!(outside.note(10 * MIB, 2 * OUTSIDE_FALL_NS), 10 * MIB);
    }

    #[test]
    fn a_budget_changes_while_the_engine_runs_within_what_it_was_made_for() {
        let budget = 16 * MIB;
        let core = World::budget(16).core();
        while core.frames.grow(&core.pager).unwrap() > 0 {}
        let frames = core.frames.existing();
        core.set_budget(12 * MIB);
        assert!(core.resident_bytes() <= 12 * MIB && core.frames.existing() + 1024 == frames);
        assert_eq!(core.note_outside(2 * MIB, 1), None);
        assert_eq!(core.limit_bytes(), 10 * MIB);
        core.set_budget(14 * MIB);
        assert_eq!(core.limit_bytes(), 12 * MIB);
        core.set_budget(1);
        assert_eq!((core.budget_bytes(), core.limit_bytes()), (BUDGET_BYTES_MIN, 6 * MIB));
        core.set_budget(1 << 40);
        assert_eq!((core.budget_bytes(), core.limit_bytes()), (budget, 14 * MIB));
        while core.frames.grow(&core.pager).unwrap() > 0 {}
        assert_eq!(core.frames.existing() + 512, frames);
        core.validate(1024).unwrap();
    }
}
