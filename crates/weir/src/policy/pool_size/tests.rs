//! Programs as a rate for each size, run against the control; and each rule at both of its edges.

use super::*;
use crate::limits::LOOK_NS;

const K: u64 = 1000;
/// Windows of the RAM, and the pool's largest share of it.
const RAM: u32 = 800;
const MOST: u32 = 160;

/// A look at a program that has so many millionths of a processor for itself.
fn look(rate: u64, limit: u32) -> Signals {
    Signals {
        elapsed_ns: LOOK_NS,
        own_ns: rate * LOOK_NS / 1_000_000,
        faults: 10_000,
        ram: RAM,
        owned: limit,
        limit,
        most: MOST,
        usable: true,
        plenty: true,
    }
}

/// A program and its pool.
struct World {
    control: PoolSize,
    /// The program's own time with at least so many windows.
    rates: Vec<(u32, u64)>,
}

impl World {
    fn new(rates: &[(u32, u64)]) -> World {
        let mut world = World { control: PoolSize::default(), rates: rates.to_vec() };
        world.looks(1);
        world
    }

    fn limit(&self) -> u32 {
        match self.control.size {
            Size::All => MOST,
            Size::Windows(n) => n,
        }
    }

    fn rate(&self) -> u64 {
        self.rates.iter().find(|(least, _)| self.limit() >= *least).map_or(0, |(_, rate)| *rate)
    }

    fn looks(&mut self, looks: u32) -> u32 {
        (0..looks).for_each(|_| {
            self.control.next(look(self.rate(), self.limit()));
        });
        self.limit()
    }
}

/// In a trial of a smaller pool for so many looks, of a program that had so much before.
fn trial(looks: u32, best: u64, up: bool) -> PoolSize {
    let (size, from) =
        if up { (Size::Windows(80), Size::Windows(40)) } else { (Size::Windows(40), Size::Windows(80)) };
    PoolSize {
        size,
        from,
        phase: Phase::Trial,
        looks,
        best,
        last: best,
        up,
        owned: 40,
        ..PoolSize::default()
    }
}

/// The control after a trial's last look, at which the mean of two looks is this.
fn judged(best: u64, mean: u64, up: bool) -> PoolSize {
    let mut control = PoolSize { last: mean, ..trial(POOL_TRIAL_LOOKS - 1, best, up) };
    control.next(look(mean, 40));
    control
}

#[test]
fn the_pool_goes_to_where_the_program_has_most_time() {
    for (rates, best) in [
        // The graph of F4 with data of 112 and 162 % of the RAM, and a program that wants all for its pool.
        (&[(160, 290 * K), (80, 680 * K), (40, 830 * K), (20, 860 * K), (0, 900 * K)][..], 10),
        (&[(160, 310 * K), (80, 620 * K), (40, 640 * K), (0, 300 * K)], 80),
        (&[(160, 33 * K), (80, 18 * K), (0, 9 * K)], MOST),
    ] {
        let mut world = World::new(rates);
        world.looks(60);
        assert_eq!(world.looks(0), best, "{rates:?}");
    }
}

#[test]
fn the_pool_begins_with_all_and_a_fifth_of_the_ram_is_tried_first() {
    let large = Signals { most: 700, ..look(100 * K, 700) };
    let mut control = PoolSize::default();
    for _ in 0..POOL_REST_LOOKS {
        assert_eq!(control.next(large), Size::All);
    }
    assert_eq!(control.next(large), Size::Windows(RAM / POOL_FIRST_PART));
}

#[test]
fn nothing_is_tried_before_the_first_rest_nor_without_faults() {
    let mut control = PoolSize::default();
    for _ in 0..POOL_REST_LOOKS {
        assert_eq!(control.next(look(100 * K, MOST)), Size::All);
    }
    let mut idle = control;
    assert_eq!(control.next(look(100 * K, MOST)), Size::Windows(80));
    let few = TRIAL_FAULTS_MIN * LOOK_NS / 1_000_000_000;
    assert_eq!(idle.next(Signals { faults: few - 1, ..look(100 * K, MOST) }), Size::All);
    assert_eq!(idle.next(Signals { faults: few, ..look(100 * K, MOST) }), Size::Windows(80));
}

