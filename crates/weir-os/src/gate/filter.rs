//! The seccomp program of the gate: traps calls that carry managed addresses.
//!
//! Order of the checks: architecture, x32, then a binary search over runs of numbers that share what is to
//! be looked at, then the arguments of that class. The instruction pointer (may this call site
//! pass?) is looked at last, just before the trap. The verdict is the same as if it came first, but
//! calls without pointers (`getpid`, `close`, `lseek`, ...) are then allowed by their number alone:
//! the kernel notices that when the program is attached, and never runs it for them (its bitmap of
//! constant actions, Linux 5.11).
//!
//! Pointers inside tables (`iovec`, `msghdr`) are beyond a filter. Calls with tables could be trapped always;
//! but the filter is inherited over `exec`, where nobody answers the trap. So the shim wraps libc's functions
//! for them.
//!
//! Instructions passed with the table of Linux 6.18, of 847: `read` and `write` 17, private futex wake 17,
//! futex wait 26, `close` and `getpid` 13 (0 from Linux 5.11 on); a trapped `read` 20. A test holds
//! these numbers.

use super::table;
use crate::sys::{Errno, syscall};
use libc::sock_filter;

/// Comes as `si_errno` with the SIGSYS of this filter: tells its traps from those of a filter of the
/// program's own.
pub const TRAP_MARK: u16 = 0x5752;

/// What [`install`] is usually called with: all threads, no speculation barrier.
pub const FLAGS: usize = FLAG_TSYNC | FLAG_SPEC_ALLOW;
const FLAG_TSYNC: usize = 1;
const FLAG_SPEC_ALLOW: usize = 4;

/// Numbers that the dispatch knows; behind them all is unknown.
const NUMBERS: usize = 512;
const MOST_INSTRUCTIONS: usize = 1536;
const MOST_RUNS: usize = 400;
const MOST_CLASSES: usize = 96;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const X32_BIT: u32 = 0x4000_0000;
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_TRAP: u32 = 0x0003_0000;
const RET_ERRNO: u32 = 0x0005_0000;

// BPF_LD|W|ABS, ALU|SUB|K, JMP|{JA,JEQ,JGE,JSET}|K, RET|K
const LOAD: u16 = 0x20;
const SUB: u16 = 0x14;
const JUMP: u16 = 0x05;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

// Offsets in `struct seccomp_data`.
const NR: u32 = 0;
const ARCH: u32 = 4;
const POINTER: u32 = 8;
const fn arg_low(at: u32) -> u32 {
    16 + 8 * at
}
const fn arg_high(at: u32) -> u32 {
    20 + 8 * at
}

/// `FUTEX_WAKE | FUTEX_PRIVATE_FLAG`: the address is a key, no memory is touched.
const PRIVATE_WAKE: u32 = 129;

// `rt_sigprocmask(SIG_SETMASK, set, NULL)` passes: libc sets a new thread's mask so, from the thread's own
// stack, while SIGSYS is still blocked and a trap would kill. Where else such a set may be managed memory
// (`siglongjmp`, `setcontext`), the shim hands libc a copy.

/// What is looked at for a run of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Class {
    pointers: u8,
    special: Special,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    None,
    Futex,
    Mask,
    /// Answered with ENOSYS.
    Refuse,
}

impl Class {
    const ALLOW: Class = Class { pointers: 0, special: Special::None };

    fn of(nr: usize) -> Class {
        let special = match nr as i64 {
            libc::SYS_futex => Special::Futex,
            libc::SYS_rt_sigprocmask => Special::Mask,
            // Its requests and registered buffers use memory behind the gate's back, after their calls have
            // returned: pages could leave under them. Programs know how to do without (containers forbid it
            // too).
            libc::SYS_io_uring_setup => Special::Refuse,
            _ => Special::None,
        };
        Class { pointers: table::pointer_args(nr), special }
    }
}

/// A finished program, kept inline: building one allocates nothing.
pub struct Program {
    code: [sock_filter; MOST_INSTRUCTIONS],
    len: usize,
}

impl core::ops::Deref for Program {
    type Target = [sock_filter];

    fn deref(&self) -> &[sock_filter] {
        &self.code[..self.len]
    }
}

/// Builds the filter.
///
/// The managed range is `range_len_hi32` times 4 GiB from `range_lo_hi32` times 4 GiB on. `allowed` (lo, hi)
/// are addresses of code whose calls pass: the kernel compares the address *behind* the `syscall`
/// instruction, which must be in `lo..hi`.
///
/// # Panics
/// When the upper halves of `allowed` differ, or the table outgrows the fixed room (a test sees to that).
pub fn build(range_lo_hi32: u32, range_len_hi32: u32, allowed: (u64, u64)) -> Program {
    assert!(allowed.0 >> 32 == allowed.1 >> 32, "the allowed code must not cross a border of 4 GiB");
    let mut builder = Builder::new(range_lo_hi32, range_len_hi32);
    builder.begin();
    let mut runs = Runs::new();
    for nr in 0..NUMBERS {
        runs.push(nr, Class::of(nr));
    }
    builder.dispatch(runs.all());
    for at in 0..builder.classes.len {
        builder.block(at);
    }
    builder.end(allowed);
    builder.program
}

