//! libc's own functions behind our hooks. The allocator's are exported under names of their own, so
//! the first `malloc` of a process needs no `dlsym`.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

unsafe extern "C" {
    pub fn __libc_malloc(size: usize) -> *mut c_void;
    pub fn __libc_calloc(n: usize, size: usize) -> *mut c_void;
    pub fn __libc_realloc(p: *mut c_void, size: usize) -> *mut c_void;
    pub fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    pub fn __libc_free(p: *mut c_void);
    pub fn __close(fd: c_int) -> c_int;
    pub fn _IO_list_lock();
    pub fn _IO_list_unlock();
    pub static _IO_list_all: *mut c_void;
}

/// A symbol of the next library, looked up once.
pub struct Next {
    name: &'static core::ffi::CStr,
    addr: AtomicUsize,
}

impl Next {
    pub const fn new(name: &'static core::ffi::CStr) -> Next {
        Next { name, addr: AtomicUsize::new(0) }
    }

    /// Its address, or `None` when no later library has it.
    pub fn get(&self) -> Option<usize> {
        let mut a = self.addr.load(Ordering::Relaxed);
        if a == 0 {
            // SAFETY: a NUL-terminated name.
            a = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast::<c_char>()) } as usize;
            self.addr.store(a, Ordering::Relaxed);
        }
        (a != 0).then_some(a)
    }
}

/// Sets the caller's errno.
pub fn set_errno(e: i32) {
    // SAFETY: libc's per-thread cell.
    unsafe { *libc::__errno_location() = e };
}

/// The caller's errno.
pub fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
