//! Raw system calls: no libc symbol, no `errno`, so that hooks which interpose libc can use
//! them from any context, early in a process and between `fork` and `exec`.

use core::arch::asm;
use core::fmt;

/// A kernel error number, positive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:expr),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: Errno = Errno($value);)*

            /// The symbolic name, or `None` for a number Weir has no use for.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

errnos! {
    EPERM = 1, ENOENT = 2, ESRCH = 3, EINTR = 4, EIO = 5, ENXIO = 6, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13,
    EFAULT = 14, EBUSY = 16, EEXIST = 17, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24,
    ENOTTY = 25, EFBIG = 27, ENOSPC = 28, EROFS = 30, EPIPE = 32, ENAMETOOLONG = 36, ENOSYS = 38, ELOOP = 40, ENODATA = 61,
    ENOLINK = 67, EBADMSG = 74, EILSEQ = 84, EOPNOTSUPP = 95, ETIMEDOUT = 110, ESTALE = 116, EUCLEAN = 117,
    EREMOTEIO = 121, EDQUOT = 122, ENOMEDIUM = 123, ECANCELED = 125,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Makes system call `nr` and returns the raw result (negative errno on failure).
///
/// # Safety
/// - the call and its arguments must be sound for this process: pointers valid for what the
///   kernel does with them, mappings not pulled from under live references.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn syscall_raw(nr: libc::c_long, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the call; the clobbers are those of the x86-64 ABI. The door is
    // a `syscall; ret` somewhere.
    unsafe {
        asm!(
            "call qword ptr [rip + {door}]",
            door = sym DOOR,
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    ret
}

/// Address of the `syscall; ret` that all system calls of this crate pass through: the system-call
/// gate lets calls with managed pointers pass from one place only.
#[cfg(target_arch = "x86_64")]
static DOOR: DoorCell = DoorCell(core::sync::atomic::AtomicPtr::new(weir_door as *mut ()));

/// Read by assembly as a plain word.
#[cfg(target_arch = "x86_64")]
#[repr(transparent)]
struct DoorCell(core::sync::atomic::AtomicPtr<()>);

/// Makes all system calls of this crate at `address` from now on.
///
/// # Safety
/// - `syscall; ret` lies there, for ever.
#[cfg(target_arch = "x86_64")]
pub unsafe fn set_door(address: usize) {
    DOOR.0.store(address as *mut (), core::sync::atomic::Ordering::Release);
}

/// Where all system calls of this crate are made now.
#[cfg(target_arch = "x86_64")]
pub fn door() -> usize {
    DOOR.0.load(core::sync::atomic::Ordering::Acquire) as usize
}

/// Makes them in this library again, if they were made at `address`.
#[cfg(target_arch = "x86_64")]
pub fn leave_door(address: usize) {
    use core::sync::atomic::Ordering::{AcqRel, Relaxed};
    let _ = DOOR.0.compare_exchange(address as *mut (), weir_door as *mut (), AcqRel, Relaxed);
}

/// Makes a system call from this library's own code wherever the door is: one that a filter of the
/// gate would trap.
///
/// # Safety
/// - as [`syscall_raw`].
#[cfg(target_arch = "x86_64")]
pub unsafe fn syscall_outside(nr: libc::c_long, first: usize) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the call.
    unsafe {
        asm!("call {door}", door = sym weir_door, inlateout("rax") nr as isize => ret, in("rdi") first,
            in("rsi") 0, in("rdx") 0, in("r10") 0, in("r8") 0, in("r9") 0, lateout("rcx") _, lateout("r11") _);
    }
    ret
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn weir_door();
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.weir_door,\"ax\",@progbits",
    ".type weir_door,@function",
    ".hidden weir_door",
    ".globl weir_door",
    "weir_door:",
    "syscall",
    "ret",
    ".size weir_door, . - weir_door",
    ".popsection",
);

/// Makes system call `nr` and returns the raw result (negative errno on failure).
///
/// # Safety
/// - the call and its arguments must be sound for this process.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn syscall_raw(nr: libc::c_long, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the call; the clobbers are those of the arm64 ABI.
    unsafe {
        asm!(
            "svc 0",
            in("x8") nr as isize,
            inlateout("x0") a[0] as isize => ret,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack)
        );
    }
    ret
}

