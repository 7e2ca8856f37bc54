//! Calls that name memory of this process otherwise than as a buffer: `process_vm_readv` with its own id, and
//! the files of `/proc` that are its memory. The kernel brings no page in for them (for the files not even
//! where a thread serves faults), so both ends are brought in and pinned, a piece at a time.

use crate::libc_next::{Next, set_errno};
use crate::splice::fetch;
use crate::state::{self, Weir};
use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicBool, Ordering};
use weir_os::mem::PAGE_BYTES;
use weir_os::sys::{self, Errno, syscall};
use weir_os::thread;

/// `UIO_MAXIOV`.
const MOST_PARTS: usize = 1024;
/// A piece of a transfer is no larger.
const PIECE_BYTES: usize = 1 << 20;

/// Whether a descriptor was ever placed at an address of the managed space: no file but memory is so large.
static PLACED: AtomicBool = AtomicBool::new(false);

/// One end of a transfer: byte ranges, and how far it got.
struct End {
    parts: Vec<libc::iovec>,
    at: usize,
    done: usize,
    /// They are this process's.
    own: bool,
}

impl End {
    fn new(parts: Vec<libc::iovec>, own: bool) -> End {
        End { parts, at: 0, done: 0, own }
    }

    /// What is left of the part that comes next: address and bytes.
    fn next(&mut self) -> Option<(usize, usize)> {
        while let Some(part) = self.parts.get(self.at) {
            if self.done < part.iov_len {
                return Some((part.iov_base as usize + self.done, part.iov_len - self.done));
            }
            (self.at, self.done) = (self.at + 1, 0);
        }
        None
    }

    fn touches(&self, e: &Weir) -> bool {
        self.own && self.parts.iter().any(|p| p.iov_len > 0 && e.touches(p.iov_base as usize, p.iov_len))
    }

    fn pin(&self, e: &Weir, addr: usize, len: usize) -> u32 {
        if self.own && e.touches(addr, len) { e.pin_range(addr, len) } else { 0 }
    }
}

/// The result of a call, in libc's way, if it is one of these.
#[inline]
pub fn transfer(nr: c_long, args: &[usize; 6]) -> Option<isize> {
    let known = match nr {
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => true,
        libc::SYS_pread64 | libc::SYS_pwrite64 | libc::SYS_preadv | libc::SYS_pwritev => {
            state::owner(args[3]).is_some()
        }
        libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev => {
            PLACED.load(Ordering::Relaxed)
        }
        _ => false,
    };
    if !known {
        return None;
    }
    let e = state::engine()?;
    let result = match nr {
        // Served by the thread that serves faults, where there is one.
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev if e.stubs().is_none() => None,
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => between_processes(e, nr, args),
        _ => through_file(e, nr, args),
    }?;
    Some(match result {
        -4095..0 => {
            set_errno(-result as i32);
            -1
        }
        r => r,
    })
}

/// `process_vm_readv` and `process_vm_writev`, as the kernel would answer; `None` when none of it is managed,
/// or the kernel will refuse it.
pub fn between_processes(e: &Weir, nr: c_long, args: &[usize; 6]) -> Option<isize> {
    let [pid, here, m, there, n, flags] = *args;
    if flags != 0 || m > MOST_PARTS || n > MOST_PARTS {
        return Some(-(Errno::EINVAL.0 as isize));
    }
    let mut local = End::new(list(e, here, m)?, true);
    let mut remote = End::new(list(e, there, n)?, is_own(pid));
    if !local.touches(e) && !remote.touches(e) {
        return None;
    }
    Some(move_all(e, &mut local, &mut remote, |from, to, len| {
        let part = |at: usize| libc::iovec { iov_base: at as *mut _, iov_len: len };
        let (l, r) = (part(from), part(to));
        let (l, r) = (&raw const l as usize, &raw const r as usize);
        // SAFETY: a part of the program's own call; the kernel checks both ends.
        unsafe { syscall(nr, [pid, l, 1, r, 1, 0]) }
    }))
}

