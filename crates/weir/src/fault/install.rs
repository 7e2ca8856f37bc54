//! Fetch and install: bytes into consecutive free frames, then one MOVE per run.

use super::arrive::{arrived, fill, finish, ride_out};
use super::fresh;
use crate::config::rules::{Rule, is_on};
use crate::door::{Pager, with_frame};
use crate::limits::{CREDIT_KEPT, FRAGMENTS_LEAST, FREE_RESERVE, KEPT_FOR_POOL, RUN_MIN};
use crate::page::id::{BLOCK_PAGES, next_run, run_mask};
use crate::page::resident::Arrival;
use crate::page::state::{State, must};
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{FrameId, PageId, WindowId};
use crate::shared::Core;
use crate::shared::copies::Keep;
use crate::shared::room::Room;
use crate::tier::pool::Damaged;
use weir_os::codec::{self, PageBytes};
use weir_os::mem::PAGE_BYTES;
use weir_os::uffd::Wake;

/// Pages of a block that came in, and those whose bytes are lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Got {
    /// Mask of installed pages.
    pub installed: u64,
    /// Mask of pages whose record is damaged.
    pub lost: u64,
    /// Of those installed, the ones that never had contents.
    pub fresh: u64,
}

/// Creates fresh frames when few are free and the budget allows; what single faults need is left.
pub fn ensure_frames<P: Pager>(room: &Room, pager: &P) {
    if room.takes_new_frames() {
        return; // no frame of the arena is needed
    }
    let kept = if room.demand.wants_credit() { CREDIT_KEPT } else { 0 };
    while room.frames.free() < BLOCK_PAGES + KEPT_FOR_POOL && room.frames.credit() > kept {
        // An error means that the kernel has no memory: reclaim will have to do.
        if room.frames.grow(pager).unwrap_or(0) == 0 {
            return;
        }
    }
}

/// Whether a stream that takes most of a block would get its frames in pieces, as they become free one after
/// the other: each is a MOVE of its own, with its interrupt, and what is left of the others has to be
/// gathered for the pool. Only where frames are short, but not so few that making room takes the pages that
/// came last; and where faulting threads keep all processors busy each makes room behind its faults instead.
pub fn would_get_fragments<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, wanted: u64) -> bool {
    let short = is_on(Rule::WholeWindows)
        && !core.room.is_plentiful()
        && core.room.available() < core.room.low_mark()
        && core.room.frames.credit() < BLOCK_PAGES
        && !core.room.frames.has_whole_window();
    short
        && core.room.demand.leaves_processors()
        && core.room.frames_outside_pool() >= FRAGMENTS_LEAST
        && needing_frames(&core.table, held, wanted) > BLOCK_PAGES / 2
}

/// How many of the pages are neither there, nor staged, nor in the swap file.
fn needing_frames(table: &PageTable, held: &BlockGuard<'_>, wanted: u64) -> u32 {
    let of = |state| table.in_state(held, wanted, state).count_ones();
    of(State::Absent) + of(State::Same) + of(State::Pooled)
}

/// Brings in the pages of `mask` that are neither resident nor in the swap file, the run with page `first`
/// before the others. The page `first` may use the last frames, readahead may not.
pub fn bring_in<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, mask: u64, first: u32) -> Got {
    let mut got = Got::default();
    let mut arrival = Arrival::Fetched;
    let mut missing = missing_of(&core.table, held, mask);
    missing &= !swapped_of(core, held, missing);
    let absent = core.table.in_state(held, missing, State::Absent);
    let mut from = first;
    while missing != 0 {
        let Some((start, len)) = next_run(missing, from).or_else(|| next_run(missing, 0)) else { break };
        let word = core.table.word(held.block().page(start)).load();
        let same_source = (1..len)
            .take_while(|i| {
                is_staged(&core.table, held.block().page(start + i)) == (word.state() == State::Staged)
            })
            .count() as u32;
        let len = 1 + same_source;
        let done = if word.state() == State::Staged {
            arrival = Arrival::TakenBack;
            take_back(core, held, start, len)
        } else {
            let need = if got.installed >> first & 1 == 0 { 1 } else { 0 };
            match fetch_run(core, held, start, len, need, &mut got.lost) {
                Some(n) => n,
                None => break,
            }
        };
        got.installed |= run_mask(start, done);
        // Pages that could not come (lost, or their mapping is gone) are skipped for good.
        missing &= !run_mask(start, done.max(1));
        from = (start + done.max(1)) % BLOCK_PAGES;
    }
    got.fresh = got.installed & absent;
    if got.installed != 0 {
        arrived(core, held, got.installed.count_ones(), arrival);
    }
    got
}

