//! The swap file of an engine: its size, its place, and what stands between it and the tier.

use crate::config::{Policy, SWAP_BYTES_MIN, SwapIo, SwapSetting};
use crate::error::SwapFileError;
use crate::shared::swapping::Swapping;
use crate::tier::swap::{CLUSTER_BYTES, Swap, SwapEncryption, SwapSettings};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use weir_os::fileio::{Backend, FileIo};
use weir_os::swapfile::{OpenError, SwapFile, free_bytes};

/// A file that sizes itself takes at most so many times the budget, and one part in this of what is free.
const AUTO_PER_BUDGET: u64 = 8;
const AUTO_SHARE: u64 = 2;

/// Makes the swap file that the setting asks for, with all its blocks.
pub fn open(setting: &SwapSetting, policy: Policy, budget: u64) -> Result<Swapping<FileIo>, SwapFileError> {
    let dir = CString::new(setting.dir.as_os_str().as_bytes()).map_err(|_| SwapFileError::Name)?;
    let bytes = match setting.bytes {
        Some(bytes) => bytes,
        None => safe_bytes(&dir, budget)?,
    };
    let file = SwapFile::open(&dir, bytes & !(CLUSTER_BYTES - 1))?;
    let backend = if setting.io == SwapIo::Threads { Backend::Plain } else { Backend::Uring };
    let io = FileIo::new(file, backend);
    let encryption = if setting.encryption { SwapEncryption::Aead } else { SwapEncryption::None };
    let tier = Swap::new(io, bytes, SwapSettings::default(), encryption)?;
    Ok(Swapping::new(tier, policy, setting.batch)?)
}

/// What fits safely on the disk: half of what is free, and no more than the program is likely to need.
fn safe_bytes(dir: &CStr, budget: u64) -> Result<u64, SwapFileError> {
    let free = free_bytes(dir).map_err(OpenError::Folder)?;
    let bytes =
        (free / AUTO_SHARE).min(budget.saturating_mul(AUTO_PER_BUDGET)).min(weir_os::sys::file_size_limit());
    if bytes < SWAP_BYTES_MIN { Err(SwapFileError::TooLittle(free)) } else { Ok(bytes) }
}
