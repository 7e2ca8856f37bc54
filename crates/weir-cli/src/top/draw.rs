//! The picture of `weir top`. Colours say nothing that letters do not.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Sparkline, Widget};

use crate::top::columns::{self, COLUMNS};
use crate::top::keys::State;
use crate::top::model::{Row, View};

/// Rows of the strip, and of the screen from which on there is one.
const STRIP_ROWS: u16 = 3;
const ROWS_FOR_STRIP: u16 = 12;
/// Per mille that fill the height of the strip, if no more is lost: one thread that only waits.
const FULL: u64 = 1000;
/// From here on time lost stands out, per cent.
const MUCH_LOST: f64 = 50.0;

const NOBODY: &str = "No process of yours runs under Weir, or none has grown large enough for Weir to start.";
const NONE_FITS: &str = "No process has this in its name. Esc shows all.";
const KEYS: &str = "q quit  +/- budget  / filter  < > sort  ? help";
const HELP: &[&str] = &[
    "+ -        more, or less, RAM for the selected process",
    "arrows j k select; PgUp PgDn Home End too",
    "/          only programs with these letters; Esc: all",
    "P M T N    sort by time lost, RAM, time waited, PID",
    "< > F6     sort by the column before, behind",
    "I          the other way round",
    "t          children below their parents, or not",
    "q          quit",
    "",
    "OUT    data that is not in RAM as it is",
    "POOL   RAM of the compressed part of it, RATIO how well",
    "SWAP   what is in the swap file",
    "FLT/S  page faults a second",
    "LOST%  time that threads waited for memory, all together:",
    "       100 is one thread that does nothing else",
    "P99    99 of 100 faults took no longer",
];

/// Whether colours are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colours(pub bool);

impl Colours {
    fn style(self, colour: Color) -> Style {
        if self.0 { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, state: &mut State, colours: Colours) {
    let area = frame.area();
    let mut rest = Painter { buffer: frame.buffer_mut(), area };
    rest.line(&headline(state.model.all()), Style::new().add_modifier(Modifier::BOLD));
    if state.help {
        HELP.iter().for_each(|line| rest.line(line, Style::new()));
        return;
    }
    if area.height >= ROWS_FOR_STRIP {
        strip(&mut rest, state, colours);
    }
    let foot = rest.take_last();
    list(&mut rest, state, colours);
    let (text, style) = footer(state, colours);
    Painter { buffer: rest.buffer, area: foot }.line(&text, style);
}

/// A part of the screen, filled line by line from above.
struct Painter<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
}

impl Painter<'_> {
    fn line(&mut self, text: &str, style: Style) {
        let Rect { x, y, width, height } = self.area;
        if height > 0 {
            self.buffer.set_stringn(x, y, text, usize::from(width), style);
            self.area = Rect { y: y + 1, height: height - 1, ..self.area };
        }
    }

    /// The last line, which is not of this part any more. Without height where there is none left.
    fn take_last(&mut self) -> Rect {
        let height = self.area.height.saturating_sub(1);
        let last = Rect { y: self.area.y + height, height: self.area.height - height, ..self.area };
        self.area.height = height;
        last
    }
}

/// All processes together.
fn headline(rows: &[Row]) -> String {
    let sum = |of: fn(&Row) -> u64| columns::size(rows.iter().map(of).fold(0, u64::saturating_add));
    let lost: f64 = rows.iter().filter_map(|row| row.lost).sum();
    let are = if rows.len() == 1 { "process" } else { "processes" };
    let (count, ram, budget) = (rows.len(), sum(|row| row.ram), sum(|row| row.budget));
    format!("weir: {count} {are}, RAM {ram} of {budget}, time lost {} %", columns::per_cent(lost))
}

fn strip(rest: &mut Painter<'_>, state: &State, colours: Colours) {
    let bars = state.model.strip(usize::from(rest.area.width));
    let most = bars.iter().copied().max().unwrap_or(0).max(FULL);
    rest.line(&format!("time lost in the last 2 minutes, up to {} %", most.div_ceil(10)), Style::new());
    let area = Rect { height: STRIP_ROWS, ..rest.area };
    Sparkline::default().data(&bars).max(most).style(colours.style(Color::Yellow)).render(area, rest.buffer);
    rest.area = Rect { y: area.y + STRIP_ROWS, height: rest.area.height - STRIP_ROWS, ..rest.area };
}

fn list(rest: &mut Painter<'_>, state: &mut State, colours: Colours) {
    let (rows, place) = state.rows();
    let shown = columns::that_fit(usize::from(rest.area.width));
    let (heading, places) = columns::heading(&shown);
    let (x, y) = (rest.area.x, rest.area.y);
    rest.line(&heading, Style::new().add_modifier(Modifier::UNDERLINED));
    if let Some((at, len)) = shown.iter().position(|at| *at == state.view.sort).map(|i| places[i])
        && at + len <= usize::from(rest.area.width)
        && rest.area.y > y
    {
        let title = Rect { x: x + at as u16, y, width: len as u16, height: 1 };
        rest.buffer.set_style(title, Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED));
    }
    if rows.is_empty() {
        let why = if state.model.all().is_empty() { NOBODY } else { NONE_FITS };
        wrapped(why, usize::from(rest.area.width)).iter().for_each(|line| rest.line(line, Style::new()));
        return;
    }
    let room = usize::from(rest.area.height);
    if room == 0 {
        return;
    }
    let last_first = rows.len().saturating_sub(room);
    let first = state.offset.clamp((place + 1).saturating_sub(room), place).min(last_first);
    (state.offset, state.page) = (first, room);
    for (number, row) in rows.iter().enumerate().skip(first).take(room) {
        let much = row.lost.is_some_and(|lost| lost >= MUCH_LOST);
        let style = if much { colours.style(Color::Red) } else { Style::new() };
        let line = columns::line(&shown, row);
        if number == place {
            // To the end of the line, so that it is seen where there are no colours.
            let width = usize::from(rest.area.width);
            rest.line(&format!("{line:<width$}"), style.add_modifier(Modifier::REVERSED));
        } else {
            rest.line(&line, style);
        }
    }
}

