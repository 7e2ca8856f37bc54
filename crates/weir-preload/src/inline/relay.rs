//! What stands before every handler of the program. The kernel writes signal frames to an alternate stack,
//! always: the interrupted stack may be managed memory of which the kernel cannot bring in a page. A handler
//! that did not ask for an alternate stack, or whose thread set none, runs on the interrupted one all the
//! same: the frame is copied there, by user code, whose faults can be resolved.

use super::actions::{handler_of, wants_alternate_stack};
use super::context::Context;
use super::ours::ours;
use super::{deliver, masks, stacks};
use core::ffi::c_int;

/// Bytes below a stack pointer that belong to the interrupted function.
const RED_ZONE: usize = 128;
const FRAME_ALIGN: usize = 64;
/// Before the context lies the address of the code that returns from the signal.
const RETURN_BYTES: usize = size_of::<usize>();
/// Marks floating-point state with extended parts, and where the mark and their size are.
const EXTENDED_MARK: u32 = 0x4650_5853;
const MARK_OFFSET: usize = 464;
const PLAIN_STATE_BYTES: usize = 512;

/// The kernel calls this, on the alternate stack if the thread has one.
pub extern "C" fn relay(number: c_int, info: *mut libc::siginfo_t, raw: *mut libc::ucontext_t) {
    // SAFETY: the kernel's live context.
    let mut context = unsafe { Context::new(raw) };
    let stack = *context.stack();
    let on = |a: usize| a.wrapping_sub(stack.ss_sp as usize) < stack.ss_size;
    let here = 0u8;
    let alternate = wants_alternate_stack(number) && stacks::has_alternate(&stack);
    if alternate || !on(&raw const here as usize) || on(context.sp()) {
        return run(number, info, raw);
    }
    // SAFETY: the frame that the kernel wrote, whole; the room for the copy is the interrupted
    // thread's own stack, below its red zone.
    unsafe {
        let (frame, shift) = copy_frame(raw, context.sp());
        let moved = |p: usize| p.wrapping_sub(shift);
        core::arch::asm!(
            "mov rsp, {frame}",
            "jmp {run}",
            frame = in(reg) frame,
            run = sym run,
            in("edi") number,
            in("rsi") moved(info as usize),
            in("rdx") moved(raw as usize),
            options(noreturn),
        )
    }
}

/// Copies a signal frame to the stack that was interrupted at `sp`, as the kernel would have laid it
/// out there. Returns its address and how far down it moved.
///
/// # Safety
/// - the context lies in a whole frame of the kernel's.
unsafe fn copy_frame(raw: *mut libc::ucontext_t, sp: usize) -> (usize, usize) {
    let frame = raw as usize - RETURN_BYTES;
    // SAFETY: inside the kernel's frame.
    unsafe {
        let state = (*raw).uc_mcontext.fpregs as usize;
        let mark = (state + MARK_OFFSET) as *const u32;
        let state_bytes = match state {
            0 => 0,
            _ if mark.read() == EXTENDED_MARK => mark.add(1).read() as usize,
            _ => PLAIN_STATE_BYTES,
        };
        let info_end = raw as usize + KERNEL_CONTEXT_BYTES + size_of::<libc::siginfo_t>();
        let end = info_end.max(state + state_bytes);
        let shift = (end.wrapping_sub(sp - RED_ZONE)).next_multiple_of(FRAME_ALIGN);
        let to = frame.wrapping_sub(shift);
        core::ptr::copy(frame as *const u8, to as *mut u8, end - frame);
        let copy = (to + RETURN_BYTES) as *mut libc::ucontext_t;
        if state != 0 {
            (*copy).uc_mcontext.fpregs = state.wrapping_sub(shift) as *mut _;
        }
        (to, shift)
    }
}

/// The kernel's `struct ucontext` is shorter than libc's.
const KERNEL_CONTEXT_BYTES: usize = 304;

/// The program's handler: it sees those of Weir's signals as blocked that it asked for, and the mask
/// that it returns to blocks none of them really.
extern "C" fn run(number: c_int, info: *mut libc::siginfo_t, raw: *mut libc::ucontext_t) {
    let (handler, blocked) = handler_of(number);
    // SAFETY: the live context.
    let mut context = unsafe { Context::new(raw) };
    let believed = masks::blocked_at(context.sp());
    *context.mask() |= believed;
    deliver::run_handler(handler, blocked, number, info, raw);
    let wanted = *context.mask() & ours();
    *context.mask() &= !ours();
    if wanted != believed {
        masks::believe_change(libc::SIG_SETMASK, wanted);
    }
}
