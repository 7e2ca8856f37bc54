//! Every suite of the project as data, and the runner that says at the end which ran and how they ended.
//!
//! A suite that cannot run (a tool or a permission is missing) fails and says what to do; one that runs fewer
//! tests than it must have fails too, so an empty suite is never green.

use crate::places;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a suite needs besides Rust.
enum Need {
    /// An executable and the package that has it.
    Tool(&'static str, &'static str),
    /// The right to open a userfaultfd that serves kernel-mode faults.
    Userfaultfd,
    /// To be root: to mount a disk, or to become somebody without any privilege.
    Root,
}

struct Suite {
    name: &'static str,
    command: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    needs: &'static [Need],
    /// Fewer tests than this mean that the suite did not really run; 0 for checks that count nothing.
    tests_min: usize,
    minutes_max: u64,
}

/// Runs the checks that need no kernel feature: the common case.
const fn plain(
    name: &'static str,
    command: &'static [&'static str],
    tests_min: usize,
    minutes_max: u64,
) -> Suite {
    Suite { name, command, env: &[], needs: &[], tests_min, minutes_max }
}

/// The C programs of `tests/shim`: those that are named, or all.
macro_rules! shim {
    ($($program:literal),*) => {
        &["cargo", "run", "-q", "-p", "xtask", "--", "shim", $($program),*]
    };
}

/// Tests of all crates, built once: every other choice of packages or features would be a build of its own.
/// With rules that can be left out, which some tests do; suites that start programs take the usual build.
macro_rules! tests {
    ($($which:literal),+) => {
        &["cargo", "test", "--workspace", "--features=weir-bench/experiments", $($which),+]
    };
}

const KERNEL_TESTS: &[&str] = tests!("--test", "kernel");
const RELEASE_BUILD: &[&str] = &[
    "cargo",
    "build",
    "--release",
    "-p",
    "weir-cli",
    "-p",
    "weir-preload",
    "-p",
    "weir-c",
    "-p",
    "weir-bench",
];
const MOVE: &[(&str, &str)] = &[("WEIR_PAGER", "move")];
const COPY: &[(&str, &str)] = &[("WEIR_PAGER", "copy")];
/// A real swap file under a small pool, with either pager and either way of I/O.
const SWAP_MOVE: &[(&str, &str)] =
    &[("WEIR_PAGER", "move"), ("WEIR_SWAP", "512M"), ("WEIR_POOL_MAX", "5"), ("WEIR_SWAP_IO", "uring")];
const SWAP_COPY: &[(&str, &str)] =
    &[("WEIR_PAGER", "copy"), ("WEIR_SWAP", "512M"), ("WEIR_POOL_MAX", "5"), ("WEIR_SWAP_IO", "threads")];
/// The same with a pool that is written through.
const SWAP_THROUGH: &[(&str, &str)] = &[
    ("WEIR_PAGER", "move"),
    ("WEIR_SWAP", "512M"),
    ("WEIR_POOL_MAX", "10"),
    ("WEIR_SWAP_IO", "uring"),
    ("WEIR_POLICY", "writethrough"),
];
/// The shim's programs with faults resolved by the threads that take them, and by a handler thread with
/// either pager. RAM alone, and the last with a pool so small that nearly all goes through the swap file.
/// Pool pages are compressed again with zstd as they are, or when they are cold, or are zstd from the
/// beginning.
const INLINE: &[(&str, &str)] = &[("WEIR_FAULTS", "inline"), ("WEIR_SWAP", "none")];
const THREAD_MOVE: &[(&str, &str)] =
    &[("WEIR_FAULTS", "thread"), ("WEIR_PAGER", "move"), ("WEIR_SWAP", "none"), ("WEIR_COLD", "eager")];
const THREAD_COPY: &[(&str, &str)] =
    &[("WEIR_FAULTS", "thread"), ("WEIR_PAGER", "copy"), ("WEIR_SWAP", "none"), ("WEIR_CODEC", "zstd")];
/// The same without userfaultfd, in RAM alone.
const INLINE_SEGV: &[(&str, &str)] = &[("WEIR_PAGER", "segv"), ("WEIR_SWAP", "none")];
const INLINE_SWAP: &[(&str, &str)] =
    &[("WEIR_FAULTS", "inline"), ("WEIR_SWAP", "512M"), ("WEIR_POOL_MAX", "5"), ("WEIR_COLD", "eager")];
