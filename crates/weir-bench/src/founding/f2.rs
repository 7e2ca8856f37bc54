//! F2, reclaim that knows of free swap space: a program with more memory than RAM, nearly all of a small
//! swap file full of it, and a fixed amount of work on a file through a mapping. Weir has its memory give way
//! to the file as far as there is room for it, or, as the kernel of the report did, whatever there is. Beside
//! them the kernel of today, with as much RAM and as large a swap file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use weir::config::{DEFAULT_POOL_MAX_PERCENT, SWAP_BYTES_MIN};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::Job;
use weir_cli::compare::table;
use weir_cli::term;

use super::f3::of_weir;
use super::{Plan, ratio};
use crate::cli::FoundingRunArgs;
use crate::disk::{number, size, times};
use crate::filework::PHASES;
use crate::{RIVAL_ATTEMPTS, median, workload};

const DEADLINE: Duration = Duration::from_secs(900);
/// RAM, in MiB.
const RAM_MIB: u64 = 256;
/// Swap space: one part in so many of the RAM.
const SWAP_PART: u64 = 4;
/// Not filled by memory, on either side: programs, and Weir's own tables.
const ASIDE_BYTES: u64 = 4 << 20;
/// The file takes so many times the RAM.
const FILE_TIMES: u64 = 2;
/// No limit, for a group that only counts.
const NO_LIMIT: u64 = 1 << 40;
/// Wanted: the time of the work and the speed of each part against those with the mechanism off.
const TIME_WANTED: f64 = 0.59;
const SPEED_WANTED: f64 = 2.0;
/// RAM may exceed the limit by one part in so many, for programs and the kernel's own tables.
const RAM_SLACK_PART: u64 = 16;

/// One of the sides, in the order of the table; the kernel has no `--balance`.
struct Side {
    key: &'static str,
    name: &'static str,
    balance: Option<&'static str>,
}

const SIDES: [Side; 3] = [
    Side { key: "kernel", name: "kernel", balance: None },
    Side { key: "off", name: "Weir, blind", balance: Some("blind") },
    Side { key: "on", name: "Weir", balance: Some("room") },
];

fn swap_bytes(limit: u64) -> u64 {
    (limit / SWAP_PART).max(SWAP_BYTES_MIN)
}

/// What fills RAM, but for an eighth, and three quarters of the swap space.
fn memory_bytes(limit: u64) -> u64 {
    limit / 8 * 7 - ASIDE_BYTES.min(limit / 4) + swap_bytes(limit) / 4 * 3
}

/// Measures each side in turn.
pub fn run(args: &FoundingRunArgs) -> anyhow::Result<Value> {
    let mut plan = Plan::new(args, 0, DEFAULT_POOL_MAX_PERCENT)?;
    plan.limit = args.sized.limit(RAM_MIB)?;
    plan.disk.swap_bytes = swap_bytes(plan.limit);
    let common = &args.sized.common;
    let wanted = |side: &&Side| if side.balance.is_some() { !common.rival_only } else { !common.no_rival };
    let sides: Vec<&Side> = SIDES.iter().filter(wanted).collect();
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    for number in 1..=plan.runs {
        // Each run begins with another side: a machine that gets slower or faster favours none.
        let first = number as usize % sides.len().max(1);
        for side in sides[first..].iter().chain(&sides[..first]) {
            term::progress(&format!("run {number} of {}: {}", plan.runs, side.name));
            match run_side(&plan, side) {
                Ok(mut run) => {
                    run["side"] = json!(side.key);
                    runs.push(run);
                }
                Err(e) if side.key == "on" || weir_cli::interrupt::interrupted() => return Err(e),
                Err(e) => notes.push(format!("without {}: {e:#}", side.name)),
            }
        }
    }
    notes.sort();
    notes.dedup();
    notes.iter().for_each(|note| term::progress(note));
    let mut report = plan.common_json("f2");
    report["memory_bytes"] = json!(memory_bytes(plan.limit));
    report["file_bytes"] = json!(plan.limit * FILE_TIMES);
    report["swap_bytes"] = json!(plan.disk.swap_bytes);
    report["rows"] = json!(rows(&runs));
    report["verdict"] = verdict(&runs, plan.limit);
    report["notes"] = json!(notes);
    report["runs"] = json!(runs);
    Ok(report)
}

/// The file of the work, which goes when the run is over.
struct WorkFile(PathBuf);

impl WorkFile {
    fn new(folder: &Path) -> WorkFile {
        WorkFile(folder.join(format!("weir-bench-files-{}", std::process::id())))
    }
}

