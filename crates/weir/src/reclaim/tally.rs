//! The locks that the way out takes, counted where it takes them: what a page costs in acquisitions. Not
//! counted: giving free frames back to the kernel, dropping kept copies, compaction, and what waits for a
//! fault's own frame on the way in.

use crate::door::Pager;
use crate::page::BlockId;
use crate::page::resident::Arrival;
use crate::shared::Core;
use crate::stats::Stats;

/// Locks of blocks.
pub fn blocks(stats: &Stats, n: u32) {
    stats.out_block_locks().count(n);
}

/// Holds of the frames' lock.
pub fn frames(stats: &Stats, n: u32) {
    stats.out_frame_locks().count(n);
}

/// Holds of a queue's lock.
pub fn queues(stats: &Stats, n: u32) {
    stats.out_queue_locks().count(n);
}

/// Some of the block stayed: it waits for another turn.
pub fn stayed<P: Pager>(core: &Core<P>, block: BlockId) {
    queues(&core.stats, core.resident.note_arrived(&core.table, block, Arrival::Stayed).into());
}
