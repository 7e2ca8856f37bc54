//! Typed errors. Engine errors are `Copy`: no allocation on the way out.

use weir_os::swapfile::OpenError;
use weir_os::sys::Errno;
use weir_os::tree::TreeError;

/// Why the engine did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The budget is below [`crate::limits::BUDGET_BYTES_MIN`].
    #[error(
        "the budget of {0} bytes is below the minimum of {min} bytes",
        min = crate::limits::BUDGET_BYTES_MIN
    )]
    BudgetTooSmall(u64),
    /// userfaultfd cannot be opened.
    #[error("userfaultfd cannot be opened: {0}")]
    Userfaultfd(Errno),
    /// The pager that needs no userfaultfd.
    #[error("pages cannot be kept by guard regions: {0}{need}", need = guards_need(*.0))]
    Guards(Errno),
    /// The system-call gate, without which faults cannot be resolved inline.
    #[error("inline faults are not possible: {0}")]
    Inline(GateError),
    /// Address space for the managed range or the arena cannot be reserved.
    #[error("cannot reserve address space: {0} (check RLIMIT_AS and vm.overcommit_memory)")]
    AddressSpace(Errno),
    /// The swap file that was asked for.
    #[error("the swap file cannot be had: {0} (give another folder with --swap-dir, or --swap none)")]
    Swap(SwapFileError),
    /// The table of the tree.
    #[error(
        "the budget cannot be shared with the other processes: {0} (--budget-per process does not share it)"
    )]
    Tree(TreeError),
    /// The budget is too small for so many processes.
    #[error(
        "{0} processes share the budget of {1} bytes, which is less than {min} bytes each",
        min = crate::limits::BUDGET_BYTES_MIN
    )]
    TreeFull(u32, u64),
    /// Tables or threads cannot be made.
    #[error("cannot allocate the engine's own memory: {0}")]
    Memory(Errno),
}

/// What the pager without userfaultfd lacks, where the error tells.
fn guards_need(e: Errno) -> &'static str {
    match e {
        Errno::EOPNOTSUPP => " (that takes Linux 6.13 or newer)",
        Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => " (/proc/self/mem must be there to be opened)",
        Errno::EMFILE | Errno::ENFILE => " (no descriptor is left: check RLIMIT_NOFILE)",
        _ => "",
    }
}

/// Why there is no swap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapFileError {
    /// The folder, or the file in it.
    #[error("{0}")]
    File(#[from] OpenError),
    /// The tier over it.
    #[error("{0}")]
    Tier(#[from] SwapError),
    /// The folder's name has a NUL in it.
    #[error("the folder's name has a NUL byte in it")]
    Name,
    /// So few bytes are free on the disk that a file of a safe size would be of no use.
    #[error("only {0} bytes are free there")]
    TooLittle(u64),
}

/// Why inline mode cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The place for the stubs.
    #[error("the system-call gate needs executable memory at a fixed address: {0}")]
    Stubs(Errno),
    /// SIGBUS and SIGSYS, or SIGSEGV.
    #[error("SIGBUS, SIGSYS and SIGSEGV cannot be taken over")]
    Signals,
    /// The filter was refused.
    #[error("the seccomp filter of the system-call gate cannot be installed: {0}")]
    Filter(Errno),
}

/// Why a request of the program failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Budget and pool are full: nothing new is taken so that all that was written can be kept.
    #[error("budget and pool are full")]
    Full,
    /// No address range is large enough.
    #[error("out of managed address space")]
    NoSpace,
    /// The range is not wholly managed memory.
    #[error("not managed memory")]
    NotManaged,
    /// The kernel refused.
    #[error("{0}")]
    Kernel(Errno),
}

/// Why the swap tier could not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// No cluster or no slot is free, or the disk cannot give a punched cluster's space back. Frees help.
    #[error("the swap file is full")]
    Full,
    /// This write failed for good. From now on all writes fail; what was written before can be read.
    #[error("writing to the swap file failed: {0}")]
    Write(Errno),
    /// An earlier write failed with this error, so nothing is written any more.
    #[error("the swap file takes no more pages since a write failed: {0}")]
    Latched(Errno),
    /// The device did not give the bytes.
    #[error("reading from the swap file failed: {0}")]
    Read(Errno),
    /// What the device gave is not what was written for this page.
    #[error("the swap file gave back other bytes than were written")]
    Damaged,
    /// The tables cannot be made.
    #[error("cannot allocate the swap tier's own memory: {0}")]
    Memory(Errno),
    /// The size or a setting is out of bounds.
    #[error("the swap file is smaller than one cluster, or larger than slots can name")]
    Size,
}
