//! What faults ask for, and who takes them: it decides whether room is wanted as frames that move
//! or as new ones, and who makes it.

use crate::sync::Ordering;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Faults after which the count of faulting threads begins anew.
const EPOCH_FAULTS: u64 = 256;

/// The recent past of faults.
#[derive(Debug)]
pub struct Demand {
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
            singles: AtomicI32::new(0),
            seen: AtomicU64::new(0),
            faulters: AtomicU32::new(0),
            processors: weir_os::thread::processors(),
        }
    }
}

impl Demand {
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
        self.singles.load(Ordering::Relaxed) > 0
    }

    /// Notes who takes the n-th fault, where threads resolve their own.
    pub fn note_faulter(&self, thread: usize, nth: u64) {
        let bit = 1 << ((thread >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
        if nth.is_multiple_of(EPOCH_FAULTS) {
            let seen = self.seen.swap(bit, Ordering::Relaxed);
            self.faulters.store(seen.count_ones(), Ordering::Relaxed);
        } else if self.seen.load(Ordering::Relaxed) & bit == 0 {
            self.seen.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether faulting threads keep the processors busy by themselves: then each makes room for
    /// its own faults, and the background thread, which would only take their place, comes last.
    pub fn crowded(&self) -> bool {
        self.faulters.load(Ordering::Relaxed) >= self.processors && self.wants_credit()
    }

    /// Whether faulting threads wait for each other's processors.
    pub fn queued(&self) -> bool {
        // Threads are counted in 64 bits: of more than that many each bit stands for several.
        const COUNTED: u32 = 48;
        self.faulters.load(Ordering::Relaxed) > self.processors.min(COUNTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_crowded_when_as_many_threads_fault_as_there_are_processors() {
        let d = Demand { processors: 2, ..Demand::default() };
        (0..8).for_each(|_| d.note(1));
        let epochs = |threads: usize| {
            (0..3 * EPOCH_FAULTS).for_each(|n| d.note_faulter((n as usize % threads) << 12, n));
            d.crowded()
        };
        assert!(!epochs(1));
        assert!(epochs(2) && !d.queued());
        assert!(epochs(3) && d.queued());
        assert!(!epochs(1) && !d.queued());
        d.note_faulter(0, 1);
        (0..8).for_each(|_| d.note(64));
        assert!(!d.wants_credit() && !d.crowded());
    }
}
