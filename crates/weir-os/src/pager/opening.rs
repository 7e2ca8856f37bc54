//! How memory that nobody has used gets guards and access in the pager without userfaultfd.
//!
//! Guards take page tables, one page for each [`TABLE_BYTES`], which the first page in there takes in any
//! case: so much is opened at once. Each opened range between others that are not is a mapping of its own,
//! and splits the one around it. A process may have so many mappings (`vm.max_map_count`), so when there are
//! many the range up to the nearest open one is opened as well, and both are one.

use super::changing::Changing;
use super::guards::{Guards, guard, open};
use super::prots::Known;
use super::{KernelPager, bytes_of};
use crate::file;
use crate::ids::{BLOCK_PAGES, BlockId, PageId};
use crate::mem::PAGE_BYTES;
use crate::sys::{self, Errno};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

/// What one page of page tables maps.
const TABLE_BYTES: usize = 512 * PAGE_BYTES;
/// The kernel's own setting, where it does not tell.
const MAX_MAP_COUNT: u32 = 65530;
/// A longer gap is not opened: its guards would take more than 2 MiB of page tables.
const GAP_PAGES_MAX: u32 = 1 << 18;
/// Of all mappings of the process, opened ranges take this part at most, two each: the program has the rest.
const ISLANDS_PART: u32 = 4;

/// What is known of ranges that were opened.
#[derive(Debug)]
pub(super) struct Opening {
    /// One opens at a time.
    one: Changing,
    /// Opened ranges with nothing open beside them, about.
    islands: AtomicU32,
    /// So many of them may be.
    most: AtomicU32,
    /// The kernel does not promise more memory than it has.
    strict: bool,
}

impl Opening {
    pub(super) fn new() -> Opening {
        let mappings = number_in(c"/proc/sys/vm/max_map_count").unwrap_or(MAX_MAP_COUNT);
        Opening {
            one: Changing::default(),
            islands: AtomicU32::new(0),
            most: AtomicU32::new(mappings / ISLANDS_PART),
            strict: number_in(c"/proc/sys/vm/overcommit_memory") == Some(2),
        }
    }

    /// Whether the kernel may refuse memory that can be written to. It must do so when the program asks for
    /// it: when a page comes there would be nobody to tell.
    pub(super) fn is_counted(&self) -> bool {
        self.strict || sys::data_limit() != u64::MAX
    }

    /// In the child of a fork, which has one thread.
    pub(super) fn forget(&self) {
        self.one.forget();
    }

    fn is_crowded(&self) -> bool {
        self.islands.load(Ordering::Relaxed) >= self.most.load(Ordering::Relaxed)
    }

