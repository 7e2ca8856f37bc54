//! Inline mode: SIGBUS and SIGSYS are Weir's. A SIGBUS on managed memory is a page fault, resolved
//! where it happens; everything else goes to the program's own handlers.

mod fault;

use weir_os::signal::{self, Mask};

/// Every signal, for handlers that nothing may interrupt.
const ALL: Mask = !0;

/// Takes SIGBUS over; from here on faults can be announced by it.
pub fn take_signals() -> Result<(), weir_os::sys::Errno> {
    // SAFETY: the handler is fit to interrupt anything: it allocates nothing of the program's, takes
    // none of its locks and keeps errno.
    unsafe { signal::install(libc::SIGBUS, fault::on_sigbus, libc::SA_ONSTACK, ALL)? };
    Ok(())
}
