//! The copies of a page's bytes outside its frame: a record in the pool, a slot of the swap file, or both.
//! Which there are is in the page's two words; here they are given up, and counted.

use super::Core;
use crate::door::Pager;
use crate::page::cold::List;
use crate::page::state::{State, Word};
use crate::page::table::BlockGuard;
use crate::page::{BlockId, Handle, PageId, SwapSlot};
use crate::stats;
use weir_os::mem::PAGE_BYTES;

/// What stays, as a kept copy with its hash, when a page comes in from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// Its record.
    Record(u64),
    /// Its slot: of a doubled page.
    FrameId(u64),
}

impl<P: Pager> Core<P> {
    /// A page of the block has gone to the pool: some day it is written to the swap file.
    #[inline]
    pub fn note_pooled(&self, block: BlockId) {
        if let Some(s) = &self.swapping {
            let locked = s.cold.push(&self.table, List::Cold, block);
            self.stats.out_queue_locks().count(locked.into());
        }
    }

    /// A pooled page of the block has been written through.
    pub fn note_written(&self, block: BlockId) {
        if let Some(s) = &self.swapping {
            let locked = s.cold.push(&self.table, List::Written, block);
            self.stats.out_queue_locks().count(locked.into());
        }
    }

    /// Gives up the copies that a page's word named before: pool record, slot, or both, its only ones or
    /// kept.
    pub fn free_copy(&self, held: &BlockGuard<'_>, page: PageId, was: Word) {
        held.has(page);
        if let Some(handle) = was.handle() {
            self.free_record(handle);
        }
        if was.kept().is_some() {
            self.count_kept(-1);
        }
        if let Some(slot) = self.table.slot_of(page, was) {
            self.free_slot(was, slot);
        }
    }

    fn free_slot(&self, was: Word, slot: SwapSlot) {
        let Some(s) = &self.swapping else { return };
        s.free(slot);
        if was.kept_slot().is_some() {
            s.count_kept(-1);
        } else if was.doubled() {
            s.count_doubled(-1);
        }
    }

    /// Frees a pool record that no word names any more.
    pub fn free_record(&self, handle: Handle) {
        self.pool.free(&self.pager, &self.frames, &self.stats, handle);
    }

    /// A page's slot is given up that is not its only copy: kept, or of a doubled page. False when it has
    /// none.
    pub fn give_up_slot(&self, held: &BlockGuard<'_>, page: PageId, found: Word) -> bool {
        let word = self.table.word(page);
        if found.doubled() {
            let slot = self.table.slot_of(page, found);
            let given = word.try_undouble(found).is_ok();
            if let (true, Some(slot)) = (given, slot) {
                self.free_slot(found, slot);
            }
            return given;
        }
        let given = found.kept_slot().is_some() && word.try_drop_kept(found).is_ok();
        if given {
            self.free_copy(held, page, found);
        }
        given
    }

    /// A pooled page that `tag` has written through has this slot from now on. False: it is not the page that
    /// was written, and the slot is the caller's to free.
    pub fn double(&self, held: &BlockGuard<'_>, page: PageId, found: Word, slot: SwapSlot, tag: u8) -> bool {
        let Some(s) = &self.swapping else { return false };
        let done = self.table.word(page).try_double(found, tag).is_ok();
        if done {
            self.table.set_aux(held, page, slot.0.into());
            s.count_doubled(1);
        }
        done
    }

    /// A staged page whose kept slot is still true is pooled again, with this record.
    pub fn store_doubled(&self, held: &BlockGuard<'_>, page: PageId, found: Word, handle: Handle) {
        let (Some(s), Some(slot)) = (&self.swapping, found.kept_slot()) else { return };
        self.table.set_aux(held, page, slot.0.into());
        if self.table.word(page).try_store_doubled(found, handle).is_ok() {
            s.count_kept(-1);
            s.count_doubled(1);
        }
    }

    /// A doubled page gives its record up: it is in the swap file alone, and nothing was written. False when
    /// it is none.
    pub fn evict(&self, held: &BlockGuard<'_>, page: PageId, found: Word) -> bool {
        held.has(page);
        let (Some(s), Some(handle)) = (&self.swapping, found.handle()) else { return false };
        let Some(slot) = self.table.slot_of(page, found) else { return false };
        let done = self.table.word(page).try_evict(found, slot).is_ok();
        if done {
            self.free_record(handle);
            s.count_doubled(-1);
            stats::add(&self.stats.swap_evicted_free, 1);
        }
        done
    }

    /// Whether the slots of pages that have another copy are worth their place in the swap file.
    pub fn keeps_slots(&self) -> bool {
        self.swapping.as_ref().is_some_and(|s| s.keeps_slots())
    }

    /// A pooled page is mapped: its word, and what becomes of its copies.
    pub fn installed_from_pool(&self, held: &BlockGuard<'_>, page: PageId, found: Word, keep: Keep) {
        self.stats.pool_in().add(1);
        let word = self.table.word(page);
        match (keep, self.table.slot_of(page, found), &self.swapping) {
            (Keep::FrameId(hash), Some(slot), Some(s)) => {
                if word.try_install_doubled(found, slot).is_ok() {
                    self.table.set_aux(held, page, hash);
                    found.handle().into_iter().for_each(|h| self.free_record(h));
                    s.count_doubled(-1);
                    s.count_kept(1);
                }
            }
            (Keep::Record(hash), slot, _) => {
                if word.try_install(found, true).is_ok() {
                    slot.into_iter().for_each(|slot| self.free_slot(found, slot));
                    self.table.set_aux(held, page, hash);
                    self.count_kept(1);
                }
            }
            _ => {
                if word.try_install(found, false).is_ok() {
                    self.free_copy(held, page, found);
                }
            }
        }
    }

    /// Pooled pages that are not in the swap file, and the bytes of their records, about.
    pub fn unwritten(&self) -> (u64, u64) {
        let records = self.stats.pool_logical_bytes().get() / PAGE_BYTES as u64;
        let stored = self.stats.pool_stored_bytes().get();
        let pages = records.saturating_sub(self.kept() + self.doubled());
        (pages, (stored / records.max(1)) * pages)
    }

    /// Pooled pages that are in the swap file as well.
    pub fn doubled(&self) -> u64 {
        self.swapping.as_ref().map_or(0, |s| s.doubled())
    }

    /// Whether a block with pooled pages is in no queue from which they would be written or given up.
    pub(super) fn is_forgotten(&self, held: &BlockGuard<'_>) -> bool {
        let waits = self.swapping.as_ref().is_none_or(|s| s.cold.has(&self.table, held.block()));
        !waits && self.table.in_state(held, u64::MAX, State::Pooled) != 0
    }
}
