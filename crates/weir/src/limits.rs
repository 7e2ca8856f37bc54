//! Every bound of the engine, with the reason beside it, asserted against each other.

use crate::page::id::BLOCK_PAGES;

/// Smallest budget: below this the pool's partly filled spans, the windows in flight and the
/// engine's own tables leave no room for the program.
pub const BUDGET_BYTES_MIN: u64 = 8 << 20;

/// Cold records are not compressed again in a smaller budget, in bytes: zstd's contexts are some 700 KiB.
pub const RECOMPRESS_BUDGET_MIN: u64 = 64 << 20;

/// Managed address space asked for first; halved until the reservation succeeds, and its tables (RLIMIT_AS,
/// strict overcommit). Twice what the largest runtime reserves at once (GHC's 1 TiB).
pub const SPACE_BYTES_MAX: u64 = 2 << 40;
/// Bytes of address space in which managed spaces begin and end.
pub const PLACES_BYTES: u64 = 1 << 44;
/// Distance between two places where one may begin: two spaces are the same or apart, whoever chose them.
/// (The filter of the system-call gate, which children inherit, compares upper halves of addresses.)
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

/// Arena places per frame of the budget: windows must be empty to take a block, and windows with
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

/// Frames that faults leave to reclaim, and that reclaim does not give back: to store a page the pool may
/// need a whole new window.
pub const KEPT_FOR_POOL: u32 = BLOCK_PAGES + 8;

/// Room for metadata of blocks about to be touched: frames shrink before it is used up, not after. More than
/// the frames that stay although there are too many ([`KEPT_FOR_POOL`]).
pub const METADATA_AHEAD_BYTES: u64 = 352 << 10;
const _: () = assert!(METADATA_AHEAD_BYTES >= KEPT_FOR_POOL as u64 * 4096 + (64 << 10));

/// However much memory there is outside, frames for one part in so many of the budget stay: a program that
/// has less of its data at hand does nothing but wait for it, and the RAM exceeds the budget by at most this
/// part, which is told.
pub const LEAST_SHARE: u64 = 16;
/// Time in which a burst of memory outside is forgotten.
pub const OUTSIDE_FALL_NS: u64 = 1_000_000_000;
/// The limit follows the memory outside in steps of a window.
pub const OUTSIDE_STEP: u64 = BLOCK_PAGES as u64 * 4096;
/// Time between two looks at the memory outside while the program runs. It can grow by 1.5 MB each ms.
pub const OUTSIDE_LOOK_NS: u64 = 5_000_000;
/// Of a budget that a tree shares, one part in so many is lent at each look. Bound: a look that takes more
/// would have the lender wait for its own reclaim.
pub const TREE_STEP_PART: u64 = 32;
/// A process counts as in need, or as hungry, for so long after it said so. Bound: longer than the pause
/// between two looks of a process that works, so that nobody seems to have stopped.
pub const TREE_LATELY_NS: u64 = 200_000_000;
/// Pause between two looks for processes that are gone. Bound: each look is a system call a row.
pub const TREE_SWEEP_NS: u64 = SECOND_NS;
const _: () = assert!(TREE_LATELY_NS > 10 * OUTSIDE_LOOK_NS);
/// What a new thread of the program takes outside, bytes: of `waiters.c` 19 KiB were counted with the signal
/// frames of AVX-512, and 35 KiB with larger ones.
pub const THREAD_BYTES: u64 = 32 << 10;
/// A thread that makes others looks at the memory outside whenever they take so many bytes. With 111 MiB of
/// stacks in a third of a second the RAM was 149 to 152 MiB of a budget of 150, without it 163 to 191.
pub const THREADS_LOOK_BYTES: u64 = 1 << 20;
/// Small rounds of reclaim (a window each) that it makes at most then: four times what the threads take, to
/// catch up.
pub const THREADS_ROUNDS: u32 = 16;

/// Below this many free frames the background reclaimer starts (share of all frames).
pub const FREE_LOW_SHARE: u32 = 128;
/// It stops at this many times the low mark.
pub const FREE_HIGH_FACTOR: u32 = 2;
/// Never fewer free frames than this when it starts: two blocks coming in at once.
pub const FREE_LOW_MIN: u32 = 2 * BLOCK_PAGES;
/// Readahead leaves these frames to faults.
pub const FREE_RESERVE: u32 = BLOCK_PAGES / 4;

