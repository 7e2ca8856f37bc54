//! Where the managed space lies: at a random place that a whole tree of processes shares, far from what the
//! kernel and libc hand out, and from the shadows of common sanitizers.
//!
//! In inline mode a child inherits the filter on calls with addresses in its parent's space, also over
//! `exec`, and that filter lets them pass from the parent's door only. So a child's space is its parent's,
//! door included, or lies apart. The first program chooses, and hands its choice down in the environment;
//! where that got lost, a space that an inherited filter watches is noticed and passed over.

use super::inline::GateHalf;
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

/// Reserves as much address space as may be had with its tables and the arena beside it: less under RLIMIT_AS
/// or strict overcommit. A pool of a program that asks for it has no system-call gate.
pub(super) fn reserve(
    settings: &Settings,
    intake: Intake,
    arena_len: usize,
) -> Result<(Mapping, GateHalf), StartError> {
    let budget = settings.memory;
    let gated = if settings.embedded { Intake::Messages } else { intake };
    let mut last = Errno::ENOMEM;
    for place in candidates(settings.place.unwrap_or_else(choose)) {
        let base = (range(intake) + u64::from(place) * PLACE_BYTES) as usize;
        // Before the space itself: a filter inherited from a parent under Weir lets system calls
        // about the space pass from the gate only.
        let unwatched = || GateHalf::unwatched(base, SPACE_BYTES_MAX as usize, intake);
        let gate = match GateHalf::at(base, gated).and_then(|gate| unwatched().map(|()| gate)) {
            Ok(gate) => gate,
            Err(e) => {
                last = e;
                continue;
            }
        };
        let mut len = SPACE_BYTES_MAX;
        while len >= budget * SPACE_PER_BUDGET_MIN {
            let tried = Mapping::reserve(base, len as usize).and_then(|space| {
                Mapping::anon(PageTable::bytes_for(len as usize) + arena_len).map(|_| space)
            });
            match tried {
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
    fn places_differ() {
        let chosen: std::collections::BTreeSet<u32> = (0..64).map(|_| choose()).collect();
        assert!(chosen.len() > PLACES as usize / 2 || sys::addresses_are_fixed(), "{chosen:?}");
        assert!((0..64).all(|_| first_block(1 << 20) < (1 << 20) / BLOCK_PAGES / FIRST_SHARE));
        assert_eq!(first_block(64), 0);
    }
}
