//! Desks: where threads of the program work inside the engine in inline mode, and the streams that they leave
//! to the thread that fetches ahead.

use super::say::fatal;
use crate::fault::Ahead;
use crate::reclaim::compress::Workbench;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_os::shards::Line;
use weir_os::stack::Stack;
use weir_os::thread;

/// Threads that can resolve faults at the same moment; more wait for a desk.
pub const DESKS: usize = 128;
/// Stack of a desk.
const STACK_BYTES: usize = 64 << 10;
/// Streams waiting for the thread that fetches ahead; when it is full the newest is forgotten.
const STREAMS: usize = 8;

/// Where a faulting thread works: made at its first use, kept for ever.
#[derive(Debug, Default)]
pub struct Desk(pub(super) Option<(Stack, Box<Workbench>)>);

/// The fault being served at a desk, for the watchdog.
#[derive(Debug, Default)]
pub struct Serving {
    /// Page plus one, or 0.
    pub page: AtomicU32,
    /// Since when, ns.
    pub since_ns: AtomicU64,
}

/// What inline mode adds to the engine.
#[derive(Debug)]
pub struct Inline {
    pub(super) desks: Vec<Line<Mutex<Desk>>>,
    /// Streams to be fetched ahead.
    pub(super) streams: Streams,
    /// The thread that closed the gate for a fork: its faults pass.
    pub(super) closer: AtomicUsize,
    /// What the shim wants done now and then.
    pub(super) chore: std::sync::OnceLock<fn()>,
    /// The system-call gate, once it is open.
    #[cfg(target_arch = "x86_64")]
    pub(super) stubs: std::sync::OnceLock<weir_os::gate::stubs::Stubs>,
}

impl Default for Inline {
    fn default() -> Inline {
        Inline {
            desks: (0..DESKS).map(|_| Line::default()).collect(),
            streams: Streams::default(),
            closer: AtomicUsize::new(0),
            chore: std::sync::OnceLock::new(),
            #[cfg(target_arch = "x86_64")]
            stubs: std::sync::OnceLock::new(),
        }
    }
}

/// A desk at its first use.
pub(super) fn new_desk() -> (Stack, Box<Workbench>) {
    let mut stack = match Stack::new(STACK_BYTES) {
        Ok(stack) => stack,
        Err(e) => fatal(format_args!("no memory for a page fault's own stack: {e}")),
    };
    // There already: a workbench is made on the stack, and is larger than the stacks of some threads.
    let mut workbench = None;
    stack.run(&mut || workbench = Some(Box::new(Workbench::new())));
    match workbench {
        Some(workbench) => (stack, workbench),
        None => fatal(format_args!("a desk without a workbench")),
    }
}

/// Streams that somebody else should fetch ahead. Used inside the gate only, but for the wait.
#[derive(Debug)]
pub(super) struct Streams {
    rows: Mutex<Vec<Ahead>>,
    /// Their number, for the thread that sleeps while there are none.
    waiting: AtomicU32,
}

impl Default for Streams {
    fn default() -> Streams {
        // All the room it will need: a fault allocates nothing.
        Streams { rows: Mutex::new(Vec::with_capacity(STREAMS)), waiting: AtomicU32::new(0) }
    }
}

impl Streams {
    fn rows(&self) -> MutexGuard<'_, Vec<Ahead>> {
        // Panics end the process, so a poisoned lock is never seen.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream and wakes the thread.
    pub(super) fn post(&self, a: Ahead) {
        let mut rows = self.rows();
        let before = rows.len();
        if before < STREAMS {
            rows.push(a);
            self.waiting.store(rows.len() as u32, Ordering::Release);
        }
        drop(rows);
        if before == 0 {
            thread::futex_wake(&self.waiting, 1);
        }
    }

    /// The stream posted last: it is the one that somebody works on now.
    pub(super) fn take(&self) -> Option<Ahead> {
        let mut rows = self.rows();
        let last = rows.pop();
        self.waiting.store(rows.len() as u32, Ordering::Release);
        last
    }

    /// Sleeps while there are none.
    pub(super) fn wait(&self) {
        let _ = thread::futex_wait(&self.waiting, 0, None);
    }

    fn reset(&self) {
        self.rows().clear();
        self.waiting.store(0, Ordering::Relaxed);
    }
}

impl Inline {
    /// Wakes the thread that waits for streams.
    pub(super) fn call_thread(&self) {
        thread::futex_wake(&self.streams.waiting, 1);
    }

    /// In the child of a fork: streams of the parent are not the child's.
    pub(super) fn forked(&self) {
        self.streams.reset();
        self.closer.store(0, Ordering::Relaxed);
    }
}
