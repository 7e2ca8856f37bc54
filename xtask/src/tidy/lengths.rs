//! Functions fit on a screen, files stay readable; test modules may be as long as they need.

use super::Finding;
use super::source::{Source, closing_brace, word_offsets};

/// Lines from `fn` to the closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines of a source file, test modules of Rust files not counted.
const FILE_LINES_MAX: usize = 800;
/// Other sources whose length counts.
const KINDS: &[&str] = &[".py", ".c", ".h", ".sh"];

/// Finds other sources that are too long.
pub fn check_others(texts: &[(String, String)]) -> Vec<Finding> {
    let sources = texts.iter().filter(|(path, _)| KINDS.iter().any(|kind| path.ends_with(kind)));
    sources.filter_map(|(path, text)| file_length(path, text.lines().count())).collect()
}

/// Finds a Rust file that is too long, and its functions that are.
pub fn check_rust(source: &Source) -> Vec<Finding> {
    let in_tests = source.tests().lines().filter(|line| !line.trim().is_empty()).count();
    let lines = source.text.lines().count();
    // A file of tests has nothing else to count, and is to be readable too.
    let counted = if source.product.trim().is_empty() { lines } else { lines - in_tests };
    let mut findings: Vec<Finding> = file_length(&source.path, counted).into_iter().collect();
    findings.extend(long_functions(source));
    findings
}

fn file_length(path: &str, lines: usize) -> Option<Finding> {
    let what = format!("{lines} lines, at most {FILE_LINES_MAX}: split the file by theme");
    (lines > FILE_LINES_MAX).then(|| Finding::new(path, 0, what))
}

fn long_functions(source: &Source) -> Vec<Finding> {
    let code = &source.product;
    let mut findings = Vec::new();
    for start in word_offsets(code, "fn") {
        let after = code[start + 2..].trim_start();
        let name: String =
            after.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        // `fn(` is a type; a signature that ends in `;` has no body.
        let Some(open) = body(code, start).filter(|_| !name.is_empty()) else { continue };
        let lines = code[start..closing_brace(code, open)].matches('\n').count() + 1;
        if lines > FUNCTION_LINES_MAX {
            let what = format!(
                "function `{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}: give a step a name"
            );
            findings.push(Finding::new(&source.path, source.line_of(start), what));
        }
    }
    findings
}

/// The brace that opens the body; `;` inside brackets (array types) does not end a signature.
fn body(code: &str, from: usize) -> Option<usize> {
    let mut nested = 0usize;
    for (offset, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => nested += 1,
            b')' | b']' => nested = nested.saturating_sub(1),
            b'{' => return Some(offset),
            b';' if nested == 0 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<Finding> {
        check_rust(&Source::new(path, text))
    }

    fn function(lines: usize) -> String {
        format!("//! x\nfn long(a: [u8; 4]) {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn seventy_lines_pass_and_one_more_is_found() {
        assert_eq!(check("a.rs", &function(FUNCTION_LINES_MAX)), Vec::new());
        let found = check("a.rs", &function(FUNCTION_LINES_MAX + 1));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(found[0].what.contains("`long` has 71 lines"), "{}", found[0].what);
    }

    #[test]
    fn functions_in_test_modules_may_be_long() {
        let text = format!("//! x\n#[cfg(test)]\nmod tests {{\n{}\n}}\n", function(200));
        assert_eq!(check("a.rs", &text), Vec::new());
    }

    #[test]
    fn signatures_without_body_have_no_length() {
        let text =
            format!("trait T {{ fn a(x: [u8; 3]); }}\ntype F = fn(u8);\n{}", "struct S;\n".repeat(100));
        assert_eq!(check("a.rs", &text), Vec::new());
    }

    #[test]
    fn long_files_are_found_without_their_tests() {
        let text = "struct S;\n".repeat(FILE_LINES_MAX + 1);
        assert_eq!(check("a.rs", &text).len(), 1);
        assert_eq!(check("a/tests/b.rs", &text).len(), 1);
        let tested = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            "struct S;\n".repeat(500),
            "struct T;\n".repeat(500)
        );
        assert_eq!(check("a.rs", &tested), Vec::new());
        let others = [("a.py".to_string(), text.clone()), ("a.txt".to_string(), text)];
        assert_eq!(check_others(&others).len(), 1);
    }
}
