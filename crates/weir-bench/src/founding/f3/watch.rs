//! What is seen from outside while the server works: pauses, processor time, reads, flushes.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_cli::compare::sides::weir_binary;

use crate::workload::flush_interrupts;

const SECOND: Duration = Duration::from_secs(1);
/// Name of the thread that keeps mapped files.
const KEEPER: &str = "weir-files";

/// Bytes that come to a client, looked at again and again.
#[derive(Debug, Default)]
pub struct Flow {
    /// When the first came; when the count changed last, and what it was.
    began: Option<Instant>,
    changed: Option<Instant>,
    bytes: u64,
    longest: Duration,
    /// Bytes of each whole second.
    seconds: Vec<u64>,
    /// What the last whole second began with.
    mark: u64,
}

impl Flow {
    /// So many have come until now.
    pub fn look(&mut self, bytes: u64, now: Instant) {
        if bytes == 0 {
            return;
        }
        let began = *self.began.get_or_insert(now);
        if let Some(changed) = self.changed {
            self.longest = self.longest.max(now - changed);
        }
        let whole = (now - began).as_secs() as usize;
        if self.seconds.len() < whole {
            self.seconds.push(bytes - self.mark);
            // Where nobody looked for longer, what came is the first of those seconds'.
            self.seconds.resize(whole, 0);
            self.mark = bytes;
        }
        if bytes != self.bytes {
            (self.bytes, self.changed) = (bytes, Some(now));
        }
    }

    /// Longest time in which nothing came.
    pub fn longest_pause(&self) -> Duration {
        self.longest
    }

    /// Whole seconds, wherever they begin, in which nothing came: how many fit into the longest pause.
    pub fn empty_seconds(&self) -> u64 {
        self.longest.as_secs() / SECOND.as_secs()
    }

    /// What came in the slowest second, of what comes in one of them on average.
    pub fn slowest_second_percent(&self) -> Option<f64> {
        let sum: u64 = self.seconds.iter().sum();
        let slowest = *self.seconds.iter().min()?;
        (sum > 0).then(|| 100.0 * slowest as f64 * self.seconds.len() as f64 / sum as f64)
    }
}

/// Bytes that a process has received so far, from sockets or files.
pub fn received_bytes(pid: u32) -> Option<u64> {
    of_key(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?, "rchar:")
}

fn of_key(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}

/// What the server and the kernel have counted up to a moment.
#[derive(Debug)]
pub struct Counts {
    /// Processor time of the server, in its own code and in the kernel's; of its keeper alone.
    own_s: Option<f64>,
    kernel_s: Option<f64>,
    keeper_s: Option<f64>,
    read_bytes: Option<u64>,
    flushes: Option<u64>,
    /// Pages of files that the kernel reclaimed by itself, everywhere.
    reclaimed: Option<u64>,
    weir: BTreeMap<String, u64>,
}

impl Counts {
    /// Counts up to now.
    pub fn now(pid: u32) -> Counts {
        let stat = |path: String| processor_seconds(&fs::read_to_string(path).ok()?);
        let (own_s, kernel_s) = stat(format!("/proc/{pid}/stat")).unzip();
        let of_keeper = |tid| stat(format!("/proc/{pid}/task/{tid}/stat"));
        let text = |path: &str| fs::read_to_string(path).ok();
        Counts {
            own_s,
            kernel_s,
            keeper_s: keeper(pid).and_then(of_keeper).map(|(own, kernel)| own + kernel),
            read_bytes: text(&format!("/proc/{pid}/io")).and_then(|text| of_key(&text, "read_bytes:")),
            flushes: flush_interrupts(),
            reclaimed: text("/proc/vmstat").and_then(|text| of_key(&text, "pgsteal_file ")),
            weir: of_weir(pid).unwrap_or_default(),
        }
    }

