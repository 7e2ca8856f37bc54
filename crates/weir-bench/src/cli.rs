//! The command line of `weir bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand};
use weir_cli::child::InCgroupArgs;
use weir_os::probe::FaultMode;

use crate::disk;
use crate::founding::SERVER_SIDES;

/// Measure Weir against the kernel's own swap, or against the program alone.
#[derive(Debug, Parser)]
#[command(
    name = "weir-bench",
    bin_name = "weir bench",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// Draw the result as SVG files in this folder
    #[arg(long, value_name = "DIR", global = true)]
    pub plot: Option<PathBuf>,
    /// Add what was found to this file, as a line of JSON with the machine and the day
    #[arg(long, value_name = "FILE", global = true)]
    pub record: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
}

/// A scenario, or what one starts.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// What is asked for.
    #[command(flatten)]
    Scenario(Scenario),
    /// Every scenario, one after the other
    All(AllArgs),
    /// A plain program to measure: fills memory and reads it back
    #[command(name = "__workload", hide = true)]
    Workload(WorkloadArgs),
    /// A plain program to measure: reads a file
    #[command(name = "__files", hide = true)]
    FilesWork(FilesWorkArgs),
    /// Enter a control group, then become another program
    #[command(name = "__in-cgroup", hide = true)]
    InCgroup(InCgroupArgs),
    /// Run a program under the kernel's own swap and a memory limit
    #[command(name = "__kernel-side", hide = true)]
    KernelSide(KernelSideArgs),
}

/// What `weir bench` measures.
#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// Compressed pool: fill, sequential and random access to twice the RAM limit
    Pool(PoolArgs),
    /// Compressed pool: random reads by 1 to 16 threads, and a model of more processors
    Scaling(ScalingArgs),
    /// Swap file: fill, sequential and random access to twice the RAM limit, most of it on disk
    Swap(SwapArgs),
    /// Mapped files larger than the RAM: passes, random reads, the same pass again and again
    Files(FilesArgs),
    /// A numpy program: fill, sort and scan of an array, three times its size at the peak
    Numpy(NumpyArgs),
    /// Passes over the same data, a little more than RAM: arrays, k-means, a heap under collection
    Passes(PassesArgs),
    /// System-call gate of inline faults: what a call costs, past it and through it
    Gate(GateArgs),
    /// Replacement policies replayed from traces: what each misses
    Policy(PolicyArgs),
    /// Codecs on pages of real programs: bytes a page, time to compress and to expand
    Codec(CodecArgs),
    /// The experiments of the reports that Weir was founded on
    Founding(FoundingArgs),
    /// The rules that an experiment can leave out
    Rules(JsonArgs),
    /// Every rule left out in turn, and what that costs a set of programs
    Ablate(AblateArgs),
    /// Figures that were recorded, as documents with charts
    Report(ReportArgs),
}

/// Options of a scenario that only prints
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Exact values as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options that all scenarios share.
#[derive(Clone, Copy, Debug, Args)]
pub struct CommonBenchArgs {
    /// Exact values of all runs as JSON
    #[arg(long)]
    pub json: bool,
    /// How often each side runs; medians are shown [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: Option<u32>,
    /// Smaller data: a smoke test, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Measure the kernel's own swap and the plain program only
    #[arg(long)]
    pub rival_only: bool,
    /// Measure Weir and the plain program only
    #[arg(long, conflicts_with = "rival_only")]
    pub no_rival: bool,
}

impl CommonBenchArgs {
    /// How often each side runs.
    pub fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// What tests of the scenarios begin with.
    #[cfg(test)]
    pub fn one_quick_run() -> CommonBenchArgs {
        let runs = Some(1);
        CommonBenchArgs { json: false, runs, quick: true, rival_only: false, no_rival: false }
    }
}

