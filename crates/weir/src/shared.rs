//! What both paths share. `fault` and `reclaim` meet here and in the page words, never in each other.
//!
//! [`Core`] is put together of views, each with a file of its own: the [`Ledger`] (what RAM the engine may
//! hold), the [`Room`] (frames and pool), the [`Copies`] (kept records and the swap file), the [`Census`]
//! (how many pages there are of which kind). A function that needs one of them takes that one, so its
//! signature says what it may touch. What takes several is here.

pub mod balance;
pub mod census;
pub mod copies;
pub mod ledger;
pub mod room;
pub mod staged;
pub mod swapping;

use crate::admission::Admission;
use crate::config::{Codec as CodecSetting, Cold, UNMAP_BATCH_MAX};
use crate::door::Pager;
use crate::error::StartError;
use crate::frames::Frames;
use crate::limits::{ARENA_PER_BUDGET, FIXED_OVERHEAD_BYTES, LIFT_BLOCKS, STORE_PER_HOLD};
use crate::meter::Meter;
use crate::page::holds::Holds;
use crate::page::id::BLOCK_PAGES;
use crate::page::pins::Pins;
use crate::page::resident::ResidentSet;
use crate::page::state::Word;
use crate::page::table::{BlockGuard, CHARGED_BLOCKS, PageTable};
use crate::page::{BlockId, PageId};
use crate::policy::recompress::ColdWalk;
use crate::stats::{self, Stats};
use crate::sync::Ordering;
use crate::tier::pool::Pool;
use census::{Census, Counted};
use copies::{Copies, Keep};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use ledger::{Excess, Ledger};
use room::Room;
use staged::StagedQueue;
use std::sync::Mutex;
use swapping::Swapping;
use weir_os::mem::PAGE_BYTES;

/// Sizes of an engine, in pages, frames and windows, derived from a budget.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Pages of the managed space.
    pub pages: u32,
    /// Windows of the frame arena.
    pub windows: u32,
    /// Windows beyond those, into which pages are lifted; 0: no lifting.
    pub lift_windows: u32,
    /// Budget in bytes.
    pub budget_bytes: u64,
    /// Largest share of the frames that the pool may take, in percent.
    pub pool_max_percent: u32,
}

impl Geometry {
    /// Frames that the budget allows before any metadata is touched.
    pub fn frames(budget_bytes: u64) -> u32 {
        ((budget_bytes - FIXED_OVERHEAD_BYTES) / PAGE_BYTES as u64).min(u64::from(u32::MAX / 8)) as u32
    }

    /// Windows of an arena for this budget.
    pub fn arena_windows(budget_bytes: u64) -> u32 {
        (((u64::from(Self::frames(budget_bytes)) * ARENA_PER_BUDGET).div_ceil(u64::from(BLOCK_PAGES))) as u32)
            .next_multiple_of(LIFT_BLOCKS)
    }
}

/// The shared state.
#[derive(Debug)]
pub struct Core<P: Pager> {
    /// The door to the kernel.
    pub pager: P,
    /// Words and rows.
    pub table: PageTable,
    /// The budget, and what is charged to it.
    pub ledger: Ledger,
    /// Frames, the pool, marks.
    pub room: Room,
    /// Kept records, and the swap file.
    pub copies: Copies<P::Disk>,
    /// Gauges of pages.
    pub census: Census,
    /// Counters.
    pub stats: Stats,
    /// Blocks with resident pages.
    pub resident: ResidentSet,
    /// Blocks with staged pages, oldest first.
    pub staged: StagedQueue,
    /// Pages that system calls are using.
    pub pins: Pins,
    /// Those of small ones.
    pub holds: Holds,
    /// Which pages are worth a frame.
    pub admission: Admission,
    /// The program's time between its faults.
    pub meter: Meter,
    /// The walk over cold pages of the pool.
    pub cold_walk: Mutex<ColdWalk>,
    /// Counts pages that did not compress last time: now and then one is tried again.
    pub untried: AtomicU32,
    /// Seed of the content hash.
    pub seed: u64,
    /// Codec setting.
    pub codec: CodecSetting,
    /// Most pages unmapped by one system call; up to a block, none are lifted.
    pub unmap_batch: u32,
    /// Most pages that leave their frames under one hold of their block's lock.
    pub store_batch: u32,
    /// Loads may be answered.
    pub answers_loads: bool,
    /// What is done with cold pages of the pool.
    pub cold: Cold,
    /// How readily memory gives way to mapped files, 0 to 200.
    pub swappiness: u64,
    /// It gives way as far as there is room for it; otherwise whatever there is.
    pub balance_by_room: bool,
    /// There are files that can give way, and no room for memory.
    files_first: AtomicBool,
    /// Of the pages that the pool took, and did not, those that say nothing any more.
    forgot: [AtomicU64; 2],
}

