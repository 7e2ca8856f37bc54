//! Engine threads and futexes: threads with every signal blocked, which never run the program's
//! handlers, and waiting without libc.

use crate::sys::{Errno, syscall};
use core::sync::atomic::AtomicU32;

/// Sleeps while `word` holds `expected`, until woken or `timeout_ns` passed.
/// `Err(ETIMEDOUT)` on timeout; spurious wake-ups are Ok.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    let ts = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let ts_ptr = ts.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize);
    let op = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel reads the live word and timespec.
    let r =
        unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, op, expected as usize, ts_ptr, 0, 0]) };
    match r {
        Err(Errno::ETIMEDOUT) => Err(Errno::ETIMEDOUT),
        _ => Ok(()), // woken, value changed, or a signal: the caller looks again
    }
}

/// Wakes up to `n` waiters of `word`.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the address serves as a key only.
    let _ = unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, op, n as usize, 0, 0, 0]) };
}

/// Monotonic time in nanoseconds.
#[inline]
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the live timespec; the vDSO call is not something programs interpose.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Gives up the processor.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// Starts a detached thread that runs `entry(arg)` for the rest of the process's life, with all
/// signals blocked (except those that libc itself needs: 32 and 33 carry `setuid` and thread
/// cancellation to every thread).
///
/// # Safety
/// - `arg` must stay valid for `entry` for ever.
/// - libc allocates the thread's control block through the program's `malloc`: hooks must
///   answer that call without the engine.
pub unsafe fn spawn(
    entry: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    arg: *mut libc::c_void,
    stack_bytes: usize,
) -> Result<(), Errno> {
    let old = block_signals();
    // SAFETY: attr is initialised before use and destroyed after; entry and arg are vouched for.
    let rc = unsafe {
        let mut attr: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&mut attr);
        libc::pthread_attr_setdetachstate(&mut attr, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&mut attr, stack_bytes);
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let rc = libc::pthread_create(&mut thread, &attr, entry, arg);
        libc::pthread_attr_destroy(&mut attr);
        rc
    };
    restore_signals(old);
    if rc == 0 { Ok(()) } else { Err(Errno(rc)) }
}

/// Blocks every signal but libc's own two; returns the former mask.
pub fn block_signals() -> u64 {
    let all_but_libc: u64 = !((1 << 31) | (1 << 32));
    let mut old = 0u64;
    // SAFETY: reads and writes live words of the size passed.
    let _ = unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                core::ptr::from_ref(&all_but_libc) as usize,
                core::ptr::from_mut(&mut old) as usize,
                8,
                0,
                0,
            ],
        )
    };
    old
}

/// Restores a mask that [`block_signals`] returned.
pub fn restore_signals(mask: u64) {
    // SAFETY: reads the live word of the size passed.
    let _ = unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as usize, core::ptr::from_ref(&mask) as usize, 0, 8, 0, 0],
        )
    };
}

/// Names the calling thread (15 bytes at most), as `top -H` shows it.
pub fn set_name(name: &core::ffi::CStr) {
    // SAFETY: the kernel reads the NUL-terminated name.
    let _ =
        unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}
const _: () = assert!(size_of::<SchedAttr>() == 48);

fn sched_setattr(attr: &mut SchedAttr) -> Result<(), Errno> {
    attr.size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel reads the live struct of the size it names.
    unsafe {
        syscall(libc::SYS_sched_setattr, [0, core::ptr::from_ref(attr) as usize, 0, 0, 0, 0]).map(|_| ())
    }
}

/// Asks the scheduler for short slices (kernel 6.12; ignored before): a thread that serves others
/// in bursts of microseconds is run soon after it is woken.
pub fn prefer_latency() {
    let _ = sched_setattr(&mut SchedAttr { runtime: 100_000, ..SchedAttr::default() });
}

/// Never interrupts another thread when woken: for work that only has to be done in time on
/// average. (A nice value would starve it while the program runs, and faults would do its work.)
pub fn prefer_others() {
    let _ = sched_setattr(&mut SchedAttr { policy: libc::SCHED_BATCH as u32, ..SchedAttr::default() });
}

/// Identifies the calling thread within the process, without a system call: its thread pointer.
#[inline]
pub fn id() -> usize {
    let id: usize;
    // SAFETY: reads a register (x86-64: the word that the thread pointer points to is itself).
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) id, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) id, options(nostack, preserves_flags, nomem));
    }
    id
}

/// Kernel id of the calling thread.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]).unwrap_or(0) as u32 }
}
