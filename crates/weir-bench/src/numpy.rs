//! `weir bench numpy`: a numpy program, unmodified, in a fraction of the memory it wants.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use weir::config::{MEMORY_BYTES_MIN, format_size, parse_size};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::{Job, Outcome, pager_name, weir_missing};
use weir_cli::compare::table;
use weir_cli::{child, term};
use weir_os::probe::{self, FaultMode};

use super::Findings;
use super::disk;
use super::{RIVAL_ATTEMPTS, median, oom_note};
use crate::cli::NumpyArgs;

/// The program, carried in the binary so that an installed `weir` has it.
const SCRIPT: &str = include_str!("../../../examples/numpy_job.py");
/// The program's peak in multiples of its array.
const PEAK_ARRAYS: u64 = 3;
const SWAP_SLACK_BYTES: u64 = 256 << 20;
const DEADLINE: Duration = Duration::from_secs(900);
/// Wanted of Weir: this many times as fast as the kernel's swap.
const TARGET: f64 = 3.0;
const STEPS: [(&str, &str); 4] =
    [("fill", "fill_s"), ("sort", "sort_s"), ("scan", "scan_s"), ("total", "total_s")];

struct Plan {
    limit: u64,
    array: u64,
    runs: u32,
}

impl Plan {
    fn new(args: &NumpyArgs) -> anyhow::Result<Plan> {
        let quick = args.common.quick;
        let parse = |name: &str, given: &Option<String>, full: &str, small: &str| {
            let text = given.as_deref().unwrap_or(if quick { small } else { full });
            parse_size(text, probe::ram_limit_bytes()).with_context(|| format!("--{name} {text}"))
        };
        let limit = parse("limit", &args.limit, "300M", "75M")?;
        let array = parse("array", &args.array, "512M", "128M")?;
        ensure!(limit >= MEMORY_BYTES_MIN, "--limit: the least is {}", format_size(MEMORY_BYTES_MIN));
        ensure!((1 << 20..1 << 40).contains(&array), "--array: 1 MiB to 1 TiB");
        Ok(Plan { limit, array, runs: args.common.runs() })
    }
}

/// Measures.
pub fn numpy(args: &NumpyArgs) -> anyhow::Result<Findings> {
    let plan = Plan::new(args)?;
    let (python, numpy_version) = interpreter(&args.python)?;
    let weir = !args.common.rival_only;
    if weir && let Some(why) = weir_missing() {
        bail!("{why}\n(--rival-only measures the other sides)");
    }
    let mut notes = Vec::new();
    let rival = match args.common.no_rival {
        true => None,
        false => Rival::set_up(Area::Zram, plan.limit, plan.array * PEAK_ARRAYS + SWAP_SLACK_BYTES)
            .inspect_err(|e| notes.push(format!("without the kernel's swap: {e:#}")))
            .ok(),
    };
    let description = rival.as_ref().map(|r| r.description.clone());
    let args_of_python = vec!["-c".into(), SCRIPT.into(), plan.array.to_string().into()];
    let job = Job { program: python, args: args_of_python, deadline: DEADLINE };
    let runs = measure(&plan, &job, rival.as_ref(), weir)?;
    drop(rival);
    let mut report = report(&plan, &runs);
    report["numpy"] = json!(numpy_version);
    report["rival"] = json!(description);
    notes.extend(oom_note(&runs));
    report["notes"] = json!(notes);
    Ok(Findings::new(report, args.common.json, human))
}

/// The interpreter behind whatever was named (version managers put shell scripts in PATH), and numpy's
/// version.
pub fn interpreter(python: &Path) -> anyhow::Result<(PathBuf, String)> {
    let code = "import sys\ntry:\n    import numpy\nexcept ImportError:\n    print(sys.executable)\nelse:\n    \
                print(sys.executable, numpy.__version__, sep='\\n')";
    let mut command = Command::new(python);
    let finished = child::run(command.args(["-c", code]), Duration::from_secs(60), |_| {})
        .with_context(|| format!("--python {}", python.display()))?;
    let mut lines = finished.stdout.lines();
    let executable =
        lines.next().filter(|line| !line.is_empty()).context("python did not say where it is")?;
    let Some(version) = lines.next() else {
        bail!(
            "numpy is missing in {executable}; install it: {executable} -m pip install numpy (Debian: apt install \
             python3-numpy, then --python /usr/bin/python3)"
        );
    };
    Ok((PathBuf::from(executable), version.to_owned()))
}

fn measure(plan: &Plan, job: &Job, rival: Option<&Rival>, weir: bool) -> anyhow::Result<Vec<Value>> {
    let mut runs = Vec::new();
    let mut expected = None;
    for number in 1..=plan.runs {
        let mut run = json!({});
        term::progress(&format!("run {number} of {}: native", plan.runs));
        let native = job.run_native()?;
        same_result(&mut expected, &native, "native")?;
        run["native"] = native.to_json();
        // Without a rival there is no store to measure; half of the rest is what its pages compress to at
        // worst.
        let mut budget = plan.limit + (plan.array * PEAK_ARRAYS).saturating_sub(plan.limit) / 2;
        if let Some(rival) = rival {
            term::progress(&format!("run {number} of {}: kernel swap", plan.runs));
            let result = job.run_rival(rival, RIVAL_ATTEMPTS)?;
            same_result(&mut expected, &result.outcome, "kernel swap")?;
            budget = plan.limit + result.store_peak_bytes;
            run["rival"] = result.to_json();
        }
        if weir {
            term::progress(&format!("run {number} of {}: weir", plan.runs));
            // Named, not left to the program's own choice: the report is to say which mode it was.
            let mode = probe::probe().auto_faults();
            let (outcome, counters) = job.run_weir(budget, mode)?;
            same_result(&mut expected, &outcome, "weir")?;
            run["weir"] = outcome.to_json();
            run["weir"]["budget_bytes"] = json!(budget);
            run["weir"]["pager"] = json!(pager_name(&counters));
            run["weir"]["faults"] = json!(mode.map(FaultMode::name));
            run["weir"]["counters"] = json!(counters);
        }
        runs.push(run);
    }
    Ok(runs)
}

