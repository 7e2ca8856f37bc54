//! The system-call gate: in inline mode the kernel cannot bring pages in for a system call, so the
//! buffers of every call are brought in and pinned before it is made.
//!
//! A filter traps calls whose pointer arguments lie in the managed space. The shim's SIGSYS handler
//! comes here with the call; what comes back is the address of a stub that makes it again.

use super::Engine;
use super::desk::Inline;
use crate::error::GateError;
use crate::fault::{self, Required};
use crate::page::PageId;
use crate::reclaim::compress::Workbench;
use crate::shared::Core;
use crate::stats;
use crate::sync::Ordering;
use weir_os::gate::area::{self, Area};
use weir_os::gate::pieces::{Parts, Piece};
use weir_os::gate::stubs::Stubs;
use weir_os::gate::table::{Caller, Known, visit, visit_exec};
use weir_os::gate::{filter, read_staying};
use weir_os::mem::PAGE_BYTES;
use weir_os::pager::KernelPager;
use weir_os::signal::{self, Mask, SIG_SETMASK};
use weir_os::sys::Errno;
use weir_os::thread;

/// A call as it was trapped.
#[derive(Clone, Copy, Debug)]
pub struct Trapped {
    /// Its number.
    pub nr: usize,
    /// Its arguments.
    pub args: [usize; 6],
    /// Where the program goes on.
    pub back: usize,
    /// Its stack pointer.
    pub stack: usize,
    /// The address of a live stack frame of its, where that is certain.
    pub frame: Option<usize>,
}

/// The pages of a small call under way.
#[derive(Debug)]
#[must_use]
pub struct Hold(u32);

/// The calling thread's row of [`crate::page::holds`].
fn my_row() -> Option<u32> {
    Area::current().hold.load(Ordering::Relaxed).checked_sub(1).map(|row| row as u32)
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Jump here.
    Stub(usize),
    /// It cannot be made in one go (its buffers exceed what a call may pin, or all stubs are in use): see
    /// [`Engine::make_in_pieces`].
    Pieces,
}

impl Engine<KernelPager> {
    /// Holds the pages of a small call's buffer, if they are there, for a call below `frame`. `None`: they
    /// are to be pinned. Signals may come.
    #[inline]
    pub fn hold(&self, addr: usize, len: usize, frame: usize) -> Option<Hold> {
        let last = addr.checked_add(len.checked_sub(1)?)?;
        if !self.contains(addr) || !self.contains(last) {
            return None;
        }
        let (start, end) = (PageId(self.page_of(addr)), self.page_of(last) + 1);
        let core = &self.core;
        if !core.holds.may_hold(end - start.0, core.room.frames.limit()) {
            return None;
        }
        let row = match my_row() {
            Some(row) => row,
            None => self.claim_row(start, end)?,
        };
        if !core.holds.publish(row, start, end, frame) {
            return None;
        }
        if !core.table.stay(start, end) {
            core.holds.clear(row);
            return None;
        }
        self.check_own();
        core.stats.calls_held().add(1);
        Some(Hold(row))
    }

    /// A row of the thread's own, once it is of use.
    #[cold]
    fn claim_row(&self, start: PageId, end: u32) -> Option<u32> {
        // A child of `vfork` has its parent's area, and another id.
        if self.stubs().is_none() || !self.core.table.stay(start, end) || !area::is_owner() {
            return None;
        }
        let area = Area::current();
        let row = self.core.holds.claim(area.kernel_id())?;
        area.hold.store(u64::from(row) + 1, Ordering::Relaxed);
        Some(row)
    }

    /// Ends a hold.
    #[inline]
    pub fn let_go(&self, hold: Hold) {
        self.core.holds.clear(hold.0);
    }

    /// The calling thread jumps out of a handler: `left` says of the frame of an interrupted call that holds
    /// pages whether it is left for good.
    pub fn leave_hold(&self, left: impl FnOnce(usize) -> bool) {
        let Some(row) = my_row() else { return };
        if self.core.holds.frame(row).is_some_and(left) {
            self.core.holds.clear(row);
        }
    }

