//! The pager without userfaultfd, on the real kernel, over memory of its own.

use super::*;
use crate::codec::PageBytes;
use crate::mem::PROT_RW;
use crate::random::Random;
use crate::sys;
use crate::uffd::Wake;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

fn over_own_memory(pages: u32) -> KernelPager {
    let space = Mapping::reserve(0, bytes_of(pages)).unwrap();
    let arena = Mapping::anon(bytes_of(2 * pages)).unwrap();
    let pager = KernelPager::open_over(Transfer::Segv, Intake::InThread, space, arena, 0).unwrap();
    pager.protect(PageId(0), pages, PROT_RW, true).unwrap();
    pager
}

/// What reads of the process's own memory say: EFAULT (EIO of this file) where a signal would come.
fn read(pager: &KernelPager, page: u32) -> Option<u64> {
    let mut bytes = [0u8; 8];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: pager.page_addr(PageId(page), 1) as *mut _, iov_len: bytes.len() };
    // SAFETY: a live buffer; the kernel checks the source.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (n == 8).then(|| u64::from_ne_bytes(bytes))
}

fn page_of(value: u64) -> PageBytes {
    let mut bytes = [0u8; PAGE_BYTES];
    bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&value.to_ne_bytes()));
    bytes
}

/// Mappings of the space.
fn mappings(pager: &KernelPager) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = |line: &str| usize::from_str_radix(line.split('-').next()?, 16).ok();
    let inside = |at: &usize| (pager.space_base()..pager.space_base() + pager.space_len()).contains(at);
    maps.lines().filter_map(start).filter(inside).count()
}

#[test]
fn a_page_goes_out_and_in_and_is_never_to_be_seen_in_between() {
    let pager = over_own_memory(4 * CHUNK_PAGES);
    assert_eq!(read(&pager, 5), None, "nobody has used it: no zeros that nobody counts");
    assert_eq!(pager.fill_copy(PageId(5), &page_of(77), Wake::Yes).done, PAGE_BYTES);
    assert_eq!((read(&pager, 5), read(&pager, 6), read(&pager, 70)), (Some(77), None, None));
    let (out, mask) = pager.drain(FrameId(5), PageId(5), 1);
    assert_eq!((out.done, out.stop, mask), (PAGE_BYTES, None, 1));
    assert_eq!(read(&pager, 5), None);
    // SAFETY: just drained, and nobody else uses it.
    assert_eq!(*unsafe { pager.frame(FrameId(5)) }, page_of(77));
    assert_eq!(pager.fill(PageId(9), FrameId(5), 1, Wake::Yes).done, PAGE_BYTES);
    assert_eq!((read(&pager, 5), read(&pager, 9)), (None, Some(77)));
    assert_eq!(pager.zero(PageId(9)).stop, Some(Errno::EEXIST));
    assert_eq!(pager.duplicate(PageId(130), PageId(9)).done, PAGE_BYTES);
    assert_eq!(read(&pager, 130), Some(77));
    pager.drop_pages(PageId(9), 1).unwrap();
    assert_eq!(read(&pager, 9), None);
    assert_eq!(pager.poison(PageId(9)).done, 0);
}

