//! When pool records that nobody has wanted for a moment are compressed again: a pure function of what came
//! of it.
//!
//! A walk passes all records. One that nobody has wanted since the lap before is made again with zstd, which
//! takes 13 us and saves a fifth to two fifths of a real heap's records; to expand it costs 4 us more than
//! LZ4. So there has to be a processor that nobody wants, and records have to get smaller.
//!
//! | what | when |
//! | - | - |
//! | a lap begins | [`COLD_LAP_NS`] after the one before ended, if [`COLD_WANTED_MIN`] pages were wanted from tiers since that began, else a second later again |
//! | rest after a slice | as long as it took; twice as long each time while others wanted the processor, half when not |
//! | a short rest | frames are short; twice as long each time |
//! | a long rest | of [`COLD_VERDICT`] records fewer than one in [`COLD_WORTH_ONE_IN`] got smaller; twice as long each time |
//! | nothing, for [`COLD_FORKED_NS`] | after a fork |

use crate::limits::{
    COLD_AGAIN_NS, COLD_FORKED_NS, COLD_LAP_NS, COLD_LONG_REST_DOUBLINGS, COLD_LONG_REST_NS,
    COLD_REST_NS_MAX, COLD_SHORT_DOUBLINGS, COLD_SHORT_NS, COLD_SLICE_NS, COLD_VERDICT, COLD_WAITED_PART,
    COLD_WANTED_MIN, COLD_WORTH_ONE_IN,
};

/// Where the walk is. Used by the background thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdWalk {
    /// Span, and object of it, to go on from; `None`: between two laps.
    pub at: Option<(u32, usize)>,
    due_ns: u64,
    rest_ns: u64,
    /// Pages wanted when the lap began.
    wanted: u64,
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

    /// There is nothing to do, or no place in the pool.
    pub fn wait(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.max(now_ns + COLD_AGAIN_NS);
    }

    /// Faults need the frames that there are.
    pub fn wait_a_little(&mut self, now_ns: u64) {
        self.due_ns = now_ns + (COLD_SHORT_NS << self.shortages.min(COLD_SHORT_DOUBLINGS));
        self.shortages += 1;
    }

    /// The process has forked: what is written to now is no longer shared with the other one, so records are
    /// left alone for long.
    pub fn forked(&mut self, now_ns: u64) {
        (self.at, self.due_ns) = (None, self.due_ns.max(now_ns + COLD_FORKED_NS));
    }

    /// Begins a lap, if enough pages were wanted since the last one began; so many were so far. Whether there
    /// is one.
    pub fn begin_lap(&mut self, now_ns: u64, wanted: u64) -> bool {
        if wanted.saturating_sub(self.wanted) < COLD_WANTED_MIN {
            self.wait(now_ns);
            return false;
        }
        (self.wanted, self.at) = (wanted, Some((0, 0)));
        true
    }

    /// All is due.
    pub fn hurry(&mut self) {
        (self.due_ns, self.wanted) = (0, 0);
    }

    /// After a stretch of work.
    pub fn end_slice(&mut self, slice: Slice) {
        let waited = slice.took_ns.saturating_sub(slice.ran_ns) * COLD_WAITED_PART > slice.took_ns;
        let rest = self.rest_ns.max(slice.took_ns).max(COLD_SLICE_NS);
        self.rest_ns = if waited { rest * 2 } else { self.rest_ns / 2 }.min(COLD_REST_NS_MAX);
        self.due_ns = slice.now_ns + self.rest_ns.max(slice.took_ns);
        self.shortages = 0;
        self.tried += slice.tried;
        self.paid += slice.paid;
        if self.tried >= COLD_VERDICT {
            if self.paid * COLD_WORTH_ONE_IN >= self.tried {
                self.in_vain = 0;
            } else {
                self.due_ns =
                    slice.now_ns + (COLD_LONG_REST_NS << self.in_vain.min(COLD_LONG_REST_DOUBLINGS));
                self.in_vain += 1;
            }
            (self.tried, self.paid) = (0, 0);
        }
    }

    /// All records were passed. The last ones may have been only now.
    pub fn end_lap(&mut self, now_ns: u64) {
        self.at = None;
        self.due_ns = self.due_ns.max(now_ns + COLD_LAP_NS);
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
    fn a_lap_begins_when_pages_are_wanted_and_a_while_after_the_last() {
        let mut w = ColdWalk::default();
        assert!(!w.begin_lap(0, COLD_WANTED_MIN - 1) && w.due_ns() == COLD_AGAIN_NS && w.at.is_none());
        assert!(w.begin_lap(COLD_AGAIN_NS, COLD_WANTED_MIN) && w.at == Some((0, 0)));
        w.end_slice(slice(COLD_AGAIN_NS + MS, MS, 10, 10));
        w.end_lap(5 * COLD_AGAIN_NS);
        assert_eq!((w.at, w.due_ns()), (None, 5 * COLD_AGAIN_NS + COLD_LAP_NS));
        assert!(!w.begin_lap(w.due_ns(), 2 * COLD_WANTED_MIN - 1), "nobody wants what the tiers have");
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
            w.end_slice(slice(0, MS, COLD_VERDICT, paid));
            w.due_ns() / 1_000_000_000
        };
        assert_eq!([rest(0), rest(COLD_VERDICT / COLD_WORTH_ONE_IN - 1), rest(3)], [8, 16, 32]);
        assert_eq!([rest(0), rest(0), rest(0), rest(0)], [64, 128, 256, 256]);
        assert_eq!([rest(COLD_VERDICT / COLD_WORTH_ONE_IN), rest(0)], [0, 8]);
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
        w.end_slice(slice(0, MS, COLD_VERDICT, 0));
        w.wait(0);
        assert_eq!(w.due_ns(), COLD_LONG_REST_NS, "a longer rest stays");
        w.at = Some((3, 4));
        w.forked(MS);
        assert_eq!((w.at, w.due_ns()), (None, COLD_FORKED_NS + MS));
    }
}
