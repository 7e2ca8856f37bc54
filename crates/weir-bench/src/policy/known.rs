//! Known policies, a page at a time with every access seen, as their papers have them. They are what Weir's,
//! which sees no access to a page that is there, is held against.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// A policy over a fixed number of frames: tells whether an access hit.
pub trait Policy {
    /// Accesses a page; true if it was there.
    fn access(&mut self, page: u32) -> bool;
}

/// Accesses that missed.
pub fn misses(policy: &mut dyn Policy, accesses: &[u32]) -> u64 {
    accesses.iter().filter(|page| !policy.access(**page)).count() as u64
}

/// First in, first out; with `second_chance`, CLOCK: a page that was accessed since its last turn stays for
/// one more.
#[derive(Debug)]
pub struct Fifo {
    frames: usize,
    second_chance: bool,
    queue: VecDeque<u32>,
    /// Whether it was accessed since its turn.
    seen: HashMap<u32, bool>,
}

impl Fifo {
    /// Over so many frames.
    pub fn new(frames: usize, second_chance: bool) -> Fifo {
        Fifo { frames, second_chance, queue: VecDeque::new(), seen: HashMap::new() }
    }
}

impl Policy for Fifo {
    fn access(&mut self, page: u32) -> bool {
        if let Some(seen) = self.seen.get_mut(&page) {
            *seen = true;
            return true;
        }
        while self.queue.len() >= self.frames {
            let Some(victim) = self.queue.pop_front() else { break };
            match self.seen.get_mut(&victim) {
                Some(seen) if self.second_chance && *seen => {
                    *seen = false;
                    self.queue.push_back(victim);
                }
                _ => _ = self.seen.remove(&victim),
            }
        }
        self.queue.push_back(page);
        self.seen.insert(page, false);
        false
    }
}

/// Least recently used.
#[derive(Debug)]
pub struct Lru {
    frames: usize,
    now: u64,
    last: HashMap<u32, u64>,
    order: BTreeSet<(u64, u32)>,
}

impl Lru {
    /// Over so many frames.
    pub fn new(frames: usize) -> Lru {
        Lru { frames, now: 0, last: HashMap::new(), order: BTreeSet::new() }
    }
}

impl Policy for Lru {
    fn access(&mut self, page: u32) -> bool {
        self.now += 1;
        let before = self.last.insert(page, self.now);
        if let Some(at) = before {
            self.order.remove(&(at, page));
        }
        self.order.insert((self.now, page));
        if self.order.len() > self.frames
            && let Some((_, victim)) = self.order.pop_first()
        {
            self.last.remove(&victim);
        }
        before.is_some()
    }
}

/// SIEVE (Zhang et al., NSDI '24): one queue in order of arrival; a hand goes from the oldest to the newest,
/// passes over pages that were accessed and takes the first that was not.
#[derive(Debug)]
pub struct Sieve {
    frames: usize,
    arrivals: u64,
    /// By arrival: page, and whether it was accessed.
    queue: BTreeMap<u64, (u32, bool)>,
    place: HashMap<u32, u64>,
    hand: u64,
}

impl Sieve {
    /// Over so many frames.
    pub fn new(frames: usize) -> Sieve {
        Sieve { frames, arrivals: 0, queue: BTreeMap::new(), place: HashMap::new(), hand: 0 }
    }

    fn evict(&mut self) {
        loop {
            let next = self.queue.range(self.hand..).next().or_else(|| self.queue.iter().next());
            let Some((&at, &(page, seen))) = next else { return };
            self.hand = at + 1;
            if !seen {
                self.queue.remove(&at);
                self.place.remove(&page);
                return;
            }
            self.queue.insert(at, (page, false));
        }
    }
}

impl Policy for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if let Some(entry) = self.place.get(&page).and_then(|at| self.queue.get_mut(at)) {
            entry.1 = true;
            return true;
        }
        if self.queue.len() >= self.frames {
            self.evict();
        }
        if self.queue.range(self.hand..).next().is_none() {
            self.hand = 0; // past the newest: from the oldest again, not on to the one that comes now
        }
        self.arrivals += 1;
        self.queue.insert(self.arrivals, (page, false));
        self.place.insert(page, self.arrivals);
        false
    }
}

/// S3-FIFO (Yang et al., SOSP '23): a small queue of a tenth for what is new, a main queue, and a ghost
/// queue, as long as the main one, of what left the small one without a second access.
#[derive(Debug)]
pub struct S3Fifo {
    frames: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Accesses since the page's last turn, 3 at most.
    counts: HashMap<u32, u8>,
    /// Pages, and when each left.
    ghosts: VecDeque<(u32, u64)>,
    /// Those of the ghost queue that have not come back, and when they left.
    ghostly: HashMap<u32, u64>,
    now: u64,
}

impl S3Fifo {
    /// Over so many frames.
    pub fn new(frames: usize) -> S3Fifo {
        S3Fifo {
            frames,
            small: VecDeque::new(),
            main: VecDeque::new(),
            counts: HashMap::new(),
            ghosts: VecDeque::new(),
            ghostly: HashMap::new(),
            now: 0,
        }
    }

    fn remember(&mut self, page: u32) {
        while self.ghostly.len() >= self.frames * 9 / 10 {
            let Some((oldest, at)) = self.ghosts.pop_front() else { break };
            if self.ghostly.get(&oldest) == Some(&at) {
                self.ghostly.remove(&oldest); // else it came back, and may be a younger ghost
            }
        }
        self.now += 1;
        self.ghosts.push_back((page, self.now));
        self.ghostly.insert(page, self.now);
    }

