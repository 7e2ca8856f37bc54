//! `weir set`: another budget for a process that runs.

use std::process::ExitCode;

use anyhow::bail;
use weir::config::{MEMORY_BYTES_MIN, parse_size};
use weir::engine::summary::Size;
use weir_cli::term;

use crate::cli::SetArgs;
use crate::live::Live;

/// Asks the process, and says what it has now.
pub fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let bytes = parse_size(&args.memory, weir_os::probe::ram_limit_bytes())
        .map_err(|e| anyhow::anyhow!("invalid value '{}' for --memory: {e}", args.memory))?;
    if bytes < MEMORY_BYTES_MIN {
        bail!("a budget of {bytes} bytes is too small; the least is {}", Size(MEMORY_BYTES_MIN));
    }
    let live = Live::open(args.pid)?;
    let before = live.shown()?.get("weir_budget_bytes");
    let after = live.ask_for(bytes)?;
    term::print(&format!("process {}: {}, was {}\n", args.pid, Size(after), Size(before)))?;
    if after < bytes {
        bail!("process {} has room for no more than it was started with, {}", args.pid, Size(after));
    }
    Ok(ExitCode::SUCCESS)
}
