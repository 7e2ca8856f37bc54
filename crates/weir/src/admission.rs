//! What is known of pages, victims and sites, for [`crate::policy::admission`] to decide by: tables of words,
//! without a lock.

use crate::limits::{
    ADMIT_FRAMES_PER_PLACE, ADMIT_LAST, ADMIT_PLACES_MIN, ADMIT_SITES, ADMIT_STAYS, AT_ONCE, GOLDEN,
    PROBE_ONE_IN, SELDOM_ONE_IN, TURN_SHIFT,
};
use crate::page::PageId;
use crate::page::state::State;
use crate::policy::admission::{self, Known, one_in};
pub use crate::policy::admission::{Pressure, Verdict, Want};
use crate::sync::Ordering;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use weir_os::mem::Table;
use weir_os::shards::Line;
use weir_os::sys::Errno;

/// An instruction that loads, by its address; different ones may look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site(u8);

/// Who asks for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    site: Site,
    /// To learn, whatever is known of the site: of pages in RAM, and in the swap file.
    probe: [bool; 2],
}

impl Site {
    fn at(ip: usize) -> Site {
        Site(((ip as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
    }
}

/// An answer: tag (24) | time (28) | times in a row (4) | site (8). The tag is of the bits of the page's
/// mixed number that its place does not tell.
#[derive(Clone, Copy, Debug, Default)]
struct Entry(u64);

impl Entry {
    const TIME_BITS: u32 = 28;
    const TIME_MASK: u32 = (1 << Self::TIME_BITS) - 1;

    fn new(tag: u32, now: u64, row: u64, site: Site) -> Entry {
        let time = u64::from(now as u32 & Self::TIME_MASK);
        Entry(u64::from(tag) << 40 | time << 12 | row.min(15) << 8 | u64::from(site.0))
    }

    /// Whether it is the page's with this tag.
    fn is_of(self, tag: u32) -> bool {
        self.0 != 0 && (self.0 >> 40) as u32 == tag
    }

    fn row(self) -> u64 {
        self.0 >> 8 & 15
    }

    /// The same with another number of times in a row.
    fn with_row(self, row: u64) -> Entry {
        Entry(self.0 & !(15 << 8) | row.min(15) << 8)
    }

    fn site(self) -> Site {
        Site(self.0 as u8)
    }

    /// Faults since. Threads do not agree about the time: it may seem to go back by a little.
    fn age(self, now: u64) -> u32 {
        let age = (now as u32).wrapping_sub((self.0 >> 12) as u32) & Self::TIME_MASK;
        if age > Self::TIME_MASK - AT_ONCE { 0 } else { age }
    }
}

/// What is known of pages, victims and sites.
#[derive(Debug)]
pub struct Admission {
    /// [`Entry`], or 0.
    places: Table<AtomicU64>,
    /// The last answers, likewise.
    last: Line<[AtomicU64; ADMIT_LAST]>,
    /// Scores, of what is in RAM and in the swap file.
    sites: Line<[[AtomicU8; ADMIT_SITES]; 2]>,
    victims: Line<Victims>,
}

/// When victims are wanted.
#[derive(Debug, Default)]
struct Victims {
    /// The last time.
    last: AtomicU32,
    /// Eighths of the time that each takes, on average: of the time between two, times their number.
    turn: AtomicU64,
}

impl Admission {
    /// For so many frames.
    pub fn new(frames: u32) -> Result<Admission, Errno> {
        let places = (frames / ADMIT_FRAMES_PER_PLACE).max(ADMIT_PLACES_MIN);
        Ok(Admission {
            places: Table::new(places as usize, c"weir-admission")?,
            last: Line([const { AtomicU64::new(0) }; ADMIT_LAST]),
            sites: Line([const { [const { AtomicU8::new(0) }; ADMIT_SITES] }; 2]),
            victims: Line::default(),
        })
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        (self.places.len() * size_of::<AtomicU64>()) as u64
    }

    /// The thread's `nth` fault is one of the instruction at `ip`: whether it might be answered, if it loads.
    #[inline]
    pub fn ask(&self, ip: usize, nth: u64) -> Option<Asker> {
        let site = Site::at(ip);
        let known = |of: &[AtomicU8; ADMIT_SITES]| {
            admission::is_trusted(of[usize::from(site.0)].load(Ordering::Relaxed))
        };
        // Mixed: a loop that faults four times in each round would have always the same one probed.
        let probe = [PROBE_ONE_IN, SELDOM_ONE_IN].map(|many| one_in(many, nth as u32));
        (probe[0] || self.sites.0.iter().any(known)).then_some(Asker { site, probe })
    }

    /// What becomes of a page that is wanted, whoever asks.
    #[inline]
    pub fn look(&self, want: Want, pressure: Pressure) -> Verdict {
        let (place, tag) = self.place(want.page);
        let found = Entry(place.load(Ordering::Relaxed));
        let known = found.is_of(tag);
        if self.was_just_answered(want, pressure) {
            if known {
                place.store(0, Ordering::Relaxed);
            }
            return Verdict::AtOnce;
        }
        if !known {
            if want.source == State::Staged {
                self.victims.wanted(want.now as u32, pressure.staged);
            }
            return Verdict::Open;
        }
        let known = Known { age: u64::from(found.age(want.now)), row: found.row() };
        let turn = self.victims.turn(want.now as u32, pressure.staged);
        match admission::look(known, want.source, pressure, turn) {
            Ok(row) => {
                // As old as it was: if it is answered it begins anew.
                place.store(found.with_row(row).0, Ordering::Relaxed);
                Verdict::Open
            }
            Err(verdict) => {
                place.store(0, Ordering::Relaxed);
                verdict
            }
        }
    }

    /// Whether a load from the page was answered a moment ago: then its site is to blame.
    fn was_just_answered(&self, want: Want, pressure: Pressure) -> bool {
        let (last, tag) = self.last(want.page);
        let found = Entry(last.load(Ordering::Relaxed));
        if !found.is_of(tag) || !admission::is_at_once(found.age(want.now), pressure) {
            return false;
        }
        last.store(0, Ordering::Relaxed);
        let score = self.score(found.site(), want.source);
        let before = score.load(Ordering::Relaxed);
        if before > 0 {
            score.store(admission::blamed(before, want.source), Ordering::Relaxed);
        }
        true
    }

    /// Whether a load from a page that need not come in is to be answered.
    #[inline]
    pub fn answers(&self, want: Want, asker: Asker) -> bool {
        let score = self.score(asker.site, want.source).load(Ordering::Relaxed);
        let probes = asker.probe[usize::from(want.source == State::Swapped)];
        admission::answers(score, probes, want)
    }

    /// It was answered.
    #[inline]
    pub fn answered(&self, want: Want, Asker { site, .. }: Asker) {
        let (place, tag) = self.place(want.page);
        let there = Entry(place.load(Ordering::Relaxed));
        let same = there.is_of(tag);
        let stays = (ADMIT_STAYS as usize * self.places.len()).min(Entry::TIME_MASK as usize / 2) as u32;
        if same || there.0 == 0 || there.age(want.now) > stays {
            let row = if same { there.row() } else { 0 };
            place.store(Entry::new(tag, want.now, row, site).0, Ordering::Relaxed);
        }
        let (last, tag) = self.last(want.page);
        last.store(Entry::new(tag, want.now, 0, site).0, Ordering::Relaxed);
        let score = self.score(site, want.source);
        let before = score.load(Ordering::Relaxed);
        // All threads read it: not written where it is as high as it may be.
        if let Some(more) = admission::praised(before) {
            score.store(more, Ordering::Relaxed);
        }
    }

    /// The page's place, and what tells it from others there.
    fn place(&self, page: PageId) -> (&AtomicU64, u32) {
        let mixed = page.0.wrapping_mul(GOLDEN);
        let at = (u64::from(mixed) * self.places.len() as u64) >> 32;
        (self.places.row(at as usize), mixed & 0xff_ffff)
    }

    /// Likewise among the last answers.
    fn last(&self, page: PageId) -> (&AtomicU64, u32) {
        let mixed = page.0.wrapping_mul(GOLDEN);
        (&self.last.0[(mixed >> (u32::BITS - ADMIT_LAST.ilog2())) as usize], mixed & 0xff_ffff)
    }

    fn score(&self, site: Site, source: State) -> &AtomicU8 {
        &self.sites.0[usize::from(source == State::Swapped)][usize::from(site.0)]
    }
}

impl Victims {
    /// One of so many is wanted.
    fn wanted(&self, now: u32, staged: u32) {
        let since = now.wrapping_sub(self.last.swap(now, Ordering::Relaxed));
        if since > u32::MAX / 2 {
            return; // threads do not agree about the time
        }
        let turn = self.turn.load(Ordering::Relaxed);
        let this = u64::from(since) * u64::from(staged);
        self.turn.store(turn - (turn >> TURN_SHIFT) + this, Ordering::Relaxed);
    }

    /// Faults until each of them is wanted again, as it seems now.
    fn turn(&self, now: u32, staged: u32) -> u64 {
        let since = now.wrapping_sub(self.last.load(Ordering::Relaxed));
        let since = if since > u32::MAX / 2 { 0 } else { since };
        (self.turn.load(Ordering::Relaxed) >> TURN_SHIFT).max(u64::from(since) * u64::from(staged))
    }
}

#[cfg(test)]
mod tests;
