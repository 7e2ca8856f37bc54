//! Where the managed space lies: at a random place that a whole tree of processes shares, far from what the
//! kernel and libc hand out, and from the shadows of common sanitizers.
//!
//! In inline mode a child inherits the filter on calls with addresses in its parent's space, also over
//! `exec`, and that filter lets them pass from the parent's door only. So a child's space is its parent's,
//! door included, or lies apart. The first program chooses, and hands its choice down in the environment;
//! where that got lost, a space that an inherited filter watches is noticed and passed over.

use super::inline::GateHalf;
use super::spaces;
use crate::config::Settings;
use crate::error::StartError;
use crate::limits::{
    FIRST_SHARE, PLACE_BYTES, PLACES, PLACES_BYTES, PLACES_TRIED, SPACE_BYTES_MAX, SPACE_PER_BUDGET_MIN,
};
use crate::page::id::BLOCK_PAGES;
use crate::page::table::PageTable;
use weir_os::mem::Mapping;
use weir_os::pager::Intake;
use weir_os::sys::{self, Errno};

/// Addresses of the spaces: a program with handler threads keeps out of the range of which a filter may know.
const fn range(intake: Intake) -> u64 {
    match intake {
        Intake::InThread => 0x4000_0000_0000,
        Intake::Messages => 0x2000_0000_0000,
    }
}
/// Address space of a pool for each byte of its budget. A mapping of half of that is refused in any case,
/// because its rows would take an eighth of the budget ([`crate::shared::ledger::Ledger::rows_fit`]).
const POOL_SPACE_PER_BUDGET: u64 = 1024;
/// Pools begin so far from each other at least: inherited filters look at the upper halves of addresses.
const POOL_STEP_BYTES: u64 = 1 << 32;
/// Places tried for a pool's space before a shorter one is: twice as many as there may be pools.
const POOL_PLACES_TRIED: u32 = 2 * spaces::POOLS_MAX as u32;

// The door lies below the space, see `weir_os::gate::stubs`.
const _: () = assert!(range(Intake::Messages) + PLACES_BYTES < range(Intake::InThread) - PLACE_BYTES);

/// A place chosen at random; always the same where addresses are not to be random (`setarch -R`, debuggers).
pub fn choose() -> u32 {
    random_below(PLACES)
}

/// The first block in use of a space of so many pages: what a place does not hide, this does.
pub fn first_block(pages: u32) -> u32 {
    random_below(pages / BLOCK_PAGES / FIRST_SHARE)
}

fn random_below(n: u32) -> u32 {
    let mut bytes = [0u8; 8];
    if n == 0 || sys::addresses_are_fixed() {
        return 0;
    }
    if sys::random(&mut bytes).is_err() {
        bytes = weir_os::thread::now_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(); // early in boot
    }
    (u64::from_ne_bytes(bytes) % u64::from(n)) as u32
}

/// The places to try, `first` and others that no space at it reaches.
fn candidates(first: u32) -> impl Iterator<Item = u32> {
    (0..PLACES_TRIED).map(move |n| (first + n) % PLACES)
}

/// A space, if there is room for its tables and the arena beside it.
fn try_space(base: usize, len: u64, arena_len: usize) -> Result<Mapping, Errno> {
    let space = Mapping::reserve(base, len as usize)?;
    Mapping::anon(PageTable::bytes_for(len as usize) + arena_len).map(|_| space)
}

/// Bytes of a pool's space where other pools have so many: what its budget can use, and a share of what is
/// left at most, so that there is always some.
fn pool_bytes(budget: u64, taken: u64) -> u64 {
    let useful = budget.checked_next_power_of_two().unwrap_or(u64::MAX).saturating_mul(POOL_SPACE_PER_BUDGET);
    let left = PLACES_BYTES.saturating_sub(taken) / (PLACES_BYTES / SPACE_BYTES_MAX);
    useful.min(1 << left.max(1).ilog2())
}

/// First addresses to try for a pool's space of so many bytes, from a random one on.
fn pool_places(intake: Intake, len: u64) -> impl Iterator<Item = usize> {
    let step = len.max(POOL_STEP_BYTES);
    let count = (PLACES_BYTES / step) as u32;
    let first = random_below(count);
    let place = move |n| range(intake) + u64::from((first + n) % count) * step;
    (0..count.min(POOL_PLACES_TRIED)).map(move |n| place(n) as usize)
}

