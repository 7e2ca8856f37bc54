//! Raw memory from the kernel: mappings that never pass through a symbol that can be
//! interposed, and flat tables of atomics in them.

use crate::sys::{Errno, syscall};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Bytes in a page. Weir runs on kernels with 4 KiB base pages only; `probe` refuses others.
pub const PAGE_BYTES: usize = 4096;

/// Protection of a mapping: the `PROT_*` bits.
pub type Prot = i32;
/// Read and write.
pub const PROT_RW: Prot = libc::PROT_READ | libc::PROT_WRITE;

/// An anonymous private mapping owned by this value and unmapped when it drops; left out of core files: it
/// holds, or may hold, bytes of the program that the program has excluded.
#[derive(Debug)]
pub struct Mapping {
    base: usize,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes (rounded up to pages) of zeroed memory, readable and writable, without
    /// reserving swap or commit for them.
    pub fn anon(len: usize) -> Result<Mapping, Errno> {
        Self::map(0, len, PROT_RW, 0)
    }

    /// Reserves `len` bytes of address space without access; at `hint` when that range is free
    /// and `hint` is not 0, else fails with EEXIST.
    pub fn reserve(hint: usize, len: usize) -> Result<Mapping, Errno> {
        Self::map(hint, len, libc::PROT_NONE, if hint != 0 { libc::MAP_FIXED_NOREPLACE } else { 0 })
    }

    /// Maps `len` bytes of zeroed memory that forked children share with this process.
    pub fn shared(len: usize) -> Result<Mapping, Errno> {
        Self::map_as(libc::MAP_SHARED, 0, len, PROT_RW, 0)
    }

    fn map(hint: usize, len: usize, prot: Prot, extra: i32) -> Result<Mapping, Errno> {
        Self::map_as(libc::MAP_PRIVATE, hint, len, prot, extra)
    }

    fn map_as(kind: i32, hint: usize, len: usize, prot: Prot, extra: i32) -> Result<Mapping, Errno> {
        let len = round_up_page(len);
        let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | extra;
        // SAFETY: without MAP_FIXED (NOREPLACE never replaces) no existing mapping is touched.
        let base =
            unsafe { syscall(libc::SYS_mmap, [hint, len, prot as usize, flags as usize, usize::MAX, 0])? };
        let mapping = Mapping { base, len };
        if hint != 0 && base != hint {
            return Err(Errno::EEXIST); // kernels before 4.17 take NOREPLACE as a mere hint
        }
        // SAFETY: an advice about core files only.
        unsafe { advise(base, len, libc::MADV_DONTDUMP)? };
        Ok(mapping)
    }

    /// Takes a mapping over again that was forgotten.
    ///
    /// # Safety
    /// - `base` and `len` are those of a `Mapping` that was passed to `mem::forget`, once.
    pub unsafe fn from_raw(base: usize, len: usize) -> Mapping {
        Mapping { base, len }
    }

    /// Its first address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Names the mapping in `/proc/PID/maps` (`[anon:weir-...]`); kernels built without that
    /// feature refuse, which is harmless.
    pub fn name(&self, name: &core::ffi::CStr) {
        const PR_SET_VMA: usize = 0x53564d41;
        const PR_SET_VMA_ANON_NAME: usize = 0;
        // SAFETY: the kernel reads the NUL-terminated name.
        let _ = unsafe {
            syscall(
                libc::SYS_prctl,
                [PR_SET_VMA, PR_SET_VMA_ANON_NAME, self.base, self.len, name.as_ptr() as usize, 0],
            )
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this value; borrows of it end before the drop.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.base, self.len, 0, 0, 0, 0]) };
    }
}

/// Rounds up to whole pages.
pub const fn round_up_page(len: usize) -> usize {
    (len + PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}

/// `mprotect`.
///
/// # Safety
/// - no live reference may be made invalid by losing access to the range.
pub unsafe fn protect(addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_mprotect, [addr, len, prot as usize, 0, 0, 0]).map(|_| ()) }
}

/// `madvise`.
///
/// # Safety
/// - an advice that drops contents (`MADV_DONTNEED`, ...) must not hit memory in use.
pub unsafe fn advise(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_madvise, [addr, len, advice as usize, 0, 0, 0]).map(|_| ()) }
}

