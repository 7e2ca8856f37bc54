//! Where a mapping is wanted: the hint of `mmap`.
//!
//! Weir places what it manages in its own space, so hints are not followed. Most programs take any address in
//! the end: a Java heap is asked for at some places where its references would be short, and then anywhere. A
//! program that needs its place (a heap that is mapped at three addresses, from shared memory) gives
//! reservation after reservation back, untouched, and asks for the same size at the next place. After so many
//! times ([`PATIENCE`]) the kernel places reservations of this size, and what lies in them is not managed.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Reservations of one size given back before the kernel is asked. What takes any address in the end has done
/// so by then: a HotSpot heap is tried at 8 places at most, Shenandoah's table at 19 (java 17), Go's heap at
/// 128. ZGC tries thousands.
const PATIENCE: usize = 160;

/// The reservation made last, whose hint was not followed.
static LAST_START: AtomicUsize = AtomicUsize::new(0);
static LAST_LEN: AtomicUsize = AtomicUsize::new(0);
/// How many of its size have been given back in a row.
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
/// Size that the kernel places.
static INSISTS: AtomicUsize = AtomicUsize::new(0);

// Threads that reserve at the same moment may disturb each other's counting: then it begins anew.

/// Whether reservations of this length are the kernel's to place.
pub fn insists(len: usize) -> bool {
    INSISTS.load(Ordering::Relaxed) == len
}

/// A reservation was made elsewhere than its hint says.
pub fn ignored(start: usize, len: usize) {
    if LAST_LEN.swap(len, Ordering::Relaxed) != len {
        GIVEN_BACK.store(0, Ordering::Relaxed);
    }
    LAST_START.store(start, Ordering::Relaxed);
}

/// A range is given access, or something else is mapped there.
pub fn used(start: usize) {
    let last = LAST_START.load(Ordering::Relaxed);
    if last != 0 && start.wrapping_sub(last) < LAST_LEN.load(Ordering::Relaxed) {
        LAST_START.store(0, Ordering::Relaxed);
        GIVEN_BACK.store(0, Ordering::Relaxed);
    }
}

/// A range is unmapped.
pub fn unmapped(start: usize, len: usize) {
    if start == LAST_START.load(Ordering::Relaxed) && len == LAST_LEN.load(Ordering::Relaxed) {
        LAST_START.store(0, Ordering::Relaxed);
        if GIVEN_BACK.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
            INSISTS.store(len, Ordering::Relaxed);
        }
    }
}
