//! The mmap family: private anonymous mappings are managed, everything else is left alone.

use crate::libc_next::set_errno;
use crate::state::{self, Weir};
use crate::{demand, files, hints};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weir::config::Mlock;
use weir::engine::control::Whose;
use weir::engine::remap::Place;
use weir::engine::threads::say;
use weir::error::Refused;
use weir::{Access, AtFork, Kind};
use weir_os::mem::PAGE_BYTES;
use weir_os::sys::{Errno, syscall};

pub const FAILED: *mut c_void = usize::MAX as *mut c_void;
/// Smaller mappings are left alone: guard pages, stacks of handlers, words that the kernel keeps. (The pages
/// of Ruby's heap are mappings of 32 KiB.)
const MAP_MIN_BYTES: usize = 16 << 10;
/// Smaller mappings share blocks, which are the unit of everything.
const MAP_SHARED_BYTES: usize = 128 << 10;
/// Address space that such mappings are taken from, one after the other.
const CHUNK_BYTES: usize = 1 << 20;
/// Mappings of this size that are left alone may exceed the budget between two looks at the memory outside.
const EXPECT_BYTES: usize = 4 << 20;
const LEAVE_ALONE: c_int = libc::MAP_SHARED
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | libc::MAP_32BIT
    | libc::MAP_LOCKED;

pub fn fail(e: Errno) -> c_int {
    set_errno(e.0);
    -1
}

pub fn errno_of(r: Refused) -> Errno {
    match r {
        Refused::Full | Refused::NoSpace => Errno::ENOMEM,
        // As the kernel says of ranges with gaps.
        Refused::NotManaged => Errno::ENOMEM,
        Refused::Kernel(e) => e,
    }
}

fn done(r: Result<(), Refused>) -> c_int {
    r.map_or_else(|e| fail(errno_of(e)), |()| 0)
}

/// The system call itself, with libc's conventions for the result.
pub fn raw(nr: libc::c_long, args: [usize; 6]) -> isize {
    // SAFETY: the program's own call, passed on unchanged.
    match unsafe { syscall(nr, args) } {
        Ok(v) => v as isize,
        Err(e) => {
            set_errno(e.0);
            -1
        }
    }
}

/// The engine, if the range lies in its space (wholly: a range across its border is the kernel's).
pub fn inside(addr: *mut c_void, len: usize) -> Option<&'static Weir> {
    let e = state::owner(addr as usize)?;
    let (base, bytes) = e.space();
    (addr as usize).checked_add(len).is_some_and(|end| end <= base + bytes).then_some(e)
}

pub fn round(len: usize) -> usize {
    len.saturating_add(4095) & !4095
}

/// # Safety
/// - as `mmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: libc::off_t,
) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { serve(addr, len, prot, flags, fd, off) }
}

/// `mmap` under a name that jemalloc's calls are not taken for.
///
/// # Safety
/// - as `mmap(2)`.
pub unsafe fn serve(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: libc::off_t,
) -> *mut c_void {
    let call = |here: bool| {
        let (at, flags) = if here { (addr as usize, flags) } else { (0, flags & !libc::MAP_FIXED) };
        raw(libc::SYS_mmap, [at, len, prot as usize, flags as usize, fd as usize, off as usize])
            as *mut c_void
    };
    let native = || {
        let at = call(true);
        if at != FAILED {
            if flags & libc::MAP_FIXED != 0 {
                files::replaced(at as usize, len);
            }
            files::mapped(at as usize, len, prot, flags, fd, off);
        }
        at
    };
    note_code(prot);
    let plain = flags & libc::MAP_PRIVATE != 0
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & LEAVE_ALONE == 0
        && prot & libc::PROT_EXEC == 0;
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        let Some(e) = inside(addr, len) else { return native() };
        if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE && flags & libc::MAP_FIXED == 0 {
            return fail_ptr(Errno::EEXIST);
        }
        return map_over(e, addr, len, prot, plain, call);
    }
    let hinted = !addr.is_null() && prot == libc::PROT_NONE;
    if !plain || !wanted(len) || hinted && hints::insists(round(len)) {
        let grows = flags & (libc::MAP_ANONYMOUS | libc::MAP_SHARED) == libc::MAP_ANONYMOUS;
        if grows && len >= EXPECT_BYTES && prot & libc::PROT_WRITE != 0 {
            state::engine().inspect(|e| e.expect_outside());
        }
        return native();
    }
    let Some(e) = demand::note_request(len) else { return native() };
    let mapped = match round(len) {
        small if small < MAP_SHARED_BYTES => map_small(e, small, prot),
        _ => e.map(len, 1, prot, Kind::Map),
    };
    match mapped {
        Ok(a) => {
            if hinted {
                hints::ignored(a, round(len));
            }
            a as *mut c_void
        }
        Err(Refused::NoSpace) => {
            tell_left(e, len, prot);
            native()
        }
        Err(r) => fail_ptr(errno_of(r)),
    }
}

