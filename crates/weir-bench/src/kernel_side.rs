//! `weir __kernel-side`: runs any program under the kernel's own swap on zram and a memory limit, for
//! comparisons that are scripts, and says what RAM that took beside the limit. Everything is put back when
//! the program has ended.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use weir::config::parse_size;
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::{child, interrupt};
use weir_os::probe;

use crate::cli::KernelSideArgs;

/// Runs the program to its end. Its stdout passes through afterwards, the report goes to a file.
pub fn main(args: &KernelSideArgs) -> anyhow::Result<ExitCode> {
    interrupt::catch_signals()?;
    let size = |text: &str| parse_size(text, probe::ram_limit_bytes()).with_context(|| text.to_owned());
    let (program, rest) = args.command.split_first().context("which program?")?;
    let rival = Rival::set_up(Area::Zram, size(&args.limit)?, size(&args.swap)?)?;
    rival.reset_store_peak()?;
    let mut command = rival.command(program.as_ref())?;
    let mut seen = 0;
    let deadline = Duration::from_secs(args.deadline);
    let finished = child::run(command.args(rest), deadline, |_| seen = rival.store_bytes_now().max(seen));
    // Also where the program failed: the kernel may have killed it.
    let report = json!({
        "store_peak_bytes": rival.store_peak_bytes(seen)?,
        "oom_kills": rival.oom_kills()?,
        "description": rival.description,
    });
    std::fs::write(&args.report, format!("{report}\n")).with_context(|| args.report.display().to_string())?;
    print!("{}", finished?.stdout);
    Ok(ExitCode::SUCCESS)
}
