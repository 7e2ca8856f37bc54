//! Settings and where they come from: flags beat environment beat the user's file beat the system's beat
//! defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use weir::config::{ConfigError, DEFAULT_SWAP_DIR, OPTIONS, OptionId, OptionSpec, Settings, SwapSetting};
use weir::config::{file, names};

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
    files: Vec<(PathBuf, file::Values)>,
}

impl Layers {
    /// Reads environment and configuration files. Fails on a file that cannot be read or parsed, and on an
    /// unknown key or variable.
    pub fn read(flags: &SettingFlags) -> anyhow::Result<Layers> {
        for (name, _) in std::env::vars_os() {
            names::check_variable(&name.to_string_lossy()).map_err(anyhow::Error::msg)?;
        }
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
        let files = file::read(|name| std::env::var_os(name)).map_err(anyhow::Error::msg)?;
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
        (option.default_for_programs().to_owned(), Origin::Default)
    }

    /// All settings, parsed and checked; an error names where the bad value came from.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let set = |option: &OptionSpec| match self.value(option) {
            (_, Origin::Default) if option.default_for_programs() == option.default => None,
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
