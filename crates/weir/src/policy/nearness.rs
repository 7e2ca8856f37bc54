//! Faults that come close together in a block, in no order: a program at work on a small part of its memory.
//!
//! Such a block is wanted as a whole, soon. One call brings 64 pages for the price of a few faults, while
//! random faults all over the memory must bring one page each. What tells them apart is time, counted in
//! faults of the whole program on pages that are out.
//!
//! Such faults may be all that comes, and nobody sees whether a page that was brought is used. So what
//! bringing saves is looked at where it is not done. A few blocks *do without*: where faults come close
//! together there, each brings its page alone, and what comes is counted ([`crate::trials`]). Where it is too
//! little, all blocks do without until it is more than that again. A search that halves its range faults some
//! five times in the last block of its way, whatever it finds there; work on a small part of the memory
//! faults on most of its pages.

use crate::config::rules::{Rule, is_on};
use crate::limits::{
    NEAR_ALL_AT, NEAR_BLOCKS_PER_FAULT, NEAR_COUNT_BITS, NEAR_MEAN_BITS, NEAR_MIX, NEAR_PART_AT,
    NEAR_PART_PAGES, NEAR_SOON_MAX, NEAR_TIME_BITS, NEAR_WITHOUT_ONE_IN, NEAR_WITHOUT_ONE_IN_IF_PAYS,
    NEAR_WITHOUT_SHIFT, NEAR_WORTH, NEAR_WORTH_SWAPPED,
};
use crate::page::id::{BLOCK_PAGES, BlockId, run_mask};
use crate::page::state::State;

const COUNT_MAX: u32 = (1 << NEAR_COUNT_BITS) - 1;
const PART_SHIFT: u32 = NEAR_COUNT_BITS;
const PART_BITS: u32 = (BLOCK_PAGES / NEAR_PART_PAGES).ilog2();
const TIME_SHIFT: u32 = PART_SHIFT + PART_BITS;
const TIME_MAX: u64 = (1 << NEAR_TIME_BITS) - 1;

/// How much may be brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The pages around: 14 more, when two have come.
    Part,
    /// The rest of the block: 60 more, when four have come.
    Block,
}

/// Pages that must come anyway, for each time that bringing is left out, for bringing to pay.
///
/// From the pool about half of what would be brought: a page that comes along costs a quarter to a third of a
/// fault where a processor is idle, but about one where all are busy making room; and it takes the frame of
/// another. From the swap file the fault that is saved costs a read. But where some of the memory is wanted
/// again and again and almost fits, the frames that are taken decide whether it does, so most of what would
/// be brought must be wanted.
pub const fn worth((reach, source): (Reach, State)) -> u32 {
    let worth = if matches!(source, State::Swapped) { NEAR_WORTH_SWAPPED } else { NEAR_WORTH };
    worth[reach as usize]
}

/// What blocks without it showed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// How many there were. None yet: bringing pays.
    number: u32,
    /// Pages that came for each time, of the last.
    mean: u32,
}

impl Finding {
    /// From the bits of a word.
    pub fn decode(word: u32) -> Finding {
        Finding { number: word >> NEAR_MEAN_BITS, mean: word & ((1 << NEAR_MEAN_BITS) - 1) }
    }

    /// As the bits of a word.
    pub fn encode(self) -> u32 {
        self.number << NEAR_MEAN_BITS | self.mean.min((1 << NEAR_MEAN_BITS) - 1)
    }

    /// The one after this, with so many pages for each time.
    pub fn next(self, mean: u32) -> Finding {
        Finding { number: ((self.number + 1) & (u32::MAX >> NEAR_MEAN_BITS)).max(1), mean }
    }

    fn pays(self, worth: u32) -> bool {
        self.number == 0 || self.mean >= worth
    }
}

/// Whether pages are brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brings {
    /// They are.
    Yes,
    /// They are not: it does not pay.
    DoesNotPay,
    /// They are not, to see what that costs.
    Trial,
}

/// Whether to bring so much with a page from there, at the program's `now`-th fault on pages that are out.
pub fn brings(finding: Finding, of: (Reach, State), block: BlockId, now: u64) -> Brings {
    if !is_on(Rule::NearnessTrials) {
        return Brings::Yes;
    }
    let pays = finding.pays(worth(of));
    match (does_without(block, of.0, (finding.number, pays), now), pays) {
        (true, _) => Brings::Trial,
        (_, false) => Brings::DoesNotPay,
        _ => Brings::Yes,
    }
}

/// Which blocks do without changes with each finding, so that none pays for all, and with the reach.
/// `finding`: its number, and whether it pays.
fn does_without(block: BlockId, reach: Reach, (number, pays): (u32, bool), now: u64) -> bool {
    let one_in = if number > 0 && pays { NEAR_WITHOUT_ONE_IN_IF_PAYS } else { NEAR_WITHOUT_ONE_IN };
    let when = (number << 2 | u32::from(!pays) << 1 | reach as u32).wrapping_mul(NEAR_MIX[0]);
    let turn = ((now >> NEAR_WITHOUT_SHIFT) as u32).wrapping_mul(NEAR_MIX[1]);
    let mixed = (block.0 ^ when ^ turn).wrapping_mul(NEAR_MIX[2]);
    mixed >> (u32::BITS - one_in.ilog2()) == 0
}