#[test]
fn runs_end_at_their_block_and_where_the_protection_changes_and_mappings_stay_few() {
    let pager = over_own_memory(4 * CHUNK_PAGES);
    assert_eq!(pager.fill_zeros(PageId(0), CHUNK_PAGES - 4, Wake::Yes).stop, None);
    let zeros = pager.fill_zeros(PageId(CHUNK_PAGES - 4), 8, Wake::Yes);
    assert_eq!((zeros.done, zeros.stop), (4 * PAGE_BYTES, Some(Errno::EAGAIN)));
    assert_eq!(pager.fill_zeros(PageId(CHUNK_PAGES), 4, Wake::Yes).done, 4 * PAGE_BYTES);
    assert_eq!((read(&pager, CHUNK_PAGES - 1), read(&pager, CHUNK_PAGES + 3)), (Some(0), Some(0)));
    let few = mappings(&pager);
    assert_eq!(pager.drain(FrameId(100), PageId(100), 1).0.done, 0, "what is out cannot leave");
    for page in (0..CHUNK_PAGES + 4).step_by(7) {
        assert_eq!(pager.drain(FrameId(page), PageId(page), 1).0.done, PAGE_BYTES, "page {page}");
        assert_eq!(pager.fill(PageId(page), FrameId(page), 1, Wake::Yes).done, PAGE_BYTES);
    }
    assert_eq!(mappings(&pager), few, "a page's way leaves no mapping of its own");
    pager.protect(PageId(2), 2, libc::PROT_READ, true).unwrap();
    let (p, _) = pager.drain(FrameId(0), PageId(0), 8);
    assert_eq!((p.done, p.stop), (2 * PAGE_BYTES, Some(Errno::EAGAIN)));
    assert_eq!(pager.drain_readonly(FrameId(2), PageId(2)).done, PAGE_BYTES);
    assert_eq!(pager.fill(PageId(2), FrameId(2), 1, Wake::Yes).done, PAGE_BYTES);
    assert_eq!(read(&pager, 2), Some(0));
}

#[test]
fn accesses_are_weirs_where_the_program_may_make_them_and_only_there() {
    let pager = over_own_memory(2 * CHUNK_PAGES);
    let at = |page: u32| pager.page_addr(PageId(page), 1);
    let all = |page| [Use::Read, Use::Write, Use::Run].map(|what| pager.permits(at(page), what));
    assert_eq!(all(3), [true, true, false]);
    pager.protect(PageId(3), 1, libc::PROT_READ, true).unwrap();
    assert_eq!((all(3), all(4)), ([true, false, false], [true, true, false]));
    pager.protect(PageId(3), 1, libc::PROT_NONE, true).unwrap();
    assert_eq!(all(3), [false; 3]);
    assert!(!pager.permits(pager.space_base() - 1, Use::Read));
    // Contents come while nobody may use them, and are there when somebody may.
    assert_eq!(pager.fill_copy(PageId(3), &page_of(9), Wake::Yes).done, PAGE_BYTES);
    assert_eq!(read(&pager, 3), None);
    pager.protect(PageId(3), 1, PROT_RW, true).unwrap();
    assert_eq!((read(&pager, 3), read(&pager, 4)), (Some(9), None));
}

#[test]
fn what_is_reserved_again_is_as_if_nobody_had_used_it() {
    let pager = over_own_memory(2 * CHUNK_PAGES);
    assert_eq!(pager.fill_copy(PageId(3), &page_of(9), Wake::Yes).done, PAGE_BYTES);
    pager.reserve_again(PageId(2), 4).unwrap();
    assert!(!pager.permits(pager.page_addr(PageId(3), 1), Use::Read));
    pager.protect(PageId(2), 4, PROT_RW, true).unwrap();
    assert_eq!(read(&pager, 3), None);
    assert_eq!(pager.fill_copy(PageId(4), &page_of(8), Wake::Yes).done, PAGE_BYTES);
    assert_eq!((read(&pager, 3), read(&pager, 4)), (None, Some(8)));
}

