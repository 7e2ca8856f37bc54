//! F3 as the report had it: a cache server whose file is larger than the RAM, with the kernel's reclaim and
//! with Weir's. The server is varnish, the load wrk, objects have 64 KiB. The kernel's side runs in a control
//! group with the RAM as its limit; Weir's in one without a limit, so that its RAM is counted alike.

use std::process::Command;

use serde_json::{Value, json};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::{weir_binary, weir_missing};
use weir_cli::compare::table;
use weir_cli::term;
use weir_os::probe;

use super::backend::{Backend, Client, OBJECT_BYTES, fill};
use super::load::{CONNECTIONS, Load, PATTERNS};
use super::varnish::{Server, Setup, Tools};
use super::watch::Counts;
use crate::cli::F3Args;
use crate::disk::{number, readahead_kib, size, times};
use crate::founding::ratio;
use crate::median;

/// Objects take so many times the RAM.
const TIMES_RAM: u64 = 3;
/// The server adds a page to each object, and needs some room.
const STORE_PER_OBJECT: u64 = 80 << 10;
const _: () = assert!(STORE_PER_OBJECT as usize > OBJECT_BYTES + 2 * 4096);
/// The server first runs under the same load for one part in so many of the time that is measured.
const SETTLE_PART: f64 = 3.0;
/// And again as often as this, until it has no more RAM than it is measured with: what was just written into
/// the file stays until the disk has it.
const SETTLES_MAX: u32 = 10;
/// RAM beside the file, in percent of the limit: sockets, stacks, the kernel's tables.
const BESIDE_PERCENT: u64 = 10;
/// Objects whose every byte is compared at the end.
const CHECKED: u64 = 500;
/// No limit, for a group that only counts.
const NO_LIMIT: u64 = 1 << 40;
/// Wanted: throughput against the kernel's with its default advice, and with `random`; p99 against the better
/// of the two.
const WANTED: [(&str, f64); 3] = [("normal", 2.4), ("random", 1.3), ("p99", 2.0)];

/// One of the sides: which manager, and which advice the server gives. Its own default is `random`.
struct Side {
    key: &'static str,
    name: &'static str,
    weir: bool,
    advice: &'static str,
}

const SIDES: [Side; 4] = [
    Side { key: "kernel-normal", name: "kernel", weir: false, advice: "normal" },
    Side { key: "kernel-random", name: "kernel, random", weir: false, advice: "random" },
    Side { key: "weir-normal", name: "Weir, normal", weir: true, advice: "normal" },
    Side { key: "weir", name: "Weir", weir: true, advice: "random" },
];

/// The names of the sides, for the command line.
pub const KEYS: [&str; 4] = [SIDES[0].key, SIDES[1].key, SIDES[2].key, SIDES[3].key];

struct Plan<'a> {
    args: &'a F3Args,
    tools: &'a Tools,
    limit: u64,
    objects: u64,
    seconds: f64,
}

/// Measures every side that is wanted.
pub fn run(args: &F3Args, tools: &Tools) -> anyhow::Result<Value> {
    let sized = &args.run.sized;
    let limit = sized.limit(512)?;
    let objects = limit * TIMES_RAM / OBJECT_BYTES as u64;
    let seconds = args.serve_seconds.unwrap_or(if sized.common.quick { 2.0 } else { 10.0 });
    let plan = Plan { args, tools, limit, objects, seconds };
    let wanted: Vec<&Side> = SIDES.iter().filter(|side| plan.wants(side)).collect();
    if wanted.iter().any(|side| side.weir)
        && let Some(why) = weir_missing()
    {
        anyhow::bail!("{why}");
    }
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    for number in 1..=sized.common.runs() {
        // Each run begins with another side: a machine that gets slower or faster favours none.
        let first = number as usize % wanted.len().max(1);
        for side in wanted[first..].iter().chain(&wanted[..first]) {
            let at = format!("run {number} of {}, {}", sized.common.runs(), side.name);
            match plan.run_side(side, &at) {
                Ok(found) => runs.extend(found),
                Err(e) if side.weir || weir_cli::interrupt::interrupted() => return Err(e.context(at)),
                Err(e) => notes.push(format!("without {}: {e:#}", side.name)),
            }
        }
    }
    notes.dedup();
    notes.iter().for_each(|note| term::progress(note));
    Ok(json!({
        "kernel": probe::probe().kernel.release, "limit_bytes": limit, "objects": objects, "seconds": seconds,
        "object_bytes": OBJECT_BYTES, "repeats": sized.common.runs(), "connections": CONNECTIONS,
        "dir": plan.args.run.disk.dir, "readahead_kib": readahead_kib(&plan.args.run.disk.dir),
        "rows": PATTERNS.map(|pattern| row(&runs, pattern)), "runs": runs, "notes": notes,
    }))
}

