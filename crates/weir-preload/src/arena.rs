//! Small and medium allocations: mimalloc, confined to arenas in the managed space.
//!
//! mimalloc never asks the kernel for memory by itself here; when it runs dry it gets another
//! arena, each twice as large as the last. What it purges comes back through our `madvise`.

use crate::heap::FutexLock;
use crate::state::{self, Weir};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};
use libmimalloc_sys as mi;
use weir::page::region::Kind;
use weir_os::mem::PROT_RW;

const OPTION_ALLOW_LARGE_OS_PAGES: i32 = 6;
const OPTION_PURGE_DELAY: i32 = 15;
const OPTION_DISALLOW_OS_ALLOC: i32 = 17;
const OPTION_MAX_ERRORS: i32 = 19;
const OPTION_MAX_WARNINGS: i32 = 20;
const OPTION_ALLOW_THP: i32 = 37;

unsafe extern "C" {
    // The binding crate lists it for one of its two library versions only.
    fn mi_manage_os_memory_ex(
        start: *const c_void,
        size: usize,
        is_committed: bool,
        is_large: bool,
        is_zero: bool,
        numa_node: i32,
        exclusive: bool,
        arena_id: *mut i32,
    ) -> bool;
}

/// mimalloc's arenas consist of blocks of this size and alignment.
const ARENA_ALIGN: usize = 32 << 20;
const ARENA_FIRST_BYTES: usize = 256 << 20;
const ARENA_MAX_BYTES: usize = 8 << 30;

/// Held while an arena is added, and across a fork, so that a child never inherits it held.
static GROW: FutexLock = FutexLock::new();
static NEXT_BYTES: AtomicUsize = AtomicUsize::new(ARENA_FIRST_BYTES);
static ARENAS: AtomicUsize = AtomicUsize::new(0);

/// Sets mimalloc's options; before its first allocation.
pub fn configure() {
    // SAFETY: plain settings.
    unsafe {
        mi::mi_option_set(OPTION_ALLOW_LARGE_OS_PAGES, 0);
        mi::mi_option_set(OPTION_PURGE_DELAY, 10);
        mi::mi_option_set(OPTION_DISALLOW_OS_ALLOC, 1);
        mi::mi_option_set(OPTION_MAX_ERRORS, 0);
        mi::mi_option_set(OPTION_MAX_WARNINGS, 0);
        mi::mi_option_set(OPTION_ALLOW_THP, 1);
    }
}

/// Runs an allocation, giving mimalloc another arena when it has run dry.
pub fn with_room(engine: &Weir, f: impl Fn() -> *mut c_void) -> *mut c_void {
    loop {
        let seen = ARENAS.load(Ordering::Acquire);
        if seen > 0 {
            let p = f();
            if !p.is_null() {
                return p;
            }
        }
        if !add_arena(engine, seen) {
            return core::ptr::null_mut();
        }
    }
}

/// Adds an arena unless somebody else did since `seen`. False when there is no room.
fn add_arena(engine: &Weir, seen: usize) -> bool {
    GROW.lock();
    let added = add_arena_locked(engine, seen);
    GROW.unlock();
    added
}

/// Before a fork.
pub fn lock_for_fork() {
    GROW.lock();
}

/// After a fork, on both sides.
pub fn unlock_after_fork() {
    GROW.unlock();
}

fn add_arena_locked(engine: &Weir, seen: usize) -> bool {
    if ARENAS.load(Ordering::Acquire) != seen {
        return true;
    }
    let mut len = NEXT_BYTES.load(Ordering::Relaxed);
    while len >= ARENA_ALIGN {
        if let Ok(addr) = engine.map(len, ARENA_ALIGN, PROT_RW, Kind::Arena) {
            let mut id = 0;
            // SAFETY: fresh zeroed memory that nobody else uses, aligned as mimalloc wants it.
            let ok = unsafe {
                mi_manage_os_memory_ex(addr as *const c_void, len, true, false, true, -1, false, &mut id)
            };
            if ok {
                NEXT_BYTES.store((len * 2).min(ARENA_MAX_BYTES), Ordering::Relaxed);
                ARENAS.fetch_add(1, Ordering::Release);
            }
            return ok;
        }
        if state::engine().is_some_and(|e| e.core.full()) {
            return false;
        }
        len /= 2;
    }
    false
}
