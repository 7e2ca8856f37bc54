//! A disk in memory that fails on demand and checks what is asked of it.

use crate::door::BlockIo;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use weir_os::sys::Errno;

const CLUSTER: u64 = crate::tier::swap::CLUSTER_BYTES;

/// Something to be done in the middle of an operation.
#[derive(Default)]
pub struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook {
    /// Has the next operation call `f`, once.
    pub fn set(&self, f: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(f));
    }

    fn run(&self) {
        let f = self.0.lock().unwrap().take();
        if let Some(f) = f {
            f();
        }
    }
}

impl core::fmt::Debug for Hook {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hook")
    }
}

/// The disk in memory.
#[derive(Debug)]
pub struct FakeDisk {
    /// What happens during the next operation.
    pub hook: Hook,
    bytes: Mutex<Vec<u8>>,
    align: usize,
    punched: Mutex<BTreeSet<u64>>,
    /// Operations so far.
    pub ops: AtomicU64,
    /// The operation that fails, counted from 1; 0: none.
    pub fails_at: AtomicU64,
    /// Whether all after it fail as well.
    pub goes_on_failing: bool,
    /// Holes cannot be filled again: the file system is full.
    pub no_blocks: AtomicBool,
    /// The error to be given.
    pub errno: AtomicU32,
    /// Longest write seen, in bytes.
    pub longest_write: AtomicU64,
}

impl FakeDisk {
    /// A disk of `bytes`, with random-looking contents as a used one has.
    pub fn new(bytes: u64, align: usize) -> FakeDisk {
        FakeDisk {
            hook: Hook::default(),
            bytes: Mutex::new((0..bytes).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()),
            align,
            punched: Mutex::default(),
            ops: AtomicU64::new(0),
            fails_at: AtomicU64::new(0),
            goes_on_failing: false,
            no_blocks: AtomicBool::new(false),
            errno: AtomicU32::new(Errno::EIO.0 as u32),
            longest_write: AtomicU64::new(0),
        }
    }

    /// The same disk as one large hole.
    pub fn hollow(self) -> FakeDisk {
        let clusters = self.bytes.lock().unwrap().len() as u64 / CLUSTER;
        self.punched.lock().unwrap().extend(0..clusters);
        self
    }

    /// Whether nothing has space yet.
    pub fn is_hollow(&self) -> bool {
        self.punched.lock().unwrap().len() as u64 * CLUSTER == self.bytes.lock().unwrap().len() as u64
    }

    /// Flips bits of one byte.
    pub fn flip(&self, offset: u64, bits: u8) {
        self.bytes.lock().unwrap()[offset as usize] ^= bits;
    }

    fn step(&self) -> Result<(), Errno> {
        self.hook.run();
        let (op, at) = (self.ops.fetch_add(1, Relaxed) + 1, self.fails_at.load(Relaxed));
        let fails = at != 0 && (op == at || op > at && self.goes_on_failing);
        if fails { Err(Errno(self.errno.load(Relaxed) as i32)) } else { Ok(()) }
    }

    fn check(&self, offset: u64, addr: usize, len: usize) -> std::ops::Range<usize> {
        for value in [offset as usize, addr, len] {
            assert_eq!(value % self.align, 0, "unaligned I/O: {offset:#x} {addr:#x} {len:#x}");
        }
        offset as usize..offset as usize + len
    }
}

impl BlockIo for FakeDisk {
    fn align(&self) -> usize {
        self.align
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let range = self.check(offset, bytes.as_ptr() as usize, bytes.len());
        self.step()?;
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[range]);
        Ok(())
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let range = self.check(offset, bytes.as_ptr() as usize, bytes.len());
        let cluster = offset / CLUSTER;
        assert_eq!((offset + bytes.len() as u64 - 1) / CLUSTER, cluster, "a write crosses clusters");
        assert!(!self.punched.lock().unwrap().contains(&cluster), "a write into a hole");
        self.longest_write.fetch_max(bytes.len() as u64, Relaxed);
        if let Err(errno) = self.step() {
            // A failed write may leave anything behind.
            let half = range.start..range.start + bytes.len() / 2;
            self.bytes.lock().unwrap()[half].fill(0xdb);
            return Err(errno);
        }
        self.bytes.lock().unwrap()[range].copy_from_slice(bytes);
        Ok(())
    }
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        assert_eq!((offset % CLUSTER, len), (0, CLUSTER));
        self.step()?;
        self.bytes.lock().unwrap()[offset as usize..(offset + len) as usize].fill(0);
        assert!(self.punched.lock().unwrap().insert(offset / CLUSTER), "punched twice");
        Ok(())
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<(), Errno> {
        assert_eq!((offset % CLUSTER, len % CLUSTER), (0, 0));
        self.step()?;
        if self.no_blocks.load(Relaxed) {
            return Err(Errno::ENOSPC);
        }
        let mut punched = self.punched.lock().unwrap();
        (offset / CLUSTER..(offset + len) / CLUSTER)
            .for_each(|cluster| assert!(punched.remove(&cluster), "allocated twice"));
        Ok(())
    }
    fn claim(&self, _number: u32) -> bool {
        true // there is one process
    }
    fn unclaim(&self, _number: u32) {}
}
