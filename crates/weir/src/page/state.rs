//! The page word: one atomic word is the truth about a page, and only this file writes it.
//!
//! Every transition happens under the block's lock and is a compare-exchange from the word that
//! the caller saw; an `Err` carries what was found instead and means that the caller's view is
//! stale. Kept = the word also names a pool record with the page's bytes as of its hash.
//!
//! | from \ to | Absent | Resident | Staged | Same | Pooled | Swapped |
//! | - | - | - | - | - | - | - |
//! | Absent | - | `try_install` | | | | |
//! | Resident | `try_discard` | `try_drop_kept` | `try_stage` | | | |
//! | Staged | `try_discard` | `try_take_back` | `try_drop_kept`, `try_mark_stuck`, `try_begin_write` | `try_store_same` | `try_store`, `try_store_doubled` | `try_store_slot`, `try_swap_out` |
//! | Same | `try_discard` | `try_install` | | | | |
//! | Pooled | `try_discard` | `try_install` (kept or not), `try_install_doubled` | | | `try_rehandle`, `try_begin_write`, `try_double`, `try_undouble` | `try_swap_out`, `try_evict` |
//! | Swapped | `try_discard` | `try_install` (kept or not) | | | | `try_begin_read`, `try_reslot` |
//!
//! `try_rehandle` (pool compaction) also applies to a kept record. `MLOCKED` (mlock) survives
//! every transition but `try_discard`. `try_mlock`, `try_end_io` and `try_adopt` apply to any state.
//!
//! **Tags.** Reads and writes of the swap file happen without the block's lock. Whoever has one under way for
//! a page writes his number into its word, and finds it there afterwards or drops what he did: every
//! transition but `try_rehandle` clears it. So a fault that takes a page back cancels its write, and a page
//! that was given up while it was read stays given up.
//!
//! **Hashed.** A page that goes out unchanged, to the copy that was kept of it, leaves its hash in its second
//! word: it is not computed again when the page comes in. Only of a pooled page that is not doubled, and of a
//! swapped one.
//!
//! **Doubled.** A pooled page that was written through has a slot as well. Its word names the record, its
//! second word the slot: [`super::table::PageTable::slot_of`] knows both places, nobody else asks a word for
//! its slot.
//!
//! Layout: bits 0..3 state, 3 kept, 4 mlocked, 5 stuck (did not compress when last tried), 6 the kept copy is
//! a slot of the swap file, or the pooled page is doubled, 7 the kept slot is of a page that was doubled,
//! 8..16 tag, 16 hashed, 24..64 handle or slot.

use super::id::{Handle, SwapSlot};
use crate::sync::{AtomicU64, Ordering};
// What the models do not look at.
use core::sync::atomic::AtomicU64 as Plain;

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
    /// In the swap file alone.
    Swapped = 5,
}

