//! `weir demo`: sorts a table three times the size of the RAM it may use, proves the result right, and shows
//! what the kernel's own swap takes for the same.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir::config::{MEMORY_BYTES_MIN, format_size, parse_size};
use weir_cli::compare::numbers::{Random, mix};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::{Job, Outcome, weir_missing};
use weir_cli::{interrupt, term};
use weir_os::host::AnonymousWords;
use weir_os::probe;

use crate::cli::DemoArgs;

const ROW_WORDS: usize = 16;
const ROW_BYTES: usize = ROW_WORDS * 8;
const TEXT_WORDS: usize = ROW_WORDS - 1;
/// Distinct customers: the upper half of a row's key.
const CUSTOMERS: u64 = 1 << 20;
const LOOKUPS: u64 = 10_000;
/// Data per byte of RAM.
const DATA_PER_BUDGET: u64 = 3;
/// The kernel's limit as part of the budget: what is left is about what its compressed store needs for these
/// rows.
const LIMIT_PERCENT: u64 = 62;
const SWAP_SLACK_BYTES: u64 = 64 << 20;
/// The demo is to end within a minute: one kill by the kernel is repeated, two are its result.
const RIVAL_ATTEMPTS: u64 = 6;
const DEADLINE: Duration = Duration::from_secs(60);

/// What the rest of a row says, by the customer's region.
const TEXTS: [&[u8; TEXT_WORDS * 8]; 4] = [
    b"order of goods  carrier=rail  priority=normal  comment=none  terms=30 days net  currency=EUR  \
      region=north  status=open ",
    b"order of goods  carrier=rail  priority=normal  comment=none  terms=30 days net  currency=EUR  \
      region=south  status=paid ",
    b"order of goods  carrier=rail  priority=normal  comment=none  terms=30 days net  currency=EUR  \
      region=east   status=late ",
    b"order of goods  carrier=rail  priority=normal  comment=none  terms=30 days net  currency=EUR  \
      region=west   status=void ",
];

/// Key of a row: who, then which row. No two rows have the same, so there is one right order.
fn key(row: u64) -> u64 {
    (mix(row) % CUSTOMERS) << 32 | row
}

fn text_of(key: u64) -> [u64; TEXT_WORDS] {
    let text = TEXTS[(key >> 32) as usize % TEXTS.len()];
    std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|b| text[i * 8 + b])))
}