impl Plan<'_> {
    fn wants(&self, side: &Side) -> bool {
        let common = &self.args.run.sized.common;
        let named = self.args.side.is_empty() || self.args.side.iter().any(|key| key == side.key);
        named && if side.weir { !common.rival_only } else { !common.no_rival }
    }

    /// Starts the server, fills it, and measures it under each pattern.
    fn run_side(&self, side: &Side, at: &str) -> anyhow::Result<Vec<Value>> {
        let group = Rival::set_up(Area::None, if side.weir { NO_LIMIT } else { self.limit }, 0);
        // Without permission to make a group Weir's side is not counted from outside.
        let group = if side.weir { group.ok() } else { Some(group?) };
        let backend = Backend::start()?;
        let folder = std::path::absolute(&self.args.run.disk.dir)?
            .join(format!("weir-bench-varnish-{}", std::process::id()));
        let setup = Setup {
            folder: folder.clone(),
            backend: backend.addr,
            store_bytes: self.objects * STORE_PER_OBJECT,
            advice: side.advice,
        };
        let server = Server::start(self.command(side, group.as_ref())?, &setup)?;
        term::progress(&format!("{at}: {} objects are fetched", self.objects));
        fill(server.addr, self.objects)?;
        let load = Load { wrk: &self.tools.wrk, folder: &folder, server: server.addr, objects: self.objects };
        let mut runs = Vec::new();
        for pattern in PATTERNS {
            term::progress(&format!("{at}: {pattern}, {} s", self.seconds));
            let mut run = self.measure(&load, pattern, &server, group.as_ref())?;
            (run["pattern"], run["side"]) = (json!(pattern), json!(side.key));
            runs.push(run);
        }
        let mut client = Client::new(server.addr)?;
        (0..CHECKED).try_for_each(|n| client.fetch(n * 7919 % self.objects))?;
        server.is_the_same()?;
        let again = backend.asked().saturating_sub(self.objects + 1);
        anyhow::ensure!(again * 100 <= self.objects, "varnish had lost {again} objects of {}", self.objects);
        Ok(runs)
    }

    fn command(&self, side: &Side, group: Option<&Rival>) -> anyhow::Result<Command> {
        let first = if side.weir { weir_binary()? } else { self.tools.varnishd.clone() };
        let mut command = match group {
            Some(group) => group.command(&first)?,
            None => Command::new(first),
        };
        if side.weir {
            command.args(["run", "--quiet", "--memory", &self.limit.to_string(), "--swap=none"]);
            command.args(["--files=kernel", "--"]);
            command.arg(&self.tools.varnishd);
        }
        Ok(command)
    }

    fn measure(
        &self,
        load: &Load<'_>,
        pattern: &str,
        server: &Server,
        group: Option<&Rival>,
    ) -> anyhow::Result<Value> {
        let most = self.limit + self.limit * BESIDE_PERCENT / 100;
        for _ in 0..SETTLES_MAX {
            load.run(pattern, self.seconds / SETTLE_PART, || ())?;
            if group.and_then(|group| group.charged_bytes().ok()).is_none_or(|bytes| bytes <= most) {
                break;
            }
        }
        let before = Counts::now(server.worker);
        let mut most = 0;
        let mut run = load.run(pattern, self.seconds, || {
            most = group.and_then(|group| group.charged_bytes().ok()).unwrap_or(0).max(most);
        })?;
        let value = |field: &str| run[field].as_f64().unwrap_or(0.0);
        let counts = Counts::now(server.worker).since(&before, value("responses"), value("bytes"));
        run["counts"] = counts;
        run["ram_bytes"] = json!(group.map(|_| most));
        Ok(run)
    }
}

/// Medians of a pattern, and what Weir gains.
fn row(runs: &[Value], pattern: &str) -> Value {
    let of = |side: &str, at: &str| {
        let mine = runs.iter().filter(|run| run["pattern"] == pattern && run["side"] == side);
        median(mine.filter_map(|run| run.pointer(at)?.as_f64()))
    };
    let mut json = json!({ "pattern": pattern });
    for side in &SIDES {
        let mut cells = json!({});
        for (key, at) in COLUMNS.iter().map(|(key, at, _)| (key, at)) {
            cells[*key] = json!(of(side.key, at));
        }
        json[side.key] = cells;
    }
    let gbit = |side: &str| of(side, "/gbit_per_s");
    let p99 = |side: &str| of(side, "/p99_ms");
    let better = match (p99("kernel-normal"), p99("kernel-random")) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let gains = [
        ratio(gbit("weir"), gbit("kernel-normal")),
        ratio(gbit("weir"), gbit("kernel-random")),
        ratio(better, p99("weir")),
    ];
    for ((key, wanted), gain) in WANTED.iter().zip(gains) {
        json["gain"][key] = json!(gain);
        json["reached"][key] = json!(gain.map(|gain| gain >= *wanted));
    }
    json["reached"]["no_empty_second"] = json!(of("weir", "/empty_seconds").map(|n| n == 0.0));
    json
}

