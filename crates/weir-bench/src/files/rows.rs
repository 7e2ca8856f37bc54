//! The table of `weir bench files`.

use serde_json::{Value, json};
use weir_cli::compare::table;

use super::SIDES;
use crate::disk::{size, times};
use crate::median;

/// What is wanted of Weir in a row.
enum Wanted {
    /// So many times as good as another side.
    Times(&'static str, f64),
    /// At most so much.
    AtMost(f64),
    /// To be seen.
    Nothing,
}

/// A line of the table: a number of one phase.
struct Row {
    label: &'static str,
    phase: &'static str,
    field: &'static str,
    /// From the field's unit to the one shown.
    scale: f64,
    unit: &'static str,
    lower_is_better: bool,
    wanted: Wanted,
}

const fn throughput(label: &'static str, phase: &'static str, wanted: Wanted) -> Row {
    Row { label, phase, field: "mb_per_s", scale: 1.0, unit: "MB/s", lower_is_better: false, wanted }
}

const fn rate(label: &'static str, phase: &'static str, wanted: Wanted) -> Row {
    Row { label, phase, field: "ops_per_s", scale: 1e-3, unit: "k/s", lower_is_better: false, wanted }
}

const fn p99(label: &'static str, phase: &'static str) -> Row {
    let wanted = Wanted::Nothing;
    Row { label, phase, field: "p99_ns", scale: 1e-3, unit: "us", lower_is_better: true, wanted }
}

/// Most RAM that the group of a side was charged for.
const fn ram(phase: &'static str) -> Row {
    let (scale, wanted) = (1.0 / (1 << 20) as f64, Wanted::Nothing);
    Row { label: "  RAM, most", phase, field: "ram_bytes", scale, unit: "MiB", lower_is_better: true, wanted }
}

/// Bytes read from the disk, of others.
const fn read(label: &'static str, phase: &'static str, field: &'static str, wanted: Wanted) -> Row {
    Row { label, phase, field, scale: 1.0, unit: "x", lower_is_better: true, wanted }
}

/// RAM may exceed the limit by one part in so many, for the program and the kernel's own tables.
const RAM_SLACK_PART: u64 = 16;

static ROWS: [Row; 13] = [
    throughput("one pass, 4x the RAM", "sequential", Wanted::Times("disk", 0.9)),
    ram("sequential"),
    rate("random 16 KiB, 2x", "random16", Wanted::Times("advised", 1.7)),
    p99("  p99", "random16"),
    read("  read for a byte used", "random16", "read_per_byte", Wanted::Nothing),
    ram("random16"),
    rate("random 4 KiB, 2x", "random4", Wanted::Times("advised", 1.5)),
    p99("  p99", "random4"),
    read("  read for a byte used", "random4", "read_per_byte", Wanted::Nothing),
    throughput("passes, 1.25x", "cyclic", Wanted::Nothing),
    read("  read of what is over", "cyclic", "read_part", Wanted::AtMost(1.2)),
    ram("cyclic"),
    throughput("passes, 0.5x: it fits", "fits", Wanted::Nothing),
];

impl Row {
    fn ratio(&self, one: f64, other: f64) -> f64 {
        if self.lower_is_better { other / one } else { one / other }
    }

    /// The median of a side's runs.
    fn median(&self, runs: &[Value], side: &str) -> Option<f64> {
        let mine = runs.iter().filter(|run| run["phase"] == self.phase && run["side"] == side);
        median(mine.filter_map(|run| run[self.field].as_f64()))
    }

    /// Whether Weir had more RAM in this phase than the kernel may have: then nothing is gained.
    fn had_more(&self, runs: &[Value], limit: u64) -> bool {
        let mine = runs.iter().filter(|run| run["phase"] == self.phase && run["side"] == "weir");
        let most = median(mine.filter_map(|run| run["ram_bytes"].as_f64()));
        self.field != "ram_bytes" && most.is_some_and(|bytes| bytes > (limit + limit / RAM_SLACK_PART) as f64)
    }

