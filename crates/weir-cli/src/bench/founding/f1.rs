//! F1, swap-out batching: threads that write to one page after the other of data twice the RAM. Slots and pages are handled
//! one by one or in batches, by the same code; beside it the kernel's swap file.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Plan, ratio};
use crate::bench::disk::{self, SMALL_POOL_PERCENT, number, size, times};
use crate::bench::rival::Area;
use crate::bench::{median, oom_note, table};
use crate::cli::FoundingRunArgs;
use crate::term;

const DATA_PERCENT: u64 = 200;
const DEADLINE: Duration = Duration::from_secs(600);

/// Threads, and what the report gained with them.
const ROWS: [(u32, f64); 2] = [(1, 1.25), (16, 1.85)];
/// Weir's runs, and their `--swap-batch`.
const SIDES: [(&str, Option<&str>); 2] = [("one", Some("1")), ("batched", None)];

/// Measures.
pub fn run(args: &FoundingRunArgs) -> anyhow::Result<Value> {
    let plan = Plan::new(args, DATA_PERCENT, SMALL_POOL_PERCENT)?;
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    for number in 1..=plan.runs {
        for (threads, _) in ROWS {
            runs.push(one_run(&plan, args, number, threads, &mut notes)?);
        }
    }
    notes.extend(oom_note(&runs));
    notes.dedup();
    let mut report = plan.common_json("f1");
    report["notes"] = json!(notes);
    report["rows"] = json!(ROWS.map(|(threads, target)| row(&runs, threads, target)));
    report["runs"] = json!(runs);
    Ok(report)
}

fn one_run(
    plan: &Plan,
    args: &FoundingRunArgs,
    number: u32,
    threads: u32,
    notes: &mut Vec<String>,
) -> anyhow::Result<Value> {
    let job = plan.job(&format!("fill,sweep@{threads}"), DATA_PERCENT, DEADLINE)?;
    let mut run = json!({ "threads": threads });
    let say = |what: &str| {
        term::progress(&format!("run {number} of {}, {threads} thread(s): {what}", plan.runs));
    };
    if !args.common.rival_only {
        for (side, batch) in SIDES {
            say(&format!("weir, {side}"));
            let more: Vec<_> = batch.map(|n| ("swap-batch", n.to_owned())).into_iter().collect();
            let (outcome, counters) =
                job.run_weir_with(plan.limit, plan.faults, &plan.disk.options(&more))?;
            run[side] = outcome.to_json();
            run[side]["traffic"] = disk::traffic(&counters);
            run[side]["counters"] = json!(counters);
        }
    }
    if !args.common.no_rival {
        say("kernel, file");
        let result = plan.disk.run_rival(Area::File(plan.disk.dir().to_owned()), plan.limit, &job);
        if let Some((description, outcome)) = disk::or_note(result, "the kernel's swap file", notes)? {
            run["rival"] = outcome.to_json();
            run["rival"]["description"] = json!(description);
        }
    }
    Ok(run)
}

fn row(runs: &[Value], threads: u32, target: f64) -> Value {
    let of = |side: &str, value: &dyn Fn(&Value) -> Option<f64>| {
        median(runs.iter().filter(|run| run["threads"] == threads).filter_map(|run| value(&run[side])))
    };
    let phase = format!("sweep@{threads}");
    let speed = |side: &str| of(side, &|run| run["printed"]["phases"][&phase]["pages_per_s"].as_f64());
    let (one, batched, rival) = (speed("one"), speed("batched"), speed("rival"));
    let gain = ratio(batched, one);
    let mut json = json!({
        "threads": threads, "one": one, "batched": batched, "rival": rival,
        "gain": gain, "target": target, "reached": gain.map(|gain| gain >= target),
        "against_kernel": ratio(batched, rival),
    });
    for (side, _) in SIDES {
        for key in [
            "slot_trips_per_page",
            "write_requests_per_page",
            "write_request_bytes",
            "bytes_written_per_byte_evicted",
            "pages_out",
        ] {
            json[format!("{side}_{key}")] = json!(of(side, &|run| run["traffic"][key].as_f64()));
        }
    }
    json
}

/// The tables.
pub fn human(report: &Value) -> String {
    let mut text =
        Plan::title(report, "F1, swap-out batching: pages per second written to, data twice the RAM");
    for note in report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text += &format!("note: {note}\n");
    }
    let rows = report["rows"].as_array().cloned().unwrap_or_default();
    let speed = |v: &Value| v.as_f64().map_or("-".to_owned(), |v| format!("{} k/s", table::short(v / 1e3)));
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut line = vec![format!("{} thread(s)", row["threads"])];
            line.extend(["rival", "one", "batched"].map(|side| speed(&row[side])));
            line.extend(["gain", "target", "against_kernel"].map(|field| times(&row[field])));
            line
        })
        .collect();
    let headers = ["", "kernel file", "batch 1", "batched", "gain", "target", "against kernel"];
    text += "\n";
    text += &table::render(&headers, &lines);
    let lines: Vec<Vec<String>> = rows
        .iter()
        .flat_map(|row| SIDES.map(|(side, _)| (row, side)))
        .map(|(row, side)| {
            let of = |key: &str| row[format!("{side}_{key}")].clone();
            vec![
                format!(
                    "{} thread(s), {}",
                    row["threads"],
                    if side == "one" { "batch 1" } else { "batched" }
                ),
                number(&of("pages_out")),
                number(&of("slot_trips_per_page")),
                number(&of("write_requests_per_page")),
                size(&of("write_request_bytes")),
                number(&of("bytes_written_per_byte_evicted")),
            ]
        })
        .collect();
    let headers =
        ["what explains it", "pages out", "slot trips/page", "writes/page", "write size", "bytes/byte"];
    text + "\n" + &table::render(&headers, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(threads: u32, one: f64, batched: f64) -> Value {
        let side = |speed: f64, trips: f64| {
            let phase = format!("sweep@{threads}");
            json!({ "printed": { "phases": { phase: { "pages_per_s": speed } } }, "traffic": { "slot_trips_per_page": trips } })
        };
        json!({ "threads": threads, "one": side(one, 2.0), "batched": side(batched, 0.03), "rival": side(100.0, 0.0) })
    }

    #[test]
    fn gains_are_of_medians_of_runs_with_as_many_threads() {
        let runs = [
            run_of(1, 100.0, 150.0),
            run_of(16, 100.0, 150.0),
            run_of(1, 200.0, 100.0),
            run_of(1, 100.0, 150.0),
        ];
        let one = row(&runs, 1, 1.25);
        assert_eq!((one["gain"].as_f64(), one["reached"].as_bool()), (Some(1.5), Some(true)));
        let many = row(&runs, 16, 1.85);
        assert_eq!((many["gain"].as_f64(), many["reached"].as_bool()), (Some(1.5), Some(false)));
        let report = json!({ "rows": [one, many], "limit_bytes": 1 << 20 });
        let text = human(&report);
        assert!(text.contains("1.50x") && text.contains("0.0300"), "{text}");
    }
}
