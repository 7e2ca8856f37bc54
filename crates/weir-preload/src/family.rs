//! Whose the malloc family is. It has one owner for the whole life of the process. A program's own allocator
//! (jemalloc, tcmalloc, mimalloc, ...) gets every call of the family untouched, and Weir manages what that
//! allocator asks the kernel for. Else the family is Weir's, with libc's allocator beneath.
//!
//! Each exported function jumps to where its slot points: that costs a program's own allocator next to
//! nothing. The slots begin at functions that find the owner out, since libraries allocate before any
//! constructor runs.

use crate::libc_next::{LIBC_CODE, find_code, is_reference, look_up, program};
use crate::malloc as weirs;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// Nobody has looked yet.
const UNKNOWN: u8 = 0;
/// The functions of `malloc.rs` serve the family.
const WEIRS: u8 = 1;
/// Those serve it that would without this library.
const NATIVE: u8 = 2;

static OWNER: AtomicU8 = AtomicU8::new(UNKNOWN);

/// A function of the family: its name and what is exported for it, its slot, and what serves it when the
/// family is Weir's.
struct Member {
    name: &'static CStr,
    exported: *const (),
    slot: &'static AtomicPtr<()>,
    weirs: *const (),
}
// SAFETY: addresses of functions, which never change.
unsafe impl Sync for Member {}

/// Exports functions that jump to their slots. An instruction before the jump passes the address of the
/// caller as one more argument, which other allocators do not look at.
macro_rules! family {
    ($($name:ident $text:literal $slot:ident $weirs:path, $caller:literal;)*) => {
        $(
            static $slot: AtomicPtr<()> = AtomicPtr::new(first::$name as *const () as *mut ());

            /// # Safety
            /// - as the C function of that name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                core::arch::naked_asm!($caller, "jmp qword ptr [rip + {slot}]", slot = sym $slot)
            }
        )*

        /// Where the slots point at first.
        mod first {
            $(
                /// Finds the owner out, then makes the call again with the same arguments.
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    core::arch::naked_asm!(
                        "push rdi", "push rsi", "push rdx", "push rcx", "sub rsp, 8",
                        "call {settle}",
                        "add rsp, 8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                        "jmp qword ptr [rip + {slot}]",
                        settle = sym super::settle,
                        slot = sym super::$slot,
                    )
                }
            )*
        }

        /// `malloc` first; what some libraries lack comes last.
        static MEMBERS: &[Member] = &[$(Member {
            name: $text,
            exported: $name as *const (),
            slot: &$slot,
            weirs: $weirs as *const (),
        }),*];
    };
}

family! {
    malloc c"malloc" MALLOC weirs::allocate, "mov rsi, [rsp]";
    free c"free" FREE weirs::release, "";
    calloc c"calloc" CALLOC weirs::allocate_zeroed, "mov rdx, [rsp]";
    realloc c"realloc" REALLOC weirs::reallocate, "mov rdx, [rsp]";
    reallocarray c"reallocarray" REALLOCARRAY weirs::reallocate_array, "mov rcx, [rsp]";
    memalign c"memalign" MEMALIGN weirs::allocate_aligned, "mov rdx, [rsp]";
    aligned_alloc c"aligned_alloc" ALIGNED_ALLOC weirs::allocate_aligned, "mov rdx, [rsp]";
    posix_memalign c"posix_memalign" POSIX_MEMALIGN weirs::allocate_posix, "mov rcx, [rsp]";
    valloc c"valloc" VALLOC weirs::allocate_page, "mov rsi, [rsp]";
    pvalloc c"pvalloc" PVALLOC weirs::allocate_pages, "mov rsi, [rsp]";
    malloc_usable_size c"malloc_usable_size" USABLE weirs::usable_size, "";
    free_sized c"free_sized" FREE_SIZED weirs::release, "";
    free_aligned_sized c"free_aligned_sized" FREE_ALIGNED_SIZED weirs::release, "";
}

/// Finds the owner out, unless that has been done.
extern "C" fn settle() {
    if OWNER.load(Ordering::Acquire) != UNKNOWN {
        return;
    }
    // By address, not by name: mimalloc has a `__libc_malloc` of its own.
    find_code();
    if LIBC_CODE.contains(native(&MEMBERS[0])) {
        for member in MEMBERS {
            member.slot.store(member.weirs.cast_mut(), Ordering::Release);
        }
        OWNER.store(WEIRS, Ordering::Release);
    } else {
        hand_over();
    }
}

/// Who would serve a function if this library were not there: the executable's own definition, which comes
/// before this library's, or the next one after it. 0 if nobody.
fn native(member: &Member) -> usize {
    match look_up(program(), member.name) {
        first if first == member.exported as usize || is_reference(first) => {
            look_up(libc::RTLD_NEXT, member.name)
        }
        first => first,
    }
}

/// The native definitions serve the family from now on: for a program with an allocator of its own, and while
/// Weir is switched off. Every live block must be theirs.
pub fn hand_over() {
    for member in MEMBERS {
        let serves = match native(member) {
            // C23's ways to free, which an older library does not know: their first argument is the block.
            0 => FREE.load(Ordering::Acquire),
            native => native as *mut (),
        };
        member.slot.store(serves, Ordering::Release);
    }
    OWNER.store(NATIVE, Ordering::Release);
}
