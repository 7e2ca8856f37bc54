//! The page of values that a process shows while it runs: how it is written, and how it is read.
//!
//! It lies in a memory file without a name. The kernel takes that away with the process, however it ends, so
//! none is ever stale, and nothing is left behind. Others find it among the process's descriptors
//! (`/proc/PID/fd`), which the kernel shows to its user and to root, and read it without a system call or a
//! lock of the process's.
//!
//! Words of 64 bits: the head, then the values; behind them a text, a line for the title and one for the name
//! of each value. A sequence number is odd while the values are written.

use crate::mem::{Mapping, PROT_RW, advise, round_up_page};
use crate::sys::{self, Errno, syscall};
use crate::{fds, thread};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What the link to it says in `/proc/PID/fd`.
pub const LINK: &str = "/memfd:weir-live (deleted)";
const NAME: &CStr = c"weir-live";

const MAGIC: u64 = u64::from_ne_bytes(*b"weirlive");
/// Of what the words mean; values may come and go, since they have names.
const VERSION: u64 = 1;

/// Words of the head. `PID`: as the process itself sees it; a child may have inherited the descriptor.
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 1;
const PID_AT: usize = 2;
const SINCE_AT: usize = 3;
const VALUES_AT: usize = 4;
const TEXT_BYTES_AT: usize = 5;
const SEQUENCE_AT: usize = 6;
const WRITTEN_AT: usize = 7;
/// What another process asks for; 0: nothing.
const ASKED_AT: usize = 8;
const HEAD: usize = 9;
const WORD: usize = size_of::<u64>();

/// A page of the calling process. One thread writes it at a time.
#[derive(Debug)]
pub struct Page {
    map: Mapping,
    fd: i32,
    values: usize,
}

/// Who shows a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// The process's id, as it sees it.
    pub pid: u32,
    /// What it runs.
    pub title: &'a str,
    /// When that began.
    pub since_ns: u64,
}

impl Page {
    /// A page whose values are still 0; `each` tells their names.
    pub fn new(owner: Owner<'_>, each: impl Fn(&mut dyn FnMut(&str))) -> Result<Page, Errno> {
        let (mut values, mut text_bytes) = (0, owner.title.len() + 1);
        each(&mut |name| {
            values += 1;
            text_bytes += name.len() + 1;
        });
        let len = round_up_page((HEAD + values) * WORD + text_bytes);
        let fd = fds::keep(create(len)?);
        let page = match map(fd, len) {
            Ok(map) => Page { map, fd, values },
            Err(e) => {
                fds::close(fd);
                return Err(e);
            }
        };
        let mut at = page.map.base() + (HEAD + values) * WORD;
        let mut line = |text: &str| {
            for byte in text.bytes().chain([b'\n']) {
                // SAFETY: within the fresh mapping, whose length was worked out from the same lines.
                unsafe { (at as *mut u8).write(byte) };
                at += 1;
            }
        };
        line(owner.title);
        each(&mut line);
        let head = [
            (VERSION_AT, VERSION),
            (PID_AT, owner.pid.into()),
            (SINCE_AT, owner.since_ns),
            (VALUES_AT, values as u64),
            (TEXT_BYTES_AT, text_bytes as u64),
            (SEQUENCE_AT, 1), // there is nothing to read yet
        ];
        head.iter().for_each(|(at, value)| page.word(*at).store(*value, Ordering::Relaxed));
        page.word(MAGIC_AT).store(MAGIC, Ordering::Release);
        Ok(page)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < HEAD + self.values);
        // SAFETY: within the mapping, aligned, and never accessed otherwise.
        unsafe { &*((self.map.base() + at * WORD) as *const AtomicU64) }
    }

    /// Writes the values, in the order of their names.
    pub fn write(&self, each: impl FnOnce(&mut dyn FnMut(u64))) {
        let writing = self.word(SEQUENCE_AT).load(Ordering::Relaxed) | 1;
        self.word(SEQUENCE_AT).store(writing, Ordering::Relaxed);
        fence(Ordering::Release);
        let mut at = HEAD;
        each(&mut |value| {
            if at < HEAD + self.values {
                self.word(at).store(value, Ordering::Relaxed);
                at += 1;
            }
        });
        self.word(WRITTEN_AT).store(thread::now_ns(), Ordering::Relaxed);
        self.word(SEQUENCE_AT).store(writing + 1, Ordering::Release);
    }

    /// What somebody has asked for since the last time, if anybody has.
    pub fn asked(&self) -> Option<u64> {
        let asked = self.word(ASKED_AT);
        let any = asked.load(Ordering::Relaxed) != 0;
        any.then(|| asked.swap(0, Ordering::Acquire)).filter(|what| *what != 0)
    }

    /// In the child of a fork, which does not have the mapping: closes its copy of the descriptor.
    pub fn abandon(self) {
        fds::close(self.fd);
        core::mem::forget(self.map);
    }
}

