//! The memory of a pool by address.

use crate::answer::of_alloc;
use core::ffi::c_int;
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir::{Guard, PinError, Region};

/// Pieces by their first address, and pins.
#[derive(Debug, Default)]
pub struct Table(Mutex<Rows>);

#[derive(Debug, Default)]
struct Rows {
    regions: BTreeMap<usize, Region>,
    pins: Vec<(Range<usize>, Guard)>,
}

impl Table {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything has been given back.
    pub fn is_empty(&self) -> bool {
        self.rows().regions.is_empty()
    }

    /// One more piece; its address.
    pub fn add(&self, mut region: Region) -> usize {
        let addr = region.as_mut_ptr() as usize;
        self.rows().regions.insert(addr, region);
        addr
    }

    /// Gives a piece back. False: none begins there.
    pub fn remove(&self, addr: usize) -> bool {
        let mut rows = self.rows();
        let Some(region) = rows.regions.remove(&addr) else { return false };
        let end = addr + region.len();
        rows.pins.retain(|(pinned, _)| pinned.start < addr || pinned.start >= end);
        drop(region);
        true
    }

    /// A piece gets another length; its address from now on.
    pub fn resize(&self, addr: usize, len: usize) -> Result<usize, c_int> {
        let mut rows = self.rows();
        let mut region = rows.regions.remove(&addr).ok_or(libc::EINVAL)?;
        let result = region.resize(len).map_err(of_alloc);
        let now = region.as_mut_ptr() as usize;
        rows.regions.insert(now, region);
        result.map(|()| now)
    }

    /// Calls `f` with the piece that a range lies in, and the range within the piece.
    pub fn with<R>(
        &self,
        addr: usize,
        len: usize,
        f: impl FnOnce(&mut Region, Range<usize>) -> Result<R, c_int>,
    ) -> Result<R, c_int> {
        let mut rows = self.rows();
        let (start, region) = rows.regions.range_mut(..=addr).next_back().ok_or(libc::EINVAL)?;
        let from = addr - start;
        let to = from.checked_add(len).filter(|to| *to <= region.len()).ok_or(libc::EINVAL)?;
        f(region, from..to)
    }

    /// Pins a range. The error says what the pool said, or is an errno value.
    pub fn pin(&self, addr: usize, len: usize) -> Result<(), Result<PinError, c_int>> {
        let mut refused = None;
        let pinned = self.with(addr, len, |region, range| {
            region.pin(range).map_err(|e| {
                refused = Some(e);
                0
            })
        });
        let guard = pinned.map_err(|errno| refused.ok_or(errno))?;
        self.rows().pins.push((addr..addr + len, guard));
        Ok(())
    }

    /// Ends a pin of this very range. False: there is none.
    pub fn unpin(&self, addr: usize, len: usize) -> bool {
        let mut rows = self.rows();
        let at = rows.pins.iter().position(|(pinned, _)| *pinned == (addr..addr.wrapping_add(len)));
        at.map(|at| rows.pins.swap_remove(at)).is_some()
    }
}
