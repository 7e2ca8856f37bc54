//! The tier over a fake disk: a naive model, failures at every operation, damage.

use super::*;
use crate::door::BlockIo;
use crate::page::{ClusterId, PageId, SwapSlot};
use crate::sim::disk::FakeDisk;
use crate::sync::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use weir_os::sys::Errno;

const MIB: u64 = 1 << 20;

/// A linear congruential generator, so that runs repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.below(256) as u8).collect()
}

fn swap(disk: FakeDisk, clusters: u64, encryption: SwapEncryption) -> Swap<FakeDisk> {
    let settings = SwapSettings { blocks_later: disk.is_hollow(), ..SwapSettings::default() };
    Swap::new(disk, clusters * CLUSTER_BYTES, settings, encryption).unwrap()
}

/// A tier with its tools and what it should hold.
struct Fixture {
    swap: Swap<FakeDisk>,
    writer: Writer,
    mover: Writer,
    cache: SlotCache,
    scratch: Scratch,
    /// Slot to page, bytes, references.
    model: BTreeMap<SwapSlot, (PageId, Vec<u8>, u32)>,
}

impl Fixture {
    fn new(disk: FakeDisk, clusters: u64, encryption: SwapEncryption, batch: usize, slots: usize) -> Fixture {
        Fixture {
            swap: swap(disk, clusters, encryption),
            writer: Writer::new(batch).unwrap(),
            mover: Writer::for_moving(batch).unwrap(),
            cache: SlotCache::new(slots),
            scratch: Scratch::new(64 << 10).unwrap(),
            model: BTreeMap::new(),
        }
    }

    /// Writes the batch; on success the model knows the records.
    fn write(&mut self, pending: &mut HashMap<PageId, Vec<u8>>) -> Result<usize, SwapError> {
        let result = self.writer.write(&self.swap, &mut self.cache);
        if result.is_ok() {
            for (page, slot) in self.writer.written() {
                let old = self.model.insert(slot, (page, pending.remove(&page).unwrap(), 1));
                assert_eq!(old, None, "{slot:?} was given out twice");
            }
            assert!(pending.is_empty());
            self.writer.clear();
        }
        result
    }

    fn store(&mut self, records: &[(PageId, Vec<u8>)]) -> Result<usize, SwapError> {
        let mut pending = HashMap::new();
        for (page, bytes) in records {
            self.writer.push(*page, Codec::Lz4, bytes).unwrap();
            pending.insert(*page, bytes.clone());
        }
        self.write(&mut pending)
    }

    fn free(&mut self, slot: SwapSlot) {
        let (_, _, refs) = self.model.get_mut(&slot).unwrap();
        *refs -= 1;
        if *refs == 0 {
            self.model.remove(&slot);
        }
        self.swap.free(&mut self.cache, slot);
    }

    fn check_read(&mut self, slot: SwapSlot) -> Result<(), SwapError> {
        let (page, want, _) = &self.model[&slot];
        self.swap.read_with(slot, *page, &mut self.scratch, |codec, got| {
            assert!((codec, got) == (Codec::Lz4, &want[..]), "{page:?} {slot:?}");
        })
    }

