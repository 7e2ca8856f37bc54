//! The one place from which system calls with managed pointers may be made, and the calls under way.
//!
//! It lies at a fixed address, the same in every process of Weir, because a filter is inherited
//! over `exec` and names that address. First comes the engine's own door; then stubs. A trapped call
//! is made again from a stub of its own, in the program's context: with its stack, its signal mask
//! and its registers, so that blocking, interruption and restart are the kernel's business. After
//! the call the stub marks its row as done and jumps back behind the program's instruction:
//!
//! ```text
//! syscall
//! mov r11, [rip + row.back]          r11 and rcx belong to the kernel across a system call
//! mov dword ptr [rip + row.state], DONE
//! jmp r11
//! ```
//!
//! So no state is kept on the thread: a signal handler that interrupts the call may make calls of
//! its own, leave by `longjmp`, or switch stacks. What a done call had pinned is released by whoever
//! looks next.

use super::area::Area;
use crate::mem::{Line, Mapping, PAGE_BYTES, protect};
use crate::sys::{self, Errno};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

/// Calls with managed pointers that can be under way at once: more than the threads of most machines. A place
/// for each is reserved, since the filter names the range for ever.
pub const STUBS_MAX: usize = 1 << 17;
/// Stubs made at first; whenever all are in use, as many again.
const STUBS_FIRST: usize = 2048;
const STUB_BYTES: usize = 32;
/// The engine's door, before the stubs: a page, so that it stays executable while stubs are made.
const DOOR_BYTES: usize = PAGE_BYTES;
const CODE_BYTES: usize = DOOR_BYTES + STUBS_MAX * STUB_BYTES;
const ROW_BYTES: usize = size_of::<Line>();
const _: () = {
    let (code, rows) = (STUBS_FIRST * STUB_BYTES, STUBS_FIRST * ROW_BYTES);
    assert!(code.is_multiple_of(PAGE_BYTES) && rows.is_multiple_of(PAGE_BYTES));
};
/// The address lies this far below the managed space: another value of its upper half.
const BELOW_SPACE: usize = 1 << 32;

const FREE: u32 = 0;
/// Being prepared by the thread that claimed it.
const BUSY: u32 = 1;
/// The call is under way, or about to be.
const ACTIVE: u32 = 2;
/// Written by the stub: the call has returned.
const DONE: u32 = 3;

/// Which word of a row is what.
mod word {
    pub const STATE: usize = 0;
    pub const PINS: usize = 1;
    pub const NUMBER: usize = 2;
    pub const KERNEL_ID: usize = 3;
    pub const BACK: usize = 0;
    pub const THREAD: usize = 1;
    pub const STACK: usize = 2;
}
const BACK_OFFSET: usize = core::mem::offset_of!(Line, w64) + 8 * word::BACK;
const STATE_OFFSET: usize = core::mem::offset_of!(Line, w32) + 4 * word::STATE;

/// The stubs and their rows.
#[derive(Debug)]
pub struct Stubs {
    /// Never unmapped once the door was open: a thread may be asleep in a call that it made there.
    code: ManuallyDrop<Mapping>,
    rows: ManuallyDrop<Mapping>,
    opened: AtomicBool,
    /// Stubs that are made, the first ones.
    made: AtomicUsize,
    /// Held while more are made. A leaf.
    making: Mutex<()>,
    /// Where the next [`Stubs::bury`] begins.
    looked: AtomicUsize,
}

impl Drop for Stubs {
    fn drop(&mut self) {
        sys::leave_door(self.code.base());
        if !*self.opened.get_mut() {
            // SAFETY: dropped once, here; nobody was told the address.
            unsafe {
                ManuallyDrop::drop(&mut self.code);
                ManuallyDrop::drop(&mut self.rows);
            }
        }
    }
}

/// A claimed stub, to be made ready or given back.
#[derive(Debug)]
pub struct Stub<'a> {
    stubs: &'a Stubs,
    index: usize,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// [`crate::thread::id`] of the calling thread.
    pub thread: usize,
    /// Its stack pointer at the call.
    pub stack: usize,
    /// The thread's kernel id.
    pub tid: u32,
}

