//! The page that others read while the program runs (`weir stat`): made with the engine, and by each forked
//! child for itself. The engine's background thread copies the counters there, so that readers cost the
//! program nothing, however often they look. It also does what they ask for there (`weir set`): another
//! budget. (They could not sum themselves: each thread counts in memory of its own, and quantiles are worked
//! out of a histogram.)

use crate::{exit, state};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use weir_os::live::Page;
use weir_os::thread;

static PAGE: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());
/// When it is to be written again.
static DUE_NS: AtomicU64 = AtomicU64::new(0);
/// Between two copies: no longer than the background thread sleeps.
const PAUSE_NS: u64 = 50_000_000;

/// Before the background thread runs. Without a page nobody sees this process; that is all.
pub fn begin() {
    let Some(engine) = state::engine() else { return };
    // A filter may end the process for a call that it does not allow.
    if state::is_filtered() {
        return;
    }
    let page = Page::new(exit::owner(), |name: &mut dyn FnMut(&str)| engine.each_counter(|key, _| name(key)));
    if let Ok(page) = page {
        PAGE.store(Box::into_raw(Box::new(page)), Ordering::Release);
    }
}

/// In the child of a fork, before it has a second thread: the page is its parent's.
pub fn forked() {
    let parents = PAGE.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !parents.is_null() {
        // SAFETY: from the box in `begin`; the only thread.
        unsafe { Box::from_raw(parents) }.abandon();
    }
    DUE_NS.store(0, Ordering::Relaxed);
    begin();
}

/// By the background thread, every now and then.
pub fn write() {
    // SAFETY: the page stays as long as the process.
    let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() };
    let (Some(page), Some(engine)) = (page, state::engine()) else { return };
    let asked = page.asked();
    asked.iter().for_each(|bytes| engine.set_budget(*bytes));
    let now = thread::now_ns();
    if asked.is_some() || now >= DUE_NS.load(Ordering::Relaxed) {
        DUE_NS.store(now + PAUSE_NS, Ordering::Relaxed);
        page.write(|value| engine.each_counter(|_, n| value(n)));
    }
}
