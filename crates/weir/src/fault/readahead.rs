//! Readahead: how much to bring with a faulted page.
//!
//! Unit-stride streams are followed by a small state in every block's row: direction, window size
//! and the edge where the next fault is expected. A fault at the edge doubles the window, up to the
//! block; a fault elsewhere divides it by [`SHRINK`]; a fault at the border of a fresh block inherits the
//! neighbour's stream. So any number of streams is followed at once, forwards and backwards, and a
//! random fault brings one page. Streams that fill whole blocks also run ahead by up to
//! [`DEPTH_MAX`] blocks, after the faulting thread is awake again.
//!
//! Faults close together in time but in no order bring more of their block ([`super::nearby`]).
//!
//! Larger strides (a column of a matrix) are followed per thread by [`Strides`].
//!
//! While nothing was ever evicted, first touches bring whole blocks: frames are plentiful and a
//! fault costs more than 64 zeroed frames.

use super::nearby::Nearby;
use crate::door::Pager;
use crate::limits::FREE_RESERVE;
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::page::state::State;
use crate::page::{BlockId, PageId};
use crate::shared::Core;
use crate::sync::{Lock, Ordering};
use core::sync::atomic::AtomicU64;

/// Most blocks fetched ahead of a stream.
pub const DEPTH_MAX: u32 = 4;

/// More pages worth fetching once the faulting thread is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// First page.
    pub first: PageId,
    /// Distance to the next, in pages; whole blocks when 1 or -1.
    pub stride: i32,
    /// Number of pages.
    pub count: u32,
    /// Readahead state to leave in whole blocks.
    pub state: u64,
}

/// A stream as a block's row remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    backwards: bool,
    size: u32,
    /// The pages brought last: `lo..hi`. Forwards the next fault is expected at `hi`, backwards at
    /// `lo - 1`.
    lo: u32,
    hi: u32,
    depth: u32,
}

impl Stream {
    fn decode(v: u64) -> Option<Stream> {
        (v & 1 == 1).then_some(Stream {
            backwards: v & 2 != 0,
            size: (v >> 8 & 0xff) as u32,
            lo: (v >> 16 & 0xff) as u32,
            hi: (v >> 24 & 0xff) as u32,
            depth: (v >> 32 & 0xff) as u32,
        })
    }

    fn encode(self) -> u64 {
        1 | u64::from(self.backwards) << 1
            | u64::from(self.size) << 8
            | u64::from(self.lo) << 16
            | u64::from(self.hi) << 24
            | u64::from(self.depth) << 32
    }

    fn doubled(self) -> Stream {
        let size = (self.size * 2).min(BLOCK_PAGES);
        let depth = if self.size == BLOCK_PAGES { (self.depth + 1).min(DEPTH_MAX) } else { self.depth };
        Stream { size, depth, ..self }
    }

    /// With its edges moved past pages that were in RAM before it came by, as far as the fault at `index`: they do not fault.
    fn past(self, index: u32, in_ram: impl Fn(u32) -> bool) -> Stream {
        let (up, down) = (self.hi..index, index + 1..self.lo);
        let passed = |pages: core::ops::Range<u32>| pages.len() <= PASSED_MAX && pages.clone().all(&in_ram);
        match (passed(up), passed(down)) {
            (true, _) if index > self.hi => Stream { hi: index, ..self },
            (_, true) if index + 1 < self.lo => Stream { lo: index + 1, ..self },
            _ => self,
        }
    }

    /// Begun anew after a time: with a part of its window, since others begin at the same places.
    fn again(self) -> Stream {
        Stream { size: (self.size / RESTART).max(1), depth: 0, ..self }
    }

    /// The pages this stream brings for a fault at `index`, and the stream with its new edge.
    fn cover(self, index: u32) -> (u64, Stream) {
        if self.backwards {
            let (lo, hi) = ((index + 1).saturating_sub(self.size), index + 1);
            (run_mask(lo, hi - lo), Stream { lo, hi, ..self })
        } else {
            let hi = (index + self.size).min(BLOCK_PAGES);
            (run_mask(index, hi - index), Stream { lo: index, hi, ..self })
        }
    }
}

