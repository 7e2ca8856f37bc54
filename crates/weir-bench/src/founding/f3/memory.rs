//! F3 with memory: threads that write to one page after the other of data half as large again as the
//! RAM, in the compressed pool alone. Pages are unmapped one by one or in whole batches, by the same code.
//! Beside them the same program with all its data in RAM: more threads than processors wait for each other,
//! and its longest stall is what of the others' is not Weir's.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::FoundingRunArgs;
use crate::disk::{number, times};
use crate::founding::{Plan, ratio};
use crate::median;
use weir::config::DEFAULT_POOL_MAX_PERCENT;
use weir_cli::compare::table;
use weir_cli::term;

const DATA_PERCENT: u64 = 150;
const DEADLINE: Duration = Duration::from_secs(1200);
const THREADS: [u32; 3] = [1, 4, 16];
/// Weir's runs, and their `--unmap-batch`.
const SIDES: [(&str, Option<&str>); 2] = [("one", Some("1")), ("batched", None)];
/// The run without Weir.
const NATIVE: &str = "native";
/// Wanted with four threads and more: pages reclaimed a second, times as many, and flushes a page, times as
/// few.
const SPEED_WANTED: f64 = 2.4;
const FLUSHES_WANTED: f64 = 15.0;
const WANTED_FROM_THREADS: u32 = 4;
const STALL_WANTED_MS: f64 = 10.0;

/// Measures.
pub fn run(args: &FoundingRunArgs) -> anyhow::Result<Value> {
    let plan = Plan::new(args, DATA_PERCENT, DEFAULT_POOL_MAX_PERCENT)?;
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        for threads in THREADS {
            runs.push(one_run(&plan, number, threads)?);
        }
    }
    let mut report = plan.common_json("f3");
    report["rows"] = json!(THREADS.map(|threads| row(&runs, threads)));
    report["runs"] = json!(runs);
    Ok(report)
}

fn one_run(plan: &Plan, number: u32, threads: u32) -> anyhow::Result<Value> {
    let job = plan.job(&format!("fill,sweep@{threads}"), DATA_PERCENT, DEADLINE)?;
    let mut run = json!({ "threads": threads });
    for (side, batch) in SIDES {
        term::progress(&format!("run {number} of {}, {threads} thread(s): {side}", plan.runs));
        let mut options = vec![("swap", "none".to_owned())];
        options.extend(batch.map(|n| ("unmap-batch", n.to_owned())));
        let (outcome, counters) = job.run_weir_with(plan.limit, plan.faults, &options)?;
        run[side] = outcome.to_json();
        run[side]["counters"] = json!(counters);
    }
    term::progress(&format!("run {number} of {}, {threads} thread(s): all in RAM", plan.runs));
    run[NATIVE] = job.run_native()?.to_json();
    Ok(run)
}

/// Per side: pages a second, flush interrupts a page, unmap calls a page, the longest stall; and what
/// batching gains.
fn row(runs: &[Value], threads: u32) -> Value {
    let phase = format!("sweep@{threads}");
    let of = |side: &str, value: &dyn Fn(&Value) -> Option<f64>| {
        median(runs.iter().filter(|run| run["threads"] == threads).filter_map(|run| value(&run[side])))
    };
    let in_phase = |run: &Value, field: &str| run["printed"]["phases"][&phase][field].as_f64();
    let mut json = json!({ "threads": threads });
    let mut figures = Vec::new();
    for side in SIDES.map(|(side, _)| side).into_iter().chain([NATIVE]) {
        let speed = of(side, &|run| in_phase(run, "pages_per_s"));
        let flushes =
            of(side, &|run| ratio(in_phase(run, "flush_interrupts_per_s"), in_phase(run, "pages_per_s")));
        let counter = |run: &Value, name: &str| run["counters"][name].as_f64();
        let calls =
            of(side, &|run| ratio(counter(run, "weir_unmap_calls"), counter(run, "weir_pages_unmapped")));
        let stall = of(side, &|run| in_phase(run, "max_ns")).map(|ns| ns / 1e6);
        json[side] = json!({ "pages_per_s": speed, "flushes_per_page": flushes, "calls_per_page": calls, "stall_ms": stall });
        figures.push((speed, flushes, stall));
    }
    let (speed, flushes) = (ratio(figures[1].0, figures[0].0), ratio(figures[0].1, figures[1].1));
    json["gain"] = json!({ "speed": speed, "flushes": flushes });
    if threads >= WANTED_FROM_THREADS {
        let reached = |value: Option<f64>, wanted: f64| value.map(|value| value >= wanted);
        json["reached"] = json!({
            "speed": reached(speed, SPEED_WANTED), "flushes": reached(flushes, FLUSHES_WANTED),
            "stall": figures[1].2.map(|ms| ms < STALL_WANTED_MS),
        });
    }
    json
}

