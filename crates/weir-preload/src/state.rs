//! Process-wide state of the shim: settings, whether the engine runs, and its lazy start.

use crate::{exit, threads};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::OnceLock;
use weir::config::{Faults, Settings};
use weir::engine::Engine;
use weir::engine::threads::{fatal, say};
use weir::error::{GateError, StartError};
use weir_os::pager::{Intake, KernelPager};
use weir_os::thread;

/// The engine of this process.
pub type Weir = Engine<KernelPager>;

static ENGINE: AtomicPtr<Weir> = AtomicPtr::new(core::ptr::null_mut());
static PHASE: AtomicU8 = AtomicU8::new(IDLE);
static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// Bytes asked for in pieces too large for libc's heap, before the engine started.
static LARGE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes asked for in small pieces; every so often what is really there is measured.
static SMALL_BYTES: AtomicUsize = AtomicUsize::new(0);
static BUILT: AtomicU32 = AtomicU32::new(0);
static STARTED: AtomicU32 = AtomicU32::new(0);
/// Kernel id of the thread that starts the engine.
static STARTER: AtomicU32 = AtomicU32::new(0);

/// Not started: libc serves everything, sizes are watched.
const IDLE: u8 = 0;
/// Being started (or its threads are, in a forked child): libc serves everything.
const STARTING: u8 = 1;
/// Running.
const RUNNING: u8 = 2;
/// Never to be started: no settings, switched off, or the start failed.
const OFF: u8 = 3;

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
/// Stack of an engine thread, and of the thread that starts the engine.
pub const STACK_BYTES: usize = 512 << 10;

/// The engine, whenever it exists: for addresses that may be managed.
#[inline]
pub fn engine() -> Option<&'static Weir> {
    // SAFETY: set once to a leaked engine, never freed.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// The engine if it serves new requests.
#[inline]
pub fn running() -> Option<&'static Weir> {
    if PHASE.load(Ordering::Acquire) == RUNNING { engine() } else { None }
}

/// The engine if the address may be its own.
#[inline]
pub fn owner(addr: usize) -> Option<&'static Weir> {
    engine().filter(|e| e.contains(addr))
}

/// Whether it is still open how the engine will start: nobody has begun.
pub fn is_idle() -> bool {
    PHASE.load(Ordering::SeqCst) == IDLE
}

/// The settings once the constructor has run.
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Called by the constructor: from now on the engine may start.
pub fn configure(settings: Option<Settings>) {
    match settings {
        Some(s) => {
            let _ = SETTINGS.set(s);
        }
        None => {
            PHASE.store(OFF, Ordering::Release);
            crate::family::hand_over();
        }
    }
}

/// Notes a request for `len` bytes that libc or the kernel would serve; starts the engine when the
/// process turns out to be large. Returns the engine if it runs now.
#[inline]
pub fn note_request(len: usize) -> Option<&'static Weir> {
    match PHASE.load(Ordering::Acquire) {
        RUNNING => engine(),
        IDLE if len < SMALL_MAX => note_small(len),
        IDLE => note_large(len),
        // Another thread is starting the engine. Large memory taken from libc now would stay outside
        // for ever; what pthread_create asks for in the starting thread is small.
        STARTING if len >= START_WAIT_BYTES => {
            wait_until_started();
            running()
        }
        _ => None,
    }
}

/// Waits for a start that another thread has under way.
pub fn wait_until_started() {
    while PHASE.load(Ordering::Acquire) == STARTING && STARTER.load(Ordering::Relaxed) != thread::gettid() {
        let _ = thread::futex_wait(&STARTED, 0, Some(1_000_000));
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
    let enough = settings().map_or(START_ALL_BYTES, |s| (s.memory / 4) as usize);
    let enough = enough.clamp(START_ONE_BYTES, START_ALL_BYTES) as u64;
    let large = weir_os::ram::anon_bytes_once().is_some_and(|bytes| bytes >= enough);
    if large { start() } else { None }
}

#[cold]
fn note_large(len: usize) -> Option<&'static Weir> {
    let all = LARGE_BYTES.fetch_add(len, Ordering::Relaxed).saturating_add(len);
    if len >= START_ONE_BYTES || all >= START_ALL_BYTES { start() } else { look() }
}

#[cold]
fn start() -> Option<&'static Weir> {
    SETTINGS.get()?;
    if PHASE.compare_exchange(IDLE, STARTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return running();
    }
    STARTER.store(thread::gettid(), Ordering::Relaxed);
    weir_os::mem::leave_future_unlocked(); // before the engine's first mapping
    // The request may come from a thread with a tiny stack: build the engine on a stack of our own.
    // SAFETY: the entry uses no argument; PHASE sends the new thread's malloc to libc.
    let spawned = unsafe { thread::spawn(build, core::ptr::null_mut(), STACK_BYTES) };
    if let Err(e) = spawned {
        fatal(format_args!("cannot start a thread: {e}"));
    }
    while BUILT.load(Ordering::Acquire) == 0 {
        let _ = thread::futex_wait(&BUILT, 0, None);
    }
    if engine().is_some() {
        // By this thread, not the builder: it may hold one of the loader's locks that
        // pthread_create needs, and those are recursive.
        threads::start();
        crate::arena::begin();
        PHASE.store(RUNNING, Ordering::Release);
    }
    STARTED.store(1, Ordering::Release);
    thread::futex_wake(&STARTED, i32::MAX as u32);
    running()
}

extern "C" fn build(_: *mut c_void) -> *mut c_void {
    thread::set_name(c"weir-start");
    let started = SETTINGS.get().map(start_engine);
    match started {
        Some(Ok(e)) => {
            ENGINE.store(Box::leak(Box::new(e)), Ordering::Release);
            exit::engine_started();
        }
        Some(Err(e)) => {
            // Going on without the engine would break the promised budget.
            say(format_args!("{e}"));
            weir_os::sys::exit_group(125);
        }
        None => PHASE.store(OFF, Ordering::Release),
    }
    BUILT.store(1, Ordering::Release);
    thread::futex_wake(&BUILT, i32::MAX as u32);
    core::ptr::null_mut()
}

/// The engine with the intake that the settings ask for.
fn start_engine(settings: &Settings) -> Result<Weir, StartError> {
    if settings.faults == Faults::Thread {
        return Engine::start(settings, Intake::Messages);
    }
    if settings.faults == Faults::Auto && crate::inline::rings::ask_for_a_thread() {
        return Engine::start(settings, Intake::Messages);
    }
    let why = match start_inline(settings) {
        Ok(engine) => return Ok(engine),
        Err(StartError::BudgetTooSmall(b)) => return Err(StartError::BudgetTooSmall(b)),
        Err(why) => why,
    };
    if settings.faults == Faults::Inline {
        return Err(why);
    }
    Engine::start(settings, Intake::Messages)
}

/// The engine with faults resolved in the faulting thread, its system-call gate open.
fn start_inline(settings: &Settings) -> Result<Weir, StartError> {
    if !crate::inline::taken() {
        return Err(StartError::Inline(GateError::Signals));
    }
    let engine = Engine::start(settings, Intake::InThread)?;
    engine.open_gate().map_err(StartError::Inline)?;
    engine.set_chore(crate::inline::keep_signals);
    Ok(engine)
}

/// In a forked child: new threads for the inherited engine.
pub fn restart_threads() {
    STARTER.store(thread::gettid(), Ordering::Relaxed);
    PHASE.store(STARTING, Ordering::Release);
    threads::forked();
    threads::start();
    PHASE.store(RUNNING, Ordering::Release);
}
