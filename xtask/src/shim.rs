//! Runs the C programs of `tests/shim` natively and under `weir run`: both must say and answer the same.

use crate::places;
use crate::watch::Watch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Programs that run at the same time: most of them keep one processor busy.
const AT_ONCE: usize = 2;
/// Far below the 64-200 MB that each program touches.
const BUDGET_BYTES: u64 = 32 << 20;
/// Programs that need another budget: the stacks of thousands of threads are memory outside; and a heap of
/// small blocks with a dozen MiB outside, whose data does not fit into the rest of 32 MiB in each run; and
/// tables of which little is used, since Weir's own are as long.
const BUDGETS: &[(&str, u64)] = &[(WAITERS, 96 << 20), ("malloc_small", 48 << 20), ("sparse", 192 << 20)];
/// Its threads take 19 KiB each outside where a signal frame has [`FRAME_BYTES`]. Two frames of each thread
/// are touched: that of its first fault on its own stack, and those of later ones on its alternate stack.
/// Where frames are larger (11 KiB with AMX) the budget is as much larger: the rest of it is the same
/// everywhere.
const WAITERS: &str = "waiters";
const WAITING_THREADS: u64 = 2600;
const FRAMES_PER_THREAD: u64 = 2;
/// A signal frame with the registers of AVX-512, bytes.
const FRAME_BYTES: u64 = 3376;
/// RAM may exceed the budget by so much for a moment, while memory outside Weir grows as fast as it can be
/// touched.
const OVERSHOOT_BYTES: u64 = 16 << 20;
/// What an engine keeps of this budget, however much there is outside (`least` in `shared/limit.rs`, with the
/// metadata of these programs).
const LEAST_BYTES: u64 = 8 << 20;
const NATIVE_SECONDS: u32 = 120;
/// Every page of a program goes out and comes back many times; the machine may be busy.
const WEIR_SECONDS: u32 = 600;
/// What a program is there for, where threads resolve their own faults: a counter of its engines together,
/// and the least that it must say.
const EXPECTED: &[(&str, &str, u64)] = &[
    ("loads", "weir_loads_answered", 100_000),
    ("holds", "weir_calls_held", 10_000),
    (FILES, EVICTED, 100_000),
    (FILES, "weir_files_announced", 4_000),
    (PASSES, EVICTED, 100_000),
];
/// Read files of several times the budget again and again.
const FILES: &str = "files";
const PASSES: &str = "file_passes";
const EVICTED: &str = "weir_files_evicted";
/// What a program's user is told on stderr, each once and nothing else; for all others there is `--quiet`.
const TOLD: &[(&str, &[&str])] = &[(
    "overfull",
    &[
        "leave too little of the budget of 32 MiB",
        "does not fit into the rest of the managed",
        "overfull finished in",
        "of 32 MiB in all",
    ],
)];
const CFLAGS: &[&str] = &["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"];

/// Options of single programs: one that looks like Go's lies where Go's tools put it, so that kernels before
/// 6.16 can tell its calls.
const OWN_CFLAGS: &[(&str, &str)] = &[("past_libc", "-no-pie")];

