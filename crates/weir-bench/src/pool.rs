//! `weir bench pool`: twice as much data as the limit, all of it compressed in RAM, no disk.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::{equal_ram, pager_name, weir_missing};
use weir_cli::term;
use weir_os::probe::{self, FaultMode, Probe};

use super::Findings;
use super::disk::{self, size};
use super::row::{self, Row, latency, part, rate, throughput};
use super::{RIVAL_ATTEMPTS, median, oom_note};
use crate::cli::{CommonBenchArgs, PoolArgs};
use crate::workload;

/// Data per byte of limit.
pub(super) const DATA_PER_LIMIT: u64 = 2;
/// The swap device is a bit larger than the data: nothing may fall back to another swap area.
pub(super) const SWAP_SLACK_BYTES: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(600);
/// Order matters: random accesses follow a sequential pass, as in the kernel's own figures.
const PHASES: &str = "fill,seqread,randread@1,randread@2,randwords@1,randwrite@1,zipf@1,zipf@2";

/// Passes of the sequential read. In the first the pages that the fill left in RAM go out, changed; after it
/// nobody changes any.
const PASSES: u32 = 3;

const ROWS: [Row; 21] = [
    throughput("fill", "fill", 1.9),
    part("sequential read", "seqread", "first_mb_per_s", 5.0),
    part("  again, twice", "seqread", "again_mb_per_s", 5.0),
    rate("random read", "randread@1", 2.0),
    latency("  p99", "randread@1", "p99_ns", 5.0),
    latency("  p99.9", "randread@1", "p999_ns", 10.0),
    rate("random read, 2 threads", "randread@2", 2.0),
    latency("  p99", "randread@2", "p99_ns", 5.0),
    latency("  p99.9", "randread@2", "p999_ns", 10.0),
    rate("random read, 4 words", "randwords@1", 1.3),
    latency("  p99", "randwords@1", "p99_ns", 5.0),
    latency("  p99.9", "randwords@1", "p999_ns", 10.0),
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

/// Sizes and switches after defaults and checks.
struct Plan {
    limit: u64,
    data: u64,
    runs: u32,
    seconds: f64,
}

impl Plan {
    fn new(args: &PoolArgs) -> anyhow::Result<Plan> {
        let limit = args.sized.limit(256)?;
        let data = limit * DATA_PER_LIMIT;
        Ok(Plan { limit, data, runs: args.sized.common.runs(), seconds: args.sized.seconds(2.0)? })
    }
}

/// The modes to measure: the one asked for, else all that this machine allows, with a note on each that it
/// refuses.
fn modes(asked: Option<FaultMode>, p: &Probe, notes: &mut Vec<String>) -> anyhow::Result<Vec<FaultMode>> {
    if let Some(mode) = asked {
        return Ok(vec![mode]); // `weir run` says what is wrong with it
    }
    let mut modes = FaultMode::ALL.to_vec();
    modes.retain(|mode| {
        let refused = match mode {
            FaultMode::Inline => p.inline_faults.obstacle().map(|obstacle| obstacle.to_string()),
            FaultMode::Thread => (!p.thread_faults()).then(|| "no permission for userfaultfd".to_owned()),
        };
        notes.extend(refused.iter().map(|why| format!("without --faults {}: {why}", mode.name())));
        refused.is_none()
    });
    ensure!(!modes.is_empty(), "no way to serve faults here: {}; see weir doctor", notes.join("; "));
    Ok(modes)
}

/// What is to be measured: Weir's ways to serve faults, and the kernel's swap on compressed RAM, which takes
/// `data` bytes beside the limit. What cannot be had is said in `notes`; without Weir the error names
/// `others`, which could be measured alone.
pub(super) fn contestants(
    common: &CommonBenchArgs,
    faults: Option<FaultMode>,
    (limit, data): (u64, u64),
    others: &str,
    notes: &mut Vec<String>,
) -> anyhow::Result<(Vec<FaultMode>, Option<Rival>)> {
    let mut weir = Vec::new();
    if !common.rival_only {
        if let Some(why) = weir_missing() {
            anyhow::bail!("{why}\n(--rival-only measures {others})");
        }
        weir = modes(faults, probe::probe(), notes)?;
    }
    let rival = match common.no_rival {
        true => None,
        false => Rival::set_up(Area::Zram, limit, data + SWAP_SLACK_BYTES)
            .inspect_err(|e| notes.push(format!("without the kernel's swap: {e:#}")))
            .ok(),
    };
    Ok((weir, rival))
}

/// Measures.
pub fn pool(args: &PoolArgs) -> anyhow::Result<Findings> {
    let plan = Plan::new(args)?;
    let mut notes = Vec::new();
    let sizes = (plan.limit, plan.data);
    let (weir, rival) =
        contestants(&args.sized.common, args.mode.faults, sizes, "the other sides", &mut notes)?;
    let description = rival.as_ref().map(|r| r.description.clone());
    let runs = measure(&plan, rival.as_ref(), &weir)?;
    drop(rival);
    notes.extend(oom_note(&runs));
    let report = report(&plan, description.as_deref(), &weir, &runs, &notes);
    Ok(Findings::new(report, args.sized.common.json, human))
}

/// Interleaved: each run measures all sides, so that a slow minute of the machine hits all of them.
fn measure(plan: &Plan, rival: Option<&Rival>, weir: &[FaultMode]) -> anyhow::Result<Vec<Value>> {
    let (bytes, seconds, passes) = (plan.data.to_string(), plan.seconds.to_string(), PASSES.to_string());
    let job =
        workload::job(&[PHASES, "--bytes", &bytes, "--seconds", &seconds, "--passes", &passes], DEADLINE)?;
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        let mut run = json!({});
        let mut budget = equal_ram(plan.limit, None);
        if let Some(rival) = rival {
            term::progress(&format!("run {number} of {}: kernel swap", plan.runs));
            let result = job.run_rival(rival, RIVAL_ATTEMPTS)?;
            budget = equal_ram(plan.limit, Some(&result));
            run["rival"] = result.to_json();
        }
        for mode in weir {
            let side = mode.name();
            term::progress(&format!("run {number} of {}: weir, faults {side}", plan.runs));
            let (outcome, counters) = job.run_weir(budget, Some(*mode))?;
            run[side] = outcome.to_json();
            run[side]["budget_bytes"] = json!(budget);
            run[side]["pager"] = json!(pager_name(&counters));
            run[side]["counters"] = json!(counters);
        }
        term::progress(&format!("run {number} of {}: native", plan.runs));
        run["native"] = job.run_native()?.to_json();
        runs.push(run);
    }
    Ok(runs)
}

