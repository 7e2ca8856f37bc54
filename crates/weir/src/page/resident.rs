//! The set of blocks with resident pages, in two queues whose links lie in the blocks' rows. Which queue a
//! block enters, which gives the next victim, and what becomes of the oldest block is decided in
//! [`crate::policy::victims`].

use super::id::BlockId;
use super::region::Access;
use super::table::PageTable;
use crate::config::rules::{Rule, is_on};
use crate::limits::REFS_MAX;
use crate::policy::victims::{self, Pick, Turn, choose};
use crate::sync::{Lock, Ordering};
use core::sync::atomic::{AtomicBool, AtomicU32};

pub use crate::policy::victims::Arrival;

const QUEUE_MASK: u32 = 3;
/// The block went out while it was queued: its place is that of pages that are gone.
const STALE: u32 = 4;
const REFS_SHIFT: u32 = 8;
/// Above the references: the clock when the block was queued, as far as it fits.
const SINCE_SHIFT: u32 = 10;
const SINCE_MASK: u32 = u32::MAX >> SINCE_SHIFT;
const NONE: u32 = 0;
const PROBATION: u32 = 1;
const MAIN: u32 = 2;
/// When a block went out that never did.
const NEVER: u32 = 0;
/// Of one that is not remembered.
const FORGOTTEN: u32 = u32::MAX;
/// Link value of the last block, and of an empty queue's head; block ids are stored plus one.
const END: u32 = 0;

/// References that a block has saved up.
fn refs(policy: u32) -> u32 {
    policy >> REFS_SHIFT & REFS_MAX
}

#[derive(Debug, Default)]
struct Queue {
    head: AtomicU32,
    tail: AtomicU32,
    len: AtomicU32,
}

/// The two queues; links lie in the block rows.
#[derive(Debug, Default)]
pub struct ResidentSet {
    lock: Lock,
    probation: Queue,
    main: Queue,
    /// Blocks that went out since the start: the clock for refault distance.
    clock: AtomicU32,
    /// There is a swap file: [`ResidentSet::let_left_over_go`].
    no_left_over: AtomicBool,
}

impl ResidentSet {
    /// From now on what has never been out leaves in its turn also where all else comes back. In front of a
    /// swap file it is what reading on and on would have to write at last; without one a loop has more of
    /// such blocks that stay.
    pub fn let_left_over_go(&self) {
        self.no_left_over.store(true, Ordering::Relaxed);
    }

    /// Notes that pages of the block arrived. Cheap when the block is queued already.
    pub fn arrived(&self, table: &PageTable, block: BlockId, how: Arrival) {
        self.note_arrived(table, block, how);
    }

    /// The same; whether the lock was taken.
    pub fn note_arrived(&self, table: &PageTable, block: BlockId, how: Arrival) -> bool {
        let row = table.block(block);
        let (_, policy) = row.links();
        let seen = policy.load(Ordering::Relaxed);
        // What is used in order is used once: behind the stream it goes first.
        let once = row.access() == Access::Sequential && how != Arrival::Stayed;
        if seen & QUEUE_MASK != NONE {
            if how == Arrival::TakenBack && !once && refs(seen) < REFS_MAX {
                // Lost where another thread was first: what is above the references stays what it is.
                let more = seen + (1 << REFS_SHIFT);
                let _ = policy.compare_exchange(seen, more, Ordering::Relaxed, Ordering::Relaxed);
            }
            return false;
        }
        let _guard = self.lock.lock();
        if policy.load(Ordering::Relaxed) & QUEUE_MASK != NONE {
            return true;
        }
        match victims::enters(how, once, self.refaulted_soon(row.evicted_at())) {
            Pick::Main => self.push(table, Pick::Main, block, u32::from(how == Arrival::TakenBack)),
            Pick::Probation => self.push(table, Pick::Probation, block, 0),
        }
        true
    }

    fn refaulted_soon(&self, evicted_at: u32) -> bool {
        ![NEVER, FORGOTTEN].contains(&evicted_at)
            && victims::is_soon(self.clock.load(Ordering::Relaxed).wrapping_sub(evicted_at), self.blocks())
    }

