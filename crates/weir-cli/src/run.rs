//! `weir run`: checks everything that can go wrong, then becomes the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use weir::config::{Faults, OPTIONS, OptionId, Pager, Settings, SwapSetting, format_size, names};
use weir::engine::{base, tree};
use weir_cli::exit::OWN_FAILURE;
use weir_cli::preload;
use weir_os::probe::{self, Errno, InlineFaults, InlineObstacle};

use crate::cli::RunArgs;
use crate::elf::{self, Program};
use crate::settings::Layers;
use crate::swapfile;

/// Exit status when the program exists but cannot be executed, as of `env` and shells.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit status when the program does not exist.
const EXIT_NOT_FOUND: u8 = 127;

/// A failure before the program started: exit status and message.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    message: String,
}

fn own(message: impl Into<String>) -> Failure {
    Failure { status: OWN_FAILURE, message: message.into() }
}

/// Becomes the program; returns only when that fails.
pub fn run(args: &RunArgs) -> ExitCode {
    let failure = match prepare(args) {
        Ok(mut command) => {
            let error = command.exec();
            let status = if error.kind() == std::io::ErrorKind::NotFound {
                // The file was there a moment ago: its interpreter or dynamic linker is what is missing.
                EXIT_NOT_FOUND
            } else {
                EXIT_NOT_EXECUTABLE
            };
            Failure { status, message: format!("{}: {error}", command.get_program().display()) }
        }
        Err(failure) => failure,
    };
    eprintln!("weir: {}", failure.message);
    ExitCode::from(failure.status)
}

fn prepare(args: &RunArgs) -> Result<Command, Failure> {
    let layers = Layers::read(&args.flags).map_err(|e| own(format!("{e:#}")))?;
    let mut settings = layers.settings().map_err(|e| own(format!("{e:#}")))?;
    if settings.stats_interval_ns > 0 && settings.stats.is_none() {
        return Err(own("--stats-interval says how often a file is written: name it with --stats FILE"));
    }
    let name = args.command.first().ok_or_else(|| own("no program given"))?;
    let program = find_in_path(name)?;
    check_program(name, &program)?;
    check_faults(settings.faults, settings.pager)?;
    let library = preload::find().map_err(|e| own(format!("{e:#}")))?;
    let named = layers.names_swap_folder(&settings);
    for warning in swapfile::check(&mut settings, named).map_err(own)?.iter().filter(|_| !settings.quiet) {
        eprintln!("weir: {warning}");
    }

    if let Some(warning) = above(settings.memory, &probe::surroundings()).filter(|_| !settings.quiet) {
        eprintln!("weir: {warning}");
    }

    let mut command = Command::new(&program);
    command.arg0(name).args(&args.command[1..]);
    let existing = std::env::var_os("LD_PRELOAD");
    command.env("LD_PRELOAD", preload::ld_preload(&library, existing.as_deref()));
    for (variable, value) in environment(&layers, &settings) {
        command.env(variable, value);
    }
    // The program keeps the process.
    command.env(names::FIRST_ENV, std::process::id().to_string());
    Ok(command)
}

/// Of a budget that the kernel will not let the program have. What limits it is not known without `/proc`.
fn above(budget: u64, (limit, whose): &(u64, String)) -> Option<String> {
    let (budget_text, limit_text) = (format_size(budget), format_size(*limit));
    (*limit > 0 && budget > *limit).then(|| {
        format!(
            "a budget of {budget_text} is above {whose}, {limit_text}: the kernel may end the program first"
        )
    })
}

/// One variable per option. Memory is passed on as exact bytes, so that a percentage is worked out once;
/// relative paths are made absolute, since the program may change its folder.
fn environment(layers: &Layers, settings: &Settings) -> Vec<(&'static str, OsString)> {
    let mut variables = Vec::new();
    for option in OPTIONS {
        let value: OsString = match option.id {
            OptionId::Memory => settings.memory.to_string().into(),
            OptionId::PoolMax => settings.pool_max_percent.to_string().into(),
            OptionId::Swap => match &settings.swap {
                None => "none".into(),
                Some(SwapSetting { bytes: None, .. }) => "auto".into(),
                Some(SwapSetting { bytes: Some(bytes), .. }) => bytes.to_string().into(),
            },
            OptionId::SwapDir => match &settings.swap {
                Some(swap) => std::path::absolute(&swap.dir).unwrap_or_else(|_| swap.dir.clone()).into(),
                None => continue,
            },
            OptionId::Tree => match settings.per_tree {
                true => tree::path(settings).to_string_lossy().into_owned().into(),
                false => continue,
            },
            // Also where there is none: it would be inherited.
            OptionId::Share => match &settings.share {
                Some(share) => format!("{}={share}", settings.memory).into(),
                None => OsString::new(),
            },
            OptionId::Place => settings.place.unwrap_or_else(base::choose).to_string().into(),
            OptionId::Quiet => u8::from(settings.quiet).to_string().into(),
            OptionId::Verbose => u8::from(settings.verbose).to_string().into(),
            OptionId::Stats => match &settings.stats {
                Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()).into(),
                None => continue,
            },
            _ => layers.value(option).0.trim().into(),
        };
        variables.push((option.env, value));
    }
    variables
}

