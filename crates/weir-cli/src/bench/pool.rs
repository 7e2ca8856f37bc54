//! `weir bench pool`: twice as much data as the limit, all of it compressed in RAM, no disk.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir::config::{MEMORY_BYTES_MIN, format_size, parse_size};
use weir_os::probe;

use super::rival::Rival;
use super::sides::{Job, pager_name, weir_missing};
use super::{RIVAL_ATTEMPTS, median, oom_note, table};
use crate::cli::PoolArgs;
use crate::term;

/// Data per byte of limit.
const DATA_PER_LIMIT: u64 = 2;
/// The swap device is a bit larger than the data: nothing may fall back to another swap area.
const SWAP_SLACK_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(600);
/// Order matters: random accesses follow a sequential pass, as in the kernel's own figures.
const PHASES: &str = "fill,seqread,randread@1,randread@2,randwrite@1,zipf@1,zipf@2";

/// One row of the table: a number of one phase, and what is wanted of it.
struct Row {
    label: &'static str,
    phase: &'static str,
    field: &'static str,
    /// From the field's unit to the one shown.
    scale: f64,
    unit: &'static str,
    /// Wanted ratio between Weir and the kernel; for latencies, how many times lower.
    target: f64,
    lower_is_better: bool,
}

const fn rate(label: &'static str, phase: &'static str, target: f64) -> Row {
    Row { label, phase, field: "ops_per_s", scale: 1e-3, unit: "k/s", target, lower_is_better: false }
}

const fn throughput(label: &'static str, phase: &'static str, target: f64) -> Row {
    Row { label, phase, field: "mb_per_s", scale: 1.0, unit: "MB/s", target, lower_is_better: false }
}

const fn latency(label: &'static str, phase: &'static str, field: &'static str, target: f64) -> Row {
    Row { label, phase, field, scale: 1e-3, unit: "us", target, lower_is_better: true }
}

const ROWS: [Row; 17] = [
    throughput("fill", "fill", 1.9),
    throughput("sequential read", "seqread", 5.0),
    rate("random read", "randread@1", 2.0),
    latency("  p99", "randread@1", "p99_ns", 5.0),
    latency("  p99.9", "randread@1", "p999_ns", 10.0),
    rate("random read, 2 threads", "randread@2", 2.0),
    latency("  p99", "randread@2", "p99_ns", 5.0),
    latency("  p99.9", "randread@2", "p999_ns", 10.0),
    rate("random write", "randwrite@1", 1.5),
    latency("  p99", "randwrite@1", "p99_ns", 5.0),
    latency("  p99.9", "randwrite@1", "p999_ns", 10.0),
    rate("zipf 0.99 read", "zipf@1", 1.5),
    latency("  p99", "zipf@1", "p99_ns", 5.0),
    latency("  p99.9", "zipf@1", "p999_ns", 10.0),
    rate("zipf 0.99 read, 2 threads", "zipf@2", 1.5),
    latency("  p99", "zipf@2", "p99_ns", 5.0),
    latency("  p99.9", "zipf@2", "p999_ns", 10.0),
];

impl Row {
    fn value(&self, run: Option<&Value>) -> Option<f64> {
        run?["printed"]["phases"][self.phase][self.field].as_f64()
    }

    fn median(&self, runs: &[Value], side: &str) -> Option<f64> {
        median(runs.iter().filter_map(|run| self.value(run.get(side))))
    }

    /// How many times better Weir is.
    fn ratio(&self, weir: f64, rival: f64) -> f64 {
        if self.lower_is_better { rival / weir } else { weir / rival }
    }
}

/// Sizes and switches after defaults and checks.
struct Plan {
    limit: u64,
    data: u64,
    runs: u32,
    seconds: f64,
}

impl Plan {
    fn new(args: &PoolArgs) -> anyhow::Result<Plan> {
        let quick = args.common.quick;
        let size = args.size.as_deref().unwrap_or(if quick { "64M" } else { "256M" });
        let limit = parse_size(size, probe::ram_limit_bytes()).with_context(|| format!("--size {size}"))?;
        ensure!(limit >= MEMORY_BYTES_MIN, "--size {size}: the least is {}", format_size(MEMORY_BYTES_MIN));
        let data =
            limit.checked_mul(DATA_PER_LIMIT).with_context(|| format!("--size {size} is too large"))?;
        let seconds = args.seconds.unwrap_or(if quick { 0.5 } else { 2.0 });
        ensure!(seconds > 0.0 && seconds <= 60.0, "--seconds must be above 0 and at most 60");
        Ok(Plan { limit, data, runs: args.common.runs(), seconds })
    }
}

