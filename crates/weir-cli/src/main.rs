//! The `weir` command: runs programs within a RAM budget, and says what this machine allows.

mod bench;
mod cli;
mod config_cmd;
mod demo;
mod doctor;
mod elf;
mod run;
mod settings;
mod swapfile;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use weir_cli::{child, exit, term};

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Under `run` a status of 2 could be the program's.
            let run = std::env::args_os().nth(1).is_some_and(|arg| arg == "run");
            return exit::usage_error(&error, if run { exit::OWN_FAILURE } else { exit::USAGE });
        }
    };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Demo(args) => exit::finish(demo::demo(&args)),
        Command::Doctor(args) => exit::finish(doctor::doctor(&args)),
        Command::Bench(args) => exit::finish(bench::bench(&args)),
        Command::Config(args) => exit::finish(config_cmd::config(&args)),
        Command::Completions { shell } => exit::finish(print_completions(shell)),
        Command::Man => exit::finish(print_man_page()),
        Command::DemoJob { bytes } => exit::finish(demo::job(bytes)),
        Command::InCgroup(args) => child::enter_cgroup_and_exec(&args),
    }
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
