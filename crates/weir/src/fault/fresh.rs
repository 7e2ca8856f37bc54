//! Pages that nobody has touched yet, while frames are plentiful: new frames of zeros, straight from the kernel.

use super::install::{finish, ride_out};
use crate::door::Pager;
use crate::page::PageId;
use crate::page::state::State;
use crate::shared::Core;
use crate::shared::copies::Keep;
use weir_os::uffd::Wake;

/// Fills the untouched pages at the start of a run. Under their block's lock. `None`: there are none, or the budget
/// does not allow so many new frames. Else how many pages arrived.
pub fn fill_run<P: Pager>(core: &Core<P>, page: PageId, len: u32) -> Option<u32> {
    let untouched = |i: &u32| core.table.word(PageId(page.0 + i)).load().state() == State::Absent;
    let len = (0..len).take_while(untouched).count() as u32;
    (len > 0 && core.frames.take_credit(len)).then(|| fill_untouched(core, page, len))
}

/// The credit for them has been taken; what is not used of it goes back.
fn fill_untouched<P: Pager>(core: &Core<P>, page: PageId, len: u32) -> u32 {
    let n = ride_out(core, len, |done| core.pager.fill_zeros(PageId(page.0 + done), len - done, Wake::Yes));
    core.frames.vanished(len - n);
    (0..n).for_each(|i| finish(core, PageId(page.0 + i), Keep::Nothing));
    n
}

#[cfg(test)]
mod tests {
    use crate::config::Codec;
    use crate::door::Pager;
    use crate::fault::{Outcome, Strides, resolve};
    use crate::page::{BlockId, PageId};
    use crate::shared::{Core, Geometry};
    use crate::sim::FakePager;
    use crate::sync::Ordering;

    const PAGES: u32 = 1024;

    fn core() -> Core<FakePager> {
        let windows = Geometry::arena_windows(8 << 20);
        let g =
            Geometry { pages: PAGES, windows, lift_windows: 0, budget_bytes: 8 << 20, pool_max_percent: 90 };
        let core = Core::new(FakePager::new(PAGES, windows), g, 1, Codec::Auto).unwrap();
        (0..PAGES / 64).for_each(|b| core.table.block(BlockId(b)).set_valid(u64::MAX));
        core
    }

    #[test]
    fn pages_never_touched_come_from_the_kernel_as_long_as_nothing_was_evicted() {
        let core = core();
        for page in 0..PAGES {
            if core.pager.read(PageId(page)).is_none() {
                assert!(matches!(
                    resolve(&core, &Strides::default(), PageId(page), 1),
                    Outcome::Installed(_)
                ));
            }
        }
        assert_eq!(
            (core.frames.free(), core.frames.existing()),
            (0, PAGES),
            "no frame took the way by the arena"
        );
        assert_eq!(core.validate(PAGES).unwrap().resident, PAGES.into());
        assert!((0..PAGES).all(|page| core.pager.read(PageId(page)) == Some([0; 4096])));
    }

    #[test]
    fn credit_for_pages_that_cannot_come_is_given_back() {
        let core = core();
        // A page that is there although the table does not know: the call stops at it.
        assert_eq!(core.pager.zero(PageId(20)).pages, 1);
        assert!(matches!(resolve(&core, &Strides::default(), PageId(0), 1), Outcome::Installed(_)));
        let resident = core.validate(PAGES).unwrap().resident;
        assert_eq!(u64::from(core.frames.existing()), resident, "as many frames as pages");
        assert!(resident >= 20 && core.stats.errors_fill.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn after_the_first_eviction_frames_of_the_arena_are_used() {
        let core = core();
        core.pressed.store(true, Ordering::Relaxed);
        assert!(matches!(resolve(&core, &Strides::default(), PageId(0), 1), Outcome::Installed(_)));
        assert!(core.frames.free() > 0, "some were made ahead");
    }
}