/// As [`syscall_raw`], with the result decoded.
///
/// # Safety
/// - as [`syscall_raw`].
#[inline]
pub unsafe fn syscall(nr: libc::c_long, a: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    let ret = unsafe { syscall_raw(nr, a) };
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

/// Waits until a descriptor has one of these events, or its end: what it has, and 0 if nothing came in this
/// time (`None`: for ever). Errors: those of `ppoll`, EINTR among them.
pub fn poll(fd: i32, events: i16, timeout_ns: Option<u64>) -> Result<i16, Errno> {
    let mut asked = libc::pollfd { fd, events, revents: 0 };
    // The kernel writes what is left of it.
    let mut timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let until = timeout.as_mut().map_or(0, |timeout| core::ptr::from_mut(timeout) as usize);
    // SAFETY: live structures of the kernel's layout, and no mask.
    unsafe { syscall(libc::SYS_ppoll, [&raw mut asked as usize, 1, until, 0, 0, 0]) }?;
    Ok(asked.revents)
}

/// Closes `fd`; errors are of no use to anybody here.
pub fn close(fd: i32) {
    // SAFETY: closing a descriptor touches no memory.
    let _ = unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// This process's id.
pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall_raw(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Kernel id of the calling thread.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]).unwrap_or(0) as u32 }
}

/// Fills `bytes` with random bytes, without blocking.
pub fn random(bytes: &mut [u8]) -> Result<(), Errno> {
    const GRND_NONBLOCK: usize = 1;
    let (ptr, len) = (bytes.as_mut_ptr() as usize, bytes.len());
    // SAFETY: the kernel writes into the live slice.
    match unsafe { syscall(libc::SYS_getrandom, [ptr, len, GRND_NONBLOCK, 0, 0, 0])? } {
        n if n == len => Ok(()),
        _ => Err(Errno::EAGAIN),
    }
}

/// Whether the user wants addresses that are the same in every run (the personality that `setarch -R` and
/// debuggers set).
pub fn addresses_are_fixed() -> bool {
    const ADDR_NO_RANDOMIZE: usize = 0x0004_0000;
    const ASK: usize = 0xffff_ffff;
    // SAFETY: no pointers; asks only.
    unsafe { syscall(libc::SYS_personality, [ASK, 0, 0, 0, 0, 0]) }.is_ok_and(|p| p & ADDR_NO_RANDOMIZE != 0)
}

/// RLIMIT_AS in bytes; `u64::MAX` when there is none.
pub fn address_space_limit() -> u64 {
    soft_limit(libc::RLIMIT_AS as usize)
}

/// RLIMIT_FSIZE in bytes; `u64::MAX` when there is none.
pub fn file_size_limit() -> u64 {
    soft_limit(libc::RLIMIT_FSIZE as usize)
}

/// RLIMIT_NOFILE: descriptors have lower numbers.
pub fn descriptor_limit() -> u64 {
    soft_limit(libc::RLIMIT_NOFILE as usize)
}

/// RLIMIT_DATA in bytes; `u64::MAX` when there is none.
pub fn data_limit() -> u64 {
    soft_limit(libc::RLIMIT_DATA as usize)
}

