//! Circles of imports between the files of one crate. No file of a circle can be read alone.
//!
//! The graph: a file points to every file that it names by a path (`use` or in place). Calls of methods do
//! not count, and neither does `mod`. A circle is a strongly connected component of more than one file.

use super::Finding;
use super::source::Source;
use std::collections::{BTreeMap, BTreeSet};

/// The engine's files and the shim's: neither crate has a circle.
const CRATES: [&str; 2] = ["crates/weir/src/", "crates/weir-preload/src/"];

/// One finding for each circle.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    CRATES.iter().flat_map(|root| Graph::new(sources, root).circles()).map(|files| finding(&files)).collect()
}

fn finding(files: &[String]) -> Finding {
    let names = files.join(", ");
    let what = format!("these files import each other: {names}; move what they share below them");
    Finding::new(&files[0], 1, what)
}

/// Which file of a crate names which others.
struct Graph {
    names: Vec<String>,
    edges: Vec<BTreeSet<usize>>,
}

impl Graph {
    /// The graph of the product code below `root`.
    fn new(sources: &[Source], root: &str) -> Graph {
        let files: Vec<&Source> = sources
            .iter()
            .filter(|source| source.path.starts_with(root) && !source.product.trim().is_empty())
            .collect();
        let module = |source: &Source| module_of(&source.path[root.len()..]);
        let modules: BTreeMap<Vec<String>, usize> =
            files.iter().enumerate().map(|(file, source)| (module(source), file)).collect();
        let edges = files.iter().enumerate().map(|(file, source)| {
            let own = module(source);
            let paths = paths(&source.product, &own, |child| {
                modules.contains_key(&[own.as_slice(), &[child.to_string()]].concat())
            });
            let named = paths.iter().filter_map(|path| target(&modules, path));
            named.filter(|&other| other != file).collect()
        });
        Graph { names: files.iter().map(|source| source.path.clone()).collect(), edges: edges.collect() }
    }

    /// All files that `from` leads to.
    fn reach(&self, from: usize) -> BTreeSet<usize> {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(self.edges[file].iter().filter(|&&other| seen.insert(other)));
        }
        seen
    }

    /// The names of the files in each circle.
    fn circles(&self) -> Vec<Vec<String>> {
        let reach: Vec<BTreeSet<usize>> = (0..self.names.len()).map(|file| self.reach(file)).collect();
        let both = |a: usize, b: usize| reach[a].contains(&b) && reach[b].contains(&a);
        // Each circle is listed once: by its first file.
        let first = |file: usize| (0..file).all(|before| !both(before, file));
        let heads = (0..self.names.len()).filter(|&file| both(file, file) && first(file));
        let members = |head: usize| (head..self.names.len()).filter(move |&file| both(head, file));
        heads.map(|head| members(head).map(|file| self.names[file].clone()).collect()).collect()
    }
}

/// The module path of a file, from its path below the crate's root.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs");
    let parts = path.split('/').map(String::from).collect::<Vec<_>>();
    match parts.last().map(String::as_str) {
        Some("mod" | "lib" | "main") => parts[..parts.len() - 1].to_vec(),
        _ => parts,
    }
}

/// The file of the deepest module on a path.
fn target(modules: &BTreeMap<Vec<String>, usize>, path: &[String]) -> Option<usize> {
    (0..=path.len()).rev().find_map(|len| modules.get(&path[..len]).copied())
}

/// All paths in `code` that begin with `crate`, `super`, `self` or a child module, from the crate's root on.
fn paths(code: &str, own: &[String], is_child: impl Fn(&str) -> bool) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at + 1 < tokens.len() {
        let inside_path = tokens[..at].ends_with(&["::"]);
        let is_visibility = tokens[..at].ends_with(&["pub", "(", "in"]);
        let prefix = match tokens[at] {
            _ if inside_path || is_visibility || tokens[at + 1] != "::" => None,
            "crate" => Some(Vec::new()),
            "self" => Some(own.to_vec()),
            "super" => Some(own[..own.len().saturating_sub(1)].to_vec()),
            name if is_child(name) => Some([own, &[name.to_string()]].concat()),
            _ => None,
        };
        at += 1;
        if let Some(prefix) = prefix {
            at = walk(&tokens, at + 1, prefix, &mut found);
        }
    }
    found
}

