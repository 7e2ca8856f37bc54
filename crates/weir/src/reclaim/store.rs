//! Store: the staged pages of a window leave their frames, a few under each hold of the lock.

use super::compress::{Bench, Form, compress};
use super::room::make_room;
use crate::door::{Pager, with_frame};
use crate::limits::STORE_PER_HOLD;
use crate::page::id::next_run;
use crate::page::resident::Arrival;
use crate::page::state::{State, Word};
use crate::page::{BlockId, PageId, Slot, WindowId};
use crate::shared::{Core, count};
use crate::stats;
use crate::tier::pool::{Codec, NoRoom};
use weir_os::codec;
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

/// Pages tried in vain before the rest of a window is given back untried.
const STUCK_SAMPLE: u32 = 8;

/// Fate of one page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stored,
    GivenBack,
}

/// Stores staged pages of a block taken from the staged queue, frees their frames in ascending
/// order, and stops after about `most` of them: the block then goes back to the head of the queue.
/// Faults on the block get in between every few pages, and with `polite` every other thread.
pub fn store_window<P: Pager>(
    core: &Core<P>,
    bench: &mut Bench,
    block: BlockId,
    most: u32,
    polite: bool,
) -> Stored {
    let row = core.table.block(block);
    let mut stored = Stored::default();
    let mut at = 0;
    while stored.freed < most {
        let guard = row.lock();
        let Some(window) = row.window() else { return stored };
        // The first few pages all stuck: the rest will be like them.
        let given_up = stored.given_back >= STUCK_SAMPLE && stored.freed == 0;
        let mut free = 0;
        let (next, back) = if given_up {
            (64, staged_from(core, block, at))
        } else {
            store_some(core, bench, block, window, at, &mut free)
        };
        core.frames.release(window, free);
        stored.freed += free.count_ones();
        stats::add(&core.progress, u64::from(free.count_ones()));
        if back != 0 {
            stored.given_back += give_back(core, block, window, back);
        }
        at = next;
        if at >= 64 && staged_from(core, block, 0) == 0 {
            row.set_window(None);
            row.set_rest(stored.given_back > stored.freed);
            core.frames.put_window(window, 0, 0);
            return stored;
        }
        drop(guard);
        if polite {
            bench.let_others_run();
        }
        if at >= 64 {
            break; // neither stored nor mapped again (its mapping is changing): another turn
        }
    }
    core.staged.push_front(block);
    stored
}

fn staged_from<P: Pager>(core: &Core<P>, block: BlockId, at: u32) -> u64 {
    let staged = |i: &u32| core.table.word(block.page(*i)).load().state() == State::Staged;
    (at..64).filter(staged).fold(0, |m, i| m | 1 << i)
}

/// Stores up to [`STORE_PER_HOLD`] staged pages from index `at` on. Returns where to go on, and the
/// pages that must be mapped again.
fn store_some<P: Pager>(
    core: &Core<P>,
    bench: &mut Bench,
    block: BlockId,
    window: WindowId,
    mut at: u32,
    free: &mut u64,
) -> (u32, u64) {
    let (mut done, mut back) = (0, 0);
    while at < 64 && done < STORE_PER_HOLD {
        let page = block.page(at);
        if core.table.word(page).load().state() == State::Staged {
            match store_page(core, bench, page, window.slot(at)) {
                Fate::Stored => {
                    *free |= 1 << at;
                    core.staged.sub_pages(1);
                }
                Fate::GivenBack => back |= 1 << at,
            }
            done += 1;
        }
        at += 1;
    }
    (at, back)
}

/// One page: unchanged, same-filled, compressed, or stuck. Under the block's lock.
fn store_page<P: Pager>(core: &Core<P>, bench: &mut Bench, page: PageId, slot: Slot) -> Fate {
    let word = core.table.word(page);
    let mut found = word.load();
    if let Some(h) = found.kept() {
        let hash = with_frame(&core.pager, slot, |bytes| codec::hash_page(bytes, core.seed));
        let clean = hash == core.table.aux(page);
        core.kept_was(clean);
        core.count_kept(-1);
        if clean {
            stats::add(&core.stats.out_clean, 1);
            let _ = word.try_store(found, h);
            return Fate::Stored;
        }
        core.free_record(h);
        found = word.try_drop_kept(found).unwrap_or(found);
    }
    let form = with_frame(&core.pager, slot, |bytes| compress(bench, core.codec, bytes));
    match form {
        Form::Same(value) => {
            stats::add(&core.stats.out_same, 1);
            core.table.set_aux(page, value);
            let _ = word.try_store_same(found);
            Fate::Stored
        }
        Form::Record(codec, bytes) => store_record(core, page, found, codec, bytes),
        Form::Stuck => {
            stats::add(&core.stats.out_stuck, 1);
            let _ = word.try_mark_stuck(found);
            Fate::GivenBack
        }
    }
}

fn store_record<P: Pager>(core: &Core<P>, page: PageId, found: Word, codec: Codec, bytes: &[u8]) -> Fate {
    let store = || core.pool.store(&core.pager, &core.frames, &core.stats, page, codec, bytes);
    let mut result = store();
    if let Err(NoRoom::Share | NoRoom::Frames) = result
        && make_room(core)
    {
        result = store();
    }
    match result {
        Ok(handle) => {
            stats::add(&core.stats.pool_out, 1);
            count(&core.stats.out_shuffled, u32::from(codec == Codec::ShuffleLz4));
            let _ = core.table.word(page).try_store(found, handle);
            Fate::Stored
        }
        Err(_) => Fate::GivenBack,
    }
}

/// Maps staged pages again. Returns how many.
fn give_back<P: Pager>(core: &Core<P>, block: BlockId, window: WindowId, mask: u64) -> u32 {
    let (mut at, mut n, mut tries) = (0, 0, 0);
    while let Some((start, len)) = next_run(mask, at) {
        let d = core.pager.fill(block.page(start), window.slot(start), len, Wake::Yes);
        for i in start..start + d.pages {
            let word = core.table.word(block.page(i));
            let _ = word.try_take_back(word.load());
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
    core.table.block(block).add_resident(n as i32);
    core.resident.arrived(&core.table, block, Arrival::Fetched);
    n
}
