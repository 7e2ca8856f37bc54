//! Pools on the real kernel, in this process. Needs permission for userfaultfd and says so.

#![expect(unsafe_code, reason = "forks, to see what a child has of a pool")]

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use weir::{
    Advice, AllocError, BuildError, FileError, MemoryError, PinError, Pool, RangeError, Region, WeirVec,
};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn pool(mib: usize) -> Pool {
    Pool::builder().memory(mib * MIB).build().expect("userfaultfd: run as root or see `weir doctor`")
}

fn byte(i: usize) -> u8 {
    ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Fills a region with bytes that hardly compress, a few in each page.
fn fill(region: &mut [u8]) {
    for (i, b) in region.iter_mut().enumerate().step_by(61) {
        *b = byte(i);
    }
}

/// Fills a region with bytes that do not compress at all.
fn noise(region: &mut [u8]) {
    let numbers = (1u64..).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    region.chunks_exact_mut(8).zip(numbers).for_each(|(to, from)| to.copy_from_slice(&from));
}

fn is_noise(region: &[u8]) -> bool {
    let numbers = (1u64..).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    region.chunks_exact(8).zip(numbers).all(|(is, was)| is == was)
}

fn wrong(region: &[u8]) -> usize {
    region.iter().enumerate().step_by(61).filter(|(i, b)| **b != byte(*i)).count()
}

#[test]
fn data_of_three_budgets_keeps_every_byte_within_the_budget() {
    let pool = pool(16);
    let mut region = pool.alloc(48 * MIB).unwrap();
    assert_eq!((region.len(), region.as_ptr() as usize % (256 << 10)), (48 * MIB, 0));
    fill(&mut region);
    for pass in 0..2 {
        assert_eq!(wrong(&region), 0, "pass {pass}");
        let stats = pool.stats();
        assert!(stats.ram <= 16 * MIB as u64 && stats.data >= 48 * MIB as u64, "{stats:?}");
        assert!(stats.compressed + stats.swapped > 0, "nothing ever left: {stats:?}");
    }
    drop(region);
    assert_eq!(pool.stats().data, 0);
}

/// Anonymous memory of this process in RAM, as the kernel counts it.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn the_kernel_counts_no_more_than_the_budget_for_data_that_does_not_compress() {
    alone("counted_by_the_kernel", || {
        let before = anonymous_bytes();
        let pool = pool(16);
        let mut region = pool.alloc(48 * MIB).unwrap();
        noise(&mut region);
        for _ in 0..2 {
            assert!(is_noise(&region));
            let taken = anonymous_bytes() - before;
            let stats = pool.stats();
            assert!(taken <= 16 * MIB as u64 && taken > 12 * MIB as u64, "{taken} of {stats:?}");
            assert!(stats.swapped >= 30 * MIB as u64 && stats.swap_free > 0, "{stats:?}");
        }
    });
}

#[test]
fn two_pools_keep_two_budgets() {
    let (small, large) = (pool(8), pool(24));
    let (mut a, mut b) = (small.alloc(24 * MIB).unwrap(), large.alloc(24 * MIB).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| fill(&mut a));
        fill(&mut b);
    });
    for _ in 0..2 {
        assert_eq!((wrong(&a), wrong(&b)), (0, 0));
        let (s, l) = (small.stats(), large.stats());
        assert!(s.ram <= 8 * MIB as u64 && l.ram <= 24 * MIB as u64, "{s:?} {l:?}");
        assert!(l.ram > 12 * MIB as u64, "the larger one has what the smaller one has not: {l:?}");
    }
    // One goes; the other works on.
    drop((small, a));
    assert_eq!(wrong(&b), 0);
}

fn inline_pool(mib: usize) -> Pool {
    Pool::builder().memory(mib * MIB).set("faults", "inline").build().unwrap()
}

