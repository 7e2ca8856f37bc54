//! What becomes of a staged page: its fate, and the ways to the swap file for what the pool does not take.

use super::batch::{Batch, Pushed};
use super::compact::make_room;
use super::evict::evict_written;
use crate::door::Pager;
use crate::limits::POOL_PLACES;
use crate::page::PageId;
use crate::page::state::{Word, must};
use crate::page::table::BlockGuard;
use crate::policy::placement::{self, Placement};
use crate::shared::staged::StagedQueue;
use crate::shared::{Core, count};
use crate::stats::Stats;
use crate::tier::pool::{Codec, NoRoom};

/// Fate of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its frame is free.
    Stored,
    /// Its record waits to be placed with the others of this hold.
    Recorded,
    /// It is to be mapped again.
    GivenBack,
    /// In the batch for the swap file.
    Writing,
    /// The batch is full: the page waits until it is written.
    Waits,
}

impl From<Pushed> for Fate {
    fn from(pushed: Pushed) -> Fate {
        match pushed {
            Pushed::Yes => Fate::Writing,
            Pushed::Full => Fate::Waits,
            Pushed::No => Fate::GivenBack,
        }
    }
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
    pub fn note(&mut self, staged: &StagedQueue, page: Option<PageId>, fate: Fate) {
        let Some(i) = page.map(PageId::index) else { return };
        match fate {
            Fate::Stored => {
                self.free |= 1 << i;
                staged.sub_pages(1);
            }
            Fate::GivenBack => self.back |= 1 << i,
            Fate::Recorded | Fate::Writing => {}
            Fate::Waits => (self.full, self.next) = (true, self.next.min(i)),
        }
    }
}

/// Counts a record that went to the pool.
pub fn count_record(stats: &Stats, codec: Codec) {
    stats.pool_out().add(1);
    count(&stats.out_shuffled, u32::from(codec == Codec::ShuffleLz4));
}

/// A record that found no place in the pool: in one given up for it, or in the batch for the swap file.
pub fn store_elsewhere<P: Pager>(
    core: &Core<P>,
    held: &BlockGuard<'_>,
    batch: &mut Batch<'_, P>,
    page: PageId,
    found: Word,
    (codec, bytes): (Codec, &[u8]),
    why: NoRoom,
) -> Fate {
    let store = || core.room.store(&core.pager, &core.stats, page, codec, bytes);
    let mut result = if evict_written(core, POOL_PLACES) > 0 { store() } else { Err(why) };
    // With a swap file compaction is the background thread's alone.
    if let Err(NoRoom::Share | NoRoom::Frames) = result
        && (!batch.usable() || core.copies.kept() > 0)
        && make_room(core)
    {
        result = store();
    }
    match result {
        Ok(handle) => {
            count_record(&core.stats, codec);
            must(core.table.word(page).try_store(found, handle));
            core.copies.note_pooled(&core.table, &core.stats, page.block());
            Fate::Stored
        }
        Err(_) => {
            batch.note_no_room();
            match placement::beyond_pool(batch.usable()) {
                Placement::Swap => Fate::from(batch.push(core, held, page, found, codec.into(), bytes)),
                _ => Fate::GivenBack,
            }
        }
    }
}
