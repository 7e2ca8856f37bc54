//! What looks at the memory outside leave from one to the next.

use crate::sync::Ordering;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::OnceLock;
use weir_os::ram::Statm;

/// How memory outside is measured.
#[derive(Debug, Default)]
pub struct Looks {
    pub(in crate::engine) statm: OnceLock<Statm>,
    pub(in crate::engine) quiet: AtomicBool,
    pub(in crate::engine) due_ns: AtomicU64,
    /// Processor time of the process at the last look.
    pub(in crate::engine) cpu_ns: AtomicU64,
    /// The program ran before the last look.
    pub(in crate::engine) runs: AtomicBool,
    /// Bytes that new threads will take, since one of their makers looked last.
    pub(in crate::engine) asked: AtomicU64,
    /// Until then memory outside is expected to grow.
    pub(in crate::engine) expected_ns: AtomicU64,
}

impl Looks {
    /// In the child of a fork: measures the child.
    pub(in crate::engine) fn forked(&self) {
        if let Some(statm) = self.statm.get() {
            // Without it the limit stays as it was.
            let _ = statm.reopen_in_child();
        }
        self.due_ns.store(0, Ordering::Relaxed);
        self.cpu_ns.store(0, Ordering::Relaxed);
    }
}
