//! The pager that needs no userfaultfd: a page that is out is a *guard region* (`MADV_GUARD_INSTALL`,
//! kernel 6.13). An access to it is a SIGSEGV in the thread that makes it.
//!
//! Guards lie in page tables, so the mapping keeps the program's protection, is not split, and fork copies
//! both. What they lack is a call that puts bytes in the place of a guard at once, or a guard in the place of
//! bytes: `MADV_GUARD_INSTALL` drops the page first, and a read in between sees zeros. So the pages of a call
//! are *closed* meanwhile: nobody can use them. An access to a closed page is a SIGSEGV as well; its thread
//! waits for the block's lock and tries again.
//!
//! | way | calls |
//! | - | - |
//! | in | `mprotect(NONE)`, `MADV_GUARD_REMOVE`, write to `/proc/self/mem`, `mprotect` back |
//! | in, zeros | `MADV_GUARD_REMOVE`, `MADV_POPULATE_WRITE`: nothing to close, zeros are what is wanted |
//! | out | `mprotect(NONE)`, copy by `/proc/self/mem`, `MADV_GUARD_INSTALL`, `mprotect` back |
//! | dropped | `MADV_GUARD_INSTALL` |
//!
//! Memory that nobody has used has no guards, which would cost page tables: its kernel mapping stays without
//! access, and a block gets access and guards together when its first page comes.

use super::own::OwnMemory;
use super::prots::{Known, Prots};
use super::{KernelPager, bytes_of, finish};
use crate::ids::{BLOCK_PAGES, FrameId, PageId};
use crate::mem::{self, PAGE_BYTES, Prot};
use crate::sys::Errno;
use crate::thread;
use crate::uffd::Progress;
use core::sync::atomic::{AtomicU32, Ordering};

const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// What the pager without userfaultfd knows.
#[derive(Debug)]
pub(super) struct Guards {
    memory: OwnMemory,
    prots: Prots,
    changing: Changing,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It reads data there.
    Read,
    /// It writes data there.
    Write,
    /// It runs code there.
    Run,
}

impl Guards {
    /// For a space of so many pages, all reserved. EOPNOTSUPP: this kernel has no guard regions, or does not
    /// let a process write to its own closed pages.
    pub(super) fn new(pages: u32) -> Result<Guards, Errno> {
        works()?;
        Ok(Guards {
            memory: OwnMemory::open()?,
            prots: Prots::new(pages)?,
            changing: Changing(AtomicU32::new(0)),
        })
    }
}

/// Tries on a page of its own what the pager relies on.
pub(super) fn works() -> Result<(), Errno> {
    let page = mem::Mapping::anon(PAGE_BYTES)?;
    let memory = OwnMemory::open()?;
    // SAFETY: our own page.
    unsafe {
        mem::advise(page.base(), PAGE_BYTES, MADV_GUARD_INSTALL).map_err(|_| Errno::EOPNOTSUPP)?;
        mem::protect(page.base(), PAGE_BYTES, libc::PROT_NONE)?;
        mem::advise(page.base(), PAGE_BYTES, MADV_GUARD_REMOVE).map_err(|_| Errno::EOPNOTSUPP)?;
    }
    let (mark, mut back) = (0x5eed_u64.to_ne_bytes(), [0u8; 8]);
    let wrote = memory.write(page.base(), mark.as_ptr() as usize, mark.len())?;
    let read = memory.read(back.as_mut_ptr() as usize, page.base(), back.len())?;
    if (wrote, read, back) == (mark.len(), back.len(), mark) { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// Protections change, or pages are closed: not both. A change of protection would open a closed page.
#[derive(Debug)]
struct Changing(AtomicU32);

const CHANGE: u32 = 1 << 31;

impl Changing {
    fn shared<R>(&self, f: impl FnOnce() -> R) -> R {
        let free = |s| if s & CHANGE == 0 { Some(s + 1) } else { None };
        while self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_err() {
            thread::yield_now();
        }
        let r = f();
        self.0.fetch_sub(1, Ordering::Release);
        r
    }

    fn alone<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.0.fetch_or(CHANGE, Ordering::Acquire) & CHANGE != 0 {
            thread::yield_now();
        }
        while self.0.load(Ordering::Acquire) != CHANGE {
            thread::yield_now();
        }
        let r = f();
        self.0.store(0, Ordering::Release);
        r
    }
}

/// A range that was closed.
struct Closed {
    addr: usize,
    len: usize,
    prot: Prot,
}

/// Closes a range of one protection.
fn close(addr: usize, len: usize, prot: Prot) -> Result<Closed, Errno> {
    if prot != libc::PROT_NONE {
        // SAFETY: the program's pages; a thread that uses them now waits in its handler.
        unsafe { mem::protect(addr, len, libc::PROT_NONE)? };
    }
    Ok(Closed { addr, len, prot })
}

impl Drop for Closed {
    fn drop(&mut self) {
        const TRIES: u32 = 1000;
        for _ in 0..TRIES {
            // SAFETY: the protection that the program gave its pages.
            if unsafe { mem::protect(self.addr, self.len, self.prot) }.is_ok() {
                return;
            }
            // Too many mappings, or no memory for one: another thread may give some back.
            thread::yield_now();
        }
        panic!("the kernel does not give a page back to the program: vm.max_map_count is too small");
    }
}

/// # Safety
/// - nobody relies on the contents of the range.
unsafe fn guard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: passed on.
    unsafe { mem::advise(addr, len, MADV_GUARD_INSTALL) }
}

