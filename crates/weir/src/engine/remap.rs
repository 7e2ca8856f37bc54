//! `mremap`: pages move by moving their frames, words and records; no byte is copied.

use super::control::{PROT_NONE, Show, Want};
use super::{Engine, Regions};
use crate::door::{Done, Pager};
use crate::error::Refused;
use crate::page::id::{next_run, run_mask};
use crate::page::region::{Kind, Region};
use crate::page::resident::Arrival;
use crate::page::state::{State, must};
use crate::page::table::BlockGuard;
use crate::page::{FrameId, PageId};
use crate::reclaim::discard::{Depth, discard};
use weir_os::mem::{PAGE_BYTES, PROT_RW};
use weir_os::sys::Errno;
use weir_os::uffd::Wake;

/// Where the result may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Only where it is.
    Here,
    /// Anywhere.
    Anywhere,
    /// At this address of the managed space, over whatever is there.
    At(usize),
}

/// The locks of the blocks of two pages, which may be one.
struct Both<'a> {
    low: BlockGuard<'a>,
    high: Option<BlockGuard<'a>>,
}

impl<'a> Both<'a> {
    /// That of this page's block.
    fn of(&self, page: PageId) -> &BlockGuard<'a> {
        self.high.as_ref().filter(|high| high.block() == page.block()).unwrap_or(&self.low)
    }
}

impl<P: Pager> Engine<P> {
    /// The protection that a whole range has, and whether it is a reservation that nobody has opened. Not
    /// managed is what has parts with different ones, of which the kernel would make several mappings.
    pub fn protection(&self, addr: usize, len: usize) -> Result<(i32, bool), Refused> {
        let _inside = self.inside();
        let (_, _, parts, whole) = self.parts(&self.regions(), addr, len)?;
        let Some(&first) = parts.first().filter(|_| whole) else { return Err(Refused::NotManaged) };
        let same = |r: &Region| (r.prot, r.kind, r.bare) == (first.prot, first.kind, first.bare);
        let one = first.kind != Kind::Foreign && parts.iter().all(same);
        if one { Ok((first.prot, first.bare)) } else { Err(Refused::NotManaged) }
    }

    /// Changes a mapping's length and perhaps its place. With `keep_old` (`MREMAP_DONTUNMAP`) the
    /// old range stays mapped and reads as zeros. Returns the new address.
    pub fn remap(
        &self,
        addr: usize,
        old_len: usize,
        new_len: usize,
        place: Place,
        keep_old: bool,
    ) -> Result<usize, Refused> {
        let _inside = self.inside();
        let mut regions = self.regions();
        let (start, end, parts, whole) = self.parts(&regions, addr, old_len)?;
        let Some(&first) = parts.first().filter(|_| whole) else { return Err(Refused::NotManaged) };
        // What is excluded from core files in part stays so as a whole.
        let (dump, locked) = (parts.iter().all(|r| r.dump), parts.iter().all(|r| r.locked));
        let first = Region { dump, locked, ..first };
        if parts.iter().any(|r| (r.prot, r.kind, r.bare) != (first.prot, first.kind, first.bare))
            || first.kind == Kind::Foreign
        {
            return Err(Refused::NotManaged);
        }
        if !locked {
            parts.iter().for_each(|r| self.unlock(*r));
        }
        self.merge(&mut regions, start, end, first);
        let region = Region { start, pages: end - start, base: start, ..first };
        let pages = u32::try_from(new_len.div_ceil(PAGE_BYTES)).map_err(|_| Refused::NoSpace)?;
        if place != Place::Anywhere && place != Place::Here || keep_old {
            return self.move_region(&mut regions, region, pages, place, keep_old);
        }
        if pages < region.pages {
            let tail = (region.pages - pages) as usize * PAGE_BYTES;
            self.unmap_inside(&mut regions, self.addr_of(start + pages), tail)?;
            return Ok(addr);
        }
        if pages == region.pages {
            return Ok(addr);
        }
        let extra = pages - region.pages;
        self.admit(&regions, extra as usize * PAGE_BYTES)?;
        if !region.bare {
            self.fits(PROT_RW, extra as usize * PAGE_BYTES)?;
        }
        if regions.map.extend(start, extra) {
            self.extend(&mut regions, Region { start: end, pages: extra, ..region })?;
            return Ok(addr);
        }
        if place == Place::Here {
            return Err(Refused::NoSpace);
        }
        self.move_region(&mut regions, region, pages, place, keep_old)
    }

