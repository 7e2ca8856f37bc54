//! Unmap: a block's pages move into an empty window, one MOVE per run, one TLB flush per MOVE.

use super::lift::lift;
use super::tally;
use super::window::Unmapped;
use crate::config::UNMAP_BATCH_MAX;
use crate::door::Pager;
use crate::page::id::{BLOCK_PAGES, next_run, run_mask};
use crate::page::state::{PageWord, State, Word, must};
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{BlockId, PageId, WindowId};
use crate::shared::{Core, count};
use crate::stats;
use crate::sync::Ordering;
use weir_os::sys::Errno;

/// Stages what can be staged of a block that was taken from the resident set.
pub fn unmap<P: Pager>(core: &Core<P>, block: BlockId) -> Unmapped {
    let row = core.table.block(block);
    let guard = row.lock();
    tally::blocks(&core.stats, 1);
    if row.window().is_some() || row.spend_rest() {
        // Still has staged pages from last time, or did not compress then: another turn.
        drop(guard);
        tally::stayed(core, block);
        return Unmapped::Nothing;
    }
    if core.room.frames.can_lift() && core.unmap_batch >= UNMAP_BATCH_MAX.into() {
        if let Some(done) = lift(core, guard) {
            if row.resident() > 0 {
                tally::stayed(core, block);
            }
            return done;
        }
        tally::blocks(&core.stats, 1);
        return move_out(core, row.lock(), u64::MAX);
    }
    move_out(core, guard, u64::MAX)
}

/// Stages pages of `mask` of a block that was not taken from the resident set.
pub fn unmap_part<P: Pager>(core: &Core<P>, block: BlockId, mask: u64) -> Unmapped {
    move_out(core, core.table.block(block).lock(), mask)
}

/// One MOVE per run of the allowed pages into an empty window.
fn move_out<P: Pager>(core: &Core<P>, row: BlockGuard<'_>, allowed: u64) -> Unmapped {
    let block = row.block();
    if row.window().is_some() {
        // Between two holds of the lock somebody else was at it.
        tally::stayed(core, block);
        return Unmapped::Nothing;
    }
    let mask = movable(&core.table, &row, allowed & row.valid() & !row.fixed() & !core.in_use(&row));
    let window = if mask == Leaving::default() { None } else { core.room.frames.take_empty() };
    tally::frames(&core.stats, (mask != Leaving::default()).into());
    let Some(window) = window else {
        let left = row.resident();
        drop(row);
        if left > 0 {
            tally::stayed(core, block);
        }
        return if mask == Leaving::default() { Unmapped::Nothing } else { Unmapped::NoWindow };
    };
    let stage = |word: PageWord<'_>| {
        must(word.try_stage(word.load()));
    };
    let staged = drain_runs(core, &row, window, mask.moved, stage)
        | drain_copies(core, &row, window, mask.copied, stage);
    let n = staged.count_ones();
    row.add_resident(-(n as i32));
    count(&core.stats.pages_unmapped, n);
    if n == 0 {
        core.room.frames.put_window(window, 0, 0);
        tally::frames(&core.stats, 1);
    } else {
        stats::add(&core.stats.blocks_unmapped, 1);
        row.set_window(Some(window));
        core.staged.add_pages(n);
        core.staged.push(block);
        tally::queues(&core.stats, 1);
    }
    let left = row.resident();
    drop(row);
    if left > 0 {
        tally::stayed(core, block);
    }
    if n == 0 { Unmapped::Nothing } else { Unmapped::Staged(n) }
}

/// Pages of a block that can leave, by the way they go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Plain memory, from the first resident page to the last: what MOVE may sweep up, holes
    /// included.
    pub moved: u64,
    /// Resident pages that nobody can write to.
    pub copied: u64,
}

