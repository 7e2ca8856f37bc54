//! `weir run` as its user sees it: exit statuses, what the program gets, what is refused.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Folder, assert_fails, binary as weir, binary_with as weir_with, stderr, stdout};

const HELLO: &str = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n";

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_programs_own_exit_status_and_output_come_through() {
    let home = Folder::new();
    let library = home.stub_library();
    let output = weir_with(&home, &library)
        .args(["run", "sh", "-c", "echo out; echo err >&2; exit 42"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(42));
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("out\n", "err\n"));
}

#[test]
fn the_program_keeps_the_process_id() {
    let home = Folder::new();
    let library = home.stub_library();
    let mut command = weir_with(&home, &library);
    command.args(["run", "sh", "-c", "echo $$"]).stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    assert_eq!(stdout(&child.wait_with_output().unwrap()).trim(), pid.to_string());
}

#[test]
fn a_missing_program_is_127() {
    let home = Folder::new();
    let library = home.stub_library();
    for name in ["weir-no-such-program", "/no/such/program", "./nothing", ""] {
        let output = weir_with(&home, &library).args(["run", "--", name]).output().unwrap();
        assert_fails(&output, 127, &["not found"]);
    }
}

#[test]
fn a_script_whose_interpreter_is_missing_is_127_and_names_it() {
    let home = Folder::new();
    let library = home.stub_library();
    let direct = home.file("direct", "#!/no/such/interpreter\n");
    let through_env = home.file("through-env", "#!/usr/bin/env weir-no-such-interpreter\n");
    for (script, interpreter) in
        [(&direct, "/no/such/interpreter"), (&through_env, "weir-no-such-interpreter")]
    {
        set_mode(script, 0o755);
        let output = weir_with(&home, &library).arg("run").arg(script).output().unwrap();
        assert_fails(&output, 127, &[interpreter]);
    }
}

#[test]
fn a_file_that_is_not_executable_is_126() {
    let home = Folder::new();
    let library = home.stub_library();
    let file = home.file("plain", "echo no\n");
    for path in [file.as_path(), home.0.as_path()] {
        let output = weir_with(&home, &library).arg("run").arg(path).output().unwrap();
        assert_fails(&output, 126, &["cannot be executed"]);
    }
}

#[test]
fn an_unreadable_script_is_found_in_path_only_if_executable() {
    let home = Folder::new();
    let library = home.stub_library();
    let first = home.file("first/tool", "#!/bin/sh\necho first\n");
    let second = home.file("second/tool", "#!/bin/sh\necho second\n");
    set_mode(&second, 0o755);
    let path =
        format!("{}:{}:/usr/bin:/bin", first.parent().unwrap().display(), second.parent().unwrap().display());
    let output = weir_with(&home, &library).env("PATH", &path).args(["run", "tool"]).output().unwrap();
    assert_eq!(stdout(&output), "second\n", "{}", stderr(&output));
    set_mode(&second, 0o644);
    let output = weir_with(&home, &library).env("PATH", &path).args(["run", "tool"]).output().unwrap();
    assert_fails(&output, 126, &["first/tool"]);
}

#[test]
fn bad_options_and_sizes_are_125_with_the_reason() {
    let home = Folder::new();
    let library = home.stub_library();
    let cases: [(&[&str], &str); 22] = [
        (&["--memory", "1M"], "8 MiB"),
        (&["-m", "300"], "did you mean 300M?"),
        (&["--memory", "-2G"], "negative"),
        (&["--memory", "lots"], "not"),
        (&["--memory", "99999999999G"], "64 bits"),
        (&["--memory", "nan"], "not"),
        (&["--memory", "101%"], "100%"),
        (&["--swap", "https://host/bucket"], "not built yet"),
        (&["--swap", "1M"], "the least is 8 MiB"),
        (&["--swap", "perhaps"], "none, auto, a size or a folder"),
        (&["--swap", "/dev/shm:16M"], "tmpfs"),
        (&["--swap", "16M", "--swap-dir", "/no/such/folder"], "ENOENT"),
        (&["--swap-encryption", "rot13"], "on, none"),
        (&["--swap-io", "aio"], "auto, uring, threads"),
        (&["--policy", "sometimes"], "writeback, writethrough, adaptive"),
        (&["--faults", "sometimes"], "auto, inline, thread"),
        (&["--pool-max", "0"], "1 to 100"),
        (&["--codec", "gzip"], "auto, lz4, zstd, none"),
        (&["--stats-interval", "2"], "--stats FILE"),
        (&["--stats", "a", "--stats-interval", "soon"], "seconds from 0.1"),
        (&["--no-such-option"], "--no-such-option"),
        (&["--memory="], "memory"),
    ];
    for (options, part) in cases {
        let output = weir_with(&home, &library).arg("run").args(options).arg("true").output().unwrap();
        if options == ["--memory="] {
            assert_eq!(output.status.code(), Some(0), "an empty value is the default: {}", stderr(&output));
            continue;
        }
        assert_fails(&output, 125, &[part]);
    }
    assert_fails(&weir_with(&home, &library).arg("run").output().unwrap(), 125, &["PROGRAM"]);
}

