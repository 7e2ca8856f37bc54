//! What a process knows of the limit of which its budget is a share.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;
use weir_os::probe;

/// Between two readings. Whoever lowers a limit waits for what he sees.
pub const LOOK_NS: u64 = 1_000_000_000;

/// What is followed, if anything is, and what was seen of it.
#[derive(Debug, Default)]
pub struct Around {
    pub(in crate::engine) followed: OnceLock<Followed>,
    due_ns: AtomicU64,
    /// The limit at the last reading.
    seen: AtomicU64,
    /// Somebody has named a size since.
    left: AtomicBool,
}

/// Limits, and the share of them that is the budget.
#[derive(Debug)]
pub struct Followed {
    pub(in crate::engine) limits: probe::Around,
    pub(in crate::engine) share: String,
    /// Whether a change is told.
    pub(in crate::engine) tells: bool,
}

impl Around {
    /// From now on the budget is a number.
    pub(in crate::engine) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// The limit, if it is another one than at the last reading and that is long enough ago; and the share.
    pub(in crate::engine) fn news(&self, now_ns: u64) -> Option<(u64, &Followed)> {
        let followed = self.followed.get().filter(|_| !self.left.load(Ordering::Relaxed))?;
        if now_ns < self.due_ns.load(Ordering::Relaxed) {
            return None;
        }
        self.due_ns.store(now_ns + LOOK_NS, Ordering::Relaxed);
        let limit = followed.limits.bytes()?;
        (self.seen.swap(limit, Ordering::Relaxed) != limit).then_some((limit, followed))
    }
}