    /// Takes the next victim out of the queues. It comes back by `arrived`.
    pub fn next_victim(&self, table: &PageTable) -> Option<BlockId> {
        let _guard = self.lock.lock();
        // Each step either yields a victim, spends a reference or shortens a queue: bounded.
        loop {
            let p = self.probation.len.load(Ordering::Relaxed);
            let m = self.main.len.load(Ordering::Relaxed);
            let from = match choose(p, m)? {
                Pick::Main if !self.is_left_over(table) => Pick::Main,
                _ => Pick::Probation,
            };
            let (block, policy) = self.pop(table, from)?;
            let (row, refs) = (table.block(block), refs(policy));
            if row.resident() == 0 {
                continue; // emptied since
            }
            if let Turn::Waits(queue, refs) = victims::turn(from, refs, policy & STALE != 0) {
                self.push(table, queue, block, refs);
                continue;
            }
            let now = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
            // What leaves the main queue had its chance: coming back soon it is as good as new. Otherwise a
            // loop a little longer than memory is all main queue, and every round misses all of it.
            row.set_evicted_at(if from == Pick::Main { FORGOTTEN } else { now });
            return Some(block);
        }
    }

    /// Notes that the pages of these blocks went out although it was not their turn: what comes back
    /// of them is young.
    pub fn went_early(&self, table: &PageTable, blocks: impl Iterator<Item = BlockId>) {
        let _guard = self.lock.lock();
        let now = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
        for block in blocks {
            let row = table.block(block);
            let (_, policy) = row.links();
            if policy.load(Ordering::Relaxed) & QUEUE_MASK != NONE {
                policy.fetch_or(STALE, Ordering::Relaxed);
            }
            row.set_evicted_at(now);
        }
    }

    /// Number of queued blocks.
    pub fn blocks(&self) -> u32 {
        self.probation.len.load(Ordering::Relaxed) + self.main.len.load(Ordering::Relaxed)
    }

    /// Whether probation's oldest has never been out and is older than all of the main queue: where all that
    /// comes, comes back, it would stay for ever, used or not.
    fn is_left_over(&self, table: &PageTable) -> bool {
        if !self.no_left_over.load(Ordering::Relaxed) || !is_on(Rule::LeftOver) {
            return false;
        }
        let oldest = |q: &Queue| (q.head.load(Ordering::Relaxed)).checked_sub(1).map(BlockId);
        let (Some(new), Some(main)) = (oldest(&self.probation), oldest(&self.main)) else { return false };
        let row = table.block(new);
        // What is not where its place says is in the way of the others.
        let gone = row.resident() == 0 || row.links().1.load(Ordering::Relaxed) & STALE != 0;
        (gone || row.evicted_at() == NEVER) && self.age(table, new) > self.age(table, main)
    }

    /// How many blocks went out since this one was queued.
    fn age(&self, table: &PageTable, block: BlockId) -> u32 {
        let since = table.block(block).links().1.load(Ordering::Relaxed) >> SINCE_SHIFT;
        self.clock.load(Ordering::Relaxed).wrapping_sub(since) & SINCE_MASK
    }

    /// A queue, and how a block's row names it.
    fn queue(&self, pick: Pick) -> (&Queue, u32) {
        match pick {
            Pick::Probation => (&self.probation, PROBATION),
            Pick::Main => (&self.main, MAIN),
        }
    }

    fn push(&self, table: &PageTable, pick: Pick, block: BlockId, refs: u32) {
        let (q, id) = self.queue(pick);
        let (next, policy) = table.block(block).links();
        next.store(END, Ordering::Relaxed);
        let since = self.clock.load(Ordering::Relaxed) << SINCE_SHIFT;
        policy.store(id | refs << REFS_SHIFT | since, Ordering::Relaxed);
        let tail = q.tail.load(Ordering::Relaxed);
        if tail == END {
            q.head.store(block.0 + 1, Ordering::Relaxed);
        } else {
            let (tail_next, _) = table.block(BlockId(tail - 1)).links();
            tail_next.store(block.0 + 1, Ordering::Relaxed);
        }
        q.tail.store(block.0 + 1, Ordering::Relaxed);
        q.len.fetch_add(1, Ordering::Relaxed);
    }

