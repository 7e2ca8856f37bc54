//! Store: the staged pages of a window leave their frames, a few under each hold of the lock. Pages that do
//! not compress, or for which the pool has no room, go to the batch for the swap file, where there is one,
//! and their window is then the batch's to finish.

use super::batch::Batch;
use super::compress::Workbench;
use super::evict::evict_written;
use super::fate::{Fate, Step, count_record};
use super::placement::{To, decide};
use super::records::Records;
use super::tally;
use super::window::{end_window, staged_from};
use crate::config::rules::{Rule, is_on};
use crate::door::{Pager, with_frame};
use crate::limits::{POOL_PLACES, STUCK_SAMPLE};
use crate::page::id::next_run;
use crate::page::state::{State, Word, must};
use crate::page::table::BlockGuard;
use crate::page::{BlockId, FrameId, Handle, PageId, WindowId};
use crate::shared::{Core, count};
use crate::stats;
use crate::tier::pool::{Codec, NoRoom};
use crate::tier::swap;
use weir_os::codec::PageBytes;
use weir_os::sys::Errno;
use weir_os::uffd::Wake;

/// What became of a window's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Frames freed.
    pub freed: u32,
    /// Pages mapped again because they could not be stored.
    pub given_back: u32,
}

/// How much to store at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Frames to be freed, about.
    pub most: u32,
    /// Lets every other thread go first now and then.
    pub polite: bool,
}

/// Stores staged pages of a block taken from the staged queue, frees their frames in ascending
/// order, and stops after about `most` of them: the block then goes back to the head of the queue.
/// Faults on the block get in between every few pages.
pub fn store_window<P: Pager>(
    core: &Core<P>,
    workbench: &mut Workbench,
    batch: &mut Batch<'_, P>,
    block: BlockId,
    portion: Portion,
) -> Stored {
    let row = core.table.block(block);
    let mut stored = Stored::default();
    let (mut at, before) = (0, batch.pushed());
    while stored.freed + (batch.pushed() - before) < portion.most {
        let guard = row.lock();
        tally::blocks(&core.stats, 1);
        let Some(window) = row.window() else { return stored };
        // The first few pages all stuck: the rest will be like them.
        let given_up = is_on(Rule::StuckSample) && stored.given_back >= STUCK_SAMPLE && stored.freed == 0;
        let step = if given_up {
            Step { next: 64, free: 0, back: staged_from(&core.table, &guard, at), full: false }
        } else {
            store_some(core, workbench, batch, &guard, window, at)
        };
        core.room.frames.release(window, step.free);
        tally::frames(&core.stats, (step.free != 0).into());
        stored.freed += step.free.count_ones();
        stats::add(&core.room.progress, u64::from(step.free.count_ones()));
        if step.back != 0 {
            stored.given_back += give_back(core, &guard, window, step.back);
        }
        at = step.next;
        if at >= 64 && staged_from(&core.table, &guard, 0) == 0 {
            end_window(&core.room, &core.stats, &guard, window, stored.given_back > stored.freed);
            batch.forget(block);
            return stored;
        }
        drop(guard);
        if step.full {
            batch.flush(core);
        }
        if portion.polite {
            workbench.let_others_run();
        }
        if at >= 64 {
            break; // being written, or neither stored nor mapped again (its mapping is changing)
        }
    }
    if !batch.take_over(core, block) {
        core.staged.push_front(block);
        tally::queues(&core.stats, 1);
    }
    stored
}

/// Stores up to `store_batch` staged pages from index `at` on. Records are compressed one after the other,
/// and then find their places in the pool together.
fn store_some<P: Pager>(
    core: &Core<P>,
    workbench: &mut Workbench,
    batch: &mut Batch<'_, P>,
    guard: &BlockGuard<'_>,
    window: WindowId,
    at: u32,
) -> Step {
    let mut step = Step { next: at, free: 0, back: 0, full: false };
    let (mut done, mut records) = (0, Records::new());
    while step.next < 64 && done < core.store_batch {
        let page = guard.block().page(step.next);
        let word = core.table.word(page).load();
        if word.state() == State::Staged && word.tag() == 0 {
            let fate = store_page(core, workbench, batch, guard, &mut records, page, window.frame(step.next));
            step.note(&core.staged, Some(page), fate);
            if step.full {
                break;
            }
            done += 1;
        }
        step.next += 1;
    }
    records.place(core, workbench, batch, guard, &mut step);
    step
}