    /// Opens the gate: from here on calls with managed pointers are trapped. The SIGSYS handler is
    /// there already.
    pub fn open_gate(&self) -> Result<(), GateError> {
        let (base, len) = self.space();
        let stubs = self.stubs().ok_or(GateError::Stubs(Errno::ENOSYS))?;
        let allowed = stubs.allowed();
        let first = (base >> 32) as u32;
        let highs = ((base + len - 1) >> 32) as u32 - first + 1;
        filter::install(&filter::build(first, highs, allowed), filter::FLAGS).map_err(GateError::Filter)
    }

    /// The stubs, once the gate is open.
    pub fn stubs(&self) -> Option<&Stubs> {
        self.inline.stubs.get()
    }

    /// Brings in and pins what a trapped call needs. Signals are blocked.
    pub fn pass(&self, call: Trapped) -> Passage {
        let mut passage = Passage::Pieces;
        self.at_desk(|_, workbench| passage = self.pass_at_desk(call, workbench));
        passage
    }

    fn pass_at_desk(&self, call: Trapped, workbench: &mut Workbench) -> Passage {
        let Some(stubs) = self.stubs() else { return Passage::Pieces };
        self.harvest_calls_if_many();
        if weir_os::gate::table::outlives_its_return(call.nr) {
            self.core.room.frames.forbid_lifts();
        }
        let mut caller = CallPins::new(self, workbench, self.pages_for_a_call(), call.frame);
        // A table that cannot be read is the kernel's to refuse: it knows the right error.
        let known = visit(call.nr, &call.args, &mut caller);
        if known == Ok(Known::Unknown) {
            stats::add(&self.core.stats.calls_unknown, 1);
            caller.around_pointers(&call.args);
        }
        let (chain, short) = (caller.chain, caller.short);
        let me = thread::id();
        if !short && let Some(stub) = stubs.claim(me, &mut |pins| self.core.pins.release(pins)) {
            return Passage::Stub(stub.ready(call.back, call.nr as u32, chain, me, call.stack));
        }
        self.core.pins.release(chain);
        stats::add(&self.core.stats.calls_in_pieces, 1);
        Passage::Pieces
    }

    /// Makes a call whose buffers are too large to be pinned at once, a piece at a time, where pieces
    /// are what the kernel itself might have done; ENOMEM otherwise. `mask` is the program's, for
    /// while the kernel waits. Returns the kernel's result.
    pub fn make_in_pieces(&self, call: Trapped, mask: Mask) -> isize {
        let mut done = 0;
        let mut parts = Parts::of(call.nr, &call.args);
        loop {
            let next = parts.next(done, self.bytes_for_a_call(), &mut |at, out| self.read_pinned(at, out));
            let mut piece = match next {
                Ok(Some(piece)) => piece,
                Ok(None) if parts.known() => return done as isize,
                Ok(None) => return -(Errno::ENOMEM.0 as isize),
                Err(_) if done > 0 => return done as isize,
                Err(e) => return -(e.0 as isize),
            };
            let chain = self.pin_piece(&mut piece);
            let before = signal::change_mask(SIG_SETMASK, Some(mask));
            let r = weir_os::gate::pieces::make(&piece);
            let _ = before.and_then(|m| signal::change_mask(SIG_SETMASK, Some(m)));
            self.unpin_range(chain);
            match r {
                n if n < 0 => return if done > 0 { done as isize } else { n },
                n => done += n as usize,
            }
            if (r as usize) < piece.len || piece.last {
                return done as isize;
            }
        }
    }

    /// Copies what may be out: between the pieces of a transfer its table has no pins.
    fn read_pinned(&self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        let chain = if self.touches(addr, out.len()) { self.pin_range(addr, out.len()) } else { 0 };
        let read = weir_os::gate::read_own(addr, out);
        self.unpin_range(chain);
        read
    }

