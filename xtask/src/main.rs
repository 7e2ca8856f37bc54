//! Repository tasks: `cargo run -p xtask -- tidy | test [SUITE...] | soak [SUITE...] |
//! shim [PROGRAM...] | suites`.
//!
//! `tidy` checks what the compiler does not: direction of imports, lengths, documents, banned calls. `shim`
//! runs the C programs of `tests/shim` natively and under `weir run`. `test` runs every suite of the project
//! and fails when one is missing. Only the standard library is used: this must build in seconds on a fresh
//! machine.

mod places;
mod shim;
mod suites;
mod tidy;
mod watch;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- COMMAND
  tidy [--all]       check the sources for what the compiler does not check; --all: accepted offences too
  test [SUITE...]    run all suites, or the named ones
  soak [SUITE...]    run the long suites, some hours
  suites             list the suites of `test`
  shim [--native-only] [PROGRAM...]   run the C programs of tests/shim, or the named ones";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = words.split_first() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let passed = match command.as_str() {
        "tidy" => tidy::run(rest.iter().any(|word| word == "--all")),
        "test" => suites::run(rest),
        "soak" => suites::soak(rest),
        "suites" => suites::list(),
        "shim" => shim::run(rest),
        _ => {
            eprintln!("xtask: unknown command {command}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
