//! A scenario of `weir bench`: run, printed, drawn.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;
use weir_cli::{interrupt, term};

use crate::cli::Scenario;
use crate::{
    ablate, codec, files, founding, gate, numpy, passes, plot, policy, pool, record, report, rules, scaling,
    swap,
};

/// What a scenario found.
pub struct Findings {
    report: Value,
    /// What it says for people.
    text: String,
    as_json: bool,
}

impl Findings {
    /// As JSON, or as `human` says it.
    pub fn new(report: Value, as_json: bool, human: impl FnOnce(&Value) -> String) -> Findings {
        let text = human(&report);
        Findings { report, text, as_json }
    }
}

/// Runs a scenario, prints its table or its JSON, and draws and records it if that is asked for.
pub fn bench(scenario: &Scenario, plot: Option<&Path>, record: Option<&Path>) -> anyhow::Result<ExitCode> {
    interrupt::catch_signals()?;
    if let Some(folder) = plot {
        // Said before hours of measuring, not after.
        std::fs::create_dir_all(folder).with_context(|| format!("--plot {}", folder.display()))?;
    }
    let findings = match scenario {
        Scenario::Pool(args) => pool::pool(args),
        Scenario::Swap(args) => swap::swap(args),
        Scenario::Files(args) => files::files(args),
        Scenario::Founding(args) => founding::founding(args),
        Scenario::Scaling(args) => scaling::scaling(args),
        Scenario::Numpy(args) => numpy::numpy(args),
        Scenario::Passes(args) => passes::passes(args),
        Scenario::Gate(args) => gate::gate(args),
        Scenario::Policy(args) => policy::policy(args),
        Scenario::Codec(args) => codec::codec(args),
        Scenario::Ablate(args) => ablate::ablate(args),
        Scenario::Report(args) => report::report(args),
        Scenario::Rules(args) => Ok(rules::rules(args)),
    }?;
    match findings.as_json {
        true => term::print(&format!("{:#}\n", findings.report))?,
        false => term::print(&findings.text)?,
    }
    if let Some(file) = record {
        record::append(file, &findings.report, &findings.text, scenario.is_quick())?;
    }
    if let Some(folder) = plot {
        for chart in plot::charts(&findings.report) {
            let path = chart.draw(folder)?;
            term::progress(&format!("drawn: {}", path.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How often the kernel's side may be repeated after the kernel has killed it.
pub const RIVAL_ATTEMPTS: u64 = 10;

/// What to say when the kernel killed its own side's programs, or would have.
pub fn oom_note(runs: &[Value]) -> Vec<String> {
    let sum = |field: &str| {
        let sides = runs.iter().filter_map(Value::as_object).flat_map(serde_json::Map::values);
        sides.filter_map(|side| side[field].as_u64()).sum::<u64>()
    };
    let mut notes = Vec::new();
    let (kills, reliefs) = (sum("oom_kills"), sum("oom_reliefs"));
    if kills > 0 {
        notes.push(format!("under its own swap the kernel killed the program {kills} time(s) for want of memory; those runs were repeated"));
    }
    if reliefs > 0 {
        notes.push(format!("under its own swap the kernel would have killed the program {reliefs} time(s); it got room instead, which counts as its RAM"));
    }
    notes
}

/// The notes of a report, a line each.
pub fn note_lines(report: &Value) -> String {
    let notes = report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    notes.map(|note| format!("note: {note}\n")).collect()
}

/// The middle value; the mean of the two middle ones for an even number. `None` for no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{median, oom_note};

    #[test]
    fn what_the_kernel_did_to_its_own_side_is_said_for_all_sides_together() {
        let run = json!({ "file": { "oom_kills": 2, "oom_reliefs": 0 }, "zswap": { "oom_kills": 0, "oom_reliefs": 7 } });
        let notes = oom_note(&[run.clone(), run]);
        assert_eq!(notes.len(), 2);
        assert!(notes[0].contains("killed the program 4 time(s)"), "{notes:?}");
        assert!(notes[1].contains("killed the program 14 time(s)"), "{notes:?}");
        assert!(oom_note(&[json!({ "rival": { "oom_kills": 0 } })]).is_empty());
    }

    #[test]
    fn the_median_is_the_middle_of_the_sorted_values() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([7.0]), Some(7.0));
        assert_eq!(median([]), None);
    }
}
