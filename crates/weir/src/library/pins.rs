//! Which pages are pinned, by how many guards. Ranges may overlap: a page is let go with its last guard.

use core::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ranges of addresses that are pinned now.
#[derive(Debug, Default)]
pub(super) struct Pins {
    rows: Mutex<Rows>,
}

/// The ranges, each with the number of its guard.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<(u64, Range<usize>)>,
    last: u64,
}

impl Pins {
    /// Nobody else pins or lets go meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    /// One more guard; its number.
    pub(super) fn add(&mut self, range: Range<usize>) -> u64 {
        self.last += 1;
        self.rows.push((self.last, range));
        self.last
    }

    /// A guard goes: its range, unless its region went before.
    pub(super) fn remove(&mut self, guard: u64) -> Option<Range<usize>> {
        let at = self.rows.iter().position(|(number, _)| *number == guard)?;
        Some(self.rows.swap_remove(at).1)
    }

    /// A region goes, and with it all that is pinned in it.
    pub(super) fn forget(&mut self, region: &Range<usize>) {
        self.rows.retain(|(_, range)| !overlap(range, region));
    }

    /// Whether any of a range is pinned.
    pub(super) fn any(&self, range: &Range<usize>) -> bool {
        self.rows.iter().any(|(_, pinned)| overlap(pinned, range))
    }

    /// The parts of a range that no guard holds, in order.
    pub(super) fn uncovered(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut over: Vec<&Range<usize>> =
            self.rows.iter().map(|(_, pinned)| pinned).filter(|pinned| overlap(pinned, &range)).collect();
        over.sort_unstable_by_key(|pinned| pinned.start);
        let (mut parts, mut at) = (Vec::new(), range.start);
        for pinned in over {
            if pinned.start > at {
                parts.push(at..pinned.start);
            }
            at = at.max(pinned.end);
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_let_go_with_the_last_of_its_guards() {
        let pins = Pins::default();
        let mut rows = pins.lock();
        let (a, b) = (rows.add(10..20), rows.add(15..40));
        assert_eq!(rows.uncovered(0..50), [0..10, 40..50]);
        assert_eq!(rows.uncovered(12..18), []);
        let gone = rows.remove(a).unwrap();
        assert_eq!(rows.uncovered(gone).first(), Some(&(10..15)));
        assert_eq!(rows.remove(a), None, "once");
        assert!(rows.any(&(39..41)) && !rows.any(&(40..41)));
        rows.forget(&(30..60));
        assert_eq!(rows.remove(b), None, "its region is gone");
        assert_eq!(rows.uncovered(0..50).first(), Some(&(0..50)));
    }
}
