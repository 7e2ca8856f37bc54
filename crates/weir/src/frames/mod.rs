//! Frames: the frame arena in windows of 64 places, handed out in ascending runs.
//!
//! A window is *empty* (no frame in it; a block can be moved in), *free* (some frames, all free or
//! in somebody's hand), or *taken* (a block's staged pages, or 64 frames of pool). Frames in hand
//! (`IN_HAND`) still lie in their places until the caller has moved them out: their window is not
//! empty before that.
//!
//! Order is kept by construction: free frames are bits of their window, a run is consecutive
//! bits, the lowest window goes first. There is no list that could be shuffled; `scatter` makes the
//! allocator hand out single frames from alternating places, to measure what order is worth.

mod bitset;
mod shed;

use crate::door::Pager;
use crate::page::id::{BLOCK_PAGES, next_run, run_mask};
use crate::page::{FrameId, WindowId};
use crate::sync::{Lock, Ordering};
use bitset::BitSet;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use weir_os::mem::Table;
use weir_os::shards::Line;
use weir_os::sys::Errno;

/// The frame allocator.
#[derive(Debug)]
pub struct Frames {
    lock: Lock,
    /// Per window: free mask, in-hand mask, known-zero mask, taken flag.
    rows: Table<[AtomicU64; 4]>,
    full: BitSet,
    partial: BitSet,
    /// Empty windows of the watched part, into which blocks are moved.
    empty: BitSet,
    /// Empty windows from `lifts` on, into which pages are lifted; the pool never lies there.
    empty_lifts: BitSet,
    lifts: u32,
    free: AtomicU32,
    existing: Line<AtomicU32>,
    limit: AtomicU32,
    scatter: AtomicBool,
    lifts_forbidden: AtomicBool,
}

/// Consecutive free frames in the caller's hand.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Run {
    /// First place.
    pub frame: FrameId,
    /// Number of frames.
    pub n: u32,
    /// Bit i: frame i is known to be all zero.
    pub zeroed: u64,
}

const FREE: usize = 0;
const IN_HAND: usize = 1;
const ZEROED: usize = 2;
/// 1: the window holds staged pages or pool records besides what is free.
const TAKEN: usize = 3;

impl Frames {
    /// An arena of `windows` windows and `lift_windows` for lifted pages after them, all empty, in
    /// which at most `limit` frames may exist.
    pub fn new(windows: u32, lift_windows: u32, limit: u32) -> Result<Frames, Errno> {
        let all = windows + lift_windows;
        let frames = Frames {
            lock: Lock::default(),
            rows: Table::new(all as usize, c"weir-windows")?,
            full: BitSet::new(all)?,
            partial: BitSet::new(all)?,
            empty: BitSet::new(windows)?,
            empty_lifts: BitSet::new(all)?,
            lifts: windows,
            free: AtomicU32::new(0),
            existing: Line::default(),
            limit: AtomicU32::new(limit),
            scatter: AtomicBool::new(false),
            lifts_forbidden: AtomicBool::new(false),
        };
        (0..windows).for_each(|w| frames.empty.set(w));
        (windows..all).for_each(|w| frames.empty_lifts.set(w));
        Ok(frames)
    }

    /// Free frames, not counting those in hand.
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Frames that exist, wherever they are.
    pub fn existing(&self) -> u32 {
        self.existing.load(Ordering::Relaxed)
    }

