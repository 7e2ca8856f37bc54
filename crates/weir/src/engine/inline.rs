//! Inline mode: the faulting thread resolves its own fault, inside the handler of its SIGBUS. No
//! other thread is woken and no permission is needed.
//!
//! The handler comes with every signal blocked and does its work at a [`super::desk::Desk`]: a stack of ours
//! and the workbench for reclaiming, because the program's stack may be small. Nothing here touches
//! managed memory, so a fault never nests in a fault.

use super::Engine;
use super::desk::{DESKS, new_desk};
use crate::admission::Asker;
use crate::config::rules::{Rule, is_on};
use crate::door::Pager;
use crate::fault::load::Load;
use crate::fault::{self, Ahead, Whose};
use crate::limits::PLACE_BYTES;
use crate::page::PageId;
use crate::page::id::BLOCK_PAGES;
use crate::page::region::Kind;
use crate::reclaim::compress::Workbench;
use crate::reclaim::{self, Effort};
use crate::sync::Ordering;
use core::sync::atomic::{AtomicU32, AtomicU64};
use weir_os::pager::{Intake, KernelPager};
use weir_os::sys::Errno;
use weir_os::thread;

/// Frames freed by a faulting thread that keeps room for itself: bounds how long one fault takes.
const OWN_ROUND: u32 = 3;
/// The same where faults take runs: what one of them takes.
const STREAM_ROUND: u32 = BLOCK_PAGES;
/// Room for new frames below which free ones are given up for it.
const CREDIT_LOW: u32 = 32;
/// How long a faulting thread runs before others do, where they are more than the processors: a few faults.
/// The slowest thousandth of 16 threads on two processors takes as long as this is: 0.74 ms of reads from the
/// swap file, 1.4 ms with 50 us, at the same speed.
const TURN_NS: u64 = 12_000;

/// The system-call gate before there is a space: the place that system calls about it come from.
#[derive(Debug)]
pub(super) struct GateHalf {
    #[cfg(target_arch = "x86_64")]
    stubs: Option<weir_os::gate::stubs::Stubs>,
}

impl GateHalf {
    /// For a space that will begin at `base`; empty when handler threads serve faults.
    #[cfg(target_arch = "x86_64")]
    pub fn at(base: usize, intake: Intake) -> Result<GateHalf, Errno> {
        let below = PLACE_BYTES as usize;
        GateHalf::unwatched(base - below, below, intake)?;
        let stubs = match intake {
            Intake::Messages => None,
            Intake::InThread => Some(weir_os::gate::stubs::Stubs::new(base)?),
        };
        if let Some(stubs) = &stubs {
            stubs.open_door();
        }
        Ok(GateHalf { stubs })
    }

    /// EEXIST: a filter of a parent's watches the range.
    pub fn unwatched(base: usize, len: usize, intake: Intake) -> Result<(), Errno> {
        #[cfg(target_arch = "x86_64")]
        if intake == Intake::InThread && weir_os::gate::is_watched(base, len) {
            return Err(Errno::EEXIST);
        }
        let _ = (base, len, intake);
        Ok(())
    }

    /// There is no gate for this processor.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn at(_base: usize, intake: Intake) -> Result<GateHalf, Errno> {
        match intake {
            Intake::Messages => Ok(GateHalf {}),
            Intake::InThread => Err(Errno::ENOSYS),
        }
    }
}

/// A stay inside the engine's gate.
#[derive(Debug)]
pub struct Section<'a> {
    _inside: Option<crate::sync::Inside<'a>>,
}

/// What the handler does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Return: the access is tried again.
    Retry,
    /// Not a fault of Weir's: the program's own handler is to have it.
    NotOurs,
    /// Go on behind the instruction, which loads this value.
    Loaded(u64),
}

