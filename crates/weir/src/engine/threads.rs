//! What the engine's threads do: `weir-fault` serves faults (thread mode), `weir-reclaim` reclaims in the
//! background; and what they have in common with a thread that resolves its own fault. They block every
//! signal, allocate nothing, and leave the gate between rounds so that a fork need not wait long.
//! (`weir-ahead` is in `inline`, the keeper in `files`.)

use super::Engine;
use super::desk::Serving;
use super::inline::fetch_steps;
use super::say::fatal_with_last_words;
pub use super::say::{fatal, say, set_last_words};
use crate::config::Policy;
use crate::door::Pager;
use crate::fault::Request;
use crate::fault::load::Load;
use crate::fault::{self, Ahead, Outcome};
use crate::limits::{FAULT_STALL_MS, FRUITLESS_MS_MAX, FRUITLESS_PAUSE_NS};
use crate::page::PageId;
use crate::page::id::BLOCK_PAGES;
use crate::page::state::State;
use crate::reclaim::batch::Batch;
use crate::reclaim::compress::Workbench;
use crate::reclaim::{self, Effort, compact::compact, pool_size, recompress, relief, through, tidy};
use crate::shared::Core;
use crate::stats;
use crate::sync::Ordering;
use core::sync::atomic::AtomicU32;
use weir_os::pager::KernelPager;
use weir_os::thread;
use weir_os::uffd::FaultMessage;

/// Messages read at once.
const INTAKE: usize = 32;
/// How long the background thread sleeps when nobody wakes it.
const IDLE_NS: u64 = 50_000_000;
/// Stretches of recompression between other chores, with their rests.
const RECOMPRESS_NS: u64 = IDLE_NS / 2;
/// Longest stretch of compaction between other chores, and how many times as long it rests afterwards.
const COMPACT_NS_MAX: u64 = 1_000_000;
const COMPACT_REST: u64 = 19;
/// Batches that the background thread writes in one turn because the pool's share fell.
const SHRINK_BATCHES: u32 = 4;
/// The same as [`COMPACT_REST`] while the pool is to give windows back.
const SHRINK_REST: u64 = 4;
/// A fault that finds no frame for so long lets the pool have all that it may ever have.
const POOL_NEEDED_MS: u64 = FRUITLESS_MS_MAX / 6;
/// Time between two calls that give blocks of the swap file back to the file system.
const TRIM_NS: u64 = 1_000_000_000;
/// Batches written through in one turn of the background thread.
const THROUGH_BATCHES: u32 = 16;
/// Frames freed by one background round.
const BACKGROUND_ROUND: u32 = 64;
/// Frames freed by a fault for itself: for single pages a few, for streams more than a block,
/// which they take.
const DIRECT_ROUND: u32 = 16;
const DIRECT_ROUND_STREAM: u32 = 2 * BLOCK_PAGES;

const NO_FAULT: FaultMessage = FaultMessage { address: 0, write_protect: false, tid: 0 };

impl Engine<KernelPager> {
    /// Serves faults until it is told to leave by a value other than 0.
    pub fn serve_faults(&self, workbench: &mut Workbench, leave: &AtomicU32) {
        let mut messages = [NO_FAULT; INTAKE];
        while leave.load(Ordering::Acquire) == 0 {
            // Nobody can wake it from this wait but a fault.
            if let Err(e) = self.core.pager.wait((IDLE_NS / 1_000_000) as i32) {
                self.check_descriptors();
                fatal(format_args!("cannot wait for page faults: {e}"));
            }
            loop {
                // Out of the gate after every reading: a fork may be waiting.
                let _inside = self.gate.enter();
                let n = self.intake(&mut messages);
                if n == 0 {
                    break;
                }
                let mut ahead = None;
                for m in &messages[..n] {
                    ahead = self.serve(workbench, m).or(ahead);
                }
                if let Some(a) = ahead {
                    self.run_ahead(workbench, a, &mut messages);
                }
            }
        }
    }

