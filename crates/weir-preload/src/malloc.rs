//! What serves the malloc family where it is Weir's (`family.rs` says when).
//!
//! Until the process is large every block is libc's. Then large requests get a region of their own, smaller
//! ones come from an allocator in the managed space. What libc and the dynamic linker ask for themselves
//! stays libc's: they touch it with signals blocked, and in a forked child before its memory is watched. A
//! block's address tells whose it is.

use crate::libc_next::{
    __libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc, LIBC_CODE, Next, errno,
    set_errno,
};
use crate::state::{self, Weir};
use crate::{demand, jemalloc};
use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use weir::engine::remap::Place;
use weir::engine::threads::fatal;

/// From this size on an allocation is a region of its own: freed at once, grown without copying.
const LARGE_BYTES: usize = 1 << 20;
/// Blocks of libc's from this size on are the program's data (`qsort`, `getline`), which libc itself would
/// give a mapping of their own.
const LIBCS_MAX: usize = 128 << 10;
/// Large allocations begin at multiples of this.
const LARGE_ALIGN: usize = 256 << 10;

enum Home {
    Libc,
    Jemalloc(&'static Weir),
    Region(&'static Weir),
}

/// Where a request for `size` bytes by code at `caller` belongs.
#[inline]
fn home(size: usize, caller: usize) -> Home {
    match demand::note_request(size) {
        None => Home::Libc,
        Some(e) if size >= LARGE_BYTES => Home::Region(e),
        Some(_) if size < LIBCS_MAX && LIBC_CODE.contains(caller) => Home::Libc,
        Some(e) => Home::Jemalloc(e),
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

/// `malloc(3)`.
pub extern "C" fn allocate(size: usize, caller: usize) -> *mut c_void {
    match home(size, caller) {
        // SAFETY: libc's allocator.
        Home::Libc => unsafe { __libc_malloc(size) },
        Home::Region(e) => region(e, size, 1, false),
        Home::Jemalloc(_) => jemalloc::allocate(size),
    }
}

/// `calloc(3)`.
pub extern "C" fn allocate_zeroed(n: usize, size: usize, caller: usize) -> *mut c_void {
    let Some(total) = n.checked_mul(size) else { return no_memory() };
    match home(total, caller) {
        // SAFETY: libc's allocator.
        Home::Libc => unsafe { __libc_calloc(n, size) },
        Home::Region(e) => region(e, total, 1, true),
        Home::Jemalloc(_) => jemalloc::allocate_zeroed(total),
    }
}

/// `free(3)`, and C23's `free_sized` and `free_aligned_sized`, which promise what the block knows.
///
/// # Safety
/// - a live block, or null.
pub unsafe extern "C" fn release(p: *mut c_void) {
    let Some(e) = state::owner(p as usize) else {
        // SAFETY: libc's own block, or null.
        return unsafe { __libc_free(p) };
    };
    if (p as usize).is_multiple_of(LARGE_ALIGN) {
        let saved = errno();
        let freed = e.heap_free(p as usize).is_ok();
        set_errno(saved);
        if freed {
            return;
        }
    }
    // SAFETY: jemalloc's block, or a bug of the program that the allocator reports.
    unsafe { jemalloc::release(p) };
}

/// `realloc(3)`.
///
/// # Safety
/// - a live block, or null.
pub unsafe extern "C" fn reallocate(p: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: each block goes back to the allocator it came from.
    unsafe {
        if p.is_null() {
            return allocate(size, caller);
        }
        let Some(e) = state::owner(p as usize) else {
            return match home(size, caller) {
                Home::Libc => __libc_realloc(p, size),
                _ if size == 0 => __libc_realloc(p, size),
                _ => move_block(p, libc_usable_size(p), size, caller),
            };
        };
        if size == 0 {
            release(p);
            return null_mut();
        }
        if let Some(old) = large_len(e, p) {
            if size < LARGE_BYTES {
                return move_block(p, old, size, caller);
            }
            return match e.remap(p as usize, old, size, Place::Anywhere, false) {
                Ok(a) => a as *mut c_void,
                Err(_) => no_memory(),
            };
        }
        if size < LARGE_BYTES && state::running().is_some() {
            return jemalloc::reallocate(p, size);
        }
        move_block(p, jemalloc::usable_size(p), size, caller)
    }
}

/// Moves a block to a fresh one.
///
/// # Safety
/// - `p` is a live block of `old` usable bytes.
unsafe fn move_block(p: *mut c_void, old: usize, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: both blocks are live and at least that long.
    unsafe {
        let new = allocate(size, caller);
        if !new.is_null() {
            core::ptr::copy_nonoverlapping(p.cast::<u8>(), new.cast::<u8>(), old.min(size));
            release(p);
        }
        new
    }
}

fn large_len(e: &Weir, p: *mut c_void) -> Option<usize> {
    (p as usize).is_multiple_of(LARGE_ALIGN).then(|| e.heap_len(p as usize)).flatten()
}

/// `reallocarray(3)`.
///
/// # Safety
/// - a live block, or null.
pub unsafe extern "C" fn reallocate_array(
    p: *mut c_void,
    n: usize,
    size: usize,
    caller: usize,
) -> *mut c_void {
    match n.checked_mul(size) {
        // SAFETY: passed on.
        Some(total) => unsafe { reallocate(p, total, caller) },
        None => no_memory(),
    }
}

fn aligned(align: usize, size: usize, caller: usize) -> *mut c_void {
    match home(size, caller) {
        // SAFETY: libc's allocator.
        Home::Libc => unsafe { __libc_memalign(align, size) },
        Home::Region(e) => region(e, size, align, false),
        Home::Jemalloc(_) if align < LARGE_ALIGN => jemalloc::allocate_aligned(align, size),
        Home::Jemalloc(e) => region(e, size, align, false),
    }
}

/// `memalign(3)` and `aligned_alloc(3)`.
pub extern "C" fn allocate_aligned(align: usize, size: usize, caller: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => aligned(align, size, caller),
        None => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// `posix_memalign(3)`.
///
/// # Safety
/// - a writable cell.
pub unsafe extern "C" fn allocate_posix(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
    caller: usize,
) -> i32 {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let saved = errno();
    let p = aligned(align, size, caller);
    set_errno(saved);
    if p.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's cell.
    unsafe { *out = p };
    0
}

/// `valloc(3)`.
pub extern "C" fn allocate_page(size: usize, caller: usize) -> *mut c_void {
    aligned(4096, size, caller)
}

/// `pvalloc(3)`.
pub extern "C" fn allocate_pages(size: usize, caller: usize) -> *mut c_void {
    match size.checked_next_multiple_of(4096) {
        Some(size) => aligned(4096, size.max(4096), caller),
        None => no_memory(),
    }
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// - a live block, or null.
pub unsafe extern "C" fn usable_size(p: *mut c_void) -> usize {
    if p.is_null() {
        return 0;
    }
    match state::owner(p as usize) {
        // SAFETY: a live block of jemalloc's.
        Some(e) => large_len(e, p).unwrap_or_else(|| unsafe { jemalloc::usable_size(p) }),
        None => libc_usable_size(p),
    }
}

/// Copies of strings are the program's data although libc's code would ask for the memory.
macro_rules! duplicates {
    ($($name:ident($($limit:ident)?) $length:expr;)*) => {$(
        /// # Safety
        /// - as the C function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(text: *const c_char $(, $limit: usize)?) -> *mut c_char {
            // SAFETY: a string of the program's, as long as it says.
            unsafe {
                let length = $length(text $(, $limit)?);
                let copy = libc::malloc(length + 1).cast::<c_char>();
                if !copy.is_null() {
                    core::ptr::copy_nonoverlapping(text, copy, length);
                    *copy.add(length) = 0;
                }
                copy
            }
        }
    )*};
}

duplicates! {
    strdup() libc::strlen;
    __strdup() libc::strlen;
    strndup(limit) libc::strnlen;
    __strndup(limit) libc::strnlen;
}

fn libc_usable_size(p: *mut c_void) -> usize {
    static NEXT: Next = Next::new(c"malloc_usable_size");
    match NEXT.get() {
        // SAFETY: libc's function of that name and type, for libc's own block.
        Some(a) => unsafe { core::mem::transmute::<usize, extern "C" fn(*mut c_void) -> usize>(a)(p) },
        None => fatal(format_args!("libc has no malloc_usable_size")),
    }
}
