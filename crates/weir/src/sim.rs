//! A pager without a kernel, for the engine's unit tests: the program's space and the arena are
//! vectors, and every rule that the kernel would enforce is asserted: a place is filled only when
//! empty, moved only when present. Faults can be injected by call number.

pub mod disk;
mod world;

pub use world::World;

use crate::door::{Done, Pager};
use crate::page::{FrameId, PageId};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use weir_os::codec::PageBytes;
use weir_os::sys::Errno;
use weir_os::uffd::Wake;

/// The fake.
pub struct FakePager {
    space: Mutex<Vec<Option<Box<PageBytes>>>>,
    arena: Box<[UnsafeCell<PageBytes>]>,
    present: Mutex<Vec<bool>>,
    state: Mutex<Inject>,
    copies: AtomicBool,
}

/// Calls that are refused on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// MOVE into the program.
    Fill,
    /// COPY into the program.
    Copy,
    /// Zeros into the program.
    Zeros,
    /// `madvise` that drops pages.
    Drop,
    /// `madvise` that gives frames of the arena back.
    Shed,
    /// `mprotect` of the program's pages.
    Protect,
}

#[derive(Default)]
struct Inject {
    calls: u64,
    fail_drain_at: HashMap<u64, Errno>,
    /// Answers to the next calls; beyond them, and where there is none, they succeed.
    answers: HashMap<Call, VecDeque<Option<Errno>>>,
    busy: Vec<PageId>,
}

// SAFETY: the arena's cells follow the ownership rules of frames.
#[expect(unsafe_code, reason = "frames are handed out to one owner at a time, as in the kernel pager")]
unsafe impl Sync for FakePager {}

impl FakePager {
    /// A space of `pages` pages and an arena of `windows` windows, both empty.
    pub fn new(pages: u32, windows: u32) -> FakePager {
        let frames = windows as usize * 64;
        FakePager {
            space: Mutex::new((0..pages).map(|_| None).collect()),
            arena: (0..frames).map(|_| UnsafeCell::new([0xEE; 4096])).collect(),
            present: Mutex::new(vec![false; frames]),
            state: Mutex::default(),
            copies: AtomicBool::new(false),
        }
    }

    /// From now on pages are copied on their way.
    pub fn copy(&self) {
        self.copies.store(true, Ordering::Relaxed);
    }

    /// The n-th call of `drain` from now on (0 is the next) fails with `e`.
    pub fn fail_drain(&self, n: u64, e: Errno) {
        let mut s = self.state.lock().unwrap();
        let at = s.calls + n;
        s.fail_drain_at.insert(at, e);
    }

    /// The next `n` changes of protection fail with `e`.
    pub fn fail_protect(&self, n: usize, e: Errno) {
        self.refuse(Call::Protect, 0, n, e);
    }

    /// Of these calls the next `pass` succeed, and the `n` behind them fail with `e`.
    pub fn refuse(&self, call: Call, pass: usize, n: usize, e: Errno) {
        let answers = [vec![None; pass], vec![Some(e); n]].concat();
        self.state.lock().unwrap().answers.insert(call, answers.into());
    }

    /// No call is refused any more. How many would have been.
    pub fn refuse_no_more(&self) -> usize {
        let answers = core::mem::take(&mut self.state.lock().unwrap().answers);
        answers.values().flatten().flatten().count()
    }

