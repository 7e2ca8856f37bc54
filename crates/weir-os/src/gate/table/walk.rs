//! One walk over the arguments of one call: each kind of argument, and what it names.

use super::{INT, Kind};
use crate::sys::Errno;

/// Who asks: reads the program's memory and takes the reports.
pub trait Caller {
    /// Copies program memory at `addr` into `out`; EFAULT when it cannot be read. Called for the pointer
    /// tables and strings among a call's arguments, with at most 256 bytes at a time.
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno>;

    /// The call reads or writes `len` bytes at `addr`. Neither is ever 0, and `addr + len` does not
    /// overflow; `addr` is whatever the program passed, mapped or not.
    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno>;
}

/// How much of a call the decoder understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Everything that the call touches was reported.
    Yes,
    /// The number is not in the table; nothing was reported.
    Unknown,
    /// Something was reported, but there may be more: an `ioctl` whose size is not encoded, a
    /// structure with pointers that only the driver understands, a table of absurd length.
    Partly,
}

/// `UIO_MAXIOV`: the kernel refuses longer vectors, and cuts longer message lists.
const MOST_VECTORS: usize = 1024;
/// Room for 1024 messages with 1024 vectors each, the longest table that the kernel takes.
const MOST_READS: u32 = 1 << 17;
/// The kernel's `FUTEX_WAITV_MAX`.
const MOST_WAITERS: usize = 128;
/// `struct sockaddr_storage`: the kernel cuts addresses to this.
const MOST_ADDRESS: usize = 128;
pub(super) const PATH_MAX: usize = 4096;
pub(super) const TEXT_MAX: usize = 128 << 10;
const PAGE: usize = 4096;
const CHUNK: usize = 256;
const IOVEC: usize = 16;
const MSGHDR: usize = 56;
const MMSGHDR: usize = 64;
const WAITER: usize = 24;

/// One walk over one call.
pub(super) struct Walk<'a, C: Caller> {
    args: [usize; 6],
    caller: &'a mut C,
    reads_left: u32,
    pub(super) partly: bool,
}

/// The word of 8, 4 or 2 bytes at `at`; 0 when `bytes` is too short.
pub(in crate::gate) fn word(bytes: &[u8], at: usize) -> usize {
    let eight = bytes.get(at..at.saturating_add(8)).and_then(|part| part.try_into().ok());
    eight.map_or(0, |eight| u64::from_ne_bytes(eight) as usize)
}

pub(super) fn word32(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at.saturating_add(4)).and_then(|part| part.try_into().ok());
    four.map_or(0, u32::from_ne_bytes)
}

pub(super) fn word16(bytes: &[u8], at: usize) -> u16 {
    let two = bytes.get(at..at.saturating_add(2)).and_then(|part| part.try_into().ok());
    two.map_or(0, u16::from_ne_bytes)
}

/// A length of type `int`: the kernel refuses negative ones without touching anything.
pub(super) fn int_len(value: usize) -> usize {
    let low = value as u32;
    if low > i32::MAX as u32 { 0 } else { low as usize }
}

impl<'a, C: Caller> Walk<'a, C> {
    pub(super) fn new(args: &[usize; 6], caller: &'a mut C) -> Self {
        Walk { args: *args, caller, reads_left: MOST_READS, partly: false }
    }

    pub(super) fn end(&self, walked: Result<(), Errno>) -> Result<Known, Errno> {
        match walked {
            // The walk itself gave up: the caller did not fail.
            Err(_) if self.reads_left == 0 => Ok(Known::Partly),
            Err(error) => Err(error),
            Ok(()) if self.partly => Ok(Known::Partly),
            Ok(()) => Ok(Known::Yes),
        }
    }

    /// Argument `k`, masked to its width.
    pub(super) fn arg(&self, k: u8) -> usize {
        let value = self.args.get(usize::from(k & 7)).copied().unwrap_or(0);
        if k & INT != 0 { int_len(value) } else { value }
    }

