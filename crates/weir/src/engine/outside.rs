//! Memory outside the engine, measured by the background thread: what the kernel counts as this process's
//! anonymous memory, less what the engine holds. `shared/ledger.rs` says what follows.
//!
//! Looks are made in turn with reclaim's rounds, `OUTSIDE_LOOK_NS` apart while the program runs, and as
//! rarely as the thread wakes up anyway while it does not. One is a system call of a few microseconds.

pub mod looks;

use super::Engine;
use super::say::say;
use crate::config::Settings;
use crate::door::Pager;
use crate::limits::{OUTSIDE_LOOK_NS, THREAD_BYTES, THREADS_LOOK_BYTES, THREADS_ROUNDS};
use crate::sync::Ordering;
use weir_os::pager::KernelPager;
use weir_os::ram::Statm;
use weir_os::thread;

/// Processor time of the process between two looks from which on it runs: more than the looks themselves
/// take.
const RUNS_NS: u64 = OUTSIDE_LOOK_NS / 20;

/// How long a mapping that Weir leaves alone is expected to fill.
const EXPECT_NS: u64 = 1_000_000_000;

impl Engine<KernelPager> {
    /// Begins to measure: the heap from before the start counts from the first frame on. A pool's budget is
    /// that of its own memory alone.
    pub(super) fn measure_outside(&self, settings: &Settings) {
        let quiet = settings.quiet;
        self.outside.quiet.store(quiet, Ordering::Relaxed);
        if settings.embedded {
            self.outside.due_ns.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        match Statm::open() {
            Ok(statm) => {
                let _ = self.outside.statm.set(statm);
                self.look_outside();
            }
            Err(e) if !quiet => say(format_args!(
                "/proc/self/statm cannot be opened ({e}): memory outside Weir does not count against the budget"
            )),
            Err(_) => {}
        }
    }

    /// Measures if it is time. Outside the gate.
    pub(super) fn look_outside_if_due(&self) {
        let now = thread::now_ns();
        if now >= self.outside.due_ns.load(Ordering::Relaxed) {
            let _inside = self.gate.enter();
            self.look_outside();
            self.follow_limit(now);
            self.follow_tree();
            let cpu = thread::process_cpu_ns();
            let ran = cpu.saturating_sub(self.outside.cpu_ns.swap(cpu, Ordering::Relaxed)) > RUNS_NS;
            self.outside.runs.store(ran, Ordering::Relaxed);
            self.outside.due_ns.store(now + OUTSIDE_LOOK_NS, Ordering::Relaxed);
        }
    }

    /// How long nobody need look: no longer than `most_ns`.
    pub(super) fn until_next_look(&self, most_ns: u64) -> u64 {
        let soon = self.outside.runs.load(Ordering::Relaxed)
            || thread::now_ns() < self.outside.expected_ns.load(Ordering::Relaxed);
        if soon { most_ns.min(OUTSIDE_LOOK_NS) } else { most_ns }
    }

    /// A large mapping is left to the kernel: a program that was idle may fill it before the next look.
    pub fn expect_outside(&self) {
        self.outside.expected_ns.store(thread::now_ns() + EXPECT_NS, Ordering::Relaxed);
        if self.core.room.kick.swap(1, Ordering::AcqRel) == 0 {
            thread::futex_wake(&self.core.room.kick, 1);
        }
    }

    /// From now on the RAM in all may be so many bytes, but not more than the engine was made for, whatever
    /// the limit around it does. Outside the gate.
    pub fn set_budget(&self, bytes: u64) {
        let _inside = self.inside();
        self.around.leave();
        self.core.set_budget(bytes);
    }

    /// Measures once more before the process ends.
    pub fn last_look_outside(&self) {
        let _inside = self.inside();
        self.look_outside();
    }
}

impl<P: Pager> Engine<P> {
    /// The calling thread of the program is about to make a thread, whose stacks are memory outside.
    /// Thousands at once take more than the background thread compresses meanwhile: every so often their
    /// maker measures, and makes the room itself.
    pub fn make_room_for_thread(&self) {
        let asked = self.outside.asked.fetch_add(THREAD_BYTES, Ordering::Relaxed) + THREAD_BYTES;
        let here = 0u8;
        // Its own stack could leave.
        if asked < THREADS_LOOK_BYTES || self.contains(&raw const here as usize) {
            return;
        }
        self.outside.asked.store(0, Ordering::Relaxed);
        let _inside = self.inside();
        self.look_outside();
        for _ in 0..THREADS_ROUNDS {
            self.core.room.shed_excess(&self.core.pager);
            if self.core.room.frames.existing() <= self.core.room.frames.limit() || self.reclaim_here() == 0 {
                break;
            }
        }
    }

    /// Measures. Inside the gate, or where nobody else is.
    fn look_outside(&self) {
        let Some(statm) = self.outside.statm.get() else { return };
        // Frames come and go meanwhile: what the engine ever held cannot be outside.
        let before = self.core.anon_bytes();
        let Some(anon) = statm.anon_bytes() else { return };
        let outside = anon.saturating_sub(before.max(self.core.anon_bytes()));
        let excess = self.core.note_outside(outside, thread::now_ns());
        if let Some(excess) = excess.filter(|_| !self.outside.quiet.load(Ordering::Relaxed)) {
            say(format_args!(
                "{} MiB of memory that Weir does not manage leave too little of the budget of {} MiB: Weir keeps {} MiB, \
                 so the RAM exceeds the budget. Give more with --memory",
                excess.outside >> 20,
                self.core.ledger.budget_bytes() >> 20,
                excess.least >> 20,
            ));
        }
    }
}
