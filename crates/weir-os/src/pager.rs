//! The kernel's side of a page's travels: two pagers over one interface.
//!
//! *Move*: frames travel by `UFFDIO_MOVE`, contents are never copied (kernel 6.8).
//! *Copy*: pages are write-protected, copied out and dropped, and filled by `UFFDIO_COPY`
//! (kernel 5.7). It does the same job at several times the cost, and also serves pages that MOVE
//! refuses: those whose mapping is not plain read-write.
//!
//! Which act is unsafe: building the pager. Whoever does it hands over two address ranges, the
//! program's space and the frame arena, and promises that frames are only touched by their owner.
//! After that the methods are safe: they check that every range lies inside those two.

use crate::codec::PageBytes;
use crate::mem::{self, Mapping, PAGE_BYTES};
use crate::shards::Shards;
use crate::sys::{Errno, syscall};
use crate::thread;
use crate::uffd::{self, Progress, Uffd, Wake};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages of an arena window: what one mapping surely has, and what is copied at a time.
const CHUNK_PAGES: usize = 64;

/// Moves pages between the program's space and the arena.
#[derive(Debug)]
pub struct KernelPager {
    uffd: Uffd,
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
pub enum Kind {
    /// MOVE where the kernel has it, else copy.
    Auto,
    /// MOVE or fail.
    Move,
    /// Copy.
    Copy,
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
    /// Errors: those of opening the userfaultfd; ENOSYS when `kind` asks for MOVE and the kernel
    /// has none.
    ///
    /// # Safety
    /// - a thread must answer [`KernelPager::read`] from here on, or accesses to the space hang.
    /// - nobody else maps, unmaps or touches the arena.
    pub unsafe fn new(
        kind: Kind,
        intake: Intake,
        space: Mapping,
        arena: Mapping,
        lift_len: usize,
    ) -> Result<KernelPager, Errno> {
        let uffd = Self::open(kind, intake)?;
        let moves = uffd.features() & uffd::MOVE != 0;
        let (nursery, zeros) = (Mapping::anon(PAGE_BYTES)?, Mapping::anon(CHUNK_PAGES * PAGE_BYTES)?);
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
        kind: Kind,
        intake: Intake,
        space: Mapping,
        arena: Mapping,
        lift_len: usize,
    ) -> Result<KernelPager, Errno> {
        // SAFETY: both mappings are owned, the space has no access yet (reserved), so nobody can
        // fault before the owner of the pager opens pages; the arena is touched through it alone.
        unsafe { KernelPager::new(kind, intake, space, arena, lift_len) }
    }

