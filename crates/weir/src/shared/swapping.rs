//! The swap file as the engine uses it: readers, writers, caches of slots, and the word that faults
//! wait on while somebody else reads their page.
//!
//! Whoever has a reader or a writer has a number of his own, the tag in the words of the pages
//! that he reads or writes. All locks here are leaves, but for readers and writers, which are held over I/O:
//! they are only ever tried while a block is locked.

use crate::config::Policy;
use crate::config::rules::{Rule, is_on};
use crate::door::BlockIo;
use crate::meter::Reading;
use crate::page::SwapSlot;
use crate::page::cold::ColdQueue;
use crate::policy::pool_size::PoolSize;
use crate::policy::write_through::WriteThrough;
use crate::stats;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tier::swap::{Codec, Scratch, SlotCache, Swap, SwapError, Writer};
use core::sync::atomic::{AtomicBool, AtomicU64 as PlainU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_os::codec::{self, PageBytes};
use weir_os::mem::PAGE_BYTES;
use weir_os::sys::Errno;
use weir_os::thread;

/// Threads that can read at the same moment.
const READERS: u8 = 24;
/// Threads that can write at the same moment.
const WRITERS: u8 = 4;
/// The tag of whoever moves records.
const MOVER: u8 = READERS + WRITERS + 1;
/// Caches of slots for those who free them.
const CACHES: usize = 8;
/// Bytes that a reader reads at once.
const SCRATCH_BYTES: usize = 128 << 10;
/// A batch with so many bytes is full: what a disk takes well in one request.
pub const BATCH_BYTES: usize = 256 << 10;
/// Most pages of a batch, however well they compress.
pub const BATCH_PAGES: u32 = 256;
/// Bytes of a writer's buffer: the last page of a batch goes beyond [`BATCH_BYTES`], and a block of pages
/// that do not compress fits.
const PRESS_BYTES: usize = 272 << 10;
/// Bytes of the slot table per record: a row, its bit, and what is lost between rows.
const SLOT_BYTES: u64 = 26;
/// RAM of the buffers that are commonly touched: two writers, the mover, and some of every reader.
const OVERHEAD_BYTES: u64 = 1 << 20;
/// Longest wait for a read of somebody else before looking again.
const WAIT_NS: u64 = 10_000_000;

/// The last look at the program's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readings {
    /// When, ns.
    pub at_ns: u64,
    /// What was read.
    pub sums: Reading,
    /// Faults on pages that were out, so far.
    pub major: u64,
    /// The kernel's part of a fault, ns.
    pub floor_ns: u64,
}

/// Where one thread reads.
#[derive(Debug)]
pub struct Reader {
    /// Its tag.
    pub tag: u8,
    /// Room to read into.
    pub scratch: Scratch,
}

/// Where one thread writes.
#[derive(Debug)]
pub struct Press {
    /// Its tag.
    pub tag: u8,
    /// The batch.
    pub writer: Writer,
    /// Slots for it.
    pub cache: SlotCache,
}

/// The swap file and who works with it.
#[derive(Debug)]
pub struct Swapping<D: BlockIo> {
    /// The tier.
    pub tier: Swap<D>,
    /// Blocks with pooled pages, coldest first, and those whose pages are written.
    pub cold: ColdQueue,
    /// When pool pages are written.
    pub policy: Policy,
    /// Pages written together at most; fewer where they have [`BATCH_BYTES`] before.
    pub batch: u32,
    readers: Vec<Mutex<Reader>>,
    presses: Vec<Mutex<Press>>,
    mover: Mutex<(Press, Scratch)>,
    caches: Vec<Mutex<SlotCache>>,
    /// Reads completed: faults on pages being read wait for the next.
    arrived: AtomicU32,
    /// Threads that wait on it.
    waiting: AtomicU32,
    /// Pages in frames that have a slot.
    kept: AtomicU64,
    /// Pooled pages that have a slot.
    doubled: AtomicU64,
    /// Whether pool pages are written through now.
    through: AtomicBool,
    /// Time that threads spent reading and writing so far, ns.
    pub io_ns: PlainU64,
    /// What the adaptive policy goes by.
    pub chooser: Mutex<WriteThrough>,
    /// How large the pool may be, and the readings that this goes by.
    pub pool_size: Mutex<(PoolSize, Readings)>,
    /// The last write found no room. Cleared when there is some.
    full: AtomicBool,
    /// A second copy found no room, although free clusters are counted: the disk is full. Forgotten now and
    /// then.
    cramped: AtomicBool,
    /// That nothing can be written any more was said.
    said: AtomicBool,
    /// Error that ended writing, until it is said.
    unsaid: AtomicU32,
    /// Most records so far: rows of the slot table that have been touched.
    charged: AtomicU64,
    /// Where the sweep over slots goes on.
    pub hand: AtomicU32,
    /// Error number of the last read that failed; 0: the record was damaged.
    pub loss: AtomicU32,
    /// References taken for the child of the fork under way.
    pub retained: AtomicU64,
}

