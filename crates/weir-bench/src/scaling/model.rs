//! What more processors would give, computed: a closed queueing network of random accesses, solved by mean
//! value analysis.
//!
//! As many threads as processors make one access after the other. An access takes its thread `alone_ns` of
//! processor time that nobody waits for, and then, on average, some time at each of a few *stations* where
//! one thread is served at a time: the lock of the address space, the pool's lock, the lock of the frames,
//! the kernel's lock for the signals of a process, and the words that every fault writes. With demands `D_k`,
//! the exact solution for such a network (Reiser and Lavenberg 1980) is, for n from 1 up:
//!
//! ```text
//! R_k(n) = D_k (1 + Q_k(n-1))      X(n) = n / (alone + sum of R_k(n))      Q_k(n) = X(n) R_k(n)
//! ```
//!
//! It never exceeds `min(n / (alone + sum of D_k), 1 / max D_k)`. Two things grow with the processors. A
//! flush interrupts each of the others, so that every access pays `flushes * (n-1) * flush_receive_ns`; and
//! who flushes waits for them, a lift while it holds the address space. How long, two processors cannot tell:
//! `flush_send_ns` if all answer [at once](Flushes::AtOnce), so much for each if they do it [one by
//! one](Flushes::OneByOne); the truth lies between. And a word that every fault writes is moved from
//! processor to processor once there are two.
//!
//! What it leaves out: memory bandwidth and caches that are shared, several memory nodes, the kernel's locks
//! for page tables and free pages, and the spread of service times (it takes them as exponential, which is
//! pessimistic for even ones).

use serde::Serialize;

/// What the model is fed with. Numbers are per access of the program, times in ns, unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Inputs {
    /// Processors, and threads, of the run that this was taken from.
    pub processors: u32,
    /// Processor time of the whole process.
    pub access_ns: f64,
    /// Faults.
    pub faults: f64,
    /// Calls that move pages out, under the lock of the address space.
    pub lifts: f64,
    /// Time of one.
    pub lift_ns: f64,
    /// Calls that give frames back; they share that lock with faults.
    pub sheds: f64,
    /// Holds of the pool's lock.
    pub pool_holds: f64,
    /// Time of one.
    pub pool_hold_ns: f64,
    /// Holds of the lock of the frames.
    pub frame_holds: f64,
    /// Time of one.
    pub frame_hold_ns: f64,
    /// Time of a hold of the kernel's lock for signals.
    pub signal_hold_ns: f64,
    /// Time to write a word that another processor has written last.
    pub line_ns: f64,
    /// What a flush costs the one who asks for it, for each other processor.
    pub flush_send_ns: f64,
    /// What it costs each other processor.
    pub flush_receive_ns: f64,
}

/// Where one thread is served at a time.
pub const STATIONS: [&str; 8] = [
    "address space",
    "pool lock",
    "frame lock",
    "signal lock",
    "gate word",
    "credit word",
    "mapping word",
    "userfaultfd word",
];
/// Holds of the kernel's lock for signals by an inline fault: the signal is sent, taken, the mask changed,
/// and changed back.
const SIGNAL_HOLDS: f64 = 4.0;
/// Writes of a fault to shared words, by the last stations: into the engine's gate and out; a frame more
/// exists; the kernel's reference to the mapping, taken and given back by the fault and by the copy; its lock
/// against changes of the userfaultfd, by the copy.
const WRITES: [f64; 4] = [2.0, 1.0, 4.0, 2.0];

/// How the others answer to a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// However many they are, as soon as one.
    AtOnce,
    /// Each after the one before.
    OneByOne,
}

impl Flushes {
    /// How many times one answer's time who flushes waits.
    fn waits(self, processors: u32) -> f64 {
        let others = processors.saturating_sub(1);
        f64::from(if self == Flushes::AtOnce { others.min(1) } else { others })
    }
}

