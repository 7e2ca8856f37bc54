//! Whether a program can be run with a preloaded library, judged from its file before anything starts.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a program file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A dynamically linked program that the preloaded library can join.
    Dynamic,
    /// Weir cannot join it; the text says why.
    Refused(String),
    /// A script; its interpreter and the interpreter's first argument.
    Script(PathBuf, Option<Vec<u8>>),
    /// Neither a program nor a script with an interpreter line: the shell runs it.
    ShellText,
}

const SETUID_OR_SETGID: u32 = 0o6000;
const SETUID: u32 = 0o4000;
const MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const HEADER_LEN: usize = 64;
const PROGRAM_HEADER_LEN: usize = 56;
const PT_INTERP: u32 = 3;
/// Longest interpreter line that the kernel reads, `BINPRM_BUF_SIZE`.
const SCRIPT_LINE_MAX: usize = 256;

/// `e_machine` of the machine this binary was built for, and its name.
#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: (u16, &str) = (62, "x86-64");
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: (u16, &str) = (183, "AArch64");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Weir runs on x86-64 and AArch64");

/// Looks at the program's file. Errors are those of opening and reading it.
pub fn inspect(path: &Path) -> io::Result<Program> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        // Executable but unreadable (mode 0711): exec works, looking inside does not. The linker would ignore
        // LD_PRELOAD only if it is privileged, which the mode tells.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let metadata = std::fs::metadata(path)?;
            return Ok(privileged(path, metadata.mode()).unwrap_or(Program::Dynamic));
        }
        Err(e) => return Err(e),
    };
    let mut start = Vec::with_capacity(SCRIPT_LINE_MAX);
    file.by_ref().take(SCRIPT_LINE_MAX as u64).read_to_end(&mut start)?;
    if start.starts_with(b"#!") {
        return Ok(script(&start));
    }
    if !start.starts_with(&MAGIC) {
        return Ok(Program::ShellText);
    }
    if let Some(refused) = privileged(path, file.metadata()?.mode()) {
        return Ok(refused);
    }
    elf(&start, &mut file)
}

fn privileged(path: &Path, mode: u32) -> Option<Program> {
    let what = if mode & SETUID_OR_SETGID != 0 {
        if mode & SETUID != 0 { "is setuid" } else { "is setgid" }
    } else if weir_os::host::has_file_capabilities(path) {
        "has file capabilities"
    } else {
        return None;
    };
    Some(Program::Refused(format!(
        "{what}: the dynamic linker ignores LD_PRELOAD for privileged programs; run an unprivileged copy of \
         it"
    )))
}

fn elf(header: &[u8], file: &mut File) -> io::Result<Program> {
    let refused = |text: String| Ok(Program::Refused(text));
    if header.len() < HEADER_LEN {
        return refused("is a truncated ELF file".to_owned());
    }
    let (own_machine, own_name) = OWN_MACHINE;
    if header[4] != CLASS_64 || header[5] != LITTLE_ENDIAN {
        let bits = if header[4] == CLASS_64 { "big-endian" } else { "32-bit" };
        return refused(format!("is a {bits} program; Weir's library is 64-bit {own_name}"));
    }
    let machine = u16_at(header, 18);
    if machine != own_machine {
        return refused(format!("is built for another machine (ELF machine {machine}); this is {own_name}"));
    }
    let table_offset = u64_at(header, 32);
    let (entry_len, entries) = (usize::from(u16_at(header, 54)), usize::from(u16_at(header, 56)));
    if entry_len < PROGRAM_HEADER_LEN {
        return refused("has no program headers: not a program".to_owned());
    }
    let mut table = vec![0; entry_len * entries];
    file.seek(SeekFrom::Start(table_offset))?;
    if file.read_exact(&mut table).is_err() {
        return refused("is a truncated ELF file".to_owned());
    }
    let Some(interp) = table.chunks_exact(entry_len).find(|entry| u32_at(entry, 0) == PT_INTERP) else {
        return refused(
            "is statically linked: there is no dynamic linker to load Weir's library; link it dynamically \
             (plain Go programs are static, cgo ones are not)"
                .to_owned(),
        );
    };
    let mut linker = Vec::new();
    file.seek(SeekFrom::Start(u64_at(interp, 8)))?;
    file.take(u64_at(interp, 32).min(4096)).read_to_end(&mut linker)?;
    if linker.windows(7).any(|part| part == b"ld-musl") {
        return refused("is linked against musl; Weir's library needs glibc".to_owned());
    }
    Ok(unsuitable(file).map_or(Program::Dynamic, Program::Refused))
}

/// What a dynamic program must not have been built with, by a symbol of the run-time library that it asks for
/// or, the last one, that a library linked into the program leaves.
const SANITIZERS: [(&str, &str); 7] = [
    ("__asan_init", "AddressSanitizer"),
    ("__tsan_init", "ThreadSanitizer"),
    ("__msan_init", "MemorySanitizer"),
    ("__lsan_init", "LeakSanitizer"),
    ("__hwasan_init", "HWAddressSanitizer"),
    ("__dfsan_init", "DataFlowSanitizer"),
    ("__sanitizer_symbolize_code", "a sanitizer"),
];
/// Names of a program's dynamic symbols that are looked at: hundreds of times what programs have.
const SYMBOL_NAMES_MAX: u64 = 256 << 20;

