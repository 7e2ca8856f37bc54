//! The page word: one atomic word is the truth about a page, and only this file writes it.
//!
//! Every transition happens under the block's lock and is a compare-exchange from the word that
//! the caller saw; an `Err` carries what was found instead and means that the caller's view is
//! stale. Kept = the word also names a pool record with the page's bytes as of its hash.
//!
//! | from \ to | Absent | Resident | Staged | Same | Pooled |
//! | - | - | - | - | - | - |
//! | Absent | - | `try_install` | | | |
//! | Resident | `try_discard` | `try_drop_kept` | `try_stage` | | |
//! | Staged | `try_discard` | `try_take_back` | `try_drop_kept` | `try_store_same` | `try_store` |
//! | Same | `try_discard` | `try_install` | | | |
//! | Pooled | `try_discard` | `try_install` (kept or not) | | | `try_rehandle` |
//!
//! `try_rehandle` (pool compaction) also applies to a kept record. `PINNED` (mlock) survives
//! every transition but `try_discard`.
//!
//! Layout: bits 0..3 state, 3 kept, 4 pinned, 5 stuck (did not compress), 24..64 handle.

use super::id::Handle;
use crate::sync::{AtomicU64, Ordering};

/// Where a page's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Never touched or dropped: zeros.
    Absent = 0,
    /// Mapped in the program.
    Resident = 1,
    /// Unmapped, still in a frame of the block's window.
    Staged = 2,
    /// Every 8-byte word equal; the value is in the page's second word.
    Same = 3,
    /// Compressed in RAM.
    Pooled = 4,
}

const STATE: u64 = 7;
const KEPT: u64 = 1 << 3;
const PINNED: u64 = 1 << 4;
const STUCK: u64 = 1 << 5;
const HANDLE_SHIFT: u32 = 24;

/// A value of a page word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// The word of a page never touched.
    pub const ABSENT: Word = Word(0);

    /// Where the bytes are.
    #[inline]
    pub fn state(self) -> State {
        match self.0 & STATE {
            1 => State::Resident,
            2 => State::Staged,
            3 => State::Same,
            4 => State::Pooled,
            _ => State::Absent,
        }
    }

    /// The pool record that the word names: of a pooled page, or the kept copy of one in a frame.
    #[inline]
    pub fn handle(self) -> Option<Handle> {
        (self.0 & STATE == State::Pooled as u64 || self.0 & KEPT != 0)
            .then_some(Handle(self.0 >> HANDLE_SHIFT))
    }

    /// The kept copy of a page in a frame.
    #[inline]
    pub fn kept(self) -> Option<Handle> {
        (self.0 & KEPT != 0).then_some(Handle(self.0 >> HANDLE_SHIFT))
    }

    /// Locked in memory by the program.
    #[inline]
    pub fn pinned(self) -> bool {
        self.0 & PINNED != 0
    }

    /// Did not compress when last tried.
    #[inline]
    pub fn stuck(self) -> bool {
        self.0 & STUCK != 0
    }

    fn make(self, state: State, handle: Option<Handle>, keep_flags: u64) -> Word {
        let mut w = state as u64 | self.0 & keep_flags;
        if let Some(h) = handle {
            w |= h.0 << HANDLE_SHIFT;
            if state != State::Pooled {
                w |= KEPT;
            }
        }
        Word(w)
    }
}

/// The word of one page, in place.
#[derive(Clone, Copy, Debug)]
pub struct PageWord<'a>(pub &'a AtomicU64);

/// The result of a transition: the new word, or the word found instead of the expected one.
pub type Transition = Result<Word, Word>;