/// Maps less than a block behind the mapping made before.
fn map_small(e: &Weir, len: usize, prot: c_int) -> Result<usize, Refused> {
    /// Where the next one lies; a multiple of the chunk's size where a new chunk is needed.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    loop {
        let next = NEXT.load(Ordering::Relaxed);
        let left = next.next_multiple_of(CHUNK_BYTES) - next;
        let fresh = if len <= left { None } else { Some(e.map(CHUNK_BYTES, CHUNK_BYTES, 0, Kind::Map)?) };
        let at = fresh.unwrap_or(next);
        if NEXT.compare_exchange(next, at + len, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            if fresh.is_some() && left > 0 {
                e.unmap(next, left)?; // too little, and nobody else's
            }
            return e.map_fixed(at, len, prot).map(|()| at);
        }
        if let Some(unused) = fresh {
            e.unmap(unused, CHUNK_BYTES)?;
        }
    }
}

fn wanted(len: usize) -> bool {
    state::settings().is_some() && len >= MAP_MIN_BYTES && len <= isize::MAX as usize
}

/// Says once that a mapping is left to the kernel.
fn tell_left(e: &Weir, len: usize, prot: c_int) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if state::settings().is_some_and(|s| s.quiet) || TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let (_, space) = e.space();
    let why = if prot == libc::PROT_NONE || e.core.ledger.rows_fit(len) {
        "does not fit into the rest of"
    } else {
        "needs too large tables in"
    };
    say(format_args!(
        "a mapping of {} MiB {why} the managed address space of {} GiB: it is left to the kernel, and what is touched of it counts as \
         memory outside Weir",
        len >> 20,
        space >> 30
    ));
}

/// `MAP_FIXED` inside the managed space.
fn map_over(
    e: &Weir,
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    plain: bool,
    native: impl Fn(bool) -> *mut c_void,
) -> *mut c_void {
    if len == 0 || !(addr as usize).is_multiple_of(4096) {
        return native(true); // the kernel knows the right error
    }
    hints::used(addr as usize);
    if plain {
        match e.map_fixed(addr as usize, round(len), prot) {
            Ok(()) => return addr,
            Err(Refused::NoSpace) => tell_left(e, len, prot),
            Err(r) => return fail_ptr(errno_of(r)),
        }
    }
    // Elsewhere first: if the kernel refuses (a bad descriptor), the old mapping must survive.
    let elsewhere = native(false);
    if elsewhere == FAILED {
        return FAILED;
    }
    if let Err(r) = e.make_foreign(addr as usize, round(len)) {
        raw(libc::SYS_munmap, [elsewhere as usize, len, 0, 0, 0, 0]);
        return fail_ptr(errno_of(r));
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, to, n) = (elsewhere as usize, addr as usize, round(len));
    raw(libc::SYS_mremap, [from, n, n, flags as usize, to, 0]) as *mut c_void
}

/// # Safety
/// - as `mmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: libc::off_t,
) -> *mut c_void {
    // SAFETY: passed on; off_t has 64 bits.
    unsafe { serve(addr, len, prot, flags, fd, off) }
}

