//! Tidy: room in the swap file. Slots that are second copies are given up, and clusters that are mostly dead
//! are emptied.

use crate::door::Pager;
use crate::limits::{CLUSTER_SPARSE_PART, SLOTS_GIVEN_UP, SLOTS_SWEPT};
use crate::page::state::{State, must};
use crate::page::{PageId, SwapSlot};
use crate::shared::swapping::{BATCH_BYTES, BATCH_PAGES, Press, Swapping};
use crate::shared::{Core, count};
use crate::stats;
use crate::sync::Ordering;

/// Most pages that are moved together.
const PAGES: usize = BATCH_PAGES as usize;

/// Gives up slots of pages in frames or in the pool: they are true copies of what is there anyway. How many.
pub fn give_up_kept<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>) -> u32 {
    let (mut given, slots) = (0, s.tier.slots());
    if s.kept() + s.doubled() == 0 {
        return 0;
    }
    for _ in 0..slots.min(SLOTS_SWEPT * 16) {
        let slot = SwapSlot(s.hand.fetch_add(1, Ordering::Relaxed) % slots);
        let Some(page) = s.tier.page_of(slot).filter(|page| page.0 < core.table.pages()) else { continue };
        let Some(held) = core.table.block(page.block()).try_lock() else { continue };
        let found = core.table.word(page).load();
        if core.table.slot_of(page, found) == Some(slot) && core.give_up_slot(&held, page, found) {
            given += 1;
        }
        if given >= SLOTS_GIVEN_UP {
            break;
        }
    }
    count(&core.stats.swap_kept_dropped, given);
    given
}

/// Moves the live records of a cluster that is mostly dead elsewhere. How many. Under no lock.
pub fn empty_cluster<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>) -> u32 {
    let Some(mut mover) = s.mover() else { return 0 };
    let Some(cluster) = s.tier.sparse_cluster(CLUSTER_SPARSE_PART) else { return 0 };
    let (press, scratch) = &mut *mover;
    let mut moved = 0;
    let read = s.tier.each_in_cluster(cluster, scratch, |page, seen, record| {
        let Ok((codec, bytes)) = record else { return };
        if press.writer.bytes() >= BATCH_BYTES || press.writer.pages().count() == PAGES {
            moved += move_batch(core, s, press);
        }
        if page.0 >= core.table.pages() {
            return;
        }
        let held = core.table.block(page.block()).lock();
        let word = core.table.word(page);
        let found = word.load();
        if core.table.slot_of(page, found) != Some(seen.slot) || !s.tier.is_still(seen) {
            return; // another process's, on its way out of here, or written again under the same slot
        }
        if found.state() != State::Swapped {
            // There is another copy: moving this one is a write that may turn out to be for nothing.
            if core.give_up_slot(&held, page, found) {
                stats::add(&core.stats.swap_kept_dropped, 1);
                moved += 1;
            }
            return;
        }
        press.writer.cancel(page);
        if let Ok(tagged) = word.try_begin_read(found, press.tag)
            && press.writer.push(page, codec, bytes).is_err()
        {
            must(word.try_end_io(tagged));
        }
    });
    let _ = read; // what could not be read stays where it is
    moved + move_batch(core, s, press)
}

/// Writes records that are being moved, and frees their old places.
fn move_batch<P: Pager>(core: &Core<P>, s: &Swapping<P::Disk>, press: &mut Press) -> u32 {
    let done = press.writer.write(&s.tier, &mut press.cache).is_ok();
    let (mut list, mut n) = ([(PageId(0), None); PAGES], 0);
    let written = press.writer.written().map(|(page, slot)| (page, Some(slot)));
    let unwritten = press.writer.pages().filter(|_| !done).map(|page| (page, None));
    for entry in written.chain(unwritten).take(PAGES) {
        list[n] = entry;
        n += 1;
    }
    let mut moved = 0;
    for &(page, slot) in &list[..n] {
        let held = core.table.block(page.block()).lock();
        let word = core.table.word(page);
        let found = word.load();
        match slot {
            Some(slot) if word.try_reslot(found, slot, press.tag).is_ok() => {
                core.free_copy(&held, page, found);
                moved += 1;
            }
            Some(slot) => s.tier.free(&mut press.cache, slot),
            None if found.tag() == press.tag => _ = must(word.try_end_io(found)),
            None => {}
        }
    }
    press.writer.clear();
    s.announce();
    count(&core.stats.swap_moved, moved);
    moved
}

/// The background thread's part: room in the file, before it gets short. Now and then (`trim`) blocks go back
/// to the file system.
pub fn housekeeping<P: Pager>(core: &Core<P>, trim: bool) {
    let Some(s) = &core.copies.swapping else { return };
    if trim {
        s.set_cramped(false);
        s.tier.trim();
    }
    if s.tier.free_bytes() < s.tier.bytes() / 8 {
        give_up_kept(core, s);
        empty_cluster(core, s);
    }
    s.look_for_room();
    core.charge_slots();
}
