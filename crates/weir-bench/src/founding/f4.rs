//! F4, writethrough of the compressed cache: transactions on an object graph of 75 to 175 % of the RAM, with
//! the pool capped at a fifth of it. Four columns: no compressed pool at all (pages go to the disk as they
//! are), and the three policies.

use std::time::Duration;

use serde_json::{Value, json};
use weir_cli::compare::table;
use weir_cli::term;

use super::Plan;
use crate::cli::FoundingRunArgs;
use crate::graph::WAREHOUSE_BYTES;
use crate::workload;
use crate::{disk, median};

const POOL_PERCENT: u8 = 20;
/// Before it is measured a column runs so many times as long: a working set takes seconds to come together
/// when its pages come one by one, and the adaptive policy's first trials take some ten. They go on, less and
/// less often.
const SETTLE: u32 = 5;
const DEADLINE: Duration = Duration::from_secs(300);
/// What adaptive has to reach of the best of the others.
const WANTED: f64 = 0.97;

const COLUMNS: [&str; 4] = ["none", "writeback", "writethrough", "adaptive"];
/// Data as a percentage of the RAM, and the report's percentages of the best for none, writeback and
/// writethrough.
const ROWS: [(u64, [f64; 3]); 9] = [
    (75, [93.08, 100.0, 96.90]),
    (87, [96.58, 95.58, 96.72]),
    (100, [92.29, 89.73, 86.75]),
    (112, [63.80, 38.66, 19.66]),
    (125, [4.79, 29.90, 15.75]),
    (137, [4.99, 4.50, 4.75]),
    (150, [4.28, 4.62, 5.01]),
    (162, [5.20, 2.94, 4.66]),
    (175, [5.71, 2.11, 4.84]),
];

/// Options of `weir run` for a column.
fn options(column: &str) -> Vec<(&'static str, String)> {
    match column {
        // Without a codec there is nothing for the pool to keep.
        "none" => vec![("codec", "none".to_owned()), ("pool-max", "1".to_owned())],
        policy => vec![("policy", policy.to_owned())],
    }
}

/// Measures.
pub fn run(args: &FoundingRunArgs) -> anyhow::Result<Value> {
    let plan = Plan::new(args, ROWS[ROWS.len() - 1].0, POOL_PERCENT)?;
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        for (percent, _) in ROWS {
            runs.push(one_run(&plan, number, percent)?);
        }
    }
    let mut report = plan.common_json("f4");
    report["rows"] = rows(&runs);
    report["runs"] = json!(runs);
    Ok(report)
}

/// All columns of a row, one after the other, so that a slow minute of the machine hits all of them.
fn one_run(plan: &Plan, number: u32, percent: u64) -> anyhow::Result<Value> {
    let unit = WAREHOUSE_BYTES as u64;
    let bytes = (plan.limit * percent / 100 / unit * unit).to_string();
    let (seconds, settle) = (plan.seconds.to_string(), SETTLE.to_string());
    let job =
        workload::job(&["graph", "--bytes", &bytes, "--seconds", &seconds, "--settle", &settle], DEADLINE)?;
    let mut run = json!({ "percent": percent });
    // Each run begins with another column: a machine that gets slower or faster favours none.
    let first = number as usize % COLUMNS.len();
    for column in COLUMNS[first..].iter().chain(&COLUMNS[..first]).copied() {
        term::progress(&format!("run {number} of {}, data {percent} %: {column}", plan.runs));
        let options = plan.disk.options(&options(column));
        let (outcome, counters) = job.run_weir_with(plan.limit, plan.faults, &options)?;
        run[column] = outcome.to_json();
        run[column]["traffic"] = disk::traffic(&counters);
        run[column]["counters"] = json!(counters);
    }
    Ok(run)
}

fn rows(runs: &[Value]) -> Value {
    let speed = |percent: u64, column: &str| {
        let of_row = runs.iter().filter(|run| run["percent"] == percent);
        median(of_row.filter_map(|run| run[column]["printed"]["transactions_per_s"].as_f64()))
    };
    let speeds = ROWS.map(|(percent, _)| COLUMNS.map(|column| speed(percent, column)));
    let best = speeds.iter().flatten().flatten().copied().fold(0.0, f64::max);
    let rows = ROWS.iter().zip(speeds).map(|((percent, report), speeds)| {
        let best_other = speeds[..3].iter().flatten().copied().fold(0.0, f64::max);
        let adaptive = speeds[3].filter(|_| best_other > 0.0).map(|speed| speed / best_other);
        let mut json = json!({
            "percent": percent, "report": report, "nothing_left": nothing_left(runs, *percent),
            "adaptive_to_best": adaptive, "reached": adaptive.map(|ratio| ratio >= WANTED),
        });
        for (column, speed) in COLUMNS.iter().zip(speeds) {
            let of_best = speed.filter(|_| best > 0.0).map(|speed| 100.0 * speed / best);
            json[*column] = json!({ "transactions_per_s": speed, "percent_of_best": of_best });
        }
        json
    });
    Value::Array(rows.collect())
}

