//! The SIGBUS handler.

use crate::state;
use weir::engine::inline::Verdict;

/// `si_code` of an access to a page that is not there.
const BUS_ADRERR: i32 = 2;

/// A fault on managed memory is resolved; any other SIGBUS is the program's.
pub extern "C" fn on_sigbus(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes a live siginfo; `si_addr` is set for faults.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == BUS_ADRERR
        && let Some(e) = state::owner(addr)
        && e.fault_in_thread(addr) == Verdict::Retry
    {
        return;
    }
    weir_os::sys::kill_self();
}
