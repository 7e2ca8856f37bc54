//! Counters derived again from the slot table: to compare, and to free what processes left behind.

use super::clusters::UNTRACKED;
use super::record::units;
use super::shared::{Shared, Word};
use super::tier::Swap;
use crate::door::BlockIo;
use crate::page::{ClusterId, SwapSlot};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::mem::Table;

/// What `validate` counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Live records.
    pub records: u64,
    /// Their units of 16 bytes.
    pub units: u64,
    /// References to them.
    pub references: u64,
    /// Slots taken: live, or in caches.
    pub slots_taken: u64,
    /// Free clusters.
    pub clusters_free: u64,
    /// Clusters open for writing.
    pub clusters_open: u64,
}

/// Units and records per cluster.
type Tally = Table<[AtomicU64; 2]>;

impl<D: BlockIo> Swap<D> {
    /// Frees what processes that are gone still held. Only the last process can know: `None` while others
    /// take part. `mine` names every slot that this process holds, once per reference (one each); no thread
    /// is in the tier meanwhile, and all caches are emptied before. Records freed.
    pub fn reclaim_leaked(&self, mine: impl FnOnce(&mut dyn FnMut(SwapSlot))) -> Option<u64> {
        if !self.shared.alone(self.row()) {
            return None;
        }
        reclaim(self, mine)
    }

    /// Re-derives every counter from the slot table and says what does not agree. No thread or process may be
    /// inside meanwhile. For tests: it looks at every slot.
    pub fn validate(&self) -> Result<Totals, &'static str> {
        validate(self)
    }
}

/// Counts from the slot table and the bitmap alone.
fn tally(shared: &Shared) -> Result<(Totals, Tally), &'static str> {
    let mut t = Totals::default();
    let tally = Tally::new(shared.cluster_count() as usize, c"weir-check");
    let tally = tally.map_err(|_| "no memory to check with")?;
    for slot in (0..shared.slot_count()).map(SwapSlot) {
        let taken = shared.bitmap.row(slot.0 as usize / 64).load(Ordering::Relaxed) >> (slot.0 % 64) & 1;
        t.slots_taken += taken;
        let Some(at) = shared.locate(slot) else { continue };
        if taken == 0 {
            return Err("a live slot is not taken");
        }
        if at.cluster().0 >= shared.cluster_count() {
            return Err("a record lies outside the file");
        }
        let row = tally.row(at.cluster().0 as usize);
        row[0].fetch_add(units(at.len), Ordering::Relaxed);
        row[1].fetch_add(1, Ordering::Relaxed);
        t.records += 1;
        t.units += units(at.len);
        t.references += shared.refs(slot);
    }
    Ok((t, tally))
}

fn validate<D: BlockIo>(swap: &Swap<D>) -> Result<Totals, &'static str> {
    let shared = &swap.shared;
    let (mut t, tally) = tally(shared)?;
    for id in (0..shared.cluster_count()).map(ClusterId) {
        let (cluster, row) = (shared.cluster(id), tally.row(id.0 as usize));
        if (cluster.units(), cluster.records())
            != (row[0].load(Ordering::Relaxed), row[1].load(Ordering::Relaxed))
        {
            return Err("a cluster does not count what lies in it");
        }
        if cluster.records() == 0 && !cluster.is_free() && !cluster.is_open() {
            return Err("a closed cluster holds nothing and is not free");
        }
        t.clusters_free += u64::from(cluster.is_free());
        t.clusters_open += u64::from(cluster.is_open());
    }
    match sums(&t).into_iter().find(|(word, sum, _)| shared.get(*word) != *sum) {
        Some((_, _, what)) => Err(what),
        None => Ok(t),
    }
}

/// The single words that are sums.
fn sums(t: &Totals) -> [(Word, u64, &'static str); 4] {
    [
        (Word::LiveRecords, t.records, "live records are miscounted"),
        (Word::LiveUnits, t.units, "live bytes are miscounted"),
        (Word::FreeClusters, t.clusters_free, "free clusters are miscounted"),
        (Word::SlotsTaken, t.slots_taken, "taken slots are miscounted"),
    ]
}

/// Sets every counter to what the slot table says: a process may have been killed between two of them.
fn recount<D: BlockIo>(swap: &Swap<D>) -> Result<(), &'static str> {
    let shared = &swap.shared;
    let (mut t, tally) = tally(shared)?;
    for id in (0..shared.cluster_count()).map(ClusterId) {
        let row = tally.row(id.0 as usize);
        let (units, records) = (row[0].load(Ordering::Relaxed), row[1].load(Ordering::Relaxed));
        shared.set_counts(id, units, records, swap.row());
        t.clusters_free += u64::from(shared.cluster(id).is_free());
    }
    for (word, sum, _) in sums(&t) {
        shared.word(word).store(sum, Ordering::Relaxed);
    }
    Ok(())
}

/// Frees every record that `mine` does not name, and every slot that names none.
fn reclaim<D: BlockIo>(swap: &Swap<D>, mine: impl FnOnce(&mut dyn FnMut(SwapSlot))) -> Option<u64> {
    let shared = &swap.shared;
    let named = Table::<AtomicU64>::new(shared.bitmap.len(), c"weir-check").ok()?;
    let mut held = 0u64;
    mine(&mut |slot| {
        named.row(slot.0 as usize / 64).fetch_or(1 << (slot.0 % 64), Ordering::Relaxed);
        held += 1;
    });
    let mut freed = 0;
    for slot in (0..shared.slot_count()).map(SwapSlot) {
        let (at, bit) = (slot.0 as usize / 64, 1 << (slot.0 % 64));
        if shared.bitmap.row(at).load(Ordering::Relaxed) & bit == 0 {
            continue;
        }
        if named.row(at).load(Ordering::Relaxed) & bit != 0 {
            shared.keep_one(slot);
            continue;
        }
        if let Some(located) = shared.locate(slot) {
            while shared.count(slot, false) != 0 {}
            swap.bury(&located);
            freed += 1;
        }
        shared.bitmap.row(at).fetch_and(!bit, Ordering::Relaxed);
        shared.word(Word::SlotsTaken).fetch_sub(1, Ordering::Relaxed);
    }
    recount(swap).ok()?;
    shared.word(Word::Leaked).store(0, Ordering::Relaxed);
    if swap.row() != UNTRACKED {
        shared.processes.row(swap.row().into())[1].store(held, Ordering::Relaxed);
    }
    Some(freed)
}