/// A window of so many pages belongs to faults in order.
const IN_ORDER: u32 = 4;
/// Where a block's state holds what it knows of faults in no order.
const NEARBY_SHIFT: u32 = 40;
/// A fault that continues nothing divides the window by this.
const SHRINK: u32 = 16;
/// Most pages in RAM that a stream passes over between two faults.
const PASSED_MAX: usize = 8;
/// A fault where an earlier stream began divides its window by this.
const RESTART: u32 = 4;
const FRESH: Stream = Stream { backwards: false, size: 1, lo: 0, hi: 0, depth: 0 };

/// What one fault brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Pages of the block.
    pub mask: u64,
    /// New state for the block's row.
    pub state: u64,
    /// What to fetch afterwards.
    pub ahead: Option<Ahead>,
}

/// Plans for a fault at `index` of `block`, under its lock.
pub fn plan<P: Pager>(core: &Core<P>, block: BlockId, index: u32, source: State) -> Plan {
    let in_ram = |index: u32| is_in_ram(core, block.page(index));
    let remembered = core.table.block(block).readahead();
    let own = Stream::decode(remembered).map(|s| s.past(index, in_ram));
    // Looked up at a border alone, where a neighbour's stream can enter: most faults are elsewhere.
    let neighbour = |at: u32, b: Option<u32>, edge: u32| {
        b.filter(|_| index == at).and_then(|b| live_stream(core, BlockId(b), edge))
    };
    let before = neighbour(0, block.0.checked_sub(1), BLOCK_PAGES - 1);
    let after = neighbour(BLOCK_PAGES - 1, block.0.checked_add(1), 0);
    let plentiful = source == State::Absent && core.is_plentiful();
    let stream = next_stream(own, before, after, index);
    let (mut mask, mut stream) = stream.cover(index);
    let mut nearby = Nearby::decode(remembered >> NEARBY_SHIFT);
    if stream.size < IN_ORDER && matches!(source, State::Pooled | State::Swapped) {
        nearby = nearby.another(core.stats.faults_major.load(Ordering::Relaxed), core.blocks_in_use());
        mask |= nearby.pages(index);
    }
    if plentiful && core.available() > 2 * core.low_mark() {
        mask = u64::MAX;
        stream = Stream { backwards: false, size: BLOCK_PAGES, lo: 0, hi: BLOCK_PAGES, ..stream };
    }
    let room = if plentiful { core.available() } else { core.frames.free() };
    let ahead = (stream.depth > 0 && room > FREE_RESERVE + 2 * BLOCK_PAGES)
        .then(|| ahead_of(block, stream, core.table.pages()))
        .flatten();
    Plan { mask, state: stream.encode() | nearby.encode() << NEARBY_SHIFT, ahead }
}

/// The stream that a neighbouring block remembers, if its page next to us is still in RAM. A scan leaves a wide stream in every
/// block it passes; where its pages are gone it passed long ago, and whoever begins here begins something else.
fn live_stream<P: Pager>(core: &Core<P>, block: BlockId, index: u32) -> Option<Stream> {
    let page = block.page(index);
    let live = page.0 < core.table.pages() && is_in_ram(core, page);
    live.then(|| Stream::decode(core.table.block(block).readahead())).flatten()
}

fn is_in_ram<P: Pager>(core: &Core<P>, page: PageId) -> bool {
    matches!(core.table.word(page).load().state(), State::Resident | State::Staged)
}

