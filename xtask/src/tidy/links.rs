//! Links of documents lead somewhere: to files that are there, and to headings that are in them.

use super::Finding;
use super::width::prose_lines;
use std::collections::HashMap;

/// Finds links to files and folders that do not exist, and to headings that a document does not have.
pub fn check(texts: &[(String, String)]) -> Vec<Finding> {
    let documents = texts.iter().filter(|(path, _)| is_checked(path));
    let headings: HashMap<&str, Vec<String>> =
        documents.clone().map(|(path, text)| (path.as_str(), places(text))).collect();
    let mut findings = Vec::new();
    for (path, text) in documents {
        for (line, target) in targets(text) {
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let what = match resolve(path, file) {
                Some(there) if !exists(texts, &there) => {
                    format!("the link leads to {there}, which is not there")
                }
                Some(there) if is_unknown(&headings, &there, place) => {
                    format!("{there} has no heading whose link is #{place}")
                }
                Some(_) => continue,
                None => format!("the link to {target} leaves the repository"),
            };
            findings.push(Finding::new(path, line, what));
        }
    }
    findings
}

/// Below `crates` documents are links to those of `docs`, for the packages. The site has its own paths, which
/// `book.py` checks.
fn is_checked(path: &str) -> bool {
    path.ends_with(".md") && !path.starts_with("crates/") && !path.starts_with("docs/site/")
}

/// Targets of links within the repository, with their lines.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    // What stands in backticks is no link; the text of one may have some.
    prose_lines(text).flat_map(|(number, line)| {
        let parts = line.split('`').step_by(2).flat_map(|part| part.split("](").skip(1));
        let found = parts.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
        found.filter(|target| !target.contains(':')).map(move |target| (number + 1, target))
    })
}

/// The path from the root that a link of a document means; none above the root.
fn resolve(document: &str, link: &str) -> Option<String> {
    if link.is_empty() {
        return Some(document.to_string());
    }
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Whether there is a file or a folder of this path.
fn exists(texts: &[(String, String)], there: &str) -> bool {
    texts.iter().any(|(path, _)| {
        path.strip_prefix(there).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Whether a document has no such place. Other files have lines, which nobody checks.
fn is_unknown(headings: &HashMap<&str, Vec<String>>, there: &str, place: &str) -> bool {
    let known = headings.get(there).map(|places| places.iter().any(|known| known == place));
    !place.is_empty() && known == Some(false)
}

/// How links name the headings of a document.
fn places(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose_lines(text).filter(|(_, line)| line.starts_with('#'));
    let numbered = headings.map(|(_, line)| {
        let name = place(line.trim_start_matches('#'));
        let before = seen.entry(name.clone()).or_default();
        *before += 1;
        if *before == 1 { name } else { format!("{name}-{}", *before - 1) }
    });
    numbered.collect()
}

/// The link of a heading: small letters, hyphens for blanks, no punctuation.
fn place(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pairs: &[(&str, &str)]) -> Vec<(usize, String)> {
        let texts: Vec<_> = pairs.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        check(&texts).into_iter().map(|finding| (finding.line, finding.what)).collect()
    }

    #[test]
    fn links_to_what_is_not_there_are_found() {
        let page =
            "# A\n[b](b.md) [folder](decisions), [`code`](../src/x.rs)\n[gone](c.md) ![picture](d.svg)\n";
        let there = [("docs/b.md", ""), ("docs/decisions/1.md", ""), ("src/x.rs", "")];
        let missing = found(&[&[("docs/a.md", page)][..], &there].concat());
        let lines: Vec<usize> = missing.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [3, 3], "{missing:?}");
        assert!(missing[0].1.contains("docs/c.md"));
        assert_eq!(found(&[("a.md", "[out](../b.md)")])[0].1, "the link to ../b.md leaves the repository");
    }

    #[test]
    fn links_to_headings_that_are_not_there_are_found() {
        let page = "[up](#faults-inline) [same](b.md#what-weir-run-says) [twice](b.md#x-1)\n[no](b.md#gone)\n\
            # Faults inline\n";
        let other = "## What `weir run` says!\n## X\n## X\n```\n# gone\n```\n";
        let missing = found(&[("a.md", page), ("b.md", other)]);
        assert_eq!(missing, [(2, "b.md has no heading whose link is #gone".to_string())]);
    }

    #[test]
    fn code_and_addresses_are_no_links_of_the_repository() {
        let page = "`[a](gone.md)` <https://example.org> [x](https://example.org/y)\n\n    [b](gone.md)\n\
            ```\n[c](gone.md)\n```\n";
        assert_eq!(found(&[("a.md", page)]), Vec::new());
    }
}
