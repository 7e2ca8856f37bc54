//! Stacks. The kernel writes a signal frame before our handlers run, so the memory that it writes to
//! must be there: our handlers run on an alternate stack, the program's own where it set one that is
//! large enough and no other thread's as well (its pages are pinned), else one of ours. Memory in
//! use as an ordinary stack (coroutines on the heap) is pinned once it is noticed, for the signals
//! that come without one.

use super::context::Context;
use super::ours::taken;
use crate::state::{self, Weir};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use weir_os::gate::area::{Area, is_owner};
use weir_os::gate::dispatch;
use weir_os::mem::PAGE_BYTES;
use weir_os::signal;
use weir_os::stack::Stack;
use weir_os::sys::Errno;
use weir_os::thread::{self, has_ended};

/// An alternate stack of ours. A program's handlers with SA_ONSTACK may run on it: room for them.
const STACK_BYTES: usize = 256 << 10;
/// Kept below a stack pointer that is found in managed memory, and above it.
const BELOW_BYTES: usize = 64 << 10;
const ABOVE_BYTES: usize = 4 << 10;
/// Heap stacks kept at most; the one noticed longest ago is let go of for a new one. Fewer in a small budget:
/// all of them together never take more than one frame in [`KEPT_SHARE`], but a few are kept in any case.
const KEPT: usize = 128;
const KEPT_MIN: usize = 8;
const KEPT_SHARE: usize = 8;
const KEPT_PAGES: usize = (BELOW_BYTES + ABOVE_BYTES) / PAGE_BYTES + 1;

/// Alternate stacks of ours, with the kernel id of the thread that has each.
static OURS: Mutex<Vec<(Stack, u32)>> = Mutex::new(Vec::new());
/// Alternate stacks of the program's: first address, end, and the kernel id of the thread that has each.
static THEIRS: Mutex<Vec<(usize, usize, u32)>> = Mutex::new(Vec::new());
/// Heap stacks: first address, end, and what pins them.
static HEAP_STACKS: Mutex<Ring> = Mutex::new(Ring { rows: [(0, 0, 0); KEPT], next: 0, most: 0 });

struct Ring {
    rows: [(usize, usize, u32); KEPT],
    next: usize,
    /// Rows in use: as the budget was when the first stack was kept.
    most: usize,
}

/// Two signal frames and what lies between them must fit: the kernel tells the size of one.
fn enough() -> usize {
    // SAFETY: asks only.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    2 * frame.max(2048) + (2 << 10)
}

/// An unused stack of ours for the calling thread: (address, bytes). Threads that have ended give
/// theirs back here.
fn claim() -> Option<(usize, usize)> {
    if !is_owner() {
        return None; // the parent's threads have not ended, they are another process's
    }
    let _inside = section();
    let me = thread::gettid();
    let mut ours = OURS.lock().ok()?;
    if let Some((stack, owner)) = ours.iter_mut().find(|(_, tid)| *tid == me || *tid == 0 || has_ended(*tid))
    {
        *owner = me;
        return Some(stack.extent());
    }
    let stack = Stack::new(STACK_BYTES).ok()?;
    let extent = stack.extent();
    ours.push((stack, me));
    Some(extent)
}

/// Whether an alternate stack that the program sets for the calling thread is this one's alone. A program
/// whose handlers never return may give all its threads the same (varnish); ours return, in many threads at
/// once.
fn is_alone(stack: &libc::stack_t) -> bool {
    let me = thread::gettid();
    let (start, end) = (stack.ss_sp as usize, stack.ss_sp as usize + stack.ss_size);
    let _inside = section();
    let Ok(mut theirs) = THEIRS.lock() else { return false };
    let all = theirs.len() == theirs.capacity();
    let overlaps = |row: &(usize, usize, u32)| row.0 < end && start < row.1;
    theirs.retain(|row| row.2 != me && !((all || overlaps(row)) && has_ended(row.2)));
    let alone = !theirs.iter().any(overlaps);
    if alone {
        theirs.push((start, end, me));
    }
    alone
}

/// The calling thread has no alternate stack of the program's any more: another may take its memory.
fn give_up() {
    let me = thread::gettid();
    let _inside = section();
    if let Ok(mut theirs) = THEIRS.lock() {
        theirs.retain(|row| row.2 != me);
    }
}

/// At the end of a handler: the interrupted thread gets an alternate stack if it has none, and if it
/// was on a stack in managed memory, that is pinned.
pub fn tend(engine: &Weir, context: &mut Context<'_>) {
    let sp = context.sp();
    let stack = context.stack();
    // The frame of a thread without one holds zeros, not SS_DISABLE.
    if (stack.ss_size == 0 || stack.ss_flags & libc::SS_DISABLE != 0)
        && let Some((at, bytes)) = claim()
    {
        // Takes effect when the handler returns.
        *stack = libc::stack_t { ss_sp: at as *mut _, ss_flags: 0, ss_size: bytes };
        Area::current().ours.store(at as u64, Ordering::Relaxed);
    }
    if engine.contains(sp) {
        keep_stack(engine, sp);
    }
}

