//! Counters of the swap tier, of this process.

use core::sync::atomic::AtomicU64;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $key:literal),* $(,)?) => {
        /// What this process did; units are in the names, else events or pages.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Key and value of every counter, in a fixed order, and the two averages made of them.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f($key, get(&self.$name));)*
                f("weir_swap_write_bytes_avg", get(&self.bytes_written) / get(&self.writes).max(1));
                f("weir_swap_read_bytes_avg", get(&self.bytes_read) / get(&self.reads).max(1));
            }
        }
    };
}

counters! {
    /// Pages that were read.
    pages_in "pswpin",
    /// Pages that were written.
    pages_out "pswpout",
    /// Bytes read, with what alignment adds.
    bytes_read "weir_swap_bytes_read",
    /// Bytes written, with what alignment adds.
    bytes_written "weir_swap_bytes_written",
    /// Read requests to the device.
    reads "weir_swap_reads",
    /// Write requests to the device.
    writes "weir_swap_writes",
    /// Slots asked for.
    slots_wanted "weir_swap_slots_wanted",
    /// Times that a cache went to the shared slot bitmap, to fill or to empty itself: the accesses that
    /// processors and processes contend for.
    slot_trips "weir_swap_slot_trips",
    /// Clusters that were taken.
    clusters_taken "weir_swap_clusters_taken",
    /// Clusters whose space went back to the file system.
    clusters_punched "weir_swap_clusters_punched",
    /// Records that failed their check.
    damaged "weir_swap_damaged",
    /// Requests that failed.
    errors "weir_swap_errors",
}

fn get(c: &AtomicU64) -> u64 {
    c.load(core::sync::atomic::Ordering::Relaxed)
}