/// Free frames that the background thread makes ahead while the budget is not used up and new frames no
/// longer come straight from the kernel.
pub const GROW_AHEAD: u32 = 16 * BLOCK_PAGES;

/// While nothing was ever reclaimed, pages get new frames until so few more are allowed. The last ones are
/// made in the arena ahead of need: the pool wants a whole window before it can store its first page, and the
/// limit falls a little with every row of the page table that comes into use.
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

/// Staged pages handled under one hold of a block lock, which bounds how long a fault waits for it (about 6
/// us a page), and records that get their places in the pool under one hold of its lock.
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

/// A fault that is not resolved in this time is reported by the watchdog.
pub const FAULT_STALL_MS: u64 = 10_000;

// The bits of the word in which a block's row remembers its faults. These are sizes; bits 0 and 1 say that
// there is a stream, and that it goes backwards.

/// Where a stream's size begins.
pub const STREAM_SIZE_SHIFT: u32 = 2;
/// Where the first page that it brought last begins.
pub const STREAM_LO_SHIFT: u32 = 9;
/// Where the page behind the last one begins.
pub const STREAM_HI_SHIFT: u32 = 16;
/// All three are at most this.
pub const STREAM_PLACE_MAX: u32 = 0x7f;
/// Where the blocks that it runs ahead begin.
pub const STREAM_DEPTH_SHIFT: u32 = 23;
/// They are at most so many.
pub const STREAM_DEPTH_MAX: u32 = 7;
/// Where the pages begin that a stream brought back without a proof of their use.
pub const UNPROVEN_SHIFT: u32 = 26;
/// Most that are counted.
pub const UNPROVEN_MAX: u64 = 0xfff;
const _: () = assert!(BLOCK_PAGES <= STREAM_PLACE_MAX && DEPTH_MAX <= STREAM_DEPTH_MAX);

// Units.

/// Of a whole.
pub const PERCENT: u64 = 100;
/// Of a whole.
pub const PERMILLE: u64 = 1000;
/// Of a whole.
pub const MILLION: u64 = 1_000_000;
/// Nanoseconds of a second.
pub const SECOND_NS: u64 = 1_000_000_000;

// What follows steers: policy goes by it. Each number names the range in which it was tried, and by which
// experiment it was set: a decision (`docs/decisions`) or a row of `weir bench`. "Not tried" says that no
// other value was ever measured.

// Replacement ([`crate::policy::victims`]).

/// Probation gives victims while it has one block in so many. Tried: none other; S3-FIFO's share, kept by
/// `bench policy` (decision 25).
pub const PROBATION_PART: u32 = 10;
/// A block comes back soon within this part of the queued blocks, in turns. Not tried.
pub const REFAULT_PART: u32 = 2;
/// Most references that a block saves up; each is worth a round of the main queue. Not tried: S3-FIFO's.
pub const REFS_MAX: u32 = 3;

// Readahead ([`crate::policy::readahead`]).

/// Most blocks fetched ahead of a stream. Not tried.
pub const DEPTH_MAX: u32 = 4;
/// A stream of this size belongs to faults in order. Not tried: two pages side by side come by chance.
pub const IN_ORDER: u32 = 4;
/// A fault that continues nothing divides its stream's size by this. Not tried.
pub const STREAM_SHRINK: u32 = 16;
/// A fault where an earlier stream began divides its size by this. Tried: 1 and 4 (decision 22).
pub const STREAM_RESTART: u32 = 4;
/// Most pages that were there already that a stream passes over between two faults. Tried: 0 and 8 (decision
/// 22).
pub const PASSED_MAX: usize = 8;
/// Equal distances in a row before a stride is believed. Not tried.
pub const STRIDE_CONFIRM: u32 = 2;
/// Strides of fewer pages than two to this power are followed: a bound of the 24 bits that a thread's row has
/// for one.
pub const STRIDE_BITS: u32 = 22;
/// Equal distances are counted up to here: a bound of the 8 bits that a thread's row has for the count.
pub const STRIDE_SURE_MAX: u32 = 200;
/// Most pages fetched ahead of a stride. Not tried.
pub const STRIDE_PAGES_MAX: u32 = 16;
const _: () =
    assert!(STRIDE_CONFIRM >= 1 && STRIDE_PAGES_MAX.is_power_of_two() && STRIDE_PAGES_MAX <= BLOCK_PAGES);
