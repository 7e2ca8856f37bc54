//! What the kernel counts as this process's RAM.
//!
//! A descriptor of `/proc/self/statm` is kept open: a file opened now and then would take, for a moment, the
//! lowest number, which the program may expect for a file of its own.

use crate::mem::PAGE_BYTES;
use crate::sys::{self, Errno, syscall};
use crate::{fds, file};
use core::sync::atomic::{AtomicI32, Ordering};

/// The process's own `/proc/self/statm`. Read by a few microseconds' system call, from any thread.
#[derive(Debug)]
pub struct Statm(AtomicI32);

impl Statm {
    /// Opens it, under a high number. Errors: those of `open`, where `/proc` is not mounted.
    pub fn open() -> Result<Statm, Errno> {
        Ok(Statm(AtomicI32::new(fds::keep(open()?))))
    }

    /// In the child of a fork, before it has a second thread: until now it told of the parent.
    pub fn reopen_in_child(&self) -> Result<(), Errno> {
        fds::close(self.0.load(Ordering::Relaxed));
        self.0.store(fds::keep(open()?), Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of anonymous memory in RAM (`RssAnon`): pages that the kernel cannot drop, of all mappings.
    /// Those shared with relatives since a fork count. `None` where it cannot be read.
    ///
    /// The kernel sums its counters exactly from Linux 6.16 on. Before, each processor (before 6.2, each
    /// thread) may be ahead of the sum by 64 pages or so.
    pub fn anon_bytes(&self) -> Option<u64> {
        read_anon(self.0.load(Ordering::Relaxed))
    }
}

/// As [`Statm::anon_bytes`], once: for a process of which nobody knows yet whether it will be asked again.
pub fn anon_bytes_once() -> Option<u64> {
    let fd = open().ok()?;
    let anon = read_anon(fd);
    sys::close(fd);
    anon
}

/// Shared memory of the process in RAM (`RssShmem`), bytes: relatives may have it as well. 0 where the kernel
/// does not tell.
pub fn shared_bytes() -> u64 {
    let mut room = [0u8; 4096];
    let text = file::read_start(c"/proc/self/status", &mut room).unwrap_or_default();
    shared_of(text).unwrap_or(0)
}

fn shared_of(text: &[u8]) -> Option<u64> {
    let line = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"RssShmem:"))?;
    let digits = line.trim_ascii().strip_suffix(b" kB")?.trim_ascii();
    let kib = digits.iter().try_fold(0u64, |n, digit| match digit {
        b'0'..=b'9' => n.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })?;
    kib.checked_mul(1024)
}

fn read_anon(fd: i32) -> Option<u64> {
    let mut text = [0u8; 128];
    // SAFETY: the kernel writes into the live buffer.
    let n =
        unsafe { syscall(libc::SYS_pread64, [fd as usize, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]) };
    anon_of(&text[..n.ok()?])
}

/// Resident less shared, in bytes, of "size resident shared text lib data dt" in pages.
fn anon_of(text: &[u8]) -> Option<u64> {
    let mut numbers = text.split(|b| *b == b' ' || *b == b'\n').filter(|word| !word.is_empty());
    let mut next = || {
        let digits = numbers.next()?;
        digits.iter().try_fold(0u64, |n, digit| match digit {
            b'0'..=b'9' => n.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
            _ => None,
        })
    };
    let (_, resident, shared) = (next()?, next()?, next()?);
    // Seven numbers: else it is somebody else's file by now.
    (0..4).try_for_each(|_| next().map(|_| ()))?;
    resident.saturating_sub(shared).checked_mul(PAGE_BYTES as u64)
}

fn open() -> Result<i32, Errno> {
    let path = c"/proc/self/statm";
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated path.
    let opened = unsafe {
        syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0])
    };
    opened.map(|fd| fd as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Mapping;

    #[test]
    fn anonymous_memory_is_what_is_resident_and_not_shared() {
        assert_eq!(anon_of(b"1000 300 100 10 0 50 0\n"), Some(200 * PAGE_BYTES as u64));
        assert_eq!(anon_of(b"1000 300 400 10 0 50 0\n"), Some(0));
    }

    #[test]
    fn shared_memory_is_found_among_the_lines_of_the_status() {
        assert_eq!(shared_of(b"RssFile:\t  12 kB\nRssShmem:\t    340 kB\nVmData: 1 kB\n"), Some(340 << 10));
        assert_eq!(shared_of(b"RssShmem:\t x kB\n"), None);
        assert_eq!(shared_of(b"VmData: 1 kB\n"), None);
    }

    #[test]
    fn what_is_no_statm_says_nothing() {
        for text in [&b""[..], b"1000 300", b"root:x:0:0 1 2 3 4 5 6\n", b"99999999999999999999 1 1 1 1 1 1"]
        {
            assert_eq!(anon_of(text), None);
        }
    }

    #[test]
    fn memory_that_is_written_to_is_seen_and_memory_that_is_given_back_is_not() {
        const BYTES: usize = 64 << 20;
        let statm = Statm::open().unwrap();
        let before = statm.anon_bytes().unwrap();
        let mapping = Mapping::anon(BYTES).unwrap();
        // Other tests of this process take and give memory meanwhile.
        let slack = 16 << 20;
        // SAFETY: a mapping of our own.
        unsafe { crate::mem::populate_write(mapping.base(), BYTES).unwrap() };
        let with = statm.anon_bytes().unwrap();
        assert!(with + slack > before + BYTES as u64, "{before} {with}");
        drop(mapping);
        assert!(statm.anon_bytes().unwrap() < with - BYTES as u64 + slack);
    }

    #[test]
    fn a_child_reads_of_itself() {
        let statm = Statm::open().unwrap();
        // SAFETY: fork; the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fine = statm.reopen_in_child().is_ok() && {
                let before = statm.anon_bytes();
                let len = 64 << 20;
                let mapped = Mapping::anon(len);
                // SAFETY: a mapping of our own.
                let written = mapped
                    .as_ref()
                    .is_ok_and(|m| unsafe { crate::mem::populate_write(m.base(), len).is_ok() });
                written && statm.anon_bytes().zip(before).is_some_and(|(now, b)| now >= b + len as u64 / 2)
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        let mut status = 0;
        // SAFETY: a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
