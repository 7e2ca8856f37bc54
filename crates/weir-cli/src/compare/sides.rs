//! The sides of a comparison: how each starts the measured program, and what RAM each took.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use weir_os::probe::FaultMode;

use super::rival::Rival;
use crate::{child, term};

/// Result of one run of the measured program.
#[derive(Debug)]
pub struct Outcome {
    /// What the program printed, as JSON.
    pub printed: Value,
    /// From start to end, in seconds.
    pub seconds: f64,
    /// Most RAM that the process held as the kernel counts it (`VmHWM`), in bytes; samples, so a lower bound.
    pub rss_peak_bytes: u64,
}

/// Result of a run under the kernel's swap.
#[derive(Debug)]
pub struct RivalOutcome {
    /// As on the other sides.
    pub outcome: Outcome,
    /// Most RAM beyond the limit, in bytes: the compressed store's, and room given where the kernel would
    /// have killed the program.
    pub store_peak_bytes: u64,
    /// How often such room was given.
    pub oom_reliefs: u64,
    /// How often the kernel killed the program before it ended well once.
    pub oom_kills: u64,
}

impl RivalOutcome {
    /// Everything, for `--json`.
    pub fn to_json(&self) -> Value {
        let mut json = self.outcome.to_json();
        json["store_peak_bytes"] = json!(self.store_peak_bytes);
        json["oom_kills"] = json!(self.oom_kills);
        json["oom_reliefs"] = json!(self.oom_reliefs);
        json
    }
}

/// RAM of Weir's side beside a limit of the kernel's: with what its compressed store took at most. Where
/// there is nothing to compare with, with half the limit: about what LZ4 makes of the data of the scenarios.
pub fn equal_ram(limit: u64, rival: Option<&RivalOutcome>) -> u64 {
    limit + rival.map_or(limit / 2, |rival| rival.store_peak_bytes)
}

/// The measured program.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// After this it is killed and the comparison ends.
    pub deadline: Duration,
}

impl Job {
    /// A job that is a command of this binary's own.
    pub fn own(command: &str, args: &[&str], deadline: Duration) -> anyhow::Result<Job> {
        let args = std::iter::once(command).chain(args.iter().copied()).map(OsString::from).collect();
        Ok(Job { program: std::env::current_exe()?, args, deadline })
    }

    /// As it is.
    pub fn run_native(&self) -> anyhow::Result<Outcome> {
        self.measure(Command::new(&self.program), |_| ()).context("native run")
    }

    /// Under the kernel's swap, in up to `attempts`: under heavy pressure the kernel at times gives up
    /// reclaiming and kills the program although swap is free. From half of them on the program gets room
    /// then, where the kernel can be told to wait ([`super::relief`]). Only the run that ends well is
    /// measured; kills and room given are counted.
    pub fn run_rival(&self, rival: &Rival, attempts: u64) -> anyhow::Result<RivalOutcome> {
        let result = self.attempt_rival(rival, attempts);
        rival.relieve_no_more();
        result
    }

    fn attempt_rival(&self, rival: &Rival, attempts: u64) -> anyhow::Result<RivalOutcome> {
        let kills_before = rival.oom_kills()?;
        loop {
            rival.reset_store_peak()?;
            let mut store_seen = 0;
            let result = self.measure(rival.command(&self.program)?, |_| {
                store_seen = rival.store_bytes_now().max(store_seen);
            });
            let oom_kills = rival.oom_kills()? - kills_before;
            match result {
                Ok(outcome) => {
                    return Ok(RivalOutcome {
                        outcome,
                        store_peak_bytes: rival.store_peak_bytes(store_seen)?,
                        oom_reliefs: rival.reliefs(),
                        oom_kills,
                    });
                }
                Err(e) if oom_kills == 0 || !e.is::<child::Failed>() => {
                    return Err(e.context("run under the kernel's swap"));
                }
                Err(_) if oom_kills >= attempts => {
                    bail!(
                        "under its own swap the kernel killed the program {oom_kills} time(s) for want of memory"
                    );
                }
                Err(_) => term::progress("the kernel killed the program for want of memory; once more"),
            }
            if oom_kills >= attempts / 2 {
                rival.relieve();
            }
        }
    }

    /// Under Weir with a budget in bytes and no swap file, faults served in `mode` (none: what `weir run`
    /// takes by itself). Also returns Weir's counters.
    pub fn run_weir(
        &self,
        budget_bytes: u64,
        mode: Option<FaultMode>,
    ) -> anyhow::Result<(Outcome, BTreeMap<String, u64>)> {
        self.run_weir_with(budget_bytes, mode, &[("swap", "none".to_owned())])
    }

