//! F1, swap-out batching: threads that write to one page after the other of data twice the RAM. Pages, and
//! what is reserved for them, are handled one by one or in batches, by the same code: on the way to a swap
//! file, and to the compressed pool alone. Beside each the kernel's own: its swap file, and zram with as much
//! RAM as that took.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use weir_cli::compare::rival::Area;
use weir_cli::compare::sides::{RivalOutcome, equal_ram};
use weir_cli::compare::table;
use weir_cli::term;

use super::{Plan, ratio};
use crate::cli::FoundingRunArgs;
use crate::disk::{self, SMALL_POOL_PERCENT, number, size, times};
use crate::{median, oom_note};

const DATA_PERCENT: u64 = 200;
const DEADLINE: Duration = Duration::from_secs(600);

/// Threads, and what the report gained with them.
const THREADS: [(u32, f64); 2] = [(1, 1.25), (16, 1.85)];

/// One of Weir's runs.
struct Side {
    /// In the report.
    key: &'static str,
    /// In the table.
    name: &'static str,
    options: &'static [(&'static str, &'static str)],
}

const BATCHED: Side = Side { key: "batched", name: "batched", options: &[] };

/// Where the pages go.
struct Tier {
    key: &'static str,
    /// The kernel's side.
    rival: &'static str,
    sides: &'static [Side],
    /// What explains the speeds: field of the traffic, and header.
    explained: &'static [(&'static str, &'static str)],
}

const FILE: Tier = Tier {
    key: "file",
    rival: "the kernel's swap file",
    sides: &[Side { key: "one", name: "batch 1", options: &[("swap-batch", "1")] }, BATCHED],
    explained: &[
        ("pages_out", "pages out"),
        ("slot_trips_per_page", "slot trips/page"),
        ("write_requests_per_page", "writes/page"),
        ("write_request_bytes", "write size"),
        ("bytes_written_per_byte_evicted", "bytes/byte"),
    ],
};

const POOL: Tier = Tier {
    key: "pool",
    rival: "the kernel's zram",
    sides: &[
        Side {
            key: "one",
            name: "one by one",
            options: &[("swap", "none"), ("unmap-batch", "1"), ("store-batch", "1")],
        },
        Side { key: "stored", name: "stored one by one", options: &[("swap", "none"), ("store-batch", "1")] },
        Side { options: &[("swap", "none")], ..BATCHED },
    ],
    explained: &[
        ("unmap_calls_per_page", "unmap calls/page"),
        ("block_locks_per_page", "block locks"),
        ("pool_locks_per_page", "pool locks"),
        ("frame_locks_per_page", "frame locks"),
        ("queue_locks_per_page", "queue locks"),
        ("locks_per_page", "locks/page"),
        ("pages_per_pool_lock", "pages/pool lock"),
    ],
};

const TIERS: [&Tier; 2] = [&FILE, &POOL];

/// Measures.
pub fn run(args: &FoundingRunArgs) -> anyhow::Result<Value> {
    let plan = Plan::new(args, DATA_PERCENT, SMALL_POOL_PERCENT)?;
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    for number in 1..=plan.runs {
        for tier in TIERS {
            for (threads, _) in THREADS {
                runs.push(one_run(&plan, args, (number, tier, threads), &mut notes)?);
            }
        }
    }
    notes.extend(oom_note(&runs));
    notes.dedup();
    let mut report = plan.common_json("f1");
    report["notes"] = json!(notes);
    let rows =
        TIERS.iter().flat_map(|tier| THREADS.map(|(threads, target)| row(&runs, tier, threads, target)));
    report["rows"] = json!(rows.collect::<Vec<_>>());
    report["runs"] = json!(runs);
    Ok(report)
}