/// The pages of `mask` that are not resident.
pub fn missing_of(table: &PageTable, held: &BlockGuard<'_>, mask: u64) -> u64 {
    mask & !table.in_state(held, mask, State::Resident)
}

/// The pages of `mask` that are in the swap file alone.
pub fn swapped_of<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, mask: u64) -> u64 {
    if core.copies.swapping.is_none() {
        return 0;
    }
    core.table.in_state(held, mask, State::Swapped)
}

fn is_staged(table: &PageTable, page: PageId) -> bool {
    table.word(page).load().state() == State::Staged
}

/// Moves staged frames back. Returns how many pages from the start of the run are there.
fn take_back<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, start: u32, len: u32) -> u32 {
    let Some(window) = held.window() else { return 0 };
    let page = held.block().page(start);
    core.room.demand.note(len);
    if len == 1 && core.room.demand.wants_credit() && core.room.frames.take_credit(1) {
        return copy_back(core, window, page);
    }
    let n = fill(core, page, window.frame(start), len);
    for i in 0..n {
        let word = core.table.word(PageId(page.0 + i));
        must(word.try_take_back(word.load()));
    }
    core.staged.sub_pages(n);
    core.stats.in_staged().count(n);
    n
}

/// A single staged page is copied into a new frame and leaves the old one free: no flush.
fn copy_back<P: Pager>(core: &Core<P>, window: WindowId, page: PageId) -> u32 {
    let frame = window.frame(page.index());
    let n = ride_out(&core.stats, 1, |_| {
        with_frame(&core.pager, frame, |bytes| core.pager.fill_copy(page, bytes, Wake::Yes))
    });
    if n == 0 {
        core.room.frames.vanished(1);
        return 0;
    }
    let word = core.table.word(page);
    must(word.try_take_back(word.load()));
    core.room.frames.release(window, 1 << page.index());
    core.staged.sub_pages(1);
    core.stats.in_staged().add(1);
    n
}

/// Fills frames with the bytes of absent, same-filled or pooled pages and installs them. Returns
/// how many; `None` when there is no frame.
fn fetch_run<P: Pager>(
    core: &Core<P>,
    held: &BlockGuard<'_>,
    start: u32,
    len: u32,
    need: u32,
    lost: &mut u64,
) -> Option<u32> {
    core.room.demand.note(len);
    // A few pages are copied one by one (the caller goes on with the next): a MOVE would cost a flush.
    let len = if len < RUN_MIN && core.room.demand.wants_credit() { 1 } else { len };
    let spare = core.room.available().saturating_sub(KEPT_FOR_POOL);
    let readahead = spare.saturating_sub(FREE_RESERVE);
    if spare < need {
        return None;
    }
    let new = len.min(readahead.max(need));
    if new > 1
        && core.room.takes_new_frames()
        && let Some(n) = fresh::fill_run(core, held, held.block().page(start), new)
    {
        return Some(n);
    }
    if (len == 1 || core.room.frames.free() == 0) && core.room.frames.take_credit(1) {
        return Some(fetch_one(core, held, start, lost));
    }
    let len = new;
    if len == 0 {
        return None;
    }
    let run = core.room.frames.take_run(len)?;
    let page = held.block().page(start);
    let mut keeps = [Keep::Nothing; BLOCK_PAGES as usize];
    let (ready, n) = fetch_and_fill(core, page, (run.frame, run.n, run.zeroed), &mut keeps);
    if ready < run.n {
        *lost |= 1 << (start + ready);
    }
    core.room.frames.moved_out(run.frame, n);
    core.room.frames.put_back(FrameId(run.frame.0 + n), run.n - n);
    for i in 0..n {
        finish(core, held, PageId(page.0 + i), keeps[i as usize]);
    }
    Some(n)
}

