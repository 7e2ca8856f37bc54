//! What both paths share: the page table, the resident set, frames, pool, statistics and the pager.
//! `fault` and `reclaim` meet here and in the page words, never in each other.

pub mod copies;
pub mod limit;
pub mod outside;
pub mod swapping;

use crate::admission::Admission;
use crate::config::rules::{Rule, is_on};
use crate::config::{Codec as CodecSetting, Cold, UNMAP_BATCH_MAX};
use crate::demand::Demand;
use crate::door::Pager;
use crate::error::StartError;
use crate::frames::Frames;
use crate::limits::{
    ARENA_PER_BUDGET, CREDIT_KEPT, FIXED_OVERHEAD_BYTES, FREE_FLOOR, FREE_HIGH_FACTOR, FREE_LOW_MIN,
    FREE_LOW_SHARE, GROW_AHEAD, KEPT_SHARE, LIFT_BLOCKS, NEW_FRAMES_LEAVE, OWN_SHARE, SHED_A_LITTLE,
    STAGED_SHARE, STORE_PER_HOLD,
};
use crate::meter::Meter;
use crate::page::BlockId;
use crate::page::holds::Holds;
use crate::page::id::BLOCK_PAGES;
use crate::page::pins::Pins;
use crate::page::resident::ResidentSet;
use crate::page::state::{State, transitions_missed};
use crate::page::table::{BLOCK_METADATA_BYTES, BlockGuard, CHARGED_BLOCKS, PageTable};
use crate::policy::pool_size::Size;
use crate::policy::recompress::ColdWalk;
use crate::stats::{self, Stats};
use crate::sync::{self, Lock, Ordering};
use crate::tier::pool::Pool;
use crate::trials::Trials;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use outside::Limit;
use std::sync::Mutex;
use swapping::Swapping;
use weir_os::codec::zstd::CONTEXTS_BYTES;
use weir_os::mem::{PAGE_BYTES, Table};
use weir_os::shards::Line;
use weir_os::thread;

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

/// Bytes of a block's row.
const ROW_BYTES: i64 = 64;

/// The shared state.
#[derive(Debug)]
pub struct Core<P: Pager> {
    /// The door to the kernel.
    pub pager: P,
    /// Words and rows.
    pub table: PageTable,
    /// Blocks with resident pages.
    pub resident: ResidentSet,
    /// Pages that system calls are using.
    pub pins: Pins,
    /// Those of small ones.
    pub holds: Holds,
    /// The frame arena.
    pub frames: Frames,
    /// The compressed pool.
    pub pool: Pool,
    /// The swap file and who works with it, where there is one.
    pub swapping: Option<Swapping<P::Disk>>,
    /// Counters.
    pub stats: Stats,
    /// Blocks with staged pages, oldest first.
    pub staged: StagedQueue,
    /// Seed of the content hash.
    pub seed: u64,
    /// Codec setting.
    pub codec: CodecSetting,
    limit: Limit,
    pool_max_percent: u32,
    /// Windows that the pool may own, if its largest share allows them.
    pool_share: AtomicU32,
    /// Since the last look at its share, pages had no other place than the pool.
    pool_needed: AtomicBool,
    metadata_bytes: AtomicU64,
    /// Positive while kept copies are mostly found unchanged.
    keep_score: AtomicI32,
    /// Pages in frames with a kept copy.
    kept: Line<AtomicU64>,
    /// Most pages unmapped by one system call; up to a block, none are lifted.
    pub unmap_batch: u32,
    /// Counts pages that did not compress last time: now and then one is tried again.
    pub untried: AtomicU32,
    /// Most pages that leave their frames under one hold of their block's lock.
    pub store_batch: u32,
    /// What faults ask for.
    pub demand: Demand,
    /// Whether bringing pages by nearness pays.
    pub trials: Trials,
    /// Loads may be answered.
    pub answers_loads: bool,
    /// What is done with cold pages of the pool.
    pub cold: Cold,
    /// The walk that does it.
    pub cold_walk: Mutex<ColdWalk>,
    /// The contexts of zstd are charged to the budget.
    zstd_charged: AtomicBool,
    /// Which pages are worth a frame.
    pub admission: Admission,
    /// The program's time between its faults.
    pub meter: Meter,
    /// Frames freed so far by anybody: whether there is progress.
    pub progress: Line<AtomicU64>,
    /// Pages locked in memory by the program.
    pub pinned: AtomicU64,
    /// Woken when the background reclaimer has work.
    pub kick: AtomicU32,
    /// Something was evicted once: memory is not plentiful.
    pub pressed: AtomicBool,
    /// A faulting thread is giving free frames back.
    shedding: AtomicBool,
}

