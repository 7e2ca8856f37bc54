//! What people read of all values that are told, in one place: for `docs/statistics.md`, and for those who
//! hand values on (`weir serve`).

use crate::stats::{About, Stats};
use crate::tier::swap::counters::Counters;

/// What no table has: what is worked out when somebody asks.
const WORKED_OUT: &[About] = &[
    About {
        key: "weir_fault_p50_ns",
        unit: "ns",
        meaning: &["Half of the faults took no longer, within an eighth."],
        high: "Above some microseconds: most faults wait for the disk or for processors.",
    },
    About {
        key: "weir_fault_p99_ns",
        unit: "ns",
        meaning: &["99 of 100 faults took no longer, within an eighth."],
        high: "The usual wait for the disk, or for room.",
    },
    About {
        key: "weir_fault_p999_ns",
        unit: "ns",
        meaning: &["999 of 1000 faults took no longer, within an eighth."],
        high: "Above a millisecond: faults wait for room, or for a processor.",
    },
    About {
        key: "weir_swap_write_bytes_avg",
        unit: "bytes",
        meaning: &["Bytes of a write to the swap file, on average."],
        high: "Large writes are quick ones: good.",
    },
    About {
        key: "weir_swap_read_bytes_avg",
        unit: "bytes",
        meaning: &["Bytes of a read from the swap file, on average."],
        high: "Data comes back in the order in which it went: good.",
    },
    About {
        key: "weir_shared_bytes",
        unit: "bytes",
        meaning: &[
            "Shared memory of the process in RAM when the file was written, which is not in the budget.",
        ],
        high: "The program needs that much RAM besides.",
    },
    About {
        key: "weir_space_start",
        unit: "address",
        meaning: &["Where managed memory begins."],
        high: "It says nothing: the place is random.",
    },
    About {
        key: "weir_space_bytes",
        unit: "bytes",
        meaning: &["Room for managed memory, which is no memory yet."],
        high: "It says nothing: how much the program could ask for.",
    },
];

/// Counted in bytes, and only ever more of them.
const COUNTED_BYTES: &[&str] =
    &["weir_swap_bytes_read", "weir_swap_bytes_written", "weir_recompress_saved_bytes"];
/// Not counted: they fall as well.
const LEVELS: &[&str] = &[
    "weir_zstd_pages",
    "weir_swap_doubled",
    "weir_fault_floor_ns",
    "weir_fault_p50_ns",
    "weir_fault_p99_ns",
    "weir_fault_p999_ns",
];

/// Every value that is told, in no order, each once.
pub fn about() -> impl Iterator<Item = &'static About> {
    // The kernel's names are among the engine's already.
    let swap = Counters::ABOUT.iter().filter(|about| about.key.starts_with("weir_"));
    Stats::ABOUT.iter().chain(swap).chain(WORKED_OUT)
}

impl About {
    /// Whether it only ever rises while a process runs.
    pub fn is_counter(&self) -> bool {
        match self.unit {
            "events" | "pages" | "ns" => !LEVELS.contains(&self.key),
            _ => COUNTED_BYTES.contains(&self.key),
        }
    }

    /// What it says, in one line.
    pub fn text(&self) -> String {
        self.meaning.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_here_is_told_and_peaks_are_no_counters() {
        for key in COUNTED_BYTES.iter().chain(LEVELS) {
            assert!(about().any(|about| about.key == *key), "{key}");
        }
        for about in about().filter(|about| about.key.contains("_peak_") || about.key.ends_with("_avg")) {
            assert!(!about.is_counter(), "{}", about.key);
        }
        assert!(about().any(|about| about.key == "pgfault" && about.is_counter()));
        assert!(about().any(|about| about.key == "weir_waited_ns" && about.is_counter()));
    }
}
