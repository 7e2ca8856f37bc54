//! The engine's own descriptors: out of the program's way, known by number, and known again by what they
//! name.
//!
//! The program shares the table of descriptors. Its calls through libc can be kept away from these numbers
//! ([`contains`]); a system call of its own cannot, and then the number may name a file of the program's:
//! nothing is written to a descriptor, and none is closed, that is not [`is_intact`].

use crate::sys::{self, Errno, syscall};
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Most descriptors at once: userfaultfd, swap file, its three rings, stderr, the meter of RAM and the page
/// of counters, with as many again while a child makes its own; the limits of control groups; and those of
/// the pools of a program that asks for them.
pub const MOST: usize = 16 + LIMITS_MAX + POOLS_MAX * OF_POOL;
/// Most files with limits of control groups.
pub const LIMITS_MAX: usize = 8;
/// Most pools at once.
pub const POOLS_MAX: usize = 64;
/// Descriptors of a pool: userfaultfd, swap file, its three rings.
const OF_POOL: usize = 5;

/// One of them: what the number named when it was taken. `NONE`: a free row.
struct Row {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

const NONE: i32 = -1;
/// A row that is being written.
const TAKEN: i32 = -2;

static ROWS: [Row; MOST] =
    [const { Row { fd: AtomicI32::new(NONE), device: AtomicU64::new(0), inode: AtomicU64::new(0) } }; MOST];

/// Rows that were ever in use are the first so many.
static USED: AtomicUsize = AtomicUsize::new(0);

fn rows() -> &'static [Row] {
    &ROWS[..USED.load(Ordering::Acquire).min(MOST)]
}

/// Programs count on low numbers (shells, "the next open returns 3"), and some have tables up to their limit:
/// the last ones below it, but below 1024 in any case, since the kernel's table, which a fork copies, is as
/// long as the highest number.
const BELOW: u64 = 1024;
/// Room for all of them and for what the program has there.
const LAST: u64 = 32;

/// Takes a descriptor over: moves it up and notes it. Its number from now on.
pub fn keep(low: i32) -> i32 {
    let fd = duplicate_high(low).inspect(|_| sys::close(low)).unwrap_or(low);
    note(fd);
    fd
}

/// A duplicate up there, noted; `None` when there is none to be had.
pub fn keep_duplicate(fd: i32) -> Option<i32> {
    duplicate_high(fd).inspect(|fd| note(*fd))
}

fn duplicate_high(fd: i32) -> Option<i32> {
    let end = sys::descriptor_limit().min(BELOW);
    [end.saturating_sub(LAST).max(end / 2), end / 2].into_iter().find_map(|floor| {
        let args = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, floor as usize, 0, 0, 0];
        // SAFETY: no pointers.
        unsafe { syscall(libc::SYS_fcntl, args) }.ok().map(|fd| fd as i32)
    })
}

fn note(fd: i32) {
    let Ok((device, inode)) = identity(fd) else { return };
    let free = |row: &&Row| row.fd.compare_exchange(NONE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if let Some((number, row)) = ROWS.iter().enumerate().find(|(_, row)| free(row)) {
        USED.fetch_max(number + 1, Ordering::AcqRel);
        row.device.store(device, Ordering::Relaxed);
        row.inode.store(inode, Ordering::Relaxed);
        row.fd.store(fd, Ordering::Release);
    }
}

fn row_of(fd: i32) -> Option<&'static Row> {
    rows().iter().find(|row| fd >= 0 && row.fd.load(Ordering::Acquire) == fd)
}

/// Whether a number is one of them.
#[inline]
pub fn contains(fd: i32) -> bool {
    row_of(fd).is_some()
}

/// Their numbers, ascending; -1 and below where there is none.
pub fn all() -> [i32; MOST] {
    let mut fds: [i32; MOST] = core::array::from_fn(|i| ROWS[i].fd.load(Ordering::Acquire));
    fds.sort_unstable();
    fds
}

/// Whether the number still names what it did. True of one that was never noted.
pub fn is_intact(fd: i32) -> bool {
    row_of(fd).is_none_or(|row| {
        let then = (row.device.load(Ordering::Relaxed), row.inode.load(Ordering::Relaxed));
        identity(fd) == Ok(then)
    })
}

