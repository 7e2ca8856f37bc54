//! `weir bench swap`: twice as much data as the limit, most of it in a swap file.

use std::time::Duration;

use serde_json::{Value, json};
use weir::config::{DEFAULT_POOL_MAX_PERCENT, format_size};
use weir_cli::compare::rival::Area;
use weir_cli::compare::sides::{Job, RivalOutcome, pager_name, weir_missing};
use weir_cli::term;
use weir_os::probe::{self, FaultMode};

use super::Findings;
use super::disk::{self, Disk, SMALL_POOL_PERCENT, number, size};
use super::row::{self, Row, latency, rate, throughput};
use super::{median, oom_note};
use crate::cli::SwapArgs;
use crate::workload;

/// Data per byte of limit.
const DATA_PER_LIMIT: u64 = 2;
const DEADLINE: Duration = Duration::from_secs(600);
/// Order matters: the sequential passes write what the fill left in RAM, random reads come after them.
const PHASES: &str = "fill,seqread,randread@1,randread@16,randwrite@1";
/// Passes of the sequential read: the first may write, the second finds everything written.
const PASSES: usize = 2;

const FILE_ROWS: [Row; 8] = [
    throughput("fill", "fill", 1.0),
    throughput("sequential read", "seqread", 4.0),
    rate("random read", "randread@1", 1.3),
    latency("  p99", "randread@1", "p99_ns", 1.0),
    latency("  p99.9", "randread@1", "p999_ns", 5.0),
    rate("random read, 16 threads", "randread@16", 2.0),
    latency("  p99.9", "randread@16", "p999_ns", 5.0),
    rate("random write", "randwrite@1", 1.0),
];

const ZSWAP_ROWS: [Row; 7] = [
    throughput("fill", "fill", 1.0),
    throughput("sequential read", "seqread", 4.0),
    rate("random read", "randread@1", 2.0),
    latency("  p99.9", "randread@1", "p999_ns", 1.0),
    rate("random read, 16 threads", "randread@16", 2.0),
    latency("  p99.9", "randread@16", "p999_ns", 20.0),
    rate("random write", "randwrite@1", 1.0),
];

/// One table: a way the kernel swaps, and the runs of Weir beside it.
struct Section {
    rival: &'static str,
    rows: &'static [Row],
    /// Weir's runs, and what the tables call them.
    weir: &'static [(&'static str, &'static str)],
}

/// All of Weir's runs have the limit as their budget: `weir_default` as users run it, `weir` with a small
/// pool, which is the swap file almost alone; but `weir_ram` has as much RAM as zswap took beside the limit.
const SECTIONS: [Section; 2] = [
    Section { rival: "file", rows: &FILE_ROWS, weir: &[("weir_default", "weir"), ("weir", "small pool")] },
    Section {
        rival: "zswap",
        rows: &ZSWAP_ROWS,
        weir: &[("weir_default", "weir"), ("weir_ram", "equal RAM")],
    },
];

struct Plan {
    limit: u64,
    data: u64,
    runs: u32,
    seconds: f64,
    faults: Option<FaultMode>,
    disk: Disk,
}

impl Plan {
    fn new(args: &SwapArgs) -> anyhow::Result<Plan> {
        let limit = args.sized.limit(256)?;
        let data = limit * DATA_PER_LIMIT;
        Ok(Plan {
            limit,
            data,
            runs: args.sized.common.runs(),
            seconds: args.sized.seconds(2.0)?,
            // Named, not left to the program's own choice: the report is to say which mode it was.
            faults: args.mode.faults.or_else(|| probe::probe().auto_faults()),
            disk: Disk::new(&args.disk, data, SMALL_POOL_PERCENT)?,
        })
    }

    fn job(&self) -> anyhow::Result<Job> {
        let (bytes, seconds) = (self.data.to_string(), self.seconds.to_string());
        let passes = PASSES.to_string();
        workload::job(&[PHASES, "--bytes", &bytes, "--seconds", &seconds, "--passes", &passes], DEADLINE)
    }
}

/// Measures.
pub fn swap(args: &SwapArgs) -> anyhow::Result<Findings> {
    let plan = Plan::new(args)?;
    if let Some(why) = weir_missing().filter(|_| !args.sized.common.rival_only) {
        anyhow::bail!("{why}\n(--rival-only measures the other sides)");
    }
    let mut notes = Vec::new();
    let runs = measure(&plan, !args.sized.common.no_rival, !args.sized.common.rival_only, &mut notes)?;
    notes.extend(oom_note(&runs));
    notes.dedup();
    let report = report(&plan, &runs, &notes);
    Ok(Findings::new(report, args.sized.common.json, human))
}

