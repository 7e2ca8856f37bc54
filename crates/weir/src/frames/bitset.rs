//! A set of window numbers with fast "lowest member": one bit a window and one summary bit for
//! each 64 of them. Changed under the frame allocator's lock only.

use crate::sync::Ordering;
use core::sync::atomic::AtomicU64;
use weir_os::mem::Table;
use weir_os::sys::Errno;

#[derive(Debug)]
pub struct BitSet {
    words: Table<AtomicU64>,
    summary: Table<AtomicU64>,
}

impl BitSet {
    pub fn new(bits: u32) -> Result<BitSet, Errno> {
        let words = (bits as usize).div_ceil(64);
        Ok(BitSet {
            words: Table::new(words, c"weir-windows")?,
            summary: Table::new(words.div_ceil(64), c"weir-windows")?,
        })
    }

    pub fn has(&self, i: u32) -> bool {
        self.words.row(i as usize / 64).load(Ordering::Relaxed) >> (i % 64) & 1 == 1
    }

    pub fn set(&self, i: u32) {
        self.put(i, true);
    }

    pub fn put(&self, i: u32, on: bool) {
        let (w, bit) = (i as usize / 64, 1u64 << (i % 64));
        let (word, sum) = (self.words.row(w), self.summary.row(w / 64));
        let v = if on { word.load(Ordering::Relaxed) | bit } else { word.load(Ordering::Relaxed) & !bit };
        word.store(v, Ordering::Relaxed);
        let sbit = 1u64 << (w % 64);
        let s = sum.load(Ordering::Relaxed);
        sum.store(if v != 0 { s | sbit } else { s & !sbit }, Ordering::Relaxed);
    }

    pub fn first(&self) -> Option<u32> {
        for i in 0..self.summary.len() {
            let s = self.summary.row(i).load(Ordering::Relaxed);
            if s != 0 {
                let w = i * 64 + s.trailing_zeros() as usize;
                let v = self.words.row(w).load(Ordering::Relaxed);
                return Some((w * 64) as u32 + v.trailing_zeros());
            }
        }
        None
    }

    /// The lowest member that `f` accepts.
    pub fn first_where(&self, f: impl Fn(u32) -> bool) -> Option<u32> {
        let words = (0..self.summary.len()).flat_map(|i| {
            let s = self.summary.row(i).load(Ordering::Relaxed);
            (0..64).filter(move |b| s >> b & 1 == 1).map(move |b| i * 64 + b)
        });
        let members = words.flat_map(|w| {
            let v = self.words.row(w).load(Ordering::Relaxed);
            (0..64).filter(move |b| v >> b & 1 == 1).map(move |b| (w * 64 + b) as u32)
        });
        members.into_iter().find(|m| f(*m))
    }

    /// The first of `n` (1..=8) neighbouring members within an aligned group of eight, lowest first.
    pub fn first_run(&self, n: u32) -> Option<u32> {
        /// Bit `b`, set: a run of `n` that begins at `b` stays in its group.
        fn starts(n: u32) -> u64 {
            (0xff >> (n - 1)) * 0x0101_0101_0101_0101
        }
        self.first_word(|v| {
            let runs = (1..n).fold(v, |m, k| m & v >> k) & starts(n);
            (runs != 0).then(|| runs.trailing_zeros())
        })
    }

    fn first_word(&self, f: impl Fn(u64) -> Option<u32>) -> Option<u32> {
        for i in 0..self.summary.len() {
            let mut s = self.summary.row(i).load(Ordering::Relaxed);
            while s != 0 {
                let w = i * 64 + s.trailing_zeros() as usize;
                s &= s - 1;
                if let Some(bit) = f(self.words.row(w).load(Ordering::Relaxed)) {
                    return Some((w * 64) as u32 + bit);
                }
            }
        }
        None
    }

    pub fn last(&self) -> Option<u32> {
        for i in (0..self.summary.len()).rev() {
            let s = self.summary.row(i).load(Ordering::Relaxed);
            if s != 0 {
                let w = i * 64 + 63 - s.leading_zeros() as usize;
                let v = self.words.row(w).load(Ordering::Relaxed);
                return Some((w * 64) as u32 + 63 - v.leading_zeros());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_follow_the_members() {
        let s = BitSet::new(10_000).unwrap();
        assert_eq!((s.first(), s.last()), (None, None));
        for i in [9_999, 70, 4_096] {
            s.set(i);
        }
        assert_eq!((s.first(), s.last()), (Some(70), Some(9_999)));
        s.put(70, false);
        s.put(9_999, false);
        assert_eq!((s.first(), s.last()), (Some(4_096), Some(4_096)));
        assert!(s.has(4_096) && !s.has(70));
        s.set(5_000);
        for i in [130, 131, 135, 136, 137, 138, 191, 192, 193, 194] {
            s.set(i);
        }
        assert_eq!((s.first_run(2), s.first_run(3), s.first_run(4)), (Some(130), Some(136), None));
        (200..208).for_each(|i| s.set(i));
        assert_eq!((s.first_run(8), s.first_run(5)), (Some(200), Some(200)));
        assert_eq!((s.first_where(|m| m > 4_096), s.first_where(|m| m > 5_000)), (Some(5_000), None));
    }
}
