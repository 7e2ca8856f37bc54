//! Which pages are worth a frame: those that are wanted again soon.
//!
//! A fault that is a plain load can be answered from the page's record: the value goes into the register, the page stays where it is, and nobody
//! has to make room. That costs half of what bringing the page costs, if nobody wants it again, and comes on top of it if somebody does. So two things
//! are known here:
//!
//! - *Pages* whose load was answered lately, in a table where each new one takes the place of an old one, like the doorkeeper of TinyLFU
//!   (Einziger, Friedman, Manes, 2017). One that is wanted again while it is there comes in. The table has a place for one in
//!   [`FRAMES_PER_PLACE`] frames: pages that are wanted less often than that would not stay in a frame long enough to be worth it.
//! - *Sites*, the instructions that load: how often pages that they asked for were wanted again at once. One that reads a word here and a word there is answered;
//!   one that begins to read a structure is not. At first all are unknown, and one fault in [`PROBE_ONE_IN`] is answered to learn.

use crate::page::PageId;
use crate::sync::Ordering;
use core::sync::atomic::{AtomicU8, AtomicU64};
use weir_os::mem::Table;
use weir_os::shards::Line;
use weir_os::sys::Errno;

/// Frames for each page that is remembered.
const FRAMES_PER_PLACE: u32 = 64;
const PLACES_MIN: u32 = 256;
const PLACES_MAX: u32 = 1 << 20;
/// Faults on pages that are out, after which a page that is wanted again was not wanted *at once*.
const AT_ONCE: u32 = 64;
/// An unknown site has one load in so many answered.
const PROBE_ONE_IN: u64 = 16;
/// A known one has one page in so many brought all the same: two pages that share a place and are wanted in turn would never come.
const BRING_ONE_IN: u32 = 256;
/// A site's score: up by one with each answer, down by this when the page is wanted at once again, so that a third of them may be.
const AGAIN_COSTS: u8 = 3;
const SCORE_ANSWERS: u8 = 8;
const SCORE_MAX: u8 = 32;
const SITES: usize = 256;

/// An instruction that loads, by its address; different ones may look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site(u8);

impl Site {
    /// The one at this address.
    pub fn at(ip: usize) -> Site {
        Site(((ip as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
    }
}

/// What is known of pages and sites.
#[derive(Debug)]
pub struct Admission {
    /// page + 1 (32) | time (24) | site (8)
    places: Table<AtomicU64>,
    sites: Line<[AtomicU8; SITES]>,
}

impl Admission {
    /// For so many frames.
    pub fn new(frames: u32) -> Result<Admission, Errno> {
        let places = (frames / FRAMES_PER_PLACE).clamp(PLACES_MIN, PLACES_MAX);
        Ok(Admission {
            places: Table::new(places as usize, c"weir-admission")?,
            sites: Line([const { AtomicU8::new(0) }; SITES]),
        })
    }

    /// Whether a load of this site might be answered, at the thread's `nth` fault.
    #[inline]
    pub fn may_answer(&self, site: Site, nth: u64) -> bool {
        self.score(site).load(Ordering::Relaxed) >= SCORE_ANSWERS || nth.is_multiple_of(PROBE_ONE_IN)
    }

    /// A page that is out is wanted at the program's `now`-th such fault. Whether a load from it was answered lately.
    #[inline]
    pub fn wanted(&self, page: PageId, now: u64) -> bool {
        let place = self.place(page);
        let found = place.load(Ordering::Relaxed);
        if (found >> 32) as u32 != page.0.wrapping_add(1) {
            return false;
        }
        place.store(0, Ordering::Relaxed);
        let since = (now as u32).wrapping_sub((found >> 8) as u32) & TIME_MASK;
        if since <= AT_ONCE {
            let score = self.score(Site(found as u8));
            let before = score.load(Ordering::Relaxed);
            if before > 0 {
                score.store(before.saturating_sub(AGAIN_COSTS), Ordering::Relaxed);
            }
        }
        true
    }

    /// Whether to bring a page now although its load could be answered.
    #[inline]
    pub fn brings_anyway(&self, page: PageId, now: u64) -> bool {
        let mixed = (page.0 ^ (now as u32).wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b9);
        mixed < u32::MAX / BRING_ONE_IN
    }

    /// A load of this site was answered.
    #[inline]
    pub fn answered(&self, page: PageId, site: Site, now: u64) {
        let entry = u64::from(page.0.wrapping_add(1)) << 32
            | u64::from(now as u32 & TIME_MASK) << 8
            | u64::from(site.0);
        self.place(page).store(entry, Ordering::Relaxed);
        let score = self.score(site);
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

    fn score(&self, site: Site) -> &AtomicU8 {
        &self.sites.0[site.0 as usize]
    }
}

const TIME_MASK: u32 = (1 << 24) - 1;
