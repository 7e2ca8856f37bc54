//! What every x86-64 system call does with memory: a table and its decoder.
//!
//! [`visit`] runs inside a signal handler: it allocates nothing, calls no libc, does not panic, uses
//! a few hundred bytes of stack and a bounded number of steps. It may report more than the kernel
//! will touch, never less, with the exceptions that it names by [`Known::Partly`].

mod multi;
mod rows;
#[cfg(test)]
mod tests;
mod visit;
mod walk;

pub use visit::{visit, visit_exec};
pub(super) use walk::word;
pub use walk::{Caller, Known};

use rows::ROWS;

/// What one argument of a call is. `k` names the argument that holds a length; [`int`] marks one
/// of 32 bits, whose upper half may hold anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A number, or an address that the call does not touch.
    N,
    /// A buffer that the kernel reads, its bytes in argument `k`.
    In(u8),
    /// A buffer that the kernel writes, its bytes in argument `k`.
    Out(u8),
    /// So many bytes.
    Fix(u32),
    /// A string of at most 4096 bytes with its NUL.
    Str,
    /// A string of at most 128 KiB with its NUL.
    Text,
    /// An array of `struct iovec`, its count in argument `k`.
    Iov(u8),
    /// A `struct msghdr`, with what it names.
    Msg,
    /// An array of `struct mmsghdr`, its count (32 bits) in argument `k`.
    Mmsg(u8),
    /// An array of elements of so many bytes, its count in argument `k`.
    Arr(u16, u8),
    /// A buffer whose bytes stand in the u32 that argument `k` points to, at most so many.
    Sized(u8, u32),
    /// An `fd_set`, the number of descriptors in argument `k`.
    FdSet(u8),
    /// A bit set in words of 64 bits, the number of bits in argument `k`, at most a page.
    Bits(u8),
    /// One byte for each page of the bytes in argument `k`.
    PerPage(u8),
    /// A structure whose own u32 at this offset tells its size.
    SelfSized(u8),
    /// A System V message: a word, then the bytes in argument `k`.
    MsgBuf(u8),
    /// A `struct file_handle`, as long as it says.
    Handle,
    /// A pointer and length of a signal set: the last argument of `pselect6`.
    SigArg,
    /// An array of `struct futex_waitv`, its count in argument `k`.
    Waiters(u8),
    /// Two of them.
    WaiterPair,
    /// The address of a memory-management call: a range of addresses, not a buffer.
    Range,
    /// An array of `struct iovec` that names memory of another process, its count in argument `k`.
    /// (Where it is the caller's own, the shim makes the call in pieces.)
    Elsewhere(u8),
    /// An array of `struct iovec` that names such ranges, its count in argument `k`.
    Ranges(u8),
    /// Now and then a pointer: the call's [`Decoder`] knows.
    By,
    /// As `By`, to something that may hold pointers.
    Deep,
}

/// Calls that do different things by an operation code, or have pointers in structures of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decoder {
    /// The kinds say all.
    Plain,
    Ioctl,
    Fcntl,
    Futex,
    SetSockopt,
    GetSockopt,
    Semctl,
    Ptrace,
    Prctl,
    Keyctl,
    MqNotify,
    KexecLoad,
    IoSubmit,
    Seccomp,
    Bpf,
    Fsconfig,
    XattrArgs,
    UringSetup,
    UringEnter,
    UringRegister,
}

/// One system call.
struct Row {
    nr: u16,
    name: &'static str,
    kinds: [Kind; 6],
    decoder: Decoder,
    never: bool,
}

/// Marks the argument `k` that holds a length as an `int`.
const fn int(k: u8) -> u8 {
    k | INT
}

/// The bit that [`int`] sets.
const INT: u8 = 8;

impl Kind {
    fn is_pointer(self) -> bool {
        self != Kind::N
    }

    /// It points to something that may hold pointers.
    fn is_table(self) -> bool {
        use Kind::{Deep, Iov, Mmsg, Msg, Ranges, SigArg, WaiterPair, Waiters};
        matches!(self, Deep | Iov(_) | Mmsg(_) | Msg | Ranges(_) | SigArg | Waiters(_) | WaiterPair)
    }
}

/// The first number that x86-64 leaves out, and the first one behind that hole.
const HOLE: (usize, usize) = (337, 424);

fn find(nr: usize) -> Option<&'static Row> {
    let at = if nr < HOLE.0 { nr } else { nr.checked_sub(HOLE.1)?.checked_add(HOLE.0)? };
    ROWS.get(at).filter(|row| usize::from(row.nr) == nr)
}

fn mask(row: &Row, of: impl Fn(Kind) -> bool) -> u8 {
    if row.never {
        return 0;
    }
    row.kinds.iter().enumerate().fold(0, |mask, (at, &kind)| mask | (u8::from(of(kind)) << at))
}

/// Bit `i` is set when argument `i` of call `nr` may be an address that the call touches (or, see
/// [`is_memory_call`], manages): the filter must look at it. All six for an unknown number, none
/// for a call that must never be trapped.
pub fn pointer_args(nr: usize) -> u8 {
    find(nr).map_or(0b11_1111, |row| mask(row, Kind::is_pointer))
}

/// Bit `i` is set when argument `i` of call `nr` may point to something that holds pointers itself: the
/// filter cannot see those, so the call is trapped whenever the argument is not null. A part of
/// [`pointer_args`]; none for an unknown number.
pub fn table_args(nr: usize) -> u8 {
    find(nr).map_or(0, |row| mask(row, Kind::is_table))
}

/// Whether call `nr` manages a range of addresses (`mmap`, `munmap`, `madvise`, ...): trapped by that
/// address, but to be sent to Weir's own mapping code. [`visit`] reports only its other arguments.
pub fn is_memory_call(nr: usize) -> bool {
    find(nr).is_some_and(|row| mask(row, |kind| matches!(kind, Kind::Range | Kind::Ranges(_))) != 0)
}

/// Whether the kernel may use the buffers that call `nr` names after it has returned: requests that complete
/// later, buffers registered for them. MOVE refuses such pages while they are in use. (The filter refuses to
/// set a ring up; one can still come from elsewhere.)
pub fn outlives_its_return(nr: usize) -> bool {
    [libc::SYS_io_submit, libc::SYS_io_uring_enter, libc::SYS_io_uring_register]
        .contains(&(nr as libc::c_long))
}

/// Whether call `nr` must never be trapped: its registers hold leftovers, it returns in another
/// context, or it only registers an address.
pub fn is_never_trapped(nr: usize) -> bool {
    find(nr).is_some_and(|row| row.never)
}

/// The name of call `nr`.
pub fn name(nr: usize) -> Option<&'static str> {
    find(nr).map(|row| row.name)
}

/// `ioctl` requests whose structure holds pointers: trapped whatever the argument is.
pub const TABLE_IOCTLS: [u32; 5] =
    [multi::SIOCGIFCONF, multi::SIOCETHTOOL, multi::SIOCADDRT, multi::SIOCDELRT, multi::SG_IO];
