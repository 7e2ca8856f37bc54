//! Command lines of people who do not know Weir yet: what they probably meant.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};
use crate::run;

/// What to tell somebody who left `run` out: `weir python job.py`, `weir -m 2G job`. `words` are what
/// follows `weir`, `kind` is what was wrong with them.
pub fn meant(kind: ErrorKind, words: &[OsString]) -> Option<String> {
    if !matches!(kind, ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument) {
        return None;
    }
    let first = words.first()?;
    if Cli::command().get_subcommands().any(|command| first == command.get_name()) {
        return None;
    }
    let line = ["weir", "run"].into_iter().map(OsString::from).chain(words.iter().cloned());
    let Ok(Cli { command: Command::Run(args) }) = Cli::try_parse_from(line) else { return None };
    let program = args.command.first()?;
    let is_program = Path::new(program).is_file() || run::find_in_path(program).is_ok();
    let what = first.to_string_lossy();
    is_program.then(|| {
        let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        format!("'{what}' is no command of Weir; did you mean `weir run {}`?", line.join(" "))
    })
}

/// A word as a shell takes it.
fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "_-./=:,%+@".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant_by(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let full = [OsString::from("weir")].into_iter().chain(words.iter().cloned());
        meant(Cli::try_parse_from(full).unwrap_err().kind(), &words)
    }

    #[test]
    fn a_program_where_a_command_stands_is_run() {
        for line in ["sh job.sh", "/bin/sh", "-m 2G sh job.sh", "--memory=2G -q sh -c true", "-- sh"] {
            let told = meant_by(line).unwrap_or_else(|| panic!("{line}"));
            assert!(told.ends_with(&format!("did you mean `weir run {line}`?")), "{told}");
        }
    }

    #[test]
    fn what_is_no_program_and_what_is_a_command_is_left_to_the_parser() {
        for line in ["rnu true", "no-such-program-at-all", "doctor --wrong", "run --wrong sh", "--wrong sh"] {
            assert_eq!(meant_by(line), None, "{line}");
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        let line = ["sh", "-c", "echo 'a b'", ""].map(OsString::from);
        let told = meant(ErrorKind::InvalidSubcommand, &line).unwrap();
        assert!(told.ends_with(r"`weir run sh -c 'echo '\''a b'\''' ''`?"), "{told}");
    }
}
