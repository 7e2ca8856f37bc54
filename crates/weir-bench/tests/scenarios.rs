//! The scenarios from outside, with a stand-in for the library.

#[path = "../../weir-cli/tests/common/mod.rs"]
mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, assert_fails, binary as bench, binary_with as bench_with, json, stderr, stdout};
use serde_json::Value;

#[test]
fn the_pool_bench_reports_budget_and_peak_of_weirs_side() {
    let home = Folder::new();
    let library = home.counting_library(9 << 20);
    let output = bench_with(&home, &library)
        .args(["pool", "--no-rival", "--size", "8M", "--seconds", "0.01", "--runs", "2", "--json"])
        .args(["--faults", "inline"])
        .output()
        .unwrap();
    let report = json(&output);
    assert_eq!(
        (report["limit_bytes"].as_u64(), report["data_bytes"].as_u64()),
        (Some(8 << 20), Some(16 << 20))
    );
    assert_eq!(report["runs"].as_array().unwrap().len(), 2);
    assert_eq!(report["inline"]["pager"], "move");
    for row in report["rows"].as_array().unwrap() {
        let value = |side: &Value| side.as_f64().unwrap();
        assert!(value(&row["inline"]["value"]) > 0.0 && value(&row["native"]) > 0.0, "{row}");
        assert!(row["rival"].is_null() && row["inline"]["ratio"].is_null(), "{row}");
        assert!(row["thread"].is_null(), "only the mode asked for: {row}");
    }
}

#[test]
fn the_scaling_bench_reports_every_number_of_threads_and_computes_nothing_from_counters_that_are_not_there() {
    let home = Folder::new();
    let library = home.counting_library(9 << 20);
    let bench = |more: &[&str]| {
        let common = ["scaling", "--no-rival", "--memory", "8M", "--seconds", "0.01", "--runs", "1"];
        bench_with(&home, &library).args(common).args(["--faults", "inline"]).args(more).output().unwrap()
    };
    let report = json(&bench(&["--json"]));
    let rows = report["rows"].as_array().unwrap();
    let threads: Vec<u64> = rows.iter().filter_map(|row| row["threads"].as_u64()).collect();
    assert_eq!(threads, [1, 2, 4, 8, 16]);
    for row in rows {
        assert!(
            row["inline"]["ops_per_s"].as_f64().unwrap() > 0.0 && row["inline"]["gain"].is_null(),
            "{row}"
        );
        assert!(row["kernel"].is_null() && row["thread"].is_null(), "not asked for: {row}");
    }
    assert!(report["model"].is_null(), "{}", report["model"]);
    let text = String::from_utf8(bench(&[]).stdout).unwrap();
    assert!(text.contains("inline, 16 thread(s)") && !text.contains("COMPUTED"), "{text}");
}

