//! Spans: the blocks that a stream touches next for the first time come all at once, in new frames or by one MOVE.
//!
//! Each MOVE interrupts the other processors on which the program runs, which costs more than
//! zeroing a block. Only blocks never touched (or same-filled) are taken: their bytes cost little, so
//! the faulting thread may do it before it goes on. Expanding records is left to the thread that
//! fetches ahead, block by block, so that both work at the same time.

use super::fresh;
use super::install::{fetch, fill, finish};
use super::readahead;
use crate::door::Pager;
use crate::limits::{FREE_RESERVE, KEPT_FOR_POOL, LIFT_BLOCKS};
use crate::page::id::BLOCK_PAGES;
use crate::page::region::Access;
use crate::page::resident::Arrival;
use crate::page::state::State;
use crate::page::{BlockId, PageId, Slot, WindowId};
use crate::shared::copies::Keep;
use crate::shared::{Core, count};
use crate::sync::LockGuard;

/// Brings in up to `most` whole blocks from `first` on, leaving `state` as their readahead. Returns how many
/// came; they are the first ones. Stops at a block that is busy, partly there, or dear to fetch.
pub fn bring_span<P: Pager>(core: &Core<P>, first: BlockId, most: u32, state: u64) -> u32 {
    let plentiful = core.takes_new_frames();
    let room = if plentiful { core.frames.credit() } else { core.frames.free() };
    let spare = room.saturating_sub(KEPT_FOR_POOL + FREE_RESERVE);
    let most = most.min(LIFT_BLOCKS).min(spare / BLOCK_PAGES);
    // A single one would be a MOVE of its own as well.
    let least = if plentiful { 1 } else { 2 };
    if most < least {
        return 0;
    }
    let mut guards: [Option<LockGuard<'_>>; LIFT_BLOCKS as usize] = Default::default();
    let mut n = 0;
    while n < most && first.0 + n < core.table.pages() / BLOCK_PAGES {
        let Some(guard) = fresh_block(core, BlockId(first.0 + n)) else { break };
        guards[n as usize] = Some(guard);
        n += 1;
    }
    if n < least {
        return 0;
    }
    let (came, read) = if plentiful { (new_frames(core, first, n), 0) } else { free_frames(core, first, n) };
    for i in 0..n {
        let here = came.saturating_sub(i * BLOCK_PAGES).min(BLOCK_PAGES);
        if here > 0 {
            let block = BlockId(first.0 + i);
            let row = core.table.block(block);
            row.add_resident(here as i32);
            let last = came <= (i + 1) * BLOCK_PAGES;
            readahead::pass_on(core, block, state, here, if last { read } else { 0 });
            core.resident.arrived(&core.table, block, Arrival::Fetched);
        }
    }
    if came > 0 {
        core.demand.note(came);
        core.stats.readahead().count(came);
        count(&core.stats.swap_ra, read);
    }
    drop(guards);
    came / BLOCK_PAGES
}

/// From the kernel, block by block. Pages that came, from the start.
fn new_frames<P: Pager>(core: &Core<P>, first: BlockId, blocks: u32) -> u32 {
    let mut came = 0;
    for i in 0..blocks {
        let here = fresh::fill_run(core, BlockId(first.0 + i).page(0), BLOCK_PAGES).unwrap_or(0);
        came += here;
        if here < BLOCK_PAGES {
            break;
        }
    }
    came
}

/// From the arena, by one MOVE. Pages that came, from the start, and how many of them had contents.
fn free_frames<P: Pager>(core: &Core<P>, first: BlockId, blocks: u32) -> (u32, u32) {
    let Some((window, n)) = core.frames.take_windows(blocks) else { return (0, 0) };
    let (page, slot, pages) = (first.page(0), window.slot(0), n * BLOCK_PAGES);
    let ready = (0..pages).take_while(|i| fetch(core, PageId(page.0 + i), Slot(slot.0 + i), false).is_ok());
    let ready = ready.count() as u32;
    let moved = if ready > 0 { fill(core, page, slot, ready) } else { 0 };
    for i in 0..n {
        let here = moved.saturating_sub(i * BLOCK_PAGES).min(BLOCK_PAGES);
        let slot = WindowId(window.0 + i).slot(0);
        core.frames.moved_out(slot, here);
        core.frames.put_back(Slot(slot.0 + here), BLOCK_PAGES - here);
    }
    let had_contents = |i: &u32| core.table.word(PageId(page.0 + i)).load().state() != State::Absent;
    let read = (0..moved).filter(had_contents).count() as u32;
    (0..moved).for_each(|i| finish(core, PageId(page.0 + i), Keep::Nothing));
    (moved, read)
}

/// The lock of a block all of whose pages are plain, managed, and never touched or same-filled.
fn fresh_block<P: Pager>(core: &Core<P>, block: BlockId) -> Option<LockGuard<'_>> {
    let row = core.table.block(block);
    let guard = row.try_lock()?;
    if row.valid() != u64::MAX
        || row.fixed() | row.readonly() != 0
        || row.window().is_some()
        || row.access() == Access::Random
    {
        return None;
    }
    core.charge(block);
    let cheap = |i| matches!(core.table.word(block.page(i)).load().state(), State::Absent | State::Same);
    (0..BLOCK_PAGES).all(cheap).then_some(guard)
}
