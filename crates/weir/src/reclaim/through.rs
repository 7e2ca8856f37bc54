//! Writethrough: pool pages are written to the swap file while nobody waits for frames, and stay in the pool;
//! giving their places up later costs no I/O.
//!
//! With the adaptive policy that is done only while it pays: [`crate::policy::write_through`] says when.
//!
//! The coldest pages are written first: they are the next to leave the pool, and the least likely to die or
//! to come back before.

use super::batch::{Batch, Pooled};
use super::relief::fill_from_pool;
use crate::config::Policy;
use crate::door::{BlockIo, Pager};
use crate::policy::write_through::{Standing, Totals};
use crate::shared::Core;
use crate::shared::copies::Copies;
use crate::shared::swapping::BATCH_BYTES;
use crate::stats::{self, Stats};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;

/// What the adaptive policy does from now on, if it is time for a look. By the background thread.
pub fn choose<P: Pager>(core: &Core<P>, now_ns: u64) {
    let Some(s) = core.copies.swapping.as_ref().filter(|s| s.policy == Policy::Adaptive) else { return };
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
    let standing = Standing { fill: core.room.pool.fill_permille(), room: s.usable() && s.has_plenty() };
    if s.set_writes_through(chooser.next(totals, standing)) {
        stats::add(&stats.policy_switches, 1);
    }
}

/// Writes a batch of pool pages that are not in the swap file, if a full one is together; `partial`: also if
/// not. Under no lock. False when there was nothing to do, or it came to nothing.
pub fn write_through<P: Pager>(core: &Core<P>, partial: bool) -> bool {
    let Some(s) = core.copies.swapping.as_ref().filter(|s| s.writes_through() && s.usable()) else {
        return false;
    };
    // Where the file gets short, slots are for pages that have no other copy.
    if !s.has_plenty()
        || !(is_due(&core.copies, &core.stats, s.batch)
            || partial && core.copies.unwritten(&core.stats).0 > 0)
    {
        return false;
    }
    let mut batch = Batch::of_pool(core, Pooled::Stay);
    fill_from_pool(core, &mut batch);
    let begun = !batch.is_empty();
    batch.flush(core);
    begun && s.usable() && s.has_plenty()
}

/// Whether a full batch of unwritten pool pages is together.
fn is_due<D: BlockIo>(copies: &Copies<D>, stats: &Stats, batch: u32) -> bool {
    let (pages, bytes) = copies.unwritten(stats);
    pages >= u64::from(batch) || bytes >= BATCH_BYTES as u64
}
