//! The engine on the real kernel, in this process, with the pager that WEIR_PAGER names (both are run by
//! `make test`), and over the swap file that WEIR_SWAP asks for. Needs permission for userfaultfd and says
//! so.

#![expect(unsafe_code, reason = "plays the program: touches managed memory by address")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weir::Kind;
use weir::config::Settings;
use weir::engine::Engine;
use weir_os::mem::{PAGE_BYTES, PROT_RW};
use weir_os::pager::{Intake, KernelPager};
use weir_os::thread;

type Weir = Engine<KernelPager>;
const BUDGET: u64 = 32 << 20;
/// The engine's threads are never told to leave.
static STAY: AtomicU32 = AtomicU32::new(0);
/// The first block of all that was mapped.
static FIRST: AtomicU32 = AtomicU32::new(u32::MAX);

extern "C" fn serve(e: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the leaked engine of `engine()`.
    unsafe { &*e.cast::<Weir>() }.serve_faults(&mut Weir::workbench(), &STAY);
    core::ptr::null_mut()
}

extern "C" fn reclaim(e: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: as above.
    unsafe { &*e.cast::<Weir>() }.reclaim_in_background(&mut Weir::workbench(), &STAY);
    core::ptr::null_mut()
}

fn engine() -> &'static Weir {
    static ENGINE: OnceLock<&'static Weir> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let lookup = |name: &str| match name {
            "WEIR_MEMORY" => Some(BUDGET.to_string()),
            other => std::env::var(other).ok(),
        };
        let settings = Settings::from_env(lookup).unwrap();
        let engine = Engine::start(&settings, Intake::Messages)
            .expect("userfaultfd: run as root or see `weir doctor`");
        let engine: &'static Weir = Box::leak(Box::new(engine));
        start_threads(engine);
        engine
    })
}

fn start_threads(engine: &'static Weir) {
    let arg = core::ptr::from_ref(engine).cast_mut().cast();
    for entry in [serve as extern "C" fn(*mut libc::c_void) -> *mut libc::c_void, reclaim] {
        // SAFETY: the engine lives for ever.
        unsafe { thread::spawn(entry, arg, 512 << 10).unwrap() };
    }
}

fn map(pages: usize) -> &'static [AtomicU64] {
    let addr = engine().map(pages * PAGE_BYTES, 1, PROT_RW, Kind::Map).unwrap();
    FIRST.fetch_min(((addr - engine().space().0) / PAGE_BYTES / 64) as u32, Ordering::Relaxed);
    // SAFETY: fresh memory, accessed by atomics alone until `unmap`.
    unsafe { core::slice::from_raw_parts(addr as *const AtomicU64, pages * PAGE_BYTES / 8) }
}

/// One test at a time: they share a budget that several at once would not fit into.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn unmap(words: &[AtomicU64]) {
    engine().unmap(words.as_ptr() as usize, words.len() * 8).unwrap();
}

fn value(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9) % 1009
}

#[test]
fn data_of_three_budgets_keeps_every_byte_within_the_budget() {
    let _alone = alone();
    let words = map(3 * BUDGET as usize / PAGE_BYTES);
    for (i, w) in words.iter().enumerate() {
        w.store(value(i), Ordering::Relaxed);
        if i % 100_000 == 0 {
            assert!(engine().core.resident_bytes() <= BUDGET);
        }
    }
    for pass in 0..2 {
        let wrong = words.iter().enumerate().filter(|(i, w)| w.load(Ordering::Relaxed) != value(*i)).count();
        assert_eq!(wrong, 0, "pass {pass}");
        assert!(engine().core.resident_bytes() <= BUDGET);
    }
    assert!(engine().core.stats.pool_out().get() > 0, "nothing was ever evicted");
    if let Some(swapping) = &engine().core.copies.swapping {
        let counters = swapping.tier.counters();
        let (out, back) = (&counters.pages_out, &counters.pages_in);
        assert!(
            out.load(Ordering::Relaxed) > 1000 && back.load(Ordering::Relaxed) > 1000,
            "little was swapped"
        );
    }
    unmap(words);
}

