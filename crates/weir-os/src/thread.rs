//! Engine threads and futexes: threads with every signal blocked, which never run the program's
//! handlers and which libc does not know, and waiting without libc.

use crate::mem::Mapping;
use crate::signal;
use crate::stack::Stack;
pub use crate::sys::gettid;
use crate::sys::{Errno, syscall};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, Ordering};

/// Sleeps while `word` holds `expected`, until woken or `timeout_ns` passed.
/// `Err(ETIMEDOUT)` on timeout; spurious wake-ups are Ok.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    wait_on(word, expected, timeout_ns, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG)
}

fn wait_on(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>, op: i32) -> Result<(), Errno> {
    let ts = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let ts_ptr = ts.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize);
    // SAFETY: the kernel reads the live word and timespec.
    let r = unsafe {
        syscall(libc::SYS_futex, [word.as_ptr() as usize, op as usize, expected as usize, ts_ptr, 0, 0])
    };
    match r {
        Err(Errno::ETIMEDOUT) => Err(Errno::ETIMEDOUT),
        _ => Ok(()), // woken, value changed, or a signal: the caller looks again
    }
}

/// Wakes up to `n` waiters of `word`.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the address serves as a key only.
    let _ = unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, op, n as usize, 0, 0, 0]) };
}

/// Monotonic time in nanoseconds.
#[inline]
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the live timespec; the vDSO call is not something programs interpose.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    in_ns(ts)
}

#[inline]
fn in_ns(ts: libc::timespec) -> u64 {
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Processor time of the calling thread, ns. A system call.
#[inline]
pub fn cpu_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time of all threads of the process, ended ones too, ns. A system call.
pub fn process_cpu_ns() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// A clock of the kernel's by a system call, ns; 0 if the kernel refuses.
#[inline]
pub(crate) fn clock(id: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the live timespec.
    let _ = unsafe { syscall(libc::SYS_clock_gettime, [id as usize, &raw mut ts as usize, 0, 0, 0, 0]) };
    in_ns(ts)
}

/// Gives up the processor.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// Bytes for thread-local variables below the thread pointer, and for what libc keeps above it.
const TLS_BYTES: usize = 64 << 10;
const CONTROL_BYTES: usize = 4 << 10;

/// A thread that [`spawn`] started. Its memory stays its own for ever, unless somebody waits for its end.
#[derive(Debug)]
pub struct Thread {
    id: u32,
    stack: ManuallyDrop<Stack>,
    tls: ManuallyDrop<Mapping>,
}

impl Thread {
    /// The word that the kernel clears when the thread ends, in its last use of the thread's memory.
    fn alive(&self) -> &AtomicU32 {
        // SAFETY: the last word of the live mapping, aligned, and used as an atomic only.
        unsafe { &*((self.tls.base() + self.tls.len() - size_of::<AtomicU32>()) as *const AtomicU32) }
    }

    /// Waits until the thread is gone and gives its memory back; `Err`: it runs on after `timeout_ns`.
    pub fn join(mut self, timeout_ns: u64) -> Result<(), Thread> {
        if self.alive().load(Ordering::Acquire) != 0 {
            // The kernel wakes this word as one that processes may share.
            let _ = wait_on(self.alive(), self.id, Some(timeout_ns), libc::FUTEX_WAIT);
            if self.alive().load(Ordering::Acquire) != 0 {
                return Err(self);
            }
        }
        while !has_ended(self.id) {
            yield_now(); // it is on its way out of the kernel, and still to be seen with all its rights
        }
        // SAFETY: once each; the thread that used them is gone.
        unsafe {
            ManuallyDrop::drop(&mut self.stack);
            ManuallyDrop::drop(&mut self.tls);
        }
        Ok(())
    }
}

/// Starts a thread that runs `entry(arg)`, with all signals
/// blocked, past libc: `pthread_create` would read and allocate memory that in a forked child may be
/// managed, before there is anybody to bring it in.
///
/// Such a thread must not use what libc keeps per thread: no allocation by libc, no streams, no
/// cancellation. (A panic may: it reads its creator's variables and ends the process.)
///
/// # Safety
/// - `arg` must stay valid for `entry` for ever, and `entry` must keep to the rule above.
pub unsafe fn spawn(
    entry: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    arg: *mut libc::c_void,
    stack_bytes: usize,
) -> Result<Thread, Errno> {
    const FLAGS: i32 = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let stack = Stack::new(stack_bytes)?;
    let tls = Mapping::anon(TLS_BYTES + CONTROL_BYTES)?;
    tls.name(c"weir-tls");
    let pointer = tls.base() + TLS_BYTES;
    let (base, len) = stack.extent();
    let mut thread = Thread { id: 0, stack: ManuallyDrop::new(stack), tls: ManuallyDrop::new(tls) };
    let old = block_for_long();
    // SAFETY: fresh memory for stack and thread pointer; what lies at the thread pointer is a copy of
    // the creator's, with its own address where that is expected.
    let r = unsafe {
        copy_control_block(pointer);
        weir_clone(FLAGS as usize, base + len, pointer, entry, arg, thread.alive())
    };
    restore_signals(old);
    if r < 0 {
        // SAFETY: once each; no thread was made.
        unsafe {
            ManuallyDrop::drop(&mut thread.stack);
            ManuallyDrop::drop(&mut thread.tls);
        }
        return Err(Errno(-r as i32));
    }
    thread.id = r as u32;
    Ok(thread)
}

/// # Safety
/// - `pointer` is the start of [`CONTROL_BYTES`] of fresh memory.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_control_block(pointer: usize) {
    /// Address of itself, vector of thread-local blocks, itself again, ..., stack and pointer guards.
    const WORDS: usize = 8;
    // SAFETY: the creator's control block is at least that large.
    unsafe {
        core::ptr::copy_nonoverlapping(id() as *const usize, pointer as *mut usize, WORDS);
        *(pointer as *mut usize) = pointer;
        *(pointer as *mut usize).add(2) = pointer;
    }
}

