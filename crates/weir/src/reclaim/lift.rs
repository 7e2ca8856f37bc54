//! Lift: a victim and its neighbours leave the program by one call and one TLB flush, however their
//! pages are scattered.
//!
//! MOVE flushes once for each run of pages without a hole, and every flush interrupts the processors
//! on which the program runs: a block of which a few pages are resident here and there costs more
//! flushes than a full one. Lifting moves page tables, up to 2 MiB of them, with the holes. It
//! takes pages that the kernel is using as well, so it serves where the engine knows of all such use
//! by its pins and holds: where faults are resolved in the faulting thread.

use super::tally;
use super::window::Unmapped;
use crate::config::rules::{Rule, is_on};
use crate::door::Pager;
use crate::frames::Frames;
use crate::limits::{LIFT_BLOCKS, LIFT_SHARE};
use crate::page::id::{BLOCK_PAGES, next_run, run_mask};
use crate::page::state::State;
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{BlockId, FrameId, PageId, WindowId};
use crate::shared::{Core, count};
use crate::stats;
use weir_os::sys::Errno;
use weir_os::thread;

/// Neighbouring blocks under their locks, and which of their pages go: all between the first and the
/// last.
struct Span<'a> {
    /// Locks by place in the aligned group, held while this lives.
    guards: [Option<BlockGuard<'a>>; LIFT_BLOCKS as usize],
    start: PageId,
    end: u32,
}

/// Lifts the victim with what neighbours can go with it. `None`: not possible here, everything is as it was
/// but for the lock, which is released.
pub fn lift<P: Pager>(core: &Core<P>, held: BlockGuard<'_>) -> Option<Unmapped> {
    let victim = held.block();
    let span = gather(core, held)?;
    if !core.room.frames.can_lift() {
        return None; // forbidden since: asked for after the pins, which are let go of later than that
    }
    let first = span.start.block();
    let blocks = PageId(span.end - 1).block().0 - first.0 + 1;
    tally::frames(&core.stats, 1);
    let window = core.room.frames.take_empty_lifts(blocks)?;
    let lifted = timed(core, window.frame(span.start.index()), span.start, span.end - span.start.0);
    stats::add(&core.stats.unmap_calls, 1);
    if let Err(e) = lifted {
        for w in (window.0..window.0 + blocks).map(WindowId) {
            lose_if_gone(&core.room.frames, e, w.frame(0));
            core.room.frames.put_window(w, 0, 0);
        }
        return None;
    }
    let mut staged = 0;
    for held in span.guards.iter().flatten() {
        let block = held.block();
        let window = WindowId(window.0 + (block.0 - first.0));
        let mut n = stage(&core.table, held, span.start, span.end);
        if block == victim {
            n += lift_rest(core, held, window, &span);
        }
        if n == 0 {
            core.room.frames.put_window(window, 0, 0);
            tally::frames(&core.stats, 1);
            continue;
        }
        held.add_resident(-(n as i32));
        held.set_window(Some(window));
        core.staged.add_pages(n);
        core.staged.push(block);
        tally::queues(&core.stats, 1);
        stats::add(&core.stats.blocks_unmapped, 1);
        staged += n;
    }
    count(&core.stats.pages_unmapped, staged);
    let others = (first.0..first.0 + blocks).filter(|b| *b != victim.0).map(BlockId);
    core.resident.went_early(&core.table, others);
    tally::queues(&core.stats, 1);
    drop(span);
    Some(if staged == 0 { Unmapped::Nothing } else { Unmapped::Staged(staged) })
}

/// The call, and how long it took.
fn timed<P: Pager>(core: &Core<P>, frame: FrameId, first: PageId, pages: u32) -> Result<(), Errno> {
    let start = thread::now_ns();
    let lifted = core.pager.lift(frame, first, pages);
    stats::add(&core.stats.lift_ns, thread::now_ns() - start);
    stats::add(&core.stats.lifts, 1);
    lifted
}

/// The victim's other runs follow to the same window, by a call each: the fullest goes first every
/// time, so they would stay for ever. Returns how many pages went.
fn lift_rest<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, window: WindowId, span: &Span<'_>) -> u32 {
    let victim = held.block();
    let (mask, resident) = movable(core, held); // what went is resident no more
    let (mut at, mut n) = (0, 0);
    while let Some((from, len)) = next_run(mask, at) {
        at = from + len;
        let (start, end) = (victim.page(from), victim.page(from).0 + len);
        let went = start.0 < span.end && span.start.0 < end;
        if went || run_mask(from, len) & resident == 0 {
            continue;
        }
        stats::add(&core.stats.unmap_calls, 1);
        match timed(core, window.frame(from), start, len) {
            Ok(()) => n += stage(&core.table, held, start, end),
            Err(e) => {
                lose_if_gone(&core.room.frames, e, window.frame(from));
                break;
            }
        }
    }
    n
}

