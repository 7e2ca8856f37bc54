//! Readahead by the whole engine, on a fake pager: what walks over memory that is mostly out cost in faults,
//! and what is known of the pages brought ahead of them.

use super::Engine;
use super::inline::fetch_steps;
use super::remap::Place;
use crate::fault::{self, Outcome};
use crate::page::region::{Access, Kind};
use crate::page::state::State;
use crate::page::{BlockId, PageId};
use crate::shared::Core;
use crate::sim::disk::FakeDisk;
use crate::sim::{self, FakePager};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::codec::PageBytes;
use weir_os::mem::{PAGE_BYTES, PROT_RW};

const BASE: usize = 0x1000_0000;
const BUDGET: u64 = 24 << 20;
const SPACE: u32 = 32_768;
/// Two and a half times the budget.
const PAGES: u32 = 240 * 64;

/// What a walk cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    faults: u64,
    /// All that was brought ahead; what of it came back; what of this is known to be used.
    ahead: u64,
    back: u64,
    used: u64,
}

impl Cost {
    /// Of what streams brought back, the share known to be used, in percent.
    fn accuracy(self) -> u64 {
        self.used * 100 / self.back.max(1)
    }
}

struct World {
    engine: Engine<FakePager>,
    start: u32,
    faults: u64,
    before: Cost,
}

fn get(n: &AtomicU64) -> u64 {
    n.load(Ordering::Relaxed)
}

/// Compresses, and differs for every page.
fn contents(page: u32) -> PageBytes {
    core::array::from_fn(|i| if i < 400 { (page as usize * 31 + i * i) as u8 } else { (page >> 3) as u8 })
}

/// All pages written in order, then out: to the pool, or mostly to a swap file.
fn world(swaps: bool) -> World {
    let mut fakes = sim::World::budget(BUDGET >> 20).pages(SPACE).unmapped();
    if swaps {
        fakes = fakes.pool_max(3).swap(FakeDisk::new(64 << 20, 512), 64 << 20).unencrypted().batch(64);
    }
    let engine = Engine::new(fakes.core(), BASE);
    let addr = engine.map(PAGES as usize * PAGE_BYTES, 1, PROT_RW, Kind::Map).unwrap();
    let start = ((addr - BASE) / PAGE_BYTES) as u32;
    let mut w = World { engine, start, faults: 0, before: Cost::default() };
    (0..PAGES).for_each(|page| w.write(page));
    w.all_out();
    w
}

impl World {
    fn core(&self) -> &Core<FakePager> {
        &self.engine.core
    }

    fn addr(&self, page: u32) -> usize {
        BASE + (self.start + page) as usize * PAGE_BYTES
    }

    fn bytes(pages: u32) -> usize {
        pages as usize * PAGE_BYTES
    }

    /// As the reclaimer's thread does.
    fn keep_room(&self) {
        while self.core().room.available() < self.core().room.high_mark().max(450)
            && self.engine.reclaim_here() > 0
        {}
        self.core().room.balance(&self.core().pager, &self.core().stats);
    }

    /// Everything leaves its frames.
    fn all_out(&mut self) {
        self.engine.page_out(self.addr(0), Self::bytes(PAGES)).unwrap();
        while self.core().validate(SPACE).unwrap().resident > 0 || self.core().staged.pages() > 0 {
            self.engine.page_out(self.addr(0), Self::bytes(PAGES)).unwrap();
            assert!(self.engine.reclaim_here() > 0, "pages stay: {:?}", self.core().validate(SPACE));
        }
        self.begin();
    }

    /// Costs are counted from here.
    fn begin(&mut self) {
        self.before = Cost::default();
        self.before = self.cost();
    }

    fn cost(&self) -> Cost {
        let (s, b) = (&self.core().stats, self.before);
        Cost {
            faults: self.faults - b.faults,
            ahead: s.readahead().get() - b.ahead,
            back: get(&s.swap_ra) - b.back,
            used: get(&s.swap_ra_hit) - b.used,
        }
    }

