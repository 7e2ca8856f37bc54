//! Reads and writes of the swap file: by the calling thread itself (`pread`, `pwrite`), and several in
//! flight at once by io_uring where the kernel lets us.
//!
//! Safe from any thread at any time, also from a signal handler: nothing is allocated, and nobody waits
//! for a ring that another thread uses: he reads or writes himself. Reads and writes have rings of their
//! own, so that a read never queues behind writes. Short transfers are resumed; whatever goes wrong in a
//! ring is tried again by the calling thread, whose error is the one reported.

use crate::ring::{ENTRIES, Op, Ring};
use crate::swapfile::SwapFile;
use crate::sys::{Errno, syscall};
use crate::thread;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

/// Rings for reads: so many threads have several reads in flight each; further ones read one by one.
const READ_RINGS: usize = 2;
/// Rings for writes: written by the background thread, and by a program thread that reclaims.
const WRITE_RINGS: usize = 1;
/// Tries of a transfer that makes no progress (EINTR, EAGAIN).
const TRIES: u32 = 1000;

/// A read of whole bytes at an offset. All three of offset, address and length are aligned.
#[derive(Debug)]
pub struct Read<'a> {
    /// Byte offset in the file.
    pub offset: u64,
    /// Where the bytes go.
    pub bytes: &'a mut [u8],
    /// How it ended. ENODATA: the file ends before.
    pub outcome: Result<(), Errno>,
}

/// A write of whole bytes at an offset, aligned as a read.
#[derive(Debug)]
pub struct Write<'a> {
    /// Byte offset in the file.
    pub offset: u64,
    /// What is written.
    pub bytes: &'a [u8],
    /// How it ended.
    pub outcome: Result<(), Errno>,
}

/// How several requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// By an io_uring.
    Uring,
    /// `pread` and `pwrite` by the calling thread.
    Plain,
}

#[derive(Debug)]
struct Shelf {
    taken: AtomicU32,
    ring: UnsafeCell<Option<Ring>>,
}

// SAFETY: the ring is touched only by the thread that has set `taken` from 0 to 1.
unsafe impl Sync for Shelf {}

impl Shelf {
    fn new(ring: Option<Ring>) -> Shelf {
        Shelf { taken: AtomicU32::new(0), ring: UnsafeCell::new(ring) }
    }

    /// Uses the ring if nobody does and there is one.
    fn with<R>(&self, f: impl FnOnce(&mut Ring) -> R) -> Option<R> {
        self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: ours alone while `taken` is set.
        let done = unsafe { &mut *self.ring.get() }.as_mut().map(f);
        self.taken.store(0, Ordering::Release);
        done
    }
}

/// A swap file and the ways to read and write it.
#[derive(Debug)]
pub struct FileIo {
    file: SwapFile,
    reads: [Shelf; READ_RINGS],
    writes: [Shelf; WRITE_RINGS],
    backend: Backend,
}

impl FileIo {
    /// Takes the file. With `Backend::Uring` io_uring is used if the kernel lets us; see `backend`.
    pub fn new(file: SwapFile, wanted: Backend) -> FileIo {
        let fd = file.fd();
        let ring = || if wanted == Backend::Uring { Ring::new(fd).ok() } else { None };
        let (reads, writes) = ([ring(), ring()], [ring()]);
        let all = reads.iter().chain(&writes).all(Option::is_some);
        let backend = if all { Backend::Uring } else { Backend::Plain };
        FileIo { file, reads: reads.map(Shelf::new), writes: writes.map(Shelf::new), backend }
    }

    /// What is in use: `Plain` also where io_uring was wanted and is forbidden.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The swap file itself.
    pub fn file(&self) -> &SwapFile {
        &self.file
    }

