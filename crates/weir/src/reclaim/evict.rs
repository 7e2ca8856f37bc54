//! Eviction from the pool: pages that are in the swap file as well give up their places, which costs no I/O.

use crate::door::Pager;
use crate::limits::{POOL_VACANT_PART, WRITTEN_BLOCKS};
use crate::page::BlockId;
use crate::page::cold::List;
use crate::page::id::BLOCK_PAGES;
use crate::page::state::State;
use crate::shared::Core;
use crate::shared::swapping::BATCH_PAGES;
use weir_os::mem::PAGE_BYTES;

/// Gives up what makes some room in a tight pool: about one record in sixteen. Whether there was so much to
/// give up.
pub fn evict_some<P: Pager>(core: &Core<P>) -> bool {
    let records = core.stats.pool_logical_bytes().get() / PAGE_BYTES as u64;
    let want = (records / POOL_VACANT_PART).clamp(1, u64::from(BATCH_PAGES)) as u32;
    evict_written(core, want) == want
}

/// Gives up `want` places in the pool whose pages are in the swap file as well. How many. Blocks that are
/// busy are passed over: another block's lock may be held. Blocks in which nothing is written any more are
/// cold from here on, also when no page is doubled at all: nobody else would find them once writing through
/// has ended.
pub fn evict_written<P: Pager>(core: &Core<P>, want: u32) -> u32 {
    let Some(s) = &core.copies.swapping else { return 0 };
    let mut given = 0;
    for _ in 0..WRITTEN_BLOCKS {
        if given >= want {
            break;
        }
        let Some(block) = s.cold.pop(&core.table, List::Written) else { break };
        match evict_block(core, block, want - given) {
            Some(n) => given += n,
            None => core.copies.note_written(&core.table, &core.stats, block),
        }
    }
    given
}

/// Gives up places of a block's doubled pages, `want` at most; its other pooled pages are cold. `None`: it is
/// busy.
fn evict_block<P: Pager>(core: &Core<P>, block: BlockId, want: u32) -> Option<u32> {
    let held = core.table.block(block).try_lock()?;
    let (mut given, mut left) = (0, false);
    for page in (0..BLOCK_PAGES).map(|i| block.page(i)) {
        let found = core.table.word(page).load();
        if given == want && found.doubled() {
            let s = core.copies.swapping.as_ref()?;
            s.cold.push_front(&core.table, List::Written, block);
            return Some(given);
        }
        if core.evict(&held, page, found) {
            given += 1;
        } else {
            left |= found.state() == State::Pooled;
        }
    }
    if left {
        core.copies.note_pooled(&core.table, &core.stats, block);
    }
    Some(given)
}
