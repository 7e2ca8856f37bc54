//! Strides longer than a page (a column of a matrix), followed per thread: the last fault, the distance to
//! the one before, and how often it was the same.

use crate::limits::STRIDE_CONFIRM;
use crate::page::PageId;
use crate::policy::readahead::{self, Ahead, Whose};
use crate::shared;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicU32, AtomicU64};
use weir_os::shards::Line;

const THREADS: usize = 64;

/// Last fault and distance per thread, hashed by thread id. Colliding threads only cost guesses, so there is
/// no lock.
#[derive(Debug)]
pub struct Strides {
    rows: [Line<Row>; THREADS],
}

#[derive(Debug)]
struct Row {
    /// last page (32) | stride as i24 (24) | confirmations (8)
    last: AtomicU64,
    /// Pages brought back since its last fault.
    unproven: AtomicU32,
}

impl Default for Strides {
    fn default() -> Self {
        Strides {
            rows: [const { Line(Row { last: AtomicU64::new(0), unproven: AtomicU32::new(0) }) }; THREADS],
        }
    }
}

impl Strides {
    /// Notes a fault that continued no unit stream; says what to fetch if it continues a stride. The pages
    /// fetched before are then known to be used, and added to `hits`.
    pub fn note(&self, tid: u32, page: PageId, hits: &AtomicU64) -> Option<Ahead> {
        let row = tid as usize % THREADS;
        let cell = &self.rows[row].last;
        let v = cell.load(Ordering::Relaxed);
        let (last, stride, sure) = (v as u32, ((v >> 32) as u32 as i32) << 8 >> 8, (v >> 56) as u32);
        let delta = i64::from(page.0) - i64::from(last);
        let (stride, sure, count) = readahead::stride((stride, sure), delta);
        let brought = self.take_unproven(row);
        shared::count(hits, if sure > STRIDE_CONFIRM { brought } else { 0 });
        // The next fault comes one stride after what is fetched now.
        let next_last = (i64::from(page.0) + i64::from(stride) * i64::from(count)).clamp(0, u32::MAX.into());
        cell.store(
            next_last as u64 | u64::from(stride as u32 & 0xff_ffff) << 32 | u64::from(sure) << 56,
            Ordering::Relaxed,
        );
        let first = i64::from(page.0) + i64::from(stride);
        (count > 0 && first >= 0 && stride.unsigned_abs() > 1).then_some(Ahead {
            first: PageId(first as u32),
            stride,
            count,
            whose: Whose::Stride(row as u8),
            fresh: false,
        })
    }

    /// Notes that so many pages came back for a row.
    pub fn brought(&self, row: u8, pages: u32) {
        if pages > 0 {
            self.rows[row as usize % THREADS].unproven.fetch_add(pages, Ordering::Relaxed);
        }
    }

    fn take_unproven(&self, row: usize) -> u32 {
        let cell = &self.rows[row].unproven;
        if cell.load(Ordering::Relaxed) == 0 { 0 } else { cell.swap(0, Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_walk_is_followed_and_random_faults_are_not() {
        let (s, hits) = (Strides::default(), AtomicU64::new(0));
        let mut fetched = 0;
        let mut page = 1000;
        let mut known_until = 0;
        for _ in 0..200 {
            page += 300;
            if page <= known_until {
                continue; // prefetched: no fault
            }
            if let Some(a) = s.note(7, PageId(page), &hits) {
                assert_eq!((a.first, a.stride), (PageId(page + 300), 300));
                known_until = page + 300 * a.count;
                fetched += a.count;
                s.brought(7, a.count);
            }
        }
        assert!(fetched > 150, "{fetched}");
        let used = hits.load(Ordering::Relaxed);
        assert!(
            used + u64::from(crate::limits::STRIDE_PAGES_MAX) >= fetched.into() && used < fetched.into(),
            "{used} of {fetched}"
        );
        let mut x = 12345u32;
        for _ in 0..1000 {
            x = x.wrapping_mul(1664525).wrapping_add(1013904223);
            assert_eq!(s.note(9, PageId(x >> 8), &hits), None);
        }
        // What comes late for a stride that is over proves nothing.
        s.brought(9, 5);
        [4, 9, 100, 3].iter().for_each(|page| assert_eq!(s.note(9, PageId(*page), &hits), None));
        assert_eq!(hits.load(Ordering::Relaxed), used);
    }
}
