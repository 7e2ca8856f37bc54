//! Watches from outside how much anonymous memory the processes of a test have in RAM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(50);

/// A thread that reads `/proc/PID/status` of a process and its descendants again and again.
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Watch {
    /// Begins to watch `root` and what it starts.
    pub fn begin(root: u32) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !ends.load(Ordering::Relaxed) {
                most = tree(root).into_iter().filter_map(anonymous_bytes).fold(most, u64::max);
                std::thread::sleep(EVERY);
            }
            most
        });
        Watch { over, thread }
    }

    /// Ends. Returns the most bytes that one process had.
    pub fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(u64::MAX)
    }
}

/// A process and its living descendants.
fn tree(root: u32) -> Vec<u32> {
    let (mut found, mut todo) = (Vec::new(), vec![root]);
    while let Some(pid) = todo.pop() {
        found.push(pid);
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            todo.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    found
}

/// `RssAnon` of a process, if it lives.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_process_is_seen() {
        let watch = Watch::begin(std::process::id());
        let bytes = vec![7u8; 64 << 20];
        while anonymous_bytes(std::process::id()).is_some_and(|now| now < 64 << 20) {}
        // Two readings at least begin from here on.
        std::thread::sleep(3 * EVERY);
        assert!(bytes.iter().all(|b| *b == 7));
        assert!(watch.end() >= 64 << 20);
    }
}
