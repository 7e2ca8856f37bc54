//! `weir bench ablate`: every rule is left out in turn, all else equal, and a set of programs says what that
//! costs. Needs a build with the feature `experiments`.
//!
//! Runs with all rules and runs without one follow each other, so that a slow hour of the machine hits both.
//! What was measured stands in a file line by line: a run that was cut off goes on where it ended.

mod log;
mod page;
mod set;
mod verdict;

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use weir::config::rules::Rule;
use weir_cli::child::Failed;
use weir_cli::compare::sides::weir_missing;
use weir_cli::exit::OWN_FAILURE;
use weir_cli::{interrupt, term};

use crate::Findings;
use crate::cli::AblateArgs;
use crate::rules::CAN_LEAVE_OUT;
use log::{Log, Record};
use set::{Place, SET, Scenario};

/// Runs without a rule for each run with all of them.
const GROUP: usize = 3;
const RUNS: u32 = 7;

/// Some rules in one scenario, each left out once.
struct Turn<'a> {
    scenario: &'a Scenario,
    round: u32,
    rules: Vec<Rule>,
}

/// Measures what is not in the file yet, and writes the page.
pub fn ablate(args: &AblateArgs) -> anyhow::Result<Findings> {
    ensure!(CAN_LEAVE_OUT, "this build cannot leave rules out; `make ablate` builds one that can");
    if let Some(why) = weir_missing() {
        bail!("{why}");
    }
    let rules = chosen(&args.only, Rule::ALL, |rule| rule.name(), "rule")?;
    let wanted: Vec<&Scenario> = SET.iter().collect();
    let mut scenarios = chosen(&args.scenario, &wanted, |scenario| scenario.name, "scenario")?;
    let missing: Vec<String> = scenarios.iter().filter_map(|scenario| scenario.missing()).collect();
    missing.iter().for_each(|what| term::progress(&format!("left out: {what}")));
    scenarios.retain(|scenario| scenario.missing().is_none());
    ensure!(!scenarios.is_empty(), "no scenario is left: {}", missing.join("; "));
    let mut log = Log::open(&args.file, args.quick)?;
    let turns = turns(&scenarios, &rules, args.runs.unwrap_or(if args.quick { 1 } else { RUNS }), &log);
    let place = Place::new(args.quick, &args.dir)?;
    measure(&turns, &place, &mut log)?;
    let report = page::report(&log, &missing);
    if let Some(path) = &args.page {
        std::fs::write(path, page::markdown(&report)).with_context(|| path.display().to_string())?;
        term::progress(&format!("written: {}", path.display()));
    }
    Ok(Findings::new(report, args.json, page::human))
}

/// Those that were named; all when none is.
fn chosen<T: Copy>(
    names: &[String],
    all: &[T],
    name_of: impl Fn(&T) -> &'static str,
    what: &str,
) -> anyhow::Result<Vec<T>> {
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    let one = |name: &String| {
        let found = all.iter().find(|one| name_of(one) == name).copied();
        found.with_context(|| {
            let known: Vec<&str> = all.iter().map(&name_of).collect();
            format!("there is no {what} '{name}'; there are: {}", known.join(", "))
        })
    };
    names.iter().map(one).collect()
}

/// What is left to do, round by round.
fn turns<'a>(scenarios: &[&'a Scenario], rules: &[Rule], runs: u32, log: &Log) -> Vec<Turn<'a>> {
    let mut turns = Vec::new();
    for round in 1..=runs {
        for scenario in scenarios.iter().copied() {
            let mut left: Vec<Rule> =
                rules.iter().copied().filter(|rule| !log.has(scenario.name, *rule, round)).collect();
            // Other neighbours in each round.
            let first = round as usize % left.len().max(1);
            left.rotate_left(first);
            let groups = left.chunks(GROUP);
            turns.extend(groups.map(|rules| Turn { scenario, round, rules: rules.to_vec() }));
        }
    }
    turns
}

