//! Arrive: what is done with every page that comes in, however it came: the kernel's call is repeated until
//! it has done all, the word changes, and the block counts its pages.

use crate::door::{Done, Pager};
use crate::page::resident::Arrival;
use crate::page::state::{State, Word, must};
use crate::page::table::BlockGuard;
use crate::page::{FrameId, PageId};
use crate::shared::copies::Keep;
use crate::shared::{Core, count};
use crate::stats::{self, Stats};
use crate::sync::Ordering;
use weir_os::sys::Errno;
use weir_os::uffd::Wake;

/// So many pages of a block are mapped.
pub(super) fn arrived<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, pages: u32, how: Arrival) {
    held.add_resident(pages as i32);
    core.resident.arrived(&core.table, held.block(), how);
}

/// The page is mapped: change its word, give up its copies or keep one.
pub(super) fn finish<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId, keep: Keep) {
    let word = core.table.word(page);
    let from: Word = word.load();
    match from.state() {
        State::Absent => {
            core.stats.in_absent().add(1);
            core.census.count_managed(1);
            must(word.try_install(from, false));
        }
        State::Same => {
            count(&core.stats.in_same, 1);
            must(word.try_install(from, false));
        }
        _ => core.installed_from_pool(held, page, from, keep),
    }
}

/// Moves frames under the program. Returns how many arrived.
pub(super) fn fill<P: Pager>(core: &Core<P>, page: PageId, frame: FrameId, n: u32) -> u32 {
    ride_out(&core.stats, n, |done| {
        core.pager.fill(PageId(page.0 + done), FrameId(frame.0 + done), n - done, Wake::Yes)
    })
}

/// Repeats a filling call, which is told how many pages are done, while the address space is changing
/// (EAGAIN). Returns how many pages arrived.
pub(super) fn ride_out(stats: &Stats, n: u32, call: impl Fn(u32) -> Done) -> u32 {
    const RETRIES: u32 = 10_000;
    let (mut done, mut tries) = (0, 0);
    while done < n {
        let d = call(done);
        done += d.pages;
        match d.stop {
            None => break,
            Some(Errno::EAGAIN) => {
                tries += u32::from(d.pages == 0);
                if tries > RETRIES {
                    break;
                }
                if d.pages == 0 {
                    weir_os::thread::yield_now();
                }
            }
            Some(_) if d.pages > 0 => {} // ask again at the stop to learn why
            Some(_) => {
                stats::add(&stats.errors_fill, 1);
                stats.last_errno.store(d.stop.map_or(0, |e| e.0 as u64), Ordering::Relaxed);
                break;
            }
        }
    }
    done
}
