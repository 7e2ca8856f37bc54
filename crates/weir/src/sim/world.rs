//! One way to set up the engine's core on fakes, for all unit tests:
//! `World::budget(8).swap(FakeDisk::new(bytes, 512), bytes).core()`.

use super::FakePager;
use super::disk::FakeDisk;
use crate::config::{Codec, Policy};
use crate::page::BlockId;
use crate::page::id::BLOCK_PAGES;
use crate::shared::swapping::Swapping;
use crate::shared::{Core, Geometry};
use crate::tier::swap::{Swap, SwapEncryption, SwapSettings};

/// Any number does: hashes only have to differ.
const SEED: u64 = 7;

/// What a core is built of.
pub struct World {
    geometry: Geometry,
    all_mapped: bool,
    lifts: bool,
    disk: Option<(FakeDisk, u64)>,
    settings: SwapSettings,
    encryption: SwapEncryption,
    policy: Policy,
    batch: u16,
}

impl World {
    /// A budget of so many MiB: 1024 pages, all of them mapped, a pool of at most 90 %, no lifts and no swap
    /// file.
    pub fn budget(mib: u64) -> World {
        let budget_bytes = mib << 20;
        let windows = Geometry::arena_windows(budget_bytes);
        World {
            geometry: Geometry { pages: 1024, windows, lift_windows: 0, budget_bytes, pool_max_percent: 90 },
            all_mapped: true,
            lifts: false,
            disk: None,
            settings: SwapSettings::default(),
            encryption: SwapEncryption::Aead,
            policy: Policy::Writeback,
            batch: 256,
        }
    }

    /// The space has so many pages.
    pub fn pages(mut self, pages: u32) -> World {
        self.geometry.pages = pages;
        self
    }

    /// No page is mapped: the test maps what it needs by the engine.
    pub fn unmapped(mut self) -> World {
        self.all_mapped = false;
        self
    }

    /// The pool may have so many percent of the budget.
    pub fn pool_max(mut self, percent: u32) -> World {
        self.geometry.pool_max_percent = percent;
        self
    }

    /// Whether blocks leave by lifts, as in inline mode.
    pub fn lifts(mut self, lifts: bool) -> World {
        self.lifts = lifts;
        self
    }

    /// A swap file of so many bytes on this disk.
    pub fn swap(mut self, disk: FakeDisk, bytes: u64) -> World {
        self.disk = Some((disk, bytes));
        self
    }

    /// When pool pages are written to it.
    pub fn policy(mut self, policy: Policy) -> World {
        self.policy = policy;
        self
    }

    /// Most pages of a batch.
    pub fn batch(mut self, pages: u16) -> World {
        self.batch = pages;
        self
    }

    /// Its slot table can name so many records.
    pub fn slots(mut self, slots: u32) -> World {
        self.settings.slots = slots;
        self
    }

    /// Its records carry checksums only.
    pub fn unencrypted(mut self) -> World {
        self.encryption = SwapEncryption::None;
        self
    }

    /// The core, nothing resident.
    pub fn core(self) -> Core<FakePager> {
        let mut geometry = self.geometry;
        geometry.lift_windows = if self.lifts { geometry.windows } else { 0 };
        let (pages, windows) = (geometry.pages, geometry.windows + geometry.lift_windows);
        let mut core = Core::new(FakePager::new(pages, windows), geometry, SEED, Codec::Auto).unwrap();
        if let Some((disk, bytes)) = self.disk {
            let tier = Swap::new(disk, bytes, self.settings, self.encryption).unwrap();
            core.attach_swap(Swapping::new(tier, self.policy, self.batch).unwrap());
        }
        if self.all_mapped {
            (0..pages / BLOCK_PAGES).for_each(|b| core.table.block(BlockId(b)).lock().set_valid(u64::MAX));
        }
        core
    }
}
