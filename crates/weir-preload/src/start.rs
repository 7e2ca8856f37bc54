//! The lazy start: builds the engine, with the intake that the settings ask for, and has it serve.

use crate::inline::{handlers, ours, rings};
use crate::state::{self, Weir};
use crate::threads::{self, STACK_BYTES};
use crate::{ends, exit, jemalloc, live};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use weir::config::{Faults, Pager, Settings};
use weir::engine::Engine;
use weir::engine::threads::{fatal, say};
use weir::error::{GateError, StartError};
use weir_os::pager::Intake;
use weir_os::thread;

/// 1 once the thread that builds the engine is done.
static BUILT: AtomicU32 = AtomicU32::new(0);

/// Starts the engine unless somebody has begun, or there are no settings yet.
pub fn start() {
    if state::settings().is_none() || !state::set_starting() {
        return;
    }
    weir_os::mem::leave_future_unlocked(); // before the engine's first mapping
    // The request may come from a thread with a tiny stack: build the engine on a stack of our own.
    // SAFETY: the entry uses no argument; the phase sends the new thread's malloc to libc.
    let spawned = unsafe { thread::spawn(build, core::ptr::null_mut(), STACK_BYTES) };
    if let Err(e) = spawned {
        fatal(format_args!("cannot start a thread: {e}"));
    }
    while BUILT.load(Ordering::Acquire) == 0 {
        let _ = thread::futex_wait(&BUILT, 0, None);
    }
    if state::engine().is_some() {
        // By this thread, not the builder: `jemalloc::begin` wants one of the program's.
        threads::start();
        jemalloc::begin();
        state::set_running();
    }
    state::end_start();
}

extern "C" fn build(_: *mut c_void) -> *mut c_void {
    thread::set_name(c"weir-start");
    let started = state::settings().map(start_engine);
    match started {
        Some(Ok(e)) => {
            state::set_engine(Box::leak(Box::new(e)));
            exit::engine_started();
            live::begin();
            ends::watch();
        }
        Some(Err(e)) => {
            // Going on without the engine would break the promised budget.
            say(format_args!("{e}"));
            weir_os::sys::exit_group(125);
        }
        None => state::set_off(),
    }
    BUILT.store(1, Ordering::Release);
    thread::futex_wake(&BUILT, i32::MAX as u32);
    core::ptr::null_mut()
}

/// The engine with the intake that the settings ask for.
fn start_engine(settings: &Settings) -> Result<Weir, StartError> {
    let without = Settings { pager: Pager::Segv, faults: Faults::Inline, ..settings.clone() };
    let settings = if ours::keeps_segv() { &without } else { settings };
    if settings.faults == Faults::Thread || settings.faults == Faults::Auto && rings::ask_for_a_thread() {
        return start_with_messages(settings);
    }
    let why = match start_inline(settings) {
        Ok(engine) => return Ok(engine),
        Err(StartError::BudgetTooSmall(b)) => return Err(StartError::BudgetTooSmall(b)),
        Err(why) => why,
    };
    if settings.faults == Faults::Inline {
        return Err(why);
    }
    start_with_messages(settings)
}

fn start_with_messages(settings: &Settings) -> Result<Weir, StartError> {
    let engine = Engine::start(settings, Intake::Messages)?;
    engine.set_chore(live::write);
    Ok(engine)
}

/// The engine with faults resolved in the faulting thread, its system-call gate open.
fn start_inline(settings: &Settings) -> Result<Weir, StartError> {
    if !ours::taken() {
        return Err(StartError::Inline(GateError::Signals));
    }
    let engine = Engine::start(settings, Intake::InThread)?;
    engine.open_gate().map_err(StartError::Inline)?;
    engine.set_chore(|| {
        handlers::keep_signals();
        live::write();
    });
    Ok(engine)
}
