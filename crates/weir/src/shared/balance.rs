//! Balance: mapped files and the program's memory, where both want the RAM. What there is room for, and what
//! follows of it; [`crate::policy::files`] has the rule.

use super::Core;
use crate::config::rules::{Rule, is_on};
use crate::door::Pager;
use crate::limits::{FILES_SPARE_SHARE, WHOLE_PERCENT};
use crate::page::id::BLOCK_PAGES;
use crate::policy::files::{distress, tendency};
use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::mem::PAGE_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;
/// Records take so much of their pages, in percent, while nobody has seen any.
const RATIO_UNSEEN: u64 = WHOLE_PERCENT / 2;

impl<P: Pager> Core<P> {
    /// There are so many bytes of mapped files in RAM, nearly none of which can leave if they are `stuck`:
    /// the limit leaves them, up to their part.
    pub fn note_files(&self, bytes: u64, stuck: bool) {
        let s = &self.stats;
        s.files_bytes.store(bytes, Ordering::Relaxed);
        s.files_bytes_peak.fetch_max(bytes, Ordering::Relaxed);
        self.note_total();
        let room = self.room_for_memory();
        // What is within its part stays: then nobody but memory can make room.
        let over = bytes > self.files_part_of(room);
        self.files_first.store(over && !stuck && self.has_no(room), Ordering::Relaxed);
        self.tell_terms(bytes, room);
        self.forget_what_the_pool_took();
        if self.ledger.note_files(bytes, self.files_part_of(room)) {
            self.follow();
        }
    }

    /// Bytes of mapped files that may be in RAM beside what the program has in frames and outside.
    pub fn files_part(&self) -> u64 {
        self.files_part_of(self.room_for_memory())
    }

    /// Whether files are to give way before any page of the program's memory is looked at: that could go
    /// nowhere.
    pub fn files_first(&self) -> bool {
        // Asked again: the keeper may be held up by a disk, and there is room meanwhile.
        self.files_first.load(Ordering::Relaxed) && self.has_no(self.room_for_memory())
    }

    /// Less than a hundredth of what there could be, or of the RAM.
    fn has_no(&self, (room, all): (u64, u64)) -> bool {
        room * WHOLE_PERCENT < all.min(self.ledger.budget_bytes()).max(1)
    }

    fn files_part_of(&self, room: (u64, u64)) -> u64 {
        self.ledger.files_part(self.wanted_bytes(), self.swappiness, room)
    }

    /// What the engine holds, as if as many frames were free as reclaim wants.
    fn wanted_bytes(&self) -> u64 {
        let free = u64::from(self.room.frames.free()) * PAGE;
        (self.resident_bytes() + u64::from(self.room.high_mark()) * PAGE).saturating_sub(free)
    }

    /// Bytes of RAM that memory can give up, and those that it could with nothing in pool and swap file: what
    /// is free of the file, slots that are second copies, and what compressing would gain.
    pub fn room_for_memory(&self) -> (u64, u64) {
        if !self.balance_by_room || !is_on(Rule::Balance) {
            return (self.ledger.budget_bytes(), self.ledger.budget_bytes());
        }
        let ratio = self.pool_ratio_percent().unwrap_or(RATIO_UNSEEN);
        let gain = |pages: u64| pages * PAGE * (WHOLE_PERCENT - ratio) / WHOLE_PERCENT;
        let frames = &self.room.frames;
        let in_frames = u64::from(frames.existing().saturating_sub(frames.free()));
        let vacant = u64::from(self.room.pool.limit().saturating_sub(self.room.pool.owned()));
        let (taken, tried) = self.taken_by_pool();
        let pages = in_frames.saturating_sub(self.pool_pages()) * taken / tried;
        let packed = gain(pages.min(vacant * u64::from(BLOCK_PAGES) * WHOLE_PERCENT / ratio));
        let whole = gain(frames.limit().into());
        let Some(s) = self.copies.swapping.as_ref().filter(|s| s.tier.is_latched().is_none()) else {
            return (packed, whole);
        };
        let copies = (s.kept() + s.doubled()) * PAGE * ratio / WHOLE_PERCENT;
        let free = if s.usable() { s.tier.free_bytes() } else { 0 };
        (packed + (free + copies).min(s.tier.bytes()), whole + s.tier.bytes())
    }

    /// Pages that the pool took lately, and pages that were to go there.
    fn taken_by_pool(&self) -> (u64, u64) {
        let (taken, refused) = self.pool_lately();
        (taken + 1, taken + 1 + refused) // the first has a chance
    }

