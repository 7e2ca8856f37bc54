//! Census: how many pages there are of which kind. Gauges that are kept up to date, and `validate`, which
//! derives every one of them again from the words of the pages.

use super::copies::Copies;
use super::room::Room;
use super::staged::StagedQueue;
use crate::door::{BlockIo, Pager};
use crate::page::BlockId;
use crate::page::id::BLOCK_PAGES;
use crate::page::state::{State, transitions_missed};
use crate::page::table::PageTable;
use crate::stats::Stats;
use crate::sync::{self, Ordering};
use core::sync::atomic::AtomicU64;
use weir_os::mem::PAGE_BYTES;
use weir_os::shards::Line;

/// What [`Census::validate`] counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Pages mapped in the program.
    pub resident: u64,
    /// Pages unmapped, still in a frame.
    pub staged: u64,
    /// Same-filled pages.
    pub same: u64,
    /// Pages that are a pool record alone.
    pub pooled: u64,
    /// Pages in a frame with a kept record.
    pub kept: u64,
    /// Pages that are a record in the swap file alone.
    pub swapped: u64,
    /// Pages that are a pool record and a record in the swap file (counted in `pooled` as well).
    pub doubled: u64,
    /// Pages in a frame with a record kept in the swap file.
    pub kept_slots: u64,
    /// Pages locked in memory.
    pub mlocked: u64,
}

/// Pages with contents: now, and most so far.
#[derive(Debug, Default)]
struct Managed {
    now: AtomicU64,
    peak: AtomicU64,
}

/// Gauges of pages.
#[derive(Debug, Default)]
pub struct Census {
    managed: Line<Managed>,
    /// Pages locked in memory by the program.
    pub mlocked: AtomicU64,
}