/// Bound of the score that kept copies have.
const KEEP_BOUND: i32 = 256;

impl<P: Pager> Core<P> {
    /// Builds the state for a pager whose space and arena have the geometry's sizes.
    pub fn new(pager: P, g: Geometry, seed: u64, codec: CodecSetting) -> Result<Core<P>, StartError> {
        let memory = StartError::Memory;
        let limit = Geometry::frames(g.budget_bytes);
        let core = Core {
            pager,
            table: PageTable::new(g.pages as usize).map_err(memory)?,
            resident: ResidentSet::default(),
            pins: Pins::new().map_err(memory)?,
            holds: Holds::default(),
            frames: Frames::new(g.windows, g.lift_windows, limit).map_err(memory)?,
            pool: Pool::new(g.windows, 0).map_err(memory)?,
            swapping: None,
            stats: Stats::default(),
            staged: StagedQueue::new(g.windows + g.lift_windows).map_err(memory)?,
            seed,
            codec,
            limit: Limit::new(g.budget_bytes),
            pool_max_percent: g.pool_max_percent,
            pool_share: AtomicU32::new(u32::MAX),
            pool_needed: AtomicBool::new(false),
            metadata_bytes: AtomicU64::new(0),
            keep_score: AtomicI32::new(0),
            kept: Line::default(),
            unmap_batch: UNMAP_BATCH_MAX.into(),
            untried: AtomicU32::new(0),
            store_batch: STORE_PER_HOLD,
            demand: Demand::default(),
            trials: Trials::default(),
            answers_loads: true,
            cold: Cold::Keep,
            cold_walk: Mutex::default(),
            zstd_charged: AtomicBool::new(false),
            admission: Admission::new(limit).map_err(memory)?,
            meter: Meter::default(),
            progress: Line::default(),
            pinned: AtomicU64::new(0),
            kick: AtomicU32::new(0),
            pressed: AtomicBool::new(false),
            shedding: AtomicBool::new(false),
        };
        core.metadata_bytes.store(core.admission.bytes(), Ordering::Relaxed);
        core.stats.budget_bytes.store(g.budget_bytes, Ordering::Relaxed);
        core.apply_limits();
        if codec == CodecSetting::Zstd {
            core.charge_zstd();
        }
        Ok(core)
    }

    /// Adds a swap file, before anybody else knows the state.
    pub fn attach_swap(&mut self, swapping: Swapping<P::Disk>) {
        self.metadata_bytes.fetch_add(swapping.overhead_bytes(), Ordering::Relaxed);
        self.swapping = Some(swapping);
        self.resident.let_left_over_go();
        self.apply_limits();
    }

    /// Charges rows of the slot table that were touched for the first time.
    pub fn charge_slots(&self) {
        let bytes = self.swapping.as_ref().map_or(0, Swapping::uncharged_bytes);
        if bytes > 0 {
            self.note_unseen(bytes); // shared with children
            self.metadata_bytes.fetch_add(bytes, Ordering::SeqCst);
            self.apply_limits();
            self.shed_excess();
        }
    }

    /// Charges the contexts of zstd, before they are used.
    pub fn charge_zstd(&self) {
        if !self.zstd_charged.swap(true, Ordering::Relaxed) {
            self.metadata_bytes.fetch_add(CONTEXTS_BYTES, Ordering::SeqCst);
            self.apply_limits();
            self.shed_excess();
        }
    }

    /// Most windows that the pool may ever own.
    pub fn pool_most(&self) -> u32 {
        self.frames.limit() / BLOCK_PAGES * self.pool_max_percent / 100
    }

    /// From now on the pool may be so large, if its largest share allows it.
    pub fn share_pool(&self, size: Size) {
        let windows = match size {
            Size::All => u32::MAX,
            Size::Windows(n) => n,
        };
        if self.pool_share.swap(windows, Ordering::SeqCst) != windows {
            self.apply_limits();
        }
    }

    /// Pages have no other place than the pool for now: it may have all it ever may.
    pub fn need_pool(&self) {
        self.pool_needed.store(true, Ordering::SeqCst);
        self.share_pool(Size::All);
    }