    /// Reads waiting messages, sorted by address; a second one for a page is found resolved.
    fn intake(&self, messages: &mut [FaultMessage; INTAKE]) -> usize {
        let n = match self.core.pager.read(messages) {
            Ok(n) => n,
            Err(e) => {
                self.check_descriptors();
                fatal(format_args!("cannot read page faults: {e}"))
            }
        };
        messages[..n].sort_unstable_by_key(|m| m.address);
        n
    }

    fn serve(&self, workbench: &mut Workbench, m: &FaultMessage) -> Option<Ahead> {
        let start = thread::now_ns();
        self.core.stats.faults().add(1);
        if !self.contains(m.address) {
            fatal(format_args!("a page fault at {:#x}, outside the managed space: engine bug", m.address));
        }
        let page = PageId(self.page_of(m.address));
        let short = !self.core.room.is_plentiful();
        self.begin_serving(0, page, start);
        let settled = self.resolve_or_reclaim(workbench, page, m.tid, None);
        let ahead = settled.ahead.and_then(|a| fault::first_touches(&self.core, a));
        self.end_serving(0);
        self.core.stats.record_fault(thread::now_ns() - start, short);
        ahead
    }

    pub(super) fn begin_serving(&self, desk: usize, page: PageId, now_ns: u64) {
        self.serving[desk].since_ns.store(now_ns, Ordering::Relaxed);
        self.serving[desk].page.store(page.0 + 1, Ordering::Relaxed);
    }

    pub(super) fn end_serving(&self, desk: usize) {
        self.serving[desk].page.store(0, Ordering::Relaxed);
    }

    /// Resolves a fault, reclaiming a little where no frame is free.
    pub(super) fn resolve_or_reclaim(
        &self,
        workbench: &mut Workbench,
        page: PageId,
        tid: u32,
        load: Option<Load>,
    ) -> Settled {
        let mut request = Request::of(load);
        let mut patience = Patience::default();
        loop {
            match fault::resolve_load(&self.core, &self.strides, page, tid, &mut request) {
                Outcome::Loaded(value, ahead) => {
                    return Settled { ahead, foreign: false, loaded: Some(value) };
                }
                Outcome::Installed(ahead) => return Settled { ahead, ..Settled::default() },
                Outcome::Stale => return Settled::default(),
                Outcome::Foreign => {
                    // Being unmapped right now: the thread tries again and gets its SIGSEGV.
                    Pager::wake(&self.core.pager, page, 1);
                    return Settled { foreign: true, ..Settled::default() };
                }
                Outcome::Lost => {
                    self.report_lost(page);
                    return Settled::default();
                }
                Outcome::NoFrames if request.wants_room_for_block() => {
                    let _ = self.direct_reclaim(workbench);
                }
                Outcome::NoFrames => self.make_room_or_die(workbench, &mut patience),
            }
        }
    }

    /// After a try that found no frame: frees some, or ends the process when nobody can any more.
    pub(super) fn make_room_or_die(&self, workbench: &mut Workbench, patience: &mut Patience) {
        if self.direct_reclaim(workbench) {
            return;
        }
        // Not at the first try: somebody else may have all that can leave in his batch.
        let pool = || relief::frames_from_pool(&self.core) > 0;
        if !(patience.has_begun() && pool()) && patience.is_over(&self.core) {
            self.fatal_full();
        }
    }

    /// Frees a small round of frames in the faulting path. True if it freed anything.
    fn direct_reclaim(&self, workbench: &mut Workbench) -> bool {
        let start = thread::now_ns();
        stats::add(&self.core.stats.direct_reclaims, 1);
        let before = self.core.room.available();
        // Room there is, but not as frames: a run needs some.
        let grown = self.core.room.frames.free() < BLOCK_PAGES
            && self.core.room.frames.grow(&self.core.pager).unwrap_or(0) > 0;
        let dropped = grown || self.drop_oldest_cached();
        let round = if dropped {
            reclaim::Reclaimed::default()
        } else {
            let singles = self.core.room.demand.wants_credit();
            let part = (self.core.room.frames_outside_pool() / 8).max(DIRECT_ROUND);
            let want = if singles { DIRECT_ROUND } else { DIRECT_ROUND_STREAM.min(part) };
            reclaim::run_once(&self.core, workbench, want, Effort::Direct)
        };
        stats::add(&self.core.stats.direct_reclaim_ns, thread::now_ns() - start);
        dropped || round.freed > 0 || self.core.room.available() > before
    }

