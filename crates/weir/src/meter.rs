//! How much time the program has for itself: between its faults.
//!
//! That is what memory is for, so it tells a good share of RAM for the pool from a bad one
//! ([`crate::policy::pool_size`]). Time in faults does not: where threads do nothing but fault it hardly
//! changes, whether they fault on one page in ten or on each.
//!
//! From the end of a thread's fault to the beginning of its next the program runs, or waits for something
//! else, and the kernel has its part of the two faults: the exception, the signal, the way back. That part is
//! not seen from inside. It is taken for the shortest such time lately, but [`FLOOR_NS_MAX`] at most: a loop
//! that does the same between any two faults has no shorter one. What is left of it counts as the program's,
//! the same for every fault. No time counts for more than [`GAP_NS_MAX`]: a thread that waits for minutes and
//! then faults once says nothing about memory.

use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::shards::{Line, Shards};

/// The most that a time between two faults counts.
pub const GAP_NS_MAX: u64 = 100_000_000;
/// The kernel's part of a fault is no more than this.
const FLOOR_NS_MAX: u64 = 5_000;
/// Times between faults that make the shortest of them worth something.
const GAPS_MIN: u64 = 64;

/// What has come together so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Time between faults, of all threads, ns.
    pub between_ns: u64,
    /// How many times that was.
    pub gaps: u64,
}

/// Who measures. Used where threads resolve their own faults.
#[derive(Debug)]
pub struct Meter {
    sums: Line<Shards<Sums>>,
    shortest_ns: Line<AtomicU64>,
}

/// Of some threads.
#[derive(Debug, Default)]
struct Sums {
    between_ns: AtomicU64,
    gaps: AtomicU64,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter { sums: Line::default(), shortest_ns: Line(AtomicU64::new(u64::MAX)) }
    }
}

impl Meter {
    /// A fault begins. `left`: when the thread left its last one, 0 if there was none.
    #[inline]
    pub fn enter(&self, left: &AtomicU64, now_ns: u64) {
        let left_ns = left.load(Ordering::Relaxed);
        if left_ns == 0 {
            return;
        }
        let gap = now_ns.saturating_sub(left_ns).min(GAP_NS_MAX);
        let mine = self.sums.mine();
        mine.between_ns.fetch_add(gap, Ordering::Relaxed);
        mine.gaps.fetch_add(1, Ordering::Relaxed);
        // Written rarely: all threads read it.
        if gap < self.shortest_ns.load(Ordering::Relaxed) {
            self.shortest_ns.fetch_min(gap, Ordering::Relaxed);
        }
    }

    /// What has come together.
    pub fn read(&self) -> Reading {
        let mut all = Reading::default();
        for sums in self.sums.iter() {
            all.between_ns += sums.between_ns.load(Ordering::Relaxed);
            all.gaps += sums.gaps.load(Ordering::Relaxed);
        }
        all
    }

    /// The shortest time between two faults since the last call; `gaps` were counted since.
    pub fn take_shortest(&self, gaps: u64) -> Option<u64> {
        if gaps < GAPS_MIN {
            return None;
        }
        let shortest = self.shortest_ns.swap(u64::MAX, Ordering::Relaxed);
        (shortest != u64::MAX).then_some(shortest.min(FLOOR_NS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_the_faults_of_a_thread_is_counted_and_the_shortest_found() {
        let m = Meter::default();
        let (a, b) = (AtomicU64::new(0), AtomicU64::new(0));
        m.enter(&a, 1000);
        assert_eq!(m.read(), Reading::default(), "its first");
        a.store(5000, Ordering::Relaxed);
        b.store(5000, Ordering::Relaxed);
        m.enter(&a, 7000);
        m.enter(&b, 6500);
        assert_eq!(m.read(), Reading { between_ns: 3500, gaps: 2 });
        assert_eq!(m.take_shortest(2), None, "two say little");
        assert_eq!(m.take_shortest(GAPS_MIN), Some(1500));
        assert_eq!(m.take_shortest(GAPS_MIN), None, "it was taken");
        a.store(0x1000_0000, Ordering::Relaxed);
        m.enter(&a, 0x1000_0000 + 60 * GAP_NS_MAX);
        assert_eq!(m.read(), Reading { between_ns: 3500 + GAP_NS_MAX, gaps: 3 }, "it waited for something");
        m.enter(&a, 0x1000_0000 + FLOOR_NS_MAX + 1);
        assert_eq!(m.take_shortest(GAPS_MIN), Some(FLOOR_NS_MAX));
        b.store(5000, Ordering::Relaxed);
        m.enter(&b, 4000);
        assert_eq!(
            m.read(),
            Reading { between_ns: 3501 + FLOOR_NS_MAX + GAP_NS_MAX, gaps: 5 },
            "a clock that goes back"
        );
    }
}