    pub(super) fn report(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        let len = len.min(usize::MAX - addr);
        if addr == 0 || len == 0 {
            return Ok(());
        }
        self.caller.buffer(addr, len)
    }

    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        self.reads_left = self.reads_left.saturating_sub(1);
        if self.reads_left == 0 {
            return Err(Errno::EINVAL);
        }
        if addr.checked_add(out.len()).is_none() {
            return Err(Errno::EFAULT);
        }
        self.caller.read(addr, out)
    }

    /// Reads a small structure without reporting it.
    pub(super) fn bytes<const LEN: usize>(&mut self, addr: usize) -> Result<[u8; LEN], Errno> {
        let mut out = [0; LEN];
        self.read(addr, &mut out)?;
        Ok(out)
    }

    /// Reports a structure and reads it; `None` when its address is null.
    pub(super) fn record<const LEN: usize>(&mut self, addr: usize) -> Result<Option<[u8; LEN]>, Errno> {
        if addr == 0 {
            return Ok(None);
        }
        self.report(addr, LEN)?;
        self.bytes(addr).map(Some)
    }

    pub(super) fn kinds(&mut self, kinds: &[Kind; 6]) -> Result<(), Errno> {
        for (kind, addr) in kinds.iter().zip(self.args) {
            if addr != 0 {
                self.kind(*kind, addr)?;
            }
        }
        Ok(())
    }

    fn kind(&mut self, kind: Kind, addr: usize) -> Result<(), Errno> {
        match kind {
            Kind::N | Kind::Range | Kind::By | Kind::Deep => Ok(()),
            Kind::In(k) | Kind::Out(k) => self.report(addr, self.arg(k)),
            Kind::Fix(len) => self.report(addr, len as usize),
            Kind::Str => self.string(addr, PATH_MAX),
            Kind::Text => self.string(addr, TEXT_MAX),
            Kind::Iov(k) => self.vector(addr, self.arg(k)),
            Kind::Msg => self.message(addr),
            Kind::Mmsg(k) => self.messages(addr, self.arg(k) as u32 as usize),
            Kind::Arr(size, k) => self.report(addr, self.arg(k).saturating_mul(usize::from(size))),
            Kind::Sized(k, most) => self.sized(addr, self.arg(k), most),
            Kind::FdSet(k) => self.report(addr, int_len(self.arg(k)).div_ceil(64).saturating_mul(8)),
            Kind::Bits(k) => self.report(addr, self.arg(k).div_ceil(64).saturating_mul(8).min(PAGE)),
            Kind::PerPage(k) => self.report(addr, self.arg(k).div_ceil(PAGE)),
            Kind::SelfSized(at) => self.self_sized(addr, usize::from(at)),
            Kind::MsgBuf(k) => self.report(addr, self.arg(k).saturating_add(8)),
            Kind::Handle => self.handle(addr),
            Kind::SigArg => self.signal_argument(addr),
            Kind::Waiters(k) => self.waiters(addr, self.arg(k)),
            Kind::WaiterPair => self.waiters(addr, 2),
            Kind::Ranges(k) | Kind::Elsewhere(k) => {
                self.report(addr, self.arg(k).min(MOST_VECTORS).saturating_mul(IOVEC))
            }
        }
    }

    /// A string: reported with its NUL, or all `most` bytes when there is none.
    pub(super) fn string(&mut self, addr: usize, most: usize) -> Result<(), Errno> {
        if addr == 0 {
            return Ok(());
        }
        let mut buffer = [0; CHUNK];
        let mut len = 0;
        while len < most {
            let at = addr.saturating_add(len);
            // Never across a page's end: the next page may not be there, and need not be.
            let step = (CHUNK - at % CHUNK).min(most - len);
            let Some(part) = buffer.get_mut(..step) else { break };
            self.read(at, part)?;
            if let Some(nul) = part.iter().position(|&byte| byte == 0) {
                return self.report(addr, len + nul + 1);
            }
            len += step;
        }
        self.report(addr, len)
    }

    /// An array of strings that a null pointer ends.
    pub(super) fn strings(&mut self, addr: usize) -> Result<(), Errno> {
        let mut at = addr;
        while at != 0 {
            self.report(at, 8)?;
            let string = word(&self.bytes::<8>(at)?, 0);
            if string == 0 {
                break;
            }
            self.string(string, TEXT_MAX)?;
            at = at.saturating_add(8);
        }
        Ok(())
    }

    /// An array of `struct iovec` and what it points to.
    pub(super) fn vector(&mut self, addr: usize, count: usize) -> Result<(), Errno> {
        const AT_ONCE: usize = CHUNK / IOVEC;
        let count = count.min(MOST_VECTORS);
        self.report(addr, count.saturating_mul(IOVEC))?;
        let mut buffer = [0; CHUNK];
        let mut done = 0;
        while done < count {
            let now = (count - done).min(AT_ONCE);
            let Some(part) = buffer.get_mut(..now * IOVEC) else { break };
            self.read(addr.saturating_add(done * IOVEC), part)?;
            for one in buffer.chunks_exact(IOVEC).take(now) {
                self.report(word(one, 0), word(one, 8))?;
            }
            done += now;
        }
        Ok(())
    }

    fn message(&mut self, addr: usize) -> Result<(), Errno> {
        let Some(header) = self.record::<MSGHDR>(addr)? else { return Ok(()) };
        self.report(word(&header, 0), int_len(word32(&header, 8) as usize).min(MOST_ADDRESS))?;
        self.report(word(&header, 32), word(&header, 40))?;
        match word(&header, 16) {
            0 => Ok(()),
            vector => self.vector(vector, word(&header, 24)),
        }
    }

    fn messages(&mut self, addr: usize, count: usize) -> Result<(), Errno> {
        let count = count.min(MOST_VECTORS);
        self.report(addr, count.saturating_mul(MMSGHDR))?;
        for at in 0..count {
            self.message(addr.saturating_add(at * MMSGHDR))?;
        }
        Ok(())
    }

    fn sized(&mut self, addr: usize, length: usize, most: u32) -> Result<(), Errno> {
        let len = word32(&self.bytes::<4>(length)?, 0);
        self.report(addr, int_len(len as usize).min(most as usize))
    }

    /// At least 64 bytes, the smallest first version of such structures; the kernel takes a page at most.
    fn self_sized(&mut self, addr: usize, at: usize) -> Result<(), Errno> {
        let size = word32(&self.bytes::<4>(addr.saturating_add(at))?, 0);
        self.report(addr, (size as usize).clamp(64, PAGE))
    }

    /// `struct file_handle`: two words, then as many bytes as the first says (MAX_HANDLE_SZ is 128).
    fn handle(&mut self, addr: usize) -> Result<(), Errno> {
        let bytes = word32(&self.bytes::<4>(addr)?, 0) as usize;
        self.report(addr, bytes.min(128) + 8)
    }

    fn signal_argument(&mut self, addr: usize) -> Result<(), Errno> {
        let Some(pair) = self.record::<16>(addr)? else { return Ok(()) };
        self.report(word(&pair, 0), 8)
    }

    fn waiters(&mut self, addr: usize, count: usize) -> Result<(), Errno> {
        let count = count.min(MOST_WAITERS);
        self.report(addr, count.saturating_mul(WAITER))?;
        for at in 0..count {
            let waiter = self.bytes::<WAITER>(addr.saturating_add(at * WAITER))?;
            // 4 bytes, 8 with a NUMA hint behind them.
            self.report(word(&waiter, 8), 8)?;
        }
        Ok(())
    }
}