/// As [`reserve`] for a pool of a program that asks for it. There may be many: its space is as large as its
/// budget can use. It has no system-call gate.
fn reserve_pool(budget: u64, intake: Intake, arena_len: usize) -> Result<(Mapping, GateHalf), StartError> {
    let mut last = Errno::ENOMEM;
    let mut len = pool_bytes(budget, spaces::taken());
    while len >= budget.saturating_mul(SPACE_PER_BUDGET_MIN) {
        for base in pool_places(intake, len) {
            let free = if spaces::overlap(base, len as usize) { Err(Errno::EEXIST) } else { Ok(()) };
            let gate = free
                .and_then(|()| GateHalf::unwatched(base, len as usize, intake))
                .and_then(|()| GateHalf::at(base, Intake::Messages));
            match gate.and_then(|gate| try_space(base, len, arena_len).map(|space| (space, gate))) {
                Ok(made) => return Ok(made),
                Err(e) => last = e,
            }
            if last != Errno::EEXIST {
                break;
            }
        }
        len /= 2;
    }
    Err(StartError::AddressSpace(last))
}

/// Reserves as much address space as may be had with its tables and the arena beside it: less under RLIMIT_AS
/// or strict overcommit.
pub(super) fn reserve(
    settings: &Settings,
    intake: Intake,
    arena_len: usize,
) -> Result<(Mapping, GateHalf), StartError> {
    let budget = settings.memory;
    if settings.embedded {
        return reserve_pool(budget, intake, arena_len);
    }
    let mut last = Errno::ENOMEM;
    for place in candidates(settings.place.unwrap_or_else(choose)) {
        let base = (range(intake) + u64::from(place) * PLACE_BYTES) as usize;
        // Before the space itself: a filter inherited from a parent under Weir lets system calls
        // about the space pass from the gate only.
        let unwatched = || GateHalf::unwatched(base, SPACE_BYTES_MAX as usize, intake);
        let gate = match GateHalf::at(base, intake).and_then(|gate| unwatched().map(|()| gate)) {
            Ok(gate) => gate,
            Err(e) => {
                last = e;
                continue;
            }
        };
        let mut len = SPACE_BYTES_MAX;
        while len >= budget * SPACE_PER_BUDGET_MIN {
            match try_space(base, len, arena_len) {
                Ok(space) => return Ok((space, gate)),
                Err(e) => last = e,
            }
            if last == Errno::EEXIST {
                break;
            }
            len /= 2;
        }
    }
    Err(StartError::AddressSpace(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_keeps_its_space_and_its_door_in_range() {
        for first in [0, 1, PLACES / 2, PLACES - 1] {
            let all: Vec<u32> = candidates(first).collect();
            assert_eq!((all[0], all.len()), (first, PLACES_TRIED as usize));
            assert!(all.iter().all(|place| *place < PLACES));
            assert!(u64::from(all[1].abs_diff(first)) * PLACE_BYTES >= SPACE_BYTES_MAX, "{first}: {all:?}");
        }
        let last = range(Intake::InThread) + u64::from(PLACES - 1) * PLACE_BYTES + SPACE_BYTES_MAX;
        assert_eq!(last, 0x5000_0000_0000);
    }

    #[test]
    fn there_are_addresses_for_as_many_pools_as_there_may_be() {
        assert_eq!(pool_bytes(8 << 20, 0), 8 << 30);
        assert_eq!(pool_bytes(9 << 20, 0), 16 << 30);
        assert_eq!(pool_bytes(u64::MAX, 0), SPACE_BYTES_MAX);
        for budget in [8 << 20, 1 << 30, 2 << 30] {
            let add = |taken, _| {
                let bytes = pool_bytes(budget, taken);
                assert!(bytes >= budget * SPACE_PER_BUDGET_MIN, "{budget:#x}, {taken:#x} taken");
                taken + bytes
            };
            assert!((0..spaces::POOLS_MAX).fold(0, add) < PLACES_BYTES);
        }
    }

    #[test]
    fn pools_lie_apart_within_the_range_of_places() {
        for len in [1 << 28, POOL_STEP_BYTES, 16 << 30, SPACE_BYTES_MAX] {
            let places: std::collections::BTreeSet<usize> = pool_places(Intake::InThread, len).collect();
            let wanted = PLACES_BYTES / len.max(POOL_STEP_BYTES);
            assert_eq!(places.len() as u64, wanted.min(POOL_PLACES_TRIED.into()), "{len:#x}");
            let first = range(Intake::InThread) as usize;
            assert!(places.iter().all(|at| at % POOL_STEP_BYTES as usize == 0 && *at >= first));
            assert!(places.iter().all(|at| *at as u64 + len <= first as u64 + PLACES_BYTES));
            let apart = |(a, b): (&usize, &usize)| (b - a) as u64 >= len;
            assert!(places.iter().zip(places.iter().skip(1)).all(apart), "{len:#x}");
        }
    }

    #[test]
    fn places_differ() {
        let chosen: std::collections::BTreeSet<u32> = (0..64).map(|_| choose()).collect();
        assert!(chosen.len() > PLACES as usize / 2 || sys::addresses_are_fixed(), "{chosen:?}");
        assert!((0..64).all(|_| first_block(1 << 20) < (1 << 20) / BLOCK_PAGES / FIRST_SHARE));
        assert_eq!(first_block(64), 0);
    }
}
