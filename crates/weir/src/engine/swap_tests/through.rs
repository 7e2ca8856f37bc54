//! Pages written through: in the pool and in the swap file at once.

use super::*;
use crate::limits::{THROUGH_LOOK_NS, THROUGH_LOOKS};
use crate::reclaim::evict::evict_written;
use crate::reclaim::through::choose;
use crate::reclaim::{Effort, run_once};

fn core() -> &'static Fake {
    live(fakes(8).policy(Policy::Writethrough).batch(64))
}

fn written(core: &Fake) -> u64 {
    get(&swapping(core).tier.counters().pages_out)
}

/// Fills blocks, sends them out and writes them through.
fn out_and_through(core: &Fake, blocks: core::ops::Range<u32>) {
    for block in blocks {
        fill(core, block, mixed);
        send_out(core, block);
        while write_through(core, true) {}
    }
}

#[test]
fn a_page_written_through_leaves_the_pool_without_a_write() {
    let core = core();
    out_and_through(core, 0..3);
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.pooled, census.doubled, census.swapped), (192, 192, 0));
    assert_eq!((written(core), get(&core.stats.swap_through)), (192, 192));
    assert_eq!(core.copies.unwritten(&core.stats), (0, 0));
    assert_eq!(evict_written(core, 100), 100);
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.pooled, census.doubled, census.swapped), (92, 92, 100));
    assert_eq!(
        (state(core, 0), state(core, 99), state(core, 100)),
        (State::Swapped, State::Swapped, State::Pooled)
    );
    assert_eq!((written(core), get(&core.stats.swap_evicted_free)), (192, 100));
    (0..192).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.resident, census.kept_slots), (192, 192));
}

