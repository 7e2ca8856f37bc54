//! How the file is laid out, and the settings of the tier.

use crate::tier::pool;

/// Bytes of a cluster.
pub const CLUSTER_BYTES: u64 = 2 << 20;
/// Alignment of I/O that the layout can take: batches begin and end at multiples of it.
pub(super) const ALIGN_MAX: usize = 4096;
/// Files of so many clusters keep one for moving records.
pub(super) const RESERVE_FROM_CLUSTERS: u32 = 4;

/// How a record's bytes were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// A page as it is.
    Raw = 1,
    /// LZ4.
    Lz4 = 2,
    /// Byte shuffle (stride 8), then LZ4.
    ShuffleLz4 = 3,
    /// zstd.
    Zstd = 4,
}

impl Codec {
    /// The codec with this number in a record.
    pub(super) fn from_tag(tag: u64) -> Option<Codec> {
        [Codec::Raw, Codec::Lz4, Codec::ShuffleLz4, Codec::Zstd]
            .into_iter()
            .find(|codec| *codec as u64 == tag)
    }
}

impl From<pool::Codec> for Codec {
    fn from(codec: pool::Codec) -> Codec {
        match codec {
            pool::Codec::Lz4 => Codec::Lz4,
            pool::Codec::ShuffleLz4 => Codec::ShuffleLz4,
            pool::Codec::Zstd => Codec::Zstd,
        }
    }
}

/// How records are protected on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapEncryption {
    /// Encrypted and authenticated under a key that is never written anywhere.
    Aead,
    /// In the clear, with a checksum.
    None,
}

/// Settings of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapSettings {
    /// Records that the slot table can name; 0: one per KiB of the file.
    pub slots: u32,
    /// Clusters punched by one `trim` at most.
    pub punches: u32,
    /// The device has no blocks yet: they are allocated, all at once, before the first write.
    pub blocks_later: bool,
}

impl Default for SwapSettings {
    fn default() -> Self {
        SwapSettings { slots: 0, punches: 16, blocks_later: false }
    }
}
