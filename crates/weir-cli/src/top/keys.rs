//! The state of `weir top` between two pictures, and what keys do to it. They are those of htop where the
//! meaning is the same.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::top::columns::{COLUMNS, LOST_COLUMN, PID_COLUMN, RAM_COLUMN, WAITED_COLUMN};
use crate::top::model::{Model, Row, View};

/// What a key asks for beside another picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// For nothing else.
    Nothing,
    /// That the command ends.
    End,
    /// Another budget for a process.
    Budget {
        /// Of this process.
        pid: u32,
        /// That it is to be, in bytes.
        bytes: u64,
    },
}

/// What is shown, and how.
#[derive(Debug, Default)]
pub struct State {
    /// What was read.
    pub model: Model,
    /// Order and filter.
    pub view: View,
    /// The process that stands out. It stays the same one when the order changes.
    pub selected: Option<u32>,
    /// Letters typed go to the filter.
    pub typing: bool,
    /// The keys are explained.
    pub help: bool,
    /// What is to be told until the next key.
    pub message: String,
    /// Why a process could not be read the last time; shown where there is no message.
    pub unseen: String,
    /// The first row that is shown.
    pub offset: usize,
    /// Rows that the last picture had room for.
    pub page: usize,
}

/// A step of a budget: a tenth, in whole MiB.
const STEP_PART: u64 = 10;
const MIB: u64 = 1 << 20;

impl State {
    /// The rows as they are shown, and the place of the selected one.
    pub fn rows(&self) -> (Vec<Row>, usize) {
        let rows = self.model.rows(&self.view);
        let place = rows.iter().position(|row| Some(row.pid) == self.selected).unwrap_or(0);
        (rows, place)
    }