#[test]
fn a_full_pool_makes_room_by_giving_up_what_is_written() {
    let core = core();
    out_and_through(core, 0..16);
    assert!(get(&core.stats.swap_evicted_free) > 200, "{}", get(&core.stats.swap_evicted_free));
    assert_eq!(written(core), 16 * 64, "each page once");
    let census = core.validate(PAGES).unwrap();
    assert_eq!(census.doubled, census.pooled);
    assert!(census.pooled > 250, "{census:?}: the pool was not emptied for nothing");
    (0..1024).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn a_second_pass_that_only_reads_writes_nothing_and_leaves_warm_pages_in_the_pool() {
    let core = core();
    out_and_through(core, 0..16);
    let before = written(core);
    for _ in 0..2 {
        for block in 0..16 {
            (block * 64..block * 64 + 64).for_each(|page| assert!(read(core, page).unwrap() == mixed(page)));
            send_out(core, block);
            while write_through(core, true) {}
        }
    }
    assert_eq!(written(core), before, "every slot was still true");
    let census = core.validate(PAGES).unwrap();
    assert!(census.doubled > 0 && census.doubled == census.pooled, "{census:?}");
    assert_eq!(census.resident + census.staged + census.kept + census.kept_slots, 0);
    assert_eq!(census.pooled + census.swapped, 1024);
}

#[test]
fn a_page_that_changed_since_it_was_written_through_is_written_again() {
    let core = core();
    out_and_through(core, 0..1);
    let mut want = mixed(5);
    want[3000] ^= 1;
    assert!(read(core, 5).unwrap() == mixed(5));
    core.pager.write(PageId(5), |p| *p = want);
    send_out(core, 0);
    assert_eq!((state(core, 5), slot_of(core, 5)), (State::Pooled, None), "the slot was of the old bytes");
    while write_through(core, true) {}
    assert_eq!(written(core), 65);
    evict_written(core, 64);
    assert!(read(core, 5).unwrap() == want);
    core.validate(PAGES).unwrap();
}

#[test]
fn a_page_that_dies_or_comes_back_while_it_is_written_through_is_not_in_the_file() {
    let core = core();
    fill(core, 2, mixed);
    send_out(core, 2);
    disk(core).hook.set(|| {
        discard(core, BlockId(2), 0xff, Depth::All);
        assert!(matches!(resolve(core, 2 * 64 + 9), Outcome::Installed(_)));
    });
    assert!(write_through(core, true));
    let census = core.validate(PAGES).unwrap();
    assert_eq!(
        (census.doubled, get(&core.stats.swap_through)),
        (64 - 8 - u64::from(census.resident as u32), census.doubled)
    );
    assert_eq!((state(core, 128), state(core, 137)), (State::Absent, State::Resident));
    assert_eq!(swapping(core).tier.live_records(), census.doubled);
    (136..192).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    assert!(read(core, 130).unwrap() == [0; 4096]);
    core.validate(PAGES).unwrap();
}

#[test]
fn nothing_is_written_through_but_full_batches_unless_there_is_nothing_else_to_do() {
    let core = core();
    fill(core, 0, mixed);
    discard(core, BlockId(0), 0xff, Depth::All);
    send_out(core, 0);
    assert!(!write_through(core, false), "56 pages are no batch");
    assert_eq!(written(core), 0);
    fill(core, 1, mixed);
    send_out(core, 1);
    assert!(write_through(core, false) && !write_through(core, false));
    assert_eq!(written(core), 64);
    assert!(write_through(core, true) && !write_through(core, true));
    assert_eq!(written(core), 120);
    core.validate(PAGES).unwrap();
}

#[test]
fn a_discarded_page_gives_up_its_record_and_its_slot() {
    let core = core();
    out_and_through(core, 0..2);
    discard(core, BlockId(0), u64::MAX, Depth::All);
    discard(core, BlockId(1), u64::MAX, Depth::Stored);
    assert_eq!(core.validate(PAGES).unwrap(), crate::shared::census::Counted::default());
    assert_eq!((swapping(core).tier.live_records(), core.room.pool.owned()), (0, 0));
    assert_eq!(get(&core.stats.pool_died), 128);
}

#[test]
fn slots_of_pooled_pages_make_room_in_a_file_that_gets_full() {
    let core = live(fakes(8).policy(Policy::Writethrough).batch(64));
    out_and_through(core, 0..3);
    for block in 3..32 {
        fill(core, block, noise);
        send_out(core, block);
    }
    assert!(core.validate(PAGES).unwrap().doubled < 192 && get(&core.stats.swap_kept_dropped) > 0);
    assert!(!write_through(core, true), "slots are for pages that have no other copy");
    (0..192).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn a_sparse_clusters_slots_of_pooled_pages_are_given_up_and_the_others_moved() {
    let core = core();
    out_and_through(core, 0..20);
    let before = core.validate(PAGES).unwrap();
    for block in 0..20 {
        discard(core, BlockId(block), !0x7, Depth::All);
    }
    while tidy::empty_cluster(core, swapping(core)) > 0 {}
    let census = core.validate(PAGES).unwrap();
    assert!(before.doubled == before.pooled && census.doubled < census.pooled, "{census:?}");
    assert!(get(&core.stats.swap_kept_dropped) > 5 && get(&core.stats.swap_moved) > 5);
    while write_through(core, true) {}
    for page in (0..20 * 64).filter(|page| page % 64 < 3) {
        assert!(read(core, page).unwrap() == mixed(page), "page {page}");
    }
    core.validate(PAGES).unwrap();
}

#[test]
fn a_slot_that_is_not_worth_keeping_goes_when_its_page_comes_in() {
    let core = core();
    out_and_through(core, 0..2);
    // All but the reserve of the file is taken.
    for block in 4..32 {
        fill(core, block, noise);
        send_out(core, block);
        if !core.copies.keeps_slots() {
            break;
        }
    }
    assert!(!core.copies.keeps_slots());
    let doubled: Vec<u32> = (0..128).filter(|page| core.table.word(PageId(*page)).load().doubled()).collect();
    assert!(!doubled.is_empty());
    for page in &doubled {
        assert!(read(core, *page).unwrap() == mixed(*page), "page {page}");
        assert_eq!(slot_of(core, *page), None);
    }
    core.validate(PAGES).unwrap();
}

#[test]
fn the_adaptive_policy_writes_through_while_the_pool_is_full_and_its_pages_stay_out() {
    let core = live(fakes(16).policy(Policy::Adaptive).batch(64));
    let (mut now, mut begun) = (1, None);
    choose(core, now);
    for block in 0..32 {
        fill(core, block, mixed);
        send_out(core, block);
        while write_through(core, true) {}
        if block % 6 == 5 {
            now += THROUGH_LOOK_NS;
            choose(core, now);
            begun = begun.or(swapping(core).writes_through().then_some(block));
        }
    }
    assert!(
        begun.is_some_and(|block| block > 6 * THROUGH_LOOKS - 2),
        "{begun:?}, pool at {}",
        core.room.pool.fill_permille()
    );
    assert!(get(&core.stats.swap_through) > 100 && get(&core.stats.swap_evicted_free) > 100);
    // Now everything comes back again and again.
    for page in (0..2048).rev().filter(|page| state(core, *page) == State::Pooled).collect::<Vec<_>>() {
        assert!(read(core, page).unwrap() == mixed(page), "page {page}");
    }
    now += THROUGH_LOOK_NS;
    choose(core, now);
    assert!(!swapping(core).writes_through() && !write_through(core, true));
    assert_eq!(get(&core.stats.policy_switches), 2);
    core.publish();
    assert_eq!(get(&core.stats.policy), 0);
    core.validate(PAGES).unwrap();
}

#[test]
fn pages_left_in_written_blocks_leave_the_pool_after_writing_through_has_ended() {
    let core = live(fakes(16).policy(Policy::Adaptive).batch(64));
    swapping(core).set_writes_through(true);
    out_and_through(core, 0..6);
    // Everything comes back, changes and goes to the pool again: no slot is true any more.
    for page in 0..384 {
        read(core, page);
        core.pager.write(PageId(page), |p| p[0] ^= 1);
    }
    swapping(core).set_writes_through(false);
    (0..6).for_each(|block| send_out(core, block));
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.pooled, census.doubled), (384, 0));
    for block in 6..20 {
        fill(core, block, mixed);
        send_out(core, block);
    }
    let pooled = |page: &u32| state(core, *page) == State::Pooled;
    let (old, new) = ((0..384).filter(pooled).count(), (384..1280).filter(pooled).count());
    assert!(old < new, "{old} of the coldest 384 pages are in the pool, {new} of the others");
    core.validate(PAGES).unwrap();
}

