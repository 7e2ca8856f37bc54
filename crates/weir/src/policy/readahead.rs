//! Readahead: how much to bring with a faulted page.
//!
//! Unit-stride streams are followed by a small state in every block's row: direction, size (how many pages a
//! fault brings) and the edge where the next fault is expected. A fault at the edge doubles the size, up to
//! the block; a fault elsewhere divides it by [`STREAM_SHRINK`]; a fault at the border of a fresh block
//! inherits the neighbour's stream. So any number of streams is followed at once, forwards and backwards, and
//! a random fault brings one page. Streams that fill whole blocks also run ahead by up to [`DEPTH_MAX`]
//! blocks, after the faulting thread is awake again.
//!
//! Larger strides (a column of a matrix) are followed per thread ([`stride`]).
//!
//! The program's advice goes before all this ([`Access`]): in no order, a fault brings its page alone and is
//! not followed; in order, it brings the rest of the block and runs ahead at once.
//!
//! Nobody sees an access to a page that is there, so what was brought ahead is *unproven* until the stream
//! that brought it is continued: its next fault, at the edge, proves that all before it was used. A block's
//! row counts what is unproven of its stream; blocks fetched ahead pass the count on to the last of them,
//! where the next fault will come.
//!
//! While nothing was ever reclaimed, first touches bring whole blocks: frames are plentiful and a fault costs
//! more than 64 zeroed frames.

use crate::config::rules::{Rule, is_on};
use crate::limits::{
    DEPTH_MAX, FREE_RESERVE, IN_ORDER, PASSED_MAX, STREAM_DEPTH_MAX, STREAM_DEPTH_SHIFT, STREAM_HI_SHIFT,
    STREAM_LO_SHIFT, STREAM_PLACE_MAX, STREAM_RESTART, STREAM_SHRINK, STREAM_SIZE_SHIFT, STRIDE_BITS,
    STRIDE_CONFIRM, STRIDE_PAGES_MAX, STRIDE_SURE_MAX, UNPROVEN_MAX, UNPROVEN_SHIFT,
};
use crate::page::id::{BLOCK_PAGES, BlockId, PageId, run_mask};
use crate::page::region::Access;
use crate::page::state::State;

/// More pages worth fetching once the faulting thread is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// First page.
    pub first: PageId,
    /// Distance to the next, in pages; whole blocks when 1 or -1.
    pub stride: i32,
    /// Number of pages.
    pub count: u32,
    /// Who expects them.
    pub whose: Whose,
    /// The fault was a first touch: what comes next was never touched either, and comes at once
    /// (`fault::first_touches`).
    pub fresh: bool,
}

impl Ahead {
    /// The first block of a stream of first touches, which the faulting thread goes on with, and the others,
    /// for another thread.
    pub fn shared(self) -> (Ahead, Option<Ahead>) {
        if !self.fresh || self.stride != 1 {
            return (self, None);
        }
        (Ahead { count: self.count.min(BLOCK_PAGES), ..self }, self.behind(BLOCK_PAGES))
    }

    /// What is left of a stream that goes forwards, without its first `pages`.
    pub fn behind(self, pages: u32) -> Option<Ahead> {
        let first = PageId(self.first.0 + pages);
        (pages < self.count).then(|| Ahead { first, count: self.count - pages, ..self })
    }
}

