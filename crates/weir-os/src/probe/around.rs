//! What limits this process's RAM, read again and again: descriptors stay open, since one that is opened now
//! and then would take, for a moment, the lowest number.

use super::{cgroup, ram_bytes};
use crate::fds;
use crate::sys::{Errno, syscall};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The limits of the control groups of this process, and its machine's RAM. (A limit of RAM and swap
/// together, as version 1 has it, is never below that of RAM.)
#[derive(Debug)]
pub struct Around {
    files: Vec<i32>,
    ram: u64,
}

impl Around {
    /// Those of the calling process, of the nearest groups. `None`: no group has a limit that could change,
    /// or none may be read.
    pub fn open() -> Option<Around> {
        Self::over(cgroup::limit_files_of_self(), ram_bytes())
    }

    /// The limits in these files, and so much RAM.
    pub fn over(paths: Vec<PathBuf>, ram: u64) -> Option<Around> {
        let opened = paths.iter().filter_map(|path| open(path).ok()).take(fds::LIMITS_MAX);
        let files: Vec<i32> = opened.map(fds::keep).collect();
        (!files.is_empty() && ram > 0).then_some(Around { files, ram })
    }

    /// The least of them now, bytes. `None`: one of them cannot be read any more, so nobody knows.
    pub fn bytes(&self) -> Option<u64> {
        let mut least = self.ram;
        for fd in &self.files {
            let mut text = [0u8; 32];
            let args = [*fd as usize, text.as_mut_ptr() as usize, text.len(), 0, 0, 0];
            if !fds::is_intact(*fd) {
                return None; // the program has closed it
            }
            // SAFETY: the kernel writes into the live buffer.
            let n = unsafe { syscall(libc::SYS_pread64, args) }.ok()?;
            least = least.min(limit_of(&text[..n])?);
        }
        Some(least)
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        self.files.iter().for_each(|fd| fds::close(*fd));
    }
}

/// A limit as its file says it.
fn limit_of(text: &[u8]) -> Option<u64> {
    match text.trim_ascii() {
        b"max" => Some(u64::MAX),
        number => core::str::from_utf8(number).ok()?.parse().ok(),
    }
}

fn open(path: &Path) -> Result<i32, Errno> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::ENOENT)?;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated path.
    unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }
        .map(|fd| fd as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const RAM: u64 = 1 << 40;

    #[test]
    fn the_least_limit_is_known_as_it_changes() {
        let folder = std::env::temp_dir().join(format!("weir-around-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (near, far) = (folder.join("near"), folder.join("far"));
        fs::write(&near, "max\n").unwrap();
        fs::write(&far, "9223372036854771712\n").unwrap();
        let around = Around::over(vec![near.clone(), folder.join("none"), far.clone()], RAM).unwrap();
        assert_eq!(around.bytes(), Some(RAM));
        for (file, limit, least) in [
            (&near, "1048576\n", Some(1 << 20)),
            (&far, "4096\n", Some(4096)),
            (&far, "2097152\n", Some(1 << 20)),
            (&near, "max\n", Some(2 << 20)),
            (&near, "", None),
            (&near, "nonsense\n", None),
            (&near, "max\n", Some(2 << 20)),
        ] {
            fs::write(file, limit).unwrap();
            assert_eq!(around.bytes(), least, "{} {limit:?}", file.display());
        }
        // What the program has put in the place of one of them says nothing.
        let null = open(Path::new("/dev/null")).unwrap();
        // SAFETY: numbers of this test.
        assert_eq!(unsafe { libc::dup2(null, around.files[0]) }, around.files[0]);
        assert_eq!(around.bytes(), None);
        crate::sys::close(null);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn without_a_group_that_could_have_a_limit_nothing_is_followed() {
        assert!(Around::over(vec![], RAM).is_none());
        assert!(Around::over(vec![PathBuf::from("/nonexistent/memory.max")], RAM).is_none());
    }
}
