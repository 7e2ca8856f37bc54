//! A batch on its way to disk: gathered in memory of the engine's own, sealed, written with one request,
//! and only then named by slots.

use super::layout::{ALIGN_MAX, CLUSTER_BYTES, Codec};
use super::record::{self, FOOTPRINT_MAX, HEADER_BYTES, Header, footprint, units};
use super::shared::{Located, Word};
use super::slots::SlotCache;
use super::tier::Swap;
use crate::door::BlockIo;
use crate::error::SwapError;
use crate::page::{ClusterId, PageId, SwapSlot};
use crate::stats::add;
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::mem::{Buffer, Table};
use weir_os::sys::Errno;

/// The batch takes no more: write it, or clear it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFull;

/// Where a batch is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Filling,
    Written,
    Failed,
}

/// A page without records: cancelled.
const CANCELLED: u32 = u32::MAX;

/// A batch of one caller. In a forked child its copy keeps the records that were not written yet, and writes
/// to clusters of its own.
#[derive(Debug)]
pub struct Writer {
    bytes: Buffer,
    /// Page and slot; length, codec and offset in `bytes`.
    entries: Table<[AtomicU64; 2]>,
    count: usize,
    fill: usize,
    capacity: usize,
    stage: Stage,
    /// May take the clusters that are kept for moving records.
    moves: bool,
    /// The cluster that batches go to, and how far it is full.
    open: Option<(ClusterId, u64)>,
    epoch: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    page: u32,
    slot: SwapSlot,
    len: usize,
    codec: u64,
    at: usize,
}

impl Writer {
    /// An empty batch of up to `batch_bytes`: one page at least, a cluster at most.
    pub fn new(batch_bytes: usize) -> Result<Writer, SwapError> {
        let capacity = batch_bytes.clamp(FOOTPRINT_MAX, CLUSTER_BYTES as usize).next_multiple_of(ALIGN_MAX);
        Ok(Writer {
            bytes: Buffer::new(capacity, c"weir-batch").map_err(SwapError::Memory)?,
            entries: Table::new(capacity / footprint(1), c"weir-batch").map_err(SwapError::Memory)?,
            count: 0,
            fill: 0,
            capacity,
            stage: Stage::Filling,
            moves: false,
            open: None,
            epoch: 0,
        })
    }

    /// As `new`, for records out of sparse clusters: it may take the last cluster, since what it writes
    /// sets others free.
    pub fn for_moving(batch_bytes: usize) -> Result<Writer, SwapError> {
        Ok(Writer { moves: true, ..Self::new(batch_bytes)? })
    }

    /// Adds a page's record, 1 to [`record::RECORD_BYTES_MAX`] bytes.
    pub fn push(&mut self, page: PageId, codec: Codec, bytes: &[u8]) -> Result<(), BatchFull> {
        assert!((1..=record::RECORD_BYTES_MAX).contains(&bytes.len()), "a record has 1 to 4096 bytes");
        let size = footprint(bytes.len());
        if self.stage != Stage::Filling || self.fill + size > self.capacity {
            return Err(BatchFull);
        }
        let text = self.fill + HEADER_BYTES;
        self.bytes[text..text + bytes.len()].copy_from_slice(bytes);
        let (len, codec, at) = (bytes.len(), codec as u64, self.fill);
        self.set(self.count, Entry { page: page.0, slot: SwapSlot(0), len, codec, at });
        self.count += 1;
        self.fill += size;
        Ok(())
    }

    /// Drops a page from a batch that is not written yet; whether it was there.
    pub fn cancel(&mut self, page: PageId) -> bool {
        let found = (0..self.count).find(|&i| self.entry(i).page == page.0);
        if let (Some(i), Stage::Filling) = (found, self.stage) {
            self.set(i, Entry { page: CANCELLED, ..self.entry(i) });
        }
        found.is_some() && self.stage == Stage::Filling
    }

