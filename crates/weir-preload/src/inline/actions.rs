//! What the program asked for with each signal's present action, and the kernel was not given.

use super::ours::ours;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use weir::BlockLock;
use weir_os::signal::{Mask, bit};

/// One more than the highest signal's number.
pub const SIGNALS: usize = 65;
/// For each signal: bit 0 SIGBUS blocked in the handler, bit 1 SIGSYS, bit 2 SIGSEGV, bit 3 [`ALTERNATE`].
static ASKED: [AtomicU8; SIGNALS] = [const { AtomicU8::new(0) }; SIGNALS];
/// The program's handlers, which `relay` calls, each with what was asked for it in its highest bits,
/// where no address has any. The last real handler stays when the signal is set to be ignored: the kernel
/// may have sent another thread to `relay` just before.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// Held, with signals blocked, while the kernel and these tables change together.
static CHANGING: AtomicU32 = AtomicU32::new(0);

const ASKED_SHIFT: u32 = usize::BITS - 4;
/// In what was asked for: SA_ONSTACK.
pub const ALTERNATE: u8 = 8;

/// The lock of these tables.
pub fn changing() -> BlockLock<'static> {
    BlockLock(&CHANGING)
}

/// The row of a signal.
#[derive(Clone, Copy)]
pub struct Row {
    asked: u8,
    handler: usize,
}

/// What stands in a signal's row.
pub fn row(number: c_int) -> Row {
    let at = number as usize;
    Row { asked: ASKED[at].load(Ordering::Relaxed), handler: HANDLERS[at].load(Ordering::Relaxed) }
}

/// Puts a row back.
pub fn set_row(number: c_int, row: Row) {
    let at = number as usize;
    ASKED[at].store(row.asked, Ordering::Relaxed);
    HANDLERS[at].store(row.handler, Ordering::Relaxed);
}

impl Row {
    /// With what is asked for now, and the handler if there is a real one.
    pub fn with(self, asked: u8, handler: Option<usize>) -> Row {
        let handler = handler.map_or(self.handler, |at| at | usize::from(asked) << ASKED_SHIFT);
        Row { asked, handler }
    }

    /// What the program asked for with the present action.
    pub fn asked(self) -> u8 {
        self.asked
    }

    /// The last real handler.
    pub fn handler(self) -> usize {
        self.handler & ((1 << ASKED_SHIFT) - 1)
    }
}

/// A handler of the program, and which of Weir's signals it asked to have blocked.
pub fn handler_of(number: c_int) -> (usize, Mask) {
    let word = HANDLERS[number as usize % SIGNALS].load(Ordering::Relaxed);
    (word & ((1 << ASKED_SHIFT) - 1), to_mask((word >> ASKED_SHIFT) as u8))
}

/// Whether the program asked for the alternate stack in a signal's handler.
pub fn wants_alternate_stack(number: c_int) -> bool {
    HANDLERS[number as usize % SIGNALS].load(Ordering::Relaxed) >> ASKED_SHIFT & usize::from(ALTERNATE) != 0
}

/// In the child of a fork, where nobody changes anything any more.
pub fn forked() {
    CHANGING.store(0, Ordering::Relaxed);
}

/// In the order of their bits.
const KEPT: [c_int; 3] = [libc::SIGBUS, libc::SIGSYS, libc::SIGSEGV];

/// Which of Weir's signals a mask blocks, in three bits.
pub fn to_bits(mask: Mask) -> u8 {
    let blocked = |(i, number): (usize, c_int)| u8::from(mask & ours() & bit(number) != 0) << i;
    KEPT.into_iter().enumerate().fold(0, |bits, kept| bits | blocked(kept))
}

/// The mask of such bits.
pub fn to_mask(bits: u8) -> Mask {
    let blocked = |(i, number): (usize, c_int)| Mask::from(bits >> i & 1) * bit(number);
    KEPT.into_iter().enumerate().fold(0, |mask, kept| mask | blocked(kept))
}