#[test]
fn option_parsing_stops_at_the_first_non_option() {
    let home = Folder::new();
    let library = home.stub_library();
    let output = weir_with(&home, &library)
        .args(["run", "--quiet", "echo", "--memory", "1", "--", "-n", "--help"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "--memory 1 -- -n --help\n", "{}", stderr(&output));
}

#[test]
fn the_program_gets_its_name_as_typed_and_our_library_first() {
    let home = Folder::new();
    let library = home.stub_library();
    let other = home.compile("libother.so", "int other_stub;", &["-shared", "-fPIC"]);
    let output = weir_with(&home, &library)
        .env("LD_PRELOAD", &other)
        .args(["run", "sh", "-c", "echo $0; echo $LD_PRELOAD"])
        .output()
        .unwrap();
    let expected = format!("sh\n{} {}\n", library.display(), other.display());
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
}

#[test]
fn settings_reach_the_program_as_variables_with_exact_bytes() {
    let home = Folder::new();
    let library = home.stub_library();
    let output = weir_with(&home, &library)
        .current_dir(&home.0)
        .args(["run", "--memory", "1.5G", "--pool-max", "40%", "--codec", "lz4", "--stats", "s.%p"])
        .args([
            "--swap",
            "/var/tmp:64M",
            "--swap-encryption",
            "none",
            "--swap-io",
            "threads",
            "--swap-batch",
            "8",
        ])
        .args([
            "--policy",
            "writethrough",
            "--fork",
            "refuse",
            "--mlock",
            "deny",
            "--quiet",
            "--faults",
            "thread",
            "env",
        ])
        .output()
        .unwrap();
    let environment = stdout(&output);
    let stats = format!("WEIR_STATS={}/s.%p", home.0.display());
    for line in [
        "WEIR_MEMORY=1610612736",
        "WEIR_POOL_MAX=40",
        "WEIR_CODEC=lz4",
        "WEIR_FORK=refuse",
        "WEIR_MLOCK=deny",
        "WEIR_QUIET=1",
        "WEIR_FAULTS=thread",
        "WEIR_SWAP=67108864",
        "WEIR_SWAP_DIR=/var/tmp",
        "WEIR_SWAP_ENCRYPTION=none",
        "WEIR_SWAP_IO=threads",
        "WEIR_SWAP_BATCH=8",
        "WEIR_POLICY=writethrough",
        "WEIR_PAGER=auto",
        &stats,
    ] {
        assert!(environment.lines().any(|l| l == line), "{line} not in:\n{environment}");
    }
}

#[test]
fn letters_stand_for_memory_quiet_and_verbose() {
    let home = Folder::new();
    let library = home.stub_library();
    let print = ["sh", "-c", "echo $WEIR_MEMORY $WEIR_QUIET $WEIR_VERBOSE"];
    let run = |options: &[&str]| {
        let output = weir_with(&home, &library).arg("run").args(options).args(print).output().unwrap();
        stdout(&output)
    };
    assert_eq!(run(&["-m", "64M"]), "67108864 0 0\n");
    assert_eq!(run(&["-m64M", "-q", "-v"]), "67108864 1 1\n");
}

#[test]
fn a_budget_that_is_a_share_is_handed_down_as_one_until_somebody_names_a_size() {
    let home = Folder::new();
    let library = home.stub_library();
    let run = |options: &[&str]| {
        let print = ["sh", "-c", "echo $WEIR_SHARE=$WEIR_MEMORY"];
        // As under another `weir run`.
        let mut command = weir_with(&home, &library);
        command.env("WEIR_MEMORY", "67108864").env("WEIR_SHARE", "67108864=12%").arg("run");
        stdout(&command.args(options).args(print).output().unwrap())
    };
    assert_eq!(run(&[]), "67108864=12%=67108864\n");
    assert_eq!(run(&["-m", "64M"]), "67108864=12%=67108864\n");
    assert_eq!(run(&["-m", "65M"]), "=68157440\n");
    for (option, share) in [("25%", "25%"), ("max", "max"), ("auto", "50%")] {
        let printed = run(&["-m", option]);
        let parts: Vec<&str> = printed.trim().split('=').collect();
        assert!(parts.len() == 3 && parts[0] == parts[2] && parts[1] == share, "{option}: {printed}");
    }
}

#[test]
fn a_static_program_is_refused_with_the_reason() {
    let home = Folder::new();
    let library = home.stub_library();
    let program = home.compile("static", HELLO, &["-static"]);
    let output = weir_with(&home, &library).arg("run").arg(&program).output().unwrap();
    assert_fails(&output, 125, &["statically linked", "dynamic"]);
    let script = home.file("script", &format!("#!{}\n", program.display()));
    set_mode(&script, 0o755);
    let output = weir_with(&home, &library).arg("run").arg(&script).output().unwrap();
    assert_fails(&output, 125, &["interpreter of", "statically linked"]);
}

/// A compiler without the run-time library of a sanitizer fails here, in `compile`, and says which file it
/// misses.
#[test]
fn programs_with_sanitizers_are_refused_with_what_to_do() {
    let home = Folder::new();
    let library = home.stub_library();
    for (flag, name) in
        [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer"), ("leak", "LeakSanitizer")]
    {
        let shared = home.compile(flag, HELLO, &[&format!("-fsanitize={flag}")]);
        // The library linked into the program.
        let inside = home.compile(
            &format!("{flag}-inside"),
            HELLO,
            &[&format!("-fsanitize={flag}"), &format!("-static-lib{}san", &flag[..1])],
        );
        for (program, name) in [(shared, name), (inside, "sanitizer")] {
            let output = weir_with(&home, &library).arg("run").arg(&program).output().unwrap();
            assert_fails(&output, 125, &[name, "without -fsanitize"]);
            assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        }
    }
    let harmless = home.compile("undefined", HELLO, &["-fsanitize=undefined"]);
    let output = weir_with(&home, &library).arg("run").arg(&harmless).output().unwrap();
    assert_eq!(stdout(&output), "hello\n", "{}", stderr(&output));
}

/// Sections of Go's in a program that does not link libc, as `-buildmode=pie` without cgo makes.
#[test]
fn a_go_program_without_libc_is_refused_with_what_to_do() {
    let home = Folder::new();
    let library = home.stub_library();
    let source = "__attribute__((section(\".go.buildinfo\"))) char info[16] = \"Go\";\nvoid _start(void) { \
        for (;;); }\n";
    let program =
        home.compile("go", source, &["-nostdlib", "-nostartfiles", "-fPIE", "-pie", "-Wl,--no-as-needed"]);
    let output = weir_with(&home, &library).arg("run").arg(&program).output().unwrap();
    assert_fails(&output, 125, &["without libc", "CGO_ENABLED=1"]);
}

#[test]
fn a_setuid_or_setgid_program_is_refused_with_the_reason() {
    let home = Folder::new();
    let library = home.stub_library();
    let program = home.compile("privileged", HELLO, &[]);
    for (mode, part) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        set_mode(&program, mode);
        let output = weir_with(&home, &library).arg("run").arg(&program).output().unwrap();
        assert_fails(&output, 125, &[part, "LD_PRELOAD"]);
    }
    set_mode(&program, 0o755);
    let output = weir_with(&home, &library).arg("run").arg(&program).output().unwrap();
    assert_eq!(stdout(&output), "hello\n");
}

#[test]
fn a_text_without_an_interpreter_line_runs_in_the_shell() {
    let home = Folder::new();
    let library = home.stub_library();
    let script = home.file("script", "echo from the shell\n");
    set_mode(&script, 0o755);
    let output = weir_with(&home, &library).arg("run").arg(&script).output().unwrap();
    assert_eq!(stdout(&output), "from the shell\n", "{}", stderr(&output));
}

#[test]
fn a_missing_library_is_125_and_says_how_to_name_it() {
    let home = Folder::new();
    let output =
        weir(&home).env("WEIR_PRELOAD", home.0.join("nothing.so")).args(["run", "true"]).output().unwrap();
    assert_fails(&output, 125, &["WEIR_PRELOAD", "nothing.so"]);
}

#[test]
fn a_library_path_that_ld_preload_cannot_hold_is_refused() {
    let home = Folder::new();
    let library = home.stub_library();
    let blank = home.0.join("with blank.so");
    std::fs::copy(&library, &blank).unwrap();
    let output = weir_with(&home, &blank).args(["run", "true"]).output().unwrap();
    assert_fails(&output, 125, &["blanks"]);
}

#[test]
fn a_disk_with_too_little_room_is_said_before_the_program_starts() {
    let home = Folder::new();
    let library = home.stub_library();
    let output =
        weir_with(&home, &library).args(["run", "--swap", "/var/tmp:4E", "echo", "no"]).output().unwrap();
    assert_fails(&output, 125, &["4 EiB", "/var/tmp", "--swap none"]);
}

#[test]
fn a_swap_folder_that_was_named_and_cannot_be_had_is_125_wherever_it_was_named() {
    let home = Folder::new();
    let library = home.stub_library();
    let run = |options: &[&str], env: &[(&str, &str)]| {
        let mut command = weir_with(&home, &library);
        command.arg("run").args(options).args(["echo", "no"]).envs(env.iter().copied());
        command.output().unwrap()
    };
    assert_fails(&run(&["--swap-dir", "/dev/shm"], &[]), 125, &["tmpfs", "--swap-dir", "--swap none"]);
    assert_fails(&run(&["--swap", "/dev/shm"], &[]), 125, &["tmpfs"]);
    assert_fails(&run(&["--swap", "/no/such/folder"], &[]), 125, &["ENOENT"]);
    assert_fails(&run(&["--swap", "/proc/self"], &[]), 125, &["/proc/self"]);
    assert_fails(&run(&[], &[("WEIR_SWAP", "/dev/shm")]), 125, &["tmpfs"]);
    assert_fails(&run(&[], &[("WEIR_SWAP_DIR", "/dev/shm")]), 125, &["tmpfs"]);
    home.file("weir/config.toml", "swap-dir = \"/dev/shm\"\n");
    assert_fails(&run(&[], &[]), 125, &["tmpfs"]);
    let none = run(&["--swap", "none"], &[]);
    assert_eq!(stdout(&none), "no\n", "no swap is wanted: {}", stderr(&none));
}

#[test]
fn without_a_folder_named_a_swap_file_that_cannot_be_had_is_a_warning_with_the_reason() {
    let home = Folder::new();
    let library = home.stub_library();
    let run = |options: &str, env: &[(&str, &str)]| {
        let script = format!("ulimit -f 1000; exec \"$0\" run {options} sh -c 'echo $WEIR_SWAP'");
        let mut command = std::process::Command::new("bash");
        let inner = weir_with(&home, &library);
        command.args(["-c", &script]).arg(inner.get_program()).envs(env.iter().copied());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.output().unwrap()
    };
    let loud = run("", &[]);
    assert_eq!((loud.status.code(), stdout(&loud).as_str()), (Some(0), "none\n"), "{}", stderr(&loud));
    assert!(stderr(&loud).contains("1024000 bytes at most (RLIMIT_FSIZE)"), "{}", stderr(&loud));
    assert_eq!(stderr(&run("--quiet", &[])), "");
    // As another program under Weir finds it.
    let inherited = run("", &[("WEIR_SWAP", "auto"), ("WEIR_SWAP_DIR", "/var/tmp")]);
    assert_eq!(inherited.status.code(), Some(0), "{}", stderr(&inherited));
    assert_fails(&run("--swap 16M", &[]), 125, &["RLIMIT_FSIZE"]);
    assert_fails(&run("--swap /var/tmp", &[]), 125, &["RLIMIT_FSIZE"]);
}

#[test]
fn a_program_swaps_by_itself_and_to_the_folder_named_from_where_weir_was_started() {
    let home = Folder::new();
    let library = home.stub_library();
    let print = ["sh", "-c", "echo $WEIR_SWAP $WEIR_SWAP_DIR"];
    let plain = weir_with(&home, &library).arg("run").args(print).output().unwrap();
    assert_eq!(stdout(&plain), "auto /var/tmp\n", "{}", stderr(&plain));
    let named = weir_with(&home, &library)
        .current_dir("/var")
        .args(["run", "--swap", "16M", "--swap-dir", "tmp"])
        .args(print)
        .output()
        .unwrap();
    assert_eq!(stdout(&named), "16777216 /var/tmp\n", "{}", stderr(&named));
    let none = weir_with(&home, &library).args(["run", "--swap", "none"]).args(print).output().unwrap();
    assert_eq!(stdout(&none).trim(), "none", "{}", stderr(&none));
}
