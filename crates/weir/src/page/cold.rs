//! Blocks with pooled pages, those first whose pages went there first: the order in which the pool writes to
//! the swap file, and gives up what is written. Two linked lists through the blocks' rows, so they take no
//! memory of their own.
//!
//! A block is in one list at most. In *cold* any of its pooled pages may be unwritten. In *written* some are
//! in the swap file as well, so that their places in the pool cost nothing to give up; pages that went to the
//! pool later may be unwritten.

use super::BlockId;
use super::table::PageTable;
use crate::sync::{AtomicU32, Lock, Ordering};

/// Not in a list.
const OUT: u32 = 0;
/// In a list, and nobody comes after it.
const LAST: u32 = u32::MAX;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Pages to be written.
    Cold,
    /// Pages that are written.
    Written,
}

/// One list. Block plus one; 0: none.
#[derive(Debug, Default)]
struct Ends {
    head: AtomicU32,
    tail: AtomicU32,
    len: AtomicU32,
}

/// The lists. A block may have lost its pooled pages by the time it is its turn.
#[derive(Debug, Default)]
pub struct ColdQueue {
    lock: Lock,
    lists: [Ends; 2],
}

impl ColdQueue {
    /// Adds a block at the end, unless it is in a list already. Whether the lock was taken.
    pub fn push(&self, table: &PageTable, list: List, block: BlockId) -> bool {
        let row = table.block(block);
        if row.next_cold() != OUT {
            return false; // a hint without the lock: a block just taken out is pushed again with its next page
        }
        let _guard = self.lock.lock();
        if row.next_cold() != OUT {
            return true;
        }
        let ends = &self.lists[list as usize];
        row.set_next_cold(LAST);
        match ends.tail.swap(block.0 + 1, Ordering::Relaxed) {
            0 => ends.head.store(block.0 + 1, Ordering::Relaxed),
            tail => table.block(BlockId(tail - 1)).set_next_cold(block.0 + 1),
        }
        ends.len.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Puts a block back at the front: it has pages left.
    pub fn push_front(&self, table: &PageTable, list: List, block: BlockId) {
        let _guard = self.lock.lock();
        let (row, ends) = (table.block(block), &self.lists[list as usize]);
        if row.next_cold() != OUT {
            return;
        }
        let head = ends.head.swap(block.0 + 1, Ordering::Relaxed);
        row.set_next_cold(if head == 0 { LAST } else { head });
        if head == 0 {
            ends.tail.store(block.0 + 1, Ordering::Relaxed);
        }
        ends.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the oldest block.
    pub fn pop(&self, table: &PageTable, list: List) -> Option<BlockId> {
        let ends = &self.lists[list as usize];
        let _guard = self.lock.lock();
        let block = BlockId(ends.head.load(Ordering::Relaxed).checked_sub(1)?);
        let row = table.block(block);
        let next = row.next_cold();
        row.set_next_cold(OUT);
        ends.head.store(if next == LAST { 0 } else { next }, Ordering::Relaxed);
        if next == LAST {
            ends.tail.store(0, Ordering::Relaxed);
        }
        ends.len.fetch_sub(1, Ordering::Relaxed);
        Some(block)
    }

    /// Whether a block is in a list.
    pub fn has(&self, table: &PageTable, block: BlockId) -> bool {
        table.block(block).next_cold() != OUT
    }

    /// Blocks waiting in a list.
    pub fn len(&self, list: List) -> u32 {
        self.lists[list as usize].len.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::List::{Cold, Written};
    use super::*;

    #[test]
    fn blocks_come_out_in_the_order_they_came_and_each_once() {
        let table = PageTable::new(64 * 16).unwrap();
        let queue = ColdQueue::default();
        for block in [3, 5, 3, 0, 15] {
            queue.push(&table, Cold, BlockId(block));
        }
        assert_eq!((queue.len(Cold), queue.pop(&table, Cold)), (4, Some(BlockId(3))));
        queue.push_front(&table, Cold, BlockId(3));
        queue.push_front(&table, Cold, BlockId(5));
        let rest: Vec<u32> = core::iter::from_fn(|| queue.pop(&table, Cold)).map(|b| b.0).collect();
        assert_eq!(rest, [3, 5, 0, 15]);
        assert!(queue.len(Cold) == 0 && queue.pop(&table, Cold).is_none());
        queue.push_front(&table, Cold, BlockId(7));
        queue.push(&table, Cold, BlockId(0));
        assert_eq!(
            core::array::from_fn(|_| queue.pop(&table, Cold)),
            [Some(BlockId(7)), Some(BlockId(0)), None]
        );
    }

    #[test]
    fn a_block_is_in_one_list_and_leaves_the_other_alone() {
        let table = PageTable::new(64 * 16).unwrap();
        let queue = ColdQueue::default();
        for (list, block) in [(Cold, 1), (Written, 2), (Cold, 2), (Written, 1), (Written, 3), (Cold, 4)] {
            queue.push(&table, list, BlockId(block));
        }
        assert_eq!((queue.len(Cold), queue.len(Written)), (2, 2));
        assert!(queue.has(&table, BlockId(2)) && !queue.has(&table, BlockId(5)));
        assert_eq!(
            [queue.pop(&table, Written), queue.pop(&table, Cold)],
            [Some(BlockId(2)), Some(BlockId(1))]
        );
        queue.push(&table, Cold, BlockId(2));
        queue.push_front(&table, Written, BlockId(1));
        assert_eq!(
            core::array::from_fn(|_| queue.pop(&table, Cold)),
            [Some(BlockId(4)), Some(BlockId(2)), None]
        );
        assert_eq!(
            core::array::from_fn(|_| queue.pop(&table, Written)),
            [Some(BlockId(1)), Some(BlockId(3)), None]
        );
    }

    #[test]
    fn a_place_in_the_queue_survives_the_blocks_rests() {
        let table = PageTable::new(64 * 4).unwrap();
        let queue = ColdQueue::default();
        queue.push(&table, Cold, BlockId(1));
        queue.push(&table, Cold, BlockId(2));
        let row = table.block(BlockId(1));
        row.lock().set_rest(true);
        assert!(row.spend_rest() && row.charge_once());
        row.lock().set_rest(false);
        assert_eq!([queue.pop(&table, Cold), queue.pop(&table, Cold)], [Some(BlockId(1)), Some(BlockId(2))]);
    }
}