/// What a block remembers: faults close together, the part where the first of them came that might bring
/// more, and the time of the last one. 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nearby {
    count: u32,
    part: u32,
    at: u32,
}

/// A fault in a block that does without for a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Of which.
    pub reach: Reach,
    /// Where its page came from.
    pub source: State,
    /// The first of its visit.
    pub first: bool,
}

impl Nearby {
    /// From the bits of a row.
    pub fn decode(bits: u64) -> Nearby {
        let field = |shift: u32, width: u32| (bits >> shift & ((1 << width) - 1)) as u32;
        Nearby {
            count: field(0, NEAR_COUNT_BITS),
            part: field(PART_SHIFT, PART_BITS),
            at: field(TIME_SHIFT, NEAR_TIME_BITS),
        }
    }

    /// As the bits of a row.
    pub fn encode(self) -> u64 {
        u64::from(self.count) | u64::from(self.part) << PART_SHIFT | u64::from(self.at) << TIME_SHIFT
    }

    /// The same at another time: a stream passes.
    pub fn at(self, now: u64) -> Nearby {
        Nearby { at: (now & TIME_MAX) as u32, ..self }
    }

    /// One more fault, at `index`, the program's `now`-th, of a program that has contents in so many blocks.
    pub fn another(self, index: u32, now: u64, blocks: u64) -> Nearby {
        let now = (now & TIME_MAX) as u32;
        let since = u64::from(now.wrapping_sub(self.at)) & TIME_MAX;
        // Threads do not agree about the time: it may seem to go back by a little.
        let (since, now) = match TIME_MAX + 1 - since {
            back if back <= NEAR_SOON_MAX => (back, self.at),
            _ => (since, now),
        };
        let soon = since <= NEAR_SOON_MAX.min(blocks / NEAR_BLOCKS_PER_FAULT);
        // Where work was done on a small part once it may be again.
        let count = if soon { (self.count + 1).min(COUNT_MAX) } else { self.count.min(NEAR_ALL_AT) / 2 };
        let part = if count == NEAR_PART_AT { index / NEAR_PART_PAGES } else { self.part };
        Nearby { count, part, at: now }
    }

    /// The pages to bring with the one at `index`, as far as the trials let it: `ask` says how far.
    pub fn pages(self, ask: impl Fn(Reach) -> Brings, source: State, index: u32) -> (u64, Option<Tried>) {
        let alone = run_mask(index, 1);
        if self.count < NEAR_PART_AT {
            return (alone, None);
        }
        let tried = |reach, first, counts: bool| (alone, counts.then_some(Tried { reach, source, first }));
        match (ask(Reach::Part), ask(Reach::Block)) {
            (Brings::Trial, _) => {
                let first = self.count == NEAR_PART_AT;
                tried(Reach::Part, first, first || index / NEAR_PART_PAGES == self.part)
            }
            (_, Brings::Trial) => tried(Reach::Block, self.count == NEAR_ALL_AT, self.count >= NEAR_ALL_AT),
            (_, Brings::Yes) if self.count >= NEAR_ALL_AT => (u64::MAX, None),
            (Brings::Yes, _) => (run_mask(index / NEAR_PART_PAGES * NEAR_PART_PAGES, NEAR_PART_PAGES), None),
            _ => (alone, None),
        }
    }
}

/// Bits of an encoded [`Nearby`].
pub const BITS: u32 = TIME_SHIFT + NEAR_TIME_BITS;
const _: () =
    assert!(BLOCK_PAGES.is_multiple_of(NEAR_PART_PAGES) && (BLOCK_PAGES / NEAR_PART_PAGES).is_power_of_two());

#[cfg(test)]
mod tests {
    use super::Reach::{Block, Part};
    use super::*;

    const FIRST: (u32, bool) = (0, true);

    /// A block that does without for no trial at first.
    fn free_block() -> BlockId {
        (0..)
            .map(BlockId)
            .find(|b| !does_without(*b, Part, FIRST, 0) && !does_without(*b, Block, FIRST, 0))
            .unwrap()
    }

    /// A block that does without for this trial alone at first.
    fn block_without(reach: Reach) -> BlockId {
        let fits = |b: &BlockId, of| does_without(*b, of, FIRST, 0) == (of == reach);
        (0..).map(BlockId).find(|b| fits(b, Part) && fits(b, Block)).unwrap()
    }

    fn asked(block: BlockId, source: State) -> impl Fn(Reach) -> Brings {
        move |reach| brings(Finding::default(), (reach, source), block, 0)
    }

