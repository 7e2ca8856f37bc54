//! Cold records on a fake pager: which are made again, and that all stay what they were.

use super::super::compress::Workbench;
use super::super::tests::{fill_block, store};
use super::super::unmap::unmap;
use super::*;
use crate::fault::{self, Strides};
use crate::limits::COLD_WANTED_MIN;
use crate::page::{BlockId, PageId};
use crate::sim::FakePager;

const SECOND: u64 = 1_000_000_000;

fn core() -> Core<FakePager> {
    let mut core = super::super::tests::core();
    core.cold = Cold::Recompress;
    core
}

/// Sixteen different bytes in no order, then zeros: LZ4 keeps a byte for each, zstd half of one. In
/// blocks whose number is odd there are all kinds of bytes, of which zstd keeps as many.
fn contents(page: PageId) -> PageBytes {
    let mask = if page.block().0.is_multiple_of(2) { 15 } else { 255 };
    let mut seed = u64::from(page.0) + 1;
    core::array::from_fn(|i| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        if i < 2000 { (seed >> 56) as u8 & mask } else { 0 }
    })
}

fn fault(core: &Core<FakePager>, page: PageId) {
    let _ = fault::resolve(core, &Strides::default(), page, 1);
}

fn check(core: &Core<FakePager>, page: PageId) {
    if core.pager.read(page).is_none() {
        fault(core, page);
    }
    assert!(core.pager.read(page).unwrap() == contents(page), "{page:?}");
}

fn fill(core: &Core<FakePager>, block: BlockId) {
    fill_block(core, block.0, |i, p| *p = contents(block.page(i)));
    send_out(core, block);
}

fn send_out(core: &Core<FakePager>, block: BlockId) {
    unmap(core, block);
    while let Some(block) = core.staged.pop() {
        store(core, &mut Workbench::new(), block);
    }
}

/// Enough pages were wanted for another lap, and one is made. Records that are zstd's now, and those
/// tried for it.
fn lap(core: &Core<FakePager>, at_ns: u64) -> (u64, u64) {
    core.stats.faults_major().add(COLD_WANTED_MIN);
    core.room.kick.store(0, Ordering::Relaxed); // as the background thread does first
    let mut now = at_ns;
    while now < at_ns + SECOND {
        now = work(core, now).unwrap();
    }
    let get = |n: &core::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    core.validate(1024).unwrap();
    (get(&core.stats.recompressed), get(&core.stats.recompress_tried))
}

#[test]
fn what_nobody_wants_for_a_lap_gets_smaller_once_and_is_what_it_was() {
    let core = core();
    (0..2).for_each(|b| fill(&core, BlockId(b)));
    let before = core.stats.pool_stored_bytes().get();
    assert_eq!(lap(&core, SECOND), (0, 0), "all are young");
    assert_eq!(lap(&core, 10 * SECOND), (64, 128), "half of them are worth it");
    assert_eq!(lap(&core, 20 * SECOND), (64, 128), "and none is tried again");
    let saved = core.stats.recompress_saved_bytes.load(Ordering::Relaxed);
    assert_eq!(core.stats.pool_stored_bytes().get(), before - saved);
    assert!(saved > 64 * 800, "{saved} bytes saved");
    (0..128).for_each(|p| check(&core, PageId(p)));
    assert_eq!(core.room.pool.zstd_records().1, 64);
    // Out again, unchanged or not.
    core.pager.write(PageId(3), |p| p[5] ^= 1);
    send_out(&core, BlockId(0));
    fault(&core, PageId(3));
    let got = core.pager.read(PageId(3)).unwrap();
    assert!(got[5] == contents(PageId(3))[5] ^ 1 && got[6..] == contents(PageId(3))[6..]);
    core.validate(1024).unwrap();
}

