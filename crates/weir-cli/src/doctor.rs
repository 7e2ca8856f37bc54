//! `weir doctor`: one line per check, with the command that fixes what is wrong.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use weir::config::{MEMORY_BYTES_MIN, SWAP_BYTES_MIN, format_size};
use weir_cli::exit::FAILURE;
use weir_cli::preload;
use weir_cli::term::{self, Colour};
use weir_os::probe::{self, FaultMode, InlineObstacle, Probe, ThpMode, Tried};
use weir_os::swapfile::Space;

use crate::cli::{JsonArgs, SettingFlags};
use crate::run::{CONTAINER_FIX, USERFAULTFD_FIXES};
use crate::settings::Layers;
use crate::swapfile;

/// Linux kernel that first had `UFFDIO_MOVE`.
const KERNEL_WITH_MOVE: (u32, u32) = (6, 8);
/// Linux's default of `vm.max_map_count`; below it programs with many mappings are short of them even without
/// Weir.
const MAX_MAP_COUNT_DEFAULT: u64 = 65_530;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    detail: String,
    fix: Option<String>,
}

fn ok(name: &'static str, detail: impl Into<String>) -> Check {
    Check { name, status: Status::Ok, detail: detail.into(), fix: None }
}

fn bad(name: &'static str, status: Status, detail: impl Into<String>, fix: &str) -> Check {
    let fix = (!fix.is_empty()).then(|| fix.to_owned());
    Check { name, status, detail: detail.into(), fix }
}

/// Prints the report; the exit status is 1 when a required check fails.
pub fn doctor(args: &JsonArgs) -> anyhow::Result<ExitCode> {
    let mut checks = kernel_checks(probe::probe());
    checks.extend(limit_checks(probe::probe()));
    checks.extend(swap_checks()?);
    checks.push(library_check());
    let healthy = checks.iter().all(|check| check.status != Status::Fail);
    let text = if args.json {
        let faults = probe::probe().auto_faults().map(FaultMode::name);
        format!("{:#}\n", serde_json::json!({ "ok": healthy, "faults": faults, "checks": checks }))
    } else {
        lines(&checks)
    };
    term::print(&text)?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
}

fn lines(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let (word, colour) = match check.status {
            Status::Ok => ("ok  ", Colour::Green),
            Status::Warn => ("warn", Colour::Yellow),
            Status::Fail => ("fail", Colour::Red),
        };
        let fix = check.fix.as_ref().map(|fix| format!(" (fix: {fix})")).unwrap_or_default();
        let _ = writeln!(text, "{}  {} — {}{fix}", term::paint(word, colour), check.name, check.detail);
    }
    text
}

/// For what only a filter of system calls refuses.
const FILTERED: &str = "in a container: --security-opt seccomp=FILE, with a profile that allows it";

fn kernel_checks(p: &Probe) -> Vec<Check> {
    let release = &p.kernel.release;
    let (major, minor) = KERNEL_WITH_MOVE;
    let kernel = if p.kernel.at_least(major, minor) {
        ok("kernel", format!("Linux {release}"))
    } else {
        let detail = format!("Linux {release}; pages are copied instead of moved, which is slower");
        bad("kernel", Status::Warn, detail, &format!("use Linux {major}.{minor} or newer"))
    };
    vec![
        kernel,
        faults_check(p),
        pager_check(p),
        userfaultfd_check(p),
        feature_check(p, "userfaultfd move", "MOVE", "pages are copied instead of moved"),
        feature_check(
            p,
            "userfaultfd write-protect",
            "PAGEFAULT_FLAG_WP",
            "pages cannot be copied out safely",
        ),
        feature_check(p, "userfaultfd poison", "POISON", "a page lost to a read error ends the program"),
        optional(
            "process_madvise on self",
            &p.process_madvise_self,
            "ranges are dropped one by one",
            // From then on the kernel lets everybody do so.
            if p.kernel.at_least(6, 13) { FILTERED } else { "use Linux 6.13 or newer" },
        ),
        optional(
            "io_uring",
            &p.io_uring,
            "the swap file is read and written by pread and pwrite",
            match p.io_uring_disabled {
                Some(0) => FILTERED,
                _ => "sysctl -w kernel.io_uring_disabled=0",
            },
        ),
        optional("seccomp filters", &p.seccomp_filter, "faults cannot be resolved inline", FILTERED),
        match p.thp {
            ThpMode::Always => bad(
                "huge pages",
                Status::Warn,
                "always; memory outside Weir may take more RAM than it uses",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            ),
            mode => ok("huge pages", mode.to_string()),
        },
    ]
}

