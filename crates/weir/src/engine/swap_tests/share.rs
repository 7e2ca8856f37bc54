//! The pool's share: found by what the program has for itself, and given up when pages have no other place.

use super::*;
use crate::reclaim::room::compact;
use crate::reclaim::share::choose;
use crate::reclaim::{Effort, run_once};
use crate::shared::share::{CLOSED, FIRST_NS, PERIOD_NS, PERIODS};
use weir_os::mem::PAGE_BYTES;
use weir_os::thread;

/// A pool of a few windows, with data of so many blocks in it.
fn core_with_pool(policy: Policy, blocks: core::ops::Range<u32>) -> &'static Fake {
    let core = core_sharing(40, FakeDisk::new(8 * MIB, 512), 8 * MIB, policy, 64);
    for block in blocks {
        fill(core, block, mixed);
        send_out(core, block);
    }
    core
}

fn others(page: u32) -> PageBytes {
    mixed(page + 10_000)
}

/// The pool comes to its share, if it can.
fn shrink(core: &Fake) {
    let mut bench = Bench::new();
    for _ in 0..200 {
        run_once(core, &mut bench, 1, Effort::Background);
        compact(core);
    }
}

/// A program that faults 600 times in a period, with so much time between its faults.
struct Program<'a> {
    core: &'a Fake,
    now_ns: u64,
}

impl Program<'_> {
    fn period(&mut self, gap_ns: u64) {
        let left = AtomicU64::new(1);
        (0..600).for_each(|_| self.core.meter.enter(&left, 1 + gap_ns));
        self.now_ns += PERIOD_NS;
        choose(self.core, self.now_ns);
    }

    fn until_trials(&mut self, n: u64, gap_ns: u64) {
        for _ in 0..2 * FIRST_NS / PERIOD_NS {
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
        let core = core_with_pool(Policy::Adaptive, 0..30);
        let most = core.pool.limit();
        assert!(core.pool.owned() > most * 3 / 4, "{} of {most}", core.pool.owned());
        let mut program = Program { core, now_ns: 1 };
        program.until_trials(1, 100_000);
        let share = core.pool.limit();
        assert!(share < most && core.pool.is_over(), "{share}");
        // Down to no pool, since the data is hardly more than the RAM: that is judged bad after a while only.
        let ended = |core: &Fake| get(&core.stats.share_kept) == 1 || core.pool.limit() == most;
        let mut period = |_| {
            shrink(core);
            program.period(gap_ns);
        };
        let periods = (0..80).take_while(|_| !ended(core)).map(&mut period).count();
        assert_eq!(get(&core.stats.share_kept), kept, "{gap_ns}");
        assert!((PERIODS..75).contains(&periods) && (periods > 40) == (kept == 0), "{periods} periods");
        assert!(kept == 1 || core.pool.limit() == most);
        assert!(get(&core.stats.program_ns) > 0 && get(&core.stats.fault_floor_ns) > 0);
        core.validate(PAGES).unwrap();
    }
}

#[test]
fn with_another_policy_and_in_the_child_of_a_fork_at_first_nothing_is_tried() {
    let core = core_with_pool(Policy::Writeback, 0..30);
    let most = core.pool.limit();
    let mut program = Program { core, now_ns: 1 };
    (0..100).for_each(|_| program.period(100_000));
    assert_eq!((get(&core.stats.share_trials), core.pool.limit()), (0, most));
    // The clock of a child's processor time begins anew: one look is passed over.
    let core = core_with_pool(Policy::Adaptive, 0..1);
    let mut program = Program { core, now_ns: 1 };
    (0..3).for_each(|_| program.period(100_000));
    swapping(core).share.lock().unwrap().1.process_ns = u64::MAX;
    let before = get(&core.stats.program_ns);
    program.period(100_000);
    assert_eq!(get(&core.stats.program_ns), before);
    program.period(100_000);
    assert!(get(&core.stats.program_ns) > before);
}