/// Who expects pages before anybody faults on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A stream: the state of readahead to leave in whole blocks.
    Stream(u64),
    /// The stride of this row of `fault::strides`.
    Stride(u8),
    /// The program, by advice.
    Program,
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
        let field = |shift: u32, most: u32| (v >> shift) as u32 & most;
        (v & 1 == 1).then_some(Stream {
            backwards: v & 2 != 0,
            size: field(STREAM_SIZE_SHIFT, STREAM_PLACE_MAX),
            lo: field(STREAM_LO_SHIFT, STREAM_PLACE_MAX),
            hi: field(STREAM_HI_SHIFT, STREAM_PLACE_MAX),
            depth: field(STREAM_DEPTH_SHIFT, STREAM_DEPTH_MAX),
        })
    }

    fn encode(self) -> u64 {
        1 | u64::from(self.backwards) << 1
            | u64::from(self.size) << STREAM_SIZE_SHIFT
            | u64::from(self.lo) << STREAM_LO_SHIFT
            | u64::from(self.hi) << STREAM_HI_SHIFT
            | u64::from(self.depth) << STREAM_DEPTH_SHIFT
    }

    fn doubled(self) -> Stream {
        let size = (self.size * 2).min(BLOCK_PAGES);
        let depth = if self.size == BLOCK_PAGES { (self.depth + 1).min(DEPTH_MAX) } else { self.depth };
        Stream { size, depth, ..self }
    }

    /// With its edges moved past pages that were there before it came by, as far as the fault at `index`:
    /// they do not fault.
    fn past(self, index: u32, there: impl Fn(u32) -> bool) -> Stream {
        let (up, down) = (self.hi..index, index + 1..self.lo);
        let passed = |pages: core::ops::Range<u32>| pages.len() <= PASSED_MAX && pages.clone().all(&there);
        match (passed(up), passed(down)) {
            (true, _) if index > self.hi => Stream { hi: index, ..self },
            (_, true) if index + 1 < self.lo => Stream { lo: index + 1, ..self },
            _ => self,
        }
    }

    /// As the program's advice has it.
    fn advised(self, access: Access) -> Stream {
        match access {
            Access::Any => self,
            Access::Random => FRESH,
            Access::Sequential => Stream { size: BLOCK_PAGES, depth: DEPTH_MAX, ..self },
        }
    }

    /// Begun anew after a time: with a part of its size, since others begin at the same places.
    fn again(self) -> Stream {
        if !is_on(Rule::Restart) {
            return Stream { backwards: self.backwards, ..FRESH };
        }
        Stream { size: (self.size / STREAM_RESTART).max(1), depth: 0, ..self }
    }

    /// The page at `index` alone, and the stream as if it had brought no more.
    fn alone(self, index: u32) -> (u64, Stream) {
        (run_mask(index, 1), Stream { lo: index, hi: index + 1, ..self })
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

/// Their bits.
pub const UNPROVEN: u64 = UNPROVEN_MAX << UNPROVEN_SHIFT;
const FRESH: Stream = Stream { backwards: false, size: 1, lo: 0, hi: 0, depth: 0 };

/// What one fault brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Pages of the block.
    pub mask: u64,
    /// What to fetch afterwards.
    pub ahead: Option<Ahead>,
    /// Nothing follows from this fault: the program said that its accesses have no order.
    pub alone: bool,
    /// New state for the block's row, if it changes.
    pub state: Option<u64>,
    /// What the fault proves.
    pub proof: Proof,
}

/// What a fault proves: whose unproven pages were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing.
    Nothing,
    /// Those of the block's own stream: so many.
    Own(u32),
    /// Those of the stream that came from this block.
    Neighbour(BlockId),
}

impl Plan {
    /// The same for other pages.
    pub fn of(self, mask: u64) -> Plan {
        Plan { mask, ..self }
    }

    fn alone(index: u32) -> Plan {
        let mask = run_mask(index, 1);
        Plan { mask, ahead: None, alone: true, state: None, proof: Proof::Nothing }
    }
}

/// Pages of a block's stream that came back and are not proven.
pub fn unproven_of(state: u64) -> u32 {
    ((state & UNPROVEN) >> UNPROVEN_SHIFT) as u32
}

/// The state with so many pages unproven, as far as its bits can count.
pub fn with_unproven(state: u64, pages: u32) -> u64 {
    state & !UNPROVEN | u64::from(pages).min(UNPROVEN_MAX) << UNPROVEN_SHIFT
}

