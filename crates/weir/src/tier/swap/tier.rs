//! The tier of one process: frees, retains, forks, and keeps room.

use super::clusters::UNTRACKED;
use super::counters::Counters;
use super::layout::{ALIGN_MAX, CLUSTER_BYTES, RESERVE_FROM_CLUSTERS, SwapEncryption, SwapSettings};
use super::record::{Seal, UNIT_BYTES, units};
use super::shared::{BLOCKS_LATER, BLOCKS_REFUSED, BLOCKS_THERE, Located, Shared, UNITS_MAX, Word};
use super::slots::{CACHE_MAX, SlotCache};
use crate::door::BlockIo;
use crate::error::SwapError;
use crate::page::{ClusterId, PageId, SwapSlot};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU32;
use weir_os::cipher::Cipher;
use weir_os::sys;

/// The swap tier of one process, over memory that its forked children share.
#[derive(Debug)]
pub struct Swap<D: BlockIo> {
    pub(super) dev: D,
    pub(super) seal: Seal,
    pub(super) shared: Shared,
    pub(super) counters: Counters,
    settings: SwapSettings,
    /// Differs between a process and its children: tells them whose caches and writers are whose.
    epoch: AtomicU32,
    /// This process's row in the shared table of processes.
    row: AtomicU32,
    /// A thread is settling the affairs of dead processes.
    settling: AtomicU32,
    /// Error number of the first hard write error of this process. Not shared: it may be a child's own fault,
    /// which has closed the file.
    pub(super) latched: AtomicU32,
}

impl<D: BlockIo> Swap<D> {
    /// A tier over the first `bytes` of an empty device, rounded down to clusters.
    pub fn new(
        dev: D,
        bytes: u64,
        settings: SwapSettings,
        encryption: SwapEncryption,
    ) -> Result<Self, SwapError> {
        let clusters = u32::try_from(bytes / CLUSTER_BYTES).map_err(|_| SwapError::Size)?;
        if clusters == 0 || bytes / UNIT_BYTES as u64 > UNITS_MAX || dev.align() > ALIGN_MAX {
            return Err(SwapError::Size);
        }
        let slots = match settings.slots {
            0 => u32::try_from(bytes >> 10).unwrap_or(u32::MAX),
            n => n,
        };
        let mut seed = [0; 8];
        sys::random(&mut seed).map_err(SwapError::Memory)?;
        let seal = match encryption {
            SwapEncryption::Aead => Seal::Cipher(Cipher::new().map_err(SwapError::Memory)?),
            SwapEncryption::None => Seal::Checksum(u64::from_le_bytes(seed)),
        };
        let blocks = if settings.blocks_later { BLOCKS_LATER } else { BLOCKS_THERE };
        let shared = Shared::new(clusters, slots, blocks).map_err(SwapError::Memory)?;
        let row = shared.join(&dev, sys::getpid(), 0);
        Ok(Swap {
            dev,
            seal,
            shared,
            counters: Counters::default(),
            settings,
            epoch: AtomicU32::new(1),
            row: AtomicU32::new(row.into()),
            settling: AtomicU32::new(0),
            latched: AtomicU32::new(0),
        })
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.dev
    }

    /// What this process did.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether the key's page is locked in RAM; true when there is no key.
    pub fn key_is_locked(&self) -> bool {
        match &self.seal {
            Seal::Cipher(cipher) => cipher.locked(),
            Seal::Checksum(_) => true,
        }
    }

    /// Drops a reference that this process holds; the record is gone with the last one.
    pub fn free(&self, cache: &mut SlotCache, slot: SwapSlot) {
        self.shared.hold(self.row(), -1);
        self.release(cache, slot);
    }

    /// One more reference, on behalf of a child about to be forked. Give their number to
    /// [`Swap::after_fork_in_child`]; if the fork fails, take each back by [`Swap::unretain`].
    pub fn retain(&self, slot: SwapSlot) {
        self.shared.count(slot, true);
    }

    /// Takes a `retain` back.
    pub fn unretain(&self, cache: &mut SlotCache, slot: SwapSlot) {
        self.release(cache, slot);
    }

    fn release(&self, cache: &mut SlotCache, slot: SwapSlot) {
        cache.enter(self.epoch());
        let at = self.shared.locate(slot);
        if self.shared.count(slot, false) == 0
            && let Some(at) = at
        {
            self.bury(&at);
            cache.release(&self.shared, &self.counters, slot);
        }
    }

    /// Gives back what a record took in the file.
    pub(super) fn bury(&self, at: &Located) {
        self.shared.word(Word::LiveUnits).fetch_sub(units(at.len), Ordering::Relaxed);
        self.shared.word(Word::LiveRecords).fetch_sub(1, Ordering::Relaxed);
        self.shared.sub_record(at.cluster(), units(at.len));
    }

    /// Gives the slots back that a cache has set aside: when its owner ends.
    pub fn empty(&self, cache: &mut SlotCache) {
        cache.enter(self.epoch());
        cache.give_back(&self.shared, CACHE_MAX);
    }

