//! What system calls tell of mapped files: a call that is about to be made names all the bytes that it will
//! touch, where the kernel would learn of them fault by fault. Seen without a lock, in the program's threads.
//!
//! An answer may be wrong, where a mapping is changed meanwhile, or two units share a bit: what is done with
//! it is an advice.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use weir_os::files;
use weir_os::mem::PAGE_BYTES;

/// Mappings that are seen; those beyond are the kernel's alone.
const PLACES: usize = 16;
/// What is used is noted in units of so many pages, the kernel's own unit around a fault.
const UNIT_BYTES: usize = 16 * PAGE_BYTES;
/// Bits for units: of files of more than 4 GiB some share one.
const UNITS: usize = 1 << 16;
const BITS: usize = u32::BITS as usize;
/// So much of a call's buffer is read ahead at most: what is read has no place in the budget until it is
/// touched.
const AHEAD_BYTES: usize = 16 * UNIT_BYTES;

/// Mappings, and what was used of them.
#[derive(Debug)]
pub struct Uses {
    places: [Place; PLACES],
    used: [AtomicU32; UNITS / BITS],
}

/// A mapping that is seen.
#[derive(Debug, Default)]
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Default for Uses {
    fn default() -> Uses {
        Uses {
            places: core::array::from_fn(|_| Place::default()),
            used: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

fn bit_of(addr: usize) -> (usize, u32) {
    let unit = addr / UNIT_BYTES % UNITS;
    (unit / BITS, 1 << (unit % BITS))
}

impl Uses {
    /// A call is about to be made on these bytes. Returns whether they are a mapped file's; those that are
    /// not there, and are more than a page, come by as few reads as can be.
    pub fn announced(&self, addr: usize, bytes: usize) -> bool {
        let Some(place) = self.places.iter().find(|place| place.has(addr)) else { return false };
        let end = addr.saturating_add(bytes.min(AHEAD_BYTES)).min(place.end.load(Relaxed));
        for unit in addr / UNIT_BYTES..end.div_ceil(UNIT_BYTES) {
            let (word, bit) = bit_of(unit * UNIT_BYTES);
            if self.used[word].load(Relaxed) & bit == 0 {
                self.used[word].fetch_or(bit, Relaxed);
            }
        }
        // A fault does as well for a single page.
        if end.saturating_sub(addr) > PAGE_BYTES {
            files::will_need(addr, end - addr);
        }
        true
    }

    fn take(&self, addr: usize) -> bool {
        let (word, bit) = bit_of(addr);
        self.used[word].load(Relaxed) & bit != 0 && self.used[word].fetch_and(!bit, Relaxed) & bit != 0
    }

    /// Calls `f` with the parts of a range, and whether each was used since this was asked last.
    pub(super) fn parts(&self, start: usize, end: usize, mut f: impl FnMut(usize, usize, bool)) {
        let (mut from, mut at, mut before) = (start, start, false);
        while at < end {
            let used = self.take(at);
            if used != before {
                if from < at {
                    f(from, at, before);
                }
                (from, before) = (at, used);
            }
            at = ((at / UNIT_BYTES + 1) * UNIT_BYTES).min(end);
        }
        if from < end {
            f(from, end, before);
        }
    }

    /// These are the mappings now: first addresses, and ends.
    pub(super) fn follow(&self, maps: impl Iterator<Item = (usize, usize)> + Clone) {
        for place in &self.places {
            if !maps.clone().any(|map| map == place.extent()) {
                place.set(0, 0);
            }
        }
        let new = maps.filter(|map| !self.places.iter().any(|place| place.extent() == *map));
        let free = self.places.iter().filter(|place| place.extent().1 == 0);
        new.zip(free).for_each(|((start, end), place)| place.set(start, end));
    }
}

impl Place {
    fn extent(&self) -> (usize, usize) {
        (self.start.load(Relaxed), self.end.load(Relaxed))
    }

    fn has(&self, addr: usize) -> bool {
        self.start.load(Relaxed) <= addr && addr < self.end.load(Relaxed)
    }

    fn set(&self, start: usize, end: usize) {
        self.end.store(0, Relaxed);
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_were_used_are_told_once() {
        let uses = Uses::default();
        uses.follow([(0, 8 * UNIT_BYTES)].into_iter());
        // Small, so that nothing is asked of the kernel about these addresses.
        assert!(uses.announced(2 * UNIT_BYTES + 100, 50) && uses.announced(5 * UNIT_BYTES - 1, 2));
        assert!(!uses.announced(8 * UNIT_BYTES, 50));
        let parts = || {
            let mut parts = Vec::new();
            let unit = |at: usize| at / UNIT_BYTES;
            uses.parts(0, 8 * UNIT_BYTES, |a, b, used| parts.push((unit(a), unit(b), used)));
            parts
        };
        assert_eq!(parts(), [(0, 2, false), (2, 3, true), (3, 4, false), (4, 6, true), (6, 8, false)]);
        assert_eq!(parts(), [(0, 8, false)]);
    }

    #[test]
    fn mappings_come_and_go_and_those_without_a_place_are_not_seen() {
        let uses = Uses::default();
        let maps: Vec<_> = (1..=PLACES + 1).map(|n| (n << 20, (n << 20) + (1 << 19))).collect();
        uses.follow(maps.iter().copied());
        let seen = |n: usize| uses.announced((n << 20) + 7, 1);
        assert!(seen(1) && seen(PLACES) && !seen(PLACES + 1));
        uses.follow(maps[1..].iter().copied());
        assert!(!seen(1) && seen(2) && seen(PLACES + 1));
        uses.follow(core::iter::empty());
        assert!(!seen(2));
    }
}
