//! `weir bench passes`: programs that go over the same data again and again, with a little less RAM than that
//! takes. With an order of last use each page leaves just before it is wanted, and a pass costs all of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use weir::config::{DEFAULT_POOL_MAX_PERCENT, MEMORY_BYTES_MIN, format_size, parse_size};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::{Job, Outcome, weir_missing};
use weir_cli::compare::table;
use weir_cli::term;
use weir_os::probe::{self, FaultMode};

use super::Findings;
use super::numpy::interpreter;
use super::{RIVAL_ATTEMPTS, median, oom_note};
use crate::cli::PassesArgs;

/// The program, carried in the binary so that an installed `weir` has it.
const SCRIPT: &str = include_str!("../../../examples/passes_job.py");
const PASSES: u32 = 10;
const PAGE_BYTES: f64 = 4096.0;
const SWAP_SLACK_BYTES: u64 = 128 << 20;
const DEADLINE: Duration = Duration::from_secs(600);

/// A program with its data in so many times the RAM.
struct Case {
    kind: &'static str,
    /// Data in percent of the RAM in all.
    percent: u64,
    /// What the kernel's store makes of a byte, in percent, about: its limit is chosen so that limit and
    /// store are the RAM of the row.
    stored_percent: u64,
    /// In a swap file, since it does not compress.
    disk: bool,
}

const fn case(kind: &'static str, percent: u64, stored_percent: u64) -> Case {
    Case { kind, percent, stored_percent, disk: false }
}

/// The last row fits: nothing of ours helps there.
static CASES: [Case; 10] = [
    case("read", 110, 40),
    case("read", 130, 40),
    case("read", 160, 40),
    case("write", 110, 40),
    case("write", 130, 40),
    case("write", 160, 40),
    Case { kind: "noise", percent: 130, stored_percent: 100, disk: true },
    case("kmeans", 130, 55),
    case("heap", 133, 35),
    case("read", 90, 40),
];

impl Case {
    fn label(&self) -> String {
        format!("{}, {} %", self.kind, self.percent)
    }

    /// RAM in all for so much data.
    fn ram(&self, data: u64) -> u64 {
        data * 100 / self.percent
    }

    /// The kernel's limit: with its store it has about as much RAM.
    fn limit(&self, data: u64) -> u64 {
        let ram = self.ram(data);
        if self.disk || ram >= data {
            return ram;
        }
        // limit + stored * (data - limit) = ram
        let stored = data * self.stored_percent / 100;
        ram.saturating_sub(stored) * 100 / (100 - self.stored_percent)
    }
}

struct Plan {
    data: u64,
    runs: u32,
    dir: PathBuf,
    only: Vec<String>,
}

impl Plan {
    fn new(args: &PassesArgs) -> anyhow::Result<Plan> {
        let usual = if args.common.quick { "192M" } else { "512M" };
        let text = args.data.as_deref().unwrap_or(usual);
        let data = parse_size(text, probe::ram_limit_bytes())?;
        ensure!(data >= 6 * MEMORY_BYTES_MIN, "--data: the least is {}", format_size(6 * MEMORY_BYTES_MIN));
        let known = |name: &String| CASES.iter().any(|case| case.kind == name);
        if let Some(name) = args.only.iter().find(|name| !known(name)) {
            bail!("--only {name}: there are read, write, noise, kmeans, heap");
        }
        let dir = std::path::absolute(&args.dir)?;
        Ok(Plan { data, runs: args.common.runs(), dir, only: args.only.clone() })
    }

    fn cases(&self) -> impl Iterator<Item = &'static Case> {
        CASES.iter().filter(|case| self.only.is_empty() || self.only.iter().any(|name| name == case.kind))
    }
}

