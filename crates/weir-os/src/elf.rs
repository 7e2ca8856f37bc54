//! What an ELF file says about itself in the names of its sections, by raw system calls and without memory of
//! its own: for the constructor of the shim, and for the command.

use crate::sys::{self, Errno, syscall};

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
/// Sections and bytes of their names that are looked at; programs have some dozens.
const SECTIONS_MAX: usize = 128;
const NAMES_MAX: usize = 4096;

fn read_at(fd: i32, to: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the kernel writes into the live slice.
    unsafe {
        syscall(libc::SYS_pread64, [fd as usize, to.as_mut_ptr() as usize, to.len(), offset as usize, 0, 0])
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Calls `f` with name, place in the file and length of each section; ends when it says `false`.
pub fn each_section(fd: i32, mut f: impl FnMut(&[u8], u64, u64) -> bool) {
    let mut header = [0u8; HEADER_BYTES];
    let whole = read_at(fd, &mut header, 0) == Ok(HEADER_BYTES);
    if !whole || !header.starts_with(b"\x7fELF\x02\x01") || number(&header, 58, 2) != SECTION_BYTES as u64 {
        return;
    }
    let (table, count) = (number(&header, 40, 8), (number(&header, 60, 2) as usize).min(SECTIONS_MAX));
    let section = |index: usize| {
        let mut one = [0u8; SECTION_BYTES];
        let offset = table.saturating_add((index * SECTION_BYTES) as u64);
        (read_at(fd, &mut one, offset) == Ok(SECTION_BYTES)).then_some(one)
    };
    let place = |one: &[u8; SECTION_BYTES]| (number(one, 24, 8), number(one, 32, 8));
    let mut names = [0u8; NAMES_MAX];
    let Some(strings) = section(number(&header, 62, 2) as usize) else { return };
    let (offset, len) = place(&strings);
    let known = (len as usize).min(NAMES_MAX);
    let Ok(known) = read_at(fd, &mut names[..known], offset) else { return };
    for one in (0..count).map_while(section) {
        let name = names[..known].get(number(&one, 0, 4) as usize..).unwrap_or_default();
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let (offset, len) = place(&one);
        if !f(name, offset, len) {
            return;
        }
    }
}

/// Whether a program was built by Go's tools: they leave a description of what went into it, which stripping
/// keeps.
pub fn is_go(fd: i32) -> bool {
    let mut found = false;
    each_section(fd, |name, _, _| {
        found |= matches!(name, b".go.buildinfo" | b".note.go.buildid");
        !found
    });
    found
}

/// Opens the file of the running program; `None` when it may not be read.
pub fn open_self() -> Option<i32> {
    let (path, flags) = (c"/proc/self/exe".as_ptr() as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize);
    // SAFETY: a NUL-terminated path.
    unsafe {
        syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]).ok().map(|fd| fd as i32)
    }
}

/// As [`is_go`] for the running program.
pub fn runs_go() -> bool {
    let Some(fd) = open_self() else { return false };
    let go = is_go(fd);
    sys::close(fd);
    go
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_their_names_and_this_program_is_not_go() {
        let fd = open_self().unwrap();
        let mut some = [false; 2];
        each_section(fd, |name, offset, len| {
            some[0] |= name == b".text" && offset > 0 && len > 0;
            some[1] |= name == b".dynstr";
            true
        });
        assert_eq!(some, [true; 2]);
        assert!(!is_go(fd));
        sys::close(fd);
        assert!(!is_go(fd), "a closed descriptor");
    }
}
