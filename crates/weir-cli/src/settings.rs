//! Settings and where they come from: flags beat environment beat the user's file beat the system's beat
//! defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use weir::config::{ConfigError, DEFAULT_SWAP_DIR, OPTIONS, OptionId, OptionSpec, Settings, SwapSetting};

use crate::cli::SettingFlags;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag on the command line.
    Flag(&'static str),
    /// An environment variable.
    Env(&'static str),
    /// A configuration file.
    File(PathBuf),
    /// Nothing set it.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) => write!(f, "flag --{name}"),
            Origin::Env(name) => write!(f, "environment {name}"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The layers, read and ready to be asked.
#[derive(Debug)]
pub struct Layers {
    flags: SettingFlags,
    env: BTreeMap<&'static str, String>,
    files: Vec<(PathBuf, BTreeMap<String, String>)>,
}

impl Layers {
    /// Reads environment and configuration files. Fails on a file that cannot be read or parsed or that has
    /// an unknown key: a misspelt setting that does nothing is worse than an error.
    pub fn read(flags: &SettingFlags) -> anyhow::Result<Layers> {
        let mut env = BTreeMap::new();
        for option in OPTIONS {
            match std::env::var(option.env) {
                // An empty variable counts as not set, so that `WEIR_SWAP= weir run ...` takes a setting
                // back.
                Ok(text) if !text.is_empty() => drop(env.insert(option.env, text)),
                Ok(_) | Err(std::env::VarError::NotPresent) => {}
                Err(std::env::VarError::NotUnicode(_)) => bail!("{} is not valid UTF-8", option.env),
            }
        }
        let mut files = Vec::new();
        for path in config_paths() {
            match std::fs::read_to_string(&path) {
                Ok(text) => {
                    let values = parse_file(&text).with_context(|| path.display().to_string())?;
                    files.push((path, values));
                }
                Err(e) if is_absent(e.kind(), || path.symlink_metadata().err().map(|e| e.kind())) => {}
                Err(e) => bail!("cannot read {}: {e}", path.display()),
            }
        }
        Ok(Layers { flags: flags.clone(), env, files })
    }

    /// Text and origin of an option's value.
    pub fn value(&self, option: &OptionSpec) -> (String, Origin) {
        if let Some(text) = self.flags.0.get(option.name) {
            return (text.clone(), Origin::Flag(option.name));
        }
        if let Some(text) = self.env.get(option.env) {
            return (text.clone(), Origin::Env(option.env));
        }
        for (path, values) in &self.files {
            if let Some(text) = values.get(option.name) {
                return (text.clone(), Origin::File(path.clone()));
            }
        }
        (default_of(option).to_owned(), Origin::Default)
    }

    /// All settings, parsed and checked; an error names where the bad value came from.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let set = |option: &OptionSpec| match self.value(option) {
            (_, Origin::Default) if default_of(option) == option.default => None,
            (text, _) => Some(text),
        };
        Settings::from_values(set, weir_os::probe::ram_limit_bytes).map_err(|e| self.explain(&e))
    }

    /// Whether somebody chose the folder of the swap file. (The default one stands in the environment of
    /// every program under `weir run`, which may start another.)
    pub fn names_swap_folder(&self, settings: &Settings) -> bool {
        let default = |swap: &SwapSetting| swap.dir == Path::new(DEFAULT_SWAP_DIR);
        let mut origins = OPTIONS.iter().filter_map(|option| match (option.id, self.value(option)) {
            (OptionId::SwapDir, (text, origin)) if !text.is_empty() => Some(origin),
            (OptionId::Swap, (text, origin)) if text.trim().starts_with('/') => Some(origin),
            _ => None,
        });
        origins.any(|origin| match origin {
            Origin::Flag(_) | Origin::File(_) => true,
            Origin::Env(_) => settings.swap.as_ref().is_some_and(|swap| !default(swap)),
            Origin::Default => false,
        })
    }

    fn explain(&self, error: &ConfigError) -> anyhow::Error {
        let origin = OPTIONS.iter().find(|o| o.name == error.option).map(|o| self.value(o).1);
        let origin = origin.unwrap_or(Origin::Default);
        anyhow::anyhow!("invalid value '{}' for {} ({origin}): {}", error.value, error.option, error.reason)
    }
}

/// What holds when nothing sets an option. A program under `weir run` swaps to a file where there is room for
/// one; the bare library, which has nobody to tell if there is none, does not by itself.
pub fn default_of(option: &OptionSpec) -> &'static str {
    if option.id == OptionId::Swap { "auto" } else { option.default }
}

/// The user's file, then the system's: the first that has a key wins.
fn config_paths() -> Vec<PathBuf> {
    let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let home = || std::env::var_os("HOME").filter(|h| !h.is_empty()).map(|h| Path::new(&h).join(".config"));
    let user = base.or_else(home).map(|dir| dir.join("weir/config.toml"));
    user.into_iter().chain([PathBuf::from("/etc/weir/config.toml")]).collect()
}

/// Whether a file that cannot be read (`why`) counts as not there. So does one in a folder that may not be
/// entered (`seen` says why it cannot even be seen): the home folder of somebody else, which HOME still
/// names.
fn is_absent(why: ErrorKind, seen: impl FnOnce() -> Option<ErrorKind>) -> bool {
    match why {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        ErrorKind::PermissionDenied => seen() == Some(ErrorKind::PermissionDenied),
        _ => false,
    }
}

fn parse_file(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let table: toml::Table =
        text.parse().map_err(|e: toml::de::Error| anyhow::anyhow!("{}", e.to_string().trim()))?;
    let mut values = BTreeMap::new();
    for (key, value) in table {
        if !OPTIONS.iter().any(|option| option.name == key) {
            let known: Vec<&str> = OPTIONS.iter().filter(|o| !o.hidden).map(|o| o.name).collect();
            bail!("unknown key '{key}'; known keys: {}", known.join(", "));
        }
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(on) => u8::from(on).to_string(),
            other => bail!("'{key}' must be a text, a number or true/false, not a {}", other.type_str()),
        };
        values.insert(key, text);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_values_of_all_kinds_become_text() {
        let values = parse_file("memory = \"2G\"\npool-max = 40\nquiet = true\nswap-batch = 64\n").unwrap();
        let get = |key: &str| values.get(key).map(String::as_str);
        assert_eq!(
            (get("memory"), get("pool-max"), get("quiet"), get("swap-batch")),
            (Some("2G"), Some("40"), Some("1"), Some("64"))
        );
    }

    #[test]
    fn a_file_that_cannot_even_be_seen_is_absent_and_one_that_cannot_be_read_is_an_error() {
        assert!(is_absent(ErrorKind::NotFound, || None));
        assert!(is_absent(ErrorKind::PermissionDenied, || Some(ErrorKind::PermissionDenied)));
        assert!(!is_absent(ErrorKind::PermissionDenied, || None));
        assert!(!is_absent(ErrorKind::IsADirectory, || None));
    }

    #[test]
    fn unknown_keys_and_lists_and_broken_files_are_refused() {
        let unknown = parse_file("memroy = \"2G\"").unwrap_err().to_string();
        assert!(unknown.contains("'memroy'") && unknown.contains("memory"), "{unknown}");
        assert!(parse_file("memory = [1]").unwrap_err().to_string().contains("array"));
        assert!(parse_file("memory = ").is_err());
    }
}
