//! Exit statuses, and how a command ends with one.

use std::process::ExitCode;

use crate::term;

/// Exit status of Weir's own failures before a program starts: 0 to 124 belong to the program.
pub const OWN_FAILURE: u8 = 125;
/// Exit status of other commands' failures.
pub const FAILURE: u8 = 1;
/// Exit status of a command line that makes no sense, except for `run`.
pub const USAGE: u8 = 2;

/// Help and version go to stdout with 0; a bad command line ends with `status`.
pub fn usage_error(error: &clap::Error, status: u8) -> ExitCode {
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
    ExitCode::from(status)
}

/// The status of a command's result; a failure is said on stderr.
pub fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        if term::is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        eprintln!("weir: {error:#}");
        ExitCode::from(FAILURE)
    })
}
