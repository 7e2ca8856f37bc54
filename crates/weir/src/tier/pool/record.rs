//! Records: what lies in a place of the pool.
//!
//! ```text
//! bit 0        32       45      48    49      50      64
//! | page number | length | codec | old | tried | 0x17e1 | compressed bytes ...
//! ```
//!
//! *old*: nobody has wanted the page since the walk for cold records passed it (`reclaim/recompress.rs`).
//! *tried*: zstd made it hardly smaller.
//!
//! A record's bytes, header included, belong to whoever holds the lock of the block of its page.

use super::class::{class_of, size_of_class};
use super::{Pool, offset, read_u64};
use crate::door::{Pager, with_bytes};
use crate::limits::RECORD_BYTES_MAX;
use crate::page::{Handle, PageId};
use crate::sync::Ordering;
use weir_os::codec::{self, PageBytes};
use weir_os::mem::PAGE_BYTES;

pub(super) const HEADER_BYTES: usize = 8;
const MAGIC: u64 = 0x17e1;
const MAGIC_SHIFT: u32 = 50;
const OLD: u64 = 1 << 48;
const TRIED: u64 = 1 << 49;

/// How a record's bytes were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// LZ4.
    Lz4 = 1,
    /// Byte shuffle (stride 8), then LZ4.
    ShuffleLz4 = 2,
    /// zstd.
    Zstd = 3,
}

/// What the walk for cold records finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// The page was wanted since the walk passed it, or it is new. It is old from now on.
    Young,
    /// It was not, and zstd may make the record smaller. Its header, by which it is known to be untouched.
    Old(u64),
    /// There is nothing to gain.
    Settled,
}

/// A record that is not its page's, or does not expand to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// The header of a record.
pub(super) fn header_of(page: PageId, codec: Codec, len: usize) -> u64 {
    u64::from(page.0) | (len as u64) << 32 | (codec as u64) << 45 | MAGIC << MAGIC_SHIFT
}

/// What a header says of how the record was made.
fn codec_of(header: u64) -> Option<Codec> {
    [Codec::Lz4, Codec::ShuffleLz4, Codec::Zstd].into_iter().find(|codec| *codec as u64 == header >> 45 & 7)
}

/// Whether a record with this header is zstd's.
pub(super) fn is_zstd(header: u64) -> bool {
    codec_of(header) == Some(Codec::Zstd)
}

/// Length and codec of the page's record with this header.
fn parse(header: u64, page: PageId) -> Result<(usize, Codec), Damaged> {
    let ours = header as u32 == page.0;
    let len = len_of(header).filter(|len| ours && *len <= RECORD_BYTES_MAX);
    len.zip(codec_of(header)).ok_or(Damaged)
}

/// The length that a header says; `None`: it is none.
pub(super) fn len_of(header: u64) -> Option<usize> {
    (header >> MAGIC_SHIFT == MAGIC).then_some((header >> 32 & 0x1fff) as usize)
}

/// By how much a record of so many bytes is shorter than the one with this header, if it takes at least an
/// eighth less of the pool.
pub fn saving(bytes: usize, header: u64) -> Option<usize> {
    let place = |len| size_of_class(class_of(HEADER_BYTES + len));
    len_of(header).filter(|len| place(bytes) <= place(*len) / 8 * 7).map(|len| len - bytes)
}

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

    /// The walk for cold records is at this one. Under the block's lock.
    pub fn grow_older<P: Pager>(&self, pager: &P, handle: Handle) -> Age {
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
    /// there and back is the same. Under the block's lock.
    pub fn is_still<P: Pager>(&self, pager: &P, handle: Handle, header: u64) -> bool {
        with_bytes(pager, offset(handle), HEADER_BYTES, |b| read_u64(b) == header)
    }

    /// The record is not worth zstd. Under the block's lock.
    pub fn note_tried<P: Pager>(&self, pager: &P, handle: Handle) {
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
    /// the walk was there. Under the locks of both blocks.
    pub fn rename<P: Pager>(&self, pager: &P, handle: Handle, to: PageId) {
        with_bytes(pager, offset(handle), HEADER_BYTES, |b| {
            let h = read_u64(b) & !OLD & !u64::from(u32::MAX) | u64::from(to.0);
            b.copy_from_slice(&h.to_le_bytes());
        });
    }
}
