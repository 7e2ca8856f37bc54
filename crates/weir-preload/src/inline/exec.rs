//! Starting other programs. `execve` is never trapped: a child of `vfork` or `posix_spawn` makes it
//! with signals blocked and dispositions reset, where a SIGSYS would kill it. So its strings are
//! brought in before, and the call is tried again if one of them was evicted meanwhile.

use super::taken;
use crate::libc_next::{Next, errno, set_errno};
use crate::state::{self, Weir};
use core::ffi::{c_char, c_int, c_void};
use weir_os::gate::read_own;
use weir_os::mem::{Mapping, PAGE_BYTES};

/// Tries before the kernel's EFAULT is believed.
const TRIES: usize = 1000;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// Calls `f` with each pointer of a NULL-terminated array, as far as the array can be read.
fn each(list: Strings, mut f: impl FnMut(usize)) {
    let mut at = list as usize;
    let mut cell = [0u8; size_of::<usize>()];
    while at != 0 && read_own(at, &mut cell).is_ok() && cell != [0; 8] {
        f(usize::from_ne_bytes(cell));
        at += size_of::<usize>();
    }
}

/// Brings in the pages of a string that lies in managed memory; returns its bytes with the NUL.
fn touch_string(e: &Weir, at: usize) -> usize {
    if !e.contains(at) {
        return 0;
    }
    // SAFETY: a string of the program's; reading it faults its pages in.
    unsafe { libc::strlen(at as *const c_char) + 1 }
}

/// Brings in an array and its strings.
fn touch_strings(e: &Weir, list: Strings) {
    let mut n = 0;
    if e.contains(list as usize) {
        // SAFETY: the program's array: reading faults its pages in.
        unsafe {
            while !list.add(n).read_volatile().is_null() {
                n += 1;
            }
        }
    }
    each(list, |at| {
        touch_string(e, at);
    });
}

/// Makes a call that the kernel refuses with EFAULT when a string is not there, until it is.
fn with_strings(path: *const c_char, lists: &[Strings], mut call: impl FnMut() -> isize, bad: isize) -> isize {
    let Some(e) = state::engine().filter(|_| taken()) else { return call() };
    for _ in 1..TRIES {
        touch_string(e, path as usize);
        lists.iter().for_each(|l| touch_strings(e, *l));
        set_errno(0);
        let r = call();
        if r != bad || errno() != libc::EFAULT {
            return r;
        }
    }
    call()
}

macro_rules! next {
    ($name:literal, $type:ty) => {{
        static NEXT: Next = Next::new($name);
        match NEXT.get() {
            // SAFETY: libc's function of that name and type.
            Some(a) => unsafe { core::mem::transmute::<usize, $type>(a) },
            None => {
                set_errno(libc::ENOSYS);
                return -1;
            }
        }
    }};
}

type Exec = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;

/// # Safety
/// - as `execve(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    let f = next!(c"execve", Exec);
    // SAFETY: passed on.
    with_strings(path, &[argv, envp], || unsafe { f(path, argv, envp) as isize }, -1) as c_int
}

/// # Safety
/// - as `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    let f = next!(c"execvpe", Exec);
    // SAFETY: passed on.
    with_strings(path, &[argv, envp], || unsafe { f(path, argv, envp) as isize }, -1) as c_int
}

/// # Safety
/// - as `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: libc's variable; passed on.
    unsafe { execve(path, argv, environ) }
}

/// # Safety
/// - as `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: libc's variable; passed on.
    unsafe { execvpe(path, argv, environ) }
}

/// # Safety
/// - as `fexecve(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    let f = next!(c"fexecve", unsafe extern "C" fn(c_int, Strings, Strings) -> c_int);
    // SAFETY: passed on.
    with_strings(core::ptr::null(), &[argv, envp], || unsafe { f(fd, argv, envp) as isize }, -1) as c_int
}

/// # Safety
/// - as `execveat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    type F = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
    let f = next!(c"execveat", F);
    // SAFETY: passed on.
    with_strings(path, &[argv, envp], || unsafe { f(dir, path, argv, envp, flags) as isize }, -1) as c_int
}

/// # Safety
/// - as `system(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    const NOT_STARTED: isize = 127 << 8;
    let f = next!(c"system", unsafe extern "C" fn(*const c_char) -> c_int);
    // SAFETY: libc's variable; passed on.
    unsafe { with_strings(command, &[environ], || f(command) as isize, NOT_STARTED) as c_int }
}

/// # Safety
/// - as `popen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    static NEXT: Next = Next::new(c"popen");
    let Some(a) = NEXT.get() else { return core::ptr::null_mut() };
    // SAFETY: libc's function of that name and type; passed on.
    unsafe {
        let f = core::mem::transmute::<
            usize,
            unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void,
        >(a);
        with_strings(command, &[environ], || f(command, mode) as isize, 0) as *mut c_void
    }
}