fn one_run(
    plan: &Plan,
    args: &FoundingRunArgs,
    (number, tier, threads): (u32, &Tier, u32),
    notes: &mut Vec<String>,
) -> anyhow::Result<Value> {
    let job = plan.job(&format!("fill,sweep@{threads}"), DATA_PERCENT, DEADLINE)?;
    let mut run = json!({ "tier": tier.key, "threads": threads });
    let say = |what: &str| {
        let at = format!("run {number} of {}, {}, {threads} thread(s)", plan.runs, tier.key);
        term::progress(&format!("{at}: {what}"));
    };
    // First, because what the pool may take is what it took.
    let mut rival: Option<RivalOutcome> = None;
    if !args.sized.common.no_rival {
        say(tier.rival);
        let area = if tier.key == FILE.key { Area::File(plan.disk.dir().to_owned()) } else { Area::Zram };
        let result = plan.disk.run_rival(area, plan.limit, &job);
        if let Some((description, outcome)) = disk::or_note(result, tier.rival, notes)? {
            run["rival"] = outcome.to_json();
            run["rival"]["description"] = json!(description);
            rival = Some(outcome);
        }
    }
    if args.sized.common.rival_only {
        return Ok(run);
    }
    let budget = if tier.key == FILE.key { plan.limit } else { equal_ram(plan.limit, rival.as_ref()) };
    run["budget_bytes"] = json!(budget);
    for side in tier.sides {
        say(&format!("weir, {}", side.name));
        let more: Vec<_> = side.options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let options = if tier.key == FILE.key { plan.disk.options(&more) } else { more };
        let (outcome, counters) = job.run_weir_with(budget, plan.faults, &options)?;
        run[side.key] = outcome.to_json();
        run[side.key]["traffic"] = traffic(&counters);
        run[side.key]["counters"] = json!(counters);
    }
    Ok(run)
}

/// What went to the disk, and the locks that reclaim took for each page that left its frame.
fn traffic(counters: &BTreeMap<String, u64>) -> Value {
    let get = |key: &str| counters.get(key).copied().unwrap_or(0) as f64;
    // Those taken back before they left are no pages out.
    let out = get("weir_pages_unmapped") - get("weir_in_staged");
    let per_page = |locks: f64| ratio(Some(locks), Some(out));
    let mut json = disk::traffic(counters);
    let mut all = 0.0;
    for kind in ["block", "pool", "frame", "queue"] {
        let locks = get(&format!("weir_out_{kind}_locks"));
        json[format!("{kind}_locks_per_page")] = json!(per_page(locks));
        all += locks;
    }
    json["locks_per_page"] = json!(per_page(all));
    json["pages_per_pool_lock"] = json!(ratio(Some(get("zswpout")), Some(get("weir_out_pool_locks"))));
    json
}

fn row(runs: &[Value], tier: &Tier, threads: u32, target: f64) -> Value {
    let of = |value: &dyn Fn(&Value) -> Option<f64>| {
        let mine = runs.iter().filter(|run| run["tier"] == tier.key && run["threads"] == threads);
        median(mine.filter_map(value))
    };
    let phase = format!("sweep@{threads}");
    let speed = |side: &str| of(&|run| run[side]["printed"]["phases"][&phase]["pages_per_s"].as_f64());
    let (one, batched, rival) = (speed("one"), speed("batched"), speed("rival"));
    let gain = ratio(batched, one);
    let mut json = json!({
        "tier": tier.key, "threads": threads, "one": one, "stored": speed("stored"), "batched": batched, "rival": rival,
        "gain": gain, "target": target, "reached": gain.map(|gain| gain >= target),
        "against_kernel": ratio(batched, rival), "budget_bytes": of(&|run| run["budget_bytes"].as_f64()),
    });
    for side in tier.sides {
        for (key, _) in tier.explained {
            json[format!("{}_{key}", side.key)] = json!(of(&|run| run[side.key]["traffic"][key].as_f64()));
        }
    }
    json
}

/// The tables.
pub fn human(report: &Value) -> String {
    let mut text =
        Plan::title(report, "F1, swap-out batching: pages per second written to, data twice the RAM");
    text += &crate::scenarios::note_lines(report);
    let rows = report["rows"].as_array().cloned().unwrap_or_default();
    for tier in TIERS {
        let rows: Vec<&Value> = rows.iter().filter(|row| row["tier"] == tier.key).collect();
        text += &speeds(tier, &rows);
        text += &explained(tier, &rows);
    }
    text
}

