//! The swap file in the page path, on a fake pager and a fake disk: what happens to a page while it is
//! written or read, and what a failing disk does to it.

use crate::config::Policy;
use crate::error::SwapError;
use crate::fault::{self, Outcome, Strides};
use crate::page::state::State;
use crate::page::{BlockId, PageId, SwapSlot};
use crate::reclaim::batch::Batch;
use crate::reclaim::compress::Workbench;
use crate::reclaim::discard::{Depth, discard};
use crate::reclaim::store::{Portion, store_window};
use crate::reclaim::through::write_through;
use crate::reclaim::unmap::unmap;
use crate::reclaim::{relief, tidy};
use crate::shared::Core;
use crate::shared::swapping::Swapping;
use crate::sim::disk::FakeDisk;
use crate::sim::{FakePager, World};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::codec::PageBytes;
use weir_os::sys::Errno;

mod balance;
mod loads;
mod moving;
mod pool_size;
mod through;

type Fake = Core<FakePager>;
const PAGES: u32 = 2048;
const MIB: u64 = 1 << 20;

/// 12 MiB of RAM, of which the pool may have five windows, over a disk of so many MiB.
fn fakes(disk_mib: u64) -> World {
    World::budget(12).pages(PAGES).pool_max(12).swap(FakeDisk::new(disk_mib * MIB, 512), disk_mib * MIB)
}

/// A core that lives as long as the test: hooks keep it.
fn live(world: World) -> &'static Fake {
    Box::leak(Box::new(world.core()))
}

fn core() -> &'static Fake {
    live(fakes(8))
}

fn swapping(core: &Fake) -> &Swapping<FakeDisk> {
    core.copies.swapping.as_ref().unwrap()
}

fn disk(core: &Fake) -> &FakeDisk {
    swapping(core).tier.device()
}

fn get(n: &AtomicU64) -> u64 {
    n.load(Ordering::Relaxed)
}

/// Does not compress, and differs for every page.
fn noise(page: u32) -> PageBytes {
    let mut x = u64::from(page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    core::array::from_fn(|_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    })
}

/// Half of it compresses.
fn mixed(page: u32) -> PageBytes {
    let mut bytes = noise(page);
    bytes[2048..].fill(page as u8);
    bytes
}

fn resolve(core: &Fake, page: u32) -> Outcome {
    fault::resolve(core, &Strides::default(), PageId(page), 1)
}

fn fill(core: &Fake, block: u32, contents: fn(u32) -> PageBytes) {
    for page in block * 64..block * 64 + 64 {
        while !core.pager.write(PageId(page), |p| *p = contents(page)) {
            assert!(matches!(resolve(core, page), Outcome::Installed(_) | Outcome::Stale));
        }
    }
}

/// What the program reads; `None`: the access fails.
fn read(core: &Fake, page: u32) -> Option<PageBytes> {
    for _ in 0..3 {
        if let Some(bytes) = core.pager.read(PageId(page)) {
            return Some(bytes);
        }
        if resolve(core, page) == Outcome::Lost {
            return None;
        }
    }
    panic!("page {page} does not come");
}

fn state(core: &Fake, page: u32) -> State {
    core.table.word(PageId(page)).load().state()
}

fn slot_of(core: &Fake, page: u32) -> Option<SwapSlot> {
    core.table.slot_of(PageId(page), core.table.word(PageId(page)).load())
}

/// Unmaps a block and stores what it can, without writing the batch.
fn begin<'a>(core: &'a Fake, batch: &mut Batch<'a, FakePager>, block: u32) {
    unmap(core, BlockId(block));
    core.table.block(BlockId(block)).set_readahead(0); // later faults bring single pages
    while let Some(staged) = core.staged.pop() {
        let portion = Portion { most: u32::MAX, polite: false };
        if store_window(core, &mut Workbench::new(), batch, staged, portion).freed == 0 {
            break;
        }
    }
}

fn send_out(core: &Fake, block: u32) {
    let mut batch = Batch::new(core);
    begin(core, &mut batch, block);
    relief::finish(core, &mut batch);
}