const KERNEL: &[Need] = &[Need::Userfaultfd];
const C: &[Need] = &[Need::Userfaultfd, Need::Tool("cc", "gcc"), Need::Tool("timeout", "coreutils")];
const REFUSALS: &[Need] = &[
    Need::Userfaultfd,
    Need::Tool("python3", "python3"),
    Need::Tool("setpriv", "util-linux"),
    Need::Tool("unshare", "util-linux"),
];
const PYTHON: &[Need] = &[Need::Userfaultfd, Need::Tool("python3", "python3")];
const LIVE: &[Need] = &[
    Need::Userfaultfd,
    Need::Tool("python3", "python3"),
    Need::Tool("tmux", "tmux"),
    Need::Tool("promtool", "prometheus"),
];
const DEBUGGERS: &[Need] = &[
    Need::Userfaultfd,
    Need::Tool("python3", "python3"),
    Need::Tool("cc", "gcc"),
    Need::Tool("gdb", "gdb"),
    Need::Tool("strace", "strace"),
];
const OUTSIDE: &[Need] = &[
    Need::Userfaultfd,
    Need::Tool("python3", "python3"),
    Need::Tool("cc", "gcc"),
    Need::Tool("setarch", "util-linux"),
];
const NOBODY: &[Need] =
    &[Need::Root, Need::Tool("python3", "python3 python3-venv"), Need::Tool("setpriv", "util-linux")];
const PACKAGES: &[Need] = &[
    Need::Root,
    Need::Tool("python3", "python3 python3-venv"),
    Need::Tool("make", "make"),
    Need::Tool("dpkg-deb", "dpkg"),
    Need::Tool("mmdebstrap", "mmdebstrap"),
    Need::Tool("unshare", "util-linux"),
    Need::Tool("strip", "binutils"),
    Need::Tool("cc", "gcc"),
    Need::Userfaultfd,
    Need::Tool("man", "man-db"),
    Need::Tool("systemd-analyze", "systemd"),
];
const DOCS: &[Need] = &[
    Need::Userfaultfd,
    Need::Tool("python3", "python3 python3-venv"),
    Need::Tool("make", "make"),
    Need::Tool("cc", "gcc"),
    Need::Tool("strip", "binutils"),
    Need::Tool("pkg-config", "pkgconf"),
];
/// Root, to make control groups.
const CONTAINERS: &[Need] = &[
    Need::Root,
    Need::Tool("python3", "python3 python3-venv"),
    Need::Tool("cc", "gcc"),
    Need::Tool("sort", "coreutils"),
    Need::Tool("xz", "xz-utils"),
];
const DISK: &[Need] = &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("mount", "mount")];
const VENV: &[Need] = &[Need::Tool("python3", "python3 python3-venv"), Need::Tool("make", "make")];

