//! What is true about a page: its name, its word, its block's row, the set of resident blocks and
//! the map of regions.

#[cfg(not(loom))]
pub mod cold;
pub mod holds;
pub mod id;
#[cfg(not(loom))]
pub mod pins;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod resident;
pub mod state;
#[cfg(not(loom))]
pub mod table;

pub use id::{BlockId, ClusterId, FrameId, Handle, PageId, SwapSlot, WindowId};
