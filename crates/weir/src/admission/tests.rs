//! Answered loads: which are answered, and what is remembered of them.

use super::*;
use crate::limits::SCORE_ANSWERS;

const IP: usize = 0x40_1000;
const FRAMES: u32 = 1 << 15;
const USUAL: Pressure = Pressure { staged: 1000, pool_overflows: false, faulters: 1 };

fn admission() -> Admission {
    Admission::new(FRAMES).unwrap()
}

fn want(page: u32, source: State, now: u64) -> Want {
    Want { page: PageId(page), source, now }
}

fn probe(a: &Admission) -> Asker {
    a.ask(IP, 0).expect("the first fault is a probe")
}

/// So many loads from different pages, one after the other.
fn learn(a: &Admission, source: State, loads: u32) {
    (0..loads).for_each(|n| a.answered(want(n, source, u64::from(n)), probe(a)));
}

/// How many of so many loads of pages that were not seen before are answered.
fn answered_of(a: &Admission, source: State, asker: Asker, loads: u32) -> usize {
    (0..loads).filter(|n| a.answers(want((1 << 24) + n, source, u64::from(*n)), asker)).count()
}

/// A hit on a victim that nobody else asks for.
fn hit_victim(a: &Admission, now: u64) {
    a.look(want(u32::MAX - 1 - now as u32, State::Staged, now), USUAL);
}

#[test]
fn an_unknown_site_is_probed_and_answered_once_it_was_seen_to_read_a_word_here_and_there() {
    let a = admission();
    let probes = |of: core::ops::Range<u64>, step: usize| {
        of.step_by(step).filter(|nth| a.ask(IP, *nth).is_some()).count()
    };
    for step in [1, 2, 4, 16] {
        let n = probes(0..16_000, step) * step;
        assert!((800..1200).contains(&n), "every {step}th fault: {n} probes");
    }
    learn(&a, State::Pooled, SCORE_ANSWERS.into());
    let asker =
        (1..).find_map(|nth| a.ask(IP, nth).filter(|asker| !asker.probe[0])).expect("it is known now");
    assert!((985..1000).contains(&answered_of(&a, State::Pooled, asker, 1000)), "some come for a change");
    assert!(a.ask(IP + 1, 1).is_none(), "another is not");
    assert_eq!(answered_of(&a, State::Swapped, asker, 1000), 0, "nor is this one for the swap file");
    let from_disk = |nth: u64| a.ask(IP, nth).is_some_and(|asker| asker.probe[1]);
    let probed = (0..16_000).filter(|nth| from_disk(*nth)).count();
    assert!((45..80).contains(&probed), "{probed} probes");
    let nth = (1..).find(|nth| from_disk(*nth)).unwrap();
    assert!(answered_of(&a, State::Swapped, a.ask(IP, nth).unwrap(), 1000) > 980);
}

#[test]
fn a_site_whose_pages_are_wanted_again_at_once_is_answered_no_more() {
    for (source, returns_one_in, answered) in [
        (State::Pooled, 1, false),
        (State::Pooled, 3, true),
        (State::Swapped, 3, false),
        (State::Swapped, 20, true),
    ] {
        let a = admission();
        learn(&a, source, 100);
        for n in 0..400 {
            let now = 1000 + u64::from(n) * 100;
            a.answered(want(n, source, now), probe(&a));
            if n % returns_one_in == 0 {
                assert_eq!(a.look(want(n, source, now + 1), USUAL), Verdict::AtOnce);
                assert_eq!(a.look(want(n, source, now + 2), USUAL), Verdict::Open, "it is said once");
            }
        }
        assert_eq!(a.ask(IP, 1).is_some(), answered, "{source:?}: one in {returns_one_in} returns");
    }
}

#[test]
fn at_once_is_longer_where_many_threads_fault() {
    let a = admission();
    let many = Pressure { faulters: 60, ..USUAL };
    for (pressure, verdict) in [(USUAL, Verdict::Open), (many, Verdict::AtOnce)] {
        a.answered(want(7, State::Pooled, 10), probe(&a));
        (10..410).for_each(|now| hit_victim(&a, now));
        assert_eq!(a.look(want(7, State::Pooled, 10 + 400), pressure), verdict);
    }
}

/// Of so many wants of pages that are out, chosen by `page`, those that brought theirs, while a victim is
/// wanted every `gap`. What came in is wanted no more, if it `stays`.
fn came_in(wants: u64, gap: u64, stays: bool, mut page: impl FnMut(u64) -> u32) -> u64 {
    let a = admission();
    let (mut inside, mut came) = (std::collections::HashSet::new(), 0);
    for now in 1..=wants {
        if now % gap == 0 {
            hit_victim(&a, now);
        }
        let w = want(page(now), State::Pooled, now);
        if stays && inside.contains(&w.page.0) {
            continue;
        }
        if a.look(w, USUAL) == Verdict::Open && a.answers(w, probe(&a)) {
            a.answered(w, probe(&a));
        } else {
            inside.insert(w.page.0);
            came += 1;
        }
    }
    came
}

fn by_chance(pages: u64) -> impl FnMut(u64) -> u32 {
    let mut x = 1_u64;
    move |_| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((x >> 33) % pages) as u32
    }
}