/// Field of a row, where it stands in a run, header.
const COLUMNS: [(&str, &str, &str); 12] = [
    ("gbit_per_s", "/gbit_per_s", "Gbit/s"),
    ("p50_ms", "/p50_ms", "p50, ms"),
    ("p99_ms", "/p99_ms", "p99"),
    ("p999_ms", "/p999_ms", "p99.9"),
    ("longest_pause_ms", "/longest_pause_ms", "pause"),
    ("slowest_second_percent", "/slowest_second_percent", "slowest, %"),
    ("own_s_per_gb", "/counts/own_s_per_gb", "CPU s/GB"),
    ("kernel_s_per_gb", "/counts/kernel_s_per_gb", "kernel"),
    ("keeper_s_per_gb", "/counts/keeper_s_per_gb", "keeper"),
    ("read_per_byte", "/counts/read_per_byte", "read/byte"),
    ("flushes_per_response", "/counts/flushes_per_response", "flushes"),
    ("ram_bytes", "/ram_bytes", "RAM"),
];

/// The table of the sides, and what Weir gains.
pub fn human(report: &Value) -> String {
    let mut text = format!(
        "F3, a cache server over a file {TIMES_RAM} times the RAM: varnish, {} objects of {}, {} clients\n\
         medians of {} run(s) of {} s, Linux {}, {} RAM (limit, budget), readahead of {} KiB; file in {}\n\
         pause: longest time without a byte; CPU of the server, in the kernel (with its reclaim), in the\n\
         keeper; bytes read for a byte sent; flush interrupts a response; most RAM of the control group\n\n",
        report["objects"],
        size(&report["object_bytes"]),
        report["connections"],
        report["repeats"],
        report["seconds"],
        report["kernel"].as_str().unwrap_or("?"),
        size(&report["limit_bytes"]),
        report["readahead_kib"],
        report["dir"].as_str().unwrap_or("?"),
    );
    text += &crate::scenarios::note_lines(report);
    let rows = report["rows"].as_array().cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for row in &rows {
        for side in &SIDES {
            let mut line = vec![format!("{}: {}", row["pattern"].as_str().unwrap_or("?"), side.name)];
            line.extend(COLUMNS.map(|(key, _, _)| match key {
                "ram_bytes" => size(&row[side.key][key]),
                _ => number(&row[side.key][key]),
            }));
            lines.push(line);
        }
    }
    let headers: Vec<&str> = [""].into_iter().chain(COLUMNS.map(|(_, _, header)| header)).collect();
    text += &table::render(&headers, &lines);
    for row in &rows {
        let gain = |key: &str| times(&row["gain"][key]);
        text += &format!(
            "{}: Weir sends {} what the kernel does, {} with random (wanted: {}x, {}x); its p99 is {} better \
             ({}x)\n",
            row["pattern"].as_str().unwrap_or("?"),
            gain("normal"),
            gain("random"),
            WANTED[0].1,
            WANTED[1].1,
            gain("p99"),
            WANTED[2].1,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(side: &str, gbit: f64, p99: f64) -> Value {
        json!({
            "pattern": "random", "side": side, "gbit_per_s": gbit, "p99_ms": p99, "empty_seconds": 0,
            "counts": { "read_per_byte": 0.7 }, "ram_bytes": 512 << 20,
        })
    }

    #[test]
    fn weir_is_measured_against_both_advices_and_the_better_tail() {
        let runs = [one("kernel-normal", 2.0, 90.0), one("kernel-random", 4.0, 60.0), one("weir", 6.0, 20.0)];
        let row = row(&runs, "random");
        assert_eq!((&row["gain"]["normal"], &row["gain"]["random"]), (&json!(3.0), &json!(1.5)));
        assert_eq!((&row["gain"]["p99"], &row["weir"]["read_per_byte"]), (&json!(3.0), &json!(0.7)));
        let reached = json!({ "normal": true, "random": true, "p99": true, "no_empty_second": true });
        assert_eq!(row["reached"], reached);
        let text = human(&json!({ "rows": [row], "notes": ["a note"] }));
        assert!(
            text.contains("512 MiB") && text.contains("3.00x") && text.contains("note: a note"),
            "{text}"
        );
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 130, "{widest}: {text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_no_success() {
        let row = row(&[], "zipf");
        assert!(row["gain"]["normal"].is_null() && row["reached"]["p99"].is_null());
        assert!(human(&json!({ "rows": [row] })).contains("Weir sends - what"));
    }
}