/// Options of the scenarios with the plain program
#[derive(Clone, Debug, Args)]
pub struct SizedArgs {
    /// Options of all scenarios.
    #[command(flatten)]
    pub common: CommonBenchArgs,
    /// RAM: the kernel's limit, and Weir's budget or a part of it [default: 256M in pool, swap and founding
    /// f2, 1G in files, else 128M; with --quick a quarter]
    #[arg(long, visible_alias = "memory", value_name = "SIZE")]
    pub size: Option<String>,
    /// Seconds per measurement [default: 2, in founding 3; with --quick 0.5]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
}

impl SizedArgs {
    /// What tests of the scenarios begin with.
    #[cfg(test)]
    pub fn one_quick_run() -> SizedArgs {
        SizedArgs { common: CommonBenchArgs::one_quick_run(), size: None, seconds: None }
    }

    /// The RAM in bytes, of so many MiB where nobody says something else.
    pub fn limit(&self, usual_mib: u64) -> anyhow::Result<u64> {
        let mib = if self.common.quick { usual_mib / QUICK_PART } else { usual_mib };
        disk::limit(self.size.as_deref(), &format!("{mib}M"))
    }

    /// Seconds per measurement.
    pub fn seconds(&self, usual: f64) -> anyhow::Result<f64> {
        let seconds = self.seconds.unwrap_or(if self.common.quick { QUICK_SECONDS } else { usual });
        ensure!(
            seconds > 0.0 && seconds <= SECONDS_MAX,
            "--seconds must be above 0 and at most {SECONDS_MAX}"
        );
        Ok(seconds)
    }
}

/// Part of the RAM with `--quick`.
const QUICK_PART: u64 = 4;
const QUICK_SECONDS: f64 = 0.5;
const SECONDS_MAX: f64 = 60.0;

/// Option of the scenarios in which faults may be served in either mode
#[derive(Clone, Copy, Debug, Args)]
pub struct ModeArgs {
    /// Weir's mode of faults: inline or thread [default: both; in swap what weir run takes]
    #[arg(long, value_name = "MODE", value_parser = fault_mode)]
    pub faults: Option<FaultMode>,
}

/// `weir bench pool`
#[derive(Debug, Args)]
#[command(
    after_help = "Weir runs once with faults resolved in the faulting thread (inline) and once with a \
    thread that \
    serves them, each beside the kernel's swap on compressed RAM, with as much RAM as that took. A gain \
    is how many \
    times better Weir is than the kernel; the target is the gain wanted. Modes that this machine refuses \
    are left \
    out, see weir doctor."
)]
pub struct PoolArgs {
    /// How large, how long and how often.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Which mode of faults.
    #[command(flatten)]
    pub mode: ModeArgs,
}

/// `weir bench scaling`
#[derive(Debug, Args)]
#[command(
    after_help = "Random reads of twice as much data as the limit, by 1, 2, 4, 8 and 16 threads: under \
    Weir in both modes of faults, and under \
    the kernel's swap on compressed RAM, with as much RAM as that took. From what the inline runs count \
    and time it is then computed what more \
    processors would give; that part of the output is no measurement, and says so."
)]
pub struct ScalingArgs {
    /// How large, how long and how often.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Which mode of faults.
    #[command(flatten)]
    pub mode: ModeArgs,
}

fn fault_mode(text: &str) -> Result<FaultMode, String> {
    let found = FaultMode::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| "expected inline or thread".to_owned())
}

/// `weir bench swap`
#[derive(Debug, Args)]
#[command(
    after_help = "The kernel swaps to a file under the RAM limit, with page-cluster 3, once as it is and \
    once behind \
    zswap; its disk is first said to be no spinning one. Weir has a budget of exactly that limit and a \
    small pool, and \
    once more as much RAM as zswap took and a pool of any size. A gain is how many times better Weir is \
    than the \
    kernel; the target is the gain wanted. Other settings of weir run are taken from WEIR_* variables."
)]
pub struct SwapArgs {
    /// How large, how long and how often.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Which mode of faults.
    #[command(flatten)]
    pub mode: ModeArgs,
    /// Options about the disk.
    #[command(flatten)]
    pub disk: DiskArgs,
}

