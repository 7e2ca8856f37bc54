//! Counters as Prometheus reads them. Names, units and help come from the table that `docs/statistics.md` is
//! made of.

use std::fmt::Write;

use weir::engine::statistics::about::about;

use crate::live::Shown;

/// Content types of the format of old, and of OpenMetrics.
pub const CONTENT_TYPES: [&str; 2] = [
    "text/plain; version=0.0.4; charset=utf-8",
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
];

/// What a fault took at most, for parts of all faults.
const QUANTILES: [(&str, &str); 3] =
    [("weir_fault_p50_ns", "0.5"), ("weir_fault_p99_ns", "0.99"), ("weir_fault_p999_ns", "0.999")];
const DURATION: &str = "weir_fault_duration_seconds";

/// Everything that processes show, in one of the two formats.
pub fn text(all: &[Shown], open_metrics: bool) -> String {
    let mut text = String::new();
    for about in about().filter(|about| about.unit != "address") {
        if QUANTILES.iter().any(|(key, _)| *key == about.key) {
            continue;
        }
        let counter = about.is_counter();
        let name = name_of(about.key, about.unit);
        let (sample, kind) =
            if counter { (format!("{name}_total"), "counter") } else { (name.clone(), "gauge") };
        let family = if open_metrics { &name } else { &sample };
        head(&mut text, family, kind, &about.text());
        for shown in all {
            let Some(value) = shown.find(about.key) else { continue };
            let _ = writeln!(text, "{sample}{{{}}} {}", labels(shown), number(value, about.unit));
        }
    }
    head(&mut text, DURATION, "summary", "How long faults took, since the process began.");
    for shown in all {
        for (key, quantile) in QUANTILES {
            let Some(value) = shown.find(key) else { continue };
            let labels = labels(shown);
            let _ = writeln!(text, "{DURATION}{{{labels},quantile=\"{quantile}\"}} {}", number(value, "ns"));
        }
    }
    if open_metrics {
        text += "# EOF\n";
    }
    text
}

fn head(text: &mut String, family: &str, kind: &str, help: &str) {
    let help = help.replace('\\', r"\\");
    let _ = writeln!(text, "# HELP {family} {help}\n# TYPE {family} {kind}");
}

/// Of one prefix, and of base units.
fn name_of(key: &str, unit: &str) -> String {
    let key = if key.starts_with("weir_") { key.to_owned() } else { format!("weir_{key}") };
    match key.strip_suffix("_ns") {
        Some(stem) if unit == "ns" => format!("{stem}_seconds"),
        _ => key,
    }
}

fn number(value: u64, unit: &str) -> String {
    if unit == "ns" {
        format!("{}.{:09}", value / 1_000_000_000, value % 1_000_000_000)
    } else {
        value.to_string()
    }
}

fn labels(shown: &Shown) -> String {
    let name = shown.program.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("pid=\"{}\",name=\"{name}\"", shown.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn shown() -> Shown {
        let values = [
            ("pgfault", 7),
            ("weir_waited_ns", 1_500_000_000),
            ("weir_budget_bytes", 64 << 20),
            ("weir_fault_p99_ns", 12_000),
            ("weir_unknown", 1),
        ];
        let values = values.map(|(key, value)| (key.to_owned(), value)).to_vec();
        let program = "sh \"a\\b\"".to_owned();
        Shown { pid: 4711, program, age: Duration::ZERO, ran: Duration::ZERO, values }
    }

    #[test]
    fn counters_levels_and_waits_have_names_and_units_of_prometheus() {
        let text = text(&[shown()], false);
        let labels = r#"pid="4711",name="sh \"a\\b\"""#;
        for line in [
            "# TYPE weir_pgfault_total counter".to_owned(),
            format!("weir_pgfault_total{{{labels}}} 7"),
            format!("weir_waited_seconds_total{{{labels}}} 1.500000000"),
            "# TYPE weir_budget_bytes gauge".to_owned(),
            format!("weir_budget_bytes{{{labels}}} 67108864"),
            format!("weir_fault_duration_seconds{{{labels},quantile=\"0.99\"}} 0.000012000"),
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
        assert!(!text.contains("weir_unknown") && !text.contains("_ns"), "{text}");
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "each once");
    }

    #[test]
    fn openmetrics_names_families_without_total_and_has_an_end() {
        let text = text(&[shown()], true);
        assert!(text.contains("# TYPE weir_pgfault counter\nweir_pgfault_total{"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
