//! The compressed pool: records of any size up to [`RECORD_BYTES_MAX`], in spans of one size class
//! each, in windows of the frame arena.
//!
//! A window given to the pool has 64 frames, cut into 8 spans of 32 KiB. When its last record dies the window
//! goes straight back to the frame allocator. A record begins with a header that names its page
//! (`record.rs`), so that compaction can find the word to change.
//!
//! Locking: `Pool::lock` guards spans and lists and is a leaf. A record's bytes belong to whoever
//! holds the lock of the block of its page, or to the storer until the page word names it.

mod class;
mod expand;
mod record;

pub use record::{Age, Codec, Damaged, saving};
use record::{HEADER_BYTES, header_of, is_zstd, len_of};

use crate::door::{Pager, with_bytes};
use crate::frames::Frames;
use crate::limits::RECORD_BYTES_MAX;
use crate::page::id::BLOCK_PAGES;
use crate::page::{Handle, PageId, WindowId};
use crate::stats::{self, Stats};
use crate::sync::{Lock, Ordering};
use class::{CLASSES, SPAN_BYTES, class_of, objects, size_of_class};
use core::sync::atomic::{AtomicU32, AtomicU64};
use weir_os::mem::{PAGE_BYTES, Table};
use weir_os::sys::Errno;
use weir_os::thread;

/// The pool could not take a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The pool has its full share of RAM.
    Share,
    /// No 64 free frames for another window.
    Frames,
}

/// A span: 32 KiB of the arena, numbered from its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub u32);

/// Windows looked at under one hold of the lock: about 2 us.
const WINDOWS_PER_HOLD: u32 = 32;
/// Spans looked at by one step of a walk: some tens of us.
const SPANS_PER_LOOK: u32 = 4096;
/// Holds of the lock for new records of which one in about so many is timed: often enough to know what a hold
/// costs.
const TIMED_ONE_IN: u64 = 61;
const SPANS_PER_WINDOW: u32 = BLOCK_PAGES * PAGE_BYTES as u32 / SPAN_BYTES as u32;
/// Words of a span row: 8 of bitmap (1 = used), then class and count, then links.
const META: usize = 8;
const LINKS: usize = 9;
const LEAVING: usize = 10;
const ROW: usize = 12;
/// Values of the LEAVING word: a span that is being emptied is on no list.
const STAYS: u64 = 0;
const SPAN_LEAVES: u64 = 1;
const WINDOW_LEAVES: u64 = 2;
/// A span on the free list, or not the pool's at all.
const NO_CLASS: u32 = u32::MAX;
const END: u32 = 0;

/// The pool.
#[derive(Debug)]
pub struct Pool {
    lock: Lock,
    spans: Table<[AtomicU64; ROW]>,
    /// Per window: spans in use plus one while the pool owns it; 0 otherwise.
    windows: Table<AtomicU32>,
    heads: [AtomicU32; CLASSES],
    free_head: AtomicU32,
    /// Per class: places without a record in spans of the class.
    vacant: [AtomicU32; CLASSES],
    /// Bytes of places with a record.
    used_bytes: AtomicU64,
    owned: AtomicU32,
    limit: AtomicU32,
    hand: AtomicU32,
    /// Records of zstd, and those whose pages were brought in.
    zstd_records: AtomicU64,
    zstd_in: AtomicU64,
}

/// A record on its way to another place or out: where it is and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Where.
    pub handle: Handle,
    /// Whose.
    pub page: PageId,
}

impl Pool {
    /// A pool that may own up to `limit` of the arena's `windows` windows.
    pub fn new(windows: u32, limit: u32) -> Result<Pool, Errno> {
        Ok(Pool {
            lock: Lock::default(),
            spans: Table::new((windows * SPANS_PER_WINDOW) as usize, c"weir-spans")?,
            windows: Table::new(windows as usize, c"weir-spans")?,
            heads: [const { AtomicU32::new(END) }; CLASSES],
            free_head: AtomicU32::new(END),
            vacant: [const { AtomicU32::new(0) }; CLASSES],
            used_bytes: AtomicU64::new(0),
            owned: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            hand: AtomicU32::new(0),
            zstd_records: AtomicU64::new(0),
            zstd_in: AtomicU64::new(0),
        })
    }

