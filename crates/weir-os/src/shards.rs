//! Words that threads write at the same time without taking each other's cache lines: one line each, or
//! several copies of which every thread has its own.

use crate::thread;
use core::ops::Deref;

/// Alone in its cache lines: writing to its neighbours does not slow it down, nor the reverse.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Line<T>(pub T);

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Copies of a value: as many threads as this write without disturbing each other.
pub const SHARDS: usize = 16;

/// A value in [`SHARDS`] copies. Threads share one only when there are more than that many, or where their
/// control blocks lie at odd distances. Allocated once, when it is made.
#[derive(Debug)]
pub struct Shards<T>(Box<[Line<T>]>);

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Shards((0..SHARDS).map(|_| Line::default()).collect())
    }
}

impl<T> Shards<T> {
    /// The calling thread's copy; another thread may write to it, too.
    #[inline]
    pub fn mine(&self) -> &T {
        &self.0[shard_of(thread::id())]
    }

    /// The copies of all threads.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|line| &line.0)
    }
}

/// Thread pointers lie at the ends of stacks: threads made one after the other have neighbouring shards.
#[inline]
fn shard_of(thread: usize) -> usize {
    (thread >> 12) % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn nothing_that_threads_add_at_the_same_time_is_lost() {
        const THREADS: u64 = 24;
        const EACH: u64 = 10_000;
        let shards = Shards::<AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        shards.mine().fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let sum: u64 = shards.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, THREADS * EACH);
    }

    #[test]
    fn copies_lie_in_lines_of_their_own_and_stacks_in_a_row_have_different_ones() {
        let shards = Shards::<u8>::default();
        let lines: std::collections::BTreeSet<usize> =
            shards.iter().map(|byte| core::ptr::from_ref(byte) as usize / 64).collect();
        assert_eq!(lines.len(), SHARDS);
        // A stack of 8 MiB and its guard page.
        let used: std::collections::BTreeSet<usize> =
            (0..SHARDS).map(|i| shard_of(0x7f00_1234_5000 - i * 0x80_1000)).collect();
        assert_eq!(used.len(), SHARDS);
    }
}