/// What so many processors would give.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Processors, each with a thread.
    pub processors: u32,
    /// Accesses per second of all.
    pub ops_per_s: f64,
    /// The same if nobody ever waited for anybody.
    pub bound_per_s: f64,
    /// The station that is busy most.
    pub busiest: &'static str,
    /// For this share of the time.
    pub busy: f64,
}

impl Inputs {
    /// What so many processors would give, each with a thread that does nothing else.
    pub fn predict(&self, processors: u32, flushes: Flushes) -> Prediction {
        let (alone_ns, demands) = (self.alone_ns(processors, flushes), self.demands(processors, flushes));
        let per_ns = throughput(alone_ns, &demands, processors);
        let (station, most) =
            demands.iter().copied().enumerate().fold((0, 0.0), |best, d| if d.1 > best.1 { d } else { best });
        Prediction {
            processors,
            ops_per_s: per_ns * 1e9,
            bound_per_s: bound(alone_ns, &demands, processors) * 1e9,
            busiest: STATIONS[station],
            busy: per_ns * most,
        }
    }

    /// Time at each of [`STATIONS`].
    fn demands(&self, processors: u32, flushes: Flushes) -> [f64; STATIONS.len()] {
        // The time of a lift was taken where it had some processors to wait for.
        let more = flushes.waits(processors) - flushes.waits(self.processors);
        let lift_ns = (self.lift_ns + more * self.flush_send_ns).max(0.0);
        let line_ns = if processors > 1 { self.line_ns } else { 0.0 };
        [
            self.lifts * lift_ns,
            self.pool_holds * self.pool_hold_ns,
            self.frame_holds * self.frame_hold_ns,
            self.faults * SIGNAL_HOLDS * self.signal_hold_ns,
            self.faults * WRITES[0] * line_ns,
            self.faults * WRITES[1] * line_ns,
            self.faults * WRITES[2] * line_ns,
            self.faults * WRITES[3] * line_ns,
        ]
    }

    /// Processor time that nobody waits for: what the run took, less what it took at the stations, and what
    /// flushes cost with more processors, or less with fewer.
    fn alone_ns(&self, processors: u32, flushes: Flushes) -> f64 {
        let at_stations: f64 = self.demands(self.processors, flushes).iter().sum();
        let more = f64::from(processors) - f64::from(self.processors);
        let interrupts = (self.lifts + self.sheds) * more * self.flush_receive_ns;
        let more = flushes.waits(processors) - flushes.waits(self.processors);
        let waits = self.sheds * more * self.flush_send_ns;
        (self.access_ns - at_stations + interrupts + waits).max(0.0)
    }
}

/// Accesses per ns of a closed network with `n` threads, by mean value analysis.
fn throughput(alone_ns: f64, demands: &[f64], n: u32) -> f64 {
    let mut queues = vec![0.0; demands.len()];
    let mut throughput = 0.0;
    for threads in 1..=n {
        let times: Vec<f64> = demands.iter().zip(&queues).map(|(d, queue)| d * (1.0 + queue)).collect();
        throughput = f64::from(threads) / (alone_ns + times.iter().sum::<f64>()).max(f64::MIN_POSITIVE);
        queues.iter_mut().zip(&times).for_each(|(queue, time)| *queue = throughput * time);
    }
    throughput
}