#[test]
fn pools_of_both_ways_to_resolve_faults_live_in_one_process() {
    let (inline, thread) = (inline_pool(8), pool(16));
    let (mut a, mut b) = (inline.alloc(24 * MIB).unwrap(), thread.alloc(24 * MIB).unwrap());
    std::thread::scope(|scope| {
        let (left, right) = a.split_at_mut(10 * MIB);
        scope.spawn(|| fill(left));
        scope.spawn(|| right.fill(3));
        fill(&mut b);
    });
    for _ in 0..2 {
        assert_eq!((wrong(&a[..10 * MIB]), wrong(&b)), (0, 0));
        assert!(a[10 * MIB..].iter().step_by(61).all(|b| *b == 3));
        let (i, t) = (inline.stats(), thread.stats());
        assert!(i.ram <= 8 * MIB as u64 && t.ram <= 16 * MIB as u64, "{i:?} {t:?}");
        assert!(i.faults > 100 && t.faults > 100, "{i:?} {t:?}");
    }
}

#[test]
fn inline_faults_leave_system_calls_to_pins() {
    let pool = inline_pool(8);
    let mut region = pool.alloc(16 * MIB).unwrap();
    fill(&mut region);
    region.advise(.., Advice::Cold).unwrap();
    let mut null = std::fs::File::open("/dev/zero").unwrap();
    let refused = null.read(&mut region[..MIB]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT), "never other bytes");
    let pinned = region.pin(..MIB).unwrap();
    null.read_exact(&mut region[..MIB]).unwrap();
    drop(pinned);
    assert!(region[..MIB].iter().all(|b| *b == 0) && region[MIB..].iter().any(|b| *b != 0));
}

/// The handler that a test sets before its first pool; it mends what was wrong.
extern "C" fn mend(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's structure; the page of a mapped file behind the file's end becomes plain memory.
    unsafe {
        let at = ((*info).si_addr() as usize & !(PAGE - 1)) as *mut libc::c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    }
}

#[test]
fn a_sigbus_that_is_none_of_a_pools_goes_to_whoever_had_it_before() {
    alone("sigbus", || {
        // SAFETY: installs the handler above; then reads a mapping of a file without a byte.
        let read_behind_the_end = || unsafe {
            let file = tempfile();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            let at = libc::mmap(core::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u8>().read_volatile()
        };
        // SAFETY: a handler that is fit for what this test does.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = mend as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGBUS, &action, core::ptr::null_mut()), 0);
        }
        let pool = inline_pool(8);
        let mut region = pool.alloc(16 * MIB).unwrap();
        fill(&mut region);
        assert_eq!(read_behind_the_end(), 0);
        assert_eq!(wrong(&region), 0);
        drop((region, pool));
        assert_eq!(read_behind_the_end(), 0);
    });
}