impl<P: Pager> Core<P> {
    /// Builds the state for a pager whose space and arena have the geometry's sizes.
    pub fn new(pager: P, g: Geometry, seed: u64, codec: CodecSetting) -> Result<Core<P>, StartError> {
        let memory = StartError::Memory;
        let limit = Geometry::frames(g.budget_bytes);
        let frames = Frames::new(g.windows, g.lift_windows, limit).map_err(memory)?;
        let pool = Pool::new(g.windows, 0).map_err(memory)?;
        let core = Core {
            pager,
            table: PageTable::new(g.pages as usize).map_err(memory)?,
            ledger: Ledger::new(g.budget_bytes),
            room: Room::new(frames, pool, g.pool_max_percent),
            copies: Copies::default(),
            census: Census::default(),
            stats: Stats::default(),
            resident: ResidentSet::default(),
            staged: StagedQueue::new(g.windows + g.lift_windows).map_err(memory)?,
            pins: Pins::new().map_err(memory)?,
            holds: Holds::default(),
            admission: Admission::new(limit).map_err(memory)?,
            meter: Meter::default(),
            cold_walk: Mutex::default(),
            untried: AtomicU32::new(0),
            seed,
            codec,
            unmap_batch: UNMAP_BATCH_MAX.into(),
            store_batch: STORE_PER_HOLD,
            answers_loads: true,
            cold: Cold::Keep,
            swappiness: 0,
            balance_by_room: true,
            files_first: AtomicBool::new(false),
            forgot: [const { AtomicU64::new(0) }; 2],
        };
        core.ledger.charge(core.admission.bytes());
        core.stats.budget_bytes.store(g.budget_bytes, Ordering::Relaxed);
        core.room.follow(&core.ledger);
        if codec == CodecSetting::Zstd {
            core.charge_zstd();
        }
        Ok(core)
    }

    /// Adds a swap file, before anybody else knows the state.
    pub fn attach_swap(&mut self, swapping: Swapping<P::Disk>) {
        self.ledger.charge(swapping.overhead_bytes());
        self.copies.swapping = Some(swapping);
        self.resident.let_left_over_go();
        self.room.follow(&self.ledger);
    }

    /// Something was charged: that many fewer frames.
    fn pay(&self) {
        self.room.follow(&self.ledger);
        self.room.shed_excess(&self.pager);
    }

    /// Charges rows of the slot table that were touched for the first time.
    pub fn charge_slots(&self) {
        let bytes = self.copies.swapping.as_ref().map_or(0, Swapping::uncharged_bytes);
        if bytes > 0 {
            self.ledger.charge_unseen(bytes); // shared with children
            self.pay();
        }
    }

    /// Charges the contexts of zstd, before they are used.
    pub fn charge_zstd(&self) {
        if self.ledger.charge_zstd() {
            self.pay();
        }
    }

    /// Charges a block's metadata to the budget at its first touch, with that of the blocks whose rows lie in
    /// the same pages.
    #[inline]
    pub fn charge(&self, block: BlockId) {
        if self.table.block(BlockId(block.0 / CHARGED_BLOCKS * CHARGED_BLOCKS)).charge_once() {
            self.table.touch(block);
            self.ledger.charge_blocks(CHARGED_BLOCKS);
            self.pay();
        }
    }

    /// Charges (or refunds) the rows of mapped pages, which are written when they are mapped.
    pub fn charge_rows(&self, pages: i64) {
        self.ledger.charge_rows(pages);
        self.pay();
    }

    /// RAM held: frames wherever they are, and metadata.
    pub fn resident_bytes(&self) -> u64 {
        u64::from(self.room.frames.existing()) * PAGE_BYTES as u64 + self.ledger.metadata_bytes()
    }

    /// What the engine holds, as far as the kernel counts it as anonymous memory of this process.
    pub fn anon_bytes(&self) -> u64 {
        self.resident_bytes().saturating_sub(self.ledger.unseen_bytes())
    }

    /// From now on the RAM in all may be so many bytes, but not more than the engine was made for. More at
    /// once; less as soon as as many frames have become free.
    pub fn set_budget(&self, bytes: u64) {
        let bytes = self.ledger.set_budget(bytes);
        self.stats.budget_bytes.store(bytes, Ordering::Relaxed);
        self.follow();
    }

    /// The limit becomes what the budget leaves.
    fn follow(&self) {
        if self.ledger.follow() {
            self.pay();
            self.room.kick_if_low();
        }
        self.stats.limit_bytes.store(self.ledger.limit_bytes(), Ordering::Relaxed);
    }