    /// Frees one frame.
    fn evict(&mut self) {
        loop {
            if self.small.len() >= (self.frames / 10).max(1) || self.main.is_empty() {
                let Some(page) = self.small.pop_front() else { return };
                if self.counts.get(&page).is_some_and(|n| *n > 1) {
                    self.counts.insert(page, 0);
                    self.main.push_back(page);
                    continue;
                }
                self.counts.remove(&page);
                self.remember(page);
                return;
            }
            let Some(page) = self.main.pop_front() else { return };
            match self.counts.get_mut(&page) {
                Some(n) if *n > 0 => {
                    *n -= 1;
                    self.main.push_back(page);
                }
                _ => {
                    self.counts.remove(&page);
                    return;
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        if let Some(n) = self.counts.get_mut(&page) {
            *n = (*n + 1).min(3);
            return true;
        }
        if self.counts.len() >= self.frames {
            self.evict();
        }
        if self.ghostly.remove(&page).is_some() {
            self.main.push_back(page)
        } else {
            self.small.push_back(page)
        }
        self.counts.insert(page, 0);
        false
    }
}

/// Misses of the optimum (Belady 1966), which knows the future: it gives up the page whose next access is
/// farthest away.
pub fn optimum(frames: usize, accesses: &[u32], pages: u32) -> u64 {
    const NEVER: u32 = u32::MAX;
    let mut next = vec![NEVER; accesses.len()];
    let mut soonest = vec![NEVER; pages as usize];
    for (at, page) in accesses.iter().enumerate().rev() {
        next[at] = soonest[*page as usize];
        soonest[*page as usize] = at as u32;
    }
    // By next access; pages that never come again are all alike, told apart by their numbers.
    let mut there: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut key = vec![None; pages as usize];
    let mut misses = 0;
    for (at, &page) in accesses.iter().enumerate() {
        match key[page as usize].take() {
            Some(until) => _ = there.remove(&(until, page)),
            None => {
                misses += 1;
                if there.len() >= frames
                    && let Some((_, victim)) = there.pop_last()
                {
                    key[victim as usize] = None;
                }
            }
        }
        there.insert((next[at], page));
        key[page as usize] = Some(next[at]);
    }
    misses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: &mut dyn Policy, accesses: &[u32]) -> Vec<bool> {
        accesses.iter().map(|page| policy.access(*page)).collect()
    }

    #[test]
    fn fifo_forgets_the_oldest_and_clock_gives_it_a_second_chance() {
        let trace = [1, 2, 1, 3, 1];
        assert_eq!(hits(&mut Fifo::new(2, false), &trace), [false, false, true, false, false]);
        assert_eq!(hits(&mut Fifo::new(2, true), &trace), [false, false, true, false, true]);
    }

    #[test]
    fn lru_forgets_what_was_not_used_longest() {
        assert_eq!(hits(&mut Lru::new(2), &[1, 2, 1, 3, 1, 2]), [false, false, true, false, true, false]);
    }

    #[test]
    fn sieve_keeps_what_was_accessed_where_it_stands() {
        // 1 is passed over and loses its mark, 2, the newest, goes; the hand begins again at the oldest and
        // takes 1.
        assert_eq!(hits(&mut Sieve::new(2), &[1, 2, 1, 3, 4, 1]), [false, false, true, false, false, false]);
        // 1 is passed over, 2 goes, the hand stands before 3 and takes it: 1 stays.
        assert_eq!(
            hits(&mut Sieve::new(3), &[1, 2, 3, 1, 4, 5, 1]),
            [false, false, false, true, false, false, true]
        );
    }

    #[test]
    fn s3_fifo_lets_a_scan_pass() {
        let mut policy = S3Fifo::new(100);
        let hot: Vec<u32> = (0..50).collect();
        (0..4).for_each(|_| _ = misses(&mut policy, &hot));
        misses(&mut policy, &(1000..2000).collect::<Vec<u32>>());
        assert_eq!(misses(&mut policy, &hot), 0);
        let mut lru = Lru::new(100);
        (0..4).for_each(|_| _ = misses(&mut lru, &hot));
        misses(&mut lru, &(1000..2000).collect::<Vec<u32>>());
        assert_eq!(misses(&mut lru, &hot), 50);
    }

    #[test]
    fn what_comes_back_from_the_ghosts_goes_to_the_main_queue() {
        let mut policy = S3Fifo::new(10);
        misses(&mut policy, &(0..11).collect::<Vec<u32>>()); // 0 is a ghost now
        assert!(!policy.access(0));
        assert!(policy.main.contains(&0));
    }

    #[test]
    fn nobody_misses_less_than_the_optimum() {
        assert_eq!(optimum(2, &[1, 2, 3, 1, 2], 4), 4);
        assert_eq!(optimum(3, &[1, 2, 3, 1, 2, 3], 4), 3);
        let trace: Vec<u32> = (0..4000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20 & (i % 255)).collect();
        let best = optimum(64, &trace, 4096);
        let others: [&mut dyn Policy; 5] = [
            &mut Fifo::new(64, false),
            &mut Fifo::new(64, true),
            &mut Lru::new(64),
            &mut Sieve::new(64),
            &mut S3Fifo::new(64),
        ];
        for other in others {
            assert!(misses(other, &trace) >= best);
        }
    }
}
