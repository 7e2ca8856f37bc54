//! Pages that are copied: where the kernel has no MOVE, and where MOVE refuses.

use super::{CHUNK_PAGES, KernelPager, bytes_of, finish};
use crate::ids::{FrameId, PageId};
use crate::mem::{self, PAGE_BYTES};
use crate::sys::{Errno, syscall};
use crate::thread;
use crate::uffd::{Progress, Wake};
use core::sync::atomic::Ordering;

impl KernelPager {
    /// As `fill` by copies: gives the frames up to keep their number. For a moment there are more frames than
    /// the budget has: a window's at most.
    pub(super) fn copy_in(&self, dst: usize, src: usize, n: u32, wake: Wake) -> Progress {
        let len = if self.moves { PAGE_BYTES } else { bytes_of(n.min(CHUNK_PAGES)) };
        self.count(2);
        // SAFETY: as above; the source frames are present by the engine's invariants.
        let mut p = unsafe { self.uffd.copy(dst, src, len, wake) };
        if p.done == 0 && len > PAGE_BYTES && matches!(p.stop, Some(Errno::EINVAL | Errno::ENOENT)) {
            // The run crosses mappings (parts of it have another protection): page by page.
            // SAFETY: as above.
            p = unsafe { self.uffd.copy(dst, src, PAGE_BYTES, wake) };
        }
        if p.done > 0 {
            // SAFETY: those frames' bytes now live at the destination.
            let _ = unsafe { mem::drop_pages(src, p.done) };
        }
        finish(p, n)
    }

    /// As `drain` for one page of a mapping that nobody can write to, which MOVE refuses. The
    /// caller makes sure that it does not become writable meanwhile.
    pub fn drain_readonly(&self, frame: FrameId, page: PageId) -> Progress {
        if let Some(guards) = &self.guards {
            return self.take(guards, frame, page, 1);
        }
        let (dst, src) = (self.frame_addr(frame, 1), self.page_addr(page, 1));
        self.count(3);
        let stop = |e| Progress { done: 0, stop: Some(e) };
        if self.fill_hole(src) {
            return stop(Errno::ENOENT);
        }
        if !self.moves {
            return match read_self(dst, src, PAGE_BYTES) {
                // SAFETY: the bytes are safe in the arena; nobody can change them.
                Ok(()) => match unsafe { mem::drop_pages(src, PAGE_BYTES) } {
                    Ok(()) => Progress { done: PAGE_BYTES, stop: None },
                    Err(e) => {
                        // SAFETY: the place is ours.
                        let _ = unsafe { mem::drop_pages(dst, PAGE_BYTES) };
                        stop(e)
                    }
                },
                Err(e) => stop(e),
            };
        }
        // The destination is registered: fill it through ordinary memory.
        self.with_nursery(|nursery| {
            if let Err(e) = read_self(nursery, src, PAGE_BYTES) {
                return stop(e);
            }
            // SAFETY: the nursery page was just written; the place is empty and ours.
            let p = unsafe { self.uffd.move_pages(dst, nursery, PAGE_BYTES, false, Wake::No) };
            if p.done == 0 {
                return p;
            }
            // SAFETY: the bytes are safe in the arena; nobody can change them.
            if let Err(e) = unsafe { mem::drop_pages(src, PAGE_BYTES) } {
                // It stays where it is (locked): the copy is not the page.
                // SAFETY: the place is ours.
                let _ = unsafe { mem::drop_pages(dst, PAGE_BYTES) };
                return stop(e);
            }
            p
        })
    }

    /// As `drain` by copies: writers wait at the write protection meanwhile.
    pub(super) fn copy_out_protected(&self, dst: usize, src: usize, len: usize) -> Progress {
        self.count(4);
        let stop = |e| Progress { done: 0, stop: Some(e) };
        let mut present = [0u8; 64];
        let n = len / PAGE_BYTES;
        if let Err(e) = mem::mincore(src, len, &mut present) {
            return stop(e);
        }
        // Reading a hole would wait for ourselves: where `mincore` doubts, zeros settle it.
        for (i, _) in present[..n].iter().enumerate().filter(|(_, b)| **b & 1 == 0) {
            self.fill_hole(src + i * PAGE_BYTES);
        }
        if let Err(e) = self.uffd.write_protect(src, len, true, Wake::No) {
            return stop(e);
        }
        if let Err(e) = read_self(dst, src, len) {
            let _ = self.uffd.write_protect(src, len, false, Wake::Yes);
            return stop(e);
        }
        // SAFETY: the bytes are safe in the arena, and writers wait at the write protection.
        match unsafe { mem::drop_pages(src, len) } {
            Ok(()) => Progress { done: len, stop: None },
            Err(e) => {
                let _ = self.uffd.write_protect(src, len, false, Wake::Yes);
                // SAFETY: the places are ours.
                let _ = unsafe { mem::drop_pages(dst, len) };
                stop(e)
            }
        }
    }

    fn with_nursery<R>(&self, f: impl FnOnce(usize) -> R) -> R {
        while self.nursery_busy.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        let r = f(self.nursery.base());
        self.nursery_busy.store(false, Ordering::Release);
        r
    }

    /// Copies a present page to a missing one, for pages that cannot be moved; costs a frame until
    /// the source is dropped.
    pub fn duplicate(&self, to: PageId, from: PageId) -> Progress {
        if let Some(guards) = &self.guards {
            return self.copy_page(guards, to, from);
        }
        self.count(1);
        // SAFETY: both in the space that the pager owns; the kernel checks the source.
        unsafe { self.uffd.copy(self.page_addr(to, 1), self.page_addr(from, 1), PAGE_BYTES, Wake::Yes) }
    }
}

/// Copies `len` bytes of this process from `src` to `dst`, with EFAULT instead of a signal when
/// the source is not readable.
fn read_self(dst: usize, src: usize, len: usize) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: dst as *mut _, iov_len: len };
    let remote = libc::iovec { iov_base: src as *mut _, iov_len: len };
    let (l, r) = (core::ptr::from_ref(&local) as usize, core::ptr::from_ref(&remote) as usize);
    let pid = crate::sys::getpid() as usize;
    // SAFETY: the destination is memory of the pager; the kernel checks the source.
    match unsafe { syscall(libc::SYS_process_vm_readv, [pid, l, 1, r, 1, 0]) } {
        Ok(n) if n == len => Ok(()),
        _ => read_forced(dst, src, len),
    }
}

/// As [`read_self`] for memory without read access (and where containers forbid that call):
/// `/proc/self/mem` reads whatever is mapped.
fn read_forced(dst: usize, src: usize, len: usize) -> Result<(), Errno> {
    let path = c"/proc/self/mem";
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated constant path; the destination is memory of the pager.
    unsafe {
        let fd =
            syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0])?;
        let r = syscall(libc::SYS_pread64, [fd, dst, len, src, 0, 0]);
        crate::sys::close(fd as i32);
        if r? == len { Ok(()) } else { Err(Errno::EFAULT) }
    }
}
