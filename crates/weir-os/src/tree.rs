//! The table of a tree of processes: what each has booked of the budget that they share.
//!
//! It lies in a file that all map, whose name is handed down in the environment. There is no lock: a process
//! writes its own row alone, and what is free follows from the rows. So a process that is killed leaves
//! nothing half done, and its row is given away once nobody has its number any more.

use crate::file::{self, ShortPath};
use crate::mem::OwnMark;
use crate::sys::{self, Errno, syscall};
use crate::thread;
use core::ffi::CStr;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::ffi::CString;

/// Words of a row: a cache line.
const ROW_WORDS: usize = 8;
/// Processes that can have a row at the same time.
pub const ROWS: usize = 511;
const WORDS: usize = (ROWS + 1) * ROW_WORDS;
const BYTES: usize = WORDS * size_of::<u64>();
/// Name and version of the format.
const MAGIC: u64 = u64::from_le_bytes(*b"weirtre1");
/// Nobody is waited for longer than a second.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE_NS: u64 = 5_000_000;
/// A row whose process is gone, and which is being emptied.
const EMPTYING: u64 = u64::MAX;

// Words of the head.
const FORMAT: usize = 0;
const BUDGET: usize = 1;
// Words of a row.
const OWNER: usize = 0;
const STARTED: usize = 1;
const NAMESPACE: usize = 2;
const BOOKED: usize = 3;
const NEEDED_NS: usize = 4;
const HUNGRY_NS: usize = 5;

/// Why a table cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// The file cannot be opened or mapped.
    File(Errno),
    /// It is another user's, or others may use it, or it is no plain file.
    Foreign,
    /// Another version of Weir made it.
    Version,
    /// Too many processes.
    Full,
}

impl From<Errno> for TreeError {
    fn from(e: Errno) -> TreeError {
        TreeError::File(e)
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::File(e) => write!(f, "{e}"),
            TreeError::Foreign => write!(f, "it belongs to another user, or others may use it"),
            TreeError::Version => write!(f, "another version of Weir made it"),
            TreeError::Full => write!(f, "{ROWS} processes have a row already"),
        }
    }
}

/// What the other processes have and want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Bytes that they have booked.
    pub booked: u64,
    /// How many there are.
    pub processes: u32,
    /// How many of them were in need lately.
    pub need: u32,
    /// One of them was hungry lately.
    pub hungry: bool,
}

/// The table, with a row of this process.
#[derive(Debug)]
pub struct Table {
    words: &'static [AtomicU64],
    path: CString,
    /// Device and inode of the file.
    file: [u64; 2],
    row: AtomicUsize,
    /// The process whose row it is.
    pid: AtomicU64,
    /// A child of a fork has no row of its own at first.
    own: OwnMark,
}

