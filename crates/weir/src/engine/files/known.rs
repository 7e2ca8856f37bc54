//! What the hooks and the keeper share: the mappings of files that are known, and questions about them.

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
    pub(super) fn at(&self, addr: usize) -> Option<Map> {
        let m = self.maps.iter().find(|m| m.start <= addr && addr < m.end)?;
        Some(Map { start: addr, offset: m.offset + (addr - m.start) as u64, ..*m })
    }

    /// Takes a range out of all mappings.
    pub(super) fn cut(&mut self, start: usize, end: usize) {
        let mut at = 0;
        while let Some(m) = self.maps.get(at).copied() {
            if m.end <= start || end <= m.start {
                at += 1;
                continue;
            }
            self.maps.swap_remove(at);
            self.changes += 1;
            // The parts lie outside of the range: they are passed over when their turn comes.
            let whose = (m.ask, m.file);
            if m.start < start {
                self.add(m.start, start, m.offset, whose);
            }
            if end < m.end {
                self.add(end, m.end, m.offset + (end - m.start) as u64, whose);
            }
        }
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
        thread::futex_wake(&self.kick, 1);
    }

    pub(super) fn change<R>(&self, f: impl FnOnce(&mut Known) -> R) -> R {
        let mut known = self.known();
        let r = f(&mut known);
        self.count.store(known.maps.len(), Ordering::Release);
        r
    }

    /// The keeper's table of descriptors is gone with it.
    pub fn forget_descriptors(&self) {
        self.change(|known| {
            known.maps.iter_mut().for_each(|m| m.file = None);
            known.asks.clear();
            known.changes += 1;
        });
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
        assert!(known.at(120).is_some_and(|m| (m.start, m.end, m.offset) == (120, 200, 1020)));
        known.cut(120, 150);
        assert_eq!(parts(&known), [(100, 120, 1000), (150, 200, 1050), (300, 400, 0)]);
        assert!(known.at(120).is_none() && known.at(299).is_none());
        known.cut(200, 300);
        known.cut(160, 350);
        assert_eq!(parts(&known), [(100, 120, 1000), (150, 160, 1050), (350, 400, 50)]);
        assert!(known.maps.iter().any(|m| m.start == 350 && m.file == Some(7)));
        known.cut(0, usize::MAX);
        assert!(known.maps.is_empty());
    }
}
