//! The command line. The flags of `run` are built from [`weir::config::OPTIONS`], so that parser, help, man
//! page, completions and configuration file cannot disagree.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use weir::config::OPTIONS;
use weir_cli::child::InCgroupArgs;

/// Run programs within a hard RAM budget, in user space.
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    max_term_width = 100,
    after_help = "To begin:\n  \
    weir doctor                           is this machine ready? If not, what makes it so\n  \
    weir run --memory 2G python3 job.py   runs a program in 2 GiB of RAM"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program within a RAM budget
    Run(RunArgs),
    /// Work on data larger than a budget, verify it, and compare with the kernel's own swap
    Demo(DemoArgs),
    /// Say what this kernel and these permissions allow, and what would fix the rest
    Doctor(JsonArgs),
    /// Show what processes under Weir count, while they run
    Stat(StatArgs),
    /// Watch processes under Weir on the whole terminal, and change their budgets
    Top(TopArgs),
    /// Serve the counters of processes under Weir to Prometheus, and as a page to a browser
    Serve(ServeArgs),
    /// Change the budget of a process while it runs
    Set(SetArgs),
    /// Measure Weir against the kernel's own swap, or against the program alone
    Bench(BenchArgs),
    /// Make a kernel for Jupyter whose Python runs under Weir
    Jupyter(JupyterArgs),
    /// Show the settings in force
    Config(ConfigArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of Weir or of one of its commands
    Man {
        /// Of which command
        command: Option<String>,
    },
    /// Print the version
    Version,
    /// The program that the demo measures
    #[command(name = "__demo", hide = true)]
    DemoJob {
        /// Bytes of its table
        bytes: usize,
    },
    /// Enter a control group, then become another program
    #[command(name = "__in-cgroup", hide = true)]
    InCgroup(InCgroupArgs),
}

/// Arguments of `weir jupyter`.
#[derive(Debug, Args)]
#[command(
    override_usage = "weir jupyter install [OPTIONS]",
    after_help = "Notebooks that take this kernel have their Python within the budget, others are as before."
)]
pub struct JupyterArgs {
    /// What to do with it: install
    #[arg(value_parser = ["install"], hide_possible_values = true)]
    pub action: String,
    /// Its budget, as of weir run [default: what surrounds it, as of weir run]
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub memory: Option<String>,
    /// Its name among the kernels
    #[arg(long, value_name = "NAME", default_value = "weir")]
    pub name: String,
    /// Python interpreter with ipykernel
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
    /// Below this folder, as of an environment, and not for this user alone
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
}

/// Arguments of `weir run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "weir run [OPTIONS] [--] PROGRAM [ARG]...",
    after_help = "Exit status: the program's own; 127 if it is not found, 126 if it cannot be executed, 125 if \
    Weir itself fails before the program starts.\n\
    Flags beat WEIR_* variables, these beat $XDG_CONFIG_HOME/weir/config.toml, that beats /etc/weir/config.toml."
)]
pub struct RunArgs {
    /// Settings given as flags.
    #[command(flatten)]
    pub flags: SettingFlags,
    /// The program and its arguments; Weir's options come before it
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Values given as flags, by option name.
#[derive(Clone, Debug, Default)]
pub struct SettingFlags(pub BTreeMap<&'static str, String>);

impl Args for SettingFlags {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for option in OPTIONS {
            let arg = Arg::new(option.name).long(option.name).short(option.short).hide(option.hidden);
            let arg = if option.is_switch() {
                arg.action(ArgAction::SetTrue).help(format!("{} [env: {}]", option.help, option.env))
            } else {
                let default = match option.default_for_programs() {
                    "" => String::new(),
                    text => format!(" [default: {text}]"),
                };
                // Values that begin with a dash reach the parser of sizes, which explains better what is
                // wrong.
                arg.action(ArgAction::Set)
                    .value_name(option.value)
                    .allow_hyphen_values(true)
                    .help(format!("{}{default} [env: {}]", option.help, option.env))
            };
            command = command.arg(arg);
        }
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = SettingFlags::default();
        for option in OPTIONS {
            let value = if option.is_switch() {
                matches.get_flag(option.name).then(|| "1".to_owned())
            } else {
                matches.get_one::<String>(option.name).cloned()
            };
            if let Some(value) = value {
                flags.0.insert(option.name, value);
            }
        }
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

/// Commands whose only option is the output format.
#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Exact values as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weir stat`.
#[derive(Debug, Args)]
#[command(
    after_help = "docs/statistics.md says what each counter means. Looking costs the program nothing: it \
    writes its counters down every 50 ms, whether anybody looks or not."
)]
pub struct StatArgs {
    /// Of which process; without it a line for each process of this user
    pub pid: Option<u32>,
    /// Exact values as JSON, an object for each process
    #[arg(long)]
    pub json: bool,
    /// Again and again, with so many seconds in between, until the process ends
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub watch: Option<Duration>,
}

/// Arguments of `weir top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: + and - change the budget of the selected process, / shows some programs only, \
    P M T N < > sort, t shows children below their parents, ? explains all, q quits."
)]
pub struct TopArgs {
    /// This process and those that it has started; without it all of this user
    pub pid: Option<u32>,
}