    fn is_in(&self, page: u32) -> bool {
        self.core().pager.read(PageId(self.start + page)).is_some()
    }

    /// Thread `tid` uses a page; what is fetched ahead arrives before it goes on.
    fn touch(&mut self, page: u32, tid: u32) {
        if !self.is_in(page) {
            self.fault(page, tid);
        }
        let got = self.core().pager.read(PageId(self.start + page)).unwrap();
        assert!(got == contents(page), "page {page} has other bytes");
    }

    fn write(&mut self, page: u32) {
        while !self.core().pager.write(PageId(self.start + page), |p| *p = contents(page)) {
            self.fault(page, 1);
        }
    }

    fn fault(&mut self, page: u32, tid: u32) {
        self.keep_room();
        self.faults += 1;
        for _ in 0..100 {
            match fault::resolve(self.core(), &self.engine.strides, PageId(self.start + page), tid) {
                Outcome::NoFrames => {
                    self.engine.reclaim_here();
                }
                Outcome::Installed(ahead) => {
                    if let Some(a) = ahead.and_then(|a| fault::first_touches(self.core(), a)) {
                        let _ = (0..fetch_steps(a)).all(|i| self.engine.fetch_step(a, i));
                    }
                    return;
                }
                other => panic!("page {page}: {other:?}"),
            }
        }
        panic!("page {page}: no frame");
    }

    fn walk(&mut self, pages: impl Iterator<Item = u32>) -> Cost {
        self.begin();
        pages.for_each(|page| self.touch(page, 1));
        self.core().validate(SPACE).unwrap();
        self.cost()
    }

    fn row_access(&self, page: u32) -> Access {
        self.core().table.block(PageId(self.start + page).block()).access()
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32 % n
    }

    /// All pages, each once.
    fn shuffled(&mut self) -> Vec<u32> {
        let mut all: Vec<u32> = (0..PAGES).collect();
        (1..all.len()).rev().for_each(|i| all.swap(i, self.below(i as u32 + 1) as usize));
        all
    }
}

#[test]
fn first_touches_brought_ahead_are_no_reads() {
    let mut w = world(false);
    w.before = Cost::default();
    let cost = w.cost();
    assert!(cost.ahead > u64::from(PAGES) * 3 / 4, "{cost:?}");
    assert_eq!((cost.back, cost.used), (0, 0), "nothing had gone out before it was touched");
}

#[test]
fn eight_streams_at_once_fault_once_in_many_pages_and_are_known_to_use_what_comes() {
    for swaps in [false, true] {
        let mut w = world(swaps);
        let each = PAGES / 8;
        let cost = w.walk((0..PAGES).map(|i| i % 8 * each + i / 8));
        assert!(cost.faults < u64::from(PAGES) / 40, "{cost:?}");
        assert!(cost.accuracy() >= 75 && cost.used <= cost.back, "{cost:?}");
    }
}

#[test]
fn a_walk_backwards_is_followed_as_one_forwards_is() {
    for swaps in [false, true] {
        let mut w = world(swaps);
        let cost = w.walk((0..PAGES).rev());
        assert!(cost.faults < u64::from(PAGES) / 80, "{cost:?}");
        assert!(cost.accuracy() >= 90 && cost.used <= cost.back, "{cost:?}");
        w.all_out();
        let cost = w.walk(0..PAGES);
        assert!(cost.faults < u64::from(PAGES) / 80 && cost.accuracy() >= 90, "{cost:?}");
    }
}

#[test]
fn a_matrix_is_followed_along_its_rows_and_down_its_columns() {
    const ROW: u32 = 75; // pages
    let rows = PAGES / ROW;
    let mut w = world(false);
    let cost = w.walk((0..rows).flat_map(|r| (0..ROW).map(move |c| r * ROW + c)));
    assert!(cost.faults < u64::from(PAGES) / 80 && cost.accuracy() >= 90, "{cost:?}");
    w.all_out();
    // Columns far apart, so that none brings another's pages.
    let columns = [3, 40];
    let cost = w.walk(columns.into_iter().flat_map(|c| (0..rows).map(move |r| r * ROW + c)));
    let touched = u64::from(rows) * columns.len() as u64;
    assert!(cost.faults < touched / 4, "{cost:?} of {touched}");
    assert!(cost.accuracy() >= 60, "{cost:?}");
}