/// A word that the kernel wipes in children with a copy of the memory: tells such a child from the process
/// that it is a copy of, without a system call.
#[derive(Debug)]
pub struct OwnMark(Option<Mapping>);

impl OwnMark {
    /// Set for this process. Where the kernel does not wipe (before 4.14), for its children as well.
    pub fn new() -> OwnMark {
        let map = Mapping::anon(PAGE_BYTES).ok();
        // SAFETY: our own fresh mapping.
        let mark =
            OwnMark(map.filter(|m| unsafe { advise(m.base(), PAGE_BYTES, libc::MADV_WIPEONFORK) }.is_ok()));
        mark.set();
        mark
    }

    fn word(&self) -> Option<&AtomicU32> {
        // SAFETY: our own page, mapped as long as this lives; zero is valid.
        self.0.as_ref().map(|m| unsafe { &*(m.base() as *const AtomicU32) })
    }

    /// In a child that has made the copy its own.
    pub fn set(&self) {
        self.word().into_iter().for_each(|w| w.store(1, Ordering::Relaxed));
    }

    /// Whether this is not a copy that nobody knows of.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.word().is_none_or(|w| w.load(Ordering::Relaxed) != 0)
    }
}

impl Default for OwnMark {
    fn default() -> OwnMark {
        OwnMark::new()
    }
}

/// Moves the pages of a range elsewhere and leaves the range mapped and empty (`MREMAP_DONTUNMAP`,
/// kernel 5.7); what was mapped at the destination is replaced.
///
/// Errors: the kernel's, and the destination is mapped, empty and writable; but EEXIST when it is
/// not mapped any more: some errors come after it was unmapped, and then there may be no address
/// space for it (RLIMIT_AS). The place is anybody's from then on.
///
/// # Safety
/// - nobody may rely on the contents of the destination, or on the pages staying at the source.
pub unsafe fn lift(dst: usize, src: usize, len: usize) -> Result<(), Errno> {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) as usize;
    // SAFETY: passed on to the caller.
    let moved = unsafe { syscall(libc::SYS_mremap, [src, len, len, flags, dst, 0]) };
    moved.map(|_| ()).map_err(|e| match Mapping::map(dst, len, PROT_RW, libc::MAP_FIXED_NOREPLACE) {
        Ok(again) => {
            core::mem::forget(again);
            e
        }
        Err(Errno::EEXIST) => e, // it was never unmapped
        Err(_) => Errno::EEXIST,
    })
}

/// Whether this kernel can [`lift`].
pub fn can_lift() -> bool {
    let Ok(m) = Mapping::anon(2 * PAGE_BYTES) else { return false };
    // SAFETY: both pages are ours.
    unsafe { lift(m.base() + PAGE_BYTES, m.base(), PAGE_BYTES).is_ok() }
}

/// Drops the contents of a range: its pages leave RAM, later reads give zeros (or a fault that
/// userfaultfd sees).
///
/// # Safety
/// - nobody may rely on the contents.
pub unsafe fn drop_pages(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe { advise(addr, len, libc::MADV_DONTNEED) }
}

/// Faults in and makes writable every page of the range (kernel 5.14), breaking copy-on-write
/// sharing left by a fork. Contents stay.
///
/// # Safety
/// - the range must be mapped, writable and, if registered with a userfaultfd, present.
pub unsafe fn populate_write(addr: usize, len: usize) -> Result<(), Errno> {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: passed on to the caller.
    match unsafe { advise(addr, len, MADV_POPULATE_WRITE) } {
        Err(Errno::EINVAL) => {
            // Before 5.14: touch each page. A volatile read and write of the same byte.
            for page in (addr..addr + len).step_by(PAGE_BYTES) {
                // SAFETY: mapped and writable by contract; an atomic add of 0 changes nothing.
                let byte = unsafe { &*(page as *const AtomicU8) };
                byte.fetch_add(0, Ordering::Relaxed);
            }
            Ok(())
        }
        other => other,
    }
}