    fn check_all(&mut self) {
        let totals = self.swap.validate().unwrap();
        assert_eq!(totals.records, self.model.len() as u64);
        assert_eq!(totals.references, self.model.values().map(|(_, _, refs)| u64::from(*refs)).sum::<u64>());
        assert_eq!(totals.slots_taken, totals.records + self.cache.held() as u64);
        // No two records share a byte.
        let mut ends: Vec<(u64, u64)> = self.model.keys().map(|slot| self.place(*slot)).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|two| two[0].1 <= two[1].0), "records overlap");
    }

    fn place(&self, slot: SwapSlot) -> (u64, u64) {
        let at = self.swap.shared.locate(slot).unwrap();
        (at.offset, at.offset + record::footprint(at.len) as u64)
    }

    /// Moves what lives in a sparse cluster; records moved.
    fn evacuate(&mut self) -> usize {
        let Some(cluster) = self.swap.sparse_cluster(2) else { return 0 };
        let mut live = Vec::new();
        let each = |page, seen: super::Seen, bytes: Result<(Codec, &[u8]), SwapError>| {
            live.push((page, seen.slot, bytes.unwrap().1.to_vec()));
        };
        self.swap.each_in_cluster(cluster, &mut self.scratch, each).unwrap();
        let in_model: HashSet<SwapSlot> = self
            .model
            .keys()
            .copied()
            .filter(|slot| self.place(*slot).0 / CLUSTER_BYTES == cluster.0.into())
            .collect();
        assert_eq!(live.iter().map(|(_, slot, _)| *slot).collect::<HashSet<_>>(), in_model);
        std::mem::swap(&mut self.writer, &mut self.mover);
        let mut moved = 0;
        for (page, slot, bytes) in live {
            let refs = self.model[&slot].2;
            if refs == 1 && self.store(&[(page, bytes)]).is_ok() {
                self.free(slot);
                moved += 1;
            }
            self.writer.clear();
        }
        std::mem::swap(&mut self.writer, &mut self.mover);
        moved
    }
}

/// What random work came across, so that it is known to have been there.
#[derive(Debug, Default)]
struct Seen {
    written: u32,
    full: u32,
    moved: usize,
    punched: u32,
}

/// One random step; `growing` says whether more is written or more is freed.
fn step(
    b: &mut Fixture,
    r: &mut Random,
    pending: &mut HashMap<PageId, Vec<u8>>,
    seen: &mut Seen,
    growing: bool,
) {
    let slots: Vec<SwapSlot> = b.model.keys().copied().collect();
    let some = slots.get(r.below(slots.len().max(1))).copied();
    let (push, free) = if growing { (60, 66) } else { (5, 70) };
    match (r.below(100), some) {
        (x, _) if x < push => {
            let (page, record) = (PageId(seen.written), bytes(r.0, 1 + r.below(RECORD_BYTES_MAX)));
            if b.writer.push(page, Codec::Lz4, &record).is_ok() {
                pending.insert(page, record);
                seen.written += 1;
            } else if b.write(pending) == Err(SwapError::Full) {
                b.writer.clear();
                pending.clear();
                seen.full += 1;
            }
        }
        (x, Some(slot)) if x < free => b.free(slot),
        (70..73, _) => {
            if let Some(page) = pending.keys().next().copied() {
                assert!(b.writer.cancel(page));
                pending.remove(&page);
            }
        }
        (73..85, Some(slot)) => b.check_read(slot).unwrap(),
        (85..88, Some(slot)) => {
            b.swap.retain(slot);
            b.swap.shared.hold(b.swap.row(), 1);
            b.model.get_mut(&slot).unwrap().2 += 1;
        }
        (88..91, Some(slot)) => {
            let to = PageId(1 << 20 | r.below(1 << 20) as u32);
            b.swap.rename(slot, to);
            b.model.get_mut(&slot).unwrap().0 = to;
        }
        (91..94, _) => seen.moved += b.evacuate(),
        (94..96, _) => seen.punched += b.swap.trim(),
        _ => {}
    }
}

#[test]
fn random_work_agrees_with_a_naive_model() {
    for seed in 1..=9u64 {
        let (batch, align) = [(4096, 512), (256 << 10, 4096), (64 << 10, 512)][seed as usize % 3];
        let encryption = if seed % 3 == 0 { SwapEncryption::None } else { SwapEncryption::Aead };
        let disk = FakeDisk::new(4 * CLUSTER_BYTES, align);
        let disk = if seed % 2 == 0 { disk.hollow() } else { disk };
        let mut b = Fixture::new(disk, 4, encryption, batch, [1, 16, 64][seed as usize / 3 % 3]);
        let (mut r, mut pending, mut seen) = (Random(seed), HashMap::new(), Seen::default());
        for n in 0..32_000 {
            step(&mut b, &mut r, &mut pending, &mut seen, n / 8000 % 2 == 0);
            if n % 200 == 0 {
                b.check_all();
            }
        }
        println!("seed {seed}: {seen:?}, {} live", b.model.len());
        assert!(seen.full > 0 && seen.moved > 0 && seen.punched > 0, "seed {seed}: {seen:?}");
        for slot in b.model.keys().copied().collect::<Vec<_>>() {
            b.check_read(slot).unwrap();
            while b.model.contains_key(&slot) {
                b.free(slot);
            }
        }
        b.writer.close(&b.swap);
        b.mover.close(&b.swap);
        b.swap.empty(&mut b.cache);
        b.check_all();
        assert_eq!((b.swap.free_bytes(), b.swap.live_bytes()), (3 * CLUSTER_BYTES, 0), "seed {seed}");
    }
}

