//! Records that are moved within the swap file while their pages go on living.

use super::*;

/// The page that changes while its record is about to be moved: the first that the mover's first batch does
/// not take.
const PAGE: u32 = 64;

/// Calls `f` in the operation during which so many of the first 128 pages are the mover's.
fn when_tagged(core: &'static Fake, n: usize, f: impl FnOnce() + Send + 'static) {
    disk(core).hook.set(move || {
        let tagged = |page: &u32| core.table.word(PageId(*page)).load().tag() != 0;
        if (0..128).filter(tagged).count() == n { f() } else { when_tagged(core, n, f) }
    });
}

#[test]
fn a_page_written_again_under_the_same_slot_while_others_are_moved_is_its_later_self() {
    let fakes = World::budget(12).pages(PAGES).pool_max(12).swap(FakeDisk::new(16 * MIB, 512), 16 * MIB);
    // Hardly more slots than there are records, so that one is used again soon.
    let core = fakes.slots(100 + 6 * 64 + 64 + 4).batch(1).core();
    let core: &'static Fake = Box::leak(Box::new(core));
    for block in 0..13 {
        if block == 7 {
            // The first cluster is sparse from here on.
            discard(core, BlockId(1), u64::MAX << 36, Depth::All);
            (2..7).for_each(|dead| assert_eq!(discard(core, BlockId(dead), u64::MAX, Depth::All).pages, 64));
        }
        fill(core, block, noise);
        send_out(core, block);
    }
    assert_eq!(core.validate(PAGES).unwrap().swapped, 100 + 6 * 64);
    let slot = slot_of(core, PAGE);
    let (sender, receiver) = std::sync::mpsc::channel();
    when_tagged(core, 64, move || {
        for n in 1..50 {
            assert!(read(core, PAGE).is_some());
            core.pager.write(PageId(PAGE), |p| *p = noise(5000 + n));
            send_out(core, PAGE / 64);
            if state(core, PAGE) == State::Swapped && slot_of(core, PAGE) == slot {
                return sender.send(n).unwrap();
            }
        }
    });
    assert!(tidy::empty_cluster(core, swapping(core)) >= 64);
    let n = receiver.try_recv().expect("the slot comes round");
    assert!(read(core, PAGE).unwrap() == noise(5000 + n), "an older self");
    for page in (0..100).filter(|page| *page != PAGE) {
        assert!(read(core, page).unwrap() == noise(page), "page {page}");
    }
    core.validate(PAGES).unwrap();
}