impl<D: BlockIo> Swapping<D> {
    /// Readers and writers for a tier. `batch`: pages written together at most (1 to
    /// [`BATCH_PAGES`]), and slots reserved together as far as one word of the bitmap has them.
    pub fn new(tier: Swap<D>, policy: Policy, batch: u16) -> Result<Swapping<D>, SwapError> {
        let pages = u32::from(batch).clamp(1, BATCH_PAGES);
        let slots = pages as usize; // a cache takes 64 at most
        let press = |tag, writer| Press { tag, writer, cache: SlotCache::new(slots) };
        let reader = |tag| Ok(Mutex::new(Reader { tag, scratch: Scratch::new(SCRATCH_BYTES)? }));
        let readers: Result<Vec<_>, SwapError> = (1..=READERS).map(reader).collect();
        let presses: Result<Vec<_>, SwapError> = (READERS + 1..=READERS + WRITERS)
            .map(|tag| Ok(Mutex::new(press(tag, Writer::new(PRESS_BYTES)?))))
            .collect();
        Ok(Swapping {
            tier,
            cold: ColdQueue::default(),
            policy,
            batch: pages,
            readers: readers?,
            presses: presses?,
            mover: Mutex::new((press(MOVER, Writer::for_moving(PRESS_BYTES)?), Scratch::new(SCRATCH_BYTES)?)),
            caches: (0..CACHES).map(|_| Mutex::new(SlotCache::new(slots))).collect(),
            arrived: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            kept: AtomicU64::new(0),
            doubled: AtomicU64::new(0),
            through: AtomicBool::new(policy == Policy::Writethrough),
            io_ns: PlainU64::new(0),
            chooser: Mutex::default(),
            pool_size: Mutex::default(),
            full: AtomicBool::new(false),
            cramped: AtomicBool::new(false),
            said: AtomicBool::new(false),
            unsaid: AtomicU32::new(0),
            charged: AtomicU64::new(0),
            hand: AtomicU32::new(0),
            loss: AtomicU32::new(0),
            retained: AtomicU64::new(0),
        })
    }

    /// RAM that its buffers take.
    pub fn overhead_bytes(&self) -> u64 {
        OVERHEAD_BYTES
    }

    /// RAM of the slot table touched since the last call.
    pub fn uncharged_bytes(&self) -> u64 {
        let now = self.tier.live_records();
        now.saturating_sub(self.charged.fetch_max(now, Ordering::Relaxed)) * SLOT_BYTES
    }

