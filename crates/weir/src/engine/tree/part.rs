//! What a process knows of the budget that it shares with its tree.

use core::sync::atomic::AtomicU64;
use std::sync::OnceLock;
use weir_os::tree::Table;

/// A process's part of its tree.
#[derive(Debug, Default)]
pub struct Part {
    pub(in crate::engine) table: OnceLock<Table>,
    /// Faults at the last look: whether the program works.
    pub(in crate::engine) faults: AtomicU64,
}
