//! fork: the engine comes along by copy-on-write.
//!
//! Before: the gate closes, so no word, lock or move is half done. After, in the parent: it opens.
//! In the child: tables and pool are there as copied; the child gets a userfaultfd of its own,
//! registers everything, and starts its own threads. Frames are shared until one side writes;
//! the pager ends the sharing of a page before it moves it.
//!
//! Between the fork and the registration a missing page would read as zeros in the child, so
//! whatever libc touches in between must be resident: see the shim's `fork.rs`.

use super::say::fatal;
use super::{Engine, each_block};
use crate::page::region::{AtFork, Kind, Region};
use crate::page::{PageId, SwapSlot};
use crate::reclaim::discard::{Depth, discard};
use crate::sync::Ordering;
use weir_os::mem::PAGE_BYTES;
use weir_os::pager::KernelPager;

impl Engine<KernelPager> {
    /// Everybody out. The caller must not touch managed memory until `fork_done`.
    pub fn fork_prepare(&self) {
        self.gate.close();
        self.inline.closer.store(weir_os::thread::id(), Ordering::Relaxed);
    }

    /// The fork comes now, the gate is closed: the child will hold every record in the swap file that the
    /// words name.
    pub fn fork_share_swap(&self) {
        let Some(swapping) = &self.core.copies.swapping else { return };
        let mut n = 0;
        self.each_slot(|slot| {
            swapping.tier.retain(slot);
            n += 1;
        });
        swapping.retained.store(n, Ordering::Relaxed);
    }

    /// The fork failed: takes back what was held for the child, if nobody else takes part (else it counts as
    /// leaked until then). The gate is open.
    pub fn fork_failed(&self) {
        let Some(swapping) = &self.core.copies.swapping else { return };
        let _signals = super::Blocked(weir_os::thread::block_signals());
        self.gate.close();
        swapping.empty_caches();
        let _ = swapping.tier.reclaim_leaked(|mine| self.each_slot(mine));
        self.gate.open();
    }

    /// Before the process ends in good order: relatives that share the swap file learn that it is gone.
    /// Nobody is inside meanwhile, so no cluster changes hands under a write.
    pub fn depart(&self) {
        let Some(swapping) =
            self.core.copies.swapping.as_ref().filter(|s| self.mark.is_set() && !s.tier.alone())
        else {
            return;
        };
        let _signals = super::Blocked(weir_os::thread::block_signals());
        self.gate.close();
        swapping.tier.depart();
        self.gate.open();
    }

    fn each_slot(&self, mut f: impl FnMut(SwapSlot)) {
        let ranges: Vec<(u32, u32)> = self
            .regions()
            .map
            .iter()
            .filter(|r| r.kind != Kind::Foreign && !r.bare)
            .map(|r| (r.start, r.end()))
            .collect();
        let table = &self.core.table;
        for (start, end) in ranges {
            each_block(start, end, |block, mask| {
                let mask = if table.is_touched(block) { mask } else { 0 };
                for page in (0..64).filter(|i| mask >> i & 1 == 1).map(|i| block.page(i)) {
                    if let Some(slot) = table.slot_of(page, table.word(page).load()) {
                        f(slot);
                    }
                }
            });
        }
    }

    /// In the parent, or when the fork failed.
    pub fn fork_done(&self) {
        self.leave_records_alone();
        self.inline.closer.store(0, Ordering::Relaxed);
        self.gate.open();
    }

    /// In the child: takes the engine over. The caller starts the threads afterwards.
    pub fn fork_child(&self) {
        self.mark.set();
        let foreign: Vec<(PageId, PageId)> = {
            let regions = self.regions();
            let foreign = regions.map.iter().filter(|r| r.kind == Kind::Foreign);
            foreign.map(|r| (PageId(r.start), PageId(r.end()))).collect()
        };
        if let Err(e) = self.core.pager.reopen_in_child(&foreign) {
            let what = if self.core.pager.is_guarded() { "/proc/self/mem" } else { "userfaultfd" };
            fatal(format_args!(
                "a forked child cannot open {what} ({e}), without which its memory is lost: it ends here"
            ));
        }
        if let Some(swapping) = &self.core.copies.swapping {
            swapping.tier.device().renew_in_child();
            swapping.forget_parent();
            swapping.tier.after_fork_in_child(swapping.retained.load(Ordering::Relaxed));
        }
        // Free frames are shared with the parent; writing to them would copy garbage.
        self.core.room.frames.shed_all_free(&self.core.pager);
        self.core.room.kick.store(0, Ordering::Relaxed);
        self.leave_records_alone();
        self.outside.forked();
        self.fork_tree();
        self.core.stats.forget_waits();
        self.forget_crawl();
        self.files.forget_descriptors();
        // Where no keeper starts here, nobody counts what the child has of its parent's files.
        self.core.note_files(0, false);
        self.serving.iter().for_each(|s| s.page.store(0, Ordering::Relaxed));
        self.inline.forked();
        #[cfg(target_arch = "x86_64")]
        self.inline.forget_calls(&self.core, weir_os::thread::id());
        self.gate.open();
        self.wipe_in_child();
    }

    /// Marking records would copy the pages that they lie in, in both processes.
    fn leave_records_alone(&self) {
        if let Ok(mut walk) = self.core.cold_walk.try_lock() {
            walk.forked(weir_os::thread::now_ns());
        }
    }

    /// `MADV_WIPEONFORK` and `MADV_DONTFORK`: the child reads zeros, or has nothing there.
    fn wipe_in_child(&self) {
        let _inside = self.gate.enter();
        let mut regions = self.regions();
        // As the kernel has it: locks do not come along.
        let locked: Vec<Region> = regions.map.iter().filter(|r| r.locked).copied().collect();
        for r in locked {
            regions.map.remove(r.start);
            regions.map.insert(Region { locked: false, ..r });
            self.munlock_pages(r.start, r.end());
        }
        // Where nothing was opened there is nothing to wipe.
        let is_special = |r: &&Region| r.fork == AtFork::Drop || r.fork == AtFork::Wipe && !r.bare;
        let special: Vec<Region> = regions.map.iter().filter(is_special).copied().collect();
        for r in special {
            let result = if r.fork == AtFork::Drop {
                self.unmap_inside(&mut regions, self.addr_of(r.start), r.pages as usize * PAGE_BYTES)
            } else {
                each_block(r.start, r.end(), |block, mask| {
                    discard(&self.core, block, mask, Depth::All);
                });
                Ok(())
            };
            if let Err(e) = result {
                fatal(format_args!("a forked child cannot drop memory it must not have: {e}"));
            }
        }
    }
}