/// Measures the kinds that are wanted.
pub fn passes(args: &PassesArgs) -> anyhow::Result<Findings> {
    let plan = Plan::new(args)?;
    let (python, numpy_version) = interpreter(&args.python)?;
    if let Some(why) = weir_missing().filter(|_| !args.common.rival_only) {
        bail!("{why}\n(--rival-only measures the other sides)");
    }
    let mut notes = Vec::new();
    let mut rows = Vec::new();
    for case in plan.cases() {
        let mut runs = Vec::new();
        for number in 1..=plan.runs {
            term::progress(&format!("run {number} of {}: {}", plan.runs, case.label()));
            runs.push(measure(&plan, case, &python, args, &mut notes)?);
        }
        notes.extend(oom_note(&runs));
        rows.push(row(case, &runs));
    }
    notes.dedup();
    let report = json!({
        "scenario": "passes",
        "kernel": probe::probe().kernel.release,
        "numpy": numpy_version,
        "faults": probe::probe().auto_faults().map(FaultMode::name),
        "data_bytes": plan.data,
        "passes": PASSES,
        "runs": plan.runs,
        "notes": notes,
        "rows": rows,
    });
    Ok(Findings::new(report, args.common.json, human))
}

/// One run of each side: natively, under the kernel's swap, and under Weir with as much RAM in all.
fn measure(
    plan: &Plan,
    case: &Case,
    python: &Path,
    args: &PassesArgs,
    notes: &mut Vec<String>,
) -> anyhow::Result<Value> {
    let words = [case.kind.to_owned(), plan.data.to_string(), PASSES.to_string()];
    let script = ["-c".to_owned(), SCRIPT.to_owned()];
    let job = Job {
        program: python.to_owned(),
        args: script.into_iter().chain(words).map(Into::into).collect(),
        deadline: DEADLINE,
    };
    let native = job.run_native()?;
    let mut run = json!({ "native": native.to_json() });
    let mut budget = case.ram(plan.data);
    if !args.common.no_rival {
        let area = if case.disk { Area::File(plan.dir.clone()) } else { Area::Zram };
        let rival = Rival::set_up(area, case.limit(plan.data), 2 * plan.data + SWAP_SLACK_BYTES);
        match rival.and_then(|rival| job.run_rival(&rival, RIVAL_ATTEMPTS)) {
            Ok(result) => {
                same(&native, &result.outcome, case)?;
                budget = case.limit(plan.data) + result.store_peak_bytes;
                run["rival"] = result.to_json();
            }
            Err(e) if weir_cli::interrupt::interrupted() => return Err(e),
            Err(e) => notes.push(format!("{}: without the kernel's side: {e:#}", case.label())),
        }
    }
    if !args.common.rival_only {
        let swap = if case.disk {
            format!("{}:{}", plan.dir.display(), 2 * plan.data + SWAP_SLACK_BYTES)
        } else {
            "none".to_owned()
        };
        let pool = DEFAULT_POOL_MAX_PERCENT.to_string();
        let options = [("swap", swap), ("pool-max", pool)];
        let (outcome, counters) = job.run_weir_with(budget, probe::probe().auto_faults(), &options)?;
        same(&native, &outcome, case)?;
        run["weir"] = outcome.to_json();
        run["weir"]["budget_bytes"] = json!(budget);
        run["weir"]["counters"] = json!(counters);
    }
    Ok(run)
}

/// Every side must print the same checksum.
fn same(native: &Outcome, found: &Outcome, case: &Case) -> anyhow::Result<()> {
    let (wanted, is) = (&native.printed["checksum"], &found.printed["checksum"]);
    ensure!(!wanted.is_null() && wanted == is, "{}: the result is {is} instead of {wanted}", case.label());
    Ok(())
}

/// Medians of a case.
fn row(case: &Case, runs: &[Value]) -> Value {
    let of = |pointer: &str| median(runs.iter().filter_map(|run| run.pointer(pointer)?.as_f64()));
    let seconds = |side: &str| of(&format!("/{side}/printed/passes_s"));
    let count = |name: &str| of(&format!("/weir/counters/{name}")).unwrap_or(0.0);
    let pages_in = seconds("weir").map(|_| (count("zswpin") + count("pswpin")) / f64::from(PASSES));
    let budget = of("/weir/budget_bytes");
    let data = of("/native/printed/bytes");
    let over = data.zip(budget).map(|(data, budget)| ((data - budget) / PAGE_BYTES).max(0.0));
    let ratio = seconds("rival").zip(seconds("weir")).map(|(rival, weir)| rival / weir);
    json!({
        "label": case.label(), "kind": case.kind, "percent": case.percent,
        "budget_bytes": budget, "rival": seconds("rival"), "weir": seconds("weir"),
        "native": seconds("native"), "ratio": ratio, "pages_in_per_pass": pages_in, "pages_over": over,
        "runs": runs,
    })
}