#[test]
fn faults_and_reclaim_with_full_batches_fit_the_stack_of_a_desk() {
    let core = live(fakes(8).policy(Policy::Writethrough));
    let mut workbench = Box::new(Workbench::new());
    let work = move || {
        for block in 0..30 {
            fill(core, block, if block % 3 == 0 { noise } else { mixed });
            run_once(core, &mut workbench, 128, Effort::Direct);
            while write_through(core, true) {}
        }
        (0..1920).step_by(7).for_each(|page| assert!(resolve(core, page) != Outcome::Lost));
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap().join().unwrap();
    core.validate(PAGES).unwrap();
}

#[test]
fn second_copies_are_not_given_up_for_others_when_the_disk_has_no_room() {
    let disk = FakeDisk::new(16 * MIB, 512);
    disk.errno.store(Errno::ENOSPC.0 as u32, Ordering::Relaxed);
    let core = live(fakes(16).swap(disk, 16 * MIB).pool_max(45).policy(Policy::Writethrough));
    // All clusters but those being written to have become holes.
    for round in 0..2 {
        for block in 0..30 - round * 4 {
            fill(core, block, noise);
            send_out(core, block);
        }
        (0..32).for_each(|block| assert!(discard(core, BlockId(block), u64::MAX, Depth::All).pages <= 64));
    }
    (0..3).for_each(|_| tidy::housekeeping(core, true));
    self::disk(core).no_blocks.store(true, Ordering::Relaxed);
    for block in 0..32 {
        fill(core, block, mixed);
        send_out(core, block);
    }
    while write_through(core, true) {}
    let full = core.validate(PAGES).unwrap();
    assert!(full.doubled > 500 && full.doubled + 500 < full.pooled, "{full:?}");
    let (before, dropped) = (written(core), get(&core.stats.swap_kept_dropped));
    for _ in 0..20 {
        assert!(!write_through(core, true), "free clusters are counted, but they cannot be had");
        tidy::housekeeping(core, true);
        assert!(swapping(core).usable(), "what has no other copy may be luckier");
    }
    assert_eq!(core.validate(PAGES).unwrap(), full);
    assert_eq!((written(core), get(&core.stats.swap_kept_dropped)), (before, dropped));
    self::disk(core).no_blocks.store(false, Ordering::Relaxed);
    tidy::housekeeping(core, true);
    assert!(write_through(core, true), "there is room again");
    for block in 0..32 {
        let mut pages = block * 64..block * 64 + 64;
        assert!(pages.all(|page| read(core, page).unwrap() == mixed(page)), "block {block}");
        send_out(core, block);
    }
    core.validate(PAGES).unwrap();
}
