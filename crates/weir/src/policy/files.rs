//! Which blocks of mapped files leave RAM, and how much of it files may have.
//!
//! Nobody sees an access to a page that is there: no accessed bit can be read without privileges. What is
//! seen is that a block comes, and that it comes back. So there are two queues in order of arrival. *Fixed*
//! fills up first and is then left alone, but for a sample: a pass over more than there is RAM finds that
//! part in place each time, where the order of last use would find nothing. All else is *passing* and leaves
//! behind whoever reads it. Each sample of the fixed queue is paired with the passing block that leaves next.
//! Where the passing one is the first of the two to come back, again and again, what is fixed is yesterday's,
//! and gives its place to what passes.

use crate::limits::{
    FILES_FLOOR_SHARE, FILES_SPARE_SHARE, FIXED_ONE_IN, PAIR_WON, PAIRS_MAX, PASSING_PAGES_MIN,
    PASSING_SHARE, STALE_SCORE, WHOLE_PERCENT,
};
use std::collections::VecDeque;

/// One of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Leaves in the order in which it came.
    Passing,
    /// Stays where it is.
    Fixed,
}

/// Which of two blocks that left together comes back first, one of each queue.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// The turns at which they left: of the fixed one, and of the passing one.
    open: VecDeque<(u32, Option<u32>)>,
    score: i32,
}

impl Pairs {
    /// A block leaves a queue at this turn.
    pub fn leaves(&mut self, queue: Queue, turn: u32) {
        if queue == Queue::Fixed {
            self.open.drain(..(self.open.len() + 1).saturating_sub(PAIRS_MAX));
            self.open.push_back((turn, None));
        } else if let Some((_, passing @ None)) = self.open.back_mut() {
            *passing = Some(turn);
        }
    }

    /// A block that left a queue at this turn came back.
    pub fn comes_back(&mut self, queue: Queue, turn: u32) {
        let of = |pair: &(u32, Option<u32>)| match queue {
            Queue::Fixed => pair.0 == turn,
            Queue::Passing => pair.1 == Some(turn),
        };
        let Some(at) = self.open.iter().position(of) else { return };
        self.open.remove(at);
        let change = if queue == Queue::Fixed { PAIR_WON } else { -1 };
        self.score = (self.score + change).clamp(-2 * STALE_SCORE, STALE_SCORE);
    }
}

/// What both queues hold.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    /// Pages in blocks that pass.
    pub passing: u64,
    /// Pages in fixed blocks.
    pub fixed: u64,
    /// Pages that files may have.
    pub part: u64,
    /// Which of them is wanted more.
    pub pairs: Pairs,
}

impl Queues {
    /// Most pages of the fixed queue.
    fn fixed_most(&self) -> u64 {
        let passing = (self.part / PASSING_SHARE).max(PASSING_PAGES_MIN.min(self.part / 2));
        self.part - passing
    }

    /// The queue that a block enters: the fixed one while it has room.
    pub fn enters(&self) -> Queue {
        if self.fixed < self.fixed_most() { Queue::Fixed } else { Queue::Passing }
    }

    /// The queue whose oldest block leaves next; `turn` counts the blocks that left.
    pub fn victim(&self, turn: u32) -> Option<Queue> {
        let one_in = if self.pairs.score <= -STALE_SCORE { 2 } else { FIXED_ONE_IN };
        match (self.passing, self.fixed) {
            (0, 0) => None,
            (0, _) => Some(Queue::Fixed),
            (_, 0) => Some(Queue::Passing),
            _ if self.fixed > self.fixed_most() || turn.is_multiple_of(one_in) => Some(Queue::Fixed),
            _ => Some(Queue::Passing),
        }
    }
}

/// How hard it is for files to give way, in percent: all of it where they have nothing, and half as much with
/// each part of the RAM that they have, a sixteenth of it.
pub fn distress(budget: u64, files: u64) -> u64 {
    WHOLE_PERCENT >> (files.min(budget) * FILES_FLOOR_SHARE / budget)
}

/// How much speaks for memory to give way to files, in percent, where these have so many bytes and memory has
/// the rest; from a whole on it does. After the kernel's: half of memory's share, and distress, and
/// `swappiness` as far as there is `room` of `all` there could be for what leaves (founding report F2).
pub fn tendency(budget: u64, files: u64, swappiness: u64, (room, all): (u64, u64)) -> u64 {
    let share = budget.saturating_sub(files) * WHOLE_PERCENT / budget;
    share / 2 + distress(budget, files) + swappiness * room / all.max(1)
}

