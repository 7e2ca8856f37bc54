//! Crawling: when a program that does little but wait for memory is told so.

use crate::limits::{CRAWL_PAUSE_NS, CRAWL_PERCENT, CRAWL_PERIOD_NS, WHOLE_PERCENT};
use weir_os::shards::SHARDS;

/// Time that threads have waited for memory so far, ns: a number for each shard of them.
pub type Waited = [u64; SHARDS];

/// What was seen, and told, so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// When the window began that is looked at, ns.
    since_ns: u64,
    /// What had been waited then.
    waited: Waited,
    /// When the next warning may come, ns.
    due_ns: u64,
    /// How long after that one the next may come, ns.
    pause_ns: u64,
}

impl State {
    /// At the start of a program, or of a child.
    pub fn begin(now_ns: u64, waited: Waited) -> State {
        State { since_ns: now_ns, waited, due_ns: now_ns, pause_ns: CRAWL_PAUSE_NS }
    }

    /// When the window began, ns.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Whether a window is over: [`look`] has something to look at.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= CRAWL_PERIOD_NS
    }
}

/// At the end of a window: the state for the next one, and what to warn of, if anything: the percentage of
/// the window that the thread waited that waited most. Each warning doubles the pause before the next.
pub fn look(state: State, now_ns: u64, waited: Waited) -> (State, Option<u64>) {
    let window_ns = now_ns.saturating_sub(state.since_ns).max(1);
    let most = waited.iter().zip(state.waited).map(|(now, then)| now.saturating_sub(then)).max().unwrap_or(0);
    let percent = u128::from(most.min(window_ns)) * u128::from(WHOLE_PERCENT) / u128::from(window_ns);
    let next = State { since_ns: now_ns, waited, ..state };
    if percent <= u128::from(CRAWL_PERCENT) || now_ns < state.due_ns {
        return (next, None);
    }
    let paused =
        State { due_ns: now_ns + state.pause_ns, pause_ns: state.pause_ns.saturating_mul(2), ..next };
    (paused, Some(percent as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn waited(first: u64, second: u64) -> Waited {
        let mut all = [0; SHARDS];
        (all[0], all[1]) = (first, second);
        all
    }

    #[test]
    fn more_than_half_of_a_window_is_warned_of() {
        for (window, first, second, warned) in [
            (10 * S, 0, 0, None),
            (10 * S, 5 * S, 0, None),
            (10 * S, 5 * S + S / 10, 0, Some(51)),
            (10 * S, 3 * S, 9 * S, Some(90)),
            (10 * S, 4 * S, 4 * S, None),
            (10 * S, 25 * S, 0, Some(100)),
            (40 * S, 16 * S, 0, None),
            (40 * S, 30 * S, 0, Some(75)),
        ] {
            let state = State::begin(7 * S, waited(0, 0));
            let told = look(state, 7 * S + window, waited(first, second)).1;
            assert_eq!(told, warned, "{window} {first} {second}");
        }
    }

    #[test]
    fn what_was_waited_before_the_window_does_not_count_whoever_waited_most() {
        let state = State::begin(0, waited(100 * S, 0));
        assert_eq!(look(state, 10 * S, waited(100 * S, 6 * S)).1, Some(60));
        assert_eq!(look(state, 10 * S, waited(103 * S, 2 * S)).1, None);
    }

    #[test]
    fn pauses_between_warnings_double() {
        let mut state = State::begin(0, waited(0, 0));
        let mut warned = Vec::new();
        for second in 1..=160 {
            let now = second * S;
            if state.is_due(now) {
                let (next, told) = look(state, now, waited(now, 0));
                state = next;
                told.into_iter().for_each(|_| warned.push(second));
            }
        }
        assert_eq!(warned, [10, 20, 40, 80, 160]);
    }

    #[test]
    fn a_window_is_looked_at_when_it_is_over() {
        let state = State::begin(S, waited(0, 0));
        assert!(!state.is_due(0) && !state.is_due(10 * S) && state.is_due(11 * S));
    }
}
