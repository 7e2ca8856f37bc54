//! Weir's own userfaultfd layer: open, handshake, register, the fill ioctls and the messages.
//!
//! The public crate has no MOVE and decodes EAGAIN wrongly, so the few structs are here, each
//! with a size assertion. Source: `ioctl_userfaultfd(2)`, `include/uapi/linux/userfaultfd.h`.
//!
//! Partial progress: the fill ioctls report it in a result field. It is the number of bytes done
//! when positive and a negative errno when nothing was done; the return value says EAGAIN in
//! both cases. [`Progress`] keeps the two apart.
//!
//! MOVE of Linux 6.18 does not always tell what it has moved: see [`Uffd::move_pages`].

use crate::fds;
use crate::mem::{self, PAGE_BYTES};
use crate::sys::{self, Errno, syscall, syscall_raw};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:expr),* $(,)?) => {
        $($(#[$doc])* pub const $name: u64 = 1 << $bit;)*
        /// Feature bits with their kernel names, in bit order.
        pub const FEATURES: &[(&str, u64)] = &[$((stringify!($name), $name)),*];
    };
}

features! {
    /// Write-protect faults are reported.
    PAGEFAULT_FLAG_WP = 0,
    /// Forks are announced and the child's descriptor handed over (privileged).
    EVENT_FORK = 1,
    /// `mremap` is announced.
    EVENT_REMAP = 2,
    /// `MADV_DONTNEED` and the like are announced.
    EVENT_REMOVE = 3,
    /// Missing faults on hugetlbfs.
    MISSING_HUGETLBFS = 4,
    /// Missing faults on shared memory.
    MISSING_SHMEM = 5,
    /// `munmap` is announced.
    EVENT_UNMAP = 6,
    /// Faults raise SIGBUS in the faulting thread instead of a message.
    SIGBUS = 7,
    /// Messages carry the faulting thread's id.
    THREAD_ID = 8,
    /// Minor faults on hugetlbfs.
    MINOR_HUGETLBFS = 9,
    /// Minor faults on shared memory.
    MINOR_SHMEM = 10,
    /// Messages carry the address unrounded.
    EXACT_ADDRESS = 11,
    /// Write protection on hugetlbfs and shared memory.
    WP_HUGETLBFS_SHMEM = 12,
    /// Unpopulated anonymous pages can be write-protected.
    WP_UNPOPULATED = 13,
    /// The call `UFFDIO_POISON` exists.
    POISON = 14,
    /// Write-protect faults resolve by themselves.
    WP_ASYNC = 15,
    /// The call `UFFDIO_MOVE` exists.
    MOVE = 16,
}

const UFFD_API: u64 = 0xAA;
const USER_MODE_ONLY: usize = 1;

const fn iowr(nr: u64, size: usize) -> usize {
    ((3u64 << 30) | ((size as u64) << 16) | (0xAA << 8) | nr) as usize
}
const fn ior(nr: u64, size: usize) -> usize {
    ((2u64 << 30) | ((size as u64) << 16) | (0xAA << 8) | nr) as usize
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}
/// `uffdio_copy`, and `uffdio_move`, which has the same shape.
#[repr(C)]
struct CopyArgs {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}
/// `uffdio_zeropage` and `uffdio_poison`.
#[repr(C)]
struct RangeModeDone {
    range: Range,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}
/// One message; the fields of a page fault, which is the only event Weir asks for.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    tid: u32,
    pad: u32,
}

const _: () = {
    assert!(size_of::<Api>() == 24);
    assert!(size_of::<Range>() == 16);
    assert!(size_of::<Register>() == 32);
    assert!(size_of::<CopyArgs>() == 40);
    assert!(size_of::<RangeModeDone>() == 32);
    assert!(size_of::<WriteProtect>() == 24);
    assert!(size_of::<Message>() == 32);
};