    /// There are so many bytes of anonymous memory outside: the limit follows. Says once if they leave too
    /// little.
    pub fn note_outside(&self, outside: u64, now_ns: u64) -> Option<Excess> {
        let _measured = self.ledger.note_outside(outside, now_ns)?;
        self.follow();
        let s = &self.stats;
        s.outside_bytes.store(outside, Ordering::Relaxed);
        s.outside_bytes_peak.fetch_max(outside, Ordering::Relaxed);
        self.note_total();
        self.ledger.excess(outside)
    }

    /// RAM in all: outside, files and what the engine holds.
    fn note_total(&self) {
        let s = &self.stats;
        let beside = s.outside_bytes.load(Ordering::Relaxed) + s.files_bytes.load(Ordering::Relaxed);
        s.total_bytes_peak.fetch_max(beside + self.resident_bytes(), Ordering::Relaxed);
    }

    /// What the program has does not fit into a limit that memory outside has lowered: it is raised a little,
    /// because the program would end otherwise. False where it is the budget already.
    pub fn concede(&self) -> bool {
        let conceded = self.ledger.concede();
        if conceded {
            self.follow();
        }
        conceded
    }

    /// The pages of a block that system calls are using.
    pub fn in_use(&self, held: &BlockGuard<'_>) -> u64 {
        self.pins.of_block(held) | self.holds.of_block(held.block())
    }

    /// What the pool's records take of their pages, in percent, if there are any: an eighth more than the
    /// records themselves, for classes and partly filled spans.
    fn pool_ratio_percent(&self) -> Option<u64> {
        let logical = self.stats.pool_logical_bytes().get();
        (self.stats.pool_stored_bytes().get() * 112).checked_div(logical).map(|ratio| ratio.clamp(5, 100))
    }

    /// Whether nothing new should be taken: what is resident could no longer all be compressed
    /// into what is left, at the ratio seen so far, nor the rest of it go to the swap file.
    pub fn full(&self) -> bool {
        let swapping = self.copies.swapping.as_ref().filter(|s| s.usable());
        let seen = self.pool_ratio_percent();
        if seen.is_none() && swapping.is_none() {
            return false;
        }
        // Those that the limit allows, or more.
        let frames = self.ledger.frames_beside().max(self.room.frames.limit());
        let in_frames = u64::from(frames).saturating_sub(self.pool_pages());
        self.overflows(in_frames * seen.unwrap_or(100) / 100, frames)
    }

    /// Whether what there is would fit into a budget of so many bytes and what is left of the swap file, at
    /// the ratio seen so far. What did not compress, and all while nothing was compressed, counts whole.
    pub fn fits_into(&self, budget: u64) -> bool {
        let existing = u64::from(self.room.frames.existing());
        let in_frames = existing.saturating_sub(u64::from(self.room.frames.free()) + self.pool_pages());
        let stuck = &self.stats;
        let stuck = stuck.out_stuck.load(Ordering::Relaxed) + stuck.out_untried.load(Ordering::Relaxed);
        let stuck = stuck.min(in_frames);
        let packed = stuck + (in_frames - stuck) * self.pool_ratio_percent().unwrap_or(100) / 100;
        self.ledger.is_enough(budget) && !self.overflows(packed, self.ledger.frames_within(budget))
    }

    fn pool_pages(&self) -> u64 {
        u64::from(self.room.pool.owned()) * u64::from(BLOCK_PAGES)
    }

    /// Whether the pool and so many pages beside it fit neither into so many frames nor into the swap file.
    fn overflows(&self, pages: u64, frames: u32) -> bool {
        let swapping = self.copies.swapping.as_ref().filter(|s| s.usable());
        // Working room: what faults leave to the pool, a window coming in and one going out.
        let limit = u64::from(frames.saturating_sub(4 * BLOCK_PAGES));
        // Records that can be given up at no price.
        let ratio_percent = self.pool_ratio_percent().unwrap_or(100);
        let kept = (self.copies.kept() + self.copies.doubled()) * ratio_percent / 100;
        let wanted = self.pool_pages().saturating_sub(kept) + pages;
        let missing = wanted.saturating_sub(limit * 95 / 100);
        // What does not compress at all may be among it, and clusters are never full.
        let room = |s: &Swapping<P::Disk>| s.tier.free_bytes() / PAGE_BYTES as u64;
        missing > 0 && swapping.is_none_or(|s| room(s) < missing * 5 / 4 + limit / 8)
    }

    /// Gives up the copies that a page's word named before: pool record, slot, or both, its only ones or
    /// kept.
    pub fn free_copy(&self, held: &BlockGuard<'_>, page: PageId, was: Word) {
        held.has(page);
        if let Some(handle) = was.handle() {
            self.room.free_record(&self.pager, &self.stats, handle);
        }
        if was.kept().is_some() {
            self.copies.count_kept(-1);
        }
        if let Some(slot) = self.table.slot_of(page, was) {
            self.copies.free_slot(was, slot);
        }
    }

