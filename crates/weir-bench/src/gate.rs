//! `weir bench gate`: what the system-call gate of inline faults adds to a call, with its buffer outside
//! managed memory and inside. There is no rival: the program alone is what Weir is measured against.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use weir_cli::compare::sides::weir_missing;
use weir_cli::compare::table;
use weir_cli::term;
use weir_os::probe::{self, FaultMode};

use super::Findings;
use super::calls::{CALLS, Call, Way, calls_made};
use super::median;
use crate::cli::GateArgs;
use crate::workload;

const BUDGET_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(600);
const SIDES: [&str; 2] = ["native", "weir"];

impl Call {
    /// What Weir may add to it, in ns.
    fn allowed_ns(self) -> f64 {
        match self.way {
            Way::Outside => 60.0,
            Way::Wrapped | Way::Trapped => 3000.0,
        }
    }

    fn median_ns(self, runs: &[Value], side: &str) -> Option<f64> {
        median(runs.iter().filter_map(|run| run[side]["ns_per_call"][self.name].as_f64()))
    }
}

/// Measures.
pub fn gate(args: &GateArgs) -> anyhow::Result<Findings> {
    if let Some(why) = weir_missing() {
        bail!("{why}");
    }
    if let Some(obstacle) = probe::probe().inline_faults.obstacle() {
        bail!("the gate is part of inline faults, which are not possible here: {obstacle}");
    }
    let calls = args.calls.unwrap_or(if args.quick { 20_000 } else { 200_000 });
    let runs = measure(calls, args.runs.unwrap_or(if args.quick { 3 } else { 5 }))?;
    let report = report(calls, &runs);
    Ok(Findings::new(report, args.json, human))
}

/// The sides take turns, so that a slow minute of the machine hits both.
fn measure(calls: u64, runs: u32) -> anyhow::Result<Vec<Value>> {
    let job = workload::job(&["gate", "--calls", &calls.to_string()], DEADLINE)?;
    (1..=runs)
        .map(|number| {
            term::progress(&format!("run {number} of {runs}: native"));
            let native = job.run_native()?.printed;
            term::progress(&format!("run {number} of {runs}: weir"));
            let (outcome, counters) = job.run_weir(BUDGET_BYTES, Some(FaultMode::Inline))?;
            check_ways(calls, &counters)?;
            Ok(json!({ "native": native, "weir": outcome.printed, "counters": counters }))
        })
        .collect()
}

/// The calls with managed buffers must have gone through the gate, each in its way, or the prices are of
/// something else.
fn check_ways(calls: u64, counters: &BTreeMap<String, u64>) -> anyhow::Result<()> {
    for (way, counter) in [(Way::Wrapped, "weir_calls_wrapped"), (Way::Trapped, "weir_calls_trapped")] {
        // Those of libc's wrapped functions either hold their pages or pin them.
        let held = if way == Way::Wrapped { counters.get("weir_calls_held") } else { None };
        let made = counters.get(counter).copied().unwrap_or(0) + held.copied().unwrap_or(0);
        let least = CALLS.iter().filter(|call| call.way == way).count() as u64 * calls_made(calls);
        // A few more come from reading settings and from the program's start and end.
        let most = least + calls / 2;
        ensure!((least..=most).contains(&made), "{counter}: {made} instead of {least} to {most}");
    }
    Ok(())
}

fn report(calls: u64, runs: &[Value]) -> Value {
    let rows: Vec<Value> = CALLS
        .iter()
        .map(|call| {
            let [native, weir] = SIDES.map(|side| call.median_ns(runs, side));
            let price = native.zip(weir).map(|(native, weir)| weir - native);
            json!({
                "call": call.name,
                "managed": call.way != Way::Outside,
                "native_ns": native, "weir_ns": weir, "price_ns": price,
                "allowed_ns": call.allowed_ns(), "reached": price.map(|price| price <= call.allowed_ns()),
            })
        })
        .collect();
    json!({
        "scenario": "gate",
        "kernel": probe::probe().kernel.release,
        "faults": FaultMode::Inline.name(),
        "calls_per_loop": calls,
        "budget_bytes": BUDGET_BYTES,
        "rows": rows,
        "runs": runs,
    })
}

fn human(report: &Value) -> String {
    let mut text = format!(
        "System-call gate, faults inline: ns per call in loops of {}; medians of {} run(s), Linux {}\n",
        report["calls_per_loop"],
        report["runs"].as_array().map_or(0, Vec::len),
        report["kernel"].as_str().unwrap_or("?"),
    );
    for (managed, title) in
        [(false, "other calls (no managed buffer)"), (true, "calls with a managed buffer")]
    {
        let rows: Vec<Vec<String>> = report["rows"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|row| row["managed"] == managed)
            .map(|row| {
                let show = |field: &str| row[field].as_f64().map_or("-".to_owned(), |ns| format!("{ns:.0}"));
                let verdict = match row["reached"].as_bool() {
                    Some(true) => "yes",
                    Some(false) => "no",
                    None => "-",
                };
                let name = row["call"].as_str().unwrap_or_default().replace(", managed", "");
                let mut line = vec![format!("{name:32}")];
                line.extend(["native_ns", "weir_ns", "price_ns", "allowed_ns"].map(show));
                line.push(verdict.to_owned());
                line
            })
            .collect();
        text += "\n";
        text += &table::render(&[title, "native", "  weir", "price", "allowed", "within"], &rows);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(native: f64, weir: f64) -> Value {
        let side = |ns: f64| {
            let all: serde_json::Map<_, _> = CALLS.iter().map(|c| (c.name.to_owned(), json!(ns))).collect();
            json!({ "ns_per_call": all })
        };
        json!({ "native": side(native), "weir": side(weir) })
    }

    #[test]
    fn prices_are_between_medians_and_judged_by_the_kind_of_call() {
        let report = report(1000, &[run(100.0, 190.0), run(110.0, 200.0), run(500.0, 900.0)]);
        for row in report["rows"].as_array().unwrap() {
            assert_eq!(row["price_ns"].as_f64(), Some(90.0), "{row}");
            assert_eq!(row["reached"], row["managed"], "90 ns are too much for another call alone: {row}");
        }
        let text = human(&report);
        assert!(text.contains("other calls") && text.contains("managed buffer"), "{text}");
        let managed = CALLS.iter().filter(|call| call.way != Way::Outside).count();
        assert_eq!(text.lines().filter(|line| line.ends_with("yes")).count(), managed, "{text}");
    }

    #[test]
    fn prices_of_calls_that_went_another_way_are_refused() {
        let counters = |wrapped: u64, trapped: u64| {
            let count = |name: &str, n: u64| (name.to_owned(), n * 1100 + 10);
            BTreeMap::from([count("weir_calls_wrapped", wrapped), count("weir_calls_trapped", trapped)])
        };
        assert!(check_ways(1000, &counters(6, 1)).is_ok());
        for (wrapped, trapped) in [(5, 1), (7, 1), (5, 2), (6, 0), (6, 2), (0, 7)] {
            assert!(check_ways(1000, &counters(wrapped, trapped)).is_err(), "{wrapped} {trapped}");
        }
        assert!(check_ways(1000, &BTreeMap::new()).is_err());
    }
}
