//! The swap tier over a real file, with both ways to do I/O: damage on disk, threads, forked processes.

#![expect(unsafe_code, reason = "forks, waits and kills")]

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use weir::config::Settings;
use weir::engine::Engine;
use weir::error::StartError;
use weir::replay::swap::*;
use weir::replay::{PageId, SwapSlot};
use weir_os::fileio::{Backend, FileIo};
use weir_os::pager::Intake;
use weir_os::swapfile::SwapFile;

type Tier = Swap<FileIo>;
const CLUSTERS: u64 = 8;

fn tier(backend: Backend, encryption: SwapEncryption) -> Tier {
    let folder = CString::new(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = SwapFile::open(&folder, CLUSTERS * CLUSTER_BYTES).expect("the target folder is on a disk");
    let io = FileIo::new(file, backend);
    println!("{:?}, wanted {backend:?}, {:?}", io.backend(), io.file().granted());
    Swap::new(io, CLUSTERS * CLUSTER_BYTES, SwapSettings::default(), encryption).unwrap()
}

fn bytes(page: PageId, version: u64) -> Vec<u8> {
    let mut s = (u64::from(page.0) << 20 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let len = 1 + (s >> 40) as usize % RECORD_BYTES_MAX;
    let next = |_| {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 56) as u8
    };
    (0..len).map(next).collect()
}

fn store(
    tier: &Tier,
    writer: &mut Writer,
    cache: &mut SlotCache,
    pages: std::ops::Range<u32>,
) -> Vec<(PageId, SwapSlot)> {
    for page in pages.map(PageId) {
        writer.push(page, Codec::Lz4, &bytes(page, 0)).unwrap();
    }
    writer.write(tier, cache).unwrap();
    let written = writer.written().collect();
    writer.clear();
    written
}

fn tools() -> (Writer, SlotCache, Scratch) {
    (Writer::new(256 << 10).unwrap(), SlotCache::new(16), Scratch::new(256 << 10).unwrap())
}

#[test]
fn both_backends_give_records_back_one_by_one_and_together() {
    for backend in [Backend::Uring, Backend::Plain] {
        for encryption in [SwapEncryption::Aead, SwapEncryption::None] {
            let tier = tier(backend, encryption);
            let (mut writer, mut cache, mut scratch) = tools();
            let mut all = Vec::new();
            for batch in 0..20 {
                all.extend(store(&tier, &mut writer, &mut cache, batch * 50..batch * 50 + 50));
            }
            let mut out = [0; RECORD_BYTES_MAX];
            for &(page, slot) in &all {
                let (_, len) = tier.read(slot, page, &mut scratch, &mut out).unwrap();
                assert!(out[..len] == bytes(page, 0));
            }
            // Every seventh: several runs apart from each other, so several requests at once.
            let some: Vec<_> = all.iter().copied().step_by(7).collect();
            let mut came = 0;
            tier.read_neighbours(&some, &mut scratch, |page, _, got| {
                assert!(got.unwrap().1 == bytes(page, 0));
                came += 1;
            });
            assert_eq!(came, some.len());
            assert_eq!(tier.validate().unwrap().records, 1000);
        }
    }
}

#[test]
fn bits_flipped_in_the_file_damage_their_record_only() {
    for encryption in [SwapEncryption::Aead, SwapEncryption::None] {
        let tier = tier(Backend::Uring, encryption);
        let (mut writer, mut cache, mut scratch) = tools();
        let all = store(&tier, &mut writer, &mut cache, 0..50);
        let mut sector = weir_os::mem::Buffer::new(4096, c"weir-test").unwrap();
        // Somewhere in the middle of the batch lies somebody's record.
        tier.device().read_at(48 << 10, &mut sector).unwrap();
        sector[1777] ^= 0x10;
        tier.device().write_at(48 << 10, &sector).unwrap();
        let mut out = [0; RECORD_BYTES_MAX];
        let mut damaged = 0;
        for &(page, slot) in &all {
            match tier.read(slot, page, &mut scratch, &mut out) {
                Ok((_, len)) => assert!(out[..len] == bytes(page, 0)),
                Err(error) => {
                    assert_eq!(error, SwapError::Damaged);
                    damaged += 1;
                }
            }
        }
        assert_eq!(damaged, 1);
    }
}

#[test]
fn readers_see_whole_records_while_others_write_and_free() {
    const PAGES: u32 = 400;
    let tier = tier(Backend::Uring, SwapEncryption::Aead);
    // What each page's word would be: slot and version. Readers hold the lock, as they would hold the page's.
    let words: Vec<RwLock<Option<(SwapSlot, u64)>>> = (0..PAGES).map(|_| RwLock::new(None)).collect();
    let (done, reads, freed) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(0u64));
    std::thread::scope(|scope| {
        for seed in 1..=3u64 {
            let (tier, words, done, reads) = (&tier, &words, &done, &reads);
            scope.spawn(move || {
                let (_, _, mut scratch) = tools();
                let mut s = seed;
                while !done.load(Ordering::Relaxed) {
                    s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let page = PageId((s >> 33) as u32 % PAGES);
                    let word = words[page.0 as usize].read().unwrap();
                    if let Some((slot, version)) = *word {
                        let same =
                            tier.read_with(slot, page, &mut scratch, |_, got| got == bytes(page, version));
                        assert_eq!(same, Ok(true), "seed {seed} {page:?}");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let (mut writer, mut cache, _) = tools();
        for version in 1..=40u64 {
            for first in (0..PAGES).step_by(50) {
                for page in (first..first + 50).map(PageId) {
                    writer.push(page, Codec::Lz4, &bytes(page, version)).unwrap();
                }
                writer.write(&tier, &mut cache).unwrap();
                for (page, slot) in writer.written() {
                    let old = words[page.0 as usize].write().unwrap().replace((slot, version));
                    if let Some((slot, _)) = old {
                        tier.free(&mut cache, slot);
                        *freed.lock().unwrap() += 1;
                    }
                }
                writer.clear();
            }
            tier.trim();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(*freed.lock().unwrap(), 39 * u64::from(PAGES));
    assert!(reads.load(Ordering::Relaxed) > 0);
    assert_eq!(tier.validate().unwrap().records, u64::from(PAGES));
}

/// Runs `child` in a forked process; its exit status is 0 when it returns true.
fn fork(child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs on its own copy and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: no destructors of the parent's values run.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    pid
}

fn ended(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// What the fork hook does in a child.
fn enter_child(tier: &Tier, retained: usize) {
    tier.device().renew_in_child();
    tier.after_fork_in_child(retained as u64);
}

#[test]
fn parent_and_child_free_what_they_share_in_either_order() {
    for child_first in [true, false] {
        let tier = tier(Backend::Uring, SwapEncryption::Aead);
        let (mut writer, mut cache, mut scratch) = tools();
        let shared = store(&tier, &mut writer, &mut cache, 0..100);
        shared.iter().for_each(|(_, slot)| tier.retain(*slot));
        let mut pipe = [0; 2];
        // SAFETY: writes two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let child = fork(|| {
            enter_child(&tier, shared.len());
            if !child_first {
                let mut go = [0u8];
                // SAFETY: reads one byte; waits for the parent.
                assert_eq!(unsafe { libc::read(pipe[0], go.as_mut_ptr().cast(), 1) }, 1);
            }
            // It reads what it inherited, writes records of its own beside the parent's, and drops all.
            let own = store(&tier, &mut writer, &mut cache, 1000..1050);
            for &(page, slot) in shared.iter().chain(&own) {
                let same = tier.read_with(slot, page, &mut scratch, |_, got| got == bytes(page, 0));
                assert_eq!(same, Ok(true), "{page:?}");
                tier.free(&mut cache, slot);
            }
            writer.close(&tier);
            tier.empty(&mut cache);
            tier.depart();
            true
        });
        if child_first {
            assert_eq!(ended(child), 0);
        }
        let mine = store(&tier, &mut writer, &mut cache, 2000..2050);
        for &(page, slot) in shared.iter().chain(&mine) {
            let same = tier.read_with(slot, page, &mut scratch, |_, got| got == bytes(page, 0));
            assert_eq!(same, Ok(true), "{page:?}");
            tier.free(&mut cache, slot);
        }
        if !child_first {
            assert_eq!(tier.validate().unwrap().records, 100, "the child still holds them");
            // SAFETY: writes one byte.
            assert_eq!(unsafe { libc::write(pipe[1], [1u8].as_ptr().cast(), 1) }, 1);
            assert_eq!(ended(child), 0);
        }
        writer.close(&tier);
        tier.empty(&mut cache);
        let totals = tier.validate().unwrap();
        assert_eq!((totals.records, totals.slots_taken, totals.clusters_free), (0, 0, CLUSTERS));
        assert_eq!(tier.leaked(), 0);
        // SAFETY: our own descriptors.
        pipe.iter().for_each(|fd| assert_eq!(unsafe { libc::close(*fd) }, 0));
    }
}

#[test]
fn what_a_killed_child_held_is_counted_and_comes_back_to_the_last_process() {
    let tier = tier(Backend::Plain, SwapEncryption::Aead);
    let (mut writer, mut cache, mut scratch) = tools();
    let shared = store(&tier, &mut writer, &mut cache, 0..100);
    shared.iter().for_each(|(_, slot)| tier.retain(*slot));
    let child = fork(|| {
        enter_child(&tier, shared.len());
        store(&tier, &mut writer, &mut cache, 1000..1030);
        tier.free(&mut cache, shared[0].1);
        // SAFETY: ends this process in the middle of it all.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        false
    });
    assert_eq!(ended(child), libc::SIGKILL);
    assert_eq!(tier.reclaim_leaked(|_| ()), None, "not before the dead are settled");
    let open = tier.validate().unwrap().clusters_open;
    tier.trim();
    assert_eq!(tier.leaked(), 99 + 30);
    assert_eq!(tier.validate().unwrap().clusters_open, open - 1, "the child's cluster is closed");
    tier.empty(&mut cache);
    let freed = tier.reclaim_leaked(|mine| shared.iter().for_each(|(_, slot)| mine(*slot)));
    assert_eq!((freed, tier.leaked()), (Some(30), 0));
    let totals = tier.validate().unwrap();
    assert_eq!((totals.records, totals.references, totals.slots_taken), (100, 100, 100));
    let model: HashMap<SwapSlot, PageId> = shared.iter().map(|&(page, slot)| (slot, page)).collect();
    for (slot, page) in model {
        assert_eq!(tier.read_with(slot, page, &mut scratch, |_, got| got == bytes(page, 0)), Ok(true));
        tier.free(&mut cache, slot);
    }
    writer.close(&tier);
    tier.empty(&mut cache);
    assert_eq!(tier.validate().unwrap().clusters_free, CLUSTERS);
}

#[test]
fn a_child_in_another_pid_namespace_neither_takes_its_parent_for_dead_nor_is_taken() {
    let tier = tier(Backend::Plain, SwapEncryption::Aead);
    let (mut writer, mut cache, _) = tools();
    store(&tier, &mut writer, &mut cache, 0..10);
    let open = tier.validate().unwrap().clusters_open;
    let child = fork(|| {
        // SAFETY: no pointers. Refused without the right to it; then the child is an ordinary one, which must
        // behave the same.
        let _ = unsafe { libc::unshare(libc::CLONE_NEWPID) };
        let grandchild = fork(|| {
            enter_child(&tier, 0);
            store(&tier, &mut writer, &mut cache, 100..110);
            tier.trim();
            tier.leaked() == 0 && tier.validate().unwrap().clusters_open == open + 1
        });
        ended(grandchild) == 0
    });
    assert_eq!(ended(child), 0);
    assert_eq!(tier.leaked(), 0, "not settled yet");
    tier.trim();
    assert_eq!((tier.leaked(), tier.validate().unwrap().clusters_open), (10, open));
    store(&tier, &mut writer, &mut cache, 10..20);
    assert_eq!(tier.validate().unwrap().clusters_open, open, "the parent's own stayed open");
}

#[test]
fn a_child_that_execs_is_settled_while_the_new_program_runs() {
    let tier = tier(Backend::Plain, SwapEncryption::Aead);
    let (mut writer, mut cache, _) = tools();
    let shared = store(&tier, &mut writer, &mut cache, 0..10);
    shared.iter().for_each(|(_, slot)| tier.retain(*slot));
    let mut pipes = [[0; 2]; 2];
    for pipe in &mut pipes {
        // SAFETY: writes two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    }
    let child = fork(|| {
        enter_child(&tier, shared.len());
        // `cat` says when it runs by passing a byte on, and ends with its input.
        // SAFETY: descriptors of our own, strings that end.
        unsafe {
            libc::dup2(pipes[0][0], 0);
            libc::dup2(pipes[1][1], 1);
            pipes.iter().flatten().for_each(|fd| _ = libc::close(*fd));
            libc::execlp(c"cat".as_ptr(), c"cat".as_ptr(), core::ptr::null::<libc::c_char>());
        }
        false
    });
    let mut byte = [7u8];
    // SAFETY: one byte each way; then the ends are closed, which ends the child.
    unsafe {
        assert_eq!(libc::write(pipes[0][1], byte.as_ptr().cast(), 1), 1);
        assert_eq!(libc::read(pipes[1][0], byte.as_mut_ptr().cast(), 1), 1);
    }
    tier.trim();
    assert_eq!(tier.leaked(), 10);
    tier.empty(&mut cache);
    assert_eq!(tier.reclaim_leaked(|mine| shared.iter().for_each(|(_, slot)| mine(*slot))), Some(0));
    assert_eq!(tier.validate().unwrap().references, 10, "the parent's own are left");
    // SAFETY: our own descriptors.
    pipes.iter().flatten().for_each(|fd| assert_eq!(unsafe { libc::close(*fd) }, 0));
    assert_eq!(ended(child), 0);
}

#[test]
fn processes_that_write_and_free_at_once_leave_nothing_behind() {
    let tier = tier(Backend::Uring, SwapEncryption::Aead);
    let children: Vec<_> = (0..4u32)
        .map(|n| {
            fork(|| {
                enter_child(&tier, 0);
                let (mut writer, mut cache, mut scratch) = tools();
                let mut held: Vec<(PageId, SwapSlot)> = Vec::new();
                for round in 0..60 {
                    let first = n * 100_000 + round * 40;
                    held.extend(store(&tier, &mut writer, &mut cache, first..first + 40));
                    let keep = if round % 8 == 7 { 0 } else { held.len().min(100) };
                    while held.len() > keep {
                        let (page, slot) = held.remove(0);
                        let same = tier.read_with(slot, page, &mut scratch, |_, got| got == bytes(page, 0));
                        assert_eq!(same, Ok(true));
                        tier.free(&mut cache, slot);
                    }
                }
                held.iter().for_each(|(_, slot)| tier.free(&mut cache, *slot));
                writer.close(&tier);
                tier.empty(&mut cache);
                tier.depart();
                true
            })
        })
        .collect();
    assert!(children.into_iter().all(|child| ended(child) == 0));
    let totals = tier.validate().unwrap();
    assert_eq!((totals.records, totals.slots_taken, totals.clusters_free), (0, 0, CLUSTERS));
}

#[test]
fn an_engine_whose_file_was_to_size_itself_starts_without_one_where_none_can_be() {
    let start = |swap: &'static str| {
        let settings = Settings::from_env(|name| match name {
            "WEIR_MEMORY" => Some("16M".to_owned()),
            "WEIR_SWAP" => Some(swap.to_owned()),
            "WEIR_SWAP_DIR" => Some("/dev/shm".to_owned()),
            _ => None,
        });
        Engine::start(&settings.unwrap(), Intake::InThread)
    };
    assert!(start("auto").unwrap().core.copies.swapping.is_none());
    let refused = start("16M").err().unwrap();
    assert!(matches!(refused, StartError::Swap(_)) && refused.to_string().contains("tmpfs"), "{refused}");
}
