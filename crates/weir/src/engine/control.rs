//! What the program asks of its address space: map, unmap, protect, advise, lock. Each call has a
//! defined effect on page words, frames and records, whatever the pages' state.

use super::{Engine, Regions, each_block};
use crate::door::Pager;
use crate::error::Refused;
use crate::fault::{self, Outcome};
use crate::page::region::{Kind, Region};
use crate::page::state::State;
use crate::page::{BlockId, PageId};
use crate::reclaim::{self, Effort, discard};
use crate::stats;
use crate::sync::Ordering;
use weir_os::mem::{PAGE_BYTES, PROT_RW};

const PROT_NONE: i32 = 0;
const PROT_READ: i32 = 1;
const PROT_ACCESS: i32 = 7;

impl<P: Pager> Engine<P> {
    /// Maps `len` bytes of zeros somewhere in the space, aligned to `align` bytes (a block at
    /// least). Returns the address.
    pub fn map(&self, len: usize, align: usize, prot: i32, kind: Kind) -> Result<usize, Refused> {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        self.map_inside(&mut regions, len, align, 0, prot, kind).map(|r| self.addr_of(r.start))
    }

    pub(super) fn map_inside(
        &self,
        regions: &mut Regions,
        len: usize,
        align: usize,
        skew: u32,
        prot: i32,
        kind: Kind,
    ) -> Result<Region, Refused> {
        self.admit()?;
        let pages = u32::try_from(len.div_ceil(PAGE_BYTES)).map_err(|_| Refused::NoSpace)?;
        let align_blocks = (align / (64 * PAGE_BYTES)).max(1) as u32;
        let region = match regions.map.alloc(pages.max(1), align_blocks, skew, prot, kind) {
            Some(r) => r,
            None => {
                self.drop_cached(regions, usize::MAX);
                regions.map.alloc(pages.max(1), align_blocks, skew, prot, kind).ok_or(Refused::NoSpace)?
            }
        };
        if let Err(e) = self.open(region) {
            regions.map.remove(region.start);
            regions.map.release(region.start, region.end());
            return Err(e);
        }
        Ok(region)
    }

    /// Refuses new memory while everything is full, so that all that was written can be kept.
    fn admit(&self) -> Result<(), Refused> {
        if self.core.full() {
            stats::add(&self.core.stats.refused, 1);
            return Err(Refused::Full);
        }
        Ok(())
    }

    /// Makes a region's pages managed and accessible.
    pub(super) fn open(&self, r: Region) -> Result<(), Refused> {
        self.mark(r, true);
        if r.prot != PROT_NONE
            && let Err(e) = self.core.pager.protect(PageId(r.start), r.pages, r.prot)
        {
            self.mark(r, false);
            return Err(Refused::Kernel(e));
        }
        Ok(())
    }

    fn mark(&self, r: Region, valid: bool) {
        let fixed = !movable(r.prot);
        each_block(r.start, r.end(), |block, mask| {
            let row = self.core.table.block(block);
            let _guard = row.lock();
            row.set_valid(if valid { row.valid() | mask } else { row.valid() & !mask });
            row.set_fixed(if valid && fixed { row.fixed() | mask } else { row.fixed() & !mask });
        });
    }