/// The file that `execvp` would start: names without a slash are looked up in PATH; the first executable one
/// counts, and one that exists but is not executable is remembered for the message.
pub fn find_in_path(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.display();
    let not_found = || Failure { status: EXIT_NOT_FOUND, message: format!("{shown}: program not found") };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable_file(&path) {
            Ok(()) => Ok(path),
            Err(Unusable::Missing) => Err(not_found()),
            Err(Unusable::Not(why)) => Err(Failure {
                status: EXIT_NOT_EXECUTABLE,
                message: format!("{shown}: cannot be executed: {why}"),
            }),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for dir in std::env::split_paths(&search) {
        // An empty entry means the current folder.
        let path = if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        match executable_file(&path) {
            Ok(()) => return Ok(path),
            Err(Unusable::Missing) => {}
            Err(Unusable::Not(why)) => drop(refused.get_or_insert((path, why))),
        }
    }
    Err(match refused {
        Some((path, why)) => Failure {
            status: EXIT_NOT_EXECUTABLE,
            message: format!("{}: cannot be executed: {why}", path.display()),
        },
        None => Failure { status: EXIT_NOT_FOUND, message: format!("{shown}: program not found in PATH") },
    })
}

enum Unusable {
    Missing,
    Not(String),
}

fn executable_file(path: &Path) -> Result<(), Unusable> {
    use std::io::ErrorKind;
    match std::fs::metadata(path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(Unusable::Missing)
        }
        Err(e) => Err(Unusable::Not(e.to_string())),
        Ok(metadata) if metadata.is_dir() => Err(Unusable::Not("is a directory".to_owned())),
        Ok(_) => weir_os::host::may_execute(path).map_err(|e| Unusable::Not(e.to_string())),
    }
}

/// Refuses programs that a preloaded library cannot join. A script is judged by its interpreter, followed one
/// level, and through `env`.
fn check_program(name: &OsStr, path: &Path) -> Result<(), Failure> {
    let refuse = |who: &Path, why: &str| Err(own(format!("{} {why}", who.display())));
    let look = |path: &Path| {
        elf::inspect(path).map_err(|e| Failure {
            status: EXIT_NOT_EXECUTABLE,
            message: format!("{}: cannot be read: {e}", path.display()),
        })
    };
    match look(path)? {
        Program::Dynamic => Ok(()),
        Program::Refused(why) => refuse(Path::new(name), &why),
        Program::ShellText => match look(Path::new("/bin/sh"))? {
            Program::Refused(why) => refuse(Path::new("/bin/sh"), &why),
            _ => Ok(()),
        },
        Program::Script(interpreter, argument) => {
            executable_file(&interpreter).map_err(|problem| {
                let (status, why) = match problem {
                    Unusable::Missing => (EXIT_NOT_FOUND, "does not exist".to_owned()),
                    Unusable::Not(why) => (EXIT_NOT_EXECUTABLE, why),
                };
                let message = format!("{}: its interpreter {}: {why}", name.display(), interpreter.display());
                Failure { status, message }
            })?;
            if let Program::Refused(why) = look(&interpreter)? {
                return refuse(&interpreter, &format!("(interpreter of {}) {why}", name.display()));
            }
            let Some(target) = env_target(&interpreter, argument.as_deref()) else { return Ok(()) };
            let target_path = find_in_path(&target).map_err(|mut failure| {
                failure.message = format!("{}: interpreter {}", name.display(), failure.message);
                failure
            })?;
            match look(&target_path)? {
                Program::Refused(why) => {
                    refuse(&target_path, &format!("(interpreter of {}) {why}", name.display()))
                }
                _ => Ok(()),
            }
        }
    }
}

/// The program that `#!/usr/bin/env X` or `#!/usr/bin/env -S X ARGS` starts.
fn env_target(interpreter: &Path, argument: Option<&[u8]>) -> Option<OsString> {
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let mut words = argument?.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let word = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    Some(OsStr::from_bytes(word).to_owned())
}

