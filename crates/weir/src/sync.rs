//! The seam between real atomics and loom's, and the three locks of the engine: [`BlockLock`]
//! (a word in the page table), [`Lock`] (short leaf sections) and [`Gate`] (everybody out before
//! a fork). None allocates, none touches libc, all can be reset in the child of a fork.

// What the models do not look at.
use core::sync::atomic::AtomicU64 as Plain;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
fn wait(word: &AtomicU32, expected: u32) {
    let _ = weir_os::thread::futex_wait(word, expected, None);
}
#[cfg(not(loom))]
fn wake(word: &AtomicU32, n: u32) {
    weir_os::thread::futex_wake(word, n);
}
#[cfg(loom)]
fn wait(_word: &AtomicU32, _expected: u32) {
    loom::thread::yield_now();
}
#[cfg(loom)]
fn wake(_word: &AtomicU32, _n: u32) {}

#[cfg(not(loom))]
use weir_os::thread::now_ns;
#[cfg(loom)]
fn now_ns() -> u64 {
    0
}

/// Waits for locks, and the time that they took: written by who has waited anyway.
static WAITS: [Plain; 2] = [const { Plain::new(0) }; 2];

fn count_wait(ns: u64) {
    WAITS[0].fetch_add(1, Ordering::Relaxed);
    WAITS[1].fetch_add(ns, Ordering::Relaxed);
}

/// How often a thread of this process has waited for one of the engine's locks, and how long altogether, ns.
pub fn waits() -> (u64, u64) {
    (WAITS[0].load(Ordering::Relaxed), WAITS[1].load(Ordering::Relaxed))
}

#[cfg(not(loom))]
const SPINS: u32 = 200;
#[cfg(loom)]
const SPINS: u32 = 0;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Takes the futex lock in `word`: spins briefly, then sleeps.
fn acquire(word: &AtomicU32) {
    if word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
        let start = now_ns();
        acquire_held(word);
        count_wait(now_ns() - start);
    }
}

#[cold]
fn acquire_held(word: &AtomicU32) {
    for _ in 0..SPINS {
        if word.load(Ordering::Relaxed) == FREE
            && word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return;
        }
        core::hint::spin_loop();
    }
    // Once contended, stay contended: a waiter cannot know whether others wait too.
    while word.swap(CONTENDED, Ordering::Acquire) != FREE {
        wait(word, CONTENDED);
    }
}

fn release(word: &AtomicU32) {
    if word.swap(FREE, Ordering::Release) == CONTENDED {
        wake(word, 1);
    }
}

/// The lock word of a block, wherever it lies.
#[derive(Clone, Copy, Debug)]
pub struct BlockLock<'a>(pub &'a AtomicU32);

impl<'a> BlockLock<'a> {
    /// Waits for the lock.
    pub fn lock(self) -> LockGuard<'a> {
        acquire(self.0);
        LockGuard(self.0)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(self) -> Option<LockGuard<'a>> {
        self.0
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| LockGuard(self.0))
    }

    /// Whether nobody has it; then what the last holder did is seen.
    #[inline]
    pub fn is_free(self) -> bool {
        self.0.load(Ordering::Acquire) == FREE
    }
}

/// Holds a lock word; releases it on drop.
#[derive(Debug)]
pub struct LockGuard<'a>(&'a AtomicU32);

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        release(self.0);
    }
}

/// A lock for short leaf sections that call nothing which can block.
#[derive(Debug)]
pub struct Lock(AtomicU32);

impl Default for Lock {
    fn default() -> Self {
        Lock(AtomicU32::new(FREE))
    }
}

impl Lock {
    /// Waits for the lock.
    pub fn lock(&self) -> LockGuard<'_> {
        acquire(&self.0);
        LockGuard(&self.0)
    }
}

const CLOSED: u32 = 1 << 31;

/// Counts the threads inside the engine and can be closed: `close` returns once nobody is
/// inside, and newcomers wait until `open`. A thread inside must never touch managed memory and
/// never enter twice.
#[derive(Debug)]
pub struct Gate(AtomicU32);

impl Default for Gate {
    fn default() -> Self {
        Gate(AtomicU32::new(0))
    }
}

impl Gate {
    /// Enters, waiting while the gate is closed.
    pub fn enter(&self) -> Inside<'_> {
        let mut w = self.0.load(Ordering::Relaxed);
        loop {
            if w & CLOSED != 0 {
                wait(&self.0, w);
                w = self.0.load(Ordering::Relaxed);
                continue;
            }
            match self.0.compare_exchange_weak(w, w + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Inside(self),
                Err(now) => w = now,
            }
        }
    }

    /// Closes the gate and waits until everybody has left. One closer at a time: a second one
    /// waits for the first to open.
    pub fn close(&self) {
        loop {
            let w = self.0.load(Ordering::Relaxed);
            if w & CLOSED != 0 {
                wait(&self.0, w);
            } else if self.0.compare_exchange(w, w | CLOSED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                break;
            }
        }
        loop {
            let w = self.0.load(Ordering::Acquire);
            if w == CLOSED {
                return;
            }
            wait(&self.0, w);
        }
    }

    /// Opens a closed gate.
    pub fn open(&self) {
        self.0.store(0, Ordering::Release);
        wake(&self.0, u32::MAX >> 1);
    }
}

/// A thread's stay inside the [`Gate`].
#[derive(Debug)]
pub struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.0.0.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
            wake(&self.0.0, u32::MAX >> 1);
        }
    }
}
