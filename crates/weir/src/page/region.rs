//! The map of regions: which parts of the managed space the program has mapped, with which
//! protection and for what, and which address ranges are free. Control path only.

use super::id::BLOCK_PAGES;
use std::collections::{BTreeMap, BTreeSet};

/// What a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Mapped by the program (`mmap`).
    Map,
    /// One large allocation of the program (`malloc`).
    Heap,
    /// Memory from which small allocations are cut.
    Arena,
    /// A freed large allocation, kept for the next one of its size.
    Cached,
    /// Something else is mapped there (a file, shared memory): not Weir's.
    Foreign,
}

/// What a forked child gets of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtFork {
    /// The same bytes.
    Copy,
    /// Zeros (`MADV_WIPEONFORK`).
    Wipe,
    /// No mapping (`MADV_DONTFORK`).
    Drop,
}

/// In which order the program says that it will use its pages (`madvise`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// It says nothing (`MADV_NORMAL`).
    #[default]
    Any,
    /// In no order (`MADV_RANDOM`): a fault brings its page alone.
    Random,
    /// From the lowest address to the highest (`MADV_SEQUENTIAL`): a fault brings the rest of its block and
    /// runs ahead.
    Sequential,
}

/// A run of pages with one protection and purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First page.
    pub start: u32,
    /// Length in pages.
    pub pages: u32,
    /// `PROT_*` bits.
    pub prot: i32,
    /// Purpose.
    pub kind: Kind,
    /// First page of the mapping or allocation that this was cut from.
    pub base: u32,
    /// What a forked child gets.
    pub fork: AtFork,
    /// Order of use; the rows of the blocks repeat it for faults.
    pub access: Access,
    /// Reserved without access and never opened: no page has contents, and no row of a block knows of it.
    pub bare: bool,
    /// In core files, as far as it is in RAM.
    pub dump: bool,
    /// Its pages are locked in RAM, by the kernel as well.
    pub locked: bool,
}

impl Region {
    /// A region as mapped at first.
    pub fn new(start: u32, pages: u32, prot: i32, kind: Kind) -> Region {
        let (fork, access) = (AtFork::Copy, Access::Any);
        let bare = prot == 0 && kind == Kind::Map;
        Region { start, pages, prot, kind, base: start, fork, access, bare, dump: true, locked: false }
    }

    fn continues(&self, before: &Region) -> bool {
        *self == Region { start: self.start, pages: self.pages, ..*before } && before.end() == self.start
    }

    /// First page after the region.
    pub fn end(&self) -> u32 {
        self.start + self.pages
    }
}

/// Regions and free address ranges. Address space is handed out in blocks, regions are cut by
/// pages: two regions never share a block unless one was cut from the other.
#[derive(Debug)]
pub struct RegionMap {
    regions: BTreeMap<u32, Region>,
    /// Free block ranges: start -> length, and the same by (length, start) for best fit.
    free: BTreeMap<u32, u32>,
    free_by_len: BTreeSet<(u32, u32)>,
    /// Pages mapped, all kinds but Cached and Foreign.
    mapped_pages: u64,
}

impl RegionMap {
    /// An empty map over `pages` pages (a multiple of a block).
    pub fn new(pages: u32) -> RegionMap {
        let mut map = RegionMap {
            regions: BTreeMap::new(),
            free: BTreeMap::new(),
            free_by_len: BTreeSet::new(),
            mapped_pages: 0,
        };
        map.add_free(0, pages / BLOCK_PAGES);
        map
    }

    /// Takes the blocks before `block` out of use. Nothing is mapped yet.
    pub fn begin_at(&mut self, block: u32) {
        if let Some(len) = self.free.get(&0).copied() {
            self.remove_free(0, len);
            self.add_free(block.min(len), len.saturating_sub(block));
        }
    }

    fn add_free(&mut self, start: u32, len: u32) {
        if len > 0 {
            self.free.insert(start, len);
            self.free_by_len.insert((len, start));
        }
    }