/// All suites, in the order in which they run: quick ones first.
const SUITES: &[Suite] = &[
    plain("fmt", &["cargo", "fmt", "--all", "--check"], 0, 2),
    plain("clippy", &["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], 0, 10),
    plain("tidy", &["cargo", "run", "-q", "-p", "xtask", "--", "tidy"], 6, 5),
    plain("unit", tests!("--lib", "--bins"), 30, 15),
    // The guides are executed, on the real kernel.
    Suite { name: "doc", command: tests!("--doc"), env: &[], needs: KERNEL, tests_min: 4, minutes_max: 10 },
    Suite {
        name: "loom",
        command: &["cargo", "test", "-p", "weir", "--release", "--lib", "loom", "--"],
        // Its own folder: the cfg would make cargo rebuild everything at every change of suite.
        env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
        needs: &[],
        tests_min: 1,
        minutes_max: 15,
    },
    Suite {
        name: "kernel-move",
        command: KERNEL_TESTS,
        env: MOVE,
        needs: KERNEL,
        tests_min: 1,
        minutes_max: 10,
    },
    Suite {
        name: "kernel-copy",
        command: KERNEL_TESTS,
        env: COPY,
        needs: KERNEL,
        tests_min: 1,
        minutes_max: 10,
    },
    Suite {
        name: "kernel-swap-move",
        command: KERNEL_TESTS,
        env: SWAP_MOVE,
        needs: KERNEL,
        tests_min: 1,
        minutes_max: 10,
    },
    Suite {
        name: "kernel-swap-copy",
        command: KERNEL_TESTS,
        env: SWAP_COPY,
        needs: KERNEL,
        tests_min: 1,
        minutes_max: 10,
    },
    Suite {
        name: "kernel-swap-through",
        command: KERNEL_TESTS,
        env: SWAP_THROUGH,
        needs: KERNEL,
        tests_min: 1,
        minutes_max: 10,
    },
    Suite {
        name: "library",
        command: tests!("--test", "library", "--examples"),
        env: &[],
        needs: KERNEL,
        tests_min: 29,
        minutes_max: 5,
    },
    // With sanitizers too.
    Suite {
        name: "c-library",
        command: &["python3", "tests/programs/c_library.py"],
        env: &[],
        needs: &[
            Need::Userfaultfd,
            Need::Tool("python3", "python3"),
            Need::Tool("cc", "gcc"),
            Need::Tool("c++", "g++"),
            Need::Tool("nm", "binutils"),
        ],
        tests_min: 6,
        minutes_max: 5,
    },
    plain("swap-file", tests!("--test", "swap_file"), 6, 10),
    Suite {
        name: "swap-full-disk",
        command: tests!("--test", "swap_full_disk"),
        env: &[],
        needs: DISK,
        tests_min: 2,
        minutes_max: 10,
    },
    plain("release-build", RELEASE_BUILD, 0, 15),
    Suite {
        name: "cli",
        command: tests!(
            "--test",
            "config",
            "--test",
            "run",
            "--test",
            "stat",
            "--test",
            "tools",
            "--test",
            "scenarios"
        ),
        env: &[],
        needs: KERNEL,
        tests_min: 49,
        minutes_max: 10,
    },
    Suite { name: "shim-inline", command: shim!(), env: INLINE, needs: C, tests_min: 50, minutes_max: 25 },
    // What depends on who resolves a fault, and with `shim-copy` on how pages travel: all in `make soak`.
    Suite {
        name: "shim-move",
        command: shim!(
            "advice",
            "clone",
            "dispositions",
            "exec",
            "fork",
            "forks",
            "gate_calls",
            "gate_process",
            "handler_room",
            "holds",
            "limits",
            "loads",
            "locks",
            "malloc_small",
            "map_small",
            "mremap",
            "ownseccomp",
            "pieces",
            "rights",
            "rings",
            "signal_faults",
            "signals",
            "spawn",
            "stacks",
            "tasks",
            "threads",
            "waiters"
        ),
        env: THREAD_MOVE,
        needs: C,
        tests_min: 27,
        minutes_max: 25,
    },
    Suite {
        name: "shim-copy",
        command: shim!(
            "advice",
            "buffers",
            "dump",
            "exec",
            "fork",
            "holds",
            "kept",
            "lockall",
            "locks",
            "madvise",
            "malloc_large",
            "malloc_small",
            "map_fixed",
            "map_small",
            "mremap",
            "munmap",
            "protect",
            "reserve",
            "rights",
            "threads"
        ),
        env: THREAD_COPY,
        needs: C,
        tests_min: 20,
        minutes_max: 25,
    },
    Suite {
        name: "shim-swap",
        command: shim!(
            "fork",
            "threads",
            "mremap",
            "munmap",
            "madvise",
            "advice",
            "buffers",
            "exec",
            "loads",
            "descriptors",
            "rights"
        ),
        env: INLINE_SWAP,
        needs: C,
        tests_min: 11,
        minutes_max: 8,
    },
    Suite {
        name: "shim-segv",
        command: shim!("fork", "threads", "mremap", "protect", "dispositions", "signal_faults", "sparse"),
        env: INLINE_SEGV,
        needs: &[Need::Tool("cc", "gcc"), Need::Tool("timeout", "coreutils")],
        tests_min: 7,
        minutes_max: 8,
    },
    Suite {
        name: "leftovers",
        command: &["python3", "tests/programs/leftovers.py"],
        env: &[],
        needs: PYTHON,
        tests_min: 7,
        minutes_max: 5,
    },
    Suite {
        name: "ends",
        command: &["python3", "tests/programs/ends.py"],
        env: &[],
        needs: PYTHON,
        tests_min: 48,
        minutes_max: 10,
    },
    Suite {
        name: "live",
        command: &["python3", "tests/programs/live.py"],
        env: &[],
        needs: LIVE,
        tests_min: 18,
        minutes_max: 5,
    },
    Suite {
        name: "tree",
        command: &["python3", "tests/programs/tree.py"],
        env: &[],
        needs: PYTHON,
        tests_min: 14,
        minutes_max: 5,
    },
    Suite {
        name: "owners",
        command: &["python3", "tests/programs/owners.py"],
        env: &[],
        needs: &[Need::Userfaultfd, Need::Tool("python3", "python3"), Need::Tool("cc", "gcc")],
        tests_min: 8,
        minutes_max: 3,
    },
    Suite {
        name: "debuggers",
        command: &["python3", "tests/programs/debuggers.py"],
        env: &[],
        needs: DEBUGGERS,
        tests_min: 6,
        minutes_max: 5,
    },
    Suite {
        name: "outside",
        command: &["python3", "tests/programs/outside.py"],
        env: &[],
        needs: OUTSIDE,
        tests_min: 14,
        minutes_max: 5,
    },
    Suite {
        name: "mapped",
        command: &["python3", "tests/programs/mapped.py"],
        env: &[],
        needs: PYTHON,
        tests_min: 12,
        minutes_max: 5,
    },
    Suite {
        name: "refusals",
        command: &["python3", "tests/programs/refusals.py"],
        env: &[],
        needs: REFUSALS,
        tests_min: 54,
        minutes_max: 5,
    },
    Suite {
        name: "venv",
        command: &["make", "-s", "venv"],
        env: &[],
        needs: VENV,
        tests_min: 0,
        minutes_max: 10,
    },
    // After the release build and `venv`.
    Suite {
        name: "python-library",
        command: &["python3", "tests/programs/python_library.py"],
        env: &[],
        needs: PYTHON,
        tests_min: 24,
        minutes_max: 5,
    },
    Suite {
        name: "odd-disks",
        command: &["python3", "tests/programs/odd_disks.py"],
        env: &[],
        needs: DISK,
        tests_min: 10,
        minutes_max: 5,
    },
    Suite {
        name: "containers",
        command: &["python3", "tests/programs/containers.py"],
        env: &[],
        needs: CONTAINERS,
        tests_min: 11,
        minutes_max: 8,
    },
    Suite {
        name: "packages",
        command: &["python3", "tests/programs/packages.py"],
        env: &[],
        needs: PACKAGES,
        tests_min: 15,
        minutes_max: 5,
    },
    // After the release build and `venv`, which bring the command and mdBook.
    Suite {
        name: "docs",
        command: &["python3", "tests/programs/docs.py"],
        env: &[],
        needs: DOCS,
        tests_min: 5,
        minutes_max: 5,
    },
    Suite {
        name: "runner",
        command: &["python3", "tests/programs/test_runner.py"],
        env: &[],
        needs: &[Need::Tool("python3", "python3")],
        tests_min: 1,
        minutes_max: 2,
    },
    // As a user without any permission, which inline faults have to do without. The other suites run as root.
    Suite {
        name: "programs",
        command: &[
            "python3",
            "tests/programs/nobody.py",
            "--faults=inline",
            "--jobs=2",
            "--scale",
            "small",
            "--report",
            "target/programs.json",
        ],
        env: &[],
        needs: NOBODY,
        tests_min: 48,
        minutes_max: 35,
    },
    // Nearly everything through the swap file: both ways of I/O, encrypted, and across forks.
    Suite {
        name: "programs-swap",
        command: &[
            "python3",
            "tests/programs/run.py",
            "--jobs=2",
            "--only=swap-sort-uring",
            "--only=swap-sort-threads",
            "--only=swap-xz-uring",
            "--only=swap-xz-threads",
            "--only=swap-sqlite-uring",
            "--only=swap-sqlite-threads",
            "--only=swap-numpy-uring",
            "--only=swap-numpy-threads",
            "--only=swap-fork",
        ],
        env: &[],
        needs: PYTHON,
        tests_min: 9,
        minutes_max: 8,
    },
    // The mode that `auto` does not take here: who resolves a fault matters to threads, processes, signals
    // and calls of the kernel. The others are in `make soak`.
    Suite {
        name: "programs-thread",
        command: &[
            "python3",
            "tests/programs/run.py",
            "--jobs=2",
            "--faults=thread",
            "--only=cpython-tests",
            "--only=cpython-multiprocessing",
            "--only=cpython-signal",
            "--only=cpython-subprocess",
            "--only=stress-ng-vm",
            "--only=redis",
            "--only=memcached-locked",
            "--only=ruby",
            "--only=java-20g",
            "--only=blocks-jemalloc",
            "--only=git-repack",
            "--only=go-cgo",
        ],
        env: &[],
        needs: PYTHON,
        tests_min: 12,
        minutes_max: 20,
    },
];

/// What takes too long for every change: `make soak`, some hours.
const SOAKS: &[Suite] = &[
    plain("release-build", RELEASE_BUILD, 0, 15),
    plain("venv", &["make", "-s", "venv"], 0, 5),
    Suite { name: "shim-move", command: shim!(), env: THREAD_MOVE, needs: C, tests_min: 50, minutes_max: 60 },
    Suite { name: "shim-copy", command: shim!(), env: THREAD_COPY, needs: C, tests_min: 50, minutes_max: 60 },
    Suite { name: "shim-swap", command: shim!(), env: INLINE_SWAP, needs: C, tests_min: 50, minutes_max: 60 },
    Suite {
        name: "programs-thread",
        command: &["python3", "tests/programs/run.py", "--jobs=2", "--faults=thread"],
        env: &[],
        needs: PYTHON,
        tests_min: 48,
        minutes_max: 60,
    },
    Suite {
        name: "containers-soak",
        command: &["python3", "tests/programs/containers_soak.py"],
        env: &[],
        needs: CONTAINERS,
        tests_min: 100,
        minutes_max: 60,
    },
    Suite {
        name: "programs-full",
        command: &["python3", "tests/programs/nobody.py", "--faults=inline", "--scale", "full"],
        env: &[],
        needs: NOBODY,
        tests_min: 48,
        minutes_max: 480,
    },
];

/// How a suite ended.
struct Outcome {
    name: &'static str,
    tests: usize,
    took: Duration,
    /// Why it failed; none when it passed.
    failure: Option<String>,
}

/// Runs the long suites, or the named ones of them.
pub fn soak(wanted: &[String]) -> bool {
    run_of(SOAKS, wanted)
}

/// Prints the names.
pub fn list() -> bool {
    for suite in SUITES {
        println!("{:<16} {}", suite.name, suite.command.join(" "));
    }
    true
}

/// Runs the named suites, all when none is named; prints the table and `N passed, N failed` as the last line.
pub fn run(wanted: &[String]) -> bool {
    run_of(SUITES, wanted)
}

fn run_of(suites: &'static [Suite], wanted: &[String]) -> bool {
    if let Some(unknown) = wanted.iter().find(|name| !suites.iter().any(|suite| suite.name == **name)) {
        eprintln!("xtask: no suite {unknown}; `cargo run -p xtask -- suites` lists them");
        return false;
    }
    let chosen: Vec<&Suite> = suites
        .iter()
        .filter(|suite| wanted.is_empty() || wanted.iter().any(|name| name == suite.name))
        .collect();
    let outcomes: Vec<Outcome> = chosen.iter().map(|suite| run_one(suite)).collect();
    println!("\n{:<16} {:<7} {:>6} {:>8}", "suite", "result", "tests", "seconds");
    for outcome in &outcomes {
        let result = if outcome.failure.is_none() { "passed" } else { "FAILED" };
        let reason = outcome.failure.as_deref().unwrap_or("");
        println!(
            "{:<16} {result:<7} {:>6} {:>8.1}  {reason}",
            outcome.name,
            outcome.tests,
            outcome.took.as_secs_f64()
        );
    }
    if !wanted.is_empty() {
        println!("(only {} of {} suites were asked for)", chosen.len(), suites.len());
    }
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    println!("{} passed, {failed} failed", outcomes.len() - failed);
    failed == 0
}

fn run_one(suite: &'static Suite) -> Outcome {
    println!("\n== {} : {}", suite.name, suite.command.join(" "));
    let began = Instant::now();
    let (tests, failure) = match suite.needs.iter().find_map(missing) {
        Some(what) => (0, Some(what)),
        None => match execute(suite) {
            Ok(tests) if tests < suite.tests_min => {
                let what = format!("ran {tests} tests, at least {} were to be run", suite.tests_min);
                (tests, Some(what))
            }
            Ok(tests) => (tests, None),
            Err(what) => (0, Some(what)),
        },
    };
    let took = began.elapsed();
    // At once: a run that is cut short has no table, and it is then that one asks where the time went.
    match &failure {
        Some(what) => println!("== {} FAILED after {:.0} s: {what}", suite.name, took.as_secs_f64()),
        None => println!("== {} took {:.0} s", suite.name, took.as_secs_f64()),
    }
    Outcome { name: suite.name, tests, took, failure }
}

/// Runs the command, shows its output, and returns how many tests passed.
fn execute(suite: &Suite) -> Result<usize, String> {
    let mut child = Command::new("timeout")
        .args(["--kill-after=10", &format!("{}m", suite.minutes_max)])
        .args(suite.command)
        .envs(suite.env.iter().copied())
        .env("WEIR_BIN", places::weir())
        .current_dir(places::root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("timeout: {error}: install the package coreutils"))?;
    let mut tests = 0;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|error| format!("reading its output: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            tests += passed_in(&line);
        }
    }
    let status = child.wait().map_err(|error| format!("waiting for it: {error}"))?;
    match status.code() {
        Some(0) => Ok(tests),
        Some(124) => Err(format!("not finished after {} minutes", suite.minutes_max)),
        Some(127) => Err(format!("{} not found", suite.command[0])),
        _ => Err(format!("{status}")),
    }
}

/// The tests that a summary line counts: `test result: ok. 3 passed; ...` or `3 passed, 0 failed`.
fn passed_in(line: &str) -> usize {
    let line = line.trim();
    let summary =
        line.strip_prefix("test result:").map(|rest| rest.split_once('.').map_or(rest, |(_, counts)| counts));
    let counts = summary.unwrap_or(line).trim();
    let Some((number, rest)) = counts.split_once(' ') else { return 0 };
    let is_summary = summary.is_some() || (rest.starts_with("passed, ") && rest.ends_with(" failed"));
    if is_summary && rest.starts_with("passed") { number.parse().unwrap_or(0) } else { 0 }
}

/// What is missing and how to get it.
fn missing(need: &Need) -> Option<String> {
    match need {
        Need::Tool(tool, package) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
            (!found).then(|| format!("{tool} not found: apt-get install {package}"))
        }
        Need::Root => (!is_root())
            .then(|| "run as root: it mounts a small disk, changes its root or becomes nobody".to_string()),
        Need::Userfaultfd => (!may_open_userfaultfd()).then(|| {
            "no permission for userfaultfd: run as root, or `sysctl vm.unprivileged_userfaultfd=1`, or give \
             your group access to /dev/userfaultfd"
                .to_string()
        }),
    }
}

