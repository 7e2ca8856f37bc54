//! System V shared memory placed over managed memory: it is the kernel's from then on, and the place is
//! Weir's again when it goes.

use crate::files;
use crate::heap::FutexLock;
use crate::map::{FAILED, errno_of, fail, fail_ptr, inside, raw, round};
use core::ffi::{c_int, c_void};
use lock_api::Mutex;
use weir::engine::control::Whose;
use weir_os::sys::Errno;
use weir_os::thread;

/// What lies inside the space: address and bytes, at most [`PLACED_MAX`].
static PLACED: Mutex<FutexLock, Vec<(usize, usize)>> = Mutex::from_raw(FutexLock::new(), Vec::new());
const PLACED_MAX: usize = 4096;

/// Calls `f` with what is placed; a handler, or a child, must not find it locked.
fn placed<R>(f: impl FnOnce(&mut Vec<(usize, usize)>) -> R) -> R {
    thread::with_signals_blocked(|| f(&mut PLACED.lock()))
}

/// Before a fork; the engine's gate is open still.
pub fn lock_for_fork() {
    core::mem::forget(PLACED.lock());
}

/// In both processes, by the thread that locked it.
pub fn unlock_after_fork() {
    // SAFETY: held since `lock_for_fork`.
    unsafe { PLACED.force_unlock() };
}

fn segment_bytes(id: c_int) -> Option<usize> {
    // SAFETY: plain data, valid when zero.
    let mut about: libc::shmid_ds = unsafe { core::mem::zeroed() };
    let at = &raw mut about as usize;
    (raw(libc::SYS_shmctl, [id as usize, libc::IPC_STAT as usize, at, 0, 0, 0]) >= 0)
        .then_some(about.shm_segsz)
}

/// # Safety
/// - as `shmat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    let attach = |at: usize, flags: c_int| {
        raw(libc::SYS_shmat, [id as usize, at, flags as usize, 0, 0, 0]) as *mut c_void
    };
    let native = || attach(addr as usize, flags);
    let rounded = addr as usize & !(if flags & libc::SHM_RND != 0 { 4095 } else { 0 });
    if flags & libc::SHM_REMAP == 0 || !rounded.is_multiple_of(4096) {
        return native();
    }
    let Some(len) = segment_bytes(id).map(round) else { return FAILED };
    let Some(e) = inside(rounded as *mut c_void, len) else {
        let at = native();
        if at != FAILED {
            files::replaced(at as usize, len);
        }
        return at;
    };
    // Elsewhere first: if the kernel refuses, the old mapping must survive.
    let elsewhere = attach(0, flags & !(libc::SHM_REMAP | libc::SHM_RND)) as usize;
    if elsewhere == FAILED as usize {
        return FAILED;
    }
    let known = placed(|placed| {
        placed.retain(|&(at, bytes)| e.whose(at, bytes) == Whose::Foreign);
        let room = placed.len() < PLACED_MAX;
        if room {
            placed.push((rounded, len));
        }
        room
    });
    let made = if known { e.make_foreign(rounded, len).map_err(errno_of) } else { Err(Errno::ENOMEM) };
    if let Err(e) = made {
        raw(libc::SYS_shmdt, [elsewhere, 0, 0, 0, 0, 0]);
        return fail_ptr(e);
    }
    let how = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    raw(libc::SYS_mremap, [elsewhere, len, len, how, rounded, 0]) as *mut c_void
}

/// # Safety
/// - as `shmdt(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    let native = || raw(libc::SYS_shmdt, [addr as usize, 0, 0, 0, 0, 0]) as c_int;
    let Some(e) = inside(addr.cast_mut(), 1) else { return native() };
    let found = placed(|placed| {
        let at = placed.iter().position(|(start, _)| *start == addr as usize)?;
        Some(placed.swap_remove(at))
    });
    match found.filter(|&(at, len)| e.whose(at, len) == Whose::Foreign) {
        Some((at, len)) => e.unmap(at, len).map_or_else(|r| fail(errno_of(r)), |()| 0),
        None => fail(Errno::EINVAL),
    }
}