#[test]
fn a_call_that_the_kernel_refuses_leaves_the_page_where_it_was() {
    let pager = over_own_memory(2 * CHUNK_PAGES);
    assert_eq!(pager.fill_copy(PageId(3), &page_of(9), Wake::Yes).done, PAGE_BYTES);
    pager.lock(PageId(3), 1).unwrap();
    // The kernel gives no guard to locked memory.
    let (p, mask) = pager.drain(FrameId(3), PageId(3), 1);
    assert_eq!((p.done, p.stop, mask), (0, Some(Errno::EINVAL), 0));
    assert_eq!((pager.drop_pages(PageId(3), 1), read(&pager, 3)), (Err(Errno::EINVAL), Some(9)));
    pager.unlock(PageId(3), 1).unwrap();
    assert_eq!(pager.drain(FrameId(3), PageId(3), 1).0.done, PAGE_BYTES);
    // A source that cannot be read: the page stays out.
    let gone = pager.frame_addr(FrameId(7), 1);
    // SAFETY: this test's own arena, put right below.
    unsafe { mem::protect(gone, PAGE_BYTES, libc::PROT_NONE).unwrap() };
    let p = pager.fill(PageId(3), FrameId(7), 1, Wake::Yes);
    assert_eq!((p.done, p.stop.is_some(), read(&pager, 3)), (0, true, None));
    // SAFETY: as above.
    unsafe { mem::protect(gone, PAGE_BYTES, PROT_RW).unwrap() };
    assert_eq!(pager.fill(PageId(3), FrameId(3), 1, Wake::Yes).done, PAGE_BYTES);
    assert_eq!(read(&pager, 3), Some(9));
}

#[test]
fn a_forked_child_has_guards_and_writes_to_its_own_memory_before_and_after_it_opens_it_anew() {
    let pager = over_own_memory(2 * CHUNK_PAGES);
    assert_eq!(pager.fill_copy(PageId(3), &page_of(9), Wake::Yes).done, PAGE_BYTES);
    // SAFETY: fork; the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fill = |page, value| pager.fill_copy(PageId(page), &page_of(value), Wake::Yes).done == PAGE_BYTES;
        let fine = read(&pager, 4).is_none() && fill(4, 5);
        let fine = fine && pager.reopen_in_child(&[]).is_ok() && fill(5, 6);
        let out = pager.drain(FrameId(3), PageId(3), 1).0.done == PAGE_BYTES;
        let seen = [3, 4, 5, 6].map(|page| read(&pager, page));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!(fine && out && seen == [None, Some(5), Some(6), None]))) };
    }
    let mut status = 0;
    // SAFETY: a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((status, [3, 4, 5].map(|page| read(&pager, page))), (0, [Some(9), None, None]));
}

/// The child's own check, by system calls only.
fn in_a_child(check: impl FnOnce() -> bool) {
    // SAFETY: fork; the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!check())) };
    }
    let mut status = 0;
    // SAFETY: a live integer.
    assert_eq!((unsafe { libc::waitpid(child, &mut status, 0) }, status), (child, 0));
}

fn fill(pager: &KernelPager, page: u32) -> bool {
    pager.fill_copy(PageId(page), &page_of(page.into()), Wake::Yes).done == PAGE_BYTES
}

/// Pages so far apart that no two of them lie under one page of page tables.
const SPARSE: u32 = 1024;

#[test]
fn ranges_far_apart_are_opened_together_once_there_are_many() {
    const MOST: u32 = 8;
    const TOUCHED: u32 = 40;
    let pager = over_own_memory(TOUCHED * SPARSE);
    pager.guards.as_ref().unwrap().opening.set_most(MOST);
    // From both ends, so that there are gaps on either side.
    let order = |i: u32| if i.is_multiple_of(2) { i / 2 } else { TOUCHED - 1 - i / 2 };
    assert!((0..TOUCHED).all(|i| fill(&pager, order(i) * SPARSE + 7)));
    assert!(mappings(&pager) <= 2 * MOST as usize + 2, "{}", mappings(&pager));
    for i in 0..TOUCHED {
        let page = i * SPARSE + 7;
        assert_eq!(read(&pager, page), Some(page.into()));
        assert_eq!([page - 1, page + 1, page + SPARSE / 2].map(|page| read(&pager, page)), [None; 3]);
        assert_eq!(pager.drain(FrameId(page), PageId(page), 1).0.done, PAGE_BYTES);
        assert_eq!(read(&pager, page), None);
    }
}

