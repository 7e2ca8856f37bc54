//! What people are told when a program ends: a few lines in plain words. Exact figures stand in `--stats`.
//!
//! Everything here writes to any `fmt::Write` and allocates nothing: it may run in a signal handler.

use crate::shared::Core;
use crate::{door::Pager, sync::Ordering};
use core::fmt::{Display, Formatter, Result, Write};

const SECOND_NS: u64 = 1_000_000_000;
/// A part of the time that is not worth a word: one in so many.
const HARDLY: u64 = 200;

/// What people take for no wait at all is shorter, ns.
const NOTICED_NS: u64 = SECOND_NS / 10;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, in good order.
    Finished,
    /// By this signal, which it has no handler for.
    Signal(i32),
    /// By Weir: everything was full.
    Full,
}

/// Who a summary is about.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// The name of the program.
    pub name: &'a str,
    /// Of a process that is not the first of its tree.
    pub pid: Option<u32>,
}

impl Display for Who<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.pid {
            Some(pid) => write!(f, "{} (pid {pid})", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// What is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Since the program started, ns.
    pub elapsed_ns: u64,
    /// Time that all its threads waited for memory, ns.
    pub waited_ns: u64,
    /// Time that the thread waited that waited most, ns.
    pub waited_most_ns: u64,
    /// Whether anything ever left its frame.
    pub reclaimed: bool,
    /// Bytes of RAM that it may have.
    pub budget: u64,
    /// Most RAM in all, bytes.
    pub ram: u64,
    /// Most memory outside Weir, bytes.
    pub outside: u64,
    /// Most bytes of data that were managed.
    pub managed: u64,
    /// Most bytes of data that were in the pool, and what they took there.
    pub pooled: u64,
    /// Bytes that these took in the pool.
    pub pool: u64,
    /// Most bytes of records in the swap file.
    pub swapped: u64,
    /// Shared memory in RAM at the end, bytes, which is not in the budget.
    pub shared: u64,
    /// Most bytes of mapped files in RAM that count.
    pub files: u64,
}

impl Figures {
    /// As an engine has them now.
    pub fn of<P: Pager>(core: &Core<P>, budget: u64, elapsed_ns: u64, shared: u64) -> Figures {
        let s = &core.stats;
        let get = |a: &core::sync::atomic::AtomicU64| a.load(Ordering::Relaxed);
        Figures {
            elapsed_ns,
            waited_ns: s.waited_ns().get(),
            waited_most_ns: s.waited_most_ns(),
            reclaimed: !core.room.is_plentiful(),
            budget,
            ram: get(&s.total_bytes_peak),
            outside: get(&s.outside_bytes_peak),
            managed: get(&s.managed_bytes_peak),
            pooled: get(&s.pooled_bytes_peak),
            pool: get(&s.pooled_bytes_peak_stored),
            swapped: get(&s.swap_bytes_peak),
            shared,
            files: get(&s.files_bytes_peak),
        }
    }

    /// The part of the time that the thread waited that waited most, in percent.
    fn percent(&self) -> u64 {
        (self.waited_most_ns.min(self.elapsed_ns) * 100 + self.elapsed_ns / 2) / self.elapsed_ns.max(1)
    }

    /// Whether it waited so long that somebody might have noticed.
    pub fn is_noticed(&self) -> bool {
        self.waited_ns >= NOTICED_NS
    }

    fn waiting(&self, out: &mut impl Write) -> Result {
        let (most, percent) = (self.waited_most_ns.min(self.elapsed_ns), self.percent());
        if most <= self.elapsed_ns / HARDLY {
            return writeln!(out, "; it hardly waited for memory.");
        }
        if self.waited_ns - most.min(self.waited_ns) <= self.elapsed_ns / HARDLY {
            return writeln!(out, "; {} of that ({percent} %) waited for memory.", Seconds(most));
        }
        let all = Seconds(self.waited_ns);
        writeln!(out, "; its threads waited {all} for memory, one of them {} ({percent} %).", Seconds(most))
    }

