//! The few kernel calls that the `weir` command needs beyond the standard library: swap areas, access checks,
//! and plain anonymous memory for its workloads.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
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

/// Private anonymous memory, taken with the C library's `mmap` so that a preloaded Weir sees it as any
/// program's.
#[derive(Debug)]
pub struct AnonymousWords {
    start: NonNull<u64>,
    len_words: usize,
}

// SAFETY: the memory is owned by the value, and shared access goes through atomics only.
unsafe impl Send for AnonymousWords {}
// SAFETY: as above.
unsafe impl Sync for AnonymousWords {}

impl AnonymousWords {
    /// Maps `bytes` (rounded down to whole words, at least one), all zero.
    pub fn new(bytes: usize) -> io::Result<AnonymousWords> {
        let len_words = (bytes / 8).max(1);
        // SAFETY: a fresh private mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_words * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        match NonNull::new(start.cast::<u64>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(AnonymousWords { start, len_words })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The memory, for the one who fills it.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is ours, zero-initialised, aligned to a page, and `&mut self` makes the access
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_words) }
    }

    /// The memory, for several threads at once.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: AtomicU64 has the layout of u64, and while `&self` lives all access is atomic.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.len_words) }
    }
}

impl Drop for AnonymousWords {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; borrows of it have ended.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_words * 8) };
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
