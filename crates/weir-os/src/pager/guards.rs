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
//! access, and gets access and guards together when its first page comes (`opening`).

use super::changing::Changing;
use super::opening::Opening;
use super::own::OwnMemory;
use super::prots::{Known, Prots};
use super::spare::Spare;
use super::{KernelPager, bytes_of, finish};
use crate::ids::{BLOCK_PAGES, FrameId, PageId};
use crate::mem::{self, PAGE_BYTES, Prot};
use crate::sys::{self, Errno};
use crate::thread;
use crate::uffd::Progress;

const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// What the pager without userfaultfd knows.
#[derive(Debug)]
pub(super) struct Guards {
    pub(super) memory: OwnMemory,
    pub(super) prots: Prots,
    pub(super) changing: Changing,
    pub(super) opening: Opening,
    pub(super) spare: Spare,
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
            changing: Changing::default(),
            opening: Opening::new(),
            spare: Spare::new(),
        })
    }
}

/// Tries on a page of its own what the pager relies on.
pub(super) fn works() -> Result<(), Errno> {
    let unknown = |e| if e == Errno::ENOMEM { e } else { Errno::EOPNOTSUPP };
    let page = mem::Mapping::anon(PAGE_BYTES)?;
    let memory = OwnMemory::open()?;
    // SAFETY: our own page.
    unsafe {
        mem::advise(page.base(), PAGE_BYTES, MADV_GUARD_INSTALL).map_err(unknown)?;
        mem::protect(page.base(), PAGE_BYTES, libc::PROT_NONE)?;
        mem::advise(page.base(), PAGE_BYTES, MADV_GUARD_REMOVE).map_err(unknown)?;
    }
    let (mark, mut back) = (0x5eed_u64.to_ne_bytes(), [0u8; 8]);
    let wrote = memory.write(page.base(), mark.as_ptr() as usize, mark.len())?;
    let read = memory.read(back.as_mut_ptr() as usize, page.base(), back.len())?;
    if (wrote, read, back) == (mark.len(), back.len(), mark) { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// A range that was closed.
struct Closed<'a> {
    spare: &'a Spare,
    addr: usize,
    len: usize,
    prot: Prot,
}

/// Closes a range of one protection.
fn close(spare: &Spare, addr: usize, len: usize, prot: Prot) -> Result<Closed<'_>, Errno> {
    // SAFETY: the program's pages; a thread that uses them now waits in its handler.
    let protect = || unsafe { mem::protect(addr, len, libc::PROT_NONE) };
    // Opened again whatever comes of it: an error may leave a part closed.
    let closed = Closed { spare, addr, len, prot };
    if prot != libc::PROT_NONE {
        protect().or_else(|e| {
            spare.give_up();
            if e == Errno::ENOMEM { protect() } else { Err(e) }
        })?;
    }
    Ok(closed)
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        const TRIES: u32 = 1000;
        let mut refused = Errno(0);
        for _ in 0..TRIES {
            match open(self.addr, self.len, self.prot) {
                Ok(()) => return,
                Err(e) => refused = e,
            }
            // Another thread has taken the mappings, or the memory for one, that the closed range gave up.
            self.spare.give_up();
            thread::yield_now();
        }
        panic!("the kernel does not give a page back to the program: {refused:?} at mprotect");
    }
}

/// Gives a range access. Memory that the program has already is not refused for a limit that came later.
pub(super) fn open(addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
    // SAFETY: the protection that the program gave its pages.
    let protect = || unsafe { mem::protect(addr, len, prot) };
    match protect() {
        Err(Errno::ENOMEM) => sys::beyond_data_limit(protect).unwrap_or(Err(Errno::ENOMEM)),
        done => done,
    }
}

/// # Safety
/// - nobody relies on the contents of the range.
pub(super) unsafe fn guard(addr: usize, len: usize) -> Result<(), Errno> {
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
        // Without a lock: an access during a change is as if it came before or after it, as natively.
        let prot = guards.prots.of(PageId((offset / PAGE_BYTES) as u32)).prot;
        // The processor reads wherever it may write or run.
        let needs = match what {
            Use::Read => libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            Use::Write => libc::PROT_WRITE,
            Use::Run => libc::PROT_EXEC,
        };
        prot & needs != 0
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
            let closed = close(&guards.spare, dst, len, prot)?;
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
            let closed = close(&guards.spare, src, len, prot)?;
            let taken = match guards.memory.read(dst, src, len) {
                Ok(read) if read == len => {
                    // SAFETY: the bytes are safe in the arena, and nobody could use the page since.
                    unsafe { guard(src, len) }.inspect_err(|_| {
                        // A part may have guards, and its bytes are in the arena alone.
                        let back = unguard(src, len).and_then(|()| guards.memory.write(src, dst, len));
                        assert!(back == Ok(len), "pages cannot be put back: {back:?}");
                    })
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

    /// Drops pages where they are. Closed meanwhile: the kernel drops what it finds in several rounds, and a
    /// thread that has seen zeros after the first would lose what it wrote then.
    pub(super) fn guard_pages(&self, guards: &Guards, page: PageId, n: u32) -> Result<(), Errno> {
        guards.changing.shared(|| {
            let (mut at, end) = (page, page.0 + n);
            while at.0 < end {
                let (run, known) = guards.prots.run(at, end - at.0);
                let (addr, len) = (self.page_addr(at, run), bytes_of(run));
                self.count(3);
                // Where no guards are, the kernel gives no access.
                let prot = if known.guarded { known.prot } else { libc::PROT_NONE };
                let _closed = close(&guards.spare, addr, len, prot)?;
                // SAFETY: the program gave these pages up.
                unsafe { guard(addr, len)? };
                at = PageId(at.0 + run);
            }
            Ok(())
        })
    }

    /// Changes the program's protection: at once where guards lie, or where the kernel counts memory when it
    /// can be written to; elsewhere when a page comes.
    pub(super) fn reprotect(&self, guards: &Guards, page: PageId, n: u32, prot: Prot) -> Result<(), Errno> {
        let at_once = prot & libc::PROT_WRITE != 0 && guards.opening.is_counted();
        guards.changing.alone(|| {
            let (mut at, end) = (page, page.0 + n);
            while at.0 < end {
                let (run, known) = guards.prots.run(at, end - at.0);
                let (addr, len) = (self.page_addr(at, run), bytes_of(run));
                if !known.guarded && at_once {
                    // SAFETY: nothing was ever there.
                    unsafe { guard(addr, len)? };
                }
                let guarded = known.guarded || at_once;
                if guarded {
                    // SAFETY: the program's own pages, at the program's wish.
                    unsafe { mem::protect(addr, len, prot)? };
                }
                guards.prots.set(at, run, Known { prot, guarded });
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
        guards.changing.forget();
        guards.opening.forget();
        guards.memory.reopen()
    }
}
