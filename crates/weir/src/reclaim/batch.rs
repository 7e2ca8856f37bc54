//! Batch: pages go to the swap file together, written with no block's lock held.
//!
//! What goes there: staged pages that do not compress, staged pages for which the pool has no room, and, to
//! make room in it, the pages that are in the pool longest. A page is copied into the batch and tagged under
//! its block's lock; whatever happens to it before the batch is written clears the tag, and its record is
//! dropped, before the write if there is still time. Staged pages keep their frames, and their windows, until
//! then. A batch that is written through (`through`) goes the same way, but that its pages stay in the pool.

use super::tally;
use super::tidy::{empty_cluster, give_up_kept};
use super::window::{end_window, staged_from};
use crate::door::Pager;
use crate::limits::{BATCH_STAGED_MIN, STAGED_SHARE};
use crate::page::id::BLOCK_PAGES;
use crate::page::state::{State, Word, must};
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{BlockId, PageId, SwapSlot};
use crate::shared::swapping::{BATCH_BYTES, BATCH_PAGES, Press, Swapping};
use crate::shared::{Core, count};
use crate::stats::{self, Stats};
use crate::tier::swap::{Codec, SwapError};
use std::sync::MutexGuard;
use weir_os::thread;

/// Most pages of a batch.
const PAGES: usize = BATCH_PAGES as usize;

/// Whether a page was taken into the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is in it, and tagged.
    Yes,
    /// Write the batch first.
    Full,
    /// Nothing can be written now.
    No,
}

/// What becomes of the pool pages of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooled {
    /// They leave the pool.
    Leave,
    /// They stay in it.
    Stay,
}

/// The batch of one reclaiming thread. Finish it (`relief::finish`): words carry its tag.
#[derive(Debug)]
pub struct Batch<'a, P: Pager> {
    pub(super) swapping: Option<&'a Swapping<P::Disk>>,
    press: Option<MutexGuard<'a, Press>>,
    pub(super) pooled: Pooled,
    /// Pages in the batch.
    pub(super) pages: u32,
    /// Of these, staged ones: frames that will be free.
    staged: u32,
    /// Most of these.
    staged_most: u32,
    /// Staged pages ever pushed.
    pushed: u32,
    /// The block whose staged pages were pushed last, since the last flush.
    current: Option<BlockId>,
    /// The pool had no room for a page.
    pub(super) no_room: bool,
    /// Blocks whose windows are the batch's to end: [`Batch::take_over`].
    owned: [BlockId; PAGES],
    owns: usize,
    /// A fault waits for a frame.
    pub(super) in_fault: bool,
    /// Frames freed by pages that were written.
    pub freed: u32,
}

