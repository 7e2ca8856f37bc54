//! Inline mode: SIGBUS and SIGSYS are Weir's. A SIGBUS on managed memory is a page fault, resolved
//! where it happens; a SIGSYS is a system call with a managed pointer, made again once its buffers
//! are there. Everything else goes to the program's own handlers, which see what they asked for.

pub mod actions;
mod affinity;
mod calls;
pub mod child;
pub mod context;
mod deliver;
mod exec;
mod fault;
pub mod gate;
pub mod handlers;
mod hooks;
mod jumps;
mod masks;
pub mod ours;
mod own_memory;
pub mod past;
mod pending;
mod relay;
pub mod rings;
mod sigsys;
pub mod stacks;
pub mod tables;
mod threads;
mod waits;
