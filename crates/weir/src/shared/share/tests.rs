//! Programs as a rate for each share, run against the chooser.

use super::*;

const K: u64 = 1000;
const FLOOR: u64 = 1500;
/// Windows of the pool's largest share.
const MOST: u32 = 100;

/// A program and its pool.
struct World {
    chooser: Chooser,
    now_ns: u64,
    /// What the program has for itself with the largest share, halved so often, in millionths; with either zeal. The last is for all smaller ones.
    rates: [[u64; 4]; 2],
    faults: u64,
    /// Windows that the pool would own if it might.
    owned: u32,
    /// Periods that the pool needs to come to its share.
    slow: u32,
    coming: u32,
    threads: u32,
    busy_ns: u64,
    usable: bool,
    zeal_matters: bool,
    /// Windows that the data would fill.
    data: u32,
    /// Of the periods so far, those with each share.
    spent: [u32; 4],
}

/// How often the largest share is halved.
fn step_of(choice: Choice) -> u32 {
    match choice.share {
        ALL => 0,
        48..=99 => 1,
        24 | 25 => 2,
        CLOSED | 6 | 12 => 3,
        share => panic!("{share}"),
    }
}

impl World {
    fn new(rates: [u64; 4]) -> World {
        World {
            chooser: Chooser::default(),
            now_ns: 1_000_000_000,
            rates: [rates; 2],
            faults: 5000,
            owned: MOST,
            slow: 1,
            coming: 0,
            threads: 2,
            busy_ns: PERIOD_NS,
            usable: true,
            zeal_matters: false,
            data: 10 * MOST,
            spent: [0; 4],
        }
    }

    fn choice(&self) -> Choice {
        self.chooser.choice
    }

    fn step(&self) -> u32 {
        step_of(self.choice())
    }

    fn look(&self) -> Look {
        let (gaps, limit) = (self.faults, self.choice().share.min(MOST));
        let rate = self.rates[self.choice().zeal as usize][self.step() as usize];
        Look {
            now_ns: self.now_ns,
            period: Period {
                elapsed_ns: PERIOD_NS,
                between_ns: rate * PERIOD_NS / 1_000_000 + gaps * FLOOR,
                gaps,
                busy_ns: self.busy_ns,
            },
            floor_ns: FLOOR,
            threads: self.threads,
            ram: 5 * MOST,
            data: self.data,
            owned: if self.coming > 0 { MOST } else { self.owned.min(limit) },
            most: MOST,
            limit,
            usable: self.usable,
            plenty: true,
            zeal_matters: self.zeal_matters,
        }
    }

    fn period(&mut self) -> u32 {
        self.now_ns += PERIOD_NS;
        let before = self.choice();
        let after = self.chooser.next(self.look());
        self.coming = if after == before { self.coming.saturating_sub(1) } else { self.slow };
        self.spent[self.step() as usize] += 1;
        self.step()
    }

    /// Runs for so many seconds. The share at the end, but for one on trial.
    fn run(&mut self, seconds: u64) -> u32 {
        (0..seconds * 10).for_each(|_| {
            self.period();
        });
        step_of(self.settled())
    }

    fn settled(&self) -> Choice {
        match self.chooser.phase {
            Phase::Watch => self.choice(),
            _ => self.chooser.trial.from,
        }
    }

    /// Runs until that is so.
    fn run_to(&mut self, phase: Phase) {
        while self.chooser.phase != phase {
            self.period();
        }
    }

    /// Runs until a fall would not be the doing of the last trial.
    fn run_to_rest(&mut self) {
        while self.chooser.phase != Phase::Watch || self.now_ns <= self.chooser.breaks_until_ns {
            self.period();
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.chooser.counts.begun, self.chooser.counts.kept)
    }
}

#[test]
fn the_share_goes_to_where_the_program_has_most_time_step_by_step() {
    // With 20, 10, 5 and 2.5 % of the RAM, as the graph of F4 has it with data of 112, 137 and 162 %.
    for (rates, best) in [
        ([290 * K, 680 * K, 830 * K, 860 * K], &[2, 3][..]), // of two that are even it is either
        ([290 * K, 600 * K, 700 * K, 800 * K], &[3]),
        ([310 * K, 620 * K, 640 * K, 490 * K], &[1, 2]),
        ([150 * K, 280 * K, 25 * K, 26 * K], &[1]),
    ] {
        let mut world = World::new(rates);
        assert!(best.contains(&world.run(8)), "{rates:?}");
        world.run(20);
        world.spent = [0; 4];
        world.run(100);
        let spent: u32 = best.iter().map(|step| world.spent[*step as usize]).sum();
        assert!(spent > 900, "{rates:?}: {:?}", world.spent);
    }
}

