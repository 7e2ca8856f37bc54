//! Addresses that the kernel keeps, and reads or writes later by itself: at the end of a thread, or at its
//! every system call. Nobody can bring a page in for it then (also a handler thread cannot, when it is an
//! ending thread that asks), so such pages are locked in their frames when the kernel learns of them, until
//! the program gives them up.

use crate::libc_next::Next;
use crate::state;
use core::ffi::c_int;
use weir_os::mem::PAGE_BYTES;
use weir_os::sys::Errno;

/// Locks the pages of a range if they are managed. ENOMEM when no more can be locked.
pub fn keep(addr: usize, len: usize) -> Result<(), Errno> {
    let Some(e) = state::engine().filter(|e| len > 0 && e.touches(addr, len)) else { return Ok(()) };
    let start = addr & !(PAGE_BYTES - 1);
    let end = addr.saturating_add(len).next_multiple_of(PAGE_BYTES);
    e.mlock(start, end - start).map_err(|_| Errno::ENOMEM)
}

/// Whether `prctl` is asked to have system calls dispatched to the program.
#[cfg(target_arch = "x86_64")]
fn dispatch(op: usize, mode: usize) -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    op as i32 == PR_SET_SYSCALL_USER_DISPATCH && mode != 0
}

/// To be called before `clone`: the word that is cleared when the new thread ends may lie in managed memory.
pub fn before_clone(flags: c_int, child_id: usize) -> Result<(), Errno> {
    const SHARED: c_int = libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID;
    if flags & SHARED == SHARED { keep(child_id, size_of::<libc::pid_t>()) } else { Ok(()) }
}

/// Whether faults are resolved in the threads that make them.
#[cfg(target_arch = "x86_64")]
fn gated() -> bool {
    state::engine().is_some_and(|e| e.stubs().is_some())
}

/// To be called before a system call: locks what the kernel will keep an address of.
#[cfg(target_arch = "x86_64")]
pub fn before(nr: libc::c_long, [a, b, _, _, e]: [usize; 5]) -> Result<(), Errno> {
    const ROBUST_LIST_HEAD_BYTES: usize = 24;
    match nr {
        // Calls would be taken from Weir's handlers as well, while SIGSYS is blocked: the end of the process
        // at the next fault. As on kernels before 5.11.
        libc::SYS_prctl if dispatch(a, b) && gated() => Err(Errno::EINVAL),
        // The byte that says whether calls pass. Whoever pages it out makes calls of its own meanwhile.
        libc::SYS_prctl if dispatch(a, b) => keep(e, 1),
        libc::SYS_set_tid_address => keep(a, size_of::<libc::pid_t>()),
        libc::SYS_set_robust_list => keep(a, ROBUST_LIST_HEAD_BYTES),
        libc::SYS_rseq => keep(a, b),
        _ => Ok(()),
    }
}

type Init = unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;

unsafe extern "C" {
    fn pthread_mutexattr_getrobust(attr: *const libc::pthread_mutexattr_t, robust: *mut c_int) -> c_int;
}

/// Robust mutexes are made here only (there is no static initializer for them). While one is held, it stands
/// in a list that the kernel walks when its owner ends.
///
/// # Safety
/// - as `pthread_mutex_init(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attr: *const libc::pthread_mutexattr_t,
) -> c_int {
    const ROBUST: c_int = 1;
    let mut robust = 0;
    // SAFETY: a valid attribute object, says the caller; a live cell.
    let asked = !attr.is_null() && unsafe { pthread_mutexattr_getrobust(attr, &raw mut robust) } == 0;
    if asked
        && robust == ROBUST
        && let Err(e) = keep(mutex as usize, size_of::<libc::pthread_mutex_t>())
    {
        return e.0;
    }
    // SAFETY: libc's function of that name and type.
    MUTEX_INIT.get().map_or(libc::ENOSYS, |a| unsafe { core::mem::transmute::<usize, Init>(a)(mutex, attr) })
}

static MUTEX_INIT: Next = Next::new(c"pthread_mutex_init");

/// By the constructor: looks up what is needed where the linker's lock may not be waited for.
pub fn prepare() {
    let _ = MUTEX_INIT.get();
}