fn report(
    plan: &Plan,
    description: Option<&str>,
    weir: &[FaultMode],
    runs: &[Value],
    notes: &[String],
) -> Value {
    let sides: Vec<row::Side<'_>> = weir.iter().map(|mode| (mode.name(), mode.name())).collect();
    let rows = row::report(&ROWS, runs, "rival", &sides);
    let mut report = json!({
        "scenario": "pool",
        "kernel": probe::probe().kernel.release,
        "rival": description,
        "faults": weir.iter().map(|mode| mode.name()).collect::<Vec<_>>(),
        "limit_bytes": plan.limit,
        "data_bytes": plan.data,
        "seconds_per_row": plan.seconds,
        "store_peak_bytes": median(runs.iter().filter_map(|run| run["rival"]["store_peak_bytes"].as_f64())),
        "notes": notes,
        "rows": rows,
        "runs": runs,
    });
    for side in weir.iter().map(|mode| mode.name()) {
        let of = |value: fn(&Value) -> &Value| median(runs.iter().filter_map(|r| value(&r[side]).as_f64()));
        report[side] = json!({
            "pager": runs.first().map(|run| run[side]["pager"].clone()),
            "budget_bytes": of(|run| &run["budget_bytes"]),
            "peak_resident_bytes": of(|run| &run["counters"]["weir_peak_resident_bytes"]),
        });
    }
    report
}