/// # Safety
/// - `pointer` is the start of [`CONTROL_BYTES`] of fresh memory.
#[cfg(target_arch = "aarch64")]
unsafe fn copy_control_block(pointer: usize) {
    // SAFETY: two words: the vector of thread-local blocks, and libc's own.
    unsafe { core::ptr::copy_nonoverlapping(id() as *const usize, pointer as *mut usize, 2) };
}

unsafe extern "C" {
    /// `clone` for a thread: returns its id or a negative errno; the thread runs `entry(arg)` on a
    /// stack that ends at `top`. `alive` gets its id before anybody runs on, and 0 when it ends.
    fn weir_clone(
        flags: usize,
        top: usize,
        tls: usize,
        entry: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        arg: *mut libc::c_void,
        alive: &AtomicU32,
    ) -> isize;
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.weir_clone,\"ax\",@progbits",
    ".type weir_clone,@function",
    ".hidden weir_clone",
    ".globl weir_clone",
    "weir_clone:",
    "sub rsi, 16",
    "mov [rsi], rcx",
    "mov [rsi + 8], r8",
    "mov r8, rdx",
    "mov rdx, r9",
    "mov r10, r9",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xor ebp, ebp",
    "pop rax",
    "pop rdi",
    "call rax",
    "mov eax, 60",
    "xor edi, edi",
    "syscall",
    "2: ret",
    ".size weir_clone, . - weir_clone",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.weir_clone,\"ax\",@progbits",
    ".type weir_clone,@function",
    ".hidden weir_clone",
    ".globl weir_clone",
    "weir_clone:",
    "sub x1, x1, #16",
    "stp x3, x4, [x1]",
    "mov x3, x2",
    "mov x2, x5",
    "mov x4, x5",
    "mov x8, #220",
    "svc #0",
    "cbnz x0, 2f",
    "mov x29, xzr",
    "ldp x9, x0, [sp], #16",
    "blr x9",
    "mov x0, xzr",
    "mov x8, #93",
    "svc #0",
    "2: ret",
    ".size weir_clone, . - weir_clone",
    ".popsection",
);

/// Blocks every signal, libc's own two as well: a thread cancelled in the middle would leave with the
/// engine's locks. Returns the former mask.
pub fn block_signals() -> u64 {
    block_signals_but(0)
}