#[test]
fn pages_come_back_from_the_swap_file_and_go_there_again_without_a_write() {
    let core = core();
    for block in 0..8 {
        fill(core, block, if block % 2 == 0 { noise } else { mixed });
        send_out(core, block);
    }
    let census = core.validate(PAGES).unwrap();
    assert!(census.swapped >= 256 && census.pooled > 0, "{census:?}");
    for page in 0..512u32 {
        let want = if (page / 64).is_multiple_of(2) { noise(page) } else { mixed(page) };
        assert!(read(core, page).unwrap() == want, "page {page}");
    }
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.resident, census.swapped), (512, 0));
    assert!(census.kept_slots >= 256, "{census:?}");
    let (written, clean) = (get(&swapping(core).tier.counters().pages_out), get(&core.stats.swap_clean));
    (0..8).step_by(2).for_each(|block| send_out(core, block));
    assert_eq!(get(&swapping(core).tier.counters().pages_out), written, "nothing had changed");
    assert_eq!(get(&core.stats.swap_clean) - clean, 4 * 64);
    // A changed page is written again.
    assert!(read(core, 3).unwrap() == noise(3));
    core.pager.write(PageId(3), |p| p[7] ^= 1);
    send_out(core, 0);
    let mut want = noise(3);
    want[7] ^= 1;
    assert!(read(core, 3).unwrap() == want);
    core.validate(PAGES).unwrap();
}

#[test]
fn changed_pages_that_did_not_compress_go_to_the_swap_file_untried_until_a_probe_finds_that_they_do() {
    let core = core();
    fill(core, 1, noise);
    send_out(core, 1);
    let change = |f: &dyn Fn(u32) -> PageBytes| {
        for page in 64..128 {
            read(core, page).unwrap();
            assert!(core.pager.write(PageId(page), |p| *p = f(page)));
        }
    };
    let untried = || get(&core.stats.out_untried);
    assert_eq!(untried(), 0, "all were tried");
    change(&|page| noise(page + 1000));
    send_out(core, 1);
    assert!((54..=58).contains(&untried()), "one in eight is tried again: {}", untried());
    assert_eq!(core.validate(PAGES).unwrap().swapped, 64);
    (64..128).for_each(|page| assert!(read(core, page).unwrap() == noise(page + 1000), "page {page}"));
    // Unchanged they are neither tried nor written.
    let (before, written) = (untried(), get(&swapping(core).tier.counters().pages_out));
    send_out(core, 1);
    assert_eq!((untried(), core.validate(PAGES).unwrap().swapped), (before, 64));
    assert_eq!(get(&swapping(core).tier.counters().pages_out), written);
    // Zeros are seen at once, what compresses by and by.
    change(&|page| if page < 96 { [0; 4096] } else { mixed(page) });
    send_out(core, 1);
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.same, census.pooled + census.swapped), (32, 32));
    assert!(census.swapped > 24, "{census:?}");
    for round in 0.. {
        assert!(round < 100, "{census:?}");
        change(&mixed);
        send_out(core, 1);
        if core.validate(PAGES).unwrap().pooled == 64 {
            break;
        }
    }
    (64..128).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn pages_read_from_the_swap_file_go_to_the_pool_when_it_has_room_and_are_not_read_again() {
    let core = core();
    for block in 0..12 {
        fill(core, block, mixed);
        send_out(core, block);
    }
    let swapped: Vec<u32> = (0..768).filter(|page| state(core, *page) == State::Swapped).collect();
    assert!(swapped.len() > 100, "{}", swapped.len());
    // Most of the others are given up: there is room in the pool now.
    for block in 6..12 {
        discard(core, BlockId(block), u64::MAX, Depth::All);
    }
    let block = swapped[0] / 64;
    let mine: Vec<u32> = swapped.iter().copied().filter(|page| page / 64 == block).collect();
    mine.iter().for_each(|page| assert!(read(core, *page).unwrap() == mixed(*page), "page {page}"));
    let written = get(&swapping(core).tier.counters().pages_out);
    send_out(core, block);
    assert_eq!(get(&swapping(core).tier.counters().pages_out), written, "nothing had changed");
    let read_before = get(&swapping(core).tier.counters().pages_in);
    mine.iter().for_each(|page| assert_eq!(state(core, *page), State::Pooled, "page {page}"));
    mine.iter().for_each(|page| assert!(read(core, *page).unwrap() == mixed(*page), "page {page}"));
    assert_eq!(get(&swapping(core).tier.counters().pages_in), read_before, "from the pool");
    core.validate(PAGES).unwrap();
}