    /// Windows owned.
    pub fn owned(&self) -> u32 {
        self.owned.load(Ordering::Relaxed)
    }

    /// Most windows that it may own.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the share.
    pub fn set_limit(&self, windows: u32) {
        self.limit.store(windows, Ordering::SeqCst);
    }

    /// Stores a record for `page` and returns its handle.
    pub fn store<P: Pager>(
        &self,
        pager: &P,
        frames: &Frames,
        stats: &Stats,
        page: PageId,
        codec: Codec,
        bytes: &[u8],
    ) -> Result<Handle, NoRoom> {
        let mut place = [None];
        self.reserve(pager, frames, stats, &[bytes.len()], &mut place)?;
        let handle = place[0].ok_or(NoRoom::Share)?;
        self.put(pager, stats, handle, page, codec, bytes);
        Ok(handle)
    }

    /// Writes a record into a place reserved for one of its length.
    pub fn put<P: Pager>(
        &self,
        pager: &P,
        stats: &Stats,
        handle: Handle,
        page: PageId,
        codec: Codec,
        bytes: &[u8],
    ) {
        let header = header_of(page, codec, bytes.len());
        with_bytes(pager, offset(handle), HEADER_BYTES + bytes.len(), |b| {
            b[..HEADER_BYTES].copy_from_slice(&header.to_le_bytes());
            b[HEADER_BYTES..].copy_from_slice(bytes);
        });
        if codec == Codec::Zstd {
            self.zstd_records.fetch_add(1, Ordering::Relaxed);
        }
        stats.pool_stored_bytes().add(bytes.len() as u64);
        stats.pool_logical_bytes().add(PAGE_BYTES as u64);
    }

    /// Finds places for records of these lengths, in bytes, under one hold of the lock unless the pool has to
    /// grow for them. `Err`: those that are `None` have none. The caller puts the others at once.
    pub fn reserve<P: Pager>(
        &self,
        pager: &P,
        frames: &Frames,
        stats: &Stats,
        lens: &[usize],
        places: &mut [Option<Handle>],
    ) -> Result<(), NoRoom> {
        // Closed: what places there are go with their windows.
        if self.limit() == 0 {
            return Err(NoRoom::Share);
        }
        loop {
            stats.out_pool_locks().add(1);
            let start = stats.pool_out().own().is_multiple_of(TIMED_ONE_IN).then(thread::now_ns);
            let all = self.reserve_some(lens, places);
            if let Some(start) = start {
                stats::add(&stats.pool_hold_ns, thread::now_ns() - start);
                stats::add(&stats.pool_holds, 1);
            }
            if all {
                return Ok(());
            }
            if self.owned() >= self.limit() {
                return Err(NoRoom::Share);
            }
            stats.out_frame_locks().add(1);
            let window = frames.take_full(pager).ok_or(NoRoom::Frames)?;
            stats.out_pool_locks().add(1);
            self.add_window(window);
        }
    }

    /// Finds places for those that have none yet. Whether all have one now.
    fn reserve_some(&self, lens: &[usize], places: &mut [Option<Handle>]) -> bool {
        let _guard = self.lock.lock();
        let mut all = true;
        for (len, place) in lens.iter().zip(places) {
            assert!(*len <= RECORD_BYTES_MAX);
            if place.is_none() {
                *place = self.reserve_in_class(class_of(HEADER_BYTES + len));
                all &= place.is_some();
            }
        }
        all
    }

