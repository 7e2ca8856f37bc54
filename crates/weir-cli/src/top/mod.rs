//! `weir top`: what processes under Weir do, on the whole terminal, second by second.

mod columns;
mod draw;
mod keys;
mod model;

use std::io::{self, IsTerminal, stdout};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use weir::config::MEMORY_BYTES_MIN;
use weir_cli::{exit, interrupt, term};
use weir_os::file::is_gone;

use crate::cli::TopArgs;
use crate::live::{self, Live, Shown};
use crate::set;
use draw::Colours;
use keys::{Asked, State};
use model::Reading;

/// Between two readings. The first comes sooner, so that rates are there at once.
const PAUSE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(300);
/// How long a signal waits to be noticed.
const LOOK: Duration = Duration::from_millis(100);

/// Shows it until the user has seen enough.
pub fn top(args: &TopArgs) -> anyhow::Result<ExitCode> {
    if !io::stdin().is_terminal() || !stdout().is_terminal() || term::is_dumb() {
        eprintln!(
            "weir: top needs a terminal that it can draw on; `weir stat --watch 1` writes the same as text"
        );
        return Ok(ExitCode::from(exit::USAGE));
    }
    if let Some(pid) = args.pid.filter(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
        bail!("there is no process {pid}");
    }
    interrupt::catch_signals()?;
    show_cursor_after_panics();
    let ended =
        ratatui::try_init().map_err(Into::into).and_then(|mut terminal| watch(&mut terminal, args.pid));
    // Also where only a part of it was set.
    let restored = ratatui::try_restore();
    let status = ended?;
    restored?;
    Ok(status)
}

/// The library's own hook leaves the other screen; the terminal's cursor stays hidden.
fn show_cursor_after_panics() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = execute!(stdout(), Show);
        next(panic);
    }));
}

fn watch(terminal: &mut DefaultTerminal, pid: Option<u32>) -> anyhow::Result<ExitCode> {
    let colours = Colours(term::wants_colours());
    let mut state = State::default();
    let (mut due, mut pause) = (Instant::now(), FIRST_PAUSE);
    let events = events()?;
    loop {
        if interrupt::interrupted() {
            return Ok(ExitCode::from(exit::FAILURE));
        }
        let now = Instant::now();
        if now >= due {
            read(&mut state, pid)?;
            due = now + std::mem::replace(&mut pause, PAUSE);
        }
        terminal.draw(|frame| draw::draw(frame, &mut state, colours))?;
        // A resize or a key is drawn at once.
        let left = due.saturating_duration_since(Instant::now()).min(LOOK);
        let mut next = events.recv_timeout(left).ok();
        while let Some(event) = next {
            match state.take(&event) {
                Asked::End => return Ok(ExitCode::SUCCESS),
                Asked::Budget { pid, bytes } => change(&mut state, pid, bytes),
                Asked::Nothing => {}
            }
            next = events.try_recv().ok().filter(|_| !interrupt::interrupted());
        }
        if is_gone(io::stdin().as_raw_fd()) {
            return Ok(ExitCode::from(exit::FAILURE));
        }
    }
}

/// What is typed. The library waits for the rest of half a key, and for ever where the terminal is gone: it
/// has a thread of its own, which ends with the process.
fn events() -> io::Result<Receiver<Event>> {
    let (send, events) = channel();
    let read = move || {
        while let Ok(event) = event::read() {
            if send.send(event).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("weir-keys".to_owned()).spawn(read)?;
    Ok(events)
}

/// All processes, or one and what it has started.
fn read(state: &mut State, of: Option<u32>) -> io::Result<()> {
    let (shown, unseen) = Live::all()?;
    let read = |shown: Shown| Reading { ancestors: live::ancestors(shown.pid), shown };
    let mut readings: Vec<Reading> = shown.into_iter().map(read).collect();
    readings.retain(|reading| of.is_none_or(|of| reading.shown.pid == of || reading.ancestors.contains(&of)));
    state.model.update(&readings);
    state.unseen = unseen.first().map(ToString::to_string).unwrap_or_default();
    Ok(())
}

/// As `weir set` does; what comes of it is told in the last line.
fn change(state: &mut State, pid: u32, bytes: u64) {
    let asked = bytes.max(MEMORY_BYTES_MIN);
    state.message = match set::change(pid, asked) {
        Ok(changed) => {
            state.model.note_budget(pid, changed.after);
            set::limit(pid, changed, asked).unwrap_or_else(|| set::told(pid, changed))
        }
        Err(e) => e.to_string(),
    };
}