#[test]
fn the_pools_coldest_pages_make_room_for_new_ones() {
    let core = core();
    for block in 0..12 {
        fill(core, block, mixed);
        send_out(core, block);
    }
    assert!(get(&core.stats.swap_from_pool) > 100, "{}", get(&core.stats.swap_from_pool));
    let census = core.validate(PAGES).unwrap();
    let pooled = |block: u32| (0..64).filter(|i| state(core, block * 64 + i) == State::Pooled).count();
    assert!(census.pooled > 0 && pooled(0) < 64, "the first block went to the pool first");
    (0..768).for_each(|page| assert!(read(core, page).unwrap() == mixed(page), "page {page}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn pages_that_compress_are_written_256_kib_at_once_and_one_by_one_when_told_so() {
    let average = |batch| {
        let core = live(fakes(8).batch(batch));
        for block in 0..16 {
            fill(core, block, mixed);
            send_out(core, block);
        }
        core.validate(PAGES).unwrap();
        let counters = swapping(core).tier.counters();
        assert!(get(&counters.pages_out) > 400, "{}", get(&counters.pages_out));
        (
            get(&counters.bytes_written) / get(&counters.writes),
            get(&counters.pages_out) / get(&counters.writes),
        )
    };
    let (bytes, pages) = average(256);
    assert!(bytes >= 200 << 10 && pages > 100, "{bytes} bytes, {pages} pages a write");
    let (bytes, pages) = average(1);
    assert!(bytes <= 4096 && pages == 1, "{bytes} bytes, {pages} pages a write");
}

#[test]
fn a_page_taken_back_while_its_batch_waits_is_not_written() {
    let core = core();
    fill(core, 1, noise);
    let mut batch = Batch::new(core);
    begin(core, &mut batch, 1);
    assert_eq!((state(core, 69), batch.promised()), (State::Staged, 64));
    assert!(matches!(resolve(core, 69), Outcome::Installed(_)));
    core.pager.write(PageId(69), |p| p.fill(5));
    relief::finish(core, &mut batch);
    assert_eq!((state(core, 69), state(core, 70)), (State::Resident, State::Swapped));
    assert_eq!(get(&swapping(core).tier.counters().pages_out), 63);
    assert_eq!(get(&core.stats.swap_cancelled), 1);
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.staged, census.swapped), (0, 63));
    assert_eq!(core.table.block(BlockId(1)).window(), None, "its window has ended");
    assert!(core.pager.read(PageId(69)).unwrap() == [5; 4096]);
}

#[test]
fn a_page_that_changed_and_left_again_before_its_batch_was_written_is_its_later_self() {
    let core = core();
    fill(core, 1, noise);
    let mut batch = Batch::new(core);
    begin(core, &mut batch, 1);
    for page in 64..128 {
        resolve(core, page);
    }
    core.pager.write(PageId(80), |p| *p = noise(4000));
    // The block's window is the batch's until it is written; the page goes to the batch by way of the pool's
    // queue or not at all.
    begin(core, &mut batch, 1);
    relief::finish(core, &mut batch);
    send_out(core, 1);
    assert!(read(core, 80).unwrap() == noise(4000));
    assert!(read(core, 81).unwrap() == noise(81));
    core.validate(PAGES).unwrap();
}

#[test]
fn what_is_given_up_while_it_is_written_is_gone() {
    let core = core();
    fill(core, 2, noise);
    let mut batch = Batch::new(core);
    begin(core, &mut batch, 2);
    discard(core, BlockId(2), 0xff, Depth::All);
    // The next eight are given up when the request is under way already.
    disk(core).hook.set(|| {
        discard(core, BlockId(2), 0xff00, Depth::All);
        assert!(matches!(resolve(core, 2 * 64 + 20), Outcome::Installed(_)));
    });
    relief::finish(core, &mut batch);
    assert_eq!(get(&swapping(core).tier.counters().pages_out), 56);
    assert_eq!(
        [state(core, 128), state(core, 136), state(core, 148)],
        [State::Absent, State::Absent, State::Resident]
    );
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.swapped, census.staged), (47, 0));
    assert!(core.pager.read(PageId(148)).unwrap() == noise(148));
    assert!(read(core, 150).unwrap() == noise(150));
}