/// Measures and prints.
pub fn pool(args: &PoolArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan::new(args)?;
    let mut notes = Vec::new();
    let weir = !args.common.rival_only;
    if weir && let Some(why) = weir_missing() {
        anyhow::bail!("{why}\n(--rival-only measures the other sides)");
    }
    let rival = match args.common.no_rival {
        true => None,
        false => Rival::set_up(plan.limit, plan.data + SWAP_SLACK_BYTES)
            .inspect_err(|e| notes.push(format!("without the kernel's swap: {e:#}")))
            .ok(),
    };
    let description = rival.as_ref().map(|r| r.description.clone());
    let runs = measure(&plan, rival.as_ref(), weir)?;
    drop(rival);
    notes.extend(oom_note(&runs));
    let report = report(&plan, description.as_deref(), &runs, &notes);
    let text = if args.common.json { format!("{report:#}\n") } else { human(&report) };
    term::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Interleaved: each run measures all sides, so that a slow minute of the machine hits all of them.
fn measure(plan: &Plan, rival: Option<&Rival>, weir: bool) -> anyhow::Result<Vec<Value>> {
    let (bytes, seconds) = (plan.data.to_string(), plan.seconds.to_string());
    let job = Job::workload(&[PHASES, "--bytes", &bytes, "--seconds", &seconds], DEADLINE)?;
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        let mut run = json!({});
        let mut budget = plan.limit;
        if let Some(rival) = rival {
            term::progress(&format!("run {number} of {}: kernel swap", plan.runs));
            let result = job.run_rival(rival, RIVAL_ATTEMPTS)?;
            budget += result.store_peak_bytes;
            run["rival"] = result.to_json();
        } else {
            // Nothing to compare with: data at half its size is what LZ4 makes of it.
            budget += plan.limit / 2;
        }
        if weir {
            term::progress(&format!("run {number} of {}: weir", plan.runs));
            let (outcome, counters) = job.run_weir(budget)?;
            run["weir"] = outcome.to_json();
            run["weir"]["budget_bytes"] = json!(budget);
            run["weir"]["pager"] = json!(pager_name(&counters));
            run["weir"]["counters"] = json!(counters);
        }
        term::progress(&format!("run {number} of {}: native", plan.runs));
        run["native"] = job.run_native()?.to_json();
        runs.push(run);
    }
    Ok(runs)
}

fn report(plan: &Plan, description: Option<&str>, runs: &[Value], notes: &[String]) -> Value {
    let rows: Vec<Value> = ROWS
        .iter()
        .map(|row| {
            let side = |name: &str| row.median(runs, name);
            let (weir, rival) = (side("weir"), side("rival"));
            let ratio = weir.zip(rival).map(|(weir, rival)| row.ratio(weir, rival));
            json!({
                "label": row.label.trim(), "phase": row.phase, "field": row.field,
                "rival": rival, "weir": weir, "native": side("native"),
                "ratio": ratio, "target": row.target, "reached": ratio.map(|r| r >= row.target),
                "lower_is_better": row.lower_is_better,
            })
        })
        .collect();
    json!({
        "scenario": "pool",
        "kernel": probe::probe().kernel.release,
        "rival": description,
        "pager": runs.first().map(|run| run["weir"]["pager"].clone()),
        "limit_bytes": plan.limit,
        "data_bytes": plan.data,
        "seconds_per_row": plan.seconds,
        "budget_bytes": ram(runs, "weir", "budget_bytes"),
        "store_peak_bytes": ram(runs, "rival", "store_peak_bytes"),
        "weir_peak_resident_bytes":
            median(runs.iter().filter_map(|r| r["weir"]["counters"]["weir_peak_resident_bytes"].as_f64())),
        "notes": notes,
        "rows": rows,
        "runs": runs,
    })
}

fn ram(runs: &[Value], side: &str, field: &str) -> Option<f64> {
    median(runs.iter().filter_map(|run| run[side][field].as_f64()))
}

