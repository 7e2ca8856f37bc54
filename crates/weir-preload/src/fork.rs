//! fork. Our handlers are registered before anybody else's: so `prepare` runs last and `child`
//! first, and no other handler runs while the engine's gate is closed or the child's memory is not
//! watched yet.
//!
//! libc itself walks its list of open streams in the child before it runs any handler. Those
//! structures may lie in managed memory: `prepare` makes sure that they are resident.

use crate::inline::child;
use crate::inline::ours::{ours, taken};
use crate::libc_next::{_IO_list_all, _IO_list_lock, _IO_list_unlock, Next, set_errno};
use crate::{brk, exit, heap, jemalloc, kept, live, shm, state, threads};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use weir::engine::threads::{fatal, say};
use weir_os::mem::PAGE_BYTES;
use weir_os::stack::Stack;
use weir_os::thread;

type Handler = Option<unsafe extern "C" fn()>;
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

static REGISTER: Next = Next::new(c"__register_atfork");
static REGISTERED: AtomicBool = AtomicBool::new(false);
static REFUSE: AtomicBool = AtomicBool::new(false);
/// The gate is closed by the fork under way.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// The signals that its thread had blocked.
static MASK: AtomicU64 = AtomicU64::new(0);

/// What jemalloc would have registered: before a fork, after it in the parent, and in the child.
static JEMALLOCS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

fn jemallocs(when: usize) {
    match JEMALLOCS[when].load(Ordering::Acquire) {
        0 => {}
        // SAFETY: jemalloc's function, stored above.
        f => unsafe { core::mem::transmute::<usize, extern "C" fn()>(f)() },
    }
}

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
    if jemalloc::is_beginning() {
        // Its locks come after libc's stream list, as those of libc's own allocator do: by handlers of ours.
        for (slot, handler) in JEMALLOCS.iter().zip([a, b, c]) {
            slot.store(handler.map_or(0, |f| f as usize), Ordering::Release);
        }
        return 0;
    }
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
            end_in_child(true); // `fork` would have made the list anew
        } else {
            parent();
        }
        pid
    }
}

unsafe extern "C" fn prepare() {
    prepare_with(&[]);
}

/// As `prepare`, for a child that will use these addresses before its memory is watched.
fn prepare_with(used: &[usize]) {
    let signals = block_signals();
    state::wait_until_started();
    let Some(engine) = state::engine() else { return thread::restore_signals(signals) };
    // Other threads must not hold the stream list while the gate is closed: they could fault.
    // SAFETY: a recursive lock; fork itself takes it again after us.
    unsafe { _IO_list_lock() };
    lock_outer();
    loop {
        touch_streams(|_| true);
        // SAFETY: a stack of the program's, says the caller.
        used.iter().for_each(|addr| unsafe { touch(*addr) });
        engine.fork_prepare();
        let stays = |addr: usize| !engine.contains(addr) || engine.is_resident(addr);
        if used.iter().all(|addr| stays(*addr)) && touch_streams(stays) {
            break;
        }
        engine.fork_done(); // went out between the touch and the gate: again
    }
    closed(engine, signals);
}

/// A handler of the program's that ran while the gate is closed by its own thread would wait for itself.
/// Faults must come, since jemalloc's locks lie in managed memory whose pages may be out.
fn block_signals() -> u64 {
    thread::block_signals_but(if taken() { ours() } else { 0 })
}

/// Locks that threads hold while they enter the gate.
fn lock_outer() {
    brk::lock_for_fork();
    shm::lock_for_fork();
    jemallocs(0);
}

/// The gate is closed, by a thread that had this mask.
fn closed(engine: &state::Weir, signals: u64) {
    engine.fork_share_swap();
    heap::lock_for_fork();
    MASK.store(signals, Ordering::Relaxed);
    CLOSED.store(true, Ordering::Relaxed);
}