/// The stream that a fault at `index` continues, or a fresh one. Pure.
fn next_stream(own: Option<Stream>, before: Option<Stream>, after: Option<Stream>, index: u32) -> Stream {
    const LAST: u32 = BLOCK_PAGES - 1;
    // The edge of what this block got last.
    if let Some(s) = own {
        let (ahead, behind) = (index == s.hi, index + 1 == s.lo);
        if ahead && !s.backwards || behind && s.backwards {
            return s.doubled();
        }
        if ahead || behind {
            return Stream { backwards: behind, size: 2, ..FRESH };
        }
    }
    // A neighbour's stream enters here.
    match (before, after) {
        (Some(s), _) if index == 0 && !s.backwards && s.hi == BLOCK_PAGES => return s.doubled(),
        (_, Some(s)) if index == LAST && s.backwards && s.lo == 0 => return s.doubled(),
        _ => {}
    }
    match own {
        // It starts where it started last time: perhaps the same walk again.
        Some(s) if !s.backwards && index == 0 && s.hi == BLOCK_PAGES => s.again(),
        Some(s) if s.backwards && index == LAST && s.lo == 0 => s.again(),
        // After a scan every block remembers a wide window; random faults must not pay for each in turn.
        Some(s) => Stream { backwards: s.backwards, size: (s.size / SHRINK).max(1), ..FRESH },
        None => FRESH,
    }
}

fn ahead_of(block: BlockId, s: Stream, pages: u32) -> Option<Ahead> {
    let (first, left) = if s.backwards {
        (block.0.checked_sub(1)?, block.0)
    } else {
        (block.0 + 1, (pages / BLOCK_PAGES).saturating_sub(block.0 + 1))
    };
    let blocks = s.depth.min(left);
    (blocks > 0).then_some(Ahead {
        first: BlockId(first).page(0),
        stride: if s.backwards { -1 } else { 1 },
        count: blocks * BLOCK_PAGES,
        state: Stream { size: BLOCK_PAGES, lo: 0, hi: BLOCK_PAGES, ..s }.encode(),
    })
}

const THREADS: usize = 64;
/// Equal distances in a row before a stride is believed.
const CONFIRM: u32 = 2;
const COUNT_MAX: u32 = 16;

/// Last fault and distance per thread, hashed by thread id. Colliding threads only cost guesses.
#[derive(Debug)]
pub struct Strides {
    lock: Lock,
    /// last page (32) | stride as i24 (24) | confirmations (8)
    rows: [AtomicU64; THREADS],
}

impl Default for Strides {
    fn default() -> Self {
        Strides { lock: Lock::default(), rows: [const { AtomicU64::new(0) }; THREADS] }
    }
}

