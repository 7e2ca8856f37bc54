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

/// The start of the library that `addr` lies in; 0 when it lies in none.
fn library_of(addr: usize) -> usize {
    // SAFETY: zero is valid for the struct; `dladdr` reads the loader's lists only.
    unsafe {
        let mut found: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(addr as *const c_void, &raw mut found) == 0 { 0 } else { found.dli_fbase as usize }
    }
}

/// Whether `addr` is libc's own code, and not that of a library that wraps libc's functions as well.
pub fn is_libcs(addr: usize) -> bool {
    library_of(addr) == library_of(__libc_malloc as *const () as usize)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libcs_functions_are_told_from_those_of_others() {
        assert!(is_libcs(Next::new(c"getppid").get().unwrap()));
        assert!(is_libcs(Next::new(c"pwrite64").get().unwrap()));
        assert!(!is_libcs(is_libcs as *const () as usize));
        assert!(!is_libcs(8), "no library at all");
    }
}
