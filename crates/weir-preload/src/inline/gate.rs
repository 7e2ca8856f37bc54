//! The way of a call with managed buffers through the system-call gate, without a trap.

use super::ours::taken;
use super::stacks;
use crate::libc_next::set_errno;
use crate::state::{self, Weir};
use core::ffi::{c_int, c_long};
use core::sync::atomic::Ordering;
use weir::engine::gate::{Passage, Trapped};
use weir::stats;
use weir_os::gate::area::Area;
use weir_os::gate::table::{self, Caller, visit};
use weir_os::gate::{is_beside, read_staying};
use weir_os::sys::{Errno, syscall_raw};
use weir_os::thread;

/// The address of a live stack frame: that of the function that says it.
macro_rules! here {
    () => {{
        let here = 0u8;
        &raw const here as usize
    }};
}
pub(crate) use here;

/// Looks whether a call touches managed memory.
struct Look<'a> {
    engine: &'a Weir,
    frame: usize,
    managed: bool,
}

impl Caller for Look<'_> {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        self.managed |= self.engine.touches(addr, out.len());
        if self.managed {
            return Err(Errno::EAGAIN); // known by now, and the table may be away
        }
        read_staying(addr, out, Some(self.frame))
    }

    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        self.managed |= self.engine.touches(addr, len);
        self.engine.file_used(addr, len);
        Ok(())
    }
}

/// Whether a thread that waits in a call can be cancelled there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    Here,
    Elsewhere,
}

/// Where a call names its buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// The filter sees them: what is not done here is done when the call is trapped.
    InArguments,
    InTables,
}

unsafe extern "C" {
    fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int;
}

/// Makes a call as libc makes its own: in a cancellation point a cancelled thread ends at once, also when it
/// was cancelled before. (What it pinned or held is let go of when it is seen to have ended.)
#[inline]
fn cancellable(point: Cancellation, call: impl FnOnce() -> isize) -> isize {
    const DEFERRED: c_int = 0;
    const ASYNCHRONOUS: c_int = 1;
    if point == Cancellation::Elsewhere {
        return call();
    }
    let mut before = 0;
    let jumped = &Area::current().cancel_type;
    let outer = jumped.load(Ordering::Relaxed);
    // In two steps: a handler that jumps out between them must find what to go back to.
    // SAFETY: libc's function; no frame between here and the program's holds anything that must be let go of.
    unsafe { pthread_setcanceltype(DEFERRED, &raw mut before) };
    if outer == 0 {
        Area::current().cancel_frame.store(here!() as u64, Ordering::Relaxed);
        jumped.store(before as u64 + 1, Ordering::Relaxed);
    }
    let mut deferred = 0;
    // SAFETY: as above.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut deferred) };
    let result = call();
    jumped.store(outer, Ordering::Relaxed);
    // SAFETY: as above; the type that was set before.
    unsafe { pthread_setcanceltype(before, &raw mut before) };
    result
}

/// The calling thread jumps to a stack pointer: if it leaves the call that it is in, its cancellation type is
/// again what it was before.
pub fn left_by_jump(target: usize) {
    let area = Area::current();
    if (target as u64) < area.cancel_frame.load(Ordering::Relaxed) {
        return; // it stays in a handler that interrupted the call
    }
    let jumped = &area.cancel_type;
    let mut before = 0;
    match jumped.swap(0, Ordering::Relaxed) {
        0 => {}
        // SAFETY: libc's function; the type that was set before.
        t => _ = unsafe { pthread_setcanceltype(t as c_int - 1, &raw mut before) },
    }
}

/// Makes a call that names managed memory, in its arguments or in tables; `None` when it does not. `frame` is
/// the address of a live stack frame near the program's.
#[inline]
pub fn gate(
    nr: c_long,
    args: &[usize; 6],
    frame: usize,
    buffers: Buffers,
    point: Cancellation,
) -> Option<isize> {
    let engine = state::engine().filter(|_| taken())?;
    let named = args.iter().any(|a| engine.contains(*a));
    if buffers == Buffers::InArguments && engine.files.any() {
        engine.file_used(args[1], args[2]);
    }
    if !named && (buffers == Buffers::InArguments || !in_tables(engine, nr, args, frame)) {
        return None;
    }
    if engine.contains(frame) {
        // This stack could leave while its thread is at a desk, with the signal blocked that would bring it
        // back.
        if buffers == Buffers::InArguments {
            return None;
        }
        stacks::be_noticed(frame);
    }
    let held = if buffers == Buffers::InArguments { hold(engine, nr, args, frame, point) } else { None };
    held.or_else(|| pass(engine, nr, args, frame, buffers, point))
}

