//! `weir set`: another budget for a process that runs.

use std::process::ExitCode;

use anyhow::bail;
use weir::config::{MEMORY_BYTES_MIN, parse_size};
use weir::engine::summary::Size;
use weir_cli::term;

use crate::cli::SetArgs;
use crate::live::Live;

/// What became of a budget, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// What it was.
    pub before: u64,
    /// What it is now.
    pub after: u64,
}

/// Asks the process, and says what it has now.
pub fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let bytes = budget(&args.memory)?;
    let changed = change(args.pid, bytes)?;
    term::print(&format!("{}\n", told(args.pid, changed)))?;
    match limit(args.pid, changed, bytes) {
        Some(limit) => bail!(limit),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The budget that `--memory` names, bytes.
pub fn budget(text: &str) -> anyhow::Result<u64> {
    let bytes = parse_size(text, weir_os::probe::ram_limit_bytes())
        .map_err(|e| anyhow::anyhow!("invalid value '{text}' for --memory: {e}"))?;
    is_enough(bytes).map(|()| bytes)
}

fn is_enough(bytes: u64) -> anyhow::Result<()> {
    if bytes < MEMORY_BYTES_MIN {
        bail!("a budget of {bytes} bytes is too small; the least is {}", Size(MEMORY_BYTES_MIN));
    }
    Ok(())
}

/// Asks the process for another budget.
pub fn change(pid: u32, bytes: u64) -> anyhow::Result<Changed> {
    is_enough(bytes)?;
    let live = Live::open(pid)?;
    let before = live.shown()?.get("weir_budget_bytes");
    let after = live.ask_for(bytes)?;
    Ok(Changed { before, after })
}

/// What the budget is now, and was.
pub fn told(pid: u32, changed: Changed) -> String {
    format!("process {pid}: {}, was {}", Size(changed.after), Size(changed.before))
}

/// Why the process has less than it was asked for.
pub fn limit(pid: u32, changed: Changed, asked: u64) -> Option<String> {
    let less = changed.after < asked;
    less.then(|| {
        format!("process {pid} has room for no more than it was started with, {}", Size(changed.after))
    })
}