/// Runs of consecutive numbers of one class.
struct Runs {
    list: [(usize, Class); MOST_RUNS],
    len: usize,
}

impl Runs {
    fn new() -> Runs {
        Runs { list: [(0, Class::ALLOW); MOST_RUNS], len: 0 }
    }

    fn push(&mut self, nr: usize, class: Class) {
        if self.len == 0 || self.list[self.len - 1].1 != class {
            self.list[self.len] = (nr, class);
            self.len += 1;
        }
    }

    fn all(&self) -> &[(usize, Class)] {
        &self.list[..self.len]
    }
}

/// The classes met, with the place of each one's block.
struct Classes {
    list: [(Class, usize); MOST_CLASSES],
    len: usize,
}

struct Builder {
    program: Program,
    classes: Classes,
    range: (u32, u32),
}

/// Marks a jump whose target is not placed yet: the low bits say what it waits for.
const TO_CLASS: u32 = 0x8000_0000;
const TO_TRAP: u32 = 0x4000_0000;

impl Builder {
    fn new(lo: u32, len: u32) -> Builder {
        let nothing = sock_filter { code: 0, jt: 0, jf: 0, k: 0 };
        Builder {
            program: Program { code: [nothing; MOST_INSTRUCTIONS], len: 0 },
            classes: Classes { list: [(Class::ALLOW, 0); MOST_CLASSES], len: 0 },
            range: (lo, len),
        }
    }

    /// Appends an instruction and returns its place. `jt` and `jf` count from the next instruction.
    fn emit(&mut self, code: u16, k: u32, jt: u8, jf: u8) -> usize {
        let at = self.program.len;
        self.program.code[at] = sock_filter { code, jt, jf, k };
        self.program.len += 1;
        at
    }

    fn load(&mut self, offset: u32) {
        self.emit(LOAD, offset, 0, 0);
    }

    fn allow(&mut self) {
        self.emit(RETURN, RET_ALLOW, 0, 0);
    }

    /// Foreign architectures and x32 pass.
    fn begin(&mut self) {
        self.load(ARCH);
        self.emit(EQUAL, AUDIT_ARCH_X86_64, 1, 0);
        self.allow();
        self.load(NR);
        self.emit(ANY_BIT, X32_BIT, 0, 1);
        self.allow();
    }

    /// Binary search over `runs`: the number is in A, and not below the first run's.
    fn dispatch(&mut self, runs: &[(usize, Class)]) {
        let [(_, class)] = runs else {
            let (left, right) = runs.split_at(runs.len() / 2);
            let branch = self.emit(AT_LEAST, right[0].0 as u32, 0, 0);
            // Room for the far form: at least -> the 32-bit jump, below -> behind it.
            let far = self.emit(JUMP, 0, 0, 0);
            self.dispatch(left);
            let distance = self.program.len - far - 1;
            self.program.code[branch].jf = 1;
            self.program.code[far].k = distance as u32;
            if distance < 255 {
                self.remove(far);
                self.program.code[branch].jt = distance as u8;
                self.program.code[branch].jf = 0;
            }
            return self.dispatch(right);
        };
        if *class == Class::ALLOW {
            return self.allow();
        }
        let wanted = self.class(*class) as u32;
        self.emit(JUMP, TO_CLASS | wanted, 0, 0);
    }

    /// Takes out an instruction that no finished jump crosses.
    fn remove(&mut self, at: usize) {
        self.program.code.copy_within(at + 1..self.program.len, at);
        self.program.len -= 1;
    }

    fn class(&mut self, class: Class) -> usize {
        let known = self.classes.list[..self.classes.len].iter().position(|(one, _)| *one == class);
        known.unwrap_or_else(|| {
            self.classes.list[self.classes.len] = (class, 0);
            self.classes.len += 1;
            self.classes.len - 1
        })
    }