fn may_open_userfaultfd() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    is_root() || kernel_text("/proc/sys/vm/unprivileged_userfaultfd").trim() == "1" || device.is_ok()
}

fn is_root() -> bool {
    let status = kernel_text("/proc/self/status");
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or("");
    ids.split_whitespace().nth(1) == Some("0")
}

/// A small kernel file, whose absence means the same as being empty.
fn kernel_text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines_are_counted_and_others_are_not() {
        assert_eq!(passed_in("test result: ok. 12 passed; 0 failed; 0 ignored; finished in 0.1s"), 12);
        assert_eq!(passed_in("test result: FAILED. 3 passed; 1 failed"), 3);
        assert_eq!(passed_in("16 passed, 0 failed"), 16);
        assert_eq!(passed_in("test a_test_that passed"), 0);
        assert_eq!(passed_in("3 passed the river"), 0);
    }

    #[test]
    fn a_missing_tool_is_reported_with_its_package() {
        let what = missing(&Need::Tool("no-such-tool-here", "some-package")).expect("missing");
        assert!(what.contains("apt-get install some-package"), "{what}");
        assert_eq!(missing(&Need::Tool("sh", "dash")), None);
    }

    #[test]
    fn too_few_tests_fail_a_suite_whose_command_passes() {
        static EMPTY: Suite = plain("empty", &["echo", "2 passed, 0 failed"], 3, 1);
        let outcome = run_one(&EMPTY);
        assert_eq!(outcome.failure.as_deref(), Some("ran 2 tests, at least 3 were to be run"));
        static ENOUGH: Suite = plain("enough", &["echo", "3 passed, 0 failed"], 3, 1);
        assert_eq!(run_one(&ENOUGH).failure, None);
        static FAILS: Suite = plain("fails", &["false"], 0, 1);
        assert!(run_one(&FAILS).failure.is_some());
    }

    #[test]
    fn names_are_unique() {
        for suites in [SUITES, SOAKS] {
            for (index, suite) in suites.iter().enumerate() {
                assert!(!suites[..index].iter().any(|other| other.name == suite.name), "{}", suite.name);
            }
        }
    }
}