/// Arguments of `weir serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "/metrics is for Prometheus, / for a browser, /stat.json has the counters as they are. It \
    shows what this user may see, and changes nothing."
)]
pub struct ServeArgs {
    /// Where; port 0 takes a free one. Only this machine can reach the default
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9090")]
    pub listen: SocketAddr,
}

/// Arguments of `weir set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Of which process
    pub pid: u32,
    /// RAM that it may have in all from now on, up to what it was started with; its children keep theirs
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: String,
}

/// A pause between a hundredth of a second and a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.01 to 86400".to_owned())
}

/// Arguments of `weir config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Say where each value comes from
    #[arg(long)]
    pub show_origin: bool,
    /// Exact values as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weir demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Budget when the kernel's own swap cannot be measured beside it; else the RAM that the kernel used
    #[arg(short, long, value_name = "SIZE", default_value = "128M")]
    pub memory: String,
    /// Leave out the kernel's own swap even as root
    #[arg(long)]
    pub no_rival: bool,
}

/// `weir bench`: all of it is for `weir-bench`, its help too.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// What `weir-bench` is asked for
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run_args(line: &[&str]) -> Result<RunArgs, clap::Error> {
        let full = ["weir", "run"].iter().chain(line);
        Cli::try_parse_from(full).map(|cli| match cli.command {
            Command::Run(args) => args,
            other => panic!("not run: {other:?}"),
        })
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn option_parsing_stops_at_the_first_non_option() {
        let args = run_args(&["--memory", "1G", "prog", "--quiet", "--memory", "2G", "--", "-x"]).unwrap();
        assert_eq!(args.command, ["prog", "--quiet", "--memory", "2G", "--", "-x"]);
        assert_eq!(args.flags.0.get("memory").map(String::as_str), Some("1G"));
        assert!(!args.flags.0.contains_key("quiet"));
    }

    #[test]
    fn a_double_dash_ends_the_options_too() {
        let args = run_args(&["--quiet", "--", "--odd-name", "-v"]).unwrap();
        assert_eq!(args.command, ["--odd-name", "-v"]);
        assert_eq!(args.flags.0.get("quiet").map(String::as_str), Some("1"));
    }

    #[test]
    fn help_after_the_program_is_the_programs() {
        assert_eq!(run_args(&["prog", "--help"]).unwrap().command, ["prog", "--help"]);
    }

    #[test]
    fn letters_stand_for_the_options_that_are_used_most() {
        let args = run_args(&["-q", "-v", "-m", "300M", "prog", "-m", "-q"]).unwrap();
        let of = |name: &str| args.flags.0.get(name).map(String::as_str);
        assert_eq!((of("quiet"), of("verbose"), of("memory")), (Some("1"), Some("1"), Some("300M")));
        assert_eq!(args.command, ["prog", "-m", "-q"]);
        assert_eq!(run_args(&["-m1G", "prog"]).unwrap().flags.0["memory"], "1G");
    }

    #[test]
    fn unknown_options_and_a_missing_program_are_refused() {
        assert!(run_args(&["--no-such-option", "prog"]).is_err());
        assert!(run_args(&["--memory", "1G"]).is_err());
        assert!(run_args(&[]).is_err());
    }

    #[test]
    fn every_visible_option_is_in_the_help_with_its_variable() {
        let help = Cli::command().find_subcommand_mut("run").unwrap().render_help().to_string();
        for option in OPTIONS {
            let shown = help.contains(&format!("--{}", option.name)) && help.contains(option.env);
            assert_eq!(shown, !option.hidden, "{}", option.name);
            assert!(option.hidden || option.words().all(|word| help.contains(word)), "{}", option.name);
        }
    }
}