/// Options of `weir bench files`
#[derive(Debug, Args)]
#[command(
    after_help = "One program reads a file of four times the RAM through a mapping, in order and at random, \
    and passes over 1.25 times and half of the RAM again and again. The RAM is the limit of the control \
    group of the kernel's side, and Weir's budget. Each begins with nothing of the file in the kernel's \
    cache. Beside them the disk, past that cache."
)]
pub struct FilesArgs {
    /// How large, how long and how often.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Folder of the file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
}

/// Where and how the scenarios with a swap file swap.
#[derive(Clone, Debug, Args)]
pub struct DiskArgs {
    /// Folder of the swap files of all sides
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Largest share of Weir's budget that compressed pages may take, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub pool_max: Option<u8>,
}

/// `weir bench founding`
#[derive(Debug, Args)]
pub struct FoundingArgs {
    /// Which one.
    #[command(subcommand)]
    pub experiment: Experiment,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum Experiment {
    /// Swap-out batching: slots and pages in batches against one by one, to a swap file and to the pool, 1
    /// and 16 threads
    F1(FoundingRunArgs),
    /// Reclaim that knows of free swap space: work on a mapped file while a small swap file is full of
    /// memory, with memory that gives way as far as there is room for it against any case
    F2(FoundingRunArgs),
    /// TLB flush batching: pages unmapped one by one against whole batches, 1, 4 and 16 threads; and a cache
    /// server whose file is larger than the RAM
    F3(F3Args),
    /// Compressed cache: none, writeback, writethrough and adaptive, with data of 75 to 175 % of the RAM
    F4(FoundingRunArgs),
    /// Page order in the allocator: frames in order against shuffled ones, 1 to 64 sequential readers
    F5(FoundingRunArgs),
}

/// `weir bench founding f1`, `f2`, `f4` and `f5`
#[derive(Debug, Args)]
pub struct FoundingRunArgs {
    /// How large, how long and how often.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Options about the disk.
    #[command(flatten)]
    pub disk: DiskArgs,
}

/// `weir bench founding f3`
#[derive(Debug, Args)]
#[command(after_help = "The server is varnish with its objects in a file, the load is wrk: apt-get install \
    --no-install-recommends varnish wrk gcc libc6-dev. The kernel's side runs in a control group with the \
    RAM as its limit, once with the kernel's usual advice for the file and once with varnish's own, random. \
    Ten minutes, to look for pauses: --half server --runs 1 --serve-seconds 600.")]
pub struct F3Args {
    /// What all of them take.
    #[command(flatten)]
    pub run: FoundingRunArgs,
    /// Measure this half alone: memory in the pool, or the cache server
    #[arg(long, value_parser = ["memory", "server"])]
    pub half: Option<String>,
    /// Seconds that the server is measured with each pattern [default: 10, with --quick 2]
    #[arg(long, value_name = "SECONDS", value_parser = serve_seconds)]
    pub serve_seconds: Option<f64>,
    /// Side of the server's half; may be repeated [default: all]
    #[arg(long, value_name = "SIDE", value_parser = SERVER_SIDES)]
    pub side: Vec<String>,
}

fn serve_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected 1 to 3600".to_owned())
}

/// `weir bench gate`
#[derive(Debug, Args)]
#[command(
    after_help = "Each call is made in a loop, natively and under Weir with inline faults, in turn. Calls \
    whose \
    buffers lie outside managed memory pass a filter in the kernel; those with a buffer in managed memory \
    (here: \
    resident) have it held in place while the call is made: by libc's functions, which Weir wraps, or, \
    past libc, after a trap. The price is what Weir adds to a \
    call. Needs no root."
)]
pub struct GateArgs {
    /// Exact values of all runs as JSON
    #[arg(long)]
    pub json: bool,
    /// How often each side runs; medians are shown [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: Option<u32>,
    /// Shorter loops: a smoke test, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Calls per loop [default: 200000, with --quick 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=1_000_000_000))]
    pub calls: Option<u64>,
}

