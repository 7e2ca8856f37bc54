//! Loads that are answered, and a fault that finds no frame but in the pool.

use super::*;
use crate::fault::load::Load;
use crate::reclaim::compact::make_room;
use crate::reclaim::{Effort, run_once};

/// A load of eight bytes at an offset that is a word's, by a site of which nothing is known yet.
fn load(core: &Fake, page: u32, word: u16) -> Outcome {
    let asker = core.admission.ask(0x1000, 0).expect("one fault in sixteen is asked to learn");
    let load = Load { offset: word * 8, bytes: 8, asker };
    fault::resolve_load(core, &Strides::default(), PageId(page), 1, &mut fault::Request::of(Some(load)))
}

fn word_of(bytes: &PageBytes, word: u16) -> u64 {
    u64::from_le_bytes(bytes[usize::from(word) * 8..][..8].try_into().unwrap())
}

/// 8 MiB of RAM.
fn core() -> &'static Fake {
    let small = World::budget(8).pages(PAGES).pool_max(12);
    live(small.swap(FakeDisk::new(8 * MIB, 512), 8 * MIB))
}

/// So full that a page which comes takes another's place.
fn tight(core: &Fake) {
    (14..32).for_each(|block| fill(core, block, mixed));
    assert!(core.room.is_tight(), "{} frames to be had", core.room.available());
}

/// The value that an answer gives; `None`: the page came in for a change.
fn answer(core: &Fake, page: u32, word: u16) -> Option<u64> {
    match load(core, page, word) {
        Outcome::Loaded(value, _) => Some(value),
        Outcome::Installed(_) => None,
        other => panic!("page {page}: {other:?}"),
    }
}

#[test]
fn a_load_is_answered_from_wherever_the_page_is_and_leaves_it_there() {
    let core = core();
    fill(core, 0, noise); // to the swap file
    fill(core, 1, mixed); // to the pool
    fill(core, 2, |_| [7; 4096]);
    (0..3).for_each(|block| send_out(core, block));
    tight(core);
    unmap(core, BlockId(20));
    core.table.block(BlockId(20)).set_readahead(0);
    let staged = 20 * 64 + 5;
    for (first, state_before, contents) in [
        (staged, State::Staged, mixed as fn(u32) -> PageBytes),
        (3, State::Swapped, noise),
        (64 + 9, State::Pooled, mixed),
        (128 + 1, State::Same, |_| [7; 4096]),
    ] {
        let mut answered = 0;
        for (page, word) in
            (0..10).map(|i| first + i * 37 % 40).zip([0, 1, 7, 100, 255, 256, 257, 300, 510, 511])
        {
            assert_eq!(state(core, page), state_before, "page {page}");
            let Some(value) = answer(core, page, word) else { continue };
            assert_eq!(value, word_of(&contents(page), word), "page {page}, word {word}");
            assert_eq!(state(core, page), state_before, "page {page}");
            answered += 1;
        }
        assert!(answered >= 8, "{answered} from {state_before:?}");
    }
    core.validate(PAGES).unwrap();
    assert!(core.stats.loads_answered().get() >= 32);
}

#[test]
fn a_page_wanted_again_at_once_comes_in() {
    let core = core();
    fill(core, 1, mixed);
    send_out(core, 1);
    tight(core);
    assert_eq!(answer(core, 70, 3), Some(word_of(&mixed(70), 3)));
    assert!(matches!(load(core, 70, 3), Outcome::Installed(_)));
    assert_eq!(state(core, 70), State::Resident);
    core.validate(PAGES).unwrap();
}

#[test]
fn where_there_is_room_or_nothing_was_there_pages_come_in() {
    let core = core();
    fill(core, 1, mixed);
    send_out(core, 1);
    assert!(!core.room.is_tight());
    assert!(matches!(load(core, 70, 3), Outcome::Installed(_)));
    assert!(matches!(load(core, 10 * 64, 3), Outcome::Installed(_)), "never touched");
    assert_eq!(core.stats.loads_answered().get(), 0);
}

