//! Programs close descriptors that they did not open (daemons, shells, `closefrom(3)`). Closing the
//! engine's would turn evicted pages into zeros, or another file into the swap file: for those descriptors the calls
//! pretend.

use crate::libc_next::{__close, Next, set_errno};
use crate::state;
use core::ffi::{c_int, c_uint};
use weir_os::sys::{Errno, syscall};

/// The userfaultfd, the swap file and the meter of memory outside, ascending; -1 where there is none.
fn ours() -> [i32; 3] {
    let Some(engine) = state::engine() else { return [-1; 3] };
    let core = &engine.core;
    let swap = core.swapping.as_ref().map_or(-1, |s| s.tier.device().file().fd());
    let mut fds = [core.pager.fd(), swap, engine.meter.fd().unwrap_or(-1)];
    fds.sort_unstable();
    fds
}

fn is_ours(fd: c_int) -> bool {
    fd >= 0 && ours().contains(&fd)
}

/// # Safety
/// - as `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: the caller's own descriptor; libc's function is a cancellation point, as it should be.
    unsafe { __close(fd) }
}

fn raw_close_range(first: c_uint, last: c_uint, flags: c_int) -> Result<usize, Errno> {
    if first > last {
        return Err(Errno::EINVAL);
    }
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_close_range, [first as usize, last as usize, flags as usize, 0, 0, 0]) }
}

/// # Safety
/// - as `close_range(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let (mut result, mut from) = (Ok(0), first);
    for fd in ours().into_iter().filter_map(|fd| c_uint::try_from(fd).ok()) {
        if (from..=last).contains(&fd) {
            if from < fd {
                result = result.and(raw_close_range(from, fd - 1, flags));
            }
            from = fd + 1;
        }
    }
    if from <= last || from == first {
        result = result.and(raw_close_range(from, last, flags));
    }
    match result {
        Ok(_) => 0,
        Err(e) => {
            set_errno(e.0);
            -1
        }
    }
}

/// # Safety
/// - as `closefrom(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: passed on.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// # Safety
/// - as `dup2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    static NEXT: Next = Next::new(c"dup2");
    if is_ours(new) {
        set_errno(libc::EBUSY);
        return -1;
    }
    match NEXT.get() {
        // SAFETY: libc's function of that name and type.
        Some(a) => unsafe {
            core::mem::transmute::<usize, extern "C" fn(c_int, c_int) -> c_int>(a)(old, new)
        },
        None => -1,
    }
}

/// # Safety
/// - as `dup3(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    static NEXT: Next = Next::new(c"dup3");
    if is_ours(new) {
        set_errno(libc::EBUSY);
        return -1;
    }
    match NEXT.get() {
        // SAFETY: libc's function of that name and type.
        Some(a) => unsafe {
            core::mem::transmute::<usize, extern "C" fn(c_int, c_int, c_int) -> c_int>(a)(old, new, flags)
        },
        None => -1,
    }
}
