//! The shim: preloaded into an unmodified program, it puts the program's memory under Weir.
//!
//! It exports the malloc family, the mmap family, and what it takes to survive fork and programs
//! that close descriptors they did not open. The engine starts lazily: a process that never uses much
//! memory gets libc's own allocator and nothing else.
//!
//! Rules: hooks work before constructors have run; nothing here calls an interposable symbol that
//! could come back as one of our own hooks on an engine thread; the Rust heap of this library is
//! talc over raw mappings.

mod brk;
mod demand;
mod ends;
mod exit;
mod family;
mod fds;
mod files;
mod fork;
mod heap;
mod hints;
mod init;
mod inline;
mod jemalloc;
mod kept;
mod libc_next;
mod live;
mod malloc;
mod map;
mod rights;
mod shm;
mod splice;
mod start;
mod state;
mod statistics;
mod threads;
