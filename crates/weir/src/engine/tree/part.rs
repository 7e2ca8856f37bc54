//! What a process knows of the budget that it shares with its tree.

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::OnceLock;
use weir_os::tree::Table;

/// A process's part of its tree.
#[derive(Debug, Default)]
pub struct Part {
    pub(in crate::engine) table: OnceLock<Table>,
    /// Faults at the last look: whether the program works.
    pub(in crate::engine) faults: AtomicU64,
    /// When rows of processes that are gone were looked for.
    pub(in crate::engine) swept_ns: AtomicU64,
    /// Calls under way by which the process may become another program.
    pub(in crate::engine) execs: AtomicU32,
}