/// Seconds that the turns take, as far as is known.
fn seconds(turns: &[Turn<'_>], quick: bool, faster: f64) -> f64 {
    turns.iter().map(|turn| turn.scenario.seconds(quick) * (turn.rules.len() + 1) as f64).sum::<f64>()
        * faster
}

fn measure(turns: &[Turn<'_>], place: &Place, log: &mut Log) -> anyhow::Result<()> {
    let minutes = |turns: &[Turn<'_>], faster: f64| (seconds(turns, place.quick, faster) / 60.0).ceil();
    let runs: usize = turns.iter().map(|turn| turn.rules.len() + 1).sum();
    term::progress(&format!("{runs} runs, about {} minutes", minutes(turns, 1.0)));
    let (began, mut expected_s) = (Instant::now(), 0.0);
    for (i, turn) in turns.iter().enumerate() {
        let faster = if expected_s > 0.0 { began.elapsed().as_secs_f64() / expected_s } else { 1.0 };
        let names: Vec<&str> = turn.rules.iter().map(|rule| rule.name()).collect();
        term::progress(&format!(
            "{} of {}, about {} minutes left: round {}, {}, without {}",
            i + 1,
            turns.len(),
            minutes(&turns[i..], faster),
            turn.round,
            turn.scenario.name,
            names.join(", then ")
        ));
        let on =
            place.run(turn.scenario, None).with_context(|| format!("{}, all rules", turn.scenario.name))?;
        for rule in &turn.rules {
            let off = place.run(turn.scenario, Some(*rule));
            if interrupt::interrupted() {
                bail!("interrupted; the same command goes on from here");
            }
            let (scenario, rule) = (turn.scenario.name.to_owned(), rule.name().to_owned());
            let (off, failed) = match off {
                Ok(off) => (off, None),
                // Weir refused to start: that says nothing of the rule.
                Err(e) if refused(&e) => return Err(e.context(format!("{scenario}, without {rule}"))),
                Err(e) => (Default::default(), Some(format!("{e:#}"))),
            };
            log.append(Record { scenario, rule, round: turn.round, on: on.clone(), off, failed })?;
        }
        expected_s += seconds(&turns[i..=i], place.quick, 1.0);
    }
    Ok(())
}

/// Whether Weir itself ended the run before the program began.
fn refused(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failed>().and_then(|failed| failed.status.code()) == Some(OWN_FAILURE.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_cli::child::run;

    #[test]
    fn only_weirs_own_refusal_ends_the_measuring() {
        let ended = |line: &str| {
            let mut command = std::process::Command::new("sh");
            let error =
                run(command.args(["-c", line]), std::time::Duration::from_secs(60), |_| {}).unwrap_err();
            refused(&error.context("run under Weir"))
        };
        assert!(ended("exit 125") && !ended("exit 1") && !ended("kill -BUS $$"));
    }

    #[test]
    fn what_is_named_is_chosen_and_what_there_is_not_is_refused_with_all_that_there_is() {
        let rules = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names, Rule::ALL, |rule| rule.name(), "rule")
        };
        assert_eq!(rules(&[]).unwrap(), Rule::ALL);
        assert_eq!(rules(&["turns", "loads"]).unwrap(), [Rule::Turns, Rule::Loads]);
        let refused = rules(&["loads", "load"]).unwrap_err().to_string();
        assert!(refused.contains("no rule 'load'") && refused.contains("site-scores"), "{refused}");
    }

    #[test]
    fn what_is_in_the_file_is_not_measured_again_and_each_group_has_one_run_with_all_rules() {
        let path = std::env::temp_dir().join(format!("weir-ablate-{}.jsonl", std::process::id()));
        let mut log = Log::open(&path, true).unwrap();
        let rules = [Rule::Loads, Rule::Turns, Rule::Spans, Rule::Strides];
        let scenarios = [&SET[0], &SET[1]];
        let all = turns(&scenarios, &rules, 2, &log);
        assert_eq!(all.iter().map(|turn| turn.rules.len()).collect::<Vec<_>>(), [3, 1, 3, 1, 3, 1, 3, 1]);
        let each = SET[0].seconds(true) + SET[1].seconds(true);
        assert!((seconds(&all, true, 1.0) - 2.0 * 6.0 * each).abs() < 1e-9);
        for rule in &rules[..3] {
            let record = Record::of(SET[0].name, rule.name(), 1, &[("fill", 2.0)], &[("fill", 1.0)]);
            log.append(record).unwrap();
        }
        let left = turns(&scenarios, &rules, 2, &Log::open(&path, true).unwrap());
        assert_eq!(left[0].rules, [Rule::Strides]);
        assert_eq!(left.len(), 7);
        assert!(Log::open(&path, false).is_err(), "of other sizes");
        std::fs::remove_file(&path).unwrap();
    }
}
