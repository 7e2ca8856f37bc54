//! fork. Our handlers are registered before anybody else's: so `prepare` runs last and `child`
//! first, and no other handler runs while the engine's gate is closed or the child's memory is not
//! watched yet.
//!
//! libc itself walks its list of open streams in the child before it runs any handler. Those
//! structures may lie in managed memory: `prepare` makes sure that they are resident.

use crate::libc_next::{_IO_list_all, _IO_list_lock, _IO_list_unlock, Next, set_errno};
use crate::{exit, state};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use weir_os::thread;

type Handler = Option<unsafe extern "C" fn()>;
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

static REGISTER: Next = Next::new(c"__register_atfork");
static REGISTERED: AtomicBool = AtomicBool::new(false);
static REFUSE: AtomicBool = AtomicBool::new(false);
/// The gate is closed by the fork under way.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Registers our handlers if that has not been done, and notes whether forks are refused.
pub fn register(refuse: bool) {
    REFUSE.store(refuse, Ordering::Relaxed);
    ensure_registered();
}

fn next_register() -> Option<RegisterAtfork> {
    // SAFETY: libc's function of that name and type.
    REGISTER.get().map(|a| unsafe { core::mem::transmute::<usize, RegisterAtfork>(a) })
}

fn ensure_registered() {
    if REGISTERED.swap(true, Ordering::AcqRel) {
        return;
    }
    if let Some(f) = next_register() {
        // SAFETY: handlers that live as long as the process (the library is never unloaded).
        unsafe { f(Some(prepare), Some(parent), Some(child), core::ptr::null_mut()) };
    }
}

/// What `pthread_atfork` calls: whoever comes, ours were registered first.
///
/// # Safety
/// - as `pthread_atfork(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(a: Handler, b: Handler, c: Handler, dso: *mut c_void) -> c_int {
    ensure_registered();
    match next_register() {
        // SAFETY: passed on.
        Some(f) => unsafe { f(a, b, c, dso) },
        None => libc::ENOMEM,
    }
}

/// # Safety
/// - as `fork(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    static NEXT: Next = Next::new(c"fork");
    if REFUSE.load(Ordering::Relaxed) && state::engine().is_some() {
        set_errno(libc::EAGAIN);
        return -1;
    }
    match NEXT.get() {
        Some(a) => {
            // SAFETY: libc's fork; our handlers run inside it.
            let pid = unsafe { core::mem::transmute::<usize, extern "C" fn() -> libc::pid_t>(a)() };
            if pid < 0 {
                let errno = std::io::Error::last_os_error().raw_os_error();
                after_failed_fork();
                set_errno(errno.unwrap_or(libc::EAGAIN));
            }
            pid
        }
        None => -1,
    }
}

/// `_Fork` runs no handlers, so ours run around it here.
///
/// # Safety
/// - as `_Fork(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    static NEXT: Next = Next::new(c"_Fork");
    let Some(a) = NEXT.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: libc's function; the handlers pair up.
    unsafe {
        prepare();
        let pid = core::mem::transmute::<usize, extern "C" fn() -> libc::pid_t>(a)();
        if pid == 0 {
            child();
            _IO_list_unlock(); // `fork` would have reset it
        } else {
            parent();
        }
        pid
    }
}

unsafe extern "C" fn prepare() {
    state::wait_until_started();
    let Some(engine) = state::engine() else { return };
    // Other threads must not hold the stream list while the gate is closed: they could fault.
    // SAFETY: a recursive lock; fork itself takes it again after us.
    unsafe { _IO_list_lock() };
    loop {
        touch_streams(|_| true);
        engine.fork_prepare();
        if touch_streams(|addr| !engine.contains(addr) || engine.is_resident(addr)) {
            break;
        }
        engine.fork_done(); // evicted between the touch and the gate: again
    }
    engine.fork_share_swap();
    CLOSED.store(true, Ordering::Relaxed);
}

/// A fork by a system call past libc (`fork`, or `clone` and `clone3` without CLONE_VM), with what the handlers do around libc's.
/// Its child goes on here, on the same stack, whatever stack the call names. Returns the kernel's result.
///
/// libc's streams are not looked at: no code of libc's runs before the child's memory is watched again.
pub fn raw(nr: libc::c_long, mut args: [usize; 6]) -> isize {
    if nr == libc::SYS_clone {
        args[1] = 0;
    }
    if REFUSE.load(Ordering::Relaxed) && state::engine().is_some() {
        return -(libc::EAGAIN as isize);
    }
    let signals = thread::block_signals();
    state::wait_until_started();
    if let Some(engine) = state::engine() {
        engine.fork_prepare();
        engine.fork_share_swap();
        CLOSED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the program's own call; the child is a copy.
    let result = unsafe { weir_os::sys::syscall_raw(nr, args) };
    match result {
        0 => in_child(),
        _ => {
            in_parent();
            if result < 0 {
                after_failed_fork();
            }
        }
    }
    thread::restore_signals(signals);
    result
}

fn after_failed_fork() {
    if let Some(engine) = state::engine() {
        engine.fork_failed();
    }
}

unsafe extern "C" fn parent() {
    if in_parent() {
        // SAFETY: taken in `prepare`.
        unsafe { _IO_list_unlock() };
    }
}

/// Whether the gate was closed.
fn in_parent() -> bool {
    let closed = CLOSED.swap(false, Ordering::Relaxed);
    if closed {
        if let Some(engine) = state::engine() {
            engine.fork_done();
        }
    }
    closed
}

unsafe extern "C" fn child() {
    in_child();
}

fn in_child() {
    if !CLOSED.swap(false, Ordering::Relaxed) {
        crate::inline::forked(); // the signals are Weir's before there is an engine
        return;
    }
    exit::forked();
    if let Some(engine) = state::engine() {
        engine.fork_child();
        crate::inline::forked();
        state::restart_threads();
    }
}

/// Has the page of `addr` come in: by an instruction that writes, and changes nothing. (One that loads may be given its value while the
/// page stays where it is.)
///
/// # Safety
/// - `addr` can be written to.
unsafe fn touch(addr: usize) {
    if !state::engine().is_some_and(|e| e.contains(addr)) {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the byte keeps its value, whatever other threads do with it.
    unsafe {
        core::arch::asm!("lock or byte ptr [{at}], 0", at = in(reg) addr, options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: can be read as well.
    unsafe {
        core::ptr::read_volatile(addr as *const u8);
    }
}

/// Visits one address on every page under libc's stream structures, in list order, until `f` says
/// false. The pages come in.
fn touch_streams(f: impl Fn(usize) -> bool) -> bool {
    const CHAIN: usize = 0x68;
    const LOCK: usize = 0x88;
    /// The last byte of the largest kind.
    const LAST: usize = 0x1d7;
    // SAFETY: libc's list head; the list is locked by the caller. Each element is a stream as laid
    // out since glibc 2.1; the check of an element's own pages comes before reading its links.
    unsafe {
        let mut p = core::ptr::read_volatile(&raw const _IO_list_all) as usize;
        while p != 0 {
            for addr in [p, p + LAST] {
                if !f(addr) {
                    return false;
                }
            }
            touch(p);
            touch(p + LAST);
            let lock = core::ptr::read_volatile((p + LOCK) as *const usize);
            if lock != 0 {
                if !f(lock) {
                    return false;
                }
                touch(lock);
            }
            p = core::ptr::read_volatile((p + CHAIN) as *const usize);
        }
    }
    true
}