    fn remove_free(&mut self, start: u32, len: u32) {
        self.free.remove(&start);
        self.free_by_len.remove(&(len, start));
    }

    /// Finds room for `pages` pages (best fit, lowest address) and maps a region there, aligned
    /// to `align_blocks` blocks and shifted by `skew` pages into its first block.
    pub fn alloc(
        &mut self,
        pages: u32,
        align_blocks: u32,
        skew: u32,
        prot: i32,
        kind: Kind,
    ) -> Option<Region> {
        let blocks = (pages.checked_add(skew)?).div_ceil(BLOCK_PAGES).max(1);
        let align = align_blocks.max(1);
        let (len, start, at) = self
            .free_by_len
            .range((blocks, 0)..)
            .map(|&(len, start)| (len, start, start.next_multiple_of(align)))
            .find(|&(len, start, at)| at + blocks <= start + len)?;
        self.remove_free(start, len);
        self.add_free(start, at - start);
        self.add_free(at + blocks, start + len - at - blocks);
        let region = Region::new(at * BLOCK_PAGES + skew, pages, prot, kind);
        self.insert(region);
        Some(region)
    }

    /// Maps exactly `[start, start + pages)`, where no region is left; takes the blocks under it
    /// that are free and shares those that other regions own.
    pub fn place(&mut self, region: Region) {
        let (first, last) = (region.start / BLOCK_PAGES, region.end().div_ceil(BLOCK_PAGES));
        let overlapping: Vec<(u32, u32)> = {
            let from = self.free.range(..=first).next_back().map_or(first, |(s, _)| *s);
            self.free.range(from..last).map(|(s, l)| (*s, *l)).filter(|(s, l)| s + l > first).collect()
        };
        for (s, l) in overlapping {
            self.remove_free(s, l);
            self.add_free(s, first.saturating_sub(s));
            self.add_free(last, (s + l).saturating_sub(last));
        }
        self.insert(region);
    }

    /// Puts a region into the map over blocks that are owned already (a hole in a region).
    pub fn insert(&mut self, region: Region) {
        if counted(region.kind) {
            self.mapped_pages += u64::from(region.pages);
        }
        self.regions.insert(region.start, region);
    }

    /// Grows a region in place by `extra` pages if the blocks behind it are free.
    pub fn extend(&mut self, start: u32, extra: u32) -> bool {
        let Some(&region) = self.regions.get(&start) else { return false };
        let owned_end = region.end().div_ceil(BLOCK_PAGES);
        let Some(new_end) = region.end().checked_add(extra) else { return false };
        if self.regions.range(region.end()..new_end).next().is_some() {
            return false;
        }
        let want = new_end.div_ceil(BLOCK_PAGES);
        if want > owned_end {
            match self.free.get(&owned_end).copied() {
                Some(len) if len >= want - owned_end => {
                    self.remove_free(owned_end, len);
                    self.add_free(want, len - (want - owned_end));
                }
                _ => return false,
            }
        }
        self.remove(start);
        self.insert(Region { pages: region.pages + extra, ..region });
        true
    }

    /// Removes the entry that starts at `start`; its blocks stay owned.
    pub fn remove(&mut self, start: u32) -> Option<Region> {
        let r = self.regions.remove(&start)?;
        if counted(r.kind) {
            self.mapped_pages -= u64::from(r.pages);
        }
        Some(r)
    }

    /// The region that contains the page.
    pub fn find(&self, page: u32) -> Option<Region> {
        self.regions.range(..=page).next_back().map(|(_, r)| *r).filter(|r| page < r.end())
    }

    /// The region that starts exactly at the page.
    pub fn starting_at(&self, page: u32) -> Option<Region> {
        self.regions.get(&page).copied()
    }

    /// Cuts regions so that none crosses `start` or `end`, and returns those in between.
    pub fn carve(&mut self, start: u32, end: u32) -> Vec<Region> {
        for cut in [start, end] {
            if let Some(r) = self.find(cut)
                && r.start < cut
            {
                self.remove(r.start);
                self.insert(Region { pages: cut - r.start, ..r });
                self.insert(Region { start: cut, pages: r.end() - cut, ..r });
            }
        }
        self.regions.range(start..end).map(|(_, r)| *r).collect()
    }