    /// What has come since, for each response of so many.
    pub fn since(&self, before: &Counts, responses: f64, bytes: f64) -> Value {
        let time = |now: Option<f64>, then: Option<f64>| now.map(|now| now - then.unwrap_or(0.0));
        let number = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?) as f64);
        let per = |value: Option<f64>, of: f64| value.filter(|_| of > 0.0).map(|value| value / of);
        let counted = |name: &str| number(self.weir.get(name).copied(), before.weir.get(name).copied());
        json!({
            "own_s_per_gb": per(time(self.own_s, before.own_s), bytes / 1e9),
            "kernel_s_per_gb": per(time(self.kernel_s, before.kernel_s), bytes / 1e9),
            "keeper_s_per_gb": per(time(self.keeper_s, before.keeper_s), bytes / 1e9),
            "read_per_byte": per(number(self.read_bytes, before.read_bytes), bytes),
            "flushes_per_response": per(number(self.flushes, before.flushes), responses),
            "pages_reclaimed": number(self.reclaimed, before.reclaimed),
            "pages_evicted": counted("weir_files_evicted"),
            "pages_refaulted": counted("weir_files_refaulted"),
        })
    }
}

/// What `weir stat` says of a process; `None` where it does not run under Weir.
pub fn of_weir(pid: u32) -> Option<BTreeMap<String, u64>> {
    let told = Command::new(weir_binary().ok()?).args(["stat", "--json", &pid.to_string()]).output().ok()?;
    let values: Value = serde_json::from_slice(&told.stdout).ok()?;
    let values = values.as_object()?.iter();
    Some(values.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect())
}

/// Processor time of a process or thread so far, in its own code and in the kernel's, by a clock of 10 ms.
fn processor_seconds(stat: &str) -> Option<(f64, f64)> {
    const TICKS_PER_S: f64 = 100.0;
    // The name of the program, in brackets, may hold anything. The times are fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_S);
    Some((seconds()?, seconds()?))
}

fn keeper(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut ids = tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.find(|tid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).is_ok_and(|name| name.trim_end() == KEEPER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_and_seconds_are_those_between_the_first_byte_and_the_last_look() {
        let (mut flow, start) = (Flow::default(), Instant::now());
        let mut look = |ms: u64, bytes: u64| flow.look(bytes, start + Duration::from_millis(ms));
        look(0, 0);
        (500..2500).step_by(10).for_each(|ms| look(ms, ms));
        look(4100, 3000);
        look(4500, 4000);
        assert_eq!(flow.longest_pause(), Duration::from_millis(4100 - 2490));
        assert_eq!(flow.empty_seconds(), 1);
        assert_eq!(flow.seconds.len(), 4);
        assert_eq!(flow.seconds[3], 4000 - 3000);
        assert_eq!(flow.seconds.iter().min(), Some(&0));
        assert_eq!(flow.slowest_second_percent(), Some(0.0));
    }

    #[test]
    fn nothing_that_came_is_no_second() {
        assert_eq!(Flow::default().slowest_second_percent(), None);
    }

    #[test]
    fn what_is_counted_is_counted_for_a_response() {
        let counts = |cpu: f64, read: u64, flushes: u64, evicted: u64| Counts {
            own_s: Some(cpu),
            kernel_s: Some(2.0 * cpu),
            keeper_s: None,
            read_bytes: Some(read),
            flushes: Some(flushes),
            reclaimed: None,
            weir: [("weir_files_evicted".to_owned(), evicted)].into_iter().collect(),
        };
        let found = counts(3.0, 5_000_000_000, 300, 7).since(&counts(1.0, 1_000_000_000, 100, 2), 400.0, 2e9);
        assert_eq!((&found["own_s_per_gb"], &found["kernel_s_per_gb"]), (&json!(1.0), &json!(2.0)));
        assert_eq!(found["keeper_s_per_gb"], Value::Null);
        assert_eq!((&found["read_per_byte"], &found["flushes_per_response"]), (&json!(2.0), &json!(0.5)));
        assert_eq!((&found["pages_evicted"], &found["pages_refaulted"]), (&json!(5.0), &Value::Null));
    }

    #[test]
    fn times_are_found_behind_a_name_with_brackets() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(processor_seconds(stat), Some((2.5, 0.5)));
        assert_eq!(processor_seconds("7 (a) S 1"), None);
    }

    #[test]
    fn bytes_that_this_process_received_are_known() {
        assert!(received_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
        assert_eq!(of_key("rchar: 12\nread_bytes: 4096\n", "read_bytes:"), Some(4096));
    }
}
