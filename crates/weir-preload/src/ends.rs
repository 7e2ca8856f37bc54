//! Ends that do not go through libc's `exit`: `_exit`, and signals that end a program without a handler of
//! its own (SIGTERM, SIGINT, SIGHUP).
//!
//! Once there is an engine, the kernel has a handler of Weir's for these signals in the place of the default
//! action. It makes the report, puts the default back and sends the signal again: the parent sees the death
//! that it would have seen. To the program the signal looks as if it had its default action. A handler of the
//! program's stays, and so does a signal that it ignores. Once the program has filtered its system calls, the
//! kernel has the default actions again: the filter might not allow what Weir's handler does.

use crate::inline::{actions, stacks};
use crate::{exit, state};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use weir::engine::summary::End;
use weir_os::signal::{self, Action, Mask, bit};
use weir_os::sys::{exit_group, getpid};
use weir_os::thread;

/// The signals that are watched.
const WATCHED: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

static WATCHING: AtomicBool = AtomicBool::new(false);
/// Flags and masks that the program gave with default actions, for it to see again.
static FLAGS: [AtomicI32; WATCHED.len()] = [const { AtomicI32::new(0) }; WATCHED.len()];
static MASKS: [AtomicU64; WATCHED.len()] = [const { AtomicU64::new(0) }; WATCHED.len()];

/// Whether this is one of the signals that are watched, or will be.
pub fn concerns(number: c_int) -> bool {
    WATCHED.contains(&number)
}

/// Begins to watch: when the engine starts.
pub fn watch() {
    // The kernel spares the first process of a PID namespace the signals that it has no handler for.
    if getpid() == 1 || state::is_filtered() {
        return;
    }
    thread::with_signals_blocked(|| {
        let _changing = actions::changing().lock();
        WATCHING.store(true, Ordering::Release);
        for number in WATCHED {
            // SAFETY: asks; then sets a handler that may interrupt anything.
            unsafe {
                let before = signal::swap(number, None).unwrap_or_default();
                if before.handler == libc::SIG_DFL {
                    remember(number, before.flags as c_int, before.mask);
                    let _ = signal::install(number, on_end, libc::SA_ONSTACK, Mask::MAX);
                }
            }
        }
    });
}

/// Before the program filters its system calls: the kernel's default actions are the program's again. Whether
/// anything was watched.
pub fn unwatch() -> bool {
    if !WATCHING.load(Ordering::Acquire) || !exit::is_this_process() {
        return false;
    }
    stacks::be_noticed_here();
    thread::with_signals_blocked(|| {
        let _changing = actions::changing().lock();
        WATCHING.store(false, Ordering::Release);
        for (row, number) in WATCHED.into_iter().enumerate() {
            let flags = FLAGS[row].load(Ordering::Relaxed) as u32 as u64;
            let given = Action { flags, mask: MASKS[row].load(Ordering::Relaxed), ..Action::default() };
            // SAFETY: asks; then sets the default action, with what the program gave with it.
            unsafe {
                let now = signal::swap(number, None).unwrap_or_default();
                if now.handler == on_end as *const () as usize {
                    let _ = signal::swap(number, Some(&given));
                }
            }
        }
    });
    true
}

fn remember(number: c_int, flags: c_int, mask: Mask) {
    if let Some(row) = WATCHED.iter().position(|n| *n == number) {
        FLAGS[row].store(flags, Ordering::Relaxed);
        MASKS[row].store(mask, Ordering::Relaxed);
    }
}

/// `sigaction` by `next`, with Weir's handler for the default action of a watched signal. The lock of the
/// actions is held.
///
/// # Safety
/// - as `sigaction(2)`; the structures lie where they stay.
pub unsafe fn change(
    number: c_int,
    act: *const libc::sigaction,
    old: *mut libc::sigaction,
    next: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    let row = WATCHED.iter().position(|n| *n == number);
    let Some(row) = row.filter(|_| WATCHING.load(Ordering::Acquire)) else { return next(act, old) };
    let given = (FLAGS[row].load(Ordering::Relaxed), MASKS[row].load(Ordering::Relaxed));
    // SAFETY: valid when not null, says the caller; plain data. The kernel's mask is libc's first word.
    unsafe {
        let by_default = !act.is_null() && (*act).sa_sigaction == libc::SIG_DFL && exit::is_this_process();
        let r = if by_default {
            let mut ours: libc::sigaction = core::mem::zeroed();
            ours.sa_sigaction = on_end as *const () as usize;
            ours.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
            (&raw mut ours.sa_mask).cast::<Mask>().write(Mask::MAX);
            // It may come at once.
            remember(number, (*act).sa_flags, (&raw const (*act).sa_mask).cast::<Mask>().read());
            next(&raw const ours, old)
        } else {
            next(act, old)
        };
        if r == 0 && !old.is_null() && (*old).sa_sigaction == on_end as *const () as usize {
            (*old).sa_sigaction = libc::SIG_DFL;
            (*old).sa_flags = given.0;
            (&raw mut (*old).sa_mask).cast::<Mask>().write(given.1);
        }
        r
    }
}

/// The kernel calls this where it would have ended the program. Every signal is blocked.
extern "C" fn on_end(number: c_int, _info: *mut libc::siginfo_t, _context: *mut libc::ucontext_t) {
    exit::report(End::Signal(number));
    // SAFETY: the default action, as the program asked for it.
    let _ = unsafe { signal::swap(number, Some(&Action::default())) };
    signal::raise(number);
    let _ = signal::change_mask(libc::SIG_UNBLOCK, Some(bit(number)));
}

/// # Safety
/// - as `_exit(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    exit::at_exit_group();
    exit_group(status)
}

/// # Safety
/// - as `_Exit(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    exit::at_exit_group();
    exit_group(status)
}
