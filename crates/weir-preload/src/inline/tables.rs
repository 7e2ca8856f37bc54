//! libc's functions that make a system call with a buffer. Where a table names the buffers (`iovec`,
//! `msghdr`), the filter sees only the table's address, which is mostly on the stack: such buffers must be
//! brought in here. (Trapping every such call would do it too, but a filter is inherited, and programs
//! without Weir would die of the trap.) Plain buffers would be trapped; bringing them in here spares the
//! signal, which is most of a trapped call's price.

use super::{affinity, exec, own_memory, stacks, taken};
use crate::libc_next::{LIBC_CODE, find_code, set_errno};
use crate::state::{self, Weir};
use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::sync::atomic::Ordering;
use weir::engine::gate::{Passage, Trapped};
use weir::stats;
use weir_os::gate::area::Area;
use weir_os::gate::stubs::Stubs;
use weir_os::gate::table::{self, Caller, visit};
use weir_os::gate::{is_beside, read_staying};
use weir_os::sys::Errno;
use weir_os::thread;

/// The address of a live stack frame: that of the function that says it.
macro_rules! here {
    () => {{
        let here = 0u8;
        &raw const here as usize
    }};
}

/// Looks whether a call touches managed memory.
struct Look<'a> {
    engine: &'a Weir,
    frame: usize,
    managed: bool,
}

impl Caller for Look<'_> {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        self.managed |= self.engine.touches(addr, out.len());
        if self.managed {
            return Err(Errno::EAGAIN); // known by now, and the table may be away
        }
        read_staying(addr, out, Some(self.frame))
    }

    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        self.managed |= self.engine.touches(addr, len);
        Ok(())
    }
}

/// Whether a thread that waits in a call can be cancelled there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cancellation {
    Here,
    Elsewhere,
}

/// Where a call names its buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Buffers {
    /// The filter sees them: what is not done here is done when the call is trapped.
    InArguments,
    InTables,
}

unsafe extern "C" {
    fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int;
}

/// Makes the call of a claimed stub as libc makes its own: in a cancellation point a cancelled thread ends at
/// once, also when it was cancelled before. (Its pins are let go of when it is seen to have ended.)
///
/// # Safety
/// - as [`Stubs::call`].
unsafe fn call_stub(stubs: &Stubs, at: usize, nr: usize, args: [usize; 6], point: Cancellation) -> isize {
    const DEFERRED: c_int = 0;
    const ASYNCHRONOUS: c_int = 1;
    if point == Cancellation::Elsewhere {
        // SAFETY: passed on to the caller.
        return unsafe { stubs.call(at, nr, args) };
    }
    let mut before = 0;
    let jumped = &Area::current().cancel_type;
    let outer = jumped.load(Ordering::Relaxed);
    // In two steps: a handler that jumps out between them must find what to go back to.
    // SAFETY: libc's function; no frame between here and the program's holds anything that must be let go of.
    unsafe { pthread_setcanceltype(DEFERRED, &raw mut before) };
    if outer == 0 {
        Area::current().cancel_frame.store(here!() as u64, Ordering::Relaxed);
        jumped.store(before as u64 + 1, Ordering::Relaxed);
    }
    let mut deferred = 0;
    // SAFETY: as above.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut deferred) };
    // SAFETY: passed on to the caller.
    let result = unsafe { stubs.call(at, nr, args) };
    jumped.store(outer, Ordering::Relaxed);
    // SAFETY: as above; the type that was set before.
    unsafe { pthread_setcanceltype(before, &raw mut before) };
    result
}

/// The calling thread jumps to a stack pointer: if it leaves the call that it is in, its cancellation type is
/// again what it was before.
pub fn left_by_jump(target: usize) {
    let area = Area::current();
    if (target as u64) < area.cancel_frame.load(Ordering::Relaxed) {
        return; // it stays in a handler that interrupted the call
    }
    let jumped = &area.cancel_type;
    let mut before = 0;
    match jumped.swap(0, Ordering::Relaxed) {
        0 => {}
        // SAFETY: libc's function; the type that was set before.
        t => _ = unsafe { pthread_setcanceltype(t as c_int - 1, &raw mut before) },
    }
}

