//! The columns of `weir top`: what they say, how wide they are, how they sort, and which have room.

use std::cmp::Ordering;

use crate::top::model::Row;

/// A column; the program's name comes behind them all.
pub struct Column {
    /// What stands above it.
    pub title: &'static str,
    /// Letters that it takes.
    width: usize,
    /// Which goes first where there is too little room: the one with the highest number.
    dispensable: u8,
    /// What it says of a process.
    text: fn(&Row) -> String,
    /// What stands above what when it is sorted by this.
    pub compare: fn(&Row, &Row) -> Ordering,
}

/// Places of columns that keys name.
pub const PID_COLUMN: usize = 0;
/// As above: memory.
pub const RAM_COLUMN: usize = 1;
/// As above: what costs time now.
pub const LOST_COLUMN: usize = 8;
/// As above: what has cost time so far.
pub const WAITED_COLUMN: usize = 10;

/// All columns, from the left.
pub const COLUMNS: &[Column] = &[
    Column {
        title: "PID",
        width: 7,
        dispensable: 0,
        text: |row| row.pid.to_string(),
        compare: |a, b| a.pid.cmp(&b.pid),
    },
    Column {
        title: "RAM",
        width: 5,
        dispensable: 0,
        text: |row| size(row.ram),
        compare: |a, b| b.ram.cmp(&a.ram),
    },
    Column {
        title: "BUDGET",
        width: 6,
        dispensable: 1,
        text: |row| size(row.budget),
        compare: |a, b| b.budget.cmp(&a.budget),
    },
    Column {
        title: "OUT",
        width: 5,
        dispensable: 3,
        text: |row| size(row.out),
        compare: |a, b| b.out.cmp(&a.out),
    },
    Column {
        title: "POOL",
        width: 5,
        dispensable: 5,
        text: |row| size(row.pool),
        compare: |a, b| b.pool.cmp(&a.pool),
    },
    Column {
        title: "RATIO",
        width: 5,
        dispensable: 7,
        text: |row| if row.ratio == 0.0 { "-".to_owned() } else { format!("{:.1}", row.ratio) },
        compare: |a, b| b.ratio.total_cmp(&a.ratio),
    },
    Column {
        title: "SWAP",
        width: 5,
        dispensable: 4,
        text: |row| size(row.swap),
        compare: |a, b| b.swap.cmp(&a.swap),
    },
    Column {
        title: "FLT/S",
        width: 5,
        dispensable: 6,
        text: |row| row.faults.map_or("-".to_owned(), count),
        compare: |a, b| highest(a.faults, b.faults),
    },
    Column {
        title: "LOST%",
        width: 5,
        dispensable: 0,
        text: |row| row.lost.map_or("-".to_owned(), per_cent),
        compare: |a, b| highest(a.lost, b.lost),
    },
    Column {
        title: "P99",
        width: 5,
        dispensable: 8,
        text: |row| pause(row.p99_ns),
        compare: |a, b| b.p99_ns.cmp(&a.p99_ns),
    },
    Column {
        title: "WAITED",
        width: 6,
        dispensable: 9,
        text: |row| pause(row.waited_ns),
        compare: |a, b| b.waited_ns.cmp(&a.waited_ns),
    },
];

/// Room that the program's name gets at least, before a column is shown that can be done without.
const PROGRAM_LETTERS: usize = 13;

/// Places of the columns that have room in a line of so many letters.
pub fn that_fit(width: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    loop {
        let taken: usize = shown.iter().map(|at| COLUMNS[*at].width + 1).sum();
        let next = shown.iter().enumerate().max_by_key(|(_, at)| COLUMNS[**at].dispensable);
        match next {
            Some((place, at)) if taken + PROGRAM_LETTERS > width && COLUMNS[*at].dispensable > 0 => {
                shown.remove(place);
            }
            _ => return shown,
        }
    }
}

/// The line above the rows: the titles, and where in it the title of a column stands.
pub fn heading(shown: &[usize]) -> (String, Vec<(usize, usize)>) {
    let (mut line, mut places) = (String::new(), Vec::new());
    for at in shown {
        let Column { title, width, .. } = COLUMNS[*at];
        line += &format!("{title:>width$} ");
        places.push((line.len() - 1 - title.len(), title.len()));
    }
    (line + "PROGRAM", places)
}