fn unguard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: what is there stays, and where nothing is there are zeros, which nobody sees but where they
    // are wanted.
    unsafe { mem::advise(addr, len, MADV_GUARD_REMOVE) }
}

fn stop(e: Errno) -> Progress {
    Progress { done: 0, stop: Some(e) }
}

impl KernelPager {
    /// Whether the program has given itself the right to this access: then a SIGSEGV is Weir's.
    pub fn permits(&self, addr: usize, what: Use) -> bool {
        let Some(guards) = &self.guards else { return false };
        let offset = addr.wrapping_sub(self.space.base());
        if offset >= self.space.len() {
            return false;
        }
        let prot = guards.changing.shared(|| guards.prots.of(PageId((offset / PAGE_BYTES) as u32)).prot);
        // The processor reads wherever it may write or run.
        let needs = match what {
            Use::Read => libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            Use::Write => libc::PROT_WRITE,
            Use::Run => libc::PROT_EXEC,
        };
        prot & needs != 0
    }

    /// Gives the pages of a block that nobody has used guards and access. The block's lock is held.
    fn tend(&self, guards: &Guards, page: PageId, n: u32) -> Result<(), Errno> {
        if guards.prots.run(page, n) == (n, Known { prot: guards.prots.of(page).prot, guarded: true }) {
            return Ok(());
        }
        let (mut at, end) = (page.block().page(0), page.block().page(0).0 + BLOCK_PAGES);
        while at.0 < end {
            let (run, known) = guards.prots.run(at, end - at.0);
            if !known.guarded && known.prot != libc::PROT_NONE {
                let (addr, len) = (self.page_addr(at, run), bytes_of(run));
                self.count(2);
                // SAFETY: nothing was ever there. Guards first: zeros must not be seen.
                unsafe {
                    guard(addr, len)?;
                    mem::protect(addr, len, known.prot)?;
                }
                guards.prots.set(at, run, Known { guarded: true, ..known });
            }
            at = PageId(at.0 + run);
        }
        Ok(())
    }

    /// Does something to the pages of `page..` that are of one block and have one protection, while none
    /// changes. It gets how many they are, and that; it returns the bytes done.
    fn with_alike(
        &self,
        guards: &Guards,
        page: PageId,
        n: u32,
        f: impl FnOnce(u32, Prot) -> Result<usize, Errno>,
    ) -> Progress {
        let part = n.min(BLOCK_PAGES - page.index());
        let done = guards.changing.shared(|| {
            self.tend(guards, page, part)?;
            let (run, known) = guards.prots.run(page, part);
            f(run, known.prot)
        });
        match done {
            Ok(done) => finish(Progress { done, stop: None }, n),
            Err(e) => stop(e),
        }
    }

    /// Notes guards where the program has no access, as [`KernelPager::tend`] does elsewhere.
    fn note_guards(guards: &Guards, page: PageId, run: u32, prot: Prot) {
        if prot == libc::PROT_NONE {
            guards.prots.set(page, run, Known { prot, guarded: true });
        }
    }

    /// Bytes at `src`, which the caller owns, become pages that are out.
    pub(super) fn put(&self, guards: &Guards, page: PageId, n: u32, src: usize) -> Progress {
        self.with_alike(guards, page, n, |run, prot| {
            let (dst, len) = (self.page_addr(page, run), bytes_of(run));
            self.count(4);
            let closed = close(dst, len, prot)?;
            let wrote = unguard(dst, len).and_then(|()| guards.memory.write(dst, src, len));
            let done = wrote.unwrap_or(0) / PAGE_BYTES * PAGE_BYTES;
            if done < len {
                // SAFETY: what may be there is the beginning of the caller's bytes. It was never seen.
                let guarded = unsafe { guard(dst + done, len - done) };
                assert!(guarded.is_ok(), "a page without its bytes cannot be guarded: {guarded:?}");
            }
            Self::note_guards(guards, page, run, prot);
            drop(closed);
            wrote?;
            if done == 0 { Err(Errno::EFAULT) } else { Ok(done) }
        })
    }