/// `weir bench policy`
#[derive(Debug, Args)]
#[command(
    after_help = "Each trace is a list of accesses to pages. Weir's replacement, the engine's own code \
    with a model of what happens to \
    a victim's pages, is replayed beside FIFO, CLOCK, LRU, SIEVE, S3-FIFO and the optimum that knows the \
    future. Nothing is timed."
)]
pub struct PolicyArgs {
    /// Exact values as JSON
    #[arg(long)]
    pub json: bool,
    /// Fewer frames, shorter traces
    #[arg(long)]
    pub quick: bool,
    /// Frames, of 4 KiB [default: 32768, with --quick 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1024..=1 << 22))]
    pub frames: Option<u32>,
    /// A trace instead of those made by rule: a page number, or 0x and an address, at the start of each line;
    /// may be repeated
    #[arg(long, value_name = "FILE")]
    pub trace: Vec<PathBuf>,
}

/// `weir bench codec`
#[derive(Debug, Args)]
#[command(after_help = "The pages are memory of Python processes that are started for it, arrays, text and \
    programs of this machine, a \
    database, and bytes by rule. The engine's choice is made by the engine's own code. Needs no root.")]
pub struct CodecArgs {
    /// Exact values as JSON
    #[arg(long)]
    pub json: bool,
    /// How often each way is measured; medians are shown [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: Option<u32>,
    /// Smaller sets: a smoke test, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// A file's pages instead of the sets that are made; may be repeated
    #[arg(long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// Python interpreter whose memory is looked at
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
}

impl Scenario {
    /// Whether its data is small.
    pub fn is_quick(&self) -> bool {
        match self {
            Scenario::Pool(args) => args.sized.common.quick,
            Scenario::Scaling(args) => args.sized.common.quick,
            Scenario::Swap(args) => args.sized.common.quick,
            Scenario::Files(args) => args.sized.common.quick,
            Scenario::Numpy(args) => args.common.quick,
            Scenario::Passes(args) => args.common.quick,
            Scenario::Gate(args) => args.quick,
            Scenario::Policy(args) => args.quick,
            Scenario::Codec(args) => args.quick,
            Scenario::Founding(args) => args.common().quick,
            Scenario::Ablate(args) => args.quick,
            Scenario::Rules(_) | Scenario::Report(_) => false,
        }
    }
}

impl FoundingArgs {
    /// Options of all scenarios.
    pub fn common(&self) -> &CommonBenchArgs {
        match &self.experiment {
            Experiment::F1(run) | Experiment::F2(run) | Experiment::F4(run) | Experiment::F5(run) => {
                &run.sized.common
            }
            Experiment::F3(args) => &args.run.sized.common,
        }
    }
}

/// `weir bench all`
#[derive(Debug, Args)]
#[command(after_help = "It says first how many minutes they take, and before each how many are left. With \
    --record the figures are kept; weir bench report makes documents of them.")]
pub struct AllArgs {
    /// Smaller data: a smoke test, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// How often each side runs; medians are shown [default: those of the scenarios]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: Option<u32>,
    /// Leave out the kernel's own swap
    #[arg(long)]
    pub no_rival: bool,
    /// This scenario alone; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Python interpreter with numpy
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

/// `weir bench report`
#[derive(Debug, Args)]
#[command(
    after_help = "Writes docs/performance.md, docs/charts and the table of README.md, between its two \
    marks."
)]
pub struct ReportArgs {
    /// File that --record made
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Folder of Weir's sources
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub root: PathBuf,
    /// Also of small data: to try it
    #[arg(long)]
    pub quick: bool,
}

/// `weir bench ablate`
#[derive(Debug, Args)]
#[command(after_help = "Runs with all rules and runs without one follow each other. It says first how many \
    minutes they \
    take. What was measured stands in FILE; a run that was cut off goes on from there. Needs a build that \
    can \
    leave rules out: make ablate.")]
