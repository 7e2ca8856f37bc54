//! Calls that wait with a signal mask of their own, or for signals.

use super::masks::{Believing, read_set, without_ours};
use super::ours::{ours, taken};
use super::pending;
use crate::libc_next::{Next, set_errno};
use core::ffi::{c_int, c_void};
use weir_os::gate::area::Area;
use weir_os::signal::{self, Mask};
use weir_os::sys::{Errno, syscall};

/// Calls libc's function with the mask argument replaced by one without Weir's signals, while the
/// thread believes that they are blocked.
macro_rules! with_mask {
    ($next:literal, $type:ty, $mask:ident, |$f:ident, $m:ident| $call:expr) => {{
        static NEXT: Next = Next::new($next);
        let Some(a) = NEXT.get() else {
            set_errno(libc::ENOSYS);
            return -1;
        };
        // SAFETY: libc's function of that name and type; the mask is the caller's, or null.
        unsafe {
            let $f = core::mem::transmute::<usize, $type>(a);
            let copy = if taken() { without_ours($mask) } else { None };
            let believing = Believing::of(copy.as_ref().map(|(_, mask)| *mask));
            if believing.interrupted {
                drop(believing);
                set_errno(libc::EINTR);
                return -1;
            }
            let $m = copy.as_ref().map_or($mask, |(set, _)| set as *const libc::sigset_t);
            $call
        }
    }};
}

/// # Safety
/// - as `sigsuspend(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsuspend(mask: *const libc::sigset_t) -> c_int {
    type F = unsafe extern "C" fn(*const libc::sigset_t) -> c_int;
    with_mask!(c"sigsuspend", F, mask, |f, m| f(m))
}

/// # Safety
/// - as `ppoll(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut c_void,
    n: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    type F = unsafe extern "C" fn(
        *mut c_void,
        libc::nfds_t,
        *const libc::timespec,
        *const libc::sigset_t,
    ) -> c_int;
    with_mask!(c"ppoll", F, mask, |f, m| f(fds, n, timeout, m))
}

/// # Safety
/// - as `ppoll(2)`; the last argument is the size of the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut c_void,
    n: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
    bytes: usize,
) -> c_int {
    type F = unsafe extern "C" fn(
        *mut c_void,
        libc::nfds_t,
        *const libc::timespec,
        *const libc::sigset_t,
        usize,
    ) -> c_int;
    with_mask!(c"__ppoll_chk", F, mask, |f, m| f(fds, n, timeout, m, bytes))
}

/// # Safety
/// - as `pselect(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    n: c_int,
    r: *mut c_void,
    w: *mut c_void,
    e: *mut c_void,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    type F = unsafe extern "C" fn(
        c_int,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *const libc::timespec,
        *const libc::sigset_t,
    ) -> c_int;
    with_mask!(c"pselect", F, mask, |f, m| f(n, r, w, e, timeout, m))
}

/// # Safety
/// - as `epoll_pwait(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut c_void,
    n: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    type F = unsafe extern "C" fn(c_int, *mut c_void, c_int, c_int, *const libc::sigset_t) -> c_int;
    with_mask!(c"epoll_pwait", F, mask, |f, m| f(fd, events, n, timeout, m))
}

/// # Safety
/// - as `epoll_pwait2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    fd: c_int,
    events: *mut c_void,
    n: c_int,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    type F = unsafe extern "C" fn(
        c_int,
        *mut c_void,
        c_int,
        *const libc::timespec,
        *const libc::sigset_t,
    ) -> c_int;
    with_mask!(c"epoll_pwait2", F, mask, |f, m| f(fd, events, n, timeout, m))
}

/// # Safety
/// - as `pthread_attr_setsigmask_np(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setsigmask_np(attr: *mut c_void, mask: *const libc::sigset_t) -> c_int {
    type F = unsafe extern "C" fn(*mut c_void, *const libc::sigset_t) -> c_int;
    static NEXT: Next = Next::new(c"pthread_attr_setsigmask_np");
    let Some(a) = NEXT.get() else { return libc::ENOSYS };
    // SAFETY: libc's function of that name and type; the mask is the caller's, or null.
    unsafe {
        let copy = if taken() { without_ours(mask) } else { None };
        let mask = copy.as_ref().map_or(mask, |(set, _)| set as *const libc::sigset_t);
        core::mem::transmute::<usize, F>(a)(attr, mask)
    }
}

/// Waits for a signal of a set that holds some of Weir's, which are really blocked meanwhile: the
/// thread runs no code of its own then.
fn wait_for(set: Mask, info: &mut libc::siginfo_t, timeout: Option<&libc::timespec>) -> Result<c_int, Errno> {
    let before = signal::change_mask(libc::SIG_BLOCK, Some(set & ours()))?;
    pending::begin_waiting();
    let found = match pending::take(set & ours()) {
        Some(number) => {
            // SAFETY: stored when the signal came.
            *info = unsafe { Area::current().info(number).read() };
            Ok(number)
        }
        None => {
            let at = core::ptr::from_mut(info) as usize;
            let limit = timeout.map_or(0, |t| core::ptr::from_ref(t) as usize);
            // SAFETY: live words on this stack.
            unsafe {
                syscall(libc::SYS_rt_sigtimedwait, [core::ptr::from_ref(&set) as usize, at, limit, 8, 0, 0])
            }
            .map(|n| n as c_int)
        }
    };
    pending::end_waiting();
    let _ = signal::change_mask(libc::SIG_SETMASK, Some(before));
    found
}

type WaitCall =
    unsafe extern "C" fn(*const libc::sigset_t, *mut libc::siginfo_t, *const libc::timespec) -> c_int;

/// # Safety
/// - as `sigtimedwait(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    static NEXT: Next = Next::new(c"sigtimedwait");
    // SAFETY: the caller's set; the rest as libc's function of that name and type.
    unsafe {
        if !taken() || read_set(set) & ours() == 0 {
            return NEXT.get().map_or(-1, |a| core::mem::transmute::<usize, WaitCall>(a)(set, info, timeout));
        }
        let mut found: libc::siginfo_t = core::mem::zeroed();
        let limit = if timeout.is_null() { None } else { Some(timeout.read()) };
        match wait_for(read_set(set), &mut found, limit.as_ref()) {
            Ok(number) => {
                if found.si_code == libc::SI_TKILL {
                    found.si_code = libc::SI_USER; // as libc's own does
                }
                if !info.is_null() {
                    info.write(found);
                }
                number
            }
            Err(e) => {
                set_errno(e.0);
                -1
            }
        }
    }
}

/// # Safety
/// - as `sigwaitinfo(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwaitinfo(set: *const libc::sigset_t, info: *mut libc::siginfo_t) -> c_int {
    // SAFETY: passed on.
    unsafe { sigtimedwait(set, info, core::ptr::null()) }
}

/// # Safety
/// - as `sigwait(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const libc::sigset_t, number: *mut c_int) -> c_int {
    loop {
        // SAFETY: passed on.
        match unsafe { sigtimedwait(set, core::ptr::null_mut(), core::ptr::null()) } {
            -1 if crate::libc_next::errno() == libc::EINTR => {}
            -1 => return crate::libc_next::errno(),
            n => {
                // SAFETY: the caller's cell.
                unsafe { *number = n };
                return 0;
            }
        }
    }
}
