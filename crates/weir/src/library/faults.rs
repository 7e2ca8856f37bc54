//! Faults resolved in the thread that makes them: the SIGBUS of an access to a page that is out.
//!
//! One handler serves all pools of the process. A SIGBUS that is none of theirs goes to whoever had the
//! signal before.

use super::errors::BuildError;
use crate::engine::Engine;
use crate::engine::inline::Served;
use crate::engine::spaces::POOLS_MAX;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};
use weir_os::pager::KernelPager;
use weir_os::signal::{self, Context, Info, Previous};
use weir_os::sys::Errno;

type Weir = Engine<KernelPager>;

/// Where a pool's addresses are. `base` is 0 while the row is free.
#[derive(Debug)]
struct Row {
    base: AtomicUsize,
    len: AtomicUsize,
    engine: AtomicPtr<Weir>,
}

static ROWS: [Row; POOLS_MAX] = [const {
    Row { base: AtomicUsize::new(0), len: AtomicUsize::new(0), engine: AtomicPtr::new(core::ptr::null_mut()) }
}; POOLS_MAX];
/// Held while rows change.
static CHANGING: Mutex<()> = Mutex::new(());
/// Who had the signal before.
static BEFORE: OnceLock<Previous> = OnceLock::new();

/// The faults of an engine, as long as this lives.
#[derive(Debug)]
pub(super) struct Faults(usize);

impl Faults {
    /// From now on faults in the engine's space are resolved. Whoever has this keeps the engine.
    pub(super) fn serve(engine: &Weir) -> Result<Faults, BuildError> {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = ROWS.iter().position(|row| row.base.load(Ordering::Relaxed) == 0);
        let number = free.ok_or(BuildError::Signals(Errno::EAGAIN))?;
        if BEFORE.get().is_none() {
            let _ = BEFORE.set(take_sigbus().map_err(BuildError::Signals)?);
        }
        let (row, (base, len)) = (&ROWS[number], engine.space());
        row.engine.store(core::ptr::from_ref(engine).cast_mut(), Ordering::Relaxed);
        row.len.store(len, Ordering::Relaxed);
        row.base.store(base, Ordering::Release);
        Ok(Faults(number))
    }
}

#[expect(unsafe_code, reason = "installs a signal handler")]
fn take_sigbus() -> Result<Previous, Errno> {
    // SAFETY: `on_sigbus` takes no lock of the program's, allocates nothing, and does its work on stacks of
    // the engine's.
    unsafe { signal::take_over(signal::SIGBUS, on_sigbus) }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        ROWS[self.0].base.store(0, Ordering::Release);
    }
}

/// The engine in whose space an address lies.
#[expect(unsafe_code, reason = "an engine by its address")]
fn owner<'a>(addr: usize) -> Option<&'a Weir> {
    let row = ROWS.iter().find(|row| {
        let base = row.base.load(Ordering::Acquire);
        base != 0 && addr.wrapping_sub(base) < row.len.load(Ordering::Relaxed)
    })?;
    // SAFETY: the thread accesses memory of this engine's pool, so the pool lives, and its row is not
    // changed, until the access is over.
    unsafe { row.engine.load(Ordering::Relaxed).as_ref() }
}

/// Resolves a fault. False: it is none of a pool's.
fn serve(addr: usize) -> bool {
    let resolve = |engine: &Weir| engine.fault_in_thread(addr, &AtomicU64::new(0), None);
    owner(addr).filter(|engine| engine.is_own()).is_some_and(|engine| resolve(engine) != Served::NotOurs)
}

/// Every signal is blocked meanwhile. Calls nothing of libc's, and allocates nothing.
#[expect(unsafe_code, reason = "a signal handler, with what the kernel passes to it")]
extern "C" fn on_sigbus(number: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel's own.
    let is_served = unsafe { signal::missing_page(info) }.is_some_and(serve);
    if !is_served && let Some(before) = BEFORE.get() {
        // SAFETY: as above.
        unsafe { before.deliver(number, info, context) };
    }
}
