//! Processes that run under Weir: found by the page that each shows (`weir_os::live`), and read without
//! touching them.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use weir_os::live::{self, LINK, Unreadable};

/// The page has one of these numbers: Weir keeps its descriptors below.
const DESCRIPTORS: u32 = 1024;
/// How long a page may change before somebody who reads it gives up, and the pause between two tries.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for all of many: a write takes microseconds, and who watches them must not wait for one of them.
const PATIENCE_FOR_ALL: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(1);

/// Why a process cannot be looked at.
#[derive(Debug, PartialEq, Eq)]
pub enum Unseen {
    /// There is no such process.
    Gone(u32),
    /// It belongs to this user.
    Foreign(u32, u32),
    /// It hides its descriptors from everybody but root.
    Hidden(u32),
    /// It has no page.
    NoPage(u32),
    /// Its page is of another version of Weir.
    Version(u32),
    /// Its page makes no sense.
    Damaged(u32),
    /// Its page stays half written.
    Stuck(u32),
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unseen::Gone(pid) => write!(f, "there is no process {pid}"),
            Unseen::Foreign(pid, user) => {
                write!(f, "process {pid} belongs to another user ({user}): ask as that user, or as root")
            }
            Unseen::Hidden(pid) => {
                write!(f, "process {pid} hides itself, as programs with secrets do: ask as root")
            }
            Unseen::NoPage(pid) => write!(
                f,
                "process {pid} shows nothing: it does not run under Weir, or has not grown large enough for \
                 Weir to start"
            ),
            Unseen::Version(pid) => {
                write!(f, "process {pid} runs under another version of Weir: use the `weir` that started it")
            }
            Unseen::Damaged(pid) => write!(f, "process {pid} shows a page that makes no sense"),
            Unseen::Stuck(pid) => {
                write!(f, "process {pid} has written no values: it is stopped, or the machine is overloaded")
            }
        }
    }
}

impl std::error::Error for Unseen {}

/// A process that shows its page.
#[derive(Debug)]
pub struct Live {
    pid: u32,
    link: PathBuf,
    file: File,
}

/// What it showed at one moment.
#[derive(Debug)]
pub struct Shown {
    /// Its process id, here.
    pub pid: u32,
    /// What it runs.
    pub program: String,
    /// How old the values are.
    pub age: Duration,
    /// How long it had run when they were written.
    pub ran: Duration,
    /// Names and values.
    pub values: Vec<(String, u64)>,
}

impl Shown {
    /// A value by its name.
    pub fn find(&self, name: &str) -> Option<u64> {
        self.values.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// A value by its name; 0 where there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.find(name).unwrap_or(0)
    }

    /// RAM of the process in all, bytes.
    pub fn ram(&self) -> u64 {
        self.get("weir_resident_bytes").saturating_add(self.get("weir_outside_bytes"))
    }
}

