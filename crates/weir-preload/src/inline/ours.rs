//! The signals that Weir keeps, and whether it has taken them.

use core::sync::atomic::{AtomicBool, Ordering};
use weir_os::signal::{Mask, bit};

/// The signals that Weir keeps.
pub const OURS: Mask = bit(libc::SIGBUS) | bit(libc::SIGSYS);
/// Every signal, for handlers that nothing may interrupt.
pub const ALL: Mask = !0;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether SIGBUS and SIGSYS are Weir's in this process.
#[inline]
pub fn taken() -> bool {
    TAKEN.load(Ordering::Acquire)
}

/// The handlers are installed.
pub fn set_taken() {
    TAKEN.store(true, Ordering::Release);
}
