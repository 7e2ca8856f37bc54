//! How much of the RAM the pool may have, by trial.
//!
//! Frames save faults, a pool saves reads, and nothing about a page tells which of the two there should be
//! more of (`docs/decisions/0030`). So another size is tried now and then, and kept if the program's threads
//! have more time between their faults ([`crate::meter`]): that is what memory is for.
//!
//! The pool begins with all that it may have. Below that come a fifth of the RAM ([`POOL_FIRST_PART`]), and
//! halves of it.
//!
//! The program is looked at twice a second, and two looks together are compared with two before. A trial is
//! [`POOL_TRIAL_LOOKS`] looks long; a gain ends it early, and while the program's time still grows it goes
//! on: what is wanted of the memory that changed its place comes back first. A size is kept only if the
//! program gains by it, and the next step follows at once. A smaller pool by which nothing changes is not
//! kept, but the next smaller one is tried: the gain often comes only with the last steps. If none comes,
//! the pool gets back what it had. Then the other direction is next, after a rest; each rest is twice as
//! long as the one before. A program that does as well as ever is left alone, and one that has less than
//! half of its time with a smaller pool, for as long as a trial, gets all for the pool again.

use crate::config::rules::{Rule, is_on};
use crate::limits::{
    MILLION, PERCENT, POOL_FIRST_PART, POOL_REST_LOOKS, POOL_REST_LOOKS_MAX, POOL_TRIAL_LOOKS,
    POOL_WINDOWS_MIN, SECOND_NS, TRIAL_FAULTS_MIN, TRIAL_NOISE_PERCENT,
};

/// What is seen at the end of a period of [`crate::limits::LOOK_NS`] or so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// How long the period was, ns.
    pub elapsed_ns: u64,
    /// Time of the program's threads between their faults, without the kernel's part, ns.
    pub own_ns: u64,
    /// Faults on pages that were out: those that more frames would have saved.
    pub faults: u64,
    /// Windows that the RAM has.
    pub ram: u32,
    /// Windows that the pool owns.
    pub owned: u32,
    /// Windows that it may own now.
    pub limit: u32,
    /// Windows that it may own at most.
    pub most: u32,
    /// The swap file takes pages.
    pub usable: bool,
    /// The swap file has room for what a smaller pool gives it.
    pub plenty: bool,
}

impl Signals {
    /// The program's own time, in millionths of what passed.
    fn rate(&self) -> u64 {
        (u128::from(self.own_ns) * u128::from(MILLION) / u128::from(self.elapsed_ns.max(1))) as u64
    }

    /// Whether faults are so many that a trial can gain something.
    fn is_faulting(&self) -> bool {
        u128::from(self.faults) * u128::from(SECOND_NS)
            >= u128::from(TRIAL_FAULTS_MIN) * u128::from(self.elapsed_ns)
    }
}

/// How large the pool may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// As large as it may ever be.
    #[default]
    All,
    /// So many windows.
    Windows(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The first look has not come.
    #[default]
    New,
    /// Nothing is tried.
    Rest,
    /// Another size is.
    Trial,
}

/// The control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSize {
    size: Size,
    phase: Phase,
    /// Looks of this phase so far.
    looks: u32,
    /// Looks of the next rest. 0: the first.
    rest: u32,
    /// The next trial, or the one under way, is of a larger pool.
    up: bool,
    /// The size that was kept last: what a trial is undone to.
    from: Size,
    /// The program's rate with it: what a trial must gain on.
    best: u64,
    /// Looks in a row with less than half of it.
    low: u32,
    /// The last look's rate, and what the pool owned.
    last: u64,
    owned: u32,
    /// Trials begun, for the statistics.
    pub begun: u64,
    /// Trials kept.
    pub kept: u64,
}

impl PoolSize {
    /// In the child of a fork: what is known of the program is the parent's.
    pub fn forked(&mut self) {
        let size = if self.phase == Phase::Rest { self.size } else { self.from };
        *self = PoolSize { size, from: size, begun: self.begun, kept: self.kept, ..PoolSize::default() };
    }

