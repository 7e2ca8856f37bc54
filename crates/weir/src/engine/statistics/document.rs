//! `docs/statistics.md`, made from the tables that stand beside the counters. `BLESS=1 cargo test -p weir
//! statistics` writes it.

use super::about::about;
use crate::engine::Engine;
use crate::sim::World;
use crate::sim::disk::FakeDisk;
use crate::stats::About;
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

fn document() -> String {
    let by_key: BTreeMap<&str, &About> = about().map(|about| (about.key, about)).collect();
    let mut text = HEAD.to_owned();
    for about in by_key.into_values() {
        let (About { key, unit, high, .. }, meaning) = (about, about.text());
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
