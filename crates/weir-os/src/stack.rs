//! Stacks of Weir's own: fault and system-call handlers do their work there, so that a program's
//! thread needs room for a signal frame only, however small its stack is.

use crate::mem::{self, Mapping, PAGE_BYTES};
use crate::sys::Errno;
use core::ffi::c_void;

/// A stack with a guard page below it.
#[derive(Debug)]
pub struct Stack(Mapping);

impl Stack {
    /// A stack of `bytes` (rounded up to pages); RAM is used as it is touched.
    pub fn new(bytes: usize) -> Result<Stack, Errno> {
        let map = Mapping::anon(bytes + PAGE_BYTES)?;
        map.name(c"weir-stack");
        // SAFETY: our own fresh mapping; the lowest page becomes the guard.
        unsafe { mem::protect(map.base(), PAGE_BYTES, libc::PROT_NONE)? };
        Ok(Stack(map))
    }

    /// Lowest usable address and bytes, for `sigaltstack`.
    pub fn extent(&self) -> (usize, usize) {
        (self.0.base() + PAGE_BYTES, self.0.len() - PAGE_BYTES)
    }

    /// Calls `f` on this stack and comes back. `f` must return: a panic ends the process.
    pub fn run(&mut self, mut f: &mut dyn FnMut()) {
        let top = self.0.base() + self.0.len();
        // SAFETY: the stack is ours alone while borrowed; `f` outlives the call.
        unsafe { weir_on_stack(enter, (&raw mut f).cast::<c_void>(), top) };
    }
}

extern "C" fn enter(f: *mut c_void) {
    // SAFETY: `run` passes a pointer to its live closure reference.
    unsafe { (*f.cast::<&mut dyn FnMut()>())() }
}

unsafe extern "C" {
    fn weir_on_stack(f: extern "C" fn(*mut c_void), arg: *mut c_void, top: usize);
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.weir_on_stack,\"ax\",@progbits",
    ".type weir_on_stack,@function",
    ".hidden weir_on_stack",
    ".globl weir_on_stack",
    "weir_on_stack:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size weir_on_stack, . - weir_on_stack",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.weir_on_stack,\"ax\",@progbits",
    ".type weir_on_stack,@function",
    ".hidden weir_on_stack",
    ".globl weir_on_stack",
    "weir_on_stack:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa_register x29",
    "mov sp, x2",
    "mov x9, x0",
    "mov x0, x1",
    "blr x9",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa sp, 0",
    "ret",
    ".cfi_endproc",
    ".size weir_on_stack, . - weir_on_stack",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_runs_on_the_stack_and_its_result_comes_back() {
        let mut stack = Stack::new(64 << 10).unwrap();
        let (base, len) = stack.extent();
        let mut seen = 0usize;
        for round in 1..=3 {
            stack.run(&mut || {
                let here = 0u8;
                assert!((base..base + len).contains(&(&raw const here as usize)));
                seen += round;
            });
        }
        assert_eq!(seen, 6);
    }
}
