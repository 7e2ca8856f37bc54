//! What this machine's processors cost each other, measured by two threads of this process: the way of a
//! written word between them, and a flush of what they know of the address space.

use std::sync::Barrier;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use serde::Serialize;
use weir_os::host::AnonymousWords;

const WRITES: u64 = 1_000_000;
const FLUSHES: u32 = 20_000;
/// For how long the other thread's speed without flushes is taken.
const QUIET: Duration = Duration::from_millis(50);
const PAGE_BYTES: usize = 4096;

/// In ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Costs {
    /// To add to a word that another processor adds to all the time.
    pub line_ns: f64,
    /// A flush that one other processor must take part in, against one without it.
    pub flush_send_ns: f64,
    /// The other processor's loss by one flush.
    pub flush_receive_ns: f64,
}

/// Measures; a quarter of a second. `None` on a single processor, where nothing of it can be seen.
pub fn measure() -> anyhow::Result<Option<Costs>> {
    if weir_os::thread::processors() < 2 {
        return Ok(None);
    }
    let alone_ns = flushes_ns()?;
    let (beside_ns, flush_receive_ns) = flushes_beside_another()?;
    Ok(Some(Costs {
        line_ns: line_ns(),
        flush_send_ns: (beside_ns - alone_ns).max(0.0),
        flush_receive_ns: flush_receive_ns.max(0.0),
    }))
}

fn line_ns() -> f64 {
    let (word, begin) = (AtomicU64::new(0), Barrier::new(2));
    let add = || {
        begin.wait();
        let started = Instant::now();
        for _ in 0..WRITES {
            word.fetch_add(1, Relaxed);
        }
        started.elapsed().as_nanos() as f64
    };
    let (mine, other) = std::thread::scope(|scope| {
        let other = scope.spawn(add);
        (add(), other.join().unwrap_or(0.0))
    });
    // One write of either at a time.
    mine.max(other) / (2 * WRITES) as f64
}

/// Time to map a page, write to it and unmap it, for which every processor that runs this process must forget
/// it.
fn flushes_ns() -> anyhow::Result<f64> {
    let started = Instant::now();
    for _ in 0..FLUSHES {
        AnonymousWords::new(PAGE_BYTES)?.words_mut()[0] = 1;
    }
    Ok(started.elapsed().as_nanos() as f64 / f64::from(FLUSHES))
}

/// The same while another thread runs, and what each costs that one.
fn flushes_beside_another() -> anyhow::Result<(f64, f64)> {
    let (turns, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let speed = |before: u64, time: Duration| (turns.load(Acquire) - before) as f64 / time.as_nanos() as f64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n: u64 = 0;
            while !ended.load(Relaxed) {
                // Rarely enough that telling it costs nothing.
                (0..64).for_each(|i| n = std::hint::black_box(n + u64::from(i == 0)));
                turns.store(n, Release);
            }
        });
        std::thread::sleep(QUIET);
        let (started, before) = (Instant::now(), turns.load(Acquire));
        std::thread::sleep(QUIET);
        let quiet = speed(before, started.elapsed());
        let (started, before) = (Instant::now(), turns.load(Acquire));
        let each_ns = flushes_ns();
        let disturbed = speed(before, started.elapsed());
        ended.store(true, Relaxed);
        let each_ns = each_ns?;
        Ok((each_ns, each_ns * (1.0 - disturbed / quiet.max(f64::MIN_POSITIVE))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_a_processor_not_of_a_disk() {
        let Some(costs) = measure().unwrap() else {
            assert_eq!(weir_os::thread::processors(), 1);
            return;
        };
        assert!(costs.line_ns > 0.0 && costs.line_ns < 1e5, "{costs:?}");
        let flush = [costs.flush_send_ns, costs.flush_receive_ns];
        assert!(flush.iter().all(|ns| (0.0..1e6).contains(ns)), "{costs:?}");
    }
}