    /// A reader of the caller's own; waits while all are taken. Under no lock.
    pub fn reader(&self) -> MutexGuard<'_, Reader> {
        let first = (thread::id() >> 12) % self.readers.len();
        loop {
            let (behind, before) = (self.readers[first..].iter(), self.readers[..first].iter());
            if let Some(reader) = behind.chain(before).find_map(|d| d.try_lock().ok()) {
                return reader;
            }
            thread::yield_now();
        }
    }

    /// A writer of the caller's own, if one is free.
    pub fn press(&self) -> Option<MutexGuard<'_, Press>> {
        self.presses.iter().find_map(|p| p.try_lock().ok())
    }

    /// What records are moved with, if nobody does it now.
    pub fn mover(&self) -> Option<MutexGuard<'_, (Press, Scratch)>> {
        self.mover.try_lock().ok()
    }

    /// In the child of a fork, with everybody out.
    pub fn forget_parent(&self) {
        if let Ok(mut known) = self.pool_size.try_lock() {
            known.0.forked();
            known.1 = Readings::default();
        }
    }

    /// Drops the reference to a record that no word names any more.
    pub fn free(&self, slot: SwapSlot) {
        // Panics end the process, so a poisoned lock is never seen.
        let cache = &self.caches[(thread::id() >> 12) % CACHES];
        self.tier.free(&mut cache.lock().unwrap_or_else(PoisonError::into_inner), slot);
        if self.full.load(Ordering::Relaxed) {
            self.look_for_room();
        }
    }

    /// Gives all slots back that are set aside. Nobody may be inside.
    pub fn empty_caches(&self) {
        let all = |m: &Mutex<SlotCache>| {
            self.tier.empty(&mut m.lock().unwrap_or_else(PoisonError::into_inner));
        };
        self.caches.iter().for_each(all);
        for p in &self.presses {
            self.tier.empty(&mut p.lock().unwrap_or_else(PoisonError::into_inner).cache);
        }
        self.tier.empty(&mut self.mover.lock().unwrap_or_else(PoisonError::into_inner).0.cache);
    }

    /// Whether pages can be written: no write has failed for good, and the last one found room.
    pub fn usable(&self) -> bool {
        !self.full.load(Ordering::Relaxed) && self.tier.is_latched().is_none()
    }

    /// A write found no room.
    pub fn set_full(&self) {
        self.full.store(true, Ordering::Relaxed);
    }

    /// A second copy found no room, or it is time to try again.
    pub fn set_cramped(&self, cramped: bool) {
        self.cramped.store(cramped, Ordering::Relaxed);
    }

    /// Whether the last write found no room.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// A write failed for good: to be said by whoever can speak.
    pub fn set_broken(&self) {
        if let Some(errno) = self.tier.is_latched()
            && !self.said.swap(true, Ordering::Relaxed)
        {
            self.unsaid.store(errno.0 as u32, Ordering::Relaxed);
        }
    }

    /// The error that ended writing, once.
    pub fn broken_news(&self) -> Option<Errno> {
        match self.unsaid.load(Ordering::Relaxed) {
            0 => None,
            _ => Some(Errno(self.unsaid.swap(0, Ordering::Relaxed) as i32)),
        }
    }

    /// After frees: whether there is room again.
    pub fn look_for_room(&self) {
        if self.tier.free_bytes() > 0 {
            self.full.store(false, Ordering::Relaxed);
        }
    }

    /// Counts pages that gained (or lost) a kept slot.
    pub fn count_kept(&self, delta: i64) {
        self.kept.fetch_add(delta as u64, Ordering::Relaxed);
    }

    /// Pages in frames that have a slot.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Counts pages that came to be in pool and file (or in one of them only).
    pub fn count_doubled(&self, delta: i64) {
        self.doubled.fetch_add(delta as u64, Ordering::Relaxed);
    }

    /// Pooled pages that have a slot.
    pub fn doubled(&self) -> u64 {
        self.doubled.load(Ordering::Relaxed)
    }

    /// Whether pool pages are written ahead of their eviction now.
    pub fn writes_through(&self) -> bool {
        self.through.load(Ordering::Relaxed)
    }

    /// Changes that, with the policy that leaves it open. Whether it was otherwise.
    pub fn set_writes_through(&self, on: bool) -> bool {
        self.policy == Policy::Adaptive && self.through.swap(on, Ordering::Relaxed) != on
    }

    /// Counts time spent reading or writing, from `start_ns` until now.
    pub fn count_io(&self, start_ns: u64) {
        self.io_ns.fetch_add(thread::now_ns().saturating_sub(start_ns), Ordering::Relaxed);
    }

    /// Whether slots of pages in frames or in the pool are worth their place: while an eighth of the file is
    /// free.
    pub fn keeps_slots(&self) -> bool {
        is_on(Rule::KeptSlots) && self.tier.free_bytes() > self.tier.bytes() / 8
    }

    /// Whether there is room for second copies of pool pages: more than what is kept free of kept slots, so
    /// that the two do not chase each other.
    pub fn has_plenty(&self) -> bool {
        let plenty = |free: u64, all: u64| free > all / 16 * 3;
        !self.cramped.load(Ordering::Relaxed)
            && plenty(self.tier.free_bytes(), self.tier.bytes())
            && plenty(self.tier.free_slots(), self.tier.slots().into())
    }

    /// Reads completed so far. Ask before looking at a page's word, then `wait` with the answer.
    pub fn arrivals(&self) -> u32 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Waits until a read completes that had not at `seen`; not for ever.
    pub fn wait(&self, seen: u32, stats: &stats::Stats) {
        stats::add(&stats.swap_waits, 1);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _ = thread::futex_wait(&self.arrived, seen, Some(WAIT_NS));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A read has completed, and the words say so.
    pub fn announce(&self) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            thread::futex_wake(&self.arrived, i32::MAX as u32);
        }
    }
}

/// Turns a record's bytes into its page. False when they are none.
pub fn expand(codec: Codec, bytes: &[u8], page: &mut PageBytes) -> bool {
    match codec {
        Codec::Raw if bytes.len() == PAGE_BYTES => {
            page.copy_from_slice(bytes);
            true
        }
        Codec::Raw => false,
        Codec::Lz4 => codec::lz4_expand(bytes, page),
        Codec::ShuffleLz4 => codec::shuffle_lz4_expand(bytes, page),
        Codec::Zstd => codec::zstd::expand(bytes, page),
    }
}
