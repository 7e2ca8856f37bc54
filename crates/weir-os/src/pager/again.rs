//! Watching again: in a forked child, and where something foreign was mapped.

use super::{KernelPager, Transfer, bytes_of};
use crate::ids::PageId;
use crate::mem;
use crate::sys::{Errno, syscall};
use core::sync::atomic::Ordering;

impl KernelPager {
    /// In the child of a fork: puts a userfaultfd of this process in the place of the parent's,
    /// and registers everything again but for the page ranges (start, end)
    /// in `foreign`, in order, where something else is mapped. Until then missing pages read as zeros.
    pub fn reopen_in_child(&self, foreign: &[(PageId, PageId)]) -> Result<(), Errno> {
        if let Some(guards) = &self.guards {
            self.nursery_busy.store(false, Ordering::Relaxed);
            return Self::reopen_guards(guards);
        }
        let fresh = Self::open(if self.moves { Transfer::Move } else { Transfer::Copy }, self.intake)?;
        self.uffd.replace(fresh);
        self.nursery_busy.store(false, Ordering::Relaxed);
        self.register(foreign)
    }

    /// Replaces whatever is mapped over a part of the space by an empty reservation, watched again.
    pub fn reserve_again(&self, page: PageId, n: u32) -> Result<(), Errno> {
        let (addr, len) = (self.page_addr(page, n), bytes_of(n));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: inside our own space, at the program's wish; the promise made at the start, that
        // faults are answered, holds for the part. NOHUGEPAGE as there.
        unsafe {
            syscall(libc::SYS_mmap, [addr, len, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0])?;
            let _ = mem::advise(addr, len, libc::MADV_NOHUGEPAGE);
            mem::advise(addr, len, libc::MADV_DONTDUMP)?;
            if let Some(guards) = &self.guards {
                self.forget(guards, page, n);
                return Ok(());
            }
            self.uffd.register(addr, len, !self.moves)
        }
    }
}
