//! The signals that Weir keeps, and whether it has taken them.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_os::signal::{Mask, bit};

/// The signals that Weir keeps.
static OURS: AtomicU64 = AtomicU64::new(bit(libc::SIGBUS) | bit(libc::SIGSYS));
/// Every signal, for handlers that nothing may interrupt.
pub const ALL: Mask = !0;

/// The signals that Weir keeps.
#[inline]
pub fn ours() -> Mask {
    OURS.load(Ordering::Relaxed)
}

/// Faults will be SIGSEGV: that one is kept as well, from before anybody asks.
pub fn keep_segv() {
    OURS.fetch_or(bit(libc::SIGSEGV), Ordering::Relaxed);
}

/// Whether SIGSEGV is kept.
pub fn keeps_segv() -> bool {
    ours() & bit(libc::SIGSEGV) != 0
}

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