    /// The parts of regions in `[start, end)`, and whether they cover it without a gap.
    pub fn parts(&self, start: u32, end: u32) -> (Vec<Region>, bool) {
        let first = self.find(start).map_or(start, |r| r.start);
        let (mut parts, mut at) = (Vec::new(), start);
        for r in self.regions.range(first..end).map(|(_, r)| *r) {
            let (s, e) = (r.start.max(start), r.end().min(end));
            if s != at && at != u32::MAX {
                at = u32::MAX; // a gap
            } else if at != u32::MAX {
                at = e;
            }
            parts.push(Region { start: s, pages: e - s, ..r });
        }
        (parts, at == end)
    }

    /// Joins neighbours that no longer differ, around and inside `[start, end)`.
    pub fn join(&mut self, start: u32, end: u32) {
        let first = self.regions.range(..start).next_back().map_or(start, |(s, _)| *s);
        let list: Vec<Region> = self.regions.range(first..=end).map(|(_, r)| *r).collect();
        let mut joined: Option<Region> = None;
        for r in list {
            match joined {
                Some(j) if r.continues(&j) => {
                    self.remove(j.start);
                    self.remove(r.start);
                    let both = Region { pages: j.pages + r.pages, ..j };
                    self.insert(both);
                    joined = Some(both);
                }
                _ => joined = Some(r),
            }
        }
    }

    /// Gives the blocks touched by `[start, end)` back where no region is left on them. The
    /// regions in the range must have been removed.
    pub fn release(&mut self, start: u32, end: u32) {
        let (first, last) = (start / BLOCK_PAGES, end.div_ceil(BLOCK_PAGES));
        // What others own of these blocks, and the end.
        let from = self.find(first * BLOCK_PAGES).map_or(first * BLOCK_PAGES, |r| r.start);
        let owned: Vec<(u32, u32)> = self
            .regions
            .range(from..last * BLOCK_PAGES)
            .map(|(s, r)| (s / BLOCK_PAGES, r.end().div_ceil(BLOCK_PAGES)))
            .chain([(last, last)])
            .collect();
        let mut at = first;
        for (s, e) in owned {
            if s > at {
                self.merge_free(at, s - at);
            }
            at = at.max(e);
        }
    }

    #[cfg(test)]
    fn block_in_use(&self, b: u32) -> bool {
        let (s, e) = (b * BLOCK_PAGES, (b + 1) * BLOCK_PAGES);
        self.find(s).is_some() || self.regions.range(s..e).next().is_some()
    }

    /// Adds a range in which no block is owned; parts of it may be free already.
    fn merge_free(&mut self, start: u32, len: u32) {
        let (mut start, mut end) = (start, start + len);
        let from = self.free.range(..start).next_back().map_or(start, |(s, _)| *s);
        let touching: Vec<(u32, u32)> =
            self.free.range(from..=end).map(|(s, l)| (*s, *l)).filter(|(s, l)| s + l >= start).collect();
        for (s, l) in touching {
            self.remove_free(s, l);
            (start, end) = (start.min(s), end.max(s + l));
        }
        self.add_free(start, end - start);
    }

    /// All regions in address order.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// Pages mapped by the program.
    pub fn mapped_pages(&self) -> u64 {
        self.mapped_pages
    }

