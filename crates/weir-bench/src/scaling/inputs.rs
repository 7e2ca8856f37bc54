//! What the model is fed with, out of the counters of the runs; and what of it is assumed.

use std::collections::BTreeMap;

use serde_json::Value;
use weir::limits::STORE_PER_HOLD;

use super::machine::Costs;
use super::model::Inputs;
use super::phase;
use crate::founding::ratio;
use crate::median;

/// A hold of a lock that could not be timed. The pool's is some hundreds of ns, with misses on rows that the
/// frames' lock does not have.
const HOLD_NS: f64 = 100.0;
/// Finding the thread, queueing, waking: some tens of ns.
const SIGNAL_HOLD_NS: f64 = 60.0;
/// On a machine with one processor; about what a machine with two shows.
const LINE_NS: f64 = 50.0;
const FLUSH_NS: f64 = 1500.0;

/// Inputs, and the names of those that nobody measured.
pub struct Found {
    /// Numbers.
    pub inputs: Inputs,
    /// Fields.
    pub assumed: Vec<&'static str>,
}

/// What is shown of the inputs: name, field, unit.
pub const SHOWN: [(&str, &str, &str); 13] = [
    ("processor time of all threads", "access_ns", "ns"),
    ("faults", "faults", ""),
    ("lifts (address space locked)", "lifts", ""),
    ("a lift, its flush included", "lift_ns", "ns"),
    ("calls that give frames back", "sheds", ""),
    ("holds of the pool's lock", "pool_holds", ""),
    ("a hold of the pool's lock", "pool_hold_ns", "ns"),
    ("holds of the frames' lock", "frame_holds", ""),
    ("a hold of the frames' lock", "frame_hold_ns", "ns"),
    ("a hold of the kernel's lock for signals, 4 a fault", "signal_hold_ns", "ns"),
    ("the way of a shared word to another processor", "line_ns", "ns"),
    ("a flush, each other processor: the one who asks", "flush_send_ns", "ns"),
    ("a flush, each other processor: itself", "flush_receive_ns", "ns"),
];

/// Counters by name.
type Counts = BTreeMap<String, f64>;
/// A number out of the counters and the accesses of a run's reads.
type Figure<'a> = dyn Fn(&Counts, f64) -> Option<f64> + 'a;

/// The counters of a run, less those of the run of the same side without reads. `None` for one that has none.
pub fn of_reads(runs: &[Value], run: &Value) -> Option<Counts> {
    let same =
        |other: &&Value| other["threads"] == 0 && other["side"] == run["side"] && other["run"] == run["run"];
    let without = &runs.iter().find(same)?["counters"];
    let more = |(key, value): (&String, &Value)| {
        let rest = value.as_f64()? - without[key].as_f64().unwrap_or(0.0);
        Some((key.clone(), rest.max(0.0)))
    };
    Some(run["counters"].as_object()?.iter().filter_map(more).collect())
}

/// Processor time of a run's reads, ns each, of all its threads.
pub fn processor_ns(run: &Value, threads: u32) -> Option<f64> {
    let found = &run["printed"]["phases"][phase(threads)];
    ratio(found["processor_s"].as_f64().map(|s| s * 1e9), found["all_ops"].as_f64())
}

/// Medians over the inline runs with so many threads. `None` without such.
pub fn of_runs(runs: &[Value], threads: u32, costs: Option<Costs>) -> Option<Found> {
    let of = |value: &Figure<'_>| {
        let mine = runs.iter().filter(|run| run["side"] == "inline" && run["threads"] == threads);
        median(mine.filter_map(|run| {
            let accesses = run["printed"]["phases"][phase(threads)]["all_ops"].as_f64()?;
            value(&of_reads(runs, run)?, accesses)
        }))
    };
    let per_access = |key: &str| of(&|reads, accesses| Some(reads.get(key)? / accesses));
    let per_one = |ns: &str, n: &str| of(&|reads, _| ratio(reads.get(ns).copied(), reads.get(n).copied()));
    let mine = runs.iter().filter(|run| run["side"] == "inline" && run["threads"] == threads);
    let access_ns = median(mine.filter_map(|run| processor_ns(run, threads)))?;
    let mut assumed = vec!["frame_hold_ns", "signal_hold_ns"];
    let mut or_assumed = |measured: Option<f64>, name: &'static str, otherwise: f64| {
        measured.unwrap_or_else(|| {
            assumed.push(name);
            otherwise
        })
    };
    let stored = per_access("zswpout")?;
    let inputs = Inputs {
        processors: threads,
        access_ns,
        faults: per_access("pgfault")?,
        lifts: per_access("weir_lifts")?,
        lift_ns: per_one("weir_lift_ns", "weir_lifts").unwrap_or(0.0),
        sheds: per_access("weir_sheds")?,
        // A place is given up when a page comes in, and found when it goes out.
        pool_holds: per_access("zswpin")? + stored,
        pool_hold_ns: or_assumed(per_one("weir_pool_hold_ns", "weir_pool_holds"), "pool_hold_ns", HOLD_NS),
        frame_holds: stored / f64::from(STORE_PER_HOLD),
        frame_hold_ns: HOLD_NS,
        signal_hold_ns: SIGNAL_HOLD_NS,
        line_ns: or_assumed(costs.map(|c| c.line_ns), "line_ns", LINE_NS),
        flush_send_ns: or_assumed(costs.map(|c| c.flush_send_ns), "flush_send_ns", FLUSH_NS),
        flush_receive_ns: or_assumed(costs.map(|c| c.flush_receive_ns), "flush_receive_ns", FLUSH_NS),
    };
    Some(Found { inputs, assumed })
}
