//! libc's functions that make a system call with a buffer. Where a table names the buffers (`iovec`,
//! `msghdr`), the filter sees only the table's address, which is mostly on the stack: such buffers must be
//! brought in here. (Trapping every such call would do it too, but a filter is inherited, and programs
//! without Weir would die of the trap.) Plain buffers would be trapped; bringing them in here spares the
//! signal, which is most of a trapped call's price.

use super::gate::{Buffers, Cancellation, gate, gated, here, with_errno};
use super::ours::taken;
use super::{affinity, exec, own_memory};
use crate::libc_next::{LIBC_CODE, find_code, set_errno};
use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::sync::atomic::Ordering;
use weir_os::gate::table;

/// Wrappers: name, number, arguments, how the result is cast, the arguments as words; [`prepare`] looks their
/// names up.
macro_rules! wrappers {
    ($($buffers:ident $point:ident { $($name:ident $text:literal $nr:ident
        ($($arg:ident: $type:ty),*) -> $result:ty, [$($word:expr),*];)* })*) => {
        $($(
            mod $name {
                pub static NEXT: crate::libc_next::Next = crate::libc_next::Next::new($text);
                /// Whether the call may be made here: the next function is libc's.
                pub static DIRECT: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);
            }

            /// # Safety
            /// - as libc's function of that name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                let mut args = [0usize; 6];
                let words: &[usize] = &[$($word),*];
                args[..words.len()].copy_from_slice(words);
                if let Some(r) = own_memory::transfer(libc::$nr, &args) {
                    return r as $result;
                }
                if (Buffers::$buffers == Buffers::InTables || $name::DIRECT.load(Ordering::Relaxed))
                    && let Some(r) = gate(libc::$nr, &args, here!(), Buffers::$buffers, Cancellation::$point) {
                    return r as $result;
                }
                match $name::NEXT.get() {
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
        )*)*

        /// Looks up libc's functions of these names, while that is safe: a program may make its first call in
        /// a signal handler.
        pub fn prepare() {
            find_code();
            $($(
                let direct = $name::NEXT.get().is_some_and(|a| LIBC_CODE.contains(a));
                $name::DIRECT.store(direct, Ordering::Relaxed);
            )*)*
            let _ = (ioctl::NEXT.get(), syscall::NEXT.get());
        }
    };
}

type Iov = *const libc::iovec;

type Buf = *const c_void;

wrappers! { InArguments Here {
    read c"read" SYS_read (fd: c_int, to: Buf, n: usize) -> isize, [fd as usize, to as usize, n];
    write c"write" SYS_write (fd: c_int, from: Buf, n: usize) -> isize, [fd as usize, from as usize, n];
    pread c"pread" SYS_pread64 (fd: c_int, to: Buf, n: usize, at: i64) -> isize,
        [fd as usize, to as usize, n, at as usize];
    pread64 c"pread64" SYS_pread64 (fd: c_int, to: Buf, n: usize, at: i64) -> isize,
        [fd as usize, to as usize, n, at as usize];
    pwrite c"pwrite" SYS_pwrite64 (fd: c_int, from: Buf, n: usize, at: i64) -> isize,
        [fd as usize, from as usize, n, at as usize];
    pwrite64 c"pwrite64" SYS_pwrite64 (fd: c_int, from: Buf, n: usize, at: i64) -> isize,
        [fd as usize, from as usize, n, at as usize];
    recv c"recv" SYS_recvfrom (fd: c_int, to: Buf, n: usize, flags: c_int) -> isize,
        [fd as usize, to as usize, n, flags as usize];
    recvfrom c"recvfrom" SYS_recvfrom
        (fd: c_int, to: Buf, n: usize, flags: c_int, who: *mut c_void, len: *mut c_void) -> isize,
        [fd as usize, to as usize, n, flags as usize, who as usize, len as usize];
    send c"send" SYS_sendto (fd: c_int, from: Buf, n: usize, flags: c_int) -> isize,
        [fd as usize, from as usize, n, flags as usize];
    sendto c"sendto" SYS_sendto
        (fd: c_int, from: Buf, n: usize, flags: c_int, who: *const c_void, len: u32) -> isize,
        [fd as usize, from as usize, n, flags as usize, who as usize, len as usize];
} InTables Here {
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
} InTables Elsewhere {
    process_vm_readv c"process_vm_readv" SYS_process_vm_readv
        (pid: i32, l: Iov, ln: c_ulong, r: Iov, rn: c_ulong, flags: c_ulong) -> isize,
        [pid as usize, l as usize, ln as usize, r as usize, rn as usize, flags as usize];
    process_vm_writev c"process_vm_writev" SYS_process_vm_writev
        (pid: i32, l: Iov, ln: c_ulong, r: Iov, rn: c_ulong, flags: c_ulong) -> isize,
        [pid as usize, l as usize, ln as usize, r as usize, rn as usize, flags as usize];
} }

