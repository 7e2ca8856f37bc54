//! Files that the program maps: which of their pages are mapped here, how many the kernel has cached, and how
//! they leave RAM.
//!
//! Every act here is harmless wherever it hits: pages that were written to are written back or stay, so an
//! address that means something else by now loses nothing. (`MADV_DONTNEED` would drop the program's own
//! copies of a private mapping, and anonymous memory that came to lie there.)

use crate::file::ShortPath;
use crate::mem::PAGE_BYTES;
use crate::sys::{self, Errno, syscall};
use core::fmt::Write as _;

/// A file by its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// The regular file on a disk that a descriptor names; `None` for devices, for files whose home is RAM, and
/// for those that the program has a lease on: it would be told of whoever opens them.
pub fn on_disk(fd: i32) -> Option<FileId> {
    let id = regular(fd)?;
    if is_leased(fd) {
        return None;
    }
    // SAFETY: plain data, valid when zero.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes into the live structure.
    unsafe { syscall(libc::SYS_fstatfs, [fd as usize, &raw mut about as usize, 0, 0, 0, 0]) }.ok()?;
    const IN_RAM: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6]; // tmpfs, ramfs, hugetlbfs
    (!IN_RAM.contains(&(about.f_type as u32))).then_some(id)
}

fn is_leased(fd: i32) -> bool {
    // SAFETY: no pointers.
    let lease = unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETLEASE as usize, 0, 0, 0, 0]) };
    lease.is_ok_and(|lease| lease as i32 != libc::F_UNLCK)
}

/// Whether all that is written to a descriptor goes behind the file's end, wherever it was to go.
pub fn appends(fd: i32) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.is_ok_and(|flags| flags as i32 & libc::O_APPEND != 0)
}

fn regular(fd: i32) -> Option<FileId> {
    // SAFETY: plain data, valid when zero.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes into the live structure.
    unsafe { syscall(libc::SYS_fstat, [fd as usize, &raw mut about as usize, 0, 0, 0, 0]) }.ok()?;
    let regular = about.st_mode & libc::S_IFMT == libc::S_IFREG;
    regular.then_some(FileId { device: about.st_dev, inode: about.st_ino })
}

/// Gives the calling thread a table of descriptors of its own, empty. What it opens from now on is nobody
/// else's: no number is taken from the program, and closing it ends none of the program's locks. (A process
/// loses its record locks of a file when it closes any descriptor of that file.)
pub fn own_descriptors() -> Result<(), Errno> {
    const UNSHARE: usize = 2;
    // SAFETY: the table is the thread's own once descriptors are closed.
    unsafe { syscall(libc::SYS_close_range, [0, u32::MAX as usize, UNSHARE, 0, 0, 0]) }.map(|_| ())
}

/// A descriptor of the calling thread's table for the file that thread `tid` of this process has at `fd`.
pub fn open_again(tid: u32, fd: i32, id: FileId) -> Option<i32> {
    let mut path = ShortPath::default();
    write!(path, "/proc/self/task/{tid}/fd/{fd}").ok()?;
    let own = path.open(libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY).ok()?;
    if regular(own) == Some(id) {
        return Some(own);
    }
    sys::close(own);
    None
}

fn open_own(name: &str) -> Result<i32, Errno> {
    let mut path = ShortPath::default();
    write!(path, "/proc/thread-self/{name}").map_err(|_| Errno::ENAMETOOLONG)?;
    path.open(libc::O_RDONLY)
}

/// What the calling thread sees of the process's pages; opened in its own table of descriptors.
#[derive(Debug)]
pub struct View {
    pagemap: i32,
    statm: i32,
}

/// A range of pages: first address and end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Address of its first page.
    pub start: u64,
    /// Address behind its last page.
    pub end: u64,
    categories: u64,
}

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    inverted: u64,
    mask: u64,
    any_of: u64,
    returned: u64,
}
const _: () = assert!(size_of::<Scan>() == 96 && size_of::<Run>() == 24);

const PAGEMAP_SCAN: usize = 0xc060_6610;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;

impl View {
    /// Opens it. Errors: `/proc` is not there, or the kernel cannot scan page tables (before 6.7).
    pub fn open() -> Result<View, Errno> {
        let view = View { pagemap: open_own("pagemap")?, statm: open_own("statm")? };
        view.file_pages(0, PAGE_BYTES, |_| {})?;
        Ok(view)
    }

