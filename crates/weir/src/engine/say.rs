//! Lines on stderr, and the end of the process with one.

use std::sync::OnceLock;
use weir_os::{file, sys};

/// What the shim still has to tell when the program is about to end.
static LAST_WORDS: OnceLock<fn()> = OnceLock::new();

/// Sets what is called before the process ends because everything is full. It must allocate nothing and take
/// no lock of the engine's.
pub fn set_last_words(f: fn()) {
    let _ = LAST_WORDS.set(f);
}

/// As [`fatal`], where the engine is whole: the program is at its end, and its report is due.
pub(super) fn fatal_with_last_words(args: core::fmt::Arguments<'_>) -> ! {
    say(args);
    if let Some(f) = LAST_WORDS.get() {
        f();
    }
    sys::kill_self()
}

/// Writes one line to stderr without allocating or taking libc's locks.
pub fn say(args: core::fmt::Arguments<'_>) {
    let mut line = Line { buf: [0; 512], len: 0 };
    let _ = core::fmt::write(&mut line, format_args!("weir: {args}\n"));
    let _ = file::write_in_time(2, &line.buf[..line.len]);
}

/// Says why and ends the process as the kernel's out-of-memory killer would: the data cannot be
/// kept, so nothing of the program may run on.
pub fn fatal(args: core::fmt::Arguments<'_>) -> ! {
    say(args);
    sys::kill_self()
}

struct Line {
    buf: [u8; 512],
    len: usize,
}

impl core::fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.buf.len() - self.len);
        self.buf[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}