#[test]
fn a_linked_structure_in_random_order_costs_a_page_for_each_fault() {
    for swaps in [false, true] {
        let mut w = world(swaps);
        let cost = w.walk(Rng(11).shuffled().into_iter());
        let brought = (cost.faults + cost.ahead) as f64 / cost.faults as f64;
        assert!(cost.faults > u64::from(PAGES) / 2 && brought < 1.4, "{brought} a fault: {cost:?}");
    }
}

#[test]
fn short_runs_in_random_places_are_known_to_waste_what_they_bring() {
    let mut w = world(false);
    let mut rng = Rng(5);
    let runs: Vec<u32> = (0..400).map(|_| rng.below(PAGES / 64) * 64 + rng.below(50)).collect();
    let cost = w.walk(runs.into_iter().flat_map(|first| first..first + 5));
    assert!(cost.back > 400 && cost.accuracy() < 50, "{cost:?}");
}

/// The pages that a search for `goal` among all of them looks at.
fn search(goal: u32) -> Vec<u32> {
    let (mut low, mut high, mut seen) = (0, PAGES, Vec::new());
    while low < high {
        let middle = low.midpoint(high);
        seen.push(middle);
        if middle < goal { low = middle + 1 } else { high = middle }
    }
    seen
}

#[test]
fn searches_bring_little_more_than_they_ask_for() {
    let (mut w, mut rng) = (world(false), Rng(17));
    w.walk((0..2000).flat_map(|_| search(rng.below(PAGES))));
    let cost = w.walk((0..500).flat_map(|_| search(rng.below(PAGES))));
    assert!(cost.back < cost.faults / 4 && cost.faults < 500 * 8, "{cost:?}");
}

#[test]
fn a_stream_among_random_accesses_is_followed_and_they_are_not() {
    let mut w = world(false);
    let (half, mut rng) = (PAGES / 2, Rng(3));
    w.begin();
    for page in 0..half {
        w.touch(page, 1);
        let elsewhere = half + rng.below(half);
        w.touch(elsewhere, 2);
    }
    let cost = w.cost();
    assert!(cost.used > u64::from(half) * 3 / 4, "{cost:?}");
    assert!(cost.accuracy() >= 75, "{cost:?}");
}

#[test]
fn advised_random_every_fault_brings_its_page_alone_and_advised_otherwise_again_more() {
    for swaps in [false, true] {
        let mut w = world(swaps);
        let all = World::bytes(PAGES);
        w.engine.set_access(w.addr(0), all, Access::Random).unwrap();
        let cost = w.walk(0..1000);
        assert_eq!((cost.faults, cost.ahead), (1000, 0));
        w.all_out();
        w.engine.set_access(w.addr(0), all, Access::Sequential).unwrap();
        let cost = w.walk(1000..3000);
        assert!(cost.faults <= 12 && cost.ahead >= 1900, "{cost:?}");
        assert!(cost.accuracy() >= 80, "{cost:?}");
        w.all_out();
        w.engine.set_access(w.addr(0), all, Access::Any).unwrap();
        let cost = w.walk((0..15).map(|i| i * i * 64 + 7));
        assert_eq!((cost.faults, cost.ahead < 15 * 8), (15, true), "{cost:?}");
    }
}

#[test]
fn first_touches_advised_random_take_one_page_each() {
    let w = world(false);
    let addr = w.engine.map(World::bytes(640), 1, PROT_RW, Kind::Map).unwrap();
    w.engine.set_access(addr, World::bytes(640), Access::Random).unwrap();
    let first = ((addr - BASE) / PAGE_BYTES) as u32;
    let before = w.core().stats.in_absent().get();
    for block in 0..10 {
        w.keep_room();
        let got = fault::resolve(w.core(), &w.engine.strides, PageId(first + block * 64), 1);
        assert_eq!(got, Outcome::Installed(None));
    }
    assert_eq!(w.core().stats.in_absent().get() - before, 10);
}

