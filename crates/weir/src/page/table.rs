//! The page table: 16 bytes a page (word, and hash or value) and one 64-byte row a block, in flat
//! lazily touched mappings.

use super::id::{BLOCK_PAGES, BlockId, PageId, SwapSlot, WindowId};
use super::region::Access;
use super::state::{PageWord, State, Word};
use crate::sync::{BlockLock, LockGuard, Ordering};
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64};
use weir_os::mem::{Line, Table};
use weir_os::sys::Errno;

/// Words of all pages and rows of all blocks of the managed space.
#[derive(Debug)]
pub struct PageTable {
    words: Table<[AtomicU64; 2]>,
    blocks: Table<Line>,
}

/// The kernel's page-table entry for a page.
pub const ENTRY_BYTES: u64 = 8;

/// What [`PageTable`] costs per block once it is touched: words, row, and the kernel's page-table
/// entries for the pages.
pub const BLOCK_METADATA_BYTES: u64 = (BLOCK_PAGES as u64) * (16 + ENTRY_BYTES) + 64;

/// Blocks that are charged together: their words take a page, and each charge may give frames back to the
/// kernel, with an interrupt to every processor on which the program runs.
pub const CHARGED_BLOCKS: u32 = 4;
const _: () = assert!((CHARGED_BLOCKS * BLOCK_PAGES) as usize * size_of::<[AtomicU64; 2]>() == 4096);

impl PageTable {
    /// A table for `pages` pages, all Absent and unmanaged.
    pub fn new(pages: usize) -> Result<PageTable, Errno> {
        Ok(PageTable {
            words: Table::new(pages, c"weir-pages")?,
            blocks: Table::new(pages / BLOCK_PAGES as usize, c"weir-blocks")?,
        })
    }

    /// Address space that the table of a space of `len` bytes takes.
    pub const fn bytes_for(len: usize) -> usize {
        let pages = len / weir_os::mem::PAGE_BYTES;
        pages * size_of::<[AtomicU64; 2]>() + pages / BLOCK_PAGES as usize * size_of::<Line>()
    }

    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.words.len() as u32
    }

    /// The word of a page.
    #[inline]
    pub fn word(&self, page: PageId) -> PageWord<'_> {
        PageWord(&self.words.row(page.0 as usize)[0])
    }

    /// Has the kernel give memory to the words of a block and of those that are charged with it. If they were
    /// read first, the first write after it would fault again, and interrupt every processor on which the
    /// program runs to take the page of zeros away.
    pub fn touch(&self, block: BlockId) {
        // An `or` with nothing would be compiled to a read; this writes whatever it finds.
        let word = &self.words.row(block.page(0).0 as usize)[0];
        let _ = word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The second word of a page: hash of the kept copy, value of a same-filled page, slot of a doubled one.
    #[inline]
    pub fn aux(&self, page: PageId) -> u64 {
        self.words.row(page.0 as usize)[1].load(Ordering::Relaxed)
    }

    /// Sets the second word of a page of the block.
    #[inline]
    pub fn set_aux(&self, held: &BlockGuard<'_>, page: PageId, value: u64) {
        held.has(page);
        self.words.row(page.0 as usize)[1].store(value, Ordering::Relaxed);
    }

    /// The slot of the swap file that a page with this word has, as its only copy, kept, or beside its pool
    /// record. Under the block lock.
    #[inline]
    pub fn slot_of(&self, page: PageId, word: Word) -> Option<SwapSlot> {
        if word.doubled() { Some(SwapSlot(self.aux(page) as u32)) } else { word.slot() }
    }

    /// The row of a block.
    #[inline]
    pub fn block(&self, block: BlockId) -> BlockRow<'_> {
        BlockRow(self.blocks.row(block.0 as usize), block)
    }

    /// Whether a page of the block, or of those that are charged with it, ever had contents: if not, its
    /// words are not worth a look. Under the block's lock.
    pub fn is_touched(&self, block: BlockId) -> bool {
        self.block(BlockId(block.0 / CHARGED_BLOCKS * CHARGED_BLOCKS)).is_charged()
    }

    /// The pages of a block, of those in `mask`, that are in a state.
    pub fn in_state(&self, held: &BlockGuard<'_>, mask: u64, state: State) -> u64 {
        let (block, mut rest, mut found) = (held.block(), mask, 0);
        while rest != 0 {
            let i = rest.trailing_zeros();
            rest &= rest - 1;
            found |= u64::from(self.word(block.page(i)).load().state() == state) << i;
        }
        found
    }

    /// Whether the pages `start..end`, which were published before (with a fence), stay in their frames as
    /// long as they are: all are resident, and nobody is at work on their blocks. Under no lock.
    #[inline]
    pub fn stay(&self, start: PageId, end: u32) -> bool {
        let (first, last) = (start.block().0, PageId(end - 1).block().0);
        (first..=last).all(|block| BlockLock(&self.blocks.row(block as usize).w32[0]).is_free())
            && (start.0..end).all(|page| self.word(PageId(page)).load().state() == State::Resident)
    }

    /// Mappings of the table: (first address, bytes).
    pub fn extents(&self) -> [(usize, usize); 2] {
        [self.words.extent(), self.blocks.extent()]
    }
}