impl Table {
    /// Opens the table at `path`, or makes it, for a budget of so many bytes, and takes a row, with nothing
    /// booked. Which budget counts is the business of whoever made the table.
    pub fn join(path: &CStr, budget: u64) -> Result<Table, TreeError> {
        let Opened { words, file, lock: _lock } = open(path)?;
        let agreed = |word: &AtomicU64, value: u64| {
            word.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|other| other)
        };
        if ![0, MAGIC].contains(&agreed(&words[FORMAT], MAGIC)) {
            return Err(TreeError::Version);
        }
        agreed(&words[BUDGET], budget);
        let (row, pid, own) = (AtomicUsize::new(0), AtomicU64::new(0), OwnMark::new());
        let table = Table { words, path: path.to_owned(), file, row, pid, own };
        table.take_row()?;
        Ok(table)
    }

    /// The budget of all, bytes.
    pub fn budget(&self) -> u64 {
        self.words[BUDGET].load(Ordering::Relaxed)
    }

    /// Takes a row: the one that this process has already, from before an `exec`, or a free one.
    fn take_row(&self) -> Result<(), TreeError> {
        let (pid, started, namespace) = (sys::getpid(), own_start(), namespace());
        let is_mine = |row: &usize| {
            let word = |at| self.word(*row, at).load(Ordering::SeqCst);
            (word(OWNER), word(STARTED), word(NAMESPACE)) == (pid.into(), started, namespace)
        };
        let take = |row: &usize| {
            let owner = self.word(*row, OWNER);
            owner.compare_exchange(0, pid.into(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let mut found = (1..=ROWS).find(is_mine).or_else(|| (1..=ROWS).find(take));
        if found.is_none() && self.sweep(Look::Exact) > 0 {
            found = (1..=ROWS).find(take);
        }
        let row = found.ok_or(TreeError::Full)?;
        for (at, value) in
            [(BOOKED, 0), (NEEDED_NS, 0), (HUNGRY_NS, 0), (NAMESPACE, namespace), (STARTED, started)]
        {
            self.word(row, at).store(value, Ordering::SeqCst);
        }
        self.pid.store(pid.into(), Ordering::SeqCst);
        self.row.store(row, Ordering::SeqCst);
        Ok(())
    }

    /// Takes a row again where another process took this one's for that of a dead one, or it was given up for
    /// an `exec` that failed.
    pub fn keep_row(&self) {
        if self.row.load(Ordering::Relaxed) != 0 && self.own.is_set() && self.mine(OWNER).is_none() {
            let _ = self.take_row(); // full: the next look tries again
        }
    }

    /// In the child of a fork: takes a row of its own. `Full`: it has none, and books nothing.
    pub fn forked(&self) -> Result<(), TreeError> {
        self.row.store(0, Ordering::SeqCst);
        self.own.set();
        self.take_row()
    }

    fn word(&self, row: usize, at: usize) -> &AtomicU64 {
        &self.words[row * ROW_WORDS + at]
    }

    /// The row of this process, if it has one.
    fn mine(&self, at: usize) -> Option<&AtomicU64> {
        let row = self.row.load(Ordering::Relaxed);
        let is_own = || self.word(row, OWNER).load(Ordering::SeqCst) == self.pid.load(Ordering::Relaxed);
        (row != 0 && self.own.is_set() && is_own()).then(|| self.word(row, at))
    }

    /// What this process has booked.
    pub fn booked(&self) -> u64 {
        self.mine(BOOKED).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Books so many bytes in all, or as many of them as the others leave: what was booked already stays.
    /// Returns what is booked now. Two that book at once see each other, and at worst both get less.
    pub fn book(&self, bytes: u64) -> u64 {
        let Some(booked) = self.mine(BOOKED) else { return 0 };
        let before = booked.swap(bytes, Ordering::SeqCst);
        let left = self.budget().saturating_sub(self.others(0, 0).booked);
        let allowed = bytes.min(left.max(before));
        if allowed < bytes {
            booked.store(allowed, Ordering::SeqCst);
        }
        allowed
    }

    /// Books what there is in any case: memory that was taken without being asked for.
    pub fn note(&self, bytes: u64) {
        if let Some(booked) = self.mine(BOOKED) {
            booked.store(bytes, Ordering::SeqCst);
        }
    }

    /// Says whether this process is in need, or hungry, at this time.
    pub fn say(&self, now_ns: u64, needs: bool, hungry: bool) {
        for (at, so) in [(NEEDED_NS, needs), (HUNGRY_NS, hungry)] {
            if let Some(word) = self.mine(at) {
                word.store(if so { now_ns } else { 0 }, Ordering::Relaxed);
            }
        }
    }

    /// The others: those that were in need, or hungry, within `lately_ns` before now are counted as such.
    pub fn others(&self, now_ns: u64, lately_ns: u64) -> Others {
        let mine = if self.own.is_set() { self.row.load(Ordering::Relaxed) } else { 0 };
        let mut found = Others::default();
        for row in (1..=ROWS).filter(|row| *row != mine) {
            let word = |at| self.word(row, at).load(Ordering::SeqCst);
            if [0, EMPTYING].contains(&word(OWNER)) {
                continue;
            }
            let lately = |at| {
                let when = word(at);
                when != 0 && now_ns.saturating_sub(when) <= lately_ns
            };
            found.booked += word(BOOKED);
            found.processes += 1;
            found.need += u32::from(lately(NEEDED_NS));
            found.hungry |= lately(HUNGRY_NS);
        }
        found
    }

    /// Gives away the rows of processes that are gone. How many.
    pub fn sweep(&self, look: Look) -> usize {
        let namespace = namespace();
        (1..=ROWS).filter(|row| self.sweep_row(*row, namespace, look)).count()
    }

    fn sweep_row(&self, row: usize, own_namespace: u64, look: Look) -> bool {
        let word = |at| self.word(row, at).load(Ordering::SeqCst);
        let (owner, since, namespace) = (word(OWNER), word(STARTED), word(NAMESPACE));
        // Numbers of another namespace mean other processes.
        if owner == 0 || owner == EMPTYING || namespace != own_namespace {
            return false;
        }
        let gone = match life(owner as u32, look) {
            Life::Gone => true,
            // A row that is being taken has no start yet.
            Life::Since(start) => since != 0 && start != since,
            Life::Unknown => false,
        };
        let claim = self.word(row, OWNER);
        if !gone || claim.compare_exchange(owner, EMPTYING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        self.empty(row);
        true
    }

    fn empty(&self, row: usize) {
        for at in [STARTED, NAMESPACE, BOOKED, NEEDED_NS, HUNGRY_NS, OWNER] {
            self.word(row, at).store(0, Ordering::SeqCst);
        }
    }

    /// Gives the row up, for an `exec`. [`Table::keep_row`] takes one again.
    pub fn give_up(&self) {
        if self.mine(OWNER).is_some() {
            let row = self.row.load(Ordering::SeqCst);
            self.word(row, OWNER).store(EMPTYING, Ordering::SeqCst);
            self.empty(row);
        }
    }

    /// Gives the row back for good. The last one removes the file.
    pub fn leave(&self) {
        if self.mine(OWNER).is_none() {
            return;
        }
        // Nobody joins between the count and the end of the file.
        let lock = Lock::open(&self.path, 0).ok();
        let lock = lock.filter(|lock| lock.about().is_ok_and(|about| id(&about) == self.file));
        self.give_up();
        self.row.store(0, Ordering::SeqCst);
        self.sweep(Look::Exact);
        if lock.is_some() && self.others(0, 0).processes == 0 {
            let path = self.path.as_ptr() as usize;
            // SAFETY: a NUL-terminated path.
            let _ = unsafe { syscall(libc::SYS_unlinkat, [libc::AT_FDCWD as usize, path, 0, 0, 0, 0]) };
        }
    }
}

/// How exactly a look tells whether a process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// By its number alone, which another process may have by now. Opens no file: where the program's threads
    /// run, each file that is opened takes a number that the program may expect.
    Number,
    /// By when it began, too.
    Exact,
}

/// A file that nobody else has locked meanwhile; released when this is dropped, or the process is killed.
struct Lock(usize);

impl Lock {
    /// Opens the file, and waits until nobody has it locked; not for ever, because its owner may be stopped.
    /// `flag`: whether it is made where it is missing.
    fn open(path: &CStr, flag: i32) -> Result<Lock, Errno> {
        let flags = (flag | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC) as usize;
        // SAFETY: a NUL-terminated path.
        let fd = unsafe {
            syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0o600, 0, 0])?
        };
        let lock = Lock(fd);
        let how = (libc::LOCK_EX | libc::LOCK_NB) as usize;
        for _ in 0..LOCK_TRIES {
            // SAFETY: takes numbers.
            if unsafe { syscall(libc::SYS_flock, [fd, how, 0, 0, 0, 0]) } != Err(Errno::EAGAIN) {
                break;
            }
            let _ = thread::futex_wait(&AtomicU32::new(0), 0, Some(LOCK_PAUSE_NS));
        }
        Ok(lock)
    }

    fn about(&self) -> Result<libc::stat, Errno> {
        // SAFETY: plain data, valid when zero.
        let mut about: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: the kernel writes into the live structure.
        unsafe { syscall(libc::SYS_fstat, [self.0, &raw mut about as usize, 0, 0, 0, 0])? };
        Ok(about)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        sys::close(self.0 as i32);
    }
}

/// Device and inode.
fn id(about: &libc::stat) -> [u64; 2] {
    [about.st_dev, about.st_ino]
}

struct Opened {
    words: &'static [AtomicU64],
    file: [u64; 2],
    lock: Lock,
}

/// Opens and maps the file at the path, locked. One that the last of its processes removed meanwhile is left.
fn open(path: &CStr) -> Result<Opened, TreeError> {
    loop {
        let lock = Lock::open(path, libc::O_CREAT)?;
        let about = lock.about()?;
        if about.st_nlink == 0 {
            continue;
        }
        check(&lock, &about)?;
        let (prot, kind) = ((libc::PROT_READ | libc::PROT_WRITE) as usize, libc::MAP_SHARED as usize);
        // SAFETY: a mapping wherever the kernel likes; nothing is replaced.
        let mapped = unsafe { syscall(libc::SYS_mmap, [0, BYTES, prot, kind, lock.0, 0])? };
        // SAFETY: so many words, mapped for ever, aligned as pages are; any bytes are a valid word.
        let words = unsafe { core::slice::from_raw_parts(mapped as *const AtomicU64, WORDS) };
        return Ok(Opened { words, file: id(&about), lock });
    }
}

/// Makes an empty file as long as the table, on memory or disk that is there. Refuses one that is not this
/// user's alone, and one of another length.
fn check(lock: &Lock, about: &libc::stat) -> Result<(), TreeError> {
    // SAFETY: takes nothing.
    let user = unsafe { syscall(libc::SYS_geteuid, [0; 6])? } as u32;
    let plain = about.st_mode & libc::S_IFMT == libc::S_IFREG;
    if !plain || about.st_uid != user || about.st_mode & 0o077 != 0 {
        return Err(TreeError::Foreign);
    }
    match about.st_size {
        0 => {
            // SAFETY: takes numbers.
            unsafe { syscall(libc::SYS_fallocate, [lock.0, 0, 0, BYTES, 0, 0])? };
            Ok(())
        }
        size if size == BYTES as i64 => Ok(()),
        _ => Err(TreeError::Version),
    }
}

/// Whether files can be made in a folder.
pub fn is_usable(folder: &CStr) -> bool {
    let mode = (libc::W_OK | libc::X_OK) as usize;
    let args = [libc::AT_FDCWD as usize, folder.as_ptr() as usize, mode, 0, 0, 0];
    // SAFETY: a NUL-terminated path.
    unsafe { syscall(libc::SYS_faccessat, args) }.is_ok()
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// There is none of this number, or it has ended.
    Gone,
    /// It began then, in the kernel's ticks.
    Since(u64),
    /// It may be there: the kernel does not tell.
    Unknown,
}

fn life(pid: u32, look: Look) -> Life {
    // SAFETY: signal 0 is none.
    match unsafe { syscall(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]) } {
        Err(Errno::ESRCH) => return Life::Gone,
        _ if look == Look::Number => return Life::Unknown,
        _ => {}
    }
    let (mut path, mut room) = (ShortPath::default(), [0u8; 512]);
    if write!(path, "/proc/{pid}/stat").is_err() {
        return Life::Unknown;
    }
    match file::read_start(path.text(), &mut room) {
        Err(Errno::ENOENT | Errno::ESRCH) => Life::Gone,
        Err(_) => Life::Unknown,
        Ok(text) => life_of(text),
    }
}

