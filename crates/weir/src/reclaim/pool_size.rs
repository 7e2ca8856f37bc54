//! The pool's size with the adaptive policy: measured here, decided in [`crate::policy::pool_size`].

use crate::config::Policy;
use crate::door::Pager;
use crate::limits::{FLOOR_SHARE, LOOK_NS};
use crate::page::id::BLOCK_PAGES;
use crate::policy::pool_size::Signals;
use crate::shared::Core;
use crate::shared::swapping::Readings;
use crate::stats;
use crate::sync::Ordering;

/// Looks at what the program had for itself, if it is time, and does what comes of it. By the background
/// thread.
pub fn choose<P: Pager>(core: &Core<P>, now_ns: u64) {
    let Some(s) = core.copies.swapping.as_ref().filter(|s| s.policy == Policy::Adaptive) else { return };
    let Ok(mut known) = s.pool_size.try_lock() else { return };
    let (control, last) = &mut *known;
    let elapsed_ns = now_ns.saturating_sub(last.at_ns);
    if elapsed_ns < LOOK_NS {
        return;
    }
    let (was, now, major) = (*last, core.meter.read(), core.stats.faults_major().get());
    let gaps = now.gaps.saturating_sub(was.sums.gaps);
    let floor_ns = floor(was.floor_ns, core.meter.take_shortest(gaps));
    *last = Readings { at_ns: now_ns, sums: now, major, floor_ns };
    // At first, and in the child of a fork, there is nothing to compare with.
    if was.at_ns == 0 {
        return;
    }
    let between_ns = now.between_ns.saturating_sub(was.sums.between_ns);
    let own_ns = between_ns.saturating_sub(gaps * floor_ns);
    let size = control.next(Signals {
        elapsed_ns,
        own_ns,
        faults: major.saturating_sub(was.major),
        ram: core.room.frames.limit() / BLOCK_PAGES,
        owned: core.room.pool.owned(),
        limit: core.room.pool.limit(),
        most: core.room.pool_most(),
        usable: s.usable() && !core.room.take_pool_needed(),
        plenty: s.has_plenty(),
    });
    core.room.share_pool(&core.ledger, size);
    if core.room.is_pool_needed() {
        core.room.need_pool(&core.ledger); // since the flag was taken
    }
    let stats = &core.stats;
    stats::add(&stats.program_ns, own_ns);
    stats.fault_floor_ns.store(floor_ns, Ordering::Relaxed);
    stats.share_trials.store(control.begun, Ordering::Relaxed);
    stats.share_kept.store(control.kept, Ordering::Relaxed);
}

/// The kernel's part of a fault: the shortest that was seen, forgotten slowly.
fn floor(was: u64, shortest: Option<u64>) -> u64 {
    match shortest {
        Some(ns) if was == 0 || ns <= was => ns,
        Some(ns) => was + (ns - was) / FLOOR_SHARE,
        None => was,
    }
}
