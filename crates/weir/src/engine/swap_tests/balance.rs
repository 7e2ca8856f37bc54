//! Mapped files beside memory that can go nowhere: its pages are left alone.

use super::*;
use crate::config::rules::{Rule, without};
use crate::reclaim::{Effort, run_once};

/// Locks of blocks that reclaim took: it looked at so many, at least.
fn looked_at(core: &Fake, effort: Effort) -> u64 {
    let before = core.stats.out_block_locks().get();
    run_once(core, &mut Workbench::new(), 64, effort);
    core.stats.out_block_locks().get() - before
}

/// Memory in frames that does not compress, behind a swap file that is full of such, and the blocks of both.
fn full() -> (&'static Fake, u32) {
    let core = live(World::budget(8).pages(8192).pool_max(12).swap(FakeDisk::new(8 * MIB, 512), 8 * MIB));
    let mut workbench = Workbench::new();
    for block in 0..128 {
        while core.room.available() < 192 {
            if run_once(core, &mut workbench, 64, Effort::Background).freed == 0 {
                return (core, block);
            }
        }
        fill(core, block, noise);
    }
    panic!("all of it had room");
}

#[test]
fn no_page_of_memory_is_looked_at_that_could_go_nowhere() {
    let (core, blocks) = full();
    let (room, all) = core.room_for_memory();
    assert!(room * 100 < all, "{room} of {all}");
    core.note_files(MIB, false);
    let (unmapped, files) = (get(&core.stats.pages_unmapped), get(&core.stats.files_first));
    for effort in [Effort::Background, Effort::Own] {
        assert_eq!(looked_at(core, effort), 0, "{effort:?}");
    }
    assert_eq!((get(&core.stats.pages_unmapped), get(&core.stats.files_first)), (unmapped, files + 2));
    // A fault that found no frame has to try, and so has everybody where files cannot give way.
    assert!(looked_at(core, Effort::Direct) > 0);
    core.note_files(MIB, true);
    assert!(looked_at(core, Effort::Background) > 0);
    core.note_files(0, false);
    assert!(looked_at(core, Effort::Background) > 0);
    without(Rule::Balance, || {
        core.note_files(MIB, false);
        assert!(looked_at(core, Effort::Background) > 0);
    });
    core.validate(8192).unwrap();
    let here = (0..blocks * 64).filter_map(|page| Some((page, core.pager.read(PageId(page))?)));
    assert!(here.map(|(page, bytes)| assert!(bytes == noise(page), "page {page}")).count() > 256);
}

#[test]
fn memory_leaves_again_as_soon_as_some_of_the_swap_file_is_free() {
    let (core, _) = full();
    core.note_files(MIB, false);
    let swapped = |block: &u32| state(core, block * 64) == State::Swapped;
    let gone: Vec<u32> = (0..64).filter(swapped).collect();
    assert!(gone.len() > 16, "{gone:?}");
    gone.iter().for_each(|block| _ = discard(core, BlockId(*block), u64::MAX, Depth::All));
    tidy::housekeeping(core, false);
    core.note_files(MIB, false);
    assert!(!core.files_first());
    let freed: u32 =
        (0..8).map(|_| run_once(core, &mut Workbench::new(), 64, Effort::Background).freed).sum();
    assert!(freed >= 64, "{freed}");
    core.validate(8192).unwrap();
}
