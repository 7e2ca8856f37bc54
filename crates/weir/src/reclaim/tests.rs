//! Unmap, store and discard on a fake pager, one behaviour at a time.

use super::batch::Batch;
use super::compress::Workbench;
use super::discard::{Depth, discard};
use super::relief;
use super::store::{Portion, Stored, store_window};
use super::unmap::unmap;
use super::window::Unmapped;
use crate::demand::Demand;
use crate::door::Pager;
use crate::fault::{self, Outcome, Request, Strides};
use crate::page::region::Access;
use crate::page::state::State;
use crate::page::{BlockId, PageId};
use crate::shared::{Core, Geometry};
use crate::sim::{Call, FakePager, World};
use crate::sync::Ordering;
use weir_os::sys::Errno;

pub(super) fn core() -> Core<FakePager> {
    core_with(8, false)
}

pub(super) fn lifting_core() -> Core<FakePager> {
    core_with(64, true) // a lift takes a sixteenth of the frames at most
}

fn core_with(mib: u64, lifts: bool) -> Core<FakePager> {
    let core = World::budget(mib).lifts(lifts).core();
    // As after the first reclaim: while memory is plentiful, readahead touches blocks that a test does not
    // name.
    core.room.reclaimed.store(true, Ordering::Relaxed);
    core
}

pub(super) fn fill_block(core: &Core<FakePager>, block: u32, f: impl Fn(u32, &mut [u8; 4096])) {
    for i in 0..64 {
        let page = BlockId(block).page(i);
        while !core.pager.write(page, |p| f(i, p)) {
            assert!(matches!(
                fault::resolve(core, &Strides::default(), page, 1),
                Outcome::Installed(_) | Outcome::Stale
            ));
        }
    }
}

pub(super) fn store(core: &Core<FakePager>, workbench: &mut Workbench, block: BlockId) -> Stored {
    let mut batch = Batch::new(core);
    let stored = store_window(core, workbench, &mut batch, block, Portion { most: u32::MAX, polite: false });
    relief::finish(core, &mut batch);
    stored
}

fn text(i: u32, p: &mut [u8; 4096]) {
    p.iter_mut().enumerate().for_each(|(k, b)| *b = ((k as u32 / 16 * (i % 40 + 3)) % 50) as u8 + b'0');
}

#[test]
fn a_block_goes_out_in_one_call_and_comes_back_unchanged_for_the_price_of_a_hash() {
    let (core, mut workbench) = (core(), Workbench::new());
    fill_block(&core, 0, text);
    assert_eq!(unmap(&core, BlockId(0)), Unmapped::Staged(64));
    assert_eq!(core.stats.unmap_calls.load(Ordering::Relaxed), 1);
    let out = store(&core, &mut workbench, core.staged.pop().unwrap());
    assert_eq!((out.freed, out.given_back), (64, 0));
    let census = core.validate(1024).unwrap();
    assert_eq!(census.pooled, 64);
    // Read it back as a stream: records are kept, and the second time out nothing is compressed.
    for i in 0..64 {
        fault::resolve(&core, &Strides::default(), PageId(i), 1);
        let mut want = [0; 4096];
        text(i, &mut want);
        assert!(core.pager.read(PageId(i)).unwrap() == want);
    }
    let compressed = core.stats.pool_out().get();
    unmap(&core, BlockId(0));
    store(&core, &mut workbench, core.staged.pop().unwrap());
    let clean = core.stats.out_clean().get();
    assert!(clean > 32, "{clean} pages were found unchanged");
    assert_eq!(core.stats.pool_out().get() - compressed, 64 - clean);
    core.validate(1024).unwrap();
}

#[test]
fn a_changed_page_is_compressed_again_and_its_old_record_freed() {
    let (core, mut workbench) = (core(), Workbench::new());
    fill_block(&core, 0, text);
    unmap(&core, BlockId(0));
    store(&core, &mut workbench, core.staged.pop().unwrap());
    for i in 0..64 {
        let _ = fault::resolve(&core, &Strides::default(), PageId(i), 1);
    }
    core.pager.write(PageId(40), |p| p[4000] ^= 1);
    unmap(&core, BlockId(0));
    store(&core, &mut workbench, core.staged.pop().unwrap());
    core.validate(1024).unwrap();
    fault::resolve(&core, &Strides::default(), PageId(40), 1);
    let mut want = [0; 4096];
    text(40, &mut want);
    want[4000] ^= 1;
    assert!(core.pager.read(PageId(40)).unwrap() == want);
}