#[test]
fn a_size_is_kept_only_for_a_gain_and_undone_at_a_loss() {
    let (small, large) = (Size::Windows(40), Size::Windows(80));
    let (lost, gained) = (100 - TRIAL_NOISE_PERCENT, 100 + TRIAL_NOISE_PERCENT);
    let after = |percent_of_10, up| {
        let control = judged(1000 * K, percent_of_10 * K, up);
        (control.kept, control.size, control.from)
    };
    let smaller_yet = Size::Windows(20);
    assert_eq!(after(gained * 10, false), (1, smaller_yet, small), "the next step follows at once");
    assert_eq!(after(gained * 10 - 1, false), (0, smaller_yet, large), "even: goes on, is not kept");
    assert_eq!(after(lost * 10, false), (0, smaller_yet, large));
    assert_eq!(after(lost * 10 - 1, false), (0, large, large));
    assert_eq!(after(gained * 10, true).2, large);
    assert_eq!(after(gained * 10 - 1, true), (0, small, small), "a larger one that is even is undone");
}

#[test]
fn smaller_pools_by_which_nothing_is_gained_are_given_back_together() {
    let mut world = World::new(&[(0, 500 * K)]);
    while world.control.phase == Phase::Rest {
        world.looks(1);
    }
    let mut tried = vec![world.limit()];
    while world.control.phase == Phase::Trial {
        let limit = world.looks(1);
        if tried.last() != Some(&limit) {
            tried.push(limit);
        }
    }
    assert_eq!((tried, world.control.kept), (vec![80, 40, 20, 10, POOL_WINDOWS_MIN, MOST], 0));
}

#[test]
fn a_gain_ends_a_trial_early_and_growth_prolongs_it() {
    let mut gains = trial(0, 500 * K, false);
    gains.next(look(900 * K, 40));
    assert_eq!((gains.kept, gains.phase), (0, Phase::Trial), "one look is chance");
    gains.next(look(900 * K, 40));
    assert_eq!(gains.kept, 1);
    let mut grows = PoolSize { last: 100 * K, ..trial(POOL_TRIAL_LOOKS, 500 * K, false) };
    for rate in [110, 125, 140] {
        grows.next(look(rate * K, 40));
        assert_eq!(grows.phase, Phase::Trial);
    }
    assert_eq!((grows.next(look(145 * K, 40)), grows.phase), (Size::Windows(80), Phase::Rest));
}

#[test]
fn a_trial_waits_for_a_pool_that_still_shrinks_and_not_for_one_that_does_not() {
    let mut control = PoolSize { owned: 80, ..trial(0, 500 * K, false) };
    control.next(Signals { owned: 60, ..look(100 * K, 40) });
    assert_eq!(control.looks, 0);
    control.next(Signals { owned: 60, ..look(100 * K, 40) });
    assert_eq!(control.looks, 1);
}

#[test]
fn rests_are_doubled_up_to_the_longest_and_short_again_after_a_gain() {
    let mut world = World::new(&[(MOST, 100 * K), (0, 50 * K)]);
    let mut rests = Vec::new();
    for _ in 0..9 {
        while world.control.phase == Phase::Rest {
            world.looks(1);
        }
        while world.control.phase == Phase::Trial {
            world.looks(1);
        }
        rests.push(world.control.rest);
    }
    assert_eq!(rests, [6, 12, 24, 48, 96, 192, 384, 480, 480]);
    world.rates = vec![(MOST, 100 * K), (0, 500 * K)];
    world.looks(POOL_REST_LOOKS_MAX + 60);
    assert_eq!(world.limit(), 80, "smaller ones gain nothing more");
    assert_eq!(world.control.rest, POOL_REST_LOOKS);
}

