//! When pool records that nobody wants are compressed again, and how long nobody may have wanted them: a pure function of what came of it.
//!
//! A walk passes all records. One that nobody has wanted since the lap before is made again with zstd, which takes 13 us and saves a
//! fifth to two fifths of a real heap's records; to expand it costs 4 us more than LZ4. So it has to pay three times over: there is a processor that nobody wants, records get smaller,
//! and few of them come back.
//!
//! | what | when |
//! | - | - |
//! | a lap begins | [`ColdWalk::age_ns`] after the one before ended, if [`WANTED_MIN`] pages were wanted from tiers since that began, else a second later again |
//! | rest after a slice | as long as it took; twice as long each time while others wanted the processor, half when not |
//! | a long rest | of [`VERDICT`] records fewer than one in [`WORTH_ONE_IN`] got smaller; twice as long each time |
//! | nothing, for [`AGE_NS_MAX`] | after a fork |
//! | records must be older, twice | since the last lap began more zstd records came back than are left |
//! | and half as old again | less than an eighth of these did |

/// Longest stretch of work, ns: no fault waits for it, but a fork may.
pub const SLICE_NS: u64 = 1_000_000;
/// Shortest time between two laps, and longest, ns.
pub const AGE_NS_MIN: u64 = 1_000_000_000;
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
const SHORT_DOUBLINGS: u32 = 6;
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
    rest_ns: u64,
    /// A lap lasts at least [`AGE_NS_MIN`] times two to the power of this.
    doublings: u32,
    /// Pages wanted, and zstd records that had come back, when the lap began.
    wanted: u64,
    back: u64,
    /// Records tried since the last verdict, and those that got smaller.
    tried: u32,
    paid: u32,
    /// Times one after the other that frames were short.
    shortages: u32,
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

    /// How long nobody may have wanted a record, ns, at least.
    pub fn age_ns(&self) -> u64 {
        AGE_NS_MIN << self.doublings
    }

    /// There is nothing to do, or no place in the pool.
    pub fn wait(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.max(now_ns + AGAIN_NS);
    }

    /// Faults need the frames that there are.
    pub fn wait_a_little(&mut self, now_ns: u64) {
        self.due_ns = now_ns + (SHORT_NS << self.shortages.min(SHORT_DOUBLINGS));
        self.shortages += 1;
    }

    /// The process has forked: what is written to now is no longer shared with the other one, so records are left alone for long.
    pub fn forked(&mut self, now_ns: u64) {
        (self.at, self.due_ns) = (None, now_ns + AGE_NS_MAX);
    }

    /// Begins a lap, if enough pages were wanted since the last one. `wanted`: so many so far. `zstd`: its records, and how many have come back
    /// so far. Whether there is one.
    pub fn begin_lap(&mut self, now_ns: u64, wanted: u64, zstd: (u64, u64)) -> bool {
        if wanted.saturating_sub(self.wanted) < WANTED_MIN {
            self.wait(now_ns);
            return false;
        }
        self.judge_age(zstd.0, zstd.1.saturating_sub(self.back));
        (self.wanted, self.back) = (wanted, zstd.1);
        self.at = Some((0, 0));
        true
    }

    /// So many are left, and so many came back.
    fn judge_age(&mut self, left: u64, back: u64) {
        if back > left && back > u64::from(VERDICT) {
            self.doublings = (self.doublings + 1).min((AGE_NS_MAX / AGE_NS_MIN).ilog2());
        } else if back * 8 < left {
            self.doublings = self.doublings.saturating_sub(1);
        }
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
        self.shortages = 0;
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

    /// All records were passed. The last ones may have been only now.
    pub fn end_lap(&mut self, now_ns: u64) {
        self.at = None;
        self.due_ns = self.due_ns.max(now_ns + self.age_ns());
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
        assert!(!w.begin_lap(0, WANTED_MIN - 1, (0, 0)) && w.due_ns() == AGAIN_NS && w.at.is_none());
        assert!(w.begin_lap(AGAIN_NS, WANTED_MIN, (0, 0)) && w.at == Some((0, 0)));
        w.end_slice(slice(AGAIN_NS + MS, MS, 10, 10));
        w.end_lap(5 * AGAIN_NS);
        assert_eq!((w.at, w.due_ns()), (None, 5 * AGAIN_NS + AGE_NS_MIN));
        assert!(!w.begin_lap(w.due_ns(), 2 * WANTED_MIN - 1, (0, 0)), "nobody wants what the tiers have");
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
    fn it_looks_again_soon_where_frames_are_short_and_late_where_there_is_no_place_or_after_a_fork() {
        let mut w = ColdWalk::default();
        let waits = core::array::from_fn(|_| {
            w.wait_a_little(0);
            w.due_ns() / MS
        });
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 640]);
        w.end_slice(slice(0, MS, 1, 1));
        w.wait_a_little(0);
        assert_eq!(w.due_ns(), 10 * MS);
        w.end_slice(slice(0, MS, VERDICT, 0));
        w.wait(0);
        assert_eq!(w.due_ns(), LONG_REST_NS, "a longer rest stays");
        w.at = Some((3, 4));
        w.forked(MS);
        assert_eq!((w.at, w.due_ns()), (None, AGE_NS_MAX + MS));
    }

    #[test]
    fn records_must_be_older_where_many_come_back() {
        let mut w = ColdWalk::default();
        let mut lap = |left: u64, back: u64| {
            assert!(w.begin_lap(0, w.wanted + WANTED_MIN, (left, w.back + back)));
            w.age_ns() / AGE_NS_MIN
        };
        assert_eq!(
            [lap(900, 0), lap(900, 901), lap(400, 1000), lap(1000, 400), lap(1000, 100)],
            [1, 2, 4, 4, 2]
        );
        assert_eq!(lap(0, u64::from(VERDICT)), 2, "too few to tell");
        (0..9).for_each(|_| assert!(lap(10, 1000) > 2));
        assert_eq!(w.age_ns(), AGE_NS_MAX);
    }
}
