//! The file of statistics: written at the end, and now and then before it. Allocates nothing, calls nothing
//! of libc's.
//!
//! A file that is written again and again is never seen half: another takes its place. What is no regular
//! file (a pipe, a terminal) is written to as it is.

use crate::state::Weir;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::unix::ffi::OsStrExt;
use weir::config::Settings;
use weir::engine::statistics::{Format, Report};
use weir_os::file::{PathText, Sink};
use weir_os::{ram, sys, thread};

/// 1: somebody writes; 2: the last words are written, or are to be.
static WRITING: AtomicU32 = AtomicU32::new(0);
/// How long the end waits for a write under way, on a disk that may hang.
const WAIT_NS: u64 = 1_000_000_000;

/// Whose statistics they are.
#[derive(Clone, Copy)]
pub struct Process {
    pub pid: u32,
    /// It loaded the shim, and is not a child forked from the one that did.
    pub loaded: bool,
}

impl Process {
    /// Where its statistics go: a file for each process where the name has `%p`, else the first one's alone.
    pub fn path(self, settings: &Settings) -> Option<PathText> {
        let path = settings.stats.as_ref()?.as_os_str().as_bytes();
        let own = self.loaded || path.windows(2).any(|w| w == b"%p");
        own.then(|| PathText::with_pid(path, self.pid))?
    }
}

/// In a forked child: nobody writes here.
pub fn forked() {
    WRITING.store(0, Ordering::Relaxed);
}

/// While the program runs. A failure is told at the end, where it happens again.
pub fn write_again(engine: &Weir, settings: &Settings, process: Process) {
    let Some(path) = process.path(settings) else { return };
    if WRITING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        write(engine, &path, process.pid, true);
        let _ = WRITING.compare_exchange(1, 0, Ordering::Release, Ordering::Relaxed);
        thread::futex_wake(&WRITING, 1);
    }
}

/// At the end. The file that cannot be written, if somebody should hear of it; a forked child may have given
/// up the right to.
pub fn write_last(engine: &Weir, settings: &Settings, process: Process) -> Option<PathText> {
    let path = process.path(settings)?;
    let deadline = thread::now_ns() + WAIT_NS;
    let mut begun = false;
    while !begun && thread::now_ns() < deadline {
        begun = WRITING.compare_exchange(0, 2, Ordering::Acquire, Ordering::Relaxed) != Err(1);
        if !begun {
            let _ = thread::futex_wait(&WRITING, 1, Some(deadline.saturating_sub(thread::now_ns())));
        }
    }
    let whole = begun && write(engine, &path, process.pid, settings.stats_interval_ns > 0);
    (!whole && process.loaded).then_some(path)
}

/// Whether all has arrived. `replaces`: another file takes the place of the one that is there.
fn write(engine: &Weir, path: &PathText, pid: u32, replaces: bool) -> bool {
    let format = Format::of(path.bytes());
    match path.successor(pid).filter(|_| replaces && path.can_be_replaced()) {
        Some(next) => {
            let done = write_to(engine, &next, format) && next.rename_to(path).is_ok();
            if !done {
                next.remove();
            }
            done
        }
        None => write_to(engine, path, format),
    }
}

fn write_to(engine: &Weir, path: &PathText, format: Format) -> bool {
    path.create().is_ok_and(|fd| {
        let mut out = Sink::new(fd);
        let told = tell(engine, format, &mut out);
        let whole = out.flush() && told.is_ok();
        sys::close(fd);
        whole
    })
}

fn tell(engine: &Weir, format: Format, out: &mut Sink) -> fmt::Result {
    let mut report = Report::new(out, format);
    let mut result = Ok(());
    engine.each_counter(|key, value| {
        if result.is_ok() {
            result = report.add(key, value);
        }
    });
    result?;
    report.add("weir_shared_bytes", ram::shared_bytes())?;
    report.end()
}