pub struct AblateArgs {
    /// Exact values as JSON
    #[arg(long)]
    pub json: bool,
    /// How often each rule is left out; medians are shown [default: 7, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: Option<u32>,
    /// Smaller data: a smoke test, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Leave out this rule alone; may be repeated
    #[arg(long, value_name = "RULE")]
    pub only: Vec<String>,
    /// Measure with this scenario alone; may be repeated
    #[arg(long, value_name = "NAME")]
    pub scenario: Vec<String>,
    /// File of what was measured
    #[arg(long, value_name = "FILE", default_value = "ablation.jsonl")]
    pub file: PathBuf,
    /// Write the page here, for example docs/experiments/ablation.md
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Folder of the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
}

/// `weir bench numpy`
#[derive(Debug, Args)]
pub struct NumpyArgs {
    /// Options of all scenarios.
    #[command(flatten)]
    pub common: CommonBenchArgs,
    /// RAM limit of the kernel's side [default: 300M, with --quick 75M]
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Bytes of the array [default: 512M, with --quick 128M]
    #[arg(long, value_name = "SIZE")]
    pub array: Option<String>,
    /// Python interpreter with numpy
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
}

/// `weir bench passes`
#[derive(Debug, Args)]
pub struct PassesArgs {
    /// Options of all scenarios.
    #[command(flatten)]
    pub common: CommonBenchArgs,
    /// Bytes of data [default: 512M, with --quick 192M]
    #[arg(long, value_name = "SIZE")]
    pub data: Option<String>,
    /// This kind alone: read, write, noise, kmeans or heap; may be repeated
    #[arg(long, value_name = "KIND")]
    pub only: Vec<String>,
    /// Folder of the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Python interpreter with numpy
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
}

/// `weir-bench __workload`
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// Phases: fill, seqread, randread, randwords, randwrite, sweep, zipf (each with @THREADS), or gate,
    /// graph or files alone; comma-separated
    #[arg(value_delimiter = ',')]
    pub phases: Vec<String>,
    /// Bytes of data
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub bytes: String,
    /// Length of a random-access phase
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Time that graph runs before it is measured, as often as --seconds
    #[arg(long, default_value_t = 1)]
    pub settle: u32,
    /// Passes of seqread
    #[arg(long, default_value_t = 2)]
    pub passes: u32,
    /// Calls per loop of gate
    #[arg(long, default_value_t = 1000)]
    pub calls: u64,
    /// File of files, which it makes
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Bytes of that file
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub file_bytes: String,
}

/// Options of `weir-bench __files`
#[derive(Debug, Args)]
pub struct FilesWorkArgs {
    /// Passes over all of it, or random reads
    #[arg(value_parser = ["passes", "random"])]
    pub what: String,
    /// The file, made by `weir bench files`
    pub file: PathBuf,
    /// Bytes of it that are read
    #[arg(long)]
    pub bytes: usize,
    /// How: mapped, with this advice, or past the kernel's cache
    #[arg(long, default_value = "normal", value_parser = ["normal", "sequential", "random", "direct"])]
    pub way: String,
    /// Threads of random reads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: u64,
    /// Bytes of a random read
    #[arg(long, default_value_t = 4096)]
    pub chunk: usize,
    /// Length of random reads
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// How many passes
    #[arg(long, default_value_t = 1)]
    pub passes: u32,
    /// How many of them are not counted
    #[arg(long, default_value_t = 0)]
    pub settle: u32,
}

/// `weir-bench __kernel-side`
#[derive(Debug, Args)]
pub struct KernelSideArgs {
    /// RAM that the program may use, beside what zram takes
    #[arg(long, value_name = "SIZE")]
    pub limit: String,
    /// Size of the swap area
    #[arg(long, value_name = "SIZE")]
    pub swap: String,
    /// After so many seconds the program is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub deadline: u64,
    /// File for what was found, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: PathBuf,
    /// The program
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_names_the_command_that_users_type() {
        let help = Cli::command().render_help().to_string();
        assert!(help.contains("Usage: weir bench"), "{help}");
        assert!(!help.contains("__workload"), "{help}");
    }
}
