//! A load that is answered from the page's record: the page stays where it is.

use crate::admission::Site;
use crate::door::Pager;
use crate::page::PageId;
use crate::page::state::State;
use crate::shared::Core;
use weir_os::codec::PageBytes;
use weir_os::mem::PAGE_BYTES;

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Where in its page.
    pub offset: u16,
    /// 1, 2, 4 or 8; no further than the page.
    pub bytes: u8,
    /// Which instruction.
    pub site: Site,
}

impl Load {
    /// The value in the page, with zeros above.
    pub fn of(self, page: &PageBytes) -> u64 {
        let (offset, bytes) = (self.offset as usize, self.bytes as usize);
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&page[offset..offset + bytes]);
        u64::from_le_bytes(value)
    }

    /// The value of words that repeat.
    fn of_same(self, word: u64) -> u64 {
        let turned = word.rotate_right(u32::from(self.offset) % 8 * 8);
        if self.bytes == 8 { turned } else { turned & ((1 << (self.bytes * 8)) - 1) }
    }
}

/// Whether a load from the page is to be answered, where its site may be: the page would take the place of another.
pub fn is_enough<P: Pager>(core: &Core<P>, page: PageId) -> bool {
    core.is_tight() && !core.admission.brings_anyway(page, super::now_of(core))
}

/// The value, if the page is a record in the pool or same-filled, and the record is good. Under the block's lock.
pub fn from_ram<P: Pager>(core: &Core<P>, page: PageId, load: Load) -> Option<u64> {
    debug_assert!(load.offset as usize + load.bytes as usize <= PAGE_BYTES);
    let word = core.table.word(page).load();
    match word.state() {
        State::Same => Some(load.of_same(core.table.aux(page))),
        State::Pooled => {
            core.pool.expand_and_lend(&core.pager, word.handle()?, page, |bytes| load.of(bytes)).ok()
        }
        _ => None,
    }
}
