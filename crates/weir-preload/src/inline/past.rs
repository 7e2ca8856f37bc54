//! Programs that make system calls by instructions of their own: Go's runtime, which sets masks, alternate
//! stacks and handlers so, and starts its children. Their calls are announced ([`dispatch`]): those that
//! could take Weir's signals away are answered here, all others go on at a stub.

use super::context::Context;
use super::{calls, hooks};
use crate::fork;
use crate::libc_next::{errno, set_errno};
use crate::state::{self, Weir};
use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::Ordering;
use weir::engine::gate::Trapped;
use weir::engine::threads::say;
use weir_os::gate::area::{self, Area};
use weir_os::gate::dispatch;
use weir_os::gate::table::{is_memory_call, pointer_args, table_args};
use weir_os::signal::{self, Action};
use weir_os::stack::Stack;
use weir_os::sys::Errno;

/// Where programs at fixed addresses lie, and nothing of Weir's or libc's.
const LOW_BYTES: usize = 1 << 32;

/// Whether the program is one whose calls must be seen. In thread mode the kernel's faults are served, but
/// not told of is what the program gives up by `madvise`.
pub fn is_wanted() -> bool {
    weir_os::elf::runs_go()
}

/// Has the program's own calls announced.
pub fn begin() -> Result<(), Errno> {
    code_of_program().ok_or(Errno::ENOENT).and_then(|code| dispatch::begin(code, LOW_BYTES))
}

/// Where the code of the executable lies.
fn code_of_program() -> Option<Range<usize>> {
    let value = |kind| {
        // SAFETY: asks only.
        unsafe { libc::getauxval(kind) as usize }
    };
    let (at, count) = (value(libc::AT_PHDR) as *const libc::Elf64_Phdr, value(libc::AT_PHNUM));
    if at.is_null() {
        return None;
    }
    // SAFETY: the kernel's word for where the program's headers are.
    let headers = unsafe { core::slice::from_raw_parts(at, count) };
    let own = headers.iter().find(|h| h.p_type == libc::PT_PHDR)?;
    let base = (at as usize).wrapping_sub(own.p_vaddr as usize);
    let code = headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
    let ranges = code
        .map(|h| base.wrapping_add(h.p_vaddr as usize)..base.wrapping_add((h.p_vaddr + h.p_memsz) as usize));
    ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
}

/// A call of the program's own. The interrupted thread is in its own code, so nobody's lock is in the way.
pub fn on_call(nr: usize, context: &mut Context<'_>) {
    let args = context.args();
    let engine = state::engine().filter(|e| e.stubs().is_some());
    if let Some(e) = engine {
        let_go(e);
    }
    let memory = state::owner(args[0]).filter(|_| is_memory_call(nr));
    let result = match memory {
        Some(e) => calls::emulate(e, nr as i64, args, context),
        None => answer(engine, nr as i64, args, context),
    };
    match result {
        Some(result) => context.set_result(result),
        None => go_on(engine, nr, args, context),
    }
    if let Some(e) = engine {
        super::stacks::tend(e, context);
    }
}

/// What the thread's last child, or exec call, has needed.
fn let_go(e: &Weir) {
    let pins = &Area::current().past_pins;
    if pins.iter().all(|p| p.load(Ordering::Relaxed) == 0) || !area::is_owner() {
        return;
    }
    pins.iter().for_each(|p| e.unpin_range(p.swap(0, Ordering::Relaxed) as u32));
}

/// Pins for a child or an exec call, in one of the thread's two places.
fn keep(e: &Weir, place: usize, chain: u32) {
    e.unpin_range(Area::current().past_pins[place].swap(u64::from(chain), Ordering::Relaxed) as u32);
}

/// Calls that Weir answers itself.
fn answer(engine: Option<&Weir>, nr: i64, a: [usize; 6], context: &mut Context<'_>) -> Option<isize> {
    match nr {
        libc::SYS_rt_sigprocmask => calls::change_mask(engine, a, context),
        libc::SYS_sigaltstack => calls::change_stack(engine, a, context),
        libc::SYS_rt_sigaction => change_action(engine, a),
        libc::SYS_exit_group if area::is_owner() => {
            report();
            None
        }
        libc::SYS_fork => fork_like(engine, nr, a, 0, context),
        libc::SYS_clone => fork_like(engine, nr, a, a[0], context),
        libc::SYS_clone3 => fork_like(engine, nr, a, flags_of(engine, a[0])?, context),
        _ => None,
    }
}

/// The process ends without libc: summary and statistics are due now. On a stack of Weir's own, since the
/// interrupted one may be a small alternate stack.
fn report() {
    if let Ok(mut own) = Stack::new(REPORT_STACK_BYTES) {
        own.run(&mut || crate::exit::at_exit());
    }
}

/// Enough for text to be put together and written.
const REPORT_STACK_BYTES: usize = 256 << 10;