impl Drop for WorkFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run_side(plan: &Plan, side: &Side) -> anyhow::Result<Value> {
    let file = WorkFile::new(plan.disk.dir());
    let (memory, bytes) = (memory_bytes(plan.limit).to_string(), (plan.limit * FILE_TIMES).to_string());
    let path = file.0.to_string_lossy();
    let job =
        workload::job(&["files", "--bytes", &memory, "--file", &path, "--file-bytes", &bytes], DEADLINE)?;
    match side.balance {
        None => run_kernel(plan, &job),
        Some(balance) => run_weir(plan, &job, &file.0, balance),
    }
}

fn run_kernel(plan: &Plan, job: &Job) -> anyhow::Result<Value> {
    let rival = Rival::set_up(Area::File(plan.disk.dir().to_owned()), plan.limit, plan.disk.swap_bytes)?;
    let outcome = job.run_rival(&rival, RIVAL_ATTEMPTS)?;
    let mut run = outcome.to_json();
    run["description"] = json!(rival.description);
    run["scanned"] = run["printed"]["kernel_scanned_pages"].clone();
    run["ram_bytes"] = json!(plan.limit + outcome.store_peak_bytes);
    Ok(run)
}

fn run_weir(plan: &Plan, job: &Job, file: &Path, balance: &str) -> anyhow::Result<Value> {
    // Without permission to make a group nothing is counted from outside.
    let group = Rival::set_up(Area::None, NO_LIMIT, 0).ok();
    let more = [("files", "kernel".to_owned()), ("balance", balance.to_owned())];
    let options = plan.disk.options(&more);
    let (mut most, mut before) = (0, None);
    let (outcome, counters) =
        job.run_weir_watched(plan.limit, plan.faults, &options, group.as_ref(), |pid| {
            most = group.as_ref().and_then(|group| group.charged_bytes().ok()).unwrap_or(0).max(most);
            if before.is_none() && file.exists() {
                before = Some(of_weir(pid).unwrap_or_default());
            }
        })?;
    let mut run = outcome.to_json();
    run["scanned"] = json!(scanned(&counters, &before.unwrap_or_default()));
    run["ram_bytes"] = json!(group.map(|_| most));
    run["counters"] = json!(counters);
    Ok(run)
}

/// Pages of memory that Weir's reclaim looked at since the work began.
fn scanned(now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>) -> Option<u64> {
    let of = |counters: &BTreeMap<String, u64>| counters.get("weir_pages_unmapped").copied();
    Some(of(now)?.saturating_sub(of(then)?))
}

/// The median of something of one side's runs.
fn of(runs: &[Value], side: &str, at: &str) -> Option<f64> {
    median(runs.iter().filter(|run| run["side"] == side).filter_map(|run| run.pointer(at)?.as_f64()))
}

fn speed(runs: &[Value], side: &str, phase: &str) -> Option<f64> {
    of(runs, side, &format!("/printed/phases/{phase}/mb_per_s"))
}

fn rows(runs: &[Value]) -> Vec<Value> {
    let row = |phase: &&str| {
        let [kernel, off, on] = SIDES.each_ref().map(|side| speed(runs, side.key, phase));
        json!({
            "phase": phase, "kernel": kernel, "off": off, "on": on, "gain": ratio(on, off),
            "against_kernel": ratio(on, kernel),
        })
    };
    PHASES.iter().map(row).collect()
}

/// The work as a whole, and what was wanted of it.
fn verdict(runs: &[Value], limit: u64) -> Value {
    let mut verdict = json!({});
    for side in &SIDES {
        verdict[side.key] = json!({
            "work_s": of(runs, side.key, "/printed/work_s"), "scanned": of(runs, side.key, "/scanned"),
            "ram_bytes": of(runs, side.key, "/ram_bytes"),
        });
    }
    let time = |side: &str| of(runs, side, "/printed/work_s");
    let shorter = ratio(time("on"), time("off"));
    let all = |against: &str, times: f64| {
        let gains: Option<Vec<f64>> =
            PHASES.iter().map(|phase| ratio(speed(runs, "on", phase), speed(runs, against, phase))).collect();
        gains.map(|gains| gains.iter().all(|gain| *gain >= times))
    };
    // What was written and is not on the disk yet cannot leave: with more RAM nothing is shown.
    let most = (limit + limit / RAM_SLACK_PART) as f64;
    let same_ram = of(runs, "on", "/ram_bytes").map(|bytes| bytes <= most);
    verdict["time"] = json!(shorter);
    verdict["reached"] = json!({
        "time": shorter.map(|time| time <= TIME_WANTED), "speed": all("off", SPEED_WANTED),
        "kernel": same_ram.and_then(|same| Some(same && all("kernel", 1.0)?)),
    });
    verdict
}

