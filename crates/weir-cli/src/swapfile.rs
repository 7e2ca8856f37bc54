//! The swap file as seen from the command: whether it can be had, which is found out before the program
//! starts.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir::config::{SWAP_BYTES_MIN, Settings, SwapIo, SwapSetting, format_size};
use weir::engine::swapfile::auto_bytes;
use weir::error::SwapFileError;
use weir_os::probe;
use weir_os::swapfile::{Granted, OpenError, Space, SwapFile, space};
use weir_os::sys::Errno;

/// What the file system of a folder is called; `None` where the kernel does not tell.
pub fn file_system(folder: &Path) -> Option<String> {
    let device = std::fs::metadata(folder).ok()?.dev();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let path = std::fs::canonicalize(folder).ok()?;
    type_of_mount(&mounts, &device_text(device), &path)
}

/// As `mountinfo` writes it: `major:minor`, which glibc packs into a `dev_t`.
fn device_text(device: u64) -> String {
    let major = (device >> 8) & 0xFFF | (device >> 32) & !0xFFF;
    let minor = device & 0xFF | (device >> 12) & 0xFFFF_FF00;
    format!("{major}:{minor}")
}

/// Type of the mount that holds the path: one of its device, else (btrfs has devices that no mount shows) the
/// deepest.
fn type_of_mount(mounts: &str, device: &str, path: &Path) -> Option<String> {
    // ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS [TAGS...] - TYPE SOURCE OPTIONS (proc_pid_mountinfo(5))
    let fields = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let device = before.nth(2)?;
        let point = before.nth(1)?.replace("\\040", " ");
        Some((device, point, after.split(' ').next()?))
    });
    let holding = fields.filter(|(_, point, _)| path.starts_with(point));
    let best = holding.max_by_key(|(found, point, _)| (*found == device, point.len()));
    best.map(|(_, _, kind)| kind.to_owned())
}

/// A file of so many bytes, made and given up again: whether it could be, and what the file system granted.
pub fn try_file(folder: &Path, bytes: u64) -> Result<Granted, OpenError> {
    let dir = CString::new(folder.as_os_str().as_bytes()).map_err(|_| OpenError::Folder(Errno::EINVAL))?;
    Ok(SwapFile::open(&dir, bytes)?.granted())
}

/// Room on the folder's disk.
pub fn space_in(folder: &Path) -> Result<Space, OpenError> {
    let dir = CString::new(folder.as_os_str().as_bytes()).map_err(|_| OpenError::Folder(Errno::EINVAL))?;
    space(&dir).map_err(OpenError::Folder)
}

/// Finds out whether the program can have its swap file. Where the user has `named` neither size nor folder
/// and there is no place for one, there is none from here on. Returns what the user should know; an error is
/// a reason not to start.
pub fn check(settings: &mut Settings, named: bool) -> Result<Vec<String>, String> {
    let Some(swap) = settings.swap.clone() else { return Ok(Vec::new()) };
    if swap.io == SwapIo::Uring
        && let Err(e) = probe::probe().io_uring
    {
        return Err(format!(
            "--swap-io uring: io_uring is not allowed here: {e}; fix: sysctl -w kernel.io_uring_disabled=0, \
             or --swap-io auto"
        ));
    }
    match (swap.bytes, granted(&swap, settings.memory)) {
        (_, Ok(granted)) => Ok(shortcomings(&swap, granted)),
        (Some(bytes), Err(why)) => Err(format!(
            "no swap file of {} in {}: {why}; name another folder (--swap-dir DIR), a smaller size, or \
             --swap none",
            format_size(bytes),
            swap.dir.display()
        )),
        (None, Err(why)) if named => Err(format!(
            "no swap file in {}: {why}; name another folder (--swap-dir DIR), or --swap none",
            swap.dir.display()
        )),
        (None, Err(why)) => {
            settings.swap = None;
            Ok(vec![format!(
                "no swap file in {}: {why}; what does not fit in RAM and pool will be refused (--swap-dir \
                 names another folder, --swap none silences this)",
                swap.dir.display()
            )])
        }
    }
}

