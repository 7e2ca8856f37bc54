//! The system-call gate: in inline mode the kernel cannot bring pages in for a system call, so the
//! buffers of every call are brought in and pinned before it is made.
//!
//! A filter traps calls whose pointer arguments lie in the managed space. The shim's SIGSYS handler
//! comes here with the call; what comes back is the address of a stub that makes it again.

use super::Engine;
use super::inline::Inline;
use crate::fault::{self, Required};
use crate::page::PageId;
use crate::reclaim::compress::Bench;
use crate::stats;
use weir_os::gate::stubs::Stubs;
use weir_os::gate::table::{Caller, Known, visit};
use weir_os::gate::shorten::shorten;
use weir_os::gate::{filter, read_own};
use weir_os::mem::PAGE_BYTES;
use weir_os::pager::KernelPager;
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
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Jump here, with this number and these arguments.
    Stub(usize, usize, [usize; 6]),
    /// It has been made, with this result.
    Made(isize),
}

/// Why inline mode cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The place for the stubs.
    #[error("the system-call gate needs executable memory at a fixed address: {0}")]
    Stubs(Errno),
    /// SIGBUS and SIGSYS.
    #[error("SIGBUS and SIGSYS cannot be taken over")]
    Signals,
    /// The filter.
    #[error("the seccomp filter of the system-call gate cannot be installed: {0}")]
    Filter(Errno),
}

impl Engine<KernelPager> {
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
        let mut passage = Passage::Made(-(Errno::ENOMEM.0 as isize));
        self.at_desk(|_, bench| passage = self.pass_at_desk(call, bench));
        passage
    }

    fn pass_at_desk(&self, call: Trapped, bench: &mut Bench) -> Passage {
        stats::add(&self.core.stats.calls_trapped, 1);
        let Some(stubs) = self.stubs() else { return Passage::Made(-(Errno::ENOSYS.0 as isize)) };
        let thread = thread::id();
        let mut caller = CallPins { engine: self, bench, chain: 0, left: self.pages_for_a_call(), short: None };
        // A table that cannot be read is the kernel's to refuse: it knows the right error.
        let known = visit(call.nr, &call.args, &mut caller);
        if known == Ok(Known::Unknown) {
            stats::add(&self.core.stats.calls_unknown, 1);
            caller.around_pointers(&call.args);
        }
        let (chain, short) = (caller.chain, caller.short);
        let (mut nr, mut args) = (call.nr, call.args);
        if let Some(bytes) = short {
            match shorten(&mut nr, &mut args, bytes) {
                true => stats::add(&self.core.stats.calls_shortened, 1),
                false => {
                    self.core.pins.release(chain);
                    return Passage::Made(-(Errno::ENOMEM.0 as isize));
                }
            }
        }
        loop {
            if let Some(stub) = stubs.claim(thread, &mut |pins| self.core.pins.release(pins)) {
                let at = stub.ready(call.back, nr as u32, chain, thread, call.stack);
                return Passage::Stub(at, nr, args);
            }
            thread::yield_now();
        }
    }

    /// Pages that one more call may pin: a share of what is left, so that several can be under way.
    fn pages_for_a_call(&self) -> u32 {
        let most = self.core.frames.limit() / 2;
        (most.saturating_sub(self.core.pins.pages()) / 2).max(32)
    }

    /// Makes the pages of a byte range resident; they are pinned already. False when the range is
    /// not all mapped memory of the program.
    fn bring_pinned(&self, bench: &mut Bench, start: u32, end: u32) {
        super::each_block(start, end, |block, mask| {
            let mut patience = super::threads::Patience::default();
            loop {
                match fault::require(&self.core, block, mask) {
                    Required::Ready => return,
                    Required::Lost(index) => {
                        self.report_lost(block.page(index));
                        return;
                    }
                    Required::NoFrames => self.make_room_or_die(bench, &mut patience),
                }
            }
        });
    }

    /// Pins a byte range of the managed space and brings it in; for callers that hold it themselves.
    /// Returns a chain for [`Engine::unpin_range`]; 0 when there was no room for it.
    pub fn pin_range(&self, addr: usize, len: usize) -> u32 {
        let mut chain = 0;
        self.at_desk(|_, bench| {
            let left = self.core.frames.limit() / 2;
            let mut pins = CallPins { engine: self, bench, chain: 0, left, short: None };
            let _ = pins.pin(addr, len);
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
        self.core.pins.release(chain);
    }

    /// Releases what calls that have returned had pinned.
    pub(super) fn harvest_calls(&self) {
        if let Some(stubs) = self.stubs() {
            stubs.harvest(&mut |pins| self.core.pins.release(pins));
        }
    }
}

/// Collects the pins of one call.
struct CallPins<'a> {
    engine: &'a Engine<KernelPager>,
    bench: &'a mut Bench,
    chain: u32,
    /// Pages it may still pin.
    left: u32,
    /// Set when a buffer did not fit: so many bytes of it were pinned.
    short: Option<usize>,
}

impl CallPins<'_> {
    /// Pins what of a range lies in the managed space and brings it in. Returns the bytes covered.
    fn pin(&mut self, addr: usize, len: usize) -> Result<usize, Errno> {
        let (base, bytes) = self.engine.space();
        let (lo, hi) = (addr.max(base), addr.saturating_add(len).min(base + bytes));
        if lo >= hi {
            return Ok(len);
        }
        let (start, mut end) = (self.engine.page_of(lo), self.engine.page_of(hi - 1) + 1);
        let whole = end - start <= self.left;
        if !whole {
            end = start + self.left;
        }
        if end == start {
            return Ok(0);
        }
        let pins = &self.engine.core.pins;
        self.chain = pins.add(PageId(start), end, self.chain).ok_or(Errno::ENOMEM)?;
        self.left -= end - start;
        self.engine.bring_pinned(self.bench, start, end);
        Ok(if whole { len } else { self.engine.addr_of(end) - lo })
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
        read_own(addr, out)
    }

    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        let done = self.pin(addr, len)?;
        if done < len && self.short.is_none() {
            self.short = Some(done);
        }
        Ok(())
    }
}

impl Inline {
    /// In the child of a fork: calls of other threads are not the child's.
    pub(super) fn forget_calls(&self, mine: usize, release: &mut dyn FnMut(u32)) {
        let Some(stubs) = self.stubs.get() else { return };
        let mut gone = [0u64; weir_os::gate::stubs::STUBS / 64];
        stubs.each_active(
            |c| {
                let other = c.thread != mine;
                gone[c.index / 64] |= u64::from(other) << (c.index % 64);
                other
            },
            release,
        );
        for i in (0..weir_os::gate::stubs::STUBS).filter(|i| gone[i / 64] >> (i % 64) & 1 == 1) {
            stubs.bury(i);
        }
    }
}

