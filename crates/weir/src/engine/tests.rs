//! The whole engine against a naive model: seeded operations on a program's address space, with a
//! pager that asserts the kernel's rules and fails on demand. After every few steps every counter
//! is derived again.

mod refused;

use super::Engine;
use super::remap::Place;
use crate::config::{Cold, Policy};
use crate::door::Pager;
use crate::error::Refused;
use crate::fault::load::Load;
use crate::fault::{self, Outcome, Request};
use crate::page::PageId;
use crate::page::region::Kind;
use crate::page::state::State;
use crate::sim::disk::FakeDisk;
use crate::sim::{self, FakePager};
use crate::sync::Ordering;
use std::collections::HashMap;
use weir_os::codec::PageBytes;
use weir_os::codec::zstd::CONTEXTS_BYTES;
use weir_os::mem::{PAGE_BYTES, PROT_RW};
use weir_os::sys::Errno;

const PAGES: u32 = 64 * 64;
const BASE: usize = 0x1000_0000;
const BUDGET: u64 = 8 << 20;

struct Rng(u64);

impl Rng {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % below
    }
}

struct World {
    engine: Engine<FakePager>,
    /// Contents by page: absent means zeros.
    model: HashMap<u32, PageBytes>,
    /// Mapped ranges: (first page, pages).
    maps: Vec<(u32, u32)>,
    rng: Rng,
    /// Loads answered, by the state of the page.
    loaded: [u64; 8],
}

/// Two in three worlds have a swap file under a small pool.
fn world(seed: u64) -> World {
    world_of(seed, Policy::Writeback)
}

fn world_of(seed: u64, policy: Policy) -> World {
    world_with(seed, (!seed.is_multiple_of(3)).then(|| FakeDisk::new(DISK, 512)), policy)
}

const DISK: u64 = 32 << 20;

fn world_with(seed: u64, disk: Option<FakeDisk>, policy: Policy) -> World {
    // Every other world lifts.
    let mut fakes = sim::World::budget(BUDGET >> 20).pages(PAGES).unmapped().lifts(seed.is_multiple_of(2));
    if let Some(disk) = disk {
        // The pool has a window, or two.
        fakes = fakes.pool_max(6).swap(disk, DISK).policy(policy).batch([64, 1, 7][seed as usize % 3]);
    }
    let mut core = fakes.core();
    core.cold = Cold::Eager;
    let rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    World { engine: Engine::new(core, BASE), model: HashMap::new(), maps: Vec::new(), rng, loaded: [0; 8] }
}

/// Pages of every kind: zeros, same-filled, typed numbers, text-like, incompressible.
fn contents(rng: &mut Rng) -> PageBytes {
    let mut page = [0u8; PAGE_BYTES];
    match rng.next(12) {
        0 => {}
        1 => page.fill(rng.next(256) as u8),
        2..=5 => {
            for w in page.chunks_exact_mut(8) {
                w.copy_from_slice(&rng.next(1 << 20).to_le_bytes());
            }
        }
        11 if rng.next(4) == 0 => page.iter_mut().for_each(|b| *b = rng.next(256) as u8),
        _ => {
            let (random, kinds) = (rng.next(1500) as usize, if rng.next(2) == 0 { 256 } else { 16 });
            page.fill(b'x');
            page[..random].iter_mut().for_each(|b| *b = rng.next(kinds) as u8);
        }
    }
    page
}

impl World {
    /// Brings a page in as the fault handler would.
    fn fault(&self, page: u32) {
        for n in 0..2000 {
            match fault::resolve(&self.engine.core, &self.engine.strides, PageId(page), 1) {
                Outcome::Installed(_) | Outcome::Stale => return,
                Outcome::NoFrames => {
                    self.engine.reclaim_here();
                    if n > 500 {
                        self.engine.core.concede(); // as a fault that has waited long enough
                    }
                }
                other => panic!("page {page}: {other:?}"),
            }
        }
        panic!("page {page}: no frame to be had");
    }

    fn fault_if_out(&self, page: u32) {
        if self.pager().read(PageId(page)).is_none() {
            self.fault(page);
        }
    }