    /// Whether that was so since the last call of [`Core::take_pool_needed`].
    pub fn is_pool_needed(&self) -> bool {
        self.pool_needed.load(Ordering::SeqCst)
    }

    /// Whether that was so since the last call.
    pub fn take_pool_needed(&self) -> bool {
        self.pool_needed.swap(false, Ordering::SeqCst)
    }

    /// The limit has fallen: as many frames go back to the kernel, if they are free. If they are not, they go
    /// with the next that become free: faults leave them alone, see [`Core::available`].
    pub fn shed_excess(&self) {
        if self.frames.existing() > self.frames.limit() {
            self.frames.shed_excess(&self.pager);
        }
    }

    /// Charges a block's metadata to the budget at its first touch, with that of the blocks whose rows lie in
    /// the same pages: that many fewer frames.
    #[inline]
    pub fn charge(&self, block: BlockId) {
        if self.table.block(BlockId(block.0 / CHARGED_BLOCKS * CHARGED_BLOCKS)).charge_once() {
            self.table.touch(block);
            let bytes = u64::from(CHARGED_BLOCKS) * BLOCK_METADATA_BYTES;
            self.note_entries(CHARGED_BLOCKS);
            self.metadata_bytes.fetch_add(bytes, Ordering::SeqCst);
            self.apply_limits();
            self.shed_excess();
        }
    }

    /// Charges (or refunds) the rows of mapped pages, which are written when they are mapped.
    pub fn charge_rows(&self, pages: i64) {
        let bytes = pages * ROW_BYTES / i64::from(BLOCK_PAGES);
        let change = |b: u64| Some(b.saturating_add_signed(bytes));
        let _ = self.metadata_bytes.fetch_update(Ordering::SeqCst, Ordering::Relaxed, change);
        self.apply_limits();
        self.shed_excess();
    }

    /// Whether the rows of a mapping of this length would cost less than an eighth of the budget, and less
    /// than half together with all metadata there is.
    pub fn rows_fit(&self, len: usize) -> bool {
        let bytes = (len / (PAGE_BYTES * BLOCK_PAGES as usize)) as u64 * (ROW_BYTES as u64);
        let all = bytes + self.metadata_bytes.load(Ordering::Relaxed);
        bytes < self.budget_bytes() / 8 && (bytes == 0 || all < self.budget_bytes() / 2)
    }

    /// RAM held: frames wherever they are, and metadata.
    pub fn resident_bytes(&self) -> u64 {
        u64::from(self.frames.existing()) * PAGE_BYTES as u64
            + self.metadata_bytes.load(Ordering::Relaxed)
            + FIXED_OVERHEAD_BYTES
    }

    /// Free frames at which the background reclaimer starts.
    pub fn low_mark(&self) -> u32 {
        (self.frames.limit() / FREE_LOW_SHARE).max(FREE_LOW_MIN)
    }

    /// Frames that the limit leaves to what is not the pool's.
    pub fn frames_outside_pool(&self) -> u32 {
        self.frames.limit().saturating_sub(self.pool.owned() * BLOCK_PAGES)
    }

    /// Free frames below which faulting threads make room by themselves: with fewer none could be given up
    /// for new ones.
    pub fn own_mark(&self) -> u32 {
        let sheds = FREE_FLOOR + 2 * BLOCK_PAGES;
        self.low_mark().max(sheds.min(self.frames.limit() / OWN_SHARE))
    }

    /// Free frames at which it starts and stops while faulting threads make room by themselves: it would only
    /// take their processors.
    pub fn crowded_mark(&self) -> u32 {
        self.low_mark() / 2
    }

    /// Free frames at which it stops.
    pub fn high_mark(&self) -> u32 {
        self.low_mark() * FREE_HIGH_FACTOR
    }

    /// Staged pages that make the second chance long enough.
    pub fn staged_mark(&self) -> u32 {
        if is_on(Rule::StagedShare) { self.frames.limit() / STAGED_SHARE } else { 0 }
    }

    /// Free frames plus those that may still be created, less those that exist beyond the limit and have to
    /// go.
    pub fn available(&self) -> u32 {
        (self.frames.free() + self.frames.limit()).saturating_sub(self.frames.existing())
    }

    /// Whether a page that comes in takes the place of another.
    pub fn is_tight(&self) -> bool {
        self.available() < 2 * self.high_mark()
    }

    /// Whether nothing was ever evicted: what comes in is new.
    pub fn is_plentiful(&self) -> bool {
        !self.pressed.load(Ordering::Relaxed)
    }

