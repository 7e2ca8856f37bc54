//! Writeback: pages go to the swap file, in batches, written with no block's lock held.
//!
//! What goes there: staged pages that do not compress, staged pages for which the pool has no room, and, to
//! make room in it, the pages that are in the pool longest. A page is copied into the batch and tagged under
//! its block's lock; whatever happens to it before the batch is written clears the tag, and its record is
//! dropped, before the write if there is still time. Staged pages keep their frames, and their windows, until
//! then. A batch that is written through (`through`) goes the same way, but that its pages stay in the pool.

use super::evict::evict_some;
use super::room::compact;
use super::tally;
use super::window::{end_window, staged_from};
use crate::door::Pager;
use crate::limits::{
    BATCH_STAGED_MIN, CLUSTER_SPARSE_PART, COLD_BLOCKS, POOL_BATCHES, POOL_VACANT_PART, SLOTS_GIVEN_UP,
    SLOTS_SWEPT, STAGED_SHARE,
};
use crate::page::cold::List;
use crate::page::id::BLOCK_PAGES;
use crate::page::state::{State, Word, must};
use crate::page::table::BlockGuard;
use crate::page::{BlockId, PageId, SwapSlot};
use crate::shared::swapping::{BATCH_BYTES, BATCH_PAGES, Press, Swapping};
use crate::shared::{Core, count};
use crate::stats;
use crate::sync::Ordering;
use crate::tier::pool;
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
pub enum Kind {
    /// They leave the pool.
    Back,
    /// They stay in it.
    Through,
}

/// The batch of one reclaiming thread. [`Out::finish`] it: words carry its tag.
#[derive(Debug)]
pub struct Out<'a, P: Pager> {
    swapping: Option<&'a Swapping<P::Disk>>,
    press: Option<MutexGuard<'a, Press>>,
    kind: Kind,
    /// Pages in the batch.
    pages: u32,
    /// Of these, staged ones: frames that will be free.
    staged: u32,
    /// Most of these.
    staged_most: u32,
    /// Staged pages ever pushed.
    pushed: u32,
    /// The block whose staged pages were pushed last, since the last flush.
    current: Option<BlockId>,
    /// The pool had no room for a page.
    no_room: bool,
    /// Blocks whose windows are the batch's to end: [`Out::take_over`].
    owned: [BlockId; PAGES],
    owns: usize,
    /// A fault waits for a frame.
    in_fault: bool,
    /// Frames freed by pages that were written.
    pub freed: u32,
}

