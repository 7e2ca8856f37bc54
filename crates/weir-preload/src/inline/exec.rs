//! Starting other programs. `execve` is never trapped: a child of `vfork` or `posix_spawn` makes it
//! with signals blocked and dispositions reset, where a SIGSYS would kill it. So the kernel is given
//! copies of its strings, in memory that is not managed.

use super::ours::taken;
use crate::exit;
use crate::libc_next::{Next, set_errno};
use crate::state::{self, Weir};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::Ordering;
use weir_os::gate::area::Area;
use weir_os::gate::read_own;
use weir_os::mem::{Mapping, PAGE_BYTES};

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// Calls `f` with each pointer of a NULL-terminated array, as far as the array can be read.
fn each(e: &Weir, list: Strings, mut f: impl FnMut(usize)) {
    let mut at = list as usize;
    let mut cell = [0u8; size_of::<usize>()];
    while at != 0 {
        let pointer = if e.contains(at) {
            // SAFETY: the program's array; reading it brings its pages in.
            unsafe { (at as *const usize).read_volatile() }
        } else if read_own(at, &mut cell).is_ok() {
            usize::from_ne_bytes(cell)
        } else {
            0 // the kernel will say EFAULT
        };
        if pointer == 0 {
            return;
        }
        f(pointer);
        at += size_of::<usize>();
    }
}

/// Calls `f`, which may make another program of this process.
fn with_copies(
    path: *const c_char,
    lists: [Strings; 2],
    f: impl FnOnce(*const c_char, Strings, Strings) -> c_int,
) -> c_int {
    // The child of a `vfork` has its parent's memory.
    let engine = state::engine().filter(|_| exit::is_this_process());
    engine.into_iter().for_each(Weir::exec_begins);
    let r = copied(path, lists, f);
    engine.into_iter().for_each(Weir::exec_failed);
    r
}

/// Calls `f` with copies of what an exec call names, if any of it is managed memory.
fn copied(
    path: *const c_char,
    [argv, envp]: [Strings; 2],
    f: impl FnOnce(*const c_char, Strings, Strings) -> c_int,
) -> c_int {
    let Some(e) = state::engine().filter(|_| taken()) else { return f(path, argv, envp) };
    if !is_managed(e, path, [argv, envp]) {
        return f(path, argv, envp);
    }
    let Some(mut copies) = Copies::for_lists(e, path as usize, [argv, envp]) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    let path = if path.is_null() { path } else { copies.string(e, path as usize) as *const c_char };
    let (argv, envp) = (copies.list(e, argv), copies.list(e, envp));
    copies.keep_until_next();
    f(path, argv, envp)
}

fn is_managed(e: &Weir, path: *const c_char, lists: [Strings; 2]) -> bool {
    let mut any = e.contains(path as usize);
    for list in lists {
        any |= e.contains(list as usize);
        each(e, list, |at| any |= e.contains(at));
    }
    any
}

/// Pins what a call of libc's reads of the environment, and a command, in a child where nothing can
/// be brought in.
fn with_environment<R>(command: *const c_char, f: impl FnOnce() -> R) -> R {
    let Some(e) = state::engine().filter(|_| taken()) else { return f() };
    let mut pages: Vec<usize> = Vec::new();
    let mut note = |at: usize, len: usize| {
        if e.contains(at) {
            pages.extend((at / PAGE_BYTES)..=((at + len - 1) / PAGE_BYTES));
        }
    };
    note(command as usize, if e.contains(command as usize) { length(command as usize) } else { 1 });
    // SAFETY: libc's variable.
    let list = unsafe { environ };
    let mut n = 1;
    each(e, list, |at| {
        n += 1;
        note(at, if e.contains(at) { length(at) } else { 1 });
    });
    note(list as usize, n * size_of::<usize>());
    pages.sort_unstable();
    pages.dedup();
    let runs = pages.chunk_by(|a, b| a + 1 == *b);
    let pins: Vec<u32> = runs.map(|r| e.pin_range(r[0] * PAGE_BYTES, r.len() * PAGE_BYTES)).collect();
    let r = f();
    pins.into_iter().for_each(|chain| e.unpin_range(chain));
    r
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
    with_copies(path, [argv, envp], |path, argv, envp| unsafe { f(path, argv, envp) })
}

/// # Safety
/// - as `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    let f = next!(c"execvpe", Exec);
    // SAFETY: passed on.
    with_copies(path, [argv, envp], |path, argv, envp| unsafe { f(path, argv, envp) })
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
    with_copies(core::ptr::null(), [argv, envp], |_, argv, envp| unsafe { f(fd, argv, envp) })
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
    with_copies(path, [argv, envp], |path, argv, envp| unsafe { f(dir, path, argv, envp, flags) })
}

/// # Safety
/// - as `system(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let f = next!(c"system", unsafe extern "C" fn(*const c_char) -> c_int);
    // SAFETY: passed on.
    with_environment(command, || unsafe { f(command) })
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
        with_environment(command, || f(command, mode))
    }
}

/// Copies of argument lists in memory of their own.
struct Copies {
    map: Mapping,
    used: usize,
}

