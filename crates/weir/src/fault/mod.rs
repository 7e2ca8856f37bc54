//! A page comes in.
//!
//! [`resolve`] is the whole way: lookup, readahead, fetch, install. It holds the lock of one block,
//! allocates nothing, and touches memory only through frames it owns.

pub mod install;
pub mod readahead;
pub mod span;

use crate::door::Pager;
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::page::state::State;
use crate::page::{BlockId, PageId, table::BlockRow};
use crate::shared::{Core, count};
use crate::stats;
use install::bring_in;
pub use readahead::{Ahead, Strides};
use span::bring_span;
use weir_os::sys::Errno;

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page is there; more may be worth fetching.
    Installed(Option<Ahead>),
    /// It was there already.
    Stale,
    /// Nobody has mapped this page through Weir.
    Foreign,
    /// No frame: reclaim, then try again.
    NoFrames,
    /// The page's record is damaged; its bytes are lost.
    Lost,
}

/// Resolves a fault of thread `tid` on `page`.
pub fn resolve<P: Pager>(core: &Core<P>, strides: &Strides, page: PageId, tid: u32) -> Outcome {
    // 1. Room first, without a lock: fresh frames while the budget allows.
    install::ensure_frames(core);
    // 2. Lookup.
    let (block, index) = (page.block(), page.index());
    let row = core.table.block(block);
    let guard = row.lock();
    if row.valid() >> index & 1 == 0 {
        stats::add(&core.stats.faults_foreign, 1);
        return Outcome::Foreign;
    }
    core.charge(row);
    let word = core.table.word(page).load();
    // 3. There already? Another fault brought it, or the program dropped it behind our back.
    if word.state() == State::Resident {
        return settle_resident(core, row, page);
    }
    if word.state() == State::Pooled {
        stats::add(&core.stats.faults_major, 1);
    }
    // 4. How much to bring: the page, and what readahead expects next.
    let plan = readahead::plan(core, block, index, word.state());
    let wanted = plan.mask & row.valid() | run_mask(index, 1);
    // 5. Fetch and install, the faulted page's run first.
    let got = bring_in(core, block, wanted, index);
    if got.lost >> index & 1 == 1 {
        return Outcome::Lost;
    }
    if got.installed >> index & 1 == 0 {
        return Outcome::NoFrames;
    }
    row.set_readahead(plan.state);
    drop(guard);
    // 6. Threads waiting for pages of the runs were woken by the moves; count, look ahead.
    count(&core.stats.readahead, got.installed.count_ones() - 1);
    core.kick_if_low();
    let stream =
        plan.ahead.and_then(|a| if word.state() == State::Absent { first_touches(core, a) } else { Some(a) });
    Outcome::Installed(stream.or_else(|| strides.note(tid, page)))
}

/// A stream of first touches runs ahead at once. What is left of it.
fn first_touches<P: Pager>(core: &Core<P>, a: Ahead) -> Option<Ahead> {
    if a.stride != 1 {
        return Some(a);
    }
    let pages = bring_span(core, a.first.block(), a.count / BLOCK_PAGES, a.state) * BLOCK_PAGES;
    (pages < a.count).then_some(Ahead { first: PageId(a.first.0 + pages), count: a.count - pages, ..a })
}

/// A fault on a page whose word says Resident: either another fault resolved it, or the page was
/// dropped without our knowing (a raw system call) and must read as zeros.
fn settle_resident<P: Pager>(core: &Core<P>, row: BlockRow<'_>, page: PageId) -> Outcome {
    let z = core.pager.zero(page);
    if z.pages == 1 {
        // The frame it had is gone; the shared zero page stands in until the first write.
        if let Some(h) = core.table.word(page).load().kept() {
            let word = core.table.word(page);
            if word.try_drop_kept(word.load()).is_ok() {
                core.free_record(h);
                core.count_kept(-1);
            }
        }
        let _ = row;
        return Outcome::Installed(None);
    }
    if z.stop == Some(Errno::EEXIST) {
        core.pager.unprotect(page);
    }
    core.pager.wake(page, 1);
    stats::add(&core.stats.faults_stale, 1);
    Outcome::Stale
}

/// How [`require`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// All pages that are mapped are resident.
    Ready,
    /// No frame for some: reclaim, then try again.
    NoFrames,
    /// The record of the page with this index is damaged.
    Lost(u32),
}

/// Makes all mapped pages of `mask` resident, for a system call that is about to use them: they are
/// pinned already, so what is found here stays.
pub fn require<P: Pager>(core: &Core<P>, block: BlockId, mask: u64) -> Required {
    install::ensure_frames(core);
    let row = core.table.block(block);
    let _guard = row.lock();
    let missing = install::missing_of(core, block, mask & row.valid());
    if missing == 0 {
        return Required::Ready;
    }
    core.charge(row);
    let got = bring_in(core, block, missing, missing.trailing_zeros());
    count(&core.stats.in_for_calls, got.installed.count_ones());
    core.kick_if_low();
    match (got.lost, missing & !got.installed) {
        (0, 0) => Required::Ready,
        (0, _) => Required::NoFrames,
        (lost, _) => Required::Lost(lost.trailing_zeros()),
    }
}

/// Brings pages in before anybody faults on them; stops early when frames get short. Returns how
/// many came.
pub fn prefetch<P: Pager>(core: &Core<P>, first: PageId, mask: u64, state: Option<u64>) -> u32 {
    install::ensure_frames(core);
    let row = core.table.block(first.block());
    let _guard = row.lock();
    let mask = mask & row.valid();
    if mask == 0 {
        return 0;
    }
    core.charge(row);
    let got = bring_in(core, first.block(), mask, mask.trailing_zeros());
    if let Some(s) = state {
        row.set_readahead(s);
    }
    let n = got.installed.count_ones();
    count(&core.stats.readahead, n);
    core.kick_if_low();
    n
}
