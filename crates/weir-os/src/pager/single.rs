//! Frames that are new: single pages, zeros, and frames that the arena grows by.

use super::{CHUNK_PAGES, KernelPager, bytes_of, finish};
use crate::codec::PageBytes;
use crate::ids::{FrameId, PageId};
use crate::mem::{self, PAGE_BYTES};
use crate::sys::Errno;
use crate::uffd::{Progress, Wake};

impl KernelPager {
    /// A new frame with these bytes becomes the page. Its source is ordinary memory, so no other
    /// processor has to forget a mapping: for single pages cheaper than a move with its TLB flush.
    pub fn fill_copy(&self, page: PageId, bytes: &PageBytes, wake: Wake) -> Progress {
        if let Some(guards) = &self.guards {
            return self.put(guards, page, 1, bytes.as_ptr() as usize);
        }
        self.count(1);
        // SAFETY: the pager owns the destination; the source is live.
        unsafe { self.uffd.copy(self.page_addr(page, 1), bytes.as_ptr() as usize, PAGE_BYTES, wake) }
    }

    /// New frames of zeros become up to [`CHUNK_PAGES`] of the `n` missing pages at `page..`: no other
    /// processor has to forget anything, as with frames that are made in the arena and moved.
    pub fn fill_zeros(&self, page: PageId, n: u32, wake: Wake) -> Progress {
        if let Some(guards) = &self.guards {
            return self.put_zeros(guards, page, n);
        }
        let dst = self.page_addr(page, n);
        // SAFETY: the pager owns the destination.
        let mut p = unsafe { self.copy_zeros(dst, n.min(CHUNK_PAGES), wake) };
        if p.done == 0 && n > 1 && matches!(p.stop, Some(Errno::EINVAL | Errno::ENOENT)) {
            // The run crosses mappings (parts of it have another protection): page by page.
            // SAFETY: as above.
            p = unsafe { self.copy_zeros(dst, 1, wake) };
        }
        finish(p, n)
    }

    /// Maps zeros at `page` unless something is there; EEXIST says that something is.
    pub fn zero(&self, page: PageId) -> Progress {
        if self.guards.is_some() {
            // What is not under a guard is there, if only as a hole that reads as zeros.
            return Progress { done: 0, stop: Some(Errno::EEXIST) };
        }
        self.count(1);
        // SAFETY: the pager owns the range.
        unsafe { self.uffd.zeropage(self.page_addr(page, 1), PAGE_BYTES, Wake::Yes) }
    }

    /// Creates `n` zeroed frames in the empty places at `frame..`.
    pub fn grow(&self, frame: FrameId, n: u32) -> Result<(), Errno> {
        let dst = self.frame_addr(frame, n);
        if !self.moves {
            // SAFETY: our arena; the places are empty.
            return unsafe { mem::populate_write(dst, bytes_of(n)) };
        }
        let mut done = 0;
        while done < n {
            let k = (n - done).min(CHUNK_PAGES);
            // SAFETY: the places are empty and ours.
            let p = unsafe { self.copy_zeros(dst + bytes_of(done), k, Wake::No) };
            match p.stop {
                Some(e) if p.done == 0 && e != Errno::EAGAIN => return Err(e),
                _ => done += (p.done / PAGE_BYTES) as u32,
            }
        }
        Ok(())
    }

    /// # Safety
    /// - the destination is the pager's.
    unsafe fn copy_zeros(&self, dst: usize, n: u32, wake: Wake) -> Progress {
        self.count(1);
        // SAFETY: the destination by contract; the source is as long and never written.
        unsafe { self.uffd.copy(dst, self.zeros.base(), bytes_of(n), wake) }
    }

    /// Whether a page that should have arrived in a place is there. If not (the program had dropped
    /// it by a call that Weir does not see), zeros are put in its place, which is what it reads
    /// as. `mincore` alone cannot tell: it denies pages that the kernel itself swapped out.
    pub fn settle_frame(&self, frame: FrameId) {
        if self.guards.is_some() {
            return; // frames are copies: all of them arrive
        }
        let _ = self.fill_hole(self.frame_addr(frame, 1));
    }

    /// Puts zeros where no page is. True if there was none.
    pub(super) fn fill_hole(&self, addr: usize) -> bool {
        self.count(1);
        // SAFETY: our own arena, or a hole of the program, which reads as zeros anyway.
        let p = unsafe { self.uffd.zeropage(addr, PAGE_BYTES, Wake::No) };
        p.done > 0
    }
}