/// What is typed, else what there is to tell, else the keys.
fn footer(state: &State, colours: Colours) -> (String, Style) {
    let View { sort, filter, .. } = &state.view;
    if state.typing {
        return (format!("filter: {filter}_"), Style::new());
    }
    if let Some(message) = [&state.message, &state.unseen].into_iter().find(|message| !message.is_empty()) {
        return (message.clone(), colours.style(Color::Yellow));
    }
    let filter = if filter.is_empty() { String::new() } else { format!("  [{filter}]") };
    (format!("{KEYS}  by {}{filter}", COLUMNS[*sort].title), Style::new())
}

/// A sentence in lines of at most so many letters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::tests::reading;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn picture(state: &mut State, width: u16, height: u16, colours: bool) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, Colours(colours))).unwrap();
        terminal.backend().buffer().clone()
    }

    fn screen(state: &mut State, width: u16, height: u16) -> Vec<String> {
        let buffer = picture(state, width, height, false);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn family() -> State {
        let mut state = State::default();
        let mib = |n: u64| n << 20;
        for second in 1..=100 {
            let values = |waited: u64| {
                [
                    ("weir_budget_bytes", mib(400)),
                    ("weir_resident_bytes", mib(390)),
                    ("weir_outside_bytes", mib(8)),
                    ("weir_managed_bytes", mib(1600)),
                    ("weir_pool_bytes", mib(100)),
                    ("weir_pool_stored_bytes", mib(96)),
                    ("weir_pool_logical_bytes", mib(300)),
                    ("weir_swap_bytes", mib(310)),
                    ("weir_fault_p99_ns", 13_000),
                    ("pgfault", second * 1234),
                    ("weir_waited_ns", second * waited * 10_000_000),
                ]
            };
            state.model.update(&[
                reading(4711, &[1], second * 1000, &values(86)),
                reading(4713, &[4711, 1], second * 1000, &values(3)),
                reading(990, &[1], second * 1000, &values(0)[..1]),
            ]);
        }
        state
    }

    #[test]
    fn eighty_columns_show_all_that_matters() {
        let lines = screen(&mut family(), 80, 24);
        assert_eq!(lines[0], "weir: 3 processes, RAM 796M of 1.2G, time lost 89 %");
        assert_eq!(lines[1], "time lost in the last 2 minutes, up to 100 %");
        assert!(lines[4].starts_with("████"), "{lines:#?}");
        assert_eq!(lines[5], "    PID   RAM BUDGET   OUT  POOL RATIO  SWAP FLT/S LOST%   P99 PROGRAM");
        assert_eq!(
            lines[6..10],
            [
                "    990    0K   400M    0K    0K     -    0K     0     0     - job990 --of 990",
                "   4711  398M   400M  1.3G   96M   3.1  310M  1234    86  13us job4711 --of 4711",
                "   4713  398M   400M  1.3G   96M   3.1  310M  1234   3.0  13us └─ job4713 --of 4",
                "",
            ]
        );
        assert!(lines[23].starts_with("q quit") && lines[23].ends_with("by PID"), "{}", lines[23]);
    }

    #[test]
    fn forty_columns_and_a_few_lines_show_what_there_is_room_for() {
        let lines = screen(&mut family(), 40, 8);
        assert_eq!(lines[1], "    PID   RAM BUDGET LOST% PROGRAM");
        assert_eq!(lines[3], "   4711  398M   400M    86 job4711 --of");
        for (width, height) in [(1, 1), (3, 2), (200, 60), (40, 3), (10, 12)] {
            assert_eq!(screen(&mut family(), width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn the_selected_process_is_on_the_screen_and_stands_out_without_colours() {
        let mut state = family();
        state.selected = Some(4713);
        let buffer = picture(&mut state, 80, 4, false);
        let first_of = |y: u16| (0..7).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        assert_eq!(first_of(2), "   4713");
        assert!(buffer[(79, 2)].modifier.contains(Modifier::REVERSED));
        assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        state.selected = Some(990);
        let buffer = picture(&mut state, 80, 24, true);
        assert_eq!((buffer[(3, 7)].fg, buffer[(3, 6)].fg), (Color::Red, Color::Reset));
    }

    #[test]
    fn where_nothing_runs_that_is_said() {
        let lines = screen(&mut State::default(), 40, 24);
        assert_eq!(lines[0], "weir: 0 processes, RAM 0K of 0K, time lo");
        assert_eq!(lines[6..9].join(" "), NOBODY);
        let mut state = family();
        state.view.filter = "nothing".to_owned();
        assert_eq!(screen(&mut state, 80, 24)[6], NONE_FITS);
    }

    #[test]
    fn the_last_line_has_what_is_typed_and_what_is_told() {
        let mut state = family();
        state.message = "process 7: 28 MiB, was 32 MiB".to_owned();
        assert_eq!(screen(&mut state, 80, 24)[23], state.message);
        state.unseen = "process 8 shows a page that makes no sense".to_owned();
        assert_eq!(screen(&mut state, 80, 24)[23], state.message);
        state.message.clear();
        assert_eq!(screen(&mut state, 80, 24)[23], state.unseen);
        state.typing = true;
        state.view.filter = "47".to_owned();
        assert_eq!(screen(&mut state, 80, 24)[23], "filter: 47_");
        state.help = true;
        assert!(screen(&mut state, 80, 24)[1].starts_with("+ -"));
    }
}
