//! Unmap: a block's pages move into an empty window, one MOVE per run, one TLB flush per MOVE.

use crate::door::Pager;
use crate::page::id::{next_run, run_mask};
use crate::page::resident::Arrival;
use crate::page::state::{State, Word};
use crate::page::{BlockId, PageId, WindowId};
use crate::shared::{Core, count};
use crate::stats;
use weir_os::sys::Errno;

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// So many pages are staged now.
    Staged(u32),
    /// No page of the block could leave.
    Nothing,
    /// No empty window.
    NoWindow,
}

/// Stages what can be staged of a block that was taken from the resident set.
pub fn unmap<P: Pager>(core: &Core<P>, block: BlockId) -> Unmapped {
    let row = core.table.block(block);
    let guard = row.lock();
    if row.window().is_some() || row.spend_rest() {
        // Still has staged pages from last time, or did not compress then: another turn.
        drop(guard);
        core.resident.arrived(&core.table, block, Arrival::Fetched);
        return Unmapped::Nothing;
    }
    let mask = movable(core, block, row.valid() & !row.fixed());
    let Some(window) = (mask != 0).then(|| core.frames.take_empty()).flatten() else {
        drop(guard);
        if row.resident() > 0 {
            core.resident.arrived(&core.table, block, Arrival::Fetched);
        }
        return if mask == 0 { Unmapped::Nothing } else { Unmapped::NoWindow };
    };
    let staged = drain_runs(core, block, window, mask, |word| {
        let _ = word.try_stage(word.load());
    });
    let n = staged.count_ones();
    row.add_resident(-(n as i32));
    count(&core.stats.pages_unmapped, n);
    if n == 0 {
        core.frames.put_window(window, 0, 0);
    } else {
        stats::add(&core.stats.blocks_unmapped, 1);
        row.set_window(Some(window));
        core.staged.add_pages(n);
        core.staged.push(block);
    }
    let left = row.resident();
    drop(guard);
    if left > 0 {
        core.resident.arrived(&core.table, block, Arrival::Fetched);
    }
    if n == 0 { Unmapped::Nothing } else { Unmapped::Staged(n) }
}

/// Pages of `allowed` between the first and the last resident one, without those locked in
/// memory: what one MOVE may sweep up, holes included. 0 when no page is resident.
fn movable<P: Pager>(core: &Core<P>, block: BlockId, allowed: u64) -> u64 {
    let (mut resident, mut pinned) = (0u64, 0u64);
    for i in 0..64 {
        let w = core.table.word(block.page(i)).load();
        if w.pinned() {
            pinned |= 1 << i;
        } else if w.state() == State::Resident {
            resident |= 1 << i;
        }
    }
    resident &= allowed;
    if resident == 0 {
        return 0;
    }
    let (first, last) = (resident.trailing_zeros(), 63 - resident.leading_zeros());
    run_mask(first, last - first + 1) & allowed & !pinned
}

/// Moves the resident pages of `mask` into the window and calls `moved` for each that went.
/// Returns their mask. Under the block's lock; the window is empty. Runs of the mask may have holes:
/// one call takes a whole block of scattered pages.
pub fn drain_runs<P: Pager>(
    core: &Core<P>,
    block: BlockId,
    window: WindowId,
    mask: u64,
    moved: impl Fn(crate::page::state::PageWord<'_>),
) -> u64 {
    const RETRIES: u32 = 10_000;
    let (mut gone, mut at, mut tries) = (0u64, 0, 0);
    while let Some((start, len)) = next_run(mask, at) {
        let (d, arrived) = core.pager.drain(window.slot(start), block.page(start), len);
        stats::add(&core.stats.unmap_calls, 1);
        for i in start..start + d.pages {
            let page = block.page(i);
            if arrived >> (i - start) & 1 == 1 {
                moved(core.table.word(page));
                gone |= 1 << i;
            } else if core.table.word(page).load().state() == State::Resident {
                dropped_behind_our_back(core, page);
            }
        }
        at = start + d.pages;
        match d.stop {
            None => {}
            Some(_) if d.pages > 0 => {} // ask again at the stop to learn why
            Some(Errno::EAGAIN) if tries < RETRIES => {
                tries += 1;
                weir_os::thread::yield_now();
            }
            Some(Errno::ENOENT) => {
                // Nothing is mapped there any more: unmapped by a call that Weir does not see.
                let page = block.page(at);
                if core.table.word(page).load().state() == State::Resident {
                    dropped_behind_our_back(core, page);
                }
                at += 1;
            }
            Some(_) => {
                count(&core.stats.out_busy, 1);
                at += 1;
            }
        }
    }
    gone
}

/// The program dropped a resident page by a call that Weir does not see: it reads as zeros now.
fn dropped_behind_our_back<P: Pager>(core: &Core<P>, page: PageId) {
    let word = core.table.word(page);
    let found: Word = word.load();
    if word.try_discard(found).is_ok() {
        core.table.block(page.block()).add_resident(-1);
        core.frames.vanished(1);
        core.count_managed(-1);
        if let Some(h) = found.kept() {
            core.free_record(h);
            core.count_kept(-1);
        }
    }
}
