//! Where settings come from, and which source wins.

mod common;

use common::{Folder, assert_fails, binary as weir, binary_with as weir_with, stderr, stdout};

fn shown(output: &std::process::Output, option: &str) -> Vec<String> {
    let text = stdout(output);
    let line = text
        .lines()
        .find(|line| line.starts_with(option))
        .unwrap_or_else(|| panic!("{option} not in {text}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn flags_beat_environment_beat_file_beat_defaults() {
    let home = Folder::new();
    let library = home.stub_library();
    let print = ["sh", "-c", "echo $WEIR_MEMORY"];
    let run = |env: Option<&str>, flag: Option<&str>| {
        let mut command = weir_with(&home, &library);
        if let Some(value) = env {
            command.env("WEIR_MEMORY", value);
        }
        command.arg("run");
        if let Some(value) = flag {
            command.args(["--memory", value]);
        }
        let output = command.args(print).output().unwrap();
        stdout(&output).trim().parse::<u64>().unwrap_or_else(|_| panic!("{}", stderr(&output)))
    };
    let half = run(None, None);
    assert!(half > 8 << 20, "half of the machine: {half}");
    home.file("weir/config.toml", "memory = \"100M\"\n");
    assert_eq!(run(None, None), 100 << 20);
    assert_eq!(run(Some("200M"), None), 200 << 20);
    assert_eq!(run(Some("200M"), Some("300M")), 300 << 20);
}

#[test]
fn show_origin_names_the_source_of_each_setting() {
    let home = Folder::new();
    let file = home.file("weir/config.toml", "pool-max = 50\nquiet = true\n");
    let output = weir(&home).env("WEIR_CODEC", "none").args(["config", "--show-origin"]).output().unwrap();
    assert_eq!(shown(&output, "pool-max"), ["pool-max", "50", "file", &file.display().to_string()]);
    assert_eq!(shown(&output, "quiet"), ["quiet", "1", "file", &file.display().to_string()]);
    assert_eq!(shown(&output, "codec"), ["codec", "none", "environment", "WEIR_CODEC"]);
    assert_eq!(shown(&output, "memory"), ["memory", "50%", "default"]);
    assert_eq!(shown(&output, "swap "), ["swap", "auto", "default"]);
}

#[test]
fn without_a_config_home_the_file_in_the_home_folder_counts() {
    let home = Folder::new();
    home.file(".config/weir/config.toml", "memory = 67108864\n");
    let output = weir(&home).env_remove("XDG_CONFIG_HOME").args(["config", "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["memory"]["bytes"], 64 << 20);
    assert!(json["memory"]["origin"].as_str().unwrap().ends_with(".config/weir/config.toml"));
}

#[test]
fn mistakes_in_the_file_are_errors_that_name_it() {
    for (text, part) in [
        ("memroy = \"1G\"\n", "'memroy'; did you mean 'memory'?"),
        ("memory = \"1X\"\n", "unknown unit"),
        ("memory = [1]\n", "array"),
        ("swap-io = \"aio\"\n", "uring"),
        ("memory\n", "config.toml"),
    ] {
        let home = Folder::new();
        let library = home.stub_library();
        home.file("weir/config.toml", text);
        let output = weir(&home).arg("config").output().unwrap();
        assert_fails(&output, 1, &["config.toml", part]);
        let output = weir_with(&home, &library).args(["run", "true"]).output().unwrap();
        assert_fails(&output, 125, &["config.toml", part]);
    }
}

#[test]
fn a_bad_variable_is_named_in_the_message() {
    let home = Folder::new();
    let library = home.stub_library();
    let output = weir_with(&home, &library).env("WEIR_MEMORY", "2X").args(["run", "true"]).output().unwrap();
    assert_fails(&output, 125, &["WEIR_MEMORY", "2X"]);
    let output = weir_with(&home, &library).env("WEIR_MEMORY", "").args(["run", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "empty is not set: {}", stderr(&output));
}

#[test]
fn a_mistyped_variable_is_an_error_that_names_the_one_that_was_meant() {
    let home = Folder::new();
    let library = home.stub_library();
    let with = |name: &str, args: &[&str]| weir_with(&home, &library).env(name, "2G").args(args).output();
    assert_fails(&with("WEIR_MEMROY", &["run", "true"]).unwrap(), 125, &["WEIR_MEMROY", "WEIR_MEMORY?"]);
    assert_fails(&with("WEIR_SWAPDIR", &["config"]).unwrap(), 1, &["WEIR_SWAPDIR", "WEIR_SWAP_DIR?"]);
    assert_fails(&with("WEIR_XYZZY", &["run", "true"]).unwrap(), 125, &["WEIR_XYZZY", "--help"]);
    let other = with("WEIRD", &["run", "true"]).unwrap();
    assert_eq!((other.status.code(), stderr(&other).as_str()), (Some(0), ""));
}
