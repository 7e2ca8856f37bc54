//! A pager without a kernel, for the engine's unit tests: the program's space and the arena are
//! vectors, and every rule that the kernel would enforce is asserted: a slot is filled only when
//! empty, moved only when present. Faults can be injected by call number.

pub mod disk;
mod world;

pub use world::World;

use crate::door::{Done, Pager};
use crate::page::{FrameId, PageId};
use core::cell::UnsafeCell;
use std::collections::HashMap;
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
}

#[derive(Default)]
struct Inject {
    calls: u64,
    fail_drain_at: HashMap<u64, Errno>,
    fail_protect: Vec<Errno>,
    busy: Vec<PageId>,
}

// SAFETY: the arena's cells follow the ownership rules of frames.
#[expect(unsafe_code, reason = "frames are handed out to one owner at a time, as in the kernel pager")]
unsafe impl Sync for FakePager {}

impl FakePager {
    /// A space of `pages` pages and an arena of `windows` windows, both empty.
    pub fn new(pages: u32, windows: u32) -> FakePager {
        let slots = windows as usize * 64;
        FakePager {
            space: Mutex::new((0..pages).map(|_| None).collect()),
            arena: (0..slots).map(|_| UnsafeCell::new([0xEE; 4096])).collect(),
            present: Mutex::new(vec![false; slots]),
            state: Mutex::default(),
        }
    }

    /// The n-th call of `drain` from now on (0 is the next) fails with `e`.
    pub fn fail_drain(&self, n: u64, e: Errno) {
        let mut s = self.state.lock().unwrap();
        let at = s.calls + n;
        s.fail_drain_at.insert(at, e);
    }

    /// The next `n` changes of protection fail with `e`.
    pub fn fail_protect(&self, n: usize, e: Errno) {
        self.state.lock().unwrap().fail_protect = vec![e; n];
    }

    /// A page that cannot be moved out, as if pinned.
    pub fn set_busy(&self, page: PageId, busy: bool) {
        let mut s = self.state.lock().unwrap();
        s.busy.retain(|p| *p != page);
        if busy {
            s.busy.push(page);
        }
    }

    /// Whether a slot holds a frame.
    pub fn has_frame(&self, slot: FrameId) -> bool {
        self.present.lock().unwrap()[slot.0 as usize]
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
    fn take(&self, slot: usize) -> Box<PageBytes> {
        let mut present = self.present.lock().unwrap();
        assert!(present[slot], "INV-11: moved a slot without a frame");
        present[slot] = false;
        // SAFETY: the caller moves the frame, so it owns it.
        let cell = unsafe { &mut *self.arena[slot].get() };
        let page = Box::new(*cell);
        cell.fill(0xEE);
        page
    }

    #[expect(unsafe_code, reason = "see the Sync impl")]
    fn put(&self, slot: usize, page: &PageBytes) {
        let mut present = self.present.lock().unwrap();
        assert!(!present[slot], "INV-11: filled a slot that has a frame");
        present[slot] = true;
        // SAFETY: the slot was empty, nobody uses it.
        unsafe { *self.arena[slot].get() = *page };
    }
}

fn all(n: u32) -> Done {
    Done { pages: n, stop: None }
}

impl Pager for FakePager {
    type Disk = disk::FakeDisk;
    fn fill(&self, page: PageId, slot: FrameId, n: u32, _wake: Wake) -> Done {
        for i in 0..n {
            let mut space = self.space.lock().unwrap();
            let dst = &mut space[(page.0 + i) as usize];
            if dst.is_some() {
                return Done { pages: i, stop: Some(Errno::EEXIST) };
            }
            *dst = Some(self.take((slot.0 + i) as usize));
        }
        all(n)
    }

    fn fill_copy(&self, page: PageId, bytes: &PageBytes, _wake: Wake) -> Done {
        let mut space = self.space.lock().unwrap();
        let dst = &mut space[page.0 as usize];
        if dst.is_some() {
            return Done { pages: 0, stop: Some(Errno::EEXIST) };
        }
        *dst = Some(Box::new(*bytes));
        all(1)
    }

    fn fill_zeros(&self, page: PageId, n: u32, wake: Wake) -> Done {
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

    fn drain(&self, slot: FrameId, page: PageId, n: u32) -> (Done, u64) {
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
            assert!(!self.has_frame(FrameId(slot.0 + i)), "INV-11: drained into a slot that has a frame");
            if let Some(bytes) = self.space.lock().unwrap()[p.0 as usize].take() {
                self.put((slot.0 + i) as usize, &bytes);
                moved |= 1 << i;
            }
        }
        (all(n), moved)
    }

    fn lift(&self, slot: FrameId, page: PageId, n: u32) -> Result<(), Errno> {
        let mut s = self.state.lock().unwrap();
        let call = s.calls;
        s.calls += 1;
        if let Some(e) = s.fail_drain_at.remove(&call) {
            return Err(e);
        }
        for i in 0..n {
            assert!(!self.has_frame(FrameId(slot.0 + i)), "INV-11: lifted into a slot that has a frame");
            if let Some(bytes) = self.space.lock().unwrap()[(page.0 + i) as usize].take() {
                self.put((slot.0 + i) as usize, &bytes);
            }
        }
        Ok(())
    }

    fn sweeps_holes(&self) -> bool {
        true
    }

    fn drain_readonly(&self, slot: FrameId, page: PageId) -> Done {
        let (done, moved) = self.drain(slot, page, 1);
        if moved == 0 && done.stop.is_none() {
            self.space.lock().unwrap()[page.0 as usize] = Some(Box::new([0; 4096]));
            return Done { pages: 0, stop: Some(Errno::ENOENT) };
        }
        done
    }

    fn settle_slot(&self, slot: FrameId) {
        if !self.has_frame(slot) {
            self.put(slot.0 as usize, &[0; 4096]);
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

    fn grow(&self, slot: FrameId, n: u32) -> Result<(), Errno> {
        (0..n).for_each(|i| self.put((slot.0 + i) as usize, &[0; 4096]));
        Ok(())
    }

    fn shed(&self, slot: FrameId, n: u32) -> Result<(), Errno> {
        let there = (slot.0..slot.0 + n).filter(|s| self.has_frame(FrameId(*s)));
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
        self.state.lock().unwrap().fail_protect.pop().map_or(Ok(()), Err)
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
    unsafe fn frame(&self, slot: FrameId) -> &mut PageBytes {
        assert!(self.has_frame(slot), "touched a slot without a frame: the real engine would hang");
        // SAFETY: present; exclusive by the caller's contract.
        unsafe { &mut *self.arena[slot.0 as usize].get() }
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