    /// The checks of one class. Every check that hits leaves by the jump at the block's end.
    fn block(&mut self, at: usize) {
        let (class, _) = self.classes.list[at];
        let begin = self.program.len;
        self.classes.list[at].1 = begin;
        match class.special {
            Special::Refuse => {
                self.emit(RETURN, RET_ERRNO | libc::ENOSYS as u32, 0, 0);
                return;
            }
            Special::None | Special::Mask => {}
            Special::Futex => {
                self.load(arg_low(1));
                self.emit(EQUAL, PRIVATE_WAKE, 0, 1);
                self.allow();
            }
        }
        if class.special == Special::Mask {
            // `SIG_SETMASK` that asks for nothing back.
            self.load(arg_low(0));
            self.emit(EQUAL, libc::SIG_SETMASK as u32, 0, 5);
            self.load(arg_low(2));
            self.emit(EQUAL, 0, 0, 3);
            self.load(arg_high(2));
            self.emit(EQUAL, 0, 0, 1);
            self.allow();
        }
        for bit in (0..6).filter(|bit| class.pointers >> bit & 1 == 1) {
            self.load(arg_high(bit));
            self.emit(SUB, self.range.0, 0, 0);
            self.emit(AT_LEAST, self.range.1, 0, HIT);
        }
        self.allow();
        let leave = self.emit(JUMP, TO_TRAP, 0, 0);
        for (place, one) in self.program.code[begin..leave].iter_mut().enumerate() {
            let distance = (leave - begin - place - 1) as u8;
            if matches!(one.code, EQUAL | AT_LEAST) {
                one.jt = if one.jt == HIT { distance } else { one.jt };
                one.jf = if one.jf == HIT { distance } else { one.jf };
            }
        }
    }

    /// The check of the call site, the trap, and the targets of the open jumps.
    fn end(&mut self, allowed: (u64, u64)) {
        let trap = self.program.len;
        self.load(POINTER + 4);
        self.emit(EQUAL, (allowed.0 >> 32) as u32, 0, 4);
        self.load(POINTER);
        self.emit(AT_LEAST, allowed.0 as u32, 0, 2);
        self.emit(AT_LEAST, allowed.1 as u32, 1, 0);
        self.allow();
        self.emit(RETURN, RET_TRAP | u32::from(TRAP_MARK), 0, 0);
        let blocks = self.classes.list;
        for (at, one) in self.program.code[..trap].iter_mut().enumerate().filter(|(_, one)| one.code == JUMP)
        {
            let target = match one.k {
                TO_TRAP => trap,
                k if k & TO_CLASS != 0 => blocks[(k & !TO_CLASS) as usize].1,
                _ => continue,
            };
            one.k = (target - at - 1) as u32;
        }
    }
}

/// Stands for the distance to a block's end until that is known; no block is so long.
const HIT: u8 = 255;

/// Whether the filter traps a call that comes from elsewhere than the allowed code: the same rule in
/// plain words. `range` as in [`build`].
pub fn traps(nr: u32, args: &[u64; 6], range: (u32, u32)) -> bool {
    let number = nr as usize;
    if number == libc::SYS_rt_sigprocmask as usize && args[0] as i32 == libc::SIG_SETMASK && args[2] == 0 {
        return false;
    }
    if nr & X32_BIT != 0 || number == libc::SYS_futex as usize && args[1] as u32 == PRIVATE_WAKE {
        return false;
    }
    let pointers = table::pointer_args(number);
    let managed = |arg: u64| ((arg >> 32) as u32).wrapping_sub(range.0) < range.1;
    args.iter().enumerate().any(|(at, &arg)| pointers >> at & 1 == 1 && managed(arg))
}

/// Attaches `program` to the process with `flags` (usually [`FLAGS`]).
///
/// Goes without SPEC_ALLOW on kernels that do not know it. With CAP_SYS_ADMIN the process keeps its
/// right to gain privileges by `execve`; without, it gives that up (PR_SET_NO_NEW_PRIVS). EBUSY
/// means that a thread has a filter of its own that keeps it from being brought in line.
pub fn install(program: &[sock_filter], flags: usize) -> Result<(), Errno> {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    match attach(program, flags) {
        Err(Errno::EACCES) => {
            // SAFETY: no pointers.
            unsafe { syscall(libc::SYS_prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0])? };
            attach(program, flags)
        }
        other => other,
    }
}

fn attach(program: &[sock_filter], flags: usize) -> Result<(), Errno> {
    const SET_MODE_FILTER: usize = 1;
    let len = u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?;
    let described = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let at = &raw const described as usize;
    // SAFETY: the kernel only reads the program, which lives until the call returns.
    let made = |flags| unsafe { syscall(libc::SYS_seccomp, [SET_MODE_FILTER, flags, at, 0, 0, 0]) };
    let mut result = made(flags);
    if result == Err(Errno::EINVAL) && flags & FLAG_SPEC_ALLOW != 0 {
        result = made(flags & !FLAG_SPEC_ALLOW);
    }
    match result {
        Ok(0) => Ok(()),
        // The id of the thread that could not follow.
        Ok(_) => Err(Errno::EBUSY),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
