//! A thin layer over io_uring: many reads or writes of one file in flight, waited for together.
//!
//! One thread at a time uses a [`Ring`], and it returns only once the kernel is done with every
//! buffer, so buffers can be borrowed. All calls go through the door of [`crate::sys`]. The memory
//! of a ring is not handed to forked children, which make rings of their own.

use crate::fds;
use crate::mem::{Mapping, PROT_RW};
use crate::sys::{Errno, syscall};
use crate::thread;
use core::sync::atomic::{AtomicU32, Ordering};

/// Requests in flight in one ring.
pub const ENTRIES: usize = 32;

/// Submissions that the kernel may refuse for want of memory before the rest is given back.
const REFUSALS_MAX: u32 = 64;

const OP_READ: u8 = 22;
const OP_WRITE: u8 = 23;
const FIXED_FILE: u8 = 1;
const FEAT_SINGLE_MMAP: u32 = 1;
const FEAT_NODROP: u32 = 2;
const ENTER_GETEVENTS: usize = 1;
const OFF_SQES: usize = 0x1000_0000;
const REGISTER_FILES: usize = 2;
const UNREGISTER_FILES: usize = 3;

/// The kernel's `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: SqOffsets,
    cq: CqOffsets,
}
const _: () = assert!(size_of::<Params>() == 120);

#[repr(C)]
#[derive(Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: u32,
    user_addr: u64,
}

/// `struct io_uring_sqe`, as far as reads and writes need it.
#[repr(C)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    offset: u64,
    addr: u64,
    len: u32,
    rw_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}
const _: () = assert!(size_of::<Sqe>() == 64);

/// The kernel's `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cqe {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// One read or write.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// To the file, not from it.
    pub write: bool,
    /// Byte offset in the file.
    pub offset: u64,
    /// Address of the buffer.
    pub addr: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// A ring for one file.
#[derive(Debug)]
pub struct Ring {
    fd: i32,
    rings: Mapping,
    sqes: Mapping,
    sq_head: usize,
    sq_tail: usize,
    sq_array: usize,
    sq_mask: u32,
    cq_head: usize,
    cq_tail: usize,
    cqes: usize,
    cq_mask: u32,
}

impl Ring {
    /// A ring of [`ENTRIES`] requests on `file`. EPERM or ENOSYS: not allowed here (a container's filter,
    /// `kernel.io_uring_disabled`).
    pub fn new(file: i32) -> Result<Ring, Errno> {
        let mut p = Params::default();
        let to = core::ptr::from_mut(&mut p) as usize;
        // SAFETY: the kernel reads and writes the live structure.
        let low = unsafe { syscall(libc::SYS_io_uring_setup, [ENTRIES, to, 0, 0, 0, 0])? } as i32;
        let fd = fds::keep(low);
        Self::map(fd, &p).and_then(|ring| ring.register(file)).inspect_err(|_| fds::close(fd))
    }

    fn map(fd: i32, p: &Params) -> Result<Ring, Errno> {
        if p.features & (FEAT_SINGLE_MMAP | FEAT_NODROP) != FEAT_SINGLE_MMAP | FEAT_NODROP {
            return Err(Errno::ENOSYS); // before 5.5
        }
        let sq_bytes = p.sq.array as usize + p.sq_entries as usize * 4;
        let cq_bytes = p.cq.cqes as usize + p.cq_entries as usize * size_of::<Cqe>();
        let rings = map_ring(fd, 0, sq_bytes.max(cq_bytes))?;
        let sqes = map_ring(fd, OFF_SQES, p.sq_entries as usize * size_of::<Sqe>())?;
        let base = rings.base();
        Ok(Ring {
            fd,
            sqes,
            sq_head: base + p.sq.head as usize,
            sq_tail: base + p.sq.tail as usize,
            sq_array: base + p.sq.array as usize,
            sq_mask: p.sq_entries - 1,
            cq_head: base + p.cq.head as usize,
            cq_tail: base + p.cq.tail as usize,
            cqes: base + p.cq.cqes as usize,
            cq_mask: p.cq_entries - 1,
            rings,
        })
    }

    fn register(self, file: i32) -> Result<Ring, Errno> {
        let files = [file];
        let args = [self.fd as usize, REGISTER_FILES, files.as_ptr() as usize, 1, 0, 0];
        // SAFETY: the kernel reads the live array.
        match unsafe { syscall(libc::SYS_io_uring_register, args) } {
            Ok(_) => Ok(self),
            Err(errno) => {
                self.unmap();
                Err(errno)
            }
        }
    }

    /// Unmaps without closing the descriptor.
    fn unmap(self) {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: each is read once, out of a value that is never used again.
        unsafe { drop((core::ptr::read(&this.rings), core::ptr::read(&this.sqes))) };
    }

    /// Forgets a parent's ring in a forked child: its memory is not here, its descriptor is.
    pub fn forget_in_child(self) {
        fds::close(self.fd);
        core::mem::forget(self);
    }

