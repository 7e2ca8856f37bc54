//! Readahead as a fault does it: gathers what [`crate::policy::readahead`] decides by, and leaves in the rows
//! what follows.

use crate::door::Pager;
use crate::page::id::{BLOCK_PAGES, run_mask};
use crate::page::state::State;
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{BlockId, PageId};
use crate::policy::readahead::{self, Proof, Signals, UNPROVEN, unproven_of, with_unproven};
pub use crate::policy::readahead::{Ahead, Plan, Whose};
use crate::shared::{Core, count};

/// The fault on the page `index` has brought pages, `fresh` ones of which never had contents: leaves the new
/// state, and counts.
pub fn done<P: Pager>(plan: &Plan, core: &Core<P>, block: BlockId, index: u32, installed: u64, fresh: u64) {
    let proven = match plan.proof {
        Proof::Nothing => 0,
        Proof::Own(n) => n,
        Proof::Neighbour(b) => take_unproven(&core.table, b),
    };
    let more = installed & !run_mask(index, 1);
    let read = more & !fresh;
    if let Some(state) = plan.state {
        core.table.block(block).set_readahead(with_unproven(state, read.count_ones()));
    }
    core.stats.readahead().count(more.count_ones());
    count(&core.stats.swap_ra, read.count_ones());
    count(&core.stats.swap_ra_hit, proven);
}

fn take_unproven(table: &PageTable, block: BlockId) -> u32 {
    unproven_of(table.block(block).take_readahead(UNPROVEN))
}

/// Leaves a stream's state in a block fetched ahead: `came` pages arrived, and `read` of them came back. What
/// was unproven in the block before it is unproven here: the next fault comes behind the last of them.
pub fn pass_on<P: Pager>(core: &Core<P>, block: BlockId, state: u64, came: u32, read: u32) {
    let backwards = readahead::goes_backwards(state);
    let before = if backwards { block.0.checked_add(1) } else { block.0.checked_sub(1) };
    let row = core.table.block(block);
    // Where nothing was missing the stream itself may have been here meanwhile.
    let own = if came == 0 { unproven_of(row.readahead()) } else { 0 };
    let passed = before
        .filter(|b| *b < core.table.pages() / BLOCK_PAGES)
        .map_or(0, |b| take_unproven(&core.table, BlockId(b)));
    row.set_readahead(with_unproven(state, own + passed + read));
}

/// More pages of a block's stream came back: those that were in the swap file.
pub fn more_came(table: &PageTable, block: BlockId, read: u32) {
    let row = table.block(block);
    let state = row.readahead();
    row.set_readahead(with_unproven(state, unproven_of(state) + read));
}

/// Plans for a fault at `index` of a block. `again`: the page was wanted a moment ago, and
/// its load answered.
pub fn plan<P: Pager>(
    core: &Core<P>,
    row: &BlockGuard<'_>,
    index: u32,
    source: State,
    (again, loads): (bool, bool),
) -> Plan {
    let block = row.block();
    let plentiful = source == State::Absent && core.room.is_plentiful();
    let available = if plentiful { core.room.available() } else { 0 };
    // Looked up at a border alone, where a neighbour's stream can enter: most faults are elsewhere.
    let neighbour = |at: u32, b: Option<u32>, edge: u32| {
        b.filter(|_| index == at).and_then(|b| remembered_beside(&core.table, BlockId(b), edge))
    };
    let seen = Signals {
        block,
        index,
        source,
        access: row.access(),
        remembered: row.readahead(),
        before: neighbour(0, block.0.checked_sub(1), BLOCK_PAGES - 1),
        after: neighbour(BLOCK_PAGES - 1, block.0.checked_add(1), 0),
        again,
        loads,
        plentiful,
        ample: plentiful && available > 2 * core.room.low_mark(),
        room: if plentiful { available } else { core.room.frames.free() },
        pages: core.table.pages(),
    };
    let there = |index: u32| core.table.word(block.page(index)).load().state() == State::Resident;
    readahead::plan(&seen, there)
}

/// The state of a neighbouring block whose page next to the fault is still in RAM.
fn remembered_beside(table: &PageTable, block: BlockId, index: u32) -> Option<u64> {
    let page = block.page(index);
    (page.0 < table.pages() && is_in_ram(table, page)).then(|| table.block(block).readahead())
}

fn is_in_ram(table: &PageTable, page: PageId) -> bool {
    matches!(table.word(page).load().state(), State::Resident | State::Staged)
}