/// A block's row, in place. Fields other than the lock are read and written under the lock,
/// except where a method says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct BlockRow<'a>(&'a Line, BlockId);

/// The lock of a block, held until this is dropped, and the block's row. What may happen only under the lock
/// takes it.
#[derive(Debug)]
pub struct BlockGuard<'a> {
    row: BlockRow<'a>,
    _lock: LockGuard<'a>,
}

impl<'a> Deref for BlockGuard<'a> {
    type Target = BlockRow<'a>;

    #[inline]
    fn deref(&self) -> &BlockRow<'a> {
        &self.row
    }
}

impl BlockGuard<'_> {
    /// Sets the window.
    pub fn set_window(&self, w: Option<WindowId>) {
        self.row.0.w32[1].store(w.map_or(0, |w| w.0 + 1), Ordering::Relaxed);
    }

    /// Sets the mask of managed pages.
    pub fn set_valid(&self, mask: u64) {
        self.row.0.w64[0].store(mask, Ordering::Relaxed);
    }

    /// Sets the mask of pages that cannot leave.
    pub fn set_fixed(&self, mask: u64) {
        self.row.0.w64[1].store(mask, Ordering::Relaxed);
    }

    /// Sets the mask of pages that nobody can write to.
    pub fn set_readonly(&self, mask: u64) {
        self.row.0.w64[4].store(mask, Ordering::Relaxed);
    }

    /// The block's pages did not compress (or did): leave it alone for twice as many turns as last
    /// time (or none).
    pub fn set_rest(&self, stuck: bool) {
        let change = |v: u64| {
            let level = if stuck { ((v >> LEVEL_SHIFT & REST_MASK) + 1).min(LEVEL_MAX) } else { 0 };
            let turns = if stuck { 1 << level } else { 0 };
            let kept = v & !(REST_MASK << REST_SHIFT | REST_MASK << LEVEL_SHIFT);
            Some(kept | turns << REST_SHIFT | level << LEVEL_SHIFT)
        };
        let _ = self.row.0.w64[3].fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// What is done under the lock is done to a page of this block.
    #[inline]
    #[track_caller]
    pub fn has(&self, page: PageId) {
        debug_assert_eq!(page.block(), self.block(), "INV-17: the lock of another block is held");
    }
}

/// Set in the flags word: the block's metadata is charged to the budget.
const CHARGED: u64 = 1;
/// In the flags word, two bits: the order of use that the program announced for the whole block.
const ACCESS_SHIFT: u32 = 1;
const ACCESS_MASK: u64 = 3;
/// In the flags word: turns for which reclaim passes the block over, and the level (log2 of the
/// turns given last).
const REST_SHIFT: u32 = 8;
const LEVEL_SHIFT: u32 = 16;
const REST_MASK: u64 = 0xff;
/// In the flags word, upper half: the next block in the queue of pooled blocks, see [`super::cold`].
const NEXT_SHIFT: u32 = 32;
/// Most turns: 64. Contents change without our knowing, so no block is given up for good.
const LEVEL_MAX: u64 = 6;

impl<'a> BlockRow<'a> {
    /// Which block's row it is.
    #[inline]
    pub fn block(self) -> BlockId {
        self.1
    }

