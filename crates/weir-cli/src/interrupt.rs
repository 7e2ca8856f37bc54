//! Ctrl-C and `kill`: noticed, acted on by the code that waits, so that what was changed on the machine is
//! put back.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static SEEN: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on these signals only set a flag, instead of ending the process with swap and control groups in
/// place.
pub fn catch_signals() -> std::io::Result<()> {
    let flag = SEEN.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// Whether one of the signals has come.
pub fn interrupted() -> bool {
    SEEN.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