/// Code that can be run and not read: instructions of it must not be looked at.
fn note_code(prot: c_int) {
    #[cfg(target_arch = "x86_64")]
    if prot & libc::PROT_EXEC != 0 && prot & libc::PROT_READ == 0 {
        weir_os::code::mistrust();
    }
}

/// # Safety
/// - as `munmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    match inside(addr, len) {
        Some(_) if len == 0 || !(addr as usize).is_multiple_of(4096) => fail(Errno::EINVAL),
        Some(e) => {
            hints::unmapped(addr as usize, round(len));
            done(e.unmap(addr as usize, round(len)))
        }
        None => {
            let call = || raw(libc::SYS_munmap, [addr as usize, len, 0, 0, 0, 0]);
            files::unmap(addr as usize, len, call) as c_int
        }
    }
}

/// # Safety
/// - as `mprotect(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    note_code(prot);
    let native = || raw(libc::SYS_mprotect, [addr as usize, len, prot as usize, 0, 0, 0]) as c_int;
    let Some(e) = inside(addr, len) else { return native() };
    if len == 0 || !(addr as usize).is_multiple_of(4096) {
        return native();
    }
    let (a, n) = (addr as usize, round(len));
    hints::used(a);
    let result = done(e.protect(a, n, prot));
    // Parts where something else is mapped are the kernel's.
    for (start, bytes) in e.foreign_parts(a, n) {
        if raw(libc::SYS_mprotect, [start, bytes, prot as usize, 0, 0, 0]) != 0 {
            return -1;
        }
    }
    result
}

/// # Safety
/// - as `madvise(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    let native = || raw(libc::SYS_madvise, [addr as usize, len, advice as usize, 0, 0, 0]) as c_int;
    let Some(e) = inside(addr, len) else { return native() };
    let (a, n) = (addr as usize, round(len));
    if n == 0 || !a.is_multiple_of(4096) || e.whose(a, n) == Whose::Foreign {
        return native();
    }
    for (start, bytes) in e.foreign_parts(a, n) {
        if raw(libc::SYS_madvise, [start, bytes, advice as usize, 0, 0, 0]) != 0 {
            return -1;
        }
    }
    let known = |r: c_int| if e.whose(a, n) == Whose::Managed { r } else { fail(Errno::ENOMEM) };
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE if e.is_locked(a, n) => fail(Errno::EINVAL),
        libc::MADV_DONTNEED | libc::MADV_FREE | MADV_DONTNEED_LOCKED => done(e.drop_contents(a, n)),
        libc::MADV_WILLNEED | MADV_POPULATE_READ | MADV_POPULATE_WRITE => done(e.will_need(a, n)),
        libc::MADV_COLD | libc::MADV_PAGEOUT => done(e.page_out(a, n)),
        // For the engine's readahead alone: set in the kernel as well, it would split the mapping and keep
        // its pages from moving.
        libc::MADV_NORMAL => done(e.set_access(a, n, Access::Any)),
        libc::MADV_RANDOM => done(e.set_access(a, n, Access::Random)),
        libc::MADV_SEQUENTIAL => done(e.set_access(a, n, Access::Sequential)),
        // Parts that differ are mappings of their own, between which pages are moved one by one.
        libc::MADV_DONTDUMP => done(e.set_dump(a, n, false)),
        libc::MADV_DODUMP => done(e.set_dump(a, n, true)),
        // About page size and merging: the engine decides; set in the kernel, they would split the mapping,
        // too.
        libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE => known(0),
        libc::MADV_WIPEONFORK => done(e.set_fork(a, n, AtFork::Wipe)),
        libc::MADV_DONTFORK => done(e.set_fork(a, n, AtFork::Drop)),
        libc::MADV_KEEPONFORK | libc::MADV_DOFORK => done(e.set_fork(a, n, AtFork::Copy)),
        _ => fail(Errno::EINVAL),
    }
}