    /// The size from now on.
    pub fn next(&mut self, seen: Signals) -> Size {
        if !is_on(Rule::PoolSize) {
            return Size::All;
        }
        let rate = (seen.rate() + self.last) / 2;
        let grows = seen.rate() * PERCENT > self.last * (PERCENT + TRIAL_NOISE_PERCENT);
        let shrinks = seen.owned > seen.limit && seen.owned < self.owned;
        (self.last, self.owned) = (seen.rate(), seen.owned);
        match self.phase {
            Phase::New | Phase::Rest if !seen.usable && self.size == Size::All => self.looks = 0,
            _ if !seen.usable => {
                self.size = Size::All;
                self.give_up();
            }
            // In thread mode nothing measures it, so that no trial could gain or lose.
            Phase::New if seen.own_ns == 0 => {}
            Phase::New => (self.from, self.phase) = (self.size, Phase::Rest),
            Phase::Rest if seen.is_faulting() => self.rest(seen, rate),
            Phase::Rest => {}
            // The disk needs longer.
            Phase::Trial if shrinks => {}
            Phase::Trial => self.judge(seen, rate, grows),
        }
        self.size
    }

    fn rest(&mut self, seen: Signals, rate: u64) {
        self.looks += 1;
        self.low = if self.size != Size::All && rate < self.best / 2 { self.low + 1 } else { 0 };
        if self.low >= POOL_TRIAL_LOOKS {
            // The working set may fit as long as nothing goes wrong, and something did.
            self.size = Size::All;
            self.give_up();
        } else if self.looks >= self.rest.max(POOL_REST_LOOKS) {
            // A program that does as well as ever with a smaller pool is left alone.
            if self.best == 0
                || self.size == Size::All
                || rate * PERCENT < self.best * (PERCENT - TRIAL_NOISE_PERCENT)
            {
                (self.from, self.best) = (self.size, rate);
                self.step(seen);
            } else {
                self.looks = 0;
            }
        }
    }

    /// Begins the next trial. Where there is no size left to try, what gained nothing is undone.
    fn step(&mut self, seen: Signals) {
        match if self.up { larger(seen) } else { smaller(seen) } {
            Some(size) => {
                (self.size, self.phase, self.looks) = (size, Phase::Trial, 0);
                self.begun += 1;
            }
            None => self.undo(),
        }
    }

    fn judge(&mut self, seen: Signals, rate: u64, grows: bool) {
        self.looks += 1;
        let noise = TRIAL_NOISE_PERCENT;
        let gains = rate * PERCENT >= self.best * (PERCENT + noise);
        let even = !self.up && rate * PERCENT >= self.best * (PERCENT - noise);
        let over = self.looks >= POOL_TRIAL_LOOKS && !grows;
        // Without faults there is nothing left to gain, by undoing it or by going on.
        let idle = over && !seen.is_faulting();
        if gains && self.looks >= 2 || idle {
            self.kept += 1;
            (self.from, self.best, self.rest) = (self.size, self.best.max(rate), 0);
            if seen.is_faulting() {
                self.step(seen);
            } else {
                (self.phase, self.looks) = (Phase::Rest, 0);
            }
        } else if over && even {
            self.step(seen);
        } else if over {
            self.undo();
        }
    }

    /// The pool gets back what it had with the last gain.
    fn undo(&mut self) {
        self.size = self.from;
        self.give_up();
    }

    /// A trial was in vain, or there is none to make: the other direction is next, later.
    fn give_up(&mut self) {
        self.up = !self.up && self.size != Size::All;
        self.rest = (self.rest * 2).clamp(POOL_REST_LOOKS, POOL_REST_LOOKS_MAX);
        (self.phase, self.looks, self.low) = (Phase::Rest, 0, 0);
    }
}

/// The next smaller size that the pool would notice. None: there is none, or the file has no room for what
/// leaves.
fn smaller(seen: Signals) -> Option<Size> {
    let below = |n: u32| (n / 2).min(seen.ram / POOL_FIRST_PART).max(POOL_WINDOWS_MIN);
    let mut to = below(seen.limit);
    while to >= seen.owned && to > POOL_WINDOWS_MIN {
        to = below(to);
    }
    (seen.plenty && to < seen.owned.min(seen.limit)).then_some(Size::Windows(to))
}

/// The next larger size.
fn larger(seen: Signals) -> Option<Size> {
    let to = seen.limit * 2;
    let is_step = to <= seen.ram / POOL_FIRST_PART && to < seen.most;
    (seen.limit < seen.most).then_some(if is_step { Size::Windows(to) } else { Size::All })
}

#[cfg(test)]
mod tests;
