//! Memory larger than RAM: what a program does not use is kept compressed, and then in a swap file.
//!
//! ```
//! use weir::Pool;
//!
//! let pool = Pool::builder().memory("16MiB").swap("/var/tmp").build()?;
//! let mut table = pool.alloc(48 << 20)?;
//! table[40 << 20] = 1;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Pool`] is where to begin. The rest is the engine, for the command and the library that it preloads, and
//! no interface to rely on: how a page lives between RAM, a compressed pool and a swap file.
//!
//! A page comes in by `fault`, goes out by `reclaim`; the two meet only in the page table, the frame arena
//! and `shared`. Everything that touches the kernel or raw memory is behind `door`.

#![deny(unsafe_code)]

/// The guide, so that its examples are run.
#[cfg(doctest)]
#[doc = include_str!("../guide.md")]
struct Guide;

#[cfg(not(loom))]
pub(crate) mod admission;
pub mod config;
#[cfg(not(loom))]
pub(crate) mod demand;
pub(crate) mod door;
#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub(crate) mod fault;
#[cfg(not(loom))]
pub(crate) mod frames;
#[cfg(not(loom))]
mod library;
pub mod limits;
#[cfg(all(test, loom))]
mod loom_models;
pub(crate) mod meter;
pub(crate) mod page;
#[cfg(not(loom))]
pub(crate) mod policy;
#[cfg(not(loom))]
pub(crate) mod reclaim;
#[cfg(not(loom))]
pub(crate) mod shared;
#[cfg(all(test, not(loom)))]
mod sim;
#[cfg(not(loom))]
pub mod stats;
pub(crate) mod sync;
#[cfg(not(loom))]
pub(crate) mod tier;

#[cfg(not(loom))]
pub use library::{
    Advice, AllocError, BuildError, Builder, FileError, FileRegion, Guard, MemoryError, PinError, Pod, Pool,
    PoolStats, RangeError, Region, Size, WeirVec,
};
#[cfg(not(loom))]
pub use weir_os::sys::Errno;

// What the shim names beside the engine.
#[cfg(not(loom))]
pub use fault::load::Load;
#[cfg(not(loom))]
pub use page::region::{Access, AtFork, Kind};
pub use sync::BlockLock;

/// Parts of the engine for benches that replay traces, and for tests of the swap file on a real disk.
#[cfg(not(loom))]
pub mod replay {
    pub use crate::admission::{Admission, Pressure, Verdict, Want};
    pub use crate::page::id::{BLOCK_PAGES, BlockId, PageId, SwapSlot};
    pub use crate::page::resident::{Arrival, ResidentSet};
    pub use crate::page::state::State;
    pub use crate::page::table::PageTable;
    pub use crate::reclaim::compress::{Form, Workbench, compress};
    pub use crate::reclaim::lift::blocks_at_once;
    pub use crate::tier::pool::Codec;
    pub use crate::tier::swap;
}
