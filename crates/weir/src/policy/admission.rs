//! Admission: which pages are worth a frame. Those that are wanted more often than the ones that would have
//! to go.
//!
//! A fault of an instruction that loads can be answered from the page's record: the instruction gets its
//! value, the page stays where it is, and nobody has to make room. That costs a fraction of what bringing the
//! page costs, if nobody wants it again soon, and comes on top of it if somebody does. So three things are
//! known (in the tables of [`crate::admission`]):
//!
//! - *Pages* whose load was answered lately, when, and how often in a row, in a table like the doorkeeper of
//!   TinyLFU (Einziger, Friedman, Manes, 2017). The time until a page is wanted again is a guess at how often
//!   it is. A small table beside it has the very last ones, whatever is in the large one.
//! - *Victims*: staged pages are those that go next, and a fault on one of them is seen. So it is known how
//!   often a victim is wanted. A page comes in if it was wanted again in a small part of the time that a
//!   victim takes for that, or a few times in a quarter of it: by chance that happens rarely. Where victims
//!   are as warm as what is out, almost nothing comes in, and where nobody wants them any more, whatever is
//!   wanted twice.
//! - *Sites*, the instructions that load: how often pages that they asked for were wanted again at once. One
//!   that reads a word here and a word there is answered; one that begins to read a structure is not. At
//!   first all are unknown, and one fault in [`crate::limits::PROBE_ONE_IN`] is answered to learn.
//!
//! Time is counted in the program's faults.

use crate::config::rules::{Rule, is_on};
use crate::limits::{
    AT_ONCE, AT_ONCE_PER_THREAD, BLAME, BLAME_DISK, BRING_MIX, GOLDEN, OFTEN, SCORE_ANSWERS, SCORE_MAX,
    SELDOM_ONE_IN, WARM_PART, WARM_PART_IF_LEAVING,
};
use crate::page::id::PageId;
use crate::page::state::State;

/// A fault on a page with contents that is out.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Which page.
    pub page: PageId,
    /// Where it is.
    pub source: State,
    /// Now, in the program's faults.
    pub now: u64,
}

/// What speaks against bringing a page.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    /// Victims.
    pub staged: u32,
    /// Pages leave the pool for the swap file.
    pub pool_overflows: bool,
    /// Threads that fault.
    pub faulters: u32,
}

/// What becomes of a page that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A load of it may be answered.
    Open,
    /// It is wanted often enough: it comes in.
    ComesIn,
    /// So is this one, and it was answered a moment ago.
    AtOnce,
}

/// What is known of a page whose load was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Faults since.
    pub age: u64,
    /// Times in a row that it was wanted again in a quarter of a victim's time.
    pub row: u64,
}

/// Whether the page comes in (`Err`), or a load of it may be answered again; then how many times in a row it
/// was wanted soon. `turn`: faults until a victim is wanted again; 0: none ever was, so nothing speaks
/// against bringing the page.
pub fn look(known: Known, source: State, pressure: Pressure, turn: u64) -> Result<u64, Verdict> {
    if !is_on(Rule::VictimTime) {
        return Err(Verdict::ComesIn);
    }
    let soon = known.age <= turn / OFTEN;
    let comes_in =
        turn == 0 || known.age <= turn / part_of(source, pressure) || soon && known.row + 1 >= OFTEN;
    if comes_in { Err(Verdict::ComesIn) } else { Ok(if soon { known.row + 1 } else { 0 }) }
}

/// Whether a page whose load was answered so many faults ago is wanted again at once.
pub fn is_at_once(age: u32, pressure: Pressure) -> bool {
    age <= AT_ONCE.max(AT_ONCE_PER_THREAD * pressure.faulters)
}

/// Whether a load from a page that need not come in is to be answered. `probes`: to learn, whatever is known
/// of the site.
pub fn answers(score: u8, probes: bool, want: Want) -> bool {
    let mixed = want.page.0 ^ (want.now as u32).wrapping_mul(BRING_MIX);
    (probes || is_trusted(score)) && !(is_on(Rule::BringSome) && one_in(SELDOM_ONE_IN, mixed))
}

/// Whether loads of a site with this score are answered.
pub fn is_trusted(score: u8) -> bool {
    score >= SCORE_ANSWERS || !is_on(Rule::SiteScores)
}

/// A site's score after an answer, where it changes.
pub fn praised(score: u8) -> Option<u8> {
    (score < SCORE_MAX).then_some(score + 1)
}

/// A site's score when a page that it was given a value of is wanted again at once.
pub fn blamed(score: u8, source: State) -> u8 {
    score.saturating_sub(if source == State::Swapped { BLAME_DISK } else { BLAME })
}

/// A page from there comes in if it is wanted again in this part of the time that a victim takes.
fn part_of(source: State, pressure: Pressure) -> u64 {
    match source {
        State::Swapped => OFTEN,
        State::Staged => WARM_PART_IF_LEAVING,
        State::Pooled if pressure.pool_overflows => WARM_PART_IF_LEAVING,
        _ => WARM_PART,
    }
}

/// True for one number in so many, in no order, and as often in any part of a row of numbers.
pub fn one_in(many: u32, number: u32) -> bool {
    number.wrapping_mul(GOLDEN) <= u32::MAX / many
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Pressure = Pressure { staged: 1000, pool_overflows: false, faulters: 1 };

    #[test]
    fn a_page_comes_in_when_it_is_wanted_in_a_small_part_of_a_victims_time_or_often_in_a_quarter_of_it() {
        let turn = 1280;
        let at = |age, row, source| look(Known { age, row }, source, USUAL, turn);
        assert_eq!([at(10, 0, State::Pooled), at(11, 0, State::Pooled)], [Err(Verdict::ComesIn), Ok(1)]);
        assert_eq!([at(80, 0, State::Staged), at(81, 0, State::Staged)], [Err(Verdict::ComesIn), Ok(1)]);
        assert_eq!([at(320, 0, State::Swapped), at(321, 0, State::Swapped)], [Err(Verdict::ComesIn), Ok(0)]);
        assert_eq!(
            [at(320, OFTEN - 1, State::Pooled), at(321, OFTEN, State::Pooled)],
            [Err(Verdict::ComesIn), Ok(0)]
        );
        assert_eq!(look(Known { age: 1 << 20, row: 0 }, State::Pooled, USUAL, 0), Err(Verdict::ComesIn));
        let full = Pressure { pool_overflows: true, ..USUAL };
        assert_eq!(look(Known { age: 80, row: 0 }, State::Pooled, full, turn), Err(Verdict::ComesIn));
    }

    #[test]
    fn a_site_is_trusted_after_some_answers_and_loses_trust_by_where_the_page_is() {
        let want = |now| Want { page: PageId(1), source: State::Pooled, now };
        let answered = |score, probes| (0..1000).filter(|now| answers(score, probes, want(*now))).count();
        assert_eq!((answered(SCORE_ANSWERS - 1, false), praised(SCORE_MAX)), (0, None));
        assert!(answered(SCORE_ANSWERS, false) > 950 && answered(0, true) > 950);
        assert_eq!([blamed(20, State::Pooled), blamed(20, State::Swapped)], [18, 10]);
        assert!(is_at_once(AT_ONCE, USUAL) && !is_at_once(AT_ONCE + 1, USUAL));
    }
}
