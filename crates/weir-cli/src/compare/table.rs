//! Plain-text tables: first column to the left, numbers to the right.

/// Lays out rows under headers; every row has as many cells as there are headers.
pub fn render(headers: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headers.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let header: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            if column == 0 {
                line.push_str(cell);
                line.push_str(&pad);
            } else {
                line.push_str("  ");
                line.push_str(&pad);
                line.push_str(cell);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Three significant digits, no more than users need: `1.23`, `12.3`, `123`, `1234`.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "1000".to_owned()]];
        assert_eq!(render(&["what", "n"], &rows), "what     n\na        1\nlong  1000\n");
    }

    #[test]
    fn numbers_keep_three_digits() {
        let shown: Vec<String> =
            [1234.5, 123.4, 99.96, 12.34, 1.234, 0.0].iter().map(|v| short(*v)).collect();
        assert_eq!(shown, ["1234", "123", "100", "12.3", "1.23", "0.00"]);
    }
}
