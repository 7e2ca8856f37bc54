//! A doc comment says something, or is not there.

use super::Finding;
use super::source::Source;

/// Words of the shortest doc comment that says something.
const WORDS: usize = 3;

/// Finds doc comments of fewer words. Options of the command line are told by other attributes.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut current: Option<(usize, usize)> = None;
    for (number, line) in source.text.lines().chain([""]).enumerate() {
        let doc = line.trim_start().strip_prefix("///").filter(|rest| !rest.starts_with('/'));
        match (doc, current) {
            (Some(text), _) => {
                let (first, words) = current.unwrap_or((number + 1, 0));
                current = Some((first, words + text.split_whitespace().count()));
            }
            (None, Some((first, words))) if words < WORDS => {
                let what = format!(
                    "a doc comment of {words} word(s), at least {WORDS}: say something, or leave it out"
                );
                findings.push(Finding::new(&source.path, first, what));
                current = None;
            }
            (None, _) => current = None,
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    #[test]
    fn comments_of_two_words_are_found_and_three_pass() {
        let lines = |text: &str| lines_of(check, "a.rs", text);
        assert_eq!(lines("/// The file.\nfn a() {}\n\n    /// Its\n    /// name.\nfn b() {}"), [1, 4]);
        assert_eq!(
            lines("/// The file's\n/// name.\nfn a() {}\n// note\n//// line\n//! docs"),
            Vec::<usize>::new()
        );
        assert_eq!(lines("/// Last."), [1]);
    }
}