    /// Fetches what a stream will want next, unless somebody faults meanwhile.
    fn run_ahead(&self, workbench: &mut Workbench, a: Ahead, messages: &mut [FaultMessage; INTAKE]) {
        for i in 0..fetch_steps(a) {
            let n = self.intake(messages);
            if n > 0 {
                for m in &messages[..n] {
                    let _ = self.serve(workbench, m);
                }
            }
            if !self.fetch_step(a, i) {
                return;
            }
        }
    }

    pub(super) fn report_lost(&self, page: PageId) {
        let address = self.addr_of(page.0);
        let word = self.core.table.word(page).load();
        let slot = self.core.table.slot_of(page, word).filter(|_| word.state() == State::Swapped);
        match (slot, &self.core.copies.swapping) {
            (Some(slot), Some(swapping)) => say(format_args!(
                "the page at {address:#x} (number {}) cannot be read back from the swap file at offset {}: {}; \
                 the access gets SIGBUS",
                page.0,
                swapping.tier.offset_of(slot).unwrap_or(0),
                fault::loss(&self.core.copies),
            )),
            _ => say(format_args!(
                "the compressed record of the page at {address:#x} is damaged; the access gets SIGBUS"
            )),
        }
        if Pager::poison(&self.core.pager, page).pages == 0 {
            fatal(format_args!("and this kernel cannot make it so: the program ends"));
        }
        Pager::wake(&self.core.pager, page, 1);
    }

    /// Everything is full and a page must come in: end the process, saying what was full.
    fn fatal_full(&self) -> ! {
        let (c, mib) = (&self.core, |pages: u64| pages * 4 / 1024);
        let pool = u64::from(c.room.pool.owned()) * 64;
        fatal_with_last_words(format_args!(
            "budget and pool are full: {} MiB of frames and {} MiB of pool (share {} %) hold {} MiB of data, \
             {} pages did not compress, {} are locked; {}. Give more with --memory{}",
            mib(u64::from(c.room.frames.existing()) - pool),
            mib(pool),
            u64::from(c.room.pool.limit()) * 6400 / u64::from(c.room.frames.limit().max(1)),
            mib(c.census.managed()),
            c.stats.out_stuck.load(Ordering::Relaxed),
            c.census.mlocked.load(Ordering::Relaxed),
            match &c.copies.swapping {
                None => "no swap file is configured",
                Some(s) if s.tier.is_latched().is_some() =>
                    "the swap file takes no more since a write failed",
                Some(s) if s.is_full() => "the swap file is full",
                Some(_) => "the swap file has room, but nothing can leave",
            },
            if c.copies.swapping.as_ref().is_some_and(|s| !s.is_full()) { "" } else { " or --swap" },
        ))
    }

    /// Wakes the threads that wait for work, so that they look whether they are to leave.
    pub fn call_threads(&self) {
        self.core.room.kick.store(1, Ordering::Release);
        thread::futex_wake(&self.core.room.kick, 1);
        self.inline.call_thread();
        self.files.call();
    }

