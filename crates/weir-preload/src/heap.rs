//! The engine's heap: talc over raw mappings, never managed, never the program's allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::MutexGuard;
use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::{Binning, DefaultBinning};
use talc::source::Source;
use weir_os::mem::Mapping;
use weir_os::thread;

/// Taken from the kernel at a time.
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug)]
struct RawMappings;

// SAFETY: acquires memory by a system call only; does not touch the allocator it serves.
unsafe impl Source for RawMappings {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let len = (layout.size() + layout.align() + CHUNK_BYTES / 16).next_multiple_of(CHUNK_BYTES);
        let map = Mapping::anon(len).map_err(|_| ())?;
        map.name(c"weir-heap");
        let base = map.base() as *mut u8;
        core::mem::forget(map);
        // SAFETY: a fresh mapping, owned by the heap for ever.
        unsafe { talc.claim(base, len) }.map(|_| ()).ok_or(())
    }
}

/// A lock without an owner, so that it can be taken before a fork and released on both sides.
pub struct FutexLock(AtomicU32);

impl FutexLock {
    /// Free.
    pub const fn new() -> FutexLock {
        FutexLock(AtomicU32::new(0))
    }

    /// Waits for the lock.
    pub fn lock(&self) {
        lock_api::RawMutex::lock(self);
    }

    /// Releases the lock; the caller holds it.
    pub fn unlock(&self) {
        // SAFETY: held, says the caller; there is no guard that could disagree.
        unsafe { lock_api::RawMutex::unlock(self) };
    }
}

// SAFETY: a three-state futex mutex: 0 free, 1 held, 2 held with sleepers. Acquire and release order
// the protected accesses.
unsafe impl lock_api::RawMutex for FutexLock {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = FutexLock::new();
    type GuardMarker = lock_api::GuardSend;

    fn lock(&self) {
        if self.try_lock() {
            return;
        }
        while self.0.swap(2, Ordering::Acquire) != 0 {
            let _ = thread::futex_wait(&self.0, 2, None);
        }
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        if self.0.swap(0, Ordering::Release) == 2 {
            thread::futex_wake(&self.0, 1);
        }
    }
}

#[global_allocator]
static HEAP: Heap = Heap { talc: TalcLock::new(RawMappings), kept: UnsafeCell::new(None) };

/// The heap; signals are blocked while it is locked, since a handler may need it.
struct Heap {
    talc: TalcLock<FutexLock, RawMappings>,
    /// The lock's guard while a fork is under way.
    kept: UnsafeCell<Option<MutexGuard<'static, FutexLock, Talc<RawMappings, DefaultBinning>>>>,
}

// SAFETY: `kept` is touched by whoever holds the lock alone.
unsafe impl Sync for Heap {}

// SAFETY: passed on.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        thread::with_signals_blocked(|| unsafe { self.talc.alloc(layout) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        thread::with_signals_blocked(|| unsafe { self.talc.dealloc(at, layout) });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: passed on.
        thread::with_signals_blocked(|| unsafe { self.talc.realloc(at, layout, bytes) })
    }
}

/// Nobody allocates from now on, the caller included: a child must not find the heap locked, or half changed.
pub fn lock_for_fork() {
    let guard = HEAP.talc.lock();
    // SAFETY: the lock is held.
    unsafe { *HEAP.kept.get() = Some(guard) };
}

/// In both processes, by the thread that locked it.
pub fn unlock_after_fork() {
    // SAFETY: the lock is held.
    drop(unsafe { (*HEAP.kept.get()).take() });
}