    /// Makes all of `ops` (at most [`ENTRIES`]) and waits for all: `results` gets the bytes done or a
    /// negative errno. -ECANCELED: the kernel did not even take it.
    ///
    /// # Safety
    /// - every buffer is live and for its op alone until this returns.
    pub unsafe fn run(&mut self, ops: &[Op], results: &mut [i32]) {
        let n = ops.len().min(ENTRIES) as u32;
        results.fill(-Errno::ECANCELED.0);
        let first = self.word(self.sq_tail).load(Ordering::Relaxed);
        for (i, op) in ops.iter().take(n as usize).enumerate() {
            self.prepare(first.wrapping_add(i as u32), i, op);
        }
        self.word(self.sq_tail).store(first.wrapping_add(n), Ordering::Release);
        let (mut taken, mut finished, mut refusals) = (0, 0, 0);
        while taken < n || finished < taken {
            match self.enter(n - taken, n - finished) {
                Ok(more) => taken += more,
                Err(Errno::EINTR) => {}
                Err(_) if taken < n && refusals == REFUSALS_MAX => {
                    // Nobody else submits here: what was not taken can be taken back.
                    taken = self.word(self.sq_head).load(Ordering::Acquire).wrapping_sub(first);
                    self.word(self.sq_tail).store(first.wrapping_add(taken), Ordering::Release);
                    return self.wait_for(taken, finished, results);
                }
                Err(_) => {
                    refusals += 1;
                    thread::yield_now();
                }
            }
            finished += self.reap(results);
        }
    }

    /// Waits until all of `taken` requests are finished: their buffers belong to the kernel until then.
    fn wait_for(&mut self, taken: u32, mut finished: u32, results: &mut [i32]) {
        while finished < taken {
            if self.enter(0, taken - finished).is_err() {
                thread::yield_now();
            }
            finished += self.reap(results);
        }
    }

    fn prepare(&mut self, at: u32, i: usize, op: &Op) {
        let slot = at & self.sq_mask;
        let sqe = Sqe {
            opcode: if op.write { OP_WRITE } else { OP_READ },
            flags: FIXED_FILE,
            ioprio: 0,
            fd: 0, // the first registered file
            offset: op.offset,
            addr: op.addr as u64,
            len: op.len as u32,
            rw_flags: 0,
            user_data: i as u64,
            rest: [0; 3],
        };
        // SAFETY: in bounds by the mask; the kernel does not look at an entry before the tail passes it.
        unsafe { (self.sqes.base() as *mut Sqe).add(slot as usize).write(sqe) };
        self.word(self.sq_array + slot as usize * 4).store(slot, Ordering::Relaxed);
    }

    fn enter(&self, submit: u32, wait: u32) -> Result<u32, Errno> {
        let args = [self.fd as usize, submit as usize, wait as usize, ENTER_GETEVENTS, 0, 0];
        // SAFETY: the buffers named by the entries are live, by the contract of `run`.
        unsafe { syscall(libc::SYS_io_uring_enter, args) }.map(|n| n as u32)
    }

    fn reap(&mut self, results: &mut [i32]) -> u32 {
        let mut head = self.word(self.cq_head).load(Ordering::Relaxed);
        let tail = self.word(self.cq_tail).load(Ordering::Acquire);
        let n = tail.wrapping_sub(head);
        while head != tail {
            let at = (head & self.cq_mask) as usize;
            // SAFETY: in bounds by the mask; published by the kernel before the tail passed it.
            let cqe = unsafe { (self.cqes as *const Cqe).add(at).read() };
            if let Some(result) = results.get_mut(cqe.user_data as usize) {
                *result = cqe.result;
            }
            head = head.wrapping_add(1);
        }
        self.word(self.cq_head).store(head, Ordering::Release);
        n
    }

    fn word(&self, addr: usize) -> &AtomicU32 {
        // SAFETY: a word of the mapped ring, which lives as long as `self`; shared with the kernel.
        unsafe { &*(addr as *const AtomicU32) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel takes a ring apart later and at leisure: the file is not to wait for that.
        let args = [self.fd as usize, UNREGISTER_FILES, 0, 0, 0, 0];
        // SAFETY: no pointers.
        let _ = unsafe { syscall(libc::SYS_io_uring_register, args) };
        fds::close(self.fd);
    }
}

fn map_ring(fd: i32, offset: usize, len: usize) -> Result<Mapping, Errno> {
    let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
    // SAFETY: the kernel chooses the address: nothing is replaced.
    let base = unsafe { syscall(libc::SYS_mmap, [0, len, PROT_RW as usize, flags, fd as usize, offset])? };
    // SAFETY: fresh from mmap, owned by nobody else.
    let map = unsafe { Mapping::from_raw(base, crate::mem::round_up_page(len)) };
    // SAFETY: keeps the contents here; a child that submitted in its parent's ring would corrupt it.
    unsafe { crate::mem::advise(map.base(), map.len(), libc::MADV_DONTFORK)? };
    Ok(map)
}
