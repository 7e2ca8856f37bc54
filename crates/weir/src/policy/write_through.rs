//! What the adaptive policy does now, writeback or writethrough: a pure function of what was measured, with
//! hysteresis.
//!
//! Writing a page through moves its write from the moment when the pool needs its place to one when nobody
//! waits. That is worth something only if the pool is nearly full, so that places are needed; it is for
//! nothing for a page that dies, or comes back and changes, before it would have been written; and it is paid
//! for with time of the device. So each of three measurements has a threshold to begin at, held for
//! [`THROUGH_LOOKS`] periods, and a looser one to end at, at once.
//!
//! | measured over a period | begins at | ends at |
//! | - | - | - |
//! | share of the pool's limit that its windows take | [`THROUGH_FILL_BEGIN`] and more | less than [`THROUGH_FILL_END`] |
//! | of the pages that left the pool, those that went to the swap file | [`THROUGH_USEFUL_BEGIN`] and more | less than [`THROUGH_USEFUL_END`] |
//! | time in which threads waited for the device, as it would be if all pages that leave the pool were written | [`THROUGH_BUSY_BEGIN`] and less | more than [`THROUGH_BUSY_END`] |
//! | the file has room for second copies and takes writes | yes | no |
//!
//! When fewer than [`THROUGH_PAGES_MIN`] pages left the pool there is no evidence: nothing begins, and
//! nothing ends for want of usefulness.

use crate::config::rules::{Rule, is_on};
use crate::limits::{
    PERMILLE, THROUGH_BUSY_BEGIN, THROUGH_BUSY_END, THROUGH_FILL_BEGIN, THROUGH_FILL_END, THROUGH_LOOK_NS,
    THROUGH_LOOKS, THROUGH_PAGES_MIN, THROUGH_USEFUL_BEGIN, THROUGH_USEFUL_END,
};

/// Counters as they stand: each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The clock, ns.
    pub now_ns: u64,
    /// Pages that left the pool for the swap file, written then or before.
    pub evicted: u64,
    /// Pages that the program took back from the pool, or gave up while they were in it.
    pub lost: u64,
    /// Time that threads spent reading from or writing to the device, ns.
    pub io_ns: u64,
}

/// What is true now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Permille of the pool's limit that its windows take.
    pub fill: u64,
    /// The swap file takes writes, and has room for second copies.
    pub room: bool,
}

/// What happened in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rates {
    evicted: u64,
    lost: u64,
    /// Permille of the period; of several threads together more than 1000.
    busy: u64,
}

impl Rates {
    fn between(from: &Totals, to: &Totals) -> Rates {
        let ns = to.now_ns.saturating_sub(from.now_ns).max(1);
        let busy = u128::from(to.io_ns.saturating_sub(from.io_ns)) * u128::from(PERMILLE) / u128::from(ns);
        Rates {
            evicted: to.evicted.saturating_sub(from.evicted),
            lost: to.lost.saturating_sub(from.lost),
            busy: busy as u64,
        }
    }

    fn left(&self) -> u64 {
        self.evicted + self.lost
    }

    fn useful(&self, permille: u64) -> bool {
        self.evicted * PERMILLE >= self.left() * permille
    }

    /// As busy as the device would be if pages were written that are lost now.
    fn busy_if_all_were_written(&self) -> u64 {
        self.busy * self.left() / self.evicted.max(1)
    }
}

/// Follows the measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteThrough {
    last: Totals,
    good: u32,
    through: bool,
}

impl WriteThrough {
    /// Whether it is time for another look.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last.now_ns) >= THROUGH_LOOK_NS
    }

    /// Whether pages are to be written through from now on.
    pub fn next(&mut self, totals: Totals, now: Standing) -> bool {
        let first = self.last == Totals::default();
        let rates = Rates::between(&self.last, &totals);
        self.last = totals;
        if !first && is_on(Rule::WriteThrough) {
            (self.through, self.good) = judge(self.through, self.good, &rates, now);
        }
        self.through
    }
}