    /// Byte offset in the file at which a slot's record lies; `None`: it names none.
    pub fn offset_of(&self, slot: SwapSlot) -> Option<u64> {
        self.shared.locate(slot).map(|at| at.offset)
    }

    /// The page that the slot table knows for a record; the caller's page word alone says whether it is true.
    pub fn page_of(&self, slot: SwapSlot) -> Option<PageId> {
        self.shared.locate(slot).map(|at| at.page)
    }

    /// Slots that the slot table has: their numbers are below.
    pub fn slots(&self) -> u32 {
        self.shared.slot_count()
    }

    /// Slots that name nothing and are in nobody's cache.
    pub fn free_slots(&self) -> u64 {
        u64::from(self.slots()).saturating_sub(self.shared.get(Word::SlotsTaken))
    }

    /// Whether no other process takes part.
    pub fn alone(&self) -> bool {
        self.shared.alone(self.row())
    }

    /// References to a record, of all processes; 0 for a slot that names none.
    pub fn references(&self, slot: SwapSlot) -> u64 {
        self.shared.refs(slot)
    }

    /// A record's page changed its number (`mremap`). After a fork the other process's number may be another:
    /// the record itself no longer tells whose it is, and the caller's page word alone does.
    pub fn rename(&self, slot: SwapSlot, to: PageId) {
        self.shared.rename(slot, to);
    }

    /// In a forked child, once: takes a row of its own, and forgets the caches and open clusters of its
    /// parent. `retained` is how often the parent called `retain` for it. The device is renewed by the caller
    /// before.
    pub fn after_fork_in_child(&self, retained: u64) {
        let row = self.shared.join(&self.dev, sys::getpid(), retained);
        self.row.store(row.into(), Ordering::Relaxed);
        if let Seal::Cipher(cipher) = &self.seal {
            cipher.lock(); // a child does not inherit that
        }
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Before this process ends in good order: what it still holds counts as leaked. (A process that is
    /// killed, or becomes another program by `exec`, is noticed by the others' `trim`.)
    pub fn depart(&self) {
        // In a child that has no row of its own yet the number is its parent's.
        if self.row() != UNTRACKED && self.shared.process(self.row()) == sys::getpid() {
            self.shared.leave(&self.dev, self.row());
        }
        self.row.store(UNTRACKED.into(), Ordering::Relaxed);
    }

    /// Bytes of the free clusters that writers may take. Open clusters may take more.
    pub fn free_bytes(&self) -> u64 {
        if self.shared.get(Word::Blocks) == BLOCKS_REFUSED {
            return 0;
        }
        self.shared.get(Word::FreeClusters).saturating_sub(self.reserve()) * CLUSTER_BYTES
    }

    /// Bytes in the file of live records, with headers and tags.
    pub fn live_bytes(&self) -> u64 {
        self.shared.get(Word::LiveUnits) * UNIT_BYTES as u64
    }

    /// Live records, of all processes.
    pub fn live_records(&self) -> u64 {
        self.shared.get(Word::LiveRecords)
    }

    /// Bytes of the file that the tier uses.
    pub fn bytes(&self) -> u64 {
        u64::from(self.shared.cluster_count()) * CLUSTER_BYTES
    }

    /// Whether a write of this process has failed for good, and how.
    pub fn is_latched(&self) -> Option<sys::Errno> {
        match self.latched.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(sys::Errno(errno as i32)),
        }
    }

    pub(super) fn latch(&self, errno: sys::Errno) {
        let _ = self.latched.compare_exchange(0, errno.0 as u32, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Housekeeping, now and then by a background thread: clusters that stayed free since the last call are
    /// given back to the file system, what dead processes left open is closed. Clusters punched.
    pub fn trim(&self) -> u32 {
        if self.settling.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            self.shared.settle_the_dead(&self.dev, self.row());
            self.settling.store(0, Ordering::Release);
        }
        if self.shared.get(Word::Blocks) == BLOCKS_REFUSED {
            self.shared.has_blocks(&self.dev); // there may be room by now
        }
        self.shared.trim(&self.dev, self.row(), self.settings.punches, &self.counters)
    }

    /// References that killed or departed processes took with them, as far as they were counted.
    pub fn leaked(&self) -> u64 {
        self.shared.get(Word::Leaked)
    }

    /// A cluster of which at most one part in `share` is live, and whose records may be moved:
    /// [`Swap::each_in_cluster`] gives them, the owner writes them elsewhere (`Writer::for_moving`) and
    /// frees them here. Each is offered once until another record of it dies.
    pub fn sparse_cluster(&self, share: u64) -> Option<ClusterId> {
        self.shared.sparse(share.max(1))
    }

    /// Clusters that only moving may take: without an empty one a full file with dead records in every
    /// cluster could not be tidied up. Tiny files have none to spare.
    pub(super) fn reserve(&self) -> u64 {
        u64::from(self.shared.cluster_count() >= RESERVE_FROM_CLUSTERS)
    }

    pub(super) fn row(&self) -> u16 {
        self.row.load(Ordering::Relaxed) as u16
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }
}

impl<D: BlockIo> Drop for Swap<D> {
    fn drop(&mut self) {
        self.depart();
    }
}