const STATE: u64 = 7;
const KEPT: u64 = 1 << 3;
const MLOCKED: u64 = 1 << 4;
const STUCK: u64 = 1 << 5;
const SLOT: u64 = 1 << 6;
const WARM: u64 = 1 << 7;
const TAG_SHIFT: u32 = 8;
const TAG: u64 = 0xff << TAG_SHIFT;
const HASHED: u64 = 1 << 16;
const HANDLE_SHIFT: u32 = 24;
const HANDLE: u64 = u64::MAX << HANDLE_SHIFT;

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
            5 => State::Swapped,
            _ => State::Absent,
        }
    }

    /// The pool record that the word names: of a pooled page, or the kept copy of one in a frame.
    #[inline]
    pub fn handle(self) -> Option<Handle> {
        let pooled = self.0 & STATE == State::Pooled as u64;
        (pooled || self.0 & (KEPT | SLOT) == KEPT).then_some(Handle(self.0 >> HANDLE_SHIFT))
    }

    /// The pool record kept of a page in a frame.
    #[inline]
    pub fn kept(self) -> Option<Handle> {
        (self.0 & (KEPT | SLOT) == KEPT).then_some(Handle(self.0 >> HANDLE_SHIFT))
    }

    /// The slot of the swap file that the word itself names: of a swapped page, or the kept copy of one in a
    /// frame.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn slot(self) -> Option<SwapSlot> {
        let swapped = self.0 & STATE == State::Swapped as u64;
        (swapped || self.0 & (KEPT | SLOT) == KEPT | SLOT)
            .then_some(SwapSlot((self.0 >> HANDLE_SHIFT) as u32))
    }

    /// The slot kept of a page in a frame.
    #[inline]
    pub fn kept_slot(self) -> Option<SwapSlot> {
        (self.0 & (KEPT | SLOT) == KEPT | SLOT).then_some(SwapSlot((self.0 >> HANDLE_SHIFT) as u32))
    }

    /// Pooled, and in the swap file as well: the slot is in the page's second word.
    #[inline]
    pub fn doubled(self) -> bool {
        self.0 & (STATE | SLOT) == State::Pooled as u64 | SLOT
    }

    /// The kept slot is of a page that came from the pool: it is worth a place there again.
    #[inline]
    pub fn warm(self) -> bool {
        self.0 & (KEPT | SLOT | WARM) == KEPT | SLOT | WARM
    }

    /// The page's second word is the hash of its bytes, which are not in a frame.
    #[inline]
    pub fn hashed(self) -> bool {
        self.0 & HASHED != 0
    }

    /// Whose read or write of this page is under way; 0: nobody's.
    #[inline]
    pub fn tag(self) -> u8 {
        (self.0 >> TAG_SHIFT) as u8
    }

    /// Locked in memory by the program.
    #[inline]
    pub fn mlocked(self) -> bool {
        self.0 & MLOCKED != 0
    }

    /// Did not compress when last tried.
    #[inline]
    pub fn stuck(self) -> bool {
        self.0 & STUCK != 0
    }

    /// A word with these flags of the old one, and no copy.
    fn bare(self, state: State, keep_flags: u64) -> u64 {
        state as u64 | self.0 & keep_flags
    }

    /// The bits of the kept copy.
    fn copy(self) -> u64 {
        if self.0 & KEPT != 0 { self.0 & (KEPT | SLOT | WARM | HANDLE) } else { 0 }
    }
}

/// The word of one page, in place.
#[derive(Clone, Copy, Debug)]
pub struct PageWord<'a>(pub &'a AtomicU64);

/// The result of a transition: the new word, or the word found instead of the expected one.
pub type Transition = Result<Word, Word>;

/// Transitions of this process that failed although they could not.
static MISSED: Plain = Plain::new(0);

/// How many times [`must`] was told of a failure.
pub fn transitions_missed() -> u64 {
    MISSED.load(Ordering::Relaxed)
}

/// The word after a transition that cannot fail: the caller holds the block's lock since it read the word. A
/// failure is a bug. It ends a debug build; a release build counts it and goes on with the word that it
/// finds.
#[inline]
#[track_caller]
pub fn must(done: Transition) -> Word {
    done.unwrap_or_else(missed)
}