/// Whether no page left the RAM in any run of a row: then all columns ran the same code, and what differs is
/// the machine.
fn nothing_left(runs: &[Value], percent: u64) -> bool {
    let stayed = |run: &Value| COLUMNS.iter().all(|c| run[*c]["counters"]["weir_pages_unmapped"] == 0);
    runs.iter().filter(|run| run["percent"] == percent).all(stayed)
}

/// The table.
pub fn human(report: &Value) -> String {
    let mut text = Plan::title(report, "F4, compressed cache: transactions per second, percent of the best");
    text +=
        "none: no compressed pool. wanted: adaptive at least 97 % of the best of the others, in every row\n";
    text += &format!(
        "each measured for {} s after {} s to settle\n\n",
        report["seconds"],
        report["seconds"].as_f64().unwrap_or(0.0) * f64::from(SETTLE)
    );
    let show = |v: &Value| v.as_f64().map_or("-".to_owned(), |v| format!("{v:.2}"));
    let rows = report["rows"].as_array().cloned().unwrap_or_default();
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut line = vec![format!("{} %", row["percent"])];
            line.extend(COLUMNS.map(|column| show(&row[column]["percent_of_best"])));
            let ratio = row["adaptive_to_best"].as_f64();
            line.push(ratio.map_or("-".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio)));
            let reached = match (row["nothing_left"].as_bool(), row["reached"].as_bool()) {
                (Some(true), Some(_)) => "same",
                (_, Some(true)) => "yes",
                (_, Some(false)) => "no",
                (_, None) => "-",
            };
            line.push(reached.to_owned());
            line.push(
                row["report"].as_array().into_iter().flatten().map(show).collect::<Vec<_>>().join(" / "),
            );
            line
        })
        .collect();
    let headers = [
        "data/RAM",
        "none",
        "writeback",
        "writethrough",
        "adaptive",
        "of best",
        "reached",
        "report (none/wb/wt)",
    ];
    text += &table::render(&headers, &lines);
    let best = rows.iter().flat_map(|row| COLUMNS.map(|column| row[column]["transactions_per_s"].as_f64()));
    let best = best.flatten().fold(0.0, f64::max);
    text += &format!("100 is {} k transactions/s\n", table::short(best / 1e3));
    text + "same: no page left the RAM in any column, so that all ran the same code: what differs is the machine\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(percent: u64, speeds: [f64; 4]) -> Value {
        let mut run = json!({ "percent": percent });
        for (column, speed) in COLUMNS.iter().zip(speeds) {
            run[*column] = json!({ "printed": { "transactions_per_s": speed } });
        }
        run
    }

    #[test]
    fn cells_are_percent_of_the_best_of_all_and_adaptive_is_judged_row_by_row() {
        let runs: Vec<Value> = ROWS
            .iter()
            .map(|(percent, _)| match percent {
                75 => run_of(75, [900.0, 1000.0, 950.0, 980.0]),
                _ => run_of(*percent, [100.0, 50.0, 50.0, 96.0]),
            })
            .collect();
        let rows = rows(&runs);
        assert_eq!(
            (&rows[0]["writeback"]["percent_of_best"], &rows[0]["reached"]),
            (&json!(100.0), &json!(true))
        );
        assert_eq!((&rows[4]["none"]["percent_of_best"], &rows[4]["reached"]), (&json!(10.0), &json!(false)));
        let text = human(&json!({ "rows": rows, "runs": runs }));
        assert!(text.contains("98.0 %") && text.contains("96.0 %") && text.contains("93.08"), "{text}");
        assert!(text.contains("1.00 k transactions/s"), "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 110, "{widest}: {text}");
    }

    #[test]
    fn where_nothing_left_the_ram_in_any_column_of_any_run_the_columns_are_called_the_same() {
        let run = |percent: u64, unmapped: [u64; 4]| {
            let mut run = run_of(percent, [100.0, 100.0, 100.0, 90.0]);
            for (column, pages) in COLUMNS.iter().zip(unmapped) {
                run[*column]["counters"] = json!({ "weir_pages_unmapped": pages });
            }
            run
        };
        let runs = [run(75, [0; 4]), run(75, [0; 4]), run(87, [0; 4]), run(87, [0, 0, 64, 0])];
        let report = json!({ "rows": rows(&runs), "runs": runs });
        let line =
            |percent: &str| human(&report).lines().find(|line| line.starts_with(percent)).unwrap().to_owned();
        assert!(line("75 %").contains("same") && line("75 %").contains("90.0 %"), "{}", line("75 %"));
        assert!(line("87 %").contains("no") && !line("87 %").contains("same"), "{}", line("87 %"));
    }

    #[test]
    fn a_column_that_was_not_measured_is_a_dash() {
        let rows = rows(&[run_of(75, [1.0, 1.0, 1.0, 1.0])]);
        assert!(rows[8]["adaptive"]["percent_of_best"].is_null() && rows[8]["reached"].is_null());
    }

    #[test]
    fn the_column_without_a_pool_has_no_codec_and_the_others_name_their_policy() {
        assert!(options("none").contains(&("codec", "none".to_owned())));
        assert_eq!(options("adaptive"), [("policy", "adaptive".to_owned())]);
    }
}
