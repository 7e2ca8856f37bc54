//! Paths of one machine do not belong into files that everybody reads.

use super::Finding;

/// Folders at the root of somebody's machine (written apart, so that this file passes its own check).
const ROOTS: &[&str] = &[concat!("/", "work", "/"), concat!("/", "farm", "/")];
/// Found anywhere in a line.
const ANYWHERE: &[&str] = &[concat!(".", "library/")];

/// Finds machine paths in all text files.
pub fn check_all(texts: &[(String, String)]) -> Vec<Finding> {
    texts.iter().flat_map(|(path, text)| check(path, text)).collect()
}

fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let rooted = ROOTS.iter().find(|root| begins_a_path(line, root));
        let anywhere = ANYWHERE.iter().find(|word| line.contains(**word));
        if let Some(word) = rooted.or(anywhere) {
            findings.push(Finding::new(
                path,
                number + 1,
                format!("`{word}` is a path of one machine: leave it out"),
            ));
        }
    }
    findings
}

/// Whether `root` stands in `line` as the beginning of an absolute path.
fn begins_a_path(line: &str, root: &str) -> bool {
    line.match_indices(root).any(|(offset, _)| {
        let before = line[..offset].chars().next_back();
        !before.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_are_found() {
        let text = format!("fine\nsee {}main for it\nand x{}y\n", ROOTS[0], ANYWHERE[0]);
        let lines: Vec<usize> = check("a.md", &text).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
    }

    #[test]
    fn relative_paths_and_words_pass() {
        let text = format!("at home{}x, ..{}x, framework/ and /var/tmp/\n", ROOTS[0], ROOTS[1]);
        assert_eq!(check("a.md", &text), Vec::new());
    }
}