impl Live {
    /// Finds the page of a process.
    pub fn open(pid: u32) -> Result<Live, Unseen> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(folder.join("status")).map_err(|_| Unseen::Gone(pid))?;
        let number = |key: &str, place: usize| number_of(&status, key, place).ok_or(Unseen::Gone(pid));
        let user = number("Uid:", 1)?;
        let entries = fs::read_dir(folder.join("fd")).map_err(|e| refusal(&e, pid, user))?;
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let mut links =
            numbers.filter(|fd| *fd < DESCRIPTORS).map(|fd| folder.join("fd").join(fd.to_string()));
        let link = links.find(|link| is_page(link)).ok_or(Unseen::NoPage(pid))?;
        let file = live::open(&link, false).map_err(|e| refusal(&e, pid, user))?;
        let mut head = [0; live::HEAD_BYTES];
        let read = file.read_exact_at(&mut head, 0).map_err(|_| Unreadable::Damaged);
        let writer = read.and_then(|()| live::pid(&head)).map_err(|e| unseen(e, pid))?;
        // A child that has not become another program yet may have its parent's. In a PID namespace a process
        // has another id for itself.
        let own = number("NSpid:", usize::MAX)?;
        if writer == own { Ok(Live { pid, link, file }) } else { Err(Unseen::NoPage(pid)) }
    }

    /// What all processes show that this user may look at, by their ids; and those whose pages cannot be
    /// read.
    pub fn all() -> io::Result<(Vec<Shown>, Vec<Unseen>)> {
        let entries = fs::read_dir("/proc")?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let (mut all, mut unseen) = (Vec::new(), Vec::new());
        let end = Instant::now() + PATIENCE_FOR_ALL;
        for pid in pids {
            match Live::open(pid).and_then(|live| live.shown_by(end)) {
                Ok(shown) => all.push(shown),
                Err(e @ (Unseen::Version(_) | Unseen::Damaged(_) | Unseen::Stuck(_))) => unseen.push(e),
                Err(_) => {}
            }
        }
        all.sort_unstable_by_key(|shown| shown.pid);
        Ok((all, unseen))
    }

    /// Whether the process still runs this program. The next one may have its page at the same number.
    pub fn is_there(&self) -> bool {
        let place = |of: fs::Metadata| (of.dev(), of.ino());
        let now = fs::metadata(&self.link).map(place);
        now.is_ok_and(|now| self.file.metadata().map(place).is_ok_and(|own| own == now))
    }

    /// What it shows now.
    pub fn shown(&self) -> Result<Shown, Unseen> {
        self.shown_by(Instant::now() + PATIENCE)
    }

    fn shown_by(&self, end: Instant) -> Result<Shown, Unseen> {
        loop {
            match self.copy() {
                Err(Unreadable::Changing) if !self.is_there() => return Err(Unseen::Gone(self.pid)),
                Err(Unreadable::Changing) if Instant::now() < end => std::thread::sleep(PAUSE),
                Err(e) => return Err(unseen(e, self.pid)),
                Ok(shown) => return Ok(shown),
            }
        }
    }

    /// Asks for another budget, and waits until the process has heard it. What the budget is then.
    pub fn ask_for(&self, bytes: u64) -> Result<u64, Unseen> {
        let failed = |e: &io::Error| refusal(e, self.pid, weir_os::host::effective_uid());
        let file = live::open(&self.link, true).map_err(|e| failed(&e))?;
        file.write_all_at(&bytes.to_ne_bytes(), live::ASKED_BYTE).map_err(|e| failed(&e))?;
        let end = Instant::now() + PATIENCE;
        let mut left = [0; 8];
        loop {
            file.read_exact_at(&mut left, live::ASKED_BYTE).map_err(|e| failed(&e))?;
            let heard = left == [0; 8];
            if heard || !self.is_there() {
                break;
            }
            if Instant::now() > end {
                // It is not to do later what nobody expects any more.
                file.write_all_at(&[0; 8], live::ASKED_BYTE).map_err(|e| failed(&e))?;
                return Err(Unseen::Stuck(self.pid));
            }
            std::thread::sleep(PAUSE);
        }
        // It writes its values right after it has heard.
        loop {
            let budget = self.shown()?.get("weir_budget_bytes");
            if budget == bytes || Instant::now() > end || !self.is_there() {
                return Ok(budget);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn copy(&self) -> Result<Shown, Unreadable> {
        let read = |bytes: &mut [u8]| self.file.read_exact_at(bytes, 0).map_err(|_| Unreadable::Damaged);
        let number = || {
            let mut head = [0; live::HEAD_BYTES];
            read(&mut head)?;
            live::sequence(&head)
        };
        let len = self.file.metadata().map_err(|_| Unreadable::Damaged)?.len().min(PAGE_BYTES_MAX);
        let mut bytes = vec![0; len as usize];
        let before = number()?;
        read(&mut bytes)?;
        let seen = live::read(&bytes, before, number()?)?;
        let values: Vec<_> = seen.values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        if !values.iter().all(|(name, _)| is_name(name)) {
            return Err(Unreadable::Damaged);
        }
        let now = weir_os::thread::now_ns();
        let ns = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        Ok(Shown {
            pid: self.pid,
            program: title(seen.owner.title),
            age: ns(seen.written_ns, now),
            ran: ns(seen.owner.since_ns, seen.written_ns),
            values,
        })
    }
}

/// Names that [`Shown`]'s other fields have where they are written.
const TAKEN: [&str; 4] = ["pid", "program", "ran_ns", "age_ns"];
/// Letters of a title that are shown: no more than Weir itself writes.
const TITLE_LETTERS: usize = 60;

/// Whether a value may have this name. Anybody may write a page of his own processes, also for root to read.
fn is_name(name: &str) -> bool {
    let plain = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
    name.bytes().all(plain) && !TAKEN.contains(&name)
}

/// A title as it can be shown on any terminal.
fn title(written: &str) -> String {
    let shown = |letter: char| if letter.is_control() { '?' } else { letter };
    written.chars().take(TITLE_LETTERS).map(shown).collect()
}

/// The processes that one comes from, its parent first.
pub fn ancestors(pid: u32) -> Vec<u32> {
    let parent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        number_of(&status, "PPid:", 0).filter(|parent| *parent != 0)
    };
    // Ids may be given anew meanwhile, and so come back to one that was there.
    std::iter::successors(parent(&pid), parent).take(GENERATIONS).collect()
}

/// No process comes from more.
const GENERATIONS: usize = 1000;

/// No page is larger.
const PAGE_BYTES_MAX: u64 = 64 << 10;

fn is_page(link: &std::path::Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.as_os_str() == LINK)
}

