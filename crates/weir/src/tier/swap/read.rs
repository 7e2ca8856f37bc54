//! Reading records back: one, several that lie together, all of a cluster.

use super::layout::{ALIGN_MAX, CLUSTER_BYTES, Codec};
use super::record::{FOOTPRINT_MAX, HEADER_BYTES, Header, UNIT_BYTES, footprint};
use super::shared::Located;
use super::tier::Swap;
use crate::door::{BlockIo, Read};
use crate::error::SwapError;
use crate::page::{ClusterId, PageId, SwapSlot};
use crate::stats::add;
use weir_os::mem::Buffer;
use weir_os::sys::Errno;

/// Least bytes of a scratch: what one record can touch, with room to go on behind it.
const SCRATCH_BYTES_MIN: usize = 32 << 10;
/// Dead bytes between two records that are read along rather than skipped: less than a request costs.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Records sorted together: a block's pages.
const TOGETHER: usize = 64;
/// Requests made at once.
const REQUESTS: usize = 16;

/// Page-aligned memory to read into, of one thread.
#[derive(Debug)]
pub struct Scratch(Buffer);

impl Scratch {
    /// `bytes` of it, 32 KiB at least; what one call of `read_neighbours` reads at once.
    pub fn new(bytes: usize) -> Result<Scratch, SwapError> {
        let bytes = bytes.max(SCRATCH_BYTES_MIN).next_multiple_of(ALIGN_MAX);
        Buffer::new(bytes, c"weir-scratch").map(Scratch).map_err(SwapError::Memory)
    }
}

/// One request: records `first..end` of the sorted order, from `offset` to `offset + len` of the file.
#[derive(Clone, Copy, Default)]
struct Run {
    first: usize,
    end: usize,
    offset: u64,
    len: usize,
}

type Wanted = (PageId, SwapSlot, Option<Located>);

/// A record that was read although nobody held it: its slot may have been freed and used again since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Where it was named.
    pub slot: SwapSlot,
    generation: u64,
}

