//! The swap file: compressed pages packed into 2 MiB clusters of a file that nobody else can read.
//!
//! A [`Writer`] gathers records and writes them with one sequential request; nothing is visible
//! before [`Writer::write`] has returned Ok. A record is named by a slot, which knows where it lies, how long
//! it is and its generation. Records are sealed (`record`): bytes that are not what was written are
//! [`SwapError::Damaged`], never wrong bytes.
//!
//! **Sharing.** The slot table, the slot bitmap and the cluster words lie in memory that forked children
//! share (`shared`). All of it is changed by single atomic operations: there is no lock that a killed process
//! could hold, and processes may write, free and end in any order. What a killed process costs:
//!
//! | what it had | cost | mended by |
//! | - | - | - |
//! | a cluster open for writing | up to 2 MiB cannot be written | [`Swap::trim`] closes it |
//! | references to records | their space, until all others are gone too | [`Swap::leaked`] counts them, [`Swap::reclaim_leaked`] |
//! | slots in caches | [`CACHE_MAX`] numbers a cache, no space | `reclaim_leaked` |
//! | a write or a free half done | its records' space | `reclaim_leaked` |
//!
//! **Who may call.** Everything may be called from any thread at any time, with all signals blocked: nothing
//! is allocated and nothing waits for another thread. A caller must own what it names: a record is read or
//! freed by whoever holds the lock of its page, or has marked the page busy.

mod check;
mod clusters;
pub mod counters;
mod layout;
mod read;
mod record;
mod shared;
mod slots;
#[cfg(test)]
mod tests;
mod tier;
mod writer;

pub use crate::error::SwapError;
pub use check::Totals;
pub use counters::Counters;
pub use layout::{CLUSTER_BYTES, Codec, SwapEncryption, SwapSettings};
pub use read::{Scratch, Seen};
pub use record::RECORD_BYTES_MAX;
pub use slots::{CACHE_MAX, SlotCache};
pub use tier::Swap;
pub use writer::{BatchFull, Writer};