/// What is known of a fault.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Its block.
    pub block: BlockId,
    /// And its page's place there.
    pub index: u32,
    /// Where the page is.
    pub source: State,
    /// What the program said of its accesses.
    pub access: Access,
    /// The state in the block's row.
    pub remembered: u64,
    /// Those of the blocks below and above, if the page next to the fault is in RAM there, and the fault is
    /// at that border.
    pub before: Option<u64>,
    /// As above.
    pub after: Option<u64>,
    /// The page was wanted a moment ago, and its load answered.
    pub again: bool,
    /// Loads are answered here.
    pub loads: bool,
    /// Nothing was ever reclaimed.
    pub plentiful: bool,
    /// There are frames enough for whole blocks of first touches.
    pub ample: bool,
    /// Frames that there are for what comes ahead.
    pub room: u32,
    /// Pages of the space.
    pub pages: u32,
}

/// Decides what a fault brings. `there`: whether a page of the block is resident.
pub fn plan(seen: &Signals, there: impl Fn(u32) -> bool) -> Plan {
    let (index, source) = (seen.index, seen.source);
    if seen.again || source == State::Swapped && !is_on(Rule::SwapReadahead) {
        // Whoever wants another word of a page is where he was: nothing follows from that.
        return Plan::alone(index);
    }
    let (stream, proof) = if is_on(Rule::Streams) { followed(seen, there) } else { (FRESH, Proof::Nothing) };
    let stream = stream.advised(seen.access);
    if seen.access == Access::Random {
        let (mask, stream) = stream.cover(index);
        return Plan { mask, state: Some(stream.encode()), proof, ..Plan::alone(index) };
    }
    // Two pages side by side come by chance too.
    let least = if seen.loads { IN_ORDER } else { 1 };
    let (mut mask, mut stream) = if stream.size < least { stream.alone(index) } else { stream.cover(index) };
    let plentiful = is_on(Rule::WholeBlocks) && source == State::Absent && seen.plentiful;
    if plentiful && seen.ample {
        mask = u64::MAX;
        stream = Stream { backwards: false, size: BLOCK_PAGES, lo: 0, hi: BLOCK_PAGES, ..stream };
    }
    let ahead = (is_on(Rule::RunAhead) && stream.depth > 0 && seen.room > FREE_RESERVE + 2 * BLOCK_PAGES)
        .then(|| ahead_of(seen.block, stream, seen.pages, source == State::Absent))
        .flatten();
    Plan { mask, ahead, alone: false, state: Some(stream.encode()), proof }
}

/// The stream that a fault continues or begins, and what that proves.
fn followed(seen: &Signals, there: impl Fn(u32) -> bool) -> (Stream, Proof) {
    // Where loads are answered the few pages of a block that are out fault again and again, and look like a
    // stream with gaps.
    let passes = |s: &Stream| is_on(Rule::PassOver) && (!seen.loads || s.size >= IN_ORDER);
    let own = Stream::decode(seen.remembered);
    let own = own.map(|s| if passes(&s) { s.past(seen.index, there) } else { s });
    let neighbour = |state: Option<u64>| state.and_then(Stream::decode);
    let (stream, from) = next_stream(own, neighbour(seen.before), neighbour(seen.after), seen.index);
    let proof = match from {
        From::Own => Proof::Own(unproven_of(seen.remembered)),
        From::Before => Proof::Neighbour(BlockId(seen.block.0.wrapping_sub(1))),
        From::After => Proof::Neighbour(BlockId(seen.block.0.wrapping_add(1))),
        From::Nowhere => Proof::Nothing,
    };
    (stream, proof)
}

/// Whether the stream of this state goes backwards.
pub fn goes_backwards(state: u64) -> bool {
    Stream::decode(state).is_some_and(|s| s.backwards)
}

/// The next distance of a thread's faults and how often it was the same, and how many pages to fetch at it,
/// for a fault so far from where the last one was expected.
pub fn stride(last: (i32, u32), delta: i64) -> (i32, u32, u32) {
    let fits = is_on(Rule::Strides) && delta != 0 && delta.abs() < 1 << STRIDE_BITS;
    let (stride, sure) = match fits {
        true if delta == i64::from(last.0) => (last.0, (last.1 + 1).min(STRIDE_SURE_MAX)),
        true => (delta as i32, 0),
        false => (0, 0),
    };
    let doubled = sure.saturating_sub(STRIDE_CONFIRM - 1).min(STRIDE_PAGES_MAX.ilog2());
    (stride, sure, if sure >= STRIDE_CONFIRM { 1 << doubled } else { 0 })
}