const _: () = assert!(IN_ORDER > 1 && STREAM_RESTART <= STREAM_SHRINK && STREAM_SHRINK <= BLOCK_PAGES);

// Admission ([`crate::policy::admission`]). By decision 33, where it names no other.

/// Frames for each page that is remembered. Not tried.
pub const ADMIT_FRAMES_PER_PLACE: u32 = 2;
/// Fewest pages remembered: a bound, for an entry has no room for all bits of a page's number.
pub const ADMIT_PLACES_MIN: u32 = 256;
/// An entry stays for this many times as many faults as there are places: a page that is wanted in rounds is
/// found in the next one, comes in, and leaves its place to another. Not tried.
pub const ADMIT_STAYS: u32 = 2;
/// Scores of sites: a size.
pub const ADMIT_SITES: usize = 256;
/// Answers remembered for a moment: a size.
pub const ADMIT_LAST: usize = 1024;
/// A page that is wanted again within so many faults was wanted *at once*: it comes in, and its site is to
/// blame. Not tried.
pub const AT_ONCE: u32 = 64;
/// More where many threads fault: so many for each. Not tried.
pub const AT_ONCE_PER_THREAD: u32 = 8;
/// An unknown site has one load in so many answered. Not tried.
pub const PROBE_ONE_IN: u32 = 16;
/// One load in so many is treated as the rest is not: answered from the swap file at an unknown site, or its
/// page brought, for there may be too many for the table. Not tried.
pub const SELDOM_ONE_IN: u32 = 256;
/// A site with so many answers is trusted. Not tried.
pub const SCORE_ANSWERS: u8 = 8;
/// The highest score. Not tried.
pub const SCORE_MAX: u8 = 32;
/// Weight of the past in the time that victims take, as a power of two: seven eighths. Not tried.
pub const TURN_SHIFT: u32 = 3;
/// A page that was wanted again in this part of the time that a victim takes comes in after as many times in
/// a row. Not tried.
pub const OFTEN: u64 = 4;
/// A site's score goes down by so much when a page in RAM is wanted again at once: an answer costs about a
/// fifth of bringing the page and making room for it, so half of the pages may be. Not tried.
pub const BLAME: u8 = 2;
/// And from the swap file, where an answer costs a read like the other: one in ten may be. Not tried.
pub const BLAME_DISK: u8 = 10;
/// A page in the pool comes in if it is wanted again in this part of the time that a victim takes. Not tried.
pub const WARM_PART: u64 = 128;
/// And so does a staged page, which takes nobody's frame but came to its stage because nobody wanted it, and
/// one in a pool that pages leave for the swap file: what is wanted from time to time had better come in, or
/// it goes as well. Not tried.
pub const WARM_PART_IF_LEAVING: u64 = 16;
/// The golden ratio: its multiples are spread evenly. It steers nothing.
pub const GOLDEN: u32 = 0x9e37_79b9;
/// An odd number that mixes which pages are brought all the same; it steers nothing.
pub const BRING_MIX: u32 = 0x85eb_ca6b;
const _: () = assert!(
    SCORE_ANSWERS < SCORE_MAX
        && BLAME_DISK < SCORE_MAX
        && BLAME <= BLAME_DISK
        && PROBE_ONE_IN <= SELDOM_ONE_IN
);
const _: () = assert!(
    WARM_PART >= WARM_PART_IF_LEAVING && WARM_PART_IF_LEAVING >= OFTEN && ADMIT_SITES == 1 << u8::BITS
);

// How mechanism carries out what was decided: shares and marks.

