//! What is done with a record in its place: it is expanded, lent, known to be old, renamed.
//!
//! A record's bytes, header included, belong to whoever holds the lock of the block of its page.

use super::record::{Age, Codec, Damaged, HEADER_BYTES, OLD, TRIED, codec_of, parse};
use super::{Pool, offset, read_u64};
use crate::door::{Pager, with_bytes};
use crate::page::table::BlockGuard;
use crate::page::{Handle, PageId};
use crate::sync::Ordering;
use weir_os::codec::{self, PageBytes};
use weir_os::mem::PAGE_BYTES;

impl Pool {
    /// Expands a record into `dst`. `Err` when the record is not this page's or damaged.
    pub fn expand<P: Pager>(
        &self,
        pager: &P,
        handle: Handle,
        page: PageId,
        dst: &mut PageBytes,
    ) -> Result<(), Damaged> {
        let (len, codec) = self.wanted(pager, handle, page)?;
        self.count_zstd_in(codec);
        let src = offset(handle) + HEADER_BYTES;
        let ok = with_bytes(pager, src, len, |src| Pool::expand_whole(codec, src, dst));
        if ok { Ok(()) } else { Err(Damaged) }
    }

    /// Expands a record and lends the page. `Err` as for `expand`.
    pub fn expand_and_lend<P: Pager, R>(
        &self,
        pager: &P,
        handle: Handle,
        page: PageId,
        f: impl FnOnce(&PageBytes) -> R,
    ) -> Result<R, Damaged> {
        let (len, codec) = self.wanted(pager, handle, page)?;
        self.count_zstd_in(codec);
        let lent = with_bytes(pager, offset(handle) + HEADER_BYTES, len, |src| match codec {
            Codec::Lz4 => codec::lz4_lend(src, f),
            other => {
                let mut bytes = [0; PAGE_BYTES];
                Pool::expand_whole(other, src, &mut bytes).then(|| f(&bytes))
            }
        });
        lent.ok_or(Damaged)
    }

    /// Expands the beginning of a record, `len` bytes of the page, and lends it. `Err` as for `expand`.
    pub fn lend_start<P: Pager, R>(
        &self,
        pager: &P,
        handle: Handle,
        page: PageId,
        len: usize,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Damaged> {
        let (bytes, codec) = self.wanted(pager, handle, page)?;
        let lent = with_bytes(pager, offset(handle) + HEADER_BYTES, bytes, |src| match codec {
            Codec::Lz4 => codec::lz4_lend_start(src, len, f),
            // Each plane of a shuffled page has a part of every word, and zstd ends with whole blocks of its
            // own.
            other => {
                let mut page = [0; PAGE_BYTES];
                Pool::expand_whole(other, src, &mut page).then(|| f(&page[..len]))
            }
        });
        lent.ok_or(Damaged)
    }

    /// Lends a record's bytes as they are. `Err` as for `expand`.
    pub fn lend<P: Pager, R>(
        &self,
        pager: &P,
        handle: Handle,
        page: PageId,
        f: impl FnOnce(Codec, &[u8]) -> R,
    ) -> Result<R, Damaged> {
        let (len, codec) = parse(with_bytes(pager, offset(handle), HEADER_BYTES, |b| read_u64(b)), page)?;
        Ok(with_bytes(pager, offset(handle) + HEADER_BYTES, len, |src| f(codec, src)))
    }

    fn expand_whole(codec: Codec, src: &[u8], dst: &mut PageBytes) -> bool {
        match codec {
            Codec::Lz4 => codec::lz4_expand(src, dst),
            Codec::ShuffleLz4 => codec::shuffle_lz4_expand(src, dst),
            Codec::Zstd => codec::zstd::expand(src, dst),
        }
    }

    fn count_zstd_in(&self, codec: Codec) {
        if codec == Codec::Zstd {
            self.zstd_in.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The walk for cold records is at this one.
    pub fn grow_older<P: Pager>(&self, pager: &P, _held: &BlockGuard<'_>, handle: Handle) -> Age {
        with_bytes(pager, offset(handle), HEADER_BYTES, |b| {
            let h = read_u64(b);
            if codec_of(h) != Some(Codec::Lz4) || h & TRIED != 0 {
                Age::Settled
            } else if h & OLD != 0 {
                Age::Old(h)
            } else {
                b.copy_from_slice(&(h | OLD).to_le_bytes());
                Age::Young
            }
        })
    }

    /// Whether the record is the one that was old when its header had this value: nobody has wanted the page
    /// since. Another one of the same page in the same place would be young, and one that compaction moved
    /// there and back is the same.
    pub fn is_still<P: Pager>(&self, pager: &P, _held: &BlockGuard<'_>, handle: Handle, header: u64) -> bool {
        with_bytes(pager, offset(handle), HEADER_BYTES, |b| read_u64(b) == header)
    }

    /// The record is not worth zstd.
    pub fn note_tried<P: Pager>(&self, pager: &P, _held: &BlockGuard<'_>, handle: Handle) {
        with_bytes(pager, offset(handle), HEADER_BYTES, |b| {
            let h = read_u64(b) | TRIED;
            b.copy_from_slice(&h.to_le_bytes());
        });
    }

    /// Of a record that somebody wants: it is young.
    fn wanted<P: Pager>(&self, pager: &P, handle: Handle, page: PageId) -> Result<(usize, Codec), Damaged> {
        let header = with_bytes(pager, offset(handle), HEADER_BYTES, |b| {
            let h = read_u64(b);
            if h & OLD != 0 {
                b.copy_from_slice(&(h & !OLD).to_le_bytes());
            }
            h
        });
        parse(header, page)
    }

    /// A record's page changed its number (`mremap`). It is young: one that is old under a number was so when
    /// the walk was there. Under the lock of the new block as well.
    pub fn rename<P: Pager>(&self, pager: &P, _old: &BlockGuard<'_>, handle: Handle, to: PageId) {
        with_bytes(pager, offset(handle), HEADER_BYTES, |b| {
            let h = read_u64(b) & !OLD & !u64::from(u32::MAX) | u64::from(to.0);
            b.copy_from_slice(&h.to_le_bytes());
        });
    }
}
