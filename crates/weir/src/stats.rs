//! Counters: one on every exit of fault and reclaim, so that they add up. Plain relaxed atomics in
//! one static-sized struct; written by the engine, read by anybody.

use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $key:literal),* $(,)?) => {
        /// All counters; units are in the names, else events or pages.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Time from reading a fault message to waking the thread, log-linear buckets in ns.
            pub fault_ns: Histogram,
        }

        impl Stats {
            /// Key and value of every counter, in a fixed order.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f($key, self.$name.load(Ordering::Relaxed));)*
                f("weir_fault_p50_ns", self.fault_ns.quantile(0.5));
                f("weir_fault_p99_ns", self.fault_ns.quantile(0.99));
                f("weir_fault_p999_ns", self.fault_ns.quantile(0.999));
            }
        }
    };
}

counters! {
    /// Faults read from the kernel.
    faults "pgfault",
    /// Faults whose page had to be expanded.
    faults_major "pgmajfault",
    /// Pages read from the swap file.
    swap_in "pswpin",
    /// Pages written to the swap file.
    swap_out "pswpout",
    /// Pages expanded from the pool.
    pool_in "zswpin",
    /// Pages compressed into the pool.
    pool_out "zswpout",
    /// Faults on pages already there when the message was read.
    faults_stale "weir_faults_stale",
    /// Faults on addresses that nobody has mapped.
    faults_foreign "weir_faults_foreign",
    /// Pages installed as zeros on first touch.
    in_absent "weir_in_absent",
    /// Pages installed from a same-filled value.
    in_same "weir_in_same",
    /// Pages installed by copying into a new frame.
    in_copied "weir_in_copied",
    /// Staged pages taken back.
    in_staged "weir_in_staged",
    /// Pages brought in beyond those faulted on, first touches and those asked for by advice (`MADV_WILLNEED`) included.
    readahead "weir_readahead",
    /// Of these, pages that came back: they had contents, and Weir expected them to be wanted soon. What never had contents
    /// costs no read and is not among them, nor is what the program asked for.
    swap_ra "swap_ra",
    /// Of `swap_ra`, pages known to be used. Nobody sees an access to a page that is there, so the proof is the next fault of
    /// what brought them: a stream that faults at the edge of what it brought has passed over all of it (also when it did so
    /// block by block, in blocks fetched ahead), and so has a stride at the page behind those fetched. It is a lower bound: the
    /// last window of every stream stays unproven, as does what a system call used, and what was brought by nearness.
    swap_ra_hit "swap_ra_hit",
    /// Of `swap_ra`, pages brought because faults of a block came close together, in no order. Nothing proves their use: the more
    /// of them are wanted, the fewer faults follow. To judge streams, take them off.
    swap_ra_nearby "weir_swap_ra_nearby",
    /// Blocks unmapped by reclaim.
    blocks_unmapped "weir_blocks_unmapped",
    /// Pages unmapped by reclaim.
    pages_unmapped "weir_pages_unmapped",
    /// System calls made to unmap, for calls per page.
    unmap_calls "weir_unmap_calls",
    /// Staged pages dropped because their kept copy was unchanged.
    out_clean "weir_out_clean",
    /// Staged pages found same-filled.
    out_same "weir_out_same",
    /// Staged pages that did not compress.
    out_stuck "weir_out_stuck",
    /// Pages that could not be unmapped (pinned or shared).
    out_busy "weir_out_busy",
    /// Pages compressed with shuffling first.
    out_shuffled "weir_out_shuffled",
    /// Kept copies dropped because the pool needed room.
    kept_dropped "weir_kept_dropped",
    /// Pool records moved by compaction.
    pool_moved "weir_pool_moved",
    /// Pages that went to the swap file without a write: the slot kept of them was still true.
    swap_clean "weir_swap_clean",
    /// Pages taken back or given up while they were written.
    swap_cancelled "weir_swap_cancelled",
    /// Pages written from the pool, to make room in it.
    swap_from_pool "weir_swap_from_pool",
    /// Pages written from the pool ahead of their eviction; they stayed in it.
    swap_through "weir_swap_through",
    /// Pages that left the pool for the swap file without a write: they had been written through.
    swap_evicted_free "weir_swap_evicted_free",
    /// Pooled pages that are in the swap file as well.
    swap_doubled "weir_swap_doubled",
    /// Pages dropped by the program while they were in the pool.
    pool_died "weir_pool_died",
    /// Policy in force now: 0 writeback, 1 writethrough.
    policy "weir_policy",
    /// Times that the adaptive policy changed it.
    policy_switches "weir_policy_switches",
    /// Time that threads spent reading from the swap file and writing to it.
    swap_io_ns "weir_swap_io_ns",
    /// Slots of pages in frames or in the pool given up because the swap file got short.
    swap_kept_dropped "weir_swap_kept_dropped",
    /// Records moved out of clusters that were mostly dead.
    swap_moved "weir_swap_moved",
    /// Faults that waited for a read that another thread had under way.
    swap_waits "weir_swap_waits",
    /// Bytes of live records in the swap file.
    swap_bytes "weir_swap_bytes",
    /// Bytes of free clusters in the swap file.
    swap_free_bytes "weir_swap_free_bytes",
    /// Pages dropped because the program freed or unmapped them.
    discarded "weir_discarded",
    /// Times a fault had to reclaim by itself.
    direct_reclaims "weir_direct_reclaims",
    /// Times a faulting thread reclaimed ahead of need.
    own_reclaims "weir_own_reclaims",
    /// Times a faulting thread let others run, where more threads fault than there are processors.
    turns "weir_turns",
    /// Time faults spent reclaiming by themselves.
    direct_reclaim_ns "weir_stall_ns",
    /// System calls with managed pointers that libc's wrapped functions made, without a trap.
    calls_wrapped "weir_calls_wrapped",
    /// System calls with managed pointers that were trapped.
    calls_trapped "weir_calls_trapped",
    /// Of all these, calls that the table does not know.
    calls_unknown "weir_calls_unknown",
    /// Of all these, calls made in pieces because their buffers exceed a call's share.
    calls_in_pieces "weir_calls_in_pieces",
    /// Pages brought in for system calls.
    in_for_calls "weir_in_for_calls",
    /// Page-moving system calls.
    pager_calls "weir_pager_calls",
    /// Requests refused because everything was full.
    refused "weir_refused",
    /// Budget.
    budget_bytes "weir_budget_bytes",
    /// RAM held now: frames and metadata.
    resident_bytes "weir_resident_bytes",
    /// Most RAM held.
    resident_bytes_peak "weir_peak_resident_bytes",
    /// Bytes of the program's data in whatever tier: touched and not dropped.
    managed_bytes "weir_managed_bytes",
    /// Most of these.
    managed_bytes_peak "weir_peak_managed_bytes",
    /// RAM under pool windows.
    pool_bytes "weir_pool_bytes",
    /// Bytes of records in the pool.
    pool_stored_bytes "weir_pool_stored_bytes",
    /// Bytes of pages that these records stand for.
    pool_logical_bytes "weir_pool_logical_bytes",
    /// Frames that could not be installed.
    errors_fill "weir_errors_fill",
    /// Error number of the last failure to install.
    last_errno "weir_last_errno",
    /// 0 MOVE, 1 copy.
    pager "weir_pager",
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
const BUCKETS: usize = 64 << SUB_BITS;

/// Log-linear histogram: 8 buckets per power of two, so quantiles are exact within 12.5 %.
#[derive(Debug)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&self, v: u64) {
        self.0[Self::bucket(v)].fetch_add(1, Ordering::Relaxed);
    }

    fn bucket(v: u64) -> usize {
        let v = v.max(1 << SUB_BITS);
        let log = 63 - v.leading_zeros();
        let sub = (v >> (log - SUB_BITS)) & ((1 << SUB_BITS) - 1);
        ((log as usize) << SUB_BITS) + sub as usize
    }

    /// Upper bound of the bucket in which the quantile lies; 0 when nothing was counted.
    pub fn quantile(&self, q: f64) -> u64 {
        let total: u64 = self.0.iter().map(|b| b.load(Ordering::Relaxed)).sum();
        let rank = (total as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (i, b) in self.0.iter().enumerate() {
            seen += b.load(Ordering::Relaxed);
            if seen >= rank && seen > 0 {
                let (log, sub) = ((i >> SUB_BITS) as u32, (i as u64) & ((1 << SUB_BITS) - 1));
                return (1u64 << log) + ((sub + 1) << (log - SUB_BITS));
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_an_eighth_of_the_truth() {
        let h = Histogram::default();
        assert_eq!(h.quantile(0.5), 0);
        (1..=100_000u64).for_each(|v| h.record(v));
        for (q, want) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0)] {
            let got = h.quantile(q) as f64;
            assert!(got >= want && got <= want * 1.126, "{q}: {got}");
        }
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