/// The three ways to make userfaultfd available, best first.
pub const USERFAULTFD_FIXES: [&str; 3] = [
    "chgrp users /dev/userfaultfd && chmod 660 /dev/userfaultfd",
    "sysctl -w vm.unprivileged_userfaultfd=1",
    "setpriv --ambient-caps +sys_ptrace --inh-caps +sys_ptrace weir run ... (CAP_SYS_PTRACE)",
];

/// What lets a container have userfaultfd.
pub const CONTAINER_FIX: &str = "in a container: --security-opt seccomp=FILE, with a profile that allows \
    userfaultfd; or --device /dev/userfaultfd";

/// Refuses when nobody could serve faults in the mode asked for.
fn check_faults(asked: Faults, pager: Pager) -> Result<(), Failure> {
    // The common case first: each question costs some system calls at every start.
    if pager == Pager::Segv {
        return without_userfaultfd(asked, InlineFaults::try_now().segv_obstacle()).map_or(Ok(()), Err);
    }
    let inline = || InlineFaults::try_now().obstacle();
    let refused = match asked {
        Faults::Thread => probe::can_open_userfaultfd().err().and_then(|e| refusal(asked, inline(), Err(e))),
        Faults::Inline | Faults::Auto => {
            inline().and_then(|obstacle| refusal(asked, Some(obstacle), probe::can_open_userfaultfd()))
        }
    };
    // No userfaultfd of any kind: guard regions will do.
    let auto = pager == Pager::Auto && asked != Faults::Thread;
    if refused.is_some() && auto && probe::probe().without_userfaultfd() {
        return Ok(());
    }
    refused.map_or(Ok(()), |message| Err(own(message)))
}

/// Why `--pager segv` cannot be had, from what stands in its way.
fn without_userfaultfd(asked: Faults, obstacle: Option<InlineObstacle>) -> Option<Failure> {
    if asked == Faults::Thread {
        return Some(own(
            "--pager segv resolves faults in the faulting thread: it cannot have --faults thread",
        ));
    }
    let fix = |o: InlineObstacle| o.fix().map(|fix| format!("\n{fix}")).unwrap_or_default();
    obstacle.map(|o| own(format!("--pager segv does not work here: {o}{}", fix(o))))
}