/// Makes a call with one small buffer, whose pages are there, at the engine's door: without a lock, a change
/// of the mask, or a stub.
#[inline]
fn hold(engine: &Weir, nr: c_long, args: &[usize; 6], frame: usize, point: Cancellation) -> Option<isize> {
    if engine.contains(args[4]) || engine.contains(args[5]) {
        return None; // a socket's address
    }
    let hold = engine.hold(args[1], args[2], frame)?;
    let result = cancellable(point, || {
        // SAFETY: the program's own call, its buffer in place.
        let result = unsafe { syscall_raw(nr, *args) };
        engine.let_go(hold);
        result
    });
    Some(with_errno(result))
}

/// Whether tables of a call name managed memory.
#[inline]
fn in_tables(engine: &Weir, nr: c_long, args: &[usize; 6], frame: usize) -> bool {
    if let Some(managed) = few_parts(engine, nr, args, frame) {
        return managed;
    }
    if table::table_args(nr as usize) == 0 {
        return false;
    }
    let mut look = Look { engine, frame, managed: false };
    let _ = visit(nr as usize, args, &mut look);
    look.managed
}

/// The same for the calls that name a few parts in a table beside the caller's frame, without the walk over
/// the table of calls: these are made often, each for little.
#[inline]
fn few_parts(engine: &Weir, nr: c_long, args: &[usize; 6], frame: usize) -> Option<bool> {
    const FEW: usize = 8;
    let vectored = [libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv, libc::SYS_pwritev];
    let (table, parts) = (args[1], args[2]);
    if !vectored.contains(&nr) || parts > FEW || engine.contains(table) {
        return None;
    }
    let aligned = table.is_multiple_of(align_of::<libc::iovec>());
    if !aligned || !is_beside(frame, table, parts * size_of::<libc::iovec>()) {
        return None;
    }
    // SAFETY: all of it lies in the page of a live stack frame; the program has written it for this call.
    let parts = unsafe { core::slice::from_raw_parts(table as *const libc::iovec, parts) };
    if engine.files.any() {
        parts.iter().for_each(|part| engine.file_used(part.iov_base as usize, part.iov_len));
    }
    Some(parts.iter().any(|part| part.iov_len > 0 && engine.touches(part.iov_base as usize, part.iov_len)))
}

/// Makes a call through the gate.
fn pass(
    engine: &Weir,
    nr: c_long,
    args: &[usize; 6],
    frame: usize,
    buffers: Buffers,
    point: Cancellation,
) -> Option<isize> {
    let stubs = engine.stubs()?;
    let args = *args;
    let signals = thread::block_signals();
    stats::add(&engine.core.stats.calls_wrapped, 1);
    let call = Trapped { nr: nr as usize, args, back: 0, stack: frame, frame: Some(frame) };
    let passage = engine.pass(call);
    thread::restore_signals(signals);
    let result = match passage {
        // SAFETY: the program's own call, its buffers in place.
        Passage::Stub(at) => cancellable(point, || unsafe { stubs.call(at, nr as usize, args) }),
        // libc makes it as a cancellation point, and it is trapped.
        Passage::Pieces if buffers == Buffers::InArguments => return None,
        Passage::Pieces => {
            let mask = thread::block_signals();
            let r = engine.make_in_pieces(call, mask);
            thread::restore_signals(mask);
            r
        }
    };
    Some(with_errno(result))
}

/// The kernel's result as libc returns it.
pub fn with_errno(result: isize) -> isize {
    match result {
        -4095..0 => {
            set_errno(-result as i32);
            -1
        }
        r => r,
    }
}

/// As [`gate`], for calls that are no cancellation points.
pub fn gated(nr: c_long, args: [usize; 6]) -> Option<isize> {
    gate(nr, &args, here!(), Buffers::InTables, Cancellation::Elsewhere)
}