/// Where the stream of a fault comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// It begins here.
    Nowhere,
    /// The block's own stream goes on.
    Own,
    /// The stream of the block below enters.
    Before,
    /// The stream of the block above enters.
    After,
}

/// The stream that a fault at `index` continues, or a fresh one. Pure.
fn next_stream(
    own: Option<Stream>,
    before: Option<Stream>,
    after: Option<Stream>,
    index: u32,
) -> (Stream, From) {
    const LAST: u32 = BLOCK_PAGES - 1;
    // The edge of what this block got last.
    if let Some(s) = own {
        let (ahead, behind) = (index == s.hi, index + 1 == s.lo);
        if ahead && !s.backwards || behind && s.backwards {
            return (s.doubled(), From::Own);
        }
        if ahead || behind {
            return (Stream { backwards: behind, size: 2, ..FRESH }, From::Nowhere);
        }
    }
    // A neighbour's stream enters here.
    match (before, after) {
        (Some(s), _) if index == 0 && !s.backwards && s.hi == BLOCK_PAGES => {
            return (s.doubled(), From::Before);
        }
        (_, Some(s)) if index == LAST && s.backwards && s.lo == 0 => return (s.doubled(), From::After),
        _ => {}
    }
    let begun = match own {
        // It starts where it started last time: perhaps the same walk again.
        Some(s) if !s.backwards && index == 0 && s.hi == BLOCK_PAGES => s.again(),
        Some(s) if s.backwards && index == LAST && s.lo == 0 => s.again(),
        // After a scan every block remembers a large size; random faults must not pay for each in turn.
        Some(s) => Stream { backwards: s.backwards, size: (s.size / STREAM_SHRINK).max(1), ..FRESH },
        None => FRESH,
    };
    (begun, From::Nowhere)
}

