//! Clusters: 2 MiB of the file each, whose whole state is one word that changes by compare-and-swap.
//!
//! ```text
//! bit 0       18        36      38      39      40   41    48      64
//! | live units | records | state | written | punched | idle | tried | owner |
//! ```
//!
//! | from | to | by |
//! | - | - | - |
//! | free | open | `take`: one writer of one process appends batches |
//! | open | closed | `close`: full, given up, or its owner is dead (`trim`) |
//! | open, closed | free | `close` without records, `sub` of the last record of a closed one |
//! | free | open, then free and punched | `trim`: was free at two calls in a row |

use super::counters::Counters;
use super::layout::CLUSTER_BYTES;
use super::shared::{BLOCKS_REFUSED, BLOCKS_THERE, PROCESSES, Shared, Word};
use crate::door::BlockIo;
use crate::page::ClusterId;
use crate::stats::add;
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::sys::Errno;

const COUNT_BITS: u32 = 18;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const RECORD: u64 = 1 << COUNT_BITS;
const STATE_SHIFT: u32 = 2 * COUNT_BITS;
const STATE: u64 = 3 << STATE_SHIFT;
const OPEN: u64 = 1 << STATE_SHIFT;
const CLOSED: u64 = 2 << STATE_SHIFT;
/// Has been open since it was made or punched: its blocks hold something.
const WRITTEN: u64 = 1 << 38;
const PUNCHED: u64 = 1 << 39;
/// Was free when `trim` last passed.
const IDLE: u64 = 1 << 40;
/// Offered by `sparse`; no record has died since.
const TRIED: u64 = 1 << 41;
const OWNER_SHIFT: u32 = 48;
const OWNER: u64 = 0xffff << OWNER_SHIFT;

/// A process without a row of its own: nobody sees when it is dead.
pub(super) const UNTRACKED: u16 = u16::MAX;
/// A look at a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cluster(u64);

impl Cluster {
    pub fn units(self) -> u64 {
        self.0 & COUNT
    }
    pub fn records(self) -> u64 {
        self.0 >> COUNT_BITS & COUNT
    }
    pub fn is_free(self) -> bool {
        self.0 & STATE == 0
    }
    pub fn is_open(self) -> bool {
        self.0 & STATE == OPEN
    }
    #[cfg(test)]
    pub fn is_punched(self) -> bool {
        self.0 & PUNCHED != 0
    }
}

impl Shared {
    fn cluster_word(&self, id: ClusterId) -> &AtomicU64 {
        self.clusters.row(id.0 as usize)
    }

    pub fn cluster(&self, id: ClusterId) -> Cluster {
        Cluster(self.cluster_word(id).load(Ordering::Acquire))
    }