#[test]
fn what_is_given_up_while_it_is_read_reads_as_zeros() {
    let core = core();
    fill(core, 3, noise);
    send_out(core, 3);
    disk(core).hook.set(|| {
        discard(core, BlockId(3), 1 << 9, Depth::All);
    });
    assert!(read(core, 192 + 9).unwrap() == [0; 4096]);
    core.validate(PAGES).unwrap();
    // And among several that are read together.
    disk(core).hook.set(|| {
        discard(core, BlockId(3), 0b1010 << 20, Depth::All);
    });
    assert!(fault::prefetch(core, BlockId(3).page(0), 0xff << 16, fault::Whose::Program) > 4);
    for i in 16..24 {
        let want = if matches!(i, 21 | 23) { [0; 4096] } else { noise(192 + i) };
        assert!(read(core, 192 + i).unwrap() == want, "page {i}");
    }
    core.validate(PAGES).unwrap();
}

#[test]
fn a_second_fault_waits_for_the_read_of_the_first() {
    let core = core();
    fill(core, 4, noise);
    send_out(core, 4);
    let (sender, receiver) = std::sync::mpsc::channel();
    disk(core).hook.set(move || {
        let second = std::thread::spawn(|| resolve(core, 4 * 64 + 1));
        while get(&core.stats.swap_waits) == 0 {
            std::thread::yield_now();
        }
        sender.send(second).unwrap();
    });
    assert!(matches!(resolve(core, 4 * 64 + 1), Outcome::Installed(_)));
    assert_eq!(receiver.recv().unwrap().join().unwrap(), Outcome::Stale);
    assert_eq!(get(&swapping(core).tier.counters().pages_in), 1);
    core.validate(PAGES).unwrap();
}