/// What marks a page: nobody can change its length any more.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A memory file that nobody can make shorter: its owner would fault.
fn create(len: usize) -> Result<i32, Errno> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a NUL; the other calls take no pointers.
    unsafe {
        let fd = syscall(libc::SYS_memfd_create, [NAME.as_ptr() as usize, flags as usize, 0, 0, 0, 0])?;
        let sized = syscall(libc::SYS_ftruncate, [fd, len, 0, 0, 0, 0]).and_then(|_| {
            syscall(libc::SYS_fcntl, [fd, libc::F_ADD_SEALS as usize, SEALS as usize, 0, 0, 0])
        });
        sized.map(|_| fd as i32).inspect_err(|_| sys::close(fd as i32))
    }
}

fn map(fd: i32, len: usize) -> Result<Mapping, Errno> {
    let (prot, kind) = (PROT_RW as usize, libc::MAP_SHARED as usize);
    // SAFETY: a new mapping at a free place, of this value's own. A child must not write to it.
    unsafe {
        let base = syscall(libc::SYS_mmap, [0, len, prot, kind, fd as usize, 0])?;
        let map = Mapping::from_raw(base, len);
        advise(base, len, libc::MADV_DONTFORK)?;
        advise(base, len, libc::MADV_DONTDUMP)?;
        Ok(map)
    }
}

/// Why a page cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is no page, or half of one.
    Damaged,
    /// Another version of Weir wrote it, with this number for it.
    Version(u64),
    /// It is being written, or was meanwhile: once more.
    Changing,
}

/// A page as somebody reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Who wrote it.
    pub owner: Owner<'a>,
    /// When the values were written.
    pub written_ns: u64,
    /// Names and values.
    pub values: Vec<(&'a str, u64)>,
}

/// Bytes of a page from which on [`sequence`] can be told.
pub const HEAD_BYTES: usize = HEAD * WORD;

/// The number that changes whenever the values do.
pub fn sequence(head: &[u8]) -> Result<u64, Unreadable> {
    if word_of(head, MAGIC_AT)? != MAGIC {
        return Err(Unreadable::Damaged);
    }
    match word_of(head, VERSION_AT)? {
        VERSION => word_of(head, SEQUENCE_AT),
        other => Err(Unreadable::Version(other)),
    }
}

/// Where a page has what is asked for: from this byte on, in the order of the machine.
pub const ASKED_BYTE: u64 = (ASKED_AT * WORD) as u64;

/// Opens what a link of `/proc/PID/fd` names, if it is a page. The process may have put anything else there
/// meanwhile, which somebody with more rights must not write to, nor wait for: so the file is looked at
/// before it is opened. Errors: those of `open`, and `NotFound` for anything else than a page.
pub fn open(link: &Path, write: bool) -> io::Result<File> {
    let seen = File::options().read(true).custom_flags(libc::O_PATH).open(link)?;
    let about = seen.metadata()?;
    let other = || io::Error::from(io::ErrorKind::NotFound);
    if !about.is_file() || about.nlink() > 0 {
        return Err(other());
    }
    let file = File::options().read(true).write(write).open(format!("/proc/self/fd/{}", seen.as_raw_fd()))?;
    // SAFETY: takes numbers.
    let seals = unsafe {
        syscall(libc::SYS_fcntl, [file.as_raw_fd() as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0])
    };
    if seals.is_ok_and(|seals| seals & SEALS as usize == SEALS as usize) { Ok(file) } else { Err(other()) }
}

/// Who wrote the page: its process id, as the process sees it.
pub fn pid(head: &[u8]) -> Result<u32, Unreadable> {
    sequence(head)?;
    u32::try_from(word_of(head, PID_AT)?).map_err(|_| Unreadable::Damaged)
}

/// Reads the bytes of a page. The number must be the same before and after they were copied.
pub fn read(bytes: &[u8], before: u64, after: u64) -> Result<Seen<'_>, Unreadable> {
    let own = sequence(bytes)?;
    if before != after || own != after || own % 2 == 1 {
        return Err(Unreadable::Changing);
    }
    let at = |word| word_of(bytes, word);
    let count = usize::try_from(at(VALUES_AT)?).map_err(|_| Unreadable::Damaged)?;
    let text_bytes = usize::try_from(at(TEXT_BYTES_AT)?).map_err(|_| Unreadable::Damaged)?;
    let begin = count.checked_add(HEAD).and_then(|n| n.checked_mul(WORD)).ok_or(Unreadable::Damaged)?;
    let text =
        begin.checked_add(text_bytes).and_then(|end| bytes.get(begin..end)).ok_or(Unreadable::Damaged)?;
    let text = core::str::from_utf8(text).ok().and_then(|text| text.strip_suffix('\n'));
    let mut lines = text.ok_or(Unreadable::Damaged)?.split('\n');
    let title = lines.next().ok_or(Unreadable::Damaged)?;
    let pid = pid(bytes)?;
    let values =
        lines.enumerate().map(|(i, name)| Ok((name, at(HEAD + i)?))).collect::<Result<Vec<_>, _>>()?;
    if values.len() != count {
        return Err(Unreadable::Damaged);
    }
    Ok(Seen { owner: Owner { pid, title, since_ns: at(SINCE_AT)? }, written_ns: at(WRITTEN_AT)?, values })
}

