//! Values of options that are words or numbers, from their texts.

use super::size::{format_size, parse_size, size_of};
use crate::limits::{BUDGET_BYTES_MIN, PLACES};
use std::ffi::CString;
use std::fmt;

/// Shorter intervals would cost the program, and nobody reads so quickly.
const INTERVAL_SECONDS_MIN: f64 = 0.1;
/// The longest interval: a day.
const INTERVAL_SECONDS_MAX: f64 = 86400.0;

/// A value that an option does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Name of the option, as in [`OptionSpec::name`].
    pub option: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// The value as it was given.
    pub value: String,
    /// What is wrong with it, and what would be right.
    pub reason: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid value '{}' for --{} ({}): {}", self.value, self.option, self.env, self.reason)
    }
}

impl std::error::Error for ConfigError {}

pub fn whole_number(text: &str, most: u16) -> Result<u16, String> {
    let number = text.trim().parse().ok().filter(|n| (1..=most).contains(n));
    number.ok_or_else(|| format!("expected a whole number from 1 to {most}"))
}

pub fn up_to(text: &str, most: u8) -> Result<u8, String> {
    let number = text.trim().parse().ok().filter(|n| *n <= most);
    number.ok_or_else(|| format!("expected a whole number from 0 to {most}"))
}

pub fn tree(text: &str) -> Result<CString, String> {
    let absolute = text.starts_with('/');
    absolute.then(|| CString::new(text).ok()).flatten().ok_or_else(|| "must be an absolute path".to_owned())
}

pub fn place(text: &str) -> Result<u32, String> {
    let number = text.trim().parse().ok().filter(|n| *n < PLACES);
    number.ok_or_else(|| format!("expected a whole number below {PLACES}"))
}

/// Whether a size is a part of the machine's RAM, or all of it.
fn is_share(text: &str) -> bool {
    text.contains('%') || text.trim().eq_ignore_ascii_case("max")
}

/// A budget, and which share it is, if it is one.
pub fn memory(
    text: &str,
    default: &str,
    total_ram: &impl Fn() -> u64,
) -> Result<(u64, Option<String>), String> {
    let text = if text.trim() == "auto" { default } else { text };
    let bytes = size_of(text, total_ram)?;
    if bytes < BUDGET_BYTES_MIN {
        // Nobody means bytes who writes such a number without a unit.
        let bare = text.trim().bytes().all(|b| b.is_ascii_digit()) && bytes > 0;
        let meant = if bare { format!("; did you mean {bytes}M?") } else { String::new() };
        return Err(format!(
            "a budget of {bytes} bytes is too small; the least is {} ({BUDGET_BYTES_MIN} bytes){meant}",
            format_size(BUDGET_BYTES_MIN)
        ));
    }
    Ok((bytes, is_share(text).then(|| text.trim().to_owned())))
}

/// The share that a budget is: the one that is known of it, or else the one handed down, which belongs to a
/// budget of so many bytes and to no other.
pub fn share(text: &str, budget: u64, known: Option<String>) -> Result<Option<String>, String> {
    let (size, of) = text.split_once('=').unwrap_or_default();
    let bytes = parse_size(of, 0).and_then(|_| parse_size(size, 0));
    let bytes = bytes.map_err(|e| format!("expected a size, = and a share: {e}"))?;
    Ok(known.or_else(|| (bytes == budget).then(|| of.to_owned())))
}

pub fn percent(text: &str) -> Result<u8, String> {
    let digits = text.trim();
    let digits = digits.strip_suffix('%').unwrap_or(digits).trim_end();
    match digits.parse::<u8>() {
        Ok(n @ 1..=100) => Ok(n),
        _ => Err("expected a whole number of percent from 1 to 100".to_owned()),
    }
}

pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "0" | "false" | "no" | "off" => Ok(false),
        "1" | "true" | "yes" | "on" => Ok(true),
        _ => Err("expected 1 or 0".to_owned()),
    }
}

pub fn choice<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, String> {
    let word = text.trim();
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    Err(format!("expected one of: {}", names.join(", ")))
}

/// Seconds between two times, in nanoseconds; 0 where nothing is given.
pub fn interval(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let seconds =
        text.trim().parse::<f64>().ok().filter(|s| (INTERVAL_SECONDS_MIN..=INTERVAL_SECONDS_MAX).contains(s));
    seconds
        .map(|seconds| (seconds * 1e9) as u64)
        .ok_or_else(|| format!("expected seconds from {INTERVAL_SECONDS_MIN} to {INTERVAL_SECONDS_MAX}"))
}