    /// Pages that the pool took and that it did not, but for those that are forgotten.
    fn pool_lately(&self) -> (u64, u64) {
        let s = &self.stats;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let past = self.copies.swapping.as_ref().map_or(0, |swapping| {
            let out = swapping.tier.counters().pages_out.load(Ordering::Relaxed);
            out.saturating_sub(get(&s.swap_from_pool) + get(&s.swap_through))
        });
        let (taken, refused) = (s.pool_out().get(), get(&s.out_stuck) + past);
        let [forgot_taken, forgot_refused] = self.forgot.each_ref().map(get);
        (taken.saturating_sub(forgot_taken), refused.saturating_sub(forgot_refused))
    }

    /// Half of it is forgotten as soon as it is about more pages than there are frames: the program may have
    /// other data by now.
    fn forget_what_the_pool_took(&self) {
        let (taken, refused) = self.pool_lately();
        if taken + refused > u64::from(self.room.frames.limit()) {
            self.forgot[0].fetch_add(taken / 2, Ordering::Relaxed);
            self.forgot[1].fetch_add(refused / 2, Ordering::Relaxed);
        }
    }

    /// The terms by which files get more than memory leaves; none where there are no files.
    fn tell_terms(&self, bytes: u64, room: (u64, u64)) {
        let (budget, s) = (self.ledger.budget_bytes(), &self.stats);
        let beside = self.ledger.beside_files(self.wanted_bytes());
        let left = budget.saturating_sub(beside + budget / FILES_SPARE_SHARE);
        let tell = |counter: &AtomicU64, value: u64| {
            counter.store(if bytes > 0 { value } else { 0 }, Ordering::Relaxed);
        };
        tell(&s.balance_mapped, (budget - left) * WHOLE_PERCENT / budget);
        tell(&s.balance_distress, distress(budget, left));
        tell(&s.balance_room, room.0 * WHOLE_PERCENT / room.1.max(1));
        tell(&s.balance_tendency, tendency(budget, left, self.swappiness, room));
    }
}

#[cfg(test)]
mod tests {
    use crate::config::rules::{Rule, without};
    use crate::sim::World;
    use crate::sim::disk::FakeDisk;
    use crate::sync::Ordering;

    const MIB: u64 = 1 << 20;

    #[test]
    fn mapped_files_count_in_the_ram_in_all_and_lower_the_limit_by_their_part_at_most() {
        let core = World::budget(64).core();
        assert_eq!(core.note_outside(10 * MIB, 1), None);
        let (peak, limit) =
            (|| core.stats.total_bytes_peak.load(Ordering::Relaxed), || core.ledger.limit_bytes());
        core.note_files(20 * MIB, false);
        assert_eq!(peak(), 30 * MIB + core.resident_bytes());
        assert_eq!(limit(), 34 * MIB);
        core.note_files(640 * MIB, false);
        assert!(limit() + core.files_part() + MIB >= 54 * MIB, "{}", limit());
        core.note_files(0, false);
        assert_eq!(core.note_outside(12 * MIB, 2), None);
        assert!(peak() >= 650 * MIB && limit() >= 50 * MIB);
    }

    #[test]
    fn room_is_what_is_free_of_pool_and_swap_file_and_all_of_it_without_the_rule() {
        let core = World::budget(16).swap(FakeDisk::new(16 * MIB, 512), 16 * MIB).core();
        let (room, all) = core.room_for_memory();
        assert!(room > 10 * MIB && room <= 16 * MIB && all > 20 * MIB, "{room} of {all}");
        core.copies.swapping.as_ref().unwrap().set_full();
        assert_eq!(core.room_for_memory(), (0, all), "nothing is in frames");
        let budget = 16 * MIB;
        assert_eq!(without(Rule::Balance, || core.room_for_memory()), (budget, budget));
    }

    #[test]
    fn files_give_way_first_while_they_can_and_memory_has_no_room() {
        let core = World::budget(16).swap(FakeDisk::new(16 * MIB, 512), 16 * MIB).core();
        core.note_files(20 * MIB, false);
        assert!(!core.files_first());
        core.copies.swapping.as_ref().unwrap().set_full();
        let first = |bytes, stuck| {
            core.note_files(bytes, stuck);
            core.files_first()
        };
        let seen = [first(20 * MIB, false), first(0, false), first(20 * MIB, true), first(MIB, false)];
        assert_eq!(seen, [true, false, false, false], "the last is within its part");
        assert_eq!(core.stats.balance_room.load(Ordering::Relaxed), 0);
        assert!(!without(Rule::Balance, || first(20 * MIB, false)));
        assert_eq!(core.stats.balance_room.load(Ordering::Relaxed), 100);
    }
}