const UFFDIO_API: usize = iowr(0x3F, size_of::<Api>());
const UFFDIO_REGISTER: usize = iowr(0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: usize = ior(0x01, size_of::<Range>());
const UFFDIO_WAKE: usize = ior(0x02, size_of::<Range>());
const UFFDIO_COPY: usize = iowr(0x03, size_of::<CopyArgs>());
const UFFDIO_ZEROPAGE: usize = iowr(0x04, size_of::<RangeModeDone>());
const UFFDIO_MOVE: usize = iowr(0x05, size_of::<CopyArgs>());
const UFFDIO_WRITEPROTECT: usize = iowr(0x06, size_of::<WriteProtect>());
const UFFDIO_POISON: usize = iowr(0x08, size_of::<RangeModeDone>());

const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
const MODE_DONTWAKE: u64 = 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
const WRITEPROTECT_MODE_DONTWAKE: u64 = 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WP: u64 = 2;

/// What a fill ioctl achieved: `done` bytes from the start of the range, and why it stopped
/// when that is not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Bytes done, a multiple of the page size.
    pub done: usize,
    /// Why it stopped early; EAGAIN with progress means: ask again at the stop to learn why.
    pub stop: Option<Errno>,
}

impl Progress {
    fn decode(rc: isize, field: i64, len: usize) -> Progress {
        if rc == 0 {
            return Progress { done: len, stop: None };
        }
        let rc = Errno(-rc as i32);
        if field > 0 {
            return Progress { done: (field as usize).min(len), stop: Some(Errno::EAGAIN) };
        }
        let inner = if field < 0 { Errno(-field as i32) } else { rc };
        // The field only speaks when the call says EAGAIN; otherwise it may be what we passed in.
        Progress { done: 0, stop: Some(if rc == Errno::EAGAIN { inner } else { rc }) }
    }
}

/// Bytes from the start of a range whose pages are gone from the source and lie at the destination.
fn moved_at(dst: usize, src: usize, len: usize) -> usize {
    const CHUNK: usize = 64;
    let mut done = 0;
    while done < len {
        let (mut there, mut left) = ([0u8; CHUNK], [1u8; CHUNK]);
        let n = (len - done).min(CHUNK * PAGE_BYTES);
        if mem::mincore(dst + done, n, &mut there).and(mem::mincore(src + done, n, &mut left)).is_err() {
            return done;
        }
        let pages = moved_run(&there, &left).min(n / PAGE_BYTES);
        done += pages * PAGE_BYTES;
        if pages < CHUNK {
            return done;
        }
    }
    done
}

/// Pages from the start that are there and not left behind, of what `mincore` says.
fn moved_run(there: &[u8], left: &[u8]) -> usize {
    there.iter().zip(left).take_while(|(there, left)| **there & 1 == 1 && **left & 1 == 0).count()
}

/// A page fault read from a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultMessage {
    /// Faulting address, rounded down to its page unless EXACT_ADDRESS was asked for.
    pub address: usize,
    /// A write to a write-protected page, not a missing page.
    pub write_protect: bool,
    /// Kernel thread id of the faulting thread (0 without THREAD_ID).
    pub tid: u32,
}

/// Whether to wake the threads that wait for the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Wake waiting threads.
    Yes,
    /// Leave them asleep; a later wake follows.
    No,
}

/// An open userfaultfd. Closing happens on drop.
#[derive(Debug)]
pub struct Uffd {
    fd: AtomicI32,
    features: u64,
    /// Pages that MOVE had moved and did not tell of.
    untold: AtomicU64,
}

impl Uffd {
    /// In the place of one, where something else tells of faults.
    pub fn none() -> Uffd {
        Uffd { fd: AtomicI32::new(-1), features: 0, untold: AtomicU64::new(0) }
    }