/// Sorts the pages of `allowed`, without those locked in memory.
fn movable(table: &PageTable, held: &BlockGuard<'_>, allowed: u64) -> Leaving {
    let (mut resident, mut locked) = (0u64, 0u64);
    for i in 0..64 {
        let w = table.word(held.block().page(i)).load();
        if w.mlocked() {
            locked |= 1 << i;
        } else if w.state() == State::Resident {
            resident |= 1 << i;
        }
    }
    leaving(resident & allowed, allowed & !locked, held.readonly())
}

fn resident_of(table: &PageTable, held: &BlockGuard<'_>) -> u64 {
    let block = held.block();
    let resident = |i: &u32| table.word(block.page(*i)).load().state() == State::Resident;
    (0..64).filter(resident).fold(0, |m, i| m | 1 << i)
}

/// The same for a given set of resident pages.
pub fn leaving(resident: u64, allowed: u64, readonly: u64) -> Leaving {
    let plain = resident & !readonly;
    let span = match plain {
        0 => 0,
        m => run_mask(m.trailing_zeros(), 64 - m.leading_zeros() - m.trailing_zeros()),
    };
    Leaving { moved: span & allowed & !readonly, copied: resident & allowed & readonly }
}

/// Moves the resident pages of `mask` into the window and calls `moved` for each that went.
/// Returns their mask. The window is empty. Runs of the mask may have holes:
/// one call takes a whole block of scattered pages.
pub fn drain_runs<P: Pager>(
    core: &Core<P>,
    held: &BlockGuard<'_>,
    window: WindowId,
    mask: u64,
    moved: impl Fn(PageWord<'_>),
) -> u64 {
    const RETRIES: u32 = 10_000;
    let block = held.block();
    let whole = core.pager.sweeps_holes() && core.unmap_batch >= BLOCK_PAGES;
    let mask = if whole { mask } else { mask & resident_of(&core.table, held) };
    let (mut gone, mut at, mut tries) = (0u64, 0, 0);
    while let Some((start, len)) = next_run(mask, at) {
        let len = len.min(core.unmap_batch);
        let (d, arrived) = core.pager.drain(window.frame(start), block.page(start), len);
        stats::add(&core.stats.unmap_calls, 1);
        for i in start..start + d.pages {
            let word = core.table.word(block.page(i));
            if word.load().state() != State::Resident {
                continue; // a hole, as it should be
            }
            if arrived >> (i - start) & 1 == 0 {
                core.pager.settle_frame(window.frame(i));
            }
            moved(word);
            gone |= 1 << i;
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
                dropped_behind_our_back(core, held, block.page(at));
                at += 1;
            }
            Some(_) => {
                let there = core.table.word(block.page(at)).load().state() == State::Resident;
                count(&core.stats.out_busy, u32::from(there));
                at += 1;
            }
        }
    }
    gone
}

/// The same for pages that nobody can write to, which are copied one by one.
pub fn drain_copies<P: Pager>(
    core: &Core<P>,
    held: &BlockGuard<'_>,
    window: WindowId,
    mask: u64,
    moved: impl Fn(PageWord<'_>),
) -> u64 {
    let (block, mut gone) = (held.block(), 0);
    for i in (0..64).filter(|i| mask >> i & 1 == 1) {
        stats::add(&core.stats.unmap_calls, 1);
        if core.pager.drain_readonly(window.frame(i), block.page(i)).pages == 1 {
            moved(core.table.word(block.page(i)));
            gone |= 1 << i;
        }
    }
    gone
}

/// The program dropped a resident page by a call that Weir does not see: it reads as zeros now.
fn dropped_behind_our_back<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId) {
    let word = core.table.word(page);
    let found: Word = word.load();
    if found.state() == State::Resident && word.try_discard(found).is_ok() {
        held.add_resident(-1);
        core.room.frames.vanished(1);
        core.census.count_managed(-1);
        if found.mlocked() {
            core.census.mlocked.fetch_sub(1, Ordering::Relaxed);
        }
        core.free_copy(held, page, found);
    }
}
