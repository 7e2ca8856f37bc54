//! The engine's only doors to the kernel: the traits [`Pager`] and [`BlockIo`], implemented by
//! [`weir_os::pager::KernelPager`] and [`weir_os::fileio::FileIo`], and by the fakes that the unit tests
//! drive.

use crate::page::{FrameId, PageId};
use weir_os::codec::PageBytes;
use weir_os::fileio::FileIo;
pub use weir_os::fileio::{Read, Write};
use weir_os::pager::KernelPager;
use weir_os::sys::Errno;
use weir_os::uffd::{Progress, Wake};

/// Pages done from the start of a run, and why it stopped when that is not all of them. EAGAIN
/// with progress: ask again at the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Done {
    /// Pages done.
    pub pages: u32,
    /// Why it stopped early.
    pub stop: Option<Errno>,
}

/// Moves pages between the program's space and the frame arena. Every method leaves the number of
/// frames as it is, but for `grow`, `fill_copy`, `fill_zeros` and `shed`.
pub trait Pager: Sync {
    /// The device under the swap file of engines with this pager.
    type Disk: BlockIo + core::fmt::Debug;
    /// Arena to program: frames at `frame..` become pages at `page..`.
    fn fill(&self, page: PageId, frame: FrameId, n: u32, wake: Wake) -> Done;
    /// A new frame with these bytes becomes the page: one frame more than before.
    fn fill_copy(&self, page: PageId, bytes: &PageBytes, wake: Wake) -> Done;
    /// New frames of zeros become the pages, at least one or an error: so many frames more than before.
    fn fill_zeros(&self, page: PageId, n: u32, wake: Wake) -> Done;
    /// Program to arena, into empty places, passing over holes; plain read-write memory only. The mask
    /// tells which pages surely arrived; `settle_frame` settles the others. Stops with EBUSY: pinned;
    /// ENOENT: nothing mapped; EINVAL: not plain memory.
    fn drain(&self, frame: FrameId, page: PageId, n: u32) -> (Done, u64);
    /// Program to arena, everything in the pages with its holes, by one call; see
    /// [`KernelPager::lift`]. An error: nothing moved; EEXIST: and the places are lost.
    fn lift(&self, frame: FrameId, page: PageId, n: u32) -> Result<(), Errno>;
    /// Whether `drain` passes over holes for free; otherwise only runs without holes are asked for.
    fn sweeps_holes(&self) -> bool;
    /// Whether pages are copied on their way, so that it is cheaper to drop them where they are.
    fn copies(&self) -> bool;
    /// As `drain` for one page that nobody can write to. ENOENT: a hole, which is zeros now.
    fn drain_readonly(&self, frame: FrameId, page: PageId) -> Done;
    /// Puts zeros into a place that should hold a frame and does not.
    fn settle_frame(&self, frame: FrameId);
    /// Arena to arena, for free frames.
    fn gather(&self, to: FrameId, from: FrameId, n: u32) -> Done;
    /// Maps zeros where nothing is; EEXIST where something is.
    fn zero(&self, page: PageId) -> Done;
    /// Creates zeroed frames in empty places.
    fn grow(&self, frame: FrameId, n: u32) -> Result<(), Errno>;
    /// Gives frames back to the kernel.
    fn shed(&self, frame: FrameId, n: u32) -> Result<(), Errno>;
    /// Copies a present page to a missing one; costs a frame until the source is dropped.
    fn duplicate(&self, to: PageId, from: PageId) -> Done;
    /// Drops the program's pages where they are; their frames go back to the kernel.
    fn drop_pages(&self, page: PageId, n: u32) -> Result<(), Errno>;
    /// Lets writers through to a page that is there.
    fn unprotect(&self, page: PageId);
    /// Wakes threads waiting for pages.
    fn wake(&self, page: PageId, n: u32);
    /// Changes the program's protection of pages, and whether they are in core files.
    fn protect(&self, page: PageId, n: u32, prot: i32, dump: bool) -> Result<(), Errno>;
    /// Whether pages are in core files.
    fn dump(&self, page: PageId, n: u32, dump: bool) -> Result<(), Errno>;
    /// Keeps the kernel from swapping pages that are there, or not any more; such pages cannot move.
    fn lock(&self, page: PageId, n: u32, lock: bool) -> Result<(), Errno>;
    /// Replaces whatever is mapped over a part of the space by an empty, watched reservation.
    fn reserve_again(&self, page: PageId, n: u32) -> Result<(), Errno>;
    /// Makes accesses to a missing page raise SIGBUS.
    fn poison(&self, page: PageId) -> Done;
    /// Page-moving calls made.
    fn calls(&self) -> u64;
    /// Pages that MOVE had moved and did not tell of; counted as moved.
    fn untold(&self) -> u64;
    /// The bytes of one frame.
    ///
    /// # Safety
    /// - the frame is present and the caller its only user while the borrow lives.
    #[expect(unsafe_code, reason = "declares the contract of lending a frame")]
    #[allow(clippy::mut_from_ref)]
    unsafe fn frame(&self, frame: FrameId) -> &mut PageBytes;
    /// Bytes of the arena at a byte offset.
    ///
    /// # Safety
    /// - the frames under it are present and the caller the only user of the range.
    #[expect(unsafe_code, reason = "declares the contract of lending pool bytes")]
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8];
}