#[test]
fn a_page_that_goes_out_unchanged_keeps_its_hash_and_is_known_when_it_changes_later() {
    let (core, mut workbench) = (core(), Workbench::new());
    fill_block(&core, 0, text);
    let mut round_trip = |change: &dyn Fn(u32)| {
        unmap(&core, BlockId(0));
        store(&core, &mut workbench, core.staged.pop().unwrap());
        let hashed = |i: &u32| core.table.word(PageId(*i)).load().hashed();
        let hashes: Vec<(u32, u64)> =
            (0..64).filter(hashed).map(|i| (i, core.table.aux(PageId(i)))).collect();
        for i in 0..64 {
            fault::resolve(&core, &Strides::default(), PageId(i), 1);
            change(i);
        }
        core.validate(1024).unwrap();
        hashes
    };
    assert!(round_trip(&|_| ()).is_empty(), "nobody has computed one");
    let first = round_trip(&|_| ());
    assert!(first.len() > 32, "{} of 64", first.len());
    let second = round_trip(&|i| {
        core.pager.write(PageId(i), |p| p[4000] ^= 1);
    });
    assert!(first.iter().all(|of| second.contains(of)), "the same bytes, the same hash");
    assert!(round_trip(&|_| ()).is_empty(), "all were changed, and have new records");
    for i in 0..64 {
        let mut want = [0; 4096];
        text(i, &mut want);
        want[4000] ^= 1;
        assert!(core.pager.read(PageId(i)).unwrap() == want, "page {i}");
    }
}

#[test]
fn a_stream_makes_room_for_a_block_rather_than_take_frames_in_pieces_but_takes_those_if_there_is_no_other_way()
 {
    let asked = |processors: u32, free: usize, busy: bool| {
        let (mut core, mut workbench) = (core_with(64, false), Workbench::new());
        core.room.demand = Demand::with_processors(processors);
        (0..16).for_each(|b| fill_block(&core, b, text));
        unmap(&core, BlockId(3));
        store(&core, &mut workbench, core.staged.pop().unwrap());
        while core.room.frames.credit() > 0 {
            core.room.frames.grow(&core.pager).unwrap();
        }
        // Of what is free every second frame is in somebody's hand, and then most of the others.
        let held: Vec<_> = core::iter::from_fn(|| core.room.frames.take_run(1)).collect();
        let even = held.iter().filter(|run| run.frame.0 % 2 == 0).take(free);
        even.for_each(|run| core.room.frames.put_back(run.frame, 1));
        assert!(core.room.frames.free() as usize == free && !core.room.frames.has_whole_window());
        // What it wants is most of a block, as of a stream.
        core.table.block(BlockId(3)).set_access(Access::Sequential);
        if busy {
            (0..1000).for_each(|n| core.room.demand.note_faulter((n as usize % 8) << 12, n));
        }
        let mut request = Request::default();
        let first = fault::resolve_load(&core, &Strides::default(), BlockId(3).page(0), 1, &mut request);
        let room = request.wants_room_for_block();
        if room {
            let again = fault::resolve_load(&core, &Strides::default(), BlockId(3).page(0), 1, &mut request);
            assert!(matches!(again, Outcome::Installed(_)), "the second time anything will do");
            assert!(!request.wants_room_for_block());
        }
        assert_eq!(first == Outcome::NoFrames, room);
        room
    };
    assert!(asked(2, 100, false));
    assert!(!asked(2, 1000, false), "frames are not short");
    assert!(!asked(2, 100, true), "others want the processors");
    assert!(!asked(1, 100, false), "there is no other processor");
}

#[test]
fn a_stream_that_finds_its_block_staged_needs_no_room() {
    let mut core = core_with(64, false);
    core.room.demand = Demand::with_processors(2);
    (0..4).for_each(|b| fill_block(&core, b, text));
    unmap(&core, BlockId(3));
    while core.room.frames.credit() > 0 {
        core.room.frames.grow(&core.pager).unwrap();
    }
    let _held: Vec<_> = core::iter::from_fn(|| core.room.frames.take_run(1)).collect();
    core.table.block(BlockId(3)).set_access(Access::Sequential);
    let got = fault::resolve_load(&core, &Strides::default(), BlockId(3).page(0), 1, &mut Request::default());
    assert!(matches!(got, Outcome::Installed(_)), "{got:?}");
}