/// A fork by a system call past libc (`fork`, or `clone` and `clone3` without CLONE_VM), with what the
/// handlers do around libc's. Its child goes on here, on the same stack, whatever stack the call names.
/// Returns the kernel's result.
///
/// libc's streams are not looked at: no code of libc's runs before the child's memory is watched again.
pub fn raw(nr: libc::c_long, mut args: [usize; 6], flags: usize) -> isize {
    if nr == libc::SYS_clone {
        args[1] = 0;
    }
    if REFUSE.load(Ordering::Relaxed) && state::engine().is_some() {
        return -(libc::EAGAIN as isize);
    }
    let signals = block_signals();
    state::wait_until_started();
    if let Some(engine) = state::engine() {
        lock_outer();
        engine.fork_prepare();
        closed(engine, signals);
    }
    // SAFETY: the program's own call; the child is a copy.
    let result = unsafe { weir_os::sys::syscall_raw(nr, args) };
    let _ = if result == 0 { on_own_stack(flags) } else { in_parent() };
    if result < 0 {
        after_failed_fork();
    }
    thread::restore_signals(signals);
    result
}

/// Whether a call past libc makes a process with a copy of the memory: then it is made here. `None`: it is
/// not one.
pub fn raw_if_copy(nr: libc::c_long, args: [usize; 6]) -> Option<isize> {
    let mut args = args;
    let mut words = [0u64; CLONE_ARGS_MAX / size_of::<u64>()];
    let (flags, stack) = match nr {
        libc::SYS_fork => (0, 0),
        libc::SYS_clone => (args[0], args[1]),
        libc::SYS_clone3 if args[0] != 0 && (CLONE_ARGS_MIN..=CLONE_ARGS_MAX).contains(&args[1]) => {
            // The program's structure could leave its frame before the call: the kernel gets a copy.
            let to = words.as_mut_ptr().cast::<u8>();
            // SAFETY: as long as the program says, and no longer than the copy.
            unsafe { core::ptr::copy_nonoverlapping(args[0] as *const u8, to, args[1]) };
            args[0] = words.as_ptr() as usize;
            (words[0] as usize, words[5] as usize)
        }
        _ => return None,
    };
    if flags & libc::CLONE_VM as usize != 0 {
        return None;
    }
    if stack != 0 {
        // It would return from `syscall` on a stack that has no frame of it.
        return Some(-(libc::EINVAL as isize));
    }
    Some(raw(nr, args, flags))
}

/// `struct clone_args` of Linux 5.3, and room for what later kernels add.
const CLONE_ARGS_MIN: usize = 64;
const CLONE_ARGS_MAX: usize = 256;

type Entry = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(Entry, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;

/// A child that `clone` makes with a copy of the memory: what it runs, once its memory is watched.
struct CloneChild {
    entry: Entry,
    arg: *mut c_void,
    flags: usize,
}

/// # Safety
/// - as `clone(2)`; the last three arguments may be absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    entry: Entry,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> c_int {
    static NEXT: Next = Next::new(c"clone");
    let Some(a) = NEXT.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: libc's function of that name; variadic words are passed like named ones.
    let next = unsafe { core::mem::transmute::<usize, Clone>(a) };
    if let Err(e) = kept::before_clone(flags, child_tid) {
        set_errno(e.0);
        return -1;
    }
    if flags & libc::CLONE_VM != 0 || state::settings().is_none() || stack.is_null() {
        // SAFETY: passed on.
        return unsafe { next(entry, stack, flags, arg, parent_tid, tls, child_tid) };
    }
    if REFUSE.load(Ordering::Relaxed) && state::engine().is_some() {
        set_errno(libc::EAGAIN);
        return -1;
    }
    // Outside managed memory, for the child to read before that is watched: with its stack. Never freed in
    // the child.
    let Ok(mut own) = Stack::new(CHILD_STACK_BYTES) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    let mut pid = -1;
    let mut call = || {
        let child = CloneChild { entry, arg, flags: flags as usize };
        let used = [stack as usize - 1, stack as usize - PAGE_BYTES];
        prepare_with(&used);
        // SAFETY: as above; the child has a copy of this stack.
        pid = unsafe {
            next(begin_clone, stack, flags, (&raw const child).cast_mut().cast(), parent_tid, tls, child_tid)
        };
        if let Some(signals) = in_parent() {
            end(true, signals);
        }
    };
    own.run(&mut call);
    if pid < 0 {
        let errno = crate::libc_next::errno();
        after_failed_fork();
        set_errno(errno);
    }
    pid
}

