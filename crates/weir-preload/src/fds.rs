//! Programs close descriptors that they did not open (daemons, shells, `closefrom(3)`). Closing the
//! engine's would turn evicted pages into zeros: for that one descriptor the calls pretend.

use crate::libc_next::{__close, Next, set_errno};
use crate::state;
use core::ffi::{c_int, c_uint};
use weir_os::sys::{Errno, syscall};

fn ours() -> i32 {
    state::engine().map_or(-1, |e| e.core.pager.fd())
}

/// # Safety
/// - as `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if fd >= 0 && fd == ours() {
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
    let fd = ours();
    let result = if fd >= 0 && (first..=last).contains(&(fd as c_uint)) {
        let fd = fd as c_uint;
        let below = if first < fd { raw_close_range(first, fd - 1, flags) } else { Ok(0) };
        let above = if fd < last { raw_close_range(fd + 1, last, flags) } else { Ok(0) };
        below.and(above)
    } else {
        raw_close_range(first, last, flags)
    };
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
    if new >= 0 && new == ours() {
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
    if new >= 0 && new == ours() {
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