#[test]
fn a_page_that_cannot_be_read_is_lost_for_that_access_alone() {
    let core = core();
    fill(core, 5, noise);
    send_out(core, 5);
    let fails_at = &disk(core).fails_at;
    fails_at.store(get(&disk(core).ops) + 1, Ordering::Relaxed);
    assert_eq!(resolve(core, 320), Outcome::Lost);
    assert_eq!(fault::loss(&core.copies), SwapError::Read(Errno::EIO));
    assert!(read(core, 320).unwrap() == noise(320), "the next try reads it");
    let offset = swapping(core).tier.offset_of(slot_of(core, 340).unwrap()).unwrap();
    disk(core).flip(offset + 99, 4);
    assert_eq!(read(core, 340), None);
    assert_eq!(fault::loss(&core.copies), SwapError::Damaged);
    assert_eq!(state(core, 340), State::Swapped);
    (320..384).filter(|p| *p != 340).for_each(|p| assert!(read(core, p).unwrap() == noise(p), "page {p}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn pages_stay_in_their_frames_when_the_file_is_full_and_leave_when_it_is_not() {
    let core = live(fakes(4));
    for block in 0..20 {
        fill(core, block, noise);
        send_out(core, block);
    }
    assert!(swapping(core).is_full());
    let census = core.validate(PAGES).unwrap();
    assert!(census.swapped >= 896 && census.resident + census.staged >= 320, "{census:?}");
    for block in 0..15 {
        discard(core, BlockId(block), u64::MAX, Depth::All);
    }
    tidy::housekeeping(core, true);
    assert!(!swapping(core).is_full());
    for _ in 0..64 {
        send_out(core, 19); // it rests for some turns
    }
    assert!((0..64).any(|i| state(core, 19 * 64 + i) == State::Swapped));
    (15 * 64..20 * 64).for_each(|page| assert!(read(core, page).unwrap() == noise(page), "page {page}"));
    core.validate(PAGES).unwrap();
}

#[test]
fn after_a_failed_write_nothing_is_lost_and_nothing_more_is_written() {
    let mut disk = FakeDisk::new(8 * MIB, 512);
    disk.goes_on_failing = true;
    disk.fails_at.store(2, Ordering::Relaxed);
    let core = live(fakes(8).swap(disk, 8 * MIB));
    for block in 0..4 {
        fill(core, block, noise);
        send_out(core, block);
    }
    assert_eq!(swapping(core).broken_news(), Some(Errno::EIO));
    assert_eq!(swapping(core).broken_news(), None, "it is said once");
    let census = core.validate(PAGES).unwrap();
    assert_eq!((census.swapped, census.staged + census.resident), (64, 192));
    (64..256).for_each(|page| assert!(read(core, page).unwrap() == noise(page), "page {page}"));
    self::disk(core).fails_at.store(0, Ordering::Relaxed);
    (0..64).for_each(|page| assert!(read(core, page).unwrap() == noise(page), "page {page}"));
    assert!(!swapping(core).usable());
    core.validate(PAGES).unwrap();
}

/// A fixed workload that writes, reads, frees and tidies up. Pages that could not be read.
fn workload(core: &Fake) -> u32 {
    let mut lost = 0;
    for round in 0..2 {
        for block in 0..6 {
            fill_or_lose(core, block, &mut lost);
            send_out(core, block);
            core.validate(PAGES).unwrap();
            swapping(core).set_writes_through(block % 3 != round);
            while write_through(core, block % 2 == 0) {}
            core.validate(PAGES).unwrap();
        }
        for page in (0..384).filter(|p| p % 3 != 0) {
            match read(core, page) {
                Some(bytes) => assert!(bytes == mixed_or_noise(page), "round {round}, page {page}"),
                None => lost += 1,
            }
        }
        discard(core, BlockId(2), 0xffff_ffff, Depth::All);
        tidy::empty_cluster(core, swapping(core));
        tidy::housekeeping(core, true);
        core.validate(PAGES).unwrap();
    }
    lost
}

fn mixed_or_noise(page: u32) -> PageBytes {
    if (page / 64).is_multiple_of(2) { noise(page) } else { mixed(page) }
}

/// Touches every page of a block, so that one lost before is found again by the next try.
fn fill_or_lose(core: &Fake, block: u32, lost: &mut u32) {
    for page in block * 64..block * 64 + 64 {
        while !core.pager.write(PageId(page), |p| *p = mixed_or_noise(page)) {
            *lost += u32::from(resolve(core, page) == Outcome::Lost);
        }
    }
}

fn every_failure(policy: Policy) {
    let fresh = || Box::new(fakes(4).policy(policy).batch(64).core());
    let whole = fresh();
    assert_eq!(workload(&whole), 0);
    assert_eq!(get(&whole.stats.swap_through) > 100, policy != Policy::Writeback);
    let ops = get(&disk(&whole).ops);
    assert!(ops > 25, "{ops} operations");
    for n in 1..=ops {
        let core = fresh();
        disk(&core).fails_at.store(n, Ordering::Relaxed);
        let lost = workload(&core);
        assert!(lost <= 64, "operation {n}: {lost} pages were lost by one failure");
    }
}

#[test]
fn whichever_operation_of_the_disk_fails_every_page_is_itself_or_lost_and_every_count_true() {
    every_failure(Policy::Writeback);
}

#[test]
fn whichever_operation_fails_when_pages_are_written_through_every_count_is_true() {
    every_failure(Policy::Writethrough);
}

#[test]
fn whichever_operation_fails_while_the_policy_changes_every_count_is_true() {
    every_failure(Policy::Adaptive);
}

#[test]
fn a_cluster_with_few_live_records_is_emptied() {
    let core = core();
    for block in 0..24 {
        fill(core, block, noise);
        send_out(core, block);
    }
    for block in 0..24 {
        discard(core, BlockId(block), !0xf, Depth::All);
    }
    let before = swapping(core).tier.free_bytes();
    while tidy::empty_cluster(core, swapping(core)) > 0 {}
    assert!(get(&core.stats.swap_moved) > 20, "{}", get(&core.stats.swap_moved));
    assert!(swapping(core).tier.free_bytes() > before);
    core.validate(PAGES).unwrap();
    for page in (0..1536).filter(|p| p % 64 < 4) {
        assert!(read(core, page).unwrap() == noise(page), "page {page}");
    }
    core.validate(PAGES).unwrap();
}
