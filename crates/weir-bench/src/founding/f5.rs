//! F5, page order in the allocator: readers that go through their parts of the data from end to end, with
//! neighbouring pages in neighbouring frames, and with frames handed out one by one in an order that merges
//! nothing.

use std::time::Duration;

use serde_json::{Value, json};
use weir_cli::compare::table;
use weir_cli::term;

use super::{Plan, ratio};
use crate::cli::FoundingRunArgs;
use crate::disk::{number, times};
use crate::median;

const DATA_PERCENT: u64 = 150;
/// Of the budget: all the data fits the pool, where there is no file.
const POOL_PERCENT: u8 = 95;
const DEADLINE: Duration = Duration::from_secs(1200);
const READERS: [u32; 4] = [1, 4, 16, 64];
/// Where the pages rest.
const TIERS: [&str; 2] = ["pool", "file"];
/// Weir's runs, and their `--frame-order`.
const SIDES: [(&str, &str); 2] = [("shuffled", "scattered"), ("ordered", "kept")];
/// Wanted of the throughput with this many readers, ordered to shuffled: the report's loss of 76 %.
const WANTED: f64 = 4.2;
const WANTED_READERS: u32 = 16;

/// Measures.
pub fn run(args: &FoundingRunArgs) -> anyhow::Result<Value> {
    let plan = Plan::new(args, DATA_PERCENT, POOL_PERCENT)?;
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        for tier in TIERS {
            for readers in READERS {
                runs.push(one_run(&plan, number, tier, readers)?);
            }
        }
    }
    let mut report = plan.common_json("f5");
    let rows: Vec<Value> =
        TIERS.iter().flat_map(|tier| READERS.map(|readers| row(&runs, tier, readers))).collect();
    report["rows"] = json!(rows);
    report["runs"] = json!(runs);
    Ok(report)
}

fn one_run(plan: &Plan, number: u32, tier: &str, readers: u32) -> anyhow::Result<Value> {
    let job = plan.job(&format!("fill,stream@{readers}"), DATA_PERCENT, DEADLINE)?;
    let mut run = json!({ "tier": tier, "readers": readers });
    // Each run begins with the other side.
    let first = number as usize % SIDES.len();
    for (side, order) in SIDES.into_iter().cycle().skip(first).take(SIDES.len()) {
        term::progress(&format!("run {number} of {}, {tier}, {readers} reader(s): {side}", plan.runs));
        let order = ("frame-order", order.to_owned());
        let options = match tier {
            "pool" => vec![order, ("swap", "none".to_owned()), ("pool-max", POOL_PERCENT.to_string())],
            // As good as no pool: what is not in a frame is read from the file.
            _ => plan.disk.options(&[order, ("pool-max", "1".to_owned()), ("codec", "none".to_owned())]),
        };
        let (outcome, counters) = job.run_weir_with(plan.limit, plan.faults, &options)?;
        run[side] = outcome.to_json();
        run[side]["counters"] = json!(counters);
    }
    Ok(run)
}

/// Per side: throughput, kernel calls to bring a page in, read requests per MB; and what order gains.
fn row(runs: &[Value], tier: &str, readers: u32) -> Value {
    let phase = format!("stream@{readers}");
    let of = |side: &str, value: &dyn Fn(&Value) -> Option<f64>| {
        let mine = runs.iter().filter(|run| run["tier"] == tier && run["readers"] == readers);
        median(mine.filter_map(|run| value(&run[side])))
    };
    let mut json = json!({ "tier": tier, "readers": readers });
    let mut speeds = Vec::new();
    for (side, _) in SIDES {
        let counter = |run: &Value, name: &str| run["counters"][name].as_f64();
        let speed = of(side, &|run| run["printed"]["phases"][&phase]["mb_per_s"].as_f64());
        let calls =
            of(side, &|run| ratio(counter(run, "weir_pager_calls"), counter(run, "weir_pages_unmapped")));
        let requests = of(side, &|run| {
            let megabytes = counter(run, "weir_swap_bytes_read").map(|bytes| bytes / 1e6);
            ratio(counter(run, "weir_swap_reads"), megabytes)
        });
        json[side] = json!({ "mb_per_s": speed, "calls_per_page": calls, "requests_per_mb": requests });
        speeds.push(speed);
    }
    let gain = ratio(speeds[1], speeds[0]);
    json["gain"] = json!(gain);
    if readers == WANTED_READERS {
        json["reached"] = json!(gain.map(|gain| gain >= WANTED));
    }
    json
}

/// The table.
pub fn human(report: &Value) -> String {
    let mut text =
        Plan::title(report, "F5, page order in the allocator: sequential readers, data 1.5 times the RAM");
    text += &format!(
        "shuffled: each page in a frame of its own choice. calls: of the pager, in and out, for each page that left. wanted with \
         {WANTED_READERS} readers: {WANTED}x\n\n"
    );
    let mut lines = Vec::new();
    for row in report["rows"].as_array().into_iter().flatten() {
        let tier = row["tier"].as_str().unwrap_or("?");
        let mut line = vec![format!("{tier}, {} reader(s)", row["readers"])];
        for field in ["mb_per_s", "calls_per_page", "requests_per_mb"] {
            line.extend(SIDES.map(|(side, _)| number(&row[side][field])));
        }
        line.push(times(&row["gain"]));
        lines.push(line);
    }
    let headers = [
        "",
        "MB/s shuffled",
        "ordered",
        "calls/page shuffled",
        "ordered",
        "reads/MB shuffled",
        "ordered",
        "gain",
    ];
    text + &table::render(&headers, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(speed: f64, calls: u64, requests: u64) -> Value {
        json!({
            "printed": { "phases": { "stream@16": { "mb_per_s": speed } } },
            "counters": {
                "weir_pager_calls": calls, "weir_pages_unmapped": 1000, "weir_swap_reads": requests,
                "weir_swap_bytes_read": 10_000_000,
            },
        })
    }

    #[test]
    fn the_gain_is_in_throughput_and_is_judged_at_sixteen_readers() {
        let run = json!({
            "tier": "file", "readers": 16, "shuffled": side(100.0, 1100, 2000), "ordered": side(500.0, 40, 40),
        });
        let found = row(&[run], "file", 16);
        assert_eq!((found["gain"].as_f64(), &found["reached"]), (Some(5.0), &json!(true)));
        assert_eq!(found["ordered"]["calls_per_page"].as_f64(), Some(0.04));
        assert_eq!(found["shuffled"]["requests_per_mb"].as_f64(), Some(200.0));
        let text = human(&json!({ "rows": [found] }));
        assert!(text.lines().last().is_some_and(|line| line.ends_with("5.00x")), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_no_success() {
        let found = row(&[], "pool", 16);
        assert_eq!((&found["gain"], &found["reached"]), (&Value::Null, &Value::Null));
        assert!(human(&json!({ "rows": [found] })).contains('-'));
    }
}