    /// Most frames that may exist.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit; `shed_excess` makes it true.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::SeqCst);
    }

    /// Experiment F5: hand out single frames in an order that merges nothing.
    pub fn set_scatter(&self, on: bool) {
        self.scatter.store(on, Ordering::Relaxed);
    }

    fn get(&self, w: u32, field: usize) -> u64 {
        self.rows.row(w as usize)[field].load(Ordering::Relaxed)
    }

    fn put(&self, w: u32, field: usize, v: u64) {
        self.rows.row(w as usize)[field].store(v, Ordering::Relaxed);
    }

    /// Files a window under the set that its masks call for. Under the lock.
    fn refile(&self, w: u32) {
        let (free, held, taken) = (self.get(w, FREE), self.get(w, IN_HAND), self.get(w, TAKEN) != 0);
        // A taken window is never whole, even when all its pages were dropped: its taker gives it back.
        let full = free == u64::MAX && !taken;
        self.full.put(w, full);
        self.partial.put(w, free != 0 && !full);
        self.put_empty(w, free == 0 && held == 0 && !taken);
    }

    fn put_empty(&self, w: u32, on: bool) {
        if w < self.lifts { self.empty.put(w, on) } else { self.empty_lifts.put(w, on) }
    }

    fn is_empty(&self, w: u32) -> bool {
        if w < self.lifts { self.empty.has(w) } else { self.empty_lifts.has(w) }
    }

    /// Takes up to `n` (1..=64) consecutive free frames, as many as one window gives; ascending.
    pub fn take_run(&self, n: u32) -> Option<Run> {
        let n = n.clamp(1, BLOCK_PAGES);
        let _guard = self.lock.lock();
        if self.scatter.load(Ordering::Relaxed) {
            return self.take_scattered();
        }
        // A long run is worth breaking a full window; a short one first uses up the broken ones.
        let w = if n > BLOCK_PAGES / 4 {
            self.full.first().or_else(|| self.partial.first())
        } else {
            self.partial.first().or_else(|| self.full.first())
        }?;
        let (start, len) = best_run(self.get(w, FREE), n)?;
        Some(self.take_in_hand(w, start, len.min(n)))
    }

    /// Whether some window is full of free frames; a hint.
    pub fn has_whole_window(&self) -> bool {
        self.full.first().is_some()
    }

    fn take_scattered(&self) -> Option<Run> {
        let w = self.partial.last().or_else(|| self.full.last())?;
        let free = self.get(w, FREE);
        // Alternate ends of the window so that neighbours in time are never neighbours in place.
        let bit = if free.count_ones().is_multiple_of(2) {
            63 - free.leading_zeros()
        } else {
            free.trailing_zeros()
        };
        Some(self.take_in_hand(w, bit, 1))
    }

    fn take_in_hand(&self, w: u32, start: u32, len: u32) -> Run {
        let mask = run_mask(start, len);
        let zeroed = (self.get(w, ZEROED) & mask) >> start;
        self.put(w, FREE, self.get(w, FREE) & !mask);
        self.put(w, IN_HAND, self.get(w, IN_HAND) | mask);
        self.put(w, ZEROED, self.get(w, ZEROED) & !mask);
        self.refile(w);
        self.free.fetch_sub(len, Ordering::Relaxed);
        Run { frame: WindowId(w).frame(start), n: len, zeroed }
    }

    /// Takes up to `n` (1..=8) neighbouring windows full of free frames, at least two: the first, and how
    /// many. All their frames are in the caller's hand, as after `take_run` of each.
    pub fn take_windows(&self, n: u32) -> Option<(WindowId, u32)> {
        let _guard = self.lock.lock();
        if self.scatter.load(Ordering::Relaxed) {
            return None;
        }
        let (first, n) = (2..=n).rev().find_map(|n| self.full.first_run(n).map(|first| (first, n)))?;
        (first..first + n).for_each(|w| drop(self.take_in_hand(w, 0, BLOCK_PAGES)));
        Some((WindowId(first), n))
    }

    /// The first `n` frames of a run have been moved out of their places.
    pub fn moved_out(&self, frame: FrameId, n: u32) {
        let _guard = self.lock.lock();
        self.leave_hand(frame, n);
    }

    fn leave_hand(&self, frame: FrameId, n: u32) {
        let w = frame.window().0;
        let mask = run_mask(frame.index(), n);
        debug_assert_eq!(self.get(w, IN_HAND) & mask, mask);
        self.put(w, IN_HAND, self.get(w, IN_HAND) & !mask);
        self.refile(w);
    }

    /// Frames in hand become free again where they lie.
    pub fn put_back(&self, frame: FrameId, n: u32) {
        if n == 0 {
            return;
        }
        let _guard = self.lock.lock();
        let w = frame.window().0;
        let mask = run_mask(frame.index(), n);
        debug_assert_eq!(self.get(w, IN_HAND) & mask, mask);
        self.put(w, IN_HAND, self.get(w, IN_HAND) & !mask);
        self.put(w, FREE, self.get(w, FREE) | mask);
        self.refile(w);
        self.free.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes an empty window, into which a block can be moved.
    pub fn take_empty(&self) -> Option<WindowId> {
        let _guard = self.lock.lock();
        let w = self.empty.first()?;
        self.empty.put(w, false);
        self.put(w, TAKEN, 1);
        Some(WindowId(w))
    }

    /// Whether pages may be lifted, and there are windows for them.
    pub fn can_lift(&self) -> bool {
        self.lifts as usize != self.rows.len() && !self.lifts_forbidden.load(Ordering::Relaxed)
    }

    /// From now on no page is lifted: the kernel may use pages after the call that named them.
    pub fn forbid_lifts(&self) {
        self.lifts_forbidden.store(true, Ordering::SeqCst);
    }

    /// Takes `n` (1..=8) neighbouring empty windows into which pages can be lifted: the first.
    pub fn take_empty_lifts(&self, n: u32) -> Option<WindowId> {
        let _guard = self.lock.lock();
        let first = self.empty_lifts.first_run(n)?;
        for w in first..first + n {
            self.empty_lifts.put(w, false);
            self.put(w, TAKEN, 1);
        }
        Some(WindowId(first))
    }

    /// A place without a frame of a taken window is no longer ours: it counts as in somebody's hand for
    /// good, so that nothing is lifted into the window again.
    pub fn lose(&self, frame: FrameId) {
        let _guard = self.lock.lock();
        let w = frame.window().0;
        debug_assert_eq!(self.get(w, FREE) & run_mask(frame.index(), 1), 0);
        self.put(w, IN_HAND, self.get(w, IN_HAND) | run_mask(frame.index(), 1));
    }

    /// Gives a taken window back; the places in `free` hold free frames, the others are empty or
    /// were released before.
    pub fn put_window(&self, window: WindowId, free: u64, zeroed: u64) {
        let _guard = self.lock.lock();
        self.put(window.0, TAKEN, 0);
        self.add_free(window, free, zeroed);
    }

    /// Frees frames of a window that stays taken: its other staged pages are not stored yet.
    pub fn release(&self, window: WindowId, free: u64) {
        if free != 0 {
            let _guard = self.lock.lock();
            self.add_free(window, free, 0);
        }
    }

    fn add_free(&self, window: WindowId, free: u64, zeroed: u64) {
        let w = window.0;
        debug_assert_eq!((self.get(w, FREE) | self.get(w, IN_HAND)) & free, 0);
        self.put(w, FREE, self.get(w, FREE) | free);
        self.put(w, ZEROED, self.get(w, ZEROED) | zeroed & free);
        self.refile(w);
        self.free.fetch_add(free.count_ones(), Ordering::Relaxed);
    }

    /// Takes the right to `n` frames that are not in the arena: they are born elsewhere. False when the
    /// limit does not allow them.
    pub fn take_credit(&self, n: u32) -> bool {
        self.take_credit_leaving(n, 0)
    }

    /// As [`Frames::take_credit`], but false too when less than `left` would be left.
    pub fn take_credit_leaving(&self, n: u32, left: u32) -> bool {
        let limit = self.limit().saturating_sub(left);
        let more = |existing: u32| (existing + n <= limit).then_some(existing + n);
        self.existing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Takes the right to as many frames as the limit still allows, up to `most`. How many. Credit is taken
    /// without the lock meanwhile, so looking and taking are one step.
    fn take_rest(&self, most: u32) -> u32 {
        let limit = self.limit();
        let more = |existing: u32| Some(existing + limit.saturating_sub(existing).min(most));
        let before = self.existing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        limit.saturating_sub(before.unwrap_or(limit)).min(most)
    }

    /// Frames that may still be created.
    pub fn credit(&self) -> u32 {
        self.limit().saturating_sub(self.existing())
    }

    /// Frames went back to the kernel from under the program (dropped where they were).
    pub fn vanished(&self, n: u32) {
        self.existing.fetch_sub(n, Ordering::Relaxed);
    }

    /// Takes a window of 64 free frames, gathering them from several windows if none is whole.
    pub fn take_full<P: Pager>(&self, pager: &P) -> Option<WindowId> {
        if self.free() < BLOCK_PAGES && self.credit() > 0 {
            let _ = self.grow(pager);
        }
        {
            let _guard = self.lock.lock();
            if let Some(w) = self.full.first().filter(|w| *w < self.lifts) {
                self.put(w, FREE, 0);
                self.put(w, ZEROED, 0);
                self.put(w, TAKEN, 1);
                self.full.put(w, false);
                self.free.fetch_sub(BLOCK_PAGES, Ordering::Relaxed);
                return Some(WindowId(w));
            }
        }
        self.gather(pager)
    }

    fn gather<P: Pager>(&self, pager: &P) -> Option<WindowId> {
        if self.free() < BLOCK_PAGES {
            return None;
        }
        let target = self.take_empty()?;
        let mut got = 0;
        while got < BLOCK_PAGES {
            let Some(run) = self.take_run(BLOCK_PAGES - got) else { break };
            let d = pager.gather(target.frame(got), run.frame, run.n);
            self.moved_out(run.frame, d.pages);
            self.put_back(FrameId(run.frame.0 + d.pages), run.n - d.pages);
            got += d.pages;
            if d.pages == 0 && d.stop != Some(Errno::EAGAIN) {
                break;
            }
        }
        if got == BLOCK_PAGES {
            return Some(target);
        }
        self.put_window(target, run_mask(0, got), 0);
        None
    }

    /// Creates up to 64 zeroed frames if the limit allows. Returns how many.
    pub fn grow<P: Pager>(&self, pager: &P) -> Result<u32, Errno> {
        let (window, n) = {
            let _guard = self.lock.lock();
            let Some(w) = self.empty.first() else { return Ok(0) };
            let n = self.take_rest(BLOCK_PAGES);
            if n == 0 {
                return Ok(0);
            }
            self.empty.put(w, false);
            self.put(w, TAKEN, 1);
            (WindowId(w), n)
        };
        let result = pager.grow(window.frame(0), n);
        let mask = if result.is_ok() { run_mask(0, n) } else { 0 };
        if result.is_err() {
            // Whatever part was born goes back, so that the window is empty again.
            let _ = pager.shed(window.frame(0), n);
            self.existing.fetch_sub(n, Ordering::Relaxed);
        }
        self.put_window(window, mask, mask);
        result.map(|()| n)
    }

    /// Checks the allocator against itself; call when nobody is inside.
    pub fn validate(&self) -> Result<(), &'static str> {
        let _guard = self.lock.lock();
        let mut free = 0;
        for w in 0..self.rows.len() as u32 {
            let (f, h, z) = (self.get(w, FREE), self.get(w, IN_HAND), self.get(w, ZEROED));
            if f & h != 0 || z & !f != 0 {
                return Err("INV-7: window masks contradict each other");
            }
            let full = f == u64::MAX && self.get(w, TAKEN) == 0;
            if full != self.full.has(w) || (f != 0 && !full) != self.partial.has(w) {
                return Err("INV-7: window filed wrongly");
            }
            if self.is_empty(w) != (f | h | self.get(w, TAKEN) == 0) {
                return Err("INV-7: a window is empty or taken wrongly");
            }
            free += f.count_ones();
        }
        if free != self.free() {
            return Err("INV-1: free frames miscounted");
        }
        if self.existing() < free { Err("INV-1: more free frames than exist") } else { Ok(()) }
    }
}

