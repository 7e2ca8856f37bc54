//! libc's own functions behind our hooks. The allocator's are exported under names of their own, so
//! the first `malloc` of a process needs no `dlsym`.

use core::ffi::{c_char, c_int, c_void};
use core::ops::Range;
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

/// Where libc's own code lies, to tell it from that of libraries that wrap libc's functions as well; empty if it cannot be found.
/// (`dladdr` would search all of libc's symbols for each address, 20 us a time.)
pub fn code_of_libc() -> Range<usize> {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader passes a live description, and on what `code_of_libc` gave it.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Range<usize>>()) };
        // SAFETY: as many headers as the description says.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let code = headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
        let ranges = code.map(|h| {
            let start = (info.dlpi_addr + h.p_vaddr) as usize;
            start..start + h.p_memsz as usize
        });
        let mut of_malloc = ranges.filter(|range| range.contains(&(__libc_malloc as *const () as usize)));
        of_malloc.next().map_or(0, |range| {
            *found = range;
            1 // no further library
        })
    }
    let mut found = 0..0;
    // SAFETY: calls `look` with the range for each library.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
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
        let libcs = code_of_libc();
        assert!(libcs.contains(&Next::new(c"getppid").get().unwrap()));
        assert!(libcs.contains(&Next::new(c"pwrite64").get().unwrap()));
        assert!(!libcs.contains(&(code_of_libc as *const () as usize)));
        assert!(!libcs.contains(&8), "no library at all");
    }
}
