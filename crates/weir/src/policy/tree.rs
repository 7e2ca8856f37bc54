//! What a process books of a budget that its whole tree shares.
//!
//! Whoever runs short takes what nobody has booked. Where there is nothing left it is *hungry*, and the
//! others lend: at once what they do not use, then, step by step, what they do not work with, and what
//! exceeds an equal share of those that are at work. A hungry process has less than that share, so two that
//! are at work meet there and neither takes from the other for long. Nobody goes below the smallest budget.

use crate::limits::{BUDGET_BYTES_MIN, TREE_STEP_PART};

/// What a process sees of itself and of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The budget of all, bytes.
    pub budget: u64,
    /// What this process has booked.
    pub booked: u64,
    /// What it has in RAM.
    pub used: u64,
    /// It is in need: it takes memory, or waits for it, and has no room.
    pub needs: bool,
    /// What the others have booked.
    pub others: u64,
    /// How many of them are in need.
    pub others_need: u32,
    /// One of them is in need, has less than its share, and finds nothing left.
    pub hungry: bool,
}

impl Signals {
    /// What each of those in need may have when all of them want more.
    fn share(&self) -> u64 {
        let at_work = u64::from(self.others_need) + u64::from(self.needs);
        self.budget / at_work.max(1)
    }

    fn free(&self) -> u64 {
        self.budget.saturating_sub(self.booked + self.others)
    }

    /// Whether this process is to say that it is hungry.
    pub fn is_hungry(&self) -> bool {
        self.needs && self.free() == 0 && self.booked < self.share()
    }

    /// What the process is to have booked.
    pub fn wanted(&self) -> u64 {
        if self.needs && !self.is_over_share() {
            return self.booked + self.free();
        }
        if !self.is_short() {
            return self.booked;
        }
        let least = if self.needs { self.share() } else { 0 };
        let lent = self.booked.min(self.used).saturating_sub(self.budget / TREE_STEP_PART);
        lent.max(least.min(self.booked)).max(BUDGET_BYTES_MIN.min(self.booked))
    }

    fn is_over_share(&self) -> bool {
        self.is_short() && self.booked >= self.share()
    }

    /// Somebody has to lend: for another, or because more is booked than there is, as after a fork.
    fn is_short(&self) -> bool {
        let few = self.hungry && self.free() < self.budget / TREE_STEP_PART;
        few || self.booked + self.others > self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn alone() -> Signals {
        Signals { budget: 320 * MIB, booked: 8 * MIB, used: 8 * MIB, needs: true, ..Signals::default() }
    }

    #[test]
    fn who_runs_short_takes_what_is_free_and_who_does_not_takes_nothing() {
        assert_eq!(alone().wanted(), 320 * MIB);
        assert_eq!(Signals { others: 300 * MIB, ..alone() }.wanted(), 20 * MIB);
        assert_eq!(Signals { needs: false, ..alone() }.wanted(), 8 * MIB);
    }

    #[test]
    fn who_finds_nothing_and_has_less_than_its_share_is_hungry() {
        let short = Signals { others: 312 * MIB, others_need: 1, ..alone() };
        assert!(short.is_hungry());
        assert!(!Signals { others: 311 * MIB, ..short }.is_hungry(), "there is something left");
        assert!(!Signals { needs: false, ..short }.is_hungry());
        assert!(!Signals { booked: 160 * MIB, others: 160 * MIB, ..short }.is_hungry(), "has its share");
    }

    #[test]
    fn what_is_not_used_is_lent_at_once_and_what_is_not_worked_with_step_by_step() {
        let idle = Signals { booked: 300 * MIB, used: 100 * MIB, needs: false, hungry: true, ..alone() };
        let idle = Signals { others: 20 * MIB, ..idle };
        assert_eq!(idle.wanted(), 90 * MIB);
        assert_eq!(Signals { hungry: false, ..idle }.wanted(), 300 * MIB, "nobody asks for it");
        let less = Signals { booked: 90 * MIB, used: 90 * MIB, others: 225 * MIB, ..idle };
        assert_eq!(less.wanted(), 80 * MIB);
        assert_eq!(Signals { others: 200 * MIB, ..less }.wanted(), 90 * MIB, "there is something to take");
        let small = Signals { booked: 12 * MIB, used: 12 * MIB, others: 308 * MIB, ..idle };
        assert_eq!(small.wanted(), 8 * MIB, "the smallest budget");
        assert_eq!(Signals { booked: 4 * MIB, others: 316 * MIB, ..small }.wanted(), 4 * MIB, "less stays");
    }

    #[test]
    fn after_a_fork_those_above_their_share_lend_until_no_more_is_booked_than_there_is() {
        let forked =
            Signals { booked: 200 * MIB, used: 200 * MIB, others: 200 * MIB, others_need: 1, ..alone() };
        assert_eq!(forked.wanted(), 190 * MIB);
        assert_eq!(Signals { booked: 165 * MIB, used: 165 * MIB, ..forked }.wanted(), 160 * MIB, "its share");
        assert_eq!(
            Signals { booked: 120 * MIB, used: 120 * MIB, ..forked }.wanted(),
            120 * MIB,
            "less than that"
        );
    }

    #[test]
    fn two_at_work_meet_at_equal_shares() {
        let (mut a, mut b) = (320 * MIB, 8 * MIB);
        for _ in 0..100 {
            let seen = |mine: u64, others: u64, hungry| Signals {
                booked: mine,
                used: mine,
                others,
                others_need: 1,
                hungry,
                ..alone()
            };
            let hungry_b = seen(b, a, false).is_hungry();
            a = seen(a, b, hungry_b).wanted();
            let hungry_a = seen(a, b, false).is_hungry();
            b = seen(b, a, hungry_a).wanted();
            assert!(a + b <= 328 * MIB);
        }
        assert_eq!((a, b), (160 * MIB, 160 * MIB));
    }
}