/// As [`block_signals`], and lets `these` come.
pub fn block_signals_but(these: signal::Mask) -> u64 {
    signal::change_mask(libc::SIG_SETMASK, Some(!these)).unwrap_or(0)
}

/// Blocks every signal but libc's own two: what an engine thread starts with.
fn block_for_long() -> u64 {
    const LIBCS: u64 = signal::bit(32) | signal::bit(33);
    signal::change_mask(libc::SIG_SETMASK, Some(!LIBCS)).unwrap_or(0)
}

/// Calls `f` with every signal blocked.
pub fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    let mask = block_signals();
    let r = f();
    restore_signals(mask);
    r
}

/// Restores a mask that [`block_signals`] returned.
pub fn restore_signals(mask: u64) {
    let _ = signal::change_mask(libc::SIG_SETMASK, Some(mask));
}

/// Names the calling thread (15 bytes at most), as `top -H` shows it.
pub fn set_name(name: &core::ffi::CStr) {
    // SAFETY: the kernel reads the NUL-terminated name.
    let _ =
        unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// The shortest slice that the kernel grants.
const SLICE_NS: u64 = 100_000;

#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}
const _: () = assert!(size_of::<SchedAttr>() == 48);

fn sched_setattr(attr: &mut SchedAttr) -> Result<(), Errno> {
    attr.size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel reads the live struct of the size it names.
    unsafe {
        syscall(libc::SYS_sched_setattr, [0, core::ptr::from_ref(attr) as usize, 0, 0, 0, 0]).map(|_| ())
    }
}

/// Asks the scheduler for short slices (kernel 6.12; ignored before): a thread that serves others
/// in bursts of microseconds is run soon after it is woken.
pub fn prefer_latency() {
    let _ = sched_setattr(&mut SchedAttr { runtime: SLICE_NS, ..SchedAttr::default() });
}

/// Asks the scheduler for short slices for a thread of the program, all else as it is. False for one that is
/// scheduled in real time, or when the kernel refuses or has no slices per thread (before 6.12). (Yielding
/// gives up the rest of a slice, kernel 6.18: of a long one that would be most of the thread's share, where
/// others compute.)
pub fn shorten_own_slice() -> bool {
    let Some(mut attr) = own_attributes() else { return false };
    if !matches!(attr.policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return false;
    }
    if attr.runtime != 0 && attr.runtime <= SLICE_NS {
        return true;
    }
    attr.runtime = SLICE_NS;
    sched_setattr(&mut attr).is_ok() && own_attributes().is_some_and(|now| now.runtime == SLICE_NS)
}

/// How the calling thread is scheduled.
fn own_attributes() -> Option<SchedAttr> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes a struct of the size named into the live one.
    let known = unsafe {
        let (to, size) = (&raw mut attr as usize, size_of::<SchedAttr>());
        syscall(libc::SYS_sched_getattr, [0, to, size, 0, 0, 0])
    };
    known.is_ok().then_some(attr)
}

/// Never interrupts another thread when woken: for work that only has to be done in time on
/// average. (A nice value would starve it while the program runs, and faults would do its work.)
pub fn prefer_others() {
    let _ = sched_setattr(&mut SchedAttr { policy: libc::SCHED_BATCH as u32, ..SchedAttr::default() });
}

/// Identifies the calling thread within the process, without a system call: its thread pointer.
#[inline]
pub fn id() -> usize {
    let id: usize;
    // SAFETY: reads a register (x86-64: the word that the thread pointer points to is itself).
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) id, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) id, options(nostack, preserves_flags, nomem));
    }
    id
}

/// Processors that this process may run on; 1 when the kernel does not say.
pub fn processors() -> u32 {
    let mut mask = [0u64; 128];
    // SAFETY: the kernel writes at most the given length to the buffer.
    let n = unsafe {
        let args = [0, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0];
        syscall(libc::SYS_sched_getaffinity, args)
    };
    n.map_or(1, |_| mask.iter().map(|w| w.count_ones()).sum::<u32>().max(1))
}

/// Whether a thread of this process has ended.
pub fn has_ended(tid: u32) -> bool {
    let pid = crate::sys::getpid() as usize;
    // SAFETY: signal 0 only asks.
    let r = unsafe { syscall(libc::SYS_tgkill, [pid, tid as usize, 0, 0, 0, 0]) };
    r == Err(Errno::ESRCH)
}

