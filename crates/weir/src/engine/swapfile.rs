//! The swap file of an engine: its size, its place, and what stands between it and the tier.

use crate::config::{Policy, SWAP_BYTES_MIN, SwapIo, SwapSetting};
use crate::error::SwapFileError;
use crate::shared::swapping::Swapping;
use crate::tier::swap::{CLUSTER_BYTES, Swap, SwapEncryption, SwapSettings};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use weir_os::fileio::{Backend, FileIo};
use weir_os::swapfile::{OpenError, Space, SwapFile, space};

/// A file that sizes itself takes at most so many times the budget (what a program can work on at a bearable
/// speed), and one part in this of what is free, of which a part of the whole disk is left alone: others need
/// room too.
const AUTO_PER_BUDGET: u64 = 8;
const AUTO_SHARE: u64 = 2;
const AUTO_LEAVES: u64 = 10;

/// Bytes of a swap file that sizes itself, in whole clusters, where files may have `limit` bytes
/// (RLIMIT_FSIZE). An error where that is too little to be of use: what it is that allows no more.
pub fn auto_bytes(space: Space, budget: u64, limit: u64) -> Result<u64, SwapFileError> {
    let free = space.free.saturating_sub(space.total / AUTO_LEAVES);
    let wanted = (free / AUTO_SHARE).min(budget.saturating_mul(AUTO_PER_BUDGET));
    let bytes = wanted.min(limit) / CLUSTER_BYTES * CLUSTER_BYTES;
    match bytes {
        SWAP_BYTES_MIN.. => Ok(bytes),
        _ if wanted >= SWAP_BYTES_MIN => Err(OpenError::TooLarge(limit).into()),
        _ => Err(SwapFileError::TooLittle(space.free)),
    }
}

/// Makes the swap file that the setting asks for; one of a size that was named has all its blocks from the
/// start.
pub fn open(setting: &SwapSetting, policy: Policy, budget: u64) -> Result<Swapping<FileIo>, SwapFileError> {
    let dir = CString::new(setting.dir.as_os_str().as_bytes()).map_err(|_| SwapFileError::Name)?;
    let (bytes, file, blocks_later) = match setting.bytes {
        // Whoever named a size wants to have it.
        Some(bytes) => (bytes, SwapFile::open(&dir, bytes & !(CLUSTER_BYTES - 1))?, false),
        // Most programs need none: the disk's space is taken when the first page goes there.
        None => {
            let space = space(&dir).map_err(OpenError::Folder)?;
            let bytes = auto_bytes(space, budget, weir_os::sys::file_size_limit())?;
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
        let auto = |free, total, budget| auto_bytes(Space { free, total }, budget, u64::MAX);
        assert_eq!(auto(10 * GIB, 20 * GIB, GIB), Ok(4 * GIB));
        assert_eq!(auto(100 * GIB, 100 * GIB, GIB), Ok(8 * GIB));
        assert_eq!(auto(100 * GIB, 200 * GIB, u64::MAX), Ok(40 * GIB));
        let too_little = |free| Err(SwapFileError::TooLittle(free));
        assert_eq!(auto(10 * GIB, 100 * GIB, GIB), too_little(10 * GIB), "the last tenth is not ours");
        assert_eq!(auto(17 << 20, 0, GIB), Ok(8 << 20), "whole clusters");
        assert_eq!(auto(15 << 20, 0, GIB), too_little(15 << 20), "too little to be of use");
    }

    #[test]
    fn the_limit_on_file_sizes_is_named_where_it_is_what_stands_in_the_way() {
        let space = Space { free: 100 * GIB, total: 100 * GIB };
        assert_eq!(auto_bytes(space, GIB, 64 << 20), Ok(64 << 20));
        let error = auto_bytes(space, GIB, 1_024_000).unwrap_err();
        assert_eq!(error, SwapFileError::File(OpenError::TooLarge(1_024_000)));
        assert!(error.to_string().contains("1024000 bytes at most (RLIMIT_FSIZE)"), "{error}");
        assert_eq!(
            auto_bytes(Space { free: 5, total: 0 }, GIB, 1_024_000),
            Err(SwapFileError::TooLittle(5)),
            "without the limit there would be none either"
        );
    }
}