fn tempfile() -> std::fs::File {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("weir-library-{}-{number}", std::process::id()));
    let file = std::fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn bytes_of(file: &mut std::fs::File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_file_of_three_budgets_is_memory_and_gets_back_the_pages_that_changed() {
    for pool in [pool(16), inline_pool(16)] {
        let mut expected = vec![0; 48 * MIB + 10];
        noise(&mut expected[MIB..40 * MIB]);
        let mut file = tempfile();
        file.write_all(&expected).unwrap();
        let mut mapped = pool.map_file(file.try_clone().unwrap(), 49 * MIB).unwrap();
        // Pages of zeros take no room.
        assert!(pool.stats().ram <= 16 * MIB as u64 && pool.stats().data < 42 * MIB as u64, "{pool:?}");
        assert!(mapped[..expected.len()] == expected[..] && mapped[expected.len()..].iter().all(|b| *b == 0));
        // Two neighbours, the end of the old file, and what is behind it.
        for at in [5 * MIB - 1, 5 * MIB, 20 * MIB, 48 * MIB + 9, 49 * MIB - 1] {
            mapped[at] ^= 1;
        }
        assert_eq!(mapped.sync(5 * MIB..5 * MIB + 1).unwrap(), 1);
        assert!(bytes_of(&mut file)[5 * MIB - 1] == expected[5 * MIB - 1], "not asked for");
        assert_eq!(mapped.sync(..).unwrap(), 4 * PAGE as u64);
        assert_eq!(mapped.sync(..).unwrap(), 0);
        assert!(bytes_of(&mut file) == mapped[..]);
        mapped.region().advise(.., Advice::Cold).unwrap();
        assert!(bytes_of(&mut file) == mapped[..]);
    }
}

#[test]
fn files_that_cannot_be_memory_are_refused_with_the_reason() {
    let pool = pool(8);
    assert!(matches!(pool.map_file(tempfile(), 0), Err(FileError::Memory(AllocError::Empty))));
    let folder = std::fs::File::open("/").unwrap();
    assert!(matches!(pool.map_file(folder, 5), Err(FileError::File(_))));
    let read_only = std::fs::File::open("/proc/self/exe").unwrap();
    let mut mapped = pool.map_file(read_only, 5000).unwrap();
    assert_eq!(&mapped[1..4], b"ELF");
    assert_eq!(mapped.sync(..).unwrap(), 0, "nothing is to be written");
    mapped[4999] ^= 1;
    assert!(matches!(mapped.sync(..), Err(FileError::File(_))));
    let outside = RangeError::Outside { start: 0, end: 5001, len: 5000 };
    assert!(matches!(mapped.sync(..5001), Err(FileError::Range(e)) if e == outside));
    assert!(matches!(mapped.sync(7..7), Ok(0)));
    let refused = || {
        matches!(mapped.sync(..), Err(FileError::Range(RangeError::Forked)))
            && matches!(pool.map_file(tempfile(), 5), Err(FileError::Memory(AllocError::Forked)))
    };
    assert_eq!(in_child(&refused), 0);
}

#[test]
fn after_a_sync_that_failed_all_is_written_again_and_a_file_that_appends_is_refused() {
    use std::os::fd::AsRawFd;
    let pool = pool(8);
    let file = tempfile();
    let (mut keep, fd) = (file.try_clone().unwrap(), file.as_raw_fd());
    let mut mapped = pool.map_file(file, 3 * PAGE).unwrap();
    mapped[0] = 1;
    assert_eq!(mapped.sync(..).unwrap(), PAGE as u64);
    assert_eq!(bytes_of(&mut keep).len(), 3 * PAGE, "as long as the range, by a byte at its end");
    mapped[PAGE] = 1;
    let other = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: both are open; the region's descriptor names another file for a while.
    let put = |from: &std::fs::File| assert_eq!(unsafe { libc::dup2(from.as_raw_fd(), fd) }, fd);
    put(&other);
    assert!(matches!(mapped.sync(..), Err(FileError::File(_))));
    put(&keep);
    assert_eq!(mapped.sync(..).unwrap(), 3 * PAGE as u64);
    assert!(bytes_of(&mut keep) == mapped[..]);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND) }, 0);
    mapped[0] = 2;
    let refused = mapped.sync(..);
    assert!(matches!(refused, Err(FileError::File(e)) if e.kind() == std::io::ErrorKind::InvalidInput));
    assert_eq!(bytes_of(&mut keep).len(), 3 * PAGE);
}

#[test]
fn system_calls_read_and_write_what_is_out() {
    let pool = pool(8);
    let mut region = pool.alloc(16 * MIB).unwrap();
    fill(&mut region);
    region.advise(.., Advice::Cold).unwrap();
    let mut file = tempfile();
    file.write_all(&region).unwrap();
    region.fill(0);
    region.advise(.., Advice::Cold).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(&mut region).unwrap();
    assert_eq!(wrong(&region), 0);
}

#[test]
fn threads_use_one_region_and_another_thread_drops_it() {
    let pool = pool(8);
    let mut region = pool.alloc(24 * MIB).unwrap();
    let parts = region.chunks_mut(6 * MIB);
    std::thread::scope(|scope| parts.for_each(|part| drop(scope.spawn(|| fill(part)))));
    std::thread::scope(|scope| {
        for part in region.chunks(6 * MIB) {
            scope.spawn(move || assert_eq!(wrong(part), 0));
        }
    });
    std::thread::spawn(move || drop(region)).join().unwrap();
    assert_eq!(pool.stats().data, 0);
}