fn ahead_of(block: BlockId, s: Stream, pages: u32, fresh: bool) -> Option<Ahead> {
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
        whose: Whose::Stream(Stream { size: BLOCK_PAGES, lo: 0, hi: BLOCK_PAGES, ..s }.encode()),
        fresh,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_of(own: Option<Stream>, before: Option<Stream>, after: Option<Stream>, index: u32) -> Stream {
        next_stream(own, before, after, index).0
    }

    fn run(indices: &[u32]) -> (Vec<u32>, Stream) {
        let mut own = None;
        let mut sizes = Vec::new();
        for &i in indices {
            let (mask, s) = stream_of(own, None, None, i).cover(i);
            sizes.push(mask.count_ones());
            own = Some(s);
        }
        (sizes, own.unwrap())
    }

    #[test]
    fn a_forward_stream_doubles_its_size_to_the_block() {
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
            stream_of(Some(s.past(index, |i| in_ram.contains(&i))), None, None, index)
        };
        assert_eq!((at(16, &[]).size, at(18, &[16, 17]).size, at(18, &[17]).size), (16, 16, 1));
        let down = at(5, &[6, 7]);
        assert_eq!((down.size, down.backwards), (2, true));
        assert_eq!(at(5, &[7]).size, 1);
        let all: Vec<u32> = (0..64).collect();
        assert_eq!((at(16 + 8, &all).size, at(16 + 9, &all).size), (16, 1), "only so far");
    }

    #[test]
    fn random_faults_shrink_the_size_to_one_page() {
        let (sizes, _) = run(&[0, 1, 3, 40, 10, 50, 20]);
        assert_eq!(sizes, [1, 2, 4, 1, 1, 1, 1]);
        // After a scan of the whole block the first one still brings a few.
        let (sizes, _) = run(&[0, 1, 3, 7, 15, 31, 63, 5, 40]);
        assert_eq!(sizes[7..], [4, 1]);
    }

    #[test]
    fn a_stream_crosses_into_the_next_block_at_full_size() {
        let left = Stream { backwards: false, size: 64, lo: 0, hi: 64, depth: 1 };
        let s = stream_of(None, Some(left), None, 0);
        assert_eq!((s.size, s.depth), (64, 2));
        let down = Stream { backwards: true, size: 32, lo: 0, hi: 32, depth: 0 };
        let s = stream_of(None, None, Some(down), 63);
        assert_eq!((s.size, s.backwards), (64, true));
        assert_eq!(stream_of(None, Some(left), None, 7), FRESH);
    }

    #[test]
    fn a_second_walk_over_a_block_starts_at_a_quarter_of_the_size() {
        let done = Stream { backwards: false, size: 64, lo: 0, hi: 64, depth: 4 };
        let again = stream_of(Some(done), None, None, 0);
        assert_eq!((again.size, again.depth), (16, 0));
        let (_, s) = again.cover(0);
        assert_eq!(stream_of(Some(s), None, None, 16).size, 32);
        // A backward walk after a forward one: the direction is found at the second fault.
        let (_, s) = stream_of(Some(done), None, None, 63).cover(63);
        assert_eq!(stream_of(Some(s), None, None, 62), Stream { backwards: true, size: 2, ..FRESH });
        let entering = Stream { backwards: true, size: 64, lo: 0, hi: 64, depth: 0 };
        assert!(stream_of(Some(done), None, Some(entering), 63).backwards);
    }

    #[test]
    fn the_state_survives_its_encoding() {
        for s in [FRESH, Stream { backwards: true, size: 64, lo: 3, hi: 64, depth: 4 }] {
            assert_eq!(Stream::decode(s.encode()), Some(s));
        }
        assert_eq!(Stream::decode(0), None);
        // Beside it lies what is unproven.
        let whole = Stream { backwards: true, size: 64, lo: 64, hi: 64, depth: DEPTH_MAX }.encode();
        assert_eq!(whole & UNPROVEN, 0);
    }

    #[test]
    fn a_fault_at_the_edge_proves_what_was_brought_and_no_other_does() {
        let of = |backwards, lo, hi| Some(Stream { backwards, size: hi - lo, lo, hi, depth: 0 });
        let from = |own, before, after, index| next_stream(own, before, after, index).1;
        let (up, down) = (of(false, 8, 16), of(true, 8, 16));
        assert_eq!([16, 7, 17, 8, 0].map(|i| from(up, None, None, i))[..2], [From::Own, From::Nowhere]);
        assert_eq!([16, 7].map(|i| from(down, None, None, i)), [From::Nowhere, From::Own]);
        assert_eq!([17, 8, 0].map(|i| from(up, None, None, i)), [From::Nowhere; 3]);
        assert_eq!(from(up, of(false, 32, 64), None, 0), From::Before);
        assert_eq!(from(up, of(true, 32, 64), None, 0), From::Nowhere, "it went the other way");
        assert_eq!(from(up, None, of(true, 0, 8), 63), From::After);
        assert_eq!(from(of(false, 0, 64), None, None, 0), From::Nowhere, "the same walk again, perhaps");
    }

    #[test]
    fn a_stream_of_first_touches_is_shared_behind_its_first_block_and_no_other_is() {
        let stream = |stride, count, fresh| Ahead {
            first: PageId(640),
            stride,
            count,
            whose: Whose::Stream(0),
            fresh,
        };
        let (mine, others) = stream(1, 4 * BLOCK_PAGES, true).shared();
        assert_eq!((mine.first, mine.count), (PageId(640), 64));
        assert_eq!(others.map(|a| (a.first, a.count, a.fresh)), Some((PageId(704), 192, true)));
        for a in [stream(1, 64, true), stream(1, 256, false), stream(-1, 256, true)] {
            assert_eq!(a.shared(), (a, None));
        }
    }

    #[test]
    fn advice_brings_one_page_or_the_rest_of_the_block() {
        let wide = Stream { backwards: false, size: 16, lo: 0, hi: 16, depth: 2 };
        assert_eq!(wide.advised(Access::Any), wide);
        assert_eq!(wide.advised(Access::Random).cover(16).0, 1 << 16);
        let (mask, s) = FRESH.advised(Access::Sequential).cover(10);
        assert_eq!((mask, s.hi, s.depth), (u64::MAX << 10, 64, DEPTH_MAX));
    }
}
