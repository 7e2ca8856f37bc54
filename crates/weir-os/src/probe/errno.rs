//! Error numbers with their names.

use std::ffi::c_long;
use std::fmt;

/// Outcome of trying something: it works, or the kernel said why not.
pub type Tried = Result<(), Errno>;

/// A Linux error number. Prints as its name and meaning: `EPERM (Operation not permitted)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Names of the errors that the calls made by the probe can return.
const NAMES: [(i32, &str); 30] = [
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"),
    (libc::E2BIG, "E2BIG"),
    (libc::ENOEXEC, "ENOEXEC"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::ENODEV, "ENODEV"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EISDIR, "EISDIR"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENFILE, "ENFILE"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ETXTBSY, "ETXTBSY"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::EROFS, "EROFS"),
    (libc::ENAMETOOLONG, "ENAMETOOLONG"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ELOOP, "ELOOP"),
    (libc::EOVERFLOW, "EOVERFLOW"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
];

impl Errno {
    /// The error of the last failed call of this thread.
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Symbolic name, `None` for an unusual one.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(number, _)| *number == self.0).map(|(_, name)| *name)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The standard library's text ends in "(os error N)", which says nothing once the name is there.
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        let meaning = text.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{name} ({meaning})"),
            None => write!(f, "errno {} ({meaning})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

/// What a function of libc returned, or the error that it left.
pub(super) fn result_of(returned: c_long) -> Result<c_long, Errno> {
    if returned < 0 { Err(Errno::last()) } else { Ok(returned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_print_their_name_and_meaning() {
        assert_eq!(Errno(libc::EPERM).to_string(), "EPERM (Operation not permitted)");
        assert_eq!(Errno(libc::ENOSYS).name(), Some("ENOSYS"));
        assert!(Errno(libc::ESTALE).to_string().starts_with("errno 116 ("));
    }
}
