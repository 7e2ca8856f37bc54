//! What an ablation found, as a report, as a table and as the page of `docs/experiments`.

use serde_json::{Value, json};
use weir::config::rules::{Kind, Rule};
use weir_cli::compare::table;

use super::log::{Log, Record};
use super::set::{SECONDS, SET};
use super::verdict::{Found, Verdict};

/// How many times better a figure is with the rule than without it, of one run.
fn gain(record: &Record, figure: &str) -> Option<f64> {
    let (on, off) = (*record.on.get(figure)?, *record.off.get(figure)?);
    let (better, worse) = if figure == SECONDS { (off, on) } else { (on, off) };
    (worse > 0.0).then(|| better / worse)
}

/// A row for each rule that was left out.
pub fn report(log: &Log, missing: &[String]) -> Value {
    let measured = |rule: &&Rule| log.records.iter().any(|record| record.rule == rule.name());
    let rows: Vec<Value> = Rule::ALL.iter().filter(measured).map(|rule| row(log, *rule)).collect();
    let runs = log.records.iter().map(|record| record.round).max();
    json!({
        "scenario": "ablate", "machine": log.header.machine, "quick": log.header.quick, "runs": runs,
        "missing": missing, "rows": rows,
    })
}

fn row(log: &Log, rule: Rule) -> Value {
    let (mut figures, mut verdicts) = (Vec::new(), Vec::new());
    for scenario in &SET {
        let of_both = |r: &&Record| r.rule == rule.name() && r.scenario == scenario.name;
        let records: Vec<&Record> = log.records.iter().filter(of_both).collect();
        let failed = records.iter().filter(|record| record.failed.is_some()).count();
        for figure in scenario.figures() {
            let gains: Vec<f64> = records.iter().filter_map(|record| gain(record, figure)).collect();
            let Some(found) = Found::of(&gains) else { continue };
            verdicts.push(found.verdict());
            figures.push(json!({
                "scenario": scenario.name, "figure": figure, "gain": found.gain, "noise": found.noise,
                "runs": found.runs, "verdict": found.verdict().text(),
            }));
        }
        if failed > 0 {
            figures.push(json!({ "scenario": scenario.name, "figure": "ends", "failed": failed }));
            verdicts.push(Verdict::Pays);
        }
    }
    json!({
        "rule": rule.name(), "off": rule.off(), "loop": rule.kind() == Kind::Loop, "figures": figures,
        "verdict": Verdict::of_all(&verdicts).text(),
    })
}

/// Where a rule gains most, and where least.
fn extremes(row: &Value) -> [String; 2] {
    let figures = row["figures"].as_array().into_iter().flatten();
    let gain = |figure: &Value| figure["gain"].as_f64();
    let mut sorted: Vec<&Value> = figures.filter(|figure| gain(figure).is_some()).collect();
    sorted.sort_by(|a, b| gain(b).unwrap_or(0.0).total_cmp(&gain(a).unwrap_or(0.0)));
    [sorted.first(), sorted.last()].map(|figure| figure.map_or("-".to_owned(), |figure| shown(figure, true)))
}

/// `1.23x ± 0.04`, with the figure's name where that is wanted.
fn shown(figure: &Value, named: bool) -> String {
    let text = |field: &str| figure[field].as_str().unwrap_or("?").to_owned();
    let name = if named { format!(" {} {}", text("scenario"), text("figure")) } else { String::new() };
    match (figure["gain"].as_f64(), figure["noise"].as_f64()) {
        (Some(gain), Some(noise)) => format!("{gain:.2}x ± {noise:.2}{name}"),
        _ => format!("{} run(s) failed", figure["failed"]),
    }
}

/// The table on the terminal.
pub fn human(report: &Value) -> String {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or("?").to_owned();
    let lines: Vec<Vec<String>> = rows(report)
        .map(|row| {
            let [most, least] = extremes(row);
            vec![text(row, "rule"), most, least, text(row, "verdict")]
        })
        .collect();
    table::render(&["rule", "gains most", "gains least", "verdict"], &lines)
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    report["rows"].as_array().into_iter().flatten()
}

const EXPLAINED: &str = "
A gain is how many times better a figure is with the rule than without it: the median of the runs.
After ± stands the noise: three standard errors of that median, from the median absolute deviation, and
a hundredth at least. A rule pays where a figure gains more than the noise, or where a program fails
without the rule. It costs where it pays nowhere and a figure loses more.
";