    /// Unmaps a range: contents are dropped, access ends, whole free blocks can be mapped again.
    /// Parts that are not mapped are passed over, as `munmap` does.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        self.unmap_inside(&mut regions, addr, len)
    }

    pub(super) fn unmap_inside(&self, regions: &mut Regions, addr: usize, len: usize) -> Result<(), Refused> {
        let (start, end) = self.page_range(addr, len)?;
        for r in regions.map.carve(start, end) {
            if r.kind == Kind::Cached {
                continue; // freed already; not the program's to unmap
            }
            if r.kind == Kind::Foreign {
                self.core.pager.reserve_again(PageId(r.start), r.pages).map_err(Refused::Kernel)?;
            } else {
                self.close(r)?;
            }
            regions.map.remove(r.start);
        }
        regions.map.release(start, end);
        Ok(())
    }

    /// Takes a region's contents and access away.
    pub(super) fn close(&self, r: Region) -> Result<(), Refused> {
        if r.prot & PROT_ACCESS != PROT_RW && r.prot != PROT_NONE {
            // Frames leave by MOVE only from plain memory.
            self.core.pager.protect(PageId(r.start), r.pages, PROT_RW).map_err(Refused::Kernel)?;
        }
        each_block(r.start, r.end(), |block, mask| {
            discard::discard(&self.core, block, mask, discard::Depth::All);
        });
        self.mark(r, false);
        self.core.pager.protect(PageId(r.start), r.pages, PROT_NONE).map_err(Refused::Kernel)
    }

    fn page_range(&self, addr: usize, len: usize) -> Result<(u32, u32), Refused> {
        let end = addr.checked_add(len).ok_or(Refused::NotManaged)?;
        if !self.contains(addr) || len == 0 || end > self.base + self.len || !addr.is_multiple_of(PAGE_BYTES) {
            return Err(Refused::NotManaged);
        }
        Ok((self.page_of(addr), self.page_of(end - 1) + 1))
    }

    /// The regions that cover a range without a gap.
    pub(super) fn covered(
        &self,
        regions: &mut Regions,
        addr: usize,
        len: usize,
    ) -> Result<(u32, u32, Vec<Region>), Refused> {
        let (start, end) = self.page_range(addr, len)?;
        let list = regions.map.carve(start, end);
        let mut at = start;
        for r in &list {
            if r.start != at || r.kind == Kind::Cached {
                return Err(Refused::NotManaged);
            }
            at = r.end();
        }
        if at == end { Ok((start, end, list)) } else { Err(Refused::NotManaged) }
    }

    /// Maps zeros at a fixed place inside the space, over whatever is there (`MAP_FIXED`).
    pub fn map_fixed(&self, addr: usize, len: usize, prot: i32) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        self.admit()?;
        let (start, end) = self.page_range(addr, len)?;
        let old = regions.map.carve(start, end);
        if old.iter().any(|r| r.kind == Kind::Cached) {
            return Err(Refused::NotManaged);
        }
        self.unmap_inside(&mut regions, addr, len)?;
        let region = Region { start, pages: end - start, prot, kind: Kind::Map };
        if regions.map.alloc_at(start, end - start, prot, Kind::Map).is_none() {
            // Inside blocks that other regions own already: a hole in them.
            regions.map.insert(region);
        }
        self.open(region)
    }

    /// Something else is about to be mapped over a range (a file, shared memory): Weir lets go of
    /// it. `unmap` of the range later gives it back.
    pub fn make_foreign(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        let (start, end) = self.page_range(addr, len)?;
        self.unmap_inside(&mut regions, addr, len)?;
        if regions.map.alloc_at(start, end - start, PROT_NONE, Kind::Foreign).is_none() {
            regions.map.insert(Region { start, pages: end - start, prot: PROT_NONE, kind: Kind::Foreign });
        }
        Ok(())
    }

    /// `mprotect`.
    pub fn protect(&self, addr: usize, len: usize, prot: i32) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        let (_, _, list) = self.covered(&mut regions, addr, len)?;
        for r in list {
            self.reprotect(r, prot)?;
            regions.map.remove(r.start);
            regions.map.insert(Region { prot, ..r });
        }
        Ok(())
    }

    fn reprotect(&self, r: Region, prot: i32) -> Result<(), Refused> {
        let fixed = !movable(prot);
        // A read-only page may be on its way out by copy: nobody may become a writer meanwhile.
        let under_lock = r.prot & PROT_ACCESS == PROT_READ && prot & !PROT_READ != 0;
        let mut result = Ok(());
        if fixed || !under_lock {
            self.mark(Region { prot, ..r }, true);
        }
        if under_lock {
            each_block(r.start, r.end(), |block, mask| {
                let row = self.core.table.block(block);
                let _guard = row.lock();
                row.set_fixed(if fixed { row.fixed() | mask } else { row.fixed() & !mask });
                let n = mask.count_ones();
                result = result.and(self.core.pager.protect(block.page(mask.trailing_zeros()), n, prot));
            });
        } else {
            result = self.core.pager.protect(PageId(r.start), r.pages, prot);
        }
        result.map_err(Refused::Kernel)
    }

    /// `madvise(MADV_DONTNEED)` and `MADV_FREE`: the range reads as zeros from now on.
    pub fn drop_contents(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        let (start, end, list) = self.covered(&mut regions, addr, len)?;
        if list.iter().any(|r| r.kind == Kind::Foreign) {
            return Err(Refused::NotManaged);
        }
        drop(regions);
        each_block(start, end, |block, mask| {
            discard::discard(&self.core, block, mask, discard::Depth::All);
        });
        Ok(())
    }

    /// Whether the whole range is mapped through Weir.
    pub fn manages(&self, addr: usize, len: usize) -> bool {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        self.covered(&mut regions, addr, len).is_ok_and(|(_, _, l)| l.iter().all(|r| r.kind != Kind::Foreign))
    }

    /// Whether the page at an address is in a frame of the program.
    pub fn is_resident(&self, addr: usize) -> bool {
        self.core.table.word(PageId(self.page_of(addr))).load().state() == State::Resident
    }

    /// `MADV_WILLNEED`: fetches what fits without evicting.
    pub fn will_need(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let (start, end) = self.page_range(addr, len)?;
        each_block(start, end, |block, mask| {
            let room = self.core.available() > 2 * self.core.low_mark();
            if room && has_contents(self, block, mask) {
                fault::prefetch(&self.core, block.page(0), mask, None);
            }
        });
        Ok(())
    }

    /// `MADV_PAGEOUT` and `MADV_COLD`: these pages go first.
    pub fn page_out(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let (start, end) = self.page_range(addr, len)?;
        each_block(start, end, |block, mask| {
            if mask == u64::MAX && self.core.table.block(block).resident() > 0 {
                let _ = reclaim::unmap::unmap(&self.core, block);
            }
        });
        Ok(())
    }

    /// `mlock`: brings the range in and keeps it. Refused beyond half of the frames.
    pub fn pin(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let (start, end) = {
            let mut regions = self.regions();
            let (s, e, _) = self.covered(&mut regions, addr, len)?;
            (s, e)
        };
        let pinned = self.core.pinned.load(Ordering::Relaxed);
        if pinned + u64::from(end - start) > u64::from(self.core.frames.limit() / 2) {
            return Err(Refused::Full);
        }
        for page in start..end {
            self.pin_page(PageId(page))?;
        }
        Ok(())
    }

    fn pin_page(&self, page: PageId) -> Result<(), Refused> {
        for _ in 0..1000 {
            {
                let _guard = self.core.table.block(page.block()).lock();
                let word = self.core.table.word(page);
                let found = word.load();
                if found.pinned() {
                    return Ok(());
                }
                if found.state() == State::Resident && word.try_pin(found, true).is_ok() {
                    self.core.pinned.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
            }
            match fault::resolve(&self.core, &self.strides, page, 0) {
                Outcome::NoFrames => {
                    self.reclaim_here();
                }
                Outcome::Foreign | Outcome::Lost => return Err(Refused::NotManaged),
                Outcome::Installed(_) | Outcome::Stale => {}
            }
        }
        Err(Refused::Full)
    }

    /// Reclaims a small batch in a thread of the program.
    pub(super) fn reclaim_here(&self) -> u32 {
        let mut bench = self.bench.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        reclaim::run_once(&self.core, &mut bench, 64, Effort::Direct).freed
    }

    /// `munlock`.
    pub fn unpin(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.gate.enter();
        let (start, end) = self.page_range(addr, len)?;
        each_block(start, end, |block, mask| {
            let _guard = self.core.table.block(block).lock();
            for i in (0..64).filter(|i| mask >> i & 1 == 1) {
                let word = self.core.table.word(block.page(i));
                let found = word.load();
                if found.pinned() && word.try_pin(found, false).is_ok() {
                    self.core.pinned.fetch_sub(1, Ordering::Relaxed);
                }
            }
        });
        Ok(())
    }
}

/// Whether pages with this protection can leave: plain read-write ones move, read-only ones are
/// copied out. The others stay while they are so.
fn movable(prot: i32) -> bool {
    prot & PROT_ACCESS == PROT_RW || prot & PROT_ACCESS == PROT_READ
}

fn has_contents<P: Pager>(engine: &Engine<P>, block: BlockId, mask: u64) -> bool {
    (0..64).any(|i| {
        mask >> i & 1 == 1 && engine.core.table.word(block.page(i)).load().state() != State::Absent
    })
}
