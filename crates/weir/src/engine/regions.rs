//! What the program has mapped, and what it has freed that is kept for its next allocation.

use crate::page::region::{Region, RegionMap};
use std::collections::VecDeque;

/// The map of regions and the cache of freed ones, under one lock.
#[derive(Debug)]
pub(super) struct Regions {
    pub map: RegionMap,
    pub cache: Cache,
}

/// Freed regions, oldest first.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub regions: VecDeque<Region>,
    /// Pages of all.
    pub pages: u64,
}