impl<'a, P: Pager> Out<'a, P> {
    /// An empty batch.
    pub fn new(core: &'a Core<P>) -> Out<'a, P> {
        Out {
            swapping: core.swapping.as_ref(),
            press: None,
            kind: Kind::Back,
            pages: 0,
            staged: 0,
            staged_most: (core.frames.limit() / STAGED_SHARE).clamp(BATCH_STAGED_MIN, BATCH_PAGES),
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
    pub fn for_fault(core: &'a Core<P>, waits: bool) -> Out<'a, P> {
        let all = Self::new(core);
        Out { staged_most: all.staged_most.min(BLOCK_PAGES), in_fault: waits, ..all }
    }

    /// As `new`, for pool pages alone; `kind` says what becomes of them.
    pub fn of_kind(core: &'a Core<P>, kind: Kind) -> Out<'a, P> {
        Out { kind, ..Self::new(core) }
    }

    /// Whether no page is in the batch.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Whether pages can go to the swap file.
    pub fn usable(&self) -> bool {
        self.swapping.is_some_and(Swapping::usable)
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
    fn is_full(&self, batch: u32) -> bool {
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

    /// Writes what there is. Under no lock.
    pub fn finish(&mut self, core: &Core<P>) {
        // Cold pages go along with those for which the pool had no room, and as many again make room for the
        // next.
        let wanted = self.no_room && !self.is_spared(core) || self.is_tight(core);
        let relieves = wanted && !evict_some(core);
        for _ in 0..if relieves { 2 } else { 1 } {
            if relieves {
                self.fill_from_pool(core);
            }
            self.flush(core);
        }
        self.press = None;
    }

    /// Makes room in a pool that has its share and is almost full: by what costs nothing, if there is any.
    pub fn relieve_pool(&mut self, core: &Core<P>) {
        if self.is_tight(core) && !evict_some(core) && self.is_tight(core) && self.usable() {
            self.fill_from_pool(core);
            self.flush(core);
        }
    }

    /// Frames out of the pool, for a fault that found none and where nothing else can leave: what is in
    /// frames is pinned, say. The pool's coldest pages are written until it gives a window back. Frames
    /// freed.
    pub fn frames_from_pool(&mut self, core: &Core<P>) -> u32 {
        let (before, written) = (core.pool.owned(), self.pages_out());
        for _ in 0..POOL_BATCHES {
            if core.pool.owned() < before || !self.usable() && core.doubled() == 0 {
                break;
            }
            if !evict_some(core) {
                self.fill_from_pool(core);
                self.flush(core);
            }
            compact(core);
        }
        self.press = None;
        let freed = before.saturating_sub(core.pool.owned()) * BLOCK_PAGES;
        // What was written is on its way to a frame: whoever waits may go on waiting.
        count(&core.progress, freed + u32::from(self.pages_out() > written));
        freed
    }

    fn pages_out(&self) -> u64 {
        self.swapping.map_or(0, |s| s.tier.counters().pages_out.load(Ordering::Relaxed))
    }

    /// Whether the pool needs room, and this batch is to make it.
    fn is_tight(&self, core: &Core<P>) -> bool {
        core.pool.is_tight(POOL_VACANT_PART) && !self.is_spared(core)
    }

    /// No fault that waits for its own frame pays for a share that fell; one that makes room ahead of need
    /// does.
    fn is_spared(&self, core: &Core<P>) -> bool {
        self.in_fault && core.pool.is_over()
    }

    /// Fills the batch with the coldest pages of the pool that are not in the file.
    pub fn fill_from_pool(&mut self, core: &Core<P>) {
        let Some(s) = self.swapping else { return };
        for _ in 0..COLD_BLOCKS {
            if self.is_full(s.batch) {
                return;
            }
            // Of written blocks, newer pages may not be.
            let behind = || match self.kind {
                Kind::Through if core.unwritten().0 > u64::from(self.pages) => {
                    s.cold.pop(&core.table, List::Written)
                }
                _ => None,
            };
            tally::queues(core, 1);
            let Some(block) = s.cold.pop(&core.table, List::Cold).or_else(behind) else { return };
            if !self.push_pooled(core, block) {
                s.cold.push_front(&core.table, List::Cold, block);
                return;
            }
        }
    }

    /// Takes the pooled pages of a block. False when some are left.
    fn push_pooled(&mut self, core: &Core<P>, block: BlockId) -> bool {
        let held = core.table.block(block).lock();
        tally::blocks(core, 1);
        let mut doubled = false;
        for i in 0..BLOCK_PAGES {
            let page = block.page(i);
            let found = core.table.word(page).load();
            if found.doubled() {
                doubled |= self.kind == Kind::Through || !core.evict(&held, page, found);
                continue;
            }
            let Some(handle) = found.handle().filter(|_| found.state() == State::Pooled && found.tag() == 0)
            else {
                continue;
            };
            // A damaged record stays where it is: the program learns of it when it wants the page.
            let push = |codec: pool::Codec, b: &[u8]| self.push(core, &held, page, found, codec.into(), b);
            let lent = core.pool.lend(&core.pager, handle, page, push);
            match lent {
                Ok(Pushed::Yes) => count(&core.stats.swap_from_pool, u32::from(self.kind == Kind::Back)),
                Ok(Pushed::Full | Pushed::No) => return false,
                Err(_) => {}
            }
        }
        if doubled {
            core.note_written(block);
        }
        true
    }

    /// Writes the batch and makes it true: pages that still carry its tag are in the swap file. Under no
    /// lock.
    pub fn flush(&mut self, core: &Core<P>) {
        if let (Some(s), Some(press)) = (self.swapping, self.press.as_deref_mut())
            && self.pages > 0
        {
            cancel_dead(core, press);
            match write(core, s, press, self.kind) {
                Ok(()) => self.freed += commit(core, s, press, self.kind),
                Err(e) => give_up(core, s, press, self.kind, e),
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
fn cancel_dead<P: Pager>(core: &Core<P>, press: &mut Press) {
    let (mut dead, mut n) = ([PageId(0); PAGES], 0);
    for page in press.writer.pages() {
        if core.table.word(page).load().tag() != press.tag {
            dead[n] = page;
            n += 1;
        }
    }
    for page in &dead[..n] {
        press.writer.cancel(*page);
    }
    count(&core.stats.swap_cancelled, n as u32);
}

/// One request; when the file is full some room is looked for, once. Not for second copies: what would be
/// given up for them are second copies too, and paid for.
fn write<P: Pager>(
    core: &Core<P>,
    s: &Swapping<P::Disk>,
    press: &mut Press,
    kind: Kind,
) -> Result<(), SwapError> {
    let start = thread::now_ns();
    let mut result = press.writer.write(&s.tier, &mut press.cache);
    if result == Err(SwapError::Full) && kind == Kind::Back && give_up_kept(core, s) + tidy_up(core, s) > 0 {
        result = press.writer.write(&s.tier, &mut press.cache);
    }
    s.count_io(start);
    result.map(|_| ())
}

/// Pages that still carry the tag are Swapped, or doubled, from now on; slots of the others are freed. Frames
/// freed.
fn commit<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>, press: &mut Press, kind: Kind) -> u32 {
    let (mut list, mut n) = ([(PageId(0), SwapSlot(0)); PAGES], 0);
    for entry in press.writer.written() {
        list[n] = entry;
        n += 1;
    }
    let mut freed = 0;
    for some in list[..n].chunk_by(|a, b| a.0.block() == b.0.block()) {
        let block = some[0].0.block();
        let row = core.table.block(block).lock();
        tally::blocks(core, 1);
        let mut free = 0u64;
        for &(page, slot) in some {
            let word = core.table.word(page);
            let found = word.load();
            if kind == Kind::Through && core.double(&row, page, found, slot, press.tag) {
                stats::add(&core.stats.swap_through, 1);
                core.note_written(block);
            } else if kind == Kind::Through || word.try_swap_out(found, slot, press.tag).is_err() {
                s.tier.free(&mut press.cache, slot);
                stats::add(&core.stats.swap_cancelled, 1);
                if found.state() == State::Pooled {
                    core.note_pooled(block);
                }
            } else if found.state() == State::Staged {
                free |= 1 << page.index();
            } else {
                core.free_copy(&row, page, found);
            }
        }
        if let (Some(window), 1..) = (row.window(), free) {
            core.frames.release(window, free);
            tally::frames(core, 1);
            core.staged.sub_pages(free.count_ones());
            freed += free.count_ones();
        }
    }
    count(&core.progress, freed);
    freed
}

/// Nothing was written: the pages stay what they are.
fn give_up<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>, press: &mut Press, kind: Kind, e: SwapError) {
    match (e, kind) {
        (SwapError::Full, Kind::Back) => {
            s.set_full();
            core.need_pool();
        }
        (SwapError::Full, Kind::Through) => s.set_cramped(true),
        _ => {
            s.set_broken();
            core.need_pool();
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
            core.note_pooled(page.block());
        }
    }
}

/// The window of a block whose staged pages were in a batch: it ends, or somebody goes on with it.
fn end_or_queue<P: Pager>(core: &Core<P>, block: BlockId) {
    let row = core.table.block(block).lock();
    tally::blocks(core, 1);
    let Some(window) = row.window() else { return };
    if staged_from(core, &row, 0) == 0 {
        end_window(core, &row, window, false);
    } else {
        core.staged.push_front(block);
        tally::queues(core, 1);
    }
}

/// Gives up slots of pages in frames or in the pool: they are true copies of what is there anyway. How many.
pub fn give_up_kept<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>) -> u32 {
    let (mut given, slots) = (0, s.tier.slots());
    if s.kept() + s.doubled() == 0 {
        return 0;
    }
    for _ in 0..slots.min(SLOTS_SWEPT * 16) {
        let slot = SwapSlot(s.hand.fetch_add(1, Ordering::Relaxed) % slots);
        let Some(page) = s.tier.page_of(slot).filter(|page| page.0 < core.table.pages()) else { continue };
        let Some(held) = core.table.block(page.block()).try_lock() else { continue };
        let found = core.table.word(page).load();
        if core.table.slot_of(page, found) == Some(slot) && core.give_up_slot(&held, page, found) {
            given += 1;
        }
        if given >= SLOTS_GIVEN_UP {
            break;
        }
    }
    count(&core.stats.swap_kept_dropped, given);
    given
}

/// Moves the live records of a cluster that is mostly dead elsewhere. How many. Under no lock.
pub fn tidy_up<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>) -> u32 {
    let Some(mut mover) = s.mover() else { return 0 };
    let Some(cluster) = s.tier.sparse_cluster(CLUSTER_SPARSE_PART) else { return 0 };
    let (press, scratch) = &mut *mover;
    let mut moved = 0;
    let read = s.tier.each_in_cluster(cluster, scratch, |page, seen, record| {
        let Ok((codec, bytes)) = record else { return };
        if press.writer.bytes() >= BATCH_BYTES || press.writer.pages().count() == PAGES {
            moved += move_batch(core, s, press);
        }
        if page.0 >= core.table.pages() {
            return;
        }
        let held = core.table.block(page.block()).lock();
        let word = core.table.word(page);
        let found = word.load();
        if core.table.slot_of(page, found) != Some(seen.slot) || !s.tier.is_still(seen) {
            return; // another process's, on its way out of here, or written again under the same slot
        }
        if found.state() != State::Swapped {
            // There is another copy: moving this one is a write that may turn out to be for nothing.
            if core.give_up_slot(&held, page, found) {
                stats::add(&core.stats.swap_kept_dropped, 1);
                moved += 1;
            }
            return;
        }
        press.writer.cancel(page);
        if let Ok(tagged) = word.try_begin_read(found, press.tag)
            && press.writer.push(page, codec, bytes).is_err()
        {
            must(word.try_end_io(tagged));
        }
    });
    let _ = read; // what could not be read stays where it is
    moved + move_batch(core, s, press)
}

/// Writes records that are being moved, and frees their old places.
fn move_batch<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>, press: &mut Press) -> u32 {
    let done = press.writer.write(&s.tier, &mut press.cache).is_ok();
    let (mut list, mut n) = ([(PageId(0), None); PAGES], 0);
    let written = press.writer.written().map(|(page, slot)| (page, Some(slot)));
    let unwritten = press.writer.pages().filter(|_| !done).map(|page| (page, None));
    for entry in written.chain(unwritten).take(PAGES) {
        list[n] = entry;
        n += 1;
    }
    let mut moved = 0;
    for &(page, slot) in &list[..n] {
        let held = core.table.block(page.block()).lock();
        let word = core.table.word(page);
        let found = word.load();
        match slot {
            Some(slot) if word.try_reslot(found, slot, press.tag).is_ok() => {
                core.free_copy(&held, page, found);
                moved += 1;
            }
            Some(slot) => s.tier.free(&mut press.cache, slot),
            None if found.tag() == press.tag => _ = must(word.try_end_io(found)),
            None => {}
        }
    }
    press.writer.clear();
    s.announce();
    count(&core.stats.swap_moved, moved);
    moved
}

/// The background thread's part: room in the file, before it gets short. Now and then (`trim`) blocks go back
/// to the file system.
pub fn housekeeping<P: Pager>(core: &Core<P>, trim: bool) {
    let Some(s) = &core.swapping else { return };
    if trim {
        s.set_cramped(false);
        s.tier.trim();
    }
    if s.tier.free_bytes() < s.tier.bytes() / 8 {
        give_up_kept(core, s);
        tidy_up(core, s);
    }
    s.look_for_room();
    core.charge_slots();
}