#[test]
fn a_failure_at_any_operation_loses_nothing_and_every_counter_agrees() {
    let mut n = 1;
    loop {
        for (errno, on, hollow) in [
            (Errno::EIO, true, false),
            (Errno::EIO, false, false),
            (Errno::ENOSPC, false, false),
            (Errno::ENOSPC, false, true),
        ] {
            let mut disk = FakeDisk::new(2 * CLUSTER_BYTES, 512);
            if hollow {
                disk = disk.hollow();
            }
            disk.goes_on_failing = on;
            disk.fails_at.store(n, Ordering::Relaxed);
            disk.errno.store(errno.0 as u32, Ordering::Relaxed);
            let mut b = Fixture::new(disk, 2, SwapEncryption::Aead, 16 << 10, 4);
            for round in 0..6u32 {
                let records: Vec<_> = (0..3)
                    .map(|i| (PageId(round * 3 + i), bytes((round * 3 + i).into(), 100 + 700 * i as usize)))
                    .collect();
                let before = b.model.len();
                if let Err(error) = b.store(&records) {
                    assert_eq!(b.model.len(), before);
                    assert_eq!(b.writer.pages().count(), 3, "the owner can put its pages back");
                    let latches = errno == Errno::EIO;
                    assert_eq!(b.swap.is_latched().is_some(), latches, "{error}");
                    assert_eq!(matches!(error, SwapError::Full), !latches);
                    b.writer.clear();
                }
                b.check_all();
                for slot in b.model.keys().copied().collect::<Vec<_>>() {
                    if let Err(error) = b.check_read(slot) {
                        assert_eq!(error, SwapError::Read(errno));
                    }
                }
                if let Some(slot) = b.model.keys().next().copied() {
                    b.free(slot);
                }
                b.swap.trim();
                b.check_all();
            }
            if b.swap.device().ops.load(Ordering::Relaxed) < n {
                assert!(n > 40, "the workload made {n} operations only");
                return;
            }
        }
        n += 1;
    }
}

#[test]
fn after_a_hard_write_error_writes_fail_at_once_and_reads_still_work() {
    let mut b = Fixture::new(FakeDisk::new(CLUSTER_BYTES, 512), 1, SwapEncryption::Aead, 4096, 1);
    b.store(&[(PageId(1), bytes(1, 2000))]).unwrap();
    b.swap.device().fails_at.store(2, Ordering::Relaxed);
    assert_eq!(b.store(&[(PageId(2), bytes(2, 2000))]), Err(SwapError::Write(Errno::EIO)));
    b.writer.clear();
    let ops = b.swap.device().ops.load(Ordering::Relaxed);
    assert_eq!(b.store(&[(PageId(3), bytes(3, 10))]), Err(SwapError::Latched(Errno::EIO)));
    assert_eq!(b.swap.device().ops.load(Ordering::Relaxed), ops, "the device was not asked");
    let slot = *b.model.keys().next().unwrap();
    b.check_read(slot).unwrap();
}

