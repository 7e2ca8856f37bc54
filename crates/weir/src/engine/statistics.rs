//! All counters, for whoever is told of them: files at the end and now and then, and the page that others
//! read while the program runs. `docs/statistics.md` is made from the tables that stand beside them.

pub mod about;

use super::Engine;
use crate::door::Pager;
use core::fmt::{Result, Write};

/// How counters stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line for each, key and value.
    Lines,
    /// One object of keys and values.
    Json,
}

impl Format {
    /// As the name of the file says.
    pub fn of(path: &[u8]) -> Format {
        if path.ends_with(b".json") { Format::Json } else { Format::Lines }
    }
}

/// Counters on their way to a file. Allocates nothing.
#[derive(Debug)]
pub struct Report<'a, W> {
    out: &'a mut W,
    format: Format,
    any: bool,
}

impl<'a, W: Write> Report<'a, W> {
    /// One without counters yet.
    pub fn new(out: &'a mut W, format: Format) -> Report<'a, W> {
        Report { out, format, any: false }
    }

    /// One more counter; keys need no escapes.
    pub fn add(&mut self, key: &str, value: u64) -> Result {
        let before = if self.any { "," } else { "{" };
        self.any = true;
        match self.format {
            Format::Lines => writeln!(self.out, "{key} {value}"),
            Format::Json => write!(self.out, "{before}\n  \"{key}\": {value}"),
        }
    }

    /// There are no more counters.
    pub fn end(self) -> Result {
        match self.format {
            Format::Lines => Ok(()),
            Format::Json if self.any => writeln!(self.out, "\n}}"),
            Format::Json => writeln!(self.out, "{{}}"),
        }
    }
}

impl<P: Pager> Engine<P> {
    /// Key and value of every counter, in a fixed order; `Core::publish` brings them up to date. Takes no
    /// lock and makes no system call.
    pub fn each_counter(&self, mut f: impl FnMut(&'static str, u64)) {
        self.core.stats.each(&mut f);
        if let Some(swapping) = &self.core.copies.swapping {
            // The kernel's names are among the engine's already.
            swapping.tier.counters().each(|key, value| {
                if key.starts_with("weir_") {
                    f(key, value);
                }
            });
        }
        let (start, bytes) = self.space();
        f("weir_space_start", start as u64);
        f("weir_space_bytes", bytes as u64);
    }
}

#[cfg(test)]
mod document;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(format: Format, counters: &[(&str, u64)]) -> String {
        let mut text = String::new();
        let mut report = Report::new(&mut text, format);
        counters.iter().for_each(|(key, value)| report.add(key, *value).unwrap());
        report.end().unwrap();
        text
    }

    #[test]
    fn a_file_is_lines_or_one_object_as_its_name_says() {
        assert_eq!(Format::of(b"/tmp/a.json"), Format::Json);
        assert_eq!(Format::of(b"/tmp/json"), Format::Lines);
        assert_eq!(Format::of(b"-"), Format::Lines);
        let two = [("pgfault", 1), ("weir_waited_ns", u64::MAX)];
        assert_eq!(told(Format::Lines, &two), "pgfault 1\nweir_waited_ns 18446744073709551615\n");
        let object = "{\n  \"pgfault\": 1,\n  \"weir_waited_ns\": 18446744073709551615\n}\n";
        assert_eq!(told(Format::Json, &two), object);
        assert_eq!((told(Format::Json, &[]), told(Format::Lines, &[])), ("{}\n".into(), String::new()));
    }
}
