//! Watches from outside how much anonymous memory the processes of a test have in RAM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(50);

/// A thread that reads `/proc/PID/status` of a process and its descendants again and again.
pub struct Watch {
    over: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Begins to watch `root` and what it starts.
    pub fn begin(root: u32) -> Watch {
        let (over, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, seen) = (Arc::clone(&over), Arc::clone(&most));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let now = tree(root).into_iter().filter_map(anonymous_bytes).max().unwrap_or(0);
                seen.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(EVERY);
            }
        });
        Watch { over, most, thread }
    }

    /// The most bytes that one process had so far.
    #[cfg(test)]
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Ends. Returns the most bytes that one process had.
    pub fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(()) => self.most.load(Ordering::Relaxed),
            Err(_) => u64::MAX,
        }
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
        let begun = std::time::Instant::now();
        while watch.most() < 64 << 20 {
            assert!(begun.elapsed().as_secs() < 60, "{} bytes were seen", watch.most());
            std::thread::yield_now();
        }
        assert!(bytes.iter().all(|b| *b == 7));
        assert!(watch.end() >= 64 << 20);
    }
}