    /// A place in a span of the class. Under the lock.
    fn reserve_in_class(&self, class: usize) -> Option<Handle> {
        let mut span = self.heads[class].load(Ordering::Relaxed);
        if span == END {
            span = self.free_head.load(Ordering::Relaxed);
            if span == END {
                return None;
            }
            let id = SpanId(span - 1);
            self.unlink(id, &self.free_head);
            self.set_meta(id, class as u32, 0);
            self.vacant[class].fetch_add(objects(class) as u32, Ordering::Relaxed);
            self.link(id, &self.heads[class]);
            self.windows.row(window_of(id)).fetch_add(1, Ordering::Relaxed);
        }
        let id = SpanId(span - 1);
        let row = self.spans.row(id.0 as usize);
        let n = objects(class);
        for (k, word) in row[..n.div_ceil(64)].iter().enumerate() {
            let used = word.load(Ordering::Relaxed);
            let bit = (!used).trailing_zeros() as usize;
            if bit < 64 && k * 64 + bit < n {
                word.store(used | 1 << bit, Ordering::Relaxed);
                let (_, count) = self.meta(id);
                self.set_meta(id, class as u32, count + 1);
                self.vacant[class].fetch_sub(1, Ordering::Relaxed);
                self.used_bytes.fetch_add(size_of_class(class) as u64, Ordering::Relaxed);
                if count as usize + 1 == n {
                    self.unlink(id, &self.heads[class]);
                }
                return Some(handle_of(id, class, k * 64 + bit));
            }
        }
        unreachable!("a listed span has room")
    }

    fn add_window(&self, window: WindowId) {
        let _guard = self.lock.lock();
        self.windows.row(window.0 as usize).store(1, Ordering::Relaxed);
        self.owned.fetch_add(1, Ordering::Relaxed);
        for i in (0..SPANS_PER_WINDOW).rev() {
            let id = SpanId(window.0 * SPANS_PER_WINDOW + i);
            self.set_leaving(id, STAYS);
            self.set_meta(id, NO_CLASS, 0);
            self.link(id, &self.free_head);
        }
    }

    /// Whether it has its whole share of windows, or more, and its records leave less than one part in
    /// `part` of that share.
    pub fn is_tight(&self, part: u64) -> bool {
        let limit = u64::from(self.limit()) * u64::from(BLOCK_PAGES) * PAGE_BYTES as u64;
        let vacant = limit.saturating_sub(self.used_bytes.load(Ordering::Relaxed));
        self.owned() >= self.limit().max(1) && (vacant < limit / part || limit == 0)
    }

    /// Whether it owns more windows than it may: its share fell.
    pub fn is_over(&self) -> bool {
        self.owned() > self.limit()
    }

    /// Whether more than one part in `part` of the memory that it may own holds no record.
    pub fn has_spare(&self, part: u64) -> bool {
        let limit = u64::from(self.limit()) * u64::from(BLOCK_PAGES) * PAGE_BYTES as u64;
        limit.saturating_sub(self.used_bytes.load(Ordering::Relaxed)) > limit / part
    }

    /// Permille of its share of windows that it owns.
    pub fn fill_permille(&self) -> u64 {
        u64::from(self.owned()) * 1000 / u64::from(self.limit().max(1))
    }

    /// Frees a record that no page word names any more.
    pub fn free<P: Pager>(&self, pager: &P, frames: &Frames, stats: &Stats, handle: Handle) {
        let len = with_bytes(pager, offset(handle), HEADER_BYTES, |b| {
            let header = read_u64(b);
            b.fill(0);
            if is_zstd(header) {
                self.zstd_records.fetch_sub(1, Ordering::Relaxed);
            }
            len_of(header).expect("a pool record was freed twice")
        });
        stats.pool_stored_bytes().sub(len as u64);
        stats.pool_logical_bytes().sub(PAGE_BYTES as u64);
        if let Some(window) = self.release(handle) {
            frames.put_window(window, u64::MAX, 0);
        }
    }

