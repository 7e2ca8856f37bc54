//! Watches from outside how much memory the processes of a test have in RAM.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(50);

/// A thread that reads `/proc/PID/status` of a process and its descendants again and again.
pub struct Watch {
    over: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    files: Arc<Mutex<Vec<u64>>>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Begins to watch `root` and what it starts.
    pub fn begin(root: u32) -> Watch {
        let (over, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let files = Arc::new(Mutex::new(Vec::new()));
        let (ends, seen, seen_files) = (Arc::clone(&over), Arc::clone(&most), Arc::clone(&files));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let now: Vec<(u64, u64)> = tree(root).into_iter().filter_map(resident_bytes).collect();
                seen.fetch_max(now.iter().map(|of| of.0).max().unwrap_or(0), Ordering::Relaxed);
                if let Ok(mut files) = seen_files.lock() {
                    files.extend(now.iter().map(|of| of.1).max());
                }
                std::thread::sleep(EVERY);
            }
        });
        Watch { over, most, files, thread }
    }

    /// The most bytes of anonymous memory that one process had so far.
    #[cfg(test)]
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Ends. Returns the most bytes of anonymous memory that one process had; and of pages of files, what one
    /// had at half of the times that were looked at.
    pub fn end(self) -> (u64, u64) {
        self.over.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(()) => (self.most.load(Ordering::Relaxed), self.files.lock().map_or(u64::MAX, median)),
            Err(_) => (u64::MAX, u64::MAX),
        }
    }
}

fn median(mut seen: MutexGuard<'_, Vec<u64>>) -> u64 {
    seen.sort_unstable();
    seen.get(seen.len() / 2).copied().unwrap_or(0)
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

/// `RssAnon` and `RssFile` of a process, if it lives.
fn resident_bytes(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    Some((bytes("RssAnon:")?, bytes("RssFile:")?))
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
        assert!(watch.end().0 >= 64 << 20);
    }
}
