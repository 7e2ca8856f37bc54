//! Records that wait, under the lock of their pages' block, for places in the pool: all those of one hold
//! find them together.

use super::batch::Batch;
use super::compress::Workbench;
use super::fate::{Fate, Step, count_record, store_elsewhere};
use crate::door::Pager;
use crate::limits::STORE_PER_HOLD;
use crate::page::state::{Word, must};
use crate::page::table::BlockGuard;
use crate::page::{Handle, PageId};
use crate::shared::Core;
use crate::tier::pool::{Codec, NoRoom};

/// Most records held.
const MOST: usize = STORE_PER_HOLD as usize;

/// A page's record, in the workbench's buffer of the same number.
#[derive(Clone, Copy, Debug)]
struct One {
    page: PageId,
    found: Word,
    codec: Codec,
}

/// The records of one hold, in the order of their pages.
#[derive(Debug)]
pub struct Records {
    list: [Option<One>; MOST],
    lens: [usize; MOST],
    n: usize,
}

impl Records {
    /// None to begin with.
    pub fn new() -> Records {
        Records { list: [None; MOST], lens: [0; MOST], n: 0 }
    }

    /// The workbench's buffer into which the next record is compressed.
    pub fn buffer(&self) -> usize {
        self.n
    }

    /// Keeps what [`Records::buffer`] has: `len` bytes, of a staged page whose word is `found`.
    pub fn add(&mut self, page: PageId, found: Word, codec: Codec, len: usize) {
        (self.list[self.n], self.lens[self.n]) = (Some(One { page, found, codec }), len);
        self.n += 1;
    }

    /// Places what waits: in the pool, or where `store_elsewhere` finds.
    pub fn place<P: Pager>(
        &self,
        core: &Core<P>,
        workbench: &Workbench,
        batch: &mut Batch<'_, P>,
        held: &BlockGuard<'_>,
        step: &mut Step,
    ) {
        if self.n == 0 {
            return;
        }
        let mut places = [None; MOST];
        let (lens, places) = (&self.lens[..self.n], &mut places[..self.n]);
        let result = core.room.pool.reserve(&core.pager, &core.room.frames, &core.stats, lens, places);
        self.put(core, workbench, places);
        if places.iter().any(Option::is_some) {
            core.copies.note_pooled(&core.table, &core.stats, held.block());
        }
        let why = result.err().unwrap_or(NoRoom::Share);
        for (k, place) in places.iter().enumerate() {
            let (None, Some(one)) = (place, self.list[k]) else {
                step.note(&core.staged, self.list[k].map(|one| one.page), Fate::Stored);
                continue;
            };
            // After one that waits for the batch to be written the others wait as well: they stay staged.
            if !step.full {
                let bytes = workbench.bytes(k, self.lens[k]);
                let fate = store_elsewhere(core, held, batch, one.page, one.found, (one.codec, bytes), why);
                step.note(&core.staged, Some(one.page), fate);
            }
        }
    }

    /// Writes the records that found places. All of them before anything else is tried: what makes room looks
    /// at records.
    fn put<P: Pager>(&self, core: &Core<P>, workbench: &Workbench, places: &[Option<Handle>]) {
        for (k, place) in places.iter().enumerate() {
            if let (Some(handle), Some(one)) = (*place, self.list[k]) {
                let bytes = workbench.bytes(k, self.lens[k]);
                core.room.pool.put(&core.pager, &core.stats, handle, one.page, one.codec, bytes);
                count_record(&core.stats, one.codec);
                must(core.table.word(one.page).try_store(one.found, handle));
            }
        }
    }
}
