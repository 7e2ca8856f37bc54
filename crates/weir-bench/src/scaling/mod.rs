//! `weir bench scaling`: random reads of twice as much data as the limit by more and more threads, all of it
//! compressed in RAM; and, computed from what was counted and timed in these runs, what more processors would
//! give.

mod inputs;
mod machine;
mod model;

use weir_cli::compare::rival::Rival;
use weir_cli::compare::sides::{Job, equal_ram};
use weir_cli::compare::table;
use weir_cli::term;

use std::time::Duration;

use serde_json::{Value, json};
use weir_os::probe::{self, FaultMode};

use super::disk::{self, number, size, times};
use super::founding::ratio;
use super::pool::{DATA_PER_LIMIT, contestants};
use super::{Findings, RIVAL_ATTEMPTS, median, oom_note};
use crate::cli::ScalingArgs;
use crate::workload;
use model::Flushes;

const THREADS: [u32; 5] = [1, 2, 4, 8, 16];
const KERNEL: &str = "kernel";
/// In the order of the tables; Weir's are called by their modes of faults.
const SIDES: [&str; 3] = [KERNEL, "inline", "thread"];
const DEADLINE: Duration = Duration::from_secs(600);
/// Processors that are computed.
const PROCESSORS: [u32; 9] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

struct Plan {
    limit: u64,
    runs: u32,
    seconds: f64,
}

impl Plan {
    fn new(args: &ScalingArgs) -> anyhow::Result<Plan> {
        Ok(Plan {
            limit: args.sized.limit(128)?,
            runs: args.sized.common.runs(),
            seconds: args.sized.seconds(2.0)?,
        })
    }

    fn data(&self) -> u64 {
        self.limit * DATA_PER_LIMIT
    }

    /// The reads by so many threads; by none, what comes before and after them.
    fn job(&self, threads: u32) -> anyhow::Result<Job> {
        let phases = if threads == 0 { "fill".to_owned() } else { format!("fill,{}", phase(threads)) };
        let (bytes, seconds) = (self.data().to_string(), self.seconds.to_string());
        workload::job(&[&phases, "--bytes", &bytes, "--seconds", &seconds], DEADLINE)
    }
}

fn phase(threads: u32) -> String {
    format!("randread@{threads}")
}

/// Measures, and computes.
pub fn scaling(args: &ScalingArgs) -> anyhow::Result<Findings> {
    let plan = Plan::new(args)?;
    let mut notes = Vec::new();
    let sizes = (plan.limit, plan.data());
    let (weir, rival) =
        contestants(&args.sized.common, args.mode.faults, sizes, "the kernel alone", &mut notes)?;
    let description = rival.as_ref().map(|r| r.description.clone());
    let runs = measure(&plan, rival.as_ref(), &weir)?;
    drop(rival);
    let kernels: Vec<Value> = runs.iter().map(|run| json!({ "rival": run })).collect();
    notes.extend(oom_note(&kernels));
    let costs = if weir.contains(&FaultMode::Inline) { machine::measure()? } else { None };
    let report = report(&plan, description.as_deref(), &runs, costs, &notes);
    Ok(Findings::new(report, args.sized.common.json, human))
}

/// Interleaved: each run measures all sides with each number of threads, so that a slow minute of the machine
/// hits all of them.
fn measure(plan: &Plan, rival: Option<&Rival>, weir: &[FaultMode]) -> anyhow::Result<Vec<Value>> {
    let mut runs = Vec::new();
    for run in 1..=plan.runs {
        // The reads' own counters are what such a run has more than one without reads.
        for threads in std::iter::once(0).chain(THREADS) {
            let job = plan.job(threads)?;
            let said = |side: &str| {
                term::progress(&format!("run {run} of {}, {threads} thread(s): {side}", plan.runs));
            };
            let mut budget = equal_ram(plan.limit, None);
            if let Some(rival) = rival.filter(|_| threads > 0) {
                said(KERNEL);
                let result = job.run_rival(rival, RIVAL_ATTEMPTS)?;
                budget = equal_ram(plan.limit, Some(&result));
                let mut json = result.to_json();
                (json["side"], json["threads"], json["run"]) = (json!(KERNEL), json!(threads), json!(run));
                runs.push(json);
            }
            for mode in weir {
                said(mode.name());
                let (outcome, counters) = job.run_weir(budget, Some(*mode))?;
                let mut json = outcome.to_json();
                (json["side"], json["threads"], json["run"]) =
                    (json!(mode.name()), json!(threads), json!(run));
                (json["budget_bytes"], json["counters"]) = (json!(budget), json!(counters));
                runs.push(json);
            }
        }
    }
    Ok(runs)
}

