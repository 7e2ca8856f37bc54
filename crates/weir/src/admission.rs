//! Which pages are worth a frame: those that are wanted more often than the ones that would have to go.
//!
//! A fault of an instruction that loads can be answered from the page's record: the instruction gets its value, the page stays where it is, and nobody
//! has to make room. That costs a fraction of what bringing the page costs, if nobody wants it again soon, and comes on top of it if somebody does. So
//! three things are known here:
//!
//! - *Pages* whose load was answered lately, and when, in a table where each new one takes the place of an old one, like the doorkeeper of TinyLFU
//!   (Einziger, Friedman, Manes, 2017). The time until a page is wanted again is a guess at how often it is.
//! - *Victims*: staged pages are those that go next, and a fault on one of them is seen. So it is known how often a victim is wanted. A page comes in
//!   if it was wanted again in a small part of the time that a victim takes for that: by chance that happens rarely. Where victims are as warm
//!   as what is out, almost nothing comes in, and where nobody wants them any more, whatever is wanted twice.
//! - *Sites*, the instructions that load: how often pages that they asked for were wanted again at once. One that reads a word here and a word there is answered;
//!   one that begins to read a structure is not. At first all are unknown, and one fault in [`PROBE_ONE_IN`] is answered to learn.
//!
//! Time is counted in the program's faults on pages that are out.

use crate::page::PageId;
use crate::page::state::State;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use weir_os::mem::Table;
use weir_os::shards::Line;
use weir_os::sys::Errno;

/// Frames for each page that is remembered.
const FRAMES_PER_PLACE: u32 = 2;
const PLACES_MIN: u32 = 256;
const PLACES_MAX: u32 = 1 << 20;
/// A page that is wanted again so soon was wanted *at once*: it comes in, and its site is to blame.
const AT_ONCE: u32 = 64;
/// An unknown site has one load in so many answered.
const PROBE_ONE_IN: u64 = 16;
/// One page in so many is brought all the same: two that share a place and are wanted in turn would never come.
const BRING_ONE_IN: u32 = 256;
/// A site's score goes up by one with each answer.
const SCORE_ANSWERS: u8 = 8;
const SCORE_MAX: u8 = 32;
const SITES: usize = 256;
/// Weight of the past in the time between two hits on victims: seven eighths.
const GAP_SHIFT: u32 = 3;
/// Bits of an entry for the time.
const TIME_MASK: u32 = (1 << 24) - 1;

/// What answering costs, by where the page is.
struct Terms {
    /// A site's score goes down by so much when a page is wanted again at once.
    again: u8,
    /// A page comes in if it is wanted again in this part of the time that a victim takes.
    part: u64,
}

/// In RAM an answer costs about a fifth of bringing the page and making room for it: half of the pages may be wanted again at once.
const FROM_RAM: Terms = Terms { again: 2, part: 128 };
/// From the swap file it costs a read like the other: one in ten may.
const FROM_DISK: Terms = Terms { again: 10, part: 4 };

/// An instruction that loads, by its address; different ones may look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site(u8);

/// Who asks for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    site: Site,
    /// To learn, whatever is known of the site.
    probe: bool,
}