/// Interleaved: each run measures all sides, so that a slow minute of the machine hits all of them.
fn measure(plan: &Plan, rivals: bool, weir: bool, notes: &mut Vec<String>) -> anyhow::Result<Vec<Value>> {
    let job = plan.job()?;
    let areas = [("file", Area::File(plan.disk.dir.clone())), ("zswap", Area::Zswap(plan.disk.dir.clone()))];
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        let mut run = json!({});
        let mut store = 0;
        for (side, area) in areas.iter().filter(|_| rivals) {
            term::progress(&format!("run {number} of {}: kernel, {side}", plan.runs));
            let result = plan.disk.run_rival(area.clone(), plan.limit, &job);
            let what = format!("the kernel's {side}");
            let Some((description, outcome)) = disk::or_note(result, &what, notes)? else { continue };
            store = outcome.store_peak_bytes.max(store);
            run[side] = rival_json(&description, &outcome);
        }
        if weir {
            run["weir"] = weir_run(plan, &job, number, plan.limit, &[])?;
            let options = [("pool-max", DEFAULT_POOL_MAX_PERCENT.to_string())];
            run["weir_default"] = weir_run(plan, &job, number, plan.limit, &options)?;
            if store > 0 {
                let options = [("pool-max", "90".to_owned())];
                run["weir_ram"] = weir_run(plan, &job, number, plan.limit + store, &options)?;
            }
        }
        term::progress(&format!("run {number} of {}: native", plan.runs));
        run["native"] = job.run_native()?.to_json();
        runs.push(run);
    }
    Ok(runs)
}

fn rival_json(description: &str, outcome: &RivalOutcome) -> Value {
    let mut json = outcome.to_json();
    json["description"] = json!(description);
    json
}

fn weir_run(
    plan: &Plan,
    job: &Job,
    number: u32,
    budget: u64,
    options: &[(&str, String)],
) -> anyhow::Result<Value> {
    term::progress(&format!("run {number} of {}: weir, {}", plan.runs, format_size(budget)));
    let (outcome, counters) = job.run_weir_with(budget, plan.faults, &plan.disk.options(options))?;
    let mut json = outcome.to_json();
    json["budget_bytes"] = json!(budget);
    json["pager"] = json!(pager_name(&counters));
    json["traffic"] = disk::traffic(&counters);
    json["counters"] = json!(counters);
    Ok(json)
}

fn report(plan: &Plan, runs: &[Value], notes: &[String]) -> Value {
    let tables: Vec<Value> = SECTIONS.iter().map(|section| section_report(section, runs)).collect();
    let of = |side: &str, value: fn(&Value) -> &Value| {
        median(runs.iter().filter_map(|run| value(&run[side]).as_f64()))
    };
    json!({
        "scenario": "swap",
        "kernel": probe::probe().kernel.release,
        "faults": plan.faults.map(FaultMode::name),
        "limit_bytes": plan.limit,
        "data_bytes": plan.data,
        "swap_dir": plan.disk.dir(),
        "pool_max_percent": plan.disk.pool_max,
        "seconds_per_row": plan.seconds,
        "zswap_store_peak_bytes": of("zswap", |side| &side["store_peak_bytes"]),
        "peak_resident_bytes": of("weir", |side| &side["counters"]["weir_peak_resident_bytes"]),
        "traffic": traffic_report(runs),
        "second_pass_written_bytes": {
            "weir": of("weir", |side| &last_pass(side)["own_bytes"]),
            "file": of("file", |side| &last_pass(side)["kernel_swap_bytes"]),
        },
        "notes": notes,
        "tables": tables,
        "runs": runs,
    })
}

/// What the last of the read-only passes wrote.
fn last_pass(side: &Value) -> &Value {
    &side["printed"]["phases"]["seqread"]["written_by_pass"][PASSES - 1]
}

/// Medians of every number of the traffic.
fn traffic_report(runs: &[Value]) -> Value {
    let first = runs.first().and_then(|run| run["weir"]["traffic"].as_object().cloned());
    let keys = first.unwrap_or_default().into_iter().map(|(key, _)| key);
    let medians = keys.map(|key| {
        let values = runs.iter().filter_map(|run| run["weir"]["traffic"][&key].as_f64());
        (key.clone(), json!(median(values)))
    });
    Value::Object(medians.collect())
}

fn section_report(section: &Section, runs: &[Value]) -> Value {
    let rows = row::report(section.rows, runs, section.rival, section.weir);
    let description = runs.iter().find_map(|run| run[section.rival]["description"].as_str());
    json!({ "rival": section.rival, "description": description, "rows": rows })
}

