//! `brk` and `sbrk`, from which allocators that programs bring along take memory (gperftools' tcmalloc).
//! libc's own allocator calls them by internal names, so every call that comes here is the program's.
//!
//! Before the engine runs the break is the kernel's. From the first call afterwards `sbrk` serves a break of
//! its own: a reservation in the managed space, opened from its start on. What it returns is contiguous from
//! then on; between what the program got before and after there is a gap, as there may always be where libc's
//! allocator moves the same break. `sbrk(0)` gives the break that the next call continues. `brk` goes by its
//! address: within the reservation it moves the managed break, elsewhere the kernel's.

use crate::demand;
use crate::heap::FutexLock;
use crate::libc_next::{__sbrk, Next, set_errno};
use crate::state::{self, Weir};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use weir::Kind;
use weir::error::Refused;
use weir_os::mem::{PAGE_BYTES, PROT_RW};

const FAILED: *mut c_void = usize::MAX as *mut c_void;
/// Share of the managed space that is reserved: it costs nothing until it is opened.
const SPACE_SHARE: usize = 8;

/// Held while the break moves, and across a fork, so that a child never inherits it held.
static LOCK: FutexLock = FutexLock::new();
/// The reservation; 0: there is none yet.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// The managed break.
static BREAK: AtomicUsize = AtomicUsize::new(0);

/// Before a fork.
pub fn lock_for_fork() {
    LOCK.lock();
}

/// After a fork, on both sides.
pub fn unlock_after_fork() {
    LOCK.unlock();
}

/// # Safety
/// - as `sbrk(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    let Some(engine) = engine(increment.max(0) as usize) else {
        // SAFETY: libc's function, which keeps its allocator's idea of the break.
        return unsafe { __sbrk(increment) };
    };
    LOCK.lock();
    // What shrinks the kernel's break before anything was taken here is libc's.
    let ours = increment >= 0 && reserve(engine) || START.load(Ordering::Relaxed) != 0;
    let old = BREAK.load(Ordering::Relaxed);
    let moved = ours && old.checked_add_signed(increment).is_some_and(|new| move_to(engine, new));
    LOCK.unlock();
    match (ours, moved) {
        // SAFETY: as above.
        (false, _) => unsafe { __sbrk(increment) },
        (true, true) => old as *mut c_void,
        (true, false) => {
            set_errno(libc::ENOMEM);
            FAILED
        }
    }
}

/// # Safety
/// - as `brk(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(addr: *mut c_void) -> c_int {
    static NEXT: Next = Next::new(c"brk");
    let (new, start) = (addr as usize, START.load(Ordering::Acquire));
    if start != 0
        && (start..=END.load(Ordering::Relaxed)).contains(&new)
        && let Some(engine) = state::engine()
    {
        LOCK.lock();
        let moved = move_to(engine, new);
        LOCK.unlock();
        if !moved {
            set_errno(libc::ENOMEM);
        }
        return if moved { 0 } else { -1 };
    }
    match NEXT.get() {
        // SAFETY: libc's function of that name and type.
        Some(f) => unsafe { core::mem::transmute::<usize, extern "C" fn(*mut c_void) -> c_int>(f)(addr) },
        None => -1,
    }
}

/// The engine if it runs, or comes to run because of so many bytes.
fn engine(bytes: usize) -> Option<&'static Weir> {
    if bytes > 0 { demand::note_request(bytes) } else { state::running() }
}

/// Makes the reservation if there is none: as large as may be had. Under the lock.
fn reserve(engine: &Weir) -> bool {
    if START.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let mut len = engine.space().1 / SPACE_SHARE;
    while len > PAGE_BYTES {
        if let Ok(start) = engine.map(len, 1, libc::PROT_NONE, Kind::Map) {
            BREAK.store(start, Ordering::Relaxed);
            END.store(start + len, Ordering::Relaxed);
            START.store(start, Ordering::Release);
            return true;
        }
        len = (len / 2).next_multiple_of(PAGE_BYTES);
    }
    false
}

/// Moves the managed break; pages beyond it read as zeros when it comes back. Under the lock.
fn move_to(engine: &Weir, new: usize) -> bool {
    let (start, end) = (START.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    let old_top = BREAK.load(Ordering::Relaxed).next_multiple_of(PAGE_BYTES);
    if !(start..=end).contains(&new) {
        return false;
    }
    let top = new.next_multiple_of(PAGE_BYTES);
    let moved: Result<(), Refused> = match top {
        _ if top > old_top => engine.protect(old_top, top - old_top, PROT_RW),
        _ if top < old_top => engine.map_fixed(top, old_top - top, libc::PROT_NONE),
        _ => Ok(()),
    };
    if moved.is_ok() {
        BREAK.store(new, Ordering::Relaxed);
    }
    moved.is_ok()
}
