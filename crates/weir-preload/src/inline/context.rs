//! The registers of an interrupted thread.

use weir_os::code;
use weir_os::load::{Load, Registers};
use weir_os::mem::PAGE_BYTES;
use weir_os::pager::Use;
use weir_os::signal::Mask;

/// The general registers as instructions number them.
const GENERAL: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// What the kernel saved, and will load again when the handler returns.
pub struct Context<'a>(&'a mut libc::ucontext_t);

impl Context<'_> {
    /// From a handler's third argument.
    ///
    /// # Safety
    /// - the argument of a handler that has not returned.
    pub unsafe fn new<'a>(raw: *mut libc::ucontext_t) -> Context<'a> {
        // SAFETY: passed on to the caller.
        Context(unsafe { &mut *raw })
    }

    fn reg(&self, r: i32) -> usize {
        self.0.uc_mcontext.gregs[r as usize] as usize
    }

    fn set(&mut self, r: i32, v: usize) {
        self.0.uc_mcontext.gregs[r as usize] = v as i64;
    }

    /// Arguments of the system call that was about to be made.
    pub fn args(&self) -> [usize; 6] {
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(|r| self.reg(r))
    }

    /// What the access did that faulted, by the processor's error code.
    pub fn access(&self) -> Use {
        const WRITE: usize = 1 << 1;
        const FETCH: usize = 1 << 4;
        match self.reg(libc::REG_ERR) {
            e if e & FETCH != 0 => Use::Run,
            e if e & WRITE != 0 => Use::Write,
            _ => Use::Read,
        }
    }

    /// Instruction pointer.
    pub fn ip(&self) -> usize {
        self.reg(libc::REG_RIP)
    }

    /// Where to go on.
    pub fn set_ip(&mut self, ip: usize) {
        self.set(libc::REG_RIP, ip);
    }

    /// Stack pointer.
    pub fn sp(&self) -> usize {
        self.reg(libc::REG_RSP)
    }

    /// Where its stack is when it goes on.
    pub fn set_sp(&mut self, sp: usize) {
        self.set(libc::REG_RSP, sp);
    }

    /// Number or result of the system call.
    pub fn set_result(&mut self, v: isize) {
        self.set(libc::REG_RAX, v as usize);
    }

    /// The load that was interrupted, if the instruction is one and reads from the page of `address` alone.
    pub fn load_from(&self, address: usize) -> Option<Load> {
        const TRAP: usize = 1 << 8;
        let ip = self.ip();
        if !code::can_be_read(ip) {
            return None;
        }
        // SAFETY: the processor has just fetched the instruction from there, and `decode` reads no byte
        // behind it.
        let code = |i: usize| unsafe { core::ptr::read_volatile((ip + i) as *const u8) };
        let page = |a: usize| a / PAGE_BYTES;
        let load = Load::decode(code, ip, &self.registers())?;
        let last = load.address.checked_add(usize::from(load.bytes) - 1)?;
        let alone = page(load.address) == page(address) && page(last) == page(address);
        // A debugger that goes step by step would miss one.
        (alone && self.reg(libc::REG_EFL) & TRAP == 0).then_some(load)
    }

    /// Does the instruction, which has read this value.
    pub fn finish(&mut self, load: Load, value: u64) {
        const RESUME: usize = 1 << 16;
        let mut registers = self.registers();
        load.finish(value, &mut registers);
        for (number, value) in GENERAL.into_iter().zip(registers.general) {
            self.set(number, value as usize);
        }
        // The exception had set the flag that has one instruction pass over its breakpoint: that instruction
        // is done.
        self.set(libc::REG_EFL, registers.flags as usize & !RESUME);
        self.set_ip(self.ip() + usize::from(load.length));
    }

    fn registers(&self) -> Registers {
        let flags = self.reg(libc::REG_EFL) as u64;
        Registers { general: GENERAL.map(|r| self.reg(r) as u64), flags }
    }

    /// The signals that were blocked, and will be again.
    pub fn mask(&mut self) -> &mut Mask {
        // SAFETY: the kernel's mask is the first eight bytes of libc's type.
        unsafe { &mut *(&raw mut self.0.uc_sigmask).cast::<Mask>() }
    }

    /// The kernel's structure, for handlers of the program.
    pub fn raw(&mut self) -> *mut libc::ucontext_t {
        self.0
    }

    /// The alternate stack that will be set.
    pub fn stack(&mut self) -> &mut libc::stack_t {
        &mut self.0.uc_stack
    }
}