    /// Whether this process can open none at all.
    pub fn is_refused() -> bool {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize | USER_MODE_ONLY;
        // SAFETY: flags by value.
        let user_mode = unsafe { syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
        let fd = user_mode.map(|fd| fd as i32).or_else(|_| Self::open_fd());
        fd.map(sys::close).is_err()
    }

    /// Opens a userfaultfd that also serves faults taken inside system calls, and completes the
    /// handshake with all of `wanted` that this kernel offers. Tries `/dev/userfaultfd` first
    /// (file permissions decide), then the system call (capability or sysctl decide).
    ///
    /// Errors: EPERM/EACCES without permission, ENOSYS without the feature.
    pub fn open(wanted: u64) -> Result<Uffd, Errno> {
        let offered = Self::offered(Self::open_fd()?)?;
        let fd = Self::open_fd()?;
        Self::handshake(fd, wanted & offered)
    }

    fn open_fd() -> Result<i32, Errno> {
        const USERFAULTFD_IOC_NEW: usize = 0xAA00;
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        let path = c"/dev/userfaultfd";
        // SAFETY: the path is a NUL-terminated constant; the ioctl takes flags by value.
        let dev = unsafe {
            syscall(
                libc::SYS_openat,
                [
                    libc::AT_FDCWD as usize,
                    path.as_ptr() as usize,
                    (libc::O_RDWR | libc::O_CLOEXEC) as usize,
                    0,
                    0,
                    0,
                ],
            )
        };
        if let Ok(dev) = dev {
            // SAFETY: as above.
            let fd = unsafe { syscall(libc::SYS_ioctl, [dev, USERFAULTFD_IOC_NEW, flags, 0, 0, 0]) };
            sys::close(dev as i32);
            if let Ok(fd) = fd {
                return Ok(fd as i32);
            }
        }
        // SAFETY: flags by value.
        unsafe { syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]).map(|fd| fd as i32) }
    }

    /// Opens a userfaultfd that serves only user-mode faults; needs no privilege.
    pub fn open_user_mode(wanted: u64) -> Result<Uffd, Errno> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize | USER_MODE_ONLY;
        // SAFETY: flags by value.
        let open = || unsafe { syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]).map(|fd| fd as i32) };
        let offered = Self::offered(open()?)?;
        Self::handshake(open()?, wanted & offered)
    }

    /// All feature bits the kernel offers, asked on a descriptor of its own (a handshake cannot
    /// be repeated), which is closed.
    fn offered(fd: i32) -> Result<u64, Errno> {
        let probe = Uffd { fd: AtomicI32::new(fd), features: 0, untold: AtomicU64::new(0) };
        let mut api = Api { api: UFFD_API, features: 0, ioctls: 0 };
        probe.ioctl(UFFDIO_API, &mut api)?;
        Ok(api.features)
    }

    fn handshake(fd: i32, features: u64) -> Result<Uffd, Errno> {
        let mut uffd = Uffd { fd: AtomicI32::new(fd), features, untold: AtomicU64::new(0) };
        let mut api = Api { api: UFFD_API, features, ioctls: 0 };
        uffd.ioctl(UFFDIO_API, &mut api)?;
        uffd.features = features;
        uffd.fd = AtomicI32::new(fds::keep(uffd.fd()));
        Ok(uffd)
    }

    /// In the child of a fork: goes on with another one, of the same features; the parent's is closed.
    pub fn replace(&self, fresh: Uffd) {
        let fd = fresh.fd.swap(-1, Ordering::Relaxed);
        fds::close(self.fd.swap(fd, Ordering::Relaxed));
    }

    /// Whether the descriptor still names this userfaultfd: once the program has closed it past Weir, nobody
    /// watches its memory.
    pub fn is_intact(&self) -> bool {
        fds::is_intact(self.fd())
    }

    /// The descriptor's number, for those who must not close it.
    #[inline]
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Features that were agreed on.
    pub fn features(&self) -> u64 {
        self.features
    }

    fn ioctl<T>(&self, nr: usize, args: &mut T) -> Result<(), Errno> {
        match self.ioctl_raw(nr, args) {
            0.. => Ok(()),
            e => Err(Errno(-e as i32)),
        }
    }

    fn ioctl_raw<T>(&self, nr: usize, args: &mut T) -> isize {
        // SAFETY: `args` is the live struct whose size the ioctl number encodes. What the call does
        // to the address space is the business of the public methods, which say so.
        unsafe {
            syscall_raw(
                libc::SYS_ioctl,
                [self.fd() as usize, nr, core::ptr::from_mut(args) as usize, 0, 0, 0],
            )
        }
    }

    /// Registers a range for missing faults, and for write-protect faults if `write_protect`.
    ///
    /// # Safety
    /// - somebody must answer the faults from here on, or every access blocks for ever.
    pub unsafe fn register(&self, start: usize, len: usize, write_protect: bool) -> Result<(), Errno> {
        let mode = REGISTER_MODE_MISSING | if write_protect { REGISTER_MODE_WP } else { 0 };
        let range = Range { start: start as u64, len: len as u64 };
        self.ioctl(UFFDIO_REGISTER, &mut Register { range, mode, ioctls: 0 })
    }

    /// Ends the registration of a range; waiting threads are woken and fault again.
    ///
    /// # Safety
    /// - pages that are not present read as zeros from now on.
    pub unsafe fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.ioctl(UFFDIO_UNREGISTER, &mut Range { start: start as u64, len: len as u64 })
    }

    /// Wakes every thread that waits for a page of the range.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut Range { start: start as u64, len: len as u64 })
    }

    /// Moves present pages from `src` to `dst`, contents untouched; the source becomes missing.
    /// Both ranges must lie in one writable private anonymous VMA each, with the same protection,
    /// and the destination must be registered here and empty.
    ///
    /// Linux 6.18, which moves several pages under one hold of the page tables' locks, forgets to clear the
    /// error of a try that it repeats (EAGAIN: an entry changed while it waited for the page's lock, as when
    /// something else looks for idle pages). The next try moves pages, counts for nothing, and is made again:
    /// EEXIST, from pages that lie at the destination by then. Believing it loses them. So whenever the call
    /// stops short, the pages behind the stop are looked at: what is gone from the source and lies at the
    /// destination, which was empty, has been moved.
    ///
    /// # Safety
    /// - the owner of the source pages gives them up; the destination gains their bytes.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, holes: bool, wake: Wake) -> Progress {
        let mode = if holes { MOVE_MODE_ALLOW_SRC_HOLES } else { 0 } | dontwake(wake);
        let told = self.ask_to_move(dst, src, len, mode);
        match told.stop {
            Some(Errno::EEXIST | Errno::EAGAIN) => self.with_untold(dst, src, len, told, wake),
            _ => told,
        }
    }

    /// One MOVE, and what it told.
    fn ask_to_move(&self, dst: usize, src: usize, len: usize, mode: u64) -> Progress {
        let mut a = CopyArgs { dst: dst as u64, src: src as u64, len: len as u64, mode, done: 0 };
        let rc = self.ioctl_raw(UFFDIO_MOVE, &mut a);
        Progress::decode(rc, a.done, len)
    }

    /// What MOVE has done, beyond what it told.
    fn with_untold(&self, dst: usize, src: usize, len: usize, told: Progress, wake: Wake) -> Progress {
        let mut done = told.done;
        loop {
            done += moved_at(dst + done, src + done, len - done);
            if done == len || !self.moved_unseen(dst + done, src + done) {
                break;
            }
            done += PAGE_BYTES;
        }
        let more = done - told.done;
        if more == 0 {
            return told;
        }
        self.untold.fetch_add((more / PAGE_BYTES) as u64, Ordering::Relaxed);
        if wake == Wake::Yes {
            // An error would mean that the range is not registered here, and then nobody waits.
            let _ = self.wake(dst + told.done, more);
        }
        Progress { done, stop: (done < len).then_some(Errno::EAGAIN) }
    }

    /// Whether a page that `mincore` sees at neither end is at the destination: the kernel swapped it out
    /// itself. MOVE looks there first. It moves the page now if it was still at the source.
    fn moved_unseen(&self, dst: usize, src: usize) -> bool {
        let (mut there, mut left) = ([0u8], [0u8]);
        let seen = mem::mincore(dst, PAGE_BYTES, &mut there).and(mem::mincore(src, PAGE_BYTES, &mut left));
        if seen.is_ok() && (there[0] | left[0]) & 1 == 1 {
            return false; // it is where it was, or something else was there before
        }
        let told = self.ask_to_move(dst, src, PAGE_BYTES, dontwake(Wake::No));
        matches!(told.stop, None | Some(Errno::EEXIST))
    }

    /// Pages so far that MOVE had moved and did not tell of.
    pub fn untold(&self) -> u64 {
        self.untold.load(Ordering::Relaxed)
    }

    /// Fills missing pages at `dst` with copies of `src`.
    ///
    /// # Safety
    /// - `src` must be readable; the destination gains its bytes.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize, wake: Wake) -> Progress {
        let mut a =
            CopyArgs { dst: dst as u64, src: src as u64, len: len as u64, mode: dontwake(wake), done: 0 };
        let rc = self.ioctl_raw(UFFDIO_COPY, &mut a);
        Progress::decode(rc, a.done, len)
    }

    /// Maps the zero page at every missing page of the range.
    ///
    /// # Safety
    /// - the destination gains zeros.
    pub unsafe fn zeropage(&self, dst: usize, len: usize, wake: Wake) -> Progress {
        let range = Range { start: dst as u64, len: len as u64 };
        let mut a = RangeModeDone { range, mode: dontwake(wake), done: 0 };
        let rc = self.ioctl_raw(UFFDIO_ZEROPAGE, &mut a);
        Progress::decode(rc, a.done, len)
    }

    /// Makes every access to the missing pages of the range raise SIGBUS.
    ///
    /// # Safety
    /// - the program loses these pages.
    pub unsafe fn poison(&self, dst: usize, len: usize) -> Progress {
        let range = Range { start: dst as u64, len: len as u64 };
        let mut a = RangeModeDone { range, mode: 0, done: 0 };
        let rc = self.ioctl_raw(UFFDIO_POISON, &mut a);
        Progress::decode(rc, a.done, len)
    }

    /// Write-protects (or opens again) the present pages of a range registered for it.
    pub fn write_protect(&self, start: usize, len: usize, on: bool, wake: Wake) -> Result<(), Errno> {
        let range = Range { start: start as u64, len: len as u64 };
        // WP and DONTWAKE exclude each other: protecting wakes nobody anyway.
        let mode = match (on, wake) {
            (true, _) => WRITEPROTECT_MODE_WP,
            (false, Wake::Yes) => 0,
            (false, Wake::No) => WRITEPROTECT_MODE_DONTWAKE,
        };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteProtect { range, mode })
    }

    /// Reads waiting messages into `out` and returns the faults among them. `Ok(0)` means that
    /// nothing waits.
    pub fn read(&self, out: &mut [FaultMessage]) -> Result<usize, Errno> {
        let mut buf = [Message::default(); 32];
        let want = buf.len().min(out.len());
        // SAFETY: the kernel writes at most `want` whole messages into the live buffer.
        let r = unsafe {
            syscall(
                libc::SYS_read,
                [self.fd() as usize, buf.as_mut_ptr() as usize, want * size_of::<Message>(), 0, 0, 0],
            )
        };
        let bytes = match r {
            Ok(n) => n,
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(e) => return Err(e),
        };
        let mut n = 0;
        for m in &buf[..bytes / size_of::<Message>()] {
            if m.event == EVENT_PAGEFAULT {
                out[n] = FaultMessage {
                    address: m.address as usize,
                    write_protect: m.flags & FLAG_WP != 0,
                    tid: m.tid,
                };
                n += 1;
            }
        }
        Ok(n)
    }

    /// Sleeps until a message waits or `timeout_ms` passed (negative: for ever).
    pub fn wait(&self, timeout_ms: i32) -> Result<bool, Errno> {
        let timeout_ns = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
        match sys::poll(self.fd(), libc::POLLIN, timeout_ns) {
            Ok(events) => Ok(events != 0),
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        fds::close(*self.fd.get_mut());
    }
}