    fn ram(&self, out: &mut impl Write) -> Result {
        write!(out, "weir: RAM {} of {} in all", Size(self.ram), Size(self.budget))?;
        if self.outside > 0 {
            write!(out, " (outside Weir up to {})", Size(self.outside))?;
        }
        write!(out, "; needed {}", Size(self.managed + self.outside))?;
        if self.pooled > 0 {
            write!(out, ": up to {} compressed {:.1}:1", Size(self.pooled), ratio(self.pooled, self.pool))?;
        }
        if self.swapped > 0 {
            let before = if self.pooled > 0 { "," } else { ":" };
            write!(out, "{before} up to {} in the swap file", Size(self.swapped))?;
        }
        if self.files >= MIB {
            write!(out, "; up to {} of mapped files", Size(self.files))?;
        }
        if self.shared >= MIB {
            write!(out, "; {} of shared memory besides", Size(self.shared))?;
        }
        writeln!(out, ".")
    }

    /// Tells them. Where memory was never short, that is all there is to say.
    pub fn tell(&self, who: Who<'_>, end: End, out: &mut impl Write) -> Result {
        if !self.reclaimed && end == End::Finished {
            return not_needed(who, self.ram, out);
        }
        write!(out, "weir: {who} ")?;
        match end {
            End::Finished => write!(out, "finished in {}", Seconds(self.elapsed_ns))?,
            End::Signal(number) => {
                write!(out, "was ended by {} after {}", Signal(number), Seconds(self.elapsed_ns))?;
            }
            End::Full => write!(out, "was ended after {}, with no room left", Seconds(self.elapsed_ns))?,
        }
        self.waiting(out)?;
        self.ram(out)
    }
}

/// The line of a program that would have run the same without Weir.
pub fn not_needed(who: Who<'_>, ram: u64, out: &mut impl Write) -> Result {
    match who.pid {
        None => writeln!(out, "weir: stayed at {}, Weir was not needed", Size(ram)),
        Some(_) => writeln!(out, "weir: {who} stayed at {}, Weir was not needed", Size(ram)),
    }
}

const MIB: u64 = 1 << 20;

fn ratio(logical: u64, stored: u64) -> f64 {
    logical as f64 / stored.max(1) as f64
}

/// A size for people: two digits at least, no more than are worth reading.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        // Below GiB a tenth is noise.
        let digits = usize::from(unit >= 2 && value < 99.5 && value.fract() >= 0.05);
        write!(f, "{value:.digits$} {}", UNITS[unit])
    }
}

/// Nanoseconds as seconds for people.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let value = self.0 as f64 / SECOND_NS as f64;
        match self.0 / SECOND_NS {
            0..10 => write!(f, "{value:.2} s"),
            10..100 => write!(f, "{value:.1} s"),
            _ => write!(f, "{value:.0} s"),
        }
    }
}

/// The name of a signal that ends programs.
#[derive(Clone, Copy, Debug)]
struct Signal(i32);

