//! Relief: room in the pool, for whoever waits for it. What costs nothing goes first; then the pool's coldest
//! pages go to the swap file.

use super::batch::{Batch, Pooled, Pushed};
use super::compact::compact;
use super::evict::evict_some;
use super::tally;
use crate::door::{BlockIo, Pager};
use crate::limits::{COLD_BLOCKS, POOL_BATCHES, POOL_VACANT_PART};
use crate::page::BlockId;
use crate::page::cold::List;
use crate::page::id::BLOCK_PAGES;
use crate::page::state::State;
use crate::shared::copies::Copies;
use crate::shared::{Core, count};
use crate::sync::Ordering;
use crate::tier::pool;

/// Writes what there is. Under no lock.
pub fn finish<P: Pager>(core: &Core<P>, batch: &mut Batch<'_, P>) {
    // Cold pages go along with those for which the pool had no room, and as many again make room for the
    // next.
    let wanted = batch.no_room && !is_spared(core, batch) || is_tight(core, batch);
    let relieves = wanted && !evict_some(core);
    for _ in 0..if relieves { 2 } else { 1 } {
        if relieves {
            fill_from_pool(core, batch);
        }
        batch.flush(core);
    }
    batch.end();
}

/// Makes room in a pool that has its share and is almost full: by what costs nothing, if there is any.
pub fn relieve_pool<P: Pager>(core: &Core<P>, batch: &mut Batch<'_, P>) {
    if is_tight(core, batch) && !evict_some(core) && is_tight(core, batch) && batch.usable() {
        fill_from_pool(core, batch);
        batch.flush(core);
    }
}

/// Frames out of the pool, for a fault that found none and where nothing else can leave: what is in
/// frames is pinned, say. The pool's coldest pages are written until it gives a window back. Frames
/// freed.
pub fn frames_from_pool<P: Pager>(core: &Core<P>) -> u32 {
    let mut batch = Batch::for_fault(core, true);
    let (before, written) = (core.room.pool.owned(), pages_out(&core.copies));
    for _ in 0..POOL_BATCHES {
        if core.room.pool.owned() < before || !batch.usable() && core.copies.doubled() == 0 {
            break;
        }
        if !evict_some(core) {
            fill_from_pool(core, &mut batch);
            batch.flush(core);
        }
        compact(core);
    }
    let freed = before.saturating_sub(core.room.pool.owned()) * BLOCK_PAGES;
    // What was written is on its way to a frame: whoever waits may go on waiting.
    count(&core.room.progress, freed + u32::from(pages_out(&core.copies) > written));
    freed
}

fn pages_out<D: BlockIo>(copies: &Copies<D>) -> u64 {
    copies.swapping.as_ref().map_or(0, |s| s.tier.counters().pages_out.load(Ordering::Relaxed))
}

/// Whether the pool needs room, and this batch is to make it.
fn is_tight<P: Pager>(core: &Core<P>, batch: &Batch<'_, P>) -> bool {
    core.room.pool.is_tight(POOL_VACANT_PART) && !is_spared(core, batch)
}

/// No fault that waits for its own frame pays for a share that fell; one that makes room ahead of need
/// does.
fn is_spared<P: Pager>(core: &Core<P>, batch: &Batch<'_, P>) -> bool {
    batch.in_fault && core.room.pool.is_over()
}

/// Fills the batch with the coldest pages of the pool that are not in the file.
pub fn fill_from_pool<P: Pager>(core: &Core<P>, batch: &mut Batch<'_, P>) {
    let Some(s) = batch.swapping else { return };
    for _ in 0..COLD_BLOCKS {
        if batch.is_full(s.batch) {
            return;
        }
        // Of written blocks, newer pages may not be.
        let behind = || match batch.pooled {
            Pooled::Stay if core.copies.unwritten(&core.stats).0 > u64::from(batch.pages) => {
                s.cold.pop(&core.table, List::Written)
            }
            _ => None,
        };
        tally::queues(&core.stats, 1);
        let Some(block) = s.cold.pop(&core.table, List::Cold).or_else(behind) else { return };
        if !push_pooled(core, batch, block) {
            s.cold.push_front(&core.table, List::Cold, block);
            return;
        }
    }
}

/// Takes the pooled pages of a block. False when some are left.
fn push_pooled<P: Pager>(core: &Core<P>, batch: &mut Batch<'_, P>, block: BlockId) -> bool {
    let held = core.table.block(block).lock();
    tally::blocks(&core.stats, 1);
    let mut doubled = false;
    for i in 0..BLOCK_PAGES {
        let page = block.page(i);
        let found = core.table.word(page).load();
        if found.doubled() {
            doubled |= batch.pooled == Pooled::Stay || !core.evict(&held, page, found);
            continue;
        }
        let Some(handle) = found.handle().filter(|_| found.state() == State::Pooled && found.tag() == 0)
        else {
            continue;
        };
        // A damaged record stays where it is: the program learns of it when it wants the page.
        let push = |codec: pool::Codec, b: &[u8]| batch.push(core, &held, page, found, codec.into(), b);
        let lent = core.room.pool.lend(&core.pager, handle, page, push);
        match lent {
            Ok(Pushed::Yes) => count(&core.stats.swap_from_pool, u32::from(batch.pooled == Pooled::Leave)),
            Ok(Pushed::Full | Pushed::No) => return false,
            Err(_) => {}
        }
    }
    if doubled {
        core.copies.note_written(&core.table, &core.stats, block);
    }
    true
}
