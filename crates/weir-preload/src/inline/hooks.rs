//! `sigaction` and its relatives, and alternate stacks, as the program sees them.

use super::actions::{self, ALTERNATE, SIGNALS, to_bits, to_mask};
use super::ours::{ours, taken};
use super::relay::relay;
use super::{deliver, stacks};
use crate::ends;
use crate::libc_next::{Next, set_errno};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use weir_os::gate::area::is_owner;
use weir_os::signal::{Action, Mask, bit};
use weir_os::sys::Errno;
use weir_os::thread;

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, usize) -> usize;

/// Signals that `siginterrupt` was called for: `signal` sets them without SA_RESTART.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

fn is_ours(number: c_int) -> bool {
    (1..SIGNALS as c_int).contains(&number) && bit(number) & ours() != 0
}

/// # Safety
/// - a readable action.
unsafe fn read_action(act: *const libc::sigaction) -> Action {
    // SAFETY: passed on.
    unsafe {
        Action {
            handler: (*act).sa_sigaction,
            flags: (*act).sa_flags as u32 as u64,
            restorer: 0,
            mask: super::masks::read_set(&raw const (*act).sa_mask),
        }
    }
}

/// # Safety
/// - a writable action.
unsafe fn write_action(old: *mut libc::sigaction, a: Action) {
    const SA_RESTORER: u64 = 0x0400_0000;
    // SAFETY: passed on; plain data.
    unsafe {
        let mut o: libc::sigaction = core::mem::zeroed();
        o.sa_sigaction = a.handler;
        o.sa_flags = (a.flags & !SA_RESTORER) as i32;
        (&raw mut o.sa_mask).cast::<Mask>().write(a.mask);
        old.write(o);
    }
}

/// # Safety
/// - as `sigaction(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    number: c_int,
    act: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    static NEXT: Next = Next::new(c"sigaction");
    // SAFETY: libc's function of that name and type.
    let next = |act: *const libc::sigaction, old: *mut libc::sigaction| {
        // SAFETY: as above.
        NEXT.get().map_or(-1, |a| unsafe { core::mem::transmute::<usize, Sigaction>(a)(number, act, old) })
    };
    if !taken() && ends::concerns(number) {
        // SAFETY: passed on.
        return unsafe { change_watched(number, act, old, next) };
    }
    if !taken() || !(1..SIGNALS as c_int).contains(&number) {
        return next(act, old);
    }
    if is_ours(number) {
        // A child of `vfork` that resets all its signals changes nothing here: until its exec, which
        // resets them anyway, its memory is its parent's and needs the handlers.
        // SAFETY: valid when not null, says the caller.
        unsafe {
            let before = match act.is_null() {
                true => deliver::action(number),
                false => deliver::set_action(number, read_action(act)),
            };
            if !old.is_null() {
                write_action(old, before);
            }
        }
        return 0;
    }
    // SAFETY: passed on.
    unsafe { change_theirs(number, act, old, next) }
}

/// `sigaction` for a signal that ends programs, where handlers are called by the kernel itself.
///
/// # Safety
/// - as `sigaction(2)`.
unsafe fn change_watched(
    number: c_int,
    act: *const libc::sigaction,
    old: *mut libc::sigaction,
    next: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    // SAFETY: as above. The program's structures are read and written here, outside the lock.
    unsafe {
        let wanted = if act.is_null() { None } else { Some(act.read()) };
        let mut found: libc::sigaction = core::mem::zeroed();
        let wanted = wanted.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let r = thread::with_signals_blocked(|| {
            let _changing = actions::changing().lock();
            ends::change(number, wanted, &raw mut found, &next)
        });
        if r == 0 && !old.is_null() {
            old.write(found);
        }
        r
    }
}