/// The calling thread gives up every capability, for good: it works on descriptors and memory that it has,
/// and a process that drops its rights must not keep them in a thread that it does not know of.
pub fn give_up_rights() {
    const VERSION_3: u32 = 0x2008_0522;
    let (head, none) = ([VERSION_3, 0], [0u32; 6]);
    // SAFETY: the kernel reads the live arrays, of the sizes that this version has. (Ambient ones go with the
    // permitted.)
    let _ =
        unsafe { syscall(libc::SYS_capset, [head.as_ptr() as usize, none.as_ptr() as usize, 0, 0, 0, 0]) };
    // SAFETY: no pointers.
    let _ = unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]) };
}

/// Who the calling thread is for the kernel: real, effective and saved user and group ids, and a hash of its
/// other groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    users: [u32; 3],
    groups: [u32; 3],
    others: u64,
}

/// Ids of the calling thread; `None` where it has too many groups to look at here.
pub fn ids() -> Option<Ids> {
    let (mut ids, mut list) = (Ids::default(), [0u32; 256]);
    let three = |a: &mut [u32; 3]| [0, 1, 2].map(|i| (&raw mut a[i]) as usize);
    let (u, g) = (three(&mut ids.users), three(&mut ids.groups));
    // SAFETY: the kernel writes the live words.
    let n = unsafe {
        syscall(libc::SYS_getresuid, [u[0], u[1], u[2], 0, 0, 0]).ok()?;
        syscall(libc::SYS_getresgid, [g[0], g[1], g[2], 0, 0, 0]).ok()?;
        syscall(libc::SYS_getgroups, [list.len(), list.as_mut_ptr() as usize, 0, 0, 0, 0]).ok()?
    };
    let mix = |h: u64, group: &u32| (h ^ u64::from(*group)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    ids.others = list[..n].iter().fold(n as u64, mix);
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_slice_is_shortened_where_there_are_slices_and_nothing_else_changes() {
        std::thread::spawn(|| {
            sched_setattr(&mut SchedAttr { nice: 5, ..SchedAttr::default() }).unwrap();
            let before = own_attributes().unwrap();
            let shortened = shorten_own_slice();
            let after = own_attributes().unwrap();
            assert_eq!((after.policy, after.flags, after.nice), (before.policy, before.flags, 5));
            assert_eq!(shortened, after.runtime == SLICE_NS, "{}", after.runtime);
            assert_eq!(shorten_own_slice(), shortened);
            prefer_others();
            assert_eq!(shorten_own_slice(), shortened);
            assert_eq!(own_attributes().unwrap().policy, libc::SCHED_BATCH as u32);
            let real_time =
                SchedAttr { policy: libc::SCHED_FIFO as u32, priority: 1, ..SchedAttr::default() };
            if sched_setattr(&mut { real_time }).is_ok() {
                assert!(!shorten_own_slice());
                assert_eq!(own_attributes().unwrap().policy, libc::SCHED_FIFO as u32);
            }
        })
        .join()
        .unwrap();
    }

    extern "C" fn announce(word: *mut libc::c_void) -> *mut libc::c_void {
        set_name(c"weir-test");
        // SAFETY: the test's static word.
        let word = unsafe { &*word.cast::<AtomicU32>() };
        word.store(gettid(), Ordering::Release);
        futex_wake(word, 1);
        core::ptr::null_mut()
    }

    #[test]
    fn a_thread_past_libc_runs_with_its_own_id_and_all_signals_blocked() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        // SAFETY: the word lives for ever; the thread uses system calls only.
        let thread = unsafe { spawn(announce, WORD.as_ptr().cast(), 64 << 10).unwrap() };
        while WORD.load(Ordering::Acquire) == 0 {
            let _ = futex_wait(&WORD, 0, None);
        }
        let id = WORD.load(Ordering::Acquire);
        assert_ne!(id, gettid());
        let mut rest = Some(thread);
        while let Some(Err(thread)) = rest.take().map(|thread| thread.join(1_000_000)) {
            rest = Some(thread);
        }
        assert!(has_ended(id));
    }
}