/// Which mode `--faults auto` takes, and why not the better one.
fn faults_check(p: &Probe) -> Check {
    let inline = p.inline_faults.obstacle();
    let why = inline.map_or_else(String::new, |obstacle| obstacle.to_string());
    let mut fix = inline.and_then(|obstacle| obstacle.fix()).unwrap_or_default();
    if matches!(inline, Some(InlineObstacle::Userfaultfd(_))) && p.seccomp_filter.is_err() {
        fix = "allow userfaultfd(2) and seccomp(2) in the container's seccomp profile";
    }
    match p.auto_faults() {
        Some(FaultMode::Inline) if p.without_userfaultfd() => {
            ok("faults", "inline: resolved in the faulting thread by SIGSEGV, without userfaultfd")
        }
        Some(FaultMode::Inline) if p.inline_faults.moves() => {
            ok("faults", "inline: resolved in the faulting thread, no privileges needed")
        }
        Some(FaultMode::Inline) => {
            ok("faults", "inline: resolved in the faulting thread, no privileges needed; pages are copied")
        }
        Some(FaultMode::Thread) => {
            let detail =
                format!("thread: handed to a thread, which is slower; inline is not possible: {why}");
            bad("faults", Status::Warn, detail, fix)
        }
        None => {
            let thread = if p.userfaultfd.full() {
                "userfaultfd can neither move nor write-protect pages"
            } else {
                "no permission for userfaultfd"
            };
            let detail = format!("nothing can serve them; not inline: {why}; not a thread: {thread}");
            bad("faults", Status::Fail, detail, if fix.is_empty() { "see userfaultfd" } else { fix })
        }
    }
}

/// How pages will travel, and what would let them travel faster.
fn pager_check(p: &Probe) -> Check {
    const NAME: &str = "pager";
    let newer = format!("use Linux {}.{} or newer", KERNEL_WITH_MOVE.0, KERNEL_WITH_MOVE.1);
    let moves = |mode| match mode {
        FaultMode::Inline => p.inline_faults.moves(),
        FaultMode::Thread => p.userfaultfd.has("MOVE"),
    };
    match p.auto_faults() {
        Some(_) if p.without_userfaultfd() => {
            let why = p.inline_faults.userfaultfd.err().map(|e| e.to_string()).unwrap_or_default();
            let detail = format!(
                "segv: userfaultfd is refused ({why}); pages are copied under guard regions, which is slower"
            );
            bad(NAME, Status::Warn, detail, CONTAINER_FIX)
        }
        Some(mode) if !moves(mode) => bad(NAME, Status::Warn, "copy: the kernel does not move pages", &newer),
        Some(_) => ok(NAME, "move: pages are moved by userfaultfd"),
        None => bad(NAME, Status::Fail, "none: see faults", ""),
    }
}

/// Permission for faults that the kernel takes on the program's behalf: what a thread needs to serve faults.
fn userfaultfd_check(p: &Probe) -> Check {
    let u = &p.userfaultfd;
    let say = |tried: &Tried| match tried {
        Ok(()) => "yes".to_owned(),
        Err(e) => e.to_string(),
    };
    let detail = format!(
        "system call: {}; /dev/userfaultfd: {}; user mode only: {}",
        say(&u.syscall),
        say(&u.device),
        say(&u.user_mode_only)
    );
    if u.full() {
        return ok("userfaultfd", detail);
    }
    let fix = USERFAULTFD_FIXES.join("; or: ");
    match p.auto_faults() {
        Some(FaultMode::Inline) if p.without_userfaultfd() => {
            bad("userfaultfd", Status::Warn, format!("{detail}; done without"), CONTAINER_FIX)
        }
        Some(FaultMode::Inline) => {
            let detail = format!("{detail}; only --faults thread needs more");
            bad("userfaultfd", Status::Warn, detail, &fix)
        }
        _ if p.inline_faults.obstacle().is_some_and(InlineObstacle::is_filter_on_userfaultfd) => {
            bad("userfaultfd", Status::Fail, detail, CONTAINER_FIX)
        }
        _ => bad("userfaultfd", Status::Fail, detail, &fix),
    }
}

fn feature_check(p: &Probe, name: &'static str, feature: &str, otherwise: &str) -> Check {
    match p.userfaultfd.features {
        Ok(_) if p.userfaultfd.has(feature) => ok(name, "offered by the kernel"),
        Ok(_) => {
            bad(name, Status::Warn, format!("not offered by the kernel: {otherwise}"), "use a newer kernel")
        }
        Err(e) => bad(name, Status::Warn, format!("unknown: {e}"), "see userfaultfd"),
    }
}

