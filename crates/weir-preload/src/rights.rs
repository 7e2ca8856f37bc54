//! Programs that give rights up (daemons, sandboxes). The kernel keeps rights for each thread; libc changes
//! the users of the threads that it knows, and so are not left behind: the engine's threads, which it does
//! not know, must follow. They have no capabilities, so they cannot change anything themselves: new ones
//! inherit what the calling thread has, see [`crate::threads`].

use crate::libc_next::{Next, set_errno};
use crate::{ends, kept, state, threads};
use core::ffi::{c_char, c_int, c_long, c_ulong};

/// The rights of the calling thread may have changed.
fn follow(anyway: bool) {
    if !state::is_filtered() {
        threads::follow(anyway);
    }
}

/// Makes a system call of the program's, and sees what it changes for Weir.
pub fn around(nr: c_long, first: usize, call: impl FnOnce() -> c_long) -> c_long {
    const FILTER: usize = libc::SECCOMP_SET_MODE_FILTER as usize;
    let filters = match nr {
        libc::SYS_seccomp => first <= FILTER,
        libc::SYS_prctl => first as c_int == libc::PR_SET_SECCOMP,
        _ => false,
    };
    // Before the filter is there: it might not allow it.
    let watched = filters && ends::unwatch();
    let result = call();
    if result >= 0 {
        if filters {
            state::set_filtered();
        }
        after_raw(nr);
    } else if watched {
        ends::watch();
    }
    result
}

/// Calls by their number, by the only thread that the program has: in others libc's rule does not hold, and
/// each goes its own way.
fn after_raw(nr: c_long) {
    match nr {
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
            if is_alone() =>
        {
            follow(false);
        }
        libc::SYS_landlock_restrict_self | libc::SYS_unshare | libc::SYS_setns if is_alone() => follow(true),
        _ => {}
    }
}

/// Whether libc knows of one thread only.
fn is_alone() -> bool {
    static NEXT: Next = Next::new(c"__libc_single_threaded");
    // SAFETY: libc's variable of that name, a byte (glibc 2.32).
    NEXT.get().is_none_or(|at| unsafe { core::ptr::read_volatile(at as *const u8) } != 0)
}

/// Functions of libc's after which the engine's threads follow, `anyway` or if there is somebody else now.
macro_rules! followed {
    ($($name:ident $symbol:literal ($($arg:ident: $type:ty),*) $anyway:literal;)*) => {$(
        /// # Safety
        /// - as libc's function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            static NEXT: Next = Next::new($symbol);
            let Some(a) = NEXT.get() else {
                set_errno(libc::ENOSYS);
                return -1;
            };
            // SAFETY: libc's function of that name and type.
            let result = unsafe {
                core::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> c_int>(a)($($arg),*)
            };
            if result == 0 {
                follow($anyway);
            }
            result
        }
    )*};
}

followed! {
    setuid c"setuid" (id: u32) false;
    setgid c"setgid" (id: u32) false;
    seteuid c"seteuid" (id: u32) false;
    setegid c"setegid" (id: u32) false;
    setreuid c"setreuid" (real: u32, effective: u32) false;
    setregid c"setregid" (real: u32, effective: u32) false;
    setresuid c"setresuid" (real: u32, effective: u32, saved: u32) false;
    setresgid c"setresgid" (real: u32, effective: u32, saved: u32) false;
    setgroups c"setgroups" (n: usize, list: *const u32) false;
    initgroups c"initgroups" (user: *const c_char, group: u32) false;
    unshare c"unshare" (flags: c_int) true;
    setns c"setns" (fd: c_int, kind: c_int) true;
}

/// # Safety
/// - as `prctl(2)`; arguments that the option does not have may be absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    static NEXT: Next = Next::new(c"prctl");
    type F = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    #[cfg(target_arch = "x86_64")]
    if let Err(e) =
        kept::before(libc::SYS_prctl, [option as usize, a as usize, b as usize, c as usize, d as usize])
    {
        set_errno(e.0);
        return -1;
    }
    let call = || match NEXT.get() {
        // SAFETY: libc's function of that name; variadic integers are passed like named ones.
        Some(next) => c_long::from(unsafe { core::mem::transmute::<usize, F>(next)(option, a, b, c, d) }),
        None => -1,
    };
    around(libc::SYS_prctl, option as usize, call) as c_int
}
