//! Kernel doors and raw memory for Weir: the home of `unsafe`.
//!
//! Everything that talks to the kernel or dereferences an address lies here, behind interfaces
//! whose unsafe acts are few: registering memory with a userfaultfd, moving pages under somebody's
//! feet, and lending frames. What the kernel can do is decided once, in [`probe`].

pub mod cipher;
#[cfg(target_arch = "x86_64")]
pub mod code;
pub mod codec;
pub mod elf;
pub mod fds;
pub mod file;
pub mod fileio;
pub mod files;
#[cfg(target_arch = "x86_64")]
pub mod gate;
pub mod host;
pub mod ids;
pub mod live;
#[cfg(target_arch = "x86_64")]
pub mod load;
pub mod mem;
pub mod pager;
pub mod probe;
pub mod ram;
#[cfg(test)]
mod random;
pub mod ring;
pub mod shards;
pub mod signal;
pub mod stack;
pub mod swapfile;
pub mod sys;
pub mod thread;
pub mod tree;
pub mod uffd;
