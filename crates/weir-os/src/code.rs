//! Whether the bytes of code may be read as data, as a handler that decodes an instruction does.
//!
//! What can be run can be read, but for one case: processors with protection keys let the kernel map code
//! that can only be run (`PROT_EXEC` alone, pkeys(7)). There a page of code is asked about before it is read
//! for the first time, by a system call that reads eight bytes of it and does nothing
//! ([`gate::can_be_read`]).

use crate::gate;
use crate::mem::PAGE_BYTES;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// The longest instruction, in bytes.
const INSTRUCTION_BYTES: usize = 15;
const SEEN: usize = 64;
/// Pages that were found readable, plus one.
static READABLE: [AtomicUsize; SEEN] = [const { AtomicUsize::new(0) }; SEEN];
/// Every page is asked about every time.
static MISTRUST: AtomicBool = AtomicBool::new(false);

/// The program has made code that can only be run: what was readable once may not be any more.
pub fn mistrust() {
    MISTRUST.store(true, Ordering::Relaxed);
}

/// Whether the instruction at `ip`, which the processor has just fetched, can be read.
pub fn can_be_read(ip: usize) -> bool {
    !has_keys() || {
        let last = ip.saturating_add(INSTRUCTION_BYTES - 1);
        is_readable(ip) && (last / PAGE_BYTES == ip / PAGE_BYTES || is_readable(last))
    }
}

fn is_readable(at: usize) -> bool {
    let page = at / PAGE_BYTES;
    let seen = &READABLE[page % SEEN];
    if seen.load(Ordering::Relaxed) == page + 1 && !MISTRUST.load(Ordering::Relaxed) {
        return true;
    }
    let readable = gate::can_be_read(page * PAGE_BYTES);
    if readable {
        seen.store(page + 1, Ordering::Relaxed);
    }
    readable
}

/// Whether the kernel uses the processor's protection keys.
fn has_keys() -> bool {
    const OSPKE: u32 = 1 << 4;
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KEYS: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KEYS.load(Ordering::Relaxed) {
        UNKNOWN => {
            let most = core::arch::x86_64::__cpuid(0).eax;
            let yes = most >= 7 && core::arch::x86_64::__cpuid_count(7, 0).ecx & OSPKE != 0;
            KEYS.store(if yes { YES } else { NO }, Ordering::Relaxed);
            yes
        }
        known => known == YES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_readable_and_what_cannot_be_read_is_found_out_without_a_fault() {
        let code = is_readable as *const () as usize;
        assert!(can_be_read(code) && is_readable(code) && is_readable(code));
        // SAFETY: new memory, given back below.
        let none = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        } as usize;
        assert!(!is_readable(none + 100));
        let protect = |prot| {
            // SAFETY: ours.
            assert_eq!(unsafe { libc::mprotect(none as *mut libc::c_void, PAGE_BYTES, prot) }, 0);
        };
        protect(libc::PROT_READ | libc::PROT_WRITE);
        assert!(is_readable(none + 100));
        protect(libc::PROT_NONE);
        assert!(is_readable(none + 100), "it was, and nobody said that it may change");
        mistrust();
        assert!(!is_readable(none + 100));
        MISTRUST.store(false, Ordering::Relaxed);
        // SAFETY: ours, and nobody uses it any more.
        unsafe { libc::munmap(none as *mut libc::c_void, PAGE_BYTES) };
    }

    #[test]
    fn the_mask_is_not_changed_by_asking() {
        let before = crate::signal::change_mask(libc::SIG_BLOCK, None).unwrap();
        let ones = [u64::MAX; 512];
        gate::can_be_read(ones.as_ptr() as usize / PAGE_BYTES * PAGE_BYTES);
        assert_eq!(crate::signal::change_mask(libc::SIG_BLOCK, None).unwrap(), before);
    }
}
