//! How much RAM the engine may hold: what the budget leaves beside everything that is outside of it.
//!
//! The budget is RAM in all. Memory that Weir does not manage (the heap from before its start, stacks, what
//! libc keeps) is measured by `engine/outside.rs`; the engine's own limit follows it, down and up. Frames
//! follow the limit: more are made when they are needed, and those that are too many go back to the kernel as
//! they become free.

use super::Core;
use super::outside::{Excess, beside, least};
use crate::door::Pager;
use crate::limits::{
    BUDGET_BYTES_MIN, FIXED_OVERHEAD_BYTES, LEAST_SHARE, METADATA_AHEAD_BYTES, POOL_WINDOWS_MIN,
};
use crate::page::id::BLOCK_PAGES;
use crate::page::table::ENTRY_BYTES;
use crate::sync::Ordering;
use weir_os::mem::PAGE_BYTES;

impl<P: Pager> Core<P> {
    /// From now on the RAM in all may be so many bytes, but not more than the engine was made for. More at
    /// once; less as soon as as many frames have become free.
    pub fn set_budget(&self, bytes: u64) {
        let bytes = bytes.clamp(BUDGET_BYTES_MIN.min(self.limit.most), self.limit.most);
        self.limit.budget.store(bytes, Ordering::SeqCst);
        self.stats.budget_bytes.store(bytes, Ordering::Relaxed);
        self.follow();
    }

    /// RAM in all, bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.limit.budget.load(Ordering::Relaxed)
    }

    /// Bytes of RAM that the engine may hold now.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.bytes.load(Ordering::Relaxed)
    }

    /// The limit becomes what the budget leaves.
    fn follow(&self) {
        let (budget, left) = (self.budget_bytes(), self.limit.left.load(Ordering::SeqCst));
        let (least, conceded) =
            (least(budget, self.spent_bytes()), self.limit.conceded.load(Ordering::SeqCst));
        if conceded > 0 && budget.saturating_sub(left) >= least + conceded {
            self.limit.conceded.store(0, Ordering::SeqCst); // there is room again
        }
        let bytes = beside(budget, left, least + conceded);
        if self.limit.bytes.swap(bytes, Ordering::SeqCst) != bytes {
            self.apply_limits();
            self.shed_excess();
            self.kick_if_low();
        }
        self.stats.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// There are so many bytes of anonymous memory outside: the limit follows. Says once if they leave too
    /// little.
    pub fn note_outside(&self, outside: u64, now_ns: u64) -> Option<Excess> {
        let Ok(mut measured) = self.limit.outside.try_lock() else { return None };
        self.limit.left.store(measured.note(outside, now_ns), Ordering::SeqCst);
        self.limit.outside_now.store(outside, Ordering::SeqCst);
        self.follow();
        let s = &self.stats;
        s.outside_bytes.store(outside, Ordering::Relaxed);
        s.outside_bytes_peak.fetch_max(outside, Ordering::Relaxed);
        s.total_bytes_peak.fetch_max(outside + self.resident_bytes(), Ordering::Relaxed);
        let least = least(self.budget_bytes(), self.spent_bytes());
        let exceeds = outside + least > self.budget_bytes();
        let news = exceeds && !self.limit.told.swap(true, Ordering::Relaxed);
        news.then_some(Excess { outside, least })
    }

    /// What the program has does not fit into a limit that memory outside has lowered: it is raised a little,
    /// because the program would end otherwise. False where it is the budget already.
    pub fn concede(&self) -> bool {
        let budget = self.budget_bytes();
        if self.limit_bytes() >= budget {
            return false;
        }
        // On top of the least, so from there: a limit above it grows only when this has caught up.
        let least = least(budget, self.spent_bytes());
        let now = self.limit_bytes().saturating_sub(least);
        self.limit.conceded.fetch_max(now + budget / LEAST_SHARE, Ordering::SeqCst);
        self.follow();
        true
    }

    /// Frames that there may be beside what is outside now, for long: those that the limit allows, or more.
    pub fn frames_to_be_had(&self) -> u32 {
        let (budget, outside) = (self.budget_bytes(), self.limit.outside_now.load(Ordering::Relaxed));
        let spent = self.spent_bytes();
        let frames = beside(budget, outside, least(budget, spent)).saturating_sub(spent) / PAGE_BYTES as u64;
        (frames as u32).max(self.frames.limit())
    }

    /// What the engine holds, as far as the kernel counts it as anonymous memory of this process.
    pub fn anon_bytes(&self) -> u64 {
        self.resident_bytes().saturating_sub(self.limit.unseen.load(Ordering::Relaxed))
    }

    /// Metadata that is no anonymous memory has come to be charged: page-table entries, memory shared with
    /// children.
    pub(super) fn note_unseen(&self, bytes: u64) {
        self.limit.unseen.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Of what [`Core::charge`] charges for a block, the kernel's page-table entries.
    pub(super) fn note_entries(&self, blocks: u32) {
        self.note_unseen(u64::from(blocks) * u64::from(BLOCK_PAGES) * ENTRY_BYTES);
    }

    fn spent_bytes(&self) -> u64 {
        FIXED_OVERHEAD_BYTES + METADATA_AHEAD_BYTES + self.metadata_bytes.load(Ordering::SeqCst)
    }

    /// Frames and pool follow limit, metadata and share.
    pub(super) fn apply_limits(&self) {
        let basis = || {
            let share = self.pool_share.load(Ordering::SeqCst);
            (share, self.spent_bytes(), self.limit.bytes.load(Ordering::SeqCst))
        };
        let mut seen = basis();
        loop {
            let (share, spent, bytes) = seen;
            self.frames.set_limit((bytes.saturating_sub(spent) / PAGE_BYTES as u64) as u32);
            let most = self.pool_most();
            self.pool.set_limit(most.min(share.max(POOL_WINDOWS_MIN)));
            // Somebody else may have changed one of them meanwhile, and set his limit before ours.
            let now = basis();
            if now == seen {
                return;
            }
            seen = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::World;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_budget_changes_while_the_engine_runs_within_what_it_was_made_for() {
        let budget = 16 * MIB;
        let core = World::budget(16).core();
        while core.frames.grow(&core.pager).unwrap() > 0 {}
        let frames = core.frames.existing();
        core.set_budget(12 * MIB);
        assert!(core.resident_bytes() <= 12 * MIB && core.frames.existing() + 1024 == frames);
        assert_eq!(core.note_outside(2 * MIB, 1), None);
        assert_eq!(core.limit_bytes(), 10 * MIB);
        core.set_budget(14 * MIB);
        assert_eq!(core.limit_bytes(), 12 * MIB);
        core.set_budget(1);
        assert_eq!((core.budget_bytes(), core.limit_bytes()), (BUDGET_BYTES_MIN, 6 * MIB));
        core.set_budget(1 << 40);
        assert_eq!((core.budget_bytes(), core.limit_bytes()), (budget, 14 * MIB));
        while core.frames.grow(&core.pager).unwrap() > 0 {}
        assert_eq!(core.frames.existing() + 512, frames);
        core.validate(1024).unwrap();
    }
}