/// The table.
pub fn human(report: &Value) -> String {
    let mut text =
        Plan::title(report, "F3, TLB flush batching: pages per second written to, data 1.5 times the RAM");
    text += &format!(
        "no swap file. wanted with {WANTED_FROM_THREADS} threads and more: {SPEED_WANTED}x the pages, {FLUSHES_WANTED}x fewer flush \
         interrupts a page, no stall of {STALL_WANTED_MS} ms\n\n"
    );
    let mut lines = Vec::new();
    for row in report["rows"].as_array().into_iter().flatten() {
        for (side, name) in [("one", "one by one"), ("batched", "batched"), (NATIVE, "all in RAM")] {
            let of = |field: &str| &row[side][field];
            let thousands = of("pages_per_s").as_f64().map(|v| v / 1e3);
            let mut line = vec![format!("{} thread(s), {name}", row["threads"]), number(&json!(thousands))];
            line.extend(["flushes_per_page", "calls_per_page", "stall_ms"].map(|field| number(of(field))));
            let gain =
                |field: &str| if side == "batched" { times(&row["gain"][field]) } else { String::new() };
            line.extend([gain("speed"), gain("flushes")]);
            lines.push(line);
        }
    }
    let headers = [
        "",
        "k pages/s",
        "flush interrupts/page",
        "calls/page",
        "longest stall, ms",
        "more pages",
        "fewer flushes",
    ];
    text + &table::render(&headers, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(pages: f64, flushes: f64, calls: u64, max_ms: f64) -> Value {
        json!({
            "printed": { "phases": { "sweep@4": {
                "pages_per_s": pages, "flush_interrupts_per_s": flushes, "max_ns": max_ms * 1e6,
            } } },
            "counters": { "weir_unmap_calls": calls, "weir_pages_unmapped": 1000 },
        })
    }

    #[test]
    fn gains_are_more_pages_and_fewer_flushes_and_are_judged_from_four_threads_on() {
        let run = json!({ "threads": 4, "one": side(1e4, 2e4, 1000, 30.0), "batched": side(3e4, 3e3, 4, 5.0), "native": side(9e6, 10.0, 0, 12.0) });
        let found = row(&[run], 4);
        assert!((found["gain"]["speed"].as_f64().unwrap() - 3.0).abs() < 1e-9, "{found}");
        assert!((found["gain"]["flushes"].as_f64().unwrap() - 20.0).abs() < 1e-9, "{found}");
        assert_eq!(found["reached"], json!({ "speed": true, "flushes": true, "stall": true }));
        assert_eq!(found["native"]["stall_ms"].as_f64(), Some(12.0));
        assert_eq!(found["batched"]["calls_per_page"].as_f64(), Some(0.004));
        let text = human(&json!({ "rows": [found] }));
        assert!(
            text.contains("20.0x") && text.contains("one by one") && text.contains("all in RAM"),
            "{text}"
        );
        let widest = text.lines().skip(2).map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 130, "{widest}: {text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_no_success() {
        let found = row(&[json!({ "threads": 4 })], 4);
        assert_eq!(found["reached"]["speed"], Value::Null);
        assert!(human(&json!({ "rows": [found] })).contains('-'));
    }
}