/// `sigaction` for a signal that is not Weir's.
///
/// # Safety
/// - as `sigaction(2)`.
unsafe fn change_theirs(
    number: c_int,
    act: *const libc::sigaction,
    old: *mut libc::sigaction,
    next: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    // SAFETY: as above. The program's structures are read and written here, outside the section.
    unsafe {
        let wanted = if act.is_null() { None } else { Some(act.read()) };
        let mut found: libc::sigaction = core::mem::zeroed();
        let next =
            |act: *const libc::sigaction, old: *mut libc::sigaction| ends::change(number, act, old, &next);
        let signals = thread::block_signals();
        let (r, asked, handler) = {
            let _inside = stacks::section();
            let _changing = actions::changing().lock();
            let before = actions::row(number);
            let r = match wanted {
                None => next(core::ptr::null(), &raw mut found),
                // A child of `vfork`: what it sets is the kernel's, not in the tables that it shares.
                Some(a) if !is_owner() => next(&raw const a, &raw mut found),
                Some(a) => set_theirs(number, a, |a| next(a, &raw mut found)),
            };
            (r, before.asked(), before.handler())
        };
        thread::restore_signals(signals);
        if r == 0 && !old.is_null() {
            *(&raw mut found.sa_mask).cast::<Mask>() |= to_mask(asked);
            if found.sa_sigaction == relay as *const () as usize {
                found.sa_sigaction = handler;
                if asked & ALTERNATE == 0 {
                    found.sa_flags &= !libc::SA_ONSTACK;
                }
            }
            old.write(found);
        }
        r
    }
}

/// `rt_sigaction` by a call past libc. Signals are blocked.
pub fn change_past(number: c_int, wanted: Option<Action>) -> Result<Action, Errno> {
    if !(1..SIGNALS as c_int).contains(&number) {
        return Err(Errno::EINVAL);
    }
    if is_ours(number) {
        return Ok(wanted.map_or_else(|| deliver::action(number), |a| deliver::set_action(number, a)));
    }
    let failed = core::cell::Cell::new(Errno::EINVAL);
    let next = |act: *const libc::sigaction, old: *mut libc::sigaction| {
        // SAFETY: null or live, says `change_theirs`.
        let new = unsafe { if act.is_null() { None } else { Some(read_action(act).returning()) } };
        // SAFETY: the program's handler, or what calls it.
        match unsafe { weir_os::signal::swap(number, new.as_ref()) } {
            Ok(before) if !old.is_null() => {
                // SAFETY: as above.
                unsafe { write_action(old, before) };
                0
            }
            Ok(_) => 0,
            Err(e) => {
                failed.set(e);
                -1
            }
        }
    };
    // SAFETY: live actions on this stack.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) =
            (core::mem::zeroed(), core::mem::zeroed());
        wanted.into_iter().for_each(|a| write_action(&raw mut new, a));
        let new = if wanted.is_some() { &raw const new } else { core::ptr::null() };
        match change_theirs(number, new, &raw mut old, next) {
            0 => Ok(read_action(&raw const old).returning()),
            _ => Err(failed.get()),
        }
    }
}

/// Sets an action of the program's, in the tables and by `next`.
fn set_theirs(
    number: c_int,
    mut a: libc::sigaction,
    next: impl FnOnce(*const libc::sigaction) -> c_int,
) -> c_int {
    let before = actions::row(number);
    // SAFETY: the kernel's mask is the first eight bytes of libc's type.
    let mask = unsafe { &mut *(&raw mut a.sa_mask).cast::<Mask>() };
    let bits = to_bits(*mask) | if a.sa_flags & libc::SA_ONSTACK != 0 { ALTERNATE } else { 0 };
    *mask &= !ours();
    let handler = (a.sa_sigaction > libc::SIG_IGN).then_some(a.sa_sigaction);
    // Before the kernel knows: the signal may come at once.
    actions::set_row(number, before.with(bits, handler));
    if handler.is_some() {
        a.sa_sigaction = relay as *const () as usize;
        a.sa_flags |= libc::SA_ONSTACK;
    }
    let r = next(&raw const a);
    if r != 0 {
        actions::set_row(number, before);
    }
    r
}