    /// The same with options of `weir run` by name, such as a swap file.
    pub fn run_weir_with(
        &self,
        budget_bytes: u64,
        mode: Option<FaultMode>,
        options: &[(&str, String)],
    ) -> anyhow::Result<(Outcome, BTreeMap<String, u64>)> {
        self.run_weir_watched(budget_bytes, mode, options, None, |_| ())
    }

    /// The same in a control group, if one is given, and looked at now and then by its process id.
    pub fn run_weir_watched(
        &self,
        budget_bytes: u64,
        mode: Option<FaultMode>,
        options: &[(&str, String)],
        group: Option<&Rival>,
        each_poll: impl FnMut(u32),
    ) -> anyhow::Result<(Outcome, BTreeMap<String, u64>)> {
        let stats = StatsFile::in_temp();
        let mut command = match group {
            Some(group) => group.command(&weir_binary()?)?,
            None => Command::new(weir_binary()?),
        };
        command.args(["run", "--quiet", "--memory", &budget_bytes.to_string(), "--stats"]).arg(stats.path());
        if let Some(mode) = mode {
            command.args(["--faults", mode.name()]);
        }
        command.args(options.iter().map(|(name, value)| format!("--{name}={value}")));
        command.arg("--").arg(&self.program);
        let outcome = self.measure(command, each_poll).context("run under Weir")?;
        let counters = stats.read()?;
        let peak = counters.get("weir_peak_resident_bytes").copied().unwrap_or(0);
        ensure!(peak > 0, "Weir did not start in the measured program: its counters show no RAM in use");
        ensure!(peak <= budget_bytes, "Weir held {peak} bytes, more than its budget of {budget_bytes}");
        Ok((outcome, counters))
    }

    // The type of a child's failure stays visible: callers tell it from other errors.
    fn measure(&self, mut command: Command, mut each_poll: impl FnMut(u32)) -> anyhow::Result<Outcome> {
        let mut rss_peak_bytes = 0;
        let finished = child::run(command.args(&self.args), self.deadline, |pid| {
            rss_peak_bytes = resident_peak_bytes(pid).unwrap_or(0).max(rss_peak_bytes);
            each_poll(pid);
        })?;
        let line = finished.stdout.lines().last().unwrap_or_default();
        let printed = serde_json::from_str(line).with_context(|| format!("unexpected output: {line:?}"))?;
        Ok(Outcome { printed, seconds: finished.elapsed.as_secs_f64(), rss_peak_bytes })
    }
}

impl Outcome {
    /// Everything, for `--json`.
    pub fn to_json(&self) -> Value {
        json!({ "seconds": self.seconds, "rss_peak_bytes": self.rss_peak_bytes, "printed": self.printed })
    }
}

/// Most RAM that a process held so far, as the kernel counts it.
pub fn resident_peak_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A file for Weir's counters, removed when dropped. The name holds the pid of the program: a program that
/// starts others leaves one file each.
#[derive(Debug)]
pub struct StatsFile(PathBuf);

impl StatsFile {
    /// Its name; the program under Weir makes it.
    pub fn in_temp() -> StatsFile {
        StatsFile(std::env::temp_dir().join(format!("weir-bench-{}.stats", std::process::id())))
    }

    /// What `--stats` is given.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What Weir left there. It fails where Weir did not start.
    pub fn read(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let text = std::fs::read_to_string(&self.0)
            .with_context(|| format!("Weir left no counters in {}: it did not start", self.0.display()))?;
        Ok(parse_counters(&text))
    }
}

impl Drop for StatsFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn parse_counters(text: &str) -> BTreeMap<String, u64> {
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(key, value)| Some((key.to_owned(), value.trim().parse().ok()?))).collect()
}

/// The `weir` binary: this one, or the one beside `weir-bench`.
pub fn weir_binary() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this binary")?;
    Ok(if own.ends_with("weir-bench") { own.with_file_name("weir") } else { own })
}

/// Why Weir's side cannot run, if it cannot.
pub fn weir_missing() -> Option<String> {
    crate::preload::find().err().map(|e| format!("{e:#}"))
}

/// Name of the way pages travelled, from the counters.
pub fn pager_name(counters: &BTreeMap<String, u64>) -> &'static str {
    match counters.get("weir_pager") {
        Some(0) => "move",
        Some(1) => "copy",
        Some(2) => "segv",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_key_value_lines_and_odd_lines_are_left_out() {
        let counters = parse_counters("pgfault 12\nweir_pager 0\n\nnonsense\nkey text\n");
        assert_eq!(counters.get("pgfault"), Some(&12));
        assert_eq!(pager_name(&counters), "move");
        assert_eq!(counters.len(), 2);
    }

    #[test]
    fn the_own_resident_peak_is_known() {
        assert!(resident_peak_bytes(std::process::id()).unwrap() > 1 << 16);
    }
}
