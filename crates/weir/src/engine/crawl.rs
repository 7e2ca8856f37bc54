//! A program that does little but wait for memory is told so while it runs, by the background thread.

pub mod rule;

use super::Engine;
use super::say::say;
use super::summary::Size;
use crate::door::Pager;
use crate::sync::Ordering;
use rule::{State, look};
use weir_os::thread;

/// What of a budget that holds all data is left for the engine's own: tables, frames on their way.
const OWN_SHARE: u64 = 16;

impl<P: Pager> Engine<P> {
    /// Looks whether it is time for a warning.
    pub(super) fn warn_if_crawling(&self) {
        let now = thread::now_ns();
        let Ok(mut kept) = self.crawl.try_lock() else { return };
        let waited = || self.core.stats.waited_by_shard();
        let state = *kept.get_or_insert_with(|| State::begin(now, waited()));
        if !state.is_due(now) {
            return;
        }
        let (next, warned) = look(state, now, waited());
        *kept = Some(next);
        if let Some(percent) = warned.filter(|_| !self.outside.quiet.load(Ordering::Relaxed)) {
            self.warn(percent, (now - state.since_ns()) / 1_000_000_000);
        }
    }

    /// In the child of a fork: it begins anew.
    pub(super) fn forget_crawl(&self) {
        if let Ok(mut kept) = self.crawl.try_lock() {
            *kept = None;
        }
    }

    fn warn(&self, percent: u64, seconds: u64) {
        let s = &self.core.stats;
        let data = s.managed_bytes.load(Ordering::Relaxed) + s.outside_bytes.load(Ordering::Relaxed);
        say(format_args!(
            "{percent} % of the last {seconds} s went to waiting for memory (pid {}): {} are in use, the \
             budget is {}. With --memory {}M all would stay in RAM; less may do",
            weir_os::sys::getpid(),
            Size(data),
            Size(self.core.ledger.budget_bytes()),
            enough_mib(data),
        ));
    }
}

/// A budget that holds this data, in MiB, rounded up to two digits.
fn enough_mib(data: u64) -> u64 {
    let mib = (data + data / OWN_SHARE) >> 20;
    let mut step = 1;
    while mib / step >= 100 {
        step *= 10;
    }
    (mib / step + 1) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_holds_the_data_has_room_for_weir_and_two_digits() {
        for (data, enough) in [(90, 96), (96, 110), (300, 320), (1500, 1600), (4000, 4300)] {
            assert_eq!(enough_mib(data << 20), enough, "{data}");
        }
    }
}