    fn pager(&self) -> &FakePager {
        &self.engine.core.pager
    }

    fn write(&mut self, page: u32) {
        let bytes = contents(&mut self.rng);
        while !self.pager().write(PageId(page), |p| *p = bytes) {
            self.fault(page);
        }
        self.model.insert(page, bytes);
    }

    fn check(&self, page: u32, step: u32) {
        if self.pager().read(PageId(page)).is_none() {
            self.fault(page);
        }
        let got = self.pager().read(PageId(page)).unwrap();
        let want = self.model.get(&page).copied().unwrap_or([0; PAGE_BYTES]);
        assert!(got == want, "step {step}: page {page} has other bytes");
    }

    fn check_zero(&self, page: u32) {
        if self.pager().read(PageId(page)).is_none() {
            self.fault(page);
        }
        assert!(self.pager().read(PageId(page)).unwrap() == [0; PAGE_BYTES], "page {page} is not zero");
    }

    /// An instruction that loads some bytes of the page: it finds them there, or is given them.
    fn load(&mut self, page: u32, step: u32) {
        let bytes = 1 << self.rng.next(4);
        let offset = self.rng.next(PAGE_BYTES as u64 + 1 - bytes) as usize;
        let state = self.engine.core.table.word(PageId(page)).load().state();
        let part = |page: &PageBytes| {
            let part = &page[offset..offset + bytes as usize];
            part.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let want = part(&self.model.get(&page).copied().unwrap_or([0; PAGE_BYTES]));
        let core = &self.engine.core;
        // One that faults for the first time is asked to learn.
        let asker = core.admission.ask(offset, 0).unwrap();
        let load = Load { offset: offset as u16, bytes: bytes as u8, asker };
        let mut request = Request::of(Some(load));
        for _ in 0..2000 {
            if let Some(here) = self.pager().read(PageId(page)) {
                assert_eq!(part(&here), want, "step {step}: page {page}, {bytes} bytes at {offset}");
                return;
            }
            match fault::resolve_load(core, &self.engine.strides, PageId(page), 1, &mut request) {
                Outcome::Loaded(value, _) => {
                    assert_eq!(value, want, "step {step}: {state:?} page {page}, {bytes} bytes at {offset}");
                    assert_eq!(core.table.word(PageId(page)).load().state(), state, "it stays what it was");
                    self.loaded[state as usize] += 1;
                    return;
                }
                Outcome::NoFrames => {
                    self.engine.reclaim_here();
                }
                Outcome::Installed(_) | Outcome::Stale => {}
                other => panic!("page {page}: {other:?}"),
            }
        }
        panic!("page {page}: no frame to be had");
    }

    fn addr(&self, page: u32) -> usize {
        BASE + page as usize * PAGE_BYTES
    }

    /// The model's page reads as zeros from now on.
    fn forget(&mut self, page: u32) {
        self.model.remove(&page);
    }

    fn some_map(&mut self) -> Option<usize> {
        (!self.maps.is_empty()).then(|| self.rng.next(self.maps.len() as u64) as usize)
    }

    fn some_page(&mut self) -> Option<u32> {
        let i = self.some_map()?;
        let (start, pages) = self.maps[i];
        Some(start + self.rng.next(u64::from(pages)) as u32)
    }

    fn map(&mut self) {
        let pages = self.rng.next(400) as u32 + 1;
        let mapped: u32 = self.maps.iter().map(|m| m.1).sum();
        if mapped + pages > 3000 {
            return;
        }
        if let Ok(addr) = self.engine.map(pages as usize * PAGE_BYTES, 1, PROT_RW, Kind::Map) {
            self.maps.push((((addr - BASE) / PAGE_BYTES) as u32, pages));
        }
    }

    fn unmap(&mut self) {
        let Some(i) = self.some_map() else { return };
        let (start, pages) = self.maps.swap_remove(i);
        self.engine.unmap(self.addr(start), pages as usize * PAGE_BYTES).unwrap();
        (start..start + pages).for_each(|p| self.forget(p));
    }

    fn drop_part(&mut self) {
        let Some(i) = self.some_map() else { return };
        let (start, pages) = self.maps[i];
        let from = self.rng.next(u64::from(pages)) as u32;
        let n = self.rng.next(u64::from(pages - from)) as u32 + 1;
        self.engine.drop_contents(self.addr(start + from), n as usize * PAGE_BYTES).unwrap();
        (start + from..start + from + n).for_each(|p| self.forget(p));
    }

    fn remap(&mut self) {
        let Some(i) = self.some_map() else { return };
        let (start, pages) = self.maps[i];
        let new = self.rng.next(400) as u32 + 1;
        let (from, len) = (self.addr(start), pages as usize * PAGE_BYTES);
        let Ok(to) = self.engine.remap(from, len, new as usize * PAGE_BYTES, Place::Anywhere, false) else {
            return;
        };
        let to = ((to - BASE) / PAGE_BYTES) as u32;
        let moved: Vec<(u32, PageBytes)> =
            (0..pages).filter_map(|k| self.model.remove(&(start + k)).map(|b| (k, b))).collect();
        for (k, bytes) in moved.into_iter().filter(|(k, _)| *k < new) {
            self.model.insert(to + k, bytes);
        }
        self.maps[i] = (to, new);
    }

    fn pin(&mut self) {
        let Some(i) = self.some_map() else { return };
        let (start, pages) = self.maps[i];
        let n = pages.min(20) as usize * PAGE_BYTES;
        if self.rng.next(2) == 0 {
            let _ = self.engine.mlock(self.addr(start), n);
        } else {
            self.engine.munlock(self.addr(start), n).unwrap();
        }
    }

    /// As the background thread would; the adaptive policy is made to change its mind.
    fn write_through(&mut self) {
        let (on, partial) = (self.rng.next(4) > 0, self.rng.next(2) == 0);
        if let Some(s) = &self.engine.core.copies.swapping {
            s.set_writes_through(on);
            // Until nothing is left, or a few batches that may be one page each.
            let mut batches = 0..16;
            while batches.next().is_some()
                && crate::reclaim::through::write_through(&self.engine.core, partial)
            {}
        }
    }

    fn step(&mut self, step: u32) {
        match self.rng.next(1000) {
            0..450 => {
                if let Some(p) = self.some_page() {
                    self.write(p);
                }
            }
            450..700 => {
                if let Some(p) = self.some_page() {
                    self.load(p, step);
                }
            }
            700..850 => {
                if let Some(p) = self.some_page() {
                    self.check(p, step);
                }
            }
            850..870 => self.map(),
            870..874 => self.unmap(),
            874..900 => self.drop_part(),
            900..910 => self.remap(),
            910..920 => self.pin(),
            920..960 => {
                self.engine.reclaim_here();
                self.write_through();
            }
            960..970 => {
                crate::reclaim::compact::compact(&self.engine.core);
                crate::reclaim::tidy::housekeeping(&self.engine.core, true);
                if let Some(s) = &self.engine.core.copies.swapping {
                    crate::reclaim::tidy::empty_cluster(&self.engine.core, s);
                }
            }
            970..975 => self.write_through(),
            975..980 => {
                // As much as would take the background thread a while.
                self.engine.core.room.kick.store(0, Ordering::Relaxed);
                for _ in 0..40 {
                    let _ = crate::reclaim::recompress::work(&self.engine.core, 1);
                }
            }
            980..985 => {
                let error = [Errno::EAGAIN, Errno::EBUSY, Errno::EFAULT][self.rng.next(3) as usize];
                let n = self.rng.next(3);
                self.pager().fail_drain(n, error);
            }
            985..993 => {
                if let Some(p) = self.some_page() {
                    let busy = self.rng.next(2) == 0;
                    self.pager().set_busy(PageId(p), busy);
                }
            }
            _ => {
                if let Some(p) = self.some_page() {
                    // A raw system call drops the page behind the engine's back.
                    if self.pager().read(PageId(p)).is_some() {
                        self.pager().drop_pages(PageId(p), 1).unwrap();
                        self.model.remove(&p);
                        self.check(p, step);
                    }
                }
            }
        }
    }

    fn validate(&self, step: u32) {
        self.engine.core.validate(PAGES).unwrap_or_else(|e| panic!("step {step}: {e}"));
        assert_eq!(self.pager().frames(), self.engine.core.room.frames.existing() as usize, "step {step}");
        assert!(self.engine.core.resident_bytes() <= BUDGET, "INV-10: step {step}: over budget");
    }
}

/// Thousands of random steps in six worlds: what was written through, and what left the pool for nothing.
fn live(policy: Policy) -> (u64, u64) {
    let (mut through, mut free) = (0, 0);
    let (mut loaded, mut recompressed, mut wanted) = ([0; 8], 0, 0);
    for seed in 1..=6 {
        println!("seed {seed}");
        let mut w = world_of(seed, policy);
        w.map();
        for step in 0..9_000 {
            w.step(step);
            if step % 16 == 0 {
                w.validate(step);
            }
        }
        w.validate(u32::MAX);
        loaded.iter_mut().zip(w.loaded).for_each(|(all, n)| *all += n);
        let mapped: Vec<u32> = w.maps.iter().flat_map(|m| m.0..m.0 + m.1).collect();
        mapped.into_iter().for_each(|p| w.check(p, u32::MAX));
        while !w.maps.is_empty() {
            w.unmap();
        }
        let census = w.engine.core.validate(PAGES).unwrap();
        assert_eq!(census, crate::shared::census::Counted::default(), "seed {seed}: all was unmapped");
        let get = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        if let Some(s) = &w.engine.core.copies.swapping {
            let c = s.tier.counters();
            let (out, back) = (get(&c.pages_out), get(&c.pages_in));
            assert!(out > 300 && back > 60, "seed {seed}: {out} pages were swapped out and {back} in");
        }
        let stats = &w.engine.core.stats;
        recompressed += get(&stats.recompressed);
        wanted += w.engine.core.room.pool.zstd_records().1;
        (through, free) = (through + get(&stats.swap_through), free + get(&stats.swap_evicted_free));
        assert_eq!(w.engine.core.room.pool.owned(), 0, "seed {seed}: the pool gave its windows back");
        let before = world(seed).engine.core.room.frames.limit();
        let charged = (before - w.engine.core.room.frames.limit()) as usize * PAGE_BYTES;
        let allowed = PAGES as usize * 32 + CONTEXTS_BYTES as usize;
        assert!(charged <= allowed, "seed {seed}: {charged} bytes stay charged for nothing");
    }
    for state in [State::Same, State::Pooled, State::Swapped] {
        assert!(loaded[state as usize] > 20, "loads from {state:?} pages: {loaded:?}");
    }
    assert!(recompressed > 100 && wanted > 20, "{recompressed} records made anew, {wanted} of them wanted");
    assert_eq!(loaded[State::Absent as usize] + loaded[State::Resident as usize], 0);
    (through, free)
}

#[test]
fn a_program_sees_its_own_bytes_whatever_is_done_to_its_memory() {
    let (through, free) = live(Policy::Writeback);
    assert_eq!(through, 0, "nothing is written ahead");
    assert!(free > 20, "{free}: pages that were read back and pooled left the pool for nothing");
}

#[test]
fn a_program_sees_its_own_bytes_when_its_pages_are_written_through() {
    let (through, free) = live(Policy::Writethrough);
    assert!(through > 1000 && free > 200, "{through} pages written through, {free} evicted for nothing");
}

#[test]
fn a_program_sees_its_own_bytes_while_the_policy_changes_all_the_time() {
    let (through, free) = live(Policy::Adaptive);
    assert!(through > 1000 && free > 200, "{through} pages written through, {free} evicted for nothing");
}

#[test]
fn new_memory_is_refused_when_everything_is_full_and_old_bytes_stay() {
    let mut w = world_with(11, None, Policy::Adaptive);
    let addr = w.engine.map(3000 * PAGE_BYTES, 1, PROT_RW, Kind::Map).unwrap();
    let start = ((addr - BASE) / PAGE_BYTES) as u32;
    w.maps.push((start, 3000));
    let mut rng = Rng(99);
    let mut written = 0;
    // Pages that shrink to 60 % at best: the budget holds about 1900 frames.
    while !w.engine.core.full() && written < 3000 {
        let mut page = [9u8; PAGE_BYTES];
        page[..2400].iter_mut().for_each(|b| *b = rng.next(256) as u8);
        while !w.pager().write(PageId(start + written), |p| *p = page) {
            w.fault(start + written);
        }
        w.model.insert(start + written, page);
        written += 1;
    }
    assert!(written > 2000 && written < 3000, "{written} pages were taken");
    assert!(w.engine.map(PAGE_BYTES, 1, PROT_RW, Kind::Map).is_err());
    // What only moves is not new, there and back; what grows is.
    let (len, gap) = (64 * PAGE_BYTES, w.addr(start + 3008));
    let moved = |from, to, new_len| w.engine.remap(from, len, new_len, Place::At(to), false);
    assert!(matches!(moved(addr, gap, 2 * len), Err(Refused::Full)));
    assert_eq!((moved(addr, gap, len).unwrap(), moved(gap, addr, len).unwrap()), (gap, addr));
    (start..start + written).for_each(|p| w.check(p, 0));
    w.validate(0);
    w.unmap();
    assert!(w.engine.map(PAGE_BYTES, 1, PROT_RW, Kind::Map).is_ok());
}

/// A mapping of so many pages, which has room to grow.
fn growing(w: &World, pages: usize) -> (usize, usize) {
    let addr = w.engine.map(pages * PAGE_BYTES, 1, PROT_RW, Kind::Map).unwrap();
    (addr, pages * PAGE_BYTES)
}

#[test]
fn mappings_grow_and_are_laid_over_gaps_only_while_their_rows_fit_the_budget() {
    let w = world(5);
    let (addr, len) = growing(&w, 64);
    let grow = || w.engine.remap(addr, len, 2 * len, Place::Here, false);
    let rows = i64::try_from(BUDGET / 2).unwrap();
    w.engine.core.charge_rows(rows); // as many bytes, and more
    assert!(matches!(grow(), Err(Refused::NoSpace)), "all the metadata there may be");
    assert!(matches!(w.engine.map_fixed(addr, 2 * len, PROT_RW), Err(Refused::NoSpace)));
    let to = Place::At(addr + 4 * len);
    assert!(matches!(w.engine.remap(addr, len, len, to, false), Err(Refused::NoSpace)));
    w.engine.map_fixed(addr, len, PROT_RW).unwrap(); // over what is mapped
    w.engine.core.charge_rows(-rows);
    assert_eq!(grow().unwrap(), addr);
    w.engine.map_fixed(addr + 2 * len, len, PROT_RW).unwrap();
    w.validate(0);
}

#[test]
fn a_mapping_that_could_not_grow_is_what_it_was_and_grows_later() {
    let mut w = world(6);
    let (addr, len) = growing(&w, 96);
    w.engine.core.pager.fail_protect(1, Errno::ENOMEM);
    assert!(w.engine.remap(addr, len, 2 * len, Place::Here, false).is_err());
    let end = PageId(((addr + len - BASE) / PAGE_BYTES) as u32);
    assert_eq!(w.engine.core.table.block(end.block()).valid(), u64::MAX >> 32, "half of a block, as before");
    assert!(w.engine.protect(addr, 2 * len, PROT_RW).is_err(), "what is behind is nobody's");
    w.validate(0);
    assert_eq!(w.engine.remap(addr, len, 2 * len, Place::Here, false).unwrap(), addr);
    w.write(end.0 + 95);
    w.check(end.0 + 95, 0);
}

#[test]
fn freed_arrays_give_up_records_at_once_and_are_used_again() {
    let mut w = world(5);
    let len = 1500 * PAGE_BYTES;
    let a = w.engine.heap_alloc(len, 1, false).unwrap();
    let start = ((a - BASE) / PAGE_BYTES) as u32;
    w.maps.push((start, 1500));
    (start..start + 1500).for_each(|p| w.write(p));
    for _ in 0..10 {
        w.engine.reclaim_here();
    }
    assert!(w.engine.core.validate(PAGES).unwrap().pooled > 0);
    w.engine.heap_free(a).unwrap();
    let census = w.engine.core.validate(PAGES).unwrap();
    assert_eq!((census.pooled, census.kept, census.staged), (0, 0, 0));
    let b = w.engine.heap_alloc(len, 1, true).unwrap();
    let zero = ((b - BASE) / PAGE_BYTES) as u32;
    w.model.clear();
    (zero..zero + 1500).for_each(|p| w.check(p, 0));
    assert!(w.engine.heap_free(b + PAGE_BYTES).is_err(), "not the start of an allocation");
}

#[test]
fn locks_of_an_array_end_when_it_is_freed_also_if_its_memory_is_used_again() {
    let mut w = world(5);
    let len = 100 * PAGE_BYTES;
    let a = w.engine.heap_alloc(len, 1, false).unwrap();
    let start = ((a - BASE) / PAGE_BYTES) as u32;
    w.maps.push((start, 100));
    (start..start + 100).for_each(|p| w.write(p));
    w.engine.mlock(a, len).unwrap();
    assert_eq!(w.engine.core.validate(PAGES).unwrap().mlocked, 100);
    w.engine.heap_free(a).unwrap();
    let b = w.engine.heap_alloc(len, 1, false).unwrap();
    assert_eq!(b, a, "from the cache");
    let census = w.engine.core.validate(PAGES).unwrap();
    assert_eq!((census.mlocked, w.engine.core.census.mlocked.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn pages_whose_protection_could_not_be_changed_leave_as_before_or_stay() {
    let mut w = world(2);
    let core = &w.engine.core;
    let addr = w.engine.map(64 * PAGE_BYTES, 0, PROT_RW, Kind::Map).unwrap();
    let page = (addr - BASE) as u32 / PAGE_BYTES as u32;
    let row = core.table.block(PageId(page).block());
    let masks = || (row.fixed(), row.readonly());
    for (prot, other) in [(PROT_RW, 1), (1, PROT_RW)] {
        w.engine.protect(addr, 64 * PAGE_BYTES, prot).unwrap();
        let before = masks();
        assert_eq!(before, (0, if prot == 1 { u64::MAX } else { 0 }));
        core.pager.fail_protect(1, Errno::ENOMEM);
        assert!(w.engine.protect(addr, 64 * PAGE_BYTES, other).is_err());
        assert_eq!(masks(), before, "the kernel took it back");
        core.pager.fail_protect(2, Errno::ENOMEM);
        assert!(w.engine.protect(addr, 64 * PAGE_BYTES, other).is_err());
        assert_eq!(row.fixed(), u64::MAX, "who knows what the kernel did");
        w.engine.protect(addr, 64 * PAGE_BYTES, other).unwrap();
    }
    w.engine.protect(addr, 64 * PAGE_BYTES, PROT_RW).unwrap();
    w.write(page);
    w.check(page, 0);
}

#[test]
fn a_scan_leaves_no_readahead_to_those_who_begin_where_it_passed() {
    let mut w = world(3);
    let pages = 3000 / 64 * 64;
    let addr = w.engine.map(pages as usize * PAGE_BYTES, 64 * PAGE_BYTES, PROT_RW, Kind::Map).unwrap();
    let start = ((addr - BASE) / PAGE_BYTES) as u32;
    (start..start + pages).for_each(|page| w.write(page));
    let brought = |w: &World| w.engine.core.stats.readahead().get();
    // With room for a whole block, as the reclaimer's thread sees to.
    let fault_in = |w: &World, page: u32| {
        while w.engine.core.room.available() < 100 {
            w.engine.reclaim_here();
        }
        let absent = w.pager().read(PageId(page)).is_none();
        if absent {
            w.fault(page);
        }
        absent
    };
    // Blocks far apart, at their first pages, as a binary search visits them.
    let before = brought(&w);
    let firsts = (start + 64..start + pages).step_by(2 * 64);
    let visits = firsts.filter(|first| fault_in(&w, *first)).count() as u64;
    let each = (brought(&w) - before) as f64 / visits as f64;
    assert!(visits >= 10 && each < 16.0, "{each} pages for each of {visits}");
    // Whoever goes on from there is followed all the same.
    let faults = (start..start + 256).filter(|page| fault_in(&w, *page)).count();
    assert!(faults <= 16, "{faults} faults for 256 pages in a row");
}

#[test]
fn a_program_sees_its_own_bytes_while_memory_outside_comes_and_goes() {
    for seed in [1, 2, 4, 5] {
        let mut w = world(seed);
        let (mut rng, mut now_ns, mut least) = (Rng(seed + 77), 1_000_000, u64::MAX);
        w.map();
        for step in 0..6_000 {
            w.step(step);
            if step % 40 == 0 {
                now_ns += rng.next(400_000_000);
                let _ = w.engine.core.note_outside(rng.next(BUDGET / 2), now_ns);
                least = least.min(w.engine.core.ledger.limit_bytes());
            }
            if step % 16 == 0 {
                w.validate(step);
            }
        }
        assert!(least < BUDGET * 7 / 8, "seed {seed}: {least} bytes at least");
        let mapped: Vec<u32> = w.maps.iter().flat_map(|m| m.0..m.0 + m.1).collect();
        mapped.into_iter().for_each(|p| w.check(p, u32::MAX));
        w.validate(u32::MAX);
    }
}

/// Reclaims as the background thread does, until no frame is one too many.
fn shrink(w: &World) {
    let core = &w.engine.core;
    for _ in 0..2000 {
        core.room.shed_excess(&core.pager);
        if core.room.frames.existing() <= core.room.frames.limit() && core.room.available() > 0 {
            return;
        }
        w.engine.reclaim_here();
    }
    panic!("{} frames of {}", core.room.frames.existing(), core.room.frames.limit());
}

#[test]
fn frames_follow_the_limit_down_and_up() {
    let mut w = world(4);
    let addr = w.engine.map(3000 * PAGE_BYTES, 1, PROT_RW, Kind::Map).unwrap();
    let start = ((addr - BASE) / PAGE_BYTES) as u32;
    let mut rng = Rng(5);
    let mut fill = |w: &mut World| (0..3000).for_each(|_| w.write(start + rng.next(3000) as u32));
    fill(&mut w);
    let full = w.engine.core.room.frames.existing();
    let mut now_ns = 1;
    for part in [15, 14, 15, 16] {
        let bytes = BUDGET * part / 16;
        // The second look finds that it has not grown further, the burst of before forgotten.
        for _ in 0..2 {
            now_ns += 10_000_000_000;
            assert_eq!(w.engine.core.note_outside(BUDGET - bytes, now_ns), None);
        }
        assert_eq!(w.engine.core.ledger.limit_bytes(), bytes);
        shrink(&w);
        assert!(w.engine.core.resident_bytes() <= bytes, "{part} sixteenths");
        w.validate(0);
        fill(&mut w);
        assert!(w.engine.core.resident_bytes() <= bytes, "{part} sixteenths in use");
        w.validate(1);
    }
    assert!(w.engine.core.room.frames.existing() > full * 9 / 10, "all of them are back");
    (start..start + 3000).for_each(|page| w.check(page, 2));
}

#[test]
fn data_that_does_not_fit_beside_the_outside_gets_more_than_the_limit_and_the_user_is_told_once() {
    let mut w = world_with(11, None, Policy::Writeback);
    let addr = w.engine.map(1500 * PAGE_BYTES, 1, PROT_RW, Kind::Map).unwrap();
    let start = ((addr - BASE) / PAGE_BYTES) as u32;
    w.maps.push((start, 1500));
    let mut rng = Rng(3);
    for page in start..start + 1500 {
        let mut bytes = [0u8; PAGE_BYTES];
        bytes.iter_mut().for_each(|b| *b = rng.next(256) as u8);
        while !w.pager().write(PageId(page), |p| *p = bytes) {
            w.fault(page);
        }
        w.model.insert(page, bytes);
    }
    let told = w.engine.core.note_outside(BUDGET, 1).expect("told");
    assert!(told.outside == BUDGET && told.least < BUDGET * 3 / 4, "{told:?}");
    assert_eq!(w.engine.core.note_outside(2 * BUDGET, 2), None, "once");
    assert_eq!(w.engine.core.ledger.limit_bytes(), told.least);
    // Nothing of it compresses, so nothing can leave: without more frames no page could come in.
    for page in start..start + 1500 {
        let bytes = w.model[&page];
        w.pager().drop_pages(PageId(page), 1).unwrap(); // behind the engine's back
        w.check_zero(page);
        assert!(w.pager().write(PageId(page), |p| *p = bytes));
    }
    w.validate(0);
    let more = w.engine.map(64 * PAGE_BYTES, 1, PROT_RW, Kind::Map).unwrap();
    let page = ((more - BASE) / PAGE_BYTES) as u32;
    w.write(page);
    w.check(page, 1);
    assert!(w.engine.core.ledger.limit_bytes() > told.least);
    (start..start + 1500).for_each(|page| w.check(page, 1));
    // Once there is room the limit is the budget again, and what was conceded is forgotten.
    assert_eq!(w.engine.core.note_outside(0, 3_000_000_000), None);
    assert_eq!(w.engine.core.note_outside(0, 6_000_000_000), None);
    assert_eq!(w.engine.core.ledger.limit_bytes(), BUDGET);
}

#[test]
fn a_reservation_has_no_rows_until_it_is_opened_and_again_when_it_is_closed() {
    let mut w = world(5);
    let none = |w: &World| w.engine.core.resident_bytes();
    let before = none(&w);
    let len = 2048 * PAGE_BYTES;
    let addr = w.engine.map(len, 1, 0, Kind::Map).unwrap();
    let start = ((addr - BASE) / PAGE_BYTES) as u32;
    let valid = |w: &World, page: u32| w.engine.core.table.block(PageId(page).block()).valid();
    assert_eq!((none(&w), valid(&w, start)), (before, 0));
    w.engine.protect(addr + 100 * PAGE_BYTES, 200 * PAGE_BYTES, PROT_RW).unwrap();
    assert_eq!(valid(&w, start + 64), u64::MAX << 36);
    (start + 100..start + 300).for_each(|page| w.write(page));
    w.engine.map_fixed(addr + 1000 * PAGE_BYTES, 300 * PAGE_BYTES, PROT_RW).unwrap();
    (start + 1000..start + 1300).for_each(|page| w.write(page));
    w.validate(0);
    // What had contents keeps them without access, and moves with them.
    w.engine.protect(addr + 100 * PAGE_BYTES, 200 * PAGE_BYTES, 0).unwrap();
    w.engine.protect(addr + 100 * PAGE_BYTES, 200 * PAGE_BYTES, PROT_RW).unwrap();
    (start + 100..start + 300).for_each(|page| w.check(page, 1));
    w.engine.map_fixed(addr + 1000 * PAGE_BYTES, 300 * PAGE_BYTES, 0).unwrap();
    (start + 1000..start + 1300).for_each(|page| w.forget(page));
    assert_eq!(valid(&w, start + 1100), 0);
    w.engine.protect(addr + 1000 * PAGE_BYTES, 300 * PAGE_BYTES, PROT_RW).unwrap();
    (start + 1000..start + 1300).for_each(|page| w.check(page, 2));
    w.engine.unmap(addr, len).unwrap();
    w.model.clear();
    w.validate(3);
    let again = w.engine.map(len, 1, PROT_RW, Kind::Map).unwrap();
    assert_eq!(again, addr, "all of it is free again");
    (start..start + 2048).for_each(|page| w.check(page, 4));
    w.validate(4);
}
