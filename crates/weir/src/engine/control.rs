//! What the program asks of its address space: map, unmap, protect, advise, lock. Each call has a
//! defined effect on page words, frames and records, whatever the pages' state.

use super::{Engine, Regions, each_block};
use crate::door::Pager;
use crate::error::Refused;
use crate::fault::{self, Outcome, Whose as By};
use crate::limits::{FREE_RESERVE, KEPT_FOR_POOL};
use crate::page::id::BLOCK_PAGES;
use crate::page::region::{Access, AtFork, Kind, Region};
use crate::page::state::State;
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{BlockId, PageId};
use crate::reclaim::{self, Effort, discard};
use crate::stats;
use crate::sync::Ordering;
use weir_os::mem::{PAGE_BYTES, PROT_RW};
use weir_os::sys::Errno;

pub(super) const PROT_NONE: i32 = 0;
const PROT_WRITE: i32 = 2;
const PROT_ACCESS: i32 = 7;

/// What lies in a range of the managed space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All of it mapped through Weir.
    Managed,
    /// All of it something else (a file, shared memory).
    Foreign,
    /// Gaps, or some of each.
    Mixed,
}

/// A region to be mapped anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    /// Bytes.
    pub len: usize,
    /// Alignment in bytes; a block at least.
    pub align: usize,
    /// Pages between the start of its first block and its own.
    pub skew: u32,
    /// `PROT_*` bits.
    pub prot: i32,
    /// Purpose.
    pub kind: Kind,
    /// When it is seen.
    pub show: Show,
}

/// When faults and readahead may see a new region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// Now.
    Now,
    /// When the pages that move there have arrived: readahead would put zeros in their place.
    Later,
}

