//! One budget for a tree of processes: this one's part of it, followed by the background thread. What is to
//! be booked is decided in [`crate::policy::tree`].

pub mod part;

use super::Engine;
use crate::config::Settings;
use crate::error::StartError;
use crate::limits::{BUDGET_BYTES_MIN, TREE_LATELY_NS, TREE_SWEEP_NS};
use crate::policy::tree::Signals;
use crate::sync::Ordering;
use std::ffi::{CStr, CString};
use weir_os::pager::KernelPager;
use weir_os::sys;
use weir_os::thread;
use weir_os::tree::{self, Look, Table, TreeError};

/// Folders for the table: in RAM where there is one. The first in which files can be made.
const FOLDERS: [&CStr; 2] = [c"/dev/shm", c"/tmp"];

/// Where the processes of a tree share their budget: what was handed down, or a name that nobody can guess.
pub fn path(settings: &Settings) -> CString {
    if let Some(path) = &settings.tree {
        return path.clone();
    }
    let folder =
        FOLDERS.into_iter().find(|folder| tree::is_usable(folder)).unwrap_or(c"/tmp").to_string_lossy();
    let mut bytes = [0u8; 16];
    if sys::random(&mut bytes).is_err() {
        // Early in boot.
        bytes = (u128::from(thread::now_ns()) << 32 | u128::from(sys::getpid())).to_be_bytes();
    }
    CString::new(format!("{folder}/weir-tree-{:032x}", u128::from_be_bytes(bytes))).unwrap_or_default()
}

impl Engine<KernelPager> {
    /// Takes part in the tree whose table is at `path`, and gets what nobody has booked of its budget.
    pub(super) fn join_tree(&self, path: &CStr, budget: u64) -> Result<(), StartError> {
        let table = Table::join(path, budget).map_err(StartError::Tree)?;
        table.sweep(Look::Exact);
        let others = table.others(0, 0);
        let processes = others.processes + 1;
        if u64::from(processes) * BUDGET_BYTES_MIN > table.budget() {
            table.leave();
            return Err(StartError::TreeFull(processes, table.budget()));
        }
        let got = table.book(table.budget().saturating_sub(others.booked));
        // The least that it may have anyway: the others give it back as soon as they look.
        table.note(got.max(BUDGET_BYTES_MIN));
        self.core.set_budget(table.booked());
        let _ = self.tree.table.set(table);
        Ok(())
    }

    /// Looks at the others, and lends or takes. Inside the gate.
    pub(super) fn follow_tree(&self) {
        let Some(table) = self.tree.table.get() else { return };
        if self.tree.execs.load(Ordering::SeqCst) > 0 {
            return; // it has given up its row
        }
        table.keep_row();
        let (core, now) = (&self.core, thread::now_ns());
        let faults = core.stats.faults().get();
        let works = self.tree.faults.swap(faults, Ordering::Relaxed) != faults;
        let needs = works && core.room.available() < core.room.high_mark();
        let used = core.stats.outside_bytes.load(Ordering::Relaxed) + core.resident_bytes();
        let others = table.others(now, TREE_LATELY_NS);
        let seen = Signals {
            budget: table.budget(),
            booked: core.ledger.budget_bytes(),
            used,
            needs,
            others: others.booked,
            others_need: others.need,
            hungry: others.hungry,
        };
        let hungry = seen.is_hungry();
        table.say(now, needs, hungry);
        if hungry && now.saturating_sub(self.tree.swept_ns.load(Ordering::Relaxed)) >= TREE_SWEEP_NS {
            self.tree.swept_ns.store(now, Ordering::Relaxed);
            table.sweep(Look::Number);
        }
        let wanted = seen.wanted().min(core.ledger.most_bytes());
        let budget = if wanted > seen.booked { table.book(wanted).max(seen.booked) } else { wanted };
        if budget != seen.booked {
            core.set_budget(budget);
        }
        // Frames leave after the budget has changed, and memory outside comes without being asked for.
        if budget.max(used) != table.booked() {
            table.note(budget.max(used));
        }
    }

    /// The process may become another program, which has nothing yet: it gives up its row.
    pub fn exec_begins(&self) {
        self.tree.execs.fetch_add(1, Ordering::SeqCst);
        self.tree.table.get().into_iter().for_each(Table::give_up);
    }

    /// It has not: the next look takes a row again, and books what there is.
    pub fn exec_failed(&self) {
        self.tree.execs.fetch_sub(1, Ordering::SeqCst);
    }

    /// The process ends: what it had is free.
    pub fn leave_tree(&self) {
        self.tree.table.get().into_iter().for_each(Table::leave);
    }

    /// In the child of a fork: a row of its own. What it shares with its parent counts in both.
    pub(super) fn fork_tree(&self) {
        self.tree.execs.store(0, Ordering::SeqCst);
        let Some(table) = self.tree.table.get() else { return };
        match table.forked() {
            Ok(()) => {
                let used = self.core.resident_bytes().max(BUDGET_BYTES_MIN);
                table.note(used);
                self.core.set_budget(used);
            }
            Err(TreeError::Full) => self.core.set_budget(BUDGET_BYTES_MIN),
            Err(e) => super::say::say(format_args!("a forked child does not share its tree's budget: {e}")),
        }
    }
}