const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_COLLAPSE: c_int = 25;

/// # Safety
/// - as `posix_madvise(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0; // as glibc: the Linux advice of that name loses data
    }
    // SAFETY: passed on.
    if unsafe { madvise(addr, len, advice) } == 0 { 0 } else { crate::libc_next::errno() }
}

/// # Safety
/// - as `mincore(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mincore(addr: *mut c_void, len: usize, vec: *mut u8) -> c_int {
    let native = || raw(libc::SYS_mincore, [addr as usize, len, vec as usize, 0, 0, 0]) as c_int;
    let Some(e) = inside(addr, len) else { return native() };
    let (a, n) = (addr as usize, round(len));
    if n == 0 || !a.is_multiple_of(4096) || e.whose(a, n) == Whose::Foreign {
        return native();
    }
    // The caller's vector may be managed memory itself, which may not be touched inside the engine.
    const AT_ONCE: usize = 1024;
    let mut here = [0u8; AT_ONCE];
    let pages = n / 4096;
    for first in (0..pages).step_by(AT_ONCE) {
        let count = (pages - first).min(AT_ONCE);
        if let Err(r) = e.residency(a + first * 4096, count * 4096, |i, v| here[i] = v) {
            return fail(errno_of(r));
        }
        // SAFETY: the caller's vector has a byte for each page.
        unsafe { core::ptr::copy_nonoverlapping(here.as_ptr(), vec.add(first), count) };
    }
    0
}

/// # Safety
/// - as `mremap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let native = || {
        let call = || raw(libc::SYS_mremap, [old as usize, old_len, new_len, flags as usize, to as usize, 0]);
        files::moving(old as usize, old_len, new_len, flags, call) as *mut c_void
    };
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let kernels = || {
        if fixed && let Some(e) = inside(to, new_len) {
            // Something of the kernel's comes to lie in the managed space.
            if let Err(r) = e.make_foreign(to as usize, round(new_len)) {
                return fail_ptr(errno_of(r));
            }
        }
        native()
    };
    let Some(e) = inside(old, old_len) else { return kernels() };
    let keep = flags & libc::MREMAP_DONTUNMAP != 0;
    let may_move = flags & libc::MREMAP_MAYMOVE != 0;
    let unaligned = |p: *mut c_void| !(p as usize).is_multiple_of(4096);
    let bad = old_len == 0
        || new_len == 0
        || unaligned(old)
        || fixed && unaligned(to)
        || (fixed || keep) && !may_move
        || keep && round(old_len) != round(new_len);
    if bad {
        return fail_ptr(Errno::EINVAL);
    }
    match e.whose(old as usize, round(old_len)) {
        Whose::Managed => {}
        Whose::Foreign => return kernels(),
        Whose::Mixed => return fail_ptr(Errno::EFAULT),
    }
    let place = match (fixed, may_move) {
        (true, _) if inside(to, new_len).is_some() => Place::At(to as usize),
        (true, _) => return move_out(e, old, round(old_len), to, round(new_len), keep),
        (false, true) => Place::Anywhere,
        (false, false) => Place::Here,
    };
    match e.remap(old as usize, round(old_len), round(new_len), place, keep) {
        Ok(a) => a as *mut c_void,
        // What the kernel would have as two mappings.
        Err(Refused::NotManaged) => fail_ptr(Errno::EFAULT),
        Err(r) => fail_ptr(errno_of(r)),
    }
}

pub fn fail_ptr(e: Errno) -> *mut c_void {
    set_errno(e.0);
    FAILED
}

