//! Files written where nothing may be allocated: in signal handlers, and by threads past libc.

use crate::signal::{self, Mask, bit};
use crate::sys::{self, Errno, syscall};
use crate::thread::now_ns;
use core::ffi::CStr;
use core::fmt;

/// How long a descriptor may take nothing before the rest of a text is given up, ns.
const PATIENCE_NS: u64 = 200_000_000;
/// What the kernel sends a thread beside the error of a write: no reader, and a file at its limit.
const OF_WRITES: Mask = bit(libc::SIGPIPE) | bit(libc::SIGXFSZ);

/// Writes all of `bytes`, but waits no longer than [`PATIENCE_NS`] for a full pipe or a stopped terminal. No
/// signal comes of it.
pub fn write_in_time(fd: i32, bytes: &[u8]) -> Result<(), Errno> {
    let mask = signal::change_mask(libc::SIG_BLOCK, Some(OF_WRITES));
    let others = signal::pending();
    let written = write_pieces(fd, bytes);
    if written.is_err() {
        signal::take(OF_WRITES & !others);
    }
    if let Ok(mask) = mask {
        let _ = signal::change_mask(libc::SIG_SETMASK, Some(mask));
    }
    written
}

fn write_pieces(fd: i32, mut bytes: &[u8]) -> Result<(), Errno> {
    let mut since = now_ns();
    while !bytes.is_empty() {
        let left = PATIENCE_NS.saturating_sub(now_ns() - since);
        wait_for_room(fd, left)?;
        // A pipe has room for so many bytes at once, or says that it has none.
        let args = [fd as usize, bytes.as_ptr() as usize, bytes.len().min(libc::PIPE_BUF), 0, 0, 0];
        // SAFETY: the kernel only reads from the live slice.
        match unsafe { syscall(libc::SYS_write, args) } {
            Ok(n) => (bytes, since) = (&bytes[n.min(bytes.len())..], now_ns()),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if left > 0 => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Waits until a descriptor takes bytes, or says what is wrong with it.
fn wait_for_room(fd: i32, timeout_ns: u64) -> Result<(), Errno> {
    match sys::poll(fd, libc::POLLOUT, Some(timeout_ns)) {
        Ok(0) => Err(Errno::ETIMEDOUT),
        _ => Ok(()),
    }
}

/// Whether the other side of a descriptor is gone: the terminal, or the other end of a pipe.
pub fn is_gone(fd: i32) -> bool {
    let ends = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
    sys::poll(fd, libc::POLLIN, Some(0)).is_ok_and(|events| events & ends != 0)
}

/// Text on its way to a descriptor, in pieces.
#[derive(Debug)]
pub struct Sink {
    fd: i32,
    buf: [u8; Sink::BYTES],
    len: usize,
    failed: bool,
}

impl Sink {
    const BYTES: usize = 1024;

    /// To this descriptor.
    pub fn new(fd: i32) -> Sink {
        Sink { fd, buf: [0; Sink::BYTES], len: 0, failed: false }
    }

    /// Writes what is still here. Whether all has arrived.
    pub fn flush(&mut self) -> bool {
        self.failed = self.failed || write_in_time(self.fd, &self.buf[..self.len]).is_err();
        self.len = 0;
        !self.failed
    }
}

impl fmt::Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.len == Sink::BYTES && !self.flush() {
                return Err(fmt::Error);
            }
            self.buf[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// A path, ready for the kernel.
pub struct PathText {
    bytes: [u8; PathText::BYTES],
    len: usize,
}

impl PathText {
    const BYTES: usize = libc::PATH_MAX as usize;

    /// `path` with the process's id in the place of each `%p`; `None` where that is too long.
    pub fn with_pid(path: &[u8], pid: u32) -> Option<PathText> {
        let mut text = PathText { bytes: [0; PathText::BYTES], len: 0 };
        let mut rest = path;
        while let Some(byte) = rest.first() {
            if rest.starts_with(b"%p") {
                text.add_number(pid)?;
                rest = &rest[2..];
            } else {
                text.add(*byte)?;
                rest = &rest[1..];
            }
        }
        Some(text)
    }

    fn add(&mut self, byte: u8) -> Option<()> {
        // The last byte is the kernel's NUL.
        let room = self.len + 1 < PathText::BYTES && byte != 0;
        room.then(|| {
            self.bytes[self.len] = byte;
            self.len += 1;
        })
    }

    fn add_number(&mut self, number: u32) -> Option<()> {
        let mut unit = 1;
        while number / unit >= 10 {
            unit *= 10;
        }
        while unit > 0 {
            self.add(b'0' + (number / unit % 10) as u8)?;
            unit /= 10;
        }
        Some(())
    }

    /// The path with an ending, for a file that will take its place.
    pub fn with_ending(&self, ending: &[u8]) -> Option<PathText> {
        let mut text = PathText { bytes: self.bytes, len: self.len };
        ending.iter().try_for_each(|byte| text.add(*byte))?;
        Some(text)
    }

    /// Its letters, without the kernel's NUL.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The name of a file of this process's that will take the place of this one.
    pub fn successor(&self, pid: u32) -> Option<PathText> {
        let mut text = self.with_ending(b".")?;
        text.add_number(pid)?;
        text.with_ending(b".new")
    }

    /// Whether another file can take its place: it is a regular file, or there is none yet.
    pub fn can_be_replaced(&self) -> bool {
        // SAFETY: plain data, valid when zero.
        let mut about: libc::stat = unsafe { core::mem::zeroed() };
        let (path, to) = (self.bytes.as_ptr() as usize, &raw mut about as usize);
        let flags = libc::AT_SYMLINK_NOFOLLOW as usize;
        // SAFETY: the path ends with a NUL; the kernel writes the live structure.
        match unsafe { syscall(libc::SYS_newfstatat, [libc::AT_FDCWD as usize, path, to, flags, 0, 0]) } {
            Ok(_) => about.st_mode & libc::S_IFMT == libc::S_IFREG,
            Err(e) => e == Errno::ENOENT,
        }
    }

    /// Removes the file, if it is there.
    pub fn remove(&self) {
        // SAFETY: the path ends with a NUL.
        let _ = unsafe {
            let path = self.bytes.as_ptr() as usize;
            syscall(libc::SYS_unlinkat, [libc::AT_FDCWD as usize, path, 0, 0, 0, 0])
        };
    }

    /// Makes the file, or empties the one that is there. A named pipe that nobody reads is not waited for.
    pub fn create(&self) -> Result<i32, Errno> {
        const MODES: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NONBLOCK;
        let flags = (MODES | libc::O_CLOEXEC) as usize;
        let mode = 0o666;
        let at = self.bytes.as_ptr() as usize;
        // SAFETY: the path ends with a NUL.
        let fd = unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, at, flags, mode, 0, 0])? };
        Ok(fd as i32)
    }

    /// Puts the file in the place of another.
    pub fn rename_to(&self, to: &PathText) -> Result<(), Errno> {
        let (from, to) = (self.bytes.as_ptr() as usize, to.bytes.as_ptr() as usize);
        // SAFETY: both paths end with a NUL.
        unsafe { syscall(libc::SYS_rename, [from, to, 0, 0, 0, 0])? };
        Ok(())
    }
}

impl fmt::Display for PathText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.bytes().utf8_chunks() {
            f.write_str(part.valid())?;
            if !part.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}

/// Reads the beginning of a file, as much of it as there is room for.
pub fn read_start<'a>(path: &CStr, room: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let at = path.as_ptr() as usize;
    // SAFETY: a NUL-terminated path; the kernel writes into the live buffer.
    let n = unsafe {
        let fd = syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, at, flags, 0, 0, 0])?;
        let n = syscall(libc::SYS_read, [fd, room.as_mut_ptr() as usize, room.len(), 0, 0, 0]);
        sys::close(fd as i32);
        n?
    };
    Ok(&room[..n])
}

