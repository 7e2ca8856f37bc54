//! What is told when the process ends, however it ends: the summary on stderr and the statistics file.
//!
//! A report may be made in a signal handler, or by a thread that has just found that everything is full. It
//! allocates nothing, takes no lock that anybody else takes, calls nothing of libc's, and runs on a stack of
//! its own.

use crate::inline::stacks;
use crate::state;
use crate::statistics::{self, Process};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;
use weir::config::Settings;
use weir::engine::summary::{End, Figures, Who, not_needed};
use weir_os::file::Sink;
use weir_os::live::Owner;
use weir_os::stack::Stack;
use weir_os::{fds, ram, sys, thread};

/// The process that a report is about: children of `vfork` share this memory and are others.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Whether it is the first of its tree.
static FIRST: AtomicBool = AtomicBool::new(false);
/// Whether it loaded the shim, and is not a child forked from the one that did.
static LOADED: AtomicBool = AtomicBool::new(false);
/// When its program started, ns.
static SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// A way to the terminal: many programs close stderr (through libc, where no hook sees it) before the end.
static STDERR: AtomicI32 = AtomicI32::new(-1);
/// What stderr was when that was made: a child has no way of its own to it, and may have another stderr.
static STDERR_IS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The program's name and its script's.
static NAME: OnceLock<Name> = OnceLock::new();
/// 0: no report yet; 1: somebody makes it; 2: it is made.
static REPORTED: AtomicU32 = AtomicU32::new(0);
/// Where it is made.
static STACK: ReportStack = ReportStack(UnsafeCell::new(None));

const STACK_BYTES: usize = 64 << 10;
/// How long a thread waits for another's report before it ends the process all the same.
const WAIT_NS: u64 = 1_000_000_000;

struct ReportStack(UnsafeCell<Option<Stack>>);

// SAFETY: written before the engine runs and before a forked child does; used by whoever set REPORTED alone.
unsafe impl Sync for ReportStack {}

/// Bytes of a name that are told.
const NAME_BYTES: usize = 60;

struct Name {
    text: [u8; NAME_BYTES],
    len: usize,
}

impl Name {
    /// The last parts of the paths of the program and, where it is an interpreter's, of its script.
    fn of<'a>(mut args: impl Iterator<Item = &'a [u8]>) -> Name {
        let mut name = Name { text: [0; NAME_BYTES], len: 0 };
        name.add(args.next().unwrap_or(b"program"));
        if let Some(script) = args.next().filter(|arg| arg.contains(&b'.') && !arg.starts_with(b"-")) {
            name.add(script);
        }
        name
    }

    fn add(&mut self, path: &[u8]) {
        let word = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let blank = usize::from(self.len > 0);
        // Control characters would be the terminal's to obey.
        for byte in b" "[1 - blank..].iter().chain(word).take(NAME_BYTES - self.len) {
            self.text[self.len] = if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'?' };
            self.len += 1;
        }
    }

    fn text(&self) -> &str {
        core::str::from_utf8(&self.text[..self.len]).unwrap_or("program")
    }
}

/// By the constructor.
pub fn configure<'a>(settings: &Settings, first: bool, args: impl Iterator<Item = &'a [u8]>) {
    PROCESS.store(sys::getpid(), Ordering::Relaxed);
    FIRST.store(first, Ordering::Relaxed);
    LOADED.store(true, Ordering::Relaxed);
    SINCE_NS.store(thread::now_ns(), Ordering::Relaxed);
    let _ = NAME.set(Name::of(args));
    // Nobody else is told that nothing happened.
    if tells_of_nothing(settings) {
        keep_stderr();
    }
}

/// Whether a program that did not need Weir is told so.
fn tells_of_nothing(settings: &Settings) -> bool {
    let first = FIRST.load(Ordering::Relaxed);
    first && !settings.quiet && (settings.verbose || fds::is_terminal(2))
}

fn keep_stderr() {
    if STDERR.load(Ordering::Relaxed) >= 0 {
        return;
    }
    if let Some((device, inode)) = fds::identity_of(2) {
        STDERR_IS[0].store(device, Ordering::Relaxed);
        STDERR_IS[1].store(inode, Ordering::Relaxed);
    }
    if LOADED.load(Ordering::Relaxed) {
        STDERR.store(fds::keep_duplicate(2).unwrap_or(-1), Ordering::Relaxed);
    }
}

/// Before the engine runs.
pub fn engine_started() {
    if !is_this_process() {
        forked(); // before there was an engine
    }
    if state::settings().is_some_and(|s| !s.quiet) {
        keep_stderr();
    }
    if let Ok(stack) = Stack::new(STACK_BYTES) {
        // SAFETY: nobody reports before the engine runs.
        unsafe { *STACK.0.get() = Some(stack) };
    }
    weir::engine::threads::set_last_words(|| report(End::Full));
}

/// In a forked child: it has a report of its own to make. Its parent's reader must not wait for it.
pub fn forked() {
    PROCESS.store(sys::getpid(), Ordering::Relaxed);
    FIRST.store(false, Ordering::Relaxed);
    LOADED.store(false, Ordering::Relaxed);
    SINCE_NS.store(thread::now_ns(), Ordering::Relaxed);
    REPORTED.store(0, Ordering::Relaxed);
    statistics::forked();
    let fd = STDERR.swap(-1, Ordering::Relaxed);
    fds::close(fd);
}

