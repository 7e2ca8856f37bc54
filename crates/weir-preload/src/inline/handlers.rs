//! Weir's handlers of SIGBUS, SIGSYS and, without userfaultfd, SIGSEGV: installed before any other code runs,
//! and looked after.

use super::ours::{self, ALL, ours};
use super::{deliver, fault, masks, sigsys};
use weir_os::gate::area::{self, KEPT};
use weir_os::signal;
use weir_os::sys::Errno;

const HANDLERS: [(i32, signal::Handler); KEPT] =
    [(libc::SIGBUS, fault::on_sigbus), (libc::SIGSYS, sigsys::on_sigsys), (libc::SIGSEGV, fault::on_sigsegv)];

/// The handlers of the signals that are kept.
fn kept() -> impl Iterator<Item = (i32, signal::Handler)> {
    HANDLERS.into_iter().filter(|(number, _)| signal::bit(*number) & ours() != 0)
}

/// Takes Weir's signals over: by the constructor, before any other code can block them.
pub fn take_signals() -> Result<(), Errno> {
    area::own();
    for (number, handler) in kept() {
        // SAFETY: the handlers are fit to interrupt anything: they allocate nothing of the program's,
        // take none of its locks and leave errno alone.
        let before = unsafe { signal::install(number, handler, libc::SA_ONSTACK, ALL)? };
        deliver::set_action(number, before);
    }
    ours::set_taken();
    // What the parent had blocked is blocked for the program to see, and not really.
    let blocked = signal::change_mask(libc::SIG_UNBLOCK, Some(ours()))?;
    masks::begin(blocked & ours());
    Ok(())
}

/// The background thread looks after the handlers: a program that sets them by a system call of its
/// own, past libc, would lose its memory at the next fault.
pub fn keep_signals() {
    for (number, handler) in kept() {
        // SAFETY: asks only.
        let now = unsafe { signal::swap(number, None) };
        if now.is_ok_and(|a| a.handler != handler as usize) {
            // SAFETY: as in `take_signals`.
            if let Ok(theirs) = unsafe { signal::install(number, handler, libc::SA_ONSTACK, ALL) } {
                deliver::set_action(number, theirs);
            }
        }
    }
}