/// The program that is measured (`weir __demo BYTES`).
pub fn job(bytes: usize) -> anyhow::Result<ExitCode> {
    term::print(&format!("{}\n", workload(bytes)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Fill, sort, scan, look up.
fn workload(bytes: usize) -> anyhow::Result<Value> {
    let rows = bytes / ROW_BYTES;
    ensure!(rows > 0 && rows < 1 << 32, "between 1 row and 2^32 rows");
    let mut memory = AnonymousWords::new(rows * ROW_BYTES)?;
    let started = Instant::now();
    let (table, _) = memory.words_mut().as_chunks_mut::<ROW_WORDS>();
    for (row, cells) in table.iter_mut().enumerate() {
        let key = key(row as u64);
        cells[0] = key;
        cells[1..].copy_from_slice(&text_of(key));
    }
    let filled = Instant::now();
    table.sort_unstable_by_key(|cells| cells[0]);
    let sorted = Instant::now();
    let mut checksum = 0_u64;
    for (position, cells) in table.iter().enumerate() {
        ensure!(cells[1..] == text_of(cells[0]), "row {position} is damaged");
        checksum = checksum.wrapping_add(cells[0].wrapping_mul(position as u64 + 1));
    }
    let scanned = Instant::now();
    let mut random = Random::new(3);
    for _ in 0..LOOKUPS {
        let wanted = key(random.below(rows as u64));
        ensure!(table.binary_search_by_key(&wanted, |cells| cells[0]).is_ok(), "row {wanted:#x} is lost");
    }
    let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
    Ok(json!({
        "rows": rows,
        "checksum": format!("{checksum:016x}"),
        "fill_s": seconds(started, filled),
        "sort_s": seconds(filled, sorted),
        "scan_s": seconds(sorted, scanned),
        "lookup_s": scanned.elapsed().as_secs_f64(),
    }))
}

/// The checksum without sorting anything: counting tells where each row must end up.
fn expected_checksum(rows: u64) -> u64 {
    let mut next = vec![0_u64; CUSTOMERS as usize + 1];
    for row in 0..rows {
        next[(key(row) >> 32) as usize + 1] += 1;
    }
    for customer in 1..next.len() {
        next[customer] += next[customer - 1];
    }
    let mut checksum = 0_u64;
    for row in 0..rows {
        let position = &mut next[(key(row) >> 32) as usize];
        *position += 1;
        checksum = checksum.wrapping_add(key(row).wrapping_mul(*position));
    }
    checksum
}

/// Runs the comparison and prints it.
pub fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    interrupt::catch_signals()?;
    let total = parse_size(&args.memory, probe::ram_limit_bytes())
        .with_context(|| format!("--memory {}", args.memory))?;
    ensure!(total >= 4 * MEMORY_BYTES_MIN, "--memory: the least is {}", format_size(4 * MEMORY_BYTES_MIN));
    ensure!(total <= 2 << 30, "--memory: at most 2 GiB, to stay under a minute");
    if let Some(why) = weir_missing() {
        anyhow::bail!("{why}");
    }
    let data = total * DATA_PER_BUDGET / ROW_BYTES as u64 * ROW_BYTES as u64;
    let rows = data / ROW_BYTES as u64;
    term::progress(&format!(
        "A table of {rows} rows, {}, in {} of RAM.",
        format_size(data),
        format_size(total)
    ));
    let expected = format!("{:016x}", expected_checksum(rows));
    let job = Job::own("__demo", &[&data.to_string()], DEADLINE)?;

    let mut note = None;
    let rival = match args.no_rival {
        true => None,
        false => run_rival(&job, total, data).inspect_err(|e| note = Some(format!("{e:#}"))).ok(),
    };
    // The kernel used its limit and its store; Weir gets no more than that, and never less than a third of
    // the data.
    let budget = rival.as_ref().map_or(total, |(_, ram)| total.min(*ram));
    let (weir, counters) = job.run_weir(budget, None)?;
    let native = job.run_native()?;

    let mut sides = vec![("weir", &weir, counters.get("weir_peak_resident_bytes").copied().unwrap_or(0))];
    if let Some((outcome, ram)) = &rival {
        sides.push(("kernel swap (zram lz4)", outcome, *ram));
    }
    sides.push(("native, no limit", &native, native.rss_peak_bytes));
    for (name, outcome, _) in &sides {
        let found = outcome.printed["checksum"].as_str().unwrap_or("nothing");
        ensure!(found == expected, "{name}: checksum {found} instead of {expected}: the result is wrong");
    }
    let mut text = table(&sides);
    text += &format!("\nAll results verified: checksum {expected}, worked out beforehand without sorting.\n");
    if let Some(note) = note {
        text += &format!("Without the kernel's swap: {note}\n");
    }
    term::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The same under the kernel's swap, and the RAM it took: its limit and its store.
fn run_rival(job: &Job, total: u64, data: u64) -> anyhow::Result<(Outcome, u64)> {
    let limit = total * LIMIT_PERCENT / 100;
    let rival = Rival::set_up(Area::Zram, limit, data + SWAP_SLACK_BYTES)?;
    let result = job.run_rival(&rival, RIVAL_ATTEMPTS)?;
    Ok((result.outcome, limit + result.store_peak_bytes))
}

fn table(sides: &[(&str, &Outcome, u64)]) -> String {
    use weir_cli::compare::table::{render, short};
    let rows: Vec<Vec<String>> = sides
        .iter()
        .map(|(name, outcome, ram)| {
            let step = |field: &str| {
                outcome.printed[field].as_f64().map_or("-".to_owned(), |s| format!("{} s", short(s)))
            };
            let total = ["fill_s", "sort_s", "scan_s", "lookup_s"];
            let total: f64 = total.iter().filter_map(|field| outcome.printed[field].as_f64()).sum();
            vec![
                (*name).to_owned(),
                format_size(*ram),
                step("fill_s"),
                step("sort_s"),
                step("scan_s"),
                step("lookup_s"),
                format!("{} s", short(total)),
            ]
        })
        .collect();
    render(&["", "RAM", "fill", "sort", "scan", "10k lookups", "total"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_and_the_count_agree_on_the_checksum() {
        for rows in [1_u64, 2, 1000, 40_000] {
            let result = workload(rows as usize * ROW_BYTES).unwrap();
            assert_eq!(result["checksum"], format!("{:016x}", expected_checksum(rows)), "{rows} rows");
        }
    }

    #[test]
    fn the_checksum_depends_on_the_order() {
        assert_ne!(
            expected_checksum(1000),
            (0..1000).fold(0, |sum, row| key(row).wrapping_mul(row + 1).wrapping_add(sum))
        );
    }
}
