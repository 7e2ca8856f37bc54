//! The memory that a process and its forked children share: slot table, slot bitmap, cluster words, and
//! who takes part. Atomics only: no lock, so that a process killed at any instruction stops nobody.

use super::layout::{CLUSTER_BYTES, Codec};
use super::record::{UNIT_BYTES, units};
use crate::page::{ClusterId, PageId, SwapSlot};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::mem::Table;
use weir_os::sys::Errno;

/// Processes that can take part with their references counted.
pub(super) const PROCESSES: usize = 1024;
/// Words of a slot row.
const PLACE: usize = 0;
const GENERATION: usize = 1;
const LIFE: usize = 2;

const OFFSET_BITS: u32 = 40;
const LENGTH_BITS: u32 = 13;
/// References in the low half of the life word; the page is in the high half.
const REFS: u64 = (1 << 31) - 1;
/// The page has another number now than in the record.
const RENAMED: u64 = 1 << 31;

/// Units that a file may have at most: what a place word can name.
pub(super) const UNITS_MAX: u64 = 1 << OFFSET_BITS;

/// Single words, each on a cache line of its own.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// Next generation, which is also the next nonce: never twice under one key.
    Generation,
    /// Units of live records.
    LiveUnits,
    /// Live records.
    LiveRecords,
    /// Free clusters.
    FreeClusters,
    /// Bits set in the slot bitmap.
    SlotsTaken,
    /// Where the next free cluster, slot, sparse cluster is looked for.
    ClusterHand,
    SlotHand,
    SparseHand,
    /// References that killed processes took with them.
    Leaked,
    /// Set once the device has refused to punch.
    NoPunch,
    /// Processes that joined when no row was left for them.
    Untracked,
    /// Whether the file has its blocks: [`BLOCKS_LATER`], [`BLOCKS_THERE`] or [`BLOCKS_REFUSED`].
    Blocks,
}
const WORDS: usize = 12;

/// They are asked for when the first cluster is taken.
pub(super) const BLOCKS_LATER: u64 = 0;
/// For good.
pub(super) const BLOCKS_THERE: u64 = 1;
/// The disk had no room for them when it was asked last.
pub(super) const BLOCKS_REFUSED: u64 = 2;
const LINE_WORDS: usize = 8;

/// Everything shared.
#[derive(Debug)]
pub(super) struct Shared {
    words: Table<[AtomicU64; LINE_WORDS]>,
    slots: Table<[AtomicU64; 3]>,
    pub bitmap: Table<AtomicU64>,
    pub clusters: Table<AtomicU64>,
    /// Process id (0: not in use) and references held, per process.
    pub processes: Table<[AtomicU64; 2]>,
}

/// What the slot table says about a live record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    /// Byte offset in the file.
    pub offset: u64,
    pub len: usize,
    pub codec: Codec,
    pub generation: u64,
    /// The page it is for now.
    pub page: PageId,
    /// Its header may name another page.
    pub renamed: bool,
}

impl Located {
    pub fn cluster(&self) -> ClusterId {
        ClusterId((self.offset / CLUSTER_BYTES) as u32)
    }
}

impl Shared {
    pub fn new(clusters: u32, slots: u32, blocks: u64) -> Result<Shared, Errno> {
        let shared = Shared {
            words: Table::shared(WORDS, c"weir-swap")?,
            slots: Table::shared(slots as usize, c"weir-swap-slots")?,
            bitmap: Table::shared((slots as usize).div_ceil(64), c"weir-swap-slots")?,
            clusters: Table::shared(clusters as usize, c"weir-swap")?,
            processes: Table::shared(PROCESSES, c"weir-swap")?,
        };
        shared.word(Word::FreeClusters).store(u64::from(clusters), Ordering::Relaxed);
        shared.word(Word::Blocks).store(blocks, Ordering::Relaxed);
        Ok(shared)
    }

    pub fn word(&self, word: Word) -> &AtomicU64 {
        &self.words.row(word as usize)[0]
    }

    pub fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    pub fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn cluster_count(&self) -> u32 {
        self.clusters.len() as u32
    }

    /// Makes a reserved slot name a record, with one reference. The bytes are on disk.
    pub fn publish(&self, slot: SwapSlot, at: &Located) {
        let row = self.slots.row(slot.0 as usize);
        debug_assert_eq!(row[LIFE].load(Ordering::Relaxed) & REFS, 0);
        let place = (at.offset / UNIT_BYTES as u64)
            | (at.len as u64) << OFFSET_BITS
            | (at.codec as u64) << (OFFSET_BITS + LENGTH_BITS);
        row[PLACE].store(place, Ordering::Relaxed);
        row[GENERATION].store(at.generation, Ordering::Relaxed);
        row[LIFE].store(u64::from(at.page.0) << 32 | 1, Ordering::Release);
        self.word(Word::LiveUnits).fetch_add(units(at.len), Ordering::Relaxed);
        self.word(Word::LiveRecords).fetch_add(1, Ordering::Relaxed);
    }

    /// Where a live record is; `None` for a slot that names none.
    pub fn locate(&self, slot: SwapSlot) -> Option<Located> {
        if slot.0 >= self.slot_count() {
            return None;
        }
        let row = self.slots.row(slot.0 as usize);
        let life = row[LIFE].load(Ordering::Acquire);
        if life & REFS == 0 {
            return None;
        }
        let place = row[PLACE].load(Ordering::Relaxed);
        Some(Located {
            offset: (place & (UNITS_MAX - 1)) * UNIT_BYTES as u64,
            len: (place >> OFFSET_BITS) as usize & ((1 << LENGTH_BITS) - 1),
            codec: Codec::from_tag(place >> (OFFSET_BITS + LENGTH_BITS))?,
            generation: row[GENERATION].load(Ordering::Relaxed),
            page: PageId((life >> 32) as u32),
            renamed: life & RENAMED != 0,
        })
    }

    /// Changes the references of a live record by +1 or -1; those left.
    pub fn count(&self, slot: SwapSlot, more: bool) -> u64 {
        let life = &self.slots.row(slot.0 as usize)[LIFE];
        let step = |w: u64| {
            let refs = w & REFS;
            assert!(refs != 0 && refs < REFS, "a swap record was freed twice, or shared too often");
            Some(if more { w + 1 } else { w - 1 })
        };
        match life.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step) {
            Ok(before) if more => (before & REFS) + 1,
            Ok(before) => (before & REFS) - 1,
            Err(_) => unreachable!("the update never declines"),
        }
    }

    /// References to a slot.
    pub fn refs(&self, slot: SwapSlot) -> u64 {
        self.slots.row(slot.0 as usize)[LIFE].load(Ordering::Acquire) & REFS
    }

    /// All references but one go.
    pub fn keep_one(&self, slot: SwapSlot) {
        let life = &self.slots.row(slot.0 as usize)[LIFE];
        let _ = life.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |w| Some(w & !REFS | 1));
    }

    /// The record is for another page from now on.
    pub fn rename(&self, slot: SwapSlot, to: PageId) {
        let life = &self.slots.row(slot.0 as usize)[LIFE];
        let step = |w: u64| Some(w & REFS | RENAMED | u64::from(to.0) << 32);
        let _ = life.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step);
    }
}
