//! Trials of nearness, with faults that come back or do not.

use super::Reach::{Block, Part};
use super::State::{Pooled, Swapped};
use super::*;
use crate::policy::nearness::worth;

/// Visits `blocks` once each, with so many pages that come close together after the first that might
/// bring more. How many visits brought more, and how many did without for the trial.
fn visit(trials: &Trials, reach: Reach, blocks: core::ops::Range<u32>, pages: u32) -> (u32, u32) {
    let (mut brought, mut tried) = (0, 0);
    for block in blocks.map(BlockId) {
        match trials.ask(reach, Pooled, block, 0) {
            Brings::Yes => brought += 1,
            Brings::DoesNotPay => {}
            Brings::Trial => {
                tried += 1;
                (0..=pages).for_each(|n| trials.note(reach, Pooled, n == 0, 1));
            }
        }
    }
    (brought, tried)
}

#[test]
fn where_little_is_saved_bringing_ends_and_where_much_is_it_begins_again() {
    for reach in [Part, Block] {
        let (few, many) = (worth((reach, Pooled)) - 2, worth((reach, Pooled)) + 2);
        let trials = Trials::default();
        let (brought, tried) = visit(&trials, reach, 0..4000, few);
        assert!(brought < 800 && tried > 200, "it ends after some 256 visits: {brought} {tried}");
        assert_eq!(visit(&trials, reach, 4000..8000, few).0, 0);
        let (brought, _) = visit(&trials, reach, 0..8000, many);
        assert!(brought > 7000, "{brought}");
        let (brought, tried) = visit(&trials, reach, 0..8000, many);
        assert!((50..250).contains(&tried) && brought + tried == 8000, "all but those on trial: {tried}");
        let (brought, _) = visit(&trials, reach, 0..8000, few);
        assert!(brought < 2500, "it ends after some 1024: {brought}");
    }
}

#[test]
fn from_the_swap_file_most_must_be_wanted() {
    for reach in [Part, Block] {
        let enough = worth((reach, Swapped));
        assert!(enough > worth((reach, Pooled)));
        for (pages, bring) in [(enough - 1, false), (enough, true)] {
            let trials = Trials::default();
            for _ in 0..=NEAR_TRIALS {
                (0..=pages).for_each(|n| trials.note(reach, Swapped, n == 0, 1));
            }
            let asked = (0..1000).map(|b| trials.ask(reach, Swapped, BlockId(b), 0));
            let brought = asked.filter(|brings| *brings == Brings::Yes).count();
            assert_eq!(brought > 900, bring, "{reach:?} {pages}");
        }
    }
}

#[test]
fn pages_from_the_swap_file_have_trials_of_their_own() {
    let trials = Trials::default();
    visit(&trials, Block, 0..4000, 0);
    let bringing =
        |reach, source| (0..100).filter(|b| trials.ask(reach, source, BlockId(*b), 0) == Brings::Yes).count();
    let free = |reach| {
        (0..100)
            .filter(|b| brings(Finding::default(), (reach, Pooled), BlockId(*b), 0) == Brings::Yes)
            .count()
    };
    assert_eq!(bringing(Block, Pooled), 0);
    assert_eq!([bringing(Block, Swapped), bringing(Part, Pooled)], [free(Block), free(Part)]);
}
