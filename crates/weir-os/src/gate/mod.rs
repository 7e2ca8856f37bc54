//! The system-call gate of inline mode: system calls with managed pointers are trapped, their
//! buffers brought in, and the calls made again from a place that the filter lets through.

pub mod area;
pub mod filter;
pub mod pieces;
pub mod stubs;
pub mod table;

use crate::sys::{Errno, syscall};

/// Copies this process's memory, with EFAULT instead of a signal where it cannot be read.
pub fn read_own(addr: usize, out: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: out.len() };
    let (l, r) = (core::ptr::from_ref(&local) as usize, core::ptr::from_ref(&remote) as usize);
    // SAFETY: the kernel writes into the live slice and checks the source.
    match unsafe { syscall(libc::SYS_process_vm_readv, [crate::sys::getpid() as usize, l, 1, r, 1, 0]) } {
        Ok(n) if n == out.len() => Ok(()),
        Ok(_) | Err(Errno::EFAULT) => Err(Errno::EFAULT),
        Err(_) => read_bytewise(addr, out),
    }
}

/// Writes to this process's memory, with EFAULT where it cannot be written.
pub fn write_own(addr: usize, bytes: &[u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: bytes.len() };
    let (l, r) = (core::ptr::from_ref(&local) as usize, core::ptr::from_ref(&remote) as usize);
    // SAFETY: the kernel reads the live slice and checks the destination, which the program named.
    match unsafe { syscall(libc::SYS_process_vm_writev, [crate::sys::getpid() as usize, l, 1, r, 1, 0]) } {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) | Err(Errno::EFAULT) => Err(Errno::EFAULT),
        Err(_) => {
            // SAFETY: where a container forbids that call: the program named a place to write to.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
            Ok(())
        }
    }
}

/// The same where a container forbids that call: asks of each page whether it can be read, by a call
/// that reads eight bytes and then refuses, and reads it.
fn read_bytewise(addr: usize, out: &mut [u8]) -> Result<(), Errno> {
    const NO_SUCH_CHANGE: usize = 99;
    let end = addr.checked_add(out.len()).ok_or(Errno::EFAULT)?;
    let mut at = addr;
    while at < end {
        let page_end = (at / crate::mem::PAGE_BYTES + 1) * crate::mem::PAGE_BYTES;
        let ask = at.min(page_end - 8);
        // SAFETY: an invalid change of the mask: the set is read, nothing happens.
        match unsafe { syscall(libc::SYS_rt_sigprocmask, [NO_SUCH_CHANGE, ask, 0, 8, 0, 0]) } {
            Err(Errno::EINVAL) => {}
            _ => return Err(Errno::EFAULT),
        }
        let n = page_end.min(end) - at;
        // SAFETY: the kernel has just read from that page.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, out[at - addr..].as_mut_ptr(), n) };
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_read_and_what_is_not_mapped_is_an_error() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for read in [read_own, read_bytewise] {
            let mut out = vec![0u8; 9000];
            read(bytes.as_ptr() as usize + 5, &mut out).unwrap();
            assert_eq!(out, bytes[5..9005]);
            assert_eq!(read(4096, &mut out), Err(Errno::EFAULT));
        }
    }
}