    /// The block's lock.
    #[inline]
    pub fn lock(self) -> BlockGuard<'a> {
        BlockGuard { row: self, _lock: BlockLock(&self.0.w32[0]).lock() }
    }

    /// The block's lock if it is free.
    #[inline]
    pub fn try_lock(self) -> Option<BlockGuard<'a>> {
        BlockLock(&self.0.w32[0]).try_lock().map(|lock| BlockGuard { row: self, _lock: lock })
    }

    /// The window that holds the block's staged pages.
    #[inline]
    pub fn window(self) -> Option<WindowId> {
        self.0.w32[1].load(Ordering::Relaxed).checked_sub(1).map(WindowId)
    }

    /// Queue links and policy bits; owned by the resident set's lock, not the block's.
    #[inline]
    pub fn links(self) -> (&'a AtomicU32, &'a AtomicU32) {
        (&self.0.w32[2], &self.0.w32[4])
    }

    /// Number of resident pages; readable without the lock as a hint.
    #[inline]
    pub fn resident(self) -> u32 {
        self.0.w32[5].load(Ordering::Relaxed)
    }

    /// Adds to the number of resident pages.
    #[inline]
    pub fn add_resident(self, delta: i32) {
        self.0.w32[5].fetch_add(delta as u32, Ordering::Relaxed);
    }

    /// Mask of the pages that are managed: mapped by the program through Weir.
    #[inline]
    pub fn valid(self) -> u64 {
        self.0.w64[0].load(Ordering::Relaxed)
    }

    /// Mask of the pages that cannot leave: writable, but not plain read-write (MOVE takes those) and
    /// not without write access (those are copied out).
    #[inline]
    pub fn fixed(self) -> u64 {
        self.0.w64[1].load(Ordering::Relaxed)
    }

    /// State of readahead; readable without the lock as a hint.
    #[inline]
    pub fn readahead(self) -> u64 {
        self.0.w64[2].load(Ordering::Relaxed)
    }

    /// Sets the state of readahead: a hint, also written without the lock.
    #[inline]
    pub fn set_readahead(self, v: u64) {
        self.0.w64[2].store(v, Ordering::Relaxed);
    }

    /// Takes these bits out of the state of readahead, whose ever lock is held. Returns what they were.
    pub fn take_readahead(self, bits: u64) -> u64 {
        let word = &self.0.w64[2];
        if word.load(Ordering::Relaxed) & bits == 0 {
            0
        } else {
            word.fetch_and(!bits, Ordering::Relaxed) & bits
        }
    }

    /// The order of use that the program announced for the whole block; readable without the lock.
    #[inline]
    pub fn access(self) -> Access {
        match self.0.w64[3].load(Ordering::Relaxed) >> ACCESS_SHIFT & ACCESS_MASK {
            0 => Access::Any,
            1 => Access::Random,
            _ => Access::Sequential,
        }
    }

    /// Notes the order of use.
    pub fn set_access(self, access: Access) {
        let change = |v: u64| Some(v & !(ACCESS_MASK << ACCESS_SHIFT) | (access as u64) << ACCESS_SHIFT);
        let _ = self.0.w64[3].fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Marks the block as charged for its metadata; true the first time.
    #[inline]
    pub fn charge_once(self) -> bool {
        let flags = &self.0.w64[3];
        flags.load(Ordering::Relaxed) & CHARGED == 0
            && flags.fetch_or(CHARGED, Ordering::Relaxed) & CHARGED == 0
    }

    fn is_charged(self) -> bool {
        self.0.w64[3].load(Ordering::Relaxed) & CHARGED != 0
    }

    /// Spends one of the turns that the block is to be left alone; false when none is left.
    pub fn spend_rest(self) -> bool {
        let flags = &self.0.w64[3];
        let left = flags.load(Ordering::Relaxed) >> REST_SHIFT & REST_MASK;
        if left > 0 {
            flags.fetch_sub(1 << REST_SHIFT, Ordering::Relaxed);
        }
        left > 0
    }

    /// Whether the block is to be left alone for some turns.
    pub fn rests(self) -> bool {
        self.0.w64[3].load(Ordering::Relaxed) >> REST_SHIFT & REST_MASK > 0
    }

    /// Link of the queue of pooled blocks; owned by that queue's lock.
    pub fn next_cold(self) -> u32 {
        (self.0.w64[3].load(Ordering::Relaxed) >> NEXT_SHIFT) as u32
    }

    /// Sets the link.
    pub fn set_next_cold(self, next: u32) {
        let change = |v: u64| Some(v & !(u64::from(u32::MAX) << NEXT_SHIFT) | u64::from(next) << NEXT_SHIFT);
        let _ = self.0.w64[3].fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Reclaim's clock (32 bits) when the block last went out; 0 when it never did, all ones when that is
    /// forgotten.
    #[inline]
    pub fn evicted_at(self) -> u32 {
        self.0.w32[3].load(Ordering::Relaxed)
    }

    /// Notes reclaim's clock. The lock of the resident set covers it, not the block's.
    #[inline]
    pub fn set_evicted_at(self, t: u32) {
        self.0.w32[3].store(t, Ordering::Relaxed);
    }

    /// Mask of the pages that nobody can write to: they leave by copy, not by MOVE.
    #[inline]
    pub fn readonly(self) -> u64 {
        self.0.w64[4].load(Ordering::Relaxed)
    }
}