    #[test]
    fn a_few_blocks_do_without_and_others_after_each_finding_and_for_the_other_reach() {
        let without = |reach, finding: (u32, bool)| {
            (0..16_000).filter(move |b| does_without(BlockId(*b), reach, finding, 0))
        };
        for (finding, least, most) in [
            (FIRST, 900, 1100),
            ((1, false), 900, 1100),
            ((38, false), 900, 1100),
            ((1, true), 200, 300),
            ((38, true), 200, 300),
        ] {
            let n = without(Part, finding).count();
            assert!((least..most).contains(&n), "{finding:?}: {n}");
        }
        let both = |reach, finding| {
            without(Part, FIRST).filter(|b| does_without(BlockId(*b), reach, finding, 0)).count()
        };
        assert!(both(Part, (1, false)) < 200 && both(Block, FIRST) < 200);
        let later = |b: &u32| does_without(BlockId(*b), Part, FIRST, 1 << NEAR_WITHOUT_SHIFT);
        assert!(without(Part, FIRST).filter(later).count() < 200 && (0..16_000).any(|b| later(&b)));
    }

    const MANY: u64 = 1 << 20;

    /// Pages that each of the faults at these times brings, of a block that does without for no trial.
    fn brought(times: &[u64]) -> Vec<u32> {
        let mut seen = Nearby::default();
        let step = |&time: &u64| {
            seen = Nearby::decode(seen.another(37, time, MANY).encode());
            let (pages, tried) = seen.pages(asked(free_block(), State::Pooled), State::Pooled, 37);
            assert_eq!(tried, None);
            pages.count_ones()
        };
        times.iter().map(step).collect()
    }

    #[test]
    fn faults_close_together_bring_more_and_more_of_the_block() {
        assert_eq!(brought(&[1000, 1001, 1030, 1090, 1091]), [1, 1, 16, 16, 64]);
        let mut seen = Nearby::default();
        [1000, 1001, 1002].iter().for_each(|time| seen = seen.another(37, *time, MANY));
        let around = seen.pages(asked(free_block(), State::Pooled), State::Pooled, 37).0;
        assert_eq!(around, 0xffff << 32, "those around it");
    }

    #[test]
    fn faults_far_apart_bring_one_page_each_for_ever() {
        let times: Vec<u64> = (1..100).map(|i| i * 65).collect();
        assert_eq!(brought(&times).iter().max(), Some(&1));
    }

    #[test]
    fn a_block_that_was_wanted_once_comes_sooner_next_time_and_is_forgotten_if_it_was_a_mistake() {
        assert_eq!(brought(&[1, 2, 3, 4, 5, 10_000, 20_000, 30_000])[5..], [16, 1, 1]);
        assert_eq!(brought(&[1, 2, 3, 4, 5, 10_000, 10_001, 10_002])[5..], [16, 16, 64]);
    }

    #[test]
    fn with_few_blocks_chance_brings_faults_close_together() {
        let close = |blocks| Nearby { count: 1, part: 0, at: 10 }.another(0, 20, blocks).count;
        assert_eq!((close(32 * 9), close(32 * 10)), (0, 2));
    }

    #[test]
    fn time_runs_out_of_its_bits_without_harm() {
        let late = Nearby { count: 3, part: 3, at: TIME_MAX as u32 - 1 };
        assert_eq!(late.another(0, TIME_MAX + 3, MANY), Nearby { count: 4, part: 3, at: 2 });
        assert_eq!(Nearby::decode(late.encode()), late);
        assert!(late.encode() < 1 << BITS);
    }

    /// What a block that does without brings at each of these faults, all close together, and what counts for
    /// which trial.
    fn visit_without(reach: Reach, indices: &[u32]) -> Vec<(u32, Option<(Reach, bool)>)> {
        let block = block_without(reach);
        let mut seen = Nearby::default();
        let step = |(time, &index): (usize, &u32)| {
            seen = Nearby::decode(seen.another(index, 1000 + time as u64, MANY).encode());
            let (pages, tried) = seen.pages(asked(block, State::Swapped), State::Swapped, index);
            assert!(tried.is_none_or(|t| t.source == State::Swapped));
            (pages.count_ones(), tried.map(|t| (t.reach, t.first)))
        };
        indices.iter().enumerate().map(step).collect()
    }

    #[test]
    fn a_part_on_trial_counts_what_comes_in_it_and_a_block_what_comes_after_the_fourth() {
        let (begins, goes_on) = (|r| (1, Some((r, true))), |r| (1, Some((r, false))));
        let nothing = (1, None);
        assert_eq!(
            visit_without(Part, &[1, 40, 33, 35, 2, 47, 48]),
            [nothing, nothing, begins(Part), goes_on(Part), nothing, goes_on(Part), nothing]
        );
        assert_eq!(
            visit_without(Block, &[1, 40, 33, 35, 2, 50, 34]),
            [nothing, nothing, nothing, nothing, begins(Block), goes_on(Block), goes_on(Block)]
        );
    }

    #[test]
    fn a_clock_that_seems_to_go_back_makes_nothing_late_and_stays() {
        let seen = Nearby { count: 3, part: 1, at: 1000 };
        assert_eq!(seen.another(0, 995, MANY), Nearby { count: 4, part: 1, at: 1000 });
        assert_eq!(
            seen.another(0, 900, MANY),
            Nearby { count: 1, part: 1, at: 900 },
            "long after: it went round"
        );
    }
}
