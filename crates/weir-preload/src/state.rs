//! What stands in this process: settings, the engine, and how far its start is. Nothing here acts.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::OnceLock;
use weir::config::Settings;
use weir::engine::Engine;
use weir_os::pager::KernelPager;
use weir_os::thread;

/// The engine of this process.
pub type Weir = Engine<KernelPager>;

static ENGINE: AtomicPtr<Weir> = AtomicPtr::new(core::ptr::null_mut());
static PHASE: AtomicU8 = AtomicU8::new(Phase::Idle as u8);
static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// 1 once a start has ended, however it ended.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// The program has filtered its system calls. Threads that it starts would inherit a filter that may not
/// allow what the engine does.
static FILTERED: AtomicBool = AtomicBool::new(false);
/// Kernel id of the thread that starts the engine.
static STARTER: AtomicU32 = AtomicU32::new(0);

/// How far the engine is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Not started: libc serves everything, sizes are watched.
    Idle,
    /// Being started (or its threads are, in a forked child): libc serves everything.
    Starting,
    /// It serves new requests.
    Running,
    /// Never to be started: no settings, switched off, or the start failed.
    Off,
}

/// How far the engine is now.
#[inline]
pub fn phase() -> Phase {
    const IDLE: u8 = Phase::Idle as u8;
    const STARTING: u8 = Phase::Starting as u8;
    const RUNNING: u8 = Phase::Running as u8;
    match PHASE.load(Ordering::Acquire) {
        IDLE => Phase::Idle,
        STARTING => Phase::Starting,
        RUNNING => Phase::Running,
        _ => Phase::Off,
    }
}

/// The engine, whenever it exists: for addresses that may be managed.
#[inline]
pub fn engine() -> Option<&'static Weir> {
    // SAFETY: set once to a leaked engine, never freed.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// The engine if it serves new requests.
#[inline]
pub fn running() -> Option<&'static Weir> {
    if phase() == Phase::Running { engine() } else { None }
}

/// The engine if the address may be its own.
#[inline]
pub fn owner(addr: usize) -> Option<&'static Weir> {
    engine().filter(|e| e.contains(addr))
}

/// Whether it is still open how the engine will start: nobody has begun.
pub fn is_idle() -> bool {
    PHASE.load(Ordering::SeqCst) == Phase::Idle as u8
}

/// The settings once the constructor has run.
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Waits for a start that another thread has under way.
pub fn wait_until_started() {
    while phase() == Phase::Starting && STARTER.load(Ordering::Relaxed) != thread::gettid() {
        let _ = thread::futex_wait(&STARTED, 0, Some(1_000_000));
    }
}

/// By the constructor: from now on the engine may start.
pub fn set_settings(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// The program filters its system calls from now on.
pub fn set_filtered() {
    FILTERED.store(true, Ordering::Relaxed);
}

/// Whether it does.
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// There will be no engine.
pub fn set_off() {
    set_phase(Phase::Off);
}

/// The calling thread begins the start, unless somebody has.
pub fn set_starting() -> bool {
    let (idle, starting) = (Phase::Idle as u8, Phase::Starting as u8);
    let begins = PHASE.compare_exchange(idle, starting, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if begins {
        STARTER.store(thread::gettid(), Ordering::Relaxed);
    }
    begins
}

/// In the child of a fork: the calling thread starts the inherited engine's threads.
pub fn set_starting_again() {
    STARTER.store(thread::gettid(), Ordering::Relaxed);
    set_phase(Phase::Starting);
}

/// The engine exists, and does not serve yet.
pub fn set_engine(engine: &'static Weir) {
    ENGINE.store(core::ptr::from_ref(engine).cast_mut(), Ordering::Release);
}

/// The engine serves from now on.
pub fn set_running() {
    set_phase(Phase::Running);
}

/// The start has ended: those who wait for it go on.
pub fn end_start() {
    STARTED.store(1, Ordering::Release);
    thread::futex_wake(&STARTED, i32::MAX as u32);
}

fn set_phase(phase: Phase) {
    PHASE.store(phase as u8, Ordering::Release);
}
