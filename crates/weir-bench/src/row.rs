//! Rows of the tables of `weir bench`: which number of which phase, its unit, and what is wanted of it.

use serde_json::{Value, json};
use weir_cli::compare::table;

use super::disk::times;
use super::median;

/// One row of the table: a number of one phase, and what is wanted of it.
#[derive(Debug)]
pub struct Row {
    /// Name in the table.
    pub label: &'static str,
    /// Phase of the workload.
    pub phase: &'static str,
    /// Its number.
    pub field: &'static str,
    /// From the field's unit to the one shown.
    pub scale: f64,
    /// Unit shown.
    pub unit: &'static str,
    /// Wanted ratio between Weir and the kernel; for latencies, how many times lower.
    pub target: f64,
    /// A latency.
    pub lower_is_better: bool,
}

/// Accesses per second.
pub const fn rate(label: &'static str, phase: &'static str, target: f64) -> Row {
    Row { label, phase, field: "ops_per_s", scale: 1e-3, unit: "k/s", target, lower_is_better: false }
}

/// Bytes per second.
pub const fn throughput(label: &'static str, phase: &'static str, target: f64) -> Row {
    Row { label, phase, field: "mb_per_s", scale: 1.0, unit: "MB/s", target, lower_is_better: false }
}

/// Bytes per second of a part of a phase.
pub const fn part(label: &'static str, phase: &'static str, field: &'static str, target: f64) -> Row {
    Row { label, phase, field, scale: 1.0, unit: "MB/s", target, lower_is_better: false }
}

/// A quantile of the time that an access takes.
pub const fn latency(label: &'static str, phase: &'static str, field: &'static str, target: f64) -> Row {
    Row { label, phase, field, scale: 1e-3, unit: "us", target, lower_is_better: true }
}

impl Row {
    /// This row's number of one side of one run.
    pub fn value(&self, run: Option<&Value>) -> Option<f64> {
        run?["printed"]["phases"][self.phase][self.field].as_f64()
    }

    /// The median of one side's numbers.
    pub fn median(&self, runs: &[Value], side: &str) -> Option<f64> {
        median(runs.iter().filter_map(|run| self.value(run.get(side))))
    }

    /// How many times better Weir is.
    pub fn ratio(&self, weir: f64, rival: f64) -> f64 {
        if self.lower_is_better { rival / weir } else { weir / rival }
    }
}

/// One of Weir's runs: its name in the report, and in the table.
pub type Side<'a> = (&'a str, &'a str);

/// The medians of every row: native, the rival's, and for each of Weir's sides its value, its gain, and
/// whether that is what was wanted.
pub fn report(rows: &[Row], runs: &[Value], rival: &str, weir: &[Side<'_>]) -> Value {
    let row_report = |row: &Row| {
        let of_rival = row.median(runs, rival);
        let mut json = json!({
            "label": row.label.trim(), "phase": row.phase, "field": row.field,
            "native": row.median(runs, "native"), "rival": of_rival,
            "target": row.target, "lower_is_better": row.lower_is_better,
        });
        for (side, _) in weir {
            let value = row.median(runs, side);
            let gain = value.zip(of_rival).map(|(weir, rival)| row.ratio(weir, rival));
            let reached = gain.map(|gain| gain >= row.target);
            json[*side] = json!({ "value": value, "ratio": gain, "reached": reached });
        }
        json
    };
    rows.iter().map(row_report).collect()
}

/// The table of a report's rows: values of every side, then the gains, then the gain wanted.
pub fn grid(rows: &[Row], report: &Value, weir: &[Side<'_>]) -> String {
    let gains: Vec<String> = weir.iter().map(|(_, name)| format!("{name} gain")).collect();
    let mut headers = vec!["", "unit", "native", "kernel"];
    headers.extend(weir.iter().map(|(_, name)| *name));
    headers.extend(gains.iter().map(String::as_str));
    headers.push("target");
    let line = |(row, values): (&Row, &Value)| {
        let show = |v: &Value| v.as_f64().map_or("-".to_owned(), |v| table::short(v * row.scale));
        let mut line = vec![row.label.to_owned(), row.unit.to_owned()];
        line.extend(["native", "rival"].map(|side| show(&values[side])));
        line.extend(weir.iter().map(|(side, _)| show(&values[*side]["value"])));
        line.extend(weir.iter().map(|(side, _)| times(&values[*side]["ratio"])));
        line.push(format!("{}x", row.target));
        line
    };
    let lines: Vec<Vec<String>> =
        rows.iter().zip(report.as_array().into_iter().flatten()).map(line).collect();
    table::render(&headers, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_ratio_above_one_is_better_for_rates_and_for_latencies() {
        let (rate, latency) = (rate("reads", "r", 1.0), latency("p99", "r", "p99_ns", 1.0));
        assert!((rate.ratio(4.0, 2.0) - 2.0).abs() < 1e-9);
        assert!((latency.ratio(4.0, 2.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_median_is_of_the_runs_that_have_the_side() {
        let side = |rate: f64| json!({ "printed": { "phases": { "r": { "ops_per_s": rate } } } });
        let runs =
            [json!({ "weir": side(1.0) }), json!({ "weir": side(3.0) }), json!({ "native": side(9.0) })];
        let row = rate("reads", "r", 1.0);
        assert_eq!((row.median(&runs, "weir"), row.median(&runs, "kernel")), (Some(2.0), None));
    }
}
