//! Style as a test: each check looks at the files of the repository and returns findings.

mod calls;
mod imports;
mod lengths;
mod listing;
mod numbers;
mod source;
mod words;

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

/// Runs all checks over the repository and prints the findings; true when there are none.
pub fn run() -> bool {
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
    let checks: [(&str, Vec<Finding>); 7] = [
        ("direction of imports", over_rust(imports::check)),
        ("lengths", [over_rust(lengths::check_rust), lengths::check_others(&texts)].concat()),
        ("module docs", over_rust(listing::module_docs)),
        ("code map", listing::code_map(&texts)),
        ("banned calls and unsafe", over_rust(calls::check)),
        ("words", words::check_all(&texts)),
        ("numbers of the policy", over_rust(numbers::check)),
    ];
    let mut passed = 0;
    for (name, findings) in &checks {
        for Finding { path, line, what } in findings {
            println!("{path}:{line}: {what}");
        }
        println!("{} {name}", if findings.is_empty() { "ok  " } else { "FAIL" });
        passed += usize::from(findings.is_empty());
    }
    println!("{passed} passed, {} failed", checks.len() - passed);
    passed == checks.len()
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
