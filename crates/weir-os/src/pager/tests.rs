//! The pager on the real kernel, over memory of its own.

use super::*;
use crate::uffd::Wake;

/// A pager over memory of its own, of whose space so many pages can be used, the first ones. Nobody
/// touches a page that is missing: no thread needs to answer.
fn over_own_memory(space_pages: u32, usable: u32, arena_pages: u32) -> KernelPager {
    let space = Mapping::reserve(0, bytes_of(space_pages)).unwrap();
    let arena = Mapping::anon(bytes_of(arena_pages)).unwrap();
    // SAFETY: memory of this test's.
    unsafe { mem::protect(space.base(), bytes_of(usable), mem::PROT_RW).unwrap() };
    KernelPager::open_over(Transfer::Auto, Intake::InThread, space, arena, 0).unwrap()
}

#[test]
fn zeros_fill_a_run_that_crosses_mappings_page_by_page_and_come_at_once_where_it_does_not() {
    let pager = over_own_memory(2 * CHUNK_PAGES, 33, CHUNK_PAGES);
    let first = pager.fill_zeros(PageId(0), CHUNK_PAGES, Wake::Yes);
    assert_eq!((first.done, first.stop), (PAGE_BYTES, Some(Errno::EAGAIN)), "ask again for the rest");
    let rest = pager.fill_zeros(PageId(1), 32, Wake::Yes);
    assert_eq!((rest.done, rest.stop), (32 * PAGE_BYTES, None));
    let twice = pager.fill_zeros(PageId(5), 1, Wake::Yes);
    assert_eq!((twice.done, twice.stop), (0, Some(Errno::EEXIST)));
    // SAFETY: mapped, present, and this test's alone.
    let bytes = unsafe { core::slice::from_raw_parts(pager.space_base() as *const u8, 33 * PAGE_BYTES) };
    assert!(bytes.iter().all(|b| *b == 0));
    pager.grow(FrameId(0), CHUNK_PAGES).unwrap();
    // SAFETY: the frame was just made, and nobody else uses it.
    assert!(unsafe { pager.frame(FrameId(CHUNK_PAGES - 1)) }.iter().all(|b| *b == 0));
}

/// Moves frames under the program, asking again as the engine does. How many pages arrived.
fn fill_all(pager: &KernelPager, page: u32, n: u32) -> u32 {
    let mut done = 0;
    while done < n {
        let p = pager.fill(PageId(page + done), FrameId(page + done), n - done, Wake::Yes);
        done += (p.done / PAGE_BYTES) as u32;
        if p.done == 0 && p.stop != Some(Errno::EAGAIN) {
            break;
        }
    }
    done
}

#[test]
fn what_a_move_did_without_telling_is_noticed_when_it_is_asked_again() {
    let pager = over_own_memory(CHUNK_PAGES, CHUNK_PAGES, CHUNK_PAGES);
    pager.grow(FrameId(0), CHUNK_PAGES).unwrap();
    assert_eq!(fill_all(&pager, 4, 3), 3);
    if !pager.moves() {
        // Copies are what the kernel says they are.
        assert_eq!(pager.fill(PageId(4), FrameId(4), 3, Wake::Yes).stop, Some(Errno::EEXIST));
        return;
    }
    assert_eq!(pager.untold(), 0);
    // As the kernel leaves it: the pages are there, and it says that they cannot come.
    let again = pager.fill(PageId(4), FrameId(4), 3, Wake::Yes);
    assert_eq!((again.done, again.stop, pager.untold()), (3 * PAGE_BYTES, None, 3));
    let part = pager.fill(PageId(4), FrameId(4), 5, Wake::Yes);
    assert_eq!((part.done, part.stop), (3 * PAGE_BYTES, Some(Errno::EAGAIN)), "the rest is to be asked for");
    assert_eq!(pager.fill(PageId(7), FrameId(7), 2, Wake::Yes).done, 2 * PAGE_BYTES);
    // Nothing at either end behind them: that is no move either.
    pager.drop_pages(PageId(7), 2).unwrap();
    let part = pager.fill(PageId(4), FrameId(4), 5, Wake::Yes);
    assert_eq!((part.done, part.stop), (3 * PAGE_BYTES, Some(Errno::EAGAIN)));
    let hole = pager.fill(PageId(7), FrameId(7), 1, Wake::Yes);
    assert_eq!((hole.done, hole.stop), (0, Some(Errno::ENOENT)));
    // Something is at the destination, and the frame is still here: that is no move.
    pager.grow(FrameId(4), 1).unwrap();
    let foreign = pager.fill(PageId(4), FrameId(4), 1, Wake::Yes);
    assert_eq!((foreign.done, foreign.stop), (0, Some(Errno::EEXIST)));
}

/// Says so when it goes.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_page_is_lost_while_something_looks_for_idle_pages() {
    // A kernel that forgets to tell has done so several times before: a second here.
    const ROUNDS: u64 = 2000;
    const SEEN: u64 = 5;
    let pager = over_own_memory(2 * CHUNK_PAGES, 2 * CHUNK_PAGES, 2 * CHUNK_PAGES);
    let (arena, len) = (pager.frame_addr(FrameId(0), 1), bytes_of(2 * CHUNK_PAGES));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_the_end = Set(&over); // also when an assertion fails
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for at in (arena..arena + len).step_by(8 * PAGE_BYTES) {
                    // SAFETY: changes how pages are aged, not what they hold.
                    let _ = unsafe { mem::advise(at, 8 * PAGE_BYTES, libc::MADV_COLD) };
                }
            }
        });
        for round in (0..ROUNDS).take_while(|_| pager.untold() < SEEN) {
            pager.grow(FrameId(0), 2 * CHUNK_PAGES).unwrap();
            for frame in 0..2 * CHUNK_PAGES {
                // SAFETY: the frame was just made, and nobody else uses it.
                let bytes = unsafe { pager.frame(FrameId(frame)) };
                bytes[..8].copy_from_slice(&(round << 32 | u64::from(frame)).to_le_bytes());
            }
            let mut at = 0;
            while at < 2 * CHUNK_PAGES {
                let n = (1 + at % 5).min(2 * CHUNK_PAGES - at);
                assert_eq!(fill_all(&pager, at, n), n, "round {round}, pages from {at}");
                at += n;
            }
            for page in 0..2 * CHUNK_PAGES {
                // SAFETY: the page is mapped, and this thread's alone.
                let stamp = unsafe { *((pager.space_base() + bytes_of(page)) as *const u64) };
                assert_eq!(stamp, round << 32 | u64::from(page));
            }
            pager.drop_pages(PageId(0), 2 * CHUNK_PAGES).unwrap();
        }
    });
}