fn word_of(bytes: &[u8], word: usize) -> Result<u64, Unreadable> {
    let word = bytes.get(word * WORD..).and_then(|rest| rest.first_chunk::<WORD>());
    word.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or(Unreadable::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_put_in_the_place_of_a_page_is_not_opened() {
        let folder = std::env::temp_dir().join(format!("weir-live-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        std::fs::write(&path, "of somebody").unwrap();
        let file = File::open(&path).unwrap();
        let link = std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert!(open(&link, true).is_err(), "a file with a name");
        std::fs::remove_file(&path).unwrap();
        assert!(open(&link, true).is_err(), "a file without one, and without seals");
        assert!(open(Path::new("/dev/null"), true).is_err());
        std::fs::remove_dir(&folder).unwrap();
    }
    use std::os::unix::fs::FileExt;

    const NAMES: [&str; 3] = ["pgfault", "weir_one", "weir_two"];

    fn page() -> Page {
        let owner = Owner { pid: 4711, title: "python3 job.py", since_ns: 5 };
        Page::new(owner, |name| NAMES.iter().for_each(|n| name(n))).unwrap()
    }

    fn file_of(page: &Page) -> File {
        let path = format!("/proc/self/fd/{}", page.fd);
        assert_eq!(std::fs::read_link(&path).unwrap().to_str(), Some(LINK));
        File::open(path).unwrap()
    }

    fn copy_of(file: &File) -> (Vec<u8>, u64, u64) {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        let number = || {
            let mut head = [0; HEAD_BYTES];
            file.read_exact_at(&mut head, 0).unwrap();
            sequence(&head).unwrap()
        };
        let before = number();
        file.read_exact_at(&mut bytes, 0).unwrap();
        (bytes, before, number())
    }

    #[test]
    fn what_one_process_writes_another_reads() {
        let page = page();
        page.write(|value| [7, u64::MAX, 9].into_iter().for_each(value));
        let (bytes, before, after) = copy_of(&file_of(&page));
        let seen = read(&bytes, before, after).unwrap();
        assert_eq!(seen.owner, Owner { pid: 4711, title: "python3 job.py", since_ns: 5 });
        assert_eq!(seen.values, [("pgfault", 7), ("weir_one", u64::MAX), ("weir_two", 9)]);
        assert!(seen.written_ns > 0 && seen.written_ns <= thread::now_ns());
        let fd = page.fd;
        page.abandon();
        assert!(!fds::contains(fd));
    }

    #[test]
    fn readers_never_see_values_of_two_moments_together() {
        let page = page();
        let file = file_of(&page);
        let stop = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (page, stop) = (&page, &stop);
            scope.spawn(move || {
                for n in 0.. {
                    page.write(|value| (0..3).for_each(|_| value(n)));
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let mut whole = 0;
            while whole < 1000 {
                let (bytes, before, after) = copy_of(&file);
                match read(&bytes, before, after) {
                    Ok(seen) => {
                        let first = seen.values[0].1;
                        assert!(seen.values.iter().all(|(_, value)| *value == first), "{seen:?}");
                        whole += 1;
                    }
                    Err(e) => assert_eq!(e, Unreadable::Changing),
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn pages_of_other_versions_and_halves_are_refused() {
        let page = page();
        page.write(|value| (0..3).for_each(value));
        let (bytes, before, after) = copy_of(&file_of(&page));
        assert_eq!(read(&bytes, before, before + 2), Err(Unreadable::Changing));
        let with = |word: usize, value: u64| {
            let mut other = bytes.clone();
            other[word * WORD..][..WORD].copy_from_slice(&value.to_ne_bytes());
            read(&other, before, after).map(|seen| seen.values.len())
        };
        assert_eq!(with(VERSION_AT, 9), Err(Unreadable::Version(9)));
        for (word, value) in [
            (MAGIC_AT, 1),
            (VALUES_AT, 2),
            (VALUES_AT, 4),
            (VALUES_AT, u64::MAX),
            (VALUES_AT, 1 << 61),
            (TEXT_BYTES_AT, 3),
            (TEXT_BYTES_AT, u64::MAX),
            (PID_AT, 1 << 40),
        ] {
            assert_eq!(with(word, value), Err(Unreadable::Damaged), "{word} {value}");
        }
        assert_eq!(with(SEQUENCE_AT, after + 1), Err(Unreadable::Changing));
        for len in [0, 7, 63, 64, 100] {
            assert_eq!(read(&bytes[..len], before, after), Err(Unreadable::Damaged), "{len}");
        }
    }

    #[test]
    fn what_another_process_asks_for_is_heard_once() {
        let page = page();
        assert_eq!(page.asked(), None);
        let path = format!("/proc/self/fd/{}", page.fd);
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&77u64.to_ne_bytes(), ASKED_BYTE).unwrap();
        assert_eq!((page.asked(), page.asked()), (Some(77), None));
    }

    #[test]
    fn nobody_can_make_a_page_shorter() {
        let page = page();
        let path = format!("/proc/self/fd/{}", page.fd);
        let file = File::options().write(true).open(path).unwrap();
        assert!(file.set_len(0).is_err());
        page.write(|value| (0..9).for_each(value));
    }
}