    /// The kernel has no more mappings: no islands from now on.
    fn note_refusal(&self) {
        self.most.fetch_min(self.islands.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Another range is open, with so many sides at others that are.
    fn note(&self, sides: u32) {
        let islands = self.islands.load(Ordering::Relaxed);
        self.islands.store((islands + 1).saturating_sub(sides), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn set_most(&self, most: u32) {
        self.most.store(most, Ordering::Relaxed);
    }
}

fn number_in(path: &CStr) -> Option<u32> {
    let mut room = [0u8; 32];
    core::str::from_utf8(file::read_start(path, &mut room).ok()?).ok()?.trim().parse().ok()
}

impl KernelPager {
    /// Gives the pages of a block that nobody has used guards and access, and neighbours with them. The
    /// block's lock is held.
    pub(super) fn tend(&self, guards: &Guards, page: PageId, n: u32) -> Result<(), Errno> {
        if guards.prots.run(page, n) == (n, Known { prot: guards.prots.of(page).prot, guarded: true }) {
            return Ok(());
        }
        guards.opening.one.alone(|| {
            let (mut at, end) = (page.block().page(0), page.block().page(0).0 + BLOCK_PAGES);
            while at.0 < end {
                let (run, known) = guards.prots.run(at, end - at.0);
                if !known.guarded && known.prot != libc::PROT_NONE {
                    self.open_fresh(guards, at.0..at.0 + run, known)?;
                }
                at = PageId(at.0 + run);
            }
            Ok(())
        })
    }

    /// Opens pages of a block, of which nobody has used any. What is opened beside them are whole blocks that
    /// nobody is at: who is in a block has had it tended.
    fn open_fresh(&self, guards: &Guards, pages: Range<u32>, known: Known) -> Result<(), Errno> {
        let wide = self.within_table(guards, pages.clone(), known);
        let sides = self.open_sides(guards, &wide, known);
        if sides > 0 || !guards.opening.is_crowded() {
            match self.open_range(guards, wide.clone(), known) {
                Err(Errno::ENOMEM) => {
                    guards.spare.give_up();
                    guards.opening.note_refusal();
                }
                done => {
                    guards.opening.note(sides);
                    guards.spare.renew();
                    return done;
                }
            }
        }
        let all = self.up_to_neighbour(guards, pages, known).unwrap_or(wide);
        self.open_range(guards, all, known)
    }

    /// Nothing was ever there. Guards first: zeros must not be seen.
    fn open_range(&self, guards: &Guards, pages: Range<u32>, known: Known) -> Result<(), Errno> {
        let n = pages.end - pages.start;
        let (addr, len) = (self.page_addr(PageId(pages.start), n), bytes_of(n));
        self.count(2);
        // SAFETY: see above.
        unsafe { guard(addr, len)? };
        open(addr, len, known.prot)?;
        guards.prots.set(PageId(pages.start), n, Known { guarded: true, ..known });
        Ok(())
    }

    /// The pages, and the blocks around them that are alike, as far as one page of page tables goes.
    fn within_table(&self, guards: &Guards, pages: Range<u32>, known: Known) -> Range<u32> {
        let at = self.page_addr(PageId(pages.start), 1);
        let table = at / TABLE_BYTES * TABLE_BYTES;
        let inside = |page: u32| {
            let addr = self.space.base() + bytes_of(page);
            addr >= table && addr + bytes_of(BLOCK_PAGES) <= table + TABLE_BYTES
        };
        let Range { mut start, mut end } = pages;
        while self.is_alike(guards, start.wrapping_sub(BLOCK_PAGES), known) && inside(start - BLOCK_PAGES) {
            start -= BLOCK_PAGES;
        }
        while self.is_alike(guards, end, known) && inside(end) {
            end += BLOCK_PAGES;
        }
        start..end
    }

    /// The pages and what lies between them and the nearest open ones, if all of that is alike.
    fn up_to_neighbour(&self, guards: &Guards, pages: Range<u32>, known: Known) -> Option<Range<u32>> {
        let (mut start, mut end) = (pages.start, pages.end);
        while end - start <= GAP_PAGES_MAX {
            if self.is_open(guards, start.wrapping_sub(1), known) {
                return Some(start..pages.end);
            }
            if self.is_open(guards, end, known) {
                return Some(pages.start..end);
            }
            let (down, up) =
                [start.wrapping_sub(BLOCK_PAGES), end].map(|at| self.is_alike(guards, at, known)).into();
            start -= if down { BLOCK_PAGES } else { 0 };
            end += if up { BLOCK_PAGES } else { 0 };
            if !down && !up {
                break;
            }
        }
        None
    }

    /// Whether a whole block begins at a page that is wholly like that.
    fn is_alike(&self, guards: &Guards, page: u32, known: Known) -> bool {
        let inside = page.is_multiple_of(BLOCK_PAGES)
            && (page as usize).saturating_add(BLOCK_PAGES as usize) * PAGE_BYTES <= self.space.len();
        inside && guards.prots.whole(BlockId(page / BLOCK_PAGES)) == Some(known)
    }

    /// Whether a page has guards and the same protection.
    fn is_open(&self, guards: &Guards, page: u32, known: Known) -> bool {
        (page as usize) < self.space.len() / PAGE_BYTES
            && guards.prots.of(PageId(page)) == Known { guarded: true, ..known }
    }

    fn open_sides(&self, guards: &Guards, pages: &Range<u32>, known: Known) -> u32 {
        let sides = [pages.start.wrapping_sub(1), pages.end];
        sides.iter().map(|page| u32::from(self.is_open(guards, *page, known))).sum()
    }
}
