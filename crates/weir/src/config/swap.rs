//! The swap file in the settings: where it lies, and how large it is.

use super::size::{format_size, size_of};
use std::path::PathBuf;

/// Default folder of the swap file: on a disk where `/tmp` may be in RAM.
pub const DEFAULT_SWAP_DIR: &str = "/var/tmp";

/// Most pages, and default, of `swap-batch`.
pub const DEFAULT_SWAP_BATCH: u16 = 256;

/// Smallest swap file, in bytes: a few clusters, one of which is kept for moving records.
pub const SWAP_BYTES_MIN: u64 = 8 << 20;

/// Where pages go when the pool is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSetting {
    /// Bytes of the swap file; `None`: what fits safely on the disk.
    pub bytes: Option<u64>,
    /// The folder it lies in.
    pub dir: PathBuf,
    /// Whether its records are encrypted; otherwise they have a checksum.
    pub encryption: bool,
    /// How it is read and written.
    pub io: SwapIo,
    /// Pages written together at most, and slots reserved and given back together (64 of them at most): 1 to
    /// 256.
    pub batch: u16,
}

/// How the swap file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapIo {
    /// io_uring where the kernel allows it.
    Auto,
    /// By an io_uring.
    Uring,
    /// `pread` and `pwrite` by the thread concerned.
    Threads,
}

/// `none`, `auto`, a size, or a folder with or without one.
pub fn swap(text: &str, total_ram: &impl Fn() -> u64) -> Result<Option<SwapSetting>, String> {
    let text = text.trim();
    let setting = |dir: &str, size: &str| {
        let bytes = match size {
            "auto" => None,
            size => Some(size_of(size, total_ram)?),
        };
        if bytes.is_some_and(|n| n < SWAP_BYTES_MIN) {
            return Err(format!(
                "a swap file of {text} is too small; the least is {}",
                format_size(SWAP_BYTES_MIN)
            ));
        }
        let dir = PathBuf::from(dir);
        Ok(Some(SwapSetting { bytes, dir, encryption: true, io: SwapIo::Auto, batch: DEFAULT_SWAP_BATCH }))
    };
    match text {
        "none" => Ok(None),
        url if url.contains("://") => {
            Err("remote stores are not built yet; use a folder or 'none'".to_owned())
        }
        path if path.starts_with('/') => match path.rsplit_once(':') {
            Some((dir, size)) => setting(dir, size),
            None => setting(path, "auto"),
        },
        size => setting(DEFAULT_SWAP_DIR, size)
            .map_err(|e| format!("expected none, auto, a size or a folder: {e}")),
    }
}
