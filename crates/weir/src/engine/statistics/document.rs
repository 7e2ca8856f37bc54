//! `docs/statistics.md`, made from the tables that stand beside the counters. `BLESS=1 cargo test -p weir
//! statistics` writes it.

use crate::engine::Engine;
use crate::sim::World;
use crate::sim::disk::FakeDisk;
use crate::stats::{About, Stats};
use crate::tier::swap::counters::Counters;
use std::collections::BTreeMap;
use std::path::Path;

const COLUMNS: usize = 110;

const HEAD: &str = "# What the counters say

`--stats FILE` writes them when the program ends, as lines of key and value, or as one object where the name
ends in `.json`; with `--stats-interval SECONDS` also while it runs. This page is made from the tables in
`stats.rs` and `counters.rs`: `BLESS=1 cargo test -p weir statistics` writes it.

Where to look first:

- Did the program wait? `weir_waited_ns`, of all threads together, against the time that it ran.
- Would more RAM help? `weir_peak_managed_bytes` and `weir_peak_outside_bytes` together are the budget that
  holds all data.
- Was it the disk? `pswpin`, and `weir_swap_io_ns` against `weir_waited_ns`.
- Does the data compress? `weir_peak_pool_logical_bytes` against `weir_peak_pool_stored_bytes`.
- Is something wrong? `weir_transitions_missed`, `weir_errors_fill`, `weir_swap_errors` and
  `weir_swap_damaged` are 0.

Names without `weir_` are those of `/proc/vmstat`, and mean the same, of this process. Counters begin with the
engine; in the child of a fork those of its parent go on, but for the time waited. *High* says what a high
value means, and what to do.

";

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

fn document() -> String {
    let swap = Counters::ABOUT.iter().filter(|about| about.key.starts_with("weir_"));
    let all = Stats::ABOUT.iter().chain(swap).chain(WORKED_OUT);
    let by_key: BTreeMap<&str, &About> = all.map(|about| (about.key, about)).collect();
    let mut text = HEAD.to_owned();
    for About { key, unit, meaning, high } in by_key.into_values() {
        let meaning = meaning.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        wrap(&format!("- `{key}` ({unit}): {meaning} *High:* {}", in_backticks(high)), &mut text);
    }
    text
}

/// With the names of counters and options in backticks.
fn in_backticks(high: &str) -> String {
    let mut words = Vec::new();
    for word in high.split(' ') {
        let bare = word.trim_end_matches(['.', ',', ':', ';']);
        let named =
            bare.starts_with("--") || bare.contains('_') || bare.starts_with("ps") || bare.starts_with("zs");
        let named = named || bare.starts_with("pg");
        words.push(if named { format!("`{bare}`{}", &word[bare.len()..]) } else { word.to_owned() });
    }
    words.join(" ")
}

/// As an item of a list.
fn wrap(item: &str, text: &mut String) {
    let mut column = 0;
    for word in item.split(' ') {
        let wide = word.chars().count();
        if column > 0 && column + 1 + wide > COLUMNS {
            text.push_str("\n ");
            column = 1;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += wide;
    }
    text.push('\n');
}

#[test]
fn the_document_of_statistics_is_what_the_tables_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/statistics.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, document()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let wanted = document();
    for (line, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, wanted, "docs/statistics.md:{}: BLESS=1 cargo test -p weir statistics", line + 1);
    }
    assert!(
        found == wanted,
        "docs/statistics.md has other lines at its end: BLESS=1 cargo test -p weir statistics"
    );
}

#[test]
fn the_document_has_every_counter_that_is_told_and_no_other() {
    let disk = FakeDisk::new(8 << 20, 512);
    let world = World::budget(12).pages(2048).pool_max(12).swap(disk, 8 << 20);
    let engine = Engine::new(world.core(), 0x7000_0000_0000);
    let mut told: Vec<&str> = vec!["weir_shared_bytes"];
    engine.each_counter(|key, _| told.push(key));
    told.sort_unstable();
    let document = document();
    let keys =
        document.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("` (").map(|(key, _)| key));
    assert_eq!(keys.collect::<Vec<_>>(), told);
}