    fn open(kind: Kind, intake: Intake) -> Result<Uffd, Errno> {
        let wanted = match kind {
            Kind::Copy => uffd::PAGEFAULT_FLAG_WP | uffd::THREAD_ID,
            Kind::Auto | Kind::Move => uffd::MOVE | uffd::PAGEFAULT_FLAG_WP | uffd::THREAD_ID,
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
        if !moves && (kind == Kind::Move || !protects) {
            return Err(Errno::ENOSYS);
        }
        Ok(uffd)
    }

    fn register(&self, foreign: &[(usize, usize)]) -> Result<(), Errno> {
        let pages = self.space.len() / PAGE_BYTES;
        let mut at = 0;
        for &(start, end) in foreign.iter().chain([&(pages, pages)]) {
            if start > at {
                let (addr, len) = (self.page_addr(at, start - at), (start - at) * PAGE_BYTES);
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

    /// In the child of a fork: puts a userfaultfd of this process in the place of the parent's,
    /// and registers everything again but for the page ranges (start, end)
    /// in `foreign`, in order, where something else is mapped. Until then missing pages read as zeros.
    pub fn reopen_in_child(&self, foreign: &[(usize, usize)]) -> Result<(), Errno> {
        let fresh = Self::open(if self.moves { Kind::Move } else { Kind::Copy }, self.intake)?;
        self.uffd.replace(fresh);
        self.nursery_busy.store(false, Ordering::Relaxed);
        self.register(foreign)
    }

    /// How faults are announced.
    pub fn intake(&self) -> Intake {
        self.intake
    }

    /// Whether frames travel by MOVE.
    pub fn moves(&self) -> bool {
        self.moves
    }

    /// Whether the kernel still tells of missing pages: not once the program has closed the userfaultfd past
    /// Weir.
    pub fn is_watching(&self) -> bool {
        self.uffd.is_intact()
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
    /// - the frame at `index` is present and the caller is its only user while the borrow lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn frame(&self, index: usize) -> &mut PageBytes {
        let addr = self.slot_addr(index, 1);
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
    fn slot_addr(&self, slot: usize, n: usize) -> usize {
        assert!((slot + n) * PAGE_BYTES <= self.arena.len(), "arena slot");
        self.arena.base() + slot * PAGE_BYTES
    }

    #[inline]
    fn page_addr(&self, page: usize, n: usize) -> usize {
        assert!((page + n) * PAGE_BYTES <= self.space.len(), "page");
        self.space.base() + page * PAGE_BYTES
    }

    /// Pages so far that MOVE had moved and did not tell of: see [`Uffd::move_pages`].
    pub fn untold(&self) -> u64 {
        self.uffd.untold()
    }

    fn count(&self, calls: u64) {
        self.calls.mine().fetch_add(calls, Ordering::Relaxed);
    }

    /// Arena to program: the frames at `slot..` become the pages at `page..`.
    pub fn fill(&self, page: usize, slot: usize, n: usize, wake: Wake) -> Progress {
        let (dst, src, len) = (self.page_addr(page, n), self.slot_addr(slot, n), n * PAGE_BYTES);
        if self.moves {
            self.count(1);
            let p = self.move_exclusive(dst, src, len, false, wake);
            if p.done > 0 || p.stop != Some(Errno::EINVAL) {
                return p;
            }
            // Neighbouring windows may have been lifted one by one: each is a mapping of its own.
            let window = CHUNK_PAGES - slot % CHUNK_PAGES;
            if n > window {
                self.count(1);
                let p = self.move_exclusive(dst, src, window * PAGE_BYTES, false, wake);
                if p.done > 0 || p.stop != Some(Errno::EINVAL) {
                    return finish(p, n);
                }
            }
        }
        // Not plain memory (or no MOVE at all): copy, and give the frame up to keep their number. For a
        // moment there are more frames than the budget has: a window's at most.
        let len = if self.moves { PAGE_BYTES } else { len.min(CHUNK_PAGES * PAGE_BYTES) };
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

    /// A new frame with these bytes becomes the page. Its source is ordinary memory, so no other
    /// processor has to forget a mapping: for single pages cheaper than a move with its TLB flush.
    pub fn fill_copy(&self, page: usize, bytes: &PageBytes, wake: Wake) -> Progress {
        self.count(1);
        // SAFETY: the pager owns the destination; the source is live.
        unsafe { self.uffd.copy(self.page_addr(page, 1), bytes.as_ptr() as usize, PAGE_BYTES, wake) }
    }

    /// Program to arena: the pages at `page..`, all of plain read-write memory, become the frames at
    /// `slot..`; the slots must be empty. Holes are passed over: the mask says which pages surely
    /// arrived; one that is missing from it may still have (see [`KernelPager::settle_slot`]).
    /// Stops where a page cannot leave (EBUSY: pinned; EINVAL: not plain after all).
    pub fn drain(&self, slot: usize, page: usize, n: usize) -> (Progress, u64) {
        let (dst, src, len) = (self.slot_addr(slot, n), self.page_addr(page, n), n * PAGE_BYTES);
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
    /// slots at `slot..` afterwards, holes included, for the price of one call and one TLB flush. The
    /// pages must be of one mapping; the slots empty and in the part that is not watched. Pages in
    /// use by the kernel (direct I/O) move too: the caller knows that there are none.
    ///
    /// Errors: EFAULT or EINVAL when the pages are of several mappings, ENOMEM when the process has
    /// too many mappings; EEXIST when the slots are lost, see [`mem::lift`]: they must not be used
    /// again. Nothing has moved then.
    pub fn lift(&self, slot: usize, page: usize, n: usize) -> Result<(), Errno> {
        let (dst, src, len) = (self.slot_addr(slot, n), self.page_addr(page, n), n * PAGE_BYTES);
        assert!(dst >= self.arena.base() + self.arena.len() - self.lift_len, "lift slot");
        self.count(1);
        // SAFETY: the pager owns both ranges; the destination holds nothing. What the program excludes from
        // core files later must not be in one because it lies here.
        unsafe {
            mem::lift(dst, src, len)?;
            let _ = mem::advise(dst, len, libc::MADV_DONTDUMP);
        }
        Ok(())
    }

    /// As `drain` for one page of a mapping that nobody can write to, which MOVE refuses. The
    /// caller makes sure that it does not become writable meanwhile.
    pub fn drain_readonly(&self, slot: usize, page: usize) -> Progress {
        let (dst, src) = (self.slot_addr(slot, 1), self.page_addr(page, 1));
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
                        // SAFETY: the slot is ours.
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
            // SAFETY: the nursery page was just written; the slot is empty and ours.
            let p = unsafe { self.uffd.move_pages(dst, nursery, PAGE_BYTES, false, Wake::No) };
            if p.done == 0 {
                return p;
            }
            // SAFETY: the bytes are safe in the arena; nobody can change them.
            if let Err(e) = unsafe { mem::drop_pages(src, PAGE_BYTES) } {
                // It stays where it is (locked): the copy is not the page.
                // SAFETY: the slot is ours.
                let _ = unsafe { mem::drop_pages(dst, PAGE_BYTES) };
                return stop(e);
            }
            p
        })
    }

    /// Whether a page that should have arrived in a slot is there. If not (the program had dropped
    /// it by a call that Weir does not see), zeros are put in its place, which is what it reads
    /// as. `mincore` alone cannot tell: it denies pages that the kernel itself swapped out.
    pub fn settle_slot(&self, slot: usize) {
        let _ = self.fill_hole(self.slot_addr(slot, 1));
    }

    /// Puts zeros where no page is. True if there was none.
    fn fill_hole(&self, addr: usize) -> bool {
        self.count(1);
        // SAFETY: our own arena, or a hole of the program, which reads as zeros anyway.
        let p = unsafe { self.uffd.zeropage(addr, PAGE_BYTES, Wake::No) };
        p.done > 0
    }

    /// Which of the slots surely hold a frame now.
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

    fn copy_out_protected(&self, dst: usize, src: usize, len: usize) -> Progress {
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
                // SAFETY: the slots are ours.
                let _ = unsafe { mem::drop_pages(dst, len) };
                stop(e)
            }
        }
    }

    /// Arena to arena: gathers frames into a window.
    pub fn gather(&self, to: usize, from: usize, n: usize) -> Progress {
        let (dst, src, len) = (self.slot_addr(to, n), self.slot_addr(from, n), n * PAGE_BYTES);
        self.count(1);
        if self.moves {
            return self.move_exclusive(dst, src, len, false, Wake::No);
        }
        // Free frames carry no contents worth keeping: give one up, let the other be born.
        // SAFETY: ours by contract; destination slots are empty.
        let r = unsafe { mem::drop_pages(src, len).and_then(|()| mem::populate_write(dst, len)) };
        Progress { done: if r.is_ok() { len } else { 0 }, stop: r.err() }
    }

    /// Maps zeros at `page` unless something is there; EEXIST says that something is.
    pub fn zero(&self, page: usize) -> Progress {
        self.count(1);
        // SAFETY: the pager owns the range.
        unsafe { self.uffd.zeropage(self.page_addr(page, 1), PAGE_BYTES, Wake::Yes) }
    }

    /// Creates `n` zeroed frames in the empty slots at `slot..`.
    pub fn grow(&self, slot: usize, n: usize) -> Result<(), Errno> {
        let dst = self.slot_addr(slot, n);
        if !self.moves {
            // SAFETY: our arena; the slots are empty.
            return unsafe { mem::populate_write(dst, n * PAGE_BYTES) };
        }
        let mut done = 0;
        while done < n {
            let k = (n - done).min(CHUNK_PAGES);
            // SAFETY: the slots are empty and ours.
            let p = unsafe { self.copy_zeros(dst + done * PAGE_BYTES, k, Wake::No) };
            match p.stop {
                Some(e) if p.done == 0 && e != Errno::EAGAIN => return Err(e),
                _ => done += p.done / PAGE_BYTES,
            }
        }
        Ok(())
    }

    /// New frames of zeros become up to [`CHUNK_PAGES`] of the `n` missing pages at `page..`: no other
    /// processor has to forget anything, as with frames that are made in the arena and moved.
    pub fn fill_zeros(&self, page: usize, n: usize, wake: Wake) -> Progress {
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

    /// # Safety
    /// - the destination is the pager's.
    unsafe fn copy_zeros(&self, dst: usize, n: usize, wake: Wake) -> Progress {
        self.count(1);
        // SAFETY: the destination by contract; the source is as long and never written.
        unsafe { self.uffd.copy(dst, self.zeros.base(), n * PAGE_BYTES, wake) }
    }

    fn with_nursery<R>(&self, f: impl FnOnce(usize) -> R) -> R {
        while self.nursery_busy.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        let r = f(self.nursery.base());
        self.nursery_busy.store(false, Ordering::Release);
        r
    }

    /// Gives the frames at `slot..` back to the kernel.
    pub fn shed(&self, slot: usize, n: usize) -> Result<(), Errno> {
        self.count(1);
        // SAFETY: free frames of ours: nobody needs their contents.
        unsafe { mem::drop_pages(self.slot_addr(slot, n), n * PAGE_BYTES) }
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
        finish(unsafe { self.uffd.move_pages(dst, src, here * PAGE_BYTES, false, wake) }, here + 1)
    }

    /// Copies a present page to a missing one, for pages that cannot be moved; costs a frame until
    /// the source is dropped.
    pub fn duplicate(&self, to: usize, from: usize) -> Progress {
        self.count(1);
        // SAFETY: both in the space that the pager owns; the kernel checks the source.
        unsafe { self.uffd.copy(self.page_addr(to, 1), self.page_addr(from, 1), PAGE_BYTES, Wake::Yes) }
    }

    /// Drops pages of the program where they are; their frames go back to the kernel.
    pub fn drop_pages(&self, page: usize, n: usize) -> Result<(), Errno> {
        self.count(1);
        // SAFETY: the program gave these pages up.
        unsafe { mem::drop_pages(self.page_addr(page, n), n * PAGE_BYTES) }
    }

    /// Lets writers through to a page that is there after all (copy mode).
    pub fn unprotect(&self, page: usize) {
        let _ = self.uffd.write_protect(self.page_addr(page, 1), PAGE_BYTES, false, Wake::Yes);
    }

    /// Wakes the threads waiting for these pages.
    pub fn wake(&self, page: usize, n: usize) {
        let _ = self.uffd.wake(self.page_addr(page, n), n * PAGE_BYTES);
    }

    /// Makes accesses to a missing page raise SIGBUS.
    pub fn poison(&self, page: usize) -> Progress {
        // SAFETY: the engine decided that the page's bytes are lost.
        unsafe { self.uffd.poison(self.page_addr(page, 1), PAGE_BYTES) }
    }

    /// Changes the protection of pages of the space. Those that can be used are in core files, if they are to
    /// be: in one mapping with their neighbours all the same.
    pub fn protect(&self, page: usize, n: usize, prot: mem::Prot, dump: bool) -> Result<(), Errno> {
        let dump = dump && prot != libc::PROT_NONE;
        // SAFETY: the program's own pages, at the program's wish.
        unsafe { mem::protect(self.page_addr(page, n), n * PAGE_BYTES, prot)? };
        self.dump(page, n, dump).or_else(|e| if dump { Ok(()) } else { Err(e) })
    }

    /// Whether what is in RAM of pages of the space is in core files.
    pub fn dump(&self, page: usize, n: usize, dump: bool) -> Result<(), Errno> {
        let advice = if dump { libc::MADV_DODUMP } else { libc::MADV_DONTDUMP };
        // SAFETY: an advice about core files only.
        unsafe { mem::advise(self.page_addr(page, n), n * PAGE_BYTES, advice) }
    }

    /// Keeps the frames of pages, which are all there, from being swapped by the kernel. (It must not touch
    /// missing ones, which it would wait for.)
    pub fn lock(&self, page: usize, n: usize) -> Result<(), Errno> {
        const ONFAULT: usize = 1;
        let (addr, len) = (self.page_addr(page, n), n * PAGE_BYTES);
        // SAFETY: changes nothing that the program can see.
        unsafe { syscall(libc::SYS_mlock2, [addr, len, ONFAULT, 0, 0, 0]) }.map(|_| ())
    }

    /// Takes [`KernelPager::lock`] back.
    pub fn unlock(&self, page: usize, n: usize) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { syscall(libc::SYS_munlock, [self.page_addr(page, n), n * PAGE_BYTES, 0, 0, 0, 0]) }
            .map(|_| ())
    }

    /// Reads waiting fault messages; see [`Uffd::read`].
    pub fn read(&self, out: &mut [uffd::FaultMessage]) -> Result<usize, Errno> {
        self.uffd.read(out)
    }

    /// Waits for messages; see [`Uffd::wait`].
    pub fn wait(&self, timeout_ms: i32) -> Result<bool, Errno> {
        self.uffd.wait(timeout_ms)
    }

    /// Replaces whatever is mapped over a part of the space by an empty reservation, watched again.
    pub fn reserve_again(&self, page: usize, n: usize) -> Result<(), Errno> {
        let (addr, len) = (self.page_addr(page, n), n * PAGE_BYTES);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: inside our own space, at the program's wish; the promise made at the start, that
        // faults are answered, holds for the part. NOHUGEPAGE as there.
        unsafe {
            syscall(libc::SYS_mmap, [addr, len, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0])?;
            let _ = mem::advise(addr, len, libc::MADV_NOHUGEPAGE);
            mem::advise(addr, len, libc::MADV_DONTDUMP)?;
            self.uffd.register(addr, len, !self.moves)
        }
    }
}

fn ones(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// A fallback that did one page of `n`: says "ask again" for the rest.
fn finish(p: Progress, n: usize) -> Progress {
    if p.stop.is_none() && p.done < n * PAGE_BYTES {
        return Progress { done: p.done, stop: Some(Errno::EAGAIN) };
    }
    p
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

#[cfg(test)]
mod tests;