#[test]
fn a_region_changes_its_length_and_keeps_its_bytes() {
    let pool = pool(8);
    let mut region = pool.alloc(12 * MIB).unwrap();
    fill(&mut region);
    region.resize(30 * MIB).unwrap();
    assert_eq!((region.len(), wrong(&region[..12 * MIB])), (30 * MIB, 0));
    assert!(region[12 * MIB..].iter().step_by(61).all(|b| *b == 0));
    // What was cut off within a page does not come back.
    region.fill(7);
    region.resize(5 * PAGE + 10).unwrap();
    region.resize(8 * PAGE).unwrap();
    assert!(region[..5 * PAGE + 10].iter().all(|b| *b == 7));
    assert!(region[5 * PAGE + 10..].iter().all(|b| *b == 0));
    assert_eq!(region.resize(0), Err(AllocError::Empty));
    assert_eq!(region.resize(usize::MAX), Err(AllocError::Overflow));
    assert_eq!((region.len(), region[0]), (8 * PAGE, 7));
}

#[test]
fn a_vector_grows_beyond_the_budget() {
    let pool = pool(8);
    let mut numbers: WeirVec<u64> = WeirVec::new(&pool);
    assert!(numbers.is_empty() && numbers.region().is_none() && numbers.capacity() == 0);
    const COUNT: u64 = (16 << 20) / 8;
    for i in 0..COUNT {
        numbers.push(i * i).unwrap();
    }
    numbers.extend_from_slice(&[1, 2, 3]).unwrap();
    assert!(numbers[..COUNT as usize].iter().enumerate().all(|(i, n)| *n == (i * i) as u64));
    assert_eq!(numbers[COUNT as usize..], [1, 2, 3]);
    numbers.truncate(2);
    assert_eq!(numbers[..], [0, 1]);
    let zeros: WeirVec<[f64; 3]> = WeirVec::zeroed(&pool, 1000).unwrap();
    assert!(zeros.len() == 1000 && zeros.iter().all(|row| row == &[0.0; 3]));
    let none: WeirVec<u8> = WeirVec::zeroed(&pool, 0).unwrap();
    assert!(none.is_empty());
    assert_eq!(WeirVec::<u64>::zeroed(&pool, usize::MAX / 4).unwrap_err(), AllocError::Overflow);
    assert_eq!(numbers.reserve_to(usize::MAX / 16), Err(AllocError::Tables));
    assert_eq!(numbers[..], [0, 1], "as before");
}

#[test]
fn a_vector_grows_by_what_is_wanted_where_there_is_no_room_for_twice_as_much() {
    let pool = pool(8);
    let mut bytes: WeirVec<u8> = WeirVec::zeroed(&pool, 3000 * MIB).unwrap();
    // What comes behind it has it move, and tables for 4 GiB in a piece are an eighth of the budget.
    let behind = pool.alloc(1).unwrap();
    assert_eq!(behind.as_ptr() as usize, bytes.as_ptr() as usize + 3000 * MIB);
    assert_eq!(bytes.reserve_to(6000 * MIB), Err(AllocError::Tables));
    bytes.push(7).unwrap();
    assert!(bytes.len() == 3000 * MIB + 1 && bytes.capacity() < 3001 * MIB);
    assert_eq!((bytes[3000 * MIB], bytes[3000 * MIB - 1]), (7, 0));
}

#[test]
fn too_many_addresses_are_told_apart_from_a_full_pool() {
    let large = Pool::builder().memory("8GiB").swap("none").build().unwrap();
    assert_eq!(large.alloc(3 << 40).unwrap_err(), AllocError::AddressSpace);
    alone("addresses_of_the_process", || {
        let pool = pool(8);
        let limit = |bytes| {
            // SAFETY: a live structure; the limit of this process alone.
            unsafe {
                let mut limit: libc::rlimit = core::mem::zeroed();
                assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut limit), 0);
                limit.rlim_cur = bytes;
                assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
            }
        };
        limit(32 << 20);
        let refused = pool.alloc(48 * MIB).map(drop);
        limit(libc::RLIM_INFINITY);
        assert_eq!(refused, Err(AllocError::Limit));
        assert!(pool.alloc(48 * MIB).is_ok());
    });
}