#[test]
fn a_load_of_a_page_that_cannot_be_read_is_lost_for_that_access_alone() {
    let core = core();
    fill(core, 5, noise);
    send_out(core, 5);
    tight(core);
    disk(core).fails_at.store(get(&disk(core).ops) + 1, Ordering::Relaxed);
    assert_eq!(load(core, 320, 0), Outcome::Lost);
    assert_eq!(fault::loss(&core.copies), SwapError::Read(Errno::EIO));
    assert_eq!(answer(core, 320, 7), Some(word_of(&noise(320), 7)), "the next try reads it");
    let offset = swapping(core).tier.offset_of(slot_of(core, 340).unwrap()).unwrap();
    disk(core).flip(offset + 99, 4);
    assert_eq!(load(core, 340, 0), Outcome::Lost);
    assert_eq!((fault::loss(&core.copies), state(core, 340)), (SwapError::Damaged, State::Swapped));
    core.validate(PAGES).unwrap();
}

#[test]
fn a_page_given_up_while_a_load_reads_it_is_zeros() {
    let core = core();
    fill(core, 5, noise);
    send_out(core, 5);
    tight(core);
    disk(core).hook.set(|| {
        discard(core, BlockId(5), 1, Depth::All);
    });
    assert!(matches!(load(core, 320, 0), Outcome::Installed(_)), "the fault began again");
    assert!(read(core, 320).unwrap() == [0; 4096]);
    core.validate(PAGES).unwrap();
}

#[test]
fn a_load_waits_for_the_read_of_another_thread() {
    let core = core();
    fill(core, 4, noise);
    send_out(core, 4);
    tight(core);
    let (sender, receiver) = std::sync::mpsc::channel();
    disk(core).hook.set(move || {
        let second = std::thread::spawn(|| load(core, 257, 11));
        while get(&core.stats.swap_waits) == 0 {
            std::thread::yield_now();
        }
        sender.send(second).unwrap();
    });
    assert!(matches!(load(core, 257, 10), Outcome::Loaded(v, _) if v == word_of(&noise(257), 10)));
    // The first one's answer makes the second wanted at once: it may come in.
    match receiver.recv().unwrap().join().unwrap() {
        Outcome::Loaded(value, _) => assert_eq!(value, word_of(&noise(257), 11)),
        other => assert!(matches!(other, Outcome::Installed(_)), "{other:?}"),
    }
    core.validate(PAGES).unwrap();
}

#[test]
fn a_fault_takes_frames_from_the_pool_when_nothing_else_can_leave() {
    let core = live(fakes(16).pool_max(90));
    let mut workbench = Box::new(Workbench::new());
    // The pool has most of the frames, and less than it may.
    for block in 0..28 {
        fill(core, block, mixed);
        run_once(core, &mut workbench, 64, Effort::Background);
    }
    make_room(core);
    (0..PAGES).map(PageId).for_each(|page| core.pager.set_busy(page, true));
    let mut freed = 0;
    while core.room.frames.free() > 0 || core.room.frames.credit() > 0 {
        let _ = core.room.frames.take_run(64);
        freed += 1;
        if core.room.frames.free() == 0 && core.room.frames.grow(&core.pager).unwrap_or(0) == 0 {
            break;
        }
        assert!(freed < 1000);
    }
    let (owned, progress) = (core.room.pool.owned(), core.room.progress.load(Ordering::Relaxed));
    assert!(owned > 4 && owned < core.room.pool.limit(), "{owned} of {}", core.room.pool.limit());
    assert_eq!(run_once(core, &mut workbench, 1, Effort::Direct).freed, 0);
    let freed = relief::frames_from_pool(core);
    assert!(freed >= 64 && core.room.pool.owned() < owned, "{freed}");
    assert!(core.room.progress.load(Ordering::Relaxed) > progress, "and whoever waits knows");
    assert!(get(&swapping(core).tier.counters().pages_out) > 0);
}
