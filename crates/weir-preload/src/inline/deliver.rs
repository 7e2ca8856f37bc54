//! The program's own SIGBUS, SIGSYS and SIGSEGV: what it set, and its handlers' turn.

use super::context::Context;
use super::masks::in_handler;
use super::ours::{ALL, ours, taken};
use core::sync::atomic::Ordering;
use std::sync::Mutex;
use weir_os::gate::area::{Area, KEPT, STUB_WORDS, is_owner, kept_index};
use weir_os::signal::{self, Action, Handler, Mask, bit};

/// `si_code` of a call that a seccomp filter trapped.
pub const SYS_SECCOMP: i32 = 1;
/// The same of one that user dispatch announced.
pub const SYS_USER_DISPATCH: i32 = 2;

const DEFAULT: usize = 0;
const IGNORED: usize = 1;

/// What the program set for the signals that Weir keeps. Only locked with signals blocked.
static ACTIONS: [Mutex<Action>; KEPT] =
    [const { Mutex::new(Action { handler: DEFAULT, flags: 0, restorer: 0, mask: 0 }) }; KEPT];

fn cell(number: i32) -> &'static Mutex<Action> {
    &ACTIONS[kept_index(number)]
}

/// What the program has set for one of Weir's signals.
pub fn action(number: i32) -> Action {
    let signals = weir_os::thread::block_signals();
    let inside = super::stacks::section();
    let found = cell(number).lock().map_or(Action::default(), |a| *a);
    drop(inside);
    weir_os::thread::restore_signals(signals);
    found
}

/// Sets it; returns what was set before.
pub fn set_action(number: i32, new: Action) -> Action {
    // As the kernel: these two cannot be blocked.
    let new = Action { mask: new.mask & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP)), ..new };
    if taken() && !is_owner() {
        return action(number); // a child of `vfork`: its parent's actions are not its to change
    }
    if new.handler == IGNORED {
        super::pending::discard(number);
    }
    let signals = weir_os::thread::block_signals();
    let inside = super::stacks::section();
    let old = cell(number).lock().map_or(Action::default(), |mut a| core::mem::replace(&mut a, new));
    drop(inside);
    weir_os::thread::restore_signals(signals);
    old
}

/// The handler returns to the default action, which ends the process as if Weir were not there: by
/// the same access again, or by the signal sent once more.
fn end_natively(number: i32, again: bool) {
    let default = Action::default();
    // SAFETY: the default action.
    let _ = unsafe { signal::swap(number, Some(&default)) };
    if again {
        signal::raise(number); // waits until our handler returns
    }
}

/// Gives a signal to the program. On the stack and in the context of our handler, every signal
/// blocked.
pub fn deliver(number: i32, info: *mut libc::siginfo_t, context: &mut Context<'_>) {
    let area = Area::current();
    if area.again.fetch_and(!bit(number), Ordering::Relaxed) & bit(number) != 0 {
        // SAFETY: stored when the signal came; both are live.
        unsafe { info.write(area.info(number).read()) };
    }
    // SAFETY: the kernel's live siginfo.
    let by_access = number != libc::SIGSYS && unsafe { (*info).si_code } > 0;
    // SAFETY: as above.
    let forced = by_access
        || number == libc::SIGSYS && matches!(unsafe { (*info).si_code }, SYS_SECCOMP | SYS_USER_DISPATCH);
    let blocked = super::masks::blocked_at(context.sp()) & bit(number) != 0;
    if !forced && blocked {
        return super::pending::keep(number, info);
    }
    let action = action(number);
    if action.handler == IGNORED && !forced {
        return;
    }
    let nested = area.handler_blocked.load(Ordering::Relaxed) & bit(number) != 0 && in_handler(context.sp());
    if action.handler <= IGNORED || forced && (nested || blocked) {
        return end_natively(number, !by_access);
    }
    if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
        set_action(number, Action::default());
    }
    call(number, action, info, context);
}

/// Runs the program's handler with the mask that it asked for.
fn call(number: i32, action: Action, info: *mut libc::siginfo_t, context: &mut Context<'_>) {
    let deferred = if action.flags & libc::SA_NODEFER as u64 != 0 { 0 } else { bit(number) };
    let _ = signal::change_mask(libc::SIG_SETMASK, Some((*context.mask() | action.mask) & !ours()));
    run_handler(action.handler, deferred | action.mask & ours(), number, info, context.raw());
    let _ = signal::change_mask(libc::SIG_SETMASK, Some(ALL));
}

/// Runs a handler of the program during which it believes these of Weir's signals to be blocked.
pub fn run_handler(
    handler: usize,
    blocked: Mask,
    number: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let area = Area::current();
    let here = 0u8;
    let already = super::masks::blocked_now();
    let before = (
        area.handler_stack.swap(&raw const here as u64, Ordering::Relaxed),
        area.handler_blocked.swap(blocked | already, Ordering::Relaxed),
    );
    let stub: [u64; STUB_WORDS] = core::array::from_fn(|i| area.stub[i].load(Ordering::Relaxed));
    // SAFETY: the program's handler, called as the kernel would with SA_SIGINFO; one that takes fewer
    // arguments ignores the others.
    unsafe { core::mem::transmute::<usize, Handler>(handler)(number, info, context) };
    area.stub.iter().zip(stub).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    area.handler_stack.store(before.0, Ordering::Relaxed);
    area.handler_blocked.store(before.1, Ordering::Relaxed);
    super::masks::settle_pending();
}