    /// Checks the map against itself: ordered, disjoint, free ranges merged and free.
    #[cfg(test)]
    pub fn validate(&self) -> Result<(), &'static str> {
        let mut end = 0;
        for r in self.regions.values() {
            if r.start < end || r.pages == 0 {
                return Err("INV-9: regions overlap or are empty");
            }
            end = r.end();
        }
        let mut end = None;
        for (&s, &l) in &self.free {
            if end.is_some_and(|e| s <= e) || l == 0 {
                return Err("INV-9: free ranges touch or overlap");
            }
            if (s..s + l).any(|b| self.block_in_use(b)) && l < 10_000 {
                return Err("INV-9: a free block is in use");
            }
            end = Some(s + l);
        }
        if self.free.len() != self.free_by_len.len() {
            return Err("INV-9: free indexes differ");
        }
        let mapped: u64 = self.regions.values().filter(|r| counted(r.kind)).map(|r| u64::from(r.pages)).sum();
        if mapped != self.mapped_pages { Err("INV-9: mapped pages miscounted") } else { Ok(()) }
    }
}

fn counted(kind: Kind) -> bool {
    !matches!(kind, Kind::Cached | Kind::Foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rng(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    /// Weighted random operations against a naive array of owners, compared after every step.
    #[test]
    fn the_map_agrees_with_a_naive_model() {
        const PAGES: u32 = 64 * 200;
        for seed in 1..30u64 {
            let mut s = seed * 0x9e37_79b9;
            let mut map = RegionMap::new(PAGES);
            let mut model: Vec<Option<i32>> = vec![None; PAGES as usize];
            for step in 0..400 {
                match rng(&mut s) % 5 {
                    0 | 1 => {
                        let pages = (rng(&mut s) % 300 + 1) as u32;
                        let prot = (rng(&mut s) % 4) as i32;
                        if let Some(r) = map.alloc(pages, 1, 0, prot, Kind::Map) {
                            for p in r.start..r.end() {
                                assert_eq!(model[p as usize], None, "seed {seed} step {step}");
                                model[p as usize] = Some(prot);
                            }
                        }
                    }
                    2 if rng(&mut s).is_multiple_of(2) => {
                        let start = (rng(&mut s) % u64::from(PAGES - 400)) as u32;
                        let pages = (rng(&mut s) % 400 + 1) as u32;
                        for r in map.carve(start, start + pages) {
                            map.remove(r.start);
                        }
                        map.place(Region::new(start, pages, 9, Kind::Map));
                        model[start as usize..(start + pages) as usize].fill(Some(9));
                    }
                    2 | 3 => {
                        let start = (rng(&mut s) % u64::from(PAGES - 400)) as u32;
                        let end = start + (rng(&mut s) % 400 + 1) as u32;
                        for r in map.carve(start, end) {
                            map.remove(r.start);
                        }
                        map.release(start, end);
                        model[start as usize..end as usize].fill(None);
                    }
                    _ => {
                        let start = (rng(&mut s) % u64::from(PAGES - 100)) as u32;
                        let (parts, whole) = map.parts(start, start + 100);
                        let naive = &model[start as usize..start as usize + 100];
                        assert_eq!(whole, naive.iter().all(Option::is_some));
                        let held: u32 = parts.iter().map(|r| r.pages).sum();
                        assert_eq!(held as usize, naive.iter().flatten().count());
                        for r in map.carve(start, start + 100) {
                            map.remove(r.start);
                            map.insert(Region { prot: 7, ..r });
                            model[r.start as usize..r.end() as usize].fill(Some(7));
                        }
                        map.join(start, start + 100);
                    }
                }
                map.validate().unwrap_or_else(|e| panic!("seed {seed} step {step}: {e}"));
                for p in (0..PAGES).step_by(37) {
                    let found = map.find(p).map(|r| r.prot);
                    assert_eq!(found, model[p as usize], "seed {seed} step {step} page {p}");
                }
            }
        }
    }

    #[test]
    fn a_region_grows_in_place_only_into_free_blocks() {
        let mut map = RegionMap::new(64 * 10);
        let a = map.alloc(10, 1, 0, 3, Kind::Map).unwrap();
        assert!(map.extend(a.start, 54), "the rest of its own block");
        assert!(map.extend(a.start, 64), "the next free block");
        let b = map.alloc(1, 1, 0, 3, Kind::Map).unwrap();
        assert_eq!(b.start, 128);
        assert!(!map.extend(a.start, 1), "the next block is taken");
        map.validate().unwrap();
    }
}
