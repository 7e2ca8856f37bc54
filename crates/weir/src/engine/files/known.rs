//! What the hooks and the keeper share: the mappings of files that are known, and questions about them.

use super::uses::Uses;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_os::files::FileId;
use weir_os::thread;

/// What the hooks and the keeper share.
#[derive(Debug, Default)]
pub struct Files {
    known: Mutex<Known>,
    /// Mappings that are known: most calls find none, and need no lock.
    count: AtomicUsize,
    /// 1: the keeper is to look.
    pub(super) kick: AtomicU32,
    /// The last question that the keeper has answered.
    pub(super) answered: AtomicU32,
    /// There is no keeper, and will be none.
    pub(super) off: AtomicBool,
    /// There was one that could work.
    pub(super) worked: AtomicBool,
    /// What calls tell of them.
    pub uses: Uses,
    /// Keepers that are gone. (One that is to leave may be held up by a disk.)
    gone: AtomicU32,
}

/// Mappings, and questions about their files.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) maps: Vec<Map>,
    pub(super) asks: Vec<Ask>,
    /// Changes of `maps`.
    pub(super) changes: u64,
    ids: u64,
    pub(super) asked: u32,
}

/// A mapping of a file, or what is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    pub(super) id: u64,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Byte of the file at `start`.
    pub(super) offset: u64,
    /// The question about its file.
    pub(super) ask: u32,
    /// The keeper's descriptor of the file.
    pub(super) file: Option<i32>,
}

/// Parts of mappings that were cut out.
#[derive(Debug, Default)]
pub struct Cut(Vec<Map>);

/// What lies at an address, from there on.
#[derive(Clone, Copy, Debug)]
pub struct Moving(Map);

/// The keeper is asked to open the file that a thread has at a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) ticket: u32,
    pub(super) tid: u32,
    pub(super) fd: i32,
    pub(super) file: FileId,
}

/// A new mapping of a file.
#[derive(Clone, Copy, Debug)]
pub struct NewMap {
    /// Its first address.
    pub start: usize,
    /// Bytes, whole pages.
    pub bytes: usize,
    /// Byte of the file there.
    pub offset: u64,
    /// The calling thread's descriptor.
    pub fd: i32,
    /// What it names.
    pub file: FileId,
}

impl Known {
    /// Adds a mapping, with the question about its file and the answer.
    pub(super) fn add(&mut self, start: usize, end: usize, offset: u64, (ask, file): (u32, Option<i32>)) {
        self.ids += 1;
        self.maps.push(Map { id: self.ids, start, end, offset, ask, file });
        self.changes += 1;
    }

    /// What lies at an address, from there on.
    pub(super) fn at(&self, addr: usize) -> Option<Moving> {
        let m = self.maps.iter().find(|m| m.start <= addr && addr < m.end)?;
        Some(Moving(Map { start: addr, offset: m.offset + (addr - m.start) as u64, ..*m }))
    }

    /// The keeper's descriptor of a file that something is left of. (It closes the others.)
    fn file_of(&self, ask: u32) -> Option<i32> {
        self.maps.iter().find(|m| m.ask == ask)?.file
    }

    /// What lay in a range lies in another, where nothing else does any more. The kernel has done so before:
    /// other files may have come to lie in the old place, and they stay.
    pub(super) fn moved(&mut self, what: Option<Moving>, from: Option<(usize, usize)>, to: (usize, usize)) {
        let file = what.and_then(|Moving(m)| self.file_of(m.ask));
        if let (Some(Moving(m)), Some((start, end))) = (what, from) {
            self.cut(start, end, Some(m.ask));
        }
        self.cut(to.0, to.1, None);
        if let Some(Moving(m)) = what {
            self.add(to.0, to.1, m.offset, (m.ask, file));
        }
    }

    /// Puts back what was cut out.
    pub(super) fn put_back(&mut self, cut: Cut) {
        for m in cut.0 {
            self.add(m.start, m.end, m.offset, (m.ask, self.file_of(m.ask)));
        }
    }

    /// Takes a range out of all mappings, or out of those alone whose file was asked for so.
    pub(super) fn cut(&mut self, start: usize, end: usize, ask: Option<u32>) -> Cut {
        let (mut at, mut cut) = (0, Cut::default());
        while let Some(m) = self.maps.get(at).copied() {
            if m.end <= start || end <= m.start || ask.is_some_and(|ask| ask != m.ask) {
                at += 1;
                continue;
            }
            self.maps.swap_remove(at);
            self.changes += 1;
            let first = m.start.max(start);
            let offset = m.offset + (first - m.start) as u64;
            cut.0.push(Map { start: first, end: m.end.min(end), offset, ..m });
            // The parts lie outside of the range: they are passed over when their turn comes.
            let whose = (m.ask, m.file);
            if m.start < start {
                self.add(m.start, start, m.offset, whose);
            }
            if end < m.end {
                self.add(end, m.end, m.offset + (end - m.start) as u64, whose);
            }
        }
        cut
    }
}

