//! New threads: what their creator believes to have blocked is blocked for them too, and a stack in
//! managed memory stays where it is: libc works on it with all signals blocked, at both ends.

use super::ours::taken;
use super::stacks;
use crate::libc_next::Next;
use crate::state;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use weir_os::gate::area::Area;
use weir_os::gate::dispatch;
use weir_os::thread;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// Pinned at the top of a given stack.
const TOP_BYTES: usize = 64 << 10;

/// What the new thread needs to know.
struct Begin {
    start: Start,
    arg: *mut c_void,
    blocked: u64,
    /// What pins its stack.
    pins: u32,
}

/// # Safety
/// - as `pthread_create(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    handle: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    start: Start,
    arg: *mut c_void,
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_create");
    let Some(a) = NEXT.get() else { return libc::EAGAIN };
    // SAFETY: libc's function of that name and type.
    let next = unsafe { core::mem::transmute::<usize, Create>(a) };
    if !taken() && state::engine().is_none() {
        // SAFETY: passed on.
        return unsafe { next(handle, attr, start, arg) };
    }
    state::running().inspect(|e| e.make_room_for_thread());
    // SAFETY: null or a valid attribute object, says the caller.
    let pins = unsafe { pin_given_stack(attr) };
    let blocked = Area::current().blocked.load(Ordering::Relaxed);
    if blocked == 0 && pins == 0 && !dispatch::is_on() {
        // SAFETY: passed on.
        return unsafe { next(handle, attr, start, arg) };
    }
    let begin = Box::into_raw(Box::new(Begin { start, arg, blocked, pins }));
    // SAFETY: passed on; the new thread takes the box.
    let r = unsafe { next(handle, attr, enter, begin.cast()) };
    if r != 0 {
        // SAFETY: no thread has taken it.
        let begin = unsafe { Box::from_raw(begin) };
        if let Some(e) = state::engine() {
            e.unpin_range(begin.pins);
        }
    }
    r
}

/// Pins a stack that the program gives a thread, if it is managed memory.
///
/// # Safety
/// - null or a valid attribute object.
unsafe fn pin_given_stack(attr: *const libc::pthread_attr_t) -> u32 {
    let (mut at, mut len) = (core::ptr::null_mut(), 0);
    // SAFETY: passed on; live cells.
    if attr.is_null() || unsafe { libc::pthread_attr_getstack(attr, &mut at, &mut len) } != 0 {
        return 0;
    }
    let Some(e) = state::owner(at as usize) else { return 0 };
    // libc's control block and the first frames: what is below has an alternate stack beside it. Also where
    // threads serve faults: when a thread ends the kernel writes to its control block, and then waits for
    // nobody.
    thread::with_signals_blocked(|| e.pin_range(at as usize + len - len.min(TOP_BYTES), len.min(TOP_BYTES)))
}

extern "C" fn enter(begin: *mut c_void) -> *mut c_void {
    // SAFETY: the box that `pthread_create` gave up.
    let Begin { start, arg, blocked, pins } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    Area::current().blocked.store(blocked, Ordering::Relaxed);
    if pins != 0 {
        stacks::on_given_stack(pins);
    }
    let _ = dispatch::switch_on(); // what the kernel gave one thread it gives all
    start(arg)
}
