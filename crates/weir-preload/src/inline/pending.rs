//! Signals of Weir's that were sent while nobody would take them. One sent to a thread waits in that thread's
//! area. One sent to the process waits here, for whichever thread unblocks it or waits for it first: the
//! kernel hands it to a thread of its own choice, because for the kernel none has it blocked.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;
use weir_os::gate::area::{Area, KEPT, kept_index};
use weir_os::signal::{self, Mask, bit};

/// Signals in [`INFOS`].
static PENDING: AtomicU64 = AtomicU64::new(0);

/// As the kernel lays it out.
struct Info(MaybeUninit<libc::siginfo_t>);
// SAFETY: plain bytes; the addresses in it are the program's.
unsafe impl Send for Info {}

/// What came with each. Only locked with signals blocked.
static INFOS: [Mutex<Info>; KEPT] = [const { Mutex::new(Info(MaybeUninit::uninit())) }; KEPT];

/// A thread that waits for one of Weir's signals, by kernel id; 0 for none.
static WAITER: AtomicU32 = AtomicU32::new(0);

/// Keeps a signal that came to a thread which believes it blocked, or hands it to one that waits for it.
/// Signals are blocked.
pub fn keep(number: i32, info: *const libc::siginfo_t) {
    // SAFETY: the kernel's live siginfo.
    let info = unsafe { info.read() };
    if info.si_code == libc::SI_TKILL {
        let area = Area::current();
        // SAFETY: the area's copy is as large.
        unsafe { area.info(number).write(info) };
        area.pending.fetch_or(bit(number), Ordering::Relaxed);
        return;
    }
    if pass_on(number) {
        return;
    }
    with_info(number, |kept| *kept = Info(MaybeUninit::new(info)));
    PENDING.fetch_or(bit(number), Ordering::SeqCst);
    // Somebody who began to wait meanwhile may have looked here before.
    if WAITER.load(Ordering::SeqCst) != 0 && take_bit(bit(number)).is_some() && !pass_on(number) {
        PENDING.fetch_or(bit(number), Ordering::SeqCst);
    }
}

fn with_info(number: i32, f: impl FnOnce(&mut Info)) {
    let inside = super::stacks::section();
    if let Ok(mut info) = INFOS[kept_index(number)].lock() {
        f(&mut info);
    }
    drop(inside);
}

fn pass_on(number: i32) -> bool {
    let tid = WAITER.load(Ordering::SeqCst);
    tid != 0 && signal::send(tid, number)
}

/// Takes one signal of the set that waits for the process.
fn take_bit(set: Mask) -> Option<i32> {
    let due = PENDING.load(Ordering::SeqCst) & set;
    let number = (due != 0).then(|| due.trailing_zeros() as i32 + 1)?;
    (PENDING.fetch_and(!bit(number), Ordering::SeqCst) & bit(number) != 0).then_some(number)
}

/// Takes a signal of the set that waits for the calling thread or for the process; what came with it is in
/// the thread's area.
pub fn take(set: Mask) -> Option<i32> {
    let area = Area::current();
    let own = area.pending.load(Ordering::Relaxed) & set;
    if own != 0 {
        let number = own.trailing_zeros() as i32 + 1;
        area.pending.fetch_and(!bit(number), Ordering::Relaxed);
        return Some(number);
    }
    if PENDING.load(Ordering::SeqCst) & set == 0 {
        return None;
    }
    let signals = weir_os::thread::block_signals();
    let taken = take_bit(set);
    if let Some(number) = taken {
        // SAFETY: written before its bit was set; the area's copy is as large.
        with_info(number, |info| unsafe { area.info(number).write(info.0.assume_init_read()) });
    }
    weir_os::thread::restore_signals(signals);
    taken
}

/// What waits for the calling thread or for the process.
pub fn mask() -> Mask {
    Area::current().pending.load(Ordering::Relaxed) | PENDING.load(Ordering::SeqCst)
}

/// Ignoring a signal discards one that waits.
pub fn discard(number: i32) {
    Area::current().pending.fetch_and(!bit(number), Ordering::Relaxed);
    PENDING.fetch_and(!bit(number), Ordering::SeqCst);
}

/// The calling thread, which has them really blocked, waits for signals of Weir's from here on: it looks for
/// one by [`take`], then sleeps.
pub fn begin_waiting() {
    WAITER.store(Area::current().kernel_id(), Ordering::SeqCst);
}

/// It does no more.
pub fn end_waiting() {
    let me = Area::current().kernel_id();
    let _ = WAITER.compare_exchange(me, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// In the child of a fork: nothing waits for it.
pub fn forked() {
    Area::current().pending.store(0, Ordering::Relaxed);
    PENDING.store(0, Ordering::Relaxed);
    WAITER.store(0, Ordering::Relaxed);
}