mod ioctl {
    pub static NEXT: crate::libc_next::Next = crate::libc_next::Next::new(c"ioctl");
}

mod syscall {
    pub static NEXT: crate::libc_next::Next = crate::libc_next::Next::new(c"syscall");
}

/// # Safety
/// - as `ioctl(2)`; the third argument may be absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    if table::TABLE_IOCTLS.contains(&(request as u32))
        && let Some(r) = gated(libc::SYS_ioctl, [fd as usize, request as usize, arg, 0, 0, 0])
    {
        return r as c_int;
    }
    // SAFETY: libc's function of that name; variadic integers are passed like named ones.
    ioctl::NEXT.get().map_or(-1, |a| unsafe {
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
    const WORDS: usize = size_of::<u64>();
    if taken() && nr == libc::SYS_rt_sigprocmask && d == WORDS {
        // SAFETY: the program's sets, of which eight bytes count.
        return unsafe { super::masks::sigprocmask(a as c_int, b as *const _, c as *mut _) } as c_long;
    }
    match nr {
        libc::SYS_exit_group => crate::exit::at_exit_group(),
        libc::SYS_execve => {
            // SAFETY: passed on.
            return unsafe { exec::execve(a as *const _, b as *const _, c as *const _) }.into();
        }
        libc::SYS_execveat => {
            // SAFETY: passed on.
            let r = unsafe {
                exec::execveat(a as c_int, b as *const _, c as *const _, d as *const _, e as c_int)
            };
            return r.into();
        }
        // SAFETY: passed on.
        libc::SYS_sched_setaffinity => return unsafe { affinity::set_raw(a as c_int, b, c as *const _) },
        libc::SYS_io_uring_setup if !super::rings::may_be_made() => {
            return with_errno(-(libc::ENOSYS as isize)) as c_long;
        }
        _ => {}
    }
    if let Some(r) = crate::fork::raw_if_copy(nr, [a, b, c, d, e, f]) {
        return with_errno(r) as c_long;
    }
    if nr == libc::SYS_vmsplice {
        // SAFETY: passed on.
        return unsafe { crate::splice::vmsplice(a as c_int, b as Iov, c, d as u32) } as c_long;
    }
    if let Err(e) = crate::kept::before(nr, [a, b, c, d, e]) {
        set_errno(e.0);
        return -1;
    }
    if let Some(r) = own_memory::transfer(nr, &[a, b, c, d, e, f]) {
        return r as c_long;
    }
    if table::table_args(nr as usize) != 0
        && let Some(r) = gated(nr, [a, b, c, d, e, f])
    {
        return r as c_long;
    }
    type F = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    crate::rights::around(nr, a, || match syscall::NEXT.get() {
        // SAFETY: libc's function of that name, with the program's arguments.
        Some(next) => unsafe { core::mem::transmute::<usize, F>(next)(nr, a, b, c, d, e, f) },
        None => -1,
    })
}
