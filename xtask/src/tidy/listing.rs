//! A reader finds the way: modules say what they are, ARCHITECTURE.md lists every folder.

use super::Finding;
use super::source::Source;
use std::collections::BTreeSet;

const MAP: &str = "ARCHITECTURE.md";
/// Top folders that the code map covers.
const COVERED: &[&str] = &["crates", "tests", "xtask", "docs", "examples", "scripts", "sim", "fuzz", "bench"];

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
        for listed in line.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.strip_suffix('/')) {
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

/// The folders above a file that the map must list: in `crates` from the package down, without `src` in between
/// being left out.
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