impl Census {
    /// Counts pages that came to have contents (or lost them).
    pub fn count_managed(&self, delta: i64) {
        let now = self.managed.now.fetch_add(delta as u64, Ordering::Relaxed).wrapping_add(delta as u64);
        if delta > 0 {
            self.managed.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Pages with contents.
    pub fn managed(&self) -> u64 {
        self.managed.now.load(Ordering::Relaxed)
    }

    /// Brings the gauges in the statistics up to date; the engine holds so many bytes of RAM.
    pub fn publish<P: Pager>(
        &self,
        s: &Stats,
        pager: &P,
        room: &Room,
        copies: &Copies<P::Disk>,
        held_bytes: u64,
    ) {
        s.managed_bytes.store(self.managed() * PAGE_BYTES as u64, Ordering::Relaxed);
        let peak = self.managed.peak.load(Ordering::Relaxed) * PAGE_BYTES as u64;
        s.managed_bytes_peak.store(peak, Ordering::Relaxed);
        s.resident_bytes.store(held_bytes, Ordering::Relaxed);
        s.resident_bytes_peak.fetch_max(held_bytes, Ordering::Relaxed);
        let pool = u64::from(room.pool.owned()) * u64::from(BLOCK_PAGES) * PAGE_BYTES as u64;
        s.pool_bytes.store(pool, Ordering::Relaxed);
        let most = u64::from(room.pool.limit()) * u64::from(BLOCK_PAGES) * PAGE_BYTES as u64;
        s.pool_limit_bytes.store(most, Ordering::Relaxed);
        s.pager_calls.store(pager.calls(), Ordering::Relaxed);
        s.moves_untold.store(pager.untold(), Ordering::Relaxed);
        s.transitions_missed.store(transitions_missed(), Ordering::Relaxed);
        let (zstd, zstd_in) = room.pool.zstd_records();
        s.zstd_pages.store(zstd, Ordering::Relaxed);
        s.zstd_in.store(zstd_in, Ordering::Relaxed);
        let (waits, ns) = sync::waits();
        s.lock_waits.store(waits, Ordering::Relaxed);
        s.lock_wait_ns.store(ns, Ordering::Relaxed);
        if let Some(swapping) = &copies.swapping {
            let counters = swapping.tier.counters();
            s.swap_in.store(counters.pages_in.load(Ordering::Relaxed), Ordering::Relaxed);
            s.swap_out.store(counters.pages_out.load(Ordering::Relaxed), Ordering::Relaxed);
            s.swap_doubled.store(swapping.doubled(), Ordering::Relaxed);
            s.policy.store(swapping.writes_through().into(), Ordering::Relaxed);
            s.swap_io_ns.store(swapping.io_ns.load(Ordering::Relaxed), Ordering::Relaxed);
            s.swap_bytes.store(swapping.tier.live_bytes(), Ordering::Relaxed);
            s.swap_free_bytes.store(swapping.tier.free_bytes(), Ordering::Relaxed);
        }
        s.note_fullest();
    }

    /// Derives every counter again from the words of these blocks, and compares. Call when nobody is inside
    /// and nothing lies elsewhere.
    pub fn validate<D: BlockIo>(
        &self,
        blocks: core::ops::Range<u32>,
        table: &PageTable,
        staged: &StagedQueue,
        room: &Room,
        copies: &Copies<D>,
    ) -> Result<Counted, &'static str> {
        let mut counted = Counted::default();
        for b in blocks {
            count_block(table, copies, BlockId(b), &mut counted)?;
        }
        room.frames.validate()?;
        let records = room.pool.validate()?;
        if records != counted.pooled + counted.kept {
            return Err("INV-2: pool records and page words differ");
        }
        if u64::from(staged.pages()) != counted.staged {
            return Err("INV-5: staged pages miscounted");
        }
        if copies.kept() != counted.kept || self.mlocked.load(Ordering::Relaxed) != counted.mlocked {
            return Err("INV-5: kept or locked pages miscounted");
        }
        check_slots(copies, &counted)?;
        let contents = counted.resident + counted.staged + counted.same + counted.pooled + counted.swapped;
        if self.managed() != contents {
            return Err("INV-6: pages with contents miscounted");
        }
        let in_pool = u64::from(room.pool.owned()) * u64::from(BLOCK_PAGES);
        let frames = counted.resident + counted.staged + in_pool + u64::from(room.frames.free());
        if frames != u64::from(room.frames.existing()) {
            return Err("INV-1: resident + staged + pool + free is not the number of frames");
        }
        Ok(counted)
    }
}

/// Whether the swap file has the records that the words name.
fn check_slots<D: BlockIo>(copies: &Copies<D>, counted: &Counted) -> Result<(), &'static str> {
    let records = counted.swapped + counted.kept_slots + counted.doubled;
    let Some(s) = &copies.swapping else {
        return if records == 0 { Ok(()) } else { Err("INV-15: swapped pages without a swap file") };
    };
    s.tier.validate()?;
    if s.kept() != counted.kept_slots {
        return Err("INV-5: kept slots miscounted");
    }
    if s.doubled() != counted.doubled {
        return Err("INV-5: pages in pool and swap file miscounted");
    }
    if s.tier.alone() && s.tier.live_records() != records {
        return Err("INV-15: records in the swap file and page words differ");
    }
    Ok(())
}

fn count_block<D: BlockIo>(
    table: &PageTable,
    copies: &Copies<D>,
    block: BlockId,
    counted: &mut Counted,
) -> Result<(), &'static str> {
    let row = table.block(block).lock();
    let (mut resident, mut staged) = (0, 0);
    for i in 0..BLOCK_PAGES {
        let word = table.word(block.page(i)).load();
        match word.state() {
            State::Absent => {}
            State::Resident => resident += 1,
            State::Staged => staged += 1,
            State::Same => counted.same += 1,
            State::Pooled => counted.pooled += 1,
            State::Swapped => counted.swapped += 1,
        }
        if word.tag() != 0 {
            return Err("INV-15: a page waits for a read or write that nobody makes");
        }
        counted.doubled += u64::from(word.doubled());
        counted.kept_slots += u64::from(word.kept_slot().is_some());
        counted.kept += u64::from(word.kept().is_some());
        counted.mlocked += u64::from(word.mlocked());
        if word.state() != State::Absent && row.valid() >> i & 1 == 0 {
            return Err("INV-3: a page that is not mapped has contents");
        }
    }
    if resident != row.resident() {
        return Err("INV-5: a block's resident pages are miscounted");
    }
    if copies.is_forgotten(table, &row) {
        return Err("INV-16: pooled pages in no queue");
    }
    if staged > 0 && row.window().is_none() {
        return Err("INV-4: staged pages without a window");
    }
    counted.resident += u64::from(resident);
    counted.staged += staged;
    Ok(())
}