fn refusal(e: &io::Error, pid: u32, user: u32) -> Unseen {
    match e.kind() {
        io::ErrorKind::PermissionDenied if user != weir_os::host::effective_uid() => {
            Unseen::Foreign(pid, user)
        }
        io::ErrorKind::PermissionDenied => Unseen::Hidden(pid),
        _ => Unseen::Gone(pid),
    }
}

fn unseen(e: Unreadable, pid: u32) -> Unseen {
    match e {
        Unreadable::Changing => Unseen::Stuck(pid),
        Unreadable::Version(_) => Unseen::Version(pid),
        Unreadable::Damaged => Unseen::Damaged(pid),
    }
}

/// A number of a line of a process's status; the last one where there are not so many.
fn number_of(status: &str, key: &str, place: usize) -> Option<u32> {
    let words = status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace();
    words.take(place.saturating_add(1)).last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_says_what_to_do() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let own = weir_os::host::effective_uid();
        assert_eq!(refusal(&denied, 7, own + 1), Unseen::Foreign(7, own + 1));
        assert!(Unseen::Foreign(7, 1000).to_string().contains("another user (1000)"));
        assert_eq!(refusal(&denied, 7, own), Unseen::Hidden(7));
        assert_eq!(refusal(&io::Error::from(io::ErrorKind::NotFound), 7, own), Unseen::Gone(7));
    }

    #[test]
    fn titles_and_names_that_a_terminal_or_a_document_would_take_for_more_are_not_shown() {
        assert_eq!(title("\u{1b}]52;c;x\u{7}\u{9b}31m"), "?]52;c;x??31m");
        assert_eq!(title(&"ä".repeat(1000)).chars().count(), TITLE_LETTERS);
        assert!(is_name("weir_pool_limit_bytes") && is_name("swap_ra"));
        assert!(!["pid", "age_ns", "a b", "a\"", "A", "é", "a\u{1b}"].iter().any(|name| is_name(name)));
    }

    #[test]
    fn numbers_of_a_status_are_found_by_their_place() {
        let status = "Uid:\t1000\t1001\t1002\t1003\nNSpid:\t4711\t7\n";
        assert_eq!(
            (number_of(status, "Uid:", 1), number_of(status, "NSpid:", usize::MAX)),
            (Some(1001), Some(7))
        );
        assert_eq!((number_of(status, "Gid:", 0), number_of("Uid:\n", "Uid:", 1)), (None, None));
    }

    #[test]
    fn ancestors_end_with_the_first_process() {
        let own = ancestors(std::process::id());
        assert_eq!(own.first(), Some(&std::os::unix::process::parent_id()));
        assert!(own.len() < GENERATIONS && ancestors(u32::MAX).is_empty(), "{own:?}");
    }

    #[test]
    fn processes_without_a_page_with_half_of_one_and_those_that_are_not_there_are_told_apart() {
        let pid = std::process::id();
        assert_eq!(Live::open(pid).err(), Some(Unseen::NoPage(pid)));
        assert_eq!(Live::open(u32::MAX).err(), Some(Unseen::Gone(u32::MAX)));
        let owner = live::Owner { pid, title: "test", since_ns: 0 };
        let page = live::Page::new(owner, |name| name("pgfault")).unwrap();
        let of = Live::open(pid).unwrap();
        assert_eq!(of.shown_by(Instant::now()).err(), Some(Unseen::Stuck(pid)));
        assert!(Live::all().unwrap().1.contains(&Unseen::Stuck(pid)), "the others are shown");
        page.write(|value| value(7));
        assert_eq!(of.shown().unwrap().get("pgfault"), 7);
        page.abandon();
        assert!(!of.is_there());
        let next = live::Page::new(owner, |name| name("pgfault")).unwrap();
        assert!(!of.is_there(), "another page at the same place");
        next.abandon();
    }
}
