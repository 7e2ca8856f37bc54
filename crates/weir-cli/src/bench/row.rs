//! Rows of the tables of `weir bench`: which number of which phase, its unit, and what is wanted of it.

use serde_json::Value;

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
