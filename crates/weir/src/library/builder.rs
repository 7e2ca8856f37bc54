//! How a pool is made: its settings, which have the names and texts of the options of `weir run`.

use super::errors::BuildError;
use super::pool::Pool;
use super::size::Size;
use crate::config::{OPTIONS, OptionId, Pager, Settings};

/// The options of `weir run` that mean something for a pool.
const TAKEN: &[OptionId] = &[
    OptionId::Memory,
    OptionId::Swap,
    OptionId::SwapEncryption,
    OptionId::SwapIo,
    OptionId::PoolMax,
    OptionId::Policy,
    OptionId::Codec,
    OptionId::Pager,
    OptionId::Faults,
];

/// Settings of a pool that is to be made; [`Pool::builder`] gives one. Variables of the environment and
/// configuration files are not read.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    given: Vec<(String, String)>,
}

impl Pool {
    /// Settings to make a pool from.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// RAM that the pool may have in all, tables and compressed pages included, at least 8 MiB. Half of the
    /// machine's or container's RAM where nothing is said.
    #[must_use]
    pub fn memory(self, size: impl Into<Size>) -> Builder {
        let size = size.into();
        self.set("memory", size.text())
    }

    /// Where pages go that do not fit: a folder on a disk (`"/var/tmp"`), with a size (`"/var/tmp:20GiB"`), a
    /// size alone, `"auto"`, or `"none"`. Where nothing is said it is `auto`: in `/var/tmp`, at most eight
    /// budgets and half of what is free. The file has no name, is encrypted, and is gone with the pool, once
    /// children of a fork from its time have ended or called `exec`.
    #[must_use]
    pub fn swap(self, place: impl AsRef<str>) -> Builder {
        self.set("swap", place)
    }

    /// Another option of `weir run`, by its name and with its text: `codec`, `faults`, `pager`, `policy`,
    /// `pool-max`, `swap-encryption`, `swap-io`.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl AsRef<str>) -> Builder {
        self.given.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Makes the pool, and starts its two threads.
    ///
    /// # Errors
    /// A setting with a value that it does not take; no permission for userfaultfd; a swap file that cannot
    /// be had; no address space or memory.
    pub fn build(self) -> Result<Pool, BuildError> {
        Pool::with(&self.settings()?)
    }

    fn settings(&self) -> Result<Settings, BuildError> {
        for (name, value) in &self.given {
            if !OPTIONS.iter().any(|option| option.name == name && TAKEN.contains(&option.id)) {
                return Err(BuildError::Unknown(name.clone()));
            }
            if value.trim().is_empty() {
                let (name, value, reason) = (name.clone(), value.clone(), "it is empty".to_owned());
                return Err(BuildError::Setting { name, value, reason });
            }
        }
        let last = |name: &str| self.given.iter().rfind(|(given, _)| given == name).map(|(_, v)| v.clone());
        let text = |name: &str| last(name).or_else(|| (name == "swap").then(|| "auto".to_owned()));
        let settings =
            Settings::from_values(|option| text(option.name), weir_os::probe::ram_limit_bytes).map_err(
                |e| BuildError::Setting { name: e.option.to_owned(), value: e.value, reason: e.reason },
            )?;
        if settings.pager == Pager::Segv {
            let (name, value) = ("pager".to_owned(), "segv".to_owned());
            let reason =
                "a pool has a thread for faults, which takes userfaultfd: auto, move or copy".to_owned();
            return Err(BuildError::Setting { name, value, reason });
        }
        Ok(Settings { quiet: true, embedded: true, ..settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[(&str, &str)]) -> Result<Settings, BuildError> {
        given.iter().fold(Builder::default(), |b, (name, value)| b.set(*name, value)).settings()
    }

    #[test]
    fn settings_have_the_texts_of_the_command() {
        let made = Builder::default().memory("1.5GiB").swap("/var/tmp:20GiB").settings().unwrap();
        assert_eq!(made.memory, 3 << 29);
        assert_eq!(made.swap.and_then(|s| s.bytes), Some(20 << 30));
        assert!(made.quiet && made.embedded && made.tree.is_none());
        let bytes = Builder::default().memory(64usize << 20).swap("none").settings().unwrap();
        assert_eq!((bytes.memory, bytes.swap.is_none()), (64 << 20, true));
        let itself = settings(&[]).unwrap().swap.unwrap();
        assert_eq!((itself.bytes, itself.dir.to_str()), (None, Some("/var/tmp")));
        assert_eq!(settings(&[("memory", "64M"), ("memory", "32M")]).unwrap().memory, 32 << 20);
    }

    #[test]
    fn what_a_setting_does_not_take_is_named_with_the_reason() {
        let refused = |name: &str, value: &str| match settings(&[(name, value)]) {
            Err(BuildError::Setting { name: named, value: given, reason }) => {
                assert_eq!((named.as_str(), given.as_str()), (name, value));
                reason
            }
            other => panic!("{name}={value}: {other:?}"),
        };
        assert!(refused("memory", "0").contains("too small"));
        assert!(refused("memory", "-1G").contains("negative"));
        assert!(refused("memory", "4095").contains("did you mean"));
        assert!(refused("memory", "99999999E").contains("64 bits"));
        assert!(refused("memory", "lots").contains("not a number"));
        assert!(refused("memory", " ").contains("empty"));
        assert!(refused("swap", "1K").contains("too small"));
        assert!(refused("codec", "brotli").contains("lz4"));
        assert!(refused("pager", "segv").contains("userfaultfd"));
        for other in ["fork", "stats", "budget-per", "colour"] {
            assert_eq!(settings(&[(other, "x")]).unwrap_err(), BuildError::Unknown(other.into()));
        }
    }
}
