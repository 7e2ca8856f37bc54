//! `weir stat` from outside, on a page that this process shows as a program under Weir does.

mod common;

use common::{Folder, assert_fails, binary as weir, json, stdout};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use weir_os::live::{LINK, Owner, Page};

const NAMES: [&str; 3] = ["pgfault", "weir_budget_bytes", "weir_waited_ns"];

fn page() -> Page {
    let owner = Owner { pid: std::process::id(), title: "python3 job.py", since_ns: 1 };
    let page = Page::new(owner, |name| NAMES.iter().for_each(|n| name(n))).unwrap();
    page.write(|value| [7, 64 << 20, 1_500_000_000].into_iter().for_each(value));
    page
}

/// As a page of another version of Weir: the second word of the file.
fn with_version(version: u64) {
    let mut links = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_page = |link: &std::path::PathBuf| std::fs::read_link(link).is_ok_and(|to| to.as_os_str() == LINK);
    let link = links.find(is_page).unwrap();
    let file = std::fs::File::options().write(true).open(link).unwrap();
    file.write_all_at(&version.to_ne_bytes(), 8).unwrap();
}

#[test]
fn what_a_process_counts_is_shown_by_its_id_and_in_the_list() {
    let home = Folder::new();
    let _page = page();
    let number = std::process::id().to_string();
    let pid = number.as_str();
    let ask = |args: &[&str]| weir(&home).arg("stat").args(args).output().unwrap();

    let text = stdout(&ask(&[pid]));
    assert!(text.starts_with(&format!("pid {pid}\nprogram python3 job.py\nran_ns ")), "{text}");
    assert!(text.ends_with("pgfault 7\nweir_budget_bytes 67108864\nweir_waited_ns 1500000000\n"), "{text}");
    let object = json(&ask(&[pid, "--json"]));
    assert_eq!((&object["pgfault"], &object["program"]), (&7.into(), &"python3 job.py".into()));

    let table = stdout(&ask(&[]));
    let line = table.lines().find(|line| line.trim_start().starts_with(pid)).unwrap();
    assert!(line.contains("64 MiB") && line.ends_with("1.50 s  python3 job.py"), "{table}");
    let list = json(&ask(&["--json"]));
    assert!(list.as_array().unwrap().iter().any(|one| one["pid"] == std::process::id()), "{list}");

    // Somebody who goes away is no failure.
    let mut watching =
        weir(&home).args(["stat", pid, "--watch", "0.01"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let twice = lines.by_ref().filter(|line| line.as_ref().is_ok_and(|line| line == "pgfault 7")).take(2);
    assert_eq!(twice.count(), 2);
    drop(lines);
    assert_eq!(watching.wait().unwrap().code(), Some(0));

    with_version(99);
    assert_fails(&ask(&[pid]), 1, &[pid, "another version of Weir"]);
    assert_eq!(ask(&["--json"]).status.code(), Some(1), "said, and the others are listed all the same");
}

#[test]
fn processes_that_show_nothing_are_told_apart() {
    let home = Folder::new();
    let ask = |args: &[&str]| weir(&home).arg("stat").args(args).output().unwrap();
    assert_fails(&ask(&["4194305"]), 1, &["there is no process 4194305"]);
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    assert_fails(&ask(&[&other.id().to_string()]), 1, &["does not run under Weir"]);
    drop(other.stdin.take());
    other.wait().unwrap();
    let set = |pid: &str, size: &str| weir(&home).args(["set", pid, "-m", size]).output().unwrap();
    assert_fails(&set("4194305", "1G"), 1, &["there is no process 4194305"]);
    for (size, why) in [("1M", "the least is 8 MiB"), ("lots", "'lots' for --memory"), ("-1", "--memory")] {
        assert_fails(&set("4194305", size), 1, &[why]);
    }
    for wrong in [["nobody"].as_slice(), &["-1"], &["1", "--watch", "0"], &["1", "--watch", "soon"]] {
        assert_eq!(ask(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