/// One page goes where [`decide`] says.
fn store_page<P: Pager>(
    core: &Core<P>,
    workbench: &mut Workbench,
    batch: &mut Batch<'_, P>,
    guard: &BlockGuard<'_>,
    records: &mut Records,
    page: PageId,
    frame: FrameId,
) -> Fate {
    let (found, to) = decide(core, workbench, batch, guard, records.buffer(), page, frame);
    match to {
        To::Drop => store_unchanged(core, page, found),
        To::PoolWithSlot(codec, bytes) => store_warm(core, guard, page, found, (codec, bytes)),
        To::Same(value) => {
            stats::add(&core.stats.out_same, 1);
            core.table.set_aux(guard, page, value);
            must(core.table.word(page).try_store_same(found));
            Fate::Stored
        }
        To::Pool(codec, bytes) => {
            records.add(page, found, codec, bytes.len());
            Fate::Recorded
        }
        To::Swap => {
            let found = must(core.table.word(page).try_mark_stuck(found));
            let raw = |bytes: &mut PageBytes| batch.push(core, guard, page, found, swap::Codec::Raw, bytes);
            let fate = Fate::from(with_frame(&core.pager, frame, raw));
            count(&core.stats.out_stuck, (fate == Fate::GivenBack).into());
            fate
        }
        To::Keep => {
            must(core.table.word(page).try_mark_stuck(found));
            count(&core.stats.out_stuck, 1);
            Fate::GivenBack
        }
    }
}

/// The kept copy is still true: it is the page again.
fn store_unchanged<P: Pager>(core: &Core<P>, page: PageId, found: Word) -> Fate {
    let word = core.table.word(page);
    if let Some(handle) = found.kept() {
        core.copies.kept_was(true);
        core.copies.count_kept(-1);
        core.stats.out_clean().add(1);
        must(word.try_store(found, handle));
        core.copies.note_pooled(&core.table, &core.stats, page.block());
    } else if let Some(swapping) = &core.copies.swapping {
        swapping.count_kept(-1);
        stats::add(&core.stats.swap_clean, 1);
        must(word.try_store_slot(found));
    }
    Fate::Stored
}

/// The slot kept of a page is still true: the page goes to the pool with its slot, if it finds room there.
fn store_warm<P: Pager>(
    core: &Core<P>,
    held: &BlockGuard<'_>,
    page: PageId,
    found: Word,
    (codec, bytes): (Codec, &[u8]),
) -> Fate {
    let Ok(handle) = pool_record(core, page, codec, bytes) else { return store_unchanged(core, page, found) };
    count_record(&core.stats, codec);
    core.copies.store_doubled(&core.table, held, page, found, handle);
    core.copies.note_written(&core.table, &core.stats, page.block());
    Fate::Stored
}

/// Stores a record, in a place that costs nothing to give up if no other is free.
fn pool_record<P: Pager>(core: &Core<P>, page: PageId, codec: Codec, bytes: &[u8]) -> Result<Handle, NoRoom> {
    let store = || core.room.store(&core.pager, &core.stats, page, codec, bytes);
    store().or_else(|e| if evict_written(core, POOL_PLACES) > 0 { store() } else { Err(e) })
}

/// Maps staged pages again. Returns how many.
fn give_back<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, window: WindowId, mask: u64) -> u32 {
    let (mut at, mut n, mut tries) = (0, 0, 0);
    while let Some((start, len)) = next_run(mask, at) {
        let d = core.pager.fill(held.block().page(start), window.frame(start), len, Wake::Yes);
        for i in start..start + d.pages {
            let word = core.table.word(held.block().page(i));
            must(word.try_take_back(word.load()));
        }
        n += d.pages;
        at = start + d.pages;
        if d.pages == 0 {
            tries += 1;
            if d.stop == Some(Errno::EAGAIN) && tries < 10_000 {
                weir_os::thread::yield_now();
            } else {
                at += 1; // see `store_window`: it stays staged
            }
        }
    }
    core.staged.sub_pages(n);
    held.add_resident(n as i32);
    tally::stayed(core, held.block());
    n
}
