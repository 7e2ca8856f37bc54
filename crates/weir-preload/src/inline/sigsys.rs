//! The SIGSYS handler: a system call with a managed pointer, or one past libc.

use super::context::Context;
use super::deliver::{self, SYS_SECCOMP, SYS_USER_DISPATCH};
use super::{calls, past, stacks};
use crate::state;
use weir::engine::gate::Trapped;
use weir_os::gate::dispatch;
use weir_os::gate::filter::TRAP_MARK;
use weir_os::gate::table::pointer_args;

/// The call's number in a siginfo of that kind.
const NUMBER_OFFSET: usize = 24;
/// The address behind its instruction.
const ADDRESS_OFFSET: usize = 16;

/// A call that Weir's filter trapped is made again when its buffers are there; any other SIGSYS is
/// the program's.
pub extern "C" fn on_sigsys(number: i32, info: *mut libc::siginfo_t, raw: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes a live siginfo and context.
    let (code, nr, mut context) = unsafe {
        let nr = info.cast::<u8>().add(NUMBER_OFFSET).cast::<i32>().read();
        ((*info).si_code, nr as u32 as usize, Context::new(raw))
    };
    // SAFETY: as above.
    let mark = unsafe { (*info).si_errno };
    if code == SYS_USER_DISPATCH && dispatch::covers(context.ip()) {
        return past::on_call(nr, &mut context);
    }
    if code == SYS_SECCOMP && mark == i32::from(TRAP_MARK) && weir_os::gate::is_trial(context.ip()) {
        return;
    }
    let stubs = state::engine().and_then(|e| Some((e, e.stubs()?)));
    let Some((e, stubs)) = stubs.filter(|_| code == SYS_SECCOMP) else {
        return deliver::deliver(number, info, &mut context);
    };
    if let Some(index) = stubs.index_of(context.ip()) {
        // A filter of the program's own trapped the call when it was made again.
        let back = stubs.back(index);
        stubs.abandon(index, &mut |pins| e.unpin_range(pins));
        context.set_ip(back);
        // SAFETY: the live siginfo.
        unsafe { info.cast::<u8>().add(ADDRESS_OFFSET).cast::<usize>().write(back) };
        return deliver::deliver(number, info, &mut context);
    }
    if mark != i32::from(TRAP_MARK) {
        return deliver::deliver(number, info, &mut context);
    }
    let args = context.args();
    let mask = pointer_args(nr);
    let managed = (0..6).any(|i| mask >> i & 1 == 1 && e.contains(args[i]));
    if !managed {
        return deliver::deliver(number, info, &mut context);
    }
    let call = Trapped { nr, args, back: context.ip(), stack: context.sp(), frame: None };
    match calls::emulate(e, nr as i64, args, &mut context) {
        Some(result) => context.set_result(result),
        None => calls::make(e, call, &mut context),
    }
    stacks::tend(e, &mut context);
}