/// Bytes of files that may be in RAM: what everything else leaves of the budget, less a part for it to grow
/// into; and more, as far as memory gives way and has room to go to.
pub fn part(budget: u64, others: u64, swappiness: u64, room: (u64, u64)) -> u64 {
    let left = budget.saturating_sub(others + budget / FILES_SPARE_SHARE);
    let (step, mut part) = (budget / FILES_FLOOR_SHARE, left);
    while part < left + room.0 && part < budget && tendency(budget, part, swappiness, room) >= WHOLE_PERCENT {
        // To the next border between parts of the RAM: steps from what is left would move with it.
        part = (part / step + 1) * step;
    }
    part.min(left + room.0).clamp(budget / FILES_SPARE_SHARE, budget)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::id::BLOCK_PAGES;

    const PAGES: u64 = BLOCK_PAGES as u64;

    /// Blocks by the rules above, all of them whole; counts what is read.
    struct Model {
        queues: Queues,
        passing: VecDeque<u32>,
        fixed: VecDeque<u32>,
        /// The queue that a block that is out has left, and when; and whether it is in.
        left: Vec<Option<(Queue, u32)>>,
        here: Vec<bool>,
        turn: u32,
        read: u32,
    }

    impl Model {
        fn new(blocks: usize, part: u64) -> Model {
            let queues = Queues { part: part * PAGES, ..Queues::default() };
            let (left, here) = (vec![None; blocks], vec![false; blocks]);
            Model { queues, passing: VecDeque::new(), fixed: VecDeque::new(), left, here, turn: 0, read: 0 }
        }

        fn touch(&mut self, block: u32) {
            if self.here[block as usize] {
                return;
            }
            self.read += 1;
            self.here[block as usize] = true;
            if let Some((queue, turn)) = self.left[block as usize].take() {
                self.queues.pairs.comes_back(queue, turn);
            }
            match self.queues.enters() {
                Queue::Fixed => (self.queues.fixed += PAGES, self.fixed.push_back(block)),
                Queue::Passing => (self.queues.passing += PAGES, self.passing.push_back(block)),
            };
            while self.queues.fixed + self.queues.passing > self.queues.part {
                self.send_away();
            }
        }

        fn send_away(&mut self) {
            let queue = self.queues.victim(self.turn).unwrap();
            self.turn += 1;
            let victim = match queue {
                Queue::Fixed => {
                    self.queues.fixed -= PAGES;
                    self.fixed.pop_front()
                }
                Queue::Passing => {
                    self.queues.passing -= PAGES;
                    self.passing.pop_front()
                }
            };
            let victim = victim.unwrap() as usize;
            self.queues.pairs.leaves(queue, self.turn);
            (self.here[victim], self.left[victim]) = (false, Some((queue, self.turn)));
        }

        fn pass(&mut self, blocks: core::ops::Range<u32>) -> u32 {
            let before = self.read;
            blocks.for_each(|block| self.touch(block));
            self.read - before
        }
    }

    #[test]
    fn a_cyclic_pass_reads_little_more_than_what_does_not_fit() {
        for (blocks, part) in [(1280, 1024), (4096, 1024), (5000, 4000)] {
            let mut model = Model::new(blocks as usize, part);
            (0..4).for_each(|_| _ = model.pass(0..blocks));
            let read = model.pass(0..blocks);
            let least = blocks - part as u32;
            assert!(read >= least && read * 10 <= least * 12, "{blocks} in {part}: {read} of {least}");
        }
    }

    #[test]
    fn what_is_used_no_more_gives_its_place_to_what_comes_back() {
        let mut model = Model::new(4000, 1000);
        model.pass(0..2000);
        let reads: Vec<u32> = (0..6).map(|_| model.pass(2000..2900)).collect();
        assert!(reads[5] <= 100, "{reads:?}");
    }

    #[test]
    fn a_file_that_fits_is_read_once() {
        let mut model = Model::new(1000, 1000);
        assert_eq!([model.pass(0..1000), model.pass(0..1000)], [1000, 0]);
    }

    #[test]
    fn random_reads_find_what_fits() {
        let mut model = Model::new(4000, 1000);
        let mut seed = 7u64;
        let mut reads = 0;
        for n in 0..100_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let before = model.read;
            model.touch((seed >> 33) as u32 % 4000);
            reads += if n < 50_000 { 0 } else { model.read - before };
        }
        // A quarter is there by chance, and no order of leaving can do better.
        assert!((36_500..38_500).contains(&reads), "{reads}");
    }

    #[test]
    fn a_queue_that_is_empty_gives_no_victim_and_one_over_its_part_does() {
        let queues = |passing, fixed| Queues { passing, fixed, part: 6400, ..Queues::default() };
        assert_eq!(queues(0, 0).victim(1), None);
        assert_eq!(queues(0, 5).victim(1), Some(Queue::Fixed));
        assert_eq!(queues(5, 0).victim(FIXED_ONE_IN), Some(Queue::Passing));
        assert_eq!(queues(600, 5000).victim(1), Some(Queue::Passing));
        assert_eq!(queues(600, 5000).victim(FIXED_ONE_IN), Some(Queue::Fixed));
        assert_eq!(queues(5, 6300).victim(1), Some(Queue::Fixed));
    }

    const MIB: u64 = 1 << 20;
    const FREE: (u64, u64) = (512 * MIB, 512 * MIB);

    #[test]
    fn files_have_what_others_leave_and_a_sixteenth_where_memory_has_somewhere_to_go() {
        for room in [FREE, (0, 512 * MIB), (0, 0)] {
            assert_eq!([0, 40].map(|others| part(64 * MIB, others * MIB, 0, room)), [62 * MIB, 22 * MIB]);
        }
        for swappiness in [0, 60] {
            let full = |free| part(64 * MIB, 64 * MIB, swappiness, (free, 512 * MIB));
            assert_eq!([full(8 * MIB), full(3 * MIB), full(0)], [4 * MIB, 3 * MIB, 2 * MIB]);
            assert_eq!(part(64 * MIB, 900 * MIB, swappiness, (0, 512 * MIB)), 2 * MIB);
        }
    }

    #[test]
    fn what_files_may_have_does_not_fall_where_memory_has_less_and_memory_that_gave_way_has_no_more_to_give()
    {
        for swappiness in [0, 60, 200] {
            let of = |left: u64| part(64 * MIB, 62 * MIB - left, swappiness, FREE);
            let parts: Vec<u64> = (0..620).map(|tenth| of(tenth * MIB / 10)).collect();
            assert!(parts.is_sorted(), "swappiness {swappiness}: {parts:?}");
            assert!((0..620).all(|tenth| of(of(tenth * MIB / 10).min(62 * MIB)) <= of(tenth * MIB / 10)));
        }
    }

    #[test]
    fn the_tendency_falls_with_what_files_have_and_to_half_of_memorys_share_with_the_room() {
        let of = |files, free| tendency(64 * MIB, files * MIB, 60, (free * MIB, 512 * MIB));
        assert_eq!([of(0, 512), of(4, 512), of(64, 512)], [50 + 100 + 60, 46 + 50 + 60, 60]);
        assert_eq!([of(8, 512), of(8, 256), of(8, 0)], [43 + 25 + 60, 43 + 25 + 30, 43 + 25]);
        let falls = |room| (0..64).is_sorted_by_key(|files| u64::MAX - of(files, room));
        assert!(falls(0) && falls(256) && falls(512));
    }

    #[test]
    fn memory_gives_way_by_swappiness_and_room_and_not_at_all_where_it_can_go_nowhere() {
        let of = |swappiness, room| part(64 * MIB, 64 * MIB, swappiness, room) / MIB;
        assert_eq!([0, 30, 60, 100, 200].map(|n| of(n, FREE)), [4, 8, 20, 64, 64]);
        assert_eq!([0, 30, 60, 100, 200].map(|n| of(n, (0, 512 * MIB))), [2; 5]);
        assert_eq!([512, 256, 64, 5].map(|n| of(60, (n * MIB, 512 * MIB))), [20, 8, 8, 4]);
        // No more than there is room for.
        assert_eq!(of(100, (7 * MIB, 7 * MIB)), 7);
    }
}
