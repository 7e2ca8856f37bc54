//! A page comes in.
//!
//! [`resolve_load`] is the whole way: room, lookup, what to bring, fetch, install. [`resolve`] is the same
//! where nobody can be given a value without its page. It holds the lock of one block,
//! allocates nothing, and touches memory only through frames it owns. Pages in the swap file are read without
//! the lock (`swapin`).

mod arrive;
mod fresh;
pub mod install;
pub mod load;
pub mod readahead;
mod source;
pub mod span;
pub mod strides;
mod swapin;

use crate::admission::{Pressure, Verdict, Want};
use crate::door::Pager;
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::page::region::Access;
use crate::page::state::State;
use crate::page::table::BlockGuard;
use crate::page::{BlockId, PageId};
use crate::shared::{Core, count};
use crate::stats;
use install::bring_in;
use load::Load;
use readahead::Plan;
pub use readahead::{Ahead, Whose};
pub use source::Source;
use span::{bring_span, bring_two};
pub use strides::Strides;
use swapin::End;
pub use swapin::loss;
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
    /// The page's record is damaged or cannot be read; its bytes are lost.
    Lost,
    /// The page stays where it is: this is the value that was to be loaded from it. More may be worth
    /// fetching.
    Loaded(u64, Option<Ahead>),
}

/// What a fault asks for, and what is known of it from one try to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// The instruction loads, and can be given the value.
    load: Option<Load>,
    known: Option<(Want, Verdict)>,
    /// It was told to make room for a whole block, and takes what there is from then on.
    made_room: bool,
    room_for_block: bool,
}

impl Request {
    /// Of an instruction that loads, perhaps.
    pub fn of(load: Option<Load>) -> Request {
        Request { load, ..Request::default() }
    }

    /// Whether the last answer was `NoFrames` because there is none in whole blocks: if making room frees
    /// none, there are others.
    pub fn wants_room_for_block(&mut self) -> bool {
        core::mem::take(&mut self.room_for_block)
    }
}

/// Resolves a fault of thread `tid` on `page`, with the frames that there are.
pub fn resolve<P: Pager>(core: &Core<P>, strides: &Strides, page: PageId, tid: u32) -> Outcome {
    resolve_load(core, strides, page, tid, &mut Request { made_room: true, ..Request::default() })
}

/// As [`resolve`], of an instruction that may load from the page and be given the value instead. To be called
/// with the same request until it is resolved.
pub fn resolve_load<P: Pager>(
    core: &Core<P>,
    strides: &Strides,
    page: PageId,
    tid: u32,
    request: &mut Request,
) -> Outcome {
    let row = core.table.block(page.block());
    loop {
        let seen = swapin::arrivals(&core.copies);
        // 1. Room first, without a lock: fresh frames while the budget allows.
        install::ensure_frames(&core.room, &core.pager);
        // 2. Lookup: where the page is.
        let guard = row.lock();
        let (source, state) = lookup(core, &guard, page);
        let (plan, load) = match source {
            Source::Foreign => {
                stats::add(&core.stats.faults_foreign, 1);
                return Outcome::Foreign;
            }
            // 3. There already? Another fault brought it, or the program dropped it behind our back.
            Source::There => return settle_resident(core, &guard, page),
            // 4. How much to bring: the page, and what readahead expects next; or nothing, where a load can
            //    be answered.
            _ => decide(core, &guard, page, state, request),
        };
        // 5. Fetch and install. 6. Count, look ahead.
        let fault = Fault { core, strides, page, tid };
        match source {
            Source::Swap => {
                // What is in the pool comes by faults of its own.
                let plan = plan.of(install::swapped_of(core, &guard, plan.mask));
                drop(guard);
                match fault.bring_from_swap(&plan, load, seen) {
                    Some(outcome) => return outcome,
                    None => continue, // it is not in the swap file any more, or somebody else is at it
                }
            }
            _ => match load
                .and_then(|(load, want)| Some((load, want, load::from_ram(core, &guard, page, load)?)))
            {
                Some((load, want, value)) => return fault.loaded(&plan, (load, want), value),
                None => return fault.bring_from_ram(&plan, request, guard),
            },
        }
    }
}

/// Where a page is.
fn lookup<P: Pager>(core: &Core<P>, row: &BlockGuard<'_>, page: PageId) -> (Source, State) {
    if row.valid() >> page.index() & 1 == 0 {
        return (Source::Foreign, State::Absent);
    }
    // Before the word is read: it writes to the page of words.
    core.charge(page.block());
    let state = core.table.word(page).load().state();
    (Source::of(state), state)
}

