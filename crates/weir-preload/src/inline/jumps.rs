//! Jumps: `longjmp` out of a handler ends it, and the system calls that it interrupted. libc sets the
//! signal mask by a call that no filter may trap (see the filter), from the buffer that it is given:
//! it is given a copy that is not managed memory.

use super::gate;
use super::ours::taken;
use crate::libc_next::{Next, set_errno};
use crate::state::{self, Weir};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::sync::Mutex;
use weir_os::gate::area::{self, Area};
use weir_os::mem::PAGE_BYTES;
use weir_os::thread;

/// Bytes of libc's `jmp_buf` and `ucontext_t`.
const BUFFER_BYTES: usize = 200;
const CONTEXT_BYTES: usize = size_of::<libc::ucontext_t>();
const _: () = assert!(CONTEXT_BYTES <= area::BUFFER_BYTES && BUFFER_BYTES <= area::BUFFER_BYTES);
/// Where a jump buffer has the stack pointer, hidden by libc's pointer guard.
const STACK_WORD: usize = 6;
/// Calls further below the target of a jump are another stack's.
const REACH_BYTES: usize = 8 << 20;

/// The stack pointer that a jump goes to.
///
/// # Safety
/// - a jump buffer that libc filled.
unsafe fn target_of(env: *const c_void) -> usize {
    let guard: usize;
    // SAFETY: reads libc's pointer guard from the thread control block; the buffer is the caller's.
    unsafe {
        core::arch::asm!("mov {}, fs:0x30", out(reg) guard, options(nostack, preserves_flags, readonly));
        env.cast::<usize>().add(STACK_WORD).read().rotate_right(17) ^ guard
    }
}

/// The memory of the alternate stack: first address, and one past the last.
fn alternate() -> (usize, usize) {
    // SAFETY: asks only.
    let stack = unsafe { weir_os::signal::alternate_stack(None) };
    stack.map_or((0, 0), |s| (s.ss_sp as usize, s.ss_sp as usize + s.ss_size))
}

/// Whether a jump to `target` leaves the frame at `frame` for good. A handler that jumps within the alternate
/// stack leaves nothing of the other.
fn is_left(frame: usize, target: usize, alternate: (usize, usize)) -> bool {
    let there = |at: usize| (alternate.0..alternate.1).contains(&at);
    match (there(frame), there(target)) {
        (true, false) => true,
        (false, true) => false,
        _ => frame < target && target - frame < REACH_BYTES,
    }
}

/// The calling thread leaves everything below `target`: calls that were interrupted there never
/// return, and what they pinned or held is free.
fn leave_calls(target: usize) {
    let Some(e) = state::engine() else { return };
    e.leave_hold(|frame| is_left(frame, target, alternate()));
    let (Some(stubs), me) = (e.stubs(), thread::id()) else { return };
    if e.core.pins.pages() == 0 {
        return;
    }
    let signals = thread::block_signals();
    let alternate = alternate();
    stubs.each_active(|c| c.thread == me && is_left(c.stack, target, alternate), &mut |pins| {
        e.unpin_range(pins)
    });
    thread::restore_signals(signals);
}

/// # Safety
/// - as `longjmp(3)`; `next` is libc's function.
unsafe fn jump(next: &Next, env: *mut c_void, value: c_int) -> ! {
    let Some(a) = next.get() else { weir_os::sys::kill_self() };
    // SAFETY: libc's function of that type; it needs nothing of this frame.
    let next = unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void, c_int) -> !>(a) };
    if !taken() {
        // SAFETY: passed on.
        unsafe { next(env, value) }
    }
    let area = Area::current();
    area.handler_stack.store(0, Ordering::Relaxed);
    // SAFETY: the program's buffer, read by its own thread; the copy is as large.
    unsafe {
        let copy = area.buffer();
        core::ptr::copy_nonoverlapping(env.cast::<u8>(), copy, BUFFER_BYTES);
        let target = target_of(copy.cast());
        leave_calls(target);
        gate::left_by_jump(target);
        next(copy.cast(), value)
    }
}

macro_rules! long_jump {
    ($($name:ident $text:literal),*) => {$(
        /// # Safety
        /// - as `longjmp(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(env: *mut c_void, value: c_int) -> ! {
            static NEXT: Next = Next::new($text);
            // SAFETY: passed on.
            unsafe { jump(&NEXT, env, value) }
        }
    )*};
}

long_jump!(longjmp c"longjmp", _longjmp c"_longjmp", siglongjmp c"siglongjmp", __longjmp_chk c"__longjmp_chk");

/// # Safety
/// - as `setcontext(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setcontext(context: *const c_void) -> c_int {
    static NEXT: Next = Next::new(c"setcontext");
    let Some(a) = NEXT.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: libc's function of that name and type; the copy is as large as the program's context.
    // What that points to (the floating-point state) is read by libc itself.
    unsafe {
        let next = core::mem::transmute::<usize, unsafe extern "C" fn(*const c_void) -> c_int>(a);
        if !taken() {
            return next(context);
        }
        let target = (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RSP as usize];
        gate::left_by_jump(target as usize);
        let copy = Area::current().buffer();
        core::ptr::copy_nonoverlapping(context.cast::<u8>(), copy, CONTEXT_BYTES);
        next(copy.cast())
    }
}

/// Pages of contexts that coroutines return to, and what pins each: the latest of them.
static RETURNS: Mutex<VecDeque<(usize, u32)>> = Mutex::new(VecDeque::new());
const RETURNS_MAX: usize = 1024;

/// A coroutine that ends goes on at another context, by libc's own inner `setcontext`, which no hook
/// sees: that context stays in memory. Returns libc's `makecontext`.
extern "C" fn note_context(context: *const libc::ucontext_t) -> usize {
    static NEXT: Next = Next::new(c"makecontext");
    // SAFETY: a context that the program is making.
    let link = unsafe { (*context).uc_link } as usize;
    if taken()
        && let Some(e) = state::owner(link)
    {
        for page in [link / PAGE_BYTES, (link + CONTEXT_BYTES) / PAGE_BYTES] {
            keep_page(e, page);
        }
    }
    NEXT.get().unwrap_or_else(|| weir_os::sys::kill_self())
}

/// Pins a page unless that has been done; lets go of the one pinned longest ago for it.
fn keep_page(e: &Weir, page: usize) {
    let signals = thread::block_signals();
    let known = {
        let _inside = super::stacks::section();
        RETURNS.lock().is_ok_and(|pages| pages.iter().any(|(p, _)| *p == page))
    };
    if !known {
        let pins = e.pin_range(page * PAGE_BYTES, PAGE_BYTES);
        let over = {
            let _inside = super::stacks::section();
            RETURNS.lock().ok().and_then(|mut pages| {
                pages.push_back((page, pins));
                if pages.len() > RETURNS_MAX { pages.pop_front() } else { None }
            })
        };
        if let Some((_, pins)) = over {
            e.unpin_range(pins);
        }
    }
    thread::restore_signals(signals);
}

/// # Safety
/// - as `makecontext(3)`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn makecontext() {
    // Its arguments are as many as the caller says: they stay where they are.
    core::arch::naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
        "call {note}",
        "mov r11, rax",
        "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "jmp r11",
        note = sym note_context,
    )
}
