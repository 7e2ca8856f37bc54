//! The constructor: reads the environment before anybody else runs.

use crate::{demand, exit, family, fork, inline, jemalloc, kept, start, state};
use core::ffi::{CStr, c_char, c_int};
use std::ffi::{CString, OsString};
use weir::config::{Faults, Fork, OPTIONS, OptionId, OptionSpec, Pager, Settings, file, names};
use weir::engine::{base, threads::say, tree};

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = init;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn init(argc: c_int, argv: *const *const c_char, envp: *const *const c_char) {
    std::panic::set_hook(Box::new(|info| {
        // A dead engine thread would hang the program for ever: say why and end it.
        weir::engine::threads::fatal(format_args!("engine bug: {info}"));
    }));
    inline::tables::prepare();
    jemalloc::prepare();
    kept::prepare();
    demand::prepare(start::start);
    match settings(&Block(envp)) {
        Ok(Some(mut s)) => {
            hand_down_place(&mut s);
            hand_down_tree(&mut s);
            fork::register(s.fork == Fork::Refuse);
            exit::configure(&s, is_first(&Block(envp)), arguments(argc, argv));
            take_over(&s);
            state::set_settings(s);
        }
        Ok(None) => {
            state::set_off();
            family::hand_over();
        }
        Err(e) => {
            say(format_args!("{e}"));
            weir_os::sys::exit_group(125);
        }
    }
}

/// The settings of this process; `None`: Weir is switched off, or nobody says how much memory there is to be.
///
/// `weir run` hands all of them down as variables. Without it the first process reads the same files, has the
/// same defaults, and hands down what it found.
fn settings(env: &Block) -> Result<Option<Settings>, String> {
    let set = |name: &str| env.get(name).filter(|text| !text.is_empty());
    if set("WEIR_DISABLE").is_some_and(|v| v == "1") {
        return Ok(None);
    }
    let alone = set(names::FIRST_ENV).is_none();
    let files = if alone {
        env.each().try_for_each(|(name, _)| names::check_variable(&String::from_utf8_lossy(name)))?;
        file::read(|name| env.get(name).map(OsString::from))?
    } else {
        Vec::new()
    };
    let in_files = |o: &OptionSpec| files.iter().find_map(|(path, values)| Some((path, values.get(o.name)?)));
    let named = OPTIONS.iter().find(|o| o.id == OptionId::Memory);
    if !named.is_some_and(|o| set(o.env).is_some() || in_files(o).is_some()) {
        return Ok(None);
    }
    let value = |o: &OptionSpec| {
        let found = set(o.env).or_else(|| in_files(o).map(|(_, text)| text.clone()));
        found.or_else(|| Some(o.default_for_programs().to_owned()))
    };
    let settings = Settings::from_values(value, weir_os::probe::ram_limit_bytes).map_err(|e| {
        let option = OPTIONS.iter().find(|o| o.name == e.option && set(o.env).is_none());
        option
            .and_then(in_files)
            .map_or_else(|| e.to_string(), |(path, _)| format!("{}: {e}", path.display()))
    })?;
    if alone {
        OPTIONS
            .iter()
            .filter_map(|o| Some((o.env, in_files(o)?.1)))
            .for_each(|(name, text)| hand_down(name, text));
        hand_down(names::FIRST_ENV, &weir_os::sys::getpid().to_string());
    }
    Ok(Some(settings))
}

/// Whether this process is the first of its tree: an exec keeps the process.
fn is_first(env: &Block) -> bool {
    env.get(names::FIRST_ENV).is_none_or(|pid| pid == weir_os::sys::getpid().to_string())
}

/// The words of the command line.
fn arguments<'a>(argc: c_int, argv: *const *const c_char) -> impl Iterator<Item = &'a [u8]> {
    let count = if argv.is_null() { 0 } else { argc };
    // SAFETY: so many NUL-terminated strings, which live as long as the process.
    (0..count as usize).map(move |i| unsafe { CStr::from_ptr(*argv.add(i)).to_bytes() })
}

/// For the programs that this one starts, unless they are told otherwise.
fn hand_down(name: &str, text: &str) {
    if let (Ok(name), Ok(text)) = (CString::new(name), CString::new(text)) {
        // SAFETY: terminated strings, which libc copies; no other thread runs yet.
        unsafe { libc::setenv(name.as_ptr(), text.as_ptr(), 0) };
    }
}

/// Takes what inline faults need; programs that go past libc need it in any mode.
fn take_over(s: &Settings) {
    if s.pager == Pager::Segv && s.faults == Faults::Thread {
        say(format_args!(
            "--pager segv resolves faults in the faulting thread: it cannot have --faults thread"
        ));
        weir_os::sys::exit_group(125);
    }
    if weir::engine::start::wants_segv(s) {
        inline::ours::keep_segv();
    }
    let past = inline::past::is_wanted();
    if s.faults == Faults::Thread && !past {
        return;
    }
    if inline::handlers::take_signals().is_err() && (s.faults == Faults::Inline || past) {
        say(format_args!("SIGBUS, SIGSYS and SIGSEGV cannot be taken over"));
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
        let place = base::choose();
        settings.place = Some(place);
        hand_down("WEIR_PLACE", &place.to_string());
    }
}

/// The same with the place where the tree shares its budget.
fn hand_down_tree(settings: &mut Settings) {
    if settings.per_tree && settings.tree.is_none() {
        let path = tree::path(settings);
        hand_down("WEIR_TREE", &path.to_string_lossy());
        settings.tree = Some(path);
    }
}

extern "C" fn fini() {
    exit::at_exit();
}

/// The environment block handed to the constructor: `environ` is not set yet.
struct Block(*const *const c_char);

impl Block {
    /// Names and values.
    fn each(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut at = self.0;
        core::iter::from_fn(move || {
            // SAFETY: the block is a NULL-terminated array of NUL-terminated strings.
            unsafe {
                if at.is_null() || (*at).is_null() {
                    return None;
                }
                let entry = CStr::from_ptr(*at).to_bytes();
                at = at.add(1);
                let end = entry.iter().position(|b| *b == b'=').unwrap_or(entry.len());
                Some((&entry[..end], entry.get(end + 1..).unwrap_or_default()))
            }
        })
    }

    fn get(&self, name: &str) -> Option<String> {
        let value = self.each().find_map(|(found, value)| (found == name.as_bytes()).then_some(value))?;
        Some(String::from_utf8_lossy(value).into_owned())
    }
}