/// Frames left uncreated for single faults, and made uncreated for them, while these are what the program
/// takes. Not tried (decision 12).
pub const CREDIT_KEPT: u32 = 4 * BLOCK_PAGES;
/// With fewer frames than these outside the pool nobody waits for whole blocks. Not tried (decision 28).
pub const FRAGMENTS_LEAST: u32 = 32 * BLOCK_PAGES;
/// Shorter runs are not worth a MOVE while faults take single pages. Not tried (decision 12).
pub const RUN_MIN: u32 = 8;
/// Blocks of the pool that come by one MOVE. Not tried (decision 34).
pub const POOLED_BLOCKS: u32 = 2;
/// Faults after which the count of faulting threads begins anew. Not tried.
pub const EPOCH_FAULTS: u64 = 256;
/// A batch for the swap file holds at most as many pages as may be staged ([`STAGED_SHARE`]), but so many in
/// any case. Not tried.
pub const BATCH_STAGED_MIN: u32 = 16;
/// The pool is relieved when less than one part in this of its share is vacant, by as large a part of its
/// records. Not tried.
pub const POOL_VACANT_PART: u64 = 16;
/// Unchanged pages of the swap file go to the pool while more than one part in this of it is free. Tried:
/// never, and a sixth (decision 18).
pub const POOL_SPARE_PART: u64 = 6;
/// Places in the pool given up, where that costs nothing, for a page that finds none. Not tried.
pub const POOL_PLACES: u32 = 8;
/// A cluster of the swap file is tidied up when at most one part in this of it is live. Not tried.
pub const CLUSTER_SPARSE_PART: u64 = 4;
/// Pages tried in vain before the rest of a window is given back untried. Not tried.
pub const STUCK_SAMPLE: u32 = 8;
/// Bound: victims looked at per round, blocks whose pages cannot leave, before giving up.
pub const VICTIMS_TRIED: u32 = 16;
/// Bound: blocks looked at for one batch of pooled pages.
pub const COLD_BLOCKS: u32 = 256;
/// Bound: blocks looked at for places in the pool that cost nothing.
pub const WRITTEN_BLOCKS: u32 = 32;
/// Bound: batches of pooled pages written for one fault that nothing else can serve.
pub const POOL_BATCHES: u32 = 32;
/// Bound: slots looked at when the file has no room, in sixteenths.
pub const SLOTS_SWEPT: u32 = 4096;
/// Bound: slots given up then.
pub const SLOTS_GIVEN_UP: u32 = 512;
/// Bound: spans swept per call, and so the time that a fault which reclaims by itself can spend.
pub const SPANS_SWEPT: u32 = 8;
const _: () = assert!(RUN_MIN <= BLOCK_PAGES && POOLED_BLOCKS <= LIFT_BLOCKS && STUCK_SAMPLE <= BLOCK_PAGES);
const _: () = assert!(
    SLOTS_GIVEN_UP <= SLOTS_SWEPT && BATCH_STAGED_MIN <= BLOCK_PAGES && CREDIT_KEPT < FRAGMENTS_LEAST
);

// The pool's size ([`crate::policy::pool_size`]).

/// Shortest time between two looks at the program's own time, ns. Tried: 0.1 s (decision 32) and 0.5 s
/// (decision 42).
pub const LOOK_NS: u64 = 500_000_000;
/// The largest pool below all that it may have is one part in so many of the RAM; each smaller one is half
/// of the one before. Tried: halves without it, and steps of an eighth (decisions 32 and 42); to begin with
/// 2/5 and 1/5 (decisions 44 and 51).
pub const POOL_FIRST_PART: u32 = 5;
/// Looks of a trial, unless the program gains before, or its time still grows. Tried: 2, 3 and 5 (decision
/// 42).
pub const POOL_TRIAL_LOOKS: u32 = 5;
/// What a larger pool must gain, and a smaller one must not lose, in percent of the program's own time.
/// Tried: 3 and 8 (decision 32).
pub const TRIAL_NOISE_PERCENT: u64 = 8;
/// Faults a second that make a trial worth while: some percent of one processor. Not tried.
pub const TRIAL_FAULTS_MIN: u64 = 3000;
/// Looks with faults before the first trial, and after a trial in vain; doubled with each one more, up to
/// [`POOL_REST_LOOKS_MAX`]. Not tried: 3 s (decision 32).
pub const POOL_REST_LOOKS: u32 = 6;
/// Most looks of a rest. Not tried: 4 min (decision 32).
pub const POOL_REST_LOOKS_MAX: u32 = 480;
/// The smallest pool in windows: a bound, for compaction wants two of them vacant.
pub const POOL_WINDOWS_MIN: u32 = 6;
/// The kernel's part of a fault grows towards what a look shows by one part in so many. Not tried.
pub const FLOOR_SHARE: u64 = 16;
const _: () =
    assert!(POOL_REST_LOOKS >= 1 && POOL_REST_LOOKS <= POOL_REST_LOOKS_MAX && POOL_TRIAL_LOOKS >= 2);