/// A short path in a buffer of its own, NUL-terminated.
pub(crate) struct ShortPath {
    bytes: [u8; ShortPath::BYTES],
    used: usize,
}

impl ShortPath {
    const BYTES: usize = 64;

    /// The path, as the kernel takes it.
    pub(crate) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Opens the file that it names.
    pub(crate) fn open(&self, flags: i32) -> Result<i32, Errno> {
        let (at, flags) = (self.bytes.as_ptr() as usize, (flags | libc::O_CLOEXEC) as usize);
        // SAFETY: a NUL-terminated path.
        unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, at, flags, 0, 0, 0]) }
            .map(|fd| fd as i32)
    }
}

impl Default for ShortPath {
    fn default() -> ShortPath {
        ShortPath { bytes: [0; ShortPath::BYTES], used: 0 }
    }
}

impl fmt::Write for ShortPath {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.used + text.len();
        // The last byte is the kernel's NUL.
        let room = self.bytes.get_mut(self.used..end).filter(|_| end < ShortPath::BYTES).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn the_process_id_stands_wherever_the_path_says() {
        let text = |path: &str, pid| PathText::with_pid(path.as_bytes(), pid).map(|p| p.to_string());
        assert_eq!(text("/tmp/a.%p.b%p", 4711).as_deref(), Some("/tmp/a.4711.b4711"));
        assert_eq!(text("100%", 7).as_deref(), Some("100%"));
        assert_eq!(text("%p", 0).as_deref(), Some("0"));
        assert_eq!(text("%p", u32::MAX).as_deref(), Some("4294967295"));
        assert_eq!(text("a\0b", 7), None);
        assert_eq!(text(&"x".repeat(PathText::BYTES), 7), None);
    }