impl<P: Pager> Engine<P> {
    /// Maps `len` bytes of zeros somewhere in the space, aligned to `align` bytes (a block at
    /// least). Returns the address.
    pub fn map(&self, len: usize, align: usize, prot: i32, kind: Kind) -> Result<usize, Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        self.map_inside(&mut regions, Want { len, align, skew: 0, prot, kind, show: Show::Now })
            .map(|r| self.addr_of(r.start))
    }

    pub(super) fn map_inside(&self, regions: &mut Regions, want: Want) -> Result<Region, Refused> {
        let Want { len, align, skew, prot, kind, show } = want;
        if prot == PROT_NONE && kind == Kind::Map {
            self.within_rlimit(regions, len)?; // a reservation is no memory yet
        } else {
            self.admit(regions, len)?;
            self.fits(prot, len)?;
        }
        let pages = u32::try_from(len.div_ceil(PAGE_BYTES)).map_err(|_| Refused::NoSpace)?;
        let align_blocks = u32::try_from((align / (64 * PAGE_BYTES)).max(1)).map_err(|_| Refused::NoSpace)?;
        let region = match regions.map.alloc(pages.max(1), align_blocks, skew, prot, kind) {
            Some(r) => r,
            None => {
                self.drop_cached(regions, usize::MAX);
                regions.map.alloc(pages.max(1), align_blocks, skew, prot, kind).ok_or(Refused::NoSpace)?
            }
        };
        self.open_or_release(regions, region, show).map(|()| region)
    }

    /// Opens a region that the map has; after an error it is nobody's again.
    pub(super) fn open_or_release(
        &self,
        regions: &mut Regions,
        r: Region,
        show: Show,
    ) -> Result<(), Refused> {
        self.open(r, show).inspect_err(|_| {
            for part in regions.map.carve(r.start, r.end()) {
                regions.map.remove(part.start);
            }
            regions.map.release(r.start, r.end());
        })
    }

    /// Refuses `len` bytes of new memory while everything is full, so that all that was written can be kept,
    /// and beyond RLIMIT_AS.
    pub(super) fn admit(&self, regions: &Regions, len: usize) -> Result<(), Refused> {
        if self.core.full() {
            stats::add(&self.core.stats.refused, 1);
            return Err(Refused::Full);
        }
        self.within_rlimit(regions, len)
    }

    /// Whether the rows of what is to be opened fit, see [`crate::shared::ledger::Ledger::rows_fit`].
    pub(super) fn fits(&self, prot: i32, len: usize) -> Result<(), Refused> {
        if prot == PROT_NONE || self.core.ledger.rows_fit(len) { Ok(()) } else { Err(Refused::NoSpace) }
    }

    /// Bytes of a range of the space that nobody has mapped yet.
    pub(super) fn unmapped(&self, regions: &Regions, start: u32, end: u32) -> usize {
        let mapped: u32 = regions.map.parts(start, end).0.iter().map(|r| r.pages).sum();
        (end - start).saturating_sub(mapped) as usize * PAGE_BYTES
    }

    /// Bytes of a range of which no row knows yet.
    pub(super) fn unopened(&self, regions: &Regions, start: u32, end: u32) -> usize {
        let (parts, _) = regions.map.parts(start, end);
        let opened = parts.iter().filter(|r| !r.bare && r.kind != Kind::Foreign);
        let opened: u32 = opened.map(|r| r.pages).sum();
        (end - start - opened) as usize * PAGE_BYTES
    }

    /// RLIMIT_AS as far as it can be kept: the reservation itself is larger than most limits, so
    /// what counts is what the program has mapped in it.
    fn within_rlimit(&self, regions: &Regions, len: usize) -> Result<(), Refused> {
        let mapped = regions.map.mapped_pages() * PAGE_BYTES as u64;
        if mapped.saturating_add(len as u64) > weir_os::sys::address_space_limit() {
            return Err(Refused::Full);
        }
        Ok(())
    }

    /// Makes a region's pages accessible, and managed: at once, or by `mark` once the caller has put
    /// pages there.
    pub(super) fn open(&self, r: Region, show: Show) -> Result<(), Refused> {
        if r.bare {
            return Ok(()); // by whoever gives it access
        }
        self.core.charge_rows(i64::from(r.pages));
        // Access first: what readahead puts into a place without access would pass for plain memory.
        if r.prot != PROT_NONE
            && let Err(e) = self.core.pager.protect(PageId(r.start), r.pages, r.prot, r.dump)
        {
            // A part may have it.
            let _ = self.core.pager.protect(PageId(r.start), r.pages, PROT_NONE, false);
            self.core.charge_rows(-i64::from(r.pages));
            return Err(Refused::Kernel(e));
        }
        self.mark(r, show == Show::Now);
        Ok(())
    }

    pub(super) fn mark(&self, r: Region, valid: bool) {
        each_block(r.start, r.end(), |block, mask| {
            let row = self.core.table.block(block).lock();
            let others = row.valid() & !mask;
            row.set_valid(if valid { others | mask } else { others });
            if others == 0 {
                row.set_readahead(0); // what streams left is of another mapping
            }
            match (others, valid) {
                (0, _) => row.set_access(if valid { r.access } else { Access::Any }),
                (_, true) if row.access() != r.access => row.set_access(Access::Any),
                _ => {}
            }
            set_class(&row, mask, if valid { r.prot } else { PROT_RW });
        });
    }

    /// Unmaps a range: contents are dropped, access ends, whole free blocks can be mapped again.
    /// Parts that are not mapped are passed over, as `munmap` does.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        self.unmap_inside(&mut regions, addr, len)
    }

    pub(super) fn unmap_inside(&self, regions: &mut Regions, addr: usize, len: usize) -> Result<(), Refused> {
        let (start, end) = self.page_range(addr, len)?;
        self.clear(regions, start, end)?;
        regions.map.release(start, end);
        Ok(())
    }

    /// Takes the regions of a range away; its blocks stay owned.
    pub(super) fn clear(&self, regions: &mut Regions, start: u32, end: u32) -> Result<(), Refused> {
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
        Ok(())
    }

    /// Takes a region's contents and access away.
    pub(super) fn close(&self, r: Region) -> Result<(), Refused> {
        if r.bare {
            return Ok(());
        }
        if r.prot & PROT_ACCESS != PROT_RW && !self.core.pager.copies() && self.has_frames(r) {
            // Frames leave by MOVE only from plain memory.
            self.reprotect(r, PROT_RW)?;
        }
        self.unlock(r);
        // First nobody's, then empty: in between readahead must not bring pages back.
        self.mark(r, false);
        each_block(r.start, r.end(), |block, mask| {
            discard::discard(&self.core, block, mask, discard::Depth::All);
        });
        self.core.charge_rows(-i64::from(r.pages));
        self.core.pager.protect(PageId(r.start), r.pages, PROT_NONE, false).map_err(|e| {
            // Its contents are gone, but it is mapped as before.
            self.core.charge_rows(r.pages.into());
            self.mark(r, true);
            Refused::Kernel(e)
        })
    }

    fn has_frames(&self, r: Region) -> bool {
        let mut any = false;
        each_block(r.start, r.end(), |block, _| any |= self.core.table.block(block).resident() > 0);
        any
    }

    fn page_range(&self, addr: usize, len: usize) -> Result<(u32, u32), Refused> {
        let end = addr.checked_add(len).ok_or(Refused::NotManaged)?;
        if !self.contains(addr) || len == 0 || end > self.base + self.len || !addr.is_multiple_of(PAGE_BYTES)
        {
            return Err(Refused::NotManaged);
        }
        Ok((self.page_of(addr), self.page_of(end - 1) + 1))
    }

    /// The parts of regions in a range, and whether the program has mapped all of it.
    pub(super) fn parts(
        &self,
        regions: &Regions,
        addr: usize,
        len: usize,
    ) -> Result<(u32, u32, Vec<Region>, bool), Refused> {
        let (start, end) = self.page_range(addr, len)?;
        let (mut parts, whole) = regions.map.parts(start, end);
        let mapped = parts.len();
        parts.retain(|r| r.kind != Kind::Cached);
        let whole = whole && parts.len() == mapped;
        Ok((start, end, parts, whole))
    }

    /// Maps zeros at a fixed place inside the space, over whatever is there (`MAP_FIXED`).
    pub fn map_fixed(&self, addr: usize, len: usize, prot: i32) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let (start, end) = self.page_range(addr, len)?;
        self.admit(&regions, self.unmapped(&regions, start, end))?;
        self.fits(prot, self.unopened(&regions, start, end))?;
        let owned = !regions.map.parts(start, end).0.is_empty();
        self.replace(&mut regions, Region::new(start, end - start, prot, Kind::Map))?;
        let region = Region::new(start, end - start, prot, Kind::Map);
        let opened = self.open_or_release(&mut regions, region, Show::Now);
        if opened.is_err() && owned {
            // What lay there is gone, but who lays memory over his reservation has that still.
            regions.map.place(Region::new(start, end - start, PROT_NONE, Kind::Map));
        }
        opened
    }

    /// Something else is about to be mapped over a range (a file, shared memory): Weir lets go of
    /// it. `unmap` of the range later gives it back.
    pub fn make_foreign(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let (start, end) = self.page_range(addr, len)?;
        self.replace(&mut regions, Region::new(start, end - start, PROT_NONE, Kind::Foreign))
    }

    /// Puts an entry over whatever was mapped there.
    pub(super) fn replace(&self, regions: &mut Regions, region: Region) -> Result<(), Refused> {
        // A freed allocation that waits to be used again is in nobody's way.
        if regions.map.parts(region.start, region.end()).0.iter().any(|r| r.kind == Kind::Cached) {
            self.drop_cached(regions, usize::MAX);
        }
        self.clear(regions, region.start, region.end())?;
        regions.map.place(region);
        Ok(())
    }

    /// `mprotect`. A range with gaps is changed where it is mapped, and refused, as the kernel does.
    pub fn protect(&self, addr: usize, len: usize, prot: i32) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let (start, end, parts, whole) = self.parts(&regions, addr, len)?;
        if parts.iter().any(|r| r.prot != prot && r.kind != Kind::Foreign) {
            regions.map.carve(start, end);
            let mut changing = parts.into_iter().filter(|r| r.prot != prot && r.kind != Kind::Foreign);
            let result = changing.try_for_each(|r| {
                match r.bare {
                    true => self.open_bare(&regions, Region { prot, bare: false, ..r })?,
                    false => self.reprotect(r, prot)?,
                }
                regions.map.remove(r.start);
                regions.map.insert(Region { prot, bare: false, ..r });
                Ok(())
            });
            regions.map.join(start, end);
            result?;
        }
        if whole { Ok(()) } else { Err(Refused::NotManaged) }
    }

    /// Part of a reservation is given access: it is new memory only now.
    fn open_bare(&self, regions: &Regions, r: Region) -> Result<(), Refused> {
        self.admit(regions, 0)?;
        self.fits(r.prot, r.pages as usize * PAGE_BYTES)?;
        self.open(r, Show::Now)
    }

    /// Changes the protection of a region's pages and how they leave. Pages that nobody could write
    /// to may be on their way out by copy: they become writable only under their block's lock. After
    /// an error all is as before, or, where the kernel cannot do that either, the pages stay in their
    /// frames: nobody knows how they are mapped.
    pub(super) fn reprotect(&self, r: Region, prot: i32) -> Result<(), Refused> {
        let gains_write = r.prot & PROT_WRITE == 0 && prot & PROT_WRITE != 0;
        let result = if gains_write { self.let_write(r, prot) } else { self.protect_barred(r, prot) };
        if result.is_err() {
            let _ = self.protect_barred(r, r.prot);
        }
        result.map_err(Refused::Kernel)
    }

    fn let_write(&self, r: Region, prot: i32) -> Result<(), Errno> {
        let mut result = Ok(());
        each_block(r.start, r.end(), |block, mask| {
            let row = self.core.table.block(block).lock();
            let first = block.page(mask.trailing_zeros());
            result = result.and_then(|()| self.core.pager.protect(first, mask.count_ones(), prot, r.dump));
            if result.is_ok() {
                set_class(&row, mask, prot);
            }
        });
        result
    }

    /// MOVE would refuse what it may no longer take, a lift would not: nothing leaves meanwhile.
    fn protect_barred(&self, r: Region, prot: i32) -> Result<(), Errno> {
        each_block(r.start, r.end(), |block, mask| {
            let row = self.core.table.block(block).lock();
            row.set_fixed(row.fixed() | mask);
        });
        self.core.pager.protect(PageId(r.start), r.pages, prot, r.dump)?;
        each_block(r.start, r.end(), |block, mask| {
            let row = self.core.table.block(block).lock();
            set_class(&row, mask, prot);
        });
        Ok(())
    }

    /// `madvise(MADV_DONTNEED)` and `MADV_FREE`: the range reads as zeros from now on.
    pub fn drop_contents(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.inside();
        let (_, _, parts, whole) = {
            let mut regions = self.regions();
            // The lock ends with the contents: a page that came later would be the kernel's to keep, and ours
            // to move.
            if self.parts(&regions, addr, len)?.2.iter().any(|r| r.locked) {
                self.unpin_inside(&mut regions, addr, len)?;
            }
            self.parts(&regions, addr, len)?
        };
        let mut refused = None;
        for r in parts.iter().filter(|r| r.kind != Kind::Foreign && !r.bare) {
            each_block(r.start, r.end(), |block, mask| {
                let gone = discard::discard(&self.core, block, mask, discard::Depth::All);
                refused = refused.or(gone.refused);
            });
        }
        match refused {
            Some(e) => Err(Refused::Kernel(e)),
            None if whole => Ok(()),
            None => Err(Refused::NotManaged),
        }
    }

    /// Changes what is kept of the regions in a range, and of nothing beyond its ends. Its pages, and whether
    /// the program has mapped all of it.
    fn change(
        &self,
        regions: &mut Regions,
        addr: usize,
        len: usize,
        f: impl Fn(Region) -> Region,
    ) -> Result<(u32, u32, bool), Refused> {
        let (start, end, parts, whole) = self.parts(regions, addr, len)?;
        regions.map.carve(start, end);
        for r in parts {
            regions.map.remove(r.start);
            regions.map.insert(f(r));
        }
        regions.map.join(start, end);
        Ok((start, end, whole))
    }

    /// `MADV_WIPEONFORK`, `MADV_DONTFORK` and their opposites.
    pub fn set_fork(&self, addr: usize, len: usize, fork: AtFork) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let (.., whole) = self.change(&mut regions, addr, len, |r| Region { fork, ..r })?;
        if whole { Ok(()) } else { Err(Refused::NotManaged) }
    }

    /// `MADV_RANDOM`, `MADV_SEQUENTIAL`, `MADV_NORMAL`. Faults read it from the rows of blocks: where a
    /// block's parts were advised differently, it is as if nobody had.
    pub fn set_access(&self, addr: usize, len: usize, access: Access) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let (start, end, whole) = self.change(&mut regions, addr, len, |r| Region { access, ..r })?;
        let (parts, _) = regions.map.parts(start, end);
        for r in parts.into_iter().filter(|r| !r.bare) {
            self.tell_rows(&regions, (r.start, r.end()), access);
        }
        if whole { Ok(()) } else { Err(Refused::NotManaged) }
    }

    fn tell_rows(&self, regions: &Regions, pages: (u32, u32), access: Access) {
        each_block(pages.0, pages.1, |block, mask| {
            let first = block.page(0).0;
            let agreed = mask == u64::MAX || {
                let mut others = regions.map.parts(first, first + BLOCK_PAGES).0.into_iter();
                others.all(|r| r.access == access || r.kind == Kind::Foreign)
            };
            let row = self.core.table.block(block).lock();
            row.set_access(if agreed { access } else { Access::Any });
        });
    }

    /// The parts of a range where something else is mapped: (address, bytes).
    pub fn foreign_parts(&self, addr: usize, len: usize) -> Vec<(usize, usize)> {
        let _inside = self.inside();
        let Ok((_, _, parts, _)) = self.parts(&self.regions(), addr, len) else { return Vec::new() };
        let foreign = parts.iter().filter(|r| r.kind == Kind::Foreign);
        foreign.map(|r| (self.addr_of(r.start), r.pages as usize * PAGE_BYTES)).collect()
    }

    /// What lies in a range of the space.
    pub fn whose(&self, addr: usize, len: usize) -> Whose {
        let _inside = self.inside();
        match self.parts(&self.regions(), addr, len) {
            Ok((_, _, parts, true)) if parts.iter().all(|r| r.kind == Kind::Foreign) => Whose::Foreign,
            Ok((_, _, parts, true)) if parts.iter().all(|r| r.kind != Kind::Foreign) => Whose::Managed,
            _ => Whose::Mixed,
        }
    }

    /// `mincore`: one byte a page, bit 0 set for pages in a frame of the program.
    pub fn residency(&self, addr: usize, len: usize, mut out: impl FnMut(usize, u8)) -> Result<(), Refused> {
        let _inside = self.inside();
        let (start, end, _, whole) = self.parts(&self.regions(), addr, len)?;
        for page in start..end {
            let (page, table) = (PageId(page), &self.core.table);
            let here = table.is_touched(page.block()) && table.word(page).load().state() == State::Resident;
            let page = page.0;
            out((page - start) as usize, u8::from(here));
        }
        if whole { Ok(()) } else { Err(Refused::NotManaged) }
    }

    /// Whether the page at an address is in a frame of the program.
    pub fn is_resident(&self, addr: usize) -> bool {
        self.core.table.word(PageId(self.page_of(addr))).load().state() == State::Resident
    }

    /// `MADV_WILLNEED`: fetches what is out, as far as there are frames. Where there are none the background
    /// thread is woken: the caller must not reclaim, the stack that it runs on could be what goes.
    pub fn will_need(&self, addr: usize, len: usize) -> Result<(), Refused> {
        const WANTED: u32 = KEPT_FOR_POOL + FREE_RESERVE + BLOCK_PAGES;
        let (start, end) = self.page_range(addr, len)?;
        each_block(start, end, |block, mask| {
            // A fork, and every fault behind it, waits for a block at most.
            let _inside = self.inside();
            if !is_out(&self.core.table, block, mask) {
            } else if self.core.room.available() >= WANTED {
                fault::prefetch(&self.core, block.page(0), mask, By::Program);
            } else {
                self.core.room.kick_if_low();
            }
        });
        Ok(())
    }

    /// `MADV_PAGEOUT` and `MADV_COLD`: these pages go first.
    pub fn page_out(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let (start, end) = self.page_range(addr, len)?;
        each_block(start, end, |block, mask| {
            let _inside = self.inside();
            let row = self.core.table.block(block);
            if row.resident() == 0 {
            } else if row.valid() & !mask == 0 {
                let _ = reclaim::unmap::unmap(&self.core, block);
            } else {
                let _ = reclaim::unmap::unmap_part(&self.core, block, mask);
            }
        });
        Ok(())
    }

    /// `mlock`: brings the range in and keeps it, and keeps the kernel from swapping it. Refused beyond half
    /// of the frames, and by the kernel beyond its limit.
    pub fn mlock(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.inside();
        let (start, end, _, whole) = self.parts(&self.regions(), addr, len)?;
        if !whole {
            return Err(Refused::NotManaged);
        }
        let locked = self.core.census.mlocked.load(Ordering::Relaxed);
        if locked + u64::from(end - start) > u64::from(self.core.room.frames.limit() / 2) {
            return Err(Refused::Full);
        }
        for page in start..end {
            self.mlock_page(PageId(page))?;
        }
        let mut regions = self.regions();
        self.change(&mut regions, addr, len, |r| Region { locked: r.kind != Kind::Foreign, ..r })?;
        let result = self.core.pager.lock(PageId(start), end - start, true);
        result.map_err(|e| {
            let _ = self.unpin_inside(&mut regions, addr, len);
            Refused::Kernel(e)
        })
    }

    /// Takes the kernel's lock off a region: locked pages cannot be moved or dropped.
    pub(super) fn unlock(&self, r: Region) {
        if r.locked {
            let _ = self.core.pager.lock(PageId(r.start), r.pages, false);
        }
    }

    /// Whether any of a range is locked.
    pub fn is_locked(&self, addr: usize, len: usize) -> bool {
        let _inside = self.inside();
        self.parts(&self.regions(), addr, len).is_ok_and(|(_, _, parts, _)| parts.iter().any(|r| r.locked))
    }

    /// `MADV_DONTDUMP` and `MADV_DODUMP`. What is not in a frame of the program is in no core file in any
    /// case.
    pub fn set_dump(&self, addr: usize, len: usize, dump: bool) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let (start, end, whole) = self.change(&mut regions, addr, len, |r| Region { dump, ..r })?;
        for r in self.parts(&regions, self.addr_of(start), (end - start) as usize * PAGE_BYTES)?.2 {
            if r.prot != PROT_NONE && r.kind != Kind::Foreign {
                self.core.pager.dump(PageId(r.start), r.pages, dump).map_err(Refused::Kernel)?;
            }
        }
        if whole { Ok(()) } else { Err(Refused::NotManaged) }
    }

    fn mlock_page(&self, page: PageId) -> Result<(), Refused> {
        for n in 0..1000 {
            if n == 500 {
                self.core.room.need_pool(&self.core.ledger); // the swap file may be stuck
                self.core.concede();
            }
            {
                let _guard = self.core.table.block(page.block()).lock();
                let word = self.core.table.word(page);
                let found = word.load();
                if found.mlocked() {
                    return Ok(());
                }
                if found.state() == State::Resident && word.try_mlock(found, true).is_ok() {
                    self.core.census.mlocked.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
            }
            match fault::resolve(&self.core, &self.strides, page, 0) {
                Outcome::NoFrames => {
                    self.reclaim_here();
                }
                Outcome::Foreign | Outcome::Lost => return Err(Refused::NotManaged),
                Outcome::Installed(ahead) => {
                    ahead.map(|a| fault::first_touches(&self.core, a));
                }
                Outcome::Stale | Outcome::Loaded(..) => {}
            }
        }
        Err(Refused::Full)
    }

    /// Reclaims a small round in a thread of the program.
    pub(super) fn reclaim_here(&self) -> u32 {
        let mut workbench = self.workbench.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        reclaim::run_once(&self.core, &mut workbench, 64, Effort::Direct).freed
    }

    /// `munlock`.
    pub fn munlock(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        self.unpin_inside(&mut regions, addr, len)
    }

    fn unpin_inside(&self, regions: &mut Regions, addr: usize, len: usize) -> Result<(), Refused> {
        let (start, end) = self.page_range(addr, len)?;
        self.parts(regions, addr, len)?.2.into_iter().for_each(|r| self.unlock(r));
        self.change(regions, addr, len, |r| Region { locked: false, ..r })?;
        self.munlock_pages(start, end);
        Ok(())
    }

    pub(super) fn munlock_pages(&self, start: u32, end: u32) {
        if self.core.census.mlocked.load(Ordering::Relaxed) == 0 {
            return;
        }
        each_block(start, end, |block, mask| {
            let _guard = self.core.table.block(block).lock();
            let mask = if self.core.table.is_touched(block) { mask } else { 0 };
            for i in (0..64).filter(|i| mask >> i & 1 == 1) {
                let word = self.core.table.word(block.page(i));
                let found = word.load();
                if found.mlocked() && word.try_mlock(found, false).is_ok() {
                    self.core.census.mlocked.fetch_sub(1, Ordering::Relaxed);
                }
            }
        });
    }
}

/// Notes how pages with this protection leave: plain read-write ones by MOVE, those without write
/// access by copy, the others not at all while they are so.
fn set_class(row: &BlockGuard<'_>, mask: u64, prot: i32) {
    let readonly = prot & PROT_WRITE == 0;
    let fixed = !readonly && prot & PROT_ACCESS != PROT_RW;
    row.set_readonly(if readonly { row.readonly() | mask } else { row.readonly() & !mask });
    row.set_fixed(if fixed { row.fixed() | mask } else { row.fixed() & !mask });
}

/// Whether pages of these that have contents are not in RAM, or on their way out.
fn is_out(table: &PageTable, block: BlockId, mask: u64) -> bool {
    let is_out =
        |i: u32| !matches!(table.word(block.page(i)).load().state(), State::Absent | State::Resident);
    table.is_touched(block) && (0..BLOCK_PAGES).any(|i| mask >> i & 1 == 1 && is_out(i))
}
