//! Runs of pages by MOVE and by page tables; what MOVE refuses is handed on to copies.

use super::{CHUNK_PAGES, KernelPager, bytes_of, finish};
use crate::ids::{FrameId, PageId};
use crate::mem::{self, PAGE_BYTES};
use crate::sys::Errno;
use crate::uffd::{Progress, Wake};

impl KernelPager {
    /// Arena to program: the frames at `frame..` become the pages at `page..`.
    pub fn fill(&self, page: PageId, frame: FrameId, n: u32, wake: Wake) -> Progress {
        if let Some(guards) = &self.guards {
            return self.put_frames(guards, page, frame, n);
        }
        let (dst, src, len) = (self.page_addr(page, n), self.frame_addr(frame, n), bytes_of(n));
        if self.moves {
            self.count(1);
            let p = self.move_exclusive(dst, src, len, false, wake);
            if p.done > 0 || p.stop != Some(Errno::EINVAL) {
                return p;
            }
            // Neighbouring windows may have been lifted one by one: each is a mapping of its own.
            let window = CHUNK_PAGES - frame.index();
            if n > window {
                self.count(1);
                let p = self.move_exclusive(dst, src, bytes_of(window), false, wake);
                if p.done > 0 || p.stop != Some(Errno::EINVAL) {
                    return finish(p, n);
                }
            }
        }
        // Not plain memory, or no MOVE at all.
        self.copy_in(dst, src, n, wake)
    }

    /// Program to arena: the pages at `page..`, all of plain read-write memory, become the frames at
    /// `frame..`; the places must be empty. Holes are passed over: the mask says which pages surely
    /// arrived; one that is missing from it may still have (see [`KernelPager::settle_frame`]).
    /// Stops where a page cannot leave (EBUSY: pinned; EINVAL: not plain after all).
    pub fn drain(&self, frame: FrameId, page: PageId, n: u32) -> (Progress, u64) {
        if let Some(guards) = &self.guards {
            let p = self.take(guards, frame, page, n);
            return (p, ones(p.done / PAGE_BYTES));
        }
        let (dst, src, len) = (self.frame_addr(frame, n), self.page_addr(page, n), bytes_of(n));
        if !self.moves {
            let p = self.copy_out_protected(dst, src, len);
            return (p, ones(p.done / PAGE_BYTES));
        }
        self.count(1);
        let mut p = self.move_exclusive(dst, src, len, true, Wake::No);
        if p.done == 0 && p.stop == Some(Errno::EINVAL) && n > 1 {
            // The mapping is split somewhere: page by page MOVE still works.
            self.count(1);
            p = finish(self.move_exclusive(dst, src, PAGE_BYTES, true, Wake::No), n);
        }
        (p, self.arrived(dst, p.done))
    }

    /// Program to arena by moving page tables: whatever lies in the pages at `page..` lies in the
    /// places at `frame..` afterwards, holes included, for the price of one call and one TLB flush. The
    /// pages must be of one mapping; the places empty and in the part that is not watched. Pages in
    /// use by the kernel (direct I/O) move too: the caller knows that there are none.
    ///
    /// Errors: EFAULT or EINVAL when the pages are of several mappings, ENOMEM when the process has
    /// too many mappings; EEXIST when the places are lost, see [`mem::lift`]: they must not be used
    /// again. Nothing has moved then.
    pub fn lift(&self, frame: FrameId, page: PageId, n: u32) -> Result<(), Errno> {
        let (dst, src, len) = (self.frame_addr(frame, n), self.page_addr(page, n), bytes_of(n));
        assert!(dst >= self.arena.base() + self.arena.len() - self.lift_len, "lift place");
        self.count(1);
        // SAFETY: the pager owns both ranges; the destination holds nothing. What the program excludes from
        // core files later must not be in one because it lies here.
        unsafe {
            mem::lift(dst, src, len)?;
            let _ = mem::advise(dst, len, libc::MADV_DONTDUMP);
        }
        Ok(())
    }

    /// Arena to arena: gathers frames into a window.
    pub fn gather(&self, to: FrameId, from: FrameId, n: u32) -> Progress {
        let (dst, src, len) = (self.frame_addr(to, n), self.frame_addr(from, n), bytes_of(n));
        self.count(1);
        if self.moves {
            return self.move_exclusive(dst, src, len, false, Wake::No);
        }
        // Free frames carry no contents worth keeping: give one up, let the other be born.
        // SAFETY: ours by contract; destination places are empty.
        let r = unsafe { mem::drop_pages(src, len).and_then(|()| mem::populate_write(dst, len)) };
        Progress { done: if r.is_ok() { len } else { 0 }, stop: r.err() }
    }

    /// Which of the places surely hold a frame now.
    fn arrived(&self, dst: usize, len: usize) -> u64 {
        let mut present = [0u8; 64];
        if len == 0 {
            return 0;
        }
        self.count(1);
        if mem::mincore(dst, len, &mut present).is_err() {
            return 0;
        }
        present[..len / PAGE_BYTES].iter().enumerate().fold(0, |m, (i, b)| m | u64::from(b & 1) << i)
    }

    /// MOVE, which refuses pages shared with a relative since a fork (EBUSY, until somebody
    /// writes to them): ends the sharing by writing nothing to them and asks again. EBUSY that
    /// stays means pinned.
    fn move_exclusive(&self, dst: usize, src: usize, len: usize, holes: bool, wake: Wake) -> Progress {
        // SAFETY: the pager owns both ranges.
        let p = unsafe { self.uffd.move_pages(dst, src, len, holes, wake) };
        if p.done > 0 || p.stop != Some(Errno::EBUSY) {
            return p;
        }
        let mut present = [0u8; 64];
        let len = len.min(present.len() * PAGE_BYTES);
        if mem::mincore(src, len, &mut present).is_err() {
            return p;
        }
        // Touching a page that is not there would wait for ourselves.
        let here = present[..len / PAGE_BYTES].iter().take_while(|b| **b & 1 == 1).count();
        self.count(2);
        // SAFETY: mapped and present; whoever can unmap it needs the lock that our caller holds.
        if here == 0 || unsafe { mem::populate_write(src, here * PAGE_BYTES) }.is_err() {
            return p;
        }
        // SAFETY: as above.
        finish(unsafe { self.uffd.move_pages(dst, src, here * PAGE_BYTES, false, wake) }, here as u32 + 1)
    }
}

fn ones(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}