impl PageWord<'_> {
    /// The current word.
    #[inline]
    pub fn load(self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    fn go(self, from: Word, to: Word) -> Transition {
        self.0.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).map(|_| to).map_err(Word)
    }

    fn only(self, from: Word, allowed: &[State], to: Word) -> Transition {
        if !allowed.contains(&from.state()) {
            return Err(self.load());
        }
        self.go(from, to)
    }

    /// Absent, Same or Pooled to Resident, after the frame was mapped. `keep`: the pool record
    /// stays as a kept copy; otherwise the caller frees it.
    pub fn try_install(self, from: Word, keep: bool) -> Transition {
        let handle = if keep && from.state() == State::Pooled { from.handle() } else { None };
        let to = from.make(State::Resident, handle, PINNED);
        self.only(from, &[State::Absent, State::Same, State::Pooled], to)
    }

    /// Resident to Staged, after the page was moved into its block's window.
    pub fn try_stage(self, from: Word) -> Transition {
        self.only(from, &[State::Resident], from.make(State::Staged, from.kept(), PINNED))
    }

    /// Staged to Resident, after the frame was moved back.
    pub fn try_take_back(self, from: Word) -> Transition {
        self.only(from, &[State::Staged], from.make(State::Resident, from.kept(), PINNED | STUCK))
    }

    /// Staged to Staged, remembering that the page does not compress. A kept copy must be dropped
    /// first.
    pub fn try_mark_stuck(self, from: Word) -> Transition {
        self.only(from, &[State::Staged], Word(from.0 | STUCK))
    }

    /// Staged to Same. A kept copy must be dropped first.
    pub fn try_store_same(self, from: Word) -> Transition {
        self.only(from, &[State::Staged], from.make(State::Same, None, PINNED))
    }

    /// Staged to Pooled, with a fresh record or the unchanged kept one.
    pub fn try_store(self, from: Word, handle: Handle) -> Transition {
        self.only(from, &[State::Staged], from.make(State::Pooled, Some(handle), PINNED))
    }

    /// Forgets the kept copy of a page in a frame; the caller frees the record.
    pub fn try_drop_kept(self, from: Word) -> Transition {
        let to = Word(from.0 & !(KEPT | u64::MAX << HANDLE_SHIFT));
        self.only(from, &[State::Resident, State::Staged], to)
    }

    /// The record moved within the pool.
    pub fn try_rehandle(self, from: Word, new: Handle) -> Transition {
        if from.handle().is_none() {
            return Err(self.load());
        }
        self.go(from, Word(from.0 & !(u64::MAX << HANDLE_SHIFT) | new.0 << HANDLE_SHIFT))
    }

    /// Anything to Absent; the caller gives up frame and record.
    pub fn try_discard(self, from: Word) -> Transition {
        self.go(from, Word::ABSENT)
    }

    /// Sets or clears the pinned flag.
    pub fn try_pin(self, from: Word, on: bool) -> Transition {
        self.go(from, Word(if on { from.0 | PINNED } else { from.0 & !PINNED }))
    }

    /// Writes a word that a moved page brings along (`mremap`); the place must be Absent.
    pub fn try_adopt(self, word: Word) -> Transition {
        self.go(Word::ABSENT, word)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_out_and_comes_back_keeping_its_record() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let r = w.try_install(w.load(), true).unwrap();
        assert_eq!((r.state(), r.handle()), (State::Resident, None));
        let s = w.try_stage(r).unwrap();
        let p = w.try_store(s, Handle(0x12_3456_789a)).unwrap();
        assert_eq!((p.state(), p.handle()), (State::Pooled, Some(Handle(0x12_3456_789a))));
        let k = w.try_install(p, true).unwrap();
        assert_eq!((k.state(), k.kept()), (State::Resident, Some(Handle(0x12_3456_789a))));
        let s = w.try_stage(k).unwrap();
        assert_eq!(s.kept(), k.kept());
        let m = w.try_rehandle(s, Handle(5)).unwrap();
        assert_eq!(m.kept(), Some(Handle(5)));
        let d = w.try_drop_kept(m).unwrap();
        assert_eq!((d.state(), d.handle()), (State::Staged, None));
        assert_eq!(w.try_discard(d).unwrap(), Word::ABSENT);
    }

    #[test]
    fn a_stale_view_is_told_what_is_there() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let r = w.try_install(Word::ABSENT, false).unwrap();
        assert_eq!(w.try_install(Word::ABSENT, false), Err(r));
        assert_eq!(w.try_discard(Word::ABSENT), Err(r));
    }

    #[test]
    fn transitions_that_the_table_does_not_have_are_refused() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let a = w.load();
        assert!(w.try_stage(a).is_err());
        assert!(w.try_take_back(a).is_err());
        assert!(w.try_store(a, Handle(1)).is_err());
        assert!(w.try_store_same(a).is_err());
        assert!(w.try_drop_kept(a).is_err());
        assert!(w.try_rehandle(a, Handle(1)).is_err());
        let r = w.try_install(a, false).unwrap();
        assert!(w.try_store(r, Handle(1)).is_err());
        assert!(w.try_take_back(r).is_err());
        assert!(w.try_install(r, false).is_err());
        assert_eq!(w.load(), r);
    }

    #[test]
    fn a_pin_survives_the_round_trip_and_ends_with_the_page() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let w1 = w.try_pin(w.load(), true).unwrap();
        let w2 = w.try_install(w1, false).unwrap();
        let w3 = w.try_stage(w2).unwrap();
        let w4 = w.try_take_back(w3).unwrap();
        assert!(w4.pinned());
        assert!(!w.try_discard(w4).unwrap().pinned());
    }
}