#[test]
fn an_even_trial_is_not_undone_and_no_step_is_taken_in_its_direction_at_once() {
    let mut world = World::new([290 * K, 680 * K, 700 * K, 720 * K]);
    world.run_to(Phase::Settle);
    assert_eq!((world.settled().share, world.step()), (ALL, 1));
    world.run_to(Phase::Watch);
    assert_eq!((world.step(), world.counts()), (1, (1, 1)));
    world.run_to(Phase::Settle);
    assert_eq!(world.step(), 2);
    world.run_to(Phase::Watch);
    assert_eq!((world.step(), world.counts()), (2, (2, 1)), "it stays, and is not counted as kept");
    assert!(world.chooser.due_ns > world.now_ns + TRIAL_NS, "and the next comes later");
}

#[test]
fn a_program_that_a_trial_in_vain_broke_goes_the_same_way_again_and_is_left_alone_for_longer() {
    let good = [290 * K, 700 * K, 600 * K, 600 * K];
    let mut world = World::new(good);
    (0..2).for_each(|_| {
        world.run_to(Phase::Settle);
        world.run_to(Phase::Watch);
    });
    assert_eq!((world.step(), world.counts()), (1, (2, 1)), "600 are less than 700");
    let rest = world.chooser.due_ns - world.now_ns;
    // The working set is not together any more, and comes together with all for the pool only.
    world.rates = [[290 * K, 160 * K, 160 * K, 160 * K]; 2];
    while world.choice().share != ALL {
        world.period();
    }
    assert_eq!((world.chooser.breaks, world.chooser.bars), (1, 0));
    world.rates = [good; 2];
    assert_eq!(world.run(8), 1, "not barred");
    while world.counts().0 == 3 {
        world.period();
    }
    world.run_to(Phase::Watch);
    assert_eq!((world.step(), world.counts()), (1, (4, 2)));
    let longer = world.chooser.due_ns - world.now_ns;
    assert!(longer >= rest * 3 / 2, "{longer} after {rest}");
    // What happens later is not the trial's doing.
    world.run_to_rest();
    world.rates = [[290 * K, 160 * K, 160 * K, 160 * K]; 2];
    world.run(3);
    assert_eq!((world.chooser.breaks, world.chooser.bars), (1, 1));
}

#[test]
fn a_program_that_trials_broke_too_often_is_barred_and_one_that_was_eager_may_be_so_again() {
    for (breaks, expected) in [(BREAKS - 1, (BREAKS, 0)), (BREAKS, (BREAKS, 1))] {
        let mut world = World::new([290 * K, 700 * K, 600 * K, 600 * K]);
        (0..2).for_each(|_| {
            world.run_to(Phase::Settle);
            world.run_to(Phase::Watch);
        });
        assert!(world.chooser.frames_pay && world.now_ns < world.chooser.breaks_until_ns);
        world.chooser.breaks = breaks;
        world.rates = [[290 * K, 160 * K, 160 * K, 160 * K]; 2];
        while world.choice().share != ALL {
            world.period();
        }
        assert_eq!((world.chooser.breaks, world.chooser.bars), expected);
        assert_eq!(world.chooser.frames_pay, expected.1 == 0);
    }
    let mut world = World { zeal_matters: true, ..World::new([100 * K, 50 * K, 50 * K, 50 * K]) };
    world.rates[1] = [300 * K, 50 * K, 50 * K, 50 * K];
    while world.counts().1 == 0 {
        world.period();
    }
    assert_eq!(world.choice(), Choice { share: ALL, zeal: Zeal::Eager });
    world.run_to(Phase::Settle);
    world.rates[1] = [50 * K; 4];
    while world.choice().zeal == Zeal::Eager {
        world.period();
    }
    assert!(!world.chooser.frames_pay, "no smaller pool was ever worth it");
    world.rates[1] = [300 * K, 50 * K, 50 * K, 50 * K];
    while world.choice().zeal == Zeal::Frugal {
        world.period();
        assert!(world.counts().0 < 20, "eagerness is never tried again");
    }
}

