//! Signals without libc: dispositions, masks and alternate stacks by raw system calls, and the
//! registers of an interrupted thread.

use crate::sys::{Errno, gettid, syscall};

/// A set of signals, bit `signal - 1`.
pub type Mask = u64;

/// What comes with a signal, and the context of the interrupted thread.
pub use libc::{SIGBUS, siginfo_t as Info, ucontext_t as Context};

/// How a mask is changed: set as a whole.
pub const SIG_SETMASK: i32 = libc::SIG_SETMASK;

/// The bit of one signal.
pub const fn bit(signal: i32) -> Mask {
    1 << (signal - 1)
}

/// What the kernel keeps for a signal (`struct sigaction` of the system call, not libc's).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Handler address, or 0 (default) or 1 (ignored).
    pub handler: usize,
    /// Bits named `SA_*`.
    pub flags: u64,
    /// Address of the code that returns from the signal.
    pub restorer: usize,
    /// Signals blocked while the handler runs.
    pub mask: Mask,
}

const SA_RESTORER: u64 = 0x0400_0000;

impl Action {
    /// With this library's code as what a handler returns to.
    pub fn returning(self) -> Action {
        let restorer: unsafe extern "C" fn() = weir_sigreturn;
        Action { flags: self.flags | SA_RESTORER, restorer: restorer as usize, ..self }
    }
}

/// Handler type of `SA_SIGINFO`.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

/// Installs `handler` for `signal` with `flags` (SA_SIGINFO is added); returns what was there.
///
/// # Safety
/// - the handler must be fit to interrupt the program anywhere.
pub unsafe fn install(signal: i32, handler: Handler, flags: i32, mask: Mask) -> Result<Action, Errno> {
    let flags = (flags | libc::SA_SIGINFO) as u32 as u64;
    let action = Action { handler: handler as usize, flags, restorer: 0, mask }.returning();
    // SAFETY: passed on to the caller.
    unsafe { swap(signal, Some(&action)) }
}

/// Sets (with `Some`) and returns the disposition of a signal as the kernel has it.
///
/// # Safety
/// - as [`install`]; an action that came from the kernel may be put back.
pub unsafe fn swap(signal: i32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Action::default();
    let new = new.map_or(0, |a| core::ptr::from_ref(a) as usize);
    let old_at = core::ptr::from_mut(&mut old) as usize;
    // SAFETY: live structs of the kernel's layout; the rest is the caller's.
    unsafe { syscall(libc::SYS_rt_sigaction, [signal as usize, new, old_at, 8, 0, 0])? };
    Ok(old)
}

/// What was set for a signal before [`take_over`].
#[derive(Clone, Copy)]
pub struct Previous(libc::sigaction);

impl core::fmt::Debug for Previous {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Previous").field(&self.0.sa_sigaction).finish()
    }
}

/// Installs a handler with every signal blocked, on the alternate stack where a thread has one. By libc's
/// function: whoever looks after handlers through it hears of it.
///
/// # Safety
/// - the handler must be fit to interrupt the program anywhere.
pub unsafe fn take_over(signal: i32, handler: Handler) -> Result<Previous, Errno> {
    // SAFETY: plain data, valid when zero; the calls fill the live structures; the rest is the caller's.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = core::mem::zeroed();
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut new.sa_mask);
        if libc::sigaction(signal, &new, &mut old) != 0 {
            return Err(Errno(*libc::__errno_location()));
        }
        Ok(Previous(old))
    }
}

impl Previous {
    /// In the handler that took its place: has the one before it deal with the signal, with the mask that it
    /// asked for. Where there was none the default action is back, and the access that is tried again has
    /// it.
    ///
    /// # Safety
    /// - `info` and `context` are what the kernel passed to the calling handler.
    pub unsafe fn deliver(&self, number: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
        let handler = self.0.sa_sigaction;
        // SAFETY: the kernel's live structures; a handler of the program's, called as the kernel would.
        unsafe {
            if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
                if (*info).si_code > 0 {
                    let _ = swap(number, Some(&Action::default()));
                } else if handler == libc::SIG_DFL {
                    let _ = swap(number, Some(&Action::default()));
                    raise(number); // waits until the calling handler returns
                }
                return;
            }
            let own = if self.0.sa_flags & libc::SA_NODEFER == 0 { bit(number) } else { 0 };
            let [interrupted, wanted] = [&raw const (*context).uc_sigmask, &raw const self.0.sa_mask];
            let mask = interrupted.cast::<Mask>().read() | wanted.cast::<Mask>().read() | own;
            let all = change_mask(SIG_SETMASK, Some(mask)).unwrap_or(!0);
            if self.0.sa_flags & libc::SA_SIGINFO != 0 {
                core::mem::transmute::<usize, Handler>(handler)(number, info, context);
            } else {
                core::mem::transmute::<usize, extern "C" fn(i32)>(handler)(number);
            }
            let _ = change_mask(SIG_SETMASK, Some(all));
        }
    }
}

