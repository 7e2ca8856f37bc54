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
use crate::limits::RECORD_BYTES_MAX;
use crate::page::PageId;

pub(super) const HEADER_BYTES: usize = 8;
const MAGIC: u64 = 0x17e1;
const MAGIC_SHIFT: u32 = 50;
/// Nobody has wanted the page since the walk for cold records passed it.
pub(super) const OLD: u64 = 1 << 48;
/// zstd made the record hardly smaller.
pub(super) const TRIED: u64 = 1 << 49;

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
pub(super) fn codec_of(header: u64) -> Option<Codec> {
    [Codec::Lz4, Codec::ShuffleLz4, Codec::Zstd].into_iter().find(|codec| *codec as u64 == header >> 45 & 7)
}

/// Whether a record with this header is zstd's.
pub(super) fn is_zstd(header: u64) -> bool {
    codec_of(header) == Some(Codec::Zstd)
}

/// Length and codec of the page's record with this header.
pub(super) fn parse(header: u64, page: PageId) -> Result<(usize, Codec), Damaged> {
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