/// Copies of argument lists in memory of their own: the child of `posix_spawn` shares ours, reads
/// them with signals blocked, and must not fault.
struct Copies {
    map: Mapping,
    used: usize,
}

impl Copies {
    /// Room for a path and two lists.
    fn for_lists(e: &Weir, path: usize, lists: [Strings; 2]) -> Option<Copies> {
        let mut bytes = length(path) + 64;
        for list in lists {
            touch_strings(e, list);
            each(list, |at| bytes += length(at) + size_of::<usize>());
        }
        Some(Copies { map: Mapping::anon(bytes + PAGE_BYTES).ok()?, used: 0 })
    }

    fn put(&mut self, bytes: &[u8], align: usize) -> usize {
        let at = self.used.next_multiple_of(align);
        if at + bytes.len() > self.map.len() {
            return 0; // the program changes its lists meanwhile
        }
        self.used = at + bytes.len();
        let to = self.map.base() + at;
        // SAFETY: inside our own mapping.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        to
    }

    fn string(&mut self, at: usize) -> usize {
        if at == 0 {
            return 0;
        }
        // SAFETY: a string of the program's.
        self.put(unsafe { core::slice::from_raw_parts(at as *const u8, length(at)) }, 1)
    }

    fn list(&mut self, list: Strings) -> Strings {
        if list.is_null() {
            return list;
        }
        let mut strings: Vec<usize> = Vec::new();
        each(list, |at| strings.push(at));
        let mut copies: Vec<usize> = strings.into_iter().map(|at| self.string(at)).collect();
        copies.push(0);
        let bytes: Vec<u8> = copies.iter().flat_map(|p| p.to_ne_bytes()).collect();
        self.put(&bytes, size_of::<usize>()) as Strings
    }
}

fn length(at: usize) -> usize {
    // SAFETY: a string of the program's, or null.
    if at == 0 { 0 } else { unsafe { libc::strlen(at as *const c_char) + 1 } }
}

type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

/// libc's `posix_spawn_file_actions_t`: where the actions are.
#[repr(C)]
struct FileActions {
    allocated: c_int,
    used: c_int,
    actions: usize,
}
/// Bytes of one action, at most, and where its path may stand.
const ACTION_BYTES: usize = 32;
const ACTION_PATHS: [usize; 2] = [8, 16];
/// Bytes of libc's attribute object.
const ATTRIBUTE_BYTES: usize = 336;

/// Spawns with everything that the child reads in memory that stays.
unsafe fn spawn(f: Spawn, args: (*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings)) -> c_int {
    let (pid, path, actions, attributes, argv, envp) = args;
    let Some(e) = state::engine().filter(|_| taken()) else {
        // SAFETY: passed on.
        return unsafe { f(pid, path, actions, attributes, argv, envp) };
    };
    let Some(mut copies) = Copies::for_lists(e, path as usize, [argv, envp]) else { return libc::ENOMEM };
    let (path, argv, envp) =
        (copies.string(path as usize) as *const c_char, copies.list(argv), copies.list(envp));
    let mut pins = vec![e.pin_range(attributes as usize, ATTRIBUTE_BYTES)];
    pin_actions(e, actions, &mut pins);
    let mut child = 0;
    // SAFETY: passed on; the child has run or failed when it returns.
    let r = unsafe { f(&raw mut child, path, actions, attributes, argv, envp) };
    pins.into_iter().for_each(|chain| e.unpin_range(chain));
    if r == 0 && !pid.is_null() {
        // SAFETY: the caller's cell.
        unsafe { *pid = child };
    }
    r
}

fn pin_actions(e: &Weir, actions: *const c_void, pins: &mut Vec<u32>) {
    if actions.is_null() {
        return;
    }
    // SAFETY: libc's object, made by its own functions.
    let list = unsafe { &*actions.cast::<FileActions>() };
    let bytes = list.used.max(0) as usize * ACTION_BYTES;
    pins.push(e.pin_range(actions as usize, size_of::<FileActions>()));
    pins.push(e.pin_range(list.actions, bytes));
    for i in 0..list.used.max(0) as usize {
        for offset in ACTION_PATHS {
            // SAFETY: inside the array.
            let path = unsafe { ((list.actions + i * ACTION_BYTES + offset) as *const usize).read() };
            if e.contains(path) {
                pins.push(e.pin_range(path, PAGE_BYTES));
            }
        }
    }
}

macro_rules! spawner {
    ($($name:ident $text:literal),*) => {$(
        /// # Safety
        /// - as `posix_spawn(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            static NEXT: Next = Next::new($text);
            let Some(a) = NEXT.get() else { return libc::ENOSYS };
            // SAFETY: libc's function of that name and type; passed on.
            unsafe {
                spawn(core::mem::transmute::<usize, Spawn>(a), (pid, path, actions, attributes, argv, envp))
            }
        }
    )*};
}

spawner!(posix_spawn c"posix_spawn", posix_spawnp c"posix_spawnp");