/// The address of an access to a page that a userfaultfd says is missing, if that is what a SIGBUS is about.
///
/// # Safety
/// - `info` is what the kernel passed to the handler.
pub unsafe fn missing_page(info: *const libc::siginfo_t) -> Option<usize> {
    const BUS_ADRERR: i32 = 2;
    // SAFETY: the kernel's live structure; the address is set for this code.
    unsafe { ((*info).si_code == BUS_ADRERR).then(|| (*info).si_addr() as usize) }
}

/// Changes the calling thread's mask as `how` says (`SIG_BLOCK`, ...); `None` only asks. Returns
/// the former mask.
pub fn change_mask(how: i32, set: Option<Mask>) -> Result<Mask, Errno> {
    let mut old: Mask = 0;
    let new = set.as_ref().map_or(0, |m| core::ptr::from_ref(m) as usize);
    let old_at = core::ptr::from_mut(&mut old) as usize;
    // SAFETY: live words of the size passed.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [how as usize, new, old_at, 8, 0, 0])? };
    Ok(old)
}

/// Signals that wait until the calling thread unblocks them, its own and the process's.
pub fn pending() -> Mask {
    let mut set: Mask = 0;
    // SAFETY: a live word of the size passed.
    let _ = unsafe { syscall(libc::SYS_rt_sigpending, [&raw mut set as usize, 8, 0, 0, 0, 0]) };
    set
}

/// Takes one of these signals if it waits: nobody gets it any more.
pub fn take(set: Mask) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [&raw const set as usize, 0, &raw const at_once as usize, 8, 0, 0];
    // SAFETY: live words of the sizes passed.
    let _ = unsafe { syscall(libc::SYS_rt_sigtimedwait, args) };
}

/// Sends a signal to the calling thread.
pub fn raise(signal: i32) {
    send(gettid(), signal);
}

/// Sends a signal to a thread of this process. False when there is none.
pub fn send(tid: u32, signal: i32) -> bool {
    let pid = crate::sys::getpid() as usize;
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_tgkill, [pid, tid as usize, signal as usize, 0, 0, 0]) }.is_ok()
}

/// Sets (with `Some`) and returns the thread's alternate stack as the kernel has it.
///
/// # Safety
/// - the memory must stay the stack's while it is set.
pub unsafe fn alternate_stack(new: Option<&libc::stack_t>) -> Result<libc::stack_t, Errno> {
    // SAFETY: plain data, valid when zero.
    let mut old: libc::stack_t = unsafe { core::mem::zeroed() };
    let new = new.map_or(0, |s| core::ptr::from_ref(s) as usize);
    let old_at = core::ptr::from_mut(&mut old) as usize;
    // SAFETY: live structs; the memory is the caller's business.
    unsafe { syscall(libc::SYS_sigaltstack, [new, old_at, 0, 0, 0, 0])? };
    Ok(old)
}

unsafe extern "C" {
    fn weir_sigreturn();
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.weir_sigreturn,\"ax\",@progbits",
    ".type weir_sigreturn,@function",
    ".hidden weir_sigreturn",
    ".globl weir_sigreturn",
    "weir_sigreturn:",
    "mov rax, 15",
    "syscall",
    ".size weir_sigreturn, . - weir_sigreturn",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.weir_sigreturn,\"ax\",@progbits",
    ".type weir_sigreturn,@function",
    ".hidden weir_sigreturn",
    ".globl weir_sigreturn",
    "weir_sigreturn:",
    "mov x8, #139",
    "svc #0",
    ".size weir_sigreturn, . - weir_sigreturn",
    ".popsection",
);