    /// Pins a piece and brings it in, or as much of it as there are pins for: then it becomes as short.
    fn pin_piece(&self, piece: &mut Piece) -> u32 {
        let mut pinned = piece.len;
        let chain = self.pin_with(|pins| {
            _ = pins.pin(piece.addr, piece.len);
            if pins.short && pins.chain != 0 {
                pinned = self.addr_of(pins.last.1) - piece.addr;
            }
        });
        piece.cut(pinned.min(piece.len));
        chain
    }

    /// Bytes that one more call may pin.
    pub fn bytes_for_a_call(&self) -> usize {
        self.pages_for_a_call() as usize * PAGE_BYTES
    }

    /// Pages that one more call may pin: a part of what is left, so that several can be under way.
    fn pages_for_a_call(&self) -> u32 {
        let most = self.core.room.frames.limit() / 2;
        (most.saturating_sub(self.core.pins.pages()) / 2).max(1)
    }

    /// Before pins get short.
    fn harvest_calls_if_many(&self) {
        const RANGES: u32 = 2048;
        let (pins, kept) = (&self.core.pins, self.core.pins.kept());
        if pins.pages() > kept.pages + self.core.room.frames.limit() / 16
            || pins.ranges() > kept.ranges + RANGES
        {
            self.harvest_calls();
        }
    }

    /// Makes the pages of a byte range resident; they are pinned already. False when the range is
    /// not all mapped memory of the program.
    fn bring_pinned(&self, workbench: &mut Workbench, start: u32, end: u32) {
        let since = thread::now_ns();
        super::each_block(start, end, |block, mut mask| {
            let mut patience = super::threads::Patience::default();
            loop {
                match fault::require(&self.core, block, mask) {
                    Required::Ready => return,
                    Required::Lost(index) => {
                        self.report_lost(block.page(index));
                        mask &= !(1 << index);
                    }
                    Required::NoFrames => self.make_room_or_die(workbench, &mut patience),
                }
            }
        });
        let took = thread::now_ns() - since;
        if !self.core.room.is_plentiful() {
            self.core.stats.waited_ns().add(took);
        }
        // For the meter this is no time between faults.
        let left = &Area::current().left;
        if left.load(Ordering::Relaxed) != 0 {
            left.fetch_add(took, Ordering::Relaxed);
        }
    }

    /// Pins a byte range of the managed space and brings it in; for callers that hold it themselves.
    /// Returns a chain for [`Engine::unpin_range`]; 0 when there was no room for it.
    pub fn pin_range(&self, addr: usize, len: usize) -> u32 {
        self.pin_with(|pins| _ = pins.pin(addr, len))
    }

    /// The same for several ranges at once.
    pub fn pin_ranges(&self, ranges: &[(usize, usize)]) -> u32 {
        self.pin_with(|pins| ranges.iter().for_each(|&(addr, len)| _ = pins.pin(addr, len)))
    }

    /// The same for what an exec call reads: its path and its two lists of strings.
    pub fn pin_exec(&self, path: usize, lists: [usize; 2]) -> u32 {
        self.pin_with(|pins| _ = visit_exec(path, lists[0], lists[1], pins))
    }

