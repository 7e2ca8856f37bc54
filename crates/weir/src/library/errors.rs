//! What can go wrong with a pool, a type for each kind of request.

use crate::engine::spaces::POOLS_MAX;
use crate::error::{StartError, SwapFileError};
use weir_os::sys::Errno;

/// Why there is no pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A setting has a value that it does not take.
    #[error("{name} cannot be '{value}': {reason}")]
    Setting {
        /// The setting: `memory`, `swap`, or what [`Builder::set`](super::Builder::set) was given.
        name: String,
        /// Its value as it was given.
        value: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// There is no such setting, or it has no meaning for a pool.
    #[error("a pool has no setting '{0}'")]
    Unknown(String),
    /// The kernel does not let this process open a userfaultfd that serves a handler thread.
    #[error(
        "userfaultfd is not permitted here: {0}. One of these is needed: access to /dev/userfaultfd (a group \
         is enough), `sysctl vm.unprivileged_userfaultfd=1`, or CAP_SYS_PTRACE. Faults that are \
         resolved inline need none of these"
    )]
    Userfaultfd(Errno),
    /// The kernel cannot serve a pool as it was asked for.
    #[error("the kernel cannot serve faults so: {0}{help}", help = help_with(.0))]
    Kernel(Errno),
    /// The swap file that was asked for.
    #[error("the swap file cannot be had: {0}")]
    Swap(SwapFileError),
    /// Everything else: address space, memory for tables.
    #[error("{0}")]
    Start(StartError),
    /// SIGBUS cannot be had for faults that are resolved inline, or too many pools have it.
    #[error("SIGBUS cannot be had for inline faults: {0}")]
    Signals(Errno),
    /// So many pools as a process may have at once are there, those that it was forked with included.
    #[error("a process may have {} pools at once, those that it was forked with included", POOLS_MAX)]
    TooMany,
    /// The process may have no more threads.
    #[error("a thread of the pool cannot be started: {0}")]
    Thread(Errno),
}

/// What helps where userfaultfd fails for another reason than permission.
fn help_with(errno: &Errno) -> &'static str {
    match *errno {
        Errno::ENOSYS => {
            " (userfaultfd takes Linux 5.7, inline faults 5.11, the pager `move` 6.8, and a kernel \
             that is built with it)"
        }
        Errno::EMFILE | Errno::ENFILE => " (no descriptor is free: RLIMIT_NOFILE, fs.file-max)",
        _ => "",
    }
}

impl From<StartError> for BuildError {
    fn from(error: StartError) -> BuildError {
        match error {
            StartError::Userfaultfd(errno @ (Errno::EPERM | Errno::EACCES)) => BuildError::Userfaultfd(errno),
            StartError::Userfaultfd(errno) => BuildError::Kernel(errno),
            StartError::Swap(why) => BuildError::Swap(why),
            other => BuildError::Start(other),
        }
    }
}

/// Why there is no region, or why it cannot become larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// No bytes were asked for.
    #[error("a region has at least one byte")]
    Empty,
    /// More bytes, or more elements, than an address can tell apart.
    #[error("the length overflows")]
    Overflow,
    /// RAM, compressed pool and swap file are full: nothing new is given, so that what is there can be kept.
    #[error("the pool is full: RAM, compressed pages and swap file")]
    Full,
    /// No range of the pool's addresses is long enough.
    #[error("the pool has no range of addresses of this length")]
    AddressSpace,
    /// Tables of 64 bytes for each 256 KiB would take more than an eighth of the budget, or with all others
    /// more than half.
    #[error("tables for so many addresses would take too much of the budget: some 500 budgets can be had")]
    Tables,
    /// The process may not have so many addresses.
    #[error("the process may not have so many addresses (RLIMIT_AS)")]
    Limit,
    /// Some of the region is pinned: it cannot change its length.
    #[error("the region is pinned")]
    Pinned,
    /// The process is a child of the one that made the pool. The pool's memory stays with the parent.
    #[error("the pool belongs to the process that this one was forked from")]
    Forked,
    /// The kernel refused.
    #[error("the kernel refused: {0}")]
    Kernel(Errno),
}

/// Why a range of a region is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It ends behind the region's end, or before its own start.
    #[error("bytes {start} to {end} are not within a region of {len} bytes")]
    Outside {
        /// First byte of the range.
        start: usize,
        /// The byte behind its last.
        end: usize,
        /// Bytes of the region.
        len: usize,
    },
    /// Some of it is pinned: its bytes cannot be given up.
    #[error("some of the range is pinned")]
    Pinned,
    /// The process is a child of the one that made the pool.
    #[error("the pool belongs to the process that this one was forked from")]
    Forked,
    /// The kernel refused.
    #[error("the kernel refused: {0}")]
    Kernel(Errno),
}

/// Why a range is not pinned. Nothing is pinned then that was not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The range itself.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Half of the budget's RAM may be pinned, and less than was asked for is left of that.
    #[error("{wanted} bytes cannot be pinned: {free} bytes are free for that")]
    Full {
        /// Bytes of whole pages that were asked for and are not pinned yet.
        wanted: u64,
        /// Bytes that can be pinned now.
        free: u64,
    },
    /// It may be pinned, but the pool could not bring all of it in: everything is full.
    #[error("no room could be made for {0} bytes that are to be pinned")]
    NoRoom(u64),
    /// A page of it cannot be brought in: its bytes are not as they were written.
    #[error("a page cannot be brought in: it is damaged")]
    Damaged,
    /// The kernel does not lock so much for this process.
    #[error("the kernel refused to lock the pages: {0} (RLIMIT_MEMLOCK)")]
    Kernel(Errno),
}

/// Why a file does not come into memory, or does not get it back.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// The range that was to be written back.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The file itself cannot be read, or not be written.
    #[error("the file: {0}")]
    File(#[from] std::io::Error),
}

/// Why the budget stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// It is no size.
    #[error("'{value}' is no size: {reason}")]
    Size {
        /// The text as it was given.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It is outside of what the pool was built for.
    #[error("{bytes} bytes are not within {min} and {max} bytes")]
    Bounds {
        /// What was asked for.
        bytes: u64,
        /// The least budget of any pool.
        min: u64,
        /// What the pool was built with.
        max: u64,
    },
    /// More than half of it would be pinned.
    #[error("{pinned} bytes are pinned: of so little memory {free} bytes can be")]
    Pinned {
        /// Bytes of the pages that are pinned.
        pinned: u64,
        /// Bytes that could be pinned with the budget that was asked for.
        free: u64,
    },
    /// What the pool holds would fit neither into so little RAM, compressed, nor into the swap file.
    #[error("the pool holds more than {0} bytes of memory and its swap file can take")]
    Full(u64),
    /// The process is a child of the one that made the pool.
    #[error("the pool belongs to the process that this one was forked from")]
    Forked,
}
