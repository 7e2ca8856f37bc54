//! Weir's own replacement: the engine's queues of blocks, with the staged pages behind them, without the
//! engine around. Which block goes is decided by the engine's code; what happens to its pages is modelled
//! after `reclaim`.

use std::collections::VecDeque;

use anyhow::{Context, anyhow};
use weir::limits::VICTIMS_TRIED;
use weir::limits::{FREE_HIGH_FACTOR, FREE_LOW_SHARE, LIFT_BLOCKS, STAGED_SHARE};
use weir::replay::{
    Admission, Arrival, BLOCK_PAGES, BlockId, PageId, PageTable, Pressure, ResidentSet, State, Verdict, Want,
    blocks_at_once,
};

use super::known::Policy;

/// The instruction that all loads are of.
const SITE: usize = 0x40_1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Untouched,
    Gone,
    Resident,
    Staged,
}

/// Replacement as the engine has it.
#[derive(Debug)]
pub struct Weirs {
    table: PageTable,
    resident: ResidentSet,
    places: Vec<Place>,
    /// Blocks with staged pages, oldest first.
    staged: VecDeque<BlockId>,
    staged_pages: u32,
    free: u32,
    frames: u32,
    /// Blocks that leave together at most; 1 where pages leave by MOVE.
    lift: u32,
    /// Which pages come in, where the accesses are loads that can be answered.
    admission: Option<Admission>,
    /// Accesses that faulted.
    faults: u64,
    /// Accesses to staged pages: hits that cost a fault.
    pub taken_back: u64,
    /// Misses that were answered, the page left where it was: they cost little.
    pub answered: u64,
    /// Victims that left, by a call each.
    pub calls: u64,
    /// Pages that left by these calls.
    pub left: u64,
}

impl Weirs {
    /// Over so many frames, for pages numbered below `pages`; `lifts` as in inline mode.
    pub fn new(frames: u32, pages: u32, lifts: bool) -> anyhow::Result<Weirs> {
        // Reclaim keeps some free, between its two marks.
        let frames = frames - frames / FREE_LOW_SHARE * (1 + FREE_HIGH_FACTOR) / 2;
        let pages = pages.next_multiple_of(BLOCK_PAGES * LIFT_BLOCKS) as usize;
        let lift = if lifts { blocks_at_once(frames) } else { 1 };
        Ok(Weirs {
            table: PageTable::new(pages).map_err(|e| anyhow!("{e:?}")).context("page table")?,
            resident: ResidentSet::default(),
            places: vec![Place::Untouched; pages],
            staged: VecDeque::new(),
            staged_pages: 0,
            free: frames,
            frames,
            lift,
            admission: None,
            faults: 0,
            taken_back: 0,
            answered: 0,
            calls: 0,
            left: 0,
        })
    }

    /// The same where all accesses are loads of one instruction, in no order that readahead would know.
    pub fn answering(frames: u32, pages: u32) -> anyhow::Result<Weirs> {
        let admission = Admission::new(frames).map_err(|e| anyhow!("{e:?}")).context("admission table")?;
        Ok(Weirs { admission: Some(admission), ..Weirs::new(frames, pages, true)? })
    }

    /// Whether a load of the page is answered, as `fault::resolve_load` decides it.
    fn answers(&mut self, page: PageId, source: State) -> bool {
        let Some(admission) = &self.admission else { return false };
        let want = Want { page, source, now: self.faults };
        let asker = admission.ask(SITE, self.faults);
        let pressure = Pressure { staged: self.staged_pages, pool_overflows: false, faulters: 1 };
        let open = admission.look(want, pressure) == Verdict::Open;
        let tight = self.free <= self.frames / FREE_LOW_SHARE;
        let asker = asker.filter(|asker| open && tight && admission.answers(want, *asker));
        if let Some(asker) = asker {
            admission.answered(want, asker);
        }
        asker.is_some()
    }

    /// Frees frames as one batch of reclaim does: the second chance is filled to its mark, then its oldest
    /// block leaves.
    fn reclaim(&mut self) {
        let mut tries = 0;
        while (self.staged_pages < (self.frames / STAGED_SHARE).max(1) && tries < VICTIMS_TRIED)
            || self.staged.is_empty()
        {
            let Some(victim) = self.resident.next_victim(&self.table) else { break };
            tries = if self.unmap(victim) { 0 } else { tries + 1 };
        }
        let Some(block) = self.staged.pop_front() else { return };
        for page in pages_of(block) {
            if self.places[page] == Place::Staged {
                self.places[page] = Place::Gone;
                self.staged_pages -= 1;
                self.free += 1;
            }
        }
    }

