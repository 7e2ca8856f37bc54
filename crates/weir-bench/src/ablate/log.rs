//! The file in which an ablation keeps what it measured: a line that names machine and sizes, then a line for
//! each rule left out once.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use weir::config::rules::Rule;

use crate::machine::Machine;

/// Figures of one run, by name.
pub type Figures = BTreeMap<String, f64>;

/// Machine and sizes of all lines of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether the sizes are small.
    pub quick: bool,
}

/// A run without a rule, and the run with all rules beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Which scenario ran.
    pub scenario: String,
    /// What was left out.
    pub rule: String,
    /// Which of the runs.
    pub round: u32,
    /// With all rules.
    pub on: Figures,
    /// Without the rule.
    pub off: Figures,
    /// Why there are no figures without it.
    pub failed: Option<String>,
}

/// The file, and what stands there.
#[derive(Debug)]
pub struct Log {
    file: File,
    /// Its first line.
    pub header: Header,
    /// Its other lines.
    pub records: Vec<Record>,
}

impl Log {
    /// Opens the file, or makes it. One of other sizes or of another machine is refused.
    pub fn open(path: &Path, quick: bool) -> anyhow::Result<Log> {
        let shown = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e).with_context(|| shown.to_string()),
        };
        // A line that was cut off is measured again.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| shown.to_string())?;
        file.set_len(whole as u64).with_context(|| shown.to_string())?;
        let mut lines = text[..whole].lines();
        let now = Header { machine: Machine::this(), quick };
        let header = match lines.next() {
            Some(line) => serde_json::from_str(line).with_context(|| format!("{shown}: first line"))?,
            None => now.clone(),
        };
        let same = header.quick == quick && header.machine.is_like(&now.machine);
        ensure!(same, "{shown} is of other sizes or of another machine: name another file with --file");
        let records: Result<Vec<Record>, _> = lines.map(serde_json::from_str).collect();
        let records = records.with_context(|| shown.to_string())?;
        let mut log = Log { file, header, records };
        if whole == 0 {
            log.write(&now)?;
        }
        Ok(log)
    }

    /// Whether this was measured.
    pub fn has(&self, scenario: &str, rule: Rule, round: u32) -> bool {
        let same = |r: &Record| r.scenario == scenario && r.rule == rule.name() && r.round == round;
        self.records.iter().any(same)
    }

    /// Adds a line, at once.
    pub fn append(&mut self, record: Record) -> anyhow::Result<()> {
        self.write(&record)?;
        self.records.push(record);
        Ok(())
    }

    fn write(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        Ok(self.file.write_all(text.as_bytes())?)
    }
}

#[cfg(test)]
impl Record {
    /// A record for tests.
    pub fn of(scenario: &str, rule: &str, round: u32, on: &[(&str, f64)], off: &[(&str, f64)]) -> Record {
        let figures =
            |of: &[(&str, f64)]| of.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let (on, off) = (figures(on), figures(off));
        Record { scenario: scenario.to_owned(), rule: rule.to_owned(), round, on, off, failed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_off_is_dropped_and_the_others_stay() {
        let path = std::env::temp_dir().join(format!("weir-log-{}.jsonl", std::process::id()));
        let mut log = Log::open(&path, true).unwrap();
        log.append(Record::of("pool", "loads", 1, &[("fill", 1.0)], &[("fill", 2.0)])).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}{{\"scenario\":\"po")).unwrap();
        let again = Log::open(&path, true).unwrap();
        assert_eq!(again.records.len(), 1);
        assert!(again.has("pool", Rule::Loads, 1) && !again.has("pool", Rule::Loads, 2));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
        std::fs::write(&path, "no json\n").unwrap();
        assert!(Log::open(&path, true).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
