//! `weir-bench`, which `weir bench` starts: the same program, the same data and the same RAM, natively, under
//! the kernel's own swap and under Weir.

mod ablate;
mod all;
mod calls;
mod cli;
mod codec;
mod disk;
mod files;
mod filework;
mod founding;
mod gate;
mod graph;
mod headline;
mod kernel_side;
mod machine;
mod numpy;
mod passes;
mod plot;
mod policy;
mod pool;
mod record;
mod report;
mod row;
mod rules;
mod scaling;
mod scenarios;
mod swap;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use weir_cli::{child, exit};

use cli::{Cli, Task};
use scenarios::{Findings, RIVAL_ATTEMPTS, median, oom_note};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage_error(&error, exit::USAGE),
    };
    match &cli.task {
        Task::Scenario(scenario) => {
            exit::finish(scenarios::bench(scenario, cli.plot.as_deref(), cli.record.as_deref()))
        }
        Task::All(args) => exit::finish(all::all(args, cli.record.as_deref())),
        Task::Workload(args) => exit::finish(workload::main(args)),
        Task::FilesWork(args) => exit::finish(files::main(args)),
        Task::InCgroup(args) => child::enter_cgroup_and_exec(args),
        Task::KernelSide(args) => exit::finish(kernel_side::main(args)),
    }
}
