//! The pool's share of the RAM and the zeal of nearness, with the adaptive policy: `shared/share.rs` says how they are found, `meter.rs` by what.

use crate::config::Policy;
use crate::door::Pager;
use crate::page::id::BLOCK_PAGES;
use crate::shared::Core;
use crate::shared::share::{Look, PERIOD_NS, Period};
use crate::shared::swapping::Readings;
use crate::stats;
use crate::sync::Ordering;
use weir_os::mem::PAGE_BYTES;
use weir_os::thread;

/// By how much the kernel's part of a fault grows towards what a period shows: one part in so many.
const FLOOR_SHARE: u64 = 16;

/// Looks at what the program had for itself, if it is time, and does what comes of it. By the background thread.
pub fn choose<P: Pager>(core: &Core<P>, now_ns: u64) {
    let Some(s) = core.swapping.as_ref().filter(|s| s.policy == Policy::Adaptive) else { return };
    let Ok(mut share) = s.share.try_lock() else { return };
    let (chooser, last) = &mut *share;
    let elapsed_ns = now_ns.saturating_sub(last.at_ns);
    if elapsed_ns < PERIOD_NS {
        return;
    }
    let (was, now) = (*last, core.meter.read());
    let gaps = now.gaps.saturating_sub(was.sums.gaps);
    let floor_ns = floor(was.floor_ns, core.meter.take_shortest(gaps));
    let (own_ns, process_ns) = (thread::cpu_ns(), thread::process_cpu_ns());
    *last = Readings { at_ns: now_ns, sums: now, floor_ns, own_ns, process_ns };
    // At first, and in the child of a fork, whose clock begins anew, there is nothing to compare with.
    if was.at_ns == 0 || process_ns < was.process_ns {
        return;
    }
    let busy_ns = (process_ns - was.process_ns).saturating_sub(own_ns.saturating_sub(was.own_ns));
    let between_ns = now.between_ns.saturating_sub(was.sums.between_ns);
    let look = Look {
        now_ns,
        period: Period { elapsed_ns, between_ns, gaps, busy_ns },
        floor_ns,
        threads: core.demand.faulters(),
        ram: core.frames.limit() / BLOCK_PAGES,
        data: (core.stats.managed_bytes.load(Ordering::Relaxed)
            / (u64::from(BLOCK_PAGES) * PAGE_BYTES as u64)) as u32,
        owned: core.pool.owned(),
        most: core.pool_most(),
        limit: core.pool.limit(),
        usable: s.usable() && !core.take_pool_needed(),
        plenty: s.has_plenty(),
        zeal_matters: core.trials.zeal_matters(),
    };
    let choice = chooser.next(look);
    core.share_pool(choice.share);
    if core.is_pool_needed() {
        core.need_pool(); // since the flag was taken
    }
    core.trials.set_zeal(choice.zeal);
    let stats = &core.stats;
    stats::add(&stats.program_ns, between_ns.saturating_sub(gaps * floor_ns));
    stats.nearness_zeal.store(choice.zeal as u64, Ordering::Relaxed);
    stats.fault_floor_ns.store(floor_ns, Ordering::Relaxed);
    stats.share_trials.store(chooser.counts.begun, Ordering::Relaxed);
    stats.share_kept.store(chooser.counts.kept, Ordering::Relaxed);
}

/// The kernel's part of a fault: the shortest that was seen, forgotten slowly.
fn floor(was: u64, shortest: Option<u64>) -> u64 {
    match shortest {
        Some(ns) if was == 0 || ns <= was => ns,
        Some(ns) => was + (ns - was) / FLOOR_SHARE,
        None => was,
    }
}