/// Ends `mlockall(MCL_FUTURE)`, if it is in force: mappings from here on are not locked, those that are stay
/// so (where the limit of locked memory forbids even that, none is). Whole tables and reservations would be
/// given RAM otherwise.
///
/// True if it was in force.
pub fn leave_future_unlocked() -> bool {
    let is_on = || {
        Mapping::anon(PAGE_BYTES).is_ok_and(|probe| {
            // SAFETY: our own page. Dropping locked pages is refused.
            unsafe { drop_pages(probe.base(), PAGE_BYTES) == Err(Errno::EINVAL) }
        })
    };
    // Where not even a page may be locked any more, there is no page to try.
    let refused = || Mapping::anon(PAGE_BYTES).err() == Some(Errno::EAGAIN);
    if !is_on() && !refused() {
        return false;
    }
    let current = (libc::MCL_CURRENT | MCL_ONFAULT) as usize;
    // SAFETY: changes which pages may leave RAM, not what they hold.
    unsafe {
        if syscall(libc::SYS_mlockall, [current, 0, 0, 0, 0, 0]).is_err() {
            let _ = syscall(libc::SYS_munlockall, [0; 6]);
        }
    }
    true
}

/// `mlockall`: pages are locked once they are there, none is brought in.
const MCL_ONFAULT: i32 = 4;

/// Which pages of the range are in RAM, one byte each (bit 0), as `mincore` says.
pub fn mincore(addr: usize, len: usize, out: &mut [u8]) -> Result<(), Errno> {
    assert!(out.len() * PAGE_BYTES >= len);
    // SAFETY: the kernel writes one byte per page into the live slice.
    unsafe { syscall(libc::SYS_mincore, [addr, len, out.as_mut_ptr() as usize, 0, 0, 0]).map(|_| ()) }
}

/// Types that are valid when all their bytes are zero and are shared between threads by
/// atomics alone.
///
/// # Safety
/// - the all-zero bit pattern must be a valid value.
pub unsafe trait ZeroValid: Sync {}

// SAFETY: zero is a value of every atomic integer.
unsafe impl ZeroValid for core::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl ZeroValid for AtomicU32 {}
// SAFETY: as above.
unsafe impl ZeroValid for AtomicU8 {}
// SAFETY: an array of valid values.
unsafe impl<T: ZeroValid, const N: usize> ZeroValid for [T; N] {}

/// One cache line of small words, for per-block rows.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line {
    /// Six 32-bit words.
    pub w32: [AtomicU32; 6],
    /// Five 64-bit words.
    pub w64: [core::sync::atomic::AtomicU64; 5],
}
const _: () = assert!(size_of::<Line>() == 64);
// SAFETY: made of values that are valid when zero.
unsafe impl ZeroValid for Line {}

/// A flat table of `T` in its own mapping; rows cost RAM only once touched.
#[derive(Debug)]
pub struct Table<T: ZeroValid> {
    map: Mapping,
    rows: usize,
    _rows: PhantomData<T>,
}

impl<T: ZeroValid> Table<T> {
    /// A table of `rows` zeroed rows.
    pub fn new(rows: usize, name: &core::ffi::CStr) -> Result<Self, Errno> {
        let map = Mapping::anon(rows.max(1) * size_of::<T>())?;
        map.name(name);
        Ok(Table { map, rows, _rows: PhantomData })
    }

    /// As `new`, in memory that forked children share with this process. `T` must hold no address
    /// and no lock that knows one process only.
    pub fn shared(rows: usize, name: &core::ffi::CStr) -> Result<Self, Errno> {
        let map = Mapping::shared(rows.max(1) * size_of::<T>())?;
        map.name(name);
        Ok(Table { map, rows, _rows: PhantomData })
    }

    /// Number of rows.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Where it lies, for size accounting: (first address, bytes).
    pub fn extent(&self) -> (usize, usize) {
        (self.map.base, self.map.len)
    }

    /// Row `i`. Panics when out of range.
    #[inline]
    pub fn row(&self, i: usize) -> &T {
        assert!(i < self.rows, "table row out of range");
        // SAFETY: in bounds of the mapping, aligned (mappings are page-aligned and T's size is a
        // multiple of its alignment), valid when zero, and shared by atomics alone.
        unsafe { &*(self.map.base as *const T).add(i) }
    }
}

