//! Processors that threads may run on: libc makes that call with signals blocked in new threads, so it is
//! never trapped, and is given a copy of the set that is not managed memory.

use super::ours::taken;
use crate::libc_next::{Next, set_errno};
use crate::state;
use core::ffi::{c_int, c_long, c_void};

type Set = *const c_void;

/// Calls `f` with the set while it stays in memory.
fn with_set<R>(bytes: usize, set: Set, f: impl FnOnce(Set) -> R) -> R {
    let engine = state::engine().filter(|e| taken() && e.touches(set as usize, bytes));
    let pins = engine.map_or(0, |e| e.pin_range(set as usize, bytes));
    let r = f(set);
    engine.into_iter().for_each(|e| e.unpin_range(pins));
    r
}

/// # Safety
/// - as `sched_setaffinity(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_setaffinity(pid: libc::pid_t, bytes: usize, set: Set) -> c_int {
    type F = unsafe extern "C" fn(libc::pid_t, usize, Set) -> c_int;
    static NEXT: Next = Next::new(c"sched_setaffinity");
    let Some(a) = NEXT.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: libc's function of that name and type.
    with_set(bytes, set, |set| unsafe { core::mem::transmute::<usize, F>(a)(pid, bytes, set) })
}

/// # Safety
/// - as `pthread_setaffinity_np(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setaffinity_np(thread: libc::pthread_t, bytes: usize, set: Set) -> c_int {
    type F = unsafe extern "C" fn(libc::pthread_t, usize, Set) -> c_int;
    static NEXT: Next = Next::new(c"pthread_setaffinity_np");
    let Some(a) = NEXT.get() else { return libc::ENOSYS };
    // SAFETY: libc's function of that name and type.
    with_set(bytes, set, |set| unsafe { core::mem::transmute::<usize, F>(a)(thread, bytes, set) })
}

/// The system call.
///
/// # Safety
/// - as `sched_setaffinity(2)`.
pub unsafe fn set_raw(pid: c_int, bytes: usize, set: Set) -> c_long {
    // SAFETY: passed on; what libc's function adds is nothing.
    unsafe { sched_setaffinity(pid, bytes, set) }.into()
}