#[test]
fn same_filled_pages_take_no_room_at_all() {
    let (core, mut workbench) = (core(), Workbench::new());
    fill_block(&core, 1, |i, p| p.fill(i as u8));
    unmap(&core, BlockId(1));
    store(&core, &mut workbench, core.staged.pop().unwrap());
    assert_eq!(core.validate(1024).unwrap().same, 64);
    assert_eq!(core.room.pool.owned(), 0);
    fault::resolve(&core, &Strides::default(), BlockId(1).page(9), 1);
    assert_eq!(core.pager.read(BlockId(1).page(9)).unwrap(), [9; 4096]);
}

#[test]
fn staged_pages_are_taken_back_without_expanding() {
    let core = core();
    fill_block(&core, 2, text);
    unmap(&core, BlockId(2));
    let page = BlockId(2).page(7);
    assert!(matches!(fault::resolve(&core, &Strides::default(), page, 1), Outcome::Installed(_)));
    assert!(core.stats.in_staged().get() >= 1);
    assert_eq!(core.table.word(page).load().state(), State::Resident);
    assert_eq!(core.stats.pool_in().get(), 0);
    core.validate(1024).unwrap();
}

#[test]
fn incompressible_pages_are_given_back_and_left_alone_for_a_while() {
    let (core, mut workbench) = (core(), Workbench::new());
    let mut x = 88172645463325252u64;
    let noise: Vec<u8> = (0..64 * 4096)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        })
        .collect();
    fill_block(&core, 3, |i, p| p.copy_from_slice(&noise[i as usize * 4096..][..4096]));
    unmap(&core, BlockId(3));
    let out = store(&core, &mut workbench, core.staged.pop().unwrap());
    assert_eq!((out.freed, out.given_back), (0, 64));
    assert!(core.stats.out_stuck.load(Ordering::Relaxed) <= 8, "the rest was given back untried");
    assert_eq!(unmap(&core, BlockId(3)), Unmapped::Nothing, "it rests");
    assert!(core.pager.read(BlockId(3).page(5)).unwrap()[..] == noise[5 * 4096..6 * 4096]);
    core.validate(1024).unwrap();
}

#[test]
fn busy_pages_stay_and_the_others_go() {
    let core = core();
    fill_block(&core, 4, text);
    core.pager.set_busy(BlockId(4).page(10), true);
    assert_eq!(unmap(&core, BlockId(4)), Unmapped::Staged(63));
    assert_eq!(core.table.word(BlockId(4).page(10)).load().state(), State::Resident);
    assert_eq!(core.stats.out_busy.load(Ordering::Relaxed), 1);
    core.validate(1024).unwrap();
}

#[test]
fn eagain_is_asked_again_and_a_refusal_leaves_the_page() {
    let core = core();
    fill_block(&core, 5, text);
    core.pager.fail_drain(0, Errno::EAGAIN);
    assert_eq!(unmap(&core, BlockId(5)), Unmapped::Staged(64));
    fill_block(&core, 6, text);
    core.pager.fail_drain(0, Errno::EFAULT);
    assert_eq!(unmap(&core, BlockId(6)), Unmapped::Staged(63));
    core.validate(1024).unwrap();
}