fn speeds(tier: &Tier, rows: &[&Value]) -> String {
    let speed = |v: &Value| v.as_f64().map_or("-".to_owned(), |v| format!("{} k/s", table::short(v / 1e3)));
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut line = vec![format!("{} thread(s)", row["threads"]), speed(&row["rival"])];
            line.extend(tier.sides.iter().map(|side| speed(&row[side.key])));
            line.extend(["gain", "target", "against_kernel"].map(|field| times(&row[field])));
            line
        })
        .collect();
    let ram = match rows.first() {
        Some(row) if tier.key == POOL.key => {
            format!(": weir has {} RAM, no file", size(&row["budget_bytes"]))
        }
        _ => String::new(),
    };
    let mut headers = vec!["", "kernel"];
    headers.extend(tier.sides.iter().map(|side| side.name));
    headers.extend(["gain", "target", "against kernel"]);
    format!("\n{}, beside {}{ram}\n{}", tier.key, tier.rival, table::render(&headers, &lines))
}

fn explained(tier: &Tier, rows: &[&Value]) -> String {
    let mut lines = Vec::new();
    for row in rows {
        for side in tier.sides {
            let mut line = vec![format!("{} thread(s), {}", row["threads"], side.name)];
            line.extend(tier.explained.iter().map(|(key, _)| {
                let value = &row[format!("{}_{key}", side.key)];
                if *key == "write_request_bytes" { size(value) } else { number(value) }
            }));
            lines.push(line);
        }
    }
    let mut headers = vec!["what explains it"];
    headers.extend(tier.explained.iter().map(|(_, header)| *header));
    format!("\n{}", table::render(&headers, &lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(tier: &Tier, threads: u32, one: f64, batched: f64) -> Value {
        let side = |speed: f64, trips: f64| {
            let phase = format!("sweep@{threads}");
            json!({
                "printed": { "phases": { phase: { "pages_per_s": speed } } },
                "traffic": { "slot_trips_per_page": trips, "locks_per_page": trips },
            })
        };
        json!({
            "tier": tier.key, "threads": threads, "one": side(one, 2.0), "batched": side(batched, 0.03), "rival": side(100.0, 0.0),
        })
    }

    #[test]
    fn gains_are_of_medians_of_runs_with_as_many_threads_in_the_same_tier() {
        let runs = [
            run_of(&FILE, 1, 100.0, 150.0),
            run_of(&FILE, 16, 100.0, 150.0),
            run_of(&POOL, 1, 100.0, 400.0),
            run_of(&FILE, 1, 200.0, 100.0),
            run_of(&FILE, 1, 100.0, 150.0),
        ];
        let one = row(&runs, &FILE, 1, 1.25);
        assert_eq!((one["gain"].as_f64(), one["reached"].as_bool()), (Some(1.5), Some(true)));
        let many = row(&runs, &FILE, 16, 1.85);
        assert_eq!((many["gain"].as_f64(), many["reached"].as_bool()), (Some(1.5), Some(false)));
        let pool = row(&runs, &POOL, 1, 1.25);
        assert_eq!((pool["gain"].as_f64(), &pool["stored"]), (Some(4.0), &Value::Null));
        let text = human(&json!({ "rows": [one, many, pool], "limit_bytes": 1 << 20 }));
        assert!(text.contains("1.50x") && text.contains("4.00x") && text.contains("0.0300"), "{text}");
        let widest = text.lines().skip(2).map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 150, "{widest}: {text}");
    }

    #[test]
    fn locks_are_counted_for_each_page_that_left_and_was_not_taken_back() {
        let counters = [
            ("weir_pages_unmapped", 1100),
            ("weir_in_staged", 100),
            ("weir_out_block_locks", 250),
            ("weir_out_pool_locks", 300),
            ("weir_out_frame_locks", 400),
            ("weir_out_queue_locks", 50),
            ("zswpout", 900),
        ];
        let found = traffic(&counters.map(|(key, value)| (key.to_owned(), value)).into_iter().collect());
        let of = |key: &str| found[key].as_f64();
        assert_eq!((of("block_locks_per_page"), of("queue_locks_per_page")), (Some(0.25), Some(0.05)));
        assert_eq!((of("locks_per_page"), of("pages_per_pool_lock")), (Some(1.0), Some(3.0)));
        assert_eq!(traffic(&BTreeMap::new())["locks_per_page"], Value::Null);
    }
}