#[test]
fn what_is_opened_beside_a_page_ends_where_the_protection_does() {
    let pager = over_own_memory(8 * SPARSE);
    pager.guards.as_ref().unwrap().opening.set_most(1);
    pager.protect(PageId(2 * SPARSE), 3, libc::PROT_READ, true).unwrap();
    pager.protect(PageId(3 * SPARSE + 1), 1, libc::PROT_NONE, true).unwrap();
    for page in [7, 5 * SPARSE, 2 * SPARSE, 2 * SPARSE + 3, 3 * SPARSE, 3 * SPARSE + 1, 8 * SPARSE - 1] {
        assert!(fill(&pager, page), "page {page}");
    }
    let seen = [2 * SPARSE, 2 * SPARSE + 1, 3 * SPARSE, 3 * SPARSE + 1].map(|page| read(&pager, page));
    assert_eq!(seen, [Some((2 * SPARSE).into()), None, Some((3 * SPARSE).into()), None]);
    pager.protect(PageId(0), 8 * SPARSE, PROT_RW, true).unwrap();
    assert_eq!(read(&pager, 3 * SPARSE + 1), Some((3 * SPARSE + 1).into()));
    assert!((0..8 * SPARSE).filter(|page| read(&pager, *page).is_some()).count() == 7);
}

#[test]
fn where_the_program_has_taken_all_mappings_pages_still_come_and_go() {
    const TOUCHED: u32 = 64;
    let pager = over_own_memory(TOUCHED * SPARSE);
    in_a_child(|| {
        let page = |at: usize, prot| {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a mapping of the child's own, which nobody uses.
            unsafe { libc::mmap(at as *mut _, PAGE_BYTES, prot, kind, -1, 0) }
        };
        let mut protections = [libc::PROT_NONE, libc::PROT_READ].into_iter().cycle();
        let taken = (0..1 << 20).take_while(|_| page(0, protections.next().unwrap()) != libc::MAP_FAILED);
        if taken.count() == 1 << 20 {
            return false;
        }
        (0..TOUCHED).map(|i| i * SPARSE).all(|page| {
            let out = || pager.drain(FrameId(page), PageId(page), 1).0.done == PAGE_BYTES;
            let back = || pager.fill(PageId(page), FrameId(page), 1, Wake::Yes).done == PAGE_BYTES;
            fill(&pager, page) && out() && back() && read(&pager, page) == Some(page.into())
        })
    });
}

fn limit_data(to: u64, most: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: most };
    // SAFETY: a live structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
}

#[test]
fn memory_beyond_a_limit_is_refused_when_it_is_asked_for_and_what_was_there_before_is_not() {
    let pager = over_own_memory(4 * SPARSE);
    pager.protect(PageId(SPARSE), 3 * SPARSE, libc::PROT_NONE, false).unwrap();
    in_a_child(|| {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let now: u64 = statm.split(' ').nth(5).unwrap().parse::<u64>().unwrap() * PAGE_BYTES as u64;
        limit_data(now + u64::from(2 * SPARSE) * PAGE_BYTES as u64, libc::RLIM_INFINITY);
        let fits = pager.protect(PageId(SPARSE), SPARSE, PROT_RW, true);
        let not = pager.protect(PageId(2 * SPARSE), 2 * SPARSE, PROT_RW, true);
        // Nothing may be had any more, and what is mapped can be used.
        limit_data(PAGE_BYTES as u64, libc::RLIM_INFINITY);
        let usable = [5, SPARSE + 5].iter().all(|page| {
            let out = || pager.drain(FrameId(*page), PageId(*page), 1).0.done == PAGE_BYTES;
            fill(&pager, *page) && out() && fill(&pager, *page) && read(&pager, *page).is_some()
        });
        fits.is_ok() && not == Err(Errno::ENOMEM) && usable && sys::data_limit() == PAGE_BYTES as u64
    });
}