#[test]
fn pins_say_what_is_free_and_overlapping_ones_end_with_the_last() {
    let pool = pool(16);
    let mut region = pool.alloc(32 * MIB).unwrap();
    fill(&mut region);
    let refused = region.pin(..).unwrap_err();
    let PinError::Full { wanted, free } = refused else { panic!("{refused:?}") };
    assert_eq!(wanted, 32 * MIB as u64);
    assert!(free > 4 * MIB as u64 && free <= 8 * MIB as u64, "{free}");
    assert!(refused.to_string().contains(&format!("{free} bytes are free")), "{refused}");
    let first = region.pin(100..2 * MIB).unwrap();
    assert_eq!((first.bytes(), pool.stats().pinned), (2 * MIB, 2 * MIB as u64));
    let second = region.pin(MIB..3 * MIB).unwrap();
    assert_eq!(pool.stats().pinned, 3 * MIB as u64);
    assert_eq!(region.resize(MIB), Err(AllocError::Pinned));
    assert_eq!((region.discard(..5000), region.discard(5..5)), (Err(RangeError::Pinned), Ok(())));
    region[0] = 1; // a guard borrows nothing
    drop(first);
    assert_eq!(pool.stats().pinned, 2 * MIB as u64, "the second guard holds what both held");
    region.discard(..MIB).unwrap();
    // The region goes first: its pins go with it, and the guard knows.
    drop(region);
    assert_eq!(pool.stats().pinned, 0);
    let other = pool.alloc(4 * MIB).unwrap();
    let third = other.pin(..).unwrap();
    drop(second);
    assert_eq!((pool.stats().pinned, third.bytes()), (4 * MIB as u64, 4 * MIB));
}

#[test]
fn discarded_bytes_are_zeros_and_advice_changes_none() {
    let pool = pool(8);
    let mut region = pool.alloc(16 * MIB).unwrap();
    region.fill(9);
    let before = pool.stats().data;
    region.discard(10..8 * MIB + 10).unwrap();
    assert!(region[..10].iter().all(|b| *b == 9) && region[10..8 * MIB + 10].iter().all(|b| *b == 0));
    assert!(region[8 * MIB + 10..].iter().all(|b| *b == 9));
    region.discard(..).unwrap();
    assert!(pool.stats().data < before / 2);
    fill(&mut region);
    for advice in [Advice::Random, Advice::Cold, Advice::Sequential, Advice::WillNeed, Advice::Normal] {
        region.advise(5..12 * MIB, advice).unwrap();
        assert_eq!(wrong(&region), 0, "{advice:?}");
    }
    region.prefetch(MIB..2 * MIB).unwrap();
    region.advise(7..7, Advice::Cold).unwrap();
}

#[test]
fn ranges_outside_of_a_region_are_refused_with_what_is_there() {
    let pool = pool(8);
    let mut region = pool.alloc(10_000).unwrap();
    let outside = |start, end| RangeError::Outside { start, end, len: 10_000 };
    assert_eq!(region.prefetch(9_999..10_001), Err(outside(9_999, 10_001)));
    assert_eq!(region.advise(10_001.., Advice::Cold), Err(outside(10_001, 10_000)));
    assert_eq!(region.discard(..=10_000), Err(outside(0, 10_001)));
    let most = (0, usize::MAX);
    assert_eq!(region.prefetch(..=usize::MAX).unwrap_err(), outside(most.0, most.1));
    #[expect(clippy::reversed_empty_ranges, reason = "as a caller may have it wrong")]
    let backwards = 5..4;
    assert_eq!(region.pin(backwards).unwrap_err(), PinError::Range(outside(5, 4)));
}

#[test]
fn what_cannot_be_had_is_a_typed_error() {
    let refused = |memory: &str, swap: &str| Pool::builder().memory(memory).swap(swap).build().unwrap_err();
    assert!(matches!(refused("1M", "none"), BuildError::Setting { .. }));
    assert!(matches!(refused("8M", "/nowhere/at/all"), BuildError::Swap(_)));
    assert!(matches!(refused("8M", "/dev/shm"), BuildError::Swap(_)), "in RAM it would be no help");
    assert_eq!(Pool::builder().set("fork", "copy").build().unwrap_err(), BuildError::Unknown("fork".into()));
    let pool = pool(8);
    assert_eq!(pool.alloc(0).unwrap_err(), AllocError::Empty);
    assert_eq!(pool.alloc(usize::MAX).unwrap_err(), AllocError::Overflow);
    assert_eq!(pool.alloc(4 << 40).unwrap_err(), AllocError::Tables);
    assert_eq!(
        pool.set_memory(0u64).unwrap_err().to_string(),
        "0 bytes are not within 8388608 and 8388608 bytes"
    );
    assert!(matches!(pool.set_memory("16M"), Err(MemoryError::Bounds { .. })));
    assert!(matches!(pool.set_memory("lots"), Err(MemoryError::Size { .. })));
}

