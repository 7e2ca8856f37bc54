//! The direction of imports inside the engine:
//! `engine -> {fault, reclaim} -> shared -> {tier, frames} -> {page, policy} -> {limits, sync, error}`.

use super::Finding;
use super::source::Source;

const ENGINE: &str = "crates/weir/src/";

/// Every top module of the engine and its height: a module imports lower ones.
const HEIGHTS: &[(&str, u8)] = &[
    ("library", 7),
    ("engine", 6),
    ("fault", 5),
    ("reclaim", 5),
    ("shared", 4),
    ("tier", 3),
    ("frames", 3),
    ("page", PAGE),
    ("admission", PAGE),
    ("demand", PAGE),
    ("meter", PAGE),
    ("policy", PAGE),
    ("limits", 1),
    ("sync", 1),
    ("error", 1),
    ("door", LEAF),
    ("stats", LEAF),
    ("config", LEAF),
];

/// Leaves may be imported by everybody. They import each other, the lowest modules and the words of `page`.
const LEAF: u8 = 0;
const PAGE: u8 = 2;

/// Names only (page, frame, slot, handle and their sizes): everybody may import it, also what lies below
/// `page`.
const VOCABULARY: &str = "page::id";

/// Modules of one height that must not see each other; on other heights neighbours may.
const STRANGERS: &[&str] = &["fault", "reclaim"];

/// Finds imports against the direction in one file of the engine.
pub fn check(source: &Source) -> Vec<Finding> {
    let Some(module) = top_module(&source.path) else { return Vec::new() };
    if source.product.trim().is_empty() {
        return Vec::new(); // tests may import everything
    }
    if height(&module).is_none() {
        let what = format!(
            "module `{module}` has no place in the order: add it to HEIGHTS in xtask/src/tidy/imports.rs"
        );
        return vec![Finding::new(&source.path, 1, what)];
    }
    let imported = imports(source);
    let words = |offset: usize| source.product[offset..].starts_with(VOCABULARY);
    let wrong = imported.into_iter().filter(|(offset, name)| !words(*offset) && !allowed(&module, name));
    wrong
        .map(|(offset, name)| {
            let what = format!(
                "`{module}` must not import `{name}`: imports point one way, \
                 engine -> {{fault, reclaim}} -> shared -> {{tier, frames}} -> {{page, policy}} -> \
                 {{limits, sync, error}}"
            );
            Finding::new(&source.path, source.line_of(offset), what)
        })
        .collect()
}

fn height(module: &str) -> Option<u8> {
    HEIGHTS.iter().find(|(name, _)| *name == module).map(|(_, height)| *height)
}

/// The top module that a file belongs to; none for `lib.rs` and for files outside the engine.
fn top_module(path: &str) -> Option<String> {
    let inside = path.strip_prefix(ENGINE)?;
    let first = inside.split('/').next()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (module != "lib").then(|| module.to_string())
}

fn allowed(from: &str, to: &str) -> bool {
    let (Some(above), Some(below)) = (height(from), height(to)) else {
        return true; // an item of lib.rs, no module
    };
    if from == to || below == LEAF {
        return true;
    }
    if above == LEAF {
        return below <= PAGE;
    }
    above > below || (above == below && !STRANGERS.contains(&from))
}

/// Top modules named in `crate::...` and `super::...` paths outside tests, with their offsets.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let code = &source.product;
    let mut found = Vec::new();
    for (offset, _) in code.match_indices("crate::") {
        let named = offset > 0 && is_name(code.as_bytes()[offset - 1]);
        if !named {
            found.extend(first_names(code, offset + "crate::".len()));
        }
    }
    let depth = depth_below_root(&source.path);
    let mut at = 0;
    while let Some(start) = code[at..].find("super::").map(|found| at + found) {
        let mut end = start;
        while code[end..].starts_with("super::") {
            end += "super::".len();
        }
        if (end - start) / "super::".len() == depth {
            found.extend(first_names(code, end));
        }
        at = end;
    }
    found
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// How many `super` lead from a file's module to the root of the crate.
fn depth_below_root(path: &str) -> usize {
    let inside = path.strip_prefix(ENGINE).unwrap_or(path);
    let parts = inside.split('/').count();
    if inside.ends_with("/mod.rs") { parts - 1 } else { parts }
}

