//! The set of an ablation: what runs with all rules and without one of them.

use std::hash::{DefaultHasher, Hasher};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use weir::config::rules::Rule;
use weir_cli::child;
use weir_cli::compare::numbers::Random;
use weir_cli::compare::sides::{resident_peak_bytes, weir_binary};
use weir_os::probe;

use super::log::Figures;
use crate::graph::WAREHOUSE_BYTES;
use crate::workload;

/// The figure of a program; all others are the better the larger they are.
pub const SECONDS: &str = "seconds";

const MIB: u64 = 1 << 20;
/// A run that takes so many times as long as expected is ended, and counts as failed.
const PATIENCE: f64 = 20.0;
const PATIENCE_S_MIN: f64 = 120.0;

/// What is measured.
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is, for the page.
    pub what: &'static str,
    /// Seconds of a run with small sizes, and with the usual ones.
    seconds: [f64; 2],
    work: Work,
}

enum Work {
    Plain(Plain),
    Program(Program),
}

/// The plain program of the other scenarios.
struct Plain {
    phases: &'static str,
    /// RAM, MiB, small and usual.
    ram_mib: [u64; 2],
    data_percent: u64,
    /// Budget beyond that, as the kernel's side would take for its store.
    more_percent: u64,
    /// Seconds of a phase.
    length: [f64; 2],
    swap: bool,
    pool_max: u8,
    /// Name, and where the number is in what it prints.
    figures: &'static [(&'static str, &'static str)],
}

/// Somebody else's program, in a part of the memory that it takes natively.
struct Program {
    command: &'static str,
    /// Its text, and how the file with it ends.
    script: Option<(&'static str, &'static str)>,
    /// Arguments, small and usual.
    args: [&'static [&'static str]; 2],
    percent: u64,
}

const GRAPH: Plain = Plain {
    phases: "graph",
    ram_mib: [64, 128],
    data_percent: 112,
    more_percent: 0,
    length: [0.5, 3.0],
    swap: true,
    pool_max: 20,
    figures: &[("transactions", "/transactions_per_s")],
};

