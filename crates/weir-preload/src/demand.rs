//! When a process counts as large: requests for memory are counted, and one of them asks for the start.

use crate::state::{self, Phase, Weir};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;
use weir::limits::FILES_START_SHARE;

/// Bytes asked for in pieces too large for libc's heap, before the engine started.
static LARGE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes asked for in small pieces; every so often what is really there is measured.
static SMALL_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes of mapped files.
static FILE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Starts the engine: above this file, so the constructor names it.
static START: OnceLock<fn()> = OnceLock::new();

/// One allocation or mapping of this size starts the engine.
const START_ONE_BYTES: usize = 4 << 20;
/// So do this many bytes of large pieces, or this much anonymous memory in RAM, of whatever kind.
const START_ALL_BYTES: usize = 16 << 20;
/// Small allocations between two looks at the memory in RAM.
const LOOK_EVERY_BYTES: usize = 1 << 20;
/// libc's own threshold for mappings: smaller pieces come from its heap.
const SMALL_MAX: usize = 128 << 10;
/// Requests of this size wait for a start under way.
const START_WAIT_BYTES: usize = 1 << 20;

/// By the constructor: what starts the engine of a large process.
pub fn prepare(start: fn()) {
    let _ = START.set(start);
}

/// Notes a request for `len` bytes that libc or the kernel would serve; starts the engine when the
/// process turns out to be large. Returns the engine if it runs now.
#[inline]
pub fn note_request(len: usize) -> Option<&'static Weir> {
    match state::phase() {
        Phase::Running => state::engine(),
        Phase::Idle if len < SMALL_MAX => note_small(len),
        Phase::Idle => note_large(len),
        // Another thread is starting the engine. Large memory taken from libc now would stay outside
        // for ever; what the starting thread asks for meanwhile is small.
        Phase::Starting if len >= START_WAIT_BYTES => {
            state::wait_until_started();
            state::running()
        }
        _ => None,
    }
}

/// Notes that `len` bytes of a file were mapped; a process is large by these as well. Returns the engine if
/// it runs now.
pub fn note_file(len: usize) -> Option<&'static Weir> {
    match state::phase() {
        Phase::Running => state::engine(),
        Phase::Idle => {
            let all = FILE_BYTES.fetch_add(len, Ordering::Relaxed).saturating_add(len);
            let enough = state::settings().map_or(0, |s| s.memory / FILES_START_SHARE) as usize;
            if all >= enough.max(START_ONE_BYTES) { ask_for_start() } else { None }
        }
        Phase::Starting => {
            state::wait_until_started();
            state::running()
        }
        Phase::Off => None,
    }
}

/// Not counted to the last byte: threads that count at once may lose some, and nobody waits for a locked
/// instruction.
#[inline]
fn note_small(len: usize) -> Option<&'static Weir> {
    let before = SMALL_BYTES.load(Ordering::Relaxed);
    SMALL_BYTES.store(before.wrapping_add(len), Ordering::Relaxed);
    if before / LOOK_EVERY_BYTES == before.wrapping_add(len) / LOOK_EVERY_BYTES { None } else { look() }
}

/// Starts the engine if there is much anonymous memory, whoever took it: libc's heap, stacks, small mappings.
#[cold]
fn look() -> Option<&'static Weir> {
    // What is there before the start stays outside: in a small budget, not for most of it.
    let enough = state::settings().map_or(START_ALL_BYTES, |s| (s.memory / 4) as usize);
    let enough = enough.clamp(START_ONE_BYTES, START_ALL_BYTES) as u64;
    let large = weir_os::ram::anon_bytes_once().is_some_and(|bytes| bytes >= enough);
    if large { ask_for_start() } else { None }
}

#[cold]
fn note_large(len: usize) -> Option<&'static Weir> {
    let all = LARGE_BYTES.fetch_add(len, Ordering::Relaxed).saturating_add(len);
    if len >= START_ONE_BYTES || all >= START_ALL_BYTES { ask_for_start() } else { look() }
}

#[cold]
fn ask_for_start() -> Option<&'static Weir> {
    // Libraries allocate before the constructor has run: not yet.
    START.get()?();
    state::running()
}