/// Compiles and runs the named programs (all when none is named); true when all passed.
pub fn run(words: &[String]) -> bool {
    let native_only = words.iter().any(|word| word == "--native-only");
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let programs = match sources(&wanted) {
        Ok(programs) => programs,
        Err(reason) => {
            println!("shim: {reason}\n0 passed, 1 failed");
            return false;
        }
    };
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(programs.len()) {
            scope.spawn(|| {
                while let Some(source) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    failed.fetch_add(usize::from(!says_the_same(source, native_only)), Ordering::Relaxed);
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{} passed, {failed} failed", programs.len() - failed);
    failed == 0 && !programs.is_empty()
}

/// Checks one program and prints its line.
fn says_the_same(source: &Path, native_only: bool) -> bool {
    let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let result = check(source, &name, native_only);
    match &result {
        Ok(note) => println!("ok   {name:<16} {note}"),
        Err(reason) => println!("FAIL {name:<16} {reason}"),
    }
    result.is_ok()
}

fn sources(wanted: &[&String]) -> Result<Vec<PathBuf>, String> {
    let folder = places::root().join("tests/shim");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    found.sort();
    let stem = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(unknown) = wanted.iter().find(|name| !found.iter().any(|path| stem(path) == ***name)) {
        return Err(format!("no program {unknown} in {}", folder.display()));
    }
    if !wanted.is_empty() {
        found.retain(|path| wanted.iter().any(|name| stem(path) == **name));
    }
    Ok(found)
}

/// What a run left behind.
struct Ran {
    status: String,
    stdout: String,
    stderr: String,
    seconds: f64,
    /// Most anonymous memory that one of its processes had in RAM, bytes.
    anonymous: u64,
    /// Pages of files in RAM half of the time, bytes.
    files: u64,
}

fn check(source: &Path, name: &str, native_only: bool) -> Result<String, String> {
    let program = compile(source, name)?;
    let folder = places::target().join("shim").join(format!("{name}.run"));
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let native = bounded(&[program.display().to_string()], NATIVE_SECONDS, &folder)?;
    if native.status != "0" {
        return Err(format!("fails without Weir: status {}: {}", native.status, last_lines(&native.stderr)));
    }
    if native_only {
        return Ok(format!("native {:.1} s", native.seconds));
    }
    let news = TOLD.iter().find_map(|(program, news)| (*program == name).then_some(*news));
    let budget = budget_of(name, frame_bytes());
    let mut command = under_weir(&program, &folder, budget, news.is_none())?;
    if [FILES, PASSES].contains(&name) {
        command.splice(2..2, ["--files".into(), "kernel".into()]);
    }
    let weir = bounded(&command, WEIR_SECONDS, &folder)?;
    if weir.status != native.status {
        return Err(format!("status {} under Weir: {}", weir.status, last_lines(&weir.stderr)));
    }
    if weir.stdout != native.stdout {
        return Err(format!("other output under Weir: {}", last_lines(&weir.stdout)));
    }
    told(&weir.stderr, news.unwrap_or_default())?;
    let peak = statistics(&folder, budget)?;
    within_budget(&folder, budget, weir.anonymous)?;
    if name == PASSES && weir.files > budget + OVERSHOOT_BYTES {
        return Err(format!("had {} MiB of files in RAM half of the time", weir.files >> 20));
    }
    if std::env::var("WEIR_FAULTS").is_ok_and(|faults| faults != "thread") {
        expected(&folder, name)?;
    }
    Ok(format!(
        "native {:.1} s, weir {:.1} s, peak {} MiB in {} MiB, RAM {} MiB, files {} MiB",
        native.seconds,
        weir.seconds,
        peak >> 20,
        budget >> 20,
        weir.anonymous >> 20,
        weir.files >> 20
    ))
}

/// The budget of a program where the kernel's signal frames have so many bytes.
fn budget_of(name: &str, frame: u64) -> u64 {
    const PAGE: u64 = 4096;
    let bytes =
        BUDGETS.iter().find(|(program, _)| *program == name).map_or(BUDGET_BYTES, |(_, bytes)| *bytes);
    let larger = frame.saturating_sub(FRAME_BYTES).next_multiple_of(PAGE);
    if name == WAITERS { bytes + WAITING_THREADS * FRAMES_PER_THREAD * larger } else { bytes }
}

/// The size of a signal frame here, as the kernel tells every program; the usual one where it does not.
fn frame_bytes() -> u64 {
    const AT_MINSIGSTKSZ: u64 = 51;
    let vector = std::fs::read("/proc/self/auxv").unwrap_or_default();
    let words: Vec<u64> =
        vector.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect();
    let frame = words.chunks_exact(2).find(|pair| pair[0] == AT_MINSIGSTKSZ);
    frame.map_or(FRAME_BYTES, |pair| pair[1])
}

fn compile(source: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = places::target().join("shim");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let program = folder.join(name);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let own = OWN_CFLAGS.iter().filter(|(program, _)| *program == name).map(|(_, flag)| flag);
    let output = Command::new(&compiler).args(CFLAGS).args(own).arg(source).arg("-o").arg(&program).output();
    let output = output.map_err(|error| format!("{compiler}: {error}: install the package gcc"))?;
    if !output.status.success() {
        return Err(format!("does not compile: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(program)
}

fn under_weir(program: &Path, folder: &Path, budget: u64, quiet: bool) -> Result<Vec<String>, String> {
    let weir = places::weir();
    if !weir.is_file() {
        return Err(format!("{} not found: run `make build` or set WEIR_BIN", weir.display()));
    }
    let stats = folder.join("%p.stats").display().to_string();
    let words =
        [&weir.display().to_string(), "run", "--memory", &budget.to_string(), "--stats", &stats, "--"];
    let mut command: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    if quiet {
        command.insert(2, "--quiet".into());
    }
    command.push(program.display().to_string());
    Ok(command)
}

/// Runs a command under timeout(1), which ends the whole process group: with SIGKILL, since a child that
/// hangs may have blocked every other signal, and a process that stays would keep the pipes open for ever.
fn bounded(command: &[String], seconds: u32, folder: &Path) -> Result<Ran, String> {
    let began = std::time::Instant::now();
    let child = Command::new("timeout")
        .args(["--signal=KILL", &seconds.to_string()])
        .args(command)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("timeout: {error}: install the package coreutils"))?;
    let watch = Watch::begin(child.id());
    let output = child.wait_with_output().map_err(|error| format!("timeout: {error}"))?;
    let (anonymous, files) = watch.end();
    let mut status = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
    if began.elapsed().as_secs() >= u64::from(seconds) {
        status.push_str(" (hang)");
    }
    Ok(Ran {
        status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        seconds: began.elapsed().as_secs_f64(),
        anonymous,
        files,
    })
}

/// Checks what the engines of the program and its children wrote; returns the largest managed peak in bytes.
fn statistics(folder: &Path, budget: u64) -> Result<u64, String> {
    let mut peak = 0;
    for (path, text) in written(folder)? {
        let values = key_values(&text);
        let value =
            |key: &str| values.get(key).copied().ok_or_else(|| format!("{}: no key {key}", path.display()));
        let resident = value("weir_peak_resident_bytes")?;
        if resident > budget {
            return Err(format!("held {resident} bytes of RAM, budget {budget}"));
        }
        peak = peak.max(value("weir_peak_managed_bytes")?);
    }
    if peak <= budget {
        return Err(format!(
            "managed at most {peak} bytes: the budget of {budget} never bound, so nothing was tested"
        ));
    }
    Ok(peak)
}

/// Whether the user was told these things and no others.
fn told(stderr: &str, news: &[&str]) -> Result<(), String> {
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("weir: ")).collect();
    let each_once = news.iter().all(|text| lines.iter().filter(|line| line.contains(text)).count() == 1);
    if each_once && lines.len() == news.len() {
        Ok(())
    } else {
        Err(format!("the user was not told {news:?}, once each, but: {}", lines.join(" / ")))
    }
}

/// Whether the RAM in all, as seen from outside, was the budget; or what the engine must have beside what is
/// outside.
fn within_budget(folder: &Path, budget: u64, anonymous: u64) -> Result<(), String> {
    let files = written(folder)?;
    let outside =
        files.iter().filter_map(|(_, text)| key_values(text).get("weir_peak_outside_bytes").copied());
    let outside = outside.max().unwrap_or(0);
    let most = budget.max(outside + LEAST_BYTES) + OVERSHOOT_BYTES;
    if anonymous > most {
        return Err(format!(
            "had {} MiB of anonymous memory in RAM, {} MiB of it outside Weir at most: more than {} MiB",
            anonymous >> 20,
            outside >> 20,
            most >> 20
        ));
    }
    Ok(())
}

/// The statistics that the engines of the program and its children wrote.
fn written(folder: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((path, text))
    };
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "stats")).map(read).collect()
}

/// Whether the program did what it is there for.
fn expected(folder: &Path, name: &str) -> Result<(), String> {
    for (_, key, least) in EXPECTED.iter().filter(|(program, ..)| *program == name) {
        let files = written(folder)?;
        let sum: u64 = files.iter().map(|(_, text)| key_values(text).get(key).copied().unwrap_or(0)).sum();
        if sum < *least {
            return Err(format!("{key} is {sum}, not {least} at least: it tested something else"));
        }
    }
    Ok(())
}

fn key_values(text: &str) -> BTreeMap<&str, u64> {
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(key, value)| Some((key, value.trim().parse().ok()?))).collect()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_by_key() {
        let values = key_values("pgfault 12\nweir_pager 1\nbroken\nx y\n");
        assert_eq!(values.get("pgfault"), Some(&12));
        assert_eq!(values.get("weir_pager"), Some(&1));
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn a_run_that_never_needed_the_budget_is_a_failure() {
        let folder = places::target().join("shim-statistics-test");
        std::fs::create_dir_all(&folder).expect("folder");
        let write = |text: &str| std::fs::write(folder.join("1.stats"), text).expect("write");
        write("weir_peak_resident_bytes 5\nweir_peak_managed_bytes 5\n");
        assert!(statistics(&folder, BUDGET_BYTES).expect_err("too small").contains("nothing was tested"));
        write("weir_peak_resident_bytes 99999999999\nweir_peak_managed_bytes 99999999999\n");
        assert!(statistics(&folder, BUDGET_BYTES).expect_err("overshoot").contains("held"));
        write("weir_peak_resident_bytes 5\nweir_peak_managed_bytes 99999999999\n");
        assert_eq!(statistics(&folder, BUDGET_BYTES), Ok(99_999_999_999));
        std::fs::remove_dir_all(&folder).expect("clean up");
    }

    #[test]
    fn a_budget_leaves_room_for_the_signal_frames_of_the_processor() {
        assert_eq!(budget_of(WAITERS, FRAME_BYTES), 96 << 20);
        assert_eq!(budget_of(WAITERS, 1000), 96 << 20, "smaller frames need no other budget");
        assert_eq!(budget_of(WAITERS, 11 << 10), (96 << 20) + 2600 * 2 * (8 << 10));
        assert_eq!(budget_of("fork", 11 << 10), BUDGET_BYTES);
        assert!((1000..1 << 20).contains(&frame_bytes()), "{} bytes", frame_bytes());
    }

    #[test]
    fn a_program_that_did_not_do_what_it_is_there_for_is_a_failure() {
        let folder = places::target().join("shim-expected-test");
        std::fs::create_dir_all(&folder).expect("folder");
        let write = |file: &str, n: u64| {
            std::fs::write(folder.join(file), format!("weir_loads_answered {n}\n")).expect("write");
        };
        write("1.stats", 60_000);
        assert!(expected(&folder, "loads").expect_err("too few").contains("60000"));
        assert_eq!(expected(&folder, "threads"), Ok(()));
        write("2.stats", 40_000);
        assert_eq!(expected(&folder, "loads"), Ok(()));
        std::fs::remove_dir_all(&folder).expect("clean up");
    }

    #[test]
    fn whoever_is_told_nothing_or_twice_or_something_else_was_not_told() {
        assert_eq!(told("of the program\nweir: full\n", &["full"]), Ok(()));
        assert_eq!(told("of the program\n", &[]), Ok(()));
        for wrong in ["", "weir: full\nweir: full\n", "weir: full\nweir: more\n"] {
            assert!(told(wrong, &["full"]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_ram_above_what_is_outside_and_the_least_is_a_failure() {
        let folder = places::target().join("shim-budget-test");
        std::fs::create_dir_all(&folder).expect("folder");
        let write = |n: u64| {
            std::fs::write(folder.join("1.stats"), format!("weir_peak_outside_bytes {n}\n")).expect("write");
        };
        write(1 << 20);
        assert_eq!(within_budget(&folder, BUDGET_BYTES, BUDGET_BYTES + OVERSHOOT_BYTES), Ok(()));
        assert!(within_budget(&folder, BUDGET_BYTES, BUDGET_BYTES + OVERSHOOT_BYTES + 1).is_err());
        write(2 * BUDGET_BYTES);
        assert_eq!(
            within_budget(&folder, BUDGET_BYTES, 2 * BUDGET_BYTES + LEAST_BYTES + OVERSHOOT_BYTES),
            Ok(())
        );
        assert!(within_budget(&folder, BUDGET_BYTES, 3 * BUDGET_BYTES).is_err());
        std::fs::remove_dir_all(&folder).expect("clean up");
    }

    #[test]
    fn a_program_that_hangs_ends_with_its_children_and_is_called_a_hang() {
        let words = ["sh", "-c", "trap '' TERM; sleep 60 & wait"].map(String::from);
        let ran = bounded(&words, 1, &places::target()).expect("timeout");
        assert!(ran.status.ends_with("(hang)"), "{}", ran.status);
        assert!(ran.seconds < 30.0, "{} s", ran.seconds);
        let quick = bounded(&["true".to_string()], 5, &places::target()).expect("timeout");
        assert_eq!(quick.status, "0");
    }

    #[test]
    fn every_program_is_found_and_an_unknown_name_refused() {
        assert!(sources(&[]).expect("programs").len() >= 10);
        assert!(sources(&[&"no-such-program".to_string()]).is_err());
        assert_eq!(sources(&[&"fork".to_string()]).expect("fork").len(), 1);
    }
}
