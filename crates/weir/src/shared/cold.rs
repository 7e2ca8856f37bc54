//! When pool records that nobody wants are compressed again, and how long nobody may have wanted them: a pure function of what came of it.
//!
//! A walk passes all records. One that nobody has wanted since the lap before is made again with zstd, which takes 13 us and saves a
//! fifth to two fifths of a real heap's records; to expand it costs 4 us more than LZ4. So it has to pay three times over: there is a processor that nobody wants, records get smaller,
//! and few of them come back.
//!
//! | what | when |
//! | - | - |
//! | a lap begins | [`ColdWalk::age_ns`] after the one before, if [`WANTED_MIN`] pages were wanted from tiers since then, else a second later again |
//! | rest after a slice | as long as it took; twice as long each time while others wanted the processor, half when not |
//! | a long rest | of [`VERDICT`] records fewer than one in [`WORTH_ONE_IN`] got smaller; twice as long each time |
//! | records must be older, twice | in a lap's time half of what there was of zstd came back |
//! | and half as old again | less than an eighth did |

/// Longest stretch of work, ns: no fault waits for it, but a fork may.
pub const SLICE_NS: u64 = 1_000_000;
/// Shortest time between the beginnings of two laps, and longest, ns.
pub const AGE_NS_MIN: u64 = 2_000_000_000;
/// As above.
pub const AGE_NS_MAX: u64 = 64_000_000_000;
/// Rests after a slice, ns.
const REST_NS_MIN: u64 = 1_000_000;
const REST_NS_MAX: u64 = 500_000_000;
/// Pages wanted from tiers in a lap's time that make the next worth while.
pub const WANTED_MIN: u64 = 500;
/// Until there is something to do again, ns.
const AGAIN_NS: u64 = 1_000_000_000;
/// Until frames may be less short, ns.
const SHORT_NS: u64 = 10_000_000;
/// Records after which it is judged whether they get smaller.
pub const VERDICT: u32 = 256;
/// As above.
pub const WORTH_ONE_IN: u32 = 8;
/// Rest when they do not, ns: the first, and the longest as a power of two of it.
const LONG_REST_NS: u64 = 8_000_000_000;
const LONG_REST_DOUBLINGS: u32 = 5;

/// Where the walk is. Used by the background thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdWalk {
    /// Span, and object of it, to go on from; `None`: between two laps.
    pub at: Option<(u32, usize)>,
    due_ns: u64,
    lap_since_ns: u64,
    rest_ns: u64,
    /// A lap lasts at least [`AGE_NS_MIN`] times two to the power of this.
    doublings: u32,
    /// Pages wanted, and zstd records expanded, when the lap began.
    wanted: u64,
    expanded: u64,
    /// zstd records that were made and have not come back.
    alive: u64,
    /// Records tried since the last verdict, and those that got smaller.
    tried: u32,
    paid: u32,
    /// Verdicts one after the other that were bad.
    in_vain: u32,
}

/// A stretch of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// When it ended.
    pub now_ns: u64,
    /// How long it took, and how long of that the thread had a processor.
    pub took_ns: u64,
    /// As above.
    pub ran_ns: u64,
    /// Records compressed again, and those that got smaller.
    pub tried: u32,
    /// As above.
    pub paid: u32,
}

impl ColdWalk {
    /// When there may be something to do.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// How long nobody may have wanted a record, ns, at least; twice that at most.
    pub fn age_ns(&self) -> u64 {
        AGE_NS_MIN << self.doublings
    }

    /// There is nothing to do, or no place in the pool.
    pub fn wait(&mut self, now_ns: u64) {
        self.due_ns = now_ns + AGAIN_NS;
    }

    /// Faults need the frames that there are.
    pub fn wait_a_little(&mut self, now_ns: u64) {
        self.due_ns = now_ns + SHORT_NS;
    }

    /// Begins a lap, if enough pages were wanted since the last one: so many so far, and so many zstd records expanded. Whether there is one.
    pub fn begin_lap(&mut self, now_ns: u64, wanted: u64, expanded: u64) -> bool {
        if wanted.saturating_sub(self.wanted) < WANTED_MIN {
            self.wait(now_ns);
            return false;
        }
        self.judge_age(expanded.saturating_sub(self.expanded));
        (self.wanted, self.expanded) = (wanted, expanded);
        (self.lap_since_ns, self.at) = (now_ns, Some((0, 0)));
        true
    }

    fn judge_age(&mut self, back: u64) {
        if back * 2 > self.alive && back > u64::from(VERDICT) {
            self.doublings = (self.doublings + 1).min((AGE_NS_MAX / AGE_NS_MIN).ilog2());
        } else if back * 8 < self.alive {
            self.doublings = self.doublings.saturating_sub(1);
        }
        self.alive = self.alive.saturating_sub(back);
    }

