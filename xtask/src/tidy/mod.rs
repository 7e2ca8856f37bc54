//! Style as a test: each check looks at the files of the repository and returns findings.

mod calls;
mod circles;
mod comments;
mod documents;
mod imports;
mod lengths;
mod links;
mod listing;
mod numbers;
mod ratchet;
mod source;
mod steering;
mod width;
mod words;

use ratchet::Checked;
use source::Source;

/// One thing to fix, with where and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path relative to the root.
    pub path: String,
    /// Line from 1; 0 when the finding is about the whole file.
    pub line: usize,
    /// What is wrong and what to do instead.
    pub what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

/// Runs all checks over the repository and prints the findings; true when no check has more than it may have.
/// `all`: prints accepted findings as well.
pub fn run(all: bool) -> bool {
    let root = crate::places::root();
    let paths = match crate::places::files(&root) {
        Ok(paths) => paths,
        Err(error) => {
            eprintln!("tidy: cannot list the files of {}: {error}", root.display());
            return false;
        }
    };
    // Files that are no UTF-8 (pictures, corpora) have nothing to check.
    let texts: Vec<(String, String)> = paths
        .iter()
        .filter_map(|path| Some((path.clone(), std::fs::read_to_string(root.join(path)).ok()?)))
        .collect();
    let rust = rust_sources(&texts);
    let over_rust = |check: fn(&Source) -> Vec<Finding>| rust.iter().flat_map(check).collect::<Vec<_>>();
    let checks = [
        Checked::strict("direction of imports", over_rust(imports::check)),
        Checked::strict("circles of imports", circles::check(&rust)),
        Checked::strict("lengths", [over_rust(lengths::check_rust), lengths::check_others(&texts)].concat()),
        Checked::strict("module docs", over_rust(listing::module_docs)),
        Checked::strict("code map", [listing::code_map(&texts), listing::files_in_map(&texts)].concat()),
        Checked::strict("banned calls and unsafe", over_rust(calls::check)),
        Checked::strict("words", words::check_all(&texts)),
        Checked::strict("names in documents", documents::names(&texts)),
        Checked::strict("links in documents", links::check(&texts)),
        Checked::strict("invariants in the rules and the code", documents::invariants(&texts)),
        Checked::strict("transitions in the life of a page", documents::transitions(&texts)),
        Checked::ratchet("width of sources", width::check_sources(&texts), ratchet::WIDE_CODE_LINES),
        Checked::ratchet("width of documents", width::check_markdown(&texts), ratchet::WIDE_TEXT_LINES),
        Checked::ratchet("short doc comments", over_rust(comments::check), ratchet::SHORT_DOC_COMMENTS),
        Checked::ratchet(
            "failures without a test",
            documents::rows_without_test(&texts),
            ratchet::ROWS_WITHOUT_TEST,
        ),
        Checked::strict("numbers in policy", over_rust(numbers::check)),
        Checked::ratchet("constants that steer", steering::constants(&texts), ratchet::CONSTANTS),
        Checked::ratchet("feedback loops", steering::loops(&texts), ratchet::LOOPS),
        Checked::ratchet("lines that choose", over_rust(steering::lines), ratchet::LINES_THAT_CHOOSE),
    ];
    for check in &checks {
        let shown = all || !check.passed();
        for Finding { path, line, what } in check.findings.iter().filter(|_| shown) {
            println!("{path}:{line}: {what}");
        }
        println!("{}", check.summary());
    }
    let passed = checks.iter().filter(|check| check.passed()).count();
    println!("{passed} passed, {} failed", checks.len() - passed);
    passed == checks.len()
}

/// Where a check of Rust files finds something in this text.
#[cfg(test)]
fn lines_of(check: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
    check(&Source::new(path, text)).iter().map(|finding| finding.line).collect()
}

/// The Rust files, those of modules that exist only for tests marked as such.
fn rust_sources(texts: &[(String, String)]) -> Vec<Source> {
    let rust = texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let sources: Vec<Source> = rust.map(|(path, text)| Source::new(path, text)).collect();
    let tests: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    let is_test = |path: &str| {
        let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
        tests.iter().any(|test| module == test || module.starts_with(&format!("{test}/")))
    };
    sources
        .into_iter()
        .map(|source| if is_test(&source.path) { source.into_test() } else { source })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_declared_for_tests_count_as_tests_with_all_below_them() {
        let text = |path: &str, text: &str| (path.to_string(), text.to_string());
        let sources = rust_sources(&[
            text("a/lib.rs", "#[cfg(test)]\nmod sim;\nmod real;"),
            text("a/sim/mod.rs", "fn f() {}"),
            text("a/sim/disk.rs", "fn f() {}"),
            text("a/simple.rs", "fn f() {}"),
            text("a/notes.md", "fn f() {}"),
        ]);
        let product: Vec<&str> = sources
            .iter()
            .filter(|source| source.product.contains("fn f"))
            .map(|source| source.path.as_str())
            .collect();
        assert_eq!(product, ["a/simple.rs"]);
    }
}