/// The page of a report.
pub fn markdown(report: &Value) -> String {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or("?").to_owned();
    let mut page = format!(
        "# Ablation\n\n\
         Written by `make ablate`. Each rule was left out in turn, all else equal, up to {} time(s).\n\
         Measured on {}.\n",
        report["runs"].as_u64().unwrap_or(0),
        crate::machine::line(&report["machine"]),
    );
    if report["quick"] == true {
        page += "Measured with small sizes (`--quick`).\n";
    }
    page += EXPLAINED;
    for what in report["missing"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        page += &format!("\nNot measured: {what}.\n");
    }
    page += "\n| rule | without it | gains most | gains least | verdict |\n| - | - | - | - | - |\n";
    for row in rows(report) {
        let [most, least] = extremes(row);
        let name = text(row, "rule") + if row["loop"] == true { " (loop)" } else { "" };
        page += &format!("| {name} | {} | {most} | {least} | {} |\n", text(row, "off"), text(row, "verdict"));
    }
    for scenario in &SET {
        page += &of_scenario(report, scenario.name, scenario.what);
    }
    page
}

/// A scenario's figures for each rule.
fn of_scenario(report: &Value, name: &str, what: &str) -> String {
    let of = |row: &Value, figure: &str| {
        let mut all = row["figures"].as_array().into_iter().flatten();
        let found = all.find(|found| found["scenario"] == name && found["figure"] == figure);
        found.map_or("-".to_owned(), |found| shown(found, false))
    };
    let here = |row: &&Value| {
        row["figures"].as_array().into_iter().flatten().any(|figure| figure["scenario"] == name)
    };
    let Some(scenario) = SET.iter().find(|scenario| scenario.name == name) else { return String::new() };
    let lines: Vec<&Value> = rows(report).filter(here).collect();
    if lines.is_empty() {
        return String::new();
    }
    let figures: Vec<&str> = scenario.figures().collect();
    let mut text = format!("\n## {name}: {what}\n\n| rule | {} |\n", figures.join(" | "));
    text += &format!("| -{} |\n", " | -".repeat(figures.len()));
    for row in lines {
        let cells: Vec<String> = figures.iter().map(|figure| of(row, figure)).collect();
        text += &format!("| {} | {} |\n", row["rule"].as_str().unwrap_or("?"), cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ablate::log::Log;

    fn log_of(records: Vec<Record>) -> Log {
        let path = std::env::temp_dir().join(format!("weir-page-{}.jsonl", std::process::id()));
        let mut log = Log::open(&path, true).unwrap();
        std::fs::remove_file(&path).unwrap();
        log.records = records;
        log
    }

    #[test]
    fn each_rule_has_its_gains_and_a_verdict_and_seconds_count_the_other_way() {
        let mut records = Vec::new();
        for round in 1..=3 {
            records.push(Record::of("pool", "streams", round, &[("fill", 4.0)], &[("fill", 2.0)]));
            records.push(Record::of("sort", "loads", round, &[(SECONDS, 4.0)], &[(SECONDS, 2.0)]));
            records.push(Record::of("sort", "turns", round, &[(SECONDS, 2.0)], &[(SECONDS, 2.0)]));
        }
        let mut dies = Record::of("numpy", "spans", 1, &[(SECONDS, 1.0)], &[]);
        dies.failed = Some("killed".to_owned());
        records.push(dies);
        let report = report(&log_of(records), &["ruby is not here".to_owned()]);
        let verdicts: Vec<(&str, &str)> = rows(&report)
            .map(|row| (row["rule"].as_str().unwrap(), row["verdict"].as_str().unwrap()))
            .collect();
        let wanted = [("streams", "pays"), ("spans", "pays"), ("loads", "costs"), ("turns", "does not show")];
        assert_eq!(verdicts, wanted);
        let page = markdown(&report);
        for line in [
            "| streams | A fault brings its page alone and nothing runs ahead. | 2.00x ± 0.01 pool fill |",
            "| loads | 0.50x ± 0.01 |",
            "Not measured: ruby is not here.",
            "small sizes",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        assert!(human(&report).contains("2.00x ± 0.01 pool fill"));
        assert!(page.lines().all(|line| line.starts_with('|') || line.chars().count() <= 110), "{page}");
    }
}
