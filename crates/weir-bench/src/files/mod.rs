//! `weir bench files`: a file larger than the RAM, mapped: read from end to end, at random, and again and
//! again; under Weir, under the kernel's reclaim with its usual advice and with the one for that pattern, and
//! past the kernel's cache, which is what the disk can do. The RAM is the limit of the kernel's control
//! group, and Weir's budget: its group only counts, because in one with that limit the kernel would reclaim
//! first. Nothing of the file is cached when a program starts.

mod rows;
mod work;

pub use work::main;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::{StatsFile, weir_binary, weir_missing};
use weir_cli::{child, interrupt, term};
use weir_os::{host, probe};

use crate::Findings;
use crate::cli::FilesArgs;
use crate::disk;

/// Bytes of the file for each byte of RAM.
const FILE_PER_LIMIT: u64 = 4;
const DEADLINE: Duration = Duration::from_secs(600);
const THREADS: u64 = 16;
/// No limit, for a group that only counts.
const NO_LIMIT: u64 = 1 << 40;
/// Pages of the file that may be left in the cache before a program starts, one part in so many.
const LEFT_PART: u64 = 50;

/// What reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Disk,
    Kernel,
    Advised,
    Weir,
}

/// In the order of the table.
const SIDES: [Side; 4] = [Side::Disk, Side::Kernel, Side::Advised, Side::Weir];

impl Side {
    /// Its name in the report.
    fn key(self) -> &'static str {
        match self {
            Side::Disk => "disk",
            Side::Kernel => "kernel",
            Side::Advised => "advised",
            Side::Weir => "weir",
        }
    }

    fn is_kernels(self) -> bool {
        matches!(self, Side::Kernel | Side::Advised)
    }
}

/// How the file is read.
enum Work {
    /// Passes over it, the first of which are not counted.
    Passes { passes: u32, settle: u32 },
    /// Chunks of so many bytes, by several threads.
    Random { chunk: usize },
}

/// A measurement: how much of the file for each hundred bytes of RAM, how it is read, and the advice for that
/// if there is one. Those without are not measured past the cache either.
struct Phase {
    key: &'static str,
    percent: u64,
    work: Work,
    advice: Option<&'static str>,
}

const PHASES: [Phase; 5] = [
    Phase {
        key: "sequential",
        percent: 100 * FILE_PER_LIMIT,
        work: Work::Passes { passes: 1, settle: 0 },
        advice: Some("sequential"),
    },
    Phase { key: "random16", percent: 200, work: Work::Random { chunk: 16 << 10 }, advice: Some("random") },
    Phase { key: "random4", percent: 200, work: Work::Random { chunk: 4 << 10 }, advice: Some("random") },
    Phase { key: "cyclic", percent: 125, work: Work::Passes { passes: 6, settle: 2 }, advice: None },
    Phase { key: "fits", percent: 50, work: Work::Passes { passes: 6, settle: 1 }, advice: None },
];

struct Plan<'a> {
    args: &'a FilesArgs,
    limit: u64,
    seconds: f64,
    path: PathBuf,
    file: File,
}

/// Measures every side of every pattern.
pub fn files(args: &FilesArgs) -> anyhow::Result<Findings> {
    let common = &args.sized.common;
    if let Some(why) = weir_missing().filter(|_| !common.rival_only) {
        anyhow::bail!("{why}\n(--rival-only measures the other sides)");
    }
    let limit = args.sized.limit(1024)?;
    let dir = std::path::absolute(&args.dir).with_context(|| format!("--dir {}", args.dir.display()))?;
    let mut notes = Vec::new();
    let path = dir.join(format!(".weir-bench-files-{}", std::process::id()));
    term::progress(&format!("writing a file of {}", weir::config::format_size(limit * FILE_PER_LIMIT)));
    let _gone = Gone(path.clone());
    let file = work::write_file(&path, limit * FILE_PER_LIMIT)?;
    ensure!(
        weir_os::files::on_disk(file.as_raw_fd()).is_some(),
        "--dir {}: files there are in RAM; name a folder on a disk",
        dir.display()
    );
    let plan = Plan { args, limit, seconds: args.sized.seconds(2.0)?, path, file };
    let runs = plan.measure(&mut notes)?;
    let report = json!({
        "scenario": "files", "kernel": probe::probe().kernel.release, "limit_bytes": limit,
        "file_bytes": limit * FILE_PER_LIMIT, "seconds_per_row": plan.seconds, "repeats": common.runs(),
        "threads": THREADS, "dir": dir, "readahead_kib": disk::readahead_kib(&dir),
        "notes": notes, "rows": rows::report(&runs, limit), "runs": runs,
    });
    Ok(Findings::new(report, common.json, rows::human))
}

