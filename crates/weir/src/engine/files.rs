//! Mapped files: what the program has mapped of them. The hooks tell; the *keeper*, a thread with a table of
//! descriptors of its own, looks at their pages and has some leave RAM (`files/keeper.rs`).
//!
//! No lock is held while the keeper acts on an address: what is done there is harmless whatever lies there by
//! then, see `weir_os::files`.

mod keeper;
pub mod known;
mod uses;

use super::Engine;
use crate::door::Pager;
use crate::limits::FILE_MAPS_MAX;
use crate::stats;
use core::sync::atomic::Ordering;
use known::{Ask, Cut, Moving, NewMap};
use weir_os::thread;

/// A program's thread that maps a file waits for the keeper: so long at a time, and so many times.
const ANSWER_NS: u64 = 10_000_000;
const ANSWER_TRIES: u32 = 100;

impl<P: Pager> Engine<P> {
    /// The program has mapped a file. Returns once the keeper has opened it: the program may close its
    /// descriptor.
    pub fn file_mapped(&self, new: NewMap) {
        let ask = {
            let _inside = self.inside();
            self.files.change(|known| {
                if known.maps.len() >= FILE_MAPS_MAX {
                    return None;
                }
                known.asked = known.asked.wrapping_add(1);
                let ticket = known.asked;
                known.add(new.start, new.start + new.bytes, new.offset, (ticket, None));
                known.asks.push(Ask { ticket, tid: thread::gettid(), fd: new.fd, file: new.file });
                Some(ticket)
            })
        };
        let Some(ticket) = ask else { return };
        self.files.call();
        for _ in 0..ANSWER_TRIES {
            let answered = self.files.answered.load(Ordering::Acquire);
            if answered.wrapping_sub(ticket) < u32::MAX / 2 || self.files.is_off() {
                return;
            }
            let _ = thread::futex_wait(&self.files.answered, answered, Some(ANSWER_NS));
        }
    }

    /// A system call is about to be made that names these bytes: if a mapped file's are among them, they are
    /// read ahead and count as used. Signals may come.
    #[inline]
    pub fn file_used(&self, addr: usize, bytes: usize) {
        if self.files.any() && self.files.uses.announced(addr, bytes) {
            stats::add(&self.core.stats.files_announced, 1);
        }
    }

    /// The keeper has ended, and its table of descriptors with it.
    pub fn keeper_gone(&self) {
        let _inside = self.inside();
        self.files.forget_descriptors();
        // What nobody counts takes nothing from memory. The next one counts at once.
        self.core.note_files(0, false);
    }

    /// Nothing of a file lies in a range any more, or will soon.
    pub fn file_unmapped(&self, start: usize, bytes: usize) -> Cut {
        if !self.files.any() {
            return Cut::default();
        }
        let cut = {
            let _inside = self.inside();
            self.files.change(|known| known.cut(start, start.saturating_add(bytes), None))
        };
        if !cut.is_empty() {
            self.files.call(); // it closes the file
        }
        cut
    }

    /// It lies there still: the kernel has refused.
    pub fn file_stays(&self, cut: Cut) {
        if !cut.is_empty() {
            let _inside = self.inside();
            self.files.change(|known| known.put_back(cut));
        }
    }

    /// What is about to be moved from an address.
    pub fn file_at(&self, addr: usize) -> Option<Moving> {
        if !self.files.any() {
            return None;
        }
        let _inside = self.inside();
        self.files.known().at(addr)
    }

    /// What lay in a range lies elsewhere now, longer or shorter; with `keep` in both places.
    pub fn file_moved(&self, what: Option<Moving>, from: (usize, usize), to: (usize, usize), keep: bool) {
        if what.is_none() && !self.files.any() {
            return;
        }
        let _inside = self.inside();
        self.files.change(|known| {
            let end = to.0 + to.1;
            known.moved(what, (!keep).then_some((from.0, from.0 + from.1)), (to.0, end));
            if self.touches(to.0, to.1) {
                known.cut(to.0, end, None); // what lies in the space is left alone
            }
        });
    }
}
