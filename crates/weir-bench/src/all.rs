//! `weir bench all`: every scenario, one after the other, each in a process of its own.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Context;
use weir_cli::{interrupt, term};

use crate::cli::AllArgs;

/// Which of the shared options a scenario takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// It takes `--quick` alone.
    Quick,
    /// That and `--runs`.
    Runs,
    /// Those, and whether the kernel's side runs.
    Sides,
}

/// What is started.
struct Entry {
    words: &'static [&'static str],
    takes: Takes,
    /// With small data, and as it is; of three runs.
    minutes: [f64; 2],
}

const fn entry(words: &'static [&'static str], takes: Takes, minutes: [f64; 2]) -> Entry {
    Entry { words, takes, minutes }
}

static ALL: [Entry; 14] = [
    entry(&["pool"], Takes::Sides, [0.5, 6.0]),
    entry(&["swap"], Takes::Sides, [1.0, 9.0]),
    entry(&["files"], Takes::Sides, [0.7, 5.0]),
    entry(&["numpy"], Takes::Sides, [0.5, 2.0]),
    entry(&["passes"], Takes::Sides, [1.0, 12.0]),
    entry(&["scaling"], Takes::Sides, [1.0, 7.0]),
    entry(&["gate"], Takes::Runs, [0.2, 1.0]),
    entry(&["policy"], Takes::Quick, [0.2, 1.0]),
    entry(&["codec"], Takes::Runs, [0.5, 3.0]),
    entry(&["founding", "f1"], Takes::Sides, [1.0, 9.0]),
    entry(&["founding", "f2"], Takes::Sides, [0.5, 3.0]),
    entry(&["founding", "f3"], Takes::Sides, [2.0, 15.0]),
    entry(&["founding", "f4"], Takes::Sides, [3.0, 35.0]),
    entry(&["founding", "f5"], Takes::Sides, [1.0, 6.0]),
];

const RUNS: f64 = 3.0;

impl Entry {
    fn name(&self) -> String {
        self.words.join(" ")
    }

    /// Minutes that it takes, about.
    fn minutes(&self, args: &AllArgs) -> f64 {
        let minutes = self.minutes[usize::from(!args.quick)];
        let usual = if args.quick { 1.0 } else { RUNS };
        minutes * args.runs.filter(|_| self.takes != Takes::Quick).map_or(1.0, |n| f64::from(n) / usual)
    }

    fn arguments(&self, args: &AllArgs) -> Vec<String> {
        let mut all: Vec<String> = self.words.iter().map(|word| (*word).to_owned()).collect();
        all.extend(args.quick.then(|| "--quick".to_owned()));
        all.extend(args.runs.filter(|_| self.takes != Takes::Quick).map(|n| format!("--runs={n}")));
        all.extend((args.no_rival && self.takes == Takes::Sides).then(|| "--no-rival".to_owned()));
        if ["numpy", "passes"].contains(&self.words[0]) {
            all.extend(args.python.iter().map(|path| format!("--python={}", path.display())));
        }
        all
    }
}

/// Runs them. What failed is said at the end, and is the exit status.
pub fn all(args: &AllArgs, record: Option<&Path>) -> anyhow::Result<ExitCode> {
    interrupt::catch_signals()?;
    let wanted: Vec<&Entry> =
        ALL.iter().filter(|entry| args.only.is_empty() || args.only.contains(&entry.name())).collect();
    if let Some(name) = args.only.iter().find(|name| ALL.iter().all(|entry| entry.name() != **name)) {
        let known: Vec<String> = ALL.iter().map(Entry::name).collect();
        anyhow::bail!("there is no scenario '{name}'; there are: {}", known.join(", "));
    }
    let minutes = |of: &[&Entry]| of.iter().map(|entry| entry.minutes(args)).sum::<f64>().ceil();
    term::progress(&format!("{} scenarios, about {} minutes", wanted.len(), minutes(&wanted)));
    let own = std::env::current_exe().context("cannot find the path of this binary")?;
    let mut failed = Vec::new();
    for (i, entry) in wanted.iter().enumerate() {
        let left = minutes(&wanted[i..]);
        let name = entry.name();
        term::progress(&format!("== {} of {}, about {left} minutes left: {name}", i + 1, wanted.len()));
        let began = Instant::now();
        // No deadline here: each program that a scenario starts has one.
        let mut command = Command::new(&own);
        command.args(entry.arguments(args));
        command.args(record.iter().flat_map(|path| [Path::new("--record"), path]));
        let ended = command.status();
        if interrupt::interrupted() {
            anyhow::bail!("interrupted");
        }
        match ended {
            Ok(status) if status.success() => {
                term::progress(&format!("{name}: {:.1} minutes", began.elapsed().as_secs_f64() / 60.0));
            }
            Ok(status) => failed.push(format!("{name} ({status})")),
            Err(e) => failed.push(format!("{name} ({e})")),
        }
    }
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Scenario, Task};
    use clap::Parser;

    fn args(words: &[&str]) -> AllArgs {
        let cli = Cli::try_parse_from([&["weir-bench", "all"], words].concat()).unwrap();
        match cli.task {
            Task::All(args) => args,
            task => panic!("{task:?}"),
        }
    }

    #[test]
    fn every_scenario_is_started_with_options_that_it_takes() {
        let all = args(&["--quick", "--runs=2", "--no-rival", "--python=/p"]);
        for entry in &ALL {
            let words = [vec!["weir-bench".to_owned()], entry.arguments(&all)].concat();
            let cli = Cli::try_parse_from(&words).unwrap_or_else(|e| panic!("{words:?}: {e}"));
            assert!(matches!(cli.task, Task::Scenario(_)), "{words:?}");
            assert!(words.contains(&"--quick".to_owned()));
            assert!(entry.minutes(&all) > 0.0 && entry.minutes[0] < entry.minutes[1]);
        }
        let told = Cli::try_parse_from(["weir-bench", "rules"]).unwrap().task;
        assert!(matches!(told, Task::Scenario(Scenario::Rules(_))));
    }

    #[test]
    fn more_runs_take_more_minutes() {
        let pool = &ALL[0];
        assert!((pool.minutes(&args(&["--runs=6"])) - 2.0 * pool.minutes(&args(&[]))).abs() < 1e-9);
        assert!((pool.minutes(&args(&["--runs=6", "--quick"])) - 6.0 * pool.minutes[0]).abs() < 1e-9);
    }
}
