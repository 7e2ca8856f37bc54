//! The two threads of a pool: one serves page faults, or fetches ahead, the other reclaims. They live as long
//! as the pool.

use super::errors::BuildError;
use crate::engine::Engine;
use crate::reclaim::compress::Workbench;
use crate::sync::Ordering;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32};
use std::sync::{Arc, Mutex};
use weir_os::pager::{Intake, KernelPager};
use weir_os::thread::{self, Thread};

type Weir = Engine<KernelPager>;

/// Stack of a thread of the engine.
const STACK_BYTES: usize = 512 << 10;
/// How long a thread that is to leave is waited for before it is called again, ns.
const CALL_AGAIN_NS: u64 = 1_000_000;

/// What a thread works with. The thread allocates nothing: all of it is made for it.
#[derive(Debug)]
struct Work {
    engine: AtomicPtr<Weir>,
    /// Not 0: the thread is to leave.
    leave: AtomicU32,
    bench: Mutex<Box<Workbench>>,
}

/// A running thread.
#[derive(Debug)]
struct Hand {
    thread: Thread,
    work: Arc<Work>,
}

/// The threads of an engine.
#[derive(Debug)]
pub(super) struct Hands {
    hands: Vec<Hand>,
}

impl Hands {
    /// Starts them, with workbenches made by somebody with a stack that is large enough.
    pub(super) fn start(engine: &Arc<Weir>, benches: [Box<Workbench>; 2]) -> Result<Hands, BuildError> {
        let mut all = Hands { hands: Vec::with_capacity(benches.len()) };
        let first = match engine.core.pager.intake() {
            Intake::Messages => serve,
            Intake::InThread => fetch_ahead,
        };
        let entries: [extern "C" fn(*mut c_void) -> *mut c_void; 2] = [first, reclaim];
        for (entry, bench) in entries.into_iter().zip(benches) {
            match Hand::start(engine, entry, bench) {
                Ok(hand) => all.hands.push(hand),
                Err(e) => {
                    all.stop(engine);
                    return Err(BuildError::Thread(e));
                }
            }
        }
        Ok(all)
    }

    /// Has them leave, and waits until they are gone.
    pub(super) fn stop(self, engine: &Weir) {
        for hand in &self.hands {
            hand.work.leave.store(1, Ordering::Release);
        }
        for Hand { mut thread, work } in self.hands {
            engine.call_threads();
            while let Err(again) = thread.join(CALL_AGAIN_NS) {
                engine.call_threads();
                thread = again;
            }
            drop(work); // not before: it is the thread's
        }
    }
}

impl Hand {
    #[expect(unsafe_code, reason = "starts a thread of the engine past libc")]
    fn start(
        engine: &Arc<Weir>,
        entry: extern "C" fn(*mut c_void) -> *mut c_void,
        bench: Box<Workbench>,
    ) -> Result<Hand, weir_os::sys::Errno> {
        let engine = AtomicPtr::new(Arc::as_ptr(engine).cast_mut());
        let work = Arc::new(Work { engine, leave: AtomicU32::new(0), bench: Mutex::new(bench) });
        let arg = Arc::as_ptr(&work).cast_mut().cast();
        // SAFETY: the hand keeps `work`, and whoever has the hands keeps the engine, until `stop` has seen
        // the thread go, or for ever. The entries allocate nothing, and use nothing of libc's per thread.
        let thread = unsafe { thread::spawn(entry, arg, STACK_BYTES)? };
        Ok(Hand { thread, work })
    }
}

/// The work of the calling thread, and its engine.
#[expect(unsafe_code, reason = "what the thread was started with, by address")]
fn work<'a>(arg: *mut c_void) -> (&'a Work, &'a Weir) {
    // SAFETY: `Hand::start` passed the address of a `Work`, which lives until this thread is gone.
    let work = unsafe { &*arg.cast::<Work>() };
    // SAFETY: and so does the engine. Both are only used as shared references.
    let engine = unsafe { &*work.engine.load(Ordering::Acquire) };
    (work, engine)
}

extern "C" fn serve(arg: *mut c_void) -> *mut c_void {
    let (work, engine) = work(arg);
    thread::give_up_rights();
    thread::set_name(c"weir-fault");
    thread::prefer_latency();
    if let Ok(mut bench) = work.bench.try_lock() {
        engine.serve_faults(&mut bench, &work.leave);
    }
    core::ptr::null_mut()
}

extern "C" fn fetch_ahead(arg: *mut c_void) -> *mut c_void {
    let (work, engine) = work(arg);
    thread::give_up_rights();
    thread::set_name(c"weir-ahead");
    engine.fetch_ahead_in_background(&work.leave);
    core::ptr::null_mut()
}

extern "C" fn reclaim(arg: *mut c_void) -> *mut c_void {
    let (work, engine) = work(arg);
    thread::give_up_rights();
    thread::set_name(c"weir-reclaim");
    thread::prefer_others();
    if let Ok(mut bench) = work.bench.try_lock() {
        engine.reclaim_in_background(&mut bench, &work.leave);
    }
    core::ptr::null_mut()
}
