//! What becomes of a staged page: its fate, and the ways to the swap file for what the pool does not take.

use super::evict::evict_written;
use super::room::make_room;
use super::writeback::{Out, Pushed};
use crate::door::Pager;
use crate::limits::POOL_PLACES;
use crate::page::PageId;
use crate::page::state::{Word, must};
use crate::page::table::BlockGuard;
use crate::policy::placement::{self, Placement};
use crate::shared::{Core, count};
use crate::tier::pool::{Codec, NoRoom};
use crate::tier::swap;

/// Fate of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its frame is free.
    Stored,
    /// Its record is held, and is placed with the others of this hold.
    Held,
    /// It is to be mapped again.
    GivenBack,
    /// In the batch for the swap file.
    Writing,
    /// The batch is full: the page waits until it is written.
    Waits,
}

/// Where a window's pages go on, after some of them.
#[derive(Debug)]
pub struct Step {
    /// Index of the next page.
    pub next: u32,
    /// Frames to be freed.
    pub free: u64,
    /// Pages to be mapped again.
    pub back: u64,
    /// The batch for the swap file must be written first.
    pub full: bool,
}

impl Step {
    /// What becomes of a page, whose fate is known now.
    pub fn note<P: Pager>(&mut self, core: &Core<P>, page: Option<PageId>, fate: Fate) {
        let Some(i) = page.map(PageId::index) else { return };
        match fate {
            Fate::Stored => {
                self.free |= 1 << i;
                core.staged.sub_pages(1);
            }
            Fate::GivenBack => self.back |= 1 << i,
            Fate::Held | Fate::Writing => {}
            Fate::Waits => (self.full, self.next) = (true, self.next.min(i)),
        }
    }
}

/// Counts a record that went to the pool.
pub fn count_record<P: Pager>(core: &Core<P>, codec: Codec) {
    core.stats.pool_out().add(1);
    count(&core.stats.out_shuffled, u32::from(codec == Codec::ShuffleLz4));
}

/// A record that found no place in the pool: in one given up for it, or in the batch for the swap file.
pub fn store_elsewhere<P: Pager>(
    core: &Core<P>,
    held: &BlockGuard<'_>,
    out: &mut Out<'_, P>,
    page: PageId,
    found: Word,
    (codec, bytes): (Codec, &[u8]),
    why: NoRoom,
) -> Fate {
    let store = || core.pool.store(&core.pager, &core.frames, &core.stats, page, codec, bytes);
    let mut result = if evict_written(core, POOL_PLACES) > 0 { store() } else { Err(why) };
    // With a swap file compaction is the background thread's alone.
    if let Err(NoRoom::Share | NoRoom::Frames) = result
        && (!out.usable() || core.kept() > 0)
        && make_room(core)
    {
        result = store();
    }
    match result {
        Ok(handle) => {
            count_record(core, codec);
            must(core.table.word(page).try_store(found, handle));
            core.note_pooled(page.block());
            Fate::Stored
        }
        Err(_) => {
            out.note_no_room();
            let to = placement::beyond_pool(out.usable());
            push_to(core, held, out, to, page, found, (codec.into(), bytes))
        }
    }
}

/// Puts a page into the batch for the swap file, if that is its place.
pub fn push_to<P: Pager>(
    core: &Core<P>,
    held: &BlockGuard<'_>,
    out: &mut Out<'_, P>,
    to: Placement,
    page: PageId,
    found: Word,
    (codec, bytes): (swap::Codec, &[u8]),
) -> Fate {
    let pushed =
        if to == Placement::Swap { out.push(core, held, page, found, codec, bytes) } else { Pushed::No };
    match pushed {
        Pushed::Yes => Fate::Writing,
        Pushed::Full => Fate::Waits,
        Pushed::No => Fate::GivenBack,
    }
}
