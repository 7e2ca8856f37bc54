//! Lines are as wide as rustfmt's, in every language; cells of tables stay readable.

use super::Finding;

/// Columns of a line: `max_width` of `rustfmt.toml`.
const COLUMNS: usize = 110;
/// Letters of a cell of a Markdown table.
const CELL_LETTERS: usize = 200;
/// Endings of sources.
const SOURCES: &[&str] = &[".rs", ".c", ".h", ".py", ".sh"];

/// Finds lines of sources that are too wide.
pub fn check_sources(texts: &[(String, String)]) -> Vec<Finding> {
    let sources = texts.iter().filter(|(path, _)| SOURCES.iter().any(|ending| path.ends_with(ending)));
    let wide = |line: &str| columns(line) > COLUMNS && !is_table_row(comment(line));
    sources.flat_map(|(path, text)| wide_lines(path, text.lines().enumerate(), &wide)).collect()
}

/// Finds lines of Markdown that are too wide, and cells of its tables that are too long.
pub fn check_markdown(texts: &[(String, String)]) -> Vec<Finding> {
    let documents = texts.iter().filter(|(path, _)| path.ends_with(".md"));
    documents.flat_map(|(path, text)| [prose(path, text), cells(path, text)].concat()).collect()
}

fn prose(path: &str, text: &str) -> Vec<Finding> {
    wide_lines(path, prose_lines(text), &|line| columns(line) > COLUMNS && !is_table_row(line))
}

/// Lines of Markdown with their numbers from 0, but for those that are shown as they are, indented or fenced:
/// output, drawings.
pub fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence && !line.starts_with("    ")
    })
}

fn wide_lines<'a>(
    path: &str,
    lines: impl Iterator<Item = (usize, &'a str)>,
    is_wide: &dyn Fn(&str) -> bool,
) -> Vec<Finding> {
    lines
        .filter(|(_, line)| is_wide(line))
        .map(|(number, line)| {
            let what = format!("{} columns, at most {COLUMNS}", columns(line));
            Finding::new(path, number + 1, what)
        })
        .collect()
}

fn cells(path: &str, text: &str) -> Vec<Finding> {
    let rows = text.lines().enumerate().filter(|(_, line)| is_table_row(line));
    let cells = rows.flat_map(|(number, line)| line.split('|').map(move |cell| (number, shown(cell.trim()))));
    cells
        .filter(|(_, letters)| *letters >= CELL_LETTERS)
        .map(|(number, letters)| {
            let what =
                format!("a cell of {letters} letters, under {CELL_LETTERS}: move the rest below the table");
            Finding::new(path, number + 1, what)
        })
        .collect()
}

/// Columns of a line without the addresses in it, which nobody can break.
fn columns(line: &str) -> usize {
    let address = |word: &&str| word.contains("://");
    line.chars().count()
        - line.split_whitespace().filter(address).map(|word| word.chars().count()).sum::<usize>()
}

/// Letters of a cell as a reader sees them: the target of a link is not shown.
fn shown(cell: &str) -> usize {
    let mut parts = cell.split("](");
    let first = parts.next().unwrap_or("");
    let rest: usize =
        parts.map(|part| part.split_once(')').map_or(part, |(_, text)| text).chars().count()).sum();
    first.chars().count() + rest
}

fn is_table_row(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

/// A line without the marks of a comment before it.
fn comment(line: &str) -> &str {
    line.trim_start().trim_start_matches(['/', '!', '#', '*'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, line: &str) -> [(String, String); 1] {
        [(path.to_string(), format!("short\n{line}\n"))]
    }

    #[test]
    fn wide_lines_of_every_language_are_found() {
        let (fits, wide) = ("x ".repeat(55), "x ".repeat(55) + "x");
        for path in ["a.rs", "b.c", "c.h", "d.py", "e.sh"] {
            assert_eq!(check_sources(&text(path, fits.trim_end())), Vec::new());
            assert_eq!(check_sources(&text(path, &wide))[0].line, 2);
        }
        assert_eq!(check_markdown(&text("a.md", &wide)).len(), 1);
        assert_eq!(check_sources(&text("a.svg", &wide)), Vec::new());
    }

    #[test]
    fn tables_output_and_addresses_may_be_wider() {
        let row = format!("| a | {} |", "x ".repeat(60));
        assert_eq!(check_markdown(&text("a.md", &row)), Vec::new());
        assert_eq!(check_sources(&text("a.rs", &format!("//! {row}"))), Vec::new());
        let address = format!("see https://example.org/{}", "x".repeat(120));
        assert_eq!(check_markdown(&text("a.md", &address)), Vec::new());
        assert_eq!(check_markdown(&text("a.md", &format!("    {}", "x".repeat(120)))), Vec::new());
        assert_eq!(check_markdown(&text("a.md", &format!("```\n{}\n```", "x".repeat(120)))), Vec::new());
    }

    #[test]
    fn long_cells_are_found_and_the_target_of_a_link_does_not_count() {
        let cell = |letters: usize| format!("| {} | b |", "x".repeat(letters));
        assert_eq!(check_markdown(&text("a.md", &cell(CELL_LETTERS - 1))), Vec::new());
        assert_eq!(check_markdown(&text("a.md", &cell(CELL_LETTERS))).len(), 1);
        let link = format!("| [x](docs/{}) | b |", "x".repeat(CELL_LETTERS));
        assert_eq!(check_markdown(&text("a.md", &link)), Vec::new());
    }
}
