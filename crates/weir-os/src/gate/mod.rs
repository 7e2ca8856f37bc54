//! The system-call gate of inline mode: system calls with managed pointers are trapped, their
//! buffers brought in, and the calls made again from a place that the filter lets through.

pub mod area;
pub mod dispatch;
pub mod filter;
pub mod pieces;
pub mod stubs;
pub mod table;

use crate::signal::{self, bit};
use crate::sys::{self, Errno, syscall};
use core::sync::atomic::{AtomicU32, Ordering};

/// Whether somebody waits to hear of a trap: no, yes, it has come.
static LISTENING: AtomicU32 = AtomicU32::new(QUIET);
const QUIET: u32 = 0;
const WAITS: u32 = 1;
const HEARD: u32 = 2;

/// Whether a filter that this process has inherited traps calls with addresses of the range although they are
/// made at the present door: then it is the filter of a parent whose space reaches in there, with a door of
/// its own elsewhere. Nobody else makes calls with such addresses at the door meanwhile, and the handler of
/// SIGSYS asks [`is_trial`].
pub fn is_watched(base: usize, len: usize) -> bool {
    // A filter looks at upper halves of addresses.
    const UNIT: usize = 1 << 32;
    // SAFETY: no pointers.
    let mode = unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
    if mode == Ok(0) {
        return false;
    }
    LISTENING.store(WAITS, Ordering::Relaxed);
    let before = signal::change_mask(libc::SIG_UNBLOCK, Some(bit(libc::SIGSYS)));
    let trapped = (base..base + len).step_by(UNIT).any(|at| {
        // SAFETY: a read of nothing from no descriptor.
        let _ = unsafe { syscall(libc::SYS_read, [usize::MAX, at, 0, 0, 0, 0]) };
        LISTENING.load(Ordering::Relaxed) == HEARD
    });
    let _ = before.and_then(|mask| signal::change_mask(signal::SIG_SETMASK, Some(mask)));
    LISTENING.store(QUIET, Ordering::Relaxed);
    trapped
}

/// For the handler of SIGSYS: whether the call that goes on at `ip` was made by [`is_watched`].
pub fn is_trial(ip: usize) -> bool {
    const SYSCALL_BYTES: usize = 2;
    ip == sys::door() + SYSCALL_BYTES
        && LISTENING.compare_exchange(WAITS, HEARD, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Copies this process's memory, with EFAULT instead of a signal where it cannot be read.
pub fn read_own(addr: usize, out: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: out.len() };
    let (l, r) = (core::ptr::from_ref(&local) as usize, core::ptr::from_ref(&remote) as usize);
    // SAFETY: the kernel writes into the live slice and checks the source.
    match unsafe { syscall(libc::SYS_process_vm_readv, [sys::getpid() as usize, l, 1, r, 1, 0]) } {
        Ok(n) if n == out.len() => Ok(()),
        Ok(_) | Err(Errno::EFAULT) => Err(Errno::EFAULT),
        Err(_) => read_pagewise(addr, out),
    }
}

/// As [`read_own`], in a tenth of the time, of memory that is not managed or whose pages are pinned: each
/// page is asked about and then read, and a managed one could leave in between. `frame` is the address of a
/// live stack frame: the page around it, where such tables mostly lie, need not be asked about.
pub fn read_staying(addr: usize, out: &mut [u8], frame: Option<usize>) -> Result<(), Errno> {
    if frame.is_some_and(|frame| is_beside(frame, addr, out.len())) {
        // SAFETY: all of it lies in one page, and that page holds a live stack frame.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        return Ok(());
    }
    read_pagewise(addr, out)
}

/// Whether all of a range lies in the page of a live stack frame: it can be read.
#[inline]
pub fn is_beside(frame: usize, addr: usize, len: usize) -> bool {
    let page = |a: usize| a / crate::mem::PAGE_BYTES;
    let last = addr.wrapping_add(len.saturating_sub(1));
    last >= addr && page(addr) == page(frame) && page(last) == page(frame)
}

/// Writes to this process's memory, with EFAULT where it cannot be written.
pub fn write_own(addr: usize, bytes: &[u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: bytes.len() };
    let (l, r) = (core::ptr::from_ref(&local) as usize, core::ptr::from_ref(&remote) as usize);
    // SAFETY: the kernel reads the live slice and checks the destination, which the program named.
    match unsafe { syscall(libc::SYS_process_vm_writev, [sys::getpid() as usize, l, 1, r, 1, 0]) } {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) | Err(Errno::EFAULT) => Err(Errno::EFAULT),
        Err(_) => {
            // SAFETY: where a container forbids that call: the program named a place to write to.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
            Ok(())
        }
    }
}

/// Asks of each page whether it can be read, by a call that reads eight bytes and then refuses, and reads it.
/// Also for containers that forbid the other way.
fn read_pagewise(addr: usize, out: &mut [u8]) -> Result<(), Errno> {
    let end = addr.checked_add(out.len()).ok_or(Errno::EFAULT)?;
    let mut at = addr;
    while at < end {
        let last = at | (crate::mem::PAGE_BYTES - 1);
        if !can_be_read(at.min(last - 7)) {
            return Err(Errno::EFAULT);
        }
        let n = last.min(end - 1) - at + 1;
        // SAFETY: the kernel has just read from that page.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, out[at - addr..].as_mut_ptr(), n) };
        at += n;
    }
    Ok(())
}

/// Whether the eight bytes at `at` can be read, by a call that reads them and then refuses.
pub fn can_be_read(at: usize) -> bool {
    const NO_SUCH_CHANGE: usize = 99;
    // SAFETY: an invalid change of the mask: the set is read, nothing happens.
    let answer = unsafe { syscall(libc::SYS_rt_sigprocmask, [NO_SUCH_CHANGE, at, 0, 8, 0, 0]) };
    answer == Err(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_read_and_what_is_not_mapped_is_an_error() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for read in [read_own, read_pagewise] {
            let mut out = vec![0u8; 9000];
            read(bytes.as_ptr() as usize + 5, &mut out).unwrap();
            assert_eq!(out, bytes[5..9005]);
            assert_eq!(read(4096, &mut out), Err(Errno::EFAULT));
        }
    }

    #[test]
    fn tables_are_read_on_the_stack_elsewhere_and_not_where_nothing_is() {
        #[repr(align(4096))]
        struct Stack([u8; 2 * 4096]);
        let bytes = Stack(core::array::from_fn(|i| (i % 251) as u8));
        let base = bytes.0.as_ptr() as usize;
        let frame = Some(base + 50);
        for (at, where_) in [(4000, "in the page"), (4050, "across its end"), (5000, "in the next")] {
            let mut out = [0u8; 96];
            read_staying(base + at, &mut out, frame).unwrap();
            assert_eq!(out, bytes.0[at..at + 96], "{where_}");
        }
        let far: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let mut out = [0u8; 5000];
        for frame in [frame, None] {
            read_staying(far.as_ptr() as usize + 7, &mut out, frame).unwrap();
            assert_eq!(out, far[7..5007]);
            for bad in [0, 4096, usize::MAX - 100, usize::MAX / 4096 * 4096] {
                assert_eq!(read_staying(bad, &mut out[..100], frame), Err(Errno::EFAULT));
            }
        }
    }
}