#[test]
fn a_smaller_pool_that_helps_only_when_it_is_much_smaller_is_found_if_the_pool_is_small() {
    let mut world = World::new([480 * K, 470 * K, 490 * K, 760 * K]);
    assert_eq!(world.run(15), 3);
}

#[test]
fn a_program_that_wants_all_for_its_pool_loses_little_by_trials() {
    let mut world = World::new([33 * K, 18 * K, 12 * K, 9 * K]);
    world.run(10);
    assert!(world.spent[0] >= 85, "{:?}", world.spent);
    world.spent = [0; 4];
    world.run(120);
    assert!(world.spent[0] >= 1150, "{:?}", world.spent);
    assert_eq!(world.counts().1, 0);
}

#[test]
fn no_step_is_more_than_an_eighth_of_the_ram_nor_below_what_there_is() {
    let next = |share: u32, owned: u32, up: bool, far: bool| {
        let choice = Choice { share, zeal: Zeal::Frugal };
        let mut chooser = Chooser { choice, up, far, ..Chooser::default() };
        let look = Look {
            ram: 1000,
            data: 2000,
            most: 900,
            owned,
            limit: share.min(900),
            plenty: true,
            ..Look::default()
        };
        (chooser.next_step(look), chooser.up)
    };
    assert_eq!(next(ALL, 900, false, false), (Some(775), false));
    assert_eq!(next(775, 775, false, false), (Some(650), false));
    assert_eq!(next(100, 100, false, false), (Some(56), false), "a sixteenth of the largest is the least");
    assert_eq!(next(56, 56, false, false), (Some(112), true), "there only the other way is left");
    assert_eq!(next(650, 650, true, false), (Some(775), true));
    assert_eq!(next(700, 700, true, false), (Some(ALL), true), "almost all is all");
    assert_eq!(next(ALL, 900, true, false), (Some(775), false), "and here");
    assert_eq!(next(ALL, 400, false, false), (Some(275), false), "below what it owns");
    assert_eq!(next(ALL, 50, false, false), (None, false), "and that is less than the least");
    assert_eq!(next(ALL, 900, false, true), (Some(775), false), "far is for small pools");
    assert_eq!(next(ALL, 240, false, true), (Some(56), false));
}

#[test]
fn what_gains_less_than_it_must_is_not_kept() {
    let mut world = World::new([100 * K, 107 * K, 107 * K, 107 * K]);
    world.run(60);
    assert_eq!((step_of(world.settled()), world.counts().1), (0, 0));
    assert!(world.counts().0 > 1);
    let mut world = World::new([100 * K, 108 * K, 108 * K, 108 * K]);
    world.run(5);
    assert_eq!((step_of(world.settled()), world.counts().1), (1, 1));
}

#[test]
fn one_period_more_than_before_on_average_is_not_enough_each_must_be() {
    let mut world = World::new([100 * K, 150 * K, 150 * K, 150 * K]);
    world.run_to(Phase::Measure);
    for n in 0..40 {
        world.rates[0][1] = if n % 4 == 3 { 90 * K } else { 150 * K };
        world.period();
        assert_eq!(world.counts().1, 0, "{n}");
    }
}

#[test]
fn nothing_is_tried_before_the_program_has_faulted_for_a_while_steadily_with_a_pool_worth_it() {
    let mut first = World::new([100 * K; 4]);
    first.run(3);
    assert_eq!(first.counts().0, 0);
    first.run(1);
    assert_eq!(first.counts().0, 1);
    let few = FAULTS_MIN / 10 - 1;
    let mut idle = World { faults: few, ..World::new([100 * K; 4]) };
    let mut empty = World { owned: MOST / 16, ..World::new([100 * K; 4]) };
    idle.run(20);
    empty.run(20);
    assert_eq!((idle.counts().0, empty.counts().0), (0, 0));
    let mut wild = World::new([0; 4]);
    for n in 0..200 {
        wild.rates = [[if n % 2 == 0 { 40 * K } else { 130 * K }; 4]; 2];
        wild.period();
    }
    assert_eq!(wild.counts().0, 0);
}

