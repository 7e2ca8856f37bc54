//! Blocks below [`LARGE_BYTES`](crate::malloc): jemalloc, whose memory is managed like any mapping of the
//! program.
//!
//! It was chosen for a heap that is mostly out (decision 37): what it knows of a block lies apart from the
//! block, so that `free` and `malloc` touch no page that is out. All its memory is managed, what it knows
//! included; what it purges comes back through this library's own `madvise`.

use crate::libc_next::{Next, errno, set_errno};
use crate::state;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use tikv_jemalloc_sys as je;
use weir::Kind;

unsafe extern "C" {
    /// jemalloc's own word: how far it is with its start.
    static mut _rjem_je_malloc_init_state: c_uint;
}
/// In that word: to be started by the first call.
const NOT_BEGUN: c_uint = 3;
/// All done.
const BEGUN: c_uint = 0;

/// jemalloc has a constructor that starts it in each process, also in one that stays small, which takes as
/// long as all else that this library does there. Before the constructor runs it is made to believe that it
/// has begun.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static POSTPONE: extern "C" fn() = postpone;

extern "C" fn postpone() {
    // SAFETY: no other thread exists yet, and nobody calls jemalloc before `begin`.
    unsafe {
        assert!(_rjem_je_malloc_init_state == NOT_BEGUN);
        _rjem_je_malloc_init_state = BEGUN;
    }
}

/// Starts jemalloc: once, when the engine is there and before it serves anybody. By a thread of the
/// program's, because jemalloc keeps something of each thread.
pub fn begin() {
    // SAFETY: nobody calls jemalloc yet.
    unsafe {
        BEGINNING.store(true, Ordering::Release);
        _rjem_je_malloc_init_state = NOT_BEGUN;
        je::free(je::malloc(1));
        BEGINNING.store(false, Ordering::Release);
    }
}

/// What jemalloc calls for `mmap` (a link option has it so): memory of the managed space, aligned as it likes
/// it.
///
/// # Safety
/// - as `mmap(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let Some(e) = state::engine().filter(|_| fd == -1) else {
        // SAFETY: somebody else's call, passed on.
        return unsafe { crate::map::serve(at, len, prot, flags, fd, offset) };
    };
    // Under strict overcommit it reserves memory without access, and opens parts of it in their place.
    let mapped = match flags & libc::MAP_FIXED {
        0 => e.map(len, EXTENT_ALIGN, prot, Kind::Map).ok(),
        _ => e.map_fixed(at as usize, len, prot).ok().map(|()| at as usize),
    };
    mapped.map_or(libc::MAP_FAILED, |at| at as *mut c_void)
}

/// What jemalloc calls for `dlsym` (the same way), while it starts: the linker's lock may be held by a thread
/// that waits for that start.
///
/// # Safety
/// - as `dlsym(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_dlsym(from: *mut c_void, name: *const c_char) -> *mut c_void {
    unsafe extern "C" {
        fn __real_dlsym(from: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    // SAFETY: a NUL-terminated name; passed on.
    unsafe {
        if BEGINNING.load(Ordering::Acquire) && CStr::from_ptr(name) == c"pthread_create" {
            return CREATE.get().map_or(core::ptr::null_mut(), |a| a as *mut c_void);
        }
        __real_dlsym(from, name)
    }
}

/// Looked up ahead, by the constructor.
static CREATE: Next = Next::new(c"pthread_create");
/// jemalloc starts now, in one thread.
static BEGINNING: AtomicBool = AtomicBool::new(false);

/// Whether jemalloc is being started: then it is jemalloc that registers handlers of forks.
pub fn is_beginning() -> bool {
    BEGINNING.load(Ordering::Acquire)
}

/// By the constructor: looks up what [`begin`] needs.
pub fn prepare() {
    let _ = CREATE.get();
}

/// jemalloc takes extents of this alignment, and would map twice as much and give some of it back.
const EXTENT_ALIGN: usize = 2 << 20;

// jemalloc's settings, which it reads before its first block. No `sbrk` when the engine refuses memory; what
// is free goes back soon, since a page of garbage that goes out is compressed for nothing.
core::arch::global_asm!(
    ".pushsection .rodata.weir_malloc_conf,\"a\",@progbits",
    "1: .asciz \"dss:disabled,dirty_decay_ms:100,muzzy_decay_ms:0\"",
    ".popsection",
    ".pushsection .data.rel.ro.weir_malloc_conf,\"aw\",@progbits",
    ".hidden _rjem_malloc_conf",
    ".globl _rjem_malloc_conf",
    ".type _rjem_malloc_conf,@object",
    ".p2align 3",
    "_rjem_malloc_conf: .quad 1b",
    ".size _rjem_malloc_conf, 8",
    ".popsection",
);

/// Calls `f` with `errno` kept unless it finds no room.
fn allocated(f: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let saved = errno();
    let p = f();
    set_errno(if p.is_null() { libc::ENOMEM } else { saved });
    p
}

/// A block of `size` bytes; null with ENOMEM when there is no room.
pub fn allocate(size: usize) -> *mut c_void {
    // SAFETY: may be called from any thread.
    allocated(|| unsafe { je::malloc(size) })
}

/// The same, of zeros.
pub fn allocate_zeroed(size: usize) -> *mut c_void {
    // SAFETY: as above.
    allocated(|| unsafe { je::calloc(1, size) })
}

/// The same, aligned to a power of two.
pub fn allocate_aligned(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as above.
    allocated(|| unsafe { je::mallocx(size.max(1), align.trailing_zeros() as i32) })
}

/// A block of another size with the contents of `p`, which is given up unless there is no room.
///
/// # Safety
/// - a live block of this allocator; `size` is not 0.
pub unsafe fn reallocate(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    allocated(|| unsafe { je::realloc(p, size) })
}

/// Gives a block up.
///
/// # Safety
/// - a live block of this allocator.
pub unsafe fn release(p: *mut c_void) {
    let saved = errno();
    // SAFETY: passed on.
    unsafe { je::free(p) };
    set_errno(saved);
}

/// Bytes of a block.
///
/// # Safety
/// - a live block of this allocator.
pub unsafe fn usable_size(p: *mut c_void) -> usize {
    // SAFETY: passed on.
    unsafe { je::malloc_usable_size(p) }
}
