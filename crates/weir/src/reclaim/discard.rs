//! Discard: the program gave pages up (free, munmap, madvise). Their bytes are dead: frames and
//! records are freed, nothing is compressed.

use super::unmap::drain_runs;
use crate::door::Pager;
use crate::page::id::{next_run, run_mask};
use crate::page::state::{State, must};
use crate::page::table::BlockGuard;
use crate::page::{BlockId, PageId};
use crate::shared::{Core, count};
use crate::sync::Ordering;
use weir_os::sys::Errno;

/// Which of a block's pages lose what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Everything: the pages read as zeros afterwards.
    All,
    /// Only what costs nothing to keep mapped: pool records, kept copies and staged frames. Pages
    /// that are resident stay, as unspecified bytes (a freed allocation that may be used again).
    Stored,
}

/// What came of a discard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Pages that had contents.
    pub pages: u32,
    /// The kernel would not drop a page: it is what it was.
    pub refused: Option<Errno>,
}

/// Discards the pages of `mask`.
pub fn discard<P: Pager>(core: &Core<P>, block: BlockId, mask: u64, depth: Depth) -> Gone {
    let row = core.table.block(block).lock();
    if !core.table.is_touched(block) {
        return Gone::default();
    }
    let (mut resident, mut staged, mut gone, mut refused) = (0u64, 0u64, 0u32, None);
    for i in (0..64).filter(|i| mask >> i & 1 == 1) {
        let page = block.page(i);
        let word = core.table.word(page);
        let found = word.load();
        let state = found.state();
        if found.mlocked() && (depth == Depth::All || state != State::Resident) {
            core.census.mlocked.fetch_sub(1, Ordering::Relaxed);
        }
        if state == State::Resident {
            resident |= 1 << i;
        }
        if matches!(state, State::Staged | State::Same | State::Pooled | State::Swapped) {
            if state == State::Staged {
                staged |= 1 << i;
            }
            if state == State::Pooled {
                count(&core.stats.pool_died, 1);
            }
            must(word.try_discard(found));
            core.free_copy(&row, page, found);
            gone += 1;
        } else if word.try_drop_kept(found).is_ok() {
            core.free_copy(&row, page, found);
        }
    }
    if staged != 0
        && let Some(window) = row.window()
    {
        core.room.frames.release(window, staged);
        core.staged.sub_pages(staged.count_ones());
    }
    if depth == Depth::All && resident != 0 {
        let freed = free_resident(core, &row, resident);
        row.add_resident(-(freed.pages as i32));
        row.set_readahead(0);
        gone += freed.pages;
        refused = freed.refused;
    }
    count(&core.stats.discarded, gone);
    count(&core.room.progress, gone);
    core.census.count_managed(-i64::from(gone));
    Gone { pages: gone, refused }
}

/// Takes the frames from under resident pages: moved out in runs; what cannot move (pinned, not
/// readable), or would be copied on its way, goes back to the kernel where it is.
fn free_resident<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, mask: u64) -> Gone {
    let block = held.block();
    let window = if core.pager.copies() { None } else { core.room.frames.take_empty() };
    let moved = match window {
        Some(window) => {
            let plain = mask & !held.readonly();
            let moved = drain_runs(core, held, window, plain, |word| {
                must(word.try_discard(word.load()));
            });
            core.room.frames.put_window(window, moved, 0);
            moved
        }
        None => 0,
    };
    let mut left = mask & !moved; // pages that are busy, or were dropped behind our back
    let mut gone = Gone { pages: moved.count_ones(), refused: None };
    let mut at = 0;
    while let Some((start, len)) = next_run(left, at) {
        left &= !run_mask(start, len);
        at = start + len;
        // One call for all of them; where it is refused, each is asked for.
        let all = len > 1 && core.pager.drop_pages(block.page(start), len).is_ok();
        for i in start..start + len {
            let page: PageId = block.page(i);
            let word = core.table.word(page);
            let found = word.load();
            // `drain_runs` may have found a hole and cleared the word already.
            if found.state() != State::Resident {
                continue;
            }
            match if all { Ok(()) } else { core.pager.drop_pages(page, 1) } {
                Ok(()) => {
                    must(word.try_discard(found));
                    core.room.frames.vanished(1);
                    gone.pages += 1;
                }
                Err(e) => {
                    gone.refused = Some(e);
                    // It was counted as gone.
                    core.census.mlocked.fetch_add(found.mlocked().into(), Ordering::Relaxed);
                }
            }
        }
    }
    gone
}
