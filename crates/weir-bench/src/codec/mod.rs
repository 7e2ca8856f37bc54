//! `weir bench codec`: what codecs make of pages of real programs, and what that costs: the engine's choice,
//! LZ4 and zstd alone, and runs of pages compressed together. Nothing is managed.

mod sets;
mod ways;

use weir_cli::compare::table;
use weir_cli::{interrupt, term};

use serde_json::{Value, json};

use self::sets::{PAGE_BYTES, Set};
use self::ways::{Made, Tools, WAYS, Way};
use super::{Findings, median};
use crate::cli::CodecArgs;

/// More than a processor's own caches.
const SET_BYTES: usize = 8 << 20;
const SET_BYTES_QUICK: usize = 512 << 10;

/// Measures.
pub fn codec(args: &CodecArgs) -> anyhow::Result<Findings> {
    let bytes = if args.quick { SET_BYTES_QUICK } else { SET_BYTES };
    let rounds = args.runs.unwrap_or(if args.quick { 1 } else { 5 });
    let mut notes = Vec::new();
    let sets = match args.file.as_slice() {
        [] => sets::made(&args.python, bytes, &mut notes),
        files => files.iter().map(|path| sets::of_file(path, bytes)).collect::<anyhow::Result<_>>()?,
    };
    let mut tools = Tools::new();
    let rows = sets.iter().map(|set| row(&mut tools, set, rounds)).collect::<anyhow::Result<Vec<Value>>>()?;
    let report = json!({
        "scenario": "codec", "rounds": rounds, "set_bytes": bytes, "notes": notes,
        "columns": WAYS.map(|(name, _)| name), "rows": rows,
    });
    Ok(Findings::new(report, args.json, human))
}

/// One set by all ways, which take turns.
fn row(tools: &mut Tools, set: &Set, rounds: u32) -> anyhow::Result<Value> {
    let mut made: Vec<Vec<Made>> = vec![Vec::new(); WAYS.len()];
    for round in 1..=rounds {
        term::progress(&format!("{}: round {round} of {rounds}", set.name));
        for ((_, way), made) in WAYS.iter().zip(&mut made) {
            anyhow::ensure!(!interrupt::interrupted(), "interrupted");
            made.push(tools.measure(&set.data, *way)?);
        }
    }
    let columns: Vec<Value> =
        WAYS.iter().zip(&made).map(|((name, way), made)| column(name, *way, made)).collect();
    Ok(json!({
        "set": set.name, "what": set.what, "pages": set.data.len() / PAGE_BYTES, "ways": columns,
    }))
}

/// Per page: bytes, and medians of the times.
fn column(name: &str, way: Way, made: &[Made]) -> Value {
    let pages = made.first().map_or(0, |made| made.pages).max(1);
    let per_page = |n: usize| n as f64 / pages as f64;
    let ns = |of: fn(&Made) -> u128| median(made.iter().map(|made| of(made) as f64 / pages as f64));
    let one = made.first().copied().unwrap_or_default();
    let mut json = json!({
        "way": name, "bytes_per_page": per_page(one.bytes), "raw_share": per_page(one.raw),
        "compress_ns": ns(|made| made.compress_ns), "expand_ns": ns(|made| made.expand_ns),
    });
    if way == Way::Engine {
        json["same_share"] = json!(per_page(one.same));
        json["shuffled_share"] = json!(per_page(one.shuffled));
    }
    json
}

fn human(report: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut text = format!(
        "Codecs, per page of 4096 bytes; medians of {} round(s), sets of up to {} KiB in an order without neighbours\n",
        report["rounds"],
        report["set_bytes"].as_u64().unwrap_or(0) >> 10,
    );
    for note in list(&report["notes"]).iter().filter_map(Value::as_str) {
        text += &format!("note: {note}\n");
    }
    let rows = list(&report["rows"]);
    for row in &rows {
        text += &format!("{}: {}\n", row["set"].as_str().unwrap_or("?"), row["what"].as_str().unwrap_or("?"));
    }
    text += "x4, x16: runs of pages compressed as one; to have one page of them all must be expanded, so multiply\n";
    let columns = list(&report["columns"]);
    for (title, field) in
        [("bytes", "bytes_per_page"), ("compress, ns", "compress_ns"), ("expand, ns", "expand_ns")]
    {
        let lines: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let mut line = vec![row["set"].as_str().unwrap_or("?").to_owned()];
                line.extend(list(&row["ways"]).iter().map(|way| whole(&way[field])));
                line
            })
            .collect();
        let mut headers = vec![title];
        headers.extend(columns.iter().filter_map(Value::as_str));
        text += &format!("\n{}", table::render(&headers, &lines));
    }
    text + "\n" + &choices(&rows)
}

/// What the engine chose.
fn choices(rows: &[Value]) -> String {
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let engine = &row["ways"][0];
            let of = |field: &str| engine[field].as_f64().unwrap_or(0.0) * 100.0;
            let (same, shuffled, raw) = (of("same_share"), of("shuffled_share"), of("raw_share"));
            let mut line = vec![row["set"].as_str().unwrap_or("?").to_owned()];
            let lz4 = 100.0 - same - shuffled - raw;
            line.extend([same, lz4, shuffled, raw].map(|share| format!("{share:.0}")));
            line
        })
        .collect();
    table::render(
        &["the engine's choice, % of the pages", "same-filled", "lz4", "shuffled lz4", "as they are"],
        &lines,
    )
}

fn whole(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |value| format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_every_way_per_page_and_the_tables_say_what_the_engine_chose() {
        let data = (0..16 * PAGE_BYTES).map(|i| if i < PAGE_BYTES * 8 { 5 } else { (i / 7) as u8 }).collect();
        let set = Set { name: "half".to_owned(), what: "half of it one byte".to_owned(), data };
        let row = row(&mut Tools::new(), &set, 2).unwrap();
        assert_eq!(row["pages"], 16);
        let ways = row["ways"].as_array().unwrap();
        assert_eq!(ways.len(), WAYS.len());
        for way in ways {
            assert!(way["bytes_per_page"].as_f64().is_some_and(|bytes| bytes < 4096.0), "{way}");
            assert!(way["compress_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{way}");
        }
        assert_eq!(ways[0]["same_share"].as_f64(), Some(0.5));
        let text = human(&json!({
            "rounds": 2, "set_bytes": 65536, "columns": WAYS.map(|(name, _)| name), "rows": [row], "notes": ["without a cat"],
        }));
        assert!(text.contains("note: without a cat") && text.contains("half of it one byte"), "{text}");
        let choice = text.lines().last().unwrap();
        assert_eq!(choice.split_whitespace().take(3).collect::<Vec<_>>(), ["half", "50", "50"], "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 120, "{widest}: {text}");
    }

    #[test]
    fn the_time_of_a_column_is_the_median_per_page() {
        let made =
            |ns| Made { bytes: 8192, pages: 4, raw: 1, compress_ns: ns, expand_ns: 40, ..Made::default() };
        let column = column("lz4", Way::Lz4(1), &[made(4000), made(400_000), made(8000)]);
        assert_eq!(
            (column["bytes_per_page"].as_f64(), column["raw_share"].as_f64()),
            (Some(2048.0), Some(0.25))
        );
        assert_eq!(
            (column["compress_ns"].as_f64(), column["expand_ns"].as_f64()),
            (Some(2000.0), Some(10.0))
        );
    }
}