#[test]
fn flipped_bits_damage_their_record_only_wherever_they_are() {
    for encryption in [SwapEncryption::Aead, SwapEncryption::None] {
        let mut b = Fixture::new(FakeDisk::new(CLUSTER_BYTES, 512), 1, encryption, 64 << 10, 8);
        let records: Vec<_> = (0..10).map(|i| (PageId(i), bytes(i.into(), 300 + i as usize))).collect();
        b.store(&records).unwrap();
        let (slots, victim) = (b.model.clone(), *b.model.iter().nth(4).unwrap().0);
        let (begin, _) = b.place(victim);
        let len = record::HEADER_BYTES + b.model[&victim].1.len() + 16;
        for at in 0..len as u64 {
            b.swap.device().flip(begin + at, 1 << (at % 8));
            assert_eq!(b.check_read(victim), Err(SwapError::Damaged), "byte {at}");
            b.swap.device().flip(begin + at, 1 << (at % 8));
        }
        b.swap.device().flip(begin + 30, 4);
        let all: Vec<(PageId, SwapSlot)> = slots.iter().map(|(slot, (page, ..))| (*page, *slot)).collect();
        let (mut good, mut bad) = (0, Vec::new());
        b.swap.read_neighbours(&all, &mut b.scratch, |page, slot, got| match got {
            Ok((_, bytes)) => {
                assert!(bytes == &slots[&slot].1[..]);
                good += 1;
            }
            Err(error) => bad.push((page, slot, error)),
        });
        assert_eq!((good, bad), (9, vec![(slots[&victim].0, victim, SwapError::Damaged)]));
    }
}

#[test]
fn a_record_read_for_another_page_or_written_before_under_the_same_slot_is_damaged() {
    let mut b = Fixture::new(FakeDisk::new(CLUSTER_BYTES, 512), 1, SwapEncryption::Aead, 4096, 1);
    b.store(&[(PageId(1), bytes(1, 900))]).unwrap();
    let slot = *b.model.keys().next().unwrap();
    let mut out = [0; RECORD_BYTES_MAX];
    assert_eq!(b.swap.read(slot, PageId(2), &mut b.scratch, &mut out), Err(SwapError::Damaged));
    // An attacker keeps the old bytes and puts them back after the slot was used again.
    let (begin, end) = b.place(slot);
    let mut old = weir_os::mem::Buffer::new(4096, c"weir-test").unwrap();
    b.swap.device().read_at(begin & !511, &mut old).unwrap();
    b.free(slot);
    b.store(&[(PageId(1), bytes(2, 900))]).unwrap();
    let again = *b.model.keys().next().unwrap();
    assert_eq!(again, slot, "the slot is used again at once");
    let (new, _) = b.place(again);
    let replay = &old[(begin & 511) as usize..][..(end - begin) as usize];
    let mut sector = weir_os::mem::Buffer::new(4096, c"weir-test").unwrap();
    sector[(new & 511) as usize..][..replay.len()].copy_from_slice(replay);
    b.swap.device().write_at(new & !511, &sector[..2048]).unwrap();
    assert_eq!(b.check_read(again), Err(SwapError::Damaged));
}

#[test]
fn nothing_on_disk_is_in_the_clear_when_encrypted() {
    for (encryption, readable) in [(SwapEncryption::Aead, false), (SwapEncryption::None, true)] {
        let mut b = Fixture::new(FakeDisk::new(CLUSTER_BYTES, 512), 1, encryption, 4096, 1);
        let secret = b"correct horse battery staple".repeat(20);
        b.store(&[(PageId(1), secret)]).unwrap();
        let mut disk = weir_os::mem::Buffer::new(64 << 10, c"weir-test").unwrap();
        b.swap.device().read_at(0, &mut disk).unwrap();
        assert_eq!(disk.windows(13).any(|w| w == b"correct horse"), readable, "{encryption:?}");
    }
}

#[test]
fn a_full_batch_is_one_large_write_and_its_neighbours_come_back_with_one_read() {
    let mut b = Fixture::new(FakeDisk::new(2 * CLUSTER_BYTES, 4096), 2, SwapEncryption::Aead, 256 << 10, 64);
    let mut pending = HashMap::new();
    for i in 0.. {
        let record = bytes(i.into(), 1500);
        if b.writer.push(PageId(i), Codec::Lz4, &record).is_err() {
            break;
        }
        pending.insert(PageId(i), record);
    }
    let n = b.write(&mut pending).unwrap();
    assert_eq!(b.swap.device().longest_write.load(Ordering::Relaxed), 256 << 10);
    assert_eq!(b.swap.counters().writes.load(Ordering::Relaxed), 1);
    let trips = b.swap.counters().slot_trips.load(Ordering::Relaxed);
    assert!(trips <= n as u64 / 64 + 1, "{trips} trips to the bitmap for {n} slots");
    let some: Vec<_> = b.model.iter().take(32).map(|(slot, (page, ..))| (*page, *slot)).collect();
    let (mut came, model) = (0, &b.model);
    b.swap.read_neighbours(&some, &mut b.scratch, |_, slot, got| {
        assert!(got.unwrap().1 == &model[&slot].1[..]);
        came += 1;
    });
    assert_eq!((came, b.swap.counters().reads.load(Ordering::Relaxed)), (32, 1));
}

