//! Ledger: how much RAM the engine may hold, and what of it is spent on metadata.
//!
//! The budget is RAM in all. Memory that Weir does not manage (the heap from before its start, stacks, what
//! libc keeps) is measured by `engine/outside.rs`. The *limit* is what the budget leaves beside it; it
//! follows what is measured, down and up. The ledger has numbers alone: the frames follow by `Room::follow`.

use crate::limits::{
    BUDGET_BYTES_MIN, FIXED_OVERHEAD_BYTES, LEAST_SHARE, METADATA_AHEAD_BYTES, OUTSIDE_FALL_NS, OUTSIDE_STEP,
};
use crate::page::id::BLOCK_PAGES;
use crate::page::table::{BLOCK_METADATA_BYTES, ENTRY_BYTES};
use crate::policy;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard};
use weir_os::codec::zstd::CONTEXTS_BYTES;
use weir_os::mem::PAGE_BYTES;

/// Bytes of a block's row.
const ROW_BYTES: i64 = 64;

/// The budget and what is charged to it.
#[derive(Debug)]
pub struct Ledger {
    /// RAM in all, bytes.
    budget: AtomicU64,
    /// The largest budget: there are arena and tables for so much.
    most: u64,
    /// What the engine may hold of the budget.
    limit: AtomicU64,
    /// What is left to the memory outside.
    left: AtomicU64,
    /// What there was of it at the last look: bursts that are over, and what is only expected, refuse no
    /// memory.
    outside_now: AtomicU64,
    /// Bytes of mapped files in RAM that are within their part, which the limit leaves as well.
    files: AtomicU64,
    /// Beyond the least: what was allowed because the program's data did not fit into less.
    conceded: AtomicU64,
    /// Metadata charged so far, bytes.
    metadata: AtomicU64,
    /// Of these, what the kernel does not count as anonymous memory.
    unseen: AtomicU64,
    /// The contexts of zstd are charged.
    zstd_charged: AtomicBool,
    measured: Mutex<Outside>,
    /// That there is too much outside was said.
    told: AtomicBool,
}

impl Ledger {
    /// All of a budget, and nothing charged.
    pub fn new(budget: u64) -> Ledger {
        Ledger {
            budget: AtomicU64::new(budget),
            most: budget,
            limit: AtomicU64::new(budget),
            left: AtomicU64::new(0),
            outside_now: AtomicU64::new(0),
            files: AtomicU64::new(0),
            conceded: AtomicU64::new(0),
            metadata: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            zstd_charged: AtomicBool::new(false),
            measured: Mutex::default(),
            told: AtomicBool::new(false),
        }
    }

    /// RAM in all, bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// The largest that it may become.
    pub fn most_bytes(&self) -> u64 {
        self.most
    }

    /// From now on the RAM in all may be so many bytes, but not more than the engine was made for. What it
    /// may be.
    pub fn set_budget(&self, bytes: u64) -> u64 {
        let bytes = bytes.clamp(BUDGET_BYTES_MIN.min(self.most), self.most);
        self.budget.store(bytes, Ordering::SeqCst);
        bytes
    }

    /// Bytes of RAM that the engine may hold now.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Frames that the limit leaves beside metadata.
    pub fn frames(&self) -> u32 {
        let limit = self.limit.load(Ordering::SeqCst);
        (limit.saturating_sub(self.spent_bytes()) / PAGE_BYTES as u64) as u32
    }

    /// Frames that a budget of so many bytes would leave beside metadata, with nothing outside.
    pub fn frames_within(&self, budget: u64) -> u32 {
        (budget.saturating_sub(self.spent_bytes()) / PAGE_BYTES as u64) as u32
    }

    /// Whether a budget of so many bytes holds the metadata there is, and frames to work with.
    pub fn is_enough(&self, budget: u64) -> bool {
        budget >= self.spent_bytes() + BUDGET_BYTES_MIN / 2
    }

    /// The limit becomes what the budget leaves. Whether it has changed.
    pub fn follow(&self) -> bool {
        let left = self.left.load(Ordering::SeqCst) + self.files.load(Ordering::SeqCst);
        let budget = self.budget_bytes();
        let (least, conceded) = (self.least(), self.conceded.load(Ordering::SeqCst));
        if conceded > 0 && budget.saturating_sub(left) >= least + conceded {
            self.conceded.store(0, Ordering::SeqCst); // there is room again
        }
        let bytes = beside(budget, left, least + conceded);
        self.limit.swap(bytes, Ordering::SeqCst) != bytes
    }