impl Site {
    fn at(ip: usize) -> Site {
        Site(((ip as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
    }
}

/// A fault on a page that is out.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Which page.
    pub page: PageId,
    /// Where it is.
    pub source: State,
    /// Now.
    pub now: u64,
}

/// What is known of pages, victims and sites.
#[derive(Debug)]
pub struct Admission {
    /// page + 1 (32) | time (24) | site (8)
    places: Table<AtomicU64>,
    /// Scores, of what is in RAM and in the swap file.
    sites: Line<[[AtomicU8; SITES]; 2]>,
    victims: Line<Victims>,
}

/// When victims are wanted.
#[derive(Debug, Default)]
struct Victims {
    /// The last time.
    last: AtomicU32,
    /// Time between two, on average.
    gap: AtomicU32,
}

impl Admission {
    /// For so many frames.
    pub fn new(frames: u32) -> Result<Admission, Errno> {
        let places = (frames / FRAMES_PER_PLACE).clamp(PLACES_MIN, PLACES_MAX);
        Ok(Admission {
            places: Table::new(places as usize, c"weir-admission")?,
            sites: Line([const { [const { AtomicU8::new(0) }; SITES] }; 2]),
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
        let known = |of: &[AtomicU8; SITES]| of[usize::from(site.0)].load(Ordering::Relaxed) >= SCORE_ANSWERS;
        let probe = nth.is_multiple_of(PROBE_ONE_IN);
        (probe || self.sites.0.iter().any(known)).then_some(Asker { site, probe })
    }

    /// Whether the page has to come in, whoever asks: it was answered lately, and is wanted again sooner than one of the `staged` victims is likely
    /// to be.
    #[inline]
    pub fn comes_in(&self, want: Want, staged: u32) -> bool {
        let now = want.now as u32;
        if want.source == State::Staged {
            self.victims.wanted(now);
        }
        let found = self.place(want.page).load(Ordering::Relaxed);
        if (found >> 32) as u32 != want.page.0.wrapping_add(1) {
            return false;
        }
        let since = now.wrapping_sub((found >> 8) as u32) & TIME_MASK;
        let terms = terms_of(want.source);
        if since <= AT_ONCE {
            let score = self.score(Site(found as u8), want.source);
            let before = score.load(Ordering::Relaxed);
            if before > 0 {
                score.store(before.saturating_sub(terms.again), Ordering::Relaxed);
            }
            return true;
        }
        u64::from(since) <= u64::from(self.victims.gap(now)) * u64::from(staged) / terms.part
    }

    /// Whether a load from a page that need not come in is to be answered.
    #[inline]
    pub fn answers(&self, want: Want, asker: Asker) -> bool {
        let mixed = (want.page.0 ^ (want.now as u32).wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b9);
        let score = self.score(asker.site, want.source).load(Ordering::Relaxed);
        mixed >= u32::MAX / BRING_ONE_IN && (asker.probe || score >= SCORE_ANSWERS)
    }

    /// It was answered.
    #[inline]
    pub fn answered(&self, want: Want, Asker { site, .. }: Asker) {
        let entry = u64::from(want.page.0.wrapping_add(1)) << 32
            | u64::from(want.now as u32 & TIME_MASK) << 8
            | u64::from(site.0);
        self.place(want.page).store(entry, Ordering::Relaxed);
        let score = self.score(site, want.source);
        let before = score.load(Ordering::Relaxed);
        // All threads read it: not written where it is as high as it may be.
        if before < SCORE_MAX {
            score.store(before + 1, Ordering::Relaxed);
        }
    }

    fn place(&self, page: PageId) -> &AtomicU64 {
        let mixed = u64::from(page.0.wrapping_mul(0x9e37_79b9));
        self.places.row((mixed * self.places.len() as u64 >> 32) as usize)
    }

    fn score(&self, site: Site, source: State) -> &AtomicU8 {
        &self.sites.0[usize::from(source == State::Swapped)][usize::from(site.0)]
    }
}

fn terms_of(source: State) -> Terms {
    if source == State::Swapped { FROM_DISK } else { FROM_RAM }
}

impl Victims {
    fn wanted(&self, now: u32) {
        let since = now.wrapping_sub(self.last.swap(now, Ordering::Relaxed));
        if since > u32::MAX / 2 {
            return; // threads do not agree about the time
        }
        let gap = self.gap.load(Ordering::Relaxed);
        self.gap.store(gap - (gap >> GAP_SHIFT) + (since >> GAP_SHIFT), Ordering::Relaxed);
    }

    /// Between two, as it seems now.
    fn gap(&self, now: u32) -> u32 {
        let since = now.wrapping_sub(self.last.load(Ordering::Relaxed));
        let since = if since > u32::MAX / 2 { 0 } else { since };
        self.gap.load(Ordering::Relaxed).max(since)
    }
}