#[test]
fn the_budget_follows_set_memory() {
    let pool = pool(32);
    let mut region = pool.alloc(40 * MIB).unwrap();
    fill(&mut region);
    pool.set_memory("12MiB").unwrap();
    assert_eq!(pool.stats().memory, 12 * MIB as u64);
    // Frames leave as others come in.
    assert_eq!((wrong(&region), wrong(&region)), (0, 0));
    assert!(pool.stats().ram <= 12 * MIB as u64, "{:?}", pool.stats());
    pool.set_memory("32MiB").unwrap();
    assert_eq!(wrong(&region), 0);
    assert!(pool.stats().ram > 16 * MIB as u64, "{:?}", pool.stats());
}

#[test]
fn a_budget_of_which_too_much_would_be_pinned_is_refused_and_changes_nothing() {
    let pool = pool(32);
    let region = pool.alloc(12 * MIB).unwrap();
    let guard = region.pin(..9 * MIB).unwrap();
    let refused = pool.set_memory("16MiB").unwrap_err();
    let MemoryError::Pinned { pinned, free } = refused else { panic!("{refused}") };
    assert!(pinned == 9 * MIB as u64 && free < 8 * MIB as u64, "{refused}");
    assert_eq!(pool.stats().memory, 32 * MIB as u64);
    pool.set_memory("24MiB").unwrap();
    drop(guard);
    pool.set_memory("16MiB").unwrap();
}

#[test]
fn a_budget_that_would_not_hold_the_data_is_refused_and_changes_nothing() {
    let pool = Pool::builder().memory("32MiB").swap("none").build().unwrap();
    let mut region = pool.alloc(20 * MIB).unwrap();
    noise(&mut region);
    assert_eq!(pool.set_memory("8MiB"), Err(MemoryError::Full(8 << 20)));
    assert_eq!(pool.stats().memory, 32 * MIB as u64);
    pool.set_memory("28MiB").unwrap();
    assert!(is_noise(&region));
    assert_eq!(pool.set_memory("16MiB"), Err(MemoryError::Full(16 << 20)));
    region.discard(2 * MIB..).unwrap();
    pool.set_memory("8MiB").unwrap();
    assert!(is_noise(&region[..2 * MIB]));
}

#[test]
fn without_a_swap_file_a_full_pool_gives_nothing_new() {
    let pool = Pool::builder().memory("8MiB").swap("none").build().unwrap();
    let mut regions: Vec<Region> = Vec::new();
    let refused = (0..64).find_map(|n| {
        let mut region = match pool.alloc(512 << 10) {
            Ok(region) => region,
            Err(e) => return Some(e),
        };
        region.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i * 7 + n));
        regions.push(region);
        None
    });
    assert_eq!(refused, Some(AllocError::Full));
    regions.clear();
    assert!(pool.alloc(512 << 10).is_ok());
}

/// What a process has of the kernel: MiB of addresses, descriptors, threads.
fn holdings() -> [usize; 3] {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').next().unwrap().parse().unwrap();
    let count = |folder: &str| std::fs::read_dir(Path::new("/proc/self").join(folder)).unwrap().count();
    [pages * PAGE / MIB, count("fd"), count("task")]
}

