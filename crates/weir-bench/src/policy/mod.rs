//! `weir bench policy`: how many pages each replacement policy misses, replayed from traces. No memory is
//! managed and nothing is timed: the same trace gives the same numbers everywhere.

pub mod known;
pub mod traces;
pub mod weirs;

use weir_cli::compare::table;
use weir_cli::term;

use anyhow::ensure;
use serde_json::{Value, json};

use self::known::{Fifo, Lru, Policy, S3Fifo, Sieve, misses, optimum};
use self::traces::Trace;
use self::weirs::Weirs;
use super::Findings;
use crate::cli::PolicyArgs;

/// Weir's misses to the optimum's, at most, on mixed traces.
const WANTED_OF_OPTIMUM: f64 = 1.3;
/// Accesses of a made trace, in frames.
const ROUNDS: u32 = 24;
/// Frames by default: 128 MiB.
const FRAMES: u32 = 32 << 10;
const FRAMES_QUICK: u32 = 4 << 10;

/// Policies, in the order of a row's numbers.
pub const COLUMNS: [&str; 9] =
    ["optimum", "fifo", "clock", "lru", "sieve", "s3-fifo", "weir", "weir, thread", "weir, loads"];

/// Replays.
pub fn policy(args: &PolicyArgs) -> anyhow::Result<Findings> {
    let frames = args.frames.unwrap_or(if args.quick { FRAMES_QUICK } else { FRAMES });
    let traces = match args.trace.as_slice() {
        [] => traces::made(frames, ROUNDS),
        files => files.iter().map(|path| traces::from_file(path)).collect::<anyhow::Result<_>>()?,
    };
    let rows = traces.iter().map(|trace| replay(trace, frames)).collect::<anyhow::Result<Vec<Value>>>()?;
    let report = json!({ "scenario": "policy", "frames": frames, "columns": COLUMNS, "rows": rows });
    Ok(Findings::new(report, args.json, human))
}

/// All policies on one trace.
fn replay(trace: &Trace, frames: u32) -> anyhow::Result<Value> {
    ensure!(frames >= 1024, "--frames: at least 1024");
    term::progress(&format!("replaying {}", trace.name));
    let n = frames as usize;
    let mut inline = Weirs::new(frames, trace.pages, true)?;
    let mut thread = Weirs::new(frames, trace.pages, false)?;
    let mut loads = Weirs::answering(frames, trace.pages)?;
    let run = |policy: &mut dyn Policy| misses(policy, &trace.accesses);
    let missed = [
        optimum(n, &trace.accesses, trace.pages),
        run(&mut Fifo::new(n, false)),
        run(&mut Fifo::new(n, true)),
        run(&mut Lru::new(n)),
        run(&mut Sieve::new(n)),
        run(&mut S3Fifo::new(n)),
        run(&mut inline),
        run(&mut thread),
        run(&mut loads),
    ];
    let [best, .., sieve, s3_fifo, weir, _, _] = missed;
    let of_optimum = weir as f64 / best.max(1) as f64;
    let accesses = trace.accesses.len() as f64;
    let per_call = [&inline, &thread].map(|weirs| weirs.left as f64 / weirs.calls.max(1) as f64);
    Ok(json!({
        "trace": trace.name, "what": trace.what, "accesses": trace.accesses.len(), "pages": trace.pages, "mixed": trace.mixed,
        "misses": missed, "miss_ratios": missed.map(|m| m as f64 / accesses), "taken_back": inline.taken_back as f64 / accesses, "answered": loads.answered as f64 / accesses,
        "pages_per_call": per_call,
        "of_optimum": of_optimum,
        "reached": weir <= sieve && weir <= s3_fifo && (!trace.mixed || of_optimum <= WANTED_OF_OPTIMUM),
    }))
}

fn human(report: &Value) -> String {
    let rows = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text =
        format!("Replacement policies over {} frames: accesses that missed, in percent\n", report["frames"]);
    for row in rows {
        text +=
            &format!("{}: {}\n", row["trace"].as_str().unwrap_or("?"), row["what"].as_str().unwrap_or("?"));
    }
    text += "weir sees no access to a page that is there, the others all; its pages leave by blocks of 64;\ntaken back: accesses of weir's to pages on their way out, which are no misses but cost a fault;\nweir, loads: all accesses are loads that can be answered, without readahead; answered: its misses that left the page where it was,\nat a fraction of what a miss costs that brings it; pages a call: of weir's that leave by one call\n\n";
    let mut headers = vec![""];
    headers.extend(COLUMNS);
    headers.extend(["taken back", "answered", "pages a call", "of optimum", "within"]);
    let cells = |row: &Value| {
        let ratios = row["miss_ratios"].as_array().into_iter().flatten();
        let mut cells = vec![row["trace"].as_str().unwrap_or("?").to_owned()];
        cells.extend(ratios.map(|ratio| table::short(ratio.as_f64().unwrap_or(f64::NAN) * 100.0)));
        let percent = |field: &str| table::short(row[field].as_f64().unwrap_or(f64::NAN) * 100.0);
        cells.extend([percent("taken_back"), percent("answered")]);
        cells.push(table::short(row["pages_per_call"][0].as_f64().unwrap_or(f64::NAN)));
        cells.push(format!("{}x", table::short(row["of_optimum"].as_f64().unwrap_or(f64::NAN))));
        cells.push(if row["reached"] == true { "yes" } else { "no" }.to_owned());
        cells
    };
    text += &table::render(&headers, &rows.iter().map(cells).collect::<Vec<_>>());
    text += &format!(
        "\nwithin: weir misses no more than sieve and s3-fifo, and on mixed traces at most {WANTED_OF_OPTIMUM} times the optimum\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_the_rivals_and_on_mixed_traces_by_the_optimum() {
        let fits =
            Trace { name: "fits".into(), what: "", accesses: (0..4000).collect(), pages: 4000, mixed: true };
        let row = replay(&fits, 4096).unwrap();
        assert_eq!(row["misses"], json!(vec![4000; 9]));
        assert_eq!((&row["reached"], row["of_optimum"].as_f64()), (&json!(true), Some(1.0)));
        let text = human(&json!({ "frames": 4096, "rows": [row] }));
        assert!(
            text.lines()
                .any(|line| line.starts_with("fits  ") && line.contains("1.00x") && line.ends_with("yes")),
            "{text}"
        );
        let accesses = (0..3).flat_map(|_| 0..4500).collect();
        let round = Trace { name: "loop".into(), what: "", accesses, pages: 4500, mixed: true };
        assert_eq!(
            replay(&round, 4096).unwrap()["reached"],
            false,
            "a loop is missed more often than the optimum"
        );
    }
}