/// Page-aligned bytes of the engine's own, zeroed at first; they cost RAM only once touched.
#[derive(Debug)]
pub struct Buffer(Mapping);

impl Buffer {
    /// `len` bytes, rounded up to pages.
    pub fn new(len: usize, name: &core::ffi::CStr) -> Result<Buffer, Errno> {
        let map = Mapping::anon(len.max(1))?;
        map.name(name);
        Ok(Buffer(map))
    }
}

impl core::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the whole mapping, readable, valid as bytes, borrowed as long as `self`.
        unsafe { core::slice::from_raw_parts(self.0.base as *const u8, self.0.len) }
    }
}

impl core::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, writable, and exclusive like the borrow of `self`.
        unsafe { core::slice::from_raw_parts_mut(self.0.base as *mut u8, self.0.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_table_starts_zeroed_and_keeps_what_is_stored() {
        let t: Table<AtomicU64> = Table::new(10_000_000, c"weir-test").unwrap();
        assert_eq!(t.row(9_999_999).load(Ordering::Relaxed), 0);
        t.row(77).store(5, Ordering::Relaxed);
        assert_eq!(t.row(77).load(Ordering::Relaxed), 5);
    }

    #[test]
    fn reserving_a_taken_address_fails_instead_of_replacing() {
        let a = Mapping::anon(8192).unwrap();
        assert_eq!(Mapping::reserve(a.base(), 4096).unwrap_err(), Errno::EEXIST);
    }

    #[test]
    fn a_lift_that_loses_its_destination_says_so_and_one_that_does_not_can_be_repeated() {
        let (src, dst) = (Mapping::anon(16 * PAGE_BYTES).unwrap(), Mapping::anon(16 * PAGE_BYTES).unwrap());
        let (a, b, len) = (src.base(), dst.base(), 8 * PAGE_BYTES);
        let mut seen = [0u8; 8];
        // In a child of its own: the limit counts for all threads of a process.
        // SAFETY: fork; the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a live structure; both ranges are ours.
            let fine = unsafe {
                libc::getrlimit(libc::RLIMIT_AS, &mut limit);
                let before = limit.rlim_cur;
                limit.rlim_cur = PAGE_BYTES as u64;
                libc::setrlimit(libc::RLIMIT_AS, &limit);
                let lost = lift(b, a, len);
                let gone = mincore(b, len, &mut seen) == Err(Errno::ENOMEM);
                limit.rlim_cur = before;
                libc::setrlimit(libc::RLIMIT_AS, &limit);
                (lost == Err(Errno::EEXIST)) == gone && lost.is_err() && lift(b + len, a, len).is_ok()
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        let mut status = 0;
        // SAFETY: a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn memory_to_come_is_no_longer_locked_and_what_was_is() {
        // In a child of its own: it counts for the whole process.
        // SAFETY: fork; the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let locked = |m: &Mapping| {
                // SAFETY: our own page.
                unsafe { drop_pages(m.base(), PAGE_BYTES) == Err(Errno::EINVAL) }
            };
            let fine = || {
                let quiet = !leave_future_unlocked();
                // SAFETY: changes which pages may leave RAM.
                unsafe { syscall(libc::SYS_mlockall, [libc::MCL_FUTURE as usize, 0, 0, 0, 0, 0]) }.ok()?;
                let before = Mapping::anon(PAGE_BYTES).ok()?;
                let was = locked(&before) && leave_future_unlocked();
                let after = Mapping::anon(PAGE_BYTES).ok()?;
                Some(quiet && was && !locked(&after) && !leave_future_unlocked())
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(fine() != Some(true))) };
        }
        let mut status = 0;
        // SAFETY: a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn dropped_pages_read_as_zero() {
        let a = Mapping::anon(4096).unwrap();
        let p = a.base() as *mut u8;
        // SAFETY: our own fresh mapping.
        unsafe {
            *p = 7;
            drop_pages(a.base(), 4096).unwrap();
            assert_eq!(*p, 0);
            populate_write(a.base(), 4096).unwrap();
        }
        let mut out = [0u8; 1];
        mincore(a.base(), 4096, &mut out).unwrap();
        assert_eq!(out[0] & 1, 1);
    }
}