/// Bytes at offsets of a fixed-size device. Offsets, lengths and addresses are multiples of `align`.
/// Everything may be called from any thread at any time, also from a signal handler; nobody waits for
/// anybody else's request. Errors are those that remained after repeating what can be repeated.
pub trait BlockIo: Sync {
    /// Alignment of I/O in bytes, a power of two, at most a page.
    fn align(&self) -> usize;
    /// Fills `bytes`.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno>;
    /// Writes all of `bytes`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno>;
    /// Makes all reads, several in flight where that is possible.
    fn read_many(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.outcome = self.read_at(read.offset, read.bytes);
        }
    }
    /// Makes all writes, several in flight where that is possible.
    fn write_many(&self, writes: &mut [Write<'_>]) {
        for write in writes {
            write.outcome = self.write_at(write.offset, write.bytes);
        }
    }
    /// Gives the space under a range back; it must be allocated again before it is written. EOPNOTSUPP: not
    /// here.
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno>;
    /// Makes sure of the space under a range that was punched, or never had any.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), Errno>;
    /// Claims a number for this process until it ends, by whatever way, or `unclaim`; `false`: another
    /// process has it.
    fn claim(&self, number: u32) -> bool;
    /// Gives a claim up.
    fn unclaim(&self, number: u32);
}

