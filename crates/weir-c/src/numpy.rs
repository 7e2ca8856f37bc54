//! Memory of a pool for numpy's own arrays: a handler as NEP 49 has it.
//!
//! An array keeps the handler that it was made by, and hands its memory to it whenever it dies: after the
//! pool has ended, and in children of a fork. So a handler tells by the address whose memory it is given, and
//! does not keep the pool.

use crate::answer::answer;
use crate::{Owned, WeirPool, pool};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute_copy;
use core::ops::Range;
use core::ptr::null_mut;
use std::sync::{Arc, Weak};

/// Where memory of pools begins: at blocks of this size. No C library's malloc gives such addresses for
/// small things, and few do for large ones.
const ALIGN: usize = 256 << 10;

/// `PyDataMem_Handler` of numpy's header, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    ctx: *const Numpy,
    malloc: unsafe extern "C" fn(*const Numpy, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*const Numpy, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*const Numpy, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*const Numpy, *mut c_void, usize),
}

/// A handler, and what its functions are given.
#[repr(C)]
struct Numpy {
    /// First: numpy has its address for that of the whole.
    handler: Handler,
    pool: Weak<Owned>,
    space: Range<usize>,
    /// Larger arrays are the pool's.
    threshold: usize,
}

/// Who gives memory.
enum Giver {
    Pool(Arc<Owned>),
    CLibrary,
    /// The pool was closed: who asks for its memory shall hear of it.
    Nobody,
}

impl Numpy {
    /// Who gives so many bytes. In a child of a fork that is always the C library.
    fn giver(&self, size: usize) -> Giver {
        if size <= self.threshold {
            return Giver::CLibrary;
        }
        match self.pool.upgrade() {
            Some(owned) if owned.pool.is_forked() => Giver::CLibrary,
            Some(owned) => Giver::Pool(owned),
            None => Giver::Nobody,
        }
    }

    /// The pool that memory is from. None: it is the C library's.
    fn owner(&self, addr: usize) -> Option<Arc<Owned>> {
        let looks_so = self.space.contains(&addr) && addr.is_multiple_of(ALIGN);
        looks_so.then(|| self.pool.upgrade()).flatten()
    }

    fn alloc(&self, size: usize, is_zeroed: bool) -> *mut c_void {
        match self.giver(size) {
            Giver::Pool(owned) => from_pool(&owned, size),
            Giver::Nobody => null_mut(),
            // SAFETY: no memory is named.
            Giver::CLibrary if is_zeroed => unsafe { libc::calloc(1, size.max(1)) },
            // SAFETY: as above.
            Giver::CLibrary => unsafe { libc::malloc(size.max(1)) },
        }
    }

    /// # Safety
    /// - `at` is memory of this handler's that nobody else uses.
    unsafe fn realloc(&self, at: *mut c_void, size: usize) -> *mut c_void {
        let Some(owned) = self.owner(at as usize) else {
            // SAFETY: passed on; not the pool's, so the C library's.
            return unsafe { self.realloc_c(at, size) };
        };
        if owned.pool.is_forked() {
            return null_mut(); // its bytes are not here
        }
        if size > self.threshold {
            return owned.table.resize(at as usize, size).map_or(null_mut(), |to| to as *mut c_void);
        }
        // SAFETY: new memory of `size` bytes; the old has more than `threshold`.
        unsafe {
            let to = libc::malloc(size.max(1));
            if !to.is_null() {
                core::ptr::copy_nonoverlapping(at.cast::<u8>(), to.cast(), size);
                owned.table.remove(at as usize);
            }
            to
        }
    }

    /// # Safety
    /// - `at` is memory of the C library's that nobody else uses.
    unsafe fn realloc_c(&self, at: *mut c_void, size: usize) -> *mut c_void {
        match self.giver(size) {
            // SAFETY: passed on.
            Giver::CLibrary => unsafe { libc::realloc(at, size.max(1)) },
            Giver::Nobody => null_mut(),
            Giver::Pool(owned) => {
                let to = from_pool(&owned, size);
                if !to.is_null() {
                    // SAFETY: the old memory has as much as the C library says, the new one `size`.
                    unsafe {
                        let had = libc::malloc_usable_size(at).min(size);
                        core::ptr::copy_nonoverlapping(at.cast::<u8>(), to.cast(), had);
                        libc::free(at);
                    }
                }
                to
            }
        }
    }

