//! Counters of the swap tier, of this process.

use crate::stats::About;
use core::sync::atomic::AtomicU64;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident $key:literal $unit:ident $high:literal),* $(,)?) => {
        /// What this process did; units are in the names, else events or pages.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// What stands in the document about each counter, but for the two averages.
            pub const ABOUT: &'static [About] = &[$(About {
                key: $key,
                unit: stringify!($unit),
                meaning: &[$($doc),*],
                high: $high,
            },)*];

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
    pages_in "pswpin" pages "As the engine's counter of this name, of the process alone.",
    /// Pages that were written.
    pages_out "pswpout" pages "As the engine's counter of this name, of the process alone.",
    /// Bytes read, with what alignment adds.
    bytes_read "weir_swap_bytes_read" bytes "The disk's part of the work: reading.",
    /// Bytes written, with what alignment adds.
    bytes_written "weir_swap_bytes_written" bytes
        "The disk's part of the work: writing. It wears flash memory.",
    /// Read requests to the device.
    reads "weir_swap_reads" events "Against pswpin: how many pages come with each request.",
    /// Write requests to the device.
    writes "weir_swap_writes" events "Against pswpout: how many pages go with each request.",
    /// Slots asked for.
    slots_wanted "weir_swap_slots_wanted" events "Nothing is wrong: it tells how the work was done.",
    /// Times that a cache went to the shared slot bitmap, to fill or to empty itself: the accesses that
    /// processors and processes contend for.
    slot_trips "weir_swap_slot_trips" events
        "Against weir_swap_slots_wanted: how often processes contend. For developers.",
    /// Clusters that were taken.
    clusters_taken "weir_swap_clusters_taken" events "The swap file is in use.",
    /// Clusters whose space went back to the file system.
    clusters_punched "weir_swap_clusters_punched" events "Room went back to the disk.",
    /// Records that failed their check.
    damaged "weir_swap_damaged" events
        "The disk returned other bytes than were written: see the kernel's log, replace the disk.",
    /// Requests that failed.
    errors "weir_swap_errors" events
        "The disk refused reads or writes: it is full, or broken. See the kernel's log.",
}

fn get(c: &AtomicU64) -> u64 {
    c.load(core::sync::atomic::Ordering::Relaxed)
}