    /// The oldest block with its policy bits.
    fn pop(&self, table: &PageTable, pick: Pick) -> Option<(BlockId, u32)> {
        let (q, _) = self.queue(pick);
        let head = q.head.load(Ordering::Relaxed);
        if head == END {
            return None;
        }
        let block = BlockId(head - 1);
        let (next, policy) = table.block(block).links();
        let after = next.load(Ordering::Relaxed);
        q.head.store(after, Ordering::Relaxed);
        if after == END {
            q.tail.store(END, Ordering::Relaxed);
        }
        q.len.fetch_sub(1, Ordering::Relaxed);
        Some((block, policy.swap(NONE, Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_with(blocks: u32) -> PageTable {
        let t = PageTable::new(blocks as usize * 64).unwrap();
        (0..blocks).for_each(|b| t.block(BlockId(b)).add_resident(1));
        t
    }

    #[test]
    fn victims_leave_in_arrival_order_when_nothing_comes_back() {
        let (t, set) = (table_with(8), ResidentSet::default());
        (0..8).for_each(|b| set.arrived(&t, BlockId(b), Arrival::Fetched));
        let out: Vec<u32> = core::iter::from_fn(|| set.next_victim(&t)).map(|b| b.0).collect();
        assert_eq!(out, (0..8).collect::<Vec<_>>());
        assert_eq!(set.blocks(), 0);
    }

    #[test]
    fn a_scan_cannot_push_out_blocks_that_came_back() {
        let (t, set) = (table_with(1000), ResidentSet::default());
        (0..50).for_each(|b| set.arrived(&t, BlockId(b), Arrival::TakenBack));
        let mut out = Vec::new();
        for b in 50..1000 {
            set.arrived(&t, BlockId(b), Arrival::Fetched);
            if set.blocks() > 100 {
                out.push(set.next_victim(&t).unwrap());
            }
        }
        assert!(out.len() > 800);
        assert!(out.iter().all(|b| b.0 >= 50), "the scan's own blocks went out");
    }

    #[test]
    fn a_block_emptied_by_the_program_is_no_victim() {
        let (t, set) = (table_with(2), ResidentSet::default());
        (0..2).for_each(|b| set.arrived(&t, BlockId(b), Arrival::Fetched));
        t.block(BlockId(0)).add_resident(-1);
        assert_eq!(set.next_victim(&t), Some(BlockId(1)));
        assert_eq!(set.next_victim(&t), None);
    }

    #[test]
    fn what_has_never_been_out_leaves_before_a_main_queue_that_is_all_younger_where_there_is_a_swap_file() {
        for swaps in [false, true] {
            let (t, set) = (table_with(40), ResidentSet::default());
            if swaps {
                set.let_left_over_go();
            }
            (0..20).for_each(|b| set.arrived(&t, BlockId(b), Arrival::Fetched));
            // Ten go out, and all come back soon, for good; so do others.
            (0..10).for_each(|b| assert_eq!(set.next_victim(&t), Some(BlockId(b))));
            (20..38).for_each(|b| set.arrived(&t, BlockId(b), Arrival::TakenBack));
            (0..10).for_each(|b| set.arrived(&t, BlockId(b), Arrival::Fetched));
            set.went_early(&t, [BlockId(17)].into_iter()); // it is there again
            t.block(BlockId(18)).add_resident(-1);
            let mut out: Vec<u32> = (0..10).filter_map(|_| set.next_victim(&t)).map(|b| b.0).collect();
            out.sort_unstable();
            let stays = |b: &u32| (10..20).contains(b) && !out.contains(b);
            // A tenth of what there is; or the one that has been out, and the one that is empty.
            let left: Vec<u32> = (0..40).filter(stays).collect();
            assert_eq!(left, if swaps { vec![17, 18] } else { vec![17, 18, 19] }, "{out:?}");
        }
    }

    #[test]
    fn what_has_never_been_out_but_is_younger_than_the_main_queue_waits_and_references_do_not_run_over() {
        let (t, set) = (table_with(60), ResidentSet::default());
        set.let_left_over_go();
        (0..40).for_each(|b| set.arrived(&t, BlockId(b), Arrival::TakenBack));
        (0..9).for_each(|_| set.arrived(&t, BlockId(39), Arrival::TakenBack));
        let policy = t.block(BlockId(39)).links().1.load(Ordering::Relaxed);
        assert_eq!((refs(policy), policy >> SINCE_SHIFT), (REFS_MAX, 0));
        // One of the main queue goes, and one that is new comes.
        assert_eq!(set.next_victim(&t), Some(BlockId(0)));
        set.arrived(&t, BlockId(50), Arrival::Fetched);
        assert_eq!(set.next_victim(&t), Some(BlockId(1)), "not the new one, although all came before");
        assert_eq!(set.blocks(), 39);
    }

    #[test]
    fn a_block_that_went_out_early_and_came_back_waits_as_long_as_a_new_one() {
        let (t, set) = (table_with(4), ResidentSet::default());
        (0..4).for_each(|b| set.arrived(&t, BlockId(b), Arrival::Fetched));
        assert_eq!(set.next_victim(&t), Some(BlockId(0)));
        set.went_early(&t, [BlockId(1), BlockId(2)].into_iter());
        t.block(BlockId(2)).add_resident(-1); // 1 came back, 2 did not
        set.arrived(&t, BlockId(1), Arrival::Fetched);
        let out: Vec<u32> = core::iter::from_fn(|| set.next_victim(&t)).map(|b| b.0).collect();
        assert_eq!(out, [3, 1]);
    }

    #[test]
    fn a_block_that_comes_back_soon_goes_to_the_main_queue_if_it_left_probation_and_to_probation_if_it_left_the_main_queue()
     {
        let (t, set) = (table_with(100), ResidentSet::default());
        let queue_of = |block: u32| t.block(BlockId(block)).links().1.load(Ordering::Relaxed) & QUEUE_MASK;
        (0..100).for_each(|b| set.arrived(&t, BlockId(b), Arrival::Fetched));
        assert_eq!(set.next_victim(&t), Some(BlockId(0)));
        set.arrived(&t, BlockId(0), Arrival::Fetched);
        assert_eq!(queue_of(0), MAIN);
        while queue_of(0) == MAIN {
            set.next_victim(&t).unwrap();
        }
        set.arrived(&t, BlockId(0), Arrival::Fetched);
        assert_eq!(queue_of(0), PROBATION);
        while set.next_victim(&t) != Some(BlockId(0)) {}
        set.arrived(&t, BlockId(0), Arrival::Stayed);
        assert_eq!(queue_of(0), MAIN, "it never left");
    }

    #[test]
    fn what_is_used_in_order_waits_in_probation_however_often_it_comes_back() {
        let (t, set) = (table_with(30), ResidentSet::default());
        t.block(BlockId(0)).set_access(Access::Sequential);
        (0..20).for_each(|b| set.arrived(&t, BlockId(b), Arrival::TakenBack));
        (20..30).for_each(|b| set.arrived(&t, BlockId(b), Arrival::Fetched));
        assert_eq!(set.next_victim(&t), Some(BlockId(0)), "the oldest of probation");
        set.arrived(&t, BlockId(0), Arrival::Fetched);
        set.arrived(&t, BlockId(0), Arrival::TakenBack);
        let out: Vec<u32> = (0..8).filter_map(|_| set.next_victim(&t)).map(|b| b.0).collect();
        assert_eq!(out, [20, 21, 22, 23, 24, 25, 26, 27]);
        let policy = t.block(BlockId(0)).links().1.load(Ordering::Relaxed);
        assert_eq!((policy & QUEUE_MASK, refs(policy)), (PROBATION, 0), "no reference either");
    }

    #[test]
    fn references_are_spent_one_a_round_in_the_main_queue() {
        let (t, set) = (table_with(2), ResidentSet::default());
        set.arrived(&t, BlockId(0), Arrival::TakenBack);
        (0..5).for_each(|_| set.arrived(&t, BlockId(0), Arrival::TakenBack));
        set.arrived(&t, BlockId(1), Arrival::TakenBack);
        assert_eq!(set.next_victim(&t), Some(BlockId(1)));
        assert_eq!(set.next_victim(&t), Some(BlockId(0)));
    }
}