impl Engine<KernelPager> {
    /// Resolves the fault of the calling thread at `addr`, which lies in the managed space. Signals
    /// are blocked. A page whose record is damaged is poisoned: trying again then raises a SIGBUS
    /// that is the program's. `left` is the thread's own: when its last fault ended, 0 at first.
    pub fn fault_in_thread(&self, addr: usize, left: &AtomicU64, load: Option<Load>) -> Served {
        let page = PageId(self.page_of(addr));
        let mut served = Served::Retry;
        let start = thread::now_ns();
        self.core.meter.enter(left, start);
        let short = !self.core.room.is_plentiful();
        self.at_desk(|desk, workbench| {
            let (me, before) = (thread::id(), self.core.stats.faults().next());
            self.core.room.demand.note_faulter(me, before);
            self.begin_serving(desk, page, start);
            let settled = self.resolve_or_reclaim(workbench, page, (me >> 12) as u32, load);
            self.end_serving(desk);
            if let Some(value) = settled.loaded {
                served = Served::Loaded(value);
            }
            if settled.foreign {
                if self.is_foreign(page) {
                    served = Served::NotOurs;
                } else {
                    thread::yield_now(); // it is being unmapped: the next try finds no access
                }
            }
            if let Some(a) = settled.ahead.and_then(|a| self.first_touches(a)) {
                self.inline.streams.post(a);
            }
            self.keep_room(workbench);
            let end = thread::now_ns();
            self.core.stats.record_fault(end - start, short);
            left.store(end, Ordering::Relaxed);
        });
        served
    }

    /// A stream of first touches runs ahead. While the kernel gives new frames, which takes longer than most
    /// programs need to fill them, and a processor is free, another thread asks for those further on at the
    /// same time. What is left.
    fn first_touches(&self, a: Ahead) -> Option<Ahead> {
        let (mine, others) =
            match self.core.room.takes_new_frames() && self.core.room.demand.leaves_processors() {
                true => a.shared(),
                false => (a, None),
            };
        if let Some(others) = others {
            self.inline.streams.post(others);
        }
        fault::first_touches(&self.core, mine)
    }

    /// Whether the fault of the instruction at `ip` might be answered, if it loads: worth decoding.
    pub fn ask(&self, ip: usize) -> Option<Asker> {
        if self.core.room.is_plentiful() || !self.core.answers_loads || !is_on(Rule::Loads) {
            return None;
        }
        self.core.admission.ask(ip, self.core.stats.faults().own())
    }

    /// Where more threads fault than there are processors, one that has run for [`TURN_NS`] lets the others
    /// run: the scheduler takes a processor away at its timer's ticks only, and whoever waits for all the
    /// others waits for as many ticks. `since` is the thread's own: when it last did, 0 at first; `left` as
    /// in [`Engine::fault_in_thread`].
    pub fn take_turns(&self, since: &AtomicU64, left: &AtomicU64) {
        const NEVER: u64 = u64::MAX;
        if !self.core.room.demand.queued() {
            return;
        }
        let begun = since.load(Ordering::Relaxed);
        if begun == NEVER || thread::now_ns() - begun < TURN_NS {
            return;
        }
        if begun == 0 && !thread::shorten_own_slice() {
            since.store(NEVER, Ordering::Relaxed);
            return;
        }
        self.core.stats.turns().add(1);
        thread::yield_now();
        let now = thread::now_ns();
        since.store(now, Ordering::Relaxed);
        left.store(now, Ordering::Relaxed);
    }

