//! The kernel's side of a page's travels: three pagers over one interface.
//!
//! *Move*: frames travel by `UFFDIO_MOVE`, contents are never copied (kernel 6.8).
//! *Copy*: pages are write-protected, copied out and dropped, and filled by `UFFDIO_COPY`
//! (kernel 5.7). It does the same job at several times the cost, and also serves pages that MOVE
//! refuses: those whose mapping is not plain read-write.
//! *Segv*: without userfaultfd, by guard regions and SIGSEGV (`guards`, kernel 6.13).
//!
//! Which act is unsafe: building the pager. Whoever does it hands over two address ranges, the
//! program's space and the frame arena, and promises that frames are only touched by their owner.
//! After that the methods are safe: they check that every range lies inside those two.

mod again;
mod changing;
mod copying;
mod guards;
mod moving;
mod opening;
mod own;
mod pages;
mod prots;
mod single;
mod spare;

pub use guards::Use;

use crate::codec::PageBytes;
use crate::ids::{BLOCK_PAGES, FrameId, PageId};
use crate::mem::{self, Mapping, PAGE_BYTES};
use crate::shards::Shards;
use crate::sys::Errno;
use crate::uffd::{self, Progress, Uffd};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use guards::Guards;

/// Pages of an arena window: what one mapping surely has, and what is copied at a time.
const CHUNK_PAGES: u32 = BLOCK_PAGES;

/// Moves pages between the program's space and the arena.
#[derive(Debug)]
pub struct KernelPager {
    /// Names nothing where `guards` do its work.
    uffd: Uffd,
    guards: Option<Guards>,
    moves: bool,
    intake: Intake,
    space: Mapping,
    arena: Mapping,
    /// Bytes at the arena's end that are not watched: where lifted pages go.
    lift_len: usize,
    /// Unregistered memory for one page on its way into the arena.
    nursery: Mapping,
    /// Zeros to copy from; all its pages are the kernel's one zero page, which stays in the processor's
    /// cache.
    zeros: Mapping,
    nursery_busy: AtomicBool,
    /// MOVE, COPY and drop calls made, for the cost tables.
    calls: Shards<AtomicU64>,
}

/// Which pager to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// MOVE where the kernel has it, else copy.
    Auto,
    /// MOVE or fail.
    Move,
    /// Copy.
    Copy,
    /// Guard regions: needs no userfaultfd.
    Segv,
}

/// How a fault is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// By a message that a handler thread reads; faults inside system calls too. Needs permission.
    Messages,
    /// By SIGBUS in the faulting thread; a system call that touches a missing page fails with
    /// EFAULT. Needs no permission.
    InThread,
}

impl KernelPager {
    /// Opens a userfaultfd, reserves nothing: takes over `space` (reserved, no access yet) and
    /// `arena` (read-write, untouched) and registers them, but for the last `lift_len` bytes of the
    /// arena: [`KernelPager::lift`] puts pages there.
    ///
    /// Errors: those of opening the userfaultfd; ENOSYS when `transfer` asks for MOVE and the kernel
    /// has none; EOPNOTSUPP when it asks for guard regions and there are none.
    ///
    /// # Safety
    /// - a thread must answer [`KernelPager::read`] from here on, or accesses to the space hang.
    /// - nobody else maps, unmaps or touches the arena.
    pub unsafe fn new(
        transfer: Transfer,
        intake: Intake,
        space: Mapping,
        arena: Mapping,
        lift_len: usize,
    ) -> Result<KernelPager, Errno> {
        let (uffd, guards) = match transfer {
            Transfer::Segv if intake == Intake::Messages => return Err(Errno::ENOSYS),
            Transfer::Segv => (Uffd::none(), Some(Guards::new((space.len() / PAGE_BYTES) as u32)?)),
            _ => (Self::open(transfer, intake)?, None),
        };
        let moves = uffd.features() & uffd::MOVE != 0;
        let (nursery, zeros) = (Mapping::anon(PAGE_BYTES)?, Mapping::anon(bytes_of(CHUNK_PAGES))?);
        nursery.name(c"weir-nursery");
        // SAFETY: nobody uses it yet, and nobody will write to it.
        unsafe { mem::protect(zeros.base(), zeros.len(), libc::PROT_READ)? };
        zeros.name(c"weir-zeros");
        for m in [&space, &arena, &nursery, &zeros] {
            // SAFETY: an advice about page size only. Kernels without THP refuse: nothing to avoid then.
            let _ = unsafe { mem::advise(m.base(), m.len(), libc::MADV_NOHUGEPAGE) };
        }
        let pager = KernelPager {
            uffd,
            guards,
            moves,
            intake,
            space,
            arena,
            lift_len,
            nursery,
            zeros,
            nursery_busy: AtomicBool::new(false),
            calls: Shards::default(),
        };
        pager.register(&[])?;
        Ok(pager)
    }

