//! What a forked child's thread has to forget of its parent's signals, calls and stacks.

use super::{actions, pending, stacks};
use weir_os::gate::area::{self, Area};
use weir_os::gate::dispatch;

/// In the child of a fork, also of one from before the engine started.
pub fn forked() {
    area::own();
    Area::current().forget_id();
    actions::forked();
    pending::forked();
    stacks::forked();
    if let Err(e) = dispatch::switch_on() {
        weir::engine::threads::fatal(format_args!("a forked child's own system calls cannot be seen: {e}"));
    }
}