#[test]
fn scattered_pages_of_neighbours_are_lifted_by_one_call_and_come_back() {
    let (core, mut workbench) = (lifting_core(), Workbench::new());
    (0..10).for_each(|b| fill_block(&core, b, text));
    for page in (0..640).filter(|p| p % 5 == 0) {
        discard(&core, PageId(page).block(), 1 << (page % 64), Depth::All);
    }
    let calls = core.stats.unmap_calls.load(Ordering::Relaxed);
    assert_eq!(unmap(&core, BlockId(3)), Unmapped::Staged(512 - 103));
    assert_eq!(core.stats.unmap_calls.load(Ordering::Relaxed) - calls, 1);
    assert_eq!(core.staged.blocks(), 8, "the aligned group of eight, not the next one");
    core.validate(1024).unwrap();
    assert!(matches!(fault::resolve(&core, &Strides::default(), PageId(7), 1), Outcome::Installed(_)));
    core.validate(1024).unwrap();
    while let Some(block) = core.staged.pop() {
        store(&core, &mut workbench, block);
    }
    core.validate(1024).unwrap();
    for page in [7, 8, 5, 511] {
        let _ = fault::resolve(&core, &Strides::default(), PageId(page), 1);
        let mut want = [0; 4096];
        if page % 5 != 0 {
            text(page % 64, &mut want);
        }
        assert!(core.pager.read(PageId(page)).unwrap() == want, "page {page}");
    }
    core.validate(1024).unwrap();
}

#[test]
fn a_lift_ends_at_pages_that_must_stay() {
    let core = lifting_core();
    (0..8).for_each(|b| fill_block(&core, b, text));
    // A call uses pages of block 1; page 10 of block 5 cannot be moved; block 6 rests.
    let pin = core.pins.add(BlockId(1).page(60), BlockId(1).page(62).0, 0).unwrap();
    core.table.block(BlockId(5)).lock().set_fixed(1 << 10);
    core.table.block(BlockId(6)).lock().set_rest(true);
    assert_eq!(unmap(&core, BlockId(3)), Unmapped::Staged(3 * 64), "1 and 5 would leave pages behind");
    core.pins.release(pin);
    let state = |b: u32, i| core.table.word(BlockId(b).page(i)).load().state();
    assert_eq!([state(1, 62), state(2, 0)], [State::Resident, State::Staged]);
    assert_eq!([state(4, 63), state(5, 0), state(6, 0)], [State::Staged, State::Resident, State::Resident]);
    core.validate(1024).unwrap();
}

#[test]
fn pages_can_be_unmapped_one_by_one_by_the_same_code() {
    let mut core = lifting_core();
    (0..4).for_each(|b| fill_block(&core, b, text));
    core.unmap_batch = 1;
    assert_eq!(unmap(&core, BlockId(1)), Unmapped::Staged(64));
    assert_eq!(core.stats.unmap_calls.load(Ordering::Relaxed), 64);
    core.unmap_batch = 10;
    assert_eq!(unmap(&core, BlockId(2)), Unmapped::Staged(64));
    assert_eq!(core.stats.unmap_calls.load(Ordering::Relaxed), 64 + 7);
    core.validate(1024).unwrap();
}

#[test]
fn pages_can_be_stored_one_by_one_by_the_same_code_for_more_locks() {
    let locks = |batch: u32| {
        let (mut core, mut workbench) = (core(), Workbench::new());
        core.store_batch = batch;
        fill_block(&core, 0, text);
        unmap(&core, BlockId(0));
        let taken = || {
            let s = &core.stats;
            [s.out_block_locks().get(), s.out_pool_locks().get(), s.out_frame_locks().get()]
        };
        let before = taken();
        assert_eq!(store(&core, &mut workbench, core.staged.pop().unwrap()).freed, 64);
        assert_eq!(core.validate(1024).unwrap().pooled, 64);
        for i in 0..64 {
            fault::resolve(&core, &Strides::default(), PageId(i), 1);
            let mut want = [0; 4096];
            text(i, &mut want);
            assert!(core.pager.read(PageId(i)).unwrap() == want, "page {i} of a batch of {batch}");
        }
        core::array::from_fn(|k| taken()[k] - before[k])
    };
    let (one, four): ([u64; 3], [u64; 3]) = (locks(1), locks(4));
    // The pool grows by windows, and the block's own window ends once; the rest is a lock a page, or one for
    // four.
    let [blocks, pool, frames] = core::array::from_fn(|k| one[k] - four[k]);
    assert_eq!((one[0], four[0], blocks), (64, 16, 48));
    assert_eq!((pool, frames), (48, 48), "{one:?} {four:?}");
}

