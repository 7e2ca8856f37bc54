//! A region: a slice of bytes that may be larger than the budget.

use super::errors::{AllocError, PinError, RangeError};
use super::inner::{Inner, pages};
use crate::page::region::Access;
use core::fmt;
use core::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use core::ptr::NonNull;
use std::sync::Arc;
use weir_os::mem::PAGE_BYTES;

/// Memory of a pool, as a slice of bytes: zeros at first, aligned to 256 KiB, given back when it drops.
///
/// An access to a page that is out waits until it is in. That holds for system calls as well: a region can be
/// read into, written from, and sent. For what the kernel goes on using after a page was found (`O_DIRECT`,
/// `io_uring` with registered buffers, RDMA) that takes the pager `move` (Linux 6.8): with `copy` the page
/// may leave meanwhile, and what is written to it then is lost. A [pinned](Region::pin) range does not leave.
///
/// A page that the swap file does not give back as it was written (a broken disk) is SIGBUS for whoever
/// accesses it; before Linux 6.6 the process ends with a message.
pub struct Region {
    at: NonNull<u8>,
    len: usize,
    pool: Arc<Inner>,
}

#[expect(unsafe_code, reason = "a region is owned memory, as a boxed slice is")]
// SAFETY: the bytes belong to the region alone, and no thread has a part in them: any thread may use them,
// and any may give them back. The pool is shared by design.
unsafe impl Send for Region {}
#[expect(unsafe_code, reason = "a region is owned memory, as a boxed slice is")]
// SAFETY: a shared region gives out shared slices only; what its other methods do (bring pages in, send them
// out, pin them) changes where bytes are and never what they are.
unsafe impl Sync for Region {}

/// How a range is going to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// As usual: the pool finds out.
    Normal,
    /// From one end to the other: more is fetched ahead.
    Sequential,
    /// At places that have nothing to do with each other: nothing is fetched ahead.
    Random,
    /// Soon: it is fetched now, as far as there is room.
    WillNeed,
    /// Not soon: it leaves first.
    Cold,
}

fn pointer(addr: usize) -> NonNull<u8> {
    NonNull::new(addr as *mut u8).expect("nothing is mapped at address 0")
}

impl Region {
    pub(super) fn new(pool: Arc<Inner>, addr: usize, len: usize) -> Region {
        Region { at: pointer(addr), len, pool }
    }

    fn addr(&self) -> usize {
        self.at.as_ptr() as usize
    }

    /// A range of the region's bytes, which are there.
    pub(super) fn bytes(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, RangeError> {
        if !self.pool.is_here() {
            return Err(RangeError::Forked);
        }
        let range = self.range(range)?;
        Ok(range.start - self.addr()..range.end - self.addr())
    }

    /// The addresses of a range of the region's bytes.
    fn range(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, RangeError> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            return Err(RangeError::Outside { start, end, len: self.len });
        }
        Ok(self.addr() + start..self.addr() + end)
    }

    /// The whole pages around a range; empty for an empty one.
    fn pages(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, RangeError> {
        let range = self.range(range)?;
        if range.is_empty() { Ok(range) } else { Ok(pages(range.start, range.len())) }
    }

    /// Brings a range in, as far as there is room without sending others out: [`Advice::WillNeed`].
    ///
    /// # Errors
    /// A range that is not within the region.
    pub fn prefetch(&self, range: impl RangeBounds<usize>) -> Result<(), RangeError> {
        self.advise(range, Advice::WillNeed)
    }

    /// Says how a range is going to be used. Advice changes no bytes, and holds for whole pages.
    ///
    /// # Errors
    /// A range that is not within the region.
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<(), RangeError> {
        let range = self.pages(range)?;
        self.pool.with_pages(range, |engine, addr, len| match advice {
            Advice::Normal => engine.set_access(addr, len, Access::Any),
            Advice::Sequential => engine.set_access(addr, len, Access::Sequential),
            Advice::Random => engine.set_access(addr, len, Access::Random),
            Advice::WillNeed => engine.will_need(addr, len),
            Advice::Cold => engine.page_out(addr, len),
        })
    }

    /// The bytes of a range become zeros, and take no room any more, but for what is not a whole page.
    ///
    /// # Errors
    /// A range that is not within the region, or of which some is pinned: it stays as it is.
    pub fn discard(&mut self, range: impl RangeBounds<usize>) -> Result<(), RangeError> {
        let range = self.range(range)?;
        if !range.is_empty() && self.pool.any_pinned(&range) {
            return Err(RangeError::Pinned);
        }
        let first = range.start.next_multiple_of(PAGE_BYTES).min(range.end);
        let last = (range.end / PAGE_BYTES * PAGE_BYTES).max(first);
        let base = self.addr();
        self.pool.with_pages(first..last, |engine, addr, len| engine.drop_contents(addr, len))?;
        self.zero(range.start - base..first - base);
        self.zero(last - base..range.end - base);
        Ok(())
    }

    /// Writes zeros. Makes no slice of more than these bytes: C programs may be using others.
    #[expect(unsafe_code, reason = "bytes of the region alone")]
    fn zero(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: within the region (checked), which is borrowed exclusively.
        unsafe { self.at.add(range.start).write_bytes(0, range.len()) };
    }

    /// Brings a range in and keeps it in RAM, by whole pages, until the guard drops. At most half of the
    /// budget's frames can be pinned. The kernel locks the pages as well, which RLIMIT_MEMLOCK bounds for
    /// processes without CAP_IPC_LOCK.
    ///
    /// # Errors
    /// More than is free for that (the error says how much is); a range that is not within the region; the
    /// kernel's refusal.
    pub fn pin(&self, range: impl RangeBounds<usize>) -> Result<Guard, PinError> {
        let range = self.pages(range)?;
        let bytes = range.len();
        let number = self.pool.pin(range)?;
        Ok(Guard { pool: Arc::clone(&self.pool), number, bytes })
    }

    /// The region gets another length: its bytes stay, new ones are zeros. Pages are not copied; the address
    /// may change. What was advised for its first page holds for all of it from then on.
    ///
    /// # Errors
    /// As [`Pool::alloc`](super::Pool::alloc), and where any of it is pinned. The region is as before then.
    pub fn resize(&mut self, len: usize) -> Result<(), AllocError> {
        let addr = self.pool.resize(self.addr(), self.len, len)?;
        let before = self.len;
        self.at = pointer(addr);
        self.len = len;
        self.zero(before.min(len)..before.next_multiple_of(PAGE_BYTES).min(len));
        Ok(())
    }

    /// Its first byte, for code that wants an address. Valid until the region drops or changes its length.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at.as_ptr()
    }
}

#[expect(unsafe_code, reason = "the region's memory as a slice")]
impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the engine mapped `len` bytes, readable and writable, at this address for this region
        // alone; they are mapped until it drops, and were zeros at first. Whether a page is in RAM is not to
        // be seen: an access waits for it.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

#[expect(unsafe_code, reason = "the region's memory as a slice")]
impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow of the region is exclusive, and nobody else has the address.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.pool.free(self.addr(), self.len);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its bytes: there may be more of them than RAM.
        f.debug_struct("Region").field("at", &self.at).field("len", &self.len).finish()
    }
}

/// A range that stays in RAM until this drops. It does not keep the region: when that goes, the pin ends.
#[derive(Debug)]
#[must_use = "the range is pinned until the guard drops"]
pub struct Guard {
    pool: Arc<Inner>,
    number: u64,
    bytes: usize,
}

impl Guard {
    /// Bytes of the pages that it pins.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pool.unpin(self.number);
    }
}