impl Strides {
    /// Notes a fault that continued no unit stream; says what to fetch if it continues a stride.
    pub fn note(&self, tid: u32, page: PageId) -> Option<Ahead> {
        let _guard = self.lock.lock();
        let cell = &self.rows[tid as usize % THREADS];
        let v = cell.load(Ordering::Relaxed);
        let (last, stride, sure) = (v as u32, ((v >> 32) as u32 as i32) << 8 >> 8, (v >> 56) as u32);
        let delta = i64::from(page.0) - i64::from(last);
        let fits = delta != 0 && delta.abs() < 1 << 22;
        let (stride, sure) = match fits {
            true if delta == i64::from(stride) => (stride, (sure + 1).min(200)),
            true => (delta as i32, 0),
            false => (0, 0),
        };
        let count = if sure >= CONFIRM { (1 << (sure - CONFIRM + 1).min(4)).min(COUNT_MAX) } else { 0 };
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
            state: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(indices: &[u32]) -> (Vec<u32>, Stream) {
        let mut own = None;
        let mut sizes = Vec::new();
        for &i in indices {
            let (mask, s) = next_stream(own, None, None, i).cover(i);
            sizes.push(mask.count_ones());
            own = Some(s);
        }
        (sizes, own.unwrap())
    }

    #[test]
    fn a_forward_stream_doubles_its_window_to_the_block() {
        let (sizes, s) = run(&[0, 1, 3, 7, 15, 31]);
        assert_eq!(sizes, [1, 2, 4, 8, 16, 32]);
        assert_eq!((s.hi, s.backwards), (63, false));
    }

    #[test]
    fn a_backward_stream_is_recognised_and_grows() {
        let (sizes, s) = run(&[63, 62, 60, 56]);
        assert_eq!(sizes, [1, 2, 4, 8]);
        assert_eq!((s.lo, s.backwards), (49, true));
    }

    #[test]
    fn a_stream_goes_on_past_pages_that_were_there_already_but_not_past_gaps() {
        let s = Stream { backwards: false, size: 8, lo: 8, hi: 16, depth: 0 };
        let at = |index: u32, in_ram: &[u32]| {
            next_stream(Some(s.past(index, |i| in_ram.contains(&i))), None, None, index)
        };
        assert_eq!((at(16, &[]).size, at(18, &[16, 17]).size, at(18, &[17]).size), (16, 16, 1));
        let down = at(5, &[6, 7]);
        assert_eq!((down.size, down.backwards), (2, true));
        assert_eq!(at(5, &[7]).size, 1);
        let all: Vec<u32> = (0..64).collect();
        assert_eq!((at(16 + 8, &all).size, at(16 + 9, &all).size), (16, 1), "only so far");
    }

    #[test]
    fn random_faults_shrink_the_window_to_one_page() {
        let (sizes, _) = run(&[0, 1, 3, 40, 10, 50, 20]);
        assert_eq!(sizes, [1, 2, 4, 1, 1, 1, 1]);
        // After a scan of the whole block the first one still brings a few.
        let (sizes, _) = run(&[0, 1, 3, 7, 15, 31, 63, 5, 40]);
        assert_eq!(sizes[7..], [4, 1]);
    }

    #[test]
    fn a_stream_crosses_into_the_next_block_at_full_size() {
        let left = Stream { backwards: false, size: 64, lo: 0, hi: 64, depth: 1 };
        let s = next_stream(None, Some(left), None, 0);
        assert_eq!((s.size, s.depth), (64, 2));
        let down = Stream { backwards: true, size: 32, lo: 0, hi: 32, depth: 0 };
        let s = next_stream(None, None, Some(down), 63);
        assert_eq!((s.size, s.backwards), (64, true));
        assert_eq!(next_stream(None, Some(left), None, 7), FRESH);
    }

    #[test]
    fn a_second_walk_over_a_block_starts_at_a_quarter_of_the_window() {
        let done = Stream { backwards: false, size: 64, lo: 0, hi: 64, depth: 4 };
        let again = next_stream(Some(done), None, None, 0);
        assert_eq!((again.size, again.depth), (16, 0));
        let (_, s) = again.cover(0);
        assert_eq!(next_stream(Some(s), None, None, 16).size, 32);
        // A backward walk after a forward one: the direction is found at the second fault.
        let (_, s) = next_stream(Some(done), None, None, 63).cover(63);
        assert_eq!(next_stream(Some(s), None, None, 62), Stream { backwards: true, size: 2, ..FRESH });
        let entering = Stream { backwards: true, size: 64, lo: 0, hi: 64, depth: 0 };
        assert!(next_stream(Some(done), None, Some(entering), 63).backwards);
    }

    #[test]
    fn the_state_survives_its_encoding() {
        for s in [FRESH, Stream { backwards: true, size: 64, lo: 3, hi: 64, depth: 4 }] {
            assert_eq!(Stream::decode(s.encode()), Some(s));
        }
        assert_eq!(Stream::decode(0), None);
    }

    #[test]
    fn a_column_walk_is_followed_and_random_faults_are_not() {
        let s = Strides::default();
        let mut fetched = 0;
        let mut page = 1000;
        let mut known_until = 0;
        for _ in 0..200 {
            page += 300;
            if page <= known_until {
                continue; // prefetched: no fault
            }
            if let Some(a) = s.note(7, PageId(page)) {
                assert_eq!((a.first, a.stride), (PageId(page + 300), 300));
                known_until = page + 300 * a.count;
                fetched += a.count;
            }
        }
        assert!(fetched > 150, "{fetched}");
        let mut x = 12345u32;
        for _ in 0..1000 {
            x = x.wrapping_mul(1664525).wrapping_add(1013904223);
            assert_eq!(s.note(9, PageId(x >> 8)), None);
        }
    }
}