    /// Does what an event is for; all but keys are for another picture.
    pub fn take(&mut self, event: &Event) -> Asked {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.press(*key),
            _ => Asked::Nothing,
        }
    }

    /// Does what a key is for.
    pub fn press(&mut self, key: KeyEvent) -> Asked {
        self.message.clear();
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Asked::End;
        }
        if self.typing {
            self.type_filter(key.code);
            return Asked::Nothing;
        }
        if std::mem::take(&mut self.help) {
            return Asked::Nothing;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Asked::End,
            KeyCode::Char('+' | '=') => return self.budget(true),
            KeyCode::Char('-') => return self.budget(false),
            KeyCode::Char('/') | KeyCode::F(4) => self.typing = true,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.help = true,
            KeyCode::Esc => self.view.filter.clear(),
            KeyCode::Char('t') | KeyCode::F(5) => self.view.tree = !self.view.tree,
            KeyCode::Char('I') => self.view.reversed = !self.view.reversed,
            KeyCode::Char('P') => self.sort(LOST_COLUMN),
            KeyCode::Char('M') => self.sort(RAM_COLUMN),
            KeyCode::Char('T') => self.sort(WAITED_COLUMN),
            KeyCode::Char('N') => self.sort(PID_COLUMN),
            KeyCode::Char('>') | KeyCode::F(6) => self.sort((self.view.sort + 1) % COLUMNS.len()),
            KeyCode::Char('<') => self.sort((self.view.sort + COLUMNS.len() - 1) % COLUMNS.len()),
            code => self.walk(code),
        }
        Asked::Nothing
    }

    fn sort(&mut self, column: usize) {
        self.view.sort = column;
        self.view.reversed = false;
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.view.filter.push(letter),
            KeyCode::Backspace => _ = self.view.filter.pop(),
            KeyCode::Esc => {
                self.view.filter.clear();
                self.typing = false;
            }
            KeyCode::Enter => self.typing = false,
            code => self.walk(code),
        }
    }

    fn walk(&mut self, code: KeyCode) {
        let (rows, place) = self.rows();
        let page = self.page.max(1);
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => place.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => place + 1,
            KeyCode::PageUp => place.saturating_sub(page),
            KeyCode::PageDown => place + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => rows.len(),
            _ => return,
        };
        self.selected = rows.get(to.min(rows.len().saturating_sub(1))).map(|row| row.pid);
    }

    fn budget(&mut self, more: bool) -> Asked {
        let (rows, place) = self.rows();
        let Some(row) = rows.get(place) else { return Asked::Nothing };
        self.selected = Some(row.pid);
        let step = (row.budget / STEP_PART / MIB * MIB).max(MIB);
        let bytes = if more { row.budget.saturating_add(step) } else { row.budget.saturating_sub(step) };
        Asked::Budget { pid: row.pid, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::tests::reading;

    fn state() -> State {
        let mut state = State::default();
        let budget = |mib: u64| ("weir_budget_bytes", mib << 20);
        state.model.update(&[
            reading(7, &[], 1, &[budget(400), ("weir_waited_ns", 5)]),
            reading(8, &[7], 1, &[budget(8), ("weir_waited_ns", 9)]),
            reading(9, &[7], 1, &[budget(64), ("weir_outside_bytes", 1)]),
        ]);
        state
    }

    fn press(state: &mut State, keys: &str) -> Asked {
        keys.chars().map(|letter| state.press(KeyCode::Char(letter).into())).last().unwrap_or(Asked::Nothing)
    }

    #[test]
    fn a_budget_changes_by_a_tenth_of_the_selected_process() {
        let mut state = state();
        assert_eq!(press(&mut state, "+"), Asked::Budget { pid: 7, bytes: 440 << 20 });
        assert_eq!(press(&mut state, "j-"), Asked::Budget { pid: 8, bytes: 7 << 20 });
        assert_eq!(press(&mut state, "j-"), Asked::Budget { pid: 9, bytes: 58 << 20 });
        assert_eq!(press(&mut State::default(), "+"), Asked::Nothing);
    }

    #[test]
    fn the_selection_stays_with_its_process() {
        let mut state = state();
        press(&mut state, "jjjjj");
        assert_eq!(state.selected, Some(9));
        press(&mut state, "M");
        assert_eq!(state.rows().1, 1, "the largest child is the first");
        press(&mut state, "k");
        assert_eq!(state.selected, Some(7));
        state.press(KeyCode::End.into());
        assert_eq!(state.selected, Some(8));
        state.press(KeyCode::PageUp.into());
        assert_eq!(state.selected, Some(9));
        state.model.update(&[]);
        state.press(KeyCode::Down.into());
        assert_eq!(state.selected, None);
    }

    #[test]
    fn letters_sort_as_in_htop() {
        let mut state = state();
        let first = |state: &mut State, keys: &str| {
            press(state, keys);
            state.rows().0[0].pid
        };
        assert_eq!(first(&mut state, "tM"), 9);
        assert_eq!(first(&mut state, "T"), 8);
        assert_eq!(first(&mut state, "I"), 9);
        assert_eq!(first(&mut state, ">"), 7, "past the last column is the first, in its own order");
        assert_eq!(first(&mut state, "<"), 8);
        assert_eq!(first(&mut state, "N"), 7);
        state.press(KeyCode::F(6).into());
        assert_eq!(state.rows().0[0].pid, 9);
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let mut state = state();
        let shown = |state: &State| state.rows().0.iter().map(|row| row.pid).collect::<Vec<_>>();
        press(&mut state, "/job9q");
        assert!(state.typing && shown(&state).is_empty());
        state.press(KeyCode::Backspace.into());
        assert_eq!(shown(&state), [9]);
        state.press(KeyCode::Enter.into());
        assert!(!state.typing);
        assert_eq!(press(&mut state, "-"), Asked::Budget { pid: 9, bytes: 58 << 20 });
        state.press(KeyCode::Esc.into());
        assert_eq!(shown(&state), [7, 8, 9]);
    }

    #[test]
    fn only_these_keys_end_it() {
        let mut state = state();
        assert_eq!(press(&mut state, "q"), Asked::End);
        assert_eq!(press(&mut state, "/q"), Asked::Nothing);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(interrupt), Asked::End);
        state.press(KeyCode::Esc.into());
        press(&mut state, "?");
        assert!(state.help);
        assert_eq!(press(&mut state, "q"), Asked::Nothing, "it ends the help");
        assert!(!state.help);
    }
}