    /// The pages behind a region are its own; after an error they are nobody's again.
    fn extend(&self, regions: &mut Regions, tail: Region) -> Result<(), Refused> {
        self.open_or_release(regions, tail, Show::Now)
    }

    /// One entry for a range that `carve` left in pieces.
    fn merge(&self, regions: &mut Regions, start: u32, end: u32, like: Region) {
        for r in regions.map.carve(start, end) {
            regions.map.remove(r.start);
        }
        regions.map.insert(Region { start, pages: end - start, base: start, ..like });
    }

    /// Puts the new region over whatever is there. What only moves there is not new memory, but has its rows
    /// at both places for a while.
    fn take_place(
        &self,
        regions: &mut Regions,
        old: Region,
        new: Region,
        keep_old: bool,
    ) -> Result<(), Refused> {
        if !new.bare {
            self.fits(PROT_RW, self.unopened(regions, new.start, new.end()))?;
        }
        let more = if keep_old { new.pages } else { new.pages.saturating_sub(old.pages) };
        if more > 0 {
            self.admit(regions, more as usize * PAGE_BYTES)?;
        }
        self.replace(regions, new)
    }

    /// Maps the region's new place, which faults do not see yet.
    fn find_place(
        &self,
        regions: &mut Regions,
        old: Region,
        pages: u32,
        place: Place,
        keep_old: bool,
    ) -> Result<Region, Refused> {
        let new_len = pages as usize * PAGE_BYTES;
        match place {
            Place::At(to) => {
                let (from, len) = (self.addr_of(old.start), old.pages as usize * PAGE_BYTES);
                if !self.contains(to) || to < from + len && from < to + new_len {
                    return Err(Refused::Kernel(Errno::EINVAL));
                }
                let start = self.page_of(to);
                let r = Region { start, pages, base: start, ..old };
                self.take_place(regions, old, r, keep_old)?;
                self.open_or_release(regions, r, Show::Later)?;
                Ok(r)
            }
            // The same offset within the block: blocks pair up one to one.
            _ => {
                let (skew, show) = (old.start % 64, Show::Later);
                // As good as any: what had contents keeps rows while it has no access.
                let prot = if old.bare { old.prot } else { old.prot | PROT_RW };
                let want = Want { len: new_len, align: 0, skew, prot, kind: old.kind, show };
                let mapped = self.map_inside(regions, want)?;
                regions.map.remove(mapped.start);
                let mapped = Region { prot: old.prot, ..mapped };
                // What the program advised goes with the pages.
                let Region { fork, access, dump, locked, .. } = old;
                let r = Region { fork, access, dump, locked, ..mapped };
                regions.map.insert(r);
                Ok(r)
            }
        }
    }

    fn move_region(
        &self,
        regions: &mut Regions,
        old: Region,
        pages: u32,
        place: Place,
        keep_old: bool,
    ) -> Result<usize, Refused> {
        let new = self.find_place(regions, old, pages, place, keep_old)?;
        if old.bare {
            if !keep_old {
                self.unmap_inside(regions, self.addr_of(old.start), old.pages as usize * PAGE_BYTES)?;
            }
            return Ok(self.addr_of(new.start));
        }
        self.unlock(old);
        if let Err(e) = self.move_pages(old, new) {
            self.stay(regions, old, new);
            return Err(e);
        }
        self.mark(new, true);
        if new.locked {
            // Beyond the limit they stay in their frames, which the kernel may swap. What the mapping grew by
            // has no page yet that is kept in its frame.
            let _ = self.core.pager.lock(PageId(new.start), new.pages.min(old.pages), true);
        }
        self.leave(regions, old, pages, keep_old);
        Ok(self.addr_of(new.start))
    }

