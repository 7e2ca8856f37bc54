//! Room: the RAM that pages are in. The frames of the arena, the pool's part of them, credit for frames that
//! do not exist yet, and the marks at which more is made.

use super::ledger::Ledger;
use crate::config::rules::{Rule, is_on};
use crate::demand::Demand;
use crate::door::Pager;
use crate::frames::Frames;
use crate::limits::{
    CREDIT_KEPT, FREE_FLOOR, FREE_HIGH_FACTOR, FREE_LOW_MIN, FREE_LOW_SHARE, GROW_AHEAD, NEW_FRAMES_LEAVE,
    OWN_SHARE, POOL_WINDOWS_MIN, SHED_A_LITTLE, STAGED_SHARE,
};
use crate::page::id::BLOCK_PAGES;
use crate::page::{Handle, PageId};
use crate::policy::pool_size::Size;
use crate::stats::{self, Stats};
use crate::sync::Ordering;
use crate::tier::pool::{Codec, NoRoom, Pool};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use weir_os::shards::Line;
use weir_os::thread;

/// Frames, the pool, and what faults ask of them.
#[derive(Debug)]
pub struct Room {
    /// The frame arena.
    pub frames: Frames,
    /// The compressed pool.
    pub pool: Pool,
    /// What faults ask for.
    pub demand: Demand,
    /// Woken when the background reclaimer has work.
    pub kick: AtomicU32,
    /// Frames freed so far by anybody: whether there is progress.
    pub progress: Line<AtomicU64>,
    /// Something was reclaimed once: memory is not plentiful.
    pub reclaimed: AtomicBool,
    pool_max_percent: u32,
    /// Windows that the pool may own, if its largest share allows them.
    pool_windows: AtomicU32,
    /// Since the last look at its share, pages had no other place than the pool.
    pool_needed: AtomicBool,
    /// A faulting thread is giving free frames back.
    shedding: AtomicBool,
}

impl Room {
    /// Room in an arena, with a pool of so many percent of it at most.
    pub fn new(frames: Frames, pool: Pool, pool_max_percent: u32) -> Room {
        Room {
            frames,
            pool,
            demand: Demand::default(),
            kick: AtomicU32::new(0),
            progress: Line::default(),
            reclaimed: AtomicBool::new(false),
            pool_max_percent,
            pool_windows: AtomicU32::new(u32::MAX),
            pool_needed: AtomicBool::new(false),
            shedding: AtomicBool::new(false),
        }
    }

    /// Frames and pool follow limit, metadata and share.
    pub fn follow(&self, ledger: &Ledger) {
        let basis = || (self.pool_windows.load(Ordering::SeqCst), ledger.frames());
        let mut seen = basis();
        loop {
            let (share, frames) = seen;
            self.frames.set_limit(frames);
            self.pool.set_limit(self.pool_most().min(share.max(POOL_WINDOWS_MIN)));
            // Somebody else may have changed one of them meanwhile, and set his limit before ours.
            let now = basis();
            if now == seen {
                return;
            }
            seen = now;
        }
    }

    /// Most windows that the pool may ever own.
    pub fn pool_most(&self) -> u32 {
        self.frames.limit() / BLOCK_PAGES * self.pool_max_percent / 100
    }

    /// From now on the pool may be so large, if its largest share allows it.
    pub fn share_pool(&self, ledger: &Ledger, size: Size) {
        let windows = match size {
            Size::All => u32::MAX,
            Size::Windows(n) => n,
        };
        if self.pool_windows.swap(windows, Ordering::SeqCst) != windows {
            self.follow(ledger);
        }
    }

    /// Pages have no other place than the pool for now: it may have all it ever may.
    pub fn need_pool(&self, ledger: &Ledger) {
        self.pool_needed.store(true, Ordering::SeqCst);
        self.share_pool(ledger, Size::All);
    }

    /// Whether that was so since the last call of [`Room::take_pool_needed`].
    pub fn is_pool_needed(&self) -> bool {
        self.pool_needed.load(Ordering::SeqCst)
    }

    /// Whether that was so since the last call.
    pub fn take_pool_needed(&self) -> bool {
        self.pool_needed.swap(false, Ordering::SeqCst)
    }

    /// Stores a record in the pool.
    pub fn store<P: Pager>(
        &self,
        pager: &P,
        stats: &Stats,
        page: PageId,
        codec: Codec,
        bytes: &[u8],
    ) -> Result<Handle, NoRoom> {
        self.pool.store(pager, &self.frames, stats, page, codec, bytes)
    }

    /// Frees a pool record that no word names any more.
    pub fn free_record<P: Pager>(&self, pager: &P, stats: &Stats, handle: Handle) {
        self.pool.free(pager, &self.frames, stats, handle);
    }

    /// The limit has fallen: as many frames go back to the kernel, if they are free. If they are not, they go
    /// with the next that become free: faults leave them alone, see [`Room::available`].
    pub fn shed_excess<P: Pager>(&self, pager: &P) {
        if self.frames.existing() > self.frames.limit() {
            self.frames.shed_excess(pager);
        }
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

    /// Whether nothing was ever reclaimed: what comes in is new.
    pub fn is_plentiful(&self) -> bool {
        !self.reclaimed.load(Ordering::Relaxed)
    }

    /// Something is reclaimed: memory is not plentiful.
    pub fn note_reclaim(&self) {
        // Every fault reads it: written once.
        if self.is_plentiful() {
            self.reclaimed.store(true, Ordering::Relaxed);
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
    pub fn balance<P: Pager>(&self, pager: &P, stats: &Stats) -> u32 {
        let free = self.frames.free();
        if self.demand.wants_credit() {
            // With so much room no more is made: later it is more for the same flush.
            let enough = self.frames.credit() >= CREDIT_KEPT;
            return if enough { 0 } else { self.shed_spare(pager, stats, u32::MAX) };
        }
        if self.takes_new_frames() {
            return 0;
        }
        if free < self.frames_wanted() { self.frames.grow(pager).unwrap_or(0) } else { 0 }
    }

    /// As [`Room::balance`], by a faulting thread: one at a time, and only so much that its fault does not
    /// last.
    pub fn balance_a_little<P: Pager>(&self, pager: &P, stats: &Stats) {
        if !is_on(Rule::Release) || self.shedding.swap(true, Ordering::Acquire) {
            return; // there will be room soon
        }
        self.shed_spare(pager, stats, SHED_A_LITTLE);
        self.shedding.store(false, Ordering::Release);
    }

    /// Gives free frames above the floor back to the kernel, about `most` by one call. Returns how many.
    fn shed_spare<P: Pager>(&self, pager: &P, stats: &Stats, most: u32) -> u32 {
        let spare = self.frames.free().saturating_sub(FREE_FLOOR);
        if spare < BLOCK_PAGES {
            return 0;
        }
        let start = thread::now_ns();
        let gone = self.frames.shed_windows(pager, spare.min(most), 1);
        if gone > 0 {
            stats::add(&stats.shed_ns, thread::now_ns() - start);
            stats::add(&stats.sheds, 1);
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
}