    /// As [`KernelPager::put`], and gives up the frames that the bytes lay in.
    pub(super) fn put_frames(&self, guards: &Guards, page: PageId, frame: FrameId, n: u32) -> Progress {
        let src = self.frame_addr(frame, n);
        let p = self.put(guards, page, n, src);
        if p.done > 0 {
            // SAFETY: the bytes of these frames now lie at the destination.
            let _ = unsafe { mem::drop_pages(src, p.done) };
        }
        p
    }

    /// Zeros become pages that are out.
    pub(super) fn put_zeros(&self, guards: &Guards, page: PageId, n: u32) -> Progress {
        self.with_alike(guards, page, n, |run, prot| {
            let (dst, len) = (self.page_addr(page, run), bytes_of(run));
            self.count(2);
            unguard(dst, len)?;
            if prot & libc::PROT_WRITE != 0 {
                // They read as zeros already; this only makes them at once what the first writes would.
                // SAFETY: mapped and writable.
                let _ = unsafe { mem::populate_write(dst, len) };
            }
            Self::note_guards(guards, page, run, prot);
            Ok(len)
        })
    }

    /// Pages that are there become the frames at `frame..`.
    pub(super) fn take(&self, guards: &Guards, frame: FrameId, page: PageId, n: u32) -> Progress {
        self.with_alike(guards, page, n, |run, prot| {
            let (dst, src, len) = (self.frame_addr(frame, run), self.page_addr(page, run), bytes_of(run));
            self.count(4);
            // For readers too: between dropping a page and guarding its place the kernel shows zeros.
            let closed = close(src, len, prot)?;
            let taken = match guards.memory.read(dst, src, len) {
                Ok(read) if read == len => {
                    // SAFETY: the bytes are safe in the arena, and nobody could use the page since.
                    unsafe { guard(src, len) }
                }
                Ok(_) => Err(Errno::EFAULT),
                Err(e) => Err(e),
            };
            drop(closed);
            if taken.is_err() {
                // SAFETY: the places are ours; the pages stay where they are.
                let _ = unsafe { mem::drop_pages(dst, len) };
            }
            taken.map(|()| len)
        })
    }

    /// Drops pages where they are.
    pub(super) fn guard_pages(&self, guards: &Guards, page: PageId, n: u32) -> Result<(), Errno> {
        self.count(1);
        guards.changing.shared(|| {
            // SAFETY: the program gave these pages up.
            unsafe { guard(self.page_addr(page, n), bytes_of(n)) }
        })
    }

    /// Changes the program's protection: at once where guards lie, elsewhere when a page comes.
    pub(super) fn reprotect(&self, guards: &Guards, page: PageId, n: u32, prot: Prot) -> Result<(), Errno> {
        guards.changing.alone(|| {
            let (mut at, end) = (page, page.0 + n);
            while at.0 < end {
                let (run, known) = guards.prots.run(at, end - at.0);
                if known.guarded {
                    // SAFETY: the program's own pages, at the program's wish.
                    unsafe { mem::protect(self.page_addr(at, run), bytes_of(run), prot)? };
                }
                guards.prots.set(at, run, Known { prot, ..known });
                at = PageId(at.0 + run);
            }
            Ok(())
        })
    }

    /// A part of the space is a fresh reservation.
    pub(super) fn forget(&self, guards: &Guards, page: PageId, n: u32) {
        guards.changing.alone(|| guards.prots.set(page, n, Known::default()));
    }

    /// Copies a page that is there to one that is out.
    pub(super) fn copy_page(&self, guards: &Guards, to: PageId, from: PageId) -> Progress {
        let mut bytes = [0u8; PAGE_BYTES];
        let at = bytes.as_mut_ptr() as usize;
        match guards.memory.read(at, self.page_addr(from, 1), PAGE_BYTES) {
            Ok(PAGE_BYTES) => self.put(guards, to, 1, at),
            Ok(_) => stop(Errno::EFAULT),
            Err(e) => stop(e),
        }
    }

    /// In the child of a fork: guards came along with the page tables.
    pub(super) fn reopen_guards(guards: &Guards) -> Result<(), Errno> {
        guards.changing.0.store(0, Ordering::Relaxed);
        guards.memory.reopen()
    }
}
