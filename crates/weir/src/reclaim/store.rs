//! Store: the staged pages of a window leave their frames, a few under each hold of the lock. Pages that do
//! not compress, or for which the pool has no room, go to the batch for the swap file, where there is one,
//! and their window is then the batch's to finish.

use super::compress::{Bench, Form, compress, untried};
use super::evict::evict_written;
use super::fate::{Fate, Step, count_record, push_to};
use super::held::Held;
use super::tally;
use super::window::{end_window, staged_from};
use super::writeback::Out;
use crate::config::rules::{Rule, is_on};
use crate::door::{Pager, with_frame};
use crate::limits::{POOL_PLACES, POOL_SPARE_PART, STUCK_PROBE, STUCK_SAMPLE};
use crate::page::id::next_run;
use crate::page::state::{State, Word, must};
use crate::page::table::BlockGuard;
use crate::page::{BlockId, FrameId, Handle, PageId, WindowId};
use crate::policy::admission::one_in;
use crate::policy::placement::{self, Kept, Placement};
use crate::shared::{Core, count};
use crate::stats;
use crate::sync::Ordering;
use crate::tier::pool::{Codec, NoRoom};
use crate::tier::swap;
use weir_os::codec::{self, PageBytes};
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
    bench: &mut Bench,
    out: &mut Out<'_, P>,
    block: BlockId,
    portion: Portion,
) -> Stored {
    let row = core.table.block(block);
    let mut stored = Stored::default();
    let (mut at, before) = (0, out.pushed());
    while stored.freed + (out.pushed() - before) < portion.most {
        let guard = row.lock();
        tally::blocks(core, 1);
        let Some(window) = row.window() else { return stored };
        // The first few pages all stuck: the rest will be like them.
        let given_up = is_on(Rule::StuckSample) && stored.given_back >= STUCK_SAMPLE && stored.freed == 0;
        let step = if given_up {
            Step { next: 64, free: 0, back: staged_from(core, &guard, at), full: false }
        } else {
            store_some(core, bench, out, &guard, window, at)
        };
        core.frames.release(window, step.free);
        tally::frames(core, (step.free != 0).into());
        stored.freed += step.free.count_ones();
        stats::add(&core.progress, u64::from(step.free.count_ones()));
        if step.back != 0 {
            stored.given_back += give_back(core, &guard, window, step.back);
        }
        at = step.next;
        if at >= 64 && staged_from(core, &guard, 0) == 0 {
            end_window(core, &guard, window, stored.given_back > stored.freed);
            out.forget(block);
            return stored;
        }
        drop(guard);
        if step.full {
            out.flush(core);
        }
        if portion.polite {
            bench.let_others_run();
        }
        if at >= 64 {
            break; // being written, or neither stored nor mapped again (its mapping is changing)
        }
    }
    if !out.take_over(core, block) {
        core.staged.push_front(block);
        tally::queues(core, 1);
    }
    stored
}

/// Stores up to `store_batch` staged pages from index `at` on. Records are compressed one after the other,
/// and then find their places in the pool together.
fn store_some<P: Pager>(
    core: &Core<P>,
    bench: &mut Bench,
    out: &mut Out<'_, P>,
    guard: &BlockGuard<'_>,
    window: WindowId,
    at: u32,
) -> Step {
    let mut step = Step { next: at, free: 0, back: 0, full: false };
    let (mut done, mut held) = (0, Held::new());
    while step.next < 64 && done < core.store_batch {
        let page = guard.block().page(step.next);
        let word = core.table.word(page).load();
        if word.state() == State::Staged && word.tag() == 0 {
            let fate = store_page(core, bench, out, guard, &mut held, page, window.slot(step.next));
            step.note(core, Some(page), fate);
            if step.full {
                break;
            }
            done += 1;
        }
        step.next += 1;
    }
    held.place(core, bench, out, guard, &mut step);
    step
}

