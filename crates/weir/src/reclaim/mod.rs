//! Pages go out.
//!
//! [`run_once`] is the whole way, one round at a time: excess, pressure, victims, unmap, store,
//! free. The background thread calls it until the high mark; a fault without a frame, `mlock`, and threads
//! that keep room for their own next faults call it for a small round.

pub mod batch;
pub mod compact;
pub mod compress;
pub mod discard;
pub mod evict;
mod fate;
pub mod lift;
mod placement;
pub mod pool_size;
pub mod recompress;
mod records;
pub mod relief;
pub mod store;
mod tally;
pub mod through;
pub mod tidy;
pub mod unmap;
mod window;

use crate::door::Pager;
use crate::limits::VICTIMS_TRIED;
use crate::page::BlockId;
use crate::shared::Core;
use crate::stats;
use batch::Batch;
use compress::Workbench;
use store::{Portion, store_window};
use unmap::unmap;
use window::Unmapped;

/// What one call of [`run_once`] achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Frames freed.
    pub freed: u32,
    /// Pages that reclaim looked at without freeing them.
    pub kept: u32,
    /// There was nothing left to look at.
    pub idle: bool,
}

/// Who asks for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The background thread: lengthens the second chance to its mark first.
    Background,
    /// A faulting thread that keeps room for its own faults: a bounded step towards the mark.
    Own,
    /// A fault that found no frame: as little as gives it some.
    Direct,
}

/// Frees about `want` frames, or says why it could not.
pub fn run_once<P: Pager>(core: &Core<P>, workbench: &mut Workbench, want: u32, effort: Effort) -> Reclaimed {
    let mut done = Reclaimed::default();
    // 1. More frames than the budget allows, because metadata grew: give free ones back.
    core.room.frames.shed_excess(&core.pager);
    core.room.note_reclaim();
    // No page of memory is looked at that could go nowhere, while files can give way. A fault has to try, and
    // so has everybody while there are more frames than may be.
    let fits = core.room.frames.existing() <= core.room.frames.limit();
    if effort != Effort::Direct && fits && core.files_first() {
        stats::add(&core.stats.files_first, 1);
        return Reclaimed { idle: true, ..done };
    }
    // 2. Pressure: how much of the second chance there is already. Never all of it when memory is
    //    so small that staged pages are most of what is resident.
    let mark = match effort {
        Effort::Background => core.room.staged_mark().max(want),
        Effort::Own => core.room.staged_mark().max(want).min(core.staged.pages() + 2 * want),
        Effort::Direct => want,
    };
    let mut batch = match effort {
        Effort::Background => Batch::new(core),
        Effort::Own | Effort::Direct => Batch::for_fault(core, effort == Effort::Direct),
    };
    relief::relieve_pool(core, &mut batch);
    for _ in 0..VICTIMS_TRIED {
        // A batch for the swap file that has begun is filled up.
        if done.freed + batch.freed + batch.promised() >= want && !batch.is_partial() {
            break;
        }
        // 3. Victims: unmap until the second chance is long enough. 4. By one
        //    lift with their neighbours, or one MOVE per run of a block.
        let mut starved = false;
        // Staged blocks that are in another thread's batch are not to be had until it is written.
        while core.staged.pages() < mark || core.staged.blocks() == 0 {
            match next_unmapped(core) {
                Some(_) => {}
                None => {
                    starved = true;
                    break;
                }
            }
        }
        // 5.-8. The oldest staged block leaves its frames: compress, store, free in order.
        tally::queues(&core.stats, 1);
        let Some(block) = core.staged.pop() else {
            done.idle = starved;
            break;
        };
        let most = want.saturating_sub(done.freed + batch.freed).max(batch.wants());
        // While the budget is exceeded nobody is let past: what is outside grows at the program's speed.
        let polite = effort == Effort::Background && core.room.frames.existing() <= core.room.frames.limit();
        let stored = store_window(core, workbench, &mut batch, block, Portion { most, polite });
        done.freed += stored.freed;
        done.kept += stored.given_back;
    }
    // 9. What goes to the swap file: written without any lock held.
    relief::finish(core, &mut batch);
    done.freed += batch.freed;
    done
}

/// Unmaps the next victim that has pages to give.
fn next_unmapped<P: Pager>(core: &Core<P>) -> Option<BlockId> {
    for _ in 0..VICTIMS_TRIED {
        tally::queues(&core.stats, 1);
        let block = core.resident.next_victim(&core.table)?;
        match unmap(core, block) {
            Unmapped::Staged(_) => return Some(block),
            Unmapped::Nothing => {}
            Unmapped::NoWindow => return None,
        }
    }
    None
}

#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod tests;