/// Sets a handler the simple way, through our `sigaction`. Returns the former one.
fn set_simply(number: c_int, handler: usize, flags: c_int, mask: Mask) -> usize {
    // SAFETY: live actions on this stack; the program's own handler.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) =
            (core::mem::zeroed(), core::mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        (&raw mut new.sa_mask).cast::<Mask>().write(mask);
        match sigaction(number, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => usize::MAX,
        }
    }
}

/// The functions that set a handler and return the former one: name, flags, and whether the signal
/// itself is blocked in the handler.
macro_rules! simple {
    ($($name:ident $text:literal $flags:expr, $blocked:expr;)*) => {$(
        /// # Safety
        /// - as `signal(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(number: c_int, handler: usize) -> usize {
            static NEXT: Next = Next::new($text);
            if (taken() || ends::concerns(number)) && (1..SIGNALS as c_int).contains(&number) {
                let interrupting = INTERRUPTING.load(Ordering::Relaxed) & bit(number) != 0;
                let flags = if interrupting { $flags & !libc::SA_RESTART } else { $flags };
                return set_simply(number, handler, flags, if $blocked { bit(number) } else { 0 });
            }
            // SAFETY: libc's function of that name and type.
            NEXT.get().map_or(usize::MAX, |a| unsafe {
                core::mem::transmute::<usize, Signal>(a)(number, handler)
            })
        }
    )*};
}

simple! {
    signal c"signal" libc::SA_RESTART, true;
    bsd_signal c"bsd_signal" libc::SA_RESTART, true;
    ssignal c"ssignal" libc::SA_RESTART, true;
    sysv_signal c"sysv_signal" libc::SA_RESETHAND | libc::SA_NODEFER, false;
    __sysv_signal c"__sysv_signal" libc::SA_RESETHAND | libc::SA_NODEFER, false;
}

/// # Safety
/// - as `sigignore(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(number: c_int) -> c_int {
    static NEXT: Next = Next::new(c"sigignore");
    if taken() && is_ours(number) {
        set_simply(number, libc::SIG_IGN, 0, 0);
        return 0;
    }
    // SAFETY: libc's function of that name and type.
    NEXT.get().map_or(-1, |a| unsafe {
        core::mem::transmute::<usize, unsafe extern "C" fn(c_int) -> c_int>(a)(number)
    })
}

/// # Safety
/// - as `siginterrupt(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(number: c_int, interrupt: c_int) -> c_int {
    static NEXT: Next = Next::new(c"siginterrupt");
    if (1..SIGNALS as c_int).contains(&number) {
        match interrupt {
            0 => INTERRUPTING.fetch_and(!bit(number), Ordering::Relaxed),
            _ => INTERRUPTING.fetch_or(bit(number), Ordering::Relaxed),
        };
    }
    if taken() && is_ours(number) {
        let mut a = deliver::action(number);
        let restart = libc::SA_RESTART as u64;
        a.flags = if interrupt != 0 { a.flags & !restart } else { a.flags | restart };
        deliver::set_action(number, a);
        return 0;
    }
    // SAFETY: libc's function of that name and type.
    NEXT.get().map_or(-1, |a| unsafe {
        core::mem::transmute::<usize, unsafe extern "C" fn(c_int, c_int) -> c_int>(a)(number, interrupt)
    })
}

/// # Safety
/// - as `sigaltstack(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: valid when not null, says the caller; copied here because the kernel cannot bring
    // managed memory in.
    let wanted = if new.is_null() { None } else { Some(unsafe { new.read() }) };
    match stacks::change(wanted) {
        Ok(before) => {
            if !old.is_null() {
                // SAFETY: as above.
                unsafe { old.write(before) };
            }
            0
        }
        Err(e) => {
            set_errno(e.0);
            -1
        }
    }
}