/// All other calls: made again at a stub, with their buffers in place.
fn go_on(engine: Option<&Weir>, nr: usize, args: [usize; 6], context: &mut Context<'_>) {
    let back = context.ip();
    let shares = match nr as i64 {
        libc::SYS_vfork => true,
        libc::SYS_clone => args[0] & libc::CLONE_VM as usize != 0,
        libc::SYS_clone3 => flags_of(engine, args[0]).is_some_and(|f| f & libc::CLONE_VM as usize != 0),
        _ => false,
    };
    context.set_result(nr as isize);
    if shares {
        context.set_ip(dispatch::vfork_stub(back));
        return;
    }
    if let Some(e) = engine {
        if let libc::SYS_execve | libc::SYS_execveat = nr as i64 {
            let first = usize::from(nr as i64 == libc::SYS_execveat);
            keep(e, 1, e.pin_exec(args[first], [args[first + 1], args[first + 2]]));
        } else if nr as i64 == libc::SYS_sched_setaffinity {
            keep(e, 1, e.pin_range(args[2], args[1])); // never trapped: see the table
        } else if names_managed(e, nr, &args) {
            return through_gate(e, nr, args, context);
        }
    }
    context.set_ip(dispatch::stub(back));
}

fn names_managed(e: &Weir, nr: usize, args: &[usize; 6]) -> bool {
    let mask = pointer_args(nr);
    table_args(nr) != 0 || (0..6).any(|i| mask >> i & 1 == 1 && e.contains(args[i]))
}

fn through_gate(e: &Weir, nr: usize, args: [usize; 6], context: &mut Context<'_>) {
    let call = Trapped { nr, args, back: context.ip(), stack: context.sp(), frame: None };
    calls::make(e, call, context);
}

/// `rt_sigaction`, with the kernel's structure.
fn change_action(engine: Option<&Weir>, [number, new, old, size, ..]: [usize; 6]) -> Option<isize> {
    const BYTES: usize = size_of::<Action>();
    if size != size_of::<signal::Mask>() {
        return None;
    }
    let mut bytes = [0u8; BYTES];
    let result = calls::with_pinned(engine, [new, old], BYTES, || {
        let wanted = match new {
            0 => None,
            at => {
                weir_os::gate::read_own(at, &mut bytes)?;
                // SAFETY: plain data of that size.
                Some(unsafe { bytes.as_ptr().cast::<Action>().read_unaligned() })
            }
        };
        let before = hooks::change_past(number as c_int, wanted)?;
        // SAFETY: plain data of that size.
        let before = unsafe { core::slice::from_raw_parts((&raw const before).cast::<u8>(), BYTES) };
        if old == 0 { Ok(()) } else { weir_os::gate::write_own(old, before) }
    });
    Some(result.map_or_else(|e| -(e.0 as isize), |()| 0))
}

/// The flags of `clone3`, from its structure.
fn flags_of(engine: Option<&Weir>, at: usize) -> Option<usize> {
    let mut flags = [0u8; size_of::<u64>()];
    let read = calls::with_pinned(engine, [at, 0], flags.len(), || weir_os::gate::read_own(at, &mut flags));
    read.ok().map(|()| u64::from_ne_bytes(flags) as usize)
}

/// New processes and threads. One that shares memory and has its parent wait (`vfork`, and what starts
/// programs) goes on at a stub; one with a copy of the memory is forked here; a thread that libc does not
/// know has no area and would be lost.
fn fork_like(
    engine: Option<&Weir>,
    nr: i64,
    a: [usize; 6],
    flags: usize,
    context: &mut Context<'_>,
) -> Option<isize> {
    let has = |flag: c_int| flags & flag as usize != 0;
    if has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) {
        say(format_args!(
            "a thread started past libc cannot be given its memory: run the program with --faults thread"
        ));
        weir_os::sys::exit_group(125);
    }
    if has(libc::CLONE_VM) {
        if !area::is_owner() {
            return Some(-(Errno::EAGAIN.0 as isize)); // a child of such a child: there is one place for each thread
        }
        if let Some(e) = engine {
            keep(e, 0, pin_named(e, nr, &a));
        }
        return None;
    }
    let before = errno();
    let pins = engine.map_or(0, |e| pin_named(e, nr, &a));
    let result = fork::raw(nr, a, flags);
    if let Some(e) = engine {
        e.unpin_range(pins);
    }
    set_errno(before);
    if result == 0 && nr == libc::SYS_clone && a[1] != 0 {
        context.set_sp(a[1]);
    }
    Some(result)
}

/// Pins what a call that makes a process reads and writes.
fn pin_named(e: &Weir, nr: i64, a: &[usize; 6]) -> u32 {
    const WORD: usize = size_of::<u64>();
    match nr {
        libc::SYS_clone => e.pin_ranges(&[(a[2], WORD), (a[3], WORD)]),
        libc::SYS_clone3 => {
            /// `pidfd`, `child_tid` and `parent_tid` behind the flags.
            const NAMED: usize = 3;
            let mut words = [0u8; (1 + NAMED) * WORD];
            let read = calls::with_pinned(Some(e), [a[0], 0], words.len(), || {
                weir_os::gate::read_own(a[0], &mut words)
            });
            let word = |i: usize| words[i * WORD..][..WORD].try_into().map_or(0, usize::from_ne_bytes);
            let named = if read.is_ok() { [word(1), word(2), word(3)] } else { [0; NAMED] };
            e.pin_ranges(&[(a[0], a[1]), (named[0], WORD), (named[1], WORD), (named[2], WORD)])
        }
        _ => 0,
    }
}
