//! A reader finds the way: modules say what they are, ARCHITECTURE.md lists every folder.

use super::Finding;
use super::documents::quoted;
use super::source::Source;
use std::collections::BTreeSet;

const MAP: &str = "ARCHITECTURE.md";
/// Top folders that the code map covers.
const COVERED: &[&str] =
    &["crates", "tests", "xtask", "docs", "examples", "packaging", "sim", "fuzz", "bench"];

/// A module begins with `//!` docs.
pub fn module_docs(source: &Source) -> Vec<Finding> {
    let first = source.text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    if first.starts_with("//! ") {
        return Vec::new();
    }
    vec![Finding::new(&source.path, 1, "begin the module with `//!` docs: one sentence on what it is for")]
}

/// Every folder stands in the code map as `` `path/` ``, and every such path exists.
pub fn code_map(texts: &[(String, String)]) -> Vec<Finding> {
    let Some((_, map)) = texts.iter().find(|(path, _)| path == MAP) else {
        return vec![Finding::new(MAP, 0, "missing: it holds the code map")];
    };
    let folders: BTreeSet<String> = texts.iter().flat_map(|(path, _)| folders_of(path)).collect();
    let mut findings = Vec::new();
    for folder in &folders {
        if !map.contains(&format!("`{folder}/`")) {
            findings.push(Finding::new(MAP, 0, format!("the code map does not list `{folder}/`")));
        }
    }
    for (number, line) in map.lines().enumerate() {
        for listed in quoted(line).filter_map(|quoted| quoted.strip_suffix('/')) {
            let top = listed.split('/').next().unwrap_or("");
            if COVERED.contains(&top) && !folders.contains(listed) && listed != "crates" {
                findings.push(Finding::new(
                    MAP,
                    number + 1,
                    format!("`{listed}/` is listed but does not exist"),
                ));
            }
        }
    }
    findings
}

/// Every Rust file of the crates stands in the code map, behind the folder that it lies in, or with its path
/// from a folder that the map lists.
pub fn files_in_map(texts: &[(String, String)]) -> Vec<Finding> {
    let Some((_, map)) = texts.iter().find(|(path, _)| path == MAP) else { return Vec::new() };
    let mut listed: BTreeSet<String> = BTreeSet::new();
    let mut folder = String::new();
    for quoted in map.lines().flat_map(quoted) {
        match quoted.strip_suffix('/') {
            Some(name) if COVERED.contains(&name.split('/').next().unwrap_or("")) => {
                folder = name.to_string()
            }
            _ => {
                listed.insert(format!("{folder}/{quoted}"));
                listed.insert(quoted.to_string());
            }
        }
    }
    let sources = texts.iter().map(|(path, _)| path).filter(|path| path.ends_with(".rs"));
    let missing = sources.filter(|path| path.starts_with("crates/") || path.starts_with("xtask/"));
    let missing = missing.filter(|path| !listed.contains(*path));
    missing.map(|path| Finding::new(MAP, 0, format!("the code map does not list `{path}`"))).collect()
}

/// The folders above a file that the map must list: in `crates` from the package down, without `src` in
/// between being left out.
fn folders_of(path: &str) -> Vec<String> {
    let parts: Vec<&str> = path.split('/').collect();
    if !COVERED.contains(&parts[0]) {
        return Vec::new();
    }
    let first = if parts[0] == "crates" { 2 } else { 1 };
    (first..parts.len()).map(|count| parts[..count].join("/")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(map: &str, paths: &[&str]) -> Vec<(String, String)> {
        let mut texts = vec![(MAP.to_string(), map.to_string())];
        texts.extend(paths.iter().map(|path| (path.to_string(), String::new())));
        texts
    }

    #[test]
    fn listed_folders_pass() {
        let map = "| `crates/weir/` | engine |\n`crates/weir/src/` `crates/weir/src/page/`, `tests/`";
        assert_eq!(
            code_map(&texts(map, &["crates/weir/src/page/id.rs", "tests/a.py", "README.md"])),
            Vec::new()
        );
    }

    #[test]
    fn unlisted_and_vanished_folders_are_found() {
        let found = code_map(&texts(
            "`crates/weir/` `crates/weir/src/`\n`docs/gone/`",
            &["crates/weir/src/page/id.rs"],
        ));
        let what: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "the code map does not list `crates/weir/src/page/`",
                "`docs/gone/` is listed but does not exist"
            ]
        );
        assert_eq!(found[1].line, 2);
    }

    #[test]
    fn files_are_listed_behind_their_folder_or_by_their_path() {
        let map = "`crates/weir/src/`: `lib.rs`, `page/id.rs`\n`crates/weir/src/page/` `state.rs`";
        let paths = ["lib.rs", "page/id.rs", "page/state.rs"].map(|path| format!("crates/weir/src/{path}"));
        let all = texts(map, &paths.each_ref().map(String::as_str));
        assert_eq!(files_in_map(&all), Vec::new());
        let found = files_in_map(&texts(map, &["crates/weir/src/state.rs", "tests/x.c"]));
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("crates/weir/src/state.rs"));
    }

    #[test]
    fn a_missing_map_is_found() {
        assert_eq!(code_map(&[("a.rs".into(), String::new())]).len(), 1);
    }

    #[test]
    fn modules_without_docs_are_found() {
        assert_eq!(module_docs(&Source::new("a.rs", "\n//! What it is.\n")), Vec::new());
        assert_eq!(module_docs(&Source::new("a.rs", "use std::io;\n//! late\n")).len(), 1);
        assert_eq!(module_docs(&Source::new("a.rs", "")).len(), 1);
    }
}