/// When the process ends through libc: what needs the engine whole comes first.
pub fn at_exit() {
    if let Some(engine) = state::engine()
        && is_this_process()
    {
        engine.last_look_outside();
        engine.check_descriptors();
        engine.depart();
        stacks::be_noticed_here();
    }
    report(End::Finished);
}

/// When it ends past libc's handlers. A filter of the program's may not allow what a report takes.
pub fn at_exit_group() {
    if is_this_process() && !state::is_filtered() {
        stacks::be_noticed_here();
        report(End::Finished);
    }
}

/// Whether this memory is the calling process's own: that of a child of `vfork` is its parent's.
pub fn is_this_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == sys::getpid()
}

/// Makes the report, unless it is made already or this is another process than the memory says.
pub fn report(end: End) {
    let Some(settings) = state::settings() else { return };
    if !is_this_process() {
        return;
    }
    let signals = thread::block_signals();
    match REPORTED.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: whoever set REPORTED has the stack.
            match unsafe { (*STACK.0.get()).as_mut() } {
                Some(stack) => stack.run(&mut || make(settings, end)),
                // No engine: a thread of the program that ends it through libc.
                None => make(settings, end),
            }
            REPORTED.store(2, Ordering::Release);
            thread::futex_wake(&REPORTED, i32::MAX as u32);
        }
        Err(_) => _ = thread::futex_wait(&REPORTED, 1, Some(WAIT_NS)),
    }
    thread::restore_signals(signals);
}

fn make(settings: &Settings, end: End) {
    let engine = state::engine();
    if let Some(engine) = engine {
        engine.core.publish();
        if let Some(path) = statistics::write_last(engine, settings, this_one()) {
            weir::engine::threads::say(format_args!("cannot write statistics to {path}"));
        }
        engine.leave_tree();
    }
    if settings.quiet {
        return;
    }
    let who = who();
    match engine {
        Some(engine) => {
            let elapsed = thread::now_ns() - SINCE_NS.load(Ordering::Relaxed);
            let figures = Figures::of(&engine.core, settings.memory, elapsed, ram::shared_bytes());
            let mentioned = if figures.reclaimed || end != End::Finished {
                // Programs that fork often are not to hear of each child.
                settings.verbose || LOADED.load(Ordering::Relaxed) || figures.is_noticed()
            } else {
                tells_of_nothing(settings)
            };
            if mentioned {
                tell(|out| {
                    figures.tell(who, end, out)?;
                    if settings.verbose { engine.core.stats.tell_exactly(out) } else { Ok(()) }
                });
            }
        }
        None if tells_of_nothing(settings) => {
            tell(|out| not_needed(who, ram::anon_bytes_once().unwrap_or(0), out));
        }
        None => {}
    }
}

/// For the file of statistics.
fn this_one() -> Process {
    Process { pid: PROCESS.load(Ordering::Relaxed), loaded: LOADED.load(Ordering::Relaxed) }
}

/// Writes the statistics every so often, if that was asked for, until the word is not 0. By a thread that has
/// a table of descriptors of its own.
pub fn write_statistics(leave: &AtomicU32) {
    let (Some(engine), Some(settings)) = (state::engine(), state::settings()) else { return };
    while leave.load(Ordering::Acquire) == 0 {
        let _ = thread::futex_wait(leave, 0, Some(settings.stats_interval_ns));
        if leave.load(Ordering::Acquire) == 0 && REPORTED.load(Ordering::Acquire) == 0 {
            engine.core.publish();
            statistics::write_again(engine, settings, this_one());
        }
    }
}

/// Whether they are to be written now and then by this process.
pub fn writes_statistics() -> bool {
    state::settings().is_some_and(|s| s.stats_interval_ns > 0 && this_one().path(s).is_some())
}

/// Who the page of counters is of.
pub fn owner() -> Owner<'static> {
    let title = NAME.get().map_or("program", Name::text);
    Owner { pid: PROCESS.load(Ordering::Relaxed), title, since_ns: SINCE_NS.load(Ordering::Relaxed) }
}

fn who<'a>() -> Who<'a> {
    let pid = (!FIRST.load(Ordering::Relaxed)).then(|| PROCESS.load(Ordering::Relaxed));
    Who { name: NAME.get().map_or("program", Name::text), pid }
}

/// Writes to what was stderr when the program started.
fn tell(f: impl FnOnce(&mut Sink) -> core::fmt::Result) {
    let kept = STDERR.load(Ordering::Relaxed);
    let was = (STDERR_IS[0].load(Ordering::Relaxed), STDERR_IS[1].load(Ordering::Relaxed));
    // One that the program has closed past libc may name a file of its own.
    let fd = match kept {
        -1 if fds::identity_of(2) == Some(was) => 2,
        -1 => return,
        kept if fds::is_intact(kept) => kept,
        _ => return,
    };
    let mut out = Sink::new(fd);
    let _ = f(&mut out);
    out.flush();
}