#[test]
fn what_was_wanted_meanwhile_is_young_again() {
    let core = core();
    fill(&core, BlockId(0));
    assert_eq!(lap(&core, SECOND), (0, 0));
    (0..64).for_each(|p| check(&core, PageId(p)));
    send_out(&core, BlockId(0)); // to the same records, where they were kept
    assert_eq!(lap(&core, 10 * SECOND), (0, 0));
    assert_eq!(lap(&core, 20 * SECOND), (64, 64));
}

#[test]
fn a_record_that_is_wanted_or_another_one_while_it_is_compressed_stays() {
    let core = core();
    fill(&core, BlockId(0));
    let record = |p: u32| core.table.word(PageId(p)).load().handle().unwrap();
    let lock = || core.table.block(BlockId(0)).lock();
    let header = |p: u32| match core.room.pool.grow_older(&core.pager, &lock(), record(p)) {
        Age::Old(header) => Some(header),
        _ => None,
    };
    assert_eq!((header(0), header(1)), (None, None), "young");
    let (first, second) = (header(0).unwrap(), header(1).unwrap());
    assert!(core.room.pool.is_still(&core.pager, &lock(), record(0), first));
    let mut page = [0; PAGE_BYTES];
    core.room.pool.expand(&core.pager, record(0), PageId(0), &mut page).unwrap();
    assert!(!core.room.pool.is_still(&core.pager, &lock(), record(0), first), "it was wanted");
    let place = record(1);
    let _ = core.room.pool.lend(&core.pager, place, PageId(1), |_, bytes| bytes.len());
    assert!(
        core.room.pool.is_still(&core.pager, &lock(), place, second),
        "who writes it to the swap file does not want it"
    );
    // Another page's old record takes the place, and then the number.
    let bytes = core.room.pool.lend(&core.pager, place, PageId(1), |_, bytes| bytes.to_vec()).unwrap();
    let other = core.room.store(&core.pager, &core.stats, PageId(100), Codec::Lz4, &bytes).unwrap();
    assert_eq!(core.room.pool.grow_older(&core.pager, &lock(), other), Age::Young);
    core.room.pool.rename(&core.pager, &lock(), other, PageId(1));
    assert!(!core.room.pool.is_still(&core.pager, &lock(), other, second));
    core.room.free_record(&core.pager, &core.stats, other);
    (0..64).for_each(|p| check(&core, PageId(p)));
    core.pager.write(PageId(1), |p| p[0] ^= 1);
    send_out(&core, BlockId(0));
    assert!(!core.room.pool.is_still(&core.pager, &lock(), place, second), "its page has other bytes now");
}

#[test]
fn nothing_is_done_where_it_is_not_to_be_where_frames_are_short_or_where_nobody_faults() {
    let mut core = core();
    fill(&core, BlockId(0));
    core.cold = Cold::Keep;
    assert_eq!(work(&core, SECOND), None);
    core.cold = Cold::Recompress;
    let walk = |core: &Core<FakePager>| core.cold_walk.lock().unwrap().at;
    assert_eq!((work(&core, SECOND), walk(&core)), (Some(2 * SECOND), None), "nobody faults");
    core.stats.faults_major().add(COLD_WANTED_MIN);
    while core.room.available() >= core.room.low_mark() {
        core.room.frames.take_full(&core.pager).unwrap();
    }
    let soon = Some(3 * SECOND + SECOND / 100);
    assert_eq!((work(&core, 3 * SECOND), walk(&core)), (soon, Some((0, 0))), "no frames");
}

#[test]
fn a_damaged_record_stays_where_it_is() {
    let core = core();
    fill(&core, BlockId(0));
    lap(&core, SECOND);
    let handle = core.table.word(PageId(9)).load().handle().unwrap();
    crate::door::with_bytes(&core.pager, ((handle.0 as usize) << 4) + 8, 64, |b| b.fill(0xff));
    assert_eq!(lap(&core, 10 * SECOND), (63, 63));
    assert_eq!(core.table.word(PageId(9)).load().handle(), Some(handle));
    assert_eq!(fault::resolve(&core, &Strides::default(), PageId(9), 1), fault::Outcome::Lost);
}
