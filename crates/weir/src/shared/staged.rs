//! The blocks with staged pages, oldest first: whose turn it is to leave its frames.

use crate::page::BlockId;
use crate::sync::{Lock, Ordering};
use core::sync::atomic::AtomicU32;
use weir_os::mem::Table;

/// A ring of blocks with staged pages.
#[derive(Debug)]
pub struct StagedQueue {
    lock: Lock,
    ring: Table<AtomicU32>,
    head: AtomicU32,
    len: AtomicU32,
    /// Staged pages, counted when blocks enter and pages leave.
    pages: AtomicU32,
}

impl StagedQueue {
    /// Room for as many blocks as there are windows.
    pub fn new(windows: u32) -> Result<StagedQueue, weir_os::sys::Errno> {
        Ok(StagedQueue {
            lock: Lock::default(),
            ring: Table::new(windows as usize, c"weir-staged")?,
            head: AtomicU32::new(0),
            len: AtomicU32::new(0),
            pages: AtomicU32::new(0),
        })
    }

    /// Adds a block that just got a window; there are never more than windows.
    pub fn push(&self, block: BlockId) {
        let _guard = self.lock.lock();
        let at =
            (self.head.load(Ordering::Relaxed) + self.len.load(Ordering::Relaxed)) as usize % self.ring.len();
        self.ring.row(at).store(block.0, Ordering::Relaxed);
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts a block back that has staged pages left: it goes on next.
    pub fn push_front(&self, block: BlockId) {
        let _guard = self.lock.lock();
        let len = self.ring.len() as u32;
        let head = (self.head.load(Ordering::Relaxed) + len - 1) % len;
        self.ring.row(head as usize).store(block.0, Ordering::Relaxed);
        self.head.store(head, Ordering::Relaxed);
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the oldest block; the caller alone handles its window from here.
    pub fn pop(&self) -> Option<BlockId> {
        let _guard = self.lock.lock();
        if self.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let head = self.head.load(Ordering::Relaxed);
        self.head.store((head + 1) % self.ring.len() as u32, Ordering::Relaxed);
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(BlockId(self.ring.row(head as usize).load(Ordering::Relaxed)))
    }

    /// Staged pages of all blocks.
    pub fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Blocks that wait for their turn.
    pub fn blocks(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// Counts pages that were staged.
    pub fn add_pages(&self, n: u32) {
        self.pages.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts pages that are staged no longer.
    pub fn sub_pages(&self, n: u32) {
        self.pages.fetch_sub(n, Ordering::Relaxed);
    }
}