    fn answer(&self, call: Call) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        let answer = state.answers.get_mut(&call).and_then(VecDeque::pop_front).flatten();
        answer.map_or(Ok(()), Err)
    }

    /// A page that cannot be moved out, as if pinned.
    pub fn set_busy(&self, page: PageId, busy: bool) {
        let mut s = self.state.lock().unwrap();
        s.busy.retain(|p| *p != page);
        if busy {
            s.busy.push(page);
        }
    }

    /// Whether a place holds a frame.
    pub fn has_frame(&self, frame: FrameId) -> bool {
        self.present.lock().unwrap()[frame.0 as usize]
    }

    /// What the program reads at a page if it is mapped.
    pub fn read(&self, page: PageId) -> Option<PageBytes> {
        self.space.lock().unwrap()[page.0 as usize].as_deref().copied()
    }

    /// The program writes to a mapped page. False when it would fault.
    pub fn write(&self, page: PageId, f: impl FnOnce(&mut PageBytes)) -> bool {
        match self.space.lock().unwrap()[page.0 as usize].as_deref_mut() {
            Some(p) => {
                f(p);
                true
            }
            None => false,
        }
    }

    /// Frames under the program and in the arena.
    pub fn frames(&self) -> usize {
        self.space.lock().unwrap().iter().filter(|p| p.is_some()).count()
            + self.present.lock().unwrap().iter().filter(|p| **p).count()
    }

    #[expect(unsafe_code, reason = "see the Sync impl")]
    fn take(&self, frame: usize) -> Box<PageBytes> {
        let mut present = self.present.lock().unwrap();
        assert!(present[frame], "INV-11: moved a place without a frame");
        present[frame] = false;
        // SAFETY: the caller moves the frame, so it owns it.
        let cell = unsafe { &mut *self.arena[frame].get() };
        let page = Box::new(*cell);
        cell.fill(0xEE);
        page
    }

    #[expect(unsafe_code, reason = "see the Sync impl")]
    fn put(&self, frame: usize, page: &PageBytes) {
        let mut present = self.present.lock().unwrap();
        assert!(!present[frame], "INV-11: filled a place that has a frame");
        present[frame] = true;
        // SAFETY: the place was empty, nobody uses it.
        unsafe { *self.arena[frame].get() = *page };
    }
}

fn all(n: u32) -> Done {
    Done { pages: n, stop: None }
}

impl Pager for FakePager {
    type Disk = disk::FakeDisk;
    fn fill(&self, page: PageId, frame: FrameId, n: u32, _wake: Wake) -> Done {
        if let Err(e) = self.answer(Call::Fill) {
            return Done { pages: 0, stop: Some(e) };
        }
        for i in 0..n {
            let mut space = self.space.lock().unwrap();
            let dst = &mut space[(page.0 + i) as usize];
            if dst.is_some() {
                return Done { pages: i, stop: Some(Errno::EEXIST) };
            }
            *dst = Some(self.take((frame.0 + i) as usize));
        }
        all(n)
    }

    fn fill_copy(&self, page: PageId, bytes: &PageBytes, _wake: Wake) -> Done {
        if let Err(e) = self.answer(Call::Copy) {
            return Done { pages: 0, stop: Some(e) };
        }
        let mut space = self.space.lock().unwrap();
        let dst = &mut space[page.0 as usize];
        if dst.is_some() {
            return Done { pages: 0, stop: Some(Errno::EEXIST) };
        }
        *dst = Some(Box::new(*bytes));
        all(1)
    }

    fn fill_zeros(&self, page: PageId, n: u32, wake: Wake) -> Done {
        if let Err(e) = self.answer(Call::Zeros) {
            return Done { pages: 0, stop: Some(e) };
        }
        // In two calls, as when the kernel is disturbed.
        let some = n.div_ceil(2);
        for i in 0..some {
            let one = self.fill_copy(PageId(page.0 + i), &[0; 4096], wake);
            if one.pages == 0 {
                return Done { pages: i, ..one };
            }
        }
        let stop = (some < n).then_some(Errno::EAGAIN);
        Done { pages: some, stop }
    }

    fn drain(&self, frame: FrameId, page: PageId, n: u32) -> (Done, u64) {
        let mut s = self.state.lock().unwrap();
        let call = s.calls;
        s.calls += 1;
        if let Some(e) = s.fail_drain_at.remove(&call) {
            return (Done { pages: 0, stop: Some(e) }, 0);
        }
        let mut moved = 0;
        for i in 0..n {
            let p = PageId(page.0 + i);
            if s.busy.contains(&p) {
                return (
                    Done { pages: i, stop: Some(if i > 0 { Errno::EAGAIN } else { Errno::EBUSY }) },
                    moved,
                );
            }
            assert!(!self.has_frame(FrameId(frame.0 + i)), "INV-11: drained into a place that has a frame");
            if let Some(bytes) = self.space.lock().unwrap()[p.0 as usize].take() {
                self.put((frame.0 + i) as usize, &bytes);
                moved |= 1 << i;
            }
        }
        (all(n), moved)
    }

    fn lift(&self, frame: FrameId, page: PageId, n: u32) -> Result<(), Errno> {
        let mut s = self.state.lock().unwrap();
        let call = s.calls;
        s.calls += 1;
        if let Some(e) = s.fail_drain_at.remove(&call) {
            return Err(e);
        }
        for i in 0..n {
            assert!(!self.has_frame(FrameId(frame.0 + i)), "INV-11: lifted into a place that has a frame");
            if let Some(bytes) = self.space.lock().unwrap()[(page.0 + i) as usize].take() {
                self.put((frame.0 + i) as usize, &bytes);
            }
        }
        Ok(())
    }