#[test]
fn who_may_not_be_dumped_reads_and_writes_his_own_memory_and_is_not_dumped_afterwards() {
    let pager = over_own_memory(2 * CHUNK_PAGES);
    let dumpable = |to: Option<i32>| {
        // SAFETY: numbers by value.
        unsafe {
            to.map_or_else(|| libc::prctl(libc::PR_GET_DUMPABLE), |to| libc::prctl(libc::PR_SET_DUMPABLE, to))
        }
    };
    in_a_child(|| {
        // SAFETY: numbers by value. Root may open everything, so he becomes somebody.
        if unsafe { libc::geteuid() == 0 && libc::setresuid(65534, 65534, 65534) != 0 } {
            return false;
        }
        dumpable(Some(0));
        let fine = pager.reopen_in_child(&[]).is_ok() && fill(&pager, 3) && guards::works().is_ok();
        fine && read(&pager, 3) == Some(3) && dumpable(None) == 0
    });
}

const PAGES: u32 = 3 * CHUNK_PAGES;
/// Pages that are written; behind them is one that is read without a pause.
const WRITTEN: u32 = PAGES - CHUNK_PAGES;
const READ: u32 = WRITTEN;
/// And one that is dropped, and comes back as zeros.
const DROPS: u32 = READ + 1;

/// A page whose protection changes all the time.
const PROTECTED: u32 = 1;

/// A writer that counts itself as ended.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A pager with the locks of an engine, for the handler.
struct Raced {
    pager: KernelPager,
    blocks: Vec<Mutex<()>>,
    resident: Vec<AtomicBool>,
}

static RACED: OnceLock<Raced> = OnceLock::new();

impl Raced {
    fn begin() -> &'static Raced {
        let raced = RACED.get_or_init(|| Raced {
            pager: over_own_memory(PAGES),
            blocks: (0..PAGES / CHUNK_PAGES).map(|_| Mutex::new(())).collect(),
            resident: (0..PAGES).map(|_| AtomicBool::new(false)).collect(),
        });
        // SAFETY: a handler that may interrupt the accesses of these tests.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_segv as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut());
        }
        raced
    }

    /// The page holds the number 1 from here on.
    fn make(&self, page: u32) {
        assert_eq!(self.pager.fill_copy(PageId(page), &page_of(1), Wake::Yes).done, PAGE_BYTES);
        self.resident[page as usize].store(true, Ordering::Relaxed);
    }

    /// Has a page leave or come, as the engine does: under the lock of its block. Whether it was elsewhere.
    fn bring(&self, page: u32, to: bool) -> bool {
        let _block = self.blocks[(page / CHUNK_PAGES) as usize].lock().unwrap();
        if self.resident[page as usize].swap(to, Ordering::Relaxed) == to {
            return false;
        }
        let done = match to {
            true if page == DROPS => self.pager.fill_zeros(PageId(page), 1, Wake::Yes).done,
            true => self.pager.fill(PageId(page), FrameId(page), 1, Wake::Yes).done,
            false => self.pager.drain(FrameId(page), PageId(page), 1).0.done,
        };
        assert_eq!(done, PAGE_BYTES, "page {page} to {to}");
        true
    }

    /// Drops a page, as the engine does.
    fn drop(&self, page: u32) {
        let _block = self.blocks[(page / CHUNK_PAGES) as usize].lock().unwrap();
        self.resident[page as usize].store(false, Ordering::Relaxed);
        self.pager.drop_pages(PageId(page), 1).unwrap();
    }

    /// A word in the middle of a page, used as the program would.
    fn word(&self, page: u32) -> &AtomicU64 {
        // SAFETY: the handler brings the page where it is out; aligned, and shared by atomics alone.
        unsafe { &*((self.pager.page_addr(PageId(page), 1) + PAGE_BYTES / 2) as *const AtomicU64) }
    }
}

