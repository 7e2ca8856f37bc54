//! `vmsplice` lends pages to a pipe and pins them for nobody: a frame could travel and be used again before
//! the reader comes. So the pipe gets copies, in pages that nobody else has; all the rest (how many places
//! the pipe has, waiting, short counts, errors) is the kernel's, since each copy lies in its page where the
//! bytes lie in theirs.

use crate::libc_next::Next;
use crate::state::{self, Weir};
use core::ffi::{c_int, c_uint};
use weir_os::gate::read_own;
use weir_os::mem::{Mapping, PAGE_BYTES};
use weir_os::sys::{Errno, syscall};
use weir_os::thread;

/// `UIO_MAXIOV`.
const MOST_PARTS: usize = 1024;
const NOTHING: libc::iovec = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };

/// # Safety
/// - as `vmsplice(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(fd: c_int, parts: *const libc::iovec, n: usize, flags: c_uint) -> isize {
    static NEXT: Next = Next::new(c"vmsplice");
    type Call = unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_uint) -> isize;
    // libc's function is a cancellation point.
    let native = |parts: *const libc::iovec, n| match NEXT.get() {
        // SAFETY: libc's function of that name and type; the program's own list, or one of copies.
        Some(a) => unsafe { core::mem::transmute::<usize, Call>(a)(fd, parts, n, flags) },
        None => -1,
    };
    let Some(e) = state::engine() else { return native(parts, n) };
    match lent(e, fd, parts as usize, n) {
        Some(copies) => native(copies.parts.as_ptr(), copies.parts.len()),
        None => {
            #[cfg(target_arch = "x86_64")]
            if reads(fd)
                && let Some(r) = crate::inline::gate::gated(
                    libc::SYS_vmsplice,
                    [fd as usize, parts as usize, n, flags as usize, 0, 0],
                )
            {
                return r;
            }
            native(parts, n)
        }
    }
}

/// The same for a call that was trapped, whose program has these signals blocked; `None`: it is one like all
/// others.
#[cfg(target_arch = "x86_64")]
pub fn trapped(e: &Weir, [fd, parts, n, flags, ..]: [usize; 6], mask: u64) -> Option<isize> {
    let copies = lent(e, fd as c_int, parts, n)?;
    let before = thread::block_signals();
    thread::restore_signals(mask);
    let args = [fd, copies.parts.as_ptr() as usize, copies.parts.len(), flags, 0, 0];
    // SAFETY: the program's own call, with a list of copies.
    let r = unsafe { syscall(libc::SYS_vmsplice, args) };
    thread::restore_signals(before);
    Some(r.map_or_else(|e| -(e.0 as isize), |n| n as isize))
}

/// What a call lends in the place of its list: the memory of the copies is unmapped after the call, and is
/// the pipe's alone then.
struct Copies {
    parts: Vec<libc::iovec>,
    _memory: Mapping,
}

/// Flags of the descriptor.
fn mode(fd: c_int) -> Option<c_int> {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) }
        .ok()
        .map(|flags| flags as c_int & libc::O_ACCMODE)
}

/// Whether the call reads from the pipe.
fn reads(fd: c_int) -> bool {
    mode(fd) == Some(libc::O_RDONLY)
}

/// Pages that the pipe holds at most: no call lends more.
fn places(fd: c_int) -> Option<usize> {
    // SAFETY: no pointers.
    let bytes =
        unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETPIPE_SZ as usize, 0, 0, 0, 0]) }.ok()?;
    Some(bytes / PAGE_BYTES)
}

/// Pages that a part lies in, each of which takes a place of the pipe.
fn pages(part: &libc::iovec) -> usize {
    let skew = part.iov_base as usize % PAGE_BYTES;
    if part.iov_len == 0 { 0 } else { (skew + part.iov_len).div_ceil(PAGE_BYTES) }
}

/// Copies of what a call lends, as much of it as the pipe can hold; `None` when nothing of it is managed, or
/// the call cannot succeed: the kernel knows the right error.
fn lent(e: &Weir, fd: c_int, list: usize, n: usize) -> Option<Copies> {
    if n == 0 || n > MOST_PARTS || !matches!(mode(fd)?, libc::O_WRONLY | libc::O_RDWR) {
        return None;
    }
    let mut left = places(fd)?;
    let mut parts = vec![NOTHING; n];
    fetch(e, list, bytes_of(&mut parts)).ok()?;
    let managed = |p: &libc::iovec| p.iov_len > 0 && e.touches(p.iov_base as usize, p.iov_len);
    if parts.iter().any(|p| p.iov_len > isize::MAX as usize) || !parts.iter().any(managed) {
        return None;
    }
    // No further than the pipe's last place.
    for part in &mut parts {
        if pages(part) > left {
            part.iov_len = (left * PAGE_BYTES).saturating_sub(part.iov_base as usize % PAGE_BYTES);
        }
        left -= pages(part);
    }
    let room: usize = parts.iter().filter(|p| managed(p)).map(pages).sum();
    let memory = Mapping::anon(room.max(1) * PAGE_BYTES).ok()?;
    let mut at = memory.base();
    for i in 0..n {
        if !managed(&parts[i]) {
            continue;
        }
        let (part, next) = (parts[i], at + pages(&parts[i]) * PAGE_BYTES);
        let to = at + part.iov_base as usize % PAGE_BYTES;
        let copied = copy(e, part, to);
        parts[i] = libc::iovec { iov_base: to as *mut _, iov_len: copied };
        if copied < part.iov_len {
            if copied == 0 && parts[..i].iter().all(|p| p.iov_len == 0) {
                // Nowhere: the kernel says EFAULT when it comes to it.
                parts[i] = libc::iovec { iov_base: core::ptr::without_provenance_mut(8), iov_len: 1 };
            }
            parts.truncate(i + 1);
            break;
        }
        at = next;
    }
    Some(Copies { parts, _memory: memory })
}

/// Copies a part to `to`, as far as it can be read; bytes.
fn copy(e: &Weir, part: libc::iovec, to: usize) -> usize {
    let from = part.iov_base as usize;
    let mut done = 0;
    while done < part.iov_len {
        let in_page = PAGE_BYTES - (from + done) % PAGE_BYTES;
        let len = in_page.min(part.iov_len - done);
        // SAFETY: within the memory for this part, which nobody else knows.
        let out = unsafe { core::slice::from_raw_parts_mut((to + done) as *mut u8, len) };
        if fetch(e, from + done, out).is_err() {
            break;
        }
        done += len;
    }
    done
}

pub fn bytes_of(parts: &mut [libc::iovec]) -> &mut [u8] {
    // SAFETY: plain data without padding.
    unsafe { core::slice::from_raw_parts_mut(parts.as_mut_ptr().cast(), size_of_val(parts)) }
}

/// Reads memory of the program, wherever it is; EFAULT where there is none.
pub fn fetch(e: &Weir, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
    if !e.touches(addr, out.len()) {
        return read_own(addr, out);
    }
    thread::with_signals_blocked(|| {
        let pins = e.pin_range(addr, out.len());
        let r = read_own(addr, out);
        e.unpin_range(pins);
        r
    })
}
