//! Holds: pages that small system calls under way are using, published by the calling thread alone.
//!
//! A hold is a hazard pointer. A thread has a row, and a call writes the range of its buffer there, makes a
//! full fence, and looks whether the pages stay: their blocks' locks are free, their words say Resident.
//! Reclaim takes a block's lock, makes a full fence, and asks for the holds. One of the two fences comes
//! first: either reclaim sees the hold, or the thread sees that the lock is taken, or what came of it, and
//! goes the way of the pins. So a small call takes no lock, and blocks no signal.
//!
//! Only its own thread writes the range of a row. A handler that interrupts a call that holds has the pins
//! for calls of its own. A row is claimed once for each thread, and is free again when that has ended.

use super::id::clip;
use super::{BlockId, PageId};
use crate::limits::{HELD_PAGES_MAX, HELD_SHARE, HOLDS};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use weir_os::shards::Line;

/// What a thread holds.
#[derive(Debug, Default)]
struct Row {
    /// First page in the low half and one past the last in the high one; 0 when nothing is held.
    range: AtomicU64,
    /// Address of a stack frame of the thread's that lives as long as the call.
    frame: AtomicU64,
    /// Kernel id of the thread; 0 when the row is nobody's.
    owner: AtomicU32,
}

/// All of them.
#[derive(Debug)]
pub struct Holds {
    rows: Box<[Line<Row>]>,
    /// Rows that may be somebody's, the first ones. Never falls.
    top: AtomicU32,
    /// Rows that are somebody's.
    claimed: AtomicU32,
}

impl Default for Holds {
    fn default() -> Holds {
        Holds {
            rows: (0..HOLDS).map(|_| Line::default()).collect(),
            top: AtomicU32::new(0),
            claimed: AtomicU32::new(0),
        }
    }
}

