//! Mappings kept for need: a process may have so many (`vm.max_map_count`), and to close a page inside one
//! takes two for a moment.

use super::bytes_of;
use crate::mem::{self, Mapping};

use core::sync::atomic::{AtomicUsize, Ordering};

/// Mappings given up at once, of a page each: enough for 16 threads that have pages closed.
const SPARE: u32 = 32;

/// Pages of two protections in turn, so that each is a mapping of its own. Nobody uses them.
#[derive(Debug)]
pub(super) struct Spare(AtomicUsize);

impl Spare {
    pub(super) fn new() -> Spare {
        let spare = Spare(AtomicUsize::new(0));
        spare.renew();
        spare
    }

    /// Takes them where they are to be had. One caller at a time.
    pub(super) fn renew(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            return;
        }
        let Ok(pages) = Mapping::reserve(0, bytes_of(SPARE)) else { return };
        for page in (1..SPARE).step_by(2) {
            // SAFETY: our own, and empty.
            if unsafe { mem::protect(pages.base() + bytes_of(page), bytes_of(1), libc::PROT_READ) }.is_err() {
                return;
            }
        }
        self.0.store(pages.base(), Ordering::Release);
        core::mem::forget(pages);
    }

    /// Gives them up: somebody needs mappings.
    pub(super) fn give_up(&self) {
        let base = self.0.swap(0, Ordering::AcqRel);
        if base != 0 {
            // SAFETY: forgotten by `renew`, and taken from the word once.
            drop(unsafe { Mapping::from_raw(base, bytes_of(SPARE)) });
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.give_up();
    }
}