    /// All is due, and everything cold enough.
    pub fn hurry(&mut self) {
        (self.due_ns, self.wanted, self.doublings) = (0, 0, 0);
    }

    /// After a stretch of work.
    pub fn end_slice(&mut self, slice: Slice) {
        let waited = slice.took_ns.saturating_sub(slice.ran_ns) * 8 > slice.took_ns;
        let rest = self.rest_ns.max(slice.took_ns).max(REST_NS_MIN);
        self.rest_ns = if waited { rest * 2 } else { self.rest_ns / 2 }.min(REST_NS_MAX);
        self.due_ns = slice.now_ns + self.rest_ns.max(slice.took_ns);
        self.alive += u64::from(slice.paid);
        self.tried += slice.tried;
        self.paid += slice.paid;
        if self.tried >= VERDICT {
            if self.paid * WORTH_ONE_IN >= self.tried {
                self.in_vain = 0;
            } else {
                self.due_ns = slice.now_ns + (LONG_REST_NS << self.in_vain.min(LONG_REST_DOUBLINGS));
                self.in_vain += 1;
            }
            (self.tried, self.paid) = (0, 0);
        }
    }

    /// All records were passed.
    pub fn end_lap(&mut self) {
        self.at = None;
        self.due_ns = self.due_ns.max(self.lap_since_ns + self.age_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn slice(now_ns: u64, ran_ns: u64, tried: u32, paid: u32) -> Slice {
        Slice { now_ns, took_ns: MS, ran_ns, tried, paid }
    }

    #[test]
    fn a_lap_begins_when_pages_are_wanted_and_lasts_as_long_as_records_must_be_old() {
        let mut w = ColdWalk::default();
        assert!(!w.begin_lap(0, WANTED_MIN - 1, 0) && w.due_ns() == AGAIN_NS && w.at.is_none());
        assert!(w.begin_lap(AGAIN_NS, WANTED_MIN, 0) && w.at == Some((0, 0)));
        w.end_slice(slice(AGAIN_NS + MS, MS, 10, 10));
        w.end_lap();
        assert_eq!((w.at, w.due_ns()), (None, AGAIN_NS + AGE_NS_MIN));
        assert!(!w.begin_lap(w.due_ns(), 2 * WANTED_MIN - 1, 0), "nobody wants what the tiers have");
    }

    #[test]
    fn it_rests_as_long_as_it_works_and_much_longer_while_others_want_the_processor() {
        let mut w = ColdWalk::default();
        w.end_slice(slice(5 * MS, MS, 1, 1));
        assert_eq!(w.due_ns(), 6 * MS);
        let rests: Vec<u64> = (0..12)
            .map(|_| {
                w.end_slice(slice(10 * MS, MS / 2, 1, 1));
                (w.due_ns() - 10 * MS) / MS
            })
            .collect();
        assert_eq!(rests, [2, 4, 8, 16, 32, 64, 128, 256, 500, 500, 500, 500]);
        (0..9).for_each(|_| w.end_slice(slice(10 * MS, MS, 1, 1)));
        assert_eq!(w.due_ns(), 11 * MS);
    }

    #[test]
    fn it_rests_long_and_longer_where_records_do_not_get_smaller_until_they_do() {
        let mut w = ColdWalk::default();
        let mut rest = |paid| {
            w.end_slice(slice(0, MS, VERDICT, paid));
            w.due_ns() / 1_000_000_000
        };
        assert_eq!([rest(0), rest(VERDICT / WORTH_ONE_IN - 1), rest(3)], [8, 16, 32]);
        assert_eq!([rest(0), rest(0), rest(0), rest(0)], [64, 128, 256, 256]);
        assert_eq!([rest(VERDICT / WORTH_ONE_IN), rest(0)], [0, 8]);
    }

    #[test]
    fn records_must_be_older_where_many_come_back() {
        let mut w = ColdWalk::default();
        let mut wanted = 0;
        let mut lap = |w: &mut ColdWalk, back: u64| {
            wanted += WANTED_MIN;
            assert!(w.begin_lap(0, wanted, w.expanded + back));
            w.end_slice(slice(0, MS, 1000, 1000));
            w.age_ns() / AGE_NS_MIN
        };
        assert_eq!(lap(&mut w, 0), 1);
        assert_eq!([lap(&mut w, 900), lap(&mut w, 1000), lap(&mut w, 400), lap(&mut w, 100)], [2, 4, 4, 2]);
        for _ in 0..9 {
            let all = w.alive;
            lap(&mut w, all);
        }
        assert_eq!(w.age_ns(), AGE_NS_MAX);
    }
}
