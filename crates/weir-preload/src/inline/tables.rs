//! Calls whose buffers are named in tables (`iovec`, `msghdr`): the filter sees the table's address
//! only, which is mostly on the stack. So libc's functions are wrapped: when a table names managed
//! memory, its buffers are brought in first. (Trapping every such call would do it too, but a filter
//! is inherited, and programs without Weir would die of the trap.)

use super::taken;
use crate::libc_next::{Next, set_errno};
use crate::state::{self, Weir};
use core::ffi::{c_int, c_long, c_ulong, c_void};
use weir::engine::gate::{Passage, Trapped};
use weir_os::gate::read_own;
use weir_os::gate::table::{self, Caller, visit};
use weir_os::sys::Errno;
use weir_os::thread;

/// Looks whether a call touches managed memory.
struct Look<'a> {
    engine: &'a Weir,
    managed: bool,
}

impl Caller for Look<'_> {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        self.managed |= self.engine.touches(addr, out.len());
        read_own(addr, out)
    }

    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        self.managed |= self.engine.touches(addr, len);
        Ok(())
    }
}

/// Makes a call whose tables name managed memory; `None` when they do not.
pub fn gated(nr: c_long, args: [usize; 6]) -> Option<isize> {
    let engine = state::engine().filter(|_| taken())?;
    let stubs = engine.stubs()?;
    let mut look = Look { engine, managed: false };
    let _ = visit(nr as usize, &args, &mut look);
    if !look.managed {
        return None;
    }
    let signals = thread::block_signals();
    let here = 0u8;
    let call = Trapped { nr: nr as usize, args, back: 0, stack: &raw const here as usize };
    let passage = engine.pass(call);
    thread::restore_signals(signals);
    let result = match passage {
        // SAFETY: the program's own call, its buffers in place.
        Passage::Stub(at) => unsafe { stubs.call(at, nr as usize, args) },
        Passage::Pieces => {
            let mask = thread::block_signals();
            let r = engine.make_in_pieces(call, mask);
            thread::restore_signals(mask);
            r
        }
    };
    Some(match result {
        -4095..0 => {
            set_errno(-result as i32);
            -1
        }
        r => r,
    })
}

/// Wrappers: name, number, arguments, and how the result is cast.
macro_rules! tables {
    ($($name:ident $text:literal $nr:ident ($($arg:ident: $type:ty),*) -> $result:ty, [$($word:expr),*];)*) => {$(
        /// # Safety
        /// - as libc's function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            static NEXT: Next = Next::new($text);
            let mut args = [0usize; 6];
            let words: &[usize] = &[$($word),*];
            args[..words.len()].copy_from_slice(words);
            if let Some(r) = gated(libc::$nr, args) {
                return r as $result;
            }
            match NEXT.get() {
                // SAFETY: libc's function of that name and type, with the program's arguments.
                Some(a) => unsafe {
                    core::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(a)($($arg),*)
                },
                None => {
                    set_errno(libc::ENOSYS);
                    -1
                }
            }
        }
    )*};
}

type Iov = *const libc::iovec;

tables! {
    readv c"readv" SYS_readv (fd: c_int, iov: Iov, n: c_int) -> isize, [fd as usize, iov as usize, n as usize];
    writev c"writev" SYS_writev (fd: c_int, iov: Iov, n: c_int) -> isize, [fd as usize, iov as usize, n as usize];
    preadv c"preadv" SYS_preadv (fd: c_int, iov: Iov, n: c_int, at: i64) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize];
    preadv64 c"preadv64" SYS_preadv (fd: c_int, iov: Iov, n: c_int, at: i64) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize];
    pwritev c"pwritev" SYS_pwritev (fd: c_int, iov: Iov, n: c_int, at: i64) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize];
    pwritev64 c"pwritev64" SYS_pwritev (fd: c_int, iov: Iov, n: c_int, at: i64) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize];
    preadv2 c"preadv2" SYS_preadv2 (fd: c_int, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize, 0, flags as usize];
    preadv64v2 c"preadv64v2" SYS_preadv2 (fd: c_int, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize, 0, flags as usize];
    pwritev2 c"pwritev2" SYS_pwritev2 (fd: c_int, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize, 0, flags as usize];
    pwritev64v2 c"pwritev64v2" SYS_pwritev2 (fd: c_int, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize,
        [fd as usize, iov as usize, n as usize, at as usize, 0, flags as usize];
    sendmsg c"sendmsg" SYS_sendmsg (fd: c_int, msg: *const c_void, flags: c_int) -> isize,
        [fd as usize, msg as usize, flags as usize];
    recvmsg c"recvmsg" SYS_recvmsg (fd: c_int, msg: *mut c_void, flags: c_int) -> isize,
        [fd as usize, msg as usize, flags as usize];
    sendmmsg c"sendmmsg" SYS_sendmmsg (fd: c_int, msgs: *mut c_void, n: u32, flags: c_int) -> c_int,
        [fd as usize, msgs as usize, n as usize, flags as usize];
    recvmmsg c"recvmmsg" SYS_recvmmsg (fd: c_int, msgs: *mut c_void, n: u32, flags: c_int, limit: *mut c_void) -> c_int,
        [fd as usize, msgs as usize, n as usize, flags as usize, limit as usize];
    process_vm_readv c"process_vm_readv" SYS_process_vm_readv
        (pid: i32, l: Iov, ln: c_ulong, r: Iov, rn: c_ulong, flags: c_ulong) -> isize,
        [pid as usize, l as usize, ln as usize, r as usize, rn as usize, flags as usize];
    process_vm_writev c"process_vm_writev" SYS_process_vm_writev
        (pid: i32, l: Iov, ln: c_ulong, r: Iov, rn: c_ulong, flags: c_ulong) -> isize,
        [pid as usize, l as usize, ln as usize, r as usize, rn as usize, flags as usize];
}

/// # Safety
/// - as `ioctl(2)`; the third argument may be absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    static NEXT: Next = Next::new(c"ioctl");
    if table::TABLE_IOCTLS.contains(&(request as u32))
        && let Some(r) = gated(libc::SYS_ioctl, [fd as usize, request as usize, arg, 0, 0, 0])
    {
        return r as c_int;
    }
    // SAFETY: libc's function of that name; variadic integers are passed like named ones.
    NEXT.get().map_or(-1, |a| unsafe {
        core::mem::transmute::<usize, unsafe extern "C" fn(c_int, c_ulong, usize) -> c_int>(a)(
            fd, request, arg,
        )
    })
}

/// Raw system calls: those with tables, and those that Weir has to know about.
///
/// # Safety
/// - as `syscall(2)`; arguments that the call does not have may be absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    nr: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    static NEXT: Next = Next::new(c"syscall");
    const WORDS: usize = size_of::<u64>();
    if taken() && nr == libc::SYS_rt_sigprocmask && d == WORDS {
        // SAFETY: the program's sets, of which eight bytes count.
        return unsafe { super::masks::sigprocmask(a as c_int, b as *const _, c as *mut _) } as c_long;
    }
    if table::table_args(nr as usize) != 0
        && let Some(r) = gated(nr, [a, b, c, d, e, f])
    {
        return r as c_long;
    }
    type F = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    match NEXT.get() {
        // SAFETY: libc's function of that name, with the program's arguments.
        Some(next) => unsafe { core::mem::transmute::<usize, F>(next)(nr, a, b, c, d, e, f) },
        None => -1,
    }
}