    fn report(&self, runs: &[Value], limit: u64) -> Value {
        let of = |side: &str| self.median(runs, side).filter(|value| *value > 0.0);
        let weir = self.median(runs, "weir");
        let kernel = [of("kernel"), of("advised")].into_iter().flatten();
        let better = kernel.reduce(|a, b| if self.ratio(a, b) > 1.0 { a } else { b });
        let mut json = json!({
            "label": self.label.trim(), "phase": self.phase, "field": self.field, "unit": self.unit,
            "lower_is_better": self.lower_is_better,
        });
        for side in SIDES.map(super::Side::key) {
            let value = self.median(runs, side);
            json[side] = json!(value.map(|value| value * self.scale));
            json["gain"][side] = json!(of("weir").zip(of(side)).map(|(weir, other)| self.ratio(weir, other)));
            // For the chart: against the better of the kernel's two.
            json["times"][side] = json!(of(side).zip(better).map(|(value, best)| self.ratio(value, best)));
        }
        (json["wanted"], json["reached"]) = match self.wanted {
            Wanted::Times(side, wanted) => {
                let gain = json["gain"][side].as_f64();
                (json!(format!("{wanted}x {}", name(side))), json!(gain.map(|gain| gain >= wanted)))
            }
            Wanted::AtMost(most) => (json!(format!("at most {most}x")), json!(weir.map(|weir| weir <= most))),
            Wanted::Nothing => (Value::Null, Value::Null),
        };
        if self.had_more(runs, limit) {
            (json["gain"], json["times"]["weir"]) = (Value::Null, Value::Null);
            if !json["wanted"].is_null() {
                json["reached"] = json!(false);
            }
        }
        json
    }
}

/// What the table calls a side.
fn name(side: &str) -> &str {
    match side {
        "disk" => "direct",
        side => side,
    }
}

/// The medians of every row, and what Weir gains.
pub fn report(runs: &[Value], limit: u64) -> Value {
    ROWS.iter().map(|row| row.report(runs, limit)).collect()
}

/// The table, with what it was measured on.
pub fn human(report: &Value) -> String {
    let mut text = format!(
        "Mapped files: {} RAM, the kernel's limit and Weir's budget; medians of {} run(s) of {} s, Linux {}\n\
         file of {} in {}, readahead of {} KiB; random reads by {} threads\n\
         direct: past the kernel's cache, by requests of 1 MiB, 8 at a time, or by the same threads;\n\
         kernel: its usual advice; advised: MADV_SEQUENTIAL, MADV_RANDOM; no gains where Weir had more RAM\n",
        size(&report["limit_bytes"]),
        report["repeats"],
        report["seconds_per_row"],
        report["kernel"].as_str().unwrap_or("?"),
        size(&report["file_bytes"]),
        report["dir"].as_str().unwrap_or("?"),
        report["readahead_kib"],
        report["threads"],
    );
    text += &crate::scenarios::note_lines(report);
    let mut headers = vec!["".to_owned(), "unit".to_owned()];
    let sides = SIDES.map(super::Side::key);
    headers.extend(sides.map(|side| if side == "weir" { "Weir".to_owned() } else { name(side).to_owned() }));
    headers.extend(sides.iter().filter(|side| **side != "weir").map(|side| format!("to {}", name(side))));
    headers.push("wanted".to_owned());
    let line = |(of, row): (&Row, &Value)| {
        let mut line = vec![of.label.to_owned(), of.unit.to_owned()];
        line.extend(sides.map(|side| row[side].as_f64().map_or("-".to_owned(), table::short)));
        line.extend(sides.iter().filter(|side| **side != "weir").map(|side| times(&row["gain"][*side])));
        line.push(row["wanted"].as_str().unwrap_or("-").to_owned());
        line
    };
    let rows = report["rows"].as_array().into_iter().flatten();
    let lines: Vec<Vec<String>> = ROWS.iter().zip(rows).map(line).collect();
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    text + "\n" + &table::render(&headers, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(phase: &str, side: &str, field: &str, value: f64) -> Value {
        let mut run = json!({ "phase": phase, "side": side });
        run[field] = json!(value);
        run
    }

    fn row<'a>(report: &'a Value, phase: &str, field: &str) -> &'a Value {
        let rows = report.as_array().unwrap();
        rows.iter().find(|row| row["phase"] == phase && row["field"] == field).unwrap()
    }

    #[test]
    fn weir_is_measured_against_every_side_and_wanted_figures_against_theirs() {
        let rate = |side: &str, value: f64| run("random16", side, "ops_per_s", value);
        let p99 = |side: &str, value: f64| run("random16", side, "p99_ns", value);
        let runs = [
            rate("disk", 8e3),
            rate("kernel", 1e3),
            rate("advised", 2e3),
            rate("weir", 4e3),
            p99("kernel", 9e6),
            p99("advised", 3e6),
            p99("weir", 1e6),
        ];
        let report = report(&runs, 64 << 20);
        let found = row(&report, "random16", "ops_per_s");
        assert_eq!(found["gain"], json!({ "disk": 0.5, "kernel": 4.0, "advised": 2.0, "weir": 1.0 }));
        assert_eq!(found["times"], json!({ "disk": 4.0, "kernel": 0.5, "advised": 1.0, "weir": 2.0 }));
        assert_eq!((&found["weir"], &found["reached"]), (&json!(4.0), &json!(true)));
        assert_eq!(row(&report, "random16", "p99_ns")["gain"]["kernel"], json!(9.0));
        assert_eq!(
            row(&report, "random16", "p99_ns")["times"]["kernel"].as_f64().map(|t| t < 1.0),
            Some(true)
        );
    }

    #[test]
    fn with_more_ram_than_the_kernel_has_nothing_is_gained_or_reached() {
        let rate = |side: &str, value: f64| run("random16", side, "ops_per_s", value);
        let mut runs = vec![rate("advised", 2e3), rate("weir", 9e3)];
        for (bytes, gain) in [(65, json!(4.5)), (80, Value::Null)] {
            runs[1]["ram_bytes"] = json!(bytes << 20);
            let report = report(&runs, 64 << 20);
            let found = row(&report, "random16", "ops_per_s");
            assert_eq!((&found["gain"]["advised"], &found["reached"]), (&gain, &json!(gain.is_number())));
            assert_eq!(row(&report, "random16", "ram_bytes")["weir"], json!(f64::from(bytes)));
        }
    }

    #[test]
    fn a_pass_that_reads_more_than_is_wanted_does_not_reach_it() {
        for (value, reached) in [(1.1, true), (1.3, false)] {
            let report = report(&[run("cyclic", "weir", "read_part", value)], 64 << 20);
            assert_eq!(row(&report, "cyclic", "read_part")["reached"], json!(reached));
        }
        let slow = report(
            &[run("sequential", "disk", "mb_per_s", 100.0), run("sequential", "weir", "mb_per_s", 89.0)],
            64 << 20,
        );
        assert_eq!(row(&slow, "sequential", "mb_per_s")["reached"], json!(false));
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_no_success() {
        let report = json!({ "rows": report(&[], 64 << 20), "notes": ["no root"], "limit_bytes": 64 << 20 });
        let text = human(&report);
        assert!(text.contains("note: no root") && text.contains("0.9x direct"), "{text}");
        assert!(report["rows"][0]["reached"].is_null());
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 110, "{widest}: {text}");
    }
}
