//! Where the bytes of a faulted page are: decided once, under its block's lock, before anything is fetched.

use crate::page::state::State;

/// Where a page's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody has mapped it through Weir.
    Foreign,
    /// Under the program already.
    There,
    /// Nowhere: it reads as zeros.
    Zero,
    /// In its frame still, unmapped.
    Staged,
    /// In the page table: a word that repeats.
    Same,
    /// In the pool.
    Pool,
    /// In the swap file.
    Swap,
}

impl Source {
    /// Of a mapped page with this state.
    pub fn of(state: State) -> Source {
        match state {
            State::Resident => Source::There,
            State::Absent => Source::Zero,
            State::Staged => Source::Staged,
            State::Same => Source::Same,
            State::Pooled => Source::Pool,
            State::Swapped => Source::Swap,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_source() {
        use Source::{Pool, Same, Staged, Swap, There, Zero};
        let states =
            [State::Absent, State::Resident, State::Staged, State::Same, State::Pooled, State::Swapped];
        assert_eq!(states.map(Source::of), [Zero, There, Staged, Same, Pool, Swap]);
    }
}
