//! Signal masks as the program sees them: the signals that Weir keeps are never really blocked.

use super::ours::{ours, taken};
use super::pending;
use crate::libc_next::{Next, set_errno};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use weir_os::gate::area::Area;
use weir_os::signal::{self, Mask};

/// Two signals that libc keeps for itself (thread cancellation, `setuid` in all threads) and lets
/// nobody block.
const LIBCS: Mask = signal::bit(32) | signal::bit(33);

/// At the start: what the program believes to be blocked.
pub fn begin(blocked: Mask) {
    Area::current().blocked.store(blocked, Ordering::Relaxed);
}

/// Which of Weir's signals the calling thread believes to have blocked.
pub fn blocked_now() -> Mask {
    let here = 0u8;
    blocked_at(&raw const here as usize)
}

/// The same for where it was interrupted.
pub fn blocked_at(sp: usize) -> Mask {
    let area = Area::current();
    let by_handler = match in_handler(sp) {
        true => area.handler_blocked.load(Ordering::Relaxed),
        false => 0,
    };
    (area.blocked.load(Ordering::Relaxed) | by_handler) & ours()
}

/// Whether the program's handler that `deliver::run_handler` started last is still running, seen from a stack
/// pointer: it may have been left by a long jump.
pub fn in_handler(sp: usize) -> bool {
    const REACH: usize = 8 << 20;
    let at = Area::current().handler_stack.load(Ordering::Relaxed) as usize;
    at != 0 && sp <= at && at - sp < REACH
}

/// Sets which of Weir's signals the thread believes to have blocked; what waits for one that it
/// unblocks comes now.
fn believe(blocked: Mask) -> bool {
    let area = Area::current();
    area.blocked.store(blocked & ours(), Ordering::Relaxed);
    let here = 0u8;
    if in_handler(&raw const here as usize) {
        area.handler_blocked.fetch_and(blocked, Ordering::Relaxed);
    }
    settle_pending()
}

/// Sends what waited for a signal that is not blocked any more. Whether there was something.
pub fn settle_pending() -> bool {
    let area = Area::current();
    let mut some = false;
    // Each once: what comes back to be kept waits for the next change.
    for number in [libc::SIGBUS, libc::SIGSYS, libc::SIGSEGV] {
        if pending::take(signal::bit(number) & !blocked_now()).is_some() {
            area.again.fetch_or(signal::bit(number), Ordering::Relaxed);
            signal::raise(number);
            some = true;
        }
    }
    some
}

/// Changes a mask by the rules of `sigprocmask`.
pub fn combine(how: c_int, old: Mask, set: Mask) -> Option<Mask> {
    match how {
        libc::SIG_BLOCK => Some(old | set),
        libc::SIG_UNBLOCK => Some(old & !set),
        libc::SIG_SETMASK => Some(set),
        _ => None,
    }
}

/// As [`combine`] for what the thread believes; for masks that take effect when a handler returns.
pub fn believe_change(how: c_int, set: Mask) {
    if let Some(b) = combine(how, blocked_now(), set & ours()) {
        believe(b);
    }
}

/// The first eight bytes of libc's type are the kernel's mask.
///
/// # Safety
/// - a readable signal set.
pub unsafe fn read_set(set: *const libc::sigset_t) -> Mask {
    // SAFETY: passed on.
    unsafe { set.cast::<Mask>().read_unaligned() }
}

/// A copy of a signal set without Weir's signals.
///
/// # Safety
/// - null or a readable signal set.
pub unsafe fn without_ours(set: *const libc::sigset_t) -> Option<(libc::sigset_t, Mask)> {
    if set.is_null() {
        return None;
    }
    // SAFETY: readable by contract; plain data.
    unsafe {
        let mask = read_set(set);
        let mut copy: libc::sigset_t = core::mem::zeroed();
        (&raw mut copy).cast::<Mask>().write(mask & !ours());
        Some((copy, mask))
    }
}

/// `sigprocmask` for the calling thread. Returns an error number or 0.
///
/// # Safety
/// - null or valid sets.
unsafe fn change(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: valid when not null. Read and written here, by the program's own thread: the sets may
    // be managed memory.
    let wanted = if set.is_null() { None } else { Some(unsafe { read_set(set) }) };
    let believed = blocked_now();
    let real = wanted.map(|m| m & !ours() & !LIBCS);
    match signal::change_mask(if wanted.is_some() { how } else { libc::SIG_BLOCK }, real) {
        Ok(before) => {
            if !old.is_null() {
                // SAFETY: as above.
                unsafe { old.cast::<Mask>().write_unaligned(before & !ours() | believed) };
            }
            if let Some(m) = wanted {
                believe_change(how, m);
            }
            0
        }
        Err(e) => e.0,
    }
}

type MaskCall = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// # Safety
/// - as `pthread_sigmask(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_sigmask");
    if !taken() {
        // SAFETY: libc's function of that name and type.
        return NEXT
            .get()
            .map_or(libc::ENOSYS, |a| unsafe { core::mem::transmute::<usize, MaskCall>(a)(how, set, old) });
    }
    // SAFETY: passed on.
    unsafe { change(how, set, old) }
}

/// # Safety
/// - as `sigprocmask(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: passed on.
    match unsafe { pthread_sigmask(how, set, old) } {
        0 => 0,
        e => {
            set_errno(e);
            -1
        }
    }
}

/// # Safety
/// - as `sigpending(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigpending(set: *mut libc::sigset_t) -> c_int {
    static NEXT: Next = Next::new(c"sigpending");
    // SAFETY: libc's function of that name and type; a set of at least eight bytes.
    unsafe {
        let r = NEXT.get().map_or(-1, |a| {
            core::mem::transmute::<usize, unsafe extern "C" fn(*mut libc::sigset_t) -> c_int>(a)(set)
        });
        if r == 0 && taken() {
            let at = set.cast::<Mask>();
            at.write_unaligned(at.read_unaligned() | pending::mask());
        }
        r
    }
}

/// While it lives, the thread believes to have blocked what a waiting call was given.
pub struct Believing {
    before: Option<Mask>,
    /// A signal that the new mask lets through has come already: the wait is over.
    pub interrupted: bool,
}

impl Believing {
    /// For the mask of a waiting call; `None` when it was given none.
    pub fn of(mask: Option<Mask>) -> Believing {
        let Some(mask) = mask else { return Believing { before: None, interrupted: false } };
        let before = Area::current().blocked.load(Ordering::Relaxed);
        Believing { before: Some(before), interrupted: believe(mask) }
    }
}

impl Drop for Believing {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            believe(before);
        }
    }
}