    /// As [`KernelPager::new`] for mappings that were made for it: a reserved space that nobody has
    /// used and an arena that nobody else knows. The thread that answers faults starts before
    /// anybody gets access to a page of the space.
    pub fn open_over(
        transfer: Transfer,
        intake: Intake,
        space: Mapping,
        arena: Mapping,
        lift_len: usize,
    ) -> Result<KernelPager, Errno> {
        // SAFETY: both mappings are owned, the space has no access yet (reserved), so nobody can
        // fault before the owner of the pager opens pages; the arena is touched through it alone.
        unsafe { KernelPager::new(transfer, intake, space, arena, lift_len) }
    }

    /// Children of a fork get neither space nor arena: an access there is SIGSEGV.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        [&self.space, &self.arena].into_iter().try_for_each(|map| {
            // SAFETY: an advice about children only, for mappings that are the pager's.
            unsafe { mem::advise(map.base(), map.len(), libc::MADV_DONTFORK) }
        })
    }

    /// Whether [`Transfer::Segv`] works here, tried on a page.
    pub fn can_guard() -> Result<(), Errno> {
        guards::works()
    }

    fn open(transfer: Transfer, intake: Intake) -> Result<Uffd, Errno> {
        let wanted = match transfer {
            Transfer::Copy | Transfer::Segv => uffd::PAGEFAULT_FLAG_WP | uffd::THREAD_ID,
            Transfer::Auto | Transfer::Move => uffd::MOVE | uffd::PAGEFAULT_FLAG_WP | uffd::THREAD_ID,
        };
        let uffd = match intake {
            Intake::Messages => Uffd::open(wanted)?,
            Intake::InThread => {
                let uffd = Uffd::open_user_mode(wanted | uffd::SIGBUS)?;
                if uffd.features() & uffd::SIGBUS == 0 {
                    return Err(Errno::ENOSYS);
                }
                uffd
            }
        };
        let moves = uffd.features() & uffd::MOVE != 0;
        let protects = uffd.features() & uffd::PAGEFAULT_FLAG_WP != 0;
        if !moves && (transfer == Transfer::Move || !protects) {
            return Err(Errno::ENOSYS);
        }
        Ok(uffd)
    }

    fn register(&self, foreign: &[(PageId, PageId)]) -> Result<(), Errno> {
        if self.guards.is_some() {
            return Ok(());
        }
        let pages = PageId((self.space.len() / PAGE_BYTES) as u32);
        let mut at = PageId(0);
        for &(start, end) in foreign.iter().chain([&(pages, pages)]) {
            if start > at {
                let n = start.0 - at.0;
                let (addr, len) = (self.page_addr(at, n), bytes_of(n));
                // SAFETY: the builder promised a thread that answers.
                unsafe { self.uffd.register(addr, len, !self.moves)? };
            }
            at = end;
        }
        if self.moves {
            // In copy mode the arena is ordinary memory: frames there are born on first write.
            // SAFETY: as above.
            unsafe { self.uffd.register(self.arena.base(), self.arena.len() - self.lift_len, false)? };
        }
        Ok(())
    }

    /// How faults are announced.
    pub fn intake(&self) -> Intake {
        self.intake
    }

    /// Whether frames travel by MOVE.
    pub fn moves(&self) -> bool {
        self.moves
    }

    /// Whether there is no userfaultfd: faults are SIGSEGV.
    pub fn is_guarded(&self) -> bool {
        self.guards.is_some()
    }

    /// Whether the kernel still tells of missing pages: not once the program has closed the userfaultfd past
    /// Weir.
    pub fn is_watching(&self) -> bool {
        self.guards.is_some() || self.uffd.is_intact()
    }

    /// Page-moving system calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.iter().map(|calls| calls.load(Ordering::Relaxed)).sum()
    }

    /// First address of the program's space.
    pub fn space_base(&self) -> usize {
        self.space.base()
    }

    /// Bytes of the program's space.
    pub fn space_len(&self) -> usize {
        self.space.len()
    }

    /// First address of the arena.
    pub fn arena_base(&self) -> usize {
        self.arena.base()
    }

    /// Bytes of the arena.
    pub fn arena_len(&self) -> usize {
        self.arena.len()
    }

    /// The bytes of one arena page.
    ///
    /// # Safety
    /// - the frame is present and the caller is its only user while the borrow lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn frame(&self, frame: FrameId) -> &mut PageBytes {
        let addr = self.frame_addr(frame, 1);
        // SAFETY: inside the arena mapping (checked), page-aligned; presence and exclusiveness are
        // the caller's.
        unsafe { &mut *(addr as *mut PageBytes) }
    }

    /// Bytes of the arena at a byte offset.
    ///
    /// # Safety
    /// - all frames under the range are present, and the caller is the only user of the range.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.arena.len(), "arena range");
        // SAFETY: inside the arena (checked); presence and exclusiveness are the caller's.
        unsafe { core::slice::from_raw_parts_mut((self.arena.base() + offset) as *mut u8, len) }
    }

    #[inline]
    fn frame_addr(&self, frame: FrameId, n: u32) -> usize {
        let at = frame.0 as usize * PAGE_BYTES;
        assert!(at + bytes_of(n) <= self.arena.len(), "arena frame");
        self.arena.base() + at
    }

    #[inline]
    fn page_addr(&self, page: PageId, n: u32) -> usize {
        let at = page.0 as usize * PAGE_BYTES;
        assert!(at + bytes_of(n) <= self.space.len(), "page");
        self.space.base() + at
    }

    /// Pages so far that MOVE had moved and did not tell of: see [`Uffd::move_pages`].
    pub fn untold(&self) -> u64 {
        self.uffd.untold()
    }

    fn count(&self, calls: u64) {
        self.calls.mine().fetch_add(calls, Ordering::Relaxed);
    }

    /// Reads waiting fault messages; see [`Uffd::read`].
    pub fn read(&self, out: &mut [uffd::FaultMessage]) -> Result<usize, Errno> {
        self.uffd.read(out)
    }

    /// Waits for messages; see [`Uffd::wait`].
    pub fn wait(&self, timeout_ms: i32) -> Result<bool, Errno> {
        self.uffd.wait(timeout_ms)
    }
}

/// Bytes of so many pages.
const fn bytes_of(n: u32) -> usize {
    n as usize * PAGE_BYTES
}

/// A fallback that did one page of `n`: says "ask again" for the rest.
fn finish(p: Progress, n: u32) -> Progress {
    if p.stop.is_none() && p.done < bytes_of(n) {
        return Progress { done: p.done, stop: Some(Errno::EAGAIN) };
    }
    p
}

#[cfg(test)]
mod guards_tests;
#[cfg(test)]
mod tests;