#[test]
fn a_trial_that_goes_badly_ends_at_once_and_the_next_comes_later_each_time() {
    let mut world = World::new([100 * K, 69 * K, 69 * K, 69 * K]);
    let (mut begun, mut lasted) = (Vec::new(), 0);
    for _ in 0..3000 {
        let before = world.counts().0;
        world.period();
        if world.counts().0 > before {
            begun.push(world.now_ns);
        }
        lasted += u64::from(world.chooser.phase == Phase::Measure);
    }
    assert_eq!(lasted, world.counts().0 * PERIODS as u64, "the fewest periods");
    let rests: Vec<u64> = begun.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(rests.len() > 2 && rests.windows(2).all(|two| two[1] > two[0]), "{rests:?}");
    let neither = |rate: u64| {
        let mut world = World::new([100 * K, rate, rate, rate]);
        world.run_to(Phase::Settle);
        let since = world.now_ns;
        world.run_to(Phase::Watch);
        world.now_ns - since
    };
    assert!(neither(71 * K) >= TRIAL_NS && neither(69 * K) < TRIAL_NS, "a doubtful one gets more time");
}

#[test]
fn a_trial_goes_on_while_the_programs_time_grows_but_not_for_ever() {
    let grow = |factor: u64| {
        let mut world = World::new([100 * K, 20 * K, 20 * K, 20 * K]);
        world.run_to(Phase::Measure);
        let since = world.chooser.trial.measured_since_ns;
        while world.chooser.phase == Phase::Measure {
            world.rates[0][1] = world.rates[0][1] * factor / 100;
            world.period();
        }
        (world.now_ns - since, world.counts().1)
    };
    let (took, kept) = grow(105);
    assert!((TRIAL_NS_MAX..TRIAL_NS_MAX + 2 * PERIOD_NS).contains(&took) && kept == 1, "{took} {kept}");
    let (took, kept) = grow(101);
    assert!(took < TRIAL_NS && kept == 0, "{took} {kept}");
}

#[test]
fn a_pool_that_does_not_come_to_its_share_ends_the_trial() {
    let mut world = World { slow: u32::MAX, ..World::new([100 * K, 200 * K, 200 * K, 200 * K]) };
    world.run_to(Phase::Settle);
    world.run(3);
    assert_eq!(world.step(), 1);
    world.run(1);
    assert_eq!((world.step(), world.counts().1), (0, 0));
}

#[test]
fn a_trial_without_faults_is_kept_if_the_program_is_as_busy_and_called_off_if_it_is_idle() {
    for (busy_ns, kept) in [(PERIOD_NS, 1), (PERIOD_NS * 8 / 10, 0)] {
        let mut world = World::new([100 * K; 4]);
        world.run_to(Phase::Measure);
        (world.faults, world.busy_ns) = (0, busy_ns);
        world.run_to(Phase::Watch);
        assert_eq!((world.counts().1, u64::from(world.step())), (kept, kept));
    }
}

#[test]
fn a_trial_is_called_off_when_other_threads_fault() {
    for phase in [Phase::Settle, Phase::Measure] {
        let mut world = World { slow: 5, ..World::new([100 * K, 200 * K, 200 * K, 200 * K]) };
        world.run_to(phase);
        world.threads = 6;
        assert_eq!(
            (world.period(), world.chooser.phase == phase),
            (1, true),
            "one of three is missed now and then"
        );
        world.threads = 7;
        assert_eq!((world.period(), world.chooser.phase), (0, Phase::Watch), "{phase:?}");
        let began = world.counts().0;
        world.run(2);
        assert_eq!(world.counts().0, began, "and comes again later");
        assert!(world.run(4) >= 1);
    }
}

#[test]
fn another_program_is_a_new_beginning_and_a_swap_file_that_takes_nothing_an_end() {
    let mut world = World::new([33 * K, 18 * K, 12 * K, 9 * K]);
    world.run(200);
    let begun = world.counts().0;
    world.rates = [[290 * K, 600 * K, 700 * K, 800 * K]; 2];
    assert_eq!(world.run(12), 3, "although the last trials were in vain");
    assert!(world.counts().0 > begun);
    world.usable = false;
    assert_eq!(world.period(), 0);
    assert_eq!(world.run(10), 0);
    world.usable = true;
    assert_eq!(world.run(12), 3);
    world.rates = [[800 * K, 300 * K, 200 * K, 100 * K]; 2];
    assert_eq!(world.run(30), 0, "and back");
}