#[test]
fn the_swap_bench_and_the_founding_experiments_report_every_row() {
    let home = Folder::new();
    let library = home.counting_library(7 << 20);
    let report = |args: &[&str]| {
        let common = ["--size", "8M", "--seconds", "0.01", "--runs", "1", "--no-rival", "--json"];
        json(&bench_with(&home, &library).args(args).args(common).output().unwrap())
    };
    let swap = report(&["swap"]);
    assert_eq!((swap["limit_bytes"].as_u64(), swap["pool_max_percent"].as_u64()), (Some(8 << 20), Some(5)));
    for row in swap["tables"][0]["rows"].as_array().unwrap() {
        assert!(row["weir"]["value"].as_f64().unwrap() > 0.0 && row["weir"]["ratio"].is_null(), "{row}");
    }
    assert!(swap["second_pass_written_bytes"]["weir"].is_number(), "{swap}");
    for row in report(&["founding", "f1"])["rows"].as_array().unwrap() {
        assert!(row["one"].as_f64().unwrap() > 0.0 && row["gain"].as_f64().unwrap() > 0.0, "{row}");
    }
    let f2 = report(&["founding", "f2"]);
    for row in f2["rows"].as_array().unwrap() {
        assert!(row["on"].as_f64().unwrap() > 0.0 && row["gain"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["kernel"].is_null(), "not asked for: {row}");
    }
    assert!(f2["verdict"]["time"].as_f64().unwrap() > 0.0, "{f2}");
    let f4 = report(&["founding", "f4"]);
    assert_eq!(f4["rows"].as_array().unwrap().len(), 9);
    for row in f4["rows"].as_array().unwrap() {
        assert!(row["adaptive_to_best"].as_f64().unwrap() > 0.0 && row["reached"].is_boolean(), "{row}");
    }
}

#[test]
fn the_files_bench_reads_a_file_in_every_way_and_leaves_nothing() {
    let home = Folder::new();
    let library = home.counting_library(7 << 20);
    // On a disk, and nobody else's.
    let folder = Path::new("/var/tmp").join(format!("weir-files-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let bench = |more: &[&str]| {
        let common = ["files", "--size", "16M", "--seconds", "0.02", "--runs", "1", "--no-rival", "--dir"];
        bench_with(&home, &library).args(common).arg(&folder).args(more).output().unwrap()
    };
    let report = json(&bench(&["--json"]));
    assert_eq!(report["file_bytes"].as_u64(), Some(64 << 20));
    for row in report["rows"].as_array().unwrap() {
        let value = |side: &str| row[side].as_f64();
        let may_be_nothing = row["unit"] == "x" || row["unit"] == "MiB";
        assert!(may_be_nothing || value("weir") > Some(0.0), "{row}");
        assert!(value("kernel").is_none() && value("advised").is_none(), "not asked for: {row}");
    }
    let disk = report["rows"][0]["disk"].as_f64();
    assert!(disk > Some(0.0), "{report}");
    let text = stdout(&bench(&[]));
    assert!(text.contains("random 4 KiB") && text.contains("at most 1.2x"), "{text}");
    std::fs::remove_dir(&folder).expect("nothing is left in it");
}

#[test]
fn a_mode_of_faults_that_does_not_exist_is_a_usage_error() {
    let home = Folder::new();
    let output = bench(&home).args(["pool", "--faults", "sometimes"]).output().unwrap();
    assert_fails(&output, 2, &["sometimes", "inline or thread"]);
}

#[test]
fn a_peak_above_the_budget_fails_the_bench() {
    let home = Folder::new();
    let library = home.counting_library(1 << 40);
    let output = bench_with(&home, &library)
        .args(["pool", "--no-rival", "--size", "8M", "--seconds", "0.01", "--quick"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("more than its budget"), "{}", stderr(&output));
}

/// It fails, and says so, perhaps after lines about its progress.
#[track_caller]
fn fails(output: &Output, why: &str) {
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(output).contains(why), "'{why}' not in: {}", stderr(output));
}

#[test]
fn a_library_that_does_not_start_fails_every_scenario() {
    let home = Folder::new();
    let library = home.stub_library();
    for args in [
        ["pool", "--no-rival", "--size=8M", "--seconds=0.01", "--quick"].as_slice(),
        &["gate", "--quick", "--calls=100"],
        &["swap", "--no-rival", "--size=8M", "--seconds=0.01", "--quick"],
        &["files", "--no-rival", "--size=8M", "--seconds=0.01", "--quick"],
        &["founding", "f1", "--no-rival", "--size=8M", "--seconds=0.01", "--quick"],
        &["founding", "f2", "--size=8M", "--no-rival", "--quick"],
        &["founding", "f4", "--size=8M", "--seconds=0.01", "--quick"],
        &["founding", "f5", "--size=8M", "--seconds=0.01", "--quick"],
    ] {
        fails(&bench_with(&home, &library).args(args).output().unwrap(), "did not start");
    }
}

#[test]
fn the_rules_are_listed_and_left_out_in_turn_where_the_build_can() {
    let home = Folder::new();
    let library = home.counting_library(7 << 20);
    let rules = json(&bench(&home).args(["rules", "--json"]).output().unwrap());
    let names: Vec<&str> =
        rules["rows"].as_array().unwrap().iter().map(|row| row["rule"].as_str().unwrap()).collect();
    assert!(names.len() > 20 && names.contains(&"streams"), "{names:?}");
    assert_eq!(rules["can_leave_out"], cfg!(feature = "experiments"));
    let text = stdout(&bench(&home).arg("rules").output().unwrap());
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    let (file, page) = (home.0.join("log.jsonl"), home.0.join("page.md"));
    let ablate = |more: &[&str]| {
        let mut command = bench_with(&home, &library);
        command.args(["ablate", "--quick", "--json", "--file"]).arg(&file).arg("--page").arg(&page);
        command.args(more).output().unwrap()
    };
    let two = ["--only=loads", "--only=turns", "--scenario=pool"];
    if !cfg!(feature = "experiments") {
        assert_fails(&ablate(&two), 1, &["cannot leave rules out", "make ablate"]);
        return;
    }
    assert_fails(&ablate(&["--only=load"]), 1, &["no rule 'load'", "site-scores"]);
    let output = ablate(&two);
    assert!(stderr(&output).contains("3 runs, about 1 minutes"), "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["rows"].as_array().unwrap().len(), 2);
    assert!(report["rows"][0]["figures"][0]["gain"].as_f64().unwrap() > 0.0, "{report}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("| loads |"));
    let again = ablate(&two);
    assert!(stderr(&again).contains("0 runs"), "all of it is in the file: {}", stderr(&again));
}

#[test]
fn policies_are_replayed_from_a_trace_of_the_users_and_drawn() {
    let home = Folder::new();
    let library = home.stub_library();
    let lines: String = (0..3).flat_map(|_| 0..1100).map(|page: u32| format!("{page}\n")).collect();
    let trace = home.file("mine", &lines);
    let charts = home.0.join("charts");
    let output = bench_with(&home, &library)
        .args(["policy", "--frames=1024", "--trace"])
        .arg(&trace)
        .arg("--plot")
        .arg(&charts)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let row = stdout(&output).lines().find(|line| line.starts_with("mine ")).map(str::to_owned);
    // Three rounds over 76 pages more than there are frames: the optimum misses those again in the second and
    // third, (1100 + 2 * 76) / 3300, first-in-first-out and least-recently-used all.
    let cells: Vec<String> = row.unwrap().split_whitespace().map(str::to_owned).collect();
    assert_eq!(
        (cells[1].as_str(), cells[2].as_str(), cells[4].as_str()),
        ("37.9", "100", "100"),
        "{cells:?}"
    );
    assert!(std::fs::read_to_string(charts.join("policy.svg")).unwrap().contains("mine"));
    let missing = bench_with(&home, &library).args(["policy", "--trace=/no/such"]).output().unwrap();
    assert_fails(&missing, 1, &["/no/such"]);
}

#[test]
fn the_codec_bench_compares_every_way_on_the_pages_of_a_file() {
    let home = Folder::new();
    let file = home.file("pages", &"a line of text that comes again\n".repeat(8192));
    let run =
        |path: &Path| bench(&home).args(["codec", "--quick", "--json", "--file"]).arg(path).output().unwrap();
    let report = json(&run(&file));
    assert_eq!((report["scenario"].as_str(), report["rows"][0]["pages"].as_u64()), (Some("codec"), Some(64)));
    for way in report["rows"][0]["ways"].as_array().unwrap() {
        assert!(way["bytes_per_page"].as_f64().is_some_and(|bytes| bytes < 400.0), "{way}");
        assert!(way["expand_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{way}");
    }
    std::fs::write(&file, "short").unwrap();
    assert_fails(&run(&file), 1, &["--file", "64 KiB"]);
}

#[test]
fn the_gate_bench_refuses_prices_of_calls_that_nobody_saw() {
    let home = Folder::new();
    let library = home.counting_library(9 << 20);
    let output = bench_with(&home, &library).args(["gate", "--runs=1", "--calls=100"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("weir_calls_wrapped: 0 instead of"), "{}", stderr(&output));
}

#[test]
fn the_numpy_bench_says_which_package_is_missing() {
    let home = Folder::new();
    let python = home.script("python", "echo /opt/python");
    let output = bench(&home).args(["numpy", "--python"]).arg(&python).output().unwrap();
    assert_fails(&output, 1, &["numpy is missing in /opt/python", "pip install numpy"]);
}

/// Everything that the kernel's side changes on the machine.
fn machine_state() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let names = |dir: &str, part: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name.contains(part));
        names.sort();
        names.join(" ")
    };
    let mut state = [
        read("/proc/swaps"),
        read("/proc/sys/vm/page-cluster"),
        read("/sys/block/zram0/disksize"),
        read("/sys/block/zram0/comp_algorithm"),
        read("/sys/module/zswap/parameters/enabled"),
        read("/sys/module/zswap/parameters/compressor"),
        rotational(),
        names("/var/tmp", ".weir-bench"),
        names("/sys/block", "zram"),
    ]
    .join("|");
    for group in weir_os::probe::memory_groups_of_self() {
        for dir in [&group.dir, &group.mount] {
            state += &names(&dir.display().to_string(), "weir-bench");
        }
    }
    state
}

/// What every disk says about itself.
fn rotational() -> String {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let read = |disk: std::fs::DirEntry| std::fs::read_to_string(disk.path().join("queue/rotational")).ok();
    entries.filter_map(read).collect()
}

/// All parts in one test: they look at the same machine-wide state.
#[test]
fn the_kernels_side_leaves_the_machine_as_it_was_even_when_interrupted() {
    let home = Folder::new();
    let before = machine_state();
    let mut command = bench(&home);
    command.args(["pool", "--quick", "--rival-only", "--size", "16M", "--seconds", "0.1", "--json"]);
    let output = command.output().unwrap();
    let report = json(&output);
    if weir_os::host::effective_uid() != 0 {
        let notes = report["notes"].to_string();
        assert!(notes.contains("root"), "without root the note says so: {notes}");
        assert_eq!(machine_state(), before);
        return;
    }
    if report["rival"].is_null() {
        // Root in a container without zram or control groups: the note says what is missing, nothing is left
        // behind.
        assert!(!report["notes"].as_array().unwrap().is_empty(), "{report}");
    } else {
        assert!(report["store_peak_bytes"].as_f64().unwrap() > 1e6, "{report}");
        assert_eq!(report["rows"][0]["phase"], "fill");
        assert!(report["rows"][0]["rival"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(machine_state(), before, "after a complete run");
    if !report["rival"].is_null() {
        interrupt_while_swapping(&home, "pool", Path::new("/proc/swaps"));
        assert_eq!(machine_state(), before, "after an interrupted run");
        interrupt_while_swapping(&home, "swap", Path::new("/proc/swaps"));
        assert_eq!(machine_state(), before, "after an interrupted run with a swap file");
        any_program_under_the_kernels_swap(&home);
        assert_eq!(machine_state(), before, "after programs of scripts");
    }
}

/// A program that holds three times its limit, and one that fails: both are reported on.
fn any_program_under_the_kernels_swap(home: &Folder) {
    let report = home.0.join("kernel.json");
    let side = |program: &[&str]| {
        let mut command = bench(home);
        command
            .args(["__kernel-side", "--limit", "16M", "--swap", "256M", "--report"])
            .arg(&report)
            .arg("--");
        command.args(program).output().unwrap()
    };
    let output = side(&["python3", "-c", "x = bytearray(b'some words ' * 4_400_000); print(len(x))"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "48400000\n");
    let found: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert!(found["store_peak_bytes"].as_u64().unwrap() > 0, "{found}");
    std::fs::remove_file(&report).unwrap();
    let failing = side(&["sh", "-c", "exit 3"]);
    assert_fails(&failing, 1, &["exit status: 3"]);
    assert!(report.exists(), "also where the program failed");
}

fn interrupt_while_swapping(home: &Folder, scenario: &str, swaps: &Path) {
    let areas = || std::fs::read_to_string(swaps).unwrap().lines().count();
    let before = areas();
    let mut child = bench(home)
        .args([scenario, "--rival-only", "--size", "32M", "--seconds", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    while areas() == before {
        assert!(Instant::now() < patience, "the swap area never appeared");
        std::thread::yield_now();
    }
    let kill = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let status = child.wait().unwrap();
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("interrupted"), "{text}");
}
