//! The few kernel calls that the `weir` command needs beyond the standard library: swap areas, access checks,
//! and plain memory and mapped files for its workloads.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

fn path_text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts swapping on a prepared device or file, with a priority (0 to 32767) above everything of lower
/// number.
pub fn swap_on(path: &Path, priority: u16) -> io::Result<()> {
    const SWAP_FLAG_PREFER: i32 = 0x8000;
    let path = path_text(path)?;
    // SAFETY: the path is a terminated string that outlives the call.
    check(unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | i32::from(priority & 0x7FFF)) })
}

/// Stops swapping on a device or file; brings its pages back first, which can take a while.
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = path_text(path)?;
    // SAFETY: the path is a terminated string that outlives the call.
    check(unsafe { libc::swapoff(path.as_ptr()) })
}

/// Effective user id.
pub fn effective_uid() -> u32 {
    // SAFETY: takes nothing, always succeeds.
    unsafe { libc::geteuid() }
}

/// Whether this process may execute the file (or enter the folder), judged by its effective ids.
pub fn may_execute(path: &Path) -> io::Result<()> {
    let path = path_text(path)?;
    // SAFETY: the path is a terminated string that outlives the call.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) })
}

/// Whether the file carries capabilities (`setcap`), which make the dynamic linker ignore `LD_PRELOAD`.
pub fn has_file_capabilities(path: &Path) -> bool {
    let Ok(path) = path_text(path) else { return false };
    let name = c"security.capability";
    // SAFETY: both strings are terminated and outlive the call; a size of 0 only asks for the length.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

const RW: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A mapping of words that is the value's own, taken with the C library's `mmap` so that a preloaded Weir
/// sees it as any program's.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u64>,
    bytes: usize,
}

// SAFETY: the memory is owned by the value, and shared access goes through atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize, rights: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, fd, 0) };
        match NonNull::new(start.cast::<u64>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapping { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped until the value is dropped, aligned to a page; AtomicU64 has the layout of u64, and
        // while `&self` lives all access is atomic.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.bytes / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; borrows of it have ended.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Private anonymous memory.
#[derive(Debug)]
pub struct AnonymousWords(Mapping);

impl AnonymousWords {
    /// Maps `bytes` (rounded down to whole words, at least one), all zero.
    pub fn new(bytes: usize) -> io::Result<AnonymousWords> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Mapping::new((bytes / 8).max(1) * 8, RW, flags, -1).map(AnonymousWords)
    }

    /// The memory, for the one who fills it.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is ours, zero-initialised, aligned to a page, and `&mut self` makes the access
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.bytes / 8) }
    }

    /// The memory, for several threads at once.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

/// What a program tells the kernel of how it will read a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing in particular.
    Normal,
    /// From end to end.
    Sequential,
    /// Anywhere, by chance.
    Random,
}

/// A file mapped for reading. Whoever reads beyond the end of a file that has become shorter is killed by
/// SIGBUS.
#[derive(Debug)]
pub struct MappedFile(Mapping);

impl MappedFile {
    /// Maps the first `bytes` of a file, shared.
    pub fn new(file: &File, bytes: usize) -> io::Result<MappedFile> {
        Mapping::new(bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd()).map(MappedFile)
    }

    /// Its words. To be loaded alone, `Relaxed`: the memory cannot be written.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    /// Tells the kernel how all of it will be read.
    pub fn advise(&self, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::Random => libc::MADV_RANDOM,
        };
        self.tell(0..self.0.bytes, advice)
    }

    /// Has a range of bytes read, from a page on; nobody waits for it.
    pub fn will_need(&self, range: Range<usize>) -> io::Result<()> {
        self.tell(range, libc::MADV_WILLNEED)
    }

    fn tell(&self, range: Range<usize>, advice: libc::c_int) -> io::Result<()> {
        let end = range.end.min(self.0.bytes);
        let start = range.start.min(end);
        // SAFETY: within the mapping, and the advice changes no contents.
        check(unsafe {
            libc::madvise(self.0.start.as_ptr().cast::<u8>().add(start).cast(), end - start, advice)
        })
    }
}