#[test]
fn threads_that_add_to_the_same_pages_lose_no_update() {
    let _alone = alone();
    const PAGES: usize = 2000;
    let words = map(PAGES * 6);
    words.iter().skip(PAGES * 512).for_each(|w| w.store(7, Ordering::Relaxed)); // pressure
    std::thread::scope(|s| {
        for t in 0..4u64 {
            s.spawn(move || {
                let mut x = t * 77 + 1;
                for _ in 0..20_000 {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    words[(x >> 33) as usize % PAGES * 512].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let sum: u64 = (0..PAGES).map(|p| words[p * 512].load(Ordering::Relaxed)).sum();
    assert_eq!(sum, 80_000);
    unmap(words);
}

#[test]
fn a_system_call_reads_and_writes_evicted_pages() {
    let _alone = alone();
    use std::io::{Read, Seek, SeekFrom, Write};
    let words = map(4000);
    words.iter().enumerate().for_each(|(i, w)| w.store(value(i), Ordering::Relaxed));
    engine().page_out(words.as_ptr() as usize, words.len() * 8).unwrap();
    // SAFETY: nobody else uses the words now.
    let bytes =
        unsafe { core::slice::from_raw_parts_mut(words.as_ptr().cast_mut().cast::<u8>(), words.len() * 8) };
    let mut file = tempfile();
    file.write_all(bytes).unwrap();
    bytes.fill(0);
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(bytes).unwrap();
    let wrong = words.iter().enumerate().filter(|(i, w)| w.load(Ordering::Relaxed) != value(*i)).count();
    assert_eq!(wrong, 0);
    unmap(words);
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("weir-kernel-test-{}", std::process::id()));
    let file = std::fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn dropped_and_protected_and_moved_ranges_behave_as_the_kernels() {
    let _alone = alone();
    use weir::engine::remap::Place;
    let words = map(2048);
    words.iter().enumerate().for_each(|(i, w)| w.store(value(i), Ordering::Relaxed));
    let (addr, e) = (words.as_ptr() as usize, engine());
    e.drop_contents(addr + 100 * PAGE_BYTES, 50 * PAGE_BYTES).unwrap();
    assert!((100 * 512..150 * 512).all(|i| words[i].load(Ordering::Relaxed) == 0));
    // Read-only pages leave by copy and come back; then they are writable again.
    e.protect(addr + 200 * PAGE_BYTES, 64 * PAGE_BYTES, libc::PROT_READ).unwrap();
    e.page_out(addr, 2048 * PAGE_BYTES).unwrap();
    let pressure = map(8000);
    pressure.iter().enumerate().for_each(|(i, w)| w.store(value(i), Ordering::Relaxed));
    assert!((200 * 512..264 * 512).all(|i| words[i].load(Ordering::Relaxed) == value(i)));
    e.protect(addr + 200 * PAGE_BYTES, 64 * PAGE_BYTES, PROT_RW).unwrap();
    words[230 * 512].store(1, Ordering::Relaxed);
    let to = e.remap(addr, 2048 * PAGE_BYTES, 4096 * PAGE_BYTES, Place::Anywhere, false).unwrap();
    // SAFETY: the remapped range, accessed by atomics alone.
    let moved = unsafe { core::slice::from_raw_parts(to as *const AtomicU64, 4096 * 512) };
    for (i, w) in moved.iter().enumerate() {
        let want = match i {
            _ if i == 230 * 512 => 1,
            _ if (100 * 512..150 * 512).contains(&i) || i >= 2048 * 512 => 0,
            _ => value(i),
        };
        assert_eq!(w.load(Ordering::Relaxed), want, "word {i}");
    }
    unmap(moved);
    unmap(pressure);
}

/// As the shim forks: the child has an engine and threads of its own, and departs in good order. Its exit
/// status is 0 when `child` returns true.
fn fork(child: impl FnOnce() -> bool) -> libc::pid_t {
    let e = engine();
    e.fork_prepare();
    e.fork_share_swap();
    // SAFETY: the child touches managed memory and its own stack only, and ends without returning.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        e.fork_child();
        start_threads(e);
        let good = child();
        e.depart();
        // SAFETY: ends the child.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    e.fork_done();
    assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
    pid
}

/// Nobody counts them there before it maps a file itself.
#[test]
fn a_child_owes_nothing_for_the_files_of_its_parent() {
    let _alone = alone();
    let (e, bytes) = (engine(), 8 << 20);
    e.core.note_files(bytes, false);
    let limit = e.core.ledger.limit_bytes();
    let child = fork(|| {
        let files = e.core.stats.files_bytes.load(Ordering::Relaxed);
        files == 0 && e.core.ledger.limit_bytes() >= limit + bytes / 2
    });
    assert_eq!(ended(child), 0);
    e.core.note_files(0, false);
}

/// Waits for a child. Its exit status; -1 when it did not exit by itself.
fn ended(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: writes the live status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

/// Every counter is derived again, with nobody inside.
fn validate() {
    let e = engine();
    e.fork_prepare();
    let first = FIRST.load(Ordering::Relaxed);
    let census = e.core.validate_in(first..first + (1 << 11));
    e.fork_done();
    census.unwrap();
}

/// Sends all pages out, and waits until the background thread has written some through, where that is the
/// policy.
fn out_and_through(words: &[AtomicU64]) {
    let e = engine();
    e.page_out(words.as_ptr() as usize, words.len() * 8).unwrap();
    let Some(swapping) =
        e.core.copies.swapping.as_ref().filter(|s| s.policy == weir::config::Policy::Writethrough)
    else {
        return;
    };
    let start = std::time::Instant::now();
    while swapping.doubled() < 100 {
        let stats = &e.core.stats;
        assert!(
            start.elapsed().as_secs() < 20,
            "{} pages are in pool and file, {:?} in the pool alone; {} were written, {} given up, {} evicted",
            swapping.doubled(),
            e.core.copies.unwritten(&e.core.stats),
            stats.swap_through.load(Ordering::Relaxed),
            stats.swap_cancelled.load(Ordering::Relaxed),
            stats.swap_evicted_free.load(Ordering::Relaxed),
        );
        std::thread::yield_now();
    }
}

/// One of two relatives uses the pages: a third is read, one rewritten, one given up, and then all are sent
/// out and read.
fn use_pages(words: &[AtomicU64], salt: u64) -> bool {
    let third = words.len() / 3;
    let before = words.iter().enumerate().all(|(i, w)| w.load(Ordering::Relaxed) == value(i));
    words[third..2 * third].iter().enumerate().for_each(|(i, w)| w.store(value(i) + salt, Ordering::Relaxed));
    let e = engine();
    let dropped = e.drop_contents(words[2 * third..].as_ptr() as usize, third * 8).is_ok();
    let out = e.page_out(words.as_ptr() as usize, words.len() * 8).is_ok();
    let right = |(i, w): (usize, &AtomicU64)| {
        let want = match i / third {
            0 => value(i),
            1 => value(i - third) + salt,
            _ => 0,
        };
        w.load(Ordering::Relaxed) == want
    };
    before && dropped && out && words.iter().enumerate().all(right)
}

#[test]
fn parent_and_child_rewrite_and_free_pages_that_both_have_in_pool_and_file_in_any_order() {
    let _alone = alone();
    let words = map(3 * 64 * 60); // more than the budget
    for order in ["child first", "parent first", "both at once"] {
        words.iter().enumerate().for_each(|(i, w)| w.store(value(i), Ordering::Relaxed));
        out_and_through(words);
        let mut pipe = [0; 2];
        // SAFETY: two descriptors are written to the array.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let child = fork(|| {
            let mut byte = 0u8;
            // SAFETY: a byte of our own.
            let waited =
                order != "parent first" || unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) } == 1;
            waited && use_pages(words, 5000)
        });
        let mut status = None;
        if order == "child first" {
            status = Some(ended(child));
        }
        assert!(use_pages(words, 9000), "{order}: the parent sees other bytes");
        // SAFETY: a byte that lives for ever.
        assert_eq!(unsafe { libc::write(pipe[1], c"x".as_ptr().cast(), 1) }, 1);
        assert_eq!(status.unwrap_or_else(|| ended(child)), 0, "{order}: the child sees other bytes");
        // SAFETY: ours.
        pipe.iter().for_each(|fd| assert_eq!(unsafe { libc::close(*fd) }, 0));
        engine().fork_failed(); // what the child still held comes back to its last relative
        validate();
    }
    unmap(words);
    validate();
    if let Some(swapping) = &engine().core.copies.swapping {
        assert_eq!((swapping.tier.live_records(), swapping.doubled()), (0, 0));
    }
}
