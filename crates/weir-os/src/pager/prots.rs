//! What the program may do with each page, and whether a guard or contents lie there: a byte for each block,
//! and one for each page of blocks in which pages differ.

use crate::ids::{BLOCK_PAGES, BlockId, PageId};
use crate::mem::{Prot, Table};
use crate::sys::Errno;
use core::sync::atomic::{AtomicU8, Ordering};

/// Of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Its protection as the program has it.
    pub(super) prot: Prot,
    /// A guard or contents lie there, and the kernel's protection is the program's. Else nobody has used the
    /// page, and the kernel gives no access.
    pub(super) guarded: bool,
}

const GUARDED: u8 = 8;
/// Of a block: its pages differ.
const MIXED: u8 = 16;
const PROT: u8 = 7;

impl Known {
    fn byte(self) -> u8 {
        self.prot as u8 & PROT | if self.guarded { GUARDED } else { 0 }
    }

    fn of(byte: u8) -> Known {
        Known { prot: Prot::from(byte & PROT), guarded: byte & GUARDED != 0 }
    }
}

/// The tables. Readers and writers of a block exclude each other by its lock, or by the pager's own.
#[derive(Debug)]
pub(super) struct Prots {
    blocks: Table<AtomicU8>,
    pages: Table<AtomicU8>,
}

impl Prots {
    pub(super) fn new(pages: u32) -> Result<Prots, Errno> {
        let pages = pages.next_multiple_of(BLOCK_PAGES) as usize;
        Ok(Prots {
            blocks: Table::new(pages / BLOCK_PAGES as usize, c"weir-guards")?,
            pages: Table::new(pages, c"weir-guards")?,
        })
    }

    fn block(&self, page: PageId) -> &AtomicU8 {
        self.blocks.row(page.block().0 as usize)
    }

    fn page(&self, page: u32) -> &AtomicU8 {
        self.pages.row(page as usize)
    }

    pub(super) fn of(&self, page: PageId) -> Known {
        let byte = self.block(page).load(Ordering::Acquire);
        Known::of(if byte == MIXED { self.page(page.0).load(Ordering::Relaxed) } else { byte })
    }

    /// What all pages of a block are, if they are alike.
    pub(super) fn whole(&self, block: BlockId) -> Option<Known> {
        let byte = self.blocks.row(block.0 as usize).load(Ordering::Acquire);
        (byte != MIXED).then(|| Known::of(byte))
    }

    /// How many of the `n` pages at `page..` are like the first one, and what that is.
    pub(super) fn run(&self, page: PageId, n: u32) -> (u32, Known) {
        let known = self.of(page);
        let mut run = 0;
        while run < n {
            let at = PageId(page.0 + run);
            let byte = self.block(at).load(Ordering::Acquire);
            if byte != MIXED && at.index() == 0 {
                if Known::of(byte) != known {
                    break;
                }
                run += BLOCK_PAGES;
            } else if self.of(at) == known {
                run += 1;
            } else {
                break;
            }
        }
        (run.min(n), known)
    }

    pub(super) fn set(&self, page: PageId, n: u32, known: Known) {
        let (mut at, end) = (page.0, page.0 + n);
        while at < end {
            let first = PageId(at);
            let part = (BLOCK_PAGES - first.index()).min(end - at);
            let block = self.block(first);
            let before = block.load(Ordering::Relaxed);
            if part == BLOCK_PAGES {
                block.store(known.byte(), Ordering::Release);
            } else if before == MIXED || before != known.byte() {
                if before != MIXED {
                    let start = first.block().page(0).0;
                    (start..start + BLOCK_PAGES)
                        .for_each(|page| self.page(page).store(before, Ordering::Relaxed));
                }
                (at..at + part).for_each(|page| self.page(page).store(known.byte(), Ordering::Relaxed));
                block.store(MIXED, Ordering::Release);
            }
            at += part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn parts_of_blocks_whole_blocks_and_their_neighbours_are_known_as_a_flat_table_would_know_them() {
        const PAGES: u32 = 5 * BLOCK_PAGES;
        let (prots, mut flat) = (Prots::new(PAGES).unwrap(), [Known::default(); PAGES as usize]);
        let mut random = Random(0x5eed);
        let mut next = |below: u32| ((random.next() >> 8) % u64::from(below)) as u32;
        for _ in 0..3000 {
            let start = next(PAGES);
            let most = if next(2) == 0 { 3 } else { PAGES };
            let n = 1 + next(most).min(PAGES - start - 1);
            let known = Known { prot: next(8) as Prot, guarded: next(2) == 0 };
            prots.set(PageId(start), n, known);
            flat[start as usize..(start + n) as usize].fill(known);
            let page = next(PAGES);
            let most = 1 + next(PAGES - page);
            let like = |known: &&Known| **known == flat[page as usize];
            let run = flat[page as usize..(page + most) as usize].iter().take_while(like).count() as u32;
            assert_eq!(prots.run(PageId(page), most), (run, flat[page as usize]));
            assert!((0..PAGES).all(|page| prots.of(PageId(page)) == flat[page as usize]));
        }
    }
}
