//! Inline mode: SIGBUS and SIGSYS are Weir's. A SIGBUS on managed memory is a page fault, resolved
//! where it happens; a SIGSYS is a system call with a managed pointer, made again once its buffers
//! are there. Everything else goes to the program's own handlers, which see what they asked for.

mod affinity;
mod calls;
pub mod context;
mod deliver;
mod exec;
mod fault;
mod hooks;
mod jumps;
mod masks;
pub mod past;
mod pending;
mod relay;
pub mod rings;
mod stacks;
mod tables;
mod threads;
mod waits;

use core::sync::atomic::{AtomicBool, Ordering};
use weir_os::gate::area::{self, Area};
use weir_os::gate::dispatch;
use weir_os::signal::{self, Mask, bit};
use weir_os::sys::Errno;

pub use tables::{gated, prepare};
pub use weir_os::gate::area::is_owner;

/// The signals that Weir keeps.
pub const OURS: Mask = bit(libc::SIGBUS) | bit(libc::SIGSYS);
/// Every signal, for handlers that nothing may interrupt.
const ALL: Mask = !0;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether SIGBUS and SIGSYS are Weir's in this process.
#[inline]
pub fn taken() -> bool {
    TAKEN.load(Ordering::Acquire)
}

/// Takes SIGBUS and SIGSYS over: by the constructor, before any other code can block them.
pub fn take_signals() -> Result<(), Errno> {
    area::own();
    let handlers: [(i32, signal::Handler); 2] =
        [(libc::SIGBUS, fault::on_sigbus), (libc::SIGSYS, calls::on_sigsys)];
    for (number, handler) in handlers {
        // SAFETY: the handlers are fit to interrupt anything: they allocate nothing of the program's,
        // take none of its locks and leave errno alone.
        let before = unsafe { signal::install(number, handler, libc::SA_ONSTACK, ALL)? };
        deliver::set_action(number, before);
    }
    TAKEN.store(true, Ordering::Release);
    // What the parent had blocked is blocked for the program to see, and not really.
    let blocked = signal::change_mask(libc::SIG_UNBLOCK, Some(OURS))?;
    masks::begin(blocked & OURS);
    Ok(())
}

/// In the child of a fork, also of one from before the engine started.
pub fn forked() {
    area::own();
    Area::current().forget_id();
    hooks::forked();
    pending::forked();
    stacks::forked();
    if let Err(e) = dispatch::switch_on() {
        weir::engine::threads::fatal(format_args!("a forked child's own system calls cannot be seen: {e}"));
    }
}

/// The background thread looks after the handlers: a program that sets them by a system call of its
/// own, past libc, would lose its memory at the next fault.
pub fn keep_signals() {
    let handlers: [(i32, signal::Handler); 2] =
        [(libc::SIGBUS, fault::on_sigbus), (libc::SIGSYS, calls::on_sigsys)];
    for (number, handler) in handlers {
        // SAFETY: asks only.
        let now = unsafe { signal::swap(number, None) };
        if now.is_ok_and(|a| a.handler != handler as usize) {
            // SAFETY: as in `take_signals`.
            if let Ok(theirs) = unsafe { signal::install(number, handler, libc::SA_ONSTACK, ALL) } {
                deliver::set_action(number, theirs);
            }
        }
    }
}