/// One page goes where [`placement`] says.
fn store_page<P: Pager>(
    core: &Core<P>,
    bench: &mut Bench,
    out: &mut Out<'_, P>,
    guard: &BlockGuard<'_>,
    held: &mut Held,
    page: PageId,
    slot: FrameId,
) -> Fate {
    let found = core.table.word(page).load();
    let kept = kept_of(core, page, found, slot);
    // What was read from the file comes to the pool again while a part of it is free.
    let spare = || core.pool.has_spare(POOL_SPARE_PART);
    match placement::unchanged(kept, found.stuck(), spare, || is_probe(core)) {
        Some(Placement::Pool) => return store_warm(core, bench, guard, held.buffer(), page, found, slot),
        Some(_) => return store_unchanged(core, page, found),
        None => {}
    }
    let found = drop_kept(core, guard, page, found);
    let skips = is_on(Rule::StuckUntried) && found.stuck() && out.usable() && !is_probe(core);
    let form = with_frame(&core.pager, slot, |bytes| match skips {
        true => untried(bytes),
        false => compress(bench, held.buffer(), core.codec, bytes),
    });
    let to = placement::changed(form.shape(), out.usable());
    match form {
        Form::Same(value) => {
            stats::add(&core.stats.out_same, 1);
            core.table.set_aux(guard, page, value);
            must(core.table.word(page).try_store_same(found));
            Fate::Stored
        }
        Form::Record(codec, bytes) => {
            held.hold(page, found, codec, bytes.len());
            Fate::Held
        }
        Form::Stuck => {
            count(&core.stats.out_untried, skips.into());
            let found = must(core.table.word(page).try_mark_stuck(found));
            let write =
                |bytes: &mut PageBytes| push_to(core, guard, out, to, page, found, (swap::Codec::Raw, bytes));
            let fate = with_frame(&core.pager, slot, write);
            count(&core.stats.out_stuck, (fate == Fate::GivenBack).into());
            fate
        }
    }
}

/// What the copy is worth that was kept of a staged page: nothing, if the page has changed since.
fn kept_of<P: Pager>(core: &Core<P>, page: PageId, found: Word, slot: FrameId) -> Kept {
    let kept = match (found.kept(), found.kept_slot()) {
        (Some(_), _) => Kept::Record,
        (_, Some(_)) if found.warm() => Kept::WarmSlot,
        (_, Some(_)) => Kept::SwapSlot,
        (None, None) => return Kept::Nothing,
    };
    let hash = with_frame(&core.pager, slot, |bytes| codec::hash_page(bytes, core.seed));
    if hash == core.table.aux(page) { kept } else { Kept::Nothing }
}

/// Gives up the copy of a page that has changed, if there is one. The page's word.
fn drop_kept<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId, found: Word) -> Word {
    if found.kept().is_none() && found.kept_slot().is_none() {
        return found;
    }
    if found.kept().is_some() {
        core.kept_was(false);
    }
    let dropped = must(core.table.word(page).try_drop_kept(found));
    core.free_copy(held, page, found);
    dropped
}

/// Whether this page, which did not compress last time, is tried again: what it holds may be something else
/// by now. In no order, so that pages that go out in the same one every time all have their turn.
fn is_probe<P: Pager>(core: &Core<P>) -> bool {
    one_in(STUCK_PROBE, core.untried.fetch_add(1, Ordering::Relaxed))
}

/// The kept copy is still true: it is the page again.
fn store_unchanged<P: Pager>(core: &Core<P>, page: PageId, found: Word) -> Fate {
    let word = core.table.word(page);
    if let Some(handle) = found.kept() {
        core.kept_was(true);
        core.count_kept(-1);
        core.stats.out_clean().add(1);
        must(word.try_store(found, handle));
        core.note_pooled(page.block());
    } else if let Some(swapping) = &core.swapping {
        swapping.count_kept(-1);
        stats::add(&core.stats.swap_clean, 1);
        must(word.try_store_slot(found));
    }
    Fate::Stored
}

/// The slot kept of a page is still true: the page goes to the pool with its slot, if it finds room there and
/// compresses.
fn store_warm<P: Pager>(
    core: &Core<P>,
    bench: &mut Bench,
    held: &BlockGuard<'_>,
    buffer: usize,
    page: PageId,
    found: Word,
    slot: FrameId,
) -> Fate {
    let form = with_frame(&core.pager, slot, |bytes| compress(bench, buffer, core.codec, bytes));
    if let Form::Record(codec, bytes) = form
        && let Ok(handle) = pool_record(core, page, codec, bytes)
    {
        count_record(core, codec);
        core.store_doubled(held, page, found, handle);
        core.note_written(page.block());
        return Fate::Stored;
    }
    store_unchanged(core, page, found)
}

/// Stores a record, in a place that costs nothing to give up if no other is free.
fn pool_record<P: Pager>(core: &Core<P>, page: PageId, codec: Codec, bytes: &[u8]) -> Result<Handle, NoRoom> {
    let store = || core.pool.store(&core.pager, &core.frames, &core.stats, page, codec, bytes);
    store().or_else(|e| if evict_written(core, POOL_PLACES) > 0 { store() } else { Err(e) })
}

/// Maps staged pages again. Returns how many.
fn give_back<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, window: WindowId, mask: u64) -> u32 {
    let (mut at, mut n, mut tries) = (0, 0, 0);
    while let Some((start, len)) = next_run(mask, at) {
        let d = core.pager.fill(held.block().page(start), window.slot(start), len, Wake::Yes);
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