#[test]
fn zeal_is_tried_first_where_it_matters_and_kept_where_it_helps() {
    let rates = [[100 * K, 50 * K, 50 * K, 50 * K], [300 * K, 150 * K, 150 * K, 150 * K]];
    let with = |matters: bool, rates| {
        let mut world = World { rates, zeal_matters: matters, ..World::new([0; 4]) };
        world.run(5);
        (world.settled().zeal, world.counts().1)
    };
    assert_eq!(with(true, rates), (Zeal::Eager, 1));
    assert_eq!(with(false, rates), (Zeal::Frugal, 0));
    assert_eq!(with(true, [rates[1], rates[0]]), (Zeal::Frugal, 0));
    // In vain: another share is next.
    let mut world = World { zeal_matters: true, ..World::new([100 * K, 200 * K, 200 * K, 200 * K]) };
    assert_eq!(world.run(15), 1);
    assert_eq!(world.settled().zeal, Zeal::Frugal);
    // And back, when it no longer helps.
    let mut world = World { rates, zeal_matters: true, ..World::new([0; 4]) };
    world.run(5);
    world.rates = [[100 * K; 4], [50 * K; 4]];
    world.run(10);
    assert_eq!(world.settled().zeal, Zeal::Frugal);
}

#[test]
fn the_kernels_part_counts_for_both_as_it_is_known_at_the_end() {
    // Faults are as frequent in the trial, and the program has as little time for itself; only the floor was thought higher before.
    let mut world = World::new([5 * K; 4]);
    world.run_to(Phase::Settle);
    for _ in 0..30 {
        world.now_ns += PERIOD_NS;
        let mut look = world.look();
        look.owned = look.owned.min(look.limit);
        look.floor_ns = FLOOR / 2;
        world.chooser.next(look);
    }
    assert_eq!(world.counts().1, 0);
}

#[test]
fn a_program_that_falls_with_a_small_pool_gets_it_all_back_and_does_not_go_there_soon() {
    let good = [150 * K, 280 * K, 400 * K, 600 * K];
    let mut world = World::new(good);
    assert_eq!(world.run(15), 3);
    // Its working set no longer fits, and with a small pool nothing brings it together again.
    let share = world.settled().share;
    world.run_to_rest();
    world.rates = [[150 * K, 280 * K, 400 * K, 60 * K]; 2];
    let fell = world.now_ns;
    while world.choice().share != ALL {
        world.period();
    }
    assert!(world.now_ns - fell < 3_000_000_000);
    assert_eq!(world.run(20), 2, "one that is less small it may have");
    world.rates = [good; 2];
    let barred = world.now_ns;
    while world.settled().share > share {
        world.period();
    }
    assert!(world.now_ns - fell >= BAR_NS && world.now_ns > barred, "{}", world.now_ns - fell);
    world.run_to_rest();
    world.rates = [[150 * K, 280 * K, 400 * K, 60 * K]; 2];
    world.run(30);
    let again = world.now_ns;
    world.rates = [good; 2];
    while world.settled().share > share {
        world.period();
    }
    assert!(world.now_ns - again > BAR_NS * 3 / 2, "longer each time");
}

#[test]
fn what_comes_right_after_a_trial_in_vain_is_not_taken_for_the_program() {
    let mut world = World::new([100 * K, 60 * K, 60 * K, 60 * K]);
    world.run_to(Phase::Measure);
    world.run_to(Phase::Watch);
    let known = world.chooser.known;
    world.rates = [[30 * K; 4]; 2];
    let took = world.chooser.settles_until_ns - world.now_ns;
    assert!(took >= SETTLE_NS + 4 * PERIOD_NS);
    for _ in 0..took / PERIOD_NS - 1 {
        world.period();
        assert_eq!((world.chooser.known, world.chooser.periods.n), (known, 0));
    }
    world.run(1);
    assert_ne!(world.chooser.known, known, "it is another one indeed");
}

