//! `weir __workload gate`: a plain program that makes system calls in loops and says what each costs. It
//! knows nothing of Weir; its large buffer is what Weir manages.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use serde_json::{Map, Value, json};
use weir_os::probe::calls::{clock_gettime, read};
use weir_os::{sys, thread};

use super::median;

/// Large enough to start Weir's engine, small enough to stay in any budget whole.
const BUFFER_BYTES: usize = 16 << 20;
const LARGE_READ_BYTES: usize = 64 << 10;
const FILE_BYTES: usize = 4 << 10;
const PART_BYTES: usize = 1 << 10;
const PARTS: usize = 4;
/// Parts lie in pages of their own.
const PART_DISTANCE: usize = 64 << 10;
/// Calls between two looks at the clock: few enough that most batches run without interruption on a busy
/// machine, many enough that the clock costs nothing.
const BATCH: u64 = 100;
/// Bytes sent before they are received one by one: less than any socket holds.
const SENT_BYTES: usize = 64 * BATCH as usize;

/// Where the buffer of a call lies, and how it comes to be there for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// On the stack, or there is none.
    Outside,
    /// In the large buffer, and the call is made by a function of libc that Weir wraps.
    Wrapped,
    /// In the large buffer, and the call is made past libc.
    Trapped,
}

/// A call that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name in the results.
    pub name: &'static str,
    /// Its way to the kernel.
    pub way: Way,
}

const fn outside(name: &'static str) -> Call {
    Call { name, way: Way::Outside }
}

const fn wrapped(name: &'static str) -> Call {
    Call { name, way: Way::Wrapped }
}

/// All of them, in the order in which they are made.
pub const CALLS: [Call; 12] = [
    outside("getpid"),
    outside("read 1 byte"),
    outside("futex wake, private"),
    outside("clock_gettime"),
    outside("writev, 4 parts of 16 bytes"),
    Call { name: "read 1 byte, past libc", way: Way::Trapped },
    wrapped("read 1 byte, managed"),
    wrapped("read 64 KiB, managed"),
    wrapped("pread 4 KiB of a file"),
    wrapped("write 4 KiB"),
    wrapped("writev, 4 parts of 1 KiB"),
    wrapped("recv 1 byte"),
];

/// Calls made for `calls` measured ones: whole batches, and a tenth more first, to settle.
pub fn calls_made(calls: u64) -> u64 {
    let batches = calls.div_ceil(BATCH);
    (batches + batches / 10) * BATCH
}

/// Makes every call `calls` times. Returns nanoseconds per call, by name: those of the median batch, and the
/// mean, which holds whatever interrupted the loop too.
pub fn workload(calls: u64) -> anyhow::Result<Value> {
    ensure!(calls > 0, "--calls must be at least 1");
    let mut buffer = vec![0_u8; BUFFER_BYTES];
    buffer.fill(1); // resident from here on
    let mut places = Places::new()?;
    let (mut medians, mut means) = (Map::new(), Map::new());
    for call in CALLS {
        let mut batches = Batches::new(calls);
        places.measure(call.name, &mut batches, &mut buffer).with_context(|| call.name)?;
        medians.insert(call.name.to_owned(), json!(batches.median_ns()));
        means.insert(call.name.to_owned(), json!(batches.mean_ns()));
    }
    // Only the first bytes were written to.
    ensure!(buffer[LARGE_READ_BYTES..].iter().all(|byte| *byte == 1), "the buffer lost its bytes");
    Ok(json!({ "calls": calls, "ns_per_call": medians, "mean_ns_per_call": means }))
}

/// What the calls work on.
struct Places {
    zero: File,
    null: File,
    file: File,
    from: UnixStream,
    to: UnixStream,
}