#[test]
fn a_write_that_fails_lets_the_pool_have_all_again() {
    let mut disk = FakeDisk::new(8 * MIB, 512);
    disk.goes_on_failing = true;
    let core = core_sharing(40, disk, 8 * MIB, Policy::Adaptive, 64);
    for block in 0..12 {
        fill(core, block, mixed);
        send_out(core, block);
    }
    let most = core.pool.limit();
    core.share_pool(most / 4);
    let disk = self::disk(core);
    disk.fails_at.store(get(&disk.ops) + 1, Ordering::Relaxed);
    let mut bench = Bench::new();
    (0..10).for_each(|_| {
        run_once(core, &mut bench, 1, Effort::Background);
    });
    assert_eq!((core.pool.limit(), core.take_pool_needed()), (most, true));
    (0..768).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn a_pool_whose_share_falls_gives_its_windows_back_and_gets_them_again_when_the_file_is_full() {
    let core = core_with_pool(Policy::Adaptive, 0..12);
    let (before, most) = (core.pool.owned(), core.pool.limit());
    assert!(before > most / 4 + 1 && core.validate(PAGES).unwrap().swapped == 0, "{before} of {most}");
    core.share_pool(most / 4);
    assert!(core.pool.is_over() && core.pool.limit() >= 4, "{}", core.pool.limit());
    shrink(core);
    let census = core.validate(PAGES).unwrap();
    let limit = core.pool.limit();
    assert!(core.pool.owned() <= limit + limit / 16 + 1, "{} of {before}: {census:?}", core.pool.owned());
    assert!(census.swapped > 0 && census.pooled > 0, "{census:?}");
    (0..768).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.need_pool();
    assert_eq!((core.pool.is_over(), core.pool.limit(), core.take_pool_needed()), (false, most, true));
    assert!(!core.take_pool_needed());
    core.validate(PAGES).unwrap();
}

#[test]
fn a_closed_pool_is_emptied_into_the_file_and_pages_go_past_it_until_it_is_needed() {
    let core = core_with_pool(Policy::Adaptive, 0..12);
    let most = core.pool.limit();
    core.share_pool(CLOSED);
    assert!(core.pool_is_closed() && core.pool.is_over() && core.pool.is_tight(16));
    shrink(core);
    let census = core.validate(PAGES).unwrap();
    assert_eq!((core.pool.owned(), census.pooled, core.pool.is_tight(16)), (0, 0, false), "{census:?}");
    // What has been read and is unchanged stays where it is, and what was changed is written: neither makes a
    // record in the pool.
    let written = || get(&swapping(core).tier.counters().pages_out);
    let before = written();
    assert!(before >= 600, "{before}");
    (0..64).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    send_out(core, 0);
    assert_eq!(written(), before);
    fill(core, 1, others);
    send_out(core, 1);
    assert!(written() > before);
    let census = core.validate(PAGES).unwrap();
    assert_eq!((core.pool.owned(), census.pooled), (0, 0), "{census:?}");
    // As it is where the device is fast, and else compressed.
    let bytes_for_block = |block: u32, cost_ns: u64| {
        (0..100).for_each(|_| swapping(core).note_write(1 << 20, thread::now_ns() - (cost_ns << 10)));
        let before = get(&swapping(core).tier.counters().bytes_written);
        fill(core, block, others);
        send_out(core, block);
        get(&swapping(core).tier.counters().bytes_written) - before
    };
    let (plain, small) = (bytes_for_block(3, 500), bytes_for_block(4, 9000));
    assert!(plain >= 64 * PAGE_BYTES as u64 && small < plain / 4 * 3, "{plain} {small}");
    assert!((192..256).all(|page| !core.table.word(PageId(page)).load().stuck()), "nothing is known of them");
    core.need_pool();
    fill(core, 2, others);
    send_out(core, 2);
    assert!(!core.pool_is_closed() && core.pool.limit() == most && core.pool.owned() > 0);
    for page in 0..768 {
        let contents = if (64..320).contains(&page) { others(page) } else { mixed(page) };
        assert!(read(core, page).unwrap() == contents, "page {page}");
    }
    core.validate(PAGES).unwrap();
}

#[test]
fn a_closed_pool_in_front_of_a_small_file_refuses_no_memory_because_it_has_no_records() {
    let core = core_sharing(40, FakeDisk::new(4 * MIB, 512), 4 * MIB, Policy::Adaptive, 64);
    for block in 0..12 {
        fill(core, block, mixed);
        send_out(core, block);
    }
    assert!(!core.full());
    core.share_pool(CLOSED);
    shrink(core);
    assert_eq!(core.pool.owned(), 0);
    assert!(!core.full(), "what is in frames could be compressed as before");
}

#[test]
fn a_fault_that_waits_for_a_frame_does_not_write_pool_pages_because_the_share_fell() {
    let core = core_with_pool(Policy::Adaptive, 0..12);
    core.share_pool(core.pool.limit() / 8);
    assert!(core.pool.is_over());
    // Also when its own pages find no place in the pool: those are written, and nothing else.
    fill(core, 20, mixed);
    unmap(core, BlockId(20));
    run_once(core, &mut Bench::new(), 64, Effort::Direct);
    let census = core.validate(PAGES).unwrap();
    assert!((0..768).all(|page| state(core, page) != State::Swapped), "{census:?}");
    run_once(core, &mut Bench::new(), 1, Effort::Background);
    assert!(core.validate(PAGES).unwrap().swapped > 0);
}