    /// Moves the pages of one region to another, as far as both go. After an error all are where they were.
    fn move_pages(&self, old: Region, new: Region) -> Result<(), Refused> {
        // Frames move between plain memory only. Nobody may use either place while it moves, but for
        // readers of the old one, who lose nothing by this.
        if old.prot != PROT_RW {
            self.reprotect(old, PROT_RW)?;
        }
        let protect = |prot| self.core.pager.protect(PageId(new.start), new.pages, prot, new.dump);
        protect(PROT_RW).map_err(Refused::Kernel)?;
        self.move_runs(old, new);
        protect(new.prot).map_err(|e| {
            self.move_runs(new, old);
            Refused::Kernel(e)
        })
    }

    fn move_runs(&self, old: Region, new: Region) {
        let (mut i, pages) = (0, old.pages.min(new.pages));
        while i < pages {
            let (from, to) = (PageId(old.start + i), PageId(new.start + i));
            let most = (64 - from.index()).min(64 - to.index()).min(pages - i);
            let touched = self.core.table.is_touched(from.block());
            i += if touched { self.move_run(from, to, most) } else { most };
        }
    }

    /// A region could not move: it is what it was, and its new place is nobody's.
    fn stay(&self, regions: &mut Regions, old: Region, new: Region) {
        if old.prot != PROT_RW {
            let _ = self.reprotect(Region { prot: PROT_RW, ..old }, old.prot);
        }
        if old.locked {
            let _ = self.core.pager.lock(PageId(old.start), old.pages, true);
        }
        self.core.charge_rows(-i64::from(new.pages));
        let _ = self.core.pager.protect(PageId(new.start), new.pages, PROT_NONE, false);
        regions.map.remove(new.start);
        regions.map.release(new.start, new.end());
    }

    /// What becomes of the old place of a region that has moved, with its first `pages`. It is too late to
    /// refuse: where the kernel refuses, the old place stays mapped and reads as zeros.
    fn leave(&self, regions: &mut Regions, old: Region, pages: u32, keep: bool) {
        if !keep {
            let (addr, len) = (self.addr_of(old.start), old.pages as usize * PAGE_BYTES);
            let _ = self.unmap_inside(regions, addr, len);
            return;
        }
        if old.prot != PROT_RW {
            let _ = self.reprotect(Region { prot: PROT_RW, ..old }, old.prot);
        }
        // Whatever lay beyond the new length is gone as well.
        for page in (old.start + pages.min(old.pages)..old.end()).map(PageId) {
            discard(&self.core, page.block(), 1 << page.index(), Depth::All);
        }
    }

    /// Moves up to `most` pages of one block: a run of resident pages by two MOVEs, or one page of
    /// another state. Returns how many are dealt with. The program cannot use either place
    /// meanwhile: the old one is being remapped, the new one is not known to it yet.
    fn move_run(&self, from: PageId, to: PageId, most: u32) -> u32 {
        let core = &self.core;
        let both = self.lock_both(from, to);
        let state = |i: u32| core.table.word(PageId(from.0 + i)).load().state();
        match state(0) {
            State::Absent => return 1,
            State::Resident => {
                let n = (0..most).take_while(|i| state(*i) == State::Resident).count() as u32;
                return self.move_resident(&both, from, to, n);
            }
            State::Staged => {
                let Some(window) = both.of(from).window() else { return 1 };
                let frame: FrameId = window.frame(from.index());
                assert!(
                    self.repeat(|| core.pager.fill(to, frame, 1, Wake::No)),
                    "mremap: a staged page cannot be mapped at {to:?}"
                );
                core.staged.sub_pages(1);
                let word = core.table.word(from);
                must(word.try_take_back(word.load()));
                self.hand_over(&both, from, to);
                self.count_arrived(both.of(to), 1);
            }
            State::Same | State::Pooled | State::Swapped => {
                self.hand_over(&both, from, to);
                core.charge(to.block());
            }
        }
        1
    }