#[test]
fn zeal_that_makes_a_difference_now_and_then_is_not_tried() {
    let with = |one_in: u64| {
        let mut world = World::new([100 * K, 50 * K, 50 * K, 50 * K]);
        world.rates[1] = [300 * K; 4];
        for n in 0..60 {
            world.zeal_matters = n % one_in == 0;
            world.period();
        }
        world.settled().zeal
    };
    assert_eq!([with(2), with(4)], [Zeal::Eager, Zeal::Frugal]);
}

#[test]
fn where_threads_fault_no_more_the_process_must_stay_busy() {
    for (busy_ns, kept) in [(PERIOD_NS, 1), (PERIOD_NS / 2, 0)] {
        let mut world = World { threads: 16, ..World::new([500 * K; 4]) };
        world.run_to(Phase::Measure);
        world.rates = [[60 * K; 4]; 2];
        (world.threads, world.busy_ns) = (2, busy_ns);
        world.run_to(Phase::Watch);
        assert_eq!(world.counts(), (1, kept));
        let share = world.choice().share;
        world.run(2);
        assert_eq!((world.choice().share, share != ALL, world.chooser.bars), (share, kept == 1, 0));
    }
}

#[test]
fn a_program_whose_faults_become_few_and_slow_is_seen_to_fall() {
    let mut world = World::new([150 * K, 280 * K, 400 * K, 600 * K]);
    assert_eq!(world.run(15), 3);
    world.run_to_rest();
    (world.faults, world.rates) = (FAULTS_MIN / 20, [[30 * K; 4]; 2]);
    world.run(3);
    assert_eq!((world.choice().share, world.chooser.bars), (ALL, 1));
}

#[test]
fn a_fall_ends_eagerness_as_well() {
    let rates = [[100 * K; 4], [300 * K; 4]];
    let mut world = World { rates, zeal_matters: true, owned: 0, ..World::new([0; 4]) };
    world.run(5);
    assert_eq!((world.settled().zeal, world.settled().share), (Zeal::Eager, ALL));
    world.rates = [[100 * K; 4], [50 * K; 4]];
    world.zeal_matters = false; // no trial of it comes first
    world.run_to(Phase::Watch);
    world.run(6);
    assert_eq!((world.settled().zeal, world.chooser.bars), (Zeal::Frugal, 0));
}

#[test]
fn a_standstill_calls_a_trial_off_and_the_chooser_is_not_dead_for_as_long() {
    for phase in [Phase::Settle, Phase::Measure] {
        let mut world = World { slow: 5, ..World::new([100 * K, 200 * K, 200 * K, 200 * K]) };
        world.run_to(phase);
        world.now_ns += 3_600_000_000_000;
        let mut look = world.look();
        look.period.elapsed_ns = 3_600_000_000_000;
        assert_eq!(world.chooser.next(look), Choice::default());
        assert!(world.run(10) >= 1);
    }
}

#[test]
fn a_forked_child_goes_on_with_what_was_settled_and_knows_nothing() {
    let mut world = World::new([100 * K, 200 * K, 200 * K, 200 * K]);
    world.run(6);
    world.run_to(Phase::Settle);
    let (from, counts) = (world.chooser.trial.from, world.chooser.counts);
    world.chooser.forked();
    assert_eq!(world.chooser, Chooser { choice: from, counts, ..Chooser::default() });
    assert_ne!(from, Choice::default());
}

#[test]
fn trials_that_are_called_off_come_later_each_time() {
    let mut world = World::new([100 * K; 4]);
    let mut begun: Vec<u64> = Vec::new();
    for _ in 0..4 {
        world.run_to(Phase::Settle);
        begun.push(world.now_ns);
        world.threads = 20;
        world.run_to(Phase::Watch);
        world.threads = 2;
    }
    let rests: Vec<u64> = begun.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(rests.windows(2).all(|two| two[1] > two[0] * 3 / 2), "{rests:?}");
}