    /// Reclaims in the background until it is told to leave by a value other than 0.
    pub fn reclaim_in_background(&self, workbench: &mut Workbench, leave: &AtomicU32) {
        while leave.load(Ordering::Acquire) == 0 {
            self.wait_for_work();
            let kicked = self.core.room.kick.swap(0, Ordering::AcqRel) != 0;
            let mut freed = 0;
            loop {
                self.look_outside_if_due();
                let _inside = self.gate.enter();
                // Otherwise the last of many rounds would give back what all of them freed.
                self.core.room.shed_excess(&self.core.pager);
                if self.core.room.balance(&self.core.pager, &self.core.stats) > 0 {
                    continue;
                }
                // The rest of the budget is populated when it is needed.
                let available = self.core.room.available();
                let enough = if self.core.room.demand.crowded() {
                    self.core.room.crowded_mark()
                } else if freed == 0 && !kicked {
                    self.core.room.low_mark()
                } else {
                    self.core.room.high_mark()
                };
                if available >= enough {
                    break;
                }
                if self.drop_oldest_cached() {
                    continue;
                }
                let round = reclaim::run_once(&self.core, workbench, BACKGROUND_ROUND, Effort::Background);
                freed += round.freed;
                // Also while it is never done.
                pool_size::choose(&self.core, thread::now_ns());
                if self.core.room.pool.is_over() {
                    self.tidy_up_pool();
                }
                if round.freed == 0 {
                    break;
                }
            }
            let idle = freed == 0 && !kicked;
            self.write_through(idle);
            self.shrink_pool();
            self.housekeeping(idle);
            self.recompress();
        }
    }

    /// Sleeps until there is work, or other chores are due; meanwhile it measures the memory outside.
    fn wait_for_work(&self) {
        let end = thread::now_ns() + IDLE_NS;
        while self.core.room.kick.load(Ordering::Acquire) == 0 {
            let now = thread::now_ns();
            if now >= end {
                return;
            }
            let _ = thread::futex_wait(&self.core.room.kick, 0, Some(self.until_next_look(end - now)));
            self.look_outside_if_due();
        }
    }

    /// Cold pool pages get smaller while nobody wants frames.
    fn recompress(&self) {
        let end = thread::now_ns() + RECOMPRESS_NS;
        while self.core.room.kick.load(Ordering::Relaxed) == 0 {
            self.look_outside_if_due();
            let due = {
                // Out of the gate after every stretch: a fork may be waiting.
                let _inside = self.gate.enter();
                recompress::work(&self.core, thread::now_ns())
            };
            match due {
                Some(due) if due < end => {
                    let rest = due.saturating_sub(thread::now_ns()).max(1);
                    let _ = thread::futex_wait(&self.core.room.kick, 0, Some(self.until_next_look(rest)));
                }
                _ => return,
            }
        }
    }

    /// Pool pages go to the swap file ahead of their eviction. With the adaptive policy, only while nobody
    /// needs frames.
    fn write_through(&self, idle: bool) {
        let Some(swapping) = &self.core.copies.swapping else { return };
        for _ in 0..THROUGH_BATCHES {
            let wanted = self.core.room.kick.load(Ordering::Relaxed) != 0;
            if wanted && swapping.policy == Policy::Adaptive {
                return;
            }
            self.look_outside_if_due();
            // Out of the gate after every batch: a fork may be waiting.
            let _inside = self.gate.enter();
            if !through::write_through(&self.core, idle) {
                return;
            }
        }
    }

    fn housekeeping(&self, idle: bool) {
        if let Some(chore) = self.inline.chore.get() {
            chore(); // not inside: it may enter the gate itself
        }
        let _inside = self.gate.enter();
        self.check_descriptors();
        #[cfg(target_arch = "x86_64")]
        self.end_calls();
        self.core.room.frames.shed_excess(&self.core.pager);
        if idle && self.core.room.pool.owned() > 0 {
            compact(&self.core);
        }
        self.tidy_up_pool();
        self.tidy_up_swap();
        through::choose(&self.core, thread::now_ns());
        pool_size::choose(&self.core, thread::now_ns());
        self.core.publish();
        self.watch();
        self.warn_if_crawling();
    }

    /// Ends the process once the program has closed the userfaultfd by a system call of its own: what is not
    /// in frames would read as zeros. Looked at now and then: until then it does.
    pub fn check_descriptors(&self) {
        if !self.core.pager.is_watching() {
            fatal(format_args!(
                "the program has closed a descriptor of Weir's (the userfaultfd) by a system call past libc: memory that is not \
                 in RAM would read as zeros, so it ends here"
            ));
        }
    }

