//! Counters: one on every exit of fault and reclaim, so that they add up. Relaxed atomics; written by the
//! engine, read by anybody.
//!
//! Those that every fault writes are sharded: each thread adds to cache lines of its own, and readers sum.
//! All faults of all threads would pass through their lines otherwise, a dozen times each. Of the others
//! those that change often lie *alone* in a line, so that they disturb no neighbour; the rest lie *together*.

use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::shards::{Line, SHARDS, Shards};

/// What people read of a counter.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its name in files, and for `weir stat`.
    pub key: &'static str,
    /// What is counted.
    pub unit: &'static str,
    /// What it says, in lines of a comment.
    pub meaning: &'static [&'static str],
    /// What a high value means, and what to do.
    pub high: &'static str,
}

macro_rules! counters {
    (
        sharded { $(
            $(#[doc = $hot_doc:literal])* $hot:ident $hot_key:literal $hot_unit:ident $hot_high:literal
        ),* $(,)? }
        alone { $(
            $(#[doc = $lone_doc:literal])* $lone:ident $lone_key:literal $lone_unit:ident $lone_high:literal
        ),* $(,)? }
        together { $(
            $(#[doc = $doc:literal])* $name:ident $key:literal $unit:ident $high:literal
        ),* $(,)? }
    ) => {
        /// All counters; units are in the names, else events or pages.
        #[derive(Debug, Default)]
        pub struct Stats {
            shards: Line<Shards<Shard>>,
            $($(#[doc = $lone_doc])* pub $lone: Line<AtomicU64>,)*
            $($(#[doc = $doc])* pub $name: AtomicU64,)*
        }

        /// What one thread counts.
        #[derive(Debug, Default)]
        struct Shard {
            $($hot: AtomicU64,)*
            keep_samples: AtomicU64,
            fault_ns: Histogram,
        }

        impl Stats {
            /// What stands in the document about each counter, but for the quantiles.
            pub const ABOUT: &'static [About] = &[
                $(About {
                    key: $hot_key,
                    unit: stringify!($hot_unit),
                    meaning: &[$($hot_doc),*],
                    high: $hot_high,
                },)*
                $(About {
                    key: $key,
                    unit: stringify!($unit),
                    meaning: &[$($doc),*],
                    high: $high,
                },)*
                $(About {
                    key: $lone_key,
                    unit: stringify!($lone_unit),
                    meaning: &[$($lone_doc),*],
                    high: $lone_high,
                },)*
            ];

            $($(#[doc = $hot_doc])* #[inline] pub fn $hot(&self) -> Sharded<'_> {
                Sharded { shards: &self.shards, of: |shard| &shard.$hot }
            })*

            /// Key and value of every counter, in a fixed order.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f($hot_key, self.$hot().get());)*
                $(f($key, self.$name.load(Ordering::Relaxed));)*
                $(f($lone_key, self.$lone.load(Ordering::Relaxed));)*
                f("weir_fault_p50_ns", self.fault_quantile(0.5));
                f("weir_fault_p99_ns", self.fault_quantile(0.99));
                f("weir_fault_p999_ns", self.fault_quantile(0.999));
            }
        }
    };
}

counters! {
    sharded {
        /// Faults read from the kernel.
        faults "pgfault" events
            "Data is used again after it had left. A larger --memory, or work on a smaller part of the data \
             at a time.",
        /// Faults whose page had to be expanded.
        faults_major "pgmajfault" events
            "The pool works: these cost a few microseconds each. A larger --memory saves them.",
        /// Pages expanded from the pool.
        pool_in "zswpin" pages "As of pgmajfault.",
        /// Pages compressed into the pool.
        pool_out "zswpout" pages
            "The data does not fit the budget. A larger --memory saves the processor time.",
        /// Pages installed as zeros on first touch.
        in_absent "weir_in_absent" pages
            "The program asks for fresh memory: natively it would take faults, too.",
        /// Pages installed by copying into a new frame.
        in_copied "weir_in_copied" pages "Faults at random places. Nothing to do but a larger --memory.",
        /// Loads answered from a page's record: the page stayed where it was.
        loads_answered "weir_loads_answered" pages
            "Reads at random places were served without room for their pages: a good sign.",
        /// Staged pages taken back.
        in_staged "weir_in_staged" pages
            "Pages are wanted just after they were chosen to leave: the budget is far below what is in use.",
        /// Pages brought in beyond those faulted on, first touches and those asked for by advice
        /// (`MADV_WILLNEED`) included.
        readahead "weir_readahead" pages "Data is used in order: good. Compare swap_ra_hit with swap_ra.",
        /// Locks of blocks that reclaim took.
        out_block_locks "weir_out_block_locks" events
            "Against zswpout: the fewer for each page, the better the batches. For developers.",
        /// Holds of the pool's lock to find places for records.
        out_pool_locks "weir_out_pool_locks" events "As of weir_out_block_locks.",
        /// Holds of the frames' lock to take windows for pages that leave, and to free their frames.
        out_frame_locks "weir_out_frame_locks" events "As of weir_out_block_locks.",
        /// Holds of the locks of reclaim's queues: victims, staged blocks, pooled blocks.
        out_queue_locks "weir_out_queue_locks" events "As of weir_out_block_locks.",
        /// Staged pages dropped because their kept copy was unchanged.
        out_clean "weir_out_clean" pages "Data is read more than it is written: these pages left at no cost.",
        /// Times a faulting thread reclaimed ahead of need.
        own_reclaims "weir_own_reclaims" events
            "The threads of the program ask for memory faster than one thread frees it. More processors, or \
             a larger --memory.",
        /// Times a faulting thread let others run, where more threads fault than there are processors.
        turns "weir_turns" events
            "More threads fault than there are processors. Fewer threads may be as fast.",
        /// System calls with small managed buffers that libc's wrapped functions made, whose pages were there
        /// and held by the thread alone.
        calls_held "weir_calls_held" events "The program makes many small system calls. Nothing is wrong.",
        /// Time that threads of the program waited for memory, ns, once something had left its frame: in
        /// their faults, and while pages were brought for their system calls. With handler threads, the time
        /// in which faults were served.
        waited_ns "weir_waited_ns" ns
            "The price of the budget: compare it with the time that the program ran, for each thread. A \
             larger --memory.",
        /// Bytes of records in the pool.
        pool_stored_bytes "weir_pool_stored_bytes" bytes
            "Much is compressed. Against weir_pool_logical_bytes: how well.",
        /// Bytes of pages that these records stand for.
        pool_logical_bytes "weir_pool_logical_bytes" bytes
            "Less than twice weir_pool_stored_bytes: the data hardly compresses, and a swap file on a quick \
             disk helps more.",
    }
    alone {
        /// Bytes of the program's data in whatever tier: touched and not dropped.
        managed_bytes "weir_managed_bytes" bytes
            "Above weir_budget_bytes: the data does not fit. A --memory above it ends all waiting.",
        /// Most of these.
        managed_bytes_peak "weir_peak_managed_bytes" bytes
            "With weir_peak_outside_bytes, what a --memory has to hold so that the program never waits.",
    }
    together {
        /// Pages read from the swap file.
        swap_in "pswpin" pages
            "Data comes from the disk: the slowest tier. A larger --memory, or a quicker disk for \
             --swap-dir.",
        /// Pages written to the swap file.
        swap_out "pswpout" pages
            "The pool is full. A larger --memory; --swap none refuses memory in its place.",
        /// Faults on pages already there when the message was read.
        faults_stale "weir_faults_stale" events "Several threads want the same pages at once. Nothing to do.",
        /// Faults on addresses that nobody has mapped.
        faults_foreign "weir_faults_foreign" events
            "The program uses addresses that it has not mapped, or has unmapped.",
        /// Pages installed from a same-filled value.
        in_same "weir_in_same" pages
            "Much of the data is one value (zeros): such pages take no room. A good sign.",
        /// Of `weir_readahead`, pages that came back: they had contents, and Weir expected them to be wanted
        /// soon. What never had contents costs no read and is not among them, nor is what the program asked
        /// for.
        swap_ra "swap_ra" pages "Data is fetched ahead. Good, if swap_ra_hit follows.",
        /// Of `swap_ra`, pages known to be used. Nobody sees an access to a page that is there, so the proof
        /// is the next fault of what brought them: a stream that faults at the edge of what it brought has
        /// passed over all of it (also when it did so block by block, in blocks fetched ahead), and so has a
        /// stride at the page behind those fetched. It is a lower bound: what came last of every stream
        /// stays unproven, as does what a system call used.
        swap_ra_hit "swap_ra_hit" pages "Close to swap_ra: what was fetched ahead was wanted.",
        /// Blocks unmapped by reclaim.
        blocks_unmapped "weir_blocks_unmapped" events "As of weir_pages_unmapped.",
        /// Pages unmapped by reclaim.
        pages_unmapped "weir_pages_unmapped" pages
            "Against zswpout: how many pages got their second chance and were wanted again.",
        /// System calls made to unmap, for calls per page.
        unmap_calls "weir_unmap_calls" events
            "Against weir_pages_unmapped: close to it means that single pages leave, each at the price of a \
             flush.",
        /// Lifts made.
        lifts "weir_lifts" events "Many pages leave at once: the cheapest way out.",
        /// Time in them, ns: the address space is locked, with a flush of all processors at the end.
        lift_ns "weir_lift_ns" ns
            "The address space is locked meanwhile. Programs with many threads that map and unmap wait for \
             it.",
        /// Calls that gave free frames back to the kernel, to make room for new ones.
        sheds "weir_sheds" events "Frames are exchanged: sizes of runs change. For developers.",
        /// Time in them, ns.
        shed_ns "weir_shed_ns" ns "As of weir_sheds.",
        /// Holds of the pool's lock that were timed: one in many.
        pool_holds "weir_pool_holds" events "How many samples there are for weir_pool_hold_ns.",
        /// Time of these, ns, waiting for the lock included.
        pool_hold_ns "weir_pool_hold_ns" ns
            "Divided by weir_pool_holds above some microseconds: threads wait for the pool. Fewer threads, \
             or a larger --memory.",
        /// Times that a lock was not free, of all engines of this process.
        lock_waits "weir_lock_waits" events "Threads fault at the same time in the same places.",
        /// Time until it was, ns.
        lock_wait_ns "weir_lock_wait_ns" ns
            "A large part of weir_waited_ns: threads hinder each other. Fewer threads may be as fast.",
        /// Staged pages found same-filled.
        out_same "weir_out_same" pages "As of weir_in_same.",
        /// Staged pages that did not compress.
        out_stuck "weir_out_stuck" pages
            "The data does not compress (it is compressed or encrypted already): a swap file, or a larger \
             --memory.",
        /// Pages that went to the swap file untried, because they did not compress last time.
        out_untried "weir_out_untried" pages "As of weir_out_stuck; the processor was spared.",
        /// Pages that could not be unmapped (pinned or shared).
        out_busy "weir_out_busy" pages
            "Pages are locked, shared since a fork, or in use by system calls. They stay in RAM.",
        /// Pages compressed with shuffling first.
        out_shuffled "weir_out_shuffled" pages "The data is arrays of numbers, which compress better so.",
        /// Kept copies dropped because the pool needed room.
        kept_dropped "weir_kept_dropped" events
            "The pool is full; pages that did not change have to be compressed again.",
        /// Pool records moved by compaction.
        pool_moved "weir_pool_moved" events "Much dies in the pool while it is full. For developers.",
        /// Cold pool records that were compressed again with zstd to see whether they get smaller.
        recompress_tried "weir_recompress_tried" events "Idle processor time is used for cold data.",
        /// And did, and took the place of the old ones.
        recompressed "weir_recompressed" events "As of weir_recompress_tried.",
        /// Bytes that these were smaller.
        recompress_saved_bytes "weir_recompress_saved_bytes" bytes "What that has gained.",
        /// Pages that lie in the pool as zstd.
        zstd_pages "weir_zstd_pages" pages "Much of the data is cold.",
        /// Pages brought in from there.
        zstd_in "weir_zstd_in" pages "Cold data was wanted again, at some microseconds more for each page.",
        /// Pages that went to the swap file without a write: the slot kept of them was still true.
        swap_clean "weir_swap_clean" pages
            "Data is read more than it is written: these pages left without a write.",
        /// Pages taken back or given up while they were written.
        swap_cancelled "weir_swap_cancelled" pages
            "Pages are wanted while they are written: the budget is far below what is in use.",
        /// Pages written from the pool, to make room in it.
        swap_from_pool "weir_swap_from_pool" pages
            "The pool is full, and its coldest pages move to the disk.",
        /// Pages written from the pool ahead of their eviction; they stayed in it.
        swap_through "weir_swap_through" pages
            "The disk is written ahead, so that room can be made at once. --policy writeback spares the \
             disk.",
        /// Pages that left the pool for the swap file without a write: they had been written through.
        swap_evicted_free "weir_swap_evicted_free" pages "What weir_swap_through has gained.",
        /// Pooled pages that are in the swap file as well.
        swap_doubled "weir_swap_doubled" pages "Room in the pool that can be had at once.",
        /// Pages dropped by the program while they were in the pool.
        pool_died "weir_pool_died" pages "Data is short-lived. Writing it ahead would be wasted.",
        /// Policy in force now: 0 writeback, 1 writethrough.
        policy "weir_policy" word "1: the adaptive policy writes ahead now.",
        /// Times that the adaptive policy changed it.
        policy_switches "weir_policy_switches" events
            "What the program does changes often. A fixed --policy may be steadier.",
        /// Time that threads spent reading from the swap file and writing to it.
        swap_io_ns "weir_swap_io_ns" ns
            "The disk is the limit: a quicker one for --swap-dir, or a larger --memory.",
        /// Slots of pages in frames or in the pool given up because the swap file got short.
        swap_kept_dropped "weir_swap_kept_dropped" events "The swap file is short of room: a larger --swap.",
        /// Records moved out of clusters that were mostly dead.
        swap_moved "weir_swap_moved" events "The swap file is fragmented: a larger --swap.",
        /// Faults that waited for a read that another thread had under way.
        swap_waits "weir_swap_waits" events
            "Threads want the same pages from the disk at once. Nothing to do.",
        /// Bytes of live records in the swap file.
        swap_bytes "weir_swap_bytes" bytes
            "Close to the size of the swap file: the end is near. A larger --swap or --memory.",
        /// Bytes of free clusters in the swap file.
        swap_free_bytes "weir_swap_free_bytes" bytes "Room in the swap file; low is bad.",
        /// Pages dropped because the program freed or unmapped them.
        discarded "weir_discarded" pages "The program gives memory back. Nothing to do.",
        /// Times a fault had to reclaim by itself.
        direct_reclaims "weir_direct_reclaims" events
            "The background thread is not quick enough: too few processors for so many threads, or a slow \
             disk.",
        /// Time faults spent reclaiming by themselves.
        direct_reclaim_ns "weir_stall_ns" ns "As of weir_direct_reclaims: a part of weir_waited_ns.",
        /// System calls with managed pointers that libc's wrapped functions made, without a trap, and whose
        /// pages were pinned.
        calls_wrapped "weir_calls_wrapped" events
            "The program makes many system calls with managed buffers. Nothing is wrong.",
        /// System calls with managed pointers that were trapped.
        calls_trapped "weir_calls_trapped" events
            "Each costs some microseconds. Where they are many, --faults thread may be faster.",
        /// Of all these, calls that the table does not know.
        calls_unknown "weir_calls_unknown" events
            "The program makes system calls that Weir does not know. Please report which.",
        /// Of all these, calls made in pieces because their buffers exceed a call's share.
        calls_in_pieces "weir_calls_in_pieces" events
            "Buffers are large against the budget. Smaller ones, or a larger --memory.",
        /// Pages brought in for system calls.
        in_for_calls "weir_in_for_calls" pages
            "Data is read and written by system calls after it had left RAM.",
        /// Page-moving system calls.
        pager_calls "weir_pager_calls" events
            "Against pages that came and went: how large the batches are. For developers.",
        /// Pages that the kernel had moved without telling, noticed and counted as moved (Linux 6.18).
        moves_untold "weir_moves_untold" pages
            "The kernel has a fault that Weir works around. Nothing to do.",
        /// Changes of page words that failed although they could not: bugs. 0 unless Weir is broken.
        transitions_missed "weir_transitions_missed" events "A bug in Weir: please report it.",
        /// Requests refused because everything was full.
        refused "weir_refused" events "The program was refused memory. A larger --memory or --swap.",
        /// Budget.
        budget_bytes "weir_budget_bytes" bytes
            "As asked for with --memory; a share of what surrounds the program follows that.",
        /// The limit of which the budget is a share, as last seen: the least of the control groups' limits
        /// and the machine's RAM. 0 where the budget is a size, and follows nothing.
        limit_around_bytes "weir_limit_around_bytes" bytes
            "As the container's limit is. Weir follows it, up to the budget at the start.",
        /// What the engine may hold of the budget beside the memory outside.
        limit_bytes "weir_limit_bytes" bytes
            "Far below weir_budget_bytes: memory outside takes the rest, see weir_outside_bytes.",
        /// Anonymous memory outside, when last measured: heap from before the start, stacks, small mappings,
        /// libc's blocks.
        outside_bytes "weir_outside_bytes" bytes
            "RAM that Weir cannot manage: stacks, small mappings. A larger --memory, fewer threads.",
        /// Most of it.
        outside_bytes_peak "weir_peak_outside_bytes" bytes "As of weir_outside_bytes.",
        /// Most RAM in all that was measured at one moment: outside, mapped files, and what the engine held.
        total_bytes_peak "weir_peak_total_bytes" bytes
            "Above weir_budget_bytes: the promise was broken, because memory outside grew too quickly.",
        /// Pages of mapped files in RAM when last measured, bytes.
        files_bytes "weir_files_bytes" bytes "With --files: mapped files take a part of the budget.",
        /// Most of them.
        files_bytes_peak "weir_peak_files_bytes" bytes "As of weir_files_bytes.",
        /// Pages of mapped files that had to leave RAM.
        files_evicted "weir_files_evicted" pages
            "Mapped files do not fit beside the rest. A larger --memory.",
        /// Dirty pages of mapped files whose writing was begun, so that they can leave.
        files_written "weir_files_written" pages
            "Mapped files are written to, and must reach the disk before they can leave.",
        /// Parts of mapped files that system calls named: they were read ahead as a whole, and stayed longer.
        files_announced "weir_files_announced" events
            "The program writes or sends from mapped files. Nothing to do.",
        /// Pages that were there again when a block of a mapped file that had left was seen again.
        files_refaulted "weir_files_refaulted" pages
            "Pages of files were wanted again soon. A larger --memory.",
        /// How much speaks for the program's memory to give way to mapped files, in percent; from 100 on it
        /// does where it has room to go to: half of `weir_balance_mapped`, `weir_balance_distress`, and
        /// `--swappiness` as far as there is `weir_balance_room`.
        balance_tendency "weir_balance_tendency" percent
            "100 and more: memory is compressed or swapped so that files have RAM. --swappiness 0 keeps it.",
        /// What files leave to memory of the budget, in percent, when last measured.
        balance_mapped "weir_balance_mapped" percent "Memory takes most of the budget.",
        /// How hard it is for files to give way: 100 where they have next to nothing, half as much with each
        /// sixteenth of the budget that they have.
        balance_distress "weir_balance_distress" percent "Files have hardly any RAM. A larger --memory.",
        /// How much of the room for memory that leaves RAM is free, in pool and swap file, in percent, slots
        /// that are second copies included.
        balance_room "weir_balance_room" percent
            "Memory has somewhere to go. At 0 it stays, and files give way: a larger --swap.",
        /// Times that reclaim left the program's memory alone because it could go nowhere, and files were to
        /// give way.
        files_first "weir_files_first" events
            "Pool and swap file are full. A larger --swap, or a larger --memory.",
        /// RAM held now: frames and metadata.
        resident_bytes "weir_resident_bytes" bytes
            "At weir_limit_bytes as soon as the data does not fit: that is how it should be.",
        /// Most RAM held.
        resident_bytes_peak "weir_peak_resident_bytes" bytes "As of weir_resident_bytes.",
        /// Most bytes of pages that were in the pool.
        pooled_bytes_peak "weir_peak_pool_logical_bytes" bytes "How much the pool has held.",
        /// Bytes of their records at that moment.
        pooled_bytes_peak_stored "weir_peak_pool_stored_bytes" bytes
            "Against weir_peak_pool_logical_bytes: how well the data compressed.",
        /// Most bytes of live records in the swap file.
        swap_bytes_peak "weir_peak_swap_bytes" bytes "How large a --swap has to be for this program.",
        /// RAM under pool windows.
        pool_bytes "weir_pool_bytes" bytes "Much of the budget holds compressed data. See --pool-max.",
        /// RAM that may be under pool windows now.
        pool_limit_bytes "weir_pool_limit_bytes" bytes
            "The pool may grow so far. Low after weir_share_kept: the program is better off with more \
             frames.",
        /// Times that the adaptive policy tried another share of the RAM for the pool.
        share_trials "weir_share_trials" events "The adaptive policy is at work.",
        /// And kept it.
        share_kept "weir_share_kept" events "And has found something better.",
        /// Time that the program's threads had for themselves, between their faults, as the adaptive policy
        /// sees it: in inline mode, with a swap file.
        program_ns "weir_program_ns" ns
            "Against weir_waited_ns: how much of its time the program has for itself.",
        /// The kernel's part of a fault as seen now, which is not in it, ns.
        fault_floor_ns "weir_fault_floor_ns" ns
            "Above some microseconds: the kernel is slow here (debugging options, a virtual machine).",
        /// Frames that could not be installed.
        errors_fill "weir_errors_fill" events
            "The kernel refuses to install pages: see weir_last_errno, and please report it.",
        /// Error number of the last failure to install.
        last_errno "weir_last_errno" errno "Not 0: see weir_errors_fill.",
        /// 0 MOVE, 1 copy, 2 guard regions and SIGSEGV.
        pager "weir_pager" word
            "1: the kernel is older than Linux 6.8; 2: no userfaultfd. Each page is copied on its way.",
    }
}

impl Stats {
    /// Pages of which a copy might be kept: a number for each of the calling thread's, not told to anybody.
    #[inline]
    pub fn keep_samples(&self) -> Sharded<'_> {
        Sharded { shards: &self.shards, of: |shard| &shard.keep_samples }
    }

    /// Counts the time from the beginning of a fault to its end. `short`: memory was not plentiful, so the
    /// thread waited for it.
    #[inline]
    pub fn record_fault(&self, ns: u64, short: bool) {
        let mine = self.shards.mine();
        mine.fault_ns.record(ns);
        if short {
            add(&mine.waited_ns, ns);
        }
    }

    /// Time that the thread waited that waited most, ns. Threads that share a shard count together.
    pub fn waited_most_ns(&self) -> u64 {
        self.shards.iter().map(|shard| shard.waited_ns.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// What [`Self::waited_ns`] sums, by shards.
    pub fn waited_by_shard(&self) -> [u64; SHARDS] {
        let mut each = self.shards.iter().map(|shard| shard.waited_ns.load(Ordering::Relaxed));
        core::array::from_fn(|_| each.next().unwrap_or(0))
    }

    /// In the child of a fork: its parent's waiting is not its own.
    pub fn forget_waits(&self) {
        self.shards.iter().for_each(|shard| shard.waited_ns.store(0, Ordering::Relaxed));
    }

    /// Notes how full pool and swap file are, if they were never fuller.
    pub fn note_fullest(&self) {
        let pooled = self.pool_logical_bytes().get();
        if pooled > self.pooled_bytes_peak.fetch_max(pooled, Ordering::Relaxed) {
            self.pooled_bytes_peak_stored.store(self.pool_stored_bytes().get(), Ordering::Relaxed);
        }
        let swapped = self.swap_bytes.load(Ordering::Relaxed);
        self.swap_bytes_peak.fetch_max(swapped, Ordering::Relaxed);
    }

    /// The line that `--verbose` adds to the summary. Allocates nothing.
    pub fn tell_exactly(&self, out: &mut impl core::fmt::Write) -> core::fmt::Result {
        let us = |q| self.fault_quantile(q) as f64 / 1000.0;
        let pager = ["move", "copy", "segv"].get(self.pager.load(Ordering::Relaxed) as usize);
        writeln!(
            out,
            "weir: pager {}; {} faults, p50 {:.1} us, p99 {:.1} us; {} pages compressed; {} pages written to \
             the swap file and {} read",
            pager.unwrap_or(&"unknown"),
            self.faults().get(),
            us(0.5),
            us(0.99),
            self.pool_out().get(),
            self.swap_out.load(Ordering::Relaxed),
            self.swap_in.load(Ordering::Relaxed),
        )
    }

    /// Upper bound of the time that this share of the faults took, ns; 0 when there was none.
    pub fn fault_quantile(&self, q: f64) -> u64 {
        let mut counts = [0; BUCKETS];
        self.shards.iter().for_each(|shard| shard.fault_ns.add_to(&mut counts));
        quantile(&counts, q)
    }
}

/// A counter of which each thread has its own part.
#[derive(Clone, Copy, Debug)]
pub struct Sharded<'a> {
    shards: &'a Shards<Shard>,
    of: fn(&Shard) -> &AtomicU64,
}

impl Sharded<'_> {
    /// Adds.
    #[inline]
    pub fn add(self, n: u64) {
        add(self.mine(), n);
    }

    /// Adds if there is anything to add.
    #[inline]
    pub fn count(self, n: u32) {
        if n > 0 {
            self.add(n.into());
        }
    }

    /// Subtracts.
    #[inline]
    pub fn sub(self, n: u64) {
        sub(self.mine(), n);
    }

    /// Adds one. Returns what the thread's own part was before.
    #[inline]
    pub fn next(self) -> u64 {
        self.mine().fetch_add(1, Ordering::Relaxed)
    }

    /// The calling thread's own part.
    #[inline]
    pub fn own(self) -> u64 {
        self.mine().load(Ordering::Relaxed)
    }

    #[inline]
    fn mine(&self) -> &AtomicU64 {
        (self.of)(self.shards.mine())
    }

    /// The sum. Parts are read one after the other: of a counter that also falls, what one thread subtracts
    /// may be seen before what another has added, so the sum is never taken for less than nothing.
    pub fn get(self) -> u64 {
        let parts = self.shards.iter().map(|shard| (self.of)(shard).load(Ordering::Relaxed));
        (parts.fold(0, u64::wrapping_add) as i64).max(0) as u64
    }
}

/// Adds to a counter.
#[inline]
pub fn add(c: &AtomicU64, n: u64) {
    c.fetch_add(n, Ordering::Relaxed);
}

/// Subtracts from a counter.
#[inline]
pub fn sub(c: &AtomicU64, n: u64) {
    c.fetch_sub(n, Ordering::Relaxed);
}

const SUB_BITS: u32 = 3;
/// Shorter times count as this long, longer ones as almost 18 minutes.
const LOG_MIN: u32 = 8;
const LOG_END: u32 = 40;
const BUCKETS: usize = ((LOG_END - LOG_MIN) << SUB_BITS) as usize;

/// Log-linear histogram: 8 buckets per power of two, so quantiles are exact within 12.5 %.
#[derive(Debug)]
struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    fn record(&self, v: u64) {
        self.0[Self::bucket(v)].fetch_add(1, Ordering::Relaxed);
    }

    fn bucket(v: u64) -> usize {
        let v = v.clamp(1 << LOG_MIN, (1 << LOG_END) - 1);
        let log = 63 - v.leading_zeros();
        let sub = (v >> (log - SUB_BITS)) & ((1 << SUB_BITS) - 1);
        ((log - LOG_MIN) << SUB_BITS) as usize + sub as usize
    }

    fn add_to(&self, counts: &mut [u64; BUCKETS]) {
        counts.iter_mut().zip(&self.0).for_each(|(sum, n)| *sum += n.load(Ordering::Relaxed));
    }
}

/// Upper bound of the bucket in which the quantile lies; 0 when nothing was counted.
fn quantile(counts: &[u64; BUCKETS], q: f64) -> u64 {
    let rank = (counts.iter().sum::<u64>() as f64 * q).ceil() as u64;
    let mut seen = 0;
    for (i, n) in counts.iter().enumerate() {
        seen += n;
        if seen >= rank && seen > 0 {
            let (log, sub) = ((i as u32 >> SUB_BITS) + LOG_MIN, (i as u64) & ((1 << SUB_BITS) - 1));
            return (1u64 << log) + ((sub + 1) << (log - SUB_BITS));
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_an_eighth_of_the_truth_whichever_threads_counted() {
        let s = Stats::default();
        assert_eq!(s.fault_quantile(0.5), 0);
        std::thread::scope(|scope| {
            for part in 0..4 {
                let s = &s;
                scope
                    .spawn(move || (1 + part..=100_000u64).step_by(4).for_each(|v| s.record_fault(v, false)));
            }
        });
        for (q, want) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0)] {
            let got = s.fault_quantile(q) as f64;
            assert!(got >= want && got <= want * 1.126, "{q}: {got}");
        }
    }

    #[test]
    fn threads_wait_only_while_memory_is_short_and_the_one_that_waits_most_is_known() {
        let s = Stats::default();
        s.record_fault(1000, false);
        assert_eq!((s.waited_ns().get(), s.waited_most_ns()), (0, 0));
        s.record_fault(1000, true);
        std::thread::scope(|scope| drop(scope.spawn(|| s.record_fault(500, true))));
        assert_eq!(s.waited_ns().get(), 1500);
        assert!([1000, 1500].contains(&s.waited_most_ns()), "they may share a shard");
        s.forget_waits();
        assert_eq!((s.waited_ns().get(), s.waited_most_ns()), (0, 0));
    }

    #[test]
    fn the_pool_at_its_fullest_keeps_the_ratio_that_it_had_then() {
        let s = Stats::default();
        s.pool_logical_bytes().add(300);
        s.pool_stored_bytes().add(100);
        s.note_fullest();
        s.pool_logical_bytes().sub(200);
        s.pool_stored_bytes().sub(99);
        s.note_fullest();
        let of = |a: &AtomicU64| a.load(Ordering::Relaxed);
        assert_eq!((of(&s.pooled_bytes_peak), of(&s.pooled_bytes_peak_stored)), (300, 100));
    }

    #[test]
    fn times_out_of_range_are_counted_at_its_ends() {
        let s = Stats::default();
        s.record_fault(0, false);
        assert_eq!(s.fault_quantile(1.0), 256 + 32);
        s.record_fault(u64::MAX, false);
        assert_eq!(s.fault_quantile(1.0), 1 << 40);
    }

    #[test]
    fn what_some_threads_add_and_others_subtract_is_summed_and_never_less_than_nothing() {
        let s = Stats::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| s.pool_stored_bytes().add(3)));
                scope.spawn(|| (0..1000).for_each(|_| s.pool_stored_bytes().sub(2)));
            }
        });
        assert_eq!(s.pool_stored_bytes().get(), 8000);
        s.pool_stored_bytes().sub(9000);
        assert_eq!(s.pool_stored_bytes().get(), 0);
    }

    #[test]
    fn shards_take_little_memory() {
        assert!(size_of::<Shard>() * SHARDS <= 48 << 10);
    }

    #[test]
    fn every_counter_is_listed_once() {
        let mut keys = Vec::new();
        Stats::default().each(|k, _| keys.push(k));
        let n = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), n);
        assert!(keys.contains(&"weir_peak_resident_bytes"));
    }
}