#[test]
fn where_victims_are_as_warm_as_what_is_out_almost_nothing_comes_in_and_where_they_are_cold_much_does() {
    // Each of 32 thousand pages that are out is as likely as each of a thousand victims.
    let even = came_in(80_000, 32, false, by_chance(32_000));
    assert!(even < 80_000 / 40, "{even}");
    let cold_victims = came_in(80_000, 1 << 20, false, by_chance(32_000));
    assert!(cold_victims > 80_000 / 8, "{cold_victims}");
    let hot = came_in(80_000, 32, false, by_chance(50));
    assert!(hot > 80_000 / 3, "a hundred times as warm as victims: {hot}");
}

#[test]
fn memory_that_is_wanted_in_rounds_comes_in_within_a_few_of_them() {
    let in_rounds = |pages: u32| move |now: u64| (now as u32 % pages).wrapping_mul(5) % pages;
    for (pages, rounds) in [(FRAMES / 4, 4), (FRAMES / 2, 5), (FRAMES - 1, 8)] {
        let came = came_in(u64::from(pages) * rounds, 1 << 20, true, in_rounds(pages));
        assert!(came >= u64::from(pages) * 9 / 10, "{came} of {pages} in {rounds} rounds");
    }
    // Victims that are wanted once while this is wanted ten times.
    let pages = FRAMES / 8;
    let came = came_in(u64::from(pages) * 10, u64::from(pages) / 100, true, in_rounds(pages));
    assert!(came >= u64::from(pages) * 9 / 10, "{came} of {pages}");
}

#[test]
fn without_victims_whatever_is_remembered_comes_in() {
    let a = admission();
    let none = Pressure { staged: 0, ..USUAL };
    a.answered(want(7, State::Pooled, 10), probe(&a));
    assert_eq!(a.look(want(8, State::Pooled, 5000), none), Verdict::Open);
    assert_eq!(a.look(want(7, State::Pooled, 5000), none), Verdict::ComesIn);
    // Victims that were warm a moment ago are remembered.
    (5000..6000).for_each(|now| hit_victim(&a, now));
    a.answered(want(7, State::Pooled, 5001), probe(&a));
    assert_eq!(a.look(want(7, State::Pooled, 6000), none), Verdict::Open);
}

#[test]
fn two_pages_that_share_a_place_and_are_wanted_in_turn_come_in_after_all() {
    let a = admission();
    let at = |page| core::ptr::from_ref(a.place(page).0);
    let other = (2..).find(|page| at(PageId(*page)) == at(PageId(1))).unwrap();
    let mut came = Vec::new();
    for now in 0..40_000 {
        let page = [1, other][now as usize % 2];
        let w = want(page, State::Staged, now);
        if a.look(w, USUAL) == Verdict::Open && a.answers(w, probe(&a)) {
            a.answered(w, probe(&a));
        } else if !came.contains(&page) {
            came.push(page);
        }
    }
    came.sort_unstable();
    assert_eq!(came, [1, other]);
}

#[test]
fn a_page_is_told_from_all_others_that_may_have_its_place() {
    let a = Admission::new(0).unwrap();
    let mut seen = std::collections::HashSet::new();
    for page in (0..u32::MAX).step_by(65_537).chain(0..100_000) {
        let (place, tag) = a.place(PageId(page));
        assert!(seen.insert((core::ptr::from_ref(place), tag)) || page % 65_537 == 0, "page {page}");
    }
}

#[test]
fn times_that_go_back_a_little_are_no_long_gaps() {
    let a = admission();
    for now in [1000, 2000, 1990, 3000, 2995, 4000] {
        hit_victim(&a, now);
    }
    let turn = a.victims.turn(3999, USUAL.staged);
    assert!(turn < 1000 * 1000, "{turn}");
    a.answered(want(7, State::Pooled, 5000), probe(&a));
    assert_eq!(a.look(want(7, State::Pooled, 4995), USUAL), Verdict::AtOnce);
}

#[test]
fn short_turns_are_told_from_none() {
    let a = admission();
    (0..100).for_each(|n| hit_victim(&a, n * 5));
    let turn = a.victims.turn(495, USUAL.staged);
    assert!((4900..=5100).contains(&turn), "{turn}");
}

#[test]
fn a_structure_is_found_out_also_where_all_places_are_taken() {
    let a = admission();
    // Pages read by chance, far more than there are places.
    let mut page = by_chance(1 << 22);
    let mut now = 0;
    for _ in 0..200_000 {
        now += 1;
        a.answered(want(page(now), State::Pooled, now), probe(&a));
    }
    // Another site reads eight words of a page each time.
    let (other, mut answered) = (IP + 0x1234, 0);
    for n in 0..2000 {
        let page = page(n) + (1 << 23);
        for _ in 0..8 {
            now += 1;
            let w = want(page, State::Pooled, now);
            let Some(asker) = a.ask(other, now) else { break };
            if a.look(w, USUAL) != Verdict::Open || !a.answers(w, asker) {
                break;
            }
            a.answered(w, asker);
            answered += 1;
        }
    }
    assert!(answered < 2000, "{answered} answers for 2000 pages");
    assert!((1..100).all(|nth| a.ask(other, nth).is_none_or(|asker| asker.probe[0])), "it is not trusted");
}
