//! The copies of a page's bytes outside its frame: a record in the pool, a slot of the swap file, or both.
//! Which there are is in the page's two words; here is the swap file, and how many of which copies there are.

use super::room::Room;
use super::swapping::Swapping;
use crate::config::rules::{Rule, is_on};
use crate::door::BlockIo;
use crate::limits::KEPT_SHARE;
use crate::page::cold::List;
use crate::page::state::{State, Word};
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{BlockId, Handle, PageId, SwapSlot};
use crate::stats::Stats;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicI32, AtomicU64};
use weir_os::mem::PAGE_BYTES;
use weir_os::shards::Line;

/// Bound of the score that kept records have.
const KEEP_BOUND: i32 = 256;

/// What stays, as a kept copy with its hash, when a page comes in from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// No copy of it.
    Nothing,
    /// Its pool record.
    Record(u64),
    /// Its slot: of a doubled page.
    Slot(u64),
}

/// Records that are kept of pages in frames, and the swap file with its slots.
#[derive(Debug)]
pub struct Copies<D: BlockIo> {
    /// The swap file and who works with it, where there is one.
    pub swapping: Option<Swapping<D>>,
    /// Pages in frames with a kept record.
    kept: Line<AtomicU64>,
    /// Positive while kept records are mostly found unchanged.
    keep_score: AtomicI32,
}

impl<D: BlockIo> Default for Copies<D> {
    fn default() -> Copies<D> {
        Copies { swapping: None, kept: Line::default(), keep_score: AtomicI32::new(0) }
    }
}

impl<D: BlockIo> Copies<D> {
    /// Whether the pages of a run expanded from the pool keep their records, so that they can go out
    /// again for the price of a hash: while that guess mostly comes true, and, for single random
    /// faults, while few copies take room from frames.
    pub fn keeps_records(&self, room: &Room, stats: &Stats, run: u32) -> bool {
        let score = self.keep_score.load(Ordering::Relaxed);
        // Samples are kept until their pages go out again, and take room meanwhile: few where there is little
        // hope.
        let one_in = if score < -KEEP_BOUND / 2 { 64 } else { 16 };
        let sample = stats.keep_samples().next().is_multiple_of(one_in);
        let fits = room.pool.owned() < room.pool.limit();
        let few = self.kept.load(Ordering::Relaxed) < u64::from(room.frames.limit() / KEPT_SHARE);
        let true_mostly = score >= 0 || sample || !is_on(Rule::KeptScore);
        is_on(Rule::KeptRecords) && fits && true_mostly && (run >= 8 || few)
    }

    /// A kept record was found unchanged (or not) when its page went out.
    pub fn kept_was(&self, clean: bool) {
        let s = self.keep_score.load(Ordering::Relaxed);
        let next = if clean { (s + 1).min(KEEP_BOUND) } else { (s - 1).max(-KEEP_BOUND) };
        self.keep_score.store(next, Ordering::Relaxed);
    }

    /// Counts pages that gained (or lost) a kept record.
    pub fn count_kept(&self, delta: i64) {
        self.kept.fetch_add(delta as u64, Ordering::Relaxed);
    }

    /// Pages in frames with a kept record.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Pooled pages that are in the swap file as well.
    pub fn doubled(&self) -> u64 {
        self.swapping.as_ref().map_or(0, Swapping::doubled)
    }

    /// Whether the slots of pages that have another copy are worth their place in the swap file.
    pub fn keeps_slots(&self) -> bool {
        self.swapping.as_ref().is_some_and(Swapping::keeps_slots)
    }

    /// Pooled pages that are not in the swap file, and the bytes of their records, about.
    pub fn unwritten(&self, stats: &Stats) -> (u64, u64) {
        let records = stats.pool_logical_bytes().get() / PAGE_BYTES as u64;
        let stored = stats.pool_stored_bytes().get();
        let pages = records.saturating_sub(self.kept() + self.doubled());
        (pages, (stored / records.max(1)) * pages)
    }

    /// A page of the block has gone to the pool: some day it is written to the swap file.
    #[inline]
    pub fn note_pooled(&self, table: &PageTable, stats: &Stats, block: BlockId) {
        if let Some(s) = &self.swapping {
            let locked = s.cold.push(table, List::Cold, block);
            stats.out_queue_locks().count(locked.into());
        }
    }

    /// A pooled page of the block has been written through.
    pub fn note_written(&self, table: &PageTable, stats: &Stats, block: BlockId) {
        if let Some(s) = &self.swapping {
            let locked = s.cold.push(table, List::Written, block);
            stats.out_queue_locks().count(locked.into());
        }
    }

    /// Frees a slot that no word names any more; `was` named it.
    pub fn free_slot(&self, was: Word, slot: SwapSlot) {
        let Some(s) = &self.swapping else { return };
        s.free(slot);
        if was.kept_slot().is_some() {
            s.count_kept(-1);
        } else if was.doubled() {
            s.count_doubled(-1);
        }
    }

    /// A pooled page that `tag` has written through has this slot from now on. False: it is not the page that
    /// was written, and the slot is the caller's to free.
    pub fn double(
        &self,
        table: &PageTable,
        held: &BlockGuard<'_>,
        page: PageId,
        found: Word,
        slot: SwapSlot,
        tag: u8,
    ) -> bool {
        let Some(s) = &self.swapping else { return false };
        let done = table.word(page).try_double(found, tag).is_ok();
        if done {
            table.set_aux(held, page, slot.0.into());
            s.count_doubled(1);
        }
        done
    }

    /// A staged page whose kept slot is still true is pooled again, with this record.
    pub fn store_doubled(
        &self,
        table: &PageTable,
        held: &BlockGuard<'_>,
        page: PageId,
        found: Word,
        handle: Handle,
    ) {
        let (Some(s), Some(slot)) = (&self.swapping, found.kept_slot()) else { return };
        table.set_aux(held, page, slot.0.into());
        if table.word(page).try_store_doubled(found, handle).is_ok() {
            s.count_kept(-1);
            s.count_doubled(1);
        }
    }

    /// Whether a block with pooled pages is in no queue from which they would be written or given up.
    pub fn is_forgotten(&self, table: &PageTable, held: &BlockGuard<'_>) -> bool {
        let waits = self.swapping.as_ref().is_none_or(|s| s.cold.has(table, held.block()));
        !waits && table.in_state(held, u64::MAX, State::Pooled) != 0
    }
}
