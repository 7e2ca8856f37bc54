//! A load that is answered from the page's record: the page stays where it is.

use crate::admission::{Asker, Want};
use crate::door::{Pager, with_frame};
use crate::page::PageId;
use crate::page::state::State;
use crate::page::table::{BlockGuard, BlockRow};
use crate::shared::Core;
use weir_os::mem::PAGE_BYTES;

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Where in its page.
    pub offset: u16,
    /// 1, 2, 4 or 8; no further than the page.
    pub bytes: u8,
    /// Who.
    pub asker: Asker,
}

impl Load {
    /// Bytes of the page as far as the last one that is read.
    fn end(self) -> usize {
        usize::from(self.offset) + usize::from(self.bytes)
    }

    /// The value in the page, or its beginning, with zeros above.
    pub fn of(self, page: &[u8]) -> u64 {
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

/// Whether a load may be answered: the page would take the place of another, and it is such as anybody can
/// read and write. What has another protection may be losing it just now, and then the access is not to
/// succeed.
pub fn may_answer<P: Pager>(core: &Core<P>, row: BlockRow<'_>, want: Want, load: Load) -> bool {
    let plain = (row.fixed() | row.readonly()) >> want.page.index() & 1 == 0;
    plain && core.room.is_tight() && core.admission.answers(want, load.asker)
}

/// The value, if the page is staged, same-filled or a record in the pool, and the record is good.
pub fn from_ram<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, page: PageId, load: Load) -> Option<u64> {
    held.has(page);
    debug_assert!(load.end() <= PAGE_BYTES);
    let word = core.table.word(page).load();
    match word.state() {
        State::Staged => {
            let frame = held.window()?.frame(page.index());
            Some(with_frame(&core.pager, frame, |bytes| load.of(bytes)))
        }
        State::Same => Some(load.of_same(core.table.aux(page))),
        State::Pooled => {
            let handle = word.handle()?;
            core.room.pool.lend_start(&core.pager, handle, page, load.end(), |bytes| load.of(bytes)).ok()
        }
        _ => None,
    }
}
