//! Documents say what the code does: what they name exists, and what must be named is.

use super::Finding;
use super::width::prose_lines;
use std::collections::{BTreeMap, HashSet};

/// Where the transitions of the page word are defined, and where a reader looks for them.
const PAGE_WORD: &str = "crates/weir/src/page/state.rs";
const LIFE_OF_A_PAGE: &str = "docs/life-of-a-page.md";
/// Where the invariants are defined.
const RULES: &str = "docs/rules.md";
const FAILURE: &str = "docs/failure.md";

/// Names in backticks that stand in no source, with the reason why a document needs them.
const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "a flag of the kernel that the code has as a number",
        &["UFFD_FEATURE_SIGBUS", "ALLOW_SRC_HOLES", "MLOCK_ONFAULT"],
    ),
    (
        "the program's business: Weir does nothing about it",
        &["CLONE_NEWUSER", "MSG_ZEROCOPY", "KVM_SET_USER_MEMORY_REGION", "KVM_RUN"],
    ),
    ("a function of libc that is not hooked", &["asprintf", "aio_", "getaddrinfo_a"]),
    ("a command, or an option of one", &["perf", "ping", "backtrace", "fexceptions", "apptainer"]),
    ("the common part of several names", &["weir_swap_", "_client", "_work"]),
];

/// Documents whose names are checked: decisions and the changelog may name what is gone.
fn is_checked(path: &str) -> bool {
    let in_docs = path.strip_prefix("docs/").is_some_and(|rest| rest.ends_with(".md") && !rest.contains('/'));
    in_docs || path == "ARCHITECTURE.md" || path == "README.md"
}

/// Finds words in backticks that no source knows, and files that are not there.
pub fn names(texts: &[(String, String)]) -> Vec<Finding> {
    let sources = texts.iter().filter(|(path, _)| !path.ends_with(".md"));
    let known: HashSet<&str> = sources.flat_map(|(path, text)| words(path).chain(words(text))).collect();
    let excepted: HashSet<&str> = ELSEWHERE.iter().flat_map(|(_, words)| words.iter().copied()).collect();
    let files: Vec<String> = texts.iter().map(|(path, _)| format!("/{path}")).collect();
    let mut findings = Vec::new();
    for (path, text) in texts.iter().filter(|(path, _)| is_checked(path)) {
        for (line, span) in spans(text) {
            if is_file(span) {
                let there = span.trim_start_matches("../");
                if !files.iter().any(|file| file.ends_with(&format!("/{there}"))) {
                    findings.push(Finding::new(path, line, format!("there is no file `{span}`")));
                }
            } else if let Some(word) =
                words(span).find(|word| !known.contains(word) && !excepted.contains(word))
            {
                let what = format!(
                    "`{word}` is in no source: rename it, or add it to ELSEWHERE in tidy/documents.rs"
                );
                findings.push(Finding::new(path, line, what));
            }
        }
    }
    findings
}

/// Finds transitions of the page word that the walk of a page does not name.
pub fn transitions(texts: &[(String, String)]) -> Vec<Finding> {
    let text_of = |wanted: &str| texts.iter().find(|(path, _)| path == wanted).map(|(_, text)| text.as_str());
    let (Some(code), Some(walk)) = (text_of(PAGE_WORD), text_of(LIFE_OF_A_PAGE)) else {
        return vec![Finding::new(LIFE_OF_A_PAGE, 0, format!("this or {PAGE_WORD} is missing"))];
    };
    let defined = code.split("pub fn ").skip(1).filter_map(|rest| words(rest).next());
    let named: HashSet<&str> = spans(walk).into_iter().map(|(_, span)| span).collect();
    let missing = defined.filter(|name| name.starts_with("try_") && !named.contains(name));
    missing
        .map(|name| Finding::new(LIFE_OF_A_PAGE, 0, format!("the transition `{name}` is not listed")))
        .collect()
}

/// Rows of the table of failures that have no test.
pub fn rows_without_test(texts: &[(String, String)]) -> Vec<Finding> {
    let Some((path, text)) = texts.iter().find(|(path, _)| path == FAILURE) else {
        return vec![Finding::new(FAILURE, 0, "missing")];
    };
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with('|') && line.contains("no test"));
    rows.map(|(number, _)| Finding::new(path, number + 1, "this row has no test")).collect()
}

