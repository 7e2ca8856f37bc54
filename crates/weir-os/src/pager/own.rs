//! `/proc/self/mem`: reads and writes this process's memory whatever its protection.

use crate::fds;
use crate::mem::OwnMark;
use crate::sys::{self, Errno, syscall};
use core::sync::atomic::{AtomicI32, Ordering};

/// The descriptor, which names the memory of the process that opened it.
#[derive(Debug)]
pub(super) struct OwnMemory {
    fd: AtomicI32,
    /// Not set in a copy of the process: the descriptor is its parent's memory there.
    mark: OwnMark,
}

impl OwnMemory {
    pub(super) fn open() -> Result<OwnMemory, Errno> {
        Ok(OwnMemory { fd: AtomicI32::new(fds::keep(open()?)), mark: OwnMark::new() })
    }

    /// In the child of a fork: names the child's memory from now on.
    pub(super) fn reopen(&self) -> Result<(), Errno> {
        let fresh = fds::keep(open()?);
        fds::close(self.fd.swap(fresh, Ordering::AcqRel));
        self.mark.set();
        Ok(())
    }

    /// Copies from `src` to the possibly protected `dst`. Bytes done.
    pub(super) fn write(&self, dst: usize, src: usize, len: usize) -> Result<usize, Errno> {
        self.with(|fd| {
            // SAFETY: the pager owns both; the kernel checks them.
            unsafe { syscall(libc::SYS_pwrite64, [fd as usize, src, len, dst, 0, 0]) }
        })
    }

    /// Copies from the possibly protected `src` to `dst`. Bytes done.
    pub(super) fn read(&self, dst: usize, src: usize, len: usize) -> Result<usize, Errno> {
        self.with(|fd| {
            // SAFETY: as above.
            unsafe { syscall(libc::SYS_pread64, [fd as usize, dst, len, src, 0, 0]) }
        })
    }

    /// With the descriptor that was kept; with one of the moment, where the program has closed that, or in a
    /// copy of the process that has none yet.
    fn with<R>(&self, f: impl FnOnce(i32) -> Result<R, Errno>) -> Result<R, Errno> {
        let fd = self.fd.load(Ordering::Acquire);
        if self.mark.is_set() && fds::is_intact(fd) {
            return f(fd);
        }
        let fd = open()?;
        let r = f(fd);
        sys::close(fd);
        r
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        fds::close(self.fd.load(Ordering::Acquire));
    }
}

/// Opens it. A process that is not to be dumped, as key stores are and who has changed his user, does not own
/// the file: then it is as others for a moment.
fn open() -> Result<i32, Errno> {
    match open_file() {
        Err(Errno::EACCES) => sys::while_dumpable(open_file).unwrap_or(Err(Errno::EACCES)),
        opened => opened,
    }
}

fn open_file() -> Result<i32, Errno> {
    let path = c"/proc/self/mem";
    let flags = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated constant path.
    unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }
        .map(|fd| fd as i32)
}
