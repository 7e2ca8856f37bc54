//! The memory of a pool by address.
//!
//! In a child of a fork nobody may come here: another thread of the parent's may have had the lock.

use crate::answer::of_alloc;
use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir::{Guard, PinError, Region};

/// Pieces by their first address, and pins.
#[derive(Debug, Default)]
pub struct Table {
    rows: Mutex<Rows>,
    /// As many as `regions` has, for those who take no lock.
    pieces: AtomicUsize,
}

#[derive(Debug, Default)]
struct Rows {
    regions: BTreeMap<usize, Region>,
    pins: Vec<(Range<usize>, Guard)>,
    /// The pool is about to end.
    closed: bool,
}

impl Table {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pieces that have not been given back. Takes no lock.
    pub fn pieces(&self) -> usize {
        self.pieces.load(Ordering::Relaxed)
    }

    /// From now on nothing is added. False: something has not been given back, and all goes on.
    pub fn close(&self) -> bool {
        let mut rows = self.rows();
        rows.closed |= rows.regions.is_empty();
        rows.closed
    }

    /// One more piece; its address. None: the pool is about to end.
    pub fn add(&self, mut region: Region) -> Option<usize> {
        let addr = region.as_mut_ptr() as usize;
        let mut rows = self.rows();
        if rows.closed {
            return None;
        }
        rows.regions.insert(addr, region);
        self.pieces.store(rows.regions.len(), Ordering::Relaxed);
        Some(addr)
    }

    /// Gives a piece back. False: none begins there.
    pub fn remove(&self, addr: usize) -> bool {
        let mut rows = self.rows();
        let Some(region) = rows.regions.remove(&addr) else { return false };
        self.pieces.store(rows.regions.len(), Ordering::Relaxed);
        let end = addr + region.len();
        rows.pins.retain(|(pinned, _)| pinned.start < addr || pinned.start >= end);
        // It may take a while, and others need not wait.
        drop(rows);
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
