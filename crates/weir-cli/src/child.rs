//! Measured programs run as children, so that the process that has to clean up is never the one that is
//! starved of memory.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::exit::OWN_FAILURE;
use crate::interrupt::interrupted;

/// How often a waiting parent looks at the child, the clock and the interrupt flag.
const POLL: Duration = Duration::from_millis(10);

/// What a child said and how long it took.
#[derive(Debug)]
pub struct Finished {
    /// Its standard output.
    pub stdout: String,
    /// From start to end.
    pub elapsed: Duration,
}

/// A child that ended badly by itself.
#[derive(Debug)]
pub struct Failed {
    program: String,
    /// Its wait status.
    pub status: ExitStatus,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed ({})", self.program, self.status)
    }
}

impl std::error::Error for Failed {}

/// Runs a child to its end and collects its stdout; stderr passes through. Fails when the child fails, when
/// it takes longer than `deadline`, and when the user interrupts: in the last two cases the child is killed
/// first. `each_poll` is called while waiting.
pub fn run(
    command: &mut Command,
    deadline: Duration,
    mut each_poll: impl FnMut(u32),
) -> anyhow::Result<Finished> {
    let shown = command.get_program().display().to_string();
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let mut pipe = child.stdout.take().context("the child has no stdout")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let overdue = started.elapsed() > deadline;
        if overdue || interrupted() {
            child.kill()?;
            child.wait()?;
            if overdue {
                bail!("{shown} took longer than {} s and was stopped", deadline.as_secs());
            }
            bail!("interrupted");
        }
        each_poll(child.id());
        std::thread::sleep(POLL);
    };
    let elapsed = started.elapsed();
    if interrupted() {
        bail!("interrupted");
    }
    if !status.success() {
        return Err(Failed { program: shown, status }.into());
    }
    let stdout = match reader.join() {
        Ok(text) => text.with_context(|| format!("output of {shown}"))?,
        Err(_) => bail!("the reader of {shown} failed"),
    };
    Ok(Finished { stdout, elapsed })
}

/// `weir __in-cgroup`
#[derive(Debug, clap::Args)]
pub struct InCgroupArgs {
    /// `cgroup.procs` of the group
    pub procs: PathBuf,
    /// The program to become
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// `weir __in-cgroup PROCS PROGRAM...`: joins the group, then becomes the program, so that not one page of it
/// is charged elsewhere.
pub fn enter_cgroup_and_exec(args: &InCgroupArgs) -> ExitCode {
    let Some((program, rest)) = args.command.split_first() else { return ExitCode::from(OWN_FAILURE) };
    if let Err(e) = std::fs::write(&args.procs, std::process::id().to_string()) {
        eprintln!("weir: cannot enter the control group {}: {e}", args.procs.display());
        return ExitCode::from(OWN_FAILURE);
    }
    let error = Command::new(program).args(rest).exec();
    eprintln!("weir: {}: {error}", program.display());
    ExitCode::from(OWN_FAILURE)
}
