//! What a pool and its regions share: the engine, its threads, and who has pinned what.

use super::errors::{AllocError, BuildError, MemoryError, PinError, RangeError};
use super::faults::Faults;
use super::pins::Pins;
use super::threads::Hands;
use super::whole::whole;
use crate::config::{self, Settings};
use crate::engine::Engine;
use crate::engine::remap::Place;
use crate::engine::spaces::Kept;
use crate::error::{Refused, StartError};
use crate::page::region::Kind;
use crate::sync::Ordering;
use core::ops::Range;
use std::sync::Arc;
use weir_os::mem::{PAGE_BYTES, PROT_RW};
use weir_os::pager::{Intake, KernelPager};
use weir_os::sys::Errno;

/// Stack of the thread that makes an engine: workbenches are larger than some programs' stacks.
const MAKER_STACK_BYTES: usize = 2 << 20;

/// An engine of the kernel's pages.
type Weir = Engine<KernelPager>;

/// Lives as long as the pool, its regions and its guards.
#[derive(Debug)]
pub(super) struct Inner {
    /// Where the threads of the program resolve their faults themselves. Goes before the engine.
    faults: Option<Faults>,
    engine: Arc<Weir>,
    hands: Option<Hands>,
    pins: Pins,
    /// Goes after the engine: then other memory may lie there.
    kept: Option<Kept>,
}