/// Opens a file for reads past the kernel's cache. Offsets, lengths and buffers are to be whole pages.
pub fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Drops what is cached of a file, but for what is dirty or mapped. Returns the pages that stay, where the
/// kernel tells (Linux 6.5).
pub fn forget_cached(file: &File) -> Option<u64> {
    let fd = file.as_raw_fd();
    // SAFETY: no pointers; an advice.
    unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    let bytes = file.metadata().ok()?.len();
    crate::files::cached(fd, 0, bytes).map(|cached| cached.pages)
}

/// The beginning of a file, mapped shared by the C library's `mmap`: what is written is the file's. All
/// access is atomic, for others may have it mapped as well.
#[derive(Debug)]
pub struct FileWords(Mapping);

impl FileWords {
    /// Maps `bytes` of a file that has so many, for reading and writing.
    pub fn new(file: &File, bytes: usize) -> io::Result<FileWords> {
        Mapping::new(bytes, RW, libc::MAP_SHARED, file.as_raw_fd()).map(FileWords)
    }

    /// The file's words.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn anonymous_words_start_zero_and_keep_what_is_written() {
        let mut memory = AnonymousWords::new(1 << 20).unwrap();
        assert_eq!(memory.words_mut().len(), 1 << 17);
        assert!(memory.words_mut().iter().all(|w| *w == 0));
        memory.words_mut()[77] = 5;
        memory.words()[78].store(6, Relaxed);
        assert_eq!((memory.words()[77].load(Relaxed), memory.words()[78].load(Relaxed)), (5, 6));
    }

    #[test]
    fn a_mapped_file_has_its_words_and_is_forgotten_when_it_is_unmapped() {
        let path = std::env::temp_dir().join(format!("weir-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..1 << 15).flat_map(|n: u64| n.to_le_bytes()).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let map = MappedFile::new(&file, bytes.len()).unwrap();
        for advice in [Advice::Sequential, Advice::Random, Advice::Normal] {
            map.advise(advice).unwrap();
        }
        map.will_need(4096..usize::MAX).unwrap();
        assert_eq!(map.words().len(), 1 << 15);
        assert!(map.words().iter().enumerate().all(|(n, word)| word.load(Relaxed) == n as u64));
        drop(map);
        file.sync_all().unwrap();
        let stay = forget_cached(&file);
        std::fs::remove_file(&path).unwrap();
        // In a file system whose home is RAM they stay.
        assert!(stay.is_none_or(|pages| pages == 0 || crate::files::on_disk(file.as_raw_fd()).is_none()));
        assert!(MappedFile::new(&file, 0).is_err());
    }

    #[test]
    fn what_is_written_to_a_files_words_is_in_the_file() {
        let path = std::env::temp_dir().join(format!("weir-host-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(8192).unwrap();
        FileWords::new(&file, 8192).unwrap().words()[513].store(7, Relaxed);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[513 * 8], bytes.iter().filter(|b| **b != 0).count()), (8192, 7, 1));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn impossible_requests_are_errors_not_crashes() {
        assert!(AnonymousWords::new(usize::MAX).is_err());
        assert!(swap_on(Path::new("/nonexistent/swap"), 1).is_err());
        assert!(swap_off(Path::new("/nonexistent/swap")).is_err());
        assert!(may_execute(Path::new("/nonexistent")).is_err());
        assert!(may_execute(Path::new("a\0b")).is_err());
    }

    #[test]
    fn execute_permission_is_told_apart() {
        assert!(may_execute(Path::new("/bin/sh")).is_ok());
        assert!(may_execute(Path::new("/etc/passwd")).is_err());
        assert!(!has_file_capabilities(Path::new("/etc/passwd")));
    }
}
