//! A record: what lies on disk for one page, how it is sealed and how it is told from damage.
//!
//! ```text
//! byte 0        2              4       8       12           20          20+len    36+len
//!      | 0x5e17 | length,codec | slot  | page  | generation | bytes ... | tag     | zeros to a multiple of 16
//!      '---------------- header, authenticated ------------'-sealed----'
//! ```
//!
//! All integers little endian; length is in bits 0..13, codec in bits 13..16. The bytes are drawn again in
//! `docs/swap-file.md`.

use super::layout::Codec;
use crate::page::{PageId, SwapSlot};
use weir_os::cipher::{Cipher, TAG_BYTES, checksum};
use weir_os::mem::PAGE_BYTES;

/// Records begin at multiples of this, in bytes.
pub(super) const UNIT_BYTES: usize = 16;
/// Bytes before a record's own.
pub(super) const HEADER_BYTES: usize = 20;
/// Most bytes of one record: a raw page.
pub const RECORD_BYTES_MAX: usize = PAGE_BYTES;
/// Most bytes that one record takes in the file.
pub(super) const FOOTPRINT_MAX: usize = footprint(RECORD_BYTES_MAX);
const MAGIC: u16 = 0x5e17;
const LENGTH_BITS: u32 = 13;

/// Bytes in the file for a record of `len` bytes.
pub(super) const fn footprint(len: usize) -> usize {
    (HEADER_BYTES + len + TAG_BYTES).next_multiple_of(UNIT_BYTES)
}

/// Units in the file for a record of `len` bytes.
pub(super) const fn units(len: usize) -> u64 {
    (footprint(len) / UNIT_BYTES) as u64
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub slot: SwapSlot,
    pub page: PageId,
    pub generation: u64,
    pub codec: Codec,
    pub len: usize,
}

impl Header {
    fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        let shape = self.len as u16 | (self.codec as u16) << LENGTH_BITS;
        b[..2].copy_from_slice(&MAGIC.to_le_bytes());
        b[2..4].copy_from_slice(&shape.to_le_bytes());
        b[4..8].copy_from_slice(&self.slot.0.to_le_bytes());
        b[8..12].copy_from_slice(&self.page.0.to_le_bytes());
        b[12..].copy_from_slice(&self.generation.to_le_bytes());
        b
    }

    /// Reads what may be a header: 20 bytes that anybody may have damaged.
    pub fn parse(b: &[u8]) -> Option<Header> {
        let b: &[u8; HEADER_BYTES] = b.get(..HEADER_BYTES)?.try_into().ok()?;
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let shape = u16_at(2);
        let len = usize::from(shape & ((1 << LENGTH_BITS) - 1));
        let codec = Codec::from_tag(u64::from(shape >> LENGTH_BITS))?;
        let generation = u64::from(u32_at(12)) | u64::from(u32_at(16)) << 32;
        let sound = u16_at(0) == MAGIC && (1..=RECORD_BYTES_MAX).contains(&len);
        sound.then_some(Header { slot: SwapSlot(u32_at(4)), page: PageId(u32_at(8)), generation, codec, len })
    }
}

/// How records are protected on disk.
#[derive(Debug)]
pub(super) enum Seal {
    /// Encrypted and authenticated.
    Cipher(Cipher),
    /// In the clear with a checksum under this seed.
    Checksum(u64),
}

impl Seal {
    /// Completes a record in `place`, `footprint(len)` bytes whose own bytes are already there in the clear.
    pub fn seal(&self, header: &Header, place: &mut [u8]) {
        let (head, text_end) = (header.bytes(), HEADER_BYTES + header.len);
        place[..HEADER_BYTES].copy_from_slice(&head);
        let tag = match self {
            Seal::Cipher(cipher) => cipher.seal(header.generation, &head, &mut place[HEADER_BYTES..text_end]),
            Seal::Checksum(seed) => checksum(&place[..text_end], *seed),
        };
        place[text_end..text_end + TAG_BYTES].copy_from_slice(&tag);
        place[text_end + TAG_BYTES..].fill(0);
    }

    /// Checks a record that was read and brings its bytes into the clear, in place; they are returned.
    /// `None`: it is not what was sealed under this header.
    pub fn open<'a>(&self, header: &Header, place: &'a mut [u8]) -> Option<&'a [u8]> {
        let (head, text_end) = (header.bytes(), HEADER_BYTES + header.len);
        if place.len() < text_end + TAG_BYTES || place[..HEADER_BYTES] != head {
            return None;
        }
        let good = match self {
            Seal::Cipher(cipher) => {
                cipher.open(header.generation, &head, &mut place[HEADER_BYTES..text_end + TAG_BYTES])
            }
            Seal::Checksum(seed) => {
                checksum(&place[..text_end], *seed)[..] == place[text_end..text_end + TAG_BYTES]
            }
        };
        good.then_some(&place[HEADER_BYTES..text_end])
    }
}