/// Closes one of them, if it is still the engine's.
pub fn close(fd: i32) {
    let intact = is_intact(fd);
    // Forgotten before: once it is closed another thread may get the number and note it, in another row.
    if let Some(row) = row_of(fd) {
        row.fd.store(NONE, Ordering::Release);
    }
    if intact {
        sys::close(fd);
    }
}

/// Device and inode of what a descriptor names; `None` if nothing.
pub fn identity_of(fd: i32) -> Option<(u64, u64)> {
    identity(fd).ok()
}

/// Whether a descriptor names a terminal.
pub fn is_terminal(fd: i32) -> bool {
    // SAFETY: plain data, valid when zero.
    let mut state: libc::termios = unsafe { core::mem::zeroed() };
    let args = [fd as usize, libc::TCGETS as usize, &raw mut state as usize, 0, 0, 0];
    // SAFETY: the kernel writes its structure, which is shorter than libc's.
    unsafe { syscall(libc::SYS_ioctl, args) }.is_ok()
}

/// Device and inode of what a descriptor names.
fn identity(fd: i32) -> Result<(u64, u64), Errno> {
    // SAFETY: plain data, valid when zero.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes the live structure, whose layout is its own on 64-bit machines.
    unsafe { syscall(libc::SYS_fstat, [fd as usize, &raw mut stat as usize, 0, 0, 0, 0])? };
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// One test at a time: they have numbers taken again that others have closed.
    static ALONE: Mutex<()> = Mutex::new(());

    fn open(path: &core::ffi::CStr) -> i32 {
        // SAFETY: a NUL-terminated path.
        unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
    }

    #[test]
    fn a_number_that_is_closed_and_taken_again_at_once_is_known_as_what_it_names_now() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::scope(|scope| {
            for path in [c"/proc/self/exe", c"/dev/null", c"/etc/passwd"] {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let fd = keep(open(path));
                        assert!(contains(fd) && is_intact(fd), "{fd} is not what {path:?} was noted as");
                        close(fd);
                    }
                });
            }
        });
    }

    #[test]
    fn a_kept_descriptor_lies_high_is_known_and_known_again() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let low = open(c"/proc/self/status");
        let fd = keep(low);
        let end = sys::descriptor_limit().min(BELOW) as i32;
        assert!((end / 2..end).contains(&fd) && contains(fd) && is_intact(fd), "{fd} below {end}");
        assert!(all().contains(&fd));
        // The program closes it past libc and opens another file there.
        let other = open(c"/proc/self/stat");
        // SAFETY: descriptors of this test's.
        unsafe { syscall(libc::SYS_dup2, [other as usize, fd as usize, 0, 0, 0, 0]) }.unwrap();
        assert!(contains(fd) && !is_intact(fd));
        close(fd);
        assert!(!contains(fd), "not the engine's any more");
        assert!(identity(fd).is_ok(), "and left open: it is the program's");
        sys::close(fd);
        sys::close(other);
    }

    #[test]
    fn those_of_many_pools_are_all_known() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let fds: Vec<i32> = (0..100).map(|_| keep(open(c"/proc/self/limits"))).collect();
        assert!(fds.iter().all(|fd| contains(*fd) && is_intact(*fd) && all().contains(fd)));
        let other = open(c"/proc/self/stat");
        // SAFETY: descriptors of this test's.
        unsafe { syscall(libc::SYS_dup2, [other as usize, fds[99] as usize, 0, 0, 0, 0]) }.unwrap();
        assert!(!is_intact(fds[99]) && is_intact(fds[98]));
        sys::close(fds[99]);
        sys::close(other);
        fds.iter().for_each(|fd| close(*fd));
        assert!(!fds.iter().any(|fd| contains(*fd)));
    }

    #[test]
    fn a_closed_one_is_not_intact_and_what_was_never_kept_is() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = keep(open(c"/proc/self/maps"));
        sys::close(fd);
        assert!(!is_intact(fd));
        close(fd);
        assert!(is_intact(2) && !contains(2) && !contains(-1) && !contains(-2));
    }
}