impl Places {
    fn new() -> anyhow::Result<Places> {
        let path = std::env::temp_dir().join(format!("weir-gate-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        std::fs::remove_file(&path)?;
        (&file).write_all(&[7; FILE_BYTES])?;
        let (from, to) = UnixStream::pair()?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        Ok(Places { zero: File::open("/dev/zero")?, null, file, from, to })
    }

    /// Measures the call named.
    fn measure(&mut self, name: &str, batches: &mut Batches, buffer: &mut [u8]) -> anyhow::Result<()> {
        let word = AtomicU32::new(0);
        let mut byte = [0_u8; 1];
        match name {
            "getpid" => batches.time(|| Ok(sys::getpid() as usize)),
            "read 1 byte" => batches.time(|| full((&self.zero).read(&mut byte)?, 1)),
            "futex wake, private" => batches.time(|| {
                thread::futex_wake(&word, 1);
                Ok(0)
            }),
            "clock_gettime" => batches.time(|| Ok(clock_gettime() as usize)),
            "writev, 4 parts of 16 bytes" => {
                let bytes = [1_u8; 16];
                let parts = [IoSlice::new(&bytes); PARTS];
                batches.time(|| full((&self.null).write_vectored(&parts)?, PARTS * bytes.len()))
            }
            "read 1 byte, past libc" => {
                let (fd, into) = (self.zero.as_raw_fd(), &mut buffer[..1]);
                batches.time(|| full(read(fd, into).map_err(|e| anyhow!("{e:?}"))?, 1))
            }
            "read 1 byte, managed" => batches.time(|| full((&self.zero).read(&mut buffer[..1])?, 1)),
            "read 64 KiB, managed" => {
                let into = &mut buffer[..LARGE_READ_BYTES];
                batches.time(|| full((&self.zero).read(into)?, LARGE_READ_BYTES))
            }
            "pread 4 KiB of a file" => {
                let into = &mut buffer[..FILE_BYTES];
                batches.time(|| full(self.file.read_at(into, 0)?, FILE_BYTES))
            }
            "write 4 KiB" => batches.time(|| full((&self.null).write(&buffer[..FILE_BYTES])?, FILE_BYTES)),
            "writev, 4 parts of 1 KiB" => {
                let part = |i: usize| IoSlice::new(&buffer[i * PART_DISTANCE..][..PART_BYTES]);
                let parts: [IoSlice<'_>; PARTS] = std::array::from_fn(part);
                batches.time(|| full((&self.null).write_vectored(&parts)?, PARTS * PART_BYTES))
            }
            "recv 1 byte" => self.receive(batches, &mut buffer[..1]),
            _ => anyhow::bail!("no such call"),
        }
    }

    /// Only receiving is timed; the bytes are sent before, many at once, from outside the buffer.
    fn receive(&mut self, batches: &mut Batches, into: &mut [u8]) -> anyhow::Result<()> {
        let mut there = 0;
        while !batches.done() {
            if there == 0 {
                self.from.write_all(&[9; SENT_BYTES])?;
                there = SENT_BYTES as u64;
            }
            batches.one(&mut || full(self.to.read(into)?, 1))?;
            there -= BATCH;
        }
        // The next round begins with an empty socket.
        (&self.to).read_exact(&mut vec![0; there as usize])?;
        Ok(())
    }
}

/// Times of batches of calls, in ns.
struct Batches {
    /// Still to come that are not measured.
    settling: u64,
    ns: Vec<u64>,
    wanted: usize,
}

impl Batches {
    fn new(calls: u64) -> Batches {
        let wanted = calls.div_ceil(BATCH);
        // Room for all at once: nothing is allocated while calls are timed.
        Batches { settling: wanted / 10, ns: Vec::with_capacity(wanted as usize), wanted: wanted as usize }
    }

    fn done(&self) -> bool {
        self.ns.len() == self.wanted
    }

    fn one(&mut self, call: &mut impl FnMut() -> anyhow::Result<usize>) -> anyhow::Result<()> {
        let started = Instant::now();
        for _ in 0..BATCH {
            black_box(call()?);
        }
        let ns = started.elapsed().as_nanos() as u64;
        match self.settling {
            0 => self.ns.push(ns),
            _ => self.settling -= 1,
        }
        Ok(())
    }

    fn time(&mut self, mut call: impl FnMut() -> anyhow::Result<usize>) -> anyhow::Result<()> {
        while !self.done() {
            self.one(&mut call)?;
        }
        Ok(())
    }

    fn median_ns(&self) -> Option<f64> {
        median(self.ns.iter().map(|ns| *ns as f64 / BATCH as f64))
    }

    fn mean_ns(&self) -> f64 {
        self.ns.iter().sum::<u64>() as f64 / (self.ns.len() as u64 * BATCH) as f64
    }
}

/// A call that did less than it was asked for would look cheap.
fn full(done: usize, wanted: usize) -> anyhow::Result<usize> {
    ensure!(done == wanted, "{done} bytes instead of {wanted}");
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_made_and_has_a_price() {
        let result = workload(20_000).unwrap();
        for call in CALLS {
            let ns = result["ns_per_call"][call.name].as_f64().unwrap();
            // No system call is done in less, no loop of working calls takes more.
            assert!((5.0..1e6).contains(&ns), "{}: {ns}", call.name);
        }
    }

    #[test]
    fn batches_count_as_many_calls_as_they_say() {
        for calls in [1, 100, 1000, 1050] {
            let (mut made, mut batches) = (0, Batches::new(calls));
            batches
                .time(|| {
                    made += 1;
                    Ok(0)
                })
                .unwrap();
            assert_eq!(made, calls_made(calls));
            assert!(batches.median_ns().is_some() && batches.mean_ns() > 0.0);
        }
    }

    #[test]
    fn short_transfers_are_errors() {
        assert!(full(1, 2).is_err());
        assert_eq!(full(2, 2).unwrap(), 2);
    }
}
