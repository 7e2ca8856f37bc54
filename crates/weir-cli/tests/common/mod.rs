//! What the tests of `weir` and `weir-bench` share: the binary, a clean environment, and stand-ins for the
//! library.

#![allow(dead_code)] // every test file uses a part of it

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is removed with the value.
pub struct Folder(pub PathBuf);

impl Folder {
    /// A fresh empty folder.
    pub fn new() -> Folder {
        Folder::within(std::env::temp_dir())
    }

    /// A fresh empty folder in this one.
    pub fn within(parent: impl AsRef<Path>) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("weir-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.as_ref().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a file into it.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a shell script into it.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name, &format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Compiles a C text into it.
    pub fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let source = self.file(&format!("{name}.c"), source);
        let path = self.0.join(name);
        let output = Command::new("cc").args(flags).arg("-o").arg(&path).arg(&source).output().expect("cc");
        assert!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        path
    }

    /// A library that does nothing: the tests here are about the command, not about the engine.
    pub fn stub_library(&self) -> PathBuf {
        self.compile("libweir_preload.so", "int weir_stub;", &["-shared", "-fPIC"])
    }

    /// A library that leaves the counters the engine would leave, with this peak in bytes.
    pub fn counting_library(&self, peak_resident_bytes: u64) -> PathBuf {
        let source = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n\
             __attribute__((destructor)) static void leave(void) {{\n\
             const char *name = getenv(\"WEIR_STATS\");\n\
             FILE *file = name ? fopen(name, \"w\") : 0;\n\
             if (file) {{ fprintf(file, \"pgfault 1\\nweir_pager 0\\nweir_peak_resident_bytes \
             {peak_resident_bytes}\\n\"); fclose(file); }}\n}}\n"
        );
        self.compile("libweir_preload.so", &source, &["-shared", "-fPIC"])
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The binary under test, `weir` or `weir-bench`, in an environment without any setting of the machine that
/// runs the tests.
pub fn binary(home: &Folder) -> Command {
    let path = option_env!("CARGO_BIN_EXE_weir").or(option_env!("CARGO_BIN_EXE_weir-bench"));
    let mut command = Command::new(path.expect("cargo names the binary of a test"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WEIR_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("LD_PRELOAD")
        .env_remove("NO_COLOR")
        .env("HOME", &home.0)
        .env("XDG_CONFIG_HOME", &home.0);
    command
}

/// The binary with a library.
pub fn binary_with(home: &Folder, library: &Path) -> Command {
    let mut command = binary(home);
    command.env("WEIR_PRELOAD", library);
    command
}

/// Output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The JSON that a command printed.
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|e| panic!("{e}: {} {}", stdout(output), stderr(output)))
}

/// Messages as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks the exit status and that stderr is one message of Weir's with all these parts.
#[track_caller]
pub fn assert_fails(output: &Output, status: i32, parts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(message.starts_with("weir: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "'{part}' not in: {message}");
    }
    assert!(output.stdout.is_empty(), "stdout belongs to the program: {}", stdout(output));
}