#[test]
fn once_the_kernel_may_use_pages_behind_our_back_none_is_lifted() {
    let core = lifting_core();
    (0..4).for_each(|b| fill_block(&core, b, text));
    core.room.frames.forbid_lifts();
    assert!(!core.room.frames.can_lift());
    // A pinned page stays, which only a move finds out.
    core.pager.set_busy(BlockId(1).page(5), true);
    assert_eq!(unmap(&core, BlockId(1)), Unmapped::Staged(63), "one block, and not its neighbours");
    assert!(core.pager.read(BlockId(1).page(5)).is_some());
    let lifts = Geometry::arena_windows(64 << 20);
    assert!(core.table.block(BlockId(1)).window().unwrap().0 < lifts);
    core.validate(1024).unwrap();
}

#[test]
fn a_neighbour_goes_along_as_far_as_its_last_page_that_can_leave() {
    let core = lifting_core();
    (0..3).for_each(|b| fill_block(&core, b, text));
    core.table.block(BlockId(2)).lock().set_fixed(!0xffff);
    core.table.block(BlockId(0)).lock().set_fixed(0xf);
    assert_eq!(unmap(&core, BlockId(1)), Unmapped::Staged(60 + 64 + 16));
    assert_eq!(core.stats.unmap_calls.load(Ordering::Relaxed), 1);
    core.validate(1024).unwrap();
}

#[test]
fn after_a_lift_that_lost_its_windows_nothing_is_lifted_into_them_again() {
    let core = lifting_core();
    (0..10).for_each(|b| fill_block(&core, b, text));
    core.pager.fail_drain(0, Errno::EEXIST);
    assert_eq!(unmap(&core, BlockId(3)), Unmapped::Staged(64), "moved instead");
    let lifts = Geometry::arena_windows(64 << 20);
    assert_eq!(unmap(&core, BlockId(9)), Unmapped::Staged(128));
    let window = core.table.block(BlockId(9)).window().unwrap().0;
    assert!(window >= lifts + 8, "window {window} of those from {lifts} on");
    // The same for the second run of a block whose first one went.
    fill_block(&core, 12, text);
    core.table.block(BlockId(12)).lock().set_fixed(1 << 40);
    core.pager.fail_drain(1, Errno::EEXIST);
    assert_eq!(unmap(&core, BlockId(12)), Unmapped::Staged(40));
    let lost = core.table.block(BlockId(12)).window().unwrap();
    discard(&core, BlockId(12), u64::MAX, Depth::All);
    while let Some(block) = core.staged.pop() {
        store(&core, &mut Workbench::new(), block);
    }
    while core.room.frames.shed_windows(&core.pager, u32::MAX, 1) > 0 {}
    while let Some(w) = core.room.frames.take_empty_lifts(1) {
        assert!(w != lost && w.0 >= lifts + 7, "{w:?} was lost");
    }
}

#[test]
fn all_runs_of_a_victim_are_lifted_and_a_refused_lift_becomes_a_move() {
    let core = lifting_core();
    fill_block(&core, 0, text);
    core.table.block(BlockId(0)).lock().set_fixed(1 << 40);
    discard(&core, BlockId(0), 0xff_ffff_ff00, Depth::All);
    assert_eq!(unmap(&core, BlockId(0)), Unmapped::Staged(23 + 8), "pages 41 to 63, then 0 to 7");
    assert_eq!(core.table.word(PageId(40)).load().state(), State::Resident);
    fill_block(&core, 9, text);
    core.pager.fail_drain(0, Errno::EFAULT);
    assert_eq!(unmap(&core, BlockId(9)), Unmapped::Staged(64));
    let window = core.table.block(BlockId(9)).window().unwrap();
    assert!(window.0 < Geometry::arena_windows(64 << 20), "{window:?} is of the watched part");
    core.validate(1024).unwrap();
}

#[test]
fn a_single_staged_page_is_copied_back_while_single_pages_are_wanted() {
    let core = lifting_core();
    fill_block(&core, 0, text);
    assert_eq!(unmap(&core, BlockId(0)), Unmapped::Staged(64));
    (0..64).for_each(|_| core.room.demand.note(1));
    core.table.block(BlockId(0)).set_readahead(0);
    let frame = core.table.block(BlockId(0)).window().unwrap().frame(9);
    assert!(matches!(fault::resolve(&core, &Strides::default(), PageId(9), 1), Outcome::Installed(_)));
    assert!(core.pager.has_frame(frame), "its old frame is still there, free");
    assert_eq!(core.staged.pages(), 63);
    let mut want = [0; 4096];
    text(9, &mut want);
    assert!(core.pager.read(PageId(9)).unwrap() == want);
    core.validate(1024).unwrap();
}