impl<D: BlockIo> Swap<D> {
    /// Reads a page's record: its codec and the number of bytes put into `out`, which has room for them
    /// ([`super::record::RECORD_BYTES_MAX`] always suffices).
    pub fn read(
        &self,
        slot: SwapSlot,
        page: PageId,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(Codec, usize), SwapError> {
        self.read_with(slot, page, scratch, |codec, bytes| {
            out[..bytes.len()].copy_from_slice(bytes);
            (codec, bytes.len())
        })
    }

    /// Reads a page's record and lends its bytes where they are.
    pub fn read_with<R>(
        &self,
        slot: SwapSlot,
        page: PageId,
        scratch: &mut Scratch,
        f: impl FnOnce(Codec, &[u8]) -> R,
    ) -> Result<R, SwapError> {
        let at = self.shared.locate(slot).ok_or_else(|| self.damaged())?;
        let (offset, len) = self.span(at.offset, at.offset + footprint(at.len) as u64);
        let place = &mut scratch.0[..len];
        self.counted(1, len, self.dev.read_at(offset, place))?;
        let skip = (at.offset - offset) as usize;
        let bytes = self.open(slot, page, &at, &mut place[skip..skip + footprint(at.len)])?;
        Ok(f(at.codec, bytes))
    }

    /// Reads several records; those that lie together with one request, several requests at once. `each` is
    /// called once per page, in the order in which they lie in the file.
    pub fn read_neighbours(
        &self,
        slots: &[(PageId, SwapSlot)],
        scratch: &mut Scratch,
        mut each: impl FnMut(PageId, SwapSlot, Result<(Codec, &[u8]), SwapError>),
    ) {
        for some in slots.chunks(TOGETHER) {
            let mut wanted: [Wanted; TOGETHER] = [(PageId(0), SwapSlot(0), None); TOGETHER];
            let wanted = &mut wanted[..some.len()];
            for (w, &(page, slot)) in wanted.iter_mut().zip(some) {
                *w = (page, slot, self.shared.locate(slot));
            }
            wanted.sort_unstable_by_key(|w| w.2.map_or(0, |at| at.offset));
            let lost = wanted.iter().take_while(|w| w.2.is_none()).count();
            for &(page, slot, _) in &wanted[..lost] {
                each(page, slot, Err(self.damaged()));
            }
            let mut next = lost;
            while next < wanted.len() {
                let mut runs = [Run::default(); REQUESTS];
                let n = self.plan(wanted, &mut next, scratch.0.len(), &mut runs);
                self.read_runs(wanted, &runs[..n], scratch, &mut each);
            }
        }
    }

    /// Cuts the records from `next` on into as many runs as fit into `room` bytes; how many.
    fn plan(&self, wanted: &[Wanted], next: &mut usize, room: usize, runs: &mut [Run; REQUESTS]) -> usize {
        let (mut n, mut used) = (0, 0);
        while n < REQUESTS {
            let mut run = Run { first: *next, end: *next, ..Run::default() };
            let mut last = 0;
            for at in wanted[run.first..].iter().filter_map(|w| w.2) {
                let end = at.offset + footprint(at.len) as u64;
                let begin = if run.end == run.first { at.offset } else { run.offset };
                let (offset, len) = self.span(begin, end);
                let apart = run.end > run.first && at.offset > last + GAP_BYTES_MAX;
                if apart || used + len > room {
                    break;
                }
                run = Run { end: run.end + 1, offset, len, ..run };
                last = end;
            }
            if run.end == run.first {
                break;
            }
            (runs[n], used, *next) = (run, used + run.len, run.end);
            n += 1;
        }
        n
    }

    fn read_runs(
        &self,
        wanted: &[Wanted],
        runs: &[Run],
        scratch: &mut Scratch,
        each: &mut impl FnMut(PageId, SwapSlot, Result<(Codec, &[u8]), SwapError>),
    ) {
        let mut outcomes = [Ok(()); REQUESTS];
        {
            let mut reads: [Read<'_>; REQUESTS] =
                core::array::from_fn(|_| Read { offset: 0, bytes: &mut [], outcome: Ok(()) });
            let mut rest = &mut scratch.0[..];
            for (read, run) in reads.iter_mut().zip(runs) {
                let (bytes, behind) = rest.split_at_mut(run.len);
                (*read, rest) = (Read { offset: run.offset, bytes, outcome: Ok(()) }, behind);
            }
            self.dev.read_many(&mut reads[..runs.len()]);
            for (outcome, read) in outcomes.iter_mut().zip(&reads) {
                *outcome = read.outcome;
            }
        }
        let mut base = 0;
        for (run, outcome) in runs.iter().zip(outcomes) {
            let outcome = self.counted(run.end - run.first, run.len, outcome);
            let bytes = &mut scratch.0[base..base + run.len];
            for &(page, slot, at) in &wanted[run.first..run.end] {
                let Some(at) = at else { continue };
                let skip = (at.offset - run.offset) as usize;
                let opened = outcome
                    .and_then(|()| self.open(slot, page, &at, &mut bytes[skip..skip + footprint(at.len)]));
                each(page, slot, opened.map(|bytes| (at.codec, bytes)));
            }
            base += run.len;
        }
    }

    /// Reads a cluster and calls `each` for every live record in it, with the page that the slot table knows.
    /// The number of records found; one whose header is damaged is not found. The record may be gone by the
    /// time `each` looks at its page's word, and its slot another's: see [`Swap::is_still`].
    pub fn each_in_cluster(
        &self,
        cluster: ClusterId,
        scratch: &mut Scratch,
        mut each: impl FnMut(PageId, Seen, Result<(Codec, &[u8]), SwapError>),
    ) -> Result<u32, SwapError> {
        let base = u64::from(cluster.0) * CLUSTER_BYTES;
        let (mut at, mut found) = (0, 0);
        while at + HEADER_BYTES < CLUSTER_BYTES as usize {
            // A window that begins at the first unit not looked at yet.
            let start = at & !(self.dev.align() - 1);
            let end = (start + scratch.0.len()).min(CLUSTER_BYTES as usize);
            let window = &mut scratch.0[..end - start];
            self.counted(0, window.len(), self.dev.read_at(base + start as u64, window))?;
            let last = if end == CLUSTER_BYTES as usize { end } else { end - FOOTPRINT_MAX };
            while at < last && at + HEADER_BYTES <= end {
                let place = &mut window[at - start..];
                let Some((slot, located)) = self.live_at(base + at as u64, place) else {
                    at += UNIT_BYTES;
                    continue;
                };
                let size = footprint(located.len).min(place.len());
                let opened = self.open(slot, located.page, &located, &mut place[..size]);
                let seen = Seen { slot, generation: located.generation };
                each(located.page, seen, opened.map(|bytes| (located.codec, bytes)));
                (at, found) = (at + size, found + 1);
            }
            if end == CLUSTER_BYTES as usize {
                break;
            }
        }
        Ok(found)
    }

    /// Whether the slot names the record that was read. True for as long as its page's word names the slot:
    /// under the lock of the page's block.
    pub fn is_still(&self, seen: Seen) -> bool {
        self.shared.locate(seen.slot).is_some_and(|at| at.generation == seen.generation)
    }

    /// The live record that begins at `offset`, if one does: what is read there gives a name, the slot table
    /// says whether it is true.
    fn live_at(&self, offset: u64, bytes: &[u8]) -> Option<(SwapSlot, Located)> {
        let header = Header::parse(bytes)?;
        let at = self.shared.locate(header.slot)?;
        (at.offset == offset && at.generation == header.generation).then_some((header.slot, at))
    }

    /// Checks and decrypts a record in place.
    fn open<'a>(
        &self,
        slot: SwapSlot,
        page: PageId,
        at: &Located,
        place: &'a mut [u8],
    ) -> Result<&'a [u8], SwapError> {
        // The page is the one thing that the slot table may no longer know as it was written.
        let written = Header::parse(place).map(|header| header.page);
        let expected = if at.renamed { written } else { Some(page) };
        let Some(expected) = expected else { return Err(self.damaged()) };
        let (generation, codec, len) = (at.generation, at.codec, at.len);
        let header = Header { slot, page: expected, generation, codec, len };
        self.seal.open(&header, place).ok_or_else(|| self.damaged())
    }

    fn damaged(&self) -> SwapError {
        add(&self.counters.damaged, 1);
        SwapError::Damaged
    }

    fn counted(&self, pages: usize, bytes: usize, outcome: Result<(), Errno>) -> Result<(), SwapError> {
        add(&self.counters.reads, 1);
        match outcome {
            Ok(()) => {
                add(&self.counters.pages_in, pages as u64);
                add(&self.counters.bytes_read, bytes as u64);
                Ok(())
            }
            Err(errno) => {
                add(&self.counters.errors, 1);
                Err(SwapError::Read(errno))
            }
        }
    }

    /// The aligned range around some bytes: (offset, length).
    fn span(&self, begin: u64, end: u64) -> (u64, usize) {
        let align = self.dev.align() as u64;
        let offset = begin & !(align - 1);
        (offset, (end.next_multiple_of(align) - offset) as usize)
    }
}