/// The mode after a period, and the good periods in a row before it begins.
fn judge(through: bool, good: u32, rates: &Rates, now: Standing) -> (bool, u32) {
    let evidence = rates.left() >= THROUGH_PAGES_MIN;
    if through {
        let useful = !evidence || rates.useful(THROUGH_USEFUL_END);
        return (now.room && now.fill >= THROUGH_FILL_END && useful && rates.busy <= THROUGH_BUSY_END, 0);
    }
    let worth = now.room && now.fill >= THROUGH_FILL_BEGIN && evidence && rates.useful(THROUGH_USEFUL_BEGIN);
    if !worth || rates.busy_if_all_were_written() > THROUGH_BUSY_BEGIN {
        return (false, 0);
    }
    if good + 1 < THROUGH_LOOKS { (false, good + 1) } else { (true, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Standing = Standing { fill: 950, room: true };
    const GOOD: Rates = Rates { evicted: 900, lost: 100, busy: 300 };

    fn begins(rates: Rates, now: Standing) -> bool {
        judge(false, THROUGH_LOOKS - 1, &rates, now).0
    }

    fn goes_on(rates: Rates, now: Standing) -> bool {
        judge(true, 0, &rates, now).0
    }

    #[test]
    fn writing_through_begins_when_all_is_well_and_not_when_one_thing_is_not() {
        assert!(begins(GOOD, NOW));
        assert!(begins(GOOD, Standing { fill: THROUGH_FILL_BEGIN, ..NOW }));
        assert!(!begins(GOOD, Standing { fill: THROUGH_FILL_BEGIN - 1, ..NOW }), "the pool has room");
        assert!(!begins(GOOD, Standing { room: false, ..NOW }), "the file has none");
        assert!(begins(Rates { evicted: 750, lost: 250, busy: 0 }, NOW));
        assert!(!begins(Rates { evicted: 749, lost: 251, busy: 0 }, NOW), "too much comes back or dies");
        assert!(begins(Rates { busy: 450, ..GOOD }, NOW));
        assert!(!begins(Rates { busy: 460, ..GOOD }, NOW), "the tenth that is lost would be written as well");
        assert!(begins(Rates { evicted: THROUGH_PAGES_MIN, lost: 0, busy: 0 }, NOW));
        assert!(
            !begins(Rates { evicted: THROUGH_PAGES_MIN - 1, lost: 0, busy: 0 }, NOW),
            "that says nothing"
        );
        assert!(!begins(Rates { evicted: 0, lost: 1000, busy: 0 }, NOW));
        assert!(!begins(Rates::default(), NOW));
    }

    #[test]
    fn writing_through_goes_on_while_it_would_not_begin_and_ends_when_one_thing_is_bad() {
        assert!(goes_on(GOOD, NOW));
        assert!(goes_on(GOOD, Standing { fill: THROUGH_FILL_END, ..NOW }));
        assert!(!goes_on(GOOD, Standing { fill: THROUGH_FILL_END - 1, ..NOW }));
        assert!(!goes_on(GOOD, Standing { room: false, ..NOW }));
        assert!(goes_on(Rates { evicted: 500, lost: 500, busy: 0 }, NOW));
        assert!(!goes_on(Rates { evicted: 499, lost: 501, busy: 0 }, NOW));
        assert!(goes_on(Rates { busy: THROUGH_BUSY_END, ..GOOD }, NOW));
        assert!(!goes_on(Rates { busy: THROUGH_BUSY_END + 1, ..GOOD }, NOW));
        assert!(
            goes_on(Rates { evicted: 0, lost: THROUGH_PAGES_MIN - 1, busy: 0 }, NOW),
            "that says nothing"
        );
        assert!(goes_on(Rates::default(), NOW));
    }

    #[test]
    fn one_good_period_begins_nothing_and_one_bad_one_starts_the_count_again() {
        let bad = Rates { lost: 1000, ..GOOD };
        let mut state = (false, 0);
        let mut after = |rates: &Rates| {
            state = judge(state.0, state.1, rates, NOW);
            state.0
        };
        assert_eq!(
            [&GOOD, &GOOD, &bad, &GOOD, &GOOD, &GOOD].map(&mut after),
            [false, false, false, false, false, true]
        );
        assert_eq!([&GOOD, &bad, &GOOD].map(&mut after), [true, false, false]);
    }

    #[test]
    fn the_chooser_looks_at_what_happened_since_its_last_look() {
        let mut chooser = WriteThrough::default();
        let at = |period: u64, evicted: u64, lost: u64| Totals {
            now_ns: 5_000_000_000 + period * THROUGH_LOOK_NS,
            evicted,
            lost,
            io_ns: period * THROUGH_LOOK_NS / 10,
        };
        assert!(!chooser.next(at(0, 1_000_000, 0), NOW), "what was before is not known");
        assert!(
            !chooser.is_due(at(0, 0, 0).now_ns + THROUGH_LOOK_NS - 1) && chooser.is_due(at(1, 0, 0).now_ns)
        );
        let modes: Vec<bool> = (1..=4).map(|p| chooser.next(at(p, 1_000_000 + 1000 * p, 0), NOW)).collect();
        assert_eq!(modes, [false, false, true, true]);
        assert!(!chooser.next(at(5, 1_004_000, 1000), NOW));
        // A busy device: all of the time of two threads.
        let mut busy = WriteThrough { through: true, last: at(5, 0, 0), good: 0 };
        let totals = Totals { io_ns: at(5, 0, 0).io_ns + 2 * THROUGH_LOOK_NS, ..at(6, 5000, 0) };
        assert!(!busy.next(totals, NOW));
    }
}