/// The first names of a path or of a `{...}` group at `from`.
fn first_names(code: &str, from: usize) -> Vec<(usize, String)> {
    let name_at = |start: usize| -> String {
        code[start..].bytes().take_while(|&byte| is_name(byte)).map(char::from).collect()
    };
    if !code[from..].starts_with('{') {
        return vec![(from, name_at(from))];
    }
    let (mut depth, mut names, mut fresh) = (0usize, Vec::new(), false);
    for (offset, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'{' => (depth, fresh) = (depth + 1, depth == 0),
            b'}' if depth == 1 => break,
            b'}' => depth -= 1,
            b',' => fresh = depth == 1,
            _ if fresh && is_name(byte) => {
                names.push((offset, name_at(offset)));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<usize> {
        lines_of(check, path, text)
    }

    #[test]
    fn downward_imports_pass() {
        let text = "use crate::{fault::resolve, frames, limits::MAX};\nuse crate::page::Word;\nuse \
            crate::door::Pager;\n";
        assert_eq!(findings("crates/weir/src/engine/start.rs", text), Vec::<usize>::new());
        assert_eq!(findings("crates/weir/src/frames/mod.rs", "use crate::page::Frame;"), Vec::<usize>::new());
        assert_eq!(findings("crates/weir/src/door.rs", "use crate::page::PageId;"), Vec::<usize>::new());
        assert_eq!(
            findings("crates/weir/src/limits.rs", "use crate::page::id::BLOCK_PAGES;"),
            Vec::<usize>::new()
        );
        assert_eq!(findings("crates/weir/src/lib.rs", "pub use crate::engine::Engine;"), Vec::<usize>::new());
        assert_eq!(findings("crates/weir-cli/src/main.rs", "use crate::engine;"), Vec::<usize>::new());
    }

    #[test]
    fn upward_imports_are_found() {
        assert_eq!(findings("crates/weir/src/page/state.rs", "\nuse crate::engine::Engine;"), vec![2]);
        assert_eq!(findings("crates/weir/src/limits.rs", "use crate::page::Word;"), vec![1]);
        assert_eq!(
            findings("crates/weir/src/tier/pool/mod.rs", "fn f() { crate::reclaim::run_once(); }"),
            vec![1]
        );
        assert_eq!(
            findings("crates/weir/src/door.rs", "use crate::{error::Error,\n frames::{Frame, List}};"),
            vec![2]
        );
    }

    #[test]
    fn fault_and_reclaim_never_meet() {
        assert_eq!(findings("crates/weir/src/fault/mod.rs", "use crate::{page, reclaim};"), vec![1]);
        assert_eq!(findings("crates/weir/src/reclaim/store.rs", "use crate::fault::resolve;"), vec![1]);
        assert_eq!(findings("crates/weir/src/reclaim/mod.rs", "use super::fault::resolve;"), vec![1]);
        assert_eq!(
            findings("crates/weir/src/reclaim/store.rs", "use super::super::fault::resolve;"),
            vec![1]
        );
        assert_eq!(findings("crates/weir/src/reclaim/store.rs", "use super::victims;"), Vec::<usize>::new());
    }

    #[test]
    fn tests_and_comments_may_name_anything() {
        let text = "// use crate::reclaim;\n#[cfg(test)]\nmod tests {\n use crate::reclaim::run_once;\n}\n";
        assert_eq!(findings("crates/weir/src/fault/mod.rs", text), Vec::<usize>::new());
    }

    #[test]
    fn a_module_without_a_place_is_found() {
        assert_eq!(findings("crates/weir/src/misc/mod.rs", "fn f() {}"), vec![1]);
    }
}