#[test]
fn a_program_that_does_as_well_as_ever_with_a_smaller_pool_is_left_alone() {
    let rested = PoolSize { looks: POOL_REST_LOOKS - 1, phase: Phase::Rest, ..trial(0, 1000 * K, true) };
    let after = |rate| {
        let mut control = PoolSize { last: rate, ..rested };
        control.next(look(rate, 80));
        control.phase
    };
    let enough = (100 - TRIAL_NOISE_PERCENT) * 10 * K;
    assert_eq!([after(enough), after(enough - K)], [Phase::Rest, Phase::Trial]);
}

#[test]
fn a_program_that_loses_half_of_its_time_gets_all_for_the_pool_again() {
    let resting = PoolSize { phase: Phase::Rest, rest: 24, ..trial(0, 1000 * K, false) };
    let after = |rate, looks| {
        let mut control = PoolSize { last: rate, ..resting };
        (0..looks).for_each(|_| {
            control.next(look(rate, 40));
        });
        control.size
    };
    let settled = Size::Windows(40);
    assert_eq!([after(500 * K, 20), after(500 * K - 2, POOL_TRIAL_LOOKS - 1)], [settled; 2]);
    assert_eq!(after(500 * K - 2, POOL_TRIAL_LOOKS), Size::All, "for as long as a trial");
}

#[test]
fn sizes_are_all_a_fifth_of_the_ram_and_halves_of_it_and_none_that_the_pool_does_not_notice() {
    let down = |owned, limit| smaller(Signals { owned, ..look(0, limit) });
    assert_eq!(down(700, 700), Some(Size::Windows(RAM / POOL_FIRST_PART)));
    assert_eq!(down(200, 200), Some(Size::Windows(100)), "a step that does not halve shows nothing");
    assert_eq!(down(MOST, MOST), Some(Size::Windows(80)));
    assert_eq!(down(30, MOST), Some(Size::Windows(20)));
    assert_eq!(down(8, 8), Some(Size::Windows(POOL_WINDOWS_MIN)));
    assert_eq!([down(POOL_WINDOWS_MIN, 20), down(POOL_WINDOWS_MIN, POOL_WINDOWS_MIN)], [None, None]);
    assert_eq!(smaller(Signals { plenty: false, ..look(0, MOST) }), None);
    let up = |limit, most| larger(Signals { most, ..look(0, limit) });
    assert_eq!(
        [up(40, 700), up(80, 700), up(81, 700)],
        [Some(Size::Windows(80)), Some(Size::Windows(160)), Some(Size::All)]
    );
    assert_eq!([up(80, MOST), up(MOST, MOST)], [Some(Size::All), None]);
}

#[test]
fn without_faults_after_a_trial_there_is_nothing_left_to_gain() {
    let mut control = PoolSize { last: 0, ..trial(POOL_TRIAL_LOOKS - 1, 1000 * K, false) };
    control.next(Signals { faults: 10, own_ns: 0, ..look(0, 40) });
    assert_eq!((control.kept, control.size, control.phase), (1, Size::Windows(40), Phase::Rest));
}

#[test]
fn where_the_file_takes_nothing_the_pool_has_all_and_a_forked_child_begins_with_what_was_settled() {
    let mut control = PoolSize { rest: 24, ..trial(1, 500 * K, false) };
    let mut child = control;
    child.forked();
    let settled = PoolSize { size: Size::Windows(80), from: Size::Windows(80), ..PoolSize::default() };
    assert_eq!(child, settled);
    child.forked();
    assert_eq!(child, settled, "forked again before its first look");
    for _ in 0..3 {
        assert_eq!(control.next(Signals { usable: false, ..look(500 * K, 40) }), Size::All);
    }
    assert_eq!((control.phase, control.rest, control.looks), (Phase::Rest, 48, 0), "doubled once");
}
