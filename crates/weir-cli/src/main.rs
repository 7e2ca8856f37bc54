//! The `weir` command: runs programs within a RAM budget, and says what this machine allows.

mod bench;
mod cli;
mod completions;
mod config_cmd;
mod demo;
mod doctor;
mod elf;
mod jupyter;
mod live;
mod run;
mod serve;
mod set;
mod settings;
mod stat;
mod suggest;
mod swapfile;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use weir_cli::{child, exit, term};

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Demo(args) => exit::finish(demo::demo(&args)),
        Command::Doctor(args) => exit::finish(doctor::doctor(&args)),
        Command::Serve(args) => exit::finish(serve::serve(&args)),
        Command::Set(args) => exit::finish(set::set(&args)),
        Command::Stat(args) => exit::finish(stat::stat(&args)),
        Command::Top(args) => exit::finish(top::top(&args)),
        Command::Bench(args) => exit::finish(bench::bench(&args)),
        Command::Jupyter(args) => exit::finish(jupyter::jupyter(&args)),
        Command::Config(args) => exit::finish(config_cmd::config(&args)),
        Command::Completions { shell } => exit::finish(completions::print(shell)),
        Command::Man { command } => exit::finish(print_man_page(command.as_deref())),
        Command::Version => exit::finish(print_version()),
        Command::DemoJob { bytes } => exit::finish(demo::job(bytes)),
        Command::InCgroup(args) => child::enter_cgroup_and_exec(&args),
    }
}

/// What is wrong with the command line.
fn explain(error: &clap::Error) -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(meant) = suggest::meant(error.kind(), &words) {
        eprintln!("weir: {meant}");
        return ExitCode::from(exit::USAGE);
    }
    // Under `run` a status of 2 could be the program's.
    let run = words.first().is_some_and(|word| word == "run");
    exit::usage_error(error, if run { exit::OWN_FAILURE } else { exit::USAGE })
}

fn print_version() -> anyhow::Result<ExitCode> {
    term::print(&format!("{} {}\n", env!("CARGO_BIN_NAME"), env!("CARGO_PKG_VERSION")))?;
    Ok(ExitCode::SUCCESS)
}

/// The page of one command, or that of `weir`, with the options of `run`.
fn print_man_page(name: Option<&str>) -> anyhow::Result<ExitCode> {
    let find = |name: &str| {
        let mut weir = Cli::command();
        weir.build();
        weir.find_subcommand(name).filter(|command| !command.is_hide_set()).cloned()
    };
    let mut page = Vec::new();
    match name {
        Some(name) => {
            let command = find(name).ok_or_else(|| anyhow::anyhow!("there is no command '{name}'"))?;
            let man = clap_mangen::Man::new(command).title(format!("weir-{name}"));
            man.source(concat!("weir ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
        }
        None => {
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            clap_mangen::Man::new(find("run").unwrap_or_default()).render_options_section(&mut page)?;
        }
    }
    term::print(&String::from_utf8_lossy(&page))?;
    Ok(ExitCode::SUCCESS)
}
