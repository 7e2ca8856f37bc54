//! `--plot`: what a scenario found, as bars in SVG files.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use plotters::prelude::*;
use serde_json::Value;
use weir_cli::compare::table;

const HEIGHT: u32 = 440;
const GROUP_WIDTH: u32 = 130;
const WIDTH_MIN: u32 = 640;
/// Width of a letter of a legend, about.
const LETTER_WIDTH: i32 = 7;
/// Share of a group's width that its bars take.
const BARS_SHARE: f64 = 0.8;
/// Colours of the series, told apart in print, too.
pub const COLOURS: [RGBColor; 4] =
    [RGBColor(160, 160, 160), RGBColor(0, 90, 180), RGBColor(230, 140, 20), RGBColor(40, 140, 80)];

/// Groups of bars, a bar of each series in each.
pub struct Chart {
    plan: &'static Plan,
    groups: Vec<String>,
    /// Of each series a value per group, where there is one.
    values: Vec<Vec<Option<f64>>>,
}

/// How a scenario's rows become bars.
struct Plan {
    scenario: &'static str,
    /// File name without its ending.
    name: &'static str,
    title: &'static str,
    /// Of the vertical axis.
    unit: &'static str,
    /// Where the report has its rows.
    rows: &'static str,
    group: fn(&Value) -> String,
    /// Name of each series, where a row has its number, and from its unit to the one shown.
    series: &'static [(&'static str, &'static str, f64)],
}

/// In place of where a number is: what the others are measured by.
const ONE: &str = "1";
const KERNEL: (&str, &str, f64) = ("kernel", ONE, 1.0);

/// Rows that say how many times better Weir is.
const fn gains(
    scenario: &'static str,
    name: &'static str,
    title: &'static str,
    rows: &'static str,
    series: &'static [(&'static str, &'static str, f64)],
) -> Plan {
    Plan { scenario, name, title, unit: "times as good", rows, group: label, series }
}

static PLANS: [Plan; 13] = [
    gains(
        "pool",
        "pool",
        "How many times better than the kernel's swap on zram (latencies: lower)",
        "/rows",
        &[KERNEL, ("Weir, inline", "/inline/ratio", 1.0), ("Weir, thread", "/thread/ratio", 1.0)],
    ),
    gains(
        "swap",
        "swap-file",
        "How many times better than the kernel's swap file (latencies: lower)",
        "/tables/0/rows",
        &[KERNEL, ("Weir", "/weir_default/ratio", 1.0), ("Weir, small pool", "/weir/ratio", 1.0)],
    ),
    gains(
        "swap",
        "swap-zswap",
        "How many times better than the kernel's zswap (latencies: lower)",
        "/tables/1/rows",
        &[KERNEL, ("Weir", "/weir_default/ratio", 1.0), ("Weir, equal RAM", "/weir_ram/ratio", 1.0)],
    ),
    gains(
        "files",
        "files",
        "Mapped files: times as good as the kernel with the better advice (latencies, reads: lower)",
        "/rows",
        &[
            ("kernel", "/times/kernel", 1.0),
            ("kernel, advised", "/times/advised", 1.0),
            ("Weir", "/times/weir", 1.0),
            ("direct", "/times/disk", 1.0),
        ],
    ),
    Plan {
        scenario: "passes",
        name: "passes",
        title: "Ten passes over data a little larger than the RAM, seconds",
        unit: "seconds",
        rows: "/rows",
        group: |row| text(row, "label"),
        series: &[("kernel", "/rival", 1.0), ("Weir", "/weir", 1.0), ("native", "/native", 1.0)],
    },
    Plan {
        scenario: "policy",
        name: "policy",
        title: "Replacement: accesses that missed, percent",
        unit: "percent",
        rows: "/rows",
        group: |row| text(row, "trace"),
        series: &[
            ("LRU", "/miss_ratios/3", 100.0),
            ("Weir", "/miss_ratios/6", 100.0),
            ("S3-FIFO", "/miss_ratios/5", 100.0),
            ("optimum", "/miss_ratios/0", 100.0),
        ],
    },
    Plan {
        scenario: "scaling",
        name: "scaling",
        title: "Scaling: thousand random reads per second, data twice the RAM",
        unit: "thousand reads per second",
        rows: "/rows",
        group: threads,
        series: &[
            ("kernel", "/kernel/ops_per_s", 1e-3),
            ("Weir, inline", "/inline/ops_per_s", 1e-3),
            ("Weir, thread", "/thread/ops_per_s", 1e-3),
        ],
    },
    Plan {
        scenario: "founding f1",
        name: "f1",
        title: "F1: thousand pages per second written to, data twice the RAM",
        unit: "thousand pages per second",
        rows: "/rows",
        group: |row| format!("{}, {}", text(row, "tier"), threads(row)),
        series: &[
            ("kernel's swap file or zram", "/rival", 1e-3),
            ("one by one", "/one", 1e-3),
            ("batched", "/batched", 1e-3),
        ],
    },
    Plan {
        scenario: "founding f2",
        name: "f2",
        title: "F2: MB/s of work on a mapped file, swap space full of memory",
        unit: "MB/s",
        rows: "/rows",
        group: |row| text(row, "phase"),
        series: &[("kernel", "/kernel", 1.0), ("Weir, blind", "/off", 1.0), ("Weir", "/on", 1.0)],
    },
    Plan {
        scenario: "founding f3",
        name: "f3",
        title: "F3: thousand pages per second written to, data 1.5 times the RAM",
        unit: "thousand pages per second",
        rows: "/rows",
        group: threads,
        series: &[("one by one", "/one/pages_per_s", 1e-3), ("batched", "/batched/pages_per_s", 1e-3)],
    },
    Plan {
        scenario: "founding f3",
        name: "f3-server",
        title: "F3: a cache server over a file three times the RAM, Gbit/s",
        unit: "Gbit/s",
        rows: "/server/rows",
        group: |row| text(row, "pattern"),
        series: &[
            ("kernel", "/kernel-normal/gbit_per_s", 1.0),
            ("kernel, random", "/kernel-random/gbit_per_s", 1.0),
            ("Weir", "/weir/gbit_per_s", 1.0),
        ],
    },
    Plan {
        scenario: "founding f4",
        name: "f4",
        title: "F4: transactions per second, percent of the best, by data in percent of the RAM",
        unit: "percent of the best",
        rows: "/rows",
        group: |row| format!("{} %", row["percent"]),
        series: &[
            ("none", "/none/percent_of_best", 1.0),
            ("writeback", "/writeback/percent_of_best", 1.0),
            ("writethrough", "/writethrough/percent_of_best", 1.0),
            ("adaptive", "/adaptive/percent_of_best", 1.0),
        ],
    },
    Plan {
        scenario: "founding f5",
        name: "f5",
        title: "F5: MB/s of sequential readers, data 1.5 times the RAM",
        unit: "MB/s",
        rows: "/rows",
        group: |row| format!("{}, {}", text(row, "tier"), row["readers"]),
        series: &[("shuffled", "/shuffled/mb_per_s", 1.0), ("ordered", "/ordered/mb_per_s", 1.0)],
    },
];

