//! The constructor: reads the environment before anybody else runs.

use crate::{arena, demand, exit, family, fork, inline, kept, start, state};
use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use weir::config::{Faults, Fork, Settings};
use weir::engine::{place, threads::say};

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = init;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn init(_argc: c_int, _argv: *const *const c_char, envp: *const *const c_char) {
    std::panic::set_hook(Box::new(|info| {
        // A dead engine thread would hang the program for ever: say why and end it.
        weir::engine::threads::fatal(format_args!("engine bug: {info}"));
    }));
    inline::tables::prepare();
    arena::prepare();
    kept::prepare();
    demand::prepare(start::start);
    let lookup = |name: &str| lookup(envp, name);
    if lookup("WEIR_DISABLE").is_some_and(|v| v == "1") || lookup("WEIR_MEMORY").is_none() {
        state::set_off();
        family::hand_over();
        return;
    }
    match Settings::from_env(lookup) {
        Ok(mut s) => {
            hand_down_place(&mut s);
            fork::register(s.fork == Fork::Refuse);
            exit::configure(&s);
            take_over(&s);
            state::set_settings(s);
        }
        Err(e) => {
            say(format_args!("{e}"));
            weir_os::sys::exit_group(125);
        }
    }
}

/// Takes what inline faults need; programs that go past libc need it in any mode.
fn take_over(s: &Settings) {
    let past = inline::past::is_wanted();
    if s.faults == Faults::Thread && !past {
        return;
    }
    if inline::handlers::take_signals().is_err() && (s.faults == Faults::Inline || past) {
        say(format_args!("SIGBUS and SIGSYS cannot be taken over"));
        weir_os::sys::exit_group(125);
    }
    if past && let Err(e) = inline::past::begin() {
        say(format_args!(
            "this Go program makes system calls past libc, and the kernel does not announce them ({e}): \
             that takes Linux 6.16, or 5.11 for programs built with -buildmode=exe"
        ));
        weir_os::sys::exit_group(125);
    }
}

/// Without the `weir` command the first program chooses where managed memory lies, for those that it starts
/// as well.
fn hand_down_place(settings: &mut Settings) {
    if settings.place.is_none() {
        let place = place::choose();
        settings.place = Some(place);
        if let Ok(text) = CString::new(place.to_string()) {
            // SAFETY: terminated strings, which libc copies; no other thread runs yet.
            unsafe { libc::setenv(c"WEIR_PLACE".as_ptr(), text.as_ptr(), 0) };
        }
    }
}

extern "C" fn fini() {
    exit::at_exit();
}

/// A variable of the environment block handed to the constructor: `environ` is not set yet.
fn lookup(envp: *const *const c_char, name: &str) -> Option<String> {
    let mut p = envp;
    if p.is_null() {
        return None;
    }
    // SAFETY: the block is a NULL-terminated array of NUL-terminated strings.
    unsafe {
        while !(*p).is_null() {
            let entry = CStr::from_ptr(*p).to_bytes();
            if let Some(rest) = entry.strip_prefix(name.as_bytes())
                && let Some(value) = rest.strip_prefix(b"=")
            {
                return Some(String::from_utf8_lossy(value).into_owned());
            }
            p = p.add(1);
        }
    }
    None
}