/// Follows a path or a tree of `use` from the token behind `::`; returns where it ends.
fn walk(tokens: &[&str], mut at: usize, mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    loop {
        match tokens.get(at).copied() {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|&token| token != "}") {
                    at = if tokens[at] == "," { at + 1 } else { walk(tokens, at, path.clone(), found) };
                }
                return at + 1;
            }
            Some("super") => {
                path.pop();
            }
            Some("self") => {}
            Some(name) if is_name(name) => path.push(name.into()),
            _ => {
                found.push(path);
                return at + 1;
            }
        }
        at += 1;
        if tokens.get(at) == Some(&"as") {
            at += 2;
        }
        if tokens.get(at) != Some(&"::") {
            found.push(path);
            return at;
        }
        at += 1;
    }
}

/// Names, `::`, and all other characters one by one, without spaces.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let name = rest.find(|c: char| !is_letter(c)).unwrap_or(rest.len());
        let len = if name > 0 {
            name
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        found.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    found
}

fn is_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

fn is_name(token: &str) -> bool {
    token.starts_with(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(&format!("c/src/{path}"), text)).collect();
        let short =
            |files: Vec<String>| files.iter().map(|file| file["c/src/".len()..].to_string()).collect();
        Graph::new(&sources, "c/src/").circles().into_iter().map(short).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle_and_the_others_are_not() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; pub use a::X;"),
            ("a.rs", "use crate::b::Y;"),
            ("b.rs", "fn f() { crate::c::g() }"),
            ("error.rs", "fn f() {}"),
            ("c.rs", "use std::sync::Mutex;\nuse crate::{a::{self, X as Z}, error};"),
        ];
        assert_eq!(circles(&files), [["a.rs", "b.rs", "c.rs"]]);
        assert!(circles(&files[1..4]).is_empty());
    }

    #[test]
    fn a_module_and_its_child_that_name_each_other_are_a_circle() {
        let child = ("a/b.rs", "use super::X;");
        assert_eq!(circles(&[("a/mod.rs", "mod b; fn f() { b::g() }"), child]), [["a/mod.rs", "a/b.rs"]]);
        assert!(circles(&[("a/mod.rs", "mod b; struct X;"), child]).is_empty());
        let visible = ("a/b.rs", "pub(in crate::a) struct X;");
        assert!(circles(&[("a/mod.rs", "mod b; fn f() { b::g() }"), visible]).is_empty());
        assert!(circles(&[("a/mod.rs", "mod b; fn f() { c::b::g() }"), child]).is_empty());
    }

    #[test]
    fn super_leads_up_as_often_as_it_stands() {
        let files = [("a/b/c.rs", "use super::super::d::X;"), ("a/d.rs", "use crate::a::b::{c};")];
        assert_eq!(circles(&files), [["a/b/c.rs", "a/d.rs"]]);
    }

    #[test]
    fn tests_may_import_each_other() {
        let test = "#[cfg(test)]\nmod tests {\n use crate::b::Y;\n}\nfn f() {}";
        assert!(circles(&[("a.rs", test), ("b.rs", "use crate::a::X;")]).is_empty());
    }

    #[test]
    fn each_circle_of_a_crate_is_a_finding_that_names_its_files() {
        let file = |name: &str, text: &str| Source::new(&format!("{}{name}.rs", CRATES[1]), text);
        let sources = [
            file("a", "use crate::b;"),
            file("b", "use crate::a;"),
            file("c", "use crate::d;"),
            file("d", "use crate::e;"),
            file("e", "use crate::c;"),
        ];
        let found = check(&sources);
        assert_eq!(found.len(), 2);
        for (finding, files) in found.iter().zip([&["a", "b"][..], &["c", "d", "e"]]) {
            assert!(
                files.iter().all(|f| finding.what.contains(&format!("{}{f}.rs", CRATES[1]))),
                "{finding:?}"
            );
        }
    }
}
