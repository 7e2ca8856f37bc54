//! Calls that the kernel refuses: what was begun is undone, and no page is lost.

use super::*;
use crate::error::SwapError;
use crate::limits::{THREAD_BYTES, THREADS_LOOK_BYTES, THREADS_ROUNDS};
use crate::page::BlockId;
use crate::page::region::Region;
use crate::page::table::{BLOCK_METADATA_BYTES, CHARGED_BLOCKS};
use crate::sim::Call;

const PROT_READ: i32 = 1;
const BLOCK: u32 = 64;
/// What is charged at a time for blocks that are touched.
const TOUCHED_BYTES: u64 = CHARGED_BLOCKS as u64 * BLOCK_METADATA_BYTES;

/// Whole blocks, all pages written: the first.
fn filled(w: &mut World, blocks: u32) -> u32 {
    let len = (blocks * BLOCK) as usize * PAGE_BYTES;
    let addr = w.engine.map(len, 64 * PAGE_BYTES, PROT_RW, Kind::Map).unwrap();
    let start = page_at(addr);
    (start..start + blocks * BLOCK).for_each(|page| w.write(page));
    start
}

fn page_at(addr: usize) -> u32 {
    ((addr - BASE) / PAGE_BYTES) as u32
}

fn bytes(pages: u32) -> usize {
    pages as usize * PAGE_BYTES
}

fn state(w: &World, page: u32) -> State {
    w.engine.core.table.word(PageId(page)).load().state()
}

fn disk(w: &World) -> &FakeDisk {
    w.engine.core.copies.swapping.as_ref().expect("a swap file").tier.device()
}

/// All pages of these blocks are unmapped; those that can be are stored.
fn send_out(w: &World, start: u32, blocks: u32) {
    w.engine.page_out(w.addr(start), bytes(blocks * BLOCK)).unwrap();
    while w.engine.core.staged.pages() > 0 && w.engine.reclaim_here() > 0 {}
}

fn resolve(w: &World, page: u32) -> Outcome {
    fault::resolve(&w.engine.core, &w.engine.strides, PageId(page), 1)
}

/// All pages from `start` on have their bytes.
fn check_all(w: &World, start: u32, pages: u32) {
    w.validate(0);
    (start..start + pages).for_each(|page| w.check(page, 1));
    w.validate(1);
}

/// The region map's entry for a page.
fn region(w: &World, page: u32) -> Option<Region> {
    w.engine.regions().map.find(page)
}

#[test]
fn a_move_into_the_program_that_is_refused_leaves_staged_and_pooled_pages_where_they_are() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 4);
    w.engine.page_out(w.addr(start), bytes(BLOCK)).unwrap();
    assert_eq!(state(&w, start + 7), State::Staged);
    w.pager().refuse(Call::Fill, 0, 64, Errno::ENOMEM);
    w.pager().refuse(Call::Copy, 0, 64, Errno::ENOMEM);
    assert_eq!(resolve(&w, start + 7), Outcome::NoFrames);
    assert_eq!(state(&w, start + 7), State::Staged);
    assert!(w.pager().refuse_no_more() < 128, "it was asked");
    w.validate(0);
    send_out(&w, start, 4);
    let out =
        (start..start + 4 * BLOCK).find(|page| state(&w, *page) == State::Pooled).expect("a pooled page");
    w.pager().refuse(Call::Fill, 0, 64, Errno::ENOMEM);
    w.pager().refuse(Call::Copy, 0, 64, Errno::ENOMEM);
    let (free, exist) = (w.engine.core.room.frames.free(), w.engine.core.room.frames.existing());
    assert_eq!(resolve(&w, out), Outcome::NoFrames);
    assert_eq!(state(&w, out), State::Pooled);
    assert!(w.pager().refuse_no_more() < 128, "it was asked");
    let core = &w.engine.core;
    assert!(core.room.frames.free() - free == core.room.frames.existing() - exist, "no frame is lost");
    check_all(&w, start, 4 * BLOCK);
}

#[test]
fn a_copy_that_is_refused_gives_its_credit_back() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 4);
    send_out(&w, start, 4);
    let core = &w.engine.core;
    (0..64).for_each(|_| core.room.demand.note(1)); // single pages come by copy
    while core.room.frames.free() > 0 && core.room.frames.shed_windows(&core.pager, u32::MAX, 1) > 0 {}
    let out =
        (start..start + 4 * BLOCK).find(|page| state(&w, *page) == State::Pooled).expect("a pooled page");
    core.table.block(PageId(out).block()).set_readahead(0);
    core.pager.refuse(Call::Copy, 0, 1, Errno::ENOMEM);
    let in_use = || core.room.frames.existing() - core.room.frames.free();
    let before = in_use();
    assert_eq!(resolve(&w, out), Outcome::NoFrames);
    assert_eq!((state(&w, out), w.pager().refuse_no_more()), (State::Pooled, 0));
    assert_eq!(in_use(), before, "its frame was counted, and is no more");
    check_all(&w, start, 4 * BLOCK);
}

