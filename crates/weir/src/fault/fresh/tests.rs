//! New frames for pages that nobody has touched, on a fake pager.

use super::*;
use crate::fault::{Outcome, Strides, resolve};
use crate::page::BlockId;
use crate::sim::{FakePager, World};
use crate::sync::Ordering;

const PAGES: u32 = 1024;

fn core(pages: u32) -> Core<FakePager> {
    World::budget(8).pages(pages).core()
}

#[test]
fn pages_never_touched_come_from_the_kernel_as_long_as_nothing_was_evicted() {
    let core = core(PAGES);
    for page in 0..PAGES {
        if core.pager.read(PageId(page)).is_none() {
            let got = resolve(&core, &Strides::default(), PageId(page), 1);
            assert!(matches!(got, Outcome::Installed(_)), "{got:?}");
        }
    }
    assert_eq!(core.stats.in_copied().get(), 0, "none came by itself");
    assert_eq!((core.room.frames.free(), core.room.frames.existing()), (0, PAGES), "nor by the arena");
    assert_eq!(core.room.balance(&core.pager, &core.stats), 0, "and none is made there ahead of need");
    assert_eq!(core.validate(PAGES).unwrap().resident, PAGES.into());
    assert!((0..PAGES).all(|page| core.pager.read(PageId(page)) == Some([0; 4096])));
}

#[test]
fn credit_for_pages_that_cannot_come_is_given_back_and_those_before_them_come() {
    let core = core(PAGES);
    // A page that is there although the table does not know: the call stops at it.
    assert_eq!(core.pager.zero(PageId(20)).pages, 1);
    let got = resolve(&core, &Strides::default(), PageId(0), 1);
    assert!(matches!(got, Outcome::Installed(_)), "{got:?}");
    let resident = core.validate(PAGES).unwrap().resident;
    assert_eq!(
        u64::from(core.room.frames.existing() - core.room.frames.free()),
        resident,
        "as many frames as pages"
    );
    assert!((0..20).all(|page| core.table.word(PageId(page)).load().state() == State::Resident));
    assert!(core.stats.errors_fill.load(Ordering::Relaxed) > 0 && core.room.is_plentiful());
}

#[test]
fn where_the_kernel_gives_no_new_frame_the_arena_is_asked() {
    let core = core(PAGES);
    core.room.frames.grow(&core.pager).unwrap();
    assert_eq!(core.pager.zero(PageId(5)).pages, 1);
    // The run that begins at the page itself brings nothing: the other way is tried, and fails as it did
    // before.
    let held = core.table.block(BlockId(0)).lock();
    assert_eq!(fill_run(&core, &held, PageId(5), 10), None);
    assert_eq!((core.room.frames.existing(), core.room.frames.free()), (64, 64), "its credit is back");
    assert_eq!(fill_run(&core, &held, PageId(6), 10), Some(10));
    assert_eq!(fill_run(&core, &held, PageId(6), 10), None, "they are touched now");
}

#[test]
fn before_credit_runs_out_frames_are_made_in_the_arena_for_the_pool() {
    let core = core(4 * PAGES); // twice the budget
    let full = (0..4 * PAGES)
        .find(|page| resolve(&core, &Strides::default(), PageId(*page), 1) == Outcome::NoFrames);
    assert!(full.is_some_and(|page| page > PAGES), "{full:?}");
    assert!(core.room.frames.take_full(&core.pager).is_some(), "a window for the first pages that go out");
}

#[test]
fn after_the_first_eviction_frames_of_the_arena_are_used() {
    let core = core(PAGES);
    core.room.reclaimed.store(true, Ordering::Relaxed);
    assert!(matches!(resolve(&core, &Strides::default(), PageId(0), 1), Outcome::Installed(_)));
    assert!(core.room.frames.free() > 0, "some were made ahead");
}