#[test]
fn clusters_that_stay_free_are_punched_once_and_a_full_disk_leaves_them_out() {
    let mut b = Fixture::new(FakeDisk::new(2 * CLUSTER_BYTES, 512), 2, SwapEncryption::None, 4096, 1);
    b.store(&[(PageId(1), bytes(1, 100))]).unwrap();
    b.writer.close(&b.swap);
    b.free(*b.model.keys().next().unwrap());
    assert_eq!((b.swap.trim(), b.swap.trim(), b.swap.trim()), (0, 1, 0));
    assert!(b.swap.shared.cluster(ClusterId(0)).is_punched());
    assert!(!b.swap.shared.cluster(ClusterId(1)).is_punched(), "what was never written keeps its blocks");
    // The untouched cluster is taken first; then the disk has no space for the other.
    b.store(&[(PageId(2), bytes(2, 100))]).unwrap();
    b.writer.close(&b.swap);
    let disk = b.swap.device();
    disk.errno.store(Errno::ENOSPC.0 as u32, Ordering::Relaxed);
    disk.fails_at.store(disk.ops.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    assert_eq!(b.store(&[(PageId(3), bytes(3, 100))]), Err(SwapError::Full));
    assert_eq!(b.swap.is_latched(), None);
    let mut pending = HashMap::from([(PageId(3), bytes(3, 100))]);
    assert_eq!(b.write(&mut pending), Ok(1), "the same batch goes once there is space");
    b.check_all();
}

#[test]
fn a_file_without_blocks_asks_for_all_of_them_before_its_first_write_and_again_when_the_disk_was_full() {
    let mut b =
        Fixture::new(FakeDisk::new(5 * CLUSTER_BYTES, 512).hollow(), 5, SwapEncryption::None, 4096, 1);
    assert_eq!(
        b.swap.free_bytes(),
        4 * CLUSTER_BYTES,
        "what it will have counts as room, but for the reserve"
    );
    assert_eq!((b.swap.trim(), b.swap.trim()), (0, 0), "there is nothing to give back");
    b.swap.device().no_blocks.store(true, Ordering::Relaxed);
    assert_eq!(b.store(&[(PageId(1), bytes(1, 100))]), Err(SwapError::Full));
    assert_eq!((b.swap.is_latched(), b.swap.free_bytes()), (None, 0), "and none on a full disk");
    b.swap.trim();
    assert_eq!(b.swap.free_bytes(), 0, "which is still full");
    b.swap.device().no_blocks.store(false, Ordering::Relaxed);
    b.swap.trim();
    assert_eq!(b.swap.free_bytes(), 4 * CLUSTER_BYTES);
    let mut pending = HashMap::from([(PageId(1), bytes(1, 100))]);
    assert_eq!(b.write(&mut pending), Ok(1));
    assert!((0..5).all(|n| !b.swap.shared.cluster(ClusterId(n)).is_punched()));
    b.check_all();
}

#[test]
fn a_process_that_may_not_allocate_does_not_speak_for_the_others() {
    let mut b =
        Fixture::new(FakeDisk::new(5 * CLUSTER_BYTES, 512).hollow(), 5, SwapEncryption::None, 4096, 1);
    let disk = b.swap.device();
    disk.errno.store(Errno::EPERM.0 as u32, Ordering::Relaxed);
    disk.fails_at.store(1, Ordering::Relaxed);
    assert_eq!(b.store(&[(PageId(1), bytes(1, 100))]), Err(SwapError::Full));
    assert_eq!(b.swap.free_bytes(), 4 * CLUSTER_BYTES);
    let mut pending = HashMap::from([(PageId(1), bytes(1, 100))]);
    assert_eq!(b.write(&mut pending), Ok(1));
    b.check_all();
}

#[test]
fn a_cluster_is_offered_for_moving_once_until_something_in_it_dies() {
    let mut b = Fixture::new(FakeDisk::new(2 * CLUSTER_BYTES, 512), 2, SwapEncryption::None, 64 << 10, 8);
    let records: Vec<_> = (0..8).map(|i| (PageId(i), bytes(i.into(), 4000))).collect();
    b.store(&records).unwrap();
    assert_eq!(b.swap.sparse_cluster(4), None, "an open cluster is not moved");
    b.writer.close(&b.swap);
    assert_eq!((b.swap.sparse_cluster(4), b.swap.sparse_cluster(4)), (Some(ClusterId(0)), None));
    b.free(*b.model.keys().next().unwrap());
    assert_eq!(b.evacuate(), 7);
    assert_eq!(b.swap.free_bytes(), CLUSTER_BYTES);
    b.check_all();
}

#[test]
fn when_slots_run_out_the_batch_waits_for_frees() {
    let settings = SwapSettings { slots: 3, ..SwapSettings::default() };
    let swap =
        Swap::new(FakeDisk::new(CLUSTER_BYTES, 512), CLUSTER_BYTES, settings, SwapEncryption::None).unwrap();
    let (mut writer, mut cache) = (Writer::new(64 << 10).unwrap(), SlotCache::new(2));
    for i in 0..3 {
        writer.push(PageId(i), Codec::Raw, &[1; 50]).unwrap();
    }
    assert_eq!(writer.write(&swap, &mut cache), Ok(3));
    let slots: Vec<_> = writer.written().collect();
    writer.clear();
    writer.push(PageId(9), Codec::Raw, &[2; 50]).unwrap();
    assert_eq!(writer.write(&swap, &mut cache), Err(SwapError::Full));
    swap.validate().unwrap();
    swap.free(&mut cache, slots[1].1);
    assert_eq!(writer.write(&swap, &mut cache), Ok(1));
    assert_eq!(swap.validate().unwrap().records, 3);
}

#[test]
fn the_last_process_counts_again_what_others_left_half_done() {
    let mut b = Fixture::new(FakeDisk::new(2 * CLUSTER_BYTES, 512), 2, SwapEncryption::None, 4096, 4);
    for i in 0..10 {
        b.store(&[(PageId(i), bytes(i.into(), 1000))]).unwrap();
    }
    b.swap.empty(&mut b.cache);
    // Killed before it published, killed before it buried, and a cluster of nobody's.
    let slots: Vec<SwapSlot> = b.model.keys().copied().collect();
    b.swap.shared.add_records(ClusterId(0), 2, 130);
    assert_eq!(b.swap.shared.count(slots[3], false), 0);
    b.model.remove(&slots[3]);
    let stray = b.swap.shared.take(b.swap.device(), 99, 0, b.swap.counters()).unwrap();
    b.swap.shared.add_records(stray, 1, 65);
    assert_eq!(b.swap.validate(), Err("a cluster does not count what lies in it"));
    let mine: Vec<SwapSlot> = b.model.keys().copied().skip(1).collect();
    let freed = b.swap.reclaim_leaked(|name| mine.iter().for_each(|slot| name(*slot)));
    assert_eq!(freed, Some(1), "the one that nobody named");
    b.model.retain(|slot, _| mine.contains(slot));
    b.check_all();
    assert!(b.swap.shared.cluster(stray).is_free());
    for slot in mine {
        b.check_read(slot).unwrap();
        b.free(slot);
    }
    b.check_all();
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    for size in [0, CLUSTER_BYTES - 1, u64::MAX] {
        let disk = FakeDisk::new(MIB, 512);
        let refused = Swap::new(disk, size, SwapSettings::default(), SwapEncryption::None).err();
        assert_eq!(refused, Some(SwapError::Size), "{size}");
    }
}