fn human(report: &Value) -> String {
    let list = |field: &str| report[field].as_array().cloned().unwrap_or_default();
    let text_of = |field: &str| report[field].as_str().unwrap_or("?").to_owned();
    let mut text = format!(
        "Swap file: {} of data, 40 % random bytes per page; medians of {} run(s), Linux {}\n\
         weir: faults {}, RAM: {} budget, {} peak; small pool: at most {} %; files in {}\n",
        size(&report["data_bytes"]),
        list("runs").len(),
        text_of("kernel"),
        text_of("faults"),
        size(&report["limit_bytes"]),
        size(&report["peak_resident_bytes"]),
        report["pool_max_percent"],
        text_of("swap_dir"),
    );
    if report["traffic"]["pages_out"].is_number() {
        text += &traffic_lines(&report["traffic"]);
    }
    let passes = &report["second_pass_written_bytes"];
    text += &format!(
        "second read-only pass wrote: small pool {}, kernel's file {}\n",
        size(&passes["weir"]),
        size(&passes["file"])
    );
    for note in list("notes").iter().filter_map(Value::as_str) {
        text += &format!("note: {note}\n");
    }
    for (section, found) in SECTIONS.iter().zip(list("tables")) {
        let title = found["description"].as_str().unwrap_or("not measured");
        text += &format!("\nkernel: {title}\n");
        if section.rival == "zswap" {
            text += &format!(
                "RAM that zswap took outside the limit: {}; 'equal RAM' is Weir with as much more\n",
                size(&report["zswap_store_peak_bytes"])
            );
        }
        text += &row::grid(section.rows, &found["rows"], section.weir);
    }
    text
}

fn traffic_lines(traffic: &Value) -> String {
    format!(
        "small pool: wrote {} for {} pages out: {} bytes per byte evicted, {} requests per page of {} each\n\
         small pool: read {} for {} pages in: {} requests per page of {} each; {} pages went out without a write\n",
        size(&traffic["bytes_written"]),
        number(&traffic["pages_out"]),
        number(&traffic["bytes_written_per_byte_evicted"]),
        number(&traffic["write_requests_per_page"]),
        size(&traffic["write_request_bytes"]),
        size(&traffic["bytes_read"]),
        number(&traffic["pages_in"]),
        number(&traffic["read_requests_per_page"]),
        size(&traffic["read_request_bytes"]),
        number(&traffic["clean_pages_out"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{DiskArgs, ModeArgs, SizedArgs};

    fn side(rate: f64, second_pass: u64) -> Value {
        json!({
            "description": "somehow",
            "printed": { "phases": {
                "randread@16": { "ops_per_s": rate, "p999_ns": 1e9 / rate },
                "seqread": { "mb_per_s": 100.0, "written_by_pass": [
                    { "own_bytes": 7, "kernel_swap_bytes": 8 },
                    { "own_bytes": second_pass, "kernel_swap_bytes": 4096 },
                ] },
            } },
            "traffic": { "bytes_written_per_byte_evicted": rate / 1e6 },
        })
    }

    fn plan() -> Plan {
        let args = SwapArgs {
            sized: SizedArgs::one_quick_run(),
            mode: ModeArgs { faults: Some(FaultMode::Inline) },
            disk: DiskArgs { dir: "/var/tmp".into(), pool_max: None },
        };
        Plan::new(&args).unwrap()
    }

    fn row<'a>(report: &'a Value, table: usize, field: &str) -> &'a Value {
        let rows = report["tables"][table]["rows"].as_array().unwrap();
        rows.iter().find(|r| r["phase"] == "randread@16" && r["field"] == field).unwrap()
    }

    #[test]
    fn each_rival_has_its_table_and_gains_are_of_medians() {
        let run = |file: f64, weir: f64| json!({ "file": side(file, 0), "zswap": side(2.0 * file, 0), "weir": side(weir, 0), "weir_default": side(weir, 0), "weir_ram": side(2.0 * weir, 0) });
        let report = report(&plan(), &[run(1e5, 2e5), run(1e5, 3e5), run(1e5, 9e5)], &[]);
        let of = |table: usize, field: &str, side: &str| {
            let value = &row(&report, table, field)[side];
            (value["ratio"].as_f64().unwrap().round(), value["reached"].as_bool().unwrap())
        };
        assert_eq!(of(0, "ops_per_s", "weir"), (3.0, true));
        assert_eq!(of(0, "ops_per_s", "weir_default"), (3.0, true));
        assert_eq!(of(0, "p999_ns", "weir"), (3.0, false));
        assert_eq!(of(1, "ops_per_s", "weir_default"), (2.0, false));
        assert_eq!(of(1, "ops_per_s", "weir_ram"), (3.0, true));
        assert_eq!(report["traffic"]["bytes_written_per_byte_evicted"], 0.3);
    }

    #[test]
    fn the_second_read_only_passes_are_shown_for_both_sides() {
        let report = report(&plan(), &[json!({ "file": side(1e5, 0), "weir": side(1e5, 0) })], &[]);
        assert_eq!(report["second_pass_written_bytes"], json!({ "weir": 0.0, "file": 4096.0 }));
        assert!(
            human(&report).contains("second read-only pass wrote: small pool 0 B, kernel's file 4 KiB"),
            "{}",
            human(&report)
        );
    }

    #[test]
    fn a_missing_rival_leaves_dashes_and_its_note() {
        let report = report(&plan(), &[json!({ "weir": side(1e5, 0) })], &["no root".to_owned()]);
        assert!(row(&report, 0, "ops_per_s")["weir"]["ratio"].is_null());
        let text = human(&report);
        assert!(text.contains("note: no root") && text.contains("not measured"), "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 110, "{widest}: {text}");
    }
}