/// Why faults cannot be served as asked, from what stands in the way of each mode; `None` when they can.
/// `thread` holds the errors of the device and of the system call.
fn refusal(
    asked: Faults,
    inline: Option<InlineObstacle>,
    thread: Result<(), (Errno, Errno)>,
) -> Option<String> {
    let fixes = match inline.is_some_and(InlineObstacle::is_filter_on_userfaultfd) {
        true => format!("a filter of system calls refuses it; {CONTAINER_FIX}"),
        false => format!(
            "fix it in one of these ways, as root:\n\
             \x20 group access to the device (best): {}\n\
             \x20 for everybody: {}\n\
             \x20 for one program: {}",
            USERFAULTFD_FIXES[0], USERFAULTFD_FIXES[1], USERFAULTFD_FIXES[2]
        ),
    };
    let permission = |(device, syscall): (Errno, Errno)| {
        format!("no permission to use userfaultfd: /dev/userfaultfd: {device}; userfaultfd(2): {syscall}")
    };
    match (asked, inline, thread) {
        (Faults::Thread | Faults::Auto, _, Ok(())) | (Faults::Inline | Faults::Auto, None, _) => None,
        (Faults::Thread, None, Err(errors)) => Some(format!(
            "{}\n--faults inline (or auto) needs no permission and works here; or {fixes}",
            permission(errors)
        )),
        (Faults::Inline, Some(obstacle), Ok(())) => Some(format!(
            "faults cannot be resolved inline: {obstacle}\n--faults thread (or auto) works here"
        )),
        (_, Some(obstacle), Err(errors)) => Some(format!(
            "{}\nand faults cannot be resolved inline, without permission: {obstacle}\n{fixes}",
            permission(errors)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_names_the_program_behind_it() {
        let target = |interpreter: &str, argument: Option<&str>| {
            env_target(Path::new(interpreter), argument.map(str::as_bytes)).map(|t| t.into_string().unwrap())
        };
        assert_eq!(target("/usr/bin/env", Some("python3")).as_deref(), Some("python3"));
        assert_eq!(target("/usr/bin/env", Some("-S A=1 python3 -u")).as_deref(), Some("python3"));
        assert_eq!(target("/usr/bin/env", None), None);
        assert_eq!(target("/usr/bin/python3", Some("-u")), None);
    }

    #[test]
    fn a_budget_above_what_the_kernel_gives_is_said_with_both_numbers() {
        let around = (400 << 20, "the limit of its control group (/sys/fs/cgroup/memory.max)".to_owned());
        let warning = above(2 << 30, &around).unwrap();
        assert!(has(&warning, &["2 GiB", "400 MiB", "memory.max"]), "{warning}");
        assert_eq!(above(400 << 20, &around), None);
        assert_eq!(above(2 << 30, &(0, String::new())), None);
    }

    const FORBIDDEN: Result<(), (Errno, Errno)> = Err((Errno(13), Errno(1)));
    const NO_FILTER: Option<InlineObstacle> = Some(InlineObstacle::Filter(Errno(1)));

    fn has(message: &str, parts: &[&str]) -> bool {
        parts.iter().all(|part| message.contains(part))
    }

    #[test]
    fn inline_and_auto_need_no_permission_where_inline_works() {
        assert_eq!(refusal(Faults::Auto, None, FORBIDDEN), None);
        assert_eq!(refusal(Faults::Inline, None, FORBIDDEN), None);
        assert_eq!(refusal(Faults::Auto, NO_FILTER, Ok(())), None);
    }

    #[test]
    fn the_thread_needs_permission_and_its_fixes_and_inline_are_named() {
        assert_eq!(refusal(Faults::Thread, NO_FILTER, Ok(())), None);
        let message = refusal(Faults::Thread, None, FORBIDDEN).unwrap();
        assert!(has(&message, &["EPERM", "EACCES", "--faults inline"]), "{message}");
        assert!(has(&message, &USERFAULTFD_FIXES), "{message}");
        let without_inline = refusal(Faults::Thread, NO_FILTER, FORBIDDEN).unwrap();
        assert!(has(&without_inline, &USERFAULTFD_FIXES), "{without_inline}");
        assert!(!without_inline.contains("--faults inline"), "{without_inline}");
    }

    #[test]
    fn inline_that_does_not_work_is_refused_with_the_obstacle() {
        let message = refusal(Faults::Inline, NO_FILTER, Ok(())).unwrap();
        assert!(has(&message, &["seccomp", "EPERM", "--faults thread"]), "{message}");
        for asked in [Faults::Inline, Faults::Auto] {
            let message = refusal(asked, NO_FILTER, FORBIDDEN).unwrap();
            assert!(has(&message, &["seccomp", "EACCES"]) && has(&message, &USERFAULTFD_FIXES), "{message}");
        }
    }

    #[test]
    fn where_a_filter_refuses_userfaultfd_no_fix_is_named_that_does_not_help_there() {
        let filter = Some(InlineObstacle::Userfaultfd(Errno(1)));
        for asked in [Faults::Thread, Faults::Inline, Faults::Auto] {
            let message = refusal(asked, filter, FORBIDDEN).unwrap();
            assert!(has(&message, &["--security-opt seccomp=", "--device"]), "{message}");
            assert!(!USERFAULTFD_FIXES.iter().any(|fix| message.contains(fix)), "{message}");
        }
    }

    #[test]
    fn the_pager_without_userfaultfd_is_refused_with_the_obstacle_and_with_a_thread_for_faults() {
        let message = |asked, obstacle| without_userfaultfd(asked, obstacle).map(|f| f.message);
        assert_eq!(message(Faults::Auto, None), None);
        assert!(has(&message(Faults::Thread, None).unwrap(), &["--pager segv", "--faults thread"]));
        let guards = Some(InlineObstacle::Guards(Errno(95)));
        assert!(has(&message(Faults::Inline, guards).unwrap(), &["EOPNOTSUPP", "Linux 6.13"]));
        let no_proc = message(Faults::Inline, Some(InlineObstacle::Guards(Errno(2)))).unwrap();
        assert!(has(&no_proc, &["ENOENT", "mount /proc"]) && !no_proc.contains("6.13"), "{no_proc}");
        let no_memory = message(Faults::Inline, Some(InlineObstacle::Guards(Errno(12)))).unwrap();
        assert!(no_memory.contains("ENOMEM") && !no_memory.contains("6.13"), "{no_memory}");
    }

    #[test]
    fn names_without_a_slash_are_searched_and_others_are_not() {
        assert!(find_in_path(OsStr::new("sh")).is_ok_and(|p| p.is_absolute()));
        assert_eq!(find_in_path(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        let status = |name: &str| find_in_path(OsStr::new(name)).unwrap_err().status;
        assert_eq!(status("weir-no-such-program"), EXIT_NOT_FOUND);
        assert_eq!(status("/no/such/program"), EXIT_NOT_FOUND);
        assert_eq!(status("/etc/passwd"), EXIT_NOT_EXECUTABLE);
        assert_eq!(status("/etc"), EXIT_NOT_EXECUTABLE);
        assert_eq!(status(""), EXIT_NOT_FOUND);
    }
}