impl<'a, P: Pager> Batch<'a, P> {
    /// An empty batch.
    pub fn new(core: &'a Core<P>) -> Batch<'a, P> {
        Batch {
            swapping: core.copies.swapping.as_ref(),
            press: None,
            pooled: Pooled::Leave,
            pages: 0,
            staged: 0,
            staged_most: (core.room.frames.limit() / STAGED_SHARE).clamp(BATCH_STAGED_MIN, BATCH_PAGES),
            pushed: 0,
            current: None,
            no_room: false,
            owned: [BlockId(0); PAGES],
            owns: 0,
            in_fault: false,
            freed: 0,
        }
    }

    /// As `new`, for a thread of the program: it fills up no batch with more than a block of staged pages.
    /// `waits`: for its own frame.
    pub fn for_fault(core: &'a Core<P>, waits: bool) -> Batch<'a, P> {
        let all = Self::new(core);
        Batch { staged_most: all.staged_most.min(BLOCK_PAGES), in_fault: waits, ..all }
    }

    /// As `new`, for pool pages alone; `pooled` says what becomes of them.
    pub fn of_pool(core: &'a Core<P>, pooled: Pooled) -> Batch<'a, P> {
        Batch { pooled, ..Self::new(core) }
    }

    /// Whether no page is in the batch.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Whether pages can go to the swap file.
    pub fn usable(&self) -> bool {
        self.swapping.is_some_and(Swapping::usable)
    }

    /// The batch takes no more: the next one needs a press of its own.
    pub(super) fn end(&mut self) {
        self.press = None;
    }

    /// The pool had no room for a page.
    pub fn note_no_room(&mut self) {
        self.no_room = true;
    }

    /// Frames that will be free when the batch is written.
    pub fn promised(&self) -> u32 {
        self.staged
    }

    /// Staged pages taken so far.
    pub fn pushed(&self) -> u32 {
        self.pushed
    }

    /// Staged pages that would still go with the batch, once it has begun, if they are like those in it.
    pub fn wants(&self) -> u32 {
        let (Some(s), Some(press)) = (self.swapping, self.press.as_deref()) else { return 0 };
        let bytes = press.writer.bytes();
        if self.pages == 0 || bytes == 0 {
            return 0;
        }
        let missing = (BATCH_BYTES.saturating_sub(bytes) * self.pages as usize).div_ceil(bytes) as u32;
        missing.min(s.batch.saturating_sub(self.pages)).min(self.staged_most.saturating_sub(self.staged))
    }

    /// Whether the batch takes no page more.
    pub(super) fn is_full(&self, batch: u32) -> bool {
        let bytes = self.press.as_deref().map_or(0, |press| press.writer.bytes());
        self.pages >= batch || bytes >= BATCH_BYTES || self.owns == PAGES
    }

    /// Whether a batch has begun that is not full.
    pub fn is_partial(&self) -> bool {
        self.wants() > 0
    }

    /// Takes a page, Staged or Pooled, whose word is `found`.
    pub fn push(
        &mut self,
        core: &Core<P>,
        held: &BlockGuard<'_>,
        page: PageId,
        found: Word,
        codec: Codec,
        bytes: &[u8],
    ) -> Pushed {
        held.has(page);
        let Some(s) = self.swapping.filter(|s| s.usable()) else { return Pushed::No };
        if self.press.is_none() {
            self.press = s.press();
        }
        let staged = found.state() == State::Staged;
        let full = self.is_full(s.batch) || staged && self.staged >= self.staged_most;
        let Some(press) = self.press.as_deref_mut() else { return Pushed::No };
        // Taken back and out again: its old bytes are still in the batch, under the same tag.
        if self.pages > 0 {
            press.writer.cancel(page);
        }
        if full || press.writer.push(page, codec, bytes).is_err() {
            return Pushed::Full;
        }
        self.pages += 1;
        if core.table.word(page).try_begin_write(found, press.tag).is_err() {
            press.writer.cancel(page);
            return Pushed::No;
        }
        if staged {
            self.staged += 1;
            self.pushed += 1;
            self.current = Some(page.block());
        }
        Pushed::Yes
    }

    /// The block's window has ended although its pages were in the batch: they were all taken back.
    pub fn forget(&mut self, block: BlockId) {
        if self.current == Some(block) {
            self.current = None;
        }
    }

    /// Nobody else goes on with the block, whose staged pages are in the batch, until it is written. False
    /// when none are, and the block is the caller's to queue.
    pub fn take_over(&mut self, core: &Core<P>, block: BlockId) -> bool {
        if self.current != Some(block) {
            return false;
        }
        self.current = None;
        self.owned[self.owns] = block;
        self.owns += 1;
        if self.owns == PAGES {
            self.flush(core);
        }
        true
    }

    /// Writes the batch and makes it true: pages that still carry its tag are in the swap file. Under no
    /// lock.
    pub fn flush(&mut self, core: &Core<P>) {
        if let (Some(s), Some(press)) = (self.swapping, self.press.as_deref_mut())
            && self.pages > 0
        {
            cancel_dead(&core.table, &core.stats, press);
            match write(core, s, press, self.pooled) {
                Ok(()) => self.freed += commit(core, s, press, self.pooled),
                Err(e) => give_up(core, s, press, self.pooled, e),
            }
            press.writer.clear();
        }
        (self.pages, self.staged, self.current) = (0, 0, None);
        for block in self.owned[..self.owns].iter() {
            end_or_queue(core, *block);
        }
        self.owns = 0;
        core.charge_slots();
    }
}

/// Drops pages that were taken back or given up since they were pushed: they are not written.
fn cancel_dead(table: &PageTable, stats: &Stats, press: &mut Press) {
    let (mut dead, mut n) = ([PageId(0); PAGES], 0);
    for page in press.writer.pages() {
        if table.word(page).load().tag() != press.tag {
            dead[n] = page;
            n += 1;
        }
    }
    for page in &dead[..n] {
        press.writer.cancel(*page);
    }
    count(&stats.swap_cancelled, n as u32);
}

/// One request; when the file is full some room is looked for, once. Not for second copies: what would be
/// given up for them are second copies too, and paid for.
fn write<P: Pager>(
    core: &Core<P>,
    s: &Swapping<P::Disk>,
    press: &mut Press,
    pooled: Pooled,
) -> Result<(), SwapError> {
    let start = thread::now_ns();
    let mut result = press.writer.write(&s.tier, &mut press.cache);
    if result == Err(SwapError::Full)
        && pooled == Pooled::Leave
        && give_up_kept(core, s) + empty_cluster(core, s) > 0
    {
        result = press.writer.write(&s.tier, &mut press.cache);
    }
    s.count_io(start);
    result.map(|_| ())
}

/// Pages that still carry the tag are Swapped, or doubled, from now on; slots of the others are freed. Frames
/// freed.
fn commit<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>, press: &mut Press, pooled: Pooled) -> u32 {
    let (mut list, mut n) = ([(PageId(0), SwapSlot(0)); PAGES], 0);
    for entry in press.writer.written() {
        list[n] = entry;
        n += 1;
    }
    let mut freed = 0;
    for some in list[..n].chunk_by(|a, b| a.0.block() == b.0.block()) {
        let block = some[0].0.block();
        let row = core.table.block(block).lock();
        tally::blocks(&core.stats, 1);
        let mut free = 0u64;
        for &(page, slot) in some {
            let word = core.table.word(page);
            let found = word.load();
            if pooled == Pooled::Stay && core.copies.double(&core.table, &row, page, found, slot, press.tag) {
                stats::add(&core.stats.swap_through, 1);
                core.copies.note_written(&core.table, &core.stats, block);
            } else if pooled == Pooled::Stay || word.try_swap_out(found, slot, press.tag).is_err() {
                s.tier.free(&mut press.cache, slot);
                stats::add(&core.stats.swap_cancelled, 1);
                if found.state() == State::Pooled {
                    core.copies.note_pooled(&core.table, &core.stats, block);
                }
            } else if found.state() == State::Staged {
                free |= 1 << page.index();
            } else {
                core.free_copy(&row, page, found);
            }
        }
        if let (Some(window), 1..) = (row.window(), free) {
            core.room.frames.release(window, free);
            tally::frames(&core.stats, 1);
            core.staged.sub_pages(free.count_ones());
            freed += free.count_ones();
        }
    }
    count(&core.room.progress, freed);
    freed
}

/// Nothing was written: the pages stay what they are.
fn give_up<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>, press: &mut Press, pooled: Pooled, e: SwapError) {
    match (e, pooled) {
        (SwapError::Full, Pooled::Leave) => {
            s.set_full();
            core.room.need_pool(&core.ledger);
        }
        (SwapError::Full, Pooled::Stay) => s.set_cramped(true),
        _ => {
            s.set_broken();
            core.room.need_pool(&core.ledger);
        }
    }
    for page in press.writer.pages() {
        let _guard = core.table.block(page.block()).lock();
        let word = core.table.word(page);
        let found = word.load();
        if found.tag() == press.tag {
            must(word.try_end_io(found));
        }
        if found.state() == State::Pooled {
            core.copies.note_pooled(&core.table, &core.stats, page.block());
        }
    }
}

/// The window of a block whose staged pages were in a batch: it ends, or somebody goes on with it.
fn end_or_queue<P: Pager>(core: &Core<P>, block: BlockId) {
    let row = core.table.block(block).lock();
    tally::blocks(&core.stats, 1);
    let Some(window) = row.window() else { return };
    if staged_from(&core.table, &row, 0) == 0 {
        end_window(&core.room, &core.stats, &row, window, false);
    } else {
        core.staged.push_front(block);
        tally::queues(&core.stats, 1);
    }
}