fn human(report: &Value) -> String {
    let list = |field: &str| report[field].as_array().cloned().unwrap_or_default();
    let faults = list("faults");
    let modes: Vec<&str> = faults.iter().filter_map(Value::as_str).collect();
    let mut text = format!(
        "Pool tier: {} of data, 40 % random bytes per page; medians of {} run(s), Linux {}\n",
        size(&report["data_bytes"]),
        list("runs").len(),
        report["kernel"].as_str().unwrap_or("?"),
    );
    text += &disk::rival_lines(report);
    for mode in &modes {
        let side = &report[*mode];
        text += &format!(
            "weir {mode}, RAM: {} budget, {} peak; pages travel by {}\n",
            size(&side["budget_bytes"]),
            size(&side["peak_resident_bytes"]),
            side["pager"].as_str().unwrap_or("?")
        );
    }
    for note in list("notes").iter().filter_map(Value::as_str) {
        text += &format!("note: {note}\n");
    }
    if !modes.is_empty() && report["rival"].is_string() {
        text += "gain: how many times better than the kernel\n";
    }
    let sides: Vec<row::Side<'_>> = modes.iter().map(|mode| (*mode, *mode)).collect();
    text + "\n" + &row::grid(&ROWS, &report["rows"], &sides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{ModeArgs, SizedArgs};

    fn side(rate: f64, p99: f64) -> Value {
        json!({ "printed": { "phases": { "randread@1": { "ops_per_s": rate, "p99_ns": p99 } } } })
    }

    fn run(rival_rate: f64, weir_rate: f64, rival_p99: f64, weir_p99: f64) -> Value {
        let thread = side(weir_rate / 4.0, weir_p99 * 4.0);
        json!({ "rival": side(rival_rate, rival_p99), "inline": side(weir_rate, weir_p99), "thread": thread })
    }

    fn plan() -> Plan {
        Plan { limit: 64 << 20, data: 128 << 20, runs: 3, seconds: 1.0 }
    }

    fn row<'a>(report: &'a Value, field: &str) -> &'a Value {
        let rows = report["rows"].as_array().unwrap();
        rows.iter().find(|r| r["phase"] == "randread@1" && r["field"] == field).unwrap()
    }

    #[test]
    fn gains_are_of_medians_and_say_how_much_better_each_mode_is() {
        let runs = [run(100.0, 300.0, 5e5, 1e5), run(200.0, 400.0, 6e5, 1e5), run(300.0, 900.0, 9e5, 3e5)];
        let report = report(&plan(), Some("zram"), &FaultMode::ALL, &runs, &[]);
        let of = |field: &str, mode: &str| {
            let side = &row(&report, field)[mode];
            (side["ratio"].as_f64(), side["reached"].as_bool())
        };
        assert_eq!(of("ops_per_s", "inline"), (Some(2.0), Some(true)));
        assert_eq!(of("ops_per_s", "thread"), (Some(0.5), Some(false)));
        assert_eq!(of("p99_ns", "inline"), (Some(6.0), Some(true)));
        assert_eq!(of("p99_ns", "thread"), (Some(1.5), Some(false)));
    }

    #[test]
    fn both_modes_fit_in_100_columns_and_one_mode_shows_one() {
        let large = run(999_999_000.0, 999_999_000.0, 5e8, 1e5);
        let both = human(&report(&plan(), Some("zram"), &FaultMode::ALL, std::slice::from_ref(&large), &[]));
        let widest = both.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 100 && both.contains("inline gain"), "{widest}: {both}");
        let one = human(&report(&plan(), Some("zram"), &[FaultMode::Thread], &[large], &[]));
        assert!(one.contains("thread gain") && !one.contains("inline"), "{one}");
    }

    #[test]
    fn a_missing_side_leaves_dashes_not_numbers() {
        let runs = [json!({ "native": side(5e6, 1.0) })];
        let report = report(&plan(), None, &[FaultMode::Inline], &runs, &["no root".to_owned()]);
        assert!(row(&report, "ops_per_s")["inline"]["ratio"].is_null());
        let text = human(&report);
        assert!(text.contains("note: no root") && text.contains("5000"), "{text}");
    }

    #[test]
    fn modes_that_the_machine_refuses_are_left_out_with_a_note() {
        let mut p = probe::probe().clone();
        (p.userfaultfd.syscall, p.userfaultfd.features) = (Ok(()), Ok(u64::MAX));
        p.inline_faults.processor = false;
        let mut notes = Vec::new();
        assert_eq!(modes(None, &p, &mut notes).unwrap(), [FaultMode::Thread]);
        assert!(notes.len() == 1 && notes[0].contains("inline"), "{notes:?}");
        assert_eq!(modes(Some(FaultMode::Inline), &p, &mut notes).unwrap(), [FaultMode::Inline]);
        let refused = Err(probe::Errno(1));
        (p.userfaultfd.syscall, p.userfaultfd.device) = (refused, refused);
        assert!(modes(None, &p, &mut Vec::new()).unwrap_err().to_string().contains("weir doctor"));
    }

    #[test]
    fn sizes_below_the_minimum_are_refused() {
        let args = |size: &str| PoolArgs {
            sized: SizedArgs { size: Some(size.to_owned()), ..SizedArgs::one_quick_run() },
            mode: ModeArgs { faults: None },
        };
        assert!(Plan::new(&args("1M")).is_err());
        assert!(Plan::new(&args("15E")).is_err());
        assert_eq!(Plan::new(&args("32M")).unwrap().data, 64 << 20);
    }
}
