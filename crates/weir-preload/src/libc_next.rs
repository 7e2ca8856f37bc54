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
    pub fn __sbrk(increment: isize) -> *mut c_void;
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
            a = look_up(libc::RTLD_NEXT, self.name);
            self.addr.store(a, Ordering::Relaxed);
        }
        (a != 0).then_some(a)
    }
}

/// Where the dynamic linker keeps its list of libraries, for debuggers.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *mut c_void,
}

/// For [`look_up`]: the first definition as the program sees it. (`RTLD_DEFAULT` means as this library sees
/// it, which is bound to itself.)
pub fn program() -> *mut c_void {
    unsafe extern "C" {
        static _r_debug: Debug;
    }
    // SAFETY: the linker's own, filled in before it calls anybody; the first of its libraries is the
    // executable, whose entry is what `dlopen(NULL)` gives.
    unsafe { (&raw const _r_debug.first).read() }
}

/// The address of a symbol, 0 if there is none.
pub fn look_up(from: *mut c_void, name: &core::ffi::CStr) -> usize {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(from, name.as_ptr().cast::<c_char>()) } as usize;
    if found == 0 {
        // SAFETY: forgets the error, which is not the program's.
        unsafe { libc::dlerror() };
    }
    found
}

/// Where the code of libc and of the dynamic linker lies.
#[derive(Debug)]
pub struct Code {
    starts: [AtomicUsize; Code::RANGES],
    lens: [AtomicUsize; Code::RANGES],
}

impl Code {
    /// libc and the linker; before glibc 2.34 also libpthread, libdl, librt. A few to spare.
    const RANGES: usize = 8;

    /// Whether an address lies in it.
    #[inline]
    pub fn contains(&self, addr: usize) -> bool {
        for (start, len) in self.starts.iter().zip(&self.lens) {
            match len.load(Ordering::Relaxed) {
                0 => return false,
                len if addr.wrapping_sub(start.load(Ordering::Relaxed)) < len => return true,
                _ => {}
            }
        }
        false
    }

    fn add(&self, start: usize, len: usize) {
        if let Some(i) = self.lens.iter().position(|len| len.load(Ordering::Relaxed) == 0) {
            self.starts[i].store(start, Ordering::Relaxed);
            self.lens[i].store(len, Ordering::Relaxed);
        }
    }
}

/// The code of libc and of the dynamic linker, once [`find_code`] has run; nothing before.
pub static LIBC_CODE: Code = Code {
    starts: [const { AtomicUsize::new(0) }; Code::RANGES],
    lens: [const { AtomicUsize::new(0) }; Code::RANGES],
};

/// Fills in [`LIBC_CODE`]. (`dladdr` would search all of libc's symbols for each address, 20 us a time.)
pub fn find_code() {
    const NAMES: [&[u8]; 7] =
        [b"libc.so.", b"libc-2", b"ld-linux", b"ld-2", b"libpthread", b"libdl", b"librt"];
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, _: *mut c_void) -> c_int {
        // SAFETY: the loader passes a live description with a NUL-terminated name and as many headers as it
        // says.
        let (info, name, headers) = unsafe {
            let info = &*info;
            let name = core::ffi::CStr::from_ptr(info.dlpi_name).to_bytes();
            (info, name, core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
        };
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
        if NAMES.iter().any(|n| file.starts_with(n)) {
            let code = headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
            code.for_each(|h| LIBC_CODE.add((info.dlpi_addr + h.p_vaddr) as usize, h.p_memsz as usize));
        }
        0
    }
    if LIBC_CODE.lens[0].load(Ordering::Relaxed) == 0 {
        // SAFETY: calls `look` for each library.
        unsafe { libc::dl_iterate_phdr(Some(look), core::ptr::null_mut()) };
    }
}

/// Whether the executable only refers to the function at an address of its own: in one at a fixed address the
/// place that jumps on to the library's function counts as the function's address for everybody.
pub fn is_reference(addr: usize) -> bool {
    const SYMBOL: c_int = 1;
    unsafe extern "C" {
        fn dladdr1(
            addr: usize,
            info: *mut libc::Dl_info,
            symbol: *mut *const libc::Elf64_Sym,
            what: c_int,
        ) -> c_int;
    }
    let mut symbol: *const libc::Elf64_Sym = core::ptr::null();
    // SAFETY: plain data, valid when zero; live cells, of which the linker fills one with a symbol of a
    // library that stays.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        dladdr1(addr, &raw mut info, &raw mut symbol, SYMBOL) != 0
            && !symbol.is_null()
            && (*symbol).st_shndx == 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libcs_functions_are_told_from_those_of_others() {
        find_code();
        assert!(LIBC_CODE.contains(Next::new(c"getppid").get().unwrap()));
        assert!(LIBC_CODE.contains(Next::new(c"pwrite64").get().unwrap()));
        assert!(!LIBC_CODE.contains(find_code as *const () as usize));
        assert!(!LIBC_CODE.contains(8), "no library at all");
    }
}