/// The file goes with this.
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Plan<'_> {
    fn wants(&self, phase: &Phase, side: Side) -> bool {
        let common = &self.args.sized.common;
        match side {
            Side::Disk => phase.advice.is_some(),
            Side::Kernel => !common.no_rival,
            Side::Advised => !common.no_rival && phase.advice.is_some(),
            Side::Weir => !common.rival_only,
        }
    }

    fn measure(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<Value>> {
        let (mut runs, times) = (Vec::new(), self.args.sized.common.runs());
        for number in 1..=times {
            for phase in &PHASES {
                // Each run begins with another side: a machine that gets slower or faster favours none.
                let first = number as usize % SIDES.len();
                let sides = SIDES[first..].iter().chain(&SIDES[..first]);
                for side in sides.copied().filter(|side| self.wants(phase, *side)) {
                    let at = format!("run {number} of {times}: {}, {}", phase.key, side.key());
                    term::progress(&at);
                    match self.run_side(phase, side) {
                        Ok(mut found) => {
                            (found["phase"], found["side"]) = (json!(phase.key), json!(side.key()));
                            runs.push(found);
                        }
                        Err(e) if !side.is_kernels() || interrupt::interrupted() => return Err(e.context(at)),
                        Err(e) => notes.push(format!("without the kernel's side: {e:#}")),
                    }
                }
            }
        }
        notes.dedup();
        Ok(runs)
    }

    /// Where it runs; none past the cache, and where Weir's RAM is not, or cannot be, counted from outside.
    fn group(&self, side: Side) -> anyhow::Result<Option<Rival>> {
        match side {
            Side::Disk => Ok(None),
            Side::Weir if self.args.sized.common.no_rival => Ok(None),
            Side::Kernel | Side::Advised => Rival::set_up(Area::None, self.limit, 0).map(Some),
            Side::Weir => Ok(Rival::set_up(Area::None, NO_LIMIT, 0).ok()),
        }
    }

    /// One program, from its start to its end.
    fn run_side(&self, phase: &Phase, side: Side) -> anyhow::Result<Value> {
        self.forget()?;
        let (stats, bytes, group) = (StatsFile::in_temp(), self.bytes(phase), self.group(side)?);
        let mut command = self.command(side, group.as_ref(), &stats)?;
        command.args(self.arguments(phase, side, bytes)).arg(&self.path);
        let mut most = 0;
        let finished = child::run(&mut command, DEADLINE, |_| {
            most = group.as_ref().and_then(|group| group.charged_bytes().ok()).unwrap_or(0).max(most);
        })?;
        let line = finished.stdout.lines().last().unwrap_or_default();
        let mut found: Value =
            serde_json::from_str(line).with_context(|| format!("unexpected output: {line:?}"))?;
        found["ram_bytes"] = json!(group.map(|_| most));
        if let Some(read) = found["read_bytes_per_pass"].as_f64().filter(|_| bytes > self.limit) {
            found["read_part"] = json!(read / (bytes - self.limit) as f64);
        }
        if side == Side::Weir {
            let counters = stats.read()?;
            let peak = counters.get("weir_peak_resident_bytes").copied().unwrap_or(0);
            ensure!(peak > 0, "Weir did not start in the measured program: its counters show no RAM in use");
            found["counters"] = json!(counters);
        }
        Ok(found)
    }

    /// Nothing of the file is in the kernel's cache.
    fn forget(&self) -> anyhow::Result<()> {
        let pages = self.limit * FILE_PER_LIMIT / 4096;
        let left = host::forget_cached(&self.file).unwrap_or(0);
        ensure!(
            left <= pages / LEFT_PART,
            "{left} pages of {} stay in the kernel's cache: somebody else has them mapped",
            self.path.display()
        );
        Ok(())
    }

    fn bytes(&self, phase: &Phase) -> u64 {
        const MIB: u64 = 1 << 20;
        (self.limit * phase.percent / 100 / MIB * MIB).max(MIB)
    }

    fn command(&self, side: Side, group: Option<&Rival>, stats: &StatsFile) -> anyhow::Result<Command> {
        let own = std::env::current_exe().context("cannot find the path of this binary")?;
        let inside = |program: &Path| match group {
            Some(group) => group.command(program),
            None => Ok(Command::new(program)),
        };
        let mut command = match side {
            Side::Disk => Command::new(&own),
            Side::Kernel | Side::Advised => inside(&own)?,
            Side::Weir => inside(&weir_binary()?)?,
        };
        if side == Side::Weir {
            command.args(["run", "--quiet", "--memory", &self.limit.to_string(), "--swap=none"]);
            command.args(["--files=kernel", "--stats"]).arg(stats.path()).arg("--").arg(&own);
        }
        Ok(command)
    }

    /// What follows the program's own name, but for the file.
    fn arguments(&self, phase: &Phase, side: Side, bytes: u64) -> Vec<String> {
        let way = match side {
            Side::Disk => "direct",
            Side::Advised => phase.advice.unwrap_or("normal"),
            Side::Kernel | Side::Weir => "normal",
        };
        let mut all = vec!["__files".to_owned(), format!("--way={way}"), format!("--bytes={bytes}")];
        match phase.work {
            Work::Passes { passes, settle } => {
                all.extend([format!("--passes={passes}"), format!("--settle={settle}"), "passes".to_owned()]);
            }
            Work::Random { chunk } => {
                all.extend([format!("--chunk={chunk}"), format!("--threads={THREADS}")]);
                all.extend([format!("--seconds={}", self.seconds), "random".to_owned()]);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, SizedArgs, Task};
    use clap::Parser;

    #[test]
    fn every_program_is_started_with_options_that_it_takes() {
        let args = FilesArgs { sized: SizedArgs::one_quick_run(), dir: "/var/tmp".into() };
        let file = File::open("/dev/null").unwrap();
        let plan = Plan { args: &args, limit: 64 << 20, seconds: 0.5, path: "/file".into(), file };
        for phase in &PHASES {
            for side in SIDES {
                let bytes = plan.bytes(phase);
                assert!(bytes <= plan.limit * FILE_PER_LIMIT && bytes.is_multiple_of(1 << 20));
                let words = [vec!["weir-bench".to_owned()], plan.arguments(phase, side, bytes)].concat();
                let words = [words, vec!["/file".to_owned()]].concat();
                match Cli::try_parse_from(&words).unwrap_or_else(|e| panic!("{words:?}: {e}")).task {
                    Task::FilesWork(args) => {
                        assert_eq!((args.bytes as u64, args.file), (bytes, PathBuf::from("/file")));
                        assert_eq!(args.way == "direct", side == Side::Disk);
                    }
                    task => panic!("{task:?}"),
                }
            }
        }
    }

    #[test]
    fn sides_that_have_nothing_to_show_are_left_out() {
        let mut args = FilesArgs { sized: SizedArgs::one_quick_run(), dir: "/var/tmp".into() };
        args.sized.common.rival_only = true;
        let file = File::open("/dev/null").unwrap();
        let plan = Plan { args: &args, limit: 64 << 20, seconds: 0.5, path: "/file".into(), file };
        let wanted = |phase: &Phase| SIDES.map(|side| plan.wants(phase, side));
        assert_eq!(wanted(&PHASES[0]), [true, true, true, false]);
        assert_eq!(wanted(&PHASES[4]), [false, true, false, false]);
    }
}