    /// While it lives no fork begins; the thread that forks is let in. Signals are blocked.
    pub fn section(&self) -> Section<'_> {
        self.check_own();
        let closed_by_me = self.inline.closer.load(Ordering::Relaxed) == thread::id();
        Section { _inside: (!closed_by_me).then(|| self.gate.enter()) }
    }

    pub(super) fn keep_gate(&self, _gate: GateHalf) {
        #[cfg(target_arch = "x86_64")]
        if let Some(stubs) = _gate.stubs {
            let _ = self.inline.stubs.set(stubs);
        }
    }

    /// Has the background thread call `f` now and then.
    pub fn set_chore(&self, f: fn()) {
        let _ = self.inline.chore.set(f);
    }

    /// A small round of reclaim by the faulting thread, when room gets short.
    fn keep_room(&self, workbench: &mut Workbench) {
        let core = &self.core;
        if core.room.demand.streams_crowd() && core.room.available() < core.room.low_mark() {
            core.stats.own_reclaims().add(1);
            reclaim::run_once(core, workbench, STREAM_ROUND, Effort::Own);
            return;
        }
        if !core.room.demand.crowded() {
            return;
        }
        if core.room.available() < core.room.own_mark() {
            core.stats.own_reclaims().add(1);
            reclaim::run_once(core, workbench, OWN_ROUND, Effort::Own);
        }
        if core.room.frames.credit() < CREDIT_LOW {
            core.room.balance_a_little(&core.pager, &core.stats);
        }
    }

    /// Calls `f` inside the gate, on a stack of ours, with a workbench.
    pub(super) fn at_desk(&self, mut f: impl FnMut(usize, &mut Workbench)) {
        let me = thread::id();
        let _inside = self.section();
        let first = (me >> 12) % DESKS;
        loop {
            for i in (0..DESKS).map(|i| (first + i) % DESKS) {
                let Ok(mut desk) = self.inline.desks[i].try_lock() else { continue };
                let (stack, workbench) = desk.0.get_or_insert_with(new_desk);
                stack.run(&mut || f(i, workbench));
                return;
            }
            thread::yield_now();
        }
    }

    fn is_foreign(&self, page: PageId) -> bool {
        let regions = self.regions();
        let (parts, _) = regions.map.parts(page.0, page.0 + 1);
        parts.iter().any(|r| r.kind == Kind::Foreign)
    }

    /// Fetches what streams will want next, until it is told to leave by a value other than 0.
    pub fn fetch_ahead_in_background(&self, leave: &AtomicU32) {
        while leave.load(Ordering::Acquire) == 0 {
            let next = {
                let _inside = self.gate.enter();
                self.inline.streams.take()
            };
            let Some(a) = next else {
                self.inline.streams.wait();
                continue;
            };
            for i in 0..fetch_steps(a) {
                let _inside = self.gate.enter();
                if !self.fetch_step(a, i) {
                    break;
                }
            }
        }
    }
}

impl<P: Pager> Engine<P> {
    /// Fetches one step of a stream: a block, or a page of a larger stride. False when there is no
    /// point in going on.
    pub(super) fn fetch_step(&self, a: Ahead, i: u32) -> bool {
        let core = &self.core;
        let room = if a.fresh && core.room.takes_new_frames() {
            core.room.frames.credit()
        } else {
            core.room.frames.free()
        };
        if room < core.room.low_mark() / 2 {
            return false;
        }
        let step = i64::from(i) * i64::from(a.stride);
        if a.stride.unsigned_abs() == 1 {
            let block = i64::from(a.first.block().0) + step;
            self.fetch_ahead(block * i64::from(BLOCK_PAGES), u64::MAX, a.whose)
        } else {
            let page = i64::from(a.first.0) + step;
            self.fetch_ahead(page, 1 << page.rem_euclid(64), a.whose)
        }
    }

    fn fetch_ahead(&self, page: i64, mask: u64, whose: Whose) -> bool {
        if page < 0 || page >= i64::from(self.core.table.pages()) {
            return false;
        }
        let block = PageId(page as u32).block();
        if self.core.table.block(block).valid() & mask == 0 {
            return false;
        }
        let came = fault::prefetch(&self.core, block.page(0), mask, whose);
        if let Whose::Stride(row) = whose {
            self.strides.brought(row, came);
        }
        true
    }
}

/// Steps of [`Engine::fetch_step`] that a stream asks for.
pub(super) fn fetch_steps(a: Ahead) -> u32 {
    if a.stride.unsigned_abs() == 1 { a.count / BLOCK_PAGES } else { a.count }
}
