//! The memory limit of the process's own control group, version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

/// Generation of the control group interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Version 1, with its `memory.limit_in_bytes`.
    V1,
    /// Version 2, with its `memory.max`.
    V2,
}

impl CgroupVersion {
    /// Name of the file that holds the limit.
    pub fn limit_file(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "memory.limit_in_bytes",
            CgroupVersion::V2 => "memory.max",
        }
    }
}

/// A memory limit set on the process's control group or on one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The limit, in bytes.
    pub bytes: u64,
    /// The file it was read from.
    pub file: PathBuf,
    /// Generation of the interface.
    pub version: CgroupVersion,
}

/// Folder of a process's control group, and where that hierarchy is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    /// Generation of the interface.
    pub version: CgroupVersion,
    /// Where the hierarchy is mounted.
    pub mount: PathBuf,
    /// The group's folder below the mount.
    pub dir: PathBuf,
}

/// Groups with memory accounting that this process is in: at most one of each version, version 1 only if it
/// has the memory controller.
pub fn memory_groups_of_self() -> Vec<MemoryGroup> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    memory_groups(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

/// The least limit below `ram_bytes` on the way from the own group up to the root of its hierarchy.
pub(super) fn limit_of_self(ram_bytes: u64) -> Option<CgroupLimit> {
    memory_groups_of_self()
        .iter()
        .filter_map(|group| least_limit(group, ram_bytes))
        .min_by_key(|limit| limit.bytes)
}

/// Files in which limits above this process may stand, those of its own groups first.
pub(super) fn limit_files_of_self() -> Vec<PathBuf> {
    memory_groups_of_self().iter().flat_map(limit_files).collect()
}

/// From the group up to the root of its hierarchy. A root has no such file.
fn limit_files(group: &MemoryGroup) -> impl Iterator<Item = PathBuf> + '_ {
    let dirs = group.dir.ancestors().take_while(|dir| dir.starts_with(&group.mount));
    dirs.map(|dir| dir.join(group.version.limit_file()))
}

fn memory_groups(groups: &str, mounts: &str) -> Vec<MemoryGroup> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // hierarchy-id:controllers:path
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version = match controllers {
            "" => CgroupVersion::V2,
            list if list.split(',').any(|name| name == "memory") => CgroupVersion::V1,
            _ => continue,
        };
        if let Some((root, mount)) = hierarchy_mount(mounts, version) {
            // Inside a container the mount may show a part of the hierarchy only; a path outside it means
            // that the mount's root is our own group.
            let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
            found.push(MemoryGroup { version, dir: mount.join(below), mount });
        }
    }
    found
}

/// Root within the hierarchy, and mount point, of the first mount of the memory hierarchy of `version`.
fn hierarchy_mount(mountinfo: &str, version: CgroupVersion) -> Option<(PathBuf, PathBuf)> {
    mountinfo.lines().find_map(|line| {
        // id parent major:minor root mountpoint options [tags...] - type source superoptions
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, mount) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, super_options) = (right.next()?, right.nth(1)?);
        let matches = match version {
            CgroupVersion::V2 => kind == "cgroup2",
            CgroupVersion::V1 => kind == "cgroup" && super_options.split(',').any(|o| o == "memory"),
        };
        matches.then(|| (PathBuf::from(root), PathBuf::from(mount)))
    })
}

fn least_limit(group: &MemoryGroup, ram_bytes: u64) -> Option<CgroupLimit> {
    let mut least: Option<CgroupLimit> = None;
    for file in limit_files(group) {
        let Some(bytes) = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok())
        else {
            continue; // "max", or no such file
        };
        // Version 1 writes "no limit" as a number near 2^63.
        if bytes < ram_bytes && least.as_ref().is_none_or(|l| bytes < l.bytes) {
            least = Some(CgroupLimit { bytes, file, version: group.version });
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw
";

    fn group(version: CgroupVersion, mount: &str, dir: &str) -> MemoryGroup {
        MemoryGroup { version, mount: mount.into(), dir: dir.into() }
    }

    #[test]
    fn both_hierarchies_of_a_hybrid_machine_are_found() {
        let found = memory_groups("9:name=systemd:/x\n4:memory:/box/7\n0::/\n", HYBRID_MOUNTS);
        let expected = [
            group(CgroupVersion::V1, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/box/7"),
            group(CgroupVersion::V2, "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_container_that_sees_part_of_the_hierarchy_uses_the_path_below_its_root() {
        let mounts = "50 40 0:30 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let found = memory_groups("0::/docker/abc/job\n", mounts);
        assert_eq!(found, [group(CgroupVersion::V2, "/sys/fs/cgroup", "/sys/fs/cgroup/job")]);
        let outside = memory_groups("0::/elsewhere\n", mounts);
        assert_eq!(outside, [group(CgroupVersion::V2, "/sys/fs/cgroup", "/sys/fs/cgroup/")]);
    }

    #[test]
    fn odd_lines_and_missing_mounts_find_nothing() {
        assert!(memory_groups("nonsense\n\n3:cpu:/\n", HYBRID_MOUNTS).is_empty());
        assert!(memory_groups("0::/\n", "").is_empty());
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let root = std::env::temp_dir().join(format!("weir-cgroup-{}", std::process::id()));
        let leaf = root.join("outer/inner");
        fs::create_dir_all(&leaf).unwrap();
        fs::write(leaf.join("memory.max"), "max\n").unwrap();
        fs::write(root.join("outer/memory.max"), "1048576\n").unwrap();
        let own = MemoryGroup { version: CgroupVersion::V2, mount: root.clone(), dir: leaf.clone() };
        let found = least_limit(&own, 1 << 30);
        fs::write(leaf.join("memory.max"), "524288\n").unwrap();
        let lower = least_limit(&own, 1 << 30);
        let above_ram = least_limit(&own, 4096);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.map(|l| (l.bytes, l.file)), Some((1 << 20, root.join("outer/memory.max"))));
        assert_eq!(lower.map(|l| l.bytes), Some(1 << 19));
        assert_eq!(above_ram, None, "a limit above the machine's RAM is none");
    }
}
