//! Spans: whole blocks that a stream wants next come several at once, in new frames or by one MOVE.
//!
//! Each MOVE interrupts the other processors on which the program runs, which costs more than zeroing a
//! block, and about as much as expanding one. Blocks never touched (or same-filled) cost little, so a
//! faulting thread takes as many as it can get before it goes on. Of blocks in the pool it takes the next one
//! along with its own; those behind are left to the thread that fetches ahead, so that both work at the same
//! time.

use super::arrive::{arrived, finish};
use super::fresh;
use super::install::{Got, fetch_and_fill};
use super::readahead::{self, Plan, Whose};
use crate::config::rules::{Rule, is_on};
use crate::door::Pager;
use crate::limits::{FREE_RESERVE, KEPT_FOR_POOL, LIFT_BLOCKS, POOLED_BLOCKS};
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::page::region::Access;
use crate::page::resident::Arrival;
use crate::page::state::State;
use crate::page::table::BlockGuard;
use crate::page::{BlockId, FrameId, PageId, WindowId};
use crate::shared::copies::Keep;
use crate::shared::{Core, count};

/// Which blocks may be in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Never touched, or same-filled.
    Fresh,
    /// Those, and pages in the pool.
    Pool,
}

/// Brings in up to `most` whole blocks never touched (or same-filled) from `first` on, leaving `state` as
/// their readahead. Returns how many came; they are the first ones. Stops at a block that is busy, partly
/// there, or dear to fetch.
pub fn bring_span<P: Pager>(core: &Core<P>, first: BlockId, most: u32, state: u64) -> u32 {
    let plentiful = core.room.takes_new_frames();
    let room = if plentiful { core.room.frames.credit() } else { core.room.frames.free() };
    let spare = room.saturating_sub(KEPT_FOR_POOL + FREE_RESERVE);
    let most = if is_on(Rule::Spans) { most.min(LIFT_BLOCKS).min(spare / BLOCK_PAGES) } else { 0 };
    // A single one would be a MOVE of its own as well.
    let least = if plentiful { 1 } else { 2 };
    if most < least {
        return 0;
    }
    let mut guards: [Option<BlockGuard<'_>>; LIFT_BLOCKS as usize] = Default::default();
    let mut n = 0;
    while n < most && first.0 + n < core.table.pages() / BLOCK_PAGES {
        let Some(guard) = whole_block(core, BlockId(first.0 + n), Of::Fresh) else { break };
        guards[n as usize] = Some(guard);
        n += 1;
    }
    if n < least {
        return 0;
    }
    let held = guards.each_ref().map(Option::as_ref);
    let (came, read) = match plentiful {
        true => (new_frames(core, &held[..n as usize]), 0),
        false => free_frames(core, &held[..n as usize], &mut []),
    };
    for (i, held) in (0..).zip(held.iter().flatten()) {
        let here = came.saturating_sub(i * BLOCK_PAGES).min(BLOCK_PAGES);
        if here > 0 {
            let last = came <= (i + 1) * BLOCK_PAGES;
            arrived(core, held, here, Arrival::Fetched);
            readahead::pass_on(core, held.block(), state, here, if last { read } else { 0 });
        }
    }
    if came > 0 {
        core.room.demand.note(came);
        core.stats.readahead().count(came);
        count(&core.stats.swap_ra, read);
    }
    drop(guards);
    came / BLOCK_PAGES
}

/// The block behind the one of a fault, that came along.
#[derive(Debug)]
pub struct Second<'a> {
    state: u64,
    came: u32,
    read: u32,
    held: BlockGuard<'a>,
}

impl Second<'_> {
    /// Leaves the stream's state, once the first block's own plan is done.
    pub fn done<P: Pager>(&self, core: &Core<P>) {
        if self.came > 0 {
            readahead::pass_on(core, self.held.block(), self.state, self.came, self.read);
            core.stats.readahead().count(self.came);
            count(&core.stats.swap_ra, self.read);
        }
    }
}