/// Stack of Weir's own, on which a child takes its memory over.
const CHILD_STACK_BYTES: usize = 256 << 10;

/// In such a child, on the stack that the program gave it.
unsafe extern "C" fn begin_clone(child: *mut c_void) -> c_int {
    // SAFETY: what `clone` passed, in the copy of its stack.
    let CloneChild { entry, arg, flags } = unsafe { child.cast::<CloneChild>().read() };
    if let Some(signals) = on_own_stack(flags) {
        end(true, signals);
    }
    // Not by returning: libc would end this thread only, and the engine's would stay.
    // SAFETY: the program's function.
    weir_os::sys::exit_group(unsafe { entry(arg) })
}

/// As `in_copy`, on a stack of Weir's own: the child's may be small, or managed memory that nobody watches
/// yet.
fn on_own_stack(flags: usize) -> Option<u64> {
    let mut signals = None;
    match Stack::new(CHILD_STACK_BYTES) {
        Ok(mut own) => own.run(&mut || signals = in_copy(flags)),
        Err(e) => fatal(format_args!("a child has no memory for a stack: {e}")),
    }
    // Not on that stack: a handler of Weir's calls this, and a fault's handler would begin where that one's
    // frame lies.
    if signals.is_some() {
        jemallocs(2);
    }
    signals
}

/// In a child of `clone` without CLONE_VM: takes the memory over, or ends it where that would be its parent's
/// loss.
fn in_copy(flags: usize) -> Option<u64> {
    for (flag, what) in
        [(libc::CLONE_FILES, "descriptors"), (libc::CLONE_SETTLS, "thread-local storage of its own")]
    {
        if flags & flag as usize != 0 && state::engine().is_some() {
            say(format_args!(
                "a child of clone with a copy of the memory, and shared {what}, cannot run under weir"
            ));
            weir_os::sys::exit_group(125);
        }
    }
    in_child()
}

fn after_failed_fork() {
    if let Some(engine) = state::engine() {
        engine.fork_failed();
    }
}

unsafe extern "C" fn parent() {
    if let Some(signals) = in_parent() {
        end(true, signals);
    }
}

/// If the gate was closed: opens it, and returns the mask that the thread is to have at the end.
fn in_parent() -> Option<u64> {
    if !CLOSED.swap(false, Ordering::Relaxed) {
        return None;
    }
    let signals = MASK.load(Ordering::Relaxed);
    heap::unlock_after_fork();
    if let Some(engine) = state::engine() {
        engine.fork_done();
    }
    jemallocs(1);
    unlock_outer();
    Some(signals)
}

fn unlock_outer() {
    shm::unlock_after_fork();
    brk::unlock_after_fork();
}

/// The last of a fork in either process: the thread has its mask again, and `streams`: their list is free
/// again.
fn end(streams: bool, signals: u64) {
    if streams {
        // SAFETY: taken in `prepare_with`.
        unsafe { _IO_list_unlock() };
    }
    thread::restore_signals(signals);
}

unsafe extern "C" fn child() {
    end_in_child(false); // libc has made the list anew
}

fn end_in_child(streams: bool) {
    if let Some(signals) = in_child() {
        jemallocs(2);
        end(streams, signals);
    }
}

/// If the gate was closed: takes the memory over, and returns the mask as `in_parent` does. The caller
/// releases jemalloc's locks, which lie in managed memory.
fn in_child() -> Option<u64> {
    if !CLOSED.swap(false, Ordering::Relaxed) {
        child::forked(); // the signals are Weir's before there is an engine
        return None;
    }
    heap::unlock_after_fork();
    unlock_outer();
    exit::forked();
    if let Some(engine) = state::engine() {
        engine.fork_child();
        child::forked();
        live::forked();
        threads::start_again();
    }
    Some(MASK.load(Ordering::Relaxed))
}

/// Has the page of `addr` come in: by an instruction that writes, and changes nothing. (One that loads may be
/// given its value while the page stays where it is.)
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