    /// In a forked child, before anything else here: rings of its own instead of its parent's, whose memory
    /// it does not have. Where that fails, or a thread of the parent was using one, the child goes without.
    pub fn renew_in_child(&self) {
        for shelf in self.reads.iter().chain(&self.writes) {
            if shelf.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue; // nobody here will ever give it back
            }
            // SAFETY: ours alone while `taken` is set.
            let ring = unsafe { &mut *shelf.ring.get() };
            if let Some(old) = ring.take() {
                old.forget_in_child();
                *ring = Ring::new(self.file.fd()).ok();
            }
            shelf.taken.store(0, Ordering::Release);
        }
    }

    /// Fills `bytes` from the file.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_from(0, offset, bytes)
    }

    /// Writes all of `bytes`.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.write_from(0, offset, bytes)
    }

    /// Makes all reads, many at once where that is possible; each has its outcome.
    pub fn read_many(&self, reads: &mut [Read<'_>]) {
        for some in reads.chunks_mut(ENTRIES) {
            let mut ops = [NO_OP; ENTRIES];
            let mut results = [-Errno::ECANCELED.0; ENTRIES];
            for (op, read) in ops.iter_mut().zip(some.iter_mut()) {
                let (addr, len) = (read.bytes.as_mut_ptr() as usize, read.bytes.len());
                *op = Op { write: false, offset: read.offset, addr, len };
            }
            self.run(&self.reads, &ops[..some.len()], &mut results);
            for (read, result) in some.iter_mut().zip(results) {
                read.outcome = self.read_from(result.max(0) as usize, read.offset, read.bytes);
            }
        }
    }

    /// Makes all writes, many at once where that is possible; each has its outcome.
    pub fn write_many(&self, writes: &mut [Write<'_>]) {
        for some in writes.chunks_mut(ENTRIES) {
            let mut ops = [NO_OP; ENTRIES];
            let mut results = [-Errno::ECANCELED.0; ENTRIES];
            for (op, write) in ops.iter_mut().zip(some.iter()) {
                let (addr, len) = (write.bytes.as_ptr() as usize, write.bytes.len());
                *op = Op { write: true, offset: write.offset, addr, len };
            }
            self.run(&self.writes, &ops[..some.len()], &mut results);
            for (write, result) in some.iter_mut().zip(results) {
                write.outcome = self.write_from(result.max(0) as usize, write.offset, write.bytes);
            }
        }
    }

    /// Runs the requests in the first free ring, if it pays.
    fn run(&self, shelves: &[Shelf], ops: &[Op], results: &mut [i32; ENTRIES]) {
        if ops.len() < 2 {
            return; // one request is one system call either way
        }
        for shelf in shelves {
            // SAFETY: the callers hold borrows of all buffers until this returns, and `run` returns once the
            // kernel is done with them.
            if shelf.with(|ring| unsafe { ring.run(ops, results) }).is_some() {
                return;
            }
        }
    }

    fn read_from(&self, done: usize, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let (base, len) = (bytes.as_mut_ptr() as usize, bytes.len());
        transfer(self.file.granted().align, done, len, |at| {
            let args = [self.file.fd() as usize, base + at, len - at, offset as usize + at, 0, 0];
            // SAFETY: the kernel writes into the live slice.
            unsafe { syscall(libc::SYS_pread64, args) }
        })
    }

    fn write_from(&self, done: usize, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let (base, len) = (bytes.as_ptr() as usize, bytes.len());
        self.file.is_ours()?;
        transfer(self.file.granted().align, done, len, |at| {
            let args = [self.file.fd() as usize, base + at, len - at, offset as usize + at, 0, 0];
            // SAFETY: the kernel reads the live slice.
            unsafe { syscall(libc::SYS_pwrite64, args) }
        })
    }
}

/// Repeats `call(at)` from byte `done` until `len` bytes are through. Direct I/O goes on at aligned bytes
/// only.
fn transfer(
    align: usize,
    done: usize,
    len: usize,
    mut call: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    let aligned = |at: usize| if at >= len { len } else { at & !(align - 1) };
    let (mut at, mut tries) = (aligned(done), TRIES);
    while at < len {
        match call(at) {
            Ok(0) => return Err(Errno::ENODATA),
            Ok(n) if aligned(at + n) > at => at = aligned(at + n),
            Err(errno) if !matches!(errno, Errno::EINTR | Errno::EAGAIN) => return Err(errno),
            _ if tries == 0 => return Err(Errno::EAGAIN),
            _ => {
                tries -= 1;
                thread::yield_now();
            }
        }
    }
    Ok(())
}

const NO_OP: Op = Op { write: false, offset: 0, addr: 0, len: 0 };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Buffer;

    const MIB: usize = 1 << 20;

    fn io(wanted: Backend) -> FileIo {
        let folder = std::ffi::CString::new(env!("CARGO_MANIFEST_DIR")).unwrap();
        FileIo::new(SwapFile::open(&folder, 8 * MIB as u64).unwrap(), wanted)
    }

    #[test]
    fn short_transfers_go_on_at_an_aligned_byte_and_interruptions_are_repeated() {
        let mut script = vec![Ok(700), Err(Errno::EINTR), Ok(100), Err(Errno::EAGAIN), Ok(512), Ok(9999)];
        let mut starts = Vec::new();
        let done = transfer(512, 600, 4096, |at| {
            starts.push(at);
            script.remove(0)
        });
        assert_eq!((done, starts), (Ok(()), vec![512, 1024, 1024, 1024, 1024, 1536]));
    }

    #[test]
    fn transfers_that_end_early_fail_or_never_move_are_errors() {
        assert_eq!(transfer(512, 0, 4096, |_| Ok(0)), Err(Errno::ENODATA));
        assert_eq!(transfer(512, 0, 4096, |_| Err(Errno::EIO)), Err(Errno::EIO));
        assert_eq!(transfer(512, 0, 4096, |_| Err(Errno::EINTR)), Err(Errno::EAGAIN));
        assert_eq!(transfer(512, 4096, 4096, |_| Err(Errno::EIO)), Ok(()), "nothing was left to do");
    }

    fn filled(len: usize, seed: u8) -> Buffer {
        let mut bytes = Buffer::new(len, c"weir-test").unwrap();
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i / 4096) as u8);
        }
        bytes
    }

    #[test]
    fn both_backends_read_back_what_they_wrote_one_by_one_and_many_at_once() {
        for wanted in [Backend::Uring, Backend::Plain] {
            let io = io(wanted);
            let (first, second) = (filled(MIB, 1), filled(MIB, 2));
            io.write_at(0, &first).unwrap();
            let mut writes: Vec<Write<'_>> = second
                .chunks(8192)
                .enumerate()
                .map(|(i, bytes)| Write { offset: (2 * MIB + i * 8192) as u64, bytes, outcome: Ok(()) })
                .collect();
            io.write_many(&mut writes);
            assert!(writes.iter().all(|write| write.outcome == Ok(())), "{writes:?}");
            let mut back = Buffer::new(MIB, c"weir-test").unwrap();
            io.read_at(2 * MIB as u64, &mut back).unwrap();
            assert!(back[..] == second[..], "{wanted:?}");
            let mut reads: Vec<Read<'_>> = back
                .chunks_mut(4096)
                .enumerate()
                .map(|(i, bytes)| Read { offset: (i * 4096) as u64, bytes, outcome: Err(Errno::EIO) })
                .collect();
            io.read_many(&mut reads);
            assert!(reads.iter().all(|read| read.outcome == Ok(())), "{wanted:?}");
            assert!(back[..] == first[..], "{wanted:?}");
        }
    }

    #[test]
    fn reading_past_the_end_is_an_error_for_that_read_alone() {
        for wanted in [Backend::Uring, Backend::Plain] {
            let io = io(wanted);
            let mut back = Buffer::new(8192, c"weir-test").unwrap();
            let (a, b) = back.split_at_mut(4096);
            let mut reads = [
                Read { offset: 0, bytes: a, outcome: Ok(()) },
                Read { offset: 8 * MIB as u64, bytes: b, outcome: Ok(()) },
            ];
            io.read_many(&mut reads);
            assert_eq!((reads[0].outcome, reads[1].outcome), (Ok(()), Err(Errno::ENODATA)));
        }
    }

    #[test]
    fn a_busy_ring_keeps_nobody_waiting() {
        let io = io(Backend::Uring);
        for shelf in &io.reads {
            shelf.taken.store(1, Ordering::Relaxed);
        }
        let mut back = Buffer::new(8192, c"weir-test").unwrap();
        let (a, b) = back.split_at_mut(4096);
        let mut reads =
            [Read { offset: 0, bytes: a, outcome: Ok(()) }, Read { offset: 4096, bytes: b, outcome: Ok(()) }];
        io.read_many(&mut reads);
        assert!(reads.iter().all(|read| read.outcome == Ok(())));
    }
}