/// Brings in the whole of a block in the pool, where a stream enters it, and the whole of the next one.
/// `None`: not both can be had at once.
pub fn bring_two<'a, P: Pager>(
    core: &'a Core<P>,
    held: &BlockGuard<'_>,
    wanted: u64,
    plan: &Plan,
) -> Option<(Got, Second<'a>)> {
    let a =
        plan.ahead.filter(|a| is_on(Rule::TwoBlocks) && wanted == u64::MAX && a.stride == 1 && !a.fresh)?;
    let Whose::Stream(state) = a.whose else { return None };
    let next = a.first.block();
    let guard = whole_block(core, next, Of::Pool).filter(|_| is_whole(core, held, Of::Pool))?;
    let spare = core.room.frames.free().saturating_sub(KEPT_FOR_POOL + FREE_RESERVE);
    if spare < POOLED_BLOCKS * BLOCK_PAGES {
        return None;
    }
    let absent = |held| core.table.in_state(held, u64::MAX, State::Absent);
    let (fresh, next_fresh) = (absent(held), absent(&guard));
    let mut keeps = [Keep::Nothing; (POOLED_BLOCKS * BLOCK_PAGES) as usize];
    let (came, _) = free_frames(core, &[Some(held), Some(&guard)], &mut keeps);
    if came == 0 {
        return None;
    }
    let here = came.min(BLOCK_PAGES);
    core.room.demand.note(came);
    arrived(core, held, here, Arrival::Fetched);
    let installed = run_mask(0, here);
    let mut second = Second { state, came: came - here, read: 0, held: guard };
    if second.came > 0 {
        second.read = (run_mask(0, second.came) & !next_fresh).count_ones();
        arrived(core, &second.held, second.came, Arrival::Fetched);
    }
    Some((Got { installed, lost: 0, fresh: fresh & installed }, second))
}

/// From the kernel, for blocks one after the other. Pages that came, from the start.
fn new_frames<P: Pager>(core: &Core<P>, blocks: &[Option<&BlockGuard<'_>>]) -> u32 {
    let mut came = 0;
    for held in blocks.iter().flatten() {
        let here = fresh::fill_run(core, held, held.block().page(0), BLOCK_PAGES).unwrap_or(0);
        came += here;
        if here < BLOCK_PAGES {
            break;
        }
    }
    came
}

/// From the arena, for blocks that follow each other, by one MOVE; `keeps` as in [`fetch_and_fill`]. Pages
/// that came, from the start, and how many of them had contents.
fn free_frames<P: Pager>(
    core: &Core<P>,
    blocks: &[Option<&BlockGuard<'_>>],
    keeps: &mut [Keep],
) -> (u32, u32) {
    let Some(first) = blocks.first().copied().flatten() else { return (0, 0) };
    let Some((window, n)) = core.room.frames.take_windows(blocks.len() as u32) else { return (0, 0) };
    let (page, mut read) = (first.block().page(0), 0);
    let (_, moved) = fetch_and_fill(core, page, (window.frame(0), n * BLOCK_PAGES, 0), keeps);
    for i in 0..n {
        let here = moved.saturating_sub(i * BLOCK_PAGES).min(BLOCK_PAGES);
        let frame = WindowId(window.0 + i).frame(0);
        core.room.frames.moved_out(frame, here);
        core.room.frames.put_back(FrameId(frame.0 + here), BLOCK_PAGES - here);
    }
    for i in 0..moved {
        let Some(held) = blocks[(i / BLOCK_PAGES) as usize] else { break };
        let page = PageId(page.0 + i);
        read += u32::from(core.table.word(page).load().state() != State::Absent);
        finish(core, held, page, keeps.get(i as usize).copied().unwrap_or(Keep::Nothing));
    }
    (moved, read)
}

/// The lock of a block all of whose pages are plain, managed, and as `of` says.
fn whole_block<P: Pager>(core: &Core<P>, block: BlockId, of: Of) -> Option<BlockGuard<'_>> {
    let guard = core.table.block(block).try_lock()?;
    is_whole(core, &guard, of).then_some(guard)
}

/// Whether all pages of the block are so.
fn is_whole<P: Pager>(core: &Core<P>, row: &BlockGuard<'_>, of: Of) -> bool {
    let block = row.block();
    if row.valid() != u64::MAX
        || row.fixed() | row.readonly() != 0
        || row.window().is_some()
        || row.access() == Access::Random
    {
        return false;
    }
    core.charge(block);
    (0..BLOCK_PAGES).all(|i| match core.table.word(block.page(i)).load().state() {
        State::Absent | State::Same => true,
        State::Pooled => of == Of::Pool,
        State::Resident | State::Staged | State::Swapped => false,
    })
}