fn optional(name: &'static str, tried: &Tried, otherwise: &str, fix: &str) -> Check {
    match tried {
        Ok(()) => ok(name, "works"),
        Err(e) => bad(name, Status::Warn, format!("{e}: {otherwise}"), fix),
    }
}

fn limit_checks(p: &Probe) -> Vec<Check> {
    let memory = match &p.cgroup_limit {
        Some(limit) if limit.bytes < 2 * MEMORY_BYTES_MIN => bad(
            "memory limit",
            Status::Fail,
            format!("{} ({}): no room for a budget", format_size(limit.bytes), limit.file.display()),
            "raise the container's memory limit",
        ),
        Some(limit) => ok(
            "memory limit",
            format!(
                "{} of {} ({})",
                format_size(limit.bytes),
                format_size(p.ram_bytes),
                limit.file.display()
            ),
        ),
        None => ok("memory limit", format!("none below the machine's {}", format_size(p.ram_bytes))),
    };
    let address_space = match p.rlimit_as_bytes {
        Some(bytes) => bad(
            "address space limit",
            Status::Warn,
            format!("{}; Weir reserves several times its budget", format_size(bytes)),
            "ulimit -v unlimited",
        ),
        None => ok("address space limit", "none"),
    };
    let memlock = p.rlimit_memlock_bytes.map_or("none".to_owned(), format_size);
    let overcommit = match p.overcommit_memory {
        Some(2) => bad(
            "overcommit",
            Status::Warn,
            "vm.overcommit_memory is 2: large allocations are refused however small the budget",
            "sysctl -w vm.overcommit_memory=0",
        ),
        Some(mode) => ok("overcommit", format!("vm.overcommit_memory is {mode}")),
        None => bad("overcommit", Status::Warn, "vm.overcommit_memory cannot be read", ""),
    };
    let maps = match p.max_map_count {
        Some(n) if n < MAX_MAP_COUNT_DEFAULT => bad(
            "mappings",
            Status::Warn,
            format!("vm.max_map_count is {n}"),
            &format!("sysctl -w vm.max_map_count={MAX_MAP_COUNT_DEFAULT}"),
        ),
        Some(n) => ok("mappings", format!("vm.max_map_count is {n}")),
        None => bad("mappings", Status::Warn, "vm.max_map_count cannot be read", ""),
    };
    let swap = if p.swap_devices.is_empty() {
        ok("kernel swap", "none (Weir needs none)")
    } else {
        let names: Vec<String> = p.swap_devices.iter().map(|path| path.display().to_string()).collect();
        ok("kernel swap", names.join(", "))
    };
    vec![memory, address_space, ok("locked memory limit", memlock), overcommit, maps, swap]
}

/// The folder in which `weir run` would make its swap file, with its settings as they are.
fn swap_checks() -> anyhow::Result<Vec<Check>> {
    let settings = Layers::read(&SettingFlags::default())?.settings()?;
    let Some(swap) = &settings.swap else {
        return Ok(vec![ok("swap file", "none wanted: what does not fit in RAM and pool is refused")]);
    };
    Ok(vec![swap_check(&swap.dir, swap.bytes, settings.memory)])
}

const OTHER_FOLDER: &str = "weir run --swap-dir DIR, with a folder on a local disk; or --swap none";

fn swap_check(folder: &Path, wanted: Option<u64>, budget: u64) -> Check {
    const NAME: &str = "swap file";
    let place = match swapfile::file_system(folder) {
        Some(kind) => format!("{} ({kind})", folder.display()),
        None => folder.display().to_string(),
    };
    let granted = match swapfile::try_file(folder, wanted.unwrap_or(SWAP_BYTES_MIN)) {
        Ok(granted) => granted,
        // Without a size given the program runs all the same.
        Err(e) => {
            let status = if wanted.is_some() { Status::Fail } else { Status::Warn };
            return bad(NAME, status, format!("{place}: {e}"), OTHER_FOLDER);
        }
    };
    let space = swapfile::space_in(folder).unwrap_or(Space { free: 0, total: 0 });
    let free = space.free;
    let size = match (wanted, swapfile::auto_in(space, budget)) {
        (Some(bytes), _) => format_size(bytes),
        (None, Ok(bytes)) => format!("auto: up to {}", format_size(bytes)),
        (None, Err(why)) => return bad(NAME, Status::Warn, format!("{place}: {why}"), OTHER_FOLDER),
    };
    let has = |yes: bool, what: &str, otherwise: &str| {
        if yes { what.to_owned() } else { format!("no {what} ({otherwise})") }
    };
    let detail = format!(
        "{size} in {place}, {} free; {}, {}, {}",
        format_size(free),
        has(granted.direct, "O_DIRECT", "swapped pages lie in the page cache too"),
        has(granted.unnamed, "O_TMPFILE", "the file has a name for a moment"),
        has(granted.preallocated, "fallocate", "the disk may turn out full at a write"),
    );
    match granted.direct && granted.preallocated {
        true => ok(NAME, detail),
        false => bad(NAME, Status::Warn, detail, OTHER_FOLDER),
    }
}