    #[test]
    fn what_is_longer_than_the_buffer_arrives_whole_and_takes_the_place_of_the_file() {
        let path = std::env::temp_dir().join(format!("weir-sink-{}", std::process::id()));
        let to = PathText::with_pid(path.to_str().unwrap().as_bytes(), 0).unwrap();
        let from = to.with_ending(b".new").unwrap();
        let fd = from.create().unwrap();
        let mut out = Sink::new(fd);
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        out.write_str(&text).unwrap();
        assert!(out.flush());
        sys::close(fd);
        from.rename_to(&to).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        to.remove();
        assert!(!path.exists());
        let mut nowhere = Sink::new(-1);
        nowhere.write_str("lost").unwrap();
        assert!(!nowhere.flush());
    }

    /// Both ends of a pipe.
    fn pipe() -> [i32; 2] {
        let mut ends = [0i32; 2];
        // SAFETY: the kernel writes two numbers into the live array.
        unsafe { syscall(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0]) }.unwrap();
        ends
    }

    #[test]
    fn a_full_pipe_is_given_up_and_one_with_room_again_takes_all() {
        const PIECE: [u8; 4096] = [7; 4096];
        let [reader, writer] = pipe();
        let full = (0..1 << 10).find_map(|_| write_in_time(writer, &PIECE).err());
        assert_eq!(full, Some(Errno::ETIMEDOUT));
        let mut room = [0u8; 2 * PIECE.len()];
        // SAFETY: the kernel writes into the live buffer.
        let read = unsafe {
            syscall(libc::SYS_read, [reader as usize, room.as_mut_ptr() as usize, room.len(), 0, 0, 0])
        };
        assert_eq!(read, Ok(room.len()));
        assert_eq!(write_in_time(writer, &room), Ok(()));
        sys::close(reader);
        sys::close(writer);
    }

    #[test]
    fn no_signal_comes_of_a_pipe_without_a_reader_but_one_that_waits_for_the_program_stays() {
        // A thread's own mask; SIGPIPE is ignored here, but a blocked one waits all the same.
        std::thread::spawn(|| {
            let of_pipes = bit(libc::SIGPIPE);
            signal::change_mask(libc::SIG_BLOCK, Some(of_pipes)).unwrap();
            let [reader, writer] = pipe();
            sys::close(reader);
            assert_eq!(write_in_time(writer, b"lost"), Err(Errno::EPIPE));
            assert_eq!(signal::pending() & OF_WRITES, 0);
            signal::raise(libc::SIGPIPE);
            assert_eq!(write_in_time(writer, b"lost"), Err(Errno::EPIPE));
            assert_eq!(signal::pending() & OF_WRITES, of_pipes);
            signal::take(of_pipes);
            assert_eq!(signal::pending() & OF_WRITES, 0);
            sys::close(writer);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_named_pipe_that_nobody_reads_is_refused() {
        let path = std::env::temp_dir().join(format!("weir-fifo-{}", std::process::id()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let (folder, mode) = (libc::AT_FDCWD as usize, (libc::S_IFIFO | 0o600) as usize);
        // SAFETY: a NUL-terminated path.
        unsafe { syscall(libc::SYS_mknodat, [folder, name.as_ptr() as usize, mode, 0, 0, 0]) }.unwrap();
        let text = PathText::with_pid(path.to_str().unwrap().as_bytes(), 0).unwrap();
        assert_eq!(text.create(), Err(Errno::ENXIO));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let of = |path: &str| PathText::with_pid(path.as_bytes(), 7).unwrap();
        assert!(of("/proc/self/stat").can_be_replaced() && of("/tmp/no/such/file").can_be_replaced());
        for other in ["/dev/null", "/dev/stderr", "/tmp", "/proc/self/exe", "/proc/self/stat/x"] {
            assert!(!of(other).can_be_replaced(), "{other}");
        }
        assert_eq!(of("/tmp/a.%p").successor(12).map(|p| p.to_string()).as_deref(), Some("/tmp/a.7.12.new"));
    }

    #[test]
    fn the_start_of_a_file_is_read() {
        let mut room = [0; 5];
        assert_eq!(read_start(c"/proc/self/comm", &mut room).map(|read| read.len()), Ok(5));
        assert_eq!(read_start(c"/no/such/file", &mut room), Err(Errno::ENOENT));
    }
}