/// Pins a stack in managed memory on which signals are about to be blocked: by a call without effect that
/// names it, is trapped, and whose handler [`tend`]s it. (Pinning it here would take locks that a signal's
/// handler may want.)
pub fn be_noticed(frame: usize) {
    let before = crate::libc_next::errno();
    // SAFETY: reads nothing, from no file.
    unsafe { libc::syscall(libc::SYS_read, -1, frame, 0) };
    crate::libc_next::set_errno(before);
}

/// The same for whoever asks, a function that the program has called.
pub fn be_noticed_here() {
    let frame = 0u8;
    let at = &raw const frame as usize;
    if taken() && state::owner(at).is_some() {
        be_noticed(at);
    }
}

fn keep_stack(engine: &Weir, sp: usize) {
    let near = |&(lo, hi, _): &(usize, usize, u32)| sp >= lo + BELOW_BYTES / 4 && sp < hi;
    {
        let _inside = section();
        let Ok(ring) = HEAP_STACKS.lock() else { return };
        if ring.rows.iter().any(near) {
            return;
        }
    }
    let (lo, hi) = (sp.saturating_sub(BELOW_BYTES), sp + ABOVE_BYTES);
    let (lo, hi) = engine.clip_to_mapped(lo, hi, sp);
    // Not under the lock: this waits while a fork is under way.
    let row = (lo, hi, engine.pin_range(lo, hi - lo));
    let former = {
        let _inside = section();
        let Ok(mut ring) = HEAP_STACKS.lock() else { return };
        let at = ring.next;
        if ring.most == 0 {
            ring.most = (engine.frames() / KEPT_SHARE / KEPT_PAGES).clamp(KEPT_MIN, KEPT);
        }
        ring.next = (at + 1) % ring.most;
        core::mem::replace(&mut ring.rows[at], row)
    };
    engine.unpin_range(former.2);
}

/// While it lives no fork begins, so that no lock of this library is held in a child.
pub fn section() -> Option<weir::engine::inline::Section<'static>> {
    state::engine().map(|e| e.section())
}

/// What pins the stacks that the program gave to threads, with the threads' kernel ids.
static GIVEN: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

/// A thread begins on a stack in managed memory: it stays pinned until after the thread's end, and
/// the thread has an alternate stack from the start.
pub fn on_given_stack(pins: u32) {
    let signals = thread::block_signals();
    keep_for_thread(pins);
    if taken()
        && let Some((at, bytes)) = claim()
    {
        let stack = libc::stack_t { ss_sp: at as *mut _, ss_flags: 0, ss_size: bytes };
        // SAFETY: a stack of ours.
        if unsafe { signal::alternate_stack(Some(&stack)) }.is_ok() {
            Area::current().ours.store(at as u64, Ordering::Relaxed);
        }
    }
    thread::restore_signals(signals);
}

/// Keeps pins until the calling thread has ended; lets go of those of ended threads.
fn keep_for_thread(pins: u32) {
    let Some(e) = state::engine().filter(|_| is_owner()) else { return };
    let mut over: Vec<u32> = Vec::new();
    {
        let _inside = section();
        let Ok(mut given) = GIVEN.lock() else { return };
        given.retain(|(chain, tid)| {
            let ended = has_ended(*tid);
            if ended {
                over.push(*chain);
            }
            !ended
        });
        if pins != 0 {
            given.push((pins, thread::gettid()));
        }
    }
    over.into_iter().for_each(|chain| e.unpin_range(chain));
}

/// In the child of a fork: nobody else has a stack, and other threads' are free.
pub fn forked() {
    let me = thread::gettid();
    let mine = Area::current().ours.load(Ordering::Relaxed) as usize;
    // Held only if the engine had not started: then by a thread that is not in this process.
    if let Ok(mut ours) = OURS.try_lock() {
        for (stack, owner) in ours.iter_mut() {
            *owner = if stack.extent().0 == mine { me } else { 0 };
        }
    }
    // SAFETY: asks only.
    let kernels = unsafe { signal::alternate_stack(None) }.map_or(0, |stack| stack.ss_sp as usize);
    if let Ok(mut theirs) = THEIRS.try_lock() {
        theirs.iter_mut().filter(|row| row.0 == kernels).for_each(|row| row.2 = me);
    }
}

/// `sigaltstack`: the kernel's stack is the program's where it can be. Returns what the program had
/// set before.
pub fn change(wanted: Option<libc::stack_t>) -> Result<libc::stack_t, Errno> {
    if !taken() {
        // SAFETY: the program's own stack.
        let before = unsafe { signal::alternate_stack(wanted.as_ref()) }?;
        match wanted {
            // Handlers of ours may run on it later on.
            Some(new) if new.ss_flags & libc::SS_DISABLE == 0 => _ = is_alone(&new),
            Some(_) => give_up(),
            None => {}
        }
        return Ok(before);
    }
    thread::with_signals_blocked(|| {
        // SAFETY: asks only.
        let kernels = unsafe { signal::alternate_stack(None) }?;
        // SAFETY: the program's own stack, or one of ours.
        change_from(kernels, wanted, |s| unsafe { signal::alternate_stack(Some(s)) }.map(|_| ()))
    })
}