fn library_check() -> Check {
    match preload::find() {
        Ok(path) => ok("library", path.display().to_string()),
        Err(e) => bad(
            "library",
            Status::Fail,
            // What follows the semicolon is the fix, which has its own place here.
            format!("{e:#}").split("; ").next().unwrap_or_default(),
            &format!(
                "install it beside the binary, or: export {}=/path/to/{}",
                preload::OVERRIDE_ENV,
                preload::LIBRARY
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_os::probe::{Errno, InlineFaults};
    use weir_os::uffd::{MOVE, SIGBUS};

    fn status_of(checks: &[Check], name: &str) -> Status {
        checks.iter().find(|c| c.name == name).map(|c| c.status).expect(name)
    }

    /// A machine that gives no permission for userfaultfd but allows all that inline faults need.
    fn unprivileged() -> Probe {
        let mut p = probe::probe().clone();
        p.userfaultfd.syscall = Err(Errno(1));
        p.userfaultfd.device = Err(Errno(13));
        p.userfaultfd.user_mode_only = Ok(());
        p.userfaultfd.features = Ok(MOVE);
        p.inline_faults = InlineFaults {
            processor: true,
            userfaultfd: Ok(SIGBUS | MOVE),
            guards: Some(Ok(())),
            gate: Ok(()),
            filter: Ok(()),
        };
        p
    }

    fn names_all_fixes(check: &Check) -> bool {
        let fix = check.fix.as_deref().unwrap_or_default();
        let parts = ["/dev/userfaultfd", "vm.unprivileged_userfaultfd=1", "CAP_SYS_PTRACE"];
        parts.iter().all(|part| fix.contains(part))
    }

    #[test]
    fn a_machine_without_userfaultfd_fails_and_all_three_fixes_are_named() {
        let mut p = unprivileged();
        p.inline_faults.filter = Err(Errno(1));
        let check = userfaultfd_check(&p);
        assert_eq!(check.status, Status::Fail);
        assert!(check.detail.contains("EPERM") && check.detail.contains("EACCES"), "{}", check.detail);
        assert!(names_all_fixes(&check), "{:?}", check.fix);
        let faults = faults_check(&p);
        assert_eq!(faults.status, Status::Fail);
        assert!(faults.detail.contains("seccomp") && faults.detail.contains("no permission"), "{faults:?}");
    }

    #[test]
    fn without_permission_inline_faults_are_fine_and_the_missing_permission_is_a_warning() {
        let p = unprivileged();
        let faults = faults_check(&p);
        assert_eq!((faults.status, faults.fix.as_deref()), (Status::Ok, None));
        assert!(faults.detail.starts_with("inline: "), "{}", faults.detail);
        let check = userfaultfd_check(&p);
        assert_eq!(check.status, Status::Warn);
        assert!(names_all_fixes(&check), "{:?}", check.fix);
    }

    #[test]
    fn where_a_container_refuses_userfaultfd_the_pager_is_segv_and_what_to_allow_is_named() {
        let mut p = unprivileged();
        p.userfaultfd.user_mode_only = Err(Errno(1));
        p.userfaultfd.features = Err(Errno(1));
        p.inline_faults.userfaultfd = Err(Errno(1));
        assert_eq!(faults_check(&p).status, Status::Ok);
        let pager = pager_check(&p);
        assert!(pager.detail.starts_with("segv: ") && pager.detail.contains("EPERM"), "{pager:?}");
        for check in [pager, userfaultfd_check(&p)] {
            let fix = check.fix.as_deref().unwrap_or_default();
            assert_eq!(check.status, Status::Warn, "{check:?}");
            assert!(fix.contains("--security-opt seccomp=") && fix.contains("--device /dev/userfaultfd"));
        }
        p.inline_faults.guards = Some(Err(Errno(95)));
        assert_eq!((faults_check(&p).status, pager_check(&p).status), (Status::Fail, Status::Fail));
        assert_eq!(pager_check(&unprivileged()).status, Status::Ok);
    }

    #[test]
    fn what_only_a_filter_refuses_is_not_mended_by_settings_of_the_machine() {
        let mut p = unprivileged();
        (p.kernel.major, p.kernel.minor, p.io_uring_disabled) = (6, 18, Some(0));
        p.userfaultfd.user_mode_only = Err(Errno(1));
        p.inline_faults.userfaultfd = Err(Errno(1));
        p.inline_faults.guards = Some(Err(Errno(95)));
        (p.io_uring, p.process_madvise_self, p.seccomp_filter) =
            (Err(Errno(1)), Err(Errno(1)), Err(Errno(1)));
        let checks = kernel_checks(&p);
        let fix = |name: &str| checks.iter().find(|c| c.name == name).and_then(|c| c.fix.as_deref()).unwrap();
        for name in ["process_madvise on self", "io_uring", "seccomp filters", "userfaultfd"] {
            assert!(fix(name).contains("--security-opt seccomp="), "{name}: {}", fix(name));
        }
        assert!(fix("faults").contains("userfaultfd(2) and seccomp(2)"), "{}", fix("faults"));
        (p.kernel.minor, p.io_uring_disabled) = (8, Some(2));
        let checks = kernel_checks(&p);
        let fix = |name: &str| checks.iter().find(|c| c.name == name).and_then(|c| c.fix.as_deref()).unwrap();
        assert!(fix("io_uring").contains("sysctl") && fix("process_madvise on self").contains("6.13"));
    }

    #[test]
    fn with_permission_but_no_inline_faults_the_thread_serves_and_the_reason_is_named() {
        let mut p = unprivileged();
        p.userfaultfd.device = Ok(());
        p.inline_faults.gate = Err(Errno(13));
        let faults = faults_check(&p);
        assert_eq!(faults.status, Status::Warn);
        assert!(faults.detail.starts_with("thread: ") && faults.detail.contains("EACCES"), "{faults:?}");
        assert!(faults.fix.is_some());
        assert_eq!(userfaultfd_check(&p).status, Status::Ok);
    }

    #[test]
    fn old_kernels_and_missing_features_are_warnings() {
        let mut p = probe::probe().clone();
        p.kernel.major = 5;
        p.userfaultfd.features = Ok(0);
        p.io_uring = Err(Errno(1));
        let checks = kernel_checks(&p);
        for name in ["kernel", "userfaultfd move", "io_uring"] {
            assert_eq!(status_of(&checks, name), Status::Warn, "{name}");
        }
        let detail = &checks.iter().find(|c| c.name == "io_uring").unwrap().detail;
        assert!(detail.contains("EPERM"), "{detail}");
    }

    #[test]
    fn limits_that_leave_no_room_fail_and_tight_ones_warn() {
        let mut p = probe::probe().clone();
        p.rlimit_as_bytes = Some(1 << 30);
        p.overcommit_memory = Some(2);
        p.max_map_count = Some(1000);
        p.cgroup_limit = Some(probe::CgroupLimit {
            bytes: MEMORY_BYTES_MIN,
            file: "/sys/fs/cgroup/memory.max".into(),
            version: probe::CgroupVersion::V2,
        });
        let checks = limit_checks(&p);
        assert_eq!(status_of(&checks, "memory limit"), Status::Fail);
        for name in ["address space limit", "overcommit", "mappings"] {
            assert_eq!(status_of(&checks, name), Status::Warn, "{name}");
        }
    }

    #[test]
    fn a_swap_folder_in_ram_warns_for_auto_and_fails_for_a_size_asked_for() {
        let check = |folder: &str, wanted| swap_check(Path::new(folder), wanted, 64 << 20);
        let auto = check("/dev/shm", None);
        assert!(auto.status == Status::Warn && auto.detail.contains("tmpfs"), "{auto:?}");
        assert!(auto.fix.as_deref().is_some_and(|fix| fix.contains("--swap-dir")), "{auto:?}");
        assert_eq!(check("/dev/shm", Some(16 << 20)).status, Status::Fail);
        assert!(check("/nowhere", Some(16 << 20)).detail.contains("ENOENT"));
    }

    #[test]
    fn a_swap_folder_on_a_disk_names_what_its_file_system_grants() {
        let check = swap_check(Path::new(env!("CARGO_MANIFEST_DIR")), Some(16 << 20), 64 << 20);
        assert_ne!(check.status, Status::Fail, "{check:?}");
        for part in ["16 MiB", "O_DIRECT", "O_TMPFILE", "fallocate", "free"] {
            assert!(check.detail.contains(part), "{part}: {check:?}");
        }
    }

    #[test]
    fn each_check_is_one_line_with_its_fix() {
        let checks = [ok("a", "fine"), bad("b", Status::Fail, "broken", "mend b")];
        assert_eq!(lines(&checks), "ok    a — fine\nfail  b — broken (fix: mend b)\n");
    }
}
