//! The engine's threads: started with the engine, again in each forked child, and replaced when the program
//! gives rights up.

use crate::exit;
use crate::heap::FutexLock;
use crate::state::{self, Weir};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use lock_api::RawMutex;
use weir::engine::threads::{fatal, say};
use weir_os::files;
use weir_os::pager::Intake;
use weir_os::sys::{Errno, getpid};
use weir_os::thread::{self, Ids, Thread};

/// Stack of an engine thread, and of the thread that starts the engine.
pub const STACK_BYTES: usize = 512 << 10;
/// How long a thread that is to leave is waited for before it is called again, ns.
const CALL_AGAIN_NS: u64 = 1_000_000;
/// The keeper is called so often. It may be held up by a disk: then it is left alone, and leaves later.
const KEEPER_CALLS: u32 = 100;

/// A thread, and the word between it and its starter.
struct Hand {
    thread: Thread,
    word: *mut AtomicU32,
}

/// In the word: works; is to leave; still has the rights of its starter; has given them up and waits for its
/// turn.
const AT_WORK: u32 = 0;
const LEAVE: u32 = 1;
const NEW: u32 = 2;
const READY: u32 = 3;

impl Hand {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: lives until the thread is gone.
        unsafe { &*self.word }
    }

    /// Waits until it has given its rights up.
    fn settle(self) -> Hand {
        while self.word().load(Ordering::Acquire) == NEW {
            let _ = thread::futex_wait(self.word(), NEW, None);
        }
        self
    }

    /// Has it work, or leave.
    fn tell(&self, what: u32) {
        self.word().store(what, Ordering::Release);
        thread::futex_wake(self.word(), 1);
    }
}

/// The threads that serve and reclaim, in whose process, and with whose rights.
struct Hands {
    serve: Option<Hand>,
    reclaim: Option<Hand>,
    /// Only once files are mapped.
    files: Option<Hand>,
    /// Only where statistics are written now and then.
    statistics: Option<Hand>,
    process: u32,
    ids: Option<Ids>,
}

/// Under [`CHANGING`].
struct Cell(UnsafeCell<Hands>);

// SAFETY: touched by whoever holds CHANGING alone.
unsafe impl Sync for Cell {}

/// There is a keeper.
static KEEPS: AtomicBool = AtomicBool::new(false);
static HANDS: Cell = Cell(UnsafeCell::new(Hands {
    serve: None,
    reclaim: None,
    files: None,
    statistics: None,
    process: 0,
    ids: None,
}));
/// Held, with signals blocked, while threads are started and replaced.
static CHANGING: FutexLock = FutexLock::new();

fn with_hands<R>(f: impl FnOnce(&mut Hands) -> R) -> R {
    thread::with_signals_blocked(|| {
        CHANGING.lock();
        // SAFETY: the lock is held.
        let r = f(unsafe { &mut *HANDS.0.get() });
        CHANGING.unlock();
        r
    })
}

/// Starts both.
pub fn start() {
    let started = with_hands(|hands| {
        (hands.serve, hands.reclaim) = (Some(spawn(serve)?), Some(spawn(reclaim)?));
        (hands.process, hands.ids) = (getpid(), thread::ids());
        for hand in [&mut hands.serve, &mut hands.reclaim] {
            *hand = hand.take().map(Hand::settle);
            hand.iter().for_each(|hand| hand.tell(AT_WORK));
        }
        hands.statistics = exit::writes_statistics().then(|| helper(write)).flatten();
        Ok::<(), Errno>(())
    });
    if let Err(e) = started {
        fatal(format_args!("cannot start an engine thread: {e}"));
    }
}

/// Starts the keeper of mapped files, unless there is one. Whether there is one then.
pub fn start_keeper(engine: &Weir) -> bool {
    if engine.files.is_off() {
        return false;
    }
    if !KEEPS.load(Ordering::Acquire) {
        with_hands(|hands| {
            if hands.files.is_none() && hands.process == getpid() {
                hands.files = helper(keep);
            }
            KEEPS.store(hands.files.is_some(), Ordering::Release);
        });
    }
    KEEPS.load(Ordering::Acquire)
}

/// A thread that can be done without. `None` where the program may have no more threads: then files are left
/// to the kernel, and statistics are written at the end alone.
fn helper(entry: extern "C" fn(*mut c_void) -> *mut c_void) -> Option<Hand> {
    let hand = spawn(entry).ok()?.settle();
    hand.tell(AT_WORK);
    Some(hand)
}

/// In the child of a fork: new threads for the inherited engine.
pub fn start_again() {
    state::set_starting_again();
    forget_parents();
    start();
    if let Some(e) = state::engine().filter(|e| e.files.any()) {
        start_keeper(e);
    }
    state::set_running();
}

/// The parent's threads are not here, whatever they or others were about.
fn forget_parents() {
    if !CHANGING.try_lock() {
        // Whoever held it is not in this process; now this thread does.
        CHANGING.unlock();
        CHANGING.lock();
    }
    CHANGING.unlock();
    KEEPS.store(false, Ordering::Relaxed);
    with_hands(|hands| {
        (hands.serve, hands.reclaim, hands.files, hands.statistics) = (None, None, None, None);
    });
}