    /// Whether the file has its blocks; asks for them if it was made without. A process killed meanwhile, or
    /// another one that asks at the same time, does no harm: asking twice for the same blocks gives them
    /// once.
    pub fn has_blocks<D: BlockIo>(&self, dev: &D) -> bool {
        let word = self.word(Word::Blocks);
        let before = word.load(Ordering::Acquire);
        if before == BLOCKS_THERE {
            return true;
        }
        match dev.allocate(0, u64::from(self.cluster_count()) * CLUSTER_BYTES) {
            // Where blocks cannot be allocated ahead a write finds out.
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                word.store(BLOCKS_THERE, Ordering::Release);
                true
            }
            Err(Errno::ENOSPC | Errno::EDQUOT) => {
                let _ = word.compare_exchange(before, BLOCKS_REFUSED, Ordering::AcqRel, Ordering::Relaxed);
                false
            }
            Err(_) => false, // this process's own trouble, not everybody's
        }
    }

    /// Takes a free cluster for the process in row `owner`: one after the last taken, if possible not one
    /// that must be allocated again. `None`: only `reserve` clusters are free.
    pub fn take<D: BlockIo>(
        &self,
        dev: &D,
        owner: u16,
        reserve: u64,
        counters: &Counters,
    ) -> Option<ClusterId> {
        if !self.has_blocks(dev) {
            return None;
        }
        for punched in [0, PUNCHED] {
            for id in self.around(Word::ClusterHand) {
                if self.get(Word::FreeClusters) <= reserve {
                    return None;
                }
                if !self.try_open(id, punched, owner) {
                    continue;
                }
                let offset = u64::from(id.0) * CLUSTER_BYTES;
                if punched != 0 && dev.allocate(offset, CLUSTER_BYTES).is_err_and(|e| e != Errno::EOPNOTSUPP)
                {
                    self.set_free(id, PUNCHED);
                    return None; // the disk is full; the others that were punched would fare no better
                }
                self.word(Word::ClusterHand).store(u64::from(id.0) + 1, Ordering::Relaxed);
                add(&counters.clusters_taken, 1);
                return Some(id);
            }
        }
        None
    }

    /// All clusters, beginning at a hand.
    fn around(&self, hand: Word) -> impl Iterator<Item = ClusterId> + use<> {
        let n = self.cluster_count();
        let from = self.get(hand) as u32 % n;
        (from..n).chain(0..from).map(ClusterId)
    }

    /// Opens a free cluster whose `PUNCHED` bit is as wanted.
    fn try_open(&self, id: ClusterId, punched: u64, owner: u16) -> bool {
        let word = self.cluster_word(id);
        let old = word.load(Ordering::Relaxed);
        let new = OPEN | WRITTEN | u64::from(owner) << OWNER_SHIFT;
        let fits = old & STATE == 0 && old & PUNCHED == punched;
        let opened = fits && word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if opened {
            self.word(Word::FreeClusters).fetch_sub(1, Ordering::Relaxed);
        }
        opened
    }

    /// Frees an open cluster of ours that holds nothing.
    fn set_free(&self, id: ClusterId, flags: u64) {
        self.cluster_word(id).store(flags, Ordering::Release);
        self.word(Word::FreeClusters).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts records that are about to be published into an open cluster of ours.
    pub fn add_records(&self, id: ClusterId, records: u64, units: u64) {
        self.cluster_word(id).fetch_add(records * RECORD + units, Ordering::AcqRel);
    }

    /// A record died.
    pub fn sub_record(&self, id: ClusterId, units: u64) {
        let step = |w: u64| {
            debug_assert!(w & COUNT >= units && w >> COUNT_BITS & COUNT >= 1);
            let left = (w - RECORD - units) & !TRIED;
            let empty = left & STATE == CLOSED && Cluster(left).records() == 0;
            Some(if empty { WRITTEN } else { left })
        };
        self.count_if_freed(
            self.cluster_word(id).fetch_update(Ordering::AcqRel, Ordering::Relaxed, step),
            step,
        );
    }

    /// No more batches go into an open cluster.
    pub fn close(&self, id: ClusterId) {
        let step = |w: u64| {
            let is_empty = Cluster(w).records() == 0;
            Some(if is_empty { WRITTEN } else { w & !(STATE | OWNER) | CLOSED })
        };
        self.count_if_freed(
            self.cluster_word(id).fetch_update(Ordering::AcqRel, Ordering::Relaxed, step),
            step,
        );
    }

    fn count_if_freed(&self, before: Result<u64, u64>, step: impl Fn(u64) -> Option<u64>) {
        if before.ok().and_then(step).is_some_and(|after| after & STATE == 0) {
            self.word(Word::FreeClusters).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a cluster is open and belongs to the process in row `owner`.
    pub fn is_open_by(&self, id: ClusterId, owner: u16) -> bool {
        let w = self.cluster_word(id).load(Ordering::Acquire);
        w & (STATE | OWNER) == OPEN | u64::from(owner) << OWNER_SHIFT
    }

    /// Replaces the counts of a cluster, and closes it unless the process in row `owner` has it open. Nobody
    /// else is there.
    pub fn set_counts(&self, id: ClusterId, units: u64, records: u64, owner: u16) {
        let w = self.cluster_word(id).load(Ordering::Acquire);
        let counts = units | records << COUNT_BITS;
        let new = match records {
            _ if self.is_open_by(id, owner) => w & !(COUNT | COUNT << COUNT_BITS) | counts,
            0 if w & STATE == 0 => w & !(COUNT | COUNT << COUNT_BITS),
            0 => WRITTEN,
            _ => CLOSED | WRITTEN | counts,
        };
        self.cluster_word(id).store(new, Ordering::Release);
    }

    /// A closed cluster of which at most one part in `part` is live, and whose records may be worth
    /// moving: each is offered once until a record of it dies.
    pub fn sparse(&self, part: u64) -> Option<ClusterId> {
        let capacity = CLUSTER_BYTES / super::record::UNIT_BYTES as u64;
        let id = self.around(Word::SparseHand).find(|&id| {
            let w = self.cluster_word(id).load(Ordering::Relaxed);
            let fits = w & STATE == CLOSED && w & TRIED == 0 && (w & COUNT) * part <= capacity;
            fits && self
                .cluster_word(id)
                .compare_exchange(w, w | TRIED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        self.word(Word::SparseHand).store(u64::from(id.0) + 1, Ordering::Relaxed);
        Some(id)
    }

    /// Punches up to `most` clusters that were free at the last call too; marks the others that are free.
    pub fn trim<D: BlockIo>(&self, dev: &D, owner: u16, most: u32, counters: &Counters) -> u32 {
        let mut punched = 0;
        for id in (0..self.cluster_count()).map(ClusterId) {
            if punched == most || self.get(Word::NoPunch) != 0 {
                break;
            }
            let word = self.cluster_word(id);
            let w = word.load(Ordering::Relaxed);
            if w & STATE != 0 || w & WRITTEN == 0 {
                continue;
            }
            if w & IDLE == 0 {
                let _ = word.compare_exchange(w, w | IDLE, Ordering::Relaxed, Ordering::Relaxed);
            } else if self.try_open(id, 0, owner) {
                // Open meanwhile, so that nobody writes where the hole will be.
                let done = dev.punch(u64::from(id.0) * CLUSTER_BYTES, CLUSTER_BYTES);
                self.set_free(id, if done.is_ok() { PUNCHED } else { 0 });
                match done {
                    Ok(()) => punched += 1,
                    Err(_) => self.word(Word::NoPunch).store(1, Ordering::Relaxed),
                }
            }
        }
        add(&counters.clusters_punched, punched.into());
        punched
    }

    /// A row for process `pid`, which holds `references`; [`UNTRACKED`] when there is none left. A row is in
    /// use when it has a process id, and its process lives while somebody else cannot claim its number.
    pub fn join<D: BlockIo>(&self, dev: &D, pid: u32, references: u64) -> u16 {
        for i in 0..PROCESSES {
            let row = self.processes.row(i);
            if row[0].load(Ordering::Acquire) != 0 || !dev.claim(i as u32) {
                continue;
            }
            if row[0].compare_exchange(0, pid.into(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                row[1].store(references, Ordering::Relaxed);
                return i as u16;
            }
            dev.unclaim(i as u32);
        }
        self.word(Word::Untracked).fetch_add(1, Ordering::Relaxed);
        UNTRACKED
    }

    /// Id of the process in a row; 0: none.
    pub fn process(&self, row: u16) -> u32 {
        self.processes.row(row.into())[0].load(Ordering::Acquire) as u32
    }

    /// Whether the process in `row` is the only one that takes part.
    pub fn alone(&self, row: u16) -> bool {
        let others = (0..PROCESSES).filter(|&i| i != usize::from(row));
        row != UNTRACKED
            && self.get(Word::Untracked) == 0
            && others.map(|i| self.processes.row(i)[0].load(Ordering::Acquire)).all(|pid| pid == 0)
    }

    /// Gives a row up, of this process or claimed by it; what is still held counts as leaked.
    pub fn leave<D: BlockIo>(&self, dev: &D, number: u16) {
        if number == UNTRACKED {
            return;
        }
        let row = self.processes.row(number.into());
        let held = row[1].swap(0, Ordering::AcqRel);
        self.word(Word::Leaked).fetch_add(held, Ordering::Relaxed);
        row[0].store(0, Ordering::Release);
        dev.unclaim(number.into());
    }

    /// Counts references taken (+) or dropped (-) by the process in `row`.
    pub fn hold(&self, row: u16, change: i64) {
        if row != UNTRACKED {
            self.processes.row(row.into())[1].fetch_add(change as u64, Ordering::Relaxed);
        }
    }

    /// Closes the clusters that dead processes had open, and counts the references that went with them.
    /// Processes settled. One thread of a process at a time: claims do not exclude threads.
    pub fn settle_the_dead<D: BlockIo>(&self, dev: &D, own: u16) -> u32 {
        let mut settled = 0;
        for i in (0..PROCESSES as u16).filter(|i| *i != own) {
            let row = self.processes.row(i.into());
            // While the claim is ours nobody else settles or takes the row.
            if row[0].load(Ordering::Acquire) == 0 || !dev.claim(i.into()) {
                continue;
            }
            if row[0].load(Ordering::Acquire) == 0 {
                dev.unclaim(i.into()); // settled by somebody else just now
                continue;
            }
            for id in (0..self.cluster_count()).map(ClusterId) {
                let w = self.cluster_word(id).load(Ordering::Acquire);
                if w & STATE == OPEN && (w & OWNER) >> OWNER_SHIFT == u64::from(i) {
                    self.close(id);
                }
            }
            self.leave(dev, i);
            settled += 1;
        }
        settled
    }
}