fn report(
    plan: &Plan,
    description: Option<&str>,
    runs: &[Value],
    costs: Option<machine::Costs>,
    notes: &[String],
) -> Value {
    let of = |field: &str| median(runs.iter().filter_map(|run| run[field].as_f64()));
    let rows: Vec<Value> = THREADS.iter().map(|threads| row(runs, *threads)).collect();
    let processors = weir_os::thread::processors();
    // Where every thread of the run has a processor, as in the model.
    let threads = THREADS.into_iter().rfind(|threads| *threads <= processors).unwrap_or(1);
    json!({
        "scenario": "scaling",
        "kernel": probe::probe().kernel.release,
        "rival": description,
        "processors": processors,
        "limit_bytes": plan.limit,
        "data_bytes": plan.data(),
        "seconds": plan.seconds,
        "repeats": plan.runs,
        "budget_bytes": of("budget_bytes"),
        "store_peak_bytes": of("store_peak_bytes"),
        "notes": notes,
        "rows": rows,
        "model": inputs::of_runs(runs, threads, costs).map(|found| model_report(&found)),
        "runs": runs,
    })
}

/// All sides with so many threads.
fn row(runs: &[Value], threads: u32) -> Value {
    let mut row = json!({ "threads": threads });
    for side in SIDES {
        if runs.iter().any(|run| run["side"] == side) {
            row[side] = cell(runs, side, threads);
            let (mine, kernel) = (row[side]["ops_per_s"].as_f64(), row[KERNEL]["ops_per_s"].as_f64());
            row[side]["gain"] = json!(ratio(mine, kernel));
        }
    }
    row
}

/// One side with so many threads: medians.
fn cell(runs: &[Value], side: &str, threads: u32) -> Value {
    let mine = || runs.iter().filter(|run| run["side"] == side && run["threads"] == threads);
    let of = |field: &str| {
        let phase = phase(threads);
        median(mine().filter_map(|run| run["printed"]["phases"][&phase][field].as_f64()))
    };
    let per_fault = |key: &str| {
        median(mine().filter_map(|run| {
            let reads = inputs::of_reads(runs, run)?;
            ratio(reads.get(key).copied(), reads.get("pgfault").copied())
        }))
    };
    json!({
        "ops_per_s": of("ops_per_s"), "p99_ns": of("p99_ns"), "p999_ns": of("p999_ns"),
        "turns_per_fault": per_fault("weir_turns"),
        "waits_per_fault": per_fault("weir_lock_waits"),
        "wait_ns_per_fault": per_fault("weir_lock_wait_ns"),
        "processor_ns": median(mine().filter_map(|run| inputs::processor_ns(run, threads))),
    })
}

fn model_report(found: &inputs::Found) -> Value {
    let predictions: Vec<Value> = PROCESSORS
        .iter()
        .map(|n| {
            let (at_once, one_by_one) =
                (found.inputs.predict(*n, Flushes::AtOnce), found.inputs.predict(*n, Flushes::OneByOne));
            json!({ "processors": n, "at_once": at_once, "one_by_one": one_by_one })
        })
        .collect();
    json!({
        "computed": true,
        "inputs": found.inputs,
        "assumed": found.assumed,
        "predictions": predictions,
    })
}

fn human(report: &Value) -> String {
    let mut text = format!(
        "Scaling: random reads of {}, 40 % random bytes per page, on {} processor(s); medians of {} run(s), Linux {}\n",
        size(&report["data_bytes"]),
        report["processors"],
        report["repeats"],
        report["kernel"].as_str().unwrap_or("?"),
    );
    text += &disk::rival_lines(report);
    text += &format!("weir RAM: {} budget\n", size(&report["budget_bytes"]));
    text += &crate::scenarios::note_lines(report);
    text += "gain: accesses a second, how many times the kernel's. turns, waits: a fault's, for processors and for locks\n\n";
    text += &measured(report);
    if report["model"].is_object() {
        let rows = report["rows"].as_array().into_iter().flatten();
        let mut same = rows.filter(|row| row["threads"] == report["model"]["inputs"]["processors"]);
        let measured = same.find_map(|row| row["inline"]["ops_per_s"].as_f64());
        text += &computed(&report["model"], measured);
    }
    text
}

fn measured(report: &Value) -> String {
    let mut lines = Vec::new();
    for side in SIDES {
        for row in report["rows"].as_array().into_iter().flatten().filter(|row| row[side].is_object()) {
            let cell = &row[side];
            let scaled = |field: &str, scale: f64| number(&json!(cell[field].as_f64().map(|v| v * scale)));
            lines.push(vec![
                format!("{side}, {} thread(s)", row["threads"]),
                scaled("ops_per_s", 1e-3),
                times(&cell["gain"]),
                scaled("p99_ns", 1e-3),
                scaled("p999_ns", 1e-3),
                number(&cell["turns_per_fault"]),
                number(&cell["waits_per_fault"]),
                scaled("wait_ns_per_fault", 1e-3),
                scaled("processor_ns", 1e-3),
            ]);
        }
    }
    let headers =
        ["", "k/s", "gain", "p99 us", "p99.9 us", "turns", "waits", "waited us", "processor us/access"];
    table::render(&headers, &lines)
}