/// Why the library cannot do its work in a program that it can join.
fn unsuitable(file: &mut File) -> Option<String> {
    let fd = file.as_raw_fd();
    let mut names = None;
    weir_os::elf::each_section(fd, |name, offset, len| {
        if name == b".dynstr" {
            names = Some((offset, len));
        }
        true
    });
    let (offset, len) = names?;
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(offset)).ok()?;
    file.take(len.min(SYMBOL_NAMES_MAX)).read_to_end(&mut text).ok()?;
    let has = |name: &str| text.split(|b| *b == 0).any(|one| one == name.as_bytes());
    if let Some((_, what)) = SANITIZERS.iter().find(|(name, _)| has(name)) {
        return Some(format!(
            "is built with {what}, whose run-time library takes memory and signals for itself: build it \
             without -fsanitize, or run it without weir"
        ));
    }
    if weir_os::elf::is_go(fd) && !has("libc.so.6") {
        return Some(
            "is a Go program without libc, whose memory Weir's library would never see: build it with cgo \
             (CGO_ENABLED=1)"
                .to_owned(),
        );
    }
    None
}

/// `#!INTERPRETER [ARGUMENT]`, as the kernel splits it: at the first blanks, the rest is one argument.
fn script(start: &[u8]) -> Program {
    let line = start[2..].split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
    let mut parts = line.splitn(2, |b| *b == b' ' || *b == b'\t');
    match parts.next() {
        Some(interpreter) if !interpreter.is_empty() => {
            let argument =
                parts.next().map(|rest| rest.trim_ascii().to_vec()).filter(|rest| !rest.is_empty());
            Program::Script(PathBuf::from(OsStr::from_bytes(interpreter)), argument)
        }
        _ => Program::ShellText,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspect_bytes(name: &str, bytes: &[u8]) -> Program {
        let path = std::env::temp_dir().join(format!("weir-elf-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let found = inspect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        found
    }

    fn own_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[track_caller]
    fn assert_refused(program: &Program, part: &str) {
        assert!(matches!(program, Program::Refused(text) if text.contains(part)), "{program:?}");
    }

    #[test]
    fn a_dynamic_program_is_accepted() {
        assert_eq!(inspect(&std::env::current_exe().unwrap()).unwrap(), Program::Dynamic);
    }

    #[test]
    fn a_program_without_a_dynamic_linker_is_refused() {
        let mut bytes = own_program();
        let table = u64_at(&bytes, 32) as usize;
        let (len, entries) = (usize::from(u16_at(&bytes, 54)), usize::from(u16_at(&bytes, 56)));
        for entry in 0..entries {
            let at = table + entry * len;
            if u32_at(&bytes, at) == PT_INTERP {
                bytes[at] = 0;
            }
        }
        assert_refused(&inspect_bytes("static", &bytes), "statically linked");
    }

    #[test]
    fn a_program_linked_against_musl_is_refused() {
        let mut bytes = own_program();
        let linux = b"/ld-linux";
        let at = bytes.windows(linux.len()).position(|part| part == linux).unwrap();
        bytes[at..at + linux.len()].copy_from_slice(b"/ld-musl-");
        assert_refused(&inspect_bytes("musl", &bytes), "needs glibc");
    }

    #[test]
    fn foreign_classes_and_machines_are_refused() {
        let mut bytes = own_program();
        bytes[4] = 1;
        assert_refused(&inspect_bytes("class", &bytes), "32-bit");
        bytes[4] = CLASS_64;
        bytes[5] = 2;
        assert_refused(&inspect_bytes("endian", &bytes), "big-endian");
        bytes[5] = LITTLE_ENDIAN;
        bytes[18] = 8;
        assert_refused(&inspect_bytes("machine", &bytes), "machine 8");
    }

    #[test]
    fn truncated_files_are_refused_not_misread() {
        let bytes = own_program();
        assert_refused(&inspect_bytes("cut-header", &bytes[..40]), "truncated");
        let table = u64_at(&bytes, 32) as usize;
        assert_refused(&inspect_bytes("cut-table", &bytes[..table.max(HEADER_LEN) + 10]), "truncated");
    }

    #[test]
    fn interpreter_lines_are_split_as_the_kernel_does() {
        let script = |text: &str| inspect_bytes("script", text.as_bytes());
        assert_eq!(script("#!/bin/sh\necho"), Program::Script("/bin/sh".into(), None));
        let env = Program::Script("/usr/bin/env".into(), Some(b"-S python3 -u".to_vec()));
        assert_eq!(script("#! /usr/bin/env  -S python3 -u \n"), env);
        assert_eq!(script("#!\n"), Program::ShellText);
        assert_eq!(script("echo hello\n"), Program::ShellText);
        assert_eq!(script(""), Program::ShellText);
    }
}
