//! Who runs: the engine as a whole. `control` does what the program asks of its address space,
//! `threads` serves faults and reclaims, `fork` carries the engine into a child, `start` builds it.

mod around;
pub mod base;
pub mod control;
mod crawl;
mod desk;
pub mod files;
pub mod fork;
#[cfg(target_arch = "x86_64")]
pub mod gate;
pub mod heap;
pub mod inline;
pub mod outside;
#[cfg(test)]
mod readahead_tests;
mod regions;
pub mod remap;
mod say;
pub mod spaces;
pub mod start;
pub mod statistics;
pub mod summary;
#[cfg(test)]
mod swap_tests;
pub mod swapfile;
pub mod threads;
pub mod tree;

use crate::door::Pager;
use crate::fault::Strides;
use crate::page::region::RegionMap;
use crate::page::{BlockId, PageId};
use crate::reclaim::compress::Workbench;
use crate::shared::Core;
use crate::sync::Gate;
use core::sync::atomic::{AtomicBool, AtomicU64};
use desk::{DESKS, Inline, Serving};
use regions::{Cache, Regions};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_os::mem::{OwnMark, PAGE_BYTES};
use weir_os::shards::Line;

/// A running engine.
#[derive(Debug)]
pub struct Engine<P: Pager> {
    /// What fault and reclaim share.
    pub core: Core<P>,
    /// Missing in a copy of this process that was made past libc.
    mark: OwnMark,
    /// Everybody inside the engine is counted here.
    pub gate: Line<Gate>,
    strides: Strides,
    regions: Mutex<Regions>,
    /// For threads of the program that have to reclaim by themselves.
    workbench: Mutex<Workbench>,
    base: usize,
    len: usize,
    /// What faulting threads need to resolve faults themselves.
    inline: Inline,
    /// The faults being served, for the watchdog.
    serving: Vec<Line<Serving>>,
    stall_reported: AtomicBool,
    /// Whether the program does little but wait; looked after by the background thread.
    crawl: Mutex<Option<crawl::rule::State>>,
    /// How memory outside is measured.
    pub outside: outside::looks::Looks,
    /// The limit of which the budget is a share.
    around: around::followed::Around,
    /// The budget that it shares with its tree.
    tree: tree::part::Part,
    /// Files that the program has mapped.
    pub files: files::known::Files,
    /// When the pool may be tidied up again.
    compact_after_ns: AtomicU64,
    /// When blocks of the swap file may go back to the file system again.
    trim_after_ns: AtomicU64,
}

impl<P: Pager> Engine<P> {
    /// An engine over `core`, whose space begins at address `base`.
    pub fn new(core: Core<P>, base: usize) -> Engine<P> {
        let pages = core.table.pages();
        Engine {
            core,
            mark: OwnMark::new(),
            gate: Line::default(),
            strides: Strides::default(),
            regions: Mutex::new(Regions { map: RegionMap::new(pages), cache: Cache::default() }),
            workbench: Mutex::new(Workbench::new()),
            base,
            len: pages as usize * PAGE_BYTES,
            inline: Inline::default(),
            serving: (0..DESKS).map(|_| Line::default()).collect(),
            stall_reported: AtomicBool::new(false),
            crawl: Mutex::new(None),
            outside: outside::looks::Looks::default(),
            around: around::followed::Around::default(),
            tree: tree::part::Part::default(),
            files: files::known::Files::default(),
            compact_after_ns: AtomicU64::new(0),
            trim_after_ns: AtomicU64::new(0),
        }
    }

    /// Hands out no address below that of `block`.
    fn begin_at(&self, block: u32) {
        self.regions().map.begin_at(block);
    }

    /// The managed space: first address and length in bytes.
    pub fn space(&self) -> (usize, usize) {
        (self.base, self.len)
    }

    /// Frames that the budget allows.
    pub fn frames(&self) -> usize {
        self.core.room.frames.limit() as usize
    }

    /// Whether an address lies in the managed space.
    #[inline]
    pub fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.base) < self.len
    }

    /// Whether any byte of a range lies in the managed space.
    #[inline]
    pub fn touches(&self, addr: usize, len: usize) -> bool {
        addr < self.base + self.len && addr.saturating_add(len.max(1)) > self.base
    }

    /// A thread of the program enters: its signals wait, because a handler that touched managed
    /// memory now would wait for the locks that this thread holds.
    fn inside(&self) -> Stay<'_> {
        self.check_own();
        let signals = Blocked(weir_os::thread::block_signals());
        Stay { _gate: self.gate.enter(), _signals: signals }
    }

    /// Whether this is the process that the engine belongs to, and not a copy of it that nobody made its own.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.mark.is_set()
    }

    /// A process that a system call past libc made as a copy of this one must not touch what both have in the
    /// swap file, nor the descriptor that says what happens to its parent's pages.
    #[inline]
    fn check_own(&self) {
        if !self.is_own() {
            say::fatal(format_args!(
                "this process is a copy of its parent that was made past libc: it has no memory under weir, and ends here"
            ));
        }
    }

    fn page_of(&self, addr: usize) -> u32 {
        ((addr - self.base) / PAGE_BYTES) as u32
    }

    fn addr_of(&self, page: u32) -> usize {
        self.base + page as usize * PAGE_BYTES
    }

    fn regions(&self) -> MutexGuard<'_, Regions> {
        // Panics end the process, by the profile or by `library/whole.rs`: a poisoned lock is never seen.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program thread's stay inside the engine. Fields drop in order: out of the gate first, then
/// signals are let through.
struct Stay<'a> {
    _gate: crate::sync::Inside<'a>,
    _signals: Blocked,
}

struct Blocked(u64);

impl Drop for Blocked {
    fn drop(&mut self) {
        weir_os::thread::restore_signals(self.0);
    }
}

/// Calls `f` for each block of a page range, with the mask of its pages in the range.
fn each_block(start: u32, end: u32, mut f: impl FnMut(BlockId, u64)) {
    let mut page = start;
    while page < end {
        let id = PageId(page);
        let n = (64 - id.index()).min(end - page);
        f(id.block(), crate::page::id::run_mask(id.index(), n));
        page += n;
    }
}

#[cfg(test)]
mod tests;