    /// # Safety
    /// - `at` is memory of this handler's that nobody uses any more.
    unsafe fn free(&self, at: *mut c_void) {
        match self.owner(at as usize) {
            // SAFETY: not the pool's, so the C library's.
            None => unsafe { libc::free(at) },
            Some(owned) if owned.pool.is_forked() => {} // it stays with the parent
            Some(owned) => {
                let known = owned.table.remove(at as usize);
                debug_assert!(known, "numpy gave {at:p} back twice");
            }
        }
    }
}

fn from_pool(owned: &Owned, size: usize) -> *mut c_void {
    owned.alloc(size).map_or(null_mut(), |addr| addr as *mut c_void)
}

/// # Safety
/// - `ctx` is that of a live handler. So in the functions below, and memory is the handler's.
unsafe extern "C" fn malloc(ctx: *const Numpy, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { &*ctx }.alloc(size, false)
}

unsafe extern "C" fn calloc(ctx: *const Numpy, n: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    n.checked_mul(size).map_or(null_mut(), |size| unsafe { &*ctx }.alloc(size, true))
}

unsafe extern "C" fn realloc(ctx: *const Numpy, at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    let numpy = unsafe { &*ctx };
    // SAFETY: passed on.
    if at.is_null() { numpy.alloc(size, false) } else { unsafe { numpy.realloc(at, size) } }
}

/// The size is what numpy thinks it is, which is not always what it asked for.
unsafe extern "C" fn free(ctx: *const Numpy, at: *mut c_void, _size: usize) {
    // SAFETY: the caller's.
    unsafe { (*ctx).free(at) };
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL or valid pointers: a live pool, a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_numpy_handler(
    at: *mut WeirPool,
    threshold: usize,
    out: *mut *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's pool.
        let owned = unsafe { pool(at) }?;
        if out.is_null() {
            return Err(libc::EINVAL);
        }
        let mut name = [0; 127];
        name.iter_mut().zip(c"weir".to_bytes()).for_each(|(to, from)| *to = *from as c_char);
        let handler = Handler { name, version: 1, ctx: null_mut(), malloc, calloc, realloc, free };
        let (pool, space) = (Arc::downgrade(owned), owned.pool.addresses());
        let made = Box::into_raw(Box::new(Numpy { handler, pool, space, threshold }));
        // SAFETY: made just now; a valid place of the caller's.
        unsafe {
            (*made).handler.ctx = made;
            out.write(made.cast());
        }
        Ok(())
    })
}

/// As `weir.h` says.
///
/// # Safety
/// - NULL, or a handler that no array has any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_numpy_handler_free(handler: *mut c_void) {
    if !handler.is_null() {
        // SAFETY: from the box in `weir_numpy_handler`, whose first field it is; the caller gives it up.
        drop(unsafe { Box::from_raw(handler.cast::<Numpy>()) });
    }
}

/// A function of the Python that runs here. Whoever has its `ctypes.pythonapi` has it.
///
/// # Safety
/// - `F` is the function's type.
unsafe fn of_python<F>(name: &CStr) -> Option<F> {
    // SAFETY: a text with a NUL at its end.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the address of a function of this type.
    (!at.is_null()).then(|| unsafe { transmute_copy(&at) })
}

/// As `weir.h` says.
///
/// # Safety
/// - called by Python, which holds its lock, for a capsule with a handler and a reference as its context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_numpy_capsule_free(capsule: *mut c_void) {
    type Pointer = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    type Context = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    type Release = unsafe extern "C" fn(*mut c_void);
    // SAFETY: these are their types.
    let functions = unsafe {
        (
            of_python::<Pointer>(c"PyCapsule_GetPointer"),
            of_python::<Context>(c"PyCapsule_GetContext"),
            of_python::<Release>(c"Py_DecRef"),
        )
    };
    let (Some(pointer), Some(context), Some(release)) = functions else { return };
    // SAFETY: a capsule of this name; the handler goes with it, and then what the handler kept.
    unsafe {
        let (handler, kept) = (pointer(capsule, c"mem_handler".as_ptr()), context(capsule));
        weir_numpy_handler_free(handler);
        release(kept);
    }
}