    fn pin_with(&self, mut f: impl FnMut(&mut CallPins<'_>)) -> u32 {
        let mut chain = 0;
        self.at_desk(|_, workbench| {
            // What is small, and lies across a border of pages, finds room in any case.
            let left = (self.core.room.frames.limit() / 2).saturating_sub(self.core.pins.pages()).max(2);
            let mut pins = CallPins::new(self, workbench, left, None);
            f(&mut pins);
            chain = pins.chain;
        });
        chain
    }

    /// The part of `lo..hi` around `addr` that the program has mapped through Weir, in whole pages.
    pub fn clip_to_mapped(&self, lo: usize, hi: usize, addr: usize) -> (usize, usize) {
        let (base, bytes) = self.space();
        let page = |a: usize| self.page_of(a.clamp(base, base + bytes - 1));
        let mapped = |p: u32| {
            let id = PageId(p);
            self.core.table.block(id.block()).valid() >> id.index() & 1 == 1
        };
        let at = page(addr);
        let start = (page(lo)..=at).rev().take_while(|p| mapped(*p)).last().unwrap_or(at);
        let end = (at..page(hi - 1) + 1).take_while(|p| mapped(*p)).last().unwrap_or(at) + 1;
        (self.addr_of(start), self.addr_of(end))
    }

    /// Releases what [`Engine::pin_range`] returned.
    pub fn unpin_range(&self, chain: u32) {
        if chain != 0 {
            let _inside = self.section();
            self.core.pins.release(chain);
        }
    }

    /// Releases what calls that have returned had pinned.
    pub(super) fn harvest_calls(&self) {
        if let Some(stubs) = self.stubs() {
            stubs.harvest(&mut |pins| self.core.pins.release(pins));
            self.core.pins.note_kept();
        }
    }

    /// Ends the calls that have returned, and those of threads that have ended in them (cancelled, or by a
    /// system call of their own).
    pub(super) fn end_calls(&self) {
        self.core.holds.bury(thread::has_ended);
        if self.core.pins.ranges() == 0 {
            return;
        }
        self.harvest_calls();
        if let Some(stubs) = self.stubs() {
            stubs.bury(|c| thread::has_ended(c.tid), &mut |pins| self.core.pins.release(pins));
        }
    }
}

/// Collects the pins of one call.
struct CallPins<'a> {
    engine: &'a Engine<KernelPager>,
    workbench: &'a mut Workbench,
    chain: u32,
    /// The pages pinned last: lists of small buffers often stay in them.
    last: (u32, u32),
    /// Pages it may still pin.
    left: u32,
    /// [`Trapped::frame`].
    frame: Option<usize>,
    /// Something did not fit.
    short: bool,
}

impl<'a> CallPins<'a> {
    fn new(
        engine: &'a Engine<KernelPager>,
        workbench: &'a mut Workbench,
        left: u32,
        frame: Option<usize>,
    ) -> CallPins<'a> {
        CallPins { engine, workbench, chain: 0, last: (0, 0), left, frame, short: false }
    }

    /// Pins what of a range lies in the managed space and brings it in.
    fn pin(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        let (base, bytes) = self.engine.space();
        let (lo, hi) = (addr.max(base), addr.saturating_add(len).min(base + bytes));
        if lo >= hi || self.short {
            return Ok(());
        }
        let (start, mut end) = (self.engine.page_of(lo), self.engine.page_of(hi - 1) + 1);
        if start >= self.last.0 && end <= self.last.1 {
            return Ok(());
        }
        if end - start > self.left {
            self.short = true;
            end = start + self.left;
        }
        if end == start {
            return Ok(());
        }
        match self.engine.core.pins.add(PageId(start), end, self.chain) {
            Some(chain) => self.chain = chain,
            None => {
                self.short = true;
                return Ok(());
            }
        }
        self.last = (start, end);
        self.left -= end - start;
        self.engine.bring_pinned(self.workbench, start, end);
        Ok(())
    }

    /// For a call that the table does not know: what lies behind each pointer, as far as a few pages.
    fn around_pointers(&mut self, args: &[usize; 6]) {
        const AROUND: usize = 4 * PAGE_BYTES;
        for &a in args.iter().filter(|a| self.engine.contains(**a)) {
            let _ = self.pin(a, AROUND);
        }
    }
}

impl Caller for CallPins<'_> {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        if self.engine.touches(addr, out.len()) {
            self.pin(addr, out.len())?;
        }
        if self.short {
            return Err(Errno::EAGAIN); // what is missing would look unreadable
        }
        // What is managed of it is pinned by now.
        read_staying(addr, out, self.frame)
    }

    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        self.engine.file_used(addr, len);
        self.pin(addr, len)
    }
}

impl Inline {
    /// In the child of a fork: calls of other threads are not the child's.
    pub(super) fn forget_calls(&self, core: &Core<KernelPager>, mine: usize) {
        let area = Area::current();
        let before = area.kernel_id();
        area.forget_id();
        core.holds.forked(before, thread::gettid());
        if let Some(stubs) = self.stubs.get() {
            stubs.each_active(|c| c.thread != mine, &mut |pins| core.pins.release(pins));
        }
    }
}