const _: () = assert!(TRIAL_NOISE_PERCENT < 100 && TRIAL_FAULTS_MIN * LOOK_NS >= 1_000_000_000);

// Writing through ([`crate::policy::write_through`]). All of it by decision 18; other values were not tried.

/// Shortest time between two looks, ns.
pub const THROUGH_LOOK_NS: u64 = 200_000_000;
/// Good looks in a row before writing through begins.
pub const THROUGH_LOOKS: u32 = 3;
/// Pages that must have left the pool between two looks.
pub const THROUGH_PAGES_MIN: u64 = 256;
/// Permille of the pool's limit that its windows take, to begin.
pub const THROUGH_FILL_BEGIN: u64 = 900;
/// And to go on.
pub const THROUGH_FILL_END: u64 = 750;
/// Permille of the pages that left the pool that went to the file, to begin: a third more is written then.
pub const THROUGH_USEFUL_BEGIN: u64 = 750;
/// And to go on: at best a draw.
pub const THROUGH_USEFUL_END: u64 = 500;
/// Permille of the time in which threads may wait for the device, to begin.
pub const THROUGH_BUSY_BEGIN: u64 = 500;
/// And to go on.
pub const THROUGH_BUSY_END: u64 = 700;
const _: () = assert!(THROUGH_FILL_END < THROUGH_FILL_BEGIN && THROUGH_FILL_BEGIN <= 1000);
const _: () = assert!(THROUGH_USEFUL_END < THROUGH_USEFUL_BEGIN && THROUGH_BUSY_BEGIN < THROUGH_BUSY_END);

// Compressing cold records again ([`crate::policy::recompress`]). All of it by decision 35; other values were
// not tried.

/// Longest stretch of work, and shortest rest after one, ns: no fault waits for it, but a fork may.
pub const COLD_SLICE_NS: u64 = 1_000_000;
/// Between two laps, ns: so long at least nobody has wanted what is compressed again.
pub const COLD_LAP_NS: u64 = 100_000_000;
/// Rest after a fork, ns.
pub const COLD_FORKED_NS: u64 = 64_000_000_000;
/// Longest, ns.
pub const COLD_REST_NS_MAX: u64 = 500_000_000;
/// Others wanted the processor if the thread was without one for more than this part of a slice.
pub const COLD_WAITED_PART: u64 = 8;
/// Pages wanted from tiers in a lap's time that make the next worth while.
pub const COLD_WANTED_MIN: u64 = 500;
/// Until there is something to do again, ns.
pub const COLD_AGAIN_NS: u64 = 1_000_000_000;
/// Until frames may be less short, ns.
pub const COLD_SHORT_NS: u64 = 10_000_000;
/// Doubled at most so often.
pub const COLD_SHORT_DOUBLINGS: u32 = 6;
/// Records after which it is judged whether they get smaller.
pub const COLD_VERDICT: u32 = 256;
/// And one in so many must.
pub const COLD_WORTH_ONE_IN: u32 = 8;
/// First rest when they do not, ns.
pub const COLD_LONG_REST_NS: u64 = 8_000_000_000;
/// Doubled at most so often.
pub const COLD_LONG_REST_DOUBLINGS: u32 = 5;
const _: () = assert!(COLD_SLICE_NS <= COLD_REST_NS_MAX && COLD_REST_NS_MAX < COLD_LONG_REST_NS);

/// Threads whose small calls hold their pages ([`crate::page::holds`]); those of others pin them. Reclaim
/// asks all rows under each block's lock. By decision 43; other values were not tried. A size.
#[cfg(not(loom))]
pub const HOLDS: u32 = 256;
/// A size: as many as a model has threads.
#[cfg(loom)]
pub const HOLDS: u32 = 2;
/// Pages that a thread holds at most, a bound: a buffer of 64 KiB, wherever it begins.
pub const HELD_PAGES_MAX: u32 = 17;
/// Part of the frames that the holds of all threads may take together, but for one page of each: a bound.
pub const HELD_SHARE: u32 = 8;

// Files that the program maps ([`crate::policy::files`], `engine/files.rs`). By decision 45.

