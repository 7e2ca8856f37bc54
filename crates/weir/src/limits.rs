//! Every bound of the engine, with the reason beside it, asserted against each other.

use crate::page::id::BLOCK_PAGES;

/// Smallest budget: below this the pool's partly filled spans, the windows in flight and the
/// engine's own tables leave no room for the program.
pub const BUDGET_BYTES_MIN: u64 = 8 << 20;

/// Cold records are not compressed again in a smaller budget, in bytes: zstd's contexts are some 700 KiB.
pub const RECOMPRESS_BUDGET_MIN: u64 = 64 << 20;

/// Managed address space asked for first; halved until the reservation succeeds, and its tables (RLIMIT_AS, strict
/// overcommit). Twice what the largest runtime reserves at once (GHC's 1 TiB).
pub const SPACE_BYTES_MAX: u64 = 2 << 40;
/// Bytes of address space in which managed spaces begin and end.
pub const PLACES_BYTES: u64 = 1 << 44;
/// Distance between two places where one may begin: two spaces are the same or apart, whoever chose them. (The filter of the
/// system-call gate, which children inherit, compares upper halves of addresses.)
pub const PLACE_BYTES: u64 = SPACE_BYTES_MAX;
/// Places where one may begin.
pub const PLACES: u32 = ((PLACES_BYTES - SPACE_BYTES_MAX) / PLACE_BYTES) as u32 + 1;
/// Places tried when something is in the way at the first.
pub const PLACES_TRIED: u32 = 8;
/// Part of a space in which its first address in use is chosen at random.
pub const FIRST_SHARE: u32 = 16;
const _: () = assert!(
    PLACE_BYTES >= SPACE_BYTES_MAX
        && PLACE_BYTES.is_multiple_of(1 << 32)
        && PLACES_BYTES >= 4 * SPACE_BYTES_MAX
);

/// Smallest managed space worth starting with, as a multiple of the budget.
pub const SPACE_PER_BUDGET_MIN: u64 = 2;

/// Arena slots per frame of the budget: windows must be empty to take a block, and windows with
/// a few free frames each are not empty.
pub const ARENA_PER_BUDGET: u64 = 3;

/// Blocks lifted out of the program by one call: a page table's worth, 2 MiB, because the kernel
/// moves a whole table as fast as one page.
pub const LIFT_BLOCKS: u32 = 8;
/// Most windows for lifted pages: in the worst case each is a mapping of its own, of which a
/// process may have 65530 by default.
pub const LIFT_WINDOWS_MAX: u32 = 8 << 10;
/// Never more than this share of the frames by one call.
pub const LIFT_SHARE: u32 = 16;

/// RAM set aside for what is not frames: stacks and scratch of the engine threads, tables of
/// windows and spans. The rest of the metadata is charged as it is touched.
pub const FIXED_OVERHEAD_BYTES: u64 = 1 << 20;

/// Frames that faults leave to reclaim, and that reclaim does not give back: to store a page the pool may need a whole new window.
pub const KEPT_FOR_POOL: u32 = BLOCK_PAGES + 8;

/// Room for metadata of blocks about to be touched: frames shrink before it is used up, not after. More than the frames that
/// stay although there are too many ([`KEPT_FOR_POOL`]).
pub const METADATA_AHEAD_BYTES: u64 = 352 << 10;
const _: () = assert!(METADATA_AHEAD_BYTES >= KEPT_FOR_POOL as u64 * 4096 + (64 << 10));

/// However much memory there is outside, frames for one part in so many of the budget stay: a program that has less of its data at hand does
/// nothing but wait for it, and the RAM exceeds the budget by at most this part, which is told.
pub const LEAST_SHARE: u64 = 16;
/// Time in which a burst of memory outside is forgotten.
pub const OUTSIDE_FALL_NS: u64 = 1_000_000_000;
/// The limit follows the memory outside in steps of a window.
pub const OUTSIDE_STEP: u64 = BLOCK_PAGES as u64 * 4096;
/// Time between two looks at the memory outside while the program runs. It can grow by 1.5 MB each ms.
pub const OUTSIDE_LOOK_NS: u64 = 5_000_000;

