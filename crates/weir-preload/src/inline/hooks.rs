//! `sigaction` and its relatives, and alternate stacks, as the program sees them.

use super::relay::relay;
use super::{OURS, deliver, stacks, taken};
use crate::libc_next::{Next, set_errno};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use weir::sync::BlockLock;
use weir_os::signal::{Action, Mask, bit};
use weir_os::sys::Errno;
use weir_os::thread;

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, usize) -> usize;

const SIGNALS: usize = 65;
/// What the program asked for with each signal's present action and the kernel was not given: bit 0
/// SIGBUS blocked in the handler, bit 1 SIGSYS blocked, bit 2 [`ALTERNATE`].
static ASKED: [AtomicU8; SIGNALS] = [const { AtomicU8::new(0) }; SIGNALS];
/// The program's handlers, which [`relay`] calls, each with what was asked for it in its highest bits,
/// where no address has any. The last real handler stays when the signal is set to be ignored: the kernel
/// may have sent another thread to [`relay`] just before.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// Held, with signals blocked, while the kernel and these tables change together.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// Signals that `siginterrupt` was called for: `signal` sets them without SA_RESTART.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

const ASKED_SHIFT: u32 = usize::BITS - 3;
/// In [`ASKED`]: SA_ONSTACK.
const ALTERNATE: u8 = 4;

/// A handler of the program, and which of Weir's signals it asked to have blocked.
pub fn handler_of(number: c_int) -> (usize, Mask) {
    let word = HANDLERS[number as usize % SIGNALS].load(Ordering::Relaxed);
    (word & ((1 << ASKED_SHIFT) - 1), to_mask((word >> ASKED_SHIFT) as u8))
}

/// Whether the program asked for the alternate stack in a signal's handler.
pub fn wants_alternate_stack(number: c_int) -> bool {
    HANDLERS[number as usize % SIGNALS].load(Ordering::Relaxed) >> ASKED_SHIFT & usize::from(ALTERNATE) != 0
}

/// In the child of a fork, where nobody changes anything any more.
pub fn forked() {
    CHANGING.store(0, Ordering::Relaxed);
}

fn to_bits(mask: Mask) -> u8 {
    u8::from(mask & bit(libc::SIGBUS) != 0) | u8::from(mask & bit(libc::SIGSYS) != 0) << 1
}

fn to_mask(bits: u8) -> Mask {
    (Mask::from(bits & 1) * bit(libc::SIGBUS)) | (Mask::from(bits >> 1 & 1) * bit(libc::SIGSYS))
}

fn is_ours(number: c_int) -> bool {
    number == libc::SIGBUS || number == libc::SIGSYS
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
        let signals = thread::block_signals();
        let (r, asked, handler) = {
            let _inside = stacks::section();
            let _changing = BlockLock(&CHANGING).lock();
            let before = (ASKED[number as usize].load(Ordering::Relaxed), handler_of(number).0);
            let r = match wanted {
                None => next(core::ptr::null(), &raw mut found),
                // A child of `vfork`: what it sets is the kernel's, not in the tables that it shares.
                Some(a) if !super::is_owner() => next(&raw const a, &raw mut found),
                Some(a) => set_theirs(number, a, |a| next(a, &raw mut found)),
            };
            (r, before.0, before.1)
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
    let (asked, handler) = (&ASKED[number as usize], &HANDLERS[number as usize]);
    let before = (asked.load(Ordering::Relaxed), handler.load(Ordering::Relaxed));
    // SAFETY: the kernel's mask is the first eight bytes of libc's type.
    let mask = unsafe { &mut *(&raw mut a.sa_mask).cast::<Mask>() };
    let bits = to_bits(*mask) | if a.sa_flags & libc::SA_ONSTACK != 0 { ALTERNATE } else { 0 };
    *mask &= !OURS;
    asked.store(bits, Ordering::Relaxed);
    if a.sa_sigaction > libc::SIG_IGN {
        // Before the kernel knows: the signal may come at once.
        handler.store(a.sa_sigaction | usize::from(bits) << ASKED_SHIFT, Ordering::Relaxed);
        a.sa_sigaction = relay as *const () as usize;
        a.sa_flags |= libc::SA_ONSTACK;
    }
    let r = next(&raw const a);
    if r != 0 {
        asked.store(before.0, Ordering::Relaxed);
        handler.store(before.1, Ordering::Relaxed);
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
            if taken() && (1..SIGNALS as c_int).contains(&number) {
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