#[test]
fn discarding_gives_frames_records_and_staged_frames_back() {
    let (core, mut workbench) = (core(), Workbench::new());
    for b in 0..3 {
        fill_block(&core, b, text);
    }
    unmap(&core, BlockId(0));
    store(&core, &mut workbench, core.staged.pop().unwrap());
    unmap(&core, BlockId(1));
    for b in 0..3 {
        assert_eq!(discard(&core, BlockId(b), u64::MAX, Depth::All).pages, 64);
    }
    let census = core.validate(1024).unwrap();
    assert_eq!(census, crate::shared::census::Counted::default());
    assert_eq!(core.room.pool.owned(), 0);
    // The window of block 1 is still queued, with nothing in it.
    let out = store(&core, &mut workbench, core.staged.pop().unwrap());
    assert_eq!((out.freed, out.given_back), (0, 0));
    assert_eq!(core.room.frames.free(), core.room.frames.existing());
    core.validate(1024).unwrap();
}

#[test]
fn a_damaged_record_is_reported_and_not_mapped() {
    let (core, mut workbench) = (core(), Workbench::new());
    fill_block(&core, 0, text);
    unmap(&core, BlockId(0));
    store(&core, &mut workbench, core.staged.pop().unwrap());
    let h = core.table.word(PageId(20)).load().handle().unwrap();
    crate::door::with_bytes(&core.pager, (h.0 as usize) << 4, 8, |b| b[6] ^= 0xff);
    assert_eq!(fault::resolve(&core, &Strides::default(), PageId(20), 1), Outcome::Lost);
    assert!(core.pager.read(PageId(20)).is_none());
    fault::resolve(&core, &Strides::default(), PageId(21), 1);
    let mut want = [0; 4096];
    text(21, &mut want);
    assert!(core.pager.read(PageId(21)).unwrap() == want, "its neighbours are whole");
}

#[test]
fn a_fault_outside_every_mapping_is_foreign() {
    let core = core();
    core.table.block(BlockId(7)).lock().set_valid(0);
    assert_eq!(fault::resolve(&core, &Strides::default(), BlockId(7).page(0), 1), Outcome::Foreign);
}

#[test]
fn frames_beyond_a_limit_that_fell_are_left_alone_by_faults_and_go_back_as_they_become_free() {
    let core = core();
    while core.room.frames.grow(&core.pager).unwrap() > 0 {}
    let (exist, free) = (core.room.frames.existing(), core.room.frames.free());
    assert_eq!((exist, free, core.room.available()), (core.room.frames.limit(), exist, exist));
    // All but a hundred are in use when metadata takes the room of a hundred.
    let taken: Vec<_> = core::iter::from_fn(|| {
        let wanted = (core.room.frames.free() - 100).min(64);
        if wanted > 0 { core.room.frames.take_run(wanted) } else { None }
    })
    .collect();
    core.charge_rows(100 * 4096);
    assert_eq!(exist - core.room.frames.limit(), 100);
    let stay = crate::limits::KEPT_FOR_POOL;
    assert_eq!(
        (core.room.frames.free(), exist - core.room.frames.existing()),
        (stay, 100 - stay),
        "most went at once"
    );
    assert_eq!(core.room.available(), 0, "the others are not for faults");
    for run in &taken[..2] {
        core.room.frames.put_back(run.frame, run.n);
    }
    assert_eq!(core.room.available(), 128);
    core.room.frames.shed_excess(&core.pager);
    assert_eq!((core.room.frames.existing(), core.room.available()), (core.room.frames.limit(), 128));
    assert_eq!(core.room.frames.free(), 128);
}

