//! Finding `libweir_preload.so`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// File name of the library.
pub const LIBRARY: &str = "libweir_preload.so";

/// Variable that names the library instead of the search.
pub const OVERRIDE_ENV: &str = "WEIR_PRELOAD";

/// Absolute path of the library: `WEIR_PRELOAD`, else beside the binary, else as installed, else as cargo
/// builds it.
pub fn find() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os(OVERRIDE_ENV).filter(|v| !v.is_empty()) {
        let path = Path::new(&given);
        let path = path.canonicalize().with_context(|| format!("{OVERRIDE_ENV}={}", path.display()))?;
        return usable(path);
    }
    let binary = std::env::current_exe().context("cannot find the path of the weir binary")?;
    let candidates = candidates(&binary);
    for path in &candidates {
        if path.is_file() {
            return usable(path.canonicalize()?);
        }
    }
    let places: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    bail!(
        "{LIBRARY} not found (looked for {}); install it beside the binary or set {OVERRIDE_ENV} to its path",
        places.join(", ")
    )
}

fn candidates(binary: &Path) -> Vec<PathBuf> {
    let dir = binary.parent().unwrap_or(Path::new("/"));
    ["", "../lib/weir", "../lib", "deps"].iter().map(|place| dir.join(place).join(LIBRARY)).collect()
}

/// The dynamic linker splits LD_PRELOAD at blanks and colons and knows no quoting.
fn usable(path: PathBuf) -> anyhow::Result<PathBuf> {
    if path.as_os_str().as_bytes().iter().any(|b| b.is_ascii_whitespace() || *b == b':') {
        bail!("{}: LD_PRELOAD cannot hold a path with blanks or colons; move the library", path.display());
    }
    Ok(path)
}

/// The new value of `LD_PRELOAD`: ours first, then what was there, without a second copy of ours.
pub fn ld_preload(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let rest = existing.map(OsStr::as_bytes).unwrap_or_default();
    for entry in rest.split(|b| b.is_ascii_whitespace() || *b == b':') {
        if !entry.is_empty() && entry != library.as_os_str().as_bytes() {
            value.push(" ");
            value.push(OsStr::from_bytes(entry));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays_behind_ours() {
        let ours = Path::new("/usr/lib/weir/libweir_preload.so");
        let value =
            |existing: Option<&str>| ld_preload(ours, existing.map(OsStr::new)).into_string().unwrap();
        assert_eq!(value(None), "/usr/lib/weir/libweir_preload.so");
        assert_eq!(value(Some("")), "/usr/lib/weir/libweir_preload.so");
        assert_eq!(value(Some("liba.so")), "/usr/lib/weir/libweir_preload.so liba.so");
        assert_eq!(value(Some("a.so:b.so  c.so")), "/usr/lib/weir/libweir_preload.so a.so b.so c.so");
        let nested = value(Some("x.so /usr/lib/weir/libweir_preload.so"));
        assert_eq!(nested, "/usr/lib/weir/libweir_preload.so x.so", "nested runs load it once");
    }

    #[test]
    fn the_library_is_looked_for_beside_the_binary_first() {
        let found = candidates(Path::new("/opt/weir/bin/weir"));
        assert_eq!(found[0], Path::new("/opt/weir/bin/libweir_preload.so"));
        assert!(found.contains(&PathBuf::from("/opt/weir/bin/../lib/weir/libweir_preload.so")));
        assert!(found.contains(&PathBuf::from("/opt/weir/bin/deps/libweir_preload.so")));
    }

    #[test]
    fn paths_that_ld_preload_cannot_hold_are_refused() {
        assert!(usable(PathBuf::from("/a b/x.so")).is_err());
        assert!(usable(PathBuf::from("/a:b/x.so")).is_err());
        assert!(usable(PathBuf::from("/ab/x.so")).is_ok());
    }
}