/// How much to bring with a page, or which load of it is answered instead.
fn decide<P: Pager>(
    core: &Core<P>,
    row: &BlockGuard<'_>,
    page: PageId,
    state: State,
    request: &mut Request,
) -> (Plan, Option<(Load, Want)>) {
    let (want, verdict) = look(core, page, state, request);
    let answered = |load: &Load| verdict == Verdict::Open && load::may_answer(core, **row, want, *load);
    let load = request.load.filter(answered);
    let again = verdict == Verdict::AtOnce;
    let plan = readahead::plan(core, row, page.index(), state, (again, load.is_some()));
    // Where readahead wants more than the page, it comes.
    let load = load.filter(|_| plan.mask == run_mask(page.index(), 1));
    (plan, load.map(|load| (load, want)))
}

/// A fault that is being resolved.
struct Fault<'a, P: Pager> {
    core: &'a Core<P>,
    strides: &'a Strides,
    page: PageId,
    tid: u32,
}

impl<P: Pager> Fault<'_, P> {
    /// Brings in a page that is in RAM, or that is zeros, and what is planned with it; the page's run first.
    /// Ends the hold of the block's lock.
    fn bring_from_ram(&self, plan: &Plan, request: &mut Request, held: BlockGuard<'_>) -> Outcome {
        let (core, block, index) = (self.core, self.page.block(), self.page.index());
        let wanted = plan.mask & held.valid() | run_mask(index, 1);
        if !request.made_room && install::would_get_fragments(core, &held, wanted) {
            (request.made_room, request.room_for_block) = (true, true);
            return Outcome::NoFrames;
        }
        let (got, second) = match bring_two(core, &held, wanted, plan) {
            Some((got, second)) => (got, Some(second)),
            None => (bring_in(core, &held, wanted, index), None),
        };
        if got.lost >> index & 1 == 1 {
            return Outcome::Lost;
        }
        if got.installed >> index & 1 == 0 {
            return Outcome::NoFrames;
        }
        // Threads waiting for pages of the runs were woken by the moves.
        readahead::done(plan, core, block, index, got.installed, got.fresh);
        second.iter().for_each(|second| second.done(core));
        drop((held, second));
        self.installed(plan)
    }

    /// Brings in a page that is in the swap file and what is planned with it, or reads what a load wants of
    /// it. Under no lock. `None`: to be looked up again; reads that had not completed at `seen` may be waited
    /// for.
    fn bring_from_swap(&self, plan: &Plan, load: Option<(Load, Want)>, seen: u32) -> Option<Outcome> {
        let (core, block, index) = (self.core, self.page.block(), self.page.index());
        let got = match load {
            Some((load, _)) => swapin::load(core, self.page, load),
            None => swapin::fetch(core, block, plan.mask | run_mask(index, 1), index),
        };
        if got.lost >> index & 1 == 1 {
            return Some(Outcome::Lost);
        }
        if let Some((value, load)) = got.loaded.zip(load) {
            return Some(self.loaded(plan, load, value));
        }
        match got.end {
            End::Done if got.installed >> index & 1 == 1 => {}
            End::Done => return None,
            End::NoFrames => return Some(Outcome::NoFrames),
            End::Busy => {
                swapin::wait(&core.copies, &core.stats, seen);
                return None;
            }
        }
        readahead::done(plan, core, block, index, got.installed, 0);
        Some(self.installed(plan))
    }

    fn installed(&self, plan: &Plan) -> Outcome {
        self.core.room.kick_if_low();
        Outcome::Installed(self.next_of(plan))
    }

    /// The load is answered: counts, looks ahead.
    fn loaded(&self, plan: &Plan, (load, want): (Load, Want), value: u64) -> Outcome {
        self.core.admission.answered(want, load.asker);
        self.core.stats.loads_answered().add(1);
        let (block, index) = (self.page.block(), self.page.index());
        readahead::done(plan, self.core, block, index, run_mask(index, 1), 0);
        Outcome::Loaded(value, self.next_of(plan))
    }

    /// What to fetch next: for the block's stream, or else for the thread's stride.
    fn next_of(&self, plan: &Plan) -> Option<Ahead> {
        let by_stride = || self.strides.note(self.tid, self.page, &self.core.stats.swap_ra_hit);
        if plan.alone { None } else { plan.ahead.or_else(by_stride) }
    }
}

/// What is known of a page that is wanted: asked once for each fault, however often it is tried.
fn look<P: Pager>(core: &Core<P>, page: PageId, source: State, request: &mut Request) -> (Want, Verdict) {
    if let Some((want, verdict)) = request.known {
        return (Want { source, ..want }, verdict);
    }
    if matches!(source, State::Pooled | State::Swapped) {
        core.stats.faults_major().add(1);
    }
    let want = Want { page, source, now: core.room.demand.faults.now(core.stats.faults().own()) };
    let verdict =
        if source == State::Absent { Verdict::ComesIn } else { core.admission.look(want, pressure(core)) };
    request.known = Some((want, verdict));
    (want, verdict)
}