/// All of them.
pub static SET: [Scenario; 9] = [
    Scenario {
        name: "pool",
        what: "twice the RAM, all of it compressed, no file",
        seconds: [5.0, 16.0],
        work: Work::Plain(Plain {
            phases: "fill,seqread,randread@1,randread@2,randwrite@1,zipf@1",
            ram_mib: [64, 256],
            data_percent: 200,
            more_percent: 50,
            length: [0.3, 2.0],
            swap: false,
            pool_max: 90,
            figures: &[
                ("fill", "/phases/fill/mb_per_s"),
                ("read", "/phases/seqread/first_mb_per_s"),
                ("read again", "/phases/seqread/again_mb_per_s"),
                ("random", "/phases/randread@1/ops_per_s"),
                ("random, 2 threads", "/phases/randread@2/ops_per_s"),
                ("random write", "/phases/randwrite@1/ops_per_s"),
                ("zipf", "/phases/zipf@1/ops_per_s"),
            ],
        }),
    },
    Scenario {
        name: "swap",
        what: "twice the RAM, with a swap file",
        seconds: [5.0, 20.0],
        work: Work::Plain(Plain {
            phases: "fill,seqread,randread@1,randread@16,randwrite@1",
            ram_mib: [64, 256],
            data_percent: 200,
            more_percent: 0,
            length: [0.3, 2.0],
            swap: true,
            pool_max: 90,
            figures: &[
                ("fill", "/phases/fill/mb_per_s"),
                ("read", "/phases/seqread/mb_per_s"),
                ("random", "/phases/randread@1/ops_per_s"),
                ("random, 16 threads", "/phases/randread@16/ops_per_s"),
                ("random write", "/phases/randwrite@1/ops_per_s"),
            ],
        }),
    },
    Scenario {
        name: "f4-112",
        what: "transactions on data of 112 % of the RAM, pool of at most 20 %",
        seconds: [3.0, 20.0],
        work: Work::Plain(GRAPH),
    },
    Scenario {
        name: "f4-150",
        what: "transactions on data of 150 % of the RAM, pool of at most 20 %",
        seconds: [3.0, 20.0],
        work: Work::Plain(Plain { data_percent: 150, ..GRAPH }),
    },
    Scenario {
        name: "sort",
        what: "lines sorted in half of the memory that this takes",
        seconds: [3.0, 12.0],
        work: Work::Program(Program {
            command: "sort",
            script: None,
            args: [&["-o", "{out}", "{lines}"], &["-o", "{out}", "{lines}"]],
            percent: 50,
        }),
    },
    Scenario {
        name: "numpy",
        what: "fill, sort and scan of an array in half of the memory that this takes",
        seconds: [3.0, 6.0],
        work: Work::Program(Program {
            command: "python3",
            script: Some((include_str!("../../../../examples/numpy_job.py"), "py")),
            args: [&["33554432"], &["268435456"]],
            percent: 50,
        }),
    },
    Scenario {
        name: "cpython",
        what: "a heap of dictionaries in three quarters of its peak",
        seconds: [4.0, 20.0],
        work: Work::Program(Program {
            command: "python3",
            script: Some((include_str!("../../../../tests/programs/heap_work.py"), "py")),
            args: [&["48", "20000"], &["200", "200000"]],
            percent: 75,
        }),
    },
    Scenario {
        name: "php",
        what: "records on PHP's heap in half of its peak",
        seconds: [3.0, 15.0],
        work: Work::Program(Program {
            command: "php",
            script: Some((include_str!("../../../../tests/programs/php_work.php"), "php")),
            args: [&["60000", "10000"], &["300000", "100000"]],
            percent: 50,
        }),
    },
    Scenario {
        name: "ruby",
        what: "records on Ruby's heap in half of its peak",
        seconds: [4.0, 20.0],
        work: Work::Program(Program {
            command: "ruby",
            script: Some((include_str!("../../../../tests/programs/ruby_work.rb"), "rb")),
            args: [&["60000", "10000"], &["300000", "100000"]],
            percent: 50,
        }),
    },
];

/// MiB of lines that are sorted, small and usual.
const LINES_MIB: [u64; 2] = [16, 64];

impl Scenario {
    /// Seconds of a run, about.
    pub fn seconds(&self, quick: bool) -> f64 {
        self.seconds[usize::from(!quick)]
    }

    /// Names of its figures.
    pub fn figures(&self) -> impl Iterator<Item = &'static str> {
        let of_plain: &[(&str, &str)] = match &self.work {
            Work::Plain(plain) => plain.figures,
            Work::Program(_) => &[(SECONDS, "")],
        };
        of_plain.iter().map(|(name, _)| *name)
    }

    /// What it needs and this machine lacks.
    pub fn missing(&self) -> Option<String> {
        let Work::Program(program) = &self.work else { return None };
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(program.command).is_file()) {
            return Some(format!("{}: {} is not installed", self.name, program.command));
        }
        let numpy = || Command::new(program.command).args(["-c", "import numpy"]).output();
        let lacks = self.name == "numpy" && !numpy().is_ok_and(|output| output.status.success());
        lacks.then(|| "numpy: python3 has no numpy".to_owned())
    }

    fn deadline(&self, quick: bool) -> Duration {
        Duration::from_secs_f64((self.seconds(quick) * PATIENCE).max(PATIENCE_S_MIN))
    }
}

/// A program's native run.
#[derive(Clone, Debug)]
struct Native {
    scenario: &'static str,
    peak_bytes: u64,
    result: u64,
}

/// Where programs and their data lie, and how they ran natively.
pub struct Place {
    /// Whether the sizes are small.
    pub quick: bool,
    /// Folder of the swap files.
    swap_dir: PathBuf,
    folder: PathBuf,
    natives: Mutex<Vec<Native>>,
}

