//! Configuration files: where they lie, and the settings in them.

use super::{OPTIONS, names};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Settings of one file, as text by the names of their options.
pub type Values = BTreeMap<String, String>;

/// The user's file, then the system's: the first that has a key wins. Files that are not there are left out.
/// Fails on one that cannot be read or parsed or that has an unknown key: a misspelt setting that does
/// nothing is worse than an error. `env` looks variables up.
pub fn read(env: impl Fn(&str) -> Option<OsString>) -> Result<Vec<(PathBuf, Values)>, String> {
    let mut files = Vec::new();
    for path in paths(env) {
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let values = parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
                files.push((path, values));
            }
            Err(e) if is_absent(e.kind(), || path.symlink_metadata().err().map(|e| e.kind())) => {}
            Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
        }
    }
    Ok(files)
}

fn paths(env: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = PathBuf> {
    let base = env("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let home = || env("HOME").filter(|h| !h.is_empty()).map(|h| Path::new(&h).join(".config"));
    let user = base.or_else(home).map(|dir| dir.join("weir/config.toml"));
    user.into_iter().chain([PathBuf::from("/etc/weir/config.toml")])
}

/// Whether a file that cannot be read (`why`) counts as not there. So does one in a folder that may not be
/// entered (`seen` says why it cannot even be seen): the home folder of somebody else, which HOME still
/// names.
fn is_absent(why: ErrorKind, seen: impl FnOnce() -> Option<ErrorKind>) -> bool {
    match why {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        ErrorKind::PermissionDenied => seen() == Some(ErrorKind::PermissionDenied),
        _ => false,
    }
}

fn parse(text: &str) -> Result<Values, String> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.to_string().trim().to_owned())?;
    let mut values = BTreeMap::new();
    for (key, value) in table {
        if !OPTIONS.iter().any(|option| option.name == key) {
            let known: Vec<&str> = OPTIONS.iter().filter(|o| !o.hidden).map(|o| o.name).collect();
            return Err(match names::nearest(&key, known.iter().copied()) {
                Some(meant) => format!("unknown key '{key}'; did you mean '{meant}'?"),
                None => format!("unknown key '{key}'; known keys: {}", known.join(", ")),
            });
        }
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(on) => u8::from(on).to_string(),
            other => {
                let kind = other.type_str();
                return Err(format!("'{key}' must be a text, a number or true/false, not a {kind}"));
            }
        };
        values.insert(key, text);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_values_of_all_kinds_become_text() {
        let values = parse("memory = \"2G\"\npool-max = 40\nquiet = true\nswap-batch = 64\n").unwrap();
        let get = |key: &str| values.get(key).map(String::as_str);
        assert_eq!(
            (get("memory"), get("pool-max"), get("quiet"), get("swap-batch")),
            (Some("2G"), Some("40"), Some("1"), Some("64"))
        );
    }

    #[test]
    fn a_file_that_cannot_even_be_seen_is_absent_and_one_that_cannot_be_read_is_an_error() {
        assert!(is_absent(ErrorKind::NotFound, || None));
        assert!(is_absent(ErrorKind::PermissionDenied, || Some(ErrorKind::PermissionDenied)));
        assert!(!is_absent(ErrorKind::PermissionDenied, || None));
        assert!(!is_absent(ErrorKind::IsADirectory, || None));
    }

    #[test]
    fn unknown_keys_and_lists_and_broken_files_are_refused() {
        assert!(parse("memroy = \"2G\"").unwrap_err().contains("'memroy'; did you mean 'memory'?"));
        let unknown = parse("xyzzy = 1").unwrap_err();
        assert!(unknown.contains("'xyzzy'; known keys: memory, budget-per, swap"), "{unknown}");
        assert!(parse("memory = [1]").unwrap_err().contains("array"));
        assert!(parse("memory = ").is_err());
    }

    #[test]
    fn the_users_file_comes_before_the_systems_and_lies_in_the_folder_for_configuration() {
        let of = |pairs: &[(&str, &str)]| -> Vec<PathBuf> {
            let env = |name: &str| pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| OsString::from(v));
            paths(env).collect()
        };
        let system = PathBuf::from("/etc/weir/config.toml");
        assert_eq!(of(&[]), std::slice::from_ref(&system));
        let home = PathBuf::from("/h/.config/weir/config.toml");
        assert_eq!(of(&[("HOME", "/h")]), [home.clone(), system.clone()]);
        let own = PathBuf::from("/c/weir/config.toml");
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")]), [own, system.clone()]);
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "relative")]), [home, system]);
    }
}