#[test]
fn a_move_out_of_the_program_that_is_refused_leaves_the_pages_mapped() {
    for lifts in [1, 2] {
        let mut w = world_with(lifts, None, Policy::Writeback);
        let start = filled(&mut w, 2);
        for e in [Errno::EFAULT, Errno::ENOMEM, Errno::EEXIST] {
            w.pager().fail_drain(0, e);
            w.pager().fail_drain(1, e);
            w.engine.page_out(w.addr(start), bytes(BLOCK)).unwrap();
            w.validate(0);
        }
        check_all(&w, start, 2 * BLOCK);
    }
}

#[test]
fn a_mapping_that_cannot_move_is_what_it_was_and_its_new_place_is_nobodys() {
    for prot in [PROT_RW, PROT_READ] {
        for to in [false, true] {
            // The kernel refuses the first, the second, ... change of protection.
            for refused in 0..4 {
                let mut w = world_with(11, None, Policy::Writeback);
                let start = filled(&mut w, 4);
                send_out(&w, start, 2);
                (start..start + 10).for_each(|page| w.fault_if_out(page));
                let (addr, len) = (w.addr(start), bytes(4 * BLOCK));
                w.engine.protect(addr, len, prot).unwrap();
                w.validate(0);
                let charged = w.engine.core.ledger.metadata_bytes();
                let place = if to { Place::At(addr + 4 * len) } else { Place::Anywhere };
                w.pager().refuse(Call::Protect, refused, 1, Errno::ENOMEM);
                let result = w.engine.remap(addr, len, 2 * len, place, to);
                if w.pager().refuse_no_more() > 0 {
                    assert!(result.is_ok(), "it asks less often: {result:?}");
                    continue;
                }
                let what = format!("protection {prot}, {place:?}, call {refused}: {result:?}");
                w.validate(0);
                match result {
                    Ok(new) => {
                        // The last call is for the place that is left.
                        let moved: Vec<_> = (0..4 * BLOCK).map(|i| w.model[&(start + i)]).collect();
                        (0..4 * BLOCK).for_each(|i| _ = w.model.insert(page_at(new) + i, moved[i as usize]));
                        (start..start + 4 * BLOCK).for_each(|page| w.forget(page));
                        check_all(&w, page_at(new), 4 * BLOCK);
                    }
                    Err(e) => {
                        assert!(matches!(e, Refused::Kernel(Errno::ENOMEM)), "{what}");
                        assert_eq!(
                            region(&w, start).map(|r| (r.pages, r.prot)),
                            Some((4 * BLOCK, prot)),
                            "{what}"
                        );
                        assert_eq!(w.engine.regions().map.mapped_pages(), u64::from(4 * BLOCK), "{what}");
                        // Words that were touched at the new place stay charged, its rows do not.
                        let more = w.engine.core.ledger.metadata_bytes() - charged;
                        assert!(more.is_multiple_of(TOUCHED_BYTES), "{what}: {more} bytes");
                        check_all(&w, start, 4 * BLOCK);
                    }
                }
            }
        }
    }
}

#[test]
fn a_mapping_that_cannot_be_made_is_nobodys() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 1);
    let held = w.engine.core.resident_bytes();
    let beyond = w.addr(start) + bytes(8 * BLOCK);
    // The call behind each of them takes back what access a part may have.
    w.pager().fail_protect(1, Errno::ENOMEM);
    assert!(w.engine.map(bytes(100), 1, PROT_RW, Kind::Map).is_err());
    w.pager().fail_protect(2, Errno::ENOMEM);
    assert!(w.engine.map_fixed(beyond, bytes(100), PROT_RW).is_err());
    assert_eq!(w.engine.regions().map.mapped_pages(), u64::from(BLOCK));
    assert_eq!(w.engine.core.resident_bytes(), held, "rows are refunded");
    assert_eq!(region(&w, page_at(beyond)), None);
    w.engine.map_fixed(beyond, bytes(100), PROT_RW).unwrap();
    check_all(&w, start, BLOCK);
}