#[test]
fn a_pool_that_shrinks_slowly_is_judged_by_how_far_it_came() {
    let mut world = World::new([100 * K, 200 * K, 200 * K, 200 * K]);
    world.run_to(Phase::Settle);
    for n in 0..80 {
        world.now_ns += PERIOD_NS;
        let mut look = world.look();
        look.owned = MOST - n;
        look.period.between_ns += 20_000_000;
        world.chooser.next(look);
        if world.chooser.phase == Phase::Watch {
            break;
        }
    }
    let share = world.choice().share;
    assert_eq!(world.counts(), (1, 1));
    assert!((60..80).contains(&share), "{share}");
}

#[test]
fn without_room_in_the_file_no_pool_is_made_smaller() {
    let mut chooser = Chooser::default();
    let look =
        Look { ram: 1000, data: 2000, most: 900, owned: 900, limit: 900, plenty: false, ..Look::default() };
    assert_eq!(chooser.next_step(look), None);
    assert_eq!(chooser.next_step(Look { plenty: true, ..look }), Some(775));
}

#[test]
fn gains_of_almost_nothing_are_noise() {
    let gain = |before: u64, after: u64| {
        let mut world = World::new([before, after, after, after]);
        world.run(6);
        world.counts()
    };
    assert_eq!(gain(500, 500 + GAIN_MIN - 1), (1, 0));
    assert_eq!(gain(500, 500 + GAIN_MIN).1, 1);
}

#[test]
fn data_that_hardly_exceeds_the_ram_is_tried_without_a_pool_at_once() {
    let mut world = World::new([290 * K, 100 * K, 100 * K, 800 * K]);
    (world.data, world.zeal_matters) = (5 * MOST / 4, true);
    world.run_to(Phase::Settle);
    assert_eq!((world.step(), world.choice().zeal), (1, Zeal::Frugal), "not zeal");
    let began = world.now_ns;
    world.run_to(Phase::Measure);
    let took = world.now_ns - began;
    assert_eq!(world.choice().share, CLOSED, "the shares between are not judged");
    assert!((3 * DWELL_NS..5 * DWELL_NS).contains(&took), "{took}");
    world.run_to(Phase::Watch);
    let kept = world.now_ns;
    assert_eq!((world.counts(), world.step()), ((1, 1), 3));
    world.run_to(Phase::Settle);
    assert!(world.now_ns - kept >= FAR_NS * FAR_RESTS, "{} ns", world.now_ns - kept);
}

#[test]
fn without_a_pool_it_may_be_bad_at_first_and_if_it_stays_so_the_usual_steps_follow() {
    let mut world = World::new([600 * K, 620 * K, 600 * K, 100 * K]);
    world.data = 6 * MOST;
    world.run_to(Phase::Measure);
    let began = world.now_ns;
    world.run_to(Phase::Watch);
    let took = world.now_ns - began;
    assert!((FAR_NS / 2..FAR_NS / 2 + 2 * PERIOD_NS).contains(&took), "{took}: it will not become more");
    assert_eq!((world.counts(), world.step()), ((1, 0), 0));
    assert!(world.chooser.due_ns < world.now_ns + 2 * FAR_NS, "the usual steps follow soon");
    world.run_to(Phase::Settle);
    assert_eq!(world.step(), 1);
    // In the beginning it is bad, and then it is not.
    let mut world = World::new([600 * K, 620 * K, 600 * K, 220 * K]);
    world.data = 6 * MOST;
    world.run_to(Phase::Measure);
    (0..35).for_each(|_| assert!(world.period() == 3 && world.choice().share == CLOSED));
    world.rates[Zeal::Frugal as usize][3] = 900 * K;
    world.run_to(Phase::Watch);
    assert_eq!((world.counts(), world.step()), ((1, 1), 3));
}

#[test]
fn zeal_has_its_turn_where_no_leap_is_possible_and_data_that_grows_after_one_brings_the_pool_back() {
    let mut world = World::new([500 * K; 4]);
    (world.data, world.zeal_matters, world.owned) = (5 * MOST, true, 5);
    world.run_to(Phase::Settle);
    assert_eq!((world.step(), world.choice().zeal), (0, Zeal::Eager));

    let mut world = World::new([290 * K, 100 * K, 700 * K, 800 * K]);
    world.data = 5 * MOST;
    world.run_to(Phase::Settle);
    world.run_to(Phase::Watch);
    assert_eq!((world.counts(), world.step()), ((1, 1), 3));
    world.data = 10 * MOST;
    let grown = world.now_ns;
    world.run_to(Phase::Settle);
    assert!(world.now_ns - grown < FIRST_NS + 10 * PERIOD_NS && world.chooser.up);
    assert_eq!(world.choice().share, ALL);
}