fn human(report: &Value) -> String {
    let size = |field: &str| report[field].as_f64().map_or("-".to_owned(), |bytes| format_size(bytes as u64));
    let mut text = format!(
        "Pool tier: {} of data, 40 % random bytes per page; medians of {} run(s), Linux {}\n",
        size("data_bytes"),
        report["runs"].as_array().map_or(0, Vec::len),
        report["kernel"].as_str().unwrap_or("?"),
    );
    if let Some(rival) = report["rival"].as_str() {
        text += &format!(
            "kernel: {rival}\nkernel RAM: {} limit + {} store\n",
            size("limit_bytes"),
            size("store_peak_bytes")
        );
    }
    if let Some(pager) = report["pager"].as_str() {
        text += &format!(
            "weir RAM: {} budget, {} peak; pages travel by {pager}\n",
            size("budget_bytes"),
            size("weir_peak_resident_bytes")
        );
    }
    for note in report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text += &format!("note: {note}\n");
    }
    let rows: Vec<Vec<String>> = ROWS
        .iter()
        .zip(report["rows"].as_array().into_iter().flatten())
        .map(|(row, values)| {
            let show =
                |side: &str| values[side].as_f64().map_or("-".to_owned(), |v| table::short(v * row.scale));
            let ratio = values["ratio"].as_f64().map_or("-".to_owned(), |r| format!("{}x", table::short(r)));
            let target = format!("{}x", row.target);
            let label = row.label.to_owned();
            vec![label, row.unit.to_owned(), show("rival"), show("weir"), show("native"), ratio, target]
        })
        .collect();
    text += "\n";
    text += &table::render(&["", "unit", "kernel", "weir", "native", "weir better", "target"], &rows);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rival_rate: f64, weir_rate: f64, rival_p99: f64, weir_p99: f64) -> Value {
        let side = |rate: f64, p99: f64| json!({ "printed": { "phases": { "randread@1": { "ops_per_s": rate, "p99_ns": p99 } } } });
        json!({ "rival": side(rival_rate, rival_p99), "weir": side(weir_rate, weir_p99) })
    }

    fn plan() -> Plan {
        Plan { limit: 64 << 20, data: 128 << 20, runs: 3, seconds: 1.0 }
    }

    fn row<'a>(report: &'a Value, field: &str) -> &'a Value {
        let rows = report["rows"].as_array().unwrap();
        rows.iter().find(|r| r["phase"] == "randread@1" && r["field"] == field).unwrap()
    }

    #[test]
    fn ratios_are_of_medians_and_say_how_much_better_weir_is() {
        let runs = [run(100.0, 300.0, 5e5, 1e5), run(200.0, 400.0, 6e5, 1e5), run(300.0, 900.0, 9e5, 3e5)];
        let report = report(&plan(), Some("zram"), &runs, &[]);
        let rate = row(&report, "ops_per_s");
        assert_eq!((rate["ratio"].as_f64(), rate["reached"].as_bool()), (Some(2.0), Some(true)));
        let p99 = row(&report, "p99_ns");
        assert_eq!((p99["ratio"].as_f64(), p99["reached"].as_bool()), (Some(6.0), Some(true)));
    }

    #[test]
    fn a_missing_side_leaves_dashes_not_numbers() {
        let runs = [json!({ "native": run(1.0, 5e6, 1.0, 1.0)["weir"] })];
        let report = report(&plan(), None, &runs, &["no root".to_owned()]);
        assert!(row(&report, "ops_per_s")["ratio"].is_null());
        let text = human(&report);
        assert!(text.contains("note: no root") && text.contains("5000"), "{text}");
    }

    #[test]
    fn sizes_below_the_minimum_are_refused() {
        let args = |size: &str| PoolArgs {
            common: crate::cli::CommonBenchArgs {
                json: false,
                runs: Some(1),
                quick: true,
                rival_only: false,
                no_rival: false,
            },
            size: Some(size.to_owned()),
            seconds: None,
        };
        assert!(Plan::new(&args("1M")).is_err());
        assert!(Plan::new(&args("15E")).is_err());
        assert_eq!(Plan::new(&args("32M")).unwrap().data, 64 << 20);
    }
}