/// What speaks against bringing pages now.
fn pressure<P: Pager>(core: &Core<P>) -> Pressure {
    let pool_overflows = core.copies.swapping.is_some() && core.room.pool.owned() >= core.room.pool.limit();
    Pressure { staged: core.staged.pages(), pool_overflows, faulters: core.room.demand.faulters() }
}

/// A stream of first touches runs ahead at once: to be called with what a fault left to be fetched. What is
/// left of it.
pub fn first_touches<P: Pager>(core: &Core<P>, a: Ahead) -> Option<Ahead> {
    let Whose::Stream(state) = a.whose else { return Some(a) };
    if a.stride != 1 || !a.fresh {
        return Some(a);
    }
    a.behind(bring_span(core, a.first.block(), a.count / BLOCK_PAGES, state) * BLOCK_PAGES)
}

/// A fault on a page whose word says Resident: either another fault resolved it, or the page was
/// dropped without our knowing (a raw system call) and must read as zeros.
fn settle_resident<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId) -> Outcome {
    let z = core.pager.zero(page);
    if z.pages == 1 {
        // The frame it had is gone; the shared zero page stands in until the first write.
        let word = core.table.word(page);
        let found = word.load();
        if word.try_drop_kept(found).is_ok() {
            core.free_copy(held, page, found);
        }
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
    loop {
        let seen = swapin::arrivals(&core.copies);
        let swapped = match require_in_ram(core, block, mask) {
            Ok(required) => return required,
            Err(swapped) => swapped,
        };
        let got = swapin::fetch(core, block, swapped, swapped.trailing_zeros());
        count(&core.stats.in_for_calls, got.installed.count_ones());
        if got.lost != 0 {
            return Required::Lost(got.lost.trailing_zeros());
        }
        match got.end {
            End::Done => {}
            End::NoFrames => return Required::NoFrames,
            End::Busy => swapin::wait(&core.copies, &core.stats, seen),
        }
    }
}

/// As [`require`], but that pages in the swap file stay there: `Err` says which.
fn require_in_ram<P: Pager>(core: &Core<P>, block: BlockId, mask: u64) -> Result<Required, u64> {
    install::ensure_frames(&core.room, &core.pager);
    let row = core.table.block(block).lock();
    let missing = install::missing_of(&core.table, &row, mask & row.valid());
    if missing == 0 {
        return Ok(Required::Ready);
    }
    core.charge(block);
    let swapped = install::swapped_of(core, &row, missing);
    let here = missing & !swapped;
    let got = bring_in(core, &row, here, here.trailing_zeros() % BLOCK_PAGES);
    count(&core.stats.in_for_calls, got.installed.count_ones());
    core.room.kick_if_low();
    match (got.lost, here & !got.installed) {
        (0, 0) if swapped != 0 => Err(swapped),
        (0, 0) => {
            debug_assert!(
                install::missing_of(&core.table, &row, mask & row.valid()) == 0,
                "INV-14: a page for a call is out, {block:?}"
            );
            Ok(Required::Ready)
        }
        (0, _) => Ok(Required::NoFrames),
        (lost, _) => Ok(Required::Lost(lost.trailing_zeros())),
    }
}

/// Brings pages in before anybody faults on them; stops early when frames get short, and where the program
/// said that its accesses have no order brings only what it asks for itself. Returns how many pages that had
/// contents came.
pub fn prefetch<P: Pager>(core: &Core<P>, first: PageId, mask: u64, whose: Whose) -> u32 {
    install::ensure_frames(&core.room, &core.pager);
    let block = first.block();
    let row = core.table.block(block);
    if whose != Whose::Program && row.access() == Access::Random {
        return 0;
    }
    let guard = row.lock();
    let mask = mask & row.valid();
    if mask == 0 {
        return 0;
    }
    core.charge(block);
    let swapped = install::swapped_of(core, &guard, mask);
    let got = bring_in(core, &guard, mask, (mask & !swapped).trailing_zeros() % BLOCK_PAGES);
    let mut read = (got.installed & !got.fresh).count_ones();
    if let Whose::Stream(state) = whose {
        readahead::pass_on(core, block, state, (got.installed | swapped).count_ones(), read);
    }
    drop(guard);
    if swapped != 0 {
        let more = swapin::fetch(core, block, swapped, swapped.trailing_zeros()).installed.count_ones();
        if let Whose::Stream(_) = whose {
            readahead::more_came(&core.table, block, more);
        }
        read += more;
    }
    core.stats.readahead().count(read + got.fresh.count_ones());
    count(&core.stats.swap_ra, if whose == Whose::Program { 0 } else { read });
    core.room.kick_if_low();
    read
}
