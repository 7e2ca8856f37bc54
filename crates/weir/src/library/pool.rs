//! A pool: one budget, and the memory that regions have from it.

use super::errors::{AllocError, BuildError, MemoryError};
use super::inner::Inner;
use super::region::Region;
use super::size::Size;
use crate::config::{Settings, parse_size};
use crate::limits::BUDGET_BYTES_MIN;
use crate::page::id::BLOCK_PAGES;
use core::fmt;
use core::ops::Range;
use std::sync::Arc;
use weir_os::mem::PAGE_BYTES;

/// Memory within a budget of RAM, however much of it there is. What is not in use is compressed within the
/// budget, and then goes to a swap file.
///
/// A process may have several (64 at once), each with a budget of its own. Copies of a `Pool` are the same
/// pool. It ends with its last copy and its last [`Region`]: its threads, its RAM and its swap file go.
///
/// If RAM, compressed pages and swap file are full while a page must come in, the process ends with a
/// message, as if the kernel had run out of memory: nothing else can keep what was written. Until then
/// [`Pool::alloc`] fails with [`AllocError::Full`].
///
/// In a child of `fork` the pool's memory is not there: an access ends the child with SIGSEGV, and every
/// request is refused. Children that `exec` (`std::process::Command`) are not affected.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

impl Pool {
    pub(super) fn with(settings: &Settings) -> Result<Pool, BuildError> {
        Ok(Pool { inner: Arc::new(Inner::start(settings)?) })
    }

    /// Memory of `len` bytes, all zero. It takes RAM as it is touched; `len` may be larger than the budget.
    /// Every region begins at a block of 256 KiB of addresses: small things are better put together in one.
    ///
    /// # Errors
    /// No bytes at all; more than addresses can tell apart, or than the pool has addresses (some 500 budgets,
    /// 2 TiB at most, less beside many pools); a full pool; a process that was forked from the pool's.
    pub fn alloc(&self, len: usize) -> Result<Region, AllocError> {
        let addr = self.inner.alloc(len)?;
        Ok(Region::new(Arc::clone(&self.inner), addr, len))
    }

    /// From now on the pool may have so much RAM, but not more than it was built with. More counts at once;
    /// less as soon as as much has been compressed or written.
    ///
    /// # Errors
    /// A text that is no size; less than 8 MiB, more than the pool was built with; more than half of it would
    /// be pinned; what the pool holds would not fit, as far as can be seen: at the ratio at which it has
    /// compressed so far, and as it is while nothing has been compressed, or did not compress.
    pub fn set_memory(&self, size: impl Into<Size>) -> Result<(), MemoryError> {
        let size = size.into();
        let bytes = parse_size(size.text(), weir_os::probe::ram_limit_bytes())
            .map_err(|e| MemoryError::Size { value: size.text().to_owned(), reason: e.to_string() })?;
        let engine = self.inner.engine();
        let (min, max) = (BUDGET_BYTES_MIN, engine.core.ledger.most_bytes());
        if bytes < min || bytes > max {
            return Err(MemoryError::Bounds { bytes, min, max });
        }
        self.inner.set_memory(bytes)
    }

    /// What the pool holds now, but for what is being served at the moment. Takes no lock.
    pub fn stats(&self) -> PoolStats {
        let core = &self.inner.engine().core;
        let swap = |f: fn(&crate::tier::swap::Swap<weir_os::fileio::FileIo>) -> u64| {
            core.copies.swapping.as_ref().map_or(0, |swapping| f(&swapping.tier))
        };
        PoolStats {
            memory: core.ledger.budget_bytes(),
            ram: core.resident_bytes(),
            data: core.census.managed() * PAGE_BYTES as u64,
            compressed: u64::from(core.room.pool.owned() * BLOCK_PAGES) * PAGE_BYTES as u64,
            swapped: swap(|tier| tier.live_bytes()),
            swap_free: swap(|tier| tier.free_bytes()),
            pinned: self.inner.pinned_bytes(),
            faults: core.stats.faults().get(),
            waited_ns: core.stats.waited_ns().get(),
        }
    }

    /// Whether this process is a child, by `fork`, of the one that made the pool: it has nothing of it.
    pub fn is_forked(&self) -> bool {
        !self.inner.is_here()
    }

    /// The addresses that the pool's regions lie in. As long as the pool lives, nothing else of its process
    /// does.
    pub fn addresses(&self) -> Range<usize> {
        let (base, len) = self.inner.engine().space();
        base..base + len
    }

    /// All counters of the engine, with the names and meanings of `docs/statistics.md`.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let engine = self.inner.engine();
        if self.inner.is_here() {
            self.inner.ask(|engine| engine.core.publish());
        }
        let mut all = Vec::new();
        engine.each_counter(|key, value| all.push((key, value)));
        all
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.stats()).finish()
    }
}

/// What a pool holds; bytes where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// The budget of RAM.
    pub memory: u64,
    /// RAM that the pool holds, tables and compressed pages included: at most `memory`.
    pub ram: u64,
    /// Pages of its regions that have contents, wherever they are.
    pub data: u64,
    /// Of `ram`, what compressed pages take.
    pub compressed: u64,
    /// What pages take in the swap file.
    pub swapped: u64,
    /// What is left there.
    pub swap_free: u64,
    /// Pages that are pinned.
    pub pinned: u64,
    /// Accesses that found no page, so far; a number.
    pub faults: u64,
    /// Time in which faults were served so far, once something had left RAM; nanoseconds.
    pub waited_ns: u64,
}