    /// Something is evicted: memory is not plentiful.
    pub fn press(&self) {
        // Every fault reads it: written once.
        if self.is_plentiful() {
            self.pressed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether what comes in gets new frames, and none is needed in the arena yet.
    pub fn takes_new_frames(&self) -> bool {
        // Frames that the program has freed are used again first.
        self.is_plentiful()
            && self.frames.credit() > NEW_FRAMES_LEAVE
            && self.frames.free() <= NEW_FRAMES_LEAVE
    }

    /// Turns free frames into room for new ones, or the reverse, as faults want it. Returns how many.
    pub fn balance(&self) -> u32 {
        let free = self.frames.free();
        if self.demand.wants_credit() {
            // With so much room no more is made: later it is more for the same flush.
            let enough = self.frames.credit() >= CREDIT_KEPT;
            return if enough { 0 } else { self.shed_spare(u32::MAX) };
        }
        if self.takes_new_frames() {
            return 0;
        }
        if free < self.frames_wanted() { self.frames.grow(&self.pager).unwrap_or(0) } else { 0 }
    }

    /// As [`Core::balance`], by a faulting thread: one at a time, and only so much that its fault does not
    /// last.
    pub fn balance_a_little(&self) {
        if !is_on(Rule::Release) || self.shedding.swap(true, Ordering::Acquire) {
            return; // there will be room soon
        }
        self.shed_spare(SHED_A_LITTLE);
        self.shedding.store(false, Ordering::Release);
    }

    /// Gives free frames above the floor back to the kernel, about `most` by one call. Returns how many.
    fn shed_spare(&self, most: u32) -> u32 {
        let spare = self.frames.free().saturating_sub(FREE_FLOOR);
        if spare < BLOCK_PAGES {
            return 0;
        }
        let start = thread::now_ns();
        let gone = self.frames.shed_windows(&self.pager, spare.min(most), 1);
        if gone > 0 {
            stats::add(&self.stats.shed_ns, thread::now_ns() - start);
            stats::add(&self.stats.sheds, 1);
        }
        gone
    }

    /// Free frames worth having while faults take runs.
    fn frames_wanted(&self) -> u32 {
        self.high_mark().clamp(FREE_FLOOR, GROW_AHEAD)
    }

    /// Wakes the background reclaimer if it has work.
    pub fn kick_if_low(&self) {
        if self.demand.crowded() && self.available() >= self.crowded_mark() {
            return;
        }
        let excess = self.frames.existing() > self.frames.limit();
        let unbalanced = match self.demand.wants_credit() {
            _ if self.takes_new_frames() => false,
            true => self.frames.credit() < BLOCK_PAGES && self.frames.free() > FREE_FLOOR + BLOCK_PAGES,
            false => self.frames.credit() > 0 && self.frames.free() < self.frames_wanted() / 2,
        };
        if (excess || unbalanced || self.available() < self.low_mark())
            && self.kick.load(Ordering::Relaxed) == 0
            && self.kick.swap(1, Ordering::AcqRel) == 0
        {
            thread::futex_wake(&self.kick, 1);
        }
    }

    /// Whether the pages of a run expanded from the pool keep their records, so that they can go out
    /// again for the price of a hash: while that guess mostly comes true, and, for single random
    /// faults, while few copies take room from frames.
    pub fn keeps_copies(&self, run: u32) -> bool {
        let score = self.keep_score.load(Ordering::Relaxed);
        // Samples are kept until their pages go out again, and take room meanwhile: few where there is little
        // hope.
        let one_in = if score < -KEEP_BOUND / 2 { 64 } else { 16 };
        let sample = self.stats.keep_samples().next().is_multiple_of(one_in);
        let room = self.pool.owned() < self.pool.limit();
        let few = self.kept.load(Ordering::Relaxed) < u64::from(self.frames.limit() / KEPT_SHARE);
        let true_mostly = score >= 0 || sample || !is_on(Rule::KeptScore);
        is_on(Rule::KeptRecords) && room && true_mostly && (run >= 8 || few)
    }

    /// A kept copy was found unchanged (or not) when its page went out.
    pub fn kept_was(&self, clean: bool) {
        let s = self.keep_score.load(Ordering::Relaxed);
        let next = if clean { (s + 1).min(KEEP_BOUND) } else { (s - 1).max(-KEEP_BOUND) };
        self.keep_score.store(next, Ordering::Relaxed);
    }

    /// Counts pages that gained (or lost) a kept copy.
    pub fn count_kept(&self, delta: i64) {
        self.kept.fetch_add(delta as u64, Ordering::Relaxed);
    }

    /// Pages in frames with a kept copy.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Counts pages that came to have contents (or lost them).
    pub fn count_managed(&self, delta: i64) {
        let bytes = delta * PAGE_BYTES as i64;
        let now =
            self.stats.managed_bytes.fetch_add(bytes as u64, Ordering::Relaxed).wrapping_add(bytes as u64);
        if delta > 0 {
            self.stats.managed_bytes_peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Blocks that the pages with contents would fill.
    pub fn blocks_in_use(&self) -> u64 {
        self.stats.managed_bytes.load(Ordering::Relaxed) / (u64::from(BLOCK_PAGES) * PAGE_BYTES as u64)
    }

    /// Brings the gauges in the statistics up to date.
    pub fn publish(&self) {
        let (s, held) = (&self.stats, self.resident_bytes());
        s.resident_bytes.store(held, Ordering::Relaxed);
        s.resident_bytes_peak.fetch_max(held, Ordering::Relaxed);
        let pool = u64::from(self.pool.owned()) * u64::from(BLOCK_PAGES) * PAGE_BYTES as u64;
        s.pool_bytes.store(pool, Ordering::Relaxed);
        let most = u64::from(self.pool.limit()) * u64::from(BLOCK_PAGES) * PAGE_BYTES as u64;
        s.pool_limit_bytes.store(most, Ordering::Relaxed);
        s.pager_calls.store(self.pager.calls(), Ordering::Relaxed);
        s.moves_untold.store(self.pager.untold(), Ordering::Relaxed);
        s.transitions_missed.store(transitions_missed(), Ordering::Relaxed);
        let (zstd, zstd_in) = self.pool.zstd_records();
        s.zstd_pages.store(zstd, Ordering::Relaxed);
        s.zstd_in.store(zstd_in, Ordering::Relaxed);
        let (waits, ns) = sync::waits();
        s.lock_waits.store(waits, Ordering::Relaxed);
        s.lock_wait_ns.store(ns, Ordering::Relaxed);
        if let Some(swapping) = &self.swapping {
            let counters = swapping.tier.counters();
            s.swap_in.store(counters.pages_in.load(Ordering::Relaxed), Ordering::Relaxed);
            s.swap_out.store(counters.pages_out.load(Ordering::Relaxed), Ordering::Relaxed);
            s.swap_doubled.store(swapping.doubled(), Ordering::Relaxed);
            s.policy.store(swapping.writes_through().into(), Ordering::Relaxed);
            s.swap_io_ns.store(swapping.io_ns.load(Ordering::Relaxed), Ordering::Relaxed);
            s.swap_bytes.store(swapping.tier.live_bytes(), Ordering::Relaxed);
            s.swap_free_bytes.store(swapping.tier.free_bytes(), Ordering::Relaxed);
        }
        s.note_fullest();
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
        let swapping = self.swapping.as_ref().filter(|s| s.usable());
        let seen = self.pool_ratio_percent();
        if seen.is_none() && swapping.is_none() {
            return false;
        }
        let pool = u64::from(self.pool.owned()) * u64::from(BLOCK_PAGES);
        let frames = self.frames_to_be_had();
        // Working room: what faults leave to the pool, a window coming in and one going out.
        let limit = u64::from(frames.saturating_sub(4 * BLOCK_PAGES));
        let in_frames = u64::from(frames).saturating_sub(pool);
        let ratio_percent = seen.unwrap_or(100);
        // Records that can be given up at no price.
        let kept = (self.kept() + self.doubled()) * ratio_percent / 100;
        let wanted = pool.saturating_sub(kept) + in_frames * ratio_percent / 100;
        let missing = wanted.saturating_sub(limit * 95 / 100);
        // What does not compress at all may be among it, and clusters are never full.
        let room = |s: &Swapping<P::Disk>| s.tier.free_bytes() / PAGE_BYTES as u64;
        missing > 0 && swapping.is_none_or(|s| room(s) < missing * 5 / 4 + limit / 8)
    }
}

/// What [`Core::validate`] counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Pages mapped in the program.
    pub resident: u64,
    /// Pages unmapped, still in a frame.
    pub staged: u64,
    /// Same-filled pages.
    pub same: u64,
    /// Pages that are a pool record alone.
    pub pooled: u64,
    /// Pages in a frame with a kept record.
    pub kept: u64,
    /// Pages that are a record in the swap file alone.
    pub swapped: u64,
    /// Pages that are a pool record and a record in the swap file (counted in `pooled` as well).
    pub doubled: u64,
    /// Pages in a frame with a record kept in the swap file.
    pub kept_slots: u64,
    /// Pages locked in memory.
    pub pinned: u64,
}

impl<P: Pager> Core<P> {
    /// Derives every counter again from the words of the first `pages` pages and compares. Call when
    /// nobody is inside and nothing lies beyond.
    pub fn validate(&self, pages: u32) -> Result<Census, &'static str> {
        self.validate_in(0..pages.div_ceil(BLOCK_PAGES))
    }

    /// The same from the words of these blocks, where nothing lies elsewhere.
    pub fn validate_in(&self, blocks: core::ops::Range<u32>) -> Result<Census, &'static str> {
        let mut census = Census::default();
        for b in blocks {
            self.census_of_block(BlockId(b), &mut census)?;
        }
        self.frames.validate()?;
        let records = self.pool.validate()?;
        if records != census.pooled + census.kept {
            return Err("INV-2: pool records and page words differ");
        }
        if u64::from(self.staged.pages()) != census.staged {
            return Err("INV-5: staged pages miscounted");
        }
        if self.kept() != census.kept || self.pinned.load(Ordering::Relaxed) != census.pinned {
            return Err("INV-5: kept or pinned pages miscounted");
        }
        let records = census.swapped + census.kept_slots + census.doubled;
        if let Some(s) = &self.swapping {
            s.tier.validate()?;
            if s.kept() != census.kept_slots {
                return Err("INV-5: kept slots miscounted");
            }
            if s.doubled() != census.doubled {
                return Err("INV-5: pages in pool and swap file miscounted");
            }
            if s.tier.alone() && s.tier.live_records() != records {
                return Err("INV-15: records in the swap file and page words differ");
            }
        } else if records != 0 {
            return Err("INV-15: swapped pages without a swap file");
        }
        let contents = census.resident + census.staged + census.same + census.pooled + census.swapped;
        if self.stats.managed_bytes.load(Ordering::Relaxed) != contents * PAGE_BYTES as u64 {
            return Err("INV-6: pages with contents miscounted");
        }
        let in_pool = u64::from(self.pool.owned()) * u64::from(BLOCK_PAGES);
        let frames = census.resident + census.staged + in_pool + u64::from(self.frames.free());
        if frames != u64::from(self.frames.existing()) {
            return Err("INV-1: resident + staged + pool + free is not the number of frames");
        }
        Ok(census)
    }

    fn census_of_block(&self, block: BlockId, census: &mut Census) -> Result<(), &'static str> {
        let row = self.table.block(block).lock();
        let (mut resident, mut staged) = (0, 0);
        for i in 0..BLOCK_PAGES {
            let word = self.table.word(block.page(i)).load();
            match word.state() {
                State::Absent => {}
                State::Resident => resident += 1,
                State::Staged => staged += 1,
                State::Same => census.same += 1,
                State::Pooled => census.pooled += 1,
                State::Swapped => census.swapped += 1,
            }
            if word.tag() != 0 {
                return Err("INV-15: a page waits for a read or write that nobody makes");
            }
            census.doubled += u64::from(word.doubled());
            census.kept_slots += u64::from(word.kept_slot().is_some());
            census.kept += u64::from(word.kept().is_some());
            census.pinned += u64::from(word.pinned());
            if word.state() != State::Absent && row.valid() >> i & 1 == 0 {
                return Err("INV-3: a page that is not mapped has contents");
            }
        }
        if resident != row.resident() {
            return Err("INV-5: a block's resident pages are miscounted");
        }
        if self.is_forgotten(&row) {
            return Err("INV-16: pooled pages in no queue");
        }
        if staged > 0 && row.window().is_none() {
            return Err("INV-4: staged pages without a window");
        }
        census.resident += u64::from(resident);
        census.staged += staged;
        Ok(())
    }
}

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
    fn new(windows: u32) -> Result<StagedQueue, weir_os::sys::Errno> {
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

    /// Staged pages.
    pub fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Blocks waiting.
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

/// Counts one exit.
#[inline]
pub fn count(counter: &AtomicU64, n: u32) {
    if n > 0 {
        stats::add(counter, u64::from(n));
    }
}