impl Holds {
    /// A row for the thread with this kernel id, which has none; `None` when all are taken.
    pub fn claim(&self, tid: u32) -> Option<u32> {
        if self.claimed.load(Ordering::Relaxed) >= HOLDS {
            return None;
        }
        let free = |row: &&Line<Row>| {
            row.owner.load(Ordering::Relaxed) == 0
                && row.owner.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let at = self.rows.iter().position(|row| free(&row))? as u32;
        self.claimed.fetch_add(1, Ordering::Relaxed);
        self.top.fetch_max(at + 1, Ordering::Relaxed);
        Some(at)
    }

    /// Whether a call may hold so many pages, of so many frames: the holds of all threads stay a small part.
    pub fn may_hold(&self, pages: u32, frames: u32) -> bool {
        let all = || pages * HELD_SHARE * self.claimed.load(Ordering::Relaxed);
        pages == 1 || pages <= HELD_PAGES_MAX && all() <= frames
    }

    /// Publishes `start..end` in the calling thread's row, for a call below `frame`. Whether the pages stay
    /// is to be looked up now. False when the row is in use: by the call that this one interrupts.
    #[inline]
    pub fn publish(&self, row: u32, start: PageId, end: u32, frame: usize) -> bool {
        let row = &self.rows[row as usize];
        if row.range.load(Ordering::Relaxed) != 0 {
            return false;
        }
        row.range.store(u64::from(start.0) | u64::from(end) << 32, Ordering::Relaxed);
        // Now handlers leave the row alone.
        row.frame.store(frame as u64, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }

    /// The calling thread's call has returned, or is not made.
    #[inline]
    pub fn clear(&self, row: u32) {
        self.rows[row as usize].range.store(0, Ordering::Release);
    }

    /// The frame of the call that holds pages in the calling thread's row.
    pub fn frame(&self, row: u32) -> Option<usize> {
        let row = &self.rows[row as usize];
        (row.range.load(Ordering::Relaxed) != 0).then(|| row.frame.load(Ordering::Relaxed) as usize)
    }

    /// The pages of a block that are held. Under the block's lock.
    pub fn of_block(&self, block: BlockId) -> u64 {
        fence(Ordering::SeqCst);
        let rows = &self.rows[..self.top.load(Ordering::Relaxed) as usize];
        rows.iter().fold(0, |mask, row| {
            let range = row.range.load(Ordering::Acquire);
            mask | clip(block, range as u32, (range >> 32) as u32)
        })
    }

    /// Frees the rows of threads that have ended, perhaps in a call. By one thread.
    pub fn bury(&self, ended: impl Fn(u32) -> bool) {
        for row in &self.rows[..self.top.load(Ordering::Relaxed) as usize] {
            let owner = row.owner.load(Ordering::Acquire);
            if owner != 0 && ended(owner) {
                row.range.store(0, Ordering::Release);
                self.claimed.fetch_sub(1, Ordering::Relaxed);
                row.owner.store(0, Ordering::Release);
            }
        }
    }

    /// In the child of a fork: its only thread, which had the first id, has the second one.
    pub fn forked(&self, before: u32, now: u32) {
        let mut mine = 0;
        for row in &self.rows {
            if row.owner.load(Ordering::Relaxed) == before {
                row.owner.store(now, Ordering::Relaxed);
                mine += 1;
            } else {
                row.range.store(0, Ordering::Relaxed);
                row.owner.store(0, Ordering::Relaxed);
            }
        }
        // Counted again: another thread of the parent may have been about to.
        self.claimed.store(mine, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_one_range_at_a_time_and_blocks_have_their_part_of_it() {
        let holds = Holds::default();
        let block = BlockId(3);
        assert_eq!(holds.of_block(block), 0);
        let (mine, other) = (holds.claim(7).unwrap(), holds.claim(8).unwrap());
        assert!(mine != other && holds.frame(mine).is_none());
        assert!(holds.publish(mine, block.page(60), block.page(0).0 + 66, 99));
        assert!(!holds.publish(mine, block.page(1), block.page(2).0, 98), "a handler's call");
        assert!(holds.publish(other, block.page(0), block.page(2).0, 97));
        assert_eq!([block, BlockId(4), BlockId(2)].map(|b| holds.of_block(b)), [0xf << 60 | 3, 3, 0]);
        assert_eq!(holds.frame(mine), Some(99));
        holds.clear(mine);
        assert_eq!((holds.of_block(block), holds.frame(mine)), (3, None));
    }

    #[test]
    fn rows_of_ended_threads_are_free_again_and_what_they_held_is_too() {
        let holds = Holds::default();
        let rows: Vec<u32> = (1..=HOLDS).map(|tid| holds.claim(tid).unwrap()).collect();
        assert_eq!(holds.claim(5000), None, "all are taken");
        for row in &rows[..2] {
            assert!(holds.publish(*row, PageId(*row), *row + 1, 0));
        }
        holds.bury(|tid| tid == 1);
        assert_eq!(holds.of_block(BlockId(0)), 1 << rows[1]);
        assert_eq!(holds.claim(5000), Some(rows[0]));
    }

    #[test]
    fn a_forked_child_keeps_its_own_row_alone() {
        let holds = Holds::default();
        let rows: Vec<u32> = (1..=3).map(|tid| holds.claim(tid).unwrap()).collect();
        for row in &rows {
            assert!(holds.publish(*row, PageId(*row), *row + 1, 0));
        }
        holds.forked(2, 77);
        assert_eq!(holds.of_block(BlockId(0)), 1 << rows[1]);
        holds.bury(|tid| tid == 2);
        assert_eq!(holds.of_block(BlockId(0)), 1 << rows[1], "it has another id now");
        holds.bury(|tid| tid == 77);
        assert_eq!(holds.of_block(BlockId(0)), 0);
    }

    #[test]
    fn holds_of_many_threads_stay_a_small_part_of_the_frames() {
        let holds = Holds::default();
        for tid in 1..=100 {
            holds.claim(tid).unwrap();
        }
        assert!(holds.may_hold(17, 17 * 100 * HELD_SHARE) && !holds.may_hold(17, 17 * 100 * HELD_SHARE - 1));
        assert!(holds.may_hold(1, 1), "a page is little");
        assert!(!holds.may_hold(HELD_PAGES_MAX + 1, 1 << 30));
    }
}
