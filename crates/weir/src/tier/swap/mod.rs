//! The swap file: compressed pages packed into 2 MiB clusters of a file that nobody else can read.
//!
//! A [`Writer`] gathers records and writes them with one sequential request; nothing is visible
//! before [`Writer::write`] has returned Ok. A record is named by a slot, which knows where it lies, how long
//! it is and its generation. Records are sealed (`record`): bytes that are not what was written are
//! [`SwapError::Damaged`], never wrong bytes.
//!
//! **Sharing.** The slot table, the slot bitmap and the cluster words lie in memory that forked children
//! share (`shared`). All of it is changed by single atomic operations: there is no lock that a killed process
//! could hold, and processes may write, free and end in any order. What a killed process costs:
//!
//! | what it had | cost | mended by |
//! | - | - | - |
//! | a cluster open for writing | up to 2 MiB cannot be written | [`Swap::trim`] closes it |
//! | references to records | their space, until all others are gone too | [`Swap::leaked`] counts them, [`Swap::reclaim_leaked`] |
//! | slots in caches | [`CACHE_MAX`] numbers a cache, no space | `reclaim_leaked` |
//! | a write or a free half done | its records' space | `reclaim_leaked` |
//!
//! **Who may call.** Everything may be called from any thread at any time, with all signals blocked: nothing
//! is allocated and nothing waits for another thread. A caller must own what it names: a record is read or
//! freed by whoever holds the lock of its page, or has marked the page busy.

mod check;
mod clusters;
mod counters;
mod read;
mod record;
mod shared;
mod slots;
#[cfg(test)]
mod tests;
mod writer;

pub use check::Totals;
pub use counters::Counters;
pub use read::{Scratch, Seen};
pub use record::RECORD_BYTES_MAX;
pub use slots::{CACHE_MAX, SlotCache};
pub use writer::{BatchFull, Writer};

use crate::door::BlockIo;
pub use crate::error::SwapError;
use crate::page::{ClusterId, PageId, SlotId};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU32;
use record::{Seal, UNIT_BYTES, units};
use shared::{Shared, UNITS_MAX, Word};
use weir_os::cipher::Cipher;
use weir_os::sys;

/// Bytes of a cluster.
pub const CLUSTER_BYTES: u64 = 2 << 20;
/// Alignment of I/O that the layout can take: batches begin and end at multiples of it.
const ALIGN_MAX: usize = 4096;
/// Files of so many clusters keep one for moving records.
const RESERVE_FROM_CLUSTERS: u32 = 4;

/// How a record's bytes were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// A page as it is.
    Raw = 1,
    /// LZ4.
    Lz4 = 2,
    /// Byte shuffle (stride 8), then LZ4.
    ShuffleLz4 = 3,
    /// zstd.
    Zstd = 4,
}

impl Codec {
    fn from_tag(tag: u64) -> Option<Codec> {
        [Codec::Raw, Codec::Lz4, Codec::ShuffleLz4, Codec::Zstd]
            .into_iter()
            .find(|codec| *codec as u64 == tag)
    }
}

impl From<super::pool::Codec> for Codec {
    fn from(codec: super::pool::Codec) -> Codec {
        match codec {
            super::pool::Codec::Lz4 => Codec::Lz4,
            super::pool::Codec::ShuffleLz4 => Codec::ShuffleLz4,
            super::pool::Codec::Zstd => Codec::Zstd,
        }
    }
}

/// How records are protected on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapEncryption {
    /// Encrypted and authenticated under a key that is never written anywhere.
    Aead,
    /// In the clear, with a checksum.
    None,
}

/// Settings of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapSettings {
    /// Records that the slot table can name; 0: one per KiB of the file.
    pub slots: u32,
    /// Clusters punched by one `trim` at most.
    pub punches: u32,
    /// The device has no blocks yet: they are allocated, all at once, before the first write.
    pub blocks_later: bool,
}

impl Default for SwapSettings {
    fn default() -> Self {
        SwapSettings { slots: 0, punches: 16, blocks_later: false }
    }
}

/// The swap tier of one process, over memory that its forked children share.
#[derive(Debug)]
pub struct Swap<D: BlockIo> {
    dev: D,
    seal: Seal,
    shared: Shared,
    counters: Counters,
    settings: SwapSettings,
    /// Differs between a process and its children: tells them whose caches and writers are whose.
    epoch: AtomicU32,
    /// This process's row in the shared table of processes.
    row: AtomicU32,
    /// A thread is settling the affairs of dead processes.
    settling: AtomicU32,
    /// Error number of the first hard write error of this process. Not shared: it may be a child's own fault,
    /// which has closed the file.
    latched: AtomicU32,
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
        let blocks = if settings.blocks_later { shared::BLOCKS_LATER } else { shared::BLOCKS_THERE };
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
    pub fn free(&self, cache: &mut SlotCache, slot: SlotId) {
        self.shared.hold(self.row(), -1);
        self.release(cache, slot);
    }