    fn sweeps_holes(&self) -> bool {
        !self.copies()
    }

    fn copies(&self) -> bool {
        self.copies.load(Ordering::Relaxed)
    }

    fn drain_readonly(&self, frame: FrameId, page: PageId) -> Done {
        let (done, moved) = self.drain(frame, page, 1);
        if moved == 0 && done.stop.is_none() {
            self.space.lock().unwrap()[page.0 as usize] = Some(Box::new([0; 4096]));
            return Done { pages: 0, stop: Some(Errno::ENOENT) };
        }
        done
    }

    fn settle_frame(&self, frame: FrameId) {
        if !self.has_frame(frame) {
            self.put(frame.0 as usize, &[0; 4096]);
        }
    }

    fn gather(&self, to: FrameId, from: FrameId, n: u32) -> Done {
        for i in 0..n as usize {
            let page = self.take(from.0 as usize + i);
            self.put(to.0 as usize + i, &page);
        }
        all(n)
    }

    fn zero(&self, page: PageId) -> Done {
        let mut space = self.space.lock().unwrap();
        if space[page.0 as usize].is_some() {
            return Done { pages: 0, stop: Some(Errno::EEXIST) };
        }
        space[page.0 as usize] = Some(Box::new([0; 4096]));
        all(1)
    }

    fn grow(&self, frame: FrameId, n: u32) -> Result<(), Errno> {
        (0..n).for_each(|i| self.put((frame.0 + i) as usize, &[0; 4096]));
        Ok(())
    }

    fn shed(&self, frame: FrameId, n: u32) -> Result<(), Errno> {
        self.answer(Call::Shed)?;
        let there = (frame.0..frame.0 + n).filter(|s| self.has_frame(FrameId(*s)));
        there.for_each(|s| drop(self.take(s as usize)));
        Ok(())
    }

    fn duplicate(&self, to: PageId, from: PageId) -> Done {
        let mut space = self.space.lock().unwrap();
        let Some(bytes) = space[from.0 as usize].clone() else {
            return Done { pages: 0, stop: Some(Errno::EFAULT) };
        };
        assert!(space[to.0 as usize].replace(bytes).is_none(), "INV-13: copied onto a page that is there");
        all(1)
    }

    fn drop_pages(&self, page: PageId, n: u32) -> Result<(), Errno> {
        self.answer(Call::Drop)?;
        let mut space = self.space.lock().unwrap();
        (0..n as usize).for_each(|i| space[page.0 as usize + i] = None);
        Ok(())
    }
    fn unprotect(&self, _page: PageId) {}
    fn wake(&self, _page: PageId, _n: u32) {}
    fn dump(&self, _page: PageId, _n: u32, _dump: bool) -> Result<(), Errno> {
        Ok(())
    }
    fn lock(&self, _page: PageId, _n: u32, _lock: bool) -> Result<(), Errno> {
        Ok(())
    }
    fn protect(&self, _page: PageId, _n: u32, _prot: i32, _dump: bool) -> Result<(), Errno> {
        self.answer(Call::Protect)
    }
    fn reserve_again(&self, _page: PageId, _n: u32) -> Result<(), Errno> {
        Ok(())
    }
    fn poison(&self, _page: PageId) -> Done {
        all(1)
    }
    fn calls(&self) -> u64 {
        self.state.lock().unwrap().calls
    }

    fn untold(&self) -> u64 {
        0
    }

    #[expect(unsafe_code, reason = "contract of the trait")]
    unsafe fn frame(&self, frame: FrameId) -> &mut PageBytes {
        assert!(self.has_frame(frame), "touched a place without a frame: the real engine would hang");
        // SAFETY: present; exclusive by the caller's contract.
        unsafe { &mut *self.arena[frame.0 as usize].get() }
    }

    #[expect(unsafe_code, reason = "contract of the trait")]
    unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        for s in offset / 4096..=(offset + len.max(1) - 1) / 4096 {
            assert!(self.has_frame(FrameId(s as u32)), "touched pool bytes without a frame");
        }
        // SAFETY: cells are contiguous; exclusive by the caller's contract.
        unsafe {
            core::slice::from_raw_parts_mut(self.arena.as_ptr().cast::<u8>().cast_mut().add(offset), len)
        }
    }
}
