//! What a comparison changes on the machine, and how it is put back: every change is recorded as an [`Undo`]
//! step the moment it has happened, and put back in reverse order when the guard of the comparison is
//! dropped, when a panic ends the process, and (since signals only set a flag) on Ctrl-C.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use weir_os::host;

use crate::term;

/// How long a group may take to lose its last process, and a device its last user.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// One step back.
#[derive(Debug)]
pub enum Undo {
    /// Writes a text to a file of the kernel's.
    Write(PathBuf, String),
    /// Ends swapping on a device or file.
    SwapOff(PathBuf),
    /// Removes a file.
    RemoveFile(PathBuf),
    /// Removes a control group.
    RemoveDir(PathBuf),
    /// Removes the zram device of this number.
    HotRemove(String),
}

static DONE: Mutex<Vec<Undo>> = Mutex::new(Vec::new());

/// Notes what takes back a change that has just been made.
pub fn remember(step: Undo) {
    DONE.lock().unwrap_or_else(PoisonError::into_inner).push(step);
}

impl Undo {
    fn apply(&self) -> io::Result<()> {
        match self {
            Undo::Write(path, text) => patiently(|| write(path, text)),
            Undo::SwapOff(device) => host::swap_off(device),
            Undo::RemoveFile(path) => fs::remove_file(path),
            Undo::RemoveDir(dir) => patiently(|| fs::remove_dir(dir)),
            Undo::HotRemove(id) => patiently(|| write(Path::new("/sys/class/zram-control/hot_remove"), id)),
        }
    }
}

/// Puts everything back, last change first. What cannot be put back is said on stderr and does not stop the
/// rest.
pub fn put_back() {
    loop {
        // Not held while a step runs: a panic in between must find the rest of the list.
        let step = DONE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(step) = step else { return };
        if let Err(e) = step.apply() {
            term::progress(&format!("weir: could not put back {step:?}: {e}"));
        }
    }
}

/// From now on a panic puts everything back too.
pub fn put_back_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        // Panics abort, so Drop does not run: this is the last chance.
        std::panic::set_hook(Box::new(move |info| {
            previous(info);
            put_back();
        }));
    });
}

/// Retries what is busy for a moment: a group whose last process is still being taken apart, a device being
/// closed.
fn patiently(action: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match action() {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && started.elapsed() < BUSY_PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Writes to a file of the kernel's.
pub fn set(path: &Path, text: &str) -> anyhow::Result<()> {
    write(path, text).with_context(|| format!("cannot write {text} to {}", path.display()))
}

/// Text of a file of the kernel's, without the blanks around it.
pub fn read(path: &Path) -> anyhow::Result<String> {
    Ok(fs::read_to_string(path).with_context(|| path.display().to_string())?.trim().to_owned())
}

/// Writes a setting and remembers the old one, unless it is in force already.
pub fn change(path: &Path, text: &str) -> anyhow::Result<()> {
    let old = read(path)?;
    if old != text {
        set(path, text)?;
        remember(Undo::Write(path.to_owned(), old));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_put_back_last_first() {
        let dir = std::env::temp_dir().join(format!("weir-undo-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        remember(Undo::RemoveDir(dir.clone()));
        let path = dir.join("setting");
        fs::write(&path, "1").unwrap();
        remember(Undo::RemoveFile(path.clone()));
        change(&path, "0").unwrap();
        assert_eq!(read(&path).unwrap(), "0");
        put_back();
        assert!(!path.exists() && !dir.exists(), "the folder goes only when the file has gone before it");
    }
}