/// The same for a trapped call: it takes effect after the handler has returned, at a stub, whose result is
/// the call's.
pub fn change_in(context: &mut Context<'_>, wanted: Option<libc::stack_t>) -> Result<libc::stack_t, Errno> {
    let mut now = *context.stack();
    let on = context.sp().wrapping_sub(now.ss_sp as usize) < now.ss_size;
    now.ss_flags |= match (now.ss_size, on) {
        (0, _) => libc::SS_DISABLE,
        (_, true) => libc::SS_ONSTACK,
        (_, false) => 0,
    };
    let back = context.ip();
    change_from(now, wanted, |s| {
        context.set_ip(dispatch::alternate_stack_stub(back, s));
        Ok(())
    })
}

/// The program changes its alternate stack while the kernel has `kernels`.
fn change_from(
    kernels: libc::stack_t,
    wanted: Option<libc::stack_t>,
    mut set: impl FnMut(&libc::stack_t) -> Result<(), Errno>,
) -> Result<libc::stack_t, Errno> {
    let area = Area::current();
    let ours = area.ours.load(Ordering::Relaxed) as usize;
    let hidden = ours != 0 && kernels.ss_sp as usize == ours;
    let before = if hidden { believed(area, kernels.ss_flags & libc::SS_ONSTACK) } else { kernels };
    let Some(new) = wanted else { return Ok(before) };
    let disable = new.ss_flags & libc::SS_DISABLE != 0;
    if before.ss_flags & libc::SS_ONSTACK != 0 {
        return Err(Errno::EPERM);
    }
    if !disable && new.ss_size < libc::MINSIGSTKSZ {
        return Err(Errno::ENOMEM);
    }
    let usable = !disable && new.ss_size >= enough();
    if !usable {
        give_up();
    }
    if !usable || !is_alone(&new) {
        if !hidden {
            match claim() {
                Some((at, bytes)) => {
                    let s = libc::stack_t { ss_sp: at as *mut _, ss_flags: 0, ss_size: bytes };
                    set(&s)?;
                    area.ours.store(at as u64, Ordering::Relaxed);
                }
                None => return Err(Errno::ENOMEM),
            }
        }
        believe(area, if disable { None } else { Some(new) });
        pin_stack(area, None);
        return Ok(before);
    }
    pin_stack(area, Some((new.ss_sp as usize, new.ss_size)));
    set(&new)?;
    believe(area, None);
    Ok(before)
}

/// Pins the memory of an alternate stack if it is managed, and lets go of the former one's.
fn pin_stack(area: &Area, range: Option<(usize, usize)>) {
    let Some(e) = state::engine() else { return };
    let chain = match range {
        Some((at, len)) if e.touches(at, len) => e.pin_range(at, len),
        _ => 0,
    };
    let former = area.stack_pins.swap(u64::from(chain), Ordering::Relaxed) as u32;
    if former != 0 {
        forget(former);
        e.unpin_range(former);
    }
    keep_for_thread(chain);
}

/// Pins that are let go of before their thread's end.
fn forget(pins: u32) {
    let _inside = section();
    if let Ok(mut given) = GIVEN.lock() {
        given.retain(|(chain, _)| *chain != pins);
    }
}

/// Whether the program has set an alternate stack, while the kernel has `kernels`.
pub fn has_alternate(kernels: &libc::stack_t) -> bool {
    let area = Area::current();
    let hidden = kernels.ss_sp as u64 == area.ours.load(Ordering::Relaxed);
    !hidden || believed(area, 0).ss_flags & libc::SS_DISABLE == 0
}

/// What the program set while the kernel has a stack of ours.
fn believed(area: &Area, on: i32) -> libc::stack_t {
    let get = |w: &AtomicU64| w.load(Ordering::Relaxed);
    match get(&area.stack[2]).checked_sub(1) {
        None => libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 },
        Some(flags) => libc::stack_t {
            ss_sp: get(&area.stack[0]) as *mut _,
            ss_flags: flags as i32 | on,
            ss_size: get(&area.stack[1]) as usize,
        },
    }
}

fn believe(area: &Area, stack: Option<libc::stack_t>) {
    let set = |w: &AtomicU64, v: u64| w.store(v, Ordering::Relaxed);
    set(&area.stack[0], stack.map_or(0, |s| s.ss_sp as u64));
    set(&area.stack[1], stack.map_or(0, |s| s.ss_size as u64));
    set(&area.stack[2], stack.map_or(0, |s| s.ss_flags as u32 as u64 + 1));
}
