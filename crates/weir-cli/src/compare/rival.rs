//! The kernel's own way to do the same, under a control group's memory limit: swap on lz4-compressed zram, on
//! a file, or on a file behind zswap.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use weir_os::host;
use weir_os::probe::{self, CgroupVersion};

use super::area;
use super::relief::{self, Relief};
use super::undo::{Undo, change, put_back, put_back_on_panic, read, remember, set};
use crate::interrupt::interrupted;
use crate::term;

/// How many pages the kernel reads ahead from swap, as a power of two.
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// Where the kernel swaps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Area {
    /// Compressed RAM; no readahead.
    Zram,
    /// A file in this folder; readahead of 8 pages.
    File(PathBuf),
    /// The same behind a compressed cache in RAM.
    Zswap(PathBuf),
    /// Nowhere: what is limited, or counted, is files.
    None,
}

/// Swap and a limited control group, while the value lives.
#[derive(Debug)]
pub struct Rival {
    area: Area,
    zram: PathBuf,
    /// RAM that zswap took before anything was measured, in bytes.
    zswap_before: u64,
    procs: PathBuf,
    version: CgroupVersion,
    limit_bytes: u64,
    relief: RefCell<Option<Relief>>,
    /// Held against a second comparison on this machine: there is one page-cluster, and devices are taken by
    /// looking.
    _lock: File,
    /// What it is, for the table.
    pub description: String,
}

impl Drop for Rival {
    fn drop(&mut self) {
        // Nobody changes the limit any more while the group is taken away.
        self.relieve_no_more();
        put_back();
    }
}

impl Rival {
    /// Sets everything up: programs started with [`Rival::command`] may use `limit_bytes` of RAM, and up to
    /// `swap_bytes` of their memory can be swapped. On failure everything is back as it was. One at a time.
    pub fn set_up(area: Area, limit_bytes: u64, swap_bytes: u64) -> anyhow::Result<Rival> {
        ensure!(host::effective_uid() == 0, "needs root to set up swap and a control group");
        put_back_on_panic();
        // From here on the guard exists: any early return drops it.
        let mut rival = Rival {
            area,
            zram: PathBuf::new(),
            zswap_before: 0,
            procs: PathBuf::new(),
            version: CgroupVersion::V2,
            limit_bytes,
            relief: RefCell::new(None),
            _lock: lock()?,
            description: String::new(),
        };
        let swap = rival.set_up_area(swap_bytes)?;
        let (procs, version) = set_up_cgroup(limit_bytes)?;
        (rival.procs, rival.version) = (procs, version);
        rival.description = format!("{swap}, {} {limit_bytes}", version.limit_file());
        Ok(rival)
    }

    /// Returns what the area is.
    fn set_up_area(&mut self, swap_bytes: u64) -> anyhow::Result<String> {
        match self.area.clone() {
            Area::Zram => {
                area::disable_zswap()?;
                self.zram = area::set_up_zram(swap_bytes)?;
                change(Path::new(PAGE_CLUSTER), "0")?;
                let algorithm = read(&self.zram.join("comp_algorithm"))?;
                let algorithm = algorithm.split(['[', ']']).nth(1).unwrap_or("?");
                Ok(format!("swap on zram ({algorithm}), page-cluster 0"))
            }
            Area::File(folder) => {
                area::disable_zswap()?;
                change(Path::new(PAGE_CLUSTER), "3")?;
                area::set_up_file(&folder, swap_bytes)?;
                Ok("swap file, rotational 0, page-cluster 3".to_owned())
            }
            Area::Zswap(folder) => {
                let algorithm = area::enable_zswap()?;
                change(Path::new(PAGE_CLUSTER), "3")?;
                area::set_up_file(&folder, swap_bytes)?;
                self.zswap_before = area::zswap_bytes().unwrap_or(0);
                Ok(format!("zswap ({algorithm}) over a swap file, rotational 0, page-cluster 3"))
            }
            Area::None => Ok("no swap".to_owned()),
        }
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

    /// RAM that the group is charged for now, in bytes: memory, and files in the kernel's cache.
    pub fn charged_bytes(&self) -> anyhow::Result<u64> {
        let file = match self.version {
            CgroupVersion::V1 => "memory.usage_in_bytes",
            CgroupVersion::V2 => "memory.current",
        };
        let path = self.procs.with_file_name(file);
        read(&path)?.parse().with_context(|| path.display().to_string())
    }

    /// From now on programs get room where the kernel would kill them, if it can be told to wait.
    pub fn relieve(&self) {
        self.relieve_no_more(); // an earlier one has put the limit back first
        let Some(group) = self.procs.parent().filter(|_| self.version == CgroupVersion::V1) else { return };
        // A program that stands still must not stay so when nobody looks any more.
        remember(Undo::Write(relief::control_file(group), "0".to_owned()));
        *self.relief.borrow_mut() = Relief::start(group, self.limit_bytes);
    }

    /// No more.
    pub fn relieve_no_more(&self) {
        drop(self.relief.take());
    }

    /// How many times it was given room beyond its limit, where the kernel would have killed it.
    pub fn reliefs(&self) -> u64 {
        self.relief.borrow().as_ref().map_or(0, Relief::times)
    }

    /// Forgets the store's peak so far.
    pub fn reset_store_peak(&self) -> anyhow::Result<()> {
        if self.area == Area::Zram { set(&self.zram.join("mem_used_max"), "0") } else { Ok(()) }
    }

    /// RAM beyond the limit that is taken now, in bytes, where only looking often tells the peak: zswap's
    /// store, and room that was given.
    pub fn store_bytes_now(&self) -> u64 {
        // The group of version 2 is charged for zswap's store; that of version 1 is not.
        let store = match (&self.area, self.version) {
            (Area::Zswap(_), CgroupVersion::V1) => {
                area::zswap_bytes().unwrap_or(0).saturating_sub(self.zswap_before)
            }
            _ => 0,
        };
        store + self.relief.borrow().as_ref().map_or(0, Relief::bytes_now)
    }

    /// Most RAM beyond the limit since the last reset, in bytes; `seen` is the most that
    /// [`Rival::store_bytes_now`] has said.
    pub fn store_peak_bytes(&self, seen: u64) -> anyhow::Result<u64> {
        match self.area {
            // Two peaks that need not have come at once; room is given seldom here.
            Area::Zram => Ok(area::store_peak(&read(&self.zram.join("mm_stat"))?)? + seen),
            Area::File(_) | Area::Zswap(_) | Area::None => Ok(seen),
        }
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
    // Version 2 allows no processes in a group whose children have controllers; only the root is free of that
    // rule.
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
