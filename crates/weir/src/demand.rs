//! What faults ask for, and who takes them: it decides whether room is wanted as frames that move
//! or as new ones, and who makes it.

use crate::config::rules::{Rule, is_on};
use crate::limits::EPOCH_FAULTS;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use weir_os::shards::Line;

/// A count of what all threads count in parts of their own, told in steps: one write in so many goes to a
/// line that all share.
#[derive(Debug, Default)]
pub struct Tally(AtomicU64);

impl Tally {
    const STEP: u64 = 8;

    /// A thread's part was `before` and is one more. At the end of a step: how many there are of all.
    #[inline]
    pub fn note(&self, before: u64) -> Option<u64> {
        let ends = before % Self::STEP == Self::STEP - 1;
        ends.then(|| self.0.fetch_add(Self::STEP, Ordering::Relaxed) + Self::STEP)
    }

    /// How many there are, for a thread whose own part is `own`: exact while it is the only one, else less by
    /// what the others have not told yet.
    #[inline]
    pub fn now(&self, own: u64) -> u64 {
        self.0.load(Ordering::Relaxed) + own % Self::STEP
    }
}

/// The recent past of faults.
#[derive(Debug)]
pub struct Demand {
    /// Faults, where threads resolve their own.
    pub faults: Line<Tally>,
    /// Positive while faults take single pages.
    singles: AtomicI32,
    /// A bit for each thread (by its hash) that faulted in this epoch.
    seen: AtomicU64,
    /// Threads that faulted in the last epoch.
    faulters: AtomicU32,
    /// Processors that this process may use.
    processors: u32,
}

impl Default for Demand {
    fn default() -> Demand {
        Demand {
            faults: Line::default(),
            singles: AtomicI32::new(0),
            seen: AtomicU64::new(0),
            faulters: AtomicU32::new(0),
            processors: weir_os::thread::processors(),
        }
    }
}

impl Demand {
    /// As on a machine with so many processors.
    #[cfg(test)]
    pub fn with_processors(processors: u32) -> Demand {
        Demand { processors, ..Demand::default() }
    }

    /// Notes what a fault takes: a single page by copy into a new frame, a run by moving frames.
    pub fn note(&self, run: u32) {
        const BOUND: i32 = 64;
        let d = self.singles.load(Ordering::Relaxed);
        let next = match run {
            1 => (d + 1).min(BOUND),
            2..8 => d,
            _ => (d - 8).max(-BOUND),
        };
        if next != d {
            self.singles.store(next, Ordering::Relaxed);
        }
    }

    /// Whether faults mostly take new frames, which free ones in the arena have to make room for.
    pub fn wants_credit(&self) -> bool {
        is_on(Rule::SingleCopies) && self.singles.load(Ordering::Relaxed) > 0
    }

    /// Notes who takes a fault, where threads resolve their own; the thread's part of them was `before`.
    pub fn note_faulter(&self, thread: usize, before: u64) {
        let bit = 1 << ((thread >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
        if self.faults.note(before).is_some_and(|all| all.is_multiple_of(EPOCH_FAULTS)) {
            let seen = self.seen.swap(bit, Ordering::Relaxed);
            self.faulters.store(seen.count_ones(), Ordering::Relaxed);
        } else if self.seen.load(Ordering::Relaxed) & bit == 0 {
            self.seen.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether faulting threads keep the processors busy by themselves: then each makes room for
    /// its own faults, and the background thread, which would only take their place, comes last.
    pub fn crowded(&self) -> bool {
        is_on(Rule::OwnRoom) && self.is_busy() && self.wants_credit()
    }

    /// Whether streams keep the processors busy: as `crowded`, of faults that take runs.
    pub fn streams_crowd(&self) -> bool {
        is_on(Rule::StreamRoom) && self.is_busy() && !self.wants_credit()
    }

    /// Threads that faulted in the last epoch, of up to 64.
    pub fn faulters(&self) -> u32 {
        self.faulters.load(Ordering::Relaxed)
    }

    /// Whether there are processors that no faulting thread keeps busy. Whoever asks is one.
    pub fn leaves_processors(&self) -> bool {
        self.faulters().max(1) < self.processors
    }

    /// Whether as many threads fault as there are processors.
    fn is_busy(&self) -> bool {
        self.faulters.load(Ordering::Relaxed) >= self.processors
    }

    /// Whether faulting threads wait for each other's processors.
    pub fn queued(&self) -> bool {
        // Threads are counted in 64 bits: of more than that many each bit stands for several.
        const COUNTED: u32 = 48;
        is_on(Rule::Turns) && self.faulters.load(Ordering::Relaxed) > self.processors.min(COUNTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_exact_for_one_thread_and_behind_by_less_than_a_step_for_each_other() {
        let t = Tally::default();
        for n in 0..100 {
            t.note(n);
            assert_eq!(t.now(n + 1), n + 1);
        }
        let other = (0..20).filter_map(|n| t.note(n)).last();
        assert_eq!((other, t.now(100)), (Some(96 + 16), 100 + 16));
    }

    #[test]
    fn it_is_crowded_when_as_many_threads_fault_as_there_are_processors() {
        let d = Demand { processors: 2, ..Demand::default() };
        (0..8).for_each(|_| d.note(1));
        let epochs = |threads: usize| {
            let faults = (0..3 * EPOCH_FAULTS).flat_map(|n| (0..threads).map(move |thread| (thread, n)));
            faults.for_each(|(thread, n)| d.note_faulter(thread << 12, n));
            d.crowded()
        };
        assert!(!epochs(1));
        assert!(epochs(2) && !d.queued());
        assert!(epochs(3) && d.queued());
        assert!(!epochs(1) && !d.queued());
        d.note_faulter(0, 1);
        (0..8).for_each(|_| d.note(64));
        assert!(!d.wants_credit() && !d.crowded() && !d.streams_crowd());
        assert!(!epochs(2) && d.streams_crowd(), "of streams");
        assert!(!epochs(1) && !d.streams_crowd());
    }
}