    /// Frees the record's place; the window, if it was the last one in it.
    fn release(&self, handle: Handle) -> Option<WindowId> {
        let _guard = self.lock.lock();
        let id = span_of(handle);
        let row = self.spans.row(id.0 as usize);
        let (class, count) = self.meta(id);
        let i = (offset(handle) % SPAN_BYTES) / size_of_class(class as usize);
        let word = &row[i / 64];
        debug_assert!(word.load(Ordering::Relaxed) >> (i % 64) & 1 == 1);
        word.store(word.load(Ordering::Relaxed) & !(1 << (i % 64)), Ordering::Relaxed);
        self.set_meta(id, class, count - 1);
        self.used_bytes.fetch_sub(size_of_class(class as usize) as u64, Ordering::Relaxed);
        self.vacant[class as usize].fetch_add(1, Ordering::Relaxed);
        let head = &self.heads[class as usize];
        let was_full = count as usize == objects(class as usize);
        let leaving = self.leaving(id);
        if count > 1 {
            if was_full && leaving == STAYS {
                self.link(id, head);
            }
            return None;
        }
        if !was_full && leaving == STAYS {
            self.unlink(id, head);
        }
        self.set_meta(id, NO_CLASS, 0);
        self.vacant[class as usize].fetch_sub(objects(class as usize) as u32, Ordering::Relaxed);
        if leaving != WINDOW_LEAVES {
            self.set_leaving(id, STAYS);
            self.link(id, &self.free_head);
        }
        let used = self.windows.row(window_of(id));
        if used.fetch_sub(1, Ordering::Relaxed) > 2 {
            return None;
        }
        self.remove_window(WindowId(window_of(id) as u32))
    }

    fn remove_window(&self, window: WindowId) -> Option<WindowId> {
        for id in spans_of(window) {
            if self.leaving(id) == STAYS {
                self.unlink(id, &self.free_head);
            }
            self.set_leaving(id, STAYS);
        }
        self.windows.row(window.0 as usize).store(0, Ordering::Relaxed);
        self.owned.fetch_sub(1, Ordering::Relaxed);
        Some(window)
    }

    /// Whether more than one part in 24 of the pool's memory holds no record, and at least two windows:
    /// worth moving records for.
    pub fn is_sparse(&self) -> bool {
        let window = u64::from(BLOCK_PAGES) * PAGE_BYTES as u64;
        let owned = u64::from(self.owned()) * window;
        let vacant = owned.saturating_sub(self.used_bytes.load(Ordering::Relaxed));
        let few = if self.is_over() { window } else { 2 * window };
        vacant > owned / 24 && vacant > few
    }

    /// Starts emptying a sparse span: at most three quarters full, with room for its records in
    /// other spans of its class. It takes no new records until `evacuated`.
    pub fn begin_evacuation(&self) -> Option<SpanId> {
        if !self.is_sparse() {
            return None; // looking at every span is not worth it
        }
        self.windows_at_a_time().find_map(|windows| {
            let _guard = self.lock.lock();
            let id = self.owned_of(windows).flat_map(spans_of).find(|&id| self.is_sparse_span(id))?;
            self.unlink(id, &self.heads[self.meta(id).0 as usize]);
            self.set_leaving(id, SPAN_LEAVES);
            Some(id)
        })
    }

    fn is_sparse_span(&self, id: SpanId) -> bool {
        let (class, count) = self.meta(id);
        if class == NO_CLASS || count == 0 || self.leaving(id) != STAYS {
            return false;
        }
        let (n, vacant) =
            (objects(class as usize) as u32, self.vacant[class as usize].load(Ordering::Relaxed));
        count * 4 <= n * 3 && vacant.saturating_sub(n - count) >= count
    }

    /// Ends an evacuation: a span that still has records takes new ones again.
    pub fn evacuated(&self, id: SpanId) {
        let _guard = self.lock.lock();
        if self.leaving(id) == SPAN_LEAVES {
            self.stay(id);
        }
    }

