//! How much of the RAM the pool may have, by trial.
//!
//! Frames save faults, a pool saves reads, and nothing about a page tells which of the two there should be more of
//! (`docs/decisions/0030`). So another size is tried now and then, and kept if the program's threads have more time between
//! their faults ([`crate::meter`]): that is what memory is for.
//!
//! A trial is two looks long. In the first the pool comes to its new size, in the second its result is seen. A smaller pool is
//! kept unless the program loses by it, a larger one only if the program gains by it, and the next step follows at once.
//! After a trial in vain the other direction is next, after a rest; each rest is twice as long as the one before.

use crate::limits::{
    POOL_REST_LOOKS, POOL_REST_LOOKS_MAX, POOL_STEP_PART, POOL_WINDOWS_MIN, TRIAL_FAULTS_MIN,
    TRIAL_NOISE_PERCENT,
};

/// What is seen at the end of a period of [`crate::limits::LOOK_NS`] or so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// How long the period was, ns.
    pub elapsed_ns: u64,
    /// Time of the program's threads between their faults, without the kernel's part, ns.
    pub own_ns: u64,
    /// Faults.
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
        (u128::from(self.own_ns) * 1_000_000 / u128::from(self.elapsed_ns.max(1))) as u64
    }

    /// Whether faults are so many that a trial can gain something.
    fn is_faulting(&self) -> bool {
        u128::from(self.faults) * 1_000_000_000 >= u128::from(TRIAL_FAULTS_MIN) * u128::from(self.elapsed_ns)
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
    /// Nothing is tried, for so many looks with faults.
    #[default]
    Rest,
    /// The pool comes to a new size.
    Settle,
    /// What comes of it is seen.
    Measure,
}

/// The control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSize {
    size: Size,
    phase: Phase,
    /// Looks of this rest so far, and its length. 0: the first.
    rested: u32,
    rest: u32,
    /// The next trial is of a larger pool.
    up: bool,
    /// The size before the trial.
    from: Size,
    /// The best rate since the last trial in vain: what a smaller pool must not lose.
    best: u64,
    /// Windows that the pool owned at the last look.
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
        *self = PoolSize { size, begun: self.begun, kept: self.kept, ..PoolSize::default() };
    }

    /// The size from now on.
    pub fn next(&mut self, seen: Signals) -> Size {
        let shrinks = seen.owned < core::mem::replace(&mut self.owned, seen.owned) && seen.owned > seen.limit;
        match self.phase {
            _ if !seen.usable => {
                *self =
                    PoolSize { rest: self.rest, begun: self.begun, kept: self.kept, ..PoolSize::default() }
            }
            Phase::Rest if seen.is_faulting() => self.rest(seen),
            Phase::Rest => {}
            // The disk needs longer.
            Phase::Settle if shrinks => {}
            Phase::Settle => self.phase = Phase::Measure,
            Phase::Measure => self.judge(seen),
        }
        self.size
    }

    fn rest(&mut self, seen: Signals) {
        self.rested += 1;
        // The working set may fit as long as nothing goes wrong, and something did.
        if seen.rate() < self.best / 2 && self.size != Size::All {
            self.size = Size::All;
            return self.give_up();
        }
        if self.rested >= self.rest.max(POOL_REST_LOOKS) {
            self.best = seen.rate();
            self.step(seen);
        }
    }

    /// Begins the next trial.
    fn step(&mut self, seen: Signals) {
        let next = if self.up { larger(seen) } else { smaller(seen) };
        match next {
            Some(size) => {
                (self.from, self.size, self.phase) = (self.size, size, Phase::Settle);
                self.begun += 1;
            }
            None => {
                self.from = self.size;
                self.give_up();
            }
        }
    }

    fn judge(&mut self, seen: Signals) {
        let (rate, noise) = (seen.rate() * 100, TRIAL_NOISE_PERCENT);
        let good =
            if self.up { rate >= self.best * (100 + noise) } else { rate >= self.best * (100 - noise) };
        // Without faults there is nothing left to gain.
        if good || !seen.is_faulting() {
            self.kept += 1;
            (self.best, self.rest) = (self.best.max(seen.rate()), 0);
            self.step(seen);
        } else {
            self.size = self.from;
            self.give_up();
        }
    }

    /// A trial was in vain, or there is none to make: the other direction is next, later.
    fn give_up(&mut self) {
        self.up = !self.up && self.size != Size::All;
        self.rest = (self.rest * 2).clamp(POOL_REST_LOOKS, POOL_REST_LOOKS_MAX);
        (self.phase, self.rested) = (Phase::Rest, 0);
    }
}

/// The next smaller size that the pool would notice. None: there is none, or the file has no room for what leaves.
fn smaller(seen: Signals) -> Option<Size> {
    let below = |n: u32| (n / 2).max(n.saturating_sub(seen.ram / POOL_STEP_PART)).max(POOL_WINDOWS_MIN);
    let mut to = below(seen.limit);
    while to >= seen.owned && to > POOL_WINDOWS_MIN {
        to = below(to);
    }
    (seen.plenty && to < seen.owned.min(seen.limit)).then_some(Size::Windows(to))
}

/// The next larger size.
fn larger(seen: Signals) -> Option<Size> {
    let to = (seen.limit * 2).min(seen.limit + seen.ram / POOL_STEP_PART);
    (seen.limit < seen.most).then_some(if to < seen.most { Size::Windows(to) } else { Size::All })
}