/// Makes a call that names managed memory, in its arguments or in tables; `None` when it does not. `frame` is
/// the address of a live stack frame near the program's.
#[inline]
fn gate(nr: c_long, args: &[usize; 6], frame: usize, buffers: Buffers, point: Cancellation) -> Option<isize> {
    let engine = state::engine().filter(|_| taken())?;
    let named = args.iter().any(|a| engine.contains(*a));
    if !named && (buffers == Buffers::InArguments || !in_tables(engine, nr, args, frame)) {
        return None;
    }
    if engine.contains(frame) {
        // This stack could leave while its thread is at a desk, with the signal blocked that would bring it
        // back.
        if buffers == Buffers::InArguments {
            return None;
        }
        stacks::be_noticed(frame);
    }
    pass(engine, nr, args, frame, buffers, point)
}

/// Whether tables of a call name managed memory.
#[inline]
fn in_tables(engine: &Weir, nr: c_long, args: &[usize; 6], frame: usize) -> bool {
    if let Some(managed) = few_parts(engine, nr, args, frame) {
        return managed;
    }
    if table::table_args(nr as usize) == 0 {
        return false;
    }
    let mut look = Look { engine, frame, managed: false };
    let _ = visit(nr as usize, args, &mut look);
    look.managed
}

/// The same for the calls that name a few parts in a table beside the caller's frame, without the walk over
/// the table of calls: these are made often, each for little.
#[inline]
fn few_parts(engine: &Weir, nr: c_long, args: &[usize; 6], frame: usize) -> Option<bool> {
    const FEW: usize = 8;
    let vectored = [libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv, libc::SYS_pwritev];
    let (table, parts) = (args[1], args[2]);
    if !vectored.contains(&nr) || parts > FEW || engine.contains(table) {
        return None;
    }
    let aligned = table.is_multiple_of(align_of::<libc::iovec>());
    if !aligned || !is_beside(frame, table, parts * size_of::<libc::iovec>()) {
        return None;
    }
    // SAFETY: all of it lies in the page of a live stack frame; the program has written it for this call.
    let parts = unsafe { core::slice::from_raw_parts(table as *const libc::iovec, parts) };
    Some(parts.iter().any(|part| part.iov_len > 0 && engine.touches(part.iov_base as usize, part.iov_len)))
}

/// Makes a call through the gate.
fn pass(
    engine: &Weir,
    nr: c_long,
    args: &[usize; 6],
    frame: usize,
    buffers: Buffers,
    point: Cancellation,
) -> Option<isize> {
    let stubs = engine.stubs()?;
    let args = *args;
    let signals = thread::block_signals();
    stats::add(&engine.core.stats.calls_wrapped, 1);
    let call = Trapped { nr: nr as usize, args, back: 0, stack: frame, frame: Some(frame) };
    let passage = engine.pass(call);
    thread::restore_signals(signals);
    let result = match passage {
        // SAFETY: the program's own call, its buffers in place.
        Passage::Stub(at) => unsafe { call_stub(stubs, at, nr as usize, args, point) },
        // libc makes it as a cancellation point, and it is trapped.
        Passage::Pieces if buffers == Buffers::InArguments => return None,
        Passage::Pieces => {
            let mask = thread::block_signals();
            let r = engine.make_in_pieces(call, mask);
            thread::restore_signals(mask);
            r
        }
    };
    Some(with_errno(result))
}

/// The kernel's result as libc returns it.
fn with_errno(result: isize) -> isize {
    match result {
        -4095..0 => {
            set_errno(-result as i32);
            -1
        }
        r => r,
    }
}

/// As [`gate`], for calls that are no cancellation points.
pub fn gated(nr: c_long, args: [usize; 6]) -> Option<isize> {
    gate(nr, &args, here!(), Buffers::InTables, Cancellation::Elsewhere)
}

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
    let result = match syscall::NEXT.get() {
        // SAFETY: libc's function of that name, with the program's arguments.
        Some(next) => unsafe { core::mem::transmute::<usize, F>(next)(nr, a, b, c, d, e, f) },
        None => -1,
    };
    crate::rights::after_raw(nr, a, result);
    result
}
