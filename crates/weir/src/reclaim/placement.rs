//! Place: where a staged page goes, decided before anything is done with the page.
//! [`crate::policy::placement`] has the rules; here is what they ask for.

use super::batch::Batch;
use super::compress::{Form, Workbench, compress, untried};
use crate::config::rules::{Rule, is_on};
use crate::door::{Pager, with_frame};
use crate::limits::{POOL_SPARE_PART, STUCK_PROBE};
use crate::page::state::{Word, must};
use crate::page::table::BlockGuard;
use crate::page::{FrameId, PageId};
use crate::policy::admission::one_in;
use crate::policy::placement::{self, Kept, Placement};
use crate::shared::{Core, count};
use crate::sync::Ordering;
use crate::tier::pool::Codec;
use weir_os::codec;

/// Where a page goes, and what goes there.
#[derive(Debug, PartialEq, Eq)]
pub enum To<'a> {
    /// Its frame is dropped: its kept copy is still true.
    Drop,
    /// The page table: every 8-byte word is this one.
    Same(u64),
    /// The pool, as this record.
    Pool(Codec, &'a [u8]),
    /// The pool, as this record, and its slot is kept: it is still true.
    PoolWithSlot(Codec, &'a [u8]),
    /// The swap file, as it is.
    Swap,
    /// Nowhere: it is mapped again.
    Keep,
}

/// Decides where a staged page goes. A kept copy that is true no more is given up: the page's word is the one
/// returned. A record is in the buffer of this number.
pub fn decide<'a, P: Pager>(
    core: &Core<P>,
    workbench: &'a mut Workbench,
    batch: &Batch<'_, P>,
    held: &BlockGuard<'_>,
    buffer: usize,
    page: PageId,
    frame: FrameId,
) -> (Word, To<'a>) {
    let found = core.table.word(page).load();
    // 1. The copy that was kept of it, if it is still true.
    let kept = kept_of(core, page, found, frame);
    // What was read from the file comes to the pool again while a part of it is free.
    let spare = || core.room.pool.has_spare(POOL_SPARE_PART);
    match placement::unchanged(kept, found.stuck(), spare, || is_probe(core)) {
        Some(Placement::Pool) => {
            let form = with_frame(&core.pager, frame, |bytes| compress(workbench, buffer, core.codec, bytes));
            let Form::Record(codec, bytes) = form else { return (found, To::Drop) };
            return (found, To::PoolWithSlot(codec, bytes));
        }
        Some(_) => return (found, To::Drop),
        None => {}
    }
    // 2. It has changed: its form.
    let found = drop_kept(core, held, page, found);
    let skips = is_on(Rule::StuckUntried) && found.stuck() && batch.usable() && !is_probe(core);
    let form = with_frame(&core.pager, frame, |bytes| match skips {
        true => untried(bytes),
        false => compress(workbench, buffer, core.codec, bytes),
    });
    // 3. Its place.
    let to = match (placement::changed(form.shape(), batch.usable()), form) {
        (_, Form::Same(value)) => To::Same(value),
        (_, Form::Record(codec, bytes)) => To::Pool(codec, bytes),
        (to, Form::Stuck) => {
            count(&core.stats.out_untried, skips.into());
            if to == Placement::Swap { To::Swap } else { To::Keep }
        }
    };
    (found, to)
}

/// What the copy is worth that was kept of a staged page: nothing, if the page has changed since.
fn kept_of<P: Pager>(core: &Core<P>, page: PageId, found: Word, frame: FrameId) -> Kept {
    let kept = match (found.kept(), found.kept_slot()) {
        (Some(_), _) => Kept::Record,
        (_, Some(_)) if found.warm() => Kept::WarmSlot,
        (_, Some(_)) => Kept::SwapSlot,
        (None, None) => return Kept::Nothing,
    };
    let hash = with_frame(&core.pager, frame, |bytes| codec::hash_page(bytes, core.seed));
    if hash == core.table.aux(page) { kept } else { Kept::Nothing }
}

/// Gives up the copy of a page that has changed, if there is one. The page's word.
fn drop_kept<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId, found: Word) -> Word {
    if found.kept().is_none() && found.kept_slot().is_none() {
        return found;
    }
    if found.kept().is_some() {
        core.copies.kept_was(false);
    }
    let dropped = must(core.table.word(page).try_drop_kept(found));
    core.free_copy(held, page, found);
    dropped
}

/// Whether this page, which did not compress last time, is tried again: what it holds may be something else
/// by now. In no order, so that pages that go out in the same one every time all have their turn.
fn is_probe<P: Pager>(core: &Core<P>) -> bool {
    one_in(STUCK_PROBE, core.untried.fetch_add(1, Ordering::Relaxed))
}