#[test]
fn pages_can_leave_for_a_pool_that_has_no_window_yet_when_metadata_takes_all_the_room() {
    let (core, mut workbench) = (core_with(6, false), Workbench::new());
    let mut filled = 0;
    while filled < 16 && core.room.available() > 200 {
        fill_block(&core, filled, text);
        filled += 1;
    }
    assert_eq!(core.room.pool.owned(), 0);
    core.charge_rows(i64::from(core.room.frames.limit() / 4) * 4096);
    assert!(core.room.frames.existing() > core.room.frames.limit() && core.room.available() == 0);
    while core.room.available() == 0 {
        assert!(super::run_once(&core, &mut workbench, 64, super::Effort::Direct).freed > 0);
    }
    assert!(core.room.frames.shed_excess(&core.pager) <= crate::limits::KEPT_FOR_POOL);
    let census = core.validate(1024).unwrap();
    assert!(census.pooled > 0 && census.resident + census.staged + census.pooled == u64::from(filled) * 64);
}

#[test]
fn the_limit_is_that_of_all_that_was_charged_however_many_charge_at_once() {
    for _ in 0..50 {
        let core = core();
        let before = core.room.frames.limit();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..64).for_each(|_| core.charge_rows(64)));
            }
        });
        let charged = core.resident_bytes() - self::core().resident_bytes();
        assert!(charged > 0);
        assert_eq!(before - core.room.frames.limit(), (charged as u32).div_ceil(4096), "{charged} bytes");
    }
}

/// Blocks 0 to 3 are in the pool, and a stream enters block 0 or 1: whole windows are free.
pub(super) fn streamed() -> Core<FakePager> {
    let (core, mut workbench) = (core(), Workbench::new());
    (0..4).for_each(|b| fill_block(&core, b, text));
    for b in 0..4 {
        unmap(&core, BlockId(b));
        store(&core, &mut workbench, core.staged.pop().unwrap());
        core.table.block(BlockId(b)).set_access(Access::Sequential);
    }
    while core.room.frames.free() < 8 * 64 && core.room.frames.grow(&core.pager).unwrap() > 0 {}
    core
}

/// Faults on the first page of a block: how many pages of it and of the next one are there then.
pub(super) fn enter(core: &Core<FakePager>, block: u32) -> (Outcome, u32, u32) {
    let outcome = fault::resolve(core, &Strides::default(), BlockId(block).page(0), 1);
    core.validate(1024).unwrap();
    for i in 0..4 * 64 {
        let mut want = [0; 4096];
        text(i % 64, &mut want);
        assert!(core.pager.read(PageId(i)).is_none_or(|bytes| bytes == want), "page {i}");
    }
    let there =
        |b| core.table.in_state(&core.table.block(BlockId(b)).lock(), u64::MAX, State::Resident).count_ones();
    (outcome, there(block), there(block + 1))
}

#[test]
fn a_stream_takes_the_next_block_along_by_the_same_move_and_keeps_its_records() {
    let core = streamed();
    let (outcome, first, second) = enter(&core, 0);
    assert!(matches!(outcome, Outcome::Installed(Some(_))), "{outcome:?}");
    assert_eq!((first, second), (64, 64));
    assert!(core.copies.kept() > 64, "{} of 128 keep their records", core.copies.kept());
    assert_eq!(core.table.block(BlockId(1)).resident(), 64);
    // They go out again for the price of a hash, both.
    let mut workbench = Workbench::new();
    let kept = core.copies.kept();
    for b in 0..2 {
        unmap(&core, BlockId(b));
        store(&core, &mut workbench, core.staged.pop().unwrap());
    }
    assert_eq!((core.stats.out_clean().get(), core.copies.kept()), (kept, 0));
    core.validate(1024).unwrap();
}

