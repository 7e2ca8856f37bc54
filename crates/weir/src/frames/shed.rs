//! Free frames go back to the kernel: when there are more than the limit allows, and when faults
//! would rather have new ones.

use super::{FREE, Frames, IN_HAND, TAKEN, ZEROED};
use crate::door::Pager;
use crate::limits::{KEPT_FOR_POOL, LIFT_BLOCKS};
use crate::page::WindowId;
use crate::page::id::BLOCK_PAGES;
use crate::sync::Ordering;

/// Neighbouring windows in which nothing lies but free frames, taken.
struct Idle {
    first: WindowId,
    /// Free frames of each.
    masks: [u64; LIFT_BLOCKS as usize],
    windows: u32,
    frames: u32,
}

impl Frames {
    /// Gives the free frames of windows in which nothing else lies back to the kernel, one call for
    /// neighbouring windows, until about `want` are gone or `calls` are made. Returns how many.
    pub fn shed_windows<P: Pager>(&self, pager: &P, want: u32, calls: u32) -> u32 {
        let mut gone = 0;
        for _ in 0..calls {
            if gone >= want {
                break;
            }
            let Some(idle) = self.take_idle(want - gone) else { break };
            // Other places of these windows are empty.
            let last = idle.windows - 1;
            let start = idle.first.frame(idle.masks[0].trailing_zeros());
            let end = WindowId(idle.first.0 + last).frame(64 - idle.masks[last as usize].leading_zeros());
            let shed = pager.shed(start, end.0 - start.0).is_ok();
            for i in 0..idle.windows {
                let left = if shed { 0 } else { idle.masks[i as usize] };
                self.put_window(WindowId(idle.first.0 + i), left, 0);
            }
            if !shed {
                break;
            }
            self.existing.fetch_sub(idle.frames, Ordering::Relaxed);
            gone += idle.frames;
        }
        gone
    }

    /// Takes windows whose frames are all free, whole ones last: they serve streams and the pool.
    fn take_idle(&self, want: u32) -> Option<Idle> {
        let _guard = self.lock.lock();
        let is_idle = |w: u32| self.get(w, TAKEN) == 0 && self.get(w, IN_HAND) == 0;
        let w = self.partial.first_where(is_idle).or_else(|| self.full.first_where(is_idle))?;
        let mut idle = Idle { first: WindowId(w), masks: [0; LIFT_BLOCKS as usize], windows: 0, frames: 0 };
        for next in w..(w + LIFT_BLOCKS).min(self.rows.len() as u32) {
            let mask = self.get(next, FREE);
            if !is_idle(next) || mask == 0 || idle.frames >= want {
                break;
            }
            self.put(next, FREE, 0);
            self.put(next, ZEROED, 0);
            self.put(next, TAKEN, 1);
            self.refile(next);
            idle.masks[idle.windows as usize] = mask;
            idle.windows += 1;
            idle.frames += mask.count_ones();
        }
        self.free.fetch_sub(idle.frames, Ordering::Relaxed);
        Some(idle)
    }

    /// Gives free frames above the limit back to the kernel, but for those by which reclaim can make more
    /// free ([`KEPT_FOR_POOL`]). Returns how many are still too many.
    pub fn shed_excess<P: Pager>(&self, pager: &P) -> u32 {
        loop {
            let excess = self.existing().saturating_sub(self.limit());
            let most = excess.min(self.free().saturating_sub(KEPT_FOR_POOL));
            if most == 0 {
                return excess;
            }
            let Some(run) = self.take_run(most.min(BLOCK_PAGES)) else { return excess };
            if pager.shed(run.frame, run.n).is_err() {
                self.put_back(run.frame, run.n);
                return excess;
            }
            self.moved_out(run.frame, run.n);
            self.existing.fetch_sub(run.n, Ordering::Relaxed);
        }
    }

    /// Gives every free frame back to the kernel (a forked child: they are shared with the parent,
    /// and writing to them would copy garbage).
    pub fn shed_all_free<P: Pager>(&self, pager: &P) {
        while let Some(run) = self.take_run(BLOCK_PAGES) {
            if pager.shed(run.frame, run.n).is_err() {
                self.put_back(run.frame, run.n);
                return;
            }
            self.moved_out(run.frame, run.n);
            self.existing.fetch_sub(run.n, Ordering::Relaxed);
        }
    }
}