impl Cut {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Files {
    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        // Panics end the process, so a poisoned lock is never seen.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether mappings are known.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether there can be no keeper, or no more.
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Acquire)
    }

    /// Whether the kernel lacks what the keeper needs.
    pub fn is_impossible(&self) -> bool {
        self.is_off() && !self.worked.load(Ordering::Acquire)
    }

    /// Has the keeper look, or leave.
    pub fn call(&self) {
        self.kick.store(1, Ordering::Release);
        // One that is on its way out must not take the call for the other.
        thread::futex_wake(&self.kick, i32::MAX as u32);
    }

    pub(super) fn change<R>(&self, f: impl FnOnce(&mut Known) -> R) -> R {
        let mut known = self.known();
        let before = known.changes;
        let r = f(&mut known);
        if known.changes != before {
            self.uses.follow(known.maps.iter().map(|map| (map.start, map.end)));
        }
        self.count.store(known.maps.len(), Ordering::Release);
        r
    }

    /// The keeper's table of descriptors is gone with it; whoever waits for its answer goes on without.
    pub fn forget_descriptors(&self) {
        self.change(|known| {
            self.gone.fetch_add(1, Ordering::Relaxed);
            known.maps.iter_mut().for_each(|m| m.file = None);
            known.asks.clear();
            known.changes += 1;
            self.answered.store(known.asked, Ordering::Release);
        });
        thread::futex_wake(&self.answered, i32::MAX as u32);
    }

    /// Keepers that are gone: the number of the next one. It changes under the lock.
    pub(super) fn keepers_gone(&self) -> u32 {
        self.gone.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(known: &Known) -> Vec<(usize, usize, u64)> {
        let mut parts: Vec<_> = known.maps.iter().map(|m| (m.start, m.end, m.offset)).collect();
        parts.sort_unstable();
        parts
    }

    #[test]
    fn what_is_cut_out_of_mappings_leaves_the_rest_with_its_place_in_the_file() {
        let mut known = Known::default();
        known.add(100, 200, 1000, (1, None));
        known.add(300, 400, 0, (2, Some(7)));
        assert!(known.at(120).is_some_and(|Moving(m)| (m.start, m.end, m.offset) == (120, 200, 1020)));
        known.cut(120, 150, None);
        assert_eq!(parts(&known), [(100, 120, 1000), (150, 200, 1050), (300, 400, 0)]);
        assert!(known.at(120).is_none() && known.at(299).is_none());
        assert!(known.cut(200, 300, None).is_empty());
        known.cut(160, 350, None);
        assert_eq!(parts(&known), [(100, 120, 1000), (150, 160, 1050), (350, 400, 50)]);
        assert!(known.maps.iter().any(|m| m.start == 350 && m.file == Some(7)));
        known.cut(0, usize::MAX, None);
        assert!(known.maps.is_empty());
    }

    #[test]
    fn what_is_moved_leaves_alone_what_has_come_to_lie_in_its_old_place() {
        let mut known = Known::default();
        known.add(100, 200, 1000, (1, Some(7)));
        known.add(500, 600, 9000, (3, Some(9)));
        let what = known.at(120);
        // The kernel has moved it, and given its place away.
        known.add(120, 150, 5000, (2, Some(8)));
        known.moved(what, Some((120, 150)), (500, 550));
        assert_eq!(
            parts(&known),
            [(100, 120, 1000), (120, 150, 5000), (150, 200, 1050), (500, 550, 1020), (550, 600, 9050)]
        );
        let files = |at| known.at(at).map(|Moving(m)| (m.ask, m.file));
        assert_eq!([files(120), files(500)], [Some((2, Some(8))), Some((1, Some(7)))]);
    }

    #[test]
    fn what_the_kernel_would_not_unmap_is_put_back() {
        let mut known = Known::default();
        known.add(100, 200, 1000, (1, Some(7)));
        known.add(200, 300, 0, (2, Some(8)));
        let cut = known.cut(150, 300, None);
        known.put_back(cut);
        assert_eq!(parts(&known), [(100, 150, 1000), (150, 200, 1050), (200, 300, 0)]);
        let file = |at| known.at(at).and_then(|Moving(m)| m.file);
        // The keeper may have closed what nothing was left of.
        assert_eq!([file(150), file(200)], [Some(7), None]);
    }

    #[test]
    fn nobody_waits_for_a_keeper_that_is_gone() {
        let files = Files::default();
        files.change(|known| known.asked = 5);
        files.forget_descriptors();
        assert_eq!((files.answered.load(Ordering::Relaxed), files.keepers_gone()), (5, 1));
    }
}