    /// A pool whose share fell writes its coldest pages, while nobody needs frames.
    fn shrink_pool(&self) {
        for _ in 0..SHRINK_BATCHES {
            if !self.core.room.pool.is_over() || self.core.room.kick.load(Ordering::Relaxed) != 0 {
                return;
            }
            self.look_outside_if_due();
            // Out of the gate after every batch: a fork may be waiting.
            let _inside = self.gate.enter();
            relief::relieve_pool(&self.core, &mut Batch::new(&self.core));
        }
    }

    /// Moves records together while much of the pool is empty, for a small share of the time.
    fn tidy_up_pool(&self) {
        let start = thread::now_ns();
        if !self.core.room.pool.is_sparse() || start < self.compact_after_ns.load(Ordering::Relaxed) {
            return;
        }
        let mut now = start;
        while now - start < COMPACT_NS_MAX && compact(&self.core) > 0 && self.core.room.pool.is_sparse() {
            now = thread::now_ns();
        }
        let rest = if self.core.room.pool.is_over() { SHRINK_REST } else { COMPACT_REST };
        self.compact_after_ns.store(now + (now - start) * rest, Ordering::Relaxed);
    }

    /// Room in the swap file; and what is to be said about it.
    fn tidy_up_swap(&self) {
        let Some(swapping) = &self.core.copies.swapping else { return };
        let (now, due) = (thread::now_ns(), self.trim_after_ns.load(Ordering::Relaxed));
        if now >= due {
            self.trim_after_ns.store(now + TRIM_NS, Ordering::Relaxed);
        }
        tidy::housekeeping(&self.core, now >= due);
        if let Some(e) = swapping.broken_news() {
            say(format_args!(
                "writing to the swap file failed ({e}): what is in it stays readable, nothing more goes there"
            ));
        }
    }

    /// The watchdog: a fault that waits too long is reported once, with what is known.
    fn watch(&self) {
        for serving in &self.serving {
            self.watch_one(serving);
        }
    }

    fn watch_one(&self, serving: &Serving) {
        let page = serving.page.load(Ordering::Relaxed);
        let waited = thread::now_ns().saturating_sub(serving.since_ns.load(Ordering::Relaxed)) / 1_000_000;
        if page == 0 || waited < FAULT_STALL_MS || self.stall_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let page = PageId(page - 1);
        say(format_args!(
            "a page fault at {:#x} has waited {waited} ms ({:?}, {} frames free, {} staged)",
            self.addr_of(page.0),
            self.core.table.word(page).load().state(),
            self.core.room.frames.free(),
            self.core.staged.pages(),
        ));
    }
}

/// How a fault was settled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settled {
    /// What to fetch next.
    pub ahead: Option<Ahead>,
    /// Nobody has mapped the page through Weir.
    pub foreign: bool,
    /// What the page holds where the instruction loads from.
    pub loaded: Option<u64>,
}

/// How long a fault without a frame has seen no progress by anybody.
#[derive(Debug, Default)]
pub(super) struct Patience {
    progress: u64,
    since_ns: u64,
}

impl Patience {
    /// Whether there was a fruitless try.
    fn has_begun(&self) -> bool {
        self.since_ns != 0
    }

    /// After a fruitless try: pauses, and says whether to give up.
    fn is_over<P: Pager>(&mut self, core: &Core<P>) -> bool {
        let (progress, now) = (core.room.progress.load(Ordering::Relaxed), thread::now_ns());
        if self.since_ns == 0 || progress != self.progress {
            *self = Patience { progress, since_ns: now };
        }
        core.room.kick_if_low();
        // Nobody wakes this word: it is a pause that needs no libc.
        let pause = AtomicU32::new(0);
        let _ = thread::futex_wait(&pause, 0, Some(FRUITLESS_PAUSE_NS));
        let waited = now - self.since_ns;
        if waited > POOL_NEEDED_MS * 1_000_000 {
            core.room.need_pool(&core.ledger); // the swap file may be stuck
            if core.concede() {
                return false; // memory outside had lowered the limit too far
            }
        }
        waited > FRUITLESS_MS_MAX * 1_000_000
    }
}
