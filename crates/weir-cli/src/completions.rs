//! Completion scripts: of what help shows, with the values that an option takes.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory, ValueHint};
use weir::config::OPTIONS;
use weir_cli::term;

use crate::cli::Cli;

/// Prints the script of a shell.
pub fn print(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), "weir", &mut script);
    term::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// The command line as completions offer it. A copy: the real one has hidden options, and leaves values to
/// the parser of settings, which explains better what is wrong with one.
fn shown() -> Command {
    let whole = Cli::command();
    let visible = whole.get_subcommands().filter(|command| !command.is_hide_set()).map(|command| {
        let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let about = command.get_about().cloned().unwrap_or_default();
        Command::new(command.get_name().to_owned()).about(about).args(args.cloned().map(with_values))
    });
    let about = whole.get_about().cloned().unwrap_or_default();
    Command::new("weir").version(env!("CARGO_PKG_VERSION")).about(about).subcommands(visible)
}

fn with_values(arg: clap::Arg) -> clap::Arg {
    let Some(option) = OPTIONS.iter().find(|option| Some(option.name) == arg.get_long()) else { return arg };
    let words: Vec<&str> = option.words().collect();
    match option.value {
        "DIR" => arg.value_hint(ValueHint::DirPath),
        "FILE" => arg.value_hint(ValueHint::FilePath),
        _ if words.is_empty() => arg,
        _ => arg.value_parser(PossibleValuesParser::new(words)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(shell: clap_complete::Shell) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut shown(), "weir", &mut script);
        String::from_utf8(script).unwrap()
    }

    #[test]
    fn completions_offer_values_and_nothing_that_help_hides() {
        use clap_complete::Shell::{Bash, Fish, Zsh};
        for shell in [Bash, Zsh, Fish] {
            let text = script(shell);
            for offered in ["faults", "inline", "thread", "writethrough", "lz4", "memory", "doctor"] {
                assert!(text.contains(offered), "{shell}: {offered}");
            }
            for hidden in OPTIONS.iter().filter(|option| option.hidden) {
                assert!(!text.contains(&format!("--{}", hidden.name)), "{shell}: {}", hidden.name);
            }
            assert!(!text.contains("in-cgroup"), "{shell}");
        }
    }
}
