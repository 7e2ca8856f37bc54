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
        // Without victims nothing speaks against it.
        staged == 0 || u64::from(since) <= u64::from(self.victims.gap(now)) * u64::from(staged) / terms.part
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
        self.places.row(((mixed * self.places.len() as u64) >> 32) as usize)
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

#[cfg(test)]
mod tests {
    use super::*;

    const IP: usize = 0x40_1000;

    fn admission() -> Admission {
        Admission::new(1 << 15).unwrap()
    }

    fn want(page: u32, source: State, now: u64) -> Want {
        Want { page: PageId(page), source, now }
    }

    fn probe(a: &Admission) -> Asker {
        a.ask(IP, 0).expect("every sixteenth fault is a probe")
    }

    /// So many loads from different pages, one after the other.
    fn learn(a: &Admission, source: State, loads: u32) {
        (0..loads).for_each(|n| a.answered(want(n, source, u64::from(n)), probe(a)));
    }

    /// A page that is not brought for a change now.
    fn usual(a: &Admission, source: State, now: u64, asker: Asker) -> Want {
        let mut all = (1 << 20..).map(|page| want(page, source, now));
        all.by_ref().take(100).find(|w| a.answers(*w, asker)).unwrap_or_else(|| want(1 << 20, source, now))
    }

    #[test]
    fn an_unknown_site_is_probed_and_answered_once_it_was_seen_to_read_a_word_here_and_there() {
        let a = admission();
        assert_eq!((1..16).filter(|nth| a.ask(IP, *nth).is_some()).count(), 0);
        learn(&a, State::Pooled, SCORE_ANSWERS.into());
        let asker = a.ask(IP, 1).expect("it is known now");
        assert!(a.answers(usual(&a, State::Pooled, 9, asker), asker));
        assert!(a.ask(IP + 1, 1).is_none(), "another is not");
        assert!(!a.answers(usual(&a, State::Swapped, 9, asker), asker), "nor is this one for the swap file");
        assert!(a.answers(usual(&a, State::Swapped, 9, asker), probe(&a)));
    }

    #[test]
    fn a_site_whose_pages_are_wanted_again_at_once_is_answered_no_more() {
        for (source, returns_one_in, answered) in [
            (State::Pooled, 1, false),
            (State::Pooled, 3, true),
            (State::Swapped, 3, false),
            (State::Swapped, 20, true),
        ] {
            let a = admission();
            learn(&a, source, 100);
            for n in 0..400 {
                let now = 1000 + u64::from(n) * 100;
                a.answered(want(n, source, now), probe(&a));
                if n % returns_one_in == 0 {
                    assert!(
                        a.comes_in(want(n, source, now + 1), 100),
                        "at once it comes in whatever victims do"
                    );
                }
            }
            assert_eq!(a.ask(IP, 1).is_some(), answered, "{source:?}: one in {returns_one_in} returns");
        }
    }

    /// Of 40 thousand loads from pages that are out at random, those that brought their page, while a victim is wanted every `gap`.
    fn came_in(pages: u64, gap: u64) -> u64 {
        const STAGED: u32 = 1000;
        let a = admission();
        let (mut x, mut came) = (1_u64, 0);
        for now in 0..80_000 {
            if now % gap == 0 {
                a.comes_in(want(u32::MAX - 1, State::Staged, now), STAGED);
            }
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let w = want(((x >> 33) % pages) as u32, State::Pooled, now);
            if a.comes_in(w, STAGED) {
                came += u64::from(now >= 40_000);
            } else {
                a.answered(w, probe(&a));
            }
        }
        came
    }

    #[test]
    fn where_victims_are_as_warm_as_what_is_out_almost_nothing_comes_in_and_where_they_are_cold_much_does() {
        // Each of 32 thousand pages that are out is as likely as each of a thousand victims.
        let even = came_in(32_000, 32);
        assert!(even < 40_000 / 40, "{even}");
        let cold_victims = came_in(32_000, 1 << 20);
        assert!(cold_victims > 40_000 / 8, "{cold_victims}");
        let hot = came_in(50, 32);
        assert!(hot > 40_000 / 3, "a hundred times as warm as victims: {hot}");
    }

    #[test]
    fn without_victims_whatever_is_remembered_comes_in() {
        let a = admission();
        a.answered(want(7, State::Pooled, 10), probe(&a));
        assert!(!a.comes_in(want(8, State::Pooled, 5000), 0));
        assert!(a.comes_in(want(7, State::Pooled, 5000), 0));
    }

    #[test]
    fn two_pages_that_share_a_place_and_are_wanted_in_turn_come_in_after_all() {
        let a = admission();
        let first = PageId(1);
        let other = (2..).map(PageId).find(|p| core::ptr::eq(a.place(*p), a.place(first))).unwrap();
        let answered = (0..10_000)
            .take_while(|now| {
                let w = Want { page: [first, other][*now as usize % 2], source: State::Pooled, now: *now };
                assert!(!a.comes_in(w, 100));
                let answers = a.answers(w, probe(&a));
                a.answered(w, probe(&a));
                answers
            })
            .count();
        assert!(answered < 3000, "{answered}");
    }

    #[test]
    fn times_that_go_back_a_little_are_no_long_gaps() {
        let a = admission();
        for now in [1000, 2000, 1990, 3000, 2995, 4000] {
            a.comes_in(want(5, State::Staged, now), 10);
        }
        assert!(a.victims.gap(3999) < 1000, "{}", a.victims.gap(3999));
    }
}