/// Smaller mappings of files are left alone, bytes: their pages are few, and each mapping is looked at.
pub const FILE_BYTES_MIN: usize = 1 << 20;
/// Bound: mappings of files that are known at a time. More are left alone.
pub const FILE_MAPS_MAX: usize = 4096;
/// Mapped files make a process large when they take one part in so many of the budget.
pub const FILES_START_SHARE: u64 = 8;
/// Time between two looks at mapped files while the program runs, ns: what is read meanwhile exceeds. Tried:
/// 5 ms.
pub const FILES_LOOK_NS: u64 = 2_000_000;
/// And while it does not.
pub const FILES_IDLE_NS: u64 = 50_000_000;
/// The page tables are read again when one part in so many of what files may have has come.
pub const FILES_SCAN_PART: u64 = 64;
/// And after so long at most, ns.
pub const FILES_SCAN_NS: u64 = 500_000_000;
/// Reading them takes one part in so many of the keeper's time at most.
pub const FILES_SCAN_REST: u64 = 16;
/// Bound: blocks that are tried in one look.
pub const FILES_TRIED: u32 = 1024;
/// Bound: blocks that wait until they are written.
pub const FILES_WRITING_MAX: usize = 256;
/// Blocks that were written so often and are dirty again are in use: they stay.
pub const FILES_WRITTEN_MAX: u8 = 2;
/// Whatever the program's memory takes, files keep one part in so many of the budget, as it does.
pub const FILES_FLOOR_SHARE: u64 = 16;
/// And leave it one part in so many to grow into between two looks.
pub const FILES_SPARE_SHARE: u64 = 32;
/// Blocks that pass take one part in so many of what files may have. Tried: 8 and 16 (the cyclic pass at 1.25
/// times the RAM reads 1.5 and 1.3 times of what does not fit).
pub const PASSING_SHARE: u64 = 32;
/// But so many pages at least: what is read ahead must not leave before it is used.
pub const PASSING_PAGES_MIN: u64 = 16 * BLOCK_PAGES as u64;
/// One block in so many leaves the fixed queue, to see whether it comes back.
pub const FIXED_ONE_IN: u32 = 32;
/// Bound: pairs of blocks, one of each queue, that are waited for.
pub const PAIRS_MAX: usize = 64;
/// A fixed block that comes back before the passing one outweighs so many that do not: where both are alike
/// nothing changes.
pub const PAIR_WON: i32 = 2;
/// So many pairs more that the passing blocks won make the fixed queue stale.
pub const STALE_SCORE: i32 = 4;
const _: () = assert!(FILES_LOOK_NS < FILES_IDLE_NS && FILES_IDLE_NS < FILES_SCAN_NS);
const _: () = assert!(FILES_SPARE_SHARE > FILES_FLOOR_SHARE && PASSING_SHARE > 2);

const _: () = {
    assert!(HELD_PAGES_MAX < BLOCK_PAGES);
    assert!(FREE_LOW_MIN >= BLOCK_PAGES + FREE_RESERVE, "a block's readahead must fit above the reserve");
    assert!(RECORD_BYTES_MAX < 4096);
    assert!(FREE_FLOOR < GROW_AHEAD);
    assert!(BUDGET_BYTES_MIN > 4 * FIXED_OVERHEAD_BYTES);
    assert!(STORE_PER_HOLD >= 1 && STORE_PER_HOLD <= BLOCK_PAGES);
};

/// It steers nothing but what is told: a program is told that it crawls when one of its threads has waited
/// for memory for more than this part of a period, in percent: from there on more memory may make it twice as
/// fast. Not tried with others. `examples/numpy_job.py`, which needs 1.6 GiB, waited for 54 % of its time in
/// 1100M and for 85 % in 400M.
pub const CRAWL_PERCENT: u64 = 50;
/// The period, ns, which steers nothing else: that job fills its memory in half a second to eleven. Not
/// tried with others.
pub const CRAWL_PERIOD_NS: u64 = 10_000_000_000;
/// Pause after the first warning, ns (steers nothing else); each next one is twice as long: an hour of
/// crawling gives nine lines.
pub const CRAWL_PAUSE_NS: u64 = CRAWL_PERIOD_NS;
/// A whole, in percent: it steers nothing.
pub const WHOLE_PERCENT: u64 = 100;
