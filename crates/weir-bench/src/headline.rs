//! Weir beside the kernel in one table and one chart: a pair of bars for each row.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use plotters::prelude::*;
use serde_json::Value;
use weir_cli::compare::table::short;

use crate::plot;

/// File name of the chart, without its ending.
pub const NAME: &str = "headline";

const WIDTH: u32 = 900;
const ROW_HEIGHT: u32 = 34;
const LABELS_WIDTH: u32 = 260;
/// Caption, legend, axis.
const REST_HEIGHT: u32 = 110;
/// Share of a row that its bars take.
const BARS_SHARE: f64 = 0.7;

/// A figure of the kernel's and of Weir's.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was measured.
    pub label: String,
    /// Unit of both.
    pub unit: &'static str,
    /// The kernel's figure.
    pub kernel: f64,
    /// Weir's own figure.
    pub weir: f64,
    lower_is_better: bool,
}

impl Row {
    /// How many times as good Weir is.
    pub fn times(&self) -> f64 {
        if self.lower_is_better { self.kernel / self.weir } else { self.weir / self.kernel }
    }
}

/// Where a scenario has its rows, the field of Weir's figure there, and what stands before the label.
const SOURCES: [(&str, &str, &str, &str); 2] =
    [("pool", "/rows", "inline", "zram"), ("swap", "/tables/0/rows", "weir_default", "swap file")];

/// The rows of what was recorded.
pub fn rows(records: &[Value]) -> Vec<Row> {
    let of = |name: &str| records.iter().map(|r| &r["report"]).find(|report| report["scenario"] == name);
    let mut rows = Vec::new();
    for (scenario, at, side, before) in SOURCES {
        let found = of(scenario).and_then(|report| report.pointer(at)).and_then(Value::as_array);
        let (mut whole, mut phase) = ("", &Value::Null);
        for row in found.into_iter().flatten() {
            let label = row["label"].as_str().unwrap_or_default();
            // Further figures of one phase stand below its first.
            let part = *phase == row["phase"];
            let label_of_row = if part { format!("{whole}, {label}") } else { label.to_owned() };
            if !part {
                (whole, phase) = (label, &row["phase"]);
            }
            rows.extend(one(row, format!("{before}: {label_of_row}"), side));
        }
    }
    let numpy = of("numpy").and_then(|report| report["rows"].as_array()).into_iter().flatten();
    rows.extend(numpy.filter(|row| row["label"] == "total").filter_map(|row| {
        let (kernel, weir) = row["rival"].as_f64().zip(row["weir"].as_f64())?;
        let label = "numpy: fill, sort, scan".to_owned();
        Some(Row { label, unit: "s", kernel, weir, lower_is_better: true })
    }));
    rows
}

fn one(row: &Value, label: String, side: &str) -> Option<Row> {
    let (scale, unit) = match row["field"].as_str()? {
        "ops_per_s" => (1e-3, "k/s"),
        field if field.ends_with("_ns") => (1e-3, "us"),
        _ => (1.0, "MB/s"),
    };
    let (kernel, weir) = row["rival"].as_f64().zip(row[side]["value"].as_f64())?;
    let lower_is_better = row["lower_is_better"] == true;
    Some(Row { label, unit, kernel: kernel * scale, weir: weir * scale, lower_is_better })
}

/// Draws the chart into a folder. Returns the file's path.
pub fn draw(rows: &[Row], folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("{NAME}.svg"));
    draw_to(rows, &path).map_err(|e| anyhow!("{}: {e}", path.display()))?;
    let told: Vec<String> = rows.iter().map(|row| format!("{} {}x", row.label, short(row.times()))).collect();
    plot::tell(&path, "Weir beside the kernel's swap: how many times as good", &told.join("; "))?;
    Ok(path)
}

fn draw_to(rows: &[Row], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let height = ROW_HEIGHT * rows.len() as u32 + REST_HEIGHT;
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let times = || rows.iter().map(Row::times).chain([1.0]);
    let least = times().fold(f64::INFINITY, f64::min) / 2.0;
    let most = times().fold(0.0, f64::max) * 2.0;
    let n = rows.len() as f64;
    let mut chart = ChartBuilder::on(&root)
        .caption("Weir beside the kernel's swap, with as much RAM", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(LABELS_WIDTH)
        .build_cartesian_2d((least..most).log_scale(), 0.0..n)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_desc("times as good as the kernel (latencies and times: as short), logarithmic")
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{}x", short(*x)))
        .draw()?;
    let bar = BARS_SHARE / 2.0;
    for (i, row) in rows.iter().enumerate() {
        // The first row is the topmost.
        let top = n - i as f64 - (1.0 - BARS_SHARE) / 2.0;
        for (at, (value, figure)) in [(1.0, row.kernel), (row.times(), row.weir)].into_iter().enumerate() {
            let (high, low) = (top - bar * at as f64, top - bar * (at + 1) as f64);
            let colour = plot::COLOURS[at].filled();
            chart.draw_series([Rectangle::new([(least, low), (value, high)], colour)])?;
            let text = format!(" {} {}", short(figure), row.unit);
            chart.draw_series([Text::new(text, (value, high), ("sans-serif", 11))])?;
        }
        let (_, y) = chart.backend_coord(&(least, top));
        root.draw(&Text::new(row.label.clone(), (12, y + 4), ("sans-serif", 12)))?;
    }
    plot::legend(&root, &["the kernel's swap", "Weir"], (12, height as i32 - 24))?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_have_units_and_latencies_are_the_better_the_lower_they_are() {
        let row = |label: &str, field: &str, lower: bool, side: &str| {
            json!({ "label": label, "phase": "randread@1", "field": field, "lower_is_better": lower,
                    "rival": 100e3, side: { "value": 50e3 } })
        };
        let pool = json!({ "scenario": "pool", "rows": [
            row("random read", "ops_per_s", false, "inline"), row("p99", "p99_ns", true, "inline"),
            json!({ "label": "fill", "field": "mb_per_s", "rival": null, "inline": { "value": 1.0 } }),
        ] });
        let numpy =
            json!({ "scenario": "numpy", "rows": [{ "label": "total", "rival": 20.0, "weir": 4.0 }] });
        let records = [json!({ "report": pool }), json!({ "report": numpy })];
        let found = rows(&records);
        let seen: Vec<(&str, &str, f64)> =
            found.iter().map(|row| (row.label.as_str(), row.unit, row.times())).collect();
        assert_eq!(
            seen,
            [
                ("zram: random read", "k/s", 0.5),
                ("zram: random read, p99", "us", 2.0),
                ("numpy: fill, sort, scan", "s", 5.0),
            ]
        );
        assert_eq!((found[0].kernel, found[0].weir), (100.0, 50.0));
        let folder = std::env::temp_dir().join(format!("weir-headline-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let svg = std::fs::read_to_string(draw(&found, &folder).unwrap()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for text in
            ["zram: random read", "100 k/s", "logarithmic", "<title>", "numpy: fill, sort, scan 5.00x"]
        {
            assert!(svg.contains(text), "{text}");
        }
    }
}
