//! Where the pools of this process lie, and those of the processes that it was forked from. A child has
//! nothing at its parent's addresses, but may have slices of them: no pool of its own may come to lie there.
//!
//! A fixed table and no lock: in the child of a fork nobody would let it go.

use core::sync::atomic::{AtomicUsize, Ordering};
pub use weir_os::fds::POOLS_MAX;

/// One of them. `base` is [`FREE`], [`TAKEN`] while the row is written, or the first address.
#[derive(Debug)]
struct Row {
    base: AtomicUsize,
    len: AtomicUsize,
}

const FREE: usize = 0;
const TAKEN: usize = 1;

static ROWS: [Row; POOLS_MAX] =
    [const { Row { base: AtomicUsize::new(FREE), len: AtomicUsize::new(0) } }; POOLS_MAX];

/// Addresses that no pool comes to lie at until this drops. Where it is forgotten: never.
#[derive(Debug)]
pub struct Kept(usize);

impl Kept {
    /// Those from `base` on; none when there are too many.
    pub fn new((base, len): (usize, usize)) -> Option<Kept> {
        let free =
            |row: &Row| row.base.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let number = ROWS.iter().position(free)?;
        ROWS[number].len.store(len, Ordering::Relaxed);
        ROWS[number].base.store(base, Ordering::Release);
        Some(Kept(number))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        ROWS[self.0].base.store(FREE, Ordering::Release);
    }
}

/// Bytes of addresses that are kept.
pub fn taken() -> u64 {
    let kept = ROWS.iter().filter(|row| row.base.load(Ordering::Acquire) > TAKEN);
    kept.map(|row| row.len.load(Ordering::Relaxed) as u64).sum()
}

/// Whether any address of a range is kept.
pub fn overlap(base: usize, len: usize) -> bool {
    ROWS.iter().any(|row| {
        let kept = row.base.load(Ordering::Acquire);
        kept > TAKEN && base < kept + row.len.load(Ordering::Relaxed) && kept < base + len
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_overlaps_until_it_is_let_go() {
        const BASE: usize = 0x7000_0000_0000;
        let a = Kept::new((BASE, 0x1000)).unwrap();
        let b = Kept::new((BASE + 0x1000, 0x1000)).unwrap();
        assert!(overlap(BASE, 1) && overlap(BASE - 1, 2) && overlap(BASE + 0x1fff, 0x5000));
        assert!(taken() >= 0x2000);
        assert!(!overlap(BASE - 0x1000, 0x1000) && !overlap(BASE + 0x2000, 0x1000));
        drop(a);
        assert!(!overlap(BASE, 0x1000) && overlap(BASE, 0x1001));
        core::mem::forget(b);
        assert!(overlap(BASE, 0x2000), "as in the child of a fork");
    }
}