/// The calling thread has other rights than before, or, with `anyway`, may have: threads with its rights take
/// the place of the others. Not in a child of `vfork`, which has rights of its own and threads of its parent.
pub fn follow(anyway: bool) {
    state::wait_until_started();
    let Some(engine) = state::running() else { return };
    with_hands(|hands| {
        let ids = thread::ids();
        if hands.process != getpid() || !anyway && ids.is_some() && ids == hands.ids {
            return;
        }
        match replace(engine, hands) {
            Ok(()) => hands.ids = ids,
            // The program's limit of threads, with its new rights.
            Err(e) => say(format_args!("its threads keep rights that the program has given up: {e}")),
        }
    });
}

fn replace(engine: &Weir, hands: &mut Hands) -> Result<(), Errno> {
    // The new one works first: in thread mode somebody must serve the faults of whoever waits here.
    let next = spawn(serve)?.settle();
    next.tell(AT_WORK);
    retire(engine, hands.serve.replace(next), u32::MAX);
    // Two at once would be in each other's way.
    let next = spawn(reclaim)?.settle();
    retire(engine, hands.reclaim.take(), u32::MAX);
    next.tell(AT_WORK);
    hands.reclaim = Some(next);
    if hands.files.is_some() {
        retire(engine, hands.files.take(), KEEPER_CALLS);
        // With the thread went its descriptors: of these files only what is clean can leave from now on.
        engine.keeper_gone();
        hands.files = helper(keep);
        KEEPS.store(hands.files.is_some(), Ordering::Release);
    }
    if hands.statistics.is_some() {
        retire(engine, hands.statistics.take(), KEEPER_CALLS); // its disk may hang, too
        hands.statistics = helper(write);
    }
    Ok(())
}

/// Has a thread leave, and waits until it is gone, or has been called so often.
fn retire(engine: &Weir, hand: Option<Hand>, calls: u32) {
    let Some(hand) = hand else { return };
    hand.tell(LEAVE);
    let Hand { mut thread, word } = hand;
    for _ in 0..calls {
        engine.call_threads();
        match thread.join(CALL_AGAIN_NS) {
            Ok(()) => {
                // SAFETY: from the box in `spawn`, once.
                drop(unsafe { Box::from_raw(word) });
                return;
            }
            Err(again) => thread = again,
        }
    }
    // It has its stack and its word for good.
}

fn spawn(entry: extern "C" fn(*mut c_void) -> *mut c_void) -> Result<Hand, Errno> {
    let word = Box::into_raw(Box::new(AtomicU32::new(NEW)));
    // SAFETY: the word lives until the thread is gone; the entries use nothing of libc's.
    let spawned = unsafe { thread::spawn(entry, word.cast(), STACK_BYTES) };
    spawned.map(|thread| Hand { thread, word }).inspect_err(|_| {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(word) });
    })
}

/// What both do first, and waiting for their turn. The word that tells the thread to leave.
fn begin<'a>(word: *mut c_void) -> &'a AtomicU32 {
    thread::give_up_rights();
    // SAFETY: the word of this thread, which outlives it.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    word.store(READY, Ordering::Release);
    thread::futex_wake(word, 1);
    while word.load(Ordering::Acquire) == READY {
        let _ = thread::futex_wait(word, READY, None);
    }
    word
}

extern "C" fn serve(word: *mut c_void) -> *mut c_void {
    let leave = begin(word);
    match state::engine() {
        Some(e) if e.core.pager.intake() == Intake::InThread => {
            thread::set_name(c"weir-ahead");
            e.fetch_ahead_in_background(leave);
        }
        Some(e) => {
            thread::set_name(c"weir-fault");
            thread::prefer_latency();
            e.serve_faults(&mut Weir::workbench(), leave);
        }
        None => {}
    }
    core::ptr::null_mut()
}

extern "C" fn keep(word: *mut c_void) -> *mut c_void {
    let leave = begin(word);
    thread::set_name(c"weir-files");
    thread::prefer_latency();
    if let Some(e) = state::engine() {
        e.keep_files(leave);
    }
    core::ptr::null_mut()
}

extern "C" fn write(word: *mut c_void) -> *mut c_void {
    let leave = begin(word);
    thread::set_name(c"weir-stats");
    thread::prefer_others();
    // In the program's table a file would take, for a moment, a number that the program may expect for its
    // own.
    match files::own_descriptors() {
        Ok(()) => exit::write_statistics(leave),
        Err(e) => say(format_args!("statistics are written at the end alone: a table of descriptors ({e})")),
    }
    core::ptr::null_mut()
}

extern "C" fn reclaim(word: *mut c_void) -> *mut c_void {
    let leave = begin(word);
    thread::set_name(c"weir-reclaim");
    thread::prefer_others();
    let mut workbench = Weir::workbench();
    if let Some(e) = state::engine() {
        e.reclaim_in_background(&mut workbench, leave);
    }
    core::ptr::null_mut()
}