#[test]
fn advice_holds_for_its_range_goes_with_moved_pages_and_ends_with_the_mapping() {
    let w = world(false);
    let set = |from: u32, pages: u32, access| {
        w.engine.set_access(w.addr(from), World::bytes(pages), access).unwrap();
    };
    set(96, 160, Access::Random);
    let seen: Vec<Access> = (0..5).map(|block| w.row_access(block * 64)).collect();
    assert_eq!(seen, [Access::Any, Access::Any, Access::Random, Access::Random, Access::Any]);
    set(64, 32, Access::Random);
    assert_eq!(w.row_access(64), Access::Random, "both halves agree now");
    set(70, 1, Access::Sequential);
    assert_eq!(w.row_access(64), Access::Any);
    set(64, 192, Access::Sequential);
    let to =
        w.engine.remap(w.addr(64), World::bytes(192), World::bytes(256), Place::Anywhere, false).unwrap();
    let block = |addr: usize| w.core().table.block(PageId(((addr - BASE) / PAGE_BYTES) as u32).block());
    for i in 0..4 {
        assert_eq!(
            block(to + World::bytes(i * 64)).access(),
            Access::Sequential,
            "block {i}, grown part included"
        );
    }
    assert_eq!(w.row_access(64), Access::Any, "nothing is left there");
    w.engine.unmap(to, World::bytes(256)).unwrap();
    assert_eq!(block(to).access(), Access::Any);
    let again = w.engine.map(World::bytes(256), 1, PROT_RW, Kind::Map).unwrap();
    assert_eq!(block(again).access(), Access::Any);
    w.engine.regions().map.validate().unwrap();
}

#[test]
fn paging_out_a_part_of_a_block_takes_that_part() {
    let mut w = world(false);
    (0..128).for_each(|page| w.touch(page, 1));
    w.engine.page_out(w.addr(16), World::bytes(80)).unwrap();
    let state = |page: u32| w.core().table.word(PageId(w.start + page)).load().state();
    for page in 0..128 {
        let gone = (16..96).contains(&page);
        assert_eq!(state(page) == State::Resident, !gone, "page {page}: {:?}", state(page));
    }
    (0..128).for_each(|page| w.touch(page, 1));
    w.core().validate(SPACE).unwrap();
}

#[test]
fn what_will_be_needed_comes_as_far_as_there_is_room_and_stays() {
    for swaps in [false, true] {
        let mut w = world(swaps);
        // Full of others, as little room as the reclaimer leaves.
        for page in 0..PAGES / 2 {
            w.touch(page, 1);
        }
        while w.core().room.available() > w.core().room.low_mark() {
            let page = (0..PAGES / 2).find(|page| !w.is_in(*page)).unwrap();
            let _ = fault::resolve(w.core(), &w.engine.strides, PageId(w.start + page), 1);
        }
        let (from, pages) = (PAGES / 2, 256);
        while w.core().room.available() < pages + 192 {
            assert!(w.engine.reclaim_here() > 0); // as the background thread does, which is woken
        }
        w.begin();
        w.engine.will_need(w.addr(from), World::bytes(pages)).unwrap();
        let here = (from..from + pages).filter(|page| w.is_in(*page)).count();
        assert!(here >= 200, "{here} of {pages} pages");
        let cost = w.cost();
        assert_eq!((cost.back, cost.ahead >= 200), (0, true), "asked for, not expected: {cost:?}");
        // More than fits: nothing is pushed out for it.
        w.engine.will_need(w.addr(0), World::bytes(PAGES)).unwrap();
        let here = (from..from + pages).filter(|page| w.is_in(*page)).count();
        assert!(here >= 200, "{here} of {pages} pages stayed");
        w.core().validate(SPACE).unwrap();
    }
}

#[test]
fn blocks_in_the_table_begin_without_advice() {
    let w = world(false);
    assert!((0..SPACE / 64).all(|b| w.core().table.block(BlockId(b)).access() == Access::Any));
}