/// What it cannot exceed.
fn bound(alone_ns: f64, demands: &[f64], n: u32) -> f64 {
    let (sum, most) = demands.iter().fold((0.0, 0.0_f64), |(sum, most), d| (sum + d, most.max(*d)));
    (f64::from(n) / (alone_ns + sum)).min(1.0 / most.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    fn inputs() -> Inputs {
        Inputs {
            processors: 2,
            access_ns: 9000.0,
            faults: 0.5,
            lifts: 0.002,
            lift_ns: 100_000.0,
            sheds: 0.01,
            pool_holds: 1.0,
            pool_hold_ns: 200.0,
            frame_holds: 0.1,
            frame_hold_ns: 100.0,
            signal_hold_ns: 50.0,
            line_ns: 50.0,
            flush_send_ns: 1000.0,
            flush_receive_ns: 1500.0,
        }
    }

    #[test]
    fn two_threads_that_meet_at_one_station_half_of_their_time_do_it_four_fifths_of_the_time() {
        // By hand: X(1) = 1/2, its queue 1/2, so R(2) = 1.5 and X(2) = 2 / (1 + 1.5).
        assert!(near(throughput(1.0, &[1.0], 1), 0.5));
        assert!(near(throughput(1.0, &[1.0], 2), 0.8));
    }

    #[test]
    fn without_stations_it_is_linear_and_with_nothing_else_it_is_one_at_a_time() {
        for n in 1..=64 {
            assert!(near(throughput(10.0, &[], n), f64::from(n) / 10.0));
            assert!(near(throughput(0.0, &[4.0], n), 0.25));
        }
    }

    #[test]
    fn more_processors_never_give_less_while_flushes_cost_nothing_and_never_more_than_the_bound() {
        let free = Inputs { flush_send_ns: 0.0, flush_receive_ns: 0.0, line_ns: 0.0, ..inputs() };
        let found: Vec<Prediction> = (1..=64).map(|n| free.predict(n, Flushes::OneByOne)).collect();
        assert!(found.windows(2).all(|pair| pair[0].ops_per_s < pair[1].ops_per_s));
        let within = |p: &Prediction| p.ops_per_s <= p.bound_per_s * (1.0 + 1e-9) && p.busy <= 1.0 + 1e-9;
        assert!(found.iter().all(within), "{found:?}");
        assert!((1..=64).map(|n| inputs().predict(n, Flushes::AtOnce)).all(|p| within(&p)));
    }

    #[test]
    fn many_processors_are_limited_by_the_station_with_most_to_do() {
        let last = Inputs { flush_send_ns: 0.0, flush_receive_ns: 0.0, ..inputs() };
        let last = last.predict(4096, Flushes::AtOnce);
        assert_eq!(last.busiest, "address space");
        assert!((last.ops_per_s / 1e9 * 0.002 * 100_000.0 - 1.0).abs() < 0.01, "{last:?}");
    }

    #[test]
    fn flushes_and_shared_words_cost_more_the_more_processors_there_are() {
        let (with, without) = (inputs(), Inputs { flush_receive_ns: 0.0, flush_send_ns: 0.0, ..inputs() });
        let rate = |inputs: &Inputs, n, flushes| inputs.predict(n, flushes).ops_per_s;
        for flushes in [Flushes::AtOnce, Flushes::OneByOne] {
            assert!(near(rate(&with, 2, flushes), rate(&without, 2, flushes)), "measured with two");
            let loss = |n| 1.0 - rate(&with, n, flushes) / rate(&without, n, flushes);
            assert!(loss(4) > 0.0 && loss(16) > loss(4), "{flushes:?}");
        }
        let (at_once, one_by_one) = (rate(&with, 16, Flushes::AtOnce), rate(&with, 16, Flushes::OneByOne));
        assert!(one_by_one < at_once, "{one_by_one} {at_once}");
        let still = Inputs { line_ns: 0.0, ..with };
        let words = |n| rate(&still, n, Flushes::AtOnce) / rate(&with, n, Flushes::AtOnce);
        assert!(words(16) > words(4), "{} {}", words(16), words(4));
    }

    #[test]
    fn the_processor_time_of_the_run_is_all_there_is_to_share_out() {
        let i = inputs();
        let f = Flushes::OneByOne;
        assert!(near(i.alone_ns(2, f) + i.demands(2, f).iter().sum::<f64>(), i.access_ns));
        let small = Inputs { access_ns: 1.0, ..i };
        assert!(small.predict(8, f).ops_per_s.is_finite(), "less than at the stations: nothing is left");
    }
}