/// Does something while RLIMIT_DATA is what it may be raised to; `None` where it is that already. What the
/// program has does not count anew for it natively, but does where its protection comes back.
pub(crate) fn beyond_data_limit<R>(f: impl FnOnce() -> R) -> Option<R> {
    let limit = limits(libc::RLIMIT_DATA as usize);
    let set = |to: [u64; 2]| {
        let args = [0, libc::RLIMIT_DATA as usize, to.as_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads two words of the live array.
        let _ = unsafe { syscall(libc::SYS_prlimit64, args) };
    };
    (limit[0] < limit[1]).then(|| {
        set([limit[1]; 2]);
        let r = f();
        set(limit);
        r
    })
}

fn soft_limit(resource: usize) -> u64 {
    limits(resource)[0]
}

/// What a limit is, and what it may be raised to.
fn limits(resource: usize) -> [u64; 2] {
    let mut limit = [u64::MAX; 2];
    // SAFETY: the kernel writes two words into the live array.
    let _ = unsafe { syscall(libc::SYS_prlimit64, [0, resource, 0, limit.as_mut_ptr() as usize, 0, 0]) };
    limit
}

/// Does something while the process may be dumped; `None` where it may be already, or may not become so.
pub(crate) fn while_dumpable<R>(f: impl FnOnce() -> R) -> Option<R> {
    let control = |what: i32, to: usize| {
        // SAFETY: numbers by value.
        unsafe { syscall(libc::SYS_prctl, [what as usize, to, 0, 0, 0, 0]) }
    };
    if control(libc::PR_GET_DUMPABLE, 0) == Ok(1) || control(libc::PR_SET_DUMPABLE, 1).is_err() {
        return None;
    }
    let r = f();
    // Who changed his user may have had 2 (by root alone), which nobody can set: this says less, not more.
    let _ = control(libc::PR_SET_DUMPABLE, 0);
    Some(r)
}

/// Ends the process by SIGKILL: no handler of the program runs.
pub fn kill_self() -> ! {
    // SAFETY: no pointers.
    unsafe { syscall_raw(libc::SYS_kill, [getpid() as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
    exit_group(137)
}

/// Ends the process at once with `status`, running no destructors.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { syscall_raw(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Whether this process has an io_uring, looked for among its first 1024 descriptors.
pub fn has_io_uring() -> bool {
    // SAFETY: no pointers.
    let is_open = |fd: &u32| unsafe {
        syscall(libc::SYS_fcntl, [*fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]).is_ok()
    };
    (0..1024).filter(is_open).any(|fd: u32| {
        let mut path = *b"/proc/self/fd/\0\0\0\0\0";
        let (mut digits, mut rest) = (1, fd);
        while rest >= 10 {
            (digits, rest) = (digits + 1, rest / 10);
        }
        let mut left = fd;
        for place in (0..digits).rev() {
            path[14 + place] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        let mut target = [0u8; 32];
        // SAFETY: a NUL-terminated path and a live buffer of the length given.
        let read = unsafe {
            let args =
                [libc::AT_FDCWD as usize, path.as_ptr() as usize, target.as_mut_ptr() as usize, 32, 0, 0];
            syscall(libc::SYS_readlinkat, args)
        };
        read.is_ok_and(|n| target[..n].starts_with(b"anon_inode:[io_uring]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_calls_come_back_as_named_errors() {
        // SAFETY: a read into nothing from a bad descriptor.
        let r = unsafe { syscall(libc::SYS_read, [usize::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(r, Err(Errno::EBADF));
        assert_eq!(format!("{}", Errno::EBADF), "EBADF");
        assert_eq!(format!("{}", Errno(4000)), "errno 4000");
    }

    #[test]
    fn a_ring_of_the_programs_is_seen_wherever_its_descriptor_is() {
        let mut params = [0u8; 120];
        // SAFETY: the kernel reads and writes the live structure.
        let made =
            unsafe { syscall(libc::SYS_io_uring_setup, [1, params.as_mut_ptr() as usize, 0, 0, 0, 0]) };
        let Ok(low) = made else {
            println!("io_uring is not allowed here: {made:?}");
            return;
        };
        assert!(has_io_uring());
        // SAFETY: no pointers; a descriptor of three digits.
        let high = unsafe { syscall(libc::SYS_fcntl, [low, libc::F_DUPFD as usize, 700, 0, 0, 0]) }.unwrap();
        close(low as i32);
        assert!(has_io_uring());
        close(high as i32);
    }
}