fn text(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or("?").to_owned()
}

fn threads(row: &Value) -> String {
    format!("{} thread(s)", row["threads"])
}

fn label(row: &Value) -> String {
    match row["lower_is_better"] == true {
        true => format!("{}, {}", text(row, "label"), text(row, "phase")),
        false => text(row, "label"),
    }
}

/// The charts of a scenario's report; none for one that has only a table.
pub fn charts(report: &Value) -> Vec<Chart> {
    PLANS
        .iter()
        .filter(|plan| report["scenario"] == plan.scenario)
        .filter_map(|plan| plan.of(report))
        .collect()
}

impl Plan {
    fn of(&'static self, report: &Value) -> Option<Chart> {
        let rows = report.pointer(self.rows)?.as_array().filter(|rows| !rows.is_empty())?;
        let number = |row: &Value, at: &str, scale: f64| match at {
            ONE => Some(1.0),
            _ => row.pointer(at).and_then(Value::as_f64).map(|value| value * scale),
        };
        let of_rows = |at: &str, scale: f64| rows.iter().map(|row| number(row, at, scale)).collect();
        Some(Chart {
            plan: self,
            groups: rows.iter().map(self.group).collect(),
            values: self.series.iter().map(|(_, at, scale)| of_rows(at, *scale)).collect(),
        })
    }
}

impl Chart {
    /// Draws it into a folder. Returns the file's path.
    pub fn draw(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join(format!("{}.svg", self.plan.name));
        self.draw_to(&path).map_err(|e| anyhow!("{}: {e}", path.display()))?;
        tell(&path, self.plan.title, &self.words())?;
        Ok(path)
    }

