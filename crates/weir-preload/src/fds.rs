//! Programs close descriptors that they did not open (daemons, shells, `closefrom(3)`). Closing the engine's
//! would turn pages that are out into zeros, or another file into the swap file or the terminal: for those
//! descriptors the calls pretend.

use crate::libc_next::{__close, Next, set_errno};
use core::ffi::{c_int, c_uint};
use weir_os::fds;
use weir_os::sys::{Errno, syscall};

/// # Safety
/// - as `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if fds::contains(fd) {
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
    for fd in fds::all().into_iter().filter_map(|fd| c_uint::try_from(fd).ok()) {
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
    if fds::contains(new) {
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
    if fds::contains(new) {
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
