//! System calls that a program makes by its own `syscall` instructions, past libc, brought to the SIGSYS
//! handler: *system call user dispatch* (Linux 5.11). It is a thread's own: not inherited by new threads and
//! children, and ended by `exec`, so that no other program is trapped by it, as one would be by a filter.
//!
//! A call goes on at a stub in this library, with the registers and the stack of the program, after the
//! handler has returned: it blocks, is interrupted and restarted as natively. The stub finds the way back in
//! the thread's area; the two registers that it uses are the kernel's across a system call. Whoever runs the
//! program's handlers keeps [`Area::stub`] over them.

use super::area::Area;
use crate::sys::{Errno, syscall};
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
/// Calls from everywhere but the range are announced, or (Linux 6.16) those from the range.
const OUTSIDE: u64 = 1;
const INSIDE: u64 = 2;

/// What the kernel is asked for, for each thread: mode, begin and length of the range; mode 0 as long as
/// nothing is.
static HOW: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Whether calls of this process's own code are announced.
#[inline]
pub fn is_on() -> bool {
    HOW[0].load(Ordering::Relaxed) != 0
}

/// Whether an instruction pointer lies where calls are announced from.
pub fn covers(ip: usize) -> bool {
    let [mode, start, len] = [0, 1, 2].map(|i| HOW[i].load(Ordering::Relaxed) as usize);
    let inside = ip.wrapping_sub(start) < len;
    if mode as u64 == INSIDE { inside } else { mode != 0 && !inside }
}

/// From here on the calling thread's calls from `code` are announced by SIGSYS; other threads follow by
/// [`switch_on`]. `lowest` is the lowest address of other code that makes calls: kernels before 6.16 announce
/// all calls below a border.
pub fn begin(code: Range<usize>, lowest: usize) -> Result<(), Errno> {
    let set = |how: [usize; 3]| {
        for (word, value) in HOW.iter().zip(how) {
            word.store(value as u64, Ordering::Relaxed);
        }
        switch_on()
    };
    let mut result = set([INSIDE as usize, code.start, code.len()]);
    if result.is_err() && code.end <= lowest {
        result = set([OUTSIDE as usize, code.end, usize::MAX - code.end]);
    }
    if result.is_err() {
        HOW[0].store(0, Ordering::Relaxed);
    }
    result
}

/// The same for a further thread.
pub fn switch_on() -> Result<(), Errno> {
    let [mode, start, len] = [0, 1, 2].map(|i| HOW[i].load(Ordering::Relaxed) as usize);
    if mode == 0 {
        return Ok(());
    }
    // SAFETY: no pointers; the handler is installed.
    unsafe { syscall(libc::SYS_prctl, [PR_SET_SYSCALL_USER_DISPATCH, mode, start, len, 0, 0]).map(|_| ()) }
}

/// Where to jump for a call that goes on at `back`, the registers being the program's.
pub fn stub(back: usize) -> usize {
    Area::current().stub[0].store(back as u64, Ordering::Relaxed);
    weir_past_call as *const () as usize
}

/// Where to jump to set an alternate stack and go on at `back` with the result: a handler that runs on the
/// present one cannot (from Linux 6.12 on the kernel looks at the handler's own stack pointer when it
/// returns).
pub fn alternate_stack_stub(back: usize, stack: &libc::stack_t) -> usize {
    let words = &Area::current().stub;
    words[0].store(back as u64, Ordering::Relaxed);
    let new = [stack.ss_sp as u64, stack.ss_flags as u32 as u64, stack.ss_size as u64];
    words[3..].iter().zip(new).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    weir_past_sigaltstack as *const () as usize
}

/// The same for a call that makes a child which shares this memory while its parent sleeps: both go on at
/// `back`, and the child's calls are announced as its parent's are.
pub fn vfork_stub(back: usize) -> usize {
    Area::current().vfork_back.store(back as u64, Ordering::Relaxed);
    weir_past_vfork as *const () as usize
}

unsafe extern "C" {
    fn weir_past_call();
    fn weir_past_vfork();
    fn weir_past_sigaltstack();
}

core::arch::global_asm!(
    ".pushsection .text.weir_past,\"ax\",@progbits",
    ".type weir_past_call,@function",
    ".hidden weir_past_call",
    ".globl weir_past_call",
    "weir_past_call:",
    "syscall",
    "mov rcx, qword ptr [rip + weir_area@GOTTPOFF]",
    "jmp qword ptr fs:[rcx + {stub}]",
    ".size weir_past_call, . - weir_past_call",
    ".type weir_past_sigaltstack,@function",
    ".hidden weir_past_sigaltstack",
    ".globl weir_past_sigaltstack",
    "weir_past_sigaltstack:",
    "mov rcx, qword ptr [rip + weir_area@GOTTPOFF]",
    "mov qword ptr fs:[rcx + {stub} + 8], rdi",
    "mov qword ptr fs:[rcx + {stub} + 16], rsi",
    "mov rdi, qword ptr fs:0",
    "lea rdi, [rdi + rcx + {stub} + 24]",
    "xor esi, esi",
    "mov eax, 131",
    "syscall",
    "mov rcx, qword ptr [rip + weir_area@GOTTPOFF]",
    "mov rdi, qword ptr fs:[rcx + {stub} + 8]",
    "mov rsi, qword ptr fs:[rcx + {stub} + 16]",
    "jmp qword ptr fs:[rcx + {stub}]",
    ".size weir_past_sigaltstack, . - weir_past_sigaltstack",
    ".type weir_past_vfork,@function",
    ".hidden weir_past_vfork",
    ".globl weir_past_vfork",
    "weir_past_vfork:",
    "syscall",
    "mov rcx, qword ptr [rip + weir_area@GOTTPOFF]",
    "test rax, rax",
    "jnz 2f",
    // The child, on its parent's stack and with its area: the registers wait there, because the stack may be
    // out.
    "mov qword ptr fs:[rcx + {kept}], rdi",
    "mov qword ptr fs:[rcx + {kept} + 8], rsi",
    "mov qword ptr fs:[rcx + {kept} + 16], rdx",
    "mov qword ptr fs:[rcx + {kept} + 24], r10",
    "mov qword ptr fs:[rcx + {kept} + 32], r8",
    "mov eax, 157",
    "mov edi, 59",
    "mov rsi, qword ptr [rip + {how}]",
    "mov rdx, qword ptr [rip + {how} + 8]",
    "mov r10, qword ptr [rip + {how} + 16]",
    "xor r8d, r8d",
    "syscall",
    "mov rcx, qword ptr [rip + weir_area@GOTTPOFF]",
    "mov rdi, qword ptr fs:[rcx + {kept}]",
    "mov rsi, qword ptr fs:[rcx + {kept} + 8]",
    "mov rdx, qword ptr fs:[rcx + {kept} + 16]",
    "mov r10, qword ptr fs:[rcx + {kept} + 24]",
    "mov r8, qword ptr fs:[rcx + {kept} + 32]",
    "xor eax, eax",
    "2: jmp qword ptr fs:[rcx + {vfork_back}]",
    ".size weir_past_vfork, . - weir_past_vfork",
    ".popsection",
    stub = const offset_of!(Area, stub),
    vfork_back = const offset_of!(Area, vfork_back),
    kept = const offset_of!(Area, vfork_registers),
    how = sym HOW,
);