#[cold]
#[track_caller]
fn missed(found: Word) -> Word {
    MISSED.fetch_add(1, Ordering::Relaxed);
    debug_assert!(false, "INV-17: a page word changed under its block's lock: {found:?}");
    found
}

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

    /// Absent, Same, Pooled or Swapped to Resident, after the frame was mapped. `keep`: the record
    /// stays as a kept copy; otherwise the caller frees it.
    pub fn try_install(self, from: Word, keep: bool) -> Transition {
        let copy = match from.state() {
            State::Pooled if keep => KEPT | from.0 & HANDLE,
            State::Swapped if keep => KEPT | SLOT | from.0 & HANDLE,
            _ => 0,
        };
        let to = Word(from.bare(State::Resident, MLOCKED | STUCK) | copy);
        self.only(from, &[State::Absent, State::Same, State::Pooled, State::Swapped], to)
    }

    /// A doubled page to Resident, after the frame was mapped: its slot stays as a kept copy, its record is
    /// the caller's to free, and its second word the caller's to change.
    pub fn try_install_doubled(self, from: Word, slot: SwapSlot) -> Transition {
        if !from.doubled() {
            return Err(self.load());
        }
        let copy = KEPT | SLOT | WARM | u64::from(slot.0) << HANDLE_SHIFT;
        self.go(from, Word(from.bare(State::Resident, MLOCKED) | copy))
    }

    /// Resident to Staged, after the page was moved into its block's window.
    pub fn try_stage(self, from: Word) -> Transition {
        self.only(from, &[State::Resident], Word(from.bare(State::Staged, MLOCKED | STUCK) | from.copy()))
    }

    /// Staged to Resident, after the frame was moved back.
    pub fn try_take_back(self, from: Word) -> Transition {
        let to = Word(from.bare(State::Resident, MLOCKED | STUCK) | from.copy());
        self.only(from, &[State::Staged], to)
    }

    /// Staged to Staged, remembering that the page does not compress, until it does or is dropped. A kept
    /// copy must be dropped first.
    pub fn try_mark_stuck(self, from: Word) -> Transition {
        self.only(from, &[State::Staged], Word(from.0 & !TAG | STUCK))
    }

    /// Staged to Same. A kept copy must be dropped first.
    pub fn try_store_same(self, from: Word) -> Transition {
        self.only(from, &[State::Staged], Word(from.bare(State::Same, MLOCKED)))
    }

    /// Staged to Pooled, with a fresh record or the unchanged kept one, whose hash the second word still is.
    pub fn try_store(self, from: Word, handle: Handle) -> Transition {
        let hashed = if from.kept() == Some(handle) { HASHED } else { 0 };
        let to = Word(from.bare(State::Pooled, MLOCKED) | hashed | handle.0 << HANDLE_SHIFT);
        self.only(from, &[State::Staged], to)
    }

    /// Staged to Pooled with a fresh record, when the slot kept of it is still true. The caller has put the
    /// slot into the second word.
    pub fn try_store_doubled(self, from: Word, handle: Handle) -> Transition {
        if from.kept_slot().is_none() {
            return Err(self.load());
        }
        let to = Word(from.bare(State::Pooled, MLOCKED) | SLOT | handle.0 << HANDLE_SHIFT);
        self.only(from, &[State::Staged], to)
    }

    /// Pooled to Pooled, after `tag` has written it through. The caller puts the slot into the second word.
    pub fn try_double(self, from: Word, tag: u8) -> Transition {
        if from.tag() != tag || tag == 0 {
            return Err(self.load());
        }
        self.only(from, &[State::Pooled], Word(from.0 & !(TAG | HASHED) | SLOT))
    }

    /// A doubled page gives up its slot, which is the caller's to free.
    pub fn try_undouble(self, from: Word) -> Transition {
        if !from.doubled() {
            return Err(self.load());
        }
        self.go(from, Word(from.0 & !(SLOT | TAG)))
    }

    /// A doubled page gives up its record, which is the caller's to free, and is Swapped: nothing is written.
    pub fn try_evict(self, from: Word, slot: SwapSlot) -> Transition {
        if !from.doubled() {
            return Err(self.load());
        }
        self.go(from, Word(from.bare(State::Swapped, MLOCKED) | u64::from(slot.0) << HANDLE_SHIFT))
    }

    /// Staged to Swapped, when the slot kept of it is still true, and with it the hash in the second word.
    pub fn try_store_slot(self, from: Word) -> Transition {
        if from.kept_slot().is_none() {
            return Err(self.load());
        }
        let to = Word(from.bare(State::Swapped, MLOCKED | STUCK) | HASHED | from.0 & HANDLE);
        self.only(from, &[State::Staged], to)
    }

    /// Forgets the kept copy of a page in a frame; the caller frees the record or slot.
    pub fn try_drop_kept(self, from: Word) -> Transition {
        let to = Word(from.0 & !(KEPT | SLOT | WARM | TAG | HANDLE));
        self.only(from, &[State::Resident, State::Staged], to)
    }

    /// The record moved within the pool. A write of it that is under way goes on.
    pub fn try_rehandle(self, from: Word, new: Handle) -> Transition {
        if from.handle().is_none() {
            return Err(self.load());
        }
        self.go(from, Word(from.0 & !HANDLE | new.0 << HANDLE_SHIFT))
    }

    /// A Swapped page is about to be read, or its record to be moved, by `tag` (not 0); nobody else is at it.
    pub fn try_begin_read(self, from: Word, tag: u8) -> Transition {
        self.tagged(from, &[State::Swapped], tag)
    }

    /// A Pooled page that has no slot, or a Staged one without a kept copy, is about to be written by `tag`
    /// (not 0).
    pub fn try_begin_write(self, from: Word, tag: u8) -> Transition {
        if from.0 & (KEPT | SLOT) != 0 {
            return Err(self.load());
        }
        self.tagged(from, &[State::Pooled, State::Staged], tag)
    }

    fn tagged(self, from: Word, allowed: &[State], tag: u8) -> Transition {
        if from.tag() != 0 || tag == 0 {
            return Err(self.load());
        }
        self.only(from, allowed, Word(from.0 | u64::from(tag) << TAG_SHIFT))
    }

    /// A read or write came to nothing: the page stays what it is.
    pub fn try_end_io(self, from: Word) -> Transition {
        self.go(from, Word(from.0 & !TAG))
    }

    /// Pooled or Staged to Swapped, after `tag` has written it; the caller gives up its record or frame.
    pub fn try_swap_out(self, from: Word, slot: SwapSlot, tag: u8) -> Transition {
        if from.tag() != tag || tag == 0 {
            return Err(self.load());
        }
        let to = from.bare(State::Swapped, MLOCKED | STUCK | HASHED) | u64::from(slot.0) << HANDLE_SHIFT;
        self.only(from, &[State::Pooled, State::Staged], Word(to))
    }

    /// `tag` has moved the record within the swap file.
    pub fn try_reslot(self, from: Word, slot: SwapSlot, tag: u8) -> Transition {
        if from.tag() != tag || tag == 0 {
            return Err(self.load());
        }
        self.only(from, &[State::Swapped], Word(from.0 & !(HANDLE | TAG) | u64::from(slot.0) << HANDLE_SHIFT))
    }

    /// Anything to Absent; the caller gives up frame and record.
    pub fn try_discard(self, from: Word) -> Transition {
        self.go(from, Word::ABSENT)
    }

    /// Sets or clears the mlocked flag.
    pub fn try_mlock(self, from: Word, on: bool) -> Transition {
        self.go(from, Word(if on { from.0 & !TAG | MLOCKED } else { from.0 & !(MLOCKED | TAG) }))
    }

    /// Writes a word that a moved page brings along (`mremap`); the place must be Absent.
    pub fn try_adopt(self, word: Word) -> Transition {
        self.go(Word::ABSENT, Word(word.0 & !TAG))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_transition_that_cannot_fail_and_does_is_counted_and_ends_a_debug_build() {
        let place = AtomicU64::new(0);
        let (word, before) = (PageWord(&place), transitions_missed());
        let resident = must(word.try_install(Word::ABSENT, false));
        assert_eq!((resident.state(), transitions_missed()), (State::Resident, before));
        let again = || must(PageWord(&AtomicU64::new(1)).try_install(Word::ABSENT, false));
        assert_eq!(std::panic::catch_unwind(again).is_err(), cfg!(debug_assertions));
        assert_eq!(transitions_missed(), before + 1);
    }

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
    fn the_hash_of_a_page_that_went_out_unchanged_stays_true_until_a_slot_takes_its_place() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let staged = |keep: bool| {
            let r = w.try_install(w.load(), keep).unwrap();
            assert!(!r.hashed(), "in a frame it is the hash of a copy, not of the page");
            w.try_stage(r).unwrap()
        };
        let fresh = w.try_store(staged(false), Handle(9)).unwrap();
        assert!(!fresh.hashed(), "nobody has computed it");
        let p = w.try_store(staged(true), Handle(9)).unwrap();
        assert!(p.hashed() && p.state() == State::Pooled);
        // It moves in the pool, and is written through: the slot takes the second word.
        let p = w.try_rehandle(p, Handle(10)).unwrap();
        let t = w.try_begin_write(p, 3).unwrap();
        assert!(t.hashed() && w.try_double(t, 3).is_ok_and(|d| !d.hashed()));
        assert!(!w.try_undouble(w.load()).unwrap().hashed());
        // It is written back instead: the bytes are the same, read there and moved there too.
        let p = w.try_store(staged(true), Handle(10)).unwrap();
        let out = w.try_swap_out(w.try_begin_write(p, 3).unwrap(), SwapSlot(7), 3).unwrap();
        assert!(out.hashed() && out.slot() == Some(SwapSlot(7)));
        let moved = w.try_reslot(w.try_begin_read(out, 4).unwrap(), SwapSlot(8), 4).unwrap();
        assert!(moved.hashed() && w.try_end_io(w.try_begin_read(moved, 4).unwrap()).unwrap().hashed());
        // The slot that was kept is still true: so is the hash. Another record than the kept one: it is not.
        let kept = staged(true);
        assert!(w.try_store_slot(kept).unwrap().hashed());
        let unkept = w.try_drop_kept(staged(true)).unwrap();
        let t = w.try_begin_write(unkept, 3).unwrap();
        assert!(!w.try_swap_out(t, SwapSlot(7), 3).unwrap().hashed());
        assert_eq!(w.try_discard(w.load()).unwrap(), Word::ABSENT);
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
    fn a_page_goes_to_the_swap_file_and_comes_back_keeping_its_slot() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let r = w.try_install(w.load(), false).unwrap();
        let p = w.try_store(w.try_stage(r).unwrap(), Handle(9)).unwrap();
        let t = w.try_begin_write(p, 3).unwrap();
        assert_eq!((t.state(), t.tag(), t.handle(), t.slot()), (State::Pooled, 3, Some(Handle(9)), None));
        assert_eq!(w.try_begin_write(t, 4), Err(t), "somebody is at it");
        assert_eq!(w.try_swap_out(t, SwapSlot(7), 4), Err(t), "not his write");
        let moved = w.try_rehandle(t, Handle(10)).unwrap();
        assert_eq!((moved.tag(), moved.handle()), (3, Some(Handle(10))));
        let s = w.try_swap_out(moved, SwapSlot(u32::MAX), 3).unwrap();
        assert_eq!(
            (s.state(), s.tag(), s.handle(), s.slot()),
            (State::Swapped, 0, None, Some(SwapSlot(u32::MAX)))
        );
        let reading = w.try_begin_read(s, 255).unwrap();
        assert_eq!((reading.tag(), reading.slot()), (255, s.slot()));
        let k = w.try_install(reading, true).unwrap();
        assert_eq!((k.state(), k.tag()), (State::Resident, 0));
        assert_eq!((k.kept(), k.handle(), k.kept_slot(), k.slot()), (None, None, s.slot(), s.slot()));
        let out = w.try_store_slot(w.try_stage(k).unwrap()).unwrap();
        assert_eq!((out.state(), out.slot(), out.kept_slot()), (State::Swapped, s.slot(), None));
        let reading = w.try_begin_read(out, 1).unwrap();
        let elsewhere = w.try_reslot(reading, SwapSlot(5), 1).unwrap();
        assert_eq!(
            (elsewhere.state(), elsewhere.tag(), elsewhere.slot()),
            (State::Swapped, 0, Some(SwapSlot(5)))
        );
        assert_eq!(w.try_install(elsewhere, false).unwrap().slot(), None);
    }

    #[test]
    fn a_page_that_does_not_compress_is_remembered_through_the_swap_file_until_it_does() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let staged = w.try_stage(w.try_install(w.load(), false).unwrap()).unwrap();
        let t = w.try_begin_write(w.try_mark_stuck(staged).unwrap(), 3).unwrap();
        let out = w.try_swap_out(t, SwapSlot(7), 3).unwrap();
        assert_eq!((out.state(), out.stuck(), out.slot()), (State::Swapped, true, Some(SwapSlot(7))));
        let again = w.try_stage(w.try_install(out, true).unwrap()).unwrap();
        assert!(again.stuck() && again.kept_slot().is_some());
        let out = w.try_store_slot(again).unwrap();
        assert!(out.stuck() && w.try_install(out, false).unwrap().stuck());
        let stored = w.try_store(w.try_stage(w.load()).unwrap(), Handle(1)).unwrap();
        assert!(!stored.stuck(), "it compressed");
        let staged = w.try_stage(w.try_install(stored, false).unwrap()).unwrap();
        assert!(!w.try_store_same(w.try_mark_stuck(staged).unwrap()).unwrap().stuck());
    }

    #[test]
    fn whatever_happens_to_a_page_cancels_the_write_or_read_that_is_under_way() {
        let (cell, other) = (AtomicU64::new(0), AtomicU64::new(0));
        let w = PageWord(&cell);
        let staged = w.try_stage(w.try_install(Word::ABSENT, false).unwrap()).unwrap();
        let t = w.try_begin_write(staged, 3).unwrap();
        let back = w.try_take_back(t).unwrap();
        assert_eq!((back.state(), back.tag()), (State::Resident, 0));
        let t = w.try_begin_write(w.try_stage(back).unwrap(), 3).unwrap();
        assert_eq!(w.try_mark_stuck(t).unwrap().tag(), 0);
        let t = w.try_begin_write(w.load(), 3).unwrap();
        assert_eq!(w.try_mlock(t, true).unwrap().tag(), 0);
        let t = w.try_begin_write(w.load(), 3).unwrap();
        let s = w.try_swap_out(t, SwapSlot(1), 3).unwrap();
        let t = w.try_begin_read(s, 8).unwrap();
        assert_eq!(PageWord(&other).try_adopt(t).unwrap(), s, "the read is not the new place's");
        assert_eq!(w.try_end_io(t).unwrap(), s);
        assert_eq!(w.try_discard(w.try_begin_read(s, 8).unwrap()).unwrap(), Word::ABSENT);
        assert!(w.try_begin_read(Word::ABSENT, 8).is_err());
        assert!(w.try_begin_write(Word::ABSENT, 8).is_err());
        assert!(w.try_store_slot(staged).is_err());
    }

    #[test]
    fn a_page_written_through_is_pooled_and_has_a_slot_until_one_of_them_goes() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let pooled = || {
            cell.store(0, Ordering::Relaxed);
            let staged = w.try_stage(w.try_install(w.load(), false).unwrap()).unwrap();
            w.try_store(staged, Handle(9)).unwrap()
        };
        let p = pooled();
        assert!(!p.doubled() && w.try_double(p, 3).is_err(), "nobody has written it");
        assert!(
            [w.try_undouble(p), w.try_evict(p, SwapSlot(4)), w.try_install_doubled(p, SwapSlot(4))]
                .iter()
                .all(|t| t.is_err())
        );
        let t = w.try_begin_write(p, 3).unwrap();
        assert_eq!(w.try_double(t, 4), Err(t), "not his write");
        let d = w.try_double(t, 3).unwrap();
        assert_eq!((d.state(), d.doubled(), d.tag(), d.handle()), (State::Pooled, true, 0, Some(Handle(9))));
        assert_eq!((d.slot(), d.kept(), d.kept_slot()), (None, None, None), "the slot is in the second word");
        assert_eq!(w.try_begin_write(d, 3), Err(d), "there is nothing to write");
        let d = w.try_rehandle(d, Handle(11)).unwrap();
        assert_eq!((d.doubled(), d.handle()), (true, Some(Handle(11))));
        // It comes in: the slot stays, and goes out with it to the pool or to the file.
        let r = w.try_install_doubled(d, SwapSlot(4)).unwrap();
        assert_eq!(
            (r.state(), r.kept_slot(), r.warm(), r.handle()),
            (State::Resident, Some(SwapSlot(4)), true, None)
        );
        let r = w.try_take_back(w.try_stage(r).unwrap()).unwrap();
        let s = w.try_stage(r).unwrap();
        assert_eq!((s.kept_slot(), s.warm()), (Some(SwapSlot(4)), true));
        let again = w.try_store_doubled(s, Handle(12)).unwrap();
        assert_eq!((again.doubled(), again.warm(), again.handle()), (true, false, Some(Handle(12))));
        let out = w.try_evict(again, SwapSlot(4)).unwrap();
        assert_eq!(
            (out.state(), out.slot(), out.doubled(), out.handle()),
            (State::Swapped, Some(SwapSlot(4)), false, None)
        );
        // One read back from the file is not warm.
        assert!(!w.try_install(out, true).unwrap().warm());
        let d = w.try_double(w.try_begin_write(pooled(), 3).unwrap(), 3).unwrap();
        let p = w.try_undouble(d).unwrap();
        assert_eq!((p.state(), p.doubled(), p.handle()), (State::Pooled, false, Some(Handle(9))));
        let d = w.try_double(w.try_begin_write(p, 3).unwrap(), 3).unwrap();
        let r = w.try_install(d, true).unwrap();
        assert_eq!((r.kept(), r.kept_slot(), r.doubled()), (Some(Handle(9)), None, false));
        let d = w.try_double(w.try_begin_write(pooled(), 3).unwrap(), 3).unwrap();
        assert_eq!(w.try_install(d, false).unwrap(), Word(State::Resident as u64));
        assert!(w.try_store_doubled(w.try_stage(w.load()).unwrap(), Handle(1)).is_err(), "no slot was kept");
    }

    #[test]
    fn a_pin_survives_the_round_trip_and_ends_with_the_page() {
        let cell = AtomicU64::new(0);
        let w = PageWord(&cell);
        let w1 = w.try_mlock(w.load(), true).unwrap();
        let w2 = w.try_install(w1, false).unwrap();
        let w3 = w.try_stage(w2).unwrap();
        let w4 = w.try_take_back(w3).unwrap();
        assert!(w4.mlocked());
        assert!(!w.try_discard(w4).unwrap().mlocked());
    }
}