/// Below this many free frames the background reclaimer starts (share of all frames).
pub const FREE_LOW_SHARE: u32 = 128;
/// It stops at this many times the low mark.
pub const FREE_HIGH_FACTOR: u32 = 2;
/// Never fewer free frames than this when it starts: two blocks coming in at once.
pub const FREE_LOW_MIN: u32 = 2 * BLOCK_PAGES;
/// Readahead leaves these frames to faults.
pub const FREE_RESERVE: u32 = BLOCK_PAGES / 4;

/// Free frames that the background thread makes ahead while the budget is not used up and new frames no longer come straight from
/// the kernel.
pub const GROW_AHEAD: u32 = 16 * BLOCK_PAGES;

/// While nothing was ever evicted, pages get new frames until so few more are allowed. The last ones are made in the arena ahead
/// of need: the pool wants a whole window before it can store its first page, and the limit falls a little with every row of the
/// page table that comes into use.
pub const NEW_FRAMES_LEAVE: u32 = 4 * BLOCK_PAGES;

/// Free frames kept in the arena whatever faults want: a stream's block, and a window for the pool.
pub const FREE_FLOOR: u32 = 3 * BLOCK_PAGES;

/// Free frames that a faulting thread gives back by one call: bounds how long its fault takes.
pub const SHED_A_LITTLE: u32 = BLOCK_PAGES;

/// Faulting threads that make room by themselves keep at most one frame in so many free.
pub const OWN_SHARE: u32 = 16;

/// Single faults keep the pool's copies of at most this share of the frames: each copy takes room from
/// a page that could be resident.
pub const KEPT_SHARE: u32 = 16;

/// Share of frames that may be staged: the length of the second chance.
pub const STAGED_SHARE: u32 = 32;

/// Staged pages handled under one hold of a block lock, which bounds how long a fault waits for it (about 6 us a page),
/// and records that get their places in the pool under one hold of its lock.
pub const STORE_PER_HOLD: u32 = 4;

/// Longest stretch that the background reclaimer runs without offering its processor to others.
pub const RUN_NS_MAX: u64 = 60_000;

/// Largest record the pool takes: above three quarters of a page storing saves too little.
pub const RECORD_BYTES_MAX: usize = 3072;

/// About one in so many pages that did not compress is tried again when it goes to the swap file.
pub const STUCK_PROBE: u32 = 8;

/// A fault that needs a frame gives up, and the process ends with a message, when nobody has freed
/// any for this long although everybody tried.
pub const FRUITLESS_MS_MAX: u64 = 3_000;
/// Pause between two fruitless tries, in which the background thread may get further.
pub const FRUITLESS_PAUSE_NS: u64 = 200_000;

/// Shortest time between two looks at the program's own time, ns; a trial of the pool's size takes two.
pub const LOOK_NS: u64 = 500_000_000;
/// A step halves or doubles the pool, but changes it by no more than one part in so many of the RAM.
pub const POOL_STEP_PART: u32 = 8;
/// The smallest pool in windows: compaction wants two of them vacant.
pub const POOL_WINDOWS_MIN: u32 = 6;
/// What a larger pool must gain, and a smaller one must not lose, in percent of the program's own time.
pub const TRIAL_NOISE_PERCENT: u64 = 8;
/// Faults a second that make a trial worth while: some percent of one processor.
pub const TRIAL_FAULTS_MIN: u64 = 3000;
/// Looks of a trial, at most, unless the program's time still grows.
pub const POOL_TRIAL_LOOKS: u32 = 5;
/// Looks with faults before the first trial, and after a trial in vain; doubled with each one more, up to [`POOL_REST_LOOKS_MAX`].
pub const POOL_REST_LOOKS: u32 = 6;
/// Most looks of a rest.
pub const POOL_REST_LOOKS_MAX: u32 = 480;
/// By how much the kernel's part of a fault grows towards what a period shows: one part in so many.
pub const FLOOR_SHARE: u64 = 16;

/// A fault that is not resolved in this time is reported by the watchdog.
pub const FAULT_STALL_MS: u64 = 10_000;

const _: () = {
    assert!(FREE_LOW_MIN >= BLOCK_PAGES + FREE_RESERVE, "a block's readahead must fit above the reserve");
    assert!(RECORD_BYTES_MAX < 4096);
    assert!(FREE_FLOOR < GROW_AHEAD);
    assert!(BUDGET_BYTES_MIN > 4 * FIXED_OVERHEAD_BYTES);
    assert!(STORE_PER_HOLD >= 1 && STORE_PER_HOLD <= BLOCK_PAGES);
};