impl BlockIo for FileIo {
    fn align(&self) -> usize {
        self.file().granted().align
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        FileIo::read_at(self, offset, bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        FileIo::write_at(self, offset, bytes)
    }
    fn read_many(&self, reads: &mut [Read<'_>]) {
        FileIo::read_many(self, reads);
    }
    fn write_many(&self, writes: &mut [Write<'_>]) {
        FileIo::write_many(self, writes);
    }
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.file().punch(offset, len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.file().allocate(offset, len)
    }
    fn claim(&self, number: u32) -> bool {
        self.file().claim(number)
    }
    fn unclaim(&self, number: u32) {
        self.file().unclaim(number);
    }
}

fn done(p: Progress) -> Done {
    Done { pages: (p.done / weir_os::mem::PAGE_BYTES) as u32, stop: p.stop }
}

impl Pager for KernelPager {
    type Disk = FileIo;
    fn fill(&self, page: PageId, frame: FrameId, n: u32, wake: Wake) -> Done {
        done(KernelPager::fill(self, page, frame, n, wake))
    }
    fn fill_copy(&self, page: PageId, bytes: &PageBytes, wake: Wake) -> Done {
        done(KernelPager::fill_copy(self, page, bytes, wake))
    }
    fn fill_zeros(&self, page: PageId, n: u32, wake: Wake) -> Done {
        done(KernelPager::fill_zeros(self, page, n, wake))
    }
    fn drain(&self, frame: FrameId, page: PageId, n: u32) -> (Done, u64) {
        let (p, moved) = KernelPager::drain(self, frame, page, n);
        (done(p), moved)
    }
    fn lift(&self, frame: FrameId, page: PageId, n: u32) -> Result<(), Errno> {
        KernelPager::lift(self, frame, page, n)
    }
    fn sweeps_holes(&self) -> bool {
        self.moves()
    }
    fn copies(&self) -> bool {
        !self.moves()
    }
    fn drain_readonly(&self, frame: FrameId, page: PageId) -> Done {
        done(KernelPager::drain_readonly(self, frame, page))
    }
    fn settle_frame(&self, frame: FrameId) {
        KernelPager::settle_frame(self, frame);
    }
    fn gather(&self, to: FrameId, from: FrameId, n: u32) -> Done {
        done(KernelPager::gather(self, to, from, n))
    }
    fn zero(&self, page: PageId) -> Done {
        done(KernelPager::zero(self, page))
    }
    fn grow(&self, frame: FrameId, n: u32) -> Result<(), Errno> {
        KernelPager::grow(self, frame, n)
    }
    fn shed(&self, frame: FrameId, n: u32) -> Result<(), Errno> {
        KernelPager::shed(self, frame, n)
    }
    fn duplicate(&self, to: PageId, from: PageId) -> Done {
        done(KernelPager::duplicate(self, to, from))
    }
    fn drop_pages(&self, page: PageId, n: u32) -> Result<(), Errno> {
        KernelPager::drop_pages(self, page, n)
    }
    fn unprotect(&self, page: PageId) {
        KernelPager::unprotect(self, page);
    }
    fn wake(&self, page: PageId, n: u32) {
        KernelPager::wake(self, page, n);
    }
    fn protect(&self, page: PageId, n: u32, prot: i32, dump: bool) -> Result<(), Errno> {
        KernelPager::protect(self, page, n, prot, dump)
    }
    fn dump(&self, page: PageId, n: u32, dump: bool) -> Result<(), Errno> {
        KernelPager::dump(self, page, n, dump)
    }
    fn lock(&self, page: PageId, n: u32, lock: bool) -> Result<(), Errno> {
        let call = if lock { KernelPager::lock } else { KernelPager::unlock };
        call(self, page, n)
    }
    fn reserve_again(&self, page: PageId, n: u32) -> Result<(), Errno> {
        KernelPager::reserve_again(self, page, n)
    }
    fn poison(&self, page: PageId) -> Done {
        done(KernelPager::poison(self, page))
    }
    fn calls(&self) -> u64 {
        KernelPager::calls(self)
    }
    fn untold(&self) -> u64 {
        KernelPager::untold(self)
    }
    #[expect(unsafe_code, reason = "passes the contract on")]
    unsafe fn frame(&self, frame: FrameId) -> &mut PageBytes {
        // SAFETY: passed on to the caller.
        unsafe { KernelPager::frame(self, frame) }
    }
    #[expect(unsafe_code, reason = "passes the contract on")]
    unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: passed on to the caller.
        unsafe { KernelPager::bytes(self, offset, len) }
    }
}

/// Lends the bytes of a frame that the caller owns: allocated to it, or staged under a block lock
/// that it holds.
#[expect(unsafe_code, reason = "ownership of frames is tracked by the allocator and block locks")]
#[inline]
pub fn with_frame<P: Pager, R>(pager: &P, frame: FrameId, f: impl FnOnce(&mut PageBytes) -> R) -> R {
    // SAFETY: present and exclusive, because the allocator or the block lock says so.
    f(unsafe { pager.frame(frame) })
}

/// Lends bytes of a pool record that the caller owns: just reserved, or named by a page word whose
/// block lock it holds.
#[expect(unsafe_code, reason = "ownership of pool records follows page words and their locks")]
#[inline]
pub fn with_bytes<P: Pager, R>(pager: &P, offset: usize, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    // SAFETY: pool windows stay whole while a record lies in them; exclusive by the block lock.
    f(unsafe { pager.bytes(offset, len) })
}