    /// There are so many bytes of anonymous memory outside. `None`: another thread notes it now. Others pass
    /// by while the answer is held.
    pub fn note_outside(&self, outside: u64, now_ns: u64) -> Option<MutexGuard<'_, Outside>> {
        let mut measured = self.measured.try_lock().ok()?;
        self.left.store(measured.note(outside, now_ns), Ordering::SeqCst);
        self.outside_now.store(outside, Ordering::SeqCst);
        Some(measured)
    }

    /// There are so many bytes of mapped files in RAM, which may have this part: the next [`Ledger::follow`]
    /// leaves them. It does not leave what is over: some pages cannot leave, or not yet, and the kernel can
    /// drop them where memory would have to be compressed. Whether that changes anything.
    pub fn note_files(&self, bytes: u64, part: u64) -> bool {
        let step = bytes.min(part).next_multiple_of(OUTSIDE_STEP);
        self.files.swap(step, Ordering::SeqCst) != step
    }

    /// Bytes that are no mapped files', where so many are the engine's.
    pub fn beside_files(&self, engine: u64) -> u64 {
        engine + self.outside_now.load(Ordering::Relaxed)
    }

    /// Bytes of mapped files that may be in RAM, beside what is outside and so many bytes of the engine,
    /// which has so much room of all that there could be for what leaves it.
    pub fn files_part(&self, engine: u64, swappiness: u64, room: (u64, u64)) -> u64 {
        policy::files::part(self.budget_bytes(), self.beside_files(engine), swappiness, room)
    }

    /// Whether so much memory outside leaves too little; said once.
    pub fn excess(&self, outside: u64) -> Option<Excess> {
        let least = self.least();
        let exceeds = outside + least > self.budget_bytes();
        let news = exceeds && !self.told.swap(true, Ordering::Relaxed);
        news.then_some(Excess { outside, least })
    }

    /// What the program has does not fit into a limit that memory outside has lowered: the next
    /// [`Ledger::follow`] raises it a little. False where it is the budget already.
    pub fn concede(&self) -> bool {
        let budget = self.budget_bytes();
        if self.limit_bytes() >= budget {
            return false;
        }
        // On top of the least, so from there: a limit above it grows only when this has caught up.
        let now = self.limit_bytes().saturating_sub(self.least());
        self.conceded.fetch_max(now + budget / LEAST_SHARE, Ordering::SeqCst);
        true
    }

    /// Frames for which there is room beside what is outside now, for long.
    pub fn frames_beside(&self) -> u32 {
        let outside = self.outside_now.load(Ordering::Relaxed);
        let bytes = beside(self.budget_bytes(), outside, self.least()).saturating_sub(self.spent_bytes());
        (bytes / PAGE_BYTES as u64) as u32
    }

    fn least(&self) -> u64 {
        least(self.budget_bytes(), self.spent_bytes())
    }

    /// RAM of metadata, with what is charged from the start.
    pub fn metadata_bytes(&self) -> u64 {
        FIXED_OVERHEAD_BYTES + self.metadata.load(Ordering::SeqCst)
    }

    fn spent_bytes(&self) -> u64 {
        self.metadata_bytes() + METADATA_AHEAD_BYTES
    }

    /// Of the metadata, what is no anonymous memory of this process.
    pub fn unseen_bytes(&self) -> u64 {
        self.unseen.load(Ordering::Relaxed)
    }

    /// So many bytes of metadata have come to be used.
    pub fn charge(&self, bytes: u64) {
        self.metadata.fetch_add(bytes, Ordering::SeqCst);
    }

    /// The same, of memory that the kernel does not count as anonymous memory of this process.
    pub fn charge_unseen(&self, bytes: u64) {
        self.unseen.fetch_add(bytes, Ordering::Relaxed);
        self.charge(bytes);
    }

    /// The words and rows of so many blocks, and the kernel's page-table entries for them, which are unseen.
    pub fn charge_blocks(&self, blocks: u32) {
        let entries = u64::from(blocks) * u64::from(BLOCK_PAGES) * ENTRY_BYTES;
        self.unseen.fetch_add(entries, Ordering::Relaxed);
        self.charge(u64::from(blocks) * BLOCK_METADATA_BYTES);
    }

    /// Charges (or refunds) the rows of so many mapped pages.
    pub fn charge_rows(&self, pages: i64) {
        let bytes = pages * ROW_BYTES / i64::from(BLOCK_PAGES);
        let change = |b: u64| Some(b.saturating_add_signed(bytes));
        let _ = self.metadata.fetch_update(Ordering::SeqCst, Ordering::Relaxed, change);
    }

    /// Charges the contexts of zstd. False when they are charged already.
    pub fn charge_zstd(&self) -> bool {
        let first = !self.zstd_charged.swap(true, Ordering::Relaxed);
        if first {
            self.charge(CONTEXTS_BYTES);
        }
        first
    }

    /// Whether the rows of a mapping of this length would cost less than an eighth of the budget, and less
    /// than half together with all metadata there is.
    pub fn rows_fit(&self, len: usize) -> bool {
        let bytes = (len / (PAGE_BYTES * BLOCK_PAGES as usize)) as u64 * (ROW_BYTES as u64);
        let all = bytes + self.metadata.load(Ordering::Relaxed);
        bytes < self.budget_bytes() / 8 && (bytes == 0 || all < self.budget_bytes() / 2)
    }
}

