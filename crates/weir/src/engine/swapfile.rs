//! The swap file of an engine: its size, its place, and what stands between it and the tier.

use crate::config::{Policy, SWAP_BYTES_MIN, SwapIo, SwapSetting};
use crate::error::SwapFileError;
use crate::shared::swapping::Swapping;
use crate::tier::swap::{CLUSTER_BYTES, Swap, SwapEncryption, SwapSettings};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use weir_os::fileio::{Backend, FileIo};
use weir_os::swapfile::{OpenError, Space, SwapFile, space};

/// A file that sizes itself takes at most so many times the budget (what a program can work on at a bearable speed), and
/// one part in this of what is free, of which a part of the whole disk is left alone: others need room too.
const AUTO_PER_BUDGET: u64 = 8;
const AUTO_SHARE: u64 = 2;
const AUTO_LEAVES: u64 = 10;

/// Bytes of a swap file that sizes itself, in whole clusters; `None` where that is too little to be of use.
pub fn auto_bytes(space: Space, budget: u64) -> Option<u64> {
    let free = space.free.saturating_sub(space.total / AUTO_LEAVES);
    let most = budget.saturating_mul(AUTO_PER_BUDGET).min(weir_os::sys::file_size_limit());
    let bytes = (free / AUTO_SHARE).min(most) / CLUSTER_BYTES * CLUSTER_BYTES;
    (bytes >= SWAP_BYTES_MIN).then_some(bytes)
}

/// Makes the swap file that the setting asks for; one of a size that was named has all its blocks from the start.
pub fn open(setting: &SwapSetting, policy: Policy, budget: u64) -> Result<Swapping<FileIo>, SwapFileError> {
    let dir = CString::new(setting.dir.as_os_str().as_bytes()).map_err(|_| SwapFileError::Name)?;
    let (bytes, file, blocks_later) = match setting.bytes {
        // Whoever named a size wants to have it.
        Some(bytes) => (bytes, SwapFile::open(&dir, bytes & !(CLUSTER_BYTES - 1))?, false),
        // Most programs need none: the disk's space is taken when the first page goes there.
        None => {
            let space = space(&dir).map_err(OpenError::Folder)?;
            let bytes = auto_bytes(space, budget).ok_or(SwapFileError::TooLittle(space.free))?;
            (bytes, SwapFile::open_empty(&dir, bytes, space.total / AUTO_LEAVES)?, true)
        }
    };
    let backend = if setting.io == SwapIo::Threads { Backend::Plain } else { Backend::Uring };
    let io = FileIo::new(file, backend);
    let encryption = if setting.encryption { SwapEncryption::Aead } else { SwapEncryption::None };
    let tier = Swap::new(io, bytes, SwapSettings { blocks_later, ..SwapSettings::default() }, encryption)?;
    Ok(Swapping::new(tier, policy, setting.batch)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_file_takes_half_of_what_is_free_eight_budgets_at_most_and_leaves_a_tenth_of_the_disk() {
        let space = |free, total| Space { free, total };
        assert_eq!(auto_bytes(space(10 * GIB, 20 * GIB), GIB), Some(4 * GIB));
        assert_eq!(auto_bytes(space(100 * GIB, 100 * GIB), GIB), Some(8 * GIB));
        assert_eq!(auto_bytes(space(100 * GIB, 200 * GIB), u64::MAX), Some(40 * GIB));
        assert_eq!(auto_bytes(space(10 * GIB, 100 * GIB), GIB), None, "the last tenth is not ours");
        assert_eq!(auto_bytes(space(17 << 20, 0), GIB), Some(8 << 20), "whole clusters");
        assert_eq!(auto_bytes(space(15 << 20, 0), GIB), None, "too little to be of use");
    }
}