    /// A page's slot is given up that is not its only copy: kept, or of a doubled page. False when it has
    /// none.
    pub fn give_up_slot(&self, held: &BlockGuard<'_>, page: PageId, found: Word) -> bool {
        let word = self.table.word(page);
        if found.doubled() {
            let slot = self.table.slot_of(page, found);
            let given = word.try_undouble(found).is_ok();
            if let (true, Some(slot)) = (given, slot) {
                self.copies.free_slot(found, slot);
            }
            return given;
        }
        let given = found.kept_slot().is_some() && word.try_drop_kept(found).is_ok();
        if given {
            self.free_copy(held, page, found);
        }
        given
    }

    /// A doubled page gives its record up: it is in the swap file alone, and nothing was written. False when
    /// it is none.
    pub fn evict(&self, held: &BlockGuard<'_>, page: PageId, found: Word) -> bool {
        held.has(page);
        let (Some(s), Some(handle)) = (&self.copies.swapping, found.handle()) else { return false };
        let Some(slot) = self.table.slot_of(page, found) else { return false };
        let done = self.table.word(page).try_evict(found, slot).is_ok();
        if done {
            self.room.free_record(&self.pager, &self.stats, handle);
            s.count_doubled(-1);
            stats::add(&self.stats.swap_evicted_free, 1);
        }
        done
    }

    /// A pooled page is mapped: its word, and what becomes of its copies.
    pub fn installed_from_pool(&self, held: &BlockGuard<'_>, page: PageId, found: Word, keep: Keep) {
        self.stats.pool_in().add(1);
        let word = self.table.word(page);
        match (keep, self.table.slot_of(page, found), &self.copies.swapping) {
            (Keep::Slot(hash), Some(slot), Some(s)) => {
                if word.try_install_doubled(found, slot).is_ok() {
                    self.table.set_aux(held, page, hash);
                    let record = found.handle().into_iter();
                    record.for_each(|h| self.room.free_record(&self.pager, &self.stats, h));
                    s.count_doubled(-1);
                    s.count_kept(1);
                }
            }
            (Keep::Record(hash), slot, _) => {
                if word.try_install(found, true).is_ok() {
                    slot.into_iter().for_each(|slot| self.copies.free_slot(found, slot));
                    self.table.set_aux(held, page, hash);
                    self.copies.count_kept(1);
                }
            }
            _ => {
                if word.try_install(found, false).is_ok() {
                    self.free_copy(held, page, found);
                }
            }
        }
    }

    /// Brings the gauges in the statistics up to date.
    pub fn publish(&self) {
        let held = self.resident_bytes();
        self.census.publish(&self.stats, &self.pager, &self.room, &self.copies, held);
    }

    /// Derives every counter again from the words of the first `pages` pages and compares. Call when
    /// nobody is inside and nothing lies beyond.
    pub fn validate(&self, pages: u32) -> Result<Counted, &'static str> {
        self.validate_in(0..pages.div_ceil(BLOCK_PAGES))
    }

    /// The same from the words of these blocks, where nothing lies elsewhere.
    pub fn validate_in(&self, blocks: core::ops::Range<u32>) -> Result<Counted, &'static str> {
        self.census.validate(blocks, &self.table, &self.staged, &self.room, &self.copies)
    }
}

/// Counts one exit.
#[inline]
pub fn count(counter: &AtomicU64, n: u32) {
    if n > 0 {
        stats::add(counter, u64::from(n));
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::BUDGET_BYTES_MIN;
    use crate::sim::World;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_budget_changes_while_the_engine_runs_within_what_it_was_made_for() {
        let budget = 16 * MIB;
        let core = World::budget(16).core();
        while core.room.frames.grow(&core.pager).unwrap() > 0 {}
        let frames = core.room.frames.existing();
        core.set_budget(12 * MIB);
        assert!(core.resident_bytes() <= 12 * MIB && core.room.frames.existing() + 1024 == frames);
        assert_eq!(core.note_outside(2 * MIB, 1), None);
        assert_eq!(core.ledger.limit_bytes(), 10 * MIB);
        core.set_budget(14 * MIB);
        assert_eq!(core.ledger.limit_bytes(), 12 * MIB);
        core.set_budget(1);
        assert_eq!((core.ledger.budget_bytes(), core.ledger.limit_bytes()), (BUDGET_BYTES_MIN, 6 * MIB));
        core.set_budget(1 << 40);
        assert_eq!((core.ledger.budget_bytes(), core.ledger.limit_bytes()), (budget, 14 * MIB));
        while core.room.frames.grow(&core.pager).unwrap() > 0 {}
        assert_eq!(core.room.frames.existing() + 512, frames);
        core.validate(1024).unwrap();
    }
}
