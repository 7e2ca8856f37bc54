//! `weir stat`: what processes under Weir count, while they run.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};
use weir::engine::summary::{Seconds, Size};
use weir_cli::term;

use crate::cli::StatArgs;
use crate::live::{Live, Shown, Unseen};

/// Prints once, or again and again until the process ends.
pub fn stat(args: &StatArgs) -> anyhow::Result<ExitCode> {
    match args.pid {
        Some(pid) => one(pid, args),
        None => all(args),
    }
}

fn one(pid: u32, args: &StatArgs) -> anyhow::Result<ExitCode> {
    let live = Live::open(pid)?;
    let mut first = true;
    loop {
        let shown = match live.shown() {
            // It has ended while it was looked at.
            Err(_) if !first && !live.is_there() => return Ok(ExitCode::SUCCESS),
            shown => shown?,
        };
        term::print(&if args.json { format!("{}\n", object(&shown)) } else { lines(&shown, first) })?;
        first = false;
        let Some(pause) = args.watch else { return Ok(ExitCode::SUCCESS) };
        std::thread::sleep(pause);
        if !live.is_there() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn all(args: &StatArgs) -> anyhow::Result<ExitCode> {
    loop {
        let (shown, unseen) = Live::all()?;
        for e in &unseen {
            eprintln!("weir: {e}");
        }
        let text = if args.json {
            format!("{}\n", Value::Array(shown.iter().map(object).collect()))
        } else {
            table(&shown)
        };
        term::print(&text)?;
        let Some(pause) = args.watch else { return Ok(end_of_list(&shown, &unseen, args.json)) };
        std::thread::sleep(pause);
    }
}

/// An empty table says nothing: where there is nobody, that is told.
fn end_of_list(shown: &[Shown], unseen: &[Unseen], json: bool) -> ExitCode {
    if shown.is_empty() && unseen.is_empty() && !json {
        eprintln!(
            "weir: no process of yours runs under Weir, or none has grown large enough for Weir to start"
        );
    }
    ExitCode::from(u8::from(shown.is_empty() && !json || !unseen.is_empty()))
}

/// Key and value, as in `/proc/vmstat`.
fn lines(shown: &Shown, first: bool) -> String {
    let mut text = if first { String::new() } else { "\n".to_owned() };
    text += &format!("pid {}\nprogram {}\n", shown.pid, shown.program);
    for (key, value) in times(shown) {
        text += &format!("{key} {value}\n");
    }
    for (key, value) in &shown.values {
        text += &format!("{key} {value}\n");
    }
    text
}

/// When the values were written: how long the program had run, and how long ago that is.
fn times(shown: &Shown) -> [(&'static str, u64); 2] {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    [("ran_ns", ns(shown.ran)), ("age_ns", ns(shown.age))]
}

/// All that a process shows, as one object.
pub fn object(shown: &Shown) -> Value {
    let mut object = Map::new();
    object.insert("pid".to_owned(), json!(shown.pid));
    object.insert("program".to_owned(), json!(shown.program));
    object.extend(times(shown).map(|(key, value)| (key.to_owned(), json!(value))));
    object.extend(shown.values.iter().map(|(key, value)| (key.clone(), json!(value))));
    Value::Object(object)
}

const COLUMNS: [&str; 9] = ["PID", "RAM", "BUDGET", "DATA", "POOL", "SWAP", "FAULTS", "WAITED", "PROGRAM"];

/// A line for each process, the program last: it may be long.
fn table(shown: &[Shown]) -> String {
    if shown.is_empty() {
        return String::new();
    }
    let size = |shown: &Shown, key: &str| Size(shown.get(key)).to_string();
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(shown.iter().map(|shown| {
        [
            shown.pid.to_string(),
            Size(shown.ram()).to_string(),
            size(shown, "weir_budget_bytes"),
            size(shown, "weir_managed_bytes"),
            size(shown, "weir_pool_stored_bytes"),
            size(shown, "weir_swap_bytes"),
            shown.get("pgfault").to_string(),
            Seconds(shown.get("weir_waited_ns")).to_string(),
            shown.program.clone(),
        ]
    }));
    let widths: [usize; COLUMNS.len()] =
        std::array::from_fn(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0));
    let last = COLUMNS.len() - 1;
    let line = |row: &[String; COLUMNS.len()]| {
        let cells: Vec<String> = (0..last).map(|i| format!("{:>1$}", row[i], widths[i])).collect();
        format!("{}  {}\n", cells.join("  "), row[last])
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pid: u32, waited_ns: u64) -> Shown {
        let values = [("pgfault", 12_345), ("weir_waited_ns", waited_ns), ("weir_resident_bytes", 64 << 20)];
        let values = values.map(|(key, value)| (key.to_owned(), value)).to_vec();
        let (age, ran) = (Duration::from_millis(20), Duration::from_secs(3));
        Shown { pid, program: "python3 job.py".to_owned(), age, ran, values }
    }

    #[test]
    fn lines_and_objects_have_the_same_names() {
        let one = shown(7, 5);
        let text = lines(&one, true);
        assert!(
            text.starts_with("pid 7\nprogram python3 job.py\nran_ns 3000000000\nage_ns 20000000\npgfault")
        );
        let object = object(&one);
        assert_eq!((&object["weir_waited_ns"], &object["pid"]), (&json!(5), &json!(7)));
        let keys: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(keys.len(), object.as_object().unwrap().len());
        assert!(keys.iter().all(|key| object.get(key).is_some()));
        assert!(lines(&one, false).starts_with("\npid 7\n"));
    }

    #[test]
    fn the_table_has_a_line_for_each_process_and_none_where_there_is_nobody() {
        let text = table(&[shown(7, 72_400_000_000), shown(4711, 0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with(" PID") && lines[0].ends_with("PROGRAM"), "{text}");
        assert!(lines[1].contains("64 MiB") && lines[1].contains("72.4 s"), "{text}");
        assert!(lines[2].starts_with("4711  "), "{text}");
        assert_eq!(table(&[]), "");
    }
}
