//! Errors as C programs hear of them: negative errno values, and what each means here.

use core::ffi::{CStr, c_int};
use weir::{AllocError, BuildError, MemoryError, PinError, RangeError};

/// 0, or the negative errno value.
pub fn answer(f: impl FnOnce() -> Result<(), c_int>) -> c_int {
    f().map_or_else(|errno| -errno, |()| 0)
}

/// Those of `weir_pool_new`.
pub fn of_build(e: &BuildError) -> c_int {
    match e {
        BuildError::Setting { .. } | BuildError::Unknown(_) => libc::EINVAL,
        BuildError::Userfaultfd(_) => libc::EPERM,
        BuildError::Kernel(e) => e.0,
        BuildError::Swap(_) => libc::ENOSPC,
        BuildError::Start(_) => libc::ENOMEM,
        BuildError::Signals(_) | BuildError::Thread(_) | BuildError::TooMany => libc::EAGAIN,
    }
}

/// Those of `weir_alloc` and `weir_resize`.
pub fn of_alloc(e: AllocError) -> c_int {
    match e {
        AllocError::Empty => libc::EINVAL,
        AllocError::Overflow => libc::EOVERFLOW,
        AllocError::Full => libc::ENOSPC,
        AllocError::AddressSpace | AllocError::Tables | AllocError::Limit => libc::ENOMEM,
        AllocError::Pinned => libc::EBUSY,
        AllocError::Forked => libc::ECHILD,
        AllocError::Kernel(e) => e.0,
    }
}

/// Those of `weir_advise`.
pub fn of_range(e: RangeError) -> c_int {
    match e {
        RangeError::Outside { .. } => libc::EINVAL,
        RangeError::Pinned => libc::EBUSY,
        RangeError::Forked => libc::ECHILD,
        RangeError::Kernel(e) => e.0,
    }
}

/// Those of `weir_pin`.
pub fn of_pin(e: &PinError) -> c_int {
    match e {
        PinError::Range(e) => of_range(*e),
        PinError::Full { .. } => libc::ENOBUFS,
        PinError::NoRoom(_) => libc::ENOSPC,
        PinError::Damaged => libc::EIO,
        PinError::Kernel(_) => libc::EAGAIN,
    }
}

/// Those of `weir_pool_set_memory`.
pub fn of_memory(e: &MemoryError) -> c_int {
    match e {
        MemoryError::Size { .. } | MemoryError::Bounds { .. } => libc::EINVAL,
        MemoryError::Pinned { .. } => libc::EBUSY,
        MemoryError::Full(_) => libc::ENOSPC,
        MemoryError::Forked => libc::ECHILD,
    }
}

/// What an answer means.
pub fn text_of(error: c_int) -> &'static CStr {
    match error.checked_abs().unwrap_or(0) {
        0 => c"no error",
        libc::EINVAL => c"an argument is NULL, no value that is taken, or no range of the pool's memory",
        libc::EPERM => {
            c"userfaultfd is not permitted (/dev/userfaultfd, vm.unprivileged_userfaultfd=1, CAP_SYS_PTRACE)"
        }
        libc::ENOSPC => c"the pool is full, or would be, or its swap file cannot be had",
        libc::ENOMEM => c"no addresses or no memory of this length",
        libc::EAGAIN => c"no more threads, pools, or locked pages (RLIMIT_MEMLOCK) for this process",
        libc::EOVERFLOW => c"the length overflows",
        libc::ENOSYS => c"the kernel has no userfaultfd that can serve a pool (Linux 5.7)",
        libc::EMFILE => c"no descriptor is free",
        libc::EIO => c"a page cannot be brought in: it is damaged",
        libc::ENOBUFS => c"more than half of the pool's pages would be pinned",
        libc::EBUSY => c"memory is still in use or pinned",
        libc::ECHILD => c"the pool belongs to the process that this one was forked from",
        _ => c"the kernel refused",
    }
}