impl Display for Signal {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            1 => f.write_str("SIGHUP"),
            2 => f.write_str("SIGINT"),
            15 => f.write_str("SIGTERM"),
            other => write!(f, "signal {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Who<'_> = Who { name: "python3 job.py", pid: None };

    fn crawled() -> Figures {
        Figures {
            elapsed_ns: 84_200_000_000,
            waited_ns: 72_400_000_000,
            waited_most_ns: 72_400_000_000,
            reclaimed: true,
            budget: 400 * MIB,
            ram: 398 * MIB,
            outside: 78 * MIB,
            managed: 1560 * MIB,
            pooled: 890 * MIB,
            pool: 287 * MIB,
            swapped: 310 * MIB,
            shared: 0,
            files: 0,
        }
    }

    fn told(figures: Figures, who: Who<'_>, end: End) -> String {
        let mut text = String::new();
        figures.tell(who, end, &mut text).unwrap();
        text
    }

    #[test]
    fn a_program_that_crawled_is_told_how_long_and_where_its_data_was() {
        assert_eq!(
            told(crawled(), WHO, End::Finished),
            "weir: python3 job.py finished in 84.2 s; 72.4 s of that (86 %) waited for memory.\n\
             weir: RAM 398 MiB of 400 MiB in all (outside Weir up to 78 MiB); needed 1.6 GiB: up to 890 MiB \
             compressed 3.1:1, up to 310 MiB in the swap file.\n"
        );
    }

    #[test]
    fn each_end_has_its_words_and_other_processes_their_pid() {
        let line = |who, end| told(crawled(), who, end).lines().next().unwrap().to_owned();
        let worker = Who { name: "python3", pid: Some(4711) };
        assert!(line(worker, End::Finished).starts_with("weir: python3 (pid 4711) finished in 84.2 s; "));
        assert!(line(WHO, End::Signal(15)).contains(" was ended by SIGTERM after 84.2 s; "));
        assert!(line(WHO, End::Signal(2)).contains(" was ended by SIGINT after "));
        assert!(line(WHO, End::Signal(1)).contains(" was ended by SIGHUP after "));
        assert!(line(WHO, End::Full).contains(" was ended after 84.2 s, with no room left; "));
    }

    #[test]
    fn several_threads_are_told_apart_and_none_waits_longer_than_the_program_ran() {
        let several = Figures { waited_ns: 144_000_000_000, ..crawled() };
        let text = told(several, WHO, End::Finished);
        assert!(text.contains("; its threads waited 144 s for memory, one of them 72.4 s (86 %)."), "{text}");
        let sharing = Figures { waited_most_ns: 144_000_000_000, ..several };
        assert!(told(sharing, WHO, End::Finished).contains("one of them 84.2 s (100 %)."));
    }

    #[test]
    fn a_program_that_hardly_waited_or_did_not_need_weir_hears_so() {
        let quick = Figures { waited_ns: 40_000_000, waited_most_ns: 40_000_000, ..crawled() };
        assert!(told(quick, WHO, End::Finished).contains("in 84.2 s; it hardly waited for memory.\n"));
        let small = Figures { reclaimed: false, ram: 12 * MIB, ..crawled() };
        assert_eq!(told(small, WHO, End::Finished), "weir: stayed at 12 MiB, Weir was not needed\n");
        assert!(told(small, WHO, End::Full).contains("no room left"));
        let none = Figures::default();
        assert_eq!(none.percent(), 0);
    }

    #[test]
    fn what_there_was_none_of_is_not_mentioned() {
        let swap_only = Figures { pooled: 0, outside: 0, ..crawled() };
        let text = told(swap_only, WHO, End::Finished);
        assert!(text.ends_with("in all; needed 1.5 GiB: up to 310 MiB in the swap file.\n"), "{text}");
        let neither = Figures { swapped: 0, shared: 300 * MIB, files: 20 * MIB, ..swap_only };
        let text = told(neither, WHO, End::Finished);
        assert!(
            text.ends_with(
                "needed 1.5 GiB; up to 20 MiB of mapped files; 300 MiB of shared memory besides.\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn sizes_and_times_have_as_many_digits_as_are_read() {
        let sizes = [0, 900 << 10, MIB, 1023 * MIB, 1024 * MIB, 1560 * MIB, 200 << 30, 3 << 40];
        let texts = sizes.map(|n| Size(n).to_string());
        assert_eq!(texts, ["0 KiB", "900 KiB", "1 MiB", "1023 MiB", "1 GiB", "1.5 GiB", "200 GiB", "3 TiB"]);
        let times = [0, 3_300_000_000, 84_240_000_000, 3_600_000_000_000].map(|n| Seconds(n).to_string());
        assert_eq!(times, ["0.00 s", "3.30 s", "84.2 s", "3600 s"]);
    }
}
