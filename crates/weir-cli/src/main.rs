//! The `weir` command: runs programs within a RAM budget, and says what this machine allows.

mod bench;
mod child;
mod cli;
mod config_cmd;
mod demo;
mod doctor;
mod elf;
mod interrupt;
mod preload;
mod run;
mod settings;
mod swapfile;
mod term;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};

/// Exit status of Weir's own failures before a program starts: 0 to 124 belong to the program.
const EXIT_OWN_FAILURE: u8 = 125;
/// Exit status of other commands' failures.
const EXIT_FAILURE: u8 = 1;
/// Exit status of a command line that makes no sense, except for `run`.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_error(&error),
    };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Demo(args) => finish(demo::demo(&args)),
        Command::Doctor(args) => finish(doctor::doctor(&args)),
        Command::Bench(args) => finish(bench::bench(&args)),
        Command::Config(args) => finish(config_cmd::config(&args)),
        Command::Completions { shell } => finish(print_completions(shell)),
        Command::Man => finish(print_man_page()),
        Command::Workload(args) => finish(bench::workload::main(&args)),
        Command::InCgroup(args) => child::enter_cgroup_and_exec(&args),
        Command::KernelSide(args) => finish(bench::kernel_side::main(&args)),
    }
}

/// Help and version go to stdout with 0; a bad command line ends with 2, under `run` with 125, since a status
/// of 2 could be the program's.
fn usage_error(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe (`weir --help | head -1`) is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    match text.strip_prefix("error: ") {
        Some(message) => eprint!("weir: {message}"),
        None => eprint!("{text}"), // the help, when no command was given
    }
    let run = std::env::args_os().nth(1).is_some_and(|arg| arg == "run");
    ExitCode::from(if run { EXIT_OWN_FAILURE } else { EXIT_USAGE })
}

fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        if term::is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        eprintln!("weir: {error:#}");
        ExitCode::from(EXIT_FAILURE)
    })
}

fn print_completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
    term::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

fn print_man_page() -> anyhow::Result<ExitCode> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    let run = Cli::command().find_subcommand("run").cloned().unwrap_or_default();
    clap_mangen::Man::new(run).render_options_section(&mut page)?;
    term::print(&String::from_utf8_lossy(&page))?;
    Ok(ExitCode::SUCCESS)
}
