//! The pool's share: found by what the program has for itself, and given up when pages have no other place.

use super::*;
use crate::limits::{LOOK_NS, POOL_REST_LOOKS, POOL_TRIAL_LOOKS};
use crate::policy::pool_size::Size;
use crate::reclaim::compact::compact;
use crate::reclaim::pool_size::choose;
use crate::reclaim::{Effort, run_once};

/// A pool of a few windows, with data of so many blocks in it.
fn core_filled(policy: Policy, blocks: core::ops::Range<u32>) -> &'static Fake {
    let core = live(fakes(8).pool_max(40).policy(policy).batch(64));
    for block in blocks {
        fill(core, block, mixed);
        send_out(core, block);
    }
    core
}

/// The pool comes to its share, if it can.
fn shrink(core: &Fake) {
    let mut workbench = Workbench::new();
    for _ in 0..200 {
        run_once(core, &mut workbench, 1, Effort::Background);
        compact(core);
    }
}

/// A program that faults 2000 times in a period on pages that are out, with so much time between its faults.
struct Program<'a> {
    core: &'a Fake,
    now_ns: u64,
}

impl Program<'_> {
    fn period(&mut self, gap_ns: u64) {
        let left = AtomicU64::new(1);
        (0..2000).for_each(|_| self.core.meter.enter(&left, 1 + gap_ns));
        self.core.stats.faults_major().add(2000);
        self.now_ns += LOOK_NS;
        choose(self.core, self.now_ns);
    }

    fn until_trials(&mut self, n: u64, gap_ns: u64) {
        for _ in 0..2 * POOL_REST_LOOKS {
            if get(&self.core.stats.share_trials) == n {
                return;
            }
            self.period(gap_ns);
        }
        panic!("{} trials", get(&self.core.stats.share_trials));
    }
}

#[test]
fn the_share_falls_for_a_trial_and_stays_where_the_program_has_more_time_and_only_there() {
    for (gap_ns, kept) in [(150_000, 1), (50_000, 0)] {
        let core = core_filled(Policy::Adaptive, 0..30);
        let most = core.room.pool.limit();
        assert!(core.room.pool.owned() > most * 3 / 4, "{} of {most}", core.room.pool.owned());
        let mut program = Program { core, now_ns: 1 };
        program.until_trials(1, 100_000);
        assert!(core.room.pool.limit() < most && core.room.pool.is_over(), "{}", core.room.pool.limit());
        let mut looks = 0;
        while get(&core.stats.share_kept) == 0 && core.room.pool.limit() < most {
            shrink(core);
            program.period(gap_ns);
            looks += 1;
            assert!(looks <= 2 * POOL_TRIAL_LOOKS, "{gap_ns}");
        }
        assert_eq!(get(&core.stats.share_kept), kept, "{gap_ns}");
        assert!(get(&core.stats.program_ns) > 0 && get(&core.stats.fault_floor_ns) > 0);
        core.validate(PAGES).unwrap();
    }
}

#[test]
fn with_another_policy_and_in_the_child_of_a_fork_at_first_nothing_is_tried() {
    let core = core_filled(Policy::Writeback, 0..30);
    let most = core.room.pool.limit();
    let mut program = Program { core, now_ns: 1 };
    (0..100).for_each(|_| program.period(100_000));
    assert_eq!((get(&core.stats.share_trials), core.room.pool.limit()), (0, most));
    let core = core_filled(Policy::Adaptive, 0..1);
    let mut program = Program { core, now_ns: 1 };
    (0..3).for_each(|_| program.period(100_000));
    swapping(core).forget_parent();
    let before = get(&core.stats.program_ns);
    program.period(100_000);
    assert_eq!(get(&core.stats.program_ns), before, "there is nothing to compare with");
    program.period(100_000);
    assert!(get(&core.stats.program_ns) > before);
}

#[test]
fn a_write_that_fails_lets_the_pool_have_all_again() {
    let mut disk = FakeDisk::new(8 * MIB, 512);
    disk.goes_on_failing = true;
    let core = live(fakes(8).swap(disk, 8 * MIB).pool_max(40).policy(Policy::Adaptive).batch(64));
    for block in 0..12 {
        fill(core, block, mixed);
        send_out(core, block);
    }
    let most = core.room.pool.limit();
    core.room.share_pool(&core.ledger, Size::Windows(most / 4));
    let disk = self::disk(core);
    disk.fails_at.store(get(&disk.ops) + 1, Ordering::Relaxed);
    let mut workbench = Workbench::new();
    (0..10).for_each(|_| {
        run_once(core, &mut workbench, 1, Effort::Background);
    });
    assert_eq!((core.room.pool.limit(), core.room.take_pool_needed()), (most, true));
    (0..768).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn a_pool_whose_share_falls_gives_its_windows_back_and_gets_them_again_when_the_file_is_full() {
    let core = core_filled(Policy::Adaptive, 0..12);
    let (before, most) = (core.room.pool.owned(), core.room.pool.limit());
    assert!(before > most / 4 + 1 && core.validate(PAGES).unwrap().swapped == 0, "{before} of {most}");
    core.room.share_pool(&core.ledger, Size::Windows(most / 4));
    assert!(core.room.pool.is_over() && core.room.pool.limit() >= 4, "{}", core.room.pool.limit());
    shrink(core);
    let census = core.validate(PAGES).unwrap();
    let limit = core.room.pool.limit();
    assert!(
        core.room.pool.owned() <= limit + limit / 16 + 1,
        "{} of {before}: {census:?}",
        core.room.pool.owned()
    );
    assert!(census.swapped > 0 && census.pooled > 0, "{census:?}");
    (0..768).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.room.need_pool(&core.ledger);
    assert_eq!(
        (core.room.pool.is_over(), core.room.pool.limit(), core.room.take_pool_needed()),
        (false, most, true)
    );
    assert!(!core.room.take_pool_needed());
    core.validate(PAGES).unwrap();
}

#[test]
fn a_fault_that_waits_for_a_frame_does_not_write_pool_pages_because_the_share_fell() {
    let core = core_filled(Policy::Adaptive, 0..12);
    core.room.share_pool(&core.ledger, Size::Windows(core.room.pool.limit() / 8));
    assert!(core.room.pool.is_over());
    // Also when its own pages find no place in the pool: those are written, and nothing else.
    fill(core, 20, mixed);
    unmap(core, BlockId(20));
    run_once(core, &mut Workbench::new(), 64, Effort::Direct);
    let census = core.validate(PAGES).unwrap();
    assert!((0..768).all(|page| state(core, page) != State::Swapped), "{census:?}");
    run_once(core, &mut Workbench::new(), 1, Effort::Background);
    assert!(core.validate(PAGES).unwrap().swapped > 0);
}