impl Inner {
    pub(super) fn start(settings: &Settings) -> Result<Inner, BuildError> {
        let intake = match settings.faults {
            config::Faults::Inline => Intake::InThread,
            config::Faults::Auto | config::Faults::Thread => Intake::Messages,
        };
        let (engine, benches) = std::thread::scope(|scope| {
            let maker = std::thread::Builder::new().name("weir-start".into()).stack_size(MAKER_STACK_BYTES);
            let made = maker.spawn_scoped(scope, || {
                let engine = Engine::start(settings, intake)?;
                Ok::<_, StartError>((Arc::new(engine), [Weir::workbench(), Weir::workbench()]))
            });
            let made = made.map_err(|e| BuildError::Thread(Errno(e.raw_os_error().unwrap_or(0))))?;
            match made.join() {
                Ok(made) => made.map_err(BuildError::from),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        let kept = Some(Kept::new(engine.space()).ok_or(BuildError::TooMany)?);
        let apart = engine.core.pager.keep_from_children();
        apart.map_err(|e| BuildError::Start(StartError::Memory(e)))?;
        let faults = (intake == Intake::InThread).then(|| Faults::serve(&engine)).transpose()?;
        let hands = Some(Hands::start(&engine, benches)?);
        Ok(Inner { faults, engine, hands, pins: Pins::default(), kept })
    }

    /// The engine, for what only reads numbers.
    pub(super) fn engine(&self) -> &Weir {
        &self.engine
    }

    /// Has the engine do something, as a whole.
    pub(super) fn ask<T>(&self, request: impl FnOnce(&Weir) -> T) -> T {
        whole(|| request(&self.engine))
    }

    /// Whether this is the process that made the pool.
    pub(super) fn is_here(&self) -> bool {
        self.engine.is_own()
    }

    /// So many bytes of zeros; their address.
    pub(super) fn alloc(&self, len: usize) -> Result<usize, AllocError> {
        self.check_len(len)?;
        self.ask(|engine| engine.map(len, 1, PROT_RW, Kind::Map)).map_err(|e| self.refused(e, len))
    }

    /// Memory from `alloc` becomes longer or shorter; its address from now on.
    pub(super) fn resize(&self, addr: usize, len: usize, new: usize) -> Result<usize, AllocError> {
        self.check_len(new)?;
        let rows = self.pins.lock();
        if rows.any(&pages(addr, len)) {
            return Err(AllocError::Pinned);
        }
        self.ask(|engine| engine.remap(addr, len, new, Place::Anywhere, false))
            .map_err(|e| self.refused(e, new))
    }

    /// Why the engine does not map so many bytes.
    fn refused(&self, e: Refused, len: usize) -> AllocError {
        let core = &self.engine.core;
        match e {
            Refused::Full if !core.full() => AllocError::Limit,
            Refused::Full => AllocError::Full,
            Refused::NoSpace if !core.ledger.rows_fit(len) => AllocError::Tables,
            Refused::NoSpace | Refused::NotManaged => AllocError::AddressSpace,
            Refused::Kernel(e) => AllocError::Kernel(e),
        }
    }

    fn check_len(&self, len: usize) -> Result<(), AllocError> {
        match len {
            0 => Err(AllocError::Empty),
            _ if isize::try_from(len).is_err() => Err(AllocError::Overflow),
            _ if !self.is_here() => Err(AllocError::Forked),
            _ => Ok(()),
        }
    }

    /// Gives memory from `alloc` back.
    pub(super) fn free(&self, addr: usize, len: usize) {
        if self.is_here() {
            self.pins.lock().forget(&pages(addr, len));
            // An error of the kernel's leaves it mapped: nobody has its address any more.
            let _ = self.ask(|engine| engine.unmap(addr, len));
        }
    }

    /// Calls the engine with the whole pages of a range, if there are any.
    pub(super) fn with_pages(
        &self,
        range: Range<usize>,
        f: impl FnOnce(&Weir, usize, usize) -> Result<(), Refused>,
    ) -> Result<(), RangeError> {
        if !self.is_here() {
            return Err(RangeError::Forked);
        }
        if range.is_empty() {
            return Ok(());
        }
        self.ask(|engine| f(engine, range.start, range.len())).map_err(|e| match e {
            Refused::Kernel(e) => RangeError::Kernel(e),
            Refused::NotManaged | Refused::NoSpace => RangeError::Kernel(Errno::EINVAL),
            Refused::Full => RangeError::Kernel(Errno::ENOMEM),
        })
    }

    /// Pins the pages of a range; the number of the guard.
    pub(super) fn pin(&self, range: Range<usize>) -> Result<u64, PinError> {
        if !self.is_here() {
            return Err(RangeError::Forked.into());
        }
        let mut rows = self.pins.lock();
        let parts = rows.uncovered(range.clone());
        let wanted: usize = parts.iter().map(Range::len).sum();
        let full = |free| PinError::Full { wanted: wanted as u64, free };
        let free = self.pinnable_bytes();
        if wanted as u64 > free {
            return Err(full(free));
        }
        for (n, part) in parts.iter().enumerate() {
            if let Err(e) = self.ask(|engine| engine.mlock(part.start, part.len())) {
                // This one may be locked in part.
                parts[..=n].iter().for_each(|part| self.let_go(part));
                return Err(match e {
                    Refused::Kernel(e) => PinError::Kernel(e),
                    Refused::NotManaged | Refused::NoSpace => PinError::Damaged,
                    Refused::Full if wanted as u64 > self.pinnable_bytes() => full(self.pinnable_bytes()),
                    Refused::Full => PinError::NoRoom(wanted as u64),
                });
            }
        }
        Ok(rows.add(range))
    }

    /// Whether any page of a range is pinned.
    pub(super) fn any_pinned(&self, range: &Range<usize>) -> bool {
        self.pins.lock().any(range)
    }

    /// A guard goes.
    pub(super) fn unpin(&self, guard: u64) {
        if !self.is_here() {
            return;
        }
        let mut rows = self.pins.lock();
        if let Some(range) = rows.remove(guard) {
            rows.uncovered(range).iter().for_each(|part| self.let_go(part));
        }
    }

    fn let_go(&self, part: &Range<usize>) {
        // The pages are there: it cannot be refused.
        let _ = self.ask(|engine| engine.munlock(part.start, part.len()));
    }

    /// The budget becomes so many bytes, which are within its bounds.
    pub(super) fn set_memory(&self, bytes: u64) -> Result<(), MemoryError> {
        if !self.is_here() {
            return Err(MemoryError::Forked);
        }
        let _pins = self.pins.lock(); // nobody pins meanwhile
        let core = &self.engine.core;
        if bytes < core.ledger.budget_bytes() {
            let (pinned, free) = (self.pinned_bytes(), pinnable(core.ledger.frames_within(bytes)));
            if pinned > free {
                return Err(MemoryError::Pinned { pinned, free });
            }
            if !core.fits_into(bytes) {
                return Err(MemoryError::Full(bytes));
            }
        }
        self.ask(|engine| engine.set_budget(bytes));
        Ok(())
    }

    /// Bytes in pages that are pinned now.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.engine.core.census.mlocked.load(Ordering::Relaxed) * PAGE_BYTES as u64
    }

    fn pinnable_bytes(&self) -> u64 {
        pinnable(self.engine.core.room.frames.limit()).saturating_sub(self.pinned_bytes())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let hands = self.hands.take();
        if self.is_here() {
            whole(|| hands.into_iter().for_each(|hands| hands.stop(&self.engine)));
        } else {
            // In a child of a fork there are no such threads, and what the child has of the pool's addresses
            // must not come to mean anything.
            core::mem::forget((hands, self.faults.take(), self.kept.take()));
            core::mem::forget(Arc::clone(&self.engine));
        }
    }
}

/// Bytes that can be pinned of so many frames: half of them.
fn pinnable(frames: u32) -> u64 {
    u64::from(frames / 2) * PAGE_BYTES as u64
}

/// The whole pages that bytes lie in.
pub(super) fn pages(addr: usize, len: usize) -> Range<usize> {
    addr / PAGE_BYTES * PAGE_BYTES..(addr + len).next_multiple_of(PAGE_BYTES)
}
