//! Which block leaves next: two queues in order of arrival, *probation* for blocks seen once and *main* for
//! blocks that came back (after S3-FIFO, Yang et al., SOSP '23, with blocks for objects). There is no
//! accessed bit to consult, so the hit signal is a page taken back while staged, or a fault soon after the
//! block went out. The queues themselves are [`crate::page::resident`].

use crate::config::rules::{Rule, is_on};
use crate::limits::{PROBATION_PART, REFAULT_PART};

/// One of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Of blocks seen once.
    Probation,
    /// Of blocks that came back.
    Main,
}

/// What brought a page in, as far as replacement cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// First touch, or from a tier.
    Fetched,
    /// Taken back while staged: proof of reuse.
    TakenBack,
    /// Its turn to leave came, and some of it could not go.
    Stayed,
}

/// What becomes of the oldest block of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is the victim.
    Leaves,
    /// It waits at the end of this queue, with so many references.
    Waits(Pick, u32),
}

/// The queue that gives the next victim: probation while it holds more than a tenth of the blocks, so that
/// scans pay for themselves; otherwise the main queue.
pub fn choose(probation: u32, main: u32) -> Option<Pick> {
    match (probation, main) {
        (0, 0) => None,
        (0, _) => Some(Pick::Main),
        (_, 0) => Some(Pick::Probation),
        (p, m) if p >= (p + m).div_ceil(PROBATION_PART) => Some(Pick::Probation),
        _ => Some(Pick::Main),
    }
}

/// The queue that a block enters. What is used in order is used `once`: behind the stream it goes first.
pub fn enters(how: Arrival, once: bool, refaulted_soon: bool) -> Pick {
    let main = !once && (how != Arrival::Fetched || refaulted_soon);
    if main || !is_on(Rule::Probation) { Pick::Main } else { Pick::Probation }
}

/// Whether a block that went out so many turns ago would have been a hit, had probation been a main queue's
/// length longer.
pub fn is_soon(turns: u32, blocks: u32) -> bool {
    is_on(Rule::RefaultSoon) && turns < blocks / REFAULT_PART
}

/// What becomes of the oldest block of a queue. `early`: it went out before its turn, so that its place is
/// that of pages that are gone. A reference saved up in the main queue is worth one round of it.
pub fn turn(from: Pick, refs: u32, early: bool) -> Turn {
    match (from, refs) {
        _ if early => Turn::Waits(from, refs),
        (_, 0) => Turn::Leaves,
        _ if !is_on(Rule::References) => Turn::Leaves,
        (Pick::Main, _) => Turn::Waits(Pick::Main, refs - 1),
        (Pick::Probation, _) => Turn::Waits(Pick::Main, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probation_gives_the_victim_while_it_has_a_tenth_of_the_blocks() {
        assert_eq!(choose(0, 0), None);
        assert_eq!([choose(0, 5), choose(5, 0)], [Some(Pick::Main), Some(Pick::Probation)]);
        assert_eq!([choose(10, 90), choose(9, 91)], [Some(Pick::Probation), Some(Pick::Main)]);
    }

    #[test]
    fn what_came_back_enters_the_main_queue_unless_it_is_used_once() {
        use Arrival::{Fetched, Stayed, TakenBack};
        let entered = [Fetched, TakenBack, Stayed].map(|how| enters(how, false, false));
        assert_eq!(entered, [Pick::Probation, Pick::Main, Pick::Main]);
        assert_eq!(
            [enters(Fetched, false, true), enters(TakenBack, true, true)],
            [Pick::Main, Pick::Probation]
        );
        assert!(is_soon(49, 100) && !is_soon(50, 100));
    }

    #[test]
    fn references_are_spent_one_a_round_and_a_block_that_went_early_loses_none() {
        assert_eq!([turn(Pick::Main, 0, false), turn(Pick::Probation, 0, false)], [Turn::Leaves; 2]);
        assert_eq!(turn(Pick::Main, 2, false), Turn::Waits(Pick::Main, 1));
        assert_eq!(turn(Pick::Probation, 2, false), Turn::Waits(Pick::Main, 0));
        assert_eq!(turn(Pick::Probation, 2, true), Turn::Waits(Pick::Probation, 2));
    }
}
