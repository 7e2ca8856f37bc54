//! The lock between changes of protections and closed pages: many threads may have pages closed at once, and
//! while one changes protections nobody has. Whoever waits sleeps.

use crate::thread;
use core::sync::atomic::{AtomicU32, Ordering};

/// Protections change, or pages are closed: not both. A change of protection would open a closed page.
#[derive(Debug, Default)]
pub(super) struct Changing(AtomicU32);

/// One changes, or is about to: nobody else begins.
const CHANGE: u32 = 1 << 31;
/// Somebody sleeps. Only beside `CHANGE`.
const WAITING: u32 = 1 << 30;
/// Those that have pages closed.
const SHARED: u32 = WAITING - 1;

impl Changing {
    pub(super) fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        self.take(|s| s + 1);
        let r = f();
        let before = self.0.fetch_sub(1, Ordering::Release);
        if before & WAITING != 0 && before & SHARED == 1 {
            thread::futex_wake(&self.0, i32::MAX as u32);
        }
        r
    }

    pub(super) fn alone<R>(&self, f: impl FnOnce() -> R) -> R {
        self.take(|s| s | CHANGE);
        loop {
            let s = self.0.load(Ordering::Acquire);
            if s & SHARED == 0 {
                break;
            }
            self.sleep(s);
        }
        let r = f();
        if self.0.swap(0, Ordering::Release) & WAITING != 0 {
            thread::futex_wake(&self.0, i32::MAX as u32);
        }
        r
    }

    /// Takes a part of the lock once nobody changes.
    fn take(&self, to: impl Fn(u32) -> u32) {
        let free = |s| if s & CHANGE == 0 { Some(to(s)) } else { None };
        while let Err(s) = self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, free) {
            self.sleep(s);
        }
    }

    /// Sleeps unless the lock is no longer as it was seen.
    fn sleep(&self, seen: u32) {
        let noted = seen | WAITING;
        if seen == noted || self.0.compare_exchange(seen, noted, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let _ = thread::futex_wait(&self.0, noted, None);
        }
    }

    /// In the child of a fork, which has one thread: whoever held it is not there.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    #[test]
    fn one_that_changes_is_alone_and_the_others_come_together() {
        const ROUNDS: u32 = 20_000;
        let lock = Changing::default();
        let (inside, changing) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        lock.shared(|| {
                            inside.fetch_add(1, Ordering::Relaxed);
                            assert!(!changing.load(Ordering::Relaxed));
                            inside.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        lock.alone(|| {
                            assert!(!changing.swap(true, Ordering::Relaxed));
                            assert_eq!(inside.load(Ordering::Relaxed), 0);
                            changing.store(false, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(lock.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn whoever_waits_for_a_change_sleeps_until_it_is_over() {
        let lock = Changing::default();
        let (holds, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lock.alone(|| {
                    holds.store(true, Ordering::Release);
                    // Until somebody says that he sleeps.
                    while lock.0.load(Ordering::Relaxed) & WAITING == 0 {
                        thread::yield_now();
                    }
                    done.store(true, Ordering::Relaxed);
                });
            });
            while !holds.load(Ordering::Acquire) {
                thread::yield_now();
            }
            lock.shared(|| assert!(done.load(Ordering::Relaxed)));
        });
    }
}