/// Every side of every run must print the same checksum as the first.
fn same_result(expected: &mut Option<Value>, outcome: &Outcome, side: &str) -> anyhow::Result<()> {
    let found = outcome.printed["checksum"].clone();
    ensure!(!found.is_null(), "{side}: no checksum in the output");
    let expected = expected.get_or_insert_with(|| found.clone());
    ensure!(*expected == found, "{side}: the result is {found} instead of {expected}");
    Ok(())
}

fn report(plan: &Plan, runs: &[Value]) -> Value {
    let of =
        |side: &str, field: &str| median(runs.iter().filter_map(|run| run[side]["printed"][field].as_f64()));
    let rows: Vec<Value> = STEPS
        .iter()
        .map(|(label, field)| {
            let (weir, rival) = (of("weir", field), of("rival", field));
            let ratio = weir.zip(rival).map(|(weir, rival)| rival / weir);
            json!({ "label": label, "rival": rival, "weir": weir, "native": of("native", field), "ratio": ratio })
        })
        .collect();
    let ram = |side: &str, field: &str| median(runs.iter().filter_map(|run| run[side][field].as_f64()));
    let peak = |r: &Value| r["weir"]["counters"]["weir_peak_resident_bytes"].as_f64();
    json!({
        "scenario": "numpy",
        "kernel": probe::probe().kernel.release,
        "pager": runs.first().map(|run| run["weir"]["pager"].clone()),
        "faults": runs.first().map(|run| run["weir"]["faults"].clone()),
        "array_bytes": plan.array,
        "limit_bytes": plan.limit,
        "store_peak_bytes": ram("rival", "store_peak_bytes"),
        "budget_bytes": ram("weir", "budget_bytes"),
        "weir_peak_resident_bytes": median(runs.iter().filter_map(peak)),
        "native_rss_peak_bytes": ram("native", "rss_peak_bytes"),
        "outputs_identical": true,
        "target": TARGET,
        "rows": rows,
        "runs": runs,
    })
}

fn human(report: &Value) -> String {
    let size = |field: &str| report[field].as_f64().map_or("-".to_owned(), |bytes| format_size(bytes as u64));
    let text = |field: &str| report[field].as_str().unwrap_or("?").to_owned();
    let mut out = format!(
        "numpy {}: fill, sort and scan of {} of int64, native peak {}; medians of {} run(s), Linux {}\n",
        text("numpy"),
        size("array_bytes"),
        size("native_rss_peak_bytes"),
        report["runs"].as_array().map_or(0, Vec::len),
        text("kernel"),
    );
    out += &disk::rival_lines(report);
    if report["pager"].is_string() {
        let (budget, peak) = (size("budget_bytes"), size("weir_peak_resident_bytes"));
        let (pager, faults) = (text("pager"), text("faults"));
        out +=
            &format!("weir RAM: {budget} budget, {peak} peak; pages travel by {pager}, faults: {faults}\n");
    }
    out += &crate::scenarios::note_lines(report);
    out += "all outputs identical\n\n";
    let rows: Vec<Vec<String>> = report["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let label = row["label"].as_str().unwrap_or_default();
            let show = |side: &str| row[side].as_f64().map_or("-".to_owned(), table::short);
            let ratio = row["ratio"].as_f64().map_or("-".to_owned(), |r| format!("{}x", table::short(r)));
            let target = if label == "total" { format!("{TARGET}x") } else { String::new() };
            vec![label.to_owned(), show("rival"), show("weir"), show("native"), ratio, target]
        })
        .collect();
    out += &table::render(&["seconds", "kernel", "weir", "native", "weir better", "target"], &rows);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(checksum: Value) -> Outcome {
        Outcome { printed: json!({ "checksum": checksum }), seconds: 1.0, rss_peak_bytes: 0 }
    }

    #[test]
    fn a_result_that_differs_from_the_first_is_an_error() {
        let mut expected = None;
        same_result(&mut expected, &outcome(json!([1, 2])), "native").unwrap();
        same_result(&mut expected, &outcome(json!([1, 2])), "weir").unwrap();
        let error = same_result(&mut expected, &outcome(json!([1, 3])), "weir").unwrap_err().to_string();
        assert!(error.contains("weir"), "{error}");
        assert!(same_result(&mut None, &outcome(Value::Null), "native").is_err());
    }

    #[test]
    fn the_ratio_is_how_many_times_faster_weir_is() {
        let run = json!({
            "rival": { "printed": { "total_s": 12.0 }, "store_peak_bytes": 100 },
            "weir": { "printed": { "total_s": 4.0 }, "budget_bytes": 400, "pager": "move", "faults": "inline" },
        });
        let report = report(&Plan { limit: 300, array: 512, runs: 1 }, &[run]);
        let total = report["rows"].as_array().unwrap().last().unwrap();
        assert_eq!((total["label"].as_str(), total["ratio"].as_f64()), (Some("total"), Some(3.0)));
        let text = human(&report);
        assert!(text.contains("3.00x") && text.contains("faults: inline"), "{text}");
    }
}
