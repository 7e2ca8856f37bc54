//! Writing to the terminal: colours only where they are wanted, a closed pipe is no crash.

use std::io::{self, IsTerminal, Write};

/// Writes text to stdout. Unlike `print!`, a reader that has gone away is an error, not a panic.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether the error is that stdout's reader has gone away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A line about progress on stderr, where it disturbs no pipe.
pub fn progress(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Colours that the command uses.
#[derive(Clone, Copy, Debug)]
pub enum Colour {
    /// All is well.
    Green,
    /// For what is worth knowing.
    Yellow,
    /// For what is broken.
    Red,
}

/// Whether the terminal understands nothing but text.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Whether stdout is a terminal with colours, and the user has not set `NO_COLOR`.
pub fn wants_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && !is_dumb() && io::stdout().is_terminal()
}

/// `text` in a colour if stdout is a terminal and the user has not set `NO_COLOR`.
pub fn paint(text: &str, colour: Colour) -> String {
    if !wants_colours() {
        return text.to_owned();
    }
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}