fn dontwake(wake: Wake) -> u64 {
    match wake {
        Wake::Yes => 0,
        Wake::No => MODE_DONTWAKE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_partial_success_from_an_error_in_the_field() {
        let all = Progress::decode(0, 8192, 8192);
        assert_eq!(all, Progress { done: 8192, stop: None });
        let part = Progress::decode(-11, 4096, 8192);
        assert_eq!(part, Progress { done: 4096, stop: Some(Errno::EAGAIN) });
        let none = Progress::decode(-11, -11, 8192);
        assert_eq!(none, Progress { done: 0, stop: Some(Errno::EAGAIN) });
        let named = Progress::decode(-17, -17, 8192);
        assert_eq!(named, Progress { done: 0, stop: Some(Errno::EEXIST) });
        let stale_field = Progress::decode(-22, 0, 8192);
        assert_eq!(stale_field, Progress { done: 0, stop: Some(Errno::EINVAL) });
    }

    #[test]
    fn pages_count_as_moved_up_to_the_first_that_is_missing_there_or_still_here() {
        assert_eq!(moved_run(&[1, 1, 1], &[0, 0, 0]), 3);
        assert_eq!(moved_run(&[1, 0, 1], &[0, 0, 0]), 1, "a hole at both ends is no page");
        assert_eq!(moved_run(&[1, 1, 1], &[0, 0, 1]), 2, "something else was there before");
        assert_eq!(moved_run(&[0xff, 1], &[0xfe, 0]), 2, "other bits say nothing");
        assert_eq!(moved_run(&[0], &[0]), 0);
    }

    #[test]
    fn ioctl_numbers_are_the_kernels() {
        assert_eq!(UFFDIO_API, 0xc018aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020aa00);
        assert_eq!(UFFDIO_COPY, 0xc028aa03);
        assert_eq!(UFFDIO_MOVE, 0xc028aa05);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xc018aa06);
        assert_eq!(UFFDIO_WAKE, 0x8010aa02);
    }
}
