//! Weir as a C library: the functions of `include/weir.h`, over the pools of the crate `weir`.
//!
//! A pool has a table of its memory by address, because that is what C programs have of it.

mod answer;
mod numpy;
mod table;

use answer::{answer, of_alloc, of_build, of_memory, of_pin, of_range, text_of};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use table::Table;
use weir::{Advice, Builder, PinError, Pool};

/// What a `weir_pool` is. Handlers of numpy's look whether it is still there.
#[derive(Debug)]
pub struct WeirPool(Arc<Owned>);

/// A pool and its memory that is out.
#[derive(Debug)]
struct Owned {
    pool: Pool,
    table: Table,
}

impl Owned {
    /// So many bytes of zeros; their address.
    fn alloc(&self, len: usize) -> Result<usize, c_int> {
        let region = self.pool.alloc(len).map_err(of_alloc)?;
        self.table.add(region).ok_or(libc::EINVAL)
    }
}

/// `weir_pool_stats` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WeirStats {
    memory: u64,
    ram: u64,
    data: u64,
    compressed: u64,
    swapped: u64,
    swap_free: u64,
    pinned: u64,
    faults: u64,
    waited_ns: u64,
    pieces: u64,
}

/// `WEIR_DISCARD` of the header.
const DISCARD: c_int = 5;

/// The value of an enumerator of the header.
fn advice(number: c_int) -> Option<Advice> {
    let known = [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::Cold];
    usize::try_from(number).ok().and_then(|n| known.get(n).copied())
}

/// A text of the caller's; `None` for NULL, an error where it is not UTF-8.
///
/// # Safety
/// - NULL, or a text with a NUL at its end.
unsafe fn text<'a>(at: *const c_char) -> Result<Option<&'a str>, c_int> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on to the caller.
    unsafe { CStr::from_ptr(at) }.to_str().map(Some).map_err(|_| libc::EINVAL)
}

/// A pool of the caller's.
///
/// # Safety
/// - NULL, or a pool of `weir_pool_new` that has not been ended.
unsafe fn pool<'a>(at: *const WeirPool) -> Result<&'a Arc<Owned>, c_int> {
    // SAFETY: passed on to the caller.
    unsafe { at.as_ref() }.map(|pool| &pool.0).ok_or(libc::EINVAL)
}