impl Place {
    /// With a folder of its own, which goes with it.
    pub fn new(quick: bool, swap_dir: &Path) -> anyhow::Result<Place> {
        let folder = std::env::temp_dir().join(format!("weir-ablate-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let swap_dir = std::path::absolute(swap_dir).with_context(|| swap_dir.display().to_string())?;
        Ok(Place { quick, swap_dir, folder, natives: Mutex::default() })
    }

    /// One run; without a rule, if one is named.
    pub fn run(&self, scenario: &Scenario, without: Option<Rule>) -> anyhow::Result<Figures> {
        match &scenario.work {
            Work::Plain(plain) => self.run_plain(scenario, plain, without),
            Work::Program(program) => self.run_program(scenario, program, without),
        }
    }

    fn of_size<T: Copy>(&self, sizes: &[T; 2]) -> T {
        sizes[usize::from(!self.quick)]
    }

    fn run_plain(
        &self,
        scenario: &Scenario,
        plain: &Plain,
        without: Option<Rule>,
    ) -> anyhow::Result<Figures> {
        let ram = self.of_size(&plain.ram_mib) * MIB;
        let unit = if plain.phases == "graph" { WAREHOUSE_BYTES as u64 } else { 1 };
        let data = ram * plain.data_percent / 100 / unit * unit;
        let (bytes, seconds) = (data.to_string(), self.of_size(&plain.length).to_string());
        let settle = if self.quick { "1" } else { "5" };
        let args = [plain.phases, "--bytes", &bytes, "--seconds", &seconds, "--settle", settle];
        let job = workload::job(&args, scenario.deadline(self.quick))?;
        let mut options = vec![("pool-max", plain.pool_max.to_string()), ("swap", "none".to_owned())];
        if plain.swap {
            options[1].1 = format!("{}:{}", self.swap_dir.display(), data + 64 * MIB);
        }
        options.extend(without.map(|rule| ("rules-off", rule.name().to_owned())));
        let budget = ram * (100 + plain.more_percent) / 100;
        let (outcome, _) = job.run_weir_with(budget, probe::probe().auto_faults(), &options)?;
        let figure = |(name, at): &(&str, &str)| {
            let value = outcome.printed.pointer(at).and_then(Value::as_f64);
            Ok(((*name).to_owned(), value.with_context(|| format!("no number at {at}"))?))
        };
        plain.figures.iter().map(figure).collect()
    }

    fn run_program(
        &self,
        scenario: &Scenario,
        program: &Program,
        without: Option<Rule>,
    ) -> anyhow::Result<Figures> {
        let native = self.native(scenario, program)?;
        let mut command = Command::new(weir_binary()?);
        let budget = (native.peak_bytes * program.percent / 100).max(16 * MIB);
        command.args(["run", "--quiet", "--memory", &budget.to_string()]);
        command.arg(format!("--swap={}:{}", self.swap_dir.display(), native.peak_bytes * 2));
        command.args(without.map(|rule| format!("--rules-off={}", rule.name())));
        command.arg("--").arg(program.command).args(self.arguments(program)?);
        let (seconds, result) = self.one(&mut command, scenario, |_| {})?;
        ensure!(result == native.result, "{}: the result is not that of the native run", scenario.name);
        Ok(Figures::from([(SECONDS.to_owned(), seconds)]))
    }

    /// What the program takes and finds without Weir: run once.
    fn native(&self, scenario: &Scenario, program: &Program) -> anyhow::Result<Native> {
        let mut known = self.natives.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(native) = known.iter().find(|native| native.scenario == scenario.name) {
            return Ok(native.clone());
        }
        let mut command = Command::new(program.command);
        command.args(self.arguments(program)?);
        let mut peak_bytes = 0;
        let peak = |pid| peak_bytes = resident_peak_bytes(pid).unwrap_or(0).max(peak_bytes);
        let (_, result) = self.one(&mut command, scenario, peak)?;
        let native = Native { scenario: scenario.name, peak_bytes, result };
        known.push(native.clone());
        Ok(native)
    }

    /// Seconds, and a number for what it found.
    fn one(
        &self,
        command: &mut Command,
        scenario: &Scenario,
        each_poll: impl FnMut(u32),
    ) -> anyhow::Result<(f64, u64)> {
        let out = self.folder.join("out");
        let _ = std::fs::remove_file(&out); // of the run before
        command.env("LC_ALL", "C").env("PYTHONHASHSEED", "0").env("OPENBLAS_NUM_THREADS", "1");
        let finished = child::run(command, scenario.deadline(self.quick), each_poll)?;
        let mut hasher = DefaultHasher::new();
        // Of a line of JSON the checksum counts: the times in it differ.
        let printed: Option<Value> = serde_json::from_str(finished.stdout.trim()).ok();
        match printed.filter(|printed| printed.is_object()) {
            Some(printed) => hasher.write(printed["checksum"].to_string().as_bytes()),
            None => hasher.write(finished.stdout.as_bytes()),
        }
        if out.exists() {
            hasher.write(&std::fs::read(&out)?);
        }
        Ok((finished.elapsed.as_secs_f64(), hasher.finish()))
    }

    /// The program's arguments, with its script and its data in their files.
    fn arguments(&self, program: &Program) -> anyhow::Result<Vec<String>> {
        let mut args = Vec::new();
        if let Some((text, end)) = program.script {
            let path = self.folder.join(format!("{}.{end}", text.len()));
            std::fs::write(&path, text)?;
            args.push(path.display().to_string());
        }
        for arg in self.of_size(&program.args) {
            args.push(match *arg {
                "{out}" => self.folder.join("out").display().to_string(),
                "{lines}" => self.lines()?.display().to_string(),
                arg => arg.to_owned(),
            });
        }
        Ok(args)
    }

    /// A file of lines in no order.
    fn lines(&self) -> anyhow::Result<PathBuf> {
        let path = self.folder.join("lines");
        if !path.exists() {
            let (mut file, mut random) = (BufWriter::new(std::fs::File::create(&path)?), Random::new(7));
            let (mut written, bytes) = (0, self.of_size(&LINES_MIB) * MIB);
            while written < bytes {
                let number = random.next_word();
                let line =
                    format!("{:012} GET /item/{}/page/{} 200\n", number >> 24, number % 977, number % 13);
                file.write_all(line.as_bytes())?;
                written += line.len() as u64;
            }
            file.flush()?;
        }
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_scenarios_and_figures_are_unique_and_a_program_has_seconds() {
        for (i, scenario) in SET.iter().enumerate() {
            assert!(SET[..i].iter().all(|other| other.name != scenario.name), "{}", scenario.name);
            let figures: Vec<&str> = scenario.figures().collect();
            assert_eq!(figures.contains(&SECONDS), matches!(scenario.work, Work::Program(_)));
            assert!(scenario.seconds(true) <= scenario.seconds(false));
        }
    }

    #[test]
    fn a_program_runs_natively_once_and_its_files_go_with_the_place() {
        let place = Place::new(true, Path::new("/var/tmp")).unwrap();
        let sort = SET.iter().find(|scenario| scenario.name == "sort").unwrap();
        let Work::Program(program) = &sort.work else { panic!("sort is a program") };
        let native = place.native(sort, program).unwrap();
        assert!(native.peak_bytes > 8 * MIB, "{native:?}");
        let sorted = std::fs::read(place.folder.join("out")).unwrap();
        assert!(sorted.split(|b| *b == b'\n').is_sorted_by(|a, b| a <= b || b.is_empty()));
        std::fs::remove_file(place.folder.join("out")).unwrap();
        assert_eq!(place.native(sort, program).unwrap().result, native.result);
        assert!(!place.folder.join("out").exists(), "known from the first time");
        let folder = place.folder.clone();
        drop(place);
        assert!(!folder.exists());
    }
}
