//! What each rule of the policy does, and what is done without it ([`crate::config::rules`]).

use super::admission::{self, Known, Pressure, Verdict, Want, look};
use super::placement::{self, Kept, Placement};
use super::pool_size::{self, PoolSize, Size};
use super::readahead::{Plan, Signals, plan, stride};
use super::victims::{self, Arrival, Pick, Turn};
use super::write_through::{Standing, Totals, WriteThrough};
use crate::config::rules::{Rule, without};
use crate::limits::{LOOK_NS, POOL_REST_LOOKS, SCORE_MAX, THROUGH_LOOK_NS, THROUGH_LOOKS, THROUGH_PAGES_MIN};
use crate::page::id::{BlockId, PageId};
use crate::page::region::Access;
use crate::page::state::State;

/// A fault on a same-filled page, in a block of which nothing is known.
const FAULT: Signals = Signals {
    block: BlockId(10),
    index: 0,
    source: State::Same,
    access: Access::Any,
    remembered: 0,
    before: None,
    after: None,
    again: false,
    loads: false,
    plentiful: false,
    ample: false,
    room: 1 << 20,
    pages: 1 << 20,
};

fn planned(fault: Signals) -> Plan {
    plan(&fault, |_| true)
}

/// Pages that a fault brings with a rule and without it.
fn pages(rule: Rule, fault: Signals) -> (u32, u32) {
    let brought = || planned(fault).mask.count_ones();
    (brought(), without(rule, brought))
}

/// What a block remembers after these faults on it.
fn after(faults: &[u32], access: Access) -> u64 {
    let fault = |remembered, index: &u32| Signals { remembered, index: *index, access, ..FAULT };
    faults.iter().fold(0, |state, index| planned(fault(state, index)).state.unwrap())
}

#[test]
fn without_streams_each_fault_brings_its_page_and_without_the_rest_of_readahead_no_more_than_their_block() {
    let second = Signals { remembered: after(&[0], Access::Any), index: 1, ..FAULT };
    assert_eq!(pages(Rule::Streams, second), (2, 1));
    let wide = Signals { access: Access::Sequential, ..FAULT };
    assert!(planned(wide).ahead.is_some());
    without(Rule::RunAhead, || assert_eq!((planned(wide).ahead, planned(wide).mask), (None, u64::MAX)));
    let swapped = Signals { source: State::Swapped, ..wide };
    assert_eq!(pages(Rule::SwapReadahead, swapped), (64, 1));
    assert_eq!(without(Rule::SwapReadahead, || planned(wide).mask.count_ones()), 64, "from elsewhere");
    let fresh = Signals { source: State::Absent, plentiful: true, ample: true, ..FAULT };
    assert_eq!(pages(Rule::WholeBlocks, fresh), (64, 1));
}

#[test]
fn without_its_exceptions_a_stream_ends_at_what_is_there_and_begins_anew() {
    // The next fault was expected at page 7, which is there.
    let over = Signals { remembered: after(&[0, 1, 3], Access::Any), index: 8, ..FAULT };
    assert_eq!(pages(Rule::PassOver, over), (8, 1));
    let passed = after(&[0], Access::Sequential);
    assert_eq!(pages(Rule::Restart, Signals { remembered: passed, ..FAULT }), (16, 1));
    assert_eq!((stride((300, 5), 300).2, without(Rule::Strides, || stride((300, 5), 300).2)), (16, 0));
}

#[test]
fn without_admission_any_site_is_answered_and_any_page_comes_in_the_second_time() {
    let want = |now| Want { page: PageId(1), source: State::Pooled, now };
    let answered = |score: u8| (0..1000).filter(|now| admission::answers(score, false, want(*now))).count();
    assert_eq!(answered(0), 0);
    assert!(without(Rule::SiteScores, || answered(0)) > 900);
    assert!((900..1000).contains(&answered(SCORE_MAX)));
    assert_eq!(without(Rule::BringSome, || answered(SCORE_MAX)), 1000);
    let pressure = Pressure { staged: 1000, pool_overflows: false, faulters: 1 };
    let late = || look(Known { age: 1 << 20, row: 0 }, State::Pooled, pressure, 1280);
    assert_eq!((late(), without(Rule::VictimTime, late)), (Ok(0), Err(Verdict::ComesIn)));
}

#[test]
fn without_the_rules_of_replacement_there_is_one_queue_and_the_oldest_leaves() {
    let enters = || victims::enters(Arrival::Fetched, false, false);
    assert_eq!((enters(), without(Rule::Probation, enters)), (Pick::Probation, Pick::Main));
    let turn = |early| victims::turn(Pick::Main, 2, early);
    assert_eq!(turn(false), Turn::Waits(Pick::Main, 1));
    without(Rule::References, || {
        assert_eq!([turn(false), turn(true)], [Turn::Leaves, Turn::Waits(Pick::Main, 2)]);
    });
    assert!(victims::is_soon(1, 100) && !without(Rule::RefaultSoon, || victims::is_soon(1, 100)));
}

#[test]
fn without_the_rules_of_the_tiers_pages_stay_where_they_are_and_are_written_when_places_are_needed() {
    let unchanged = || placement::unchanged(Kept::SwapSlot, false, || true, || true);
    assert_eq!(unchanged(), Some(Placement::Pool));
    assert_eq!(without(Rule::PoolSpare, unchanged), Some(Placement::Drop));
    let through = || {
        let mut control = WriteThrough::default();
        let at = |look: u64| Totals {
            now_ns: 1 + look * THROUGH_LOOK_NS,
            evicted: look * THROUGH_PAGES_MIN,
            ..Totals::default()
        };
        let standing = Standing { fill: 1000, room: true };
        (0..=u64::from(THROUGH_LOOKS)).map(|look| control.next(at(look), standing)).last()
    };
    assert_eq!((through(), without(Rule::WriteThrough, through)), (Some(true), Some(false)));
}

#[test]
fn without_its_control_the_pool_may_have_all() {
    let look = pool_size::Signals {
        elapsed_ns: LOOK_NS,
        own_ns: LOOK_NS / 2,
        faults: 1 << 20,
        ram: 800,
        owned: 160,
        limit: 160,
        most: 160,
        usable: true,
        plenty: true,
    };
    let mut control = PoolSize::default();
    let last = (0..=POOL_REST_LOOKS).map(|_| control.next(look)).last();
    assert!(matches!(last, Some(Size::Windows(n)) if n < 160), "{last:?}");
    assert_eq!(without(Rule::PoolSize, || control.next(look)), Size::All);
}