/// Reads and writes of a file that is this process's memory; `None` for others.
fn through_file(e: &Weir, nr: c_long, args: &[usize; 6]) -> Option<isize> {
    let fd = args[0];
    let positioned =
        matches!(nr, libc::SYS_pread64 | libc::SYS_pwrite64 | libc::SYS_preadv | libc::SYS_pwritev);
    let from = if positioned { args[3] } else { place_of(fd)? };
    if !e.contains(from) || !is_own_memory(fd) {
        return None;
    }
    let vector = matches!(nr, libc::SYS_readv | libc::SYS_writev | libc::SYS_preadv | libc::SYS_pwritev);
    let parts = match vector {
        true => list(e, args[1], args[2])?,
        false => vec![libc::iovec { iov_base: args[1] as *mut _, iov_len: args[2] }],
    };
    let len = parts.iter().map(|p| p.iov_len).try_fold(0usize, usize::checked_add)?;
    let writes = matches!(nr, libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev);
    let plain = if writes { libc::SYS_pwrite64 } else { libc::SYS_pread64 };
    let whole = libc::iovec { iov_base: from as *mut _, iov_len: len };
    let (mut local, mut remote) = (End::new(parts, true), End::new(vec![whole], true));
    // SAFETY: a part of the program's own call; the kernel checks the buffer.
    let piece = |at: usize, to: usize, len: usize| unsafe { syscall(plain, [fd, at, len, to, 0, 0]) };
    let done = move_all(e, &mut local, &mut remote, piece);
    if !positioned && done > 0 {
        let args = [fd, from + done as usize, libc::SEEK_SET as usize, 0, 0, 0];
        // SAFETY: no pointers.
        let _ = unsafe { syscall(libc::SYS_lseek, args) };
    }
    Some(done)
}

/// Makes a transfer in pieces whose both ends stay where they are meanwhile. The kernel's result.
fn move_all(
    e: &Weir,
    local: &mut End,
    remote: &mut End,
    piece: impl Fn(usize, usize, usize) -> Result<usize, Errno>,
) -> isize {
    let mut all = 0;
    while let (Some((l, l_left)), Some((r, r_left))) = (local.next(), remote.next()) {
        // Both ends get half of what a call may pin; a page of each at least.
        let to_page_end = |at: usize| PAGE_BYTES - at % PAGE_BYTES;
        let room = (e.bytes_for_a_call() / 2).saturating_sub(2 * PAGE_BYTES).min(PIECE_BYTES);
        let len = l_left.min(r_left).min(room.max(to_page_end(l).min(to_page_end(r))));
        let signals = thread::block_signals();
        let pins = [local.pin(e, l, len), remote.pin(e, r, len)];
        let moved = piece(l, r, len);
        pins.into_iter().for_each(|chain| e.unpin_range(chain));
        thread::restore_signals(signals);
        match moved {
            Err(error) => return if all > 0 { all as isize } else { -(error.0 as isize) },
            Ok(n) => {
                all += n;
                local.done += n;
                remote.done += n;
                if n < len {
                    break;
                }
            }
        }
    }
    all as isize
}

/// A list of parts; `None` where the kernel will refuse it.
fn list(e: &Weir, at: usize, n: usize) -> Option<Vec<libc::iovec>> {
    if n == 0 || n > MOST_PARTS {
        return None;
    }
    let mut parts = vec![libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; n];
    fetch(e, at, crate::splice::bytes_of(&mut parts)).ok()?;
    parts.iter().all(|p| p.iov_len <= isize::MAX as usize).then_some(parts)
}

/// Whether an id is that of a thread of this process.
fn is_own(id: usize) -> bool {
    let own = sys::getpid() as usize;
    // SAFETY: signal 0 only asks.
    id == own || unsafe { syscall(libc::SYS_tgkill, [own, id, 0, 0, 0, 0]) }.is_ok()
}

