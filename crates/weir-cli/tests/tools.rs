//! `doctor`, `completions`, `man`, `bench` and `demo` from outside.

mod common;

use common::{Folder, assert_fails, binary as weir, binary_with as weir_with, json, stderr, stdout};

#[test]
fn doctor_fails_without_the_library_and_names_the_fix() {
    let home = Folder::new();
    let output =
        weir(&home).env("WEIR_PRELOAD", "/nonexistent.so").args(["doctor", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output);
    assert_eq!(report["ok"], false);
    let checks = report["checks"].as_array().unwrap();
    let library = checks.iter().find(|check| check["name"] == "library").unwrap();
    assert_eq!(library["status"], "fail");
    assert!(library["fix"].as_str().unwrap().contains("WEIR_PRELOAD"));
}

#[test]
fn doctor_prints_one_plain_line_per_check_off_a_terminal() {
    let home = Folder::new();
    let library = home.stub_library();
    let plain = weir_with(&home, &library).arg("doctor").output().unwrap();
    let report = json(&weir_with(&home, &library).args(["doctor", "--json"]).output().unwrap());
    let text = stdout(&plain);
    let lines: Vec<&str> = text.lines().collect();
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(lines.len(), checks.len());
    assert!(!text.contains('\x1b'), "no escapes off a terminal");
    for (line, check) in lines.iter().zip(checks) {
        assert!(line.starts_with(check["status"].as_str().unwrap()), "{line}");
        assert!(line.contains(check["name"].as_str().unwrap()), "{line}");
    }
    assert_eq!(plain.status.code(), Some(i32::from(report["ok"] == false)));
}

#[test]
fn completions_and_the_manual_page_come_from_the_same_table() {
    let home = Folder::new();
    for args in
        [["completions", "bash"].as_slice(), &["completions", "zsh"], &["completions", "fish"], &["man"]]
    {
        let output = weir(&home).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        let text = stdout(&output).replace("\\-", "-");
        for option in ["pool-max", "swap-dir", "swap-encryption", "swap-io", "policy"] {
            assert!(text.contains(option), "{args:?}: {option}");
        }
    }
}

#[test]
fn a_kernel_for_jupyter_runs_python_within_its_budget_and_needs_one_that_can_be_a_kernel() {
    let home = Folder::new();
    let python = home.script("python", "echo /opt/env/bin/python\n");
    let run = |words: &[&str]| {
        let mut weir = weir(&home);
        weir.env_remove("XDG_DATA_HOME").env_remove("JUPYTER_DATA_DIR").args(["jupyter", "install"]);
        weir.arg("--python").arg(&python).args(words).output().unwrap()
    };
    let made = run(&["--memory", "2G", "--name", "two"]);
    assert!(made.status.success(), "{}", stderr(&made));
    assert!(stdout(&made).contains("Python under Weir in 2G"), "{}", stdout(&made));
    let file = home.0.join(".local/share/jupyter/kernels/two/kernel.json");
    let spec: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let argv: Vec<&str> =
        spec["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert!(argv[0].starts_with('/') && argv[0].ends_with("/weir"), "{argv:?}");
    let python_alone = ["/opt/env/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"];
    assert_eq!(argv[1..], [&["run", "--quiet", "--memory", "2G", "--"][..], &python_alone].concat());
    assert_eq!((&spec["language"], spec["display_name"].is_string()), (&"python".into(), true));
    let prefix = home.0.join("prefix");
    assert!(run(&["--prefix", prefix.to_str().unwrap()]).status.success());
    let text = std::fs::read_to_string(prefix.join("share/jupyter/kernels/weir/kernel.json")).unwrap();
    assert!(!text.contains("--memory"), "{text}");
    assert_fails(&run(&["--memory", "5"]), 1, &["the least is"]);
    assert_fails(&run(&["--name", "a/b"]), 1, &["letters"]);
    home.script("python", "exit 1\n");
    assert_fails(&run(&[]), 1, &["-m pip install ipykernel"]);
    assert_fails(&weir(&home).args(["jupyter", "remove"]).output().unwrap(), 2, &["install"]);
}

#[test]
fn completions_offer_values_and_not_what_help_hides() {
    let home = Folder::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = stdout(&weir(&home).args(["completions", shell]).output().unwrap());
        for offered in ["inline", "writethrough", "verbose"] {
            assert!(text.contains(offered), "{shell}: {offered}");
        }
        for hidden in ["frame-order", "store-batch", "in-cgroup"] {
            assert!(!text.contains(hidden), "{shell}: {hidden}");
        }
    }
}

#[test]
fn help_version_and_manual_pages_are_commands_too() {
    let home = Folder::new();
    let said = |args: &[&str]| {
        let output = weir(&home).args(args).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{args:?}");
        stdout(&output)
    };
    assert_eq!(said(&["version"]), said(&["--version"]));
    assert!(said(&["version"]).starts_with("weir 0."));
    assert_eq!(said(&["help"]), said(&["--help"]));
    assert_eq!(said(&["help", "run"]), said(&["run", "--help"]));
    assert!(said(&["help", "run"]).contains("<auto|inline|thread>"));
    assert!(said(&["help"]).contains("weir run --memory 2G"));
    assert!(said(&["man"]).contains(".TH weir 1") && said(&["man", "run"]).contains(".TH weir-run 1"));
    assert_fails(&weir(&home).args(["man", "nonsense"]).output().unwrap(), 1, &["nonsense"]);
}

#[test]
fn a_program_without_run_before_it_is_asked_about() {
    let home = Folder::new();
    let ask = |args: &[&str]| weir(&home).args(args).output().unwrap();
    let asked = [("sh job.sh", "'sh'"), ("-m 2G sh job.sh", "'-m'"), ("/bin/sh -c true", "'/bin/sh'")];
    for (line, first) in asked {
        let words: Vec<&str> = line.split(' ').collect();
        let meant = format!("did you mean `weir run {line}`?");
        assert_fails(&ask(&words), 2, &[first, "is no command of Weir", &meant]);
    }
    assert_fails(&ask(&["runn", "true"]), 2, &["'runn'", "'run'"]);
}

#[test]
fn usage_errors_of_other_commands_are_2_and_help_is_0() {
    let home = Folder::new();
    assert_fails(&weir(&home).arg("no-such-command").output().unwrap(), 2, &["no-such-command"]);
    assert_fails(&weir(&home).args(["doctor", "--wrong"]).output().unwrap(), 2, &["--wrong"]);
    for args in [["--help"].as_slice(), &["run", "--help"], &["--version"]] {
        let output = weir(&home).args(args).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?}");
    }
}