/// The limit for a budget, beside so many bytes outside; never less than `least`, nor more than the budget.
fn beside(budget: u64, outside: u64, least: u64) -> u64 {
    budget.saturating_sub(outside).max(least).min(budget)
}

/// What the engine keeps, however much there is outside: its metadata, and frames for half of the smallest
/// budget or one part in [`LEAST_SHARE`] of this one. With fewer a program would only wait for its pages.
fn least(budget: u64, metadata: u64) -> u64 {
    (metadata + (BUDGET_BYTES_MIN / 2).max(budget / LEAST_SHARE)).min(budget)
}

/// How much there is outside, as the limit sees it: more at once, and ahead of what grows; less slowly, so
/// that bursts do not have frames come and go.
#[derive(Debug, Default)]
pub struct Outside {
    high: u64,
    last: u64,
    at_ns: u64,
}

impl Outside {
    /// Takes a measurement, in bytes. Returns what the limit is to leave.
    pub fn note(&mut self, outside: u64, now_ns: u64) -> u64 {
        // By the next look it may have grown as much again.
        let soon = match self.at_ns {
            0 => outside,
            _ => outside + outside.saturating_sub(self.last),
        };
        let passed = now_ns.saturating_sub(self.at_ns).min(OUTSIDE_FALL_NS);
        let gap = self.high.saturating_sub(soon);
        let fall = match gap {
            0..OUTSIDE_STEP => gap,
            _ => (u128::from(gap) * u128::from(passed) / u128::from(OUTSIDE_FALL_NS)) as u64,
        };
        self.high = soon.max(self.high - fall);
        (self.last, self.at_ns) = (outside, now_ns);
        self.high.next_multiple_of(OUTSIDE_STEP)
    }
}

/// There is so much outside that the engine's least exceeds the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Bytes of memory outside.
    pub outside: u64,
    /// What the engine keeps nevertheless.
    pub least: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_is_what_the_outside_leaves_and_never_less_than_the_least() {
        assert_eq!(beside(100 * MIB, 0, 8 * MIB), 100 * MIB);
        assert_eq!(beside(100 * MIB, 30 * MIB, 8 * MIB), 70 * MIB);
        assert_eq!(beside(100 * MIB, 95 * MIB, 8 * MIB), 8 * MIB);
        assert_eq!(beside(100 * MIB, 900 * MIB, 8 * MIB), 8 * MIB);
        assert_eq!(beside(6 * MIB, 0, 8 * MIB), 6 * MIB);
    }

    #[test]
    fn the_least_grows_with_budget_and_metadata_and_stays_within_the_budget() {
        assert_eq!(least(32 * MIB, MIB), 5 * MIB);
        assert_eq!(least(1024 * MIB, 2 * MIB), 66 * MIB);
        assert_eq!(least(8 * MIB, 60 * MIB), 8 * MIB);
    }

    #[test]
    fn files_over_their_part_take_nothing_from_memory() {
        let ledger = Ledger::new(64 * MIB);
        assert!(ledger.note_outside(10 * MIB, 1).is_some());
        assert!(ledger.note_files(640 * MIB, 24 * MIB) && ledger.follow());
        assert_eq!(ledger.limit_bytes(), (64 - 10 - 24) * MIB);
        assert!(ledger.note_files(8 * MIB, 24 * MIB) && ledger.follow());
        assert_eq!(ledger.limit_bytes(), (64 - 10 - 8) * MIB);
        assert!(ledger.note_files(0, 24 * MIB) && !ledger.note_files(0, 2 * MIB));
    }

    #[test]
    fn the_first_measurement_counts_as_it_is_and_growth_is_expected_to_go_on() {
        let mut outside = Outside::default();
        assert_eq!(outside.note(10 * MIB, 1_000), 10 * MIB);
        assert_eq!(outside.note(14 * MIB, 2_000), 18 * MIB);
        assert_eq!(outside.note(14 * MIB, 3_000), 18 * MIB);
    }

    #[test]
    fn a_burst_is_forgotten_slowly_and_in_the_end_wholly() {
        let (mut outside, second) = (Outside::default(), OUTSIDE_FALL_NS);
        outside.note(10 * MIB, second);
        outside.note(110 * MIB, second + 1);
        let at_once = outside.note(10 * MIB, second + second / 100);
        assert!(at_once > 200 * MIB, "{at_once}");
        let mut last = at_once;
        for n in 1..=200 {
            let now = outside.note(10 * MIB, second + n * second / 10);
            assert!(now <= last);
            last = now;
        }
        assert_eq!(last, 10 * MIB);
    }

    #[test]
    fn a_measurement_after_a_long_pause_counts_alone() {
        let mut outside = Outside::default();
        outside.note(200 * MIB, 1);
        assert_eq!(outside.note(10 * MIB, 2 * OUTSIDE_FALL_NS), 10 * MIB);
    }
}