    /// What it shows.
    pub fn title(&self) -> &'static str {
        self.plan.title
    }

    /// Its bars in words.
    fn words(&self) -> String {
        let of_group = |(g, name): (usize, &String)| {
            let values = self.plan.series.iter().zip(&self.values);
            let told = values
                .filter_map(|((name, ..), values)| Some(format!("{name} {}", table::short(values[g]?))));
            format!("{name}: {}", told.collect::<Vec<_>>().join(", "))
        };
        self.groups.iter().enumerate().map(of_group).collect::<Vec<_>>().join("; ")
    }

    fn highest(&self) -> f64 {
        self.values.iter().flatten().flatten().copied().fold(0.0, f64::max)
    }

    fn draw_to(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let groups = self.groups.len() as u32;
        let width = (GROUP_WIDTH * groups).max(WIDTH_MIN);
        let root = SVGBackend::new(path, (width, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let top = if self.highest() > 0.0 { self.highest() * 1.1 } else { 1.0 };
        let mut chart = ChartBuilder::on(&root)
            .caption(self.plan.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(56)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..f64::from(groups), 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(self.plan.unit)
            .light_line_style(TRANSPARENT)
            .draw()?;
        let width = BARS_SHARE / self.values.len() as f64;
        let left =
            |group: usize, series: usize| group as f64 + (1.0 - BARS_SHARE) / 2.0 + series as f64 * width;
        for (s, values) in self.values.iter().enumerate() {
            let colour = COLOURS[s % COLOURS.len()];
            let there = values.iter().enumerate().filter_map(|(g, value)| value.map(|value| (g, value)));
            let bars = there.clone().map(|(g, value)| {
                Rectangle::new([(left(g, s), 0.0), (left(g, s) + width, value)], colour.filled())
            });
            chart.draw_series(bars)?;
            let numbers = there.map(|(g, value)| {
                Text::new(table::short(value), (left(g, s), value + top * 0.03), ("sans-serif", 10))
            });
            chart.draw_series(numbers)?;
        }
        for (g, name) in self.groups.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(left(g, 0), 0.0));
            root.draw(&Text::new(name.clone(), (x, y + 8), ("sans-serif", 11)))?;
        }
        let names: Vec<&str> = self.plan.series.iter().map(|(name, ..)| *name).collect();
        legend(&root, &names, (16, HEIGHT as i32 - 24))?;
        root.present()?;
        Ok(())
    }
}

/// Which colour is whose, in a line from this place on.
pub fn legend(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    names: &[&str],
    (mut x, y): (i32, i32),
) -> Result<(), Box<dyn std::error::Error>> {
    for (name, colour) in names.iter().zip(COLOURS) {
        root.draw(&Rectangle::new([(x, y), (x + 12, y + 10)], colour.filled()))?;
        root.draw(&Text::new((*name).to_owned(), (x + 18, y - 1), ("sans-serif", 12)))?;
        x += 36 + LETTER_WIDTH * name.len() as i32;
    }
    Ok(())
}

/// Says in the file what it shows, for those who have it read out.
pub fn tell(path: &Path, title: &str, words: &str) -> anyhow::Result<()> {
    let plain = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let svg = std::fs::read_to_string(path)?;
    let end = svg.find("<svg").and_then(|at| Some(at + svg[at..].find('>')?));
    let end = end.ok_or_else(|| anyhow!("{}: no SVG", path.display()))?;
    let (head, rest) = svg.split_at(end);
    let told = format!("<title>{}</title>\n<desc>{}</desc>", plain(title), plain(words));
    Ok(std::fs::write(path, format!("{head} role=\"img\">\n{told}{}", &rest[1..]))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_bar_of_a_report_is_drawn_with_its_number_and_missing_ones_are_not() {
        let report = json!({ "scenario": "founding f5", "rows": [
            { "tier": "pool", "readers": 16, "shuffled": { "mb_per_s": 191.0 }, "ordered": { "mb_per_s": 774.0 } },
            { "tier": "file", "readers": 16, "shuffled": { "mb_per_s": null }, "ordered": { "mb_per_s": 492.0 } },
        ] });
        let charts = charts(&report);
        assert_eq!(charts.len(), 1);
        let folder = std::env::temp_dir().join(format!("weir-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let svg = std::fs::read_to_string(charts[0].draw(&folder).unwrap()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for text in [
            "<desc>pool, 16: shuffled 191, ordered 774;",
            "<title>F5",
            "F5: MB/s",
            "pool, 16",
            "file, 16",
            "shuffled",
            "ordered",
            "191",
            "774",
            "492",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches(r##"fill="#005AB4""##).count(), 2 + 1, "two bars and a legend");
        assert_eq!(svg.matches(r##"fill="#A0A0A0""##).count(), 1 + 1, "one bar and a legend");
    }

    #[test]
    fn gains_stand_beside_the_kernels_one() {
        let row = json!({ "label": "fill", "target": 1.9, "inline": { "ratio": 4.0 }, "thread": { "ratio": null } });
        let charts = charts(&json!({ "scenario": "pool", "rows": [row] }));
        assert_eq!(charts[0].values[0], [Some(1.0)]);
        assert_eq!((&charts[0].values[1], &charts[0].values[2]), (&vec![Some(4.0)], &vec![None]));
    }

    #[test]
    fn policies_are_named_as_the_columns_that_they_are_taken_from() {
        let plan = PLANS.iter().find(|plan| plan.name == "policy").unwrap();
        for (name, at, _) in plan.series {
            let column: usize = at.rsplit('/').next().unwrap().parse().unwrap();
            assert_eq!(name.to_lowercase(), crate::policy::COLUMNS[column]);
        }
    }

    #[test]
    fn a_report_without_a_chart_or_without_rows_draws_nothing() {
        assert!(charts(&json!({ "scenario": "gate", "rows": [1] })).is_empty());
        assert!(charts(&json!({ "scenario": "pool", "rows": [] })).is_empty());
    }
}
