//! Model tests of the pool against a map of page to bytes.

use super::*;
use crate::sim::FakePager;
use std::collections::HashMap;
use weir_os::codec::{self, PageBytes};

fn setup(windows: u32) -> (Pool, Frames, FakePager, Stats) {
    let frames = Frames::new(windows, 0, windows * 64).unwrap();
    let pager = FakePager::new(64, windows);
    while frames.grow(&pager).unwrap() > 0 {}
    (Pool::new(windows, windows).unwrap(), frames, pager, Stats::default())
}

fn compressible(seed: u64, random: usize) -> PageBytes {
    let mut p = [7u8; PAGE_BYTES];
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for b in &mut p[..random] {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        *b = (s >> 32) as u8;
    }
    p
}

fn compress(page: &PageBytes) -> Vec<u8> {
    let mut scratch = Box::new(codec::Scratch::new());
    let mut out = vec![0; RECORD_BYTES_MAX];
    let n = codec::lz4_compress(&mut scratch, page, &mut out).unwrap();
    out.truncate(n);
    out
}

#[test]
fn records_come_back_as_stored_and_memory_is_given_back() {
    for seed in 1..8u64 {
        let (pool, frames, pager, stats) = setup(40);
        let all_free = frames.free();
        let mut model: HashMap<u32, (Handle, PageBytes)> = HashMap::new();
        let mut s = seed * 77 + 1;
        for step in 0..1500u32 {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let page = (s >> 33) as u32 % 400;
            if let Some((h, want)) = model.remove(&page) {
                let mut got = [0; PAGE_BYTES];
                pool.expand(&pager, h, PageId(page), &mut got).unwrap();
                assert!(got == want, "seed {seed} step {step}");
                pool.free(&pager, &frames, &stats, h);
            } else {
                let bytes = compressible(s, (s >> 40) as usize % 2600);
                let h =
                    pool.store(&pager, &frames, &stats, PageId(page), Codec::Lz4, &compress(&bytes)).unwrap();
                model.insert(page, (h, bytes));
            }
            if step % 50 == 0 {
                assert_eq!(pool.validate(), Ok(model.len() as u64), "seed {seed} step {step}");
                frames.validate().unwrap();
            }
        }
        for (h, _) in model.values() {
            pool.free(&pager, &frames, &stats, *h);
        }
        assert_eq!((pool.owned(), frames.free()), (0, all_free), "seed {seed}");
        assert_eq!(stats.pool_stored_bytes().get(), 0);
    }
}

#[test]
fn evacuation_empties_sparse_spans_and_windows_return() {
    let (pool, frames, pager, stats) = setup(40);
    let mut live: HashMap<u32, Handle> = HashMap::new();
    for page in 0..2000u32 {
        let bytes = compress(&compressible(u64::from(page), 1200));
        live.insert(page, pool.store(&pager, &frames, &stats, PageId(page), Codec::Lz4, &bytes).unwrap());
    }
    for page in (0..2000u32).filter(|p| p % 5 != 0) {
        pool.free(&pager, &frames, &stats, live.remove(&page).unwrap());
    }
    let before = pool.owned();
    let mut empty = |span| {
        let (mut from, mut buf) = (Some(0), [Located { handle: Handle(0), page: PageId(0) }; 64]);
        while let Some(at) = from {
            let (n, next) = pool.records(&pager, span, at, &mut buf);
            for l in &buf[..n] {
                if let Some(to) = pool.copy_record(&pager, l.handle) {
                    assert_eq!(live.insert(l.page.0, to), Some(l.handle));
                    pool.forget(&pager, &frames, l.handle);
                }
            }
            from = next;
        }
    };
    while let Some(span) = pool.begin_evacuation() {
        empty(span);
        pool.evacuated(span);
        pool.validate().unwrap();
    }
    while let Some(window) = pool.begin_window_evacuation() {
        spans_of(window).for_each(&mut empty);
        pool.window_evacuated(window);
        pool.validate().unwrap();
    }
    assert!(pool.owned() * 2 < before, "{} of {before} windows left", pool.owned());
    for (page, h) in live {
        let mut got = [0; PAGE_BYTES];
        pool.expand(&pager, h, PageId(page), &mut got).unwrap();
        assert!(got == compressible(u64::from(page), 1200));
    }
    pool.validate().unwrap();
}

#[test]
fn a_record_of_another_page_or_a_damaged_one_is_refused() {
    let (pool, frames, pager, stats) = setup(4);
    let h =
        pool.store(&pager, &frames, &stats, PageId(3), Codec::Lz4, &compress(&compressible(1, 100))).unwrap();
    let mut out = [0; PAGE_BYTES];
    assert_eq!(pool.expand(&pager, h, PageId(4), &mut out), Err(Damaged));
    with_bytes(&pager, offset(h) + 6, 2, |b| b.fill(0xff));
    assert_eq!(pool.expand(&pager, h, PageId(3), &mut out), Err(Damaged));
}

#[test]
fn the_pool_stops_at_its_share_and_at_the_end_of_frames() {
    let (pool, frames, pager, stats) = setup(6);
    pool.set_limit(2);
    let bytes = compress(&compressible(9, 2500));
    let mut n = 0;
    let stop = loop {
        match pool.store(&pager, &frames, &stats, PageId(n), Codec::Lz4, &bytes) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(stop, NoRoom::Share);
    assert_eq!(pool.owned(), 2);
    pool.set_limit(100);
    let stop = loop {
        match pool.store(&pager, &frames, &stats, PageId(n), Codec::Lz4, &bytes) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(stop, NoRoom::Frames);
}

#[test]
fn places_for_several_records_are_found_under_one_hold_and_those_that_have_none_are_told() {
    let (pool, frames, pager, stats) = setup(2);
    pool.set_limit(1);
    let records: Vec<Vec<u8>> = (0..4).map(|n| compress(&compressible(n, 2400))).collect();
    let lens: Vec<usize> = records.iter().map(Vec::len).collect();
    let locks = || stats.out_pool_locks().get();
    let (mut live, mut short) = (Vec::new(), 0);
    for round in 0u32.. {
        let (before, mut places) = (locks(), [None; 4]);
        let result = pool.reserve(&pager, &frames, &stats, &lens, &mut places);
        for (k, place) in places.into_iter().enumerate() {
            let page = PageId(round * 4 + k as u32);
            if let Some(handle) = place {
                pool.put(&pager, &stats, handle, page, Codec::Lz4, &records[k]);
                live.push((handle, page, k));
            }
        }
        match (result, round) {
            (Ok(()), 0) => assert_eq!(locks() - before, 3, "once in vain, once to grow, once more"),
            (Ok(()), _) => assert_eq!(locks() - before, 1),
            (Err(e), _) => {
                assert_eq!(e, NoRoom::Share);
                short = places.iter().filter(|place| place.is_none()).count();
                break;
            }
        }
    }
    assert!(short > 0 && live.len() > 80, "{short} {}", live.len());
    assert_eq!(pool.validate(), Ok(live.len() as u64));
    for (handle, page, k) in live {
        let (mut got, mut want) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        pool.expand(&pager, handle, page, &mut got).unwrap();
        assert!(codec::lz4_expand(&records[k], &mut want) && got == want);
        pool.free(&pager, &frames, &stats, handle);
    }
    assert_eq!(pool.owned(), 0);
}
