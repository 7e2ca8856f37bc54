//! Writethrough: pool pages are written to the swap file while nobody waits for frames, and stay in the pool;
//! giving their places up later costs no I/O.
//!
//! With the adaptive policy that is done only while it pays: [`crate::policy::write_through`] says when.
//!
//! The coldest pages are written first: they are the next to leave the pool, and the least likely to die or
//! to come back before.

use super::writeback::{Kind, Out};
use crate::config::Policy;
use crate::door::Pager;
use crate::limits::{EVICT_PART, WRITTEN_BLOCKS};
use crate::page::BlockId;
use crate::page::cold::List;
use crate::page::id::BLOCK_PAGES;
use crate::page::state::State;
use crate::policy::write_through::{Standing, Totals};
use crate::shared::Core;
use crate::shared::swapping::{BATCH_BYTES, BATCH_PAGES};
use crate::stats;
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::mem::PAGE_BYTES;

/// What the adaptive policy does from now on, if it is time for a look. By the background thread.
pub fn choose<P: Pager>(core: &Core<P>, now_ns: u64) {
    let Some(s) = core.swapping.as_ref().filter(|s| s.policy == Policy::Adaptive) else { return };
    let Ok(mut chooser) = s.chooser.try_lock() else { return };
    if !chooser.is_due(now_ns) {
        return;
    }
    let (stats, get) = (&core.stats, |n: &AtomicU64| n.load(Ordering::Relaxed));
    let totals = Totals {
        now_ns,
        evicted: get(&stats.swap_from_pool) + get(&stats.swap_evicted_free),
        lost: stats.pool_in().get() + get(&stats.pool_died),
        io_ns: get(&s.io_ns),
    };
    let standing = Standing { fill: core.pool.fill_permille(), room: s.usable() && s.has_plenty() };
    if s.set_writes_through(chooser.next(totals, standing)) {
        stats::add(&stats.policy_switches, 1);
    }
}

/// Writes a batch of pool pages that are not in the swap file, if a full one is together; `partial`: also if
/// not. Under no lock. False when there was nothing to do, or it came to nothing.
pub fn write_through<P: Pager>(core: &Core<P>, partial: bool) -> bool {
    let Some(s) = core.swapping.as_ref().filter(|s| s.writes_through() && s.usable()) else { return false };
    // Where the file gets short, slots are for pages that have no other copy.
    if !s.has_plenty() || !(is_due(core, s.batch) || partial && core.unwritten().0 > 0) {
        return false;
    }
    let mut out = Out::of_kind(core, Kind::Through);
    out.fill_from_pool(core);
    let begun = !out.is_empty();
    out.flush(core);
    begun && s.usable() && s.has_plenty()
}

/// Whether a full batch of unwritten pool pages is together.
fn is_due<P: Pager>(core: &Core<P>, batch: u32) -> bool {
    let (pages, bytes) = core.unwritten();
    pages >= u64::from(batch) || bytes >= BATCH_BYTES as u64
}

/// Gives up what makes some room in a tight pool: about one record in sixteen. Whether there was so much to
/// give up.
pub fn evict_some<P: Pager>(core: &Core<P>) -> bool {
    let records = core.stats.pool_logical_bytes().get() / PAGE_BYTES as u64;
    let want = (records / u64::from(EVICT_PART)).clamp(1, u64::from(BATCH_PAGES)) as u32;
    evict_written(core, want) == want
}

/// Gives up `want` places in the pool whose pages are in the swap file as well. How many. Blocks that are
/// busy are passed over: another block's lock may be held. Blocks in which nothing is written any more are
/// cold from here on, also when no page is doubled at all: nobody else would find them once writing through
/// has ended.
pub fn evict_written<P: Pager>(core: &Core<P>, want: u32) -> u32 {
    let Some(s) = &core.swapping else { return 0 };
    let mut given = 0;
    for _ in 0..WRITTEN_BLOCKS {
        if given >= want {
            break;
        }
        let Some(block) = s.cold.pop(&core.table, List::Written) else { break };
        match evict_block(core, block, want - given) {
            Some(n) => given += n,
            None => core.note_written(block),
        }
    }
    given
}

/// Gives up places of a block's doubled pages, `want` at most; its other pooled pages are cold. `None`: it is
/// busy.
fn evict_block<P: Pager>(core: &Core<P>, block: BlockId, want: u32) -> Option<u32> {
    let _guard = core.table.block(block).try_lock()?;
    let (mut given, mut left) = (0, false);
    for page in (0..BLOCK_PAGES).map(|i| block.page(i)) {
        let found = core.table.word(page).load();
        if given == want && found.doubled() {
            let s = core.swapping.as_ref()?;
            s.cold.push_front(&core.table, List::Written, block);
            return Some(given);
        }
        if core.evict(page, found) {
            given += 1;
        } else {
            left |= found.state() == State::Pooled;
        }
    }
    if left {
        core.note_pooled(block);
    }
    Some(given)
}