    /// A victim leaves with its neighbours; false if it could not.
    fn unmap(&mut self, victim: BlockId) -> bool {
        if pages_of(victim).any(|page| self.places[page] == Place::Staged) {
            self.resident.arrived(&self.table, victim, Arrival::Stayed); // another turn
            return false;
        }
        let group = victim.0 & !(LIFT_BLOCKS - 1);
        let (mut from, mut end) = (victim.0, victim.0 + 1);
        while end - from < self.lift && end < group + LIFT_BLOCKS && self.can_go_too(end) {
            end += 1;
        }
        while end - from < self.lift && from > group && self.can_go_too(from - 1) {
            from -= 1;
        }
        for block in (from..end).map(BlockId) {
            let mut n = 0;
            for page in pages_of(block) {
                if self.places[page] == Place::Resident {
                    self.places[page] = Place::Staged;
                    n += 1;
                }
            }
            self.table.block(block).add_resident(-n);
            self.staged_pages += n as u32;
            self.left += n as u64;
            if n > 0 {
                self.staged.push_back(block);
            }
        }
        self.calls += 1;
        if self.lift > 1 {
            self.resident.went_early(&self.table, (from..end).filter(|b| *b != victim.0).map(BlockId));
        }
        true
    }

    fn can_go_too(&self, block: u32) -> bool {
        let block = BlockId(block);
        self.table.block(block).resident() > 0
            && pages_of(block).all(|page| self.places[page] != Place::Staged)
    }
}

fn pages_of(block: BlockId) -> std::ops::Range<usize> {
    let first = block.page(0).0 as usize;
    first..first + BLOCK_PAGES as usize
}

impl Policy for Weirs {
    fn access(&mut self, page: u32) -> bool {
        let (id, place) = (PageId(page), self.places[page as usize]);
        if place == Place::Resident {
            return true;
        }
        self.faults += 1;
        let staged = place == Place::Staged;
        let source = if staged { State::Staged } else { State::Pooled };
        self.taken_back += u64::from(staged);
        if place != Place::Untouched && self.answers(id, source) {
            self.answered += u64::from(!staged);
            return staged;
        }
        let how = if staged {
            self.staged_pages -= 1;
            Arrival::TakenBack
        } else {
            while self.free == 0 {
                self.reclaim();
            }
            self.free -= 1;
            Arrival::Fetched
        };
        self.places[page as usize] = Place::Resident;
        self.table.block(id.block()).add_resident(1);
        self.resident.arrived(&self.table, id.block(), how);
        staged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::known::{misses, optimum};
    use crate::policy::traces;

    #[test]
    fn frames_are_never_more_than_given_and_none_is_lost() {
        for trace in traces::made(1280, 8) {
            let pages = trace.pages;
            let best = optimum(1280, &trace.accesses, pages);
            let ways = [
                Weirs::new(1280, pages, false),
                Weirs::new(1280, pages, true),
                Weirs::answering(1280, pages),
            ];
            for weirs in ways {
                let mut weirs = weirs.unwrap();
                let missed = misses(&mut weirs, &trace.accesses);
                let count =
                    |places: &[Place]| weirs.places.iter().filter(|p| places.contains(p)).count() as u32;
                let (there, staged) = (count(&[Place::Resident, Place::Staged]), count(&[Place::Staged]));
                let expected = (weirs.frames, weirs.staged_pages);
                assert_eq!((there + weirs.free, staged), expected, "{}", trace.name);
                assert!(missed >= best, "{}", trace.name);
            }
        }
    }

    #[test]
    fn single_loads_are_answered_and_bring_fewer_pages_than_all_misses_would() {
        let trace = &traces::made(1280, 8)[0];
        let mut bringing = Weirs::new(1280, trace.pages, true).unwrap();
        let brought = misses(&mut bringing, &trace.accesses);
        let mut weirs = Weirs::answering(1280, trace.pages).unwrap();
        let missed = misses(&mut weirs, &trace.accesses);
        assert_eq!(bringing.answered, 0);
        assert!(
            weirs.answered > 0 && missed - weirs.answered.min(missed) < brought,
            "{weirs:?}",
            weirs = weirs.answered
        );
    }

    #[test]
    fn what_fits_is_missed_once() {
        let mut weirs = Weirs::new(2200, 2048, true).unwrap();
        let trace: Vec<u32> = (0..3).flat_map(|_| 0..2048).collect();
        assert_eq!(misses(&mut weirs, &trace), 2048);
    }
}
