//! Keeps the kernel's side alive. Under heavy pressure the kernel at times finds nothing to reclaim for a
//! moment and kills the program although swap is free, at times again and again. In a control group of
//! version 1 the killer can be told to wait: the program then stands still until there is room, and gets it
//! here, a little at a time. It counts as RAM that the kernel's side used.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::Duration;

use super::undo::set;

/// Room given at a time, in bytes.
const STEP_BYTES: u64 = 4 << 20;
/// How often the group is looked at: a stall of a thousandth of a second for each room given.
const LOOK: Duration = Duration::from_millis(1);
/// Of the limit at most this part is given beyond it: with more it is another comparison.
const MOST_PART: u64 = 2;
/// Looks after which the limit is tried as it was.
const LOOKS_BEFORE_LOWERING: u32 = 10;

/// Looks after one control group of version 1 while the value lives.
#[derive(Debug)]
pub struct Relief {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Room>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    times: AtomicU64,
    bytes_now: AtomicU64,
}

impl Drop for Relief {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(Ok(room)) = self.thread.take().map(JoinHandle::join) {
            // The program has ended: nothing stands in the way.
            let _ = room.write(0);
        }
    }
}

impl Relief {
    /// For the group in this folder. The caller remembers to put [`control_file`] back, if this process ends
    /// early. `None` where the killer cannot be told to wait.
    pub fn start(group: &Path, limit_bytes: u64) -> Option<Relief> {
        let control = control_file(group);
        let file = File::open(&control).ok()?;
        set(&control, "1").ok()?;
        let shared = Arc::new(Shared::default());
        let limit_file = group.join("memory.limit_in_bytes");
        let mut room = Room { limit_file, limit_bytes, extra_bytes: 0, quiet_looks: 0 };
        let thread = std::thread::Builder::new().name("relief".to_owned()).spawn({
            let (shared, control) = (Arc::clone(&shared), control.clone());
            move || {
                while !shared.stop.load(Relaxed) && room.look(&file, &shared) {
                    std::thread::sleep(LOOK);
                }
                // Whoever stands still then is killed.
                let _ = set(&control, "0");
                room
            }
        });
        match thread {
            Ok(thread) => Some(Relief { shared, thread: Some(thread) }),
            Err(_) => {
                let _ = set(&control, "0");
                None
            }
        }
    }

    /// How often room was given since the start.
    pub fn times(&self) -> u64 {
        self.shared.times.load(Relaxed)
    }

    /// Room beyond the limit that the group has now, in bytes.
    pub fn bytes_now(&self) -> u64 {
        self.shared.bytes_now.load(Relaxed)
    }
}

/// Where the killer of the group in this folder is told to wait (1) or not (0).
pub fn control_file(group: &Path) -> PathBuf {
    group.join("memory.oom_control")
}

/// The group's limit as it is now.
#[derive(Debug)]
struct Room {
    limit_file: PathBuf,
    limit_bytes: u64,
    extra_bytes: u64,
    quiet_looks: u32,
}

impl Room {
    /// False when the kernel is to have its way.
    fn look(&mut self, control: &File, shared: &Shared) -> bool {
        let mut text = [0; 256];
        let Ok(len) = control.read_at(&mut text, 0) else { return false };
        if String::from_utf8_lossy(&text[..len]).contains("under_oom 1") {
            self.quiet_looks = 0;
            let most = self.limit_bytes / MOST_PART;
            if self.extra_bytes >= most || self.write(self.extra_bytes + STEP_BYTES).is_err() {
                return false;
            }
            self.extra_bytes += STEP_BYTES;
            shared.times.fetch_add(1, Relaxed);
            shared.bytes_now.store(self.extra_bytes, Relaxed);
        } else if self.extra_bytes > 0 {
            self.quiet_looks += 1;
            // Refused while the kernel still finds nothing.
            if self.quiet_looks.is_multiple_of(LOOKS_BEFORE_LOWERING) && self.write(0).is_ok() {
                self.extra_bytes = 0;
                shared.bytes_now.store(0, Relaxed);
            }
        }
        true
    }

    fn write(&self, extra_bytes: u64) -> anyhow::Result<()> {
        set(&self.limit_file, &(self.limit_bytes + extra_bytes).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(oom: &str) -> (PathBuf, File) {
        let dir = std::env::temp_dir().join(format!("weir-relief-{}-{oom}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("memory.limit_in_bytes"), "").unwrap();
        let control = dir.join("memory.oom_control");
        std::fs::write(&control, format!("oom_kill_disable 1\nunder_oom {oom}\n")).unwrap();
        let file = File::open(control).unwrap();
        (dir, file)
    }

    fn limit(dir: &Path) -> u64 {
        std::fs::read_to_string(dir.join("memory.limit_in_bytes")).unwrap().parse().unwrap()
    }

    #[test]
    fn a_group_without_memory_gets_room_until_it_has_half_its_limit_more() {
        let (dir, control) = group("1");
        let shared = Shared::default();
        let limit_bytes = 4 * STEP_BYTES;
        let limit_file = dir.join("memory.limit_in_bytes");
        let mut room = Room { limit_file, limit_bytes, extra_bytes: 0, quiet_looks: 0 };
        for steps in 1..=2 {
            assert!(room.look(&control, &shared));
            assert_eq!(limit(&dir), limit_bytes + steps * STEP_BYTES);
        }
        assert!(!room.look(&control, &shared), "then the kernel has its way");
        assert_eq!((shared.times.load(Relaxed), shared.bytes_now.load(Relaxed)), (2, limit_bytes / 2));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn whoever_stops_looking_leaves_the_killer_and_the_limit_as_they_were() {
        let (dir, _) = group("0 ");
        let control = || std::fs::read_to_string(dir.join("memory.oom_control")).unwrap();
        let relief = Relief::start(&dir, 1 << 30).unwrap();
        assert!(control().starts_with('1'), "it is told to wait");
        assert_eq!((relief.times(), relief.bytes_now()), (0, 0));
        drop(relief);
        assert!(control().starts_with('0'));
        assert_eq!(limit(&dir), 1 << 30);
        std::fs::remove_dir_all(dir).unwrap();
        assert!(Relief::start(Path::new("/nowhere"), 1).is_none());
    }

    #[test]
    fn the_limit_is_as_it_was_once_the_group_has_memory() {
        let (dir, control) = group("0");
        let shared = Shared::default();
        let limit_file = dir.join("memory.limit_in_bytes");
        let mut room = Room { limit_file, limit_bytes: 1 << 30, extra_bytes: STEP_BYTES, quiet_looks: 0 };
        for _ in 0..LOOKS_BEFORE_LOWERING {
            assert!(room.look(&control, &shared));
        }
        assert_eq!((limit(&dir), room.extra_bytes, shared.times.load(Relaxed)), (1 << 30, 0, 0));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
