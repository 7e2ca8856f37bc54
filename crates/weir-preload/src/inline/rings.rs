//! Rings of io_uring: their requests use memory behind the gate's back, after their calls have returned.
//! Where pages are brought in by the faulting thread there can be none; once the engine runs the filter says
//! so, and before that this does.

use super::ours::{keeps_segv, taken};
use crate::state;
use core::sync::atomic::{AtomicBool, Ordering};
use weir::config::Faults;
use weir_os::pager::Intake;
use weir_os::{probe, sys};

/// The program has a ring, or is about to: the engine is to serve the kernel's faults too.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether the program may make a ring. If the engine has not started and a thread may serve faults, it will:
/// then the ring works.
pub fn may_be_made() -> bool {
    if !taken() {
        return true;
    }
    if state::is_idle() && state::settings().is_some_and(|s| s.faults == Faults::Auto) && thread_may_serve() {
        SEEN.store(true, Ordering::SeqCst);
    }
    state::wait_until_started();
    match state::engine() {
        Some(e) => e.core.pager.intake() == Intake::Messages,
        // One that begins to start now has seen the word, or will.
        None => SEEN.load(Ordering::SeqCst) || state::settings().is_none_or(|s| s.faults == Faults::Thread),
    }
}

/// When the engine starts: whether a thread is to serve faults because of a ring. A ring made past libc is
/// found here.
pub fn ask_for_a_thread() -> bool {
    SEEN.load(Ordering::SeqCst) || sys::has_io_uring() && thread_may_serve()
}

fn thread_may_serve() -> bool {
    !keeps_segv() && probe::can_open_userfaultfd().is_ok()
}