/// By the text of `/proc/PID/stat`.
fn life_of(text: &[u8]) -> Life {
    // Counted behind the name, which ends with the last parenthesis.
    const STATE: usize = 0;
    const THREADS: usize = 20 - 3;
    const START: usize = 22 - 3;
    let behind = text.iter().rposition(|byte| *byte == b')').map_or(&[][..], |at| &text[at + 1..]);
    let words = || behind.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let number = |at| core::str::from_utf8(words().nth(at)?).ok()?.parse::<u64>().ok();
    // Where the first thread ended before the others the process is there.
    let ended = matches!(words().nth(STATE), Some(b"Z" | b"X")) && number(THREADS).is_some_and(|n| n <= 1);
    match number(START) {
        Some(_) if ended => Life::Gone,
        Some(start) => Life::Since(start),
        None => Life::Unknown,
    }
}

/// When this process began; 0 where the kernel does not tell.
fn own_start() -> u64 {
    if let Life::Since(start) = life(sys::getpid(), Look::Exact) { start } else { 0 }
}

/// Which numbers of processes this one sees.
fn namespace() -> u64 {
    // SAFETY: plain data, valid when zero.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    let args =
        [libc::AT_FDCWD as usize, c"/proc/self/ns/pid".as_ptr() as usize, &raw mut about as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path; the kernel writes into the live structure.
    match unsafe { syscall(libc::SYS_newfstatat, args) } {
        Ok(_) => about.st_ino,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    const MIB: u64 = 1 << 20;

    fn fresh(name: &str) -> (CString, PathBuf) {
        let path = std::env::temp_dir().join(format!("weir-tree-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        (CString::new(path.to_str().unwrap()).unwrap(), path)
    }

    /// When a process began.
    fn started(pid: u32) -> u64 {
        if let Life::Since(start) = life(pid, Look::Exact) { start } else { 0 }
    }

    /// A row as of another process.
    fn other(table: &Table, row: usize, pid: u64, since: u64, booked: u64) {
        for (at, value) in [(OWNER, pid), (STARTED, since), (NAMESPACE, namespace()), (BOOKED, booked)] {
            table.word(row, at).store(value, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_others_have_booked_is_not_booked_again_and_what_was_booked_stays() {
        let (path, file) = fresh("book");
        let table = Table::join(&path, 100 * MIB).unwrap();
        assert_eq!((table.book(30 * MIB), table.booked()), (30 * MIB, 30 * MIB));
        let parent = std::os::unix::process::parent_id();
        other(&table, 9, parent.into(), started(parent), 60 * MIB);
        assert_eq!(table.others(0, 0), Others { booked: 60 * MIB, processes: 1, ..Others::default() });
        assert_eq!(table.book(100 * MIB), 40 * MIB);
        other(&table, 9, parent.into(), started(parent), 90 * MIB);
        assert_eq!(table.book(50 * MIB), 40 * MIB, "more than there is, and nothing is taken away");
        assert_eq!(table.book(5 * MIB), 5 * MIB);
        table.leave();
        assert!(file.exists(), "another is left");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn rows_of_processes_that_are_gone_are_given_away_and_those_of_others_are_not() {
        let (path, file) = fresh("sweep");
        let table = Table::join(&path, 100 * MIB).unwrap();
        let parent = std::os::unix::process::parent_id();
        other(&table, 5, parent.into(), started(parent), MIB);
        other(&table, 6, parent.into(), started(parent) + 1, MIB); // its number was taken by another
        other(&table, 7, 0x7fff_fff0, 1234, MIB);
        other(&table, 8, 0x7fff_fff0, 1234, MIB);
        table.word(8, NAMESPACE).store(1, Ordering::SeqCst); // there the number may be somebody's
        assert_eq!(table.sweep(Look::Number), 1, "its number is free");
        assert_eq!(table.sweep(Look::Exact), 1);
        assert_eq!(table.others(0, 0).booked, 2 * MIB);
        assert_eq!(table.sweep(Look::Exact), 0);
        for row in [5, 8] {
            table.empty(row);
        }
        table.leave();
        assert!(!file.exists(), "the last one removes the file");
    }

    #[test]
    fn the_row_from_before_an_exec_is_taken_again_and_the_budget_is_that_of_whoever_came_first() {
        let (path, _) = fresh("exec");
        let first = Table::join(&path, 100 * MIB).unwrap();
        first.book(MIB);
        let second = Table::join(&path, 7 * MIB).unwrap();
        assert_eq!((second.budget(), second.booked()), (100 * MIB, 0));
        assert_eq!(second.others(0, 0), Others::default());
        second.leave();
    }

    #[test]
    fn a_row_that_was_taken_for_a_dead_ones_is_taken_again_and_one_given_up_for_an_exec_too() {
        let (path, file) = fresh("keep");
        let table = Table::join(&path, 100 * MIB).unwrap();
        let lost = table.row.load(Ordering::SeqCst);
        let parent = std::os::unix::process::parent_id();
        other(&table, lost, parent.into(), started(parent), MIB);
        assert_eq!((table.booked(), table.book(5 * MIB)), (0, 0), "that of another is not written to");
        table.keep_row();
        assert_eq!((table.book(5 * MIB), table.others(0, 0).booked), (5 * MIB, MIB));
        table.give_up();
        assert_eq!(table.booked(), 0);
        table.keep_row();
        assert_eq!(table.book(5 * MIB), 5 * MIB);
        table.leave();
        table.keep_row();
        assert_eq!(table.book(5 * MIB), 0, "it has left for good");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn the_last_one_removes_the_file_also_where_others_were_killed_and_never_anothers() {
        let (path, file) = fresh("last");
        let table = Table::join(&path, 100 * MIB).unwrap();
        other(&table, 7, 0x7fff_fff0, 1234, MIB);
        table.leave();
        assert!(!file.exists());
        let table = Table::join(&path, 100 * MIB).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, b"of somebody else").unwrap();
        table.leave();
        assert!(file.exists());
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn only_a_process_that_has_ended_is_gone() {
        let text = |state: &str, threads: u32| {
            format!("7 (a) b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0")
        };
        assert_eq!(life_of(text("S", 1).as_bytes()), Life::Since(4711));
        assert_eq!(life_of(text("Z", 1).as_bytes()), Life::Gone);
        assert_eq!(life_of(text("Z", 3).as_bytes()), Life::Since(4711), "its first thread ended alone");
        assert_eq!(life_of(b"7 (a) S 1"), Life::Unknown);
        assert_eq!(life_of(b""), Life::Unknown);
        assert_eq!(life(std::process::id(), Look::Number), Life::Unknown);
        assert_eq!(life(0x7fff_fff0, Look::Number), Life::Gone);
    }

    #[test]
    fn who_was_in_need_or_hungry_is_known_for_a_while() {
        let (path, _) = fresh("say");
        let table = Table::join(&path, 100 * MIB).unwrap();
        let parent = std::os::unix::process::parent_id();
        other(&table, 3, parent.into(), started(parent), MIB);
        table.word(3, NEEDED_NS).store(1_000, Ordering::SeqCst);
        table.word(3, HUNGRY_NS).store(900, Ordering::SeqCst);
        let seen = |now| {
            let others = table.others(now, 100);
            (others.need, others.hungry)
        };
        assert_eq!([seen(1_000), seen(1_050), seen(1_101)], [(1, true), (1, false), (0, false)]);
        table.say(7, true, false);
        assert_eq!(table.mine(NEEDED_NS).unwrap().load(Ordering::SeqCst), 7);
        assert_eq!(table.mine(HUNGRY_NS).unwrap().load(Ordering::SeqCst), 0);
        table.say(8, false, true);
        assert_eq!(table.mine(NEEDED_NS).unwrap().load(Ordering::SeqCst), 0, "not any more");
        table.empty(3);
        table.leave();
    }

    #[test]
    fn a_file_of_another_version_or_that_others_may_use_is_refused() {
        let (path, file) = fresh("bad");
        let mut other_version = b"weirtre9".to_vec();
        other_version.resize(BYTES, 0);
        for bytes in [b"a key of the user's".to_vec(), other_version] {
            std::fs::write(&file, &bytes).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(Table::join(&path, MIB).unwrap_err(), TreeError::Version);
            assert_eq!(std::fs::read(&file).unwrap(), bytes, "it stays as it is");
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Table::join(&path, MIB).unwrap_err(), TreeError::Foreign);
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/null", &file).unwrap();
        assert_eq!(Table::join(&path, MIB).unwrap_err(), TreeError::File(Errno::ELOOP));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(Table::join(&path, MIB).unwrap_err(), TreeError::File(Errno::EISDIR));
        std::fs::remove_dir(&file).unwrap();
    }

    #[test]
    fn when_all_rows_are_taken_another_process_is_told() {
        let (path, file) = fresh("full");
        let table = Table::join(&path, MIB).unwrap();
        let parent = std::os::unix::process::parent_id();
        (1..=ROWS).for_each(|row| other(&table, row, parent.into(), started(parent), 0));
        assert_eq!(table.take_row(), Err(TreeError::Full));
        assert_eq!((table.booked(), table.book(5)), (0, 0), "without a row nothing is booked");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_process_has_one_start() {
        assert!(own_start() > 0 && own_start() == started(std::process::id()));
        assert_eq!(started(0x7fff_fff0), 0);
        assert!(namespace() > 0 && is_usable(c"/tmp") && !is_usable(c"/nowhere"));
    }
}
