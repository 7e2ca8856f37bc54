//! Pages and frames where they are: given up, locked, their protection, who waits for them.

use super::{KernelPager, bytes_of};
use crate::ids::{FrameId, PageId};
use crate::mem::{self, PAGE_BYTES};
use crate::sys::{Errno, syscall};
use crate::uffd::{Progress, Wake};

impl KernelPager {
    /// Gives the frames at `frame..` back to the kernel.
    pub fn shed(&self, frame: FrameId, n: u32) -> Result<(), Errno> {
        self.count(1);
        // SAFETY: free frames of ours: nobody needs their contents.
        unsafe { mem::drop_pages(self.frame_addr(frame, n), bytes_of(n)) }
    }

    /// Drops pages of the program where they are; their frames go back to the kernel.
    pub fn drop_pages(&self, page: PageId, n: u32) -> Result<(), Errno> {
        if let Some(guards) = &self.guards {
            return self.guard_pages(guards, page, n);
        }
        self.count(1);
        // SAFETY: the program gave these pages up.
        unsafe { mem::drop_pages(self.page_addr(page, n), bytes_of(n)) }
    }

    /// Wakes the threads waiting for these pages.
    pub fn wake(&self, page: PageId, n: u32) {
        if self.guards.is_some() {
            return; // nobody waits but for locks
        }
        let _ = self.uffd.wake(self.page_addr(page, n), bytes_of(n));
    }

    /// Changes the protection of pages of the space. Those that can be used are in core files, if they are to
    /// be: in one mapping with their neighbours all the same.
    pub fn protect(&self, page: PageId, n: u32, prot: mem::Prot, dump: bool) -> Result<(), Errno> {
        let dump = dump && prot != libc::PROT_NONE;
        match &self.guards {
            Some(guards) => self.reprotect(guards, page, n, prot)?,
            // SAFETY: the program's own pages, at the program's wish.
            None => unsafe { mem::protect(self.page_addr(page, n), bytes_of(n), prot)? },
        }
        self.dump(page, n, dump).or_else(|e| if dump { Ok(()) } else { Err(e) })
    }

    /// Whether what is in RAM of pages of the space is in core files.
    pub fn dump(&self, page: PageId, n: u32, dump: bool) -> Result<(), Errno> {
        let advice = if dump { libc::MADV_DODUMP } else { libc::MADV_DONTDUMP };
        // SAFETY: an advice about core files only.
        unsafe { mem::advise(self.page_addr(page, n), bytes_of(n), advice) }
    }

    /// Keeps the frames of pages, which are all there, from being swapped by the kernel. (It must not touch
    /// missing ones, which it would wait for.)
    pub fn lock(&self, page: PageId, n: u32) -> Result<(), Errno> {
        const ONFAULT: usize = 1;
        let (addr, len) = (self.page_addr(page, n), bytes_of(n));
        // SAFETY: changes nothing that the program can see.
        unsafe { syscall(libc::SYS_mlock2, [addr, len, ONFAULT, 0, 0, 0]) }.map(|_| ())
    }

    /// Takes [`KernelPager::lock`] back.
    pub fn unlock(&self, page: PageId, n: u32) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { syscall(libc::SYS_munlock, [self.page_addr(page, n), bytes_of(n), 0, 0, 0, 0]) }.map(|_| ())
    }

    /// Lets writers through to a page that is there after all (copy mode).
    pub fn unprotect(&self, page: PageId) {
        if self.guards.is_some() {
            return;
        }
        let _ = self.uffd.write_protect(self.page_addr(page, 1), PAGE_BYTES, false, Wake::Yes);
    }

    /// Makes accesses to a missing page raise SIGBUS.
    pub fn poison(&self, page: PageId) -> Progress {
        if self.guards.is_some() {
            return Progress { done: 0, stop: Some(Errno::EOPNOTSUPP) };
        }
        // SAFETY: the engine decided that the page's bytes are lost.
        unsafe { self.uffd.poison(self.page_addr(page, 1), PAGE_BYTES) }
    }
}