    fn stay(&self, id: SpanId) {
        self.set_leaving(id, STAYS);
        match self.meta(id) {
            (NO_CLASS, _) => self.link(id, &self.free_head),
            (class, count) if (count as usize) < objects(class as usize) => {
                self.link(id, &self.heads[class as usize]);
            }
            _ => {}
        }
    }

    /// Starts emptying a window with few spans in use, if the free spans of other windows can
    /// take them. None of its spans takes new records until `window_evacuated`.
    pub fn begin_window_evacuation(&self) -> Option<WindowId> {
        if !self.is_sparse() {
            return None;
        }
        let all = self.owned_of((0, self.windows.len() as u32));
        let free: u32 = all.map(|w| SPANS_PER_WINDOW - self.used_spans(w)).sum();
        if free <= SPANS_PER_WINDOW {
            return None;
        }
        self.windows_at_a_time().find_map(|windows| {
            let _guard = self.lock.lock();
            let window = self.owned_of(windows).find(|&w| {
                self.used_spans(w) <= SPANS_PER_WINDOW * 3 / 4
                    && spans_of(w).all(|id| self.leaving(id) == STAYS)
            })?;
            self.close_window(window);
            Some(window)
        })
    }

    /// None of the window's spans takes new records.
    fn close_window(&self, window: WindowId) {
        for id in spans_of(window) {
            match self.meta(id) {
                (NO_CLASS, _) => self.unlink(id, &self.free_head),
                (class, count) if (count as usize) < objects(class as usize) => {
                    self.unlink(id, &self.heads[class as usize]);
                }
                _ => {}
            }
            self.set_leaving(id, WINDOW_LEAVES);
        }
    }

    /// Ends the evacuation of a window; if it still has records it goes on as before.
    pub fn window_evacuated(&self, window: WindowId) {
        let _guard = self.lock.lock();
        spans_of(window).filter(|id| self.leaving(*id) == WINDOW_LEAVES).for_each(|id| self.stay(id));
    }

    fn used_spans(&self, w: WindowId) -> u32 {
        self.windows.row(w.0 as usize).load(Ordering::Relaxed).saturating_sub(1)
    }

    /// Every window of the arena, from where the last search stopped, a few at a time: first and number. For
    /// searches that hold the lock for a few only, because faults wait for it.
    fn windows_at_a_time(&self) -> impl Iterator<Item = (u32, u32)> {
        let n = self.windows.len() as u32;
        (0..n.div_ceil(WINDOWS_PER_HOLD)).map(move |_| {
            (self.hand.fetch_add(WINDOWS_PER_HOLD, Ordering::Relaxed) % n, WINDOWS_PER_HOLD.min(n))
        })
    }

    /// Those of `n` windows from `first` on, and round to the arena's first, that are the pool's.
    fn owned_of(&self, (first, n): (u32, u32)) -> impl Iterator<Item = WindowId> {
        let all = self.windows.len() as u32;
        (first..first + n)
            .map(move |w| WindowId(w % all))
            .filter(|w| self.windows.row(w.0 as usize).load(Ordering::Relaxed) != 0)
    }

    /// Records of zstd that there are, and how many have brought their pages in so far.
    pub fn zstd_records(&self) -> (u64, u64) {
        (self.zstd_records.load(Ordering::Relaxed), self.zstd_in.load(Ordering::Relaxed))
    }

    /// For a walk over all records: looks for a span that has some, from this one on, at a few thousand of
    /// them. It may be empty by the time it is looked at. `Err`: none among these, where to go on;
    /// `Ok(None)`: this was the end.
    pub fn span_from(&self, from: u32) -> Result<Option<SpanId>, u32> {
        let all = self.spans.len() as u32;
        let end = all.min(from.saturating_add(SPANS_PER_LOOK));
        let mut ids = (from..end).map(SpanId);
        let found = ids.find(|id| {
            let owned = self.windows.row(window_of(*id)).load(Ordering::Relaxed) != 0;
            owned && matches!(self.meta(*id), (class, 1..) if class != NO_CLASS)
        });
        if found.is_none() && end < all { Err(end) } else { Ok(found) }
    }

