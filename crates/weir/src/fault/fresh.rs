//! Pages that nobody has touched yet, while frames are plentiful: new frames of zeros, straight from the
//! kernel.

use super::arrive::{finish, ride_out};
use crate::door::Pager;
use crate::limits::NEW_FRAMES_LEAVE;
use crate::page::PageId;
use crate::page::state::State;
use crate::page::table::BlockGuard;
use crate::shared::Core;
use crate::shared::copies::Keep;
use weir_os::uffd::Wake;

/// Fills the untouched pages at the start of a run. `None`: there are none, or the
/// budget does not allow so many new frames, or the kernel gave none. Else how many pages arrived.
pub fn fill_run<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId, len: u32) -> Option<u32> {
    let untouched = |i: &u32| core.table.word(PageId(page.0 + i)).load().state() == State::Absent;
    let len = len.min(core.room.frames.credit().saturating_sub(NEW_FRAMES_LEAVE));
    let len = (0..len).take_while(untouched).count() as u32;
    if len == 0 || !core.room.frames.take_credit_leaving(len, NEW_FRAMES_LEAVE) {
        return None;
    }
    let n = fill_untouched(core, held, page, len);
    (n > 0).then_some(n)
}

/// The credit for them has been taken; what is not used of it goes back.
fn fill_untouched<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId, len: u32) -> u32 {
    let n = ride_out(&core.stats, len, |done| {
        core.pager.fill_zeros(PageId(page.0 + done), len - done, Wake::Yes)
    });
    core.room.frames.vanished(len - n);
    (0..n).for_each(|i| finish(core, held, PageId(page.0 + i), Keep::Nothing));
    n
}

#[cfg(test)]
mod tests;