/// How large a file sizes itself there, or what keeps it from being of use.
pub fn auto_in(space: Space, budget: u64) -> Result<u64, String> {
    auto_bytes(space, budget, weir_os::sys::file_size_limit()).map_err(|e| match e {
        SwapFileError::TooLittle(free) => format!("only {} are free", format_size(free)),
        other => other.to_string(),
    })
}

fn granted(swap: &SwapSetting, budget: u64) -> Result<Granted, String> {
    let bytes = match swap.bytes {
        Some(bytes) => bytes,
        None => {
            let space = space_in(&swap.dir).map_err(|e| e.to_string())?;
            // The engine takes its file when it needs one; that a file can be made at all is tried with a
            // small one.
            auto_in(space, budget).map(|_| SWAP_BYTES_MIN)?
        }
    };
    try_file(&swap.dir, bytes).map_err(|e| e.to_string())
}

/// What works, but not as well as it could.
fn shortcomings(swap: &SwapSetting, granted: Granted) -> Vec<String> {
    let mut all = Vec::new();
    if !granted.direct {
        all.push(format!(
            "the file system of {} has no direct I/O: swapped pages lie in the page cache too, outside the \
             budget",
            swap.dir.display()
        ));
    }
    if !granted.preallocated {
        all.push(format!(
            "the file system of {} cannot reserve blocks: the disk may turn out full while the program runs",
            swap.dir.display()
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_mount_of_the_device_counts_and_else_the_deepest_above_the_path() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      30 22 0:25 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw\n\
                      31 22 0:26 / /var/my\\040disk rw - btrfs /dev/vdb rw\n";
        let kind = |device: &str, path: &str| type_of_mount(mounts, device, Path::new(path));
        assert_eq!(kind("254:0", "/var/tmp").as_deref(), Some("ext4"));
        assert_eq!(kind("0:25", "/dev/shm/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("0:77", "/var/my disk/x").as_deref(), Some("btrfs"));
        assert_eq!(device_text(0xFE00), "254:0");
    }

    #[test]
    fn a_folder_in_ram_is_refused_by_name_and_auto_goes_without() {
        let mut settings = Settings::from_values(
            |option| match option.name {
                "swap" => Some("/dev/shm:16M".to_owned()),
                "memory" => Some("64M".to_owned()),
                _ => None,
            },
            || GIB,
        )
        .unwrap();
        let refused = |settings: &mut Settings, named| {
            let refusal = check(settings, named).unwrap_err();
            assert!(refusal.contains("tmpfs") && refusal.contains("--swap none"), "{refusal}");
        };
        refused(&mut settings, false);
        settings.swap.as_mut().unwrap().bytes = None;
        refused(&mut settings, true);
        let warnings = check(&mut settings, false).unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("tmpfs"), "{warnings:?}");
        assert_eq!(settings.swap, None);
    }

    #[test]
    fn a_missing_folder_is_refused() {
        let swap = SwapSetting {
            bytes: Some(16 << 20),
            dir: "/nowhere/at/all".into(),
            encryption: true,
            io: SwapIo::Auto,
            batch: 1,
        };
        assert!(granted(&swap, GIB).unwrap_err().contains("ENOENT"));
    }

    #[test]
    fn what_the_file_system_lacks_is_said() {
        let swap =
            SwapSetting { bytes: None, dir: "/d".into(), encryption: true, io: SwapIo::Auto, batch: 1 };
        let granted = Granted { unnamed: true, direct: true, preallocated: true, align: 512 };
        assert!(shortcomings(&swap, granted).is_empty());
        let poor = shortcomings(&swap, Granted { direct: false, preallocated: false, ..granted });
        assert!(poor.len() == 2 && poor[0].contains("page cache") && poor[1].contains("full"), "{poor:?}");
    }
}
