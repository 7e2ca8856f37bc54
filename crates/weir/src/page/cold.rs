//! Blocks with pages in the pool, those first whose pages went there first: the order in which the pool writes to
//! the swap file. A linked list through the blocks' rows, so it takes no memory of its own.

use super::BlockId;
use super::table::PageTable;
use crate::sync::{AtomicU32, Lock, Ordering};

/// Not in the queue.
const OUT: u32 = 0;
/// In the queue, and nobody comes after it.
const LAST: u32 = u32::MAX;

/// The queue. A block may have lost its pooled pages by the time it is its turn.
#[derive(Debug, Default)]
pub struct ColdQueue {
    lock: Lock,
    /// Block plus one; 0: none.
    head: AtomicU32,
    tail: AtomicU32,
    len: AtomicU32,
}

impl ColdQueue {
    /// Adds a block at the end, unless it is there already.
    pub fn push(&self, table: &PageTable, block: BlockId) {
        let row = table.block(block);
        if row.next_cold() != OUT {
            return; // a hint without the lock: a block just taken out is pushed again with its next page
        }
        let _guard = self.lock.lock();
        if row.next_cold() != OUT {
            return;
        }
        row.set_next_cold(LAST);
        match self.tail.swap(block.0 + 1, Ordering::Relaxed) {
            0 => self.head.store(block.0 + 1, Ordering::Relaxed),
            tail => table.block(BlockId(tail - 1)).set_next_cold(block.0 + 1),
        }
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts a block back at the front: it has pages left.
    pub fn push_front(&self, table: &PageTable, block: BlockId) {
        let _guard = self.lock.lock();
        let row = table.block(block);
        if row.next_cold() != OUT {
            return;
        }
        let head = self.head.swap(block.0 + 1, Ordering::Relaxed);
        row.set_next_cold(if head == 0 { LAST } else { head });
        if head == 0 {
            self.tail.store(block.0 + 1, Ordering::Relaxed);
        }
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the oldest block.
    pub fn pop(&self, table: &PageTable) -> Option<BlockId> {
        let _guard = self.lock.lock();
        let block = BlockId(self.head.load(Ordering::Relaxed).checked_sub(1)?);
        let row = table.block(block);
        let next = row.next_cold();
        row.set_next_cold(OUT);
        self.head.store(if next == LAST { 0 } else { next }, Ordering::Relaxed);
        if next == LAST {
            self.tail.store(0, Ordering::Relaxed);
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(block)
    }

    /// Blocks waiting.
    pub fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_out_in_the_order_they_came_and_each_once() {
        let table = PageTable::new(64 * 16).unwrap();
        let queue = ColdQueue::default();
        for block in [3, 5, 3, 0, 15] {
            queue.push(&table, BlockId(block));
        }
        assert_eq!((queue.len(), queue.pop(&table)), (4, Some(BlockId(3))));
        queue.push_front(&table, BlockId(3));
        queue.push_front(&table, BlockId(5));
        let rest: Vec<u32> = core::iter::from_fn(|| queue.pop(&table)).map(|b| b.0).collect();
        assert_eq!(rest, [3, 5, 0, 15]);
        assert!(queue.is_empty() && queue.pop(&table).is_none());
        queue.push_front(&table, BlockId(7));
        queue.push(&table, BlockId(0));
        assert_eq!(
            [queue.pop(&table), queue.pop(&table), queue.pop(&table)],
            [Some(BlockId(7)), Some(BlockId(0)), None]
        );
    }

    #[test]
    fn a_place_in_the_queue_survives_the_blocks_rests() {
        let table = PageTable::new(64 * 4).unwrap();
        let queue = ColdQueue::default();
        queue.push(&table, BlockId(1));
        queue.push(&table, BlockId(2));
        let row = table.block(BlockId(1));
        row.set_rest(true);
        assert!(row.spend_rest() && row.charge_once());
        row.set_rest(false);
        assert_eq!([queue.pop(&table), queue.pop(&table)], [Some(BlockId(1)), Some(BlockId(2))]);
    }
}
