//! Large allocations: one region each, and a cache of freed ones, so that a program that frees and
//! allocates arrays in a loop does not fault them in again each time.
//!
//! A cached region has given up its pool records and staged frames at once; what is resident stays
//! mapped and is dropped, never compressed, as soon as frames get short.

use super::control::{Show, Want};
use super::{Engine, Regions, each_block};
use crate::door::Pager;
use crate::error::Refused;
use crate::page::region::{Access, AtFork, Kind, Region};
use crate::reclaim::discard::{Depth, discard};
use weir_os::mem::{PAGE_BYTES, PROT_RW};

/// Most cached regions: a search walks them.
const CACHED_MAX: usize = 64;

impl<P: Pager> Engine<P> {
    /// Allocates `len` bytes at a block boundary (or `align`, if larger). With `zeroed` the bytes
    /// are zeros, otherwise they may be those of a freed allocation.
    pub fn heap_alloc(&self, len: usize, align: usize, zeroed: bool) -> Result<usize, Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let pages = len.div_ceil(PAGE_BYTES) as u64;
        if !zeroed && align <= 64 * PAGE_BYTES {
            let fit = |r: &Region| u64::from(r.pages) >= pages && u64::from(r.pages) <= pages + pages / 8;
            if let Some(i) = regions.cache.regions.iter().rposition(fit)
                && let Some(r) = regions.cache.regions.remove(i)
            {
                regions.cache.pages -= u64::from(r.pages);
                regions.map.remove(r.start);
                regions.map.insert(Region { kind: Kind::Heap, ..r });
                return Ok(self.addr_of(r.start));
            }
        }
        self.map_inside(
            &mut regions,
            Want { len, align, skew: 0, prot: PROT_RW, kind: Kind::Heap, show: Show::Now },
        )
        .map(|r| self.addr_of(r.start))
    }

    /// Length in bytes of the large allocation that starts at `addr`.
    pub fn heap_len(&self, addr: usize) -> Option<usize> {
        let _inside = self.inside();
        let regions = self.regions();
        let pages: u32 = self.allocation(&regions, addr).iter().map(|r| r.pages).sum();
        (pages > 0).then_some(pages as usize * PAGE_BYTES)
    }

    /// The regions that make up the large allocation at `addr`; none if none starts there.
    fn allocation(&self, regions: &Regions, addr: usize) -> Vec<Region> {
        let start = self.page_of(addr);
        let mut parts = Vec::new();
        let mut at = start;
        while addr.is_multiple_of(PAGE_BYTES)
            && let Some(r) = regions.map.starting_at(at)
            && r.kind == Kind::Heap
            && r.base == start
        {
            parts.push(r);
            at = r.end();
        }
        parts
    }

    /// Frees a large allocation. `Err` when none starts there.
    pub fn heap_free(&self, addr: usize) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let parts = self.allocation(&regions, addr);
        let [r] = parts[..] else {
            // Several parts: the program gave some of it another protection.
            let pages: u32 = parts.iter().map(|r| r.pages).sum();
            return match pages {
                0 => Err(Refused::NotManaged),
                n => self.unmap_inside(&mut regions, addr, n as usize * PAGE_BYTES),
            };
        };
        let start = r.start;
        let plenty = self.core.room.available() > 2 * self.core.room.high_mark();
        let share = u64::from(self.core.room.frames.limit() / 8);
        regions.map.remove(start);
        if r.prot != PROT_RW
            || !r.dump
            || r.fork != AtFork::Copy
            || r.locked
            || !plenty
            || regions.cache.pages + u64::from(r.pages) > share
        {
            self.close(r)?;
            regions.map.release(r.start, r.end());
            return Ok(());
        }
        each_block(r.start, r.end(), |block, mask| {
            discard(&self.core, block, mask, Depth::Stored);
        });
        // Locks end with the memory, as they do when it is unmapped.
        self.munlock_pages(r.start, r.end());
        if r.access != Access::Any {
            each_block(r.start, r.end(), |block, _| self.core.table.block(block).set_access(Access::Any));
        }
        let cached = Region { kind: Kind::Cached, access: Access::Any, ..r };
        regions.map.insert(cached);
        regions.cache.pages += u64::from(r.pages);
        regions.cache.regions.push_back(cached);
        if regions.cache.regions.len() > CACHED_MAX {
            self.drop_cached(&mut regions, 1);
        }
        Ok(())
    }

    /// Unmaps up to `n` cached regions, oldest first. Returns how many pages they had.
    pub(super) fn drop_cached(&self, regions: &mut Regions, n: usize) -> u64 {
        let mut pages = 0;
        for _ in 0..n {
            let Some(r) = regions.cache.regions.pop_front() else { break };
            regions.cache.pages -= u64::from(r.pages);
            regions.map.remove(r.start);
            // Nobody can use the region, so failing to close it loses address space only.
            if self.close(r).is_ok() {
                regions.map.release(r.start, r.end());
            }
            pages += u64::from(r.pages);
        }
        pages
    }

    /// Drops the oldest cached region, if any. For reclaim: dead memory goes first.
    pub(super) fn drop_oldest_cached(&self) -> bool {
        let mut regions = self.regions();
        self.drop_cached(&mut regions, 1) > 0
    }
}
