//! Where things are: the root of the repository, its files, the build folder, the `weir` binary.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that are never part of the sources.
const IGNORED: &[&str] = &[".git", "target", ".venv", "__pycache__", "node_modules"];

/// The root of the repository: the parent of this package.
pub fn root() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.parent().map(Path::to_path_buf).unwrap_or(package)
}

/// The build folder: `CARGO_TARGET_DIR`, else `target`.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// The `weir` binary under test: `WEIR_BIN`, else the release build.
pub fn weir() -> PathBuf {
    match std::env::var_os("WEIR_BIN") {
        Some(file) => root().join(file),
        None => target().join("release/weir"),
    }
}

/// Paths of all source files relative to `root`, sorted, with `/` between parts: what git tracks or would
/// track, and where there is no git (a release archive) every file outside the ignored folders.
pub fn files(root: &Path) -> std::io::Result<Vec<String>> {
    let git = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output();
    let mut found = Vec::new();
    match git {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            found.extend(text.split('\0').filter(|path| !path.is_empty()).map(String::from));
            // A file that was deleted but not yet committed is still listed.
            found.retain(|path| root.join(path).is_file());
        }
        _ => walk(root, "", &mut found)?,
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn walk(root: &Path, below: &str, found: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            if !IGNORED.contains(&name.as_str()) {
                walk(root, &path, found)?;
            }
        } else {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_holds_the_workspace() {
        assert!(root().join("Cargo.toml").is_file());
        let found = files(&root()).expect("listing");
        assert!(found.iter().any(|path| path == "xtask/src/places.rs"));
        assert!(!found.iter().any(|path| path.starts_with("target/")));
    }

    #[test]
    fn walking_without_git_finds_the_same_sources() {
        let mut found = Vec::new();
        walk(&root().join("xtask"), "", &mut found).expect("walk");
        assert!(found.contains(&"src/places.rs".to_string()));
        assert!(found.contains(&"Cargo.toml".to_string()));
    }
}
