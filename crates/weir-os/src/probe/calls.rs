//! System calls made as such, for measuring what one costs: where libc answers without the kernel, these do
//! not.

use crate::sys::{Errno, syscall};
use crate::thread::clock;

/// `clock_gettime(CLOCK_MONOTONIC)` by a system call, in nanoseconds; 0 if the kernel refuses. libc would
/// read a page that the kernel shares instead.
pub fn clock_gettime() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// `read` by a system call of our own, past whatever wraps libc's; the kernel's result.
pub fn read(fd: i32, into: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes into the live slice.
    unsafe { syscall(libc::SYS_read, [fd as usize, into.as_mut_ptr() as usize, into.len(), 0, 0, 0]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_read_past_libc_is_what_is_there() {
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let mut bytes = [7; 3];
        assert_eq!(read(zero.as_raw_fd(), &mut bytes[..2]), Ok(2));
        assert_eq!(bytes, [0, 0, 7]);
        assert_eq!(read(-1, &mut bytes), Err(Errno::EBADF));
    }

    #[test]
    fn the_called_clock_is_the_shared_one() {
        let before = crate::thread::now_ns();
        let called = clock_gettime();
        assert!((before..=crate::thread::now_ns()).contains(&called));
    }
}