/// Fills free frames that follow each other (the first, how many, and which of the first 64 are zero) with
/// the bytes of as many pages, up to one whose record is damaged, and moves them under the program. `keeps`
/// has places for what may be kept of the first pages. How many were filled, and how many of these arrived.
pub(super) fn fetch_and_fill<P: Pager>(
    core: &Core<P>,
    page: PageId,
    (frame, n, zeroed): (FrameId, u32, u64),
    keeps: &mut [Keep],
) -> (u32, u32) {
    let wanted = !keeps.is_empty();
    let records = wanted && core.copies.keeps_records(&core.room, &core.stats, n);
    let slots = wanted && core.copies.keeps_slots();
    let mut ready = 0;
    while ready < n {
        let (page, frame) = (PageId(page.0 + ready), FrameId(frame.0 + ready));
        if fetch(core, page, frame, zeroed.unbounded_shr(ready) & 1 == 1).is_err() {
            break;
        }
        // Hashed, where nobody has done so yet, while the frame is still ours.
        if let Some(keep) = keeps.get_mut(ready as usize).filter(|_| records || slots) {
            *keep = with_frame(&core.pager, frame, |bytes| keep_of(core, page, bytes, (records, slots)));
        }
        ready += 1;
    }
    (ready, if ready > 0 { fill(core, page, frame, ready) } else { 0 })
}

/// A single page: expanded into ordinary memory and copied into a new frame, which disturbs no other
/// processor as a move would.
fn fetch_one<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, index: u32, lost: &mut u64) -> u32 {
    let page = held.block().page(index);
    let copy = |bytes: &PageBytes| {
        let n = ride_out(&core.stats, 1, |_| core.pager.fill_copy(page, bytes, Wake::Yes));
        let keeps = || (core.copies.keeps_records(&core.room, &core.stats, 1), core.copies.keeps_slots());
        (n == 1).then(|| keep_of(core, page, bytes, keeps()))
    };
    let word = core.table.word(page).load();
    let copied = match word.handle().filter(|_| word.state() == State::Pooled) {
        Some(handle) => core.room.pool.expand_and_lend(&core.pager, handle, page, copy),
        None => {
            let mut bytes = [0; PAGE_BYTES];
            expand(core, page, &mut bytes, true).map(|()| copy(&bytes))
        }
    };
    if copied.is_err() {
        *lost |= 1 << index;
    }
    let Ok(Some(keep)) = copied else {
        core.room.frames.vanished(1);
        return 0;
    };
    core.stats.in_copied().add(1);
    finish(core, held, page, keep);
    1
}

/// The bytes of one page into one frame. `Err` when its record is damaged.
fn fetch<P: Pager>(core: &Core<P>, page: PageId, frame: FrameId, zeroed: bool) -> Result<(), Damaged> {
    with_frame(&core.pager, frame, |bytes| expand(core, page, bytes, zeroed))
}

/// The bytes of one page into a buffer, which is `zeroed` already or not.
fn expand<P: Pager>(
    core: &Core<P>,
    page: PageId,
    bytes: &mut PageBytes,
    zeroed: bool,
) -> Result<(), Damaged> {
    let word = core.table.word(page).load();
    match word.state() {
        State::Absent if zeroed => {
            debug_assert!(bytes.iter().all(|byte| *byte == 0), "INV-12: {page:?} would show another's bytes");
            Ok(())
        }
        State::Absent => {
            bytes.fill(0);
            Ok(())
        }
        State::Same => {
            codec::fill_same(bytes, core.table.aux(page));
            Ok(())
        }
        State::Pooled => match word.handle() {
            Some(h) => core.room.pool.expand(&core.pager, h, page, bytes),
            None => Err(Damaged),
        },
        State::Resident | State::Staged | State::Swapped => Err(Damaged),
    }
}

/// What is kept of a page, with the hash by which it will be known to be still true: the slot of a doubled
/// page where `slots` are worth it, else the record where `records` are.
fn keep_of<P: Pager>(
    core: &Core<P>,
    page: PageId,
    bytes: &PageBytes,
    (records, slots): (bool, bool),
) -> Keep {
    let word = core.table.word(page).load();
    match word.state() {
        State::Pooled if slots && word.doubled() => Keep::Slot(codec::hash_page(bytes, core.seed)),
        State::Pooled if records && word.hashed() => Keep::Record(core.table.aux(page)),
        State::Pooled if records => Keep::Record(codec::hash_page(bytes, core.seed)),
        _ => Keep::Nothing,
    }
}
