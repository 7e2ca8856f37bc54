//! System calls of the program that Weir answers itself, or has made again at a stub.

use super::context::Context;
use super::ours::ours;
use super::{masks, own_memory, stacks};
use crate::libc_next::{errno, set_errno};
use crate::map;
use crate::state::Weir;
use core::ffi::c_void;
use weir::engine::gate::{Passage, Trapped};
use weir_os::gate::area::is_owner;
use weir_os::signal::Mask;

/// Has the interrupted thread make its call at a stub, its buffers in place; what is too large for that is
/// made here.
pub fn make(e: &Weir, call: Trapped, context: &mut Context<'_>) {
    weir::stats::add(&e.core.stats.calls_trapped, 1);
    match e.pass(call) {
        Passage::Stub(at) => {
            context.set_result(call.nr as isize);
            context.set_ip(at);
        }
        Passage::Pieces => {
            let mask = *context.mask();
            context.set_result(e.make_in_pieces(call, mask));
        }
    }
}

/// Calls that Weir answers itself: about memory, and about the signals that it keeps.
pub fn emulate(e: &Weir, nr: i64, a: [usize; 6], context: &mut Context<'_>) -> Option<isize> {
    match nr {
        libc::SYS_rt_sigprocmask => change_mask(Some(e), a, context),
        libc::SYS_sigaltstack => change_stack(Some(e), a, context),
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => own_memory::between_processes(e, nr, &a),
        libc::SYS_vmsplice => crate::splice::trapped(e, a, *context.mask()),
        libc::SYS_prctl => match crate::kept::before(nr, [a[0], a[1], a[2], a[3], a[4]]) {
            Ok(()) => None,
            Err(e) => Some(-(e.0 as isize)),
        },
        libc::SYS_mmap
        | libc::SYS_munmap
        | libc::SYS_mprotect
        | libc::SYS_madvise
        | libc::SYS_mremap
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock => {
            let before = errno();
            let result = memory(nr, a);
            let failed = -(errno() as isize);
            set_errno(before);
            Some(if result == -1 { failed } else { result })
        }
        _ => None,
    }
}

/// The hooks of the mmap family, for calls that came past them.
fn memory(nr: i64, a: [usize; 6]) -> isize {
    let (at, prot) = (a[0] as *mut c_void, a[2] as i32);
    // SAFETY: the program's own call. The handler is in nobody's way: the interrupted thread was in
    // a system call of its own, not in the engine.
    unsafe {
        match nr {
            libc::SYS_mmap => map::serve(at, a[1], prot, a[3] as i32, a[4] as i32, a[5] as i64) as isize,
            libc::SYS_munmap => map::munmap(at, a[1]) as isize,
            libc::SYS_mprotect => map::mprotect(at, a[1], prot) as isize,
            libc::SYS_madvise => map::madvise(at, a[1], prot) as isize,
            libc::SYS_mremap => map::mremap(at, a[1], a[2], a[3] as i32, a[4] as *mut c_void) as isize,
            libc::SYS_mlock => map::mlock(at, a[1]) as isize,
            libc::SYS_mlock2 => map::mlock2(at, a[1], a[2] as u32) as isize,
            _ => map::munlock(at, a[1]) as isize,
        }
    }
}

/// Calls `f` while what lies at these places (as many bytes each) stays in memory, if it is managed.
pub fn with_pinned<R>(e: Option<&Weir>, places: [usize; 2], bytes: usize, f: impl FnOnce() -> R) -> R {
    let managed = e.filter(|e| places.iter().any(|at| e.contains(*at)));
    let pins = managed.map_or(0, |e| e.pin_ranges(&places.map(|at| (at, bytes))));
    let r = f();
    managed.into_iter().for_each(|e| e.unpin_range(pins));
    r
}

/// `sigaltstack` by a call past libc, with its structures in managed memory.
pub fn change_stack(
    e: Option<&Weir>,
    [new, old, ..]: [usize; 6],
    context: &mut Context<'_>,
) -> Option<isize> {
    const BYTES: usize = size_of::<libc::stack_t>();
    let mut bytes = [0u8; BYTES];
    let result = with_pinned(e, [new, old], BYTES, || {
        let wanted = match new {
            0 => Ok(None),
            at => weir_os::gate::read_own(at, &mut bytes).map(|()| {
                // SAFETY: plain data of that size.
                Some(unsafe { bytes.as_ptr().cast::<libc::stack_t>().read_unaligned() })
            }),
        };
        wanted.and_then(|w| stacks::change_in(context, w)).and_then(|before| {
            // SAFETY: plain data of that size.
            let before = unsafe { core::slice::from_raw_parts((&raw const before).cast::<u8>(), BYTES) };
            if old == 0 { Ok(()) } else { weir_os::gate::write_own(old, before) }
        })
    });
    Some(result.map_or_else(|e| -(e.0 as isize), |()| 0))
}

/// A change of the mask by libc's inner functions (`siglongjmp`, `swapcontext`), with the set in
/// managed memory: it takes effect when the handler returns.
pub fn change_mask(e: Option<&Weir>, a: [usize; 6], context: &mut Context<'_>) -> Option<isize> {
    let [how, set, old, size, ..] = a;
    if size != size_of::<Mask>() {
        return None;
    }
    let mut wanted: Mask = 0;
    let mut bytes = [0u8; size_of::<Mask>()];
    let result = with_pinned(e, [set, old], size, || {
        let before = *context.mask() & !ours() | masks::blocked_at(context.sp());
        if set != 0 {
            weir_os::gate::read_own(set, &mut bytes).ok()?;
            wanted = Mask::from_ne_bytes(bytes);
            *context.mask() = masks::combine(how as i32, *context.mask(), wanted)? & !ours();
        }
        if old != 0 {
            weir_os::gate::write_own(old, &before.to_ne_bytes()).ok()?;
        }
        Some(0)
    });
    // A child of `vfork` shares its parent's area: what its parent believes is not its to change.
    if result.is_some() && set != 0 && is_owner() {
        masks::believe_change(how as i32, wanted);
    }
    result
}