impl Copies {
    /// Room for a path and two lists.
    fn for_lists(e: &Weir, path: usize, lists: [Strings; 2]) -> Option<Copies> {
        let mut bytes = length(path) + 64;
        for list in lists {
            each(e, list, |at| bytes += length(at) + size_of::<usize>());
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

    fn string(&mut self, e: &Weir, at: usize) -> usize {
        if at == 0 || !e.contains(at) {
            return at;
        }
        // SAFETY: a string of the program's.
        self.put(unsafe { core::slice::from_raw_parts(at as *const u8, length(at)) }, 1)
    }

    fn list(&mut self, e: &Weir, list: Strings) -> Strings {
        if list.is_null() {
            return list;
        }
        let mut strings: Vec<usize> = Vec::new();
        each(e, list, |at| strings.push(at));
        let mut copies: Vec<usize> = strings.into_iter().map(|at| self.string(e, at)).collect();
        copies.push(0);
        let bytes: Vec<u8> = copies.iter().flat_map(|p| p.to_ne_bytes()).collect();
        self.put(&bytes, size_of::<usize>()) as Strings
    }

    /// Leaves the memory in place until the thread comes here again: a child of `vfork` never comes
    /// back from its exec, and its memory is its parent's.
    fn keep_until_next(self) {
        let [at, len] = &Area::current().copies;
        let (at, len) = (
            at.swap(self.map.base() as u64, Ordering::Relaxed),
            len.swap(self.map.len() as u64, Ordering::Relaxed),
        );
        core::mem::forget(self.map);
        // SAFETY: a mapping that an earlier call of this thread left here.
        drop((at != 0).then(|| unsafe { Mapping::from_raw(at as usize, len as usize) }));
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
    spare: [c_int; 16],
}
/// Bytes of one action, at most, and where its path may stand.
const ACTION_BYTES: usize = 32;
const ACTION_PATHS: [usize; 2] = [8, 16];
/// Bytes of libc's attribute object.
const ATTRIBUTE_BYTES: usize = 336;

/// What `posix_spawn` is called with.
type SpawnArgs = (*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings);

/// Spawns with copies of everything that the child reads.
///
/// # Safety
/// - as `posix_spawn(3)`.
unsafe fn spawn(f: Spawn, args: SpawnArgs) -> c_int {
    let (pid, path, actions, attributes, argv, envp) = args;
    let Some(e) = state::engine().filter(|_| taken()) else {
        // SAFETY: passed on.
        return unsafe { f(pid, path, actions, attributes, argv, envp) };
    };
    let Some(mut copies) = Copies::for_lists(e, path as usize, [argv, envp]) else { return libc::ENOMEM };
    let (path, argv, envp) =
        (copies.string(e, path as usize) as *const c_char, copies.list(e, argv), copies.list(e, envp));
    // SAFETY: objects of libc's, or null, says the caller.
    let (actions, attributes, _more) = unsafe { copy_objects(e, actions, attributes) };
    let mut child = 0;
    // SAFETY: passed on; the child has started or failed when it returns, and needs the copies no more.
    let r = unsafe { f(&raw mut child, path, actions, attributes, argv, envp) };
    if r == 0 && !pid.is_null() {
        // SAFETY: the caller's cell.
        unsafe { *pid = child };
    }
    r
}

/// Copies of the objects that tell the child what to do, and what keeps them.
///
/// # Safety
/// - libc's objects, made by its own functions, or null.
unsafe fn copy_objects(
    e: &Weir,
    actions: *const c_void,
    attributes: *const c_void,
) -> (*const c_void, *const c_void, Option<Copies>) {
    if actions.is_null() && attributes.is_null() {
        return (actions, attributes, None);
    }
    // SAFETY: as the caller says; lengths are those of libc's objects.
    unsafe {
        let used = if actions.is_null() { 0 } else { (*actions.cast::<FileActions>()).used.max(0) as usize };
        let bytes = used * (ACTION_BYTES + PAGE_BYTES) + 2 * PAGE_BYTES;
        let Ok(map) = Mapping::anon(bytes) else { return (actions, attributes, None) };
        let mut copies = Copies { map, used: 0 };
        let mut object = |at: *const c_void, len: usize| match at.is_null() {
            true => 0,
            false => copies.put(core::slice::from_raw_parts(at.cast::<u8>(), len), 16),
        };
        let attributes = object(attributes, ATTRIBUTE_BYTES) as *const c_void;
        let copy = object(actions, size_of::<FileActions>()) as *mut FileActions;
        if !copy.is_null() && used > 0 {
            let list = object((*copy).actions as *const c_void, used * ACTION_BYTES);
            (*copy).actions = list;
            for cell in
                (0..used).flat_map(|i| ACTION_PATHS.map(|o| (list + i * ACTION_BYTES + o) as *mut usize))
            {
                if e.contains(*cell) {
                    *cell = copies.string(e, *cell);
                }
            }
        }
        (copy as *const c_void, attributes, Some(copies))
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

/// The variadic members of the family are in C; this library exports what Rust defines.
macro_rules! variadic {
    ($($name:ident $target:ident),*) => {$(
        unsafe extern "C" {
            fn $target();
        }

        /// # Safety
        /// - as `execl(3)`.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!("jmp {}", sym $target)
        }
    )*};
}

variadic!(execl weir_execl, execlp weir_execlp, execle weir_execle);