#[test]
fn a_leap_that_is_spoiled_is_made_once_more() {
    let mut world = World::new([500 * K; 4]);
    world.data = 5 * MOST;
    for leaps in 1..=4 {
        world.run_to(Phase::Measure);
        assert_eq!(world.step() == 3, leaps <= LEAPS, "{leaps}");
        world.threads = if world.threads == 2 { 40 } else { 2 }; // others, and other ones
        world.run_to(Phase::Watch);
        world.threads = 2;
    }
}

/// A world in which one of two threads runs without a fault for so many periods.
fn with_one_unseen(periods: usize, busy_ns: u64) -> World {
    let mut world = World::new([290 * K, 100 * K, 100 * K, 800 * K]);
    (world.data, world.busy_ns) = (5 * MOST / 4, 3 * PERIOD_NS / 2);
    world.run_to(Phase::Settle);
    world.run_to(Phase::Watch);
    assert_eq!((world.counts(), world.choice().share), ((1, 1), CLOSED));
    (0..5).for_each(|_| assert_eq!(world.period(), 3));
    (world.rates[0][3], world.threads, world.busy_ns) = (20 * K, 1, busy_ns);
    (0..periods).for_each(|_| {
        world.period();
    });
    (world.rates[0][3], world.threads, world.busy_ns) = (800 * K, 2, 3 * PERIOD_NS / 2);
    world.run(2);
    world
}

#[test]
fn a_thread_that_runs_without_a_fault_for_a_while_is_no_fall() {
    let kept = |world: World| (world.choice().share, world.chooser.bars);
    assert_eq!(kept(with_one_unseen(6, 3 * PERIOD_NS / 2)), (CLOSED, 0));
    // For longer, or with nobody who runs, it is one.
    assert_eq!(kept(with_one_unseen(UNSEEN_MAX as usize + 10, 3 * PERIOD_NS / 2)), (ALL, 1));
    assert_eq!(kept(with_one_unseen(6, PERIOD_NS / 2)), (ALL, 1));
}

#[test]
fn periods_that_do_not_show_what_the_program_has_spoil_no_trial() {
    let run = |busy_ns: u64| {
        let mut world = World::new([290 * K, 100 * K, 100 * K, 800 * K]);
        world.data = 5 * MOST / 4;
        world.run_to(Phase::Measure);
        for n in 0..12 {
            let unseen = n % 3 == 1;
            (world.rates[0][3], world.threads) = if unseen { (20 * K, 1) } else { (800 * K, 2) };
            world.busy_ns = if unseen { busy_ns } else { PERIOD_NS };
            world.period();
            if world.chooser.phase == Phase::Watch {
                break;
            }
        }
        world.counts()
    };
    assert_eq!(run(PERIOD_NS), (1, 1));
    assert_eq!(run(PERIOD_NS / 2), (1, 0), "nobody ran: it has less");
}

#[test]
fn a_child_without_a_pool_gets_one_when_its_data_grows() {
    let mut world = World::new([290 * K, 100 * K, 700 * K, 800 * K]);
    world.data = 5 * MOST;
    world.run_to(Phase::Settle);
    world.run_to(Phase::Watch);
    assert_eq!(world.choice().share, CLOSED);
    world.chooser.forked();
    world.data = 10 * MOST;
    world.run_to(Phase::Settle);
    assert_eq!(world.choice().share, ALL);
}

#[test]
fn while_small_shares_are_barred_nobody_goes_to_none() {
    let mut world = World::new([290 * K, 100 * K, 100 * K, 800 * K]);
    world.data = 5 * MOST;
    (world.chooser.barred, world.chooser.barred_until_ns) = (20, world.now_ns + 3 * FIRST_NS);
    world.run_to(Phase::Settle);
    assert!(world.now_ns < world.chooser.barred_until_ns && !world.chooser.trial.at_once);
    world.run_to(Phase::Watch);
    world.now_ns = world.chooser.barred_until_ns;
    world.run_to(Phase::Settle);
    assert!(world.chooser.trial.at_once);
}