/// As the shim's handler: what the program may do is done once the page is there.
extern "C" fn on_segv(number: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's live siginfo.
    let addr = unsafe { (*info).si_addr() } as usize;
    match RACED.get() {
        Some(raced) if raced.pager.permits(addr, Use::Write) => {
            raced.bring(((addr - raced.pager.space_base()) / PAGE_BYTES) as u32, true);
        }
        _ => {
            // SAFETY: the default action: the access is made again, and ends the test.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
    }
}

/// Reads and writes race the ways of pages out and in, and changes of the protection of another. Another word
/// than the last one written is a page lost, or zeros seen in a hole.
#[test]
fn no_thread_sees_anything_but_the_last_bytes_of_a_page_while_pages_come_and_go() {
    /// Pages that leave: two seconds here.
    const OUT: u64 = 2500;
    const WRITERS: u64 = 2;
    const SEED: u64 = 0x5eed_6a7d;
    println!("seed {SEED:#x}");
    let raced = Raced::begin();
    (0..WRITTEN).for_each(|page| raced.make(page));
    let out = AtomicU64::new(0);
    let ended = AtomicU64::new(0);
    let until_the_end = |mut f: Box<dyn FnMut(u32) + Send>| {
        let mut random = Random(SEED);
        while ended.load(Ordering::Relaxed) < WRITERS {
            f((random.next() % u64::from(WRITTEN)) as u32);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until_the_end(Box::new(|any| {
                out.fetch_add(raced.bring(any, false).into(), Ordering::Relaxed);
            }))
        });
        scope.spawn(|| {
            until_the_end(Box::new(|any| {
                let prot = if any % 2 == 0 { PROT_RW } else { libc::PROT_READ };
                raced.pager.protect(PageId(PROTECTED), 1, prot, true).unwrap();
            }))
        });
        for me in 0..WRITERS {
            let (ended, out) = (&ended, &out);
            scope.spawn(move || {
                let _at_the_end = Ended(ended); // also when an assertion fails
                let mut random = Random(SEED + 1 + me);
                let mut last = [1u64; WRITTEN as usize];
                for round in (0u64..).take_while(|_| out.load(Ordering::Relaxed) < OUT) {
                    // Each page has one thread that writes to it.
                    let page = (random.next() % u64::from(WRITTEN / 2)) as u32 * 2 + me as u32;
                    if page == PROTECTED {
                        continue;
                    }
                    let seen = raced.word(page).load(Ordering::Relaxed);
                    assert_eq!(seen, last[page as usize], "page {page}, round {round}");
                    last[page as usize] = round << 8 | me;
                    raced.word(page).store(last[page as usize], Ordering::Relaxed);
                }
            });
        }
    });
    assert!(mappings(&raced.pager) < 10);
}

/// The kernel drops what it finds in several rounds: who has seen zeros after the first one and writes then
/// must find his bytes.
#[test]
fn what_is_written_once_a_page_was_seen_dropped_stays() {
    const DROPPED: u64 = 3000;
    let raced = Raced::begin();
    raced.make(DROPS);
    let (word, wrote) = (raced.word(DROPS), AtomicU64::new(0));
    let mut lost = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=DROPPED {
                while word.load(Ordering::Relaxed) != 0 {}
                word.store(round << 8, Ordering::Relaxed);
                wrote.store(round, Ordering::Release);
                // Until the other has looked.
                while word.load(Ordering::Relaxed) == round << 8 {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=DROPPED {
            raced.drop(DROPS);
            while wrote.load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
            lost += u32::from(word.load(Ordering::Relaxed) != round << 8);
            word.store(1, Ordering::Relaxed);
        }
    });
    assert_eq!(lost, 0);
}

/// Between dropping a page and guarding its place the kernel shows zeros.
#[test]
fn a_reader_sees_no_zeros_while_its_page_goes_out() {
    const OUT: u32 = 5000;
    let raced = Raced::begin();
    raced.make(READ);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let seen = raced.word(READ).load(Ordering::Relaxed);
                if seen != 1 {
                    return Some(seen);
                }
            }
            None
        });
        let mut out = 0;
        while out < OUT && !reader.is_finished() {
            match raced.bring(READ, false) {
                true => out += 1,
                // The reader has not been there: on a busy machine it needs the processor.
                false => std::thread::yield_now(),
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(reader.join().unwrap(), None, "after {out} times");
    });
}
