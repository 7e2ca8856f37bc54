//! The malloc family.
//!
//! Large requests get a region of their own; smaller ones, down to `--min-alloc`, come from
//! mimalloc arenas in the managed space; the rest, and everything before the engine runs, from libc.
//! The address tells which it was.

use crate::arena;
use crate::libc_next::{
    __libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc, Next, errno, set_errno,
};
use crate::state::{self, Weir};
use core::ffi::c_void;
use core::ptr::null_mut;
use libmimalloc_sys as mi;
use weir::engine::remap::Place;
use weir::engine::threads::fatal;

/// From this size on an allocation is a region of its own: freed at once, grown without copying.
const LARGE_BYTES: usize = 1 << 20;
/// Smaller blocks are libc's whatever the setting: its own structures (streams, thread-specific
/// data) are among them, which libc touches in a forked child before the child's memory is watched.
const MIN_ALLOC_FLOOR: usize = weir::config::DEFAULT_MIN_ALLOC as usize;
/// Large allocations begin at multiples of this.
const LARGE_ALIGN: usize = 256 << 10;

enum Home {
    Libc,
    Arena(&'static Weir),
    Region(&'static Weir),
}

/// Where a request for `size` bytes belongs.
#[inline]
fn home(size: usize) -> Home {
    let min = state::settings().map_or(usize::MAX, |s| (s.min_alloc as usize).max(MIN_ALLOC_FLOOR));
    if size < min {
        return Home::Libc;
    }
    match state::note_request(size) {
        None => Home::Libc,
        Some(e) if size >= LARGE_BYTES => Home::Region(e),
        Some(e) => Home::Arena(e),
    }
}

fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    null_mut()
}

fn region(e: &Weir, size: usize, align: usize, zeroed: bool) -> *mut c_void {
    if size > isize::MAX as usize {
        return no_memory();
    }
    e.heap_alloc(size, align, zeroed).map_or_else(|_| no_memory(), |a| a as *mut c_void)
}

fn from_arena(e: &Weir, f: impl Fn() -> *mut c_void) -> *mut c_void {
    let saved = errno();
    let p = arena::with_room(e, f);
    if p.is_null() {
        return no_memory();
    }
    set_errno(saved);
    p
}

/// # Safety
/// - as `malloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    match home(size) {
        // SAFETY: libc's allocator.
        Home::Libc => unsafe { __libc_malloc(size) },
        Home::Region(e) => region(e, size, 1, false),
        // SAFETY: mimalloc may be called from any thread.
        Home::Arena(e) => from_arena(e, || unsafe { mi::mi_malloc(size) }),
    }
}

/// # Safety
/// - as `calloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(n: usize, size: usize) -> *mut c_void {
    let Some(total) = n.checked_mul(size) else { return no_memory() };
    match home(total) {
        // SAFETY: libc's allocator.
        Home::Libc => unsafe { __libc_calloc(n, size) },
        Home::Region(e) => region(e, total, 1, true),
        // SAFETY: mimalloc may be called from any thread.
        Home::Arena(e) => from_arena(e, || unsafe { mi::mi_zalloc(total) }),
    }
}

/// # Safety
/// - as `free(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(p: *mut c_void) {
    let Some(e) = state::owner(p as usize) else {
        // SAFETY: libc's own block, or null.
        return unsafe { __libc_free(p) };
    };
    let saved = errno();
    if (p as usize).is_multiple_of(LARGE_ALIGN) && e.heap_free(p as usize).is_ok() {
        return set_errno(saved);
    }
    // SAFETY: mimalloc's block, or a bug of the program that it reports.
    unsafe { mi::mi_free(p) };
    set_errno(saved);
}

/// # Safety
/// - as `realloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: each block goes back to the allocator it came from.
    unsafe {
        if p.is_null() {
            return malloc(size);
        }
        let Some(e) = state::owner(p as usize) else {
            return match home(size) {
                Home::Libc => __libc_realloc(p, size),
                _ => move_block(p, libc_usable_size(p), size),
            };
        };
        if size == 0 {
            free(p);
            return null_mut();
        }
        if let Some(old) = large_len(e, p) {
            if size < LARGE_BYTES {
                return move_block(p, old, size);
            }
            return match e.remap(p as usize, old, size, Place::Anywhere, false) {
                Ok(a) => a as *mut c_void,
                Err(_) => no_memory(),
            };
        }
        if size < LARGE_BYTES && state::running().is_some() {
            return from_arena(e, || mi::mi_realloc(p, size));
        }
        move_block(p, mi::mi_usable_size(p), size)
    }
}

/// Moves a block to a fresh one.
///
/// # Safety
/// - `p` is a live block of `old` usable bytes.
unsafe fn move_block(p: *mut c_void, old: usize, size: usize) -> *mut c_void {
    // SAFETY: both blocks are live and at least that long.
    unsafe {
        let new = malloc(size);
        if !new.is_null() {
            core::ptr::copy_nonoverlapping(p.cast::<u8>(), new.cast::<u8>(), old.min(size));
            free(p);
        }
        new
    }
}

fn large_len(e: &Weir, p: *mut c_void) -> Option<usize> {
    (p as usize).is_multiple_of(LARGE_ALIGN).then(|| e.heap_len(p as usize)).flatten()
}

/// # Safety
/// - as `reallocarray(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(p: *mut c_void, n: usize, size: usize) -> *mut c_void {
    match n.checked_mul(size) {
        // SAFETY: passed on.
        Some(total) => unsafe { realloc(p, total) },
        None => no_memory(),
    }
}

fn aligned(align: usize, size: usize) -> *mut c_void {
    match home(size) {
        // SAFETY: libc's allocator.
        Home::Libc => unsafe { __libc_memalign(align, size) },
        Home::Region(e) => region(e, size, align, false),
        Home::Arena(e) if align < LARGE_ALIGN => {
            // SAFETY: mimalloc may be called from any thread; the alignment is a power of two.
            from_arena(e, || unsafe { mi::mi_malloc_aligned(size, align) })
        }
        Home::Arena(e) => region(e, size, align, false),
    }
}

/// # Safety
/// - as `memalign(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => aligned(align, size),
        None => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// # Safety
/// - as `aligned_alloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { memalign(align, size) }
}

/// # Safety
/// - as `posix_memalign(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> i32 {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let saved = errno();
    let p = aligned(align, size);
    set_errno(saved);
    if p.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's cell.
    unsafe { *out = p };
    0
}

/// # Safety
/// - as `valloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned(4096, size)
}

/// # Safety
/// - as `pvalloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(4096) {
        Some(size) => aligned(4096, size.max(4096)),
        None => no_memory(),
    }
}

/// # Safety
/// - as `malloc_usable_size(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(p: *mut c_void) -> usize {
    if p.is_null() {
        return 0;
    }
    match state::owner(p as usize) {
        // SAFETY: a live block of mimalloc.
        Some(e) => large_len(e, p).unwrap_or_else(|| unsafe { mi::mi_usable_size(p) }),
        None => libc_usable_size(p),
    }
}

fn libc_usable_size(p: *mut c_void) -> usize {
    static NEXT: Next = Next::new(c"malloc_usable_size");
    match NEXT.get() {
        // SAFETY: libc's function of that name and type, for libc's own block.
        Some(a) => unsafe { core::mem::transmute::<usize, extern "C" fn(*mut c_void) -> usize>(a)(p) },
        None => fatal(format_args!("libc has no malloc_usable_size")),
    }
}
