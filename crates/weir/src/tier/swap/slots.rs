//! Slot numbers: a bitmap shared by all processes, and caches owned by whoever reserves and frees.

use super::counters::Counters;
use super::shared::{Shared, Word};
use crate::page::SwapSlot;
use crate::stats::add;
use crate::sync::Ordering;

/// Slots that a cache holds at most.
pub const CACHE_MAX: usize = 128;

/// Free slots set aside for one caller, so that he seldom touches what others touch. Of one process: a
/// forked child's copy empties itself at its first use, the slots are its parent's.
#[derive(Debug)]
pub struct SlotCache {
    slots: [SwapSlot; CACHE_MAX],
    held: usize,
    batch: usize,
    epoch: u32,
}

impl SlotCache {
    /// An empty cache that fills and empties itself by `batch` slots at a time, 64 at most: a word
    /// of the bitmap.
    pub fn new(batch: usize) -> SlotCache {
        SlotCache { slots: [SwapSlot(0); CACHE_MAX], held: 0, batch: batch.clamp(1, 64), epoch: 0 }
    }

    /// Slots set aside now.
    pub fn held(&self) -> usize {
        self.held
    }

    pub(super) fn enter(&mut self, epoch: u32) {
        if self.epoch != epoch {
            (self.held, self.epoch) = (0, epoch);
        }
    }

    /// A slot; `None` when all are taken.
    pub(super) fn reserve(&mut self, shared: &Shared, counters: &Counters) -> Option<SwapSlot> {
        add(&counters.slots_wanted, 1);
        if self.held == 0 {
            add(&counters.slot_trips, 1);
            self.refill(shared);
        }
        self.held = self.held.checked_sub(1)?;
        Some(self.slots[self.held])
    }

    /// Takes a slot back that names nothing any more.
    pub(super) fn release(&mut self, shared: &Shared, counters: &Counters, slot: SwapSlot) {
        if self.held >= (2 * self.batch).min(CACHE_MAX) {
            add(&counters.slot_trips, 1);
            self.give_back(shared, self.batch);
        }
        self.slots[self.held] = slot;
        self.held += 1;
    }

    /// Fills itself from the first bitmap word with free bits, lowest slots on top.
    fn refill(&mut self, shared: &Shared) {
        let words = shared.bitmap.len();
        let from = shared.get(Word::SlotHand) as usize % words;
        for i in 0..words {
            let at = (from + i) % words;
            let word = shared.bitmap.row(at);
            let first = at as u32 * 64;
            let exist = (shared.slot_count() - first).min(64);
            let mut old = word.load(Ordering::Relaxed);
            loop {
                let free = !old & (u64::MAX >> (64 - exist));
                let take = lowest(free, self.batch);
                if take == 0 {
                    break;
                }
                match word.compare_exchange_weak(old, old | take, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        shared.word(Word::SlotsTaken).fetch_add(take.count_ones().into(), Ordering::Relaxed);
                        shared.word(Word::SlotHand).store(at as u64, Ordering::Relaxed);
                        return self.hold(first, take);
                    }
                    Err(now) => old = now,
                }
            }
        }
    }

    fn hold(&mut self, first: u32, mut bits: u64) {
        while bits != 0 {
            let top = 63 - bits.leading_zeros();
            bits &= !(1 << top);
            self.slots[self.held] = SwapSlot(first + top);
            self.held += 1;
        }
    }

    /// Gives up to `n` slots back to everybody, the longest held first.
    pub(super) fn give_back(&mut self, shared: &Shared, n: usize) {
        let n = n.min(self.held);
        for slot in &self.slots[..n] {
            let word = shared.bitmap.row(slot.0 as usize / 64);
            let before = word.fetch_and(!(1 << (slot.0 % 64)), Ordering::AcqRel);
            debug_assert!(before >> (slot.0 % 64) & 1 == 1, "a slot was given back twice");
        }
        shared.word(Word::SlotsTaken).fetch_sub(n as u64, Ordering::Relaxed);
        self.slots.copy_within(n..self.held, 0);
        self.held -= n;
    }
}

/// The lowest `n` set bits.
fn lowest(bits: u64, n: usize) -> u64 {
    let mut rest = bits;
    for _ in 0..n {
        rest &= rest.wrapping_sub(1);
    }
    bits & !rest
}
