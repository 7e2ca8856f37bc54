//! `weir bench report`: figures that were recorded become `docs/performance.md`, its charts, and the table of
//! the README.

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;
use weir_cli::compare::table::short;
use weir_cli::term;

use crate::cli::ReportArgs;
use crate::{Findings, headline, machine, plot, record};

const PAGE: &str = "docs/performance.md";
const CHARTS: &str = "docs/charts";
const README: &str = "README.md";
/// Between these lines of the README stands the table.
const BEGIN: &str = "<!-- headline: written by `make record` -->";
const END: &str = "<!-- end of the headline -->";

/// Writes all three of them.
pub fn report(args: &ReportArgs) -> anyhow::Result<Findings> {
    let records = record::read(&args.file)?;
    ensure!(!records.is_empty(), "{}: nothing was recorded", args.file.display());
    let quick = records.iter().any(|record| record["quick"] == true);
    ensure!(
        args.quick || !quick,
        "{} has figures of small data, which say nothing (--quick takes them)",
        args.file.display()
    );
    let charts = args.root.join(CHARTS);
    std::fs::create_dir_all(&charts).with_context(|| charts.display().to_string())?;
    let write = |name: &str, text: &str| {
        let path = args.root.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        term::progress(&format!("written: {}", path.display()));
        anyhow::Ok(())
    };
    let rows = headline::rows(&records);
    if !rows.is_empty() {
        headline::draw(&rows, &charts)?;
        let readme = args.root.join(README);
        let text = std::fs::read_to_string(&readme).with_context(|| readme.display().to_string())?;
        write(README, &between(&text, &readme_part(&records, &rows))?)?;
    }
    let mut page = beginning(&records, &rows);
    for record in &records {
        page += &part(record, &charts)?;
    }
    write(PAGE, &page)?;
    let report = serde_json::json!({ "scenario": "report", "rows": rows.len(), "records": records.len() });
    Ok(Findings::new(report, false, |_| String::new()))
}

/// The text with something else between the two marks.
fn between(text: &str, part: &str) -> anyhow::Result<String> {
    let begin = text.find(BEGIN).with_context(|| format!("{README} has no line {BEGIN}"))? + BEGIN.len();
    let end = text[begin..].find(END).with_context(|| format!("{README} has no line {END}"))? + begin;
    Ok(format!("{}\n\n{part}\n{}", &text[..begin], &text[end..]))
}

fn table(rows: &[headline::Row]) -> String {
    let mut text = String::from("| | the kernel's swap | Weir | times as good |\n| - | - | - | - |\n");
    for row in rows {
        let figure = |value: f64| format!("{} {}", short(value), row.unit);
        let (kernel, weir) = (figure(row.kernel), figure(row.weir));
        text += &format!("| {} | {kernel} | {weir} | {}x |\n", row.label, short(row.times()));
    }
    text
}

fn readme_part(records: &[Value], rows: &[headline::Row]) -> String {
    let machine = records.first().map_or(&Value::Null, |record| &record["machine"]);
    let chart = format!("![Weir beside the kernel's swap]({CHARTS}/{}.svg)", headline::NAME);
    format!("{chart}\n\n{}\nMeasured on {}.\n", table(rows), machine::line(machine))
}

fn beginning(records: &[Value], rows: &[headline::Row]) -> String {
    let mut page = String::from(
        "# Performance\n\nWritten by `make record`, which measures everything that `weir bench` can. Medians; the data\n\
         of the scenarios is twice the RAM where they do not say something else.\n\n",
    );
    let mut machines: Vec<String> = records.iter().map(|record| machine::line(&record["machine"])).collect();
    machines.dedup();
    for line in machines {
        page += &format!("- {line}\n");
    }
    if !rows.is_empty() {
        page +=
            &format!("\n![Weir beside the kernel's swap](charts/{}.svg)\n\n{}", headline::NAME, table(rows));
    }
    page
}

/// What a scenario printed, and its charts.
fn part(record: &Value, charts: &Path) -> anyhow::Result<String> {
    let report = &record["report"];
    let mut text = format!("\n## {}\n", report["scenario"].as_str().unwrap_or("?"));
    for chart in plot::charts(report) {
        let path = chart.draw(charts)?;
        let name = path.file_name().unwrap_or_default().display().to_string();
        text += &format!("\n![{}](charts/{name})\n", chart.title());
    }
    Ok(text + &format!("\n```text\n{}\n```\n", record["text"].as_str().unwrap_or_default().trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_stands_between_the_marks_is_replaced_and_nothing_else() {
        let text = format!("# A\n\n{BEGIN}\nold\n{END}\n\nrest\n");
        assert_eq!(
            between(&text, "| new |\n").unwrap(),
            format!("# A\n\n{BEGIN}\n\n| new |\n\n{END}\n\nrest\n")
        );
        assert!(between("# A\n", "new").unwrap_err().to_string().contains("headline"));
        assert!(between(&format!("{END}\n{BEGIN}\n"), "new").is_err(), "in the other order");
    }

    #[test]
    fn a_record_becomes_a_page_with_its_charts_and_the_table_of_the_readme() {
        let root = std::env::temp_dir().join(format!("weir-report-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join(README), format!("# Weir\n{BEGIN}\n{END}\n")).unwrap();
        let file = root.join("record.jsonl");
        let row = json!({
            "label": "fill", "phase": "fill", "field": "mb_per_s", "lower_is_better": false, "rival": 1000.0,
            "inline": { "value": 2200.0, "ratio": 2.2 }, "thread": { "value": 2000.0, "ratio": 2.0 },
        });
        let found = json!({ "scenario": "pool", "rows": [row] });
        record::append(&file, &found, "the table as printed\n", true).unwrap();
        let args = |quick| ReportArgs { file: file.clone(), root: root.clone(), quick };
        assert!(report(&args(false)).is_err_and(|e| e.to_string().contains("small data")));
        report(&args(true)).unwrap();
        let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let readme = read(README);
        assert!(readme.contains("| zram: fill | 1000 MB/s | 2200 MB/s | 2.20x |"), "{readme}");
        let page = read(PAGE);
        for text in
            ["## pool", "the table as printed", "charts/pool.svg", "charts/headline.svg", "| zram: fill |"]
        {
            assert!(page.contains(text), "{text}\n{page}");
        }
        for chart in ["headline", "pool"] {
            let svg = read(&format!("{CHARTS}/{chart}.svg"));
            assert!(svg.contains("<title>") && svg.contains("<desc>"), "{chart}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