#[test]
fn a_next_block_that_is_not_whole_in_the_pool_or_busy_or_elsewhere_stays_where_it_is() {
    let alone = |prepare: &dyn Fn(&Core<FakePager>)| {
        let core = streamed();
        prepare(&core);
        let (_, first, second) = enter(&core, 0);
        assert_eq!(first, 64);
        second
    };
    let resolve = |core: &Core<FakePager>, page: u32| {
        core.table.block(PageId(page).block()).set_access(Access::Random);
        fault::resolve(core, &Strides::default(), PageId(page), 1);
        core.table.block(PageId(page).block()).set_access(Access::Sequential);
    };
    assert_eq!(alone(&|_| ()), 64);
    assert_eq!(alone(&|core| resolve(core, 100)), 1, "a page of it is there");
    let staged = |core: &Core<FakePager>| {
        resolve(core, 100);
        unmap(core, BlockId(1));
    };
    assert_eq!(alone(&staged), 0, "a page of it is staged");
    let unmapped = |core: &Core<FakePager>| {
        discard(core, BlockId(1), 1 << 63, Depth::All);
        core.table.block(BlockId(1)).lock().set_valid(u64::MAX >> 1);
    };
    assert_eq!(alone(&unmapped), 0, "partly unmapped");
    assert_eq!(alone(&|core| core.table.block(BlockId(1)).lock().set_readonly(1)), 0, "partly protected");
    assert_eq!(alone(&|core| core.table.block(BlockId(1)).set_access(Access::Random)), 0, "advised");
    let core = streamed();
    let guard = core.table.block(BlockId(1)).lock();
    fault::resolve(&core, &Strides::default(), PageId(0), 1);
    assert_eq!(core.table.in_state(&guard, u64::MAX, State::Resident), 0, "somebody is at it");
    drop(guard);
    // The last block of the table has no next one.
    let last = BlockId(15);
    fill_block(&core, last.0, text);
    unmap(&core, last);
    while let Some(block) = core.staged.pop() {
        store(&core, &mut Workbench::new(), block);
    }
    core.table.block(last).set_access(Access::Sequential);
    assert!(matches!(fault::resolve(&core, &Strides::default(), last.page(0), 1), Outcome::Installed(_)));
    assert_eq!(core.table.in_state(&core.table.block(last).lock(), u64::MAX, State::Resident), u64::MAX);
    core.validate(1024).unwrap();
}

#[test]
fn two_blocks_of_which_a_page_is_damaged_or_cannot_be_mapped_come_as_far_as_it() {
    let damage = |core: &Core<FakePager>, page: u32| {
        let h = core.table.word(PageId(page)).load().handle().unwrap();
        crate::door::with_bytes(&core.pager, (h.0 as usize) << 4, 8, |b| b[6] ^= 0xff);
    };
    let come = |page: u32, damaged: bool| {
        let core = streamed();
        let frames = core.room.frames.existing();
        if damaged {
            damage(&core, page)
        } else {
            assert_eq!(core.pager.zero(PageId(page)).pages, 1)
        }
        let outcome = fault::resolve(&core, &Strides::default(), PageId(0), 1);
        assert_eq!(core.room.frames.existing(), frames, "none is lost");
        let there = |b| {
            core.table.in_state(&core.table.block(BlockId(b)).lock(), u64::MAX, State::Resident).count_ones()
        };
        (outcome, there(0), there(1))
    };
    let (outcome, first, second) = come(0, true);
    assert_eq!((outcome, first, second), (Outcome::Lost, 63, 0), "its neighbours come");
    for damaged in [true, false] {
        let (outcome, first, second) = come(70, damaged);
        assert!(matches!(outcome, Outcome::Installed(_)), "{outcome:?}");
        assert_eq!((first, second), (64, 6), "the rest of the second block has faults of its own");
        let (outcome, first, second) = come(20, damaged);
        assert!(matches!(outcome, Outcome::Installed(_)), "{outcome:?}");
        assert_eq!((first, second), (20, 0));
    }
}

#[test]
fn what_would_be_copied_on_its_way_is_dropped_where_it_is_by_one_call_for_a_run() {
    let core = core();
    core.pager.copy();
    fill_block(&core, 3, text);
    fill_block(&core, 4, text);
    let exist = core.room.frames.existing();
    core.pager.refuse(Call::Drop, 2, 9, Errno::EINVAL);
    let gone = discard(&core, BlockId(3), !(1 << 20), Depth::All);
    assert_eq!((gone.pages, gone.refused), (63, None));
    assert_eq!((core.pager.refuse_no_more(), core.room.frames.existing()), (9, exist - 63));
    assert!(core.pager.read(BlockId(3).page(20)).is_some() && core.pager.read(BlockId(3).page(21)).is_none());
    // A run that is refused is asked for page by page; what is refused then stays.
    core.pager.refuse(Call::Drop, 0, 2, Errno::EINVAL);
    let gone = discard(&core, BlockId(4), u64::MAX, Depth::All);
    assert_eq!((gone.pages, gone.refused), (63, Some(Errno::EINVAL)));
    assert_eq!(core.table.block(BlockId(4)).resident(), 1);
    assert_eq!(core.room.frames.existing(), exist - 126);
}