impl Stubs {
    /// Writes the stubs below the managed space that begins at `space_base`.
    ///
    /// Errors: EEXIST when the place is taken; EACCES where memory may not become executable.
    pub fn new(space_base: usize) -> Result<Stubs, Errno> {
        let at = space_base - BELOW_SPACE;
        let code = Mapping::reserve(at, CODE_BYTES)?;
        let rows = Mapping::reserve(at + CODE_BYTES, STUBS_MAX * ROW_BYTES)?;
        code.name(c"weir-gate");
        rows.name(c"weir-gate-rows");
        let stubs = Stubs {
            code: ManuallyDrop::new(code),
            rows: ManuallyDrop::new(rows),
            opened: AtomicBool::new(false),
            made: AtomicUsize::new(0),
            making: Mutex::new(()),
            looked: AtomicUsize::new(0),
        };
        const DOOR: [u8; 3] = [0x0f, 0x05, 0xc3]; // syscall; ret
        // SAFETY: a page of its own, whose address nobody knows yet.
        unsafe { stubs.write(stubs.code.base(), DOOR_BYTES, |_| DOOR)? };
        stubs.make(STUBS_FIRST)?;
        Ok(stubs)
    }

    /// Writes code, a piece by `f` for each [`STUB_BYTES`] of whole pages, and makes it executable.
    ///
    /// # Safety
    /// - the pages are in the code mapping, and nobody runs them yet.
    unsafe fn write<const N: usize>(
        &self,
        at: usize,
        len: usize,
        f: impl Fn(usize) -> [u8; N],
    ) -> Result<(), Errno> {
        const { assert!(N <= STUB_BYTES) };
        // SAFETY: passed on; each piece lies within its place.
        unsafe {
            protect(at, len, crate::mem::PROT_RW)?;
            for place in (at..at + len).step_by(STUB_BYTES) {
                core::ptr::copy_nonoverlapping(f(place).as_ptr(), place as *mut u8, N);
            }
            protect(at, len, libc::PROT_READ | libc::PROT_EXEC)
        }
    }

    /// Makes stubs until there are `wanted`; by several threads at once, once.
    fn make(&self, wanted: usize) -> Result<(), Errno> {
        let _making = self.making.lock();
        let from = self.made();
        if wanted <= from {
            return Ok(());
        }
        let (first, len) = (self.stub_addr(from), (wanted - from) * STUB_BYTES);
        let row = |i: usize| self.rows.base() + i * ROW_BYTES;
        // SAFETY: places of stubs that are not counted yet, so nobody uses them.
        unsafe {
            protect(row(from), row(wanted) - row(from), crate::mem::PROT_RW)?;
            self.write(first, len, |stub| code_of_stub(stub, row((stub - self.stub_addr(0)) / STUB_BYTES)))?;
        }
        self.made.store(wanted, Ordering::Release);
        Ok(())
    }

    /// Stubs that are made.
    fn made(&self) -> usize {
        self.made.load(Ordering::Acquire)
    }

    /// From here on the engine's own system calls are made at the door, which the filter passes.
    pub fn open_door(&self) {
        self.opened.store(true, Ordering::Relaxed);
        // SAFETY: `syscall; ret`, mapped for ever by contract of the owner, who keeps the stubs.
        unsafe { sys::set_door(self.code.base()) };
    }

    /// Addresses, first and one past the last, from which calls pass the filter.
    pub fn allowed(&self) -> (u64, u64) {
        (self.code.base() as u64, (self.code.base() + CODE_BYTES) as u64)
    }

    /// Whether an instruction pointer lies in a stub, and in which.
    pub fn index_of(&self, ip: usize) -> Option<usize> {
        let offset = ip.checked_sub(self.stub_addr(0))?;
        (offset < self.made() * STUB_BYTES).then_some(offset / STUB_BYTES)
    }

    fn stub_addr(&self, i: usize) -> usize {
        self.code.base() + DOOR_BYTES + i * STUB_BYTES
    }

    fn row(&self, i: usize) -> &Line {
        assert!(i < STUBS_MAX);
        // SAFETY: in bounds, of a stub that is made, aligned, valid when zero, shared by atomics alone.
        unsafe { &*(self.rows.base() as *const Line).add(i) }
    }

    fn state(&self, i: usize) -> &AtomicU32 {
        &self.row(i).w32[word::STATE]
    }

    /// Claims a stub for a call of `thread`; `release` is called with what a former call of it had
    /// pinned. When all are in use more are made; `None` when there can be no more.
    pub fn claim(&self, thread: usize, release: &mut dyn FnMut(u32)) -> Option<Stub<'_>> {
        loop {
            let made = self.made();
            // Spread, although stacks and so their threads' control blocks lie at like distances.
            let first = (thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 32;
            for i in (0..made).map(|i| (first + i) % made) {
                let state = self.state(i);
                let seen = state.load(Ordering::Relaxed);
                if (seen == FREE || seen == DONE)
                    && state.compare_exchange(seen, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    let pins = self.row(i).w32[word::PINS].swap(0, Ordering::AcqRel);
                    if pins != 0 {
                        release(pins);
                    }
                    return Some(Stub { stubs: self, index: i });
                }
            }
            if made == STUBS_MAX || self.make((2 * made).min(STUBS_MAX)).is_err() {
                return None;
            }
        }
    }