/// The first run of at least `n` bits, or else the longest.
fn best_run(mask: u64, n: u32) -> Option<(u32, u32)> {
    let (mut from, mut best) = (0, None::<(u32, u32)>);
    while let Some((start, len)) = next_run(mask, from) {
        if len >= n {
            return Some((start, len));
        }
        if best.is_none_or(|(_, l)| len > l) {
            best = Some((start, len));
        }
        from = start + len;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::FakePager;

    fn setup(windows: u32, limit: u32) -> (Frames, FakePager) {
        (Frames::new(windows, 0, limit).unwrap(), FakePager::new(64, windows))
    }

    #[test]
    fn frames_come_in_ascending_runs_and_never_exceed_the_limit() {
        let (f, p) = setup(8, 100);
        assert_eq!(f.grow(&p), Ok(64));
        assert_eq!(f.grow(&p), Ok(36));
        assert_eq!(f.grow(&p), Ok(0));
        let a = f.take_run(64).unwrap();
        assert_eq!((a.frame, a.n, a.zeroed), (FrameId(0), 64, u64::MAX));
        let b = f.take_run(64).unwrap();
        assert_eq!((b.frame, b.n), (FrameId(64), 36));
        assert!(f.take_run(1).is_none());
        f.validate().unwrap();
    }

    #[test]
    fn a_window_is_empty_only_once_its_frames_have_left() {
        let (f, p) = setup(2, 128);
        f.grow(&p).unwrap();
        let run = f.take_run(64).unwrap();
        assert_eq!(f.take_empty(), Some(WindowId(1)), "window 0 still holds the frames in hand");
        assert_eq!(f.take_empty(), None);
        f.moved_out(run.frame, 64);
        assert_eq!(f.take_empty(), Some(WindowId(0)));
    }

    #[test]
    fn a_taken_window_is_not_given_away_whole() {
        let (f, p) = setup(4, 256);
        f.grow(&p).unwrap();
        let w = f.take_full(&p).unwrap();
        f.release(w, u64::MAX); // all its staged pages were dropped by the program
        f.validate().unwrap();
        // Its frames may be used, one by one or gathered elsewhere, but the window itself is taken.
        let other = f.take_full(&p).expect("64 free frames");
        assert_ne!(other, w);
        f.put_window(other, u64::MAX, 0);
        f.put_window(w, 0, 0);
        f.validate().unwrap();
    }

    #[test]
    fn scattered_frames_are_gathered_into_a_whole_window() {
        let (f, p) = setup(8, 256);
        (0..2).for_each(|_| assert_eq!(f.grow(&p), Ok(64)));
        // Punch holes: take single frames out of both windows.
        for w in 0..2 {
            let run = f.take_run(64).unwrap();
            assert_eq!(run.frame.window(), WindowId(w));
            for i in 0..64 {
                let frame = FrameId(run.frame.0 + i);
                if i % 4 == 3 {
                    p.shed(frame, 1).unwrap();
                    f.moved_out(frame, 1);
                } else {
                    f.put_back(frame, 1);
                }
            }
        }
        let w = f.take_full(&p).expect("96 free frames make a window");
        (0..64).for_each(|i| assert!(p.has_frame(w.frame(i))));
        f.put_window(w, u64::MAX, 0);
        f.validate().unwrap();
    }

    /// Seeded operations against a set of free places.
    #[test]
    fn the_allocator_agrees_with_a_naive_model() {
        for seed in 1..20u64 {
            let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = move || {
                s ^= s << 13;
                s ^= s >> 7;
                s ^= s << 17;
                s
            };
            let (f, p) = setup(24, 512);
            let mut held: Vec<Run> = Vec::new();
            let mut free = 0u32;
            for step in 0..500 {
                match next() % 5 {
                    0 => free += f.grow(&p).unwrap(),
                    1 | 2 => {
                        if let Some(r) = f.take_run((next() % 64 + 1) as u32) {
                            free -= r.n;
                            held.push(r);
                        }
                    }
                    3 if !held.is_empty() => {
                        let r = held.swap_remove(next() as usize % held.len());
                        f.put_back(r.frame, r.n);
                        free += r.n;
                    }
                    _ if !held.is_empty() => {
                        let r = held.swap_remove(next() as usize % held.len());
                        p.shed(r.frame, r.n).unwrap();
                        f.moved_out(r.frame, r.n);
                        f.existing.fetch_sub(r.n, Ordering::Relaxed);
                    }
                    _ => {}
                }
                assert_eq!(f.free(), free, "seed {seed} step {step}");
                f.validate().unwrap_or_else(|e| panic!("seed {seed} step {step}: {e}"));
                assert!(f.existing() <= 512);
            }
        }
    }
}
