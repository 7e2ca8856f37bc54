//! The kernel's own way to do the same: swap on lz4-compressed zram under a control group's memory limit.
//!
//! Everything changed on the machine is recorded as an [`Undo`] step the moment it has happened, and put back in reverse
//! order when the guard is dropped, when a panic ends the process, and (since signals only set a flag) on Ctrl-C.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use weir_os::host;
use weir_os::probe::{self, CgroupVersion};

use crate::interrupt::interrupted;
use crate::term;

const PAGE_BYTES: u64 = 4096;
/// How many pages the kernel reads ahead from swap, as a power of two.
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
/// Above every other swap area, so that the measured program uses ours.
const SWAP_PRIORITY: u16 = 32_000;
/// How long a group may take to lose its last process, and a device its last user.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// One step back.
#[derive(Debug)]
enum Undo {
    Write(PathBuf, String),
    SwapOff(PathBuf),
    RemoveDir(PathBuf),
    HotRemove(String),
}

static DONE: Mutex<Vec<Undo>> = Mutex::new(Vec::new());

fn remember(step: Undo) {
    DONE.lock().unwrap_or_else(PoisonError::into_inner).push(step);
}

impl Undo {
    fn apply(&self) -> io::Result<()> {
        match self {
            Undo::Write(path, text) => patiently(|| write(path, text)),
            Undo::SwapOff(device) => host::swap_off(device),
            Undo::RemoveDir(dir) => patiently(|| fs::remove_dir(dir)),
            Undo::HotRemove(id) => patiently(|| write(Path::new("/sys/class/zram-control/hot_remove"), id)),
        }
    }
}

/// Puts everything back, last change first. What cannot be put back is said on stderr and does not stop the rest.
fn put_back() {
    loop {
        // Not held while a step runs: a panic in between must find the rest of the list.
        let step = DONE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(step) = step else { return };
        if let Err(e) = step.apply() {
            term::progress(&format!("weir: could not put back {step:?}: {e}"));
        }
    }
}

fn put_back_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        // Panics abort, so Drop does not run: this is the last chance.
        std::panic::set_hook(Box::new(move |info| {
            previous(info);
            put_back();
        }));
    });
}