/// In a process of its own: the other tests make and drop pools meanwhile.
#[test]
fn a_pool_that_is_gone_leaves_nothing_behind() {
    alone("leaves_nothing", || {
        drop((pool(8), inline_pool(8))); // what is made once for the process is there from now on
        let before = holdings();
        for n in 0..6 {
            let pool = if n % 2 == 0 { pool(8) } else { inline_pool(8) };
            let mut region = pool.alloc(16 * MIB).unwrap();
            fill(&mut region);
            let during = holdings();
            assert!(during.iter().zip(before).all(|(now, then)| *now > then), "{during:?} {before:?}");
            drop(pool);
            assert_eq!(wrong(&region), 0, "the region keeps the pool");
        }
        assert_eq!(holdings(), before);
    });
}

/// Whether it is true in a child of a fork: its status.
fn in_child(f: &dyn Fn() -> bool) -> i32 {
    // SAFETY: the child reads memory and asks pools, and ends by `_exit`.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child.
        0 => unsafe { libc::_exit(if f() { 0 } else { 1 }) },
        pid => {
            let mut status = 0;
            // SAFETY: writes the live status.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        }
    }
}

fn is_segv(status: i32) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
}

#[test]
fn a_pool_of_a_forked_child_does_not_come_to_lie_where_its_parents_was() {
    alone("builds_in_a_child", || {
        // As under a debugger: the first place tried is always the same.
        // SAFETY: says how addresses are chosen from here on.
        assert!(unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) } >= 0);
        let pool = pool(8);
        let mut region = pool.alloc(12 * MIB).unwrap();
        fill(&mut region);
        let builds = || {
            let own = inline_pool(8);
            let mut bytes = self::pool(8).alloc(12 * MIB).unwrap();
            bytes.fill(9);
            drop(own);
            bytes.iter().all(|b| *b == 9)
        };
        assert_eq!(in_child(&builds), 0);
        assert!(is_segv(in_child(&|| {
            let own = self::pool(8);
            let mut bytes = own.alloc(12 * MIB).unwrap();
            bytes.fill(9);
            region[MIB] == 9 || bytes[0] == 9
        })));
        assert_eq!(wrong(&region), 0);
    });
}

#[test]
fn a_process_may_have_64_pools_and_hears_that_there_may_be_no_more() {
    alone("many_pools", || {
        // The first ones have all addresses that there are: the others are content with less.
        let make = |n| Pool::builder().memory(if n < 9 { "2GiB" } else { "8MiB" }).swap("none").build();
        let mut pools: Vec<(Pool, Region)> = Vec::new();
        let refused = loop {
            let n = pools.len();
            match make(n) {
                Ok(pool) => {
                    let mut region = pool.alloc(MIB).unwrap();
                    region.fill(n as u8);
                    pools.push((pool, region));
                }
                Err(e) => break e,
            }
        };
        assert_eq!((pools.len(), &refused), (64, &BuildError::TooMany), "{refused}");
        let mut all = pools.iter().enumerate();
        assert!(all.all(|(n, (_, region))| region.iter().all(|b| *b == n as u8)));
        pools.pop();
        assert!(make(63).is_ok());
    });
}

#[test]
fn a_forked_child_has_nothing_of_the_pool_and_the_parent_all() {
    alone("forks", || {
        let pool = pool(8);
        let mut region = pool.alloc(16 * MIB).unwrap();
        fill(&mut region);
        let refused = || {
            pool.alloc(1).unwrap_err() == AllocError::Forked
                && region.prefetch(..).unwrap_err() == RangeError::Forked
                && region.pin(..).unwrap_err() == PinError::Range(RangeError::Forked)
                && pool.set_memory("8M").unwrap_err() == MemoryError::Forked
                && pool.stats().memory == 8 * MIB as u64
        };
        assert_eq!(in_child(&refused), 0);
        assert!(is_segv(in_child(&|| region[12 * MIB] == 0)));
        assert!(std::process::Command::new("true").status().unwrap().success());
        assert_eq!(wrong(&region), 0);
    });
}

/// Runs a part of a test in this binary started anew, with that test alone.
fn alone(name: &str, f: impl FnOnce()) {
    const WHICH: &str = "WEIR_LIBRARY_TEST";
    if std::env::var_os(WHICH).is_some_and(|which| which == name) {
        return f();
    }
    let test = std::thread::current().name().expect("tests have names").to_owned();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", &test, "--nocapture"]).env(WHICH, name).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
