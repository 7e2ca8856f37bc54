//! Where and when something was measured, and with which Weir.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir::config::format_size;
use weir_os::probe;

/// Letters of a day, as in 2026-07-01.
const DAY_LETTERS: usize = 10;

/// A machine on a day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The day, UTC.
    pub day: String,
    /// Name of the processor.
    pub processor: String,
    /// How many of them.
    pub processors: u32,
    /// Bytes of RAM.
    pub ram_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Processes that wanted a processor before, on average over a minute.
    pub load: f64,
    /// Version of Weir.
    pub weir: String,
}

impl Machine {
    /// This one, now.
    pub fn this() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let named = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let name = named.into_iter().find(|(key, _)| key.trim() == "model name");
        let load = read("/proc/loadavg").split_whitespace().next().and_then(|n| n.parse().ok());
        let mut day = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        day.truncate(DAY_LETTERS);
        Machine {
            day,
            processor: name.map_or("unknown processor", |(_, name)| name.trim()).to_owned(),
            processors: weir_os::thread::processors(),
            ram_bytes: probe::ram_limit_bytes(),
            kernel: probe::probe().kernel.release.clone(),
            load: load.unwrap_or(0.0),
            weir: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Whether figures of both can be compared: the day and the load may differ.
    pub fn is_like(&self, other: &Machine) -> bool {
        let same = |m: &Machine| (m.processor.clone(), m.processors, m.kernel.clone(), m.weir.clone());
        same(self) == same(other)
    }
}

/// Two lines that say all this.
pub fn line(machine: &Value) -> String {
    let text = |field: &str| machine[field].as_str().unwrap_or("?").to_owned();
    format!(
        "{}, {} processors, {},\nLinux {}, Weir {}, on {}",
        text("processor"),
        machine["processors"],
        format_size(machine["ram_bytes"].as_u64().unwrap_or(0)),
        text("kernel"),
        text("weir"),
        text("day"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_like_itself_on_another_day_and_unlike_one_with_another_kernel() {
        let now = Machine::this();
        assert!(now.processors > 0 && now.ram_bytes > 0 && now.day.starts_with("20"), "{now:?}");
        assert_eq!(now.day.len(), DAY_LETTERS);
        let later = Machine { day: "2100-01-01".to_owned(), load: 9.0, ..now.clone() };
        assert!(now.is_like(&later));
        assert!(!now.is_like(&Machine { kernel: "5.7".to_owned(), ..now.clone() }));
        let line = line(&serde_json::to_value(&now).unwrap());
        assert!(line.contains(&now.kernel) && line.contains(&now.day), "{line}");
    }
}