#[test]
fn a_library_that_does_not_start_fails_the_demo() {
    let home = Folder::new();
    let library = home.stub_library();
    let output = weir_with(&home, &library).args(["demo", "--no-rival", "--memory=32M"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("did not start"), "{}", stderr(&output));
}

#[test]
fn bench_is_a_binary_beside_weir_and_where_it_is_missing_weir_says_how_to_build_it() {
    // Linked, not copied: a file that was open for writing when another test forked cannot be executed.
    let folder = Folder::within(env!("CARGO_TARGET_TMPDIR"));
    let linked = folder.0.join("weir");
    std::fs::hard_link(env!("CARGO_BIN_EXE_weir"), &linked).unwrap();
    let bench =
        || std::process::Command::new(&linked).args(["bench", "pool", "--runs", "2", "--help"]).output();
    assert_fails(&bench().unwrap(), 1, &["weir-bench is not in", "make bench"]);
    std::os::unix::fs::symlink("/bin/echo", folder.0.join("weir-bench")).unwrap();
    let output = bench().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "pool --runs 2 --help\n"));
}

#[test]
fn doctor_names_the_mode_of_faults_in_its_check_and_in_the_json() {
    let home = Folder::new();
    let library = home.stub_library();
    let report = json(&weir_with(&home, &library).args(["doctor", "--json"]).output().unwrap());
    let checks = report["checks"].as_array().unwrap();
    let faults = checks.iter().find(|check| check["name"] == "faults").unwrap();
    let detail = faults["detail"].as_str().unwrap();
    match report["faults"].as_str() {
        Some(mode) => assert!(detail.starts_with(&format!("{mode}: ")), "{detail}"),
        None => assert_eq!((&faults["status"], &report["ok"]), (&"fail".into(), &false.into())),
    }
}

#[test]
fn the_demo_verifies_and_prints_its_table() {
    let home = Folder::new();
    let library = home.counting_library(9 << 20);
    let output = weir_with(&home, &library).args(["demo", "--no-rival", "--memory", "32M"]).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        text.contains("All results verified") && text.contains("weir") && text.contains("native"),
        "{text}"
    );
}
