//! The window of a block's staged pages: how the block came to it, what is still in it, and its end.

use super::tally;
use crate::page::WindowId;
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::page::state::State;
use crate::page::table::{BlockGuard, PageTable};
use crate::shared::room::Room;
use crate::stats::Stats;

/// How the pages of a block went there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// So many pages are staged now.
    Staged(u32),
    /// No page of the block could leave.
    Nothing,
    /// No empty window.
    NoWindow,
}

/// All pages have left their window.
pub fn end_window(room: &Room, stats: &Stats, held: &BlockGuard<'_>, window: WindowId, stuck: bool) {
    held.set_window(None);
    held.set_rest(stuck);
    room.frames.put_window(window, 0, 0);
    tally::frames(stats, 1);
}

/// The staged pages of a block from index `at` on.
pub fn staged_from(table: &PageTable, held: &BlockGuard<'_>, at: u32) -> u64 {
    table.in_state(held, run_mask(at, BLOCK_PAGES - at), State::Staged)
}