fn computed(model: &Value, measured: Option<f64>) -> String {
    let mut lines = Vec::new();
    for (name, field, unit) in inputs::SHOWN {
        let how = if model["assumed"].as_array().is_some_and(|all| all.iter().any(|one| one == field)) {
            "assumed"
        } else {
            "measured"
        };
        lines.push(vec![name.to_owned(), number(&model["inputs"][field]), unit.to_owned(), how.to_owned()]);
    }
    let mut text = format!(
        "\nCOMPUTED, not measured: weir inline, as many threads as processors. Mean value analysis of a closed network of threads that\n\
         are alone, or at one of: {}.\n\
         Fed with what the run with {} thread(s) counted and timed, which gave {} k/s:\n\n",
        model::STATIONS.join(", "),
        model["inputs"]["processors"],
        number(&json!(measured.map(|v| v * 1e-3))),
    );
    text += &table::render(&["per access", "", "unit", ""], &lines);
    let mut lines = Vec::new();
    for row in model["predictions"].as_array().into_iter().flatten() {
        let mut line = vec![row["processors"].to_string()];
        for how in ["at_once", "one_by_one"] {
            let scaled =
                |field: &str, scale: f64| number(&json!(row[how][field].as_f64().map(|v| v * scale)));
            line.push(scaled("ops_per_s", 1e-3));
            line.push(scaled("bound_per_s", 1e-3));
            let busiest = row[how]["busiest"].as_str().unwrap_or("?");
            line.push(format!("{busiest}, {} %", scaled("busy", 100.0)));
        }
        lines.push(line);
    }
    let headers =
        ["processors", "k/s, at once", "no waits", "busiest", "k/s, one by one", "no waits", "busiest"];
    text += "\nat once, one by one: how all the other processors answer to a flush, which two cannot tell\n";
    text + &table::render(&headers, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weir_run(threads: u32, rate: f64, faults: u64) -> Value {
        let mut phases = json!({});
        phases[phase(threads)] = json!({
            "ops_per_s": rate, "p99_ns": 5e4, "p999_ns": 1e5, "all_ops": 1000, "processor_s": 0.01,
        });
        json!({
            "side": "inline", "threads": threads, "run": 1, "budget_bytes": 1 << 24,
            "printed": { "phases": phases },
            "counters": {
                "pgfault": 100 + faults, "weir_turns": faults / 2, "weir_lock_waits": faults / 4, "weir_lock_wait_ns": faults * 10,
                "zswpin": faults, "zswpout": faults, "weir_lifts": faults / 100, "weir_lift_ns": faults * 500, "weir_sheds": faults / 50,
                "weir_pool_holds": 10, "weir_pool_hold_ns": 3000,
            },
        })
    }

    fn runs() -> Vec<Value> {
        let kernel = |threads: u32| {
            let mut phases = json!({});
            phases[phase(threads)] = json!({ "ops_per_s": 50e3, "p99_ns": 1e5, "p999_ns": 1e6 });
            json!({ "side": KERNEL, "threads": threads, "run": 1, "printed": { "phases": phases } })
        };
        let mut runs: Vec<Value> = THREADS.iter().map(|threads| kernel(*threads)).collect();
        runs.push(weir_run(0, 1.0, 0));
        runs.extend(THREADS.iter().map(|threads| weir_run(*threads, 100e3, 600)));
        runs
    }

    fn plan() -> Plan {
        Plan { limit: 8 << 20, runs: 1, seconds: 1.0 }
    }

    #[test]
    fn counts_are_those_of_the_reads_alone_and_gains_are_over_the_kernel_with_as_many_threads() {
        let report = report(&plan(), Some("zram"), &runs(), None, &[]);
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), THREADS.len());
        let (inline, kernel) = (&rows[4]["inline"], &rows[4][KERNEL]);
        assert_eq!((inline["gain"].as_f64(), inline["turns_per_fault"].as_f64()), (Some(2.0), Some(0.5)));
        assert_eq!(
            (inline["waits_per_fault"].as_f64(), inline["processor_ns"].as_f64()),
            (Some(0.25), Some(1e4))
        );
        assert!(kernel["turns_per_fault"].is_null() && kernel["gain"] == 1.0, "{kernel}");
        assert!(rows[4]["thread"].is_null(), "not measured");
    }

    #[test]
    fn what_is_computed_says_so_and_what_was_not_measured_is_called_assumed() {
        let report = report(&plan(), Some("zram"), &runs(), None, &["a note".to_owned()]);
        assert_eq!(report["model"]["computed"], true);
        let text = human(&report);
        let (measured, computed) = text.split_once("COMPUTED, not measured").unwrap();
        assert!(measured.contains("note: a note") && measured.contains("inline, 16 thread(s)"), "{text}");
        assert!(computed.lines().any(|line| line.starts_with("64 ")), "{text}");
        let how = |name: &str| computed.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(
            how("a lift").ends_with("measured") && how("the way of a shared word").ends_with("assumed"),
            "{text}"
        );
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 140, "{widest}: {text}");
    }

    #[test]
    fn without_inline_runs_nothing_is_computed() {
        let runs: Vec<Value> = runs().into_iter().filter(|run| run["side"] == KERNEL).collect();
        let report = report(&plan(), Some("zram"), &runs, None, &[]);
        assert!(report["model"].is_null() && !human(&report).contains("COMPUTED"));
    }
}