/// Finds invariants that no assert or message of the code names, and numbers in the code that the rules do
/// not define.
pub fn invariants(texts: &[(String, String)]) -> Vec<Finding> {
    let numbers = |wanted: &dyn Fn(&str) -> bool| -> BTreeMap<u32, String> {
        let files = texts.iter().filter(|(path, _)| wanted(path));
        files.flat_map(|(path, text)| invariants_in(text).map(|number| (number, path.clone()))).collect()
    };
    let ruled = numbers(&|path| path == RULES);
    let named = numbers(&|path| path.starts_with("crates/") && path.ends_with(".rs"));
    let unnamed = ruled.keys().filter(|number| !named.contains_key(number));
    let unruled = named.iter().filter(|(number, _)| !ruled.contains_key(number));
    unnamed
        .map(|number| Finding::new(RULES, 0, format!("no code names INV-{number}: where is it checked?")))
        .chain(unruled.map(|(number, path)| {
            Finding::new(path, 0, format!("INV-{number} is not in {RULES}: define it there"))
        }))
        .collect()
}

/// The numbers behind `INV-` in a text.
fn invariants_in(text: &str) -> impl Iterator<Item = u32> {
    text.split("INV-").skip(1).filter_map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

/// Inline code outside of what is indented or fenced, with its line.
fn spans(text: &str) -> Vec<(usize, &str)> {
    prose_lines(text).flat_map(|(number, line)| quoted(line).map(move |span| (number + 1, span))).collect()
}

/// What stands in backticks.
pub fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// A path with an ending that sources have. Places on a user's machine begin at the root, or with a variable.
fn is_file(span: &str) -> bool {
    let endings = [".rs", ".c", ".h", ".py", ".md", ".toml", ".svg", ".sh"];
    let plain = span.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
    plain && !span.starts_with('/') && endings.iter().any(|ending| span.ends_with(ending) && span != *ending)
}

/// Names of three letters and more; a number is none.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.len() > 2 && !word.as_bytes()[0].is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect()
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn invariants_stand_in_the_rules_and_in_the_code() {
        let text = |path: &str, text: &str| (path.to_string(), text.to_string());
        let rules = text(RULES, "| INV-1 | frames |\n**INV-12**: pins\n");
        let code = text("crates/weir/src/shared.rs", "Err(\"INV-1: frames miscounted\")");
        let found =
            |texts: &[(String, String)]| invariants(texts).iter().map(|f| f.what.clone()).collect::<Vec<_>>();
        assert_eq!(found(&[rules.clone(), code.clone()]), ["no code names INV-12: where is it checked?"]);
        let more = text("crates/weir/src/sim.rs", "assert!(a, \"INV-12: b\"); // INV-3 holds");
        assert_eq!(found(&[rules, code, more]), ["INV-3 is not in docs/rules.md: define it there"]);
    }

    #[test]
    fn names_and_files_that_do_not_exist_are_found() {
        let doc = "`Core::full` and `gone_one`\n`page/state.rs`, `page/stat.rs`\n\n    `shown_as_it_is`\n";
        let code = "impl Core { fn full() {} }";
        let found = names(&texts(&[("docs/a.md", doc), ("crates/weir/src/page/state.rs", code)]));
        assert_eq!(lines(&found), [1, 2], "{found:?}");
    }

    #[test]
    fn decisions_may_name_what_is_gone_and_files_of_users_may_be_named() {
        let found = names(&texts(&[
            ("docs/decisions/1.md", "`gone_one`"),
            ("README.md", "`/etc/weir/config.toml` `16 MiB`"),
            ("a.rs", "etc weir config toml MiB"),
        ]));
        assert_eq!(found, Vec::new());
    }

    #[test]
    fn a_transition_that_the_walk_does_not_list_is_found() {
        let code = "pub fn try_stage(self) {}\npub fn try_store(self) {}\npub fn load() {}";
        let found =
            transitions(&texts(&[(PAGE_WORD, code), (LIFE_OF_A_PAGE, "| `try_stage` | `try_store_same` |")]));
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("`try_store`"));
        assert_eq!(transitions(&[]).len(), 1);
    }

    #[test]
    fn rows_without_a_test_are_counted() {
        let text = "\"no test yet\" means that\n| a | b | no test yet |\n| a | b | `x.rs` |\n";
        assert_eq!(lines(&rows_without_test(&texts(&[(FAILURE, text)]))), [2]);
    }
}