/// The two tables of a report.
pub fn human(report: &Value) -> String {
    let mut text =
        Plan::title(report, "F2, reclaim that knows of free swap space: work on a file, memory in the way");
    text += &format!(
        "{} of memory that does not compress, {} of swap space; a file of {}, mapped\n\
         blind: memory gives way to files whether it has room to go to or not, as in the report\n\n",
        size(&report["memory_bytes"]),
        size(&report["swap_bytes"]),
        size(&report["file_bytes"]),
    );
    text += &crate::scenarios::note_lines(report);
    let lines: Vec<Vec<String>> = report["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let mut line = vec![row["phase"].as_str().unwrap_or("?").to_owned()];
            line.extend(SIDES.iter().map(|side| number(&row[side.key])));
            line.extend([times(&row["gain"]), times(&row["against_kernel"])]);
            line
        })
        .collect();
    let [kernel, off, on] = SIDES.each_ref().map(|side| side.name);
    text += &table::render(&["MB/s", kernel, off, on, "gain", "against kernel"], &lines);
    let verdict = &report["verdict"];
    let lines: Vec<Vec<String>> = SIDES
        .iter()
        .map(|side| {
            let of = |field: &str| &verdict[side.key][field];
            vec![side.name.to_owned(), number(of("work_s")), number(of("scanned")), size(of("ram_bytes"))]
        })
        .collect();
    let headers = ["the work", "s", "pages of memory looked at", "RAM of the group"];
    text += &format!("\n{}", table::render(&headers, &lines));
    text + &format!(
        "time with it on: {} of that without (wanted: {TIME_WANTED}x; speeds {SPEED_WANTED}x, none below the \
         kernel's)\n",
        times(&verdict["time"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(side: &str, mb_per_s: f64, work_s: f64, scanned: u64) -> Value {
        let phases: Value = PHASES.iter().map(|phase| (*phase, json!({ "mb_per_s": mb_per_s }))).collect();
        json!({
            "side": side, "scanned": scanned, "ram_bytes": 256 << 20,
            "printed": { "phases": phases, "work_s": work_s },
        })
    }

    #[test]
    fn gains_are_those_over_the_blind_side_and_the_kernel() {
        let runs = [
            run_of("kernel", 100.0, 6.0, 500),
            run_of("off", 50.0, 12.0, 90_000),
            run_of("on", 110.0, 5.0, 0),
        ];
        let (rows, verdict) = (rows(&runs), verdict(&runs, 256 << 20));
        assert!(rows.iter().all(|row| row["gain"] == 2.2 && row["against_kernel"] == 1.1), "{rows:?}");
        assert_eq!(verdict["reached"], json!({ "time": true, "speed": true, "kernel": true }));
        let too_much = super::verdict(&runs, 200 << 20);
        assert_eq!(too_much["reached"]["kernel"], false, "with more RAM than the kernel has");
        let text = human(&json!({ "rows": rows, "verdict": verdict, "notes": ["a note"] }));
        for part in ["rewrite", "2.20x", "1.10x", "256 MiB", "note: a note", "0.42x"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 130, "{widest}: {text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_no_success() {
        let found = verdict(&[run_of("on", 110.0, 5.0, 0)], 256 << 20);
        assert_eq!(found["reached"], json!({ "time": null, "speed": null, "kernel": null }));
        assert!(human(&json!({ "rows": rows(&[]), "verdict": found })).contains('-'));
    }

    #[test]
    fn memory_leaves_room_for_files_and_takes_most_of_the_swap_space() {
        for limit in [8 << 20, 64 << 20, 256 << 20_u64] {
            let (memory, swap) = (memory_bytes(limit), swap_bytes(limit));
            assert!(memory > limit / 2 && memory < limit + swap, "{limit}: {memory}");
        }
        assert!(memory_bytes(256 << 20) > 256 << 20);
        let counted = |n| BTreeMap::from([("weir_pages_unmapped".to_owned(), n)]);
        assert_eq!(scanned(&counted(9), &counted(5)), Some(4));
        assert_eq!(scanned(&counted(9), &BTreeMap::new()), None);
    }
}