    /// The next span of the clock with records, for sweeps over kept copies.
    pub fn next_span(&self) -> Option<SpanId> {
        let _guard = self.lock.lock();
        let total = self.spans.len() as u32;
        for _ in 0..total {
            let s = self.hand.fetch_add(1, Ordering::Relaxed) % total;
            let id = SpanId(s);
            if self.windows.row(window_of(id)).load(Ordering::Relaxed) != 0 {
                let (class, count) = self.meta(id);
                if class != NO_CLASS && count > 0 {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Records of a span from object `from` on: fills `out`, returns how many and where to go on
    /// (`None`: the end). A record may be gone by the time the caller holds its block's lock.
    pub fn records<P: Pager>(
        &self,
        pager: &P,
        id: SpanId,
        from: usize,
        out: &mut [Located],
    ) -> (usize, Option<usize>) {
        let _guard = self.lock.lock();
        let (class, _) = self.meta(id);
        if class == NO_CLASS || self.windows.row(window_of(id)).load(Ordering::Relaxed) == 0 {
            return (0, None);
        }
        let (row, n) = (self.spans.row(id.0 as usize), objects(class as usize));
        let mut found = 0;
        for i in from..n {
            if found == out.len() {
                return (found, Some(i));
            }
            if row[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 == 1 {
                let handle = handle_of(id, class as usize, i);
                let page = with_bytes(pager, offset(handle), HEADER_BYTES, |b| read_u64(b) as u32);
                out[found] = Located { handle, page: PageId(page) };
                found += 1;
            }
        }
        (found, None)
    }

    /// Copies a record to another span of its class. `None` when there is no room.
    pub fn copy_record<P: Pager>(&self, pager: &P, from: Handle) -> Option<Handle> {
        let class = self.meta(span_of(from)).0 as usize;
        let to = {
            let from_window = self.leaving(span_of(from)) == WINDOW_LEAVES;
            if self.heads[class].load(Ordering::Relaxed) == END && !from_window {
                return None; // no other span of the class: a free one would only move the hole
            }
            let _guard = self.lock.lock();
            self.reserve_in_class(class)?
        };
        let mut buf = [0u8; HEADER_BYTES + RECORD_BYTES_MAX];
        let len = with_bytes(pager, offset(from), HEADER_BYTES, |b| len_of(read_u64(b)).unwrap_or(0));
        let total = HEADER_BYTES + len;
        with_bytes(pager, offset(from), total, |b| buf[..total].copy_from_slice(b));
        with_bytes(pager, offset(to), total, |b| b.copy_from_slice(&buf[..total]));
        Some(to)
    }

    /// Frees the old place of a copied record, whose bytes live on.
    pub fn forget<P: Pager>(&self, pager: &P, frames: &Frames, old: Handle) {
        with_bytes(pager, offset(old), HEADER_BYTES, |b| b.fill(0));
        if let Some(window) = self.release(old) {
            frames.put_window(window, u64::MAX, 0);
        }
    }

    fn meta(&self, id: SpanId) -> (u32, u32) {
        let m = self.spans.row(id.0 as usize)[META].load(Ordering::Relaxed);
        (m as u32, (m >> 32) as u32)
    }

    fn set_meta(&self, id: SpanId, class: u32, count: u32) {
        self.spans.row(id.0 as usize)[META]
            .store(u64::from(class) | u64::from(count) << 32, Ordering::Relaxed);
    }

    fn leaving(&self, id: SpanId) -> u64 {
        self.spans.row(id.0 as usize)[LEAVING].load(Ordering::Relaxed)
    }

    fn set_leaving(&self, id: SpanId, how: u64) {
        self.spans.row(id.0 as usize)[LEAVING].store(how, Ordering::Relaxed);
    }

    fn links(&self, id: SpanId) -> (u32, u32) {
        let l = self.spans.row(id.0 as usize)[LINKS].load(Ordering::Relaxed);
        (l as u32, (l >> 32) as u32)
    }

    fn set_links(&self, id: SpanId, next: u32, prev: u32) {
        self.spans.row(id.0 as usize)[LINKS]
            .store(u64::from(next) | u64::from(prev) << 32, Ordering::Relaxed);
    }

    fn link(&self, id: SpanId, head: &AtomicU32) {
        let next = head.load(Ordering::Relaxed);
        self.set_links(id, next, END);
        if next != END {
            let (nn, _) = self.links(SpanId(next - 1));
            self.set_links(SpanId(next - 1), nn, id.0 + 1);
        }
        head.store(id.0 + 1, Ordering::Relaxed);
    }

    fn unlink(&self, id: SpanId, head: &AtomicU32) {
        let (next, prev) = self.links(id);
        if prev == END {
            head.store(next, Ordering::Relaxed);
        } else {
            let (_, pp) = self.links(SpanId(prev - 1));
            self.set_links(SpanId(prev - 1), next, pp);
        }
        if next != END {
            let (nn, _) = self.links(SpanId(next - 1));
            self.set_links(SpanId(next - 1), nn, prev);
        }
        self.set_links(id, END, END);
    }

    /// Checks counts against bitmaps; returns the number of records. Call when nobody is inside.
    pub fn validate(&self) -> Result<u64, &'static str> {
        let _guard = self.lock.lock();
        let (mut records, mut owned, mut used_bytes, mut vacant) = (0, 0, 0, [0; CLASSES]);
        for w in 0..self.windows.len() {
            let claimed = self.windows.row(w).load(Ordering::Relaxed);
            if claimed == 0 {
                continue;
            }
            owned += 1;
            let mut used_spans = 0;
            for id in spans_of(WindowId(w as u32)) {
                let (class, count) = self.meta(id);
                let bits: u32 = self.spans.row(id.0 as usize)[..8]
                    .iter()
                    .map(|b| b.load(Ordering::Relaxed).count_ones())
                    .sum();
                let want = if class == NO_CLASS { 0 } else { count };
                if bits != want {
                    return Err("INV-8: a span's bitmap and count differ");
                }
                used_spans += u32::from(class != NO_CLASS);
                if class != NO_CLASS {
                    used_bytes += u64::from(bits) * size_of_class(class as usize) as u64;
                    vacant[class as usize] += objects(class as usize) as u32 - bits;
                }
                records += u64::from(bits);
            }
            if used_spans + 1 != claimed {
                return Err("INV-8: a window's used spans are miscounted");
            }
        }
        let counted = |c: usize| self.vacant[c].load(Ordering::Relaxed);
        if used_bytes != self.used_bytes.load(Ordering::Relaxed)
            || (0..CLASSES).any(|c| vacant[c] != counted(c))
        {
            return Err("INV-8: used or vacant places miscounted");
        }
        if owned != self.owned() { Err("INV-8: owned windows miscounted") } else { Ok(records) }
    }
}

fn offset(h: Handle) -> usize {
    (h.0 as usize) << 4
}

fn span_of(h: Handle) -> SpanId {
    SpanId((offset(h) / SPAN_BYTES) as u32)
}

/// The spans of a window.
pub fn spans_of(w: WindowId) -> impl Iterator<Item = SpanId> {
    (0..SPANS_PER_WINDOW).map(move |i| SpanId(w.0 * SPANS_PER_WINDOW + i))
}

fn window_of(id: SpanId) -> usize {
    (id.0 / SPANS_PER_WINDOW) as usize
}

fn handle_of(id: SpanId, class: usize, object: usize) -> Handle {
    Handle(((id.0 as usize * SPAN_BYTES + object * size_of_class(class)) >> 4) as u64)
}

fn read_u64(b: &[u8]) -> u64 {
    b.first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
}

#[cfg(test)]
mod tests;
