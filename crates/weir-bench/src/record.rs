//! `--record FILE`: what a scenario found, as a line of JSON with the machine and the day.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use crate::machine::Machine;

/// Adds a line. Single runs are left out: medians are what is kept.
pub fn append(path: &Path, report: &Value, text: &str, quick: bool) -> anyhow::Result<()> {
    let mut report = report.clone();
    if let Some(fields) = report.as_object_mut() {
        fields.remove("runs");
    }
    let line = json!({ "machine": Machine::this(), "quick": quick, "report": report, "text": text });
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.with_context(|| format!("--record {}", path.display()))?;
    Ok(file.write_all(format!("{line}\n").as_bytes())?)
}

/// The last line of each scenario, in the order of the file.
pub fn read(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    let lines = lines.with_context(|| path.display().to_string())?;
    let scenario = |line: &Value| line["report"]["scenario"].as_str().map(str::to_owned);
    let is_last = |(i, line): &(usize, &Value)| lines[i + 1..].iter().all(|l| scenario(l) != scenario(line));
    Ok(lines.iter().enumerate().filter(is_last).map(|(_, line)| line.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_of_a_scenario_counts_and_single_runs_are_left_out() {
        let path = std::env::temp_dir().join(format!("weir-record-{}.jsonl", std::process::id()));
        for (scenario, value) in [("pool", 1), ("gate", 2), ("pool", 3)] {
            let report = json!({ "scenario": scenario, "rows": [value], "runs": [1, 2, 3] });
            append(&path, &report, "a table\n", true).unwrap();
        }
        let found = read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let reports: Vec<&Value> = found.iter().map(|line| &line["report"]).collect();
        assert_eq!(
            reports,
            [&json!({ "scenario": "gate", "rows": [2] }), &json!({ "scenario": "pool", "rows": [3] })]
        );
        assert_eq!((&found[0]["text"], &found[0]["quick"]), (&json!("a table\n"), &json!(true)));
        assert!(found[0]["machine"]["kernel"].is_string());
    }
}