#[test]
fn a_reservation_over_which_memory_was_refused_is_not_given_to_somebody_else() {
    let w = world_with(11, None, Policy::Writeback);
    let len = bytes(4 * BLOCK);
    let reserved = w.engine.map(len, 1, 0, Kind::Map).unwrap();
    w.pager().refuse(Call::Protect, 0, 2, Errno::ENOMEM);
    assert!(w.engine.map_fixed(reserved, len, PROT_RW).is_err());
    w.pager().refuse_no_more();
    assert!(region(&w, page_at(reserved)).is_some_and(|r| r.bare && r.pages == 4 * BLOCK));
    let other = w.engine.map(len, 1, PROT_RW, Kind::Map).unwrap();
    assert!(other >= reserved + len || other + len <= reserved);
    w.engine.map_fixed(reserved, len, PROT_RW).unwrap();
}

#[test]
fn a_mapping_that_the_kernel_keeps_is_mapped_and_charged_as_before() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 2);
    let (addr, held) = (w.addr(start), w.engine.core.ledger.metadata_bytes());
    w.pager().fail_protect(1, Errno::ENOMEM);
    assert!(w.engine.unmap(addr, bytes(2 * BLOCK)).is_err());
    assert_eq!(w.engine.core.ledger.metadata_bytes(), held);
    assert!(region(&w, start).is_some());
    // Its contents went first.
    (start..start + 2 * BLOCK).for_each(|page| w.forget(page));
    check_all(&w, start, 2 * BLOCK);
    w.write(start + 3);
    w.check(start + 3, 2);
    w.engine.unmap(addr, bytes(2 * BLOCK)).unwrap();
    w.validate(3);
    assert_eq!(region(&w, start), None);
}

#[test]
fn a_change_of_protection_that_is_refused_in_the_middle_changes_what_came_before_it_alone() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 4);
    let part = bytes(BLOCK);
    // Three regions: the one in the middle has the protection that is asked for.
    w.engine.protect(w.addr(start + BLOCK), part, PROT_READ).unwrap();
    w.pager().refuse(Call::Protect, 1, 1, Errno::ENOMEM);
    assert!(w.engine.protect(w.addr(start), 4 * part, PROT_READ).is_err());
    let prots = [0, 1, 2, 3].map(|b| region(&w, start + b * BLOCK).unwrap().prot);
    assert_eq!(prots, [PROT_READ, PROT_READ, PROT_RW, PROT_RW]);
    assert_eq!(region(&w, start).unwrap().pages, 2 * BLOCK, "neighbours that are alike are one");
    check_all(&w, start, 4 * BLOCK);
    w.engine.protect(w.addr(start), 4 * part, PROT_RW).unwrap();
    assert_eq!(region(&w, start).unwrap().pages, 4 * BLOCK);
    check_all(&w, start, 4 * BLOCK);
}

#[test]
fn a_page_that_the_kernel_does_not_drop_keeps_its_bytes_and_the_program_is_told() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 1);
    w.pager().set_busy(PageId(start + 5), true);
    w.pager().refuse(Call::Drop, 0, 1, Errno::EINVAL);
    let result = w.engine.drop_contents(w.addr(start), bytes(BLOCK));
    assert!(matches!(result, Err(Refused::Kernel(Errno::EINVAL))), "{result:?}");
    (start..start + BLOCK).filter(|page| *page != start + 5).for_each(|page| w.forget(page));
    check_all(&w, start, BLOCK);
    w.engine.drop_contents(w.addr(start), bytes(BLOCK)).unwrap();
    w.forget(start + 5);
    check_all(&w, start, BLOCK);
}

#[test]
fn frames_that_the_kernel_does_not_take_back_stay_free() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 8);
    w.engine.drop_contents(w.addr(start), bytes(6 * BLOCK)).unwrap();
    (start..start + 6 * BLOCK).for_each(|page| w.forget(page));
    let core = &w.engine.core;
    core.pager.refuse(Call::Shed, 0, 1, Errno::ENOMEM);
    let (free, exist) = (core.room.frames.free(), core.room.frames.existing());
    assert_eq!(core.room.frames.shed_windows(&core.pager, u32::MAX, 1), 0);
    assert_eq!((core.room.frames.free(), core.room.frames.existing()), (free, exist));
    assert!(core.room.frames.shed_windows(&core.pager, u32::MAX, 1) > 0);
    check_all(&w, start, 8 * BLOCK);
}