/// A pool of the caller's and of this process. In a child of a fork no lock of the pool's may be taken.
///
/// # Safety
/// - as for `pool`.
unsafe fn here<'a>(at: *const WeirPool) -> Result<&'a Arc<Owned>, c_int> {
    // SAFETY: passed on to the caller.
    let owned = unsafe { pool(at) }?;
    if owned.pool.is_forked() { Err(libc::ECHILD) } else { Ok(owned) }
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or valid pointers: a place for a pointer, texts with a NUL at their ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_new(
    out: *mut *mut WeirPool,
    memory: *const c_char,
    swap: *const c_char,
) -> c_int {
    answer(|| {
        if out.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's texts.
        let (memory, swap) = unsafe { (text(memory)?, text(swap)?) };
        let builder = memory.into_iter().fold(Pool::builder(), |builder, size| builder.memory(size));
        let builder = swap.into_iter().fold(builder, |builder, place| builder.swap(place));
        let made = made(builder)?;
        // SAFETY: a valid place of the caller's.
        unsafe { out.write(made) };
        Ok(())
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or valid pointers: a place for a pointer, an array of texts with NULL at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_new_with(
    out: *mut *mut WeirPool,
    settings: *const *const c_char,
) -> c_int {
    answer(|| {
        if out.is_null() || settings.is_null() {
            return Err(libc::EINVAL);
        }
        let (mut builder, mut at) = (Pool::builder(), settings);
        // SAFETY: the caller's array, read up to its first NULL.
        while let Some(name) = unsafe { text(*at) }? {
            // SAFETY: as above: behind a name there is a value, or the end.
            let value = unsafe { text(*at.add(1)) }?.ok_or(libc::EINVAL)?;
            builder = builder.set(name, value);
            // SAFETY: the next name, or the end.
            at = unsafe { at.add(2) };
        }
        let made = made(builder)?;
        // SAFETY: a valid place of the caller's.
        unsafe { out.write(made) };
        Ok(())
    })
}

/// A pool that the caller is to own.
fn made(builder: Builder) -> Result<*mut WeirPool, c_int> {
    let pool = builder.build().map_err(|e| of_build(&e))?;
    let owned = Arc::new(Owned { pool, table: Table::default() });
    Ok(Box::into_raw(Box::new(WeirPool(owned))))
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL, or a pool that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_free(at: *mut WeirPool) -> c_int {
    answer(|| {
        if at.is_null() {
            return Ok(());
        }
        // SAFETY: a live pool.
        let owned = unsafe { pool(at) }?;
        if owned.pool.is_forked() {
            // Memory of the parent's may be given back later: then it must still be known as such.
            core::mem::forget(Arc::clone(owned));
        } else if !owned.table.close() {
            return Err(libc::EBUSY);
        }
        // SAFETY: from the box in `weir_pool_new`; the caller gives it up.
        drop(unsafe { Box::from_raw(at) });
        Ok(())
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_set_memory(at: *mut WeirPool, bytes: u64) -> c_int {
    // SAFETY: passed on to the caller.
    answer(|| unsafe { pool(at) }?.pool.set_memory(bytes).map_err(|e| of_memory(&e)))
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or valid pointers: a live pool, a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_alloc(at: *mut WeirPool, len: usize, out: *mut *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owner = unsafe { here(at) }?;
        if out.is_null() {
            return Err(libc::EINVAL);
        }
        let addr = owner.alloc(len)?;
        // SAFETY: a valid place of the caller's.
        unsafe { out.write(addr as *mut c_void) };
        Ok(())
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or a live pool, and memory that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_free(at: *mut WeirPool, memory: *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owner = unsafe { here(at) }?;
        if memory.is_null() || owner.table.remove(memory as usize) {
            return Ok(());
        }
        #[cfg(debug_assertions)]
        {
            eprintln!("weir: weir_free of {memory:p}, where nothing of this pool begins: freed twice?");
            std::process::abort();
        }
        #[cfg(not(debug_assertions))]
        Err(libc::EINVAL)
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or valid pointers: a live pool, the place of a pointer to memory that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_resize(at: *mut WeirPool, memory: *mut *mut c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owner = unsafe { here(at) }?;
        if memory.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: a valid place of the caller's.
        let before = unsafe { memory.read() } as usize;
        let after = owner.table.resize(before, len)?;
        // SAFETY: as above.
        unsafe { memory.write(after as *mut c_void) };
        Ok(())
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or a live pool; what is discarded nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_advise(
    at: *mut WeirPool,
    memory: *mut c_void,
    len: usize,
    how: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owner = unsafe { here(at) }?;
        owner.table.with(memory as usize, len, |region, range| match advice(how) {
            Some(advice) => region.advise(range, advice).map_err(of_range),
            None if how == DISCARD => region.discard(range).map_err(of_range),
            None => Err(libc::EINVAL),
        })
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or valid pointers: a live pool, a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pin(
    at: *mut WeirPool,
    memory: *const c_void,
    len: usize,
    free: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owner = unsafe { here(at) }?;
        owner.table.pin(memory as usize, len).map_err(|e| {
            if let (false, Ok(PinError::Full { free: bytes, .. })) = (free.is_null(), &e) {
                // SAFETY: a valid place of the caller's.
                unsafe { free.write(*bytes) };
            }
            e.map_or_else(|errno| errno, |e| of_pin(&e))
        })
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_unpin(at: *mut WeirPool, memory: *const c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owner = unsafe { here(at) }?;
        if owner.table.unpin(memory as usize, len) { Ok(()) } else { Err(libc::EINVAL) }
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or valid pointers: a live pool, `size` bytes for the values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stats(at: *const WeirPool, out: *mut WeirStats, size: usize) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owner = unsafe { pool(at) }?;
        if out.is_null() {
            return Err(libc::EINVAL);
        }
        let s = owner.pool.stats();
        let stats = WeirStats {
            memory: s.memory,
            ram: s.ram,
            data: s.data,
            compressed: s.compressed,
            swapped: s.swapped,
            swap_free: s.swap_free,
            pinned: s.pinned,
            faults: s.faults,
            waited_ns: s.waited_ns,
            pieces: if owner.pool.is_forked() { 0 } else { owner.table.pieces() as u64 },
        };
        let known = size_of::<WeirStats>().min(size);
        // SAFETY: `size` bytes of the caller's; a structure of words has no gaps.
        unsafe {
            out.cast::<u8>().write_bytes(0, size);
            core::ptr::copy_nonoverlapping((&raw const stats).cast::<u8>(), out.cast::<u8>(), known);
        }
        Ok(())
    })
}

/// As `weir.h` says.
#[unsafe(no_mangle)]
pub extern "C" fn weir_strerror(error: c_int) -> *const c_char {
    text_of(error).as_ptr()
}

/// As `weir.h` says.
#[unsafe(no_mangle)]
pub extern "C" fn weir_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