    /// Calls `f` with each run of pages of a range that are mapped here and a file's: not with copies that a
    /// private mapping has of them. Parts that are not mapped are passed over.
    pub fn file_pages(&self, start: usize, end: usize, mut f: impl FnMut(Run)) -> Result<(), Errno> {
        let mut runs = [Run::default(); 128];
        let mut at = start as u64;
        while at < end as u64 {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start: at,
                end: end as u64,
                vec: runs.as_mut_ptr() as u64,
                vec_len: runs.len() as u64,
                mask: IS_FILE | IS_PRESENT,
                returned: IS_FILE | IS_PRESENT,
                ..Scan::default()
            };
            let args = [self.pagemap as usize, PAGEMAP_SCAN, &raw mut scan as usize, 0, 0, 0];
            // SAFETY: the kernel reads and writes the live structure, and writes as many runs as there are.
            let found = unsafe { syscall(libc::SYS_ioctl, args) }?;
            runs[..found].iter().for_each(|run| f(*run));
            if found < runs.len() || scan.walk_end <= at {
                return Ok(());
            }
            at = scan.walk_end;
        }
        Ok(())
    }

    /// Bytes of files and shared memory that are mapped here. A call of a microsecond.
    pub fn mapped_bytes(&self) -> Option<u64> {
        let mut text = [0u8; 128];
        let args = [self.statm as usize, text.as_mut_ptr() as usize, text.len(), 0, 0, 0];
        // SAFETY: the kernel writes into the live buffer.
        let n = unsafe { syscall(libc::SYS_pread64, args) }.ok()?;
        let text = core::str::from_utf8(&text[..n]).ok()?;
        let pages: u64 = text.split_ascii_whitespace().nth(2)?.parse().ok()?;
        Some(pages * PAGE_BYTES as u64)
    }
}

/// What the kernel has cached of a part of a file, in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Cached {
    /// All of them.
    pub pages: u64,
    /// Those not written back yet.
    pub dirty: u64,
    /// Those being written now.
    pub writing: u64,
    evicted: u64,
    evicted_lately: u64,
}

/// Counts what is cached (Linux 6.5); `None` where the kernel does not tell.
pub fn cached(fd: i32, offset: u64, bytes: u64) -> Option<Cached> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let (range, mut cached) = ([offset, bytes], Cached::default());
    let args = [fd as usize, range.as_ptr() as usize, &raw mut cached as usize, 0, 0, 0];
    // SAFETY: the kernel reads two live words and writes the live structure.
    unsafe { syscall(SYS_CACHESTAT, args) }.ok().map(|_| cached)
}

/// Begins to write the dirty pages of a part of a file. Errors of the device go to whom they go anyway: this
/// descriptor is nobody's but the caller's.
pub fn begin_writing(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
    const WRITE: usize = libc::SYNC_FILE_RANGE_WRITE as usize;
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_sync_file_range, [fd as usize, offset as usize, bytes as usize, WRITE, 0, 0]) }
        .map(|_| ())
}

/// Has pages leave RAM that are clean, and mapped by nobody else. All others stay as they are.
pub fn page_out(start: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the advice changes no contents, whatever lies there.
    unsafe { crate::mem::advise(start, bytes, libc::MADV_PAGEOUT) }
}

/// Has pages of a file that are not there read, with as few requests as can be; the caller does not wait.
pub fn will_need(addr: usize, bytes: usize) {
    let start = addr / PAGE_BYTES * PAGE_BYTES;
    let end = crate::mem::round_up_page(addr.saturating_add(bytes));
    // SAFETY: the advice changes no contents, whatever lies there.
    let _ = unsafe { crate::mem::advise(start, end - start, libc::MADV_WILLNEED) };
}

/// Drops cached pages of a part of a file that nobody has mapped: what was read ahead. (A huge page that
/// [`page_out`] had to split is not mapped any more, all of it: its other parts come back without a read.)
pub fn drop_unmapped(fd: i32, offset: u64, bytes: u64) {
    let args = [fd as usize, offset as usize, bytes as usize, libc::POSIX_FADV_DONTNEED as usize, 0, 0];
    // SAFETY: no pointers; an advice.
    let _ = unsafe { syscall(libc::SYS_fadvise64, args) };
}