    fn move_resident(&self, both: &Both<'_>, from: PageId, to: PageId, n: u32) -> u32 {
        let core = &self.core;
        let Some(window) = core.room.frames.take_empty() else {
            self.copy_stubborn(both, from, to);
            return 1;
        };
        let frame = window.frame(0);
        let mut arrived = 0u64;
        // A page that `mincore` does not see may have come all the same.
        let settle = |d: Done, mask: u64, done: u32| {
            for i in (0..d.pages).filter(|i| mask >> i & 1 == 0) {
                core.pager.settle_frame(FrameId(frame.0 + done + i));
            }
            d
        };
        let drained = self.repeat_run(n, |done| {
            let (d, mask) = core.pager.drain(FrameId(frame.0 + done), PageId(from.0 + done), n - done);
            arrived |= run_mask(done, d.pages);
            settle(d, mask, done)
        });
        let mut at = 0;
        while let Some((start, len)) = next_run(arrived, at) {
            let filled = self.repeat_run(len, |done| {
                let i = start + done;
                core.pager.fill(PageId(to.0 + i), FrameId(frame.0 + i), len - done, Wake::No)
            });
            // The new place was just mapped, empty and writable: there is no way to go on without it.
            assert!(
                filled == len,
                "mremap: page {} of {len} cannot be mapped at {to:?}+{start}: {:?}",
                filled,
                core.pager.fill(
                    PageId(to.0 + start + filled),
                    FrameId(frame.0 + start + filled),
                    1,
                    Wake::No
                )
            );
            at = start + len;
        }
        core.room.frames.put_window(window, 0, 0);
        both.of(from).add_resident(-(drained as i32));
        (0..drained).for_each(|i| self.hand_over(both, PageId(from.0 + i), PageId(to.0 + i)));
        if arrived != 0 {
            self.count_arrived(both.of(to), arrived.count_ones());
        }
        if drained == 0 {
            self.copy_stubborn(both, from, to);
        }
        drained.max(1)
    }

    /// A page that cannot be moved (pinned by a device, not plain memory, no empty window to move
    /// it through) is copied.
    fn copy_stubborn(&self, both: &Both<'_>, from: PageId, to: PageId) {
        let core = &self.core;
        if core.table.word(from).load().state() != State::Resident {
            return;
        }
        assert!(
            self.repeat(|| core.pager.duplicate(to, from)),
            "mremap: {from:?} can be neither moved nor copied"
        );
        // One frame more for a moment; the old one goes back to the kernel.
        let _ = core.pager.drop_pages(from, 1);
        both.of(from).add_resident(-1);
        self.hand_over(both, from, to);
        self.count_arrived(both.of(to), 1);
    }

    /// The word, its record and its second word go from one page to the other.
    fn hand_over(&self, both: &Both<'_>, from: PageId, to: PageId) {
        let core = &self.core;
        let (old, new) = (core.table.word(from), core.table.word(to));
        let found = old.load();
        if let Some(h) = found.handle() {
            core.room.pool.rename(&core.pager, both.of(from), h, to);
        }
        if let (Some(slot), Some(swapping)) = (core.table.slot_of(from, found), &core.copies.swapping) {
            swapping.tier.rename(slot, to);
        }
        core.table.set_aux(both.of(to), to, core.table.aux(from));
        must(old.try_discard(found));
        must(new.try_adopt(found));
        if found.state() == State::Pooled {
            core.copies.note_pooled(&core.table, &core.stats, to.block());
        }
    }

    fn count_arrived(&self, to: &BlockGuard<'_>, n: u32) {
        self.core.charge(to.block());
        to.add_resident(n as i32);
        self.core.resident.arrived(&self.core.table, to.block(), Arrival::Fetched);
    }

    fn lock_both(&self, a: PageId, b: PageId) -> Both<'_> {
        let (x, y) = (a.block().min(b.block()), a.block().max(b.block()));
        let low = self.core.table.block(x).lock();
        let high = (x != y).then(|| self.core.table.block(y).lock());
        Both { low, high }
    }

    fn repeat(&self, mut f: impl FnMut() -> Done) -> bool {
        self.repeat_run(1, |_| f()) == 1
    }

    /// Repeats a call that moves pages until `n` have moved or it fails; `f` gets the number done.
    fn repeat_run(&self, n: u32, mut f: impl FnMut(u32) -> Done) -> u32 {
        let (mut done, mut tries) = (0, 0);
        while done < n && tries < 10_000 {
            let d = f(done);
            done += d.pages;
            match d.stop {
                None => break,
                Some(Errno::EAGAIN) => {
                    tries += 1;
                    weir_os::thread::yield_now();
                }
                Some(_) if d.pages > 0 => tries += 1,
                Some(_) => break,
            }
        }
        done
    }
}
