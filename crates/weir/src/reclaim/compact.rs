//! Room in the pool: kept copies are given up first, then sparse spans are emptied so that whole
//! windows return to the frames.

use crate::door::Pager;
use crate::limits::SPANS_SWEPT;
use crate::page::state::State;
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{Handle, PageId};
use crate::shared::Core;
use crate::stats;
use crate::tier::pool::{Located, SpanId, spans_of};

/// Of a place in a list that is not filled.
pub(super) const NOWHERE: Located = Located { handle: Handle(0), page: PageId(0) };
/// Records looked at under one hold of the pool's lock.
const CHUNK: usize = 64;

/// Frees some room. True if anything was freed, so that asking again makes sense.
pub fn make_room<P: Pager>(core: &Core<P>) -> bool {
    let mut freed = 0;
    if core.copies.kept() > 0 {
        for _ in 0..SPANS_SWEPT * 4 {
            let Some(span) = core.room.pool.next_span() else { break };
            freed += sweep(core, span, drop_kept);
            if freed >= CHUNK as u32 {
                return true;
            }
        }
    }
    freed + compact(core) > 0
}

/// Empties some sparse spans. Returns how many records moved.
pub fn compact<P: Pager>(core: &Core<P>) -> u32 {
    let mut moved = 0;
    for _ in 0..SPANS_SWEPT {
        let Some(span) = core.room.pool.begin_evacuation() else { break };
        moved += sweep(core, span, move_record);
        core.room.pool.evacuated(span);
    }
    if let Some(window) = core.room.pool.begin_window_evacuation() {
        moved += spans_of(window).map(|span| sweep(core, span, move_record)).sum::<u32>();
        core.room.pool.window_evacuated(window);
    }
    moved
}

fn sweep<P: Pager>(core: &Core<P>, span: SpanId, act: fn(&Core<P>, Located) -> bool) -> u32 {
    let (mut from, mut n) = (Some(0), 0);
    let mut chunk = [NOWHERE; CHUNK];
    while let Some(at) = from {
        let (found, next) = core.room.pool.records(&core.pager, span, at, &mut chunk);
        for located in &chunk[..found] {
            n += u32::from(act(core, *located));
        }
        from = next;
    }
    n
}

/// The lock of the block of a record's page. Blocks that are busy are passed over: this runs while another
/// block's lock may be held.
pub(super) fn lock_of(table: &PageTable, l: Located) -> Option<BlockGuard<'_>> {
    let known = l.page.0 < table.pages();
    known.then(|| table.block(l.page.block()).try_lock()).flatten()
}

/// Drops the record if it is the kept copy of a page in a frame.
fn drop_kept<P: Pager>(core: &Core<P>, l: Located) -> bool {
    let Some(held) = lock_of(&core.table, l) else { return false };
    let word = core.table.word(l.page);
    let found = word.load();
    if found.kept() != Some(l.handle) || word.try_drop_kept(found).is_err() {
        return false;
    }
    core.free_copy(&held, l.page, found);
    stats::add(&core.stats.kept_dropped, 1);
    true
}

/// Moves a record to another span of its class.
fn move_record<P: Pager>(core: &Core<P>, l: Located) -> bool {
    let Some(held) = lock_of(&core.table, l) else { return false };
    let word = core.table.word(l.page);
    let found = word.load();
    if found.handle() != Some(l.handle) {
        return false;
    }
    if found.state() != State::Pooled {
        // A kept copy is not worth a copy.
        if word.try_drop_kept(found).is_ok() {
            core.free_copy(&held, l.page, found);
            stats::add(&core.stats.kept_dropped, 1);
        }
        return true;
    }
    let Some(to) = core.room.pool.copy_record(&core.pager, l.handle) else { return false };
    if word.try_rehandle(found, to).is_ok() {
        core.room.pool.forget(&core.pager, &core.room.frames, l.handle);
        stats::add(&core.stats.pool_moved, 1);
        return true;
    }
    core.room.pool.forget(&core.pager, &core.room.frames, to);
    false
}