/// Where a descriptor is.
fn place_of(fd: usize) -> Option<usize> {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_lseek, [fd, 0, libc::SEEK_CUR as usize, 0, 0, 0]) }.ok()
}

/// Whether a descriptor is this process's `/proc/PID/mem` or `/proc/PID/task/TID/mem`.
fn is_own_memory(fd: usize) -> bool {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let (mut name, mut target) = ([0u8; 40], [0u8; 64]);
    name[..PREFIX.len()].copy_from_slice(PREFIX);
    decimal(fd, &mut name[PREFIX.len()..]);
    let args = [name.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0, 0];
    // SAFETY: a string with its NUL, and a live buffer.
    let Ok(len) = (unsafe { syscall(libc::SYS_readlink, args) }) else { return false };
    let mut words = target[..len].split(|b| *b == b'/').skip(1);
    let mut own = [0u8; 20];
    let digits = decimal(sys::getpid() as usize, &mut own);
    words.next() == Some(b"proc")
        && words.next() == Some(&own[..digits])
        && match words.next() {
            Some(b"mem") => words.next().is_none(),
            Some(b"task") => words.nth(1) == Some(b"mem"),
            _ => false,
        }
}

/// Writes a number in decimal digits; how many.
fn decimal(n: usize, out: &mut [u8]) -> usize {
    let digits = n.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut left = n;
    for place in out[..digits].iter_mut().rev() {
        *place = b'0' + (left % 10) as u8;
        left /= 10;
    }
    digits
}

type Seek = unsafe extern "C" fn(c_int, i64, c_int) -> i64;

/// # Safety
/// - as libc's function of that name and type, `next`.
unsafe fn seek(next: &Next, fd: c_int, offset: i64, whence: c_int) -> i64 {
    let Some(a) = next.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: passed on.
    let place = unsafe { core::mem::transmute::<usize, Seek>(a)(fd, offset, whence) };
    if place > 0 && state::owner(place as usize).is_some() {
        PLACED.store(true, Ordering::Relaxed);
    }
    place
}

/// # Safety
/// - as `lseek(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64 {
    static NEXT: Next = Next::new(c"lseek");
    // SAFETY: passed on.
    unsafe { seek(&NEXT, fd, offset, whence) }
}

/// # Safety
/// - as `lseek64(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek64(fd: c_int, offset: i64, whence: c_int) -> i64 {
    static NEXT: Next = Next::new(c"lseek64");
    // SAFETY: passed on.
    unsafe { seek(&NEXT, fd, offset, whence) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_told_from_other_files() {
        use std::os::fd::AsRawFd;
        let is = |path: &str| is_own_memory(std::fs::File::open(path).unwrap().as_raw_fd() as usize);
        assert!(is("/proc/self/mem"));
        assert!(is("/proc/thread-self/mem"));
        assert!(is(&format!("/proc/{}/mem", std::process::id())));
        assert!(!is("/proc/self/maps"));
        assert!(!is("/proc/self/task"));
        assert!(!is("/dev/null"));
        assert!(!is_own_memory(1 << 20));
    }

    #[test]
    fn the_two_ends_of_a_transfer_go_on_over_empty_parts() {
        let part = |at: usize, len: usize| libc::iovec { iov_base: at as *mut _, iov_len: len };
        let mut end = End::new(vec![part(8, 0), part(100, 5), part(200, 0), part(300, 2)], true);
        assert_eq!(end.next(), Some((100, 5)));
        end.done += 3;
        assert_eq!(end.next(), Some((103, 2)));
        end.done += 2;
        assert_eq!(end.next(), Some((300, 2)));
        end.done += 2;
        assert_eq!(end.next(), None);
    }

    #[test]
    fn numbers_are_written_in_digits() {
        for n in [0, 7, 10, 999, 1_000_000] {
            let mut out = [0u8; 20];
            let len = decimal(n, &mut out);
            assert_eq!(out[..len], *n.to_string().as_bytes());
        }
    }
}