    /// Frees the rows of calls that have returned, calling `release` with what they had pinned.
    pub fn harvest(&self, release: &mut dyn FnMut(u32)) {
        for i in 0..self.made() {
            let state = self.state(i);
            if state.load(Ordering::Relaxed) == DONE
                && self.row(i).w32[word::PINS].load(Ordering::Relaxed) != 0
                && state.compare_exchange(DONE, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                let pins = self.row(i).w32[word::PINS].swap(0, Ordering::AcqRel);
                state.store(FREE, Ordering::Release);
                if pins != 0 {
                    release(pins);
                }
            }
        }
    }

    /// Visits the calls under way; `f` says whether a call can never return (its thread is gone, or
    /// has left it by a long jump): its stub is then free, and what it had pinned is released.
    pub fn each_active(&self, mut f: impl FnMut(Call) -> bool, release: &mut dyn FnMut(u32)) {
        for i in 0..self.made() {
            self.look_at(i, &mut f, release);
        }
    }

    /// As [`Stubs::each_active`] for a few calls at a time, the next ones each time: `f` may be slow.
    pub fn bury(&self, mut f: impl FnMut(Call) -> bool, release: &mut dyn FnMut(u32)) {
        /// System calls of a moment of housekeeping.
        const AT_ONCE: usize = 256;
        let made = self.made();
        let first = self.looked.load(Ordering::Relaxed);
        let mut looked = 0;
        for i in (0..made).map(|i| (first + i) % made) {
            looked += usize::from(self.look_at(i, &mut f, release));
            if looked == AT_ONCE {
                self.looked.store(i + 1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Visits a call; false when none is under way there.
    fn look_at(&self, i: usize, f: &mut impl FnMut(Call) -> bool, release: &mut dyn FnMut(u32)) -> bool {
        if self.state(i).load(Ordering::Acquire) != ACTIVE {
            return false;
        }
        if f(self.describe(i)) {
            self.abandon(i, release);
        }
        true
    }

    /// Ends a call that was not made after all.
    pub fn abandon(&self, index: usize, release: &mut dyn FnMut(u32)) {
        let pins = self.row(index).w32[word::PINS].swap(0, Ordering::AcqRel);
        self.state(index).store(FREE, Ordering::Release);
        if pins != 0 {
            release(pins);
        }
    }

    fn describe(&self, i: usize) -> Call {
        let row = self.row(i);
        Call {
            number: row.w32[word::NUMBER].load(Ordering::Relaxed),
            thread: row.w64[word::THREAD].load(Ordering::Relaxed) as usize,
            stack: row.w64[word::STACK].load(Ordering::Relaxed) as usize,
            tid: row.w32[word::KERNEL_ID].load(Ordering::Relaxed),
        }
    }

    /// Makes a call through a stub that is ready, from ordinary code. Returns the kernel's result.
    ///
    /// # Safety
    /// - `at` is what [`Stub::ready`] returned for the calling thread; the call must be sound.
    pub unsafe fn call(&self, at: usize, nr: usize, a: [usize; 6]) -> isize {
        let Some(index) = self.index_of(at) else { return -(Errno::ENOSYS.0 as isize) };
        let back = &raw const self.row(index).w64[word::BACK];
        let result: isize;
        // SAFETY: the stub makes the call and comes back to label 2; the rest is the caller's.
        unsafe {
            core::arch::asm!(
                "lea r11, [rip + 2f]",
                "mov [{back}], r11",
                "jmp {at}",
                "2:",
                back = in(reg) back,
                at = in(reg) at,
                inlateout("rax") nr as isize => result,
                in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
                in("r10") a[3], in("r8") a[4], in("r9") a[5],
                out("rcx") _, out("r11") _,
            );
        }
        result
    }

    /// Where the program goes on after the call of stub `index`.
    pub fn back(&self, index: usize) -> usize {
        self.row(index).w64[word::BACK].load(Ordering::Relaxed) as usize
    }
}

/// The instructions of the stub at `stub`, whose row lies at `row`.
fn code_of_stub(stub: usize, row: usize) -> [u8; 22] {
    let relative = |target: usize, next: usize| ((target - (stub + next)) as u32).to_le_bytes();
    let mut bytes = [0u8; 22];
    bytes[0..2].copy_from_slice(&[0x0f, 0x05]);
    bytes[2..5].copy_from_slice(&[0x4c, 0x8b, 0x1d]);
    bytes[5..9].copy_from_slice(&relative(row + BACK_OFFSET, 9));
    bytes[9..11].copy_from_slice(&[0xc7, 0x05]);
    bytes[11..15].copy_from_slice(&relative(row + STATE_OFFSET, 19));
    bytes[15..19].copy_from_slice(&DONE.to_le_bytes());
    bytes[19..22].copy_from_slice(&[0x41, 0xff, 0xe3]);
    bytes
}

impl Stub<'_> {
    fn row(&self) -> &Line {
        self.stubs.row(self.index)
    }

    /// Makes the stub ready for a call that goes on at `back`. Returns the address to jump to.
    pub fn ready(self, back: usize, number: u32, pins: u32, thread: usize, stack: usize) -> usize {
        let row = self.row();
        row.w32[word::PINS].store(pins, Ordering::Relaxed);
        row.w32[word::NUMBER].store(number, Ordering::Relaxed);
        row.w32[word::KERNEL_ID].store(Area::current().kernel_id(), Ordering::Relaxed);
        let set = |w: &AtomicU64, v: usize| w.store(v as u64, Ordering::Relaxed);
        set(&row.w64[word::BACK], back);
        set(&row.w64[word::THREAD], thread);
        set(&row.w64[word::STACK], stack);
        self.stubs.state(self.index).store(ACTIVE, Ordering::Release);
        self.stubs.stub_addr(self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far from the engine's own places.
    const SPACE: usize = 0x3800_0000_0000;

    #[test]
    fn a_stub_makes_the_call_marks_it_done_and_comes_back() {
        let stubs = Stubs::new(SPACE).unwrap();
        let stub = stubs.claim(640, &mut |_| panic!("nothing pinned yet")).unwrap();
        let index = stub.index;
        let at = stub.ready(0, libc::SYS_getpid as u32, 7, 1, 2);
        // SAFETY: a call without pointers.
        let pid = unsafe { stubs.call(at, libc::SYS_getpid as usize, [0; 6]) };
        assert_eq!(pid, std::process::id() as isize);
        let mut released = Vec::new();
        stubs.harvest(&mut |p| released.push(p));
        assert_eq!(released, [7]);
        assert_eq!(stubs.state(index).load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn a_claim_takes_over_what_a_done_call_left_and_passes_over_active_ones() {
        let stubs = Stubs::new(SPACE + (8 << 32)).unwrap();
        let at = stubs.claim(0, &mut |_| {}).unwrap().ready(5, 1, 9, 77, 88);
        assert_eq!(stubs.index_of(at), Some(0));
        assert_eq!(stubs.back(0), 5);
        assert_eq!(stubs.claim(0, &mut |_| panic!()).unwrap().index, 1);
        stubs.state(0).store(DONE, Ordering::Relaxed);
        let mut released = 0;
        assert_eq!(stubs.claim(0, &mut |p| released = p).unwrap().index, 0);
        assert_eq!(released, 9);
        assert!(Stubs::new(SPACE + (8 << 32)).is_err(), "the place is taken");
    }

    #[test]
    fn a_call_that_can_never_return_gives_up_its_stub_and_its_pins() {
        let stubs = Stubs::new(SPACE + (16 << 32)).unwrap();
        stubs.claim(0, &mut |_| {}).unwrap().ready(5, 1, 9, 77, 88);
        let mut released = 0;
        stubs.each_active(|c| (c.thread, c.stack, c.number) == (77, 88, 1), &mut |p| released = p);
        assert_eq!(released, 9);
        assert_eq!(stubs.claim(0, &mut |_| {}).unwrap().index, 0);
    }

    #[test]
    fn more_stubs_are_made_when_all_are_in_use_and_they_work_and_are_looked_at_in_turn() {
        let stubs = Stubs::new(SPACE + (24 << 32)).unwrap();
        let ready = |i: usize| {
            let stub = stubs.claim(i << 12, &mut |_| {}).unwrap();
            (stub.index, stub.ready(0, libc::SYS_getppid as u32, i as u32, i, 0))
        };
        let all: Vec<(usize, usize)> = (1..=5000).map(ready).collect();
        let mut indices: Vec<usize> = all.iter().map(|(index, _)| *index).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), 5000, "each has its own");
        assert_eq!(stubs.made(), 8192);
        for (_, at) in &all[..4000] {
            // SAFETY: a call without pointers.
            let parent = unsafe { stubs.call(*at, libc::SYS_getppid as usize, [0; 6]) };
            assert_eq!(parent, std::os::unix::process::parent_id() as isize);
        }
        let mut released = 0;
        stubs.harvest(&mut |_| released += 1);
        assert_eq!(released, 4000);
        let mut buried = 0;
        for _ in 0..=1000 / 256 {
            stubs.bury(|_| true, &mut |_| buried += 1);
        }
        assert_eq!(buried, 1000);
    }
}
