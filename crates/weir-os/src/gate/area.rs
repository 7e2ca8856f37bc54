//! A few words per thread, reached without libc: thread-local storage of libc's own making may
//! allocate at its first use, which a signal handler cannot afford.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a thread of the program has set and does not really have. All zero at first.
#[repr(C)]
#[derive(Debug)]
pub struct Area {
    /// Signals that the thread believes to have blocked.
    pub blocked: AtomicU64,
    /// Signals sent to it meanwhile.
    pub pending: AtomicU64,
    /// Its own alternate stack as it set it, if the kernel has another: address, bytes, flags + 1.
    pub stack: [AtomicU64; 3],
    /// The alternate stack that Weir gave it: lowest address.
    pub ours: AtomicU64,
    /// What keeps the memory of its own alternate stack where it is.
    pub stack_pins: AtomicU64,
    /// While a handler of the program runs for a signal that is Weir's: the stack pointer at its
    /// start, and the signals that the handler has blocked.
    pub handler_stack: AtomicU64,
    /// The mask that belongs to `handler_stack`.
    pub handler_blocked: AtomicU64,
    /// Memory that an exec call of this thread reads: address and bytes.
    pub copies: [AtomicU64; 2],
    /// Signals that Weir sends again, with what came with them the first time.
    pub again: AtomicU64,
    /// The thread's kernel id once asked for.
    id: AtomicU64,
    /// When it last let other faulting threads run, ns.
    pub turn: AtomicU64,
    /// When its last fault ended, ns.
    pub left: AtomicU64,
    /// While it waits in a call that libc's wrapped functions made: the cancellation type that the program
    /// had set, plus 1.
    pub cancel_type: AtomicU64,
    /// The stack pointer of that call.
    pub cancel_frame: AtomicU64,
    /// A call made again at a stub of this library: where it goes on, two registers, and an alternate stack
    /// to be set.
    pub stub: [AtomicU64; STUB_WORDS],
    /// The same for one that makes a child which shares this memory.
    pub vfork_back: AtomicU64,
    /// Registers of that child.
    pub vfork_registers: [AtomicU64; 5],
    /// What keeps the memory that such a call names, and an exec call past libc, where it is.
    pub past_pins: [AtomicU64; 2],
    /// The thread's row for what its small calls hold, plus 1.
    pub hold: AtomicU64,
    /// What came with each of the signals in `pending`: `siginfo_t` in the order of [`kept_index`].
    infos: [[AtomicU64; 16]; KEPT],
    /// Room for a copy of what libc may not read from managed memory.
    buffer: [AtomicU64; BUFFER_BYTES / 8],
}
/// Most signals that Weir keeps: SIGBUS, SIGSYS, and SIGSEGV where there is no userfaultfd.
pub const KEPT: usize = 3;

/// The place of one of them in tables.
pub fn kept_index(number: i32) -> usize {
    match number {
        libc::SIGSYS => 1,
        libc::SIGSEGV => 2,
        _ => 0,
    }
}

/// Words of [`Area::stub`].
pub const STUB_WORDS: usize = 6;
/// Bytes of [`Area::buffer`]: a `ucontext_t`.
pub const BUFFER_BYTES: usize = 968;
/// What the assembly below sets aside.
const AREA_BYTES: usize = size_of::<Area>();

/// The process whose threads the areas describe: a child of `vfork` shares its parent's memory.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Makes the calling process the one that the areas describe.
pub fn own() {
    OWNER.store(crate::sys::getpid(), Ordering::Relaxed);
}

/// Whether the calling process is that one.
pub fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == crate::sys::getpid()
}

impl Area {
    /// Of the calling thread.
    #[inline]
    pub fn current() -> &'static Area {
        let at: usize;
        // SAFETY: computes the address of this thread's copy: thread pointer plus a fixed offset,
        // which is known once the library is loaded (initial-exec model).
        unsafe {
            core::arch::asm!(
                "mov {at}, qword ptr [rip + weir_area@GOTTPOFF]",
                "add {at}, qword ptr fs:0",
                at = out(reg) at,
                options(nostack, readonly),
            );
            // SAFETY: lives as long as the thread; zero is valid; all fields are atomics.
            &*(at as *const Area)
        }
    }

    /// What came with a pending signal of those that Weir keeps.
    pub fn info(&self, number: i32) -> *mut libc::siginfo_t {
        self.infos[kept_index(number)].as_ptr().cast_mut().cast()
    }

    /// Kernel id of the calling thread, whose area this is. (A child of `vfork` uses its parent's area, and
    /// has an id of its own.)
    pub fn kernel_id(&self) -> u32 {
        let known = self.id.load(Ordering::Relaxed) as u32;
        if known != 0 {
            return known;
        }
        let tid = crate::thread::gettid();
        if is_owner() {
            self.id.store(u64::from(tid), Ordering::Relaxed);
        }
        tid
    }

    /// In the child of a fork, whose only thread has another id than before.
    pub fn forget_id(&self) {
        self.id.store(0, Ordering::Relaxed);
    }

    /// The thread's room for copies, [`BUFFER_BYTES`].
    pub fn buffer(&self) -> *mut u8 {
        self.buffer.as_ptr().cast_mut().cast()
    }

    /// Whether nothing was set yet.
    pub fn is_untouched(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) == 0 && self.ours.load(Ordering::Relaxed) == 0
    }
}

core::arch::global_asm!(
    ".pushsection .tbss.weir_area,\"awT\",@nobits",
    ".type weir_area,@object",
    ".hidden weir_area",
    ".globl weir_area",
    ".p2align 6",
    "weir_area:",
    ".zero {bytes}",
    ".size weir_area, {bytes}",
    ".popsection",
    bytes = const AREA_BYTES,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_its_own_words_and_they_start_at_zero() {
        Area::current().blocked.store(5, Ordering::Relaxed);
        let mine = Area::current() as *const Area as usize;
        let (other, value) = std::thread::spawn(|| {
            (Area::current() as *const Area as usize, Area::current().blocked.load(Ordering::Relaxed))
        })
        .join()
        .unwrap();
        assert_ne!(mine, other);
        assert_eq!(value, 0);
        assert_eq!(Area::current().blocked.load(Ordering::Relaxed), 5);
        assert!(!Area::current().is_untouched());
    }
}