/// After EEXIST something of others may lie at the destination soon: its window is never empty again.
fn lose_if_gone(frames: &Frames, e: Errno, frame: FrameId) {
    if e == Errno::EEXIST {
        frames.lose(frame);
    }
}

/// Stages the resident pages of a block that lie between two pages. Pages that the program dropped
/// behind our back are holes at their new place too: they read as zeros there.
fn stage(table: &PageTable, held: &BlockGuard<'_>, start: PageId, end: u32) -> u32 {
    let block = held.block();
    let (from, to) = (start.0.max(block.page(0).0), end.min(block.page(0).0 + BLOCK_PAGES));
    let resident = |page: &u32| {
        let word = table.word(PageId(*page));
        let found = word.load();
        found.state() == State::Resident && word.try_stage(found).is_ok()
    };
    (from..to).filter(resident).count() as u32
}

/// Blocks that one lift may take, of so many frames.
pub fn blocks_at_once(frames: u32) -> u32 {
    (frames / (LIFT_SHARE * BLOCK_PAGES)).clamp(1, LIFT_BLOCKS)
}

/// The longest run of pages around the victim that can go at once, within its aligned group of
/// blocks and the bound for one call.
fn gather<'a, P: Pager>(core: &'a Core<P>, held: BlockGuard<'a>) -> Option<Span<'a>> {
    let victim = held.block();
    let most = if is_on(Rule::LiftNeighbours) { blocks_at_once(core.room.frames.limit()) } else { 1 };
    let group = victim.0 & !(LIFT_BLOCKS - 1);
    let mut guards: [Option<BlockGuard<'a>>; LIFT_BLOCKS as usize] = Default::default();
    let (from, len) = fullest(movable(core, &held))?;
    let mut start = victim.page(from);
    let mut end = start.0 + len;
    guards[(victim.0 - group) as usize] = Some(held);
    let mut left = most - 1;
    let (mut up, mut down) = (victim.0 + 1, victim.0);
    while left > 0 && end == up * BLOCK_PAGES && up < group + LIFT_BLOCKS {
        let Some((g, len)) = neighbour(core, BlockId(up), u64::trailing_ones) else { break };
        guards[(up - group) as usize] = Some(g);
        end += len;
        (up, left) = (up + 1, left - 1);
    }
    while left > 0 && start.0 == down * BLOCK_PAGES && down > group {
        let Some((g, len)) = neighbour(core, BlockId(down - 1), u64::leading_ones) else { break };
        guards[(down - 1 - group) as usize] = Some(g);
        start.0 -= len;
        (down, left) = (down - 1, left - 1);
    }
    Some(Span { guards, start, end })
}

/// A neighbour's lock, and how many of its pages from the side on (`ones` counts) can go, if it is
/// free, has no staged ones, and nothing that could leave stays behind: that would lose its turn,
/// and again whenever this block's turn comes before.
fn neighbour<P: Pager>(
    core: &Core<P>,
    block: BlockId,
    ones: fn(u64) -> u32,
) -> Option<(BlockGuard<'_>, u32)> {
    let row = core.table.block(block);
    if row.resident() == 0 || row.rests() {
        return None;
    }
    let guard = row.try_lock()?;
    tally::blocks(&core.stats, 1);
    if row.window().is_some() {
        return None;
    }
    let (mask, resident) = movable(core, &guard);
    let len = ones(mask);
    let run = run_mask(if ones(1) == 1 { 0 } else { BLOCK_PAGES - len }, len);
    (resident != 0 && resident & !run == 0).then_some((guard, len))
}

/// The pages of a block that may be moved, resident or not: mapped as plain memory, in use by no
/// call, not locked in memory. Second: those that are resident.
fn movable<P: Pager>(core: &Core<P>, row: &BlockGuard<'_>) -> (u64, u64) {
    let block = row.block();
    let mut mask = row.valid() & !row.fixed() & !row.readonly();
    if mask == 0 {
        return (0, 0);
    }
    mask &= !core.in_use(row);
    let mut resident = 0;
    for i in 0..BLOCK_PAGES {
        let word = core.table.word(block.page(i)).load();
        if word.mlocked() {
            mask &= !run_mask(i, 1);
        } else if word.state() == State::Resident {
            resident |= run_mask(i, 1);
        }
    }
    (mask, resident & mask)
}

/// The run of a mask with most resident pages: (start, length). `None` when none has any.
fn fullest((mask, resident): (u64, u64)) -> Option<(u32, u32)> {
    let (mut at, mut best) = (0, None::<(u32, u32)>);
    let pages = |(start, len): (u32, u32)| (run_mask(start, len) & resident).count_ones();
    while let Some(run) = next_run(mask, at) {
        if pages(run) > best.map_or(0, pages) {
            best = Some(run);
        }
        at = run.0 + run.1;
    }
    best
}