fn human(report: &Value) -> String {
    let text = |field: &str| report[field].as_str().unwrap_or("?").to_owned();
    let mut out = format!(
        "{} passes over {} (numpy {}); medians of {} run(s), faults {}, Linux {}\n\
         kernel: zram, for noise a swap file; Weir's RAM is the kernel's limit and what its store took\n\
         percent: data by RAM; pages in: from pool and swap file for each pass, and those beyond the RAM\n",
        report["passes"],
        format_size(report["data_bytes"].as_u64().unwrap_or(0)),
        text("numpy"),
        report["runs"],
        text("faults"),
        text("kernel"),
    );
    out += &crate::scenarios::note_lines(report);
    let rows: Vec<Vec<String>> = report["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let show = |field: &str| row[field].as_f64().map_or("-".to_owned(), table::short);
            let ratio = row["ratio"].as_f64().map_or("-".to_owned(), |r| format!("{}x", table::short(r)));
            let label = row["label"].as_str().unwrap_or_default().to_owned();
            let ram = row["budget_bytes"].as_f64().map_or("-".to_owned(), |bytes| format_size(bytes as u64));
            let (pages_in, over) = (show("pages_in_per_pass"), show("pages_over"));
            vec![label, ram, show("rival"), show("weir"), show("native"), ratio, pages_in, over]
        })
        .collect();
    let heads = ["seconds", "RAM", "kernel", "weir", "native", "weir better", "pages in", "beyond"];
    out + "\n" + &table::render(&heads, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_limit_and_its_store_are_the_ram_of_the_row() {
        let read = case("read", 160, 40);
        let data = 1600 << 20;
        let (ram, limit) = (read.ram(data), read.limit(data));
        assert_eq!(ram, 1000 << 20);
        assert!((limit + (data - limit) * 40 / 100).abs_diff(ram) < 1 << 20, "{limit}");
        assert_eq!(case("read", 80, 40).limit(800), 1000, "what fits has no store");
        let noise = CASES.iter().find(|case| case.disk).unwrap();
        assert_eq!(noise.limit(1300), noise.ram(1300));
    }

    #[test]
    fn a_row_says_how_many_pages_come_in_beside_those_that_do_not_fit() {
        let run = json!({
            "native": { "printed": { "passes_s": 1.0, "bytes": 8192.0 * 1000.0 } },
            "rival": { "printed": { "passes_s": 12.0 } },
            "weir": {
                "printed": { "passes_s": 4.0 }, "budget_bytes": 4096.0 * 1500.0,
                "counters": { "zswpin": 4000, "pswpin": 1000 },
            },
        });
        let row = row(&CASES[0], &[run]);
        assert_eq!([&row["ratio"], &row["pages_in_per_pass"], &row["pages_over"]], [3.0, 500.0, 500.0]);
        let text = human(&json!({ "rows": [row], "notes": ["the note"], "passes": 10, "runs": 1 }));
        assert!(text.contains("3.00x") && text.contains("note: the note"), "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 110, "{widest}: {text}");
    }

    #[test]
    fn a_result_that_differs_from_the_native_one_is_an_error() {
        let outcome =
            |checksum| Outcome { printed: json!({ "checksum": checksum }), seconds: 1.0, rss_peak_bytes: 0 };
        assert!(same(&outcome(json!([1])), &outcome(json!([1])), &CASES[0]).is_ok());
        assert!(same(&outcome(json!([1])), &outcome(json!([2])), &CASES[0]).is_err());
        assert!(same(&outcome(Value::Null), &outcome(Value::Null), &CASES[0]).is_err());
    }
}
