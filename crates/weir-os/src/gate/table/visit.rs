//! The decoder: reports every buffer of one call.

use super::walk::{Caller, Known, PATH_MAX, Walk};
use super::{find, multi};
use crate::sys::Errno;

/// Reports to `caller` every buffer that call `nr` with `args` reads or writes, tables included.
///
/// An error of `caller` ends the walk and is passed on. Nothing is reported for calls that must never be
/// trapped, nor for the range that a memory-management call names.
pub fn visit(nr: usize, args: &[usize; 6], caller: &mut impl Caller) -> Result<Known, Errno> {
    let Some(row) = find(nr) else { return Ok(Known::Unknown) };
    let mut walk = Walk::new(args, caller);
    if row.never {
        return Ok(Known::Yes);
    }
    let walked = walk.kinds(&row.kinds).and_then(|()| multi::decode(row.decoder, &mut walk));
    walk.end(walked)
}

/// As [`visit`] for what `execve` reads: the path, the two arrays of pointers (either may be null) and
/// their strings. `execve` is never trapped, so this is for those who interpose its libc function.
pub fn visit_exec(path: usize, argv: usize, envp: usize, caller: &mut impl Caller) -> Result<Known, Errno> {
    let mut walk = Walk::new(&[path, argv, envp, 0, 0, 0], caller);
    let walked =
        walk.string(path, PATH_MAX).and_then(|()| walk.strings(argv)).and_then(|()| walk.strings(envp));
    walk.end(walked)
}
