//! The swap areas of the kernel's side: zram, and a file on a disk with or without zswap before it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use weir_os::host;

use super::undo::{Undo, change, read, remember, set};
use crate::interrupt::interrupted;

const PAGE_BYTES: u64 = 4096;
/// Above every other swap area, so that the measured program uses ours.
const SWAP_PRIORITY: u16 = 32_000;
const ZSWAP: &str = "/sys/module/zswap/parameters";

/// Takes an unused zram device, or adds one, and swaps on it. Returns its folder in /sys/block.
pub fn set_up_zram(swap_bytes: u64) -> anyhow::Result<PathBuf> {
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

/// Takes zswap out of the way: a swap file alone.
pub fn disable_zswap() -> anyhow::Result<()> {
    let enabled = Path::new(ZSWAP).join("enabled");
    if enabled.exists() { change(&enabled, "N") } else { Ok(()) }
}

/// Puts zswap before the swap areas, with LZ4 where it is offered. Returns the algorithm in force.
pub fn enable_zswap() -> anyhow::Result<String> {
    let folder = Path::new(ZSWAP);
    ensure!(folder.exists(), "this kernel has no zswap");
    let compressor = folder.join("compressor");
    // Refused where the kernel has no LZ4 for it; the one in force then stays.
    let _ = change(&compressor, "lz4");
    change(&folder.join("enabled"), "Y")?;
    read(&compressor)
}

/// RAM that zswap takes now, in bytes.
pub fn zswap_bytes() -> Option<u64> {
    zswap_line(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn zswap_line(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Zswap:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Swaps on a new file in the folder. The device is said to be no spinning disk first, or the kernel would
/// take its slow path for these.
pub fn set_up_file(folder: &Path, swap_bytes: u64) -> anyhow::Result<()> {
    let device = fs::metadata(folder).with_context(|| folder.display().to_string())?.dev();
    let queue = queue_of(device).with_context(|| format!("the disk under {}", folder.display()))?;
    let path = folder.join(format!(".weir-bench-swap-{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    remember(Undo::RemoveFile(path.clone()));
    let size = swap_bytes.next_multiple_of(PAGE_BYTES);
    write_zeros(&mut file, size).with_context(|| format!("writing {}", path.display()))?;
    drop(file);
    make_swap(&path, size)?;
    change(&queue.join("rotational"), "0")?;
    host::swap_on(&path, SWAP_PRIORITY).with_context(|| format!("swapon {}", path.display()))?;
    remember(Undo::SwapOff(path));
    Ok(())
}

/// The request queue of the disk with this number, in /sys. A partition's is its disk's.
fn queue_of(device: u64) -> anyhow::Result<PathBuf> {
    let (major, minor) = numbers(device);
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let dir = fs::canonicalize(&link)
        .with_context(|| format!("{} (no single disk, or not visible here)", link.display()))?;
    let found = [Some(dir.as_path()), dir.parent()].into_iter().flatten().map(|dir| dir.join("queue"));
    found.into_iter().find(|queue| queue.exists()).context("its request queue is not visible here")
}

/// Major and minor number, as glibc packs them into a `dev_t`.
fn numbers(device: u64) -> (u64, u64) {
    let major = (device >> 8) & 0xFFF | (device >> 32) & !0xFFF;
    let minor = device & 0xFF | (device >> 12) & !0xFF;
    (major, minor & 0xFFFF_FFFF)
}

/// Blocks must be there: swap areas have no holes.
fn write_zeros(file: &mut File, bytes: u64) -> anyhow::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        if interrupted() {
            bail!("interrupted");
        }
        let part = left.min(zeros.len() as u64);
        file.write_all(&zeros[..part as usize])?;
        left -= part;
    }
    Ok(file.sync_all()?)
}

/// Fifth column of `mm_stat`: orig_data_size compr_data_size mem_used_total mem_limit mem_used_max ...
/// (Documentation/admin-guide/blockdev/zram.rst).
pub fn store_peak(mm_stat: &str) -> anyhow::Result<u64> {
    let column = mm_stat.split_whitespace().nth(4).context("mm_stat has no mem_used_max")?;
    column.parse().context("mem_used_max in mm_stat")
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

    #[test]
    fn zswaps_ram_is_read_in_bytes() {
        assert_eq!(zswap_line("MemFree: 1 kB\nZswap:             300 kB\nZswapped: 9 kB\n"), Some(300 << 10));
        assert_eq!(zswap_line("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn device_numbers_come_apart_as_they_were_put_together() {
        assert_eq!(numbers(0xFE00), (254, 0));
        assert_eq!(numbers(0x0010_0305), (3, 0x105));
    }

    #[test]
    fn zeros_fill_the_file_to_its_length() {
        let path = std::env::temp_dir().join(format!("weir-zeros-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        write_zeros(&mut file, (1 << 20) + 4096).unwrap();
        let length = fs::metadata(&path).unwrap().len();
        fs::remove_file(&path).unwrap();
        assert_eq!(length, (1 << 20) + 4096);
    }
}