    /// Pages in the batch; after a failed write these have nothing on disk.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        (0..self.count).map(|i| PageId(self.entry(i).page)).filter(|page| page.0 != CANCELLED)
    }

    /// Pages of a written batch with their slots.
    pub fn written(&self) -> impl Iterator<Item = (PageId, SwapSlot)> {
        let count = if self.stage == Stage::Written { self.count } else { 0 };
        let entries = (0..count).map(|i| self.entry(i)).filter(|entry| entry.page != CANCELLED);
        entries.map(|entry| (PageId(entry.page), entry.slot))
    }

    /// Bytes that the batch would take in the file now.
    pub fn bytes(&self) -> usize {
        self.fill
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets the batch, written or not, for the next one.
    pub fn clear(&mut self) {
        (self.count, self.fill, self.stage) = (0, 0, Stage::Filling);
    }

    /// Writes the batch with one request; the number of records. On Ok all of them are on disk and
    /// [`Writer::written`] names them, each with one reference. On `Full` before anything was written the
    /// batch can be written again later; on any other error nothing of it is on disk or takes space there,
    /// and it must be cleared.
    pub fn write<D: BlockIo>(&mut self, swap: &Swap<D>, cache: &mut SlotCache) -> Result<usize, SwapError> {
        self.enter(swap);
        cache.enter(swap.epoch());
        // 1. anything to do, and anything to do it with?
        if let Some(errno) = swap.is_latched() {
            return Err(SwapError::Latched(errno));
        }
        if self.stage != Stage::Filling {
            return Err(SwapError::Full);
        }
        let size = self.compact();
        if size == 0 {
            self.stage = Stage::Written;
            return Ok(0);
        }
        let padded = size.next_multiple_of(swap.dev.align());
        // 2. a place in the file and a slot for each
        let (cluster, offset) = self.place(swap, padded as u64)?;
        self.reserve(swap, cache)?;
        // 3. seal
        let first = swap.shared.word(Word::Generation).fetch_add(self.count as u64, Ordering::Relaxed);
        self.seal(swap, first);
        self.bytes[size..padded].fill(0);
        // 4. one request
        let result = swap.dev.write_at(offset, &self.bytes[..padded]);
        add(&swap.counters.writes, 1);
        if let Err(errno) = result {
            return Err(self.fail(swap, cache, errno));
        }
        add(&swap.counters.bytes_written, padded as u64);
        // 5. visible
        self.publish(swap, cluster, offset, first);
        self.open = Some((cluster, offset % CLUSTER_BYTES + padded as u64));
        self.stage = Stage::Written;
        Ok(self.count)
    }

    /// Closes the cluster that batches went to: when the writer ends or stays idle.
    pub fn close<D: BlockIo>(&mut self, swap: &Swap<D>) {
        self.enter(swap);
        if let Some((cluster, _)) = self.open.take()
            && swap.shared.is_open_by(cluster, swap.row())
        {
            swap.shared.close(cluster);
        }
    }

    /// The open cluster of a parent is not a child's.
    fn enter<D: BlockIo>(&mut self, swap: &Swap<D>) {
        if self.epoch != swap.epoch() {
            (self.open, self.epoch) = (None, swap.epoch());
        }
    }

    /// Closes the gaps of cancelled pages: their bytes are dead and not written. Bytes that remain.
    fn compact(&mut self) -> usize {
        let (mut kept, mut at) = (0, 0);
        for i in 0..self.count {
            let entry = self.entry(i);
            if entry.page == CANCELLED {
                continue;
            }
            let size = footprint(entry.len);
            self.bytes.copy_within(entry.at..entry.at + size, at);
            self.set(kept, Entry { at, ..entry });
            kept += 1;
            at += size;
        }
        (self.count, self.fill) = (kept, at);
        at
    }

    /// Room for `padded` bytes: the cluster and the offset in the file.
    fn place<D: BlockIo>(&mut self, swap: &Swap<D>, padded: u64) -> Result<(ClusterId, u64), SwapError> {
        if let Some((cluster, used)) = self.open {
            // Closed by somebody who took this process for dead (its claim can be lost, if the program closes
            // descriptors that are not its own): not ours any more.
            let ours = swap.shared.is_open_by(cluster, swap.row());
            if ours && used + padded <= CLUSTER_BYTES {
                return Ok((cluster, u64::from(cluster.0) * CLUSTER_BYTES + used));
            }
            self.close(swap);
        }
        let reserve = if self.moves { 0 } else { swap.reserve() };
        let taken = swap.shared.take(&swap.dev, swap.row(), reserve, &swap.counters);
        let cluster = taken.ok_or(SwapError::Full)?;
        self.open = Some((cluster, 0));
        Ok((cluster, u64::from(cluster.0) * CLUSTER_BYTES))
    }

    fn reserve<D: BlockIo>(&mut self, swap: &Swap<D>, cache: &mut SlotCache) -> Result<(), SwapError> {
        for i in 0..self.count {
            match cache.reserve(&swap.shared, &swap.counters) {
                Some(slot) => self.set(i, Entry { slot, ..self.entry(i) }),
                None => {
                    self.unreserve(swap, cache, i);
                    return Err(SwapError::Full);
                }
            }
        }
        Ok(())
    }

    fn unreserve<D: BlockIo>(&self, swap: &Swap<D>, cache: &mut SlotCache, n: usize) {
        for i in 0..n {
            cache.release(&swap.shared, &swap.counters, self.entry(i).slot);
        }
    }

    fn seal<D: BlockIo>(&mut self, swap: &Swap<D>, first: u64) {
        for i in 0..self.count {
            let Entry { page, slot, len, codec, at } = self.entry(i);
            let Some(codec) = Codec::from_tag(codec) else { unreachable!("stored by push") };
            let header = Header { slot, page: PageId(page), generation: first + i as u64, codec, len };
            swap.seal.seal(&header, &mut self.bytes[at..at + footprint(len)]);
        }
    }

    fn publish<D: BlockIo>(&self, swap: &Swap<D>, cluster: ClusterId, offset: u64, first: u64) {
        let total = (0..self.count).map(|i| units(self.entry(i).len)).sum();
        swap.shared.add_records(cluster, self.count as u64, total);
        swap.shared.hold(swap.row(), self.count as i64);
        for i in 0..self.count {
            let Entry { page, slot, len, codec, at } = self.entry(i);
            let Some(codec) = Codec::from_tag(codec) else { unreachable!("stored by push") };
            let (offset, generation) = (offset + at as u64, first + i as u64);
            let page = PageId(page);
            swap.shared.publish(slot, &Located { offset, len, codec, generation, page, renamed: false });
        }
        add(&swap.counters.pages_out, self.count as u64);
    }

    /// Gives everything back. A full disk is no broken one: frees and punches make room again.
    fn fail<D: BlockIo>(&mut self, swap: &Swap<D>, cache: &mut SlotCache, errno: Errno) -> SwapError {
        add(&swap.counters.errors, 1);
        self.unreserve(swap, cache, self.count);
        self.stage = Stage::Failed;
        self.close(swap);
        if matches!(errno, Errno::ENOSPC | Errno::EDQUOT) {
            return SwapError::Full;
        }
        swap.latch(errno);
        SwapError::Write(errno)
    }

    fn entry(&self, i: usize) -> Entry {
        let row = self.entries.row(i);
        let (a, b) = (row[0].load(Ordering::Relaxed), row[1].load(Ordering::Relaxed));
        Entry {
            page: a as u32,
            slot: SwapSlot((a >> 32) as u32),
            len: b as usize & 0x1fff,
            codec: b >> 13 & 7,
            at: (b >> 32) as usize,
        }
    }

    fn set(&self, i: usize, entry: Entry) {
        let row = self.entries.row(i);
        row[0].store(u64::from(entry.page) | u64::from(entry.slot.0) << 32, Ordering::Relaxed);
        row[1].store(entry.len as u64 | entry.codec << 13 | (entry.at as u64) << 32, Ordering::Relaxed);
    }
}