/// The line of a process.
pub fn line(shown: &[usize], row: &Row) -> String {
    let cells = shown.iter().map(|at| {
        let Column { width, text, .. } = COLUMNS[*at];
        format!("{:>width$} ", text(row))
    });
    let branch = if row.depth == 0 { String::new() } else { "  ".repeat(row.depth - 1) + "└─ " };
    cells.collect::<String>() + &branch + &row.program
}

/// Highest first, what is unknown last.
fn highest(a: Option<f64>, b: Option<f64>) -> Ordering {
    b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0))
}

/// At most five letters.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["K", "M", "G", "T"];
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit >= 2 && value < 99.95);
    format!("{value:.digits$}{}", UNITS[unit])
}

/// At most five letters.
fn count(value: f64) -> String {
    match value {
        ..0.05 => "0".to_owned(),
        ..9.95 => format!("{value:.1}"),
        ..99_999.5 => format!("{value:.0}"),
        ..999_500.0 => format!("{:.0}k", value / 1e3),
        ..99_950_000.0 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.0}M", value / 1e6),
    }
}

/// At most five letters.
pub fn per_cent(value: f64) -> String {
    match value {
        ..0.05 => "0".to_owned(),
        ..9.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// At most five letters, six from ten thousand seconds on.
fn pause(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0 => "-".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..9_950 => format!("{:.1}us", value / 1e3),
        9_950..999_500 => format!("{:.0}us", value / 1e3),
        999_500..9_950_000 => format!("{:.1}ms", value / 1e6),
        9_950_000..999_500_000 => format!("{:.0}ms", value / 1e6),
        999_500_000..99_950_000_000 => format!("{:.1}s", value / 1e9),
        _ => format!("{:.0}s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(width: usize) -> Vec<&'static str> {
        that_fit(width).iter().map(|at| COLUMNS[*at].title).collect()
    }

    #[test]
    fn columns_go_where_there_is_too_little_room() {
        assert_eq!(titles(120).len(), COLUMNS.len());
        assert_eq!(
            titles(80),
            ["PID", "RAM", "BUDGET", "OUT", "POOL", "RATIO", "SWAP", "FLT/S", "LOST%", "P99"]
        );
        assert_eq!(titles(40), ["PID", "RAM", "BUDGET", "LOST%"]);
        assert_eq!(titles(0), ["PID", "RAM", "LOST%"]);
    }

    #[test]
    fn places_that_keys_name_are_those_of_their_columns() {
        let places = [PID_COLUMN, RAM_COLUMN, LOST_COLUMN, WAITED_COLUMN];
        assert_eq!(places.map(|at| COLUMNS[at].title), ["PID", "RAM", "LOST%", "WAITED"]);
    }

    #[test]
    fn no_value_is_wider_than_its_column() {
        for exponent in 0..64 {
            for value in [(1 << exponent) - 1, 1 << exponent, 3 << exponent, (1 << exponent) / 10 * 9] {
                let n = value as f64;
                assert!(value >= 999 << 40 || size(value).len() <= 5, "{value}");
                assert!(
                    value > 900_000_000 || count(n).len() <= 5 && per_cent(n / 1e4).len() <= 5,
                    "{value}"
                );
                assert!(value > 9_000_000_000_000 || pause(value).len() <= 5, "{value}");
            }
        }
        assert_eq!([size(0), size(1023 << 20), size(398 << 20)], ["0K", "1.0G", "398M"]);
        assert_eq!([pause(12_345), pause(72_400_000_000), pause(0)], ["12us", "72.4s", "-"]);
        assert_eq!([count(12.4), count(123_456.0), per_cent(7.26)], ["12", "123k", "7.3"]);
    }

    #[test]
    fn the_heading_says_where_its_titles_stand() {
        let shown = that_fit(40);
        let (line, places) = heading(&shown);
        let found: Vec<&str> = places.iter().map(|(at, len)| &line[*at..at + len]).collect();
        assert_eq!(found, titles(40));
        assert!(line.ends_with("LOST% PROGRAM"), "{line}");
    }
}
