//! Names that users write: those there are, and which of them a mistyped one was meant for.

use super::OPTIONS;

/// What every variable of Weir's begins with.
pub const PREFIX: &str = "WEIR_";

/// Set by whoever starts a tree of programs under Weir: the process id of its first program.
pub const FIRST_ENV: &str = "WEIR_FIRST";

/// Variables that are no options: of the library, of the command, and (the last three) of Weir's own tests.
const OTHERS: [&str; 6] =
    ["WEIR_DISABLE", FIRST_ENV, "WEIR_PRELOAD", "WEIR_BIN", "WEIR_VENV", "WEIR_TEST_PYTHON"];

/// How alike two names are, from 0 to 1, when one is taken for a mistyping of the other; as in the command's
/// parser, clap.
const ALIKE: f64 = 0.7;

/// The name that `word` was probably meant for.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let rated = known.map(|name| (strsim::jaro(word, name), name)).filter(|(alike, _)| *alike > ALIKE);
    rated.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// Refuses a variable that begins as Weir's do and is none: a misspelt setting that does nothing is worse
/// than an error.
pub fn check_variable(name: &str) -> Result<(), String> {
    let Some(rest) = name.strip_prefix(PREFIX) else { return Ok(()) };
    let known = || OPTIONS.iter().map(|o| o.env).chain(OTHERS);
    if known().any(|env| env == name) {
        return Ok(());
    }
    let visible = OPTIONS.iter().filter(|o| !o.hidden).map(|o| o.env).chain(["WEIR_DISABLE", "WEIR_PRELOAD"]);
    Err(match nearest(rest, visible.filter_map(|env| env.strip_prefix(PREFIX))) {
        Some(meant) => format!("unknown variable {name}; did you mean {PREFIX}{meant}?"),
        None => format!("unknown variable {name}; `weir run --help` lists those there are"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_variable_is_refused_with_the_one_that_was_meant() {
        for (typed, meant) in [
            ("WEIR_MEMROY", "WEIR_MEMORY"),
            ("WEIR_MEM", "WEIR_MEMORY"),
            ("WEIR_POOLMAX", "WEIR_POOL_MAX"),
            ("WEIR_SWAPDIR", "WEIR_SWAP_DIR"),
            ("WEIR_QUITE", "WEIR_QUIET"),
        ] {
            let refused = check_variable(typed).unwrap_err();
            assert!(refused.contains(typed) && refused.ends_with(&format!("{meant}?")), "{refused}");
        }
        let refused = check_variable("WEIR_XYZZY").unwrap_err();
        assert!(refused.contains("WEIR_XYZZY") && refused.contains("--help"), "{refused}");
    }

    #[test]
    fn what_weir_reads_and_what_is_not_weirs_is_left_alone() {
        for option in OPTIONS {
            assert_eq!(check_variable(option.env), Ok(()));
        }
        for name in ["WEIR_PRELOAD", "WEIR_DISABLE", "WEIRD", "HOME", "weir_memory", ""] {
            assert_eq!(check_variable(name), Ok(()), "{name}");
        }
    }
}
