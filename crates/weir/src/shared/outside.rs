//! The budget beside the memory outside, as numbers: what the limit is made of, and how it follows what is
//! measured.

use crate::limits::{BUDGET_BYTES_MIN, LEAST_SHARE, OUTSIDE_FALL_NS, OUTSIDE_STEP};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Mutex;

/// What the limit is made of.
#[derive(Debug)]
pub struct Limit {
    /// RAM in all, bytes.
    pub(super) budget: AtomicU64,
    /// The largest budget: there are arena and tables for so much.
    pub(super) most: u64,
    /// What the engine may hold of the budget.
    pub(super) bytes: AtomicU64,
    /// What is left to the memory outside.
    pub(super) left: AtomicU64,
    /// What there was of it at the last look: bursts that are over, and what is only expected, refuse no
    /// memory.
    pub(super) outside_now: AtomicU64,
    /// Beyond the least: what was allowed because the program's data did not fit into less.
    pub(super) conceded: AtomicU64,
    /// Of the metadata, what the kernel does not count as anonymous memory.
    pub(super) unseen: AtomicU64,
    pub(super) outside: Mutex<Outside>,
    pub(super) told: AtomicBool,
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
