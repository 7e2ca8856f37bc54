//! The handlers of SIGBUS and SIGSEGV.

use super::context::Context;
use super::{deliver, stacks};
use crate::state::{self, Weir};
use weir::Load;
use weir::engine::inline::Served;
use weir_os::gate::area::Area;
use weir_os::mem::PAGE_BYTES;

/// `si_code` of an access to a page that is not there.
const BUS_ADRERR: i32 = 2;

/// `si_code` of an access to a guard, or where nothing is mapped.
const SEGV_MAPERR: i32 = 1;
/// `si_code` of an access that the mapping does not allow.
const SEGV_ACCERR: i32 = 2;

/// A fault on managed memory is resolved; any other SIGBUS is the program's.
pub extern "C" fn on_sigbus(number: i32, info: *mut libc::siginfo_t, raw: *mut libc::ucontext_t) {
    on_fault(number, info, raw, |e, code, _, _| code == BUS_ADRERR && !e.core.pager.is_guarded());
}

/// Without userfaultfd: an access that the program has allowed itself, to a page that is out or on its way,
/// is resolved; any other SIGSEGV is the program's.
pub extern "C" fn on_sigsegv(number: i32, info: *mut libc::siginfo_t, raw: *mut libc::ucontext_t) {
    on_fault(number, info, raw, |e, code, addr, context| {
        matches!(code, SEGV_MAPERR | SEGV_ACCERR) && e.core.pager.permits(addr, context.access())
    });
}

fn on_fault(
    number: i32,
    info: *mut libc::siginfo_t,
    raw: *mut libc::ucontext_t,
    is_weirs: impl Fn(&Weir, i32, usize, &Context<'_>) -> bool,
) {
    // SAFETY: the kernel passes a live siginfo (`si_addr` is set for faults) and context.
    let (code, addr, mut context) =
        unsafe { ((*info).si_code, (*info).si_addr() as usize, Context::new(raw)) };
    if code > 0
        && let Some(e) = state::owner(addr)
        && is_weirs(e, code, addr, &context)
    {
        let area = Area::current();
        // Code in managed memory is not read: it could be out itself.
        let asked = Some(context.ip())
            .filter(|ip| !e.contains(*ip))
            .and_then(|ip| e.ask(ip))
            .and_then(|asker| Some((asker, context.load_from(addr)?)));
        let load = asked.map(|(asker, plain)| Load {
            offset: (plain.address % PAGE_BYTES) as u16,
            bytes: plain.bytes,
            asker,
        });
        let served = e.fault_in_thread(addr, &area.left, load);
        if let (Served::Loaded(value), Some((_, plain))) = (served, asked) {
            context.finish(plain, value);
        }
        if served != Served::NotOurs {
            stacks::tend(e, &mut context);
            e.take_turns(&area.turn, &area.left);
            return;
        }
    }
    deliver::deliver(number, info, &mut context);
}