/// Retries what is busy for a moment: a group whose last process is still being taken apart, a device being closed.
fn patiently(action: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match action() {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && started.elapsed() < BUSY_PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

fn set(path: &Path, text: &str) -> anyhow::Result<()> {
    write(path, text).with_context(|| format!("cannot write {text} to {}", path.display()))
}

fn read(path: &Path) -> anyhow::Result<String> {
    Ok(fs::read_to_string(path).with_context(|| path.display().to_string())?.trim().to_owned())
}

/// Swap on zram and a limited control group, while the value lives.
#[derive(Debug)]
pub struct Rival {
    zram: PathBuf,
    procs: PathBuf,
    version: CgroupVersion,
    /// Held against a second comparison on this machine: there is one page-cluster, and devices are taken by looking.
    _lock: File,
    /// What it is, for the table.
    pub description: String,
}

impl Drop for Rival {
    fn drop(&mut self) {
        put_back();
    }
}

impl Rival {
    /// Sets everything up: programs started with [`Rival::command`] may use `limit_bytes` of RAM, and up to
    /// `swap_bytes` of their memory can be swapped. On failure everything is back as it was.
    pub fn set_up(limit_bytes: u64, swap_bytes: u64) -> anyhow::Result<Rival> {
        ensure!(host::effective_uid() == 0, "needs root to set up zram and a control group");
        put_back_on_panic();
        // From here on the guard exists: any early return drops it.
        let mut rival = Rival {
            zram: PathBuf::new(),
            procs: PathBuf::new(),
            version: CgroupVersion::V2,
            _lock: lock()?,
            description: String::new(),
        };
        rival.zram = set_up_zram(swap_bytes)?;
        change(Path::new(PAGE_CLUSTER), "0")?;
        let (procs, version) = set_up_cgroup(limit_bytes)?;
        (rival.procs, rival.version) = (procs, version);
        let algorithm = read(&rival.zram.join("comp_algorithm"))?;
        let algorithm = algorithm.split(['[', ']']).nth(1).unwrap_or("?").to_owned();
        let limit = version.limit_file();
        rival.description = format!("swap on zram ({algorithm}), page-cluster 0, {limit} {limit_bytes}");
        Ok(rival)
    }

    /// A command whose program runs inside the limit.
    pub fn command(&self, program: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("__in-cgroup").arg(&self.procs).arg(program);
        Ok(command)
    }

    /// How many programs the kernel has killed in the group for want of memory.
    pub fn oom_kills(&self) -> anyhow::Result<u64> {
        let file = match self.version {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        };
        let path = self.procs.with_file_name(file);
        let text = read(&path)?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|n| n.parse().ok()).with_context(|| format!("no oom_kill in {}", path.display()))
    }

    /// Forgets the store's peak so far.
    pub fn reset_store_peak(&self) -> anyhow::Result<()> {
        set(&self.zram.join("mem_used_max"), "0")
    }

    /// Most RAM that the compressed store has taken since the last reset, in bytes.
    pub fn store_peak_bytes(&self) -> anyhow::Result<u64> {
        store_peak(&read(&self.zram.join("mm_stat"))?)
    }
}

/// Waits its turn: two comparisons at once would disturb each other anyway.
fn lock() -> anyhow::Result<File> {
    // The lock is on the very setting that there is only one of: no lock file to leave behind.
    let file = File::open(PAGE_CLUSTER).context(PAGE_CLUSTER)?;
    let mut told = false;
    while file.try_lock().is_err() {
        // Not a blocking wait: Ctrl-C must end it.
        ensure!(!interrupted(), "interrupted");
        if !told {
            term::progress("waiting for another comparison on this machine to end");
            told = true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(file)
}

/// Fifth column of `mm_stat`: orig_data_size compr_data_size mem_used_total mem_limit mem_used_max ...
/// (Documentation/admin-guide/blockdev/zram.rst).
fn store_peak(mm_stat: &str) -> anyhow::Result<u64> {
    let column = mm_stat.split_whitespace().nth(4).context("mm_stat has no mem_used_max")?;
    column.parse().context("mem_used_max in mm_stat")
}

/// Writes a setting and remembers the old one, unless it is in force already.
fn change(path: &Path, text: &str) -> anyhow::Result<()> {
    let old = read(path)?;
    if old != text {
        set(path, text)?;
        remember(Undo::Write(path.to_owned(), old));
    }
    Ok(())
}

/// Takes an unused zram device, or adds one, and swaps on it. Returns its folder in /sys/block.
fn set_up_zram(swap_bytes: u64) -> anyhow::Result<PathBuf> {
    let dir = unused_zram()?;
    let name = dir.file_name().context("zram device without a name")?;
    let device = Path::new("/dev").join(name);
    ensure!(device.exists(), "{} does not exist in this container", device.display());
    let algorithms = read(&dir.join("comp_algorithm"))?;
    ensure!(
        algorithms.split_whitespace().any(|a| a.trim_matches(['[', ']']) == "lz4"),
        "this kernel's zram has no lz4 (it has {algorithms})"
    );
    let old_algorithm = algorithms.split(['[', ']']).nth(1).unwrap_or("lzo-rle").to_owned();
    set(&dir.join("comp_algorithm"), "lz4")?;
    remember(Undo::Write(dir.join("comp_algorithm"), old_algorithm));
    let size = swap_bytes.next_multiple_of(PAGE_BYTES);
    set(&dir.join("disksize"), &size.to_string())?;
    remember(Undo::Write(dir.join("reset"), "1".to_owned()));
    make_swap(&device, size)?;
    host::swap_on(&device, SWAP_PRIORITY).with_context(|| format!("swapon {}", device.display()))?;
    remember(Undo::SwapOff(device));
    Ok(dir)
}

fn unused_zram() -> anyhow::Result<PathBuf> {
    let first = PathBuf::from("/sys/block/zram0");
    if first.exists() && read(&first.join("disksize"))? == "0" {
        return Ok(first);
    }
    let control = Path::new("/sys/class/zram-control/hot_add");
    ensure!(control.exists(), "this kernel has no zram (fix: modprobe zram)");
    // Reading the file is what adds a device.
    let id = read(control)?;
    remember(Undo::HotRemove(id.clone()));
    Ok(PathBuf::from(format!("/sys/block/zram{id}")))
}

/// Writes the header that `mkswap` writes (`union swap_header` in include/linux/swap.h).
fn make_swap(device: &Path, bytes: u64) -> anyhow::Result<()> {
    let last_page = u32::try_from(bytes / PAGE_BYTES - 1).context("swap area too large")?;
    let mut header = vec![0; PAGE_BYTES as usize];
    header[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    let magic_at = header.len() - 10;
    header[magic_at..].copy_from_slice(b"SWAPSPACE2");
    let mut file = OpenOptions::new().write(true).open(device)?;
    file.write_all(&header)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("writing {}", device.display()))
}

/// Makes a group with a memory limit. Returns its `cgroup.procs`.
fn set_up_cgroup(limit_bytes: u64) -> anyhow::Result<(PathBuf, CgroupVersion)> {
    let (parent, version) = group_parent()?;
    let dir = parent.join(format!("weir-bench-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("cannot make the control group {}", dir.display()))?;
    remember(Undo::RemoveDir(dir.clone()));
    set(&dir.join(version.limit_file()), &limit_bytes.to_string())?;
    Ok((dir.join("cgroup.procs"), version))
}

/// Where a group with memory control can be made.
fn group_parent() -> anyhow::Result<(PathBuf, CgroupVersion)> {
    let groups = probe::memory_groups_of_self();
    if let Some(group) = groups.iter().find(|group| group.version == CgroupVersion::V1) {
        return Ok((group.dir.clone(), CgroupVersion::V1));
    }
    let Some(group) = groups.iter().find(|group| group.version == CgroupVersion::V2) else {
        bail!("no control groups are mounted");
    };
    // Version 2 allows no processes in a group whose children have controllers; only the root is free of that rule.
    let parent = group.mount.clone();
    let has_memory =
        |file: &Path| -> anyhow::Result<bool> { Ok(read(file)?.split_whitespace().any(|c| c == "memory")) };
    ensure!(has_memory(&parent.join("cgroup.controllers"))?, "control groups have no memory controller here");
    let enabled = parent.join("cgroup.subtree_control");
    if !has_memory(&enabled)? {
        set(&enabled, "+memory")?;
        remember(Undo::Write(enabled, "-memory".to_owned()));
    }
    Ok((parent, CgroupVersion::V2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_peak_is_the_fifth_column() {
        assert_eq!(store_peak("  100  50  60  0  70  0 0 0 0").unwrap(), 70);
        assert!(store_peak("1 2 3").is_err());
        assert!(store_peak("1 2 3 4 x").is_err());
    }

    #[test]
    fn the_swap_header_has_version_size_and_magic_where_the_kernel_looks() {
        let path = std::env::temp_dir().join(format!("weir-swap-header-{}", std::process::id()));
        fs::write(&path, vec![0; 8192]).unwrap();
        make_swap(&path, 64 << 20).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(&bytes[4086..4096], b"SWAPSPACE2");
        assert_eq!(&bytes[1024..1032], &[1_u32.to_ne_bytes(), 16_383_u32.to_ne_bytes()].concat()[..]);
    }
}
