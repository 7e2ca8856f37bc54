//! `weir bench`: becomes `weir-bench`, which lies beside `weir`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::cli::BenchArgs;

/// File name of the binary that measures.
const BINARY: &str = "weir-bench";

/// Returns only when that fails.
pub fn bench(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let own = std::env::current_exe().context("cannot find the path of the weir binary")?;
    let binary = own.with_file_name(BINARY);
    let error = Command::new(&binary).args(&args.args).exec();
    Err(error).with_context(|| explain(&binary))
}

fn explain(binary: &Path) -> String {
    if binary.exists() {
        return format!("cannot start {}", binary.display());
    }
    let folder = binary.parent().unwrap_or(Path::new("/")).display();
    format!("{BINARY} is not in {folder}; `make bench` in Weir's sources builds it")
}