#[test]
fn a_read_or_write_of_the_swap_file_that_is_refused_loses_no_page() {
    let fails_at = |w: &World, op: u64| disk(w).fails_at.store(op, Ordering::Relaxed);
    let fail_from_now = |w: &World| fails_at(w, disk(w).ops.load(Ordering::Relaxed) + 1);
    let mut failing = FakeDisk::new(DISK, 512);
    failing.goes_on_failing = true;
    let mut w = world_with(6, Some(failing), Policy::Writeback);
    let start = filled(&mut w, 24);
    send_out(&w, start, 24);
    // A read: the page stays where it is, and can be read later.
    let out =
        (start..start + 24 * BLOCK).find(|page| state(&w, *page) == State::Swapped).expect("a swapped page");
    fail_from_now(&w);
    assert_eq!((resolve(&w, out), state(&w, out)), (Outcome::Lost, State::Swapped));
    assert_eq!(fault::loss(&w.engine.core.copies), SwapError::Read(Errno::EIO));
    fails_at(&w, 0);
    check_all(&w, start, 24 * BLOCK);
    // A write: nothing more is written, and all pages are somewhere else.
    (start..start + 24 * BLOCK).for_each(|page| w.write(page));
    fail_from_now(&w);
    send_out(&w, start, 24);
    let swapping = w.engine.core.copies.swapping.as_ref().unwrap();
    assert_eq!((swapping.tier.is_latched(), swapping.usable()), (Some(Errno::EIO), false));
    fails_at(&w, 0);
    check_all(&w, start, 24 * BLOCK);
}

#[test]
fn a_new_mapping_inherits_no_stream_of_the_one_that_lay_there() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 6);
    let readahead = |w: &World, b: u32| w.engine.core.table.block(BlockId(start / BLOCK + b)).readahead();
    send_out(&w, start, 6);
    (start..start + 6 * BLOCK).for_each(|page| w.fault_if_out(page));
    assert!((0..6).any(|b| readahead(&w, b) != 0), "it was read in order");
    // Out again, so that nothing of it is in frames when it goes.
    send_out(&w, start, 6);
    (0..6).for_each(|b| {
        w.engine.core.table.block(BlockId(start / BLOCK + b)).set_readahead(1 << 20 | b as u64)
    });
    w.engine.unmap(w.addr(start), bytes(6 * BLOCK)).unwrap();
    let again = w.engine.map(bytes(6 * BLOCK), 64 * PAGE_BYTES, PROT_RW, Kind::Map).unwrap();
    assert_eq!(page_at(again), start);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|b| readahead(&w, b)), [0; 6]);
    w.validate(0);
}

#[test]
fn the_protection_of_a_range_is_told_where_it_has_one() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 3);
    let at = |block: u32| w.addr(start + block * BLOCK);
    let of = |block: u32, blocks: u32| w.engine.protection(at(block), bytes(blocks * BLOCK)).ok();
    assert_eq!(of(0, 3), Some((PROT_RW, false)));
    w.engine.protect(at(1), bytes(BLOCK), PROT_READ).unwrap();
    assert_eq!([of(0, 1), of(1, 1), of(2, 1)], [PROT_RW, PROT_READ, PROT_RW].map(|prot| Some((prot, false))));
    assert_eq!((of(0, 3), of(0, 2)), (None, None), "the kernel would make several mappings of it");
    assert_eq!(of(2, 2), None, "nobody has mapped the rest");
    w.engine.make_foreign(at(1), bytes(BLOCK)).unwrap();
    assert_eq!(of(1, 1), None, "something else lies there");
    let bare = w.engine.map(bytes(BLOCK), 1, 0, Kind::Map).unwrap();
    assert_eq!(w.engine.protection(bare, bytes(BLOCK)).ok(), Some((0, true)), "a reservation");
    assert!(w.engine.protection(bare + 1, PAGE_BYTES).is_err(), "not a page");
    assert!(w.engine.protection(BASE - PAGE_BYTES, PAGE_BYTES).is_err(), "not in the space");
}

#[test]
fn whoever_makes_many_threads_makes_room_for_their_stacks_now_and_then() {
    let mut w = world_with(11, None, Policy::Writeback);
    let start = filled(&mut w, 40);
    while w.engine.core.room.frames.grow(&w.engine.core.pager).unwrap() > 0 {}
    // So much was found outside at the last look.
    let _ = w.engine.core.note_outside(BUDGET / 4, 1);
    let excess = |w: &World| {
        let frames = &w.engine.core.room.frames;
        frames.existing().saturating_sub(frames.limit())
    };
    let before = excess(&w);
    assert!(before > 0, "frames are in use that the limit no longer allows");
    let asks = THREADS_LOOK_BYTES / THREAD_BYTES;
    (1..asks).for_each(|_| w.engine.make_room_for_thread());
    assert_eq!(excess(&w), before, "not for each thread");
    w.engine.make_room_for_thread();
    let after = excess(&w);
    assert!(after < before, "{after} of {before} frames are too many");
    assert!(before - after <= THREADS_ROUNDS * 128, "{after} of {before}: no more than some rounds");
    for _ in 0..asks * 40 {
        w.engine.make_room_for_thread();
    }
    assert_eq!(excess(&w), 0);
    check_all(&w, start, 40 * BLOCK);
}