    /// One more reference, on behalf of a child about to be forked. Give their number to
    /// [`Swap::after_fork_in_child`]; if the fork fails, take each back by [`Swap::unretain`].
    pub fn retain(&self, slot: SlotId) {
        self.shared.count(slot, true);
    }

    /// Takes a `retain` back.
    pub fn unretain(&self, cache: &mut SlotCache, slot: SlotId) {
        self.release(cache, slot);
    }

    fn release(&self, cache: &mut SlotCache, slot: SlotId) {
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
    fn bury(&self, at: &shared::Located) {
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
    pub fn offset_of(&self, slot: SlotId) -> Option<u64> {
        self.shared.locate(slot).map(|at| at.offset)
    }

    /// The page that the slot table knows for a record; the caller's page word alone says whether it is true.
    pub fn page_of(&self, slot: SlotId) -> Option<PageId> {
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
    pub fn references(&self, slot: SlotId) -> u64 {
        self.shared.refs(slot)
    }

    /// A record's page changed its number (`mremap`). After a fork the other process's number may be another:
    /// the record itself no longer tells whose it is, and the caller's page word alone does.
    pub fn rename(&self, slot: SlotId, to: PageId) {
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
        if self.row() != clusters::UNTRACKED && self.shared.process(self.row()) == sys::getpid() {
            self.shared.leave(&self.dev, self.row());
        }
        self.row.store(clusters::UNTRACKED.into(), Ordering::Relaxed);
    }

    /// Bytes of the free clusters that writers may take. Open clusters may take more.
    pub fn free_bytes(&self) -> u64 {
        if self.shared.get(Word::Blocks) == shared::BLOCKS_REFUSED {
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

    fn latch(&self, errno: sys::Errno) {
        let _ = self.latched.compare_exchange(0, errno.0 as u32, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Housekeeping, now and then by a background thread: clusters that stayed free since the last call are
    /// given back to the file system, what dead processes left open is closed. Clusters punched.
    pub fn trim(&self) -> u32 {
        if self.settling.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            self.shared.settle_the_dead(&self.dev, self.row());
            self.settling.store(0, Ordering::Release);
        }
        if self.shared.get(Word::Blocks) == shared::BLOCKS_REFUSED {
            self.shared.has_blocks(&self.dev); // there may be room by now
        }
        self.shared.trim(&self.dev, self.row(), self.settings.punches, &self.counters)
    }

    /// References that killed or departed processes took with them, as far as they were counted.
    pub fn leaked(&self) -> u64 {
        self.shared.get(Word::Leaked)
    }

    /// Frees what processes that are gone still held. Only the last process can know: `None` while others
    /// take part. `mine` names every slot that this process holds, once per reference (one each); no thread
    /// is in the tier meanwhile, and all caches are emptied before. Records freed.
    pub fn reclaim_leaked(&self, mine: impl FnOnce(&mut dyn FnMut(SlotId))) -> Option<u64> {
        if !self.shared.alone(self.row()) {
            return None;
        }
        check::reclaim(self, mine)
    }

    /// A cluster of which at most one part in `share` is live, and whose records may be moved:
    /// [`Swap::each_in_cluster`] gives them, the owner writes them elsewhere ([`Writer::for_moving`]) and
    /// frees them here. Each is offered once until another record of it dies.
    pub fn sparse_cluster(&self, share: u64) -> Option<ClusterId> {
        self.shared.sparse(share.max(1))
    }

    /// Clusters that only moving may take: without an empty one a full file with dead records in every
    /// cluster could not be tidied up. Tiny files have none to spare.
    fn reserve(&self) -> u64 {
        u64::from(self.shared.cluster_count() >= RESERVE_FROM_CLUSTERS)
    }

    /// Re-derives every counter from the slot table and says what does not agree. No thread or process may be
    /// inside meanwhile. For tests: it looks at every slot.
    pub fn validate(&self) -> Result<Totals, &'static str> {
        check::validate(self)
    }

    fn row(&self) -> u16 {
        self.row.load(Ordering::Relaxed) as u16
    }

    fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }
}

impl<D: BlockIo> Drop for Swap<D> {
    fn drop(&mut self) {
        self.depart();
    }
}