/// A managed range is to lie at an address outside the managed space: it stops being managed, and keeps its
/// protection.
fn move_out(
    e: &Weir,
    old: *mut c_void,
    old_len: usize,
    to: *mut c_void,
    new_len: usize,
    keep: bool,
) -> *mut c_void {
    let (prot, empty) = match e.protection(old as usize, old_len) {
        Ok(found) => found,
        // What the kernel would have as two mappings.
        Err(Refused::NotManaged) => return fail_ptr(Errno::EFAULT),
        Err(r) => return fail_ptr(errno_of(r)),
    };
    // Somebody has to read it. Until it is gone others can, too.
    let opened = prot & libc::PROT_READ == 0 && !empty;
    if opened && let Err(r) = e.protect(old as usize, old_len, libc::PROT_READ) {
        return fail_ptr(errno_of(r));
    }
    let close = || if opened { e.protect(old as usize, old_len, prot) } else { Ok(()) };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let open = if empty { prot } else { libc::PROT_READ | libc::PROT_WRITE };
    if raw(libc::SYS_mmap, [to as usize, new_len, open as usize, flags as usize, usize::MAX, 0]) == -1 {
        let _ = close();
        return FAILED;
    }
    files::replaced(to as usize, new_len);
    if !empty {
        // SAFETY: both ranges are mapped and open; the program handed over the old one.
        unsafe { copy_pages(old.cast(), to.cast(), old_len.min(new_len)) };
    }
    if open != prot && raw(libc::SYS_mprotect, [to as usize, new_len, prot as usize, 0, 0, 0]) == -1 {
        let _ = close();
        return FAILED;
    }
    let gone = match keep {
        true => e.drop_contents(old as usize, old_len).and_then(|()| close()),
        false => e.unmap(old as usize, old_len),
    };
    match gone {
        Ok(()) => to,
        Err(r) => fail_ptr(errno_of(r)),
    }
}

/// Copies pages to fresh memory, but for those of zeros, which are there already.
///
/// # Safety
/// - both ranges are mapped, the first for reading, the second for writing; whole pages.
unsafe fn copy_pages(from: *const u64, to: *mut u64, len: usize) {
    const WORDS: usize = PAGE_BYTES / size_of::<u64>();
    for at in (0..len / size_of::<u64>()).step_by(WORDS) {
        // SAFETY: a whole page of each range.
        unsafe {
            let page = core::slice::from_raw_parts(from.add(at), WORDS);
            if page.iter().any(|word| *word != 0) {
                core::ptr::copy_nonoverlapping(page.as_ptr(), to.add(at), WORDS);
            }
        }
    }
}

fn lock(addr: *const c_void, len: usize, native: impl Fn() -> isize) -> c_int {
    let start = addr as usize & !4095;
    let n = round(len + (addr as usize - start));
    let Some(e) = inside(start as *mut c_void, n) else { return native() as c_int };
    if state::settings().is_some_and(|s| s.mlock == Mlock::Deny) {
        return fail(Errno::EPERM);
    }
    match e.mlock(start, n) {
        Ok(()) => 0,
        Err(r) => fail(errno_of(r)),
    }
}

/// # Safety
/// - as `mlock(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    lock(addr, len, || raw(libc::SYS_mlock, [addr as usize, len, 0, 0, 0, 0]))
}

/// # Safety
/// - as `mlock2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: libc::c_uint) -> c_int {
    lock(addr, len, || raw(libc::SYS_mlock2, [addr as usize, len, flags as usize, 0, 0, 0]))
}

/// # Safety
/// - as `munlock(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    let start = addr as usize & !4095;
    let n = round(len + (addr as usize - start));
    match inside(start as *mut c_void, n) {
        Some(e) => done(e.munlock(start, n)),
        None => raw(libc::SYS_munlock, [addr as usize, len, 0, 0, 0, 0]) as c_int,
    }
}

/// Locking everything would lock the reserved space and the arena: refused once the engine runs. Until then
/// it is the kernel's; what was locked stays so, but memory to come is locked no longer once the engine
/// starts (`leave_future_unlocked`).
///
/// # Safety
/// - as `mlockall(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    state::wait_until_started(); // its mappings must not be made meanwhile
    if state::engine().is_none() {
        return raw(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) as c_int;
    }
    let deny = state::settings().is_some_and(|s| s.mlock == Mlock::Deny);
    fail(if deny { Errno::EPERM } else { Errno::ENOMEM })
}
